//! Reads and writes the program's memory as the kernel does: an invalid address returns a [`Fault`].
//!
//! A pointer is only used after the kernel has checked it, so any pointer may be passed. process_vm_readv(2) costs as
//! much as a netmap sync, and sandboxes forbid it. So small copies only probe with a cheap system call whether the
//! pages exist, and then copy directly. A program that unmaps its memory between the two is killed, as it would be in
//! the C library.
//!
//! All functions keep errno(3).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::iovec;

use crate::{call, errno, keeping_errno};

/// An address that is not in the program's memory: `EFAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

impl From<Fault> for c_int {
    fn from(_: Fault) -> c_int {
        libc::EFAULT
    }
}

/// A C type that programs pass, for which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern is a valid value of the type.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: an integer, or a structure of integers and raw pointers.
            unsafe impl Plain for $type {}
        )*
    };
}

plain! {
    u8, i16, u32, i32, u64, [i32; 2],
    libc::pollfd, libc::epoll_event, libc::timespec, libc::timeval, libc::stat, libc::statx,
    libc::iovec, libc::msghdr, libc::sockaddr_ll, libc::packet_mreq, libc::sock_fprog,
}

/// The most bytes that are copied directly, after probing.
const MAX_DIRECT: usize = 16 << 10;
const PAGE: usize = 4096;

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    From,
    To,
}

/// Copies from or to the program's memory.
///
/// # Safety
/// `ours` has `len` bytes, which are writable if the direction is [`Copies::From`].
unsafe fn copy(direction: Copies, theirs: *mut c_void, ours: *mut c_void, len: usize) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    keeping_errno(|| {
        let address = theirs as usize;
        let (is_accessible, number) = match direction {
            Copies::From => (is_readable(address, len), libc::SYS_process_vm_readv),
            Copies::To => (is_writable(address, len), libc::SYS_process_vm_writev),
        };
        let mut is_copied_here = is_accessible == Some(true);
        if is_accessible.is_none() {
            let (ours, theirs) = (iovec { iov_base: ours, iov_len: len }, iovec { iov_base: theirs, iov_len: len });
            // SAFETY: by the caller's promise; the kernel checks the other address.
            let copied = unsafe { call!(number, std::process::id(), &raw const ours, 1, &raw const theirs, 1, 0) };
            if copied >= 0 {
                return if copied as usize == len { Ok(()) } else { Err(Fault) };
            }
            // If the kernel forbids the call, the address cannot be checked, and is used unchecked, as in the C
            // library.
            is_copied_here = is_forbidden() && address > usize::from(u16::MAX);
        }
        if !is_copied_here {
            return Err(Fault);
        }
        // SAFETY: by the caller's promise; the program's memory exists, as the kernel has just confirmed, or as the C
        // library also assumes.
        unsafe {
            match direction {
                Copies::From => std::ptr::copy(theirs.cast::<u8>(), ours.cast(), len),
                Copies::To => std::ptr::copy(ours.cast::<u8>(), theirs.cast(), len),
            }
        }
        Ok(())
    })
}

/// Probes each page of this memory with `is_accessible`; returns whether all exist.
fn probe_pages(address: usize, len: usize, mut is_accessible: impl FnMut(usize) -> bool) -> Option<bool> {
    let Some(end) = address.checked_add(len).filter(|_| address >= PAGE) else { return Some(len == 0) };
    let mut at = address;
    while at < end {
        if !is_accessible(at) {
            return Some(false);
        }
        at = at / PAGE * PAGE + PAGE;
    }
    Some(true)
}

/// Returns whether memory can be read; `None` if this is unknown.
fn is_readable(address: usize, len: usize) -> Option<bool> {
    if len > MAX_DIRECT {
        return None;
    }
    // Calls sigprocmask(2) with a set and an invalid operation: it fails with EINVAL if the set can be read. A signal
    // handler may change errno, so the call is repeated.
    let ask = |at: usize| {
        // SAFETY: the kernel only reads from the address.
        let answer = unsafe { call!(libc::SYS_rt_sigprocmask, -1, at & !7, 0, 8) };
        if answer < 0 { errno() } else { 0 }
    };
    probe_pages(address, len, |at| {
        (0..8).map(|_| ask(at)).find(|answer| matches!(*answer, libc::EINVAL | libc::EFAULT)) == Some(libc::EINVAL)
    })
}

/// Returns whether memory can be written; `None` if this is unknown. Overwrites parts of it, so the caller must write
/// to all of it.
fn is_writable(address: usize, len: usize) -> Option<bool> {
    // The 8 bytes that the probe writes in each page must be inside the memory.
    let in_first = PAGE - address % PAGE;
    let in_last = address.wrapping_add(len).wrapping_sub(1) % PAGE + 1;
    if !(8..=MAX_DIRECT).contains(&len) || len > in_first && in_first.min(in_last) < 8 {
        return None;
    }
    // SAFETY: sigprocmask(2) writes the current set to memory that the program has passed for a result.
    probe_pages(address, len, |at| unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, at, 8) == 0 })
}

/// Returns whether the kernel has refused to copy: in a sandbox, or because it was built without these system calls.
fn is_forbidden() -> bool {
    matches!(errno(), libc::EPERM | libc::ENOSYS)
}

