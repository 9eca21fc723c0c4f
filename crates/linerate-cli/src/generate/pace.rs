//! The pacing of a queue's share of a stream.

use linerate::traffic::{Gaps, Pacer, Rate};

/// How many overdue frames a paced sender to another process may send at once after a time without a processor: one
/// ring.
const RING: usize = 512;

/// How a queue's share of a stream is paced, independent of the rate.
pub struct Pace {
    /// The share's fraction of the rate of all streams.
    pub part: f64,
    /// The fraction of a frame that is due at the start. It differs between queues, so that together they send at the
    /// rate even with few frames each.
    pub credit: f64,
    pub burst: u16,
    pub gaps: Gaps,
    /// The size of a batch if another process receives. Each burst costs it a wake-up, so the frames of 50 µs are sent
    /// together, up to one batch.
    pub together: Option<usize>,
}

impl Pace {
    /// Returns the share's pacer for a total rate of all streams of `rate` packets per second.
    pub fn pacer(&self, rate: f64) -> Pacer {
        let pacer = Pacer::new(self.rate(rate), 0.0).making_up().with_credit(self.credit);
        let pacer = if self.together.is_some() { pacer.with_slack(RING) } else { pacer };
        pacer.with_bursts(self.burst.into()).with_gaps(self.gaps)
    }

    /// Returns the share's own rate.
    pub fn rate(&self, rate: f64) -> Rate {
        Rate::Packets(rate * self.part)
    }

    /// Returns the minimum number of frames to make at a time.
    pub fn min_batch(&self, rate: f64) -> usize {
        let together = self.together.unwrap_or(1).min(Pacer::SLACK as usize);
        ((rate * self.part * 50e-6) as usize).clamp(1, together)
    }
}
