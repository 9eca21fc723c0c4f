//! The card's side of a descriptor ring, and the oracle's records of it.
#![allow(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_spec::descriptor::transmit;
use linerate_spec::x82599::QUEUES;

use super::Direction;
use super::breach::{Breach, Oracle};
use super::dma::Maps;
use super::offload::Context;

/// One queue's ring.
///
/// ```text
///   0            head              tail        len
///   | driver's   | card's          | driver's  |
/// ```
pub(super) struct CardRing {
    pub direction: Direction,
    pub queue: u16,
    pub enabled: bool,
    /// The breach of an invalid ring; noted when the ring is used.
    pub invalid: Option<Breach>,
    pub base: u64,
    pub len: u32,
    pub head: u32,
    pub tail: u32,
    /// `SRRCTL` or `TXDCTL`. Read once per step, since it shares a cache line with the tail, which the driver's
    /// processor writes.
    pub control: u32,
    /// In strict mode only: the descriptors from `head` on as the driver gave them, oldest first.
    recorded: VecDeque<Recorded>,
    /// Receive: the start addresses of the buffers in `recorded`.
    buffers: BTreeSet<u64>,
    /// Transmit: indices whose write-back is delayed until a threshold is reached, and the number of descriptors done
    /// since the last write-back.
    pub reports: VecDeque<u32>,
    pub done_since_write_back: u32,
    /// Transmit: the contexts that data descriptors refer to.
    pub contexts: [Option<Context>; 2],
    /// Receive: frames and bytes delivered in this step.
    pub packets: u64,
    pub octets: u64,
}

/// A descriptor in the driver's memory.
#[derive(Clone, Copy)]
pub(super) struct Descriptor<'m>(&'m [AtomicU64]);

impl Descriptor<'_> {
    #[inline(always)]
    pub fn read(self) -> [u64; 2] {
        [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
    }

    /// Writes the descriptor back: the word with the done bit last, after all DMA of the packet.
    #[inline(always)]
    pub fn write_back(self, words: [u64; 2]) {
        self.0[0].store(words[0], Ordering::Relaxed);
        self.0[1].store(words[1], Ordering::Release);
    }
}

/// A descriptor and its buffer, as they were when the driver gave them to the card.
struct Recorded {
    words: [u64; 2],
    hash: Option<u32>,
}

impl CardRing {
    pub fn new(direction: Direction, queue: u16) -> CardRing {
        CardRing {
            direction,
            queue,
            enabled: false,
            invalid: None,
            base: 0,
            len: 0,
            head: 0,
            tail: 0,
            control: 0,
            recorded: VecDeque::new(),
            buffers: BTreeSet::new(),
            reports: VecDeque::new(),
            done_since_write_back: 0,
            contexts: [None; 2],
            packets: 0,
            octets: 0,
        }
    }

    pub fn enable(&mut self, base: u64, len: u32) {
        *self = CardRing { enabled: true, base, len, ..CardRing::new(self.direction, self.queue) };
    }

    /// Sets the head as written by the driver, while the ring is empty.
    pub fn set_head(&mut self, head: u32) {
        if self.enabled {
            self.head = head % self.len;
        }
    }

    pub fn disable(&mut self) {
        *self = CardRing::new(self.direction, self.queue);
    }

    /// Returns the number of descriptors that the card owns.
    #[inline]
    pub fn owned(&self) -> u32 {
        if self.tail >= self.head { self.tail - self.head } else { self.len - self.head + self.tail }
    }

    /// Returns the index of descriptor `n` after the head; `n` is at most the ring's length.
    #[inline]
    pub fn index(&self, n: u32) -> u32 {
        let index = self.head + n;
        if index >= self.len { index - self.len } else { index }
    }

