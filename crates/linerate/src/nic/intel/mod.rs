//! What Intel's cards have in common since the 82575: advanced descriptors, and the rings of them.
//!
//! A card's own room ([`ixgbe`](super::ixgbe), [`igb`](super::igb)) says what its registers are, as a
//! [`Controller`]; everything that moves packets is here, once.
//!
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - [`descriptor`]: the words that the card and we exchange, shared with the [model](crate::model)
//! - `vector`: several descriptors at a time, for `queue`
//! - `start`: starting and stopping a queue, and where its buffers come from and go
//! - `semaphore`: what a driver shares with firmware
//! - `hardware`: the card as its driver sees it; waiting for it with a bound; what queues share
//! - here: the control side, [`Intel`]

pub mod descriptor;
mod hardware;
mod queue;
mod semaphore;
mod start;
mod vector;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Config;
use crate::error::{Error, Result};
use crate::memory::{Addresses, Pool};
use crate::pci::{Bar, Bus};
use crate::port::{Device, Drops, Info, Link, MacAddress, QueueStatistics, Receive, Rss, Statistics, Transmit};
pub use hardware::Hardware;
use queue::{IntelRx, IntelTx};
pub(super) use semaphore::Semaphores;

/// What one of Intel's controllers does its own way: registers, and the order in which they want to
/// be written.
pub trait Controller: Sized + Send + Sync + 'static {
    /// The driver's name.
    const DRIVER: &'static str;
    /// Queues each way that can be used.
    const MAX_QUEUES: u16;
    /// Queues that receive-side scaling can reach.
    const MAX_RSS_QUEUES: u16;
    /// Queues that can have an interrupt each.
    const MAX_INTERRUPTS: u16;
    /// The longest frame, in bytes without CRC.
    const MAX_FRAME: usize;
    /// Of a receive descriptor's word 1: the MAC found an error.
    const RX_ERRORS: u64;

    /// The offset of a receive queue's tail register.
    fn receive_tail(queue: u16) -> u32;
    /// The offset of a transmit queue's tail register.
    fn transmit_tail(queue: u16) -> u32;

    /// Brings the card from any state to one where queues can be started, with receive disabled.
    fn bring_up<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Stops all DMA and resets the card, so that it forgets all addresses.
    fn halt<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Lets frames come in.
    fn enable_receive<B: Bar>(hardware: &Hardware<B, Self>) -> Result<()>;
    /// Lets no more frames come in.
    fn disable_receive<B: Bar>(hardware: &Hardware<B, Self>);

    /// Starts a receive queue whose descriptors are filled, all but the last the card's.
    fn start_receive_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// After this the card does not touch the queue's memory.
    fn stop_receive_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// Starts an empty transmit queue.
    fn start_transmit_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;
    /// After this the card does not touch the queue's memory.
    fn stop_transmit_queue<B: Bar>(hardware: &Hardware<B, Self>, queue: u16) -> Result<()>;

    /// The link as it is now.
    fn link<B: Bar>(hardware: &Hardware<B, Self>) -> Result<Link>;
    /// The registers that hold the card's own address, low and high.
    fn address_registers() -> (u32, u32);
    /// Receives all frames, or only the card's own, multicast as it was set, and broadcast.
    fn set_promiscuous<B: Bar>(hardware: &Hardware<B, Self>, on: bool);
    /// Writes key and table; its queues have been checked.
    fn set_rss<B: Bar>(hardware: &Hardware<B, Self>, rss: &Rss);
    /// Writes the table alone.
    fn set_table<B: Bar>(hardware: &Hardware<B, Self>, rss: &Rss);

    /// Gives each receive queue an interrupt of its own, throttled; none of them is allowed yet.
    fn set_interrupts<B: Bar>(hardware: &Hardware<B, Self>, queues: u16, throttle: Duration);
    /// Lets the next packet of a queue interrupt once; one that has come already does so at once.
    fn allow_interrupt<B: Bar>(hardware: &Hardware<B, Self>, queue: u16);
    /// No interrupts of this queue.
    fn forbid_interrupt<B: Bar>(hardware: &Hardware<B, Self>, queue: u16);

    /// Adds what the card has counted since the last time; sent bytes with their CRCs.
    fn count<B: Bar>(hardware: &Hardware<B, Self>, sum: &mut Statistics);
}

/// An open card.
pub struct Intel<B: Bar, C: Controller> {
    hardware: Arc<Hardware<B, C>>,
    rss: Rss,
    promiscuous: bool,
    _controller: PhantomData<C>,
}

