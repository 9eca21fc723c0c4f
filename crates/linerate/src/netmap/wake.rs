//! Waking a thread that sleeps until something is sent to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};
use crate::memory::full_fence;

/// An event of a receiver's. As long as nobody may sleep on it, it costs senders one look.
pub struct Wake {
    event: OwnedFd,
    /// Somebody may sleep on it.
    wanted: AtomicBool,
    /// Somebody is about to.
    armed: AtomicBool,
}

impl Wake {
    /// # Errors
    /// [`Error::System`] without descriptors.
    pub fn new() -> Result<Wake> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| Error::system("eventfd(2)", error))?;
        Ok(Wake { event, wanted: AtomicBool::new(false), armed: AtomicBool::new(false) })
    }

    /// From now on somebody may sleep on it, or nobody.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    /// The next that is sent makes this readable.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        if !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        // Who sends sees this, or is seen by who looks once more after this.
        self.armed.store(true, Ordering::SeqCst);
        full_fence();
        Some(self.event.as_fd())
    }

    /// Takes it back.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Something was sent.
    #[inline(always)]
    pub fn notify(&self) {
        if self.wanted.load(Ordering::Relaxed) {
            self.notify_sleeper();
        }
    }

    #[cold]
    fn notify_sleeper(&self) {
        full_fence();
        if self.armed.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}
