//! What every port is: a [`Device`] to control it, and queues that move to the threads that poll
//! them.
//!
//! A port's kinds implement these three traits ([`crate::nic`] first); programs get them from
//! [`crate::open`]. This room knows memory and batches, and no kind of port.

mod config;
mod counters;
mod name;
mod scheduling;
mod statistics;
mod wait;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::Arc;

pub use config::{Config, DEFAULT_FRAME, FRAME_HEADERS, Vectors};
pub(crate) use counters::Counters;
pub(crate) use name::Kind;
pub use name::PortName;
pub use scheduling::Patience;
pub use statistics::{Drops, QueueCounters, QueueStatistics, Statistics};
pub use wait::{Wait, Waiter};

use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// The control side of a port.
///
/// It never touches packets, so it can be used from one thread while others send and receive.
pub trait Device: Send {
    /// The port's name, as it was opened.
    fn name(&self) -> &str;

    /// What this port is, and what it was opened with.
    fn info(&self) -> Info;

    /// The pool that the port's packets live in; ports of one pool exchange packets without a copy.
    fn pool(&self) -> &Arc<Pool>;

    /// Starts receive queue `queue` and hands it over.
    ///
    /// A port begins to receive when every queue that its [`Rss`] table names has been started (all of
    /// them, unless the table was changed), so that nothing is lost to a queue that nobody polls yet.
    ///
    /// # Errors
    /// [`NoSuchQueue`](crate::Error::NoSuchQueue), [`QueueTaken`](crate::Error::QueueTaken),
    /// [`PoolTooSmall`](crate::Error::PoolTooSmall), or the card does not answer.
    fn rx(&mut self, queue: u16) -> Result<Box<dyn RxQueue>>;

    /// Starts transmit queue `queue` and hands it over.
    ///
    /// # Errors
    /// As [`rx`](Device::rx).
    fn tx(&mut self, queue: u16) -> Result<Box<dyn TxQueue>>;

    /// Counters since the port was opened.
    ///
    /// # Errors
    /// [`CardGone`](crate::Error::CardGone).
    fn statistics(&self) -> Result<Statistics>;

    /// Counters of each queue, receive first. Reading them does not slow the queues.
    fn queue_statistics(&self) -> QueueStatistics;

    /// The link as it is now.
    ///
    /// # Errors
    /// [`CardGone`](crate::Error::CardGone).
    fn link(&self) -> Result<Link>;

    /// The port's own address.
    fn mac(&self) -> MacAddress;

    /// Changes the port's own address.
    ///
    /// # Errors
    /// [`CardGone`](crate::Error::CardGone).
    fn set_mac(&mut self, mac: MacAddress) -> Result<()>;

    /// Whether all frames are received or only those for this port. Ports start promiscuous.
    ///
    /// # Errors
    /// [`CardGone`](crate::Error::CardGone).
    fn set_promiscuous(&mut self, on: bool) -> Result<()>;

    /// How flows are spread over the receive queues.
    ///
    /// # Errors
    /// [`Rss`](crate::Error::Rss) for a table that the card cannot have.
    fn set_rss(&mut self, rss: &Rss) -> Result<()>;

    /// Resets the card and brings it up again. All queues must have been dropped.
    ///
    /// # Errors
    /// [`QueuesInUse`](crate::Error::QueuesInUse), or the card does not answer.
    fn reset(&mut self) -> Result<()>;
}

/// A receive queue, owned by the thread that polls it. Dropping it stops it.
pub trait RxQueue: Send {
    /// Appends received packets to `batch`, up to its capacity; never blocks. Returns how many
    /// slots were appended: as many as packets, unless frames are longer than a buffer. A packet is
    /// only ever delivered whole.
    fn recv(&mut self, batch: &mut Batch) -> usize;

    /// How many buffers the queue holds: those given to the card, and a packet not yet complete.
    fn buffers(&self) -> usize;

