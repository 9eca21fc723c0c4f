//! Receive and send, top-down: from a ring's buffers into slots, and from slots into a ring's buffers. Each packet is
//! copied once. Both roles share this code: a ring knows which of its indexes is whose. `zero_copy` has the code for a
//! client that lends its buffers.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::memory::{Placement, Pool, View};
use linerate_core::packet::Packet;
use linerate_core::port::{QueueCounters, RegionRx, SendFinished, Transmit};
use linerate_core::ring::Breach;
use linerate_core::slot::Slot;

use super::connected::QueueRing;
use super::regions::Regions;
use super::ring::{MemifRing, Part};

/// The maximum number of descriptors of a packet.
pub const MOST_PARTS: u16 = 1024;
/// How many descriptors ahead a buffer is prefetched.
const PREFETCH_AHEAD: u16 = 8;
/// The shortest frame: an Ethernet header.
pub const SHORTEST: usize = 14;

/// A receive queue; `B` is the treatment of a packet's buffers.
pub struct MemifRx<B> {
    pub queue_ring: QueueRing,
    pub pool: Arc<Pool>,
    pub counters: Arc<QueueCounters>,
    pub limits: Limits,
    /// The packet being received.
    pub parts: Vec<Part>,
    /// The queue can sleep.
    pub sleeps: bool,
    pub buffers: PhantomData<B>,
}

/// The longest packet, and the longest packet in one buffer.
#[derive(Clone, Copy)]
pub struct Limits {
    pub longest: usize,
    pub longest_single: usize,
    /// The placement of a packet in its buffer.
    pub placement: Placement,
}

/// The treatment of received packets' buffers: they are [copied](Copied), or [exchanged](super::zero_copy::Lends) for
/// empty buffers.
pub trait BufferPolicy: Send + 'static {
    /// This side's buffers lent to the ring.
    type Lent<'a>;

    /// Returns the ring of the current connection, and its buffers.
    fn of(queue_ring: &mut QueueRing) -> Option<(&mut MemifRing, Self::Lent<'_>)>;

    /// Receives the packet in a single descriptor: copies it into the buffer `fresh`, or takes its buffer and lends
    /// `fresh` instead. Returns `None` for any other packet.
    ///
    /// # Safety
    /// The buffer is from the queue's pool and owned by the caller. The view and the returned slot are of the same
    /// pool.
    unsafe fn take_single(
        ring: &MemifRing,
        lent: &mut Self::Lent<'_>,
        ahead: u16,
        fresh: u32,
        view: View<'_>,
        limits: Limits,
    ) -> Option<Slot>;

    /// Returns the packet's part in the descriptor `ahead` positions after the next descriptor.
    ///
    /// # Errors
    /// The descriptor is invalid.
    fn part(ring: &MemifRing, ahead: u16) -> Result<Part, Breach>;

    /// Receives a packet of any parts that begins `ahead` positions after the next descriptor.
    fn take_parts(
        ring: &MemifRing,
        lent: &mut Self::Lent<'_>,
        ahead: u16,
        packet: (&[Part], usize),
        batch: &mut Batch,
        pool: (&Arc<Pool>, Placement),
    ) -> Received;

    /// Prepares the descriptors of a packet passed to [`take_parts`](BufferPolicy::take_parts) for the next packet.
    fn renew(ring: &MemifRing, lent: &mut Self::Lent<'_>, descriptors: Range<u16>, placement: Placement);
}

/// The outcome of receiving a packet.
pub enum Received {
    Packet,
    /// The packet has more parts than a batch can hold.
    Dropped,
    NoBuffer,
}

impl<B: BufferPolicy> RegionRx for MemifRx<B> {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let Some(ring) = self.queue_ring.ring() else { return 0 };
        match ring.ready() {
            Ok(0) => 0,
            ready => {
                let before = batch.len();
                self.take_all(ready, batch);
                batch.len() - before
            }
        }
    }

    fn buffers(&self) -> usize {
        self.queue_ring.lent()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        if self.sleeps { Some(self.queue_ring.arm()) } else { None }
    }

    fn disarm(&mut self) {
        self.queue_ring.disarm();
    }
}

