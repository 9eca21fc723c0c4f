//! A VirtIO device that consists only of memory: registers store what is written, and a bare loop in the same thread
//! acts as the device on its queues. It allows measuring the driver's cost, and testing the driver with a device that
//! violates the specification.
#![allow(unsafe_code)]
#![allow(dead_code)] // each test and benchmark uses only a part

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use linerate::memory::{
    Addresses, Contiguous, Descriptors, DeviceAddress, DmaArray, DmaSpace, Mapping, PageSize, Paged, Pool, Region,
    RegionOptions, Word,
};
use linerate::nic::Config;
use linerate::nic::virtio::Virtio;
use linerate::pci::{Bus, Interrupt, IoPorts, MappedBar, PciDevice};
use linerate::port::{Device, Receive, Transmit, Vectors};
use linerate::{Batch, Error, ErrorKind, Options, Result};

/// Returns 64-bit words of memory shared with a device.
pub fn words(memory: &Mapping, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: the memory holds rings, registers, or packets that the device owns, so there are no slices of it.
    unsafe { memory.words(offset, count) }
}

fn shared<T: Word>(memory: &Arc<Mapping>, offset: usize, count: usize) -> DmaArray<T> {
    // SAFETY: the memory holds rings, of which there are no slices.
    unsafe { DmaArray::new(memory, offset, count) }
}

/// Opens a driver for the device.
pub fn open(device: &Arc<Memory>, config: Config) -> Result<Virtio> {
    // SAFETY: each device has only one driver at a time.
    unsafe { Virtio::open(&device.device(), config) }
}

/// Offsets in BAR 0.
pub const COMMON: usize = 0;
const NOTIFY: usize = 0x1000;
const ISR: usize = 0x2000;
pub const DEVICE: usize = 0x3000;
const BAR: usize = 0x4000;

/// `VERSION_1` and `ACCESS_PLATFORM` in the upper half of the features. The device ignores the selection, so it offers
/// the bits in both halves.
pub const SPLIT: u32 = 0b011;
/// As `SPLIT`, with `RING_PACKED`.
pub const PACKED: u32 = 0b111;
/// `MRG_RXBUF` in the lower half; the bit has no meaning in the upper half.
pub const MERGEABLE: u32 = 1 << 15;

/// Likewise `CTRL_VQ`, `CTRL_RX`, `CTRL_VLAN` and `MQ`.
pub const CTRL_VQ: u32 = 1 << 17;
pub const CTRL_RX: u32 = 1 << 18;
pub const CTRL_VLAN: u32 = 1 << 19;
pub const MQ: u32 = 1 << 22;

/// `RING_RESET`, `NOTF_COAL`, `HASH_REPORT` and `RSS` in the upper half; the driver does not use the bits in the lower half.
pub const RING_RESET: u32 = 1 << 8;
pub const NOTF_COAL: u32 = 1 << 21;
pub const HASH_REPORT: u32 = 1 << 25;
pub const RSS: u32 = 1 << 28;

/// A device of plain memory: reads return what has been written.
pub struct Memory {
    config: Mutex<[u8; 256]>,
    pub bar: Arc<Mapping>,
    pub mapped: Mutex<Vec<Arc<Mapping>>>,
    /// The I/O ports of a legacy device.
    pub ports: Option<IoPorts>,
    /// The page size of the packet memory for the device; `None`: contiguous.
    pub page: Option<usize>,
}

impl Memory {
    pub fn new(features: u32) -> Arc<Memory> {
        let mut config = [0; 256];
        config[0x06] = 1 << 4; // has a capability list
        config[0x34] = 0x40;
        for (index, offset) in [COMMON, NOTIFY, ISR, DEVICE].into_iter().enumerate() {
            let at = 0x40 + 0x18 * index;
            let next = if index < 3 { at + 0x18 } else { 0 };
            config[at..at + 4].copy_from_slice(&[0x09, next as u8, 20, index as u8 + 1]);
            config[at + 8..at + 12].copy_from_slice(&(offset as u32).to_le_bytes());
            config[at + 12..at + 16].copy_from_slice(&0x1000u32.to_le_bytes());
        }
        let bar = Arc::new(Mapping::new(BAR, PageSize::Ordinary, None).unwrap());
        let device = Memory { config: Mutex::new(config), bar, mapped: Mutex::default(), ports: None, page: None };
        device.set_32(COMMON + 4, features);
        device.set_32(COMMON + 24, 64); // the size of all queues
        Arc::new(device)
    }

