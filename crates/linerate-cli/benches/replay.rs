//! Compares the timing accuracy of `linerate replay` with that of Debian's tcpreplay and of a bare loop. Both programs
//! send into a veth pair, and the kernel stamps the frames at its other end.
//!
//! `cargo bench -p linerate-cli --bench replay`; as root, with tcpreplay and tcpdump. `LINERATE_SECONDS=60` sets the
//! length of the capture. Uses two processors: one sends, and the other writes the arriving frames.

#[path = "../tests/kit/mod.rs"]
mod kit;

use std::process::Command;
use std::time::Instant;

use kit::{Folder, Namespace, Process, expect, linerate, summary};
use rustix::process::geteuid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;

/// The processors of the sender, and of tcpdump.
const SENDER: usize = 1;
const RECEIVER: usize = 0;
/// Frames per round, and rounds. Each round measures all programs, as the machine's load differs between rounds.
const ROUND: usize = 20_000;
const ROUNDS: usize = 5;

/// Returns times in nanoseconds, at intervals of 20 to 180 µs.
fn times(seconds: u64) -> Vec<u64> {
    let (mut state, mut time) = (0x2545_F491_4F6C_DD1Du64, 1_700_000_000_123_456_789);
    let gap = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        time += 20_000 + state % 160_001;
        time
    };
    std::iter::repeat_with(gap).take((seconds * 10_000) as usize).collect()
}

fn write(path: &str, times: &[u64]) {
    let mut file = Vec::new();
    [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 65_535, 1].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
    for time in times {
        let words = [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, 60, 60];
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
        file.extend([0; 46]);
    }
    std::fs::write(path, file).unwrap();
}

/// Returns the times of a capture.
fn read(path: &str) -> Vec<u64> {
    let mut reader = linerate::capture::Reader::open(path.as_ref()).unwrap();
    let mut bytes = Vec::new();
    std::iter::from_fn(|| reader.next(&mut bytes).unwrap()?.nanoseconds).collect()
}

/// The errors of sent frames, in nanoseconds.
struct Errors {
    name: &'static str,
    /// The sorted errors of the gaps; and those of the times, relative to the median of the first hundred frames.
    gaps: Vec<u64>,
    times: Vec<u64>,
    /// The drift between the medians of the first and the last thousand frames, and the duration of the capture in
    /// seconds.
    drift: i64,
    seconds: f64,
}

impl Errors {
    fn of(name: &'static str, due: &[u64], sent: &[u64]) -> Errors {
        let due = &due[..sent.len()];
        let errors: Vec<i64> = due.iter().zip(sent).map(|(due, sent)| *sent as i64 - *due as i64).collect();
        let mut gaps: Vec<u64> = errors.windows(2).map(|pair| (pair[1] - pair[0]).unsigned_abs()).collect();
        gaps.sort_unstable();
        let median = |errors: &[i64]| {
            let mut errors = errors.to_vec();
            errors.sort_unstable();
            errors[errors.len() / 2]
        };
        let start = median(&errors[..errors.len().min(100)]);
        let mut times: Vec<u64> = errors.iter().map(|error| (error - start).unsigned_abs()).collect();
        times.sort_unstable();
        let part = errors.len().min(1000);
        let drift = median(&errors[errors.len() - part..]) - median(&errors[..part]);
        Errors { name, gaps, times, drift, seconds: (due[due.len() - 1] - due[0]) as f64 / 1e9 }
    }

    /// Returns the errors of all rounds together.
    fn sum(rounds: Vec<Errors>) -> Errors {
        let (name, seconds) = (rounds[0].name, rounds[0].seconds);
        let drift = rounds.iter().map(|round| round.drift).max_by_key(|drift| drift.abs()).unwrap();
        let mut times: Vec<u64> = rounds.iter().flat_map(|round| round.times.iter().copied()).collect();
        let mut gaps: Vec<u64> = rounds.into_iter().flat_map(|round| round.gaps).collect();
        gaps.sort_unstable();
        times.sort_unstable();
        Errors { name, gaps, times, drift, seconds }
    }