impl<B: Bar, C: Controller> Intel<B, C> {
    /// Resets the card behind `bar` and brings it up; `bus` is what it is plugged into.
    ///
    /// # Errors
    /// A [`Config`] that cannot be, memory that cannot be mapped, or a card that does not answer.
    pub fn open(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Intel<B, C>> {
        let rss = Rss::evenly(config.rx_queues.min(C::MAX_RSS_QUEUES));
        let hardware = Arc::new(Hardware::new(bar, bus, config)?);
        let mut device = Intel { hardware, rss, promiscuous: true, _controller: PhantomData };
        device.bring_up()?;
        Ok(device)
    }

    /// Whether a card of this kind can be opened like this.
    ///
    /// # Errors
    /// What is not possible, and what is.
    pub(crate) fn check(config: &Config) -> Result<()> {
        hardware::check::<C>(config)
    }

    fn bring_up(&mut self) -> Result<()> {
        C::bring_up(&self.hardware)?;
        if let Some(throttle) = self.hardware.config.interrupts {
            C::set_interrupts(&self.hardware, self.hardware.config.rx_queues, throttle);
        }
        let rss = self.rss.clone();
        self.set_rss(&rss)?;
        self.set_promiscuous(self.promiscuous)
    }
}

impl<B: Bar, C: Controller> Device for Intel<B, C> {
    fn name(&self) -> &str {
        &self.hardware.config.name
    }

    fn info(&self) -> Info {
        let config = &self.hardware.config;
        Info {
            driver: C::DRIVER,
            description: config.description.clone(),
            rx_queues: config.rx_queues,
            tx_queues: config.tx_queues,
            ring: config.ring,
            max_frame: config.max_frame,
        }
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.hardware.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        Ok(match self.hardware.packets() {
            Addresses::Contiguous(range) => Box::new(IntelRx::start(&self.hardware, queue, range.clone())?),
            Addresses::Paged(pages) => Box::new(IntelRx::start(&self.hardware, queue, pages.clone())?),
        })
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        Ok(match self.hardware.packets() {
            Addresses::Contiguous(range) => Box::new(IntelTx::start(&self.hardware, queue, range.clone())?),
            Addresses::Paged(pages) => Box::new(IntelTx::start(&self.hardware, queue, pages.clone())?),
        })
    }

    fn statistics(&self) -> Result<Statistics> {
        self.hardware.statistics()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        let slots = |queues: &[hardware::QueuePlace]| queues.iter().map(|place| place.counters.slots()).collect();
        QueueStatistics { rx_slots: slots(&self.hardware.rx), tx_slots: slots(&self.hardware.tx) }
    }

    fn link(&self) -> Result<Link> {
        self.hardware.check_alive()?;
        C::link(&self.hardware)
    }

    fn mac(&self) -> MacAddress {
        let (low, high) = C::address_registers();
        MacAddress::from_words(self.hardware.bar.read(low), self.hardware.bar.read(high))
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        /// RAH.AV: the address counts.
        const VALID: u32 = 1 << 31;
        self.hardware.check_alive()?;
        let ((low, high), (first, last)) = (C::address_registers(), mac.words());
        self.hardware.bar.write(low, first);
        self.hardware.bar.write(high, last | VALID);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.hardware.check_alive()?;
        C::set_promiscuous(&self.hardware, on);
        self.promiscuous = on;
        Ok(())
    }

    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        let queues = self.hardware.config.rx_queues.min(C::MAX_RSS_QUEUES);
        let why = match rss.table.iter().find(|&&queue| queue >= queues) {
            _ if rss.table.is_empty() || rss.table.len() > 128 => {
                Some(format!("the table has {} entries; it must have 1 to 128", rss.table.len()))
            }
            Some(queue) => Some(format!(
                "the table names queue {queue}; this card can spread over queues 0 to {} here (its entries have 4 bits)",
                queues - 1
            )),
            None => None,
        };
        if let Some(why) = why {
            return Err(Error::Rss { port: self.name().to_string(), why });
        }
        self.hardware.check_alive()?;
        self.rss = rss.clone();
        self.hardware.spread(rss)
    }

    fn reset(&mut self) -> Result<()> {
        let hardware = &self.hardware;
        let queues = hardware.rx.iter().chain(&hardware.tx).filter(|place| place.taken.load(Ordering::Acquire)).count();
        if queues > 0 {
            return Err(Error::QueuesInUse { port: self.name().to_string(), queues });
        }
        // What the card has counted is added up before the reset clears it.
        hardware.statistics()?;
        self.bring_up()
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Adds what the card has counted since the last time, and what the queues have.
    ///
    /// The card's counters are 32 bits wide and cleared by reading. They are added up whenever
    /// somebody asks; at 10 Gbit/s a card counts to 2^32 in 288 s, and asked less often stops there.
    fn statistics(&self) -> Result<Statistics> {
        self.check_alive()?;
        const CRC: u64 = 4;
        let mut sum = self.counted();
        C::count(self, &mut sum);
        let drops = Drops {
            no_buffer: self.rx.iter().map(|place| place.counters.no_buffers()).sum(),
            malformed: self.rx.iter().map(|place| place.counters.drops()).sum(),
            tx_too_long: self.tx.iter().map(|place| place.counters.drops()).sum(),
            ..sum.drops
        };
        Ok(Statistics { tx_bytes: sum.tx_bytes.saturating_sub(sum.tx_packets * CRC), drops, ..*sum })
    }
}
