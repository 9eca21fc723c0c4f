//! A device's access to memory: address spaces, and rings of descriptors in them.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use super::{Addresses, DeviceAddress, Mapping, PageSize};
use crate::error::{Error, ErrorKind, Result};

#[cfg(target_endian = "big")]
compile_error!("descriptors are little-endian; their accesses must be swapped before this builds");

/// The address space of a device: that of an IOMMU, the machine's physical memory, or that of a model.
///
/// # Safety
/// Mapped memory may be that of a [region](super::Region), whose packets have other owners. Only the device, or a model
/// in its role, accesses it, and only the buffers that the driver has given to it.
pub unsafe trait DmaSpace: Send + Sync {
    /// Maps all of `memory` for the device, and returns its device addresses.
    ///
    /// # Errors
    /// The space is full, the kernel refuses, or the memory is not suitable for the device.
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses>;

    /// Unmaps the memory whose first byte has device address `address`.
    ///
    /// # Safety
    /// The caller has mapped the memory, and the device no longer holds any of its addresses, since other memory may
    /// get the same address.
    unsafe fn unmap(&self, address: DeviceAddress);
}

/// A mapping that a device can access until this value is dropped.
pub struct DmaMap {
    space: Arc<dyn DmaSpace>,
    addresses: Addresses,
    memory: Arc<Mapping>,
}

impl DmaMap {
    /// Maps `memory` into `space`.
    ///
    /// # Errors
    /// As [`DmaSpace::map`]; [`ErrorKind::BadDevice`] if it returns too few pages.
    pub fn new(space: &Arc<dyn DmaSpace>, memory: &Arc<Mapping>) -> Result<DmaMap> {
        let addresses = space.map(memory)?;
        // `locate_4` and `locate_8` do not check the count of pages.
        if !addresses.cover(memory.len()) {
            return Err(Error::bad_device("it cannot address all of the mapped memory"));
        }
        Ok(DmaMap { space: space.clone(), addresses, memory: memory.clone() })
    }

    /// Allocates `bytes` for rings in pages of size `pages`, and maps them into `space`. If no hugepage is free, uses
    /// ordinary pages, provided that the space supports them.
    ///
    /// # Errors
    /// As [`new`](DmaMap::new); [`ErrorKind::Exhausted`].
    pub fn of_rings(space: &Arc<dyn DmaSpace>, bytes: usize, pages: PageSize) -> Result<DmaMap> {
        match Mapping::new(bytes, pages, None) {
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                let memory = Arc::new(Mapping::new(bytes, PageSize::Ordinary, None)?);
                DmaMap::new(space, &memory).map_err(|_| error)
            }
            memory => DmaMap::new(space, &Arc::new(memory?)),
        }
    }

    /// Returns the device addresses of the memory.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory for this value only. A driver that gives the addresses to a device keeps this
        // value until the device has stopped.
        unsafe { self.space.unmap(self.addresses.at(0)) };
    }
}

/// A value shared with a device. Either side may access it at any time, so it must consist of atomics.
///
/// # Safety
/// Every bit pattern is valid, and all accesses through `&Self` are atomic.
pub unsafe trait Word: Sync {}

// SAFETY: an atomic of an integer.
unsafe impl Word for AtomicU16 {}
// SAFETY: as above.
unsafe impl Word for AtomicU32 {}
// SAFETY: as above.
unsafe impl Word for AtomicU64 {}
// SAFETY: two atomics of an integer.
unsafe impl Word for [AtomicU32; 2] {}
// SAFETY: as above.
unsafe impl Word for [AtomicU64; 2] {}

/// A part of a mapping that a device may access at any time: a ring, an index, flags.
pub struct DmaArray<T: Word> {
    first: *const T,
    count: usize,
    _memory: Arc<Mapping>,
}

/// A ring of 16-byte descriptors of two words each.
///
/// An `Acquire` load of the word with the done bit orders all later reads of the packet. A doorbell's release orders
/// all earlier writes.
pub type Descriptors = DmaArray<[AtomicU64; 2]>;

// SAFETY: `first` points into `_memory`, which this value keeps alive, and only atomics are exposed.
unsafe impl<T: Word> Send for DmaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for DmaArray<T> {}

impl<T: Word> DmaArray<T> {
    /// Wraps `count` values that begin at byte `offset` of `memory`.
    ///
    /// # Safety
    /// As for [`Mapping::words`]: there is no slice of any of these bytes.
    ///
    /// # Panics
    /// If they are not inside the mapping, or not aligned.
    pub unsafe fn new(memory: &Arc<Mapping>, offset: usize, count: usize) -> DmaArray<T> {
        assert!(offset.is_multiple_of(align_of::<T>()));
        let bytes = count.checked_mul(size_of::<T>()).expect("more bytes than there are addresses");
        let first = memory.range(offset, bytes).cast::<T>().as_ptr();
        DmaArray { first, count, _memory: memory.clone() }
    }
}

impl<T: Word> Deref for DmaArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: `new` checked that the range is inside the mapping, which lives as long as `self`. It is aligned,
        // because the offset is, and mappings begin at page boundaries.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Contiguous, PageSize, Paged};

    /// A device that can address this number of 4 KiB pages; `None` for all memory, as one range.
    struct Sees(Option<usize>);

    // SAFETY: it accesses no bytes.
    unsafe impl DmaSpace for Sees {
        fn map(&self, _: &Arc<Mapping>) -> Result<Addresses> {
            let pages = |count| Addresses::Paged(Paged::new((1..=count as u64).map(|page| page << 40).collect(), 4096));
            Ok(self.0.map_or(Addresses::Contiguous(Contiguous(1 << 40)), pages))
        }

        unsafe fn unmap(&self, _: DeviceAddress) {}
    }

    #[test]
    fn a_mapping_that_is_not_wholly_addressable_is_an_error() {
        let memory = Arc::new(Mapping::new(3 * 4096, PageSize::Ordinary, None).unwrap());
        let map = |sees| {
            let space: Arc<dyn DmaSpace> = Arc::new(Sees(sees));
            DmaMap::new(&space, &memory)
        };
        assert_eq!(map(None).unwrap().addresses().at(5000), (1 << 40) + 5000);
        assert_eq!(map(Some(3)).unwrap().addresses().at(5000), (2 << 40) + 904);
        assert!(map(Some(2)).map(drop).unwrap_err().with_hint().contains("cannot address all"));
    }

    /// The packets may use the last hugepages. Test machines have no pages of 1 GiB.
    #[test]
    #[cfg(not(miri))] // it asks the kernel
    fn rings_without_a_hugepage_are_in_ordinary_pages() {
        let of_rings = |sees| {
            let space: Arc<dyn DmaSpace> = Arc::new(Sees(sees));
            DmaMap::of_rings(&space, 3 * 4096, PageSize::Huge1G)
        };
        assert_eq!(of_rings(None).unwrap().memory().pages(), PageSize::Ordinary);
        let error = of_rings(Some(0)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "a space that takes no ordinary pages: {error}");
    }

    #[test]
    #[should_panic(expected = "more bytes than there are addresses")]
    fn a_ring_whose_length_wraps_is_refused() {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        // SAFETY: there is no slice of this memory.
        let ring: Descriptors = unsafe { DmaArray::new(&memory, 0, (1 << 60) + 1) };
        drop(ring);
    }
}
