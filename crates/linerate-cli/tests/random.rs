//! Runs random command lines as processes, which must end in a bounded time and never panic. They name no interface and
//! no card of the machine. (A unit test of `grammar.rs` parses thousands of lines.)

mod kit;

use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kit::linerate;

const COMMANDS: [&str; 6] = ["fwd", "filter", "gen", "sink", "latency", "switch"];
const PORTS: [&str; 14] = [
    "sim:0",
    "sim:1?wire=sink",
    "null:",
    "x{1",
    "x}1",
    "vale0:a",
    "faulty:sim:2?drop=1%",
    "sim:3?wire=none",
    "sim:0?rate=1k",
    "sim:4?wire=sim:5",
    "pcap:/nowhere",
    "faulty:null:?reorder=5%",
    "sim:6?wire=x{2",
    "oops:1",
];
const OPTIONS: [&[&str]; 22] = [
    &["--count", "1"],
    &["--count", "1k"],
    &["--rate", "1k"],
    &["--rate", "1G"],
    &["--rate", "-1"],
    &["--json"],
    &["--queues", "2"],
    &["--batch", "1"],
    &["--batch", "auto"],
    &["--ring", "64"],
    &["--ring", "63"],
    &["--mtu", "9000"],
    &["--only", "udp"],
    &["--drop", "udp"],
    &["--wait", "adaptive"],
    &["--wait", "interrupt"],
    &["--profile"],
    &["--strict"],
    &["--size", "1518"],
    &["--cores", "0"],
    &["--pages", "ordinary"],
    &["--flows", "3"],
];

fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % below as u64) as usize
}

#[test]
fn random_commands_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 0x2545_F491_4F6C_DD1D;
    let mut lines: Vec<Vec<&str>> = Vec::new();
    for _ in 0..30 {
        let command = COMMANDS[random(&mut state, COMMANDS.len())];
        let mut line = vec![command];
        match command {
            "switch" => line.push("list"),
            "fwd" | "latency" => line.extend([0; 2].map(|_| PORTS[random(&mut state, PORTS.len())])),
            _ => line.push(PORTS[random(&mut state, PORTS.len())]),
        }
        for _ in 0..random(&mut state, 4) {
            line.extend(OPTIONS[random(&mut state, OPTIONS.len())]);
        }
        if command != "switch" {
            line.extend(["--seconds", "0.1"]);
        }
        lines.push(line);
    }
    // Run several at a time, as most of them wait for links.
    let ports = folder.path().join("ports");
    std::thread::scope(|scope| {
        for some in lines.chunks(5) {
            scope.spawn(|| some.iter().for_each(|line| ends(line, &ports)));
        }
    });
}

/// Runs a command to its end. It must not panic, and must explain a failure.
fn ends(line: &[&str], ports: &Path) {
    let mut command = linerate(line);
    command.env("LINERATE_PORTS", ports).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = String::new();
        said.read_to_string(&mut all).map(|_| all)
    });
    // The longest waits are for a link, 10 seconds, and for frames in flight, 5.
    let begin = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if begin.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!("{line:?} does not end");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    };
    let said = reader.join().unwrap().unwrap();
    assert!(matches!(code, Some(0..=2)) && !said.contains("panicked"), "{line:?}: {code:?}\n{said}");
    assert!(code == Some(0) || !said.is_empty(), "{line:?} fails without a word");
}
