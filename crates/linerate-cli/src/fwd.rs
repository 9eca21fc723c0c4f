//! `linerate fwd`: forwards packets between two ports; `linerate filter`: forwards some of them.

mod files;
mod output;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use linerate::filter;
use linerate::port::RxQueue;
use linerate::traffic::{Report, touch};
use linerate::{Batch, Error};

use self::files::Files;
use self::output::{Output, Pending};
use crate::grammar::usage;
use crate::limits::Quota;
use crate::options::{BatchSize, RunOptions, Wait};
use crate::profile::{Stamps, cycles};
use crate::run::{Mode, Outcome, Run};
use crate::tune::Tuner;
use crate::wire::is_tester;

/// The pause between two attempts to send to a port that accepts nothing: no event tells a thread when it has room
/// again.
const RETRY_PAUSE: Duration = Duration::from_micros(100);

/// `linerate fwd`.
pub struct Forward;

impl Mode for Forward {
    fn name(&self) -> &'static str {
        "fwd"
    }

    fn forwards(&self) -> bool {
        true
    }

    /// A port may count packets as given only when it sends them, so that `given` can be 0 for packets that it has
    /// accepted.
    fn moves_by_sending(&self, _given: u64) -> bool {
        true
    }
}

/// `linerate filter`, between two ports or with a single one.
pub struct Filter;

impl Mode for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn forwards(&self) -> bool {
        true
    }
}

/// Rules for the packets that are forwarded or captured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Rules {
    /// Accept only these packets, for example udp:4321 or tcp:80+from:10.0.0.0/8,icmp
    #[arg(long)]
    pub only: Option<filter::Filter>,
    /// Accept all packets except these
    #[arg(long)]
    pub drop: Option<filter::Filter>,
}

impl Rules {
    /// Refuses rules that let nothing through.
    pub fn check(&self) {
        if let (Some(only), Some(drop)) = (&self.only, &self.drop)
            && only.is_within(drop)
        {
            usage(&format!("--drop {drop} covers all packets of --only {only}: nothing would be left"));
        }
    }

    /// Returns whether the rules let a frame through, and counts it if they cannot decide. Then `--only` rejects it, and
    /// `--drop` lets it through.
    #[inline]
    pub fn keep(&self, frame: &[u8], undecided: &mut u64) -> bool {
        let only = self.only.as_ref().map_or(Some(true), |filter| filter.decide(frame));
        let drop = self.drop.as_ref().map_or(Some(false), |filter| filter.decide(frame));
        *undecided += u64::from(only != Some(false) && drop != Some(true) && (only.is_none() || drop.is_none()));
        only == Some(true) && drop != Some(true)
    }

    /// Removes rejected packets from a batch, moves them to `rest` if given, and counts them; returns their number.
    fn apply(&self, batch: &mut Batch, rest: Option<&mut Batch>, counts: &Filtered) -> usize {
        if self.only.is_none() && self.drop.is_none() {
            return 0;
        }
        let (mut others, mut undecided) = (0, 0);
        let keep = |frame: &[u8]| {
            let keep = self.keep(frame, &mut undecided);
            others += usize::from(!keep);
            keep
        };
        match rest {
            Some(rest) => drop(batch.split(rest, keep)),
            None => batch.retain(keep),
        }
        if others as u64 + undecided > 0 {
            counts.filtered.fetch_add(others as u64, Ordering::Relaxed);
            counts.undecided.fetch_add(undecided, Ordering::Relaxed);
        }
        others
    }
}

/// The counts of rules in all threads of a run.
#[derive(Default)]
pub struct Filtered {
    /// Rejected packets.
    filtered: AtomicU64,
    /// Packets without a field that decides, whether rejected or not.
    undecided: AtomicU64,
}

impl Filtered {
    /// Adds the counts to a run's outcome.
    fn judge(&self, outcome: Outcome) -> Outcome {
        let [filtered, undecided] = [&self.filtered, &self.undecided].map(|count| count.load(Ordering::Relaxed));
        Outcome { lost: outcome.lost.saturating_sub(filtered), filtered, undecided, ..outcome }
    }
}

