//! The reset of the tested device, during a trial.

use std::io::stderr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::run::Moment;
use crate::terminal::note;

/// The longest time before the reset: some frames must have arrived by then.
const LONGEST_BEFORE: Duration = Duration::from_secs(5);
/// How long to wait for the command's end after the trial.
const LONGEST_AFTER: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Resets the device once, a quarter of the trial after its beginning: runs a command, or asks the user.
pub struct Reset<'a> {
    command: Option<&'a str>,
    trial: Duration,
    begin: Option<Instant>,
    is_done: bool,
    running: Option<Child>,
    failure: Option<String>,
    progress: ProgressBar,
}

impl<'a> Reset<'a> {
    pub fn new(command: Option<&'a str>, trial: Duration, progress: ProgressBar) -> Reset<'a> {
        Reset { command, trial, begin: None, is_done: false, running: None, failure: None, progress }
    }

    /// Resets the device, if it is time.
    pub fn see(&mut self, moment: &Moment) {
        // Frames must have arrived before the reset.
        let begin = match self.begin {
            None if moment.moved.packets == 0 => return,
            begin => *self.begin.insert(begin.unwrap_or_else(Instant::now)),
        };
        if begin.elapsed() < (self.trial / 4).min(LONGEST_BEFORE) || std::mem::replace(&mut self.is_done, true) {
            return;
        }
        let Some(text) = self.command else {
            let left = self.trial.saturating_sub(begin.elapsed()).as_secs_f64();
            self.progress.suspend(|| note(&format!("note: reset the device now; frames are sent for {left:.0} s")));
            return;
        };
        // Standard output may be the report as JSON.
        let output = stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = Command::new("sh");
        match command.args(["-c", text]).stdin(Stdio::null()).stdout(output).process_group(0).spawn() {
            Ok(child) => self.running = Some(child),
            Err(error) => self.failure = Some(format!("the reset command cannot be run: {error}")),
        }
    }

    /// Waits for the command's end after the trial, for at most [`LONGEST_AFTER`], and then ends it. Returns why it
    /// failed, if it did.
    pub fn finish(mut self) -> Option<String> {
        let Some(mut child) = self.running.take() else {
            return self.failure.or_else(|| (!self.is_done).then(|| "the trial ended before the reset".to_string()));
        };
        let begin = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return None,
                Ok(Some(status)) => return Some(format!("the reset command failed: {status}")),
                Ok(None) if begin.elapsed() < LONGEST_AFTER => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => {
                    // With the programs that it has started.
                    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                    let _ = child.wait();
                    let seconds = LONGEST_AFTER.as_secs();
                    return Some(format!(
                        "the reset command did not end within {seconds} s after the trial, and was killed"
                    ));
                }
                Err(error) => return Some(format!("the reset command cannot be waited for: {error}")),
            }
        }
    }
}
