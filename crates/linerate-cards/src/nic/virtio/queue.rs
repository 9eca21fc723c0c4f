//! Receive and send, top-down: how packets move between a virtqueue and a batch.
//!
//! Every packet begins with a header (5.1.6). It is directly before the data and outside the slot, so programs never
//! see it:
//!
//! ```text
//!   buffer   [ headroom ...... header | data ............................ ]
//!                              ^ the device's buffer begins here: one descriptor, or two if the
//!                                device needs the header in a separate descriptor
//! ```
//!
//! The header is at the end of the headroom, so the data begins at a cache line: a frame of 64 bytes occupies one line.
//! A packet that is forwarded unread, except for its header, stays in the other side's cache.
//!
//! Receive replaces a full buffer by an empty buffer from the batch, which becomes available to the device. Send takes
//! the batch's buffers, and returns the buffers that the device has used.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use linerate_core::batch::{Batch, Finished, MAX_CHAIN};
use linerate_core::error::Result;
use linerate_core::event::Interrupt;
use linerate_core::memory::{DeviceAddress, Locate, Mapping, Placement, Pool, Reservation};
use linerate_core::offload::{AcceptedOffloads, LONGEST, Offload};
use linerate_core::port::{QueueCounters, RegionRx, RegionTx};
use linerate_core::slot::Slot;
use linerate_spec::virtio::{feature, header};

use super::hardware::Hardware;
use super::ring::{DriverRing, HeaderLayout, Part};
use super::sent::{NO_BUFFER, Returned, Sent};
use super::sent_word;
use super::transport::Notify;
use super::vector::{Groups, SMALLEST};

/// The shorter header's length.
const SHORT: u32 = header::SHORT_LEN as u32;
/// Fewer packets than this are handled one at a time: the setup of the batch loop would cost more than it saves.
const FEW: usize = 4;

/// Features with which a device accepts packets whose offloads are still to be done.
const BY_DEVICE: AcceptedOffloads = AcceptedOffloads {
    checksum: feature::CSUM,
    tcp_ipv4: feature::HOST_TSO4,
    tcp_ipv6: feature::HOST_TSO6,
    udp: feature::HOST_USO,
    ecn: feature::HOST_ECN,
};

/// A receive queue.
pub(super) struct VirtioRx<R: DriverRing, L: Locate> {
    /// The queue's number in the device.
    pub(super) number: u16,
    pub(super) ring: R,
    /// Buffers by id; by half the id if headers have separate descriptors.
    pub(super) bufs: Box<[u32]>,
    pub(super) layout: HeaderLayout,
    pub(super) doorbell: Notify,
    /// The region's device addresses.
    pub(super) addresses: L,
    /// Loops over groups of packets, if the processor has them.
    pub(super) groups: Option<Groups<L>>,
    /// Where the data begins in a buffer, after the header.
    pub(super) placement: Placement,
    /// Bytes that the device may write to a buffer: header and data.
    pub(super) room: u32,
    pub(super) longest: usize,
    /// The longest packet in one buffer.
    pub(super) longest_single: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// Buffers of the current packet that are still missing.
    pub(super) missing: u16,
    /// Slots and bytes of the current packet received so far.
    pub(super) slots: usize,
    pub(super) so_far: usize,
    /// The beginning of a packet whose end has not arrived.
    pub(super) partial: Vec<Slot>,
    /// The current packet is being dropped.
    pub(super) dropping: bool,
    /// The current packet is being dropped because it is too long.
    pub(super) too_long: bool,
    /// The device returned an invalid id; the queue receives no more packets.
    pub(super) broken: bool,
    /// Used buffers of which the device has reported only the last one.
    pub(super) reported: Reported,
    pub(super) interrupt: Option<Arc<Interrupt>>,
    pub(super) hardware: Arc<Hardware>,
    pub(super) _reservation: Reservation,
}