    /// Sets 32 bits of the BAR.
    pub fn set_32(&self, offset: usize, value: u32) {
        let word = &words(&self.bar, offset & !7, 1)[0];
        let shift = offset % 8 * 8;
        let set = |old: u64| Some(old & !(0xFFFF_FFFF << shift) | u64::from(value) << shift);
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, set).unwrap();
    }

    /// Sets the limits of hashes (5.1.4): the longest key, the longest table, and the set of types.
    pub fn set_hash_limits(&self, key: u8, table: u16, types: u32) {
        self.set_32(DEVICE + 16, u32::from(key) << 8 | u32::from(table) << 16);
        self.set_32(DEVICE + 20, types);
    }

    /// Returns the queue of the last notification since the previous call, if there was one.
    pub fn doorbell(&self) -> Option<u16> {
        const NONE: u16 = u16::MAX;
        let rung = words(&self.bar, NOTIFY, 1)[0].load(Acquire) as u16;
        self.set_32(NOTIFY, NONE.into());
        Some(rung).filter(|&rung| rung != NONE)
    }

    /// Sets a byte of configuration space.
    pub fn set_config(&self, at: usize, value: u8) {
        self.config.lock().unwrap()[at] = value;
    }

    pub fn device(self: &Arc<Memory>) -> Arc<dyn PciDevice> {
        self.clone()
    }
}

// SAFETY: the device writes only to buffers that the driver has made available.
unsafe impl DmaSpace for Memory {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut mapped = self.mapped.lock().unwrap();
        mapped.push(memory.clone());
        let base = (mapped.len() as DeviceAddress) << 32;
        Ok(match self.page.filter(|_| mapped.len() == 1) {
            // The low 32 bits of an address are its offset.
            Some(page) => {
                let address = |index: usize| base + ((index as u64 + 1) << 40) + (index * page) as u64;
                Addresses::Paged(Paged::new((0..memory.len().div_ceil(page)).map(address).collect(), page))
            }
            None => Addresses::Contiguous(Contiguous(base)),
        })
    }

    unsafe fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for Memory {
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

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

    unsafe fn write_config(&self, _: u16, _: &[u8]) -> Result<()> {
        Ok(())
    }

    unsafe fn map_bar(&self, bar: u8) -> Result<MappedBar> {
        match bar {
            // SAFETY: the memory belongs to this device alone, and there are no slices of it.
            0 => Ok(unsafe { MappedBar::new(self.bar.clone()) }),
            _ => Err(Error::new(ErrorKind::BadDevice, "", "it has one BAR")),
        }
    }

    unsafe fn io_ports(&self, _: u8) -> Result<IoPorts> {
        self.ports.clone().ok_or(Error::new(ErrorKind::BadDevice, "", "it has no I/O ports"))
    }

    fn bus(self: Arc<Self>) -> Arc<dyn Bus> {
        self
    }
}

/// The length of the header before the data, and the offset of its `num_buffers` (VIRTIO 1.2, 5.1.6).
pub const HEADER: usize = 12;
pub const NUM_BUFFERS: usize = 10;

/// Flags of packed descriptors (2.8.1), and of descriptors of both formats (2.7.5, 2.8.7).
pub const AVAILABLE: u64 = 1 << 55;
pub const USED: u64 = 1 << 63;
const NEXT: u64 = 1;

/// The device's end of a queue.
pub enum Queue {
    Split(Split),
    Packed(Packed),
}

/// A split queue's parts (2.7).
pub struct Split {
    pub table: Descriptors,
    /// Flags, index, ids.
    pub available: DmaArray<AtomicU16>,
    /// Flags, index.
    pub used: DmaArray<AtomicU16>,
    /// Id and length.
    pub used_ring: DmaArray<AtomicU32>,
    accepted: u16,
    finished: u16,
}

