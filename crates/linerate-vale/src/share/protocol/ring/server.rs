//! The server's end of a client's rings.

use std::sync::atomic::Ordering::Release;

use linerate_core::memory::Mapping;

use super::{CLIENT_HEAD, MAX_FRAGS, NS_INDIRECT, NS_MOREFRAG, SERVER_TAIL, SharedRing, Slot};

/// The server's end of a client's transmit ring, from which it takes packets.
pub struct ServerTxRing {
    pub ring: SharedRing,
    pub(super) cur: usize,
    /// The client's head when it was last read.
    head: usize,
    /// Offset and length of each part of the packet at the front.
    pub parts: Vec<(usize, usize)>,
}

/// The server's end of a client's receive ring, into which it puts packets.
pub struct ServerRxRing {
    pub ring: SharedRing,
    tail: usize,
    /// The client's head when it was last read.
    head: usize,
}

/// What is at the front of a transmit ring.
pub enum Front {
    /// No slots, or an incomplete packet.
    None,
    /// A packet of `len` bytes, in `parts`, with the flags of its first slot.
    Packet { len: usize, flags: u16 },
    /// Slots that do not form a valid packet.
    Invalid { slots: usize },
}

impl ServerTxRing {
    /// Takes over a new client's ring, and frees all its slots.
    pub fn new(ring: SharedRing) -> ServerTxRing {
        let cur = ring.index(CLIENT_HEAD).unwrap_or(0);
        let consumer = ServerTxRing { ring, cur, head: cur, parts: Vec::with_capacity(MAX_FRAGS) };
        consumer.publish_tail();
        consumer
    }

    /// Returns the client's head, or an older value of it; `None` if the ring is empty. The client writes the head's
    /// cache line, so it is reread only once the ring is empty up to the last value.
    #[inline(always)]
    fn head(&mut self) -> Option<usize> {
        if self.cur == self.head {
            self.head = self.ring.index(CLIENT_HEAD)?;
        }
        (self.cur != self.head).then_some(self.head)
    }

    /// Prefetches the next `count` packets.
    #[inline(always)]
    pub fn prefetch(&mut self, count: usize) {
        if let Some(head) = self.head() {
            self.ring.prefetch(self.cur, head, count, Mapping::prefetch);
        }
    }

    /// Copies the packet at the front into `target` and advances past it. Returns its length and its slot's flags.
    /// Returns `None` if the packet is empty, is not in a single buffer, or does not fit into `target`.
    #[inline(always)]
    pub fn take_short(&mut self, target: &mut [u8]) -> Option<(usize, u16)> {
        self.head()?;
        let slot = self.ring.slot(self.cur);
        if slot.flags & (NS_MOREFRAG | NS_INDIRECT) != 0 || slot.len == 0 {
            return None;
        }
        let (at, len) = self.ring.bytes(self.cur, slot)?;
        self.ring.memory.mapping.read(at, target.get_mut(..len)?);
        self.advance(1);
        Some((len, slot.flags))
    }

    /// Returns the packet at the front.
    #[inline(always)]
    pub fn front(&mut self) -> Front {
        let Some(head) = self.ring.index(CLIENT_HEAD) else { return Front::None };
        self.head = head;
        if self.cur == head {
            return Front::None;
        }
        let (mut at, mut count, mut len, mut good, mut flags) = (self.cur, 0, 0, true, 0);
        self.parts.clear();
        loop {
            let slot = self.ring.slot(at);
            match self.ring.bytes_or_zone(at, slot) {
                Some(part) if count < MAX_FRAGS => self.parts.push(part),
                _ => good = false,
            }
            flags = if count == 0 { slot.flags } else { flags };
            count += 1;
            len += usize::from(slot.len);
            if !slot.has_more() {
                break;
            }
            at = self.ring.next(at);
            if at == head {
                // A packet that fills the whole ring can never be completed.
                return if count + 1 < self.ring.place.slots { Front::None } else { Front::Invalid { slots: count } };
            }
        }
        match good {
            true => Front::Packet { len, flags },
            false => Front::Invalid { slots: count },
        }
    }

    /// Advances past `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: usize) {
        self.cur = self.ring.ahead(self.cur, slots);
    }

    /// Publishes that the slots before `cur` are free.
    #[inline(always)]
    pub fn publish_tail(&self) {
        self.ring.free_up_to(self.cur);
    }

    /// Returns whether at most half of the ring still holds packets, as of the last read of the head.
    #[inline(always)]
    pub fn is_half_free(&self) -> bool {
        self.ring.distance(self.cur, self.head) <= self.ring.place.slots / 2
    }
}

impl ServerRxRing {
    /// Continues at the ring's published tail.
    pub fn new(ring: SharedRing) -> ServerRxRing {
        let tail = ring.index(SERVER_TAIL).unwrap_or(0);
        let head = ring.index(CLIENT_HEAD).unwrap_or(ring.next(tail));
        ServerRxRing { ring, tail, head }
    }

    /// Returns the number of free slots.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.ring.index(CLIENT_HEAD).map_or(0, |head| self.free_behind(head))
    }

    /// Returns the number of free slots if the client has released the slots before `head`.
    #[inline(always)]
    fn free_behind(&self, head: usize) -> usize {
        self.ring.place.slots - 1 - self.ring.distance(head, self.tail)
    }

    /// Returns whether `count` slots are free. The client writes the head's cache line, so the head is reread only if
    /// its last value does not suffice.
    #[inline(always)]
    pub fn has_room(&mut self, count: usize) -> bool {
        self.free_behind(self.head) >= count || {
            self.head = self.ring.index(CLIENT_HEAD).unwrap_or(self.head);
            self.free_behind(self.head) >= count
        }
    }

    /// Copies a packet into the next slot, if packets start at their buffer's first byte and this one fits. On false,
    /// the caller must use the general path (`recipient::put`).
    #[inline(always)]
    pub fn put_short(&mut self, bytes: &[u8]) -> bool {
        let memory = &self.ring.memory;
        let slot = self.ring.slot(self.tail);
        let Some(at) = memory.buffer(slot.buffer) else { return false };
        if bytes.len() > memory.buffers.size || self.ring.offset_mask != 0 || !self.has_room(1) {
            return false;
        }
        let ring = &self.ring;
        ring.memory.mapping.write(at, bytes);
        ring.set_slot(self.tail, Slot { buffer: slot.buffer, len: bytes.len() as u16, flags: 1 << 8 });
        self.advance(1);
        true
    }

    /// Prefetches the next `count` free slots.
    #[inline(always)]
    pub fn prefetch(&mut self, count: usize) {
        if self.has_room(count) {
            self.ring.prefetch(self.tail, self.ring.ahead(self.tail, count), count, Mapping::prefetch_write);
        }
    }

    /// Returns the client's head when it was last read.
    pub fn head(&self) -> usize {
        self.head
    }

    /// Returns the first free slot.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// Advances past `slots` filled slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: usize) {
        self.tail = self.ring.ahead(self.tail, slots);
    }

    /// Publishes the filled slots.
    #[inline(always)]
    pub fn publish_tail(&self) {
        self.publish_all_but(0);
    }

    /// Publishes the filled slots except the last `beginning`, which are the start of an incomplete packet.
    #[inline(always)]
    pub fn publish_all_but(&self, beginning: usize) {
        let tail = self.ring.ahead(self.tail, self.ring.place.slots - beginning);
        self.ring.state(SERVER_TAIL).store(tail as u32, Release);
    }
}
