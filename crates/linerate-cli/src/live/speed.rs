//! The rate of senders, which may change while they send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Packets per second of all senders of a run.
pub struct Speed {
    /// Of a number; full speed is infinite.
    bits: AtomicU64,
}

impl Speed {
    /// `None`: full speed.
    pub fn new(packets_per_second: Option<f64>) -> Speed {
        Speed { bits: AtomicU64::new(packets_per_second.unwrap_or(f64::INFINITY).to_bits()) }
    }

    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.bits.load(Ordering::Relaxed))).filter(|rate| rate.is_finite())
    }

    pub fn set(&self, packets_per_second: Option<f64>) {
        self.bits.store(packets_per_second.unwrap_or(f64::INFINITY).to_bits(), Ordering::Relaxed);
    }
}

/// A sender that follows a speed.
pub struct Follower {
    speed: Arc<Speed>,
    /// As it was when the sender looked.
    bits: u64,
}

impl Follower {
    pub fn new(speed: Arc<Speed>) -> Follower {
        let bits = speed.bits.load(Ordering::Relaxed);
        Follower { speed, bits }
    }

    /// Returns the speed, if it is another one than when this was last called: packets per second, or `None` for full speed.
    #[inline]
    pub fn changed(&mut self) -> Option<Option<f64>> {
        let bits = self.speed.bits.load(Ordering::Relaxed);
        (std::mem::replace(&mut self.bits, bits) != bits).then(|| self.speed.get())
    }
}
