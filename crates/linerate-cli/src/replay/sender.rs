//! The thread that sends each frame at its time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use linerate::Batch;
use linerate::memory::Pool;
use linerate::port::TxQueue;

use super::errors::{Errors, PAUSE, Pauses};
use super::schedule::{Pace, Schedule};
use super::source::{Peek, Source};
use super::timeline::{Anchor, Clocks, Timeline};
use crate::limits::End;
use crate::profile::{cycles, cycles_in};
use crate::run::send;

/// The time from the start to the first frame, in nanoseconds, in which that frame is prepared.
const LEAD: u64 = 200_000;
/// A sleep ends at least this many nanoseconds before a frame is due, as the kernel wakes threads late.
const MARGIN: u64 = 100_000;
/// The longest sleep, and the longest time for which a spinning thread checks nothing else, in nanoseconds.
const SLEEP: u64 = 10_000_000;
const SPIN: u64 = 1_000_000;
/// A longer time between two turns of a wait is a pause.
const PAUSE_BETWEEN_TURNS: Duration = Duration::from_micros(10);
/// A thread gets from one turn to the next in less time, in nanoseconds, even if cache lines have to be fetched.
const TURN_TIME: u64 = 2_000;
/// Due times are capped at this one, 73 years, so that no sum of times overflows, whatever the capture contains.
const NEVER: u64 = u64::MAX / 8;
/// An anchor is renewed at the age of `RENEWED` if no frame is due within `CALM`, and at the age of `OLDEST` in any
/// case.
const RENEWED: u64 = 10_000_000;
const OLDEST: u64 = 100_000_000;
const CALM: u64 = 5_000;

/// The counts of a replay.
pub struct Tally {
    pub errors: Errors,
    /// The pauses of a spinning thread.
    pub pauses: Pauses,
    /// Frames that the port accepted, and the nanoseconds from the due time of the first to the sending of the last.
    pub given: u64,
    pub nanoseconds: u64,
    /// Frames that could not be sent when they were due, because the port had no room.
    pub no_room: u64,
    /// Frames that were due before they were read.
    pub not_read: u64,
    /// Frames that were too long for the port, and were not sent.
    pub too_long: u64,
    /// Frames that the capture has truncated.
    pub snapped: u64,
    /// By how many nanoseconds the frame is overdue that the port had not accepted at the end.
    pub overdue: Option<u64>,
    /// The number of frames that were not sent because the run ended first; `None` if there are some, but their number
    /// is unknown.
    pub unsent: Option<u64>,
}

impl Tally {
    pub fn new() -> Tally {
        Tally {
            errors: Errors::new(),
            pauses: Pauses::default(),
            given: 0,
            nanoseconds: 0,
            no_room: 0,
            not_read: 0,
            too_long: 0,
            snapped: 0,
            overdue: None,
            unsent: Some(0),
        }
    }

    /// Adds the counts of another port.
    pub fn add(&mut self, other: &Tally) {
        self.errors.add(&other.errors);
        self.pauses.add_all(&other.pauses);
        self.given += other.given;
        self.nanoseconds = self.nanoseconds.max(other.nanoseconds);
        self.no_room += other.no_room;
        self.not_read += other.not_read;
        self.too_long += other.too_long;
        self.snapped += other.snapped;
        self.overdue = self.overdue.max(other.overdue);
        self.unsent = self.unsent.zip(other.unsent).map(|(ours, theirs)| ours.saturating_add(theirs));
    }
}

