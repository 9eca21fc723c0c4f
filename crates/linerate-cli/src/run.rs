//! A run: opened ports, one pinned thread per queue, an end, and a summary.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate::memory::{PageSize, Pool, Region, RegionOptions};
use linerate::port::{
    Access, FRAME_HEADERS, Link, Patience, Port, PortName, QueueStatistics, Statistics, Take, TxQueue, Waiter,
};
use linerate::sim82599::{self, Card};
use linerate::traffic::Report;
use linerate::{Batch, Error, Options};
use serde_json::{Value, json};

use crate::profile::{Parts, Profile, cycles};
use crate::show::{Rates, Show, drops};
use crate::{Common, Wait};

/// One thread's counters, in a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
pub struct Work {
    /// Packets moved.
    pub packets: AtomicU64,
    /// TSC cycles of the turns that moved packets.
    pub cycles: AtomicU64,
}

impl Work {
    /// Adds one turn; only the thread itself calls it.
    pub fn add(&self, packets: usize, cycles: u64) {
        let add = |counter: &AtomicU64, by| counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        add(&self.packets, packets as u64);
        add(&self.cycles, cycles);
    }
}

/// One thread's work: moves a batch, and returns the number of packets.
type Turn = Box<dyn FnMut() -> usize + Send>;

/// Opened ports, and the threads that work on them.
pub struct Run {
    command: &'static str,
    devices: Vec<Port>,
    /// Work that starts once the links are up.
    turns: Vec<Turn>,
    threads: Vec<(Arc<Work>, JoinHandle<()>)>,
    stop: Arc<AtomicBool>,
    common: Common,
    profile: Option<Arc<Profile>>,
}

/// The measurements of a run.
pub struct Measured {
    pub seconds: f64,
    /// Packets moved, and the TSC cycles of the turns that moved some.
    pub packets: u64,
    pub cycles: u64,
    pub outcome: Outcome,
    /// Breaches of the datasheet by drivers of the models.
    pub breaches: u64,
    pub ports: Vec<Value>,
    /// Cycles by part, if a profile was requested.
    pub parts: Option<Parts>,
    /// A thread has panicked.
    pub panicked: bool,
    /// A capture file at a port's other end could not be read or written to its end.
    pub has_cut_capture: bool,
}

impl Measured {
    /// True if nothing was lost or damaged.
    pub fn is_good(&self) -> bool {
        let Outcome { lost, corrupted, .. } = self.outcome;
        lost == 0 && corrupted == 0 && self.breaches == 0 && !self.panicked && !self.has_cut_capture
    }

    pub fn mpps(&self) -> f64 {
        self.packets as f64 / self.seconds / 1e6
    }

    pub fn cycles_per_packet(&self) -> f64 {
        per_packet((0, 0), (self.packets, self.cycles))
    }
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
    /// Frames that a filter dropped.
    pub filtered: u64,
}

/// How long nothing may move at the end before missing frames count as lost.
const DRAIN: Duration = Duration::from_secs(2);
/// The longest time to wait for frames that are still moving.
const LONGEST_DRAIN: Duration = Duration::from_secs(5);
/// The longest time to wait for links; 1 and 10 Gbit/s on copper need some seconds.
const LINK: Duration = Duration::from_secs(10);
/// How often a run checks for its end.
const TICK: Duration = Duration::from_millis(100);

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
const REST: Duration = Duration::from_micros(20);

/// Returns the model behind a port, if there is one.
pub fn model(port: &Port) -> Option<Arc<Card>> {
    PortName::parse(port.name()).ok()?.model().and_then(sim82599::named)
}

