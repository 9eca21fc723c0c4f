//! Counts instructions per packet with AVX-512, which valgrind does not support: a child process does the work and is
//! single-stepped. Like `instructions`, it fails if a count exceeds those below by more than 3 %. On a processor
//! without AVX-512 it prints a note. `cargo bench --bench avx512_instructions`

mod fake;
mod fake_virtio;

use std::process::Command;

use fake::Fake;
use fake_virtio::{Card, MERGEABLE, PACKED, SPLIT};
use linerate::Batch;
use linerate::memory::RegionOptions;
use linerate::port::Vectors;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Packets per measurement.
const PACKETS: usize = 256;
/// Cards, batch sizes, and the instructions counted when this line was last updated.
const COUNTED: [(&str, usize, u64); 5] =
    [("ixgbe", 1, 112_902), ("ixgbe", 32, 8_936), ("pages", 32, 9_415), ("split", 32, 12_343), ("packed", 32, 12_065)];

fn main() {
    if !Vectors::Avx512.is_supported() {
        return println!("this processor has no AVX-512: nothing is measured");
    }
    let arguments: Vec<String> = std::env::args().skip_while(|argument| argument != "stepped").collect();
    if let [_, card, batch_size] = &arguments[..] {
        return work(card, batch_size.parse().unwrap());
    }
    let mut grown = false;
    for (card, batch_size, counted) in COUNTED {
        let (now, limit) = (steps(card, batch_size) - steps(card, 0), counted * 103 / 100);
        println!("card={card} batch={batch_size} packets={PACKETS} instructions={now} limit={limit}");
        grown |= now > limit;
    }
    assert!(!grown, "more instructions than the limit");
}

/// Forwards in batches of this size; size 0 measures an empty loop. Unmeasured rounds first fill caches and rings.
fn work(card: &str, batch_size: usize) {
    match card {
        "ixgbe" | "pages" => {
            let page = (card == "pages").then_some(2 << 20);
            let mut fake = Fake::seeing(Vectors::Avx512, &RegionOptions::default(), page);
            let receive = |fake: &mut Fake, count| fake.card.complete_receive(count);
            rounds(batch_size, &mut fake, receive, |fake| fake.card.complete_transmit(), Fake::forward);
        }
        _ => {
            let features = if card == "split" { SPLIT } else { PACKED };
            let mut card = Card::new(Vectors::Avx512, features | MERGEABLE);
            rounds(batch_size, &mut card, Card::complete_receive, Card::complete_transmit, Card::forward);
        }
    }
}

fn rounds<C>(
    batch_size: usize,
    card: &mut C,
    receive: fn(&mut C, usize),
    transmit: fn(&mut C) -> usize,
    forward: fn(&mut C, &mut Batch),
) {
    let mut batch = Batch::with_capacity(batch_size.max(1));
    for _ in 0..3 {
        receive(card, PACKETS);
        (0..PACKETS / batch.capacity()).for_each(|_| forward(card, &mut batch));
        transmit(card);
    }
    receive(card, PACKETS);
    ptrace::traceme().unwrap();
    // Two signals of the process to itself enclose the measured part.
    raise(Signal::SIGUSR1).unwrap();
    (0..PACKETS.checked_div(batch_size).unwrap_or(0)).for_each(|_| forward(card, &mut batch));
    raise(Signal::SIGUSR1).unwrap();
}

/// Returns the number of steps of a child process between its signals.
fn steps(card: &str, batch_size: usize) -> u64 {
    let arguments = ["stepped", card, &batch_size.to_string()];
    let mut process = Command::new("/proc/self/exe").args(arguments).spawn().unwrap();
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
