//! Instructions per packet, counted by valgrind: the same on every run, so that a change that makes
//! the path longer is seen. `cargo bench --bench instructions`; `./test` fails on 3 % more than the
//! limits below. Whoever makes the path shorter lowers them.

#![allow(missing_docs)] // what the macros make

mod fake;

use std::hint::black_box;

use fake::{Fake, touch};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use linerate::Batch;
use linerate::memory::RegionOptions;
use linerate::port::Vectors;

/// Packets in one measurement.
const PACKETS: usize = 256;

/// A card with packets waiting, after a first round that filled caches and rings.
fn waiting(vectors: Vectors, batch_size: usize) -> (Fake, Batch) {
    assert!(vectors.is_there(), "this processor has no {vectors:?}");
    let mut fake = Fake::with(vectors, &RegionOptions::default());
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

fn forward((mut fake, mut batch): (Fake, Batch)) -> (Fake, Batch) {
    for _ in 0..PACKETS / batch.capacity() {
        fake.rx.recv(&mut batch);
        touch(&mut batch);
        fake.tx.send(&mut batch);
        batch.clear();
    }
    black_box((fake, batch))
}

/// At most 3 % more instructions than were counted when this line was last changed.
fn limit(counted: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::with_args(["--cache-sim=no"]).hard_limits([(EventKind::Ir, counted * 103 / 100)]).clone());
    config
}

#[library_benchmark(config = limit(110_501))]
#[bench::one(args = (Vectors::Scalar, 1), setup = waiting)]
fn batch_1(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(20_167))]
#[bench::thirty_two(args = (Vectors::Scalar, 32), setup = waiting)]
fn batch_32(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(112_549))]
#[bench::one(args = (Vectors::Avx2, 1), setup = waiting)]
fn avx2_1(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(12_890))]
#[bench::thirty_two(args = (Vectors::Avx2, 32), setup = waiting)]
fn avx2_32(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

library_benchmark_group!(name = path, benchmarks = [batch_1, batch_32, avx2_1, avx2_32]);
main!(library_benchmark_groups = path);
