//! The word that a transmit queue keeps of a packet: its bytes, its count of descriptors, and whether it returned
//! early. The count is in the highest byte, so that the fast path compares it without a shift.

/// The packet's bytes.
pub const BYTES: u32 = (1 << COUNT) - 1;
/// The position of the count of descriptors.
pub const COUNT: u32 = 24;
/// The most descriptors of a packet that fit the word: twice the slots of a batch's longest chain.
pub const MOST: usize = (1 << (31 - COUNT)) - 1;
/// The device returned the packet before an earlier one.
pub const EARLY: u32 = 1 << 31;
/// The count for one descriptor.
pub const SINGLE: u32 = 1 << COUNT;
