//! Offloads: a packet's checksum or segmentation that the sender leaves to the hardware.
//!
//! The first slot of such a packet is [`unfinished`](Slot::is_unfinished), and its buffer begins with the offloads.
//! Their format is that of VirtIO's header (VIRTIO 1.2, 5.1.6), which Linux also uses on TAP interfaces. A queue that
//! supports offloads passes them on. Other queues compute checksums and segment packets in software
//! ([`Batch::finish_packet`](crate::Batch::finish_packet)).

use std::num::NonZeroU16;
use std::ops::Range;

use crate::filter::{ExtensionHeader, ExtensionHeaders};
use crate::memory::View;
use crate::slot::Slot;

/// The first 10 bytes of VirtIO's header: flags, segmentation type, length of the headers, segment size, start of the
/// checksummed bytes, and the offset of the checksum field from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload(pub [u8; Offload::LEN]);

/// The pending segmentation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// No segmentation.
    None,
    /// TCP over IP version 4.
    TcpIpv4,
    /// TCP over IP version 6.
    TcpIpv6,
    /// UDP payload into datagrams (Linux's `UDP_SEGMENT`, VIRTIO 1.3), over either version of IP.
    Udp,
    /// UDP into IP fragments, or unknown.
    Other,
}

/// The VirtIO feature bits for offloads that a side accepts (VIRTIO 1.2, 5.1.3.1).
pub struct AcceptedOffloads {
    /// Checksums.
    pub checksum: u64,
    /// TCP segmentation over IP version 4.
    pub tcp_ipv4: u64,
    /// TCP segmentation over IP version 6.
    pub tcp_ipv6: u64,
    /// UDP segmentation.
    pub udp: u64,
    /// TCP segmentation with explicit congestion notification (RFC 3168).
    pub ecn: u64,
}

impl Offload {
    /// Bytes of the header.
    pub const LEN: usize = 10;
    const NEEDS_CHECKSUM: u8 = 1;
    /// A flag of the segmentation type: TCP's CWR is set. Only the first segment keeps it (RFC 3168).
    const ECN: u8 = 0x80;

    /// Prepares the headers of a packet of `len` bytes whose TCP or UDP checksum is left to the port that sends it, and
    /// returns what is left. With a `size`, the payload is also left to be segmented into parts of that size. `first`
    /// are the packet's first bytes, with all headers. Returns `None` and changes nothing if the outermost IP packet has
    /// neither protocol, is a fragment, has a routing header, or has another length than the packet, or if there are more
    /// than 2,048 segments.
    ///
    /// [`Packet::leave_checksum`](crate::Packet::leave_checksum) and
    /// [`Packet::leave_segments`](crate::Packet::leave_segments) do this for a packet of a batch.
    ///
    /// ```
    /// use linerate::offload::{Offload, Segmentation};
    ///
    /// let mut udp = vec![2; 12];
    /// udp.extend([8, 0, 0x45, 0, 0, 38, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// udp.extend([0, 1, 0, 2, 0, 18, 0, 0]);
    /// udp.extend([7; 10]);
    /// let left = Offload::leave(&mut udp, 52, None).unwrap();
    /// assert!(left.needs_checksum() && left.segmentation() == Segmentation::None);
    /// assert!(left.finish_bytes(&mut udp));
    /// assert_eq!(udp[40..42], [0xC8, 0xA1]);
    /// ```
    pub fn leave(first: &mut [u8], len: usize, size: Option<NonZeroU16>) -> Option<Offload> {
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        let is_other = |header: &ExtensionHeader| [ROUTING, FRAGMENT].contains(&header.protocol);
        let IpPayload { is_v4, protocol, transport, end, addresses } = IpPayload::of(first, is_other)?;
        let (kind, place) = match (protocol, is_v4) {
            (6, true) => (1, 16),
            (6, false) => (4, 16),
            (17, _) => (5, 6),
            _ => return None,
        };
        // After the IP packet, a short frame has padding. Zeros do not change the sum.
        let padding = if end < len && len <= 60 { first.get(end..len)? } else { &[] };
        let is_whole = end == len || !padding.is_empty() && padding.iter().all(|&byte| byte == 0) && size.is_none();
        let length = end.checked_sub(transport).filter(|length| is_whole && *length >= place + 2)? as u16;
        if let Some(size) = size {
            let header = if protocol == 6 { usize::from(*first.get(transport + 12)? >> 4) * 4 } else { 8 };
            let segments = usize::from(length).saturating_sub(header) / usize::from(size.get());
            (segments <= MOST_SEGMENTS).then_some(())?;
        }
        let sum = !checksum([&first[addresses], &[0, protocol], &length.to_be_bytes()]);
        first.get_mut(transport + place..)?.first_chunk_mut::<2>()?.copy_from_slice(&sum.to_be_bytes());
        let ([a, b], [c, d]) = (size.map_or(0, NonZeroU16::get).to_le_bytes(), (transport as u16).to_le_bytes());
        let kind = if size.is_some() { kind } else { 0 };
        Some(Offload([Offload::NEEDS_CHECKSUM, kind, 0, 0, a, b, c, d, place as u8, 0]))
    }

    /// Returns the pending offloads of the packet that begins in this slot.
    pub fn of(slot: &Slot, view: View<'_>) -> Option<Offload> {
        let notes = slot.is_unfinished().then(|| view.notes(slot))?;
        notes.first_chunk().copied().map(Offload)
    }

    /// Writes the offloads to the buffer of a packet's first slot, and sets its `unfinished` flag.
    pub fn note(self, slot: &mut Slot, view: View<'_>) {
        slot.set_unfinished(true);
        view.note(slot, 0, &self.0);
    }

