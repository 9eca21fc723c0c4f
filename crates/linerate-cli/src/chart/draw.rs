//! Draws charts and cards as SVG. All have a view box, so that they scale to any width, and every text is inside it.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Bars, Below, Chart, Lines, Scale, decimals};

/// The width of a chart.
const WIDTH: u32 = 760;
/// The margin of bars.
const MARGIN: i32 = 14;
/// The height of a legend's line.
const ROW: u32 = 22;
const FONT: (&str, u32) = ("sans-serif", 15);
/// The size of a card, which is higher if its texts need more lines. Networks show this size next to a link.
const CARD: (u32, u32) = (1200, 630);
/// The room for a character, as a part of the font's size. plotters writes sizes divided by 1.24, and the mean character
/// of common fonts needs up to 0.6 of the written size.
const CHARACTER: f64 = 0.52;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Drawing into a string fails only if plotters rejects the chart.
type Failed = Box<dyn std::error::Error>;

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

/// Breaks a text into lines that need at most `room` pixels.
fn wrapped(text: &str, font: u32, room: i32) -> Vec<String> {
    let most = (f64::from(room) / (f64::from(font) * CHARACTER)) as usize;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        match line.chars().count() + 1 + word.chars().count() {
            _ if line.is_empty() => line.push_str(word),
            needed if needed <= most => *line += &format!(" {word}"),
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// Returns the distance of two lines of text.
fn line_height(font: u32) -> i32 {
    font as i32 * 4 / 3
}

impl Chart {
    /// Returns the chart as SVG; `None` if it has no data.
    pub fn svg(&self) -> Option<String> {
        let mut svg = String::new();
        let height = match self {
            Chart::Lines(Lines { lines, .. }) => 400 + ROW * (lines.len() as u32).div_ceil(2),
            Chart::Bars(bars) => (bars.height(WIDTH as i32 - 2 * MARGIN, FONT.1) + 2 * MARGIN) as u32,
        };
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            area.fill(&WHITE).ok()?;
            match self {
                Chart::Lines(lines) => lines.draw(&area).ok()?,
                Chart::Bars(bars) if bars.most()? > 0.0 => {
                    bars.draw(&area, (MARGIN, MARGIN), WIDTH as i32 - 2 * MARGIN, FONT.1).ok()?;
                }
                Chart::Bars(_) => return None,
            }
            area.present().ok()?;
        }
        Some(svg)
    }
}

impl Lines {
    fn draw(&self, area: &Area) -> Result<(), Failed> {
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

    /// Returns the parts that have a name.
    fn named(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.parts.iter().copied().enumerate().filter(|(_, name)| !name.is_empty())
    }

    /// Returns the height of the bars, with their names and the legend.
    fn height(&self, width: i32, font: u32) -> i32 {
        let names = self.bars.iter().map(|bar| wrapped(&bar.name, font, width).len() as i32);
        let lines = names.sum::<i32>() + wrapped(self.unit, font, width).len() as i32;
        // A bar, and the legend, need one and a half lines.
        let spaced = self.bars.len() as i32 + i32::from(self.named().next().is_some());
        (lines + spaced) * line_height(font) + spaced * (line_height(font) / 2)
    }

    /// Draws the legend, and below it the bars, each with its name above it.
    fn draw(&self, area: &Area, (left, top): (i32, i32), width: i32, font: u32) -> Result<(), Failed> {
        let text = |horizontal| {
            ("sans-serif", font).into_font().color(&RGBColor(40, 40, 40)).pos(Pos::new(horizontal, VPos::Center))
        };
        let (line, side) = (line_height(font), font as i32 - 2);
        // The sum follows each bar.
        let room = width - 5 * font as i32;
        let most = self.most().unwrap_or(1.0).max(1e-9);
        let (mut at, mut middle) = (left, top + line / 2);
        for (part, name) in self.named() {
            let corners = [(at, middle - side / 2), (at + side, middle + side / 2)];
            area.draw(&Rectangle::new(corners, shade(part, false).filled()))?;
            area.draw_text(name, &text(HPos::Left), (at + side + 6, middle))?;
            at += side + 6 + ((name.chars().count() + 2) as f64 * f64::from(font) * CHARACTER) as i32;
        }
        if at > left {
            middle += line + line / 2;
        }
        for bar in &self.bars {
            for name in wrapped(&bar.name, font, width) {
                area.draw_text(&name, &text(HPos::Left), (left, middle))?;
                middle += line;
            }
            let mut from = f64::from(left);
            for (part, value) in bar.parts.iter().enumerate() {
                let to = from + value / most * f64::from(room);
                let corners = [(from as i32, middle - side / 2), (to as i32, middle + side / 2)];
                area.draw(&Rectangle::new(corners, shade(part, bar.is_reference).filled()))?;
                from = to;
            }
            let sum: f64 = bar.parts.iter().sum();
            let decimals = if sum < 99.95 { decimals(sum.max(0.001)) + 1 } else { 0 };
            area.draw_text(&format!("{sum:.decimals$}"), &text(HPos::Left), (from as i32 + 8, middle))?;
            middle += line + line / 2;
        }
        for unit in wrapped(self.unit, font, width) {
            area.draw_text(&unit, &text(HPos::Left), (left, middle))?;
            middle += line;
        }
        Ok(())
    }
}

/// Returns the card of a report: a title, bars, and lines of text below them. Its fonts can still be read on a phone.
pub fn card(title: &str, bars: &Bars, below: &[Below]) -> Option<String> {
    const LEFT: i32 = 60;
    const TITLE: u32 = 40;
    const TEXT: u32 = 30;
    let width = CARD.0 as i32 - 2 * LEFT;
    let title = wrapped(title, TITLE, width);
    let below: Vec<_> = below
        .iter()
        .flat_map(|line| wrapped(&line.text, TEXT, width).into_iter().map(move |text| (text, line)))
        .collect();
    let of_title = title.len() as i32 * line_height(TITLE);
    let (of_bars, of_below) = (bars.height(width, TEXT), below.len() as i32 * line_height(TEXT));
    // The name and the title, the bars, and the texts, with space between them.
    let bars_at = 112 + of_title + 24;
    let needed = bars_at + of_bars + 24 + of_below + 24;
    let height = needed.max(CARD.1 as i32);
    let mut svg = String::new();
    let mut draw = || -> Result<(), Failed> {
        let area = SVGBackend::with_string(&mut svg, (CARD.0, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Rectangle::new([(0, 0), (CARD.0 as i32, 12)], colour(0, false).filled()))?;
        area.draw_text("linerate", &("sans-serif", 60).into_font().color(&colour(0, false)), (LEFT, 36))?;
        let text = |font: u32, colour: RGBColor| ("sans-serif", font).into_font().color(&colour);
        for (number, line) in (0..).zip(&title) {
            let style = text(TITLE, RGBColor(40, 40, 40));
            area.draw_text(line, &style, (LEFT, 112 + number * line_height(TITLE)))?;
        }
        bars.draw(&area, (LEFT, bars_at), width, TEXT)?;
        for (number, (line, Below { is_warning, .. })) in (0..).zip(&below) {
            let style = text(TEXT, if *is_warning { RGBColor(170, 0, 0) } else { RGBColor(90, 90, 90) });
            area.draw_text(line, &style, (LEFT, height - 24 - of_below + number * line_height(TEXT)))?;
        }
        Ok(area.present()?)
    };
    draw().is_ok().then_some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Bar, Line};

    /// Returns the texts that are not inside the view box of a picture: their widths are estimated, as they depend on
    /// the viewer's fonts.
    fn outside(svg: &str) -> Vec<String> {
        let attribute = |element: &str, name: &str| {
            let rest = element.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{name}: {element}")).1;
            rest.split('"').next().unwrap().to_string()
        };
        let size: Vec<f64> = attribute(svg, "viewBox").split(' ').map(|number| number.parse().unwrap()).collect();
        let mut found = Vec::new();
        for element in svg.split("<text").skip(1) {
            let number = |name: &str| attribute(element, name).parse::<f64>().unwrap();
            let text = element.split_once(">").unwrap().1.split("</text>").next().unwrap().trim().to_string();
            let (x, y, font) = (number("x"), number("y"), number("font-size"));
            let width = text.chars().count() as f64 * font * 0.6;
            let left = match attribute(element, "text-anchor").as_str() {
                "start" => x,
                "middle" => x - width / 2.0,
                _ => x - width,
            };
            if left < 0.0 || left + width > size[2] || y < 0.0 || y + font > size[3] + font / 2.0 {
                found.push(text);
            }
        }
        assert!(svg.contains("<text"), "{svg}");
        found
    }

    #[test]
    fn texts_are_inside_the_picture() {
        let long = "a name that no machine has, and that needs more room than a line of the picture has at this size: \
                    it is broken into lines";
        let bars = Bars {
            unit: "times the cycles of something that takes long to describe, which is done here for the test",
            parts: vec!["receive", "forward", "send", "memory"],
            bars: vec![
                Bar::ours(long, vec![1.0, 2.0, 3.0, 4.0]),
                Bar::reference("short", vec![99999.0, 0.0, 0.0, 0.0]),
            ],
        };
        let below =
            |count| -> Vec<Below> { (0..count).map(|_| Below { text: long.to_string(), is_warning: true }).collect() };
        for count in [0, 4, 12] {
            let svg = card(long, &bars, &below(count)).unwrap();
            assert_eq!(outside(&svg), [""; 0], "{count}");
            assert_eq!(svg.matches("memory").count(), 1);
        }
        assert!(card("", &bars, &[]).unwrap().contains("viewBox=\"0 0 1200 630\""));
        assert_eq!(outside(&Chart::Bars(bars).svg().unwrap()), [""; 0]);
        let line = |number: usize| Line::ours(format!("{} {number}", &long[..30]), vec![(1.0, 0.001), (256.0, 5e6)]);
        let lines = Chart::Lines(Lines {
            x: Axis { title: "packets of a batch", scale: Scale::Doubling },
            y: Axis { title: "cycles per packet", scale: Scale::Decades },
            lines: (0..5).map(line).collect(),
        });
        assert_eq!(outside(&lines.svg().unwrap()), [""; 0]);
        // A text that is cut off is found.
        let wide = r#"<svg viewBox="0 0 100 50"><text x="60" y="9" text-anchor="start" font-size="10">abcdefgh</text>"#;
        assert_eq!(outside(wide), ["abcdefgh"]);
    }
}
