//! A model of the 82599, built from its datasheet; the driver runs on it unchanged.
//!
//! The model is also an oracle: it reports every driver access that the datasheet forbids ([`Card::breaches`]).
//! Register writes move no frames; [`Card::step`] does. A test calls `step` itself, so that everything is
//! deterministic, or a thread ([`Runner`]) calls it in a loop.
//!
//! - this file: [`Card`], the facade; `bar`: its registers for a driver in this process; `function`: the card as a PCI
//!   function, for a host that it is served to
//! - `map`: the register map, which names the block that handles an access; `registers`: the register file
//! - `blocks`: all blocks, the effects of an access on other blocks, and a step. Each block owns its state:
//!   - `receive`, `transmit`: the two paths; `queues`, `ring`: their rings, and the oracle's records of the rings
//!   - `mac`: the wire; `switch`: the path between the wire and the card's functions
//!   - `link` (with `module`), `interrupt`, `director`, `rss`, `clock`, `eeprom`, `firmware`, `control`
//!   - `functions`: the virtual functions
//! - `headers`, `filter`, `coalesce`, `offload`, `checksum`: calculations on frames, without state
//! - `board`: the state shared by all blocks, with `dma`, the address space; `breach`, the oracle's list; `trace`
//! - `flows`: a cache of receive decisions by flow; `receivers`: the receivers of interrupts; `kind`: the kinds of
//!   cards
//! - `wire`: the other end of the card's cable; `named`, `runner`: cards by name, and the thread that runs them
//!
//! Only `port_kind`, which opens `sim:`, uses the driver.
#![allow(unsafe_code)]

mod bar;
mod blocks;
mod board;
mod breach;
mod checksum;
mod clock;
mod coalesce;
mod control;
mod director;
mod dma;
mod eeprom;
mod filter;
mod firmware;
mod flows;
mod function;
mod functions;
#[cfg(fuzzing)]
pub mod fuzzing;
mod headers;
mod interrupt;
mod kind;
mod link;
mod mac;
mod map;
mod module;
mod named;
mod offload;
mod port_kind;
mod queues;
mod receive;
mod receivers;
mod registers;
mod ring;
mod rss;
mod runner;
mod switch;
mod trace;
mod transmit;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bar::Claim;
pub use bar::{CardBar, CardDoorbell};
use blocks::Blocks;
use board::Board;
pub use breach::Breach;
pub use function::Function;
use functions::Functions;
pub use kind::CardKind;
use linerate_cards::pci::Bus;
use linerate_core::error::Result;
use linerate_core::port::MacAddress;
use linerate_spec::x82599::*;
use linerate_spec::{Access, Definition, Register};
use map::{Block, Line};
pub use named::{OpenWire, named, open_named};
pub use port_kind::{SIM, drive_model, wire_pool};
pub use runner::Runner;
pub use trace::RegisterAccess;
use wire::Broken;
pub use wire::{Cable, Frame, PortWire, Record, Report, Timed, Traffic, Unsent, Watch, Watched, Wire, from_fn};

/// A queue's direction, as seen by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the wire.
    Receive,
    /// To the wire.
    Transmit,
}

/// Neither a driver nor a host uses the card.
const FREE: u8 = 0;
/// A driver in this process uses the card.
const DRIVEN: u8 = 1;
/// The card is served to hosts, permanently. It cannot access memory mapped by drivers in this process.
const SERVED: u8 = 2;

/// One card.
pub struct Card {
    board: Board,
    blocks: Mutex<Blocks>,
    /// The card's user: [`FREE`], [`DRIVEN`] or [`SERVED`].
    used: AtomicU8,
}

/// Returns a locally administered MAC address, always the same for a name.
fn address_of(name: &str) -> MacAddress {
    let [a, b, c, _] = crc32fast::hash(name.as_bytes()).to_le_bytes();
    MacAddress([0x02, 0x82, 0x59, a, b, c])
}

impl Card {
    /// Creates a card connected to `wire`, in its state after power-on. Its MAC address is derived from `name`.
    pub fn new(name: &str, wire: Box<dyn Wire>) -> Arc<Card> {
        Card::of_kind(CardKind::default(), 0, name, wire)
    }

    /// As [`new`](Card::new), of the given kind, with `virtual_functions` virtual functions, at most 32.
    pub fn of_kind(kind: CardKind, virtual_functions: usize, name: &str, wire: Box<dyn Wire>) -> Arc<Card> {
        let board = Board::new(name, kind, virtual_functions.min(functions::MOST));
        let blocks = Mutex::new(Blocks::new(&board, address_of(name), wire));
        Arc::new(Card { board, blocks, used: AtomicU8::new(FREE) })
    }

