//! Queues for batches of any region, over rings whose slots are of one.
//!
//! A slot crosses between a batch and a ring only after the pools of both were compared, which is done here. Packets of another
//! region are copied. A ring is reached only through [`Rx`] or [`Tx`], so it never sees a batch of another pool.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{QueueCounters, Receive, Transmit};
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// A ring that receives into batches of its own pool.
pub(crate) trait RegionRx: Send {
    /// Returns the pool that the ring's buffers are of.
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
pub(crate) trait RegionTx: Send {
    /// Returns the pool that the ring's buffers are of.
    fn pool(&self) -> &Arc<Pool>;

    /// Sends as [`Transmit::send`] does, from a batch of the ring's pool.
    fn send(&mut self, batch: &mut Batch) -> usize;

    /// Returns the longest packet that the ring sends, in bytes. Longer packets of other regions are dropped, and counted.
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

/// A ring that receives, for batches of any region.
pub(crate) struct Rx<R> {
    ring: R,
    /// Packets of the ring's region on their way into a batch of another.
    copies: Batch,
}

impl<R: RegionRx> Rx<R> {
    pub fn new(ring: R) -> Rx<R> {
        Rx { ring, copies: Batch::new() }
    }

    /// As [`recv`](Receive::recv), for a batch without a pool, or of another.
    #[cold]
    fn recv_other(&mut self, batch: &mut Batch) -> usize {
        if batch.belongs_to(self.ring.pool()) && self.copies.is_empty() {
            return self.recv(batch);
        }
        let Rx { ring, copies } = self;
        let pool = ring.pool().clone();
        copies.is_of(&pool);
        copies.receive_for(&pool, batch, |own| ring.recv(own))
    }
}

impl<R: RegionRx> Receive for Rx<R> {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if batch.is_already_of(self.ring.pool()) && self.copies.is_empty() {
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

/// A ring that sends, for batches of any region.
pub(crate) struct Tx<R> {
    ring: R,
    /// Copies of packets of another region that the ring had no room for.
    copies: Batch,
}

impl<R: RegionTx> Tx<R> {
    pub fn new(ring: R) -> Tx<R> {
        Tx { ring, copies: Batch::new() }
    }

    /// As [`send`](Transmit::send), for a batch without a pool, or of another.
    #[cold]
    fn send_other(&mut self, batch: &mut Batch) -> usize {
        if batch.is_of(self.ring.pool()) && self.copies.is_empty() {
            return self.send(batch);
        }
        let Tx { ring, copies } = self;
        let (pool, longest) = (ring.pool().clone(), ring.longest());
        let (taken, too_long) = copies.send_for(&pool, batch, longest, |own| ring.send(own));
        (0..too_long).for_each(|_| ring.counters().dropped());
        taken
    }
}

impl<R: RegionTx> Transmit for Tx<R> {
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_already_of(self.ring.pool()) && self.copies.is_empty() {
            return self.ring.send(batch);
        }
        self.send_other(batch)
    }

    fn buffers(&self) -> usize {
        self.ring.buffers() + self.copies.len() + self.copies.cached()
    }

    fn unsent(&self) -> usize {
        self.ring.unsent()
    }

    fn has_peer(&self) -> bool {
        self.ring.has_peer()
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.ring.stop()
    }
}

/// Rings' own tests look into them.
#[cfg(test)]
mod tests {
    use std::ops::{Deref, DerefMut};

    use super::{Rx, Tx};

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
}
