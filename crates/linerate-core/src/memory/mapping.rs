//! A contiguous block of memory that can be shared with a device and with another process.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::fault::Guard;
use super::{PageSize, racing};
use crate::error::{Error, ErrorKind, Result};

/// A mapping of shared memory, usually a memfd, that lives as long as this value.
///
/// The bytes are accessed by copying, or as atomic words ([`words`](Mapping::words)), because a device may write to
/// them at any time.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    pages: PageSize,
    backing: Backing,
}

/// The type of tmpfs, as statfs(2) reports it.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The type of hugetlbfs, the file system of hugepages, as statfs(2) reports it.
pub const HUGETLBFS_MAGIC: u64 = 0x9584_58F6;

/// The source of a mapping's memory.
enum Backing {
    File(OwnedFd),
    /// A file of another process, whose descriptor is not kept.
    OfPeer,
    /// As `OfPeer`, but the other process may remove the memory. `None` just before it is unmapped.
    Guarded(Option<Guard>),
    /// Heap memory for Miri, which supports neither memfd_create(2) nor a shared mmap(2), but checks each access.
    #[cfg(miri)]
    Heap(std::alloc::Layout),
}

// SAFETY: the mapping is plain memory owned by this value. The pointer is only used for accesses that are
// bounds-checked here, by copies or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above. All accesses behave like atomics.
unsafe impl Sync for Mapping {}

/// The most bytes of one region of another process's memory, and of all regions of one connection: 4 TiB. A peer can
/// create files of any length without memory for them, but a process's address space ends at 128 TiB.
pub const MOST_PEER_BYTES: u64 = 4 << 40;

/// Properties of a file that another process has sent.
struct PeerFile {
    /// The type of its file system.
    kind: u64,
    len: u64,
    /// The size of its pages.
    page: u64,
}

impl PeerFile {
    fn of(file: &OwnedFd) -> Result<PeerFile> {
        let len = rustix::fs::fstat(file).map_err(|e| Error::system("fstat", e))?.st_size;
        let system = rustix::fs::fstatfs(file).map_err(|e| Error::system("fstatfs", e))?;
        // The block size of hugetlbfs is the size of its hugepages.
        let page = (system.f_bsize as u64).max(PageSize::Ordinary.bytes() as u64);
        Ok(PeerFile { kind: system.f_type as u64, len: len.try_into().unwrap_or(0), page })
    }
}

