//! Packets of a batch whose destinations are decided together.
#![allow(unsafe_code)]

use std::sync::Arc;

use linerate_core::memory::{Pool, View};
use linerate_core::slot::Slot;

/// The most packets per decision: one bit each in a 64-bit word.
pub const CHUNK: usize = 64;

/// Packets that arrived together, seen as the bytes of their first buffers, which contain the headers.
pub struct Frames<'a> {
    pub(in crate::netmap) pool: &'a Arc<Pool>,
    pub(in crate::netmap) view: View<'a>,
    slots: &'a [Slot],
    /// Packet `n` occupies the slots from `starts[n]` to `starts[n + 1]`; `None` if each packet has one slot.
    starts: Option<&'a Starts>,
    len: usize,
}

/// The index of each packet's first slot, and the end of the last packet.
pub(in crate::netmap) type Starts = [u32; CHUNK + 1];

/// Fills `starts` for up to [`CHUNK`] packets; returns their number.
#[cold]
fn find_starts(slots: &[Slot], starts: &mut Starts) -> usize {
    let (mut len, ends) = (0, slots.iter().enumerate().filter(|(_, slot)| !slot.has_more()));
    starts[0] = 0;
    for (last, _) in ends.take(CHUNK) {
        len += 1;
        starts[len] = last as u32 + 1;
    }
    len
}

impl<'a> Frames<'a> {
    /// Views the first packets of these slots, at most [`CHUNK`]. `starts` is storage for their starts.
    #[inline(always)]
    pub(in crate::netmap) fn new(slots: &'a [Slot], pool: &'a Arc<Pool>, starts: &'a mut Starts) -> Frames<'a> {
        let first = &slots[..slots.len().min(CHUNK)];
        let has_chains = first.iter().fold(false, |any, slot| any | slot.has_more());
        let len = if has_chains { find_starts(slots, starts) } else { first.len() };
        // SAFETY: the view is used only with these slots, which are of this pool.
        let view = unsafe { pool.region().view() };
        Frames { pool, view, slots, starts: has_chains.then_some(starts), len }
    }

    /// Returns the number of packets.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // there is at least one packet
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of slots.
    pub(in crate::netmap) fn slot_count(&self) -> usize {
        self.starts.map_or(self.len, |starts| starts[self.len] as usize)
    }

    /// Returns the slots if each packet has exactly one.
    #[inline(always)]
    pub(in crate::netmap) fn single_slots(&self) -> Option<&[Slot]> {
        self.starts.is_none().then(|| &self.slots[..self.len])
    }

    /// Returns the slots of packet `n`.
    #[inline(always)]
    pub(in crate::netmap) fn slots(&self, n: usize) -> &[Slot] {
        match self.starts {
            None => &self.slots[n..=n],
            Some(starts) => &self.slots[starts[n] as usize..starts[n + 1] as usize],
        }
    }

    /// Returns the bytes of packet `n` if it has one slot and no offload is left to do.
    #[inline(always)]
    pub(crate) fn single_finished(&self, n: usize) -> Option<&[u8]> {
        let slot = &self.slots(n)[0];
        (slot.whole_len() == slot.len()).then(|| self.view.bytes(slot))
    }

    /// Returns the slots of packet `n`, and their pool.
    pub(crate) fn packet(&self, n: usize) -> (&[Slot], &Arc<Pool>) {
        (self.slots(n), self.pool)
    }

    /// Returns the bytes of packet `n` in its first buffer.
    ///
    /// # Panics
    /// If there is no such packet.
    #[inline(always)]
    pub fn get(&self, n: usize) -> &[u8] {
        self.view.bytes(&self.slots(n)[0])
    }

    /// Returns whether a switch may learn the source address of packet `n`.
    ///
    /// # Panics
    /// If there is no such packet.
    #[inline(always)]
    pub fn may_learn(&self, n: usize) -> bool {
        !self.slots(n)[0].is_unlearned()
    }

    /// Returns an iterator over the packets, in order.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len).map(|n| self.get(n))
    }
}
