//! Receive and send, top-down: packets move between the kernel's rings and a batch.
//!
//! A descriptor is an address in the region, a length, and whether the packet continues. Receiving puts the full buffer
//! into the batch and an empty buffer of the batch into the fill ring. Sending puts a packet's buffers into the send
//! ring, and returns buffers from the completion ring to the batch.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use linerate_core::batch::{Batch, Finished};
use linerate_core::error::{Error, Result};
use linerate_core::memory::Pool;
use linerate_core::offload::{Offload, Segmentation};
use linerate_core::port::{Describe, QueueCounters, RegionRx, RegionTx};
use linerate_core::slot::Slot;
use rustix::event::epoll;

use super::metadata::Hints;
use super::socket::{Lent, METADATA, Receiving, Sending, Socket, wake};
use super::{MOST_BUFFERS, Shared};
use crate::interface::LongestFrame;

/// Flag of a descriptor's second word, above the length: the packet continues in the next (`XDP_PKT_CONTD`).
const CONTINUES: u64 = 1 << 32;

/// A receive queue over one or more queues of the interface.
pub(super) struct XdpRx {
    /// The sockets with their receiving ends, which are returned on drop.
    pub(super) sockets: Vec<(Arc<Socket>, Option<Receiving>)>,
    /// The next socket to receive from.
    pub(super) turn: usize,
    /// The first slots of a packet whose end has not arrived.
    pub(super) partial: Vec<Slot>,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// A descriptor that is readable when any of several sockets is readable.
    pub(super) any: Option<OwnedFd>,
    pub(super) queue: u16,
    /// The driver processes packets only when polled.
    pub(super) busy: bool,
    /// Packets may arrive without checksums, which the other end has left to a card that does not exist.
    pub(super) may_lack_checksums: bool,
    pub(super) hints: Option<Hints>,
    pub(super) shared: Arc<Shared>,
}

impl XdpRx {
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System): the process has no descriptors left.
    pub(super) fn watch(sockets: &[(Arc<Socket>, Option<Receiving>)]) -> Result<Option<OwnedFd>> {
        if sockets.len() < 2 {
            return Ok(None);
        }
        let failed = |error| Error::system("epoll(7)", error);
        let any = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for (socket, _) in sockets {
            epoll::add(&any, socket.fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Some(any))
    }

    /// Receives a socket's packets. Returns true if none is left, so that the caller continues with the next socket.
    #[inline(always)]
    fn take_from(&mut self, turn: usize, batch: &mut Batch) -> bool {
        let region = self.pool.region();
        let (shift, size) = (region.shift(), region.buffer_size());
        let (socket, Some(end)) = &mut self.sockets[turn] else { return true };
        let available = end.ring.available() as usize;
        if available == 0 {
            if self.busy || end.fill.needs_wakeup() {
                let _ = wake(socket.fd(), false);
            }
            return true;
        }
        let (mut packets, mut bytes) = (0, 0);
        let Receiving { ring, fill, lent, .. } = end;
        // Pops the next full buffer, and gives `fresh` to the kernel.
        let mut take = |lent: &mut Lent, fresh: u32| {
            let [address, word] = ring.pop();
            let (buf, offset) = (address >> shift, address as usize & (size - 1));
            let (len, more) = (word as u32 as usize, word & CONTINUES != 0);
            // A descriptor is valid if the buffer was lent to the kernel, and all bytes are inside it.
            if offset > Slot::MAX_OFFSET || offset + len > size || !lent.take_back(buf) {
                self.counters.dropped();
                return None;
            }
            lent.lend(fresh);
            fill.push([u64::from(fresh) << shift]);
            packets += usize::from(!more);
            bytes += len;
            // SAFETY: the kernel had the buffer, and has `fresh` instead. The bytes were checked to be inside.
            Some(unsafe { Slot::new(buf as u32, offset, len as u16, more) })
        };
        let take_all = |slots: &mut [Slot], fresh: &[u32]| {
            let mut taken = 0;
            for _ in 0..slots.len() {
                if let Some(slot) = take(lent, fresh[taken]) {
                    slots[taken] = slot;
                    taken += 1;
                }
            }
            taken
        };
        // SAFETY: the returned count of slots has been written, for buffers that the kernel had.
        let (offered, mut taken) = unsafe { batch.exchange(available, take_all) };
        // The rest of a chained packet goes into the room that a batch reserves for chains beyond its capacity.
        let mut rest = available - offered;
        while rest > 0 && batch.ends_in_chain() {
            let Some(fresh) = batch.take_buffer() else { break };
            rest -= 1;
            let Some(mut slot) = take(lent, fresh) else {
                // SAFETY: `fresh` was just taken from the batch.
                unsafe { batch.recycle(&[fresh]) };
                continue;
            };
            taken += 1;
            // SAFETY: the slot is of the queue's pool, which is the batch's.
            if !unsafe { batch.push_slot(&self.pool, &mut slot) } {
                // The chain exceeds the maximum. SAFETY: the slot is dropped here.
                unsafe { batch.recycle(&[slot.buf()]) };
                batch.drop_partial();
                self.counters.dropped();
            }
        }
        end.ring.release();
        if end.fill.submit() && end.fill.needs_wakeup() {
            let _ = wake(socket.fd(), false);
        }
        batch.note_chains(packets < taken);
        self.counters.moved_packets(packets, taken, bytes);
        if offered == 0 && batch.len() < batch.capacity() {
            self.counters.found_no_buffer();
        }
        // Only complete packets are delivered; the next call continues with the rest of this socket's last packet.
        let is_whole = !batch.ends_in_chain();
        batch.take_partial(&mut self.partial);
        is_whole && rest == 0
    }
}

