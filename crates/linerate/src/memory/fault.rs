//! Memory that another process may take away while this one uses it: truncated files, removed hugepages.
//!
//! The kernel then sends SIGBUS. A handler replaces the guarded mapping by pages of zeros, and notes that it is broken; the
//! access goes on, and its owner finds out by [`Guard::is_broken`]. Other SIGBUS go to the handler that was there before.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// The most guarded mappings of a process: a peer's memory is of few regions.
const MOST: usize = 8192;

/// A guarded mapping, as the handler sees it: only atomics.
struct Entry {
    /// Address; 0: the entry is free.
    base: AtomicUsize,
    len: AtomicUsize,
    is_broken: AtomicBool,
}

static TABLE: [Entry; MOST] =
    [const { Entry { base: AtomicUsize::new(0), len: AtomicUsize::new(0), is_broken: AtomicBool::new(false) } }; MOST];
/// Taken to claim and to free entries, never by the handler.
static CLAIM: Mutex<()> = Mutex::new(());
static INSTALL: Once = Once::new();
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Guards a mapping until it is dropped, which must be before the memory is unmapped.
pub(super) struct Guard(&'static Entry);

impl Guard {
    /// Guards `len` bytes from `base` on, a mapping of whole pages.
    ///
    /// # Errors
    /// [`Error::System`] if there are too many.
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

    /// Returns whether the memory was taken away. It reads as zeros since then.
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
    // SAFETY: as above; it is overwritten.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both point to valid structures. The earlier handler is known before this one can be called for memory of
    // ours, since no mapping is guarded yet; a fault between the two calls kills the process as it would have anyway.
    unsafe {
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Replaces the guarded mapping of the faulting address, or calls the handler that was there before. It only reads atomics
/// and makes system calls, so it is safe in a signal (signal-safety(7)).
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure (SA_SIGINFO).
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A SIGBUS of kill(2) has a process in the address's place.
    if code > 0 && replace(address) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        // SAFETY: the default action ends the process when the instruction is repeated. A fault cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(signal);
            }
        },
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a function of this type.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Replaces the guarded mapping at `address` by zeros; returns false if there is none.
fn replace(address: usize) -> bool {
    let inside = |entry: &'static Entry| {
        let (base, len) = (entry.base.load(Acquire), entry.len.load(Acquire));
        // An entry may be freed and claimed meanwhile, but not that of this address, which is in use.
        let is_of_both = entry.base.load(Relaxed) == base;
        (base != 0 && is_of_both && address.wrapping_sub(base) < len).then_some((entry, base, len))
    };
    let Some((entry, base, len)) = TABLE.iter().find_map(inside) else { return false };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let base = base as *mut libc::c_void;
    // SAFETY: the whole range is one mapping of a guard's owner, which exists as long as the entry does. It stays mapped,
    // for the same accesses.
    let (replaced, error) = unsafe {
        let errno = libc::__errno_location();
        let error = *errno;
        let replaced = libc::mmap(base, len, protection, flags, -1, 0) != libc::MAP_FAILED;
        (replaced, (errno, error))
    };
    // SAFETY: this thread's errno; the interrupted code may be about to read it.
    unsafe { *error.0 = error.1 };
    entry.is_broken.store(true, Release);
    replaced
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use crate::memory::Mapping;

    const KIND: &str = "LINERATE_FAULT";

    extern "C" fn with_info(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid structure, and the process ends here.
        unsafe { libc::_exit(if (*info).si_addr().is_null() { 99 } else { 41 }) }
    }

    extern "C" fn plain(_: libc::c_int) {
        // SAFETY: the process ends here.
        unsafe { libc::_exit(42) }
    }

    /// Returns memory that is there, and its file.
    fn memory(map: impl Fn(std::os::fd::OwnedFd) -> Mapping) -> (Mapping, std::os::fd::OwnedFd) {
        let file = memfd_create("fault", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        (map(file.try_clone().unwrap()), file)
    }

    /// The child: an earlier handler, guarded memory that goes away, and a signal that is not ours.
    #[test]
    fn in_a_process_of_its_own() {
        let Ok(kind) = std::env::var(KIND) else { return };
        let (before, signal) = kind.split_once(' ').unwrap();
        // SAFETY: as in `install`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_flags, action.sa_sigaction) = match before {
                "info" => (libc::SA_SIGINFO, with_info as extern "C" fn(_, _, _) as usize),
                "plain" => (0, plain as extern "C" fn(_) as usize),
                "ignored" => (0, libc::SIG_IGN),
                _ => (0, libc::SIG_DFL),
            };
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
        let (guarded, file) = memory(|file| Mapping::of_unsealed_peer(file).unwrap());
        guarded.write(0, &[5; 8]);
        ftruncate(&file, 0).unwrap();
        let mut bytes = [9; 8];
        guarded.read(0, &mut bytes);
        assert!(bytes == [0; 8] && guarded.is_broken());
        if signal == "raise" {
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
        } else {
            let (other, file) = memory(|file| Mapping::of_device(file, 0, 4096).unwrap());
            ftruncate(&file, 0).unwrap();
            other.read(0, &mut bytes);
            std::hint::black_box(bytes);
        }
        // SAFETY: the process ends here.
        unsafe { libc::_exit(43) }
    }

    #[test]
    fn other_signals_go_to_the_handler_that_was_there_before() {
        for (kind, code, by_signal) in [
            ("info fault", Some(41), None),
            ("plain fault", Some(42), None),
            ("ignored fault", None, Some(libc::SIGBUS)),
            ("default fault", None, Some(libc::SIGBUS)),
            ("plain raise", Some(42), None),
            ("ignored raise", Some(43), None),
            ("default raise", None, Some(libc::SIGBUS)),
        ] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "memory::fault::tests::in_a_process_of_its_own"]).env(KIND, kind);
            let output = child.output().unwrap();
            assert_eq!((output.status.code(), output.status.signal()), (code, by_signal), "{kind}: {output:?}");
        }
    }
}
