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

use super::connected::Attached;
use super::lent::Lent;
use super::queue::{Buffers, Limits, SHORTEST, Took};
use super::ring::{BUFFER, LENT, MemifRing, Part};

/// Receives packets in the ring's buffers, and lends empty ones in exchange.
pub struct Lends;

impl Buffers for Lends {
    type Lent<'a> = &'a mut Lent;

    #[inline(always)]
    fn of(attached: &mut Attached) -> Option<(&mut MemifRing, &mut Lent)> {
        attached.lending()
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
        let (len, has_more) = ring.written(ahead);
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
        let (len, has_more) = ring.written(ahead);
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
    ) -> Took {
        // Empty buffers remain lent.
        let parts: Vec<_> = (ahead..).zip(parts).filter(|(_, part)| part.len > 0).collect();
        if parts.len() > MAX_CHAIN {
            return Took::Dropped;
        }
        let mut fresh = Vec::with_capacity(parts.len());
        while fresh.len() < parts.len()
            && let Some(buf) = batch.take_buffer()
        {
            fresh.push(buf);
        }
        if fresh.len() < parts.len() {
            // SAFETY: they were just taken.
            unsafe { batch.put(&fresh) };
            return Took::NoBuffer;
        }
        for (place, (&(ahead, part), new)) in parts.iter().zip(fresh).enumerate() {
            let buf = std::mem::replace(lent.at(ring.number(ahead)), new);
            // SAFETY: a fresh buffer replaces the ring's, which has at least [`BUFFER`] bytes at that position. It is
            // from the queue's pool, which is the batch's.
            unsafe {
                let mut slot = placement.slot(buf, part.len as u16, place + 1 < parts.len());
                if !batch.push_slot(pool, &mut slot) {
                    batch.put(&[buf]); // unreachable: a chain of MAX_CHAIN slots fits beyond the capacity
                }
            }
        }
        Took::Packet
    }

    /// Lends the new buffers, or again those of a dropped packet.
    fn renew(ring: &MemifRing, lent: &mut &mut Lent, descriptors: Range<u16>, placement: Placement) {
        for ahead in descriptors {
            let buf = *lent.at(ring.number(ahead));
            ring.lend(ahead, placement.data(buf), BUFFER, false);
        }
    }
}

/// A transmit queue.
pub struct LendingTx {
    pub attached: Attached,
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
        self.attached.lent()
    }

    fn has_peer(&self) -> bool {
        self.attached.is_running()
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        let LendingTx { attached, pool, counters, longest } = self;
        if attached.ring().is_none() {
            return 0;
        }
        let Some((ring, lent)) = attached.lending() else { return 0 };
        let size = ring.size();
        let left = match ring.ready().and_then(|ready| lent.reclaim(size - ready, batch).map(|()| ready)) {
            Ok(left) => left,
            Err(breach) => {
                attached.give_up(breach);
                return 0;
            }
        };
        let (mut used, mut taken, mut packets, mut bytes) = (0, 0, 0, 0);
        while left > used {
            let put = put(ring, lent, used, left - used, pool, batch, *longest);
            (used, packets, bytes) = (used + put.slots as u16, packets + put.packets, bytes + put.bytes);
            batch.sent(put.slots);
            taken += put.slots;
            let dropped = match put.next {
                Next::Waits => break,
                Next::TooLong(slots) => {
                    batch.drop_front(slots);
                    slots
                }
                Next::Unfinished => batch.finish_first(),
            };
            if dropped > 0 {
                counters.dropped();
                taken += dropped;
            }
        }
        if used > 0 {
            ring.advance(used);
            if ring.wants_interrupt() {
                attached.raise();
            }
            counters.moved_packets(packets, usize::from(used), bytes);
        }
        taken
    }
}

/// The outcome of handing over packets.
#[derive(Default)]
struct Put {
    packets: usize,
    slots: usize,
    bytes: usize,
    next: Next,
}

/// The packet after those handed over.
#[derive(Default)]
enum Next {
    /// There is none, or no room.
    #[default]
    Waits,
    /// It can never be sent, and has this number of slots.
    TooLong(usize),
    /// It must be finished first: a descriptor cannot express checksums and segmentation.
    Unfinished,
}

/// Puts packets from the front of the batch into up to `left` descriptors, the first one `ahead` of the next.
#[inline(always)]
fn put(
    ring: &MemifRing,
    lent: &mut Lent,
    ahead: u16,
    left: u16,
    pool: &Pool,
    batch: &mut Batch,
    longest: usize,
) -> Put {
    let shift = pool.region().shift();
    let mut put = Put::default();
    let slots = batch.slots();
    let most = slots.len().min(left.into());
    let lend = |lent: &mut Lent, at: usize, slot: &Slot| {
        let offset = ((slot.buf() as usize) << shift) + slot.offset();
        ring.lend(ahead + at as u16, offset, slot.len(), slot.has_more());
        lent.add(slot.buf());
    };
    while put.slots < most {
        let slot = &slots[put.slots];
        let length = slot.whole_len();
        if length <= longest {
            lend(lent, put.slots, slot);
            (put.packets, put.slots, put.bytes) = (put.packets + 1, put.slots + 1, put.bytes + length);
            continue;
        }
        if slot.is_unfinished() {
            put.next = Next::Unfinished;
            break;
        }
        let count = Slot::first_packet(&slots[put.slots..]);
        let packet = &slots[put.slots..][..count];
        let length: usize = packet.iter().map(Slot::len).sum();
        if length > longest || count > usize::from(ring.size()) {
            put.next = Next::TooLong(count);
            break;
        }
        if count > most - put.slots {
            break;
        }
        packet.iter().enumerate().for_each(|(at, slot)| lend(lent, put.slots + at, slot));
        (put.packets, put.slots, put.bytes) = (put.packets + 1, put.slots + count, put.bytes + length);
    }
    put
}
