//! One direction of a path: the frames that a port sends, and their arrival at the other port of its pair.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use linerate::Batch;
use linerate::memory::Pool;
use linerate::port::{RxQueue, TxQueue};
use linerate::traffic::{Checker, FrameTime, Latency, Pacer, Rate, Report};

use super::Load;
use super::probes::Probes;
use super::times::{Counts, Delays, Pause};
use crate::generate::Mix;
use crate::host::Responder;
use crate::limits::End;
use crate::run::Moment;

/// The type of learning frames, and of the keep-alive frames of some switches: that of the Ethernet configuration test.
pub const LEARNING: [u8; 2] = [0x90, 0];

/// The counts of a direction.
pub struct Direction {
    /// The number of the port that sends.
    pub from: usize,
    pub timer: Timer,
    sent: Arc<AtomicU64>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// The frames that were sent and that arrived in the run's time, and the longest time without an arrival.
    in_time: ([u64; 2], Option<Pause>),
}

/// The arrived frames of a direction.
#[derive(Default)]
struct Arrivals {
    report: Report,
    /// The time of the last arrival, and the longest time between two of them in nanoseconds.
    last: Option<Instant>,
    longest: u64,
}

impl Direction {
    /// Prepares a direction: its counts, and both ends. `rate` is that of the frames of `mix`; `None` is full speed.
    pub fn new(
        from: usize,
        (mix, flows): (Mix, Range<u16>),
        rate: Option<Rate>,
        (load, batch): (&Load, usize),
        (pool, end): (Arc<Pool>, End),
        probes: Option<Arc<Probes>>,
    ) -> (Direction, Sender, Receiver) {
        let timer = Timer { probes: probes.clone(), ..Timer::new(if probes.is_some() { 1 } else { load.every }) };
        let (sent, arrivals) = (Arc::default(), Arc::default());
        let known = mix.first_frames().iter().fold(Checker::default(), |checker, frame| checker.with_headers_of(frame));
        let receiver = Receiver {
            batch: Batch::with_capacity(batch),
            checker: known.with_flows(flows),
            latency: timer.latency.clone(),
            arrivals: Arc::clone(&arrivals),
            arrived: 0,
            probes: probes.clone(),
        };
        let sender = Sender {
            pacer: rate.map(|rate| Pacer::new(rate, mix.mean_len())),
            mix,
            latency: timer.latency.clone(),
            pool,
            batch: Batch::with_capacity(batch),
            left: load.count.unwrap_or(u64::MAX),
            sent: Arc::clone(&sent),
            end,
            probes: probes.map(|probes| (probes, Batch::new())),
        };
        (Direction { from, timer, sent, arrivals, in_time: Default::default() }, sender, receiver)
    }

    /// Returns the frames that were sent and that have arrived, until now.
    pub fn sent_and_arrived(&self) -> [u64; 2] {
        [self.sent.load(Ordering::SeqCst), arrived(&self.report())]
    }

    /// Returns the report of the arrived frames, until now.
    pub fn report(&self) -> Report {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).report
    }

    /// Records the counts until this moment of the run's time.
    pub fn see(&mut self, moment: &Moment) {
        self.timer.see(moment);
        let pause = {
            let arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.last.map(|last| {
                let present = last.elapsed().as_nanos() as u64;
                Pause { nanoseconds: present.max(arrivals.longest), is_over: present <= arrivals.longest }
            })
        };
        self.in_time = (self.sent_and_arrived(), pause);
    }

    /// Returns the counts of the run, after its end.
    pub fn into_counts(self) -> Counts {
        let ([sent, arrived], pause) = self.in_time;
        let (report, [total_sent, total_arrived]) = (self.report(), self.sent_and_arrived());
        Counts {
            sent,
            arrived,
            after: [total_sent.saturating_sub(sent), total_arrived.saturating_sub(arrived)],
            lost: total_sent.saturating_sub(total_arrived),
            corrupted: report.corrupted,
            changed: report.changed,
            duplicated: report.duplicated,
            unstamped: report.foreign,
            misdelivered: report.misdelivered,
            probes: self.timer.probes.as_ref().map(|probes| probes.counts()),
            delays: self.timer.into_delays(),
            pause,
        }
    }
}

/// Returns the number of frames of this direction that have arrived, without duplicates.
fn arrived(report: &Report) -> u64 {
    report.arrived() - report.foreign - report.misdelivered
}

