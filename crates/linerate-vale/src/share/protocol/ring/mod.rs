//! A ring in shared memory, from both ends.
//!
//! It has netmap's layout (`struct netmap_ring`, netmap(4)): head, cur, tail, 16-byte slots. The program may write all
//! of that, including `sem`. The state that client and server exchange is stored before it, and changes only in a sync.
//! Its layout is that of netmap's CSB (`struct nm_csb_atok`, `struct nm_csb_ktoa`), with one cache line per direction:
//!
//! ```text
//!     client:    head        the client has released the slots before it
//!                tail        the tail that the program saw at the last sync
//!                lock        held by the thread that syncs
//!                waits       the client asks to be woken with a token, or a token was sent
//!     server:    hwtail      the slots before it belong to the client
//!                kick        the server asks to be woken with a token when the head moves
//!                full        packets that did not fit into a receive ring, and packets that were too long
//! ```
//!
//! All state of a ring is in the ring, so any process that maps the memory can continue where another one stopped.
//!
//! Neither end trusts the other. Each index must be inside the ring, and a slot's buffer and length inside the memory.
//! Both are read only once.
#![allow(unsafe_code)]

mod client;
mod server;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

pub use client::ClientRing;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Mapping, full_fence};
use serde::{Deserialize, Serialize};
pub use server::{Front, ServerRxRing, ServerTxRing};

use crate::share::protocol::mapping::SharedMapping;

// `struct netmap_ring`.
pub const BUF_OFS: usize = 0;
pub const NUM_SLOTS: usize = 8;
pub const NR_BUF_SIZE: usize = 12;
pub const RINGID_AND_DIR: usize = 16;
pub const HEAD: usize = 20;
pub const CUR: usize = 24;
pub const TAIL: usize = 28;
pub const FLAGS: usize = 32;
pub const TS: usize = 40;
pub const SLOTS: usize = 256;
/// Bytes of a slot: `struct netmap_slot`.
pub const SLOT: usize = 16;

/// Bytes before `struct netmap_ring`: `struct nm_csb_atok`, then `struct nm_csb_ktoa`, a cache line each.
pub const STATE: usize = 128;
const CLIENT_HEAD: usize = 0;
const CLIENT_TOKEN: usize = 8;
/// Packets that did not fit into a shadow.
const CLIENT_SHADOW_DROPS: usize = 12;
const CLIENT_TAIL: usize = 16;
const CLIENT_LOCK: usize = 20;
const SERVER_TAIL: usize = 64 + 4;
const SERVER_KICK: usize = 64 + 8;
/// The version of the shadow of the pipe that this ring sends into; 0: none.
const SERVER_SHADOW: usize = 64 + 12;
/// Offset of the ring of a zero-copy monitor, in units of 64 bytes; 0: none.
const SERVER_MONITOR: usize = 64 + 16;
/// Packets that did not fit into a receive ring, and packets that were too long for its port.
const SERVER_FULL: usize = 64 + 20;
const SERVER_TOO_LONG: usize = 64 + 24;
/// 1 in the rings of a pipe's end while a client has opened the other end.
const SERVER_OTHER_END: usize = 64 + 28;

// Values of `CLIENT_TOKEN`.
/// The client asks to be woken with a token when the tail moves.
const ARMED: u32 = 1;
/// A token was sent to the client, which has not read it yet.
const TOKEN_SENT: u32 = 2;

/// How long a thread waits for another thread to finish its sync of the same ring. After that, the other thread is
/// considered stopped or dead.
const SYNC_TIME: Duration = if cfg!(test) { TEST_TIME } else { Duration::from_millis(100) };
/// Tests use a longer time, because a thread may not be scheduled for long.
const TEST_TIME: Duration = if cfg!(miri) { Duration::from_secs(3600) } else { Duration::from_secs(1) };

/// `NS_BUF_CHANGED`, `NS_FORWARD`, `NS_NO_LEARN`, `NS_INDIRECT`, `NS_MOREFRAG`, `NS_TXMON`.
pub const NS_BUF_CHANGED: u16 = 1;
pub const NS_FORWARD: u16 = 4;
pub const NS_NO_LEARN: u16 = 8;
pub const NS_INDIRECT: u16 = 0x10;
pub const NS_MOREFRAG: u16 = 0x20;
pub const NS_TXMON: u16 = 0x40;
/// Field of a ring: the bits of a slot's last word that hold an offset (`offset_mask`; the next field is `buf_align`).
pub const OFFSET_MASK: usize = 56;
/// The most slots of a packet (`NETMAP_MAX_FRAGS`).
pub const MAX_FRAGS: usize = 64;

