//! The kinds of cards: the 82599 and its successors.

use linerate_core::error::Error;
use linerate_spec::x82599::*;

/// The kind of card: its device ID and its type of link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardKind {
    /// An 82599 on a backplane (10GBASE-KX4).
    X82599Kx4,
    /// An 82599 with an SFP+ module in its cage.
    #[default]
    X82599Sfp,
    /// An X540, with a PHY for copper (10GBASE-T).
    X540,
    /// An X550, also for copper. It has a redirection table of 512 entries, a clock in nanoseconds, and an EEPROM that
    /// only its firmware reads.
    X550,
}

impl CardKind {
    /// Returns the size of the receive packet buffer, in KiB.
    pub(super) fn packet_buffer_kib(self) -> u32 {
        match self {
            CardKind::X82599Kx4 | CardKind::X82599Sfp => PACKET_BUFFER_KIB,
            CardKind::X540 | CardKind::X550 => X540_PACKET_BUFFER_KIB,
        }
    }

    /// Returns the value of `AUTOC` in the EEPROM.
    pub(super) fn autoc(self) -> u32 {
        match self {
            CardKind::X82599Kx4 => AUTOC::LMS_KX4_KX_KR | AUTOC::KX4_SUPP | AUTOC::KX_SUPP,
            CardKind::X82599Sfp | CardKind::X540 | CardKind::X550 => AUTOC::LMS_10G_SERIAL,
        }
    }

    /// Returns whether the card has a PHY, and firmware with a host interface: an X540 or X550.
    pub(super) fn has_phy(self) -> bool {
        matches!(self, CardKind::X540 | CardKind::X550)
    }

    /// Returns the PCI device ID; the vendor ID is Intel's, 8086.
    pub fn device(self) -> u16 {
        match self {
            CardKind::X82599Kx4 => 0x10F7,
            CardKind::X82599Sfp => 0x10FB,
            CardKind::X540 => 0x1528,
            CardKind::X550 => 0x1563,
        }
    }

    /// Returns the PCI device ID of the virtual functions.
    pub(super) fn virtual_device(self) -> u16 {
        match self {
            CardKind::X82599Kx4 | CardKind::X82599Sfp => 0x10ED,
            CardKind::X540 => 0x1515,
            CardKind::X550 => 0x1565,
        }
    }
}

/// All kinds with their names in options.
const KINDS: [(&str, CardKind); 4] = [
    ("82599-kx4", CardKind::X82599Kx4),
    ("82599-sfp", CardKind::X82599Sfp),
    ("x540", CardKind::X540),
    ("x550", CardKind::X550),
];

impl std::str::FromStr for CardKind {
    type Err = Error;

    fn from_str(text: &str) -> std::result::Result<CardKind, Error> {
        parse(text).map_err(Error::bad_value)
    }
}

fn parse(text: &str) -> std::result::Result<CardKind, String> {
    let known = KINDS.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
    known.ok_or_else(|| format!("it must be one of {}", KINDS.map(|(name, _)| name).join(", ")))
}

impl std::fmt::Display for CardKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = KINDS.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}
