//! Full load over a link with 10 ms of delay, and how exact its delay is: `link:echo:` in one polling thread, frames of
//! 64 bytes in batches of 32. Between two polls more than 5 µs
//! apart, the thread had no processor; windows of 100 µs without such a gap count separately.
//!
//! `cargo bench --bench link_delay`

use std::time::{Duration, Instant};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::Port;
use linerate::{Batch, Options};

const LEN: usize = 60;
const BATCH: usize = 32;
const DELAY: Duration = Duration::from_millis(10);
const WINDOW: Duration = Duration::from_millis(20);
/// A window in which errors are counted. Those after a disturbed window do not count until its backlog is empty.
const SHORT_WINDOW: Duration = Duration::from_micros(100);
const SECONDS: u64 = 3;
/// A poll that is this late was interrupted.
const LATE: Duration = Duration::from_micros(5);

/// Counts of times, in steps of 50 ns up to 1 ms; the last one has all longer times.
struct Times(Vec<u64>);

impl Times {
    const STEP: u64 = 50;

    fn new() -> Times {
        Times(vec![0; 20_001])
    }

    fn record(&mut self, (nanoseconds, count): (u64, u64)) {
        let last = self.0.len() - 1;
        self.0[last.min((nanoseconds / Times::STEP) as usize)] += count;
    }

    /// Returns the microseconds that this part of the times does not exceed.
    fn quantile(&self, part: f64) -> f64 {
        let (all, mut sum) = (self.len() as f64, 0);
        let is_below = |count: &&u64| {
            sum += **count;
            (sum as f64) < part * all
        };
        (self.0.iter().take_while(is_below).count() as u64 + 1) as f64 * Times::STEP as f64 / 1e3
    }

    /// Returns the part of the times below a number of nanoseconds.
    fn below(&self, nanoseconds: u64) -> f64 {
        self.0[..(nanoseconds / Times::STEP) as usize].iter().sum::<u64>() as f64 / self.len() as f64
    }

    fn len(&self) -> u64 {
        self.0.iter().sum()
    }
}

fn open(name: &str) -> Port {
    let region = RegionOptions { buffers: 500_000, ..RegionOptions::default() };
    let pool = Pool::new(Region::new(&region).expect("memory"));
    let options = Options { pool: Some(pool), ..Options::default() };
    let [port] = options.open([name]).expect("the port opens");
    port
}

/// Sends as fast as possible. Returns the most packets per second of a window, and of all.
fn throughput(name: &str) -> [f64; 2] {
    let mut port = open(name);
    let (mut rx, mut tx, pool) = (port.rx(0).expect("a queue"), port.tx(0).expect("a queue"), port.pool().clone());
    let (mut out, mut back) = (Batch::new(), Batch::new());
    let (mut total, mut best) = (0, 0.0f64);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(SECONDS) {
        let (window, mut count) = (Instant::now(), 0);
        while window.elapsed() < WINDOW {
            if out.is_empty() {
                out.alloc(&pool, BATCH, LEN);
            }
            tx.send(&mut out);
            count += rx.recv(&mut back);
            back.clear();
        }
        total += count;
        best = best.max(count as f64 / window.elapsed().as_secs_f64());
    }
    [best, total as f64 / begin.elapsed().as_secs_f64()]
}

/// Sends batches at a rate, and records by how many nanoseconds each packet leaves the link late.
fn errors(rate: f64) {
    let mut port = open(&format!("link:echo:?delay={}ms/0&packets=400k", DELAY.as_millis()));
    let (mut rx, mut tx, pool) = (port.rx(0).expect("a queue"), port.tx(0).expect("a queue"), port.pool().clone());
    let (mut out, mut back) = (Batch::new(), Batch::new());
    let [mut all, mut undisturbed] = [(); 2].map(|()| Times::new());
    // Lateness and counts of packets that are received together, so that the bench itself takes little time.
    let mut window: Vec<(u64, u64)> = Vec::with_capacity(1 << 16);
    let begin = Instant::now();
    let now = || begin.elapsed().as_nanos() as u64;
    let mut is_drained = false;
    let (mut sent, mut next, mut last, mut busy, mut disturbed, mut end) = (0u64, 0, 0, Duration::ZERO, 0u32, 0);
    let interval = (BATCH as f64 / rate * 1e9) as u64;
    while begin.elapsed() < Duration::from_secs(SECONDS) {
        let time = now();
        let gap = Duration::from_nanos(time - last);
        if gap > LATE {
            busy += gap;
            disturbed = 2;
        }
        last = time;
        if out.is_empty() && time >= next {
            // Packets that were not sent in a gap are not sent later.
            next = (next + interval).max(time.saturating_sub(LATE.as_nanos() as u64));
            sent += out.alloc(&pool, BATCH, LEN) as u64;
            (&mut out).into_iter().for_each(|mut packet| packet[..8].copy_from_slice(&time.to_ne_bytes()));
        }
        tx.send(&mut out);
        is_drained |= rx.recv(&mut back) == 0;
        let time = now();
        for packet in &mut back {
            let sent = u64::from_ne_bytes(packet[..8].try_into().expect("eight bytes"));
            let late = (time - sent).saturating_sub(DELAY.as_nanos() as u64);
            match window.last_mut() {
                Some((last, count)) if *last == late => *count += 1,
                _ => window.push((late, 1)),
            }
        }
        back.clear();
        if time > end {
            window.iter().for_each(|run| all.record(*run));
            window.iter().filter(|_| disturbed == 0).for_each(|run| undisturbed.record(*run));
            disturbed = disturbed.saturating_sub(std::mem::take(&mut is_drained).into());
            window.clear();
            end = time + SHORT_WINDOW.as_nanos() as u64;
        }
    }
    for (name, times) in [("all", &all), ("undisturbed windows", &undisturbed)] {
        let [median, p99, p999] = [0.5, 0.99, 0.999].map(|part| times.quantile(part));
        let within = times.below(2000) * 100.0;
        println!(
            "{name}: {} packets, late by {median:.2} µs (50 %), {p99:.2} µs (99 %), {p999:.2} µs (99.9 %); {within:.2} % \
             within 2 µs",
            times.len()
        );
    }
    let mpps = [sent as f64 / SECONDS as f64, rate].map(|rate| rate / 1e6);
    println!("sent {:.2} of {:.2} Mpps; without a processor for {busy:?} of {SECONDS} s", mpps[0], mpps[1]);
}

fn main() {
    for name in ["echo:", "link:echo:?delay=0/0", "link:echo:?delay=10ms/0&packets=400k"] {
        let [best, mean] = throughput(name).map(|rate| rate / 1e6);
        println!("{name}: {best:.1} Mpps in the best {} ms, {mean:.1} in {SECONDS} s", WINDOW.as_millis());
    }
    errors(7.44e6);
}
