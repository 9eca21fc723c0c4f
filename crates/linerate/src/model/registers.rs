//! The register file: storage, and the side effects of reads and writes on the register itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::nic::ixgbe::registers::{ALIASES, Access, MAP, Register};

/// Queues each way; the registers of the second half may lie in another range.
const QUEUES: u32 = super::QUEUES as u32;
const HALF: u32 = QUEUES / 2;

/// Bytes of BAR 0 (section 9.3.6.1).
pub(super) const BAR_BYTES: u32 = 128 << 10;

/// The register that an access reaches.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub register: &'static Register,
    /// The register's own offset, also if it was reached by an alias.
    pub offset: u32,
    /// Its index within its kind.
    pub n: u16,
}

/// One word per offset. Writes only latch here; `Card` handles their effects.
pub(super) struct Registers {
    words: Box<[AtomicU32]>,
    /// By offset: accesses by drivers since power-on.
    used: Box<[AtomicU8]>,
}

/// Bits of `used`.
const READ: u8 = 1 << 0;
const WRITTEN: u8 = 1 << 1;

/// True if each queue has one of these.
pub(super) fn of_queues(register: &Register) -> bool {
    register.stride == 0x40 && matches!(register.first + register.count, HALF | QUEUES)
}

impl Registers {
    pub fn new() -> Registers {
        let words = (0..BAR_BYTES / 4).map(|_| AtomicU32::new(0)).collect();
        let used = (0..BAR_BYTES / 4).map(|_| AtomicU8::new(0)).collect();
        let registers = Registers { words, used };
        registers.reset(super::QUEUES);
        registers
    }

    /// Sets all registers to the datasheet's reset values; of registers per queue only the first `queues`.
    pub fn reset(&self, queues: u16) {
        for register in MAP {
            let count = if of_queues(register) {
                (queues as u32).saturating_sub(register.first).min(register.count)
            } else {
                register.count
            };
            for n in 0..count {
                self.set(register.offset + n * register.stride, register.reset);
            }
        }
    }

    /// Sets all registers of one queue to their reset values.
    pub fn reset_queue(&self, queue: u16) {
        let queue = u32::from(queue);
        let has = |register: &&Register| (register.first..register.first + register.count).contains(&queue);
        for register in MAP.iter().filter(|register| of_queues(register)).filter(has) {
            self.set(register.offset + (queue - register.first) * register.stride, register.reset);
        }
    }

    /// Returns the register at `offset`, or the one that it is an alias of, with its index; `None` if there is
    /// none.
    pub fn find(offset: u32) -> Option<Found> {
        static INDEX: OnceLock<Vec<Option<Found>>> = OnceLock::new();
        let index = INDEX.get_or_init(|| {
            let mut index = vec![None; (BAR_BYTES / 4) as usize];
            for register in MAP {
                for n in 0..register.count {
                    let offset = register.offset + n * register.stride;
                    index[(offset / 4) as usize] = Some(Found { register, offset, n: (register.first + n) as u16 });
                }
            }
            for (alias, count, stride, offset, meant) in ALIASES {
                for n in 0..*count {
                    index[((alias + n * stride) / 4) as usize] = index[((offset + n * meant) / 4) as usize];
                }
            }
            index
        });
        *index.get((offset / 4) as usize).filter(|_| offset.is_multiple_of(4))?
    }

    /// Records that a driver reads or writes the register.
    pub fn note_use(&self, offset: u32, write: bool) {
        self.used[(offset / 4) as usize].fetch_or(if write { WRITTEN } else { READ }, Ordering::Relaxed);
    }

    /// Returns the kinds of registers with whether a driver has read and written them.
    pub fn used(&self) -> impl Iterator<Item = (&'static Register, bool, bool)> {
        MAP.iter().map(|register| {
            let offsets = (0..register.count).map(|n| (register.offset + n * register.stride) / 4);
            let bits = offsets.fold(0, |bits, word| bits | self.used[word as usize].load(Ordering::Relaxed));
            (register, bits & READ != 0, bits & WRITTEN != 0)
        })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        &self.words[(offset / 4) as usize]
    }

    /// Returns the value without side effects. Acquire: what a driver wrote before it is visible.
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

    /// Reads as a driver does.
    pub fn read(&self, register: &Register, offset: u32) -> u32 {
        match register.access {
            Access::RW | Access::RO => self.get(offset),
            Access::RC => self.word(offset).swap(0, Ordering::Relaxed),
            // A read of EICR clears it as well (8.2.3.5.1).
            Access::W1C => self.word(offset).swap(0, Ordering::AcqRel),
            Access::WO => 0,
        }
    }
}
