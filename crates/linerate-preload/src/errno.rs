//! errno(3) of the calling thread.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// Returns errno(3).
#[inline]
pub fn errno() -> c_int {
    // SAFETY: this thread's errno always exists.
    unsafe { *libc::__errno_location() }
}

/// Sets errno(3).
#[inline]
pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets errno(3), and returns -1, the result of a failed call.
#[inline]
pub fn fail<T: From<i8>>(errno: impl Into<c_int>) -> T {
    set_errno(errno.into());
    T::from(-1)
}

/// Runs `work`, and restores errno(3) afterwards.
#[inline]
pub fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = work();
    set_errno(before);
    result
}
