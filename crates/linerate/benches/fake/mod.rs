//! A card that consists of memory only: the registers are stored, and a bare loop in the same thread completes
//! descriptors. It serves to measure the driver's cost without a card, and the lower bound of that cost.
#![allow(unsafe_code)]
#![allow(dead_code)] // each benchmark uses its part

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

/// Returns 64-bit words of memory that a device shares.
pub fn words(memory: &Mapping, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: rings, or packets while the device owns them: no slices of it are lent meanwhile.
    unsafe { memory.words(offset, count) }
}

/// Returns the time stamp counter, after everything before it and before everything behind it.
#[cfg(target_arch = "x86_64")]
pub fn stamp() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: all x86-64 processors have both.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Returns a counter of the processor's.
#[cfg(not(target_arch = "x86_64"))]
pub fn stamp() -> u64 {
    quanta::Clock::new().raw()
}

/// Registers that return what a driver waits for, and store the rest. Doorbells are real.
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
            // A queue that is disabled is empty.
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

/// Device addresses that are not pointers: the n-th mapping begins at (n + 1) << 40. The packets' memory may be
/// split into pages.
#[derive(Default)]
struct FakeDma {
    maps: Mutex<Vec<Arc<Mapping>>>,
    page: Option<usize>,
}

// SAFETY: it passes the addresses on, and touches no bytes.
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

/// Returns pages with a gap after each.
pub fn pages(base: DeviceAddress, len: usize, page: usize) -> Paged {
    Paged::new((0..len.div_ceil(page)).map(|index| base + (index * (page + (1 << 32))) as u64).collect(), page)
}

pub const RING: usize = 512;
/// The device address of the packets.
const PACKETS: DeviceAddress = 2 << 40;

/// The driver on such a card.
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

/// The lines that a card writes when it receives.
#[derive(Clone, Copy, PartialEq)]
pub enum Writes {
    Descriptors,
    /// And the first line of each packet.
    Packets,
    /// And all lines that it has written, also those of transmit descriptors, leave the processor's caches.
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

    /// Makes a card that sees packets in pages of this size.
    pub fn seeing(vectors: Vectors, region: &RegionOptions, page: Option<usize>) -> Fake {
        Fake::sharing(vectors, Pool::new(Region::new(region).unwrap()), page)
    }

    /// Makes a card with buffers of this pool.
    pub fn sharing(vectors: Vectors, pool: Arc<Pool>, page: Option<usize>) -> Fake {
        let bar = Arc::new(Mapping::new(128 << 10, PageSize::Ordinary, None).unwrap());
        // SAFETY: no other device is behind it, and no slice of it is lent.
        let bar = unsafe { MappedBar::new(bar) };
        let dma = Arc::new(FakeDma { page, ..FakeDma::default() });
        // A backplane has no module to be read.
        let config = Options { ring: Some(RING), vectors, ..Options::default() }.of_port("fake", pool).unwrap();
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

    /// Writes these second words into descriptors that the card owns, while there are any; a word without the done
    /// bit leaves its descriptor for the next word.
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

    /// Returns the receive tail, as the driver has written it.
    pub fn receive_tail(&self) -> u32 {
        self.bar.read(RDT::at(0))
    }

    /// Sends all packets given to the card, and returns their number.
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

    /// Returns the descriptor rings, and the packets' buffers: the cheapest loop runs over these.
    pub fn memory(&self) -> (&Mapping, &Mapping) {
        (&self.rings, &self.packets)
    }
}

/// Lets a line leave the processor's caches.
#[cold]
fn flush(line: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all x86-64 processors have it, and the address is that of a reference.
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