    /// Prefetches the first `count` descriptors and the start of their buffers: the driver's processor has their cache
    /// lines. Does nothing for a ring in several ranges of `maps`, its driver's address space.
    #[inline]
    pub fn prefetch(&self, maps: &Maps, count: u32) {
        let count = count.min(self.owned());
        let Some((memory, offset)) = maps.find(self.base, self.len as usize * 16) else { return };
        let receives = self.direction == Direction::Receive;
        for n in (0..count).step_by(LINE) {
            // The card writes all descriptors of a receive ring: prefetching them for reading would transfer the
            // lines twice.
            let descriptor = offset + self.index(n) as usize * 16;
            if receives { memory.prefetch_write(descriptor) } else { memory.prefetch(descriptor) }
        }
        // SAFETY: as in `descriptor_at`.
        let words = unsafe { memory.words(offset, self.len as usize * 2) };
        for n in 0..count {
            let buffer = words[self.index(n) as usize * 2].load(Ordering::Relaxed);
            match maps.find(buffer, 1) {
                Some((memory, offset)) if receives => memory.prefetch_write(offset),
                Some((memory, offset)) => memory.prefetch(offset),
                None => {}
            }
        }
    }

    /// Sets the tail as written by the driver. Returns false, and keeps the old tail, if it is invalid.
    pub fn move_tail(&mut self, tail: u32, oracle: &Oracle) -> bool {
        let CardRing { direction, queue, len, .. } = *self;
        if tail >= len {
            oracle.note(Breach::TailOutOfRange { direction, queue, tail, len });
            return false;
        }
        let ahead = (tail + len - self.head) % len;
        if ahead < self.owned() {
            oracle.note(Breach::TailMovedBack { direction, queue, from: self.tail, to: tail });
            return false;
        }
        self.tail = tail;
        true
    }

