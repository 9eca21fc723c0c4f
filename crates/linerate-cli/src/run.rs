//! A run: opened ports, one thread per queue, an end, and a summary.
//!
//! - `mode`: what differs between commands; `watch`: until its end

mod mode;
mod watch;

use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate::kernel::Interface;
use linerate::memory::{PageSize, Pool, Region, RegionOptions};
use linerate::port::{
    Access, Address, Behind, FRAME_HEADERS, Link, Patience, Port, PortName, QueueStatistics, Statistics, Take, TxQueue,
    Waiter,
};
use linerate::sim82599::Card;
use linerate::traffic::Report;
use linerate::{Batch, Error, ErrorKind, Options};
use serde_json::{Value, json};

pub use self::mode::Mode;
use crate::grammar::usage;
use crate::limits::{End, Quota};
use crate::line_rate::{is_up, model, possible};
use crate::live::{Live, Screen, Speed};
use crate::metrics::{self, Metrics, Sample};
use crate::moved::{Moved, Work};
use crate::notes::{
    dead_ends, dropped_on_the_way_out, note_alone_on_switch, note_captures, note_dropped_on_the_way_out,
    note_left_in_cards, note_unsent_by_wires, port_summary, refuses, undelivered, ways_out,
};
use crate::options::{RunOptions, Wait};
use crate::processors::{Snapshot, Use, allowed, moves_packets};
use crate::profile::{Parts, Profile, cycles, cycles_in};
use crate::rates::shortened;
use crate::shortfall::Shortfall;
use crate::show::{Show, Shown};
use crate::signals::interrupts;
use crate::terminal::{is_ours, note};
use crate::wire::{check_cables, wire_rate};

/// One thread's work: moves a batch, and returns the number of packets.
type Turn = Box<dyn FnMut() -> usize + Send>;

/// Opened ports, and the threads that work on them.
pub struct Run {
    mode: &'static dyn Mode,
    /// The ports' names with their options, and the ports.
    names: Vec<PortName>,
    devices: Vec<Port>,
    /// Work that starts once the links are up.
    turns: Vec<Turn>,
    threads: Vec<(Arc<Work>, JoinHandle<()>)>,
    stop: Arc<AtomicBool>,
    /// The end of the run's time; threads that do not look at it go on for frames in flight.
    end: End,
    /// A thread looks at it.
    is_ended_by_threads: Cell<bool>,
    options: RunOptions,
    profile: Option<Arc<Profile>>,
    /// The count of packets after which the run ends.
    count: Option<u64>,
    quota: Quota,
    /// A thread has nothing more to send.
    is_spent: Arc<AtomicBool>,
    /// Packets per second that the threads were asked for.
    asked: Option<f64>,
    /// Nanoseconds for which the threads found a port without room.
    held_back: Arc<AtomicU64>,
    /// Answers to requests that the threads have sent beside the packets that they move.
    answered: Arc<AtomicU64>,
    /// Packets that were received and that no port has taken.
    held: Arc<AtomicU64>,
    /// The ports' counters when they were last read: a port that is gone has no others.
    last: RefCell<Vec<Statistics>>,
    /// A port's link was down for a time.
    was_down: Cell<bool>,
    /// Whether each port had a link when the run was opened, and its counters then: frames come as soon as queues are claimed.
    links: Vec<bool>,
    first: Vec<Statistics>,
    /// The run's own frames are chains.
    sends_chains: bool,
    shown: Shown,
    metrics: Option<Metrics>,
    live: Live,
}

/// The measurements of a run.
pub struct Measured {
    /// The run's time.
    pub seconds: f64,
    /// Packets moved in this time, which make the rate; `moved` has also those that were in flight at its end.
    pub in_time: Moved,
    pub moved: Moved,
    pub outcome: Outcome,
    /// Rates and counts that were not reached.
    pub shortfalls: Vec<Shortfall>,
    /// The part that was at its limit, of a run that goes as fast as it can.
    pub bound: Option<String>,
    /// Packets that each port's wire sent and received in the run's time, if it counts them.
    pub wires: Vec<Option<[u64; 2]>>,
    pub used: Use,
    /// The end that is gone, the link that is down, or the port that takes nothing.
    pub stopped_by: Option<String>,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
    /// The error that ended the run.
    pub failure: Option<Error>,
    /// Breaches of the datasheet by drivers of the models.
    pub breaches: u64,
    pub ports: Vec<Value>,
    /// Cycles by part, if a profile was requested.
    pub parts: Option<Parts>,
    /// A thread has panicked.
    pub panicked: bool,
    /// A capture file at a port's other end could not be read or written to its end.
    pub has_cut_capture: bool,
    /// Paused for a time, or given another rate.
    pub is_steered: bool,
    /// Requests that came while the run lasted, with the time of each.
    pub changes: Vec<Value>,
}

impl Measured {
    /// True if nothing was lost or damaged.
    pub fn is_good(&self) -> bool {
        let Outcome { lost, corrupted, .. } = self.outcome;
        lost == 0 && corrupted == 0 && self.breaches == 0 && !self.panicked && !self.has_cut_capture
    }

    /// Returns the rate; `None` if too few packets moved to have one.
    pub fn mpps(&self) -> Option<f64> {
        self.in_time.per_second().map(|rate| rate / 1e6)
    }

    pub fn cycles_per_packet(&self) -> Option<f64> {
        self.moved.cycles_per_packet()
    }
}

