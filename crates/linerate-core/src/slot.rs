//! The slot: the 8-byte handle of a packet buffer that is used throughout this library.
#![allow(unsafe_code)]

mod debug;
mod words;

/// Bytes reserved before a packet's data when it is received or allocated.
///
/// Two cache lines: 40 bytes of offloads and metadata, and 88 bytes for headers that a program adds with
/// [`Packet::push`](crate::Packet::push).
pub const HEADROOM: usize = 128;

/// One buffer of a [`Region`](crate::memory::Region), and the position of its data.
///
/// ```text
///    63            52 51       48 47            32 31                             0
///   +----------------+-----------+----------------+--------------------------------+
///   |     offset     |   flags   |      len       |              buf               |
///   +----------------+-----------+----------------+--------------------------------+
/// ```
///
/// - `buf`: the number of the buffer in its region
/// - `len`: bytes of data in this buffer
/// - flags: bit 51, [`more`](Slot::has_more): the packet continues in the next slot; bit 50,
///   [`unfinished`](Slot::is_unfinished): its checksum or segmentation is pending; bit 49,
///   [`described`](Slot::is_described): the headroom contains metadata; bit 48, [`unlearned`](Slot::is_unlearned): a
///   switch does not learn from it
/// - `offset`: bytes from the buffer's start to the data, at most 4,095; in the top bits, so that one shift extracts it
///
/// Invariants: a slot has one owner, `buf` is below the region's count of buffers, and `offset + len` is at most its
/// buffer size. Therefore a slot cannot be copied, and the function that creates it is unsafe. Only the holder of `&mut
/// Slot` can write the bytes.
#[repr(C, align(8))]
pub struct Slot {
    buf: u32,
    /// The upper half: length, flags and offset. A separate field, so that one instruction extracts the length.
    data: u32,
}

const MORE: u32 = 1 << 19;
const UNFINISHED: u32 = 1 << 18;
const DESCRIBED: u32 = 1 << 17;
const UNLEARNED: u32 = 1 << 16;
const OFFSET: u32 = 20;

impl Slot {
    /// An entry without a buffer. No region has a buffer with this number.
    pub const EMPTY: Slot = Slot { buf: u32::MAX, data: 0 };

    /// The shift of the offset in the 64 bits, for vector code.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub const OFFSET: u32 = u32::BITS + OFFSET;

    /// The `described` flag in the upper half.
    pub const DESCRIBED: u32 = DESCRIBED;

    /// The largest offset of a slot.
    pub const MAX_OFFSET: usize = 0xFFF;

    /// Creates a slot of `len` bytes at `offset` of buffer `buf`.
    ///
    /// # Safety
    /// Only the caller owns the buffer, and the slot is used only with its region. `offset + len` is at most the size
    /// of a buffer, and `offset` at most [`MAX_OFFSET`](Slot::MAX_OFFSET).
    #[inline(always)]
    pub const unsafe fn new(buf: u32, offset: usize, len: u16, more: bool) -> Slot {
        Slot { buf, data: len as u32 | (offset as u32) << OFFSET | if more { MORE } else { 0 } }
    }

    /// Creates a slot of its halves: the buffer, and length, flags and offset.
    ///
    /// # Safety
    /// As [`new`](Slot::new).
    #[inline(always)]
    pub const unsafe fn of_halves(buf: u32, data: u32) -> Slot {
        Slot { buf, data }
    }

    /// Returns the number of the buffer in its region.
    #[inline(always)]
    pub const fn buf(&self) -> u32 {
        self.buf
    }

    /// Returns the number of bytes of data in this buffer.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // a slot is a part of a packet, not a collection
    pub const fn len(&self) -> usize {
        self.data as u16 as usize
    }

    /// Returns the offset of the data from the buffer's start.
    #[inline(always)]
    pub const fn offset(&self) -> usize {
        (self.data >> OFFSET) as usize
    }

    /// Returns whether the packet continues in the next slot. A frame longer than a buffer is a chain of slots.
    #[inline(always)]
    pub const fn has_more(&self) -> bool {
        self.data & MORE != 0
    }

    /// Returns the count of slots of the first packet; the count of all slots if it is incomplete.
    #[inline(always)]
    pub fn first_packet(slots: &[Slot]) -> usize {
        slots.iter().position(|slot| !slot.has_more()).map_or(slots.len(), |last| last + 1)
    }

