//! A card that consists only of memory: registers store what is written, and a bare loop in the same thread completes
//! descriptors. It allows measuring the driver's cost without a card, and the lower bound of that cost.
#![allow(unsafe_code)]
#![allow(dead_code)] // each benchmark uses only a part

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate::memory::{
    Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping, PageSize, Paged, Pool, Region, RegionOptions,
};
use linerate::nic::ixgbe::Ixgbe;
use linerate::pci::{Bar, Bus, Interrupt, MappedBar, MappedDoorbell};
use linerate::port::{Device, QueueStatistics, Receive, Transmit, Vectors};
use linerate::spec::descriptor::{receive, transmit};
use linerate::spec::x82599::*;
use linerate::{Batch, Options, Result};

/// Returns 64-bit words of memory shared with a device.
pub fn words(memory: &Mapping, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: the memory holds rings, or packets that the device owns, so there are no slices of it.
    unsafe { memory.words(offset, count) }
}

/// Reads the time stamp counter, ordered after all earlier and before all later instructions.
#[cfg(target_arch = "x86_64")]
pub fn stamp() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: all x86-64 processors have both instructions.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Reads the processor's cycle counter.
#[cfg(not(target_arch = "x86_64"))]
pub fn stamp() -> u64 {
    quanta::Clock::new().raw()
}

/// Registers that return the values a driver waits for, and store others. Doorbells are plain memory writes.
#[derive(Clone)]
pub struct FakeBar(MappedBar);

impl Bar for FakeBar {
    type Doorbell = MappedDoorbell;

    fn read(&self, offset: u32) -> u32 {
        match offset {
            EEC::OFFSET => EEC::ARD,
            RDRXCTL::OFFSET => RDRXCTL::DMAIDONE,
            SECRXSTAT::OFFSET => SECRXSTAT::SECRX_RDY,
            STATUS::OFFSET => 0,
            CTRL::OFFSET => self.0.read(offset) & !(CTRL::RST | CTRL::LRST),
            // A disabled queue is empty.
            _ if offset == TDH::at(0) => self.0.read(TDT::at(0)),
            _ => self.0.read(offset),
        }
    }

    fn write(&self, offset: u32, value: u32) {
        self.0.write(offset, value);
    }

    fn doorbell(&self, offset: u32) -> MappedDoorbell {
        self.0.doorbell(offset)
    }

    fn wait(&self, _: Duration) {}
}

/// Device addresses, which are not pointers: mapping n begins at (n + 1) << 40. The packet memory may be split into
/// pages.
#[derive(Default)]
struct FakeDma {
    maps: Mutex<Vec<Arc<Mapping>>>,
    page: Option<usize>,
}

// SAFETY: it only assigns addresses, and does not access memory.
unsafe impl DmaSpace for FakeDma {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.maps.lock().unwrap();
        maps.push(memory.clone());
        let base = (maps.len() as u64) << 40;
        Ok(match self.page.filter(|_| maps.len() == 2) {
            Some(page) => Addresses::Paged(pages(base, memory.len(), page)),
            None => Addresses::Contiguous(Contiguous(base)),
        })
    }

    unsafe fn unmap(&self, _: DeviceAddress) {}
}

impl Bus for FakeDma {
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    fn interrupts(&self, _: u16) -> Result<Vec<Interrupt>> {
        unreachable!("it is polled")
    }
}

/// Returns page addresses with gaps between the pages.
pub fn pages(base: DeviceAddress, len: usize, page: usize) -> Paged {
    Paged::new((0..len.div_ceil(page)).map(|index| base + (index * (page + (1 << 32))) as u64).collect(), page)
}

pub const RING: usize = 512;
/// The device address of the packets.
const PACKETS: DeviceAddress = 2 << 40;

/// A driver on such a card.
pub struct Fake {
    pub rx: Box<dyn Receive>,
    pub tx: Box<dyn Transmit>,
    pub card: Card,
    device: Ixgbe<FakeBar>,
}