fn not_mapped(why: &'static str) -> Error {
    Error::system("mapping another process's memory", io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Rounds `len` up to complete pages, at least one.
fn whole_pages(len: usize, pages: PageSize) -> Result<usize> {
    let whole = len.max(1).checked_next_multiple_of(pages.bytes());
    whole.ok_or_else(|| Error::system("mmap", io::Error::from_raw_os_error(libc::ENOMEM)))
}

impl Mapping {
    /// Maps at least `len` zeroed bytes, rounded up to complete pages, on NUMA node `node` if given. All pages are
    /// allocated.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if too few hugepages are free, [`ErrorKind::BadOption`] if the machine does not have
    /// the node, [`ErrorKind::System`] if the kernel refuses.
    pub fn new(len: usize, pages: PageSize, node: Option<u32>) -> Result<Mapping> {
        let len = whole_pages(len, pages)?;
        let needed = len / pages.bytes();
        let count_free = || pages.read_free().map_err(|e| Error::system("counting free hugepages", e));
        if pages != PageSize::Ordinary {
            let free = count_free()?;
            if free < needed {
                return Err(no_hugepages(pages, needed, free));
            }
        }
        #[cfg(miri)]
        if pages == PageSize::Ordinary {
            return Mapping::of_heap(len);
        }
        let kind = match pages {
            PageSize::Ordinary => MemfdFlags::empty(),
            PageSize::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageSize::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        };
        let file = Mapping::sealed(len, kind)?;
        // The node must be set before the pages are touched, so they are populated afterwards.
        let populate = if node.is_none() { MapFlags::POPULATE } else { MapFlags::empty() };
        let mapping = match Mapping::map(file, 0, len, pages, MapFlags::SHARED | populate) {
            // Another program has allocated or reserved the free hugepages meanwhile.
            Err(error) if pages != PageSize::Ordinary && error.errno() == libc::ENOMEM => {
                return Err(no_hugepages(pages, needed, count_free()?.min(needed - 1)));
            }
            mapping => mapping?,
        };
        if let Some(node) = node {
            mapping.bind_to_node(node)?;
        }
        Ok(mapping)
    }

    /// As [`new`](Mapping::new), with ordinary pages that are allocated on first use.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses.
    pub fn lazy(len: usize) -> Result<Mapping> {
        let len = whole_pages(len, PageSize::Ordinary)?;
        #[cfg(miri)]
        return Mapping::of_heap(len);
        #[cfg(not(miri))]
        Mapping::map(Mapping::sealed(len, MemfdFlags::empty())?, 0, len, PageSize::Ordinary, MapFlags::SHARED)
    }

    #[cfg(miri)]
    fn of_heap(len: usize) -> Result<Mapping> {
        let layout =
            std::alloc::Layout::from_size_align(len, PageSize::Ordinary.bytes()).expect("a page is a power of two");
        // SAFETY: at least one page.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("Miri has memory");
        Ok(Mapping { base, len, pages: PageSize::Ordinary, backing: Backing::Heap(layout) })
    }

    /// Creates memory whose length can no longer change.
    fn sealed(len: usize, kind: MemfdFlags) -> Result<OwnedFd> {
        let file = rustix::fs::memfd_create("linerate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind)
            .map_err(|e| Error::system("memfd_create", e))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(|e| Error::system("ftruncate", e))?;
        // A process that gets the descriptor can rely on the length.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| Error::system("fcntl(F_ADD_SEALS)", e))?;
        Ok(file)
    }

    fn map(file: OwnedFd, offset: u64, len: usize, pages: PageSize, flags: MapFlags) -> Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases no other memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, &file, offset) };
        let base = base.map_err(|e| Error::system("mmap", e))?;
        let base = NonNull::new(base.cast()).expect("mmap never returns address 0");
        Ok(Mapping { base, len, pages, backing: Backing::File(file) })
    }

    /// Maps `len` bytes at `offset` of the file of a device or a socket: a BAR or a ring.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the kernel refuses.
    ///
    /// # Safety
    /// The file has these bytes as long as the mapping exists, and no other process shortens it: an access behind the
    /// end of a file ends the process by SIGBUS. No Rust reference refers to the same memory.
    pub unsafe fn of_device(file: OwnedFd, offset: u64, len: usize) -> Result<Mapping> {
        Mapping::map(file, offset, len, PageSize::Ordinary, MapFlags::SHARED)
    }

    /// Maps all of the memory that another process has sent. It must be sealed against shrinking (memfd_create(2)),
    /// so that no access can fail.
    ///
    /// # Errors
    /// [`ErrorKind::System`] for a file that is not sealed memory of complete pages, is longer than
    /// [`MOST_PEER_BYTES`], or cannot be opened for reading and writing.
    pub fn of_peer(file: OwnedFd) -> Result<Mapping> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|e| Error::system("fcntl(F_GET_SEALS)", e))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(not_mapped("it is not sealed against shrinking"));
        }
        let PeerFile { len, page, .. } = PeerFile::of(&file)?;
        if len == 0 || len > MOST_PEER_BYTES || !len.is_multiple_of(page) {
            return Err(not_mapped("it is empty, too long or not of whole pages"));
        }
        let mut mapping = Mapping::map(file, 0, len as usize, PageSize::Ordinary, MapFlags::SHARED)?;
        mapping.backing = Backing::OfPeer;
        Ok(mapping)
    }

    /// Maps `len` bytes at `offset` of memory that another process has sent. The memory need not be sealed: if the
    /// process removes it, it reads as zeros, and [`is_broken`](Mapping::is_broken) returns true. Returns a mapping of
    /// complete pages of the file, and the offset of the bytes in it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the bytes are not inside the file, if the file is not readable and writable, or if it
    /// is not in memory.
    pub fn of_unsealed_peer(file: OwnedFd, offset: u64, len: u64) -> Result<(Mapping, usize)> {
        let PeerFile { kind, len: file_len, page } = PeerFile::of(&file)?;
        // The owner of another file system could delay page faults without limit.
        if ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind) {
            return Err(not_mapped("it is not in memory"));
        }
        // fallocate(2) can create files that end inside a hugepage, which cannot be accessed.
        if kind == HUGETLBFS_MAGIC && !file_len.is_multiple_of(page) {
            return Err(not_mapped("its length is not a multiple of its hugepages' size"));
        }
        let end = offset.checked_add(len).filter(|&end| len > 0 && len <= MOST_PEER_BYTES && end <= file_len);
        let end = end.ok_or_else(|| not_mapped("the region is empty, too long or not inside its file"))?;
        // Hugepages can only be mapped, unmapped and replaced as complete pages, even if the file's length has changed.
        let begin = offset - offset % page;
        let whole = (end - begin).next_multiple_of(page) as usize;
        let mut mapping = Mapping::map(file, begin, whole, PageSize::Ordinary, MapFlags::SHARED)?;
        mapping.backing = Backing::Guarded(Some(Guard::new(mapping.base, whole)?));
        Ok((mapping, (offset - begin) as usize))
    }

    /// Returns whether another process has removed the memory.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        matches!(&self.backing, Backing::Guarded(Some(guard)) if guard.is_broken())
    }

    /// Returns the address in this process, for system calls. It is not a device address.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the physical addresses of the mapping's pages, from `/proc/self/pagemap` (kernel documentation,
    /// admin-guide/mm/pagemap.rst).
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the process does not have the privilege to read them.
    pub fn physical_pages(&self) -> Result<Vec<u64>> {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let ordinary = PageSize::Ordinary.bytes();
        let pagemap =
            fs::File::open("/proc/self/pagemap").map_err(|e| Error::system("open of /proc/self/pagemap", e))?;
        let page = |offset: usize| {
            let mut entry = [0; 8];
            let at = (self.address() + offset as u64) / ordinary as u64 * 8;
            pagemap.read_exact_at(&mut entry, at).map_err(|e| Error::system("reading /proc/self/pagemap", e))?;
            let entry = u64::from_le_bytes(entry);
            // Without privileges, the kernel reports frame 0.
            if entry & PRESENT == 0 || entry & FRAME == 0 {
                let why = io::Error::new(io::ErrorKind::PermissionDenied, "only root can read physical addresses");
                return Err(Error::system("reading /proc/self/pagemap", why));
            }
            Ok((entry & FRAME) * ordinary as u64)
        };
        (0..self.len).step_by(self.pages.bytes()).map(page).collect()
    }

    /// Binds the pages to a node (mbind(2) with MPOL_BIND), then writes to each page to allocate it.
    fn bind_to_node(&self, node: u32) -> Result<()> {
        let nodes = numa_nodes();
        if !nodes.contains(&node) {
            let known = match &nodes[..] {
                [only] => format!("it has one node only, {only}"),
                nodes => format!("its nodes are {nodes:?}"),
            };
            return Err(Error::new(ErrorKind::BadOption, "", format!("this machine has no NUMA node {node}: {known}")));
        }
        let mut mask = [0u64; 16];
        mask[node as usize / 64] |= 1 << (node % 64);
        // SAFETY: the range is this mapping, and the mask has the given length in bits.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                libc::MPOL_BIND,
                mask.as_ptr(),
                mask.len() * 64 + 1,
                0,
            )
        };
        if outcome != 0 {
            return Err(Error::system("mbind", io::Error::last_os_error()));
        }
        for page in (0..self.len).step_by(self.pages.bytes()) {
            self.write(page, &[0]);
        }
        Ok(())
    }

    /// Returns the memfd, to send it to another process. That process can then write to all bytes of the mapping,
    /// including packets that this process owns.
    ///
    /// # Panics
    /// If the memory belongs to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        match &self.backing {
            Backing::File(file) => file.as_fd(),
            Backing::OfPeer | Backing::Guarded(_) => panic!("another process's memory has no descriptor here"),
            #[cfg(miri)]
            Backing::Heap(_) => panic!("memory of Miri's has no file"),
        }
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the page size.
    pub fn pages(&self) -> PageSize {
        self.pages
    }

    /// Returns the address of the first byte. It is never dereferenced outside the `memory` module.
    #[inline(always)]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not all inside the mapping.
    #[inline(always)]
    pub fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(len <= self.len && offset <= self.len - len);
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// Returns `count` 64-bit words at byte `offset`, shared with all other users of the memory.
    ///
    /// # Safety
    /// There is no slice of any of these bytes while the words are used. In the memory of a
    /// [region](super::Region::mapping), only a packet's owner may access its bytes.
    ///
    /// # Panics
    /// If the range is outside the mapping or not aligned to 8 bytes.
    pub unsafe fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && count <= self.len / 8);
        // SAFETY: in bounds, aligned, and valid as long as `self`. Atomics may be shared with other writers, and the
        // caller promises that there is no slice.
        unsafe { std::slice::from_raw_parts(self.range(offset, count * 8).as_ptr().cast(), count) }
    }

    /// Returns the 32-bit word at byte `offset`, shared like [`words`](Mapping::words).
    ///
    /// # Panics
    /// If it is outside the mapping or not aligned to 4 bytes.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: in bounds, aligned, and valid as long as `self`; atomics may be shared with other writers.
        unsafe { self.range(offset, 4).cast().as_ref() }
    }

    /// Prefetches the cache line at `offset`, for reading.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().wrapping_add(offset).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// As [`prefetch`](Mapping::prefetch), for writing: invalidates the line in other processors' caches.
    #[inline(always)]
    pub fn prefetch_write(&self, offset: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which never faults; processors that do not support it ignore it. There is no intrinsic for
        // it.
        unsafe {
            let line = self.base.as_ptr().wrapping_add(offset);
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = offset;
    }

    /// Copies the bytes at `offset` to `bytes`. Another thread, process or device may write to them at the same time;
    /// then each byte is either old or new. They must not belong to a packet of a region, which a caller of
    /// [`Region::mapping`](super::Region::mapping) has promised.
    ///
    /// # Panics
    /// If the range is outside the mapping.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.range(offset, bytes.len());
        // SAFETY: in bounds. The ranges cannot overlap, because safe code never has a slice of memory that it does not
        // own.
        unsafe { racing::read(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to `offset`. As for [`read`](Mapping::read), the range must not contain packets of a region.
    ///
    /// # Panics
    /// If the range is outside the mapping.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.range(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { racing::write(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Drop the guard first: after munmap, another mapping may get these addresses, and must not be replaced.
        if let Backing::Guarded(guard) = &mut self.backing {
            *guard = None;
        }
        match &self.backing {
            Backing::File(_) | Backing::OfPeer | Backing::Guarded(_) => {
                // SAFETY: mapped here with this length, and no borrows remain.
                let outcome = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
                if let Err(error) = outcome {
                    debug_assert!(false, "munmap of {} bytes: {error}", self.len);
                    tracing::error!("{} bytes of memory stay mapped: munmap: {error}", self.len);
                }
            }
            #[cfg(miri)]
            // SAFETY: allocated here with this layout, and no borrows remain.
            Backing::Heap(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), *layout) },
        }
    }
}

