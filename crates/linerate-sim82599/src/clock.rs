//! The card's clock (section 7.9), which advances as set up by the driver, and time stamps.

use std::time::Instant;

use linerate_spec::Register;
use linerate_spec::x82599::*;

use super::CardKind;
use super::board::Board;
use super::headers::{Headers, UDP};

/// SYSTIM: `value` was its value at the instant `since`.
pub(super) struct Clock {
    since: Instant,
    value: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { since: Instant::now(), value: 0 }
    }
}

/// A tick of the clock at 10 Gbit/s is 6.4 ns; it is longer on a slower link (section 8.2.3.26.12).
const TICK_PICOSECONDS: u128 = 6_400;
/// An X550's tick is 12.5 ns; `TIMINCA` adds or subtracts units of 2^-32 ns (X550 datasheet, 8.2.2.21.12).
const X550_TICK_UNITS: u128 = 25 << 31;
/// An X550 counts nanoseconds, and billions of nanoseconds.
const BILLION: u64 = 1_000_000_000;
/// The ethertype of IEEE 1588.
const PTP: u16 = 0x88F7;

impl Clock {
    fn time(&self, board: &Board) -> u64 {
        if board.kind == CardKind::X550 {
            return self.nanoseconds(board);
        }
        let attributes = board.registers.get(TIMINCA::OFFSET);
        // An X540 has no period field: the whole register is the increment of a tick (X540 datasheet, 8.2.4.26.12).
        let (period, value) = match board.kind {
            CardKind::X540 => (1, attributes),
            _ => (attributes >> TIMINCA::PERIOD_SHIFT, attributes & TIMINCA::VALUE_MASK),
        };
        if period == 0 {
            return self.value;
        }
        let tick = match board.registers.get(LINKS::OFFSET) & LINKS::SPEED_MASK {
            LINKS::SPEED_1G => 10 * TICK_PICOSECONDS,
            LINKS::SPEED_100M => 100 * TICK_PICOSECONDS,
            _ => TICK_PICOSECONDS,
        };
        let ticks = self.since.elapsed().as_nanos() * 1_000 / (u128::from(period) * tick);
        self.value.wrapping_add((ticks * u128::from(value)) as u64)
    }

    /// Returns SYSTIM of an X550: the high half counts billions of nanoseconds.
    fn nanoseconds(&self, Board { registers, .. }: &Board) -> u64 {
        let stands = registers.get(TSAUXC::OFFSET) & TSAUXC::DISABLE_SYSTIME != 0;
        let elapsed = if stands { 0 } else { self.since.elapsed().as_nanos() };
        let attributes = registers.get(TIMINCA::OFFSET);
        let adjusted = elapsed * u128::from(attributes & !TIMINCA::NEGATIVE) / X550_TICK_UNITS;
        let slower = attributes & TIMINCA::NEGATIVE != 0;
        let elapsed = (if slower { elapsed - adjusted } else { elapsed + adjusted }) as u64;
        let [low, high] = [self.value & u64::from(u32::MAX), self.value >> 32];
        let nanoseconds = elapsed + low;
        ((high + nanoseconds / BILLION) << 32) | (nanoseconds % BILLION)
    }

    pub fn read(&self, board: &Board, Register { offset, .. }: Register) -> u32 {
        let registers = &board.registers;
        match offset {
            // Reading the low half latches the high half.
            SYSTIML::OFFSET if board.kind != CardKind::X550 => {
                let time = self.time(board);
                registers.set(SYSTIMH::OFFSET, (time >> 32) as u32);
                time as u32
            }
            // An X550's residue (fractions of a nanosecond) is read first, and latches both halves.
            SYSTIMR::OFFSET => {
                let time = self.time(board);
                registers.set(SYSTIML::OFFSET, time as u32);
                registers.set(SYSTIMH::OFFSET, (time >> 32) as u32);
                0
            }
            // Reading the high half of a stamp frees its registers for the next stamp.
            RXSTMPH::OFFSET => {
                registers.change(TSYNCRXCTL::OFFSET, TSYNCRXCTL::VALID, false);
                registers.get(offset)
            }
            TXSTMPH::OFFSET => {
                registers.change(TSYNCTXCTL::OFFSET, TSYNCTXCTL::VALID, false);
                registers.get(offset)
            }
            FRTIMER::OFFSET => self.since.elapsed().as_micros() as u32,
            _ => registers.get(offset),
        }
    }

