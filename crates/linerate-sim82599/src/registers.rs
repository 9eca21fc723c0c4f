//! The register file: stores values, and applies the effects that an access has on the register itself ([`Access`]).

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use linerate_spec::x82599::{MAP, QUEUES};
use linerate_spec::{Access, Definition, Register};

/// Bytes of BAR 0 (section 9.3.6.1).
pub(super) const BAR_BYTES: u32 = 128 << 10;

/// One word per register. Writes only store a value here; the blocks handle their effects.
pub(super) struct Registers {
    words: Box<[AtomicU32]>,
    /// Drivers' accesses since power-on, by register.
    used: Box<[AtomicU8]>,
}

/// Bits of `used`.
const READ: u8 = 1 << 0;
const WRITTEN: u8 = 1 << 1;

/// Returns whether each queue has one of these registers.
pub(super) fn of_queues(definition: &Definition) -> bool {
    definition.stride == 0x40 && definition.count == QUEUES
}

impl Registers {
    pub fn new() -> Registers {
        let words = (0..BAR_BYTES / 4).map(|_| AtomicU32::new(0)).collect();
        let used = (0..BAR_BYTES / 4).map(|_| AtomicU8::new(0)).collect();
        let registers = Registers { words, used };
        registers.reset(QUEUES);
        registers
    }

    /// Sets all registers to the datasheet's reset values. Of queue registers, only the first `queues` are reset.
    pub fn reset(&self, queues: u16) {
        for register in MAP.iter().flat_map(|definition| definition.registers()) {
            if register.number < queues || !of_queues(register.definition) {
                self.set(register.offset, register.definition.reset);
            }
        }
    }

    /// Sets all registers of one queue to their reset values.
    pub fn reset_queue(&self, queue: u16) {
        for definition in MAP.iter().filter(|definition| of_queues(definition)) {
            self.set((definition.at)(queue), definition.reset);
        }
    }

    /// Records that a driver has read or written the register.
    pub fn note_use(&self, offset: u32, write: bool) {
        self.used[(offset / 4) as usize].fetch_or(if write { WRITTEN } else { READ }, Ordering::Relaxed);
    }

    /// Returns each register's definition, and whether a driver has read and written it.
    pub fn used(&self) -> impl Iterator<Item = (&'static Definition, bool, bool)> {
        MAP.iter().map(|definition| {
            let of = |register: Register| self.used[(register.offset / 4) as usize].load(Ordering::Relaxed);
            let bits = definition.registers().map(of).fold(0, |all, bits| all | bits);
            (*definition, bits & READ != 0, bits & WRITTEN != 0)
        })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        &self.words[(offset / 4) as usize]
    }

    /// Returns the value without side effects. Acquire: memory that a driver wrote before the register is visible.
    #[inline]
    pub fn get(&self, offset: u32) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    pub fn set(&self, offset: u32, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Sets or clears bits.
    pub fn change(&self, offset: u32, mask: u32, on: bool) {
        if on {
            self.word(offset).fetch_or(mask, Ordering::AcqRel);
        } else {
            self.word(offset).fetch_and(!mask, Ordering::AcqRel);
        }
    }

    /// Adds to a counter, which stops at all ones (8.2.3.23).
    pub fn count(&self, offset: u32, by: u64) {
        if by > 0 {
            let add = |old: u32| Some(old.saturating_add(by.min(u32::MAX as u64) as u32));
            let _ = self.word(offset).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Adds to a counter of two registers.
    pub fn count_wide(&self, low: u32, high: u32, by: u64) {
        if by > 0 {
            let old = self.word(low).fetch_add(by as u32, Ordering::Relaxed);
            let carry = (old as u64 + (by as u32) as u64) >> 32;
            self.count(high, (by >> 32) + carry);
        }
    }

    /// Handles a driver's read.
    pub fn read(&self, Register { offset, definition, .. }: Register) -> u32 {
        match definition.access {
            Access::RW | Access::RO => self.get(offset),
            Access::RC => self.word(offset).swap(0, Ordering::Relaxed),
            Access::W1C => self.word(offset).swap(0, Ordering::AcqRel),
            Access::RS => self.word(offset).fetch_or(1, Ordering::AcqRel),
            Access::WO => 0,
        }
    }

    /// Handles a driver's write to a register that is not read-only.
    pub fn write(&self, Register { offset, definition, .. }: Register, value: u32) {
        match definition.access {
            Access::W1C => self.change(offset, value, false),
            _ => self.set(offset, value),
        }
    }
}
