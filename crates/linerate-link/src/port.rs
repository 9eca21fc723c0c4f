//! The ports `link:PORT` and `faulty:PORT`: any port, over an emulated link.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use linerate_core::Batch;
use linerate_core::batch::MAX_CHAIN;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Pool, Reservation};
use linerate_core::port::{
    Address, Description, Device, Info, Opening, PortClass, PortKind, PortName, PortOption, QueueStatistics, Receive,
    RxWrapper, Statistics, Transmit, TxWrapper, Value, Wrapped, Wrapper, rx_around, tx_around,
};

use crate::counts::{Counters, Event};
use crate::line::Line;
use crate::parameters::{NEEDS, OF_CARDS, OF_OTHERS, Parameters, Refused};
use crate::play::Recording;
use crate::record::Recorder;
use crate::timer::Timer;
use crate::transmitter::Pace;

/// A port over an emulated link.
pub type LinkPort = Wrapped<Link>;

/// `link:PORT`
pub static LINK: PortKind = PortKind {
    description: Description {
        options: &OPTIONS,
        example: "link:sim:0?delay=20ms",
        summary: "any port, over a link with delay, rate, queue and loss",
        page: "link.md",
        held_buffers: Some(held_buffers),
        ..Description::new("link", Address::Port)
    },
    open: &open,
};

/// `faulty:PORT`: the faults of a link, without delay and rate.
pub static FAULTY: PortKind = PortKind {
    description: Description {
        options: &[text("drop", "P%", "0", "lose packets"), CORRUPT, TRUNCATE, DUPLICATE, REORDER, FIXED_SEED],
        example: "faulty:sim:0?drop=1%&seed=7",
        summary: "any port, with faults",
        page: "link.md",
        ..Description::new("faulty", Address::Port)
    },
    open: &open,
};

const CORRUPT: PortOption = text("corrupt", "P%", "0", "invert a bit of packets");
const TRUNCATE: PortOption = text("truncate", "P%", "0", "cut the end of packets off");
const DUPLICATE: PortOption = text("duplicate", "P%", "0", "repeat packets");
const REORDER: PortOption = text("reorder", "P%", "0", "let the next packet overtake, at most 50%");
const SEED: PortOption = PortOption {
    name: "seed",
    value: Value::Number(0, usize::MAX),
    default: "",
    help: "the same seed gives the same random decisions for the same packets of a queue; random by default",
};
/// The default does not change, for those who have relied on it.
const FIXED_SEED: PortOption =
    PortOption { default: "1", help: "the same seed gives the same faults for the same packets of a queue", ..SEED };

const OPTIONS: [PortOption; 28] = [
    text("delay", "TIME", "0", "how long packets travel, as 20ms"),
    text("jitter", "TIME", "0", "how much the delay varies"),
    text("distribution", "NAME", "uniform", "of the delays: uniform, normal, pareto, or netem's file"),
    PortOption { default: "on", ..PortOption::switch("order", "packets with a shorter delay wait for those before") },
    text("loss", "P%", "0", "lose packets"),
    text("burst", "N", "1", "the mean number of packets lost in a row"),
    text("gilbert", "P,R,H,K", "", "loss by Gilbert and Elliott's model"),
    text("pattern", "TEXT", "", "lose packets where the text has an x: ...x"),
    text("ber", "P", "0", "the probability that a bit is wrong, and the frame lost"),
    CORRUPT,
    TRUNCATE,
    DUPLICATE,
    REORDER,
    text("rate", "RATE", "", "the bandwidth, as 50Mbit"),
    text("overhead", "BYTES", "none", "of each frame at the rate: ethernet, or bytes"),
    text("queue", "SIZE", "", "before the rate: 100kB, 1000p or 50ms"),
    PortOption { name: "aqm", value: Value::Word(&["none", "codel"]), default: "none", help: "drop early: codel" },
    text("target", "TIME", "5ms", "CoDel's target"),
    text("interval", "TIME", "100ms", "CoDel's interval"),
    PortOption::switch("ecn", "CoDel marks packets instead of dropping them"),
    text("trace", "FILE", "", "the rate, as a trace of mahimahi"),
    text("trace-back", "FILE", "", "the same, for packets to the port"),
    text("schedule", "FILE", "", "changes of rate, delay and loss, as CSV"),
    text("schedule-back", "FILE", "", "the same, for packets to the port"),
    text("packets", "N", "", "the most packets that a direction holds"),
    SEED,
    text(RECORD, "FILE", "", "write what the link does with each packet, as CSV"),
    text(PLAY, "FILE", "", "repeat what a recorded link did with each packet"),
];

