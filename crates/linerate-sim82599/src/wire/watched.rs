//! Wires that wrap another wire: [`Record`](super::Record) and [`Timed`](super::Timed).

use linerate_core::error::Result;

use super::{Frame, Report, Unsent, Wire};

/// Observes the frames of a wrapped wire.
pub trait Watch: Send {
    /// Called when a frame leaves the card.
    fn leaves(&mut self, frame: &Frame);

    /// Called when a frame reaches the card.
    fn reaches(&mut self, _frame: &Frame) {}

    /// As [`Wire::check`].
    ///
    /// # Errors
    /// As [`Wire::check`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// As [`Wire::finish`].
    fn finish(&mut self) {}

    /// Changes the inner wire's report.
    fn report(&self, inner: Option<Report>) -> Option<Report> {
        inner
    }
}

/// A wire that wraps another and observes its frames.
pub struct Watched<W> {
    pub(super) inner: Box<dyn Wire>,
    pub(super) watch: W,
}

impl<W: Watch> Wire for Watched<W> {
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
        self.watch.leaves(frame);
        self.inner.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let came = self.inner.receive(frame);
        if came {
            self.watch.reaches(frame);
        }
        came
    }

    fn has_backpressure(&self) -> bool {
        self.inner.has_backpressure()
    }

    fn is_lossy_when_idle(&self) -> bool {
        self.inner.is_lossy_when_idle()
    }

    fn check(&self) -> Result<()> {
        self.watch.check()?;
        self.inner.check()
    }

    fn finish(&mut self) {
        self.watch.finish();
        self.inner.finish();
    }

    fn report(&self) -> Option<Report> {
        self.watch.report(self.inner.report())
    }

    fn unsent(&mut self) -> Unsent {
        self.inner.unsent()
    }
}
