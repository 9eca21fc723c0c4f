//! A VirtIO device that is nothing but memory: its registers are stored, and a bare loop in the same thread does what a
//! device does with its queues. What the driver costs can be measured on it, and how it takes what a device must not do.
#![allow(dead_code)] // each test and benchmark uses its part

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};
use std::sync::{Arc, Mutex};

use linerate::memory::{Addresses, Contiguous, Descriptors, DeviceAddress, DmaSpace, Mapping, PageSize, Shared};
use linerate::pci::{Bus, Interrupt, IoPorts, MappedBar, PciDevice};
use linerate::{Error, Result};

/// Offsets in BAR 0.
pub const COMMON: usize = 0;
const NOTIFY: usize = 0x1000;
const ISR: usize = 0x2000;
const DEVICE: usize = 0x3000;
const BAR: usize = 0x4000;

/// Offered in both halves, since nobody looks at the selection: `VERSION_1` and `ACCESS_PLATFORM` above.
pub const SPLIT: u32 = 0b011;
/// And `RING_PACKED`.
pub const PACKED: u32 = 0b111;

/// A device of plain memory: what is written is what is read.
pub struct Memory {
    config: Mutex<[u8; 256]>,
    bar: Arc<Mapping>,
    pub mapped: Mutex<Vec<Arc<Mapping>>>,
    /// Of a legacy one.
    pub ports: Option<IoPorts>,
}

impl Memory {
    pub fn new(features: u32) -> Arc<Memory> {
        let mut config = [0; 256];
        config[0x06] = 1 << 4; // there are capabilities
        config[0x34] = 0x40;
        for (index, offset) in [COMMON, NOTIFY, ISR, DEVICE].into_iter().enumerate() {
            let at = 0x40 + 0x18 * index;
            let next = if index < 3 { at + 0x18 } else { 0 };
            config[at..at + 4].copy_from_slice(&[0x09, next as u8, 20, index as u8 + 1]);
            config[at + 8..at + 12].copy_from_slice(&(offset as u32).to_le_bytes());
            config[at + 12..at + 16].copy_from_slice(&0x1000u32.to_le_bytes());
        }
        let bar = Arc::new(Mapping::new(BAR, PageSize::Ordinary, None).unwrap());
        let device = Memory { config: Mutex::new(config), bar, mapped: Mutex::default(), ports: None };
        device.set_32(COMMON + 4, features);
        device.set_32(COMMON + 24, 64); // the size of all queues
        Arc::new(device)
    }

    /// Sets 32 bits of the BAR.
    pub fn set_32(&self, offset: usize, value: u32) {
        let word = &self.bar.words(offset & !7, 1)[0];
        let shift = offset % 8 * 8;
        let set = |old: u64| Some(old & !(0xFFFF_FFFF << shift) | u64::from(value) << shift);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).unwrap();
    }

    /// Sets a byte of configuration space.
    pub fn set_config(&self, at: usize, value: u8) {
        self.config.lock().unwrap()[at] = value;
    }

    pub fn device(self: &Arc<Memory>) -> Arc<dyn PciDevice> {
        self.clone()
    }
}

impl DmaSpace for Memory {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut mapped = self.mapped.lock().unwrap();
        mapped.push(memory.clone());
        Ok(Addresses::Contiguous(Contiguous((mapped.len() as DeviceAddress) << 32)))
    }

    fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for Memory {
    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        (0..count).map(|_| Interrupt::new()).collect()
    }
}

impl PciDevice for Memory {
    fn address(&self) -> &str {
        "0000:00:00.0"
    }

    fn read_config(&self, offset: u16, bytes: &mut [u8]) -> Result<()> {
        let config = self.config.lock().unwrap();
        bytes.copy_from_slice(&config[usize::from(offset)..usize::from(offset) + bytes.len()]);
        Ok(())
    }

    fn write_config(&self, _: u16, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn map_bar(&self, bar: u8) -> Result<MappedBar> {
        assert_eq!(bar, 0, "it has one BAR");
        Ok(MappedBar::new(self.bar.clone()))
    }

    fn io_ports(&self, _: u8) -> Result<IoPorts> {
        self.ports.clone().ok_or(Error::BadDevice { why: "it has no I/O ports" })
    }

    fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
        self
    }
}

/// Of the header (VIRTIO 1.2, 5.1.6), in front of the data: its length, and where it tells in how many buffers a packet is.
pub const HEADER: usize = 12;
pub const NUM_BUFFERS: usize = 10;

/// Of a packed queue's descriptors (2.8.1).
pub const AVAILABLE: u64 = 1 << 55;
pub const USED: u64 = 1 << 63;

/// The device's end of a queue, whose packets have one descriptor each.
pub enum Queue {
    Split(Split),
    Packed { ring: Descriptors, next: usize },
}

/// A split queue's parts (2.7).
pub struct Split {
    pub table: Descriptors,
    /// Flags, index, ids.
    pub available: Shared<AtomicU16>,
    /// Flags, index.
    pub used: Shared<AtomicU16>,
    /// Id and length.
    pub used_ring: Shared<AtomicU32>,
    next: u16,
}

impl Queue {
    /// The first receive queue, and the first transmit queue, of an open device without a control queue.
    pub fn pair(device: &Memory, size: usize, is_packed: bool) -> [Queue; 2] {
        // The driver has written the transmit queue's addresses last; both lie in equal parts, the first part is other things.
        let address = |register: usize| device.bar.words(COMMON + register, 1)[0].load(Relaxed) as u32 as usize;
        let [table, driver, used] = [32, 40, 48].map(address);
        let rings = device.mapped.lock().unwrap()[1].clone();
        [table / 2, 0].map(|back| match is_packed {
            true => Queue::Packed { ring: Shared::new(&rings, table - back, size), next: 0 },
            false => Queue::Split(Split {
                table: Shared::new(&rings, table - back, size),
                available: Shared::new(&rings, driver - back, size + 2),
                used: Shared::new(&rings, used - back, 2),
                used_ring: Shared::new(&rings, used - back + 4, 2 * size),
                next: 0,
            }),
        })
    }

    /// Finishes up to `most` packets, with so many bytes written to each; `each` gets their addresses. Returns how many.
    pub fn finish(&mut self, most: usize, written: u32, each: impl Fn(DeviceAddress)) -> usize {
        (0..most).take_while(|_| self.finish_one(written, &each)).count()
    }

    fn finish_one(&mut self, written: u32, each: impl Fn(DeviceAddress)) -> bool {
        match self {
            Queue::Split(split) => {
                if split.available[1].load(Acquire) == split.next {
                    return false;
                }
                let place = usize::from(split.next) % split.table.len();
                let id = split.available[2 + place].load(Relaxed);
                each(split.table[usize::from(id)][0].load(Relaxed));
                split.used_ring[2 * place].store(id.into(), Relaxed);
                split.used_ring[2 * place + 1].store(written, Relaxed);
                split.next = split.next.wrapping_add(1);
                split.used[1].store(split.next, Release);
            }
            Queue::Packed { ring, next } => {
                let odd = *next / ring.len() % 2 == 0;
                let descriptor = &ring[*next % ring.len()];
                let word = descriptor[1].load(Acquire);
                if (word & AVAILABLE != 0) != odd || (word & USED != 0) == odd {
                    return false;
                }
                each(descriptor[0].load(Relaxed));
                let flags = if odd { AVAILABLE | USED } else { 0 };
                descriptor[1].store(word & 0xFFFF << 32 | u64::from(written) | flags, Release);
                *next += 1;
            }
        }
        true
    }
}