/// One direction: a receive queue, and its packets that wait to be sent.
struct Direction {
    rx: RxQueue,
    pending: Pending,
    rules: Rules,
    filtered: Arc<Filtered>,
    quota: Quota,
    /// Changes a byte of each packet, as ixy's forwarder does.
    touches: bool,
    stamps: Option<Stamps>,
    tuner: Option<Tuner>,
}

impl Direction {
    /// Receives, touches a byte of each packet, and sends; returns the number of packets sent.
    fn turn(&mut self, output: &mut Output) -> usize {
        self.turn_with_rest(output, None)
    }

    /// Like [`turn`](Direction::turn), but rejected packets go to the port of `--rest`.
    fn turn_with_rest(&mut self, output: &mut Output, rest: Option<&mut Rest>) -> usize {
        let waiting = rest.as_ref().is_some_and(|rest| !rest.pending.batch.is_empty());
        if !self.pending.batch.is_empty() || waiting {
            return self.pending.send(output);
        }
        let is_due = self.stamps.as_mut().is_some_and(Stamps::is_due);
        if is_due || self.tuner.is_some() {
            return self.turn_timed(output, rest, is_due);
        }
        self.quota.recv(&mut self.rx, &mut self.pending.batch);
        self.work(rest);
        self.pending.send(output)
    }

    /// Applies the rules, and touches each packet.
    #[inline(always)]
    fn work(&mut self, rest: Option<&mut Rest>) {
        let has_rest = rest.is_some();
        let rejected =
            self.rules.apply(&mut self.pending.batch, rest.map(|rest| &mut rest.pending.batch), &self.filtered);
        if rejected > 0 && !has_rest {
            self.quota.give_back(rejected);
        }
        if self.touches {
            self.pending.batch.packets().for_each(|mut packet| touch(&mut packet));
        }
    }

    /// Like [`turn_with_rest`](Direction::turn_with_rest), but timed: for the profile if a sample is due, and for the
    /// tuner of the batch size.
    #[cold]
    fn turn_timed(&mut self, output: &mut Output, rest: Option<&mut Rest>, is_due: bool) -> usize {
        let begin = cycles();
        self.quota.recv(&mut self.rx, &mut self.pending.batch);
        let received = cycles();
        self.work(rest);
        let touched = cycles();
        let sent = self.pending.send(output);
        let end = cycles();
        if let Some(stamps) = self.stamps.as_ref().filter(|_| is_due) {
            stamps.note(sent, [begin, received, touched, end]);
        }
        if let Some(tuner) = &mut self.tuner {
            tuner.moved(sent, end - begin);
            if self.pending.batch.is_empty() && self.pending.batch.capacity() != tuner.size() {
                self.pending.batch = Batch::with_capacity(tuner.size());
            }
        }
        sent
    }
}

/// The port for rejected packets, and the direction back from it.
struct Rest {
    pending: Pending,
    output: Output,
    back: Direction,
}

impl Rest {
    /// Sends the rejected packets, and forwards the packets that the port receives.
    fn turn(&mut self, output: &mut Output) -> usize {
        self.pending.send(&mut self.output) + self.back.turn(output)
    }

    fn reasons_to_stay_awake(&mut self) -> usize {
        self.pending.reasons_to_stay_awake() + self.back.pending.reasons_to_stay_awake() + self.output.unsent()
    }
}

