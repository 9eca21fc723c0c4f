//! Frames as packet sockets describe them: the addresses of packet(7).

use std::ffi::c_int;

use super::names::PortProperties;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;
/// All protocols (`ETH_P_ALL`).
pub const ALL: u16 = 3;
/// `ETH_P_802_3` and `ETH_P_802_2`: frames with a length in place of a type.
const NOVELL: u16 = 1;
const LLC: u16 = 4;
/// `ETH_P_802_3_MIN`: smaller types are lengths.
const FIRST_TYPE: u16 = 0x600;
/// `ETH_P_8021Q`; Linux does not allow extra bytes for an 802.1ad tag.
const VLAN: u16 = 0x8100;
/// `ARPHRD_ETHER`.
pub const ETHERNET: u16 = 1;

/// Returns the protocol of a frame, derived from its type as in the kernel.
pub fn protocol(frame: &[u8]) -> u16 {
    match frame {
        [_, _, _, _, _, _, _, _, _, _, _, _, high, low, rest @ ..] => match u16::from_be_bytes([*high, *low]) {
            kind if kind >= FIRST_TYPE => kind,
            _ if rest.starts_with(&[0xFF, 0xFF]) => NOVELL,
            _ => LLC,
        },
        _ => 0,
    }
}

/// Returns the address of an interface as a `sockaddr_ll`.
pub fn address(index: u32, protocol: u16, address: [u8; 6]) -> libc::sockaddr_ll {
    let [a, b, c, d, e, f] = address;
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as c_int,
        sll_hatype: ETHERNET,
        sll_pkttype: libc::PACKET_HOST,
        sll_halen: 6,
        sll_addr: [a, b, c, d, e, f, 0, 0],
    }
}

/// Returns the `sockaddr_ll` of a received frame: the sender's address and the destination's kind.
pub fn sender(frame: &[u8], index: u32, properties: &PortProperties) -> libc::sockaddr_ll {
    let (mut to, mut from) = ([0; 6], [0; 6]);
    if let Some((a, rest)) = frame.split_first_chunk::<6>() {
        (to, from) = (*a, rest.first_chunk::<6>().copied().unwrap_or_default());
    }
    let kind = match to {
        [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF] => libc::PACKET_BROADCAST,
        [first, ..] if first & 1 != 0 => libc::PACKET_MULTICAST,
        _ if to == properties.address => libc::PACKET_HOST,
        _ => libc::PACKET_OTHERHOST,
    };
    libc::sockaddr_ll { sll_pkttype: kind, ..address(index, protocol(frame), from) }
}

/// Returns whether a frame of this length may be sent. A VLAN tag does not count as payload.
pub fn fits(header: &[u8], len: usize, mtu: usize) -> bool {
    let is_tagged = || protocol(header) == VLAN;
    len <= mtu + HEADER || len <= mtu + linerate::port::FRAME_HEADERS && is_tagged()
}