/// The counts of threads and ports, which a judge compares with the reports of their wires.
#[derive(Clone, Copy)]
pub struct Sums {
    /// Frames that came and that the ports did not deliver.
    pub undelivered: u64,
    /// Packets that the threads have moved, as far as the ports have sent them, or `faulty:` has dropped them instead.
    pub moved: u64,
}

/// The counts that decide whether a run was good.
#[derive(Default)]
pub struct Outcome {
    /// Frames that were sent and never arrived, as far as both were counted.
    pub lost: u64,
    /// Frames whose bytes differ from those that were sent.
    pub corrupted: u64,
    /// Frames that arrived after a later one of their flow.
    pub reordered: u64,
    /// Frames that arrived again.
    pub duplicated: u64,
    /// Frames that a filter dropped.
    pub filtered: u64,
    /// Packets that were received, and that no port has taken.
    pub held: u64,
}

/// How long nothing may move at the end before missing frames count as lost.
const DRAIN: Duration = Duration::from_secs(2);
/// The longest time to wait for frames that are still moving.
const LONGEST_DRAIN: Duration = Duration::from_secs(5);
/// The longest time between two frames that are left of a port that is gone: a server's thread sleeps for 250 ms.
const LEFT: Duration = Duration::from_millis(300);
/// How often it is looked for frames that are still moving.
const LOOK: Duration = Duration::from_millis(1);
/// The longest time to wait for links; 1 and 10 Gbit/s on copper need some seconds.
const LINK: Duration = Duration::from_secs(10);
/// How often a run checks for its end.
const TICK: Duration = Duration::from_millis(100);
/// The time between two looks at a link that is awaited: a peer's TCP repeats its first segment after 200 ms.
const LINK_LOOK: Duration = Duration::from_millis(5);
/// The shortest last interval that is shown.
const SHOWN: Duration = Duration::from_millis(250);
/// The shortest time over which a rate is judged, and the packets that suffice in less.
const JUDGED: f64 = 0.2;
const ENOUGH: u64 = 10_000;
/// The bound of a sender that waits.
const NO_ROOM: &str = "the port, which has no room";

/// Returns why ports with different numbers of queues are refused: packets would come to queues that no thread forwards.
fn differing_queues(devices: &[Port]) -> Option<String> {
    let queues = |device: &Port| device.info().rx_queues;
    let first = devices.first()?;
    let other = devices.iter().find(|device| queues(device) != queues(first))?;
    Some(format!(
        "{} has {} receive queues and {} has {}: give both the same number, for example by --queues 1, or queues=N in a name",
        first.name(),
        queues(first),
        other.name(),
        queues(other)
    ))
}

/// Sends what fits, and returns the number of packets: that of slots, unless there can be chains.
pub fn send(tx: &mut TxQueue, batch: &mut Batch, chains: bool) -> usize {
    if !chains {
        return tx.send(batch);
    }
    let before = batch.packets().count();
    tx.send(batch);
    before - batch.packets().count()
}

/// How long a thread polls a port of another process before it rests, and how long it rests.
const PATIENCE: Duration = Duration::from_micros(100);
pub const REST: Duration = Duration::from_micros(20);

