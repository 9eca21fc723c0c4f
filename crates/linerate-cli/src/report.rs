//! The results of `bench` and `rfc2544`: tables, charts, and the page that shows them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::chart::{self, Bars, Below, Chart};
use crate::error::missing;
use crate::profile::cycles_in;
use crate::rates::scaled;
use crate::show::print;
use crate::terminal::note;

/// One experiment's result.
#[derive(Default)]
pub struct Section {
    /// Its name on the command line and in file names.
    pub name: &'static str,
    /// Its title, with the part of the paper that it reproduces.
    pub title: &'static str,
    /// Which comparison with the published figures is valid.
    pub compares: String,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
    /// Disturbances of the measurement.
    pub warnings: Vec<String>,
    pub chart: Option<Chart>,
    /// The bars of the picture that summarizes the report.
    pub card: Option<Bars>,
    /// Why nothing was measured. The page lists such sections at the end.
    pub missing: Option<String>,
}

/// A cell of a table.
#[derive(Clone)]
pub enum Cell {
    Text(String),
    /// A number with this many decimals.
    Number(f64, usize),
    /// Packets per second; in JSON and CSV a number, otherwise with a prefix: 14.88M.
    Rate(f64),
    /// Not measured, or not published.
    Nothing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_string())
    }
}

/// Returns a cell for a number that may not have been measured.
pub fn number(value: Option<f64>, digits: usize) -> Cell {
    value.map_or(Cell::Nothing, |value| Cell::Number(value, digits))
}

/// Returns a cell for a rate in packets per second that may not have been measured.
pub fn rate(value: Option<f64>) -> Cell {
    value.map_or(Cell::Nothing, Cell::Rate)
}

/// Returns a rate; `None` if nothing moved, as then nothing was measured.
pub fn positive(value: f64) -> Option<f64> {
    Some(value).filter(|&value| value > 0.0)
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(text) => f.write_str(text),
            Cell::Number(value, digits) => write!(f, "{value:.digits$}"),
            Cell::Rate(value) => f.write_str(&scaled(value / 1e6)),
            Cell::Nothing => f.write_str("-"),
        }
    }
}

/// Returns a rate with three decimals, which distinguish a packet in minutes from none.
fn in_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Cell {
    fn csv(&self) -> String {
        match self {
            Cell::Rate(value) => in_thousandths(*value).to_string(),
            cell => cell.to_string(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Number(value, 0) if *value >= 0.0 => json!(value.round() as u64),
            // As printed: more digits would be meaningless.
            Cell::Number(..) => self.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value)),
            Cell::Rate(value) => json!(in_thousandths(*value)),
            Cell::Nothing => Value::Null,
        }
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
        if let Some(why) = &self.missing {
            return text + &format!("  not measured: {why}\n");
        }
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
        self.rows.iter().for_each(|row| csv += &line(row.iter().map(Cell::csv).collect()));
        csv
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row).map(|(column, cell)| (column.to_string(), cell.json()));
            Value::Object(cells.collect())
        };
        json!({
            "name": self.name, "title": self.title, "compares": self.compares, "missing": self.missing,
            "warnings": self.warnings, "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn html(&self) -> String {
        let mut html = format!("<section id=\"{}\">\n<h2>{}</h2>\n", self.name, escaped(self.title));
        if let Some(svg) = self.chart.as_ref().and_then(Chart::svg) {
            html += &format!("<figure>{svg}</figure>\n");
        }
        html += &format!("<p>{}</p>\n<div class=\"table\"><table><tr>", escaped(&self.compares));
        self.columns.iter().for_each(|column| html += &format!("<th>{}</th>", escaped(column)));
        html += "</tr>\n";
        for row in &self.rows {
            html += "<tr>";
            row.iter().for_each(|cell| html += &format!("<td>{}</td>", escaped(&cell.to_string())));
            html += "</tr>\n";
        }
        html += "</table></div>\n";
        self.warnings.iter().for_each(|warning| html += &paragraph_of(warning));
        html + "</section>\n"
    }
}

