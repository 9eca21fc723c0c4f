//! The clock of a replay: time of the kernel's clock in nanoseconds, computed from the time stamp counter.

use std::time::{Duration, Instant};

use crate::profile::{cycles, cycles_in};

/// Reads both clocks at the same moment.
#[derive(Clone, Copy)]
pub struct Clocks {
    origin: Instant,
}

impl Clocks {
    pub fn new() -> Clocks {
        Clocks { origin: Instant::now() }
    }

    /// Reads the counter and the nanoseconds since `new`. The fastest of several readings is used, as an interrupt may
    /// come between the two clocks.
    pub fn read(&self) -> Anchor {
        let one = || {
            let before = cycles();
            let nanoseconds = self.origin.elapsed().as_nanos() as u64;
            let took = cycles() - before;
            (took, Anchor { cycles: before + took / 2, nanoseconds })
        };
        (0..3).map(|_| one()).min_by_key(|(took, _)| *took).map_or_else(|| one().1, |(_, anchor)| anchor)
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    pub cycles: u64,
    pub nanoseconds: u64,
}

/// Translates between the clocks. The counter's calibration is not exact: an error of one part per million is 60 µs
/// after a minute. So each translation starts from the last anchor, which is a reading of the kernel's clock, and
/// errors do not add up.
pub struct Timeline {
    first: Anchor,
    last: Anchor,
    /// Cycles per nanosecond.
    frequency: f64,
}

impl Timeline {
    /// Starts at an anchor, with a frequency in cycles per nanosecond that is good enough until the next one.
    pub fn new(first: Anchor, frequency: f64) -> Timeline {
        Timeline { first, last: first, frequency }
    }

    /// Returns the frequency that was measured when the program began.
    pub fn calibrated() -> f64 {
        const LONG: Duration = Duration::from_secs(1000);
        cycles_in(LONG) as f64 / LONG.as_nanos() as f64
    }

    /// Sets a new anchor.
    pub fn anchor(&mut self, now: Anchor) {
        self.last = now;
        let nanoseconds = now.nanoseconds - self.first.nanoseconds;
        // Each reading has an error of some 20 ns.
        if nanoseconds >= LEAST_SPAN {
            self.frequency = (now.cycles - self.first.cycles) as f64 / nanoseconds as f64;
        }
    }

    /// Returns the age of the last anchor at a time, in nanoseconds.
    pub fn age(&self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_sub(self.last.nanoseconds)
    }

    /// Returns the counter at a time.
    pub fn cycles_at(&self, nanoseconds: u64) -> u64 {
        let behind = nanoseconds as i64 - self.last.nanoseconds as i64;
        self.last.cycles.saturating_add_signed((behind as f64 * self.frequency) as i64)
    }

    /// Returns the time of a reading of the counter.
    pub fn nanoseconds_at(&self, cycles: u64) -> u64 {
        let behind = cycles as i64 - self.last.cycles as i64;
        self.last.nanoseconds.saturating_add_signed((behind as f64 / self.frequency) as i64)
    }
}

/// The shortest time, in nanoseconds, over which the frequency is measured more accurately than by the calibration.
const LEAST_SPAN: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten million frames with irregular times, on a counter whose frequency is not round and was calibrated wrongly:
    /// each frame, up to the last, is due within a few nanoseconds of its time.
    #[test]
    fn errors_of_the_calibration_do_not_add_up() {
        const FREQUENCY: f64 = 2.893_421_337_77;
        let counter = |nanoseconds: u64| 77_777_777_777 + (nanoseconds as f64 * FREQUENCY) as u64;
        let time = |cycles: u64| (cycles - 77_777_777_777) as f64 / FREQUENCY;
        let anchor = |nanoseconds: u64, wrong: i64| Anchor {
            cycles: counter(nanoseconds),
            nanoseconds: nanoseconds.saturating_add_signed(wrong),
        };
        let mut timeline = Timeline::new(anchor(0, 0), FREQUENCY * (1.0 + 3e-6));
        let (mut due, mut next_anchor, mut worst, mut last) = (0, 0, 0f64, 0.0);
        for frame in 0..10_000_000u64 {
            due += 3_333 + frame * 7919 % 1009;
            while next_anchor < due {
                // A reading with an error of up to 15 ns.
                timeline.anchor(anchor(next_anchor, (next_anchor / 1000 % 31) as i64 - 15));
                next_anchor += 10_000_000 + frame % 997;
            }
            last = time(timeline.cycles_at(due)) - due as f64;
            worst = worst.max(last.abs());
            let back = timeline.nanoseconds_at(timeline.cycles_at(due));
            assert!(back.abs_diff(due) <= 1, "{back} {due}");
        }
        assert!(due > 38_000_000_000, "{due}");
        // Until the frequency is measured, an anchor is at most 10 ms old: 3 ppm of that are 30 ns.
        assert!(worst < 50.0, "{worst} ns");
        assert!(last.abs() < 20.0, "{last} ns at the end");
    }

    /// Times before the last anchor, as of a late frame, are translated as accurately.
    #[test]
    fn times_before_the_anchor_are_translated() {
        let mut timeline = Timeline::new(Anchor { cycles: 1_000, nanoseconds: 0 }, 3.0);
        timeline.anchor(Anchor { cycles: 31_000, nanoseconds: 10_000 });
        assert_eq!((timeline.cycles_at(9_000), timeline.nanoseconds_at(28_000)), (28_000, 9_000));
        assert_eq!((timeline.age(9_000), timeline.age(12_000)), (0, 2_000));
    }

    #[test]
    fn both_clocks_are_read_at_one_moment() {
        let clocks = Clocks::new();
        let (first, second) = (clocks.read(), clocks.read());
        assert!(second.cycles > first.cycles && second.nanoseconds >= first.nanoseconds);
        assert!(Timeline::calibrated() > 0.0);
    }
}
