//! Receive and send, top-down: how packets move between the card's rings and a batch.
//!
//! A ring is an array of descriptors in memory shared with the card (7.1.9, 7.2.3.3):
//!
//! ```text
//!                          next                            tail (RDT, TDT)
//!   receive   [ driver's | done | done | card's | card's | driver's ]    done descriptors are read from
//!               clean                  next                              `next` on, and refilled in place
//!   transmit  [ done | done | card's | free | free | free ]              packets are added at `next`, and
//!                                                                        reclaimed from `clean` on
//! ```
//!
//! Each ring has an array of `u32` with the buffer number of each descriptor. Receive replaces a full buffer by an
//! empty one from the batch. Send gives the batch the buffers of packets that the card has sent. So forwarding touches
//! only descriptors, slots and these arrays.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linerate_core::batch::{Batch, Finished};
use linerate_core::error::Result;
use linerate_core::memory::{Locate, Placement, Pool, Reservation};
use linerate_core::packet::Origin;
use linerate_core::port::{QueueCounters, RegionRx, RegionTx};
use linerate_core::slot::Slot;
use linerate_spec::descriptor::{receive, transmit};

use super::Controller;
use super::context::Alike;
use super::format::TransmitFormat;
use super::hardware::Hardware;
use super::ring::DescriptorRing;
use super::vector::{Groups, SMALLEST};
use crate::pci::{Bar, Doorbell, Interrupt};

/// One descriptor in 32 has RS: one write by the card and one read by the driver per batch.
pub(super) const REPORT_EVERY: usize = 32;
/// The entry of a context descriptor in the array of buffers: no region has a buffer with this number.
pub(super) const CONTEXT: u32 = Slot::EMPTY.buf();
/// Received descriptors per doorbell: a quarter of the shortest ring. Up to twice as many may accumulate.
const REFILL_BATCH: usize = 16;

/// A receive queue.
pub(super) struct IntelRx<B: Bar, C: Controller, L: Locate> {
    pub(super) ring: DescriptorRing,
    /// The last value written to RDT, plus one.
    pub(super) tail: usize,
    pub(super) doorbell: B::Doorbell,
    /// Loops over groups of packets, if the processor has them.
    pub(super) groups: Option<Groups<L>>,
    /// The region's device addresses.
    pub(super) addresses: L,
    pub(super) placement: Placement,
    pub(super) longest: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// The beginning of a packet whose end has not arrived.
    pub(super) partial: Vec<Slot>,
    /// The next descriptors belong to a packet that is being dropped.
    pub(super) dropping: bool,
    /// The next descriptor continues a packet: a `partial` one, or one that is being dropped.
    pub(super) is_inside: bool,
    pub(super) interrupt: Option<Arc<Interrupt>>,
    pub(super) queue: u16,
    pub(super) hardware: Arc<Hardware<B, C>>,
    /// The count of resets that the queue has followed.
    pub(super) resets: u32,
    pub(super) is_stopped: bool,
    pub(super) _reservation: Reservation,
}

