//! The errors of a replay's times.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::quantiles::microseconds;

/// The errors of the frames sent: of their times, and of the gaps between them.
pub struct Errors {
    times: Histogram<u64>,
    gaps: Histogram<u64>,
    /// The errors of the first frame and the last one, in nanoseconds.
    ends: Option<(i64, i64)>,
}

impl Errors {
    pub fn new() -> Errors {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        Errors { times: histogram(), gaps: histogram(), ends: None }
    }

    /// Adds a frame that was sent this many nanoseconds after it was due.
    pub fn record(&mut self, error: i64) {
        let add = |histogram: &mut Histogram<u64>, value: i64| {
            histogram.record(value.unsigned_abs()).expect("it grows with what comes");
        };
        add(&mut self.times, error);
        if let Some((_, last)) = self.ends {
            add(&mut self.gaps, error - last);
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

    pub fn json(&self) -> Value {
        let part = |histogram| json!({"count": Histogram::len(histogram), "microseconds": microseconds(histogram)});
        json!({
            "times": part(&self.times), "gaps": part(&self.gaps),
            "drift_microseconds": self.drift().map(|drift| drift as f64 / 1000.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_in_the_histogram() {
        let mut errors = Errors::new();
        assert!(errors.json()["times"]["microseconds"]["max"].is_null() && errors.drift().is_none());
        for error in [100, 40, -60, 2_000] {
            errors.record(error);
        }
        let found = errors.json();
        assert_eq!((&found["times"]["count"], &found["gaps"]["count"]), (&json!(4), &json!(3)));
        assert_eq!(found["times"]["microseconds"]["max"], 2.0);
        assert_eq!(found["gaps"]["microseconds"]["min"], 0.06);
        assert_eq!(found["drift_microseconds"], 1.9);
        assert_eq!(errors.last(), 2_000);
    }
}
