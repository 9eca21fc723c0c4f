//! VirtIO network devices, the network cards of virtual machines. The PCI transport is here; other modules implement
//! other transports.
//!
//! Written from "Virtual I/O Device (VIRTIO) Version 1.2" (OASIS, 2022), which section numbers refer to.
//! Supports modern devices, legacy devices with I/O ports, and split and packed virtqueues.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - `sent`, `sent_word`: the packets in a transmit queue; `vector`: loops with vector instructions
//! - `described`: receive queues that also read the packets' headers, for offloads and metadata
//! - `ring`: the interface of a virtqueue; `split`, `packed`: its two formats
//! - `control`: commands on the control queue
//! - `hardware`: negotiation, bringing up the device, the state that queues share; `start`: starting and stopping
//!   queues; `filters`: addresses and VLANs; `steering`: hashes, and the selection of receive queues by them
//! - `transport`: the device's registers, modern or legacy; [`spec::virtio`](linerate_spec::virtio): their names
//! - this file: the control side, [`Virtio`]
#![allow(unsafe_code)]

mod control;
mod described;
mod filters;
mod hardware;
mod packed;
mod queue;
mod ring;
mod sent;
mod sent_word;
mod split;
mod start;
mod steering;
mod transport;
mod vector;

use std::sync::Arc;

use hardware::Hardware;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Addresses, Locate, Pool};
use linerate_core::port::{
    Capabilities, Described, Device, Feature, Info, Link, MacAddress, QueueCounters, QueueStatistics, Receive, Rss, Rx,
    Statistics, Transmit, Tx,
};
use linerate_spec::virtio::{config as device_config, control as command, feature};
use packed::Packed;
use queue::VirtioRx;
use ring::DriverRing;
use split::Split;
pub use transport::{Notify, QueueAddresses, Transport};

use super::Config;
use crate::pci::{Bus, Interrupt, PciDevice};

/// The most queue pairs of a port.
pub const MAX_QUEUES: u16 = 64;

/// An open device.
pub struct Virtio {
    hardware: Arc<Hardware>,
}

impl Virtio {
    /// Resets the device and brings it up.
    ///
    /// The device may limit the length of the rings, and a legacy device determines it; see [`Info::ring`].
    ///
    /// # Errors
    /// An invalid [`Config`], memory that cannot be mapped, or a device that does not answer.
    ///
    /// # Safety
    /// As for [`drive`](super::drive).
    pub unsafe fn open(device: &Arc<dyn PciDevice>, config: Config) -> Result<Virtio> {
        config.check_ring()?;
        let bus = device.clone().bus();
        let interrupts = interrupts(&*bus, &config)?;
        let vectors = interrupts.first().is_some_and(|interrupt| !interrupt.is_line());
        let hardware = Hardware::new(transport::find(&**device, vectors)?, bus, interrupts, config)?;
        hardware.bring_up()?;
        Ok(Virtio { hardware: Arc::new(hardware) })
    }

    /// Opens and resets a device with another transport. [`reset`](Device::reset) brings it up and sets up its queues.
    ///
    /// # Errors
    /// As [`open`](Virtio::open).
    ///
    /// # Safety
    /// As for [`drive`](super::drive).
    pub unsafe fn attach(transport: Arc<dyn Transport>, bus: Arc<dyn Bus>, config: Config) -> Result<Virtio> {
        config.check_ring()?;
        let interrupts = interrupts(&*bus, &config)?;
        Ok(Virtio { hardware: Arc::new(Hardware::new(transport, bus, interrupts, config)?) })
    }

    /// Starts a receive queue with the caller's counters.
    ///
    /// # Errors
    /// As [`rx`](Device::rx).
    pub fn start_rx(&self, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        match self.hardware.packets() {
            Addresses::Contiguous(range) => self.rx_at(queue, counters, range.clone()),
            Addresses::Paged(pages) => self.rx_at(queue, counters, pages.clone()),
        }
    }

    /// Starts a transmit queue with the caller's counters.
    ///
    /// # Errors
    /// As [`tx`](Device::tx).
    pub fn start_tx(&self, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        match self.hardware.packets() {
            Addresses::Contiguous(range) => self.tx_at(queue, counters, range.clone()),
            Addresses::Paged(pages) => self.tx_at(queue, counters, pages.clone()),
        }
    }

    /// Returns whether the queues use packed virtqueues (2.8).
    pub fn is_packed(&self) -> bool {
        self.hardware.features & feature::RING_PACKED != 0
    }

    fn rx_at<L: Locate>(&self, queue: u16, counters: Arc<QueueCounters>, addresses: L) -> Result<Box<dyn Receive>> {
        Ok(match self.is_packed() {
            true => boxed(self.hardware.start_rx::<Packed, L>(queue, counters, addresses)?),
            false => boxed(self.hardware.start_rx::<Split, L>(queue, counters, addresses)?),
        })
    }

