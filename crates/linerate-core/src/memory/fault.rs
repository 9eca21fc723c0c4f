//! Protection against memory that another process removes while this process uses it: truncated files, removed
//! hugepages.
//!
//! The kernel then sends SIGBUS. A handler replaces the guarded mapping with pages of zeros and marks it as broken. The
//! access continues, and the mapping's owner checks [`Guard::is_broken`]. Other SIGBUS go to the previous handler.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// The most guarded mappings of a process. A peer has only a few regions of memory.
const MOST: usize = 8192;

/// A guarded mapping. Only atomics, because the signal handler reads it.
struct Entry {
    /// The address; 0 if the entry is free.
    base: AtomicUsize,
    len: AtomicUsize,
    is_broken: AtomicBool,
}

static TABLE: [Entry; MOST] =
    [const { Entry { base: AtomicUsize::new(0), len: AtomicUsize::new(0), is_broken: AtomicBool::new(false) } }; MOST];
/// Locked to claim and free entries, never by the handler.
static CLAIM: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Guards a mapping until this value is dropped, which must be before the memory is unmapped.
pub(super) struct Guard(&'static Entry);

impl Guard {
    /// Guards `len` bytes at `base`, a mapping of complete pages.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if there are too many guarded mappings.
    pub fn new(base: NonNull<u8>, len: usize) -> Result<Guard> {
        INSTALL.call_once(install);
        let _claim = CLAIM.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = TABLE.iter().find(|entry| entry.base.load(Relaxed) == 0) else {
            let why = io::Error::other(format!("{MOST} mappings of other processes' memory are in use"));
            return Err(Error::system("guarding another process's memory", why));
        };
        entry.is_broken.store(false, Relaxed);
        entry.len.store(len, Relaxed);
        entry.base.store(base.as_ptr() as usize, Release);
        Ok(Guard(entry))
    }

    /// Returns whether the memory was removed. It then reads as zeros.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        self.0.is_broken.load(Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _claim = CLAIM.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.base.store(0, Release);
    }
}

fn install() {
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
    // SAFETY: as above; the call below overwrites it.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid structures. The previous handler is stored before the new one is installed, and no
    // mapping is guarded yet.
    unsafe {
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Replaces the guarded mapping at the faulting address, or calls the previous handler. Only reads atomics and makes
/// system calls, so it is async-signal-safe (signal-safety(7)).
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure (SA_SIGINFO).
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A SIGBUS from kill(2) has a process ID instead of an address.
    if code > 0 && replace(address) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        // SAFETY: restores the default action, which ends the process when the instruction is repeated. A fault cannot
        // be ignored.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(signal);
            }
        },
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler with SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without SA_SIGINFO has this type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Replaces the guarded mapping at `address` with pages of zeros. Returns false if there is none, or if mmap fails.
fn replace(address: usize) -> bool {
    let inside = |entry: &'static Entry| {
        let (base, len) = (entry.base.load(Acquire), entry.len.load(Acquire));
        // Other threads may free and claim entries meanwhile, but not the entry of `address`, which is in use.
        let is_of_both = entry.base.load(Relaxed) == base;
        (base != 0 && is_of_both && address.wrapping_sub(base) < len).then_some((entry, base, len))
    };
    let Some((entry, base, len)) = TABLE.iter().find_map(inside) else { return false };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let base = base as *mut libc::c_void;
    // SAFETY: the range is exactly one mapping, which exists as long as its guard's entry. It stays mapped with the
    // same access rights.
    let (replaced, error) = unsafe {
        let errno = libc::__errno_location();
        let error = *errno;
        let replaced = libc::mmap(base, len, protection, flags, -1, 0) != libc::MAP_FAILED;
        (replaced, (errno, error))
    };
    // SAFETY: restores this thread's errno, which the interrupted code may be about to read.
    unsafe { *error.0 = error.1 };
    entry.is_broken.store(true, Release);
    replaced
}
