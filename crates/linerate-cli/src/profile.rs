//! The cycles of each part of a forwarder's path while it runs, as in the ixy paper's table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};

static CLOCK: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

/// Reads the time stamp counter, or the machine's equivalent.
pub fn cycles() -> u64 {
    CLOCK.raw()
}

/// Returns the seconds between two readings of [`cycles`].
pub fn seconds_between(from: u64, to: u64) -> f64 {
    CLOCK.delta_as_nanos(from, to.max(from)) as f64 / 1e9
}

/// Returns the cycles in this time.
pub fn cycles_in(time: Duration) -> u64 {
    // The clock converts only from cycles to nanoseconds.
    const MANY: u64 = 1 << 40;
    (time.as_nanos() as f64 * MANY as f64 / CLOCK.delta_as_nanos(0, MANY) as f64) as u64
}

/// One in `EVERY` turns is timed, so that the time stamps cost little compared with the turns, even with batches of
/// one. It is prime: a power of two would always hit the same ring positions.
pub const EVERY: u32 = 127;

/// Cycles and packets of the timed turns of all threads.
#[derive(Default)]
pub struct Profile {
    packets: AtomicU64,
    receive: AtomicU64,
    touch: AtomicU64,
    send: AtomicU64,
}

/// Cycles per packet, by part of the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts {
    pub receive: f64,
    pub touch: f64,
    pub send: f64,
}

impl Profile {
    /// Returns the averages so far.
    pub fn parts(&self) -> Parts {
        let packets = self.packets.load(Ordering::Relaxed).max(1) as f64;
        let of = |part: &AtomicU64| part.load(Ordering::Relaxed) as f64 / packets;
        Parts { receive: of(&self.receive), touch: of(&self.touch), send: of(&self.send) }
    }
}

impl Parts {
    /// Returns the sum of all parts.
    pub fn sum(&self) -> f64 {
        self.receive + self.touch + self.send
    }

    pub fn json(&self) -> Value {
        let round = |value: f64| (value * 10.0).round() / 10.0;
        json!({"receive": round(self.receive), "touch": round(self.touch), "send": round(self.send)})
    }
}

/// One thread's stamps.
pub struct Stamps {
    profile: Arc<Profile>,
    turn: u32,
    /// The cost of a stamp, which is subtracted.
    cost: u64,
}

impl Stamps {
    pub fn new(profile: Arc<Profile>) -> Stamps {
        let cost = (0..1000).map(|_| (cycles(), cycles())).map(|(first, second)| second - first).min().unwrap_or(0);
        Stamps { profile, turn: 0, cost }
    }

    /// Returns whether this turn is to be timed.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.turn.is_multiple_of(EVERY)
    }

    /// Records a turn that moved `packets`, and the times at which its parts ended.
    pub fn note(&self, packets: usize, [begin, received, touched, sent]: [u64; 4]) {
        if packets > 0 {
            let add = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
            let part = |from: u64, to: u64| (to - from).saturating_sub(self.cost);
            add(&self.profile.packets, packets as u64);
            add(&self.profile.receive, part(begin, received));
            add(&self.profile.touch, part(received, touched));
            add(&self.profile.send, part(touched, sent));
        }
    }
}
