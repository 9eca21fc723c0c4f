//! Sizes of pages.
#![allow(unsafe_code)]

use std::fs;
use std::io;

/// The size of the pages under a [`Mapping`](super::Mapping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The processor's page size. The kernel may move such pages, so they need an IOMMU, or a device without DMA.
    Ordinary,
    /// 2 MiB: never moved or swapped, and contiguous in physical memory.
    Huge2M,
    /// 1 GiB: as 2 MiB, with fewer TLB misses.
    Huge1G,
}

impl PageSize {
    /// Returns the number of bytes in one page.
    pub fn bytes(self) -> usize {
        match self {
            // SAFETY: queries a constant; it cannot fail.
            PageSize::Ordinary => unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize },
            PageSize::Huge2M => 2 << 20,
            PageSize::Huge1G => 1 << 30,
        }
    }

    /// Returns the count of free pages of this size (`/sys/kernel/mm/hugepages/*/free_hugepages`); 0 for ordinary
    /// pages, or if the count cannot be read.
    pub fn free(self) -> usize {
        self.read_free().unwrap_or(0)
    }

    /// As [`free`](PageSize::free), but returns an error if the count exists and cannot be read.
    pub(super) fn read_free(self) -> io::Result<usize> {
        if cfg!(miri) {
            return Ok(0); // Miri only supports the heap
        }
        let kib = self.bytes() / 1024;
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
        match fs::read_to_string(path) {
            Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Display for PageSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PageSize::Ordinary => write!(f, "ordinary pages"),
            PageSize::Huge2M => write!(f, "2 MiB hugepages"),
            PageSize::Huge1G => write!(f, "1 GiB hugepages"),
        }
    }
}
