//! The loop of a run until the end of its time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate::Error;
use linerate::port::Port;

use super::{Moment, Observer, Run};
use crate::moved::MovedPackets;
use crate::processors::Snapshot;
use crate::profile::Profile;
use crate::rates::Tick;
use crate::terminal::note;

/// The shortest last interval that is shown.
const SHOWN: Duration = Duration::from_millis(250);

impl Run {
    /// Calls the observers and executes their requests, until the end of the run's time.
    pub(super) fn watch(&mut self, first: &mut dyn Observer, others: &mut [Box<dyn Observer>]) -> Result<(), Error> {
        let others = others.iter_mut().map(|observer| &mut **observer as &mut dyn Observer);
        let mut observers: Vec<&mut dyn Observer> = std::iter::once(first).chain(others).collect();
        let begin = Moment { moved: MovedPackets::default(), tick: None };
        observers.iter_mut().for_each(|observer| observer.see(self, &begin));
        // The number of moved packets when all ports were exhausted: threads may still hold some.
        let mut at_end = None;
        loop {
            observers.iter_mut().for_each(|observer| observer.draw(self));
            let interrupted = self.clock.wait();
            while let Some(asked) = observers.iter_mut().find_map(|observer| observer.request(self)) {
                self.execute(asked)?;
            }
            let (now, moved) = (Instant::now(), self.threads.moved());
            // Commands that generate frames, or measure for a given time, do not end with their ports.
            let is_exhausted = !(self.mode.generates() || self.mode.is_measurement())
                && self.ports.devices.iter().all(Port::is_exhausted)
                && at_end.replace(moved.packets) == Some(moved.packets);
            if is_exhausted {
                note("note: all ports have reached their end: no more packets will be received");
            }
            let is_over = interrupted
                || self.clock.is_over(now, moved.packets)
                || self.threads.is_one_over()
                || is_exhausted
                || self.ports.has_failed();
            self.ports.read_registers_if_due();
            let moment = Moment { moved, tick: self.tick(now, moved, is_over)? };
            observers.iter_mut().for_each(|observer| observer.see(self, &moment));
            if is_over {
                return Ok(());
            }
        }
    }

    /// Ends an interval of a run that is shown, after one second or at the run's end.
    fn tick(&self, now: Instant, moved: MovedPackets, is_over: bool) -> Result<Option<Tick>, Error> {
        let (is_due, mut intervals) = (self.clock.end_interval(now), self.intervals.borrow_mut());
        let (begin, before, moved_before) = &intervals.last;
        let time = now - *begin;
        if self.mode.is_measurement() || !(is_due || is_over && time >= SHOWN) {
            return Ok(None);
        }
        let counters = self.ports.counters()?;
        let tick = Tick {
            seconds: (now - self.clock.start).as_secs_f64(),
            ports: self.ports.rates(&intervals.zero, before, &counters, time.as_secs_f64()),
            held: self.threads.held.load(Ordering::Relaxed),
            cycles_per_packet: moved.cycles_since(moved_before),
            parts: self.threads.profile.as_deref().map(Profile::parts),
            processors: Snapshot::take().processors(),
        };
        self.ports.remember(&counters);
        intervals.end(now, counters, moved);
        Ok(Some(tick))
    }
}