impl RegionRx for XdpRx {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        if !self.partial.is_empty() {
            // SAFETY: the slots are of the queue's pool, which is the batch's.
            unsafe { batch.restore_partial(&self.pool, &mut self.partial) };
        }
        for _ in 0..self.sockets.len() {
            if !self.take_from(self.turn, batch) {
                break;
            }
            self.turn = (self.turn + 1) % self.sockets.len();
        }
        if self.may_lack_checksums && batch.len() > before {
            finish_checksums(batch);
        }
        batch.len() - before
    }

    fn buffers(&self) -> usize {
        let lent = self.sockets.iter().filter_map(|(_, end)| end.as_ref()).map(|end| end.lent.count());
        lent.sum::<usize>() + self.partial.len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        match &self.any {
            Some(any) => Some(any.as_fd()),
            None => self.sockets.first().map(|(socket, _)| socket.fd()),
        }
    }
}

impl Describe for XdpRx {
    fn recv_described(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let received = self.recv(batch);
        if let Some(hints) = self.hints.filter(|_| received > 0) {
            hints.note(&self.pool, batch, before);
        }
        received
    }
}

/// Computes the checksums that senders on this machine have left out.
fn finish_checksums(batch: &mut Batch) {
    let Some(pool) = batch.pool().cloned() else { return };
    // SAFETY: the view is used with the batch's slots, whose pool this is; none of the slots moves.
    let (view, slots) = unsafe { (pool.region().view(), batch.raw_slots()) };
    for packet in slots.chunk_by_mut(|slot, _| slot.has_more()) {
        if let Some(left) = Offload::detect_partial_checksum(view.bytes(&packet[0])) {
            left.finish(packet, view);
        }
    }
}

impl Drop for XdpRx {
    fn drop(&mut self) {
        self.shared.stopped(self.queue);
        let bufs: Vec<u32> = self.partial.drain(..).map(|slot| slot.buf()).collect();
        // SAFETY: the slots that owned these buffers are gone.
        unsafe { self.pool.give(&bufs) };
        for (socket, end) in &mut self.sockets {
            if let Some(end) = end.take() {
                socket.give_receiving(end);
            }
        }
    }
}

/// A transmit queue.
pub(super) struct XdpTx {
    pub(super) socket: Arc<Socket>,
    /// Returned to the socket on drop.
    pub(super) end: Option<Sending>,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) longest: LongestFrame,
}

/// The maximum number of frames that the kernel sends per wakeup in copy mode.
const AT_ONCE: usize = 32;

/// Flag of a descriptor's second word: metadata precedes the packet (`XDP_TX_METADATA`).
const HAS_METADATA: u64 = 1 << 33;
/// Flag of the metadata: compute a checksum (`XDP_TXMD_FLAGS_CHECKSUM`).
const CHECKSUM: u64 = 1 << 1;

/// Returns whether an offload can be left to the kernel: a checksum inside the packet, with headroom for metadata.
pub(super) fn is_for_kernel(left: Offload, first: &Slot) -> bool {
    let is_checksum = left.segmentation() == Segmentation::None && left.needs_checksum();
    is_checksum && left.checksum_offsets(first.len()).is_some() && first.offset() >= METADATA
}

