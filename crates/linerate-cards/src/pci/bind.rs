//! Taking a card from the kernel, and giving it back.
//!
//! A card is in use if its interface is up, has an address or a route, or is in another network namespace, where this
//! process cannot see its state. Such a card is taken only if that is forced.
//! Taken cards are recorded in `/run/linerate`, so that [`give_back`] can restore them even after the process was
//! killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use linerate_core::error::{Remedy, Result};
use linerate_core::port::{Access, escaped};

use super::NetworkCard;
use super::sysfs::group_members;

/// The record in `/run/linerate` of a card taken from a kernel driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The card's address.
    pub address: String,
    /// The driver that the card was taken from, if any.
    pub driver: Option<String>,
    /// The interfaces that the card had when it was taken.
    pub interfaces: Vec<String>,
    /// The process that took the card for its own use; `None` after `linerate bind`.
    pub process: Option<u32>,
}

const RECORDS: &str = "/run/linerate";
const INTERFACES: &str = "/sys/class/net";
const DRIVERS: &str = "/sys/bus/pci/drivers";
const VFIO_DRIVER: &str = "vfio-pci";
const UIO_DRIVER: &str = "uio_pci_generic";

/// Returns whether user-space programs can use a card with this driver, or with none.
pub(super) fn is_user_space_driver(driver: Option<&str>) -> bool {
    matches!(driver, None | Some(VFIO_DRIVER | UIO_DRIVER | "igb_uio"))
}

/// Returns whether this is vfio-pci.
pub(super) fn is_vfio(driver: Option<&str>) -> bool {
    driver == Some(VFIO_DRIVER)
}

/// A taken card; dropping this value gives it back.
pub(super) struct Claim {
    address: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = give_back(&self.address) {
            tracing::error!(card = self.address, "the card was not given back: {}", error.with_hint());
        }
    }
}

/// Takes the card until the claim is dropped. Returns `None` if the card needs no rebinding: it is bound to vfio or
/// uio, or has neither driver nor IOMMU.
pub(super) fn claim(card: &NetworkCard, access: Access, force: bool) -> Result<Option<Claim>> {
    if is_user_space_driver(card.driver.as_deref()) && (card.driver.is_some() || card.iommu_group.is_none()) {
        return Ok(None);
    }
    take_for(card, access, force, Some(std::process::id()))?;
    Ok(Some(Claim { address: card.address.clone() }))
}

/// Takes a card from its driver, until [`give_back`].
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the card is in use and `force` is not set, the needed
/// module is not loaded, there is no IOMMU for vfio, or privileges are missing.
pub fn take(card: &NetworkCard, access: Access, force: bool) -> Result<()> {
    take_for(card, access, force, None)
}

fn take_for(card: &NetworkCard, access: Access, force: bool, process: Option<u32>) -> Result<()> {
    let reasons = in_use(card);
    if !reasons.is_empty() && !force {
        return Err(card.error(
            format!("Linux is using it: {}; taking it would break that", reasons.join(", ")),
            Remedy::TakeByForce { address: card.address.clone() },
        ));
    }
    let driver = match access {
        Access::Vfio | Access::Either if card.iommu_group.is_some() => Some(VFIO_DRIVER),
        Access::Vfio => {
            return Err(card.error(
                "it has no IOMMU group: the machine has no IOMMU, or it is off",
                card.over_uio("boot with intel_iommu=on or amd_iommu=on"),
            ));
        }
        // A program that polls needs no driver.
        _ => Path::new(DRIVERS).join(UIO_DRIVER).exists().then_some(UIO_DRIVER),
    };
    if driver == Some(VFIO_DRIVER) && !Path::new(DRIVERS).join(VFIO_DRIVER).exists() {
        return Err(card.error("the kernel's module vfio-pci is not loaded", "sudo modprobe vfio-pci"));
    }
    if card.driver.as_deref() == driver {
        return Ok(());
    }
    // For a card that is already taken, keep the record of its original driver.
    let earlier = taken().into_iter().find(|taken| taken.address == card.address);
    let record = Taken {
        address: card.address.clone(),
        driver: earlier.as_ref().map_or_else(|| card.driver.clone(), |taken| taken.driver.clone()),
        interfaces: earlier.map_or_else(|| card.interfaces.clone(), |taken| taken.interfaces),
        process,
    };
    write_record(&record).map_err(|error| refused(card, &error))?;
    let moved = unbind(card).and_then(|()| match driver {
        Some(driver) => bind(card, driver),
        None => Ok(()),
    });
    moved.map_err(|error| {
        let _ = give_back(&card.address);
        refused(card, &error)
    })
}

