//! Link headers, and the Ethernet headers that replace them.
//!
//! Layouts of the link headers: <https://www.tcpdump.org/linktypes.html>, IEEE 802.11-2020 (section 9.2.4), and
//! <https://www.radiotap.org>.

use super::LinkType;

/// EtherTypes (IEEE 802 numbers).
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86DD;
/// Smaller values in an Ethernet header are the payload's length.
const LEAST_ETHERTYPE: u16 = 0x0600;

type Mac = [u8; 6];

/// The first bytes of the addresses that are made up: a locally administered address, then four bytes of the IP
/// address.
const MADE_UP: [u8; 2] = [0x02, 0x00];
const BROADCAST: Mac = [0xFF; 6];

/// The parts of a link header that an Ethernet header has, too.
#[derive(Default)]
struct LinkHeader {
    len: usize,
    ethertype: u16,
    destination: Option<Mac>,
    source: Option<Mac>,
    /// Bytes of a frame check sequence at the packet's end.
    fcs: usize,
}

/// Replaces the packet's link header by an Ethernet header; `original_len` changes accordingly. Addresses that the
/// link header does not have are derived from the addresses in the packet. Returns `None`, and leaves the packet
/// unchanged, if it is not one that Ethernet carries.
pub(super) fn to_ethernet(link: LinkType, packet: &mut Vec<u8>, original_len: &mut usize) -> Option<()> {
    if link == LinkType::ETHERNET {
        return Some(());
    }
    let header = link_header(link, packet)?;
    let payload_len = original_len.checked_sub(header.len + header.fcs)?;
    let payload = packet.get(header.len..)?;
    let payload = &payload[..payload.len().min(payload_len)];
    let ethertype = match header.ethertype {
        0 if payload_len < LEAST_ETHERTYPE.into() => payload_len as u16,
        0 => return None,
        ethertype => ethertype,
    };
    let [destination, source] = addresses(header.ethertype, payload);
    let destination = header.destination.unwrap_or(destination);
    let source = header.source.unwrap_or(source);
    let ethernet = [&destination[..], &source, &ethertype.to_be_bytes()].concat();
    packet.truncate(header.len + payload.len());
    *original_len = payload_len + ethernet.len();
    packet.splice(..header.len, ethernet);
    Some(())
}

/// Reads a packet's link header. Its EtherType is 0 if the payload begins with a header of IEEE 802.2, whose frames
/// have a length instead.
fn link_header(link: LinkType, packet: &[u8]) -> Option<LinkHeader> {
    match link.0 {
        0 | 108 => loopback(packet),
        9 | 50 => ppp(packet, 0),
        51 => pppoe(packet),
        12 | 14 | 101 => ip(packet, 0),
        104 => cisco(packet),
        105 => wireless(packet, 0),
        113 => cooked(packet),
        119 => prism(packet),
        127 => radiotap(packet),
        163 => avs(packet),
        166 => ppp(packet, 2),
        192 => per_packet(packet),
        204 => ppp(packet, 1),
        228 => ip(packet, 0).filter(|header| header.ethertype == IPV4),
        229 => ip(packet, 0).filter(|header| header.ethertype == IPV6),
        276 => cooked_v2(packet),
        _ => None,
    }
}

/// IP after `len` bytes; its version selects the EtherType.
fn ip(packet: &[u8], len: usize) -> Option<LinkHeader> {
    let ethertype = match packet.get(len)? >> 4 {
        4 => IPV4,
        6 => IPV6,
        _ => return None,
    };
    Some(LinkHeader { len, ethertype, ..LinkHeader::default() })
}

/// BSD loopback: an address family in the byte order of the capturing machine (NULL), or of the network (LOOP).
fn loopback(packet: &[u8]) -> Option<LinkHeader> {
    let family = u32::from_le_bytes(*packet.first_chunk()?);
    let ethertype = match family.min(family.swap_bytes()) {
        2 => IPV4,
        // Linux; NetBSD and OpenBSD; FreeBSD; macOS.
        10 | 24 | 28 | 30 => IPV6,
        _ => return None,
    };
    ip(packet, 4).filter(|header| header.ethertype == ethertype)
}

