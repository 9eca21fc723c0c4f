//! `linerate capture`: writes received packets to capture files, or prints one line per packet.
//!
//! - `stream`: a queue's records in chunks, which its thread hands to the writer; `merge`: the records of several
//!   queues by time
//! - `interfaces`: their names and numbers in a file
//! - `files`: one file, or a ring of several; `commands`: a program for each finished file; `lines`: one line of text
//!   per packet
//! - `expression`: filters in libpcap's language; `user`: giving up root's privileges

mod commands;
mod expression;
mod files;
mod interfaces;
mod lines;
mod merge;
mod stream;

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use linerate::capture::{Counts, Format, SNAPLEN};
use linerate::kernel::Interface;
use linerate::port::PortName;
use linerate::{Batch, Error, ErrorKind, port};
use serde_json::{Value, json};

use self::expression::Expression;
pub use self::files::is_standard_output;
use self::files::{Ends, Files, Ring};
use self::interfaces::{Interfaces, Numbers};
use self::merge::Merge;
use self::stream::{CHUNK, Chunk, Shared, Stream, now};
use crate::fwd::Rules;
use crate::grammar::usage;
use crate::options::{LONGEST_MTU, RunOptions, packets, seconds, whole};
use crate::run::{Measured, Mode, Outcome, Run, Sums, interface, xdp_queues};
use crate::show::{Shown, print};
use crate::signals::interrupts;
use crate::terminal::note;
use crate::user::{User, needs_root_to_close};
use crate::wire::with_option;

/// Slots of a receive ring: the most that cards support, to bridge times at which the thread has no processor. The
/// rings of an AF_XDP interface are shorter, as each of its queues has one.
const RING: u16 = 4096;
/// How long the reader of standard output may take for the last packets before a note is printed.
const LONGEST_END: Duration = Duration::from_secs(1);
/// How long the writer waits for packets before it checks whether held ones are due.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The argument that means all interfaces, as for tcpdump's `-i`, and its port.
const ANY: &str = "any";
const ANY_PORT: &str = "packet:any";

/// `linerate capture`.
struct Capture;

impl Mode for Capture {
    fn name(&self) -> &'static str {
        "capture"
    }
}

/// Options of the capture.
#[derive(Args)]
pub struct CaptureOptions {
    /// Write the packets to this file: pcapng if its name ends with .pcapng, otherwise pcap, and compressed if .zst
    /// follows;
    /// - is standard output. Without it, print one line per packet
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Capture at most this many bytes of each frame
    #[arg(long, short, value_name = "BYTES", default_value_t = SNAPLEN, value_parser = whole::<u32>(1, SNAPLEN))]
    snaplen: u32,
    /// Do not set promiscuous mode: capture only what the port would receive anyway
    #[arg(long, short = 'p')]
    no_promiscuous: bool,
    /// Accept only packets that match this libpcap filter, for example 'tcp port 80 and host 10.0.0.1'
    #[arg(long, value_name = "EXPRESSION")]
    pcap_filter: Option<Expression>,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    ring: Ring,
    /// Wait up to SECONDS seconds for interfaces that do not exist yet
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait_interface: Option<Duration>,
    /// Continue as this user once the ports are open, before the first file is created
    #[arg(long, value_name = "NAME")]
    user: Option<User>,
    /// Buffer at most BYTES bytes that are not written yet; accepts k, M or G; packets without room are dropped
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    memory: u64,
    /// Stop after exactly this many packets; accepts k, M or G
    #[arg(long, short, value_parser = packets)]
    count: Option<u64>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let count = port::count(text).filter(|&count| count > 0);
    count.ok_or_else(|| "it must be a whole number of bytes, such as 100M".to_string())
}

