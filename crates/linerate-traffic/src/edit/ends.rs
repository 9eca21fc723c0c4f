//! The two ends of a packet.

use std::net::IpAddr;

use super::headers::{Headers, SCTP, TCP, UDP, word};

/// The ends of an IP packet, or of an ARP message.
///
/// ```
/// use linerate::traffic::Ends;
///
/// let mut frame = [0; 60];
/// frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);           // IPv4
/// frame[23] = 17;                                                     // UDP
/// frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
/// frame[34..38].copy_from_slice(&[0x12, 0x34, 0, 53]);
/// let ends = Ends::of(&frame).unwrap();
/// assert_eq!((ends.destination, ends.ports), ("10.0.0.2".parse().unwrap(), Some((0x1234, 53))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// The IP protocol after the extension headers; `None` for ARP, later fragments, and cut headers.
    pub protocol: Option<u8>,
    /// The source and the destination port of TCP, UDP or SCTP.
    pub ports: Option<(u16, u16)>,
    /// The flags of a TCP segment (RFC 9293, section 3.1).
    pub tcp_flags: Option<u8>,
}

impl Ends {
    /// Returns the ends of a frame that begins with an Ethernet header; VLAN tags and MPLS labels are skipped.
    pub fn of(frame: &[u8]) -> Option<Ends> {
        let headers = Headers::of(frame, frame.len());
        if let Some(arp) = headers.arp {
            let address = |at: usize| frame.get(at..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes));
            let (source, destination) = (address(arp + 14)?, address(arp + 24)?);
            return Some(Ends { source, destination, protocol: None, ports: None, tcp_flags: None });
        }
        let packet = headers.packet?;
        let address = |n: usize| match packet.is_v6 {
            false => frame.get(packet.at + 12 + 4 * n..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
            true => frame.get(packet.at + 8 + 16 * n..)?.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        };
        let ports = match packet.transport {
            Some((TCP | UDP | SCTP, at)) => word(frame, at).zip(word(frame, at + 2)),
            _ => None,
        };
        let tcp_flags = match packet.transport {
            Some((TCP, at)) => frame.get(at + 13).copied(),
            _ => None,
        };
        let protocol = packet.transport.map(|(protocol, _)| protocol);
        Some(Ends { source: address(0)?, destination: address(1)?, protocol, ports, tcp_flags })
    }
}
