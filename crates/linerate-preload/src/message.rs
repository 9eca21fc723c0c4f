//! Messages to the program's user.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call;

/// Device and inode of stderr when the program started; zeros if it was closed.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn file_of(fd: c_int) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` has room for the result.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: fstat(2) has succeeded, and so filled `status`.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// Records which file is stderr.
pub(crate) fn start() {
    let (device, inode) = file_of(libc::STDERR_FILENO).unwrap_or_default();
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
}

/// Writes a line to stderr, if stderr is still the same file as when the program started. Another file may contain the
/// program's data. A line that cannot be written is lost.
pub fn report(line: &str) {
    let was = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    if was != (0, 0) && file_of(libc::STDERR_FILENO) == Some(was) {
        let line = format!("linerate: {line}\n");
        // SAFETY: the line has this length.
        unsafe { call!(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
    }
}
