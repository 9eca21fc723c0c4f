//! A model of the 82599, built from its datasheet; the driver runs on it unchanged.
//!
//! It is an oracle: it lists every driver access that the datasheet forbids ([`Card::breaches`]). Register writes
//! only latch; [`Card::step`] moves frames. A test calls `step` itself and everything is deterministic, or a thread
//! ([`Runner`]) calls it in a loop.
//!
//! - this file: the card, its registers' side effects, and `step`
//! - `ring`: a descriptor ring as the card sees it, and the oracle's records of it
//! - `receive`, `transmit`: the receive and the transmit path
//! - `headers`, `filter`, `rss`, `director`: parsing a frame, accepting it, choosing its queue
//! - `coalesce`, `offload`, `checksum`: receive coalescing, segmentation and checksums
//! - `link`, `module`, `eeprom`, `firmware`, `clock`, `interrupt`: the rest of the card
//! - `registers`, `dma`, `breach`, `trace`: the register file, the address space, the oracle's list, the list of
//!   accesses
//! - `wire`: the other end of the card's cable
//! - `function`: the card as a PCI function, for a host that it is served to
//! - `virtual_function`, `switch`: its virtual functions, and the switch between them, the card and the wire
//!
//! This module uses memory, traffic and the registers of [`crate::spec`], never the driver.
#![allow(unsafe_code)]

mod bar;
mod board;
mod breach;
mod checksum;
mod clock;
mod coalesce;
mod director;
mod dma;
mod eeprom;
mod filter;
mod firmware;
mod function;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod headers;
mod interrupt;
mod kind;
mod link;
mod map;
mod module;
mod named;
mod offload;
mod receive;
mod registers;
mod ring;
mod rss;
mod runner;
mod switch;
mod trace;
mod transmit;
mod virtual_function;
mod wire;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use bar::{CardBar, CardDoorbell};
pub use breach::Breach;
pub use function::Function;
pub use kind::Kind;
pub use named::{OpenWire, named, open_named, open_with_wire};
pub use runner::Runner;
pub use trace::RegisterAccess;
pub use wire::{Cable, Frame, Port, Record, Report, Timed, Traffic, Wire, from_fn};

use crate::pci::Bus;
use crate::port::MacAddress;
use crate::spec::x82599::*;
use crate::spec::{Access, Definition, Register};
use bar::Claim;
use board::Board;
use clock::Clock;
use director::Director;
use dma::Dma;
use eeprom::Eeprom;
use interrupt::Interrupts;
use map::{Block, Line};
use ring::Ring;
use rss::Rss;
use virtual_function::VirtualFunction;

/// A queue's direction, from the program's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the wire.
    Receive,
    /// To the wire.
    Transmit,
}

/// Neither a driver nor a host uses the card.
const FREE: u8 = 0;
/// A driver of this process has the card's registers.
const DRIVEN: u8 = 1;
/// The card is served to hosts, for good. It cannot reach memory that drivers of this process map.
const SERVED: u8 = 2;

/// One card.
pub struct Card {
    board: Board,
    core: Mutex<Core>,
    /// The card's user: [`FREE`], [`DRIVEN`] or [`SERVED`].
    used: AtomicU8,
}

/// State behind one lock: for `step`, and for register accesses with side effects.
struct Core {
    wire: Box<dyn Wire>,
    cable_in: bool,
    frames: (u64, u64),
    rx: Vec<Ring>,
    tx: Vec<Ring>,
    rss: Rss,
    receive: receive::State,
    transmit: transmit::State,
    interrupts: Interrupts,
    link: link::State,
    director: Director,
    clock: Clock,
    eeprom: Eeprom,
    virtual_functions: Vec<VirtualFunction>,
}

/// Returns a locally administered address, always the same for a name.
fn address_of(name: &str) -> MacAddress {
    let [a, b, c, _] = crc32fast::hash(name.as_bytes()).to_le_bytes();
    MacAddress([0x02, 0x82, 0x59, a, b, c])
}

impl Card {
    /// Makes a card with `wire` at its other end, just powered on. Its address is derived from `name`.
    pub fn new(name: &str, wire: Box<dyn Wire>) -> Arc<Card> {
        Card::of_kind(Kind::default(), 0, name, wire)
    }

