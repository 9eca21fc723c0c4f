//! A small driver that does exactly as each test needs.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use linerate::memory::{DmaMap, Mapping, PageSize};
use linerate::pci::Bar;
use linerate::sim82599::{Card, CardBar, CardKind, Frame, from_fn};
use linerate::spec::descriptor::transmit;
use linerate::spec::x82599::*;

pub type Frames = Arc<Mutex<VecDeque<Frame>>>;

pub const RX_RING: usize = 0;
pub const TX_RING: usize = 4096;
pub const BUFFERS: usize = 65_536;
pub const LEN: u32 = 64;
/// The command bits for a packet in one buffer.
pub const PACKET: u64 = transmit::DTYP_DATA | transmit::DEXT | transmit::EOP | transmit::IFCS | transmit::RS;

/// A card, its memory, and the frames on its wire.
pub struct Bench {
    pub card: Arc<Card>,
    pub bar: CardBar,
    pub dma: DmaMap,
    pub sent: Frames,
    pub incoming: Frames,
}

/// Returns the registers of a card that only a bench drives.
pub fn registers(card: &Arc<Card>) -> CardBar {
    // SAFETY: a bench's rings and packets are in memory that belongs to no region.
    unsafe { card.bar() }
}

/// Returns 64-bit words of a bench's memory.
pub fn words(dma: &DmaMap, offset: usize, count: usize) -> &[AtomicU64] {
    // SAFETY: the memory belongs to no region, so there are no slices of it.
    unsafe { dma.memory().words(offset, count) }
}

impl Bench {
    /// Makes a bench with an uninitialised card.
    pub fn bare() -> Bench {
        Bench::of(CardKind::default())
    }

    /// As [`bare`](Bench::bare), with a card of the given kind.
    pub fn of(kind: CardKind) -> Bench {
        let (sent, incoming) = (Frames::default(), Frames::default());
        let (out, into) = (sent.clone(), incoming.clone());
        let wire = from_fn(
            move |frame| out.lock().unwrap().push_back(frame.clone()),
            move |frame| into.lock().unwrap().pop_front().map(|next| *frame = next).is_some(),
        );
        let card = Card::of_kind(kind, 0, "bench", wire);
        let memory = Arc::new(Mapping::new(1 << 20, PageSize::Ordinary, None).unwrap());
        let dma = DmaMap::new(&(card.bus() as _), &memory).unwrap();
        Bench { bar: registers(&card), card, dma, sent, incoming }
    }

    /// Makes a bench with queue 0 in both directions, which accepts all frames. `srrctl` is for the receive queue.
    pub fn with_queues(srrctl: u32) -> Bench {
        Bench::bare().set_up(srrctl)
    }

    /// As [`with_queues`](Bench::with_queues), for an existing bench.
    pub fn set_up(self, srrctl: u32) -> Bench {
        let bench = self;
        let bar = &bench.bar;
        bar.write(FCTRL::OFFSET, FCTRL::UPE | FCTRL::MPE | FCTRL::BAM);
        bar.write(RDRXCTL::OFFSET, bar.read(RDRXCTL::OFFSET) | RDRXCTL::CRC_STRIP);
        bar.write(DCA_RXCTRL::at(0), 0);
        bar.write(DMATXCTL::OFFSET, bar.read(DMATXCTL::OFFSET) | DMATXCTL::TE);
        for (low, high, len, offset) in
            [(RDBAL::at(0), RDBAH::at(0), RDLEN::at(0), RX_RING), (TDBAL::at(0), TDBAH::at(0), TDLEN::at(0), TX_RING)]
        {
            bar.write(low, bench.address(offset) as u32);
            bar.write(high, (bench.address(offset) >> 32) as u32);
            bar.write(len, LEN * 16);
        }
        bar.write(SRRCTL::at(0), srrctl);
        bar.write(RXDCTL::at(0), RXDCTL::ENABLE);
        bar.write(TXDCTL::at(0), TXDCTL::ENABLE);
        for n in 0..LEN as usize {
            bench.set(RX_RING, n, [bench.buffer(n), 0]);
        }
        bar.write(RDT::at(0), LEN - 1);
        bar.write(RXCTRL::OFFSET, RXCTRL::RXEN);
        bench
    }

