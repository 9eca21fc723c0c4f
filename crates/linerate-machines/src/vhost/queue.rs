//! Receive and send, top-down: from the front end's transmit queue into buffers, and from buffers into its receive
//! queue. Each packet is copied once, after a virtio header (5.1.6).
//!
//! ```text
//!   chain   [ header | data ..... ]  one descriptor, or several; the header may have a separate one
//! ```
//!
//! Chains are used in the order in which they became available, so only an index must outlive this process.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use linerate_core::batch::{Batch, MAX_CHAIN};
use linerate_core::error::{self, Error};
use linerate_core::event::Interrupt;
use linerate_core::memory::{Mapping, Pool};
use linerate_core::offload::{AcceptedOffloads, Offload};
use linerate_core::packet::Packet;
use linerate_core::port::{QueueCounters, RegionRx, SendFinished, Transmit};
use linerate_core::ring::Breach;
use linerate_core::slot::{HEADROOM, Slot};
use linerate_spec::virtio::ring::{INDIRECT, NEXT, WRITE};
use linerate_spec::virtio::{feature, header};
use rustix::event::epoll;

use super::log::Log;
use super::memory::{GuestMemory, Mapped};
use super::ring::{Descriptor, DeviceRing, Found, Head, MOST_PARTS};
use super::vring::{AnyRing, QueueRing, Running, Setup, Vring};

/// The shortest frame: an Ethernet header.
const SHORTEST: usize = 14;
/// Packets written per batch; limited by how many cache-line fills can be outstanding.
const GROUP: usize = 16;
/// With fewer packets than this, each is written individually.
const MIN_BATCH: usize = 4;
/// The maximum number of chains dropped per poll, so that a front end that sends only bad ones cannot block the thread.
const MOST_DROPPED: usize = 256;

/// The features with which a driver accepts unfinished packets.
const DRIVER_OFFLOADS: AcceptedOffloads = AcceptedOffloads {
    checksum: feature::GUEST_CSUM,
    tcp_ipv4: feature::GUEST_TSO4,
    tcp_ipv6: feature::GUEST_TSO6,
    udp: feature::GUEST_USO4 | feature::GUEST_USO6,
    ecn: feature::GUEST_ECN,
};

/// Returns the length of the header with these features (5.1.6.1).
fn header_len(features: u64) -> usize {
    match features & (feature::VERSION_1 | feature::MRG_RXBUF) {
        0 => header::SHORT_LEN,
        _ => header::LEN,
    }
}

/// A receive queue: the front end's transmit queue.
pub(super) struct VhostRx {
    pub(super) queue_ring: QueueRing,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// The longest packet, and the longest packet in one buffer.
    pub(super) longest: usize,
    pub(super) longest_single: usize,
    /// The chain being read.
    pub(super) parts: Chain,
    pub(super) sleep: Option<Sleep>,
}

impl RegionRx for VhostRx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if !self.queue_ring.has_work() {
            return 0;
        }
        let before = batch.len();
        self.take_all(batch);
        batch.len() - before
    }

    fn buffers(&self) -> usize {
        0
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let sleep = self.sleep.as_mut()?;
        let mut kick = None;
        if let Some(running) = self.queue_ring.enter() {
            running.ring.as_dyn().allow_notifications();
            kick.clone_from(&running.setup.kick);
            self.queue_ring.leave();
        }
        sleep.watch(kick);
        Some(sleep.events.as_fd())
    }

    fn disarm(&mut self) {
        let Some(sleep) = &self.sleep else { return };
        sleep.kick.iter().for_each(|kick| kick.clear());
        self.queue_ring.vring().changed().clear();
        if let Some(running) = self.queue_ring.enter() {
            running.ring.as_dyn().forbid_notifications();
            self.queue_ring.leave();
        }
    }
}