/// PPP after `at` bytes, with or without the address and control bytes of HDLC-like framing (RFC 1661, RFC 1662).
fn ppp(packet: &[u8], at: usize) -> Option<LinkHeader> {
    let at = if packet.get(at..)?.starts_with(&[0xFF, 0x03]) { at + 2 } else { at };
    let first = *packet.get(at)?;
    // An odd first byte is a compressed protocol field.
    let (protocol, len) = if first % 2 == 1 { (first.into(), at + 1) } else { (half(packet, at)?, at + 2) };
    let ethertype = match protocol {
        0x0021 => IPV4,
        0x0057 => IPV6,
        // MPLS.
        0x0281 => 0x8847,
        0x0283 => 0x8848,
        _ => return None,
    };
    Some(LinkHeader { len, ethertype, ..LinkHeader::default() })
}

/// HDLC of Cisco: an address, a control byte of 0, and an EtherType. Its keepalives have no EtherType of Ethernet.
fn cisco(packet: &[u8]) -> Option<LinkHeader> {
    let ethertype = half(packet, 2).filter(|_| matches!(packet[0], 0x0F | 0x8F) && packet[1] == 0)?;
    let is_carried = matches!(ethertype, IPV4 | IPV6 | 0x8847 | 0x8848);
    is_carried.then(|| LinkHeader { len: 4, ethertype, ..LinkHeader::default() })
}

/// PPPoE, which Ethernet carries as it is (RFC 2516): code 0 is the session stage.
fn pppoe(packet: &[u8]) -> Option<LinkHeader> {
    let ethertype = if *packet.get(1)? == 0 { 0x8864 } else { 0x8863 };
    Some(LinkHeader { ethertype, ..LinkHeader::default() })
}

/// Linux cooked capture.
fn cooked(packet: &[u8]) -> Option<LinkHeader> {
    let header = packet.first_chunk::<16>()?;
    cooked_fields(half(header, 0)?, half(header, 2)?, half(header, 4)?, &header[6..], half(header, 14)?, 16)
}

/// Linux cooked capture, version 2.
fn cooked_v2(packet: &[u8]) -> Option<LinkHeader> {
    let header = packet.first_chunk::<20>()?;
    cooked_fields(header[10].into(), half(header, 8)?, header[11].into(), &header[12..], half(header, 0)?, 20)
}

/// `device` is an `ARPHRD_` value; `address` is the sender's.
fn cooked_fields(
    kind: u16,
    device: u16,
    address_len: u16,
    address: &[u8],
    protocol: u16,
    len: usize,
) -> Option<LinkHeader> {
    // CAN, Frame Relay, 802.11 and netlink: their protocol is not an EtherType.
    if matches!(device, 280 | 770 | 801..=803 | 824) {
        return None;
    }
    let ethertype = match protocol {
        // Novell's 802.3 frames, and frames with a header of IEEE 802.2.
        0x0001 | 0x0004 => 0,
        LEAST_ETHERTYPE.. => protocol,
        _ => return None,
    };
    let source = address.first_chunk().copied().filter(|_| address_len == 6);
    let destination = (kind == 1).then_some(BROADCAST);
    Some(LinkHeader { len, ethertype, source, destination, fcs: 0 })
}

