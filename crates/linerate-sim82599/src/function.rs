//! The card as a PCI function: configuration space, BARs, and memory mapped by its host (section 9). It is served over
//! vfio-user, or used by tests.

use std::sync::Arc;

use linerate_cards::vfio_user::{self, InterruptKind};
use linerate_core::error::{Error, Result};
use linerate_core::event::Interrupt;
use linerate_core::memory::Mapping;
use linerate_spec::x82599_vf as spec;

use super::dma::{Dma, VECTORS};
use super::functions::Functions;
use super::map;
use super::receivers::Receivers;
use super::{Card, CardKind, queues};

/// A card plugged into a host, or one of its virtual functions.
pub struct Function {
    card: Arc<Card>,
    /// The number of the virtual function, if this is a virtual function.
    number: Option<usize>,
    dma: Arc<Dma>,
    config: Config,
    /// The MSI-X table and pending bits. They are only stored: the host's emulator has its own.
    table: Vec<u8>,
}

/// Region numbers, as in vfio.
const REGISTERS: u32 = 0;
const VIRTUAL_TABLE: u32 = 3;
const TABLE: u32 = 4;
const CONFIG: u32 = 7;

/// Bytes of BAR 0 (section 9.3.6.1, with a flash of 512 KiB), and of BAR 4.
const REGISTERS_BYTES: u64 = 512 << 10;
/// Bytes of a virtual function's BAR 0 (section 9.4.4).
const VIRTUAL_BYTES: u64 = 16 << 10;
const TABLE_BYTES: u64 = 16 << 10;
const CONFIG_BYTES: usize = 4096;

/// The maximum number of frames that a doorbell moves in each direction; the runner moves the rest.
const BUDGET: usize = 64;

impl Function {
    /// Plugs the card in. From then on the host controls its memory, interrupts and bus mastering.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](linerate_core::ErrorKind::InUse) while a driver in this process uses the card.
    pub fn new(card: Arc<Card>) -> Result<Function> {
        let dma = card.board.dma.clone();
        Function::plug(card, None, dma)
    }

    /// Plugs in one of the card's virtual functions, by number.
    ///
    /// # Errors
    /// As [`new`](Function::new); [`ErrorKind::NotServed`](linerate_core::ErrorKind::NotServed) if the card has fewer
    /// functions.
    pub fn of_virtual(card: Arc<Card>, number: usize) -> Result<Function> {
        let dma = card.blocks().functions.get(number).map(|function| function.dma.clone());
        let why = "the card has fewer virtual functions";
        let dma = dma.ok_or_else(|| Error::not_served(format!("{}.vf{number}", card.name()), why))?;
        Function::plug(card, Some(number), dma)
    }

    fn plug(card: Arc<Card>, number: Option<usize>, dma: Arc<Dma>) -> Result<Function> {
        if !card.claim_for_hosts() {
            return Err(Error::port_in_use(card.name().to_string()));
        }
        let config = Config::new(card.kind(), number.is_some());
        let mut function = Function { card, number, dma, config, table: vec![0; TABLE_BYTES as usize] };
        vfio_user::Function::disconnect(&mut function);
        Ok(function)
    }

    /// Applies bus mastering and resets requested in configuration space.
    fn configured(&mut self) {
        if self.config.take_reset() {
            vfio_user::Function::reset(self);
        }
        self.set_bus_master(self.config.is_bus_master());
    }

    fn set_bus_master(&self, on: bool) {
        match self.number {
            Some(number) => self.card.blocks().functions[number].bus_master = on,
            None => self.card.set_bus_master(on),
        }
    }

    fn table(&self) -> u32 {
        if self.number.is_some() { VIRTUAL_TABLE } else { TABLE }
    }

    fn read_register(&self, offset: u32) -> u32 {
        match self.number {
            Some(number) => self.card.read_virtual(number, offset),
            None => self.card.read(offset),
        }
    }

    fn write_register(&self, offset: u32, value: u32) {
        match self.number {
            Some(number) => self.card.write_virtual(number, offset, value),
            None => self.card.write(offset, value),
        }
    }

    /// Returns whether the register is a ring's tail.
    fn is_doorbell(&self, offset: u32) -> bool {
        let offset = match self.number {
            Some(number) => Functions::queue_register(number, offset),
            None => Some(offset),
        };
        let line = offset.and_then(|offset| map::find(self.card.kind(), offset));
        line.is_some_and(|line| queues::is_tail(line.register.definition))
    }
}

