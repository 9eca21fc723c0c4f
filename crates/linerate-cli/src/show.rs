//! The output of a run: the full-screen view or lines for people, JSON lines for programs, and the summary.

use std::io::{ErrorKind, IsTerminal, StdoutLock, Write, stdout};
use std::process::ExitCode;
use std::sync::OnceLock;

use linerate::port::Drops;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};

use crate::inherited::closed_streams;
use crate::live::Screen;
use crate::options::RunOptions;
use crate::rates::{Tick, causes_in_words, scaled, shortened};
use crate::signals::interrupts;
use crate::terminal::{note, unwritable};

/// The lines that a run shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The rates of each second, and the summary.
    All,
    /// The summary.
    Summary,
    /// The summary, on standard error, as standard output has other content.
    SummaryOnStderr,
}

/// The display of a run.
pub struct Show {
    json: bool,
    shown: Shown,
    /// The summary has the cards' counters by register.
    registers: bool,
    screen: Option<Screen>,
}

impl Show {
    /// Creates a display that prints JSON lines, updates the screen, or prints a table each second.
    pub fn new(options: &RunOptions, shown: Shown, screen: Option<Screen>) -> Show {
        Show { json: options.json, shown, registers: options.registers, screen }
    }

    /// Shows one interval.
    pub fn tick(&mut self, tick: &Tick) {
        match &mut self.screen {
            _ if self.shown != Shown::All => {}
            _ if self.json => print(&format!("{}\n", tick.json())),
            Some(screen) => screen.tick(tick),
            None => print(&tick.table(columns())),
        }
    }

    /// Returns the full-screen view.
    pub fn screen(&mut self) -> Option<&mut Screen> {
        self.screen.as_mut()
    }

    /// Leaves the full-screen view, and prints the summary, followed by the command's own table.
    pub fn summary(&mut self, summary: &Value, table: &str) {
        self.screen = None;
        let text = match self.json {
            true => format!("{summary}\n"),
            false => summary_table(&summary["summary"], self.registers) + table,
        };
        match self.shown {
            Shown::SummaryOnStderr => note(text.trim_end()),
            _ => print(&text),
        }
    }
}

/// Returns the number of columns of the terminal, 80 if it does not report them; without a terminal there is no limit.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(stdout()).ok();
    let reported = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
    if stdout().is_terminal() { reported.unwrap_or(80) } else { usize::MAX }
}

