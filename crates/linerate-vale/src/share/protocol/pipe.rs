//! How slots of a pipe return to the end that has sent them.
//!
//! The ends of a pipe share memory. Slot n of a transmit ring and slot n of the other end's receive ring belong
//! together: they name one buffer, which is the sender's until a sync has copied the slot to the other end. When the
//! receiver has released the slot, the sender's next sync copies it back, with the buffer that the receiver has put
//! there. So a pipe has room for one ring of packets, as netmap's has (netmap_pipe.c).

use super::ring::{SharedRing, Slot};

/// Copies the slots in front of `end` back, which were passed to the other end of a pipe.
#[inline(always)]
pub fn take_back(ring: &SharedRing, other: &SharedRing, end: usize) {
    let mut at = ring.next(ring.published());
    while at != end {
        // An invalid buffer number is not copied.
        if ring.memory.buffer(other.slot(at).buffer).is_some() {
            ring.copy_slot(other, at);
        }
        at = ring.next(at);
    }
}

/// Moves all buffers of a pipe to its transmit ring, and clears the slots of the other end.
pub fn end_pipe(ring: &SharedRing, other: &SharedRing) {
    take_back(ring, other, other.published());
    (0..other.place.slots).for_each(|at| other.set_slot(at, Slot { buffer: 0, len: 0, flags: 0 }));
}
