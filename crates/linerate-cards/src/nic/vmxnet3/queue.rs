//! Receive and send, top-down: how packets move between the device's rings and a batch.
//!
//! A queue has rings of commands, which the driver writes, and a ring of completions, which the device writes. The
//! writer of a ring marks what is new with the ring's generation, which changes in each round:
//!
//! ```text
//!                next                     next + length - 1
//!   receive   [ device's | device's | ... | driver's ]      for each completion, the buffer at `next` is exchanged,
//!                                                           and the driver's descriptor becomes the device's instead
//!                clean                  next
//!   transmit  [ device's | device's | ... | free | free ]   packets are added at `next`, and a completion names the
//!                                                           last descriptor of those that the device has sent
//! ```
//!
//! Receive ring 0 has the buffers that begin a packet, ring 1 those that continue one. Positions count up, and are
//! taken modulo the length of a ring. The device is untrusted: all that it writes is read once, and then checked.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linerate_core::batch::{Batch, Finished, MAX_CHAIN};
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Descriptors, Locate, Placement, Pool, Reservation};
use linerate_core::metadata::{Checksum, Hash, HashFields, Metadata};
use linerate_core::offload::{AcceptedOffloads, Headers, LONGEST, Offload, Segmentation};
use linerate_core::port::{QueueCounters, RegionRx, RegionTx, span_of};
use linerate_core::slot::Slot;
use linerate_spec::vmxnet3::descriptor::{MAX_LEN, completion, receive, transmit};
use linerate_spec::vmxnet3::{pt, vd};

use super::hardware::{Hardware, Rings};
use crate::pci::{Bar, Doorbell, Interrupt};

/// The device segments TCP, but not packets with ECN's bit CWR (Linux's driver does not offer `NETIF_F_TSO_ECN`).
const BY_DEVICE: AcceptedOffloads = AcceptedOffloads { checksum: 0, tcp_ipv4: 0, tcp_ipv6: 0, udp: 1, ecn: 1 };

/// A ring of completions.
struct Completions {
    ring: Descriptors,
    next: usize,
}

impl Completions {
    /// Returns the words of the next completion, if the device has written it.
    #[inline(always)]
    fn peek(&self) -> Option<[u64; 2]> {
        let [first, second] = &self.ring[self.next & (self.ring.len() - 1)];
        // Acquire: word 0 and the packet are read after the generation.
        let second = second.load(Acquire);
        let is_new = (second & completion::GENERATION != 0) == is_odd_round(self.next, self.ring.len());
        is_new.then(|| [first.load(Relaxed), second])
    }
}

/// Returns whether the generation of a position is 1: in the first round, the third, and so on.
#[inline(always)]
fn is_odd_round(position: usize, len: usize) -> bool {
    position & len == 0
}

/// A ring of receive descriptors, with the buffer of each.
struct Buffers {
    ring: Descriptors,
    /// Empty if no packet needs the ring: it stays empty.
    bufs: Vec<u32>,
    next: usize,
    /// Word 1 of each descriptor, without its generation.
    word: u64,
}

impl Buffers {
    #[inline(always)]
    fn at(&self) -> usize {
        self.next & (self.ring.len() - 1)
    }

    /// Writes the address of the next descriptor's buffer, and gives the device the descriptor before it, which was the
    /// driver's. The device never owns all: it would take the ring for full (Linux's `vmxnet3_rq_alloc_rx_buf`).
    #[inline(always)]
    fn refill(&mut self, addresses: &impl Locate, placement: Placement) {
        let (len, at) = (self.ring.len(), self.at());
        self.ring[at][0].store(addresses.locate(placement.data(self.bufs[at])), Relaxed);
        let before = self.next + len - 1;
        let generation = if is_odd_round(before, len) { receive::GENERATION } else { 0 };
        self.ring[before & (len - 1)][1].store(self.word | generation, Release);
        self.next += 1;
    }
}

/// A receive queue.
pub(super) struct Vmxnet3Rx<B: Bar, L: Locate> {
    completions: Completions,
    rings: [Buffers; 2],
    /// The registers of both rings' producer indices.
    doorbells: [B::Doorbell; 2],
    addresses: L,
    placement: Placement,
    room: usize,
    longest: usize,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    /// The beginning of a packet whose end has not arrived.
    partial: Vec<Slot>,
    /// Slots and bytes of the current packet so far, and word 0 of its first completion.
    slots: usize,
    so_far: usize,
    first: u64,
    /// The current packet is being dropped.
    dropping: bool,
    /// The device returned a descriptor that it does not own; the queue receives no more packets.
    broken: bool,
    interrupt: Option<Arc<Interrupt>>,
    queue: u16,
    is_stopped: bool,
    hardware: Arc<Hardware<B>>,
    _reservation: Reservation,
}

