//! Measures the latency of `linerate fwd` between two of QEMU's 82576, by wait mode: a small version of the ixy paper's
//! table 1. One frame is in flight at a time. The guest's processors are emulated, so only the ratios are
//! meaningful.
//!
//! `cargo bench -p linerate-guest --bench latency`

use std::time::{Duration, Instant};

use linerate::traffic::Generator;
use linerate_guest::{A, B, Guest, Machine, Wire};

const COUNT: usize = 5000;

fn main() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    guest.run(&format!("linerate bind {A} {B}"));
    println!("fwd between two emulated 82576, {COUNT} frames of 60 bytes, one at a time");
    println!("{:<34} {:>8} {:>8} {:>8} {:>8}   {:>6}", "waiting", "median", "99 %", "99.9 %", "longest", "ratio");
    let mut polling = None;
    for (name, options) in [
        ("poll", "--wait poll"),
        ("interrupt, throttling off", "--wait interrupt --throttle 0"),
        ("interrupt, at most every 10 µs", "--wait interrupt --throttle 10"),
        ("interrupt, at most every 200 µs", "--wait interrupt --throttle 200"),
        ("adaptive, at most every 10 µs", "--wait adaptive --throttle 10"),
    ] {
        let mut times = measure(&mut guest, &a, &b, options);
        times.sort_unstable();
        let at = |share: f64| times[((COUNT - 1) as f64 * share) as usize];
        let ratio = at(0.5).as_secs_f64() / polling.get_or_insert(at(0.5)).as_secs_f64();
        println!(
            "{name:<34} {:>6} µs {:>5} µs {:>5} µs {:>5} µs   {ratio:>6.2}",
            at(0.5).as_micros(),
            at(0.99).as_micros(),
            at(0.999).as_micros(),
            at(1.0).as_micros()
        );
    }
}

fn measure(guest: &mut Guest, a: &Wire, b: &Wire, options: &str) -> Vec<Duration> {
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} {options}"), 2);
    let mut generator = Generator::new(64, 1);
    let mut frame = vec![0; generator.frame_len()];
    let times = (0..COUNT)
        .map(|_| {
            generator.fill(&mut frame);
            let start = Instant::now();
            a.send(&frame);
            b.receive();
            start.elapsed()
        })
        .collect();
    guest.interrupt(forwarder).summary();
    times
}
