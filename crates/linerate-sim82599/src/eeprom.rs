//! The EEPROM and its contents (section 6, and 8.2.3.2).

use linerate_core::port::MacAddress;
use linerate_spec::Register;
use linerate_spec::eeprom::*;
use linerate_spec::x82599::{AUTOC, EEC, EERD, RAH, RAL, RXPBSIZE};

use super::CardKind;
use super::board::Board;
use super::registers::Registers;

/// The last word included in an X550's checksum.
const LAST: usize = 0x41;

// The sections of this EEPROM. All other pointers are empty.
const SECTION_CORE_0: usize = 0x50;
const SECTION_FIRMWARE: usize = 0x60;
const SECTION_PATCH: usize = 0x70;
const SECTION_MODULES: usize = 0x80;
const SECTION_ANALOG: usize = 0x90;
const SECTION_PBA: usize = 0xA0;
const SECTION_LINK: usize = 0xB0;

/// A card's EEPROM.
pub(super) struct Eeprom(Vec<u16>);

impl Eeprom {
    pub fn new(kind: CardKind, mac: MacAddress) -> Eeprom {
        Eeprom(image(kind, mac))
    }

    /// Returns a word; words beyond the end are all ones.
    pub fn word(&self, offset: usize) -> u16 {
        self.0.get(offset).copied().unwrap_or(0xFFFF)
    }

    /// Returns the card's MAC address.
    pub fn address(&self) -> MacAddress {
        let word = |n: usize| u32::from(self.0[SECTION_CORE_0 + 1 + n]);
        MacAddress::from_words(word(0) | word(1) << 16, word(2))
    }

    /// Loads the registers that are set from the EEPROM after a reset: MAC address, link mode, and values that depend
    /// on the kind of card.
    pub fn load(&self, Board { registers, kind, .. }: &Board) {
        registers.set(AUTOC::OFFSET, kind.autoc());
        (0..8).for_each(|class| registers.set(RXPBSIZE::at(class), 0));
        registers.set(RXPBSIZE::at(0), kind.packet_buffer_kib() << RXPBSIZE::KIB_SHIFT);
        let (low, high) = self.address().words();
        registers.set(RAL::at(0), low);
        registers.set(RAH::at(0), high | RAH::AV);
    }

    pub fn write(&self, registers: &Registers, Register { offset, .. }: Register, value: u32) {
        match offset {
            // 6.5.3.2, bit-banged access: a request is granted immediately.
            EEC::OFFSET => {
                let granted = if value & EEC::REQ != 0 { EEC::GNT } else { 0 };
                let fixed = EEC::PRES | EEC::ARD | EEC::SIZE_MASK;
                let old = registers.get(offset);
                registers.set(offset, old & fixed | value & !(fixed | EEC::GNT) | granted);
            }
            _ if value & EERD::START != 0 => {
                let word = self.word((value >> EERD::ADDR_SHIFT & 0x3FFF) as usize);
                registers.set(offset, value & 0xFFFC | EERD::DONE | u32::from(word) << EERD::DATA_SHIFT);
            }
            _ => registers.set(offset, value),
        }
    }
}

/// Returns the EEPROM image of a card with this MAC address.
fn image(kind: CardKind, mac: MacAddress) -> Vec<u16> {
    let mut words = vec![0xFFFF; WORDS];
    words[..=LAST].fill(0);
    // 6.3.2.1: the signature 01b means that an EEPROM is present.
    words[0] = 0x4000;
    words[usize::from(CORE_0)] = SECTION_CORE_0 as u16;
    words[usize::from(FIRMWARE)] = SECTION_FIRMWARE as u16;
    words[usize::from(ALTERNATIVE_SAN)] = 0xFFFF;
    words[usize::from(SAN)] = 0xFFFF;
    // Accept any module; the driver need not work around crosstalk of empty cages.
    words[usize::from(CAPABILITIES)] = 1 << 0 | 1 << 7;

    // The core section (6.3.5): its length, then the MAC address.
    words[SECTION_CORE_0] = 3;
    for (word, pair) in words[SECTION_CORE_0 + 1..].iter_mut().zip(mac.0.chunks(2)) {
        *word = u16::from_le_bytes([pair[0], pair[1]]);
    }

    // Pass-through firmware, with a version that drivers accept, and without further requirements.
    words[SECTION_FIRMWARE..SECTION_FIRMWARE + 8].fill(0);
    words[SECTION_FIRMWARE + 4] = SECTION_PATCH as u16;
    words[SECTION_PATCH..SECTION_PATCH + 8].fill(0);
    words[SECTION_PATCH + 7] = 6;
    // An 82599's firmware also manages the link (LESM), so a driver takes the semaphore to write AUTOC.
    if matches!(kind, CardKind::X82599Kx4 | CardKind::X82599Sfp) {
        words[SECTION_FIRMWARE + 2] = SECTION_LINK as u16;
        words[SECTION_LINK..SECTION_LINK + 2].copy_from_slice(&[1, 1 << 15]);
    }

    // Each kind of module, by the number that drivers use, with one harmless write to CORECTL.
    if kind == CardKind::X82599Sfp {
        words[usize::from(MODULES)] = SECTION_MODULES as u16;
        words[SECTION_MODULES] = 0;
        for (n, module) in (3..=6).enumerate() {
            words[SECTION_MODULES + 1 + 2 * n] = module;
            words[SECTION_MODULES + 2 + 2 * n] = SECTION_ANALOG as u16;
        }
        words[SECTION_ANALOG..SECTION_ANALOG + 2].copy_from_slice(&[0, 0x0001]);
    }

    // The board's number, as text (6.4.5.5).
    words[usize::from(PBA_GUARD)] = 0xFAFA;
    words[usize::from(PBA)] = SECTION_PBA as u16;
    let text = b"LINERATE01";
    words[SECTION_PBA] = text.len() as u16 / 2 + 1;
    for (word, pair) in words[SECTION_PBA + 1..].iter_mut().zip(text.chunks(2)) {
        *word = u16::from_be_bytes([pair[0], pair[1]]);
    }

    let section: u16 = words[SECTION_CORE_0 + 1..][..3].iter().fold(0, |sum, &word| sum.wrapping_add(word));
    let first = words[..usize::from(CHECKSUM)].iter().fold(section, |sum, &word| sum.wrapping_add(word));
    words[usize::from(CHECKSUM)] = SUM.wrapping_sub(first);
    words
}
