//! Access to a VirtIO device, and the two PCI transports: registers in memory, found by capabilities (modern, 4.1.4),
//! and I/O ports (legacy, 4.1.4.8).
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use linerate_core::error::{Error, Result};
use linerate_core::memory::DeviceAddress;
use linerate_spec::virtio::{NO_VECTOR, common, config, feature, legacy};

use crate::pci::config::{VENDOR, capabilities, read_32};
use crate::pci::{Interrupt, IoPorts, MappedBar, MappedDoorbell, PciDevice};

/// Features that need hashes, and whose limits are in the device configuration.
pub(super) const BY_HASH: u64 = feature::HASH_REPORT | feature::RSS;

/// Access to a device: by registers, or by messages.
pub trait Transport: Send + Sync {
    /// Returns the kind, for display.
    fn kind(&self) -> &'static str;

    /// Returns the features to negotiate that depend on the transport.
    fn wanted(&self) -> u64;

    /// Returns whether the device bypasses the bus's address translation and uses physical addresses (6.1).
    fn bypasses_bus(&self, features: u64) -> bool {
        features & feature::ACCESS_PLATFORM == 0
    }

    /// Returns whether the device is gone for good, and no longer holds buffers.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns the device status (2.1).
    fn status(&self) -> u8;

    /// Sets the device status; 0 resets the device.
    fn set_status(&self, status: u8);

    /// Returns the features that the device offers.
    fn features(&self) -> u64;

    /// Accepts these features.
    fn accept(&self, features: u64);

    /// Returns the number of queue pairs that the device supports with these features.
    fn most_pairs(&self, features: u64) -> u16 {
        match features & (feature::MQ | feature::RSS) {
            0 => 1,
            _ => self.config_16(config::MAX_VIRTQUEUE_PAIRS),
        }
    }

    /// Returns the size of a queue: at most `wanted`, unless the device fixes it. Returns 0 if there is no such queue.
    fn queue_size(&self, queue: u16, wanted: u16) -> u16;

    /// Sets up a queue (4.1.5.1.3), with interrupt `vector` if any. Returns false if the device rejects the vector.
    fn start_queue(&self, queue: u16, size: u16, addresses: &QueueAddresses, vector: Option<u16>) -> bool;

    /// Begins to reset a queue (2.6.1). Only devices with [`RING_RESET`](feature::RING_RESET) can do that.
    fn reset_queue(&self, _queue: u16) {}

    /// Returns whether the reset of a queue is complete. Then the device does not use its buffers.
    fn is_queue_reset(&self, _queue: u16) -> bool {
        false
    }

    /// Returns a queue's notification register.
    ///
    /// # Errors
    /// The notification register is outside its BAR.
    fn notify(&self, queue: u16) -> Result<Notify>;

    /// Reads and clears the interrupt status, which releases the interrupt line (4.1.4.5).
    fn take_interrupt(&self) -> u8;

    /// Reads a byte of the device configuration.
    fn config_8(&self, offset: u32) -> u8;

    /// Reads 16 bits of the device configuration.
    fn config_16(&self, offset: u32) -> u16;

    /// Reads 32 bits of the device configuration.
    fn config_32(&self, offset: u32) -> u32;

    /// Writes the MAC address to the configuration, as legacy devices allow (5.1.4.3). Returns false for other devices.
    fn write_mac(&self, _mac: [u8; 6]) -> bool {
        false
    }
}

/// Finds the registers of a PCI device; `vectors` tells whether MSI-X is enabled. Transitional devices have both kinds
/// of registers, and are driven as modern devices.
///
/// # Errors
/// The device has neither, or its capabilities point outside its BARs.
pub(super) fn find(device: &dyn PciDevice, vectors: bool) -> Result<Arc<dyn Transport>> {
    if let Some(modern) = Modern::find(device)? {
        return Ok(Arc::new(modern));
    }
    let config = if vectors { legacy::CONFIG_MSIX } else { legacy::CONFIG };
    // SAFETY: only one driver of the device is being opened (`Virtio::open`).
    let ports = unsafe { device.io_ports(0)? };
    Ok(Arc::new(Legacy { ports, config }))
}

