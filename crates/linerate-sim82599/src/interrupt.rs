//! Interrupts: causes, masks, vectors and their throttling (section 7.3).

use std::time::{Duration, Instant};

use linerate_spec::Register;
use linerate_spec::x82599::*;

use super::Direction;
use super::board::Board;
use super::receivers::Receivers;
use super::registers::Registers;

/// The causes in `EICR` that belong to queues or MSI-X vectors (section 8.2.3.5.1).
const QUEUE_CAUSES: u32 = 0xFFFF;

/// Causes and masks that do not fit into the registers, and the causes already signalled.
#[derive(Default)]
pub(super) struct Interrupts {
    /// Vectors 16 and up, whose causes and masks do not fit into `EICR` and `EIMS`.
    more_causes: u64,
    more_masks: u64,
    /// The causes already signalled, by vector and by bit of `EICR`: a message is sent when a cause becomes set, not
    /// while it stays set.
    signalled_vectors: u64,
    signalled_causes: u32,
    /// When each vector was last raised.
    last: Vec<Option<Instant>>,
}

impl Interrupts {
    /// Splits a value of `EIMS_EX`, `EICS_EX` or `EIMC_EX`, whose register `n` has the vectors from 32 n on. Returns
    /// the first 16 vectors, which are in `EICR` and `EIMS`, and the others.
    fn split(n: u16, value: u32) -> (u32, u64) {
        let vectors = u64::from(value) << (32 * n);
        (vectors as u32 & QUEUE_CAUSES, vectors & !u64::from(QUEUE_CAUSES))
    }

    /// Sets the cause that IVAR assigns to a queue of the physical function (section 7.3.1.2).
    pub fn cause(&mut self, Board { registers, .. }: &Board, direction: Direction, queue: u16) {
        let shift = 16 * (queue as u32 & 1) + if direction == Direction::Transmit { 8 } else { 0 };
        let entry = registers.get(IVAR::at(queue / 2)) >> shift;
        if entry & IVAR::VALID == 0 {
            return;
        }
        // Queues have causes 0 to 15; with MSI-X the causes are vectors, up to 63.
        let messages = registers.get(GPIE::OFFSET) & GPIE::MULTIPLE_MSIX != 0;
        match entry & if messages { 0x3F } else { 0xF } {
            vector @ 0..16 => registers.change(EICR::OFFSET, 1 << vector, true),
            vector => self.more_causes |= 1 << vector,
        }
    }

    pub fn write(&mut self, board: &Board, register: Register, value: u32) {
        let registers = &board.registers;
        let (low, more) = Interrupts::split(register.number, value);
        match register.definition.offset {
            EICR::OFFSET => registers.change(EICR::OFFSET, value, false),
            EICS::OFFSET => registers.change(EICR::OFFSET, value, true),
            EIMS::OFFSET => registers.change(EIMS::OFFSET, value, true),
            EIMC::OFFSET => registers.change(EIMS::OFFSET, value, false),
            EICS_EX::OFFSET => {
                registers.change(EICR::OFFSET, low, true);
                self.more_causes |= more;
            }
            EIMS_EX::OFFSET => {
                registers.change(EIMS::OFFSET, low, true);
                self.more_masks |= more;
            }
            EIMC_EX::OFFSET => {
                registers.change(EIMS::OFFSET, low, false);
                self.more_masks &= !more;
            }
            _ => {}
        }
        self.raise(board);
    }

    pub fn read(&mut self, board: &Board, register: Register) -> u32 {
        let registers = &board.registers;
        match register.definition.offset {
            EICR::OFFSET => {
                let gpie = registers.get(GPIE::OFFSET);
                // 8.2.3.5.18: with OCD (other clear disable), only causes 16 to 29 are cleared.
                let cleared = if gpie & GPIE::OCD != 0 { 0x3FFF_0000 } else { u32::MAX };
                let value = registers.get(EICR::OFFSET);
                registers.change(EICR::OFFSET, cleared, false);
                if gpie & GPIE::EIAME == 0 {
                    registers.change(EIMS::OFFSET, registers.get(EIAM::OFFSET) & value, false);
                }
                self.raise(board);
                value
            }
            // Reading EICS returns the causes without clearing them.
            EICS::OFFSET => registers.get(EICR::OFFSET),
            EIMS_EX::OFFSET => {
                let low = u64::from(registers.get(EIMS::OFFSET) & QUEUE_CAUSES);
                ((self.more_masks | low) >> (32 * register.number)) as u32
            }
            _ => 0,
        }
    }

