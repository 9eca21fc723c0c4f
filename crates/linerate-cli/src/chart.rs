//! The charts of reports, as SVG: line charts, stacked bars, and the card that summarizes a report.

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::quantiles::quantile;

/// The width of a chart.
const WIDTH: u32 = 760;
/// The height of a legend's line.
const ROW: u32 = 22;
const FONT: (&str, u32) = ("sans-serif", 15);

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

/// Returns a line's colour: blues and greens for ours, warm colours for references.
fn colour(index: usize, is_reference: bool) -> RGBColor {
    const OURS: [RGBColor; 4] =
        [RGBColor(31, 111, 235), RGBColor(12, 155, 130), RGBColor(110, 64, 201), RGBColor(80, 90, 105)];
    const REFERENCES: [RGBColor; 2] = [RGBColor(217, 119, 6), RGBColor(190, 60, 60)];
    if is_reference { REFERENCES[index % REFERENCES.len()] } else { OURS[index % OURS.len()] }
}

/// Returns the colour of a part of a bar: pale for references.
fn shade(part: usize, is_reference: bool) -> RGBColor {
    const PARTS: [RGBColor; 4] =
        [RGBColor(31, 111, 235), RGBColor(96, 185, 250), RGBColor(12, 155, 130), RGBColor(147, 97, 230)];
    let RGBColor(red, green, blue) = PARTS[part % PARTS.len()];
    let pale = |value: u8| (u32::from(value) * 4 / 10 + 255 * 6 / 10) as u8;
    if is_reference { RGBColor(pale(red), pale(green), pale(blue)) } else { RGBColor(red, green, blue) }
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Drawing into a string fails only if plotters rejects the chart.
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Chart {
    /// Returns the chart as SVG; `None` if it has no data.
    pub fn svg(&self) -> Option<String> {
        let mut svg = String::new();
        let height = match self {
            Chart::Lines(Lines { lines, .. }) => 400 + ROW * (lines.len() as u32).div_ceil(2),
            Chart::Bars(bars) => bars.legend() as u32 + 40 * bars.bars.len() as u32 + 44,
        };
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            area.fill(&WHITE).ok()?;
            match self {
                Chart::Lines(lines) => lines.draw(&area).ok()?,
                Chart::Bars(bars) if bars.most()? > 0.0 => bars.draw(&area).ok()?,
                Chart::Bars(_) => return None,
            }
            area.present().ok()?;
        }
        Some(svg)
    }
}

impl Lines {
    fn draw(&self, area: &Area) -> Drawn {
        let placed: Vec<Vec<(f64, f64)>> = self
            .lines
            .iter()
            .map(|line| line.points.iter().map(|(x, y)| (self.x.scale.place(*x), self.y.scale.place(*y))).collect())
            .collect();
        let all = || placed.iter().flatten().copied();
        let ends = |values: &mut dyn Iterator<Item = f64>, scale: Scale| -> Option<(f64, f64)> {
            let (least, most) = values.fold(None, |ends: Option<(f64, f64)>, value| {
                Some(ends.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
            })?;
            Some(scale.ends(least, most))
        };
        let x = ends(&mut all().map(|point| point.0), self.x.scale).ok_or("no points")?;
        let y = ends(&mut all().map(|point| point.1), self.y.scale).ok_or("no points")?;
        let (upper, legend) = area.split_vertically(400);
        let grey = RGBColor(120, 120, 120);
        let mut chart = ChartBuilder::on(&upper)
            .margin(14)
            .margin_top(34)
            .margin_right(36)
            .x_label_area_size(46)
            .y_label_area_size(60)
            .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
        // Draw the labels of both axes here, as those of plotters are not at powers.
        let text =
            |horizontal, vertical| FONT.into_font().color(&RGBColor(60, 60, 60)).pos(Pos::new(horizontal, vertical));
        for (mark, label) in self.x.scale.labels(x) {
            chart.draw_series(LineSeries::new([(mark, y.0), (mark, y.1)], grey.mix(0.15)))?;
            let (left, bottom) = chart.backend_coord(&(mark, y.0));
            upper.draw_text(&label, &text(HPos::Center, VPos::Top), (left, bottom + 6))?;
        }
        for (mark, label) in self.y.scale.labels(y) {
            chart.draw_series(LineSeries::new([(x.0, mark), (x.1, mark)], grey.mix(0.15)))?;
            let (left, bottom) = chart.backend_coord(&(x.0, mark));
            upper.draw_text(&label, &text(HPos::Right, VPos::Center), (left - 8, bottom))?;
        }
        chart.configure_mesh().disable_mesh().x_labels(0).y_labels(0).draw()?;
        let (top, right) = (chart.backend_coord(&(x.0, y.1)), chart.backend_coord(&(x.1, y.0)));
        let middle = (top.0 + right.0) / 2;
        upper.draw_text(self.x.title, &text(HPos::Center, VPos::Bottom), (middle, 396))?;
        upper.draw_text(self.y.title, &text(HPos::Left, VPos::Bottom), (10, top.1 - 8))?;
        let (mut ours, mut references) = (0, 0);
        for (number, (line, points)) in self.lines.iter().zip(&placed).enumerate() {
            let of_kind = if line.is_reference { &mut references } else { &mut ours };
            let colour = colour(*of_kind, line.is_reference);
            *of_kind += 1;
            let stroke = colour.stroke_width(2);
            match line.is_reference {
                true => drop(chart.draw_series(DashedLineSeries::new(points.iter().copied(), 7, 4, stroke))?),
                false => drop(chart.draw_series(LineSeries::new(points.iter().copied(), stroke))?),
            }
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            // Two names per row.
            let (left, top) = (64 + 340 * (number % 2) as i32, (ROW as usize * (number / 2)) as i32 + 8);
            legend.draw(&PathElement::new([(left, top), (left + 22, top)], colour.stroke_width(3)))?;
            legend.draw_text(&line.name, &text(HPos::Left, VPos::Center), (left + 30, top))?;
        }
        Ok(())
    }
}

impl Bars {
    /// Returns the length of the longest bar.
    fn most(&self) -> Option<f64> {
        self.bars.iter().map(|bar| bar.parts.iter().sum()).reduce(f64::max)
    }

