//! A fault injector: `faulty:PORT?drop=1%&seed=7`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::random::Random;
use super::wrapper::{RxWrapper, TxWrapper, Wrapped, Wrapper, rx_around, tx_around};
use super::{
    Address, Description, Device, Info, Opening, PortKind, PortName, PortOption, Receive, Statistics, Transmit, Value,
};
use crate::batch::{Batch, MAX_CHAIN};
use crate::error::Result;
use crate::memory::Pool;

/// A port that drops, damages, duplicates and reorders packets, as bad cables and busy networks do.
///
/// Faults apply independently to each received or sent packet, with the probabilities in the name, such as `1%` or
/// `0.01`:
///
/// - `drop`: the packet is lost
/// - `corrupt`: one bit is inverted
/// - `truncate`: the end is cut off
/// - `duplicate`: the packet is repeated
/// - `reorder`: the next packet overtakes, so at most half of the packets can be overtaken. The packet is released
///   without being overtaken after 10 ms, or when the receiving thread is about to sleep.
///
/// The same `seed` gives the same faults for the same packets of a queue.
pub type Faulty = Wrapped<Faults>;

/// `faulty:PORT`
pub static FAULTY: PortKind = PortKind {
    description: Description {
        options: &[
            probability("drop", "lose packets"),
            probability("corrupt", "invert a bit of packets"),
            probability("truncate", "cut the end of packets off"),
            probability("duplicate", "repeat packets"),
            probability("reorder", "let the next packet overtake, at most 50%"),
            PortOption {
                name: "seed",
                value: Value::Number(0, usize::MAX),
                default: "1",
                help: "the same seed gives the same faults for the same packets of a queue",
            },
        ],
        example: "faulty:sim:0?drop=1%&seed=7",
        summary: "any port, with faults",
        page: "wires.md",
        ..Description::new("faulty", Address::Port)
    },
    open: &open,
};

const fn probability(name: &'static str, help: &'static str) -> PortOption {
    PortOption { name, value: Value::Text("P%"), default: "0", help }
}

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    Ok(Box::new(Faulty::open(&opening, Faults::of(opening.name)?)?))
}

/// Probabilities of faults, and counts of injected faults.
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

/// How long a packet waits to be overtaken.
const OVERTAKEN_WITHIN: Duration = Duration::from_millis(10);

/// Returns the probability of holding a packet back so that `wanted` of all packets are overtaken. At most half can be,
/// since the overtaking packet is not held back itself.
fn of_candidates(wanted: u32) -> u32 {
    let (wanted, all) = (u64::from(wanted), u64::from(u32::MAX));
    if wanted >= all / 2 { u32::MAX } else { (wanted * all / (all - wanted)) as u32 }
}

#[derive(Default)]
struct Counts([AtomicU64; 5]);

// Indices into `Counts`.
const DROPPED: usize = 0;
const CORRUPTED: usize = 1;
const TRUNCATED: usize = 2;
const DUPLICATED: usize = 3;
const REORDERED: usize = 4;

/// Counts of injected faults since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Packets dropped.
    pub dropped: u64,
    /// Packets with an inverted bit.
    pub corrupted: u64,
    /// Packets truncated.
    pub truncated: u64,
    /// Packets repeated.
    pub duplicated: u64,
    /// Packets overtaken by the next.
    pub reordered: u64,
}

