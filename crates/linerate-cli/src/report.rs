//! The results of `bench` and `rfc2544`: tables, pictures, and the page that shows them.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use plotters::prelude::*;
use serde_json::{Value, json};

/// One experiment's result.
#[derive(Default)]
pub struct Section {
    /// Its name on the command line and in file names.
    pub name: &'static str,
    /// Its title, with the part of the paper that it repeats.
    pub title: &'static str,
    /// The comparison with the published figures that is valid.
    pub compares: String,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
    /// Disturbances of the measurement.
    pub warnings: Vec<String>,
    pub plot: Option<Plot>,
}

/// A cell of a table.
#[derive(Clone)]
pub enum Cell {
    Text(String),
    /// A number with this many digits after the point.
    Number(f64, usize),
    /// Not measured, or not published.
    Nothing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_string())
    }
}

/// Returns a cell with a number that may not have been measured.
pub fn number(value: Option<f64>, digits: usize) -> Cell {
    value.map_or(Cell::Nothing, |value| Cell::Number(value, digits))
}

/// Returns a rate; nothing that moves is nothing that was measured.
pub fn positive(value: f64) -> Option<f64> {
    Some(value).filter(|&value| value > 0.0)
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(text) => f.write_str(text),
            Cell::Number(value, digits) => write!(f, "{value:.digits$}"),
            Cell::Nothing => f.write_str("-"),
        }
    }
}

impl Cell {
    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Number(value, 0) if *value >= 0.0 => json!(value.round() as u64),
            // As printed: more digits would be meaningless.
            Cell::Number(..) => self.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value)),
            Cell::Nothing => Value::Null,
        }
    }
}

/// A picture: lines over an axis of powers of two.
pub struct Plot {
    pub x: &'static str,
    pub y: &'static str,
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot {
    /// Returns the picture as SVG; `None` if there are no points.
    fn svg(&self, title: &str) -> Option<String> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (first, last) =
            (points().map(|point| point.0).reduce(f64::min)?, points().map(|point| point.0).reduce(f64::max)?);
        let top = points().map(|point| point.1).reduce(f64::max)? * 1.1;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (720, 400)).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .caption(title, ("sans-serif", 16))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(56)
                .build_cartesian_2d((first..last.max(first + 1.0)).log_scale().base(2.0), 0.0..top.max(1e-9))
                .ok()?;
            chart
                .configure_mesh()
                .x_desc(self.x)
                .y_desc(self.y)
                .x_label_formatter(&|x| format!("{x:.0}"))
                .draw()
                .ok()?;
            for (index, (name, points)) in self.lines.iter().enumerate() {
                let colour = Palette99::pick(index).to_rgba();
                let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
                chart
                    .draw_series(line)
                    .ok()?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
            }
            let mut labels = chart.configure_series_labels();
            let labels = labels.position(SeriesLabelPosition::LowerRight).background_style(WHITE.mix(0.8));
            labels.border_style(BLACK.mix(0.3)).draw().ok()?;
            root.present().ok()?;
        }
        Some(svg)
    }
}

