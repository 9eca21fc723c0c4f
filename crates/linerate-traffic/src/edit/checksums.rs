//! The checksums of a frame, corrected after an edit.
//!
//! A checksum is updated from the difference of the bytes that it covers (RFC 1624), so bytes that the capture has cut
//! off are not needed. If bytes are removed, it is computed from all others. The same applies to the CRC of SCTP.

use super::headers::{DCCP, GRE, Headers, ICMP, ICMP6, IpPacket, SCTP, TCP, UDP, UDP_LITE, word};
use crate::checksum::{complement, folded, sum_of};

/// A checksum of a packet.
struct Scope<'a> {
    packet: &'a IpPacket,
    /// The protocol of the transport header; `None` for the IPv4 header.
    protocol: Option<u8>,
    is_embedded: bool,
    /// The offset of the checksum, and of the header that contains it.
    at: usize,
    start: usize,
    /// The checksum, and the sum of the covered bytes, before the edit.
    value: u16,
    sum: u16,
    /// The sender left it to its card: it is the sum of the pseudo header.
    is_partial: bool,
}

/// The checksums of a frame, from the innermost to the outermost; and the CRCs of SCTP, which those may cover.
pub(super) struct Checksums<'a> {
    sums: Vec<Scope<'a>>,
    crcs: Vec<Crc>,
}

/// The CRC of an SCTP packet (RFC 9260, section 6.8).
struct Crc {
    /// The offset of the packet, and its end according to the IP header; `None` for a fragment, whose CRC covers the
    /// others, too.
    at: usize,
    end: Option<usize>,
    /// The captured bytes before the edit.
    before: Vec<u8>,
}

/// A frame's changes, as far as they matter for checksums.
pub(super) struct Changes<'a> {
    /// The end of the packet was removed.
    pub is_cut: bool,
    /// Wrong checksums are corrected, too.
    pub fixes: bool,
    /// The offsets of checksums that were set to a value.
    pub given: &'a [usize],
}

impl<'a> Checksums<'a> {
    /// Finds the checksums of a frame before it is edited. `all` has its headers, and those inside its tunnels.
    pub fn of(frame: &[u8], all: &'a [Headers]) -> Checksums<'a> {
        let packets = all.iter().rev().flat_map(|headers| {
            let embedded = headers.embedded.iter().map(|packet| (packet, true));
            embedded.chain(headers.packet.iter().map(|packet| (packet, false)))
        });
        let (mut sums, mut crcs) = (Vec::new(), Vec::new());
        for (packet, is_embedded) in packets {
            sums.extend(Scope::of_header(frame, packet, is_embedded));
            sums.extend(Scope::of_transport(frame, packet, is_embedded));
            crcs.extend(Crc::before(frame, packet));
        }
        Checksums { sums, crcs }
    }

    /// Corrects the checksums of the edited frame. Returns whether all of them are known to be as right as before, or
    /// right if `fixes` is set.
    pub fn correct(&self, frame: &mut [u8], changes: &Changes) -> bool {
        let mut are_right = true;
        for crc in &self.crcs {
            are_right &= crc.correct(frame, changes);
        }
        for scope in self.sums.iter().filter(|scope| !changes.given.contains(&scope.at)) {
            are_right &= scope.correct(frame, changes);
        }
        are_right
    }
}

impl Crc {
    /// The offset of the CRC in a packet.
    const AT: usize = 8;

    /// Remembers a packet before the edit; `None` if it is not SCTP, or its CRC is not in the frame.
    fn before(frame: &[u8], packet: &IpPacket) -> Option<Crc> {
        let (SCTP, at) = packet.transport? else { return None };
        let end = (packet.len > 0).then_some(packet.at + packet.len);
        let captured = frame.get(at..end.unwrap_or(frame.len()).min(frame.len()));
        let before = captured.filter(|bytes| bytes.len() >= Crc::AT + 4)?.to_vec();
        Some(Crc { at, end: end.filter(|_| !packet.is_fragment), before })
    }

    fn correct(&self, frame: &mut [u8], changes: &Changes) -> bool {
        let Some(after) = frame.get_mut(self.at..) else { return true };
        let (before, len) = (&self.before[..], self.before.len().min(after.len()));
        let is_changed = before[..len] != after[..len];
        if !is_changed && !changes.is_cut && !changes.fixes {
            return true;
        }
        let Some(end) = self.end.filter(|_| !changes.is_cut) else { return false };
        let whole = end - self.at;
        let is_complete = len == whole;
        let crc = match changes.fixes {
            true if is_complete => {
                let zeroed = (0..len).map(|at| if (Crc::AT..Crc::AT + 4).contains(&at) { 0 } else { after[at] });
                !crc32c(u32::MAX, zeroed)
            }
            true => return false,
            // A CRC is linear, so what the capture lacks does not matter: the bytes are the same before and after.
            false => {
                let difference = (0..whole).map(|at| match (before.get(at), after.get(at)) {
                    (Some(before), Some(after)) if !(Crc::AT..Crc::AT + 4).contains(&at) => before ^ after,
                    _ => 0,
                });
                let old = before[Crc::AT..].first_chunk().copied().map_or(0, u32::from_le_bytes);
                old ^ crc32c(0, difference)
            }
        };
        after[Crc::AT..Crc::AT + 4].copy_from_slice(&crc.to_le_bytes());
        true
    }
}

/// Continues the CRC of Castagnoli over bytes, without the final complement.
fn crc32c(crc: u32, bytes: impl Iterator<Item = u8>) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    bytes.fold(crc, |crc, byte| (0..8).fold(crc ^ u32::from(byte), step))
}