impl vfio_user::Function for Function {
    fn region(&self, region: u32) -> u64 {
        match region {
            REGISTERS if self.number.is_some() => VIRTUAL_BYTES,
            REGISTERS => REGISTERS_BYTES,
            _ if region == self.table() => TABLE_BYTES,
            CONFIG => CONFIG_BYTES as u64,
            _ => 0,
        }
    }

    fn read(&mut self, region: u32, offset: u64, bytes: &mut [u8]) {
        match region {
            CONFIG => self.config.read(offset as usize, bytes),
            VIRTUAL_TABLE | TABLE => bytes.copy_from_slice(&self.table[offset as usize..offset as usize + bytes.len()]),
            _ => map::read_bytes(offset, bytes, |register| self.read_register(register)),
        }
    }

    unsafe fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        match region {
            CONFIG => {
                self.config.write(offset as usize, bytes);
                self.configured();
            }
            VIRTUAL_TABLE | TABLE => self.table[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes),
            _ => map::write_bytes(offset, bytes, |register, value| {
                self.write_register(register, value);
                if self.is_doorbell(register) {
                    self.card.step(BUDGET);
                }
            }),
        }
    }

    fn interrupts(&self, kind: InterruptKind) -> u32 {
        match kind {
            InterruptKind::Vector if self.number.is_some() => spec::VECTORS,
            InterruptKind::Vector => VECTORS.into(),
            // Virtual functions have neither a line nor MSI.
            InterruptKind::Line | InterruptKind::Message => self.number.is_none().into(),
        }
    }

    fn set_receiver(&mut self, kind: InterruptKind, number: u32, receiver: Option<Interrupt>) {
        let mut receivers = self.dma.receivers();
        match kind {
            InterruptKind::Line => receivers.set_line(receiver),
            InterruptKind::Message => receivers.message = receiver,
            InterruptKind::Vector => receivers.set_vector(number as usize, receiver),
        }
    }

    fn mask_line(&mut self, masked: bool) {
        self.dma.receivers().line_is_masked = masked;
        self.card.blocks().interrupts.raise(&self.card.board);
    }

    unsafe fn map(&mut self, address: u64, len: u64, memory: Arc<Mapping>, offset: u64, writable: bool) -> bool {
        self.dma.change().insert(address, len, memory, offset, writable)
    }

    fn unmap(&mut self, address: u64, len: u64) -> Option<u64> {
        self.dma.change().remove(address, len)
    }

    fn reset(&mut self) {
        self.config = Config::new(self.card.kind(), self.number.is_some());
        self.set_bus_master(false);
        match self.number {
            Some(number) => self.card.blocks().reset_virtual(&self.card.board, number),
            None => self.card.blocks().reset_function(&self.card.board),
        }
    }

    /// Powers the function off: the host is gone.
    fn disconnect(&mut self) {
        vfio_user::Function::reset(self);
        if self.number.is_none() {
            self.card.plug_in();
        }
        self.dma.change().clear();
        *self.dma.receivers() = Receivers::default();
    }
}

/// Configuration space (section 9.3), and its writable bits.
struct Config {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    reset: bool,
}

// Offsets of capabilities (section 9.3.1).
const COMMAND: usize = 0x04;
const POWER: usize = 0x40;
const MSI: usize = 0x50;
const MSI_X: usize = 0x70;
const EXPRESS: usize = 0xA0;
const SERIAL_NUMBER: usize = 0x140;
const ERRORS: usize = 0x100;