    /// Returns whether any offload is pending.
    pub fn is_needed(self) -> bool {
        self.needs_checksum() || self.segmentation() != Segmentation::None
    }

    /// Adjusts the offsets after `by` bytes were inserted before the network header, or removed if it is negative. The
    /// length of the headers stays 0 if it is not known.
    pub fn moved(&mut self, by: i16) {
        for at in [2, 6] {
            let old = u16::from_le_bytes([self.0[at], self.0[at + 1]]);
            let new = if at == 2 && old == 0 { 0 } else { old.saturating_add_signed(by) };
            self.0[at..at + 2].copy_from_slice(&new.to_le_bytes());
        }
    }

    /// Sets the length of the headers.
    pub fn set_headers(&mut self, len: u16) {
        self.0[2..4].copy_from_slice(&len.to_le_bytes());
    }

    /// Returns whether a checksum is pending.
    pub fn needs_checksum(self) -> bool {
        self.0[0] & Offload::NEEDS_CHECKSUM != 0
    }

    /// Returns the pending segmentation.
    pub fn segmentation(self) -> Segmentation {
        match self.0[1] & !Offload::ECN {
            0 => Segmentation::None,
            1 => Segmentation::TcpIpv4,
            4 => Segmentation::TcpIpv6,
            5 => Segmentation::Udp,
            _ => Segmentation::Other,
        }
    }

    /// Returns whether the other side accepts all pending offloads, according to the negotiated features.
    pub fn is_accepted(self, by: &AcceptedOffloads, features: u64) -> bool {
        let segmentation = match self.segmentation() {
            Segmentation::None => 0,
            Segmentation::TcpIpv4 => by.tcp_ipv4,
            Segmentation::TcpIpv6 => by.tcp_ipv6,
            Segmentation::Udp => by.udp,
            Segmentation::Other => return false,
        };
        let ecn = if self.0[1] & Offload::ECN != 0 { by.ecn } else { 0 };
        let needed = by.checksum | segmentation | ecn;
        features & needed == needed
    }

    /// Returns the start of the checksummed bytes, and the offset of the checksum field; `None` if the field is not
    /// inside the first `len` bytes.
    pub fn checksum_offsets(self, len: usize) -> Option<(usize, usize)> {
        let start = usize::from(u16::from_le_bytes([self.0[6], self.0[7]]));
        let place = start + usize::from(u16::from_le_bytes([self.0[8], self.0[9]]));
        (place + 2 <= len).then_some((start, place))
    }

    /// Computes the packet's checksum, if it is pending: the sum of all bytes from the start, with the pseudo header's
    /// sum in the checksum field. Returns false and changes nothing if the packet must be [`cut`], or if the offsets
    /// are not inside its first slot.
    pub fn finish(self, slots: &mut [Slot], view: View<'_>) -> bool {
        let Some(first) = slots.first().filter(|_| self.segmentation() == Segmentation::None) else { return false };
        if self.needs_checksum() {
            let Some((start, place)) = self.checksum_offsets(first.len()) else { return false };
            let parts = slots.iter().enumerate().map(|(index, slot)| {
                let skipped = if index == 0 { start } else { 0 };
                &view.bytes(slot)[skipped..]
            });
            let sum = not_none(checksum(parts));
            view.bytes_mut(&mut slots[0])[place..place + 2].copy_from_slice(&sum);
        }
        slots[0].set_unfinished(false);
        true
    }

    /// Detects a checksum that a sender has left to a card, in a packet whose offloads are unknown. The checksum field
    /// of TCP or UDP then contains only the sum of the pseudo header. If a valid checksum happens to equal that sum, it
    /// is computed again, with the same result. `packet` begins with the Ethernet header.
    pub fn detect_partial_checksum(packet: &[u8]) -> Option<Offload> {
        let word = |at: usize| packet.get(at..)?.first_chunk().map(|bytes: &[u8; 2]| u16::from_be_bytes(*bytes));
        let (kind, network) = match word(12)? {
            0x8100 | 0x88A8 => (word(16)?, 18),
            kind => (kind, 14),
        };
        let (addresses, protocol, start, len) = match kind {
            0x0800 => {
                let header = usize::from(packet.get(network)? & 0xF) * 4;
                // A fragment (more fragments, or an offset): the checksum covers all fragments.
                if word(network + 6)? & 0x3FFF != 0 {
                    return None;
                }
                let len = word(network + 2)?.checked_sub(header as u16)?;
                (packet.get(network + 12..network + 20)?, packet[network + 9], network + header, len)
            }
            0x86DD => (packet.get(network + 8..network + 40)?, packet[network + 6], network + 40, word(network + 4)?),
            _ => return None,
        };
        let offset: u16 = match protocol {
            6 => 16,
            17 => 6,
            _ => return None,
        };
        let pseudo = !checksum([addresses, &[0, protocol], &len.to_be_bytes()]);
        if word(start + usize::from(offset))? != pseudo {
            return None;
        }
        let mut offload = Offload([0; Offload::LEN]);
        offload.0[0] = Offload::NEEDS_CHECKSUM;
        offload.0[6..8].copy_from_slice(&(start as u16).to_le_bytes());
        offload.0[8..10].copy_from_slice(&offset.to_le_bytes());
        Some(offload)
    }