/// Registers located by capabilities (4.1.4).
struct Modern {
    common: Window,
    notify: Window,
    notify_multiplier: u32,
    isr: Window,
    device: Window,
    /// Features whose fields are in the device's registers.
    possible: u64,
}

/// A part of a BAR.
struct Window {
    bar: MappedBar,
    offset: u32,
    len: u32,
}

/// Registers in BAR 0, as I/O ports.
struct Legacy {
    ports: IoPorts,
    /// The offset of the device configuration; it is larger with MSI-X.
    config: u16,
}

/// The device addresses of a virtqueue's three parts.
pub struct QueueAddresses {
    /// The descriptor table, or the packed ring.
    pub descriptors: DeviceAddress,
    /// The driver area: the available ring, or the driver's event suppression.
    pub driver: DeviceAddress,
    /// The device area: the used ring, or the device's event suppression.
    pub device: DeviceAddress,
}

/// A queue's notification register (4.1.5.2), or an event that replaces it.
pub enum Notify {
    /// A mapped register, and the queue's number to store.
    Modern(MappedDoorbell<u16>, u16),
    /// An I/O port for all queues, and the queue's number to write.
    Legacy(IoPorts, u16),
    /// The event of a device that another process implements.
    Event(Arc<Interrupt>),
}

impl Notify {
    /// Notifies the device that the queue has available buffers.
    #[inline(always)]
    pub fn ring(&self) {
        match self {
            Notify::Modern(doorbell, queue) => doorbell.write(*queue),
            Notify::Legacy(ports, queue) => ports.write(legacy::QUEUE_NOTIFY, queue.to_le_bytes()),
            Notify::Event(event) => event.raise(),
        }
    }
}

impl Transport for Modern {
    fn kind(&self) -> &'static str {
        "modern"
    }

    fn wanted(&self) -> u64 {
        feature::VERSION_1
            | feature::ACCESS_PLATFORM
            | feature::ORDER_PLATFORM
            | feature::RING_PACKED
            | feature::RING_RESET
            | feature::SPEED_DUPLEX
    }

    fn status(&self) -> u8 {
        self.common.load(common::DEVICE_STATUS)
    }

    fn set_status(&self, status: u8) {
        self.common.store(common::DEVICE_STATUS, status);
    }

    fn features(&self) -> u64 {
        (0..2u32).fold(0, |features, half| {
            self.common.store(common::DEVICE_FEATURE_SELECT, half);
            features | u64::from(self.common.load::<u32>(common::DEVICE_FEATURE)) << (32 * half)
        }) & self.possible
    }

    fn accept(&self, features: u64) {
        for half in 0..2u32 {
            self.common.store(common::DRIVER_FEATURE_SELECT, half);
            self.common.store(common::DRIVER_FEATURE, (features >> (32 * half)) as u32);
        }
    }

    fn queue_size(&self, queue: u16, wanted: u16) -> u16 {
        self.common.store(common::QUEUE_SELECT, queue);
        self.common.load::<u16>(common::QUEUE_SIZE).min(wanted)
    }

    fn start_queue(&self, queue: u16, size: u16, addresses: &QueueAddresses, vector: Option<u16>) -> bool {
        let (common, vector) = (&self.common, vector.unwrap_or(NO_VECTOR));
        common.store(common::QUEUE_SELECT, queue);
        common.store(common::QUEUE_SIZE, size);
        common.store(common::QUEUE_MSIX_VECTOR, vector);
        let accepted = common.load::<u16>(common::QUEUE_MSIX_VECTOR) == vector;
        for (register, address) in [
            (common::QUEUE_DESC, addresses.descriptors),
            (common::QUEUE_DRIVER, addresses.driver),
            (common::QUEUE_DEVICE, addresses.device),
        ] {
            common.store(register, address as u32);
            common.store(register + 4, (address >> 32) as u32);
        }
        common.store(common::QUEUE_ENABLE, 1u16);
        accepted
    }

    fn reset_queue(&self, queue: u16) {
        self.common.store(common::QUEUE_SELECT, queue);
        self.common.store(common::QUEUE_RESET, 1u16);
    }

    fn is_queue_reset(&self, queue: u16) -> bool {
        self.common.store(common::QUEUE_SELECT, queue);
        [common::QUEUE_RESET, common::QUEUE_ENABLE].iter().all(|&register| self.common.load::<u16>(register) == 0)
    }

    fn notify(&self, queue: u16) -> Result<Notify> {
        self.common.store(common::QUEUE_SELECT, queue);
        let offset = u32::from(self.common.load::<u16>(common::QUEUE_NOTIFY_OFF));
        let offset = offset
            .checked_mul(self.notify_multiplier)
            .and_then(|offset| offset.checked_add(self.notify.offset))
            .filter(|&offset| offset % 2 == 0 && offset as usize + 2 <= self.notify.bar.len())
            .ok_or_else(|| malformed("its doorbells lie outside their BAR"))?;
        Ok(Notify::Modern(self.notify.bar.doorbell_of(offset), queue))
    }

    fn take_interrupt(&self) -> u8 {
        self.isr.load(0)
    }

    fn config_8(&self, offset: u32) -> u8 {
        self.device.load(offset)
    }

    fn config_16(&self, offset: u32) -> u16 {
        self.device.load(offset)
    }

    fn config_32(&self, offset: u32) -> u32 {
        self.device.load(offset)
    }
}