    /// As [`new`](Card::new), of the given kind, with `virtual_functions` virtual functions, at most 32.
    pub fn of_kind(kind: Kind, virtual_functions: usize, name: &str, wire: Box<dyn Wire>) -> Arc<Card> {
        let rings = |direction| (0..QUEUES).map(|queue| Ring::new(direction, queue)).collect();
        let core = Core {
            wire,
            cable_in: true,
            frames: (0, 0),
            rx: rings(Direction::Receive),
            tx: rings(Direction::Transmit),
            rss: Rss::default(),
            receive: receive::State::default(),
            transmit: transmit::State::default(),
            interrupts: Interrupts::default(),
            link: link::State::new(kind),
            director: Director::default(),
            clock: Clock::default(),
            eeprom: Eeprom::new(kind, address_of(name)),
            virtual_functions: Vec::new(),
        };
        let board = Board::new(name, kind, virtual_functions.min(virtual_function::MOST));
        let card = Card { board, core: Mutex::new(core), used: AtomicU8::new(FREE) };
        card.load_eeprom(&mut card.core());
        firmware::start(&card.board);
        card.core().virtual_functions =
            (0..card.board.functions).map(|number| VirtualFunction::new(card.virtual_mac(number))).collect();
        Arc::new(card)
    }

    /// Returns the card's name.
    pub fn name(&self) -> &str {
        &self.board.name
    }

    /// Returns the kind of card.
    pub fn kind(&self) -> Kind {
        self.board.kind
    }

    /// Returns the address in the EEPROM.
    pub fn mac(&self) -> MacAddress {
        self.core().eeprom.address()
    }

    /// Returns the card's registers, for a bench without a driver; [`drive_model`](crate::drive_model) gives them
    /// to a driver.
    ///
    /// # Safety
    /// Registers tell the card which mapped memory to read and write. The caller, and every clone, must name no
    /// memory of which a slice is lent. Nothing else may drive the card, and rings must be in memory that belongs
    /// to no region.
    pub unsafe fn bar(self: &Arc<Card>) -> CardBar {
        CardBar { card: self.clone(), _runner: None, _claim: None }
    }