impl Run {
    /// Opens ports on one pool that is large enough for all their queues. The run ends after `count` packets, if given.
    pub fn open(
        mode: &'static dyn Mode,
        names: &[&str],
        count: Option<u64>,
        options: &RunOptions,
    ) -> Result<Run, Error> {
        let parsed = names.iter().map(|name| PortName::parse(name)).collect::<Result<Vec<_>, Error>>()?;
        let queues = u32::from(options.queues).max(xdp_queues(&parsed));
        let rings = names.len() * queues as usize * options.ring.unwrap_or(512) as usize * 2;
        // Room for the longest frame after the headroom; 1,500 bytes fit 2 KiB.
        let buffer_size = if options.mtu <= 1500 { 2048 } else { (options.mtu + 1024).next_power_of_two() };
        // AF_XDP buffers are at most a page; longer frames are chains there.
        check_standard_output(&parsed);
        check_cables(
            &parsed.iter().filter_map(|name| Some((name.model()?, name.option("wire")?))).collect::<Vec<_>>(),
        )?;
        let is_xdp = parsed.iter().any(PortName::is_xdp);
        let buffer_size = if is_xdp { buffer_size.min(4096) } else { buffer_size };
        let default = RegionOptions::default();
        let buffers = default.buffers.max(2 * rings).next_power_of_two().min(1 << 20);
        let buffer_size = parsed.iter().map(PortName::buffer_size).fold(buffer_size.into(), usize::max);
        let memory = RegionOptions { buffers, buffer_size, pages: options.pages.into(), numa_node: options.numa };
        let pool = Pool::new(Region::new(&memory)?);
        let pages = pool.region().mapping().pages();
        static NOTED: AtomicBool = AtomicBool::new(false);
        let is_card = |name: &PortName| name.behind() == Behind::Card;
        if pages == PageSize::Ordinary && parsed.iter().any(is_card) && !NOTED.swap(true, Ordering::Relaxed) {
            let needed = (buffers * buffer_size).div_ceil(PageSize::Huge2M.bytes()) + names.len();
            note(&format!(
                "note: {} MiB of ordinary pages are in use; a card without an IOMMU needs hugepages:\n  echo {needed} | \
                 sudo tee /proc/sys/vm/nr_hugepages",
                (buffers * buffer_size) >> 20
            ));
        }
        let of_ports = Options {
            ring: options.ring.map(Into::into),
            max_frame: usize::from(options.mtu) + FRAME_HEADERS,
            pool: Some(pool),
            interrupts: match options.wait {
                Some(Wait::Poll) => None,
                // A port that another process serves can wake a thread; a card is polled unless requested
                // otherwise.
                None if !parsed.iter().any(PortName::may_be_served) => None,
                _ => Some(Duration::from_micros(options.throttle.into())),
            },
            take: options.bind.then_some(Take { access: Access::Either, force: options.force }),
            ..Options::default().with_queues(options.queues)
        };
        let devices = mode.complete(of_ports, &parsed).open_all(names).inspect_err(|error| {
            let name = error.subject();
            if error.kind() == ErrorKind::InUse && parsed.iter().filter(|other| other.short() == name).count() > 1 {
                usage(&format!("'{name}' is given twice; choose another port"))
            }
        })?;
        if let Some(why) = differing_queues(&devices).filter(|_| mode.forwards()) {
            drop(devices);
            usage(&why);
        }
        for (device, _) in devices.iter().zip(&parsed).filter(|(_, name)| name.is_xdp()) {
            let info = device.info();
            if info.behind == Behind::Packet {
                note(&format!("note: {} falls back to packet sockets: {}", device.name(), info.description));
            }
        }
        let of_queues = match options.wait {
            Some(Wait::Interrupt | Wait::Adaptive) => 0,
            _ => mode.threads(&devices.iter().map(|device| device.info().rx_queues).collect::<Vec<_>>()),
        };
        let polling = of_queues + usize::from(devices.iter().any(|device| model(device).is_some()));
        let takes_turns = |threads: usize, processors: usize, of: &str| {
            if threads > processors && !mode.is_experiment() {
                let on = if processors == 1 { "one processor".to_string() } else { format!("{processors} processors") };
                note(&format!(
                    "note: {threads} threads poll on {on}{of}, and take turns: use fewer --queues, or --wait adaptive"
                ));
            }
            threads > processors
        };
        let chosen = options.cores.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
        if chosen == 0 || !takes_turns(of_queues, chosen, " of --cores") {
            takes_turns(polling, allowed().len(), "");
        }
        let metrics = options.metrics.map(|address| Metrics::serve(address, mode)).transpose()?;
        let mut run = Run {
            mode,
            names: parsed,
            devices,
            turns: Vec::new(),
            threads: Vec::new(),
            stop: Arc::default(),
            end: End::new(),
            is_ended_by_threads: Cell::default(),
            options: options.clone(),
            profile: None,
            count,
            quota: Quota::new(count),
            is_spent: Arc::default(),
            asked: None,
            held_back: Arc::default(),
            answered: Arc::default(),
            held: Arc::default(),
            last: RefCell::default(),
            was_down: Cell::default(),
            sends_chains: false,
            shown: Shown::All,
            links: Vec::new(),
            first: Vec::new(),
            metrics,
            live: Live::new(mode, options.steering.control.as_deref())?,
        };
        // Before queues are claimed, from when on frames come: those of the time of waiting are not the run's.
        run.links = run.await_links(!mode.is_measurement())?;
        run.first = run.statistics()?;
        if mode.forwards() || mode.generates() {
            run.devices.iter().for_each(note_alone_on_switch);
        }
        Ok(run)
    }

    /// Returns the packets that the run may still move, for its threads.
    pub fn quota(&self) -> Quota {
        self.quota.clone()
    }

    /// Sets the packets per second that the threads are asked for. They count in the returned counter for how many nanoseconds a
    /// port has no room.
    pub fn ask(&mut self, packets_per_second: Option<f64>) -> Arc<AtomicU64> {
        self.asked = packets_per_second;
        self.held_back.clone()
    }

    /// Makes the threads' rate one that can change; see [`Live::paces`].
    pub fn paces(&mut self, packets_per_second: Option<f64>, mean_len: f64) -> Arc<Speed> {
        self.live.paces(packets_per_second, mean_len)
    }

    /// Returns the counter of answers, for threads that send some.
    pub fn answered(&self) -> Arc<AtomicU64> {
        self.answered.clone()
    }

    /// Returns the counter of packets that no port takes, for threads that forward.
    pub fn held(&self) -> Arc<AtomicU64> {
        self.held.clone()
    }

    /// Returns the end of the run's time, for threads that send.
    pub fn end(&self) -> End {
        self.is_ended_by_threads.set(true);
        self.end.clone()
    }

    /// Returns a flag that ends the run: a thread sets it when it has nothing more to send.
    pub fn spent(&self) -> Arc<AtomicBool> {
        self.is_spent.clone()
    }

    /// Returns whether another process serves one of the ports.
    pub fn is_served(&self) -> bool {
        self.devices.iter().any(|device| device.info().behind == Behind::Server)
    }

    /// Returns whether threads without work sleep for [`REST`]: if the other side is a process, it needs the processor. Threads
    /// that send have no waiter.
    pub fn rests(&self) -> bool {
        match self.options.wait {
            Some(Wait::Poll) => false,
            Some(Wait::Interrupt | Wait::Adaptive) => self.is_served() || self.mode.generates(),
            None => self.is_served(),
        }
    }

