//! System calls, past the functions that `calls` stands in for.
#![allow(unsafe_code)]

use std::ffi::c_int;

/// A system call that answers with an int; errno(3) is set where it fails.
macro_rules! call {
    ($number:expr, $($argument:expr),*) => {
        // SAFETY: the program's own call, handed on as it is; the kernel checks what it points at.
        unsafe { libc::syscall($number, $($argument as libc::c_long),*) }
    };
}

pub(crate) use call;

/// Sets errno(3), and is what a call answers then.
pub fn fail(errno: c_int) -> c_int {
    // SAFETY: the place of this thread's errno is always there.
    unsafe { *libc::__errno_location() = errno };
    -1
}
