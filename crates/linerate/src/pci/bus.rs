//! What a card is plugged into.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::{Fault, Interrupt, IoPorts, MappedBar};
use crate::error::Result;
use crate::memory::DmaSpace;

/// What a driver needs of a card's surroundings, beside its registers: how the card sees memory, how
/// it interrupts, and whether it is about to go.
pub trait Bus: DmaSpace {
    /// `count` interrupts, numbered from 0, which the card raises by their numbers.
    ///
    /// # Errors
    /// Where the card, or what it is plugged into, has fewer.
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>>;

    /// Lets the card read and write memory by itself. A driver calls this once it has reset the card: one that was left
    /// running still has the addresses of whoever had it before.
    ///
    /// # Errors
    /// Where the kernel refuses, or the card is gone.
    ///
    /// # Safety
    /// The card was reset since it was opened.
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    /// The next access of the card that the IOMMU stopped, if there was one and this user may know.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// True once the system wants the card back, because somebody unplugs it: the driver should stop
    /// using it.
    fn is_leaving(&self) -> bool {
        false
    }
}

/// A PCI device of this machine, held open through uio or vfio.
///
/// Configuration space is reached in accesses of 1, 2 or 4 bytes, BARs by their numbers, 0 to 5.
pub trait PciDevice: Bus {
    /// `domain:bus:device.function`.
    fn address(&self) -> &str;

    /// Reads configuration space.
    ///
    /// # Errors
    /// Where the kernel refuses, or the card is gone.
    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()>;

    /// Writes configuration space.
    ///
    /// # Errors
    /// As [`read_config`](PciDevice::read_config).
    ///
    /// # Safety
    /// As for [`map_bar`](PciDevice::map_bar): it has addresses that the card writes messages to, and lets the card reach
    /// those that it was told before.
    unsafe fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()>;

    /// Maps a BAR that is memory.
    ///
    /// # Errors
    /// Where the card has no such BAR, or it is no memory.
    ///
    /// # Safety
    /// As for [`MappedBar::new`]: whoever has the registers orders what memory the card reads and writes.
    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar>;

    /// Opens a BAR that is I/O ports.
    ///
    /// # Errors
    /// Where the card has no such BAR, or it is memory.
    ///
    /// # Safety
    /// As for [`map_bar`](PciDevice::map_bar).
    unsafe fn io_ports(&self, bar: u8) -> Result<IoPorts>;

    /// This device as what its driver needs.
    fn bus(self: Arc<Self>) -> Arc<dyn Bus>;
}
