//! The side of a frame: that of the client, whose frames leave through the first port, or that of the server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;

use linerate::filter::{Filter, Prefix};
use linerate::traffic::Ends;

/// The rule by which frames go to two ports. Frames without a side leave through the first port.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// Frames from these MAC addresses leave through the first port.
    Mac(Vec<[u8; 6]>),
    /// Packets from these addresses leave through the first port.
    Prefix(Vec<Prefix>),
    /// Packets to these ports of TCP or UDP, where servers listen, leave through the first port.
    Port(Vec<(u16, u16)>),
    /// The host that sends the first packet is a client; its packets leave through the first port.
    FirstPacket,
    /// The host that opens a connection is the client. Without its SYN, the sender of the first packet is.
    FirstSyn,
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Split, String> {
        let (name, values) = text.split_once('=').map_or((text, None), |(name, values)| (name, Some(values)));
        let all = |values: &str| values.split(',').map(|value| value.trim().to_string()).collect::<Vec<_>>();
        match (name, values) {
            ("first-packet", None) => Some(Split::FirstPacket),
            ("first-syn", None) => Some(Split::FirstSyn),
            ("port", None) => Some(Split::Port(vec![(0, 1023)])),
            ("port", Some(values)) => {
                all(values).iter().map(|value| ports(value)).collect::<Option<_>>().map(Split::Port)
            }
            ("mac", Some(values)) => all(values).iter().map(|value| mac(value)).collect::<Option<_>>().map(Split::Mac),
            ("prefix", Some(values)) => {
                all(values).iter().map(|value| prefix(value)).collect::<Option<_>>().map(Split::Prefix)
            }
            _ => None,
        }
        .ok_or_else(|| {
            "it must be mac=02:00:00:00:00:01, prefix=10.0.0.0/8, port, port=80,8000-8999, first-packet or first-syn"
                .to_string()
        })
    }
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

fn prefix(text: &str) -> Option<Prefix> {
    format!("from:{text}").parse::<Filter>().ok()?.any().first()?.from
}

/// Decides on frames in the order of their times.
pub struct Splitter {
    split: Split,
    /// Whether a host is a client (`first-packet`).
    hosts: HashMap<IpAddr, bool>,
    /// The client of each conversation (`first-syn`), by its ends in ascending order.
    clients: HashMap<[(IpAddr, u16); 2], (IpAddr, u16)>,
}

/// TCP's flags.
const SYN: u8 = 2;
const ACK: u8 = 16;

impl Splitter {
    pub fn new(split: &Split) -> Splitter {
        Splitter { split: split.clone(), hosts: HashMap::new(), clients: HashMap::new() }
    }

    /// Returns the port of a frame: 0 or 1.
    pub fn port(&mut self, frame: &[u8]) -> usize {
        let is_client = match &self.split {
            Split::Mac(addresses) => {
                frame.get(6..12).is_none_or(|from| addresses.iter().any(|address| address == from))
            }
            Split::Prefix(prefixes) => {
                Ends::of(frame).is_none_or(|ends| prefixes.iter().any(|prefix| prefix.contains(ends.source)))
            }
            Split::Port(servers) => Ends::of(frame)
                .and_then(|ends| ends.ports)
                .is_none_or(|(_, to)| servers.iter().any(|(first, last)| (*first..=*last).contains(&to))),
            Split::FirstPacket => Ends::of(frame).is_none_or(|ends| self.is_first(&ends)),
            Split::FirstSyn => Ends::of(frame).is_none_or(|ends| self.has_opened(&ends)),
        };
        usize::from(!is_client)
    }

    /// Returns whether the sender's first packet was one that it sent, not one that it received.
    fn is_first(&mut self, ends: &Ends) -> bool {
        let is_client = *self.hosts.entry(ends.source).or_insert(true);
        self.hosts.entry(ends.destination).or_insert(false);
        is_client
    }