pub struct Sender {
    pub tx: TxQueue,
    pub pool: Arc<Pool>,
    /// The next frames, in buffers; for each, when it is due and whether it is truncated.
    pub batch: Batch,
    pub due: VecDeque<(u64, bool)>,
    /// An empty batch.
    pub empty_batch: Batch,
    pub source: Source,
    pub schedule: Schedule,
    pub pace: Pace,
    /// Spins until a frame is due.
    pub is_exact: bool,
    /// The longest frame that the port accepts.
    pub longest: usize,
    /// Frames may be chains of slots.
    pub chains: bool,
    /// Frames that may still be sent; and the position at which the frames of several ports end.
    pub left: u64,
    pub until: u64,
    pub end: End,
    pub is_finished: Arc<AtomicBool>,
    /// The senders that still have frames, and whether this is one of them.
    pub unfinished: Arc<AtomicUsize>,
    pub has_frames: bool,
    /// The start of all senders, and their clock.
    pub start: Arc<OnceLock<Start>>,
    pub clock: Option<Clock>,
    /// When the next frame that is not yet in the batch is due.
    pub next: Option<u64>,
    /// The end of the last pause.
    pub paused_until: u64,
    /// The counter at the end of the last turn, if that turn only waited.
    pub last_wait_end: Option<u64>,
    /// Frames of the batch that the port has not accepted.
    pub refused: usize,
    /// The source had no frame ready when one could have been due.
    pub has_starved: bool,
    /// The run has ended.
    pub has_given_up: bool,
    pub tally: Tally,
    /// Where the counts go at the end.
    pub report: Arc<Mutex<Option<Tally>>>,
}

/// The moment at which a replay starts, on all ports.
pub struct Start {
    clocks: Clocks,
    anchor: Anchor,
}

impl Start {
    fn now() -> Start {
        let clocks = Clocks::new();
        Start { clocks, anchor: clocks.read() }
    }
}

/// The clock of a started replay.
pub struct Clock {
    clocks: Clocks,
    timeline: Timeline,
    /// Time 0 of the schedule.
    start: u64,
}

impl Clock {
    /// Creates the clock of a sender.
    fn new(start: &Start) -> Clock {
        let timeline = Timeline::new(start.anchor, Timeline::calibrated());
        Clock { clocks: start.clocks, timeline, start: start.anchor.nanoseconds + LEAD }
    }

    /// Adds the pause between two readings of the counter; returns its end.
    fn record_pause(&self, pauses: &mut Pauses, before: u64, after: u64) -> u64 {
        let [begin, end] = [before, after].map(|at| self.timeline.nanoseconds_at(at));
        pauses.add(end - begin);
        end.saturating_sub(self.start)
    }

    /// Returns the present time of the schedule; 0 before it begins.
    fn now(&self) -> u64 {
        self.timeline.nanoseconds_at(cycles()).saturating_sub(self.start)
    }

    /// Sets a new anchor if the last one is old. The next frame is due in `left` nanoseconds.
    fn renew_anchor(&mut self, now: u64, left: u64) {
        let age = self.timeline.age(now + self.start);
        if age > RENEWED && left > CALM || age > OLDEST {
            self.timeline.anchor(self.clocks.read());
        }
    }
}

impl Sender {
    /// Sends the frames that are due, and returns their number.
    pub fn turn(&mut self) -> usize {
        if self.end.is_reached() {
            self.give_up();
            return 0;
        }
        if self.clock.is_none() {
            if !self.source.is_ready() {
                return 0;
            }
            self.clock = Some(Clock::new(self.start.get_or_init(Start::now)));
        }
        let is_loaded = !self.batch.is_empty() || self.load(u64::MAX);
        if !is_loaded || self.tx.unsent() > 0 {
            // Reclaims sent frames, and hands on accepted ones.
            self.tx.send(&mut self.empty_batch);
        }
        if !is_loaded {
            return 0;
        }
        let due = self.due.front().map_or(0, |(due, _)| *due);
        if self.pace != Pace::Top && !self.is_due(due) {
            return 0;
        }
        // Also load other frames that are due by now.
        while self.batch.len() < self.batch.capacity() && self.load(self.now()) {}
        let at = self.now();
        let taken = send(&mut self.tx, &mut self.batch, self.chains);
        self.record(taken, at);
        taken
    }

    fn now(&self) -> u64 {
        self.clock.as_ref().map_or(0, Clock::now)
    }

