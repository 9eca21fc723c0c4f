//! Edits frames of captures: addresses, ports, VLAN tags, header fields and lengths. Checksums follow.
//!
//! - `rules`: the rules and their notation; `headers`: finds the headers of a frame
//! - `ends`: the two ends of a packet
//! - `checksums`: corrects the checksums; `fit`: truncates or fragments frames
//! - here: applies the rules to a frame

mod checksums;
mod ends;
mod fit;
mod headers;
mod rules;

use checksums::{Changes, Checksums};
pub use ends::Ends;
pub use fit::Fit;
use fit::Fragmented;
use headers::{Headers, IpPacket, SCTP, TCP, UDP, word};
pub use rules::{AddressMap, Fields, PortMap, Tag};

use crate::template::{Protocol, set_bits};

/// The rules of an [`Editor`]. The default changes no frame.
#[derive(Clone, Debug, Default)]
pub struct EditRules {
    /// Maps addresses in IP headers, IPv6 routing headers, ARP, neighbour discovery, and in the packet that an ICMP
    /// error contains; MAC addresses in Ethernet headers, ARP and neighbour discovery. The first that matches an
    /// address is used.
    pub addresses: Vec<AddressMap>,
    /// Maps ports of TCP, UDP and SCTP, also in the packet that an ICMP error contains.
    pub ports: Vec<PortMap>,
    /// Sets fields.
    pub fields: Vec<Fields>,
    /// Maps and sets in the packets inside tunnels (GRE, VXLAN, GTP-U, IP in IP), and not in other packets.
    pub inner: bool,
    /// Removes this many VLAN tags, beginning with the outermost.
    pub pop: usize,
    /// Inserts tags; the last becomes the outermost.
    pub push: Vec<Tag>,
    /// Shortens frames.
    pub fit: Option<Fit>,
    /// Also corrects checksums that were wrong before.
    pub fix_checksums: bool,
    /// Gives each pair of IP addresses other addresses in each pass: see [`Editor::begin_pass`].
    pub unique_addresses: bool,
}

impl EditRules {
    /// Returns whether the rules change no frame.
    pub fn is_empty(&self) -> bool {
        // Without a map or a field, `inner` has no meaning.
        let EditRules { addresses, ports, fields, inner: _, pop, push, fit, fix_checksums, unique_addresses } = self;
        addresses.is_empty()
            && ports.is_empty()
            && fields.is_empty()
            && *pop == 0
            && push.is_empty()
            && fit.is_none()
            && !fix_checksums
            && !unique_addresses
    }
}

/// The counts of an [`Editor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EditCounts {
    /// Frames that were edited or not.
    pub frames: u64,
    /// Frames that changed.
    pub changed: u64,
    /// Frames that end within their headers, so that what follows could not be edited.
    pub incomplete_headers: u64,
    /// Changed frames with a checksum that depends on bytes that the capture does not have.
    pub unknown_checksums: u64,
    /// Frames that were truncated to the MTU, and fragmented, and the number of their fragments.
    pub truncated: u64,
    /// See `truncated`.
    pub fragmented: u64,
    /// See `truncated`.
    pub fragments: u64,
    /// Frames longer than the MTU that could not be fragmented.
    pub too_long: u64,
}

/// Edits frames that begin with an Ethernet header.
///
/// ```
/// use linerate::traffic::{EditRules, Editor};
///
/// let rules = EditRules { addresses: vec!["10.0.0.0/8=198.18.0.0/15".parse().unwrap()], ..EditRules::default() };
/// let mut editor = Editor::new(rules);
/// let mut frame = vec![0; 60];
/// frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);           // IPv4
/// frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 1, 0, 2]);
/// editor.edit(&mut frame, 60, |bytes, len| {
///     assert_eq!((&bytes[26..34], len), (&[198, 18, 0, 1, 198, 19, 0, 2][..], 60));
/// });
/// assert_eq!(editor.counts().changed, 1);
/// ```
#[derive(Debug)]
pub struct Editor {
    rules: EditRules,
    counts: EditCounts,
    /// The frame before the edit.
    before: Vec<u8>,
    /// The identification of the next fragmented packet that has none.
    next_id: u32,
    /// The difference of addresses to the first pass.
    shift: u32,
}

