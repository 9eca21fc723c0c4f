//! The program's memory, read and written as the kernel does: an address that is not the program's is `EFAULT`.
//!
//! The copies are made by a system call. The frames themselves are not copied here: the kernel has their addresses.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::iovec;

use super::system::{call, errno, fail};

/// The most parts of a message (`UIO_MAXIOV`).
pub const PARTS: usize = 1024;

/// Copies `len` bytes by a system call that checks the addresses. Keeps errno(3).
///
/// # Safety
/// The address of this object's own memory among the two has `len` bytes.
unsafe fn copied(number: libc::c_long, ours: *mut c_void, theirs: *mut c_void, len: usize) -> Result<(), c_int> {
    if len == 0 {
        return Ok(());
    }
    if theirs.is_null() {
        return Err(libc::EFAULT);
    }
    let before = errno();
    let (ours, theirs) = (iovec { iov_base: ours, iov_len: len }, iovec { iov_base: theirs, iov_len: len });
    let copied = call!(number, std::process::id(), &raw const ours, 1, &raw const theirs, 1, 0);
    let error = errno();
    fail::<c_int>(before);
    match copied {
        copied if copied == len as libc::c_long => Ok(()),
        // A sandbox forbids the call: the program's address is trusted, as in any other library.
        -1 if matches!(error, libc::EPERM | libc::ENOSYS) => {
            let (from, to) = match number {
                libc::SYS_process_vm_readv => (theirs.iov_base, ours.iov_base),
                _ => (ours.iov_base, theirs.iov_base),
            };
            // SAFETY: as the caller says, and as above.
            unsafe { to.cast::<u8>().copy_from(from.cast(), len) };
            Ok(())
        }
        _ => Err(libc::EFAULT),
    }
}

/// Reads bytes of the program.
pub fn read_bytes(from: *const c_void, to: &mut [u8]) -> Result<(), c_int> {
    // SAFETY: the slice has this length.
    unsafe { copied(libc::SYS_process_vm_readv, to.as_mut_ptr().cast(), from.cast_mut(), to.len()) }
}

/// Reads a value of the program.
///
/// # Safety
/// Any bytes are a `T`.
pub unsafe fn read<T: Copy>(from: *const T) -> Result<T, c_int> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: there is room for the value.
    unsafe {
        copied(libc::SYS_process_vm_readv, value.as_mut_ptr().cast(), from.cast_mut().cast(), size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Writes bytes for the program.
pub fn write_bytes(to: *mut c_void, from: &[u8]) -> Result<(), c_int> {
    // SAFETY: the slice has this length, and is only read.
    unsafe { copied(libc::SYS_process_vm_writev, from.as_ptr().cast_mut().cast(), to, from.len()) }
}

/// Writes a value for the program.
pub fn write<T: Copy>(to: *mut T, value: T) -> Result<(), c_int> {
    let ours = (&raw const value).cast_mut().cast();
    // SAFETY: the value has this size, and is only read.
    unsafe { copied(libc::SYS_process_vm_writev, ours, to.cast(), size_of::<T>()) }
}

/// Returns the parts of a message; those that are too many are `EMSGSIZE` before any is read.
pub fn parts(from: *const iovec, count: usize) -> Result<Vec<iovec>, c_int> {
    if count > PARTS {
        return Err(libc::EMSGSIZE);
    }
    let mut parts = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; count];
    // SAFETY: there is room for as many.
    unsafe {
        copied(
            libc::SYS_process_vm_readv,
            parts.as_mut_ptr().cast(),
            from.cast_mut().cast(),
            count * size_of::<iovec>(),
        )?;
    }
    Ok(parts)
}
