//! The state that all blocks of a card share and access without its lock: registers, address space, the oracle's list,
//! injected faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use linerate_spec::x82599::*;
use linerate_spec::x82599_vf;

use super::CardKind;
use super::breach::Oracle;
use super::dma::Dma;
use super::registers::Registers;
use super::trace::Trace;

/// The state shared by a card's blocks.
pub(super) struct Board {
    pub name: String,
    pub kind: CardKind,
    /// Number of virtual functions.
    pub functions: usize,
    pub registers: Registers,
    pub dma: Arc<Dma>,
    pub oracle: Oracle,
    pub trace: Trace,
    /// Strict mode: checks each doorbell write immediately, and records the new descriptors to detect later changes.
    /// Off while a [`Runner`](super::Runner) drives the card.
    pub strict: AtomicBool,
    /// Bus mastering, set by the host; while it is off the card starts no DMA and raises no message.
    pub bus_master: AtomicBool,
    /// Set by a driver's write to a register, except doorbells and interrupt registers; cleared by the next step.
    pub changed: AtomicBool,
    // Injected faults, for tests.
    pub unplugged: AtomicBool,
    stuck: AtomicU64,
    /// The number of resets until a pending request ends; 0 if none is pending.
    pub resets_until_unhung: AtomicU8,
}

/// An offset without a register.
const NOT_STUCK: u64 = u64::MAX;

impl Board {
    pub fn new(name: &str, kind: CardKind, functions: usize) -> Board {
        Board {
            name: name.to_string(),
            kind,
            functions,
            registers: Registers::new(),
            dma: Arc::default(),
            oracle: Oracle::default(),
            trace: Trace::default(),
            strict: AtomicBool::new(true),
            bus_master: AtomicBool::new(true),
            changed: AtomicBool::new(false),
            unplugged: AtomicBool::new(false),
            stuck: AtomicU64::new(NOT_STUCK),
            resets_until_unhung: AtomicU8::new(0),
        }
    }

    /// Makes the register at `offset` stuck; see [`Card::set_stuck`](super::Card::set_stuck).
    pub fn set_stuck(&self, offset: Option<u32>) {
        self.stuck.store(offset.map_or(NOT_STUCK, u64::from), Ordering::Relaxed);
    }

    pub fn is_stuck(&self, offset: u32) -> bool {
        self.stuck.load(Ordering::Relaxed) == u64::from(offset)
    }

    pub fn is_unplugged(&self) -> bool {
        self.unplugged.load(Ordering::Relaxed)
    }

    pub fn is_strict(&self) -> bool {
        self.strict.load(Ordering::Relaxed)
    }

    /// Returns whether the physical function may read and write memory: without bus mastering it begins no DMA
    /// (section 5.2.4.3.2).
    pub fn may_dma(&self) -> bool {
        self.bus_master.load(Ordering::Relaxed)
            && self.resets_until_unhung.load(Ordering::Relaxed) == 0
            && self.registers.get(CTRL::OFFSET) & CTRL::MASTER_DISABLE == 0
    }

    /// Updates STATUS, which reports that no request is pending once master disable is set and receive is off (section
    /// 5.2.4.3.2). Received frames would cause new requests.
    pub fn update_master_status(&self) {
        let registers = &self.registers;
        let disabled = registers.get(CTRL::OFFSET) & CTRL::MASTER_DISABLE != 0
            && !self.receives()
            && self.resets_until_unhung.load(Ordering::Relaxed) == 0;
        registers.change(STATUS::OFFSET, STATUS::MASTER_ENABLE_STATUS, !disabled);
    }

    /// Returns whether the physical function receives.
    pub fn receives(&self) -> bool {
        self.registers.get(RXCTRL::OFFSET) & RXCTRL::RXEN != 0
    }

    pub fn has_link(&self) -> bool {
        self.registers.get(LINKS::OFFSET) & LINKS::UP != 0
    }

    /// Returns whether MAC loopback is on: sent frames are received (section 3.7.6.2).
    pub fn loops_back(&self) -> bool {
        self.registers.get(HLREG0::OFFSET) & HLREG0::LPBK != 0
    }

    /// Returns the virtual function that a queue belongs to, if any.
    #[inline]
    pub fn owner(&self, queue: u16) -> Option<usize> {
        let number = ((QUEUES - 1 - queue) / x82599_vf::QUEUES) as usize;
        (number < self.functions).then_some(number)
    }

    /// Returns the number of queues of the physical function.
    pub fn own_queues(&self) -> u16 {
        QUEUES - self.functions as u16 * x82599_vf::QUEUES
    }

    /// Returns the longest accepted frame, with CRC and without VLAN tag (section 8.2.3.22).
    pub fn longest_frame(&self) -> usize {
        let jumbo = self.registers.get(HLREG0::OFFSET) & HLREG0::JUMBOEN != 0;
        if jumbo { (self.registers.get(MAXFRS::OFFSET) >> MAXFRS::MFS_SHIFT) as usize } else { 1518 }
    }

    /// Returns `SRRCTL.BSIZEPACKET` in bytes.
    pub fn buffer_bytes(&self, queue: u16) -> usize {
        (self.registers.get(SRRCTL::at(queue)) & SRRCTL::BSIZEPACKET_MASK) as usize * 1024
    }

    /// Returns the most bytes that the card may write into one buffer: the size that the driver set, but at most the
    /// longest frame that the MAC accepts. That frame has a VLAN tag, and no CRC if CRCs are stripped.
    pub fn most_written(&self, queue: u16) -> usize {
        let crc = if self.registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP != 0 { 4 } else { 0 };
        self.buffer_bytes(queue).min(self.longest_frame() + 4 - crc)
    }
}
