//! AF_PACKET: a copy of all that an interface receives, and sending beside the kernel. It needs no driver's help, and
//! costs a copy and more of the kernel's path than AF_XDP.
//!
//! - `socket`: a packet socket with its rings
//! - `queue`: receive and send
//!
//! The kernel receives the same packets, too: an interface that a program forwards from should have no address.

mod queue;
mod socket;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::counters::Counters;
use super::interface::Interface;
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::port::{Config, Device, Info, Link, MacAddress, QueueStatistics, Rss, RxQueue, Statistics, TxQueue};
use queue::{LONGEST, PacketRx, PacketTx};
use socket::Socket;

/// An interface, over packet sockets: one for each queue.
pub struct PacketPort {
    interface: Interface,
    config: Config,
    sockets: Vec<Arc<Socket>>,
    counters: Counters,
    /// Receive queues that have been taken; packets come when all have.
    started: Vec<bool>,
    /// As long as frames for others are received.
    promiscuous: Option<OwnedFd>,
    /// Packets that the kernel has dropped; it tells only of new ones.
    dropped: AtomicU64,
}

impl PacketPort {
    /// Opens an interface.
    ///
    /// # Errors
    /// [`Error::Interface`]: what stands in the way.
    pub fn open(interface: Interface, config: Config) -> Result<PacketPort> {
        if !config.ring.is_power_of_two() || !(64..=4096).contains(&config.ring) {
            return Err(Error::RingSize { size: config.ring });
        }
        let longest = if config.offloads { LONGEST } else { config.max_frame };
        let count = config.rx_queues.max(config.tx_queues);
        let sockets = (0..count).map(|_| Socket::open(&interface, config.ring, longest).map(Arc::new));
        let sockets = sockets.collect::<Result<Vec<_>>>()?;
        let counters = Counters::new(&config);
        let started = vec![false; config.rx_queues.into()];
        let promiscuous = Some(interface.promiscuous()?);
        Ok(PacketPort { interface, config, sockets, counters, started, promiscuous, dropped: AtomicU64::new(0) })
    }

    /// A receive queue was taken; when it was the last one, packets begin to come.
    fn start(&mut self, queue: u16) -> Result<()> {
        let before = self.started.iter().all(|started| *started);
        self.started[usize::from(queue)] = true;
        if before || !self.started.iter().all(|started| *started) {
            return Ok(());
        }
        let sockets = &self.sockets[..self.started.len()];
        let (first, others) = sockets.split_first().expect("a port has a queue");
        first.start(&self.interface, None)?;
        if !others.is_empty() {
            let group = first.new_group(&self.interface)?;
            others.iter().try_for_each(|socket| socket.start(&self.interface, Some(group)))?;
        }
        Ok(())
    }
}

impl Device for PacketPort {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn info(&self) -> Info {
        let offloads = if self.config.offloads { ", packets uncut" } else { "" };
        Info {
            driver: "packet",
            description: format!("{} interface, AF_PACKET rings{offloads}", self.interface.driver()),
            rx_queues: self.config.rx_queues,
            tx_queues: self.config.tx_queues,
            ring: self.config.ring,
            max_frame: if self.config.offloads { LONGEST } else { self.config.max_frame },
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn RxQueue>> {
        self.interface.check()?;
        let counters = self.counters.take_rx(&self.config, queue)?;
        let socket = self.sockets[usize::from(queue)].clone();
        let place = *socket.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let rx = PacketRx {
            socket,
            place,
            pool: self.config.pool.clone(),
            counters,
            offloads: self.config.offloads,
            longest: self.config.max_frame,
            segments: VecDeque::new(),
        };
        self.start(queue)?;
        Ok(Box::new(rx))
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn TxQueue>> {
        self.interface.check()?;
        let counters = self.counters.take_tx(&self.config, queue)?;
        let socket = self.sockets[usize::from(queue)].clone();
        // A socket that only sends is bound, too.
        if self.started.iter().any(|started| !*started) {
            socket.aim(&self.interface)?;
        }
        let next = *socket.next.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(PacketTx { socket, next, oldest: next, counters, longest: self.config.max_frame }))
    }

    fn statistics(&self) -> Result<Statistics> {
        self.interface.check()?;
        let new: u64 = self.sockets.iter().map(|socket| socket.drops()).sum();
        let mut sum = self.counters.sum();
        sum.drops.no_descriptor += self.dropped.fetch_add(new, Ordering::Relaxed) + new;
        Ok(sum)
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.counters.by_queue()
    }

    fn link(&self) -> Result<Link> {
        self.interface.link()
    }

    fn mac(&self) -> MacAddress {
        self.interface.mac().unwrap_or_default()
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.interface.set_mac(mac)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.promiscuous = if on { Some(self.interface.promiscuous()?) } else { None };
        Ok(())
    }

    fn set_rss(&mut self, _: &Rss) -> Result<()> {
        let why = "the kernel spreads flows over the sockets by a hash of its own";
        Err(Error::Unsupported { port: self.config.name.clone(), what: "receive-side scaling", why })
    }

    fn reset(&mut self) -> Result<()> {
        self.counters.check_free(&self.config)?;
        self.interface.check()
    }
}
