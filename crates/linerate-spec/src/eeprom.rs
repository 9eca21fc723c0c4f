//! Words of the EEPROM and of its sections, by their offsets (82599 datasheet, section 6.1).

/// The number of words. `EEC.EE_SIZE` is 6, which means 2^(6 + 6) words (section 8.2.3.2.1).
pub const WORDS: usize = 4096;

/// The sum of the words up to the checksum, and of the sections that they point to (section 6.3.2.11).
pub const SUM: u16 = 0xBABA;
pub const CHECKSUM: u16 = 0x3F;

// Offsets of pointers to sections, and of single words.
pub const CORE_0: u16 = 0x09;
pub const FIRMWARE: u16 = 0x0F;
pub const PBA_GUARD: u16 = 0x15;
pub const PBA: u16 = 0x16;
pub const ALTERNATIVE_SAN: u16 = 0x27;
pub const SAN: u16 = 0x28;
/// Points to a list of module kinds, each with a pointer to values for `CORECTL`. The drivers of Linux and DPDK read
/// it.
pub const MODULES: u16 = 0x2B;
pub const CAPABILITIES: u16 = 0x2C;

/// The end marker of the list of modules, and of a list of values.
pub const END: u16 = 0xFFFF;

/// Kinds of modules in the list. The kinds for a card's second port are 1 higher.
pub mod module {
    pub const PASSIVE: u16 = 3;
    pub const OPTICAL: u16 = 5;
    pub const ACTIVE: u16 = 7;
}
