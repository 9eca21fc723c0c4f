//! The timing errors of a replay, and the pauses of its processor.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::quantiles::microseconds;

/// The timing errors of the sent frames: of their times, and of the gaps between them.
pub struct Errors {
    times: Histogram<u64>,
    gaps: Histogram<u64>,
    /// Errors of the gaps between frames that no pause delayed.
    undisturbed: Histogram<u64>,
    /// The errors of the first and the last frame, in nanoseconds.
    ends: Option<(i64, i64)>,
    /// The number of frames that a pause delayed, and whether the last frame is one of them.
    paused: u64,
    is_paused: bool,
}

impl Errors {
    pub fn new() -> Errors {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        let [times, gaps, undisturbed] = [histogram(), histogram(), histogram()];
        Errors { times, gaps, undisturbed, ends: None, paused: 0, is_paused: false }
    }

    /// Adds a frame that was sent `error` nanoseconds after it was due. `is_paused`: a pause delayed it.
    pub fn record(&mut self, error: i64, is_paused: bool) {
        let add = |histogram: &mut Histogram<u64>, value: i64| {
            histogram.record(value.unsigned_abs()).expect("it grows with what comes");
        };
        add(&mut self.times, error);
        let was_paused = std::mem::replace(&mut self.is_paused, is_paused);
        self.paused += u64::from(is_paused);
        if let Some((_, last)) = self.ends {
            add(&mut self.gaps, error - last);
            if !is_paused && !was_paused {
                add(&mut self.undisturbed, error - last);
            }
        }
        self.ends = Some((self.ends.map_or(error, |(first, _)| first), error));
    }

    /// Adds the frames of another port.
    pub fn add(&mut self, other: &Errors) {
        let both = [&mut self.times, &mut self.gaps, &mut self.undisturbed];
        for (sum, other) in both.into_iter().zip([&other.times, &other.gaps, &other.undisturbed]) {
            sum.add(other).expect("it grows with what comes");
        }
        // The drift of the port whose last frame had the larger error.
        let ends = [self.ends, other.ends].into_iter().flatten();
        self.ends = ends.max_by_key(|(_, last)| last.unsigned_abs());
        self.paused += other.paused;
    }

    /// Returns the last frame's error.
    pub fn last(&self) -> i64 {
        self.ends.map_or(0, |(_, last)| last)
    }

    /// Returns the last frame's error minus the first one's, in nanoseconds.
    pub fn drift(&self) -> Option<i64> {
        self.ends.map(|(first, last)| last - first)
    }

    /// Returns how many frames a pause delayed.
    pub fn paused(&self) -> u64 {
        self.paused
    }

    pub fn json(&self) -> Value {
        let part = |histogram| json!({"count": Histogram::len(histogram), "microseconds": microseconds(histogram)});
        json!({
            "times": part(&self.times), "gaps": part(&self.gaps), "undisturbed_gaps": part(&self.undisturbed),
            "drift_microseconds": self.drift().map(|drift| drift as f64 / 1000.0),
        })
    }
}

/// The times at which a spinning thread was not running: an interrupt, another thread, or a virtual processor that its
/// host did not run.
#[derive(Default)]
pub struct Pauses {
    count: u64,
    sum: u64,
    longest: u64,
}

/// The shortest pause. Reading the counter takes less.
pub const PAUSE: Duration = Duration::from_micros(1);

impl Pauses {
    pub fn add(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.sum += nanoseconds;
        self.longest = self.longest.max(nanoseconds);
    }

    /// Adds the pauses of another thread.
    pub fn add_all(&mut self, other: &Pauses) {
        self.count += other.count;
        self.sum += other.sum;
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the total seconds of all pauses, and those of the longest one.
    pub fn seconds(&self) -> [f64; 2] {
        [self.sum, self.longest].map(|nanoseconds| nanoseconds as f64 / 1e9)
    }

    /// Returns the pauses for the summary. `late` is the number of frames that they delayed.
    pub fn json(&self, late: u64) -> Value {
        let [sum, longest] = [self.sum, self.longest].map(|nanoseconds| nanoseconds as f64 / 1000.0);
        json!({ "count": self.count, "microseconds": sum, "longest_microseconds": longest, "late": late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame that a pause delayed makes two gaps wrong.
    #[test]
    fn gaps_beside_a_pause_are_told_apart() {
        let mut errors = Errors::new();
        for (error, is_paused) in [(50, false), (60, false), (9_000, true), (70, false), (71, false)] {
            errors.record(error, is_paused);
        }
        let found = errors.json();
        assert_eq!((&found["gaps"]["count"], &found["undisturbed_gaps"]["count"]), (&json!(4), &json!(2)));
        assert_eq!((&found["undisturbed_gaps"]["microseconds"]["max"], errors.paused()), (&json!(0.01), 1));
        assert_eq!(found["times"]["count"], 5);
    }

    #[test]
    fn each_frame_is_in_the_histogram() {
        let mut errors = Errors::new();
        assert!(errors.json()["times"]["microseconds"]["max"].is_null() && errors.drift().is_none());
        for error in [100, 40, -60, 2_000] {
            errors.record(error, false);
        }
        let found = errors.json();
        assert_eq!((&found["times"]["count"], &found["gaps"]["count"]), (&json!(4), &json!(3)));
        assert_eq!(found["times"]["microseconds"]["max"], 2.0);
        assert_eq!(found["gaps"]["microseconds"]["min"], 0.06);
        assert_eq!(found["drift_microseconds"], 1.9);
        assert_eq!(errors.last(), 2_000);
    }
}
