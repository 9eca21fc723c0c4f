//! netmap's reference costs: pipes, the switch, and a producer and a consumer of different speeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Port, RxQueue, TxQueue};
use linerate::traffic::Generator;
use linerate::{Batch, Error, Options};

use super::published::{NETMAP_PIPE, NETMAP_VALE};
use super::{Plan, has_time};
use crate::chart::{Axis, Bar, Bars, Chart, Line, Lines, Scale};
use crate::report::{Cell, Section};

/// Two connected ports of this process: one sends, the other receives.
struct Ends {
    tx: TxQueue,
    rx: RxQueue,
    pool: Arc<Pool>,
    _ports: [Port; 2],
}

impl Ends {
    fn open(names: [&str; 2]) -> Result<Ends, Error> {
        let pool = Pool::new(Region::new(&RegionOptions::default())?);
        let options = Options { local: true, ring: Some(512), pool: Some(pool.clone()), ..Options::default() };
        let [mut a, mut b] = options.open(names)?;
        let (tx, rx, mut back) = (a.tx(0)?, b.rx(0)?, b.tx(0)?);
        // Fill every buffer with a frame from one end to the other, so that any of them can be sent.
        let mut generator = Generator::new(1518, 1);
        let mut all = Batch::with_capacity(pool.available());
        all.alloc(&pool, pool.available(), generator.frame_len());
        all.packets().for_each(|mut frame| generator.fill(&mut frame));
        all.clear();
        // Send a frame with exchanged addresses back, from which the switch learns the destination's port.
        let mut frame = [0; 60];
        Generator::new(64, 1).fill(&mut frame);
        frame[..12].rotate_left(6);
        let other = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
        let mut turned = Batch::new();
        turned.push(&other, &frame);
        back.send(&mut turned);
        Ok(Ends { tx, rx, pool, _ports: [a, b] })
    }
}

/// Returns the nanoseconds per packet of one thread that sends and receives.
fn cost(names: [&str; 2], size: usize, time: Duration) -> Result<f64, Error> {
    let Ends { mut tx, mut rx, pool, _ports } = Ends::open(names)?;
    let (mut ours, mut theirs, mut packets) = (Batch::new(), Batch::new(), 0);
    let begin = Instant::now();
    while has_time(begin, time) {
        for _ in 0..64 {
            ours.alloc(&pool, 32 - ours.len(), size);
            tx.send(&mut ours);
            packets += rx.recv(&mut theirs);
            theirs.clear();
        }
    }
    Ok(begin.elapsed().as_nanos() as f64 / packets.max(1) as f64)
}

/// Returns the nanoseconds to copy `size` bytes from one buffer to another. It cycles through the buffers of one batch,
/// as a switch does.
fn copying(size: usize, time: Duration) -> f64 {
    const BUFFERS: usize = 32;
    let (from, mut to) = (vec![1u8; BUFFERS * 2048], vec![0u8; BUFFERS * 2048]);
    let (begin, mut copies) = (Instant::now(), 0u64);
    while has_time(begin, time) {
        for (from, to) in from.chunks_exact(2048).zip(to.chunks_exact_mut(2048)) {
            to[128..128 + size].copy_from_slice(&from[128..128 + size]);
        }
        std::hint::black_box(&mut to);
        copies += BUFFERS as u64;
    }
    begin.elapsed().as_nanos() as f64 / copies as f64
}