impl<B: Bar, L: Locate> RegionRx for Vmxnet3Rx<B, L> {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        let (before, first) = (batch.len(), self.completions.next);
        // SAFETY: the slots are of the queue's pool, which is also the batch's.
        unsafe { batch.restore_partial(&self.pool, &mut self.partial) };
        // Bounded by the ring's length, so that a malicious device cannot keep the thread here.
        for _ in 0..self.completions.ring.len() {
            if self.broken || !self.take(batch) {
                break;
            }
        }
        // Packets are delivered whole.
        batch.take_partial(&mut self.partial);
        if self.completions.next != first {
            self.counters.moved(batch.len() - before);
            if self.hardware.wants_producer(self.queue) {
                self.ring_doorbells();
            }
        }
        batch.len() - before
    }

    fn buffers(&self) -> usize {
        self.rings.iter().map(|ring| ring.bufs.len()).sum::<usize>() + self.partial.len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let interrupt = self.interrupt.as_ref()?;
        // If a packet has already arrived, the device raises the interrupt immediately.
        self.hardware.pt.write(pt::IMR::at(self.queue), 0);
        Some(interrupt.as_fd())
    }

    fn disarm(&mut self) {
        if let Some(interrupt) = &self.interrupt {
            self.hardware.pt.write(pt::IMR::at(self.queue), pt::IMR::MASKED);
            if interrupt.is_line() {
                self.hardware.vd.read(vd::ICR::OFFSET); // releases the line
            }
            interrupt.clear();
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar, L: Locate> Vmxnet3Rx<B, L> {
    /// Fills the rings and starts the queue.
    pub fn start(hardware: &Arc<Hardware<B>>, queue: u16, addresses: L) -> Result<Vmxnet3Rx<B, L>> {
        let counters = hardware.counters.claim_rx(&hardware.config, queue)?;
        let rx = hardware.claim(|| Vmxnet3Rx::fill(hardware, queue, counters, addresses))?;
        rx.ring_doorbells();
        hardware.set_started(queue, true);
        Ok(rx)
    }

    fn fill(
        hardware: &Arc<Hardware<B>>,
        queue: u16,
        counters: Arc<QueueCounters>,
        addresses: L,
    ) -> Result<Vmxnet3Rx<B, L>> {
        let (pool, rings) = (&hardware.config.pool, Rings::rx(&hardware.config, queue));
        let (placement, room, longest) = (hardware.placement(), hardware.room(), hardware.config.options.max_frame);
        let len = hardware.config.ring();
        let others = if longest > room { len } else { 0 };
        let reservation = pool.reserve(len + others + MAX_CHAIN)?;
        let Some(mut heads) = pool.take(len + others) else {
            return Err(Error::pool_exhausted(pool.available(), len + others));
        };
        let bodies = heads.split_off(len);
        let [heads, bodies] =
            [(rings.ring(), heads, 0), (rings.second(), bodies, receive::BODY)].map(|(ring, bufs, kind)| -> Buffers {
                let ring = hardware.ring(ring);
                let word = room as u64 | kind;
                for (n, (descriptor, &buf)) in ring.iter().zip(&bufs).enumerate() {
                    descriptor[0].store(addresses.locate(placement.data(buf)), Relaxed);
                    let generation = if n + 1 < bufs.len() { receive::GENERATION } else { 0 };
                    descriptor[1].store(word | generation, Release);
                }
                Buffers { ring, bufs, next: 0, word }
            });
        Ok(Vmxnet3Rx {
            completions: Completions { ring: hardware.ring(rings.completions()), next: 0 },
            rings: [heads, bodies],
            doorbells: [pt::RXPROD::at(queue), pt::RXPROD2::at(queue)].map(|register| hardware.pt.doorbell(register)),
            addresses,
            placement,
            room,
            longest,
            pool: pool.clone(),
            counters,
            partial: Vec::with_capacity(MAX_CHAIN),
            slots: 0,
            so_far: 0,
            first: 0,
            dropping: false,
            broken: false,
            interrupt: hardware.interrupts.get(usize::from(queue)).cloned(),
            queue,
            is_stopped: false,
            hardware: hardware.clone(),
            _reservation: reservation,
        })
    }

    /// Tells the device the descriptors that are the driver's.
    fn ring_doorbells(&self) {
        for (ring, doorbell) in self.rings.iter().zip(&self.doorbells).filter(|(ring, _)| !ring.bufs.is_empty()) {
            doorbell.ring((ring.next.wrapping_sub(1) & (ring.ring.len() - 1)) as u32);
        }
    }

    /// Takes the next buffer that the device has filled. Returns false if none can be taken now.
    fn take(&mut self, batch: &mut Batch) -> bool {
        // A full batch still takes the rest of a packet that it has begun.
        if batch.is_full() && !batch.ends_in_chain() {
            return false;
        }
        let Some([first, second]) = self.completions.peek() else { return false };
        let Some((which, passed)) = self.find(first) else {
            self.broken = true;
            self.counters.dropped();
            report_foreign(&self.hardware.config.name, "receive");
            return false;
        };
        // The device has passed over these, and does not use them: give them back as they are.
        (0..passed).for_each(|_| self.rings[which].refill(&self.addresses, self.placement));
        let (is_first, is_last) = (first & completion::SOP != 0, first & completion::EOP != 0);
        let len = (second & completion::LEN_MASK) as usize;
        if is_first {
            if batch.ends_in_chain() {
                batch.drop_partial(); // it has no end
                self.counters.dropped();
            }
            (self.slots, self.so_far, self.first, self.dropping) = (0, 0, first, false);
        }
        let is_possible = (1..=self.room).contains(&len)
            && second & completion::ERR == 0
            && is_first != batch.ends_in_chain()
            && is_first == (which == 0)
            && self.slots < MAX_CHAIN;
        let is_too_long = self.so_far + len > self.longest;
        if !self.dropping && (!is_possible || is_too_long) {
            self.dropping = true;
            batch.drop_partial();
            if is_possible { self.counters.missed(0, 1) } else { self.counters.dropped() }
        }
        if !self.dropping && !self.keep(batch, which, len, !is_last) {
            return false;
        }
        self.rings[which].refill(&self.addresses, self.placement);
        self.completions.next += 1;
        let is_delivered = is_last && !std::mem::take(&mut self.dropping);
        if is_delivered && self.hardware.config.options.metadata {
            batch.describe_last(&metadata(self.first, first, second));
        }
        true
    }

    /// Returns the ring of a completion's descriptor, and how many descriptors the device has passed over. Returns `None`
    /// if the descriptor is not the device's.
    #[inline(always)]
    fn find(&self, first: u64) -> Option<(usize, usize)> {
        let number = (first >> completion::QUEUE_SHIFT & completion::QUEUE_MASK) as u16;
        let which = [self.queue, self.queue + self.hardware.config.options.rx_queues];
        let which = which.into_iter().position(|ring| ring == number)?;
        let (ring, index) = (&self.rings[which], (first & completion::INDEX_MASK) as usize);
        let passed = index.wrapping_sub(ring.next) & (ring.ring.len() - 1);
        // One descriptor is always the driver's.
        (index < ring.bufs.len() && passed + 1 < ring.bufs.len()).then_some((which, passed))
    }

    /// Appends the buffer of a ring's next descriptor to the batch, and puts a free one in its place. Returns false if
    /// there is none.
    #[inline(always)]
    fn keep(&mut self, batch: &mut Batch, which: usize, len: usize, more: bool) -> bool {
        let Some(new) = batch.take_buffer() else {
            self.counters.found_no_buffer();
            return false;
        };
        let ring = &mut self.rings[which];
        let at = ring.at();
        // SAFETY: the device is done with the ring's buffer, which is of the batch's pool and replaced here; `len` is at
        // most the room. If the slot is not pushed, the fresh buffer goes back.
        unsafe {
            if !batch.push_slot(&self.pool, &mut self.placement.slot(ring.bufs[at], len as u16, more)) {
                batch.recycle(&[new]); // unreachable: a chain of MAX_CHAIN slots fits beyond the capacity
                return false;
            }
        }
        ring.bufs[at] = new;
        self.slots += 1;
        self.so_far += len;
        true
    }

    /// Stops the queue; further calls do nothing.
    fn halt(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        self.disarm();
        self.hardware.set_started(self.queue, false);
        let partial: Vec<u32> = self.partial.drain(..).map(|slot| slot.buf()).collect();
        // SAFETY: the buffers are of the queue's pool, and their slots were just removed.
        unsafe { self.pool.give(&partial) };
        let held = self.rings.each_mut().map(|ring| std::mem::take(&mut ring.bufs)).concat();
        self.hardware.release(&self.counters, &held)
    }
}

impl<B: Bar, L: Locate> Drop for Vmxnet3Rx<B, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

/// Returns the metadata of a packet: the hash is in its first completion, the verdict on checksums in its last.
fn metadata(first: u64, last: u64, second: u64) -> Metadata {
    let has = |bit: u64| second & bit != 0;
    let checksum = match has(completion::TCP) || has(completion::UDP) {
        _ if last & completion::CNC != 0 || has(completion::FRG) => Checksum::Unknown,
        _ if has(completion::V4) && !has(completion::IPC) => Checksum::Bad,
        true if has(completion::TUC) => Checksum::Good,
        true => Checksum::Bad,
        false => Checksum::Unknown,
    };
    let fields = match first >> completion::RSS_TYPE_SHIFT & completion::RSS_TYPE_MASK {
        1 => Some(HashFields::Ipv4),
        2 => Some(HashFields::TcpIpv4),
        3 => Some(HashFields::Ipv6),
        4 => Some(HashFields::TcpIpv6),
        _ => None,
    };
    let hash = fields.map(|fields| Hash { value: (first >> completion::RSS_HASH_SHIFT) as u32, fields });
    Metadata { checksum, hash, ..Metadata::default() }
}

/// A transmit queue.
pub(super) struct Vmxnet3Tx<B: Bar, L: Locate> {
    ring: Descriptors,
    bufs: Box<[u32]>,
    next: usize,
    /// The oldest descriptor that the device has not sent.
    clean: usize,
    completions: Completions,
    doorbell: B::Doorbell,
    addresses: L,
    longest: usize,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    /// The device returned a descriptor that it does not own; the queue sends no more packets.
    broken: bool,
    is_stopped: bool,
    hardware: Arc<Hardware<B>>,
}

impl<B: Bar, L: Locate> RegionTx for Vmxnet3Tx<B, L> {
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        self.reclaim(batch);
        let (before, mut taken) = (self.next, 0);
        while taken < batch.len() && !self.broken {
            match self.add(batch, taken) {
                0 => break,
                slots => taken += slots,
            }
        }
        batch.sent(taken);
        self.counters.moved(taken);
        if self.next != before {
            self.doorbell.ring((self.next & (self.ring.len() - 1)) as u32);
        }
        taken
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.next - self.clean
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar, L: Locate> Vmxnet3Tx<B, L> {
    /// Starts the queue.
    pub fn start(hardware: &Arc<Hardware<B>>, queue: u16, addresses: L) -> Result<Vmxnet3Tx<B, L>> {
        let counters = hardware.counters.claim_tx(&hardware.config, queue)?;
        let rings = Rings::tx(&hardware.config, queue);
        hardware.claim(|| {
            Ok(Vmxnet3Tx {
                ring: hardware.ring(rings.ring()),
                bufs: vec![0; hardware.config.ring()].into(),
                next: 0,
                clean: 0,
                completions: Completions { ring: hardware.ring(rings.completions()), next: 0 },
                doorbell: hardware.pt.doorbell(pt::TXPROD::at(queue)),
                addresses,
                longest: hardware.config.options.max_frame,
                pool: hardware.config.pool.clone(),
                counters,
                broken: false,
                is_stopped: false,
                hardware: hardware.clone(),
            })
        })
    }

    /// Returns the count of free descriptors. One is never used: the device would take a full ring for an empty one.
    fn free(&self) -> usize {
        self.ring.len() - 1 - (self.next - self.clean)
    }

    /// Gives the batch the buffers of all packets that the device has sent.
    fn reclaim(&mut self, batch: &mut Batch) {
        while let Some([first, _]) = self.completions.peek().filter(|_| !self.broken) {
            let (mask, index) = (self.ring.len() - 1, (first & completion::INDEX_MASK) as usize);
            let done = (index.wrapping_sub(self.clean) & mask) + 1;
            if index > mask || done > self.next - self.clean {
                self.broken = true;
                self.counters.dropped();
                return report_foreign(&self.hardware.config.name, "transmit");
            }
            for position in self.clean..self.clean + done {
                // SAFETY: the device is done with the buffer, which is of the batch's pool; `clean` advances past it.
                unsafe { batch.recycle(&[self.bufs[position & mask]]) };
            }
            self.clean += done;
            self.completions.next += 1;
        }
    }

    /// Adds the packet at slot `at` to the ring, or drops it if it cannot be sent. Returns the count of slots taken, 0 if
    /// the ring has no room.
    fn add(&mut self, batch: &mut Batch, at: usize) -> usize {
        let count = Slot::first_packet(&batch.slots()[at..]);
        if count <= transmit::MAX_TSO_DESCRIPTORS && count > self.free() {
            return 0;
        }
        let is_unfinished = batch.slots()[at].is_unfinished();
        let options = if is_unfinished { self.left_to_device(batch, at, count) } else { Some(0) };
        let finished = if options.is_some() { Finished::Done } else { batch.finish_packet(at) };
        if finished == Finished::NoRoom && at > 0 {
            return 0; // there is room when the packets before have left the batch
        }
        let slots = &batch.slots()[at..];
        let count = Slot::first_packet(slots);
        let slots = &slots[..count];
        let options = options.unwrap_or(0);
        let (longest, most) = match options & transmit::OM_TSO == transmit::OM_TSO {
            true => (LONGEST, transmit::MAX_TSO_DESCRIPTORS),
            false => (self.longest, transmit::MAX_DESCRIPTORS),
        };
        let length: usize = slots.iter().map(Slot::len).sum();
        let fits = slots.iter().all(|slot| (1..=MAX_LEN).contains(&slot.len()));
        if finished != Finished::Done || length > longest || count > most || !fits {
            self.counters.dropped();
            let bufs: Vec<u32> = slots.iter().map(Slot::buf).collect();
            // SAFETY: the caller counts these slots as sent, and the device does not get their buffers.
            unsafe { batch.recycle(&bufs) };
            return count;
        }
        if count > self.free() {
            return 0;
        }
        let (len, shift) = (self.ring.len(), self.pool.region().shift());
        // The first descriptor becomes the device's last, so that the device sees whole packets.
        for (n, slot) in slots.iter().enumerate().rev() {
            let position = self.next + n;
            let descriptor = &self.ring[position & (len - 1)];
            self.bufs[position & (len - 1)] = slot.buf();
            descriptor[0].store(self.addresses.locate(((slot.buf() as usize) << shift) + slot.offset()), Relaxed);
            let generation = if is_odd_round(position, len) { transmit::GENERATION } else { 0 };
            let options = if n == 0 { options } else { 0 };
            let end = if n + 1 == count { transmit::EOP | transmit::CQ } else { 0 };
            descriptor[1].store(slot.len() as u64 | generation | options | end, Release);
        }
        self.next += count;
        count
    }

    /// Returns the bits of the first descriptor of a packet of `count` slots, if the device can do its pending offloads.
    #[cold]
    fn left_to_device(&self, batch: &mut Batch, at: usize, count: usize) -> Option<u64> {
        // SAFETY: only bytes of headers change.
        let slots = unsafe { &mut batch.raw_slots()[at..at + count] };
        // SAFETY: the view is used only with slots of a batch of this pool.
        let view = unsafe { self.pool.region().view() };
        let left = Offload::of(&slots[0], view).filter(|left| left.is_needed() && left.is_accepted(&BY_DEVICE, 0))?;
        let length = slots.iter().map(Slot::len).sum();
        let first = view.bytes_mut(&mut slots[0]);
        if left.segmentation() == Segmentation::None {
            Headers::of_checksum(first, left)?;
            let (start, place) = left.checksum_offsets(first.len()).filter(|(_, at)| *at <= transmit::MAX_HEADERS)?;
            let offsets = (start as u64) << transmit::HEADERS_SHIFT | (place as u64) << transmit::CHECKSUM_SHIFT;
            return Some(transmit::OM_CSUM | offsets);
        }
        let headers = Headers::of(first, length, left)?;
        let Headers { network, len, size, is_v4, .. } = headers;
        let fits = len < length && len <= transmit::MAX_HEADERS && len + size <= self.longest;
        if !fits || count > transmit::MAX_TSO_DESCRIPTORS {
            return None;
        }
        // The pseudo header's sum has no length, but the IP header keeps its own (Linux's `vmxnet3_prepare_tso`).
        let place = if is_v4 { network + 2 } else { network + 4 };
        let kept = [first[place], first[place + 1]];
        headers.prepare_for_card(first);
        first[place..place + 2].copy_from_slice(&kept);
        Some(transmit::OM_TSO | (len as u64) << transmit::HEADERS_SHIFT | (size as u64) << transmit::MSS_SHIFT)
    }

    /// Stops the queue; further calls do nothing.
    fn halt(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        let mask = self.ring.len() - 1;
        let held: Vec<u32> = (self.clean..self.next).map(|position| self.bufs[position & mask]).collect();
        self.clean = self.next;
        self.hardware.release(&self.counters, &held)
    }
}

impl<B: Bar, L: Locate> Drop for Vmxnet3Tx<B, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

/// Logs that the device returned a descriptor that it does not own.
#[cold]
fn report_foreign(port: &str, direction: &str) {
    let _of_port = span_of(port).entered();
    tracing::warn!(
        "the device returned a descriptor that it does not own: a {direction} queue is stopped until the device is reset"
    );
}