impl Run {
    /// Opens ports on one pool that is large enough for all their queues.
    pub fn open(command: &'static str, names: &[&str], common: &Common) -> Result<Run, Error> {
        let rings = names.len() * common.queues as usize * common.ring.unwrap_or(512) as usize * 2;
        // Room for the longest frame after the headroom; 1,500 bytes fit 2 KiB.
        let buffer_size = if common.mtu <= 1500 { 2048 } else { (common.mtu + 1024).next_power_of_two() };
        // AF_XDP buffers are at most a page; longer frames are chains there.
        let parsed = names.iter().map(|name| PortName::parse(name)).collect::<Result<Vec<_>, Error>>()?;
        let is_xdp = parsed.iter().any(PortName::is_xdp);
        let buffer_size = if is_xdp { buffer_size.min(4096) } else { buffer_size };
        let default = RegionOptions::default();
        let buffers = default.buffers.max(2 * rings).next_power_of_two().min(1 << 20);
        let buffer_size = buffer_size.into();
        let options = RegionOptions { buffers, buffer_size, pages: common.pages.into(), numa_node: common.numa };
        let pool = Pool::new(Region::new(&options)?);
        let pages = pool.region().mapping().pages();
        if pages == PageSize::Ordinary && parsed.iter().any(|name| name.model().is_some()) {
            let needed = (buffers * buffer_size).div_ceil(PageSize::Huge2M.bytes()) + names.len();
            eprintln!(
                "note: {} MiB of ordinary pages are in use, which is fine for models; a card without an IOMMU needs \
                 hugepages:\n  echo {needed} | sudo tee /proc/sys/vm/nr_hugepages",
                (buffers * buffer_size) >> 20
            );
        }
        let options = Options {
            ring: common.ring.map(Into::into),
            max_frame: usize::from(common.mtu) + FRAME_HEADERS,
            pool: Some(pool),
            interrupts: match common.wait {
                Some(Wait::Poll) => None,
                // A port that another process serves can wake a thread; a card is polled unless requested
                // otherwise.
                None if !parsed.iter().any(PortName::may_be_served) => None,
                _ => Some(Duration::from_micros(common.throttle.into())),
            },
            take: common.bind.then_some(Take { access: Access::Either, force: common.force }),
            ..Options::default().with_queues(common.queues)
        };
        let devices = options.open_all(names)?;
        for (device, _) in devices.iter().zip(&parsed).filter(|(_, name)| name.is_xdp()) {
            let info = device.info();
            if info.driver == "packet" {
                eprintln!("note: {} falls back to packet sockets: {}", device.name(), info.description);
            }
        }
        Ok(Run {
            command,
            devices,
            turns: Vec::new(),
            threads: Vec::new(),
            stop: Arc::default(),
            common: common.clone(),
            profile: None,
        })
    }

    /// Returns whether another process serves one of the ports.
    pub fn is_served(&self) -> bool {
        self.devices.iter().any(|device| device.info().driver == "served")
    }

    /// Returns a thread's waiter, in the selected mode.
    pub fn waiter(&self) -> Waiter {
        let usual = if self.is_served() { Wait::Adaptive } else { Wait::Poll };
        Waiter::new(self.common.wait.unwrap_or(usual).into())
    }

    /// Turns on profiling, and returns where the threads record it.
    pub fn profile(&mut self) -> Arc<Profile> {
        self.profile.get_or_insert_default().clone()
    }

    /// Returns the ports.
    pub fn devices(&mut self) -> &mut [Port] {
        &mut self.devices
    }

    /// Returns the number of queues of each port; a port's own option has priority over `--queues`.
    pub fn queues(&self) -> u16 {
        self.devices.iter().map(|device| device.info().rx_queues).min().unwrap_or(1)
    }

    /// Adds a thread. `turn` moves a batch and returns the number of packets; it is called repeatedly from the time
    /// when links are up until the run ends.
    pub fn spawn(&mut self, turn: impl FnMut() -> usize + Send + 'static) {
        self.turns.push(Box::new(turn));
    }

    /// Starts a thread, on the next of the chosen processors.
    fn start(&mut self, mut turn: Turn) {
        let number = self.threads.len();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let core = match self.common.cores[..] {
            [] => None,
            ref cores => Some(usize::from(cores[number % cores.len()])),
        };
        let (work, stop) = (Arc::<Work>::default(), self.stop.clone());
        let counters = work.clone();
        // With a processor of its own a thread spins; otherwise it yields. If the other side is a process, the
        // thread rests, because that process needs a processor.
        let alone = processors > self.queues() as usize;
        let must_rest = self.is_served() && self.common.wait != Some(Wait::Poll);
        let thread = std::thread::spawn(move || {
            if let Some(core) = core {
                let mut set = rustix::thread::CpuSet::new();
                set.set(core);
                if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                    eprintln!("note: cannot use processor {core}: {error}; choose others with --cores");
                }
            }
            let (mut before, mut patience) = (cycles(), Patience::new(PATIENCE));
            while !stop.load(Ordering::Relaxed) {
                let packets = turn();
                let now = cycles();
                if packets > 0 {
                    counters.add(packets, now - before);
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
                before = now;
            }
        });
        self.threads.push((work, thread));
    }

