//! Parses the headers that the card recognizes in a frame (section 7.1.6.2), and that its filters and checksums need.

use linerate_spec::descriptor::receive::*;
use linerate_spec::x82599::MRQC;

/// A parsed frame; one VLAN tag is skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headers {
    /// The packet type bits of a receive descriptor.
    pub packet_type: u64,
    pub ethertype: u16,
    /// The tag's control information.
    pub vlan: Option<u16>,
    /// Where the network header begins.
    pub network: usize,
    /// Where the transport header begins, if the frame is not a fragment and the card knows the protocol.
    pub transport: Option<usize>,
    /// The IP protocol.
    pub protocol: u8,
    /// Where the IP packet ends in the frame.
    pub end: usize,
    /// The frame is a fragment.
    pub fragment: bool,
    /// The IP addresses in the frame: their offset, and the length of both together.
    addresses: (usize, usize),
}

const VLAN: u16 = 0x8100;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

/// Reads 16 bits in network byte order.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Headers {
    /// Parses a frame, as far as it goes.
    pub fn parse(frame: &[u8]) -> Headers {
        let mut headers = Headers { ethertype: word(frame, 12).unwrap_or(0), network: 14, ..Headers::default() };
        if headers.ethertype == VLAN {
            headers.vlan = word(frame, 14);
            headers.ethertype = word(frame, 16).unwrap_or(0);
            headers.network = 18;
        }
        let _ = match headers.ethertype {
            IPV4 => headers.ipv4(frame),
            IPV6 => headers.ipv6(frame),
            _ => None,
        };
        headers
    }

    fn ipv4(&mut self, frame: &[u8]) -> Option<()> {
        let header = frame.get(self.network..)?;
        let length = (header.get(20 - 1).and(header.first())? & 0xF) as usize * 4;
        self.packet_type = if length > 20 { TYPE_IPV4 | TYPE_IPV4_OPTIONS } else { TYPE_IPV4 };
        self.addresses = (self.network + 12, 8);
        self.end = frame.len().min(self.network + usize::from(word(header, 2)?));
        let fragment = word(header, 6)? & 0x3FFF;
        self.fragment = fragment != 0;
        // A fragment may contain no ports.
        if length >= 20 && !self.fragment {
            self.protocol(frame, header[9], self.network + length);
        }
        Some(())
    }

    fn ipv6(&mut self, frame: &[u8]) -> Option<()> {
        let header = frame.get(self.network..)?;
        let mut next = *header.get(40 - 1).and(header.get(6))?;
        self.packet_type = TYPE_IPV6;
        self.addresses = (self.network + 8, 32);
        self.end = frame.len().min(self.network + 40 + usize::from(word(header, 4)?));
        let mut at = self.network + 40;
        // Skip hop-by-hop, routing and destination options; a fragment header ends the search.
        for _ in 0..8 {
            match next {
                0 | 43 | 60 => {
                    self.packet_type |= TYPE_IPV6_OPTIONS;
                    next = *frame.get(at)?;
                    at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
                }
                44 => {
                    self.packet_type |= TYPE_IPV6_OPTIONS;
                    self.fragment = true;
                    return None;
                }
                _ => break,
            }
        }
        self.protocol(frame, next, at);
        Some(())
    }

    fn protocol(&mut self, frame: &[u8], protocol: u8, at: usize) {
        self.protocol = protocol;
        let (kind, least) = match protocol {
            TCP => (TYPE_TCP, 20),
            UDP => (TYPE_UDP, 8),
            SCTP => (TYPE_SCTP, 12),
            _ => return,
        };
        if frame.len() >= at + least {
            self.packet_type |= kind;
            self.transport = Some(at);
        }
    }

    pub fn is_ipv4(&self) -> bool {
        self.packet_type & TYPE_IPV4 != 0
    }

    /// Returns the bytes of the IP addresses, source first; empty if the frame is not IP.
    pub fn addresses<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        &frame[self.addresses.0..self.addresses.0 + self.addresses.1]
    }

    /// Returns source and destination port.
    pub fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        Some((word(frame, self.transport?)?, word(frame, self.transport? + 2)?))
    }

    /// Returns the RSS type (section 7.1.2.8.1), the hash input and its length, for the fields that `MRQC` enables.
    /// Returns `None` if no enabled field fits.
    pub fn hash_input(&self, frame: &[u8], mrqc: u32) -> Option<(u64, [u8; 36], usize)> {
        let (with_ports, kind) = match (self.packet_type & TYPE_IPV6 != 0, self.packet_type & (TYPE_TCP | TYPE_UDP)) {
            _ if self.addresses.1 == 0 => return None,
            (false, TYPE_TCP) if mrqc & MRQC::TCP_IPV4 != 0 => (true, 0x1),
            (false, TYPE_UDP) if mrqc & MRQC::UDP_IPV4 != 0 => (true, 0x7),
            (false, _) if mrqc & MRQC::IPV4 != 0 => (false, 0x2),
            (true, TYPE_TCP) if mrqc & MRQC::TCP_IPV6 != 0 => (true, 0x3),
            (true, TYPE_UDP) if mrqc & MRQC::UDP_IPV6 != 0 => (true, 0x8),
            (true, _) if mrqc & MRQC::IPV6 != 0 => (false, 0x5),
            _ => return None,
        };
        let mut input = [0; 36];
        let (start, len) = self.addresses;
        input[..len].copy_from_slice(&frame[start..start + len]);
        let mut total = len;
        if let (true, Some(ports)) = (with_ports, self.transport) {
            input[len..len + 4].copy_from_slice(&frame[ports..ports + 4]);
            total += 4;
        }
        Some((kind, input, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_do_not_panic() {
        let mut frame = [0; 120];
        for kind in [[0x08, 0x00], [0x86, 0xDD], [0x81, 0x00]] {
            for byte in [0x00, 0x2C, 0x3C, 0x45, 0x4F, 0xFF] {
                frame.fill(byte);
                frame[12..14].copy_from_slice(&kind);
                frame[16..18].copy_from_slice(&[0x08, 0x00]);
                frame[23] = 17;
                for len in 0..frame.len() {
                    let headers = Headers::parse(&frame[..len]);
                    let _ = headers.hash_input(&frame[..len], u32::MAX);
                    let _ = (headers.addresses(&frame[..len]), headers.ports(&frame[..len]));
                }
            }
        }
    }
}