    /// Returns the card's name.
    pub fn name(&self) -> &str {
        &self.board.name
    }

    /// Returns the kind of card.
    pub fn kind(&self) -> CardKind {
        self.board.kind
    }

    /// Returns the MAC address in the EEPROM.
    pub fn mac(&self) -> MacAddress {
        self.blocks().eeprom.address()
    }

    /// Returns the card's registers, for a benchmark without a driver. [`claim_bar`](Card::claim_bar) gives them to a
    /// driver.
    ///
    /// # Safety
    /// Registers tell the card which mapped memory to read and write. The caller, also through clones, must not let
    /// the card access memory of which a slice is lent out. Nothing else may drive the card, and rings must be in
    /// memory that belongs to no region.
    pub unsafe fn bar(self: &Arc<Card>) -> CardBar {
        CardBar { card: self.clone(), claim: None }
    }

    /// Claims the card's registers for a driver; `None` while another driver or a host uses the card. `runner` keeps
    /// running until the last clone of the registers is dropped, which also ends the claim. linerate's own driver
    /// claims them in [`drive_model`].
    ///
    /// # Safety
    /// As for [`bar`](Card::bar), except that the claim keeps other drivers away.
    pub unsafe fn claim_bar(self: &Arc<Card>, runner: Option<Arc<Runner>>) -> Option<CardBar> {
        self.claim(runner)
    }

    /// Returns the card's registers for its driver; `None` while another driver or a host uses the card.
    pub(crate) fn claim(self: &Arc<Card>, runner: Option<Arc<Runner>>) -> Option<CardBar> {
        self.claim_for(runner, false)
    }

    /// As [`claim`](Card::claim), for a card that ends with its driver: `runner` then drops the card.
    pub(crate) fn claim_alone(self: &Arc<Card>, runner: Arc<Runner>) -> Option<CardBar> {
        self.claim_for(Some(runner), true)
    }

