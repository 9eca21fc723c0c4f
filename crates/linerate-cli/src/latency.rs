//! `linerate latency`: the latency of frames from one port to another, by load.
//!
//! Two models are the two sides of a forwarder: frames enter at the first model's wire and leave at the other's, and
//! the wires record the times, as cards with hardware timestamps do. Any other two ports are the ends of the path to
//! measure (`ends`): frames are stamped in software, before they are sent at the first and after they are received at
//! the second.

mod ends;

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hdrhistogram::Histogram;
use linerate::Error;
use linerate::capture::Output;
use linerate::sim82599::Timed;
use linerate::traffic::{Latency, Rate, Report, Template};
use serde_json::{Value, json};

use crate::chart::{Line, of_percentiles};
use crate::error::missing;
use crate::fwd::{self, Rules};
use crate::grammar::usage;
use crate::host::HostOptions;
use crate::line_rate::{beyond_line, model, possible};
use crate::options::{RunOptions, whole};
use crate::processors::Use;
use crate::quantiles::{distribution, microseconds, row, titles};
use crate::rates::per_second;
use crate::run::{Measured, Mode, Moment, Outcome, Run};
use crate::shortfall::Shortfall;
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;
use crate::wire::with_option;

/// A run of `linerate latency`: one load.
struct Loaded;

impl Mode for Loaded {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn is_measurement(&self) -> bool {
        true
    }
}

/// Options of the load.
#[derive(Args, Clone)]
pub struct Load {
    /// Rate in packets (1M) or bits (1Gbit) per second; several rates are measured in turn
    #[arg(long, value_delimiter = ',', default_value = "100k")]
    pub rate: Vec<Rate>,
    /// Frame size in bytes, CRC included
    #[arg(long, default_value_t = 64, value_parser = whole::<u16>(64, 1518))]
    pub size: u16,
    /// Time one in this many frames
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(1, 1_000_000_000))]
    pub every: u64,
    /// Write the latencies to this file, as HdrHistogram's percentile distribution in microseconds; several rates are
    /// written to one file each, with the rate's number before the file's extension
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Plot the percentiles of all rates to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub path: PathOptions,
    /// Do not print how a rate is interpreted.
    #[arg(skip)]
    pub is_quiet: bool,
    /// Send at most this many frames.
    #[arg(skip)]
    pub count: Option<u64>,
}

/// Options of the path between two ports.
#[derive(Args, Clone, Default)]
pub struct PathOptions {
    /// Layers of the frames, with a stamp at the end: 'eth/ip(dst=10.0.1.2)/udp/stamp'; see docs/generate.md
    #[arg(long, value_name = "LAYERS", value_parser = str::parse::<Template>)]
    pub packet: Option<Template>,
    /// Send in both directions at the same time, at the rate in each
    #[arg(long)]
    pub both: bool,
    #[command(flatten)]
    pub host: HostOptions,
}

impl PathOptions {
    /// Returns the name of an option that only concerns other paths than a forwarder.
    fn any(&self) -> Option<&'static str> {
        let all = [(self.packet.is_some(), "--packet"), (self.both, "--both"), (self.host.answers(), "--address")];
        all.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }
}

/// Latencies at one load.
pub struct Times {
    /// Requested packets per second.
    pub asked: f64,
    /// The line rate in packets per second, if more was requested: a model's line can exceed it.
    pub line: Option<f64>,
    /// The measured time, and the packets that were sent and received in it.
    pub seconds: f64,
    pub sent: u64,
    pub arrived: u64,
    /// The rate that was not reached, if any.
    pub shortfall: Option<Shortfall>,
    pub used: Use,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
    /// The packets that were sent and received after that time.
    after: [u64; 2],
    pub lost: u64,
    pub corrupted: u64,
    /// Duplicates, and packets without a stamp; neither count as received.
    duplicated: u64,
    unstamped: u64,
    /// The latencies in nanoseconds.
    pub histogram: Histogram<u64>,
}

