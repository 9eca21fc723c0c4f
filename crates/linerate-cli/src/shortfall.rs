//! Requested rates and counts that a run did not reach.

use linerate::traffic::Rate;
use serde_json::{Value, json};

use crate::terminal::note;

/// The fraction of the requested rate from which it counts as reached.
const REACHED_FRACTION: f64 = 0.98;

/// The shortest time over which a rate is judged, and the number of packets that suffices in less.
pub const MIN_SECONDS: f64 = 0.2;
pub const MIN_PACKETS: u64 = 10_000;

/// A requested rate or count that was not reached.
pub enum Shortfall {
    Rate {
        /// The port, or the command.
        what: String,
        /// Packets per second.
        asked: f64,
        sent: f64,
        /// The bottleneck, if known.
        bound: Option<String>,
    },
    Count {
        asked: u64,
        moved: u64,
        /// Why the others were not moved, if known.
        bound: Option<String>,
    },
    /// The number of frames that were due so far, and how many of them were sent.
    Frames {
        due: u64,
        sent: u64,
        /// Why the others were not sent, if known.
        bound: Option<String>,
    },
}

impl Shortfall {
    /// Returns the shortfall if `sent` packets in `seconds` are noticeably fewer than were due. One packet may be in
    /// flight, so a rate is reached if no packet was due.
    pub fn of(what: &str, asked: f64, sent: u64, seconds: f64, bound: Option<String>) -> Option<Shortfall> {
        ((sent as f64 + 1.0) < asked * seconds * REACHED_FRACTION).then(|| Shortfall::Rate {
            what: what.to_string(),
            asked,
            sent: sent as f64 / seconds,
            bound,
        })
    }

    /// Returns it as one line.
    pub fn line(&self) -> String {
        let (line, bound) = match self {
            Shortfall::Rate { what, asked, sent, bound } => {
                let [asked, sent] = [asked, sent].map(|rate| Rate::Packets(*rate));
                (format!("{what}: {asked} requested, {sent} sent"), bound)
            }
            Shortfall::Count { asked, moved, bound } => {
                (format!("the count: {asked} packets requested, {moved} moved"), bound)
            }
            Shortfall::Frames { due, sent, bound } => (format!("the frames: {due} due, {sent} sent"), bound),
        };
        line + &bound.as_ref().map_or(String::new(), |bound| format!(": bounded by {bound}"))
    }

    /// Prints the shortfall: as an error if the run is strict, otherwise as a note.
    pub fn print(&self, strict: bool) {
        note(&format!("{}: {}", if strict { "error" } else { "note" }, self.line()));
    }

    pub fn json(&self) -> Value {
        match self {
            Shortfall::Rate { what, asked, sent, bound } => {
                json!({"what": what, "asked_mpps": asked / 1e6, "sent_mpps": sent / 1e6, "bounded_by": bound})
            }
            Shortfall::Count { asked, moved, bound } => {
                json!({"what": "the count", "asked": asked, "moved": moved, "bounded_by": bound})
            }
            Shortfall::Frames { due, sent, bound } => {
                json!({"what": "the frames", "due": due, "sent": sent, "bounded_by": bound})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that stalls early has not reached the rate of the whole run.
    #[test]
    fn a_rate_is_reached_over_the_whole_time() {
        let is_short = |asked, sent, seconds| Shortfall::of("the rate", asked, sent, seconds, None).is_some();
        assert!(is_short(10e6, 512, 3.0));
        assert!(is_short(1e6, 979_000, 1.0) && !is_short(1e6, 980_000, 1.0));
        assert!(!is_short(1.0, 0, 0.5), "none was due");
        assert!(!is_short(10.0, 9, 1.0) && is_short(10.0, 8, 1.0), "the last one may be in flight");
        assert!(is_short(1e9, 0, 1.0));
    }
}
