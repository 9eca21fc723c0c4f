//! Receive and send without a copy: a client's descriptors refer to buffers of its own pool, which is a region of the
//! connection. The server may still copy.
//!
//! The server is trusted with these buffers, as a card is. Its indexes, lengths and flags are still validated. The
//! buffer of each descriptor is recorded on this side, not read from the descriptor.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use linerate_core::batch::{Batch, MAX_CHAIN};
use linerate_core::memory::{Placement, Pool, View};
use linerate_core::port::{QueueCounters, RegionTx};
use linerate_core::ring::Breach;
use linerate_core::slot::Slot;

use super::connected::QueueRing;
use super::lent::Lent;
use super::queue::{BufferPolicy, Limits, Received, SHORTEST};
use super::ring::{BUFFER, LENT, MemifRing, Part};

/// Receives packets in the ring's buffers, and lends empty buffers in exchange.
pub struct Lends;

impl BufferPolicy for Lends {
    type Lent<'a> = &'a mut Lent;

    #[inline(always)]
    fn of(queue_ring: &mut QueueRing) -> Option<(&mut MemifRing, &mut Lent)> {
        queue_ring.lending()
    }

    #[inline(always)]
    unsafe fn take_single(
        ring: &MemifRing,
        lent: &mut &mut Lent,
        ahead: u16,
        fresh: u32,
        _: View<'_>,
        Limits { longest_single: longest, placement, .. }: Limits,
    ) -> Option<Slot> {
        let (len, has_more) = ring.written_len(ahead);
        let length = len as usize;
        if has_more || length.wrapping_sub(SHORTEST) > longest - SHORTEST {
            return None;
        }
        let buf = std::mem::replace(lent.at(ring.number(ahead)), fresh);
        ring.lend(ahead, placement.data(fresh), BUFFER, false);
        // SAFETY: the fresh buffer replaces the ring's, which has at least [`BUFFER`] bytes at that position.
        Some(unsafe { placement.slot(buf, length as u16, false) })
    }

    fn part(ring: &MemifRing, ahead: u16) -> Result<Part, Breach> {
        let (len, has_more) = ring.written_len(ahead);
        if len as usize > BUFFER {
            return Err(Breach::Beyond { what: "the length of a buffer", is: len.into(), most: BUFFER as u64 });
        }
        // The buffer is known from `Lent`.
        Ok(Part { region: LENT, offset: 0, len, has_more })
    }

    fn take_parts(
        ring: &MemifRing,
        lent: &mut &mut Lent,
        ahead: u16,
        (parts, _): (&[Part], usize),
        batch: &mut Batch,
        (pool, placement): (&Arc<Pool>, Placement),
    ) -> Received {
        // Empty buffers remain lent.
        let parts: Vec<_> = (ahead..).zip(parts).filter(|(_, part)| part.len > 0).collect();
        if parts.len() > MAX_CHAIN {
            return Received::Dropped;
        }
        let mut fresh = Vec::with_capacity(parts.len());
        while fresh.len() < parts.len()
            && let Some(buf) = batch.take_buffer()
        {
            fresh.push(buf);
        }
        if fresh.len() < parts.len() {
            // SAFETY: the buffers were just taken from the batch.
            unsafe { batch.recycle(&fresh) };
            return Received::NoBuffer;
        }
        for (place, (&(ahead, part), new)) in parts.iter().zip(fresh).enumerate() {
            let buf = std::mem::replace(lent.at(ring.number(ahead)), new);
            // SAFETY: a fresh buffer replaces the ring's, which has at least [`BUFFER`] bytes at that position. It is
            // from the queue's pool, which is the batch's.
            unsafe {
                let mut slot = placement.slot(buf, part.len as u16, place + 1 < parts.len());
                if !batch.push_slot(pool, &mut slot) {
                    batch.recycle(&[buf]); // unreachable: a chain of MAX_CHAIN slots fits beyond the capacity
                }
            }
        }
        Received::Packet
    }

    /// Lends the buffers that replaced a packet's, or lends the buffers of a dropped packet again.
    fn renew(ring: &MemifRing, lent: &mut &mut Lent, descriptors: Range<u16>, placement: Placement) {
        for ahead in descriptors {
            let buf = *lent.at(ring.number(ahead));
            ring.lend(ahead, placement.data(buf), BUFFER, false);
        }
    }
}

