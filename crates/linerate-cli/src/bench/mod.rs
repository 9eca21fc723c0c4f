//! `linerate bench`: repeats the ixy paper's evaluation, and measures netmap's reference costs, on this machine.
//!
//! - this file: the command, and the list of experiments
//! - `forwarding`, `delays`, `memory_ports`, `path`: the experiments; `bare`: the driver compared with a bare loop;
//!   `alone`: cards and their driver on one thread
//! - `published`: published figures of others, with their sources

mod alone;
mod bare;
mod delays;
mod forwarding;
mod memory_ports;
mod path;
mod published;

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use linerate::Error;

use crate::fwd::{self, Rules};
use crate::options::{RunOptions, Wait};
use crate::processors::{self, Snapshot, Use, allowed};
use crate::report::{Report, Section};
use crate::run::{Measured, Mode, Moment, Run};
use crate::shortfall::Shortfall;
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;

/// A run of `linerate bench`: one point of an experiment.
struct Point;

impl Mode for Point {
    fn name(&self) -> &'static str {
        "bench"
    }

    fn is_experiment(&self) -> bool {
        true
    }
}

/// Options of the measurement and its report.
#[derive(Args)]
pub struct Bench {
    /// Two ports to forward between; models by default. Real cards need an external load
    #[arg(num_args = 2, value_names = ["PORT", "PORT"])]
    ports: Vec<String>,
    /// Measure every point for a shorter time: about one minute instead of eight
    #[arg(long)]
    quick: bool,
    /// Run only these experiments, for example batch,rings
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Folder for the report: index.html, bench.json, share.svg, and a CSV and a picture per experiment
    #[arg(long, default_value = "linerate-bench")]
    out: PathBuf,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The settings of an experiment.
pub struct Plan {
    /// The ports to forward between.
    ports: [String; 2],
    /// The time for each point.
    time: Duration,
    /// Counts the finished points.
    progress: ProgressBar,
    /// Disturbances of the present experiment.
    disturbed: RefCell<Disturbed>,
}

/// Disturbances of an experiment, which distort its results.
#[derive(Clone, Default)]
struct Disturbed {
    used: Use,
    /// Rates that were not reached.
    unreached: Vec<String>,
}

/// An experiment: its name on the command line, its number of points, and its function.
type Experiment = (&'static str, u64, fn(&Plan) -> Result<Section, Error>);

const EXPERIMENTS: [Experiment; 11] = [
    ("batch", forwarding::BATCHES.len() as u64, forwarding::by_batch),
    ("rings", forwarding::RINGS.len() as u64, forwarding::by_ring),
    ("pages", 6, forwarding::by_pages),
    ("iommu", 1, forwarding::by_iommu),
    ("parts", 4, path::parts),
    ("cores", 3, forwarding::by_queues),
    ("numa", 1, forwarding::by_node),
    ("latency", 9, delays::by_load),
    ("overload", 6, delays::by_ring),
    ("netmap", 6, memory_ports::by_size),
    ("imbalance", 5, memory_ports::imbalance),
];

impl Plan {
    /// Returns the options that all experiments start from.
    fn options(&self) -> RunOptions {
        RunOptions {
            ring: Some(512),
            seconds: Some(self.time),
            // Threads are pinned, so that runs are comparable.
            cores: Some(allowed()),
            wait: Some(Wait::Poll),
            json: true,
            ..RunOptions::default()
        }
    }

    fn names(&self) -> [&str; 2] {
        self.ports.each_ref().map(String::as_str)
    }

    fn is_model(&self) -> bool {
        self.ports.iter().all(|port| linerate::parse(port).is_ok_and(|port| port.model().is_some()))
    }

    /// Records a measurement's use of processors, and a rate that it did not reach.
    fn note(&self, used: &Use, shortfall: Option<&Shortfall>) {
        let mut disturbed = self.disturbed.borrow_mut();
        disturbed.used = std::mem::take(&mut disturbed.used).worse(used.clone());
        disturbed.unreached.extend(shortfall.map(Shortfall::line));
    }

    /// Counts a finished point.
    fn step(&self) {
        self.progress.inc(1);
    }
}

/// Returns whether a measurement that began at `begin` continues: until its time is over, or Ctrl-C.
fn has_time(begin: Instant, time: Duration) -> bool {
    begin.elapsed() < time && !interrupts().should_end()
}

/// Runs the selected experiments, and writes the report.
pub fn run(bench: &Bench) -> Result<ExitCode, Error> {
    if let Some(unknown) = bench.only.iter().find(|name| EXPERIMENTS.iter().all(|(known, ..)| known != name)) {
        let known = EXPERIMENTS.map(|(name, ..)| name).join(", ");
        note(&format!("linerate: no experiment is called '{unknown}'; there are: {known}"));
        return Ok(ExitCode::from(2));
    }
    let wanted = |name: &str| bench.only.is_empty() || bench.only.iter().any(|only| only == name);
    let experiments: Vec<Experiment> = EXPERIMENTS.into_iter().filter(|(name, ..)| wanted(name)).collect();
    let progress = ProgressBar::new(experiments.iter().map(|(_, points, _)| points).sum());
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} {msg}");
    progress.set_style(style.expect("the template is right"));
    let ports = match &bench.ports[..] {
        [a, b] => [a.clone(), b.clone()],
        _ => ["sim:0".to_string(), "sim:1".to_string()],
    };
    let time = if bench.quick { Duration::from_millis(600) } else { Duration::from_secs(6) };
    let plan = Plan { ports, time, progress, disturbed: RefCell::default() };
    let how = if bench.quick { "a quick run, in which small differences are not significant" } else { "a full run" };
    let about = format!(
        "{how}. Published figures were measured on other machines: compare shapes and ratios, not absolute figures. \
         The paper is Emmerich and others, \"User Space Network Drivers\", ANCS 2019.</p>\n<p>{}",
        conditions(plan.is_model())
    );
    let mut report = match Report::new("bench", &plan.ports, about, &bench.out) {
        Ok(report) => report,
        Err(code) => return Ok(code),
    };
    // Of other programs: this one has not used a processor yet.
    let load = processors::busy_before();
    if let Some(load) = &load {
        report.warn(load.clone());
        plan.progress.suspend(|| note(&format!("note: {load}")));
    }
    for (name, _, experiment) in experiments {
        plan.progress.set_message(name);
        let before = Snapshot::take();
        let section = experiment(&plan)?;
        // An interrupted experiment lacks some points.
        if interrupts().should_end() {
            report.interrupted_in(name.to_string());
            break;
        }
        // Threads of runs have ended and were recorded; add this thread, which measured the rest.
        plan.note(&Snapshot::take().since(&before, |thread| thread == "linerate"), None);
        let Disturbed { used, unreached } = plan.disturbed.take();
        let mut section = section;
        section.warnings.splice(0..0, used.warning().into_iter().chain(unreached));
        if !bench.json {
            plan.progress.suspend(|| print(&section.text()));
        }
        if let Some(bars) = section.card.take() {
            let quick = if bench.quick { "a quick run" } else { "a full run" };
            let about = format!("Best rounds of {quick}; one thread is card and forwarder in turn.");
            let busy: Vec<String> = load.iter().chain(&section.warnings).cloned().collect();
            report.sum_up(
                "The driver's cost per packet, compared with a bare loop in the same run",
                &bars,
                &about,
                &busy,
            );
        }
        report.add(section);
    }
    plan.progress.finish_and_clear();
    if let Err(code) = report.finish(bench.json) {
        return Ok(code);
    }
    if let Some(name) = report.interrupted() {
        note(&format!("linerate: {} in '{name}': the report lacks this and what follows", interrupts().word()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the conditions of all measurements.
fn conditions(is_model: bool) -> &'static str {
    match is_model {
        true => {
            "The cards are models: one processor runs them, which limits the rate, and another runs the forwarder. Cycles per \
             packet are the forwarder's own, including its waits for cache lines that the models' processor wrote last. \"One \
             processor\" is the same with one thread as card and forwarder in turn: every batch is full, and no cache line \
             comes from another processor. It is the best of ten tries; rates, and the cycles beside them, are the best of \
             three."
        }
        false => {
            "The cards are real: their load and this processor limit the rate. \"One processor\" is measured with a model, \
             without a card."
        }
    }
}

/// The number of measurements of each point. The best one counts, as other programs may use the processors.
const TRIES: u32 = 3;

/// Forwards in both directions for the plan's time.
pub fn forward(plan: &Plan, options: &RunOptions, profile: bool) -> Result<Measured, Error> {
    let options = RunOptions { seconds: Some(plan.time / TRIES), ..options.clone() };
    let mut best: Option<Measured> = None;
    for _ in 0..TRIES {
        // After Ctrl-C, stop measuring: this experiment is not shown.
        if best.is_some() && interrupts().should_end() {
            break;
        }
        let mut run = Run::open(&Point, &plan.names(), None, &options)?;
        fwd::start(&mut run, profile, &Rules::default(), &options)?;
        let measured = run.measure(&mut |_: &Moment| (), |reports, _| fwd::judge(reports, [true; 2]))?;
        plan.note(&measured.used, None);
        if best.as_ref().is_none_or(|best| best.mpps() < measured.mpps()) {
            best = Some(measured);
        }
    }
    plan.step();
    Ok(best.expect("it was tried"))
}