    /// Shows progress until the time is over, `done` returns true, or Ctrl-C is pressed. Then waits for frames in
    /// flight, ends the threads, and prints the summary.
    pub fn finish(
        self,
        done: impl Fn(u64) -> bool,
        judge: impl Fn(&[Option<Report>]) -> Outcome,
    ) -> Result<ExitCode, Error> {
        let (command, mut show) = (self.command, Show::new(self.common.json));
        let measured = self.measure(done, judge, Some(&mut show))?;
        let Measured { seconds, packets, cycles, ports, breaches, .. } = &measured;
        let Outcome { lost, corrupted, reordered, filtered } = measured.outcome;
        let mut summary = json!({
            "command": command, "seconds": round(*seconds), "ports": ports,
            "lost": lost, "corrupted": corrupted, "reordered": reordered, "filtered": filtered,
            "breaches": breaches,
            "mpps": round(*packets as f64 / seconds / 1e6),
            "cycles_per_packet": round(per_packet((0, 0), (*packets, *cycles))),
        });
        if let Some(parts) = &measured.parts {
            summary["profile"] = parts.json();
        }
        show.summary(&json!({ "summary": summary }));
        Ok(if measured.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// As [`finish`](Run::finish), but returns the measurements; shows progress only if `show` is given.
    pub fn measure(
        mut self,
        done: impl Fn(u64) -> bool,
        judge: impl Fn(&[Option<Report>]) -> Outcome,
        mut show: Option<&mut Show>,
    ) -> Result<Measured, Error> {
        self.await_links(show.is_some())?;
        std::mem::take(&mut self.turns).into_iter().for_each(|turn| self.start(turn));
        let start = Instant::now();
        let outcome = self.watch(start, done, &mut show);
        let (seconds, (packets, cycles)) = (start.elapsed().as_secs_f64(), self.work());
        self.drain(&judge);
        self.stop.store(true, Ordering::Relaxed);
        let Run { devices, threads, profile, .. } = self;
        // Every thread is joined, also after one that has panicked.
        let panicked = threads.into_iter().filter_map(|(_, thread)| thread.join().err()).count() > 0;
        outcome?;

        let reports = reports(&devices);
        let outcome = judge(&reports);
        let mut has_cut_capture = false;
        for (device, report) in devices.iter().zip(&reports) {
            let (name, report) = (device.name(), report.unwrap_or_default());
            if report.unreadable > 0 {
                let frames = report.sent;
                eprintln!(
                    "error: {name}: the capture file is malformed or truncated after frame {frames}; the rest was not sent"
                );
            }
            if report.unrecorded > 0 {
                eprintln!(
                    "error: {name}: the recording ends before the last frame: the disk is full or cannot be written"
                );
            }
            has_cut_capture |= report.unreadable + report.unrecorded > 0;
        }
        let cards = models(&devices);
        let breaches: u64 = cards.iter().map(|card| card.breach_count()).sum();
        for card in &cards {
            card.breaches().iter().take(5).for_each(|breach| eprintln!("sim:{}: breach: {breach}", card.name()));
        }
        for device in &devices {
            if let Err(error @ (Error::Capture { .. } | Error::Recording { .. })) = device.link() {
                eprintln!("error: {}: {error}", device.name());
                has_cut_capture = true;
            }
        }
        let statistics = devices.iter().map(|device| device.statistics()).collect::<Result<Vec<_>, Error>>()?;
        let ports = devices.iter().zip(&statistics).map(|(device, statistics)| port_summary(device, statistics));
        Ok(Measured {
            seconds,
            packets,
            cycles,
            outcome,
            breaches,
            ports: ports.collect(),
            parts: profile.map(|profile| profile.parts()),
            panicked,
            has_cut_capture,
        })
    }

    /// Waits for the links of cards, which negotiate after each reset, and prints the opened ports.
    fn await_links(&self, tell: bool) -> Result<(), Error> {
        let start = Instant::now();
        for device in self.devices.iter().filter(|device| model(device).is_none()) {
            let mut link = device.link()?;
            while link == Link::Down && start.elapsed() < LINK {
                std::thread::park_timeout(TICK);
                link = device.link()?;
            }
            if !tell && link != Link::Down {
                continue;
            }
            let link = match link {
                Link::Up { mbits: 0 } => "link up".to_string(),
                Link::Up { mbits } => format!("link up at {mbits} Mbit/s"),
                Link::Down => {
                    let up = match device.name().split_once(':') {
                        Some(("xdp" | "packet", interface)) => {
                            format!(" Is the interface up? sudo ip link set {interface} up")
                        }
                        _ => String::new(),
                    };
                    format!("no link after {} s; is the cable plugged in?{up}", LINK.as_secs())
                }
            };
            eprintln!("{}: {}, {}, {link}", device.name(), device.info().description, device.mac());
        }
        Ok(())
    }

    /// Shows the rates every second, until the end.
    fn watch(&self, start: Instant, done: impl Fn(u64) -> bool, show: &mut Option<&mut Show>) -> Result<(), Error> {
        let interrupts = interrupts();
        // A time beyond the clock's range never ends.
        let end = self.common.seconds.and_then(|seconds| start.checked_add(seconds));
        let mut last = (start, self.statistics()?, self.work());
        loop {
            let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            if interrupts.wait(TICK.min(left)) {
                return Ok(());
            }
            let (now, work) = (Instant::now(), self.work());
            let over = end.is_some_and(|end| now >= end) || done(work.0);
            if over || self.threads.iter().any(|(_, thread)| thread.is_finished()) {
                return Ok(());
            }
            if let Some(show) = show
                && now - last.0 >= Duration::from_secs(1)
            {
                let statistics = self.statistics()?;
                let seconds = (now - last.0).as_secs_f64();
                let pairs = last.1.iter().zip(&statistics);
                let rates: Vec<Rates> = self
                    .devices
                    .iter()
                    .zip(pairs)
                    .map(|(device, (before, now))| Rates::new(device.name(), before, now, seconds))
                    .collect();
                let parts = self.profile.as_ref().map(|profile| profile.parts());
                show.tick((now - start).as_secs_f64(), &rates, per_packet(last.2, work), parts);
                last = (now, statistics, work);
            }
        }
    }

    /// Returns packets and cycles of all threads.
    fn work(&self) -> (u64, u64) {
        let sum =
            |of: fn(&Work) -> &AtomicU64| self.threads.iter().map(|(work, _)| of(work).load(Ordering::Relaxed)).sum();
        (sum(|work| &work.packets), sum(|work| &work.cycles))
    }

    fn statistics(&self) -> Result<Vec<Statistics>, Error> {
        self.devices.iter().map(|device| device.statistics()).collect()
    }

    /// Stops the models' wires and lets the threads go on until all sent frames have arrived, or nothing has moved
    /// for [`DRAIN`]. A port that others send to is never quiet.
    fn drain(&self, judge: &impl Fn(&[Option<Report>]) -> Outcome) {
        models(&self.devices).iter().for_each(|card| card.finish_wire());
        let (mut last, mut since) = ((0, Vec::new()), Instant::now());
        let begin = Instant::now();
        while !self.is_settled(judge) && since.elapsed() < DRAIN && begin.elapsed() < LONGEST_DRAIN {
            std::thread::yield_now();
            let now = (self.work().0, reports(&self.devices));
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// True if the cards have sent all their packets, and the testers have received them.
    fn is_settled(&self, judge: &impl Fn(&[Option<Report>]) -> Outcome) -> bool {
        let Ok(statistics) = self.statistics() else { return true };
        let given: u64 = self.devices.iter().flat_map(|device| device.queue_statistics().tx_slots).sum();
        let sent: u64 = statistics.iter().map(|port| port.tx_packets + port.drops.tx_too_long).sum();
        (given == 0 || sent >= self.work().0) && judge(&reports(&self.devices)).lost == 0
    }
}

/// Returns the models among the ports.
fn models(devices: &[Port]) -> Vec<Arc<Card>> {
    devices.iter().filter_map(model).collect()
}

/// Returns the report of each port's wire, if the port is a model with a wire that counts.
fn reports(devices: &[Port]) -> Vec<Option<Report>> {
    devices.iter().map(|device| model(device)?.wire_report()).collect()
}

fn per_packet(before: (u64, u64), now: (u64, u64)) -> f64 {
    (now.1 - before.1) as f64 / (now.0 - before.0).max(1) as f64
}

/// Rounds to three digits, which are enough for people and machines.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn port_summary(device: &Port, statistics: &Statistics) -> Value {
    let QueueStatistics { rx_slots, tx_slots } = device.queue_statistics();
    json!({
        "name": device.name(), "rx_slots": rx_slots, "tx_slots": tx_slots,
        "rx_packets": statistics.rx_packets, "tx_packets": statistics.tx_packets,
        "rx_bytes": statistics.rx_bytes, "tx_bytes": statistics.tx_bytes,
        "drops": drops(&statistics.drops),
    })
}

/// The receiver of Ctrl-C, SIGTERM and SIGHUP, for all runs of the process.
pub struct Interrupts(Option<Mutex<Receiver<()>>>);

impl Interrupts {
    /// Waits for `time`; true if a signal came.
    pub fn wait(&self, time: Duration) -> bool {
        match &self.0 {
            Some(receiver) => {
                let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
                receiver.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
            }
            None => {
                std::thread::park_timeout(time);
                false
            }
        }
    }
}

/// Returns the process's receiver of signals.
pub fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: LazyLock<Interrupts> = LazyLock::new(|| {
        let (sender, receiver) = channel();
        match ctrlc::set_handler(move || sender.send(()).unwrap_or_default()) {
            Ok(()) => Interrupts(Some(Mutex::new(receiver))),
            Err(error) => {
                eprintln!("note: Ctrl-C will not print a summary: {error}");
                Interrupts(None)
            }
        }
    });
    &INTERRUPTS
}
