//! The functions of the C library that are answered here. A call that is not about `/dev/netmap` goes on to the kernel as
//! it is.
//!
//! `open`, `ioctl` and others take more arguments in C than each call has. On Linux's ABIs those come in the same
//! registers whether they are named or not, so that a function with all of them named is the same.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use linerate::Error;

use crate::descriptor::{self, Descriptor};
use crate::header::{NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC};
use crate::real::{call, fail};
use crate::{control, indirect, legacy, waiting};

/// An error as errno(3), and as text for people: errno alone tells little.
pub fn refuse(error: &Error) -> c_int {
    eprintln!("linerate: {error}");
    fail(linerate::shared::errno(error))
}

/// A new descriptor, where the path is netmap's; what else it is does not matter, since nobody else answers it.
fn open_netmap(path: *const c_char, flags: c_int) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a path of the program's, which ends with a zero, as open(2) wants it.
    if unsafe { CStr::from_ptr(path) } != c"/dev/netmap" {
        return None;
    }
    let close = if flags & libc::O_CLOEXEC != 0 { libc::EFD_CLOEXEC } else { 0 };
    let fd = call!(libc::SYS_eventfd2, 0, close) as c_int;
    if fd >= 0 {
        descriptor::set(fd, Some(Arc::new(Descriptor::default())));
    }
    Some(fd)
}

fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_netmap(path, flags).unwrap_or_else(|| call!(libc::SYS_openat, folder, path, flags, mode) as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(folder, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(folder, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    if descriptor::any() {
        // The port is closed before the number is another's.
        drop(descriptor::set(fd, None));
        waiting::forget(fd);
    }
    call!(libc::SYS_close, fd) as c_int
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to && descriptor::any() {
        drop(descriptor::set(to, descriptor::get(from)));
    }
    to
}

#[unsafe(no_mangle)]
extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, call!(libc::SYS_dup, fd) as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        return if call!(libc::SYS_fcntl, fd, libc::F_GETFD) < 0 { -1 } else { fd };
    }
    duplicated(fd, call!(libc::SYS_dup3, fd, to, 0) as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    duplicated(fd, call!(libc::SYS_dup3, fd, to, flags) as c_int)
}

#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(descriptor) = descriptor::get(fd) else { return call!(libc::SYS_ioctl, fd, request, argument) as c_int };
    // Some programs keep the request in an int.
    let request = u64::from(request as u32);
    let answer = match request {
        NIOCTXSYNC | NIOCRXSYNC => match descriptor.bound() {
            None => return fail(libc::ENXIO),
            // The loop syncs.
            Some(bound) if bound.has_entries() => return fail(libc::EBUSY),
            Some(bound) => {
                let synced = match request {
                    NIOCTXSYNC => indirect::sync_tx(&bound),
                    _ => bound.port().sync_rx(),
                };
                synced.and_then(|()| bound.check(false))
            }
        },
        _ if argument.is_null() => return fail(libc::EFAULT),
        // SAFETY: the program hands over the structure that the request is for, and nobody else has it meanwhile.
        NIOCCTRL => control::answer(&descriptor, unsafe { &mut *argument.cast() }),
        // SAFETY: as above.
        NIOCREGIF => legacy::register(&descriptor, unsafe { &mut *argument.cast() }),
        // SAFETY: as above.
        NIOCGINFO => legacy::info(&descriptor, unsafe { &mut *argument.cast() }),
        _ => return fail(libc::EOPNOTSUPP),
    };
    match answer {
        Ok(()) => 0,
        Err(Error::BadRing) => fail(libc::EINVAL),
        // The end of a list is no error.
        Err(Error::Refused { errno: libc::ENOENT, .. }) => fail(libc::ENOENT),
        Err(error) => refuse(&error),
    }
}

fn map(address: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    let map = |fd: c_int| call!(libc::SYS_mmap, address, len, protection, flags, fd, offset) as *mut c_void;
    let Some(descriptor) = descriptor::get(fd).filter(|_| flags & libc::MAP_ANONYMOUS == 0) else { return map(fd) };
    match descriptor.bound() {
        Some(bound) if offset >= 0 && offset as usize + len <= bound.port().memory().mapping.len() => {
            map(bound.port().memory().as_fd().as_raw_fd())
        }
        _ => {
            fail(libc::EINVAL);
            libc::MAP_FAILED
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn mmap(
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
extern "C" fn mmap64(
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
extern "C" fn poll(events: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    waiting::poll(events, count, waiting::milliseconds(timeout), std::ptr::null())
}

#[unsafe(no_mangle)]
extern "C" fn __poll_chk(events: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, _: usize) -> c_int {
    poll(events, count, timeout)
}

#[unsafe(no_mangle)]
extern "C" fn ppoll(
    events: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: a time of the program's, or none, as ppoll(2) wants it.
    waiting::poll(events, count, unsafe { timeout.as_ref() }.map(waiting::time), mask)
}

#[unsafe(no_mangle)]
extern "C" fn __ppoll_chk(
    events: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    _: usize,
) -> c_int {
    ppoll(events, count, timeout, mask)
}

#[unsafe(no_mangle)]
extern "C" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: a time of the program's, or none, as select(2) wants it.
    let longest = unsafe { timeout.as_ref() }.map(waiting::time_of_day);
    waiting::select(count, [read, write, except], longest, std::ptr::null())
}

#[unsafe(no_mangle)]
extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: a time of the program's, or none, as pselect(2) wants it.
    let longest = unsafe { timeout.as_ref() }.map(waiting::time);
    waiting::select(count, [read, write, except], longest, mask)
}

#[unsafe(no_mangle)]
extern "C" fn epoll_ctl(epoll: c_int, change: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
    match descriptor::get(fd) {
        None => call!(libc::SYS_epoll_ctl, epoll, change, fd, event) as c_int,
        // SAFETY: an event of the program's, or none, as epoll_ctl(2) wants it.
        Some(_) => waiting::change(epoll, change, fd, unsafe { event.as_ref() }),
    }
}

#[unsafe(no_mangle)]
extern "C" fn epoll_wait(epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int) -> c_int {
    waiting::epoll(epoll, events, most, waiting::milliseconds(timeout), std::ptr::null())
}

#[unsafe(no_mangle)]
extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    waiting::epoll(epoll, events, most, waiting::milliseconds(timeout), mask)
}

#[unsafe(no_mangle)]
extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: a time of the program's, or none, as epoll_pwait2(2) wants it.
    waiting::epoll(epoll, events, most, unsafe { timeout.as_ref() }.map(waiting::time), mask)
}