/// 802.11 after a radiotap header, whose flags announce a frame check sequence and padding after the 802.11 header.
fn radiotap(packet: &[u8]) -> Option<LinkHeader> {
    let word = |at: usize| packet.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let len = u16::from_le_bytes(*packet.get(2..)?.first_chunk()?);
    if packet[0] != 0 || len < 8 {
        return None;
    }
    let (present, mut at) = (word(4)?, 8);
    // Bit 31: another word of flags follows.
    while word(at - 4)? >> 31 == 1 {
        at += 4;
    }
    let flags = match present & 3 {
        // The time stamp in front of the flags is aligned.
        3 => *packet.get(at.next_multiple_of(8) + 8)?,
        2 => *packet.get(at)?,
        _ => 0,
    };
    let mut header = wireless(packet, len.into()).filter(|_| flags & 0x20 == 0)?;
    header.fcs = if flags & 0x10 == 0 { 0 } else { 4 };
    Some(header)
}

/// 802.11 after the header of Prism cards, of 144 bytes, or after that of AVS.
fn prism(packet: &[u8]) -> Option<LinkHeader> {
    match half(packet, 0)? {
        // The magic number of AVS (0x80211001, 0x80211002).
        0x8021 => avs(packet),
        _ => wireless(packet, 144),
    }
}

/// 802.11 after a header of AVS, which has its length.
fn avs(packet: &[u8]) -> Option<LinkHeader> {
    let len = u32::from_be_bytes(*packet.get(4..)?.first_chunk()?);
    (len >= 8).then(|| wireless(packet, len as usize)).flatten()
}

/// 802.11 after Per-Packet Information, little-endian. The flags of its field 2 announce a frame check sequence.
fn per_packet(packet: &[u8]) -> Option<LinkHeader> {
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*packet.get(at..)?.first_chunk()?)));
    let (len, link) = (half(2)?, half(4)?);
    if packet[0] != 0 || link != 105 || half(6)? != 0 {
        return None;
    }
    let (mut at, mut fcs) = (8, 0);
    while at + 4 <= len {
        if half(at)? == 2 && half(at + 2)? >= 10 && half(at + 12)? & 1 == 1 {
            fcs = 4;
        }
        at += 4 + half(at + 2)?;
    }
    let mut header = wireless(packet, len)?;
    header.fcs = fcs;
    Some(header)
}

/// A data frame of 802.11 after `at` bytes: complete, not encrypted, with an EtherType (RFC 1042), or with another header
/// of IEEE 802.2.
fn wireless(packet: &[u8], at: usize) -> Option<LinkHeader> {
    let frame = packet.get(at..)?;
    let control = u16::from_le_bytes(*frame.first_chunk()?);
    let (to_ds, from_ds) = (control & 0x0100 != 0, control & 0x0200 != 0);
    let (has_qos, has_order) = (control & 0x0080 != 0, control & 0x8000 != 0);
    let mac = |at: usize| frame.get(at..)?.first_chunk::<6>().copied();
    // Protocol version 0 and type 2 without the bit for "no data"; neither protected nor followed by fragments.
    if control & 0x444F != 0x0008 || frame.get(22)? & 0xF != 0 {
        return None;
    }
    let mut len = if to_ds && from_ds { 30 } else { 24 };
    if has_qos {
        // A-MSDU: several packets in a frame.
        if frame.get(len)? & 0x80 != 0 {
            return None;
        }
        len += if has_order { 6 } else { 2 };
    }
    let destination = mac(if to_ds { 16 } else { 4 });
    let source = mac(match (to_ds, from_ds) {
        (true, true) => 24,
        (false, true) => 16,
        _ => 10,
    });
    let llc = frame.get(len..).filter(|llc| llc.len() >= 3)?;
    // An EtherType, also of the bridge tunnel (IEEE 802.1H).
    let is_snap = llc.starts_with(&[0xAA, 0xAA, 0x03, 0, 0]) && matches!(llc.get(5), Some(0 | 0xF8));
    let ethertype = half(llc, 6).filter(|ethertype| is_snap && *ethertype >= LEAST_ETHERTYPE);
    let snap_len = if ethertype.is_some() { 8 } else { 0 };
    Some(LinkHeader { len: at + len + snap_len, ethertype: ethertype.unwrap_or(0), destination, source, fcs: 0 })
}