impl<'a> Scope<'a> {
    fn of_header(frame: &[u8], packet: &'a IpPacket, is_embedded: bool) -> Option<Scope<'a>> {
        if packet.is_v6 {
            return None;
        }
        Scope {
            packet,
            protocol: None,
            is_embedded,
            at: packet.at + 10,
            start: packet.at,
            value: 0,
            sum: 0,
            is_partial: false,
        }
        .before(frame)
    }

    fn of_transport(frame: &[u8], packet: &'a IpPacket, is_embedded: bool) -> Option<Scope<'a>> {
        let (protocol, start) = packet.transport?;
        let at = start
            + match protocol {
                ICMP if !packet.is_v6 => 2,
                ICMP6 if packet.is_v6 => 2,
                TCP => 16,
                UDP | DCCP | UDP_LITE => 6,
                // With a checksum (RFC 2784).
                GRE if word(frame, start)? & 0x8000 != 0 => 4,
                _ => return None,
            };
        Scope { packet, protocol: Some(protocol), is_embedded, at, start, value: 0, sum: 0, is_partial: false }
            .before(frame)
    }

    /// Adds the state before the edit; `None` if the checksum is not in the frame.
    fn before(mut self, frame: &[u8]) -> Option<Scope<'a>> {
        let is_inside = self.is_embedded || self.packet_end(frame) >= self.at + 2;
        if !is_inside || frame.len() < self.at + 2 {
            return None;
        }
        self.value = word(frame, self.at)?;
        self.sum = self.sum_of_captured(frame);
        self.is_partial = matches!(self.protocol, Some(TCP | UDP))
            && !self.is_embedded
            && self.value == self.pseudo_sum(frame)
            && !(self.is_complete(frame) && self.computed(frame) == self.value);
        Some(self)
    }

    /// Returns the end of the packet according to its present header.
    fn packet_end(&self, frame: &[u8]) -> usize {
        let (at, around) = if self.packet.is_v6 { (4, 40) } else { (2, 0) };
        match word(frame, self.packet.at + at) {
            Some(len) if len > 0 => self.packet.at + around + usize::from(len),
            _ => frame.len(),
        }
    }

    /// Returns the end of the covered bytes that are in the frame. An embedded packet is edited only up to its ports.
    fn end(&self, frame: &[u8]) -> usize {
        let end = match self.protocol {
            None => self.packet.fixed_end,
            Some(_) if self.is_embedded => self.at + 2,
            Some(_) => self.packet_end(frame),
        };
        end.max(self.at + 2).min(frame.len())
    }

    /// Returns whether all covered bytes are in the frame.
    fn is_complete(&self, frame: &[u8]) -> bool {
        match self.protocol {
            None => self.packet.fixed_end <= frame.len(),
            Some(DCCP | UDP_LITE) => false,
            Some(_) => !self.is_embedded && !self.packet.is_fragment && self.packet_end(frame) <= frame.len(),
        }
    }

    /// Returns the sum of the addresses in the pseudo header.
    fn addresses(&self, frame: &[u8]) -> u64 {
        let (source, len) = if self.packet.is_v6 { (self.packet.at + 8, 16) } else { (self.packet.at + 12, 4) };
        let address = |at: usize| frame.get(at..at + len).map_or(0, sum_of);
        match self.protocol {
            None => 0,
            Some(ICMP | GRE) => 0,
            Some(_) => address(source) + address(self.packet.final_destination),
        }
    }

    /// Returns the sum of the pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1).
    fn pseudo_sum(&self, frame: &[u8]) -> u16 {
        let rest = match self.protocol {
            None | Some(ICMP | GRE) => 0,
            Some(protocol) => u64::from(protocol) + self.packet_end(frame).saturating_sub(self.start) as u64,
        };
        !complement(folded(self.addresses(frame) + rest), false)
    }

    /// Returns the sum of the captured bytes that it covers, without itself, and of the addresses.
    fn sum_of_captured(&self, frame: &[u8]) -> u16 {
        let value = word(frame, self.at).map_or(0, u64::from);
        !complement(folded(self.addresses(frame) + sum_of(&frame[self.start..self.end(frame)]) - value), false)
    }

    /// Returns the checksum of a frame that has all bytes.
    fn computed(&self, frame: &[u8]) -> u16 {
        let value = word(frame, self.at).map_or(0, u64::from);
        let sum = u64::from(self.pseudo_sum(frame)) + sum_of(&frame[self.start..self.end(frame)]) - value;
        complement(folded(sum), self.protocol == Some(UDP))
    }

    fn correct(&self, frame: &mut [u8], changes: &Changes) -> bool {
        // Without a checksum (RFC 768), or removed.
        if self.protocol == Some(UDP) && self.value == 0 || frame.len() < self.at + 2 {
            return true;
        }
        let is_cut = changes.is_cut && !self.is_embedded && self.protocol.is_some();
        if !is_cut && !changes.fixes && self.sum == self.sum_of_captured(frame) {
            return true;
        }
        let checksum = match self.is_complete(frame) {
            true if is_cut || changes.fixes || self.is_partial => self.computed(frame),
            false if is_cut => return false,
            _ if self.is_partial => self.pseudo_sum(frame),
            // RFC 1624, equation 3.
            _ => {
                let sum = u32::from(!self.value) + u32::from(!self.sum) + u32::from(self.sum_of_captured(frame));
                complement(sum, matches!(self.protocol, Some(UDP | UDP_LITE)))
            }
        };
        frame[self.at..self.at + 2].copy_from_slice(&checksum.to_be_bytes());
        !changes.fixes || self.is_complete(frame) || self.is_embedded
    }
}