impl VhostRx {
    /// Receives available packets, as far as the batch has room.
    fn take_all(&mut self, batch: &mut Batch) {
        let VhostRx { queue_ring, pool, counters, parts, .. } = self;
        let limits = Limits { longest: self.longest, longest_single: self.longest_single };
        let Some(Running { ring, setup }) = queue_ring.enter() else { return };
        if let Some(frame) = setup.announcement
            && batch.push(pool, &frame)
        {
            setup.announcement = None;
            counters.moved_packets(1, 1, frame.len());
        }
        let taken = match ring {
            AnyRing::Split(ring) => take_from(ring, setup, batch, pool, counters, limits, parts),
            AnyRing::Packed(ring) => take_from(ring, setup, batch, pool, counters, limits, parts),
        };
        if let Err(breach) = taken {
            queue_ring.give_up(breach);
        }
        queue_ring.leave();
    }
}

/// Receives from available chains, and returns them to the driver.
///
/// # Errors
/// A chain is invalid.
#[inline(always)]
fn take_from(
    ring: &mut impl DeviceRing,
    setup: &Setup,
    batch: &mut Batch,
    pool: &Arc<Pool>,
    counters: &QueueCounters,
    limits: Limits,
    parts: &mut Chain,
) -> Result<(), Breach> {
    let end = ring.poll_available().and_then(|()| match setup.is_enabled {
        true => take(ring, setup, batch, pool, counters, limits, parts),
        false => discard(ring, counters),
    });
    if let Ok(end) = end
        && end != ring.next()
        && ring.publish(end)
    {
        setup.call.iter().for_each(|call| call.raise());
    }
    match setup.memory.is_broken() {
        false => end.map(drop),
        true => Err(Breach::TRUNCATED),
    }
}

/// Empties a disabled ring (vhost-user, "Ring states"), and counts the drops. Returns the position after the last
/// chain.
///
/// # Errors
/// A chain is invalid.
#[cold]
fn discard(ring: &mut impl DeviceRing, counters: &QueueCounters) -> Result<u16, Breach> {
    let mut at = ring.next();
    for _ in 0..ring.size().min(MOST_DROPPED) {
        match ring.read_chain(at) {
            Found::Chain(head) => {
                let chain = ring.follow_to_end(head)?;
                ring.put_used(chain, 0);
                counters.dropped();
                at = chain.end;
            }
            Found::Unavailable => break,
            Found::Invalid(breach) => return Err(breach),
        }
    }
    Ok(at)
}

/// The longest packets that a queue accepts.
#[derive(Clone, Copy)]
struct Limits {
    longest: usize,
    longest_single: usize,
}

