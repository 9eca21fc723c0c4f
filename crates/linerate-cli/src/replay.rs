//! `linerate replay`: sends the frames of captures with their original or another timing.
//!
//! - `merge`: several captures as one stream, by time; `source`: their frames in memory before they are due
//! - `split`: which of two ports sends a frame
//! - `schedule`: when each frame is due, in nanoseconds since the start; `timeline`: these times on the time stamp
//!   counter
//! - `sender`: the thread that sends; `errors`: by how much it missed the due times

mod errors;
mod merge;
mod schedule;
mod sender;
mod source;
mod split;
mod timeline;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clap::Args;
use linerate::capture::Speed;
use linerate::port::{PortClass, PortName};
use linerate::traffic::{EditRules, Rate};
use linerate::{Batch, Error, port};
use serde_json::{Value, json};

use self::merge::Preparation;
use self::schedule::{Pace, Schedule};
use self::sender::{Sender, Start, Tally};
use self::source::{Reading, Source};
use self::split::Split;
use crate::edit::{EditOptions, as_json, input, note_counts};
use crate::error::with_hint;
use crate::grammar::usage;
use crate::line_rate::possible;
use crate::notes::unread;
use crate::options::{RunOptions, Wait, packets};
use crate::quantiles::{row, titles};
use crate::run::{Measured, Mode, Outcome, Run};
use crate::shortfall::{MIN_PACKETS, MIN_SECONDS, Shortfall};
use crate::show::time;
use crate::terminal::note;
use crate::wire::with_option;

/// `linerate replay`.
struct Replay;

impl Mode for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn generates(&self) -> bool {
        true
    }

    fn no_pause(&self) -> Option<&'static str> {
        Some("replay cannot pause: its frames have fixed times")
    }
}

/// Options of the replay.
#[derive(Args)]
pub struct ReplayOptions {
    /// Also send the frames of this capture, merged by time; can be repeated
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// Send with the captures' timing, this many times as fast: 2x, 0.5x; default 1x
    #[arg(long, conflicts_with_all = ["rate", "top"])]
    speed: Option<Speed>,
    /// Send at a rate instead: in packets (14.88M) or bits (10Gbit) per second, or as a part of the line rate (50%)
    #[arg(long, conflicts_with = "top")]
    rate: Option<Rate>,
    /// Send as fast as the port accepts frames
    #[arg(long)]
    top: bool,
    /// Send the captures this many times; 0: for ever
    #[arg(long = "loop", value_name = "N", default_value = "1", value_parser = passes)]
    passes: u64,
    /// Shorten gaps between frames to at most this, for example 1s or 10ms
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["rate", "top"])]
    max_gap: Option<Duration>,
    /// Pause between two passes of --loop, for example 10ms; default: the average gap between two frames
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["rate", "top"], requires = "passes")]
    loop_pause: Option<Duration>,
    /// Give packets other addresses in each pass of --loop: the lower of both decreases by 1, the higher increases
    #[arg(long, requires = "passes")]
    unique_ip: bool,
    /// With two ports, the frames that leave through the first: from mac=ADDRESS,… or prefix=PREFIX,…; to port (below
    /// 1024) or port=80,443; from clients by first-packet or first-syn
    #[arg(long, value_name = "RULE")]
    split: Option<Split>,
    #[command(flatten)]
    edit: EditOptions,
    /// Spin until each frame is due, which needs an otherwise idle processor; without it the thread sleeps in long gaps
    #[arg(long, conflicts_with = "top")]
    exact: bool,
    /// Add an Ethernet header to packets of other link types: IP, loopback, Linux cooked, PPP, Cisco
    /// HDLC, data frames of 802.11
    #[arg(long)]
    ethernet: bool,
    /// Stop after exactly this many frames; accepts k, M or G
    #[arg(long, value_parser = packets)]
    count: Option<u64>,
    /// Read captures into memory before the start if they have at most this many bytes, unpacked; accepts k, M or G; a
    /// thread reads larger ones ahead
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = bytes)]
    memory: u64,
}

fn passes(text: &str) -> Result<u64, String> {
    port::count(text).ok_or_else(|| "it must be a whole number, such as 10, or 0: for ever".to_string())
}

fn bytes(text: &str) -> Result<u64, String> {
    port::count(text).ok_or_else(|| "it must be a whole number of bytes, such as 500M".to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text);
    time.map_err(|_| "it must be a time with its unit, such as 1s, 10ms or 200us".to_string())
}

