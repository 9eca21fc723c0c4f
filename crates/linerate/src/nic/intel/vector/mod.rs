//! Several descriptors at a time, with the vector instructions that the processor has: the loops of `queue` over packets in
//! one buffer each, in groups. What is not a whole group of such packets is left to the loops there, which are the
//! reference; a queue behaves the same whichever it has.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::sync::atomic::AtomicU64;

use crate::memory::{DeviceAddress, Placement};
use crate::port::Vectors;
use crate::slot::Slot;

/// The smallest group: fewer packets are not worth a look.
pub const SMALLEST: usize = 4;

/// What is the same for all packets of a queue.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The card's address of the region's first byte.
    pub base: DeviceAddress,
    /// Where the card writes in a buffer.
    pub placement: Placement,
    /// The longest packet.
    pub longest: usize,
}

/// A queue's loops over groups, which there are only on a processor that has the instructions.
#[derive(Clone, Copy)]
pub struct Groups {
    // Read where there are vectors.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    rule: Rule,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    width: Vectors,
}

impl Groups {
    /// The widest of those that are wanted; `None`: one by one. `base` is there if the region is in one piece for the card.
    pub fn choose(
        wanted: Vectors,
        base: Option<DeviceAddress>,
        placement: Placement,
        longest: usize,
    ) -> Option<Groups> {
        let rule = Rule { base: base?, placement, longest };
        Some(Groups { rule, width: wanted.widest()? })
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
impl Groups {
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
impl Groups {
    pub fn take(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &mut [Slot], _: &[u32], _: u64) -> usize {
        0
    }

    pub fn fill(&self, _: &[[AtomicU64; 2]], _: &mut [u32], _: &[Slot], _: u64) -> usize {
        0
    }
}
