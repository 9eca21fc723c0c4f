//! The rate of forwarding by the parameters that the ixy paper varies.

use linerate::Error;
use linerate::memory::PageSize;

use super::path::on_one_processor;
use super::published::{IXY_BATCHES, IXY_RAW, IXY_RINGS};
use super::{Plan, forward};
use crate::chart::{Axis, Bar, Bars, Chart, Line, Lines, Scale};
use crate::options::{BatchSize, Pages, RunOptions};
use crate::report::{Cell, Section, number, positive, rate};
use crate::run::Measured;
use crate::wire::with_option;

pub const BATCHES: [u16; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
pub const RINGS: [u16; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Measures figure 6.
pub fn by_batch(plan: &Plan) -> Result<Section, Error> {
    let mut measured = Vec::new();
    for batch in BATCHES {
        let alone = on_one_processor(plan.time, batch.into(), 512)?.sum();
        let run = forward(plan, &RunOptions { batch: BatchSize::Fixed(batch), ..plan.options() }, false)?;
        measured.push((f64::from(batch), run, alone));
    }
    let alone = measured.iter().filter_map(|(batch, _, alone)| Some((*batch, positive(*alone)?))).collect();
    let forwarder = measured.iter().filter_map(|(batch, run, _)| Some((*batch, run.cycles_per_packet()?))).collect();
    let ixy: Vec<_> = IXY_BATCHES.iter().map(|(batch, slow, _)| (f64::from(*batch), IXY_MHZ / slow)).collect();
    let rows = measured.iter().zip(IXY_BATCHES.iter().zip(&ixy)).map(|((batch, run, alone), (their, cycles))| {
        vec![
            Cell::Number(*batch, 0),
            rate(run.mpps().map(|mpps| mpps * 1e6)),
            number(run.cycles_per_packet(), 1),
            Cell::Number(*alone, 1),
            Cell::Rate(their.1 * 1e6),
            Cell::Number(cycles.1, 1),
        ]
    });
    Ok(Section {
        name: "batch",
        title: "A packet's cost by batch size (the paper's figure 6)",
        columns: vec!["batch, packets", "packets/s", "cycles/packet", ALONE, "ixy, packets/s (published)", IXY_CYCLES],
        rows: rows.collect(),
        compares: format!(
            "Comparable: how much less a packet costs in larger batches. For comparison: {IXY_RAW}; at 1.2 GHz the processor \
             is its limit."
        ),
        chart: Some(costs("packets of a batch", [alone, forwarder, ixy])),
        ..Section::default()
    })
}

/// The column of the cost with one thread as card and forwarder.
const ALONE: &str = "one processor, cycles/packet";
const IXY_CYCLES: &str = "ixy, cycles/packet (published)";
/// The clock rate of the machine of ixy's authors. Divided by packets per second it gives their cycles per packet.
const IXY_MHZ: f64 = 1200.0;

/// Returns the chart of cycles per packet: on one processor, with separate processors for models and forwarder, and of
/// ixy.
fn costs(x: &'static str, [alone, forwarder, ixy]: [Vec<(f64, f64)>; 3]) -> Chart {
    Chart::Lines(Lines {
        x: Axis { title: x, scale: Scale::Doubling },
        y: Axis { title: "cycles per packet", scale: Scale::Decades },
        lines: vec![
            Line::ours("linerate, one processor", alone),
            Line::ours("linerate, models on another processor", forwarder),
            Line::reference("ixy, 82599, 1.2 GHz (published)", ixy),
        ],
    })
}

/// Measures figure 7.
pub fn by_ring(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut ours, mut forwarder) = (Vec::new(), Vec::new(), Vec::new());
    let published = |ring: u16| IXY_RINGS.iter().find(|(size, _)| *size == u32::from(ring)).map(|(_, mpps)| *mpps);
    for ring in RINGS {
        let alone = on_one_processor(plan.time, 32, ring.into())?.sum();
        let run = forward(plan, &RunOptions { ring: Some(ring), ..plan.options() }, false)?;
        ours.extend(positive(alone).map(|cost| (f64::from(ring), cost)));
        forwarder.extend(run.cycles_per_packet().map(|cost| (f64::from(ring), cost)));
        rows.push(vec![
            Cell::Number(ring.into(), 0),
            rate(run.mpps().map(|mpps| mpps * 1e6)),
            number(run.cycles_per_packet(), 1),
            Cell::Number(alone, 1),
            rate(published(ring).map(|mpps| mpps * 1e6)),
            number(published(ring).map(|mpps| IXY_MHZ / mpps), 1),
        ]);
    }
    let ixy = IXY_RINGS.iter().map(|(ring, mpps)| (f64::from(*ring), IXY_MHZ / mpps)).collect();
    Ok(Section {
        name: "rings",
        title: "A packet's cost by ring size (the paper's figure 7)",
        columns: vec!["descriptors", "packets/s", "cycles/packet", ALONE, "ixy, packets/s (published)", IXY_CYCLES],
        rows,
        compares: format!(
            "Comparable: rings beyond 128 gain nothing. Large rings are slower, as they use more buffers than the caches \
             hold. For comparison: {IXY_RAW}; both rings have this size."
        ),
        chart: Some(costs("descriptors of each ring", [ours, forwarder, ixy])),
        ..Section::default()
    })
}

/// Measures figure 8.
pub fn by_pages(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, pages, size) in [
        ("4 KiB", Pages::Ordinary, None),
        ("2 MiB", Pages::Huge2M, Some(PageSize::Huge2M)),
        ("1 GiB", Pages::Huge1G, Some(PageSize::Huge1G)),
    ] {
        for ring in [512, 4096] {
            // A region of 32 MiB, which is 16,384 buffers, and the rings.
            let needed = size.map_or(0, |size| (40usize << 20).div_ceil(size.bytes()).max(3));
            let mut row = vec![name.into(), Cell::Number(ring.into(), 0)];
            if size.is_none_or(|size| size.free() >= needed) {
                let measured = forward(plan, &RunOptions { pages, ring: Some(ring), ..plan.options() }, false)?;
                row.extend([
                    rate(measured.mpps().map(|mpps| mpps * 1e6)),
                    number(measured.cycles_per_packet(), 1),
                    "".into(),
                ]);
                bars.extend(
                    measured
                        .cycles_per_packet()
                        .map(|cost| Bar::ours(format!("{name}, {ring} descriptors"), vec![cost])),
                );
            } else {
                plan.step();
                let why = format!("not measured: {needed} pages of this size must be free");
                row.extend([Cell::Nothing, Cell::Nothing, Cell::Text(why)]);
            }
            rows.push(row);
        }
    }
    Ok(Section {
        name: "pages",
        title: "A packet's cost by page size (the paper's figure 8)",
        columns: vec!["pages", "descriptors", "packets/s", "cycles/packet", "remark"],
        rows,
        compares:
            "Comparable: the small effect of the page size on a forwarder. The paper found 1 to 3 % between 4 KiB and \
                   2 MiB at usual ring sizes, 5.5 % with rings of 4,096 (section 5.5 of its first version)."
                .to_string(),
        chart: Some(Chart::Bars(Bars { unit: "cycles per packet", parts: vec![""], bars })),
        ..Section::default()
    })
}

