//! vfio: access to a card behind an IOMMU, which restricts the card to memory mapped for it. Needs only permissions on
//! vfio's device files, not root.
//!
//! - `ioctl`: the kernel's ioctls
//! - `space`: the address space shared by the process's cards; opening a device in it
//!
//! Kernel documentation: driver-api/vfio.rst, userspace-api/iommufd.rst.
#![allow(unsafe_code)]

mod ioctl;
mod space;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use ioctl::*;
use linerate_core::error::{Error, Remedy, Result};
use linerate_core::memory::{Addresses, DeviceAddress, DmaSpace, Mapping};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use space::{Opened, Space};

use super::bind::Claim;
use super::fault::FaultLog;
use super::{Bus, Fault, Interrupt, IoPorts, MappedBar, NetworkCard, PciDevice, config, interrupts};

/// A card bound to vfio-pci. The order of fields matters: the device is closed before its group leaves the address
/// space, and given back last.
pub(super) struct Vfio {
    card: NetworkCard,
    device: File,
    /// Raised by the kernel when it asks for the device to be released.
    wanted: Interrupt,
    faults: Option<FaultLog>,
    _group: Option<Arc<File>>,
    space: Arc<Space>,
    _claim: Option<Claim>,
    _only: Only,
}

/// The addresses of the cards that this process has open.
static OPEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The only use of a card in this process: the kernel lets a process open a device of a group twice.
struct Only(String);

impl Only {
    fn of(card: &NetworkCard) -> Result<Only> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if open.contains(&card.address) {
            return Err(card.error("this program already has it open", "drop its port, its queues and its clock first"));
        }
        open.push(card.address.clone());
        Ok(Only(card.address.clone()))
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|address| *address != self.0);
    }
}

impl Vfio {
    /// Opens the card without resetting it.
    pub fn open(card: &NetworkCard, claim: Option<Claim>) -> Result<Arc<Vfio>> {
        let only = Only::of(card)?;
        let Opened { device, group, space } = space::open(card)?;
        let wanted = Interrupt::new()?;
        // Devices that cannot be unplugged lack this interrupt.
        let _ = ioctl::set_interrupts(&device, VFIO_PCI_REQ_IRQ_INDEX, &[&wanted]);
        let faults = FaultLog::open(&card.address);
        let vfio = Vfio {
            card: card.clone(),
            device: File::from(device),
            wanted,
            faults,
            _group: group,
            space,
            _claim: claim,
            _only: only,
        };
        config::enable(&vfio)?;
        Ok(Arc::new(vfio))
    }

    /// Returns the name of the interface used, for display.
    pub fn kind(&self) -> &'static str {
        self.space.kind()
    }

    /// Returns a region's offset in the device file, its size and flags.
    fn region(&self, index: u32) -> Result<vfio_region_info> {
        let argsz = size_of::<vfio_region_info>() as u32;
        let mut info = vfio_region_info { argsz, index, ..Default::default() };
        ioctl::call(&self.device, DEVICE_GET_REGION_INFO, &mut info)
            .map_err(|error| Error::system("VFIO_DEVICE_GET_REGION_INFO", error))?;
        Ok(info)
    }

    fn duplicate(&self) -> Result<OwnedFd> {
        self.device.as_fd().try_clone_to_owned().map_err(|error| Error::system("dup", error))
    }
}

// SAFETY: this implementation only passes the addresses on, and accesses no memory.
unsafe impl DmaSpace for Vfio {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        self.space.map(memory)
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        self.space.unmap(address);
    }
}

impl Bus for Vfio {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        let argsz = size_of::<vfio_irq_info>() as u32;
        let mut info = vfio_irq_info { argsz, index: VFIO_PCI_MSIX_IRQ_INDEX, ..Default::default() };
        ioctl::call(&self.device, DEVICE_GET_IRQ_INFO, &mut info)
            .map_err(|error| Error::system("VFIO_DEVICE_GET_IRQ_INFO", error))?;
        let interrupts = interrupts(&self.card.address, count, info.count)?;
        ioctl::set_interrupts(&self.device, VFIO_PCI_MSIX_IRQ_INDEX, &interrupts)
            .map_err(|error| Error::system("VFIO_DEVICE_SET_IRQS", error))?;
        Ok(interrupts)
    }

    fn fault(&self) -> Option<Fault> {
        self.faults.as_ref()?.next()
    }

    unsafe fn allow_dma(&self) -> Result<()> {
        // SAFETY: the card was reset, as the caller promises.
        unsafe { config::enable_master(self) }
    }

    fn is_being_removed(&self) -> bool {
        let wanted: BorrowedFd<'_> = self.wanted.as_fd();
        poll(&mut [PollFd::new(&wanted, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|events| events > 0)
    }
}

impl PciDevice for Vfio {
    fn address(&self) -> &str {
        &self.card.address
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()> {
        let start = self.region(VFIO_PCI_CONFIG_REGION_INDEX)?.offset;
        self.device
            .read_exact_at(bytes, start + u64::from(offset))
            .map_err(|error| Error::system("reading configuration space", error))
    }

    unsafe fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()> {
        let start = self.region(VFIO_PCI_CONFIG_REGION_INDEX)?.offset;
        self.device
            .write_all_at(bytes, start + u64::from(offset))
            .map_err(|error| Error::system("writing configuration space", error))
    }

    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar> {
        let region = self.region(bar.into())?;
        if bar > 5 || region.size == 0 || region.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Err(self.card.error(format!("its BAR {bar} is not memory that can be mapped"), Remedy::ChooseCard));
        }
        // SAFETY: the kernel keeps a region of the device as long as it is mapped.
        let memory = unsafe { Mapping::of_device(self.duplicate()?, region.offset, region.size as usize) }?;
        // SAFETY: `memory` is a BAR; the caller promises to use its registers as required.
        Ok(unsafe { MappedBar::new(Arc::new(memory)) })
    }

    unsafe fn io_ports(&self, bar: u8) -> Result<IoPorts> {
        let region = self.region(bar.into())?;
        if bar > 5 || region.size == 0 {
            return Err(self.card.error(format!("it has no BAR {bar}"), Remedy::ChooseCard));
        }
        // SAFETY: the caller promises to use the ports as required.
        Ok(unsafe { IoPorts::new(self.duplicate()?.into(), region.offset) })
    }

    fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
        self
    }
}
