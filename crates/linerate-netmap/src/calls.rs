//! The functions of the C library that this library replaces. A call that is not about `/dev/netmap` goes to the C
//! library's own function unchanged, and remains async-signal-safe or a cancellation point.
//!
//! A thread that is cancelled or ends in the C library unwinds through the functions of this file. They are therefore
//! `C-unwind`, and have nothing to drop where they call the C library. All other code runs in `deferred`, and all
//! except waits also in `guarded`: a program may allow cancellation at any instruction.
//!
//! `open`, `fcntl` and `ioctl` are variadic in C. Linux ABIs pass variadic arguments in the same registers as named
//! ones, so functions with named arguments are equivalent.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use linerate::{Error, ErrorKind};
use linerate_preload::{call, deferred, errno, fail, guarded, hold_at_fork, memory, report, set_errno};

use crate::header::{NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC};
use crate::real::next;
use crate::table::{self, DescriptorRef, TABLE};
use crate::{control, legacy, real, waiting};

// Runs when the library is loaded.
#[used]
// SAFETY: the section is an array of functions that the loader calls.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    guarded((), || {
        real::find_all();
        linerate_preload::start();
        hold_at_fork!(waiting::Locked, waiting::lock, |_| {});
    });
}

/// Reports an error: sets errno(3), and writes the message to stderr.
pub fn refuse(error: &Error) -> c_int {
    report(&error.with_command_hint());
    fail(error.errno())
}

/// Opens a descriptor, if the path is `/dev/netmap`.
fn open_netmap(path: *const c_char, flags: c_int) -> Option<c_int> {
    if !is_device(path) {
        return None;
    }
    deferred(|| guarded(Some(-1), || table::open(flags & libc::O_CLOEXEC != 0)))
}

macro_rules! open {
    ($path:expr, $flags:expr, $($next:tt)*) => {
        match open_netmap($path, $flags) {
            Some(answer) => answer,
            None => next!($($next)*),
        }
    };
}

