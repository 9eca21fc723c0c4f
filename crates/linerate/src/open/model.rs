//! Opening models of the 82599 in this process.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{Pool, Region, RegionOptions};
use crate::nic;
use crate::nic::ixgbe::Ixgbe;
use crate::port::{Config, Device, Options, Port, PortName};
use crate::sim82599::{self, Card, CardBar, Runner};

/// Buffers of a port at a model's outside: rings of 512 each way, and as many on their way.
const OUTSIDE: usize = 2048;
/// PCI's number of the vendor of the modelled cards.
const INTEL: u16 = 0x8086;

pub(super) fn open(options: &Options, name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    Ixgbe::<CardBar>::check(&config)?;
    let (card, runner) = sim82599::open_named(name, &|wire| options.open_outside(wire))?;
    let (what, _) = nic::known(name.short(), INTEL, card.kind().device())?;
    let config = Config { description: format!("{what}, a model inside this process"), ..config };
    Ok(Box::new(drive(&card, card.claim_alone(runner), config)?))
}

impl Options {
    /// Opens a port for the outside of a model, with memory of its own, which no driver of the model can reach.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    pub fn open_outside(&self, name: &str) -> Result<Port> {
        let pool = Pool::new(Region::lazy(&RegionOptions { buffers: OUTSIDE, ..RegionOptions::default() })?);
        let options = Options { pool: Some(pool), kinds: self.kinds.clone(), local: self.local, ..Options::default() };
        let [port] = options.open([name])?;
        Ok(port)
    }
}

/// Drives a model that the program has made, as the kind of card that it is; `runner` is kept at work as long as the port or
/// one of its queues is there.
///
/// # Errors
/// [`Error::PortInUse`] while another driver has the card, or it is served; all errors of [`Ixgbe::open`].
pub fn drive_model(card: &Arc<Card>, runner: Option<Arc<Runner>>, config: Config) -> Result<Ixgbe<CardBar>> {
    drive(card, card.claim(runner), config)
}

fn drive(card: &Arc<Card>, bar: Option<CardBar>, config: Config) -> Result<Ixgbe<CardBar>> {
    let bar = bar.ok_or_else(|| Error::PortInUse { name: config.name.clone() })?;
    Ixgbe::open(bar, card.bus(), Config { device: card.kind().device(), ..config })
}