/// Measures a pipe, and the switch by packet size.
pub fn by_size(plan: &Plan) -> Result<Section, Error> {
    let mut rows = Vec::new();
    let pipe = cost(["B{0", "B}0"], 60, plan.time)?;
    plan.step();
    let row = |what: &str, size: usize, cost: f64, bound: Option<f64>, published: Cell| {
        vec![
            what.into(),
            Cell::Number(size as f64, 0),
            Cell::Number(cost, 1),
            Cell::Rate(1e9 / cost),
            bound.map_or(Cell::Nothing, |bound| Cell::Number(bound, 1)),
            published,
        ]
    };
    rows.push(row("pipe", 60, pipe, None, Cell::Rate(NETMAP_PIPE * 1e6)));
    let (mut switch, mut memcpy) = (Vec::new(), Vec::new());
    for size in [60, 256, 512, 1024, 1500] {
        let copy = copying(size, plan.time / 4);
        let cost = cost(["valebench:a", "valebench:b"], size, plan.time)?;
        let published = if size == 60 { Cell::Rate(NETMAP_VALE * 1e6) } else { Cell::Nothing };
        rows.push(row("switch", size, cost, Some(copy), published));
        switch.push((size as f64, cost));
        memcpy.push((size as f64, copy));
        plan.step();
    }
    Ok(Section {
        name: "netmap",
        title: "Cost of a pipe and a switch (netmap's reference figures)",
        columns: vec!["port", "bytes", "ns/packet", "packets/s", "memcpy, ns/packet", "netmap, packets/s (published)"],
        rows,
        compares: "One thread sends and receives, in batches of 32. Pipes move slots; a switch copies bytes, at the cost of \
                   a memcpy. netmap's figures are from its manual, measured on its authors' machines; it copies once for each \
                   receiver, as this does."
            .to_string(),
        chart: Some(Chart::Lines(Lines {
            x: Axis { title: "bytes of a packet", scale: Scale::Doubling },
            y: Axis { title: "nanoseconds per packet", scale: Scale::Linear },
            lines: vec![
                Line::ours("linerate, switch", switch),
                Line::ours("linerate, pipe", vec![(60.0, pipe)]),
                Line::ours("a memcpy of these bytes", memcpy),
                Line::reference("netmap, switch (published)", vec![(60.0, 1000.0 / NETMAP_VALE)]),
                Line::reference("netmap, pipe (published)", vec![(60.0, 1000.0 / NETMAP_PIPE)]),
            ],
        })),
        ..Section::default()
    })
}

/// Spins for the given time, as additional work for a packet.
fn work(nanoseconds: u64) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_nanos(nanoseconds) {
        std::hint::spin_loop();
    }
}

/// Measures a producer and a consumer, one slower than the other.
pub fn imbalance(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (produces, consumes) in [(0, 0), (0, 100), (100, 0), (100, 100), (100, 1000)] {
        let Ends { mut tx, mut rx, pool, _ports } = Ends::open(["I{0", "I}0"])?;
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (over, count) = (stop.clone(), sent.clone());
        let producer = std::thread::Builder::new().name("linerate producer".to_string()).spawn(move || {
            let mut batch = Batch::new();
            while !over.load(Ordering::Relaxed) {
                if batch.is_empty() {
                    batch.alloc(&pool, 32, 60);
                    if produces > 0 {
                        (0..batch.len()).for_each(|_| work(produces));
                    }
                }
                let taken = tx.send(&mut batch);
                count.fetch_add(taken as u64, Ordering::Relaxed);
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let producer = producer.map_err(Error::thread)?;
        let (mut batch, mut packets, mut calls, mut empty) = (Batch::with_capacity(256), 0u64, 0u64, 0u64);
        let begin = Instant::now();
        while has_time(begin, plan.time) {
            let received = rx.recv(&mut batch);
            if received == 0 {
                empty += 1;
                std::thread::yield_now();
                continue;
            }
            if consumes > 0 {
                (0..received).for_each(|_| work(consumes));
            }
            batch.clear();
            (packets, calls) = (packets + received as u64, calls + 1);
        }
        let seconds = begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        // A producer that panicked has sent too few packets, which the result shows.
        let _ = producer.join();
        rows.push(vec![
            Cell::Number(produces as f64, 0),
            Cell::Number(consumes as f64, 0),
            Cell::Rate(packets as f64 / seconds),
            Cell::Number(packets as f64 / calls.max(1) as f64, 1),
            Cell::Rate(empty as f64 / seconds),
        ]);
        let name = format!("produce in {produces} ns, consume in {consumes} ns");
        bars.push(Bar::ours(name, vec![packets as f64 / seconds / 1e6]));
        plan.step();
    }
    Ok(Section {
        name: "imbalance",
        title: "A producer and a consumer of different speeds (Rizzo's question)",
        columns: vec!["produce, ns", "consume, ns", "packets/s", "packets per poll", "empty polls/s"],
        rows,
        compares: "Over a pipe between two threads. The slower side sets the rate; the faster side should not slow it down by \
                   polling too often. With a slow consumer packets arrive in full batches of 256, with a slow producer as they \
                   are made."
            .to_string(),
        chart: Some(Chart::Bars(Bars { unit: "million packets per second", parts: vec![""], bars })),
        ..Section::default()
    })
}
