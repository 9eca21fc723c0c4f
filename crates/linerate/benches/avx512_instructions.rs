//! Instructions per packet with AVX-512, which valgrind does not know: a child does the work, and we go through it step by
//! step. `cargo bench --bench avx512_instructions`; like `instructions`, it fails on 3 % more than the limits below. On a
//! processor without AVX-512 it says so.

mod fake;

use std::hint::black_box;
use std::process::Command;

use fake::{Fake, touch};
use linerate::Batch;
use linerate::memory::RegionOptions;
use linerate::port::Vectors;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Packets in one measurement.
const PACKETS: usize = 256;
/// Batch sizes, and how many instructions were counted when this line was last changed.
const COUNTED: [(usize, u64); 2] = [(1, 112_064), (32, 10_429)];

fn main() {
    if !Vectors::Avx512.is_there() {
        return println!("this processor has no AVX-512: nothing is counted");
    }
    if let Some(batch_size) = std::env::args().skip_while(|argument| argument != "stepped").nth(1) {
        return work(batch_size.parse().unwrap());
    }
    let nothing = steps(0);
    for (batch_size, counted) in COUNTED {
        let (now, limit) = (steps(batch_size) - nothing, counted * 103 / 100);
        println!("batch={batch_size} instructions={now} limit={limit}");
        assert!(now <= limit, "{now} instructions for {PACKETS} packets are over the limit of {limit}");
    }
}

/// What is counted stands between two signals to ourselves.
fn work(batch_size: usize) {
    let (mut fake, mut batch) = waiting(batch_size.max(1));
    ptrace::traceme().unwrap();
    raise(Signal::SIGUSR1).unwrap();
    for _ in 0..PACKETS.checked_div(batch_size).unwrap_or(0) {
        fake.rx.recv(&mut batch);
        touch(&mut batch);
        fake.tx.send(&mut batch);
        batch.clear();
    }
    raise(Signal::SIGUSR1).unwrap();
    black_box((fake, batch));
}

/// A card with packets waiting, after first rounds that filled caches and rings.
fn waiting(batch_size: usize) -> (Fake, Batch) {
    let mut fake = Fake::with(Vectors::Avx512, &RegionOptions::default());
    let mut batch = Batch::with_capacity(batch_size);
    for _ in 0..3 {
        fake.complete_receive(PACKETS);
        for _ in 0..PACKETS / batch_size {
            fake.forward(&mut batch);
        }
        fake.complete_transmit();
    }
    fake.complete_receive(PACKETS);
    (fake, batch)
}

/// How many steps a child takes between its signals.
fn steps(batch_size: usize) -> u64 {
    let mut process = Command::new("/proc/self/exe").args(["stepped", &batch_size.to_string()]).spawn().unwrap();
    let child = Pid::from_raw(process.id() as i32);
    let signalled = WaitStatus::Stopped(child, Signal::SIGUSR1);
    assert_eq!(waitpid(child, None), Ok(signalled));
    let mut steps = 0;
    loop {
        ptrace::step(child, None).unwrap();
        let status = waitpid(child, None).unwrap();
        if status == signalled {
            break;
        }
        assert_eq!(status, WaitStatus::Stopped(child, Signal::SIGTRAP));
        steps += 1;
    }
    ptrace::detach(child, None).unwrap();
    assert!(process.wait().unwrap().success());
    steps
}
