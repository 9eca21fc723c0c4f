//! Sockets behind numbers.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::socklen_t;

use crate::{call, keeping_errno};

/// Reads an option of a socket, if the kernel has one of this size. Keeps errno(3).
fn read_option<T: Default>(fd: c_int, level: c_int, option: c_int) -> Option<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as socklen_t);
    // SAFETY: the value has room for `len` bytes, and is one of the integers below.
    let call = || unsafe { call!(libc::SYS_getsockopt, fd, level, option, &raw mut value, &raw mut len) };
    (keeping_errno(call) == 0).then_some(value)
}

/// Returns the cookie of a number's socket (`SO_COOKIE`), which no other socket ever has; `None` if it is no socket. Keeps
/// errno(3).
pub fn cookie_of(fd: c_int) -> Option<u64> {
    read_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Returns an integer option of a socket; `None` if there is none. Keeps errno(3).
pub fn option(fd: c_int, level: c_int, option: c_int) -> Option<c_int> {
    read_option(fd, level, option)
}

/// Sets an integer option of a socket; returns whether the kernel has accepted it.
pub fn set_option(fd: c_int, level: c_int, option: c_int, value: c_int) -> bool {
    let len = size_of::<c_int>();
    // SAFETY: the value has this length.
    unsafe { call!(libc::SYS_setsockopt, fd, level, option, &raw const value, len) == 0 }
}

/// Gives `to` the status flags of `from`, such as `O_NONBLOCK`.
pub fn copy_status(from: c_int, to: c_int) {
    // SAFETY: these calls have no addresses.
    unsafe {
        let flags = call!(libc::SYS_fcntl, from, libc::F_GETFL, 0);
        call!(libc::SYS_fcntl, to, libc::F_SETFL, flags);
    }
}

/// Makes a number of the program a duplicate of `by`, and closes the file that it was. The number keeps its flag
/// `FD_CLOEXEC`. Returns whether the kernel has done it.
///
/// # Safety
/// No other part of this process relies on the file of `number`, as an [`OwnedFd`](std::os::fd::OwnedFd) does.
pub unsafe fn replace(number: c_int, by: c_int) -> bool {
    // SAFETY: these calls have no addresses; the caller vouches for the file that is closed.
    unsafe {
        let closes_on_exec = call!(libc::SYS_fcntl, number, libc::F_GETFD, 0) & i64::from(libc::FD_CLOEXEC) != 0;
        call!(libc::SYS_dup3, by, number, if closes_on_exec { libc::O_CLOEXEC } else { 0 }) >= 0
    }
}