impl Faults {
    /// Parses the options of a name.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](crate::ErrorKind::BadOption).
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
            reorder: match rate("reorder")? {
                // Allows for rounding of exactly 50 %.
                wanted if wanted > u32::MAX / 2 + 1 => return Err(name.bad_option("reorder", "it is at most 50 %")),
                wanted => of_candidates(wanted),
            },
        };
        let seed = name.number("seed", 1, 0..=usize::MAX)? as u64;
        Ok(Faults { rates, seed, counts: Arc::default() })
    }

    /// Returns the counts of injected faults.
    pub fn injected(&self) -> Injected {
        let [dropped, corrupted, truncated, duplicated, reordered] =
            std::array::from_fn(|n| self.counts.0[n].load(Ordering::Relaxed));
        Injected { dropped, corrupted, truncated, duplicated, reordered }
    }

    fn injector(&self, queue: u16, direction: u64, pool: &Arc<Pool>) -> Injector {
        // Each queue and direction has a separate random sequence.
        let seed = self.seed ^ u64::from(queue) << 1 << 32 ^ direction << 32;
        let batch = |capacity: usize| {
            let mut batch = Batch::with_capacity(capacity);
            batch.bind_if_unbound(pool);
            batch
        };
        Injector {
            rates: self.rates,
            random: Random::new(seed, 0),
            counts: self.counts.clone(),
            staged: batch(32),
            overtaken: batch(1),
            waits_since: None,
            is_armed: false,
            ready: batch(2 * MAX_CHAIN + 1),
            bytes: Vec::new(),
            pool: pool.clone(),
        }
    }
}

impl Wrapper for Faults {
    fn info(&self, inner: Info) -> Info {
        Info { description: format!("{}, with injected faults", inner.description), ..inner }
    }

    fn rx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Receive>> {
        Ok(rx_around(inner.rx(queue)?, FaultyRx(self.injector(queue, 0, inner.pool()))))
    }

    fn tx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Transmit>> {
        Ok(tx_around(inner.tx(queue)?, FaultyTx(self.injector(queue, 1, inner.pool()))))
    }

    fn statistics(&self, mut inner: Statistics) -> Statistics {
        inner.drops.injected += self.injected().dropped;
        inner
    }
}

