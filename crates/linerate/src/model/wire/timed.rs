//! Times of frames as they enter and leave, as a card with hardware timestamps notes them.

use std::sync::Arc;

use super::{Frame, Report, Wire};
use crate::traffic::Latency;

/// A wire that notes when each frame enters the card, or leaves it.
pub struct Timed {
    inner: Box<dyn Wire>,
    latency: Arc<Latency>,
}

impl Timed {
    /// Around `inner`. The wire at which frames leave may be another card's, with the same `latency`.
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
