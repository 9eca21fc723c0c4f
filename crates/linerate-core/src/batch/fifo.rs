//! Packets that wait outside a batch, and leave in the order in which they came.

use std::sync::Arc;

use super::Batch;
use crate::memory::{Cache, Pool};
use crate::slot::Slot;

/// Packets of one pool that wait, each in one slot. They leave in order, so that a whole batch is moved at once; see
/// [`Store`](super::Store) for packets in any order.
///
/// All memory is allocated when the queue is created. Buffers are not copied. Dropping the queue frees them.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate_core::{Batch, Fifo};
///
/// # let [port] = linerate::open(["null:"])?;
/// # let (mut batch, mut later) = (Batch::new(), Batch::new());
/// # (1..=3).for_each(|n| assert!(batch.push(port.pool(), &[n; 60])));
/// let mut fifo = Fifo::new(port.pool(), 1000);
/// assert_eq!(fifo.put(&mut batch, 3), 3);
/// assert_eq!(fifo.move_to(2, &mut later), 2);
/// assert_eq!((later.packets().map(|packet| packet[0]).collect::<Vec<_>>(), fifo.len()), (vec![1, 2], 1));
/// # Ok(()) }
/// ```
pub struct Fifo {
    slots: Box<[Slot]>,
    /// The first slot.
    start: usize,
    len: usize,
    cache: Cache,
}

impl Fifo {
    /// Creates an empty queue for `capacity` packets of a pool, at least one.
    ///
    /// # Panics
    /// If memory cannot hold that many, as [`Vec::with_capacity`].
    pub fn new(pool: &Arc<Pool>, capacity: usize) -> Fifo {
        let slots = (0..capacity.max(1)).map(|_| Slot::EMPTY).collect();
        Fifo { slots, start: 0, len: 0, cache: Cache::new(pool, 32) }
    }

    /// Returns the number of packets that the queue can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the count of packets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes up to `most` packets from the front of a batch, as many as there is room for, and returns their count.
    /// Takes none of a batch of another pool, or with packets of several slots.
    #[inline]
    pub fn put(&mut self, batch: &mut Batch, most: usize) -> usize {
        let is_of_pool = self.cache.pool().is_some_and(|pool| batch.is_already_of(pool));
        if !is_of_pool || batch.has_chains {
            return 0;
        }
        let count = most.min(batch.len()).min(self.slots.len() - self.len);
        let from = &mut batch.slots[batch.start..batch.start + count];
        let [first, second] = parts(&mut self.slots, self.start + self.len, count);
        let (one, two) = from.split_at_mut(first.len());
        for (to, from) in first.iter_mut().zip(one).chain(second.iter_mut().zip(two)) {
            *to = from.take();
        }
        self.len += count;
        batch.sent(count);
        count
    }

    /// Moves up to `most` packets to the end of `batch`, as many as fit, and returns their count. An empty batch
    /// becomes the pool's; a batch of another pool gets none.
    #[inline]
    pub fn move_to(&mut self, most: usize, batch: &mut Batch) -> usize {
        let is_of_pool = self.cache.pool().is_some_and(|pool| batch.bind_if_empty(pool));
        let room = batch.capacity().saturating_sub(batch.len());
        let count = most.min(self.len).min(room);
        if !is_of_pool || count == 0 {
            return 0;
        }
        if batch.end + count > batch.slots.len() {
            batch.compact();
        }
        let to = &mut batch.slots[batch.end..batch.end + count];
        let [first, second] = parts(&mut self.slots, self.start, count);
        let (one, two) = to.split_at_mut(first.len());
        for (from, to) in first.iter_mut().zip(one).chain(second.iter_mut().zip(two)) {
            *to = from.take();
        }
        batch.end += count;
        self.start = (self.start + count) % self.slots.len();
        self.len -= count;
        count
    }
}

/// Returns the `count` entries of a ring from number `start` on, in their order.
#[inline(always)]
fn parts(slots: &mut [Slot], start: usize, count: usize) -> [&mut [Slot]; 2] {
    let start = start % slots.len();
    let (front, back) = slots.split_at_mut(start);
    let in_back = count.min(back.len());
    [&mut back[..in_back], &mut front[..count - in_back]]
}

impl Drop for Fifo {
    fn drop(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_empty_entry()) {
            // SAFETY: the slot was the queue's, and is removed.
            unsafe { self.cache.put(&[slot.take().buf()]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PageSize, Pages, Region, RegionOptions};

    fn pool() -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size: 512, pages, numa_node: None }).unwrap())
    }

    #[test]
    fn packets_leave_in_order_around_the_end_of_the_ring() {
        let (pool, mut from, mut to) = (pool(), Batch::with_capacity(8), Batch::with_capacity(8));
        let mut fifo = Fifo::new(&pool, 7);
        let (mut sent, mut seen) = (0u8, 0u8);
        for round in 0..200usize {
            while from.len() < 3 + round % 4 && from.push(&pool, &[sent; 60]) {
                sent = sent.wrapping_add(1);
            }
            fifo.put(&mut from, 1 + round % 5);
            assert!(fifo.len() <= 7);
            fifo.move_to(1 + round % 3, &mut to);
            assert!(to.len() <= 8);
            if round % 2 == 0 {
                for packet in to.packets() {
                    assert_eq!(packet[..], [seen; 60]);
                    seen = seen.wrapping_add(1);
                }
                to.clear();
            }
        }
        assert!(seen > 100);
        drop((from, to));
        assert_eq!(pool.available(), 64 - fifo.len() - fifo.cache.len());
        drop(fifo);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn other_pools_and_long_packets_are_left() {
        let (ours, theirs) = (pool(), pool());
        let mut fifo = Fifo::new(&ours, 8);
        let mut batch = Batch::new();
        assert!(batch.push(&theirs, &[1; 60]));
        assert_eq!(fifo.put(&mut batch, 8), 0);
        let mut long = Batch::new();
        assert!(long.push(&ours, &[1; 1000]));
        assert_eq!((fifo.put(&mut long, 8), fifo.is_empty(), fifo.capacity()), (0, true, 8));
        let mut short = Batch::new();
        assert!(short.push(&ours, &[1; 60]));
        assert_eq!(fifo.put(&mut short, 8), 1);
        assert_eq!((fifo.move_to(8, &mut batch), fifo.move_to(0, &mut short), fifo.move_to(8, &mut short)), (0, 0, 1));
        drop((batch, long, short, fifo));
        assert_eq!((ours.available(), theirs.available()), (64, 64));
    }
}