/// The card's side.
pub struct Card {
    bar: MappedBar,
    rings: Arc<Mapping>,
    packets: Arc<Mapping>,
    rx_head: usize,
    tx_head: usize,
    pub writes: Writes,
}

/// The cache lines that a card writes when it receives.
#[derive(Clone, Copy, PartialEq)]
pub enum Writes {
    Descriptors,
    /// Descriptors and the first line of each packet.
    Packets,
    /// As `Packets`; all written lines, including those of transmit descriptors, are flushed from the processor's
    /// caches.
    Memory,
}

impl Fake {
    pub fn new() -> Fake {
        Fake::of(&RegionOptions::default())
    }

    pub fn of(region: &RegionOptions) -> Fake {
        Fake::with(Vectors::Best, region)
    }

    pub fn with(vectors: Vectors, region: &RegionOptions) -> Fake {
        Fake::seeing(vectors, region, None)
    }

    /// Makes a card for which packet memory consists of pages of this size.
    pub fn seeing(vectors: Vectors, region: &RegionOptions, page: Option<usize>) -> Fake {
        Fake::sharing(vectors, Pool::new(Region::new(region).unwrap()), page)
    }

    /// Makes a card that uses this pool.
    pub fn sharing(vectors: Vectors, pool: Arc<Pool>, page: Option<usize>) -> Fake {
        Fake::opened(Options { vectors, ..Options::default() }, pool, page)
    }

    /// Makes a card with these options.
    pub fn opened(options: Options, pool: Arc<Pool>, page: Option<usize>) -> Fake {
        let bar = Arc::new(Mapping::new(128 << 10, PageSize::Ordinary, None).unwrap());
        // SAFETY: the memory belongs to this device alone, and there are no slices of it.
        let bar = unsafe { MappedBar::new(bar) };
        let dma = Arc::new(FakeDma { page, ..FakeDma::default() });
        // Use a backplane device, which has no module to be read.
        let config = Options { ring: Some(RING), ..options }.of_port("fake", pool).unwrap();
        let config = config.with_device(0x10F7);
        let mut device = Ixgbe::open(FakeBar(bar.clone()), dma.clone(), config).unwrap();
        let (rx, tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        let [rings, packets] = [0, 1].map(|n| dma.maps.lock().unwrap()[n].clone());
        let card = Card { bar, rings, packets, rx_head: 0, tx_head: 0, writes: Writes::Descriptors };
        Fake { rx, tx, card, device }
    }

    /// Forwards a batch: receives it, touches a byte of each packet, and sends it.
    #[inline(never)]
    pub fn forward(&mut self, batch: &mut Batch) {
        self.rx.recv(batch);
        touch(batch);
        self.tx.send(batch);
        batch.clear();
    }

    pub fn pool(&self) -> Arc<Pool> {
        self.device.pool().clone()
    }

    /// Returns the count of malformed packets.
    pub fn malformed(&self) -> u64 {
        self.device.statistics().unwrap().drops.malformed
    }

    pub fn statistics(&self) -> QueueStatistics {
        self.device.queue_statistics()
    }
}

impl Card {
    /// Receives `count` frames of 60 bytes into descriptors that the card owns.
    #[inline(always)]
    pub fn complete_receive(&mut self, count: usize) {
        let ring = words(&self.rings, 0, RING * 2);
        for _ in 0..count {
            let descriptor = &ring[self.rx_head * 2..][..2];
            if self.writes != Writes::Descriptors {
                self.write_packet((descriptor[0].load(Relaxed) - PACKETS) as usize);
            }
            descriptor[0].store(0, Relaxed);
            descriptor[1].store(receive::DD | receive::EOP | 60 << receive::LENGTH_SHIFT, Relaxed);
            if self.writes == Writes::Memory {
                flush(descriptor);
            }
            self.rx_head = (self.rx_head + 1) % RING;
        }
    }

