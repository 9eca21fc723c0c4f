//! The cards that have a driver, and what each was tried on.

use std::fmt;

use linerate_core::error::{Error, Remedy, Result};

/// The driver for a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// [`ixgbe`](super::ixgbe).
    Ixgbe,
    /// [`e1000e`](super::e1000e).
    E1000e,
    /// [`igb`](super::igb).
    Igb,
    /// [`ixgbevf`](super::ixgbevf).
    Ixgbevf,
    /// [`igbvf`](super::igbvf).
    Igbvf,
    /// [`virtio`](super::virtio).
    Virtio,
    /// [`vmxnet3`](super::vmxnet3).
    Vmxnet3,
}

impl fmt::Display for Driver {
    /// Writes the name of the driver's module, for example `ixgbe`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::Ixgbe => "ixgbe",
            Driver::E1000e => "e1000e",
            Driver::Igb => "igb",
            Driver::Ixgbevf => "ixgbevf",
            Driver::Igbvf => "igbvf",
            Driver::Virtio => "virtio",
            Driver::Vmxnet3 => "vmxnet3",
        })
    }
}

/// The device on which the driver of a card was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// QEMU's device.
    Qemu,
    /// The model in this repository, which Linux's driver of the card accepts.
    Model,
    /// Other cards of its family: for this card, the driver follows the datasheet only.
    Family,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tried::Qemu => "tried on QEMU's device",
            Tried::Model => "tried on our model",
            Tried::Family => "from the datasheet only",
        })
    }
}

impl Tried {
    /// Returns a word for JSON: `qemu`, `model` or `datasheet`.
    pub fn word(self) -> &'static str {
        match self {
            Tried::Qemu => "qemu",
            Tried::Model => "model",
            Tried::Family => "datasheet",
        }
    }
}

/// A card that has a driver.
#[derive(Debug)]
pub struct Supported {
    /// The PCI vendor ID.
    pub vendor: u16,
    /// The PCI device ID.
    pub device: u16,
    /// The card's name.
    pub name: &'static str,
    /// Its driver.
    pub driver: Driver,
    /// The device on which the driver was tried.
    pub tried: Tried,
}

const INTEL: u16 = 0x8086;
const RED_HAT: u16 = 0x1AF4;
const VMWARE: u16 = 0x15AD;

/// All cards that have a driver, by vendor and device ID.
pub static SUPPORTED: &[Supported] = &[
    card(VMWARE, 0x07B0, "VMware vmxnet3", Driver::Vmxnet3, Tried::Qemu),
    card(RED_HAT, 0x1000, "VirtIO (transitional)", Driver::Virtio, Tried::Qemu),
    card(RED_HAT, 0x1041, "VirtIO", Driver::Virtio, Tried::Qemu),
    card(INTEL, 0x10C9, "Intel 82576", Driver::Igb, Tried::Qemu),
    card(INTEL, 0x10CA, "Intel 82576 VF", Driver::Igbvf, Tried::Qemu),
    card(INTEL, 0x10D3, "Intel 82574L", Driver::E1000e, Tried::Qemu),
    card(INTEL, 0x10E6, "Intel 82576 (fiber)", Driver::Igb, Tried::Family),
    card(INTEL, 0x10E7, "Intel 82576 (SerDes)", Driver::Igb, Tried::Family),
    card(INTEL, 0x10E8, "Intel 82576 (quad)", Driver::Igb, Tried::Family),
    card(INTEL, 0x10ED, "Intel 82599 VF", Driver::Ixgbevf, Tried::Model),
    card(INTEL, 0x10F6, "Intel 82574LA", Driver::E1000e, Tried::Family),
    card(INTEL, 0x10F7, "Intel 82599 (KX4)", Driver::Ixgbe, Tried::Model),
    card(INTEL, 0x10F8, "Intel 82599 (backplane)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x10F9, "Intel 82599 (CX4)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x10FB, "Intel 82599 (SFP+)", Driver::Ixgbe, Tried::Model),
    card(INTEL, 0x10FC, "Intel 82599 (XAUI)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1507, "Intel 82599 (SFP+ EM)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x150A, "Intel 82576 (NS)", Driver::Igb, Tried::Family),
    card(INTEL, 0x150C, "Intel 82583V", Driver::E1000e, Tried::Family),
    card(INTEL, 0x1514, "Intel 82599 (KX4 mezzanine)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1515, "Intel X540 VF", Driver::Ixgbevf, Tried::Model),
    card(INTEL, 0x1517, "Intel 82599 (KR)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1518, "Intel 82576 (NS, SerDes)", Driver::Igb, Tried::Family),
    card(INTEL, 0x1526, "Intel 82576 (quad, ET2)", Driver::Igb, Tried::Family),
    card(INTEL, 0x1528, "Intel X540", Driver::Ixgbe, Tried::Model),
    card(INTEL, 0x1529, "Intel 82599 (SFP+ FCoE)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x152A, "Intel 82599 (backplane FCoE)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x154A, "Intel 82599 (SFP+ quad)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x154D, "Intel 82599 (SFP+ dual)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1557, "Intel 82599EN (SFP+)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1560, "Intel X540 (single)", Driver::Ixgbe, Tried::Family),
    card(INTEL, 0x1563, "Intel X550", Driver::Ixgbe, Tried::Model),
    card(INTEL, 0x1565, "Intel X550 VF", Driver::Ixgbevf, Tried::Model),
    card(INTEL, 0x15D1, "Intel X550 (single)", Driver::Ixgbe, Tried::Family),
];

const fn card(vendor: u16, device: u16, name: &'static str, driver: Driver, tried: Tried) -> Supported {
    Supported { vendor, device, name, driver, tried }
}

/// Returns the card with these IDs; `None` if no driver supports it.
///
/// ```
/// let card = linerate::nic::find_card(0x8086, 0x10FB).unwrap();
/// assert_eq!(format!("{}: {}, {}", card.name, card.driver, card.tried), "Intel 82599 (SFP+): ixgbe, tried on our model");
/// ```
pub fn find_card(vendor: u16, device: u16) -> Option<&'static Supported> {
    SUPPORTED.iter().find(|card| (card.vendor, card.device) == (vendor, device))
}

/// Returns the card with these IDs, for the port `port`.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if no driver supports it.
pub fn require_card(port: &str, vendor: u16, device: u16) -> Result<&'static Supported> {
    find_card(vendor, device).ok_or_else(|| {
        Error::card(port, format!("there is no driver for {vendor:04x}:{device:04x}"), Remedy::ChooseCard)
    })
}
