//! The parts of the full screen: rates, graphs of them, drops by cause, cycles, queues, and notes.

use std::collections::VecDeque;

use linerate::traffic::Rate;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline};

use super::{LINK_KEYS, State};
use crate::rates::{Rates, Tick, causes_in_words, per_second, scaled, shortened};
use crate::terminal::last_notes;

/// The most seconds in a graph: the columns of a wide terminal.
const HISTORY: usize = 1024;
/// The most lines of notes.
const NOTES: usize = 4;
/// The beginning of the line in which options of a link are typed.
const TYPING: &str = "options (Enter applies, Esc cancels): ";

/// The part between the rates and the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    Graphs,
    Queues,
    Keys,
}

/// The state of the keys that change an emulated link.
#[derive(Default)]
pub struct LinkKeys {
    /// The option that keys raise and lower, in [`LINK_KEYS`](super::LINK_KEYS).
    pub selected: usize,
    /// Options that are being typed.
    pub typed: Option<String>,
}

/// The full-screen view of a run.
pub struct View {
    title: String,
    has_rate: bool,
    can_pause: bool,
    /// The keys of an emulated link.
    pub link: Option<LinkKeys>,
    pub panel: Panel,
    last: Option<Tick>,
    /// Packets per second, received and sent, of each port, the latest first.
    history: Vec<[VecDeque<u64>; 2]>,
}

impl View {
    pub fn new(title: String, has_rate: bool, can_pause: bool, has_link: bool) -> View {
        let link = has_link.then(LinkKeys::default);
        View { title, has_rate, can_pause, link, panel: Panel::Graphs, last: None, history: Vec::new() }
    }

    /// Stores the rates of an interval.
    pub fn tick(&mut self, tick: &Tick) {
        self.history.resize_with(tick.ports.len(), Default::default);
        for (port, history) in tick.ports.iter().zip(&mut self.history) {
            for (rate, past) in [&port.rx, &port.tx].into_iter().zip(history) {
                past.truncate(HISTORY - 1);
                past.push_front((rate.mpps * 1e6).round() as u64);
            }
        }
        self.last = Some(tick.clone());
    }

    /// Draws all parts. If the terminal has too few lines, parts get room in this order: title, rates, keys, cycles,
    /// drops, notes, graphs.
    pub fn draw(&self, frame: &mut Frame, state: &State) {
        let area = frame.area();
        let width = usize::from(area.width);
        let table = self.last.as_ref().map_or(String::new(), |tick| tick.table(width));
        let table: Vec<&str> = table.lines().collect();
        let ports = self.last.as_ref().map_or(0, |tick| tick.ports.len());
        let (rates, cycles) = table.split_at((1 + ports).min(table.len()));
        let drops: Vec<Line> = self.last.iter().flat_map(|tick| &tick.ports).filter_map(drops).collect();
        let notes = last_notes(NOTES);
        let mut left = area.height;
        let mut take = |lines: usize| {
            let some = left.min(u16::try_from(lines).unwrap_or(u16::MAX));
            left -= some;
            some
        };
        let [of_title, of_rates, of_keys, of_link] = [take(1), take(rates.len()), take(1), take(state.link.len())];
        let [of_cycles, of_drops, of_notes] = [take(cycles.len()), take(drops.len()), take(notes.len())];
        let heights = [of_title, of_rates, of_link, of_drops, of_cycles, left, of_notes, of_keys];
        let parts: [Rect; 8] = Layout::vertical(heights.map(Constraint::Length)).areas(area);
        let [title_area, rates_area, link_area, drops_area, cycles_area, middle, notes_area, keys_area] = parts;

        frame.render_widget(self.title(state, width), title_area);
        let rows = rates.iter().enumerate().map(|(row, line)| {
            let is_down = row > 0 && self.last.as_ref().is_some_and(|tick| !tick.ports[row - 1].is_up);
            let line = Line::from(line.to_string());
            if row == 0 || is_down { line.dim() } else { line }
        });
        frame.render_widget(Text::from_iter(rows), rates_area);
        frame.render_widget(Text::from_iter(state.link.iter().map(String::as_str)), link_area);
        frame.render_widget(Text::from(drops), drops_area);
        frame.render_widget(Text::from_iter(cycles.iter().map(|line| line.to_string())), cycles_area);
        match self.panel {
            Panel::Graphs => self.draw_graphs(frame, middle),
            Panel::Queues => frame.render_widget(self.queues(middle.height.into()), middle),
            Panel::Keys => frame.render_widget(Text::from(self.keys()), middle),
        }
        frame.render_widget(Paragraph::new(notes.join("\n")).yellow(), notes_area);
        let of_link = self.link.as_ref().map(|link| format!("Tab + - {}  e edit  ", LINK_KEYS[link.selected]));
        let keys = format!(
            "q end  ? keys  {}{}{}r reset  v queues",
            if self.can_pause { "p pause  " } else { "" },
            if self.has_rate { "+ - rate  " } else { "" },
            of_link.unwrap_or_default(),
        );
        let typed = self.link.as_ref().and_then(|link| link.typed.as_ref());
        let keys = typed.map_or(Line::from(keys).dim(), |typed| Line::from(format!("{TYPING}{typed}_")));
        frame.render_widget(keys, keys_area);
    }

