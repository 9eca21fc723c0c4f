//! The address space shared by all vfio devices of the process. A region is mapped once, and packets move between cards
//! without a copy.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::memory::{Addresses, Contiguous, DeviceAddress, Mapping};

use super::ioctl::{self, *};
use crate::pci::NetworkCard;
use crate::pci::sysfs::group_members;

/// A container with a type 1 IOMMU, or an I/O address space of an iommufd.
pub(super) struct Space {
    kind: Kind,
    maps: Mutex<Vec<Map>>,
}

enum Kind {
    /// A group can be opened only once, but several devices may share it.
    Container {
        container: File,
        groups: Mutex<HashMap<u32, Weak<File>>>,
    },
    Iommufd {
        iommufd: File,
        space: u32,
    },
}

/// One mapping; a region used by several ports is mapped once.
struct Map {
    start: DeviceAddress,
    memory: Arc<Mapping>,
    users: usize,
}

/// The first device address: above the ranges reserved by interrupts and firmware, and low enough for IOMMUs with 39
/// bits.
const FIRST: DeviceAddress = 1 << 32;
/// Mappings begin at multiples of 1 GiB, so that the IOMMU can use its largest pages. A gap after each mapping lets the
/// IOMMU block accesses beyond its end.
const ALIGNMENT: DeviceAddress = 1 << 30;

/// An opened device, and the files that must stay open with it.
pub(super) struct Opened {
    pub device: OwnedFd,
    pub group: Option<Arc<File>>,
    pub space: Arc<Space>,
}

/// Opens a card bound to vfio-pci: by its device file if kernel and permissions allow, otherwise by its group.
pub(super) fn open(card: &NetworkCard) -> Result<Opened> {
    static IOMMUFD: Mutex<Weak<Space>> = Mutex::new(Weak::new());
    static CONTAINER: Mutex<Weak<Space>> = Mutex::new(Weak::new());
    if let Some(device) = card.vfio_device_file()
        && let (Ok(device), Ok(iommufd)) = (open_file(&device), open_file(Path::new("/dev/iommu")))
    {
        let space = shared(&IOMMUFD, || Space::of_iommufd(iommufd))?;
        let refused =
            |what| move |error| card.error(format!("vfio: {what}: {error}"), "dmesg, which may have the reason");
        let Kind::Iommufd { iommufd, space: id } = &space.kind else { unreachable!("made as one") };
        let mut bind = vfio_device_bind_iommufd {
            argsz: size_of::<vfio_device_bind_iommufd>() as u32,
            iommufd: iommufd.as_raw_fd(),
            ..Default::default()
        };
        ioctl::call(&device, DEVICE_BIND_IOMMUFD, &mut bind).map_err(|error| match error.kind() {
            // Linux returns EINVAL if another process uses the device file, EBUSY if it uses the group.
            ErrorKind::ResourceBusy | ErrorKind::InvalidInput => in_use(card),
            _ => refused("binding it to the iommufd")(error),
        })?;
        let mut attach = vfio_device_attach_iommufd_pt {
            argsz: size_of::<vfio_device_attach_iommufd_pt>() as u32,
            pt_id: *id,
            ..Default::default()
        };
        ioctl::call(&device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach)
            .map_err(refused("attaching it to the address space"))?;
        return Ok(Opened { device: device.into(), group: None, space });
    }
    let space = shared(&CONTAINER, || Space::of_container(card))?;
    let group = space.group(card)?;
    let name = std::ffi::CString::new(card.address.as_str()).expect("an address has no zeros");
    let device = ioctl::device_of_group(&group, &name)
        .map_err(|error| card.error(format!("vfio did not open it: {error}"), "dmesg, which may have the reason"))?;
    Ok(Opened { device, group: Some(group), space })
}

/// Returns the process's space of one kind, which exists as long as it has users.
fn shared(place: &Mutex<Weak<Space>>, make: impl FnOnce() -> Result<Space>) -> Result<Arc<Space>> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(space) = place.upgrade() {
        return Ok(space);
    }
    let space = Arc::new(make()?);
    *place = Arc::downgrade(&space);
    Ok(space)
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn in_use(card: &NetworkCard) -> Error {
    card.error("another process has it open", "end that process, or choose another card")
}