impl Times {
    /// Returns the sent and the received packets per second.
    pub fn rates(&self) -> [f64; 2] {
        [self.sent, self.arrived].map(|packets| packets as f64 / self.seconds)
    }

    /// Returns the packets that were sent at any time.
    pub fn total_sent(&self) -> u64 {
        self.sent + self.after[0]
    }

    fn json(&self) -> Value {
        let [sent, arrived] = self.rates();
        json!({
            "asked_mpps": self.asked / 1e6, "offered_mpps": sent / 1e6, "arrived_mpps": arrived / 1e6,
            "seconds": self.seconds, "sent": self.sent, "arrived": self.arrived, "after_end": {"sent": self.after[0], "arrived": self.after[1]},
            "lost": self.lost, "corrupted": self.corrupted, "duplicated": self.duplicated, "unstamped": self.unstamped, "looked_at": self.histogram.len(),
            "microseconds": microseconds(&self.histogram),
            "unreached": self.shortfall.as_ref().map(Shortfall::json), "processors": self.used.json(),
            "interrupted": self.interrupted,
        })
    }

    /// Returns lines on corrupted, duplicated and unstamped packets.
    fn defects(&self) -> Vec<String> {
        let all = [
            (self.corrupted, "error: corrupted on the way: "),
            (self.duplicated, "note: duplicated, and counted once: "),
            (self.unstamped, "note: arrived without a stamp, and not counted: "),
        ];
        let all = all.into_iter().filter(|(count, _)| *count > 0);
        all.map(|(count, what)| format!("{what}{count} packets")).collect()
    }

    fn line(&self) -> String {
        let times = row(&microseconds(&self.histogram));
        let lost = if self.lost < 10_000 { self.lost.to_string() } else { per_second(self.lost as f64) };
        let [sent, arrived] = self.rates().map(per_second);
        format!("{sent:>5} {arrived:>5} {lost:>5}{times}\n")
    }
}

/// The default duration of each load.
const SECONDS: Duration = Duration::from_secs(2);

