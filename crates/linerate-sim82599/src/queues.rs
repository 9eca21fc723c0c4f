//! The rings of all queues, and the registers that set them up (sections 8.2.3.8 and 8.2.3.9), in both directions.

use std::ops::Range;

use linerate_spec::x82599::*;
use linerate_spec::{Definition, Register};

use super::Direction;
use super::board::Board;
use super::breach::Breach;
use super::functions::Functions;
use super::ring::{CardRing, Rings};
use super::transmit::{self, Fetched};

/// The rings of all queues, by number.
pub(super) struct Queues {
    pub rx: Rings,
    pub tx: Rings,
}

/// A queue that was disabled.
pub(super) struct Stopped {
    pub direction: Direction,
    pub queue: u16,
    /// The descriptors that the card had fetched.
    pub fetched: Vec<Fetched>,
}

/// Returns whether this is a doorbell, a ring's tail. Without strict mode a write to it is one store, which `step`
/// reads.
pub(super) fn is_tail(definition: &Definition) -> bool {
    matches!(definition.offset, RDT::OFFSET | TDT::OFFSET)
}

impl Queues {
    pub fn new() -> Queues {
        Queues { rx: Rings::new(Direction::Receive), tx: Rings::new(Direction::Transmit) }
    }

    fn ring(&mut self, direction: Direction, queue: u16) -> &mut CardRing {
        match direction {
            Direction::Receive => &mut self.rx[queue as usize],
            Direction::Transmit => &mut self.tx[queue as usize],
        }
    }

    /// Disables both rings of each of these queues.
    pub fn disable(&mut self, queues: Range<u16>) {
        for rings in [&mut self.rx, &mut self.tx] {
            queues.clone().for_each(|queue| rings[queue as usize].disable());
            rings.update();
        }
    }

    /// Writes a register of a queue. Returns the queue if that disables it.
    pub fn write(&mut self, board: &Board, functions: &Functions, register: Register, value: u32) -> Option<Stopped> {
        let registers = &board.registers;
        let Register { offset, number: queue, definition } = register;
        let old = registers.get(offset);
        match definition.offset {
            RXDCTL::OFFSET => {
                let stopped = self.write_control(board, functions, Direction::Receive, register, value);
                self.rx.update();
                return stopped;
            }
            TXDCTL::OFFSET => {
                let stopped = self.write_control(board, functions, Direction::Transmit, register, value);
                self.tx.update();
                return stopped;
            }
            RDT::OFFSET => self.write_tail(board, functions, Direction::Receive, register, value),
            TDT::OFFSET => self.write_tail(board, functions, Direction::Transmit, register, value),
            // Until receive is enabled, the head may be written even if the queue is enabled (8.2.3.8.4). DPDK's driver
            // does so.
            RDH::OFFSET if !board.receives() => {
                registers.set(offset, value);
                self.rx[queue as usize].set_head(value);
            }
            // DPDK's driver writes 0, the value that enabling has set.
            RDH::OFFSET | TDH::OFFSET if value == old => {}
            // DROP_EN may change at any time: Linux's driver changes it after flow control is negotiated.
            SRRCTL::OFFSET if (value ^ old) & !SRRCTL::DROP_EN == 0 => registers.set(offset, value),
            RDBAL::OFFSET | RDBAH::OFFSET | RDLEN::OFFSET | RDH::OFFSET | SRRCTL::OFFSET => {
                write_of_disabled(board, RXDCTL::at(queue), register, value);
            }
            _ => write_of_disabled(board, TXDCTL::at(queue), register, value),
        }
        None
    }