    /// Returns the height of the legend.
    fn legend(&self) -> i32 {
        if self.parts.iter().all(|part| part.is_empty()) { 4 } else { 40 }
    }

    fn draw(&self, area: &Area) -> Drawn {
        let (width, _) = area.dim_in_pixel();
        self.draw_at(area, (14, self.legend()), width as i32 - 28, 40, 15)
    }

    /// Draws the legend above `top`, and the bars below it, each `row` pixels high.
    fn draw_at(&self, area: &Area, (left, top): (i32, i32), width: i32, row: i32, font: u32) -> Drawn {
        let text = |horizontal| {
            ("sans-serif", font).into_font().color(&RGBColor(40, 40, 40)).pos(Pos::new(horizontal, VPos::Center))
        };
        let names = width * 2 / 5;
        let room = width - names - 5 * font as i32;
        let most = self.most().unwrap_or(1.0).max(1e-9);
        let mut at = left + names;
        for (part, name) in self.parts.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let side = font as i32 - 2;
            area.draw(&Rectangle::new([(at, top - 26), (at + side, top - 26 + side)], shade(part, false).filled()))?;
            area.draw_text(name, &text(HPos::Left), (at + side + 6, top - 26 + side / 2))?;
            at += side + 6 + (name.chars().count() as i32 + 2) * font as i32 * 6 / 10;
        }
        for (number, bar) in self.bars.iter().enumerate() {
            let middle = top + row * number as i32 + row / 2;
            area.draw_text(&bar.name, &text(HPos::Right), (left + names - 10, middle))?;
            let mut from = f64::from(left + names);
            for (part, value) in bar.parts.iter().enumerate() {
                let to = from + value / most * f64::from(room);
                let corners = [(from as i32, middle - row * 3 / 10), (to as i32, middle + row * 3 / 10)];
                area.draw(&Rectangle::new(corners, shade(part, bar.is_reference).filled()))?;
                from = to;
            }
            let sum: f64 = bar.parts.iter().sum();
            let decimals = if sum < 99.95 { decimals(sum.max(0.001)) + 1 } else { 0 };
            area.draw_text(&format!("{sum:.decimals$}"), &text(HPos::Left), (from as i32 + 8, middle))?;
        }
        let below = top + row * self.bars.len() as i32 + row / 2;
        area.draw_text(self.unit, &text(HPos::Left), (left + names, below))?;
        Ok(())
    }
}

/// Returns the card of a report, 1200 by 630 pixels: a title, bars, and lines of text below them.
pub fn card(title: &str, bars: &Bars, below: &[String]) -> Option<String> {
    let mut svg = String::new();
    let mut draw = || -> Drawn {
        let area = SVGBackend::with_string(&mut svg, (1200, 630)).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Rectangle::new([(0, 0), (1200, 12)], colour(0, false).filled()))?;
        area.draw_text("linerate", &("sans-serif", 60).into_font().color(&colour(0, false)), (60, 50))?;
        area.draw_text(title, &("sans-serif", 30).into_font().color(&RGBColor(40, 40, 40)), (60, 126))?;
        bars.draw_at(&area, (60, 210), 1080, 60, 24)?;
        for (number, line) in below.iter().enumerate() {
            let at = 630 - 34 * (below.len() - number) as i32;
            area.draw_text(line, &("sans-serif", 22).into_font().color(&RGBColor(90, 90, 90)), (60, at - 10))?;
        }
        Ok(area.present()?)
    };
    draw().is_ok().then_some(svg)
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
        assert!(card("a title", &bars(vec![1.0]), &["a machine".to_string()]).unwrap().contains("a machine"));
    }
}
