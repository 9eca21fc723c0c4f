//! Lets a receiver sleep until packets are sent to it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Waker;
use crate::error::Result;
use crate::memory::full_fence;

/// An event that is raised only while its receiver has armed it. If no receiver may sleep, a sender pays one check.
pub struct ArmedEvent {
    event: Waker,
    /// The receiver may sleep on the event.
    wanted: AtomicBool,
    /// The receiver is about to sleep.
    armed: AtomicBool,
}

impl ArmedEvent {
    /// Creates an event that no receiver may sleep on yet.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the process has no descriptors left.
    pub fn new() -> Result<ArmedEvent> {
        Ok(ArmedEvent { event: Waker::new()?, wanted: AtomicBool::new(false), armed: AtomicBool::new(false) })
    }

    /// Sets whether the receiver may sleep on the event.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    /// Returns whether the receiver may sleep on the event.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Arms the event, and returns it. It becomes readable at the next packet. Returns `None` if the receiver may not
    /// sleep.
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        if !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        // Either a sender sees this store, or the receiver's next poll finds the packets.
        self.armed.store(true, Ordering::SeqCst);
        full_fence();
        Some(self.event.as_fd())
    }

    /// Returns the event. It becomes readable only while the receiver has armed it.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Disarms and clears the event.
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
