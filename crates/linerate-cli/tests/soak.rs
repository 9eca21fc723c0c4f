//! A server of ports whose clients start, end, stop, and are killed at random, on 4 switches and 16 pipes.
//! When all have ended, the server holds the same resources as at the beginning, and still serves.
//!
//! `LINERATE_SOAK_MINUTES` sets the time (default: one minute, and at most 600 actions), `LINERATE_SOAK_SEED` the
//! actions.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use kit::{Process, expect, linerate, summary};
use linerate::share::{ANY, Client};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

mod kit;

const PROGRAMS: usize = 64;
const SWITCHES: usize = 4;
const PIPES: usize = 16;
/// The number of actions if the test runs with all others.
const ACTIONS: usize = 600;
/// The longest wait for any event.
const BOUND: Duration = Duration::from_secs(120);
/// Free memory that the allocator may keep, in KiB: arenas for some threads.
const KEPT: u64 = 16 << 10;
/// Additional memory, shared with programs, that the server may have, in KiB.
const SHARED: u64 = 1 << 10;

/// Xorshift (Marsaglia): the same seed gives the same soak.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % most
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{value}'")))
}

/// netmap's program from the other crate's tests, and the shared object that it runs on.
struct Netmap {
    object: PathBuf,
    program: PathBuf,
}

impl Netmap {
    fn new(folder: &Path) -> Netmap {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../linerate-netmap");
        let program = folder.join("program");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-pthread", "-I"]).arg(crates.join("include")).arg(crates.join("tests/program.c"));
        expect(0, compile.arg("-o").arg(&program));
        Netmap { object: std::env::current_exe().unwrap().with_file_name("liblinerate_netmap.so"), program }
    }
}

struct World {
    folder: tempfile::TempDir,
    netmap: Netmap,
    server: u32,
    _process: Process,
    /// The test's own connection, to check that the server still answers.
    client: Client,
}

/// The resources of a server.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident: u64,
    shared: u64,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let ports = folder.path().join("ports");
        std::fs::create_dir(&ports).unwrap();
        std::fs::set_permissions(&ports, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let mut process = Process::start(linerate(&["serve"]).env("LINERATE_PORTS", &ports));
        process.await_output(ANY);
        let client = Client::find(&ports, "vale0").unwrap().expect("it serves");
        let (netmap, server) = (Netmap::new(folder.path()), process.id());
        World { folder, netmap, server, _process: process, client }
    }

    fn command(&self, words: &str) -> Command {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = match words[0] {
            "receive" | "send" => {
                let mut command = Command::new(&self.netmap.program);
                command.args(&words).env("LD_PRELOAD", &self.netmap.object);
                command
            }
            _ => linerate(&words),
        };
        command.env("LINERATE_PORTS", self.folder.path().join("ports"));
        command
    }

    fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.server.to_string()).join(file)
    }

    fn held(&self) -> Held {
        let entries = |folder: &str| std::fs::read_dir(self.proc(folder)).unwrap().count();
        let rollup = std::fs::read_to_string(self.proc("smaps_rollup")).unwrap();
        let sum = |name: &str| {
            let line = rollup.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {rollup}"));
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let (resident, shared) = (sum("Rss:"), sum("Pss_Shmem:"));
        Held { descriptors: entries("fd"), threads: entries("task"), resident, shared }
    }

    /// Waits until the server has no ports, and the same number of descriptors and threads as before.
    fn settle(&self, before: Option<&Held>) -> Held {
        let begin = Instant::now();
        loop {
            let ports = self.client.list().unwrap();
            let held = self.held();
            let is_less = before.is_none_or(|b| held.descriptors <= b.descriptors && held.threads <= b.threads);
            if ports.is_empty() && is_less {
                return held;
            }
            assert!(begin.elapsed() < BOUND, "before: {before:?}, after: {held:?}, with {ports:?}");
            std::thread::yield_now();
        }
    }

    /// Sends packets through a port of each of the first switches and pipes, and counts those that arrive.
    fn serves(&self, switches: usize, pipes: usize) {
        let switches = (0..switches).map(|n| (format!("vale{n}:x"), format!("vale{n}:y")));
        let pipes = (0..pipes).map(|n| (format!("p{{{n}"), format!("p}}{n}")));
        for (from, to) in switches.chain(pipes) {
            let mut sink = Process::start(&mut self.command(&format!(
                "sink {to} --count 500 --seconds 120 --ring 1024 --pages ordinary --wait interrupt --json"
            )));
            match to.contains('}') {
                true => sink.await_error("is the pipe's other end open?"),
                false => sink.await_output("ports"),
            };
            expect(0, &mut self.command(&format!("gen {from} --count 500 --ring 1024 --pages ordinary --seconds 120")));
            let (code, said) = sink.ended();
            assert_eq!(
                (code, summary(said.as_bytes())["ports"][0]["rx_packets"].as_u64()),
                (Some(0), Some(500)),
                "{to}"
            );
        }
    }
}

/// A program of the soak, killed by its process ID when this is dropped.
struct Program {
    child: Child,
    is_stopped: bool,
    /// Signals that the program has printed a line or has ended.
    begun: Receiver<()>,
}

