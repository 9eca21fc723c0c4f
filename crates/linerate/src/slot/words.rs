//! Slots on their way from one thread to another.
#![allow(unsafe_code)]

use super::Slot;

impl Slot {
    /// Slots as they travel between threads. The words are slots again only once, and only in one place.
    pub(crate) fn words(slots: &[Slot]) -> &[u64] {
        // SAFETY: a slot is as large as a word, and as aligned; all its bits are of its two fields.
        unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
    }

    /// Places for slots that come as words: of one who has forgotten them, and of the same region.
    pub(crate) fn words_mut(slots: &mut [Slot]) -> &mut [u64] {
        // SAFETY: as in `words`; what may be written is said above.
        unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
    }
}
