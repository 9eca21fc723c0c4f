//! The program that runs for each finished file (`--file-command`).

use std::collections::VecDeque;
use std::io::stderr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};

/// The most programs that run at the same time; later files wait.
const MOST: usize = 8;
/// How long the end of a capture waits for programs.
const LONGEST_END: Duration = Duration::from_secs(60);
/// How often it checks whether they have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The lowest priority, so that the capture is not disturbed.
const NICE: i32 = 19;

/// A program, and the files that it was or will be started for.
#[derive(Default)]
pub struct FileCommands {
    program: Option<PathBuf>,
    waiting: VecDeque<PathBuf>,
    running: Vec<(PathBuf, Child)>,
    /// Files for which it ended with exit code 0, and for which it did not.
    pub succeeded: u64,
    pub failed: u64,
    /// The first file for which it failed, with the reason.
    pub first_failure: Option<String>,
}

impl FileCommands {
    pub fn new(program: Option<PathBuf>) -> FileCommands {
        FileCommands { program, ..FileCommands::default() }
    }

    /// Returns whether there is a program, which may remove or change finished files.
    pub fn has_program(&self) -> bool {
        self.program.is_some()
    }

    /// Runs the program for a file, as soon as fewer than [`MOST`] are running.
    pub fn add(&mut self, file: PathBuf) {
        if self.has_program() {
            self.waiting.push_back(file);
            self.advance();
        }
    }

    /// Counts programs that have ended, and starts others for waiting files.
    pub fn advance(&mut self) {
        let Some(program) = &self.program else { return };
        for (file, mut child) in std::mem::take(&mut self.running) {
            match child.try_wait() {
                Ok(None) => self.running.push((file, child)),
                Ok(Some(status)) if status.success() => self.succeeded += 1,
                Ok(Some(status)) => fail(&mut self.failed, &mut self.first_failure, &file, &status.to_string()),
                Err(error) => fail(&mut self.failed, &mut self.first_failure, &file, &error.to_string()),
            }
        }
        while self.running.len() < MOST
            && let Some(file) = self.waiting.pop_front()
        {
            // Standard output may be the capture's JSON. Ctrl-C does not end it half way, as its group is another.
            let output = stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
            let mut command = Command::new(program);
            match command.arg(&file).stdin(Stdio::null()).stdout(output).process_group(0).spawn() {
                Ok(child) => {
                    // It may have ended already.
                    let _ = setpriority_process(Some(Pid::from_child(&child)), NICE);
                    self.running.push((file, child));
                }
                Err(error) => fail(&mut self.failed, &mut self.first_failure, &file, &error.to_string()),
            }
        }
    }

    /// Waits for all programs, for at most [`LONGEST_END`]. Returns the number of files whose program has not ended.
    pub fn finish(&mut self) -> usize {
        let begin = Instant::now();
        loop {
            self.advance();
            let left = self.running.len() + self.waiting.len();
            if left == 0 || begin.elapsed() > LONGEST_END {
                return left;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn fail(count: &mut u64, first: &mut Option<String>, file: &std::path::Path, why: &str) {
    *count += 1;
    first.get_or_insert_with(|| format!("{}: {why}", file.display()));
}
