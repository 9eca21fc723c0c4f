//! `linerate sink`: receives packets and checks their sequence numbers.

use std::cell::Cell;
use std::ops::AddAssign;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use linerate::metadata::Checksum;
use linerate::traffic::{Checker, Report, Template};
use linerate::{Batch, Error};
use serde_json::{Value, json};

use crate::grammar::usage;
use crate::host::HostOptions;
use crate::options::{RunOptions, packets};
use crate::run::{Mode, Outcome, Run, Sums};
use crate::terminal::note;
use crate::wire::is_tester;

/// Options of the sink.
#[derive(Args)]
pub struct SinkOptions {
    /// Stop after exactly this many packets; accepts k, M or G
    #[arg(long, value_parser = packets)]
    count: Option<u64>,
    /// The sender's frames, with a stamp at the end, as for gen: names the header fields that changed in short frames
    #[arg(long, value_name = "LAYERS", value_parser = stamped)]
    packet: Option<Template>,
    /// Verify the IPv4, TCP and UDP checksums of all packets: by the card where it can, otherwise in software
    #[arg(long)]
    checksums: bool,
    #[command(flatten)]
    host: HostOptions,
}

/// Parses frames that must have sequence numbers.
fn stamped(text: &str) -> Result<Template, String> {
    let packet: Template = text.parse().map_err(|error: Error| error.why().to_string())?;
    if packet.is_stamped() { Ok(packet) } else { Err("append /stamp after udp".to_string()) }
}

/// Counts of packets by the verdict on their checksums.
#[derive(Clone, Copy, Default)]
struct Verdicts {
    good: u64,
    bad: u64,
    /// The sender has left the checksum undone.
    left: u64,
    /// Fragments, other protocols, or no checksum.
    unknown: u64,
}

impl Verdicts {
    fn count(&mut self, verdict: Checksum) {
        *match verdict {
            Checksum::Good => &mut self.good,
            Checksum::Bad => &mut self.bad,
            Checksum::Left => &mut self.left,
            Checksum::Unknown => &mut self.unknown,
        } += 1;
    }

    fn json(self) -> Value {
        json!({ "good": self.good, "bad": self.bad, "left": self.left, "unknown": self.unknown })
    }
}

impl AddAssign for Verdicts {
    fn add_assign(&mut self, other: Verdicts) {
        let Verdicts { good, bad, left, unknown } = other;
        self.good += good;
        self.bad += bad;
        self.left += left;
        self.unknown += unknown;
    }
}

/// `linerate sink`.
pub struct Sink;

impl Mode for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }
}

