//! The control side of every port on one of the kernel's interfaces.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_core::error::{Error, Result};
use linerate_core::filter::Filter;
use linerate_core::port::{
    Action, Capabilities, Config, Drops, Link, MacAddress, PortClass, QueueCounters, Receive, Rule, RuleId,
    SoftwareDevice, SoftwarePort, Transmit,
};

use super::interface::Interface;
use super::packet_socket;

/// The operations that differ between the kinds of these ports.
pub trait Sockets: Send + Sized {
    /// The driver's name.
    const DRIVER: &'static str;
    /// The category of the port, for [`Info`](linerate_core::port::Info).
    const CLASS: PortClass;
    /// Why the port cannot set receive-side scaling: the party that selects a packet's queue.
    const QUEUE_SELECTOR: &'static str;
    /// Whether a port opened with offloads delivers large packets unsegmented.
    const OFFLOADS: bool;
    /// As [`SoftwareDevice::TIMESTAMPS`].
    const TIMESTAMPS: bool = false;

    /// Returns a description, for display.
    fn description(&self, interface: &Interface) -> String;
    /// Returns the features that the kernel provides.
    fn capabilities(&self, config: &Config) -> Capabilities;
    /// The last step of opening. Returns the result of [`promiscuous`](Sockets::promiscuous) if the port receives frames
    /// for other addresses from the start.
    fn start(&mut self, _: &Target) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
    /// Starts a receive queue that has no owner.
    fn rx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>>;
    /// Starts a transmit queue that has no owner.
    fn tx(&mut self, target: &Target, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>>;
    /// As [`SoftwareDevice::add_rule`].
    fn add_rule(&mut self, target: &Target, _: &Filter, _: Action) -> Result<RuleId> {
        Err(Error::unsupported(target.config.name.clone(), "filter rules", "only ports of AF_XDP have them"))
    }
    /// As [`SoftwareDevice::remove_rule`].
    fn remove_rule(&mut self, target: &Target, id: RuleId) -> Result<()> {
        Err(Error::no_such_rule(target.config.name.clone(), id))
    }
    /// Returns the rules, in the order in which they were added.
    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }
    /// Returns the kernel's and the card's drops since the port was opened.
    fn drops(&self, _: &Interface) -> Drops {
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
    /// Receives frames for other addresses until the returned value is dropped; `None` if the port always receives
    /// them.
    fn promiscuous(&self, interface: &Interface) -> Result<Option<OwnedFd>> {
        packet_socket::promiscuous(interface).map(Some)
    }
}

/// The interface of a port, and its configuration.
pub struct Target {
    pub interface: Interface,
    pub config: Config,
}

/// A port on a kernel interface: [`Xdp`](super::Xdp), [`PacketPort`](super::PacketPort) or [`Tap`](super::Tap).
pub type KernelPort<S> = SoftwarePort<OnInterface<S>>;

/// Sockets on an interface.
pub struct OnInterface<S> {
    target: Target,
    sockets: S,
    /// Held while frames for other addresses are received.
    promiscuous: Option<OwnedFd>,
}

impl<S: Sockets> OnInterface<S> {
    /// Creates a port over open sockets; with `promiscuous`, it receives frames for other addresses from the start.
    pub(super) fn port(target: Target, sockets: S, promiscuous: bool) -> Result<KernelPort<S>> {
        let promiscuous = if promiscuous { sockets.promiscuous(&target.interface)? } else { None };
        Ok(KernelPort::new(target.config.clone(), OnInterface { target, sockets, promiscuous }))
    }
}

impl<S: Sockets> SoftwareDevice for OnInterface<S> {
    const DRIVER: &'static str = S::DRIVER;
    const CLASS: PortClass = S::CLASS;
    const QUEUE_SELECTOR: &'static str = S::QUEUE_SELECTOR;
    const OFFLOADS: bool = S::OFFLOADS;
    const TIMESTAMPS: bool = S::TIMESTAMPS;

    fn description(&self) -> String {
        self.sockets.description(&self.target.interface)
    }

    fn capabilities(&self, config: &Config) -> Capabilities {
        self.sockets.capabilities(config)
    }

    fn start(&mut self) -> Result<()> {
        let promiscuous = self.sockets.start(&self.target)?;
        self.promiscuous = promiscuous.or(self.promiscuous.take());
        Ok(())
    }

    fn rx(&mut self, _: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        self.sockets.rx(&self.target, queue, counters)
    }

    fn tx(&mut self, _: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        self.sockets.tx(&self.target, queue, counters)
    }

    fn check(&self) -> Result<()> {
        self.sockets.check(&self.target.interface)
    }

    fn link(&self) -> Result<Link> {
        self.sockets.link(&self.target.interface)
    }

    fn mac(&self) -> Option<MacAddress> {
        Some(self.sockets.mac(&self.target.interface).unwrap_or_default())
    }

    fn set_mac(&mut self, _: &Config, mac: MacAddress) -> Result<()> {
        self.target.interface.set_mac(mac)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.promiscuous = if on { self.sockets.promiscuous(&self.target.interface)? } else { None };
        Ok(())
    }

    /// The interface's own filters are Linux's, which other programs share.
    fn set_addresses(&mut self, config: &Config, addresses: &[MacAddress]) -> Result<()> {
        match addresses {
            [] => Ok(()),
            _ => Err(Error::unsupported(&config.name, "filter of addresses", "use ip maddress, or promiscuous mode")),
        }
    }

    fn set_all_multicast(&mut self, config: &Config, on: bool) -> Result<()> {
        match on {
            false => Ok(()),
            true => Err(Error::unsupported(&config.name, "all-multicast mode", "use ip link set DEV allmulticast on")),
        }
    }

    fn add_rule(&mut self, _: &Config, filter: &Filter, action: Action) -> Result<RuleId> {
        self.sockets.add_rule(&self.target, filter, action)
    }

    fn remove_rule(&mut self, _: &Config, id: RuleId) -> Result<()> {
        self.sockets.remove_rule(&self.target, id)
    }

    fn rules(&self) -> Vec<Rule> {
        self.sockets.rules()
    }

    fn drops(&self) -> Drops {
        self.sockets.drops(&self.target.interface)
    }
}