    /// Returns the card's registers, for its one driver; `None` while another driver has them, or a host has the
    /// card.
    pub(crate) fn claim(self: &Arc<Card>, runner: Option<Arc<Runner>>) -> Option<CardBar> {
        self.used.compare_exchange(FREE, DRIVEN, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let claim = Some(Arc::new(Claim(self.clone())));
        Some(CardBar { card: self.clone(), _runner: runner, _claim: claim })
    }

    /// Marks the card as served to hosts, for good; false while a driver of this process has it.
    fn claim_for_hosts(&self) -> bool {
        self.used.compare_exchange(FREE, SERVED, Ordering::SeqCst, Ordering::SeqCst) != Err(DRIVEN)
    }

    /// True if the card is served to hosts; its doorbells are then handled when they are rung.
    fn is_served(&self) -> bool {
        self.used.load(Ordering::Relaxed) == SERVED
    }

    /// Returns what a driver sees of the host: the card's address space and its interrupts.
    pub fn bus(&self) -> Arc<dyn Bus> {
        self.board.dma.clone()
    }

    /// Returns the breaches of the datasheet by the driver: the first thousand.
    pub fn breaches(&self) -> Vec<Breach> {
        self.board.oracle.list()
    }

    /// Returns the number of breaches by kind.
    pub fn breaches_by_kind(&self) -> Vec<(&'static str, u64)> {
        self.board.oracle.by_kind()
    }

    /// Returns the number of breaches.
    pub fn breach_count(&self) -> u64 {
        self.board.oracle.count()
    }

    /// Moves at most `budget` frames each way, and returns the number moved.
    pub fn step(&self, budget: usize) -> usize {
        if self.board.is_unplugged() {
            return 0;
        }
        let core = &mut *self.core();
        self.update_link(core);
        let moved = self.transmit(core, budget) + self.receive(core, budget);
        self.count_transmitted(core);
        core.interrupts.raise(&self.board);
        moved
    }

    /// Pulls the cable out, or puts it back.
    pub fn set_cable(&self, plugged: bool) {
        let core = &mut *self.core();
        core.cable_in = plugged;
        self.update_link(core);
    }

    /// Leaves moving packets to the caller of [`step`](Card::step): doorbells become single stores, as under a
    /// [`Runner`].
    pub fn stepped_by_hand(&self) {
        self.board.watchful.store(false, Ordering::Relaxed);
    }

    /// Puts a 1 Gbit/s module into the cage of a card that has one, or a 10 Gbit/s module.
    pub fn set_module(&self, gigabit: bool) {
        let core = &mut *self.core();
        core.link.set_module(gigabit);
        self.update_link(core);
    }

    /// Leaves a request of the card's pending, as if it were never answered: master disable does not take effect
    /// until the card has been reset twice (section 5.2.4.3.2).
    pub fn hang(&self) {
        self.board.hung.store(2, Ordering::Relaxed);
    }

    /// Replaces the wire by `change` of it, which usually wraps it.
    pub fn rewire(&self, change: impl FnOnce(Box<dyn Wire>) -> Box<dyn Wire>) {
        let mut core = self.core();
        let unplugged = Box::new(Cable::unplugged());
        let old = std::mem::replace(&mut core.wire, unplugged);
        core.wire = change(old);
    }

    /// Stops the wire from bringing new frames.
    pub fn finish_wire(&self) {
        self.core().wire.finish();
    }

    /// Returns the registers that the driver has read, and those that it has written, since power-on.
    pub fn used_registers(&self) -> Vec<(&'static Definition, bool, bool)> {
        self.board.registers.used().filter(|(_, read, written)| *read || *written).collect()
    }

    /// Starts or stops the list of register accesses by drivers; returns the previous list, of at most a million
    /// accesses.
    pub fn record_accesses(&self, on: bool) -> Vec<RegisterAccess> {
        self.board.trace.record(on)
    }

    /// Returns a register's value without the side effects of a read; 0 if there is no such register.
    pub fn register(&self, offset: u32) -> u32 {
        map::find(Kind::X550, offset).map_or(0, |line| self.board.registers.get(line.register.offset))
    }

    /// Returns the frames received from the wire and sent to it, since power-on.
    pub fn frames(&self) -> (u64, u64) {
        self.core().frames
    }

    /// Returns what the wire has counted and checked; `None` if it does neither.
    pub fn wire_report(&self) -> Option<Report> {
        self.core().wire.report()
    }

    /// Takes the card out of its slot: reads return all ones, writes and DMA have no effect.
    pub fn unplug(&self) {
        let core = &mut *self.core();
        self.board.unplugged.store(true, Ordering::Relaxed);
        self.update_link(core);
    }

    /// Puts the card back, in its state after power-on.
    pub fn plug_in(&self) {
        let core = &mut *self.core();
        self.board.unplugged.store(false, Ordering::Relaxed);
        self.board.hung.store(0, Ordering::Relaxed);
        core.link.power_on();
        [ESDP::OFFSET, SWSM::OFFSET, SW_FW_SYNC::OFFSET]
            .into_iter()
            .for_each(|offset| self.board.registers.set(offset, 0));
        self.reset_function(core);
    }

    /// Resets the PCI function, and with it the flag that a driver is loaded (section 8.2.3.1.3).
    fn reset_function(&self, core: &mut Core) {
        self.board.registers.set(CTRL_EXT::OFFSET, 0);
        self.reset(core);
    }

    /// Sets whether the host lets the card read and write memory.
    fn set_bus_master(&self, on: bool) {
        self.board.bus_master.store(on, Ordering::Relaxed);
    }

    /// Makes the register at `offset` ignore what a driver waits for; `None` ends that, and completes a reset that
    /// was stuck.
    pub fn stick(&self, offset: Option<u32>) {
        self.board.stick(offset);
        if offset.is_none() && self.board.registers.get(CTRL::OFFSET) & CTRL::RST != 0 {
            self.reset(&mut self.core());
        }
    }

    /// Returns whether a queue's function may read and write memory.
    fn may_work(&self, core: &Core, queue: u16) -> bool {
        self.board
            .owner(queue)
            .map_or_else(|| self.board.may_work(), |number| core.virtual_functions[number].bus_master)
    }

    /// Returns the address space of a queue's function.
    fn space(&self, core: &Core, queue: u16) -> Arc<Dma> {
        match self.board.owner(queue) {
            Some(number) => core.virtual_functions[number].dma.clone(),
            None => self.board.dma.clone(),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Reads and writes by a driver.

    fn read(&self, offset: u32) -> u32 {
        if self.board.is_unplugged() {
            return u32::MAX;
        }
        let Some(&Line { register, read, .. }) = map::find(self.kind(), offset) else {
            self.board.oracle.note(Breach::NoRegister { offset, write: false });
            return 0;
        };
        self.board.trace.note(register, None);
        self.board.registers.note_use(register.offset, false);
        let (board, core) = (&self.board, || self.core());
        match read {
            Block::Interrupts => core().interrupts.read(board, register),
            Block::Link => self.read_link(&mut core(), register),
            Block::Clock => core().clock.read(board, register),
            _ => board.registers.read(register),
        }
    }

    /// Sets the cause of a queue.
    fn cause(&self, core: &mut Core, direction: Direction, queue: u16) {
        match self.board.owner(queue) {
            Some(number) => self.cause_virtual(core, number, direction, queue),
            None => core.interrupts.cause(&self.board, direction, queue),
        }
    }

    /// Handles a write by the physical function's driver. It knows nothing of virtual functions and cannot warn
    /// their drivers when it stops all queues, so writes to their queues are ignored.
    fn write(&self, offset: u32, value: u32) {
        let is_theirs = |Line { register, .. }: &Line| {
            registers::of_queues(register.definition) && self.board.owner(register.number).is_some()
        };
        if !map::find(self.kind(), offset).is_some_and(is_theirs) {
            self.write_any(offset, value);
        }
    }

    /// Handles a write by any function's driver.
    fn write_any(&self, offset: u32, value: u32) {
        let board = &self.board;
        if board.is_unplugged() {
            return;
        }
        let Some(&Line { register, write, keeps, .. }) = map::find(self.kind(), offset) else {
            return board.oracle.note(Breach::NoRegister { offset, write: true });
        };
        let Register { offset, definition, .. } = register;
        board.trace.note(register, Some(value));
        board.registers.note_use(offset, true);
        if matches!(definition.access, Access::RO | Access::RC) {
            return board.oracle.note(Breach::ReadOnly { register: definition.name, value });
        }
        let reserved = (value ^ board.registers.get(offset)) & !definition.writable;
        if reserved != 0 {
            let (register, section) = (definition.name, definition.section);
            board.oracle.note(Breach::ReservedBits { register, value, reserved, section });
        }
        // Of a register that is stuck, the reset bits stay set, and an enable bit keeps its value.
        if board.is_stuck(offset) && (offset != CTRL::OFFSET || value & CTRL::RST != 0) {
            if offset == CTRL::OFFSET {
                board.registers.set(offset, value);
            }
            return;
        }
        let value = value & keeps;
        match write {
            Block::File => board.registers.write(register, value),
            Block::Control => self.write_control(register, value),
            Block::Eeprom => self.core().eeprom.write(&board.registers, register, value),
            Block::Firmware => firmware::command(board, &self.core().eeprom, value),
            Block::Link => self.write_link(register, value),
            Block::Interrupts => self.core().interrupts.write(board, register, value),
            Block::Rss => {
                board.registers.set(offset, value);
                self.core().rss.key_changed();
            }
            Block::Director => self.core().director.write(&board.registers, register, value),
            Block::Clock => self.core().clock.write(board, register, value),
            Block::Queues => self.write_queue(register, value),
        }
    }

    /// Writes registers of the whole card.
    fn write_control(&self, Register { offset, .. }: Register, value: u32) {
        let registers = &self.board.registers;
        match offset {
            CTRL::OFFSET => self.write_ctrl(offset, value),
            // Linux's self-test writes STATUS, to check that this does nothing.
            STATUS::OFFSET => {}
            RXCTRL::OFFSET => self.write_receive_control(offset, value),
            SECRXCTRL::OFFSET => {
                registers.set(offset, value);
                registers.change(SECRXSTAT::OFFSET, SECRXSTAT::SECRX_RDY, value & SECRXCTRL::RX_DIS != 0);
            }
            SECTXCTRL::OFFSET => {
                registers.set(offset, value);
                registers.change(SECTXSTAT::OFFSET, SECTXSTAT::SECTX_RDY, value & SECTXCTRL::TX_DIS != 0);
            }
            _ => {
                if registers.get(RTTDCS::OFFSET) & RTTDCS::ARBDIS == 0 {
                    let why = "MTQC may change only while RTTDCS.ARBDIS is set";
                    self.board.oracle.note(Breach::WrongTime { register: MTQC::NAME, queue: 0, why });
                }
                registers.set(offset, value);
            }
        }
    }

    fn read_link(&self, core: &mut Core, register: Register) -> u32 {
        match register.offset {
            LINKS::OFFSET => {
                self.update_link(core);
                self.board.registers.read(register)
            }
            I2CCTL::OFFSET => core.link.module_wires(),
            // The lines are not pulled low.
            _ => self.board.registers.get(register.offset) | X550_I2CCTL::DATA_IN | X550_I2CCTL::CLK_IN,
        }
    }

    fn write_link(&self, Register { offset, .. }: Register, value: u32) {
        let registers = &self.board.registers;
        match offset {
            I2CCTL::OFFSET => {
                registers.set(offset, value);
                self.core().link.drive_module_wires(value);
            }
            MSCA::OFFSET => {
                let answer = self.core().link.mdio(value, registers);
                registers.set(offset, answer);
                self.update_link(&mut self.core());
            }
            _ => {
                if offset == AUTOC::OFFSET {
                    self.check_semaphore_of_link(registers.get(offset), value);
                }
                registers.set(offset, value);
                // Negotiation completes at once.
                registers.change(AUTOC::OFFSET, AUTOC::RESTART_AN, false);
                self.update_link(&mut self.core());
            }
        }
    }

    /// Writes one of the registers of a queue.
    fn write_queue(&self, Register { offset, number: n, definition }: Register, value: u32) {
        let (name, old) = (definition.name, self.board.registers.get(offset));
        match definition.offset {
            RXDCTL::OFFSET => self.write_queue_control(Direction::Receive, n, offset, value),
            TXDCTL::OFFSET => self.write_queue_control(Direction::Transmit, n, offset, value),
            RDT::OFFSET => self.write_tail(Direction::Receive, n, offset, value),
            TDT::OFFSET => self.write_tail(Direction::Transmit, n, offset, value),
            // Until receiving begins the head may be written, even of an enabled queue (8.2.3.8.4); DPDK's driver
            // does so.
            RDH::OFFSET if !self.board.receives() => {
                self.board.registers.set(offset, value);
                self.core().rx[n as usize].set_head(value);
            }
            // DPDK's driver writes the 0 that enabling has set.
            RDH::OFFSET | TDH::OFFSET if value == old => {}
            // DROP_EN may change at any time: Linux's driver changes it after flow control is negotiated.
            SRRCTL::OFFSET if (value ^ old) & !SRRCTL::DROP_EN == 0 => self.board.registers.set(offset, value),
            RDBAL::OFFSET | RDBAH::OFFSET | RDLEN::OFFSET | RDH::OFFSET | SRRCTL::OFFSET => {
                self.write_of_disabled_queue(RXDCTL::at(n), name, n, offset, value);
            }
            _ => self.write_of_disabled_queue(TXDCTL::at(n), name, n, offset, value),
        }
    }

    /// Writes CTRL: the reset bits clear themselves, master disable is acknowledged in STATUS.
    fn write_ctrl(&self, offset: u32, value: u32) {
        let core = &mut *self.core();
        if value & (CTRL::RST | CTRL::LRST) != 0 {
            return self.reset(core);
        }
        self.board.registers.set(offset, value);
        self.board.update_master_status();
    }

    /// Checks the semaphore for AUTOC, which firmware writes as well: it must be held to change the link's mode or
    /// restart negotiation (section 10.5.4). An X540's or X550's link belongs to the PHY.
    fn check_semaphore_of_link(&self, old: u32, value: u32) {
        let changes = (value ^ old) & AUTOC::LMS_MASK != 0 || value & AUTOC::RESTART_AN != 0;
        let held = self.board.registers.get(SW_FW_SYNC::OFFSET) & SW_FW_SYNC::SW_MAC_CSR_SM != 0;
        if changes && (self.board.kind.has_phy() || !held) {
            self.board.oracle.note(Breach::NoSemaphore { register: AUTOC::NAME, section: "10.5.4" });
        }
    }

    fn reset(&self, core: &mut Core) {
        // The queues of virtual functions, and what waits for them, keep their state.
        let queues = self.board.own_queues();
        // Pins and semaphores keep their values, and so does the flag that tells firmware of the driver (sections
        // 4.2.2, 8.2.3.1.3).
        let kept =
            [ESDP::OFFSET, SWSM::OFFSET, SW_FW_SYNC::OFFSET].map(|offset| (offset, self.board.registers.get(offset)));
        let driver = self.board.registers.get(CTRL_EXT::OFFSET) & CTRL_EXT::DRV_LOAD;
        self.board.registers.reset(queues);
        kept.into_iter().for_each(|(offset, value)| self.board.registers.set(offset, value));
        self.board.registers.change(CTRL_EXT::OFFSET, driver, true);
        let _ = self.board.hung.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resets| resets.checked_sub(1));
        for queue in 0..queues {
            core.rx[queue as usize].disable();
            core.tx[queue as usize].disable();
            core.receive.forget(Direction::Receive, queue);
            core.transmit.forget(queue);
        }
        core.rss.key_changed();
        core.transmit.paused_until = None;
        core.interrupts = Interrupts::default();
        core.director = Director::default();
        core.clock = Clock::default();
        self.load_eeprom(core);
        firmware::start(&self.board);
        self.update_link(core);
    }

    /// Loads from the EEPROM, as after a reset: the address, the link's mode, and each kind's own values.
    fn load_eeprom(&self, core: &mut Core) {
        self.board.registers.set(AUTOC::OFFSET, self.board.kind.autoc());
        (0..8).for_each(|class| self.board.registers.set(RXPBSIZE::at(class), 0));
        self.board.registers.set(RXPBSIZE::at(0), self.board.kind.packet_buffer_kib() << RXPBSIZE::KIB_SHIFT);
        let (low, high) = core.eeprom.address().words();
        self.board.registers.set(RAL::at(0), low);
        self.board.registers.set(RAH::at(0), high | RAH::AV);
    }

    /// Writes RXCTRL; when receiving begins, checks what was prepared.
    fn write_receive_control(&self, offset: u32, value: u32) {
        let begins = value & !self.board.registers.get(offset) & RXCTRL::RXEN != 0;
        self.board.registers.set(offset, value);
        self.board.update_master_status();
        if !begins {
            return;
        }
        self.check_packet_buffers();
        for queue in 0..QUEUES {
            let (enabled, bad) = {
                let ring = &self.core().rx[queue as usize];
                (ring.enabled, ring.bad.clone())
            };
            if let Some(breach) = bad {
                self.board.oracle.note(breach);
            } else if enabled {
                self.write_tail(Direction::Receive, queue, RDT::at(queue), self.board.registers.get(RDT::at(queue)));
            }
        }
    }

    /// Checks that traffic classes and flow director together use no more packet buffer than there is (sections
    /// 8.2.3.8.9 and 8.2.3.21.1).
    fn check_packet_buffers(&self) {
        let of_class = |class| self.board.registers.get(RXPBSIZE::at(class)) >> RXPBSIZE::KIB_SHIFT & 0x3FF;
        let director = match self.board.registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::PBALLOC_MASK {
            0 => 0,
            n => 32 << n,
        };
        let (kib, most) = ((0..8).map(of_class).sum::<u32>() + director, self.board.kind.packet_buffer_kib());
        if kib > most {
            self.board.oracle.note(Breach::PacketBuffer { kib, most });
        }
    }

    /// Writes RXDCTL or TXDCTL, which enable and disable a queue.
    fn write_queue_control(&self, direction: Direction, queue: u16, offset: u32, value: u32) {
        let core = &mut *self.core();
        let space = self.space(core, queue);
        let (on, low, high, len, head, tail) = match direction {
            Direction::Receive => {
                (RXDCTL::ENABLE, RDBAL::at(queue), RDBAH::at(queue), RDLEN::at(queue), RDH::at(queue), RDT::at(queue))
            }
            Direction::Transmit => {
                (TXDCTL::ENABLE, TDBAL::at(queue), TDBAH::at(queue), TDLEN::at(queue), TDH::at(queue), TDT::at(queue))
            }
        };
        self.board.registers.set(offset, value);
        let ring = match direction {
            Direction::Receive => &mut core.rx[queue as usize],
            Direction::Transmit => &mut core.tx[queue as usize],
        };
        if value & on == 0 {
            if ring.enabled || ring.bad.is_some() {
                if direction == Direction::Transmit && ring.enabled {
                    // A doorbell that was rung before still counts.
                    ring.move_tail(self.board.registers.get(tail), &self.board.oracle);
                    self.keep_fetched(&space.maps(), ring, &mut core.transmit);
                }
                ring.disable();
                core.receive.forget(direction, queue);
            }
            return;
        }
        if ring.enabled {
            return;
        }
        let base = self.board.registers.get(low) as u64 | (self.board.registers.get(high) as u64) << 32;
        let bytes = self.board.registers.get(len);
        // Prerequisites bind only the physical function's driver; those of virtual functions rely on it.
        let is_physical = self.board.owner(queue).is_none();
        if is_physical
            && direction == Direction::Transmit
            && self.board.registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE == 0
        {
            let why = "DMATXCTL.TE must be set before (section 4.6.8)";
            self.board.oracle.note(Breach::WrongTime { register: TXDCTL::NAME, queue, why });
        }
        let bad = if base == 0 || bytes == 0 || !bytes.is_multiple_of(128) {
            Some(Breach::NoRing { direction, queue, len: bytes })
        } else if !space.maps().covers(base, bytes as usize) {
            Some(Breach::Unmapped { direction, queue, address: base, len: bytes as usize })
        } else {
            None
        };
        // A receive queue is not used before receiving begins: Linux's self-test of registers enables queues
        // without rings.
        let in_use = is_physical && (direction == Direction::Transmit || self.board.receives());
        match bad {
            Some(breach) if in_use => self.board.oracle.note(breach),
            Some(breach) => ring.bad = Some(breach),
            None => {
                // Enabling a queue initializes its head and tail (8.2.3.8.6, 8.2.3.9.10). DPDK's driver relies on
                // it when it restarts a queue.
                self.board.registers.set(head, 0);
                self.board.registers.set(tail, 0);
                ring.enable(base, bytes / 16);
            }
        }
    }

    /// Writes a register that may change only while its queue is disabled (sections 4.6.7.1, 4.6.8.1).
    fn write_of_disabled_queue(&self, control: u32, register: &'static str, queue: u16, offset: u32, value: u32) {
        const ENABLE: u32 = RXDCTL::ENABLE; // and TXDCTL's is the same bit
        if self.board.registers.get(control) & ENABLE != 0 {
            let why = "it may change only while the queue is disabled";
            self.board.oracle.note(Breach::WrongTime { register, queue, why });
        }
        self.board.registers.set(offset, value);
    }

    /// Writes RDT or TDT. In strict mode the oracle checks the new descriptors at once. Otherwise a doorbell is one
    /// store, and `step` reads it.
    fn write_tail(&self, direction: Direction, queue: u16, offset: u32, tail: u32) {
        self.board.registers.set(offset, tail);
        let waits = direction == Direction::Receive && !self.board.receives();
        if waits || !self.board.is_watchful() {
            return;
        }
        let core = &mut *self.core();
        let buffer = self.board.most_written(queue);
        let space = self.space(core, queue);
        let (ring, others) = match direction {
            Direction::Receive => (&mut core.rx[queue as usize], Some(buffer)),
            Direction::Transmit => (&mut core.tx[queue as usize], None),
        };
        if !ring.enabled {
            if tail != 0 {
                let register = if direction == Direction::Receive { RDT::NAME } else { TDT::NAME };
                let why = "the queue must be enabled first (sections 4.6.7.1, 4.6.8.1)";
                self.board.oracle.note(Breach::WrongTime { register, queue, why });
            }
            return;
        }
        let maps = space.maps();
        if ring.move_tail(tail, &self.board.oracle) {
            ring.remember(&maps, others, &self.board.oracle);
        }
    }
}