/// Receives from the available chains. Returns the position after them.
///
/// # Errors
/// A chain is invalid.
#[inline(always)]
fn take(
    ring: &mut impl DeviceRing,
    setup: &Setup,
    batch: &mut Batch,
    pool: &Arc<Pool>,
    counters: &QueueCounters,
    limits: Limits,
    parts: &mut Chain,
) -> Result<u16, Breach> {
    let header = header_len(setup.features);
    let may_be_unfinished =
        setup.features & (feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_USO) != 0;
    let memory = &*setup.memory;
    let (mut packets, mut bytes, mut dropped) = (0, 0, 0);
    let slots = batch.len();
    let mut at = ring.next();
    loop {
        // Packets in one descriptor that fit one buffer.
        let most = ring.available_at_most(at);
        let take_singles = |slots: &mut [Slot], fresh: &[u32]| {
            // SAFETY: the view is used with slots of buffers of this pool, which is the batch's.
            let view = unsafe { pool.region().view() };
            let mut done = 0;
            for (slot, &buf) in slots.iter_mut().zip(fresh) {
                let Found::Chain(head) = ring.read_chain(at) else { break };
                let Descriptor { address, len, flags, .. } = head.first;
                let length = (len as usize).wrapping_sub(header);
                if flags & (NEXT | INDIRECT | WRITE) != 0
                    || length.wrapping_sub(SHORTEST) > limits.longest_single - SHORTEST
                {
                    break;
                }
                let Some(mapped) = memory.translate_guest(address).filter(|mapped| mapped.len >= len as usize) else {
                    break;
                };
                if may_be_unfinished && needs_work(mapped.mapping, mapped.at) {
                    break;
                }
                // SAFETY: the buffer is meant for this slot, and `longest_single` is at most the room after the
                // headroom.
                *slot = unsafe { Slot::new(buf, HEADROOM, length as u16, false) };
                mapped.mapping.read(mapped.at + header, view.bytes_mut(slot));
                ring.put_used(head, 0);
                at = head.end;
                bytes += length;
                done += 1;
            }
            done
        };
        // SAFETY: the returned count of slots has been written, for the buffers given.
        let (offered, singles) = unsafe { batch.exchange(most, take_singles) };
        packets += singles;
        if batch.len() >= batch.capacity() {
            break;
        }
        let head = match ring.read_chain(at) {
            Found::Chain(head) => head,
            Found::Unavailable => break,
            Found::Invalid(breach) => return Err(breach),
        };
        if offered == 0 {
            counters.found_no_buffer();
            break;
        }
        // Any other packet.
        parts.clear();
        let chain = parts.gather(ring, memory, head, false)?;
        match take_chain(memory, header, may_be_unfinished, batch, pool, limits, parts) {
            Received::Packet(length) => (packets, bytes) = (packets + 1, bytes + length),
            Received::TooLong => {
                counters.missed(0, 1);
                dropped += 1;
            }
            Received::Dropped => {
                counters.dropped();
                dropped += 1;
            }
            Received::NoRoom => {
                counters.found_no_buffer();
                break;
            }
        }
        ring.put_used(chain, 0);
        at = chain.end;
        if dropped == MOST_DROPPED {
            break;
        }
    }
    counters.moved_packets(packets, batch.len() - slots, bytes);
    Ok(at)
}

/// Returns whether a header requests a checksum or segmentation.
#[inline(always)]
fn needs_work(mapping: &Mapping, at: usize) -> bool {
    let mut first = [0; 2];
    mapping.read(at, &mut first);
    first[0] & 1 != 0 || first[1] != 0
}

/// The outcome of receiving from a chain.
enum Received {
    /// A packet of this length.
    Packet(usize),
    TooLong,
    Dropped,
    NoRoom,
}

/// Receives a packet of any number of parts.
#[cold]
fn take_chain(
    memory: &GuestMemory,
    header: usize,
    may_be_unfinished: bool,
    batch: &mut Batch,
    pool: &Arc<Pool>,
    limits: Limits,
    parts: &Chain,
) -> Received {
    let length = match parts.len().checked_sub(header) {
        Some(length) if length > limits.longest => return Received::TooLong,
        Some(length) if length >= SHORTEST => length,
        _ => return Received::Dropped,
    };
    let mut cursor = parts.cursor(memory);
    let mut bytes = [0; header::LEN];
    cursor.read(&mut bytes[..header]);
    let offload = Offload(std::array::from_fn(|at| bytes[at]));
    let offload = (may_be_unfinished && offload.is_needed()).then_some(offload);
    // The checksum must be inside the packet, wherever the packet goes next.
    if offload.is_some_and(|offload| offload.needs_checksum() && offload.checksum_offsets(length).is_none()) {
        return Received::Dropped;
    }
    let mut read = |_, target: &mut [u8]| cursor.read(target);
    match batch.push_filled(pool, length, offload, &mut read) {
        true => Received::Packet(length),
        false if batch.can_hold(pool, length) => Received::NoRoom,
        false => Received::Dropped,
    }
}

/// The parts of a chain in the front end's memory, in order.
#[derive(Default)]
pub(super) struct Chain {
    /// Address and length.
    parts: Vec<(u64, usize)>,
    len: usize,
}

impl Chain {
    fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// Returns the number of bytes.
    fn len(&self) -> usize {
        self.len
    }

