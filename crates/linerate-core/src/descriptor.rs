//! Descriptors that a process has inherited or received, given to a port by their numbers, as QEMU's `fd=`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Duplicates an open descriptor. The original remains open, and belongs to whoever has it.
///
/// # Errors
/// No descriptor has this number, or the process has too many.
///
/// ```
/// use std::os::fd::AsRawFd;
/// let file = std::fs::File::open("/dev/null")?;
/// assert!(linerate_core::descriptor::duplicate(file.as_raw_fd()).is_ok());
/// assert!(linerate_core::descriptor::duplicate(-1).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call only duplicates the descriptor, and fails if it is not open.
    let duplicate = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    match duplicate {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor was just created, and nothing else has it.
        number => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
    }
}
