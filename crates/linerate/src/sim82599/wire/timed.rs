//! Times at which frames enter and leave, as a card with hardware timestamps records them.

use std::sync::Arc;

use super::{Frame, Report, Wire};
use crate::traffic::Latency;

/// A wire that records when each frame enters or leaves the card.
pub struct Timed {
    inner: Box<dyn Wire>,
    latency: Arc<Latency>,
}

impl Timed {
    /// Wraps `inner`. The wire at which frames leave may be another card's, with the same `latency`.
    pub fn new(inner: Box<dyn Wire>, latency: Arc<Latency>) -> Timed {
        Timed { inner, latency }
    }
}

impl Wire for Timed {
    fn link(&self) -> bool {
        self.inner.link()
    }

    fn signal(&mut self, mbits: u32) {
        self.inner.signal(mbits);
    }

    fn speed(&self) -> u32 {
        self.inner.speed()
    }

    fn ready(&mut self) -> bool {
        self.inner.ready()
    }

    fn transmit(&mut self, frame: &Frame) {
        self.latency.arrives(&frame.bytes);
        self.inner.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let came = self.inner.receive(frame);
        if came {
            self.latency.leaves(&frame.bytes);
        }
        came
    }

    fn holds_back(&self) -> bool {
        self.inner.holds_back()
    }

    fn comes_unasked(&self) -> bool {
        self.inner.comes_unasked()
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn report(&self) -> Option<Report> {
        self.inner.report()
    }
}