impl<B: BufferPolicy> MemifRx<B> {
    /// Receives available packets, as far as the batch has room.
    fn take_all(&mut self, ready: Result<u16, Breach>, batch: &mut Batch) {
        if let Err(breach) = ready.and_then(|ready| self.take_ready(ready, batch)) {
            self.queue_ring.give_up(breach);
        }
    }

    #[inline(always)]
    fn take_ready(&mut self, ready: u16, batch: &mut Batch) -> Result<(), Breach> {
        let MemifRx { queue_ring, pool, counters, limits, parts, .. } = self;
        let Some((ring, mut lent)) = B::of(queue_ring) else { return Ok(()) };
        let taken = take::<B>(ring, &mut lent, ready, batch, pool, counters, *limits, parts)?;
        if taken > 0 {
            ring.empty(taken);
            ring.advance(taken);
            // The sender needs no interrupt: it polls the index.
        }
        if ring.regions().is_broken() { Err(Breach::TRUNCATED) } else { Ok(()) }
    }
}

/// Receives from up to `ready` descriptors. Returns the number consumed.
///
/// # Errors
/// A descriptor is invalid, or the packet's end will never come.
#[inline(always)]
#[expect(clippy::too_many_arguments)]
fn take<B: BufferPolicy>(
    ring: &MemifRing,
    lent: &mut B::Lent<'_>,
    ready: u16,
    batch: &mut Batch,
    pool: &Arc<Pool>,
    counters: &QueueCounters,
    limits: Limits,
    parts: &mut Vec<Part>,
) -> Result<u16, Breach> {
    let placement = limits.placement;
    let (mut taken, mut packets, mut bytes) = (0u16, 0, 0);
    let before = batch.len();
    let outcome = loop {
        // Packets in one descriptor that fit one buffer.
        let first = taken;
        let take_singles = |slots: &mut [Slot], fresh: &[u32]| {
            // SAFETY: the view is used with slots of buffers of this pool, which is the batch's.
            let view = unsafe { pool.region().view() };
            let mut done = 0;
            for (slot, &fresh) in slots.iter_mut().zip(fresh) {
                // SAFETY: the buffer is meant for this packet.
                let single = unsafe { B::take_single(ring, lent, first + done, fresh, view, limits) };
                let Some(single) = single else { break };
                bytes += single.whole_len();
                *slot = single;
                done += 1;
            }
            usize::from(done)
        };
        // SAFETY: the returned count of slots has been written, with the given buffers, or with those that the ring had
        // instead.
        let (offered, singles) = unsafe { batch.exchange(usize::from(ready - taken), take_singles) };
        taken += singles as u16;
        packets += singles;
        if taken == ready || batch.len() >= batch.capacity() {
            break Ok(taken);
        }
        if offered == 0 {
            counters.found_no_buffer();
            break Ok(taken);
        }
        // Any other packet.
        let length = match gather::<B>(ring, taken, ready - taken, parts) {
            Ok(Some(length)) => length,
            Ok(None) if !ring.is_ending() => break Ok(taken),
            Ok(None) => break Err(Breach::Other("the end of a packet was not sent")),
            Err(breach) => break Err(breach),
        };
        if length > limits.longest {
            counters.missed(0, 1);
        } else if length < SHORTEST {
            counters.dropped();
        } else {
            match B::take_parts(ring, lent, taken, (parts, length), batch, (pool, placement)) {
                Received::Packet => (packets, bytes) = (packets + 1, bytes + length),
                Received::Dropped => counters.dropped(),
                Received::NoBuffer => {
                    counters.found_no_buffer();
                    break Ok(taken);
                }
            }
        }
        let end = taken + parts.len() as u16;
        B::renew(ring, lent, taken..end, placement);
        taken = end;
    };
    counters.moved_packets(packets, batch.len() - before, bytes);
    outcome
}

