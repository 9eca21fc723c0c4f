//! A generator and a checking sink, like a traffic tester at the other end of the cable.

use linerate_traffic::{Checker, Generator, Pacer, Rate};

use super::{Frame, Report, Wire};

/// A wire that sends recognizable frames to the card, and checks all frames that the card sends.
pub struct Traffic {
    generator: Generator,
    pacer: Option<Pacer>,
    count: u64,
    checker: Checker,
}

impl Traffic {
    /// Creates a wire that sends at most `count` frames of `generator`, at `rate` or as fast as the card takes them.
    pub fn new(generator: Generator, rate: Option<Rate>, count: Option<u64>) -> Traffic {
        let pacer = rate.map(|rate| Pacer::new(rate, generator.frame_len() as f64));
        Traffic { generator, pacer, count: count.unwrap_or(u64::MAX), checker: Checker::default() }
    }

    /// Creates a wire that sends no frames, and checks all frames that the card sends.
    pub fn sink() -> Traffic {
        Traffic::new(Generator::default(), None, Some(0))
    }
}

impl Wire for Traffic {
    fn transmit(&mut self, frame: &Frame) {
        self.checker.check(&frame.bytes);
    }

    #[inline]
    fn receive(&mut self, frame: &mut Frame) -> bool {
        if self.generator.sent() >= self.count || self.pacer.as_mut().is_some_and(|pacer| !pacer.take()) {
            return false;
        }
        frame.bytes.resize(self.generator.frame_len(), 0);
        frame.bad_crc = false;
        self.generator.fill(&mut frame.bytes);
        true
    }

    /// A paced sender does not wait: frames that arrive too fast are lost, as on a real wire.
    fn has_backpressure(&self) -> bool {
        self.pacer.is_none()
    }

    fn finish(&mut self) {
        self.count = 0;
    }

    fn report(&self) -> Option<Report> {
        Some(Report { sent: self.generator.sent(), ..self.checker.report() })
    }
}
