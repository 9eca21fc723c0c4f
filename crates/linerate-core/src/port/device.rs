//! The traits that a kind of port implements: [`Device`] for the control side, [`Receive`] and [`Transmit`] for the
//! queues.
//!
//! Programs add their own kinds with `linerate::Options::with_port_kind`, or create a port from a device with
//! [`Port::new`](super::Port::new). `crates/linerate/tests/own_port.rs` is an example.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{
    Action, Capabilities, CaptureCounts, Clock, Link, MacAddress, Pause, PortClass, QueueStatistics, Rss, Rule, RuleId,
    Statistics,
};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::memory::Pool;

/// Bytes of a frame in addition to its payload: the Ethernet header and a VLAN tag, without CRC.
pub const FRAME_HEADERS: usize = 18;
/// The default maximum frame length, for an MTU of 1,500.
pub const DEFAULT_FRAME: usize = 1500 + FRAME_HEADERS;

/// The control side of a kind of port.
///
/// The default methods describe a link that is always up. [`Port`](super::Port) documents the methods.
pub trait Device: Send {
    /// Returns the name that the port was opened with.
    fn name(&self) -> &str;

    /// Returns the pool of the port's packet buffers.
    fn pool(&self) -> &Arc<Pool>;

    /// The last step of opening. Ports that are opened together are all opened before the first one starts, so a step that
    /// disturbs others, such as a reset of the card's queues, belongs here if opening can check everything before.
    ///
    /// # Errors
    /// Those of opening that only this step can find.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

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

    /// As [`Port::prepare_tx`](super::Port::prepare_tx).
    ///
    /// # Errors
    /// As [`Port::prepare_tx`](super::Port::prepare_tx).
    fn prepare_tx(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the port's driver, device and options.
    fn info(&self) -> Info {
        Info::default()
    }

    /// Returns the counters since the port was opened.
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    fn statistics(&self) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    /// As [`Port::register_counters`](super::Port::register_counters).
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    /// Returns the counters of each queue.
    fn queue_statistics(&self) -> QueueStatistics {
        QueueStatistics::default()
    }

    /// Returns the current state of the link.
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    fn link(&self) -> Result<Link> {
        Ok(Link::Up { mbits: 0 })
    }

    /// Returns whether the port will never receive again: it is send-only, or a capture file that was read to its end.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// Returns how many packets of the capture file could not be delivered, or only in part; zeros for other ports.
    fn capture_counts(&self) -> CaptureCounts {
        CaptureCounts::default()
    }

    /// Returns the port's MAC address.
    fn mac(&self) -> MacAddress {
        MacAddress::of_name(self.name())
    }

    /// Sets the port's MAC address.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the port cannot change it.
    fn set_mac(&mut self, _mac: MacAddress) -> Result<()> {
        Err(self.has_no("choice of its address"))
    }

    /// Turns promiscuous mode on or off. A port in memory always receives all packets sent to it.
    ///
    /// # Errors
    /// [`Gone`](crate::ErrorKind::Gone).
    fn set_promiscuous(&mut self, _on: bool) -> Result<()> {
        Ok(())
    }

    /// As [`Port::set_addresses`](super::Port::set_addresses). A port in memory always receives all packets sent to it.
    ///
    /// # Errors
    /// As [`Port::set_addresses`](super::Port::set_addresses).
    fn set_addresses(&mut self, _addresses: &[MacAddress]) -> Result<()> {
        Ok(())
    }

    /// As [`Port::set_all_multicast`](super::Port::set_all_multicast). A port in memory always receives all packets sent
    /// to it.
    ///
    /// # Errors
    /// As [`Port::set_all_multicast`](super::Port::set_all_multicast).
    fn set_all_multicast(&mut self, _on: bool) -> Result<()> {
        Ok(())
    }

    /// As [`Port::set_vlans`](super::Port::set_vlans).
    ///
    /// # Errors
    /// As [`Port::set_vlans`](super::Port::set_vlans).
    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        vlans.map_or(Ok(()), |_| Err(self.has_no("filter of VLANs")))
    }

    /// As [`Port::set_pause`](super::Port::set_pause).
    ///
    /// # Errors
    /// As [`Port::set_pause`](super::Port::set_pause).
    fn set_pause(&mut self, _pause: Pause) -> Result<()> {
        Err(self.has_no("pause frames"))
    }

