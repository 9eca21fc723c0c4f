//! The control side of every port in memory.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::port::{
    Config, Counters, Device, Drops, Info, Link, MacAddress, QueueCounters, QueueStatistics, Receive, Rss, Statistics,
    Transmit,
};

/// One kind of port in memory.
pub trait Virtual: Send {
    /// The driver's name.
    const DRIVER: &'static str;

    /// Describes the port for users.
    fn description(&self) -> String;
    /// Starts a receive queue that is not taken.
    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>>;
    /// Starts a transmit queue that is not taken.
    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>>;
    /// Returns whether the other end is open.
    ///
    /// # Errors
    /// As [`Device::link`].
    fn link(&self) -> Result<Link> {
        Ok(Link::Up { mbits: 0 })
    }
    /// Checks whether the port's address can be set.
    ///
    /// # Errors
    /// The reason why not.
    fn check_mac(&self, _config: &Config) -> Result<()> {
        Ok(())
    }
    /// Counts packets to this port that were dropped without room.
    fn drops(&self) -> Drops {
        Drops::default()
    }
}

/// A port in memory, such as [`Pipe`](super::Pipe) or [`ValePort`](super::ValePort).
pub struct VirtualPort<V: Virtual> {
    config: Config,
    mac: MacAddress,
    counters: Counters,
    kind: V,
}

impl<V: Virtual> VirtualPort<V> {
    /// Makes a port whose address is derived from its name.
    pub(super) fn new(config: Config, kind: V) -> VirtualPort<V> {
        let mac = MacAddress::of_name(&config.name);
        VirtualPort::with_mac(config, mac, kind)
    }

    /// Makes a port with this address.
    pub(crate) fn with_mac(config: Config, mac: MacAddress, kind: V) -> VirtualPort<V> {
        let counters = Counters::new(&config);
        VirtualPort { config, mac, counters, kind }
    }

    pub(super) fn kind(&self) -> &V {
        &self.kind
    }
}

impl<V: Virtual> Device for VirtualPort<V> {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn info(&self) -> Info {
        Info {
            driver: V::DRIVER,
            description: self.kind.description(),
            rx_queues: self.config.rx_queues,
            tx_queues: self.config.tx_queues,
            ring: self.config.ring,
            max_frame: self.config.max_frame,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        let counters = self.counters.take_rx(&self.config, queue)?;
        self.kind.rx(&self.config, queue, counters)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        let counters = self.counters.take_tx(&self.config, queue)?;
        self.kind.tx(&self.config, queue, counters)
    }

    fn statistics(&self) -> Result<Statistics> {
        self.kind.link()?;
        let (mut sum, drops) = (self.counters.sum(), self.kind.drops());
        sum.drops.no_descriptor += drops.no_descriptor;
        sum.drops.oversize += drops.oversize;
        Ok(sum)
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.kind.link()
    }

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.kind.check_mac(&self.config)?;
        self.mac = mac;
        Ok(())
    }

    /// Changes nothing: all packets that are sent to the port are received.
    fn set_promiscuous(&mut self, _: bool) -> Result<()> {
        Ok(())
    }

    fn set_rss(&mut self, _: &Rss) -> Result<()> {
        let why = "the sender chooses the queue";
        Err(Error::Unsupported { port: self.config.name.clone(), what: "receive-side scaling", why })
    }

    fn reset(&mut self) -> Result<()> {
        self.counters.check_free(&self.config)
    }
}