/// Returns the NUMA nodes that are online; node 0 if the machine does not report any.
pub(super) fn numa_nodes() -> Vec<u32> {
    let text = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let mut nodes = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            nodes.extend(first..=last);
        }
    }
    if nodes.is_empty() { vec![0] } else { nodes }
}

fn no_hugepages(pages: PageSize, needed: usize, free: usize) -> Error {
    let kib = pages.bytes() / 1024;
    let remedy = format!("echo {needed} | sudo tee /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages");
    Error::new(ErrorKind::Exhausted, "", format!("{needed} {pages} are needed, {free} are free")).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let mapping = Mapping::new(100, PageSize::Ordinary, None).unwrap();
        assert_eq!(mapping.len(), PageSize::Ordinary.bytes());
        // SAFETY: there is no slice of this memory.
        let words = unsafe { mapping.words(8, 2) };
        words[1].store(0x0102_0304_0506_0708, Relaxed);
        let mut bytes = [0; 8];
        mapping.read(16, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 0x0102_0304_0506_0708);
    }

    #[test]
    #[should_panic]
    fn words_beyond_the_end_are_refused() {
        let mapping = Mapping::new(1, PageSize::Ordinary, None).unwrap();
        // SAFETY: there is no slice of this memory.
        let _ = unsafe { mapping.words(mapping.len() - 8, 2) };
    }

    #[test]
    fn a_length_beyond_all_memory_is_an_error() {
        for pages in [PageSize::Ordinary, PageSize::Huge2M, PageSize::Huge1G] {
            assert!(Mapping::new(usize::MAX, pages, None).is_err(), "{pages:?}");
        }
        assert!(Mapping::lazy(usize::MAX).is_err());
    }

    #[test]
    #[cfg(not(miri))] // it asks the kernel
    fn an_absent_numa_node_is_named() {
        let message = Mapping::new(1, PageSize::Ordinary, Some(900)).map(drop).unwrap_err().to_string();
        assert!(message.contains("NUMA node 900"), "{message}");
        let first = numa_nodes()[0];
        Mapping::new(1, PageSize::Ordinary, Some(first)).unwrap();
    }

    #[test]
    fn too_many_hugepages_are_refused_with_the_command_that_mends_it() {
        let message = Mapping::new(1 << 46, PageSize::Huge2M, None).map(drop).unwrap_err().with_hint();
        assert!(message.contains("nr_hugepages"), "{message}");
    }
}