/// A packed queue (2.8).
pub struct Packed {
    pub ring: Descriptors,
    /// The event suppression structures of driver and device (2.8.14).
    events: DmaArray<AtomicU32>,
    accepted: usize,
    finished: usize,
}

/// An available chain: its id, the number of its descriptors, and the first buffer's address.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub id: u16,
    pub count: usize,
    pub address: DeviceAddress,
}

impl Queue {
    /// Returns the first receive queue and the first transmit queue of an open device without a control queue.
    pub fn pair(device: &Memory, size: usize, is_packed: bool) -> [Queue; 2] {
        [0, 1].map(|index| Queue::at(device, index, 2, size, is_packed))
    }

    /// Returns queue `index` of an open device with `count` queues.
    pub fn at(device: &Memory, index: usize, count: usize, size: usize, is_packed: bool) -> Queue {
        // The driver has written the last queue's addresses last. The memory has equal parts: one before the queues, and
        // one for each.
        let address = |register: usize| words(&device.bar, COMMON + register, 1)[0].load(Relaxed) as u32 as usize;
        let [table, driver, used] = [32, 40, 48].map(address);
        let rings = device.mapped.lock().unwrap()[1].clone();
        let back = table / count * (count - 1 - index);
        match is_packed {
            true => Queue::Packed(Packed {
                ring: shared(&rings, table - back, size),
                events: shared(&rings, table - back + 16 * size, 2),
                accepted: 0,
                finished: 0,
            }),
            false => Queue::Split(Split {
                table: shared(&rings, table - back, size),
                available: shared(&rings, driver - back, size + 2),
                used: shared(&rings, used - back, 2),
                used_ring: shared(&rings, used - back + 4, 2 * size),
                accepted: 0,
                finished: 0,
            }),
        }
    }

    /// Enables or disables notifications from the driver.
    pub fn want_notifications(&self, wanted: bool) {
        match self {
            Queue::Split(Split { used, .. }) => used[0].store(u16::from(!wanted), Release),
            Queue::Packed(Packed { events, .. }) => events[1].store(u32::from(!wanted) << 16, Release),
        }
    }

    /// Marks up to `most` available chains as used, in order, with `written` bytes each. Calls `each` with their
    /// addresses. Returns their number.
    pub fn finish_in_turn(&mut self, most: usize, written: u32, each: impl Fn(DeviceAddress)) -> usize {
        let mut done = 0;
        while done < most
            && let Some(chain) = self.accept()
        {
            each(chain.address);
            self.finish(chain, written);
            done += 1;
        }
        done
    }

    /// Returns the next available chain.
    pub fn accept(&mut self) -> Option<Chain> {
        match self {
            Queue::Split(Split { table, available, accepted, .. }) => {
                if available[1].load(Acquire) == *accepted {
                    return None;
                }
                let id = available[2 + usize::from(*accepted) % table.len()].load(Relaxed);
                *accepted = accepted.wrapping_add(1);
                let (mut count, mut last) = (1, &table[usize::from(id)]);
                let address = last[0].load(Relaxed);
                while last[1].load(Relaxed) >> 32 & NEXT != 0 {
                    last = &table[(last[1].load(Relaxed) >> 48) as usize];
                    count += 1;
                }
                Some(Chain { id, count, address })
            }
            Queue::Packed(Packed { ring, accepted, .. }) => {
                let odd = *accepted / ring.len() % 2 == 0;
                let first = &ring[*accepted % ring.len()];
                let word = first[1].load(Acquire);
                if (word & AVAILABLE != 0) != odd || (word & USED != 0) == odd {
                    return None;
                }
                let mut count = 1;
                while ring[(*accepted + count - 1) % ring.len()][1].load(Relaxed) >> 48 & NEXT != 0 {
                    count += 1;
                }
                *accepted += count;
                Some(Chain { id: (word >> 32) as u16, count, address: first[0].load(Relaxed) })
            }
        }
    }

