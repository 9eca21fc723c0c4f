//! `--metrics`: the counters of a run for Prometheus, in its text format, over HTTP.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use linerate::Error;
use linerate::port::Statistics;

use crate::terminal::note;

/// Where the counters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    /// Reads `9500`, which is a port of loopback, or `ADDRESS:PORT`.
    fn from_str(text: &str) -> Result<Address, String> {
        let of_loopback = || text.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        let address = text.parse().ok().or_else(of_loopback);
        address
            .map(Address)
            .ok_or_else(|| "write a port of loopback, as 9500, or an address, as 0.0.0.0:9500".to_string())
    }
}

/// A server of counters, as they were last set.
#[derive(Clone)]
pub struct Metrics {
    text: Arc<Mutex<String>>,
    address: SocketAddr,
}

/// A client that sends no request, or takes no answer, is left after this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request.
const REQUEST: usize = 8192;

impl Metrics {
    /// Serves from now on, in a thread of its own, until the process ends; a command that opens ports several times has one
    /// server.
    ///
    /// # Errors
    /// [`Error::System`]: the address is in use, or not this machine's.
    pub fn serve(Address(address): Address, command: &str) -> Result<Metrics, Error> {
        static SERVER: OnceLock<Metrics> = OnceLock::new();
        if let Some(server) = SERVER.get() {
            return Ok(server.clone());
        }
        let failed = |source| Error::System { call: "listening at the address of --metrics", source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // No port is open yet.
        let metrics = Metrics { text: Arc::new(Mutex::new(text(command, 0, None, &[]))), address };
        let served = metrics.clone();
        // One after the other: a scrape is short, and one that is not is ended.
        let work = move || listener.incoming().flatten().for_each(|client| drop(served.answer(client)));
        let thread = std::thread::Builder::new().name("metrics".to_string());
        thread.spawn(work).map_err(|source| Error::System { call: "starting a thread", source })?;
        note(&format!("metrics: http://{}/metrics", metrics.address));
        Ok(SERVER.get_or_init(|| metrics).clone())
    }

    /// Sets the counters.
    pub fn set(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Answers a request.
    fn answer(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_write_timeout(Some(PATIENCE))?;
        let request = read_request(&mut client)?;
        let mut words = request.split_whitespace();
        let (method, path) = (words.next(), words.next());
        let (status, text) = match (method, path.and_then(|path| path.split('?').next())) {
            (Some("GET" | "HEAD"), Some("/metrics")) => {
                ("200 OK", self.text.lock().unwrap_or_else(PoisonError::into_inner).clone())
            }
            (Some("GET" | "HEAD"), Some(_)) => ("404 Not Found", "the counters are at /metrics\n".to_string()),
            _ => ("405 Method Not Allowed", "the counters are read with GET /metrics\n".to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            text.len()
        );
        client.write_all(head.as_bytes())?;
        if method != Some("HEAD") {
            client.write_all(text.as_bytes())?;
        }
        client.flush()
    }
}

/// Reads a request with its headers, which are not needed, but a connection that is closed before they are read is reset.
fn read_request(client: &mut TcpStream) -> io::Result<String> {
    let (end, mut request, mut bytes) = (Instant::now() + PATIENCE, Vec::new(), [0; 1024]);
    while request.len() < REQUEST && !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        // A client that sends slowly has no more time than another.
        let left = end.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut bytes)? {
            0 => break,
            count => request.extend_from_slice(&bytes[..count]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// A port's counters at a moment.
pub struct Sample<'a> {
    pub name: &'a str,
    pub is_up: bool,
    pub statistics: &'a Statistics,
}

/// Returns the counters of a run: of its command, and of its ports.
pub fn text(command: &str, packets: u64, cycles_per_packet: Option<f64>, ports: &[Sample]) -> String {
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
    let of_command = || format!("command={}", quoted(command));
    let version = format!("version={},{}", quoted(env!("CARGO_PKG_VERSION")), of_command());
    family("info", "gauge", "The program that runs.", &mut [(version, 1.0)].into_iter());
    let moved = [(of_command(), packets as f64)];
    family("packets_total", "counter", "Packets that the command has moved.", &mut moved.into_iter());
    let cycles = cycles_per_packet.map(|cycles| (of_command(), cycles));
    family("cycles_per_packet", "gauge", "Cycles of the threads for each packet.", &mut cycles.into_iter());
    let up = ports.iter().map(|port| (label(port), f64::from(u8::from(port.is_up))));
    family("port_up", "gauge", "Whether the port has a link.", &mut up.into_iter());
    type Read = fn(&Statistics) -> u64;
    let counters: [(&str, &str, Read); 4] = [
        ("port_receive_packets_total", "Packets that the port has received.", |port| port.rx_packets),
        ("port_receive_bytes_total", "Their bytes, without CRC.", |port| port.rx_bytes),
        ("port_transmit_packets_total", "Packets that the port has sent.", |port| port.tx_packets),
        ("port_transmit_bytes_total", "Their bytes, without CRC.", |port| port.tx_bytes),
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

/// Returns a label's value as the format writes it.
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
        let text = text("sink", 7, None, &[port]);
        assert!(text.contains("linerate_port_receive_packets_total{port=\"pcap:a\\\"b\\\\c\\nd\"} 7\n"), "{text}");
        assert!(!text.contains("cycles"), "{text}");
    }
}