/// A transmit queue.
pub struct LendingTx {
    pub queue_ring: QueueRing,
    pub pool: Arc<Pool>,
    pub counters: Arc<QueueCounters>,
    pub longest: usize,
}

impl RegionTx for LendingTx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.queue_ring.lent()
    }

    fn has_peer(&self) -> bool {
        self.queue_ring.is_running()
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        let LendingTx { queue_ring, pool, counters, longest } = self;
        if queue_ring.ring().is_none() {
            return 0;
        }
        let Some((ring, lent)) = queue_ring.lending() else { return 0 };
        let size = ring.size();
        let left = match ring.ready().and_then(|ready| lent.reclaim(size - ready, batch).map(|()| ready)) {
            Ok(left) => left,
            Err(breach) => {
                queue_ring.give_up(breach);
                return 0;
            }
        };
        let (mut used, mut taken, mut packets, mut bytes) = (0, 0, 0, 0);
        while left > used {
            let handed_over = hand_over(ring, lent, used, left - used, pool, batch, *longest);
            (used, packets, bytes) =
                (used + handed_over.slots as u16, packets + handed_over.packets, bytes + handed_over.bytes);
            batch.sent(handed_over.slots);
            taken += handed_over.slots;
            let dropped = match handed_over.next {
                NextPacket::Waits => break,
                NextPacket::TooLong(slots) => {
                    batch.drop_front(slots);
                    slots
                }
                NextPacket::Unfinished => batch.finish_first(),
            };
            if dropped > 0 {
                counters.dropped();
                taken += dropped;
            }
        }
        if used > 0 {
            ring.advance(used);
            if ring.wants_interrupt() {
                queue_ring.raise();
            }
            counters.moved_packets(packets, usize::from(used), bytes);
        }
        taken
    }
}

/// The outcome of handing over packets.
#[derive(Default)]
struct HandedOver {
    packets: usize,
    slots: usize,
    bytes: usize,
    next: NextPacket,
}

/// The packet after the packets handed over.
#[derive(Default)]
enum NextPacket {
    /// There is no next packet, or no room for it.
    #[default]
    Waits,
    /// The packet can never be sent; it has this number of slots.
    TooLong(usize),
    /// The packet must be finished first: a descriptor cannot express checksums and segmentation.
    Unfinished,
}

/// Puts packets from the front of the batch into up to `left` descriptors, the first of them `ahead` positions after
/// the next descriptor.
#[inline(always)]
fn hand_over(
    ring: &MemifRing,
    lent: &mut Lent,
    ahead: u16,
    left: u16,
    pool: &Pool,
    batch: &mut Batch,
    longest: usize,
) -> HandedOver {
    let shift = pool.region().shift();
    let mut handed_over = HandedOver::default();
    let slots = batch.slots();
    let most = slots.len().min(left.into());
    let lend = |lent: &mut Lent, at: usize, slot: &Slot| {
        let offset = ((slot.buf() as usize) << shift) + slot.offset();
        ring.lend(ahead + at as u16, offset, slot.len(), slot.has_more());
        lent.add(slot.buf());
    };
    while handed_over.slots < most {
        let slot = &slots[handed_over.slots];
        let length = slot.whole_len();
        if length <= longest {
            lend(lent, handed_over.slots, slot);
            (handed_over.packets, handed_over.slots, handed_over.bytes) =
                (handed_over.packets + 1, handed_over.slots + 1, handed_over.bytes + length);
            continue;
        }
        if slot.is_unfinished() {
            handed_over.next = NextPacket::Unfinished;
            break;
        }
        let count = Slot::first_packet(&slots[handed_over.slots..]);
        let packet = &slots[handed_over.slots..][..count];
        let length: usize = packet.iter().map(Slot::len).sum();
        if length > longest || count > usize::from(ring.size()) {
            handed_over.next = NextPacket::TooLong(count);
            break;
        }
        if count > most - handed_over.slots {
            break;
        }
        packet.iter().enumerate().for_each(|(at, slot)| lend(lent, handed_over.slots + at, slot));
        (handed_over.packets, handed_over.slots, handed_over.bytes) =
            (handed_over.packets + 1, handed_over.slots + count, handed_over.bytes + length);
    }
    handed_over
}
