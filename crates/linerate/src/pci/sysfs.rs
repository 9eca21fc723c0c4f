//! What sysfs says about the machine's network cards. Reading only.

use std::fs;
use std::path::Path;

/// A PCI network card of this machine, as Linux sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkCard {
    /// `domain:bus:device.function`, for example `0000:03:00.0`.
    pub address: String,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// The kernel driver that has it, if any.
    pub driver: Option<String>,
    /// The network interfaces that this driver made of it.
    pub interfaces: Vec<String>,
}

/// All network controllers (PCI class 02) under `/sys/bus/pci/devices`, by address; none where
/// there is no PCI bus.
pub fn network_cards() -> Vec<NetworkCard> {
    let names = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let devices = Path::new("/sys/bus/pci/devices");
    let mut cards: Vec<NetworkCard> = names(devices)
        .into_iter()
        .filter_map(|address| {
            let folder = devices.join(&address);
            let number = |file: &str| -> Option<u32> {
                let text = fs::read_to_string(folder.join(file)).ok()?;
                u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
            };
            if number("class")? >> 16 != 0x02 {
                return None;
            }
            let driver = fs::read_link(folder.join("driver")).ok();
            let mut interfaces = names(&folder.join("net"));
            // A virtio card's interface belongs to the virtio device below it.
            for child in names(&folder).iter().filter(|name| name.starts_with("virtio")) {
                interfaces.extend(names(&folder.join(child).join("net")));
            }
            Some(NetworkCard {
                vendor: number("vendor")? as u16,
                device: number("device")? as u16,
                driver: driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
                interfaces,
                address,
            })
        })
        .collect();
    cards.sort_by(|a, b| a.address.cmp(&b.address));
    cards
}
