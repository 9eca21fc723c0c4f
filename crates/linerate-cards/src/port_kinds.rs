//! The kinds of ports whose driver is in this crate: `0000:03:00.0`, and `vfio-user:PATH`.
#![allow(unsafe_code)]

use linerate_core::error::Result;
use linerate_core::port::{
    Address, Config, Description, Device, Form, METADATA, MTU, Maturity, OFFLOADS, Opening, PortClass, PortKind,
    PortOption, QUEUES, RING, VECTORS,
};

use crate::nic;
use crate::pci::{self, NetworkCard, is_address};
use crate::vfio_user::VfioUser;

/// The options of ports that use a driver of [`nic`].
const DRIVER: &[PortOption] = &[QUEUES, RING, MTU, OFFLOADS, METADATA, VECTORS];

/// A card by its PCI address.
pub static CARD: PortKind = PortKind {
    description: Description {
        form: Form::Other("PCI addresses", is_address),
        options: DRIVER,
        large_buffers: nic::LARGE_BUFFERS,
        example: "0000:03:00.0",
        summary: "a card by its PCI address, over vfio or uio",
        page: "cards.md",
        maturity: Maturity::Others,
        class: PortClass::Card,
        ..Description::new("pci", Address::Text)
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let config = opening.config;
    let card = NetworkCard::find(opening.name.short())?;
    let supported = nic::require_card(&card.address, card.vendor, card.device)?;
    let (device, access) = pci::open(&card, config.options.take)?;
    let config = Config { description: format!("{} ({access})", supported.name), device: card.device, ..config };
    // SAFETY: only this driver gets `device`, and no other process has the card: vfio opens a card only once, and the
    // uio driver locks it.
    unsafe { nic::drive(supported.driver, device, config) }
}

/// `vfio-user:PATH`
pub static VFIO_USER: PortKind = PortKind {
    description: Description {
        options: DRIVER,
        large_buffers: nic::LARGE_BUFFERS,
        feature: "vfio-user",
        example: "vfio-user:/tmp/a",
        summary: "a card that another process serves, as linerate sim does",
        page: "model.md",
        no_link: "is the wire of the served card plugged in?",
        maturity: Maturity::Others,
        class: PortClass::ServedCard,
        ..Description::new("vfio-user", Address::Socket)
    },
    open: &open_served,
};

fn open_served(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let (name, config) = (opening.name, opening.config);
    let device = VfioUser::connect(name.address())?;
    let (vendor, number) = device.identity()?;
    let supported = nic::require_card(name.short(), vendor, number)?;
    let config = Config { description: format!("{} (vfio-user)", supported.name), device: number, ..config };
    // SAFETY: `device` goes to this driver alone, and its server has one client at a time.
    unsafe { nic::drive_served(supported.driver, device, config) }
}