/// Collects the parts of the packet that begins `ahead` positions after the next descriptor, from at most `left`
/// descriptors. Returns the packet's length; `None` if the sender has not handed over the packet's end.
///
/// # Errors
/// A part is invalid, or the packet can have no end.
#[cold]
fn gather<B: BufferPolicy>(
    ring: &MemifRing,
    ahead: u16,
    left: u16,
    parts: &mut Vec<Part>,
) -> Result<Option<usize>, Breach> {
    parts.clear();
    let mut length = 0;
    for number in 0..left.min(MOST_PARTS) {
        let part = B::part(ring, ahead + number)?;
        parts.push(part);
        length += part.len as usize;
        if !part.has_more {
            return Ok(Some(length));
        }
    }
    // A packet that fills the ring never ends.
    let most = ring.size().min(MOST_PARTS);
    match left >= most {
        true => Err(Breach::Beyond { what: "the count of a packet's parts", is: most as u64 + 1, most: most.into() }),
        false => Ok(None),
    }
}

/// Packets are copied out of the ring's buffers.
pub struct Copied;

impl BufferPolicy for Copied {
    type Lent<'a> = ();

    #[inline(always)]
    fn of(queue_ring: &mut QueueRing) -> Option<(&mut MemifRing, ())> {
        Some((queue_ring.current()?, ()))
    }

    #[inline(always)]
    unsafe fn take_single(
        ring: &MemifRing,
        (): &mut (),
        ahead: u16,
        fresh: u32,
        view: View<'_>,
        limits: Limits,
    ) -> Option<Slot> {
        let (part, mapping) = ring.packet_part(ahead)?;
        mapping.prefetch(ring.hint(ahead + PREFETCH_AHEAD));
        let length = part.len as usize;
        if part.has_more || length.wrapping_sub(SHORTEST) > limits.longest_single - SHORTEST {
            return None;
        }
        // SAFETY: as the caller promises; `longest_single` is at most the room.
        let mut slot = unsafe { limits.placement.slot(fresh, length as u16, false) };
        mapping.read(part.offset as usize, view.bytes_mut(&mut slot));
        Some(slot)
    }

    fn part(ring: &MemifRing, ahead: u16) -> Result<Part, Breach> {
        ring.packet_part(ahead).map(|(part, _)| part).ok_or_else(|| ring.outside(ahead))
    }

    fn take_parts(
        ring: &MemifRing,
        (): &mut (),
        _: u16,
        (parts, length): (&[Part], usize),
        batch: &mut Batch,
        (pool, _): (&Arc<Pool>, Placement),
    ) -> Received {
        match batch.push_filled(pool, length, None, |at, target| read_parts(ring.regions(), parts, at, target)) {
            true => Received::Packet,
            false if batch.can_hold(pool, length) => Received::NoBuffer,
            false => Received::Dropped,
        }
    }

    fn renew(ring: &MemifRing, (): &mut (), descriptors: Range<u16>, _: Placement) {
        ring.unchain(descriptors);
    }
}

/// Copies bytes of a part, starting at byte `at`.
#[inline(always)]
fn read(regions: &Regions, part: Part, at: usize, target: &mut [u8]) {
    if let Some(mapping) = regions.mapping_of(part.region, part.offset, part.len) {
        mapping.read(part.offset as usize + at, target);
    }
}

/// Copies bytes of a packet, starting at byte `at`.
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
    pub queue_ring: QueueRing,
    pub counters: Arc<QueueCounters>,
    pub longest: usize,
    /// The buffers being filled.
    pub parts: Vec<Part>,
}

impl Transmit for MemifTx {
    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            // Releases the memory of a disconnected peer.
            let _ = self.queue_ring.ring();
            return 0;
        }
        self.finish_and_send(batch)
    }

    fn has_peer(&self) -> bool {
        self.queue_ring.is_running()
    }
}