    /// Writes RXDCTL or TXDCTL, which enable and disable a queue.
    fn write_control(
        &mut self,
        board: &Board,
        functions: &Functions,
        direction: Direction,
        Register { offset, number: queue, .. }: Register,
        value: u32,
    ) -> Option<Stopped> {
        let Board { registers, oracle, .. } = board;
        let space = functions.space(board, queue);
        let (on, low, high, len, head, tail) = match direction {
            Direction::Receive => {
                (RXDCTL::ENABLE, RDBAL::at(queue), RDBAH::at(queue), RDLEN::at(queue), RDH::at(queue), RDT::at(queue))
            }
            Direction::Transmit => {
                (TXDCTL::ENABLE, TDBAL::at(queue), TDBAH::at(queue), TDLEN::at(queue), TDH::at(queue), TDT::at(queue))
            }
        };
        registers.set(offset, value);
        let ring = self.ring(direction, queue);
        if value & on == 0 {
            if !ring.enabled && ring.invalid.is_none() {
                return None;
            }
            let mut fetched = Vec::new();
            if direction == Direction::Transmit && ring.enabled {
                // Apply the last doorbell, which was rung before.
                ring.move_tail(registers.get(tail), oracle);
                fetched = transmit::fetch(&space.maps(), ring, oracle);
            }
            ring.disable();
            return Some(Stopped { direction, queue, fetched });
        }
        if ring.enabled {
            return None;
        }
        let base = registers.get(low) as u64 | (registers.get(high) as u64) << 32;
        let bytes = registers.get(len);
        // Only the physical function's driver must ensure prerequisites; drivers of virtual functions rely on it.
        let is_physical = board.owner(queue).is_none();
        if is_physical && direction == Direction::Transmit && registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE == 0 {
            let why = "DMATXCTL.TE must be set before (section 4.6.8)";
            oracle.note(Breach::WrongTime { register: TXDCTL::NAME, queue, why });
        }
        let invalid = if base == 0 || bytes == 0 || !bytes.is_multiple_of(128) {
            Some(Breach::NoRing { direction, queue, len: bytes })
        } else if !space.maps().covers(base, bytes as usize) {
            Some(Breach::Unmapped { direction, queue, address: base, len: bytes as usize })
        } else {
            None
        };
        // A receive queue is not used before receive is enabled: Linux's register self-test enables queues without
        // rings.
        let in_use = is_physical && (direction == Direction::Transmit || board.receives());
        match invalid {
            Some(breach) if in_use => oracle.note(breach),
            Some(breach) => ring.invalid = Some(breach),
            None => {
                // Enabling a queue initializes its head and tail (8.2.3.8.6, 8.2.3.9.10). DPDK's driver relies on that
                // when it restarts a queue.
                registers.set(head, 0);
                registers.set(tail, 0);
                ring.enable(base, bytes / 16);
            }
        }
        None
    }

    /// Writes RDT or TDT. In strict mode the oracle checks the new descriptors immediately.
    fn write_tail(
        &mut self,
        board: &Board,
        functions: &Functions,
        direction: Direction,
        Register { offset, number: queue, definition }: Register,
        tail: u32,
    ) {
        board.registers.set(offset, tail);
        let waits = direction == Direction::Receive && !board.receives();
        if waits || !board.is_strict() {
            return;
        }
        let ring = self.ring(direction, queue);
        if !ring.enabled {
            if tail != 0 {
                let why = "the queue must be enabled first (sections 4.6.7.1, 4.6.8.1)";
                board.oracle.note(Breach::WrongTime { register: definition.name, queue, why });
            }
            return;
        }
        if ring.move_tail(tail, &board.oracle) {
            let space = functions.space(board, queue);
            let buffer = (direction == Direction::Receive).then(|| board.most_written(queue));
            ring.record(&space.maps(), buffer, &board.oracle);
        }
    }

    /// Checks the rings and descriptors of all receive queues, when receive is enabled.
    pub fn begin_receive(&mut self, board: &Board, functions: &Functions) {
        for register in RDT::DEFINITION.registers() {
            let ring = &self.rx[register.number as usize];
            if let Some(breach) = &ring.invalid {
                board.oracle.note(breach.clone());
            } else if ring.enabled {
                let tail = board.registers.get(register.offset);
                self.write_tail(board, functions, Direction::Receive, register, tail);
            }
        }
    }
}

/// Writes a register that may change only while its queue is disabled (sections 4.6.7.1, 4.6.8.1).
fn write_of_disabled(board: &Board, control: u32, Register { offset, number, definition }: Register, value: u32) {
    const ENABLE: u32 = RXDCTL::ENABLE; // the same bit as in TXDCTL
    if board.registers.get(control) & ENABLE != 0 {
        let why = "it may change only while the queue is disabled";
        board.oracle.note(Breach::WrongTime { register: definition.name, queue: number, why });
    }
    board.registers.set(offset, value);
}