/// The location of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAt {
    /// Offset in the memory, in bytes. The [`STATE`] bytes before it also belong to the ring.
    pub at: usize,
    /// Number of slots.
    pub slots: usize,
    /// Offset of the zone for packets outside all buffers (`NS_INDIRECT`), 65,536 bytes per slot; 0: none.
    pub zone: usize,
}

/// Bytes of a zone per slot.
pub const ZONE: usize = 65_536;

/// A copy of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub buffer: u32,
    pub len: u16,
    pub flags: u16,
}

impl Slot {
    pub fn has_more(self) -> bool {
        self.flags & NS_MOREFRAG != 0
    }
}

/// A ring that was validated to be inside its memory.
#[derive(Clone)]
pub struct SharedRing {
    pub memory: Arc<SharedMapping>,
    pub place: RingAt,
    /// The bits of a slot's last word that hold the packet's offset in its buffer; 0: packets start at their buffer's
    /// first byte.
    pub offset_mask: u64,
}

impl SharedRing {
    /// Checks that the ring is inside the memory.
    ///
    /// # Errors
    /// [`ErrorKind::BadPeer`](linerate_core::ErrorKind::BadPeer) if it is not.
    pub fn new(memory: &Arc<SharedMapping>, place: RingAt) -> Result<SharedRing> {
        let end = place.slots.checked_mul(SLOT).and_then(|len| len.checked_add(SLOTS)?.checked_add(place.at));
        let zone = if place.zone == 0 { 0 } else { place.slots.saturating_mul(ZONE).saturating_add(place.zone) };
        let fits = end.is_some_and(|end| end <= memory.mapping.len()) && zone <= memory.mapping.len();
        if !fits
            || !place.zone.is_multiple_of(64)
            || !(2..=65536).contains(&place.slots)
            || !place.at.is_multiple_of(64)
            || place.at < STATE
        {
            return Err(Error::bad_peer("its ring is outside its memory"));
        }
        Ok(SharedRing { memory: memory.clone(), place, offset_mask: 0 })
    }

    #[inline(always)]
    pub fn word(&self, field: usize) -> &AtomicU32 {
        self.memory.mapping.word(self.place.at + field)
    }

    /// Returns a word of the state that client and server exchange.
    #[inline(always)]
    fn state(&self, field: usize) -> &AtomicU32 {
        self.memory.mapping.word(self.place.at - STATE + field)
    }

    /// Returns the two words of a slot: first the buffer, length and flags, then the pointer.
    #[inline(always)]
    fn words(&self, number: usize) -> &[AtomicU64] {
        // SAFETY: no slice to this memory exists, because another process can write it.
        unsafe { self.memory.mapping.words(self.place.at + SLOTS + number * SLOT, 2) }
    }

    /// Stores the time of the last sync, in seconds and microseconds.
    #[inline(always)]
    pub fn set_time(&self, now: Duration) {
        // SAFETY: as in `words`.
        let words = unsafe { self.memory.mapping.words(self.place.at + TS, 2) };
        words[0].store(now.as_secs(), Relaxed);
        words[1].store(now.subsec_micros().into(), Relaxed);
    }

    #[inline(always)]
    pub fn slot(&self, number: usize) -> Slot {
        let word = self.words(number)[0].load(Relaxed);
        Slot { buffer: word as u32, len: (word >> 32) as u16, flags: (word >> 48) as u16 }
    }

    #[inline(always)]
    pub fn set_slot(&self, number: usize, slot: Slot) {
        let word = u64::from(slot.buffer) | u64::from(slot.len) << 32 | u64::from(slot.flags) << 48;
        self.words(number)[0].store(word, Relaxed);
    }

    /// Copies both words of another ring's slot.
    #[inline(always)]
    pub fn copy_slot(&self, from: &SharedRing, number: usize) {
        for (ours, theirs) in self.words(number).iter().zip(from.words(number)) {
            ours.store(theirs.load(Relaxed), Relaxed);
        }
    }

    /// Returns a slot's pointer: the address of bytes outside all buffers, or the packet's offset in its buffer.
    pub fn pointer(&self, number: usize) -> u64 {
        self.words(number)[1].load(Relaxed)
    }

    /// Stores when the packet in these slots arrived, in nanoseconds since 1970. Called by the server. Without an
    /// offset mask, the pointer of a received slot has no other use.
    #[inline(always)]
    pub fn set_time_of(&self, first: usize, nanoseconds: u64) {
        if self.offset_mask == 0 {
            self.words(first)[1].store(nanoseconds, Relaxed);
        }
    }

