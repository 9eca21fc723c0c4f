//! A fault injector: `faulty:PORT?drop=1%&seed=7`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wrapper::{Wrapped, Wrapper};
use super::{PortName, Receive, Statistics, Transmit};
use crate::batch::Batch;
use crate::error::Result;
use crate::memory::Pool;

/// A port that loses, damages, repeats and reorders packets, as bad cables and busy networks do.
///
/// Each packet that is received or sent meets each fault by itself, with the probability in the name: `drop`, `corrupt` (one bit
/// is inverted), `truncate` (the end is cut off), `duplicate`, and `reorder` (the next packet overtakes). A probability is
/// `1%` or `0.01`. The same `seed` gives the same faults for the same packets of a queue.
pub type Faulty = Wrapped<Faults>;

/// Faults by probability, and their counts.
pub struct Faults {
    rates: Rates,
    seed: u64,
    counts: Arc<Counts>,
}

/// Probabilities, in units of 2^-32.
#[derive(Clone, Copy, Default)]
struct Rates {
    drop: u32,
    corrupt: u32,
    truncate: u32,
    duplicate: u32,
    reorder: u32,
}

#[derive(Default)]
struct Counts([AtomicU64; 5]);

/// Counts of injected faults since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Packets dropped.
    pub dropped: u64,
    /// Packets with an inverted bit.
    pub corrupted: u64,
    /// Packets cut short.
    pub truncated: u64,
    /// Packets repeated.
    pub duplicated: u64,
    /// Packets overtaken by the next.
    pub reordered: u64,
}

impl Faults {
    /// Reads the options of a name.
    ///
    /// # Errors
    /// [`Error::BadOption`](crate::Error::BadOption).
    pub fn of(name: &PortName) -> Result<Faults> {
        let rate = |option: &str| match name.option(option) {
            None => Ok(0),
            Some(text) => {
                let (digits, unit) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 0.01));
                let rate = digits.parse::<f64>().map_or(f64::NAN, |number| number * unit);
                match (0.0..=1.0).contains(&rate) {
                    true => Ok((rate * f64::from(u32::MAX)) as u32),
                    false => Err(name.bad_option(option, "it must be a probability such as 1% or 0.01")),
                }
            }
        };
        let rates = Rates {
            drop: rate("drop")?,
            corrupt: rate("corrupt")?,
            truncate: rate("truncate")?,
            duplicate: rate("duplicate")?,
            reorder: rate("reorder")?,
        };
        let seed = name.number("seed", 1, 0..=usize::MAX)? as u64;
        Ok(Faults { rates, seed, counts: Arc::default() })
    }

    /// Returns the counts of faults.
    pub fn injected(&self) -> Injected {
        let [dropped, corrupted, truncated, duplicated, reordered] =
            std::array::from_fn(|n| self.counts.0[n].load(Ordering::Relaxed));
        Injected { dropped, corrupted, truncated, duplicated, reordered }
    }

    fn injector(&self, queue: u16, direction: u64, pool: &Arc<Pool>) -> Injector {
        // Each queue and direction has a sequence of its own.
        let state = self.seed ^ u64::from(queue) << 1 << 32 ^ direction << 32;
        let mut staged = Batch::new();
        staged.is_of(pool);
        Injector {
            rates: self.rates,
            state,
            counts: self.counts.clone(),
            staged,
            overtaken: Batch::with_capacity(1),
            bytes: Vec::new(),
            pool: pool.clone(),
        }
    }
}

impl Wrapper for Faults {
    const OPTIONS: &'static [&'static str] = &["drop", "corrupt", "truncate", "duplicate", "reorder", "seed"];

    fn description(&self, inner: &str) -> String {
        format!("{inner}, with injected faults")
    }

    fn rx(&mut self, inner: Box<dyn Receive>, queue: u16, pool: &Arc<Pool>) -> Box<dyn Receive> {
        Box::new(FaultyRx { inner, injector: self.injector(queue, 0, pool) })
    }

    fn tx(&mut self, inner: Box<dyn Transmit>, queue: u16, pool: &Arc<Pool>) -> Box<dyn Transmit> {
        Box::new(FaultyTx { inner, injector: self.injector(queue, 1, pool) })
    }

    fn statistics(&self, mut inner: Statistics) -> Statistics {
        inner.drops.injected += self.injected().dropped;
        inner
    }
}