    /// Adds a chain's parts. Returns the chain, followed to its end.
    ///
    /// # Errors
    /// The chain is invalid: it loops, is outside the memory, or has parts of the wrong direction.
    fn gather<R: DeviceRing>(
        &mut self,
        ring: &R,
        memory: &GuestMemory,
        mut chain: Head,
        writable: bool,
    ) -> Result<Head, Breach> {
        let mut descriptor = chain.first;
        if descriptor.flags & INDIRECT != 0 {
            self.gather_indirect::<R>(memory, descriptor, writable)?;
            return Ok(chain);
        }
        for _ in 0..ring.size().min(MOST_PARTS) {
            self.add(memory, descriptor, writable)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            descriptor = ring.follow(&mut chain, descriptor)?;
            if descriptor.flags & INDIRECT != 0 {
                if !R::allows_table_at_end() {
                    return Err(Breach::Other("a chain of a packed queue continues in an indirect table"));
                }
                self.gather_indirect::<R>(memory, descriptor, writable)?;
                return Ok(chain);
            }
        }
        Err(ring.too_long())
    }

    fn gather_indirect<R: DeviceRing>(
        &mut self,
        memory: &GuestMemory,
        table: Descriptor,
        writable: bool,
    ) -> Result<(), Breach> {
        const SIZE: usize = 16;
        let (at, len) = (table.address, table.len as usize);
        let mapped = memory.translate_guest(at).filter(|mapped| mapped.len >= len);
        let mapped = mapped.ok_or(Breach::Outside { what: "an indirect table", at, len: len as u64 })?;
        let count = len / SIZE;
        if count == 0 || !len.is_multiple_of(SIZE) {
            return Err(Breach::Other("the length of an indirect table is 0, or not a multiple of 16"));
        }
        if table.flags & NEXT != 0 {
            return Err(Breach::Other("a chain continues after an indirect table"));
        }
        let mut number = 0;
        for done in 1..=count.min(MOST_PARTS) {
            let mut bytes = [0; SIZE];
            mapped.mapping.read(mapped.at + number * SIZE, &mut bytes);
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
            let descriptor = R::of_table(word(0), word(8), number, count);
            if descriptor.flags & INDIRECT != 0 {
                return Err(Breach::Other("an indirect table contains another one"));
            }
            self.add(memory, descriptor, writable)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            number = usize::from(descriptor.next);
            let most = count as u64 - 1;
            if number >= count {
                return Err(Breach::Beyond { what: "a descriptor's number in its table", is: number as u64, most });
            }
            if done == count {
                return Err(Breach::Other("the chain in an indirect table does not end"));
            }
        }
        Err(Breach::Beyond { what: "the count of a table's descriptors", is: count as u64, most: MOST_PARTS as u64 })
    }

    fn add(&mut self, memory: &GuestMemory, descriptor: Descriptor, writable: bool) -> Result<(), Breach> {
        let Descriptor { mut address, len, flags, .. } = descriptor;
        match (writable, flags & WRITE != 0) {
            (true, false) => return Err(Breach::Other("the device may not write a buffer of its receive queue")),
            (false, true) => return Err(Breach::Other("the device may write a buffer of its transmit queue")),
            _ => {}
        }
        let outside = Breach::Outside { what: "a buffer", at: address, len: len.into() };
        // A buffer may cross regions.
        let mut left = len as usize;
        while left > 0 {
            let here = memory.translate_guest(address).ok_or(outside)?.len.min(left);
            if self.parts.len() >= MOST_PARTS {
                let (is, most) = (MOST_PARTS as u64 + 1, MOST_PARTS as u64);
                return Err(Breach::Beyond { what: "the count of a chain's parts", is, most });
            }
            self.parts.push((address, here));
            (address, left) = (address.checked_add(here as u64).ok_or(outside)?, left - here);
        }
        self.len += len as usize;
        Ok(())
    }

    /// Marks the first `len` bytes as written in the log.
    fn log(&self, log: &Log, mut len: usize) {
        for &(address, whole) in &self.parts {
            log.mark(address, len.min(whole));
            len = len.saturating_sub(whole);
        }
    }

    fn cursor<'a>(&'a self, memory: &'a GuestMemory) -> Cursor<'a> {
        Cursor { memory, parts: &self.parts, done: 0 }
    }
}

