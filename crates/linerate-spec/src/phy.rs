//! PHYs, whose registers are accessed over MDIO (IEEE 802.3, clause 45), and modules, whose memory is read over I2C
//! (SFF-8472).

/// MDIO: operations for `MSCA.OP`, the devices of a PHY, and their registers.
pub mod mdio {
    pub const OP_ADDRESS: u32 = 0;
    pub const OP_WRITE: u32 = 1;
    pub const OP_READ: u32 = 3;

    // Devices of a PHY.
    pub const PMA: u32 = 1;
    pub const AUTO_NEGOTIATION: u32 = 7;
    /// The vendor-specific device. Its control register powers the PHY down.
    pub const VENDOR_1: u32 = 30;

    // Registers of each device.
    pub const CONTROL: u32 = 0;
    pub const STATUS_1: u32 = 1;
    pub const ID_HIGH: u32 = 2;
    pub const ID_LOW: u32 = 3;
    pub const SPEED_ABILITY: u32 = 4;
    pub const DEVICES_LOW: u32 = 5;
    pub const DEVICES_HIGH: u32 = 6;
    pub const STATUS_2: u32 = 8;
    pub const EXTENDED_ABILITY: u32 = 11;
    pub const VENDOR_STATUS: u32 = 0xC800;

    /// `CONTROL` of [`AUTO_NEGOTIATION`]: restart.
    pub const RESTART: u16 = 1 << 9;
    /// `CONTROL` of [`VENDOR_1`]: power down.
    pub const LOW_POWER: u16 = 1 << 11;
    /// `CONTROL` of each device: reset.
    pub const RESET: u16 = 1 << 15;

    // Speeds advertised in auto-negotiation.
    pub const ADVERTISEMENT: u32 = 0x10;
    pub const ADVERTISE_100M: u16 = 1 << 8;
    pub const TEN_GIGABIT_CONTROL: u32 = 0x20;
    pub const ADVERTISE_10G: u16 = 1 << 12;
    pub const VENDOR_PROVISION: u32 = 0xC400;
    pub const ADVERTISE_1G: u16 = 1 << 15;
}

/// The memory of a module: addresses on the I2C bus, and offsets in its description (SFF-8472, table 3-1).
pub mod sff {
    pub const DESCRIPTION: u8 = 0xA0;
    pub const MEASUREMENTS: u8 = 0xA2;

    pub const IDENTIFIER: u8 = 0;
    pub const EXTENDED_IDENTIFIER: u8 = 1;
    pub const CONNECTOR: u8 = 2;
    /// Compliance with 10GBASE-…, in the upper half.
    pub const TEN_GIGABIT: u8 = 3;
    /// Compliance with 1000BASE-…, in the lower half.
    pub const GIGABIT: u8 = 6;
    /// The technology of a cable.
    pub const CABLE: u8 = 8;
    pub const CABLE_PASSIVE: u8 = 1 << 2;
    pub const CABLE_ACTIVE: u8 = 1 << 3;
    /// The bit rate, in units of 100 Mbit/s.
    pub const BIT_RATE: u8 = 12;
    pub const VENDOR_NAME: u8 = 20;
    pub const VENDOR_OUI: u8 = 37;
    pub const VENDOR_PART: u8 = 40;
    /// The sum of the bytes before it.
    pub const CHECK_BASE: u8 = 63;
    pub const VENDOR_SERIAL: u8 = 68;
    /// The sum of the bytes after `CHECK_BASE`.
    pub const CHECK_EXTENDED: u8 = 95;
}