/// The faults of one queue.
struct Injector {
    rates: Rates,
    state: u64,
    counts: Arc<Counts>,
    /// Packets on their way: received and not yet given out, or to be sent.
    staged: Batch,
    /// A packet that the next one overtakes.
    overtaken: Batch,
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Injector {
    /// Returns the next random number (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.random() % limit.max(1) as u64) as usize
    }

    /// Decides on a fault, and counts it.
    fn meets(&mut self, rate: u32, count: usize) -> bool {
        let is_met = rate > 0 && (self.random() as u32) <= rate;
        self.counts.0[count].fetch_add(is_met.into(), Ordering::Relaxed);
        is_met
    }

    /// Moves packets from `from` to `to`, with their faults, while `to` has room.
    fn pass(&mut self, from: &mut Batch, to: &mut Batch) {
        // Two packets may come of one, and another that it overtakes.
        while to.len() + 3 <= to.capacity() || to.is_empty() {
            let Some(mut taken) = from.take() else { break };
            let rates = self.rates;
            if self.meets(rates.drop, 0) {
                continue;
            }
            let len = taken.packet().len();
            if self.meets(rates.corrupt, 1) {
                let (at, bit) = (self.below(len), self.below(8));
                invert(taken.packet().segments_mut(), at, 1 << bit);
            }
            if len > 1 && self.meets(rates.truncate, 2) {
                let short = 1 + self.below(len - 1);
                let _ = taken.packet().truncate(short);
            }
            let is_duplicated = self.meets(rates.duplicate, 3);
            if is_duplicated {
                self.bytes.clear();
                taken.packet().append_to(&mut self.bytes);
            }
            if self.overtaken.is_empty() && self.meets(rates.reorder, 4) {
                if let Err(packet) = self.overtaken.push_packet(taken) {
                    packet.put_back();
                    break;
                }
            } else {
                if let Err(packet) = to.push_packet(taken) {
                    packet.put_back();
                    break;
                }
                self.release(to);
            }
            if is_duplicated {
                to.push(&self.pool, &self.bytes);
            }
        }
    }

    /// Moves the overtaken packet on.
    fn release(&mut self, to: &mut Batch) {
        if let Some(taken) = self.overtaken.take()
            && let Err(packet) = to.push_packet(taken)
        {
            packet.put_back();
        }
    }

    fn buffers(&self) -> usize {
        [&self.staged, &self.overtaken].iter().map(|batch| batch.len() + batch.cached()).sum()
    }
}

/// Inverts bits of the byte at `at`.
fn invert<'a>(segments: impl Iterator<Item = &'a mut [u8]>, mut at: usize, bits: u8) {
    for segment in segments {
        match segment.get_mut(at) {
            Some(byte) => return *byte ^= bits,
            None => at -= segment.len(),
        }
    }
}

struct FaultyRx {
    inner: Box<dyn Receive>,
    injector: Injector,
}

impl Receive for FaultyRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let mut staged = std::mem::take(&mut self.injector.staged);
        if staged.is_empty() {
            self.inner.recv(&mut staged);
        }
        match staged.is_empty() {
            // Nothing follows that could overtake it.
            true => self.injector.release(batch),
            false => self.injector.pass(&mut staged, batch),
        }
        self.injector.staged = staged;
        batch.len() - before
    }

    fn buffers(&self) -> usize {
        self.inner.buffers() + self.injector.buffers()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}

struct FaultyTx {
    inner: Box<dyn Transmit>,
    injector: Injector,
}

impl Transmit for FaultyTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let mut staged = std::mem::take(&mut self.injector.staged);
        if batch.is_empty() {
            self.injector.release(&mut staged);
        }
        loop {
            self.inner.send(&mut staged);
            if !staged.is_empty() || batch.is_empty() {
                break;
            }
            self.injector.pass(batch, &mut staged);
        }
        self.injector.staged = staged;
        before - batch.len()
    }

    fn buffers(&self) -> usize {
        self.inner.buffers() + self.injector.buffers()
    }

    fn unsent(&self) -> usize {
        self.inner.unsent() + self.injector.staged.len() + self.injector.overtaken.len()
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}