/// Returns the paragraph of a disturbance.
fn paragraph_of(warning: &str) -> String {
    format!("<p class=\"warning\">Note: {}.</p>\n", escaped(warning))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// All sections, and the machine that they were measured on.
pub struct Report {
    command: &'static str,
    folder: PathBuf,
    /// How the sections were measured, for the page.
    about: String,
    machine: String,
    date: String,
    ports: Vec<String>,
    sections: Vec<Section>,
    /// Disturbances of all sections.
    warnings: Vec<String>,
    /// The part that Ctrl-C interrupted.
    interrupted: Option<String>,
    /// The picture that summarizes the report.
    card: Option<String>,
}

impl Report {
    /// Begins the report of a command in a folder. `about` is HTML that describes on the page how it was measured.
    ///
    /// # Errors
    /// The command's exit code if files cannot be written there.
    pub fn new(command: &'static str, ports: &[String], about: String, folder: &Path) -> Result<Report, ExitCode> {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let (folder, machine, ports) = (folder.to_path_buf(), machine(), ports.to_vec());
        let (sections, warnings, interrupted, card) = (Vec::new(), Vec::new(), None, None);
        let report = Report { command, folder, about, machine, date, ports, sections, warnings, interrupted, card };
        report.prepare().map_err(|error| report.unwritable(&error))?;
        if cfg!(not(feature = "charts")) {
            note(&format!("note: the report has no pictures: {}", missing("charts")));
        }
        Ok(report)
    }

    /// Writes all files, and prints the path of the page, or the report as JSON.
    ///
    /// # Errors
    /// The command's exit code if the files cannot be written.
    pub fn finish(&self, is_json: bool) -> Result<(), ExitCode> {
        self.write().map_err(|error| self.unwritable(&error))?;
        match is_json {
            true => print(&format!("{}\n", self.json())),
            false => print(&format!("{}\n", self.folder.join("index.html").display())),
        }
        Ok(())
    }

    fn unwritable(&self, error: &io::Error) -> ExitCode {
        let folder = self.folder.display();
        note(&format!("linerate: cannot write to {folder}: {error}; choose another folder with --out"));
        ExitCode::FAILURE
    }

    /// Creates a picture that summarizes the report and can be shared: bars below a title, and above the state of the
    /// machine: `busy` lists what disturbed the measurement.
    pub fn sum_up(&mut self, title: &str, bars: &Bars, about: &str, busy: &[String]) {
        let plain = |text: String| Below { text, is_warning: false };
        let mut below = vec![
            plain(about.to_string()),
            plain(self.machine.clone()),
            plain(format!("linerate {}, {}", env!("CARGO_PKG_VERSION"), self.date)),
        ];
        below.push(match busy {
            [] => plain("The machine was quiet: no thread waited for a processor.".to_string()),
            busy => Below { text: format!("Busy machine: {}.", busy.join("; ")), is_warning: true },
        });
        self.card = chart::card(title, bars, &below);
    }

    pub fn add(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// Adds a disturbance of all sections.
    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Marks the report as interrupted in this part.
    pub fn interrupted_in(&mut self, part: String) {
        self.interrupted = Some(part);
    }

    /// Returns the part in which the report was interrupted.
    pub fn interrupted(&self) -> Option<&str> {
        self.interrupted.as_deref()
    }

    fn json(&self) -> Value {
        json!({"summary": {
            "command": self.command, "machine": self.machine, "date": self.date, "ports": self.ports,
            "interrupted": self.interrupted, "warnings": self.warnings,
            "experiments": self.sections.iter().map(Section::json).collect::<Vec<_>>(),
        }})
    }

    /// Creates the folder of the report, and checks that files can be written there before anything is measured.
    fn prepare(&self) -> io::Result<()> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder)?;
        let earlier = folder.join(format!("{}.json", self.command));
        if earlier.try_exists()? {
            std::fs::File::options().append(true).open(earlier)?;
        }
        // On a full disk, files can be created but not written.
        let probe = folder.join(format!(".{}.{}", self.command, std::process::id()));
        let written = std::fs::write(&probe, [0; 4096]);
        let removed = std::fs::remove_file(&probe);
        written.and(removed)
    }

    /// Writes all files.
    fn write(&self) -> io::Result<()> {
        let write = |name: String, text: &str| std::fs::write(self.folder.join(name), text);
        if let Some(card) = &self.card {
            write("share.svg".to_string(), card)?;
        }
        for section in self.sections.iter().filter(|section| section.missing.is_none()) {
            write(format!("{}.csv", section.name), &section.csv())?;
            if let Some(svg) = section.chart.as_ref().and_then(Chart::svg) {
                write(format!("{}.svg", section.name), &svg)?;
            }
        }
        write(format!("{}.json", self.command), &format!("{:#}\n", self.json()))?;
        write("index.html".to_string(), &self.html())
    }

    fn html(&self) -> String {
        let (ports, command) = (self.ports.join(", "), self.command);
        let interrupted = self.interrupted.as_ref().map_or(String::new(), |part| {
            format!("<p class=\"warning\">Interrupted in {part}: that and what follows are missing.</p>\n")
        });
        let warnings: String = self.warnings.iter().map(|warning| paragraph_of(warning)).collect();
        let (missing, shown): (Vec<_>, Vec<_>) = self.sections.iter().partition(|section| section.missing.is_some());
        let contents: String = shown
            .iter()
            .map(|section| format!("<li><a href=\"#{}\">{}</a></li>", section.name, escaped(section.title)))
            .collect();
        let sections: String = shown.iter().map(|section| section.html()).collect();
        let reasons: String = missing
            .iter()
            .map(|section| {
                let why = section.missing.as_deref().unwrap_or_default();
                format!("<li>{}: {}</li>", escaped(section.title), escaped(why))
            })
            .collect();
        let reasons = match reasons.as_str() {
            "" => String::new(),
            _ => format!("<section id=\"missing\">\n<h2>Not measured here</h2>\n<ul>{reasons}</ul>\n</section>\n"),
        };
        let card = self.card.as_ref().map_or(String::new(), |card| format!("<figure>{card}</figure>\n"));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>linerate {command}</title>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>{STYLE}</style></head>\n\
             <body><h1>linerate {command}</h1>\n<p>{}, {}; {}; {}</p>\n{interrupted}{warnings}{card}\
             <nav><ul>{contents}</ul></nav>\n{sections}{reasons}</body></html>\n",
            escaped(&self.machine),
            escaped(&self.date),
            escaped(&ports),
            self.about,
        )
    }
}