/// Runs all loads.
pub fn run(names: [&str; 2], load: &Load, options: &RunOptions) -> Result<ExitCode, Error> {
    let options = RunOptions { seconds: Some(options.seconds.unwrap_or(SECONDS)), ..options.clone() };
    if load.plot.is_some() && cfg!(not(feature = "charts")) {
        usage(&format!("--plot draws a chart: {}", missing("charts")));
    }
    let (mut all, mut good) = (Vec::new(), true);
    // Create the files before anything is measured.
    let paths: Vec<PathBuf> = load.histogram.iter().flat_map(|path| paths(path, load.rate.len())).collect();
    let mut files = Vec::new();
    for path in &paths {
        files.push(Output::create(path)?);
    }
    let plot = load.plot.as_deref().map(|path| Ok((path, Output::create(path)?))).transpose()?;
    // A failure to write a file is reported at the end, so that all results are printed.
    let (mut lines, mut failure) = (Vec::new(), None);
    for (number, &rate) in load.rate.iter().enumerate() {
        let times = measure(names, rate, load, &options)?;
        if let Some(file) = files.get_mut(number) {
            let written = file.write_all(distribution(&times.histogram).as_bytes());
            failure = failure.or(written.err().map(|source| unwritable(&paths[number], source)));
        }
        if plot.is_some() {
            lines.push(Line::of_percentiles(rate.to_string(), &times.histogram));
        }
        good &= !times.histogram.is_empty() && times.corrupted == 0;
        good &= !options.strict || times.lost == 0 && times.shortfall.is_none();
        if options.json {
            print(&format!("{}\n", times.json()));
        } else {
            // Only now, so that the head is not printed before an error.
            if all.is_empty() {
                print(&head(names)?);
            }
            print(&times.line());
            times.shortfall.iter().for_each(|shortfall| shortfall.print(options.strict));
            if times.histogram.is_empty() {
                let seconds = options.seconds.unwrap_or(SECONDS);
                let seconds = seconds.as_secs_f64();
                let less = if load.every > 1 { ", or a smaller --every" } else { "" };
                note(&match times.arrived > 0 {
                    true => format!("note: no frame was timed in {seconds} s: use more --seconds{less}"),
                    false => format!("note: no frame arrived in {seconds} s: is {} linked to {}?", names[0], names[1]),
                });
            }
            times.defects().iter().for_each(|defect| note(defect));
            times.used.warning().iter().for_each(|warning| note(&format!("note: {warning}")));
        }
        all.push(times.json());
        if interrupts().should_end() {
            break;
        }
    }
    // The files of rates that were not measured are empty.
    for (path, file) in paths.iter().zip(&mut files) {
        failure = failure.or(file.begin().err().map(|source| unwritable(path, source)));
    }
    if let Some((path, mut file)) = plot {
        match of_percentiles(lines).svg() {
            Some(svg) => {
                let written = file.write_all(svg.as_bytes());
                failure = failure.or(written.err().map(|source| unwritable(path, source)));
            }
            None => {
                failure = failure.or(file.begin().err().map(|source| unwritable(path, source)));
                note(&format!("note: {} is empty: no frame was timed", path.display()));
            }
        }
    }
    let (is_ended, interrupted) = (interrupts().should_end(), interrupts().is_signalled());
    let unmeasured = &load.rate[all.len()..];
    if options.json {
        let rates: Vec<String> = unmeasured.iter().map(Rate::to_string).collect();
        let summary = json!({"command": "latency", "interrupted": interrupted, "unmeasured": rates, "loads": all});
        print(&format!("{}\n", json!({ "summary": summary })));
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if is_ended {
        let rest = unmeasured.iter().map(|rate| format!("; {rate} not measured")).collect::<String>();
        note(&format!("linerate: {} at {}{rest}", interrupts().word(), load.rate[all.len() - 1]));
        return Ok(ExitCode::FAILURE);
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the names of the histogram files: `times.hgrm`, or `times.1.hgrm`, `times.2.hgrm` and so on.
fn paths(path: &Path, count: usize) -> Vec<PathBuf> {
    let numbered = |number: usize| match path.extension() {
        Some(extension) => path.with_extension(format!("{number}.{}", extension.to_string_lossy())),
        None => PathBuf::from(format!("{}.{number}", path.display())),
    };
    if count == 1 { vec![path.to_path_buf()] } else { (1..=count).map(numbered).collect() }
}

fn unwritable(path: &Path, error: std::io::Error) -> Error {
    Error::file(path.display().to_string(), error.to_string())
}

/// Returns the table's head.
fn head(names: [&str; 2]) -> Result<String, Error> {
    let through = if are_sides_of_a_forwarder(names)? { "through fwd, from wire to wire" } else { "from port to port" };
    Ok(format!("times {through}; packets/s in and out, packets lost\n   in   out  lost{}\n", titles()))
}

/// Returns true for two models without a wire in their names.
fn are_sides_of_a_forwarder(names: [&str; 2]) -> Result<bool, Error> {
    let is_side = |name: &str| -> Result<bool, Error> {
        let name = linerate::parse(name)?;
        Ok(name.model().is_some() && name.option("wire").is_none())
    };
    Ok(is_side(names[0])? && is_side(names[1])?)
}

/// Measures one load.
pub fn measure(names: [&str; 2], rate: Rate, load: &Load, options: &RunOptions) -> Result<Times, Error> {
    let latency = Latency::new(load.every);
    let sample = match are_sides_of_a_forwarder(names)? {
        true => through_a_forwarder(names, rate, load, options, &latency)?,
        false => ends::measure(names, rate, load, options, &latency)?,
    };
    let mut histogram = Histogram::new(3).expect("three digits are possible");
    latency.take().into_iter().for_each(|time| histogram.record(time).expect("it grows with what comes"));
    let Sample { measured, asked, line, sent, arrived, total, unstamped } = sample;
    let Outcome { lost, corrupted, duplicated, .. } = measured.outcome;
    let after = [total[0].saturating_sub(sent), total[1].saturating_sub(arrived)];
    let Measured { seconds, .. } = measured;
    let bound = measured.stopped_by.clone().or_else(|| measured.used.bound());
    let shortfall = asked.and_then(|asked| Shortfall::of("the rate", asked, sent, seconds, bound));
    let asked = asked.unwrap_or(rate.packets_per_second(f64::from(load.size) - 4.0));
    let (used, interrupted) = (measured.used, measured.interrupted);
    Ok(Times {
        asked,
        line,
        seconds,
        sent,
        arrived,
        after,
        shortfall,
        used,
        interrupted,
        lost,
        corrupted,
        duplicated,
        unstamped,
        histogram,
    })
}

/// A measurement of one load.
struct Sample {
    measured: Measured,
    /// Requested packets per second, if the line can carry them.
    asked: Option<f64>,
    line: Option<f64>,
    /// Packets that were sent and received in the run's time.
    sent: u64,
    arrived: u64,
    /// Packets that were sent and received at any time.
    total: [u64; 2],
    /// Packets that arrived without a stamp.
    unstamped: u64,
}

/// Discards the latencies up to the first check, as frames waited while the threads started.
fn warmed_up(latency: &Arc<Latency>) -> impl FnMut(&Moment) + use<> {
    let (latency, mut is_warm) = (latency.clone(), false);
    move |moment| {
        if moment.moved.packets > 0 && !std::mem::replace(&mut is_warm, true) {
            latency.take();
        }
    }
}

fn through_a_forwarder(
    [a, b]: [&str; 2],
    rate: Rate,
    load: &Load,
    options: &RunOptions,
    latency: &Arc<Latency>,
) -> Result<Sample, Error> {
    if let Some(option) = load.path.any() {
        usage(&format!("{option} is for two ports with a path between them: give both models a wire"));
    }
    for name in [a, b] {
        let name = linerate::parse(name)?;
        if let Some(option) = ["rate", "size", "count"].into_iter().find(|option| name.option(option).is_some()) {
            usage(&format!("{name}: latency sets the load itself: leave out the option {option}"));
        }
    }
    let text = match rate {
        Rate::Packets(packets) => packets.to_string(),
        Rate::Bits(bits) => format!("{bits}bit"),
        Rate::Line(part) => format!("{}%", part * 100.0),
    };
    let count = load.count.map_or(String::new(), |count| format!("&count={count}"));
    let names = [with_option(a, &format!("rate={text}&size={}{count}", load.size)), with_option(b, "wire=sink")];
    let mut run = Run::open(&Loaded, &names.each_ref().map(String::as_str), None, options)?;
    let len = f64::from(load.size) - 4.0;
    let asked = possible(rate, len, &run.ports.devices[0], load.is_quiet).map(|rate| rate.packets_per_second(len));
    let line = beyond_line(rate, len, &run.ports.devices[0]).map(|line| line.packets_per_second(len));
    for device in &run.ports.devices {
        if let Some(card) = model(device) {
            card.rewire(|wire| Box::new(Timed::new(wire, latency.clone())));
        }
    }
    fwd::start(&mut run, false, &Rules::default(), options)?;
    // The judge's last call is when nothing moves any more.
    let total = Cell::new([0; 2]);
    let judge = |reports: &[Option<Report>], _| {
        if let [Some(sender), Some(receiver)] = reports {
            total.set([sender.sent, receiver.arrived()]);
        }
        fwd::judge(reports, [true, false])
    };
    let measured = run.measure(&mut warmed_up(latency), judge)?;
    let [sent, arrived] = [(0, 0), (1, 1)].map(|(port, way)| measured.wires[port].map_or(0, |counts| counts[way]));
    Ok(Sample { measured, asked, line, sent, arrived, total: total.get(), unstamped: 0 })
}
