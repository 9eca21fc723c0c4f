//! The placement of received data in a buffer.
#![allow(unsafe_code)]

use super::Region;
use crate::slot::{HEADROOM, Slot};

/// The position of received data in each buffer: after the [`HEADROOM`], and up to three cache lines further if the
/// buffer has room.
///
/// The low bits of an address select its cache set. With the same offset in all buffers, the first lines of all packets
/// would share a few sets: two sets of twelve lines in an L1 cache of 48 KiB with buffers of 2 KiB. A batch of 32
/// packets would be evicted between two accesses. DPDK pads its buffers for the same reason (its programmer's guide:
/// memory alignment constraints of the mempool library).
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    buffer_size: usize,
    shift: u32,
    /// Bits of a buffer's number that select the additional lines, in units of two.
    lines: u32,
    /// The upper half of the slot of a packet in one buffer, without its length and the additional lines.
    whole: u32,
}

/// Bit 0 of a buffer's number already selects a cache set.
const LINES: u32 = 0b110;

impl Placement {
    /// The shift from these bits of a buffer's number to bytes.
    pub const LINE_SHIFT: u32 = 5;

    /// Chooses the placement for packets of up to `longest` bytes.
    pub fn new(region: &Region, longest: usize) -> Placement {
        let whole = (HEADROOM as u32) << (Slot::OFFSET - u32::BITS);
        let placement = Placement { buffer_size: region.buffer_size(), shift: region.shift(), lines: LINES, whole };
        if longest <= placement.room() { placement } else { Placement { lines: 0, ..placement } }
    }

    /// Returns the number of bytes for data in each buffer.
    pub fn room(self) -> usize {
        self.buffer_size.saturating_sub(HEADROOM + ((self.lines as usize) << Self::LINE_SHIFT))
    }

    /// Returns the offset of the data from the buffer's start.
    #[inline(always)]
    pub fn offset(self, buf: u32) -> usize {
        HEADROOM + (((buf & self.lines) as usize) << Self::LINE_SHIFT)
    }

    /// Returns the offset of the data from the region's start.
    #[inline(always)]
    pub fn data(self, buf: u32) -> usize {
        ((buf as usize) << self.shift) + self.offset(buf)
    }

    /// Creates a slot for `len` bytes received into this buffer.
    ///
    /// # Safety
    /// Only the caller owns the buffer, and the slot is used only with the placement's region. `len` is at most
    /// [`room`](Placement::room).
    #[inline(always)]
    pub unsafe fn slot(self, buf: u32, len: u16, more: bool) -> Slot {
        // SAFETY: by the caller's promise; the offset and the room are inside a buffer of the region.
        unsafe { Slot::new(buf, self.offset(buf), len, more) }
    }

    /// As [`slot`](Placement::slot), for a packet in one buffer.
    ///
    /// # Safety
    /// As [`slot`](Placement::slot).
    #[inline(always)]
    pub unsafe fn whole_slot(self, buf: u32, len: u16) -> Slot {
        // The offset is in the top bits.
        let lines = (buf & self.lines) << (Slot::OFFSET - u32::BITS + Self::LINE_SHIFT);
        // SAFETY: the same as `slot`, possibly marked as described; otherwise as the caller promises.
        unsafe { Slot::of_halves(buf, (self.whole + lines) | u32::from(len)) }
    }

    /// Marks the slots of packets in one buffer as [described](Slot::is_described).
    pub fn described(self) -> Placement {
        Placement { whole: self.whole | Slot::DESCRIBED, ..self }
    }

    /// Returns the word of the slot of a packet in one buffer, without the buffer, the length and the additional lines,
    /// for vector code.
    #[inline(always)]
    pub fn whole_word(self) -> u64 {
        u64::from(self.whole) << u32::BITS
    }

    /// Returns the shift from a buffer's number to its first byte, and the bits of the number that select the
    /// additional lines, for vector code.
    #[inline(always)]
    pub fn bits(self) -> (u32, u32) {
        (self.shift, self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PageSize, Pages, RegionOptions};

    #[test]
    fn data_lies_inside_its_buffer_and_in_different_cache_sets() {
        let pages = Pages::Only(PageSize::Ordinary);
        for (buffer_size, longest, kinds) in [(2048, 1522, 4), (2048, 1728, 4), (2048, 1729, 1), (512, 400, 1)] {
            let region = Region::new(&RegionOptions { buffers: 64, buffer_size, pages, numa_node: None }).unwrap();
            let placement = Placement::new(&region, longest);
            let mut offsets: Vec<_> = (0..64).map(|buf| placement.offset(buf)).collect();
            assert!(offsets.iter().all(|&offset| offset >= HEADROOM && offset + placement.room() <= buffer_size));
            for placement in [placement, placement.described()] {
                // SAFETY: the slots are not used with a region.
                let [slot, whole] = unsafe { [placement.slot(6, 60, false), placement.whole_slot(6, 60)] };
                assert_eq!((slot.buf(), slot.len(), slot.offset()), (whole.buf(), whole.len(), whole.offset()));
                assert_eq!(whole.is_described(), placement.whole_word() != (HEADROOM as u64) << Slot::OFFSET);
            }
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!(offsets.len(), kinds);
            if buffer_size == 2048 {
                let mut sets: Vec<_> = (0..64).map(|buf| placement.data(buf) / 64 % 64).collect();
                sets.sort_unstable();
                sets.dedup();
                assert_eq!(sets.len(), 2 * kinds);
            }
        }
    }
}
