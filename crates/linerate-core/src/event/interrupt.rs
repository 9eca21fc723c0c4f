//! Interrupts that a thread can wait for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::shared;
use crate::error::{Error, Result};

/// Enables a card's interrupt line.
type EnableLine = Arc<dyn Fn() + Send + Sync>;

/// An interrupt of a card or a peer. It is readable after it was raised, until it is [cleared](Interrupt::clear).
pub struct Interrupt {
    event: OwnedFd,
    /// Set if another process also has the descriptor.
    shared: Option<Arc<shared::Shared>>,
    /// Set for a card's interrupt line, which the kernel disables when it is raised. Enables it again.
    enable_line: Option<EnableLine>,
}

impl Interrupt {
    /// Creates an eventfd (eventfd(2)), for the kernel or a model to raise.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> Result<Interrupt> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| Error::system("eventfd", e))?;
        Ok(Interrupt { event, shared: None, enable_line: None })
    }

    /// Prepares this process to raise events of peers. A port calls this when it opens, because other users could
    /// exhaust the required kernel resource later.
    pub fn prepare_for_peers() {
        shared::prepare();
    }

    /// Creates an eventfd to share with another process. Neither raising nor clearing it sleeps, whatever the other
    /// process does with it.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn shared() -> Result<Interrupt> {
        Interrupt::prepare_for_peers();
        Ok(Interrupt { shared: Some(Arc::default()), ..Interrupt::new()? })
    }

    /// Wraps the descriptor of a uio device. The kernel disables its interrupt line when it is raised; each clear calls
    /// `enable` to enable it again.
    pub fn from_line(event: OwnedFd, enable: impl Fn() + Send + Sync + 'static) -> Interrupt {
        Interrupt { event, shared: None, enable_line: Some(Arc::new(enable)) }
    }

    /// Wraps another process's eventfd, to raise it. Raising it does not sleep.
    ///
    /// # Errors
    /// `INVAL` for any other kind of file, since raising would write to it.
    pub fn of_peer(event: OwnedFd) -> rustix::io::Result<Interrupt> {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        if !kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]") {
            return Err(rustix::io::Errno::INVAL);
        }
        fcntl_setfl(&event, fcntl_getfl(&event)? | OFlags::NONBLOCK)?;
        Interrupt::prepare_for_peers();
        Ok(Interrupt { event, shared: Some(Arc::default()), enable_line: None })
    }

    /// Returns whether this is an interrupt line, which the card asserts until its driver reads the cause.
    pub fn is_line(&self) -> bool {
        self.enable_line.is_some()
    }

    /// Duplicates the interrupt, for the side that raises it.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn try_clone(&self) -> Result<Interrupt> {
        let event = self.event.try_clone().map_err(|e| Error::system("dup", e))?;
        Ok(Interrupt { event, shared: self.shared.clone(), enable_line: self.enable_line.clone() })
    }

    /// Raises the interrupt, as a card does.
    pub fn raise(&self) {
        if let Some(shared) = &self.shared {
            return shared::raise(self.event.as_fd(), shared);
        }
        // This fails only if the counter is full, and the interrupt is then already raised.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears the interrupt, so that the next one can be awaited.
    pub fn clear(&self) {
        if self.shared.is_some() {
            return shared::clear(self.event.as_fd());
        }
        let Some(enable) = &self.enable_line else {
            // The read fails if the interrupt was not raised.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            return;
        };
        // The counter of uio has 4 bytes. The read fails if no interrupt was raised.
        let _ = rustix::io::read(&self.event, &mut [0; 4]);
        enable();
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_peer_s_file_that_is_no_event_is_refused_and_stays_as_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        let copy = file.try_clone().unwrap();
        assert!(Interrupt::of_peer(copy.into()).is_err());
        assert_eq!(file.read_to_end(&mut Vec::new()).unwrap(), 0);
        let theirs = Interrupt::new().unwrap();
        Interrupt::of_peer(theirs.as_fd().try_clone_to_owned().unwrap()).unwrap().raise();
        assert_eq!(poll(&mut [PollFd::new(&theirs, PollFlags::IN)], Some(&Timespec::default())), Ok(1));
    }

    #[test]
    fn is_readable_from_raise_to_clear() {
        let interrupt = Interrupt::new().unwrap();
        let readable = || poll(&mut [PollFd::new(&interrupt, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1;
        assert!(!readable());
        interrupt.raise();
        interrupt.raise();
        assert!(readable());
        interrupt.clear();
        assert!(!readable());
    }
}
