//! Keeping or removing the packets of a batch by a program's closure.
#![allow(unsafe_code)]

use super::Batch;
use crate::memory::Cache;
use crate::slot::Slot;

impl Batch {
    /// Keeps the packets for which `keep` returns true, and frees the others. `keep` gets the bytes of a packet's first
    /// slot.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// (1..=4).for_each(|n| assert!(batch.push(pool, &[n; 60])));
    /// batch.retain(|bytes| bytes[0] % 2 == 0);
    /// assert_eq!(batch.packets().map(|packet| packet[0]).collect::<Vec<_>>(), [2, 4]);
    /// # Ok(()) }
    /// ```
    pub fn retain(&mut self, keep: impl FnMut(&[u8]) -> bool) {
        // SAFETY: the slot was the batch's, and is dropped here.
        self.sort(keep, |cache, slot, _| unsafe { cache.put(&[slot.buf()]) });
    }

    /// As [`retain`](Batch::retain), but moves the other packets to `rest`. If `rest` is full or of another region,
    /// frees them instead. Returns the count of packets freed.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let mut odd = linerate::Batch::new();
    /// (1..=4).for_each(|n| assert!(batch.push(pool, &[n; 60])));
    /// let freed = batch.split(&mut odd, |bytes| bytes[0] % 2 == 0);
    /// assert_eq!((batch.len(), odd.len(), freed), (2, 2, 0));
    /// assert_eq!(odd.packets().map(|packet| packet[0]).collect::<Vec<_>>(), [1, 3]);
    /// # Ok(()) }
    /// ```
    pub fn split(&mut self, rest: &mut Batch, keep: impl FnMut(&[u8]) -> bool) -> usize {
        let Some(pool) = self.pool().cloned() else { return 0 };
        let is_of_pool = rest.bind_if_empty(&pool);
        let (mut fits, mut freed) = (true, 0);
        self.sort(keep, |cache, mut slot, begins| {
            if begins {
                fits = is_of_pool && rest.len() < rest.capacity();
                freed += usize::from(!fits);
            }
            // SAFETY: the slot was this batch's, and the other one has the same pool.
            if !fits || !unsafe { rest.push_slot(&pool, &mut slot) } {
                // SAFETY: the slot is dropped here.
                unsafe { cache.put(&[slot.buf()]) };
            }
        });
        freed
    }

    /// Keeps the packets that `keep` selects, and passes the slots of the others to `other`, along with whether the
    /// slot begins a packet.
    ///
    /// `keep` is a program's closure and may panic. The packet passed to it and all later packets are then kept.
    fn sort(&mut self, mut keep: impl FnMut(&[u8]) -> bool, mut other: impl FnMut(&mut Cache, Slot, bool)) {
        let Batch { slots, start, end, cache, .. } = self;
        let Some(pool) = cache.pool().cloned() else { return };
        let (mut begins, mut keeping) = (true, true);
        let mut sorting = Sorting { to: *start, at: *start, slots, start, end };
        while sorting.at < *sorting.end {
            let slot = &sorting.slots[sorting.at];
            if begins {
                // SAFETY: the slot is of the batch, whose pool this is.
                keeping = keep(unsafe { pool.region().view() }.bytes(slot));
            }
            let ends = !slot.has_more();
            if keeping {
                sorting.keep_next();
            } else {
                let slot = sorting.slots[sorting.at].take();
                sorting.at += 1;
                other(cache, slot, begins);
            }
            begins = ends;
        }
    }
}

/// A batch while packets are removed. Entries from `to` to `at` are empty. Dropping it, also in a panic, keeps the
/// packets that were not visited, and closes the gap.
struct Sorting<'a> {
    slots: &'a mut [Slot],
    start: &'a mut usize,
    end: &'a mut usize,
    to: usize,
    at: usize,
}

impl Sorting<'_> {
    fn keep_next(&mut self) {
        self.slots[self.to] = self.slots[self.at].take();
        (self.to, self.at) = (self.to + 1, self.at + 1);
    }
}

impl Drop for Sorting<'_> {
    fn drop(&mut self) {
        while self.at < *self.end {
            self.keep_next();
        }
        (*self.start, *self.end) = if self.to == *self.start { (0, 0) } else { (*self.start, self.to) };
    }
}
