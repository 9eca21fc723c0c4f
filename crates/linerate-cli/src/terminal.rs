//! Terminal output: messages on stderr, which are held back during the full-screen view.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write, stderr, stdin, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::unistd::{getpgrp, tcgetpgrp};
#[cfg(feature = "live")]
use ratatui::DefaultTerminal;
#[cfg(feature = "live")]
use ratatui::crossterm::{cursor::Show, execute};
use tracing_subscriber::fmt::MakeWriter;

/// The notes since the full screen was entered; `None` without full screen.
static HELD: Mutex<Option<Held>> = Mutex::new(None);

#[derive(Default)]
struct Held {
    notes: Vec<String>,
    /// The number of notes beyond [`MAX_HELD`].
    others: usize,
}

/// The most notes that are held.
const MAX_HELD: usize = 1000;

fn held() -> MutexGuard<'static, Option<Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes are not printed, as standard error is another program's.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints no notes from now on.
pub fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints a line on standard error; during the full screen, when it ends. A failure to write is ignored, as it cannot
/// be reported.
pub fn note(text: &str) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    if let Some(held) = &mut *held() {
        match held.notes.len() < MAX_HELD {
            // Repeated, as by a key that is held down.
            _ if held.notes.last().is_some_and(|last| last == text) => {}
            true => held.notes.push(text.to_string()),
            false => held.others += 1,
        }
        if stderr().is_terminal() {
            return;
        }
    }
    let _ = writeln!(stderr(), "{text}");
}

/// Prints why standard output cannot be written, and returns the exit code.
pub fn unwritable(why: &dyn Display) -> ExitCode {
    note(&format!("linerate: cannot write to standard output: {why}"));
    ExitCode::FAILURE
}

/// Returns the last notes, for the full screen, of at most `lines` lines together.
#[cfg(feature = "live")]
pub fn last_notes(lines: usize) -> Vec<String> {
    let held = held();
    let notes = held.iter().flat_map(|held| held.notes.iter().rev()).flat_map(|note| note.lines().rev());
    let mut last: Vec<String> = notes.take(lines).map(str::to_string).collect();
    last.reverse();
    last
}

/// Returns whether a full screen can be shown and keys can be read: this process is in the foreground, and the terminal
/// can move its cursor.
pub fn is_ours() -> bool {
    // In a process namespace, both may be 0: a group outside of it.
    let is_in_front = || tcgetpgrp(stdin()) == Ok(getpgrp());
    let can_move = || std::env::var("TERM").is_ok_and(|kind| !kind.is_empty() && kind != "dumb");
    stdin().is_terminal() && stdout().is_terminal() && is_in_front() && can_move()
}

/// Enters the full screen; a panic leaves it.
///
/// # Errors
/// The terminal cannot be written.
#[cfg(feature = "live")]
pub fn enter() -> io::Result<DefaultTerminal> {
    held().get_or_insert_default();
    ratatui::try_init().inspect_err(|_| leave())
}

/// Leaves the full screen, and prints the notes that were held back.
pub fn leave() {
    let Some(Held { notes, others }) = held().take() else { return };
    #[cfg(feature = "live")]
    {
        let _ = ratatui::try_restore();
        let _ = execute!(stdout(), Show);
    }
    if stderr().is_terminal() {
        notes.iter().for_each(|text| note(text));
        if others > 0 {
            note(&format!("note: {others} more notes were discarded"));
        }
    }
}

/// Writes messages of `tracing` as notes.
pub struct Notes;

impl<'a> MakeWriter<'a> for Notes {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

/// A message, which is printed when it is complete.
pub struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            note(String::from_utf8_lossy(&self.0).trim_end());
        }
    }
}
