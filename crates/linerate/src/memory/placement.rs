//! Where in a buffer received data is put.

use super::Region;
use crate::slot::{HEADROOM, Slot};

/// Where in each buffer a device writes what it receives: behind the [`HEADROOM`], and in buffers that have room for it up to
/// three cache lines further on.
///
/// If data began at the same place of all buffers, the first lines of all packets would share a few sets of each cache, since
/// a cache takes the set from the low bits of an address: two sets of twelve lines in a first-level cache of 48 KiB and
/// buffers of 2 KiB, so that a batch of 32 packets does not stay there from one look to the next. DPDK pads its buffers for
/// the same reason (its programmer's guide: memory alignment constraints of the mempool library).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    buffer_size: usize,
    shift: u32,
    /// Bits of a buffer's number that say how many lines, in twos.
    lines: u32,
}

/// Bit 0 of a buffer's number is a bit of its address's set already.
const LINES: u32 = 0b110;

impl Placement {
    /// From these bits to bytes.
    pub const LINE_SHIFT: u32 = 5;

    /// For packets of up to `longest` bytes.
    pub fn new(region: &Region, longest: usize) -> Placement {
        let placement = Placement { buffer_size: region.buffer_size(), shift: region.shift(), lines: LINES };
        if longest <= placement.room() { placement } else { Placement { lines: 0, ..placement } }
    }

    /// Bytes that there are for data in each buffer.
    pub fn room(self) -> usize {
        self.buffer_size.saturating_sub(HEADROOM + ((self.lines as usize) << Self::LINE_SHIFT))
    }

    /// Bytes from a buffer's start to the data.
    #[inline(always)]
    pub fn offset(self, buf: u32) -> usize {
        HEADROOM + (((buf & self.lines) as usize) << Self::LINE_SHIFT)
    }

    /// Bytes from the region's start to the data.
    #[inline(always)]
    pub fn data(self, buf: u32) -> usize {
        ((buf as usize) << self.shift) + self.offset(buf)
    }

    /// A slot of `len` bytes that were received into this buffer, at most [`room`](Placement::room).
    #[inline(always)]
    pub fn slot(self, buf: u32, len: u16, more: bool) -> Slot {
        Slot::new(buf, self.offset(buf), len, more)
    }

    /// For vectors: the shift from a buffer's number to its first byte, and the bits of the number that say where behind
    /// the headroom the data is.
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
    fn data_lie_inside_their_buffers_and_in_different_sets_of_a_cache() {
        let pages = Pages::Only(PageSize::Ordinary);
        for (buffer_size, longest, kinds) in [(2048, 1522, 4), (2048, 1728, 4), (2048, 1729, 1), (512, 400, 1)] {
            let region = Region::new(&RegionOptions { buffers: 64, buffer_size, pages, numa_node: None }).unwrap();
            let placement = Placement::new(&region, longest);
            let mut offsets: Vec<_> = (0..64).map(|buf| placement.offset(buf)).collect();
            assert!(offsets.iter().all(|&offset| offset >= HEADROOM && offset + placement.room() <= buffer_size));
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