/// Forwards between two ports until the run ends.
pub fn run(
    mode: &'static dyn Mode,
    [a, b]: [&str; 2],
    rest: Option<&str>,
    count: Option<u64>,
    profile: bool,
    rules: &Rules,
    options: &RunOptions,
) -> Result<ExitCode, Error> {
    let names: Vec<&str> = [a, b].into_iter().chain(rest).collect();
    rules.check();
    if let Some(files) = Files::of([a, b], profile, options).filter(|_| rest.is_none()) {
        return files.run(mode, count, rules, options);
    }
    // A recording has the times at which packets arrived, if the other port knows them.
    let is_recorded = names.iter().any(|name| linerate::parse(name).is_ok_and(|name| name.is_capture_to_write()));
    let options = &RunOptions { timestamps: is_recorded, ..options.clone() };
    let mut run = Run::open(mode, &names, count, options)?;
    let filtered = start(&mut run, profile, rules, options)?;
    let (testers, held) = ([is_tester(a), is_tester(b)], run.threads.held.clone());
    let judge = |reports: &[Option<Report>], _| {
        let outcome = if count.is_some() { judge_counted(reports, testers) } else { judge(reports, testers) };
        filtered.judge(Outcome { held: held.load(Ordering::Relaxed), ..outcome })
    };
    run.finish(judge, |_| Default::default())
}

/// Starts forwarding in a run with two or three ports. Returns the counters of the rules.
pub fn start(run: &mut Run, profile: bool, rules: &Rules, options: &RunOptions) -> Result<Arc<Filtered>, Error> {
    let all = 0..run.ports.devices.len();
    start_threads(run, all, profile, rules, true, options)
}

/// Starts forwarding in a run with pairs of ports, between the two of each pair, without changing packets.
pub fn start_unchanged(run: &mut Run, options: &RunOptions) -> Result<(), Error> {
    let mut pairs = (0..run.ports.devices.len()).step_by(2);
    pairs.try_for_each(|a| start_threads(run, a..a + 2, false, &Rules::default(), false, options).map(drop))
}

fn start_threads(
    run: &mut Run,
    ports: Range<usize>,
    profile: bool,
    rules: &Rules,
    touches: bool,
    options: &RunOptions,
) -> Result<Arc<Filtered>, Error> {
    let (filtered, held) = (Arc::<Filtered>::default(), run.threads.held.clone());
    let (profile, quota, chains) = (
        profile.then(|| run.threads.profile.get_or_insert_default().clone()),
        run.clock.quota.clone(),
        run.ports.may_have_chains(),
    );
    let queues = run.ports.queues();
    // With a third port, a port that accepts nothing must not block packets for another one.
    let drops = ports.len() > 2;
    let devices = &mut run.ports.devices[ports];
    // A port may be refused for receiving. Then nothing has been sent, and xdp: has not attached its program.
    let mut inputs = Vec::new();
    for port in &mut *devices {
        inputs.push((0..queues).map(|queue| port.rx(queue)).collect::<Result<Vec<_>, _>>()?.into_iter());
    }
    let mut outputs = Vec::new();
    for port in devices {
        outputs.push(Output::of(port, queues, drops)?);
    }
    for _ in 0..queues {
        let pending = || Pending::new(Batch::with_capacity(options.batch.packets()), chains, held.clone());
        let direction = |rx, rules: &Rules| Direction {
            rx,
            pending: pending(),
            rules: rules.clone(),
            filtered: filtered.clone(),
            quota: quota.clone(),
            touches,
            stamps: profile.clone().map(Stamps::new),
            tuner: (options.batch == BatchSize::Auto).then(Tuner::default),
        };
        let mut ends = inputs.iter_mut().filter_map(Iterator::next).zip(outputs.iter_mut().filter_map(Iterator::next));
        let (Some((a, mut to_a)), Some((b, mut to_b))) = (ends.next(), ends.next()) else {
            unreachable!("two ports were opened, or three, with a queue each")
        };
        let (mut forth, mut back) = (direction(a, rules), direction(b, rules));
        let mut rest =
            ends.next().map(|(rx, output)| Rest { pending: pending(), output, back: direction(rx, &Rules::default()) });
        let mut waiter = run.waiter();
        let may_sleep = matches!(options.wait, Some(Wait::Interrupt | Wait::Adaptive));
        let (unsent, mut last_unsent) = (run.threads.unsent.clone(), 0);
        run.threads.spawn(move || {
            let mut packets = forth.turn_with_rest(&mut to_b, rest.as_mut()) + back.turn(&mut to_a);
            packets += rest.as_mut().map_or(0, |rest| rest.turn(&mut to_a));
            // While packets are not sent yet, the thread does not wait for events, but tries again.
            let mut reasons_to_stay_awake = || {
                let both = forth.pending.reasons_to_stay_awake()
                    + back.pending.reasons_to_stay_awake()
                    + to_a.unsent()
                    + to_b.unsent();
                both + rest.as_mut().map_or(0, Rest::reasons_to_stay_awake)
            };
            let waiting = if packets == 0 { reasons_to_stay_awake() } else { 0 };
            if packets == 0 && waiting != last_unsent {
                unsent.fetch_add(waiting.wrapping_sub(last_unsent), Ordering::Relaxed);
                last_unsent = waiting;
            }
            if waiting > 0 && may_sleep && (forth.pending.is_stalled() || back.pending.is_stalled()) {
                std::thread::sleep(RETRY_PAUSE);
            }
            match &mut rest {
                Some(rest) => {
                    waiter.turn(packets + waiting, &mut [&mut forth.rx, &mut back.rx, &mut rest.back.rx]);
                }
                None => waiter.turn(packets + waiting, &mut [&mut forth.rx, &mut back.rx]),
            }
            packets
        });
    }
    Ok(filtered)
}

