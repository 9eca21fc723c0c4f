//! A run: opened ports, threads that move packets, an end, and a summary.
//!
//! - `mode`: differences between commands
//! - `ports`: the opened ports; `links`: their links; `threads`: one for each queue; `clock`: the run's time, count and
//!   intervals
//! - `watch`: the loop until the end of the run's time; `observer`: observers that the loop calls; `requests`: from
//!   keys and programs
//! - `drain`: the frames in flight at the end; `measured`: the measurements; `bounds`: shortfalls and bottlenecks

mod bounds;
mod clock;
mod drain;
mod links;
mod measured;
mod mode;
mod observer;
mod ports;
mod requests;
mod threads;
mod watch;

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use linerate::port::{TxQueue, Waiter};
use linerate::traffic::Report;
use linerate::{Batch, Error};
use serde_json::Value;

use self::bounds::Bounds;
use self::clock::{Clock, Intervals};
use self::links::Links;
pub use self::measured::{Measured, Outcome, Sums};
pub use self::mode::Mode;
pub use self::observer::{Moment, Observer};
use self::observer::{display, observers};
pub use self::ports::{Ports, check_standard_output, interface, xdp_queues};
pub use self::threads::IDLE_SLEEP;
use self::threads::{Threads, note_turns};
use crate::line_rate::is_up;
use crate::live::LiveControl;
use crate::notes::{TransmitDrops, note_unconnected_on_switch, note_unmoved, port_summaries, undelivered};
use crate::options::{RunOptions, Wait};
use crate::processors::{Snapshot, moves_packets};
use crate::profile::Profile;
use crate::rates::Counters;
use crate::show::Shown;
use crate::signals::interrupts;
use crate::terminal::note;

/// How often the run checks whether frames are still moving.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Opened ports, and the threads that work on them.
pub struct Run {
    pub mode: &'static dyn Mode,
    pub options: RunOptions,
    pub ports: Ports,
    pub threads: Threads,
    pub clock: Clock,
    intervals: RefCell<Intervals>,
    pub live: LiveControl,
    observers: Vec<Box<dyn Observer>>,
    /// The requested rate of the threads, in packets per second.
    pub asked: Option<f64>,
    pub shown: Shown,
}

/// Sends what fits, and returns the number of packets. Without chains, this is the number of slots.
pub fn send(tx: &mut TxQueue, batch: &mut Batch, chains: bool) -> usize {
    if !chains {
        return tx.send(batch);
    }
    let before = batch.packets().count();
    let slots = tx.send(batch);
    // A port that cannot segment replaces a packet by its segments, of which some may be left.
    before.saturating_sub(batch.packets().count()).max(usize::from(slots > 0))
}

impl Run {
    /// Opens ports. The run ends after `count` packets, if given.
    pub fn open(
        mode: &'static dyn Mode,
        names: &[&str],
        count: Option<u64>,
        options: &RunOptions,
    ) -> Result<Run, Error> {
        let ports = Ports::open(mode, names, options)?;
        note_turns(mode, &ports.devices, options);
        let mut observers = observers(mode, options)?;
        let clock = Clock::new(options.seconds, count);
        let mut run = Run {
            mode,
            options: options.clone(),
            ports,
            threads: Threads::default(),
            clock,
            intervals: RefCell::new(Intervals::new(Vec::new())),
            live: LiveControl::new(mode),
            observers: Vec::new(),
            asked: None,
            shown: Shown::All,
        };
        // Before queues are claimed, as frames arrive from then on: the wait does not belong to the run.
        let links = Links::wait(&run, || {
            while let Some(asked) = observers.iter_mut().find_map(|observer| observer.request(&run)) {
                run.answer_before_start(asked)?;
            }
            Ok(())
        })?;
        observers.push(Box::new(links));
        let first = run.ports.statistics()?.into_iter().map(|port| Counters { port, ..Counters::default() });
        run.intervals = RefCell::new(Intervals::new(first.collect()));
        run.observers = observers;
        if mode.forwards() || mode.generates() {
            run.ports.devices.iter().for_each(note_unconnected_on_switch);
        }
        Ok(run)
    }

    /// Returns whether threads without work sleep for [`IDLE_SLEEP`], as a peer process may need the processor. Threads
    /// that generate frames have no waiter.
    pub fn sleeps_when_idle(&self) -> bool {
        match self.options.wait {
            Some(Wait::Poll) => false,
            Some(Wait::Interrupt | Wait::Adaptive) => self.ports.are_served() || self.mode.generates(),
            None => self.ports.are_served(),
        }
    }

    /// Returns a thread's waiter, in the selected mode.
    pub fn waiter(&self) -> Waiter {
        let usual = if self.ports.are_served() { Wait::Adaptive } else { Wait::Poll };
        Waiter::new(self.options.wait.unwrap_or(usual).into())
    }

