//! The buffers of this side's pool that a client has lent to a ring instead of copying.
//!
//! A buffer is lent for as long as the peer may use it: until a queue takes it back, or the connection ends.
#![allow(unsafe_code)]

use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::memory::{Placement, Pool};
use linerate_core::ring::Breach;

use super::ring::{BUFFER, MemifRing};

/// The buffers lent to one ring. Dropping it returns them to the pool.
pub struct Lent {
    /// The buffer of each descriptor.
    bufs: Box<[u32]>,
    /// The descriptors with a buffer, modulo 2^16: `count` of them, beginning at `first`.
    first: u16,
    count: u16,
    pool: Arc<Pool>,
}

impl Lent {
    /// Creates an empty set, for a ring on which no packet has been sent.
    pub fn none(pool: &Arc<Pool>, size: u16) -> Lent {
        Lent { bufs: vec![0; size.into()].into(), first: 0, count: 0, pool: pool.clone() }
    }

    /// Lends an empty buffer to each descriptor of a receive ring; `None` if the pool has too few buffers.
    pub fn to_receive(ring: &MemifRing, pool: &Arc<Pool>, placement: Placement) -> Option<Lent> {
        let count = ring.size();
        let bufs = pool.take(count.into())?;
        for (ahead, &buf) in bufs.iter().enumerate() {
            ring.lend(ahead as u16, placement.data(buf), BUFFER, false);
        }
        Some(Lent { bufs: bufs.into(), first: 0, count, pool: pool.clone() })
    }

    /// Returns the number of buffers.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns the buffer of a descriptor that the peer has filled, to be replaced.
    #[inline(always)]
    pub fn at(&mut self, number: usize) -> &mut u32 {
        let last = self.bufs.len() - 1;
        &mut self.bufs[number & last]
    }

    /// Adds the buffer of the next descriptor to be sent.
    #[inline(always)]
    pub fn add(&mut self, buf: u32) {
        let next = self.first.wrapping_add(self.count);
        *self.at(next.into()) = buf;
        self.count += 1;
    }

    /// Gives the buffers of all but the last `kept` descriptors to the batch.
    ///
    /// # Errors
    /// Fewer descriptors have buffers: the peer's index claims more descriptors than the peer was given.
    #[inline(always)]
    pub fn reclaim(&mut self, kept: u16, batch: &mut Batch) -> Result<(), Breach> {
        let done = self.count.checked_sub(kept).map(usize::from);
        let what = "the count of descriptors that were not taken";
        let done = done.ok_or(Breach::Beyond { what, is: kept.into(), most: self.count.into() })?;
        let start = usize::from(self.first) & (self.bufs.len() - 1);
        let run = done.min(self.bufs.len() - start);
        // SAFETY: the buffers are from the queue's pool, which is the batch's, and no longer lent.
        unsafe {
            batch.recycle(&self.bufs[start..start + run]);
            batch.recycle(&self.bufs[..done - run]);
        }
        (self.first, self.count) = (self.first.wrapping_add(done as u16), kept);
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let last = self.bufs.len() - 1;
        let numbers = (0..self.count).map(|ahead| usize::from(self.first.wrapping_add(ahead)) & last);
        // SAFETY: the buffers are from this pool, and were lent; the peer no longer uses them.
        unsafe { self.pool.give(&numbers.map(|number| self.bufs[number]).collect::<Vec<_>>()) };
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};

    use super::*;

    #[test]
    fn a_peer_that_returns_more_than_it_has_frees_nothing_twice() {
        let pages = Pages::Only(PageSize::Ordinary);
        let pool =
            Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None }).unwrap());
        let mut lent = Lent::none(&pool, 16);
        let mut batch = Batch::new();
        batch.bind_if_unbound(&pool);
        for _ in 0..5 {
            lent.add(batch.take_buffer().unwrap());
        }
        assert!(lent.reclaim(6, &mut batch).is_err() && lent.reclaim(u16::MAX, &mut batch).is_err());
        assert_eq!((lent.reclaim(2, &mut batch), lent.count()), (Ok(()), 2));
        assert!(lent.reclaim(3, &mut batch).is_err());
        assert_eq!(lent.count(), 2);
        drop((lent, batch));
        assert_eq!(pool.available(), 64);
    }
}
