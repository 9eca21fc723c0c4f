//! Intel 82599, X540 and X550: 10 Gbit/s, up to 64 queues each way.
//!
//! Written from Intel's "82599 10 GbE Controller Datasheet" (331520); section numbers are its own.
//!
//! - [`registers`], [`descriptor`]: the card's words, shared with the [model](crate::model)
//! - `hardware`: the card as the driver sees it; waiting for it with a bound; what queues share
//! - `init`: reset and bring-up in the datasheet's order
//! - `start`: starting and stopping a queue, and where its buffers come from and go
//! - `queue`: **receive and send**, top-down in one file: read this one first
//! - `statistics`: counters that survive the card's clear-on-read registers

pub mod descriptor;
mod hardware;
mod init;
mod queue;
pub mod registers;
mod start;
mod statistics;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::memory::{DmaSpace, Pool};
use crate::pci::Bar;
use crate::port::{Device, Info, Link, MacAddress, QueueStatistics, Rss, RxQueue, Statistics, TxQueue};
use hardware::Hardware;
pub(crate) use hardware::check;
use queue::{IxgbeRx, IxgbeTx};
use registers::{FCTRL, LINKS, MRQC, RAH, RAL, RETA, RSSRK, RXCSUM};

/// Queues each way that this driver uses; the card has 128.
pub const MAX_QUEUES: u16 = 64;

/// Queues that RSS can reach: entries of the redirection table have 4 bits (section 8.2.3.7.15).
pub const MAX_RSS_QUEUES: u16 = 16;

/// The longest frame that the card can be set to, in bytes without CRC: 9,728 and CRC fit
/// `MAXFRS.MFS` (section 8.2.3.22) with the card's limit of 15.5 KiB to spare.
pub const MAX_FRAME: usize = 9728;

/// The longest frame where none is asked for: an MTU of 1,500 with a VLAN tag, without CRC.
pub const DEFAULT_FRAME: usize = 1518;

/// How a card shall be opened.
#[derive(Clone)]
pub struct Config {
    /// The port's name, for messages.
    pub name: String,
    /// What drives what, for people.
    pub description: String,
    /// Receive queues, 1 to [`MAX_QUEUES`]. RSS spreads over the first [`MAX_RSS_QUEUES`].
    pub rx_queues: u16,
    /// Transmit queues, 1 to [`MAX_QUEUES`].
    pub tx_queues: u16,
    /// Descriptors in each ring: a power of two from 64 to 4,096.
    pub ring: usize,
    /// The longest frame, in bytes without CRC, up to [`MAX_FRAME`]; longer than a buffer has room
    /// for, it arrives as a chain.
    pub max_frame: usize,
    /// Where packets live.
    pub pool: Arc<Pool>,
}

/// An open card.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::memory::{Pool, Region, RegionOptions};
/// use linerate::model::{Card, Cable};
/// use linerate::nic::ixgbe::{Config, Ixgbe};
/// use linerate::port::Device;
///
/// // On a model here; on a real card `bar` and `dma` come from uio or vfio, and nothing else changes.
/// let card = Card::new("example", Box::new(Cable::unplugged()));
/// let pool = Pool::new(Region::new(&RegionOptions::default())?);
/// let device = Ixgbe::open(card.bar(), card.dma(), Config::new("example", pool))?;
/// assert_eq!(device.info().ring, 512);
/// # Ok(()) }
/// ```
pub struct Ixgbe<B: Bar> {
    hardware: Arc<Hardware<B>>,
    rss: Rss,
    promiscuous: bool,
}

impl Config {
    /// One queue each way, rings of 512, frames of [`DEFAULT_FRAME`].
    pub fn new(name: &str, pool: Arc<Pool>) -> Config {
        Config {
            name: name.to_string(),
            description: "Intel 82599".to_string(),
            rx_queues: 1,
            tx_queues: 1,
            ring: 512,
            max_frame: DEFAULT_FRAME,
            pool,
        }
    }
}