#[unsafe(no_mangle)]
extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open!(path, flags, open(path, flags, mode))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open!(path, flags, open64(path, flags, mode))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    open!(path, flags, __open_2(path, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    open!(path, flags, __open64_2(path, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open!(path, flags, openat(folder, path, flags, mode))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open!(path, flags, openat64(folder, path, flags, mode))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    open!(path, flags, __openat_2(folder, path, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    open!(path, flags, __openat64_2(folder, path, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    open!(path, 0, creat(path, mode))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn creat64(path: *const c_char, mode: c_uint) -> c_int {
    open!(path, 0, creat64(path, mode))
}

/// Returns whether a path is `/dev/netmap`.
fn is_device(path: *const c_char) -> bool {
    deferred(|| memory::is_text(path, b"/dev/netmap\0"))
}

/// Writes the status of `/dev/netmap`: a character device of class `misc` that all users may read and write.
fn stat_device(at: *mut libc::stat) -> c_int {
    // SAFETY: all fields are integers.
    let mut status = unsafe { std::mem::zeroed::<libc::stat>() };
    status.st_mode = libc::S_IFCHR | 0o666;
    status.st_nlink = 1;
    status.st_rdev = libc::makedev(10, 60);
    // SAFETY: the program passed the address for the result.
    unsafe { memory::write(at, status) }.map_or_else(fail, |()| 0)
}

macro_rules! describe {
    ($is_ours:expr, $at:expr, $($next:tt)*) => {
        if $is_ours { deferred(|| guarded(-1, || stat_device($at))) } else { next!($($next)*) }
    };
}

/// Returns whether a descriptor is one of `/dev/netmap`.
fn is_ours(fd: c_int) -> bool {
    table::may_be_ours(fd) && deferred(|| guarded(false, || TABLE.get(fd).is_some()))
}

/// `struct stat`, which is the same as `struct stat64` on the supported 64-bit systems.
type Stat = libc::stat;

#[unsafe(no_mangle)]
extern "C-unwind" fn stat(path: *const c_char, at: *mut Stat) -> c_int {
    describe!(is_device(path), at, stat(path, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn stat64(path: *const c_char, at: *mut Stat) -> c_int {
    describe!(is_device(path), at, stat64(path, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn lstat(path: *const c_char, at: *mut Stat) -> c_int {
    describe!(is_device(path), at, lstat(path, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn lstat64(path: *const c_char, at: *mut Stat) -> c_int {
    describe!(is_device(path), at, lstat64(path, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fstatat(folder: c_int, path: *const c_char, at: *mut Stat, flags: c_int) -> c_int {
    describe!(is_device(path), at, fstatat(folder, path, at, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fstatat64(folder: c_int, path: *const c_char, at: *mut Stat, flags: c_int) -> c_int {
    describe!(is_device(path), at, fstatat64(folder, path, at, flags))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fstat(fd: c_int, at: *mut Stat) -> c_int {
    describe!(is_ours(fd), at, fstat(fd, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fstat64(fd: c_int, at: *mut Stat) -> c_int {
    describe!(is_ours(fd), at, fstat64(fd, at))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    at: *mut libc::statx,
) -> c_int {
    if !is_device(path) {
        return next!(statx(folder, path, flags, mask, at));
    }
    deferred(|| guarded(-1, || statx_device(at)))
}

/// As [`stat_device`].
fn statx_device(at: *mut libc::statx) -> c_int {
    // SAFETY: all fields are integers.
    let mut status = unsafe { std::mem::zeroed::<libc::statx>() };
    status.stx_mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_NLINK;
    status.stx_mode = (libc::S_IFCHR | 0o666) as u16;
    status.stx_nlink = 1;
    (status.stx_rdev_major, status.stx_rdev_minor) = (10, 60);
    // SAFETY: the program passed the address for the result.
    unsafe { memory::write(at, status) }.map_or_else(fail, |()| 0)
}

/// Answers access(2): all users may read and write `/dev/netmap`, but not execute it.
fn may(mode: c_int) -> c_int {
    if mode & libc::X_OK == 0 { 0 } else { fail(libc::EACCES) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn access(path: *const c_char, mode: c_int) -> c_int {
    if is_device(path) { may(mode) } else { next!(access(path, mode)) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if is_device(path) { may(mode) } else { next!(faccessat(folder, path, mode, flags)) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
    if is_device(path) { may(mode) } else { next!(euidaccess(path, mode)) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn eaccess(path: *const c_char, mode: c_int) -> c_int {
    if is_device(path) { may(mode) } else { next!(eaccess(path, mode)) }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    if !table::may_be_ours(fd) {
        return next!(close(fd));
    }
    deferred(|| {
        guarded(-1, || {
            // Forget it first: another thread may get the number as soon as it is closed.
            let forgotten = TABLE.forget(fd);
            // SAFETY: the program closes its own descriptor.
            let result = unsafe { call!(libc::SYS_close, fd) } as c_int;
            let errno = errno();
            drop(forgotten);
            if result < 0 { fail(errno) } else { result }
        })
    })
}

/// Removes closed descriptors from the table. Returns `answer`, and keeps errno(3).
fn swept(answer: c_int) -> c_int {
    if TABLE.any() {
        let errno = errno();
        deferred(|| guarded((), || TABLE.sweep()));
        set_errno(errno);
    }
    answer
}

#[unsafe(no_mangle)]
extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    swept(next!(close_range(first, last, flags)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn closefrom(first: c_int) {
    if let Some(closefrom) = real::closefrom() {
        // SAFETY: the C library's function, with the program's own argument.
        unsafe { closefrom(first) };
    }
    swept(0);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    swept(next!(fclose(file)))
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    if table::may_be_ours(from) || table::may_be_ours(to) {
        let errno = errno();
        deferred(|| guarded((), || drop(TABLE.duplicate(from, to))));
        set_errno(errno);
    }
    to
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup(fd: c_int) -> c_int {
    duplicated(fd, next!(dup(fd)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    duplicated(fd, next!(dup2(fd, to)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    duplicated(fd, next!(dup3(fd, to, flags)))
}

fn controlled(fd: c_int, command: c_int, answer: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, answer),
        _ => answer,
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    controlled(fd, command, next!(fcntl(fd, command, argument)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    controlled(fd, command, next!(fcntl64(fd, command, argument)))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // Some programs store the request in an int, which is sign-extended.
    let number = u64::from(request as u32);
    if table::may_be_ours(fd) || REQUESTS.contains(&number) {
        let ours = || {
            let held = TABLE.get(fd).or_else(|| table::adopt(fd).filter(|_| REQUESTS.contains(&number)));
            held.map(|held| control(&held, number, argument as u64))
        };
        if let Some(answer) = deferred(|| guarded(Some(-1), ours)) {
            return answer;
        }
    }
    next!(ioctl(fd, request, argument))
}

/// netmap's requests.
const REQUESTS: [u64; 5] = [NIOCTXSYNC, NIOCRXSYNC, NIOCCTRL, NIOCREGIF, NIOCGINFO];

/// Answers netmap's ioctl(2) requests.
fn control(held: &DescriptorRef, request: u64, argument: u64) -> c_int {
    let answer = match request {
        NIOCTXSYNC | NIOCRXSYNC => match held.bound() {
            None => return fail(libc::ENXIO),
            // In CSB mode, only the loop may sync.
            Some(bound) if bound.has_entries() => return fail(libc::EBUSY),
            Some(bound) => {
                let synced = match request {
                    NIOCTXSYNC => bound.sync_tx(held.fd),
                    _ => bound.sync_rx(held.fd),
                };
                waiting::keep_armed(held, bound);
                match synced {
                    // An invalid head or cur resets the ring; only poll(2) reports the error.
                    Err(error) if error.kind() != ErrorKind::BadRing => Err(error),
                    _ => bound.check(held.fd, false),
                }
            }
        },
        NIOCCTRL => control::answer_at(held, argument),
        NIOCREGIF => legacy::answer_at(argument, |nmreq| legacy::register(held, nmreq)),
        NIOCGINFO => legacy::answer_at(argument, |nmreq| legacy::info(held, nmreq)),
        _ => return fail(libc::EOPNOTSUPP),
    };
    match answer {
        Ok(()) => 0,
        Err(error) if error.kind() == ErrorKind::BadRing => fail(libc::EINVAL),
        // Do not print these errors: the end of a list is normal, and errno suffices for a bad pointer.
        Err(error) if matches!(error.errno(), libc::ENOENT | libc::EFAULT) => fail(error.errno()),
        Err(error) => refuse(&error),
    }
}

fn map(address: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    // SAFETY: the program's own arguments.
    let map = |fd: c_int| unsafe { call!(libc::SYS_mmap, address, len, protection, flags, fd, offset) as *mut c_void };
    // Do not call the C library's mmap: an allocator may map anonymous memory very early. mmap(2) of a socket fails
    // with ENODEV; the descriptor may then be one of /dev/netmap that this process does not know yet.
    if flags & libc::MAP_ANONYMOUS != 0 || !table::may_be_ours(fd) {
        let mapped = map(fd);
        if mapped != libc::MAP_FAILED || flags & libc::MAP_ANONYMOUS != 0 || errno() != libc::ENODEV {
            return mapped;
        }
    }
    deferred(|| guarded(libc::MAP_FAILED, || map_port(fd, len, offset, map)))
}

/// Maps the memory of a descriptor's port by `map`, or `fd` itself if it is not a descriptor of `/dev/netmap`.
fn map_port(fd: c_int, len: usize, offset: i64, map: impl Fn(c_int) -> *mut c_void) -> *mut c_void {
    let Some(held) = TABLE.get(fd).or_else(|| table::adopt(fd)) else { return map(fd) };
    let seen = held.bound().map(|bound| bound.port().region().1);
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
    match (seen, end) {
        (Some(seen), Some(end)) if end <= seen => match linerate::share::netmap_object::memory_of(real::borrow(fd)) {
            Ok(Some(memory)) => map(memory.as_raw_fd()),
            Ok(None) => {
                refuse(&crate::descriptor::gone());
                libc::MAP_FAILED
            }
            Err(error) => {
                refuse(&error);
                libc::MAP_FAILED
            }
        },
        _ => {
            set_errno(libc::EINVAL);
            libc::MAP_FAILED
        }
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(address, len, protection, flags, fd, offset)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    map(address, len, protection, flags, fd, offset)
}

/// Answers a waiting call here, or calls the C library's function.
macro_rules! wait {
    ($ours:expr, $($next:tt)*) => {
        match deferred(|| $ours) {
            Some(answer) => answer,
            None => next!($($next)*),
        }
    };
}

#[unsafe(no_mangle)]
extern "C-unwind" fn poll(events: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let longest = || Ok(waiting::milliseconds(timeout));
    wait!(waiting::poll(events, count, longest, null()), poll(events, count, timeout))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __poll_chk(events: *mut pollfd, count: nfds_t, timeout: c_int, len: usize) -> c_int {
    let longest = || Ok(waiting::milliseconds(timeout));
    wait!(waiting::poll(events, count, longest, null()), __poll_chk(events, count, timeout, len))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn ppoll(
    events: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    wait!(waiting::poll(events, count, || memory::read_duration(timeout), mask), ppoll(events, count, timeout, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __ppoll_chk(
    events: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    len: usize,
) -> c_int {
    wait!(
        waiting::poll(events, count, || memory::read_duration(timeout), mask),
        __ppoll_chk(events, count, timeout, mask, len)
    )
}

#[unsafe(no_mangle)]
extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let longest = || waiting::time_of_day(timeout);
    let ours = || waiting::select(count, [read, write, except], longest, timeout, null());
    wait!(ours(), select(count, read, write, except, timeout))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let longest = || memory::read_duration(timeout);
    let ours = || waiting::select(count, [read, write, except], longest, std::ptr::null_mut(), mask);
    wait!(ours(), pselect(count, read, write, except, timeout, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if table::may_be_ours(fd)
        && let Some(answer) = deferred(|| guarded(Some(-1), || waiting::change(epoll, change, fd, event)))
    {
        return answer;
    }
    next!(epoll_ctl(epoll, change, fd, event))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let longest = || Ok(waiting::milliseconds(timeout));
    wait!(waiting::epoll(epoll, events, most, longest, null()), epoll_wait(epoll, events, most, timeout))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let longest = || Ok(waiting::milliseconds(timeout));
    wait!(waiting::epoll(epoll, events, most, longest, mask), epoll_pwait(epoll, events, most, timeout, mask))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let longest = || memory::read_duration(timeout);
    wait!(waiting::epoll(epoll, events, most, longest, mask), epoll_pwait2(epoll, events, most, timeout, mask))
}
