//! `linerate latency`: the latency of frames from one port to another, by load.
//!
//! Two models are the two sides of a forwarder: frames enter at the first model's wire and leave at the other's, and
//! the wires record the times, as cards with hardware timestamps do. Any other pairs of ports are the ends of paths to
//! measure (`ends`): frames are stamped in software, before they are sent at the first and after they are received at
//! the second.
//!
//! - `ends`: the ports of the paths; `direction`: their frames; `probes`: frames whose times the cards note; `times`:
//!   the results

mod direction;
mod ends;
mod probes;
mod times;

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate::Error;
use linerate::capture::Output;
use linerate::port::PortName;
use linerate::sim82599::Timed;
use linerate::traffic::{Rate, Report, Sizes, Template};
use serde_json::json;

use self::direction::Timer;
pub use self::times::{Counts, Times};
use crate::chart::{Line, of_percentiles};
use crate::error::missing;
use crate::fwd::{self, Rules};
use crate::generate::Stream;
use crate::grammar::usage;
use crate::host::HostOptions;
use crate::line_rate::{beyond_line, model, possible};
use crate::options::{RunOptions, whole};
use crate::quantiles::{distribution, titles};
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

/// Whose clock times the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stamps {
    Program,
    Card,
}

/// Options of the load.
#[derive(Args, Clone)]
pub struct Load {
    /// Rate in packets (1M) or bits (1Gbit) per second; several rates are measured in turn
    #[arg(long, value_delimiter = ',', default_value = "100k")]
    pub rate: Vec<Rate>,
    /// Frame size in bytes, CRC included
    #[arg(long, default_value_t = 64, value_parser = whole::<u16>(Sizes::LEAST, Sizes::MOST))]
    pub size: u16,
    /// Time one in this many frames
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(1, 1_000_000_000))]
    pub every: u64,
    /// Whose clock times the frames: the program's, or the clocks of both cards, which see no delay of the program
    #[arg(long, value_enum, default_value = "program")]
    pub stamps: Stamps,
    /// Write the latencies to this file, as HdrHistogram's percentile distribution in microseconds; several rates are
    /// written to one file each, with the rate's number before the file's extension
    #[arg(long, value_name = "FILE")]
    pub histogram: Option<PathBuf>,
    /// Plot the percentiles of all rates to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub path: PathOptions,
    /// The streams, once they are [read](PathOptions::read_streams).
    #[arg(skip)]
    pub streams: Vec<Stream>,
    /// Do not print how a rate is interpreted.
    #[arg(skip)]
    pub is_quiet: bool,
    /// Send at most this many frames.
    #[arg(skip)]
    pub count: Option<u64>,
}

impl Load {
    /// Creates a load without options, for [`measure`]: it prints nothing, and times one of `every` frames.
    pub fn quiet(size: u16, every: u64, path: PathOptions, streams: Vec<Stream>) -> Load {
        let (rate, stamps, histogram, plot, is_quiet, count) = (Vec::new(), Stamps::Program, None, None, true, None);
        Load { rate, size, every, stamps, histogram, plot, path, streams, is_quiet, count }
    }

    /// Returns the streams with their sizes.
    fn streams(&self) -> Vec<Stream> {
        let size: Sizes = self.size.to_string().parse().expect("the option allows only sizes");
        let of = |stream: &Stream| Stream { size: stream.size.clone().or(Some(size.clone())), ..stream.clone() };
        self.streams.iter().map(of).collect()
    }
}

/// Options of the paths between pairs of ports.
#[derive(Args, Clone, Default)]
pub struct PathOptions {
    /// Layers of the frames, with a stamp at the end: 'eth/ip(dst=10.0.1.2)/udp/stamp'; see docs/generate.md
    #[arg(long, value_name = "LAYERS", value_parser = str::parse::<Template>, conflicts_with = "streams")]
    pub packet: Option<Template>,
    /// Frames of several streams, from a file as for gen; a stream's rate is its share of the rate
    #[arg(long, value_name = "FILE")]
    pub streams: Option<PathBuf>,
    /// Send in both directions at the same time, at the rate in each
    #[arg(long)]
    pub both: bool,
    #[command(flatten)]
    pub host: HostOptions,
}

