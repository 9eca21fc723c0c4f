//! A symmetric hash of a frame's flow, for distributing frames to several consumers (`PORT?cluster=N&by=flow`).

use super::{IPV4, IPV6, TAGS, WITH_PORTS, word};

/// The fields of a frame that a symmetric hash covers.
///
/// Both directions of a flow have the same hash, in every process and on every machine. All fragments of a packet have
/// the same hash. It depends on the frame only: no state is kept, and no memory is allocated.
///
/// | frame | by `flow` | by `inner` | by `addresses` |
/// |---|---|---|---|
/// | TCP, UDP, SCTP over IPv4 or IPv6 | both addresses, both ports, the protocol | as `flow` | both addresses |
/// | any other IP protocol, including ICMP, ICMP errors, and ESP | both addresses | as `flow` | both addresses |
/// | a fragment, including the first | both addresses | as `flow` | both addresses |
/// | GRE, VXLAN (port 4789), GTP-U (2152), IP in IP | outer headers, as above | headers inside up to 4 tunnels | outer addresses |
/// | a tunnel's packet that is a fragment, or whose contents are not IP or Ethernet | as above | the outer headers | as above |
/// | ARP, MPLS, PPPoE, LLDP and all others | both Ethernet addresses | as `flow`, of the inner frame | both Ethernet addresses |
/// | a frame without two Ethernet addresses | 0 | 0 | 0 |
///
/// - Up to two VLAN tags are skipped, so a flow has the same hash with and without them.
/// - Up to 8 IPv6 extension headers and authentication headers (of either IP version) are skipped. A packet with a
///   fragment header that is not a fragment (RFC 6946) is hashed as a complete packet.
/// - Truncated headers are not used: without ports, a packet is hashed by its addresses; without those, by its Ethernet
///   addresses.
/// - An ICMP error is hashed by its own addresses, not by those of the packet that it reports.
/// - If some packets of a flow are fragments, the flow has two hashes: with and without ports. If fragments must go to
///   the same consumer as the rest of their flow, choose `addresses`.
/// - The hash has no secret, so a sender can create flows with the same hash.
///
/// ```
/// use linerate::filter::FlowKey;
///
/// let mut there = [0; 60];
/// there[12..14].copy_from_slice(&[0x08, 0x00]);                            // IPv4
/// (there[14], there[23]) = (0x45, 17);                                     // UDP
/// there[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
/// there[34..38].copy_from_slice(&[0x12, 0x34, 0, 53]);
/// let mut back = there;
/// back[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
/// back[34..38].copy_from_slice(&[0, 53, 0x12, 0x34]);
/// assert_eq!(FlowKey::Flow.hash(&there), FlowKey::Flow.hash(&back));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowKey {
    /// Addresses, ports and protocol.
    #[default]
    Flow,
    /// Addresses, ports and protocol of the packet inside tunnels.
    Inner,
    /// Addresses only.
    Addresses,
}

/// The start of a layer.
enum Layer {
    /// An Ethernet header at this offset.
    Frame(usize),
    /// A header of this ethertype at this offset.
    Packet(u16, usize),
}

/// The most IP layers that are parsed: a packet in 4 tunnels.
const MOST_LAYERS: usize = 5;
/// The most extension headers that are skipped.
const MOST_EXTENSIONS: usize = 8;

/// IP protocol numbers.
const HOP_BY_HOP: u8 = 0;
const IPV4_INSIDE: u8 = 4;
const UDP: u8 = 17;
const IPV6_INSIDE: u8 = 41;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// UDP ports of tunnels.
const VXLAN: u16 = 4789;
const GTP_U: u16 = 2152;
/// The GRE protocol type of Ethernet frames.
const TRANSPARENT_ETHERNET: u16 = 0x6558;

impl FlowKey {
    /// Returns the hash of a frame that begins with its Ethernet header. Any bytes have a hash.
    pub fn hash(self, frame: &[u8]) -> u32 {
        let (mut layer, mut hash) = (Layer::Frame(0), 0);
        for _ in 0..MOST_LAYERS {
            let (ethertype, at) = match layer {
                Layer::Packet(ethertype, at) => (ethertype, at),
                Layer::Frame(at) => {
                    hash = ethernet(frame, at).unwrap_or(hash);
                    let Some(inside) = behind_tags(frame, at) else { break };
                    inside
                }
            };
            let Some(packet) = Packet::at(frame, ethertype, at) else { break };
            hash = packet.hash(frame, self != FlowKey::Addresses);
            match self == FlowKey::Inner {
                true => match packet.inside(frame) {
                    Some(inside) => layer = inside,
                    None => break,
                },
                false => break,
            }
        }
        hash
    }
}

/// Returns the hash of the Ethernet addresses at an offset.
fn ethernet(frame: &[u8], at: usize) -> Option<u32> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *frame.get(at..)?.first_chunk()?;
    let end = |bytes: [u8; 8]| mix(u64::from_be_bytes(bytes));
    Some(both(end([0, 0, a, b, c, d, e, f]), end([0, 0, g, h, i, j, k, l]), 0))
}

/// Returns the ethertype after the VLAN tags of an Ethernet header, and the offset of the next header.
fn behind_tags(frame: &[u8], at: usize) -> Option<(u16, usize)> {
    let (mut ethertype, mut next) = (word(frame, at + 12)?, at + 14);
    for _ in 0..2 {
        if !TAGS.contains(&ethertype) {
            break;
        }
        (ethertype, next) = (word(frame, next + 2)?, next + 4);
    }
    Some((ethertype, next))
}