/// Sends the captures until the run ends.
pub fn run(file: &Path, names: &[&str], replay: &ReplayOptions, options: &RunOptions) -> Result<ExitCode, Error> {
    let paths: Vec<PathBuf> = [file].into_iter().chain(replay.with.iter().map(PathBuf::as_path)).map(input).collect();
    check(&paths, names, replay, options)?;
    // A thread that spins until frames are due must not sleep between them.
    let wait = if replay.exact { Some(Wait::Poll) } else { options.wait };
    let options = RunOptions { wait, ..options.clone() };
    let memory = replay.memory.min(free_memory() / 2);
    let sources = source::open(&paths, &replay.preparation(options.mtu), names.len(), replay.passes, memory)?;
    let (reading, is_in_memory) = (sources[0].shared(), sources[0].is_in_memory());
    let is_endless = sources[0].is_endless();
    note_files(&reading, is_in_memory);
    let mut run = Run::open(&Replay, names, replay.count, &options)?;
    let (unfinished, start) = (Arc::new(AtomicUsize::new(sources.len())), Arc::default());
    let (mut pace, mut reports) = (Pace::Top, Vec::new());
    for (port, source) in sources.into_iter().enumerate() {
        let mut sender = sender(&mut run, port, source, replay, (&unfinished, &start))?;
        pace = sender.pace;
        reports.push(sender.report.clone());
        run.threads.spawn(move || sender.turn());
    }
    let settings = Settings {
        name: &names.join(" and "),
        pace,
        is_exact: replay.exact,
        is_in_memory,
        count: replay.count,
        is_endless,
    };
    run.finish(
        |_, _| Outcome::default(),
        |measured| {
            let tallies =
                reports.iter().filter_map(|report| report.lock().unwrap_or_else(PoisonError::into_inner).take());
            let sum = |mut sum: Tally, tally: Tally| {
                sum.add(&tally);
                sum
            };
            let tally = tallies.reduce(sum).unwrap_or_else(Tally::new);
            let part = settings.judge(&tally, &reading, measured);
            let table = table(&part);
            (part, table)
        },
    )
}

/// Checks what the grammar cannot.
fn check(paths: &[PathBuf], names: &[&str], replay: &ReplayOptions, options: &RunOptions) -> Result<(), Error> {
    let file = paths[0].display();
    for name in names {
        if linerate::parse(name)?.is_capture_to_read() {
            let written = with_option(name, "write");
            usage(&format!("{name} is opened for reading; to write to it: replay {file} '{written}'"));
        }
    }
    if options.queues > 1 {
        usage("replay uses one queue, to keep the order: leave out --queues");
    }
    match (names, &replay.split) {
        ([_], Some(_)) => usage("--split divides the frames between two ports; give a second one"),
        ([_, _], None) => usage("which port sends which frames? for example --split first-syn, or --split port"),
        ([_, _], _) if matches!(replay.rate, Some(Rate::Line(_))) => {
            usage("two ports have no common line rate: give --rate in packets or bits per second, of both together")
        }
        _ => {}
    }
    if replay.passes != 1
        && let Some(pipe) = paths.iter().find(|path| linerate::capture::Frames::may_wait(path))
    {
        usage(&format!("{} is a pipe, which cannot be read again: leave out --loop", pipe.display()));
    }
    for path in paths.iter().filter(|path| !path.exists()) {
        let port = path.to_str().and_then(|path| linerate::parse(path).ok()).filter(PortName::is_capture_to_read);
        if let Some(port) = port {
            usage(&format!("{port} is the name of a port; give the file instead: replay {} {}", port.rest(), names[0]));
        }
    }
    Ok(())
}

impl ReplayOptions {
    /// Returns the preparation of the frames; `mtu` is the longest payload of a frame.
    fn preparation(&self, mtu: u16) -> Preparation {
        let speed = self.speed.unwrap_or_default();
        let time = |time: Duration| speed.unscale(time.as_nanos().try_into().unwrap_or(u64::MAX));
        Preparation {
            adds_headers: self.ethernet,
            rules: EditRules { unique_addresses: self.unique_ip, ..self.edit.rules(mtu) },
            max_gap: self.max_gap.map(time),
            loop_pause: self.loop_pause.map(time),
            split: self.split.clone(),
        }
    }
}