impl CaptureOptions {
    /// Rejects options that contradict each other.
    fn check(&self, ports: &[&str]) {
        self.rules.check();
        let is_ring = self.ring.has_next();
        if self.ring.files.is_some() && !is_ring {
            usage("--files needs --file-size or --file-seconds, which say when the next file begins");
        }
        let is_to_standard_output = self.write.as_deref().is_some_and(is_standard_output);
        if self.ring.file_command.is_some() && is_to_standard_output {
            usage("standard output is no file that --file-command could get: pipe it into the program");
        }
        let Some(path) = &self.write else { return };
        if is_standard_output(path) && std::io::stdout().is_terminal() {
            usage(
                "standard output is a terminal: pipe the capture into a program, as | tshark -r -, or leave out --write",
            );
        }
        if is_ring && is_standard_output(path) {
            usage("standard output cannot be split into files: leave out --file-size and --file-seconds");
        }
        if path.extension().is_some_and(|ending| ["gz", "lz4", "xz", "bz2"].iter().any(|other| ending == *other)) {
            usage(&format!("files are compressed with zstd: --write {}", path.with_extension("zst").display()));
        }
        if ports.len() > 1 && !is_standard_output(path) && Format::of(path) == Format::Pcap {
            usage(&format!(
                "pcap cannot record which port received a packet: end the name with .pcapng, for example --write {}",
                path.with_extension("pcapng").display()
            ));
        }
    }
}

/// The destination of the records.
enum Target {
    Files(Box<Files>),
    Lines { interfaces: Arc<Interfaces>, is_json: bool },
}