    fn claim_for(self: &Arc<Card>, runner: Option<Arc<Runner>>, ends_card: bool) -> Option<CardBar> {
        self.used.compare_exchange(FREE, DRIVEN, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let claim = Some(Arc::new(Claim { card: self.clone(), runner, ends_card }));
        Some(CardBar { card: self.clone(), claim })
    }

    /// Marks the card as served to hosts, permanently. Returns false while a driver in this process uses it.
    fn claim_for_hosts(&self) -> bool {
        self.used.compare_exchange(FREE, SERVED, Ordering::SeqCst, Ordering::SeqCst) != Err(DRIVEN)
            && self.board.dma.reserve_for_hosts()
    }

    /// Returns whether the card is served to hosts. If so, its doorbells are handled when they are rung.
    fn is_served(&self) -> bool {
        self.used.load(Ordering::Relaxed) == SERVED
    }

    /// Returns the card's bus for a driver: address space and interrupts.
    pub fn bus(&self) -> Arc<dyn Bus> {
        self.board.dma.clone()
    }

    /// Returns the driver's breaches of the datasheet, at most the first 1,000.
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
    ///
    /// # Panics
    /// If the code of the wire panics, for example a program's own port. From then on the card has no link.
    pub fn step(&self, budget: usize) -> usize {
        if self.board.is_unplugged() {
            return 0;
        }
        let mut blocks = self.blocks();
        let moved = catch_unwind(AssertUnwindSafe(|| blocks.step(&self.board, budget)));
        moved.unwrap_or_else(|panic| {
            // Replace the wire: the next step would call its code again, even when a queue is dropped while this panic
            // unwinds.
            blocks.mac.rewire(|_| Box::new(Broken));
            resume_unwind(panic)
        })
    }

    /// Plugs or unplugs the cable.
    pub fn set_cable(&self, plugged: bool) {
        let mut blocks = self.blocks();
        blocks.mac.cable_in = plugged;
        blocks.update_link(&self.board);
    }

    /// Turns strict mode off: doorbells become single stores, as with a [`Runner`], and the caller moves frames by
    /// [`step`](Card::step).
    pub fn disable_strict(&self) {
        self.board.strict.store(false, Ordering::Relaxed);
    }

    /// Puts a 1 Gbit/s or 10 Gbit/s module into the cage, if the card has one.
    pub fn set_module(&self, gigabit: bool) {
        let mut blocks = self.blocks();
        blocks.link.set_module(gigabit);
        blocks.update_link(&self.board);
    }

    /// Simulates a DMA request that never completes: master disable does not take effect until the card has been reset
    /// twice (section 5.2.4.3.2).
    pub fn set_hung(&self) {
        self.board.resets_until_unhung.store(2, Ordering::Relaxed);
    }

    /// Replaces the wire by the result of `change`, which usually wraps it.
    pub fn rewire(&self, change: impl FnOnce(Box<dyn Wire>) -> Box<dyn Wire>) {
        self.blocks().mac.rewire(change);
    }

    /// Stops the wire from supplying new frames.
    pub fn finish_wire(&self) {
        self.blocks().mac.wire.finish();
    }

    /// Returns the registers that the driver has used since power-on, each with whether it was read and written.
    pub fn used_registers(&self) -> Vec<(&'static Definition, bool, bool)> {
        self.board.registers.used().filter(|(_, read, written)| *read || *written).collect()
    }

    /// Starts or stops recording register accesses by drivers. Returns the previous list, of at most 2^20 accesses.
    pub fn record_accesses(&self, on: bool) -> Vec<RegisterAccess> {
        self.board.trace.record(on)
    }

    /// Returns a register's value without the side effects of a read; 0 if there is no such register.
    pub fn register(&self, offset: u32) -> u32 {
        map::find(CardKind::X550, offset).map_or(0, |line| self.board.registers.get(line.register.offset))
    }

    /// Returns the frames received from the wire and sent to it, since power-on.
    pub fn frames(&self) -> (u64, u64) {
        self.blocks().mac.frames
    }

    /// Returns the wire's counts and checks; `None` if it has none.
    pub fn wire_report(&self) -> Option<Report> {
        self.blocks().mac.wire.report()
    }

    /// Returns how many frames the card sent but the wire did not deliver, as far as the wire knows.
    pub fn unsent_by_wire(&self) -> Unsent {
        self.blocks().mac.wire.unsent()
    }

    /// Fails if the other end of the cable is gone or has failed: an interface was deleted, a recording cannot be
    /// written.
    ///
    /// # Errors
    /// As [`Wire::check`].
    pub fn check_wire(&self) -> Result<()> {
        self.blocks().mac.wire.check()
    }

    /// Takes the card out of its slot: reads return all ones, writes and DMA have no effect.
    pub fn unplug(&self) {
        let mut blocks = self.blocks();
        self.board.unplugged.store(true, Ordering::Relaxed);
        blocks.update_link(&self.board);
    }

    /// Puts the card back into its slot, in its state after power-on.
    pub fn plug_in(&self) {
        let mut blocks = self.blocks();
        self.board.unplugged.store(false, Ordering::Relaxed);
        self.board.resets_until_unhung.store(0, Ordering::Relaxed);
        blocks.power_on(&self.board);
    }

    /// Sets whether the host allows the card to access memory.
    fn set_bus_master(&self, on: bool) {
        self.board.bus_master.store(on, Ordering::Relaxed);
    }

    /// Makes the register at `offset` stuck: a bit that a driver waits for does not change. `None` ends that, and
    /// completes a reset that was stuck.
    pub fn set_stuck(&self, offset: Option<u32>) {
        self.board.set_stuck(offset);
        if offset.is_none() && self.board.registers.get(CTRL::OFFSET) & CTRL::RST != 0 {
            self.blocks().reset(&self.board);
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
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
        match read {
            Block::File => self.board.registers.read(register),
            block => self.blocks().read(&self.board, block, register),
        }
    }

    /// Handles a write by the physical function's driver. That driver does not know of virtual functions, and cannot
    /// warn their drivers when it stops all queues. So writes to their queues are ignored.
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
        // In a stuck register, reset bits stay set, and enable bits keep their values.
        if board.is_stuck(offset) && (offset != CTRL::OFFSET || value & CTRL::RST != 0) {
            if offset == CTRL::OFFSET {
                board.registers.set(offset, value);
            }
            return;
        }
        let value = value & keeps;
        let is_doorbell = queues::is_tail(definition);
        match write {
            Block::File => board.registers.write(register, value),
            // Without strict mode, a doorbell is one store, which `step` reads.
            _ if is_doorbell && !board.is_strict() => board.registers.set(offset, value),
            block => self.blocks().write(board, block, register, value),
        }
        if !is_doorbell && !matches!(write, Block::Interrupts) {
            board.changed.store(true, Ordering::Release);
        }
    }

    /// Handles a read by the driver of a virtual function.
    fn read_virtual(&self, number: usize, offset: u32) -> u32 {
        match Functions::queue_register(number, offset) {
            Some(physical) => self.read(physical),
            None => self.blocks().read_virtual(&self.board, number, offset),
        }
    }

    /// Handles a write by the driver of a virtual function.
    fn write_virtual(&self, number: usize, offset: u32, value: u32) {
        match Functions::queue_register(number, offset) {
            Some(physical) => self.write_any(physical, value),
            None => self.blocks().write_virtual(&self.board, number, offset, value),
        }
    }
}
