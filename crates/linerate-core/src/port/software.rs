//! The control side of all ports without a card: ports in memory, on kernel interfaces, and of capture files.

use std::sync::Arc;

use super::{
    Action, Capabilities, CaptureCounts, Config, Counters, Device, Drops, Feature, Info, Link, MacAddress, PortClass,
    QueueCounters, QueueStatistics, Receive, Rss, Rule, RuleId, Statistics, Transmit,
};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::memory::Pool;
use crate::offload::LONGEST;

/// The parts of a [`SoftwarePort`] that differ by kind.
pub trait SoftwareDevice: Send {
    /// The driver's name.
    const DRIVER: &'static str;
    /// The category of the port, for [`Info`].
    const CLASS: PortClass;
    /// Why receive-side scaling cannot be set, for the error message.
    const QUEUE_SELECTOR: &'static str = "the sender selects the queue";
    /// Whether packets stay unsegmented if the port is opened with offloads.
    const OFFLOADS: bool = false;
    /// Whether received packets have timestamps if the port is opened with them.
    const TIMESTAMPS: bool = false;

    /// Returns a description for display.
    fn description(&self) -> String;

    /// Returns the features that others provide. With offloads, receivers finish checksums and segments, in both
    /// directions.
    fn capabilities(&self, config: &Config) -> Capabilities {
        let is_uncut = Self::OFFLOADS && config.options.offloads;
        Capabilities::default().with_if(is_uncut, &Feature::SENDING).with_if(is_uncut, &[Feature::ReceiveSegments])
    }

    /// As [`Device::start`].
    ///
    /// # Errors
    /// As [`Device::start`].
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Starts a receive queue that has no owner.
    ///
    /// # Errors
    /// As [`Device::rx`].
    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>>;

    /// Starts a transmit queue that has no owner.
    ///
    /// # Errors
    /// As [`Device::tx`].
    fn tx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>>;

    /// As [`Device::prepare_tx`].
    ///
    /// # Errors
    /// As [`Device::prepare_tx`].
    fn prepare_tx(&mut self) -> Result<()> {
        Ok(())
    }

    /// Checks that the port still exists.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`](crate::ErrorKind::Gone), or an error specific to the kind.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the state of the link.
    ///
    /// # Errors
    /// As [`Device::link`].
    fn link(&self) -> Result<Link> {
        Ok(Link::Up { mbits: 0 })
    }

    /// As [`Device::is_exhausted`].
    fn is_exhausted(&self) -> bool {
        false
    }

    /// As [`Device::capture_counts`].
    fn capture_counts(&self) -> CaptureCounts {
        CaptureCounts::default()
    }

    /// Returns the address if the kind stores it; `None` if [`SoftwarePort`] does.
    fn mac(&self) -> Option<MacAddress> {
        None
    }

    /// Changes the address. If [`SoftwarePort`] stores it, only checks that a change is allowed.
    ///
    /// # Errors
    /// As [`Device::set_mac`].
    fn set_mac(&mut self, _config: &Config, _mac: MacAddress) -> Result<()> {
        Ok(())
    }

    /// As [`Device::set_promiscuous`]. A port in memory receives all packets sent to it.
    ///
    /// # Errors
    /// As [`Device::set_promiscuous`].
    fn set_promiscuous(&mut self, _on: bool) -> Result<()> {
        Ok(())
    }

    /// As [`Device::set_addresses`]. A port in memory receives all packets sent to it.
    ///
    /// # Errors
    /// As [`Device::set_addresses`].
    fn set_addresses(&mut self, _config: &Config, _addresses: &[MacAddress]) -> Result<()> {
        Ok(())
    }

    /// As [`Device::set_all_multicast`]. A port in memory receives all packets sent to it.
    ///
    /// # Errors
    /// As [`Device::set_all_multicast`].
    fn set_all_multicast(&mut self, _config: &Config, _on: bool) -> Result<()> {
        Ok(())
    }

    /// As [`Device::add_rule`].
    ///
    /// # Errors
    /// As [`Device::add_rule`].
    fn add_rule(&mut self, config: &Config, _filter: &Filter, _action: Action) -> Result<RuleId> {
        Err(has_no_rules(config))
    }