/// Returns the kernel's metadata for an offload (`struct xsk_tx_metadata`): flags, the checksum's start, and its offset
/// from there.
fn metadata(left: Offload) -> [u8; METADATA] {
    let [.., a, b, c, d] = left.0;
    let word = |low, high| u16::from_le_bytes([low, high]).to_ne_bytes();
    let mut bytes = [0; METADATA];
    bytes[..8].copy_from_slice(&CHECKSUM.to_ne_bytes());
    bytes[8..10].copy_from_slice(&word(a, b));
    bytes[10..12].copy_from_slice(&word(c, d));
    bytes
}

impl RegionTx for XdpTx {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        let Some(end) = &mut self.end else { return 0 };
        let region = self.pool.region();
        let shift = region.shift();
        // SAFETY: the view is used with slots of the batch, which is of the queue's pool.
        let view = unsafe { region.view() };
        // Buffers of sent packets go to the batch first, since they are the most likely to be in the cache.
        let done = end.completion.available();
        for _ in 0..done {
            let [address] = end.completion.pop();
            if end.lent.take_back(address >> shift) {
                // SAFETY: the kernel has returned the buffer, which is of the queue's pool, and that is the batch's.
                unsafe { batch.recycle(&[(address >> shift) as u32]) };
            }
        }
        if done > 0 {
            end.completion.release();
        }

        let (mut total, mut taken, mut packets, mut bytes) = (batch.len(), 0, 0, 0);
        let mut room = end.ring.free(total as u32) as usize;
        while taken < total {
            let left_to_kernel = |first: &Slot| {
                let left = Offload::of(first, view);
                left.filter(|&left| self.socket.checksums && is_for_kernel(left, first))
            };
            let left = batch.slots().get(taken).and_then(left_to_kernel);
            let finished = if left.is_some() { Finished::Done } else { batch.finish_packet(taken) };
            if finished == Finished::NoRoom && taken > 0 {
                break; // there is room when the packets before have left the batch
            }
            total = batch.len(); // a packet that is segmented becomes several
            let slots = &batch.slots()[taken..];
            let count = Slot::first_packet(slots);
            let slots = &slots[..count];
            let len: usize = slots.iter().map(Slot::len).sum();
            let fits = self.longest.fits(len, view.bytes(&slots[0]))
                && (count == 1 || self.socket.chains && count <= MOST_BUFFERS);
            if !fits || finished != Finished::Done {
                self.counters.dropped();
                let bufs: Vec<u32> = slots.iter().map(Slot::buf).collect();
                // SAFETY: the slots of these buffers count as sent below, and the kernel does not get the buffers.
                unsafe { batch.recycle(&bufs) };
                taken += count;
                continue;
            }
            if count > room {
                break;
            }
            let mut extra = 0;
            if let Some(left) = left {
                let at = ((slots[0].buf() as usize) << shift) + slots[0].offset() - METADATA;
                // SAFETY: the bytes are in the headroom of a packet that this queue owns.
                unsafe { region.mapping() }.write(at, &metadata(left));
                extra = HAS_METADATA;
            }
            for slot in slots.iter() {
                let address = (u64::from(slot.buf()) << shift) + slot.offset() as u64;
                let more = if slot.has_more() { CONTINUES } else { 0 };
                end.lent.lend(slot.buf());
                end.ring.push([address, slot.len() as u64 | more | extra]);
                extra = 0;
            }
            room -= count;
            taken += count;
            packets += 1;
            bytes += len;
        }
        batch.sent(taken);
        end.ring.submit();
        // Frames of earlier calls may still be in the ring, too.
        for _ in 0..=total / AT_ONCE {
            if !end.ring.needs_wakeup() || end.ring.waiting() == 0 {
                break;
            }
            // The kernel is busy, or the interface is down: the next call tries again (see `unsent`).
            let _ = wake(self.socket.fd(), true);
        }
        let (packets, bytes) = end.pending.add(packets, bytes, &end.ring);
        self.counters.moved_packets(packets, taken, bytes);
        taken
    }

    fn longest(&self) -> usize {
        self.longest.tagged
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.end.as_ref().map_or(0, |end| end.lent.count())
    }

    fn unsent(&self) -> usize {
        self.end.as_ref().map_or(0, |end| end.ring.waiting() as usize)
    }
}

impl Drop for XdpTx {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.socket.give_sending(end);
        }
    }
}
