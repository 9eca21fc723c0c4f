//! The cycles of a forwarded packet, by part.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::traffic::touch;
use linerate::{Batch, Error};

use super::alone::{Alone, BATCH};
use super::bare::{Compared, compare};
use super::published::{DPDK_PARTS, IXY_PARTS};
use super::{Plan, forward, has_time};
use crate::chart::{Bar, Bars, Chart};
use crate::profile::{EVERY, Parts, Profile, Stamps, cycles};
use crate::report::{Cell, Section};

/// Measures table 2.
pub fn parts(plan: &Plan) -> Result<Section, Error> {
    let elsewhere = forward(plan, &plan.options(), true)?.parts.unwrap_or_default();
    let here = on_one_processor(plan.time, BATCH, 512)?;
    plan.step();
    let compared = compare(plan.time)?;
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
    let mut ixy = row("ixy, 1.2 GHz (published)", ixy, Cell::Number(ixy_memory, 1));
    ixy[5] = Cell::Number(IXY_PARTS.iter().sum(), 1);
    let device = if plan.is_model() { "models on another processor" } else { "these cards" };
    let sum = |what: &str, cycles: f64| {
        let mut row = vec![Cell::Nothing; 6];
        (row[0], row[5]) = (what.into(), Cell::Number(cycles, 1));
        row
    };
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
        sum("one processor, rounds of 256 packets", compared.ours),
        sum("a bare loop over the same descriptors, in turns with it", compared.bare),
        ixy,
        row("DPDK, 1.2 GHz (published)", dpdk, "in the others".into()),
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
             longer, so memory accesses take fewer cycles. Comparable on any machine: the driver takes {:.2} times the cycles of a bare loop that reads and writes the \
             same descriptors and changes the same packets, in turns with it. The cost of fwd --profile itself: {stamps:.0} cycles in one of {EVERY} turns, which is {:.1} % of the \
             sum on the same processor, and {:.1} % with batches of one.",
            compared.ratio(),
            share(here.sum() * BATCH as f64),
            share(singly.sum()),
        ),
        chart: Some(Chart::Bars(bars)),
        card: Some(card(&compared)),
        warnings: compared.warning().into_iter().collect(),
        ..Section::default()
    })
}

/// Returns the bars that summarize the report: ratios of one run, which machines can be compared by.
fn card(compared: &Compared) -> Bars {
    Bars {
        unit: "times the loop's cycles; 64-byte packets in batches of 32",
        parts: vec![""],
        bars: vec![
            Bar::reference("a bare loop over the descriptors, without a driver", vec![1.0]),
            Bar::ours("linerate's driver on the model of an 82599", vec![compared.ratio()]),
        ],
    }
}

/// Measures the same on one processor. Returns the best of ten tries.
pub fn on_one_processor(time: Duration, batch: usize, ring: usize) -> Result<Parts, Error> {
    let mut alone = Alone::new(ring)?;
    let (size, mut batch, mut best) = (batch, Batch::with_capacity(batch), Parts::default());
    for _ in 0..10 {
        let profile = Arc::<Profile>::default();
        let (begin, stamps) = (Instant::now(), Stamps::new(profile.clone()));
        while has_time(begin, time / 10) {
            alone.step(size);
            let start = cycles();
            alone.rx.recv(&mut batch);
            let received = cycles();
            batch.packets().for_each(|mut packet| touch(&mut packet));
            let touched = cycles();
            let sent = alone.tx.send(&mut batch);
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
