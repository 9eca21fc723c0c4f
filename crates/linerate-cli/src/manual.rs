//! Manual pages (man-pages(7)) and shell completions, generated from the command line's grammar.

use std::fs::create_dir_all;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::show::print;
use crate::terminal::note;

/// Writes `linerate.1` and a page for each command into a folder.
pub fn write_pages(grammar: Command, folder: &Path) -> ExitCode {
    match create_dir_all(folder).and_then(|()| clap_mangen::generate_to(grammar, folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = folder.display();
            note(&format!("linerate: {folder}: {error}\n  choose a writable folder: linerate man FOLDER"));
            ExitCode::FAILURE
        }
    }
}

/// Prints the completions for a shell.
pub fn print_completions(mut grammar: Command, shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut grammar, "linerate", &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
