//! The control side of every port on one of the kernel's interfaces.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::interface::Interface;
use super::packet;
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::offload::LONGEST;
use crate::port::{
    Config, Counters, Device, Drops, Info, Link, MacAddress, QueueCounters, QueueStatistics, Receive, Rss, Statistics,
    Transmit,
};

/// The part that differs between the kinds of these ports.
pub trait Sockets: Send + Sized {
    /// The driver's name.
    const DRIVER: &'static str;
    /// Why the port cannot set receive-side scaling: the party that selects a packet's queue.
    const SPREADS: &'static str;
    /// Whether a port opened with offloads delivers large packets unsegmented.
    const OFFLOADS: bool;

    /// Returns a description, for display.
    fn description(&self, interface: &Interface) -> String;
    /// Starts a receive queue, which has no owner.
    fn rx(&mut self, on: &On, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>>;
    /// Starts a transmit queue, which has no owner.
    fn tx(&mut self, on: &On, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>>;
    /// Returns the kernel's drops since the port was opened.
    fn drops(&self) -> Drops {
        Drops::default()
    }

    /// Fails if the interface is gone.
    fn check(&self, interface: &Interface) -> Result<()> {
        interface.check()
    }
    /// Returns whether the interface has a carrier; fails if it is gone.
    fn link(&self, interface: &Interface) -> Result<Link> {
        interface.link()
    }
    /// Returns the MAC address.
    fn mac(&self, interface: &Interface) -> Result<MacAddress> {
        interface.mac()
    }
    /// Receives frames for other addresses until the returned value is dropped; `None` if the port always does.
    fn promiscuous(&self, interface: &Interface) -> Result<Option<OwnedFd>> {
        packet::promiscuous(interface).map(Some)
    }
}

/// The interface of a port, and its configuration.
pub struct On {
    pub interface: Interface,
    pub config: Config,
}

/// A port on an interface of the kernel: [`Xdp`](super::Xdp), [`PacketPort`](super::PacketPort) or [`Tap`](super::Tap).
pub struct KernelPort<S: Sockets> {
    on: On,
    sockets: S,
    counters: Counters,
    /// Held while frames for other addresses are received.
    promiscuous: Option<OwnedFd>,
}

impl<S: Sockets> KernelPort<S> {
    /// Creates a port over open sockets; with `promiscuous`, it receives frames for other addresses from the start.
    pub(super) fn new(on: On, sockets: S, promiscuous: bool) -> Result<KernelPort<S>> {
        let promiscuous = if promiscuous { sockets.promiscuous(&on.interface)? } else { None };
        let counters = Counters::new(&on.config);
        Ok(KernelPort { on, sockets, counters, promiscuous })
    }
}

impl<S: Sockets> Device for KernelPort<S> {
    fn name(&self) -> &str {
        &self.on.config.name
    }

    fn info(&self) -> Info {
        let On { interface, config } = &self.on;
        let uncut = S::OFFLOADS && config.options.offloads;
        Info {
            driver: S::DRIVER,
            description: self.sockets.description(interface) + if uncut { ", packets uncut" } else { "" },
            rx_queues: config.options.rx_queues,
            tx_queues: config.options.tx_queues,
            ring: config.ring(),
            max_frame: if uncut { LONGEST } else { config.options.max_frame },
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.on.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        self.sockets.check(&self.on.interface)?;
        let counters = self.counters.take_rx(&self.on.config, queue)?;
        self.sockets.rx(&self.on, queue, counters)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        self.sockets.check(&self.on.interface)?;
        let counters = self.counters.take_tx(&self.on.config, queue)?;
        self.sockets.tx(&self.on, queue, counters)
    }

    fn statistics(&self) -> Result<Statistics> {
        self.sockets.check(&self.on.interface)?;
        let (mut sum, drops) = (self.counters.sum(), self.sockets.drops());
        sum.drops.no_descriptor += drops.no_descriptor;
        sum.drops.malformed += drops.malformed;
        Ok(sum)
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.sockets.link(&self.on.interface)
    }

    fn mac(&self) -> MacAddress {
        self.sockets.mac(&self.on.interface).unwrap_or_default()
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.on.interface.set_mac(mac)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.sockets.check(&self.on.interface)?;
        self.promiscuous = if on { self.sockets.promiscuous(&self.on.interface)? } else { None };
        Ok(())
    }

    fn set_rss(&mut self, _: &Rss) -> Result<()> {
        let port = self.on.config.name.clone();
        Err(Error::Unsupported { port, what: "receive-side scaling", why: S::SPREADS })
    }

    fn reset(&mut self) -> Result<()> {
        self.counters.check_free(&self.on.config)?;
        self.sockets.check(&self.on.interface)
    }
}