impl<R: DriverRing, L: Locate> RegionRx for VirtioRx<R, L> {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let is_few = batch.capacity() < batch.len() + FEW || !self.ring.has_used(FEW);
        if is_few && self.partial.is_empty() && self.is_plain() { self.recv_few(batch) } else { self.recv_burst(batch) }
    }

    fn buffers(&self) -> usize {
        self.bufs.len() + self.partial.len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let interrupt = self.interrupt.as_ref()?;
        if self.ring.publish(false) {
            self.doorbell.ring();
        }
        self.ring.allow_interrupts();
        Some(interrupt.as_fd())
    }

    fn disarm(&mut self) {
        if let Some(interrupt) = &self.interrupt {
            self.ring.forbid_interrupts();
            if interrupt.is_line() {
                self.hardware.transport.take_interrupt();
            }
            interrupt.clear();
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<R: DriverRing, L: Locate> VirtioRx<R, L> {
    /// Receives few packets, one at a time.
    #[inline(never)]
    fn recv_few(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        if self.take_one(batch) && (batch.is_full() || !self.ring.has_used(1)) {
            return self.publish(1);
        }
        self.recv_following(batch, before)
    }

    /// Receives further packets, including packets of several buffers. Returns the count of slots beyond `before`.
    #[inline(never)]
    fn recv_following(&mut self, batch: &mut Batch, before: usize) -> usize {
        while self.take_one(batch) {}
        if !batch.is_full() && self.ring.peek_used().is_some() {
            // The next packet is not in one buffer, or no buffer is free.
            self.recv_rest(batch, 0);
        }
        self.publish(batch.len() - before)
    }

    /// As [`take_run`](Self::take_run), for one packet.
    #[inline(always)]
    fn take_one(&mut self, batch: &mut Batch) -> bool {
        self.ring.poll_used();
        let at = self.ring.used_index();
        let used = self.ring.used_run(at);
        let written = if used.len::<R>() > 0 { used.written::<R>(0) } else { None };
        let Some(written) = written else { return false };
        let (buf, header) = (&mut self.bufs[at], self.layout.len as usize);
        let length = (written as usize).wrapping_sub(header);
        // SAFETY: only used to read the header of a packet in a buffer that the device has returned.
        let memory = unsafe { self.pool.region().mapping() };
        if length.wrapping_sub(1) >= self.longest_single
            || (self.layout.mergeable && buffers(memory, self.placement.data(*buf) - header) > 1)
        {
            return false;
        }
        // SAFETY: the device is done with the ring's buffer, which `new` replaces; `longest_single` is at most the
        // room.
        let exchanged = unsafe { batch.exchange_one(self.placement.slot(*buf, length as u16, false)) };
        let Some(new) = exchanged else { return false };
        *buf = new;
        let address = self.addresses.locate(self.placement.data(new) - header);
        self.ring.available_run(at, self.room).put::<R>(0, address, 0);
        self.ring.advance_used(1);
        self.ring.advance_available(1);
        self.counters.moved_packets(1, 1, length);
        true
    }

    /// Returns whether packets in one buffer can be taken from the ring without special cases.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        !self.layout.separate && self.missing == 0 && self.reported.count == 0 && !self.broken
    }

    /// Publishes the buffers that replace `received` packets.
    #[inline(always)]
    fn publish(&mut self, received: usize) -> usize {
        if self.ring.publish(received > 0) {
            self.doorbell.ring();
        }
        received
    }

    /// Receives into a batch of the queue's own region.
    #[inline(never)]
    fn recv_burst(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        if !self.partial.is_empty() {
            // SAFETY: the slots are of the queue's pool, which is also the batch's.
            unsafe { batch.restore_partial(&self.pool, &mut self.partial) };
        }
        // SAFETY: `take_run` writes each slot that it counts with a buffer from the ring, and puts a fresh buffer
        // there.
        let (offered, received) = unsafe { batch.exchange(usize::MAX, |slots, fresh| self.take_run(slots, fresh)) };
        if received < offered || offered == 0 {
            self.recv_rest(batch, received);
        }
        self.publish(batch.len() - before)
    }

    /// Continues after the first `received` packets, which did not fill the batch.
    #[inline(never)]
    fn recv_rest(&mut self, batch: &mut Batch, mut received: usize) {
        // Bounded by the ring's length, so that a malicious device cannot keep the thread here.
        for _ in 0..self.bufs.len() {
            // After the ring's end, more packets may follow at its start.
            if received == 0 && !self.take_slow(batch) {
                break;
            }
            // SAFETY: as in `recv_burst`.
            let (offered, more) = unsafe { batch.exchange(usize::MAX, |slots, fresh| self.take_run(slots, fresh)) };
            if more == offered && offered > 0 {
                break;
            }
            received = more;
        }
    }

    /// Takes packets in one buffer each, replacing their buffers by fresh buffers. Ends at any other packet, at the end
    /// of the ring or a slice, or when there are no more packets. Returns the count.
    #[inline(always)]
    fn take_run(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        if self.missing > 0 || self.broken || self.reported.count > 0 {
            return 0;
        }
        self.ring.poll_used();
        let done = self.take_groups(slots, fresh);
        if done > 0 && (done == slots.len() || self.ring.used_index() == 0) {
            return done;
        }
        let (slots, fresh) = (&mut slots[done..], &fresh[done..]);
        if !self.layout.common {
            return done + self.take_uncommon(slots, fresh);
        }
        done + match self.layout {
            HeaderLayout { mergeable: true, .. } => self.take_singly::<{ header::LEN }, true>(slots, fresh),
            HeaderLayout { len: SHORT, .. } => self.take_singly::<{ header::SHORT_LEN }, false>(slots, fresh),
            _ => self.take_singly::<{ header::LEN }, false>(slots, fresh),
        }
    }

    /// As [`take_run`](Self::take_run), for headers with a hash or with separate descriptors.
    #[inline(never)]
    fn take_uncommon(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        match self.layout {
            HeaderLayout { separate: true, .. } => 0,
            HeaderLayout { mergeable: true, .. } => self.take_singly::<{ header::HASH_LEN }, true>(slots, fresh),
            _ => self.take_singly::<{ header::HASH_LEN }, false>(slots, fresh),
        }
    }

    /// As [`take_run`](Self::take_run), for groups of packets.
    #[inline(always)]
    fn take_groups(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let Some(groups) = self.groups.as_ref().filter(|_| slots.len() >= SMALLEST) else { return 0 };
        let first = self.ring.used_index();
        let (used, available) = (self.ring.used_run(first), self.ring.available_run(first, self.room));
        // SAFETY: the view is used only with the ring's buffers, which are of this pool.
        let view = unsafe { self.pool.region().view() };
        let (done, bytes) = groups.take::<R>(used, available, &mut self.bufs[first..], slots, fresh, view);
        self.taken(done, bytes)
    }

    /// As [`take_run`](Self::take_run), one packet at a time.
    #[inline(never)]
    fn take_singly<const HEADER: usize, const MERGEABLE: bool>(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let (addresses, placement, longest) = (&self.addresses, self.placement, self.longest_single);
        // SAFETY: only used to read headers of packets in buffers that the device has returned.
        let memory = unsafe { self.pool.region().mapping() };
        let first = self.ring.used_index();
        let (used, available) = (self.ring.used_run(first), self.ring.available_run(first, self.room));
        let most = used.len::<R>().min(available.len::<R>()).min(slots.len());
        let (used, available) = (used.first::<R>(most), available.first::<R>(most));
        let (mut done, mut bytes) = (0, 0);
        for (at, ((slot, &new), buf)) in (0..most).zip(slots.iter_mut().zip(fresh).zip(&mut self.bufs[first..])) {
            let Some(written) = used.written::<R>(at) else { break };
            let length = (written as usize).wrapping_sub(HEADER);
            if length.wrapping_sub(1) >= longest {
                break;
            }
            if MERGEABLE && buffers(memory, placement.data(*buf) - HEADER) > 1 {
                break;
            }
            // SAFETY: the device is done with the ring's buffer, which `new` replaces; `longest` is at most the room.
            *slot = unsafe { placement.slot(*buf, length as u16, false) };
            *buf = new;
            available.put::<R>(at, addresses.locate(placement.data(new) - HEADER), 0);
            bytes += length;
            done += 1;
        }
        self.taken(done, bytes)
    }

    /// Records that `count` packets were taken, and that as many buffers were made available.
    #[inline(always)]
    fn taken(&mut self, count: usize, bytes: usize) -> usize {
        self.ring.advance_used(count);
        self.ring.advance_available(count);
        self.counters.moved_packets(count, count, bytes);
        count
    }

    /// Returns the index of the buffer with this id; `None` if the id is invalid.
    #[inline(always)]
    fn index(&self, id: u16) -> Option<usize> {
        let each = self.layout.descriptors();
        let index = usize::from(id / each);
        (id.is_multiple_of(each) && index < self.bufs.len()).then_some(index)
    }

    /// Returns the offset of the header in the buffer at this index, from the region's start.
    #[inline(always)]
    fn header_place(&self, index: usize) -> usize {
        self.placement.data(self.bufs[index]) - self.layout.len as usize
    }

    /// Returns the header in the first buffer of a packet.
    #[inline(always)]
    fn header(&self, index: usize) -> [u8; header::LEN] {
        let mut bytes = [0; header::LEN];
        let at = self.header_place(index);
        // SAFETY: the device has returned the buffer.
        unsafe { self.pool.region().mapping() }.read(at, &mut bytes);
        bytes
    }

    /// Makes the buffer at this index available to the device.
    #[inline(always)]
    pub(super) fn refill(&mut self, index: usize) {
        let HeaderLayout { len, separate, .. } = self.layout;
        let at = self.header_place(index);
        let address = self.addresses.locate(at);
        let descriptor = index as u16 * self.layout.descriptors();
        let part = Part { descriptor, address, len: self.room, writable: true };
        if separate {
            let (address, rest) = (address + u64::from(len), self.room - len);
            let data = Part { descriptor: descriptor + 1, address, len: rest, ..part };
            self.ring.add(&[Part { len, ..part }, data]);
        } else {
            self.ring.add(&[part]);
        }
    }

    /// Takes a packet of several buffers, or drops an invalid packet. Returns false if no more packets can be taken
    /// now.
    #[inline(always)]
    fn take_slow(&mut self, batch: &mut Batch) -> bool {
        (self.reported.count > 0 || self.ring.peek_used().is_some() || batch.ends_in_chain())
            && !self.broken
            && self.take_chain(batch)
    }

    /// Returns the index of the next used buffer, and the bytes written to it. A device that uses buffers in order may
    /// report several buffers by the id and length of the last one; the others are full (2.7.9, 2.8.9).
    fn next_used(&mut self) -> Next {
        let expected = self.ring.used_index();
        if self.reported.count == 0 {
            let Some((id, written)) = self.ring.peek_used() else { return Next::Nothing };
            let Some(index) = self.index(id) else { return Next::Invalid };
            if index == expected || self.hardware.features & feature::IN_ORDER == 0 {
                return Next::Buffer(index, written);
            }
            let count = (index.wrapping_sub(expected) & (self.bufs.len() - 1)) + 1;
            if count > self.ring.most_used() {
                return Next::Invalid;
            }
            self.reported = Reported { count, written };
        }
        Next::Buffer(expected, if self.reported.count == 1 { self.reported.written } else { self.room })
    }

    /// Advances past the buffer of [`next_used`](Self::next_used), and makes it available again.
    fn replace(&mut self, index: usize) {
        self.ring.pop_used(self.layout.descriptors());
        self.reported.count = self.reported.count.saturating_sub(1);
        self.refill(index);
    }

    #[cold]
    fn take_chain(&mut self, batch: &mut Batch) -> bool {
        // A full batch still takes the rest of a packet that it has begun.
        if batch.len() >= batch.capacity() && !batch.ends_in_chain() {
            return false;
        }
        loop {
            let (index, written) = match self.next_used() {
                Next::Buffer(index, written) => (index, written),
                Next::Nothing => return self.keep_beginning(batch),
                Next::Invalid => {
                    self.broken = true;
                    self.counters.dropped();
                    self.hardware.report_invalid_id("receive");
                    return self.keep_beginning(batch);
                }
            };
            let is_first = self.missing == 0;
            // Only a packet's first buffer has a header (5.1.6.4); in the others, data begins where a header would be.
            let header = self.header(index);
            let (buffers, skipped) = match is_first {
                true if self.layout.mergeable => {
                    let [low, high] = [header[header::NUM_BUFFERS], header[header::NUM_BUFFERS + 1]];
                    (u16::from_le_bytes([low, high]).max(1), self.layout.len)
                }
                true => (1, self.layout.len),
                false => (self.missing, 0),
            };
            let len = written.wrapping_sub(skipped);
            let possible = len.wrapping_sub(1) < self.room - skipped && usize::from(buffers) <= MAX_CHAIN;
            let is_too_long = self.so_far + len as usize > self.longest;
            if self.dropping || !possible || is_too_long {
                self.too_long |= possible && is_too_long && !self.dropping;
                self.drop_buffer(batch, index, buffers);
                if self.missing == 0 {
                    return true;
                }
                continue;
            }
            let Some(new) = batch.take_buffer() else {
                self.counters.found_no_buffer();
                return self.keep_beginning(batch);
            };
            let buf = self.bufs[index];
            let offset = self.placement.offset(buf) - (self.layout.len - skipped) as usize;
            // SAFETY: the device is done with the ring's buffer, which is of the batch's pool and replaced below;
            // `possible` means that `len` bytes fit. If the slot is not pushed, the fresh buffer goes back.
            let is_pushed = unsafe {
                let mut slot = Slot::new(buf, offset, len as u16, buffers > 1);
                batch.push_slot(&self.pool, &mut slot) || {
                    batch.recycle(&[new]); // unreachable: a chain of MAX_CHAIN slots fits beyond the capacity
                    false
                }
            };
            if !is_pushed {
                self.drop_buffer(batch, index, buffers);
                continue;
            }
            self.bufs[index] = new;
            self.replace(index);
            self.slots += 1;
            self.so_far += len as usize;
            self.missing = buffers - 1;
            if self.missing == 0 {
                self.counters.moved_packets(1, std::mem::take(&mut self.slots), std::mem::take(&mut self.so_far));
                return true;
            }
        }
    }

    /// Keeps the beginning of a packet until its end arrives, since packets are delivered whole. Returns false.
    fn keep_beginning(&mut self, batch: &mut Batch) -> bool {
        batch.take_partial(&mut self.partial);
        false
    }

    /// Returns a buffer to the device unchanged, and drops the beginning of its packet.
    fn drop_buffer(&mut self, batch: &mut Batch, index: usize, buffers: u16) {
        batch.drop_partial();
        self.replace(index);
        self.missing = buffers - 1;
        self.dropping = self.missing > 0;
        if !self.dropping {
            (self.slots, self.so_far) = (0, 0);
            match std::mem::take(&mut self.too_long) {
                true => self.counters.missed(0, 1),
                false => self.counters.dropped(),
            }
        }
    }
}

/// Returns the count of buffers of a packet from its header.
#[inline(always)]
fn buffers(memory: &Mapping, header: usize) -> u32 {
    const LAST: usize = header::NUM_BUFFERS - 2;
    memory.word(header + LAST).load(Relaxed) >> 16
}

/// Used buffers of which only the last one was reported.
#[derive(Default)]
pub(super) struct Reported {
    /// The count of buffers still to be taken.
    count: usize,
    /// Bytes written to the last buffer.
    written: u32,
}

/// The result of [`next_used`](VirtioRx::next_used).
enum Next {
    /// The buffer's index, and the bytes written.
    Buffer(usize, u32),
    Nothing,
    /// The device returned an id that it was not given.
    Invalid,
}

/// A transmit queue.
pub(super) struct VirtioTx<R: DriverRing, L: Locate> {
    /// The queue's number in the device.
    pub(super) number: u16,
    pub(super) ring: R,
    pub(super) sent: Sent,
    pub(super) layout: HeaderLayout,
    pub(super) doorbell: Notify,
    /// The region's device addresses.
    pub(super) addresses: L,
    /// Loops over groups of packets, if the processor has them.
    pub(super) groups: Option<Groups<L>>,
    /// The address of a header of zeros, for packets without headroom for a header.
    pub(super) zeros: DeviceAddress,
    pub(super) longest: usize,
    /// The negotiated features ([`feature`]).
    pub(super) features: u64,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) broken: bool,
    pub(super) stopped: bool,
    pub(super) hardware: Arc<Hardware>,
}