impl<B: Bar> Ixgbe<B> {
    /// Resets the card behind `bar` and brings it up; `dma` is how it sees memory.
    ///
    /// # Errors
    /// A [`Config`] that cannot be, memory that cannot be mapped, or a card that does not answer.
    pub fn open(bar: B, dma: Arc<dyn DmaSpace>, config: Config) -> Result<Ixgbe<B>> {
        let rss = Rss::evenly(config.rx_queues.min(MAX_RSS_QUEUES));
        let hardware = Arc::new(Hardware::new(bar, &dma, config)?);
        let mut device = Ixgbe { hardware, rss, promiscuous: true };
        device.bring_up()?;
        Ok(device)
    }

    fn bring_up(&mut self) -> Result<()> {
        self.hardware.reset_and_init()?;
        let rss = self.rss.clone();
        self.set_rss(&rss)?;
        self.set_promiscuous(self.promiscuous)
    }

    fn name(&self) -> &str {
        &self.hardware.config.name
    }
}

impl<B: Bar> Device for Ixgbe<B> {
    fn name(&self) -> &str {
        Ixgbe::name(self)
    }

    fn info(&self) -> Info {
        let config = &self.hardware.config;
        Info {
            driver: "ixgbe",
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

    fn rx(&mut self, queue: u16) -> Result<Box<dyn RxQueue>> {
        Ok(Box::new(IxgbeRx::start(&self.hardware, queue)?))
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn TxQueue>> {
        Ok(Box::new(IxgbeTx::start(&self.hardware, queue)?))
    }

    fn statistics(&self) -> Result<Statistics> {
        self.hardware.statistics()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        let slots = |queues: &[hardware::QueuePlace]| queues.iter().map(|place| place.counters.slots()).collect();
        QueueStatistics { rx_slots: slots(&self.hardware.rx), tx_slots: slots(&self.hardware.tx) }
    }

    fn link(&self) -> Result<Link> {
        let links = self.hardware.read_live(LINKS::OFFSET, "LINKS")?;
        Ok(match (links & LINKS::UP != 0, links & LINKS::SPEED_MASK) {
            (true, LINKS::SPEED_10G) => Link::Up { mbits: 10_000 },
            (true, LINKS::SPEED_1G) => Link::Up { mbits: 1_000 },
            (true, LINKS::SPEED_100M) => Link::Up { mbits: 100 },
            _ => Link::Down,
        })
    }

    fn mac(&self) -> MacAddress {
        let low = self.hardware.bar.read(RAL::at(0)).to_le_bytes();
        let high = self.hardware.bar.read(RAH::at(0)).to_le_bytes();
        MacAddress([low[0], low[1], low[2], low[3], high[0], high[1]])
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.hardware.check_alive()?;
        let [a, b, c, d, e, f] = mac.0;
        self.hardware.bar.write(RAL::at(0), u32::from_le_bytes([a, b, c, d]));
        self.hardware.bar.write(RAH::at(0), u32::from_le_bytes([e, f, 0, 0]) | RAH::AV);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.hardware.check_alive()?;
        self.hardware.change(FCTRL::OFFSET, FCTRL::UPE | FCTRL::MPE, if on { FCTRL::UPE | FCTRL::MPE } else { 0 });
        self.promiscuous = on;
        Ok(())
    }

    /// Section 7.1.2.8. The table has 128 entries, four to a register.
    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        let queues = self.hardware.config.rx_queues.min(MAX_RSS_QUEUES);
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
        let bar = &self.hardware.bar;
        for (register, bytes) in rss.key.chunks_exact(4).enumerate() {
            bar.write(RSSRK::at(register as u16), u32::from_le_bytes(bytes.try_into().expect("chunks of 4")));
        }
        let mut queues = rss.table.iter().cycle();
        for register in 0..32 {
            let entries: [u8; 4] = std::array::from_fn(|_| *queues.next().expect("not empty") as u8);
            bar.write(RETA::at(register), u32::from_le_bytes(entries));
        }
        if self.hardware.config.rx_queues > 1 {
            // Without PCSD the descriptor has a checksum where the hash would be.
            self.hardware.change(RXCSUM::OFFSET, RXCSUM::PCSD, RXCSUM::PCSD);
            let fields = MRQC::IPV4 | MRQC::TCP_IPV4 | MRQC::UDP_IPV4 | MRQC::IPV6 | MRQC::TCP_IPV6 | MRQC::UDP_IPV6;
            bar.write(MRQC::OFFSET, MRQC::MRQE_RSS | fields);
        }
        self.rss = rss.clone();
        self.hardware.need_queues(rss.table.iter().copied())
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
