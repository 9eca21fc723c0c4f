//! The output of a run: a live table for people, JSON lines for programs.

use std::io::{IsTerminal, Write, stdout};

use linerate::port::{Drops, Statistics};
use serde_json::{Map, Value, json};

use crate::profile::Parts;

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
    mpps: f64,
    /// Frames without CRC.
    gbits: f64,
    /// With CRC, preamble, start and gap: 24 bytes a frame.
    wire_gbits: f64,
}

impl Rate {
    fn new(packets: u64, bytes: u64, seconds: f64) -> Rate {
        let per_second = |count: u64| count as f64 / seconds;
        Rate {
            mpps: per_second(packets) / 1e6,
            gbits: per_second(bytes) * 8e-9,
            wire_gbits: per_second(bytes + packets * 24) * 8e-9,
        }
    }

    fn json(&self) -> Value {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        json!({"mpps": round(self.mpps), "gbits": round(self.gbits), "wire_gbits": round(self.wire_gbits)})
    }
}

impl Rates {
    /// Computes the rates from `before` to `now`.
    pub fn new(name: &str, before: &Statistics, now: &Statistics, seconds: f64) -> Rates {
        let lost = |statistics: &Statistics| statistics.drops.by_cause().iter().map(|(_, count)| count).sum::<u64>();
        Rates {
            name: name.to_string(),
            rx: Rate::new(now.rx_packets - before.rx_packets, now.rx_bytes - before.rx_bytes, seconds),
            tx: Rate::new(now.tx_packets - before.tx_packets, now.tx_bytes - before.tx_bytes, seconds),
            dropped: lost(now),
            drops: drops(&now.drops),
        }
    }
}

/// The display of a run.
pub struct Show {
    json: bool,
    terminal: bool,
    lines: usize,
}

impl Show {
    /// Prints JSON lines, or a table, which is redrawn in place on a terminal.
    pub fn new(json: bool) -> Show {
        Show { json, terminal: stdout().is_terminal(), lines: 0 }
    }

    /// Prints one interval.
    pub fn tick(&mut self, seconds: f64, ports: &[Rates], cycles_per_packet: f64, parts: Option<Parts>) {
        if self.json {
            let ports: Vec<Value> = ports
                .iter()
                .map(|port| json!({"name": port.name, "rx": port.rx.json(), "tx": port.tx.json(), "drops": port.drops}))
                .collect();
            let cycles = (cycles_per_packet * 10.0).round() / 10.0;
            let mut line = json!({"seconds": seconds.round(), "ports": ports, "cycles_per_packet": cycles});
            if let Some(parts) = parts {
                line["profile"] = parts.json();
            }
            print(&format!("{line}\n"));
            return;
        }
        let mut text = String::new();
        if self.terminal && self.lines > 0 {
            text += &format!("\x1b[{}A\x1b[J", self.lines);
        }
        text += &format!(
            "{:>5.0} s          rx Mpps   Gbit/s  on wire |  tx Mpps   Gbit/s  on wire |    dropped   {cycles_per_packet:.0} cycles/packet\n",
            seconds
        );
        for Rates { name, rx, tx, dropped, .. } in ports {
            text += &format!(
                "{name:<14} {:>10.3} {:>8.3} {:>8.3} | {:>8.3} {:>8.3} {:>8.3} | {dropped:>10}\n",
                rx.mpps, rx.gbits, rx.wire_gbits, tx.mpps, tx.gbits, tx.wire_gbits
            );
        }
        if let Some(Parts { receive, touch, send }) = parts {
            text += &format!("cycles/packet: receive {receive:.1}, touch {touch:.1}, send {send:.1}\n");
        }
        self.lines = ports.len() + 1 + usize::from(parts.is_some());
        print(&text);
    }

    /// Prints the summary.
    pub fn summary(&self, summary: &Value) {
        if self.json {
            return print(&format!("{summary}\n"));
        }
        let summary = &summary["summary"];
        let mut text = String::from("\n");
        for port in summary["ports"].as_array().into_iter().flatten() {
            let number = |key: &str| port[key].as_u64().unwrap_or(0);
            text += &format!(
                "{:<14} received {:>12} packets {:>14} bytes   sent {:>12} packets {:>14} bytes   dropped {}\n",
                port["name"].as_str().unwrap_or(""),
                number("rx_packets"),
                number("rx_bytes"),
                number("tx_packets"),
                number("tx_bytes"),
                port["drops"],
            );
        }
        text += &format!(
            "{}: {} Mpps, {} cycles/packet, {} s; lost {}, corrupted {}, reordered {}, breaches {}\n",
            summary["command"].as_str().unwrap_or(""),
            summary["mpps"],
            summary["cycles_per_packet"],
            summary["seconds"],
            summary["lost"],
            summary["corrupted"],
            summary["reordered"],
            summary["breaches"],
        );
        if let Some(profile) = summary.get("profile") {
            let [receive, touch, send] = ["receive", "touch", "send"].map(|part| &profile[part]);
            text += &format!("cycles/packet: receive {receive}, touch {touch}, send {send}\n");
        }
        print(&text);
    }
}

/// Prints `text`. A closed output, as in `linerate … | head -1`, is no error.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the causes of drops that have occurred.
pub fn drops(drops: &Drops) -> Value {
    let causes = drops.by_cause().into_iter().filter(|&(_, count)| count > 0);
    Value::Object(causes.map(|(cause, count)| (cause.to_string(), json!(count))).collect::<Map<_, _>>())
}
