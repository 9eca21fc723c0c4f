//! The module in the cage of an 82599: its kind, read over bit-banged I2C (sections 3.7.4 and 8.2.3.1.5, and
//! SFF-8472), and the EEPROM's settings for that kind (section 8.2.3.2.2).

use std::time::Duration;

use linerate_core::error::Result;
use linerate_spec::eeprom;
use linerate_spec::phy::sff;
use linerate_spec::x82599::*;

use super::X82599;
use crate::nic::intel::Hardware;
use crate::pci::Bar;

/// The kind of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// No answer: the cage is empty.
    None,
    /// An optical module for 10 Gbit/s.
    Optical,
    /// A direct-attach cable for 10 Gbit/s, without (passive) or with (active) electronics.
    Passive,
    Active,
    /// A module for 1 Gbit/s.
    Gigabit,
}

/// Half a clock period at 100 kHz.
const HALF: Duration = Duration::from_micros(5);

impl<B: Bar> Hardware<B, X82599> {
    /// Identifies the module in the cage.
    pub(super) fn identify_module(&self) -> Result<Module> {
        // Only the compliance codes are read.
        const FIRST: u8 = sff::TEN_GIGABIT;
        let mut codes = [0; (sff::CABLE - FIRST + 1) as usize];
        let answers = self.with_shared(self.phy_semaphore(), || Ok(self.read_module(FIRST, &mut codes)))?;
        let code = |byte: u8| codes[usize::from(byte - FIRST)];
        Ok(match code(sff::CABLE) {
            _ if !answers => Module::None,
            cable if cable & sff::CABLE_PASSIVE != 0 => Module::Passive,
            cable if cable & sff::CABLE_ACTIVE != 0 => Module::Active,
            _ if code(sff::TEN_GIGABIT) & 0xF0 == 0 && code(sff::GIGABIT) & 0xF != 0 => Module::Gigabit,
            _ => Module::Optical,
        })
    }

    /// Writes the EEPROM's settings for this kind of module, if any, to the analog part (`CORECTL`).
    pub(super) fn prepare_for(&self, module: Module) -> Result<()> {
        let kind = match module {
            Module::None => return Ok(()),
            Module::Passive => eeprom::module::PASSIVE,
            Module::Optical | Module::Gigabit => eeprom::module::OPTICAL,
            Module::Active => eeprom::module::ACTIVE,
        };
        let kind = kind + (self.read(STATUS) >> STATUS::LAN_ID_SHIFT & 1) as u16;
        let list = self.read_eeprom(eeprom::MODULES)?;
        if matches!(list, 0 | eeprom::END) {
            return Ok(());
        }
        // The list has a length, then pairs of kind and pointer. `MOST` bounds the loops on a malformed EEPROM.
        const MOST: u16 = 256;
        for n in 0..MOST {
            let at = list.wrapping_add(1 + 2 * n);
            match self.read_eeprom(at)? {
                eeprom::END => break,
                found if found == kind => {
                    let place = self.read_eeprom(at.wrapping_add(1))?;
                    for n in 1..MOST {
                        match self.read_eeprom(place.wrapping_add(n))? {
                            eeprom::END => break,
                            value => self.write(CORECTL, value.into()),
                        }
                    }
                    break;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_eeprom(&self, word: u16) -> Result<u16> {
        self.write(EERD, EERD::START | u32::from(word & 0x3FFF) << EERD::ADDR_SHIFT);
        self.wait_set(EERD, EERD::DONE)?;
        Ok((self.read(EERD) >> EERD::DATA_SHIFT) as u16)
    }

    /// Reads the module's memory starting at `first`; returns false if the module does not answer.
    fn read_module(&self, first: u8, bytes: &mut [u8]) -> bool {
        self.begin();
        let mut answers = self.send_byte(sff::DESCRIPTION) && self.send_byte(first);
        self.begin();
        answers &= self.send_byte(sff::DESCRIPTION | 1);
        if answers {
            let last = bytes.len() - 1;
            for (n, byte) in bytes.iter_mut().enumerate() {
                *byte = (0..8).fold(0, |byte, _| byte << 1 | u8::from(self.receive_bit()));
                // Acknowledges all bytes but the last.
                self.send_bit(n == last);
            }
        }
        self.end();
        answers
    }

    /// Sends a start condition: data falls while the clock is high.
    fn begin(&self) {
        self.drive(false, true);
        self.drive(true, true);
        self.drive(true, false);
        self.drive(false, false);
    }

    /// Sends a stop condition: data rises while the clock is high.
    fn end(&self) {
        self.drive(false, false);
        self.drive(true, false);
        self.drive(true, true);
    }

    /// Sends a byte; returns whether it was acknowledged.
    fn send_byte(&self, byte: u8) -> bool {
        (0..8).rev().for_each(|bit| self.send_bit(byte >> bit & 1 != 0));
        !self.receive_bit()
    }

    fn send_bit(&self, data: bool) {
        self.drive(false, data);
        self.drive(true, data);
        self.drive(false, data);
    }

    fn receive_bit(&self) -> bool {
        self.drive(false, true);
        let wires = self.drive(true, true);
        self.drive(false, true);
        wires & I2CCTL::DATA_IN != 0
    }

    /// Drives both wires (high means released), and returns their state half a clock later.
    fn drive(&self, clock: bool, data: bool) -> u32 {
        let bit = |bit: u32, on: bool| if on { bit } else { 0 };
        self.write(I2CCTL, bit(I2CCTL::CLK_OUT, clock) | bit(I2CCTL::DATA_OUT, data));
        // This read flushes the write before the delay begins.
        self.read(I2CCTL);
        self.bar.wait(HALF);
        // A module may stretch the clock by 500 µs.
        for _ in 0..100 {
            if !clock || self.read(I2CCTL) & I2CCTL::CLK_IN != 0 {
                break;
            }
            self.bar.wait(HALF);
        }
        self.read(I2CCTL)
    }
}