impl<R: DriverRing, L: Locate> RegionTx for VirtioTx<R, L> {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.len() < FEW { self.send_few(batch) } else { self.send_burst(batch) }
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.sent.held().len()
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<R: DriverRing, L: Locate> VirtioTx<R, L> {
    /// Sends few packets, one at a time.
    #[inline(never)]
    fn send_few(&mut self, batch: &mut Batch) -> usize {
        if self.ring.peek_used().is_some() {
            self.reclaim(batch);
        }
        let is_plain = !self.broken && self.layout.common;
        if batch.len() == 1 && is_plain && batch.first().is_some_and(|slot| self.fill_one(slot)) {
            batch.sent(1);
            self.publish();
            return 1;
        }
        let mut taken = 0;
        if is_plain {
            while let Some(slot) = batch.slots().get(taken)
                && self.fill_one(slot)
            {
                taken += 1;
            }
        }
        self.finish(batch, taken)
    }

    /// As [`fill_run`](Self::fill_run), for one packet; only with common headers.
    #[inline(always)]
    fn fill_one(&mut self, slot: &Slot) -> bool {
        let (region, length, header) = (self.pool.region(), slot.whole_len(), self.layout.len as usize);
        if length.wrapping_sub(1) >= self.longest || slot.offset() < header || self.sent.free() == 0 {
            return false;
        }
        let place = ((slot.buf() as usize) << region.shift()) + slot.offset() - header;
        // SAFETY: only used to write the header before a packet of this queue.
        let memory = unsafe { region.mapping() };
        match self.layout.len {
            SHORT => memory.write(place, &[0; header::SHORT_LEN]),
            _ => memory.write(place, &[0; header::LEN]),
        }
        let first = self.sent.push(slot.buf(), length as u32);
        let address = self.addresses.locate(place);
        self.ring.available_run(first, 0).put::<R>(0, address, (header + length) as u32);
        self.ring.advance_available(1);
        true
    }

    /// Sends a batch of the queue's own region.
    #[inline(never)]
    fn send_burst(&mut self, batch: &mut Batch) -> usize {
        if self.ring.peek_used().is_some() {
            self.reclaim(batch);
        }
        let taken = if self.broken { 0 } else { self.fill_run(batch.slots()) };
        self.finish(batch, taken)
    }

    /// Sends the slots after the first `taken`, and publishes all of them.
    #[inline(always)]
    fn finish(&mut self, batch: &mut Batch, mut taken: usize) -> usize {
        if taken < batch.len() {
            taken = self.send_rest(batch, taken);
        }
        batch.sent(taken);
        self.publish();
        taken
    }

    /// Publishes the added packets.
    #[inline(always)]
    fn publish(&mut self) {
        if self.ring.publish(false) {
            self.doorbell.ring();
        }
    }

    /// Continues after the first `taken` slots. Returns the total count taken.
    #[inline(never)]
    fn send_rest(&mut self, batch: &mut Batch, mut taken: usize) -> usize {
        while taken < batch.len() && !self.broken {
            let mut now = self.fill_run(&batch.slots()[taken..]);
            if now == 0 {
                now = self.send_slow(batch, taken);
            }
            if now == 0 {
                break; // the ring is full
            }
            taken += now;
        }
        taken
    }

    /// Adds packets in one buffer each. Ends at any other packet, at the end of the ring, or when it is full. Returns
    /// the count.
    #[inline(always)]
    fn fill_run(&mut self, slots: &[Slot]) -> usize {
        let filled = self.fill_groups(slots);
        if filled > 0 && filled == slots.len() {
            return filled;
        }
        if !self.layout.common {
            let has_hash = !self.layout.separate;
            return filled + if has_hash { self.fill_singly::<{ header::HASH_LEN }>(&slots[filled..]) } else { 0 };
        }
        filled
            + match self.layout.len {
                SHORT => self.fill_singly::<{ header::SHORT_LEN }>(&slots[filled..]),
                _ => self.fill_singly::<{ header::LEN }>(&slots[filled..]),
            }
    }

    /// As [`fill_run`](Self::fill_run), for groups of packets.
    #[inline(always)]
    fn fill_groups(&mut self, slots: &[Slot]) -> usize {
        let Some(groups) = self.groups.as_ref().filter(|_| slots.len() >= SMALLEST) else { return 0 };
        let (first, bufs, packets) = self.sent.space(slots.len());
        let available = self.ring.available_run(first, 0);
        // SAFETY: the view is used only with these slots, which are of a batch of this pool.
        let view = unsafe { self.pool.region().view() };
        let filled = groups.fill::<R>(available, bufs, packets, slots, view);
        self.ring.advance_available(filled);
        self.sent.commit(filled);
        filled
    }

    /// As [`fill_run`](Self::fill_run), one packet at a time, with headers of `HEADER` bytes.
    #[inline(never)]
    fn fill_singly<const HEADER: usize>(&mut self, slots: &[Slot]) -> usize {
        let region = self.pool.region();
        let (addresses, longest) = (&self.addresses, self.longest);
        // SAFETY: only used to write headers before packets of this queue.
        let memory = unsafe { region.mapping() };
        let (first, bufs, packets) = self.sent.space(slots.len());
        let available = self.ring.available_run(first, 0);
        let mut filled = 0;
        let most = available.len::<R>().min(slots.len());
        let available = available.first::<R>(most);
        for (at, ((slot, buf), packet)) in (0..most).zip(slots.iter().zip(bufs).zip(packets)) {
            let length = slot.whole_len();
            if length.wrapping_sub(1) >= longest || slot.offset() < HEADER {
                break;
            }
            let place = ((slot.buf() as usize) << region.shift()) + slot.offset() - HEADER;
            memory.write(place, &[0; HEADER]);
            (*buf, *packet) = (slot.buf(), sent_word::SINGLE | length as u32);
            available.put::<R>(at, addresses.locate(place), (HEADER + length) as u32);
            filled += 1;
        }
        self.ring.advance_available(filled);
        self.sent.commit(filled);
        filled
    }

    /// Gives the batch the buffers of all packets that the device has used, and counts them as sent.
    #[inline(never)]
    fn reclaim(&mut self, batch: &mut Batch) {
        let Returned { packets, slots, bytes, invalid_id } =
            self.sent.reclaim(&mut self.ring, batch, self.groups.as_ref());
        if packets > 0 {
            self.counters.moved_packets(packets, slots, bytes);
        }
        if invalid_id && !self.broken {
            self.broken = true;
            self.counters.dropped();
            self.hardware.report_invalid_id("transmit");
        }
    }

    /// Sends the packet at slot `at` if it is a chain, has offloads to do, or needs a descriptor for its header. Drops
    /// it if it is too long. Returns the count of slots taken, 0 if the ring has no room.
    #[cold]
    fn send_slow(&mut self, batch: &mut Batch, at: usize) -> usize {
        let todo = batch.slots().get(at).and_then(|first| self.left_to_device(first));
        let finished = if todo.is_some() { Finished::Done } else { batch.finish_packet(at) };
        if finished == Finished::NoRoom && at > 0 {
            return 0; // there is room when the packets before have left the batch
        }
        let possible = finished == Finished::Done;
        let slots = &batch.slots()[at..];
        let count = Slot::first_packet(slots);
        let slots = &slots[..count];
        let length: usize = slots.iter().map(Slot::len).sum();
        let header = self.layout.len;
        let in_front = slots[0].offset() >= header as usize;
        let own_header = self.layout.separate || !in_front;
        // The header of zeros is shared and must not be written, so it cannot describe offloads.
        let possible = possible && (in_front || todo.is_none());
        let needed = count + usize::from(own_header);
        // Unsegmented packets may be longer than the port's frames.
        let longest = if todo.is_some() { LONGEST } else { self.longest };
        if !possible || length == 0 || length > longest || needed > self.sent.len().min(sent_word::MOST) {
            self.counters.dropped();
            let bufs: Vec<u32> = slots.iter().map(Slot::buf).collect();
            // SAFETY: the caller counts these slots as sent, and the device does not get their buffers.
            unsafe { batch.recycle(&bufs) };
            return count;
        }
        if needed > self.sent.free() {
            return 0;
        }
        let mut parts = Vec::with_capacity(needed);
        let mut add = |address, len, buf| {
            let descriptor = self.sent.add(buf);
            parts.push(Part { descriptor, address, len, writable: false });
        };
        let place = |slot: &Slot| ((slot.buf() as usize) << self.pool.region().shift()) + slot.offset();
        if in_front {
            let mut bytes = [0; header::HASH_LEN];
            if let Some(Offload(todo)) = todo {
                bytes[..Offload::LEN].copy_from_slice(&todo);
            }
            // SAFETY: only used to write the header before a packet of this queue.
            let memory = unsafe { self.pool.region().mapping() };
            memory.write(place(&slots[0]) - header as usize, &bytes[..header as usize]);
        }
        if own_header {
            let address = match in_front {
                true => self.addresses.locate(place(&slots[0]) - header as usize),
                false => self.zeros,
            };
            add(address, header, NO_BUFFER);
        }
        for (index, slot) in slots.iter().enumerate() {
            let with_header = if index == 0 && !own_header { header } else { 0 };
            let address = self.addresses.locate(place(slot) - with_header as usize);
            add(address, slot.len() as u32 + with_header, slot.buf());
        }
        self.sent.end_packet(needed, length);
        self.ring.add(&parts);
        count
    }

    /// Returns the packet's offloads if the device can do them.
    fn left_to_device(&self, first: &Slot) -> Option<Offload> {
        // SAFETY: the view is used only with a slot of a batch of this pool.
        let todo = Offload::of(first, unsafe { self.pool.region().view() })?;
        todo.is_accepted(&BY_DEVICE, self.features).then_some(todo)
    }
}