/// The outcome of sending a packet.
enum Sent {
    /// The packet fills this number of descriptors.
    In(u16),
    TooLong,
    NoRoom,
    Invalid(Breach),
}

/// A descriptor cannot express checksums and segmentation.
impl SendFinished for MemifTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let MemifTx { queue_ring, counters, longest, parts } = self;
        let Some(ring) = queue_ring.ring() else { return (0, false) };
        let ready = ring.ready();
        let (ready, mut breach) = (ready.unwrap_or(0), ready.err());
        let (mut used, mut bytes) = fill_singles(ring, ready, batch, *longest);
        let (mut slots, mut packets) = (usize::from(used), usize::from(used));
        let mut is_to_be_finished = false;
        for packet in batch.packets().skip(packets) {
            let left = ready - used;
            if left == 0 {
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
                Sent::Invalid(found) => {
                    breach = Some(found);
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
        let breach = breach.or(ring.regions().is_broken().then_some(Breach::TRUNCATED));
        if interrupts {
            queue_ring.raise();
        }
        if let Some(breach) = breach {
            queue_ring.give_up(breach);
        }
        counters.moved_packets(packets, slots, bytes);
        batch.drop_front(slots);
        (slots, is_to_be_finished)
    }
}

/// Writes packets of one slot to one buffer each, from the front of the batch up to the first other packet. Returns the
/// counts of packets and bytes.
#[inline(always)]
fn fill_singles(ring: &MemifRing, ready: u16, batch: &Batch, longest: usize) -> (u16, usize) {
    let Some((slots, pool)) = batch.contents() else { return (0, 0) };
    // SAFETY: the view is used with the batch's slots, whose pool this is.
    let view = unsafe { pool.region().view() };
    let (mut done, mut bytes) = (0, 0);
    for slot in slots.iter().take(ready.into()) {
        let length = slot.whole_len();
        if length > longest {
            break;
        }
        let Some((part, mapping)) = ring.empty_buffer(done).filter(|(part, _)| length <= part.len as usize) else {
            break;
        };
        mapping.prefetch_write(ring.hint(done + PREFETCH_AHEAD));
        mapping.write(part.offset as usize, view.bytes(slot));
        ring.fill(done, part, length as u32, false);
        (done, bytes) = (done + 1, bytes + length);
    }
    (done, bytes)
}

/// Writes a packet to the buffer `ahead` positions after the next descriptor's, or to as many of the `left` buffers as
/// it needs.
fn fill(ring: &MemifRing, ahead: u16, left: u16, packet: &Packet<'_>, length: usize, parts: &mut Vec<Part>) -> Sent {
    let Some((part, mapping)) = ring.empty_buffer(ahead) else { return Sent::Invalid(ring.outside(ahead)) };
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
fn fill_several(ring: &MemifRing, ahead: u16, left: u16, packet: &Packet<'_>, parts: &mut Vec<Part>) -> Sent {
    // The lengths first, so that the descriptors are unchanged if there are too few.
    parts.clear();
    let (mut room, mut length) = (0, packet.len());
    while room < length {
        let count = parts.len() as u16;
        if count == left {
            // Even a full ring would be too short.
            return if left == ring.size() { Sent::TooLong } else { Sent::NoRoom };
        }
        let Some((part, _)) = ring.empty_buffer(ahead + count) else {
            return Sent::Invalid(ring.outside(ahead + count));
        };
        room += part.len as usize;
        parts.push(part);
    }
    let mut segments = packet.segments();
    let mut segment: &[u8] = &[];
    for (number, part) in parts.iter().enumerate() {
        let len = (part.len as usize).min(length);
        let mapping = ring.regions().mapping_of(part.region, part.offset, part.len);
        let Some(mapping) = mapping else { return Sent::Invalid(ring.outside(ahead + number as u16)) };
        let (mut at, end) = (part.offset as usize, part.offset as usize + len);
        while at < end {
            if segment.is_empty() {
                let Some(next) = segments.next() else { return Sent::NoRoom }; // unreachable: `length` is the packet's
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
