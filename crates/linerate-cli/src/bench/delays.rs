//! The latency of a forwarder.

use linerate::Error;
use linerate::traffic::Rate;

use super::Plan;
use super::published::IXY_LATENCY;
use crate::chart::{Axis, Chart, Line, Lines, Scale, of_percentiles};
use crate::generate::Stream;
use crate::latency::{self, Load, Times};
use crate::options::{RunOptions, Wait};
use crate::quantiles::quantile;
use crate::report::{Cell, Section, number, positive, rate};

/// More packets per second than any model delivers, and thus more than any forwarder receives from it.
const OVERLOAD: f64 = 20e6;
/// The load whose percentiles are plotted, in millions of packets per second.
const SHOWN: f64 = 0.5;

fn measure(plan: &Plan, packets: f64, options: &RunOptions) -> Result<Times, Error> {
    // Each timed frame reads the clock twice, so at high rates fewer frames are timed.
    let every = if packets > 500e3 { 8 } else { 1 };
    let load = Load::quiet(64, every, latency::PathOptions::default(), vec![Stream::default()]);
    let times = latency::measure(&plan.names(), Rate::Packets(packets), &load, options)?;
    plan.note(&times.used, times.shortfall.as_ref().filter(|_| packets < OVERLOAD));
    plan.step();
    Ok(times)
}

fn cells(times: &Times) -> [Cell; 5] {
    [0.5, 0.99, 0.999, 0.9999, 1.0].map(|part| {
        number(quantile(&times.sum.delays.histogram, part).map(|nanoseconds| nanoseconds as f64 / 1000.0), 2)
    })
}

/// Describes the conditions of the measurements.
fn of_what(plan: &Plan) -> &'static str {
    match plan.is_model() {
        true => {
            "From wire to wire of the models, in microseconds; a real card adds about 3. Model and forwarder have a processor \
                 each, if nothing else runs: the system causes the longest times, not the forwarder. "
        }
        false => "From port to port, stamped in software, in microseconds. ",
    }
}

/// Measures table 1.
pub fn by_load(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (name, wait) in [("poll", Wait::Poll), ("adaptive", Wait::Adaptive), ("interrupt", Wait::Interrupt)] {
        for load in [0.05, 0.5, 1.5] {
            let times = measure(plan, load * 1e6, &RunOptions { wait: Some(wait), ..plan.options() })?;
            let sent = rate(positive(times.rates()[0]));
            let mut row = vec![name.into(), Cell::Rate(load * 1e6), sent, Cell::Number(times.sum.lost as f64, 0)];
            row.extend(cells(&times));
            rows.push(row);
            if load == SHOWN {
                lines
                    .push(Line::of_percentiles(format!("linerate, {name}, {SHOWN} Mpps"), &times.sum.delays.histogram));
            }
        }
    }
    for (load, [median, p99, p99_9, p99_99]) in IXY_LATENCY {
        let mut row =
            vec!["ixy in C, polling (published)".into(), Cell::Rate(load * 1e6), Cell::Nothing, Cell::Nothing];
        row.extend([median, p99, p99_9, p99_99].map(|time| Cell::Number(time, 2)));
        row.push(Cell::Nothing);
        rows.push(row);
    }
    let (load, times) = IXY_LATENCY[0];
    let published = [0.5, 0.99, 0.999, 0.9999].into_iter().zip(times).collect();
    lines.push(Line::reference(format!("ixy, polling, {load} Mpps (published)"), published));
    Ok(Section {
        name: "latency",
        title: "Latency by load and wait mode (the paper's table 1)",
        columns: vec![
            "waiting",
            "asked, packets/s",
            "sent, packets/s",
            "lost",
            "median, µs",
            "99 %, µs",
            "99.9 %, µs",
            "99.99 %, µs",
            "longest, µs",
        ],
        rows,
        compares: format!(
            "{}Comparable: the cost of the wait modes relative to polling. ixy's figures are from the authors' later \
             measurements, with every packet captured before and after the forwarder (github.com/ixy-languages); its loads are \
             those of a real card, higher than a model's.",
            of_what(plan)
        ),
        chart: Some(of_percentiles(lines)),
        ..Section::default()
    })
}

/// Measures table 3.
pub fn by_ring(plan: &Plan) -> Result<Section, Error> {
    let (mut rows, mut lines) = (Vec::new(), [("half a million packets/s", Vec::new()), ("overload", Vec::new())]);
    for ring in [64u16, 512, 4096] {
        for (name, load) in [("half a million", 0.5e6), ("overload", OVERLOAD)] {
            let times = measure(plan, load, &RunOptions { ring: Some(ring), ..plan.options() })?;
            let mut row = vec![Cell::Number(ring.into(), 0), name.into(), rate(positive(times.rates()[1]))];
            row.extend(cells(&times));
            rows.push(row);
            let median = quantile(&times.sum.delays.histogram, 0.5).map(|time| (f64::from(ring), time as f64 / 1e3));
            lines[usize::from(load == OVERLOAD)].1.extend(median);
        }
    }
    Ok(Section {
        name: "overload",
        title: "Latency by the size of rings, with and without overload (the paper's table 3)",
        columns: vec![
            "descriptors",
            "load",
            "arrived, packets/s",
            "median, µs",
            "99 %, µs",
            "99.9 %, µs",
            "99.99 %, µs",
            "longest, µs",
        ],
        rows,
        compares: format!(
            "{}Comparable: as in the paper (section 5.4 of its first version), latency under overload grows with the ring, as \
             each packet waits for a full ring; under less load the ring does not matter.",
            of_what(plan)
        ),
        chart: Some(Chart::Lines(Lines {
            x: Axis { title: "descriptors of each ring", scale: Scale::Doubling },
            y: Axis { title: "median latency, µs", scale: Scale::Decades },
            lines: lines.into_iter().map(|(name, points)| Line::ours(format!("linerate, {name}"), points)).collect(),
        })),
        ..Section::default()
    })
}
