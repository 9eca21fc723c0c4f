//! The rate of forwarding, over the parameters that the ixy paper varies.

use linerate::Error;
use linerate::memory::PageSize;

use super::path::on_one_processor;
use super::published::{IXY_BATCHES, IXY_RAW, IXY_RINGS};
use super::{Plan, forward};
use crate::report::{Cell, Plot, Section, number};
use crate::run::Measured;
use crate::{BatchSize, Common, Pages};

pub const BATCHES: [u16; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
pub const RINGS: [u16; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Describes the conditions of all measurements on models.
fn of_models(plan: &Plan) -> String {
    match plan.is_model() {
        true => "The cards are models: one processor runs them, which limits the rate, and another runs the forwarder. \
                 Cycles per packet are the forwarder's own, including its waits for cache lines that the models' processor \
                 wrote last. \"Alone\" is the same with one thread as card and forwarder in turn: every batch is full, and \
                 no cache line comes from another processor. It is the best of ten tries. "
            .to_string(),
        false => "The cards are real: their load and this processor limit the rate. \"Alone\" is measured with a model, \
                  without a card. "
            .to_string(),
    }
}

/// Measures figure 6.
pub fn by_batch(plan: &Plan) -> Result<Section, Error> {
    let mut measured = Vec::new();
    for batch in BATCHES {
        let alone = on_one_processor(plan.time, batch.into(), 512)?.sum();
        let run = forward(plan, &Common { batch: BatchSize::Fixed(batch), ..plan.common() }, false)?;
        measured.push((f64::from(batch), run, alone));
    }
    // 1.2 GHz divided by packets per second.
    let theirs = |(batch, slow, _): &(u32, f64, f64)| (f64::from(*batch), 1200.0 / slow);
    let ours: Vec<_> = measured.iter().map(|(batch, _, alone)| (*batch, *alone)).collect();
    let ixy: Vec<_> = IXY_BATCHES.iter().map(theirs).collect();
    let last = |points: &[(f64, f64)]| points.last().map_or(1.0, |point| point.1);
    let of_last = |points: &[(f64, f64)]| points.iter().map(|(x, y)| (*x, y / last(points))).collect::<Vec<_>>();
    let rows = measured.iter().zip(IXY_BATCHES.iter().zip(&ixy)).map(|((batch, run, alone), (their, cycles))| {
        vec![
            Cell::Number(*batch, 0),
            number(run.mpps(), 2),
            number(run.cycles_per_packet(), 1),
            Cell::Number(*alone, 1),
            Cell::Number(alone / last(&ours), 2),
            Cell::Number(their.1, 2),
            Cell::Number(their.2, 2),
            Cell::Number(cycles.1, 0),
            Cell::Number(cycles.1 / last(&ixy), 2),
        ]
    });
    Ok(Section {
        name: "batch",
        title: "Forwarding by batch size (figure 6)",
        columns: vec![
            "batch",
            "Mpps",
            "cycles/packet",
            "alone",
            "of 256's",
            "ixy 1.2 GHz",
            "ixy 2.4 GHz",
            "ixy cycles",
            "its 256's",
        ],
        rows: rows.collect(),
        compares: format!(
            "{}Comparable: the cost of small batches, relative to batches of 256. Beside it: {IXY_RAW}; at 1.2 GHz the \
             processor limits it.",
            of_models(plan)
        ),
        warnings: Vec::new(),
        plot: Some(Plot {
            x: "batch",
            y: "cycles per packet, relative to batches of 256",
            lines: vec![
                ("linerate alone, this machine".to_string(), of_last(&ours)),
                ("ixy, 82599, 1.2 GHz".to_string(), of_last(&ixy)),
            ],
        }),
    })
}

/// Measures figure 7.
pub fn by_ring(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut ours) = (Vec::new(), Vec::new());
    let published = |ring: u16| IXY_RINGS.iter().find(|(size, _)| *size == u32::from(ring)).map(|(_, mpps)| *mpps);
    for ring in RINGS {
        let alone = on_one_processor(plan.time, 32, ring.into())?.sum();
        let run = forward(plan, &Common { ring: Some(ring), ..plan.common() }, false)?;
        ours.push((f64::from(ring), alone));
        rows.push(vec![
            Cell::Number(ring.into(), 0),
            number(run.mpps(), 2),
            number(run.cycles_per_packet(), 1),
            Cell::Number(alone, 1),
            published(ring).map_or(Cell::Nothing, |mpps| Cell::Number(mpps, 2)),
            published(ring).map_or(Cell::Nothing, |mpps| Cell::Number(1200.0 / mpps, 0)),
        ]);
    }
    Ok(Section {
        name: "rings",
        title: "Forwarding by ring size (figure 7)",
        columns: vec!["descriptors", "Mpps", "cycles/packet", "alone", "ixy 1.2 GHz", "ixy cycles"],
        rows,
        compares: format!(
            "{}Comparable: rings beyond 128 gain nothing. Large rings are slower, as they use more buffers than the caches \
             hold. Beside it: {IXY_RAW}; both rings have this size.",
            of_models(plan)
        ),
        warnings: Vec::new(),
        plot: Some(Plot {
            x: "descriptors in each ring",
            y: "cycles per packet",
            lines: vec![("linerate alone, this machine".to_string(), ours)],
        }),
    })
}

/// Measures figure 8.
pub fn by_pages(plan: &Plan) -> Result<Section, Error> {
    let mut rows = Vec::new();
    for (name, pages, size) in [
        ("4 KiB", Pages::Ordinary, None),
        ("2 MiB", Pages::Huge2M, Some(PageSize::Huge2M)),
        ("1 GiB", Pages::Huge1G, Some(PageSize::Huge1G)),
    ] {
        for ring in [512, 4096] {
            // A region of 32 MiB, and the rings; 16,384 buffers are enough for these.
            let needed = size.map_or(0, |size| (40usize << 20).div_ceil(size.bytes()).max(3));
            let mut row = vec![name.into(), Cell::Number(ring.into(), 0)];
            if size.is_none_or(|size| size.free() >= needed) {
                let measured = forward(plan, &Common { pages, ring: Some(ring), ..plan.common() }, false)?;
                row.extend([number(measured.mpps(), 2), number(measured.cycles_per_packet(), 1), "".into()]);
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
        title: "Forwarding by page size (figure 8)",
        columns: vec!["pages", "ring", "Mpps", "cycles/packet", ""],
        rows,
        compares: format!(
            "{}Comparable: the small effect of the page size on a forwarder. The paper found 1 to 3 % between 4 KiB and \
             2 MiB at usual ring sizes, 5.5 % with rings of 4,096 (section 5.5 of its first version).",
            of_models(plan)
        ),
        warnings: Vec::new(),
        plot: None,
    })
}

/// Reports figure 9, which is not measured here.
pub fn by_iommu(plan: &Plan) -> Result<Section, Error> {
    plan.step();
    Ok(Section {
        name: "iommu",
        title: "Forwarding through an IOMMU (figure 9)",
        columns: vec!["", "Mpps"],
        rows: vec![vec!["not measured here".into(), Cell::Nothing]],
        compares:
            "Models have no IOMMU. cargo bench -p linerate-guest --bench iommu measures an emulated one in a guest, by page \
             size; its absolute figures mean nothing. The cost of a real IOMMU's translations can be measured only with real \
             cards."
                .to_string(),
        warnings: Vec::new(),
        plot: None,
    })
}

/// Measures the scaling with a thread per queue.
pub fn by_queues(plan: &Plan) -> Result<Section, Error> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut rows, mut first) = (Vec::new(), [None; 2]);
    for threads in [1, 2, 4] {
        let alone = (threads <= processors).then(|| alone_at_once(plan, threads)).transpose()?;
        // Several flows, so that every queue gets packets.
        let ports = plan.names().map(|name| match plan.is_model() && !name.contains("flows=") {
            true => format!("{name}{}flows=64", if name.contains('?') { '&' } else { '?' }),
            false => name.to_string(),
        });
        let all = plan;
        let (time, progress, disturbed) = (plan.time, plan.progress.clone(), Default::default());
        let plan = Plan { ports, time, progress, disturbed };
        // The models' thread has the last processor.
        let spare = if plan.is_model() { processors - 1 } else { processors };
        let run = match threads == 1 || threads <= spare {
            true => Some(forward(&plan, &Common { queues: threads as u16, ..plan.common() }, false)?),
            false => None,
        };
        if run.is_none() {
            plan.step();
        }
        all.note(&plan.disturbed.take().used, None);
        let costs = [run.as_ref().and_then(Measured::cycles_per_packet), alone];
        let mut row = vec![Cell::Number(threads as f64, 0), number(run.and_then(|run| run.mpps()), 2)];
        for (cost, first) in costs.into_iter().zip(&mut first) {
            row.push(cost.map_or(Cell::Nothing, |cost| Cell::Number(cost, 1)));
            row.push(cost.map_or(Cell::Nothing, |cost| Cell::Number(cost / *first.get_or_insert(cost), 2)));
        }
        rows.push(row);
    }
    Ok(Section {
        name: "cores",
        title: "Forwarding by processors: a thread for each queue",
        columns: vec!["threads", "Mpps", "cycles/packet", "of one's", "alone", "of one's"],
        rows,
        compares: format!(
            "{}One processor runs all models, so that their rate does not grow; for \"alone\" each thread has its own cards. \
             The cycles per packet should not grow with the number of threads, since they share nothing. A row is empty if \
             the {processors} processors here are too few.",
            of_models(plan)
        ),
        warnings: Vec::new(),
        plot: None,
    })
}

