//! A receive queue of a card that coalesces TCP segments (82599 datasheet, 7.11), top-down.
//!
//! The card appends the segments of a flow to one packet, in several buffers. Meanwhile it receives other packets, so
//! that the descriptors of a packet need not follow each other. Each names the next one (NEXTP):
//!
//! ```text
//!   descriptors   [ A 1 | B 1 | C | A 2 | B 2 | A 3 | ... ]      A: 1, 4, 6; B: 2, 5; C: 3
//! ```
//!
//! Descriptors are processed in the order of the ring, and return to the card in that order. The slots of incomplete
//! packets wait in `chains`. A complete packet is delivered as one whose segmentation is pending, so that the port that
//! sends it restores the segments. Its transport checksum is that of one segment, and is not used.
#![allow(unsafe_code)]

use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::memory::{Locate, Pool, View};
use linerate_core::metadata::Checksum;
use linerate_core::offload::{Headers, Offload};
use linerate_core::port::RegionRx;
use linerate_core::slot::Slot;
use linerate_spec::descriptor::receive;

use super::Controller;
use super::chains::{Added, Chain, Chains, Part};
use super::metadata::metadata;
use super::queue::IntelRx;
use crate::pci::Bar;

/// A ring whose packets may be coalesced. A separate type, so that the loops of other rings stay as they are.
pub(super) struct CoalescedRx<B: Bar, C: Controller, L: Locate> {
    rx: IntelRx<B, C, L>,
    chains: Chains,
}

