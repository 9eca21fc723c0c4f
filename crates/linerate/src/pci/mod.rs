//! Reaching a PCI device: finding it, taking it from the kernel, its configuration space, registers,
//! memory and interrupts.
//!
//! - `sysfs`: which cards there are, as Linux sees them: [`network_cards`]
//! - `bind`: taking a card from the kernel's driver and giving it back: [`take`], [`give_back`]
//! - `bus`: what a driver sees of all this: [`Bus`], [`PciDevice`]
//! - `bar`, `port_io`: registers in memory ([`Bar`]) or behind I/O ports ([`IoPorts`])
//! - `config`: configuration space; `interrupt`: [`Interrupt`]; `fault`: what the IOMMU has stopped
//! - `uio`, `vfio`: the kernel's two ways to a card; [`vfio_user`]: a process that serves one, or is served
//!
//! Drivers are generic over [`Bar`] and see [`Bus`]; nothing in this room knows a driver. Read
//! [`PciDevice`], then [`crate::nic`].

mod bar;
mod bind;
mod bus;
pub mod config;
mod fault;
mod interrupt;
mod port_io;
mod sysfs;
mod uio;
mod vfio;
pub mod vfio_user;

use std::sync::Arc;

pub use bar::{Bar, Doorbell, MappedBar, MappedDoorbell, Register};
pub use bind::{Taken, Through, companions, give_back, in_use, take, taken};
pub use bus::{Bus, PciDevice};
pub use fault::Fault;
pub use interrupt::Interrupt;
pub use port_io::IoPorts;
pub use sysfs::{NetworkCard, network_cards};

use crate::error::Result;

/// Whether, and how, a card that the kernel has is taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Through which of the kernel's interfaces.
    pub through: Through,
    /// Even if Linux is using the card.
    pub force: bool,
}

/// Opens a card over uio or vfio, whichever it is bound to. With `take` one that the kernel has is taken
/// from it first, and given back when the last user of the device is gone.
///
/// Also tells which way it was opened, for people.
///
/// # Errors
/// [`Error::Card`](crate::Error::Card): what stands in the way, and the command that mends it.
pub fn open(card: &NetworkCard, wanted: Option<Take>) -> Result<(Arc<dyn PciDevice>, &'static str)> {
    let claim = match wanted {
        Some(Take { through, force }) => bind::claim(card, through, force)?,
        None => None,
    };
    let card = NetworkCard::find(&card.address)?;
    let driver = card.driver.as_deref();
    if !bind::is_for_programs(driver) {
        let why = format!("the kernel has it: driver {}", driver.unwrap_or_default());
        let mend = format!("sudo linerate bind {}, or take it for this run only: --bind", card.address);
        return Err(card.error(&why, &mend));
    }
    if bind::is_vfio(driver) {
        let device = vfio::Vfio::open(&card, claim)?;
        let kind = device.kind();
        return Ok((device, kind));
    }
    Ok((uio::Uio::open(&card, claim)?, "uio"))
}
