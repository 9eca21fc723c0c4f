//! `linerate gen`: sends the packets of one or several streams.
//!
//! - `stream`: the options of a stream; `source`: its frames; `pace`: their timing; `sender`: a queue's thread
//! - `mix`: streams that share a rate, for the measuring commands

mod mix;
mod pace;
mod sender;
mod source;
mod stream;

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use linerate::traffic::Report;
use linerate::{Batch, Error};
pub use mix::Mix;
use pace::Pace;
use sender::{Answering, Lane, Sender};
use serde_json::{Value, json};
pub use stream::Stream;

use crate::grammar::usage;
use crate::host::HostOptions;
use crate::line_rate::possible;
use crate::live::Follower;
use crate::options::{LONGEST_MTU, RunOptions};
use crate::run::{IDLE_SLEEP, Measured, Mode, Outcome, Run};
use crate::shortfall::Shortfall;
use crate::terminal::note;
use crate::wire::{is_checked, with_option};

/// `linerate gen`.
struct Generate;

impl Mode for Generate {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn generates(&self) -> bool {
        true
    }
}

/// Options of the traffic.
#[derive(Args)]
pub struct Traffic {
    #[command(flatten)]
    stream: Stream,
    /// Send several streams at the same time, from a TOML file with a table [[stream]] for each; its keys are packet,
    /// template, size, rate, burst, gaps, count, flows, segment, seed and name
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "packet", "template", "size", "rate", "burst", "gaps", "count", "flows", "segment", "seed"
    ])]
    streams: Option<PathBuf>,
    /// Destination of the frames, with --address and without --packet; default 198.19.0.1
    #[arg(long, value_name = "ADDRESS", requires = "address", conflicts_with_all = ["packet", "template", "streams"])]
    to: Option<IpAddr>,
    #[command(flatten)]
    host: HostOptions,
}

