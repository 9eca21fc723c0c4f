//! Drivers for network cards, generic over how registers are accessed ([`Bar`](crate::pci::Bar)). They depend on
//! memory, ports and PCI, and cannot tell a real card from the model.
//!
//! - [`intel`]: receive, send, and everything else that Intel's cards share; read this next
//! - [`ixgbe`]: 82599, X540, X550; [`igb`]: 82576
//! - [`virtio`]: the network card of virtual machines
//! - `filters`: filters by address and VLAN, of all these cards
//!
//! `docs/driver.md` explains how to write a driver, with igb as the example.
#![allow(unsafe_code)]

mod filters;
pub mod igb;
pub mod intel;
pub mod ixgbe;
pub mod virtio;

use std::sync::Arc;

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::DeviceAddress;
pub use linerate_core::port::{Config, DEFAULT_FRAME};
use linerate_core::port::{Device, OFFLOADS};

use crate::pci::{Bus, Fault, PciDevice};
use crate::vfio_user::VfioUser;

/// The option of cards that needs large buffers, and their size. Coalesced packets fill whole KiB of buffers: 3 of 4, but
/// only 1 of 2.
pub const LARGE_BUFFERS: Option<(&str, usize)> = Some((OFFLOADS.name, 4096));

/// The driver for a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// [`ixgbe`].
    Ixgbe,
    /// [`igb`].
    Igb,
    /// [`virtio`].
    Virtio,
}

/// Vendor ID, device ID, description and driver.
const CARDS: [(u16, u16, &str, Driver); 18] = [
    (0x8086, 0x10F7, "Intel 82599 (KX4)", Driver::Ixgbe),
    (0x8086, 0x10F8, "Intel 82599 (backplane)", Driver::Ixgbe),
    (0x8086, 0x10FB, "Intel 82599 (SFP+)", Driver::Ixgbe),
    (0x8086, 0x10FC, "Intel 82599 (XAUI)", Driver::Ixgbe),
    (0x8086, 0x154D, "Intel 82599 (SFP+ dual)", Driver::Ixgbe),
    (0x8086, 0x1528, "Intel X540", Driver::Ixgbe),
    (0x8086, 0x1560, "Intel X540 (single)", Driver::Ixgbe),
    (0x8086, 0x1563, "Intel X550", Driver::Ixgbe),
    (0x8086, 0x15D1, "Intel X550 (single)", Driver::Ixgbe),
    (0x8086, 0x10C9, "Intel 82576", Driver::Igb),
    (0x8086, 0x10E6, "Intel 82576 (fiber)", Driver::Igb),
    (0x8086, 0x10E7, "Intel 82576 (SerDes)", Driver::Igb),
    (0x8086, 0x10E8, "Intel 82576 (quad)", Driver::Igb),
    (0x8086, 0x1526, "Intel 82576 (quad, ET2)", Driver::Igb),
    (0x8086, 0x150A, "Intel 82576 (NS)", Driver::Igb),
    (0x1AF4, 0x1000, "VirtIO (transitional)", Driver::Virtio),
    (0x1AF4, 0x1041, "VirtIO", Driver::Virtio),
    (0x8086, 0x1518, "Intel 82576 (NS, SerDes)", Driver::Igb),
];

/// Returns a card's description and driver; `None` if no driver supports the card.
pub fn find_driver(vendor: u16, device: u16) -> Option<(&'static str, Driver)> {
    let found = CARDS.iter().find(|(of, number, ..)| (*of, *number) == (vendor, device));
    found.map(|(_, _, name, driver)| (*name, *driver))
}

/// Brings up a card that was opened over uio or vfio.
///
/// # Errors
/// Any error of the driver.
///
/// # Safety
/// Nothing else may use the card, through `device` or otherwise, until the port and all its queues are dropped.
pub unsafe fn drive(driver: Driver, device: Arc<dyn PciDevice>, config: Config) -> Result<Box<dyn Device>> {
    // SAFETY: only one driver gets the registers; the caller promises that nothing else uses the card.
    let bar = || unsafe { device.map_bar(0) };
    match driver {
        Driver::Ixgbe => Ok(Box::new(ixgbe::Ixgbe::open(bar()?, device.clone().bus(), config)?)),
        Driver::Igb => Ok(Box::new(igb::Igb::open(bar()?, device.clone().bus(), config)?)),
        // SAFETY: as above.
        Driver::Virtio => Ok(Box::new(unsafe { virtio::Virtio::open(&device, config)? })),
    }
}

/// Brings up a card served by another process; its registers are accessed by messages.
///
/// # Errors
/// Any error of the driver; always fails for VirtIO.
///
/// # Safety
/// As for [`drive`].
pub unsafe fn drive_served(driver: Driver, device: Arc<VfioUser>, config: Config) -> Result<Box<dyn Device>> {
    // SAFETY: only one driver gets the registers; the caller promises that nothing else uses the card.
    let bar = || unsafe { device.bar(0) };
    match driver {
        Driver::Ixgbe => Ok(Box::new(ixgbe::Ixgbe::open(bar()?, device.clone().bus(), config)?)),
        Driver::Igb => Ok(Box::new(igb::Igb::open(bar()?, device.clone().bus(), config)?)),
        Driver::Virtio => Err(Error::card(
            config.name,
            "VirtIO needs registers that can be mapped, and messages access those of this card".to_string(),
            "give the device to a guest, which opens it over vfio or uio",
        )),
    }
}

/// Fails if the card is being unplugged, or the IOMMU has blocked one of its accesses. `queue_of` returns the queue
/// whose descriptors contain an address.
fn check_bus(
    bus: &dyn Bus,
    port: &str,
    queue_of: impl FnOnce(DeviceAddress) -> Option<(&'static str, usize)>,
) -> Result<()> {
    if bus.is_being_removed() {
        return Err(Error::new(ErrorKind::Gone, port, "the card is being unplugged: the kernel has asked for it back")
            .with_remedy(Remedy::Step("the port is closed; open it again when it is back".into())));
    }
    let Some(Fault { address, write }) = bus.fault() else { return Ok(()) };
    let queue = match queue_of(address) {
        Some((direction, queue)) => format!("a descriptor of {direction} queue {queue} points to it"),
        None => "no queue's descriptors point to it".to_string(),
    };
    let access = if write { "writing to" } else { "reading from" };
    let why =
        format!("the IOMMU stopped the card from {access} address {address:#x}, where nothing is mapped; {queue}");
    Err(Error::new(ErrorKind::BadDevice, port, why)
        .with_remedy(Remedy::Step("this is a bug of a driver or a fault of the card; no memory was touched".into())))
}

/// Returns the description and driver of the card `card`.
///
/// # Errors
/// [`ErrorKind::Unusable`] if no driver supports it.
pub fn require_driver(card: &str, vendor: u16, device: u16) -> Result<(&'static str, Driver)> {
    find_driver(vendor, device).ok_or_else(|| {
        Error::card(card, format!("there is no driver for {vendor:04x}:{device:04x}"), Remedy::ChooseCard)
    })
}
