//! `--metrics`: serves the counters of a run to Prometheus over HTTP, in its text format.

mod server;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use linerate::port::Statistics;

pub use self::server::Metrics;
use crate::run::Mode;

/// The address at which the counters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    /// Parses a loopback port, such as `9500`, or `ADDRESS:PORT`.
    fn from_str(text: &str) -> Result<Address, String> {
        let of_loopback = || text.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let address = text.parse().ok().or_else(of_loopback);
        address.map(Address).ok_or_else(|| {
            "give a loopback port, such as 9500, or an address with a port, such as 0.0.0.0:9500 or [::1]:9500"
                .to_string()
        })
    }
}

/// A port's counters at a moment.
pub struct Sample<'a> {
    pub name: &'a str,
    pub is_up: bool,
    pub statistics: &'a Statistics,
}

/// Returns the counters of a run's command and ports as text.
pub fn text(mode: &dyn Mode, packets: u64, held: u64, cycles_per_packet: Option<f64>, ports: &[Sample]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &mut dyn Iterator<Item = (String, f64)>| {
        let mut samples = samples.peekable();
        if samples.peek().is_some() {
            let _ = writeln!(text, "# HELP linerate_{name} {help}\n# TYPE linerate_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "linerate_{name}{{{labels}}} {value}");
            }
        }
    };
    let of_command = || format!("command={}", quoted(mode.name()));
    let version = format!("version={},{}", quoted(env!("CARGO_PKG_VERSION")), of_command());
    family("info", "gauge", "The running program.", &mut [(version, 1.0)].into_iter());
    let moved = [(of_command(), packets as f64)];
    family("packets_total", "counter", "Packets that the command has moved.", &mut moved.into_iter());
    let held = mode.forwards().then(|| (of_command(), held as f64));
    family("not_forwarded_packets_total", "counter", "Packets that no port has accepted.", &mut held.into_iter());
    let cycles = cycles_per_packet.map(|cycles| (of_command(), cycles));
    family("cycles_per_packet", "gauge", "Cycles of the threads per packet.", &mut cycles.into_iter());
    let up = ports.iter().map(|port| (label(port), f64::from(u8::from(port.is_up))));
    family("port_up", "gauge", "Whether the port has a link.", &mut up.into_iter());
    type Read = fn(&Statistics) -> u64;
    let counters: [(&str, &str, Read); 4] = [
        ("port_receive_packets_total", "Packets that the port has received.", |port| port.rx_packets),
        ("port_receive_bytes_total", "Bytes of received packets, without CRC.", |port| port.rx_bytes),
        ("port_transmit_packets_total", "Packets that the port has sent.", |port| port.tx_packets),
        ("port_transmit_bytes_total", "Bytes of sent packets, without CRC.", |port| port.tx_bytes),
    ];
    for (name, help, read) in counters {
        family(name, "counter", help, &mut ports.iter().map(|port| (label(port), read(port.statistics) as f64)));
    }
    let drops = ports.iter().flat_map(|port| {
        let causes = port.statistics.drops.by_cause();
        causes.into_iter().map(|(cause, count)| (format!("{},cause={}", label(port), quoted(cause)), count as f64))
    });
    family("port_dropped_packets_total", "counter", "Packets that the port has dropped.", &mut drops.into_iter());
    text
}

fn label(port: &Sample) -> String {
    format!("port={}", quoted(port.name))
}

/// Returns a label's value, quoted for the format.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_loopback_unless_they_say_otherwise() {
        let parsed = |text: &str| text.parse::<Address>().map(|Address(address)| address.to_string());
        assert_eq!(parsed("9500"), Ok("127.0.0.1:9500".to_string()));
        assert_eq!(parsed("0.0.0.0:9500"), Ok("0.0.0.0:9500".to_string()));
        assert_eq!(parsed("[::1]:0"), Ok("[::1]:0".to_string()));
        for bad in ["", "65536", "localhost", "1.2.3.4", ":9500", "-1"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_are_quoted() {
        let statistics = Statistics { rx_packets: 7, ..Statistics::default() };
        let port = Sample { name: "pcap:a\"b\\c\nd", is_up: true, statistics: &statistics };
        let text = text(&crate::sink::Sink, 7, 0, None, &[port]);
        assert!(text.contains("linerate_port_receive_packets_total{port=\"pcap:a\\\"b\\\\c\\nd\"} 7\n"), "{text}");
        assert!(!text.contains("cycles") && !text.contains("forwarded"), "{text}");
    }
}
