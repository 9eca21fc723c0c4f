//! Records when frames enter and leave the card, like hardware timestamps.

use std::sync::Arc;

use linerate_traffic::Latency;

use super::{Frame, Watch, Watched, Wire};

/// A wire that records when each frame enters or leaves the card.
pub type Timed = Watched<Arc<Latency>>;

impl Timed {
    /// Wraps `inner`. If frames leave through another card, its wire is wrapped with the same `latency`.
    pub fn new(inner: Box<dyn Wire>, latency: Arc<Latency>) -> Timed {
        Timed { inner, watch: latency }
    }
}

impl Watch for Arc<Latency> {
    fn leaves(&mut self, frame: &Frame) {
        self.record_arrival(&frame.bytes);
    }

    fn reaches(&mut self, frame: &Frame) {
        Latency::record_departure(self, &frame.bytes);
    }
}