impl<B: Bar, C: Controller, L: Locate> RegionRx for IntelRx<B, C, L> {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let has = |count| batch.capacity() >= count && self.is_done(count - 1);
        if self.is_inside {
            return self.recv_burst::<false>(batch);
        }
        match has(2) {
            false => self.recv_one(batch),
            true if has(SMALLEST) => self.recv_burst::<false>(batch),
            true => self.recv_few(batch),
        }
    }

    fn buffers(&self) -> usize {
        self.ring.len() + self.partial.len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let interrupt = self.interrupt.as_ref()?;
        C::allow_interrupt(&self.hardware, self.queue);
        Some(interrupt.as_fd())
    }

    fn disarm(&mut self) {
        if let Some(interrupt) = &self.interrupt {
            C::forbid_interrupt(&self.hardware, self.queue);
            interrupt.clear();
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar, C: Controller, L: Locate> IntelRx<B, C, L> {
    /// Receives a single packet, without the setup of a batch loop.
    #[inline(never)]
    fn recv_one(&mut self, batch: &mut Batch) -> usize {
        if self.take_one(batch) {
            self.counters.moved(1);
            if self.ring.next().is_multiple_of(REFILL_BATCH) {
                self.return_all();
            }
            return 1;
        }
        if self.is_done(0) {
            return self.recv_burst::<false>(batch);
        }
        self.return_descriptors(0);
        0
    }

    /// Receives fewer packets than a group, one at a time. The setup of the batch loop would cost more than it saves.
    #[inline(never)]
    fn recv_few(&mut self, batch: &mut Batch) -> usize {
        let mut received = 0;
        while self.take_one(batch) {
            received += 1;
        }
        self.counters.moved(received);
        if self.is_done(0) && !batch.is_full() {
            return received + self.recv_burst::<false>(batch);
        }
        self.return_descriptors(received);
        received
    }

    /// As [`take_run`](Self::take_run), for one packet. Returns false, and changes nothing, if the next descriptor is
    /// not a packet in one buffer, or the batch has no room or no free buffer.
    #[inline(always)]
    fn take_one(&mut self, batch: &mut Batch) -> bool {
        let Some(length) = Self::whole_packet(self.status(), self.longest) else { return false };
        let buf = self.ring.buf();
        // SAFETY: the card is done with the ring's buffer, which `new` replaces; `longest` is at most the room.
        let exchanged = unsafe { batch.exchange_one(self.placement.whole_slot(*buf, length)) };
        let Some(new) = exchanged else { return false };
        *buf = new;
        self.refill();
        true
    }

    /// Receives into a batch of the queue's own region, with metadata if `DESCRIBED`.
    #[inline(never)]
    pub(super) fn recv_burst<const DESCRIBED: bool>(&mut self, batch: &mut Batch) -> usize {
        let (before, first) = (batch.len(), self.ring.next());
        if self.is_inside {
            self.resume(batch);
        }
        // The loop would describe the last buffer of a packet that it continues, instead of the first.
        if !DESCRIBED || !batch.ends_in_chain() || self.take_slow(batch) {
            // SAFETY: `take_run` writes each slot that it counts with a buffer from the ring, and puts a fresh buffer
            // there.
            let (offered, received) =
                unsafe { batch.exchange(usize::MAX, |slots, fresh| self.take::<DESCRIBED>(slots, fresh)) };
            if received < offered || offered == 0 {
                self.recv_rest::<DESCRIBED>(batch, received);
            }
        }
        self.is_inside = self.dropping || !self.partial.is_empty();
        let received = batch.len() - before;
        if self.ring.next() != first {
            self.counters.moved(received);
        }
        self.return_descriptors(received);
        received
    }

    /// Returns descriptors to the card. Small batches share a doorbell, which is rung at the latest by a call that
    /// receives no packet.
    #[inline(always)]
    pub(super) fn return_descriptors(&mut self, received: usize) {
        let owed = self.ring.since(self.tail);
        if owed >= REFILL_BATCH || owed > 0 && received == 0 {
            self.return_all();
        }
        if C::IS_VIRTUAL && received == 0 && self.resets != self.hardware.resets() {
            self.restart();
        }
    }

    /// Returns all descriptors to the card that the driver still owns.
    #[inline(always)]
    fn return_all(&mut self) {
        self.tail = self.ring.next();
        // Minus one, since RDT = RDH would mean an empty ring (7.1.9).
        self.doorbell.ring(self.ring.wrap(self.tail.wrapping_sub(1)) as u32);
    }

    /// Continues after the first `received` packets, which did not fill the batch.
    #[inline(never)]
    fn recv_rest<const DESCRIBED: bool>(&mut self, batch: &mut Batch, mut received: usize) {
        // Bounded by the ring's length, so that a malicious card cannot keep the thread here.
        for _ in 0..self.ring.len() {
            // After the ring's end, more whole packets may follow at its start.
            if (received == 0 || self.ring.next() != 0) && !self.take_slow(batch) {
                break;
            }
            // SAFETY: as in `recv_burst`.
            let (offered, more) =
                unsafe { batch.exchange(usize::MAX, |slots, fresh| self.take::<DESCRIBED>(slots, fresh)) };
            if more == offered && offered > 0 {
                break;
            }
            received = more;
        }
    }

    /// Takes packets in one buffer each, replacing their buffers by fresh buffers. Ends at any other descriptor, or at
    /// the end of the ring or a slice. Returns the count.
    #[inline(always)]
    pub(super) fn take_run(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let done = self.take_groups(slots, fresh);
        if done > 0 && (done == slots.len() || self.ring.next() == 0) {
            return done;
        }
        done + self.take_singly(&mut slots[done..], &fresh[done..])
    }

    /// As [`take_run`](Self::take_run), for groups of packets.
    #[inline(always)]
    fn take_groups(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let Some(groups) = &self.groups else { return 0 };
        let (descriptors, bufs) = self.ring.rest();
        let done = groups.take(descriptors, bufs, slots, fresh, C::RX_ERRORS);
        self.ring.advance(done);
        done
    }

    /// As [`take_run`](Self::take_run), one packet at a time.
    #[inline(never)]
    fn take_singly(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let (locate, placement, longest) = (self.addresses.locator(), self.placement, self.longest);
        let (descriptors, bufs) = self.ring.rest();
        let mut done = 0;
        for (((descriptor, buf), slot), &new) in descriptors.iter().zip(bufs).zip(slots).zip(fresh) {
            // Acquire: the packet's bytes are read after the DD bit.
            let Some(length) = Self::whole_packet(descriptor[1].load(Acquire), longest) else { break };
            // SAFETY: the card is done with the ring's buffer, which `new` replaces; `longest` is at most the room.
            *slot = unsafe { placement.whole_slot(*buf, length) };
            *buf = new;
            descriptor[0].store(locate(placement.data(new)), Relaxed);
            descriptor[1].store(0, Relaxed);
            done += 1;
        }
        self.ring.advance(done);
        done
    }

    /// Returns the length from word 1 of a descriptor, if it is a packet in one buffer without errors.
    #[inline(always)]
    pub(super) fn whole_packet(word: u64, longest: usize) -> Option<u16> {
        const WHOLE: u64 = receive::DD | receive::EOP;
        let length = (word >> receive::LENGTH_SHIFT) as u16;
        let is_whole = word & (WHOLE | C::RX_ERRORS) == WHOLE && usize::from(length) <= longest;
        is_whole.then_some(length)
    }

    /// Returns whether the card is done with the descriptor `behind` places after the next descriptor.
    #[inline(always)]
    fn is_done(&self, behind: usize) -> bool {
        self.ring.at(self.ring.next() + behind)[1].load(Relaxed) & receive::DD != 0
    }

    /// Returns word 1 of the next descriptor, with its DD bit.
    #[inline(always)]
    pub(super) fn status(&self) -> u64 {
        self.ring.descriptor()[1].load(Acquire)
    }

    /// Takes the packet at the next descriptor if it is a chain, or drops it if it is faulty. Returns false if no more
    /// packets can be taken now.
    #[inline(always)]
    fn take_slow(&mut self, batch: &mut Batch) -> bool {
        (self.status() & receive::DD != 0 || batch.ends_in_chain()) && self.take_chain(batch)
    }

    #[cold]
    fn take_chain(&mut self, batch: &mut Batch) -> bool {
        // A full batch still takes the rest of a packet that it has begun.
        if batch.len() >= batch.capacity() && !batch.ends_in_chain() {
            return false;
        }
        loop {
            let word = self.status();
            if word & receive::DD == 0 {
                return self.keep_beginning(batch);
            }
            let length = (word >> receive::LENGTH_SHIFT) as u16;
            if word & C::RX_ERRORS != 0 {
                self.counters.dropped();
                return self.drop_packet(batch, word);
            }
            if usize::from(length) > self.longest || self.is_beyond_limit(batch, length) {
                match self.hardware.is_frame_limited() {
                    true => self.counters.dropped(),
                    false => self.counters.missed(0, 1),
                }
                return self.drop_packet(batch, word);
            }
            let Some(new) = batch.take_buffer() else {
                self.counters.found_no_buffer();
                return self.keep_beginning(batch);
            };
            let more = word & receive::EOP == 0;
            // SAFETY: the card is done with the ring's buffer, which is of the batch's pool and replaced below. If the
            // slot is not pushed, the fresh buffer goes back.
            let is_pushed = unsafe {
                batch.push_slot(&self.pool, &mut self.placement.slot(*self.ring.buf(), length, more)) || {
                    batch.recycle(&[new]); // the chain is longer than a card may make one
                    false
                }
            };
            if !is_pushed {
                self.counters.dropped();
                return self.drop_packet(batch, word);
            }
            *self.ring.buf() = new;
            let first = self.ring.descriptor()[0].load(Relaxed);
            self.refill();
            if !more {
                if self.hardware.config.options.metadata {
                    batch.describe_last(&self.hardware.metadata([first, word]));
                    if let Some(time) = self.hardware.time_of(word) {
                        batch.stamp_last_of(time, Origin::Card);
                    }
                }
                return true;
            }
        }
    }

    /// Keeps the beginning of a packet until its end arrives, since packets are delivered whole. Returns false.
    fn keep_beginning(&mut self, batch: &mut Batch) -> bool {
        batch.take_partial(&mut self.partial);
        false
    }

    /// Returns whether a packet would be too long with `length` more bytes. Most cards do not receive such packets.
    fn is_beyond_limit(&self, batch: &Batch, length: u16) -> bool {
        let beginning = || batch.slots().iter().rev().take_while(|slot| slot.has_more()).map(Slot::len).sum::<usize>();
        !self.hardware.is_frame_limited() && beginning() + usize::from(length) > self.hardware.longest_frame()
    }

    /// Drops the packet that contains the next descriptor, including its beginning. Returns true if all of the packet
    /// is dropped.
    fn drop_packet(&mut self, batch: &mut Batch, word: u64) -> bool {
        batch.drop_partial();
        self.dropping = word & receive::EOP == 0;
        self.refill();
        self.skip_dropped();
        !self.dropping
    }

    /// Returns the next descriptor to the card with the buffer in `bufs`.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let data = self.placement.data(*self.ring.buf());
        let descriptor = self.ring.descriptor();
        descriptor[0].store(self.addresses.locate(data), Relaxed);
        descriptor[1].store(0, Relaxed);
        self.ring.advance(1);
    }

    fn skip_dropped(&mut self) {
        for _ in 0..self.ring.len() {
            let word = self.status();
            if !self.dropping || word & receive::DD == 0 {
                break;
            }
            self.dropping = word & receive::EOP == 0;
            self.refill();
        }
    }

    /// Continues a packet, or a drop, that the last call did not finish.
    #[cold]
    fn resume(&mut self, batch: &mut Batch) {
        self.skip_dropped();
        // SAFETY: the slots are of the queue's pool, which is also the batch's.
        unsafe { batch.restore_partial(&self.pool, &mut self.partial) };
    }
}

/// A transmit queue.
pub(super) struct IntelTx<B: Bar, C: Controller, L: Locate> {
    pub(super) ring: DescriptorRing,
    /// The oldest descriptor not known to be done.
    pub(super) clean: usize,
    /// Descriptors with RS, the oldest first. They are at least [`REPORT_EVERY`] apart: at most 128 in a ring of 4,096.
    pub(super) reports: [u16; 128],
    pub(super) oldest_report: u8,
    pub(super) next_report: u8,
    pub(super) unreported: usize,
    /// The card's context, if it is known. Packets with the same headers share it.
    pub(super) context: Option<[u64; 2]>,
    /// The packets that can use this context and are recognised by a comparison.
    pub(super) alike: Option<Alike>,
    /// Context descriptors between `clean` and `next`. They have no buffers.
    pub(super) contexts: usize,
    pub(super) doorbell: B::Doorbell,
    /// Loops over groups of packets, if the processor has them.
    pub(super) groups: Option<Groups<L>>,
    /// The region's device addresses.
    pub(super) addresses: L,
    pub(super) shift: u32,
    pub(super) longest: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) queue: u16,
    pub(super) hardware: Arc<Hardware<B, C>>,
    /// The count of resets that the queue has followed.
    pub(super) resets: u32,
    pub(super) is_stopped: bool,
    pub(super) _reservation: Reservation,
}

