//! The 82599, as its datasheet tells it: a model of the card that the same driver code drives.
//!
//! It is an oracle: it keeps a list of what the driver did against the datasheet
//! ([`Card::breaches`]). Register writes only latch; [`Card::step`] moves frames. So it has two
//! gears: called in line by a test, where everything is deterministic, and on a thread of its own
//! ([`Runner`]), which is a loop around `step`.
//!
//! - this file: the card, its registers' side effects, and `step`
//! - `ring`: a descriptor ring as the card sees it, with what the oracle remembers
//! - `receive`, `transmit`: the two ways of a frame
//! - `filter`, `rss`: which frames are accepted, and for which queue
//! - `registers`, `dma`, `breach`: the register file, the address space, the oracle's list
//! - `wire`: what is at its outside
//!
//! This room knows memory, traffic and the register map of [`crate::nic::ixgbe`], never the driver.

mod breach;
mod dma;
mod filter;
mod named;
mod receive;
mod registers;
mod ring;
mod rss;
mod runner;
mod transmit;
mod wire;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use breach::Breach;
pub use named::{named, open_named};
pub use runner::Runner;
pub use wire::{Cable, Frame, Record, Replay, Report, Tap, Traffic, Wire, from_fn};

use crate::nic::ixgbe::registers::*;
use crate::pci::{Bar, Bus, Doorbell};
use breach::Oracle;
use dma::Dma;
use registers::Registers;
use ring::Ring;
use rss::Toeplitz;

/// Which way a queue goes, from the program's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the wire.
    Receive,
    /// To the wire.
    Transmit,
}

/// One card.
pub struct Card {
    name: String,
    registers: Registers,
    dma: Arc<Dma>,
    oracle: Oracle,
    core: Mutex<Core>,
    /// In line: doorbells are looked at when they are rung, and what the card owns is remembered.
    watchful: AtomicBool,
    /// What fails, for tests.
    unplugged: AtomicBool,
    stuck: AtomicU64,
}

/// What only one at a time may touch: `step`, or a register access with side effects.
struct Core {
    wire: Box<dyn Wire>,
    cable_in: bool,
    rx: Vec<Ring>,
    tx: Vec<Ring>,
    toeplitz: Option<Toeplitz>,
    receive: receive::State,
    transmit: transmit::State,
    eeprom: Vec<u16>,
}

/// No register's offset.
const NOT_STUCK: u64 = u64::MAX;

/// Words of the EEPROM that count towards its checksum (section 6.3.2.1, as Linux computes it).
const EEPROM_WORDS: usize = 0x40;
const EEPROM_SUM: u16 = 0xBABA;

