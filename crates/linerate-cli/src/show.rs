//! The output of a run: a live table for people, JSON lines for programs, notes on standard error.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate::port::{Drops, Statistics};
use serde_json::{Map, Value, json};

use crate::profile::Parts;
use crate::signals::interrupts;

/// One port's rates over the last interval.
pub struct Rates {
    name: String,
    rx: Rate,
    tx: Rate,
    dropped: u64,
    drops: Value,
}

/// One direction.
struct Rate {
    /// Packets since the port was opened.
    packets: u64,
    mpps: f64,
    /// Frames without CRC.
    gbits: f64,
    /// With CRC, preamble, start and gap: 24 bytes a frame.
    wire_gbits: f64,
}

impl Rate {
    /// Computes the rates from `before` to `now`, both packets and bytes.
    fn new(before: (u64, u64), now: (u64, u64), seconds: f64) -> Rate {
        // Frames that a file could not take were counted before its buffer was written, and are not any more.
        let (packets, bytes) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        let per_second = |count: u64| count as f64 / seconds;
        Rate {
            packets: now.0,
            mpps: per_second(packets) / 1e6,
            gbits: per_second(bytes) * 8e-9,
            wire_gbits: per_second(bytes + packets * 24) * 8e-9,
        }
    }

    fn json(&self) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let (gbits, wire_gbits) = (round(self.gbits), round(self.wire_gbits));
        json!({"packets": self.packets, "mpps": self.mpps, "gbits": gbits, "wire_gbits": wire_gbits})
    }
}

impl Rates {
    /// Computes the rates from `before` to `now`.
    pub fn new(name: &str, before: &Statistics, now: &Statistics, seconds: f64) -> Rates {
        let lost = |statistics: &Statistics| statistics.drops.by_cause().iter().map(|(_, count)| count).sum::<u64>();
        let rate = |of: fn(&Statistics) -> (u64, u64)| Rate::new(of(before), of(now), seconds);
        Rates {
            name: name.to_string(),
            rx: rate(|counters| (counters.rx_packets, counters.rx_bytes)),
            tx: rate(|counters| (counters.tx_packets, counters.tx_bytes)),
            dropped: lost(now),
            drops: drops(&now.drops),
        }
    }
}

/// One interval of a run.
pub struct Tick {
    /// Since the run began.
    pub seconds: f64,
    pub ports: Vec<Rates>,
    /// `None` if nothing moved.
    pub cycles_per_packet: Option<f64>,
    pub parts: Option<Parts>,
    /// The processors that the threads use.
    pub processors: Vec<u16>,
}

/// What a run shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The rates of each second, and the summary.
    All,
    /// The summary.
    Summary,
    /// The summary, on standard error: standard output has other things.
    Aside,
}

/// The display of a run.
pub struct Show {
    json: bool,
    shown: Shown,
    terminal: bool,
    lines: usize,
}

impl Show {
    /// Prints JSON lines, or a table, which is redrawn in place on a terminal.
    pub fn new(json: bool, shown: Shown) -> Show {
        Show { json, shown, terminal: stdout().is_terminal(), lines: 0 }
    }

    /// Shows one interval.
    pub fn tick(&mut self, tick: &Tick) {
        if self.shown != Shown::All {
            return;
        }
        if self.json {
            return print(&format!("{}\n", tick.json()));
        }
        let (width, height) = if self.terminal { terminal_size() } else { (usize::MAX, usize::MAX) };
        let table = tick.table(width);
        // The cursor has the line behind the table, and cannot move above the screen.
        let table: String = table.split_inclusive('\n').take(height - 1).collect();
        let back = match self.terminal && self.lines > 0 {
            true => format!("\x1b[{}A\x1b[J", self.lines),
            false => String::new(),
        };
        self.lines = table.lines().count();
        print(&(back + &table));
    }

    /// Prints the summary, and behind it the command's own table.
    pub fn summary(&self, summary: &Value, table: &str) {
        let text = if self.json { format!("{summary}\n") } else { summary_table(&summary["summary"]) + table };
        match self.shown {
            Shown::Aside => note(text.trim_end()),
            _ => print(&text),
        }
    }
}