    /// Asks for an interrupt at the next packet, and returns what becomes readable then (poll(2),
    /// epoll(7)); `None` where the port was opened without interrupts, or has none.
    ///
    /// A packet that comes at the same moment may be missed by it: receive once more before you
    /// sleep. [`Waiter`] does all this.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes the interrupt back, whether it came or not: from here on the queue is polled.
    fn disarm(&mut self) {}

    /// Stops the queue and returns all its buffers to the pool, as dropping it does, but tells
    /// whether the card answered. If it did not, the buffers stay aside until the port is
    /// [reset](Device::reset), since the card may still write to them.
    ///
    /// # Errors
    /// [`Timeout`](crate::Error::Timeout), [`CardGone`](crate::Error::CardGone).
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A transmit queue, owned by the thread that fills it. Dropping it stops it.
pub trait TxQueue: Send {
    /// Takes packets from the front of `batch`, as many as fit; never blocks. Returns how many
    /// slots were taken; the rest stay in the batch, to be sent again or cleared.
    ///
    /// With an empty batch it still collects the buffers that the card has finished with.
    fn send(&mut self, batch: &mut Batch) -> usize;

    /// How many buffers the queue holds: those that the card has not yet reported as sent.
    fn buffers(&self) -> usize;

    /// How many of them wait for another call of [`send`](TxQueue::send), with an empty batch if there is no other: who
    /// sleeps meanwhile leaves them where they are. Cards need none.
    fn unsent(&self) -> usize {
        0
    }

    /// As [`RxQueue::stop`]. Packets that the card has not fetched by then are not sent.
    ///
    /// # Errors
    /// As [`RxQueue::stop`].
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

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No signal, or still negotiating.
    Down,
    /// Up, at this many megabits per second.
    Up {
        /// 100, 1,000, 10,000; 0 where the card does not say.
        mbits: u32,
    },
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// As Intel's cards have it in two registers: the first byte lowest.
    pub(crate) fn from_words(low: u32, high: u32) -> MacAddress {
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        MacAddress([a, b, c, d, e, f])
    }

    /// The same, back.
    pub(crate) fn words(self) -> (u32, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
    }
}

impl FromStr for MacAddress {
    type Err = String;

    /// Six bytes in hexadecimal, as `02:00:00:00:00:01`.
    fn from_str(text: &str) -> std::result::Result<MacAddress, String> {
        let are_digits = |digits: &str| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| are_digits(digits));
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(MacAddress)
            .ok_or_else(|| format!("'{text}' is not an Ethernet address; write it as 02:00:00:00:00:01"))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Receive-side scaling: a Toeplitz hash of each packet's addresses and ports, taken modulo the
/// size of `table`, tells the queue, so that all packets of a flow meet the same thread.
///
/// The fields are those of Microsoft's specification ("Introduction to Receive Side Scaling").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The hash's key.
    pub key: [u8; 40],
    /// Queue numbers; the 82599 has 128 places, which a shorter table fills by repetition.
    pub table: Vec<u16>,
}

impl Rss {
    /// The key of Microsoft's published verification suite, which most drivers use.
    pub const DEFAULT_KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, //
        0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, //
        0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Spreads flows evenly over queues 0 to `queues` - 1.
    pub fn evenly(queues: u16) -> Rss {
        Rss { key: Rss::DEFAULT_KEY, table: (0..queues.max(1)).collect() }
    }

    /// Number `register` of a table's registers, as Intel's cards have it: four entries of 8 bits.
    pub(crate) fn register(&self, register: u16) -> u32 {
        let entry = |n: usize| self.table[(register as usize * 4 + n) % self.table.len()] as u8;
        u32::from_le_bytes(std::array::from_fn(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let mac = MacAddress([2, 0, 0xAB, 0xCD, 0xEF, 9]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("02:00:aB:Cd:EF:09".parse(), Ok(mac));
        for text in
            ["", "02:00:ab:cd:ef", "02:00:ab:cd:ef:09:11", "2:0:ab:cd:ef:9", "02:00:ab:cd:ef:+9", "020:0:ab:cd:ef:09"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }
}