    /// Writes the first line of a packet.
    #[cold]
    fn write_packet(&self, buffer: usize) {
        let line = words(&self.packets, buffer & !63, 8);
        line.iter().for_each(|word| word.store(1, Relaxed));
        if self.writes == Writes::Memory {
            flush(line);
        }
    }

    /// Writes these second words to descriptors that the card owns, while there are any. After a word without the done
    /// bit, the next word goes to the same descriptor.
    pub fn receive_words(&mut self, second: &[u64]) {
        let words = words(&self.rings, 0, RING * 2);
        let tail = self.bar.read(RDT::at(0)) as usize;
        for word in second {
            if self.rx_head == tail {
                break;
            }
            words[self.rx_head * 2].store(!word, Relaxed);
            words[self.rx_head * 2 + 1].store(*word, Relaxed);
            self.rx_head = (self.rx_head + usize::from(word & receive::DD != 0)) % RING;
        }
    }

    /// Writes the descriptors of a coalesced packet from the head on: counts of segments, lengths, distances to the next
    /// descriptor, and status bits. Each buffer that the card owns begins with the headers of a TCP packet of `len`
    /// bytes.
    pub fn coalesce(&mut self, len: u16, parts: &[(u64, u64, u64, u64)]) {
        let words = words(&self.rings, 0, RING * 2);
        for &(count, length, next, status) in parts {
            let descriptor = &words[self.rx_head * 2..][..2];
            let buffer = descriptor[0].load(Relaxed).wrapping_sub(PACKETS) as usize;
            if buffer < self.packets.len() - 2048 {
                let mut bytes = [2; 64];
                bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6]);
                bytes[16..18].copy_from_slice(&len.to_be_bytes());
                bytes[20..22].fill(0);
                bytes[46..48].copy_from_slice(&[0x50, 0x10]);
                let line = self::words(&self.packets, buffer, 8);
                for (word, bytes) in line.iter().zip(bytes.chunks_exact(8)) {
                    word.store(u64::from_le_bytes(bytes.try_into().unwrap()), Relaxed);
                }
            }
            let (next, eop) = ((self.rx_head as u64 + next) % (RING as u64 + 64), status & receive::EOP != 0);
            descriptor[0].store(count << receive::RSCCNT_SHIFT, Relaxed);
            let next = if eop { 0 } else { next << receive::NEXTP_SHIFT };
            descriptor[1].store(status | next | length << receive::LENGTH_SHIFT, Relaxed);
            self.rx_head = (self.rx_head + 1) % RING;
        }
    }

    /// Returns the receive tail written by the driver.
    pub fn receive_tail(&self) -> u32 {
        self.bar.read(RDT::at(0))
    }

    /// Completes all transmit descriptors given to the card; returns their number.
    pub fn complete_transmit(&mut self) -> usize {
        let words = words(&self.rings, RING * 16, RING * 2);
        let tail = self.bar.read(TDT::at(0)) as usize;
        let mut sent = 0;
        while self.tx_head != tail {
            let descriptor = &words[self.tx_head * 2..][..2];
            if descriptor[1].load(Relaxed) & transmit::RS != 0 {
                descriptor[1].store(transmit::DD, Relaxed);
            }
            if self.writes == Writes::Memory {
                flush(descriptor);
            }
            self.tx_head = (self.tx_head + 1) % RING;
            sent += 1;
        }
        sent
    }

    /// Returns the memory of the descriptor rings and of the packets, for measuring the cheapest loop.
    pub fn memory(&self) -> (&Mapping, &Mapping) {
        (&self.rings, &self.packets)
    }
}

/// Flushes a line from the processor's caches.
#[cold]
fn flush(line: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all x86-64 processors have the instruction, and the address comes from a reference.
    unsafe {
        std::arch::x86_64::_mm_clflush(line.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[inline(always)]
pub fn touch(batch: &mut Batch) {
    for mut packet in batch {
        packet[48] = packet[48].wrapping_add(1);
    }
}