/// Times frames, and collects their latencies while they arrive.
pub struct Timer {
    pub latency: Arc<Latency>,
    /// The cards' times, which replace the program's.
    probes: Option<Arc<Probes>>,
    delays: Delays,
    is_warm: bool,
}

impl Timer {
    /// Times one of `every` frames of each flow.
    pub fn new(every: u64) -> Timer {
        Timer { latency: Latency::new(every), probes: None, delays: Delays::new(every), is_warm: false }
    }

    /// Collects the latencies since the last call. Discards those up to the first check, as frames waited while the
    /// threads started.
    pub fn see(&mut self, moment: &Moment) {
        if moment.moved.packets > 0 {
            let times = self.take();
            if std::mem::replace(&mut self.is_warm, true) {
                times.into_iter().for_each(|time| self.delays.add(time));
            }
        }
    }

    /// Returns all latencies, after the run's end.
    pub fn into_delays(mut self) -> Delays {
        self.take().into_iter().for_each(|time| self.delays.add(time));
        self.delays
    }

    fn take(&self) -> Vec<FrameTime> {
        self.probes.as_ref().map_or_else(|| self.latency.take(), |probes| probes.take())
    }
}

/// The frames that arrive at a port.
pub struct Receiver {
    batch: Batch,
    checker: Checker,
    latency: Arc<Latency>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// The frames of this direction that have arrived.
    arrived: u64,
    probes: Option<Arc<Probes>>,
}

impl Receiver {
    /// Receives, and returns the number of packets. Answered requests and learning frames are not checked.
    pub fn turn(&mut self, rx: &mut RxQueue, mut responder: Option<&mut Responder>) -> usize {
        rx.recv(&mut self.batch);
        let mut packets = 0;
        for packet in self.batch.packets() {
            packets += 1;
            if self.probes.as_ref().is_some_and(|probes| probes.takes(&packet)) {
                continue;
            }
            self.latency.record_arrival(&packet);
            let is_learning = packet.get(12..14) == Some(&LEARNING);
            if !is_learning && !responder.as_mut().is_some_and(|responder| responder.answers(&packet)) {
                self.checker.check(&packet);
            }
        }
        self.batch.clear();
        if packets > 0 {
            let (report, before) = (self.checker.report(), self.arrived);
            self.arrived = arrived(&report);
            let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.report = report;
            // Other hosts also send frames while the tested device does not forward.
            if self.arrived > before {
                let last = arrivals.last.replace(Instant::now());
                let pause = last.map_or(0, |last| last.elapsed().as_nanos() as u64);
                arrivals.longest = arrivals.longest.max(pause);
            }
        }
        packets
    }
}

/// The frames that a port sends.
pub struct Sender {
    mix: Mix,
    /// `None` at full speed.
    pacer: Option<Pacer>,
    latency: Arc<Latency>,
    pool: Arc<Pool>,
    batch: Batch,
    left: u64,
    sent: Arc<AtomicU64>,
    end: End,
    probes: Option<(Arc<Probes>, Batch)>,
}

impl Sender {
    pub fn turn(&mut self, tx: &mut TxQueue) {
        let Sender { mix, pacer, latency, pool, batch, left, sent, end, probes } = self;
        // An error is that of a card that is gone, which the run reports itself.
        if let Some((probes, batch)) = probes.as_mut().filter(|_| batch.is_empty() && !end.is_reached()) {
            let _ = probes.turn(pool, batch, tx);
        }
        // Count frames before sending them, and before checking for the end again: once all counted frames have arrived
        // after the end, no others will be sent.
        if end.is_reached() {
            sent.fetch_sub(batch.len() as u64, Ordering::SeqCst);
            batch.clear();
        } else if batch.is_empty() {
            let most = (batch.capacity() as u64).min(*left) as usize;
            let allowed = (0..most).take_while(|_| pacer.as_mut().is_none_or(Pacer::take)).count();
            sent.fetch_add(allowed as u64, Ordering::SeqCst);
            if !end.is_reached() {
                batch.alloc(pool, allowed, mix.longest());
                for mut packet in batch.packets() {
                    // Cannot fail: no frame is longer than this packet.
                    let _ = packet.truncate(mix.next_len());
                    mix.fill(&mut packet);
                    latency.record_departure(&packet);
                }
            }
            sent.fetch_sub((allowed - batch.len()) as u64, Ordering::SeqCst);
            *left -= batch.len() as u64;
        }
        tx.send(batch);
    }
}
