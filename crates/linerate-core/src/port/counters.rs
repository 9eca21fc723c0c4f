//! The counters of a port's queues. They also track which queues have owners.

use std::sync::Arc;

use super::{Config, QueueCounters, QueueStatistics, Statistics};
use crate::error::{Error, Result};

/// Counters of all queues. A queue has an owner while its counters have another reference.
pub struct Counters {
    rx: Vec<Arc<QueueCounters>>,
    tx: Vec<Arc<QueueCounters>>,
}

impl Counters {
    /// Creates the counters for a port's queues.
    pub fn new(config: &Config) -> Counters {
        let of = |count: u16| (0..count).map(|_| Arc::default()).collect();
        Counters { rx: of(config.options.rx_queues), tx: of(config.options.tx_queues) }
    }

    /// Claims a receive queue for a new owner, and returns its counters.
    pub fn claim_rx(&self, config: &Config, queue: u16) -> Result<Arc<QueueCounters>> {
        claim(&self.rx, config, "receive", queue)
    }

    /// As [`claim_rx`](Counters::claim_rx), for a transmit queue.
    pub fn claim_tx(&self, config: &Config, queue: u16) -> Result<Arc<QueueCounters>> {
        claim(&self.tx, config, "transmit", queue)
    }

    /// Returns an error if any queue has an owner.
    pub fn check_free(&self, config: &Config) -> Result<()> {
        let queues = self.rx.iter().chain(&self.tx).filter(|counters| is_taken(counters)).count();
        match queues {
            0 => Ok(()),
            _ => Err(Error::queues_in_use(&config.name, queues)),
        }
    }

    /// Returns the sums over all queues.
    pub fn sum(&self) -> Statistics {
        let sum = |counters: &[Arc<QueueCounters>], of: fn(&QueueCounters) -> u64| counters.iter().map(|c| of(c)).sum();
        let mut sums = Statistics {
            rx_packets: sum(&self.rx, QueueCounters::packets),
            rx_bytes: sum(&self.rx, QueueCounters::bytes),
            tx_packets: sum(&self.tx, QueueCounters::packets),
            tx_bytes: sum(&self.tx, QueueCounters::bytes),
            ..Statistics::default()
        };
        sums.drops.no_descriptor = sum(&self.rx, QueueCounters::no_descriptor);
        sums.drops.oversize = sum(&self.rx, QueueCounters::oversize);
        sums.drops.malformed = sum(&self.rx, QueueCounters::drops);
        sums.drops.no_buffer = sum(&self.rx, QueueCounters::no_buffer);
        sums.drops.tx_too_long = sum(&self.tx, QueueCounters::drops);
        sums
    }

    /// Returns the count of slots of each queue.
    pub fn by_queue(&self) -> QueueStatistics {
        let slots = |counters: &[Arc<QueueCounters>]| counters.iter().map(|counters| counters.slots()).collect();
        QueueStatistics { rx_slots: slots(&self.rx), tx_slots: slots(&self.tx), ..QueueStatistics::default() }
    }
}

fn is_taken(counters: &Arc<QueueCounters>) -> bool {
    Arc::strong_count(counters) > 1
}

fn claim(
    all: &[Arc<QueueCounters>],
    config: &Config,
    direction: &'static str,
    queue: u16,
) -> Result<Arc<QueueCounters>> {
    let port = || config.name.clone();
    match all.get(usize::from(queue)) {
        None => Err(Error::no_such_queue(port(), direction, queue, all.len() as u16)),
        Some(counters) if is_taken(counters) => Err(Error::queue_taken(port(), direction, queue)),
        Some(counters) => Ok(counters.clone()),
    }
}