impl Config {
    fn new(kind: CardKind, is_virtual: bool) -> Config {
        let mut config = Config { bytes: vec![0; CONFIG_BYTES], writable: vec![0; CONFIG_BYTES], reset: false };
        config.set(0x00, &0x8086u16.to_le_bytes());
        let device = if is_virtual { kind.virtual_device() } else { kind.device() };
        config.set(0x02, &device.to_le_bytes());
        // Writable: memory, bus mastering, parity and system errors, interrupt disable.
        config.allow(COMMAND, &0x0546u16.to_le_bytes());
        config.set(0x06, &0x0010u16.to_le_bytes()); // there are capabilities
        config.set(0x08, &[1, 0x00, 0x00, 0x02]); // revision, Ethernet
        config.allow(0x0C, &[0xFF]);
        let (registers, table, bar) =
            if is_virtual { (VIRTUAL_BYTES, 0x1C, VIRTUAL_TABLE) } else { (REGISTERS_BYTES, 0x20, TABLE) };
        for (at, size) in [(0x10, registers), (table, TABLE_BYTES)] {
            config.set(at, &[0x0C]); // memory of 64 bits, prefetchable
            config.allow(at, &(!(size - 1)).to_le_bytes());
        }
        config.set(0x2C, &[0x86, 0x80, 0x03, 0x00]);
        let first = if is_virtual { MSI_X } else { POWER };
        config.set(0x34, &[first as u8]);
        config.allow(0x3C, &[0xFF]);
        config.set(0x3D, &[u8::from(!is_virtual)]); // INTA#

        // Power management, version 3.
        config.set(POWER, &[0x01, MSI as u8, 0x03, 0x00]);
        config.allow(POWER + 4, &[0x03, 0x01]);
        // MSI: 64 bits, one message.
        config.set(MSI, &[0x05, MSI_X as u8, 0x80, 0x00]);
        config.allow(MSI + 2, &[0x01, 0x00]);
        config.allow(MSI + 4, &[0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        // MSI-X: table at the start of its BAR, pending bits after 8 KiB.
        let vectors = if is_virtual { spec::VECTORS as u16 } else { VECTORS };
        let [low, high] = (vectors - 1).to_le_bytes();
        config.set(MSI_X, &[0x11, EXPRESS as u8, low, high]);
        config.allow(MSI_X + 2, &[0x00, 0xC0]);
        config.set(MSI_X + 4, &[bar as u8, 0x00, 0x00, 0x00, bar as u8, 0x20, 0x00, 0x00]);
        // PCI Express 2.0 endpoint: function-level reset, 8 lanes of 5 GT/s.
        config.set(EXPRESS, &[0x10, 0x00, 0x02, 0x00]);
        config.set(EXPRESS + 4, &0x1000_8CC2u32.to_le_bytes());
        config.set(EXPRESS + 8, &0x2810u16.to_le_bytes());
        config.allow(EXPRESS + 8, &0xFFFFu16.to_le_bytes());
        config.set(EXPRESS + 0x0C, &0x0000_0C82u32.to_le_bytes());
        config.allow(EXPRESS + 0x10, &0x01FBu16.to_le_bytes());
        config.set(EXPRESS + 0x12, &0x1082u16.to_le_bytes());
        config.set(EXPRESS + 0x24, &0x0000_001Fu32.to_le_bytes());
        config.allow(EXPRESS + 0x28, &0x001Fu16.to_le_bytes());
        config.set(EXPRESS + 0x2C, &0x0000_0006u32.to_le_bytes());
        config.set(EXPRESS + 0x30, &0x0002u16.to_le_bytes());

        // Advanced error reporting (which reports no errors), and a serial number.
        config.set(ERRORS, &(0x0001 | 1 << 16 | (SERIAL_NUMBER as u32) << 20).to_le_bytes());
        config.allow(ERRORS + 0x08, &0x003F_F030u32.to_le_bytes());
        config.allow(ERRORS + 0x0C, &0x003F_F030u32.to_le_bytes());
        config.allow(ERRORS + 0x14, &0x0000_31C1u32.to_le_bytes());
        config.set(SERIAL_NUMBER, &(0x0003u32 | 1 << 16).to_le_bytes());
        config.set(SERIAL_NUMBER + 4, &[0x00, 0x82, 0x59, 0xFF, 0xFF, 0x82, 0x02, 0x00]);
        config
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes[at..at + bytes.len()]);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (at, &byte) in (at..).zip(bytes) {
            let writable = self.writable[at];
            self.bytes[at] = self.bytes[at] & !writable | byte & writable;
        }
        // Device control, bit 15: a function-level reset. It reads as 0.
        self.reset |= self.bytes[EXPRESS + 9] & 0x80 != 0;
        self.bytes[EXPRESS + 9] &= 0x7F;
    }

    fn take_reset(&mut self) -> bool {
        std::mem::take(&mut self.reset)
    }

    fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & 1 << 2 != 0
    }
}
