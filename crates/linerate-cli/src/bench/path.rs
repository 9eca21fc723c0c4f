//! The cycles of a forwarded packet, by part.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate::Options;
use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::Device;
use linerate::sim82599::{Card, Traffic};
use linerate::traffic::{Generator, touch};
use linerate::{Batch, Error};

use super::published::{DPDK_PARTS, IXY_PARTS};
use super::{Plan, forward, has_time};
use crate::chart::{Bar, Bars, Chart};
use crate::profile::{EVERY, Parts, Profile, Stamps, cycles};
use crate::report::{Cell, Section};

/// Packets per batch.
const BATCH: usize = 32;

/// Measures table 2.
pub fn parts(plan: &Plan) -> Result<Section, Error> {
    let elsewhere = forward(plan, &plan.options(), true)?.parts.unwrap_or_default();
    let here = on_one_processor(plan.time, BATCH, 512)?;
    plan.step();
    let memory = memory(plan)?;
    let singly = on_one_processor(plan.time, 1, 512)?;
    plan.step();
    let row = |what: &str, Parts { receive, touch, send }: Parts, memory: Cell| {
        let number = |value| Cell::Number(value, 1);
        vec![what.into(), number(receive), number(touch), number(send), memory, number(receive + touch + send)]
    };
    let [ixy_receive, ixy_touch, ixy_send, ixy_memory] = IXY_PARTS;
    let [dpdk_receive, dpdk_touch, dpdk_send] = DPDK_PARTS;
    let difference = Parts {
        receive: elsewhere.receive - here.receive,
        touch: elsewhere.touch - here.touch,
        send: elsewhere.send - here.send,
    };
    let (ixy, dpdk) = (
        Parts { receive: ixy_receive, touch: ixy_touch, send: ixy_send },
        Parts { receive: dpdk_receive, touch: dpdk_touch, send: dpdk_send },
    );
    let stamps = profiling();
    let share = |turn: f64| 100.0 * stamps / (f64::from(EVERY) * turn);
    let mut ixy = row("ixy, 1.2 GHz", ixy, Cell::Number(ixy_memory, 1));
    ixy[5] = Cell::Number(IXY_PARTS.iter().sum(), 1);
    let device = if plan.is_model() { "models on another processor" } else { "these cards" };
    let rows = vec![
        row(device, elsewhere, "in the others".into()),
        row("one processor", here, "in the others".into()),
        row("difference: cache lines moved between processors", difference, Cell::Nothing),
        vec![
            "allocating and freeing a buffer explicitly".into(),
            Cell::Nothing,
            Cell::Nothing,
            Cell::Nothing,
            Cell::Number(memory, 1),
            Cell::Nothing,
        ],
        ixy,
        row("DPDK, 1.2 GHz", dpdk, "in the others".into()),
    ];
    let of = |Parts { receive, touch, send }: Parts| vec![receive, touch, send];
    let bars = Bars {
        unit: "cycles per packet of 64 bytes, in batches of 32",
        parts: vec!["receive", "forward", "send", "memory"],
        bars: vec![
            Bar::reference("ixy, 1.2 GHz (published)", IXY_PARTS.to_vec()),
            Bar::reference("DPDK, 1.2 GHz (published)", DPDK_PARTS.to_vec()),
            Bar::ours(format!("linerate, {device}"), of(elsewhere)),
            Bar::ours("linerate, one processor", of(here)),
        ],
    };
    Ok(Section {
        name: "parts",
        title: "A packet's cost by part of its path (the paper's table 2)",
        columns: vec!["cycles/packet", "receive", "forward", "send", "memory", "sum"],
        rows,
        compares: format!(
            "TSC cycles, batches of 32. A forwarder reuses its batches' buffers, so memory is not a separate part; the \
             cost of allocation is given separately. Comparable: the relative sizes of the parts. The published figures are \
             perf's, from the authors' raw data (github.com/emmericp/ixy-perf-measurements, profiling). At 1.2 GHz a cycle is \
             longer, so memory accesses take fewer cycles. cargo bench --bench driver_cost measures the driver alone, without \
             any card. The cost of fwd --profile itself: {stamps:.0} cycles in one of {EVERY} turns, which is {:.1} % of the \
             sum on the same processor, and {:.1} % with batches of one.",
            share(here.sum() * BATCH as f64),
            share(singly.sum()),
        ),
        chart: Some(Chart::Bars(bars)),
        ..Section::default()
    })
}

/// Measures the same with one thread as card and forwarder in turn, so that no cache line comes from another processor
/// and every batch is full. Returns the best of ten tries.
pub fn on_one_processor(time: Duration, batch: usize, ring: usize) -> Result<Parts, Error> {
    let pool = Pool::new(Region::new(&RegionOptions::default())?);
    let wires = [Traffic::new(Generator::new(64, 1), None, None), Traffic::sink()];
    let cards = wires.map(|wire| Card::new("bench", Box::new(wire)));
    cards.iter().for_each(|card| card.disable_strict());
    let config = Options { ring: Some(ring), ..Options::default() }.of_port("bench", pool).unwrap();
    let open = |card: &Arc<Card>| linerate::drive_model(card, None, config.clone());
    let (mut a, mut b) = (open(&cards[0])?, open(&cards[1])?);
    let (mut rx, mut tx) = (a.rx(0)?, b.tx(0)?);
    let (size, mut batch, mut best) = (batch, Batch::with_capacity(batch), Parts::default());
    for _ in 0..10 {
        let profile = Arc::<Profile>::default();
        let (begin, stamps) = (Instant::now(), Stamps::new(profile.clone()));
        while has_time(begin, time / 10) {
            for card in &cards {
                card.step(size);
            }
            let start = cycles();
            rx.recv(&mut batch);
            let received = cycles();
            batch.packets().for_each(|mut packet| touch(&mut packet));
            let touched = cycles();
            let sent = tx.send(&mut batch);
            stamps.note(sent, [start, received, touched, cycles()]);
            batch.clear();
        }
        let parts = profile.parts();
        if best.sum() == 0.0 || parts.sum() < best.sum() {
            best = parts;
        }
    }
    Ok(best)
}

/// Returns the additional cycles of a turn that is timed.
fn profiling() -> f64 {
    const TURNS: u32 = 100_000;
    let stamps = Stamps::new(Arc::default());
    let start = cycles();
    (0..TURNS).for_each(|_| stamps.note(BATCH, [cycles(), cycles(), cycles(), cycles()]));
    (cycles() - start) as f64 / f64::from(TURNS)
}

/// Returns the cycles to allocate a packet's buffer from the pool, and to free it.
fn memory(plan: &Plan) -> Result<f64, Error> {
    let pool = Pool::new(Region::new(&RegionOptions::default())?);
    let mut batch = Batch::with_capacity(BATCH);
    let (begin, mut spent, mut packets) = (Instant::now(), 0, 0);
    while has_time(begin, plan.time / 4) {
        let start = cycles();
        for _ in 0..1000 {
            packets += batch.alloc(&pool, BATCH, 60) as u64;
            batch.clear();
        }
        spent += cycles() - start;
    }
    Ok(spent as f64 / packets.max(1) as f64)
}
