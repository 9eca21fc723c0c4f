//! The C library's own versions of the replaced functions, and the kernel's ppoll(2).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulong};
use std::os::fd::BorrowedFd;
use std::ptr::null;
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timeval};
use linerate_preload::call;

/// Calls the C library's function of this name.
///
/// The call may be a cancellation point (pthreads(7)): a cancelled thread unwinds through the caller, which must have
/// nothing to drop.
macro_rules! next {
    ($name:ident($($argument:expr),*)) => {
        match $crate::real::$name() {
            // SAFETY: the C library's function of this name and signature, with the program's own arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => linerate_preload::fail(libc::ENOSYS),
        }
    };
}
pub(crate) use next;

linerate_preload::functions! {
    open: fn(*const c_char, c_int, ...) -> c_int;
    open64: fn(*const c_char, c_int, ...) -> c_int;
    openat: fn(c_int, *const c_char, c_int, ...) -> c_int;
    openat64: fn(c_int, *const c_char, c_int, ...) -> c_int;
    creat: fn(*const c_char, c_uint) -> c_int;
    creat64: fn(*const c_char, c_uint) -> c_int;
    __open_2: fn(*const c_char, c_int) -> c_int;
    __open64_2: fn(*const c_char, c_int) -> c_int;
    __openat_2: fn(c_int, *const c_char, c_int) -> c_int;
    __openat64_2: fn(c_int, *const c_char, c_int) -> c_int;
    stat: fn(*const c_char, *mut libc::stat) -> c_int;
    stat64: fn(*const c_char, *mut libc::stat) -> c_int;
    lstat: fn(*const c_char, *mut libc::stat) -> c_int;
    lstat64: fn(*const c_char, *mut libc::stat) -> c_int;
    fstatat: fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    fstatat64: fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    fstat: fn(c_int, *mut libc::stat) -> c_int;
    fstat64: fn(c_int, *mut libc::stat) -> c_int;
    statx: fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    access: fn(*const c_char, c_int) -> c_int;
    faccessat: fn(c_int, *const c_char, c_int, c_int) -> c_int;
    euidaccess: fn(*const c_char, c_int) -> c_int;
    eaccess: fn(*const c_char, c_int) -> c_int;
    close: fn(c_int) -> c_int;
    close_range: fn(c_uint, c_uint, c_int) -> c_int;
    closefrom: fn(c_int);
    fclose: fn(*mut libc::FILE) -> c_int;
    dup: fn(c_int) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    fcntl: fn(c_int, c_int, ...) -> c_int;
    fcntl64: fn(c_int, c_int, ...) -> c_int;
    ioctl: fn(c_int, c_ulong, ...) -> c_int;
    poll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll: fn(*mut pollfd, nfds_t, *const libc::timespec, *const sigset_t) -> c_int;
    __poll_chk: fn(*mut pollfd, nfds_t, c_int, usize) -> c_int;
    __ppoll_chk: fn(*mut pollfd, nfds_t, *const libc::timespec, *const sigset_t, usize) -> c_int;
    select: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const libc::timespec, *const sigset_t) -> c_int;
    epoll_ctl: fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    epoll_wait: fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait: fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    epoll_pwait2: fn(c_int, *mut epoll_event, c_int, *const libc::timespec, *const sigset_t) -> c_int;
}

/// Borrows a descriptor of the program for the duration of a call.
pub fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: it is not -1: it was found in the table. If the program closes it meanwhile, calls return the kernel's
    // errors.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Converts a duration to a `timespec`.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().min(i64::MAX as u64) as _, tv_nsec: time.subsec_nanos().into() }
}

/// Calls the kernel's ppoll(2) directly, so that it is not a cancellation point.
pub fn kernel_poll(events: &mut [pollfd], timeout: Option<Duration>) -> c_int {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: the slice has `len` events; a null signal mask leaves the mask unchanged.
    unsafe { call!(libc::SYS_ppoll, events.as_mut_ptr(), events.len(), time, 0, 8) as c_int }
}
