//! How slots of a pipe return to the end that sent them.
//!
//! The ends of a pipe share memory. Slot n of a transmit ring is paired with slot n of the other end's receive ring:
//! both name the same buffer. The sender owns it until a sync copies the slot to the other end. Once the receiver has
//! released the slot, the sender's next sync copies it back, with whatever buffer the receiver put there. So a pipe
//! holds one ring of packets, as in netmap (netmap_pipe.c).

use super::ring::{SharedRing, Slot};

/// Copies back the slots before `end` that were passed to the other end of a pipe.
#[inline(always)]
pub fn reclaim(ring: &SharedRing, other: &SharedRing, end: usize) {
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
    reclaim(ring, other, other.published());
    (0..other.place.slots).for_each(|at| other.set_slot(at, Slot { buffer: 0, len: 0, flags: 0 }));
}