impl<B: Bar, C: Controller, L: Locate> RegionRx for CoalescedRx<B, C, L> {
    fn pool(&self) -> &Arc<Pool> {
        &self.rx.pool
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, first) = (batch.len(), self.rx.ring.next());
        // Bounded by the ring's length, so that a malicious card cannot keep the thread here.
        for _ in 0..self.rx.ring.len() {
            if batch.is_full() || !self.take_descriptor(batch) {
                break;
            }
        }
        let received = batch.len() - before;
        if self.rx.ring.next() != first {
            self.rx.counters.moved(received);
        }
        self.rx.return_descriptors(received);
        received
    }

    fn buffers(&self) -> usize {
        self.rx.ring.len() + self.chains.held()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.rx.arm()
    }

    fn disarm(&mut self) {
        self.rx.disarm();
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar, C: Controller, L: Locate> CoalescedRx<B, C, L> {
    /// Receives coalesced packets from a queue that was started.
    pub fn new(rx: IntelRx<B, C, L>) -> CoalescedRx<B, C, L> {
        let chains = Chains::new(rx.ring.len(), rx.hardware.most_slots());
        CoalescedRx { rx, chains }
    }

    /// Takes the next descriptor, and delivers its packet if it is complete. Returns false if the card is not done with
    /// the descriptor, or no buffer is free.
    fn take_descriptor(&mut self, batch: &mut Batch) -> bool {
        let word = self.rx.status();
        if word & receive::DD == 0 {
            return false;
        }
        let Some(new) = batch.take_buffer() else {
            self.rx.counters.found_no_buffer();
            return false;
        };
        let words = [self.rx.ring.descriptor()[0].load(Relaxed), word];
        let at = self.rx.ring.next();
        let part = self.part(words);
        // Most packets of other protocols: no chain is needed.
        if part.next.is_none() && part.count == 0 && !part.is_faulty && self.chains.begins(at) {
            self.replace_buffer(new);
            self.push(batch, [part.slot], words, 0);
            return true;
        }
        match self.chains.add(at, part) {
            Added::Incomplete => self.replace_buffer(new),
            Added::Complete(number) => {
                self.replace_buffer(new);
                self.deliver(batch, number, words);
            }
            kept => {
                // SAFETY: the buffer was not used; those of the packet's slots have no other owner.
                unsafe { batch.recycle(&[new]) };
                if let Added::Malformed(begun) = kept {
                    self.rx.counters.dropped();
                    // SAFETY: as above.
                    unsafe { batch.recycle(&begun) };
                }
                self.rx.refill();
            }
        }
        true
    }

    /// Reads the words of the next descriptor.
    fn part(&mut self, [first, second]: [u64; 2]) -> Part {
        let length = (second >> receive::LENGTH_SHIFT) as u16;
        let count = (first >> receive::RSCCNT_SHIFT & 0xF) as u8;
        let next = match (second & receive::EOP != 0, count) {
            (true, _) => None,
            // The descriptors of other packets follow each other.
            (false, 0) => Some(self.rx.ring.wrap(self.rx.ring.next() + 1)),
            (false, _) => Some((second >> receive::NEXTP_SHIFT & 0xFFFF) as usize),
        };
        let is_faulty = second & C::RX_ERRORS != 0 || usize::from(length) > self.rx.longest;
        let length = if is_faulty { 0 } else { length };
        // SAFETY: the card is done with the ring's buffer, which is replaced if the slot is used; the length is at most
        // the room.
        let slot = unsafe { self.rx.placement.slot(*self.rx.ring.buf(), length, next.is_some()) };
        Part { slot, count, next, is_faulty }
    }

    /// Returns the next descriptor to the card with another buffer.
    fn replace_buffer(&mut self, new: u32) {
        *self.rx.ring.buf() = new;
        self.rx.refill();
    }

    /// Delivers a complete packet, whose last descriptor has these words.
    fn deliver(&mut self, batch: &mut Batch, number: usize, words: [u64; 2]) {
        let packet = self.chains.packet(number);
        let segments = packet.segments();
        // The card coalesces only segments with right checksums (7.11.2).
        let is_right = segments < 2
            || metadata::<C>(words).checksum == Checksum::Good && {
                // SAFETY: the view is used with slots of the queue's pool.
                let view = unsafe { self.rx.pool.region().view() };
                leave_segments(packet, self.rx.hardware.config.options.max_frame, view).is_some()
            };
        let slots = self.chains.remove(number);
        if is_right {
            return self.push(batch, slots, words, segments);
        }
        self.rx.counters.dropped();
        let bufs: Vec<u32> = slots.iter().map(Slot::buf).collect();
        // SAFETY: the slots were the queue's, and are not used again.
        unsafe { batch.recycle(&bufs) };
    }

    /// Appends a packet to the batch, with its metadata if it is wanted.
    fn push(&self, batch: &mut Batch, slots: impl IntoIterator<Item = Slot>, words: [u64; 2], segments: usize) {
        let has_metadata = self.rx.hardware.config.options.metadata;
        for (n, mut slot) in slots.into_iter().enumerate() {
            if n == 0 && has_metadata {
                let (region, segments) = (self.rx.pool.region(), u8::try_from(segments).unwrap_or(u8::MAX));
                // SAFETY: the view is used with a slot of the queue's pool.
                self.rx.hardware.describe(&mut slot, unsafe { region.view() }, words, segments);
            }
            // SAFETY: the slot is of the queue's pool, which is also the batch's. One that was not pushed is not used.
            unsafe {
                if !batch.push_slot(&self.rx.pool, &mut slot) {
                    batch.recycle(&[slot.buf()]); // unreachable: a batch that is not full has room for a packet
                }
            }
        }
    }

    fn halt(&mut self) -> Result<()> {
        let stopped = self.rx.halt();
        // SAFETY: the buffers are of the queue's pool, and their slots were just removed.
        unsafe { self.rx.pool.give(&self.chains.clear()) };
        stopped
    }
}

impl<B: Bar, C: Controller, L: Locate> Drop for CoalescedRx<B, C, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

/// Leaves a coalesced packet to be segmented by the port that sends it, in frames of at most `longest` bytes. Returns
/// `None` if its headers do not fit a TCP packet of this length.
fn leave_segments(packet: &mut Chain, longest: usize, view: View<'_>) -> Option<()> {
    let (len, segments) = (packet.len, packet.segments());
    let first = view.bytes_mut(packet.slots.first_mut()?);
    // The length of the headers is known only afterwards, and with it the size.
    let offload = Offload::leave(first, len, Some(NonZeroU16::MAX))?;
    let headers = Headers::of(first, len, offload)?;
    let payload = len.checked_sub(headers.len).filter(|_| headers.is_tcp)?;
    // The card has corrected the length; IPv4's checksum must be right for Linux and other receivers, too.
    headers.leave(first, len);
    let size = segment_size(packet, headers.len, payload.div_ceil(segments)).min(longest.checked_sub(headers.len)?);
    let first = view.bytes_mut(packet.slots.first_mut()?);
    let offload = Offload::leave(first, len, Some(NonZeroU16::new(size as u16)?))?;
    offload.note(&mut packet.slots[0], view);
    Some(())
}

/// Returns a size of segments that is at most the size of the longest that arrived, and at least `mean`.
///
/// The descriptors tell in which buffer each segment begins. So the mean of all segments before a buffer is known, too,
/// and a short last segment does not make the others shorter.
fn segment_size(packet: &Chain, headers: usize, mean: usize) -> usize {
    let (mut size, mut begun, mut at) = (mean, 0, 0usize);
    for (slot, count) in packet.slots.iter().zip(&packet.counts) {
        let begins = usize::from(count.saturating_sub(1));
        if begins > 0 && begun > 0 {
            size = size.max(at.saturating_sub(headers).div_ceil(begun));
        }
        (begun, at) = (begun + begins, at + slot.len());
    }
    size
}
