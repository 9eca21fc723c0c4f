//! Drivers for network cards, generic over how registers are accessed ([`Bar`]). They depend on
//! memory, ports and PCI, and cannot tell a real card from the model.
//!
//! - [`intel`]: receive, send, and everything else that Intel's cards share; read this next
//! - [`ixgbe`]: 82599, X540, X550; [`igb`]: 82576; [`ixgbevf`], [`igbvf`]: their virtual functions; [`e1000e`]: 82574
//! - [`virtio`]: the network card of virtual machines; [`vmxnet3`]: VMware's
//! - `supported`: the cards that have a driver ([`SUPPORTED`])
//! - `filters`: filters by address and VLAN, of all these cards
//!
//! `docs/driver.md` explains how to write a driver, with igb as the example.
#![allow(unsafe_code)]

pub mod e1000e;
mod filters;
pub mod igb;
pub mod igbvf;
pub mod intel;
pub mod ixgbe;
pub mod ixgbevf;
mod supported;
pub mod virtio;
pub mod vmxnet3;

use std::sync::Arc;

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::DeviceAddress;
pub use linerate_core::port::{Config, DEFAULT_FRAME};
use linerate_core::port::{Device, OFFLOADS};
pub use supported::{Driver, SUPPORTED, Supported, Tried, find_card, require_card};

use crate::pci::{Bar, Bus, Fault, PciDevice};
use crate::vfio_user::VfioUser;

/// The option of cards that needs large buffers, and their size. Coalesced packets fill whole KiB of buffers: 3 of 4, but
/// only 1 of 2.
pub const LARGE_BUFFERS: Option<(&str, usize)> = Some((OFFLOADS.name, 4096));

/// Brings up a card that was opened over uio or vfio.
///
/// # Errors
/// Any error of the driver.
///
/// # Safety
/// Nothing else may use the card, through `device` or otherwise, until the port and all its queues are dropped.
pub unsafe fn drive(driver: Driver, device: Arc<dyn PciDevice>, config: Config) -> Result<Box<dyn Device>> {
    match driver {
        // SAFETY: only one driver gets the device; the caller promises that nothing else uses the card.
        Driver::Virtio => Ok(Box::new(unsafe { virtio::Virtio::open(&device, config)? })),
        // SAFETY: as above, for its registers.
        _ => drive_registers(driver, |number| unsafe { device.map_bar(number) }, device.clone().bus(), config),
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
    drive_registers(driver, |number| unsafe { device.bar(number) }, device.clone().bus(), config)
}

/// Brings up a card whose driver only needs registers and a bus.
fn drive_registers<B: Bar>(
    driver: Driver,
    bar: impl Fn(u8) -> Result<B>,
    bus: Arc<dyn Bus>,
    config: Config,
) -> Result<Box<dyn Device>> {
    Ok(match driver {
        Driver::Ixgbe => Box::new(ixgbe::Ixgbe::open(bar(0)?, bus, config)?),
        Driver::E1000e => Box::new(e1000e::E1000e::open(bar(0)?, bus, config)?),
        Driver::Igb => Box::new(igb::Igb::open(bar(0)?, bus, config)?),
        Driver::Ixgbevf => Box::new(ixgbevf::Ixgbevf::open(bar(0)?, bus, config)?),
        Driver::Igbvf => Box::new(igbvf::Igbvf::open(bar(0)?, bus, config)?),
        Driver::Vmxnet3 => Box::new(vmxnet3::Vmxnet3::open(bar(0)?, bar(1)?, bus, config)?),
        Driver::Virtio => {
            return Err(Error::card(
                config.name,
                "VirtIO needs registers that can be mapped, and messages access those of this card".to_string(),
                "give the device to a guest, which opens it over vfio or uio",
            ));
        }
    })
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
