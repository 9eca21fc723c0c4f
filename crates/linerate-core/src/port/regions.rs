//! Queues that accept batches of any region, on top of rings that are bound to one region.
//!
//! [`Rx`] and [`Tx`] compare the pools of batch and ring before a slot passes between them, and copy packets of another
//! region. A ring is used only through them, so it never sees a batch of another pool.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{QueueCounters, Receive, Transmit};
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// A ring that receives into batches of its own pool.
pub trait RegionRx: Send {
    /// Returns the pool of the ring's buffers.
    fn pool(&self) -> &Arc<Pool>;

    /// Receives as [`Receive::recv`] does, into a batch of the ring's pool.
    fn recv(&mut self, batch: &mut Batch) -> usize;

    /// Returns the count of buffers in the ring.
    fn buffers(&self) -> usize;

    /// As [`Receive::arm`].
    fn arm(&mut self) -> Option<BorrowedFd<'_>>;

    /// As [`Receive::disarm`].
    fn disarm(&mut self) {}

    /// Stops the ring, as dropping it does.
    ///
    /// # Errors
    /// As [`RxQueue::stop`](super::RxQueue::stop).
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A ring that sends from batches of its own pool.
pub trait RegionTx: Send {
    /// Returns the pool of the ring's buffers.
    fn pool(&self) -> &Arc<Pool>;

    /// Sends as [`Transmit::send`] does, from a batch of the ring's pool.
    fn send(&mut self, batch: &mut Batch) -> usize;

    /// Returns the length of the longest packet that the ring sends. Longer packets of other regions are dropped and
    /// counted.
    fn longest(&self) -> usize;

    /// Returns the counters of dropped packets.
    fn counters(&self) -> &QueueCounters;

    /// Returns the count of buffers in the ring.
    fn buffers(&self) -> usize {
        0
    }

    /// As [`Transmit::unsent`].
    fn unsent(&self) -> usize {
        0
    }

    /// As [`Transmit::has_peer`].
    fn has_peer(&self) -> bool {
        true
    }

    /// Stops the ring, as dropping it does.
    ///
    /// # Errors
    /// As [`TxQueue::stop`](super::TxQueue::stop).
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

/// No pool has this address.
const NO_POOL: usize = 1;

/// Returns the address of the pool whose batches are passed to the ring directly: the ring's pool, or [`NO_POOL`] while
/// earlier copies must be moved first.
fn direct_pool(pool: &Arc<Pool>, copies: &Batch) -> usize {
    if copies.is_empty() { pool.address() } else { NO_POOL }
}

/// A receive queue for batches of any region.
pub struct Rx<R> {
    ring: R,
    /// Packets of the ring's region that wait to be copied into a batch of another region.
    copies: Batch,
    /// See [`direct_pool`].
    direct_pool: usize,
}

impl<R: RegionRx> Rx<R> {
    /// Creates a queue that receives from this ring.
    pub fn new(ring: R) -> Rx<R> {
        Rx { direct_pool: ring.pool().address(), ring, copies: Batch::new() }
    }

    /// As [`recv`](Receive::recv), for a batch without a pool or of another pool.
    #[cold]
    fn recv_other(&mut self, batch: &mut Batch) -> usize {
        if batch.bind_if_empty(self.ring.pool()) && self.copies.is_empty() {
            self.direct_pool = self.ring.pool().address();
            return self.ring.recv(batch);
        }
        let Rx { ring, copies, direct_pool: address } = self;
        let pool = ring.pool().clone();
        copies.bind_if_unbound(&pool);
        // Stays set if the ring panics.
        *address = NO_POOL;
        let received = copies.receive_for(&pool, batch, |own| ring.recv(own));
        *address = direct_pool(&pool, copies);
        received
    }
}

impl<R: RegionRx> Receive for Rx<R> {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if batch.is_at(self.direct_pool) {
            return self.ring.recv(batch);
        }
        self.recv_other(batch)
    }

    fn buffers(&self) -> usize {
        self.ring.buffers() + self.copies.len() + self.copies.cached()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.ring.arm()
    }

