//! A receive queue that notes what the card found out about each packet ([`Metadata`](linerate_core::metadata::Metadata)).
//!
//! The loops of `queue` overwrite a descriptor when they take its packet. So the metadata of a run of packets is noted
//! before those loops take them, and the vector loops stay as they are.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::memory::{Locate, Pool};
use linerate_core::packet::{Origin, stamp};
use linerate_core::port::RegionRx;
use linerate_core::slot::Slot;
use linerate_spec::descriptor::receive;

use super::Controller;
use super::metadata::metadata;
use super::queue::IntelRx;
use crate::pci::Bar;

/// A receive queue of a port with metadata.
pub struct Described<B: Bar, C: Controller, L: Locate>(pub IntelRx<B, C, L>);

impl<B: Bar, C: Controller, L: Locate> RegionRx for Described<B, C, L> {
    fn pool(&self) -> &Arc<Pool> {
        self.0.pool()
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        self.0.recv_burst::<true>(batch)
    }

    fn buffers(&self) -> usize {
        self.0.buffers()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn stop(&mut self) -> Result<()> {
        self.0.stop()
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
        let (placement, longest) = (self.placement, self.longest);
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
            metadata::<C>([descriptor[0].load(Relaxed), word]).describe(&mut slot, view);
            if word & receive::TS != 0
                && let Some(time) = self.hardware.received_time()
            {
                stamp(&mut slot, view, time, Origin::Card);
            }
            there += 1;
        }
        self.take_run(&mut slots[..there], &fresh[..there])
    }
}
