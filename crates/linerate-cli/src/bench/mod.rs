//! `linerate bench`: the ixy paper's evaluation, and netmap's reference costs, on this machine.
//!
//! - this file: the command, and the list of experiments
//! - `forwarding`, `delays`, `memory_ports`, `path`: the experiments
//! - `published`: figures published by others, with their source
//! - `report`: tables, pictures, and the page that shows them

mod delays;
mod forwarding;
mod memory_ports;
mod path;
mod published;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use linerate::Error;

use crate::fwd::{self, Rules};
use crate::run::{Measured, Run, interrupts};
use crate::show::print;
use crate::{BatchSize, Common, Pages, Wait};
use report::{Report, Section};

/// Options of the measurement and its report.
#[derive(Args)]
pub struct Bench {
    /// Two ports to forward between; models by default. Real cards need a load from outside
    #[arg(num_args = 2, value_names = ["PORT", "PORT"])]
    ports: Vec<String>,
    /// Measure every point for a shorter time: about one minute instead of ten
    #[arg(long)]
    quick: bool,
    /// Run only these experiments, for example batch,rings
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Folder for the report: index.html, bench.json, and a CSV and a picture per experiment
    #[arg(long, default_value = "linerate-bench")]
    out: PathBuf,
    /// End with one line of JSON: the whole report
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
}

/// An experiment: its name on the command line, its number of points, and its function.
type Experiment = (&'static str, u64, fn(&Plan) -> Result<Section, Error>);

const EXPERIMENTS: [Experiment; 11] = [
    ("batch", forwarding::BATCHES.len() as u64, forwarding::by_batch),
    ("rings", forwarding::RINGS.len() as u64, forwarding::by_ring),
    ("pages", 6, forwarding::by_pages),
    ("iommu", 1, forwarding::by_iommu),
    ("parts", 3, path::parts),
    ("cores", 3, forwarding::by_queues),
    ("numa", 1, forwarding::by_node),
    ("latency", 9, delays::by_load),
    ("overload", 6, delays::by_ring),
    ("netmap", 6, memory_ports::by_size),
    ("imbalance", 5, memory_ports::imbalance),
];

impl Plan {
    /// Returns the options that all experiments start from.
    fn common(&self) -> Common {
        Common {
            batch: BatchSize::Fixed(32),
            ring: Some(512),
            queues: 1,
            mtu: 1500,
            seconds: Some(self.time),
            // Threads are pinned, so that runs are comparable.
            cores: (0..std::thread::available_parallelism().map_or(1, |count| count.get() as u16)).collect(),
            pages: Pages::Auto,
            numa: None,
            wait: Some(Wait::Poll),
            throttle: 10,
            bind: false,
            force: false,
            json: true,
        }
    }

    fn names(&self) -> [&str; 2] {
        self.ports.each_ref().map(String::as_str)
    }

    fn is_model(&self) -> bool {
        self.ports.iter().all(|port| port.starts_with("sim:"))
    }

    /// Counts a finished point.
    fn step(&self) {
        self.progress.inc(1);
    }
}

/// Runs the selected experiments, and writes the report.
pub fn run(bench: &Bench) -> Result<ExitCode, Error> {
    if let Some(unknown) = bench.only.iter().find(|name| EXPERIMENTS.iter().all(|(known, ..)| known != name)) {
        let known = EXPERIMENTS.map(|(name, ..)| name).join(", ");
        eprintln!("linerate: no experiment is called '{unknown}'; there are: {known}");
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
    let plan = Plan { ports, time, progress };
    let mut report = Report::new(&plan.ports, bench.quick);
    for (name, _, experiment) in experiments {
        plan.progress.set_message(name);
        let section = experiment(&plan)?;
        if !bench.json {
            plan.progress.suspend(|| print(&section.text()));
        }
        report.add(section);
        if interrupts().wait(Duration::ZERO) {
            break;
        }
    }
    plan.progress.finish_and_clear();
    if let Err(error) = report.write(&bench.out) {
        eprintln!("linerate: cannot write to {}: {error}; choose another folder with --out", bench.out.display());
        return Ok(ExitCode::FAILURE);
    }
    if bench.json {
        print(&format!("{}\n", report.json()));
    } else {
        print(&format!("{}\n", bench.out.join("index.html").display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Number of measurements of each point. The best one counts, as other programs may have used the processors.
const TRIES: u32 = 3;

/// Forwards both ways for the plan's time.
pub fn forward(plan: &Plan, common: &Common, profile: bool) -> Result<Measured, Error> {
    let common = Common { seconds: Some(plan.time / TRIES), ..common.clone() };
    let mut best: Option<Measured> = None;
    for _ in 0..TRIES {
        let mut run = Run::open("bench", &plan.names(), &common)?;
        fwd::start(&mut run, profile, &Rules::default(), &common)?;
        let measured = run.measure(|_| false, fwd::judge, None)?;
        if best.as_ref().is_none_or(|best| best.mpps() < measured.mpps()) {
            best = Some(measured);
        }
    }
    plan.step();
    Ok(best.expect("it was tried"))
}