    /// As [`finish`](Offload::finish), for a contiguous packet that needs no segmentation.
    pub fn finish_bytes(self, packet: &mut [u8]) -> bool {
        if !self.needs_checksum() {
            return true;
        }
        let Some((start, place)) = self.checksum_offsets(packet.len()) else { return false };
        let sum = not_none(checksum([&packet[start..]]));
        packet[place..place + 2].copy_from_slice(&sum);
        true
    }
}

/// The longest packet to be segmented: an Ethernet header with a VLAN tag, and an IP packet of 65,535 bytes.
pub const LONGEST: usize = 65_535 + 18;
/// The most segments of a packet. With Linux's minimum MSS (`tcp_min_snd_mss`, 48 bytes including TCP options, of which
/// a timestamp takes 12), a packet of 64 KiB has 1,820. A peer that asks for more would only occupy this thread.
const MOST_SEGMENTS: usize = 2048;

/// The headers of a packet with pending offloads. Each segment gets a copy.
pub struct Headers {
    /// The offset of the IP header.
    pub network: usize,
    /// The offset of the TCP or UDP header.
    pub transport: usize,
    /// The length of all headers; of those before TCP's or UDP's if only a checksum is pending.
    pub len: usize,
    /// The payload bytes per segment; the last may have fewer. 0 if only a checksum is pending.
    pub size: usize,
    /// The IP version is 4, otherwise 6.
    pub is_v4: bool,
    /// The transport protocol is TCP, otherwise UDP.
    pub is_tcp: bool,
}

impl Headers {
    /// Parses the headers of a packet of `packet_len` bytes. All headers must be in `first`, the packet's first part.
    /// Returns `None` if the packet cannot be segmented here, or would have too many segments.
    pub fn of(first: &[u8], packet_len: usize, offload: Offload) -> Option<Headers> {
        let (network, is_v4) = network_header(first)?;
        let is_tcp = match (offload.segmentation(), is_v4) {
            (Segmentation::TcpIpv4, true) | (Segmentation::TcpIpv6, false) => true,
            (Segmentation::Udp, _) => false,
            _ => return None,
        };
        let [.., a, b, _, _, _, _] = offload.0;
        let size = usize::from(u16::from_le_bytes([a, b]));
        let transport = usize::from(u16::from_le_bytes([offload.0[6], offload.0[7]]));
        let words = first.get(transport + 12).map(|byte| usize::from(byte >> 4));
        let (shortest, header) = if is_tcp { (20, words.unwrap_or(0) * 4) } else { (8, 8) };
        let len = transport + header;
        let segments = packet_len.saturating_sub(len).checked_div(size);
        let is_bounded = segments.is_some_and(|segments| segments <= MOST_SEGMENTS);
        let is_there = is_after(first, network, is_v4, transport);
        let is_possible = is_bounded && is_there && header >= shortest && first.len() >= len;
        is_possible.then_some(Headers { network, transport, len, size, is_v4, is_tcp })
    }

    /// Parses the headers of a packet whose only pending offload is the checksum of TCP or UDP, after the outermost IP
    /// header. `first` is the packet's first part. Returns `None` for any other packet.
    pub fn of_checksum(first: &[u8], offload: Offload) -> Option<Headers> {
        let (network, is_v4) = network_header(first)?;
        let (transport, place) = offload.checksum_offsets(first.len())?;
        let protocol = if is_v4 { first.get(network + 9)? } else { first.get(network + 6)? };
        let is_tcp = match (place - transport, protocol, is_v4) {
            (16, 6, _) => true,
            (6, 17, _) => false,
            // The protocol is in the last extension header. Only TCP's and UDP's checksums have these offsets.
            (at @ (6 | 16), 0 | 43 | 51 | 60, false) => at == 16,
            _ => return None,
        };
        let is_only = offload.needs_checksum() && offload.segmentation() == Segmentation::None;
        let is_possible = is_only && is_after(first, network, is_v4, transport);
        is_possible.then_some(Headers { network, transport, len: transport, size: 0, is_v4, is_tcp })
    }