/// Injects faults into the packets of one queue.
struct Injector {
    rates: Rates,
    random: Random,
    counts: Arc<Counts>,
    /// Packets that were received from the inner queue but not processed yet, or processed packets to send.
    staged: Batch,
    /// A packet that the next packet will overtake, and since when it waits.
    overtaken: Batch,
    waits_since: Option<Instant>,
    /// The thread is about to sleep.
    is_armed: bool,
    /// Processed packets that leave next: a packet, its duplicate, and a packet that it has overtaken. There is room
    /// for three chains.
    ready: Batch,
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Injector {
    /// Decides randomly whether a fault occurs.
    fn meets(&mut self, rate: u32) -> bool {
        rate > 0 && (self.random.next_u64() as u32) <= rate
    }

    fn count(&self, fault: usize) {
        self.counts.0[fault].fetch_add(1, Ordering::Relaxed);
    }

    /// Moves packets from `from` to `to` with injected faults, while `to` has room.
    fn pass(&mut self, from: &mut Batch, to: &mut Batch) {
        loop {
            while let Some(packet) = self.ready.take() {
                if let Err(packet) = to.push_packet(packet) {
                    return packet.put_back();
                }
            }
            if to.len() >= to.capacity() {
                return;
            }
            let Some(packet) = from.take() else { return };
            if let Err(packet) = self.ready.push_packet(packet) {
                return packet.put_back(); // no buffer for a copy from another region
            }
            self.inject();
        }
    }

    /// Injects faults into the packet in `ready`.
    fn inject(&mut self) {
        let rates = self.rates;
        let len = self.ready.packets().map(|packet| packet.len()).sum::<usize>();
        if self.meets(rates.drop) {
            self.count(DROPPED);
            return self.ready.clear();
        }
        if self.meets(rates.corrupt) {
            let (at, bit) = (self.random.below(len as u64) as usize, self.random.below(8));
            invert(self.ready.slots_mut(), at, 1 << bit);
            self.count(CORRUPTED);
        }
        let short = (len > 1 && self.meets(rates.truncate)).then(|| 1 + self.random.below(len as u64 - 1) as usize);
        let is_duplicated = self.meets(rates.duplicate);
        if short.is_some() || is_duplicated {
            self.copy(short, is_duplicated);
        }
        if self.ready.is_empty() {
            return;
        }
        // A random number is drawn for every packet, so that the timing of packets does not change the other faults of
        // a seed.
        if self.meets(rates.reorder) && self.overtaken.is_empty() {
            self.count(REORDERED);
            self.waits_since = Some(Instant::now());
            move_first(&mut self.ready, &mut self.overtaken);
        } else {
            self.release();
        }
    }

    /// Truncates the packet in `ready` to `short` bytes, duplicates it, or both.
    fn copy(&mut self, short: Option<usize>, is_duplicated: bool) {
        let Injector { ready, bytes, pool, .. } = self;
        let (mut offload, mut time) = (None, None);
        bytes.clear();
        for packet in ready.packets() {
            packet.append_to(bytes);
            (offload, time) = (packet.offload(), packet.timestamp());
        }
        let push = |ready: &mut Batch, bytes: &[u8]| {
            let is_pushed = ready.push_parts(pool, bytes.len(), std::iter::once(bytes), offload);
            time.filter(|_| is_pushed).into_iter().for_each(|time| ready.stamp_last(time));
            is_pushed
        };
        if let Some(short) = short {
            bytes.truncate(short);
            ready.clear();
            // If no buffer is free, the packet is lost.
            let fault = if push(ready, bytes) { TRUNCATED } else { DROPPED };
            self.counts.0[fault].fetch_add(1, Ordering::Relaxed);
        }
        if is_duplicated && !ready.is_empty() && push(ready, bytes) {
            self.counts.0[DUPLICATED].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Releases the held packet if no packet has overtaken it for [`OVERTAKEN_WITHIN`], or if the thread is about to
    /// sleep.
    fn release_late(&mut self) {
        let is_late = |since: Instant| self.is_armed || since.elapsed() >= OVERTAKEN_WITHIN;
        if !self.overtaken.is_empty() && self.waits_since.is_none_or(is_late) {
            self.release();
        }
    }

    /// Moves the held packet to `ready`.
    fn release(&mut self) {
        move_first(&mut self.overtaken, &mut self.ready);
    }

    fn buffers(&self) -> usize {
        [&self.staged, &self.overtaken, &self.ready].iter().map(|batch| batch.len() + batch.cached()).sum()
    }
}

/// Moves the first packet, if there is one. The caller ensures that `to` has room.
fn move_first(from: &mut Batch, to: &mut Batch) {
    if let Some(packet) = from.take()
        && let Err(packet) = to.push_packet(packet)
    {
        packet.put_back();
    }
}

/// Inverts `bits` of the byte at offset `at`.
fn invert<'a>(segments: impl Iterator<Item = &'a mut [u8]>, mut at: usize, bits: u8) {
    for segment in segments {
        match segment.get_mut(at) {
            Some(byte) => return *byte ^= bits,
            None => at -= segment.len(),
        }
    }
}

/// Injects faults into received packets.
struct FaultyRx(Injector);

impl RxWrapper for FaultyRx {
    fn recv(&mut self, inner: &mut dyn Receive, batch: &mut Batch) -> usize {
        let FaultyRx(injector) = self;
        let before = batch.len();
        let mut staged = std::mem::take(&mut injector.staged);
        if staged.is_empty() && inner.recv(&mut staged) == 0 {
            injector.release_late();
        }
        injector.is_armed = false;
        injector.pass(&mut staged, batch);
        injector.staged = staged;
        batch.len() - before
    }

    fn arm(&mut self) {
        self.0.is_armed = true;
    }

    fn buffers(&self) -> usize {
        self.0.buffers()
    }
}

/// Injects faults into packets to be sent.
struct FaultyTx(Injector);

impl TxWrapper for FaultyTx {
    fn send(&mut self, inner: &mut dyn Transmit, batch: &mut Batch) -> usize {
        let FaultyTx(injector) = self;
        let before = batch.len();
        if batch.is_empty() {
            injector.release_late();
        }
        let mut staged = std::mem::take(&mut injector.staged);
        loop {
            inner.send(&mut staged);
            if !staged.is_empty() {
                break;
            }
            injector.pass(batch, &mut staged);
            if staged.is_empty() {
                break;
            }
        }
        injector.staged = staged;
        before - batch.len()
    }

    fn buffers(&self) -> usize {
        self.0.buffers()
    }

    fn unsent(&self) -> usize {
        self.0.staged.len() + self.0.overtaken.len() + self.0.ready.len()
    }
}
