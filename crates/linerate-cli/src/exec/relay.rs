//! The outer side of a command: signals go to it, and it stops and ends this process as if it were this process.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{getpgrp, tcgetpgrp, tcsetpgrp};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getpid, kill_process, setrlimit};

use super::channel::{Channel, Network, Reply, Request, Step};
use crate::signals::interrupts;

/// How a command has ended.
pub enum End {
    Status(ExitStatus),
    /// It did not start, for this reason (execve(2)).
    NotStarted(io::Error),
    /// A step before it has failed.
    Failed(Step, io::Error),
    /// Its namespaces have ended from outside.
    Killed,
    /// A signal arrived before it was started.
    Interrupted(i32),
    /// passt ended before it was started.
    NoUplink(String),
}

/// The signals that end this process before the command has started.
const ENDS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Passes signals to the command, and keeps its end.
pub struct Relay {
    channel: Channel,
    end: OnceLock<End>,
    has_started: AtomicBool,
    notes: Mutex<Vec<String>>,
    /// This process was in the foreground of its terminal at the beginning.
    was_in_front: bool,
}

impl Relay {
    /// Blocks the signals, and starts to pass them on. Must be called before other threads are started.
    pub fn start(channel: Channel) -> io::Result<Arc<Relay>> {
        let was_in_front = tcgetpgrp(io::stdin()).ok() == Some(getpgrp());
        let relay = Arc::new(Relay {
            channel,
            end: OnceLock::new(),
            has_started: AtomicBool::new(false),
            notes: Mutex::default(),
            was_in_front,
        });
        let passed = passed();
        passed.thread_block()?;
        let signals = SignalFd::with_flags(&passed, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let shared = relay.clone();
        std::thread::Builder::new().name("linerate relay".to_string()).spawn(move || {
            let end = shared.pass_on(&signals).unwrap_or(End::Killed);
            let _ = shared.end.set(end);
            interrupts().end();
        })?;
        Ok(relay)
    }

    /// Starts the command. Signals go to it from now on.
    pub fn start_command(&self, network: Network) -> io::Result<()> {
        self.has_started.store(true, Ordering::Relaxed);
        self.channel.send(&Request::Start(network), &[])
    }

    /// passt has ended, with this status.
    pub fn uplink_ended(&self, status: String) {
        if self.end.get().is_some() {
            return; // its socket was closed
        }
        if self.has_started.load(Ordering::Relaxed) {
            self.note(format!("passt has ended ({status})"));
        } else if self.end.set(End::NoUplink(status)).is_ok() {
            interrupts().end();
        }
    }

    /// Returns how the command has ended; `None` before it has.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// Returns the notes on steps that the command has to do without.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Passes signals on until the command ends, and returns how it did.
    fn pass_on(&self, signals: &SignalFd) -> io::Result<End> {
        loop {
            let mut polled =
                [PollFd::new(&self.channel, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
            let [has_reply, has_signal] = [0, 1].map(|n: usize| !polled[n].revents().is_empty());
            while let Some(signal) = has_signal.then(|| signals.read_signal()).transpose()?.flatten() {
                // The terminal sends its signals to the command, too, which is in the same process group.
                let (number, is_from_process) = (signal.ssi_signo as i32, signal.ssi_code <= 0);
                if !self.has_started.load(Ordering::Relaxed) {
                    match ENDS.contains(&number) {
                        true => return Ok(End::Interrupted(number)),
                        false => continue,
                    }
                }
                if is_from_process {
                    // Fails if the command has just ended; the reply tells how.
                    let _ = self.channel.send(&Request::Signal(number), &[]);
                }
            }
            if !has_reply {
                continue;
            }
            match self.channel.receive::<Reply>()? {
                Some((Reply::Ended(status), _)) => return Ok(End::Status(ExitStatus::from_raw(status))),
                Some((Reply::NotStarted(errno), _)) => return Ok(End::NotStarted(io::Error::from_raw_os_error(errno))),
                Some((Reply::Failed(step, errno, text), _)) => {
                    return Ok(End::Failed(step, error_of(errno, text)));
                }
                // The shell sees that this process is stopped, and continues its process group.
                Some((Reply::Stopped, _)) => kill_process(getpid(), rustix::process::Signal::STOP)?,
                Some((Reply::Without(step, errno), _)) => {
                    self.note(format!("{}: {}", step.without(), io::Error::from_raw_os_error(errno)));
                }
                Some((Reply::Unsent(connections), _)) => self.note(format!(
                    "{connections} closed connections still had unsent data, which their peers have not confirmed"
                )),
                Some((Reply::Ready, _)) => {}
                None => return Ok(End::Killed),
            }
        }
    }

    /// Ends the processes in the namespaces, unless they have ended.
    pub fn close(&self) {
        self.channel.close();
    }

    /// Takes the terminal back from a command that had job control, such as a shell, so that a script can still read it.
    pub fn take_terminal_back(&self) {
        if self.was_in_front && tcgetpgrp(io::stdin()).ok() != Some(getpgrp()) {
            // SIGTTOU is blocked.
            let _ = tcsetpgrp(io::stdin(), getpgrp());
        }
    }
}

/// The signals that are passed on: all except those that a thread causes itself, SIGCHLD, and those that cannot be
/// blocked.
fn passed() -> SigSet {
    let own = [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGTRAP,
        Signal::SIGSYS,
        Signal::SIGABRT,
        Signal::SIGPIPE,
        Signal::SIGXFSZ,
        Signal::SIGCHLD,
        Signal::SIGPROF,
        Signal::SIGVTALRM,
        Signal::SIGKILL,
        Signal::SIGSTOP,
    ];
    let mut passed = SigSet::all();
    own.into_iter().for_each(|signal| passed.remove(signal));
    passed
}

/// Ends this process by the signal that has ended the command, without another core dump.
pub fn die_of(signal: i32) {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    let Ok(signal) = Signal::try_from(signal) else { return };
    set_ignored(signal, false);
    let mut set = SigSet::empty();
    set.add(signal);
    let _ = set.thread_unblock();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), signal);
}

/// Lets a signal be ignored, or have its default action.
#[allow(unsafe_code)]
pub fn set_ignored(signal: Signal, is_ignored: bool) {
    let handler = if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: neither of the two actions runs code of this process.
    let _ = unsafe { sigaction(signal, &action) };
}

/// Returns the error of another process: an errno(3), or a text.
pub fn error_of(errno: i32, text: String) -> io::Error {
    if errno == 0 { io::Error::other(text) } else { io::Error::from_raw_os_error(errno) }
}