/// Returns the columns of the terminal, 80 if it does not report them, and its rows, at least 2.
fn terminal_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(stdout()).ok();
    let reported = |count: Option<u16>, usual: usize| count.filter(|&count| count > 0).map_or(usual, usize::from);
    (reported(size.map(|size| size.ws_col), 80), reported(size.map(|size| size.ws_row), 24).max(2))
}

/// The columns of the live table, without the name: title, width, and the narrowest terminal that shows it.
type Column = (&'static str, usize, usize, fn(&Rates) -> String);

const COLUMNS: [Column; 7] = [
    ("rx Mpps", 9, 0, |port| mpps(port.rx.mpps)),
    ("Gbit/s", 8, 72, |port| format!("{:.3}", port.rx.gbits)),
    ("wire", 8, 80, |port| format!("{:.3}", port.rx.wire_gbits)),
    ("tx Mpps", 9, 0, |port| mpps(port.tx.mpps)),
    ("Gbit/s", 8, 72, |port| format!("{:.3}", port.tx.gbits)),
    ("wire", 8, 80, |port| format!("{:.3}", port.tx.wire_gbits)),
    ("dropped", 11, 40, |port| port.dropped.to_string()),
];

impl Tick {
    fn json(&self) -> Value {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|Rates { name, rx, tx, dropped, drops }| {
                json!({"name": name, "rx": rx.json(), "tx": tx.json(), "dropped": dropped, "drops": drops})
            })
            .collect();
        let tenth = |value: f64| (value * 10.0).round() / 10.0;
        let mut line = json!({
            "seconds": tenth(self.seconds), "ports": ports, "cycles_per_packet": self.cycles_per_packet.map(tenth),
            "processors": self.processors,
        });
        if let Some(parts) = self.parts {
            line["profile"] = parts.json();
        }
        line
    }

    /// Returns the table for a terminal of `width` columns. No line is longer, so that it can be redrawn in place.
    fn table(&self, width: usize) -> String {
        let columns: Vec<&Column> = COLUMNS.iter().filter(|(_, _, least, _)| width >= *least).collect();
        let numbers: usize = columns.iter().map(|(_, width, ..)| width).sum();
        let longest = self.ports.iter().map(|port| port.name.chars().count()).max().unwrap_or(0).max(10);
        let room = longest.min(width.saturating_sub(numbers).max(8));
        let seconds = format!("{} s", (self.seconds * 10.0).round() / 10.0);
        let titles = columns.iter().map(|(title, width, ..)| format!("{title:>width$}"));
        let mut lines = vec![fitting(format!("{seconds:<room$}"), titles, width)];
        for port in &self.ports {
            let cells = columns.iter().map(|(_, width, _, value)| format!("{:>width$}", value(port)));
            lines.push(fitting(format!("{:<room$}", shortened(&port.name, room)), cells, width));
        }
        let cores: Vec<String> = self.processors.iter().map(ToString::to_string).collect();
        let cycles =
            self.cycles_per_packet.map_or("no packets".to_string(), |cycles| format!("{cycles:.0} cycles/packet"));
        let used = match cores.len() {
            0 => String::new(),
            1 => format!(", on processor {}", cores[0]),
            _ => format!(", on processors {}", cores.join(" ")),
        };
        lines.push(cycles + &used);
        if let Some(Parts { receive, touch, send }) = self.parts {
            let parts = format!("receive {receive:.1}, touch {touch:.1}, send {send:.1}");
            // The unit is in the line above, too.
            let line = format!("cycles/packet: {parts}");
            lines.push(if line.len() > width { parts } else { line });
        }
        lines.iter().map(|line| whole_words(line, width) + "\n").collect()
    }
}

/// Returns a line of the cells that fit `width` columns: a figure that is cut is a wrong one.
fn fitting(name: String, cells: impl Iterator<Item = String>, width: usize) -> String {
    let mut line = name;
    for cell in cells {
        if line.chars().count() + cell.chars().count() > width {
            break;
        }
        line += &cell;
    }
    line
}

