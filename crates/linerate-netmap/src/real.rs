//! System calls, past the functions that `calls` stands in for.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::Duration;

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

/// Bytes of the program's memory; `None` if they are not there. The kernel looks, so that a wrong address harms nobody.
pub fn read(address: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let theirs = libc::iovec { iov_base: address as *mut _, iov_len: len };
    let read = call!(libc::SYS_process_vm_readv, std::process::id(), &raw const ours, 1, &raw const theirs, 1, 0);
    (read == len as i64).then_some(bytes)
}

/// Writes there; false if it cannot be.
pub fn write(address: u64, bytes: &[u8]) -> bool {
    let ours = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    let written = call!(libc::SYS_process_vm_writev, std::process::id(), &raw const ours, 1, &raw const theirs, 1, 0);
    written == bytes.len() as i64
}

/// A time as the kernel takes it.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}