    pub fn write(&mut self, board: &Board, Register { offset, .. }: Register, value: u32) {
        let registers = &board.registers;
        let now = self.time(board);
        registers.set(offset, value);
        let low = u64::from(registers.get(SYSTIML::OFFSET));
        self.value = match offset {
            // The low half takes effect when the high half is written.
            SYSTIMH::OFFSET => u64::from(value) << 32 | low,
            TIMADJH::OFFSET => {
                let by = u64::from(value & 0x7FFF_FFFF) << 32 | u64::from(registers.get(TIMADJL::OFFSET));
                if value >> 31 != 0 { now.wrapping_sub(by) } else { now.wrapping_add(by) }
            }
            _ => now,
        };
        self.since = Instant::now();
    }

    /// Returns whether received frames may be stamped.
    pub fn stamps_received(&self, board: &Board) -> bool {
        board.registers.get(TSYNCRXCTL::OFFSET) & TSYNCRXCTL::ENABLE != 0
    }

    /// Stamps a received frame if its kind is selected and the driver has read the last stamp. Returns whether it was
    /// stamped.
    pub fn stamp_received(&self, board: &Board, frame: &[u8], headers: &Headers) -> bool {
        let registers = &board.registers;
        let control = registers.get(TSYNCRXCTL::OFFSET);
        if !self.stamps_received(board) || control & TSYNCRXCTL::VALID != 0 {
            return false;
        }
        let (layer_2, layer_4, events_only) = match control >> TSYNCRXCTL::TYPE_SHIFT & 0x7 {
            0 => (true, false, false),
            1 => (false, true, false),
            2 => (true, true, false),
            4 => return self.stamp(board, RXSTMPL::OFFSET, RXSTMPH::OFFSET, TSYNCRXCTL::OFFSET),
            5 => (true, true, true),
            _ => return false,
        };
        let kinds = registers.get(RXMTRL::OFFSET);
        let port = (kinds >> RXMTRL::PORT_SHIFT) as u16;
        let message = if headers.ethertype == PTP && layer_2 {
            frame.get(headers.network)
        } else if headers.protocol == UDP && layer_4 && headers.ports(frame).is_some_and(|(_, to)| to == port) {
            headers.transport.and_then(|at| frame.get(at + 8))
        } else {
            None
        };
        let Some(message) = message else { return false };
        let wanted = match (layer_2, events_only) {
            // Version 2: the low four bits are the kind; kinds 0 to 3 are events.
            (true, true) => message & 0xF < 4,
            (true, false) => message & 0xF == (kinds >> RXMTRL::MESSAGE_SHIFT) as u8 & 0xF,
            // Version 1: the control field, at offset 32.
            _ => headers.transport.and_then(|at| frame.get(at + 8 + 32)) == Some(&(kinds as u8)),
        };
        wanted && self.stamp(board, RXSTMPL::OFFSET, RXSTMPH::OFFSET, TSYNCRXCTL::OFFSET)
    }

    /// Stamps a sent frame whose descriptor requests it.
    pub fn stamp_sent(&self, board: &Board) {
        let control = board.registers.get(TSYNCTXCTL::OFFSET);
        if control & TSYNCTXCTL::ENABLE != 0 && control & TSYNCTXCTL::VALID == 0 {
            self.stamp(board, TXSTMPL::OFFSET, TXSTMPH::OFFSET, TSYNCTXCTL::OFFSET);
        }
    }

    fn stamp(&self, board: &Board, low: u32, high: u32, control: u32) -> bool {
        let time = self.time(board);
        board.registers.set(low, time as u32);
        board.registers.set(high, (time >> 32) as u32);
        board.registers.change(control, TSYNCTXCTL::VALID, true);
        true
    }
}