impl Editor {
    /// Creates an editor.
    pub fn new(rules: EditRules) -> Editor {
        Editor { rules, counts: EditCounts::default(), before: Vec::new(), next_id: 1, shift: 0 }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> EditCounts {
        self.counts
    }

    /// Begins pass number `pass` over the same frames, from 0. With unique addresses, the lower address of each packet
    /// is decreased by `pass`, and the higher is increased. Both directions of a flow remain one flow.
    pub fn begin_pass(&mut self, pass: u32) {
        if self.rules.unique_addresses {
            self.shift = pass;
        }
    }

    /// Edits a frame of `original_len` bytes, of which `frame` has the captured bytes. `each` gets the captured bytes
    /// and the length of the frame, or of each of its fragments. Any bytes are accepted; the contents of `frame`
    /// afterwards are not specified.
    pub fn edit(&mut self, frame: &mut Vec<u8>, original_len: usize, mut each: impl FnMut(&[u8], usize)) {
        let mut original_len = original_len.max(frame.len());
        self.before.clear();
        self.before.extend_from_slice(frame);
        self.change_tags(frame, &mut original_len);
        let all = match self.rules.inner {
            true => Headers::with_tunnels(frame, original_len),
            false => vec![Headers::of(frame, original_len)],
        };
        let headers = &all[0];
        let checksums = Checksums::of(frame, &all);
        let mut given = Vec::new();
        if let Some(edited) = all.last().filter(|_| all.len() > usize::from(self.rules.inner)) {
            given = self.set_fields(frame, edited);
            self.map(frame, edited);
        }
        let is_truncated = self.truncate(frame, &mut original_len, headers);
        let changes = Changes { is_cut: is_truncated, fixes: self.rules.fix_checksums, given: &given };
        let are_right = checksums.correct(frame, &changes);
        self.counts.frames += 1;
        self.counts.incomplete_headers += u64::from(all.iter().any(|headers| headers.is_cut));
        self.counts.unknown_checksums += u64::from(!are_right);
        let fragmented = match self.rules.fit {
            Some(Fit::Fragment(mtu)) => fit::fragment(frame, original_len, headers, mtu, &mut self.next_id, &mut each),
            _ => Fragmented::Fits,
        };
        self.counts.changed +=
            u64::from(*frame != self.before || is_truncated || matches!(fragmented, Fragmented::Into(_)));
        match fragmented {
            Fragmented::Into(count) => {
                self.counts.fragmented += u64::from(count > 1);
                self.counts.fragments += if count > 1 { count } else { 0 };
            }
            Fragmented::TooLong => {
                self.counts.too_long += 1;
                each(frame, original_len);
            }
            Fragmented::Fits => each(frame, original_len),
        }
    }

    /// Removes and inserts VLAN tags.
    fn change_tags(&self, frame: &mut Vec<u8>, original_len: &mut usize) {
        for _ in 0..self.rules.pop {
            if frame.len() >= 16 && matches!(word(frame, 12), Some(0x8100 | 0x88A8 | 0x9100)) {
                frame.drain(12..16);
                *original_len -= 4;
            }
        }
        if frame.len() >= 12 {
            for Tag(tag) in &self.rules.push {
                frame.splice(12..12, *tag);
                *original_len += 4;
            }
        }
    }

    /// Sets fields; returns the offsets of the checksums among them.
    fn set_fields(&self, frame: &mut [u8], headers: &Headers) -> Vec<usize> {
        let mut given = Vec::new();
        for set in self.rules.fields.iter().flat_map(|fields| &fields.0) {
            for (_, at) in headers.layers.iter().filter(|(protocol, _)| *protocol == set.protocol) {
                let (bit, bits) = (set.field.bit, usize::from(set.field.bits));
                let Some(header) = frame.get_mut(*at..*at + (bit + bits).div_ceil(8)) else { continue };
                let value = set.value(bits_of(header, bit, bits));
                set_bits(header, bit, bits, value);
                given.extend(set.is_checksum().then_some(at + bit / 8));
            }
        }
        given
    }

    /// Maps addresses and ports.
    fn map(&self, frame: &mut [u8], headers: &Headers) {
        self.map_addresses(frame, headers.ethernet.into_iter().flat_map(|at| [at, at + 6]), 6);
        if let Some(arp) = headers.arp {
            self.map_addresses(frame, [arp + 8, arp + 18], 6);
            self.map_addresses(frame, [arp + 14, arp + 24], 4);
        }
        for packet in headers.packet.iter().chain(&headers.embedded) {
            self.shift_addresses(frame, packet);
            let (addresses, len) = packet.addresses();
            self.map_addresses(frame, addresses, len);
            if let Some((TCP | UDP | SCTP, at)) = packet.transport {
                self.map_ports(frame, at);
            }
        }
        if let (Some(packet), Some((Protocol::Icmp6, at))) = (&headers.packet, headers.layers.last()) {
            let end = (packet.at + packet.len).min(frame.len());
            self.map_neighbours(&mut frame[..end], *at);
        }
    }

    /// Maps the addresses of `len` bytes at these offsets.
    fn map_addresses(&self, frame: &mut [u8], offsets: impl IntoIterator<Item = usize>, len: usize) {
        let mut maps = self.rules.addresses.iter().filter(|map| map.len == len).peekable();
        if maps.peek().is_none() {
            return;
        }
        for at in offsets {
            let Some(bytes) = frame.get_mut(at..at + len) else { continue };
            let address = bits_of(bytes, 0, len * 8);
            if let Some(new) = maps.clone().find_map(|map| map.new_of(address)) {
                set_bits(bytes, 0, len * 8, new);
            }
        }
    }

    fn map_ports(&self, frame: &mut [u8], transport: usize) {
        for at in [transport, transport + 2] {
            let new = word(frame, at).and_then(|port| self.rules.ports.iter().find_map(|map| map.new_of(port)));
            if let Some(new) = new {
                frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
            }
        }
    }

    /// Maps the addresses in messages of neighbour discovery (RFC 4861, section 4).
    fn map_neighbours(&self, packet: &mut [u8], at: usize) {
        let (addresses, options) = match packet.get(at) {
            Some(133) => (0, 8),
            Some(134) => (0, 16),
            Some(135 | 136) => (1, 24),
            Some(137) => (2, 40),
            _ => return,
        };
        self.map_addresses(packet, [at + 8, at + 24].into_iter().take(addresses), 16);
        let mut at = at + options;
        while let Some([kind, units]) = packet.get(at..at + 2).and_then(|option| option.first_chunk().copied()) {
            let len = usize::from(units) * 8;
            match (kind, len) {
                (_, 0) => return,
                // A link-layer address, and a prefix.
                (1 | 2, 8) => self.map_addresses(packet, [at + 2], 6),
                (3, 32) => self.map_addresses(packet, [at + 16], 16),
                _ => {}
            }
            at += len;
        }
    }

    /// Changes the addresses of a packet by the pass.
    fn shift_addresses(&self, frame: &mut [u8], packet: &IpPacket) {
        let (first, len) = if packet.is_v6 { (packet.at + 8, 16) } else { (packet.at + 12, 4) };
        if self.shift == 0 || frame.len() < first + 2 * len {
            return;
        }
        let (source, destination) = frame[first..first + 2 * len].split_at_mut(len);
        let is_source_lower = destination[len - 4..] > source[len - 4..];
        let (lower, higher) = if is_source_lower { (source, destination) } else { (destination, source) };
        for (address, shift) in [(lower, self.shift.wrapping_neg()), (higher, self.shift)] {
            if let Some(last) = address.last_chunk_mut::<4>() {
                *last = u32::from_be_bytes(*last).wrapping_add(shift).to_be_bytes();
            }
        }
    }

    /// Truncates a frame to the MTU. Returns whether its IP packet has become shorter.
    fn truncate(&mut self, frame: &mut Vec<u8>, original_len: &mut usize, headers: &Headers) -> bool {
        let Some(Fit::Truncate(mtu)) = self.rules.fit else { return false };
        let before = *original_len;
        let is_shorter = fit::truncate(frame, original_len, headers, mtu);
        self.counts.truncated += u64::from(*original_len < before);
        is_shorter
    }
}

/// Returns `bits` bits that begin at bit `bit`.
fn bits_of(bytes: &[u8], bit: usize, bits: usize) -> u128 {
    (bit..bit + bits).fold(0, |value, at| value << 1 | u128::from(bytes[at / 8] >> (7 - at % 8) & 1))
}

#[cfg(test)]
mod tests;
