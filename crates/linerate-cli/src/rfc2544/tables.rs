//! The tables of the benchmarks.

use super::{Loss, Row, Test, Tester};
use crate::chart::{Axis, Chart, Line, Lines, Scale};
use crate::latency::Times;
use crate::quantiles::quantile;
use crate::report::{Cell, Section, number, rate};

impl Tester<'_> {
    /// Returns the tables.
    pub(super) fn sections(&self, rows: &[Row]) -> Vec<Section> {
        let mut sections = Vec::new();
        let line = |size: u16, rate: f64| rate * (f64::from(size) + 20.0) * 8e-9;
        let size = |row: &Row| Cell::Number(row.size.into(), 0);
        // With several pairs, the last column is the worst one.
        let has_pairs = self.names.len() > 2;
        let columns = |columns: &[&'static str]| [columns, if has_pairs { &["worst pair"][..] } else { &[] }].concat();
        let with_worst = |mut cells: Vec<Cell>, worst: Option<&str>| {
            cells.extend(has_pairs.then(|| worst.map_or(Cell::Nothing, Cell::from)));
            cells
        };
        if self.wants(Test::Throughput) {
            let notes = rows.iter().filter_map(|row| Some(format!("{} bytes: {}", row.size, row.bound.as_ref()?)));
            let of = |rate: fn(&Row) -> Option<f64>| {
                rows.iter().filter_map(|row| Some((row.size.into(), line(row.size, rate(row)?)))).collect()
            };
            sections.push(Section {
                name: "throughput",
                title: "Throughput (RFC 2544, section 26.1)",
                compares: format!(
                    "The highest rate at which the loss was within the tolerance{}.",
                    if has_pairs {
                        ", for each pair of ports. The worst pair lost most at the lowest rate with loss"
                    } else {
                        ""
                    }
                ),
                columns: columns(&["bytes", "offered, packets/s", "packets/s", "Gbit/s", "% of the offered rate"]),
                rows: rows
                    .iter()
                    .map(|row| {
                        let found = row.throughput;
                        let cells = vec![
                            size(row),
                            Cell::Rate(row.offered),
                            rate(found),
                            number(found.map(|rate| line(row.size, rate)), 4),
                            number(found.map(|rate| rate / row.offered * 100.0), 2),
                        ];
                        with_worst(cells, row.worst.as_deref())
                    })
                    .collect(),
                warnings: notes.collect(),
                chart: Some(Chart::Lines(Lines {
                    x: Axis { title: "bytes of a frame", scale: Scale::Linear },
                    y: Axis { title: "Gbit/s", scale: Scale::Linear },
                    lines: vec![
                        Line::ours("without loss", of(|row| row.throughput)),
                        Line::reference("offered", of(|row| Some(row.offered))),
                    ],
                })),
                ..Section::default()
            });
        }
        if self.wants(Test::Latency) {
            let microseconds = |times: &Times, part: f64| {
                number(quantile(&times.sum.delays.histogram, part).map(|time| time as f64 / 1e3), 1)
            };
            let cells = |row: &Row| {
                let times = row.latency.as_ref()?;
                let histogram = &times.sum.delays.histogram;
                let mean = (!histogram.is_empty()).then(|| histogram.mean() / 1e3);
                let mut cells = vec![size(row), Cell::Rate(times.rates()[0]), number(mean, 1)];
                cells.extend([0.0, 0.5, 0.99, 0.999, 1.0].map(|part| microseconds(times, part)));
                let worst = times.worst(|counts| quantile(&counts.delays.histogram, 0.999).map(|time| time as f64));
                Some(with_worst(cells, worst))
            };
            sections.push(Section {
                name: "latency",
                title: "Latency at the throughput (section 26.2)",
                compares:
                    "For every frame of one trial; the RFC requires the mean of 20 trials, with one frame each. RFC \
                           8219, section 7.2: the median is the typical latency, and 99.9 % the worst case."
                        .to_string(),
                columns: columns(&[
                    "bytes",
                    "packets/s",
                    "mean, µs",
                    "min, µs",
                    "median, µs",
                    "99 %, µs",
                    "99.9 %, µs",
                    "max, µs",
                ]),
                rows: rows.iter().filter_map(cells).collect(),
                warnings: rows
                    .iter()
                    .filter_map(|row| {
                        let shortfall = row.latency.as_ref()?.shortfall.as_ref()?;
                        Some(format!("{} bytes: {}", row.size, shortfall.line()))
                    })
                    .collect(),
                ..Section::default()
            });
        }
        if self.wants(Test::Latency) {
            let cells = |row: &Row| {
                let times = row.latency.as_ref()?;
                let pdv = times.sum.delays.pdv().map(|time| time as f64 / 1e3);
                let ipdv = times.sum.delays.ipdv();
                let mut cells = vec![size(row), Cell::Rate(times.rates()[0]), number(pdv, 1)];
                cells.extend([0, 1, 2].map(|n| number(ipdv.map(|ipdv| ipdv[n] / 1e3), 1)));
                Some(with_worst(cells, times.worst(|counts| counts.delays.pdv().map(|time| time as f64))))
            };
            sections.push(Section {
                name: "variation",
                title: "Packet delay variation at the throughput (RFC 8219, section 7.3)",
                compares:
                    "PDV is the 99.9th percentile of the latency minus the minimum. IPDV is the difference of the \
                           latencies of two successive frames. One trial; the RFC requires the median of 20."
                        .to_string(),
                columns: columns(&["bytes", "packets/s", "PDV, µs", "IPDV min, µs", "IPDV median, µs", "IPDV max, µs"]),
                rows: rows.iter().filter_map(cells).collect(),
                ..Section::default()
            });
        }
        if self.wants(Test::Loss) {
            sections.push(Section {
                name: "loss",
                title: "Frame loss rate (section 26.3)",
                compares: "Frame loss at parts of the offered rate, until two successive ones have no loss."
                    .to_string(),
                columns: columns(&["bytes", "% of the offered rate", "sent, packets/s", "lost, %"]),
                rows: rows
                    .iter()
                    .flat_map(|row| {
                        row.losses.iter().enumerate().map(|(step, Loss { sent, lost, worst })| {
                            let part = 100.0 - 10.0 * step as f64;
                            let cells = vec![
                                size(row),
                                Cell::Number(part, 0),
                                Cell::Rate(*sent),
                                Cell::Number(lost * 100.0, 3),
                            ];
                            with_worst(cells, worst.as_deref())
                        })
                    })
                    .collect(),
                warnings: rows
                    .iter()
                    .flat_map(|row| row.unreached.iter().map(|line| format!("{} bytes, {line}", row.size)))
                    .collect(),
                chart: Some(Chart::Lines(Lines {
                    x: Axis { title: "% of the offered rate", scale: Scale::Linear },
                    y: Axis { title: "lost frames, %", scale: Scale::Linear },
                    lines: rows
                        .iter()
                        .map(|row| {
                            let losses = row.losses.iter().enumerate();
                            let points = losses.map(|(step, loss)| (100.0 - 10.0 * step as f64, loss.lost * 100.0));
                            Line::ours(format!("{} bytes", row.size), points.collect())
                        })
                        .collect(),
                })),
                ..Section::default()
            });
        }
        if self.wants(Test::BackToBack) {
            sections.push(Section {
                name: "back-to-back",
                title: "Back-to-back frames (section 26.4)",
                compares:
                    "The longest burst at the offered rate without a lost frame, and the one that was tried first: two \
                           seconds. Frames of each sending port. One trial of each length; the RFC requires the mean of 50."
                        .to_string(),
                columns: vec!["bytes", "frames", "tried"],
                rows: rows
                    .iter()
                    .map(|row| {
                        let [found, tried] = [0, 1].map(|n| {
                            number(row.burst.map(|(found, tried)| if n == 0 { found } else { tried } as f64), 0)
                        });
                        vec![size(row), found, tried]
                    })
                    .collect(),
                ..Section::default()
            });
        }
        if self.wants(Test::Reset) {
            let cells = |row: &Row| {
                let reset = row.reset.as_ref()?;
                Some(vec![
                    size(row),
                    Cell::Rate(reset.rate),
                    Cell::Number(reset.lost as f64, 0),
                    Cell::Number(reset.by_loss, 3),
                    number(reset.by_time, 3),
                ])
            };
            let notes = |row: &Row| {
                let notes = row.reset.as_ref().map(|reset| reset.notes()).unwrap_or_default();
                notes.into_iter().map(|note| format!("{} bytes: {note}", row.size)).collect::<Vec<_>>()
            };
            sections.push(Section {
                name: "reset",
                title: "Reset time (RFC 6201)",
                compares:
                    "By loss: the lost frames divided by the rate. By time: the longest time between two frames that \
                           arrived. One reset; the RFC requires the mean of several."
                        .to_string(),
                columns: vec!["bytes", "sent, packets/s", "lost", "by loss, s", "by time, s"],
                rows: rows.iter().filter_map(cells).collect(),
                warnings: rows.iter().flat_map(notes).collect(),
                ..Section::default()
            });
        }
        sections
    }
}