    /// Returns the addresses and lengths of a chain's buffers.
    pub fn parts(&self, chain: &Chain) -> Vec<(DeviceAddress, u32)> {
        let part = |descriptor: &[AtomicU64; 2]| (descriptor[0].load(Relaxed), descriptor[1].load(Relaxed) as u32);
        match self {
            Queue::Split(Split { table, .. }) => {
                let next = |at: &usize| Some((table[*at][1].load(Relaxed) >> 48) as usize);
                let all = std::iter::successors(Some(usize::from(chain.id)), next);
                all.take(chain.count).map(|at| part(&table[at])).collect()
            }
            Queue::Packed(Packed { ring, accepted, .. }) => {
                (accepted - chain.count..*accepted).map(|at| part(&ring[at % ring.len()])).collect()
            }
        }
    }

    /// Marks a chain as used, with `written` bytes written.
    pub fn finish(&mut self, chain: Chain, written: u32) {
        match self {
            Queue::Split(Split { used, used_ring, finished, .. }) => {
                let place = usize::from(*finished) % (used_ring.len() / 2);
                used_ring[2 * place].store(chain.id.into(), Relaxed);
                used_ring[2 * place + 1].store(written, Relaxed);
                *finished = finished.wrapping_add(1);
                used[1].store(*finished, Release);
            }
            Queue::Packed(Packed { ring, finished, .. }) => {
                let flags = if *finished / ring.len() % 2 == 0 { AVAILABLE | USED } else { 0 };
                let word = u64::from(written) | u64::from(chain.id) << 32 | flags;
                ring[*finished % ring.len()][1].store(word, Release);
                *finished += chain.count;
            }
        }
    }
}

/// Sets the number of buffers in the packet header at this offset of the region.
pub fn set_buffers(packets: &Mapping, header: usize, buffers: u16) {
    let at = header + NUM_BUFFERS;
    let (word, shift) = (&words(packets, at & !7, 1)[0], at % 8 * 8);
    word.store(word.load(Relaxed) & !(0xFFFF << shift) | u64::from(buffers) << shift, Relaxed);
}

/// Number of descriptors in a [`Card`]'s rings.
pub const RING: usize = 512;
/// Bytes written for each packet.
pub const WRITTEN: u32 = HEADER as u32 + 60;

/// A driver on a device of memory, and the device's ends of its queues.
pub struct Card {
    pub rx: Box<dyn Receive>,
    pub tx: Box<dyn Transmit>,
    pub rx_end: Queue,
    pub tx_end: Queue,
    pub packets: Arc<Mapping>,
    _port: Virtio,
}

impl Card {
    pub fn new(vectors: Vectors, features: u32) -> Card {
        let device = Memory::new(features);
        device.set_32(COMMON + 24, RING as u32);
        let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
        let mut port =
            open(&device, Options { ring: Some(RING), vectors, ..Options::default() }.of_port("fake", pool).unwrap())
                .unwrap();
        let (rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [rx_end, tx_end] = Queue::pair(&device, RING, features & PACKED == PACKED);
        let packets = device.mapped.lock().unwrap()[0].clone();
        Card { rx, tx, rx_end, tx_end, packets, _port: port }
    }

    /// Receives `count` packets of 60 bytes, each in one buffer.
    pub fn complete_receive(&mut self, count: usize) {
        let packets = &self.packets;
        let set_buffers = |address| set_buffers(packets, address as u32 as usize, 1);
        let received = self.rx_end.finish_in_turn(count, WRITTEN, set_buffers);
        assert_eq!(received, count);
    }

    /// Completes all available packets; returns their number.
    pub fn complete_transmit(&mut self) -> usize {
        self.tx_end.finish_in_turn(RING, 0, |_| ())
    }

    /// Forwards a batch: receives it, touches a byte of each packet, and sends it.
    #[inline(never)]
    pub fn forward(&mut self, batch: &mut Batch) {
        self.rx.recv(batch);
        for mut bytes in &mut *batch {
            bytes[48] = bytes[48].wrapping_add(1);
        }
        self.tx.send(batch);
        batch.clear();
    }
}
