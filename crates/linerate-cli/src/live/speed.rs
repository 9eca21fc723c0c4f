//! The variable rate of senders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Packets per second of all senders of a run.
pub struct Speed {
    /// The bits of an `f64`; full speed is infinity.
    bits: AtomicU64,
    /// The number of pauses that have ended. Senders do not catch up on frames that were due during a pause.
    pauses: AtomicU32,
}

impl Speed {
    /// Creates a rate; `None`: full speed.
    pub fn new(packets_per_second: Option<f64>) -> Speed {
        Speed { bits: AtomicU64::new(packets_per_second.unwrap_or(f64::INFINITY).to_bits()), pauses: AtomicU32::new(0) }
    }

    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.bits.load(Ordering::Relaxed))).filter(|rate| rate.is_finite())
    }

    /// Records the end of a pause.
    pub fn end_pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    pub fn set(&self, packets_per_second: Option<f64>) {
        self.bits.store(packets_per_second.unwrap_or(f64::INFINITY).to_bits(), Ordering::Relaxed);
    }
}

/// A sender that follows a speed.
pub struct Follower {
    speed: Arc<Speed>,
    /// The values that the sender saw last.
    bits: u64,
    pauses: u32,
}

impl Follower {
    pub fn new(speed: Arc<Speed>) -> Follower {
        let (bits, pauses) = (speed.bits.load(Ordering::Relaxed), speed.pauses.load(Ordering::Relaxed));
        Follower { speed, bits, pauses }
    }

    /// Returns the speed if it has changed since the last call: packets per second, or `None` for full speed.
    #[inline]
    pub fn changed(&mut self) -> Option<Option<f64>> {
        let bits = self.speed.bits.load(Ordering::Relaxed);
        (std::mem::replace(&mut self.bits, bits) != bits).then(|| self.speed.get())
    }

    /// Returns whether a pause has ended since the last call.
    #[inline]
    pub fn pause_ended(&mut self) -> bool {
        let pauses = self.speed.pauses.load(Ordering::Relaxed);
        std::mem::replace(&mut self.pauses, pauses) != pauses
    }
}
