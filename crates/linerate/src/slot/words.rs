//! Slots in transit between threads.
#![allow(unsafe_code)]

use super::Slot;

impl Slot {
    /// Returns slots as words, to pass them to another thread. Each word must become a slot again only once.
    pub(crate) fn words(slots: &[Slot]) -> &[u64] {
        // SAFETY: a slot has the size and alignment of a word, and all its bits belong to its two fields.
        unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
    }

    /// Returns slots as words to store to.
    ///
    /// # Safety
    /// Every word stored must be a slot of this region that its previous owner has given up.
    pub(crate) unsafe fn words_mut(slots: &mut [Slot]) -> &mut [u64] {
        // SAFETY: as in `words`; the caller stores only valid slots.
        unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
    }
}
