//! Slots in transit between threads.
#![allow(unsafe_code)]

use super::{MORE, Slot, UNFINISHED};

impl Slot {
    /// Returns slots as words, to pass them to another thread. Each word may be turned back into a slot only once.
    pub fn words(slots: &[Slot]) -> &[u64] {
        // SAFETY: a slot has the size and alignment of a word, and all its bits belong to its two fields.
        unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
    }

    /// Returns the slot as a word, as [`words`](Slot::words) does.
    #[inline(always)]
    pub fn word(&self) -> u64 {
        u64::from(self.buf) | u64::from(self.data) << u32::BITS
    }

    /// As [`has_more`](Slot::has_more), for a slot's [word](Slot::word).
    #[inline(always)]
    pub const fn continues(word: u64) -> bool {
        word & (MORE as u64) << u32::BITS != 0
    }

    /// As [`is_whole`](Slot::is_whole), for a slot's [word](Slot::word), or for all slots whose words are combined by
    /// bitwise or.
    #[inline(always)]
    pub const fn is_whole_word(words: u64) -> bool {
        words & ((MORE | UNFINISHED) as u64) << u32::BITS == 0
    }

    /// Returns the slot of a [word](Slot::word).
    ///
    /// # Safety
    /// The word must be a slot that its previous owner has given up.
    #[inline(always)]
    pub unsafe fn of_word(word: u64) -> Slot {
        Slot { buf: word as u32, data: (word >> u32::BITS) as u32 }
    }

    /// Returns slots as writable words.
    ///
    /// # Safety
    /// Every word stored must be a slot of this region that its previous owner has given up.
    pub unsafe fn words_mut(slots: &mut [Slot]) -> &mut [u64] {
        // SAFETY: as in `words`; the caller stores only valid slots.
        unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
    }
}
