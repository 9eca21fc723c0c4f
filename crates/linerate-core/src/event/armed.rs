//! The sleep of a receiver until packets are sent to it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Waker;
use crate::error::Result;
use crate::memory::full_fence;

/// An event that is raised only while its receiver has armed it. It costs senders one check while no receiver may sleep.
pub struct ArmedEvent {
    event: Waker,
    /// A receiver may sleep on it.
    wanted: AtomicBool,
    /// A receiver is about to sleep.
    armed: AtomicBool,
}

impl ArmedEvent {
    /// Makes an event that no receiver may sleep on.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) without descriptors.
    pub fn new() -> Result<ArmedEvent> {
        Ok(ArmedEvent { event: Waker::new()?, wanted: AtomicBool::new(false), armed: AtomicBool::new(false) })
    }

    /// Sets whether a receiver may sleep on it.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    /// Returns whether a receiver may sleep on it.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Makes it readable at the next packet, and returns it; `None` if the receiver may not sleep on it.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        if !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        // A sender sees this, or the receiver's next look finds its packets.
        self.armed.store(true, Ordering::SeqCst);
        full_fence();
        Some(self.event.as_fd())
    }

    /// Returns the event, which is readable only while the receiver has armed it.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Ends the waiting.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
        self.event.clear();
    }

    /// Wakes the receiver, after packets were sent.
    #[inline(always)]
    pub fn notify(&self) {
        if self.is_wanted() {
            self.notify_sleeper();
        }
    }

    #[cold]
    fn notify_sleeper(&self) {
        full_fence();
        if self.armed.swap(false, Ordering::SeqCst) {
            self.event.wake();
        }
    }
}
