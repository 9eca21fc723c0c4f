//! Packets of a batch that are decided on together.

use std::sync::Arc;

use crate::memory::{Pool, View};
use crate::slot::Slot;

/// How many at most: as many as a word has bits.
pub const CHUNK: usize = 64;

/// Packets that came in together, as the bytes of their first buffers, where the headers are.
pub struct Frames<'a> {
    pub(in crate::netmap) pool: &'a Arc<Pool>,
    pub(in crate::netmap) view: View<'a>,
    slots: &'a [Slot],
    /// Packet `n` has the slots from `starts[n]` to `starts[n + 1]`; not filled in where each has one.
    starts: [u32; CHUNK + 1],
    len: usize,
    /// Each packet has one slot.
    plain: bool,
}

impl<'a> Frames<'a> {
    /// The first packets of these.
    #[inline(always)]
    pub(in crate::netmap) fn new(slots: &'a [Slot], pool: &'a Arc<Pool>) -> Frames<'a> {
        let first = &slots[..slots.len().min(CHUNK)];
        let plain = !first.iter().fold(false, |any, slot| any | slot.has_more());
        let view = pool.region().view();
        let mut frames = Frames { pool, view, slots, starts: [0; CHUNK + 1], len: first.len(), plain };
        if !plain {
            frames.find_starts();
        }
        frames
    }

    #[cold]
    fn find_starts(&mut self) {
        (self.len, self.starts[0]) = (0, 0);
        let ends = self.slots.iter().enumerate().filter(|(_, slot)| !slot.has_more());
        for (last, _) in ends.take(CHUNK) {
            self.len += 1;
            self.starts[self.len] = last as u32 + 1;
        }
    }

    /// How many they are.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // there is one at least
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many slots they have together.
    pub(in crate::netmap) fn slot_count(&self) -> usize {
        if self.plain { self.len } else { self.starts[self.len] as usize }
    }

    /// The slots, if each is a packet.
    #[inline(always)]
    pub(in crate::netmap) fn plain(&self) -> Option<&[Slot]> {
        self.plain.then(|| &self.slots[..self.len])
    }

    /// The slots of packet `n`.
    #[inline(always)]
    pub(in crate::netmap) fn slots(&self, n: usize) -> &[Slot] {
        match self.plain {
            true => &self.slots[n..=n],
            false => &self.slots[self.starts[n] as usize..self.starts[n + 1] as usize],
        }
    }

    /// The bytes of packet `n`, if it is finished and in one slot.
    #[inline(always)]
    pub(crate) fn whole(&self, n: usize) -> Option<&[u8]> {
        let slot = &self.slots(n)[0];
        (slot.whole_len() == slot.len()).then(|| self.view.bytes(slot))
    }

    /// The slots of packet `n`, and whose they are.
    pub(crate) fn packet(&self, n: usize) -> (&[Slot], &Arc<Pool>) {
        (self.slots(n), self.pool)
    }

    /// The bytes of packet `n`, or those in its first buffer.
    ///
    /// # Panics
    /// If there is no such packet.
    #[inline(always)]
    pub fn get(&self, n: usize) -> &[u8] {
        self.view.bytes(&self.slots(n)[0])
    }

    /// False for a packet whose source address is not to be remembered.
    ///
    /// # Panics
    /// If there is no such packet.
    #[inline(always)]
    pub fn is_learned_from(&self, n: usize) -> bool {
        !self.slots(n)[0].is_unlearned()
    }

    /// All of them, in order.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len).map(|n| self.get(n))
    }
}
