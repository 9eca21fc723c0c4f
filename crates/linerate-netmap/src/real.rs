//! The C library's own functions behind the replaced ones, system calls, and access to the program's memory through the
//! kernel.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::panic::AssertUnwindSafe;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timeval};

/// Makes a system call that returns an int; sets errno(3) if it fails.
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
    ($name:ident($($argument:expr),*)) => {
        match $crate::real::$name() {
            // SAFETY: the C library's function of this name and signature, with the program's own arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => $crate::real::fail(libc::ENOSYS),
        }
    };
}

pub(crate) use {call, next};

/// Returns the address of this function in the next object; null if there is none.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

macro_rules! functions {
    ($($name:ident: fn($($type:tt)*) $(-> $result:ty)?;)*) => {
        $(
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($type)*) $(-> $result)?> {
                let mut address = found::$name.load(Ordering::Relaxed);
                if address.is_null() {
                    // The caller is an object that was initialised before this one.
                    address = find(const { name(concat!(stringify!($name), "\0")) });
                    found::$name.store(address, Ordering::Relaxed);
                }
                // SAFETY: null, or the address of the C library's function of this name, which has this signature.
                unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C-unwind" fn($($type)*) $(-> $result)?>>(address) }
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

const fn name(bytes: &str) -> &CStr {
    match CStr::from_bytes_with_nul(bytes.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

functions! {
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

/// Borrows a number of the program's for the duration of a call.
pub fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: it is not -1, since it was found in the table. A program that closes it meanwhile gets the kernel's
    // errors.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Finds the functions and remembers stderr, when the object is loaded.
pub fn start() {
    find_all();
    let (device, inode) = file_of(libc::STDERR_FILENO).unwrap_or_default();
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
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

/// Writes a line to stderr, if stderr is the same file as when the program began: another file may contain the
/// program's data. A line that cannot be written is lost.
pub fn report(line: &str) {
    let was = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    if was != (0, 0) && file_of(libc::STDERR_FILENO) == Some(was) {
        let line = format!("linerate: {line}\n");
        call!(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len());
    }
}

/// Sets errno(3); returns -1.
pub fn fail(errno: c_int) -> c_int {
    // SAFETY: this thread's errno always exists.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Returns errno(3).
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Ends the thread if it is cancelled. The caller must have nothing to drop.
pub fn cancellation_point() {
    // SAFETY: it has no requirements.
    unsafe { pthread_testcancel() };
}

/// Runs this object's code in a thread of the program. The thread is not cancelled meanwhile. A panic ends here, as
/// `EIO`.
pub fn guarded<T>(panicked: T, work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: there is room for the state.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        fail(libc::EIO);
        panicked
    });
    // SAFETY: the thread's previous state.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}

/// The most bytes that are copied without the kernel.
const FEW: usize = 16 << 10;

/// Copies to or from the program's memory; returns the number of copied bytes.
///
/// process_vm_readv(2) costs as much as a sync. So the kernel is only asked whether the pages exist, by a system call
/// that fails for another reason if they do, and the copy is made here. A program that unmaps its memory at this moment
/// is killed, as it would be in the C library.
fn copy(number: libc::c_long, address: u64, ours: *mut c_void, len: usize) -> usize {
    let is_read = number == libc::SYS_process_vm_readv;
    let is_there = if is_read { is_there(address, len) } else { is_writable(address, len) };
    let (from, to) = (libc::iovec { iov_base: ours, iov_len: len }, address as *mut c_void);
    let mut is_copied = is_there == Some(true);
    if is_there.is_none() {
        let theirs = libc::iovec { iov_base: to, iov_len: len };
        let copied = call!(number, std::process::id(), &raw const from, 1, &raw const theirs, 1, 0);
        if copied >= 0 {
            return copied as usize;
        }
        // The address cannot be checked then, and is used unchecked, as in the C library.
        is_copied = is_forbidden() && address > u64::from(u16::MAX);
    }
    if !is_copied {
        return 0;
    }
    // SAFETY: `ours` has `len` bytes; the program's memory exists, as the kernel has just found, or as the C library
    // assumes.
    unsafe { if is_read { std::ptr::copy(to, ours, len) } else { std::ptr::copy(ours, to, len) } }
    len
}

/// Asks the kernel for 8 bytes in each page of this memory; returns whether they are all there.
fn look(address: u64, len: usize, mut is_there: impl FnMut(u64) -> bool) -> Option<bool> {
    const PAGE: u64 = 4096;
    let Some(end) = address.checked_add(len as u64).filter(|_| address >= PAGE) else { return Some(len == 0) };
    let (before, mut at) = (errno(), address);
    while at < end {
        if !is_there(at) {
            return Some(false);
        }
        at = at / PAGE * PAGE + PAGE;
    }
    fail(before);
    Some(true)
}

/// Returns whether memory can be read; `None` if that is unknown.
fn is_there(address: u64, len: usize) -> Option<bool> {
    if len > FEW {
        return None;
    }
    // sigprocmask(2) with a set, and an invalid operation. A signal's handler may change errno, so the call is
    // repeated.
    let ask = |at: u64| if call!(libc::SYS_rt_sigprocmask, -1, at & !7, 0, 8) < 0 { errno() } else { 0 };
    look(address, len, |at| {
        (0..8).map(|_| ask(at)).find(|answer| matches!(*answer, libc::EINVAL | libc::EFAULT)) == Some(libc::EINVAL)
    })
}

/// Returns whether memory can be written; `None` if that is unknown. The caller writes to all of it.
fn is_writable(address: u64, len: usize) -> Option<bool> {
    // The 8 bytes that are written in each page must be inside the memory.
    let in_first = 4096 - address as usize % 4096;
    let in_last = address.wrapping_add(len as u64).wrapping_sub(1) as usize % 4096 + 1;
    if !(8..=FEW).contains(&len) || len > in_first && in_first.min(in_last) < 8 {
        return None;
    }
    // sigprocmask(2), which writes the current set there.
    look(address, len, |at| call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, at, 8) == 0)
}

/// Returns whether the kernel refuses to copy: in a sandbox, or where it is built without these calls.
fn is_forbidden() -> bool {
    matches!(errno(), libc::EPERM | libc::ENOSYS)
}

/// Reads the program's memory; false if it cannot be read. The kernel checks the address, so that a wrong one has no
/// effect.
pub fn read_into(address: u64, bytes: &mut [u8]) -> bool {
    copy(libc::SYS_process_vm_readv, address, bytes.as_mut_ptr().cast(), bytes.len()) == bytes.len()
}

/// Reads `len` bytes of the program's memory; `None` if they cannot be read.
pub fn read(address: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    read_into(address, &mut bytes).then_some(bytes)
}

/// Writes to the program's memory; false if it cannot be written.
pub fn write(address: u64, bytes: &[u8]) -> bool {
    copy(libc::SYS_process_vm_writev, address, bytes.as_ptr().cast_mut().cast(), bytes.len()) == bytes.len()
}

/// Writes each value to its own address; false if one cannot be written.
pub fn write_each<T: Plain>(values: &[(u64, T)]) -> bool {
    // The limit of one call (UIO_MAXIOV).
    values.chunks(1024).all(|values| {
        let ours: Vec<T> = values.iter().map(|(_, value)| *value).collect();
        let len = size_of_val(&ours[..]);
        let from = libc::iovec { iov_base: ours.as_ptr().cast_mut().cast(), iov_len: len };
        let to = |(address, _): &(u64, T)| libc::iovec { iov_base: *address as *mut _, iov_len: size_of::<T>() };
        let to: Vec<libc::iovec> = values.iter().map(to).collect();
        let pid = std::process::id();
        let copied = call!(libc::SYS_process_vm_writev, pid, &raw const from, 1, to.as_ptr(), to.len(), 0);
        copied == len as libc::c_long
            || copied < 0 && is_forbidden() && values.iter().all(|(address, value)| store(*address, value))
    })
}

/// A type of C for which any bytes are a value, as programs hand it over.
///
/// # Safety
/// Every pattern of bytes is a value of the type.
pub unsafe trait Plain: Copy {}

// SAFETY: integers, and structures of integers; so are the kernel's below.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for [i32; 2] {}
// SAFETY: as above.
unsafe impl Plain for pollfd {}
// SAFETY: as above.
unsafe impl Plain for epoll_event {}
// SAFETY: as above.
unsafe impl Plain for libc::timespec {}
// SAFETY: as above.
unsafe impl Plain for timeval {}
// SAFETY: as above.
unsafe impl Plain for libc::stat {}
// SAFETY: as above.
unsafe impl Plain for libc::statx {}

/// Reads `count` values from the program's memory; `None` if they cannot be read.
pub fn fetch_all<T: Plain>(address: u64, count: usize) -> Option<Vec<T>> {
    let len = count.checked_mul(size_of::<T>())?;
    let mut values: Vec<T> = Vec::with_capacity(count);
    if copy(libc::SYS_process_vm_readv, address, values.as_mut_ptr().cast(), len) != len {
        return None;
    }
    // SAFETY: all bytes of `count` values were written, and any bytes are a value.
    unsafe { values.set_len(count) };
    Some(values)
}

/// Reads a value from the program's memory; `None` if it cannot be read.
pub fn fetch<T: Plain>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    // SAFETY: all its bytes were written, and any bytes are a value.
    (copy(libc::SYS_process_vm_readv, address, value.as_mut_ptr().cast(), len) == len)
        .then(|| unsafe { value.assume_init() })
}

/// Writes a value to the program's memory; false if it cannot be written.
pub fn store<T: Plain>(address: u64, value: &T) -> bool {
    let len = size_of::<T>();
    copy(libc::SYS_process_vm_writev, address, std::ptr::from_ref(value).cast_mut().cast(), len) == len
}

/// Reads a value from the program's memory; `None` for a null pointer.
///
/// # Errors
/// [`Fault`] if it cannot be read.
pub fn fetch_optional<T: Plain>(address: *const T) -> Result<Option<T>, Fault> {
    if address.is_null() { Ok(None) } else { fetch(address as u64).map(Some).ok_or(Fault) }
}

/// `EFAULT`.
#[derive(Debug)]
pub struct Fault;

/// Returns whether the program's string equals `text`, which includes the zero.
pub fn is_text(address: *const c_char, text: &[u8]) -> bool {
    // The page behind the string may not exist: it is read only if the beginning is equal.
    const PART: usize = 8;
    let (errno, mut bytes) = (errno(), [0u8; PART]);
    let same = text.chunks(PART).enumerate().all(|(n, part)| {
        let bytes = &mut bytes[..part.len()];
        read_into((address as u64).wrapping_add((n * PART) as u64), bytes) && bytes == part
    });
    fail(errno);
    same
}

/// Converts a time to the kernel's form.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().min(i64::MAX as u64) as _, tv_nsec: time.subsec_nanos().into() }
}

/// Calls the kernel's ppoll(2), which is no cancellation point.
pub fn kernel_poll(events: &mut [pollfd], timeout: Option<Duration>) -> c_int {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    call!(libc::SYS_ppoll, events.as_mut_ptr(), events.len(), time, 0, 8) as c_int
}
