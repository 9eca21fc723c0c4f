//! Waking a thread that sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// An event (eventfd(2)) by which other threads end a thread's sleep: see [`Waiter::woken_by`](super::Waiter::woken_by).
/// Its clones are the same event.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates an event that has not happened.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) without descriptors.
    pub fn new() -> Result<Waker> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Waker(Arc::new(event.map_err(|error| Error::system("eventfd", error))?)))
    }

    /// Wakes the thread, or ends its next sleep at once.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets earlier wakes.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// The descriptor is readable after a wake.
impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