    /// As [`Device::remove_rule`].
    ///
    /// # Errors
    /// As [`Device::remove_rule`].
    fn remove_rule(&mut self, config: &Config, _id: RuleId) -> Result<()> {
        Err(has_no_rules(config))
    }

    /// As [`Device::rules`].
    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }

    /// Returns the counts of packets dropped outside the queues.
    fn drops(&self) -> Drops {
        Drops::default()
    }
}

fn has_no_rules(config: &Config) -> Error {
    Error::unsupported(config.name.clone(), "filter rules", "this kind of port cannot do that")
}

/// A port without a card, such as a pipe or a TAP interface.
pub struct SoftwarePort<K: SoftwareDevice> {
    config: Config,
    mac: MacAddress,
    counters: Counters,
    kind: K,
}

impl<K: SoftwareDevice> SoftwarePort<K> {
    /// Creates a port whose address is derived from its name.
    pub fn new(config: Config, kind: K) -> SoftwarePort<K> {
        let mac = MacAddress::of_name(&config.name);
        SoftwarePort::with_mac(config, mac, kind)
    }

    /// Creates a port with this address.
    pub fn with_mac(config: Config, mac: MacAddress, kind: K) -> SoftwarePort<K> {
        let counters = Counters::new(&config);
        SoftwarePort { config, mac, counters, kind }
    }

    /// Returns the part that differs by kind.
    pub fn kind(&self) -> &K {
        &self.kind
    }

    /// Returns whether packets stay unsegmented.
    fn is_uncut(&self) -> bool {
        K::OFFLOADS && self.config.options.offloads
    }
}

impl<K: SoftwareDevice> Device for SoftwarePort<K> {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn info(&self) -> Info {
        let options = &self.config.options;
        Info {
            driver: K::DRIVER,
            description: self.kind.description() + if self.is_uncut() { ", packets uncut" } else { "" },
            rx_queues: options.rx_queues,
            tx_queues: options.tx_queues,
            ring: self.config.ring(),
            max_frame: if self.is_uncut() { LONGEST } else { options.max_frame },
            class: K::CLASS,
            mbits: 0,
            timestamps: K::TIMESTAMPS && options.timestamps,
            capabilities: self.kind.capabilities(&self.config),
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.config.pool
    }

    fn start(&mut self) -> Result<()> {
        self.kind.start()
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        self.kind.check()?;
        let counters = self.counters.claim_rx(&self.config, queue)?;
        self.kind.rx(&self.config, queue, counters)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        self.kind.check()?;
        let counters = self.counters.claim_tx(&self.config, queue)?;
        self.kind.tx(&self.config, queue, counters)
    }

    fn prepare_tx(&mut self) -> Result<()> {
        self.kind.prepare_tx()
    }

    /// Returns the counters, also after the port is gone.
    fn statistics(&self) -> Result<Statistics> {
        let mut sum = self.counters.sum();
        sum.drops += self.kind.drops();
        Ok(sum)
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.kind.link()
    }

    fn is_exhausted(&self) -> bool {
        self.kind.is_exhausted()
    }

    fn capture_counts(&self) -> CaptureCounts {
        self.kind.capture_counts()
    }

    fn mac(&self) -> MacAddress {
        self.kind.mac().unwrap_or(self.mac)
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.kind.set_mac(&self.config, mac)?;
        self.mac = mac;
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.kind.check()?;
        self.kind.set_promiscuous(on)
    }

    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        self.kind.check()?;
        self.kind.set_addresses(&self.config, addresses)
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.kind.check()?;
        self.kind.set_all_multicast(&self.config, on)
    }

    fn set_rss(&mut self, _: &Rss) -> Result<()> {
        let port = self.config.name.clone();
        Err(Error::unsupported(port, "receive-side scaling", K::QUEUE_SELECTOR))
    }

    fn add_rule(&mut self, filter: &Filter, action: Action) -> Result<RuleId> {
        self.kind.check()?;
        self.kind.add_rule(&self.config, filter, action)
    }

    fn remove_rule(&mut self, id: RuleId) -> Result<()> {
        self.kind.remove_rule(&self.config, id)
    }

    fn rules(&self) -> Vec<Rule> {
        self.kind.rules()
    }

    fn reset(&mut self) -> Result<()> {
        self.counters.check_free(&self.config)?;
        self.kind.check()
    }
}