impl Section {
    /// Returns the section as text for a terminal.
    pub fn text(&self) -> String {
        let shown: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::to_string).collect()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = shown.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
                cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let mut text = format!("\n{}\n", self.title);
        let line = |cells: &mut dyn Iterator<Item = &str>| -> String {
            cells.zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect::<String>() + "\n"
        };
        text += &line(&mut self.columns.iter().copied());
        shown.iter().for_each(|row| text += &line(&mut row.iter().map(String::as_str)));
        self.warnings.iter().for_each(|warning| text += &format!("note: {warning}\n"));
        text
    }

    fn csv(&self) -> String {
        let quoted = |cell: &str| match cell.contains([',', '"']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_string(),
        };
        let line = |cells: Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n";
        let mut csv = line(self.columns.iter().map(ToString::to_string).collect());
        self.rows.iter().for_each(|row| csv += &line(row.iter().map(Cell::to_string).collect()));
        csv
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row).map(|(column, cell)| (column.to_string(), cell.json()));
            Value::Object(cells.collect())
        };
        json!({
            "name": self.name, "title": self.title, "compares": self.compares,
            "warnings": self.warnings, "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn html(&self) -> String {
        let mut html = format!("<h2 id=\"{}\">{}</h2>\n", self.name, escaped(self.title));
        if let Some(svg) = self.plot.as_ref().and_then(|plot| plot.svg(self.title)) {
            html += &svg;
        }
        html += "<table><tr>";
        self.columns.iter().for_each(|column| html += &format!("<th>{}</th>", escaped(column)));
        html += "</tr>\n";
        for row in &self.rows {
            html += "<tr>";
            row.iter().for_each(|cell| html += &format!("<td>{}</td>", escaped(&cell.to_string())));
            html += "</tr>\n";
        }
        html += "</table>\n";
        let warnings = self.warnings.iter();
        warnings.for_each(|warning| html += &format!("<p class=\"warning\">Note: {}.</p>\n", escaped(warning)));
        html += &format!("<p>{}</p>\n", escaped(&self.compares));
        html
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// All sections, and the machine that they were measured on.
pub struct Report {
    command: &'static str,
    /// How it was measured, for the page.
    about: String,
    machine: String,
    date: String,
    ports: [String; 2],
    sections: Vec<Section>,
    /// The part during which Ctrl-C came.
    interrupted: Option<String>,
}

impl Report {
    /// Begins the report of a command; `about` says on the page how it was measured, and is HTML.
    pub fn new(command: &'static str, ports: &[String; 2], about: String) -> Report {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Report {
            command,
            about,
            machine: machine(),
            date,
            ports: ports.clone(),
            sections: Vec::new(),
            interrupted: None,
        }
    }

    pub fn add(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// Marks the report as interrupted in this part.
    pub fn interrupted_in(&mut self, part: String) {
        self.interrupted = Some(part);
    }

    /// Returns the part in which the report was interrupted.
    pub fn interrupted(&self) -> Option<&str> {
        self.interrupted.as_deref()
    }

    pub fn json(&self) -> Value {
        json!({"summary": {
            "command": self.command, "machine": self.machine, "date": self.date, "ports": self.ports,
            "interrupted": self.interrupted,
            "experiments": self.sections.iter().map(Section::json).collect::<Vec<_>>(),
        }})
    }

    /// Creates the folder of a report, and checks that files can be written there, before anything is measured.
    pub fn prepare(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let file = folder.join(format!("{}.json", self.command));
        std::fs::File::options().append(true).create(true).open(file).map(drop)
    }

    /// Writes all files.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let write = |name: String, text: &str| std::fs::write(folder.join(name), text);
        for section in &self.sections {
            write(format!("{}.csv", section.name), &section.csv())?;
            if let Some(svg) = section.plot.as_ref().and_then(|plot| plot.svg(section.title)) {
                write(format!("{}.svg", section.name), &svg)?;
            }
        }
        write(format!("{}.json", self.command), &format!("{:#}\n", self.json()))?;
        write("index.html".to_string(), &self.html())
    }

    fn html(&self) -> String {
        let ([a, b], command) = (&self.ports, self.command);
        let interrupted = self.interrupted.as_ref().map_or(String::new(), |part| {
            format!("<p class=\"warning\">Interrupted in {part}: that and what follows are missing.</p>\n")
        });
        let contents: String = self
            .sections
            .iter()
            .map(|s| format!("<li><a href=\"#{}\">{}</a></li>", s.name, escaped(s.title)))
            .collect();
        let sections: String = self.sections.iter().map(Section::html).collect();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>linerate {command}</title>\n\
             <style>body {{ font: 16px/1.5 sans-serif; max-width: 760px; margin: 2em auto; padding: 0 1em }}\n\
             table {{ border-collapse: collapse }} th, td {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid \
             #ddd }}\n p {{ color: #333 }} .warning {{ color: #a00 }}</style></head>\n<body><h1>linerate {command}</h1>\n\
             <p>{}, {}; {} and {}; {}</p>\n{interrupted}<ul>{contents}</ul>\n{sections}</body></html>\n",
            escaped(&self.machine),
            escaped(&self.date),
            escaped(a),
            escaped(b),
            self.about,
        )
    }
}

/// Returns the processor, their number, and the kernel.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("an unknown processor", |(_, model)| model);
    format!("{model}, {processors} processors, Linux {}", kernel.trim())
}