/// Captures until the run ends.
pub fn run(ports: &[&str], capture: &CaptureOptions, options: &RunOptions) -> Result<ExitCode, Error> {
    capture.check(ports);
    let ports: Vec<&str> = ports.iter().map(|port| if *port == ANY { ANY_PORT } else { port }).collect();
    let parsed = ports.iter().map(|name| linerate::parse(name)).collect::<Result<Vec<_>, Error>>()?;
    if let Some(port) = parsed.iter().find(|name| name.is_capture_to_write()) {
        usage(&format!("{port} is opened for writing and receives no packets; to write to a file: --write FILE"));
    }
    if let Some(port) = parsed.iter().find(|port| capture.user.is_some() && needs_root_to_close(port, options.bind)) {
        usage(&format!("{port} changes its interface or card back at the end, which needs root: leave out --user"));
    }
    if let Some(patience) = capture.wait_interface {
        await_interfaces(&parsed, patience);
    }
    // The length of a served port's ring is the library's choice.
    let are_own = !parsed.iter().any(PortName::may_be_served);
    let ring = (u32::from(RING) / xdp_queues(&parsed).next_power_of_two()).max(512) as u16;
    let ring = options.ring.or(are_own.then_some(ring));
    let options = &RunOptions { ring, timestamps: true, ..options.clone() };
    let ports: Vec<String> = parsed.iter().zip(&ports).map(|(name, text)| with_mtu(name, text, options.mtu)).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let mut run = Run::open(&Capture, &ports, capture.count, options)?;
    for device in &mut run.ports.devices {
        match device.set_promiscuous(!capture.no_promiscuous) {
            // A port in memory has no addresses to filter by.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(user) = &capture.user {
        user.assume()?;
    }
    let interfaces = Interfaces::new(parsed.iter().map(|name| name.short().to_string()).collect());
    let target = match &capture.write {
        Some(path) => {
            let files = Files::create(path, capture.snaplen, interfaces.clone(), capture.ring.clone())?;
            Target::Files(Box::new(files))
        }
        None => Target::Lines { interfaces: interfaces.clone(), is_json: options.json },
    };
    run.shown = match &capture.write {
        Some(path) if is_standard_output(path) => Shown::SummaryOnStderr,
        None if !options.json => Shown::SummaryOnStderr,
        None => Shown::Summary,
        Some(_) => Shown::All,
    };
    let is_finished = run.threads.is_finished.clone();
    let (full, chunks) = channel();
    let mut streams: Vec<Vec<Arc<Shared>>> = Vec::new();
    let queues: Vec<u16> = run.ports.devices.iter().map(|device| device.info().rx_queues).collect();
    let all = queues.iter().map(|&queues| u64::from(queues)).sum::<u64>().max(1);
    let each = (capture.memory / CHUNK as u64 / all).max(2);
    let mut numbers = 0..;
    for (interface, &queues) in queues.iter().enumerate() {
        let mut of_interface = Vec::new();
        for (queue, number) in (0..queues).zip(&mut numbers) {
            let format = target.format();
            let numbers = Numbers::new(interface as u32, interfaces.clone());
            let stream = Stream::new(number, numbers, format, capture.snaplen as usize, each, full.clone());
            of_interface.push(stream.shared.clone());
            spawn(&mut run, interface, queue, stream, capture, options)?;
        }
        streams.push(of_interface);
    }
    drop(full);
    let writer = {
        let streams = streams.clone();
        let write = move || Writer { target, streams, failure: None, unsorted: 0 }.run(&chunks, &is_finished);
        let thread = std::thread::Builder::new().name("linerate writer".to_string()).spawn(write);
        thread.map_err(Error::thread)?
    };
    let sum = |of: fn(&Shared) -> u64| streams.iter().flatten().map(|shared| of(shared)).sum::<u64>();
    let undelivered = Cell::new(0);
    run.finish(
        |_, Sums { undelivered: lost, .. }| {
            undelivered.set(lost);
            let [received, accepted, undecided] = [
                sum(|shared| shared.received.load(Ordering::Relaxed)),
                sum(|shared| shared.accepted.load(Ordering::Relaxed)),
                sum(|shared| shared.undecided.load(Ordering::Relaxed)),
            ];
            Outcome { lost, filtered: received.saturating_sub(accepted), undecided, ..Outcome::default() }
        },
        |measured| {
            let is_for_reader = capture.write.as_deref().is_some_and(is_standard_output);
            let begin = Instant::now();
            while is_for_reader && !writer.is_finished() && !interrupts().should_end() {
                if begin.elapsed() > LONGEST_END {
                    note("note: the reader of standard output has not read all packets yet; Ctrl-C discards the rest");
                    break;
                }
                interrupts().wait(POLL_INTERVAL);
            }
            let summary = match writer.join() {
                Ok(writer) => writer.summary(measured, undelivered.get()),
                Err(_) => {
                    measured.panicked = true;
                    (Value::Null, String::new())
                }
            };
            // A capture measures nothing, so busy processors matter only if packets were lost.
            measured.warning = measured.warning.take().filter(|_| measured.outcome.lost > 0);
            summary
        },
    )
}

/// Waits until the interfaces of ports exist.
fn await_interfaces(ports: &[PortName], patience: Duration) {
    let begin = Instant::now();
    let is_missing = |name: &&str| *name != ANY && Interface::open_queue(name).is_err();
    while let Some(missing) = ports.iter().filter_map(PortName::interface).find(is_missing) {
        let left = patience.saturating_sub(begin.elapsed());
        if left.is_zero() {
            // Opening the port explains the rest.
            return note(&format!("note: interface {missing} has not appeared within {} s", patience.as_secs_f64()));
        }
        note(&format!("note: waiting up to {:.0} s for interface {missing}", left.as_secs_f64().ceil()));
        while Interface::open_queue(missing).is_err() && begin.elapsed() < patience {
            if interrupts().wait(POLL_INTERVAL) {
                return;
            }
        }
    }
}

/// Adds the interface's MTU to the name of a packet socket that would accept shorter frames only.
fn with_mtu(name: &PortName, text: &str, mtu: u16) -> String {
    let of_interface = match interface(name) {
        Some(interface) => interface.mtu().map_or(0, |mtu| mtu.min(LONGEST_MTU.into())),
        None if name.interface() == Some(ANY) => LONGEST_MTU.into(),
        None => 0,
    };
    if name.is_xdp() || name.option("mtu").is_some() || of_interface <= mtu.into() {
        return text.to_string();
    }
    with_option(text, &format!("mtu={of_interface}"))
}

/// Adds the thread of a queue.
fn spawn(
    run: &mut Run,
    interface: usize,
    queue: u16,
    mut stream: Stream,
    capture: &CaptureOptions,
    options: &RunOptions,
) -> Result<(), Error> {
    let mut rx = run.ports.devices[interface].rx(queue)?;
    let mut batch = Batch::with_capacity(options.batch.packets());
    let mut whole = Vec::new();
    let (rules, expression, quota, mut waiter) =
        (capture.rules.clone(), capture.pcap_filter.clone(), run.clock.quota.clone(), run.waiter());
    run.threads.spawn(move || {
        quota.recv(&mut rx, &mut batch);
        let (mut received, mut accepted, mut undecided) = (0, 0, 0);
        if batch.is_empty() {
            // A thread that still has packets to hand over must not sleep.
            waiter.turn(usize::from(!stream.rest()), &mut [&mut rx]);
        } else {
            let first = stream.begin(batch.len());
            for (packet, time) in batch.packets().zip(first..) {
                received += 1;
                let frame = if packet.slots() == 1 {
                    &packet
                } else {
                    whole.clear();
                    packet.append_to(&mut whole);
                    &whole[..]
                };
                let (origin, matches) = (packet.origin(), |expression: &Expression| {
                    let (captured, len) = packet.origin().captured(frame);
                    expression.matches(captured, len)
                });
                if rules.keep(frame, &mut undecided) && expression.as_ref().is_none_or(matches) {
                    accepted += 1;
                    stream.push(packet.timestamp().unwrap_or(time), frame, origin);
                }
            }
            batch.clear();
            quota.give_back(received - accepted);
            stream.shared.received.fetch_add(received as u64, Ordering::Relaxed);
            stream.shared.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
            stream.shared.undecided.fetch_add(undecided, Ordering::Relaxed);
            waiter.turn(received, &mut [&mut rx]);
        }
        accepted
    });
    Ok(())
}

/// The thread that writes the chunks of all queues.
struct Writer {
    target: Target,
    /// The streams of each interface.
    streams: Vec<Vec<Arc<Shared>>>,
    failure: Option<Error>,
    /// Packets that follow a later one.
    unsorted: u64,
}

impl Writer {
    /// Writes until the queues' threads have ended. A failure ends the run.
    fn run(mut self, chunks: &Receiver<Chunk>, is_finished: &AtomicBool) -> Writer {
        let mut merge = Merge::new(self.target.format(), self.streams.iter().flatten().cloned().collect());
        loop {
            let outcome = match chunks.recv_timeout(POLL_INTERVAL) {
                Ok(chunk) => merge.push(Some(chunk), now(), |records| self.target.write(records, &self.streams)),
                Err(RecvTimeoutError::Timeout) => merge
                    .push(None, now(), |records| self.target.write(records, &self.streams))
                    .and_then(|()| self.target.flush()),
                Err(RecvTimeoutError::Disconnected) => {
                    self.failure =
                        merge.push(None, u64::MAX, |records| self.target.write(records, &self.streams)).err();
                    break;
                }
            };
            if let Err(error) = outcome {
                self.failure = Some(error);
                is_finished.store(true, Ordering::Relaxed);
                break;
            }
        }
        let mut all = self.streams.iter().flatten();
        self.unsorted = match (all.next(), all.next()) {
            // The records of a single queue are not merged.
            (Some(only), None) => only.unsorted.load(Ordering::Relaxed),
            _ => merge.late,
        };
        self
    }

    /// Ends the last file, and returns the capture's part of the summary and its table.
    fn summary(mut self, measured: &mut Measured, undelivered: u64) -> (Value, String) {
        let sum = |of: fn(&Shared) -> u64| self.streams.iter().flatten().map(|shared| of(shared)).sum::<u64>();
        let accepted = sum(|shared| shared.accepted.load(Ordering::Relaxed));
        let dropped = sum(|shared| shared.dropped.load(Ordering::Relaxed));
        let Target::Files(files) = &mut self.target else {
            measured.outcome.lost += dropped;
            return (
                json!({ "dropped_by_ports": undelivered, "dropped": dropped }),
                drop_note(dropped, "the lines were printed"),
            );
        };
        let mut ends = ends(files, &self.streams);
        for (counts, port) in ends.iter_mut().zip(&measured.ports) {
            let by_port = port["undelivered"].as_u64().unwrap_or(0);
            (counts.received, counts.dropped_by_port) = (counts.received + by_port, Some(by_port));
        }
        if self.failure.is_none() {
            self.failure = files.end(&ends).err();
        }
        let unwritten = accepted.saturating_sub(files.frames + dropped);
        measured.outcome.lost += dropped + unwritten;
        let why_dropped = match &self.failure {
            None => drop_note(dropped, "the file was written"),
            Some(_) => format!("{} accepted packets are not in the file\n", dropped + unwritten),
        };
        if measured.failure.is_none() {
            measured.failure = self.failure.take();
        }
        if self.unsorted > 0 {
            note(&format!("note: {} packets in the file follow a packet with a later time", self.unsorted));
        }
        let last = files.paths().last().cloned().unwrap_or_default();
        note_commands(files);
        files.compare();
        if let Some(path) = &files.missing.first {
            let path = path.display();
            match files.missing.count {
                1 => note(&format!("note: {path} does not exist any more: another program has removed or moved it")),
                count => note(&format!(
                    "note: {count} files do not exist any more, the first one {path}: another program has removed or moved them"
                )),
            }
        }
        if let Some(path) = &files.changed.first {
            let more = files.changed.count - 1;
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let why = format!("another program has changed or replaced it since it was written{more}");
            let file = path.display().to_string();
            measured.failure.get_or_insert(Error::file(file, why));
        }
        if let Some(why) = &files.unremoved {
            note(&format!("note: older files could not be removed, the first one {why}"));
        }
        let names: Vec<String> = files.paths().map(|path| path.display().to_string()).collect();
        let part = json!({
            "written": files.frames, "bytes": files.bytes, "files": names, "removed_files": files.removed,
            "missing_files": files.missing.count, "changed_files": files.changed.count,
            "succeeded_commands": files.commands.succeeded, "failed_commands": files.commands.failed,
            "dropped_by_ports": undelivered, "dropped": dropped, "unwritten": unwritten, "unsorted": self.unsorted,
        });
        let into = match files.begun() {
            _ if is_standard_output(&last) => "standard output".to_string(),
            1 => last.display().to_string(),
            count => format!("{count} files, the last one {}", last.display()),
        };
        let removed = match files.removed {
            0 => String::new(),
            1 => "; removed an older one".to_string(),
            removed => format!("; removed {removed} older ones"),
        };
        let packets = if files.frames == 1 { "packet" } else { "packets" };
        let text = format!("wrote {} {packets} into {into}{removed}\n", files.frames);
        (part, text + &why_dropped)
    }
}

impl Target {
    fn format(&self) -> Format {
        match self {
            Target::Files(files) => files.format(),
            Target::Lines { .. } => Format::Pcapng,
        }
    }

    fn write(&mut self, records: &[u8], streams: &[Vec<Arc<Shared>>]) -> Result<(), Error> {
        match self {
            Target::Files(files) => files.write(records, &|files| ends(files, streams)),
            Target::Lines { interfaces, is_json } => {
                let lines = if *is_json { lines::json_lines } else { lines::lines };
                print(&lines(Format::Pcapng, records, &interfaces.from(0).0));
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self {
            Target::Files(files) => files.flush(),
            Target::Lines { .. } => Ok(()),
        }
    }
}

/// Returns the statistics of each interface for a file's end, without packets that are still between the queues and the
/// file. The ports' drops are known only when all threads have ended.
fn ends(files: &Files, streams: &[Vec<Arc<Shared>>]) -> Ends {
    let count = |(interface, streams): (usize, &Vec<Arc<Shared>>)| {
        let sum = |of: fn(&Shared) -> u64| streams.iter().map(|shared| of(shared)).sum::<u64>();
        let (written, times) = files.written(interface);
        let dropped = sum(|shared| shared.dropped.load(Ordering::Relaxed));
        let taken = sum(|shared| shared.accepted.load(Ordering::Relaxed));
        let filtered = sum(|shared| shared.received.load(Ordering::Relaxed)).saturating_sub(taken);
        let accepted = written + dropped;
        Counts { times, received: accepted + filtered, dropped_by_port: None, accepted, dropped, written }
    };
    streams.iter().enumerate().map(count).collect()
}

/// Waits for the programs of `--file-command`, and prints notes on failures.
fn note_commands(files: &mut Files) {
    let unfinished = files.commands.finish();
    if unfinished > 0 {
        note(&format!("note: --file-command: {unfinished} programs have not ended; the capture does not wait longer"));
    }
    if let Some(why) = &files.commands.first_failure {
        note(&format!("note: --file-command failed for {} files, the first one {why}", files.commands.failed));
    }
}

/// Returns a line on the packets that were dropped because `what` was too slow; empty if there are none.
fn drop_note(dropped: u64, what: &str) -> String {
    match dropped {
        0 => String::new(),
        _ => format!(
            "dropped {dropped} packets: {what} more slowly than they arrived; --only, a shorter --snaplen or a larger \
             --memory help\n"
        ),
    }
}