const RECORD: &str = "record";
const PLAY: &str = "play";

const fn text(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> PortOption {
    PortOption { name, value: Value::Text(value), default, help }
}

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    Ok(Box::new(LinkPort::open(&opening, Link::of(opening.name)?)?))
}

/// Returns how many buffers a queue in each direction needs.
fn held_buffers(class: PortClass, options: &[(&str, &str)]) -> usize {
    parameters(&LINK, class, options).map_or(0, |both| both.iter().map(reserved).sum())
}

/// Returns the buffers that the packets of a direction occupy for a long time.
pub fn reserved(parameters: &Parameters) -> usize {
    match parameters.holds_packets() {
        true => parameters.capacity() + 2 * MAX_CHAIN,
        false => 0,
    }
}

/// Returns the parameters of both directions from the options of a name; the error has the option under its name there.
fn parameters(
    kind: &Description,
    class: PortClass,
    options: &[(&str, &str)],
) -> std::result::Result<[Parameters; 2], Refused> {
    let mut options = own(kind, options);
    let recordings = recordings(&options)?;
    let default = kind.option(SEED.name).map_or("", |seed| seed.default);
    if !default.is_empty() && !options.iter().any(|(option, _)| *option == SEED.name) {
        options.push((SEED.name, default));
    }
    let of = |direction| {
        let play = recordings.as_ref().map(|recordings| recordings[direction as usize].clone());
        of_direction_or_play(&options, direction, class, play).map_err(|refused| match refused.option {
            "loss" if kind.option("loss").is_none() => Refused { option: "drop", ..refused },
            _ => refused,
        })
    };
    Ok([of(Direction::FromPort)?, of(Direction::ToPort)?])
}

/// Returns the options that a link has, without those of the port within it.
fn own<'a>(kind: &Description, options: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    options.iter().filter(|(option, _)| kind.option(option).is_some()).copied().collect()
}

/// Returns whether two paths lead to the same existing file.
fn is_same_file(one: &str, other: &str) -> bool {
    let id = |path: &str| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    id(one).is_ok_and(|one| id(other).is_ok_and(|other| one == other))
}

/// Reads the recording that options play, for packets with the first values and with the second. Returns `None` if they
/// play none.
///
/// # Errors
/// The recording cannot be read, or another option would decide, too.
pub fn recordings(options: &[(&str, &str)]) -> std::result::Result<Option<[Recording; 2]>, Refused> {
    let Some((_, path)) = options.iter().rfind(|(option, _)| *option == PLAY) else { return Ok(None) };
    let recorded = options.iter().find(|(option, _)| *option == RECORD);
    if recorded.is_some_and(|(_, other)| is_same_file(path, other)) {
        let why = "it is the recording that is played, which would be lost: choose another file".to_string();
        return Err(Refused { option: RECORD, why });
    }
    let decides = |own: &&PortOption| ![PLAY, RECORD, "packets"].contains(&own.name);
    let mut others = OPTIONS.iter().filter(decides);
    match others.find(|own| options.iter().any(|(option, _)| *option == own.name)) {
        Some(other) => {
            let why = "the recording that is played has all decisions: omit this option".to_string();
            Err(Refused { option: other.name, why })
        }
        None => Recording::read(path).map(Some).map_err(|why| Refused { option: PLAY, why }),
    }
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that the program receives from the port.
    FromPort,
    /// Packets that the program sends to the port.
    ToPort,
}

/// Both directions of a link, for all queues of a port. Clones control the same link.
#[derive(Clone)]
pub struct Link {
    directions: [Arc<Shared>; 2],
    /// Links with other numbers make other decisions from the same seed.
    number: u64,
    /// The recorder that options have created. If it fails, the port fails.
    recorder: Option<Recorder>,
}

/// The part of a direction that its queues and the program share.
struct Shared {
    parameters: Mutex<Parameters>,
    /// Counts the changes of the parameters.
    changes: AtomicU64,
    counters: Arc<Counters>,
    recorder: Option<Recorder>,
}

impl Link {
    /// Creates a link with separate parameters for packets from the port and to it.
    pub fn new(parameters: [Parameters; 2]) -> Link {
        Link::recorded(parameters, [None, None])
    }

    /// As [`new`](Link::new); decisions about packets from the port and to it are recorded. A link that is recorded, or
    /// repeats a recording, has one queue in each direction.
    pub fn recorded(parameters: [Parameters; 2], recorders: [Option<Recorder>; 2]) -> Link {
        let [from, to] = parameters;
        let [of_from, of_to] = recorders;
        let shared = |parameters, recorder| {
            let (changes, counters) = (AtomicU64::new(0), Arc::default());
            Arc::new(Shared { parameters: Mutex::new(parameters), changes, counters, recorder })
        };
        Link { directions: [shared(from, of_from), shared(to, of_to)], number: 0, recorder: None }
    }

