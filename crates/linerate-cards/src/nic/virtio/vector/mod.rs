//! The loops of a queue with vector instructions: over groups of packets that have one descriptor each and return in
//! order. The loops over single packets handle everything else. They are the reference: a queue behaves the same with
//! either.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use linerate_core::memory::{Locate, Placement, View};
use linerate_core::port::Vectors;
use linerate_core::slot::Slot;
#[cfg(target_arch = "x86_64")]
use linerate_spec::virtio::header;

use super::ring::{AvailableRun, DriverRing, UsedRun};

/// The fewest packets worth a vector loop: two groups of AVX2, one of AVX-512.
pub const SMALLEST: usize = 8;

/// The constants of a queue's packets.
// Only read on processors with vectors.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct PacketParams<L> {
    /// The region's device addresses.
    pub addresses: L,
    /// Where the data begins in a buffer, after the header.
    pub placement: Placement,
    /// Length of a header in bytes.
    pub header: usize,
    /// The header contains the packet's count of buffers.
    pub mergeable: bool,
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

impl<L> Groups<L> {
    /// Returns the widest loops among those wanted; `None` if the processor has none.
    pub fn choose(wanted: Vectors, params: PacketParams<L>) -> Option<Groups<L>> {
        Some(Groups { params, width: wanted.widest()? })
    }
}

#[cfg(target_arch = "x86_64")]
impl<L: Locate> Groups<L> {
    /// Takes groups of received packets, replacing their buffers by fresh buffers, which are made available. Ends at a
    /// group with anything but whole packets in order, or at the end of a slice. Returns the count of packets and their
    /// bytes. `view` is the region's.
    #[inline(always)]
    pub fn take<R: DriverRing>(
        &self,
        used: UsedRun<'_>,
        available: AvailableRun<'_>,
        bufs: &mut [u32],
        slots: &mut [Slot],
        fresh: &[u32],
        view: View<'_>,
    ) -> (usize, usize) {
        if !used.has_at_least::<R>(SMALLEST) {
            return (0, 0);
        }
        // SAFETY: `choose` checked that the processor has these instructions.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::take::<R, L>(used, available, bufs, slots, fresh, &self.params, view),
                _ => avx2::take::<R, L>(used, available, bufs, slots, fresh, &self.params, view),
            }
        }
    }

    /// Adds groups of packets in one buffer each, and records their buffers and words. Ends at a group with anything
    /// else, or at the end of a slice. Returns the count of packets. `view` is the region's.
    #[inline(always)]
    pub fn fill<R: DriverRing>(
        &self,
        available: AvailableRun<'_>,
        bufs: &mut [u32],
        packets: &mut [u32],
        slots: &[Slot],
        view: View<'_>,
    ) -> usize {
        // SAFETY: as above.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::fill::<R, L>(available, bufs, packets, slots, &self.params, view),
                _ => avx2::fill::<R, L>(available, bufs, packets, slots, &self.params, view),
            }
        }
    }

    /// Takes groups of transmitted packets that were used in order. Ends at a group with anything else, or at the end
    /// of a slice. Returns the count of packets and their bytes.
    #[inline(always)]
    pub fn reclaim<R: DriverRing>(&self, used: UsedRun<'_>, packets: &mut [u32]) -> (usize, usize) {
        if !used.has_at_least::<R>(SMALLEST) {
            return (0, 0);
        }
        // SAFETY: as above.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::reclaim::<R>(used, packets),
                _ => avx2::reclaim::<R>(used, packets),
            }
        }
    }
}

/// Returns whether the headers at these offsets of the region have a buffer count of 1, or 0, which means the same.
///
/// # Safety
/// There is a complete header at each of these offsets.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn are_single<const N: usize>(places: [u64; N], view: View<'_>) -> bool {
    let all = places.iter().fold(0, |all, &at| {
        // SAFETY: the header is inside the region, as the caller promises. The read is volatile, since the device may
        // write the header again.
        all | unsafe {
            let buffers = view.base().as_ptr().add(at as usize + header::NUM_BUFFERS);
            buffers.cast::<u16>().read_volatile()
        }
    });
    all <= 1
}

/// A stub for other processors, where a queue never has groups.
#[cfg(not(target_arch = "x86_64"))]
impl<L> Groups<L> {
    pub fn take<R: DriverRing>(
        &self,
        _: UsedRun<'_>,
        _: AvailableRun<'_>,
        _: &mut [u32],
        _: &mut [Slot],
        _: &[u32],
        _: View<'_>,
    ) -> (usize, usize) {
        (0, 0)
    }

    pub fn fill<R: DriverRing>(
        &self,
        _: AvailableRun<'_>,
        _: &mut [u32],
        _: &mut [u32],
        _: &[Slot],
        _: View<'_>,
    ) -> usize {
        0
    }

    pub fn reclaim<R: DriverRing>(&self, _: UsedRun<'_>, _: &mut [u32]) -> (usize, usize) {
        (0, 0)
    }
}
