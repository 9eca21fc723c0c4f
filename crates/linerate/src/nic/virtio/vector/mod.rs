//! Several packets at a time, with the vector instructions that the processor has: groups of packets in one descriptor each,
//! that come in the order in which they went. What is anything else is left to the loops over single ones, which are the
//! reference; a queue behaves the same whichever it has.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use super::registers::header;
use super::ring::{Finished, Offered, Ring};
use crate::memory::{Locate, Placement, View};
use crate::port::Vectors;
#[cfg(target_arch = "x86_64")]
use crate::slot::HEADROOM;
use crate::slot::Slot;

/// Packets that are worth a look: two groups of the smaller kind, one of the larger.
pub const SMALLEST: usize = 8;

/// What is the same for all packets of a queue.
// Read where there are vectors.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub struct Rule<L> {
    /// Where the device sees the region.
    pub addresses: L,
    /// Where in a buffer a header begins.
    pub placement: Placement,
    /// Bytes of a header.
    pub header: usize,
    /// It tells how many buffers a packet has.
    pub mergeable: bool,
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

impl<L> Groups<L> {
    /// Those that are wanted, if there are any.
    pub fn choose(wanted: Vectors, rule: Rule<L>) -> Option<Groups<L>> {
        Some(Groups { rule, width: wanted.widest()? })
    }
}

#[cfg(target_arch = "x86_64")]
impl<L: Locate> Groups<L> {
    /// Exchanges the buffers of groups of received packets for fresh ones, which are offered in their places, until a group
    /// has anything but whole packets that come in turn, or a slice ends. Returns how many packets, and their bytes. `view`
    /// is the region's.
    #[inline(always)]
    pub fn take<R: Ring>(
        &self,
        finished: Finished<'_>,
        offered: Offered<'_>,
        bufs: &mut [u32],
        slots: &mut [Slot],
        fresh: &[u32],
        view: View<'_>,
    ) -> (usize, usize) {
        if !finished.has_at_least::<R>(SMALLEST) {
            return (0, 0);
        }
        // SAFETY: `choose` has found these instructions.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::take::<R, L>(finished, offered, bufs, slots, fresh, &self.rule, view),
                _ => avx2::take::<R, L>(finished, offered, bufs, slots, fresh, &self.rule, view),
            }
        }
    }

    /// Offers groups of packets in one buffer each, and notes buffers and packets, until a group has anything else, or a
    /// slice ends. Returns how many packets. `view` is the region's.
    #[inline(always)]
    pub fn fill<R: Ring>(
        &self,
        offered: Offered<'_>,
        bufs: &mut [u32],
        packets: &mut [u32],
        slots: &[Slot],
        view: View<'_>,
    ) -> usize {
        // SAFETY: as above.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::fill::<R, L>(offered, bufs, packets, slots, &self.rule, view),
                _ => avx2::fill::<R, L>(offered, bufs, packets, slots, &self.rule, view),
            }
        }
    }

    /// Takes groups of packets that come back in turn, until a group has anything else, or a slice ends. Returns how many,
    /// and their bytes.
    #[inline(always)]
    pub fn reclaim<R: Ring>(&self, finished: Finished<'_>, packets: &mut [u32]) -> (usize, usize) {
        if !finished.has_at_least::<R>(SMALLEST) {
            return (0, 0);
        }
        // SAFETY: as above.
        unsafe {
            match self.width {
                Vectors::Avx512 => avx512::reclaim::<R>(finished, packets),
                _ => avx2::reclaim::<R>(finished, packets),
            }
        }
    }
}

/// Whether the headers at these places of the region say that their packets have one buffer each, or nothing, which means the
/// same.
///
/// # Safety
/// There are headers, behind the headroom of these places.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn are_single<const N: usize>(places: [u64; N], view: View<'_>) -> bool {
    let all = places.iter().fold(0, |all, &at| {
        // SAFETY: as the caller says; the device may write a header once more, so it is read as it is.
        all | unsafe {
            let buffers = view.base().as_ptr().add(at as usize + HEADROOM + header::NUM_BUFFERS);
            buffers.cast::<u16>().read_volatile()
        }
    });
    all <= 1
}

/// Where there are none, a queue never has groups.
#[cfg(not(target_arch = "x86_64"))]
impl<L> Groups<L> {
    pub fn take<R: Ring>(
        &self,
        _: Finished<'_>,
        _: Offered<'_>,
        _: &mut [u32],
        _: &mut [Slot],
        _: &[u32],
        _: View<'_>,
    ) -> (usize, usize) {
        (0, 0)
    }

    pub fn fill<R: Ring>(&self, _: Offered<'_>, _: &mut [u32], _: &mut [u32], _: &[Slot], _: View<'_>) -> usize {
        0
    }

    pub fn reclaim<R: Ring>(&self, _: Finished<'_>, _: &mut [u32]) -> (usize, usize) {
        (0, 0)
    }
}
