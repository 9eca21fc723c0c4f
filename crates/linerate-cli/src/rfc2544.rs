//! `linerate rfc2544`: the benchmarks of RFC 2544 for the device between two ports: throughput, latency, frame loss
//! rate, and back-to-back frames.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use linerate::Error;
use linerate::traffic::Rate;

use crate::chart::{Axis, Chart, Line, Lines, Scale};
use crate::latency::{Load, PathOptions, Times, measure};
use crate::options::{RunOptions, whole};
use crate::processors::Use;
use crate::quantiles::quantile;
use crate::report::{Cell, Report, Section, number};
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;

/// Options of the benchmarks.
#[derive(Args)]
pub struct Benchmarks {
    /// Frame sizes in bytes, CRC included (RFC 2544, section 9.1)
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024,1280,1518",
          value_parser = whole::<u16>(64, 1518))]
    sizes: Vec<u16>,
    /// Run only these tests
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Test>,
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
}

/// Parses a percentage.
fn part(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match number.filter(|number| (0.0..=100.0).contains(number)) {
        Some(number) => Ok(number / 100.0),
        None => Err("it must be 0% to 100%, such as 0.1%".to_string()),
    }
}

/// The default duration of a trial, as required by the RFC (section 24).
const TRIAL: Duration = Duration::from_secs(60);
/// The duration of the longest burst in seconds (section 26.4: at least two).
const BURST: f64 = 2.0;
/// The most steps of a search, whatever the resolution.
const STEPS: u32 = 20;

/// The results of one frame size.
#[derive(Default)]
struct Row {
    size: u16,
    /// The highest rate that the sender reached, in packets per second.
    offered: f64,
    /// The highest rate without loss.
    throughput: Option<f64>,
    /// Why the sender offered no higher rate, if it could not.
    bound: Option<String>,
    latency: Option<Times>,
    /// At 100 %, 90 % and so on of the offered rate: the packets per second that were sent, and the fraction that was
    /// lost.
    losses: Vec<(f64, f64)>,
    /// Whether any frame arrived.
    arrives: bool,
    /// Rates that were not reached.
    unreached: Vec<String>,
    /// The longest burst without loss, and the first one that was tried.
    burst: Option<(u64, u64)>,
}

/// A run of all benchmarks.
struct Tester<'a> {
    names: [&'a str; 2],
    what: &'a Benchmarks,
    options: RunOptions,
    progress: ProgressBar,
    used: Use,
}

