//! The packets of a batch, as a program sees them: bytes.

use crate::memory::{Region, View};
use crate::offload::Offload;
use crate::slot::Slot;

/// The iterator over a batch's slots' bytes.
pub struct Bytes<'a> {
    slots: std::slice::IterMut<'a, Slot>,
    view: View<'a>,
}

impl<'a> Bytes<'a> {
    #[inline(always)]
    pub(crate) fn new(slots: &'a mut [Slot], view: View<'a>) -> Bytes<'a> {
        Bytes { slots: slots.iter_mut(), view }
    }
}

impl<'a> Iterator for Bytes<'a> {
    type Item = &'a mut [u8];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a mut [u8]> {
        let view = self.view;
        self.slots.next().map(|slot| view.bytes_mut(slot))
    }
}

/// The iterator over a batch's packets.
pub struct Packets<'a> {
    slots: &'a mut [Slot],
    view: View<'a>,
}

impl<'a> Packets<'a> {
    pub(crate) fn new(slots: &'a mut [Slot], view: View<'a>) -> Packets<'a> {
        Packets { slots, view }
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    fn next(&mut self) -> Option<Packet<'a>> {
        let slots = std::mem::take(&mut self.slots);
        if slots.is_empty() {
            return None;
        }
        let count = slots.iter().position(|slot| !slot.has_more()).map_or(slots.len(), |last| last + 1);
        let (packet, rest) = slots.split_at_mut(count);
        self.slots = rest;
        Some(Packet { slots: packet, view: self.view })
    }
}

/// Where a buffer has a packet's timestamp; what is to be done with it stands in front ([`Offload`]).
const STAMP: usize = 16;

/// Notes when a packet came, of which this is the first slot.
pub(crate) fn stamp(first: &mut Slot, region: &Region, nanoseconds: u64) {
    first.set_stamped();
    region.mapping().write(((first.buf() as usize) << region.shift()) + STAMP, &nanoseconds.to_ne_bytes());
}

/// One packet of a batch: its bytes lie in one slot or, if it is longer than a buffer, in several.
pub struct Packet<'a> {
    slots: &'a mut [Slot],
    view: View<'a>,
}

impl Packet<'_> {
    /// Bytes in all slots.
    #[allow(clippy::len_without_is_empty)] // a frame is never empty
    pub fn len(&self) -> usize {
        self.slots.iter().map(Slot::len).sum()
    }

    /// In how many slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The bytes, slot by slot.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.iter().map(|slot| self.view.bytes(slot))
    }

    /// When it came, in nanoseconds of the system's time (since 1970), where the port was opened with
    /// [timestamps](crate::Options::timestamps).
    pub fn timestamp(&self) -> Option<u64> {
        let first = self.slots.first().filter(|slot| slot.is_stamped())?;
        self.view.notes(first)[STAMP..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    }

    /// What is still to be done with it; `region` is the batch's.
    pub(crate) fn offload(&self, region: &Region) -> Option<Offload> {
        Offload::of(&self.slots[0], region)
    }

    /// The bytes of the first slot, where the headers are.
    pub fn first_mut(&mut self) -> &mut [u8] {
        self.view.bytes_mut(&mut self.slots[0])
    }

    /// Appends all bytes to `bytes`.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        self.segments().for_each(|segment| bytes.extend_from_slice(segment));
    }
}
