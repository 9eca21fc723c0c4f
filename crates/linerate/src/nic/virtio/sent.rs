//! The packets in a transmit queue, in the order in which they were sent.

use std::ops::Range;

use super::ring::Ring;
use super::vector::Groups;
use crate::batch::Batch;
use crate::memory::Locate;

/// In place of a buffer: a descriptor for a header alone.
pub(super) const NO_BUFFER: u32 = u32::MAX;

/// A packet's word: its bytes, its count of descriptors, and the [`EARLY`] flag. The count is in the highest byte, so
/// the fast path compares it without a shift.
const BYTES: u32 = (1 << COUNT) - 1;
pub(super) const COUNT: u32 = 24;
/// The most descriptors of a packet that fit the word: twice the slots of a batch's longest chain.
pub(super) const MOST: usize = (1 << (31 - COUNT)) - 1;
const EARLY: u32 = 1 << 31;
/// The word's count for one descriptor.
pub(super) const SINGLE: u32 = 1 << COUNT;

/// Descriptors are used in ring order, and a packet's first one is its id:
///
/// ```text
///            clean                         next
///   [ free | sent | sent | early | sent | free | free ]
/// ```
///
/// A device may use packets out of order: one that returns early waits until all before it have returned.
pub(super) struct Sent {
    /// The buffer of each descriptor, or [`NO_BUFFER`].
    bufs: Box<[u32]>,
    /// The word of each packet, at its first descriptor; 0 elsewhere.
    packets: Box<[u32]>,
    /// The oldest descriptor in use, and the next free one; they never wrap.
    clean: usize,
    next: usize,
    /// Whether any header had a descriptor of its own.
    has_headers: bool,
}

/// The result of [`Sent::reclaim`].
#[derive(Default)]
pub(super) struct Returned {
    pub packets: usize,
    pub slots: usize,
    pub bytes: usize,
    /// The device also returned an id that it never had.
    pub lie: bool,
}

impl Sent {
    pub fn new(size: u16) -> Sent {
        let count = usize::from(size);
        Sent { bufs: vec![0; count].into(), packets: vec![0; count].into(), clean: 0, next: 0, has_headers: false }
    }

    /// Returns the count of all descriptors: a power of two.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bufs.len()
    }

    /// Returns the count of free descriptors.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.len() - self.next.wrapping_sub(self.clean)
    }

    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        at & self.len().wrapping_sub(1)
    }

    /// Returns free entries for packets in one buffer each: the first descriptor, and slices for buffers and words.
    /// Report the count filled to [`added`](Sent::added).
    #[inline(always)]
    pub fn places(&mut self, most: usize) -> (usize, &mut [u32], &mut [u32]) {
        let first = self.place(self.next);
        let count = most.min(self.free()).min(self.len() - first);
        (first, &mut self.bufs[first..][..count], &mut self.packets[first..][..count])
    }

    /// Commits `count` entries written to [`places`](Sent::places).
    #[inline(always)]
    pub fn added(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count);
    }

    /// Takes the next free descriptor, which must exist, for this buffer.
    #[inline(always)]
    pub fn add(&mut self, buf: u32) -> u16 {
        let place = self.place(self.next);
        self.bufs[place] = buf;
        self.has_headers |= buf == NO_BUFFER;
        self.next = self.next.wrapping_add(1);
        place as u16
    }

    /// Records that a packet of `bytes` bytes is in the last `count` descriptors.
    #[inline(always)]
    pub fn note(&mut self, count: usize, bytes: usize) {
        let first = self.place(self.next.wrapping_sub(count));
        self.packets[first] = (count as u32) << COUNT | bytes as u32;
    }

    /// Takes all used packets, and gives their buffers to the batch.
    #[inline(always)]
    pub fn reclaim<R: Ring>(
        &mut self,
        ring: &mut R,
        batch: &mut Batch,
        groups: Option<&Groups<impl Locate>>,
    ) -> Returned {
        let first = self.clean;
        let mut returned = Returned::default();
        for _ in 0..self.len() {
            let oldest = self.place(self.clean);
            ring.poll_used();
            let (used, packets) = (ring.used_run(oldest), &mut self.packets[oldest..]);
            let (mut count, mut bytes) = groups.map_or((0, 0), |groups| groups.reclaim::<R>(used, packets));
            while let Some(packet) = packets.get_mut(count)
                && count < used.len::<R>()
                && *packet >> COUNT == 1
                && used.written::<R>(count).is_some()
            {
                bytes += (std::mem::take(packet) & BYTES) as usize;
                count += 1;
            }
            ring.advance_used(count);
            self.clean = self.clean.wrapping_add(count);
            returned.packets += count;
            returned.bytes += bytes;
            let Some((id, _)) = ring.peek_used() else { break };
            if count == 0 && !self.note_early(id.into(), ring) {
                returned.lie = true;
                break;
            }
        }
        // Early packets whose predecessors have all returned now.
        while self.packets[self.place(self.clean)] & EARLY != 0 {
            let place = self.place(self.clean);
            let packet = std::mem::take(&mut self.packets[place]) & !EARLY;
            returned.packets += 1;
            returned.bytes += (packet & BYTES) as usize;
            self.clean = self.clean.wrapping_add((packet >> COUNT) as usize);
        }
        returned.slots = self.clean.wrapping_sub(first);
        if returned.slots > 0 {
            let start = self.place(first);
            let wrapped = (start + returned.slots).saturating_sub(self.len());
            let headers = self.give(start..start + returned.slots - wrapped, batch) + self.give(0..wrapped, batch);
            returned.slots -= headers;
        }
        returned
    }

    /// Flags a packet as early: it has several descriptors, or is not the oldest. Returns false if the id is invalid.
    #[cold]
    fn note_early(&mut self, place: usize, ring: &mut impl Ring) -> bool {
        let Some(packet) = self.packets.get_mut(place).filter(|packet| **packet != 0 && **packet & EARLY == 0) else {
            return false;
        };
        ring.pop_used((*packet >> COUNT) as u16);
        *packet |= EARLY;
        true
    }

    /// Gives the buffers of these descriptors to the batch. Returns the count of headers among them.
    #[inline(always)]
    fn give(&self, places: Range<usize>, batch: &mut Batch) -> usize {
        let bufs = &self.bufs[places];
        if !self.has_headers {
            batch.put(bufs);
            return 0;
        }
        bufs.iter().filter(|&&buf| buf != NO_BUFFER).for_each(|&buf| batch.put(&[buf]));
        bufs.iter().filter(|&&buf| buf == NO_BUFFER).count()
    }

    /// Returns the buffers that the device holds.
    pub fn held(&self) -> Vec<u32> {
        let taken =
            (0..self.next.wrapping_sub(self.clean)).map(|at| self.bufs[self.place(self.clean.wrapping_add(at))]);
        taken.filter(|&buf| buf != NO_BUFFER).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest packet, in as many descriptors as its word can hold.
    #[test]
    fn the_most_descriptors_do_not_set_the_early_flag() {
        for count in [1, 64, MOST] {
            let mut sent = Sent::new(1 << 15);
            for buf in 0..count {
                sent.add(buf as u32);
            }
            sent.note(count, crate::offload::LONGEST);
            let word = sent.packets[0];
            assert_eq!(word & EARLY, 0, "{count} descriptors");
            assert_eq!(((word >> COUNT) as usize, (word & BYTES) as usize), (count, crate::offload::LONGEST));
        }
    }
}