/// An IP packet.
struct Packet {
    from: u128,
    to: u128,
    /// The protocol after the extension headers, and the offset of its header; `None` for a fragment, or if it is
    /// unknown.
    payload: Option<(u8, usize)>,
}

impl Packet {
    /// Parses the headers at an offset; `None` if this is not IP, or the header is truncated.
    fn at(frame: &[u8], ethertype: u16, at: usize) -> Option<Packet> {
        match ethertype {
            IPV4 => {
                let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
                let address = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte));
                let (from, to) = (address(&header[12..16]), address(&header[16..20]));
                let length = usize::from(header[0] & 0xF) * 4;
                // The "more fragments" flag, or an offset.
                let is_fragment = word(header, 6)? & 0x3FFF != 0;
                let is_whole = length >= 20 && !is_fragment;
                let payload = if is_whole { behind_extensions(frame, header[9], at + length) } else { None };
                Some(Packet { from, to, payload })
            }
            IPV6 => {
                let header: &[u8; 40] = frame.get(at..)?.first_chunk()?;
                let (from, to) = (header[8..24].first_chunk()?, header[24..40].first_chunk()?);
                let payload = behind_extensions(frame, header[6], at + 40);
                Some(Packet { from: u128::from_be_bytes(*from), to: u128::from_be_bytes(*to), payload })
            }
            _ => None,
        }
    }

    /// Returns the packet's hash. It includes the ports if the packet has ports and `with_ports` is set.
    fn hash(&self, frame: &[u8], with_ports: bool) -> u32 {
        let ports = self.payload.filter(|(protocol, _)| with_ports && WITH_PORTS.contains(protocol));
        let ports = ports.and_then(|(protocol, at)| Some((protocol, word(frame, at)?, word(frame, at + 2)?)));
        let (protocol, from_port, to_port) = ports.unwrap_or_default();
        let end = |address: u128, port: u16| {
            mix(mix((address >> 64) as u64).wrapping_add(address as u64) ^ u64::from(port) << 48)
        };
        both(end(self.from, from_port), end(self.to, to_port), protocol)
    }

    /// Returns the inner layer, if this is a tunnel's packet.
    fn inside(&self, frame: &[u8]) -> Option<Layer> {
        let (protocol, at) = self.payload?;
        match protocol {
            IPV4_INSIDE => Some(Layer::Packet(IPV4, at)),
            IPV6_INSIDE => Some(Layer::Packet(IPV6, at)),
            GRE => inside_gre(frame, at),
            UDP => match word(frame, at + 2)? {
                // The flag for a valid network identifier is set (RFC 7348, 5).
                VXLAN => (frame.get(at + 8)? & 8 != 0).then_some(Layer::Frame(at + 16)),
                GTP_U => inside_gtp(frame, at + 8),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Skips IPv6 extension headers; `None` for a fragment, a truncated frame, or too many headers.
fn behind_extensions(frame: &[u8], mut protocol: u8, mut at: usize) -> Option<(u8, usize)> {
    for _ in 0..MOST_EXTENSIONS {
        let unit = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION => 8,
            AUTHENTICATION => 4,
            FRAGMENT if word(frame, at + 2)? & 0xFFF9 != 0 => return None,
            FRAGMENT => 0,
            _ => return Some((protocol, at)),
        };
        let length = usize::from(*frame.get(at + 1)?);
        protocol = *frame.get(at)?;
        at += 8 + length * unit;
    }
    None
}

/// Returns the layer after a GRE header (RFC 2784, RFC 2890).
fn inside_gre(frame: &[u8], at: usize) -> Option<Layer> {
    let (flags, ethertype) = (word(frame, at)?, word(frame, at + 2)?);
    // Checksum, key and sequence number have 4 bytes each. Source routing and version 1 (PPTP) have other formats.
    let next = at + 4 + (flags & 0xB000).count_ones() as usize * 4;
    match ethertype {
        _ if flags & 0x4007 != 0 => None,
        TRANSPARENT_ETHERNET => Some(Layer::Frame(next)),
        IPV4 | IPV6 => Some(Layer::Packet(ethertype, next)),
        _ => None,
    }
}

/// Returns the packet after a GTP-U header (3GPP TS 29.281, 5.1).
fn inside_gtp(frame: &[u8], at: usize) -> Option<Layer> {
    let (flags, kind) = (*frame.get(at)?, *frame.get(at + 1)?);
    // Version 1, and a message that carries a packet.
    if flags & 0xF0 != 0x30 || kind != 0xFF {
        return None;
    }
    let mut next = at + if flags & 7 != 0 { 12 } else { 8 };
    if flags & 4 != 0 {
        // The last byte of each header is the type of the next; 0 means no further header.
        for _ in 0..=MOST_EXTENSIONS {
            if *frame.get(next - 1)? == 0 {
                break;
            }
            next += usize::from(*frame.get(next)?).max(1) * 4;
        }
    }
    match frame.get(next)? >> 4 {
        4 => Some(Layer::Packet(IPV4, next)),
        6 => Some(Layer::Packet(IPV6, next)),
        _ => None,
    }
}

/// Combines the hashes of two ends, in either order.
fn both(from: u64, to: u64, protocol: u8) -> u32 {
    (mix(from.wrapping_add(to) ^ u64::from(protocol)) >> 32) as u32
}

/// Mixes all bits (the finalizer of MurmurHash3).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ bits >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ bits >> 33
}