/// Reports figure 9, which is not measured here.
pub fn by_iommu(plan: &Plan) -> Result<Section, Error> {
    plan.step();
    Ok(Section {
        name: "iommu",
        title: "A packet's cost through an IOMMU (the paper's figure 9)",
        missing: Some(
            "models have no IOMMU. cargo bench -p linerate-guest --bench iommu measures an emulated one in a guest, by page \
             size; its absolute figures are meaningless. The cost of a real IOMMU's translations can be measured only with \
             real cards"
                .to_string(),
        ),
        ..Section::default()
    })
}

/// Measures the scaling with a thread per queue.
pub fn by_queues(plan: &Plan) -> Result<Section, Error> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut rows, mut first, mut bars) = (Vec::new(), [None; 2], Vec::new());
    for threads in [1, 2, 4] {
        let alone = (threads <= processors).then(|| alone_at_once(plan, threads)).transpose()?;
        // Several flows, so that every queue gets packets.
        let ports = plan.names().map(|name| match plan.is_model() && !name.contains("flows=") {
            true => with_option(name, "flows=64"),
            false => name.to_string(),
        });
        let all = plan;
        let (time, progress, disturbed) = (plan.time, plan.progress.clone(), Default::default());
        let plan = Plan { ports, time, progress, disturbed };
        // The models' thread occupies one processor.
        let spare = if plan.is_model() { processors - 1 } else { processors };
        let run = match threads == 1 || threads <= spare {
            true => Some(forward(&plan, &RunOptions { queues: threads as u16, ..plan.options() }, false)?),
            false => None,
        };
        if run.is_none() {
            plan.step();
        }
        all.note(&plan.disturbed.take().used, None);
        let costs = [run.as_ref().and_then(Measured::cycles_per_packet), alone];
        let on = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
        for (cost, what) in costs.into_iter().zip(["models on another processor", "a processor each"]) {
            bars.extend(cost.map(|cost| Bar::ours(format!("{on}, {what}"), vec![cost])));
        }
        let mut row =
            vec![Cell::Number(threads as f64, 0), rate(run.and_then(|run| run.mpps()).map(|mpps| mpps * 1e6))];
        for (cost, first) in costs.into_iter().zip(&mut first) {
            row.push(cost.map_or(Cell::Nothing, |cost| Cell::Number(cost, 1)));
            row.push(cost.map_or(Cell::Nothing, |cost| Cell::Number(cost / *first.get_or_insert(cost), 2)));
        }
        rows.push(row);
    }
    Ok(Section {
        name: "cores",
        title: "A packet's cost by threads, one for each queue",
        columns: vec![
            "threads",
            "packets/s",
            "cycles/packet",
            "beside 1 thread",
            "a processor each, cycles/packet",
            "beside 1 thread, each",
        ],
        rows,
        compares: format!(
            "One processor runs all models, so their rate does not grow; with a processor each, threads have their own cards. \
             The cycles per packet should not grow with the number of threads, as threads share nothing. A row is empty if \
             the {processors} processors here are too few."
        ),
        chart: Some(Chart::Bars(Bars { unit: "cycles per packet", parts: vec![""], bars })),
        ..Section::default()
    })
}

