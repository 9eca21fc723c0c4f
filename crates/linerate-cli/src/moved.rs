//! The packets that a run's threads have moved, and when.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::profile::seconds_between;

/// One thread's counters, in a separate cache line. Only the thread itself writes them.
#[repr(align(128))]
#[derive(Default)]
pub struct ThreadCounters {
    /// Packets moved.
    packets: AtomicU64,
    /// TSC cycles of the turns that moved packets.
    cycles: AtomicU64,
    /// The number of packets in the first of these turns, and its end.
    first: AtomicU64,
    first_end: AtomicU64,
    last_end: AtomicU64,
}

impl ThreadCounters {
    /// Adds a turn that moved packets.
    pub fn add(&self, packets: usize, begin: u64, end: u64) {
        let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        let before = self.packets.load(Ordering::Relaxed);
        if before == 0 {
            set(&self.first, packets as u64);
            set(&self.first_end, end);
        }
        set(&self.last_end, end);
        set(&self.cycles, self.cycles.load(Ordering::Relaxed) + end.saturating_sub(begin));
        set(&self.packets, before + packets as u64);
    }

    pub fn moved(&self) -> MovedPackets {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MovedPackets {
            packets: get(&self.packets),
            cycles: get(&self.cycles),
            first: get(&self.first),
            first_end: get(&self.first_end),
            last_end: get(&self.last_end),
        }
    }
}

/// The packets that threads have moved, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MovedPackets {
    pub packets: u64,
    /// TSC cycles of the turns that moved packets.
    pub cycles: u64,
    /// Packets of the threads' first batches. The time for the rate begins after them, as N batches have N-1 intervals
    /// between them.
    pub first: u64,
    /// The end of the first batch and of the last one, in cycles.
    first_end: u64,
    last_end: u64,
}

impl MovedPackets {
    /// Returns the sum of both.
    pub fn and(self, other: MovedPackets) -> MovedPackets {
        match (self.packets, other.packets) {
            (_, 0) => self,
            (0, _) => other,
            _ => MovedPackets {
                packets: self.packets + other.packets,
                cycles: self.cycles + other.cycles,
                first: self.first + other.first,
                first_end: self.first_end.min(other.first_end),
                last_end: self.last_end.max(other.last_end),
            },
        }
    }

    /// Returns the same with at most this many packets, at the same cycles per packet.
    pub fn at_most(self, packets: u64) -> MovedPackets {
        match packets < self.packets {
            true => {
                let cycles = (self.cycles as f64 / self.packets as f64 * packets as f64) as u64;
                MovedPackets { packets, cycles, first: self.first.min(packets), ..self }
            }
            false => self,
        }
    }

    /// Returns the number of packets after the first batches.
    pub fn after_first(&self) -> u64 {
        self.packets - self.first
    }

    /// Returns the seconds in which those moved: from the end of the first batch to the end of the last one.
    pub fn seconds(&self) -> f64 {
        seconds_between(self.first_end, self.last_end)
    }

    /// Returns packets per second over [`seconds`](MovedPackets::seconds); `None` for a single batch, which has no
    /// duration.
    pub fn per_second(&self) -> Option<f64> {
        let (packets, seconds) = (self.after_first(), self.seconds());
        (packets > 0 && seconds > 0.0).then(|| packets as f64 / seconds)
    }

    /// Returns the seconds that all threads together spent in turns that moved packets.
    pub fn busy_seconds(&self) -> f64 {
        seconds_between(0, self.cycles)
    }

    /// Returns TSC cycles per packet; `None` without packets.
    pub fn cycles_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.cycles as f64 / self.packets as f64)
    }

    /// Returns the same for the time since `before`.
    pub fn cycles_since(&self, before: &MovedPackets) -> Option<f64> {
        let packets = self.packets - before.packets;
        (packets > 0).then(|| (self.cycles - before.cycles) as f64 / packets as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(all: &[(usize, u64, u64)]) -> MovedPackets {
        let work = ThreadCounters::default();
        all.iter().for_each(|&(packets, begin, end)| work.add(packets, begin, end));
        work.moved()
    }

    /// A rate counts the packets after the first batches, over the time from the end of the first batch to the end of
    /// the last.
    #[test]
    fn rates_are_packets_over_the_time_between_batches() {
        let one = turns(&[(32, 1_000_000, 2_000_000)]);
        let overlapping = turns(&[(32, 1_500_000, 2_000_001)]);
        let two = turns(&[(32, 1_000_000, 2_000_000), (8, 9_000_000, 9_000_100)]);
        let later = turns(&[(1, 20_000_000, 21_000_000), (1, 22_000_000, 22_000_500)]);
        for (moved, packets, first, first_end, last_end) in [
            (two, 40, 32, 2_000_000, 9_000_100),
            (two.and(later).and(MovedPackets::default()), 42, 33, 2_000_000, 22_000_500),
            (one.and(later), 34, 33, 2_000_000, 22_000_500),
            (MovedPackets::default().and(two), 40, 32, 2_000_000, 9_000_100),
            (two.at_most(35), 35, 32, 2_000_000, 9_000_100),
        ] {
            let seconds = seconds_between(first_end, last_end);
            assert_eq!((moved.packets, moved.first, moved.seconds()), (packets, first, seconds), "{moved:?}");
            assert_eq!(moved.per_second(), Some((packets - first) as f64 / seconds), "{moved:?}");
        }
        for moved in [MovedPackets::default(), one, one.and(overlapping), two.at_most(20)] {
            assert_eq!(moved.per_second(), None, "a batch has no time: {moved:?}");
        }
        assert_eq!(two.cycles, 1_000_100, "the time between the turns is not spent");
    }

    /// The rate is also right for few packets, and for full batches back to back.
    #[test]
    fn rates_of_few_packets_are_not_too_high() {
        // One packet every million cycles, in a turn of 100 cycles; and batches of 32, each of which takes a million
        // cycles.
        let paced =
            |count: u64| turns(&(0..count).map(|n| (1, n * 1_000_000, n * 1_000_000 + 100)).collect::<Vec<_>>());
        let full =
            |count: u64| turns(&(0..count).map(|n| (32, n * 1_000_000, (n + 1) * 1_000_000)).collect::<Vec<_>>());
        let million = seconds_between(0, 1_000_000);
        for count in [2, 3, 10, 1000] {
            // Two threads have the sum of their rates.
            for (moved, rate) in [(paced(count), 1.0), (full(count), 32.0), (paced(count).and(paced(count)), 2.0)] {
                let found = moved.per_second().unwrap() * million;
                assert!((found / rate - 1.0).abs() < 1e-3, "{count}: {found} {rate}");
            }
        }
    }
}