    fn quantile(&self, part: f64) -> f64 {
        self.gaps[((self.gaps.len() as f64 * part) as usize).min(self.gaps.len() - 1)] as f64 / 1000.0
    }

    /// Returns the median error of the times, in microseconds.
    fn time(&self) -> f64 {
        self.times[self.times.len() / 2] as f64 / 1000.0
    }

    fn mean(&self) -> f64 {
        self.gaps.iter().sum::<u64>() as f64 / self.gaps.len() as f64 / 1000.0
    }

    fn within(&self, nanoseconds: u64) -> f64 {
        self.gaps.partition_point(|gap| *gap <= nanoseconds) as f64 * 100.0 / self.gaps.len() as f64
    }

    fn print(&self) {
        let [median, p99, p99_9, max] = [0.5, 0.99, 0.999, 1.0].map(|part| self.quantile(part));
        println!(
            "{:<26}{median:>9.3}{:>9.3}{p99:>9.2}{p99_9:>9.1}{max:>9.0}{:>10.2} %{:>12.2}{:>14.3} in {:.0} s",
            self.name,
            self.mean(),
            self.within(2000),
            self.time(),
            self.drift as f64 / 1000.0,
            self.seconds,
        );
    }
}

fn on_processor(number: usize) {
    let mut set = CpuSet::new();
    set.set(number);
    sched_setaffinity(None, &set).unwrap();
}

/// Spins until each time without sending: the remaining errors are the machine's.
fn bare(due: &[u64]) -> Errors {
    let run = || {
        on_processor(SENDER);
        let start = Instant::now();
        let wait = |time: &u64| loop {
            let now = start.elapsed().as_nanos() as u64;
            if now >= time - due[0] {
                return now;
            }
        };
        due.iter().map(wait).collect::<Vec<_>>()
    };
    let sent = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    Errors::of("a bare loop, unsent", due, &sent)
}

/// A veth pair in a namespace.
struct Place {
    namespace: Namespace,
    folder: Folder,
}

impl Place {
    fn new() -> Place {
        let namespace = Namespace::new("replay");
        namespace.run("ip link add name va type veth peer name vb");
        for interface in ["va", "vb"] {
            namespace.disable_ipv6(interface);
            namespace.run(&format!("ip link set {interface} up"));
        }
        Place { namespace, folder: Folder::new("replay-bench") }
    }

    /// Runs a program that sends `count` frames into the pair, and returns the kernel's times of the arrived frames,
    /// and the program's output.
    fn arrived(&self, count: usize, words: &str) -> (Vec<u64>, Vec<u8>) {
        let out = self.folder.path("out.pcap");
        let dump = format!(
            "taskset -c {RECEIVER} tcpdump -n -i vb -Q in --time-stamp-precision=nano -j host -B 65536 -c {count}"
        );
        let mut dump: Process = self.namespace.start(&format!("{dump} -w {out}"));
        dump.await_error("listening");
        let output = expect(0, &mut self.namespace.command(&format!("taskset -c {SENDER} {words}")));
        let (code, said) = dump.ended();
        assert_eq!(code, Some(0), "{said}");
        let times = read(&out);
        assert_eq!(times.len(), count, "frames were lost");
        (times, output.stdout)
    }
}

/// Prints the errors that the replay itself reports.
fn print_report(part: &Value) {
    let paused = &part["pauses"];
    println!("  pauses of the processor: {paused}");
    for what in ["times", "gaps", "undisturbed_gaps"] {
        let of = |quantile: &str| part["errors"][what]["microseconds"][quantile].as_f64().unwrap_or(f64::NAN);
        let [median, p99, p99_9, max] = ["median", "p99", "p99_9", "max"].map(of);
        println!("  of {what}: median {median:.3} µs, 99 % {p99:.2} µs, 99.9 % {p99_9:.1} µs, at most {max:.0} µs");
    }
    println!("  drift from the first frame to the last: {} µs", part["errors"]["drift_microseconds"]);
}

