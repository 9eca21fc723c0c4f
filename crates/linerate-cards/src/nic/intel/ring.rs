//! A descriptor ring shared with the card, the buffer of each descriptor, and the driver's position.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use linerate_core::memory::Descriptors;

/// Descriptors, and the buffer number of each. Positions are taken modulo the ring's length, so they need no bounds
/// check.
pub(super) struct DescriptorRing {
    descriptors: Descriptors,
    bufs: Box<[u32]>,
    /// The length of both arrays minus one; the length is a power of two.
    mask: usize,
    /// The descriptor that the driver reads or writes next; at most `mask`.
    next: usize,
}

impl DescriptorRing {
    /// Creates a ring of these descriptors, with these buffers.
    ///
    /// # Panics
    /// If there is not a buffer for each descriptor, or their count is not a power of two.
    pub fn new(descriptors: Descriptors, bufs: Vec<u32>) -> DescriptorRing {
        assert!(bufs.len() == descriptors.len() && bufs.len().is_power_of_two());
        DescriptorRing { mask: bufs.len() - 1, descriptors, bufs: bufs.into(), next: 0 }
    }

    /// Returns the count of descriptors.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.mask + 1
    }

    /// Returns the position of the next descriptor.
    #[inline(always)]
    pub fn next(&self) -> usize {
        self.next
    }

    /// Returns the number of descriptors from a position up to the next descriptor.
    #[inline(always)]
    pub fn since(&self, position: usize) -> usize {
        self.next.wrapping_sub(position) & self.mask
    }

    /// Returns a position modulo the length.
    #[inline(always)]
    pub fn wrap(&self, position: usize) -> usize {
        position & self.mask
    }

    /// Returns the descriptor at a position.
    #[inline(always)]
    pub fn at(&self, position: usize) -> &[AtomicU64; 2] {
        // SAFETY: the index is at most `mask`, below the count of descriptors.
        unsafe { self.descriptors.get_unchecked(position & self.mask) }
    }

    /// Returns the next descriptor.
    #[inline(always)]
    pub fn descriptor(&self) -> &[AtomicU64; 2] {
        // SAFETY: `next` is at most `mask`, below the count of descriptors.
        unsafe { self.descriptors.get_unchecked(self.next) }
    }

    /// Returns the buffer of the next descriptor.
    #[inline(always)]
    pub fn buf(&mut self) -> &mut u32 {
        // SAFETY: `next` is at most `mask`, below the count of buffers.
        unsafe { self.bufs.get_unchecked_mut(self.next) }
    }

    /// Returns the descriptors and their buffers from the next one up to the ring's end.
    #[inline(always)]
    pub fn rest(&mut self) -> (&[[AtomicU64; 2]], &mut [u32]) {
        (&self.descriptors[self.next..], &mut self.bufs[self.next..])
    }

    /// Advances by `count` descriptors.
    #[inline(always)]
    pub fn advance(&mut self, count: usize) {
        self.next = (self.next + count) & self.mask;
    }

    /// Returns to the first descriptor.
    pub fn rewind(&mut self) {
        self.next = 0;
    }

    /// Returns the buffers at these positions.
    #[inline(always)]
    pub fn bufs(&self, positions: Range<usize>) -> &[u32] {
        &self.bufs[positions]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use linerate_core::memory::{Mapping, PageSize};

    use super::*;

    fn ring(descriptors: usize, bufs: usize) -> DescriptorRing {
        let memory = Arc::new(Mapping::new(4096, PageSize::Ordinary, None).unwrap());
        // SAFETY: nothing else uses this memory.
        let descriptors = unsafe { Descriptors::new(&memory, 0, descriptors) };
        DescriptorRing::new(descriptors, (0..bufs as u32).collect())
    }

    #[test]
    fn positions_are_modulo_the_length() {
        let mut ring = ring(64, 64);
        (0..64).for_each(|at| ring.at(at)[0].store(at as u64, Relaxed));
        for step in [0, 1, 62, 64, 200, usize::MAX - 300] {
            let before = ring.next();
            ring.advance(step);
            assert_eq!(ring.next(), (before + step) % 64);
            assert_eq!(ring.descriptor()[0].load(Relaxed), ring.next() as u64);
            assert_eq!(*ring.buf() as usize, ring.next());
            assert_eq!(ring.rest().1.len(), 64 - ring.next());
            assert_eq!(ring.since(before), step % 64);
            assert_eq!(ring.at(usize::MAX)[0].load(Relaxed), 63);
        }
    }

    #[test]
    fn a_ring_has_a_buffer_for_each_descriptor() {
        for (descriptors, bufs) in [(64, 63), (63, 64), (0, 0), (48, 48)] {
            assert!(std::panic::catch_unwind(|| ring(descriptors, bufs)).is_err());
        }
    }
}