/// Returns the destination and the source for a packet whose link header has none.
fn addresses(mut ethertype: u16, mut payload: &[u8]) -> [Mac; 2] {
    // VLAN tags.
    while let (0x8100 | 0x88A8, Some(inner)) = (ethertype, half(payload, 2)) {
        (ethertype, payload) = (inner, &payload[4..]);
    }
    let made_up = |at: usize| match payload.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(&[a, b, c, d]) => [MADE_UP[0], MADE_UP[1], a, b, c, d],
        None => [MADE_UP[0], MADE_UP[1], 0, 0, 0, 0],
    };
    let mac = |at: usize| payload.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or(BROADCAST);
    match ethertype {
        IPV4 => match payload.get(16..20) {
            Some([255, 255, 255, 255]) => [BROADCAST, made_up(12)],
            // RFC 1112, section 6.4.
            Some(&[224..=239, b, c, d]) => [[0x01, 0x00, 0x5E, b & 0x7F, c, d], made_up(12)],
            _ => [made_up(16), made_up(12)],
        },
        IPV6 => match payload.get(24..40) {
            // RFC 2464, section 7.
            Some(&[0xFF, .., a, b, c, d]) => [[0x33, 0x33, a, b, c, d], made_up(20)],
            _ => [made_up(36), made_up(20)],
        },
        // A request is for everybody; otherwise the target's address.
        ARP if half(payload, 6) == Some(1) => [BROADCAST, mac(8)],
        ARP => [mac(18), mac(8)],
        _ => [[MADE_UP[0], MADE_UP[1], 0, 0, 0, 2], [MADE_UP[0], MADE_UP[1], 0, 0, 0, 1]],
    }
}

/// Reads 16 bits in network order.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a QoS field is one packet, except if the field has the bit for several (A-MSDU).
    #[test]
    fn a_wireless_frame_of_several_packets_is_left() {
        let header = [&[0x88, 0][..], &[0; 2], &[2; 6], &[4; 6], &[6; 6], &[0; 2]].concat();
        let snap = [0xAA, 0xAA, 3, 0, 0, 0, 8, 0, 0x45];
        let frame = |qos: u8| [&header[..], &[qos, 0], &snap].concat();
        let found = wireless(&frame(0x07), 0).unwrap();
        assert_eq!(
            (found.len, found.ethertype, found.destination, found.source),
            (34, 0x800, Some([2; 6]), Some([4; 6]))
        );
        assert!(wireless(&frame(0x80), 0).is_none());
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 20_000, failure_persistence: None, ..Default::default() })]

        /// Any bytes become an Ethernet frame with the end of the packet, or stay as they are.
        #[test]
        fn any_packet_is_turned_into_a_frame_or_left(
            link in proptest::sample::select(vec![0u16, 9, 12, 50, 51, 101, 104, 105, 108, 113, 119, 127, 163, 166, 192, 204, 228, 229, 276]),
            begin in proptest::sample::select(vec![&b""[..], &[0xFF, 3, 0, 0x21], &[2, 0, 0, 0, 0x45], &[8], &[0, 0, 8, 0]]),
            rest in proptest::collection::vec(0..=255u8, 0..80),
            cut in 0..2000usize,
        ) {
            let before = [begin, &rest].concat();
            let (mut packet, mut original_len) = (before.clone(), before.len() + cut);
            match to_ethernet(LinkType(link), &mut packet, &mut original_len) {
                None => proptest::prop_assert_eq!((&packet, original_len), (&before, before.len() + cut)),
                Some(()) => {
                    proptest::prop_assert!(packet.len() >= 14 && packet.len() <= original_len);
                    // A frame check sequence may be removed.
                    let payload = &packet[14..];
                    let is_end = |end: &[u8]| end.ends_with(payload);
                    proptest::prop_assert!(is_end(&before) || is_end(&before[..before.len().saturating_sub(4)]) || cut < 4);
                }
            }
        }
    }
}