/// Returns the mean cycles per packet of `threads` concurrent threads, each with its own cards.
fn alone_at_once(plan: &Plan, threads: usize) -> Result<f64, Error> {
    let costs = std::thread::scope(|scope| {
        let time = plan.time;
        let start = |_| {
            let thread = std::thread::Builder::new().name("linerate alone".to_string());
            let started = thread.spawn_scoped(scope, move || on_one_processor(time, 32, 512));
            started.map_err(Error::thread)
        };
        let threads = (0..threads).map(start).collect::<Result<Vec<_>, Error>>()?;
        let joined = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        joined.map(|parts| parts.map(|parts| parts.sum())).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(costs.iter().sum::<f64>() / threads as f64)
}

/// Measures table 4.
pub fn by_node(plan: &Plan) -> Result<Section, Error> {
    let nodes = (0..8).filter(|node| std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists());
    let nodes: Vec<u32> = nodes.collect();
    let (mut rows, mut missing) = (Vec::new(), None);
    if nodes.len() > 1 {
        for &node in &nodes {
            let measured = forward(plan, &RunOptions { numa: Some(node), ..plan.options() }, false)?;
            rows.push(vec![
                Cell::Number(node.into(), 0),
                rate(measured.mpps().map(|mpps| mpps * 1e6)),
                number(measured.cycles_per_packet(), 1),
            ]);
        }
    } else {
        plan.step();
        missing = Some("this machine has one node".to_string());
    }
    Ok(Section {
        name: "numa",
        title: "A packet's cost by the NUMA node of its memory (the paper's table 4)",
        columns: vec!["node", "packets/s", "cycles/packet"],
        rows,
        compares: "The paper moves memory, thread and card between two nodes. A model has no node, as it consists of memory and \
                   a thread. With real cards this shows the memory's part of that table."
            .to_string(),
        missing,
        ..Section::default()
    })
}
