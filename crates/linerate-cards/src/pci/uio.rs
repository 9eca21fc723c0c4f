//! uio: access to a card through files in sysfs, as root. No IOMMU restricts the card's access to memory.
//!
//! Polling needs no kernel driver; `uio_pci_generic` adds one interrupt. The card uses physical addresses, so packets
//! must be in hugepages, which the kernel does not move. Kernel documentation: driver-api/uio-howto.rst,
//! PCI/sysfs-pci.rst.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::{Addresses, DeviceAddress, DmaSpace, Mapping, PageSize, Paged};
use rustix::fs::{FlockOperation, flock};

use super::bind::Claim;
use super::{Bus, Interrupt, IoPorts, MappedBar, NetworkCard, PciDevice, config};

/// A card without a kernel driver, or bound to `uio_pci_generic`.
pub(super) struct Uio {
    card: NetworkCard,
    /// Configuration space. The file is locked, so that two processes cannot use the card.
    config: File,
    _claim: Option<Claim>,
}

impl Uio {
    /// Opens the card. Once its driver enables DMA, the card can access all of the machine's memory.
    pub fn open(card: &NetworkCard, claim: Option<Claim>) -> Result<Arc<Uio>> {
        let path = card.folder().join("config");
        let config = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => card.error(
                "without an IOMMU a card can access all memory of the machine, so uio requires root",
                Remedy::TakeOverVfio { address: card.address.clone() },
            ),
            _ => card.error(format!("{} cannot be opened: {error}", path.display()), Remedy::ChooseCard),
        })?;
        flock(&config, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| card.error("another process has it open", "end that process, or choose another card"))?;
        if let Some(kind) = card.iommu_domain().filter(|kind| kind != "identity") {
            return Err(card.error(
                format!(
                    "the machine's IOMMU translates the card's addresses (domain {kind}), so it cannot work over uio"
                ),
                Remedy::TakeOverVfio { address: card.address.clone() },
            ));
        }
        let uio = Uio { card: card.clone(), config, _claim: claim };
        config::enable(&uio)?;
        Ok(Arc::new(uio))
    }

    fn resource(&self, bar: u8) -> Result<(File, u64, bool)> {
        const IO: u64 = 0x100;
        let lines = fs::read_to_string(self.card.folder().join("resource")).unwrap_or_default();
        let line: Vec<u64> = lines
            .lines()
            .nth(bar.into())
            .map(|line| {
                let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0);
                line.split_whitespace().map(hex).collect()
            })
            .unwrap_or_default();
        let [start, end, flags] = line[..] else {
            return Err(self.card.error("sysfs does not list its BARs", Remedy::ChooseCard));
        };
        if bar > 5 || end <= start {
            return Err(self.card.error(format!("it has no BAR {bar}"), Remedy::ChooseCard));
        }
        let path: PathBuf = self.card.folder().join(format!("resource{bar}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| self.card.error(format!("{}: {error}", path.display()), "run as root"))?;
        Ok((file, end - start + 1, flags & IO != 0))
    }
}

// SAFETY: this implementation only passes the addresses on, and accesses no memory.
unsafe impl DmaSpace for Uio {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let pages = memory.pages();
        if pages == PageSize::Ordinary {
            let needed = memory.len().div_ceil(PageSize::Huge2M.bytes());
            let why =
                "without an IOMMU the card needs memory that the kernel does not move, and these are ordinary pages";
            return Err(Error::new(ErrorKind::Exhausted, &self.card.address, why)
                .with_remedy(format!("echo {needed} | sudo tee /proc/sys/vm/nr_hugepages")));
        }
        Ok(Addresses::Paged(Paged::new(memory.physical_pages()?, pages.bytes())))
    }

    /// Does nothing: the pages are freed with the mapping.
    unsafe fn unmap(&self, _: DeviceAddress) {}
}

/// Re-enables the card's interrupt line, which uio disables each time it is raised.
fn enable_line(config: &File) {
    let mut bytes = [0; 2];
    // A card that is gone raises no interrupts.
    if config.read_exact_at(&mut bytes, config::COMMAND.into()).is_ok() {
        let command = u16::from_le_bytes(bytes) & !config::COMMAND_NO_LINE;
        let _ = config.write_all_at(&command.to_le_bytes(), config::COMMAND.into());
    }
}

impl Bus for Uio {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        let folder = fs::read_dir(self.card.folder().join("uio")).into_iter().flatten().flatten().next();
        let Some(name) = folder.map(|entry| entry.file_name()).filter(|_| count == 1) else {
            return Err(self.card.error(
                "over uio a card has one interrupt, for one queue, and only with uio_pci_generic",
                Remedy::Poll(
                    "use one queue, and `modprobe uio_pci_generic` before the card is taken; or use vfio".into(),
                ),
            ));
        };
        let path = PathBuf::from("/dev").join(name);
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let event = OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking)
            .open(&path)
            .map_err(|error| self.card.error(format!("{}: {error}", path.display()), "run as root"))?;
        let config = self.config.try_clone().map_err(|error| Error::system("dup", error))?;
        Ok(vec![Interrupt::from_line(event.into(), move || enable_line(&config))])
    }

    unsafe fn allow_dma(&self) -> Result<()> {
        // SAFETY: the card was reset, as the caller promises.
        unsafe { config::enable_master(self) }
    }

    fn is_being_removed(&self) -> bool {
        // The files of the BARs are removed first, then the folder.
        !(0..6).any(|bar| self.card.folder().join(format!("resource{bar}")).exists())
    }
}

impl PciDevice for Uio {
    fn address(&self) -> &str {
        &self.card.address
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()> {
        self.config
            .read_exact_at(bytes, offset.into())
            .map_err(|error| Error::system("reading configuration space", error))
    }

    unsafe fn write_config(&self, offset: u16, bytes: &[u8]) -> Result<()> {
        self.config
            .write_all_at(bytes, offset.into())
            .map_err(|error| Error::system("writing configuration space", error))
    }

    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar> {
        let (file, len, is_io) = self.resource(bar)?;
        if is_io {
            return Err(self.card.error(format!("its BAR {bar} is I/O ports, not memory"), Remedy::ChooseCard));
        }
        // SAFETY: the kernel keeps a BAR as long as it is mapped.
        let memory = Arc::new(unsafe { Mapping::of_device(file.into(), 0, len as usize) }?);
        // SAFETY: `memory` is a BAR; the caller promises to use its registers as required.
        Ok(unsafe { MappedBar::new(memory) })
    }

    unsafe fn io_ports(&self, bar: u8) -> Result<IoPorts> {
        let (file, _, is_io) = self.resource(bar)?;
        if !is_io {
            return Err(self.card.error(format!("its BAR {bar} is memory, not I/O ports"), Remedy::ChooseCard));
        }
        // SAFETY: the caller promises to use the ports as required.
        Ok(unsafe { IoPorts::new(file, 0) })
    }

    fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
        self
    }
}

impl Drop for Uio {
    /// Disables bus mastering, so that the card does not access memory of a process that has ended.
    fn drop(&mut self) {
        let _ = config::disable_master(self);
    }
}
