//! A symmetric hash of a frame's flow, which hands frames out to several consumers (`PORT?cluster=N&by=flow`).

use super::{IPV4, IPV6, TAGS, WITH_PORTS, word};

/// The fields of a frame that a symmetric hash has.
///
/// Both directions of a flow have one hash, in each process and on each machine. All fragments of a packet have one hash, which
/// is decided by each frame alone: nothing is remembered, and nothing is allocated.
///
/// | frame | by `flow` | by `inner` | by `addresses` |
/// |---|---|---|---|
/// | TCP, UDP, SCTP over IPv4 or IPv6 | both addresses, both ports, the protocol | as `flow` | both addresses |
/// | any other protocol of IP, also ICMP, its errors, and ESP | both addresses | as `flow` | both addresses |
/// | a fragment, the first one too | both addresses | as `flow` | both addresses |
/// | GRE, VXLAN (port 4789), GTP-U (port 2152), IP in IP | the outer headers, as above | the headers inside, at most 4 tunnels deep | the outer addresses |
/// | a tunnel's packet that is a fragment, or whose contents are not IP or Ethernet | as above | the outer headers | as above |
/// | ARP, MPLS, PPPoE, LLDP and all else | both Ethernet addresses | as `flow`, of the frame inside | both Ethernet addresses |
/// | a frame without two Ethernet addresses | 0 | 0 | 0 |
///
/// - VLAN tags, up to two, are skipped: a flow has one hash with and without them.
/// - IPv6 extension headers, and authentication headers of both versions, are skipped, up to 8. A packet with a fragment header that
///   is no fragment (RFC 6946) is whole.
/// - Headers that are cut off are not used: without its ports a packet is hashed by its addresses, without those by its
///   Ethernet addresses.
/// - An ICMP error is hashed by its own addresses, and not by those of the packet that it reports.
/// - A flow some of whose packets are fragments has two hashes: that of its ports, and that of its addresses. Where
///   fragments have to meet the other packets of their flow, choose `addresses`.
/// - The hash has no secret. A sender can choose flows of one hash.
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
    /// The same, of the packet inside of tunnels.
    Inner,
    /// Addresses only.
    Addresses,
}

/// Where a layer begins.
enum Layer {
    /// An Ethernet header at this offset.
    Frame(usize),
    /// A header of this ethertype at this offset.
    Packet(u16, usize),
}

/// The most layers of IP that are read: a packet in 4 tunnels.
const MOST_LAYERS: usize = 5;
/// The most extension headers that are skipped.
const MOST_EXTENSIONS: usize = 8;

/// IP's numbers of headers.
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
/// GRE's type of Ethernet frames.
const TRANSPARENT_ETHERNET: u16 = 0x6558;

impl FlowKey {
    /// Returns the hash of a frame, given from its Ethernet header on; any bytes have one.
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

/// Returns the ethertype behind the tags of an Ethernet header, and where its header begins.
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

/// A packet of IP.
struct Packet {
    from: u128,
    to: u128,
    /// The protocol behind the extension headers, and where its header begins; `None` for a fragment.
    payload: Option<(u8, usize)>,
}

impl Packet {
    /// Parses the headers at an offset; `None` if this is not IP, or the addresses are cut off.
    fn at(frame: &[u8], ethertype: u16, at: usize) -> Option<Packet> {
        match ethertype {
            IPV4 => {
                let header: &[u8; 20] = frame.get(at..)?.first_chunk()?;
                let address = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u128::from(byte));
                let (from, to) = (address(&header[12..16]), address(&header[16..20]));
                let length = usize::from(header[0] & 0xF) * 4;
                // More fragments, or an offset.
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

    /// Returns the packet's hash, of its ports too if it has any and they are wanted.
    fn hash(&self, frame: &[u8], with_ports: bool) -> u32 {
        let ports = self.payload.filter(|(protocol, _)| with_ports && WITH_PORTS.contains(protocol));
        let ports = ports.and_then(|(protocol, at)| Some((protocol, word(frame, at)?, word(frame, at + 2)?)));
        let (protocol, from_port, to_port) = ports.unwrap_or_default();
        let end = |address: u128, port: u16| {
            mix(mix((address >> 64) as u64).wrapping_add(address as u64) ^ u64::from(port) << 48)
        };
        both(end(self.from, from_port), end(self.to, to_port), protocol)
    }

    /// Returns the layer inside, if this is a tunnel's packet.
    fn inside(&self, frame: &[u8]) -> Option<Layer> {
        let (protocol, at) = self.payload?;
        match protocol {
            IPV4_INSIDE => Some(Layer::Packet(IPV4, at)),
            IPV6_INSIDE => Some(Layer::Packet(IPV6, at)),
            GRE => inside_gre(frame, at),
            UDP => match word(frame, at + 2)? {
                // With a network's number (RFC 7348, 5).
                VXLAN => (frame.get(at + 8)? & 8 != 0).then_some(Layer::Frame(at + 16)),
                GTP_U => inside_gtp(frame, at + 8),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Skips the extension headers of IPv6; `None` behind a fragment's header, or where the frame ends.
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

/// Returns what is behind GRE's header (RFC 2784, RFC 2890).
fn inside_gre(frame: &[u8], at: usize) -> Option<Layer> {
    let (flags, ethertype) = (word(frame, at)?, word(frame, at + 2)?);
    // Checksum, key and sequence number have 4 bytes each. Source routes and version 1 (PPTP) are other formats.
    let next = at + 4 + (flags & 0xB000).count_ones() as usize * 4;
    match ethertype {
        _ if flags & 0x4007 != 0 => None,
        TRANSPARENT_ETHERNET => Some(Layer::Frame(next)),
        IPV4 | IPV6 => Some(Layer::Packet(ethertype, next)),
        _ => None,
    }
}

/// Returns the packet behind GTP-U's header (3GPP TS 29.281, 5.1).
fn inside_gtp(frame: &[u8], at: usize) -> Option<Layer> {
    let (flags, kind) = (*frame.get(at)?, *frame.get(at + 1)?);
    // Version 1, and a message that carries a packet.
    if flags & 0xF0 != 0x30 || kind != 0xFF {
        return None;
    }
    let mut next = at + if flags & 7 != 0 { 12 } else { 8 };
    if flags & 4 != 0 {
        // The last byte of each header is the type of the next; 0: none.
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

/// Returns the hash of two ends, in either order.
fn both(from: u64, to: u64, protocol: u8) -> u32 {
    (mix(from.wrapping_add(to) ^ u64::from(protocol)) >> 32) as u32
}

/// Spreads each bit over all (the finalizer of MurmurHash3).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ bits >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ bits >> 33
}