#[cfg(all(test, not(miri)))]
mod faults {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::Mapping;

    const KIND: &str = "LINERATE_FAULT";

    extern "C" fn with_info(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid structure, and the process ends here.
        unsafe { libc::_exit(if (*info).si_addr().is_null() { 99 } else { 41 }) }
    }

    extern "C" fn plain(_: libc::c_int) {
        // SAFETY: the process ends here.
        unsafe { libc::_exit(42) }
    }

    /// Returns mapped memory, and its file.
    fn memory(map: impl Fn(std::os::fd::OwnedFd) -> Mapping) -> (Mapping, std::os::fd::OwnedFd) {
        let file = memfd_create("fault", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        (map(file.try_clone().unwrap()), file)
    }

    /// Runs in a child process: installs a handler, then uses guarded memory that is removed, then gets an unrelated signal.
    #[test]
    fn in_a_process_of_its_own() {
        let Ok(kind) = std::env::var(KIND) else { return };
        let (before, signal) = kind.split_once(' ').unwrap();
        // SAFETY: plain data, of which zeros are a value; the handlers have the signature of their flags.
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
        let (guarded, file) = memory(|file| Mapping::of_unsealed_peer(file, 0, 4096).unwrap().0);
        guarded.write(0, &[5; 8]);
        ftruncate(&file, 0).unwrap();
        let mut bytes = [9; 8];
        guarded.read(0, &mut bytes);
        assert!(bytes == [0; 8] && guarded.is_broken());
        if signal == "raise" {
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
        } else {
            // SAFETY: none; the test is about the signal that follows.
            let (other, file) = memory(|file| unsafe { Mapping::of_device(file, 0, 4096) }.unwrap());
            ftruncate(&file, 0).unwrap();
            other.read(0, &mut bytes);
            std::hint::black_box(bytes);
        }
        // SAFETY: the process ends here.
        unsafe { libc::_exit(43) }
    }

    /// Another user's process could serve a file system whose page faults never complete.
    #[test]
    fn only_files_in_memory_are_a_peers_memory() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let why = Mapping::of_unsealed_peer(file.into(), 0, 4096).map(drop).unwrap_err().to_string();
        assert!(why.contains("it is not in memory"), "{why}");
        let file = memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        for (offset, len) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let why =
                Mapping::of_unsealed_peer(file.try_clone().unwrap(), offset, len).map(drop).unwrap_err().to_string();
            assert!(why.contains("not inside its file"), "{why}");
        }
        // A file of ordinary pages may end inside a page.
        ftruncate(&file, 5000).unwrap();
        let (mapping, at) = Mapping::of_unsealed_peer(file, 4990, 10).unwrap();
        assert_eq!((mapping.len(), at), (4096, 894));
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
            child.args(["memory::mapping::faults::in_a_process_of_its_own"]).env(KIND, kind);
            let output = child.output().unwrap();
            assert_eq!((output.status.code(), output.status.signal()), (code, by_signal), "{kind}: {output:?}");
        }
    }
}
