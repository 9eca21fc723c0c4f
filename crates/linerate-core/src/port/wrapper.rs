//! Wrappers: ports that wrap any other port, and can be wrapped themselves.
//!
//! The wrappers are the link (`port.rs` of `linerate-link`, `link:PORT?delay=20ms`), the recorder (`capture/recorded.rs`,
//! `recorded:PORT?to=FILE`), and the distribution to several consumers (`netmap/cluster.rs`, `PORT?cluster=3`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{
    Action, CaptureCounts, Clock, Device, Info, Link, MacAddress, Opening, Pause, QueueStatistics, Receive, Rss, Rule,
    RuleId, Statistics, Transmit,
};
use crate::batch::Batch;
use crate::error::Result;
use crate::filter::Filter;
use crate::memory::Pool;

/// The part of a [`Wrapped`] port that differs by wrapper. The default methods pass everything to the inner port.
pub trait Wrapper: Send {
    /// Adapts the inner port's information, at least its description.
    fn info(&self, inner: Info) -> Info;

    /// Starts a receive queue, usually [wrapped around](rx_around) the inner port's queue of the same number.
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

    /// Adapts the inner port's statistics.
    fn statistics(&self, inner: Statistics) -> Statistics {
        inner
    }

    /// Adapts the counters of the inner port's queues.
    fn queue_statistics(&self, inner: QueueStatistics) -> QueueStatistics {
        inner
    }

    /// Returns whether the port will never receive again; `inner` tells whether the inner port is exhausted.
    fn is_exhausted(&self, inner: bool) -> bool {
        inner
    }

    /// Resets the port. Its queues have been stopped.
    ///
    /// # Errors
    /// As [`Device::reset`].
    fn reset(&mut self, inner: &mut dyn Device) -> Result<()> {
        inner.reset()
    }

    /// Checks the wrapper itself. Called whenever the link is read.
    ///
    /// # Errors
    /// A failure of the wrapper itself.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The part of a receive queue that differs by wrapper.
pub trait RxWrapper: Send {
    /// As [`Receive::recv`], from the inner queue.
    fn recv(&mut self, inner: &mut dyn Receive, batch: &mut Batch) -> usize;

    /// As [`Receive::arm`], with the inner queue. The descriptor must also become readable when a packet that is held
    /// back is due.
    fn arm<'a>(&'a mut self, inner: &'a mut dyn Receive) -> Option<BorrowedFd<'a>> {
        inner.arm()
    }

    /// Returns the count of buffers that the wrapper holds.
    fn buffers(&self) -> usize {
        0
    }
}

/// The part of a transmit queue that differs by wrapper.
pub trait TxWrapper: Send {
    /// As [`Transmit::send`], to the inner queue.
    fn send(&mut self, inner: &mut dyn Transmit, batch: &mut Batch) -> usize;

    /// Returns the count of buffers that the wrapper holds.
    fn buffers(&self) -> usize {
        0
    }

    /// Returns the count of slots that the wrapper has accepted but not yet passed on.
    fn unsent(&self) -> usize {
        0
    }
}

/// Wraps a receive queue.
pub fn rx_around(inner: Box<dyn Receive>, wrapper: impl RxWrapper + 'static) -> Box<dyn Receive> {
    Box::new(Queue { inner, wrapper })
}

/// As [`rx_around`], for a transmit queue.
pub fn tx_around(inner: Box<dyn Transmit>, wrapper: impl TxWrapper + 'static) -> Box<dyn Transmit> {
    Box::new(Queue { inner, wrapper })
}

/// A queue that wraps another.
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
        self.wrapper.arm(&mut *self.inner)
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

/// A port that wraps another.
pub struct Wrapped<W: Wrapper> {
    name: String,
    inner: Box<dyn Device>,
    wrapper: W,
}

impl<W: Wrapper> Wrapped<W> {
    /// Wraps a port, under the name `name`.
    pub fn new(name: &str, inner: Box<dyn Device>, wrapper: W) -> Wrapped<W> {
        Wrapped { name: name.to_string(), inner, wrapper }
    }

    /// Opens the inner port of a name, and wraps it.
    ///
    /// # Errors
    /// Those of the inner port.
    pub fn open(opening: &Opening<'_>, wrapper: W) -> Result<Wrapped<W>> {
        Ok(Wrapped::new(opening.name.short(), opening.open_inner()?, wrapper))
    }

    /// Returns the wrapper.
    pub fn wrapper(&self) -> &W {
        &self.wrapper
    }
}

/// Replaces the device of a port that is wrapped, until the port is dropped.
pub(super) struct Absent(pub(super) Arc<Pool>);

impl Device for Absent {
    fn name(&self) -> &str {
        ""
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.0
    }

    fn rx(&mut self, _queue: u16) -> Result<Box<dyn Receive>> {
        Err(self.has_no("queues"))
    }

    fn tx(&mut self, _queue: u16) -> Result<Box<dyn Transmit>> {
        Err(self.has_no("queues"))
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

    fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        self.inner.register_counters()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.wrapper.queue_statistics(self.inner.queue_statistics())
    }

    fn link(&self) -> Result<Link> {
        self.wrapper.check()?;
        self.inner.link()
    }

    fn is_exhausted(&self) -> bool {
        // The inner port is checked first. Once it is exhausted, the wrapper already holds its last packets.
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

    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        self.inner.set_addresses(addresses)
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.inner.set_all_multicast(on)
    }

    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        self.inner.set_vlans(vlans)
    }

    fn set_pause(&mut self, pause: Pause) -> Result<()> {
        self.inner.set_pause(pause)
    }

    fn strip_vlan_tags(&mut self, on: bool) -> Result<()> {
        self.inner.strip_vlan_tags(on)
    }

    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        self.inner.set_rss(rss)
    }

    fn add_rule(&mut self, filter: &Filter, action: Action) -> Result<RuleId> {
        self.inner.add_rule(filter, action)
    }

    fn remove_rule(&mut self, id: RuleId) -> Result<()> {
        self.inner.remove_rule(id)
    }

    fn rules(&self) -> Vec<Rule> {
        self.inner.rules()
    }

    fn clock(&self) -> Result<Clock> {
        self.inner.clock()
    }

    fn reset(&mut self) -> Result<()> {
        self.wrapper.reset(&mut *self.inner)
    }
}