/// Runs the benchmarks, and writes the report.
pub fn run(names: [&str; 2], what: &Benchmarks, options: &RunOptions) -> Result<ExitCode, Error> {
    let trial = options.seconds.unwrap_or(TRIAL);
    let seconds = trial.as_secs_f64();
    let about = format!(
        "RFC 2544, with trials of {seconds} s{}, a resolution of {} %, and a loss of at most {} %. Frames are numbered and \
         stamped; rates include CRC, preamble and gap.",
        if seconds < 60.0 { " (the RFC requires 60)" } else { "" },
        what.resolution * 100.0,
        what.loss * 100.0
    );
    let mut report = match Report::new("rfc2544", &names.map(str::to_string), about, &what.out) {
        Ok(report) => report,
        Err(code) => return Ok(code),
    };
    let progress = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} trials, {msg}");
    progress.set_style(style.expect("the template is right"));
    let options = RunOptions { seconds: Some(trial), ..options.clone() };
    let mut tester = Tester { names, what, options, progress, used: Use::default() };
    if seconds >= 10.0 {
        let (trials, time) = (tester.most_trials() * what.sizes.len() as u64, trial);
        let all = humantime::format_duration(Duration::from_secs(trials * time.as_secs()));
        note(&format!("note: at most {trials} trials of {seconds} s, {all}; --seconds 1 is faster"));
    }
    let mut rows = Vec::new();
    for &size in &what.sizes {
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
    let is_good = rows.iter().all(|row| row.arrives);
    for row in rows.iter().filter(|row| !row.arrives) {
        note(&format!("error: no frame of {} bytes arrived: is {} linked to {}?", row.size, names[0], names[1]));
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Tester<'_> {
    fn wants(&self, test: Test) -> bool {
        self.what.only.is_empty() || self.what.only.contains(&test)
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
            + if self.wants(Test::Throughput) || self.wants(Test::Latency) { 1 + u64::from(self.steps()) } else { 1 }
    }

    /// Runs a trial: sends frames for its duration, or `count` frames. Returns `None` if it was interrupted.
    fn trial(&mut self, size: u16, rate: Rate, count: Option<u64>, what: &str) -> Result<Option<Times>, Error> {
        self.progress.set_message(format!("{size} bytes: {what}"));
        let load = Load {
            rate: Vec::new(),
            histogram: None,
            plot: None,
            size,
            every: 1,
            path: self.what.path.clone(),
            is_quiet: true,
            count,
        };
        let times = measure(self.names, rate, &load, &self.options)?;
        self.used = std::mem::take(&mut self.used).worse(times.used.clone());
        self.progress.inc(1);
        Ok((!interrupts().should_end()).then_some(times))
    }

    /// Returns whether a trial's loss was within the tolerance.
    fn is_clean(&self, times: &Times) -> bool {
        let (sent, lost) = (times.total_sent(), times.lost + times.corrupted);
        sent > 0 && lost as f64 <= self.what.loss * sent as f64
    }

    /// Runs all tests for one frame size; returns `None` if they were interrupted.
    fn measure(&mut self, size: u16) -> Result<Option<Row>, Error> {
        self.progress.inc_length(self.most_trials());
        let Some(first) = self.trial(size, self.what.rate, None, "the highest rate")? else { return Ok(None) };
        // If the sender sends less than requested, only the rate that it reached was tested.
        let highest = first.rates()[0].min(first.asked).min(first.line.unwrap_or(f64::INFINITY));
        let mut row = Row { size, offered: highest, ..Row::default() };
        row.bound = first.shortfall.as_ref().map(|shortfall| shortfall.line());
        let is_clean = self.is_clean(&first);
        row.losses.push((first.rates()[0], loss_of(&first)));
        row.arrives = first.arrived > 0;
        if highest <= 0.0 {
            return Ok(Some(row));
        }
        if self.wants(Test::Throughput) || self.wants(Test::Latency) {
            row.throughput = if is_clean { Some(highest) } else { self.search_rate(size, highest)? };
        }
        if let (true, Some(rate)) = (self.wants(Test::Latency), row.throughput) {
            row.latency = self.trial(size, Rate::Packets(rate), None, "latency")?;
        }
        if self.wants(Test::Loss) {
            let mut zeros = u32::from(is_clean);
            for step in 1..10 {
                // Until two successive rates lose nothing.
                if zeros >= 2 {
                    break;
                }
                let part = 1.0 - f64::from(step) / 10.0;
                let Some(times) = self.trial(size, Rate::Packets(highest * part), None, "frame loss rate")? else {
                    break;
                };
                zeros = if times.lost + times.corrupted == 0 { zeros + 1 } else { 0 };
                row.losses.push((times.rates()[0], loss_of(&times)));
                let line =
                    times.shortfall.as_ref().map(|shortfall| format!("{:.0} %: {}", part * 100.0, shortfall.line()));
                row.unreached.extend(line);
            }
        }
        if self.wants(Test::BackToBack) {
            row.burst = self.search_burst(size, highest)?;
        }
        Ok((!interrupts().should_end()).then_some(row))
    }

    /// Searches the highest clean rate below one that is not, in packets per second; `None` if every rate loses frames.
    fn search_rate(&mut self, size: u16, highest: f64) -> Result<Option<f64>, Error> {
        let (mut low, mut high) = (None, highest);
        for _ in 0..self.steps() {
            let rate = (low.unwrap_or(0.0) + high) / 2.0;
            let Some(times) = self.trial(size, Rate::Packets(rate), None, "throughput")? else { return Ok(None) };
            match self.is_clean(&times) {
                true => low = Some(rate.min(times.rates()[0].max(low.unwrap_or(0.0)))),
                false => high = rate,
            }
        }
        Ok(low)
    }

    /// Searches the longest burst without loss; returns it and the longest one that was tried.
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

    /// Returns the tables.
    fn sections(&self, rows: &[Row]) -> Vec<Section> {
        let mut sections = Vec::new();
        let line = |size: u16, rate: f64| rate * (f64::from(size) + 20.0) * 8e-9;
        let size = |row: &Row| Cell::Number(row.size.into(), 0);
        if self.wants(Test::Throughput) {
            let notes = rows.iter().filter_map(|row| Some(format!("{} bytes: {}", row.size, row.bound.as_ref()?)));
            let of = |rate: fn(&Row) -> Option<f64>| {
                rows.iter().filter_map(|row| Some((row.size.into(), line(row.size, rate(row)?)))).collect()
            };
            sections.push(Section {
                name: "throughput",
                title: "Throughput (RFC 2544, section 26.1)",
                compares: "The highest rate at which the loss was within the tolerance.".to_string(),
                columns: vec!["bytes", "offered, Mpps", "Mpps", "Gbit/s", "% of the offered rate"],
                rows: rows
                    .iter()
                    .map(|row| {
                        let rate = row.throughput;
                        vec![
                            size(row),
                            Cell::Number(row.offered / 1e6, 6),
                            number(rate.map(|rate| rate / 1e6), 6),
                            number(rate.map(|rate| line(row.size, rate)), 4),
                            number(rate.map(|rate| rate / row.offered * 100.0), 2),
                        ]
                    })
                    .collect(),
                warnings: notes.collect(),
                chart: Some(Chart::Lines(Lines {
                    x: Axis { title: "bytes of a frame", scale: Scale::Linear },
                    y: Axis { title: "Gbit/s", scale: Scale::Linear },
                    lines: vec![
                        Line::ours("without loss", of(|row| row.throughput)),
                        Line::reference("offered", of(|row| Some(row.offered))),
                    ],
                })),
                ..Section::default()
            });
        }
        if self.wants(Test::Latency) {
            let microseconds =
                |times: &Times, part: f64| number(quantile(&times.histogram, part).map(|time| time as f64 / 1e3), 1);
            let row = |row: &Row| {
                let times = row.latency.as_ref()?;
                let mean = (!times.histogram.is_empty()).then(|| times.histogram.mean() / 1e3);
                let mut cells = vec![size(row), Cell::Number(times.rates()[0] / 1e6, 6), number(mean, 1)];
                cells.extend([0.0, 0.5, 0.99, 0.999, 1.0].map(|part| microseconds(times, part)));
                Some(cells)
            };
            sections.push(Section {
                name: "latency",
                title: "Latency at the throughput (section 26.2)",
                compares: "For every frame of one trial; the RFC requires the mean of 20 trials, with one frame each."
                    .to_string(),
                columns: vec![
                    "bytes",
                    "Mpps",
                    "mean, µs",
                    "min, µs",
                    "median, µs",
                    "99 %, µs",
                    "99.9 %, µs",
                    "max, µs",
                ],
                rows: rows.iter().filter_map(row).collect(),
                warnings: rows
                    .iter()
                    .filter_map(|row| {
                        let shortfall = row.latency.as_ref()?.shortfall.as_ref()?;
                        Some(format!("{} bytes: {}", row.size, shortfall.line()))
                    })
                    .collect(),
                ..Section::default()
            });
        }
        if self.wants(Test::Loss) {
            sections.push(Section {
                name: "loss",
                title: "Frame loss rate (section 26.3)",
                compares: "Frame loss at parts of the offered rate, until two successive ones have no loss."
                    .to_string(),
                columns: vec!["bytes", "% of the offered rate", "sent, Mpps", "lost, %"],
                rows: rows
                    .iter()
                    .flat_map(|row| {
                        row.losses.iter().enumerate().map(|(step, (sent, lost))| {
                            let part = 100.0 - 10.0 * step as f64;
                            vec![
                                size(row),
                                Cell::Number(part, 0),
                                Cell::Number(sent / 1e6, 6),
                                Cell::Number(lost * 100.0, 3),
                            ]
                        })
                    })
                    .collect(),
                warnings: rows
                    .iter()
                    .flat_map(|row| row.unreached.iter().map(|line| format!("{} bytes, {line}", row.size)))
                    .collect(),
                chart: Some(Chart::Lines(Lines {
                    x: Axis { title: "% of the offered rate", scale: Scale::Linear },
                    y: Axis { title: "lost frames, %", scale: Scale::Linear },
                    lines: rows
                        .iter()
                        .map(|row| {
                            let losses = row.losses.iter().enumerate();
                            let points = losses.map(|(step, (_, lost))| (100.0 - 10.0 * step as f64, lost * 100.0));
                            Line::ours(format!("{} bytes", row.size), points.collect())
                        })
                        .collect(),
                })),
                ..Section::default()
            });
        }
        if self.wants(Test::BackToBack) {
            sections.push(Section {
                name: "back-to-back",
                title: "Back-to-back frames (section 26.4)",
                compares:
                    "The longest burst at the offered rate without a lost frame, and the one that was tried first: two \
                           seconds. One trial of each length; the RFC requires the mean of 50."
                        .to_string(),
                columns: vec!["bytes", "frames", "tried"],
                rows: rows
                    .iter()
                    .map(|row| {
                        let [found, tried] = [0, 1].map(|n| {
                            number(row.burst.map(|(found, tried)| if n == 0 { found } else { tried } as f64), 0)
                        });
                        vec![size(row), found, tried]
                    })
                    .collect(),
                ..Section::default()
            });
        }
        sections
    }
}

/// Returns the fraction of a trial's frames that was lost or damaged.
fn loss_of(times: &Times) -> f64 {
    match times.total_sent() {
        0 => 0.0,
        sent => (times.lost + times.corrupted) as f64 / sent as f64,
    }
}
