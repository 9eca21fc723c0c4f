//! Receive and send, top-down: from a ring's buffers into slots, and from slots into a ring's buffers. Each packet is copied
//! once. Both roles share this code: a ring knows which of its indices is whose. A client that does not copy has `zero_copy`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::handover::Attached;
use super::regions::Regions;
use super::ring::{Part, Ring};
use crate::batch::Batch;
use crate::memory::{Placement, Pool};
use crate::packet::Packet;
use crate::port::{QueueCounters, RegionRx, SendFinished, Transmit};

/// The most descriptors of a packet.
pub const MOST_PARTS: u16 = 1024;
/// How many descriptors ahead a buffer is prefetched.
const SOON: u16 = 8;
/// The shortest frame: an Ethernet header.
pub const SHORTEST: usize = 14;

/// A receive queue.
pub struct MemifRx {
    pub attached: Attached,
    pub pool: Arc<Pool>,
    pub counters: Arc<QueueCounters>,
    pub limits: Limits,
    /// The packet being taken.
    pub parts: Vec<Part>,
    /// The queue can sleep.
    pub sleeps: bool,
}

/// The longest packet, and the longest in one buffer.
#[derive(Clone, Copy)]
pub struct Limits {
    pub longest: usize,
    pub longest_single: usize,
    /// The place of a packet in its buffer.
    pub placement: Placement,
}

impl RegionRx for MemifRx {
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
        0
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        if self.sleeps { Some(self.attached.arm()) } else { None }
    }

    fn disarm(&mut self) {
        self.attached.disarm();
    }
}

impl MemifRx {
    /// Takes what is ready, as far as the batch has room; `None`: the peer claims more than there can be.
    fn take_all(&mut self, ready: Option<u16>, batch: &mut Batch) {
        let MemifRx { attached, pool, counters, limits, parts, .. } = self;
        let Some(ring) = attached.current() else { return };
        let taken = ready.and_then(|ready| take(ring, ready, batch, pool, counters, *limits, parts));
        if let Some(taken @ 1..) = taken {
            ring.empty(taken);
            ring.advance(taken);
            // A sender asks for no interrupt here: it looks at the index.
        }
        if taken.is_none() || ring.regions().is_broken() {
            attached.give_up();
        }
    }
}

/// Takes up to `ready` descriptors. Returns the count, `None` if one breaks the rules, or will never be followed by the packet's
/// end.
#[inline(always)]
fn take(
    ring: &Ring,
    ready: u16,
    batch: &mut Batch,
    pool: &Arc<Pool>,
    counters: &QueueCounters,
    limits: Limits,
    parts: &mut Vec<Part>,
) -> Option<u16> {
    let placement = limits.placement;
    let (mut taken, mut packets, mut bytes) = (0u16, 0, 0);
    let slots = batch.len();
    let outcome = loop {
        // Packets of one descriptor and one buffer.
        let first = taken;
        let (offered, singles) = batch.exchange(usize::from(ready - taken), |slots, fresh| {
            let view = pool.region().view();
            let mut done = 0;
            for (slot, &buf) in slots.iter_mut().zip(fresh) {
                let Some((part, mapping)) = ring.filled(first + done) else { break };
                mapping.prefetch(ring.hint(first + done + SOON));
                let length = part.len as usize;
                if part.has_more || length.wrapping_sub(SHORTEST) > limits.longest_single - SHORTEST {
                    break;
                }
                *slot = placement.slot(buf, length as u16, false);
                mapping.read(part.offset as usize, view.bytes_mut(slot));
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
        match gather(ring, taken, ready - taken, parts) {
            Gathered::Packet(length) if (SHORTEST..=limits.longest).contains(&length) => {
                if batch.push_filled(pool, length, None, |at, target| read_parts(ring.regions(), parts, at, target)) {
                    (packets, bytes) = (packets + 1, bytes + length);
                } else if batch.can_hold(pool, length) {
                    counters.found_no_buffer();
                    break Some(taken);
                } else {
                    counters.dropped();
                }
            }
            Gathered::Packet(length) if length > limits.longest => counters.missed(0, 1),
            Gathered::Packet(_) => counters.dropped(),
            Gathered::Unfinished if !ring.is_ending() => break Some(taken),
            Gathered::Unfinished | Gathered::Broken => break None,
        }
        let descriptors = parts.len() as u16;
        ring.unchain(taken, descriptors);
        taken += descriptors;
    };
    counters.moved_packets(packets, batch.len() - slots, bytes);
    outcome
}

/// The outcome of looking for a packet's parts.
enum Gathered {
    /// A packet of this length.
    Packet(usize),
    /// Its sender has not handed over its end.
    Unfinished,
    Broken,
}

/// Finds the parts of the packet that begins `ahead` of the next descriptor, in at most `left`.
#[cold]
fn gather(ring: &Ring, ahead: u16, left: u16, parts: &mut Vec<Part>) -> Gathered {
    parts.clear();
    let mut length = 0;
    for number in 0..left.min(MOST_PARTS) {
        let Some((part, _)) = ring.filled(ahead + number) else { return Gathered::Broken };
        parts.push(part);
        length += part.len as usize;
        if !part.has_more {
            return Gathered::Packet(length);
        }
    }
    // A packet that fills the ring never ends.
    if left >= ring.size().min(MOST_PARTS) { Gathered::Broken } else { Gathered::Unfinished }
}

/// Copies bytes of a part, from byte `at` on.
#[inline(always)]
fn read(regions: &Regions, part: Part, at: usize, target: &mut [u8]) {
    if let Some(mapping) = regions.place(part.region, part.offset, part.len) {
        mapping.read(part.offset as usize + at, target);
    }
}

/// Copies bytes of a packet, from byte `at` on.
fn read_parts(regions: &Regions, parts: &[Part], mut at: usize, mut target: &mut [u8]) {
    for part in parts {
        let len = part.len as usize;
        if at >= len {
            at -= len;
            continue;
        }
        let (now, rest) = target.split_at_mut(target.len().min(len - at));
        read(regions, *part, at, now);
        (target, at) = (rest, 0);
    }
}

/// A transmit queue.
pub struct MemifTx {
    pub attached: Attached,
    pub counters: Arc<QueueCounters>,
    pub longest: usize,
    /// The buffers being filled.
    pub parts: Vec<Part>,
}

impl Transmit for MemifTx {
    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            // Memory of a peer that is gone is not kept.
            let _ = self.attached.ring();
            return 0;
        }
        self.finish_and_send(batch)
    }

    fn has_peer(&self) -> bool {
        self.attached.is_running()
    }
}

/// The outcome of sending a packet.
enum Sent {
    /// It fills this count of descriptors.
    In(u16),
    TooLong,
    NoRoom,
    Broken,
}

/// Checksums and segmentation have no place in a descriptor.
impl SendFinished for MemifTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let MemifTx { attached, counters, longest, parts } = self;
        let Some(ring) = attached.ring() else { return (0, false) };
        let ready = ring.ready();
        let (mut used, mut bytes) = fill_singles(ring, ready.unwrap_or(0), batch, *longest);
        let (mut slots, mut packets) = (usize::from(used), usize::from(used));
        let (mut is_valid, mut is_to_be_finished) = (ready.is_some(), false);
        for packet in batch.packets().skip(packets) {
            let left = ready.unwrap_or(0) - used;
            if left == 0 || !is_valid {
                break;
            }
            if packet.offload().is_some() {
                is_to_be_finished = true;
                break;
            }
            let length = packet.len();
            let sent = if length > *longest { Sent::TooLong } else { fill(ring, used, left, &packet, length, parts) };
            match sent {
                Sent::In(count) => (used, packets, bytes) = (used + count, packets + 1, bytes + length),
                Sent::TooLong => counters.dropped(),
                Sent::NoRoom => break,
                Sent::Broken => {
                    is_valid = false;
                    break;
                }
            }
            slots += packet.slots();
        }
        let mut interrupts = false;
        if used > 0 {
            ring.advance(used);
            interrupts = ring.wants_interrupt();
        }
        is_valid &= !ring.regions().is_broken();
        if interrupts {
            attached.raise();
        }
        if !is_valid {
            attached.give_up();
        }
        counters.moved_packets(packets, slots, bytes);
        batch.drop_front(slots);
        (slots, is_to_be_finished)
    }
}