/// A position in a chain.
struct Cursor<'a> {
    memory: &'a GuestMemory,
    parts: &'a [(u64, usize)],
    /// Bytes of the first part that are processed.
    done: usize,
}

impl Cursor<'_> {
    fn read(&mut self, target: &mut [u8]) {
        let mut at = 0;
        self.pass(target.len(), |mapping, offset, len| {
            mapping.read(offset, &mut target[at..at + len]);
            at += len;
        });
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut at = 0;
        self.pass(bytes.len(), |mapping, offset, len| {
            mapping.write(offset, &bytes[at..at + len]);
            at += len;
        });
    }

    /// Processes the next `len` bytes, in one or more pieces. The chain must have that many.
    fn pass(&mut self, mut len: usize, mut piece: impl FnMut(&Mapping, usize, usize)) {
        while len > 0 {
            let Some(&(address, whole)) = self.parts.first() else { return };
            let now = len.min(whole - self.done);
            if let Some(mapped) = self.memory.translate_guest(address) {
                piece(mapped.mapping, mapped.at + self.done, now);
            }
            (self.done, len) = (self.done + now, len - now);
            if self.done == whole {
                (self.parts, self.done) = (&self.parts[1..], 0);
            }
        }
    }
}

/// A transmit queue: the front end's receive queue.
pub(super) struct VhostTx {
    pub(super) queue_ring: QueueRing,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) longest: usize,
    /// The chains being filled.
    pub(super) parts: Chain,
}

impl Transmit for VhostTx {
    #[inline(always)]
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            self.queue_ring.adopt_if_changed();
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
    /// The packet fills the chains before this position.
    FilledUpTo(u16),
    TooLong,
    NoRoom,
    /// The driver does not accept the packet's offloads, so they must be done first.
    Unfinished,
    /// A chain is invalid.
    Invalid(Breach),
}

impl SendFinished for VhostTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let VhostTx { queue_ring, counters, longest, parts } = self;
        let Some(Running { ring, setup }) = queue_ring.enter() else { return (0, false) };
        let SendOutcome { slots, breach, is_to_be_finished } = match (ring, setup.log.is_some()) {
            (AnyRing::Split(ring), false) => fill_from::<false>(ring, setup, batch, counters, *longest, parts),
            (AnyRing::Split(ring), true) => fill_from::<true>(ring, setup, batch, counters, *longest, parts),
            (AnyRing::Packed(ring), false) => fill_from::<false>(ring, setup, batch, counters, *longest, parts),
            (AnyRing::Packed(ring), true) => fill_from::<true>(ring, setup, batch, counters, *longest, parts),
        };
        if let Some(breach) = breach {
            queue_ring.give_up(breach);
        }
        queue_ring.leave();
        batch.drop_front(slots);
        (slots, is_to_be_finished)
    }
}

/// The outcome of sending packets.
struct SendOutcome {
    /// The number of slots consumed.
    slots: usize,
    /// A chain is invalid.
    breach: Option<Breach>,
    /// The next packet must be finished first.
    is_to_be_finished: bool,
}