/// Returns a line of at most `width` columns; of a longer one the words that fit, and a mark that some are missing.
fn whole_words(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_string();
    }
    const MISSING: &str = " …";
    let room = width.saturating_sub(MISSING.chars().count());
    let mut words = String::new();
    for word in line.split_inclusive(' ') {
        if words.chars().count() + word.trim_end().chars().count() > room {
            break;
        }
        words += word;
    }
    // Not even the first word fits.
    (words.trim_end().to_string() + if words.is_empty() { MISSING.trim() } else { MISSING })
        .chars()
        .take(width)
        .collect()
}

/// Returns a name of at most `room` characters; of a longer one the beginning and the end, which distinguish names.
fn shortened(name: &str, room: usize) -> String {
    let count = name.chars().count();
    if count <= room {
        return name.to_string();
    }
    let front = room / 2;
    let end: String = name.chars().skip(count - (room - front).saturating_sub(1)).collect();
    name.chars().take(front).collect::<String>() + "…" + &end
}

/// Returns the summary as a table.
fn summary_table(summary: &Value) -> String {
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
        let drops: Vec<String> = port["drops"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(cause, count)| format!("{count} {}", in_words(cause)))
            .collect();
        if !drops.is_empty() {
            text += &format!("{:<room$} dropped  {}\n", "", drops.join(", "));
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
            text += &format!(" in {seconds}: {} Mpps, {} cycles/packet", mpps(rate), number("cycles_per_packet"));
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
    if count("held") > 0 {
        text += &format!(", not forwarded {}", number("held"));
    }
    text += "\n";
    if let Some(bound) = summary["bounded_by"].as_str() {
        text += &format!("bounded by {bound}\n");
    }
    if let Some(profile) = summary.get("profile") {
        let [receive, touch, send] = ["receive", "touch", "send"].map(|part| &profile[part]);
        text += &format!("cycles/packet: receive {receive}, touch {touch}, send {send}\n");
    }
    text
}

/// Returns a cause of drops as people say it; docs/wires.md explains each.
fn in_words(cause: &str) -> &str {
    match cause {
        "no_descriptor" => "without a free descriptor",
        "no_buffer" => "times no free buffer",
        "bad_crc" => "with a wrong checksum",
        "undersize" => "too short",
        "oversize" => "too long",
        "bad_frame" => "damaged",
        "malformed" => "malformed",
        "tx_too_long" => "not sent: too long, or not writable",
        "injected" => "injected faults",
        other => other,
    }
}

/// Returns millions per second: of less than one with more digits, down to one packet per second, and less in full.
fn mpps(value: f64) -> String {
    match value {
        _ if value <= 0.0 || value >= 0.9995 => format!("{value:.3}"),
        0.000001.. => format!("{value:.6}"),
        _ => format!("{value:.3e}"),
    }
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

/// Returns a count per second with three significant digits: `14.9M`.
pub fn per_second(value: f64) -> String {
    let (value, prefix) = match value {
        ..999.5 => (value, ""),
        ..999.5e3 => (value / 1e3, "k"),
        ..999.5e6 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    match value {
        ..9.995 => format!("{value:.2}{prefix}"),
        ..99.95 => format!("{value:.1}{prefix}"),
        _ => format!("{value:.0}{prefix}"),
    }
}

/// Standard output was closed when the process began (`>&-`).
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Looks before `main`: Rust's runtime opens `/dev/null` in place of a standard output that is closed.
#[allow(unsafe_code)]
// SAFETY: the C library calls the functions of this section once each, with arguments that this one ignores, before `main`;
// it uses neither Rust's runtime nor memory.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: the call reads a descriptor's flags; there need not be one.
        let flags = unsafe { libc::fcntl(1, libc::F_GETFD) };
        CLOSED.store(flags < 0, Ordering::Relaxed);
    }
    look
};

/// The first failure to write to standard output.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Prints `text`. If nobody reads it, as after `linerate … | head -1`, or if it cannot be written, the run ends as
/// after Ctrl-C: it gives its cards back.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let is_open = match CLOSED.load(Ordering::Relaxed) {
        true => Err(std::io::Error::new(ErrorKind::NotFound, "it is closed")),
        false => Ok(()),
    };
    if let Err(error) = is_open.and_then(|()| out.write_all(text.as_bytes())).and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            UNWRITTEN.get_or_init(|| error.to_string());
        }
        interrupts().end();
    }
}

