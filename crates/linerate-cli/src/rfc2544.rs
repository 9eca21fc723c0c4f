//! `linerate rfc2544`: the benchmarks of RFC 2544 for the device between two ports, or between pairs of ports:
//! throughput, latency, frame loss rate, back-to-back frames, and the time of a reset (RFC 6201). `tables` are their
//! results; `reset` runs the command that resets the device.

mod reset;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use linerate::Error;
use linerate::traffic::{Rate, Sizes};
use reset::Reset;

use crate::generate::Stream;
use crate::grammar::usage;
use crate::latency::{
    Counts, Load, PathOptions, Times, are_linked, are_sides_of_a_forwarder, check_pairs, measure_observed,
};
use crate::options::{RunOptions, whole};
use crate::processors::Use;
use crate::report::Report;
use crate::run::Moment;
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;

/// Options of the benchmarks.
#[derive(Args)]
pub struct Benchmarks {
    /// Frame sizes in bytes, CRC included; default 64,128,256,512,1024,1280,1518 (RFC 2544, section 9.1). If the headers
    /// have no room in 64 bytes, as over IPv6, the smallest size is used instead (RFC 5180, section 5.1.1)
    #[arg(long, value_delimiter = ',', value_parser = whole::<u16>(Sizes::LEAST, Sizes::MOST))]
    sizes: Vec<u16>,
    /// Run only these tests; by default all except reset, which needs a reset of the device
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Test>,
    /// Shell command that resets the device, for the test reset; without it, the user does so during the trial
    #[arg(long, value_name = "COMMAND")]
    reset_command: Option<String>,
    /// The highest rate: in packets (1M) or bits (1Gbit) per second, or a part of the line rate
    #[arg(long, default_value = "100%")]
    rate: Rate,
    /// Precision of the search for a rate or a burst, as a part of the highest one
    #[arg(long, value_name = "PART", default_value = "0.1%", value_parser = part)]
    resolution: f64,
    /// Frame loss at which a rate still counts, as a part of the frames sent
    #[arg(long, value_name = "PART", default_value = "0%", value_parser = part)]
    loss: f64,
    #[command(flatten)]
    path: PathOptions,
    /// Folder for the report: index.html, rfc2544.json, a CSV per test, and a picture of the throughput
    #[arg(long, default_value = "linerate-rfc2544")]
    out: PathBuf,
}

/// The tests, by their sections of RFC 2544.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// The highest rate without loss (section 26.1)
    Throughput,
    /// Latency at that rate (26.2)
    Latency,
    /// Lost frames at 100 %, 90 % and so on of the highest rate (26.3)
    Loss,
    /// The longest burst at the highest rate without loss (26.4)
    BackToBack,
    /// The time without forwarding when the device is reset (RFC 6201)
    Reset,
}

/// Parses a percentage.
fn part(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match number.filter(|number| (0.0..=100.0).contains(number)) {
        Some(number) => Ok(number / 100.0),
        None => Err("it must be 0% to 100%, such as 0.1%".to_string()),
    }
}

/// The default sizes.
const SIZES: [u16; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
/// The default duration of a trial, as required by the RFC (section 24).
const TRIAL: Duration = Duration::from_secs(60);
/// The duration of the longest burst in seconds (section 26.4: at least two).
const BURST: f64 = 2.0;
/// The most steps of a search, whatever the resolution.
const STEPS: u32 = 20;

/// The results of one frame size. Rates are in packets per second, of all senders.
#[derive(Default)]
struct Row {
    size: u16,
    /// The highest rate that the senders reached.
    offered: f64,
    /// The highest rate without loss.
    throughput: Option<f64>,
    /// The pair with the highest loss at the lowest rate with loss.
    worst: Option<String>,
    /// Why the senders offered no higher rate, if they could not.
    bound: Option<String>,
    latency: Option<Times>,
    /// At 100 %, 90 % and so on of the offered rate.
    losses: Vec<Loss>,
    /// The pairs between which no frame arrived.
    silent: Vec<String>,
    /// Rates that were not reached.
    unreached: Vec<String>,
    /// The longest burst of each sender without loss, and the first one that was tried.
    burst: Option<(u64, u64)>,
    reset: Option<ResetTime>,
}

/// The frame loss at one rate.
struct Loss {
    /// The rate that was sent.
    sent: f64,
    /// The fraction that was lost or damaged.
    lost: f64,
    /// The pair with the highest one.
    worst: Option<String>,
}

impl Loss {
    fn of(times: &Times) -> Loss {
        Loss { sent: times.rates()[0], lost: times.sum.loss(), worst: worst_loss(times) }
    }
}

/// A reset of the device.
struct ResetTime {
    /// The rate that was sent.
    rate: f64,
    lost: u64,
    /// The lost frames of the pair with the longest reset time, divided by its rate, in seconds.
    by_loss: f64,
    /// The longest time between two arrivals, in seconds; `None` if no frame arrived again.
    by_time: Option<f64>,
    /// Why the command failed, if it did.
    failure: Option<String>,
    /// The rate that was not reached, if any, as while the device's link is down.
    unreached: Option<String>,
}

/// Returns the pair with the highest loss, if there are several pairs and one has a loss.
fn worst_loss(times: &Times) -> Option<String> {
    times.worst(|counts| Some(counts.loss()).filter(|loss| *loss > 0.0)).map(str::to_string)
}

/// A run of all benchmarks.
struct Tester<'a> {
    names: &'a [&'a str],
    what: &'a Benchmarks,
    streams: Vec<Stream>,
    options: RunOptions,
    progress: ProgressBar,
    used: Use,
}

