//! The cost of frames made from a template, compared with the generator of flows with sequence numbers, for the same
//! number of bytes. Results are nanoseconds per frame, medians of alternating rounds, and their ratio. Each frame is
//! made in a buffer of the port's pool and sent to a port that discards everything (`null:`), as `linerate gen` does.
//!
//! For comparison, it also runs DPDK's generator, `testpmd --forward-mode=txonly`, into `net_null` (Debian's package
//! dpdk). Its frames have one flow and are built field by field. With `PKT_GEN=/path/to/pkt-gen`, it also runs netmap's
//! generator, which repeats one frame, into a switch port under `liblinerate_netmap.so` (`cargo build --release -p
//! linerate-netmap`), and linerate's generator into such a port.
//!
//! `cargo bench -p linerate --bench generator_cost`

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate::memory::Pool;
use linerate::port::TxQueue;
use linerate::traffic::{Generator, Template, TemplateFrames};
use linerate::{Batch, Options};

const BATCH: usize = 32;
/// Batches per round, and rounds.
const CALLS: usize = 256;
const ROUNDS: usize = 401;

/// The measured templates.
const TEMPLATES: [(&str, &str); 5] = [
    ("constant", "eth/ip/udp/payload(18)"),
    ("one range", "eth/ip(src=10.0.0.0/8)/udp/payload(18)"),
    ("two ranges", "eth/ip(src=10.0.0.1-10.0.0.250)/udp(dport=1-1000)/payload(18)"),
    ("two random fields", "eth/ip(src=random)/udp(dport=random)/payload(18)"),
    ("VXLAN, two ranges", "eth/ip/udp(sport=1-1000)/vxlan/eth/ip(src=10.0.0.0/8)/udp/payload(18)"),
];

/// A port that discards everything, and its pool.
struct Sink {
    tx: TxQueue,
    pool: Arc<Pool>,
    batch: Batch,
}

impl Sink {
    /// Sends a round of frames; returns the nanoseconds per frame.
    fn round(&mut self, len: usize, mut fill: impl FnMut(&mut [u8])) -> f64 {
        let start = Instant::now();
        for _ in 0..CALLS {
            self.batch.alloc(&self.pool, BATCH, len);
            self.batch.packets().for_each(|mut packet| fill(&mut packet));
            self.tx.send(&mut self.batch);
        }
        start.elapsed().as_nanos() as f64 / (CALLS * BATCH) as f64
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let [mut port, mut of_switch] = Options { local: true, ..Options::default() }.open(["null:", "valeg:a"]).unwrap();
    let mut sink = Sink { tx: port.tx(0).unwrap(), pool: port.pool().clone(), batch: Batch::with_capacity(BATCH) };
    let mut flows = Generator::new(64, 1);
    let mut templates: Vec<TemplateFrames> =
        TEMPLATES.iter().map(|(_, text)| text.parse::<Template>().unwrap().frames().unwrap()).collect();
    let mut of_flows = Vec::new();
    let mut of_templates: Vec<Vec<(f64, f64)>> = vec![Vec::new(); templates.len()];
    for _ in 0..ROUNDS {
        for (frames, times) in templates.iter_mut().zip(&mut of_templates) {
            // Measure both in alternation, so that other load on the machine affects both.
            let one_flow = sink.round(60, |frame| flows.fill(frame));
            let template = sink.round(frames.longest(), |frame| frames.fill(frame));
            of_flows.push(one_flow);
            times.push((template, template / one_flow));
        }
    }
    println!("| frames of 64 bytes (VXLAN: 114) into null: | ns a frame | beside one flow |");
    println!("|---|---|---|");
    println!("| one flow with sequence numbers | {:.1} | |", median(of_flows));
    for ((name, _), times) in TEMPLATES.iter().zip(of_templates) {
        let (times, ratios) = times.into_iter().unzip();
        println!("| template, {name} | {:.1} | {:.2} |", median(times), median(ratios));
    }
    match testpmd() {
        Ok(nanoseconds) => println!("| DPDK's testpmd, txonly into net_null | {nanoseconds:.1} | |"),
        Err(why) => println!("DPDK's testpmd did not run: {why}"),
    }
    if let Ok(program) = std::env::var("PKT_GEN") {
        let (tx, pool) = (of_switch.tx(0).unwrap(), of_switch.pool().clone());
        let mut switch = Sink { tx, pool, batch: Batch::with_capacity(BATCH) };
        let two_ranges = &mut templates[2];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let rounds = (0..ROUNDS).map(|_| switch.round(60, |frame| two_ranges.fill(frame)));
            ours.push(median(rounds.collect()));
            match pkt_gen(&program) {
                Ok(nanoseconds) => theirs.push(nanoseconds),
                Err(why) => return println!("netmap's pkt-gen did not run: {why}"),
            }
        }
        println!("| template, two ranges, into a switch | {:.1} | |", median(ours));
        println!("| netmap's pkt-gen into a switch under our object | {:.1} | |", median(theirs));
    }
}

/// Returns the nanoseconds per frame of netmap's pkt-gen, over ten million frames.
fn pkt_gen(program: &str) -> Result<f64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let object = this.ancestors().nth(2).ok_or("no folder")?.join("liblinerate_netmap.so");
    let mut command = Command::new(program);
    command.args(["-i", "valeg:a", "-f", "tx", "-n", "10000000", "-l", "60"]).env("LD_PRELOAD", &object);
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // "Speed: 26.176 Mpps"
    let mut words = text.split("Speed: ").nth(1).unwrap_or_default().split_whitespace();
    let rate = words.next().and_then(|rate| rate.parse::<f64>().ok());
    let factor = match words.next() {
        Some("Mpps") => 1e6,
        Some("Kpps") => 1e3,
        _ => 1.0,
    };
    rate.map(|rate| 1e9 / (rate * factor)).ok_or_else(|| text.lines().last().unwrap_or("no output").to_string())
}

/// Returns the nanoseconds per frame of DPDK's testpmd, over two seconds.
fn testpmd() -> Result<f64, String> {
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "dpdk-testpmd", "--no-huge", "-m", "256", "--no-pci", "--vdev=net_null0", "-l", "0,1", "--"]);
    command.args(["--forward-mode=txonly", "--txpkts=60", "--burst=32", "--total-num-mbufs=4096", "-i"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = piped.spawn().map_err(|error| error.to_string())?;
    let (mut input, mut from) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
    let mut output = String::new();
    // Wait for its prompt.
    let mut bytes = [0; 4096];
    while !output.contains("testpmd>") {
        match from.read(&mut bytes).map_err(|error| error.to_string())? {
            0 => return Err(output.lines().last().unwrap_or("no output").to_string()),
            count => output += &String::from_utf8_lossy(&bytes[..count]),
        }
    }
    let begin = Instant::now();
    input.write_all(b"start\n").map_err(|error| error.to_string())?;
    std::thread::sleep(Duration::from_secs(2));
    input.write_all(b"stop\nquit\n").map_err(|error| error.to_string())?;
    let time = begin.elapsed();
    drop(input);
    from.read_to_string(&mut output).map_err(|error| error.to_string())?;
    child.wait().map_err(|error| error.to_string())?;
    // The last count is the sum of all ports.
    let sent = output.rsplit("TX-packets:").next().and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let sent = sent.filter(|sent| *sent > 0.0 && output.contains("TX-packets:"));
    sent.map(|sent| time.as_nanos() as f64 / sent)
        .ok_or_else(|| output.lines().last().unwrap_or("no output").to_string())
}
