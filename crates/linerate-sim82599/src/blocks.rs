//! The blocks of a card, protected by one lock: dispatch of accesses, their effects on other blocks, and a step.

use std::ops::Range;
use std::sync::atomic::Ordering;

use linerate_core::port::MacAddress;
use linerate_spec::Register;
use linerate_spec::x82599::*;
use linerate_spec::x82599_vf::{QUEUES as QUEUES_EACH, VFLINKS};

use super::board::Board;
use super::clock::Clock;
use super::control::{self, Effect};
use super::director::Director;
use super::eeprom::Eeprom;
use super::firmware;
use super::functions::Functions;
use super::interrupt::Interrupts;
use super::link::Link;
use super::mac::Mac;
use super::map::Block;
use super::queues::Queues;
use super::receive::{Incoming, Receive};
use super::rss::Rss;
use super::switch::Switch;
use super::transmit::{Outgoing, Transmit};
use super::wire::Wire;

/// The blocks of a card. Each owns its state; the [`Board`] has the state shared by all.
pub(super) struct Blocks {
    pub mac: Mac,
    pub link: Link,
    pub queues: Queues,
    pub receive: Receive,
    pub transmit: Transmit,
    pub switch: Switch,
    pub rss: Rss,
    pub director: Director,
    pub interrupts: Interrupts,
    pub clock: Clock,
    pub eeprom: Eeprom,
    pub functions: Functions,
}

impl Blocks {
    /// Creates the blocks of a card in its state after power-on.
    pub fn new(board: &Board, mac: MacAddress, wire: Box<dyn Wire>) -> Blocks {
        let blocks = Blocks {
            mac: Mac::new(wire),
            link: Link::new(board.kind),
            queues: Queues::new(),
            receive: Receive::default(),
            transmit: Transmit::default(),
            switch: Switch::default(),
            rss: Rss::default(),
            director: Director::default(),
            interrupts: Interrupts::default(),
            clock: Clock::default(),
            eeprom: Eeprom::new(board.kind, mac),
            functions: Functions::new(board),
        };
        blocks.eeprom.load(board);
        firmware::start(board);
        blocks
    }

    /// Reads a register whose reads `block` handles.
    pub fn read(&mut self, board: &Board, block: Block, register: Register) -> u32 {
        match block {
            Block::Interrupts => self.interrupts.read(board, register),
            Block::Clock => self.clock.read(board, register),
            Block::Link => {
                if register.offset == LINKS::OFFSET {
                    self.update_link(board);
                }
                self.link.read(board, register)
            }
            _ => board.registers.read(register),
        }
    }

    /// Writes a register whose writes `block` handles.
    pub fn write(&mut self, board: &Board, block: Block, register: Register, value: u32) {
        match block {
            Block::File => board.registers.write(register, value),
            Block::Control => match control::write(board, register, value) {
                Effect::Nothing => {}
                Effect::Reset => self.reset(board),
                Effect::Receive => self.queues.begin_receive(board, &self.functions),
            },
            Block::Eeprom => self.eeprom.write(&board.registers, register, value),
            Block::Firmware => firmware::command(board, &self.eeprom, value),
            Block::Link => {
                self.link.write(board, register, value);
                if register.offset != I2CCTL::OFFSET {
                    self.update_link(board);
                }
            }
            Block::Interrupts => self.interrupts.write(board, register, value),
            Block::Rss => self.rss.write(board, register, value),
            Block::Director => self.director.write(&board.registers, register, value),
            Block::Clock => self.clock.write(board, register, value),
            Block::Queues => {
                if let Some(stopped) = self.queues.write(board, &self.functions, register, value) {
                    self.receive.stopped(&stopped);
                    self.transmit.stopped(stopped.fetched);
                }
            }
        }
    }

    /// Moves at most `budget` frames each way, and returns the number moved.
    pub fn step(&mut self, board: &Board, budget: usize) -> usize {
        self.update_link(board);
        let Blocks { mac, queues, receive, transmit, switch, rss, director, interrupts, clock, functions, .. } = self;
        let mut outgoing = Outgoing { mac, switch, functions, interrupts, clock };
        let sent = transmit.step(board, budget, &mut queues.tx, &mut outgoing);
        let mut incoming = Incoming { mac, switch, functions, interrupts, clock, rss, director };
        let received = receive.step(board, budget, &mut queues.rx, &mut incoming);
        mac.count_sent(board);
        interrupts.raise(board);
        sent + received
    }

    /// Updates the link's state, and notifies drivers of a change.
    pub fn update_link(&mut self, board: &Board) {
        if self.link.update(board, &mut self.mac) {
            self.interrupts.raise(board);
            self.functions.notify_link_change();
        }
    }

    /// Resets the card. Queues of virtual functions, and frames waiting for them, keep their state.
    pub fn reset(&mut self, board: &Board) {
        self.receive.flows.forget();
        let registers = &board.registers;
        let queues = board.own_queues();
        // Pins, semaphores, and the flag that a driver is loaded keep their values (sections 4.2.2, 8.2.3.1.3).
        let kept = [ESDP::OFFSET, SWSM::OFFSET, SW_FW_SYNC::OFFSET].map(|offset| (offset, registers.get(offset)));
        let driver = registers.get(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD;
        registers.reset(queues);
        kept.into_iter().for_each(|(offset, value)| registers.set(offset, value));
        registers.change(CTRL_EXT::OFFSET, driver, true);
        let _ = board
            .resets_until_unhung
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resets| resets.checked_sub(1));
        self.reset_queues(0..queues);
        self.rss.key_changed();
        self.mac.end_pause();
        self.interrupts = Interrupts::default();
        self.director = Director::default();
        self.clock = Clock::default();
        self.eeprom.load(board);
        firmware::start(board);
        self.update_link(board);
    }

    /// Resets the PCI function, including the flag that a driver is loaded (section 8.2.3.1.3).
    pub fn reset_function(&mut self, board: &Board) {
        board.registers.set(CTRL_EXT::OFFSET, 0);
        self.reset(board);
    }

    /// Resets everything, as at power-on.
    pub fn power_on(&mut self, board: &Board) {
        self.link.power_on();
        let lasting = [ESDP::OFFSET, SWSM::OFFSET, SW_FW_SYNC::OFFSET];
        lasting.into_iter().for_each(|offset| board.registers.set(offset, 0));
        self.reset_function(board);
    }

    fn reset_queues(&mut self, queues: Range<u16>) {
        self.queues.disable(queues.clone());
        self.receive.forget(queues.clone());
        self.transmit.forget(queues);
    }

    /// Reads a register of a virtual function that is not a queue register.
    pub fn read_virtual(&mut self, board: &Board, number: usize, offset: u32) -> u32 {
        if offset == VFLINKS::OFFSET {
            self.update_link(board);
        }
        self.functions[number].read(board, offset)
    }

    /// Writes a register of a virtual function that is not a queue register.
    pub fn write_virtual(&mut self, board: &Board, number: usize, offset: u32, value: u32) {
        if self.functions[number].write(offset, value) {
            self.reset_virtual(board, number);
        }
    }

    /// Resets a virtual function: its queues stop, and its driver must set everything up again.
    pub fn reset_virtual(&mut self, board: &Board, number: usize) {
        let first = Functions::first_queue(number);
        let queues = first..first + QUEUES_EACH;
        self.reset_queues(queues.clone());
        queues.for_each(|queue| board.registers.reset_queue(queue));
        self.functions.reset(board, number);
    }
}