    /// Returns whether the sender has opened the conversation.
    fn has_opened(&mut self, ends: &Ends) -> bool {
        let (from_port, to_port) = ends.ports.unwrap_or_default();
        let (from, to) = ((ends.source, from_port), (ends.destination, to_port));
        let mut key = [from, to];
        key.sort_unstable();
        let client = match ends.tcp_flags.map(|flags| flags & (SYN | ACK)) {
            Some(SYN) => {
                self.clients.insert(key, from);
                from
            }
            Some(flags) if flags == SYN | ACK => *self.clients.entry(key).or_insert(to),
            _ => *self.clients.entry(key).or_insert(from),
        };
        client == from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ports of frames from `a` to `b`, or from `b` to `a`, by their flags; 1 is the second host.
    fn ports(split: Split, packets: &[(u8, u8)], is_v6: bool) -> Vec<usize> {
        let mut splitter = Splitter::new(&split);
        let port = |&(from, flags): &(u8, u8)| {
            let mut frame = vec![0; 74];
            let (ip, sides) = if is_v6 { (54, [29, 45]) } else { (34, [29, 33]) };
            match is_v6 {
                false => frame[12..15].copy_from_slice(&[8, 0, 0x45]),
                true => frame[12..15].copy_from_slice(&[0x86, 0xDD, 0x60]),
            }
            frame[if is_v6 { 20 } else { 23 }] = 6;
            frame[16..20].copy_from_slice(if is_v6 { &[0, 0, 0, 20] } else { &[0, 60, 0, 0] });
            // The addresses end with 0 and 1, and the ports with 1 and 2.
            (frame[sides[0]], frame[sides[1]]) = (from, 1 - from);
            (frame[ip + 1], frame[ip + 3], frame[ip + 13]) = (from + 1, 2 - from, flags);
            splitter.port(&frame)
        };
        packets.iter().map(port).collect()
    }

    #[test]
    fn the_client_opens_the_connection() {
        let (syn, syn_ack, ack) = (SYN, SYN | ACK, ACK);
        for is_v6 in [false, true] {
            let ports = |split: &Split, packets: &[(u8, u8)]| ports(split.clone(), packets, is_v6);
            assert_eq!(ports(&Split::FirstSyn, &[(0, syn), (1, syn_ack), (0, ack)]), [0, 1, 0]);
            assert_eq!(ports(&Split::FirstSyn, &[(1, syn_ack), (0, ack), (1, ack)]), [1, 0, 1]);
            assert_eq!(ports(&Split::FirstSyn, &[(1, ack), (0, ack)]), [0, 1]);
            // A later connection between the same ends.
            assert_eq!(ports(&Split::FirstSyn, &[(1, ack), (0, syn), (1, syn_ack), (0, ack)]), [0, 0, 1, 0]);
            assert_eq!(ports(&Split::FirstPacket, &[(1, syn_ack), (0, ack), (1, ack)]), [0, 1, 0]);
            assert_eq!(ports(&Split::Port(vec![(2, 2)]), &[(0, ack), (1, ack)]), [0, 1]);
        }
    }

    #[test]
    fn rules_are_parsed() {
        assert_eq!("port".parse(), Ok(Split::Port(vec![(0, 1023)])));
        assert_eq!("port=80,8000-8999".parse(), Ok(Split::Port(vec![(80, 80), (8000, 8999)])));
        assert_eq!("mac=02:00:00:00:00:0a".parse(), Ok(Split::Mac(vec![[2, 0, 0, 0, 0, 10]])));
        assert!(matches!("prefix=10.0.0.0/8,2001:db8::/32".parse(), Ok(Split::Prefix(all)) if all.len() == 2));
        for text in ["", "mac", "mac=02:00", "prefix=10.0.0.0/33", "port=9-8", "port=x", "first", "first-syn=1"] {
            assert!(text.parse::<Split>().is_err(), "{text}");
        }
    }
}
