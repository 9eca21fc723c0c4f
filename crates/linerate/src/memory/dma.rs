//! How a device sees memory: address spaces, and the rings of descriptors in them.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::Mapping;
use crate::error::Result;

#[cfg(target_endian = "big")]
compile_error!("descriptors are little-endian; their accesses must be swapped before this builds");

/// An address as the device uses it. It is not a pointer, and must never be turned into one.
pub type DeviceAddress = u64;

/// A device's address space: what an IOMMU implements, and the [model](crate::model) too.
pub trait DmaSpace: Send + Sync {
    /// Makes `memory` visible to the device as one contiguous range, and returns its first address.
    ///
    /// # Errors
    /// Where the space has no room, or the kernel refuses.
    fn map(&self, memory: &Arc<Mapping>) -> Result<DeviceAddress>;

    /// Takes the range that starts at `address` away from the device again.
    fn unmap(&self, address: DeviceAddress);
}

/// A mapping that a device sees, until this value is dropped.
pub struct DmaMap {
    space: Arc<dyn DmaSpace>,
    address: DeviceAddress,
    memory: Arc<Mapping>,
}

impl DmaMap {
    /// Maps `memory` into `space`.
    ///
    /// # Errors
    /// As [`DmaSpace::map`].
    pub fn new(space: &Arc<dyn DmaSpace>, memory: &Arc<Mapping>) -> Result<DmaMap> {
        let address = space.map(memory)?;
        Ok(DmaMap { space: space.clone(), address, memory: memory.clone() })
    }

    /// Where the device sees the mapping's first byte.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        self.space.unmap(self.address);
    }
}

/// A ring of 16-byte descriptors: two words each, which the device reads and writes as it likes.
///
/// The words are atomics: an `Acquire` load of the word that carries the done bit orders all reads
/// of the packet behind it, and a doorbell's release orders all writes before it.
pub struct Descriptors {
    first: *const [AtomicU64; 2],
    entries: usize,
    _memory: Arc<Mapping>,
}

// SAFETY: it points into `_memory`, which it keeps alive, and gives out atomics only.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// The `entries` descriptors from byte `offset` of `memory` on.
    ///
    /// # Panics
    /// If they do not lie inside the mapping, or `offset` is not a multiple of 128 as the 82599
    /// wants it (datasheet section 7.1.9).
    pub fn new(memory: &Arc<Mapping>, offset: usize, entries: usize) -> Descriptors {
        assert!(offset.is_multiple_of(128));
        let first = memory.words(offset, entries * 2).as_ptr().cast();
        Descriptors { first, entries, _memory: memory.clone() }
    }
}

impl Deref for Descriptors {
    type Target = [[AtomicU64; 2]];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: checked in `new` to lie inside the mapping, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first, self.entries) }
    }
}