/// Reads bytes from the program's memory.
///
/// # Errors
/// [`Fault`] if not all of them can be read.
pub fn read_bytes(from: *const c_void, to: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the slice has this length.
    unsafe { copy(Copies::From, from.cast_mut(), to.as_mut_ptr().cast(), to.len()) }
}

/// Reads a value from the program's memory, at any alignment.
///
/// # Errors
/// [`Fault`] if it cannot be read.
pub fn read<T: Plain>(from: *const T) -> Result<T, Fault> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: there is room for the value, and any bytes are a valid value.
    unsafe {
        copy(Copies::From, from.cast_mut().cast(), value.as_mut_ptr().cast(), size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// As [`read`]; `None` for a null pointer.
///
/// # Errors
/// As [`read`].
pub fn read_optional<T: Plain>(from: *const T) -> Result<Option<T>, Fault> {
    if from.is_null() { Ok(None) } else { read(from).map(Some) }
}

/// Reads `count` values from the program's memory.
///
/// # Errors
/// As [`read`].
pub fn read_all<T: Plain>(from: *const T, count: usize) -> Result<Vec<T>, Fault> {
    let len = count.checked_mul(size_of::<T>()).ok_or(Fault)?;
    let mut values: Vec<T> = Vec::with_capacity(count);
    // SAFETY: there is room for `count` values, and any bytes are valid values.
    unsafe {
        copy(Copies::From, from.cast_mut().cast(), values.as_mut_ptr().cast(), len)?;
        values.set_len(count);
    }
    Ok(values)
}

/// Reads a duration from the program's memory; `None` for a null pointer.
///
/// # Errors
/// `EFAULT` if it cannot be read, `EINVAL` if it is not a valid duration.
pub fn read_duration(from: *const libc::timespec) -> Result<Option<Duration>, c_int> {
    let Some(time) = read_optional(from)? else { return Ok(None) };
    match (u64::try_from(time.tv_sec), time.tv_nsec) {
        (Ok(seconds), 0..=999_999_999) => Ok(Some(Duration::new(seconds, time.tv_nsec as u32))),
        _ => Err(libc::EINVAL),
    }
}

/// Writes bytes to the program's memory.
///
/// # Errors
/// [`Fault`] if not all of them can be written.
///
/// # Safety
/// The program has passed the address for a result, or it is not mapped in this process. This library has no reference
/// to the memory there.
pub unsafe fn write_bytes(to: *mut c_void, from: &[u8]) -> Result<(), Fault> {
    // SAFETY: the slice has this length, and is only read.
    unsafe { copy(Copies::To, to, from.as_ptr().cast_mut().cast(), from.len()) }
}

/// Writes a value to the program's memory, at any alignment.
///
/// # Errors
/// [`Fault`] if it cannot be written.
///
/// # Safety
/// As for [`write_bytes`].
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> Result<(), Fault> {
    // SAFETY: the value has this size, and is only read.
    unsafe { copy(Copies::To, to.cast(), (&raw const value).cast_mut().cast(), size_of::<T>()) }
}

/// Writes each value to its own address.
///
/// # Errors
/// [`Fault`] if one of them cannot be written.
///
/// # Safety
/// As for [`write_bytes`], for each address.
pub unsafe fn write_each<T: Copy>(values: &[(*mut T, T)]) -> Result<(), Fault> {
    // The limit of one call is 1,024 addresses (UIO_MAXIOV).
    values.chunks(1024).try_for_each(|values| {
        let ours: Vec<T> = values.iter().map(|(_, value)| *value).collect();
        let len = size_of_val(&ours[..]);
        let from = iovec { iov_base: ours.as_ptr().cast_mut().cast(), iov_len: len };
        let to = |(address, _): &(*mut T, T)| iovec { iov_base: address.cast(), iov_len: size_of::<T>() };
        let to: Vec<iovec> = values.iter().map(to).collect();
        let number: c_long = libc::SYS_process_vm_writev;
        let write = || {
            let pid = std::process::id();
            // SAFETY: the values have this length, and are only read; the kernel checks the other addresses.
            let copied = unsafe { call!(number, pid, &raw const from, 1, to.as_ptr(), to.len(), 0) };
            (copied, copied < 0 && is_forbidden())
        };
        match keeping_errno(write) {
            (_, true) => {
                // SAFETY: by the caller's promise.
                values.iter().try_for_each(|(address, value)| unsafe { self::write(*address, *value) })
            }
            (copied, _) => {
                if copied == len as c_long {
                    Ok(())
                } else {
                    Err(Fault)
                }
            }
        }
    })
}

/// Returns whether the program's string equals `text`, which includes the terminating zero.
pub fn is_text(address: *const c_char, text: &[u8]) -> bool {
    // The page after the string may not exist, so each part is read only if the previous parts are equal.
    const PART: usize = 8;
    let mut bytes = [0u8; PART];
    text.chunks(PART).enumerate().all(|(n, part)| {
        let bytes = &mut bytes[..part.len()];
        read_bytes(address.wrapping_add(n * PART).cast(), bytes).is_ok() && bytes == part
    })
}