impl Card {
    /// A card with `wire` at its outside, just powered on. Its address is derived from `name`.
    pub fn new(name: &str, wire: Box<dyn Wire>) -> Arc<Card> {
        // A locally administered address.
        let hash = crc32fast::hash(name.as_bytes()).to_le_bytes();
        let mac = [0x02, 0x82, 0x59, hash[0], hash[1], hash[2]];
        let mut eeprom = vec![0u16; EEPROM_WORDS];
        for (word, pair) in eeprom[1..4].iter_mut().zip(mac.chunks(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        let sum = eeprom.iter().fold(0u16, |sum, &word| sum.wrapping_add(word));
        eeprom[EEPROM_WORDS - 1] = EEPROM_SUM.wrapping_sub(sum);
        let rings = |count: u16, direction| (0..count).map(|queue| Ring::new(direction, queue)).collect();
        let core = Core {
            wire,
            cable_in: true,
            rx: rings(64, Direction::Receive),
            tx: rings(128, Direction::Transmit),
            toeplitz: None,
            receive: receive::State::default(),
            transmit: transmit::State::default(),
            eeprom,
        };
        let card = Card {
            name: name.to_string(),
            registers: Registers::new(),
            dma: Arc::default(),
            oracle: Oracle::default(),
            core: Mutex::new(core),
            watchful: AtomicBool::new(true),
            unplugged: AtomicBool::new(false),
            stuck: AtomicU64::new(NOT_STUCK),
        };
        card.load_eeprom(&mut card.core());
        Arc::new(card)
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its registers, for a driver.
    pub fn bar(self: &Arc<Card>) -> CardBar {
        CardBar { card: self.clone(), _runner: None }
    }

    /// What it is plugged into, for a driver: its address space and its interrupts.
    pub fn bus(&self) -> Arc<dyn Bus> {
        self.dma.clone()
    }

    /// What the driver did against the datasheet: the first thousand.
    pub fn breaches(&self) -> Vec<Breach> {
        self.oracle.list()
    }

    /// How often the driver did something against the datasheet.
    pub fn breach_count(&self) -> u64 {
        self.oracle.count()
    }

    /// Moves at most `budget` frames each way, and returns how many it moved.
    pub fn step(&self, budget: usize) -> usize {
        if self.unplugged.load(Ordering::Relaxed) {
            return 0;
        }
        let core = &mut *self.core();
        self.update_link(core);
        // With bus mastering off, no DMA is begun (section 5.2.4.3.2).
        if self.registers.get(CTRL::OFFSET) & CTRL::MASTER_DISABLE != 0 {
            return 0;
        }
        let maps = self.dma.maps();
        let moved = self.transmit(core, &maps, budget) + self.receive(core, &maps, budget);
        self.interrupt(core);
        moved
    }

    /// Pulls the cable out, or puts it back.
    pub fn set_cable(&self, plugged: bool) {
        let core = &mut *self.core();
        core.cable_in = plugged;
        self.update_link(core);
    }

    /// Lets the wire bring no new frames from now on.
    pub fn finish_wire(&self) {
        self.core().wire.finish();
    }

    /// What the wire has counted and checked; `None` if it is one that does not.
    pub fn wire_report(&self) -> Option<Report> {
        self.core().wire.report()
    }

    /// Takes the card out of its slot: all reads give ones, writes and DMA go nowhere.
    pub fn unplug(&self) {
        self.unplugged.store(true, Ordering::Relaxed);
    }

    /// Puts it back, as it is after power-on.
    pub fn plug_in(&self) {
        let core = &mut *self.core();
        self.reset(core);
        self.unplugged.store(false, Ordering::Relaxed);
    }

    /// From now on the register at `offset` does not do what a driver waits for; `None` ends it
    /// (and a reset that was stuck).
    pub fn stick(&self, offset: Option<u32>) {
        self.stuck.store(offset.map_or(NOT_STUCK, u64::from), Ordering::Relaxed);
        if offset.is_none() && self.registers.get(CTRL::OFFSET) & CTRL::RST != 0 {
            self.reset(&mut self.core());
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stuck(&self, offset: u32) -> bool {
        self.stuck.load(Ordering::Relaxed) == u64::from(offset)
    }

    // What a driver reads and writes.

    fn read(&self, offset: u32) -> u32 {
        if self.unplugged.load(Ordering::Relaxed) {
            return u32::MAX;
        }
        let Some((register, _)) = Registers::find(offset) else {
            self.oracle.note(Breach::NoRegister { offset, write: false });
            return 0;
        };
        match register.offset {
            LINKS::OFFSET => self.update_link(&mut self.core()),
            // Reading takes the semaphore if it was free (section 10.5.4).
            SWSM::OFFSET => {
                let value = self.registers.get(offset);
                self.registers.change(offset, SWSM::SMBI, true);
                return value;
            }
            _ => {}
        }
        self.registers.read(register, offset)
    }

    fn write(&self, offset: u32, value: u32) {
        if self.unplugged.load(Ordering::Relaxed) {
            return;
        }
        let Some((register, n)) = Registers::find(offset) else {
            return self.oracle.note(Breach::NoRegister { offset, write: true });
        };
        let name = register.name;
        if matches!(register.access, Access::RO | Access::RC) {
            return self.oracle.note(Breach::ReadOnly { register: name, value });
        }
        let old = self.registers.get(offset);
        let reserved = (value ^ old) & !register.writable;
        if reserved != 0 {
            self.oracle.note(Breach::ReservedBits { register: name, value, reserved, section: register.section });
        }
        if self.is_stuck(offset) {
            // The reset bits stay set; an enable bit stays what it was.
            return if offset == CTRL::OFFSET && value & CTRL::RST == 0 {
                self.write_ctrl(offset, value);
            } else if offset == CTRL::OFFSET {
                self.registers.set(offset, value);
            };
        }
        match register.offset {
            CTRL::OFFSET => self.write_ctrl(offset, value),
            EERD::OFFSET => {
                let word = (value >> EERD::ADDR_SHIFT & 0x3FFF) as usize;
                let data = self.core().eeprom.get(word).copied().unwrap_or(0xFFFF);
                let answer = value & 0xFFFC | EERD::DONE | (data as u32) << EERD::DATA_SHIFT;
                self.registers.set(offset, if value & EERD::START != 0 { answer } else { value });
            }
            EICR::OFFSET => self.registers.change(offset, value, false),
            EICS::OFFSET => {
                let core = &mut *self.core();
                self.registers.change(EICR::OFFSET, value, true);
                self.interrupt(core);
            }
            EIMS::OFFSET => {
                let core = &mut *self.core();
                self.registers.change(offset, value, true);
                self.interrupt(core);
            }
            EIMC::OFFSET => self.registers.change(EIMS::OFFSET, value, false),
            AUTOC::OFFSET => {
                self.registers.set(offset, value & !AUTOC::RESTART_AN);
                self.update_link(&mut self.core());
            }
            SECRXCTRL::OFFSET => {
                self.registers.set(offset, value);
                self.registers.change(SECRXSTAT::OFFSET, SECRXSTAT::SECRX_RDY, value & SECRXCTRL::RX_DIS != 0);
            }
            SECTXCTRL::OFFSET => {
                self.registers.set(offset, value);
                self.registers.change(SECTXSTAT::OFFSET, SECTXSTAT::SECTX_RDY, value & SECTXCTRL::TX_DIS != 0);
            }
            MTQC::OFFSET if self.registers.get(RTTDCS::OFFSET) & RTTDCS::ARBDIS == 0 => {
                let why = "MTQC may change only while RTTDCS.ARBDIS is set";
                self.oracle.note(Breach::WrongTime { register: name, queue: 0, why });
                self.registers.set(offset, value);
            }
            RSSRK::OFFSET => {
                self.registers.set(offset, value);
                self.core().toeplitz = None;
            }
            RXDCTL::OFFSET => self.write_control(Direction::Receive, n, offset, value),
            TXDCTL::OFFSET => self.write_control(Direction::Transmit, n, offset, value & !TXDCTL::SWFLSH),
            RDT::OFFSET => self.write_tail(Direction::Receive, n, offset, value),
            TDT::OFFSET => self.write_tail(Direction::Transmit, n, offset, value),
            RDBAL::OFFSET | RDBAH::OFFSET | RDLEN::OFFSET | RDH::OFFSET | SRRCTL::OFFSET => {
                self.write_of_disabled_queue(RXDCTL::at(n), name, n, offset, value);
            }
            TDBAL::OFFSET | TDBAH::OFFSET | TDLEN::OFFSET | TDH::OFFSET => {
                self.write_of_disabled_queue(TXDCTL::at(n), name, n, offset, value);
            }
            _ => self.registers.set(offset, value),
        }
    }

    /// CTRL: the reset bits clear themselves, master disable is answered in STATUS.
    fn write_ctrl(&self, offset: u32, value: u32) {
        let core = &mut *self.core();
        if value & (CTRL::RST | CTRL::LRST) != 0 {
            return self.reset(core);
        }
        self.registers.set(offset, value);
        self.registers.change(STATUS::OFFSET, STATUS::MASTER_ENABLE_STATUS, value & CTRL::MASTER_DISABLE == 0);
    }

    fn reset(&self, core: &mut Core) {
        self.registers.reset();
        core.rx.iter_mut().chain(&mut core.tx).for_each(Ring::disable);
        core.toeplitz = None;
        core.receive = receive::State::default();
        core.transmit = transmit::State::default();
        self.load_eeprom(core);
        self.update_link(core);
    }

    /// What the card reads from its EEPROM after a reset: its address.
    fn load_eeprom(&self, core: &mut Core) {
        let word = |n: usize| core.eeprom[n] as u32;
        self.registers.set(RAL::at(0), word(1) | word(2) << 16);
        self.registers.set(RAH::at(0), word(3) | RAH::AV);
    }

    fn update_link(&self, core: &mut Core) {
        let up = core.cable_in && core.wire.link();
        let links = if up { LINKS::UP | LINKS::SPEED_10G } else { 0 };
        if self.registers.get(LINKS::OFFSET) != links {
            self.registers.set(LINKS::OFFSET, links);
            self.registers.change(EICR::OFFSET, EICR::LSC, true);
        }
    }

    /// RXDCTL, TXDCTL: a queue is enabled or disabled.
    fn write_control(&self, direction: Direction, queue: u16, offset: u32, value: u32) {
        let core = &mut *self.core();
        let (on, low, high, len, head, tail) = match direction {
            Direction::Receive => {
                (RXDCTL::ENABLE, RDBAL::at(queue), RDBAH::at(queue), RDLEN::at(queue), RDH::at(queue), RDT::at(queue))
            }
            Direction::Transmit => {
                (TXDCTL::ENABLE, TDBAL::at(queue), TDBAH::at(queue), TDLEN::at(queue), TDH::at(queue), TDT::at(queue))
            }
        };
        self.registers.set(offset, value);
        let ring = match direction {
            Direction::Receive => &mut core.rx[queue as usize],
            Direction::Transmit => &mut core.tx[queue as usize],
        };
        if value & on == 0 {
            if ring.enabled {
                ring.disable();
                core.receive.forget(direction, queue);
            }
            return;
        }
        if ring.enabled {
            return;
        }
        let base = self.registers.get(low) as u64 | (self.registers.get(high) as u64) << 32;
        let bytes = self.registers.get(len);
        if base == 0 || bytes == 0 || !bytes.is_multiple_of(128) {
            return self.oracle.note(Breach::NoRing { direction, queue, len: bytes });
        }
        if self.dma.maps().find(base, bytes as usize).is_none() {
            return self.oracle.note(Breach::Unmapped { direction, queue, address: base, len: bytes as usize });
        }
        if direction == Direction::Receive && self.registers.get(DCA_RXCTRL::at(queue)) & DCA_RXCTRL::BIT_12 != 0 {
            let why = "bit 12 of DCA_RXCTRL must be cleared before (section 4.6.7)";
            self.oracle.note(Breach::WrongTime { register: "RXDCTL", queue, why });
        }
        if direction == Direction::Transmit && self.registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE == 0 {
            let why = "DMATXCTL.TE must be set before (section 4.6.8)";
            self.oracle.note(Breach::WrongTime { register: "TXDCTL", queue, why });
        }
        let (head, tail) = (self.registers.get(head), self.registers.get(tail));
        ring.enable(base, bytes / 16, head, tail);
    }

    /// Registers that may change only while their queue is disabled (sections 4.6.7.1, 4.6.8.1).
    fn write_of_disabled_queue(&self, control: u32, register: &'static str, queue: u16, offset: u32, value: u32) {
        const ENABLE: u32 = RXDCTL::ENABLE; // and TXDCTL's is the same bit
        if self.registers.get(control) & ENABLE != 0 {
            let why = "it may change only while the queue is disabled";
            self.oracle.note(Breach::WrongTime { register, queue, why });
        }
        self.registers.set(offset, value);
    }

    /// RDT, TDT. In line, the oracle looks at what the card was given at once; on a thread, `step`
    /// looks later, and a doorbell is one store.
    fn write_tail(&self, direction: Direction, queue: u16, offset: u32, tail: u32) {
        if !self.watchful.load(Ordering::Relaxed) {
            return self.registers.set(offset, tail);
        }
        let core = &mut *self.core();
        self.registers.set(offset, tail);
        let buffer = self.most_written(queue);
        let (ring, others) = match direction {
            Direction::Receive => (&mut core.rx[queue as usize], Some(buffer)),
            Direction::Transmit => (&mut core.tx[queue as usize], None),
        };
        if !ring.enabled {
            if tail != 0 {
                let (register, why) = ("the tail", "the queue must be enabled first (sections 4.6.7.1, 4.6.8.1)");
                self.oracle.note(Breach::WrongTime { register, queue, why });
            }
            return;
        }
        let maps = self.dma.maps();
        if ring.move_tail(tail, &self.oracle) {
            ring.remember(&maps, others, &self.oracle);
        }
    }

    /// `SRRCTL.BSIZEPACKET` in bytes.
    fn buffer_bytes(&self, queue: u16) -> usize {
        if queue >= 64 {
            return 0;
        }
        (self.registers.get(SRRCTL::at(queue)) & SRRCTL::BSIZEPACKET_MASK) as usize * 1024
    }

    /// How much the card may write into one buffer: what the driver said it has room for, but never
    /// more than the longest frame that the MAC lets in, with a VLAN tag, and without CRC if that is
    /// stripped.
    fn most_written(&self, queue: u16) -> usize {
        let crc = if self.registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP != 0 { 4 } else { 0 };
        self.buffer_bytes(queue).min(self.longest_frame() + 4 - crc)
    }

    /// Sets the cause that IVAR assigns to a queue (section 7.3.1.2).
    fn cause(&self, direction: Direction, queue: u16) {
        let shift = 16 * (queue as u32 & 1) + if direction == Direction::Transmit { 8 } else { 0 };
        let entry = self.registers.get(IVAR::at(queue / 2)) >> shift;
        if entry & IVAR::VALID != 0 {
            // Causes of queues are 0 to 15; with MSI-X they are vectors, up to 29 with a bit of their own.
            let mask = if self.registers.get(GPIE::OFFSET) & GPIE::MULTIPLE_MSIX != 0 { 0x1F } else { 0xF };
            self.registers.change(EICR::OFFSET, 1 << (entry & mask), true);
        }
    }

    /// Raises the vectors whose causes are set and allowed, no sooner after the last time than EITR
    /// says (sections 7.3.2.1, 7.3.1.3). `Core` is held, so that only one thread does it.
    fn interrupt(&self, _: &mut Core) {
        let registers = &self.registers;
        let pending = registers.get(EICR::OFFSET) & registers.get(EIMS::OFFSET);
        if pending == 0 || registers.get(GPIE::OFFSET) & GPIE::MULTIPLE_MSIX == 0 {
            return;
        }
        for (vector, (interrupt, last)) in self.dma.interrupts().iter_mut().take(24).enumerate() {
            let bit = 1 << vector;
            if pending & bit == 0 {
                continue;
            }
            let interval = registers.get(EITR::at(vector as u16)) >> EITR::INTERVAL_SHIFT & EITR::INTERVAL_MASK;
            if interval > 0 {
                let now = Instant::now();
                let interval = Duration::from_micros(2 * u64::from(interval));
                if last.is_some_and(|last| now - last < interval) {
                    continue;
                }
                *last = Some(now);
            }
            registers.change(EICR::OFFSET, registers.get(EIAC::OFFSET) & bit, false);
            if registers.get(GPIE::OFFSET) & GPIE::EIAME != 0 {
                registers.change(EIMS::OFFSET, registers.get(EIAM::OFFSET) & bit, false);
            }
            interrupt.raise();
        }
    }
}

/// A model's registers.
#[derive(Clone)]
pub struct CardBar {
    card: Arc<Card>,
    /// The thread that runs the card, stopped when the last user of its registers is gone.
    _runner: Option<Arc<Runner>>,
}

impl CardBar {
    /// These registers, keeping `runner` at work as long as somebody has them.
    pub fn run_by(self, runner: Arc<Runner>) -> CardBar {
        CardBar { _runner: Some(runner), ..self }
    }
}

impl Bar for CardBar {
    type Doorbell = CardDoorbell;

    fn read(&self, offset: u32) -> u32 {
        self.card.read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.card.write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> CardDoorbell {
        CardDoorbell { bar: self.clone(), offset }
    }

    /// A model answers at once, or never: nothing is gained by waiting.
    fn wait(&self, _: Duration) {
        std::thread::yield_now();
    }
}

/// A doorbell of a model.
pub struct CardDoorbell {
    bar: CardBar,
    offset: u32,
}

impl Doorbell for CardDoorbell {
    #[inline]
    fn ring(&self, tail: u32) {
        let card = &self.bar.card;
        if card.watchful.load(Ordering::Relaxed) {
            card.write(self.offset, tail);
        } else {
            card.registers.set(self.offset, tail);
        }
    }
}