    /// Returns descriptor `n` after the head; `None` if the ring is no longer mapped.
    #[inline(always)]
    pub fn descriptor<'m>(&self, maps: &'m Maps, n: u32, oracle: &Oracle) -> Option<Descriptor<'m>> {
        self.descriptor_at(maps, self.index(n), oracle)
    }

    /// As [`descriptor`](CardRing::descriptor), by index.
    #[inline(always)]
    pub fn descriptor_at<'m>(&self, maps: &'m Maps, index: u32, oracle: &Oracle) -> Option<Descriptor<'m>> {
        let address = self.base.wrapping_add(u64::from(index) * 16);
        let Some((memory, offset)) = maps.find_writable(address, 16) else {
            oracle.note(Breach::UnmappedInUse { direction: self.direction, queue: self.queue });
            return None;
        };
        // SAFETY: the driver chooses where its rings are, and promises that no slices of them are lent out
        // (`Card::bar`).
        Some(Descriptor(unsafe { memory.words(offset, 2) }))
    }

    /// Advances the head past the first `count` descriptors, which the card is done with.
    #[inline]
    pub fn advance(&mut self, count: u32) {
        self.head = self.index(count);
        if !self.recorded.is_empty() {
            self.forget_recorded(count);
        }
    }

    #[cold]
    fn forget_recorded(&mut self, count: u32) {
        for recorded in self.recorded.drain(..self.recorded.len().min(count as usize)) {
            self.buffers.remove(&recorded.words[0]);
        }
    }

    /// Records the descriptors added by the last tail write, and checks them. For receive rings, `receive_bytes` is how
    /// much the card may write into each buffer.
    pub fn record(&mut self, maps: &Maps, receive_bytes: Option<usize>, oracle: &Oracle) {
        if receive_bytes == Some(0) {
            let why = "BSIZEPACKET must not be 0 (section 8.2.3.8.7)";
            oracle.note(Breach::WrongTime { register: "SRRCTL", queue: self.queue, why });
        }
        for n in self.recorded.len() as u32..self.owned() {
            let Some(words) = self.descriptor(maps, n, oracle).map(Descriptor::read) else { return };
            let (direction, queue, index) = (self.direction, self.queue, self.index(n));
            let is_context =
                words[1] & (transmit::DEXT | transmit::DTYP_MASK) == transmit::DEXT | transmit::DTYP_CONTEXT;
            let len = match receive_bytes {
                Some(len) => len,
                None if is_context => 0,
                None => (words[1] & transmit::DTALEN_MASK) as usize,
            };
            if receive_bytes.is_some() {
                let overlapping =
                    words[0].saturating_sub((len as u64).saturating_sub(1))..words[0].saturating_add(len as u64);
                if self.buffers.range(overlapping).next().is_some() || !self.buffers.insert(words[0]) {
                    oracle.note(Breach::BufferGivenTwice { queue, index, address: words[0] });
                }
                if words[1] != 0 {
                    let why = "the header address must be 0, and with it the done bit (section 7.1.6.1)";
                    oracle.note(Breach::BadDescriptor { direction, queue, index, word: words[1], why });
                }
            }
            if len > 0 && !maps.covers(words[0], len) {
                oracle.note(Breach::Unmapped { direction, queue, address: words[0], len });
            }
            self.recorded.push_back(Recorded { words, hash: Self::hash(maps, words[0], len) });
        }
    }

    /// Returns whether descriptors are recorded, to be [compared](CardRing::compare) when the card uses them.
    #[inline]
    pub fn is_watched(&self) -> bool {
        !self.recorded.is_empty()
    }

    /// Checks, before the card uses descriptor `n` after the head, that it and its buffer have not changed.
    #[cold]
    pub fn compare(&self, maps: &Maps, n: u32, words: [u64; 2], len: usize, oracle: &Oracle) {
        let Some(recorded) = self.recorded.get(n as usize) else { return };
        let (direction, queue, index) = (self.direction, self.queue, self.index(n));
        if recorded.words != words {
            oracle.note(Breach::DescriptorChanged { direction, queue, index });
        } else if recorded.hash != Self::hash(maps, words[0], len) {
            oracle.note(Breach::BufferChanged { direction, queue, index });
        }
    }

    /// Returns the CRC-32 of a buffer; `None` if it is not mapped.
    pub fn hash(maps: &Maps, address: u64, len: usize) -> Option<u32> {
        let mut bytes = vec![0; len];
        maps.read(address, &mut bytes).then(|| crc32fast::hash(&bytes))
    }
}

/// Descriptors in a cache line.
const LINE: usize = 4;

/// The rings of one direction, by queue number.
pub(super) struct Rings {
    all: Vec<CardRing>,
    /// The enabled queues: a step visits only these.
    enabled: Vec<u16>,
}

impl Rings {
    pub fn new(direction: Direction) -> Rings {
        Rings { all: (0..QUEUES).map(|queue| CardRing::new(direction, queue)).collect(), enabled: Vec::new() }
    }

    /// Updates the list of enabled queues.
    pub fn update(&mut self) {
        self.enabled.clear();
        self.enabled.extend(self.all.iter().filter(|ring| ring.enabled).map(|ring| ring.queue));
    }

    /// Returns the number of enabled queues.
    pub fn enabled(&self) -> usize {
        self.enabled.len()
    }

    /// Returns the ring at `place` in the list of enabled queues, modulo its length.
    pub fn enabled_at(&mut self, place: usize) -> &mut CardRing {
        let queue = self.enabled[place % self.enabled.len()];
        &mut self.all[usize::from(queue)]
    }

    /// Returns the rings of the enabled queues.
    pub fn iter_enabled(&self) -> impl Iterator<Item = &CardRing> {
        self.enabled.iter().map(|queue| &self.all[usize::from(*queue)])
    }
}

impl Deref for Rings {
    type Target = [CardRing];

    fn deref(&self) -> &[CardRing] {
        &self.all
    }
}

impl DerefMut for Rings {
    fn deref_mut(&mut self) -> &mut [CardRing] {
        &mut self.all
    }
}
