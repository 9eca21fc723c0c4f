//! Compares the frames that `linerate capture`, tcpdump, dumpcap and netsniff-ng keep at increasing load on the same
//! veth pair. Also measures the cost of creating and writing records without a port, and compares the highest rate
//! captured for ten seconds with it.
//!
//! `cargo bench -p linerate-cli --bench capture`; as root, with tcpdump, tshark and netsniff-ng. Uses two processors,
//! one of which sends. Files are in memory (`/dev/shm`).

#[path = "../tests/kit/mod.rs"]
mod kit;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kit::{Namespace, Process, inside, pair, summary};
use linerate::capture::{Format, Output, Reader, Writer};

/// The highest number of frames in a round, and the longest time.
const FRAMES: u64 = 1_000_000;
/// Frames per second; the last one is full speed.
const RATES: [&str; 5] = ["100k", "250k", "500k", "1M", "14.88M"];
/// The number of frames of the loop without a port.
const LOOP: usize = 40_000_000;
/// Bytes of a chunk, and of the file that is overwritten repeatedly.
const CHUNK: usize = 256 << 10;
const FILE: usize = 512 << 20;

/// The duration of the longest part in seconds.
const SECONDS: u32 = 10;

/// A capture program: its name, its command (with FILE), and its output when it is ready: linerate's first second on
/// standard output, or a line of the others on standard error.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("capture packet:", "LINERATE capture packet:v0 --write FILE", "1 s"),
    ("capture xdp:", "LINERATE capture xdp:v0?flow=all --write FILE", "1 s"),
    ("tcpdump", "tcpdump -i v0 -w FILE", "listening on"),
    ("dumpcap", "dumpcap -q -i v0 -w FILE", "File:"),
    ("netsniff-ng", "netsniff-ng --in v0 --out FILE --silent --no-promisc", ""),
];

/// A folder in memory, which is removed at the end.
struct Memory(PathBuf);

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() {
    assert!(rustix::process::geteuid().is_root(), "as root");
    let memory = Memory(PathBuf::from(format!("/dev/shm/linerate-capture-{}", std::process::id())));
    std::fs::create_dir(&memory.0).expect("a folder in memory");
    without_port(&memory.0);
    from_a_port(&memory.0);
    let (here, there) = (Namespace::new("here"), Namespace::new("there"));
    for namespace in [&here, &there] {
        namespace.disable_ipv6("default");
    }
    pair((&here, "v0"), (&there, "v1"), 9);
    println!("\nkept of the frames that were sent into a veth at each rate");
    println!("{:<18}{}", "", RATES.map(|rate| format!("{rate:>14}")).concat());
    for (name, words, ready) in PROGRAMS {
        let kept = RATES.map(|rate| round(&memory.0, &here, &there, words, ready, rate));
        println!("{name:<18}{}", kept.map(|(kept, rate)| format!("{:>14}", format!("{kept:.2} % {rate:.2}"))).concat());
    }
    println!("(behind each part the millions of frames a second that were sent)");
}

/// Captures for ten seconds from a port that always has frames, and receives from it without a capture for comparison.
fn from_a_port(memory: &Path) {
    let frames = memory.join("frames");
    let mut writer = Writer::create(&frames).expect("a file");
    (0..1024u16).for_each(|n| writer.write(n.into(), &[n as u8; 60]).expect("there is room in memory"));
    drop(writer);
    println!(
        "\nmillions of frames of 60 bytes a second, for {SECONDS} s from a port in memory (14.88: a wire of 10 Gbit/s)"
    );
    let port = format!("pcap:{}?loop=0", frames.display());
    let written = memory.join("written");
    let files = format!("--write {} --file-size 256M --files 2", written.display());
    for (what, command) in [
        ("received", format!("sink {port}")),
        ("received, written as pcap", format!("capture {port} {files}")),
        ("received, written as pcapng", format!("capture {port} {}", files.replace("written", "written.pcapng"))),
    ] {
        let words = format!("{command} --seconds {SECONDS} --json");
        let output = Command::new(env!("CARGO_BIN_EXE_linerate")).args(words.split(' ')).output().expect("it runs");
        let summary = summary(&output.stdout);
        let rate = summary["mpps"].as_f64().unwrap_or_else(|| panic!("{summary}"));
        let dropped =
            summary["capture"]["dropped"].as_u64().map_or(String::new(), |dropped| format!(", {dropped} dropped"));
        println!("  {what:<28} {rate:6.2}{dropped}");
    }
}