/// Writes packets of one slot and one buffer each, from the front of the batch, until one is of another kind. Returns the counts
/// of packets and bytes.
#[inline(always)]
fn fill_singles(ring: &Ring, ready: u16, batch: &Batch, longest: usize) -> (u16, usize) {
    let Some((slots, pool)) = batch.contents() else { return (0, 0) };
    let view = pool.region().view();
    let (mut done, mut bytes) = (0, 0);
    for slot in slots.iter().take(ready.into()) {
        let length = slot.whole_len();
        if length > longest {
            break;
        }
        let Some((part, mapping)) = ring.room(done).filter(|(part, _)| length <= part.len as usize) else { break };
        mapping.prefetch_write(ring.hint(done + SOON));
        mapping.write(part.offset as usize, view.bytes(slot));
        ring.fill(done, part, length as u32, false);
        (done, bytes) = (done + 1, bytes + length);
    }
    (done, bytes)
}

/// Writes a packet to the buffer `ahead` of the next one, or to as many of the `left` as it needs.
fn fill(ring: &Ring, ahead: u16, left: u16, packet: &Packet<'_>, length: usize, parts: &mut Vec<Part>) -> Sent {
    let Some((part, mapping)) = ring.room(ahead) else { return Sent::Broken };
    if length > part.len as usize {
        return fill_several(ring, ahead, left, packet, parts);
    }
    let mut at = part.offset as usize;
    for segment in packet.segments() {
        mapping.write(at, segment);
        at += segment.len();
    }
    ring.fill(ahead, part, length as u32, false);
    Sent::In(1)
}

#[cold]
fn fill_several(ring: &Ring, ahead: u16, left: u16, packet: &Packet<'_>, parts: &mut Vec<Part>) -> Sent {
    // First their lengths: the descriptors stay as they are if there are too few.
    parts.clear();
    let (mut room, mut length) = (0, packet.len());
    while room < length {
        let count = parts.len() as u16;
        if count == left {
            // All that there will ever be are too few.
            return if left == ring.size() { Sent::TooLong } else { Sent::NoRoom };
        }
        let Some((part, _)) = ring.room(ahead + count) else { return Sent::Broken };
        room += part.len as usize;
        parts.push(part);
    }
    let mut segments = packet.segments();
    let mut segment: &[u8] = &[];
    for (number, part) in parts.iter().enumerate() {
        let len = (part.len as usize).min(length);
        let Some(mapping) = ring.regions().place(part.region, part.offset, part.len) else { return Sent::Broken };
        let (mut at, end) = (part.offset as usize, part.offset as usize + len);
        while at < end {
            if segment.is_empty() {
                let Some(next) = segments.next() else { return Sent::Broken };
                segment = next;
                continue;
            }
            let (now, rest) = segment.split_at(segment.len().min(end - at));
            mapping.write(at, now);
            (at, segment) = (at + now.len(), rest);
        }
        length -= len;
        ring.fill(ahead + number as u16, *part, len as u32, length > 0);
    }
    Sent::In(parts.len() as u16)
}
