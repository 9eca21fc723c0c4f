//! How a device sees memory: address spaces, and the rings of descriptors in them.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use super::{Addresses, Mapping};
use crate::error::{Error, Result};

#[cfg(target_endian = "big")]
compile_error!("descriptors are little-endian; their accesses must be swapped before this builds");

/// An address as the device uses it. It is not a pointer, and must never be turned into one.
pub type DeviceAddress = u64;

/// A device's address space: what an IOMMU implements, or the machine's memory itself, or the
/// [model](crate::model).
pub trait DmaSpace: Send + Sync {
    /// Makes `memory` visible to the device, all of it, and tells where.
    ///
    /// # Errors
    /// Where the space has no room, the kernel refuses, or the memory is not fit for the device.
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses>;

    /// Takes the memory whose first byte the device sees at `address` away from it again.
    ///
    /// # Safety
    /// The memory is the caller's to take, and the device is told nothing of it any more: other memory may have this
    /// address from now on.
    unsafe fn unmap(&self, address: DeviceAddress);
}

/// A mapping that a device sees, until this value is dropped.
pub struct DmaMap {
    space: Arc<dyn DmaSpace>,
    addresses: Addresses,
    memory: Arc<Mapping>,
}

impl DmaMap {
    /// Maps `memory` into `space`.
    ///
    /// # Errors
    /// As [`DmaSpace::map`]; [`Error::BadDevice`] if that tells of too few pages.
    pub fn new(space: &Arc<dyn DmaSpace>, memory: &Arc<Mapping>) -> Result<DmaMap> {
        let addresses = space.map(memory)?;
        // Whole groups of packets are located without a look at how many pages there are.
        if !addresses.cover(memory.len()) {
            return Err(Error::BadDevice { why: "it does not see all of the memory that was mapped" });
        }
        Ok(DmaMap { space: space.clone(), addresses, memory: memory.clone() })
    }

    /// Where the device sees the memory.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped it for this value alone; a driver that tells a device its address keeps this value until
        // the device has stopped.
        unsafe { self.space.unmap(self.addresses.at(0)) };
    }
}

/// What a device and we may share: it is read and written at any moment by either, so it must be
/// made of atomics.
///
/// # Safety
/// Every bit pattern is a value, and all accesses through `&Self` are atomic.
pub unsafe trait Word: Sync {}

// SAFETY: an atomic of an integer.
unsafe impl Word for AtomicU16 {}
// SAFETY: as above.
unsafe impl Word for AtomicU32 {}
// SAFETY: as above.
unsafe impl Word for AtomicU64 {}
// SAFETY: two of those.
unsafe impl Word for [AtomicU32; 2] {}
// SAFETY: as above.
unsafe impl Word for [AtomicU64; 2] {}

/// A part of a mapping that a device reads and writes as it likes: a ring, an index, flags.
pub struct DmaArray<T: Word> {
    first: *const T,
    count: usize,
    _memory: Arc<Mapping>,
}

/// A ring of 16-byte descriptors: two words each.
///
/// An `Acquire` load of the word that carries the done bit orders all reads of the packet behind
/// it, and a doorbell's release orders all writes before it.
pub type Descriptors = DmaArray<[AtomicU64; 2]>;

// SAFETY: it points into `_memory`, which it keeps alive, and gives out atomics only.
unsafe impl<T: Word> Send for DmaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for DmaArray<T> {}

impl<T: Word> DmaArray<T> {
    /// `count` of them from byte `offset` of `memory` on.
    ///
    /// # Safety
    /// As for [`Mapping::words`]: none of these bytes is lent as a slice.
    ///
    /// # Panics
    /// If they do not lie inside the mapping, or not aligned.
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
        // SAFETY: checked in `new` to lie inside the mapping, which lives as long as `self`, and to be
        // aligned, since mappings begin at pages.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Contiguous, PageSize, Paged};

    /// Sees so many pages of 4 KiB; none: all, in one piece.
    struct Sees(Option<usize>);

    impl DmaSpace for Sees {
        fn map(&self, _: &Arc<Mapping>) -> Result<Addresses> {
            let pages = |count| Addresses::Paged(Paged::new((1..=count as u64).map(|page| page << 40).collect(), 4096));
            Ok(self.0.map_or(Addresses::Contiguous(Contiguous(1 << 40)), pages))
        }

        unsafe fn unmap(&self, _: DeviceAddress) {}
    }

    #[test]
    fn a_device_sees_all_of_a_mapping_or_it_is_an_error() {
        let memory = Arc::new(Mapping::new(3 * 4096, PageSize::Ordinary, None).unwrap());
        let map = |sees| {
            let space: Arc<dyn DmaSpace> = Arc::new(Sees(sees));
            DmaMap::new(&space, &memory)
        };
        assert_eq!(map(None).unwrap().addresses().at(5000), (1 << 40) + 5000);
        assert_eq!(map(Some(3)).unwrap().addresses().at(5000), (2 << 40) + 904);
        assert!(map(Some(2)).map(drop).unwrap_err().with_hint().contains("does not see all"));
    }

    #[test]
    #[should_panic(expected = "more bytes than there are addresses")]
    fn a_ring_whose_length_wraps_is_refused() {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        // SAFETY: no slice is lent of this memory.
        let ring: Descriptors = unsafe { DmaArray::new(&memory, 0, (1 << 60) + 1) };
        drop(ring);
    }
}
