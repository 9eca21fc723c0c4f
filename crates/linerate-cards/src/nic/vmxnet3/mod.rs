//! VMware's paravirtual card, vmxnet3: up to 8 queues each way.
//!
//! There is no public datasheet. The facts are from Linux's `drivers/net/vmxnet3`, FreeBSD's and OpenBSD's drivers,
//! DPDK's `net/vmxnet3` and QEMU's `hw/net/vmxnet3.c`; this driver has no code of theirs. It uses revision 1, and was
//! tried on QEMU's device. That one receives all packets in queue 0 and computes no hashes.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - `hardware`: bringing up the device, the area shared with it, the state that queues share
//! - [`spec::vmxnet3`](linerate_spec::vmxnet3): registers, structures and descriptors
//! - this file: the control side, [`Vmxnet3`]

mod hardware;
mod queue;

use std::sync::Arc;

use hardware::Hardware;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Addresses, Pool};
use linerate_core::port::{
    Capabilities, Device, Drops, Feature, Info, Link, MacAddress, QueueStatistics, Receive, Rss, Rx, Statistics,
    Transmit, Tx,
};
use linerate_spec::vmxnet3::{command, vd};
use queue::{Vmxnet3Rx, Vmxnet3Tx};

use super::Config;
use super::filters::Filters;
use crate::pci::{Bar, Bus};

/// An open device.
pub struct Vmxnet3<B: Bar> {
    hardware: Arc<Hardware<B>>,
}

impl<B: Bar> Vmxnet3<B> {
    /// Resets the device with the registers `pt` (BAR 0) and `vd` (BAR 1), and brings it up.
    ///
    /// # Errors
    /// An invalid [`Config`], memory that cannot be mapped, or a device that does not answer.
    pub fn open(pt: B, vd: B, bus: Arc<dyn Bus>, config: Config) -> Result<Vmxnet3<B>> {
        let hardware = Arc::new(Hardware::new(pt, vd, bus, config)?);
        hardware.bring_up(&mut hardware.state())?;
        Ok(Vmxnet3 { hardware })
    }

    /// Changes the filters by address and VLAN.
    fn change_filters(&mut self, change: impl FnOnce(&Filters) -> Result<Filters>) -> Result<()> {
        self.hardware.check_alive()?;
        let mut state = self.hardware.state();
        state.filters = change(&state.filters)?;
        self.hardware.write_filters(&state);
        Ok(())
    }
}

impl<B: Bar> Device for Vmxnet3<B> {
    fn name(&self) -> &str {
        &self.hardware.config.name
    }

    fn info(&self) -> Info {
        let config = &self.hardware.config;
        Info {
            driver: "vmxnet3",
            description: config.description.clone(),
            rx_queues: config.options.rx_queues,
            tx_queues: config.options.tx_queues,
            ring: config.ring(),
            max_frame: config.options.max_frame,
            class: config.class,
            mbits: 0,
            timestamps: false,
            capabilities: Capabilities::default()
                .with(&[Feature::SendChecksum, Feature::SendTcpSegments, Feature::AddressFilter, Feature::VlanFilter])
                .with_if(config.options.rx_queues > 1, &[Feature::Rss])
                .with_if(config.options.metadata, &[Feature::ReceiveChecksum, Feature::ReceiveHash]),
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.hardware.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        Ok(match self.hardware.packets() {
            Addresses::Contiguous(range) => Box::new(Rx::new(Vmxnet3Rx::start(&self.hardware, queue, range.clone())?)),
            Addresses::Paged(pages) => Box::new(Rx::new(Vmxnet3Rx::start(&self.hardware, queue, pages.clone())?)),
        })
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        Ok(match self.hardware.packets() {
            Addresses::Contiguous(range) => Box::new(Tx::new(Vmxnet3Tx::start(&self.hardware, queue, range.clone())?)),
            Addresses::Paged(pages) => Box::new(Tx::new(Vmxnet3Tx::start(&self.hardware, queue, pages.clone())?)),
        })
    }

    /// Packets and bytes are the sums of the counters of unicast, multicast and broadcast.
    fn statistics(&self) -> Result<Statistics> {
        let ([tx, rx], own) = (self.hardware.count_by_direction()?, self.hardware.counters.sum());
        let (packets, bytes) = (|of: [u64; 10]| of[2] + of[4] + of[6], |of: [u64; 10]| of[3] + of[5] + of[7]);
        let drops = Drops { no_descriptor: rx[8], bad_frame: rx[9], ..own.drops };
        let [rx_packets, tx_packets] = [rx, tx].map(packets);
        let [rx_bytes, tx_bytes] = [rx, tx].map(bytes);
        Ok(Statistics { rx_packets, rx_bytes, tx_packets, tx_bytes, drops })
    }

    fn register_counters(&self) -> Result<Vec<(String, u64)>> {
        self.hardware.named_counters()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.hardware.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.hardware.check_alive()?;
        let _alone = self.hardware.state();
        let link = self.hardware.ask(command::GET_LINK)?;
        Ok(if link & 1 != 0 { Link::Up { mbits: link >> 16 } } else { Link::Down })
    }

    fn mac(&self) -> MacAddress {
        let read = |register: u32| self.hardware.vd.read(register);
        MacAddress::from_words(read(vd::MACL::OFFSET), read(vd::MACH::OFFSET))
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.hardware.check_alive()?;
        let mut state = self.hardware.state();
        state.mac = Some(mac);
        self.hardware.write_mac(&state);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.change_filters(|filters| Ok(Filters { promiscuous: on, ..filters.clone() }))
    }

    fn set_all_multicast(&mut self, on: bool) -> Result<()> {
        self.change_filters(|filters| Ok(Filters { all_multicast: on, ..filters.clone() }))
    }

    /// The device has a list of multicast addresses, and no unicast address beside its own.
    fn set_addresses(&mut self, addresses: &[MacAddress]) -> Result<()> {
        let name = self.name().to_string();
        self.change_filters(|filters| filters.with_addresses(&name, addresses, 0, hardware::MOST_GROUPS))
    }

    fn set_vlans(&mut self, vlans: Option<&[u16]>) -> Result<()> {
        let name = self.name().to_string();
        self.change_filters(|filters| filters.with_vlans(&name, vlans))
    }

    /// The device reads a new key only when it is activated, so only while no queue is in use.
    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        rss.check(self.name(), self.hardware.config.options.rx_queues)?;
        self.hardware.check_alive()?;
        let mut state = self.hardware.state();
        let has_new_key = state.rss.key != rss.key;
        if has_new_key && state.in_use > 0 {
            return Err(Error::queues_in_use(self.name(), state.in_use));
        }
        state.rss = rss.clone();
        if has_new_key {
            return self.hardware.bring_up(&mut state);
        }
        self.hardware.steer(&mut state);
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        let mut state = self.hardware.state();
        match state.in_use {
            0 => self.hardware.bring_up(&mut state),
            queues => Err(Error::queues_in_use(self.name(), queues)),
        }
    }
}