fn main() {
    let has = |program: &str| Command::new("which").arg(program).output().is_ok_and(|found| found.status.success());
    let missing: Vec<&str> = ["tcpreplay", "tcpdump", "taskset"].into_iter().filter(|program| !has(program)).collect();
    if !geteuid().is_root() || !missing.is_empty() {
        let missing = if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) };
        println!("this needs root, tcpreplay, tcpdump and taskset{missing}: nothing was measured");
        return;
    }
    let seconds = std::env::var("LINERATE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60u64).max(1);
    let place = Place::new();
    let (due, file) = (times(seconds), place.folder.path("in.pcap"));
    write(&file, &due);
    let some = &due[..due.len().min(ROUND)];
    let count = some.len();
    print!("load: {}", std::fs::read_to_string("/proc/loadavg").unwrap());
    let ours = format!("{} replay {file} packet:va --exact --cores {SENDER} --json", env!("CARGO_BIN_EXE_linerate"));
    let tcpreplay = |timer| format!("tcpreplay -K -q -T {timer} --limit={count} -i va {file}");
    let programs = [
        ("linerate replay --exact", format!("{ours} --count {count}")),
        ("tcpreplay -T nano", tcpreplay("nano")),
        ("tcpreplay -T gtod", tcpreplay("gtod")),
    ];
    let mut rounds: [Vec<Errors>; 4] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(bare(some));
        for ((name, words), rounds) in programs.iter().zip(&mut rounds[1..]) {
            rounds.push(Errors::of(name, some, &place.arrived(count, words).0));
        }
    }
    let best = rounds.each_ref().map(|rounds| rounds.iter().map(|round| round.quantile(0.99)).fold(f64::MAX, f64::min));
    let within = rounds.each_ref().map(|rounds| rounds.iter().map(|round| round.within(2000)).fold(0.0, f64::max));
    println!("errors of gaps in microseconds, of {ROUNDS} rounds of {count} frames; the largest drift of a round");
    println!(
        "{:<26}{:>9}{:>9}{:>9}{:>9}{:>9}{:>12}{:>12}{:>14}",
        "", "median", "mean", "99 %", "99.9 %", "max", "within 2 µs", "of times", "drift, µs"
    );
    let [bare, ours_of_rounds, nano, gtod] = rounds.map(Errors::sum);
    let all = [&bare, &ours_of_rounds, &nano, &gtod];
    all.iter().for_each(|errors| errors.print());
    for ((errors, best), within) in all.iter().zip(best).zip(within) {
        println!("best round of {}: 99 % {best:.2} µs, {within:.2} % within 2 µs", errors.name);
    }
    for errors in [&nano, &gtod] {
        println!(
            "{} / linerate: gaps: median {:.0}, mean {:.1}, 99 % {:.1}; times: median {:.0}",
            errors.name,
            errors.quantile(0.5) / ours_of_rounds.quantile(0.5),
            errors.mean() / ours_of_rounds.mean(),
            errors.quantile(0.99) / ours_of_rounds.quantile(0.99),
            errors.time() / ours_of_rounds.time(),
        );
    }
    println!("the whole capture:");
    let (sent, output) = place.arrived(due.len(), &ours);
    Errors::of("linerate replay --exact", &due, &sent).print();
    println!("its own report of that run:");
    print_report(&summary(&output)["replay"]);
    println!("its report of a run into null:");
    let cores = SENDER.to_string();
    let output = expect(0, &mut linerate(&["replay", &file, "null:", "--exact", "--cores", &cores, "--json"]));
    print_report(&summary(&output.stdout)["replay"]);
    print!("load: {}", std::fs::read_to_string("/proc/loadavg").unwrap());
}