/// Captures frames sent at a rate; returns the percentage that is in the file, and the millions of frames sent per
/// second.
fn round(memory: &Path, here: &Namespace, there: &Namespace, words: &str, ready: &str, rate: &str) -> (f64, f64) {
    let file = memory.join("kept");
    let words = words.replace("FILE", &file.display().to_string()).replace("LINERATE", env!("CARGO_BIN_EXE_linerate"));
    let mut program = Process::start(&mut here.command(&words));
    if ready.is_empty() {
        // It prints nothing, and opens its file last.
        while !file.exists() {
            std::thread::yield_now();
        }
        settle(&file);
    } else if ready == "1 s" {
        program.await_output(ready);
    } else {
        program.await_error(ready);
    }
    let sent = format!("gen xdp:v1?flow=udp:9 --rate {rate} --count {FRAMES} --seconds 5 --json");
    let sent = summary(&inside(there, &sent).output().expect("it runs").stdout);
    let frames = sent["packets"].as_u64().unwrap_or_else(|| panic!("{sent}"));
    settle(&file);
    drop(program.interrupt());
    let mut reader = Reader::open(&file).expect("a capture");
    let (mut frame, mut kept) = (Vec::new(), 0);
    while reader.next(&mut frame).is_ok_and(|record| record.is_some()) {
        // Count only the generator's frames: IPv4 to its addresses.
        kept += u64::from(frame.len() == 60 && frame[12..14] == [8, 0] && frame[30..32] == [198, 19]);
    }
    let _ = std::fs::remove_file(&file);
    (kept as f64 * 100.0 / frames as f64, sent["mpps"].as_f64().unwrap_or(0.0))
}

/// Waits until a file has not grown for half a second.
fn settle(file: &Path) {
    let len = || std::fs::metadata(file).map_or(0, |file| file.len());
    let (mut last, mut since) = (len(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(20));
        let now = len();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Creates records of 60-byte frames, and writes them to memory, on one thread: the cost of a capture without
/// receiving.
fn without_port(memory: &Path) {
    let frames: Vec<[u8; 60]> = (0..1024u16).map(|n| std::array::from_fn(|at| (n as usize + at) as u8)).collect();
    println!("millions of frames of 60 bytes a second, on one thread");
    for format in [Format::Pcap, Format::Pcapng] {
        let file = memory.join("loop");
        let mut rows = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..3 {
            for (part, row) in rows.iter_mut().enumerate() {
                let mut output = Output::create(&file).expect("a file");
                let (mut chunk, mut written) = (Vec::with_capacity(CHUNK + 128), 0);
                if part == 2 {
                    // Write the same bytes each time, to measure only the copy into the file.
                    chunk.resize(CHUNK, 7);
                }
                let per_chunk = CHUNK / if format == Format::Pcap { 76 } else { 92 };
                let start = Instant::now();
                for batch in 0..LOOP / per_chunk {
                    if part < 2 {
                        chunk.clear();
                        for n in 0..per_chunk {
                            format.append(&mut chunk, 0, (batch * per_chunk + n) as u64, &frames[n % 1024], 1 << 18);
                        }
                    }
                    if part > 0 {
                        output.write_all_counted(&chunk).expect("there is room in memory");
                        written += chunk.len();
                        if written > FILE {
                            // Overwrite one file, like a ring of files.
                            drop(output);
                            std::fs::remove_file(&file).expect("it is there");
                            (output, written) = (Output::create(&file).expect("a file"), 0);
                        }
                    }
                    std::hint::black_box(&chunk);
                }
                row.push(LOOP as f64 / start.elapsed().as_secs_f64() / 1e6);
                let _ = std::fs::remove_file(&file);
            }
        }
        let best = rows.map(|row| row.into_iter().fold(0.0, f64::max));
        println!("{format:?}: making {:.1}, making and writing {:.1}, writing alone {:.1}", best[0], best[1], best[2]);
    }
}
