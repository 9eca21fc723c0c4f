//! Several descriptors at a time, with the vector instructions that the processor has: the loops of `queue` over packets in
//! one buffer each, in groups. What is not a whole group of such packets is left to the loops there, which are the
//! reference; a queue behaves the same whichever it has.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::atomic::AtomicU64;

use crate::memory::{Locate, Placement};
use crate::port::Vectors;
use crate::slot::Slot;

/// The smallest group: fewer packets are not worth a look.
pub const SMALLEST: usize = 4;

/// What is the same for all packets of a queue.
pub struct Rule<L> {
    /// Where the card sees the region.
    pub addresses: L,
    /// Where the card writes in a buffer.
    pub placement: Placement,
    /// The longest packet.
    pub longest: usize,
}

/// A queue's loops over groups, which there are only on a processor that has the instructions.
pub struct Groups<L> {
    // Read where there are vectors.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    rule: Rule<L>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    width: Vectors,
}

impl<L: Locate> Groups<L> {
    /// The widest of those that are wanted; `None`: one by one.
    pub fn choose(wanted: Vectors, addresses: &L, placement: Placement, longest: usize) -> Option<Groups<L>> {
        let rule = Rule { addresses: addresses.clone(), placement, longest };
        Some(Groups { rule, width: wanted.widest()? })
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
impl<L: Locate> Groups<L> {
    /// Exchanges the buffers of groups of received packets for fresh ones, until a group has anything but whole packets
    /// without `errors`, or a slice ends. Returns how many packets.
    #[inline(always)]
    pub fn take(
        &self,
        ring: &[[AtomicU64; 2]],
        bufs: &mut [u32],
        slots: &mut [Slot],
        fresh: &[u32],
        errors: u64,
    ) -> usize {
        // SAFETY: `choose` has found these instructions; where there is AVX-512, there is AVX2.
        unsafe {
            match self.width {
                Vectors::Avx512 if slots.len() >= avx512::GROUP => {
                    avx512::take(ring, bufs, slots, fresh, errors, &self.rule)
                }
                _ => avx2::take(ring, bufs, slots, fresh, errors, &self.rule),
            }
        }
    }

    /// Writes descriptors with this command for groups of packets in one buffer each, until a group has anything else, or a
    /// slice ends. Returns how many packets.
    #[inline(always)]
    pub fn fill(&self, ring: &[[AtomicU64; 2]], bufs: &mut [u32], slots: &[Slot], command: u64) -> usize {
        // SAFETY: `choose` has found these instructions; where there is AVX-512, there is AVX2.
        unsafe {
            match self.width {
                Vectors::Avx512 if slots.len() >= avx512::GROUP => avx512::fill(ring, bufs, slots, command, &self.rule),
                _ => avx2::fill(ring, bufs, slots, command, &self.rule),
            }
        }
    }
}

/// Where there are none, a queue never has groups.
#[cfg(not(target_arch = "x86_64"))]
impl<L> Groups<L> {
    pub fn take(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &mut [Slot], _: &[u32], _: u64) -> usize {
        0
    }

    pub fn fill(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &[Slot], _: u64) -> usize {
        0
    }
}