/// Runs `linerate filter` with one port: receives, and counts the packets that the rules reject. Sends nothing.
pub fn discard(port: &str, count: Option<u64>, rules: &Rules, options: &RunOptions) -> Result<ExitCode, Error> {
    rules.check();
    let mut run = Run::open(&Filter, &[port], count, options)?;
    let filtered = Arc::<Filtered>::default();
    for queue in 0..run.ports.queues() {
        let mut rx = run.ports.devices[0].rx(queue)?;
        let mut batch = Batch::with_capacity(options.batch.packets());
        let (rules, filtered, mut waiter, quota) =
            (rules.clone(), filtered.clone(), run.waiter(), run.clock.quota.clone());
        run.threads.spawn(move || {
            quota.recv(&mut rx, &mut batch);
            let dropped = rules.apply(&mut batch, None, &filtered);
            let packets = dropped + batch.packets().count();
            batch.clear();
            waiter.turn(packets, &mut [&mut rx]);
            packets
        });
    }
    let judge = |_: &[Option<Report>], _| filtered.judge(Outcome::default());
    run.finish(judge, |_| Default::default())
}

/// Like [`judge`], for a run with `--count`: frames that are still in a card at its end are not lost. Only frames
/// missing among those that arrived are.
fn judge_counted(reports: &[Option<Report>], testers: [bool; 2]) -> Outcome {
    let received = reports.iter().zip([testers[1], testers[0]]);
    let lost = received.filter_map(|(report, is_stamped)| Some((*report)?.by_sender(is_stamped).lost)).sum();
    Outcome { lost, ..judge(reports, testers) }
}

/// Compares the testers' reports: frames that one tester sent must have arrived at the other. Missing frames
/// include those that the ports dropped. `testers`: which of the ports' wires send stamped frames.
pub fn judge(reports: &[Option<Report>], testers: [bool; 2]) -> Outcome {
    let mut outcome = Outcome::default();
    let [a, b, ..] = reports else { return outcome };
    for (sender, receiver, is_stamped) in [(a, b, testers[0]), (b, a, testers[1])] {
        let Some(receiver) = receiver.map(|report| report.by_sender(is_stamped)) else { continue };
        outcome.corrupted += receiver.corrupted;
        outcome.changed += receiver.changed;
        outcome.reordered += receiver.reordered;
        outcome.duplicated += receiver.duplicated;
        outcome.lost += match sender {
            Some(sender) if is_stamped => sender.sent.saturating_sub(receiver.arrived()),
            // A capture file may lack frames, and repeat some.
            Some(sender) => receiver.lost.max(sender.sent.saturating_sub(receiver.received)),
            None => receiver.lost,
        };
    }
    outcome
}
