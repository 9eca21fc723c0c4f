//! A port that swallows what it is sent, and never has anything.

use std::sync::Arc;

use crate::batch::Batch;
use crate::error::Result;
use crate::port::{Config, PortKind, QueueCounters, Receive, SoftwarePort, Transmit};

/// `null:`
pub type Null = SoftwarePort<Nothing>;

/// What is behind it.
pub struct Nothing(());

impl Null {
    /// Opens one; there are as many as are wanted.
    ///
    /// # Errors
    /// [`Error::RingSize`](crate::Error::RingSize).
    pub fn open(config: Config) -> Result<Null> {
        config.check_ring()?;
        Ok(Null::new(config, Nothing(())))
    }
}

impl PortKind for Nothing {
    const DRIVER: &'static str = "null";

    fn description(&self) -> String {
        "nothing: swallows what it is sent".to_string()
    }

    fn rx(&mut self, _: &Config, _: u16, _: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(Silence))
    }

    fn tx(&mut self, _: &Config, _: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(Swallow { counters }))
    }
}

struct Silence;

impl Receive for Silence {
    fn recv(&mut self, _: &mut Batch) -> usize {
        0
    }

    fn buffers(&self) -> usize {
        0
    }
}

struct Swallow {
    counters: Arc<QueueCounters>,
}

impl Transmit for Swallow {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let (packets, bytes) = super::reader::counted(batch.slots());
        let slots = batch.len();
        batch.drop_front(slots);
        self.counters.moved_packets(packets, slots, bytes);
        slots
    }

    fn buffers(&self) -> usize {
        0
    }
}