    /// Returns the line with the command, its time and its state.
    fn title(&self, state: &State, width: usize) -> Line<'_> {
        let mut right = format!("{:.0}", state.seconds);
        right += &state.of.map_or(" s".to_string(), |of| format!(" of {of} s"));
        if let Some(asked) = state.asked {
            right = format!("{}  {right}", Rate::Packets(asked));
        }
        let word = if state.is_paused { "  paused" } else { "" };
        let room = width.saturating_sub(right.chars().count() + word.len() + 1);
        let left: String = self.title.chars().take(room).collect();
        let gap = " ".repeat((room + 1).saturating_sub(left.chars().count()));
        Line::from(vec![
            left.bold(),
            Span::raw(gap + &right),
            Span::styled(word, Style::new().bold().fg(Color::Yellow)),
        ])
    }

    /// Draws the rates of each port over time: received on the left, sent on the right, one column per second.
    fn draw_graphs(&self, frame: &mut Frame, area: Rect) {
        let ports = self.history.len() as u16;
        // Each graph needs at least two lines: its head and one line of the graph.
        if ports == 0 || area.height < 2 {
            return;
        }
        let shown = ports.min(area.height / 2);
        let rows = Layout::vertical(vec![Constraint::Fill(1); shown.into()]).split(area);
        let names = self.last.iter().flat_map(|tick| &tick.ports).map(|port| port.name.as_str());
        for ((row, history), name) in rows.iter().zip(&self.history).zip(names) {
            let halves: [Rect; 2] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(*row);
            for ((half, past), (way, color)) in
                halves.into_iter().zip(history).zip([("rx", Color::Green), ("tx", Color::Cyan)])
            {
                let [head, graph] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(half);
                let seen = || past.iter().copied().take(graph.width.into());
                let most = seen().max().unwrap_or(0);
                let most_in_words = if most == 0 {
                    "no packets".to_string()
                } else {
                    format!("peak {} packets/s", per_second(most as f64))
                };
                let room = usize::from(half.width).saturating_sub(way.len() + 3 + most_in_words.chars().count());
                let text = format!("{way} {}: {most_in_words}", shortened(name, room.max(8)));
                frame.render_widget(Line::from(text).dim(), head);
                let graph_of = Sparkline::default().data(seen().collect::<Vec<u64>>()).max(most.max(1));
                frame.render_widget(graph_of.direction(RenderDirection::RightToLeft).fg(color), graph);
            }
        }
    }

    /// Returns the rates of each queue, in at most `most` lines.
    fn queues(&self, most: usize) -> Text<'static> {
        let title = format!("{:<28}{:>12}{:>12}{:>16}", "queue", "rx slots/s", "tx slots/s", "no descriptor");
        let mut lines = vec![Line::from(title).dim()];
        for port in self.last.iter().flat_map(|tick| &tick.ports) {
            let (rx, tx) = (&port.queues.rx_mslots, &port.queues.tx_mslots);
            for queue in 0..rx.len().max(tx.len()) {
                let rate = |rates: &[f64]| rates.get(queue).map_or(String::new(), |rate| scaled(*rate));
                let missed = port.queues.no_descriptor.get(queue).map_or(String::new(), u64::to_string);
                let name = format!("{} {queue}", shortened(&port.name, 24));
                lines.push(Line::from(format!("{name:<28}{:>12}{:>12}{missed:>16}", rate(rx), rate(tx))));
            }
        }
        let others = lines.len().saturating_sub(most);
        if others > 0 {
            lines.truncate(most.saturating_sub(1));
            lines.push(Line::from(format!("{} more queues; a taller terminal shows them", others + 1)).dim());
        }
        Text::from(lines)
    }

    /// Returns the keys with their meanings.
    fn keys(&self) -> Vec<Line<'static>> {
        let mut keys = vec![
            ("q  Ctrl-C", "end the run and print its summary"),
            ("r", "reset the counters; the summary counts from the start"),
            ("v", "show the queues' rates; again: the graphs, one column per second"),
            ("Ctrl-Z", "suspend; fg continues"),
        ];
        if self.has_rate {
            keys.insert(1, ("PageUp  PageDown", "double or halve the rate"));
            keys.insert(1, ("+  -  Up  Down", "raise or lower the rate by 10 %"));
        }
        if self.link.is_some() {
            keys.insert(1, ("e", "type options of the link, as delay=20ms loss=1%/0; Enter applies, Esc cancels"));
            keys.insert(1, ("PageUp  PageDown", "double or halve it"));
            keys.insert(1, ("+  -  Up  Down", "raise or lower it by 10 %"));
            keys.insert(1, ("Tab", "select the next option of the link"));
        }
        if self.can_pause {
            keys.insert(1, ("p  Space", "pause; again: resume"));
        }
        keys.into_iter().map(|(key, meaning)| Line::from(vec![format!("{key:<18}").bold(), meaning.into()])).collect()
    }
}

/// Returns a line with a port's drops by cause, if there are any.
fn drops(port: &Rates) -> Option<Line<'static>> {
    let causes = causes_in_words(port.drops.iter().copied())?;
    Some(Line::from(format!("{} dropped: {causes}", port.name)).fg(Color::Red))
}
