//! The errors of a replay's times, and the pauses of its processor.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::quantiles::microseconds;

/// The errors of the frames sent: of their times, and of the gaps between them.
pub struct Errors {
    times: Histogram<u64>,
    gaps: Histogram<u64>,
    /// Of the gaps between frames that no pause has made late.
    undisturbed: Histogram<u64>,
    /// The errors of the first frame and the last one, in nanoseconds.
    ends: Option<(i64, i64)>,
    /// Frames that a pause has made late, and whether the last one is of them.
    paused: u64,
    is_paused: bool,
}

impl Errors {
    pub fn new() -> Errors {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        let [times, gaps, undisturbed] = [histogram(), histogram(), histogram()];
        Errors { times, gaps, undisturbed, ends: None, paused: 0, is_paused: false }
    }

    /// Adds a frame that was sent this many nanoseconds after it was due; `is_paused`: a pause has made it late.
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

    /// Returns the last frame's error.
    pub fn last(&self) -> i64 {
        self.ends.map_or(0, |(_, last)| last)
    }

    /// Returns the last frame's error minus the first one's, in nanoseconds.
    pub fn drift(&self) -> Option<i64> {
        self.ends.map(|(first, last)| last - first)
    }

    /// Returns how many frames a pause has made late.
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

/// The times in which a thread that reads the counter all the time was not running: an interrupt, another thread, or a virtual
/// processor that its host gave to others.
#[derive(Default)]
pub struct Pauses {
    count: u64,
    sum: u64,
    longest: u64,
}

/// No reading of the counter takes as long.
pub const PAUSE: Duration = Duration::from_micros(1);

impl Pauses {
    pub fn add(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.sum += nanoseconds;
        self.longest = self.longest.max(nanoseconds);
    }

    /// Returns the seconds of all pauses, and of the longest one.
    pub fn seconds(&self) -> [f64; 2] {
        [self.sum, self.longest].map(|nanoseconds| nanoseconds as f64 / 1e9)
    }

    /// `late`: the frames that they have made late.
    pub fn json(&self, late: u64) -> Value {
        let [sum, longest] = [self.sum, self.longest].map(|nanoseconds| nanoseconds as f64 / 1000.0);
        json!({ "count": self.count, "microseconds": sum, "longest_microseconds": longest, "late": late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame that a pause has made late has two wrong gaps.
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
