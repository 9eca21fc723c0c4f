//! The charts of reports: line charts, stacked bars, and the card that summarizes a report. `draw` draws them as SVG; in
//! builds without the feature `charts`, there are no pictures.
#![cfg_attr(not(feature = "charts"), allow(dead_code))]

#[cfg(feature = "charts")]
mod draw;

use hdrhistogram::Histogram;

#[cfg(feature = "charts")]
pub use self::draw::card;
use crate::quantiles::quantile;

/// A chart.
pub enum Chart {
    Lines(Lines),
    Bars(Bars),
}

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Powers of two, as for sizes.
    Doubling,
    /// Powers of ten, for values of several orders of magnitude.
    Decades,
    /// Percentiles, where each division leaves a tenth of the one before: 90 %, 99 %, 99.9 %.
    Nines,
}

/// An axis.
pub struct Axis {
    pub title: &'static str,
    pub scale: Scale,
}

/// A line chart.
pub struct Lines {
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

/// A line.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// For comparison: published by others, or requested.
    pub is_reference: bool,
}

/// A chart of stacked bars.
pub struct Bars {
    pub unit: &'static str,
    /// The parts' names. An empty name is not in the legend.
    pub parts: Vec<&'static str>,
    pub bars: Vec<Bar>,
}

/// A bar.
pub struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
    /// For comparison: published by others, or requested.
    pub is_reference: bool,
}

impl Bar {
    pub fn ours(name: impl Into<String>, parts: Vec<f64>) -> Bar {
        Bar { name: name.into(), parts, is_reference: false }
    }

    pub fn reference(name: impl Into<String>, parts: Vec<f64>) -> Bar {
        Bar { name: name.into(), parts, is_reference: true }
    }
}

impl Line {
    pub fn ours(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, is_reference: false }
    }

    pub fn reference(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, is_reference: true }
    }

    /// Returns the line of a histogram's percentiles, in microseconds for nanoseconds.
    pub fn of_percentiles(name: impl Into<String>, histogram: &Histogram<u64>) -> Line {
        // Leave out percentiles that depend on less than one value.
        let parts = [0.01, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999];
        let enough = |part: &f64| (1.0 - part) * histogram.len() as f64 >= 1.0;
        let points = parts.into_iter().filter(enough);
        Line::ours(name, points.filter_map(|part| Some((part, quantile(histogram, part)? as f64 / 1e3))).collect())
    }
}

/// Returns the chart of percentiles of times.
pub fn of_percentiles(lines: Vec<Line>) -> Chart {
    Chart::Lines(Lines {
        x: Axis { title: "part of the packets", scale: Scale::Nines },
        y: Axis { title: "latency, µs", scale: Scale::Decades },
        lines,
    })
}

impl Scale {
    /// Returns the position of a value on the axis.
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Doubling => value.max(f64::MIN_POSITIVE).log2(),
            Scale::Decades => value.max(f64::MIN_POSITIVE).log10(),
            Scale::Nines => -(1.0 - value).max(1e-9).log10(),
        }
    }

    /// Returns the axis' ends, given the smallest and the largest position.
    fn ends(self, least: f64, most: f64) -> (f64, f64) {
        match self {
            Scale::Linear => (0.0, (most * 1.08).max(1e-9)),
            Scale::Doubling => (least, most.max(least + 1.0)),
            Scale::Decades => (least.floor(), most.ceil().max(least.floor() + 1.0)),
            Scale::Nines => (0.0, most.max(1.0)),
        }
    }

    /// Returns the labels of an axis with these ends, and their positions.
    fn labels(self, (first, last): (f64, f64)) -> Vec<(f64, String)> {
        let step = nice((last - first) / 6.0);
        let marks: Vec<f64> = match self {
            Scale::Linear => (0..).map(|n| f64::from(n) * step).take_while(|mark| *mark <= last).collect(),
            Scale::Doubling => {
                let step = ((last - first) / 10.0).ceil().max(1.0);
                (0..).map(|n| first.ceil() + f64::from(n) * step).take_while(|mark| *mark <= last).collect()
            }
            // 1, 2 and 5 of each decade.
            Scale::Decades => {
                let decades = first.floor() as i32..=last.ceil() as i32;
                let marks = decades.flat_map(|decade| [1.0f64, 2.0, 5.0].map(|mark| f64::from(decade) + mark.log10()));
                marks.filter(|mark| (first..=last).contains(mark)).collect()
            }
            Scale::Nines => (0..).map(f64::from).take_while(|mark| *mark <= last).collect(),
        };
        marks.into_iter().map(|mark| (mark, self.number(mark, step))).collect()
    }

    /// Returns the label of a position, with the decimals that it needs. Linear labels are `step` apart.
    fn number(self, place: f64, step: f64) -> String {
        let (value, decimals, unit) = match self {
            Scale::Linear => (place, decimals(step), ""),
            // 0.5, 0.25, 0.125: each division adds a decimal.
            Scale::Doubling => (place.exp2(), (-place).max(0.0) as usize, ""),
            Scale::Decades => (10f64.powf(place), decimals(10f64.powf(place)), ""),
            Scale::Nines => (100.0 - 100.0 * 10f64.powf(-place), (place - 2.0).max(0.0) as usize, " %"),
        };
        format!("{value:.decimals$}{unit}")
    }
}

