//! Ports around other ports: each is a port, wraps any port, and can be wrapped.
//!
//! The fault injector is `port/faulty.rs`, `faulty:PORT?drop=1%`; the recorder `capture/recorded.rs`, `recorded:PORT?to=FILE`;
//! packets are handed out to several consumers by `netmap/cluster.rs`, `PORT?cluster=3`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{
    CaptureCounts, Device, Info, Link, MacAddress, Opening, QueueStatistics, Receive, Rss, Statistics, Transmit,
};
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// The part of a [`Wrapped`] port that differs by wrapper. What a wrapper does not change is the inner port's.
pub trait Wrapper: Send {
    /// Changes the inner port's information, at least its description.
    fn info(&self, inner: Info) -> Info;

    /// Starts a receive queue, usually [around](rx_around) the inner port's queue of the same number.
    ///
    /// # Errors
    /// As [`Device::rx`].
    fn rx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Receive>> {
        inner.rx(queue)
    }

    /// As [`rx`](Wrapper::rx), for a transmit queue.
    ///
    /// # Errors
    /// As [`Device::tx`].
    fn tx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Transmit>> {
        inner.tx(queue)
    }

    /// Changes the inner port's statistics.
    fn statistics(&self, inner: Statistics) -> Statistics {
        inner
    }

    /// Changes the counters of the inner port's queues.
    fn queue_statistics(&self, inner: QueueStatistics) -> QueueStatistics {
        inner
    }

    /// Returns whether nothing more will be received, given whether the inner port is exhausted.
    fn is_exhausted(&self, inner: bool) -> bool {
        inner
    }

    /// Resets the port, whose queues were stopped.
    ///
    /// # Errors
    /// As [`Device::reset`].
    fn reset(&mut self, inner: &mut dyn Device) -> Result<()> {
        inner.reset()
    }

    /// Checks the wrapper itself, whenever the link is read.
    ///
    /// # Errors
    /// A failure of the wrapper's own.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A wrapper's work at a receive queue.
pub trait RxWrapper: Send {
    /// As [`Receive::recv`], from the inner queue.
    fn recv(&mut self, inner: &mut dyn Receive, batch: &mut Batch) -> usize;

    /// The thread is about to sleep: it receives once more, and must get what is held back.
    fn arm(&mut self) {}

    /// Returns the count of buffers that it holds itself.
    fn buffers(&self) -> usize {
        0
    }
}

/// A wrapper's work at a transmit queue.
pub trait TxWrapper: Send {
    /// As [`Transmit::send`], to the inner queue.
    fn send(&mut self, inner: &mut dyn Transmit, batch: &mut Batch) -> usize;

    /// Returns the count of buffers that it holds itself.
    fn buffers(&self) -> usize {
        0
    }

    /// Returns the count of slots that it has not passed on.
    fn unsent(&self) -> usize {
        0
    }
}

/// Returns a queue that does a wrapper's work around an inner one.
pub fn rx_around(inner: Box<dyn Receive>, wrapper: impl RxWrapper + 'static) -> Box<dyn Receive> {
    Box::new(Queue { inner, wrapper })
}

/// As [`rx_around`], for a transmit queue.
pub fn tx_around(inner: Box<dyn Transmit>, wrapper: impl TxWrapper + 'static) -> Box<dyn Transmit> {
    Box::new(Queue { inner, wrapper })
}

/// A queue around another.
struct Queue<Q: ?Sized, W> {
    inner: Box<Q>,
    wrapper: W,
}

impl<W: RxWrapper> Receive for Queue<dyn Receive, W> {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        self.wrapper.recv(&mut *self.inner, batch)
    }

    fn buffers(&self) -> usize {
        self.inner.buffers() + self.wrapper.buffers()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.wrapper.arm();
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}

impl<W: TxWrapper> Transmit for Queue<dyn Transmit, W> {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.wrapper.send(&mut *self.inner, batch)
    }

    fn buffers(&self) -> usize {
        self.inner.buffers() + self.wrapper.buffers()
    }

    fn unsent(&self) -> usize {
        self.inner.unsent() + self.wrapper.unsent()
    }

    fn has_peer(&self) -> bool {
        self.inner.has_peer()
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}

/// A port around another.
pub struct Wrapped<W: Wrapper> {
    name: String,
    inner: Box<dyn Device>,
    wrapper: W,
}

impl<W: Wrapper> Wrapped<W> {
    /// Wraps a port; the result has this name.
    pub fn new(name: &str, inner: Box<dyn Device>, wrapper: W) -> Wrapped<W> {
        Wrapped { name: name.to_string(), inner, wrapper }
    }

    /// Opens the port inside a name, and wraps it.
    ///
    /// # Errors
    /// Those of the port inside.
    pub fn open(opening: &Opening<'_>, wrapper: W) -> Result<Wrapped<W>> {
        Ok(Wrapped::new(opening.name.short(), opening.open_inner()?, wrapper))
    }

    /// Returns the wrapper.
    pub fn wrapper(&self) -> &W {
        &self.wrapper
    }
}

impl<W: Wrapper> Device for Wrapped<W> {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> &Arc<Pool> {
        self.inner.pool()
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        self.wrapper.rx(&mut *self.inner, queue)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        self.wrapper.tx(&mut *self.inner, queue)
    }

    fn prepare_tx(&mut self) -> Result<()> {
        self.inner.prepare_tx()
    }

    fn info(&self) -> Info {
        self.wrapper.info(self.inner.info())
    }

    fn statistics(&self) -> Result<Statistics> {
        Ok(self.wrapper.statistics(self.inner.statistics()?))
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.wrapper.queue_statistics(self.inner.queue_statistics())
    }

    fn link(&self) -> Result<Link> {
        self.wrapper.check()?;
        self.inner.link()
    }

    fn is_exhausted(&self) -> bool {
        // The inner port is asked first: its last packets are the wrapper's by then.
        self.wrapper.is_exhausted(self.inner.is_exhausted())
    }

    fn capture_counts(&self) -> CaptureCounts {
        self.inner.capture_counts()
    }

    fn mac(&self) -> MacAddress {
        self.inner.mac()
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.inner.set_mac(mac)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.inner.set_promiscuous(on)
    }

    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        self.inner.set_rss(rss)
    }

    fn reset(&mut self) -> Result<()> {
        self.wrapper.reset(&mut *self.inner)
    }
}
