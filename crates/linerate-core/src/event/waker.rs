//! Waking a thread that sleeps.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Interrupt;
use crate::error::Result;

/// An event (eventfd(2)) with which other threads end a thread's sleep; see
/// [`Waiter::woken_by`](crate::port::Waiter::woken_by). Clones share the event.
#[derive(Clone)]
pub struct Waker(Arc<Interrupt>);

impl Waker {
    /// Creates an event that is not raised.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the process has no descriptors left.
    pub fn new() -> Result<Waker> {
        Ok(Waker(Arc::new(Interrupt::new()?)))
    }

    /// Wakes the thread; if it is not asleep, its next sleep ends immediately.
    pub fn wake(&self) {
        self.0.raise();
    }

    /// Clears earlier wakes.
    pub fn clear(&self) {
        self.0.clear();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Waker").field(&self.as_fd()).finish()
    }
}

/// The descriptor is readable after a wake.
impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
