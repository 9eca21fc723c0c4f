//! A receive queue that notes what the card found out about each packet ([`Metadata`](linerate_core::metadata::Metadata)).
//!
//! The loops of `queue` overwrite a descriptor when they take its packet. So the metadata of a run of packets is noted
//! before those loops take them, and the vector loops stay as they are.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linerate_core::batch::Batch;
use linerate_core::memory::{Locate, View};
use linerate_core::metadata::Metadata;
use linerate_core::packet::{Origin, stamp};
use linerate_core::port::Describe;
use linerate_core::slot::Slot;

use super::Controller;
use super::hardware::Hardware;
use super::metadata::metadata;
use super::queue::IntelRx;
use crate::pci::Bar;

impl<B: Bar, C: Controller, L: Locate> Describe for IntelRx<B, C, L> {
    fn recv_described(&mut self, batch: &mut Batch) -> usize {
        self.recv_burst::<true>(batch)
    }
}

impl<B: Bar, C: Controller, L: Locate> IntelRx<B, C, L> {
    /// As [`take_run`](IntelRx::take_run), with metadata if `DESCRIBED`.
    #[inline(always)]
    pub(super) fn take<const DESCRIBED: bool>(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        if DESCRIBED { self.take_described(slots, fresh) } else { self.take_run(slots, fresh) }
    }

    /// As [`take_run`](IntelRx::take_run), but first notes the metadata of the packets that are there.
    fn take_described(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        // SAFETY: the view is used with buffers of the ring, which are of this pool.
        let view = unsafe { self.pool.region().view() };
        let (placement, longest, rare) = (self.placement, self.longest, self.hardware.rare_metadata());
        let (descriptors, bufs) = self.ring.rest();
        let mut there = 0;
        for (descriptor, &buf) in descriptors.iter().zip(&*bufs).take(slots.len().min(fresh.len())) {
            // Acquire: word 0 is read after the DD bit.
            let word = descriptor[1].load(Acquire);
            if Self::whole_packet(word, longest).is_none() {
                break;
            }
            // SAFETY: the card is done with the buffer; this slot is gone before `take_run` makes one.
            let mut slot = unsafe { placement.slot(buf, 0, false) };
            let words = [descriptor[0].load(Relaxed), word];
            metadata::<C>(words).describe(&mut slot, view);
            if word & rare != 0 {
                self.hardware.describe(&mut slot, view, words, 0);
            }
            there += 1;
        }
        self.take_run(&mut slots[..there], &fresh[..there])
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Notes all metadata of a packet, with a count of coalesced segments, and its time. Separate, because few packets
    /// have more than the common metadata.
    #[inline(never)]
    pub(super) fn describe(&self, first: &mut Slot, view: View<'_>, words: [u64; 2], segments: u8) {
        Metadata { segments, ..self.metadata(words) }.describe(first, view);
        if let Some(time) = self.time_of(words[1]) {
            stamp(first, view, time, Origin::Card);
        }
    }
}