    /// Returns the offset of a slot's packet in its buffer. The offset is not validated and may be outside the buffer.
    #[inline(always)]
    pub fn offset(&self, number: usize) -> usize {
        if self.offset_mask == 0 { 0 } else { (self.pointer(number) & self.offset_mask) as usize }
    }

    /// Sets the offset of a slot's packet in its buffer.
    pub fn set_offset(&self, number: usize, offset: usize) {
        let pointer = self.pointer(number) & !self.offset_mask | offset as u64 & self.offset_mask;
        self.words(number)[1].store(pointer, Relaxed);
    }

    #[inline(always)]
    pub fn next(&self, slot: usize) -> usize {
        if slot + 1 >= self.place.slots { 0 } else { slot + 1 }
    }

    /// Returns the slot that is `count` after `slot`; `count` is at most the ring's size.
    #[inline(always)]
    pub fn ahead(&self, slot: usize, count: usize) -> usize {
        let slot = slot + count;
        if slot >= self.place.slots { slot - self.place.slots } else { slot }
    }

    pub fn previous(&self, slot: usize) -> usize {
        if slot == 0 { self.place.slots - 1 } else { slot - 1 }
    }

    #[inline(always)]
    pub fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.place.slots - from }
    }

    /// Returns the location and length of a slot's bytes; `None` if they are not inside a buffer.
    #[inline(always)]
    pub fn bytes(&self, number: usize, slot: Slot) -> Option<(usize, usize)> {
        let (at, offset) = (self.memory.buffer(slot.buffer)?, self.offset(number));
        let end = offset.checked_add(slot.len.into())?;
        (end <= self.memory.buffers.size).then_some((at + offset, slot.len.into()))
    }

    /// Returns the locations of the buffers of the slots before `end`.
    #[inline(always)]
    fn buffers(&self, from: usize, end: usize) -> impl Iterator<Item = usize> {
        let mut slot = from;
        std::iter::from_fn(move || {
            let at = (slot != end).then(|| self.memory.buffer(self.slot(slot).buffer))?;
            slot = self.next(slot);
            at
        })
    }

    /// Prefetches the slots from `from` to `end`, at most `count`, and then the first cache line of their buffers.
    /// `line` is [`Mapping::prefetch`] or [`Mapping::prefetch_write`].
    #[inline(always)]
    pub fn prefetch(&self, from: usize, end: usize, count: usize, line: impl Fn(&Mapping, usize)) {
        let mapping = &self.memory.mapping;
        self.lines(from, count.min(self.distance(from, end))).for_each(|at| line(mapping, at));
        self.buffers(from, end).take(count).for_each(|at| line(mapping, at));
    }

    /// Returns the locations of the cache lines of `count` slots.
    #[inline(always)]
    fn lines(&self, from: usize, count: usize) -> impl Iterator<Item = usize> {
        (0..count).step_by(64 / SLOT).map(move |n| self.place.at + SLOTS + self.ahead(from, n) * SLOT)
    }

    /// Returns the location of a slot's part of the zone (`NS_INDIRECT`).
    pub fn zone(&self, number: usize) -> Option<usize> {
        (self.place.zone != 0).then(|| self.place.zone + number * ZONE)
    }

    /// As [`bytes`](SharedRing::bytes), but also for a packet that the client copied into the slot's zone
    /// (`NS_INDIRECT`).
    #[inline(always)]
    fn bytes_or_zone(&self, number: usize, slot: Slot) -> Option<(usize, usize)> {
        match slot.flags & NS_INDIRECT {
            0 => self.bytes(number, slot),
            _ => Some((self.zone(number)?, slot.len.into())),
        }
    }

    /// Asks the client to wake the server with a token when the head moves. Called by the server, which must then check
    /// the head once more.
    pub fn arm_server(&self) {
        self.state(SERVER_KICK).store(1, SeqCst);
        full_fence();
    }

    /// Returns whether the server has asked to be woken with a token, and clears the request. Called by the client.
    #[inline(always)]
    fn must_wake_server(&self) -> bool {
        full_fence();
        self.state(SERVER_KICK).load(Relaxed) != 0 && self.state(SERVER_KICK).swap(0, SeqCst) != 0
    }

    /// Returns whether the client has asked to be woken, and records that a token is sent. Called by the server.
    #[inline(always)]
    pub fn must_wake_client(&self) -> bool {
        full_fence();
        let token = self.state(CLIENT_TOKEN);
        token.load(Relaxed) == ARMED && token.compare_exchange(ARMED, TOKEN_SENT, SeqCst, Relaxed).is_ok()
    }

    /// Returns whether the ring has slots for the client and the client has asked to be woken; records that a token is
    /// sent. Called by the server.
    #[inline(always)]
    pub fn must_notify_client(&self) -> bool {
        self.published() != self.released() && self.must_wake_client()
    }

    /// Returns whether the client has asked to be woken with a token.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        full_fence();
        self.state(CLIENT_TOKEN).load(Relaxed) == ARMED
    }

    /// Returns the version of the shadow of the pipe that this ring sends into; 0: none.
    #[inline(always)]
    pub fn shadow(&self) -> u32 {
        self.state(SERVER_SHADOW).load(Acquire)
    }

    pub fn set_shadow(&self, shadow: u32) {
        self.state(SERVER_SHADOW).store(shadow, Release);
    }

    /// Returns the number of packets that did not fit into the shadow, modulo 2^32.
    pub fn shadow_drops(&self) -> u32 {
        self.state(CLIENT_SHADOW_DROPS).load(Relaxed)
    }

    pub fn count_shadow_drop(&self) {
        self.state(CLIENT_SHADOW_DROPS).fetch_add(1, Relaxed);
    }

    /// Returns the number of packets that did not fit into the ring, and of those that were too long for its port. Both
    /// are modulo 2^32. Called by the client.
    #[inline(always)]
    pub fn dropped(&self) -> [u32; 2] {
        [SERVER_FULL, SERVER_TOO_LONG].map(|field| self.state(field).load(Relaxed))
    }

    /// Adds to the numbers that [`dropped`](SharedRing::dropped) returns. Called by the server.
    #[cold]
    pub fn add_dropped(&self, full: u64, too_long: u64) {
        self.state(SERVER_FULL).fetch_add(full as u32, Relaxed);
        self.state(SERVER_TOO_LONG).fetch_add(too_long as u32, Relaxed);
    }

    /// Returns whether a client has opened the pipe's other end. Called by the client.
    pub fn is_other_end_open(&self) -> bool {
        self.state(SERVER_OTHER_END).load(Relaxed) != 0
    }

    /// Stores for the clients of one end whether the pipe's other end is open. Called by the server.
    pub fn set_other_end_open(&self, is_open: bool) {
        self.state(SERVER_OTHER_END).store(is_open.into(), Relaxed);
    }

    /// Returns the ring of this ring's zero-copy monitor.
    #[inline(always)]
    pub fn monitor(&self) -> Option<SharedRing> {
        match self.state(SERVER_MONITOR).load(Acquire) {
            0 => None,
            at => self.monitor_at(at),
        }
    }

    #[cold]
    fn monitor_at(&self, at: u32) -> Option<SharedRing> {
        let at = at as usize * 64;
        let place = RingAt { at, slots: 2, zone: 0 };
        let slots = SharedRing::new(&self.memory, place).ok()?.word(NUM_SLOTS).load(Relaxed) as usize;
        SharedRing::new(&self.memory, RingAt { slots, ..place }).ok()
    }

    /// Sets or clears the zero-copy monitor of this ring.
    pub fn set_monitor(&self, monitor: Option<&SharedRing>) {
        self.state(SERVER_MONITOR).store(monitor.map_or(0, |ring| (ring.place.at / 64) as u32), Release);
    }

    /// Returns the client's head: it has released the slots of a receive ring before it.
    #[inline(always)]
    pub fn released(&self) -> usize {
        self.index(CLIENT_HEAD).unwrap_or(0)
    }

    /// Returns the server's tail: the slots before it belong to the client.
    #[inline(always)]
    pub fn published(&self) -> usize {
        self.index(SERVER_TAIL).unwrap_or(0)
    }

    /// Publishes the whole packets of a receive ring before `head`, which may be followed by the beginning of another
    /// packet. A packet that fills the whole ring is published in parts, because otherwise it could never pass.
    #[inline(always)]
    pub fn publish_packets(&self, head: usize) {
        let mut complete = self.published();
        let is_full = self.distance(complete, head) + 1 >= self.place.slots;
        let mut at = complete;
        while at != head {
            let has_more = self.slot(at).has_more();
            at = self.next(at);
            complete = if has_more { complete } else { at };
        }
        self.state(SERVER_TAIL)
            .store(if is_full && complete == self.published() { head } else { complete } as u32, Release);
    }

    /// Returns the slots of a transmit ring before `slot` to the client.
    #[inline(always)]
    fn free_up_to(&self, slot: usize) {
        self.state(SERVER_TAIL).store(self.previous(slot) as u32, Release);
    }

    /// Returns an index that the other end wrote; `None` if it is outside the ring.
    #[inline(always)]
    fn index(&self, field: usize) -> Option<usize> {
        let index = self.state(field).load(Acquire) as usize;
        (index < self.place.slots).then_some(index)
    }
}