impl PathOptions {
    /// Returns the name of an option that only concerns other paths than a forwarder.
    fn any(&self) -> Option<&'static str> {
        let all = [
            (self.packet.is_some(), "--packet"),
            (self.streams.is_some(), "--streams"),
            (self.both, "--both"),
            (self.host.answers(), "--address"),
        ];
        all.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// Returns the smallest size of a stream's frames, CRC included.
    pub fn least_size(&self, stream: &Stream) -> Result<u16, Error> {
        let default = if self.host.is_ipv6() { "eth/ip6/udp/stamp" } else { "eth/ip/udp/stamp" };
        let packet = stream.packet.clone().map_or_else(|| default.parse(), Ok)?;
        let frames = self.host.with_tag(packet)?.frames()?;
        Ok((frames.longest() + 4).try_into().unwrap_or(Sizes::MOST))
    }

    /// Reads the streams: those of the file, or else one. Ends the program if they cannot be measured.
    pub fn read_streams(&self) -> Vec<Stream> {
        match &self.streams {
            None => vec![Stream { packet: self.packet.clone(), ..Stream::default() }],
            Some(path) => Stream::read_shares(path),
        }
    }
}

/// The default duration of each load.
const SECONDS: Duration = Duration::from_secs(2);

/// Runs all loads.
pub fn run(names: &[&str], load: &Load, options: &RunOptions) -> Result<ExitCode, Error> {
    check_pairs(names, options);
    let load = &Load { streams: load.path.read_streams(), ..load.clone() };
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
            let written = file.write_all(distribution(&times.sum.delays.histogram).as_bytes());
            failure = failure.or(written.err().map(|source| unwritable(&paths[number], source)));
        }
        if plot.is_some() {
            lines.push(Line::of_percentiles(rate.to_string(), &times.sum.delays.histogram));
        }
        // Each pair must have delivered a frame.
        let is_empty = times.pairs.iter().find(|(_, counts)| counts.delays.histogram.is_empty());
        good &= is_empty.is_none() && times.sum.corrupted == 0;
        good &= !options.strict || times.sum.lost == 0 && times.shortfall.is_none();
        if options.json {
            print(&format!("{}\n", times.json()));
        } else {
            // Only now, so that the head is not printed before an error.
            if all.is_empty() {
                print(&head(names)?);
            }
            print(&times.lines());
            times.shortfall.iter().for_each(|shortfall| shortfall.print(options.strict));
            if let Some((pair, counts)) = is_empty {
                let seconds = options.seconds.unwrap_or(SECONDS);
                let seconds = seconds.as_secs_f64();
                let less = if load.every > 1 { ", or a smaller --every" } else { "" };
                note(&match counts.arrived > 0 {
                    true => format!("note: no frame was timed in {seconds} s: use more --seconds{less}"),
                    false => format!("note: no frame arrived in {seconds} s: {}", are_linked(pair)),
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

/// Ends the program if the ports are not pairs with one queue each, which is where frames are sent and received.
pub fn check_pairs(names: &[&str], options: &RunOptions) {
    let has_several = |name: &&str| {
        let queues = |name: PortName| name.option("queues").map_or(options.queues > 1, |queues| queues != "1");
        linerate::parse(name).is_ok_and(queues)
    };
    if let Some(name) = names.iter().find(|name| has_several(name)) {
        usage(&format!("{name}: frames are sent and received on one queue: leave out --queues and the option queues"));
    }
    if names.len() % 2 == 1 {
        let last = names[names.len() - 1];
        usage(&format!(
            "the ports are pairs, A B or A B C D, and {last} has no other end: give an even number of ports"
        ));
    }
}

/// Asks whether the ports of a pair are linked.
pub fn are_linked(pair: &str) -> String {
    let (a, b) = pair.split_once(" <-> ").or_else(|| pair.split_once(" -> ")).unwrap_or((pair, "the other port"));
    format!("is {a} linked to {b}?")
}

/// Returns the table's head.
fn head(names: &[&str]) -> Result<String, Error> {
    let through = if are_sides_of_a_forwarder(names)? { "through fwd, from wire to wire" } else { "from port to port" };
    Ok(format!("times {through}; packets/s in and out, packets lost\n   in   out  lost{}\n", titles()))
}

/// Returns true for two models without a wire in their names.
pub fn are_sides_of_a_forwarder(names: &[&str]) -> Result<bool, Error> {
    let is_side = |name: &str| -> Result<bool, Error> {
        let name = linerate::parse(name)?;
        Ok(name.model().is_some() && name.option("wire").is_none())
    };
    Ok(names.len() == 2 && is_side(names[0])? && is_side(names[1])?)
}

/// Measures one load. Each two ports are a pair.
pub fn measure(names: &[&str], rate: Rate, load: &Load, options: &RunOptions) -> Result<Times, Error> {
    measure_observed(names, rate, load, options, &mut |_| ())
}

/// As [`measure`]; the observer sees the run several times per second.
pub fn measure_observed(
    names: &[&str],
    rate: Rate,
    load: &Load,
    options: &RunOptions,
    observer: &mut dyn FnMut(&Moment),
) -> Result<Times, Error> {
    let Sample { measured, asked, line, senders, pairs } = match names {
        [a, b] if are_sides_of_a_forwarder(names)? => through_a_forwarder([a, b], rate, load, options)?,
        _ => ends::measure(names, rate, load, options, observer)?,
    };
    let mut sum = Counts::new(load.every);
    pairs.iter().for_each(|counts| sum.add(counts));
    let Measured { seconds, .. } = measured;
    let bound = measured.stopped_by.clone().or_else(|| measured.used.bound());
    let shortfall = asked.and_then(|asked| Shortfall::of("the rate", asked, sum.sent, seconds, bound));
    let all = senders as f64 * rate.packets_per_second(f64::from(load.size) - 4.0);
    let arrow = if load.path.both { "<->" } else { "->" };
    // Without the ports' options.
    let short = |name: &&str| name.split('?').next().unwrap_or(name).to_string();
    let names = names.chunks(2).map(|pair| pair.iter().map(short).collect::<Vec<_>>().join(&format!(" {arrow} ")));
    Ok(Times {
        asked: asked.unwrap_or(all),
        line,
        seconds,
        senders,
        sum,
        pairs: names.zip(pairs).collect(),
        shortfall,
        used: measured.used,
        interrupted: measured.interrupted,
    })
}

/// A measurement of one load.
struct Sample {
    measured: Measured,
    /// Requested packets per second of all senders, if the lines can carry them.
    asked: Option<f64>,
    line: Option<f64>,
    senders: u64,
    /// The counts of each pair of ports.
    pairs: Vec<Counts>,
}

fn through_a_forwarder([a, b]: [&str; 2], rate: Rate, load: &Load, options: &RunOptions) -> Result<Sample, Error> {
    if load.stamps == Stamps::Card {
        usage("--stamps card is for two ports with a path between them: wires of models note the times themselves");
    }
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
    let mut timer = Timer::new(load.every);
    for device in &run.ports.devices {
        if let Some(card) = model(device) {
            card.rewire(|wire| Box::new(Timed::new(wire, timer.latency.clone())));
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
    let measured = run.measure(&mut |moment: &Moment| timer.see(moment), judge)?;
    let [sent, arrived] = [(0, 0), (1, 1)].map(|(port, way)| measured.wires[port].map_or(0, |counts| counts[way]));
    let (Outcome { lost, corrupted, changed, duplicated, .. }, total) = (&measured.outcome, total.get());
    let counts = Counts {
        sent,
        arrived,
        after: [total[0].saturating_sub(sent), total[1].saturating_sub(arrived)],
        lost: *lost,
        corrupted: *corrupted,
        changed: *changed,
        duplicated: *duplicated,
        delays: timer.into_delays(),
        ..Counts::new(load.every)
    };
    Ok(Sample { measured, asked, line, senders: 1, pairs: vec![counts] })
}
