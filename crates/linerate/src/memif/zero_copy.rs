//! Receive and send without a copy, top-down: a client's descriptors lead to the buffers of its own pool, which is a region of
//! the connection. The server copies, or does not.
//!
//! The server is trusted with these buffers as a card is. Its indices, lengths and flags are checked all the same; which
//! buffer a descriptor has is known here, and not read from it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::handover::Attached;
use super::lent::Lent;
use super::queue::{Limits, MOST_PARTS, SHORTEST};
use super::ring::{BUFFER, Ring};
use crate::batch::{Batch, MAX_CHAIN};
use crate::memory::{Placement, Pool};
use crate::port::{QueueCounters, RegionRx, RegionTx};
use crate::slot::Slot;

/// A receive queue.
pub struct LendingRx {
    pub attached: Attached,
    pub pool: Arc<Pool>,
    pub counters: Arc<QueueCounters>,
    pub limits: Limits,
    /// The packet being taken: descriptors ahead of the next one, and their bytes.
    pub parts: Vec<(u16, u32)>,
    /// The queue can sleep.
    pub sleeps: bool,
}

impl RegionRx for LendingRx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let Some(ring) = self.attached.ring() else { return 0 };
        match ring.ready() {
            Some(0) => 0,
            ready => {
                let before = batch.len();
                self.take_all(ready, batch);
                batch.len() - before
            }
        }
    }

    fn buffers(&self) -> usize {
        self.attached.lent()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        if self.sleeps { Some(self.attached.arm()) } else { None }
    }

    fn disarm(&mut self) {
        self.attached.disarm();
    }
}

impl LendingRx {
    /// Takes what is ready, as far as the batch has room; `None`: the peer claims more than there can be.
    fn take_all(&mut self, ready: Option<u16>, batch: &mut Batch) {
        let LendingRx { attached, pool, counters, limits, parts, .. } = self;
        let Some((ring, lent)) = attached.lending() else { return };
        let taken = ready.and_then(|ready| take((ring, lent), ready, pool, batch, counters, *limits, parts));
        match taken {
            Some(taken) => ring.advance(taken),
            None => attached.give_up(),
        }
    }
}

/// Takes up to `ready` descriptors, and lends a fresh buffer with each. Returns the count; `None` if one breaks the rules, or
/// will never be followed by the packet's end.
#[inline(always)]
fn take(
    (ring, lent): (&Ring, &mut Lent),
    ready: u16,
    pool: &Arc<Pool>,
    batch: &mut Batch,
    counters: &QueueCounters,
    limits: Limits,
    parts: &mut Vec<(u16, u32)>,
) -> Option<u16> {
    let Limits { longest_single: longest, placement, .. } = limits;
    let (mut taken, mut packets, mut bytes) = (0, 0, 0);
    let before = batch.len();
    let outcome = loop {
        // Packets of one buffer.
        let first = taken;
        let (offered, singles) = batch.exchange(usize::from(ready - taken), |slots, fresh| {
            let mut done = 0;
            for (slot, &new) in slots.iter_mut().zip(fresh) {
                let ahead = first + done;
                let (len, has_more) = ring.written(ahead);
                let length = len as usize;
                if has_more || length.wrapping_sub(SHORTEST) > longest - SHORTEST {
                    break;
                }
                let buf = lent.at(ring.number(ahead));
                *slot = placement.slot(*buf, length as u16, false);
                *buf = new;
                ring.lend(ahead, placement.data(new), BUFFER, false);
                bytes += length;
                done += 1;
            }
            usize::from(done)
        });
        taken += singles as u16;
        packets += singles;
        if taken == ready || batch.len() >= batch.capacity() {
            break Some(taken);
        }
        if offered == 0 {
            counters.found_no_buffer();
            break Some(taken);
        }
        // A packet of another kind.
        let (count, length) = match gather(ring, taken, ready - taken, parts) {
            Gathered::Packet(count, length) => (count, length),
            Gathered::Unfinished if !ring.is_ending() => break Some(taken),
            Gathered::Unfinished | Gathered::Broken => break None,
        };
        if length > limits.longest {
            counters.missed(0, 1);
        } else if length < SHORTEST || parts.len() > MAX_CHAIN {
            counters.dropped();
        } else if take_chain((ring, lent), placement, parts, pool, batch) {
            (packets, bytes) = (packets + 1, bytes + length);
        } else {
            counters.found_no_buffer();
            break Some(taken);
        }
        // With fresh buffers, or with those of a packet that is dropped.
        for ahead in taken..taken + count {
            let buf = *lent.at(ring.number(ahead));
            ring.lend(ahead, placement.data(buf), BUFFER, false);
        }
        taken += count;
    };
    counters.moved_packets(packets, batch.len() - before, bytes);
    outcome
}