    /// Returns the link with a number: links with the same seed and other numbers make other decisions.
    pub fn numbered(self, number: u32) -> Link {
        Link { number: number.into(), ..self }
    }

    /// Parses the options of a name. A value for each direction is `from/to`: `delay=20ms/5ms`.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption).
    pub fn of(name: &PortName) -> Result<Link> {
        let options: Vec<(&str, &str)> = name.options().collect();
        Link::of_options(name.kind(), &options, name.class(), Direction::FromPort)
            .map_err(|refused| name.bad_option(refused.option, &refused.why))
    }

    /// Creates a link from options of a kind, for a port of this category. Values for each direction have packets in the
    /// direction `first` first: so does a recording.
    ///
    /// # Errors
    /// The first option whose value cannot be used.
    pub fn of_options(
        kind: &Description,
        options: &[(&str, &str)],
        class: PortClass,
        first: Direction,
    ) -> std::result::Result<Link, Refused> {
        let [of_first, of_second] = parameters(kind, class, options)?;
        let path = own(kind, options).into_iter().rfind(|(option, _)| *option == RECORD).map(|(_, path)| path);
        let create = |path: &str| {
            let unwritten = |error| Refused { option: RECORD, why: format!("{path}: cannot write it: {error}") };
            Recorder::create(Path::new(path), |_| {}).map_err(unwritten)
        };
        let recorder = path.map(create).transpose()?;
        let [first_recorder, second_recorder] = [0, 1].map(|way| recorder.as_ref().map(|all| all.of_way(way)));
        let link = match first {
            Direction::FromPort => Link::recorded([of_first, of_second], [first_recorder, second_recorder]),
            Direction::ToPort => Link::recorded([of_second, of_first], [second_recorder, first_recorder]),
        };
        Ok(Link { recorder, ..link })
    }

    /// Returns the parameters of packets from the port, and to it.
    pub fn parameters(&self) -> [Parameters; 2] {
        self.directions.each_ref().map(|shared| shared.lock().clone())
    }