/// Returns why standard output could not be written.
pub fn unwritten() -> Option<&'static str> {
    UNWRITTEN.get().map(String::as_str)
}

/// Prints a line on standard error. A standard error that cannot be written has no place for a message.
pub fn note(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// Returns the causes of drops that have occurred.
pub fn drops(drops: &Drops) -> Value {
    occurred(drops.by_cause())
}

/// Returns the counts by cause that are not 0.
pub fn occurred<const N: usize>(causes: [(&'static str, u64); N]) -> Value {
    let causes = causes.into_iter().filter(|&(_, count)| count > 0);
    Value::Object(causes.map(|(cause, count)| (cause.to_string(), json!(count))).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, mpps: f64, dropped: u64) -> Rates {
        let rate = || Rate { packets: 0, mpps, gbits: mpps / 2.0, wire_gbits: mpps * 0.672 };
        Rates { name: name.to_string(), rx: rate(), tx: rate(), dropped, drops: json!({}) }
    }

    #[test]
    fn the_table_fits_any_width() {
        let ports =
            vec![port("sim:0", 14.881, 0), port(&"vfio-user:/run/a/very/long/path".repeat(9), 1e-3, u64::MAX / 7)];
        let parts = Some(Parts { receive: 1.0, touch: 2.0, send: 3.0 });
        let tick = Tick { seconds: 1.0, ports, cycles_per_packet: Some(53.0), parts, processors: (0..64).collect() };
        let wide = tick.table(usize::MAX);
        let whole: Vec<&str> = wide.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        for width in 0..200 {
            let table = tick.table(width);
            assert_eq!(table.lines().count(), 5, "{table}");
            assert!(table.lines().all(|line| line.chars().count() <= width), "{width}:\n{table}");
            // A figure is there as on a wide terminal, or not at all.
            let is_whole = |word: &str| word.contains('…') || whole.contains(&word.trim_end_matches(','));
            assert!(table.lines().skip(1).flat_map(str::split_whitespace).all(is_whole), "{width}:\n{table}");
            let has_rates = table.lines().nth(1).is_some_and(|line| line.contains("14.881"));
            assert_eq!(has_rates, width >= 17, "{width}:\n{table}");
        }
        let table = tick.table(80);
        let [title, first, ..] = table.lines().collect::<Vec<_>>()[..] else { unreachable!() };
        for part in ["1 s", "rx Mpps", "tx Mpps", "Gbit/s    wire", "dropped"] {
            assert!(title.contains(part), "{part}: {table}");
        }
        assert_eq!(title.chars().count(), first.chars().count(), "columns do not shift");
        assert!(tick.table(47).contains("tx Mpps") && !tick.table(47).contains("Gbit"));
    }

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
        for (value, shown) in
            [(14.8809, "14.881"), (0.0, "0.000"), (1e-5, "0.000010"), (0.5, "0.500000"), (0.9999, "1.000")]
        {
            assert_eq!(mpps(value), shown);
        }
        for (value, shown) in [(14_880_952.0, "14.9M"), (100e3, "100k"), (0.0, "0.00"), (20.0, "20.0")] {
            assert_eq!(per_second(value), shown);
        }
    }

    /// Each cause has words.
    #[test]
    fn drops_are_shown_in_words() {
        for (cause, _) in linerate::port::Drops::default().by_cause() {
            assert!(cause == "malformed" || in_words(cause) != cause, "{cause}");
        }
        let port = json!({"name": "sim:0", "rx_packets": 3, "rx_bytes": 180, "drops": {"undersize": 70}});
        let text = summary_table(&json!({"command": "sink", "ports": [port], "packets": 3, "active_seconds": 0.5}));
        assert!(text.contains("dropped  70 too short") && !text.contains('{'), "{text}");
    }
}