    /// Returns whether a frame is due. If it is not, waits for it, or for a limited time. A turn that only waits does
    /// not count as work; a spinning thread waits for the last part in the turn that sends.
    fn is_due(&mut self, due: u64) -> bool {
        let is_handed_on = self.tx.unsent() == 0;
        let Some(clock) = &mut self.clock else { return false };
        // A thread without its own processor yields between two turns.
        if let Some(before) = self.last_wait_end.take() {
            let now = cycles();
            if now.saturating_sub(before) > cycles_in(PAUSE_BETWEEN_TURNS) {
                self.paused_until = clock.record_pause(&mut self.tally.pauses, before, now);
            }
        }
        let now = clock.now();
        let left = due.saturating_sub(now);
        clock.renew_anchor(now, left);
        if cycles() >= clock.timeline.cycles_at(clock.start + due) {
            return true;
        }
        if self.is_exact && is_handed_on {
            // The last part of the wait is in the turn that sends, so that nothing delays the frame after it.
            let near = due.saturating_sub(TURN_TIME);
            let is_near = now >= near;
            let until = if is_near { due } else { near.min(now + SPIN) };
            let until = clock.timeline.cycles_at(clock.start + until);
            let longest = cycles_in(PAUSE);
            // Without a PAUSE instruction, which takes longer than reading the counter.
            let mut last = cycles();
            while last < until {
                let before = std::mem::replace(&mut last, cycles());
                if last - before > longest {
                    self.paused_until = clock.record_pause(&mut self.tally.pauses, before, last);
                }
            }
            self.last_wait_end = (!is_near).then_some(last);
            return is_near;
        }
        if left > 2 * MARGIN && is_handed_on {
            std::thread::sleep(Duration::from_nanos((left - MARGIN).min(SLEEP)));
        }
        false
    }

    /// Adds the next frame to the batch if it is due by `now`; returns whether it was added.
    fn load(&mut self, now: u64) -> bool {
        let frame = match self.source.peek() {
            Peek::Frame(frame)
                if self.left > 0 && frame.position.is_none_or(|position| position.frames < self.until) =>
            {
                frame
            }
            Peek::NotRead if self.left > 0 => {
                self.has_starved = true;
                return false;
            }
            _ => {
                let is_over = self.batch.is_empty() && std::mem::take(&mut self.has_frames);
                if is_over && self.unfinished.fetch_sub(1, Ordering::Relaxed) == 1 {
                    self.is_finished.store(true, Ordering::Relaxed);
                }
                return false;
            }
        };
        let due =
            *self.next.get_or_insert_with(|| self.schedule.next(frame.time, frame.len, frame.position).min(NEVER));
        if due > now {
            return false;
        }
        if frame.len > self.longest {
            self.tally.too_long += 1;
            (self.next, self.has_starved) = (None, false);
            self.source.advance();
            // There may be no other frame: the next call checks for the end.
            return false;
        }
        // All buffers of the pool may be in the port.
        if !self.batch.push(&self.pool, self.source.bytes()) {
            return false;
        }
        if std::mem::take(&mut self.has_starved) && self.pace != Pace::Top && due < self.now() {
            self.tally.not_read += 1;
        }
        self.source.advance();
        self.due.push_back((due, frame.is_snapped));
        self.next = None;
        self.left -= 1;
        true
    }

    /// Records the frames that the port accepted at a time, and those that it did not.
    fn record(&mut self, taken: usize, at: u64) {
        for (due, is_snapped) in self.due.drain(..taken.min(self.due.len())) {
            self.tally.given += 1;
            self.tally.snapped += u64::from(is_snapped);
            if self.pace != Pace::Top {
                // Frames that were due before the pause began were sent before it, so this compares with its end only.
                self.tally.errors.record(at as i64 - due as i64, due < self.paused_until);
            }
        }
        if taken > 0 {
            self.tally.nanoseconds = at;
        }
        let before = self.refused.saturating_sub(taken);
        self.refused = self.due.len();
        self.tally.no_room += self.refused.saturating_sub(before) as u64;
    }

    /// Ends the replay: the frames in the batch are not sent.
    fn give_up(&mut self) {
        if let (Some(&(due, _)), None) = (self.due.front(), self.tally.overdue) {
            let now = self.now();
            self.tally.overdue = (now > due && self.refused > 0).then(|| now - due);
        }
        if !std::mem::replace(&mut self.has_given_up, true) {
            self.tally.unsent = self.source.left().map(|left| left.saturating_add(self.due.len() as u64));
        }
        self.batch.clear();
        self.due.clear();
        self.tx.send(&mut self.batch);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.give_up();
        let tally = std::mem::replace(&mut self.tally, Tally::new());
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(tally);
    }
}
