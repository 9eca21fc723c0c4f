//! Configuration space: the header's command register, and the list of capabilities.
//!
//! "PCI Local Bus Specification" 3.0, chapter 6.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::PciDevice;
use crate::error::Result;

/// Where the command register lies.
const COMMAND: u16 = 0x04;
const COMMAND_IO: u16 = 1 << 0;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_LINE: u16 = 1 << 10;
const STATUS: u16 = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Where the list of capabilities begins.
const CAPABILITIES: u16 = 0x34;

/// A capability's id for what its vendor defines (6.7, and appendix H).
pub const VENDOR: u8 = 0x09;
/// A capability's id for MSI-X.
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

/// Lets the card answer at its BARs, and read and write memory by itself.
///
/// # Errors
/// As [`PciDevice::write_config`].
///
/// # Safety
/// The card was reset, or what it was told to do before touches no memory that a slice is lent of.
pub unsafe fn enable(device: &dyn PciDevice) -> Result<()> {
    let command = read_16(device, COMMAND)? | COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER;
    // SAFETY: it names no address; of those that the card has, the caller knows.
    unsafe { device.write_config(COMMAND, &command.to_le_bytes()) }
}

/// Forbids the card to read and write memory by itself.
///
/// # Errors
/// As [`PciDevice::write_config`].
pub fn disable_master(device: &dyn PciDevice) -> Result<()> {
    let command = read_16(device, COMMAND)? & !COMMAND_MASTER;
    // SAFETY: from here on the card reaches no memory.
    unsafe { device.write_config(COMMAND, &command.to_le_bytes()) }
}

/// Opens the card's interrupt line again, which uio closes each time that it is raised.
pub(super) fn allow_line(config: &File) {
    let mut bytes = [0; 2];
    // A card that is gone raises nothing more.
    if config.read_exact_at(&mut bytes, COMMAND.into()).is_ok() {
        let command = u16::from_le_bytes(bytes) & !COMMAND_NO_LINE;
        let _ = config.write_all_at(&command.to_le_bytes(), COMMAND.into());
    }
}

/// The capabilities' ids and places, in the card's order.
///
/// # Errors
/// As [`PciDevice::read_config`].
pub fn capabilities(device: &dyn PciDevice) -> Result<Vec<(u8, u16)>> {
    let mut list = Vec::new();
    if read_16(device, STATUS)? & STATUS_CAPABILITIES == 0 {
        return Ok(list);
    }
    let mut at = read_16(device, CAPABILITIES)? & 0xFC;
    // At most 48 fit; a card whose list goes round does not keep us here.
    while at >= 0x40 && list.len() < 48 {
        let [id, next] = read_16(device, at)?.to_le_bytes();
        list.push((id, at));
        at = u16::from(next) & 0xFC;
    }
    Ok(list)
}
