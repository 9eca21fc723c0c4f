//! Registers whose card was pulled out, over uio: the kernel takes their memory away, and the next access
//! would end the process with SIGBUS. Here it finds all ones instead, as on a bus where nobody answers, and
//! drivers take that for what it is.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::MemfdFlags;

use crate::error::{Error, Result};
use crate::memory::{Mapping, PageSize};

/// The registers that are watched. The handler of a signal may not lock, so these are atomics; a length of
/// 0 is a free place.
static RANGES: [Range; 64] = [const { Range { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; 64];
/// A page of ones; -1 until somebody needs it.
static ONES: AtomicI32 = AtomicI32::new(-1);

struct Range {
    start: AtomicUsize,
    len: AtomicUsize,
}

/// Watches a mapping until it is dropped; it must go before the mapping does.
pub(super) struct Watched {
    place: usize,
}

impl Watched {
    /// From here on, what the kernel takes away of `memory` reads as ones.
    ///
    /// # Errors
    /// Where the process has no descriptors left, or too many cards.
    pub fn new(memory: &Mapping) -> Result<Watched> {
        static SETTING_UP: Mutex<()> = Mutex::new(());
        let _one_at_a_time = SETTING_UP.lock().unwrap_or_else(PoisonError::into_inner);
        if ONES.load(Ordering::Acquire) < 0 {
            install()?;
        }
        let free = RANGES.iter().position(|range| range.len.load(Ordering::Acquire) == 0);
        let place = free.ok_or_else(|| Error::system("watching a card's registers", rustix::io::Errno::MFILE))?;
        RANGES[place].start.store(memory.address() as usize, Ordering::Release);
        RANGES[place].len.store(memory.len(), Ordering::Release);
        Ok(Watched { place })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        RANGES[self.place].len.store(0, Ordering::Release);
    }
}

/// Makes the page, and installs the handler, once.
fn install() -> Result<()> {
    let page =
        rustix::fs::memfd_create("linerate-gone", MemfdFlags::CLOEXEC).map_err(|e| Error::system("memfd_create", e))?;
    rustix::io::write(&page, &vec![0xFF; PageSize::Ordinary.bytes()]).map_err(|e| Error::system("write", e))?;
    // SAFETY: the handler only reads atomics and makes async-signal-safe calls; the structure is plain data, whose
    // zeros mean no flags and an empty mask.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
    };
    if outcome != 0 {
        return Err(Error::system("sigaction", std::io::Error::last_os_error()));
    }
    ONES.store(keep(page), Ordering::Release);
    Ok(())
}

/// The page stays open for as long as the process lives.
fn keep(page: OwnedFd) -> i32 {
    let fd = page.as_raw_fd();
    std::mem::forget(page);
    fd
}

/// Puts a page of ones where a watched access failed; any other failure ends the process, as it would have.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_watched = RANGES.iter().any(|range| {
        let offset = address.wrapping_sub(range.start.load(Ordering::Acquire));
        offset < range.len.load(Ordering::Acquire)
    });
    // SAFETY: sysconf, mmap and signal are plain system calls or constants. The page that is replaced belongs to a
    // mapping of registers that is alive, since its `Watched` is, and which the kernel has emptied.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let place = (address & !(page - 1)) as *mut libc::c_void;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let ones = ONES.load(Ordering::Acquire);
        if !is_watched || libc::mmap(place, page, both, flags, ones, 0) == libc::MAP_FAILED {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::{Bar, MappedBar};
    use std::sync::Arc;

    #[test]
    fn registers_that_are_taken_away_read_as_ones() {
        // A file that is cut is as gone as a card.
        let file = rustix::fs::memfd_create("registers", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let memory = Arc::new(Mapping::of_device(file.try_clone().unwrap(), 0, 8192).unwrap());
        let watched = Watched::new(&memory).unwrap();
        let bar = MappedBar::new(memory);
        bar.write(8, 5);
        assert_eq!(bar.read(8), 5);
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!((bar.read(8), bar.read(4100)), (u32::MAX, u32::MAX));
        bar.write(8, 6);
        assert_eq!(bar.read(12), u32::MAX);
        drop(watched);
    }
}
