//! Reads requests and options from the program's memory, and writes answers to it.
#![allow(unsafe_code)]

use linerate::{Error, ErrorKind, Result};
use linerate_preload::memory::{self, Plain};

use crate::header::NmOption;

/// Returns the error for a rejected request.
pub fn refused<T>(why: impl Into<String>, errno: i32) -> Result<T> {
    Err(Error::new(ErrorKind::BadOption, "", why.into()).with_source(std::io::Error::from_raw_os_error(errno)))
}

/// Returns the error for an address outside the program's memory.
pub fn fault<T>() -> Result<T> {
    refused("an address is not in the program's memory", libc::EFAULT)
}

/// Calls `work` with a copy of the program's structure, and writes the copy back, even after an error.
///
/// # Errors
/// `EFAULT`, and errors of `work`.
pub fn with<T: Plain>(address: u64, work: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
    let Ok(mut value) = memory::read(address as *const T) else { return fault() };
    let result = work(&mut value);
    // SAFETY: the program passed the address for the result.
    unsafe { memory::write(address as *mut T, value) }.or_else(|_| fault()).and(result)
}

/// As [`with`], for a request or its body.
///
/// # Errors
/// `EINVAL` if the address is null, and errors of [`with`].
pub fn body<T: Plain>(address: u64, work: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
    if address == 0 {
        return refused("the request, or its body, is missing", libc::EINVAL);
    }
    with(address, work)
}

/// An option's address, and the option.
pub type At = (u64, NmOption);

/// Returns the options of a request in order, at most as many as fit in a request.
///
/// # Errors
/// `EFAULT`.
pub fn options(first: u64) -> Result<Vec<At>> {
    let (mut options, mut next) = (Vec::new(), first);
    while next != 0 && options.len() < MOST_OPTIONS {
        let Ok(option) = memory::read(next as *const NmOption) else { return fault() };
        options.push((next, option));
        next = option.next;
    }
    Ok(options)
}

/// Writes a result to an option's status; returns the result.
///
/// # Errors
/// The error in `result`, or `EFAULT`.
pub fn set_status<T>(address: u64, result: Result<T>) -> Result<T> {
    let status = result.as_ref().err().map_or(0, |error| error.errno() as u32);
    let place = address.wrapping_add(std::mem::offset_of!(NmOption, status) as u64);
    // SAFETY: the program passed the address for the result.
    unsafe { memory::write(place as *mut u32, status) }.or_else(|_| fault()).and(result)
}

/// Maximum size of a request with all its options in bytes (`NETMAP_REQ_MAXSIZE`). Each option also counts a pointer.
pub const LONGEST_REQUEST: u64 = 4096;
const MOST_OPTIONS: usize = LONGEST_REQUEST as usize / size_of::<NmOption>();
