//! The process that owns the object's memory.
//!
//! A child of fork(2) has a copy of the memory, and owns that. A child of vfork(2) or posix_spawn(3) borrows the memory of
//! its parent, and must not change it: its numbers are its own, but the object's records are its parent's.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use crate::call;

/// The owner's number, in a page that is zero in a child with memory of its own (`MADV_WIPEONFORK`); [`FALLBACK`] without
/// such a page. Null before [`start`].
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// A child with memory of its own is known by `begin_child` alone, which is not called after a clone(2) of the program's own.
static FALLBACK: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process owns the memory that it sees. False before [`start`](crate::start).
pub fn owns_memory() -> bool {
    // SAFETY: null, or a word of a page that is never unmapped, or a static.
    let Some(owner) = (unsafe { OWNER.load(Acquire).as_ref() }) else { return false };
    let own = std::process::id();
    match owner.compare_exchange(0, own, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == own,
    }
}

/// Returns the process that owns the memory, mostly without a system call; 0 before [`start`](crate::start).
pub fn owner() -> u32 {
    // SAFETY: as above.
    match unsafe { OWNER.load(Acquire).as_ref() }.map_or(0, |owner| owner.load(Relaxed)) {
        // This process has not asked since its fork(2).
        0 if owns_memory() => std::process::id(),
        owner => owner,
    }
}

/// Makes this process the owner, before it has children.
pub(crate) fn start() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new page, which nothing else has.
    let page = unsafe { call!(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) };
    // SAFETY: as above.
    let is_wiped = page > 0 && unsafe { call!(libc::SYS_madvise, page, 4096, libc::MADV_WIPEONFORK) } == 0;
    OWNER.store(if is_wiped { page as *mut AtomicU32 } else { (&raw const FALLBACK).cast_mut() }, Release);
    owns_memory();
    // SAFETY: the function has no arguments and accesses one word.
    unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
}

/// Makes a child the owner after fork(2), before it can have children that borrow its memory.
unsafe extern "C" fn begin_child() {
    // SAFETY: as in `owns_memory`.
    if let Some(owner) = unsafe { OWNER.load(Acquire).as_ref() } {
        owner.store(std::process::id(), Relaxed);
    }
}
