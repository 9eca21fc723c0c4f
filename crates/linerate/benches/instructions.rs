//! Instructions per packet, counted by valgrind: the same on every run, so that a change that makes
//! the path longer is seen. `cargo bench --bench instructions`; `./test` fails on 3 % more than the
//! limits below. Whoever makes the path shorter lowers them.

#![allow(missing_docs)] // what the macros make

mod fake;
mod fake_virtio;

use std::hint::black_box;

use fake::{Fake, touch};
use fake_virtio::{Card, MERGEABLE, PACKED, SPLIT};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use linerate::Batch;
use linerate::memory::RegionOptions;
use linerate::port::Vectors;

/// Packets in one measurement.
const PACKETS: usize = 256;

/// A card with packets waiting, after a first round that filled caches and rings.
fn waiting(vectors: Vectors, batch_size: usize) -> (Fake, Batch) {
    waiting_in(None, vectors, batch_size)
}

/// The same where it sees packets in hugepages.
fn waiting_in_pages(vectors: Vectors, batch_size: usize) -> (Fake, Batch) {
    waiting_in(Some(2 << 20), vectors, batch_size)
}

fn waiting_in(page: Option<usize>, vectors: Vectors, batch_size: usize) -> (Fake, Batch) {
    assert!(vectors.is_there(), "this processor has no {vectors:?}");
    let mut fake = Fake::seeing(vectors, &RegionOptions::default(), page);
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

/// The same of a VirtIO device.
fn virtio_waiting(vectors: Vectors, features: u32) -> (Card, Batch) {
    let mut card = Card::new(vectors, features | MERGEABLE);
    let mut batch = Batch::new();
    for _ in 0..3 {
        card.complete_receive(PACKETS);
        (0..PACKETS / 32).for_each(|_| card.forward(&mut batch));
        card.complete_transmit();
    }
    card.complete_receive(PACKETS);
    (card, batch)
}

fn virtio_forward((mut card, mut batch): (Card, Batch)) -> (Card, Batch) {
    (0..PACKETS / 32).for_each(|_| card.forward(&mut batch));
    black_box((card, batch))
}

/// At most 3 % more instructions than were counted when this line was last changed.
fn limit(counted: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::with_args(["--cache-sim=no"]).hard_limits([(EventKind::Ir, counted * 103 / 100)]).clone());
    config
}

#[library_benchmark(config = limit(110_317))]
#[bench::one(args = (Vectors::Scalar, 1), setup = waiting)]
fn batch_1(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(20_967))]
#[bench::thirty_two(args = (Vectors::Scalar, 32), setup = waiting)]
fn batch_32(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(110_317))]
#[bench::one(args = (Vectors::Avx2, 1), setup = waiting)]
fn avx2_1(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(11_023))]
#[bench::thirty_two(args = (Vectors::Avx2, 32), setup = waiting)]
fn avx2_32(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(11_871))]
#[bench::thirty_two(args = (Vectors::Avx2, 32), setup = waiting_in_pages)]
fn avx2_32_pages(waiting: (Fake, Batch)) -> (Fake, Batch) {
    forward(waiting)
}

#[library_benchmark(config = limit(40_996))]
#[bench::thirty_two(args = (Vectors::Scalar, SPLIT), setup = virtio_waiting)]
fn virtio_split_32(waiting: (Card, Batch)) -> (Card, Batch) {
    virtio_forward(waiting)
}

#[library_benchmark(config = limit(42_754))]
#[bench::thirty_two(args = (Vectors::Scalar, PACKED), setup = virtio_waiting)]
fn virtio_packed_32(waiting: (Card, Batch)) -> (Card, Batch) {
    virtio_forward(waiting)
}

#[library_benchmark(config = limit(15_680))]
#[bench::thirty_two(args = (Vectors::Avx2, SPLIT), setup = virtio_waiting)]
fn virtio_avx2_split_32(waiting: (Card, Batch)) -> (Card, Batch) {
    virtio_forward(waiting)
}

#[library_benchmark(config = limit(15_376))]
#[bench::thirty_two(args = (Vectors::Avx2, PACKED), setup = virtio_waiting)]
fn virtio_avx2_packed_32(waiting: (Card, Batch)) -> (Card, Batch) {
    virtio_forward(waiting)
}

library_benchmark_group!(
    name = path,
    benchmarks = [
        batch_1,
        batch_32,
        avx2_1,
        avx2_32,
        avx2_32_pages,
        virtio_split_32,
        virtio_packed_32,
        virtio_avx2_split_32,
        virtio_avx2_packed_32
    ]
);
main!(library_benchmark_groups = path);
