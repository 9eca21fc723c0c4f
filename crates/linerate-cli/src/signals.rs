//! The signals that end a run.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::terminal::{leave, note};

/// Signals within this time after the first one count as the same signal.
const SAME: Duration = Duration::from_millis(100);

/// Ctrl-C, SIGTERM and SIGHUP, for the process.
pub struct Interrupts {
    /// The command is to end. It remains set, so that each part of a command sees it.
    should_end: AtomicBool,
    /// A signal has arrived.
    is_signalled: AtomicBool,
    /// When the first signal arrived.
    first: OnceLock<Instant>,
    wake: Mutex<Sender<()>>,
    woken: Mutex<Receiver<()>>,
}

impl Interrupts {
    /// Waits for `time`, or until woken. Returns whether the command is to end.
    pub fn wait(&self, time: Duration) -> bool {
        if !self.should_end() {
            let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = woken.recv_timeout(time);
        }
        self.should_end()
    }

    /// Waits until the command is to end, or for the time given.
    pub fn wait_for_end(&self, time: Option<Duration>) {
        const DAY: Duration = Duration::from_secs(86_400);
        while !self.wait(time.unwrap_or(DAY)) && time.is_none() {}
    }

    /// Returns whether the command is to end: a signal has arrived, or standard output cannot be written any more.
    pub fn should_end(&self) -> bool {
        self.should_end.load(Ordering::Relaxed)
    }

    /// Returns whether a signal has arrived.
    pub fn is_signalled(&self) -> bool {
        self.is_signalled.load(Ordering::Relaxed)
    }

    /// Returns the word for the command's end: "interrupted" by a signal, otherwise "ended".
    pub fn word(&self) -> &'static str {
        if self.is_signalled() { "interrupted" } else { "ended" }
    }

    /// Ends the command, as Ctrl-C does, without a signal.
    pub fn end(&self) {
        self.should_end.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Ends a wait early, without ending the command.
    pub fn wake(&self) {
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }

    /// Handles a signal. The second one ends the process immediately. timeout(1) signals its child and then its process
    /// group, which counts as one signal.
    pub fn signal(&self) {
        if self.first.get_or_init(Instant::now).elapsed() >= SAME {
            leave();
            let _ = writeln!(
                stderr(),
                "linerate: ended immediately; `linerate ports` lists cards that were not given back"
            );
            std::process::exit(130);
        }
        self.is_signalled.store(true, Ordering::Relaxed);
        self.end();
    }
}

/// Installs the signal handler.
pub fn catch() {
    ignore_file_size();
    if let Err(error) = ctrlc::set_handler(|| interrupts().signal()) {
        note(&format!("note: Ctrl-C will not print a summary: {error}"));
    }
}

/// Ignores SIGXFSZ, which would end the process when a file reaches the size limit (`ulimit -f`). The write then fails,
/// as on a full disk.
#[allow(unsafe_code)]
pub fn ignore_file_size() {
    // SAFETY: no handler is installed, and no other thread changes signals.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns the process's signals.
pub fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: LazyLock<Interrupts> = LazyLock::new(|| {
        let (sender, receiver) = channel();
        Interrupts {
            should_end: AtomicBool::new(false),
            is_signalled: AtomicBool::new(false),
            first: OnceLock::new(),
            wake: Mutex::new(sender),
            woken: Mutex::new(receiver),
        }
    });
    &INTERRUPTS
}
