//! A driver's view of a card's bus and device.
#![allow(unsafe_code)]

use std::sync::Arc;

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::memory::DmaSpace;

use super::{Fault, Interrupt, IoPorts, MappedBar};

/// A card's bus, apart from the card's registers: DMA, interrupts, faults, and removal.
pub trait Bus: DmaSpace {
    /// Creates `count` interrupts, which the card raises by number, from 0.
    ///
    /// # Errors
    /// The card or its bus has fewer interrupts.
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>>;

    /// Enables bus mastering. A driver calls this after it has reset the card, which may otherwise still use the
    /// addresses of its previous driver.
    ///
    /// # Errors
    /// The kernel refuses, or the card is gone.
    ///
    /// # Safety
    /// The card was reset since it was opened.
    unsafe fn allow_dma(&self) -> Result<()>;

    /// Returns the next access blocked by the IOMMU, if any. Requires permission to read the kernel's log.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// Returns whether the card is being unplugged, so that the driver should stop using it.
    fn is_being_removed(&self) -> bool {
        false
    }

    /// Returns the remedy for a card that is gone, for error messages.
    fn gone_remedy(&self) -> &'static str {
        "it was unplugged, lost its power, or its bus was reset; open it again when it is back"
    }
}

/// Creates `count` interrupts for a card that has `available` interrupts.
///
/// # Errors
/// The card has fewer interrupts, or the process has no file descriptors left.
pub fn interrupts(card: &str, count: u16, available: u32) -> Result<Vec<Interrupt>> {
    if available < count.into() {
        return Err(Error::card(
            card,
            format!("it has {available} interrupts (MSI-X), but {count} are needed, one for each queue"),
            Remedy::Poll("use fewer queues".into()),
        ));
    }
    (0..count).map(|_| Interrupt::new()).collect()
}

/// A PCI device of this machine, held open through uio or vfio.
///
/// Configuration space allows accesses of 1, 2 or 4 bytes; BARs have numbers 0 to 5.
pub trait PciDevice: Bus {
    /// Returns the address, `domain:bus:device.function`.
    fn address(&self) -> &str;

    /// Reads configuration space.
    ///
    /// # Errors
    /// The kernel refuses, or the card is gone.
    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()>;

    /// Writes configuration space.
    ///
    /// # Errors
    /// As [`read_config`](PciDevice::read_config).
    ///
    /// # Safety
    /// As for [`map_bar`](PciDevice::map_bar): configuration space contains addresses that the card writes interrupt
    /// messages to, and can enable access to addresses set earlier.
    unsafe fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()>;

    /// Maps a memory BAR.
    ///
    /// # Errors
    /// The card has no such BAR, or it is not memory.
    ///
    /// # Safety
    /// As for [`MappedBar::new`]: registers determine the memory that the card reads and writes.
    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar>;

    /// Opens a BAR of I/O ports.
    ///
    /// # Errors
    /// The card has no such BAR, or it is memory.
    ///
    /// # Safety
    /// As for [`map_bar`](PciDevice::map_bar).
    unsafe fn io_ports(&self, bar: u8) -> Result<IoPorts>;

    /// Returns this device as the bus for its driver.
    fn bus(self: Arc<Self>) -> Arc<dyn Bus>;
}