/// Fills chains, and returns them to the driver. If writes must be logged (`IS_LOGGED`), no packet takes the fast path.
#[inline(always)]
fn fill_from<const IS_LOGGED: bool>(
    ring: &mut impl DeviceRing,
    setup: &Setup,
    batch: &mut Batch,
    counters: &QueueCounters,
    longest: usize,
    parts: &mut Chain,
) -> SendOutcome {
    let header = header_len(setup.features);
    let mut breach = ring.poll_available().err().or(setup.memory.is_broken().then_some(Breach::TRUNCATED));
    let (mut at, mut packets, mut bytes) =
        match breach.is_none() && setup.is_enabled && !IS_LOGGED && batch.len() >= MIN_BATCH {
            true => fill_singles(ring, setup, batch, header, longest),
            false => (ring.next(), 0, 0),
        };
    let (mut slots, mut is_to_be_finished) = (packets, false);
    for mut packet in batch.packets().skip(packets) {
        if breach.is_some() || !setup.is_enabled {
            break;
        }
        let head = match ring.read_chain(at) {
            Found::Chain(head) => head,
            Found::Unavailable => break,
            Found::Invalid(found) => {
                breach = Some(found);
                break;
            }
        };
        let length = packet.len();
        let sent = if length > longest && packet.offload().is_none() {
            Sent::TooLong
        } else if !IS_LOGGED && fill_single(ring, setup, head, header, &mut packet) {
            Sent::FilledUpTo(head.end)
        } else {
            fill_chains(ring, setup, at, header, &mut packet, parts)
        };
        match sent {
            Sent::FilledUpTo(end) => (at, packets, bytes) = (end, packets + 1, bytes + length),
            Sent::TooLong => counters.dropped(),
            Sent::NoRoom => break,
            Sent::Unfinished => {
                is_to_be_finished = true;
                break;
            }
            Sent::Invalid(found) => {
                breach = Some(found);
                break;
            }
        }
        slots += packet.slots();
    }
    if at != ring.next() && ring.publish(at) {
        setup.call.iter().for_each(|call| call.raise());
    }
    counters.moved_packets(packets, slots, bytes);
    SendOutcome { slots, breach, is_to_be_finished }
}

/// Writes packets of one slot to chains of one descriptor each, from the front of the batch up to the first other
/// packet. Returns the position after the chains, and the counts of packets and bytes.
///
/// The cache lines of the front end's buffers are in the cache of its processor, and often shared with this
/// processor's. A prefetch does not fetch such a line for writing; only a store does, and stores are done in order. So
/// the first bytes of a group's packets are stored back to back: this processor then requests the lines of all these
/// packets at the same time.
#[inline(always)]
fn fill_singles(
    ring: &mut impl DeviceRing,
    setup: &Setup,
    batch: &Batch,
    header: usize,
    longest: usize,
) -> (u16, usize, usize) {
    let (mut at, mut packets, mut bytes) = (ring.next(), 0, 0);
    let Some((slots, pool)) = batch.contents() else { return (at, 0, 0) };
    // SAFETY: the view is used with the batch's slots, whose pool this is.
    let view = unsafe { pool.region().view() };
    let mut targets = [None; GROUP];
    for group in slots.chunks(GROUP) {
        let mut count = 0;
        for (slot, found) in group.iter().zip(&mut targets) {
            let Found::Chain(head) = ring.read_chain(at) else { break };
            let length = slot.whole_len();
            if length > longest {
                break;
            }
            let needed = header + length;
            let Some(first) = view.bytes(slot).get(..SHORTEST) else { break };
            let Some(mapped) = map_single(&setup.memory, head, needed) else { break };
            mapped.mapping.write(mapped.at, &single_header()[..header]);
            mapped.mapping.write(mapped.at + header, first);
            ring.put_used(head, needed as u32);
            *found = Some(mapped);
            (at, count) = (head.end, count + 1);
        }
        for (slot, mapped) in group[..count].iter().zip(targets.iter().flatten()) {
            let data = view.bytes(slot);
            mapped.mapping.write(mapped.at + header, data);
            bytes += data.len();
        }
        packets += count;
        if count < group.len() {
            break;
        }
    }
    (at, packets, bytes)
}

/// Writes a finished packet that fits a chain's only descriptor; returns false for other packets or chains.
#[inline(always)]
fn fill_single(ring: &mut impl DeviceRing, setup: &Setup, head: Head, header: usize, packet: &mut Packet<'_>) -> bool {
    let needed = header + packet.len();
    if packet.offload().is_some() {
        return false;
    }
    let Some(mapped) = map_single(&setup.memory, head, needed) else { return false };
    mapped.mapping.write(mapped.at, &single_header()[..header]);
    let mut at = mapped.at + header;
    for segment in packet.segments() {
        mapped.mapping.write(at, segment);
        at += segment.len();
    }
    ring.put_used(head, needed as u32);
    true
}

