//! The signals that end a run.

use std::io::{Write, stderr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Ctrl-C, SIGTERM and SIGHUP, for all of the process.
pub struct Interrupts {
    /// How often one came. It stays, so that each part of a command sees it.
    count: AtomicU32,
    wake: Mutex<Sender<()>>,
    woken: Mutex<Receiver<()>>,
}

impl Interrupts {
    /// Waits for `time`; true if a signal has come.
    pub fn wait(&self, time: Duration) -> bool {
        if !self.have_come() {
            let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = woken.recv_timeout(time);
        }
        self.have_come()
    }

    /// True if a signal has come.
    pub fn have_come(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// True if the command should end without waiting for frames in flight.
    pub fn are_urgent(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    /// Ends the command, as Ctrl-C does.
    pub fn end(&self) {
        self.count.fetch_max(1, Ordering::Relaxed);
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }

    /// Handles a signal: the second one ends the process at once.
    pub fn signal(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) > 0 {
            let _ =
                writeln!(stderr(), "linerate: ended at once; `linerate ports` shows cards that were not given back");
            std::process::exit(130);
        }
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }
}

/// Returns the process's signals.
pub fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: LazyLock<Interrupts> = LazyLock::new(|| {
        let (sender, receiver) = channel();
        Interrupts { count: AtomicU32::new(0), wake: Mutex::new(sender), woken: Mutex::new(receiver) }
    });
    &INTERRUPTS
}