    /// Changes the parameters of a direction while packets flow. The seed and the memory stay as they were.
    pub fn set_parameters(&self, direction: Direction, parameters: Parameters) {
        let shared = &self.directions[direction as usize];
        let mut own = shared.lock();
        let (seed, packets) = (own.seed, own.packets);
        *own = Parameters { seed, packets, ..parameters };
        // The lines of the queues follow when they look at the time.
        shared.counters.set_present(own.pace.as_ref().map(Pace::mean_rate), own.delay.mean);
        // Under the lock, so that the number of changes belongs to these parameters.
        shared.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the counters of a direction.
    pub fn counters(&self, direction: Direction) -> &Arc<Counters> {
        &self.directions[direction as usize].counters
    }

    fn start(&self, direction: Direction, queue: u16, pool: &Arc<Pool>) -> Result<QueueLine> {
        let shared = self.directions[direction as usize].clone();
        let (parameters, changes) = {
            let own = shared.lock();
            (own.clone(), shared.changes.load(Ordering::Acquire))
        };
        let reservation = match reserved(&parameters) {
            0 => None,
            count => Some(pool.reserve(count)?),
        };
        let stream = (self.number << 32) | (2 * u64::from(queue) + direction as u64);
        let mut line = Line::with_counters(&parameters, pool, stream, shared.counters.clone());
        let start = Instant::now();
        if let Some(recorder) = &shared.recorder {
            line.record(recorder.clone(), start);
        }
        Ok(QueueLine { line, start, shared, changes, _reservation: reservation })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Parameters> {
        self.parameters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the parameters of one direction, from options of the kind [`LINK`], for a port of this category. A value for
/// each direction is `from/to`; `from/` is for packets from the port only. Options of recordings have no effect. Without
/// the option `seed`, it is a random number.
///
/// # Errors
/// The first option whose value cannot be used.
pub fn of_direction(
    options: &[(&str, &str)],
    direction: Direction,
    class: PortClass,
) -> std::result::Result<Parameters, Refused> {
    of_direction_or_play(options, direction, class, None)
}

/// As [`of_direction`], or for a direction that repeats one of its [`recordings`]. Then only `packets` has an effect.
///
/// # Errors
/// As [`of_direction`].
pub fn of_direction_or_play(
    options: &[(&str, &str)],
    direction: Direction,
    class: PortClass,
    play: Option<Recording>,
) -> std::result::Result<Parameters, Refused> {
    let mut own = Vec::new();
    for &(option, value) in options {
        match (option, part(option, value, direction), direction) {
            (_, "", _) | (RECORD | PLAY, ..) | ("trace-back" | "schedule-back", _, Direction::FromPort) => {}
            ("drop", value, _) => own.push(("loss", value)),
            ("trace-back", _, Direction::ToPort) => own.push(("trace", value)),
            ("schedule-back", _, Direction::ToPort) => own.push(("schedule", value)),
            // The last of a name counts, and a `-back` option may be written first.
            ("trace" | "schedule", value, _) => own.insert(0, (option, value)),
            (_, value, _) => own.push((option, value)),
        }
    }
    // Options for both directions apply where the options are that they need: `jitter=2ms/&distribution=normal`.
    let is_there = |own: &[(&str, &str)], name: &str| own.iter().any(|(option, _)| *option == name);
    for (option, needed) in NEEDS {
        if !is_there(&own, needed) && options.iter().any(|(name, _)| *name == needed) {
            own.retain(|(name, _)| *name != option);
        }
    }
    let mut parameters = Parameters::of(own).map_err(|refused| match (refused.option, direction) {
        ("trace", Direction::ToPort) if is_there(options, "trace-back") => Refused { option: "trace-back", ..refused },
        ("schedule", Direction::ToPort) if is_there(options, "schedule-back") => {
            Refused { option: "schedule-back", ..refused }
        }
        _ => refused,
    })?;
    parameters.play = play;
    if !is_there(options, SEED.name) {
        // 32 bits are easier to repeat by hand.
        parameters.seed = RandomState::new().hash_one(0) & u64::from(u32::MAX);
    }
    parameters.packets = Some(parameters.capacity_at(match class {
        PortClass::Card | PortClass::ServedCard | PortClass::Model => OF_CARDS,
        _ => OF_OTHERS,
    }));
    Ok(parameters)
}

/// Returns the part of an option's value that is for one direction. A path is for both.
fn part<'a>(option: &str, value: &'a str, direction: Direction) -> &'a str {
    let is_path =
        matches!(option, "distribution" | "trace" | "schedule" | "trace-back" | "schedule-back" | RECORD | PLAY);
    let values = value.strip_suffix('/').map(|from| (from, ""));
    match (values.or_else(|| value.split_once('/').filter(|_| !is_path)), direction) {
        (None, _) => value,
        (Some((from, _)), Direction::FromPort) => from,
        (Some((_, to)), Direction::ToPort) => to,
    }
}

impl Wrapper for Link {
    fn info(&self, inner: Info) -> Info {
        Info { description: format!("{}, over a link", inner.description), ..inner }
    }

    fn rx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Receive>> {
        self.check_queues(inner, Direction::FromPort)?;
        let line = self.start(Direction::FromPort, queue, inner.pool())?;
        let pool = inner.pool().clone();
        Ok(rx_around(
            inner.rx(queue)?,
            LinkRx { line, staged: Batch::with_capacity(64), copies: Batch::new(), pool, timer: None },
        ))
    }

    fn tx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Transmit>> {
        self.check_queues(inner, Direction::ToPort)?;
        let line = self.start(Direction::ToPort, queue, inner.pool())?;
        Ok(tx_around(inner.tx(queue)?, LinkTx { line, staged: Batch::with_capacity(64) }))
    }

    fn statistics(&self, mut inner: Statistics) -> Statistics {
        inner.drops.injected += self.directions.iter().map(|shared| shared.counters.dropped()).sum::<u64>();
        inner.drops.in_flight += self.counters(Direction::FromPort).get(Event::InFlight);
        inner
    }

    /// The program has given packets to the port that the link still has, or has dropped.
    fn queue_statistics(&self, mut inner: QueueStatistics) -> QueueStatistics {
        let counters = self.counters(Direction::ToPort);
        if let Some(first) = inner.tx_slots.first_mut() {
            *first += counters.held() + counters.get(Event::InFlight) + counters.dropped();
        }
        inner
    }

    fn is_exhausted(&self, inner: bool) -> bool {
        inner && self.counters(Direction::FromPort).held() == 0
    }

    fn check(&self) -> Result<()> {
        self.recorder.as_ref().map_or(Ok(()), Recorder::check)
    }
}

impl Link {
    /// Returns an error if several queues would each have the rate, or number their packets.
    fn check_queues(&self, inner: &dyn Device, direction: Direction) -> Result<()> {
        let shared = &self.directions[direction as usize];
        let parameters = shared.lock();
        let why = if parameters.highest_rate().is_some() {
            "a link with a rate has one queue, because each would send at this rate"
        } else if parameters.play.is_some() || shared.recorder.is_some() {
            "a link with a recording has one queue, because each would have a first packet"
        } else {
            return Ok(());
        };
        let info = inner.info();
        let queues = if direction == Direction::FromPort { info.rx_queues } else { info.tx_queues };
        match queues > 1 {
            false => Ok(()),
            true => Err(Error::bad_option(
                inner.name().to_string(),
                "queues".to_string(),
                queues.to_string(),
                why.to_string(),
            )),
        }
    }
}

/// The line of a queue, at the time of the clock.
struct QueueLine {
    line: Line,
    start: Instant,
    shared: Arc<Shared>,
    changes: u64,
    _reservation: Option<Reservation>,
}

impl QueueLine {
    /// Returns the current time of the line, after applying changes of its parameters.
    #[inline]
    fn now(&mut self) -> u64 {
        let now = self.start.elapsed().as_nanos() as u64;
        if self.shared.changes.load(Ordering::Acquire) != self.changes {
            self.change(now);
        }
        now
    }

    #[cold]
    fn change(&mut self, now: u64) {
        let (parameters, changes) = {
            let own = self.shared.lock();
            (own.clone(), self.shared.changes.load(Ordering::Acquire))
        };
        self.line.change(&parameters, now);
        self.changes = changes;
    }
}

/// Delays received packets.
struct LinkRx {
    line: QueueLine,
    /// Received from the inner queue, and not in the line yet.
    staged: Batch,
    /// Packets for a batch of another region.
    copies: Batch,
    pool: Arc<Pool>,
    timer: Option<Timer>,
}

impl RxWrapper for LinkRx {
    fn recv(&mut self, inner: &mut dyn Receive, batch: &mut Batch) -> usize {
        let LinkRx { line, staged, copies, pool, .. } = self;
        let now = line.now();
        if staged.is_empty() {
            inner.recv(staged);
        }
        let is_of_pool = batch.bind_if_empty(pool);
        // First, so that there is room for the packets that arrive.
        let released = if is_of_pool { line.line.release(now, batch) } else { 0 };
        line.line.accept(now, staged);
        match is_of_pool {
            true => released + line.line.release(now, batch),
            false => {
                let own = batch.pool().cloned().unwrap_or_else(|| pool.clone());
                copies.receive_for(&own, batch, |copies| {
                    copies.bind_if_empty(pool);
                    line.line.release(now, copies)
                })
            }
        }
    }

    fn arm<'a>(&'a mut self, inner: &'a mut dyn Receive) -> Option<BorrowedFd<'a>> {
        // Also for a queue that cannot be armed: the thread is idle.
        self.line.line.stop_waiting_to_be_overtaken();
        let event = inner.arm()?;
        let now = self.line.now();
        let next = self.line.line.next_event();
        if self.timer.is_none() {
            self.timer = Timer::new();
        }
        let timer = self.timer.as_mut()?;
        timer.arm(event, next.map(|next| next.saturating_sub(now)))
    }

    fn buffers(&self) -> usize {
        let batches = [&self.staged, &self.copies].map(|batch| batch.len() + batch.cached());
        self.line.line.buffers() + batches.iter().sum::<usize>()
    }
}

/// The packets of the line count themselves.
impl Drop for LinkRx {
    fn drop(&mut self) {
        let waiting = self.staged.packets().count() + self.copies.packets().count();
        self.line.shared.counters.add(Event::InFlight, waiting as u64);
    }
}

/// Delays packets to be sent.
struct LinkTx {
    line: QueueLine,
    /// Packets that have arrived, and that the inner queue has not accepted yet.
    staged: Batch,
}

impl TxWrapper for LinkTx {
    fn send(&mut self, inner: &mut dyn Transmit, batch: &mut Batch) -> usize {
        let LinkTx { line, staged } = self;
        let now = line.now();
        let before = batch.len();
        loop {
            line.line.accept(now, batch);
            inner.send(staged);
            if !staged.is_empty() || line.line.release(now, staged) == 0 {
                break;
            }
            inner.send(staged);
        }
        before - batch.len()
    }

    fn buffers(&self) -> usize {
        self.line.line.buffers() + self.staged.len() + self.staged.cached()
    }

    fn unsent(&self) -> usize {
        self.line.line.held() + self.staged.len()
    }
}

impl Drop for LinkTx {
    fn drop(&mut self) {
        self.line.shared.counters.add(Event::InFlight, self.staged.packets().count() as u64);
    }
}