/// Returns the memory of a chain's only descriptor; `None` if the memory is shorter than `needed`, or the chain has
/// more descriptors.
#[inline(always)]
fn map_single(memory: &GuestMemory, head: Head, needed: usize) -> Option<Mapped<'_>> {
    let Descriptor { address, len, flags, .. } = head.first;
    if flags != WRITE || (len as usize) < needed {
        return None;
    }
    memory.translate_guest(address).filter(|mapped| mapped.len >= needed)
}

/// Returns the header of a finished packet in one chain.
#[inline(always)]
fn single_header() -> [u8; header::LEN] {
    let mut bytes = [0; header::LEN];
    bytes[header::NUM_BUFFERS] = 1;
    bytes
}

/// Writes a packet to as many chains as it needs, starting at position `first`.
#[cold]
fn fill_chains(
    ring: &mut impl DeviceRing,
    setup: &Setup,
    first: u16,
    header: usize,
    packet: &mut Packet<'_>,
    parts: &mut Chain,
) -> Sent {
    let memory = &*setup.memory;
    let mut bytes = single_header();
    if let Some(todo) = packet.offload() {
        if !todo.is_accepted(&DRIVER_OFFLOADS, setup.features) {
            return Sent::Unfinished;
        }
        bytes[..Offload::LEN].copy_from_slice(&todo.0);
    }
    let needed = header + packet.len();
    let most = if setup.features & feature::MRG_RXBUF != 0 { MAX_CHAIN } else { 1 };
    parts.clear();
    // The chains, each with the total length up to its end.
    let mut chains = [None; MAX_CHAIN];
    let (mut at, mut count) = (first, 0);
    while parts.len() < needed && count < most {
        let chain = match ring.read_chain(at) {
            Found::Chain(head) => parts.gather(ring, memory, head, true),
            // Even a full ring would be too short.
            Found::Unavailable if ring.fills_ring(first, at) => return Sent::TooLong,
            Found::Unavailable => return Sent::NoRoom,
            Found::Invalid(breach) => Err(breach),
        };
        let chain = match chain {
            Ok(chain) => chain,
            Err(breach) => return Sent::Invalid(breach),
        };
        chains[count] = Some((chain, parts.len()));
        (at, count) = (chain.end, count + 1);
    }
    if parts.len() < needed {
        return Sent::TooLong;
    }
    bytes[header::NUM_BUFFERS..].copy_from_slice(&(count as u16).to_le_bytes());
    let mut cursor = parts.cursor(memory);
    cursor.write(&bytes[..header]);
    packet.segments().for_each(|segment| cursor.write(segment));
    setup.log.iter().for_each(|log| parts.log(log, needed));
    let mut begin = 0;
    for (chain, end) in chains.into_iter().flatten() {
        ring.put_used(chain, (end.min(needed) - begin) as u32);
        begin = end;
    }
    Sent::FilledUpTo(at)
}

/// The events that wake a receive queue: the front end's notifications, and changes of the setup.
pub(super) struct Sleep {
    events: OwnedFd,
    kick: Option<Arc<Interrupt>>,
}

impl Sleep {
    /// Watches for changes of a virtqueue.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no descriptors left.
    pub fn new(vring: &Vring) -> error::Result<Sleep> {
        let fail = |error| Error::system("epoll", error);
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        epoll::add(&events, vring.changed(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(fail)?;
        Ok(Sleep { events, kick: None })
    }

    /// Watches for the front end's notifications.
    fn watch(&mut self, kick: Option<Arc<Interrupt>>) {
        let same = |old: &Arc<Interrupt>| kick.as_ref().is_some_and(|new| Arc::ptr_eq(old, new));
        if self.kick.as_ref().is_some_and(same) {
            return;
        }
        if let Some(old) = self.kick.take() {
            let _ = epoll::delete(&self.events, &*old);
        }
        self.kick = kick.filter(|kick| {
            epoll::add(&self.events, &**kick, epoll::EventData::new_u64(1), epoll::EventFlags::IN).is_ok()
        });
    }
}
