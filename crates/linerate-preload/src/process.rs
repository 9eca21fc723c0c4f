//! The process that owns the preloaded library's memory.
//!
//! A child of fork(2) owns its copy of the memory. A child of vfork(2) or posix_spawn(3) borrows the memory of its
//! parent and must not change it: the child has its own descriptors, but the library's records are those of the parent.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use crate::call;

/// The owner's process ID, in a page that is zeroed in a child with its own memory (`MADV_WIPEONFORK`); [`FALLBACK`] if
/// the kernel does not support this. Null before [`start`].
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Only `begin_child` updates this in a child with its own memory. `begin_child` is not called if the program calls
/// clone(2) itself.
static FALLBACK: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process owns the memory that it uses. False before [`start`](crate::start).
pub fn owns_memory() -> bool {
    // SAFETY: null, or a word in a page that is never unmapped, or a static.
    let Some(owner) = (unsafe { OWNER.load(Acquire).as_ref() }) else { return false };
    let own = std::process::id();
    match owner.compare_exchange(0, own, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == own,
    }
}

/// Returns the ID of the process that owns the memory, usually without a system call; 0 before [`start`](crate::start).
pub fn owner() -> u32 {
    // SAFETY: as above.
    match unsafe { OWNER.load(Acquire).as_ref() }.map_or(0, |owner| owner.load(Relaxed)) {
        // The first call in this process after fork(2).
        0 if owns_memory() => std::process::id(),
        owner => owner,
    }
}

/// Makes this process the owner, before it has children.
pub(crate) fn start() {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new page at an address that the kernel chooses.
    let page = unsafe { call!(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) };
    // SAFETY: as above.
    let is_wiped = page > 0 && unsafe { call!(libc::SYS_madvise, page, 4096, libc::MADV_WIPEONFORK) } == 0;
    OWNER.store(if is_wiped { page as *mut AtomicU32 } else { (&raw const FALLBACK).cast_mut() }, Release);
    owns_memory();
    // SAFETY: the function has no arguments and accesses one word.
    unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
}

/// Makes a child of fork(2) the owner, before it can have children that borrow its memory.
unsafe extern "C" fn begin_child() {
    // SAFETY: as in `owns_memory`.
    if let Some(owner) = unsafe { OWNER.load(Acquire).as_ref() } {
        owner.store(std::process::id(), Relaxed);
    }
}
