//! The threads of a run, one for each queue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate::Error;
use linerate::port::{Port, YieldWait};

use super::{Mode, POLL_INTERVAL, Ports};
use crate::line_rate::model;
use crate::moved::{MovedPackets, ThreadCounters};
use crate::options::{RunOptions, Wait};
use crate::processors::allowed;
use crate::profile::{Profile, cycles};
use crate::terminal::note;

/// One thread's work: moves a batch and returns the number of packets.
type Turn = Box<dyn FnMut() -> usize + Send>;

/// How long a thread polls a port of another process before it sleeps, and how long it sleeps.
const POLL_TIME: Duration = Duration::from_micros(100);
pub const IDLE_SLEEP: Duration = Duration::from_micros(20);

/// The threads of a run, and their counters beside the moved packets.
#[derive(Default)]
pub struct Threads {
    /// Work that starts once the links are up.
    turns: Vec<Turn>,
    pub works: Vec<Arc<ThreadCounters>>,
    handles: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Ends the run: a thread has nothing more to send.
    pub is_finished: Arc<AtomicBool>,
    pub profile: Option<Arc<Profile>>,
    /// Nanoseconds for which the threads found a port without room.
    pub held_back: Arc<AtomicU64>,
    /// Answers to requests that the threads have sent, in addition to moved packets.
    pub answered: Arc<AtomicU64>,
    /// Packets that were received but that no port has accepted.
    pub held: Arc<AtomicU64>,
    /// Packets that wait in idle threads, or in links to the ports, for a port that forwards them.
    pub unsent: Arc<AtomicUsize>,
}

impl Threads {
    /// Adds a thread. `turn` moves a batch and returns the number of packets. It is called repeatedly from when the
    /// links are up until the run ends.
    pub fn spawn(&mut self, turn: impl FnMut() -> usize + Send + 'static) {
        self.turns.push(Box::new(turn));
    }

    /// Starts all threads, distributed over the chosen processors. They move nothing while `paused` is set. With
    /// `sleeps_when_idle`, a thread without work sleeps.
    pub fn start(
        &mut self,
        options: &RunOptions,
        ports: &Ports,
        sleeps_when_idle: bool,
        paused: &Arc<AtomicBool>,
    ) -> Result<(), Error> {
        let turns = std::mem::take(&mut self.turns);
        // The models have their own thread.
        let threads = turns.len() + usize::from(!ports.models().is_empty());
        // A thread spins if each thread can have its own processor; otherwise it yields.
        let can_spin = std::thread::available_parallelism().map_or(1, usize::from) > threads;
        for (number, turn) in turns.into_iter().enumerate() {
            let core = options.cores.as_ref().map(|cores| usize::from(cores[number % cores.len()]));
            let (work, stop, paused) = (Arc::<ThreadCounters>::default(), self.stop.clone(), paused.clone());
            let thread = Thread { turn, work: work.clone(), stop, paused, sleeps_when_idle, can_spin };
            let thread = std::thread::Builder::new().name(format!("linerate {number}")).spawn(move || {
                core.into_iter().for_each(pin);
                thread.run();
            });
            self.handles.push(thread.map_err(Error::thread)?);
            self.works.push(work);
        }
        Ok(())
    }

    /// Returns the sum of the packets that all threads have moved.
    pub fn moved(&self) -> MovedPackets {
        self.works.iter().fold(MovedPackets::default(), |sum, work| sum.and(work.moved()))
    }

    /// Returns whether a thread has ended, or has nothing more to send.
    pub fn is_one_over(&self) -> bool {
        self.is_finished.load(Ordering::Relaxed) || self.handles.iter().any(JoinHandle::is_finished)
    }

    /// Ends and joins all threads. Returns whether one has panicked.
    pub fn join(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.handles.drain(..).filter_map(|thread| thread.join().err()).count() > 0
    }
}

/// A thread that calls its turn repeatedly.
struct Thread {
    turn: Turn,
    work: Arc<ThreadCounters>,
    stop: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    sleeps_when_idle: bool,
    can_spin: bool,
}

impl Thread {
    /// Runs until it is stopped.
    fn run(mut self) {
        let (mut before, mut patience) = (cycles(), YieldWait::new(POLL_TIME));
        while !self.stop.load(Ordering::Relaxed) {
            if self.paused.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL);
                before = cycles();
                continue;
            }
            let packets = (self.turn)();
            let now = cycles();
            if packets > 0 {
                self.work.add(packets, before, now);
                patience.reset();
            } else if self.sleeps_when_idle {
                if !patience.wait() {
                    std::thread::sleep(IDLE_SLEEP);
                }
            } else if self.can_spin {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            // Turns without packets do not count as work.
            before = if packets > 0 { now } else { cycles() };
        }
    }
}

/// Pins this thread to a processor.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        note(&format!("note: cannot use processor {core}: {error}; choose others with --cores"));
    }
}

/// Prints a note if more threads will poll than there are processors.
pub fn note_turns(mode: &dyn Mode, devices: &[Port], options: &RunOptions) {
    let of_queues = match options.wait {
        Some(Wait::Interrupt | Wait::Adaptive) => 0,
        _ => {
            let queues = devices.iter().map(|device| usize::from(device.info().rx_queues));
            let has_pairs = mode.forwards() || mode.is_measurement();
            if has_pairs { queues.min().unwrap_or(1) } else { queues.sum() }
        }
    };
    let chosen = options.cores.iter().flatten().collect::<BTreeSet<_>>().len();
    let all = of_queues + usize::from(devices.iter().any(|device| model(device).is_some()));
    let (threads, processors, of) = match chosen > 0 && of_queues > chosen {
        true => (of_queues, chosen, " of --cores"),
        false => (all, allowed().len(), ""),
    };
    if threads > processors && !mode.is_experiment() {
        let on = if processors == 1 { "one processor".to_string() } else { format!("{processors} processors") };
        note(&format!(
            "note: {threads} threads poll on {on}{of}, and have to share: use fewer --queues, or --wait adaptive"
        ));
    }
}
