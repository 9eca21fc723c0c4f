//! Sizes of pages.
#![allow(unsafe_code)]

use std::fs;

/// The size of the pages under a [`Mapping`](super::Mapping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The processor's page size. The kernel may move such pages, so they are only for a device behind an IOMMU, or
    /// one without DMA.
    Ordinary,
    /// 2 MiB: never moved or swapped, contiguous for a device.
    Huge2M,
    /// 1 GiB: as 2 MiB, with fewer TLB misses.
    Huge1G,
}

impl PageSize {
    /// Returns the bytes of one page.
    pub fn bytes(self) -> usize {
        match self {
            // SAFETY: queries a constant; it cannot fail.
            PageSize::Ordinary => unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize },
            PageSize::Huge2M => 2 << 20,
            PageSize::Huge1G => 1 << 30,
        }
    }

    /// Returns the count of free pages of this size (`/sys/kernel/mm/hugepages/*/free_hugepages`); 0 for ordinary
    /// pages.
    pub fn free(self) -> usize {
        if cfg!(miri) {
            return 0; // Miri has only the heap
        }
        let kib = self.bytes() / 1024;
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
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