    /// Raises the causes that are set and enabled, not before the interval in EITR has passed (sections 7.3.2.1,
    /// 7.3.1.3).
    pub fn raise(&mut self, board: &Board) {
        let registers = &board.registers;
        let pending = registers.get(EICR::OFFSET) & registers.get(EIMS::OFFSET);
        let more = self.more_causes & self.more_masks;
        self.signalled_causes &= pending;
        self.signalled_vectors &= u64::from(pending & QUEUE_CAUSES) | more;
        if pending == 0 && more == 0 {
            return;
        }
        let mut receivers = board.dma.receivers();
        if registers.get(GPIE::OFFSET) & GPIE::MULTIPLE_MSIX == 0 {
            let Receivers { message, line, line_is_masked, .. } = &mut *receivers;
            let is_new = pending & !self.signalled_causes != 0;
            if let Some(message) = message.as_ref().filter(|_| is_new && self.throttle(registers, 0)) {
                self.signalled_causes = pending;
                message.raise();
            }
            if let Some(line) = line.as_ref().filter(|_| !*line_is_masked && self.throttle(registers, 0)) {
                *line_is_masked = true;
                line.raise();
            }
            return;
        }
        let mut vectors = (u64::from(pending & QUEUE_CAUSES) | more) & !self.signalled_vectors;
        // All other causes share a vector (8.2.3.5.14).
        let (others, shared) =
            (pending & !QUEUE_CAUSES & !self.signalled_causes, registers.get(IVAR_MISC::OFFSET) >> 8);
        let shared = (shared & IVAR::VALID != 0).then_some(shared as usize & 0x3F);
        if let Some(shared) = shared.filter(|_| others != 0) {
            vectors |= 1 << shared;
        }
        while vectors != 0 {
            let vector = vectors.trailing_zeros() as usize;
            vectors &= vectors - 1;
            let Some(receiver) = receivers.vector(vector) else { continue };
            if !self.throttle(registers, vector) {
                continue;
            }
            self.signalled_vectors |= 1 << vector;
            if shared == Some(vector) {
                self.signalled_causes |= others;
            }
            // When the message is sent, causes in EIAC clear themselves, and masks in EIAM are disabled (7.3.4).
            // Causes of vectors beyond EICR always clear themselves.
            let bit = if vector < 16 { 1 << vector } else { 0 };
            registers.change(EICR::OFFSET, registers.get(EIAC::OFFSET) & bit, false);
            self.more_causes &= !(1u64 << vector);
            if registers.get(GPIE::OFFSET) & GPIE::EIAME != 0 {
                let (low, high) = (registers.get(EIAM_EX::at(0)), registers.get(EIAM_EX::at(1)));
                let closing = u64::from(low | registers.get(EIAM::OFFSET) & QUEUE_CAUSES) | u64::from(high) << 32;
                registers.change(EIMS::OFFSET, closing as u32 & bit, false);
                self.more_masks &= !(closing & 1u64 << vector);
                if shared == Some(vector) {
                    registers.change(EIMS::OFFSET, registers.get(EIAM::OFFSET) & others, false);
                }
            }
            let still = registers.get(EICR::OFFSET) & registers.get(EIMS::OFFSET);
            self.signalled_vectors &= u64::from(still & QUEUE_CAUSES) | self.more_causes & self.more_masks;
            receiver.raise();
        }
    }

    /// Returns whether the vector may be raised now (section 7.3.2.1).
    fn throttle(&mut self, registers: &Registers, vector: usize) -> bool {
        let interval = registers.get(EITR::at(vector as u16)) >> EITR::INTERVAL_SHIFT & EITR::INTERVAL_MASK;
        if interval > 0 {
            let now = Instant::now();
            let interval = Duration::from_micros(2 * u64::from(interval));
            self.last.resize(self.last.len().max(vector + 1), None);
            if self.last[vector].is_some_and(|last| now - last < interval) {
                return false;
            }
            self.last[vector] = Some(now);
        }
        true
    }
}
