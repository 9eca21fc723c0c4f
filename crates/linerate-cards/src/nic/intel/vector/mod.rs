//! The loops of `queue` over packets in one buffer each, with vector instructions: a group of descriptors at a time.
//! The loops in `queue` handle everything else. They are the reference: a queue behaves the same with either.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::atomic::AtomicU64;

use linerate_core::memory::{Locate, Placement};
use linerate_core::port::Vectors;
use linerate_core::slot::Slot;

/// The smallest group; fewer packets are not worth a vector loop.
pub const SMALLEST: usize = 4;

/// The constants of a queue's packets.
pub struct PacketParams<L> {
    /// The region's device addresses.
    pub addresses: L,
    /// Where the card writes in a buffer.
    pub placement: Placement,
    /// The longest packet.
    pub longest: usize,
}

/// A queue's loops over groups. A value exists only if the processor has the instructions.
pub struct Groups<L> {
    // Only read on processors with vectors.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    params: PacketParams<L>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    width: Vectors,
}

impl<L: Locate> Groups<L> {
    /// Returns the widest loops among those wanted; `None` if the processor has none.
    pub fn choose(wanted: Vectors, addresses: &L, placement: Placement, longest: usize) -> Option<Groups<L>> {
        let params = PacketParams { addresses: addresses.clone(), placement, longest };
        Some(Groups { params, width: wanted.widest()? })
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
impl<L: Locate> Groups<L> {
    /// Takes groups of received packets, replacing their buffers by fresh buffers. Ends at a group with anything but
    /// whole packets without `errors`, or at the end of a slice. Returns the count of packets.
    #[inline(always)]
    pub fn take(
        &self,
        ring: &[[AtomicU64; 2]],
        bufs: &mut [u32],
        slots: &mut [Slot],
        fresh: &[u32],
        errors: u64,
    ) -> usize {
        // SAFETY: `choose` checked for these instructions; AVX-512 implies AVX2.
        unsafe {
            match self.width {
                Vectors::Avx512 if slots.len() >= avx512::GROUP => {
                    avx512::take(ring, bufs, slots, fresh, errors, &self.params)
                }
                _ => avx2::take(ring, bufs, slots, fresh, errors, &self.params),
            }
        }
    }

    /// Writes descriptors with this command for groups of packets in one buffer each. Ends at a group with anything
    /// else, or at the end of a slice. Returns the count of packets.
    #[inline(always)]
    pub fn fill(&self, ring: &[[AtomicU64; 2]], bufs: &mut [u32], slots: &[Slot], command: u64) -> usize {
        // SAFETY: `choose` checked for these instructions; AVX-512 implies AVX2.
        unsafe {
            match self.width {
                Vectors::Avx512 if slots.len() >= avx512::GROUP => {
                    avx512::fill(ring, bufs, slots, command, &self.params)
                }
                _ => avx2::fill(ring, bufs, slots, command, &self.params),
            }
        }
    }
}

/// A stub for other processors, where a queue never has groups.
#[cfg(not(target_arch = "x86_64"))]
impl<L> Groups<L> {
    pub fn take(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &mut [Slot], _: &[u32], _: u64) -> usize {
        0
    }

    pub fn fill(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &[Slot], _: u64) -> usize {
        0
    }
}
