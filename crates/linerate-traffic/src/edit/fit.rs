//! Makes frames fit an MTU: truncates them, or fragments their IP packets.

use super::headers::{FRAGMENT, Headers, IpPacket, UDP, word};
use crate::checksum::checksum;

/// The treatment of frames longer than an MTU. The MTU is the most bytes after the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Their end is removed; lengths in IP and UDP headers follow.
    Truncate(usize),
    /// Their IP packets are fragmented (RFC 791, RFC 8200).
    Fragment(usize),
}

/// The outcome of [`fragment`].
pub(super) enum Fragmented {
    /// The frame is not longer than the MTU.
    Fits,
    /// The frame is too long, and not an IP packet that can be fragmented.
    TooLong,
    /// The number of fragments.
    Into(u64),
}

/// Truncates a frame to an MTU. Returns whether its IP packet has become shorter.
pub(super) fn truncate(frame: &mut Vec<u8>, original_len: &mut usize, headers: &Headers, mtu: usize) -> bool {
    let end = headers.network + mtu;
    if *original_len <= end {
        return false;
    }
    let Some(packet) = headers.packet.as_ref().filter(|packet| is_longer(packet, end)) else {
        // Not IP, or only its padding is cut.
        frame.truncate(end);
        *original_len = end;
        return false;
    };
    let (at, len) = match packet.is_v6 {
        false => (packet.at + 2, end - packet.at),
        true => (packet.at + 4, (end - packet.at).saturating_sub(40)),
    };
    frame.truncate(end);
    *original_len = end;
    put(frame, at, len);
    if let Some((UDP, udp)) = packet.transport.filter(|_| !packet.is_fragment)
        && word(frame, udp + 4).is_some_and(|len| udp + usize::from(len) > end)
    {
        put(frame, udp + 4, end - udp);
    }
    true
}

/// Returns whether a packet ends after `end`. A length of 0 is that of a packet that a card has yet to segment.
fn is_longer(packet: &IpPacket, end: usize) -> bool {
    packet.at < end && (packet.len == 0 || packet.at + packet.len > end)
}

/// Writes 16 bits in network byte order, if the frame has them.
fn put(frame: &mut [u8], at: usize, value: usize) {
    if let Some(bytes) = frame.get_mut(at..at + 2) {
        bytes.copy_from_slice(&(value as u16).to_be_bytes());
    }
}

/// Fragments a frame's IP packet. `each` gets the fragments: their captured bytes, and their length. `next_id` is the
/// identification of the next packet that has none.
pub(super) fn fragment(
    frame: &[u8],
    original_len: usize,
    headers: &Headers,
    mtu: usize,
    next_id: &mut u32,
    each: &mut dyn FnMut(&[u8], usize),
) -> Fragmented {
    if original_len <= headers.network + mtu {
        return Fragmented::Fits;
    }
    let Some(packet) = &headers.packet else { return Fragmented::TooLong };
    let end = if packet.len == 0 { original_len } else { (packet.at + packet.len).min(original_len) };
    if end <= headers.network + mtu {
        // Only the padding is too long.
        each(&frame[..frame.len().min(end)], end);
        return Fragmented::Into(1);
    }
    let Some(plan) = Plan::of(frame, packet, next_id) else { return Fragmented::TooLong };
    let Some(room) = (headers.network + mtu).checked_sub(plan.first.len()).map(|room| room & !7) else {
        return Fragmented::TooLong;
    };
    if room == 0 {
        return Fragmented::TooLong;
    }
    let (mut at, mut count) = (plan.payload_at, 0);
    while at < end {
        let header = if count == 0 { &plan.first } else { &plan.others };
        let len = (end - at).min(room);
        let is_last = at + len == end;
        let mut bytes = plan.header(header, packet, at - plan.payload_at, len, is_last);
        bytes.extend_from_slice(frame.get(at..(at + len).min(frame.len())).unwrap_or_default());
        each(&bytes, header.len() + len);
        (at, count) = (at + len, count + 1);
    }
    Fragmented::Into(count)
}

