//! The C library's own versions of the replaced functions.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};
use linerate_preload::{set_errno, without_signals};

/// Calls the C library's function of this name.
///
/// The call may be a cancellation point (pthreads(7)): a cancelled thread unwinds through the caller, which must have
/// nothing to drop.
macro_rules! next {
    ($name:ident($($argument:expr),* $(,)?)) => {
        next!($name($($argument),*) | linerate_preload::fail(libc::ENOSYS))
    };
    ($name:ident($($argument:expr),* $(,)?) | $absent:expr) => {
        match $crate::socket::system::$name() {
            // SAFETY: the C library's function of this name and signature, with the program's own arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => $absent,
        }
    };
}
pub(crate) use next;

linerate_preload::functions! {
    socket: fn(c_int, c_int, c_int) -> c_int;
    bind: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    getsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    getpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    connect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    listen: fn(c_int, c_int) -> c_int;
    accept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    accept4: fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    shutdown: fn(c_int, c_int) -> c_int;
    close: fn(c_int) -> c_int;
    dup: fn(c_int) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    fcntl: fn(c_int, c_int, usize) -> c_int;
    fcntl64: fn(c_int, c_int, usize) -> c_int;
    send: fn(c_int, *const c_void, usize, c_int) -> ssize_t;
    sendto: fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t;
    sendmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    write: fn(c_int, *const c_void, usize) -> ssize_t;
    writev: fn(c_int, *const iovec, c_int) -> ssize_t;
    recv: fn(c_int, *mut c_void, usize, c_int) -> ssize_t;
    recvfrom: fn(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
    recvmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
    read: fn(c_int, *mut c_void, usize) -> ssize_t;
    readv: fn(c_int, *const iovec, c_int) -> ssize_t;
    __read_chk: fn(c_int, *mut c_void, usize, usize) -> ssize_t;
    __recv_chk: fn(c_int, *mut c_void, usize, usize, c_int) -> ssize_t;
    __recvfrom_chk: fn(c_int, *mut c_void, usize, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    setsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    getsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    dlopen: fn(*const c_char, c_int) -> *mut c_void;
    ioctl: fn(c_int, c_ulong, *mut c_void) -> c_int;
    if_nametoindex: fn(*const c_char) -> c_uint;
    if_indextoname: fn(c_uint, *mut c_char) -> *mut c_char;
    getifaddrs: fn(*mut *mut libc::ifaddrs) -> c_int;
    freeifaddrs: fn(*mut libc::ifaddrs) -> ();
}

/// Returns a call's result. If the call has succeeded, restores errno(3) to its value `before` the call.
pub fn answered(before: c_int, answer: c_int) -> c_int {
    if answer >= 0 {
        set_errno(before);
    }
    answer
}

thread_local! {
    /// This thread is opening a port: packet sockets that it opens are the port's own, not the program's.
    static IS_OPENING_PORT: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in [`opening`].
pub fn is_opening_port() -> bool {
    IS_OPENING_PORT.get()
}

/// Runs `work`, which opens a port or starts a thread, with all signals blocked.
pub fn opening<T>(work: impl FnOnce() -> T) -> T {
    without_signals(|| {
        let before = IS_OPENING_PORT.replace(true);
        let result = work();
        IS_OPENING_PORT.set(before);
        result
    })
}
