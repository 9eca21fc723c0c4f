//! Waits with a time limit. After [`TIME_LIMIT`] they fail with a message that names the awaited event.

use std::fmt::Display;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest wait. It detects hangs; it does not check speed, because the machine may be busy.
pub const TIME_LIMIT: Duration = Duration::from_secs(180);

/// The time limit of a loop in a test.
pub struct Deadline(Instant);

impl Deadline {
    /// Starts the wait.
    pub fn begin() -> Deadline {
        Deadline(Instant::now())
    }

    /// Fails if the time limit is exceeded. `what` describes the awaited event, with all counters that show where the
    /// test is stuck.
    #[track_caller]
    pub fn check<D: Display>(&self, what: impl FnOnce() -> D) {
        let waited = self.0.elapsed();
        assert!(waited < TIME_LIMIT, "after {} s still waiting for {}", waited.as_secs(), what());
    }
}

/// Waits until `is_so` returns true, because of another thread or process. Yields the processor meanwhile.
#[track_caller]
pub fn until(what: impl Display, mut is_so: impl FnMut() -> bool) {
    let deadline = Deadline::begin();
    while !is_so() {
        deadline.check(|| &what);
        std::thread::yield_now();
    }
}

/// The longest that a process may run that prints all the time.
const LONGEST: Duration = Duration::from_secs(600);

/// The output of another process. A read fails if no data arrives within [`TIME_LIMIT`].
pub struct Timely<R>(pub R);

impl<R: Read + AsFd> Read for Timely<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = Timespec { tv_sec: TIME_LIMIT.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&most))? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nothing came for {} s", TIME_LIMIT.as_secs()),
            ));
        }
        self.0.read(bytes)
    }
}

/// Waits for the end of a process whose output is not piped, or was read completely.
#[track_caller]
pub fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until(format_args!("the end of process {}", child.id()), || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Reads the rest of a process's piped output, and waits for the process's end.
#[track_caller]
pub fn output_of(mut child: Child) -> Output {
    let start = Instant::now();
    let all = move |stream: Option<Box<dyn Read + Send>>| {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        let Some(mut stream) = stream else { return (bytes, Ok(())) };
        loop {
            match stream.read(&mut part) {
                Ok(0) => return (bytes, Ok(())),
                Ok(_) if start.elapsed() > LONGEST => {
                    let why = format!("it still prints after {} s", LONGEST.as_secs());
                    return (bytes, Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Ok(count) => bytes.extend_from_slice(&part[..count]),
                Err(error) => return (bytes, Err(error)),
            }
        }
    };
    let out = child.stdout.take().map(|stream| Box::new(Timely(stream)) as Box<dyn Read + Send>);
    let err = child.stderr.take().map(|stream| Box::new(Timely(stream)) as Box<dyn Read + Send>);
    let others = std::thread::spawn(move || all(err));
    let (stdout, read) = all(out);
    let (stderr, read_others) = others.join().unwrap();
    if let Err(error) = read.and(read_others) {
        let said = [&*stdout, &*stderr].map(String::from_utf8_lossy);
        let _ = child.kill();
        panic!("waiting for the end of process {}: {error}; it printed: {}{}", child.id(), said[0], said[1]);
    }
    Output { status: end_of(&mut child), stdout, stderr }
}

/// As [`Command::output`], with a time limit.
pub trait OutputTimeout {
    /// Returns the status and all output. Fails if the command neither prints nor ends within [`TIME_LIMIT`], or prints for
    /// ten minutes.
    fn output_in_time(&mut self) -> io::Result<Output>;
}

impl OutputTimeout for Command {
    #[track_caller]
    fn output_in_time(&mut self) -> io::Result<Output> {
        self.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(output_of)
    }
}