/// The page's style. It is readable on a phone, where wide tables scroll.
const STYLE: &str = "\
    body { font: 16px/1.5 system-ui, sans-serif; max-width: 860px; margin: 2em auto; padding: 0 1em; color: #222 }\n\
    h1, h2 { line-height: 1.2 } section { margin: 3em 0; border-top: 1px solid #ddd }\n\
    figure { margin: 1em 0 } svg { width: 100%; height: auto }\n\
    .table { overflow-x: auto } table { border-collapse: collapse } td { white-space: nowrap }\n\
    th, td { padding: 3px 12px; text-align: right; border-bottom: 1px solid #ddd }\n\
    th { vertical-align: bottom; color: #555; font-weight: 600 }\n\
    th:first-child, td:first-child { text-align: left; padding-left: 0 } .warning { color: #a00 }\n";

/// Returns the processor model, the number of processors, the TSC frequency, and the kernel.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("an unknown processor", |(_, model)| model);
    let ghz = cycles_in(Duration::from_secs(1)) as f64 / 1e9;
    format!("{model}, {processors} processors, {ghz:.2} GHz (TSC), Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// People read rates with a prefix; programs read numbers.
    #[test]
    fn small_rates_are_readable() {
        let rows = vec![vec![Cell::Rate(20_000.4), Cell::Rate(0.5)], vec![Cell::Rate(14_880_952.0), Cell::Nothing]];
        let section = Section { name: "rates", columns: vec!["sent", "arrived"], rows, ..Section::default() };
        assert_eq!(section.text(), "\n\n    sent  arrived\n     20k      0.5\n  14.88M        -\n");
        assert_eq!(section.csv(), "sent,arrived\n20000.4,0.5\n14880952,-\n");
        assert_eq!(section.json()["rows"][0], json!({"sent": 20_000.4, "arrived": 0.5}));
    }
}