    /// Shows progress until the time is over, all packets have moved, or Ctrl-C is pressed. Then waits for frames in
    /// flight, ends the threads, and prints the summary. `part` completes the measurements once the threads have ended,
    /// and returns the command's own part of the summary, as JSON and as a table.
    pub fn finish(
        self,
        judge: impl Fn(&[Option<Report>], Sums) -> Outcome,
        part: impl FnOnce(&mut Measured) -> (Value, String),
    ) -> Result<ExitCode, Error> {
        let (mode, strict) = (self.mode, self.options.strict);
        let mut show = display(&self);
        let mut measured = self.measure(&mut show, judge)?;
        let (part, table) = part(&mut measured);
        show.summary(&measured.summary(mode.name(), part), &table);
        measured.shortfalls.iter().for_each(|shortfall| shortfall.print(strict));
        measured.warning.iter().for_each(|warning| note(&format!("note: {warning}")));
        let is_good = measured.is_good() && (!strict || measured.shortfalls.is_empty());
        match measured.failure {
            Some(error) => Err(error),
            None => Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        }
    }

    /// Like [`finish`](Run::finish), but returns the measurements, and shows progress to `observer` only. `judge` gets
    /// the reports of the ports' wires.
    pub fn measure(
        mut self,
        observer: &mut dyn Observer,
        judge: impl Fn(&[Option<Report>], Sums) -> Outcome,
    ) -> Result<Measured, Error> {
        let is_shown = !self.mode.is_measurement();
        let mut observers = std::mem::take(&mut self.observers);
        if is_shown {
            self.ports.asked_of_wires(false);
        }
        let (processors, wires) = (Snapshot::take(), self.ports.reports());
        let transmit_drops = TransmitDrops::of(&self.ports.names);
        self.intervals.get_mut().begin(self.clock.begin());
        let sleeps_when_idle = self.sleeps_when_idle();
        let started = self.threads.start(&self.options, &self.ports, sleeps_when_idle, &self.live.paused());
        let has_started = started.is_ok();
        let outcome = started.and_then(|()| self.watch(observer, &mut observers));
        let mut measured = self.in_time(&processors, &wires);
        // An interrupted experiment is not shown, so it need not be complete.
        if outcome.is_ok() && !(measured.is_ended && self.mode.is_experiment()) {
            self.drain(&judge, measured.in_time.packets);
        }
        // Read before the threads stop: frames that other senders send later are not lost.
        let undelivered = undelivered(&self.ports.known_statistics().0);
        self.stop(&mut measured);
        // A run that is shown has a summary even after an error, if all of its threads have started.
        measured.failure = match outcome {
            Err(error) if !is_shown || !has_started => return Err(error),
            outcome => outcome.err(),
        };
        let bounds = Bounds { run: &self, measured: &measured };
        (measured.shortfalls, measured.stopped_by, measured.bound) =
            (bounds.shortfalls(), bounds.stopped_by(), bounds.fastest());
        let reports = self.ports.reports();
        measured.outcome = judge(&reports, Sums { undelivered, moved: measured.moved.packets });
        (measured.has_cut_capture, measured.breaches) = (self.ports.note_cut_captures(), self.ports.note_breaches());
        if is_shown {
            transmit_drops.note_dropped();
            note_unmoved(&self.ports, self.clock.count, &measured, &reports);
        }
        measured.ports = port_summaries(&self.ports, &measured, &reports);
        Ok(measured)
    }

    /// Ends the run's time, and returns what was measured in it. `processors` and `wires` were read at its beginning.
    fn in_time(&self, processors: &Snapshot, wires: &[Option<Report>]) -> Measured {
        self.clock.end.set(0);
        self.live.resume();
        // Read now: a peer may end while the run waits for frames in flight.
        let links_up_at_end = self.ports.devices.iter().all(is_up);
        let (in_time, reports) = (self.threads.moved(), self.ports.reports());
        let seconds = self.clock.measured(&in_time);
        let used = Snapshot::take().since(processors, moves_packets);
        let (is_ended, interrupted) = (interrupts().should_end(), interrupts().is_signalled());
        let in_run = |now: Report, before: Report| [now.sent - before.sent, now.arrived() - before.arrived()];
        let wires = reports.iter().zip(wires).map(|(now, before)| Some(in_run((*now)?, before.unwrap_or_default())));
        let wires = wires.collect();
        let warning = used.warning();
        Measured {
            seconds,
            in_time,
            used,
            warning,
            links_up_at_end,
            is_ended,
            interrupted,
            wires,
            ..Measured::default()
        }
    }

    /// Ends the threads, and completes what was measured.
    fn stop(&mut self, measured: &mut Measured) {
        measured.panicked = self.threads.join();
        // Nothing moves any more, so that packets, port counters and losses are consistent.
        (measured.statistics, measured.is_port_gone) = self.ports.known_statistics();
        // Packets that are still in a port's ring, or that it has dropped, do not count as moved.
        let most = self.sent(&measured.statistics).unwrap_or(u64::MAX);
        measured.moved = self.threads.moved().at_most(most);
        measured.in_time = measured.in_time.at_most(most);
        measured.parts = self.threads.profile.as_deref().map(Profile::parts);
        (measured.is_controlled, measured.changes) = (self.live.is_controlled(), self.live.changes());
    }
}