/// Sends packets until the run ends.
pub fn run(port: &str, traffic: &Traffic, options: &RunOptions) -> Result<ExitCode, Error> {
    if linerate::parse(port)?.is_capture_to_read() {
        usage(&format!("{port} is opened for reading; to write to it: gen '{}'", with_option(port, "write")));
    }
    let mut host = traffic.host.clone();
    host.check();
    let mut streams = match &traffic.streams {
        Some(path) => Stream::read_all(path),
        None => vec![traffic.stream.clone()],
    };
    if host.is_host() {
        streams.iter_mut().for_each(|stream| stream.set_addresses(&host, traffic.to));
    }
    let labels: Vec<_> = streams.iter().enumerate().map(|(number, stream)| stream.label(number)).collect();
    // The stream's position in its file, for messages.
    let position = |number: usize| match &traffic.streams {
        Some(path) => format!("{}: {}: ", path.display(), labels[number]),
        None => String::new(),
    };
    // A pipe can be read only once.
    let first_frames: Vec<Option<Vec<u8>>> =
        streams.iter().enumerate().map(|(n, stream)| stream.first_frame(&position(n))).collect::<Result<_, _>>()?;
    let (mut longest, mut longest_packet) = (0, 0);
    for (number, stream) in streams.iter().enumerate() {
        let source = &stream.sources(1, 0, first_frames[number].as_deref(), &position(number))[0];
        longest = longest.max(stream.longest_frame(source, &position(number)));
        longest_packet = longest_packet.max(source.longest());
        if !source.is_stamped() && stream.packet.is_none() {
            note(
                "note: the template is not UDP over IPv4 with 18 bytes of payload: sent unchanged, without sequence numbers",
            );
        }
    }
    // Raise the MTU to fit the requested frames, but not for a template from a file.
    let asked = if streams.iter().all(|stream| stream.template.is_none()) { longest.saturating_sub(14) } else { 0 };
    let mtu = options.mtu.max(asked.min(LONGEST_MTU.into()) as u16);
    let options = RunOptions { mtu, ..options.clone() };
    // The run ends when the last stream does.
    let count = streams.iter().map(|stream| stream.count).sum::<Option<u64>>();
    let mut run = Run::open(&Generate, &[port], count, &options)?;
    run.live.no_rate = "the rate cannot change while one of several streams is at full speed".to_string();
    // The slots of packets that the port cuts are not those of the frames.
    let is_cut = streams.iter().any(|stream| stream.segment.is_some());
    run.ports.sends_frames_of(if is_cut { usize::MAX } else { longest });
    // A chain has at most 64 slots.
    let most = 64 * run.ports.devices[0].pool().region().room();
    if longest_packet > most {
        let what =
            if streams.iter().any(|stream| stream.template.is_some()) { "the template's first" } else { "the longest" };
        usage(&format!(
            "{what} frame has {longest_packet} bytes, and a packet here at most {most}: use a larger --mtu"
        ));
    }
    let queues = run.ports.queues();
    let answered = run.threads.answered.clone();
    let device = &mut run.ports.devices[0];
    let mut txs = (0..queues).map(|queue| device.tx(queue)).collect::<Result<Vec<_>, _>>()?;
    let answering = if host.answers() { queues } else { 0 };
    let mut rxs = (0..answering).map(|queue| device.rx(queue)).collect::<Result<Vec<_>, _>>()?;
    host.configure(device.mac(), device.pool(), port, &mut txs[0], &mut rxs)?;
    let mut responders: Vec<_> = (0..queues).map_while(|_| host.responder(device, &answered)).collect();
    for stream in &mut streams {
        stream.packet = match stream.packet.take() {
            Some(packet) if host.is_host() => {
                let resolve = |address| responders[0].resolve(address, port, &mut txs[0], &mut rxs);
                // An address that the network has granted is known only now.
                Some(host.with_next_hop(host.complete(packet)?, device.mac(), resolve)?)
            }
            packet => packet,
        };
        if !host.is_host() && stream.has_invented_mac() {
            note(
                "note: the frames have linerate's default destination MAC address: set another, as eth(dst=…), or find \
                 the next hop's with --address and --gateway",
            );
        }
    }
    let mut lanes: Vec<Vec<Lane>> = (0..queues).map(|_| Vec::new()).collect();
    let mut sums: Vec<StreamTotals> = Vec::new();
    let (mut is_stamped, mut flows) = (true, 0u16);
    let mut sources = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let of_stream = stream.sources(queues, flows, first_frames[number].as_deref(), &position(number));
        flows = flows
            .checked_add(stream.flow_count(queues))
            .unwrap_or_else(|| usage("the streams have more than 65535 flows"));
        let mean_len = of_stream[0].mean_len();
        is_stamped &= of_stream[0].is_stamped();
        let rate = stream.rate.and_then(|rate| possible(rate, mean_len, &run.ports.devices[0], false));
        let asked = rate.map(|rate| rate.packets_per_second(mean_len));
        if let (Some(asked), Some(burst), Some(seconds)) = (asked, stream.burst, options.seconds) {
            let period = f64::from(burst) / asked;
            if period > seconds.as_secs_f64() {
                let position = position(number);
                usage(&format!(
                    "{position}at this rate a burst of {burst} frames is due every {period:.3} s: --seconds is shorter"
                ));
            }
        }
        if let (Some(asked), [_], Some(seconds), None) =
            (asked, &streams[..], options.seconds, &options.steering.control)
            && asked * seconds.as_secs_f64() < 1.0
        {
            note(&format!(
                "note: no packet is due within --seconds: at this rate one is due every {:.3} s",
                1.0 / asked
            ));
        }
        sums.push(StreamTotals { asked, mean_len, sent: Arc::default(), count: stream.count });
        sources.push(of_stream);
    }
    // The total rate of all paced streams, and their mean frame length: a change of the rate applies to all of them.
    let paced = || sums.iter().filter_map(|sum| Some((sum.asked?, sum.mean_len)));
    let all: f64 = paced().map(|(asked, _)| asked).sum();
    let mean_len = paced().map(|(asked, len)| asked * len).sum::<f64>() / all;
    let together = run.ports.are_served().then(|| options.batch.packets());
    for (number, ((stream, sum), sources)) in streams.iter().zip(&sums).zip(sources).enumerate() {
        // Stagger the starts of streams and queues with the same rate.
        let later = number as f64 / streams.len() as f64;
        for (queue, (source, lanes)) in (0..queues).zip(sources.into_iter().zip(&mut lanes)) {
            // This queue's share of the first `count` frames: each queue starts with the frame of its own number.
            let left =
                stream.count.map_or(u64::MAX, |count| count.saturating_sub(queue.into()).div_ceil(u64::from(queues)));
            let pace = Pace {
                // A stream at full speed gets the full rate if it is given one later.
                part: sum.asked.map_or(1.0, |asked| asked / all) / f64::from(queues),
                credit: (f64::from(queue) + later) / f64::from(queues),
                burst: stream.burst.unwrap_or(1),
                gaps: stream.gaps(queue),
                together,
            };
            let segment = stream.segment.and_then(NonZeroU16::new);
            lanes.push(Lane::new(source, pace, segment, sum.asked.map(|_| all), left, sum.sent.clone()));
        }
    }
    // Known only if every stream has a rate.
    let total = sums.iter().all(|sum| sum.asked.is_some()).then_some(all);
    let speed = match &sums[..] {
        [one] => Some(run.live.make_rate_variable(total, one.mean_len)),
        _ => total.map(|all| run.live.make_rate_variable(Some(all), mean_len)),
    };
    run.asked = total.filter(|_| streams.len() == 1 || sums.iter().all(|sum| sum.count.is_none()));
    let held_back = run.threads.held_back.clone();
    let idle_sleep = run.sleeps_when_idle().then_some(IDLE_SLEEP);
    let mut answering =
        responders.into_iter().zip(rxs).map(|(responder, rx)| Answering { responder, rx, batch: Batch::new() });
    for (tx, lanes) in txs.into_iter().zip(lanes) {
        let (pool, responder) = (run.ports.devices[0].pool().clone(), answering.next());
        let (batch, held_back, end) =
            (Batch::with_capacity(options.batch.packets()), held_back.clone(), run.clock.thread_end());
        let speed = speed.clone().map(Follower::new);
        let mut sender = Sender {
            tx,
            pool,
            batch,
            lanes,
            first: 0,
            runs: Vec::new(),
            speed,
            responder,
            idle_sleep,
            end,
            blocked: None,
            held_back,
        };
        run.threads.spawn(move || sender.turn());
    }
    let is_checked = is_checked(port);
    let judge = |reports: &[Option<Report>], sums: crate::run::Sums| {
        let outcome = judge(reports, is_stamped);
        match reports {
            // Gaps do not show that the last frames are lost; the number of arrived frames does.
            [Some(report)] if is_checked => {
                Outcome { lost: outcome.lost.max(sums.moved.saturating_sub(report.arrived())), ..outcome }
            }
            _ => outcome,
        }
    };
    let (is_one, is_replying) = (traffic.streams.is_none(), host.answers());
    run.finish(judge, |measured| {
        let (mut part, mut table) =
            if is_one { (Value::Null, String::new()) } else { summary(&streams, &sums, measured) };
        if is_replying {
            let answered = answered.load(Ordering::Relaxed);
            part["answered"] = answered.into();
            table += &format!("requests answered: {answered}\n");
        }
        (part, table)
    })
}