/// Creates the sender of a port of the run. All senders have the same start; the last to end also ends the run.
fn sender(
    run: &mut Run,
    port: usize,
    source: Source,
    replay: &ReplayOptions,
    (unfinished, start): (&Arc<AtomicUsize>, &Arc<OnceLock<Start>>),
) -> Result<Sender, Error> {
    let device = &mut run.ports.devices[port];
    let (room, info) = (device.pool().region().room(), device.info());
    // A file has no longest frame, but a chain has at most 64 slots.
    let most = if matches!(info.class, PortClass::Capture | PortClass::Nothing) { 64 * room } else { info.max_frame };
    let pace = match (replay.rate, replay.top) {
        // The rate of all ports together.
        (Some(rate), _) if replay.split.is_some() => Pace::Rate(rate),
        (Some(rate), _) => {
            let average = source.lens().map_or(60, |(_, average)| average);
            possible(rate, average as f64, device, source.lens().is_none()).map_or(Pace::Top, Pace::Rate)
        }
        (None, true) => Pace::Top,
        (None, false) => Pace::Times(replay.speed.unwrap_or_default()),
    };
    let (pool, tx) = (device.pool().clone(), device.tx(0)?);
    let longest = source.lens().map_or(most, |(longest, _)| longest.min(most));
    let count = replay.count.unwrap_or(u64::MAX);
    run.ports.sends_frames_of(longest);
    Ok(Sender {
        tx,
        pool,
        batch: Batch::with_capacity(run.options.batch.packets()),
        due: VecDeque::new(),
        empty_batch: Batch::with_capacity(1),
        schedule: Schedule::new(pace),
        pace,
        is_exact: replay.exact,
        longest: most,
        chains: longest > room,
        left: if replay.split.is_some() { u64::MAX } else { count },
        until: count,
        end: run.clock.thread_end(),
        is_finished: run.threads.is_finished.clone(),
        unfinished: unfinished.clone(),
        has_frames: true,
        start: start.clone(),
        clock: None,
        next: None,
        paused_until: 0,
        last_wait_end: None,
        refused: 0,
        has_starved: false,
        has_given_up: false,
        tally: Tally::new(),
        report: Arc::new(Mutex::new(None)),
        source,
    })
}

/// Returns the available bytes of memory; `u64::MAX` if unknown.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

/// Prints the number of frames and the duration of each file, if the files were read into memory.
fn note_files(reading: &Mutex<Reading>, is_in_memory: bool) {
    let reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_in_memory {
        return note("the captures are read ahead by a thread, up to 16 MiB");
    }
    for file in &reading.files {
        let begins = match file.begins(reading.begin) {
            Some(seconds) if reading.files.len() > 1 => format!(", begins after {}", time(seconds)),
            _ => String::new(),
        };
        let length = time(file.nanoseconds as f64 / 1e9);
        note(&format!("{}: {} frames in {length}{begins}, read into memory", file.name, file.frames));
    }
}

/// The settings of a replay, by which its results are judged.
struct Settings<'a> {
    /// The port.
    name: &'a str,
    pace: Pace,
    is_exact: bool,
    is_in_memory: bool,
    /// The most frames, if that was given.
    count: Option<u64>,
    /// The captures are sent until the run ends.
    is_endless: bool,
}

