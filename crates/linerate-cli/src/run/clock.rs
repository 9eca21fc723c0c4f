//! The clock of a run: its time, its count of packets, and the intervals of its rates.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::limits::{End, Quota};
use crate::moved::MovedPackets;
use crate::profile::{cycles, cycles_in};
use crate::rates::Counters;
use crate::signals::interrupts;

/// How often a run checks for its end.
const TICK: Duration = Duration::from_millis(100);
/// The time between two lines of rates.
const SECOND: Duration = Duration::from_secs(1);

/// The clock of a run.
pub struct Clock {
    pub start: Instant,
    /// The requested duration.
    pub seconds: Option<Duration>,
    /// The number of packets after which the run ends.
    pub count: Option<u64>,
    /// The number of packets that the threads may still move.
    pub quota: Quota,
    /// The end of the run's time. Threads that do not check it continue, for frames in flight.
    pub end: End,
    /// A thread checks `end`.
    is_ended_by_threads: Cell<bool>,
    /// When the current interval ends.
    next: Cell<Instant>,
}

impl Clock {
    pub fn new(seconds: Option<Duration>, count: Option<u64>) -> Clock {
        let start = Instant::now();
        let (quota, end, next) = (Quota::new(count), End::new(), Cell::new(start));
        Clock { start, seconds, count, quota, end, is_ended_by_threads: Cell::default(), next }
    }

    /// Returns the end of the run's time, for a thread that sends.
    pub fn thread_end(&self) -> End {
        self.is_ended_by_threads.set(true);
        self.end.clone()
    }

    /// Starts the run's time. Returns the start.
    pub fn begin(&mut self) -> Instant {
        self.start = Instant::now();
        self.next.set(self.start + SECOND);
        if let Some(seconds) = self.seconds {
            self.end.set(cycles().saturating_add(cycles_in(seconds)));
        }
        self.start
    }

    /// Returns the seconds since the beginning.
    pub fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns the end of the run's time; `None` without one, or beyond the range of `Instant`.
    fn time_limit(&self) -> Option<Instant> {
        self.seconds.and_then(|seconds| self.start.checked_add(seconds))
    }

    /// Waits for the next check of the run, at most [`TICK`]. Returns whether the command is to end.
    pub fn wait(&self) -> bool {
        let until = |time: Instant| time.saturating_duration_since(Instant::now());
        interrupts().wait(TICK.min(self.time_limit().map_or(TICK, until)).min(until(self.next.get())))
    }

    /// Returns whether an interval has ended by `now`; if so, begins the next one.
    pub fn end_interval(&self, now: Instant) -> bool {
        let is_due = now >= self.next.get();
        while self.next.get() <= now {
            self.next.set(self.next.get() + SECOND);
        }
        is_due
    }

    /// Returns whether the count has been moved.
    pub fn is_counted(&self, packets: u64) -> bool {
        self.count.is_some_and(|count| packets >= count)
    }

    /// Returns whether the time is over, or the count has been moved.
    pub fn is_over(&self, now: Instant, packets: u64) -> bool {
        self.time_limit().is_some_and(|end| now >= end) || self.is_counted(packets)
    }

    /// Returns the run's duration in seconds, at its end. The threads have moved `in_time`.
    pub fn measured(&self, in_time: &MovedPackets) -> f64 {
        let seconds = self.elapsed();
        // The main thread may see the end later than the threads.
        let most = self.seconds.filter(|_| self.is_ended_by_threads.get());
        let seconds = most.map_or(seconds, |most| seconds.min(most.as_secs_f64()));
        // The two times are measured by different clocks.
        seconds.max(in_time.seconds())
    }
}

/// The counters of a run at the moments between which rates are computed.
pub struct Intervals {
    /// The counters at the last reset: shown packets and drops count from here.
    pub zero: Vec<Counters>,
    /// The counters at the beginning of the last complete interval.
    pub before: (Instant, Vec<Counters>),
    /// The counters when rates were last shown.
    pub last: (Instant, Vec<Counters>, MovedPackets),
}

impl Intervals {
    /// Creates intervals that count from zero; `first` are the present counters.
    pub fn new(first: Vec<Counters>) -> Intervals {
        let (zero, now) = (vec![Counters::default(); first.len()], Instant::now());
        Intervals { zero, before: (now, first.clone()), last: (now, first, MovedPackets::default()) }
    }

    /// Begins the first interval.
    pub fn begin(&mut self, start: Instant) {
        (self.before.0, self.last.0) = (start, start);
    }

    /// Ends the current interval.
    pub fn end(&mut self, now: Instant, counters: Vec<Counters>, moved: MovedPackets) {
        let (time, last, _) = std::mem::replace(&mut self.last, (now, counters, moved));
        self.before = (time, last);
    }
}