/// Gives a card back to its original driver; if no driver is recorded, to the driver that Linux chooses.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if privileges are missing, or no driver binds the card.
pub fn give_back(address: &str) -> Result<()> {
    let card = NetworkCard::find(address)?;
    let record = taken().into_iter().find(|taken| taken.address == card.address);
    if !is_user_space_driver(card.driver.as_deref()) {
        // The card has already been given back.
        let _ = fs::remove_file(Path::new(RECORDS).join(&card.address));
        return Ok(());
    }
    let folder = card.folder();
    unbind(&card)
        .and_then(|()| fs::write(folder.join("driver_override"), "\n"))
        .map_err(|error| refused(&card, &error))?;
    let _ = fs::remove_file(Path::new(RECORDS).join(&card.address));
    let wanted = record.and_then(|record| record.driver);
    match &wanted {
        // Linux might not choose this driver by itself.
        Some(driver) => fs::write(Path::new(DRIVERS).join(driver).join("bind"), &card.address),
        None => fs::write("/sys/bus/pci/drivers_probe", &card.address),
    }
    .map_err(|error| {
        let driver = wanted.as_deref().unwrap_or("its driver");
        card.error(format!("{driver} did not bind to it again: {error}"), format!("sudo modprobe {driver}, then again"))
    })
}

/// Returns the records of taken cards.
pub fn taken() -> Vec<Taken> {
    let entries = fs::read_dir(RECORDS).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let value = |key: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                    .filter(|value| !value.is_empty())
            };
            Some(Taken {
                address: entry.file_name().to_string_lossy().into_owned(),
                driver: value("driver").map(str::to_string),
                interfaces: value("interfaces")
                    .map(|list| list.split(',').map(str::to_string).collect())
                    .unwrap_or_default(),
                process: value("process").and_then(|process| process.parse().ok()),
            })
        })
        .collect()
}

impl Taken {
    /// Returns whether the process that took the card ended without giving it back.
    pub fn is_orphaned(&self) -> bool {
        self.process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
    }
}

fn write_record(taken: &Taken) -> io::Result<()> {
    fs::create_dir_all(RECORDS)?;
    let text = format!(
        "driver={}\ninterfaces={}\nprocess={}\n",
        taken.driver.as_deref().unwrap_or(""),
        taken.interfaces.join(","),
        taken.process.map_or_else(String::new, |process| process.to_string()),
    );
    fs::write(PathBuf::from(RECORDS).join(&taken.address), text)
}

fn refused(card: &NetworkCard, error: &io::Error) -> linerate_core::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => card.error(
            "taking a card from the kernel, or giving it back, needs root",
            Remedy::Take { address: card.address.clone() },
        ),
        _ => card.error(format!("the kernel did not rebind it: {error}"), "dmesg, which may have the reason"),
    }
}

fn unbind(card: &NetworkCard) -> io::Result<()> {
    match fs::write(card.folder().join("driver/unbind"), &card.address) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // no driver is bound
        outcome => outcome,
    }
}

fn bind(card: &NetworkCard, driver: &str) -> io::Result<()> {
    fs::write(card.folder().join("driver_override"), driver)?;
    fs::write("/sys/bus/pci/drivers_probe", &card.address)?;
    match NetworkCard::find(&card.address) {
        Ok(now) if now.driver.as_deref() == Some(driver) => Ok(()),
        _ => Err(io::Error::other(format!("{driver} did not bind to it"))),
    }
}

/// Returns how Linux uses the card: `eth0 is up`, `eth0 has the address 10.0.0.1` ...
pub fn in_use(card: &NetworkCard) -> Vec<String> {
    let mut reasons: Vec<String> = in_other_namespace(card).into_iter().collect();
    for interface in &card.interfaces {
        let folder = Path::new(INTERFACES).join(interface);
        const IFF_UP: u32 = 1;
        let flags = fs::read_to_string(folder.join("flags")).unwrap_or_default();
        if u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).is_ok_and(|flags| flags & IFF_UP != 0) {
            reasons.push(format!("{interface} is up"));
        }
        for address in nix::ifaddrs::getifaddrs().into_iter().flatten() {
            if address.interface_name == *interface
                && let Some(storage) = address.address
            {
                let ip = storage.as_sockaddr_in().map(|v4| v4.ip().to_string());
                let ip = ip.or_else(|| storage.as_sockaddr_in6().map(|v6| v6.ip().to_string()));
                reasons.extend(ip.map(|ip| format!("{interface} has the address {ip}")));
            }
        }
        let uses = |table: &str, column: usize| {
            let text = fs::read_to_string(table).unwrap_or_default();
            text.lines().any(|line| line.split_whitespace().nth(column) == Some(interface))
        };
        if uses("/proc/net/route", 0) || uses("/proc/net/ipv6_route", 9) {
            reasons.push(format!("{interface} has routes"));
        }
        if let Ok(master) = fs::read_link(folder.join("master")) {
            let master = master.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            reasons.push(format!("{interface} belongs to {master}"));
        }
    }
    reasons
}