    /// As [`Port::strip_vlan_tags`](super::Port::strip_vlan_tags).
    ///
    /// # Errors
    /// As [`Port::strip_vlan_tags`](super::Port::strip_vlan_tags).
    fn strip_vlan_tags(&mut self, _on: bool) -> Result<()> {
        Err(self.has_no("stripping of VLAN tags"))
    }

    /// Spreads flows over the receive queues.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the port cannot do that.
    fn set_rss(&mut self, _rss: &Rss) -> Result<()> {
        Err(self.has_no("receive-side scaling"))
    }

    /// As [`Port::add_rule`](super::Port::add_rule).
    ///
    /// # Errors
    /// As [`Port::add_rule`](super::Port::add_rule).
    fn add_rule(&mut self, _filter: &Filter, _action: Action) -> Result<RuleId> {
        Err(self.has_no("filter rules"))
    }

    /// As [`Port::remove_rule`](super::Port::remove_rule).
    ///
    /// # Errors
    /// As [`Port::remove_rule`](super::Port::remove_rule).
    fn remove_rule(&mut self, _id: RuleId) -> Result<()> {
        Err(self.has_no("filter rules"))
    }

    /// Returns the port's rules, in the order in which they were added.
    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }

    /// Returns the card's clock.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it has none.
    fn clock(&self) -> Result<Clock> {
        Err(self.has_no("clock"))
    }

    /// Resets the card and brings it up again.
    ///
    /// # Errors
    /// [`InUse`](crate::ErrorKind::InUse), or the card does not answer.
    fn reset(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the error for a method that the port does not support.
    #[doc(hidden)]
    fn has_no(&self, what: &'static str) -> Error {
        Error::unsupported(self.name().to_string(), what, "this kind of port cannot do that")
    }
}

/// The kind-specific part of an [`RxQueue`](super::RxQueue), which documents the methods. Dropping it stops the queue.
pub trait Receive: Send {
    /// Appends received packets to `batch`, up to its capacity; never blocks, and never splits a packet between calls.
    /// Returns the count of slots appended.
    fn recv(&mut self, batch: &mut Batch) -> usize;

    /// Returns the count of buffers in the queue.
    fn buffers(&self) -> usize {
        0
    }

    /// Arms an interrupt for the next packet. Returns the descriptor that becomes readable then; `None` without
    /// interrupts.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Disarms the interrupt.
    fn disarm(&mut self) {}

    /// Stops the queue, and returns an error if the card did not answer.
    ///
    /// # Errors
    /// As [`RxQueue::stop`](super::RxQueue::stop).
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The kind-specific part of a [`TxQueue`](super::TxQueue), which documents the methods. Dropping it stops the queue.
pub trait Transmit: Send {
    /// Sends packets from the front of `batch`, as many as fit; never blocks. Returns the count of slots accepted.
    fn send(&mut self, batch: &mut Batch) -> usize;

    /// Returns the count of buffers in the queue.
    fn buffers(&self) -> usize {
        0
    }

    /// Returns the count of accepted slots that need another call of [`send`](Transmit::send).
    fn unsent(&self) -> usize {
        0
    }

    /// As [`TxQueue::has_peer`](super::TxQueue::has_peer).
    fn has_peer(&self) -> bool {
        true
    }

    /// Stops the queue, and returns an error if the card did not answer.
    ///
    /// # Errors
    /// As [`TxQueue::stop`](super::TxQueue::stop).
    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A port's driver, device and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The name of the driver.
    pub driver: &'static str,
    /// The device, for display.
    pub description: String,
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors in each ring.
    pub ring: usize,
    /// The longest frame, in bytes without CRC.
    pub max_frame: usize,
    /// The port's category. It can differ from that of its name: another process may serve the port, or packet sockets
    /// may replace AF_XDP.
    pub class: PortClass,
    /// The card's maximum link speed, in Mbit/s; 0 for ports without a line rate.
    pub mbits: u32,
    /// Received packets have [timestamps](crate::Packet::timestamp): they were asked for, and the port records them.
    pub timestamps: bool,
    /// The features that the card, the kernel or the receiver provides.
    pub capabilities: Capabilities,
}

/// One queue per direction, and frames of [`DEFAULT_FRAME`].
impl Default for Info {
    fn default() -> Info {
        let (driver, description) = ("own", "a port of the program's own".to_string());
        let (class, mbits) = (PortClass::Program, 0);
        Info {
            driver,
            description,
            rx_queues: 1,
            tx_queues: 1,
            ring: 0,
            max_frame: DEFAULT_FRAME,
            class,
            mbits,
            timestamps: false,
            capabilities: Capabilities::default(),
        }
    }
}
