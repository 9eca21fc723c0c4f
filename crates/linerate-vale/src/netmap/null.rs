//! A port that drops sent packets and never receives any.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::port::{
    Address, Config, Description, MTU, OFFLOADS, PortClass, PortKind, QUEUES, QueueCounters, RING, Receive,
    SoftwareDevice, SoftwarePort, Transmit, Waker,
};

/// `null:`
pub static NULL: PortKind = PortKind {
    description: Description {
        options: &[QUEUES, RING, MTU, OFFLOADS],
        feature: "netmap",
        example: "null:",
        summary: "drops what it is sent, and receives nothing",
        page: "netmap.md",
        class: PortClass::Nothing,
        ..Description::new("null", Address::Text)
    },
    open: &|opening| Ok(Box::new(Null::open(opening.config)?)),
};

/// The port `null:`.
pub struct Null(());

impl Null {
    /// Opens a null port. A process may have any number of them.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption).
    pub fn open(config: Config) -> Result<SoftwarePort<Null>> {
        config.check_ring()?;
        Ok(SoftwarePort::new(config, Null(())))
    }
}

impl SoftwareDevice for Null {
    const DRIVER: &'static str = "null";
    const CLASS: PortClass = PortClass::Nothing;

    fn description(&self) -> String {
        "drops all packets".to_string()
    }

    fn is_exhausted(&self) -> bool {
        true
    }

    fn rx(&mut self, config: &Config, _: u16, _: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(NullRx { never: config.options.interrupts.map(|_| Waker::new()).transpose()? }))
    }

    fn tx(&mut self, _: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(NullTx { counters }))
    }
}

struct NullRx {
    /// Never becomes readable; lets a thread sleep until other ports have packets.
    never: Option<Waker>,
}

impl Receive for NullRx {
    fn recv(&mut self, _: &mut Batch) -> usize {
        0
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.never.as_ref().map(Waker::as_fd)
    }
}

struct NullTx {
    counters: Arc<QueueCounters>,
}

impl Transmit for NullTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let moved = super::slot_channel::counted(batch.slots());
        let slots = batch.len();
        batch.drop_front(slots);
        self.counters.moved_packets(moved.packets, slots, moved.bytes);
        slots
    }
}