    /// Returns whether the packet's checksum or segmentation is pending. Set only on first slots, and only with ports
    /// opened with offloads or metadata.
    #[inline(always)]
    pub const fn is_unfinished(&self) -> bool {
        self.data & UNFINISHED != 0
    }

    /// Sets or clears the `unfinished` flag.
    pub const fn set_unfinished(&mut self, unfinished: bool) {
        self.data = self.data & !UNFINISHED | if unfinished { UNFINISHED } else { 0 };
    }

    /// Returns whether the headroom contains a [timestamp](crate::Packet::timestamp) or other
    /// [metadata](crate::Packet::metadata). Set only on first slots.
    #[inline(always)]
    pub const fn is_described(&self) -> bool {
        self.data & DESCRIBED != 0
    }

    /// Sets the `described` flag.
    pub const fn set_described(&mut self) {
        self.data |= DESCRIBED;
    }

    /// Returns whether a switch must not learn the packet's source address (netmap's `NS_NO_LEARN`). Set only on first
    /// slots.
    #[inline(always)]
    pub const fn is_unlearned(&self) -> bool {
        self.data & UNLEARNED != 0
    }

    /// Sets the `unlearned` flag.
    pub const fn set_unlearned(&mut self) {
        self.data |= UNLEARNED;
    }

    /// Returns whether the slot is a packet, with nothing pending.
    #[inline(always)]
    pub const fn is_whole(&self) -> bool {
        self.data & (MORE | UNFINISHED) == 0
    }

    /// The bits of a slot's upper half that [`whole_len`](Slot::whole_len) reads.
    pub const WHOLE_LEN: u64 = 0xFFFF | (MORE | UNFINISHED) as u64;

    /// Returns the length of a finished packet that ends in this slot; for any other slot, a value greater than any
    /// length.
    #[inline(always)]
    pub const fn whole_len(&self) -> usize {
        (self.data & Self::WHOLE_LEN as u32) as usize
    }

    /// Sets the position of the data.
    ///
    /// # Safety
    /// `offset + len` is at most the size of a buffer.
    #[inline(always)]
    pub const unsafe fn set_data(&mut self, offset: usize, len: usize) {
        debug_assert!(offset <= Self::MAX_OFFSET && len <= u16::MAX as usize);
        self.data = self.data & (MORE | UNFINISHED | DESCRIBED | UNLEARNED) | len as u32 | (offset as u32) << OFFSET;
    }

    /// Returns whether this entry has no buffer.
    #[inline(always)]
    pub const fn is_empty_entry(&self) -> bool {
        self.buf == Slot::EMPTY.buf
    }

    /// Moves the slot out, leaving an empty entry.
    #[inline(always)]
    pub const fn take(&mut self) -> Slot {
        std::mem::replace(self, Slot::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_eight_bytes_and_keeps_its_fields_apart() {
        assert_eq!(size_of::<Slot>(), 8);
        // SAFETY: no bytes of these slots are used.
        let new = |buf, len, more| unsafe { Slot::new(buf, HEADROOM, len, more) };
        // SAFETY: as above.
        let set_data = |slot: &mut Slot, offset, len| unsafe { slot.set_data(offset, len) };
        let mut slot = new(u32::MAX, u16::MAX, true);
        assert_eq!((slot.buf(), slot.len(), slot.offset()), (u32::MAX, 65_535, HEADROOM));
        assert!(slot.has_more());
        set_data(&mut slot, Slot::MAX_OFFSET, 1);
        assert_eq!((slot.buf(), slot.len(), slot.offset()), (u32::MAX, 1, 4_095));
        assert!(slot.has_more());
        assert!(!new(0, 0, false).has_more());
        slot.set_unfinished(true);
        assert!(slot.is_unfinished() && slot.has_more() && slot.whole_len() > usize::from(u16::MAX));
        slot.set_unfinished(false);
        assert!(!slot.is_unfinished() && slot.len() == 1 && !slot.is_described());
        slot.set_described();
        set_data(&mut slot, HEADROOM, 5);
        assert!(slot.is_described() && slot.has_more() && slot.whole_len() > usize::from(u16::MAX));
    }
}
