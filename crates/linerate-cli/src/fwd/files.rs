//! Forwarding from one capture file to another: records are copied, with their times, lengths and options.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use linerate::Error;
use linerate::capture::{Changes, Format, Frames, RewriteCounts, RewriteFrame, Rewriter};
use linerate::port::{CaptureCounts, PortName};
use serde_json::{Value, json};

use super::Rules;
use crate::error::with_hint;
use crate::moved::{MovedPackets, ThreadCounters};
use crate::notes::unread;
use crate::options::RunOptions;
use crate::profile::cycles;
use crate::run::{Measured, Mode, Outcome, check_standard_output};
use crate::shortfall::Shortfall;
use crate::show::{Show, Shown};
use crate::signals::interrupts;
use crate::terminal::note;

/// Packets between two checks for the end of the run.
const BATCH: u64 = 256;

/// Two capture files: one to read, once and without its timing, the other to write.
pub struct Files {
    names: [PortName; 2],
    paths: [PathBuf; 2],
    adds_headers: bool,
}

impl Files {
    /// Returns the files, if both ports are such files, and no option needs ports.
    pub fn of(names: [&str; 2], profile: bool, options: &RunOptions) -> Option<Files> {
        let names = [linerate::parse(names[0]).ok()?, linerate::parse(names[1]).ok()?];
        let is_steered = options.metrics.is_some() || options.steering.control.is_some();
        let needs_ports = profile || is_steered || options.queues > 1;
        let is_plain = |name: &PortName| {
            !name.is_wrapper() && ["loop", "speed", "cluster"].iter().all(|option| name.option(option).is_none())
        };
        let is_pair = names[0].is_capture_to_read() && names[1].is_capture_to_write() && names.iter().all(is_plain);
        let is_pair = is_pair && names[1].option("ethernet").is_none();
        let paths = [names[0].path()?.to_path_buf(), names[1].path()?.to_path_buf()];
        let adds_headers = names[0].option("ethernet") == Some("on");
        (is_pair && !needs_ports && !Frames::may_wait(&paths[0])).then_some(Files { names, paths, adds_headers })
    }

    /// Copies the packets that the rules accept, at most `count`.
    pub fn run(
        &self,
        mode: &dyn Mode,
        count: Option<u64>,
        rules: &Rules,
        options: &RunOptions,
    ) -> Result<ExitCode, Error> {
        check_standard_output(&self.names);
        let [from, to] = &self.paths;
        let changes = Changes { format: Some(Format::of(to)), adds_headers: self.adds_headers, growth: None };
        let mut copier = Rewriter::open(from, to, changes)?;
        let (work, begin) = (ThreadCounters::default(), Instant::now());
        let (mut read, mut undecided) = (Ok(true), 0);
        let is_over = || interrupts().should_end() || options.seconds.is_some_and(|seconds| begin.elapsed() >= seconds);
        while matches!(read, Ok(true)) && !is_over() {
            let (start, before) = (cycles(), copier.counts().written[0]);
            read = copy_batch(&mut copier, count, rules, &mut undecided);
            work.add((copier.counts().written[0] - before) as usize, start, cycles());
        }
        let seconds = begin.elapsed().as_secs_f64();
        let mut measured = self.measured(copier, read.err(), seconds, work.moved());
        measured.outcome.undecided = undecided;
        if let Some(asked) = count.filter(|count| *count > measured.moved.packets) {
            let (moved, bound) = (measured.moved.packets, Some("the capture's end".to_string()));
            measured.shortfalls.push(Shortfall::Count { asked, moved, bound });
        }
        Show::new(options, Shown::Summary, None).summary(&measured.summary(mode.name(), Value::Null), "");
        measured.shortfalls.iter().for_each(|shortfall| shortfall.print(options.strict));
        let is_good = measured.is_good() && (!options.strict || measured.shortfalls.is_empty());
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Ends the copy, and prints notes on failures and on what was left out.
    fn measured(&self, copier: Rewriter, failure: Option<Error>, seconds: f64, moved: MovedPackets) -> Measured {
        if copier.drops_options() {
            note(
                "note: interfaces, comments and options are not written: that needs pcapng at both ends, and no ethernet=on",
            );
        }
        let counts = copier.counts();
        let failures = [failure, copier.finish().err()];
        let skipped = CaptureCounts { not_ethernet: counts.not_ethernet, ..CaptureCounts::default() };
        unread(&skipped).iter().for_each(|line| note(&format!("note: {}: {line}", self.names[0])));
        failures.iter().flatten().for_each(|error| note(&format!("error: {}", with_hint(error))));
        Measured {
            seconds,
            in_time: moved,
            moved,
            outcome: Outcome { filtered: counts.rejected, ..Outcome::default() },
            interrupted: interrupts().is_signalled(),
            has_cut_capture: failures.iter().any(Option::is_some),
            ports: self.ports(&counts),
            ..Measured::default()
        }
    }

    /// Returns the ports' parts of the summary.
    fn ports(&self, counts: &RewriteCounts) -> Vec<Value> {
        let port = |name: &PortName, received: [u64; 2], sent: [u64; 2], not_ethernet: u64| {
            json!({
                "name": name.to_string(), "rx_slots": [received[0]], "tx_slots": [sent[0]], "rx_no_descriptor": [],
                "rx_packets": received[0], "tx_packets": sent[0], "rx_bytes": received[1], "tx_bytes": sent[1],
                "unsent": 0, "drops": {}, "undelivered": 0, "unsent_by_wire": null, "too_long_for_wire": null,
                "capture": {"not_ethernet": not_ethernet, "too_short": 0, "surplus": 0, "snapped": 0},
            })
        };
        let [from, to] = &self.names;
        vec![port(from, counts.read, [0; 2], counts.not_ethernet), port(to, [0; 2], counts.written, 0)]
    }
}

/// Copies some packets, and counts the packets that the rules cannot decide. Returns false at the end of the capture, or
/// when `count` packets are written.
fn copy_batch(copier: &mut Rewriter, count: Option<u64>, rules: &Rules, undecided: &mut u64) -> Result<bool, Error> {
    for _ in 0..BATCH {
        let is_enough = count.is_some_and(|count| copier.counts().written[0] >= count);
        let copy_accepted = |frame: RewriteFrame<'_>, each: &mut dyn FnMut(&[u8], usize)| {
            if rules.keep(frame.bytes, undecided) {
                each(frame.bytes, frame.len);
            }
        };
        if is_enough || !copier.next(copy_accepted)? {
            return Ok(false);
        }
    }
    Ok(true)
}
