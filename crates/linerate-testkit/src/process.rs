//! Programs that end with their test.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{Deadline, Timely, end_of, output_of, until};

/// Runs a command until it ends. Panics with all output if the exit code is not `code`.
#[track_caller]
pub fn expect(code: i32, command: &mut Command) -> Output {
    ended_with(code, command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// As [`expect`], but does not change the command's standard input, output and error.
#[track_caller]
pub fn ended_with(code: i32, command: &mut Command) -> Output {
    let output = output_of(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")));
    let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}:\n{text}");
    output
}

/// Returns output as text, for messages.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process. Dropping this value kills it.
pub struct Process {
    /// The process. Its standard input is open if it was piped.
    pub child: Child,
    out: BufReader<Timely<ChildStdout>>,
    err: BufReader<Timely<ChildStderr>>,
}

impl Process {
    /// Starts a program without standard input.
    #[track_caller]
    pub fn start(command: &mut Command) -> Process {
        Process::with_input(command, Stdio::null())
    }

    /// Starts a program with this standard input. A piped input stays open.
    #[track_caller]
    pub fn with_input(command: &mut Command, input: Stdio) -> Process {
        let piped = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let out = BufReader::new(Timely(child.stdout.take().expect("it is piped")));
        let err = BufReader::new(Timely(child.stderr.take().expect("it is piped")));
        Process { child, out, err }
    }

    /// Waits for the next line on standard output; returns an empty string at the end.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap_or_else(|e| panic!("a line of the program: {e}"));
        line.trim_end().to_string()
    }

    /// Waits for a line on standard output that contains `part`.
    #[track_caller]
    pub fn await_output(&mut self, part: &str) -> String {
        await_line(&mut self.out, part)
    }

    /// Waits for a line on standard error that contains `part`.
    #[track_caller]
    pub fn await_error(&mut self, part: &str) -> String {
        await_line(&mut self.err, part)
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) -> bool {
        kill_process(Pid::from_child(&self.child), signal).is_ok()
    }

    /// Sends SIGINT (Ctrl-C), unless the process has ended.
    pub fn stop(&self) {
        self.signal(Signal::INT);
    }

    /// Stops the process and waits until none of its threads runs; or continues it if `stops` is false.
    #[track_caller]
    pub fn pause(&self, stops: bool) {
        assert!(self.signal(if stops { Signal::STOP } else { Signal::CONT }));
        if stops {
            self.wait_for_state('T');
        }
    }

    /// Waits until all threads of the program sleep at the same time, that is, until it does not poll.
    #[track_caller]
    pub fn wait_for_sleep(&self) {
        self.wait_for_state('S');
    }

    /// Waits until all threads of the program have this state (proc_pid_stat(5)) at the same time.
    #[track_caller]
    fn wait_for_state(&self, state: char) {
        let folder = format!("/proc/{}/task", self.id());
        until(format_args!("all threads of the program to be in state {state}"), || {
            std::fs::read_dir(&folder).unwrap().flatten().all(|thread| is_in_state(&thread.path(), state))
        });
    }

    /// Waits until the program's first thread sleeps.
    #[track_caller]
    pub fn wait_for_main_sleep(&self) {
        let folder = format!("/proc/{}", self.id());
        until("the program's first thread to sleep", || is_in_state(Path::new(&folder), 'S'));
    }

    /// Waits until the program has this many threads.
    #[track_caller]
    pub fn wait_for_threads(&self, count: usize) {
        until(format_args!("{count} threads of the program"), || self.proc_count("task") >= count);
    }

    /// Returns the number of entries of the folder `what` in the process's `/proc` folder, or the number of lines if
    /// `what` is a file.
    pub fn proc_count(&self, what: &str) -> usize {
        let path = Path::new("/proc").join(self.id().to_string()).join(what);
        match path.is_dir() {
            true => std::fs::read_dir(path).unwrap().count(),
            false => std::fs::read_to_string(path).unwrap().lines().count(),
        }
    }

    /// Returns whether any thread is in poll(2) now.
    pub fn is_in_poll(&self) -> bool {
        self.threads().into_iter().any(|(_, call)| is_one_of(&call, &POLL))
    }

    /// Returns whether all threads that move packets are in one of these system calls.
    pub fn are_in(&self, calls: &[libc::c_long]) -> bool {
        let threads = self.threads();
        let mut moving = threads.iter().filter(|(name, _)| name.starts_with("linerate ")).peekable();
        moving.peek().is_some() && moving.all(|(_, call)| is_one_of(call, calls))
    }

    /// Returns the names of the process's threads, and their current system calls (proc_pid_syscall(5)).
    fn threads(&self) -> Vec<(String, String)> {
        let tasks = Path::new("/proc").join(self.id().to_string()).join("task");
        let threads = std::fs::read_dir(tasks).unwrap().flatten();
        let read = |thread: &std::fs::DirEntry, file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
        threads.filter_map(|thread| Some((read(&thread, "comm")?, read(&thread, "syscall")?))).collect()
    }

    /// Returns the processor time of all threads, in user space and in the kernel, in 1/100 s.
    pub fn times(&self) -> (u64, u64) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse().unwrap(), fields[12].parse().unwrap())
    }

    /// Sends SIGINT (Ctrl-C), waits for the process's end, and returns the exit code and the remaining output.
    #[track_caller]
    pub fn interrupt(self) -> (Option<i32>, String) {
        self.stop();
        self.ended()
    }

    /// Waits for the process's end, and returns the exit code and the remaining output.
    #[track_caller]
    pub fn ended(mut self) -> (Option<i32>, String) {
        let rest = self.rest();
        (end_of(&mut self.child).code(), rest)
    }

    /// Waits for the process's end, and returns the status, and the rest of standard output and standard error.
    #[track_caller]
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let (said, mut errors) = (self.rest(), String::new());
        let read = self.err.read_to_string(&mut errors);
        assert!(read.is_ok(), "its end: {read:?}; it printed {said}{errors}");
        (end_of(&mut self.child), said, errors)
    }

    /// Waits for the process's end, and returns the rest of standard output. The process must succeed.
    #[track_caller]
    pub fn stdout_of_success(self) -> String {
        let (status, said, errors) = self.end();
        assert!(status.success(), "{status}: {said}{errors}");
        said
    }

    /// Waits for the process's end. The process must succeed, print this line, and no errors.
    #[track_caller]
    pub fn expect_line(self, line: &str) {
        let (status, said, errors) = self.end();
        assert!(
            status.success() && said.trim_end() == line && errors.is_empty(),
            "{status}, not {line}: {said}{errors}"
        );
    }

    /// Waits for the process's end after the event `why`, even if another process has its output open. The process must
    /// succeed.
    #[track_caller]
    pub fn must_end(mut self, why: &str) {
        let mut status = None;
        until(format_args!("the end of the program after {why}"), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        let (_, said, errors) = self.end();
        assert!(status.success(), "{status} after {why}: {said}{errors}");
    }

    /// Reads the rest of standard output.
    #[track_caller]
    fn rest(&mut self) -> String {
        let (mut rest, mut errors) = (String::new(), String::new());
        if let Err(error) = self.out.read_to_string(&mut rest) {
            let _ = self.child.kill();
            let _ = self.err.read_to_string(&mut errors);
            panic!("its end: {error}; it printed {rest}{errors}");
        }
        rest
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[track_caller]
fn await_line(stream: &mut impl BufRead, part: &str) -> String {
    let (deadline, mut line) = (Deadline::begin(), String::new());
    loop {
        deadline.check(|| format!("a line with '{part}'; the last one is {line}"));
        line.clear();
        let count = stream.read_line(&mut line).unwrap_or_else(|e| panic!("a line with '{part}': {e}"));
        assert!(count > 0, "it ended before it printed '{part}'");
        if line.contains(part) {
            return line;
        }
    }
}

/// Returns whether the process or thread of this folder in `/proc` is in a state (proc_pid_stat(5)).
pub fn is_in_state(folder: &Path, state: char) -> bool {
    let status = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|there| there.starts_with(state))
}

/// The system calls that wait for events.
pub const POLL: [libc::c_long; 2] = [libc::SYS_poll, libc::SYS_ppoll];

/// Returns whether a system call, in the format of proc_pid_syscall(5), is one of `calls`.
fn is_one_of(call: &str, calls: &[libc::c_long]) -> bool {
    call.split(' ').next().and_then(|number| number.parse().ok()).is_some_and(|number| calls.contains(&number))
}