/// Returns that the card's interface is in another network namespace, if it is. A namespace hides its interfaces, but
/// Linux still uses them.
pub fn in_other_namespace(card: &NetworkCard) -> Option<String> {
    // pci-stub reserves a card for a virtual machine, and creates no interface.
    let driver =
        card.driver.as_deref().filter(|driver| !is_user_space_driver(Some(driver)) && *driver != "pci-stub")?;
    if card.interfaces.is_empty() && may_have_interface(card, driver) {
        // sysfs lists the interfaces of the namespace that it was mounted in.
        return Some(format!("{driver} has bound it, and its interface is not in this network namespace"));
    }
    // sysfs may have been mounted in another namespace (`nsenter --net`, `unshare --net`).
    let hidden = card.interfaces.iter().find(|interface| !is_in_this_namespace(interface))?;
    Some(format!("its interface {hidden} is in another network namespace"))
}

/// Returns whether a card with this driver can have an interface: `virtio-pci` leaves that to the driver of the VirtIO
/// device that it creates, which may not be loaded.
fn may_have_interface(card: &NetworkCard, driver: &str) -> bool {
    let children = fs::read_dir(card.folder()).into_iter().flatten().flatten();
    let mut devices = children.filter(|child| child.file_name().to_string_lossy().starts_with("virtio"));
    driver != "virtio-pci" || devices.any(|device| device.path().join("driver").exists())
}

/// Returns whether this process's namespace has the interface of this name that sysfs shows. Another interface may have
/// the same name and the same index, but not the same address.
fn is_in_this_namespace(interface: &str) -> bool {
    let read = |file| fs::read_to_string(Path::new(INTERFACES).join(interface).join(file)).unwrap_or_default();
    let (index, address) = (read("ifindex"), read("address"));
    let own = nix::ifaddrs::getifaddrs().into_iter().flatten().filter(|entry| entry.interface_name == interface);
    own.filter_map(|entry| entry.address?.as_link_addr().copied()).any(|link| {
        let hex = link.addr().unwrap_or_default().map(|byte| format!("{byte:02x}")).join(":");
        link.ifindex().to_string() == index.trim() && hex == address.trim()
    })
}

/// Returns the card's interface that has a default route: without it, the machine may become unreachable.
pub fn default_route(card: &NetworkCard) -> Option<&str> {
    let [v4, v6] =
        ["/proc/net/route", "/proc/net/ipv6_route"].map(|table| fs::read_to_string(table).unwrap_or_default());
    card.interfaces.iter().map(String::as_str).find(|interface| has_default_route(interface, &v4, &v6))
}

/// Reads the kernel's tables of IPv4 routes (interface, destination, …, mask) and of IPv6 (destination, length, …,
/// interface).
fn has_default_route(interface: &str, v4: &str, v6: &str) -> bool {
    let fields = |line: &str| line.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let zero = |field: Option<&String>| field.is_some_and(|field| field.bytes().all(|digit| digit == b'0'));
    let is = |field: Option<&String>| field.is_some_and(|field| field == interface);
    v4.lines().map(fields).any(|route| is(route.first()) && zero(route.get(1)) && zero(route.get(7)))
        || v6.lines().map(fields).any(|route| is(route.get(9)) && zero(route.first()) && zero(route.get(1)))
}

/// Returns the remedy that makes a card usable; for the card with the default route, how to share it with Linux.
pub(super) fn advice(card: &NetworkCard) -> Remedy {
    if let Some(reason) = in_other_namespace(card) {
        return format!("{reason}: run it in that namespace to see how Linux uses the card, or use another").into();
    }
    match default_route(card) {
        Some(interface) => format!(
            "the default route is over {interface}: share the card instead, as xdp:{}?flow=udp:4321, or use another",
            escaped(interface)
        )
        .into(),
        None => Remedy::Take { address: card.address.clone() },
    }
}

/// Returns the other devices in the card's IOMMU group, with their drivers. Kernel drivers cannot use them while a
/// program uses the card.
pub fn group_peers(card: &NetworkCard) -> Vec<String> {
    let Some(group) = card.iommu_group else { return Vec::new() };
    let others = group_members(group).into_iter().filter(|(address, _)| *address != card.address);
    others.map(|(address, driver)| format!("{address} ({})", driver.as_deref().unwrap_or("no driver"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables as Linux prints them.
    #[test]
    fn the_interface_of_the_default_route_is_found() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let zero = "0".repeat(32);
        let route = |to: &str, len: &str, interface: &str| {
            format!("{to} {len} {zero} 00 {zero} 00000400 00000001 00000000 00000003 {interface}\n")
        };
        let v6 = route(&zero, "00", "eth2") + &route("fe800000000000000000000000000000", "40", "eth3");
        for (interface, is_default) in
            [("eth0", true), ("eth1", false), ("eth2", true), ("eth3", false), ("eth", false)]
        {
            assert_eq!(has_default_route(interface, v4, &v6), is_default, "{interface}");
        }
    }
}
