//! Manual pages (man-pages(7)) and shell completions, generated from the command line's grammar.

use std::fs::{self, create_dir_all};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use linerate::KINDS;

use crate::examples::{EXAMPLES, NAMES};
use crate::show::print;
use crate::terminal::note;

/// Columns of an example, so that a terminal with 80 columns shows it with its indentation.
const COLUMNS: usize = 70;

/// Writes `linerate.1` and a page for each command into a folder.
pub fn write_pages(grammar: Command, folder: &Path) -> ExitCode {
    let mut grammar = grammar.disable_help_subcommand(true);
    grammar.build();
    match create_dir_all(folder).and_then(|()| write_with_subcommands(&grammar, folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = folder.display();
            note(&format!("linerate: {folder}: {error}\n  choose a writable folder: linerate man FOLDER"));
            ExitCode::FAILURE
        }
    }
}

fn write_with_subcommands(command: &Command, folder: &Path) -> io::Result<()> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| write_with_subcommands(command, folder))?;
    // The end of the help is in the sections below.
    let command = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let page = Man::new(command.clone()).source(concat!("linerate ", env!("CARGO_PKG_VERSION"))).manual("linerate");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let mut sections = Roff::new();
    if command.get_name() == "ports" {
        add_kinds(&mut sections);
    }
    add_exit_status(&mut sections, &command);
    // The name of a subcommand's page is linerate-switch-list.
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    add_examples(&mut sections, &name.trim_start_matches("linerate-").replace('-', " "));
    add_see_also(&mut sections, &command);
    sections.to_writer(&mut text)?;
    fs::write(folder.join(page.get_filename()), text)
}

fn add_kinds(page: &mut Roff) {
    page.control("SH", ["PORT NAMES"]);
    page.text([roman("Options follow a ? and are separated by &. Quote names with ?, & or { for the shell.")]);
    for kind in KINDS {
        page.control("TP", []).text([bold(kind.example)]).text([roman(kind.summary)]);
        page.control("RS", []);
        for option in kind.options {
            page.control("TP", []).text([bold(option.to_string())]);
            let default = Some(option.default).filter(|default| !default.is_empty());
            let default = default.map_or(String::new(), |default| format!(" [default: {default}]"));
            page.text([roman(format!("{}{default}", option.help))]);
        }
        page.control("RE", []);
    }
    for (example, summary) in NAMES {
        page.control("TP", []).text([bold(example)]).text([roman(summary)]);
    }
}

/// Adds the exit codes, as in docs/wires.md.
fn add_exit_status(page: &mut Roff, command: &Command) {
    let failure = match command.get_name() {
        _ if command.get_arguments().any(|arg| arg.get_long() == Some("strict")) => {
            "Failure, lost or corrupted packets, or a driver that violated the datasheet. With --strict also a rate or \
             count that was not reached."
        }
        "sim" => "Failure, or a driver that violated the datasheet.",
        _ => "Failure.",
    };
    page.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in [
        ("0", "Success."),
        ("1", failure),
        ("2", "Wrong usage: an unknown option or name, a wrong value, or an interface or card that does not exist."),
        ("130", "Ended immediately, by a second Ctrl-C."),
    ] {
        page.control("TP", []).text([bold(code)]).text([roman(meaning)]);
    }
}

/// Adds the examples of a command, with their descriptions as the shell's comments.
fn add_examples(page: &mut Roff, name: &str) {
    let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == name) else { return };
    page.control("SH", ["EXAMPLES"]).control("EX", []);
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            page.control("sp", []);
        }
        let (line, description) = example.split_once("  #").unwrap_or((example, ""));
        if !description.is_empty() {
            page.text([roman(format!("#{description}"))]);
        }
        folded(line.trim_end()).into_iter().for_each(|line| _ = page.text([roman(line)]));
    }
    page.control("EE", []);
}

/// Splits a command line before options, so that its lines are short and a shell accepts them.
fn folded(command: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for (index, part) in command.split(" --").enumerate() {
        let part = if index == 0 { part.to_string() } else { format!(" --{part}") };
        let line = lines.last_mut().expect("it has a line from the beginning");
        match line.len() + part.len() > COLUMNS && !line.is_empty() {
            true => {
                line.push_str(" \\");
                lines.push(format!("   {part}"));
            }
            false => line.push_str(&part),
        }
    }
    lines
}

/// Returns the commands related to a command, and its page in `docs`.
fn related(name: &str) -> (&'static [&'static str], &'static str) {
    match name {
        "fwd" => (&["filter", "latency", "ports"], "wires.md"),
        "link" => (&["fwd", "latency"], "link.md"),
        "filter" => (&["capture", "fwd", "ports"], "wires.md"),
        "gen" => (&["ports", "replay", "sink"], "generate.md"),
        "replay" => (&["capture", "edit", "gen", "ports"], "replay.md"),
        "edit" => (&["capture", "replay"], "replay.md"),
        "sink" => (&["capture", "gen", "ports"], "wires.md"),
        "capture" => (&["extcap", "ports", "replay"], "capture.md"),
        "latency" => (&["bench", "ports", "rfc2544"], "bench.md"),
        "rfc2544" => (&["latency", "ports"], "bench.md"),
        "bench" => (&["latency", "rfc2544"], "bench.md"),
        "bind" => (&["ports", "unbind"], "cards.md"),
        "unbind" => (&["bind", "ports"], "cards.md"),
        "sim" => (&["ports", "vm"], "model.md"),
        "serve" => (&["ports", "switch"], "netmap.md"),
        "switch" | "list" | "attach" | "detach" | "create" | "destroy" => (&["ports", "serve"], "netmap.md"),
        "rule" | "add" | "remove" => (&["filter", "fwd", "sink"], "offloads.md"),
        "vm" => (&["ports", "sim"], "machines.md"),
        "extcap" => (&["capture"], "extcap.md"),
        "ports" => (&["bind", "fwd", "switch"], "wires.md"),
        "man" | "completions" => (&[], "packages.md"),
        _ => (&["ports"], "wires.md"),
    }
}

fn add_see_also(page: &mut Roff, command: &Command) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let parent = name.rsplit_once('-').map(|(parent, _)| parent.to_string());
    let (commands, docs) = related(command.get_name());
    let commands = commands.iter().map(|command| format!("linerate-{command}")).filter(|command| command != name);
    page.control("SH", ["SEE ALSO"]);
    let pages: Vec<String> = parent.into_iter().chain(commands).collect();
    for (index, name) in pages.iter().enumerate() {
        let comma = if index + 1 < pages.len() { "," } else { "" };
        page.text([bold(name.as_str()), roman(format!("(1){comma}"))]);
    }
    page.control("PP", []);
    page.text([roman(format!("docs/{docs} in the source, or in /usr/share/doc/linerate of the Debian package"))]);
}

/// Prints the completions for a shell.
pub fn print_completions(mut grammar: Command, shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut grammar, "linerate", &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