/// Receives packets until the run ends.
pub fn run(port: &str, sink: &SinkOptions, options: &RunOptions) -> Result<ExitCode, Error> {
    let (count, mut host) = (sink.count, sink.host.clone());
    if linerate::parse(port)?.is_capture_to_write() {
        usage(&format!(
            "{port} is opened for writing, which would empty it; to read it: sink {}",
            port.split('?').next().unwrap_or(port)
        ));
    }
    host.check();
    let options = &RunOptions { metadata: sink.checksums, ..options.clone() };
    let is_tester = is_tester(port);
    let mut run = Run::open(&Sink, &[port], count, options)?;
    let (mut reports, answered) = (Vec::new(), run.threads.answered.clone());
    let queues = run.ports.queues();
    let device = &mut run.ports.devices[0];
    let mut rxs = (0..queues).map(|queue| device.rx(queue)).collect::<Result<Vec<_>, _>>()?;
    let answering = if host.answers() { queues } else { 0 };
    let mut txs = (0..answering).map(|queue| device.tx(queue)).collect::<Result<Vec<_>, _>>()?;
    if let Some(tx) = txs.first_mut() {
        host.configure(device.mac(), device.pool(), port, tx, &mut rxs)?;
    }
    let responders = txs.into_iter().map(|tx| Some((host.responder(device, &answered)?, tx)));
    let mut responders: Vec<_> = responders.collect::<Option<_>>().unwrap_or_default();
    if let Some((responder, tx)) = responders.first_mut() {
        host.greet_gateways(responder, port, tx, &mut rxs)?;
    }
    let known = match &sink.packet {
        Some(packet) => {
            let mut frames = host.with_tag(packet.clone())?.frames()?;
            let mut frame = vec![0; frames.next_len()];
            frames.fill(&mut frame);
            Checker::default().with_headers_of(&frame)
        }
        None => Checker::default(),
    };
    let (mut rxs, mut responders) = (rxs.into_iter(), responders.into_iter());
    for _ in 0..queues {
        let mut responder = responders.next();
        let mut rx = rxs.next().expect("there is one for each queue");
        let mut batch = Batch::with_capacity(options.batch.packets());
        let mut checker = known.clone();
        let mut whole = Vec::new();
        let verifies = sink.checksums;
        let mut verdicts = Verdicts::default();
        let report = Arc::new(Mutex::new((Report::default(), verdicts)));
        reports.push(report.clone());
        let (mut waiter, quota) = (run.waiter(), run.clock.quota.clone());
        run.threads.spawn(move || {
            quota.recv(&mut rx, &mut batch);
            let mut packets = 0;
            for packet in &mut batch {
                packets += 1;
                let frame: &[u8] = if packet.slots() == 1 {
                    &packet
                } else {
                    whole.clear();
                    packet.append_to(&mut whole);
                    &whole
                };
                if verifies {
                    let verdict = packet.metadata().checksum;
                    verdicts.count(if verdict == Checksum::Unknown { Checksum::of_frame(frame) } else { verdict });
                }
                // Answered requests are not frames of the checked sender.
                if !responder.as_mut().is_some_and(|(responder, _)| responder.answers(frame)) {
                    checker.check(frame);
                }
            }
            batch.clear();
            if let Some((responder, tx)) = &mut responder {
                responder.send(tx);
            }
            if packets > 0 {
                *report.lock().unwrap_or_else(PoisonError::into_inner) = (checker.report(), verdicts);
            }
            waiter.turn(packets, &mut [&mut rx]);
            packets
        });
    }
    let (unnumbered, after_count) = (Cell::new(0), Cell::new(false));
    let judge = |senders: &[Option<Report>], Sums { undelivered: dropped, .. }: Sums| {
        let mut sum = Report::default();
        for report in &reports {
            sum += report.lock().unwrap_or_else(PoisonError::into_inner).0;
        }
        let Report { lost, corrupted, reordered, duplicated, received, foreign, changed, .. } =
            sum.by_sender(is_tester);
        let mut outcome = Outcome { lost, corrupted, reordered, duplicated, changed, ..Outcome::default() };
        // Once the count is received, frames that arrive later are not lost.
        if count.is_none_or(|count| received < count) {
            if let [Some(sender)] = senders {
                // The wire's count includes repeated frames of a capture file, and not the gaps in it.
                let arrived = if is_tester { received - duplicated } else { received };
                outcome.lost = outcome.lost.max(sender.sent.saturating_sub(arrived));
            }
            outcome.lost = outcome.lost.max(dropped);
        }
        after_count.set(dropped > 0 && count.is_some_and(|count| received >= count));
        unnumbered.set(foreign);
        outcome
    };
    let verdicts = Cell::new(Verdicts::default());
    let code = run.finish(judge, |_| {
        let (mut more, mut text) = (serde_json::Map::new(), String::new());
        if host.answers() {
            let answered = answered.load(Ordering::Relaxed);
            more.insert("answered".to_string(), answered.into());
            text += &format!("requests answered: {answered}\n");
        }
        if sink.checksums {
            let mut sum = Verdicts::default();
            reports.iter().for_each(|report| sum += report.lock().unwrap_or_else(PoisonError::into_inner).1);
            let Verdicts { good, bad, left, unknown } = sum;
            text += &format!("checksums: {good} good, {bad} bad, {left} left undone, {unknown} not verified\n");
            more.insert("checksums".to_string(), sum.json());
            verdicts.set(sum);
        }
        (if more.is_empty() { Value::Null } else { more.into() }, text)
    });
    if after_count.get() {
        note("note: the count was reached: packets that the port dropped afterwards do not count as lost");
    }
    // Noted here, as the judge runs many times while frames arrive.
    match unnumbered.get() {
        0 => {}
        1 => note("note: 1 packet had no sequence number"),
        count => note(&format!("note: {count} packets had no sequence number")),
    }
    match code {
        Ok(_) if verdicts.get().bad > 0 => Ok(ExitCode::FAILURE),
        code => code,
    }
}
