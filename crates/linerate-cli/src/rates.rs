//! One interval of a run: the rates of its ports, as JSON and as a table.

use linerate::port::{QueueStatistics, Statistics};
use serde_json::{Map, Value, json};

use crate::profile::Parts;

/// One port's rates over the last interval.
#[derive(Clone)]
pub struct Rates {
    pub name: String,
    #[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only the full-screen view shows it"))]
    pub is_up: bool,
    pub rx: Rate,
    pub tx: Rate,
    pub dropped: u64,
    /// Dropped packets by cause, without causes that did not occur.
    pub drops: Vec<(&'static str, u64)>,
    #[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only the full-screen view shows it"))]
    pub queues: Queues,
}

/// The rates of a port's queues.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "live"), expect(dead_code, reason = "only the full-screen view shows it"))]
pub struct Queues {
    /// Millions of slots per second, by receive queue and by transmit queue.
    pub rx_mslots: Vec<f64>,
    pub tx_mslots: Vec<f64>,
    /// Packets for which each receive queue had no descriptor; empty if the port does not count them by queue.
    pub no_descriptor: Vec<u64>,
}

/// A port's counters at a moment.
#[derive(Clone, Default)]
pub struct Counters {
    pub port: Statistics,
    pub queues: QueueStatistics,
}

/// The rates of one direction.
#[derive(Clone)]
pub struct Rate {
    /// Packets since the counters were reset.
    pub packets: u64,
    pub mpps: f64,
    /// Gbit/s of frames without CRC.
    pub gbits: f64,
    /// Gbit/s with CRC, preamble, start delimiter and gap: 24 more bytes per frame.
    pub wire_gbits: f64,
}

impl Rate {
    /// Computes the rates from `before` to `now`, each a pair of packets and bytes; packets count since `zero`.
    fn new([zero, before, now]: [(u64, u64); 3], seconds: f64) -> Rate {
        // Counts can decrease: frames of a file are counted before its buffer is written, and subtracted if that fails.
        let (packets, bytes) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        let per_second = |count: u64| count as f64 / seconds;
        Rate {
            packets: now.0.saturating_sub(zero.0),
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
    /// Computes the rates from `before` to `now`. Packets and drops count since `zero`.
    pub fn new(name: &str, is_up: bool, [zero, before, now]: [&Counters; 3], seconds: f64) -> Rates {
        let rate = |of: fn(&Statistics) -> (u64, u64)| Rate::new([zero, before, now].map(|all| of(&all.port)), seconds);
        let drops = now.port.drops.by_cause().into_iter().zip(zero.port.drops.by_cause());
        let drops = drops.map(|((cause, now), (_, zero))| (cause, now.saturating_sub(zero)));
        let drops: Vec<_> = drops.filter(|(_, count)| *count > 0).collect();
        let since = |now: &[u64], before: &[u64]| -> Vec<u64> {
            let before = before.iter().chain(std::iter::repeat(&0));
            now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect()
        };
        let mslots = |of: fn(&QueueStatistics) -> &Vec<u64>| -> Vec<f64> {
            let slots = since(of(&now.queues), of(&before.queues));
            slots.into_iter().map(|slots| slots as f64 / seconds / 1e6).collect()
        };
        Rates {
            name: name.to_string(),
            is_up,
            rx: rate(|counters| (counters.rx_packets, counters.rx_bytes)),
            tx: rate(|counters| (counters.tx_packets, counters.tx_bytes)),
            dropped: drops.iter().map(|(_, count)| count).sum(),
            drops,
            queues: Queues {
                rx_mslots: mslots(|queues| &queues.rx_slots),
                tx_mslots: mslots(|queues| &queues.tx_slots),
                no_descriptor: since(&now.queues.rx_no_descriptor, &zero.queues.rx_no_descriptor),
            },
        }
    }

    pub fn json(&self) -> Value {
        let drops: Map<_, _> = self.drops.iter().map(|(cause, count)| (cause.to_string(), json!(count))).collect();
        json!({"name": self.name, "rx": self.rx.json(), "tx": self.tx.json(), "dropped": self.dropped, "drops": drops})
    }
}

/// One interval of a run.
#[derive(Clone)]
pub struct Tick {
    /// Seconds since the run began.
    pub seconds: f64,
    pub ports: Vec<Rates>,
    /// Packets that no port has accepted since the run began.
    pub held: u64,
    /// `None` if no packets moved.
    pub cycles_per_packet: Option<f64>,
    pub parts: Option<Parts>,
    /// The processors that the threads use.
    pub processors: Vec<u16>,
}

/// The columns of the live table, without the name: title, width, and the narrowest terminal that shows it.
type Column = (&'static str, usize, usize, fn(&Rates) -> String);

const COLUMNS: [Column; 7] = [
    ("rx pps", 9, 0, |port| scaled(port.rx.mpps)),
    ("Gbit/s", 8, 72, |port| format!("{:.3}", port.rx.gbits)),
    ("wire", 8, 80, |port| format!("{:.3}", port.rx.wire_gbits)),
    ("tx pps", 9, 0, |port| scaled(port.tx.mpps)),
    ("Gbit/s", 8, 72, |port| format!("{:.3}", port.tx.gbits)),
    ("wire", 8, 80, |port| format!("{:.3}", port.tx.wire_gbits)),
    ("dropped", 11, 40, |port| port.dropped.to_string()),
];

impl Tick {
    pub fn json(&self) -> Value {
        let ports: Vec<_> = self.ports.iter().map(Rates::json).collect();
        let tenth = |value: f64| (value * 10.0).round() / 10.0;
        let mut line = json!({
            "seconds": tenth(self.seconds), "ports": ports, "cycles_per_packet": self.cycles_per_packet.map(tenth),
            "processors": self.processors, "held": self.held,
        });
        if let Some(parts) = self.parts {
            line["profile"] = parts.json();
        }
        line
    }

    /// Returns the table for a terminal of `width` columns: a line with the names of the columns, one for each port,
    /// and those for cycles. No line is longer than `width`.
    pub fn table(&self, width: usize) -> String {
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
        let held = if self.held == 0 { String::new() } else { format!(", not forwarded {}", self.held) };
        lines.push(cycles + &used + &held);
        if let Some(Parts { receive, touch, send }) = self.parts {
            let parts = format!("receive {receive:.1}, touch {touch:.1}, send {send:.1}");
            // If the line is too long, leave out the unit, which the line above has, too.
            let line = format!("cycles/packet: {parts}");
            lines.push(if line.len() > width { parts } else { line });
        }
        lines.iter().map(|line| whole_words(line, width) + "\n").collect()
    }
}

/// Returns a line of the cells that fit into `width` columns. Cells are not cut, as a cut figure would be wrong.
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

/// Returns a line of at most `width` columns. A longer line is reduced to the words that fit, and an ellipsis.
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

/// Returns a name of at most `room` characters. A longer one is reduced to its beginning and end, which distinguish
/// names.
pub fn shortened(name: &str, room: usize) -> String {
    let count = name.chars().count();
    if count <= room {
        return name.to_string();
    }
    let front = room / 2;
    let end: String = name.chars().skip(count - (room - front).saturating_sub(1)).collect();
    name.chars().take(front).collect::<String>() + "…" + &end
}

/// Describes counts by cause; `None` without any.
pub fn causes_in_words<'a>(causes: impl Iterator<Item = (&'a str, u64)>) -> Option<String> {
    let causes: Vec<String> = causes.map(|(cause, count)| format!("{count} {}", in_words(cause))).collect();
    (!causes.is_empty()).then(|| causes.join(", "))
}

/// Describes a cause of drops; docs/wires.md explains each.
pub fn in_words(cause: &str) -> &str {
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
        "in_flight" => "still in a link at the end",
        other => other,
    }
}

/// Formats millions per second with four digits and a prefix, as [`linerate::traffic::Rate`] does: `14.88M`, `3`.
pub fn scaled(millions: f64) -> String {
    linerate::traffic::Rate::Packets(millions * 1e6).to_string().trim_end_matches(" packets/s").to_string()
}

/// Formats a count per second with three significant digits: `14.9M`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, mpps: f64, dropped: u64) -> Rates {
        let rate = || Rate { packets: 0, mpps, gbits: mpps / 2.0, wire_gbits: mpps * 0.672 };
        let (drops, queues) = (Vec::new(), Queues::default());
        Rates { name: name.to_string(), is_up: true, rx: rate(), tx: rate(), dropped, drops, queues }
    }

    #[test]
    fn the_table_fits_any_width() {
        let ports =
            vec![port("sim:0", 14.881, 0), port(&"vfio-user:/run/a/very/long/path".repeat(9), 1e-3, u64::MAX / 7)];
        let parts = Some(Parts { receive: 1.0, touch: 2.0, send: 3.0 });
        let tick =
            Tick { seconds: 1.0, ports, held: 7, cycles_per_packet: Some(53.0), parts, processors: (0..64).collect() };
        let wide = tick.table(usize::MAX);
        let whole: Vec<&str> = wide.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        for width in 0..200 {
            let table = tick.table(width);
            assert_eq!(table.lines().count(), 5, "{table}");
            assert!(table.lines().all(|line| line.chars().count() <= width), "{width}:\n{table}");
            // A figure is shown as on a wide terminal, or not at all.
            let is_whole = |word: &str| word.contains('…') || whole.contains(&word.trim_end_matches(','));
            assert!(table.lines().skip(1).flat_map(str::split_whitespace).all(is_whole), "{width}:\n{table}");
            let has_rates = table.lines().nth(1).is_some_and(|line| line.contains("14.88M"));
            assert_eq!(has_rates, width >= 17, "{width}:\n{table}");
        }
        let table = tick.table(80);
        let [title, first, ..] = table.lines().collect::<Vec<_>>()[..] else { unreachable!() };
        for part in ["1 s", "rx pps", "tx pps", "Gbit/s    wire", "dropped"] {
            assert!(title.contains(part), "{part}: {table}");
        }
        assert_eq!(title.chars().count(), first.chars().count(), "columns do not shift");
        assert!(tick.table(47).contains("tx pps") && !tick.table(47).contains("Gbit"));
    }

    #[test]
    fn rates_have_four_digits_and_a_prefix() {
        for (mpps, shown) in [
            (14.8809, "14.88M"),
            (0.0, "0"),
            (3e-6, "3"),
            (5.076e-7, "0.5076"),
            (1e-9, "0.001"),
            (0.5, "500k"),
            (0.999_949, "999.9k"),
            (0.999_96, "1M"),
            (9.999_6e-4, "1k"),
        ] {
            assert_eq!(scaled(mpps), shown);
        }
        for (value, shown) in [(14_880_952.0, "14.9M"), (100e3, "100k"), (0.0, "0.00"), (20.0, "20.0")] {
            assert_eq!(per_second(value), shown);
        }
    }
}