    /// Returns a thread's waiter, in the selected mode.
    pub fn waiter(&self) -> Waiter {
        let usual = if self.is_served() { Wait::Adaptive } else { Wait::Poll };
        Waiter::new(self.options.wait.unwrap_or(usual).into())
    }

    /// Turns on profiling, and returns where the threads record it.
    pub fn profile(&mut self) -> Arc<Profile> {
        self.profile.get_or_insert_default().clone()
    }

    /// Returns the ports.
    pub fn devices(&mut self) -> &mut [Port] {
        &mut self.devices
    }

    /// Sets what the run shows.
    pub fn shows(&mut self, shown: Shown) {
        self.shown = shown;
    }

    /// Returns the number of queues of each port; a port's own option has priority over `--queues`.
    pub fn queues(&self) -> u16 {
        self.devices.first().map_or(1, |device| device.info().rx_queues)
    }

    /// Adds a thread. `turn` moves a batch and returns the number of packets; it is called repeatedly from the time
    /// when links are up until the run ends.
    pub fn spawn(&mut self, turn: impl FnMut() -> usize + Send + 'static) {
        self.turns.push(Box::new(turn));
    }

    /// Starts a thread, one of `threads`, on the next of the chosen processors.
    fn start(&mut self, mut turn: Turn, threads: usize) -> Result<(), Error> {
        let number = self.threads.len();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let core = self.options.cores.as_ref().map(|cores| usize::from(cores[number % cores.len()]));
        let (work, stop, paused) = (Arc::<Work>::default(), self.stop.clone(), self.live.paused());
        let counters = work.clone();
        // With a processor of its own a thread spins; otherwise it yields.
        let alone = processors > threads;
        let must_rest = self.rests();
        let thread = std::thread::Builder::new().name(format!("linerate {number}")).spawn(move || {
            if let Some(core) = core {
                let mut set = rustix::thread::CpuSet::new();
                set.set(core);
                if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                    note(&format!("note: cannot use processor {core}: {error}; choose others with --cores"));
                }
            }
            let (mut before, mut patience) = (cycles(), Patience::new(PATIENCE));
            while !stop.load(Ordering::Relaxed) {
                if paused.load(Ordering::Relaxed) {
                    std::thread::sleep(LOOK);
                    before = cycles();
                    continue;
                }
                let packets = turn();
                let now = cycles();
                if packets > 0 {
                    counters.add(packets, before, now);
                    patience.reset();
                } else if must_rest {
                    if !patience.wait() {
                        std::thread::sleep(REST);
                    }
                } else if alone {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
                // The time between two turns is not a turn's.
                before = if packets > 0 { now } else { cycles() };
            }
        });
        let thread = thread.map_err(Error::thread)?;
        self.threads.push((work, thread));
        Ok(())
    }

    /// Shows progress until the time is over, all packets have moved, or Ctrl-C is pressed. Then waits for frames in
    /// flight, ends the threads, and prints the summary.
    pub fn finish(self, judge: impl Fn(&[Option<Report>], Sums) -> Outcome) -> Result<ExitCode, Error> {
        self.finish_with(judge, |_| (Value::Null, String::new()))
    }

    /// Enters the full screen, if the run is shown there.
    fn screen(&self) -> Option<Screen> {
        let is_wanted = self.shown == Shown::All && !self.options.json && !self.options.steering.plain;
        let names: Vec<String> = self.devices.iter().map(|device| shortened(device.name(), 24)).collect();
        let title = format!("linerate {} {}", self.mode.name(), names.join(" "));
        (is_wanted && is_ours())
            .then(|| Screen::enter(title, self.live.has_rate(), self.live.can_pause(), self.live.sender()))
            .flatten()
    }