impl<B: Bar, C: Controller, L: Locate> RegionTx for IntelTx<B, C, L> {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        if C::IS_VIRTUAL && self.resets != self.hardware.resets() {
            self.restart();
        }
        match batch.len() {
            // One report covers many packets: when a single packet is sent, a report is checked for only right after an
            // RS bit was set.
            1 if self.unreported > 0 => self.send_one(batch),
            SMALLEST.. => self.send_burst(batch),
            _ => self.send_few(batch),
        }
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.ring.since(self.clean) - self.contexts
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar, C: Controller, L: Locate> IntelTx<B, C, L> {
    const COMMAND: u64 = C::Format::COMMAND | if C::CHECKS_CONTEXT { transmit::CC } else { 0 };

    /// Sends a single packet, without the setup of a batch loop.
    #[inline(never)]
    fn send_one(&mut self, batch: &mut Batch) -> usize {
        if !batch.first().is_some_and(|slot| self.fill_one(slot)) {
            return self.send_burst(batch);
        }
        batch.sent_all();
        self.counters.moved(1);
        self.doorbell.ring(self.ring.next() as u32);
        1
    }

    /// Sends fewer packets than a group, one at a time.
    #[inline(never)]
    fn send_few(&mut self, batch: &mut Batch) -> usize {
        if self.is_reclaiming(batch) {
            self.reclaim(batch);
        }
        let mut taken = 0;
        while batch.first().is_some_and(|slot| self.fill_one(slot)) {
            batch.sent(1);
            taken += 1;
        }
        if taken > 0 {
            self.counters.moved(taken);
            self.doorbell.ring(self.ring.next() as u32);
        }
        // What is left does not start with a packet in one buffer, or the ring is full.
        if batch.is_empty() { taken } else { taken + self.send_burst(batch) }
    }

    /// As [`fill_run`](Self::fill_run), for one packet.
    #[inline(always)]
    fn fill_one(&mut self, slot: &Slot) -> bool {
        let length = slot.whole_len();
        let is_full = self.ring.wrap(self.ring.next() + 1) == self.clean;
        if length.wrapping_sub(transmit::SHORTEST) > self.longest - transmit::SHORTEST || is_full {
            return false;
        }
        let address = self.addresses.locate(((slot.buf() as usize) << self.shift) + slot.offset());
        self.write([address, Self::word(length, Self::COMMAND)], slot.buf());
        if self.unreported >= REPORT_EVERY {
            self.set_report_status();
        }
        true
    }

    /// Returns word 1 of the descriptor of a packet in one buffer. One multiplication puts the length into both fields.
    #[inline(always)]
    fn word(length: usize, command: u64) -> u64 {
        command + length as u64 * (Self::payload(1) | 1)
    }

    /// Returns the bits of word 1 that are the length of the whole packet.
    #[inline(always)]
    pub(super) fn payload(length: usize) -> u64 {
        if C::Format::HAS_PAYLEN { (length as u64) << transmit::PAYLEN_SHIFT } else { 0 }
    }

    /// Sends a batch of the queue's own region.
    #[inline(never)]
    fn send_burst(&mut self, batch: &mut Batch) -> usize {
        if self.is_reclaiming(batch) {
            self.reclaim(batch);
        }
        let (mut total, first, mut taken) = (batch.len(), self.ring.next(), 0);
        while taken < total {
            let mut now = self.fill_run(&batch.slots()[taken..]);
            if self.unreported >= REPORT_EVERY {
                self.set_report_status();
            }
            if now == 0 {
                now = self.send_slow(batch, taken);
                total = batch.len(); // segmenting a packet adds slots
            }
            if now == 0 {
                break; // the ring is full
            }
            taken += now;
        }
        batch.sent(taken);
        if taken > 0 {
            self.counters.moved(taken);
        }
        // Packets that the card cannot send were dropped.
        if self.ring.next() != first {
            self.doorbell.ring(self.ring.next() as u32);
        }
        taken
    }

    /// Writes descriptors for packets in one buffer each. Ends at any other packet, at the end of the ring, when it is
    /// full, or when an RS bit is due. Returns the count.
    #[inline(always)]
    fn fill_run(&mut self, slots: &[Slot]) -> usize {
        let count = REPORT_EVERY.min(self.free()).min(slots.len());
        let filled = self.fill_groups(&slots[..count]);
        if filled > 0 && (filled == count || self.ring.next() == 0) {
            return filled;
        }
        filled + self.fill_singly(&slots[filled..count])
    }

    /// As [`fill_run`](Self::fill_run), for groups of packets.
    #[inline(always)]
    fn fill_groups(&mut self, slots: &[Slot]) -> usize {
        let Some(groups) = &self.groups else { return 0 };
        let (descriptors, bufs) = self.ring.rest();
        let filled = groups.fill(descriptors, bufs, slots, Self::COMMAND);
        self.ring.advance(filled);
        self.unreported += filled;
        filled
    }

    /// As [`fill_run`](Self::fill_run), one packet at a time.
    #[inline(always)]
    fn fill_singly(&mut self, slots: &[Slot]) -> usize {
        let (locate, shift, longest, alike) = (self.addresses.locator(), self.shift, self.longest, self.alike);
        let mut filled = 0;
        let (descriptors, bufs) = self.ring.rest();
        for ((descriptor, buf), slot) in descriptors.iter().zip(bufs).zip(slots) {
            let (mut length, mut command) = (slot.whole_len(), Self::COMMAND);
            if length.wrapping_sub(transmit::SHORTEST) > longest - transmit::SHORTEST {
                // SAFETY: the slot is of the queue's pool.
                let is_alike = |alike: &Alike| alike.includes(slot, unsafe { self.pool.region().view() });
                if slot.len() > longest || !alike.as_ref().is_some_and(is_alike) {
                    break;
                }
                (length, command) = (slot.len(), Self::COMMAND | transmit::TXSM);
            }
            let address = locate(((slot.buf() as usize) << shift) + slot.offset());
            descriptor[0].store(address, Relaxed);
            *buf = slot.buf();
            descriptor[1].store(Self::word(length, command), Relaxed);
            filled += 1;
        }
        self.ring.advance(filled);
        self.unreported += filled;
        filled
    }

    /// Sets RS in the last descriptor written, which ends a packet (7.2.3.2.4: RS is valid with EOP).
    #[inline(always)]
    fn set_report_status(&mut self) {
        let last = self.ring.wrap(self.ring.next().wrapping_sub(1));
        let word = &self.ring.at(last)[1];
        word.store(word.load(Relaxed) | transmit::RS, Relaxed);
        self.reports[self.next_report as usize & 127] = last as u16;
        self.next_report = self.next_report.wrapping_add(1);
        self.unreported = 0;
    }

    /// Returns whether the card has written back the oldest descriptor with RS.
    #[inline(always)]
    fn has_report(&self) -> bool {
        self.oldest_report != self.next_report
            && self.ring.at(self.oldest_report())[1].load(Acquire) & transmit::DD != 0
    }

    #[inline(always)]
    fn oldest_report(&self) -> usize {
        self.reports[self.oldest_report as usize & 127].into()
    }

    /// Returns whether to reclaim buffers: the card has written back the oldest report, and the buffers are needed.
    ///
    /// Buffers that the batch does not need for its next receive stay in the ring, up to half of it, if the pool has
    /// enough for all queues. That is cheaper than an exchange with the pool, and the thread keeps buffers that are in
    /// its processor's caches.
    #[inline(always)]
    fn is_reclaiming(&self, batch: &Batch) -> bool {
        self.has_report() && !(batch.is_stocked(REPORT_EVERY) && self.free() >= batch.len().max(self.ring.len() / 2))
    }

    /// Gives the batch the buffers of packets that the card has reported, the oldest first, as long as
    /// [they are needed](Self::is_reclaiming).
    #[inline(never)]
    fn reclaim(&mut self, batch: &mut Batch) {
        while self.is_reclaiming(batch) {
            let end = self.oldest_report() + 1;
            // SAFETY: the card is done with these buffers of the batch's pool, and `clean` advances past them.
            unsafe {
                if self.contexts > 0 {
                    self.recycle_among_contexts(batch, end);
                } else if self.clean < end {
                    batch.recycle(self.ring.bufs(self.clean..end));
                } else {
                    batch.recycle(self.ring.bufs(self.clean..self.ring.len()));
                    batch.recycle(self.ring.bufs(0..end));
                }
            }
            self.clean = self.ring.wrap(end);
            self.oldest_report = self.oldest_report.wrapping_add(1);
        }
    }

    /// Returns the count of free descriptors. One is never used: TDT = TDH means an empty ring (7.2.3.3).
    #[inline(always)]
    pub(super) fn free(&self) -> usize {
        self.ring.len() - 1 - self.ring.since(self.clean)
    }

    /// Sends the packet at slot `at` if it is a chain, too short for the card to pad, or needs a checksum or
    /// segmentation. Drops it if it is too long. Returns the count of slots taken, 0 if the ring has no room.
    #[cold]
    fn send_slow(&mut self, batch: &mut Batch, at: usize) -> usize {
        if let Some(taken) = self.send_left_to_card(batch, at) {
            return taken;
        }
        let finished = batch.finish_packet(at);
        if finished == Finished::NoRoom && at > 0 {
            return 0; // there is room when the packets before have left the batch
        }
        // SAFETY: only the length of a slot changes.
        let slots = unsafe { &mut batch.raw_slots()[at..] };
        let count = Slot::first_packet(slots);
        let slots = &mut slots[..count];
        let mut length: usize = slots.iter().map(Slot::len).sum();
        if length > self.longest || count > self.most_slots() || finished != Finished::Done {
            self.counters.dropped();
            let bufs: Vec<u32> = slots.iter().map(Slot::buf).collect();
            // SAFETY: the caller counts these slots as sent, and the card does not get their buffers.
            unsafe { batch.recycle(&bufs) };
            return count;
        }
        if count > self.free() {
            return 0;
        }
        if length < transmit::SHORTEST {
            // Too short for the card to pad (7.2.1.1): pad with zeros, so that no old contents of the buffer are sent.
            let last = &mut slots[count - 1];
            let (old, new) = (last.len(), last.len() + transmit::SHORTEST - length);
            let offset = last.offset().min(self.pool.region().buffer_size() - new);
            let shift = last.offset() - offset;
            // SAFETY: `offset + new` is at most the buffer size, and the slot is of the queue's pool.
            let bytes = unsafe {
                last.set_data(offset, new);
                self.pool.region().view().bytes_mut(last)
            };
            bytes.copy_within(shift.min(new)..(shift + old).min(new), 0);
            bytes[old..].fill(0);
            length = transmit::SHORTEST;
        }
        self.write_packet(slots, Self::payload(length));
        count
    }

    /// Returns the most slots of a packet. With a context, they fit the shortest ring while the newest packets in it are
    /// not reported.
    pub(super) fn most_slots(&self) -> usize {
        transmit::MOST_DESCRIPTORS.min(self.ring.len() - REPORT_EVERY - 1)
    }

    /// Writes the descriptors of a packet, for which there is room. All have the bits of `options`.
    pub(super) fn write_packet(&mut self, slots: &[Slot], options: u64) {
        for (index, slot) in slots.iter().enumerate() {
            let command = if index + 1 < slots.len() { Self::COMMAND & !transmit::EOP } else { Self::COMMAND };
            let address = self.addresses.locate(((slot.buf() as usize) << self.shift) + slot.offset());
            self.write([address, command | slot.len() as u64 | options], slot.buf());
        }
        if self.unreported >= REPORT_EVERY {
            self.set_report_status();
        }
    }

    /// Writes the words of the next descriptor, whose buffer is `buf`.
    #[inline(always)]
    pub(super) fn write(&mut self, words: [u64; 2], buf: u32) {
        let descriptor = self.ring.descriptor();
        descriptor[0].store(words[0], Relaxed);
        descriptor[1].store(words[1], Relaxed);
        *self.ring.buf() = buf;
        self.ring.advance(1);
        self.unreported += 1;
    }
}
