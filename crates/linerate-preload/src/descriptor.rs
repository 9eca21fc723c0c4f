//! Operations on the program's descriptors.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::socklen_t;

use crate::{call, keeping_errno};

/// Reads an option of a socket; `None` if the call fails. Keeps errno(3).
fn read_option<T: Default>(fd: c_int, level: c_int, option: c_int) -> Option<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as socklen_t);
    // SAFETY: the value has room for `len` bytes, and is an integer (see the callers).
    let call = || unsafe { call!(libc::SYS_getsockopt, fd, level, option, &raw mut value, &raw mut len) };
    (keeping_errno(call) == 0).then_some(value)
}

/// Returns the cookie of a socket (`SO_COOKIE`), which is unique; `None` if the descriptor is not a socket. Keeps
/// errno(3).
pub fn cookie_of(fd: c_int) -> Option<u64> {
    read_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Returns an integer option of a socket; `None` if the call fails. Keeps errno(3).
pub fn option(fd: c_int, level: c_int, option: c_int) -> Option<c_int> {
    read_option(fd, level, option)
}

/// Sets an integer option of a socket; returns whether the call succeeded.
pub fn set_option(fd: c_int, level: c_int, option: c_int, value: c_int) -> bool {
    let len = size_of::<c_int>();
    // SAFETY: the value has this length.
    unsafe { call!(libc::SYS_setsockopt, fd, level, option, &raw const value, len) == 0 }
}

/// Copies the status flags of `from`, such as `O_NONBLOCK`, to `to`.
pub fn copy_status(from: c_int, to: c_int) {
    // SAFETY: these calls take no addresses.
    unsafe {
        let flags = call!(libc::SYS_fcntl, from, libc::F_GETFL, 0);
        call!(libc::SYS_fcntl, to, libc::F_SETFL, flags);
    }
}

/// Makes a descriptor number of the program a duplicate of `by`, and closes its previous file. The number keeps its
/// `FD_CLOEXEC` flag. Returns whether the call succeeded.
///
/// # Safety
/// No other part of this process relies on the file of `number`, as an [`OwnedFd`](std::os::fd::OwnedFd) would.
pub unsafe fn replace(number: c_int, by: c_int) -> bool {
    // SAFETY: these calls take no addresses; the caller vouches for the file that is closed.
    unsafe {
        let closes_on_exec = call!(libc::SYS_fcntl, number, libc::F_GETFD, 0) & i64::from(libc::FD_CLOEXEC) != 0;
        call!(libc::SYS_dup3, by, number, if closes_on_exec { libc::O_CLOEXEC } else { 0 }) >= 0
    }
}
