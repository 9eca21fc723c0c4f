//! The machine's network cards, read from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};

/// A PCI network card of this machine, as listed in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkCard {
    /// `domain:bus:device.function`, for example `0000:03:00.0`.
    pub address: String,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// The kernel driver bound to it, if any.
    pub driver: Option<String>,
    /// The IOMMU group: devices that the IOMMU cannot isolate from each other. `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// The nearest NUMA node, if the machine has several.
    pub numa_node: Option<u32>,
    /// The network interfaces created by the kernel driver.
    pub interfaces: Vec<String>,
}

const DEVICES: &str = "/sys/bus/pci/devices";

/// Returns all network controllers (PCI class 02) in `/sys/bus/pci/devices`, sorted by address. The list is empty
/// without a PCI bus.
pub fn network_cards() -> Vec<NetworkCard> {
    let mut cards: Vec<NetworkCard> =
        names(Path::new(DEVICES)).into_iter().filter_map(|address| read(&address)).collect();
    cards.sort_by(|a, b| a.address.cmp(&b.address));
    cards
}

impl NetworkCard {
    /// Finds the card at an address; the domain may be omitted.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`](linerate_core::ErrorKind::BadName) for text that is not a PCI address,
    /// [`ErrorKind::NotFound`](linerate_core::ErrorKind::NotFound) if there is no device, or it is not a network card.
    pub fn find(address: &str) -> Result<NetworkCard> {
        if !is_address(address) {
            let why = "it is not a PCI card; name one by its address, such as 0000:03:00.0 or 03:00.0";
            return Err(Error::new(ErrorKind::BadName, address, why).with_remedy(Remedy::ChooseCard));
        }
        let address = match address.matches(':').count() {
            1 => format!("0000:{address}"),
            _ => address.to_string(),
        }
        .to_ascii_lowercase();
        read(&address).ok_or_else(|| {
            let why = match Path::new(DEVICES).join(&address).exists() {
                true => "there is a device at this address, but it is not a network card",
                false => "there is no PCI device at this address",
            };
            Error::new(ErrorKind::NotFound, address, why).with_remedy(Remedy::ChooseCard)
        })
    }

    /// Returns the card's directory in sysfs.
    pub fn folder(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.address)
    }

    /// Returns an error about this card.
    pub(super) fn error(&self, why: impl Into<String>, mend: impl Into<Remedy>) -> Error {
        Error::card(&self.address, why.into(), mend.into())
    }

    /// Returns a remedy: `step`, or taking the card over uio.
    pub(super) fn over_uio(&self, step: &'static str) -> Remedy {
        Remedy::TakeOverUio { address: self.address.clone(), step: step.into() }
    }

    /// Returns the IOMMU's domain type (`identity`, `DMA`, `DMA-FQ` ...); `None` without an IOMMU.
    pub(super) fn iommu_domain(&self) -> Option<String> {
        self.iommu_group?;
        Some(fs::read_to_string(self.folder().join("iommu_group/type")).ok()?.trim().to_string())
    }

    /// Returns vfio's device file for this card, on kernels with iommufd.
    pub(super) fn vfio_device_file(&self) -> Option<PathBuf> {
        let name = names(&self.folder().join("vfio-dev")).into_iter().next()?;
        Some(Path::new("/dev/vfio/devices").join(name))
    }
}

/// Returns whether text is `domain:bus:device.function` in hexadecimal, such as `0000:03:00.0`. The domain may be
/// omitted; Intel's VMD has domains of more than four digits.
pub(crate) fn is_address(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|c| c.is_ascii_hexdigit());
    let Some((path, function)) = text.split_once('.') else { return false };
    let parts: Vec<&str> = path.split(':').collect();
    hex(function, 1)
        && match parts[..] {
            [bus, device] => hex(bus, 2) && hex(device, 2),
            [domain, bus, device] => (4..=8).any(|len| hex(domain, len)) && hex(bus, 2) && hex(device, 2),
            _ => false,
        }
}

/// Returns the devices of an IOMMU group, and their drivers.
pub(super) fn group_members(group: u32) -> Vec<(String, Option<String>)> {
    let mut members: Vec<_> = names(Path::new(&format!("/sys/kernel/iommu_groups/{group}/devices")))
        .into_iter()
        .map(|address| {
            let driver = driver_of(&Path::new(DEVICES).join(&address));
            (address, driver)
        })
        .collect();
    members.sort();
    members
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn driver_of(folder: &Path) -> Option<String> {
    Some(fs::read_link(folder.join("driver")).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn read(address: &str) -> Option<NetworkCard> {
    let folder = Path::new(DEVICES).join(address);
    let number = |file: &str| -> Option<u32> {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    if number("class")? >> 16 != 0x02 {
        return None;
    }
    let mut interfaces = names(&folder.join("net"));
    // A virtio card's interface belongs to the virtio device below it.
    for child in names(&folder).iter().filter(|name| name.starts_with("virtio")) {
        interfaces.extend(names(&folder.join(child).join("net")));
    }
    let group = fs::read_link(folder.join("iommu_group")).ok();
    let node = fs::read_to_string(folder.join("numa_node")).ok();
    Some(NetworkCard {
        vendor: number("vendor")? as u16,
        device: number("device")? as u16,
        driver: driver_of(&folder),
        iommu_group: group.and_then(|link| link.file_name()?.to_str()?.parse().ok()),
        // The file contains -1 on machines with one node.
        numa_node: node.and_then(|text| text.trim().parse().ok()),
        interfaces,
        address: address.to_string(),
    })
}
