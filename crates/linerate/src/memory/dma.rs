//! How a device sees memory: address spaces, and the rings of descriptors in them.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use super::Mapping;
use crate::error::Result;

#[cfg(target_endian = "big")]
compile_error!("descriptors are little-endian; their accesses must be swapped before this builds");

/// An address as the device uses it. It is not a pointer, and must never be turned into one.
pub type DeviceAddress = u64;

/// A device's address space: what an IOMMU implements, or the machine's memory itself, or the
/// [model](crate::model).
pub trait DmaSpace: Send + Sync {
    /// Makes `memory` visible to the device, and tells where.
    ///
    /// # Errors
    /// Where the space has no room, the kernel refuses, or the memory is not fit for the device.
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses>;

    /// Takes the memory whose first byte the device sees at `address` away from it again.
    fn unmap(&self, address: DeviceAddress);
}

/// Where a device sees a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// As one range: behind an IOMMU, or in the model.
    Contiguous(Contiguous),
    /// Page by page, wherever they lie in the machine's memory: without an IOMMU.
    Paged(Paged),
}

/// Finds the device's address of a byte, by its offset in the mapping. A queue is generic over it,
/// so that the usual case stays one addition.
pub(crate) trait Locate: Clone + Send + 'static {
    fn locate(&self, offset: usize) -> DeviceAddress;

    /// The address of the first byte, if all others follow it.
    fn base(&self) -> Option<DeviceAddress> {
        None
    }
}

/// One range that begins at this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contiguous(pub DeviceAddress);

impl Locate for Contiguous {
    #[inline(always)]
    fn locate(&self, offset: usize) -> DeviceAddress {
        self.0 + offset as u64
    }

    #[inline(always)]
    fn base(&self) -> Option<DeviceAddress> {
        Some(self.0)
    }
}

/// Pages of one size, each at an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paged {
    pages: Arc<[DeviceAddress]>,
    shift: u32,
}

impl Paged {
    /// Pages of `size` bytes, a power of two, at these addresses.
    pub fn new(pages: Vec<DeviceAddress>, size: usize) -> Paged {
        Paged { pages: pages.into(), shift: size.trailing_zeros() }
    }
}

impl Locate for Paged {
    #[inline(always)]
    fn locate(&self, offset: usize) -> DeviceAddress {
        self.pages[offset >> self.shift] + (offset & ((1 << self.shift) - 1)) as u64
    }
}

impl Addresses {
    /// The device's address of the byte at `offset` of the mapping.
    pub fn at(&self, offset: usize) -> DeviceAddress {
        match self {
            Addresses::Contiguous(range) => range.locate(offset),
            Addresses::Paged(pages) => pages.locate(offset),
        }
    }
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
    /// As [`DmaSpace::map`].
    pub fn new(space: &Arc<dyn DmaSpace>, memory: &Arc<Mapping>) -> Result<DmaMap> {
        let addresses = space.map(memory)?;
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
        self.space.unmap(self.addresses.at(0));
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
pub struct Shared<T: Word> {
    first: *const T,
    count: usize,
    _memory: Arc<Mapping>,
}

/// A ring of 16-byte descriptors: two words each.
///
/// An `Acquire` load of the word that carries the done bit orders all reads of the packet behind
/// it, and a doorbell's release orders all writes before it.
pub type Descriptors = Shared<[AtomicU64; 2]>;

// SAFETY: it points into `_memory`, which it keeps alive, and gives out atomics only.
unsafe impl<T: Word> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for Shared<T> {}

impl<T: Word> Shared<T> {
    /// `count` of them from byte `offset` of `memory` on.
    ///
    /// # Panics
    /// If they do not lie inside the mapping, or not aligned.
    pub fn new(memory: &Arc<Mapping>, offset: usize, count: usize) -> Shared<T> {
        assert!(offset.is_multiple_of(align_of::<T>()));
        let first = memory.range(offset, count * size_of::<T>()).cast::<T>().as_ptr();
        Shared { first, count, _memory: memory.clone() }
    }
}

impl<T: Word> Deref for Shared<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        // SAFETY: checked in `new` to lie inside the mapping, which lives as long as `self`, and to be
        // aligned, since mappings begin at pages.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}