impl Space {
    fn of_iommufd(iommufd: File) -> Result<Space> {
        let mut alloc = iommu_ioas_alloc { size: size_of::<iommu_ioas_alloc>() as u32, ..Default::default() };
        ioctl::call(&iommufd, IOAS_ALLOC, &mut alloc).map_err(|error| Error::system("IOMMU_IOAS_ALLOC", error))?;
        Ok(Space { kind: Kind::Iommufd { iommufd, space: alloc.out_ioas_id }, maps: Mutex::default() })
    }

    fn of_container(card: &NetworkCard) -> Result<Space> {
        let container = open_file(Path::new("/dev/vfio/vfio")).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                card.error("vfio is not available: /dev/vfio/vfio does not exist", "sudo modprobe vfio-pci")
            }
            _ => card.error(format!("/dev/vfio/vfio cannot be opened: {error}"), "sudo chmod 666 /dev/vfio/vfio"),
        })?;
        Ok(Space { kind: Kind::Container { container, groups: Mutex::default() }, maps: Mutex::default() })
    }

    /// Returns the card's group, added to the container.
    fn group(&self, card: &NetworkCard) -> Result<Arc<File>> {
        let Kind::Container { container, groups } = &self.kind else { unreachable!("made as one") };
        let Some(number) = card.iommu_group else {
            return Err(card.error(
                "it has no IOMMU group: the machine has no IOMMU, or it is off",
                card.over_uio("boot with intel_iommu=on or amd_iommu=on"),
            ));
        };
        let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&number).and_then(Weak::upgrade) {
            return Ok(group);
        }
        let path = format!("/dev/vfio/{number}");
        let group = open_file(Path::new(&path)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => card.error(
                format!("{path} does not exist: no vfio driver is bound to the card"),
                Remedy::Take { address: card.address.clone() },
            ),
            ErrorKind::PermissionDenied => {
                card.error(format!("{path} belongs to another user"), format!("sudo chown $USER {path}"))
            }
            ErrorKind::ResourceBusy => in_use(card),
            _ => card.error(format!("{path} cannot be opened: {error}"), "dmesg, which may have the reason"),
        })?;

        let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, ..Default::default() };
        ioctl::call(&group, GROUP_GET_STATUS, &mut status)
            .map_err(|error| Error::system("VFIO_GROUP_GET_STATUS", error))?;
        if status.flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(not_viable(card, number));
        }
        ioctl::call(&group, GROUP_SET_CONTAINER, &mut container.as_raw_fd())
            .map_err(|error| Error::system("VFIO_GROUP_SET_CONTAINER", error))?;
        // Set the IOMMU type once, after the first group was added.
        if groups.is_empty() {
            ioctl::set_iommu(container, VFIO_TYPE1v2_IOMMU).map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => card.error(
                    "the machine cannot isolate a card's interrupts (no interrupt remapping)",
                    "echo 1 | sudo tee /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts, if you trust the card",
                ),
                _ => card.error(
                    format!("vfio has no driver for this machine's IOMMU: {error}"),
                    "sudo modprobe vfio_iommu_type1",
                ),
            })?;
        }
        let group = Arc::new(group);
        groups.insert(number, Arc::downgrade(&group));
        Ok(group)
    }

    /// Maps memory, or adds a user if it is already mapped.
    pub fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = maps.iter_mut().find(|map| Arc::ptr_eq(&map.memory, memory)) {
            map.users += 1;
            return Ok(Addresses::Contiguous(Contiguous(map.start)));
        }
        // Find the first gap; the list is sorted.
        let len = memory.len() as u64;
        let mut start = FIRST;
        let mut place = 0;
        for map in maps.iter() {
            if start + len + ALIGNMENT <= map.start {
                break;
            }
            start = (map.start + map.memory.len() as u64 + 1).next_multiple_of(ALIGNMENT) + ALIGNMENT;
            place += 1;
        }
        let mapped: usize = maps.iter().map(|map| map.memory.len()).sum();
        self.map_at(start, memory).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => too_little_memory_lock(mapped + memory.len()),
            _ => Error::system("mapping memory for a card (VFIO_IOMMU_MAP_DMA)", error),
        })?;
        maps.insert(place, Map { start, memory: memory.clone(), users: 1 });
        Ok(Addresses::Contiguous(Contiguous(start)))
    }

    fn map_at(&self, iova: DeviceAddress, memory: &Arc<Mapping>) -> io::Result<()> {
        let (address, size) = (memory.address(), memory.len() as u64);
        match &self.kind {
            Kind::Container { container, .. } => {
                let mut map = vfio_iommu_type1_dma_map {
                    argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
                    flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                    vaddr: address,
                    iova,
                    size,
                };
                ioctl::call(container, IOMMU_MAP_DMA, &mut map)
            }
            Kind::Iommufd { iommufd, space } => {
                const FIXED: u32 = 1;
                const WRITEABLE: u32 = 2;
                const READABLE: u32 = 4;
                let mut map = iommu_ioas_map {
                    size: size_of::<iommu_ioas_map>() as u32,
                    flags: FIXED | WRITEABLE | READABLE,
                    ioas_id: *space,
                    user_va: address,
                    length: size,
                    iova,
                    ..Default::default()
                };
                ioctl::call(iommufd, IOAS_MAP, &mut map)
            }
        }
    }

    /// Removes a user of the mapping at `start`; unmaps the memory after the last user.
    pub fn unmap(&self, start: DeviceAddress) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = maps.iter().position(|map| map.start == start) else { return };
        maps[place].users -= 1;
        if maps[place].users > 0 {
            return;
        }
        let map = maps.remove(place);
        let size = map.memory.len() as u64;
        let outcome = match &self.kind {
            Kind::Container { container, .. } => {
                let argsz = size_of::<vfio_iommu_type1_dma_unmap>() as u32;
                let mut unmap = vfio_iommu_type1_dma_unmap { argsz, iova: start, size, ..Default::default() };
                ioctl::call(container, IOMMU_UNMAP_DMA, &mut unmap)
            }
            Kind::Iommufd { iommufd, space } => {
                let mut unmap = iommu_ioas_unmap {
                    size: size_of::<iommu_ioas_unmap>() as u32,
                    ioas_id: *space,
                    iova: start,
                    length: size,
                };
                ioctl::call(iommufd, IOAS_UNMAP, &mut unmap)
            }
        };
        if outcome.is_err() {
            // The card may still access the memory: leak it.
            std::mem::forget(map.memory);
        }
    }

    /// Returns the kind, for display.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Container { .. } => "vfio",
            Kind::Iommufd { .. } => "vfio, iommufd",
        }
    }
}

/// Returns the error for a group with devices bound to kernel drivers.
fn not_viable(card: &NetworkCard, group: u32) -> Error {
    let others: Vec<String> = group_members(group)
        .into_iter()
        .filter(|(address, driver)| {
            *address != card.address && driver.as_deref().is_some_and(|d| !["vfio-pci", "pcieport"].contains(&d))
        })
        .map(|(address, driver)| format!("{address} ({})", driver.unwrap_or_default()))
        .collect();
    let first = others.first().and_then(|other| other.split(' ').next()).unwrap_or_default().to_string();
    card.error(
        format!(
            "its IOMMU group {group} is not viable: the IOMMU cannot isolate the card from these devices, \
             which are bound to kernel drivers: {}",
            others.join(", ")
        ),
        Remedy::TakeOthers { first },
    )
}

/// Returns the error for a memory limit below `needed` bytes.
fn too_little_memory_lock(needed: usize) -> Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current.unwrap_or(u64::MAX);
    let kib = (needed / 1024).next_multiple_of(1024);
    Error::memory_lock(limit / 1024, kib as u64)
}
