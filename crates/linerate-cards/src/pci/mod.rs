//! Access to a PCI device: finding it, taking it from the kernel, its configuration space, registers, memory and
//! interrupts.
//!
//! - `sysfs`: the machine's network cards: [`network_cards`]
//! - `bind`: taking a card from the kernel's driver and giving it back: [`take`], [`give_back`]
//! - `bus`: a driver's view of a device: [`Bus`], [`PciDevice`]
//! - `bar`, `port_io`: registers in memory ([`Bar`]) or in I/O ports ([`IoPorts`])
//! - `config`: configuration space; `fault`: accesses blocked by the IOMMU
//! - `uio`, `vfio`: the kernel's two interfaces for user-space drivers
//!
//! Drivers are generic over [`Bar`] and use [`Bus`]; this module does not depend on any driver. Read [`PciDevice`],
//! then [`crate::nic`].

mod bar;
mod bind;
mod bus;
pub mod config;
mod fault;
mod port_io;
mod sysfs;
mod uio;
mod vfio;

use std::sync::Arc;

pub use bar::{Bar, Doorbell, MappedBar, MappedDoorbell, Width};
pub use bind::{Taken, default_route, give_back, group_peers, in_other_namespace, in_use, take, taken};
pub use bus::interrupts;
pub use bus::{Bus, PciDevice};
pub use fault::Fault;
use linerate_core::error::Result;
pub use linerate_core::event::Interrupt;
use linerate_core::port::TakeFromKernel;
pub use port_io::IoPorts;
pub(crate) use sysfs::is_address;
pub use sysfs::{NetworkCard, network_cards};

/// Opens a card over uio or vfio, whichever it is bound to. With `wanted`, a card bound to a kernel driver is taken
/// first, and given back when the device is dropped.
///
/// Also returns the name of the interface used, for display.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable), with the reason and a remedy.
pub fn open(card: &NetworkCard, wanted: Option<TakeFromKernel>) -> Result<(Arc<dyn PciDevice>, &'static str)> {
    let claim = match wanted {
        Some(TakeFromKernel { access, force }) => bind::claim(card, access, force)?,
        None => None,
    };
    let card = NetworkCard::find(&card.address)?;
    let driver = card.driver.as_deref();
    if !bind::is_user_space_driver(driver) {
        let why = format!("the kernel is using it: driver {}", driver.unwrap_or_default());
        return Err(card.error(why, bind::advice(&card)));
    }
    if bind::is_vfio(driver) {
        let device = vfio::Vfio::open(&card, claim)?;
        let kind = device.kind();
        return Ok((device, kind));
    }
    Ok((uio::Uio::open(&card, claim)?, "uio"))
}