    fn tx_at<L: Locate>(&self, queue: u16, counters: Arc<QueueCounters>, addresses: L) -> Result<Box<dyn Transmit>> {
        Ok(match self.is_packed() {
            true => Box::new(Tx::new(self.hardware.start_tx::<Packed, L>(queue, counters, addresses)?)),
            false => Box::new(Tx::new(self.hardware.start_tx::<Split, L>(queue, counters, addresses)?)),
        })
    }
}

impl Virtio {
    /// Returns the features that were negotiated.
    fn capabilities(&self) -> Capabilities {
        let has = |all: u64| self.hardware.features & all == all;
        Capabilities::default()
            .with_if(has(feature::CSUM), &[Feature::SendChecksum])
            .with_if(has(feature::HOST_TSO4 | feature::HOST_TSO6), &[Feature::SendTcpSegments])
            .with_if(has(feature::HOST_USO), &[Feature::SendUdpSegments])
            .with_if(has(feature::GUEST_CSUM), &[Feature::ReceiveChecksum])
            .with_if(has(feature::GUEST_TSO4 | feature::GUEST_TSO6), &[Feature::ReceiveSegments])
            .with_if(has(feature::HASH_REPORT), &[Feature::ReceiveHash])
            .with_if(has(feature::RSS), &[Feature::Rss])
            .with_if(has(feature::CTRL_RX), &[Feature::AddressFilter])
            .with_if(has(feature::CTRL_RX | feature::CTRL_VLAN), &[Feature::VlanFilter])
    }
}

/// Boxes a receive queue, which reads the packets' headers if needed.
fn boxed<R: DriverRing, L: Locate>(rx: VirtioRx<R, L>) -> Box<dyn Receive> {
    match described::are_needed(rx.hardware.features) {
        true => Box::new(Rx::new(Described(rx))),
        false => Box::new(Rx::new(rx)),
    }
}

/// Returns an interrupt for each receive queue, if the configuration has interrupts.
fn interrupts(bus: &dyn Bus, config: &Config) -> Result<Box<[Arc<Interrupt>]>> {
    match config.options.interrupts {
        Some(_) => Ok(bus.interrupts(config.options.rx_queues)?.into_iter().map(Arc::new).collect()),
        None => Ok(Box::default()),
    }
}

impl Device for Virtio {
    fn name(&self) -> &str {
        &self.hardware.config.name
    }

    fn info(&self) -> Info {
        let Hardware { config, transport, .. } = &*self.hardware;
        let ring = if self.is_packed() { "packed" } else { "split" };
        Info {
            driver: "virtio",
            description: format!("{}, {} with {ring} queues", config.description, transport.kind()),
            rx_queues: config.options.rx_queues,
            tx_queues: config.options.tx_queues,
            ring: self.hardware.ring_size(),
            max_frame: config.options.max_frame,
            class: config.class,
            mbits: 0,
            timestamps: false,
            capabilities: self.capabilities(),
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.hardware.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        let counters = self.hardware.counters.claim_rx(&self.hardware.config, queue)?;
        self.start_rx(queue, counters)
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        let counters = self.hardware.counters.claim_tx(&self.hardware.config, queue)?;
        self.start_tx(queue, counters)
    }

    /// Sums the counters of the queues, since the device has none.
    fn statistics(&self) -> Result<Statistics> {
        self.hardware.check_alive()?;
        Ok(self.hardware.counters.sum())
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.hardware.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.hardware.check_alive()?;
        let Hardware { transport, features, .. } = &*self.hardware;
        let down = features & feature::STATUS != 0
            && transport.config_16(device_config::STATUS) & device_config::STATUS_LINK_UP == 0;
        if down {
            return Ok(Link::Down);
        }
        // A device that does not know its speed reports all ones (5.1.4).
        let mbits = if features & feature::SPEED_DUPLEX != 0 { transport.config_32(device_config::SPEED) } else { 0 };
        Ok(Link::Up { mbits: if mbits > i32::MAX as u32 { 0 } else { mbits } })
    }

    fn mac(&self) -> MacAddress {
        let byte = |index| self.hardware.transport.config_8(device_config::MAC + index);
        MacAddress([byte(0), byte(1), byte(2), byte(3), byte(4), byte(5)])
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.hardware.check_alive()?;
        if self.hardware.features & feature::CTRL_MAC_ADDR != 0 {
            return self.hardware.command(command::MAC_ADDR_SET, &mac.0, "settable MAC address");
        }
        if !self.hardware.transport.write_mac(mac.0) {
            let why = "the device has no command to set it";
            return Err(Error::unsupported(self.name().to_string(), "settable MAC address", why));
        }
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_promiscuous(on)
    }

    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_addresses(addresses)
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_all_multicast(on)
    }

    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_vlans(vlans)
    }

    /// Sets the table if the device selects queues by it (5.1.6.5.7). Otherwise, a flow arrives at the queue pair that last
    /// sent the flow's packets (5.1.6.5.6).
    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.set_rss(rss)
    }

    fn reset(&mut self) -> Result<()> {
        self.hardware.counters.check_free(&self.hardware.config)?;
        self.hardware.bring_up()
    }
}
