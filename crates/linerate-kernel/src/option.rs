//! Socket options that no crate covers (getsockopt(2)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option. `T` is the type in the option's manual: an `int`, or a structure of plain data.
pub fn set<T>(socket: impl AsFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads `length` bytes of plain data.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option; `value` provides its initial bytes.
pub fn get<T: Copy>(socket: impl AsFd, level: libc::c_int, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `length` bytes of plain data.
    let result = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, place, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