impl Program {
    fn start(mut command: Command) -> Program {
        // Standard error is read, too: it has the note that a pipe's other end is not open.
        let (out, into) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(into.try_clone().unwrap()).stderr(into);
        let child = command.spawn().unwrap();
        drop(command);
        let mut out = BufReader::new(out);
        let (sender, begun) = channel();
        std::thread::spawn(move || {
            let _ = out.read_line(&mut String::new());
            drop(sender);
            let _ = out.read_to_end(&mut Vec::new());
        });
        Program { child, is_stopped: false, begun }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    fn signal(&mut self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops or continues the program, and waits until it has done so or has ended.
    fn toggle(&mut self) {
        self.is_stopped = !self.is_stopped;
        let (signal, event) = match self.is_stopped {
            true => (Signal::STOP, WaitIdOptions::STOPPED),
            false => (Signal::CONT, WaitIdOptions::CONTINUED),
        };
        self.signal(signal);
        waitid(WaitId::Pid(self.pid()), event | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program for a position: senders that end by themselves and receivers that do not, of linerate and of
/// netmap.
fn words(place: usize) -> String {
    let is_netmap = place % 4 >= 2;
    let (is_sender, port) = match place < PROGRAMS - 2 * PIPES {
        true => (place.is_multiple_of(2), format!("vale{}:p{place}", place / 2 % SWITCHES)),
        // The ends of a pipe are neighbours.
        false => {
            let is_master = place.is_multiple_of(2);
            (is_master, format!("p{}{}", if is_master { '{' } else { '}' }, (place / 2) % PIPES))
        }
    };
    match (is_sender, is_netmap) {
        (true, false) => {
            format!("gen {port} --count 2000 --rate 20k --size 300 --pages ordinary --seconds 3600 --json")
        }
        (false, false) => format!("sink {port} --wait interrupt --pages ordinary --seconds 3600 --json"),
        (true, true) => format!("send {port} 2000 300 poll"),
        (false, true) => format!("receive {port} 1000000000 poll"),
    }
}

#[test]
fn a_server_keeps_nothing_of_programs_that_have_ended() {
    let minutes = variable("LINERATE_SOAK_MINUTES");
    let seed = variable("LINERATE_SOAK_SEED").unwrap_or(0x5EED).max(1);
    let world = World::new();
    let fresh = world.held();
    // First use everything once, so that memory that the process allocates only once is included.
    world.serves(1, 1);
    let before = world.settle(None);
    // Without ports the server has its initial threads; the thread of the last port may still be ending.
    let threads = before.threads.min(fresh.threads);
    let before = world.settle(Some(&Held { descriptors: before.descriptors.min(16), threads, ..before }));
    println!("seed {seed}; before: {before:?}");

    let (begin, time) = (Instant::now(), Duration::from_secs(60 * minutes.unwrap_or(1)));
    let most = if minutes.is_some() { usize::MAX } else { ACTIONS };
    let mut random = Random(seed);
    let mut programs: Vec<Option<Program>> = (0..PROGRAMS).map(|_| None).collect();
    let mut counts = [0; 6];
    for action in 0..most {
        if begin.elapsed() >= time {
            break;
        }
        // First one program per position, then random positions.
        let place = if action < PROGRAMS { action } else { random.below(PROGRAMS) };
        let program = &mut programs[place];
        let has_ended = program.as_mut().is_some_and(Program::has_ended);
        let what = match program {
            None => {
                let new = Program::start(world.command(&words(place)));
                // Nothing is sent on the channel. Its sender is dropped after the first line or at the program's end.
                let _ = new.begun.recv_timeout(BOUND).map_err(|error| {
                    assert_eq!(error, std::sync::mpsc::RecvTimeoutError::Disconnected, "{}", words(place));
                });
                *program = Some(new);
                0
            }
            Some(_) if has_ended => {
                *program = None;
                1
            }
            Some(running) => match random.below(6) {
                0 => {
                    running.signal(Signal::KILL);
                    *program = None;
                    2
                }
                1 => {
                    running.signal(Signal::INT);
                    // A stopped program receives the signal when it continues.
                    3
                }
                _ => {
                    running.toggle();
                    4 + usize::from(running.is_stopped)
                }
            },
        };
        counts[what] += 1;
        assert!(world.client.list().is_ok(), "the server does not answer");
    }
    drop(programs);

    let after = world.settle(Some(&before));
    let [started, ended, killed, interrupted, continued, stopped] = counts;
    println!(
        "{} s: {started} started, {ended} ended, {killed} killed, {interrupted} interrupted, {stopped} stopped, {continued} continued; after: {after:?}",
        begin.elapsed().as_secs()
    );
    std::io::stdout().flush().unwrap();
    assert_eq!((after.descriptors, after.threads), (before.descriptors, before.threads));
    assert!(after.resident <= before.resident + KEPT, "before: {before:?}, after: {after:?}");
    assert!(after.shared <= before.shared + SHARED, "before: {before:?}, after: {after:?}");
    world.serves(SWITCHES, PIPES);
    assert!(world.settle(Some(&after)).shared <= before.shared + SHARED);
}
