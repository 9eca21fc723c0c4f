//! A driver for Intel's 82599, written outside linerate's workspace.
//!
//! It uses only the public driver API: [`linerate_core`] for batches, memory and ports, [`linerate_cards::pci`] for the
//! card's registers and bus, and [`linerate_spec`] for the names of registers. It uses no code of linerate's own
//! drivers. It has one queue in each direction, polls, and expects a module or cable for 10 Gbit/s. Section numbers are
//! those of Intel's "82599 10 GbE Controller Datasheet" (331520).
//!
//! - `card`: registers, bounded waits, reset and bring-up
//! - `receive`, `transmit`: the queues, which move packets between the card's rings and a batch
//! - this file: [`Driver`], the control side
//!
//! `docs/driver.md` in linerate's repository lists the functions that a driver may call, and explains which are unsafe.

mod card;
mod receive;
mod transmit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use card::Card;
use linerate_cards::pci::{Bar, Bus};
use linerate_core::Result;
use linerate_core::memory::Pool;
use linerate_core::port::{
    Config, Counters, Device, Info, Link, MacAddress, PortClass, Receive, Rx, Statistics, Transmit, Tx,
};
use linerate_spec::x82599::*;

/// An open card: the control side of its port. [`Port::new`](linerate_core::port::Port::new) makes a port of it.
///
/// ```
/// use linerate_core::memory::{Pool, Region, RegionOptions};
/// use linerate_core::port::{Config, Port};
/// use linerate_sim82599::{Cable, Card};
///
/// # fn main() -> linerate_core::Result<()> {
/// let pool = Pool::new(Region::new(&RegionOptions::default())?);
/// let card = Card::new("example", Box::new(Cable::unplugged()));
/// // SAFETY: only this driver gets the registers. Its rings are in memory that belongs to no region.
/// let bar = unsafe { card.claim_bar(None) }.expect("no other driver uses the card");
/// let port = Port::new(outside_driver::Driver::open(bar, card.bus(), Config::new("example", pool))?);
/// assert_eq!((port.info().driver, port.info().ring), ("outside-82599", 512));
/// # Ok(()) }
/// ```
pub struct Driver<B: Bar> {
    card: Arc<Card<B>>,
    counters: Counters,
    /// Frames for which the card had no descriptor. Reading the card's counter clears it.
    missed: AtomicU64,
}

impl<B: Bar> Driver<B> {
    /// Resets the card with the registers `bar` on the bus `bus`, and brings it up. The code that created `bar` has
    /// promised that only this driver uses the card.
    ///
    /// # Errors
    /// An invalid [`Config`], memory that cannot be mapped for the card, or a card that does not answer.
    pub fn open(bar: B, bus: Arc<dyn Bus>, config: Config) -> Result<Driver<B>> {
        let counters = Counters::new(&config);
        Ok(Driver { card: Arc::new(Card::open(bar, bus, config)?), counters, missed: AtomicU64::new(0) })
    }
}

impl<B: Bar> Device for Driver<B> {
    fn name(&self) -> &str {
        &self.card.config.name
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.card.config.pool
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn Receive>> {
        let counters = self.counters.claim_rx(&self.card.config, queue)?;
        Ok(Box::new(Rx::new(receive::Ring::start(&self.card, counters)?)))
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn Transmit>> {
        let counters = self.counters.claim_tx(&self.card.config, queue)?;
        Ok(Box::new(Tx::new(transmit::Ring::start(&self.card, counters)?)))
    }

    fn info(&self) -> Info {
        Info {
            driver: "outside-82599",
            description: self.card.config.description.clone(),
            ring: self.card.config.ring(),
            max_frame: self.card.config.options.max_frame,
            class: PortClass::Program,
            mbits: 10_000,
            ..Info::default()
        }
    }

    fn statistics(&self) -> Result<Statistics> {
        let missed = u64::from(self.card.read_live(RXMPC(0))?);
        let mut sum = self.counters.sum();
        sum.drops.no_descriptor += self.missed.fetch_add(missed, Ordering::Relaxed) + missed;
        Ok(sum)
    }

    fn link(&self) -> Result<Link> {
        let is_up = self.card.read_live(LINKS)? & LINKS::UP != 0;
        Ok(if is_up { Link::Up { mbits: 10_000 } } else { Link::Down })
    }

    fn mac(&self) -> MacAddress {
        MacAddress::from_words(self.card.read(RAL(0)), self.card.read(RAH(0)))
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.card.read_live(STATUS)?;
        self.card.set_promiscuous(on);
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.counters.check_free(&self.card.config)?;
        self.card.bring_up()
    }
}
