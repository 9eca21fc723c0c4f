//! Interrupts that a thread can wait for.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{Error, Remedy, Result};
use crate::pci::shared_event;

/// One interrupt of a card: readable from when it is raised until it is [cleared](Interrupt::clear).
pub struct Interrupt {
    event: OwnedFd,
    /// Another process has its descriptor, too.
    shared: Option<Arc<shared_event::Shared>>,
    /// The card's configuration space, to enable the line again that uio disables when it is raised.
    line: Option<File>,
}

impl Interrupt {
    /// Creates `wanted` interrupts for a card that has `there`.
    ///
    /// # Errors
    /// The card has fewer, or the process has no descriptors left.
    pub(crate) fn several(wanted: u16, there: u32, card: &str) -> Result<Vec<Interrupt>> {
        if there < wanted.into() {
            return Err(Error::card(
                card,
                format!("it has {there} interrupts (MSI-X), but {wanted} are needed, one for each queue"),
                Remedy::Poll("use fewer queues".into()),
            ));
        }
        (0..wanted).map(|_| Interrupt::new()).collect()
    }

    /// Creates an eventfd (eventfd(2)), for the kernel or a model to raise.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> Result<Interrupt> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| Error::system("eventfd", e))?;
        Ok(Interrupt { event, shared: None, line: None })
    }

    /// Prepares this process to raise events of peers. A port does so when it opens: later, other users may have taken what the
    /// kernel has for it.
    pub(crate) fn prepare_for_peers() {
        shared_event::prepare();
    }

    /// Creates an eventfd whose descriptor another process gets: neither raising it nor clearing it sleeps, whatever that
    /// process does with it.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn shared() -> Result<Interrupt> {
        Interrupt::prepare_for_peers();
        Ok(Interrupt { shared: Some(Arc::default()), ..Interrupt::new()? })
    }

    /// Wraps a uio device's descriptor, with its configuration space.
    pub(super) fn from_line(event: OwnedFd, line: File) -> Interrupt {
        Interrupt { event, shared: None, line: Some(line) }
    }

    /// Wraps another process's eventfd, to be raised; raising it does not sleep.
    ///
    /// # Errors
    /// `INVAL` for any other file, since raising would write into it.
    pub(crate) fn of_peer(event: OwnedFd) -> rustix::io::Result<Interrupt> {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        if !kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]") {
            return Err(rustix::io::Errno::INVAL);
        }
        fcntl_setfl(&event, fcntl_getfl(&event)? | OFlags::NONBLOCK)?;
        Interrupt::prepare_for_peers();
        Ok(Interrupt { event, shared: Some(Arc::default()), line: None })
    }

    /// Returns whether this is an interrupt line, which the card holds until its driver reads the cause.
    pub fn is_line(&self) -> bool {
        self.line.is_some()
    }

    /// Returns the same interrupt again, for the side that raises it.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn try_clone(&self) -> Result<Interrupt> {
        let event = self.event.try_clone().map_err(|e| Error::system("dup", e))?;
        let line = self.line.as_ref().map(File::try_clone).transpose().map_err(|e| Error::system("dup", e))?;
        Ok(Interrupt { event, shared: self.shared.clone(), line })
    }

    /// Raises the interrupt, as a card does.
    pub fn raise(&self) {
        if let Some(shared) = &self.shared {
            return shared_event::raise(self.event.as_fd(), shared);
        }
        // This fails only if the counter is full, and then the interrupt is raised already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears the interrupt, so that the next one can be waited for.
    pub fn clear(&self) {
        if self.shared.is_some() {
            return shared_event::clear(self.event.as_fd());
        }
        let Some(config) = &self.line else {
            // Nothing to read means that it was not raised.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            return;
        };
        // uio counts in 4 bytes. Nothing to read means that no interrupt was raised.
        let _ = rustix::io::read(&self.event, &mut [0; 4]);
        allow_line(config);
    }
}

/// The command register of configuration space, and its bit that disables the line.
pub(super) const COMMAND: u16 = 0x04;
pub(super) const COMMAND_NO_LINE: u16 = 1 << 10;

/// Enables the card's interrupt line again, which uio disables each time it is raised.
fn allow_line(config: &File) {
    let mut bytes = [0; 2];
    // A card that is gone raises no interrupts.
    if config.read_exact_at(&mut bytes, COMMAND.into()).is_ok() {
        let command = u16::from_le_bytes(bytes) & !COMMAND_NO_LINE;
        let _ = config.write_all_at(&command.to_le_bytes(), COMMAND.into());
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::Read;

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