/// Returns the summary as a table, with the cards' counters by register if asked for.
fn summary_table(summary: &Value, registers: bool) -> String {
    let ports = summary["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |port: &Value| port["name"].as_str().unwrap_or("").to_string();
    let room = ports.iter().map(|port| name(port).chars().count()).max().unwrap_or(0).clamp(8, 24);
    let mut text = format!("\n{:<room$}{:>14}{:>17}\n", "", "packets", "bytes");
    for port in ports {
        let number = |key: &str| port[key].as_u64().unwrap_or(0);
        for (direction, packets, bytes) in [
            ("received", number("rx_packets"), port["rx_bytes"].as_u64()),
            ("sent", number("tx_packets"), port["tx_bytes"].as_u64()),
        ] {
            let name = if direction == "received" { shortened(&name(port), room) } else { String::new() };
            let bytes = bytes.map_or("unknown".to_string(), |bytes| bytes.to_string());
            text += &format!("{name:<room$} {direction:<8}{packets:>13}{bytes:>17}\n");
        }
        let drops = port["drops"].as_object().into_iter().flatten();
        if let Some(causes) = causes_in_words(drops.map(|(cause, count)| (cause.as_str(), count.as_u64().unwrap_or(0))))
        {
            text += &format!("{:<room$} dropped  {causes}\n", "");
        }
        for (register, count) in port["registers"].as_object().into_iter().flatten().filter(|_| registers) {
            text += &format!("{:<room$} {register:<10}{count:>11}\n", "");
        }
    }
    let number = |key: &str| &summary[key];
    let count = |key: &str| number(key).as_u64().unwrap_or(0);
    let packets = if count("packets") == 1 { "packet" } else { "packets" };
    text += &format!("{}: {} {packets}", summary["command"].as_str().unwrap_or(""), number("packets"));
    let after_end = count("after_end");
    if after_end > 0 {
        text += &format!(" ({after_end} of them after the end)");
    }
    // A single batch has no rate.
    match number("mpps").as_f64() {
        Some(rate) => {
            let seconds = time(number("active_seconds").as_f64().unwrap_or(0.0));
            let rate = scaled(rate);
            text += &format!(" in {seconds}: {rate} packets/s, {} cycles/packet", number("cycles_per_packet"));
        }
        None if count("packets") > 0 => text += &format!(", {} cycles/packet", number("cycles_per_packet")),
        None => {}
    }
    text += &format!(
        "\nlost {}, corrupted {}, reordered {}, breaches {}",
        number("lost"),
        number("corrupted"),
        number("reordered"),
        number("breaches"),
    );
    if count("duplicated") > 0 {
        text += &format!(", duplicated {}", number("duplicated"));
    }
    if count("filtered") > 0 {
        text += &format!(", filtered {}", number("filtered"));
    }
    if count("undecided") > 0 {
        text += &format!(", undecided {}", number("undecided"));
    }
    if count("held") > 0 {
        text += &format!(", not forwarded {}", number("held"));
    }
    text += "\n";
    let changed = &summary["changed"];
    if let Some(frames) = changed["frames"].as_u64().filter(|frames| *frames > 0) {
        let fields =
            changed["fields"].as_object().into_iter().flatten().map(|(name, count)| (name.replace('_', " "), count));
        let unknown = (changed["unknown"] != 0).then(|| ("fields not known".to_string(), &changed["unknown"]));
        let fields: Vec<_> = fields.chain(unknown).map(|(name, count)| format!("{name} {count}")).collect();
        text += &format!("headers changed in {frames} packets: {}\n", fields.join(", "));
    }
    if let Some(bound) = summary["bounded_by"].as_str() {
        text += &format!("bounded by {bound}\n");
    }
    if let Some(profile) = summary.get("profile") {
        let [receive, touch, send] = ["receive", "touch", "send"].map(|part| &profile[part]);
        text += &format!("cycles/packet: receive {receive}, touch {touch}, send {send}\n");
    }
    text
}

/// Returns seconds with three significant digits and a unit: `14.2 ms`.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        ..999.5e-9 => (seconds * 1e9, "ns"),
        ..999.5e-6 => (seconds * 1e6, "µs"),
        ..0.9995 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    match value {
        ..9.995 => format!("{value:.2} {unit}"),
        ..99.95 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// The first failure to write to standard output.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// The most bytes that can be written to a pipe without blocking once it is writable (pipe(7): `PIPE_BUF`).
const PIPE_BUF: usize = 4096;

/// Writes `text`. After Ctrl-C, gives up if the reader reads nothing for 1 s.
fn write_to_reader(mut out: StdoutLock<'_>, text: &str) -> std::io::Result<()> {
    const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    for piece in text.as_bytes().chunks(PIPE_BUF) {
        let mut polls = 0;
        while poll(&mut [PollFd::new(&out, PollFlags::OUT)], Some(&POLL_INTERVAL)).is_ok_and(|there| there == 0) {
            polls += u32::from(interrupts().should_end());
            if polls > 10 {
                return Err(std::io::Error::new(ErrorKind::TimedOut, "its reader has read nothing for 1 s"));
            }
        }
        out.write_all(piece)?;
        out.flush()?;
    }
    Ok(())
}

/// Prints `text`. If there is no reader any more, as after `linerate … | head -1`, or if writing fails, the run ends as
/// after Ctrl-C, and gives its cards back.
pub fn print(text: &str) {
    let out = stdout().lock();
    let is_open = match is_closed() {
        true => Err(std::io::Error::new(ErrorKind::NotFound, "it is closed")),
        false => Ok(()),
    };
    if let Err(error) = is_open.and_then(|()| write_to_reader(out, text)) {
        if error.kind() != ErrorKind::BrokenPipe {
            UNWRITTEN.get_or_init(|| error.to_string());
        }
        interrupts().end();
    }
}

/// Returns whether the command was started without standard output.
pub fn is_closed() -> bool {
    closed_streams().any(|stream| stream == 1)
}

/// Returns the command's exit code: `code`, or a failure if standard output could not be written.
pub fn exit_code(code: ExitCode) -> ExitCode {
    UNWRITTEN.get().map_or(code, |why| unwritable(why))
}

/// Returns the causes of drops that have occurred.
pub fn drops(drops: &Drops) -> Value {
    occurred(drops.by_cause())
}

/// Returns the counts by name that are not 0.
pub fn occurred<N: Into<String>>(counts: impl IntoIterator<Item = (N, u64)>) -> Value {
    let counts = counts.into_iter().filter(|&(_, count)| count > 0);
    Value::Object(counts.map(|(name, count)| (name.into(), json!(count))).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::in_words;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (seconds, shown) in [
            (3.76e-6, "3.76 µs"),
            (0.0142, "14.2 ms"),
            (0.9996e-3, "1.00 ms"),
            (0.123, "123 ms"),
            (2.0, "2.00 s"),
            (5e-8, "50.0 ns"),
        ] {
            assert_eq!(time(seconds), shown);
        }
    }

    /// Each cause has a description.
    #[test]
    fn drops_are_shown_in_words() {
        for (cause, _) in linerate::port::Drops::default().by_cause() {
            assert!(cause == "malformed" || in_words(cause) != cause, "{cause}");
        }
        let port = json!({"name": "sim:0", "rx_packets": 3, "rx_bytes": 180, "drops": {"undersize": 70}});
        let text =
            summary_table(&json!({"command": "sink", "ports": [port], "packets": 3, "active_seconds": 0.5}), false);
        assert!(text.contains("dropped  70 too short") && !text.contains('{'), "{text}");
    }
}
