//! Opening PCI cards.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::nic;
use crate::pci::{self, NetworkCard};
use crate::port::{Config, Device, PortName};

pub(super) fn open(name: &PortName, config: Config) -> Result<Box<dyn Device>> {
    let card = NetworkCard::find(name.short())?;
    let (what, driver) = nic::known(&card.address, card.vendor, card.device)?;
    let (device, access) = pci::open(&card, config.options.take)?;
    let config = Config { description: format!("{what} ({access})"), device: card.device, ..config };
    // SAFETY: `device` goes to this driver alone, and no other has the card: vfio opens a card once, uio's is locked.
    unsafe { nic::drive(driver, device, config) }
}
