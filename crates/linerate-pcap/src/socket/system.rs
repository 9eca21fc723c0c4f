//! The C library's own functions behind the replaced ones, and system calls.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};

/// Makes a system call; sets errno(3) if it fails.
macro_rules! call {
    ($number:expr, $($argument:expr),* $(,)?) => {
        // SAFETY: the kernel checks the memory that the arguments point at.
        unsafe { libc::syscall($number, $($argument as libc::c_long),*) }
    };
}

/// Calls the C library's function of this name.
///
/// It may be a cancellation point (pthreads(7)): a thread that is cancelled there is unwound through the caller, which
/// must have nothing to drop.
macro_rules! next {
    ($name:ident($($argument:expr),* $(,)?)) => {
        next!($name($($argument),*) | $crate::socket::system::fail(libc::ENOSYS))
    };
    ($name:ident($($argument:expr),* $(,)?) | $absent:expr) => {
        match $crate::socket::system::$name() {
            // SAFETY: the C library's function of this name and signature, with the program's own arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => $absent,
        }
    };
}
pub(crate) use {call, next};

macro_rules! functions {
    ($($name:ident: fn($($type:ty),*) -> $result:ty;)*) => {
        $(
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) -> $result> {
                let mut address = found::$name.load(Ordering::Relaxed);
                if address.is_null() {
                    // The caller is an object that was initialised before this one.
                    address = find(const { name(concat!(stringify!($name), "\0")) });
                    found::$name.store(address, Ordering::Relaxed);
                }
                // SAFETY: null, or the address of the C library's function of this name, which has this signature.
                unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C-unwind" fn($($type),*) -> $result>>(address) }
            }
        )*

        /// The functions' addresses.
        #[allow(non_upper_case_globals)]
        mod found {
            use super::{AtomicPtr, c_void, null_mut};
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut());)*
        }

        /// Finds all functions, so that dlsym(3), which has locks, is not called in a child or a signal handler.
        fn find_all() {
            $($name();)*
        }
    };
}

/// Returns the address of this function in the next object; null if there is none.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

const fn name(bytes: &str) -> &CStr {
    match CStr::from_bytes_with_nul(bytes.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

functions! {
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

/// Sets errno(3); returns -1.
pub fn fail<T: From<i8>>(errno: c_int) -> T {
    // SAFETY: this thread's errno always exists.
    unsafe { *libc::__errno_location() = errno };
    T::from(-1)
}

/// Returns a call's answer, which is negative if it has failed. Otherwise errno(3) is as it was `before` the call.
pub fn answered(before: c_int, answer: c_int) -> c_int {
    if answer >= 0 {
        fail::<c_int>(before);
    }
    answer
}

/// Returns errno(3).
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

thread_local! {
    /// This thread opens a port: its packet sockets are the port's, and not the program's.
    static OPENS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in [`without_signals`].
pub fn opens() -> bool {
    OPENS.get()
}

/// Runs `work`, which opens a port or starts a thread, with all signals blocked in this thread. Threads that it starts have them blocked for good: the
/// program's handlers are for its own threads.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: there is room for both sets; the first is filled in before it is used.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let before_it = OPENS.replace(true);
    let result = work();
    OPENS.set(before_it);
    // SAFETY: the set was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    result
}

/// Returns an integer option of a socket; `None` if there is none. Keeps errno(3).
pub fn option(fd: c_int, level: c_int, option: c_int) -> Option<c_int> {
    let (before, mut value, mut len) = (errno(), 0 as c_int, size_of::<c_int>() as socklen_t);
    let is_there = call!(libc::SYS_getsockopt, fd, level, option, &raw mut value, &raw mut len) == 0;
    fail::<c_int>(before);
    is_there.then_some(value)
}

/// Sets an integer option of a socket, where the kernel allows it.
pub fn set_option(fd: c_int, level: c_int, option: c_int, value: c_int) -> bool {
    call!(libc::SYS_setsockopt, fd, level, option, &raw const value, size_of::<c_int>()) == 0
}

/// Device and inode of stderr when the program began; zeros if it was closed.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn file_of(fd: c_int) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: fstat(2) has filled it in.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// Finds the functions and remembers stderr, when the object is loaded.
pub fn start() {
    find_all();
    let (device, inode) = file_of(libc::STDERR_FILENO).unwrap_or_default();
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
}

/// Writes a line to stderr, if stderr is the same file as when the program began: another file may contain the
/// program's data. A line that cannot be written is lost.
pub fn report(line: &str) {
    let was = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    if was != (0, 0) && file_of(libc::STDERR_FILENO) == Some(was) {
        let line = format!("linerate: {line}\n");
        call!(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len());
    }
}