/// The outcome of looking for a packet's parts.
enum Gathered {
    /// A packet of this count of descriptors, and of bytes.
    Packet(u16, usize),
    /// Its sender has not handed over its end.
    Unfinished,
    Broken,
}

/// Finds the parts of the packet that begins `ahead` of the next descriptor, in at most `left`, without those of no byte.
#[cold]
fn gather(ring: &Ring, ahead: u16, left: u16, parts: &mut Vec<(u16, u32)>) -> Gathered {
    parts.clear();
    let mut length = 0;
    for number in 0..left.min(MOST_PARTS) {
        let (len, has_more) = ring.written(ahead + number);
        if len as usize > BUFFER {
            return Gathered::Broken;
        }
        if len > 0 {
            parts.push((ahead + number, len));
        }
        length += len as usize;
        if !has_more {
            return Gathered::Packet(number + 1, length);
        }
    }
    // A packet that fills the ring never ends.
    if left >= ring.size().min(MOST_PARTS) { Gathered::Broken } else { Gathered::Unfinished }
}

/// Takes a packet of several buffers. Returns false if the pool has not as many others.
#[cold]
fn take_chain(
    (ring, lent): (&Ring, &mut Lent),
    placement: Placement,
    parts: &[(u16, u32)],
    pool: &Arc<Pool>,
    batch: &mut Batch,
) -> bool {
    let mut fresh = Vec::with_capacity(parts.len());
    while fresh.len() < parts.len()
        && let Some(buf) = batch.take_buffer()
    {
        fresh.push(buf);
    }
    if fresh.len() < parts.len() {
        batch.put(&fresh);
        return false;
    }
    for (place, (&(ahead, len), new)) in parts.iter().zip(fresh).enumerate() {
        let buf = std::mem::replace(lent.at(ring.number(ahead)), new);
        let mut slot = placement.slot(buf, len as u16, place + 1 < parts.len());
        if !batch.push_slot(pool, &mut slot) {
            batch.put(&[buf]); // unreachable: a chain of MAX_CHAIN slots fits behind the capacity
        }
    }
    true
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
        let Some(left) = ring.ready().filter(|&ready| lent.reclaim(ring.size() - ready, batch).is_some()) else {
            attached.give_up();
            return 0;
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

/// The outcome of handing packets over.
#[derive(Default)]
struct Put {
    packets: usize,
    slots: usize,
    bytes: usize,
    next: Next,
}

/// The packet behind those that were handed over.
#[derive(Default)]
enum Next {
    /// There is none, or no room.
    #[default]
    Waits,
    /// It can never be sent, and has this count of slots.
    TooLong(usize),
    /// It must be finished first: checksums and segmentation have no place in a descriptor.
    Unfinished,
}

/// Puts packets from the front of the batch into up to `left` descriptors, the first of them `ahead` of the next one.
#[inline(always)]
fn put(ring: &Ring, lent: &mut Lent, ahead: u16, left: u16, pool: &Pool, batch: &mut Batch, longest: usize) -> Put {
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