/// Returns the mean cycles per packet of `threads` threads at once, each with its own cards.
fn alone_at_once(plan: &Plan, threads: usize) -> Result<f64, Error> {
    let costs = std::thread::scope(|scope| {
        let time = plan.time;
        let start = |_| {
            let thread = std::thread::Builder::new().name("linerate alone".to_string());
            let started = thread.spawn_scoped(scope, move || on_one_processor(time, 32, 512));
            started.map_err(|source| Error::System { call: "starting a thread", source })
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
    let mut rows = Vec::new();
    if nodes.len() > 1 {
        for &node in &nodes {
            let measured = forward(plan, &Common { numa: Some(node), ..plan.common() }, false)?;
            rows.push(vec![
                Cell::Number(node.into(), 0),
                number(measured.mpps(), 2),
                number(measured.cycles_per_packet(), 1),
            ]);
        }
    } else {
        plan.step();
        rows.push(vec!["one node only".into(), Cell::Nothing, Cell::Nothing]);
    }
    Ok(Section {
        name: "numa",
        title: "Forwarding by NUMA node of the packets' memory (table 4)",
        columns: vec!["node", "Mpps", "cycles/packet"],
        rows,
        compares: "The paper moves memory, thread and card between two nodes. A model has no node: it consists of memory and a \
                   thread. With real cards this shows the memory's part of that table."
            .to_string(),
        warnings: Vec::new(),
        plot: None,
    })
}