    fn disarm(&mut self) {
        self.ring.disarm();
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.ring.stop()
    }
}

/// A transmit queue for batches of any region.
pub struct Tx<R> {
    ring: R,
    /// Copies of packets of another region that did not fit the ring.
    copies: Batch,
    /// See [`direct_pool`].
    direct_pool: usize,
}

impl<R: RegionTx> Tx<R> {
    /// Creates a queue that sends to this ring.
    pub fn new(ring: R) -> Tx<R> {
        Tx { direct_pool: ring.pool().address(), ring, copies: Batch::new() }
    }

    /// As [`send`](Transmit::send), for a batch without a pool or of another pool.
    #[cold]
    fn send_other(&mut self, batch: &mut Batch) -> usize {
        if batch.bind_if_unbound(self.ring.pool()) && self.copies.is_empty() {
            self.direct_pool = self.ring.pool().address();
            return self.ring.send(batch);
        }
        let Tx { ring, copies, direct_pool: address } = self;
        let (pool, longest) = (ring.pool().clone(), ring.longest());
        // Stays set if the ring panics.
        *address = NO_POOL;
        let (taken, too_long) = copies.send_for(&pool, batch, longest, |own| ring.send(own));
        *address = direct_pool(&pool, copies);
        (0..too_long).for_each(|_| ring.counters().dropped());
        taken
    }
}

impl<R: RegionTx> Transmit for Tx<R> {
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_at(self.direct_pool) {
            return self.ring.send(batch);
        }
        self.send_other(batch)
    }

    fn buffers(&self) -> usize {
        self.ring.buffers() + self.copies.len() + self.copies.cached()
    }

    /// Copies of another region's packets wait for room, as packets of the ring do.
    fn unsent(&self) -> usize {
        self.ring.unsent() + self.copies.len()
    }

    fn has_peer(&self) -> bool {
        self.ring.has_peer()
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.ring.stop()
    }
}

/// Gives access to the ring, for the tests of rings.
impl<R> Deref for Rx<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.ring
    }
}

impl<R> DerefMut for Rx<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.ring
    }
}

/// Gives access to the ring, for the tests of rings.
impl<R> Deref for Tx<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.ring
    }
}

impl<R> DerefMut for Tx<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.ring
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::memory::{PageSize, Pages, Region, RegionOptions};

    /// A ring that panics at its first call, and then moves one packet per call.
    struct Panics {
        pool: Arc<Pool>,
        calls: usize,
        counters: QueueCounters,
    }

    impl Panics {
        fn call(&mut self) {
            self.calls += 1;
            assert!(self.calls > 1, "the first call");
        }
    }

    impl RegionRx for Panics {
        fn pool(&self) -> &Arc<Pool> {
            &self.pool
        }

        fn recv(&mut self, batch: &mut Batch) -> usize {
            self.call();
            batch.alloc(&self.pool.clone(), 1, 60)
        }

        fn buffers(&self) -> usize {
            0
        }

        fn arm(&mut self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl RegionTx for Panics {
        fn pool(&self) -> &Arc<Pool> {
            &self.pool
        }

        fn send(&mut self, batch: &mut Batch) -> usize {
            self.call();
            batch.clear();
            1
        }

        fn longest(&self) -> usize {
            1514
        }

        fn counters(&self) -> &QueueCounters {
            &self.counters
        }
    }

    fn pool() -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None }).unwrap())
    }

    #[test]
    fn a_ring_that_panics_while_packets_are_copied_goes_on_with_batches_of_its_own() {
        let (ours, theirs) = (pool(), pool());
        let ring = || Panics { pool: ours.clone(), calls: 0, counters: QueueCounters::default() };
        let (mut rx, mut tx) = (Rx::new(ring()), Tx::new(ring()));
        let mut other = Batch::new();
        assert_eq!(other.alloc(&theirs, 1, 60), 1);
        assert!(catch_unwind(AssertUnwindSafe(|| rx.recv(&mut other))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| Transmit::send(&mut tx, &mut other))).is_err());
        let mut own = Batch::new();
        for _ in 0..3 {
            assert_eq!(Receive::recv(&mut rx, &mut own), 1);
            assert_eq!(Transmit::send(&mut tx, &mut own), 1);
            assert_eq!(
                (Receive::recv(&mut rx, &mut other), other.pool().map(Arc::as_ptr)),
                (1, Some(Arc::as_ptr(&theirs)))
            );
            other.clear();
            other.alloc(&theirs, 1, 60);
        }
    }
}
