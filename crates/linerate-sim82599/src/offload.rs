//! Offloads of transmitted packets: VLAN tags, checksums and segmentation (sections 7.2.3 to 7.2.5), as requested by
//! descriptors.

use linerate_spec::descriptor::context;

use super::checksum;
use super::headers::word;
use super::wire::Frame;

/// A parsed context descriptor (section 7.2.3.2.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    /// Bytes before the IP header, of the IP header, and of the transport header.
    pub mac: usize,
    pub ip: usize,
    pub transport: usize,
    pub vlan: u16,
    pub mss: usize,
    pub ipv4: bool,
    pub protocol: Protocol,
}

/// The transport protocol: `TUCMD.L4T`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    #[default]
    Udp,
    Tcp,
    Sctp,
    Reserved,
}

/// The offloads that a packet's descriptors request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub context: Context,
    pub ip_checksum: bool,
    pub transport_checksum: bool,
    /// Segment the packet. `flags` are the masks of the TCP flags for the first, middle and last segments (8.2.3.9.3).
    pub segments: bool,
    pub flags: [u8; 3],
    /// Legacy descriptor: the offsets in bytes at which the checksum begins and is stored (CSS, CSO).
    pub anywhere: Option<(usize, usize)>,
}

impl Context {
    pub fn parse(words: [u64; 2]) -> Context {
        let [first, second] = words;
        Context {
            ip: (first & 0x1FF) as usize,
            mac: (first >> context::MACLEN_SHIFT & 0x7F) as usize,
            vlan: (first >> context::VLAN_SHIFT) as u16,
            transport: (second >> context::L4LEN_SHIFT & 0xFF) as usize,
            mss: (second >> context::MSS_SHIFT) as usize,
            ipv4: second & context::IPV4 != 0,
            protocol: match second >> context::L4T_SHIFT & 0x3 {
                0 => Protocol::Udp,
                1 => Protocol::Tcp,
                2 => Protocol::Sctp,
                _ => Protocol::Reserved,
            },
        }
    }

    fn transport_start(&self) -> usize {
        self.mac + self.ip
    }

    /// Returns the length of all headers together.
    pub fn headers(&self) -> usize {
        self.transport_start() + self.transport
    }
}

/// Inserts a VLAN tag after the MAC addresses.
pub(super) fn insert_tag(frame: &mut Vec<u8>, ethertype: u16, tag: u16) {
    if frame.len() >= 12 {
        let [a, b] = ethertype.to_be_bytes();
        let [c, d] = tag.to_be_bytes();
        frame.splice(12..12, [a, b, c, d]);
    }
}

/// Inserts the requested checksums. Fails with the reason if the descriptors do not match the packet.
pub(super) fn insert_checksums(frame: &mut [u8], wanted: &Wanted) -> Result<(), &'static str> {
    let context = &wanted.context;
    if let Some((start, at)) = wanted.anywhere {
        if start > frame.len() || at + 2 > frame.len() {
            return Err("CSS or CSO is not in the packet (section 7.2.3.2.2)");
        }
        let sum = checksum::finish(checksum::sum(&frame[start..], 0));
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    if wanted.ip_checksum {
        let header = frame
            .get_mut(context.mac..context.mac + context.ip)
            .filter(|header| header.len() >= 20)
            .ok_or("the IP header, by MACLEN and IPLEN, is not in the packet (section 7.2.5.1)")?;
        // The sum includes the field's value: 0, or a value that compensates for inner headers, which IPLEN includes.
        let sum = checksum::finish(checksum::sum(header, 0));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    if !wanted.transport_checksum {
        return Ok(());
    }
    let packet = frame.get_mut(context.transport_start()..).unwrap_or_default();
    let at = match context.protocol {
        Protocol::Udp => 6,
        Protocol::Tcp => 16,
        Protocol::Sctp => 8,
        Protocol::Reserved => return Err("L4T is reserved (section 7.2.3.2.3)"),
    };
    let width = if context.protocol == Protocol::Sctp { 4 } else { 2 };
    if packet.len() < at + width {
        return Err("the checksum, by MACLEN, IPLEN and L4T, is not in the packet (section 7.2.5.2)");
    }
    if context.protocol == Protocol::Sctp {
        let sum = checksum::sctp(packet);
        packet[8..12].copy_from_slice(&sum.to_le_bytes());
        return Ok(());
    }
    // The field already contains the pseudo header's sum (7.2.5.2).
    let sum = match checksum::finish(checksum::sum(packet, 0)) {
        // 0 would mean that there is no checksum (RFC 768).
        0 if context.protocol == Protocol::Udp => 0xFFFF,
        sum => sum,
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Segments a large packet into frames with up to `MSS` bytes of payload (section 7.2.4), and passes each to `send`.
pub(super) fn cut(
    packet: &[u8],
    wanted: &Wanted,
    segment: &mut Frame,
    mut send: impl FnMut(&mut Frame),
) -> Result<(), &'static str> {
    let context = &wanted.context;
    let (ip, transport, headers) = (context.mac, context.transport_start(), context.headers());
    let least = match context.protocol {
        Protocol::Tcp => 20,
        Protocol::Udp => 8,
        _ => return Err("segmentation is for TCP and UDP (section 7.2.4)"),
    };
    if context.mss == 0 || context.transport < least || context.ip < 20 || packet.len() <= headers {
        return Err("MSS, IPLEN or L4LEN do not fit a packet to be segmented (section 7.2.4.2)");
    }
    let (template, payload) = packet.split_at(headers);
    let count = payload.len().div_ceil(context.mss);
    let identification = word(template, ip + 4).unwrap_or(0);
    let sequence = u32::from(word(template, transport + 4).unwrap_or(0)) << 16
        | u32::from(word(template, transport + 6).unwrap_or(0));
    for (n, part) in payload.chunks(context.mss).enumerate() {
        let frame = &mut segment.bytes;
        frame.clear();
        frame.extend_from_slice(template);
        frame.extend_from_slice(part);
        let after_ip = (frame.len() - ip - context.ip) as u16;
        let whole = (frame.len() - ip) as u16;
        if context.ipv4 {
            frame[ip + 2..ip + 4].copy_from_slice(&whole.to_be_bytes());
            frame[ip + 4..ip + 6].copy_from_slice(&identification.wrapping_add(n as u16).to_be_bytes());
        } else {
            // The payload length includes extension headers.
            frame[ip + 4..ip + 6].copy_from_slice(&whole.saturating_sub(40).to_be_bytes());
        }
        if context.protocol == Protocol::Tcp {
            let at = sequence.wrapping_add((n * context.mss) as u32);
            frame[transport + 4..transport + 8].copy_from_slice(&at.to_be_bytes());
            let place = if n + 1 == count { 2 } else { usize::from(n > 0) };
            // A single segment is both first and last.
            let mask = if count == 1 { 0xFF } else { wanted.flags[place] };
            frame[transport + 13] &= mask;
        } else {
            frame[transport + 4..transport + 6].copy_from_slice(&after_ip.to_be_bytes());
        }
        // The pseudo header's sum in the packet excludes the length, which differs between segments.
        let at = transport + if context.protocol == Protocol::Tcp { 16 } else { 6 };
        let seed = u32::from(word(frame, at).unwrap_or(0)) + u32::from(after_ip);
        frame[at..at + 2].copy_from_slice(&(!checksum::finish(seed)).to_be_bytes());
        insert_checksums(frame, wanted)?;
        send(segment);
    }
    Ok(())
}