/// The requested rate and count of a stream, and the number of frames that it has sent.
struct StreamTotals {
    /// Packets per second; `None` at full speed.
    asked: Option<f64>,
    /// Mean length of its frames, without CRC.
    mean_len: f64,
    sent: Arc<AtomicU64>,
    count: Option<u64>,
}

/// Returns the packets that each stream of a file has sent, for the summary and as a table.
fn summary(streams: &[Stream], sums: &[StreamTotals], measured: &mut Measured) -> (Value, String) {
    let (mut rows, mut table) = (Vec::new(), String::new());
    for (n, (stream, sum)) in streams.iter().zip(sums).enumerate() {
        let (label, sent) = (stream.label(n), sum.sent.load(Ordering::Relaxed));
        let is_over = sum.count.is_some_and(|count| sent >= count);
        table += &format!("{label}: {sent} packets{}\n", if is_over { ", all of them" } else { "" });
        rows.push(json!({"name": label, "packets": sent, "asked_mpps": sum.asked.map(|asked| asked / 1e6)}));
        if let Some(asked) = sum.asked.filter(|_| !is_over && !measured.is_controlled) {
            let bound = measured.bound.clone().or(measured.stopped_by.clone());
            measured.shortfalls.extend(Shortfall::of(&label, asked, sent, measured.seconds, bound));
        }
    }
    (json!({ "streams": rows }), table)
}

/// Judges by the report of the tester at the port's other end, if there is one. A frame that arrives without its stamp
/// is corrupted, not lost.
fn judge(reports: &[Option<Report>], is_stamped: bool) -> Outcome {
    let arrived = reports.iter().flatten().map(|report| report.by_sender(is_stamped));
    let mut sum = Report::default();
    arrived.for_each(|report| sum += report);
    let Report { lost, corrupted, reordered, duplicated, changed, .. } = sum;
    Outcome { lost, corrupted, reordered, duplicated, changed, ..Outcome::default() }
}
