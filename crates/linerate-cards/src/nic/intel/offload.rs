//! Sending packets whose checksum or segmentation is left to the card, and those whose time it is to note.
#![allow(unsafe_code)]

use linerate_core::batch::Batch;
use linerate_core::memory::Locate;
use linerate_core::metadata::Metadata;
use linerate_core::offload::Offload;
use linerate_core::slot::Slot;
use linerate_spec::descriptor::transmit;

use super::Controller;
use super::context::{Alike, CardOffload};
use super::format::TransmitFormat;
use super::queue::{CONTEXT, IntelTx};
use crate::pci::Bar;

impl<B: Bar, C: Controller, L: Locate> IntelTx<B, C, L> {
    /// Sends the packet at slot `at` if the card can do all of its pending offloads, or is to note its time. It cannot do
    /// the offloads of packets in tunnels or in too many buffers. Returns the count of slots taken, 0 if the ring has no
    /// room; `None` for another packet.
    pub(super) fn send_left_to_card(&mut self, batch: &mut Batch, at: usize) -> Option<usize> {
        // SAFETY: only bytes of headers change.
        let slots = unsafe { &mut batch.raw_slots()[at..] };
        let count = Slot::first_packet(slots);
        let slots = slots.get_mut(..count).filter(|_| count <= self.most_slots())?;
        let pool = self.pool.clone();
        // SAFETY: the slots are of the queue's pool.
        let view = unsafe { pool.region().view() };
        let left = Offload::of(slots.first()?, view)?;
        let length = slots.iter().map(Slot::len).sum();
        let time = if Metadata::wants_time(&slots[0], view) { C::Format::TIME } else { 0 };
        if !left.is_needed() {
            if !(transmit::SHORTEST..=self.longest).contains(&length) {
                return None;
            }
            if count > self.free() {
                return Some(0);
            }
            self.write_packet(slots, Self::payload(length) | time);
            return Some(count);
        }
        let offload = CardOffload::of::<C::Format>(view.bytes(&slots[0]), length, left, self.longest)?;
        let context = Some(offload.context::<C::Format>()).filter(|context| self.context != Some(*context));
        if count + usize::from(context.is_some()) > self.free() {
            return Some(0);
        }
        let first = view.bytes_mut(&mut slots[0]);
        if let Some(words) = context {
            self.write(words, CONTEXT);
            (self.context, self.alike) = (context, Alike::of(&offload, left, first));
            self.contexts += 1;
        }
        offload.prepare(first);
        let payload = Self::payload(offload.payload_len(length));
        let time = if offload.is_segmented() { 0 } else { time };
        self.write_packet(slots, offload.options() | payload | time);
        Some(count)
    }

    /// Gives the batch the buffers from `clean` up to position `end`, some of whose descriptors are contexts.
    ///
    /// # Safety
    /// The card is done with these descriptors, whose buffers are of the batch's pool, and `clean` advances to `end`.
    #[cold]
    pub(super) unsafe fn recycle_among_contexts(&mut self, batch: &mut Batch, end: usize) {
        let (before, after) =
            if self.clean < end { (self.clean..end, 0..0) } else { (self.clean..self.ring.len(), 0..end) };
        for bufs in
            [before, after].into_iter().flat_map(|done| self.ring.bufs(done).split_inclusive(|&buf| buf == CONTEXT))
        {
            let held = bufs.strip_suffix(&[CONTEXT]).unwrap_or(bufs);
            self.contexts -= bufs.len() - held.len();
            // SAFETY: as the caller promises; these have buffers.
            unsafe { batch.recycle(held) };
        }
    }
}
