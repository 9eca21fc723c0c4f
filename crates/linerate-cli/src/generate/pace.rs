//! The times of a queue's share of a stream.

use linerate::traffic::{Gaps, Pacer, Rate};

/// Frames that a paced sender to another process may catch up at once, after time without a processor: a ring.
const RING: usize = 512;

/// How a queue's share of a stream is paced, whatever the rate.
pub struct Pace {
    /// The share's part of the rate of all streams.
    pub part: f64,
    /// The part of a frame that it begins with: in turn, so that the sum of queues with few frames each is the rate, too.
    pub credit: f64,
    pub burst: u16,
    pub gaps: Gaps,
    /// Another process receives. Each burst costs it a wake-up, so the frames of 50 µs are sent together, up to a batch of
    /// these.
    pub together: Option<usize>,
}

impl Pace {
    /// Returns the pacer of the share, when all streams send `rate` packets per second.
    pub fn pacer(&self, rate: f64) -> Pacer {
        let pacer = Pacer::new(self.rate(rate), 0.0).making_up().with_credit(self.credit);
        let pacer = if self.together.is_some() { pacer.with_slack(RING) } else { pacer };
        pacer.with_bursts(self.burst.into()).with_gaps(self.gaps)
    }

    /// Returns the share's own rate.
    pub fn rate(&self, rate: f64) -> Rate {
        Rate::Packets(rate * self.part)
    }

    /// Returns the least frames to make at a time.
    pub fn least(&self, rate: f64) -> usize {
        let together = self.together.unwrap_or(1).min(Pacer::SLACK as usize);
        ((rate * self.part * 50e-6) as usize).clamp(1, together)
    }
}