    pub fn address(&self, offset: usize) -> u64 {
        self.dma.addresses().at(0) + offset as u64
    }

    pub fn buffer(&self, n: usize) -> u64 {
        self.address(BUFFERS + n * 2048)
    }

    pub fn set(&self, ring: usize, n: usize, words: [u64; 2]) {
        let target = self::words(&self.dma, ring + n * 16, 2);
        target[0].store(words[0], Relaxed);
        target[1].store(words[1], Relaxed);
    }

    pub fn get(&self, ring: usize, n: usize) -> [u64; 2] {
        let words = words(&self.dma, ring + n * 16, 2);
        [words[0].load(Relaxed), words[1].load(Relaxed)]
    }

    /// Returns the first `len` bytes of buffer `n`.
    pub fn bytes(&self, n: usize, len: usize) -> Vec<u8> {
        let words = words(&self.dma, BUFFERS + n * 2048, len.div_ceil(8));
        words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).take(len).collect()
    }

    pub fn fill(&self, n: usize, bytes: &[u8]) {
        let words = words(&self.dma, BUFFERS + n * 2048, bytes.len().div_ceil(8));
        for (word, part) in words.iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..part.len()].copy_from_slice(part);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
    }

    /// Puts a packet of `len` bytes into buffer 100 + `n`, and its descriptor into entry `n` of the transmit ring.
    pub fn prepare_packet(&self, n: usize, len: usize, command: u64) {
        self.fill(100 + n, &pattern(len));
        let payload = if command & transmit::DEXT != 0 { (len as u64) << transmit::PAYLEN_SHIFT } else { 0 };
        self.set(TX_RING, n, [self.buffer(100 + n), command | len as u64 | payload]);
    }

    /// Puts `packet` into buffer 100 and sends these descriptors; returns the frames on the wire.
    pub fn send(&self, packet: &[u8], descriptors: &[[u64; 2]]) -> Vec<Frame> {
        self.fill(100, packet);
        let mut at = self.bar.read(TDT::at(0));
        for words in descriptors {
            self.set(TX_RING, at as usize, *words);
            at = (at + 1) % LEN;
        }
        self.bar.write(TDT::at(0), at);
        while self.card.step(64) > 0 {}
        self.take_sent()
    }

    /// Adds a receive queue with a ring of 8 descriptors.
    pub fn add_receive_queue(&self, queue: u16) {
        let (bar, ring) = (&self.bar, 8192 + usize::from(queue) * 128);
        bar.write(DCA_RXCTRL::at(queue), 0);
        bar.write(RDBAL::at(queue), self.address(ring) as u32);
        bar.write(RDBAH::at(queue), (self.address(ring) >> 32) as u32);
        bar.write(RDLEN::at(queue), 8 * 16);
        bar.write(SRRCTL::at(queue), 2 | SRRCTL::DESCTYPE_ADVANCED);
        bar.write(RXDCTL::at(queue), RXDCTL::ENABLE);
        (0..8).for_each(|n| self.set(ring, n, [self.buffer(200 + usize::from(queue) * 8 + n), 0]));
        bar.write(RDT::at(queue), 7);
    }

    /// Returns the two words that the card wrote for the last frame to queue 0.
    pub fn last(&self) -> [u64; 2] {
        self.get(RX_RING, (self.bar.read(RDH::at(0)) + LEN - 1) as usize % LEN as usize)
    }

    pub fn inject(&self, bytes: Vec<u8>) {
        self.incoming.lock().unwrap().push_back(Frame { bytes, bad_crc: false });
        self.card.step(1);
    }

    pub fn take_sent(&self) -> Vec<Frame> {
        self.sent.lock().unwrap().drain(..).collect()
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 2) as u8 & 0xFE).collect()
}
