//! Configuration space: the header's command register, and the list of capabilities.
//!
//! "PCI Local Bus Specification" 3.0, chapter 6.
#![allow(unsafe_code)]

use linerate_core::error::Result;

use super::PciDevice;

/// The command register.
pub(super) const COMMAND: u16 = 0x04;
/// Bits of the command register; `COMMAND_NO_LINE` disables the interrupt line.
const COMMAND_IO: u16 = 1 << 0;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
pub(super) const COMMAND_NO_LINE: u16 = 1 << 10;
const STATUS: u16 = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// The offset of the pointer to the first capability.
const CAPABILITIES: u16 = 0x34;

/// The ID of vendor-specific capabilities (6.7, and appendix H).
pub const VENDOR: u8 = 0x09;
/// The ID of the MSI-X capability.
pub const MSI_X: u8 = 0x11;

/// Reads 16 bits of configuration space.
///
/// # Errors
/// As [`PciDevice::read_config`].
pub fn read_16(device: &dyn PciDevice, offset: u16) -> Result<u16> {
    let mut bytes = [0; 2];
    device.read_config(offset, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

/// Reads 32 bits of configuration space.
///
/// # Errors
/// As [`PciDevice::read_config`].
pub fn read_32(device: &dyn PciDevice, offset: u16) -> Result<u32> {
    let mut bytes = [0; 4];
    device.read_config(offset, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Enables the card's BARs, and disables bus mastering. A card left running would otherwise access the rings of its
/// previous program.
///
/// # Errors
/// As [`PciDevice::write_config`].
pub fn enable(device: &dyn PciDevice) -> Result<()> {
    let command = read_16(device, COMMAND)? & !COMMAND_MASTER | COMMAND_IO | COMMAND_MEMORY;
    // SAFETY: writes no address, and disables the card's access to memory.
    unsafe { device.write_config(COMMAND, &command.to_le_bytes()) }
}

/// Enables bus mastering.
///
/// # Errors
/// As [`PciDevice::write_config`].
///
/// # Safety
/// The card was reset since it was opened: addresses set earlier refer to memory that no longer belongs to the program.
pub unsafe fn enable_master(device: &dyn PciDevice) -> Result<()> {
    let command = read_16(device, COMMAND)? | COMMAND_MASTER;
    // SAFETY: writes no address; the caller promises that the card has none from before its reset.
    unsafe { device.write_config(COMMAND, &command.to_le_bytes()) }
}

/// Disables bus mastering.
///
/// # Errors
/// As [`PciDevice::write_config`].
pub fn disable_master(device: &dyn PciDevice) -> Result<()> {
    let command = read_16(device, COMMAND)? & !COMMAND_MASTER;
    // SAFETY: writes no address, and disables the card's access to memory.
    unsafe { device.write_config(COMMAND, &command.to_le_bytes()) }
}

/// Returns the capabilities' IDs and offsets, in list order.
///
/// # Errors
/// As [`PciDevice::read_config`].
pub fn capabilities(device: &dyn PciDevice) -> Result<Vec<(u8, u16)>> {
    let mut list = Vec::new();
    if read_16(device, STATUS)? & STATUS_CAPABILITIES == 0 {
        return Ok(list);
    }
    let mut at = read_16(device, CAPABILITIES)? & 0xFC;
    // At most 48 capabilities fit; the limit ends a circular list.
    while at >= 0x40 && list.len() < 48 {
        let [id, next] = read_16(device, at)?.to_le_bytes();
        list.push((id, at));
        at = u16::from(next) & 0xFC;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use linerate_core::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping};

    use super::*;
    use crate::pci::{Bus, Interrupt, IoPorts, MappedBar};

    /// A card with only a command register.
    struct Command(Mutex<u16>);

    // SAFETY: this implementation accesses no memory.
    unsafe impl DmaSpace for Command {
        fn map(&self, _: &Arc<Mapping>) -> Result<Addresses> {
            Ok(Addresses::Contiguous(Contiguous(0)))
        }
        unsafe fn unmap(&self, _: DeviceAddress) {}
    }

    impl Bus for Command {
        unsafe fn allow_dma(&self) -> Result<()> {
            Ok(())
        }

        fn interrupts(&self, _: u16) -> Result<Vec<Interrupt>> {
            Ok(Vec::new())
        }
    }

    impl PciDevice for Command {
        fn address(&self) -> &str {
            "0000:00:00.0"
        }
        fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()> {
            assert_eq!(offset, COMMAND);
            bytes.copy_from_slice(&self.0.lock().unwrap().to_le_bytes());
            Ok(())
        }
        unsafe fn write_config(&self, _: u16, bytes: &[u8]) -> Result<()> {
            *self.0.lock().unwrap() = u16::from_le_bytes(bytes.try_into().unwrap());
            Ok(())
        }
        unsafe fn map_bar(&self, _: u8) -> Result<MappedBar> {
            unreachable!("it has none")
        }
        unsafe fn io_ports(&self, _: u8) -> Result<IoPorts> {
            unreachable!("it has none")
        }
        fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
            self
        }
    }

    /// A process that was killed leaves its card with bus mastering enabled.
    #[test]
    fn a_running_card_accesses_no_memory_before_its_driver_allows_it() {
        let card = Command(Mutex::new(COMMAND_MASTER | COMMAND_NO_LINE));
        enable(&card).unwrap();
        assert_eq!(*card.0.lock().unwrap(), COMMAND_IO | COMMAND_MEMORY | COMMAND_NO_LINE);
        // SAFETY: this card has no addresses.
        unsafe { enable_master(&card) }.unwrap();
        assert_eq!(*card.0.lock().unwrap(), COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_LINE);
    }
}