impl Settings<'_> {
    /// Adds shortfalls to the measurements, prints notes with causes and remedies, and returns the summary's part.
    fn judge(&self, tally: &Tally, reading: &Mutex<Reading>, measured: &mut Measured) -> Value {
        let reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        for failure in &reading.failures {
            note(&format!("error: {}", with_hint(failure)));
            measured.has_cut_capture = true;
        }
        for shortfall in &mut measured.shortfalls {
            if let Shortfall::Count { bound: bound @ None, .. } = shortfall {
                *bound = Some("the captures' end (see --loop)".to_string());
            }
        }
        if self.pace != Pace::Top {
            // A thread that waits for due times is not at its limit.
            measured.bound = None;
        }
        self.times_not_kept(tally, measured);
        self.frames_not_sent(tally, measured);
        let earlier: u64 = reading.files.iter().map(|file| file.earlier).sum();
        let Tally { given, no_room, not_read, too_long, snapped, .. } = *tally;
        let name = self.name;
        self.note_unsent(tally, measured);
        if let Some(counts) = &reading.edited {
            note_counts(counts);
        }
        for file in &reading.files {
            unread(&file.defects).iter().for_each(|line| note(&format!("note: {}: {line}", file.name)));
        }
        let all = [
            (reading.shortened, "gaps between frames were shortened (--max-gap)".to_string()),
            (earlier, "frames have an earlier time than the frame before, and are sent right after it".to_string()),
            (snapped, "frames were cut by the capture's snap length, and sent incomplete".to_string()),
            (
                too_long,
                format!("frames were not sent: too long for {name}; use a larger --mtu, if the port supports it"),
            ),
            (no_room, format!("frames were late: {name} had no room when they were due")),
            (
                not_read,
                "frames were due before they were read: is the disk slow? a larger --memory reads them in advance"
                    .to_string(),
            ),
        ];
        for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
            note(&format!("note: {count} {what}"));
        }
        let mut part = json!({
            "files": reading.files.iter().map(|file| file.json(reading.begin)).collect::<Vec<_>>(),
            "read": if self.is_in_memory { "memory" } else { "ahead" }, "pace": self.pace.word(), "exact": self.is_exact,
            "given": given, "unsent": tally.unsent, "shortened_gaps": reading.shortened, "late_no_room": no_room, "late_not_read": not_read, "too_long": too_long, "snapped": snapped,
            "last_sent_seconds": tally.nanoseconds as f64 / 1e9,
            "overdue_microseconds": tally.overdue.map(|overdue| overdue as f64 / 1000.0),
        });
        if let Some(counts) = &reading.edited {
            part["edited"] = as_json(counts);
        }
        if self.pace != Pace::Top {
            part["errors"] = tally.errors.json();
        }
        if self.is_exact {
            let late = tally.errors.paused();
            part["pauses"] = tally.pauses.json(late);
            if late as f64 > MANY_PAUSED * given as f64 {
                let [sum, longest] = tally.pauses.seconds().map(time);
                note(&format!(
                    "note: {late} frames were late because the processor did other work, for {sum} in total and at most \
                     {longest} at a time: choose one without other work and interrupts (isolcpus=, nohz_full=) with --cores"
                ));
            }
        }
        part
    }

    /// Prints how many frames were sent, if the run ended before the captures did. An endless replay has no end.
    fn note_unsent(&self, tally: &Tally, measured: &Measured) {
        let given = tally.given;
        if measured.interrupted && tally.unsent != Some(0) {
            return note(&format!("note: interrupted: {given} frames were sent, and not those after them"));
        }
        let option = if self.count.is_some_and(|count| given >= count) { "--count" } else { "--seconds" };
        match tally.unsent {
            _ if self.is_endless || measured.failure.is_some() || measured.stopped_by.is_some() => {}
            Some(0) => {}
            Some(unsent) => {
                let all = given + tally.too_long + unsent;
                note(&format!(
                    "note: {option} ended the replay before the captures' end: {given} of {all} frames were sent"
                ));
            }
            None => {
                note(&format!("note: {option} ended the replay before the captures' end: {given} frames were sent"))
            }
        }
    }

    /// Adds a shortfall if the port did not accept frames, or accepted frames that it did not send.
    fn frames_not_sent(&self, tally: &Tally, measured: &mut Measured) {
        // `times_not_kept` does not judge a replay without any accepted frame: it counts here.
        let refused = u64::from(tally.given == 0 && tally.overdue.is_some());
        let (due, sent) = (tally.given + tally.too_long + refused, measured.moved.packets);
        let is_counted = measured.shortfalls.iter().any(|shortfall| matches!(shortfall, Shortfall::Count { .. }));
        if sent < due && !is_counted {
            let too_long =
                || (tally.too_long > 0).then(|| format!("{}, which does not send frames of that length", self.name));
            let bound = measured.stopped_by.clone().or_else(too_long);
            measured.shortfalls.push(Shortfall::Frames { due, sent, bound });
        }
    }

    /// Adds a shortfall if the last frame was sent noticeably later than it was due, or could not be sent.
    fn times_not_kept(&self, tally: &Tally, measured: &mut Measured) {
        let late = tally.overdue.unwrap_or(0).max(tally.errors.last().max(0) as u64);
        // The time that sending took, and the time that it should have taken.
        let took = tally.nanoseconds.max(tally.overdue.map_or(0, |_| (measured.seconds * 1e9) as u64));
        let asked = took.saturating_sub(late);
        let seconds = took as f64 / 1e9;
        if self.pace == Pace::Top || tally.given == 0 || seconds < MIN_SECONDS && tally.given < MIN_PACKETS {
            return;
        }
        let due = tally.given as f64 + tally.overdue.map_or(0.0, |_| 1.0);
        let bound = match tally.no_room > 0 {
            true => measured
                .stopped_by
                .clone()
                .or_else(|| measured.used.bound())
                .or(Some("the port, which has no room".to_string())),
            false => measured.used.bound(),
        };
        let rate = due / (asked as f64 / 1e9).max(1e-9);
        let what = if matches!(self.pace, Pace::Times(_)) { "the captures' times" } else { "the rate" };
        measured.shortfalls.extend(Shortfall::of(what, rate, tally.given, seconds, bound));
    }
}

/// The fraction of frames that may be late due to pauses without a note.
const MANY_PAUSED: f64 = 0.01;

/// Returns a replay's part of the summary as lines.
fn table(part: &Value) -> String {
    let Some(errors) = part.get("errors") else { return String::new() };
    let line = |what: &str, part: &str| format!("{what:<16}{}\n", row(&errors[part]["microseconds"]));
    let drift = errors["drift_microseconds"].as_f64().map_or("-".to_string(), |micros| {
        let sign = if micros < 0.0 { "-" } else { "" };
        sign.to_string() + &time(micros.abs() / 1e6)
    });
    let undisturbed = match part["pauses"]["late"].as_u64() {
        Some(1..) => line("between pauses", "undisturbed_gaps"),
        _ => String::new(),
    };
    format!(
        "{:<16}{}\n{}{}{undisturbed}drift {drift}, from the first frame to the last\n",
        "errors",
        titles(),
        line("of times", "times"),
        line("of gaps", "gaps"),
    )
}