impl Transport for Legacy {
    fn kind(&self) -> &'static str {
        "legacy"
    }

    fn wanted(&self) -> u64 {
        feature::ANY_LAYOUT
    }

    fn status(&self) -> u8 {
        self.ports.read::<1>(legacy::DEVICE_STATUS)[0]
    }

    fn set_status(&self, status: u8) {
        self.ports.write(legacy::DEVICE_STATUS, [status]);
    }

    /// Returns the 32 features of a legacy device.
    fn features(&self) -> u64 {
        u32::from_le_bytes(self.ports.read(legacy::DEVICE_FEATURES)).into()
    }

    fn accept(&self, features: u64) {
        self.ports.write(legacy::DRIVER_FEATURES, (features as u32).to_le_bytes());
    }

    fn queue_size(&self, queue: u16, _wanted: u16) -> u16 {
        self.ports.write(legacy::QUEUE_SELECT, queue.to_le_bytes());
        u16::from_le_bytes(self.ports.read(legacy::QUEUE_SIZE))
    }

    fn start_queue(&self, queue: u16, _size: u16, addresses: &QueueAddresses, vector: Option<u16>) -> bool {
        let (ports, vector) = (&self.ports, vector.unwrap_or(NO_VECTOR));
        ports.write(legacy::QUEUE_SELECT, queue.to_le_bytes());
        let page = (addresses.descriptors / legacy::PAGE) as u32;
        ports.write(legacy::QUEUE_ADDRESS, page.to_le_bytes());
        if self.config == legacy::CONFIG {
            return true; // no MSI-X, no vectors
        }
        ports.write(legacy::QUEUE_VECTOR, vector.to_le_bytes());
        u16::from_le_bytes(ports.read(legacy::QUEUE_VECTOR)) == vector
    }

    fn notify(&self, queue: u16) -> Result<Notify> {
        Ok(Notify::Legacy(self.ports.clone(), queue))
    }

    fn take_interrupt(&self) -> u8 {
        self.ports.read::<1>(legacy::ISR_STATUS)[0]
    }

    fn config_8(&self, offset: u32) -> u8 {
        self.ports.read::<1>(self.config + offset as u16)[0]
    }

    fn config_16(&self, offset: u32) -> u16 {
        u16::from_le_bytes(self.ports.read(self.config + offset as u16))
    }

    fn config_32(&self, offset: u32) -> u32 {
        u32::from_le_bytes(self.ports.read(self.config + offset as u16))
    }

    fn write_mac(&self, mac: [u8; 6]) -> bool {
        for (index, byte) in mac.into_iter().enumerate() {
            self.ports.write(self.config + config::MAC as u16 + index as u16, [byte]);
        }
        true
    }
}