/// Runs the benchmarks, and writes the report.
pub fn run(names: &[&str], what: &Benchmarks, options: &RunOptions) -> Result<ExitCode, Error> {
    check_pairs(names, options);
    let streams = what.path.read_streams();
    if let Some(stream) = streams.iter().position(|stream| stream.size.is_some()) {
        usage(&format!("{}: rfc2544 sets the sizes of the frames: leave out size", streams[stream].label(stream)));
    }
    let sizes = what.sizes(&streams)?;
    let trial = options.seconds.unwrap_or(TRIAL);
    let seconds = trial.as_secs_f64();
    let about = format!(
        "RFC 2544, with trials of {seconds} s{}, a resolution of {} %, and a loss of at most {} %. Frames are numbered and \
         stamped; rates are sums of all sending ports, and include CRC, preamble and gap.",
        if seconds < 60.0 { " (the RFC requires 60)" } else { "" },
        what.resolution * 100.0,
        what.loss * 100.0
    );
    let ports: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut report = match Report::new("rfc2544", &ports, about, &what.out) {
        Ok(report) => report,
        Err(code) => return Ok(code),
    };
    let progress = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} trials, {msg}");
    progress.set_style(style.expect("the template is right"));
    let options = RunOptions { seconds: Some(trial), ..options.clone() };
    let mut tester = Tester { names, what, streams, options, progress, used: Use::default() };
    tester.check_reset()?;
    if seconds >= 10.0 {
        let (trials, time) = (tester.most_trials() * sizes.len() as u64, trial);
        let all = humantime::format_duration(Duration::from_secs(trials * time.as_secs()));
        note(&format!("note: at most {trials} trials of {seconds} s, {all}; --seconds 1 is faster"));
    }
    let mut rows = Vec::new();
    for &size in &sizes {
        match tester.measure(size)? {
            Some(row) => rows.push(row),
            None => {
                report.interrupted_in(format!("frames of {size} bytes"));
                break;
            }
        }
    }
    tester.progress.finish_and_clear();
    for mut section in tester.sections(&rows) {
        section.warnings.extend(tester.used.warning());
        if !tester.options.json {
            print(&section.text());
        }
        report.add(section);
    }
    if let Err(code) = report.finish(tester.options.json) {
        return Ok(code);
    }
    if let Some(place) = report.interrupted() {
        note(&format!("linerate: {} at {place}: the report lacks this and what follows", interrupts().word()));
        return Ok(ExitCode::FAILURE);
    }
    let mut is_good = true;
    for (row, pair) in rows.iter().flat_map(|row| row.silent.iter().map(move |pair| (row, pair))) {
        note(&format!("error: no frame of {} bytes arrived: {}", row.size, are_linked(pair)));
        is_good = false;
    }
    for (row, reset) in rows.iter().filter_map(|row| Some((row, row.reset.as_ref()?))) {
        for error in reset.errors() {
            note(&format!("error: frames of {} bytes: {error}", row.size));
            is_good = false;
        }
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Benchmarks {
    /// Returns the sizes of the frames: by default those of the RFC, with the smallest possible one instead of those
    /// that have no room for the headers.
    fn sizes(&self, streams: &[Stream]) -> Result<Vec<u16>, Error> {
        let mut least = SIZES[0];
        for stream in streams {
            least = least.max(self.path.least_size(stream)?);
        }
        if let Some(size) = self.sizes.iter().find(|size| **size < least) {
            usage(&format!(
                "--sizes: a frame of {size} bytes, CRC included, has no room for the headers; the smallest has {least}"
            ));
        }
        if !self.sizes.is_empty() {
            return Ok(self.sizes.clone());
        }
        let mut sizes = SIZES.map(|size| size.max(least)).to_vec();
        sizes.dedup();
        Ok(sizes)
    }
}

impl ResetTime {
    /// Returns lines on what the reset times do not show.
    fn notes(&self) -> Vec<String> {
        let unsent = |line: &String| format!("{line}; by loss lacks the frames that could not be sent");
        let none = (self.lost == 0).then(|| "no frame was lost: was the device reset?".to_string());
        self.unreached.iter().map(unsent).chain(none).chain(self.errors()).collect()
    }

    /// Returns why the reset time is not known.
    fn errors(&self) -> Vec<String> {
        let no_recovery =
            self.by_time.is_none().then(|| "no frame arrived again after the reset: use more --seconds".to_string());
        self.failure.iter().cloned().chain(no_recovery).collect()
    }
}

impl Tester<'_> {
    fn wants(&self, test: Test) -> bool {
        match self.what.only.is_empty() {
            true => test != Test::Reset || self.what.reset_command.is_some(),
            false => self.what.only.contains(&test),
        }
    }

    /// Ends the program if the options of the test reset cannot be used.
    fn check_reset(&self) -> Result<(), Error> {
        if self.what.reset_command.is_some() && !self.wants(Test::Reset) {
            usage("--reset-command is for the test reset: add it to --only");
        }
        if self.wants(Test::Reset) && are_sides_of_a_forwarder(self.names)? {
            usage("the test reset needs a device between the ports: give both models a wire");
        }
        Ok(())
    }

    /// Returns the number of steps of a search.
    fn steps(&self) -> u32 {
        (1.0 / self.what.resolution.max(1e-9)).log2().ceil().clamp(1.0, STEPS.into()) as u32
    }

    /// Returns the highest number of trials for one frame size.
    fn most_trials(&self) -> u64 {
        let of = |test, trials: u32| if self.wants(test) { u64::from(trials) } else { 0 };
        of(Test::Loss, 9)
            + of(Test::BackToBack, 1 + self.steps())
            + of(Test::Latency, 1)
            + of(Test::Reset, 1)
            + if self.wants(Test::Throughput) || self.wants(Test::Latency) { 1 + u64::from(self.steps()) } else { 1 }
    }

    /// Runs a trial: each port sends frames at `rate` for its duration, or `count` frames. Returns `None` if it was
    /// interrupted.
    fn trial(&mut self, size: u16, rate: Rate, count: Option<u64>, what: &str) -> Result<Option<Times>, Error> {
        self.observed_trial(size, rate, count, what, &mut |_| ())
    }

    fn observed_trial(
        &mut self,
        size: u16,
        rate: Rate,
        count: Option<u64>,
        what: &str,
        observer: &mut dyn FnMut(&Moment),
    ) -> Result<Option<Times>, Error> {
        self.progress.set_message(format!("{size} bytes: {what}"));
        let load = Load { count, ..Load::quiet(size, 1, self.what.path.clone(), self.streams.clone()) };
        let times = measure_observed(self.names, rate, &load, &self.options, observer)?;
        self.used = std::mem::take(&mut self.used).worse(times.used.clone());
        self.progress.inc(1);
        Ok((!interrupts().should_end()).then_some(times))
    }

    /// Returns whether a trial's loss was within the tolerance, for each pair of ports.
    fn is_clean(&self, times: &Times) -> bool {
        let is_clean = |counts: &Counts| counts.total_sent() > 0 && counts.loss() <= self.what.loss;
        times.pairs.iter().all(|(_, counts)| is_clean(counts))
    }

    /// Runs all tests for one frame size; returns `None` if they were interrupted.
    fn measure(&mut self, size: u16) -> Result<Option<Row>, Error> {
        self.progress.inc_length(self.most_trials());
        let Some(first) = self.trial(size, self.what.rate, None, "the highest rate")? else { return Ok(None) };
        // If the senders send less than requested, only the rate that they reached was tested.
        let highest = first.rates()[0].min(first.asked).min(first.line.unwrap_or(f64::INFINITY));
        let mut row = Row { size, offered: highest, ..Row::default() };
        row.bound = first.shortfall.as_ref().map(|shortfall| shortfall.line());
        let is_clean = self.is_clean(&first);
        row.losses.push(Loss::of(&first));
        let silent = first.pairs.iter().filter(|(_, counts)| counts.arrived + counts.after[1] == 0);
        row.silent = silent.map(|(pair, _)| pair.clone()).collect();
        if highest <= 0.0 {
            return Ok(Some(row));
        }
        // Each sender has the same part of a rate.
        let senders = first.senders as f64;
        let of_each = |rate: f64| Rate::Packets(rate / senders);
        if self.wants(Test::Throughput) || self.wants(Test::Latency) {
            if is_clean {
                row.throughput = Some(highest);
            } else {
                row.worst = worst_loss(&first);
                self.search_rate(&mut row, senders)?;
            }
        }
        if let (true, Some(rate)) = (self.wants(Test::Latency), row.throughput) {
            row.latency = self.trial(size, of_each(rate), None, "latency")?;
        }
        if self.wants(Test::Loss) {
            let mut zeros = u32::from(is_clean);
            for step in 1..10 {
                // Until two successive rates lose nothing.
                if zeros >= 2 {
                    break;
                }
                let part = 1.0 - f64::from(step) / 10.0;
                let Some(times) = self.trial(size, of_each(highest * part), None, "frame loss rate")? else {
                    break;
                };
                zeros = if times.sum.loss() == 0.0 { zeros + 1 } else { 0 };
                row.losses.push(Loss::of(&times));
                let line =
                    times.shortfall.as_ref().map(|shortfall| format!("{:.0} %: {}", part * 100.0, shortfall.line()));
                row.unreached.extend(line);
            }
        }
        if self.wants(Test::BackToBack) {
            row.burst = self.search_burst(size, highest / senders)?;
        }
        if self.wants(Test::Reset) && !interrupts().should_end() {
            row.reset = self.reset(size, of_each(row.throughput.unwrap_or(highest)))?;
        }
        Ok((!interrupts().should_end()).then_some(row))
    }

    /// Searches the highest clean rate below the offered one, which is not; there is none if every rate loses frames.
    fn search_rate(&mut self, row: &mut Row, senders: f64) -> Result<(), Error> {
        let (mut low, mut high) = (None, row.offered);
        for _ in 0..self.steps() {
            let rate = (low.unwrap_or(0.0) + high) / 2.0;
            let Some(times) = self.trial(row.size, Rate::Packets(rate / senders), None, "throughput")? else {
                return Ok(());
            };
            match self.is_clean(&times) {
                true => low = Some(rate.min(times.rates()[0].max(low.unwrap_or(0.0)))),
                false => (high, row.worst) = (rate, worst_loss(&times)),
            }
        }
        row.throughput = low;
        Ok(())
    }

    /// Measures a reset of the device at this rate of each sender. Returns `None` if it was interrupted.
    fn reset(&mut self, size: u16, rate: Rate) -> Result<Option<ResetTime>, Error> {
        let trial = self.options.seconds.unwrap_or(TRIAL);
        let mut reset = Reset::new(self.what.reset_command.as_deref(), trial, self.progress.clone());
        let times = self.observed_trial(size, rate, None, "reset", &mut |moment| reset.see(moment))?;
        let failure = reset.finish();
        Ok(times.map(|times| {
            let seconds = |counts: &Counts| match counts.sent {
                0 => 0.0,
                sent => counts.lost as f64 / (sent as f64 / times.seconds),
            };
            let pause = times.sum.pause.filter(|pause| pause.is_over);
            ResetTime {
                rate: times.rates()[0],
                lost: times.sum.lost,
                by_loss: times.pairs.iter().map(|(_, counts)| seconds(counts)).fold(0.0, f64::max),
                by_time: pause.map(|pause| pause.nanoseconds as f64 / 1e9),
                failure,
                unreached: times.shortfall.as_ref().map(|shortfall| shortfall.line()),
            }
        }))
    }

    /// Searches the longest burst of each sender without loss; returns it and the longest one that was tried. `highest`
    /// is the rate of each sender.
    fn search_burst(&mut self, size: u16, highest: f64) -> Result<Option<(u64, u64)>, Error> {
        let longest = (highest * BURST) as u64;
        // The time to send a burst, and some more for late frames.
        let seconds = Some(Duration::from_secs_f64(BURST + 0.5));
        let options = RunOptions { seconds, ..self.options.clone() };
        let kept = std::mem::replace(&mut self.options, options);
        let (mut low, mut high) = (0, longest + 1);
        // The resolution is relative to the burst that is found, which may be short.
        while high - low > (low as f64 * self.what.resolution) as u64 + 1 {
            let count = if high > longest { longest.max(1) } else { (low + high) / 2 };
            let rate = Rate::Packets(highest);
            let Some(times) = self.trial(size, rate, Some(count.max(1)), "back-to-back frames")? else { break };
            match self.is_clean(&times) {
                true => low = count,
                false => high = count,
            }
        }
        self.options = kept;
        Ok(Some((low, longest)))
    }
}
