//! Context descriptors: they tell the card where the headers are of a packet whose checksum or segmentation is left to
//! it (7.2.3.2.3, 7.2.4, 7.2.5).

use linerate_core::memory::View;
use linerate_core::metadata::Metadata;
use linerate_core::offload::{Headers, Offload, Segmentation};
use linerate_core::slot::Slot;
use linerate_spec::descriptor::transmit;

use super::format::TransmitFormat;

/// The offloads of a packet, as the card needs them.
pub struct CardOffload {
    headers: Headers,
}

impl CardOffload {
    /// Returns the offloads of a packet of `len` bytes, if a card with format `F` can do them. `first` are the packet's
    /// bytes in its first buffer. `longest` is the longest frame.
    pub fn of<F: TransmitFormat>(first: &[u8], len: usize, offload: Offload, longest: usize) -> Option<CardOffload> {
        let headers = match offload.segmentation() {
            Segmentation::None => Headers::of_checksum(first, offload).filter(|_| len <= longest)?,
            _ => Headers::of(first, len, offload)
                .filter(|headers| headers.len < len && headers.len + headers.size <= longest)?,
        };
        F::supports(&headers).then_some(CardOffload { headers })
    }

    /// Returns whether the card segments the packet.
    pub fn is_segmented(&self) -> bool {
        self.headers.size > 0
    }

    /// Returns the words of the context descriptor.
    pub fn context<F: TransmitFormat>(&self) -> [u64; 2] {
        F::context(&self.headers)
    }

    /// Returns the bits that the packet's data descriptors have in addition.
    pub fn options(&self) -> u64 {
        match (self.is_segmented(), self.headers.is_v4) {
            (false, _) => transmit::TXSM,
            (true, false) => transmit::TXSM | transmit::TSE,
            (true, true) => transmit::TXSM | transmit::TSE | transmit::IXSM,
        }
    }

    /// Returns PAYLEN of a packet of `len` bytes: the card does not count the headers of a packet that it segments.
    pub fn payload_len(&self, len: usize) -> usize {
        if self.is_segmented() { len - self.headers.len } else { len }
    }

    /// Prepares the headers in the packet's first buffer. The checksum of a packet that is not segmented already has
    /// the pseudo header's sum.
    pub fn prepare(&self, first: &mut [u8]) {
        if self.is_segmented() {
            self.headers.prepare_for_card(first);
        }
    }
}

/// Recognises packets in one buffer that can share a context: they have the same pending checksum and the same headers
/// as an earlier packet, without VLAN tags. Comparing is faster than parsing.
#[derive(Clone, Copy)]
pub struct Alike {
    offload: Offload,
    /// Bytes 12 to 15: the ethertype and, of IPv4, the header's length.
    begin: u32,
    /// The position and value of the protocol.
    protocol: (usize, u8),
    /// The packet contains at least the checksum.
    shortest: usize,
}

/// The ethertype, and the first byte of the IP header; the next byte is the class of traffic.
const BEGIN: u32 = u32::from_be_bytes([0xFF, 0xFF, 0xFF, 0]);

impl Alike {
    /// Returns the value for a packet whose checksum is left to the card; `None` if packets like it must be parsed.
    pub fn of(card: &CardOffload, offload: Offload, first: &[u8]) -> Option<Alike> {
        let Headers { network, is_v4, .. } = card.headers;
        let (_, place) = offload.checksum_offsets(first.len())?;
        let at = if is_v4 { 23 } else { 20 };
        let begin = u32::from_be_bytes(*first.get(12..)?.first_chunk()?) & BEGIN;
        (network == 14 && !card.is_segmented()).then_some(())?;
        Some(Alike { offload, begin, protocol: (at, *first.get(at)?), shortest: place + 2 })
    }

    /// Returns whether the packet of a slot is like the earlier one. The slot is of the view's region.
    #[inline(always)]
    pub fn includes(&self, slot: &Slot, view: View<'_>) -> bool {
        let bytes = view.bytes(slot);
        let begin = bytes.get(12..16).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & BEGIN);
        let (at, protocol) = self.protocol;
        bytes.len() >= self.shortest
            && begin == Some(self.begin)
            && bytes.get(at) == Some(&protocol)
            && !slot.has_more()
            && Offload::of(slot, view) == Some(self.offload)
            && !Metadata::wants_time(slot, view)
    }
}