impl Window {
    fn load<T: crate::pci::Width>(&self, offset: u32) -> T {
        self.bar.load(self.offset + offset)
    }

    fn store<T: crate::pci::Width>(&self, offset: u32, value: T) {
        self.bar.store(self.offset + offset, value);
    }
}

impl Modern {
    /// Reads the capabilities (4.1.4): type at byte 3, BAR at 4, offset at 8, length at 12, and the notification
    /// multiplier at 16.
    fn find(device: &dyn PciDevice) -> Result<Option<Modern>> {
        const COMMON: u32 = 1;
        const NOTIFY: u32 = 2;
        const ISR: u32 = 3;
        const DEVICE: u32 = 4;
        let vendors = capabilities(device)?.into_iter().filter(|(id, _)| *id == VENDOR);
        let capabilities = vendors.map(|(_, at)| Ok((read_32(device, at)? >> 24, at))).collect::<Result<Vec<_>>>()?;
        // Take the first usable capability of each type, as the device prefers (4.1.4.1). Some devices also offer
        // doorbells in I/O ports.
        let window = |kind: u32, shortest: u32| -> Result<Option<(Window, u16)>> {
            let mut unusable = None;
            for (_, at) in capabilities.iter().filter(|(found, _)| *found == kind) {
                let number = read_32(device, at + 4)? as u8;
                let (offset, length) = (read_32(device, at + 8)?, read_32(device, at + 12)?);
                // SAFETY: only one driver of the device is being opened (`Virtio::open`).
                let bar = match unsafe { device.map_bar(number) } {
                    Ok(bar) => bar,
                    Err(error) => {
                        unusable.get_or_insert(error);
                        continue;
                    }
                };
                if length < shortest || offset as usize + shortest as usize > bar.len() || !offset.is_multiple_of(4) {
                    return Err(malformed("its capabilities point outside its BARs"));
                }
                let len = length.min(bar.len() as u32 - offset);
                return Ok(Some((Window { bar, offset, len }, *at)));
            }
            unusable.map_or(Ok(None), Err)
        };
        let Some((common, _)) = window(COMMON, 56)? else { return Ok(None) };
        let (notify, isr) = (window(NOTIFY, 2)?, window(ISR, 1)?);
        // 10 bytes: MTU and speed, which follow, are optional. Below, only the BAR must have room for them.
        let device_config = window(DEVICE, 10)?;
        let (Some((notify, notify_at)), Some((isr, _)), Some((device_config, _))) = (notify, isr, device_config) else {
            return Err(malformed("it lacks some of a VirtIO device's capabilities"));
        };
        if device_config.offset as usize + 16 > device_config.bar.len() {
            return Err(malformed("its configuration is shorter than 16 bytes"));
        }
        let notify_multiplier = read_32(device, notify_at + 16)?;
        let hashes = if device_config.len < config::END { BY_HASH } else { 0 };
        let ring_reset = if common.len < common::END { feature::RING_RESET } else { 0 };
        let possible = !(hashes | ring_reset);
        Ok(Some(Modern { common, notify, notify_multiplier, isr, device: device_config, possible }))
    }
}

fn malformed(why: &'static str) -> Error {
    Error::bad_device(why)
}

/// Waits until `done` returns true, at most 500 ms. `register` and `section` are for the error message.
pub(super) fn wait_until(
    port: &str,
    register: &str,
    section: &'static str,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    const STEP: Duration = Duration::from_micros(50);
    const BOUND: Duration = Duration::from_millis(500);
    let mut waited = Duration::ZERO;
    while !done()? {
        if waited >= BOUND {
            return Err(Error::timeout(port, register.to_string(), section, waited));
        }
        std::thread::sleep(STEP);
        waited += STEP;
    }
    Ok(())
}