/// How a packet is fragmented.
struct Plan {
    /// The bytes up to the payload: of the first fragment, and of the others.
    first: Vec<u8>,
    others: Vec<u8>,
    payload_at: usize,
    /// The offset of the fragment header in a fragment's bytes (IPv6).
    fragment_at: usize,
    /// The packet is itself a fragment: its offset in bytes, and whether more follow.
    offset: usize,
    has_more: bool,
}

impl Plan {
    fn of(frame: &[u8], packet: &IpPacket, next_id: &mut u32) -> Option<Plan> {
        match packet.is_v6 {
            false => Plan::of_v4(frame, packet, next_id),
            true => Plan::of_v6(frame, packet, next_id),
        }
    }

    fn of_v4(frame: &[u8], packet: &IpPacket, next_id: &mut u32) -> Option<Plan> {
        let at = packet.at;
        let mut first = frame.get(..packet.fixed_end)?.to_vec();
        let flags = word(&first, at + 6)?;
        if word(&first, at + 4)? == 0 {
            first[at + 4..at + 6].copy_from_slice(&(*next_id as u16).to_be_bytes());
            *next_id = next_id.wrapping_add(1).max(1);
        }
        let mut others = first[..at + 20].to_vec();
        others.extend(copied_options(&first[at + 20..]));
        others[at] = 0x40 | ((others.len() - at) / 4) as u8;
        Some(Plan {
            first,
            others,
            payload_at: packet.fixed_end,
            fragment_at: 0,
            offset: usize::from(flags & 0x1FFF) * 8,
            has_more: flags & 0x2000 != 0,
        })
    }

    fn of_v6(frame: &[u8], packet: &IpPacket, next_id: &mut u32) -> Option<Plan> {
        let mut first = frame.get(..packet.fixed_end)?.to_vec();
        let (mut payload_at, mut offset, mut has_more) = (packet.fixed_end, 0, false);
        match packet.fragment_at.filter(|at| *at == packet.fixed_end) {
            Some(at) => {
                first.extend(frame.get(at..at + 8)?);
                let flags = word(&first, at + 2)?;
                (payload_at, offset, has_more) = (at + 8, usize::from(flags & 0xFFF8), flags & 1 != 0);
            }
            // After other headers, for example destination options, it would not be the first header fragmented.
            None if packet.fragment_at.is_some() => return None,
            None => {
                let next = std::mem::replace(&mut first[packet.next_at], FRAGMENT);
                first.extend([next, 0, 0, 0]);
                first.extend(next_id.to_be_bytes());
                *next_id = next_id.wrapping_add(1).max(1);
            }
        }
        Some(Plan { others: first.clone(), first, payload_at, fragment_at: packet.fixed_end, offset, has_more })
    }

    /// Returns the headers of the fragment at an offset of the payload.
    fn header(&self, header: &[u8], packet: &IpPacket, offset: usize, len: usize, is_last: bool) -> Vec<u8> {
        let mut bytes = header.to_vec();
        let has_more = self.has_more || !is_last;
        let offset = self.offset + offset;
        match packet.is_v6 {
            false => {
                put(&mut bytes, packet.at + 2, header.len() - packet.at + len);
                put(&mut bytes, packet.at + 6, (offset / 8) | if has_more { 0x2000 } else { 0 });
                put(&mut bytes, packet.at + 10, 0);
                let sum = checksum(0, &bytes[packet.at..]);
                put(&mut bytes, packet.at + 10, sum.into());
            }
            true => {
                put(&mut bytes, packet.at + 4, header.len() - packet.at - 40 + len);
                put(&mut bytes, self.fragment_at + 2, offset | usize::from(has_more));
            }
        }
        bytes
    }
}

/// Returns the options that each fragment has (RFC 791, section 3.1), padded to a multiple of 4 bytes.
fn copied_options(mut options: &[u8]) -> Vec<u8> {
    let mut copied = Vec::new();
    while let [kind, rest @ ..] = options {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => rest.first().map_or(0, |len| usize::from(*len)),
        };
        let Some(option) = options.get(..len).filter(|option| !option.is_empty()) else { break };
        if kind & 0x80 != 0 {
            copied.extend_from_slice(option);
        }
        options = &options[len..];
    }
    copied.resize(copied.len().next_multiple_of(4), 0);
    copied
}
