//! A symmetric hash of a frame's flow, for distributing frames to several consumers (`PORT?cluster=N&by=flow`).

use std::net::IpAddr;

use super::WITH_PORTS;
use super::headers::{Layer, MOST_LAYERS, Packet, Tagged, word};

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
/// - Up to 16 IPv6 extension headers and authentication headers (of either IP version) are skipped. A packet with a
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

impl FlowKey {
    /// Returns the hash of a frame that begins with its Ethernet header. Any bytes have a hash.
    pub fn hash(self, frame: &[u8]) -> u32 {
        let (mut layer, mut hash) = (Layer::Frame(0), 0);
        for _ in 0..MOST_LAYERS {
            let (ethertype, at) = match layer {
                Layer::Cut => break,
                Layer::Packet(ethertype, at) => (ethertype, at),
                Layer::Frame(at) => {
                    hash = ethernet(frame, at).unwrap_or(hash);
                    let Tagged { ethertype: Some(ethertype), next, .. } = Tagged::at(frame, at) else { break };
                    (ethertype, next)
                }
            };
            let Some(packet) = Packet::at(frame, ethertype, at) else { break };
            hash = self.of_packet(&packet, frame);
            match self == FlowKey::Inner {
                true => match packet.inside(frame).filter(|_| !packet.is_fragment) {
                    Some(inside) => layer = inside,
                    None => break,
                },
                false => break,
            }
        }
        hash
    }

    /// Returns the hash of a packet. It includes the ports if the packet has ports and is not a fragment.
    fn of_packet(self, packet: &Packet, frame: &[u8]) -> u32 {
        let has_ports =
            |protocol: &u8| self != FlowKey::Addresses && !packet.is_fragment && WITH_PORTS.contains(protocol);
        let ports = packet.protocol.filter(has_ports).zip(packet.transport);
        let ports = ports.and_then(|(protocol, at)| Some((protocol, word(frame, at)?, word(frame, at + 2)?)));
        let (protocol, from_port, to_port) = ports.unwrap_or_default();
        let end = |address: IpAddr, port: u16| {
            let address = match address {
                IpAddr::V4(v4) => u128::from(v4.to_bits()),
                IpAddr::V6(v6) => v6.to_bits(),
            };
            mix(mix((address >> 64) as u64).wrapping_add(address as u64) ^ u64::from(port) << 48)
        };
        both(end(packet.from, from_port), end(packet.to, to_port), protocol)
    }
}

/// Returns the hash of the Ethernet addresses at an offset.
fn ethernet(frame: &[u8], at: usize) -> Option<u32> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *frame.get(at..)?.first_chunk()?;
    let end = |bytes: [u8; 8]| mix(u64::from_be_bytes(bytes));
    Some(both(end([0, 0, a, b, c, d, e, f]), end([0, 0, g, h, i, j, k, l]), 0))
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