    /// Prepares the headers of a packet of `len` bytes that is still to be segmented: its lengths, and the sum of the
    /// pseudo header in the checksum field.
    pub fn leave(&self, first: &mut [u8], len: usize) {
        let (addresses, protocol, place) = self.set_lengths(first, len);
        let after_ip = ((len - self.transport) as u16).to_be_bytes();
        let sum = !checksum([&first[addresses], &[0, protocol], &after_ip]);
        first[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes the lengths of a packet of `len` bytes, and IPv4's checksum. Returns the positions of the addresses, the
    /// protocol, and the position of the transport checksum.
    fn set_lengths(&self, first: &mut [u8], len: usize) -> (Range<usize>, u8, usize) {
        let Headers { network, transport, is_v4, is_tcp, .. } = *self;
        let addresses = if is_v4 {
            let length = (len - network) as u16;
            first[network + 2..network + 4].copy_from_slice(&length.to_be_bytes());
            first[network + 10..network + 12].fill(0);
            let sum = checksum([&first[network..transport]]);
            first[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
            network + 12..network + 20
        } else {
            let length = (len - network - 40) as u16;
            first[network + 4..network + 6].copy_from_slice(&length.to_be_bytes());
            network + 8..network + 40
        };
        if !is_tcp {
            let length = (len - transport) as u16;
            first[transport + 4..transport + 6].copy_from_slice(&length.to_be_bytes());
        }
        let (protocol, place) = if is_tcp { (6, transport + 16) } else { (17, transport + 6) };
        (addresses, protocol, place)
    }

    /// Prepares the headers for a card that segments the packet. The transport checksum becomes the sum of the pseudo
    /// header without its length, which differs between segments. The card writes all lengths, and IPv4's checksum.
    pub fn prepare_for_card(&self, first: &mut [u8]) {
        let Headers { network, transport, is_v4, is_tcp, .. } = *self;
        let (length, addresses) =
            if is_v4 { (network + 2, network + 12..network + 20) } else { (network + 4, network + 8..network + 40) };
        first[length..length + 2].fill(0);
        if is_v4 {
            first[network + 10..network + 12].fill(0);
        }
        let (protocol, place) = if is_tcp { (6, transport + 16) } else { (17, transport + 6) };
        let sum = !checksum([&first[addresses], &[0, protocol]]);
        first[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Clears TCP's FIN and PSH in a segment that is not the last. Only the last segment keeps them.
    pub fn continues(&self, segment: &mut [u8]) {
        const FIN_PUSH: u8 = 0x09;
        if self.is_tcp {
            segment[self.transport + 13] &= !FIN_PUSH;
        }
    }

    /// Advances the headers by one segment: the TCP sequence number and the IP identification. Clears TCP's CWR, which
    /// only the first segment has.
    pub fn advance(&self, headers: &mut [u8]) {
        const CWR: u8 = 0x80;
        if self.is_v4 {
            let identification = &mut headers[self.network + 4..self.network + 6];
            let next = u16::from_be_bytes([identification[0], identification[1]]).wrapping_add(1);
            identification.copy_from_slice(&next.to_be_bytes());
        }
        if self.is_tcp {
            let header = &mut headers[self.transport..];
            let sequence = u32::from_be_bytes([4, 5, 6, 7].map(|n| header[n])).wrapping_add(self.size as u32);
            header[4..8].copy_from_slice(&sequence.to_be_bytes());
            header[13] &= !CWR;
        }
    }

    /// Writes the lengths and checksums of a segment. `first` is its first part, with all headers; `rest` are the other
    /// parts.
    pub fn finish(&self, first: &mut [u8], rest: &[&[u8]]) {
        let len = first.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let (addresses, protocol, place) = self.set_lengths(first, len);
        let after_ip = ((len - self.transport) as u16).to_be_bytes();
        first[place..place + 2].fill(0);
        let pseudo: [&[u8]; 3] = [&first[addresses], &[0, protocol], &after_ip];
        let sum = checksum(pseudo.into_iter().chain([&first[self.transport..]]).chain(rest.iter().copied()));
        first[place..place + 2].copy_from_slice(&if self.is_tcp { sum.to_be_bytes() } else { not_none(sum) });
    }
}

/// Returns the offset of the outermost IP header, and whether its version is 4.
pub(crate) fn network_header(first: &[u8]) -> Option<(usize, bool)> {
    let network = network_offset(first);
    match (first.get(network - 2..network)?, first.get(network)? >> 4) {
        ([0x08, 0x00], 4) => Some((network, true)),
        ([0x86, 0xDD], 6) => Some((network, false)),
        _ => None,
    }
}

/// The offset of the network header after two VLAN tags, the most that offloads see through.
pub(crate) const MOST_OFFSET: usize = 22;

/// Returns the offset of the network header, after up to two VLAN tags (customer and service VLAN).
pub(crate) fn network_offset(first: &[u8]) -> usize {
    let mut network = 14;
    while network < MOST_OFFSET && matches!(first.get(network - 2..network), Some([0x81, 0x00] | [0x88, 0xA8])) {
        network += 4;
    }
    network
}

/// The payload of the outermost IP packet of a frame.
pub(crate) struct IpPayload {
    /// The IP version is 4, otherwise 6.
    pub is_v4: bool,
    /// The protocol after the extension headers.
    pub protocol: u8,
    /// The offset of the protocol's header.
    pub transport: usize,
    /// The offset of the packet's end, by its own length.
    pub end: usize,
    /// The positions of both addresses.
    pub addresses: Range<usize>,
}

impl IpPayload {
    /// Finds the payload. Returns `None` for a fragment of IPv4, and if an extension header of IPv6 is `refused`.
    pub fn of(frame: &[u8], refused: impl Fn(&ExtensionHeader) -> bool) -> Option<IpPayload> {
        let (network, is_v4) = network_header(frame)?;
        let word = |at: usize| frame.get(at..)?.first_chunk().map(|bytes: &[u8; 2]| u16::from_be_bytes(*bytes));
        let (addresses, length) = if is_v4 { (network + 12..network + 20, 2) } else { (network + 8..network + 40, 4) };
        let (length, begin) = (usize::from(word(network + length)?), if is_v4 { network } else { network + 40 });
        frame.get(addresses.clone())?;
        let (protocol, transport) = if is_v4 {
            let transport = network + usize::from(frame[network] & 0xF) * 4;
            (word(network + 6)? & 0x3FFF == 0).then_some((frame[network + 9], transport))?
        } else {
            let mut walk = ExtensionHeaders::new(frame, frame[network + 6], begin);
            let is_refused = walk.any(|header| refused(&header));
            walk.transport().filter(|_| !is_refused)?
        };
        Some(IpPayload { is_v4, protocol, transport, end: begin + length, addresses })
    }
}

/// Returns whether the transport header can be at this offset: the IPv4 header contains its length; after the IPv6
/// header there may be extension headers.
fn is_after(first: &[u8], network: usize, is_v4: bool, transport: usize) -> bool {
    match is_v4 {
        true => transport == network + usize::from(first[network] & 0xF) * 4 && transport >= network + 20,
        false => transport >= network + 40,
    }
}

/// Cuts a TCP packet or a UDP datagram into segments, and passes each finished segment to `each`. Returns false if the
/// packet cannot be segmented here.
pub fn cut(packet: &[u8], offload: Offload, mut each: impl FnMut(&[u8])) -> bool {
    let headers = Headers::of(packet, packet.len(), offload);
    let Some(headers) = headers.filter(|headers| packet.len() > headers.len) else { return false };
    let (template, payload) = packet.split_at(headers.len);
    let (mut template, mut left) = (template.to_vec(), payload.len());
    let mut segment = Vec::with_capacity(headers.len + headers.size);
    for part in payload.chunks(headers.size) {
        segment.clear();
        segment.extend_from_slice(&template);
        segment.extend_from_slice(part);
        left -= part.len();
        if left > 0 {
            headers.continues(&mut segment);
        }
        headers.finish(&mut segment, &[]);
        each(&segment);
        headers.advance(&mut template);
    }
    true
}

/// Computes the internet checksum of concatenated parts (RFC 1071).
pub(crate) fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let fold = |mut sum: u64| {
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        sum as u16
    };
    let (mut sum, mut odd) = (0, false);
    for part in parts {
        let words = part.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
        let of_part = fold(words.sum());
        // After an odd number of bytes, the bytes of each word are swapped, and so is their sum (section 2 (B)).
        sum += u64::from(if odd { of_part.swap_bytes() } else { of_part });
        odd ^= part.len() % 2 != 0;
    }
    !fold(sum)
}

/// Returns a checksum in wire format. 0 is replaced, because it means "no checksum" in UDP.
fn not_none(sum: u16) -> [u8; 2] {
    if sum == 0 { [0xFF; 2] } else { sum.to_be_bytes() }
}

#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    use std::num::NonZeroU16;

    use super::{Headers, Offload, Segmentation, cut};
    use crate::fuzzing::Input;

    /// Input: offloads, and a packet. Checks that the segments contain the payload exactly once, and that computing a
    /// checksum changes no other bytes.
    pub fn offload(data: &[u8]) {
        let mut input = Input::new(data);
        let mut todo = [0; Offload::LEN];
        let bytes = input.bytes(Offload::LEN);
        todo[..bytes.len()].copy_from_slice(bytes);
        let (todo, packet) = (Offload(todo), input.rest());
        let size = usize::from(u16::from_le_bytes([todo.0[4], todo.0[5]]));
        let transport = usize::from(u16::from_le_bytes([todo.0[6], todo.0[7]]));
        let mut payload = Vec::new();
        let is_cut = cut(packet, todo, |segment| {
            let header = match todo.segmentation() {
                Segmentation::Udp => 8,
                _ => usize::from(packet[transport + 12] >> 4) * 4,
            };
            let headers = transport + header;
            assert!(segment.len() > headers && segment.len() <= headers + size);
            payload.extend_from_slice(&segment[headers..]);
        });
        if is_cut {
            assert!(packet.ends_with(&payload) && !payload.is_empty());
        }
        let mut finished = packet.to_vec();
        let is_finished = todo.finish_bytes(&mut finished);
        let changed = packet.iter().zip(&finished).filter(|(a, b)| a != b).count();
        assert!(changed <= if is_finished && todo.needs_checksum() { 2 } else { 0 });
        let mut moved = todo;
        moved.moved(4);
        moved.set_headers(20);
        let _ = (moved.segmentation(), moved.is_needed(), moved.checksum_offsets(packet.len()));
        // The headers that a card gets are in the packet.
        let headers = [Headers::of(packet, packet.len(), todo), Headers::of_checksum(packet, todo)];
        for headers in headers.into_iter().flatten() {
            assert!(headers.network < headers.transport && headers.transport <= headers.len);
            assert!(headers.len <= packet.len());
            if headers.size > 0 {
                headers.prepare_for_card(&mut packet.to_vec());
            }
        }
        let mut left = packet.to_vec();
        if let Some(todo) = Offload::leave(&mut left, packet.len(), NonZeroU16::new(size as u16)) {
            let (_, place) = todo.checksum_offsets(left.len()).expect("the checksum is in the packet");
            left[place..place + 2].copy_from_slice(&packet[place..place + 2]);
        }
        assert!(left == packet, "only a checksum that is left changes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Finished};
    use crate::memory::{Pages, Pool, Region, RegionOptions};

    /// Returns the network header of a packet.
    fn network(is_v4: bool, identification: u16) -> etherparse::IpHeaders {
        use etherparse::{IpHeaders, Ipv4Header, Ipv6Header};
        if is_v4 {
            let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
            let header = Ipv4Header { identification, source, destination, time_to_live: 9, ..Ipv4Header::default() };
            return IpHeaders::Ipv4(header, Default::default());
        }
        let header = Ipv6Header { source: [1; 16], destination: [2; 16], hop_limit: 9, ..Ipv6Header::default() };
        IpHeaders::Ipv6(header, Default::default())
    }

    /// Compares each segment with a packet that another library builds from the same part of the payload.
    #[test]
    fn a_large_packet_is_cut_into_valid_segments() {
        use etherparse::PacketBuilder;
        let frame = |is_v4: bool, identification: u16, sequence: u32, flags: (bool, bool), payload: &[u8]| {
            let tcp = PacketBuilder::ethernet2([2; 6], [4; 6])
                .ip(network(is_v4, identification))
                .tcp(80, 4321, sequence, 1000)
                .ack(7);
            let tcp = if flags.0 { tcp.psh() } else { tcp };
            let tcp = if flags.1 { tcp.fin() } else { tcp };
            let mut bytes = Vec::new();
            tcp.write(&mut bytes, payload).unwrap();
            bytes
        };
        let payload: Vec<u8> = (0..5000).map(|n| n as u8).collect();
        for is_v4 in [true, false] {
            let large = frame(is_v4, 0xFFFF, u32::MAX - 100, (true, true), &payload);
            let mut offload = Offload([0; Offload::LEN]);
            offload.0[0] = 1;
            offload.0[1] = if is_v4 { 1 } else { 4 };
            offload.0[4..6].copy_from_slice(&1448u16.to_le_bytes());
            offload.0[6..8].copy_from_slice(&if is_v4 { 34u16 } else { 54 }.to_le_bytes());
            let mut segments = Vec::new();
            assert!(cut(&large, offload, |segment| segments.push(segment.to_vec())));
            let expected: Vec<_> = payload
                .chunks(1448)
                .enumerate()
                .map(|(n, part)| {
                    let sequence = (u32::MAX - 100).wrapping_add(1448 * n as u32);
                    frame(is_v4, 0xFFFFu16.wrapping_add(n as u16), sequence, (n == 3, n == 3), part)
                })
                .collect();
            assert_eq!(segments, expected);
            // Offsets outside the packet are rejected.
            for len in 0..60 {
                cut(&large[..len], offload, |_| {});
            }
            offload.0[6..8].copy_from_slice(&9000u16.to_le_bytes());
            assert!(!cut(&large, offload, |_| panic!("outside the packet")));
        }
    }

    /// As above for datagrams, also with a VLAN tag, and for a datagram whose checksum is 0, which is stored as 0xFFFF.
    #[test]
    fn a_large_datagram_is_cut_into_valid_ones() {
        use etherparse::PacketBuilder;
        let frame = |is_v4: bool, is_tagged: bool, identification: u16, payload: &[u8]| {
            let mut bytes = Vec::new();
            let (ethernet, ip) = (PacketBuilder::ethernet2([2; 6], [4; 6]), network(is_v4, identification));
            let udp = match is_tagged {
                true => ethernet.single_vlan(77.try_into().unwrap()).ip(ip).udp(443, 4321),
                false => ethernet.ip(ip).udp(443, 4321),
            };
            udp.write(&mut bytes, payload).unwrap();
            bytes
        };
        for (is_v4, is_tagged) in [(true, false), (true, true), (false, false), (false, true)] {
            let transport: u16 = if is_v4 { 34 } else { 54 } + if is_tagged { 4 } else { 0 };
            let mut payload: Vec<u8> = (0..5000).map(|n| n as u8).collect();
            // Choose the last word of the first datagram so that its checksum is 0.
            payload[1398..1400].fill(0);
            let first = frame(is_v4, is_tagged, 0xFFFF, &payload[..1400]);
            payload[1398..1400].copy_from_slice(&first[usize::from(transport) + 6..][..2]);
            let large = frame(is_v4, is_tagged, 0xFFFF, &payload);
            let ([a, b], [c, d]) = (1400u16.to_le_bytes(), transport.to_le_bytes());
            let offload = Offload([1, 5, 0, 0, a, b, c, d, 6, 0]);
            let mut datagrams = Vec::new();
            assert!(cut(&large, offload, |datagram| datagrams.push(datagram.to_vec())));
            let parts = payload.chunks(1400).zip([0xFFFF, 0, 1, 2]);
            let expected: Vec<_> = parts.map(|(part, id)| frame(is_v4, is_tagged, id, part)).collect();
            assert_eq!(datagrams, expected);
            assert_eq!(datagrams[0][usize::from(transport) + 6..][..2], [0xFF; 2]);
            // Truncated at any offset, the packet is not read beyond its end, and needs a payload.
            for len in 0..=usize::from(transport) + 9 {
                let is_cut = cut(&large[..len], offload, |_| {});
                assert_eq!(is_cut, len == usize::from(transport) + 9, "{len} bytes");
            }
            let mut neither = large.clone();
            neither[usize::from(transport) - if is_v4 { 20 } else { 40 }] = 0x50;
            assert!(!cut(&neither, offload, |_| panic!("IP has no version 5")));
        }
    }

    #[test]
    fn a_packet_is_cut_only_if_it_has_headers_and_a_payload() {
        // Ethernet, IPv4 (or IPv6), TCP with a header of `words` words, and 10 bytes.
        let cut_of = |kind: u8, size: u8, transport: u8, words: u8, len: usize| {
            let mut packet = vec![0; len];
            packet[12..15].copy_from_slice(if kind == 1 { &[8, 0, 0x45] } else { &[0x86, 0xDD, 0x60] });
            if let Some(byte) = packet.get_mut(usize::from(transport) + 12) {
                *byte = words << 4;
            }
            let mut count = 0;
            cut(&packet, Offload([1, kind, 0, 0, size, 0, transport, 0, 16, 0]), |_| count += 1).then_some(count)
        };
        for (kind, size, transport, words, len, expected) in [
            (1, 4, 34, 5, 64, Some(3)),
            (1, 4, 34, 5, 55, Some(1)),
            (1, 4, 34, 5, 54, None),
            (1, 4, 34, 6, 64, Some(2)),
            (1, 4, 34, 4, 64, None),
            (1, 4, 34, 0, 64, None),
            (1, 4, 33, 5, 64, None),
            (1, 0, 34, 5, 64, None),
            (1, 4, 34, 15, 94, None),
            (1, 4, 34, 15, 95, Some(1)),
            (4, 4, 54, 5, 75, Some(1)),
            (4, 4, 53, 5, 75, None),
            (4, 4, 34, 5, 75, None),
            (1, 4, 34, 5, 46, None),
        ] {
            let all = (kind, size, transport, words, len);
            assert_eq!(cut_of(kind, size, transport, words, len), expected, "{all:?}");
        }
    }

    #[test]
    fn a_checksum_is_finished_over_all_slots() {
        let options = RegionOptions { buffers: 8, buffer_size: 512, pages: Pages::default(), numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        // RFC 1071's example after an odd number of zeros, followed by enough zeros to reach a second slot.
        let mut bytes = vec![0; 501];
        bytes[375..383].copy_from_slice(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]);
        let mut batch = Batch::new();
        batch.push(&pool, &bytes);
        assert_eq!(batch.len(), 2);
        let mut offload = Offload([0; Offload::LEN]);
        assert!(!offload.is_needed());
        offload.0[0] = 1;
        offload.0[6..8].copy_from_slice(&301u16.to_le_bytes());
        offload.0[8..10].copy_from_slice(&10u16.to_le_bytes());
        batch.set_offload(0, offload);
        assert_eq!(batch.packets().next().unwrap().offload(), Some(offload));
        assert_eq!(batch.finish_packet(0), Finished::Done);
        assert_eq!(batch.packets().next().unwrap().offload(), None);
        let first = (&mut batch).into_iter().next().unwrap();
        assert_eq!(first[311..313], [0x22, 0x0D], "the complement of ddf2");
        offload.0[8..10].copy_from_slice(&200u16.to_le_bytes());
        batch.set_offload(0, offload);
        assert_eq!(batch.finish_packet(0), Finished::Impossible, "outside the first slot");
    }

    /// Packets whose checksum field has only the sum of the pseudo header, as Linux leaves them to a card, are detected
    /// and finished. Other packets stay unchanged.
    #[test]
    fn a_checksum_that_was_left_undone_is_found() {
        use etherparse::PacketBuilder;
        let payload: Vec<u8> = (0..101).collect();
        let start = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let tagged = || start().single_vlan(77.try_into().unwrap());
        let mut packets = vec![Vec::new(); 5];
        start().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1, 2, 3, 4).write(&mut packets[0], &payload).unwrap();
        start().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2).write(&mut packets[1], &payload).unwrap();
        start().ipv6([1; 16], [2; 16], 64).tcp(1, 2, 3, 4).write(&mut packets[2], &payload).unwrap();
        start().ipv6([1; 16], [2; 16], 64).udp(1, 2).write(&mut packets[3], &payload).unwrap();
        tagged().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1, 2, 3, 4).write(&mut packets[4], &payload).unwrap();
        let places = [(34, 16, 6), (34, 6, 17), (54, 16, 6), (54, 6, 17), (38, 16, 6)];
        for (mut packet, (transport, offset, protocol)) in packets.into_iter().zip(places) {
            assert_eq!(Offload::detect_partial_checksum(&packet), None, "a whole checksum");
            let whole = packet.clone();
            let addresses = if transport == 54 { 22..54 } else { transport - 8..transport };
            let len = (packet.len() - transport) as u16;
            let sum = !checksum([&packet[addresses], &[0, protocol], &len.to_be_bytes()]);
            packet[transport + offset..transport + offset + 2].copy_from_slice(&sum.to_be_bytes());
            let left = Offload::detect_partial_checksum(&packet).expect("it is found");
            assert!(left.finish_bytes(&mut packet));
            assert_eq!(packet, whole);
            // Truncated at any offset, the packet is not read beyond its end.
            (0..packet.len()).for_each(|len| _ = Offload::detect_partial_checksum(&packet[..len]));
            if transport == 34 {
                let mut fragment = packet.clone();
                fragment[20] = 0x20;
                fragment[transport + offset..transport + offset + 2].copy_from_slice(&sum.to_be_bytes());
                assert_eq!(Offload::detect_partial_checksum(&fragment), None, "a fragment");
            }
        }
    }

    #[test]
    fn a_description_is_read_by_its_fields() {
        let of = |flags: u8, kind: u8| {
            let mut bytes = [0; Offload::LEN];
            (bytes[0], bytes[1]) = (flags, kind);
            Offload(bytes)
        };
        for (flags, kind, needs_checksum, segmentation) in [
            (0, 0, false, Segmentation::None),
            (1, 0, true, Segmentation::None),
            (2, 0, false, Segmentation::None),
            (0xFF, 0x80, true, Segmentation::None),
            (0, 1, false, Segmentation::TcpIpv4),
            (0, 0x84, false, Segmentation::TcpIpv6),
            (0, 3, false, Segmentation::Other),
            (0, 5, false, Segmentation::Udp),
        ] {
            let offload = of(flags, kind);
            assert_eq!((offload.needs_checksum(), offload.segmentation()), (needs_checksum, segmentation));
            assert_eq!(offload.is_needed(), needs_checksum || segmentation != Segmentation::None);
        }
        let mut offload = Offload([1, 4, 100, 0, 5, 6, 0xFA, 0xFF, 7, 8]);
        offload.moved(4);
        assert_eq!(offload.0, [1, 4, 104, 0, 5, 6, 0xFE, 0xFF, 7, 8], "headers and the checksum's start");
        offload.moved(4);
        assert_eq!(offload.0[6..8], [0xFF, 0xFF], "no further than there are numbers");
        let mut unknown = Offload([1, 4, 0, 0, 5, 6, 38, 0, 7, 8]);
        unknown.moved(-4);
        assert_eq!(unknown.0, [1, 4, 0, 0, 5, 6, 34, 0, 7, 8]);
        offload.set_headers(0x1234);
        assert_eq!(offload.0, [1, 4, 0x34, 0x12, 5, 6, 0xFF, 0xFF, 7, 8]);
    }

    fn checksum_at(start: u16, place: u16) -> Offload {
        let ([a, b], [c, d]) = (start.to_le_bytes(), place.to_le_bytes());
        Offload([1, 0, 0, 0, 0, 0, a, b, c, d])
    }

    #[test]
    fn a_checksum_is_stored_inside_the_packet_or_not_at_all() {
        assert_eq!(checksum_at(34, 16).checksum_offsets(52), Some((34, 50)));
        assert_eq!(checksum_at(34, 16).checksum_offsets(51), None);
        assert_eq!(checksum_at(u16::MAX, u16::MAX).checksum_offsets(LONGEST), None);
        let mut bytes = [1; 52];
        assert!(!checksum_at(34, 17).finish_bytes(&mut bytes) && bytes == [1; 52]);
        assert!(!checksum_at(52, 0).finish_bytes(&mut bytes) && bytes == [1; 52]);
        assert!(checksum_at(34, 16).finish_bytes(&mut bytes));
        // Nine words of 0x0101.
        assert_eq!(bytes[50..], (!(9 * 0x0101u16)).to_be_bytes());
        assert_eq!(bytes[..50], [1; 50]);
        let none = Offload([0, 0, 0, 0, 0, 0, 34, 0, 17, 0]);
        assert!(none.finish_bytes(&mut bytes), "nothing is to be done");
        // A sum of 0 is stored as 0xFFFF.
        let mut zero = [0xFF, 0xFF, 0, 0];
        assert!(checksum_at(0, 2).finish_bytes(&mut zero));
        assert_eq!(zero, [0xFF; 4]);
    }

    #[test]
    fn a_checksum_is_the_same_however_its_bytes_are_parted() {
        let bytes: Vec<u8> = (0..999u32).map(|n| (n * n + 7) as u8).collect();
        let whole = checksum([&bytes[..]]);
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        assert_eq!(whole, !words.fold(0, |sum, word| (sum + word) % 0xFFFF) as u16);
        for (a, b) in [(1, 2), (1, 3), (2, 5), (3, 4), (0, 7), (333, 700), (1, 1)] {
            assert_eq!(checksum([&bytes[..a], &bytes[a..b], &bytes[b..]]), whole, "{a} and {b}");
        }
        assert_eq!(checksum([&[0xFF; 2][..]]), 0);
        assert_eq!(checksum([&[0xFF; 60_000][..], &[0, 1]]), !1);
        assert_eq!(checksum([]), 0xFFFF);
    }

    /// TCP with and without VLAN tags, with headers of `transport + 20` bytes. One byte less is rejected.
    #[test]
    fn headers_that_are_too_short_are_not_cut() {
        for (is_v4, tag, transport) in [(true, 0, 34), (true, 4, 38), (false, 0, 54), (false, 4, 58), (true, 8, 42)] {
            let mut packet = vec![0; transport + 20 + 100];
            (0..tag).step_by(4).for_each(|tag| packet[12 + tag..14 + tag].copy_from_slice(&[0x81, 0]));
            let network: [u8; 3] = if is_v4 { [8, 0, 0x45] } else { [0x86, 0xDD, 0x60] };
            packet[12 + tag..15 + tag].copy_from_slice(&network);
            packet[transport + 12] = 5 << 4;
            packet[transport + 13] = 0xFF;
            let todo = |transport: usize, size: u16| {
                let ([a, b], [c, d]) = (size.to_le_bytes(), (transport as u16).to_le_bytes());
                Offload([1, if is_v4 { 1 } else { 4 }, 0, 0, a, b, c, d, 16, 0])
            };
            let count = |packet: &[u8], todo: Offload| {
                let (mut lens, mut flags) = (Vec::new(), Vec::new());
                let is_cut = cut(packet, todo, |segment| {
                    lens.push(segment.len() - transport - 20);
                    flags.push(segment[transport + 13]);
                });
                (is_cut, lens, flags)
            };
            let refused = (false, vec![], vec![]);
            assert_eq!(count(&packet, todo(transport, 40)), (true, vec![40, 40, 20], vec![0xF6, 0x76, 0x7F]));
            assert_eq!(count(&packet, todo(transport, 100)), (true, vec![100], vec![0xFF]));
            assert_eq!(count(&packet, todo(transport, 0)), refused, "segments of nothing");
            assert_eq!(count(&packet, todo(transport - 1, 40)), refused, "no room for IP's header");
            assert_eq!(count(&packet[..transport + 20], todo(transport, 40)), refused, "no payload");
            assert_eq!(count(&packet[..transport + 21], todo(transport, 40)), (true, vec![1], vec![0xFF]));
            assert_eq!(count(&packet[..transport + 12], todo(transport, 40)), refused, "no TCP");
            packet[transport + 12] = 4 << 4;
            assert_eq!(count(&packet, todo(transport, 40)), refused, "TCP's header has 20 bytes at least");
            packet[transport + 12] = 15 << 4;
            assert_eq!(count(&packet[..transport + 60], todo(transport, 40)), refused, "it reaches to the end");
            for kind in [0, 3, if is_v4 { 4 } else { 1 }] {
                let mut other = todo(transport, 40);
                other.0[1] = kind;
                assert_eq!(count(&packet, other), refused, "kind {kind}");
            }
        }
    }
}