    /// As [`finish`](Run::finish); `part` completes the measurements once the threads have ended, and returns the command's own
    /// part of the summary, and its table.
    pub fn finish_with(
        self,
        judge: impl Fn(&[Option<Report>], Sums) -> Outcome,
        part: impl FnOnce(&mut Measured) -> (Value, String),
    ) -> Result<ExitCode, Error> {
        let (mode, strict) = (self.mode, self.options.strict);
        let mut show = Show::new(self.options.json, self.shown, self.screen());
        let mut measured = self.measure(|_, _| (), judge, Some(&mut show))?;
        let (part, table) = part(&mut measured);
        let Measured { seconds, in_time, moved, ports, breaches, .. } = &measured;
        let Outcome { lost, corrupted, reordered, duplicated, filtered, held } = measured.outcome;
        let mut summary = json!({
            "command": mode.name(), "seconds": seconds, "interrupted": measured.interrupted, "ports": ports,
            "packets": moved.packets, "after_end": moved.packets - in_time.packets, "active_seconds": in_time.seconds(),
            "first_batch": in_time.first,
            "lost": lost, "corrupted": corrupted, "reordered": reordered, "duplicated": duplicated, "filtered": filtered, "held": held,
            "breaches": breaches,
            "mpps": measured.mpps(),
            "cycles_per_packet": moved.cycles_per_packet().map(round),
            "bounded_by": measured.bound,
            "unreached": measured.shortfalls.iter().map(Shortfall::json).collect::<Vec<_>>(),
            "processors": measured.used.json(),
        });
        if let Some(parts) = &measured.parts {
            summary["profile"] = parts.json();
        }
        if !measured.changes.is_empty() {
            summary["changes"] = std::mem::take(&mut measured.changes).into();
        }
        if !part.is_null() {
            summary[mode.name()] = part;
        }
        show.summary(&json!({ "summary": summary }), &table);
        measured.shortfalls.iter().for_each(|shortfall| shortfall.print(strict));
        if mode.needs_processors(measured.outcome.lost)
            && let Some(warning) = measured.used.warning()
        {
            note(&format!("note: {warning}"));
        }
        if let Some(error) = measured.failure {
            return Err(error);
        }
        let is_good = measured.is_good() && (!strict || measured.shortfalls.is_empty());
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// As [`finish`](Run::finish), but returns the measurements; shows progress only if `show` is given. `look` is called
    /// at each check for the end, with the packets moved so far and the seconds since the beginning. `judge` gets the reports
    /// of the ports' wires.
    pub fn measure(
        mut self,
        look: impl Fn(u64, f64),
        judge: impl Fn(&[Option<Report>], Sums) -> Outcome,
        mut show: Option<&mut Show>,
    ) -> Result<Measured, Error> {
        let links = std::mem::take(&mut self.links);
        if show.is_some() {
            self.asked_of_wires(false);
        }
        let (before, sent_before) = (Snapshot::take(), reports(&self.devices));
        let turns = std::mem::take(&mut self.turns);
        let (ways_out, first) = (ways_out(&self.names), std::mem::take(&mut self.first));
        let dropped_before: Vec<_> = ways_out.iter().map(dropped_on_the_way_out).collect();
        let start = Instant::now();
        if let Some(seconds) = self.options.seconds {
            self.end.set(cycles().saturating_add(cycles_in(seconds)));
        }
        // The models have a thread of their own.
        let threads = turns.len() + usize::from(!models(&self.devices).is_empty());
        let started = turns.into_iter().try_for_each(|turn| self.start(turn, threads));
        let has_started = started.is_ok();
        let outcome = started.and_then(|()| self.watch(start, first, links, look, &mut show));
        self.end.set(0);
        self.live.resume();
        // A peer may end while frames in flight are waited for.
        let are_up = self.devices.iter().all(is_up);
        let (mut in_time, sent, mut seconds) = (self.moved(), reports(&self.devices), start.elapsed().as_secs_f64());
        // The main thread may see the end later than the threads.
        if let Some(most) = self.options.seconds.filter(|_| self.is_ended_by_threads.get()) {
            seconds = seconds.min(most.as_secs_f64());
        }
        // Two clocks measure them.
        let seconds = seconds.max(in_time.seconds());
        let used = Snapshot::take().since(&before, moves_packets);
        let (is_ended, interrupted) = (interrupts().have_come(), interrupts().are_signals());
        // An interrupted experiment is not shown, so that it need not be complete.
        if outcome.is_ok() && !(is_ended && self.mode.is_experiment()) {
            self.drain(&judge, in_time.packets);
        }
        // Frames of other senders that come after the threads have stopped are not lost.
        let dropped = undelivered(&self.known_statistics().0);
        self.stop.store(true, Ordering::Relaxed);
        let thread_count = self.threads.len().max(1);
        let asked_of_wires = self.asked_of_wires(true);
        // Every thread is joined, also after one that has panicked.
        let (works, handles): (Vec<_>, Vec<_>) = std::mem::take(&mut self.threads).into_iter().unzip();
        let panicked = handles.into_iter().filter_map(|thread| thread.join().err()).count() > 0;
        // The packets, the ports' counters and the losses are those of one moment: now nothing moves any more.
        let (mut moved, (statistics, gone)) = (sum(&works), self.known_statistics());
        // Packets that are still in a port's ring, or that it has dropped, are not moved.
        if let Some(sent) = self.sent(&statistics) {
            (moved, in_time) = (moved.at_most(sent), in_time.at_most(sent));
        }
        let (chains, most_seconds) = (self.may_have_chains(), self.options.seconds);
        let Run { names, devices, profile, asked, held_back, count, was_down, live, .. } = self;
        let is_steered = live.is_steered();
        // A run that is shown has its summary also after an error, once all of its threads run.
        let failure = match outcome {
            Err(error) if show.is_none() || !has_started => return Err(error),
            outcome => outcome.err(),
        };

        let wires = sent.iter().zip(&sent_before);
        let in_run = |now: Report, before: Report| [now.sent - before.sent, now.arrived() - before.arrived()];
        let wires: Vec<Option<[u64; 2]>> =
            wires.map(|(now, before)| Some(in_run((*now)?, before.unwrap_or_default()))).collect();
        let mut shortfalls: Vec<Shortfall> = Vec::new();
        let missing = count.filter(|&count| moved.packets < count && failure.is_none());
        // A count that was moved ends the sender's time before that of the run; what its peer does then is no bound.
        let is_counted = count.is_some_and(|count| moved.packets >= count);
        let busy = in_time.busy_seconds() / (seconds * thread_count as f64);
        let gone_end = gone.iter().position(|&gone| gone).map(|n| format!("the end of {}", devices[n].name()));
        let link = match is_counted || are_up {
            true => was_down.get().then(|| "the link, which was down for a time".to_string()),
            false => Some("the link, which is down".to_string()),
        };
        let refused = || devices.iter().zip(&statistics).find_map(|(device, statistics)| refuses(device, statistics));
        let bound = || gone_end.clone().or_else(|| link.clone()).or_else(refused);
        let time = most_seconds.is_some_and(|most| seconds >= most.as_secs_f64());
        let ended_by = || match (is_ended, interrupted) {
            (true, true) => Some("an interrupt".to_string()),
            (true, false) if live.is_stopped() => Some("a request to stop".to_string()),
            (true, false) => Some("standard output, which takes nothing more".to_string()),
            (false, _) => time.then(|| "the end of --seconds".to_string()),
        };
        let why = || bound().or_else(ended_by);
        shortfalls.extend(missing.map(|asked| Shortfall::Count { asked, moved: moved.packets, bound: why() }));
        let active = if is_counted { moved.seconds() } else { seconds };
        if let Some(asked) = asked
            .filter(|_| !is_steered)
            .filter(|_| !(is_counted || is_ended) || active >= JUDGED || moved.packets >= ENOUGH)
        {
            let held_back = held_back.load(Ordering::Relaxed) as f64 / 1e9;
            let bound = bound().or_else(|| match used.bound() {
                _ if held_back == 0.0 => Some(used.bound_of_sender(busy)),
                // For a time that counts.
                Some(other) if held_back > 0.1 * seconds * thread_count as f64 => {
                    Some(format!("{NO_ROOM}, and {other}"))
                }
                other => other.or(Some(NO_ROOM.to_string())),
            });
            let sent = if is_counted { moved.behind_first() } else { in_time.packets };
            shortfalls.extend(Shortfall::of("the rate", asked, sent, active, bound));
        }
        for ((name, asked), sent) in names.iter().zip(&asked_of_wires).zip(&wires) {
            let Some((asked, [sent, _])) = asked.zip(*sent) else { continue };
            if seconds >= JUDGED || sent >= ENOUGH {
                let what = format!("{}'s wire", name.short());
                shortfalls.extend(Shortfall::of(&what, asked, sent, seconds, used.bound()));
            }
        }
        let stopped_by = bound();
        let is_paced = is_steered || asked.is_some() || names.iter().any(|name| wire_rate(name).is_some());
        let no_room = || (held_back.load(Ordering::Relaxed) > 0).then(|| NO_ROOM.to_string());
        // A source that is at its end bounds nothing.
        let goes_on = in_time.seconds() >= 0.9 * seconds;
        let fastest = || used.bound_of_fastest(busy).filter(|_| goes_on).or_else(no_room);
        let fastest = || fastest().filter(|_| !is_paced && seconds >= JUDGED && moved.packets > 0);
        let bound = gone_end.clone().or_else(fastest);
        let reports = reports(&devices);
        let outcome = judge(&reports, Sums { undelivered: dropped, moved: moved.packets });
        let mut has_cut_capture = false;
        for device in &devices {
            let of_wire = model(device).and_then(|card| card.check_wire().err());
            for error in device.link().err().into_iter().chain(of_wire).filter(is_of_file) {
                note(&format!("error: {}: {error}", device.name()));
                has_cut_capture = true;
            }
        }
        let cards = models(&devices);
        let breaches: u64 = cards.iter().map(|card| card.breach_count()).sum();
        for card in &cards {
            card.breaches().iter().take(5).for_each(|breach| note(&format!("sim:{}: breach: {breach}", card.name())));
        }
        if show.is_some() {
            note_dropped_on_the_way_out(&ways_out, &dropped_before);
            note_captures(&devices, &reports);
            note_unsent_by_wires(&names, &devices);
            if count.is_none() {
                note_left_in_cards(&devices, &reports, &statistics);
            }
            dead_ends(&devices, &statistics, moved.packets, outcome.filtered, chains);
        }
        let ports = devices
            .iter()
            .zip(statistics.iter().zip(reports.iter().zip(&gone)))
            .map(|(device, (statistics, (wire, gone)))| port_summary(device, statistics, wire.as_ref(), *gone, chains));
        Ok(Measured {
            seconds,
            in_time,
            moved,
            outcome,
            shortfalls,
            bound,
            wires,
            used,
            stopped_by,
            interrupted,
            failure,
            breaches,
            ports: ports.collect(),
            parts: profile.map(|profile| profile.parts()),
            panicked,
            has_cut_capture,
            is_steered,
            changes: live.changes(),
        })
    }

    /// Waits for the links of cards, which negotiate after each reset, and prints the opened ports. Returns whether each
    /// port had a link then.
    fn await_links(&self, tell: bool) -> Result<Vec<bool>, Error> {
        let start = Instant::now();
        let mut links = Vec::new();
        for (device, name) in self.devices.iter().zip(&self.names) {
            if model(device).is_some() {
                let is_up = is_up(device);
                match name.option("wire") {
                    Some("none") => note(&format!("note: {}: no link, with wire=none", device.name())),
                    Some(wire) if !is_up => {
                        note(&format!("note: {}: no link: is {wire}, which is its wire, up?", device.name()));
                    }
                    _ => {}
                }
                links.push(is_up);
                continue;
            }
            let mut link = device.link()?;
            if link == Link::Down {
                let look_at = match name.interface() {
                    // Of an interface that is not up this cannot be read.
                    Some(interface) if std::fs::read(format!("/sys/class/net/{interface}/carrier")).is_ok() => {
                        format!("{interface} is up and has no carrier: is its other end up?")
                    }
                    Some(interface) => format!("is the interface up? sudo ip link set dev {interface} up"),
                    None if matches!(name.kind().address, Address::Socket) && !Path::new(name.rest()).exists() => {
                        format!("there is no socket {}: is the other side running?", name.rest())
                    }
                    None if std::ptr::eq(name.kind(), &linerate::vhost::KIND.about) => {
                        format!("{} see: linerate vm {}", name.kind().no_link, device.name())
                    }
                    None => name.kind().no_link.to_string(),
                };
                let name = device.name().trim_end_matches(':');
                note(&format!("{name}: waiting for the link, at most {} s; {look_at}", LINK.as_secs()));
            }
            while link == Link::Down && start.elapsed() < LINK && !interrupts().wait(LINK_LOOK) {
                self.hear_before()?;
                link = device.link()?;
            }
            links.push(link != Link::Down);
            if !tell && link != Link::Down {
                continue;
            }
            let link = match link {
                Link::Up { mbits: 0 } => "link up".to_string(),
                Link::Up { mbits } => format!("link up at {mbits} Mbit/s"),
                Link::Down => format!("no link after {} s", start.elapsed().as_secs()),
            };
            let name = device.name().trim_end_matches(':');
            let mac = Some(device.mac()).filter(|mac| mac.0 != [0; 6]).map_or(String::new(), |mac| format!(", {mac}"));
            note(&format!("{name}: {}{mac}, {link}", device.info().description));
        }
        Ok(links)
    }

    /// Returns the counters as Prometheus reads them; of a port that is gone those that were read last.
    fn counters(&self, moved: &Moved) -> String {
        let (statistics, gone) = self.known_statistics();
        let ports = self.devices.iter().zip(statistics.iter().zip(&gone));
        let samples: Vec<Sample> = ports
            .map(|(device, (statistics, gone))| Sample {
                name: device.name(),
                is_up: !gone && is_up(device),
                statistics,
            })
            .collect();
        let held = self.held.load(Ordering::Relaxed);
        metrics::text(self.mode, moved.packets, held, moved.cycles_per_packet(), &samples)
    }

    /// True if a capture file that is a port cannot be read or written any more.
    fn has_failed(&self) -> bool {
        let is_broken = |device: &Port| device.link().is_err_and(|error| is_of_file(&error));
        self.devices.iter().any(|device| device.info().behind == Behind::Capture && is_broken(device))
    }

    /// True if no port will receive anything any more.
    fn is_exhausted(&self) -> bool {
        self.mode.ends_with_ports() && self.devices.iter().all(Port::is_exhausted)
    }

    /// Returns the packets of all threads.
    fn moved(&self) -> Moved {
        sum(self.threads.iter().map(|(work, _)| work))
    }

    fn statistics(&self) -> Result<Vec<Statistics>, Error> {
        models(&self.devices).iter().try_for_each(|card| wire_gone(card).map_or(Ok(()), Err))?;
        self.devices.iter().try_for_each(|device| gone(device).map_or(Ok(()), Err))?;
        self.devices.iter().map(|device| device.statistics()).collect()
    }

    /// Stops the models' wires and lets the threads go on until the ports have sent the `moved` packets and all frames of
    /// testers have arrived, or nothing has moved for [`DRAIN`].
    fn drain(&self, judge: &impl Fn(&[Option<Report>], Sums) -> Outcome, moved: u64) {
        models(&self.devices).iter().for_each(|card| card.finish_wire());
        // Other senders do not stop: what is missing may be lost, and what comes now is of after the end.
        let is_ours = self.devices.iter().all(|device| model(device).is_some() || device.is_exhausted());
        let is_quiet = is_ours || self.mode.awaits_frames();
        let is_settled = || {
            // Frames that the ports have dropped are not waited for; what other senders' frames met is no measure.
            let statistics = self.known_statistics().0;
            let undelivered = if is_ours { undelivered(&statistics) } else { 0 };
            let sums = Sums { undelivered, moved: self.moved().packets.min(self.sent(&statistics).unwrap_or(0)) };
            self.has_sent(self.moved().packets.max(moved))
                && (!is_quiet || judge(&reports(&self.devices), sums).lost <= undelivered)
        };
        // Frames that the models' wires have sent are still to be received and forwarded, as those that wait in the ring of a
        // port which is gone.
        let arrived = || {
            let (statistics, gone) = self.known_statistics();
            let all = self.devices.iter().zip(statistics.iter().zip(gone));
            let are_left = all.filter(|(device, (_, gone))| *gone || model(device).is_some());
            are_left.map(|(_, (statistics, _))| statistics.rx_packets).sum::<u64>()
        };
        // A thread without a processor has not received them yet; after a count it does not.
        let is_received = || {
            let all = self.devices.iter().zip(self.known_statistics().0);
            self.count.is_some()
                || all.filter(|(device, _)| model(device).is_some()).all(|(device, statistics)| {
                    device.queue_statistics().rx_slots.iter().sum::<u64>() >= statistics.rx_packets
                })
        };
        let (mut last, mut since) = ((0, Vec::new()), Instant::now());
        let is_gone = self.devices.iter().any(|device| gone(device).is_some());
        let (mut before, mut changed) = (arrived(), Instant::now());
        let mut is_still = !is_gone && models(&self.devices).is_empty();
        let begin = Instant::now();
        while !(is_still && is_received() && is_settled()) && since.elapsed() < DRAIN && begin.elapsed() < LONGEST_DRAIN
        {
            // The frames need the processors.
            std::thread::sleep(LOOK);
            let now = arrived();
            if now != std::mem::replace(&mut before, now) {
                changed = Instant::now();
            }
            is_still = changed.elapsed() >= if is_gone { LEFT } else { LOOK };
            let now = (self.moved().packets, reports(&self.devices));
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// True if the ports have sent this many packets.
    fn has_sent(&self, moved: u64) -> bool {
        let Ok(statistics) = self.statistics() else { return true };
        let too_long: u64 = statistics.iter().map(|port| port.drops.tx_too_long).sum();
        self.sent(&statistics).is_none_or(|sent| sent + too_long >= moved)
    }

    /// Returns the packets that the ports have sent, with those that `faulty:` may have dropped instead; `None` if they were
    /// given none.
    fn sent(&self, statistics: &[Statistics]) -> Option<u64> {
        let given: u64 = self.devices.iter().flat_map(|device| device.queue_statistics().tx_slots).sum();
        let refused: u64 = statistics.iter().map(|port| port.drops.tx_too_long).sum();
        let sent: u64 = statistics.iter().map(|port| port.tx_packets + port.drops.injected).sum();
        self.mode.moves_by_sending(given + refused).then(|| sent.saturating_sub(self.answered.load(Ordering::Relaxed)))
    }

    /// Returns the ports' counters, and whether each port is gone. Of a card that is gone they are the last ones read, with
    /// the packets that its queues have moved.
    fn known_statistics(&self) -> (Vec<Statistics>, Vec<bool>) {
        let last = self.last.borrow();
        let known = self.devices.iter().enumerate().map(|(n, device)| match device.statistics() {
            Ok(statistics) => (statistics, gone(device).is_some()),
            Err(_) => {
                let mut known = last.get(n).copied().unwrap_or_default();
                if !self.may_have_chains() {
                    let QueueStatistics { rx_slots, tx_slots, .. } = device.queue_statistics();
                    (known.rx_packets, known.tx_packets) = (rx_slots.iter().sum(), tx_slots.iter().sum());
                }
                (known, true)
            }
        });
        known.unzip()
    }

    /// Returns the packets per second that each model's wire is asked for, without an end. Prints how the rates are
    /// understood, unless it should be quiet.
    fn asked_of_wires(&self, is_quiet: bool) -> Vec<Option<f64>> {
        let ports = self.names.iter().zip(&self.devices);
        ports
            .map(|(name, device)| {
                let (rate, len) = wire_rate(name)?;
                let rate = possible(rate, len, device, is_quiet)?;
                name.option("count").is_none().then(|| rate.packets_per_second(len))
            })
            .collect()
    }

    /// Notes the length of the run's own frames.
    pub fn sends_frames_of(&mut self, len: usize) {
        self.sends_chains = len > self.devices[0].pool().region().room();
    }

    /// Returns whether packets may come as chains, which count once.
    pub fn may_have_chains(&self) -> bool {
        // A capture file has frames of any length.
        let is_capture = |name: &PortName| name.is_capture_to_read();
        self.sends_chains
            || self.names.iter().any(is_capture)
            || self.devices.iter().any(|device| device.info().max_frame > device.pool().region().room())
    }
}

/// Returns the packets of these threads.
fn sum<'a>(works: impl IntoIterator<Item = &'a Arc<Work>>) -> Moved {
    works.into_iter().fold(Moved::default(), |sum, work| sum.and(work.moved()))
}

/// Returns the most queues of the ports' AF_XDP sockets, which are as many as the interface has; 0 without one.
pub fn xdp_queues(names: &[PortName]) -> u32 {
    let interfaces = names.iter().filter(|name| name.is_xdp()).filter_map(interface);
    interfaces.map(|interface| interface.queues()).max().unwrap_or(0)
}

/// Returns the kernel's interface that a port is on.
pub fn interface(name: &PortName) -> Option<Interface> {
    Interface::open_queue(name.interface()?).ok().map(|(interface, _)| interface)
}

/// Returns the models among the ports.
fn models(devices: &[Port]) -> Vec<Arc<Card>> {
    devices.iter().filter_map(model).collect()
}

/// Returns the report of each port's wire, if the port is a model with a wire that counts.
fn reports(devices: &[Port]) -> Vec<Option<Report>> {
    devices.iter().map(|device| model(device)?.wire_report()).collect()
}

/// Refuses a capture that is written to standard output, which also has the figures.
fn check_standard_output(names: &[PortName]) {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino(), file.is_file()));
    let output = file(Path::new("/proc/self/fd/1"));
    for name in names.iter().filter(|name| name.is_capture_to_write()) {
        let Some(path) = name.path().filter(|path| *path != Path::new("/dev/null")) else { continue };
        if output.is_some() && file(path) == output {
            usage(&format!(
                "{name}: the figures are printed there, too; write to a pipe: mkfifo p; cat p & … pcap:p?write"
            ));
        }
    }
}

/// Returns the error of a port at a model's other end that is gone. A capture file that has failed is reported at the end.
fn wire_gone(card: &Card) -> Option<Error> {
    card.check_wire().err().filter(|error| !is_of_file(error))
}

/// Returns why a port is gone; a capture file that fails is not.
fn gone(device: &Port) -> Option<Error> {
    device.link().err().filter(|error| !is_of_file(error))
}

/// Returns whether an error is that of a capture file.
fn is_of_file(error: &Error) -> bool {
    error.kind() == ErrorKind::File
}

/// Rounds to three digits, which are enough for people and machines.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
