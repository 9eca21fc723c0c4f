//! What a kind of port implements: a [`Device`], and a [`Receive`] and a [`Transmit`] for each queue.
//!
//! Programs add kinds of their own by [`Options::with_port_kind`](crate::Options::with_port_kind), or make a port of a device
//! by [`Port::new`](super::Port::new). `tests/own_port.rs` has a whole one.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{DEFAULT_FRAME, Link, MacAddress, QueueStatistics, Rss, Statistics};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::memory::Pool;

/// The control side of a kind of port.
///
/// Each method with a body is for ports that have more to say than a wire that is always up: see [`Port`](super::Port).
pub trait Device: Send {
    /// Returns the port's name, as it was opened.
    fn name(&self) -> &str;

    /// Returns the pool that the port's packets live in.
    fn pool(&self) -> &Arc<Pool>;

    /// Starts a receive queue.
    ///
    /// # Errors
    /// As [`Port::rx`](super::Port::rx).
    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>>;

    /// Starts a transmit queue.
    ///
    /// # Errors
    /// As [`Port::tx`](super::Port::tx).
    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>>;

    /// Returns what this port is.
    fn info(&self) -> Info {
        Info::default()
    }

    /// Returns the counters since the port was opened.
    ///
    /// # Errors
    /// [`CardGone`](Error::CardGone).
    fn statistics(&self) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    /// Returns the counters of each queue.
    fn queue_statistics(&self) -> QueueStatistics {
        QueueStatistics::default()
    }

    /// Returns the link as it is now.
    ///
    /// # Errors
    /// [`CardGone`](Error::CardGone).
    fn link(&self) -> Result<Link> {
        Ok(Link::Up { mbits: 0 })
    }

    /// Returns the port's own address.
    fn mac(&self) -> MacAddress {
        MacAddress::of_name(self.name())
    }

    /// Changes the port's own address.
    ///
    /// # Errors
    /// [`Error::Unsupported`], unless the port can.
    fn set_mac(&mut self, _mac: MacAddress) -> Result<()> {
        Err(self.has_no("choice of its address"))
    }

    /// Receives all frames, or only those for this port; what comes to a port in memory is for it.
    ///
    /// # Errors
    /// [`CardGone`](Error::CardGone).
    fn set_promiscuous(&mut self, _on: bool) -> Result<()> {
        Ok(())
    }

    /// Spreads flows over the receive queues.
    ///
    /// # Errors
    /// [`Error::Unsupported`], unless the port can.
    fn set_rss(&mut self, _rss: &Rss) -> Result<()> {
        Err(self.has_no("receive-side scaling"))
    }

    /// Resets the card and brings it up again.
    ///
    /// # Errors
    /// [`QueuesInUse`](Error::QueuesInUse), or the card does not answer.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }

    /// The error of a method that the port does not have.
    #[doc(hidden)]
    fn has_no(&self, what: &'static str) -> Error {
        Error::Unsupported { port: self.name().to_string(), what, why: "this kind of port cannot do that" }
    }
}

/// What receives: a kind's part of an [`RxQueue`](super::RxQueue), whose methods say more. Dropping it stops the queue.
pub trait Receive: Send {
    /// Appends received packets to `batch`, up to its capacity, each one whole; never blocks. Returns how many slots were
    /// appended.
    fn recv(&mut self, batch: &mut Batch) -> usize;

    /// Returns how many buffers the queue holds.
    fn buffers(&self) -> usize {
        0
    }

    /// Asks for an interrupt at the next packet, and returns what becomes readable then; `None` if there is none.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes the interrupt back, whether it came or not.
    fn disarm(&mut self) {}

    /// Stops the queue, and tells whether the card answered.
    ///
    /// # Errors
    /// As [`RxQueue::stop`](super::RxQueue::stop).
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// What sends: a kind's part of a [`TxQueue`](super::TxQueue), whose methods say more. Dropping it stops the queue.
pub trait Transmit: Send {
    /// Takes packets from the front of `batch`, as many as fit; never blocks. Returns how many slots were taken.
    fn send(&mut self, batch: &mut Batch) -> usize;

    /// Returns how many buffers the queue holds.
    fn buffers(&self) -> usize {
        0
    }

    /// Returns how many of them wait for another call of [`send`](Transmit::send).
    fn unsent(&self) -> usize {
        0
    }

    /// Stops the queue, and tells whether the card answered.
    ///
    /// # Errors
    /// As [`TxQueue::stop`](super::TxQueue::stop).
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// What a port is, and what it was opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The driver of ours that drives it.
    pub driver: &'static str,
    /// What it drives, for people.
    pub description: String,
    /// How many receive queues it was opened with.
    pub rx_queues: u16,
    /// How many transmit queues it was opened with.
    pub tx_queues: u16,
    /// Descriptors in each ring.
    pub ring: usize,
    /// The longest frame, in bytes without CRC.
    pub max_frame: usize,
}

/// One queue each way, and frames of [`DEFAULT_FRAME`].
impl Default for Info {
    fn default() -> Info {
        let (driver, description) = ("own", "a port of the program's own".to_string());
        Info { driver, description, rx_queues: 1, tx_queues: 1, ring: 0, max_frame: DEFAULT_FRAME }
    }
}