/// Returns the decimals that a number needs for its first significant digit.
fn decimals(value: f64) -> usize {
    // The logarithm of a power of ten may be slightly below its exponent.
    (-(value.log10() + 1e-9).floor()).max(0.0) as usize
}

/// Returns the next step of 1, 2, 5, 10 and so on.
fn nice(step: f64) -> f64 {
    let decade = 10f64.powf(step.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * decade).find(|nice| *nice >= step).unwrap_or(step)
}

/// A line of text below the bars of a card.
pub struct Below {
    pub text: String,
    /// The figures are wrong or doubtful.
    pub is_warning: bool,
}

#[cfg(not(feature = "charts"))]
impl Chart {
    /// Returns no picture.
    pub fn svg(&self) -> Option<String> {
        None
    }
}

/// Returns no card.
#[cfg(not(feature = "charts"))]
pub fn card(_title: &str, _bars: &Bars, _below: &[Below]) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_numbers_at_their_powers() {
        let numbers = |scale: Scale, least: f64, most: f64| {
            let ends = scale.ends(scale.place(least), scale.place(most));
            scale.labels(ends).into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(numbers(Scale::Linear, 3.0, 88.0), "0 20 40 60 80");
        assert_eq!(numbers(Scale::Doubling, 1.0, 256.0), "1 2 4 8 16 32 64 128 256");
        assert_eq!(numbers(Scale::Decades, 5.3, 441.0), "1 2 5 10 20 50 100 200 500 1000");
        assert_eq!(numbers(Scale::Nines, 0.5, 0.9999), "0 % 90 % 99 % 99.9 % 99.99 %");
        // Neighbours differ, and each label is the exact value.
        assert_eq!(numbers(Scale::Linear, 0.0, 0.24), "0.00 0.05 0.10 0.15 0.20 0.25");
        assert_eq!(numbers(Scale::Linear, 0.0, 1.1), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(numbers(Scale::Linear, 0.0, 0.0055), "0.000 0.001 0.002 0.003 0.004 0.005");
        assert_eq!(numbers(Scale::Doubling, 0.125, 2.0), "0.125 0.25 0.5 1 2");
        assert_eq!(numbers(Scale::Decades, 0.02, 3.0), "0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10");
        // The same value twice, and none.
        assert_eq!(numbers(Scale::Doubling, 64.0, 64.0), "64 128");
        assert!(!numbers(Scale::Linear, 0.0, 0.0).is_empty());
    }

    #[cfg(feature = "charts")]
    #[test]
    fn pictures_have_their_names_and_none_without_figures() {
        let line = |points: Vec<(f64, f64)>| Lines {
            x: Axis { title: "batch", scale: Scale::Doubling },
            y: Axis { title: "cycles/packet", scale: Scale::Decades },
            lines: vec![Line::ours("ours", points.clone()), Line::reference("theirs", points)],
        };
        let svg = Chart::Lines(line(vec![(1.0, 441.0), (256.0, 102.0)])).svg().unwrap();
        for part in ["<svg", "ours", "theirs", "batch", "cycles/packet", "256", "200"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(Chart::Lines(line(Vec::new())).svg().is_none());
        let bars = |parts: Vec<f64>| Bars {
            unit: "cycles/packet",
            parts: vec!["receive", "send"],
            bars: vec![Bar::ours("ours", parts)],
        };
        let svg = Chart::Bars(bars(vec![1.5, 2.0])).svg().unwrap();
        assert!(svg.contains("receive") && svg.contains("3.5") && svg.contains("ours"), "{svg}");
        for (value, label) in [(0.15, "\n0.15\n"), (0.034, "\n0.034\n"), (99.94, "\n99.9\n"), (123.4, "\n123\n")] {
            let svg = Chart::Bars(bars(vec![value])).svg().unwrap();
            assert!(svg.contains(label), "{label}: {svg}");
        }
        assert!(Chart::Bars(bars(Vec::new())).svg().is_none());
        let below = Below { text: "a machine".to_string(), is_warning: false };
        assert!(card("a title", &bars(vec![1.0]), &[below]).unwrap().contains("a machine"));
    }
}
