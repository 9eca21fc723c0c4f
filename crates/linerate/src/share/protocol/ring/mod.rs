//! A ring in shared memory, from both sides.
//!
//! It is netmap's (`struct netmap_ring`, netmap(4)): head, cur, tail, slots of 16 bytes. Those are the program's to play
//! with, `sem` included. What the two sides tell each other stands in front of that, in the form that netmap has for it where
//! programs ask for it (`struct nm_csb_atok`, `struct nm_csb_ktoa`), a cache line for each direction, and moves in a sync
//! only:
//!
//! ```text
//!     program:   head        up to where it has released slots
//!                tail        the tail that its last sync has shown it
//!                lock        held by the thread that syncs
//!                waits       whether a token is wanted, or on its way
//!     server:    hwtail      up to where slots are the program's
//!                kick        whether the server wants a token when head has moved
//! ```
//!
//! All of a ring's state is in the ring: any process that has the memory can go on where another one was.
//!
//! Neither side trusts the other: an index counts if it is in the ring, a slot if its buffer and length are inside the
//! memory, and both are read once.
#![allow(unsafe_code)]

mod client;
mod server;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::memory::{Mapping, full_fence};
use crate::share::protocol::mapping::SharedMapping;

pub use client::ClientRing;
pub use server::{Front, ServerRxRing, ServerTxRing};

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

/// Bytes in front of `struct netmap_ring`: `struct nm_csb_atok`, then `struct nm_csb_ktoa`, a cache line each.
pub const STATE: usize = 128;
const CLIENT_HEAD: usize = 0;
const CLIENT_WAITS: usize = 8;
/// Packets of a shadow that found no room.
const CLIENT_LOST: usize = 12;
const CLIENT_TAIL: usize = 16;
const CLIENT_LOCK: usize = 20;
const SERVER_TAIL: usize = 64 + 4;
const SERVER_WAITS: usize = 64 + 8;
/// Which shadow the pipe has that this ring sends into; 0: none.
const SERVER_SHADOW: usize = 64 + 12;
/// Where the ring of a zero-copy monitor is, in units of 64 bytes; 0: there is none.
const SERVER_MONITOR: usize = 64 + 16;

// Values of `PROGRAM_WAITS`.
/// A token is wanted when tail moves.
const ARMED: u32 = 1;
/// A token is on its way, or waits to be read.
const TOKEN_SENT: u32 = 2;

/// How long a thread waits for another one's sync of the same ring; then that thread is taken for stopped, or dead.
const SYNC_TIME: Duration = if cfg!(test) { TEST_TIME } else { Duration::from_millis(100) };
/// In tests, where threads may have no processor for long.
const TEST_TIME: Duration = if cfg!(miri) { Duration::from_secs(3600) } else { Duration::from_secs(1) };

/// `NS_BUF_CHANGED`, `NS_FORWARD`, `NS_NO_LEARN`, `NS_INDIRECT`, `NS_MOREFRAG`, `NS_TXMON`.
pub const NS_BUF_CHANGED: u16 = 1;
pub const NS_FORWARD: u16 = 4;
pub const NS_NO_LEARN: u16 = 8;
pub const NS_INDIRECT: u16 = 0x10;
pub const NS_MOREFRAG: u16 = 0x20;
pub const NS_TXMON: u16 = 0x40;
/// Where a ring says which part of a slot's last word is an offset, and how packets begin (`offset_mask`, `buf_align`).
pub const OFFSET_MASK: usize = 56;
/// How many slots a packet has at most (`NETMAP_MAX_FRAGS`).
pub const MAX_FRAGS: usize = 64;

/// Where a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAt {
    /// In bytes from the memory's beginning; [`STATE`] bytes in front are its as well.
    pub at: usize,
    /// How many slots it has.
    pub slots: usize,
    /// Where packets that are in no buffer are put (`NS_INDIRECT`), 65,536 bytes for each slot; 0: nowhere.
    pub zone: usize,
}

/// Bytes of a slot's part of a zone.
pub const ZONE: usize = 65_536;

/// A slot, as it was when it was read.
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

/// A ring that is inside its memory.
#[derive(Clone)]
pub struct Ring {
    pub memory: Arc<SharedMapping>,
    pub place: RingAt,
    /// Of a slot's last word, what tells where in the buffer a packet begins; 0 if it begins where that does.
    pub offset_mask: u64,
}

impl Ring {
    /// # Errors
    /// [`Error::BadPeer`] if it is outside the memory.
    pub fn new(memory: &Arc<SharedMapping>, place: RingAt) -> Result<Ring> {
        let end = place.slots.checked_mul(SLOT).and_then(|len| len.checked_add(SLOTS)?.checked_add(place.at));
        let zone = if place.zone == 0 { 0 } else { place.slots.saturating_mul(ZONE).saturating_add(place.zone) };
        let fits = end.is_some_and(|end| end <= memory.mapping.len()) && zone <= memory.mapping.len();
        if !fits
            || !place.zone.is_multiple_of(64)
            || !(2..=65536).contains(&place.slots)
            || !place.at.is_multiple_of(64)
            || place.at < STATE
        {
            return Err(Error::BadPeer { why: "its ring is outside its memory" });
        }
        Ok(Ring { memory: memory.clone(), place, offset_mask: 0 })
    }

    #[inline(always)]
    pub fn word(&self, field: usize) -> &AtomicU32 {
        self.memory.mapping.word(self.place.at + field)
    }

    /// A word of what the two sides tell each other.
    #[inline(always)]
    fn state(&self, field: usize) -> &AtomicU32 {
        self.memory.mapping.word(self.place.at - STATE + field)
    }

    /// The two words of a slot: what it is, and its pointer.
    #[inline(always)]
    fn words(&self, number: usize) -> &[AtomicU64] {
        // SAFETY: memory that another process can write is never lent as a slice.
        unsafe { self.memory.mapping.words(self.place.at + SLOTS + number * SLOT, 2) }
    }

    /// Notes when the ring was synced last, in seconds and microseconds.
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

    /// Copies a slot of another ring, all of it.
    #[inline(always)]
    pub fn copy_slot(&self, from: &Ring, number: usize) {
        for (ours, theirs) in self.words(number).iter().zip(from.words(number)) {
            ours.store(theirs.load(Relaxed), Relaxed);
        }
    }

    /// A slot's pointer: of bytes that are in no buffer, or where in its buffer a packet begins.
    pub fn pointer(&self, number: usize) -> u64 {
        self.words(number)[1].load(Relaxed)
    }

    /// Where in its buffer a slot's packet begins, as it says: beyond the buffer, perhaps.
    #[inline(always)]
    pub fn offset(&self, number: usize) -> usize {
        if self.offset_mask == 0 { 0 } else { (self.pointer(number) & self.offset_mask) as usize }
    }

    /// Says so.
    pub fn set_offset(&self, number: usize, offset: usize) {
        let pointer = self.pointer(number) & !self.offset_mask | offset as u64 & self.offset_mask;
        self.words(number)[1].store(pointer, Relaxed);
    }

    #[inline(always)]
    pub fn next(&self, slot: usize) -> usize {
        if slot + 1 >= self.place.slots { 0 } else { slot + 1 }
    }

    /// Returns the slot `count` slots behind `slot`; `count` is at most the ring's size.
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

    /// A slot's bytes: where they are and how many; `None` if they are in no buffer.
    #[inline(always)]
    pub fn bytes(&self, number: usize, slot: Slot) -> Option<(usize, usize)> {
        let (at, offset) = (self.memory.buffer(slot.buffer)?, self.offset(number));
        let end = offset.checked_add(slot.len.into())?;
        (end <= self.memory.buffers.size).then_some((at + offset, slot.len.into()))
    }

    /// Returns where the buffers of the slots in front of `end` are.
    #[inline(always)]
    fn buffers(&self, from: usize, end: usize) -> impl Iterator<Item = usize> {
        let mut slot = from;
        std::iter::from_fn(move || {
            let at = (slot != end).then(|| self.memory.buffer(self.slot(slot).buffer))?;
            slot = self.next(slot);
            at
        })
    }

    /// Prefetches the slots from `from` to in front of `end`, at most `count`, and then their buffers' first lines, by
    /// [`Mapping::prefetch`] or [`Mapping::prefetch_write`].
    #[inline(always)]
    pub fn prefetch(&self, from: usize, end: usize, count: usize, line: impl Fn(&Mapping, usize)) {
        let mapping = &self.memory.mapping;
        self.lines(from, count.min(self.distance(from, end))).for_each(|at| line(mapping, at));
        self.buffers(from, end).take(count).for_each(|at| line(mapping, at));
    }

    /// Returns where the cache lines of `count` slots are.
    #[inline(always)]
    fn lines(&self, from: usize, count: usize) -> impl Iterator<Item = usize> {
        (0..count).step_by(64 / SLOT).map(move |n| self.place.at + SLOTS + self.ahead(from, n) * SLOT)
    }

    /// Returns where a slot's packets are put that are in no buffer (`NS_INDIRECT`).
    pub fn zone(&self, number: usize) -> Option<usize> {
        (self.place.zone != 0).then(|| self.place.zone + number * ZONE)
    }

    /// As [`bytes`](Ring::bytes), where the program may have fetched the packet into the slot's zone (`NS_INDIRECT`).
    #[inline(always)]
    fn bytes_or_zone(&self, number: usize, slot: Slot) -> Option<(usize, usize)> {
        match slot.flags & NS_INDIRECT {
            0 => self.bytes(number, slot),
            _ => Some((self.zone(number)?, slot.len.into())),
        }
    }

    /// As the server: from now on the program sends a token when head moves. Look once more after this.
    pub fn arm_server(&self) {
        self.state(SERVER_WAITS).store(1, SeqCst);
        full_fence();
    }

    /// As the program: true once if the server wants a token.
    #[inline(always)]
    fn must_wake_server(&self) -> bool {
        full_fence();
        self.state(SERVER_WAITS).load(Relaxed) != 0 && self.state(SERVER_WAITS).swap(0, SeqCst) != 0
    }

    /// As the server: true once if the program wants a token.
    #[inline(always)]
    pub fn must_wake_client(&self) -> bool {
        full_fence();
        let waits = self.state(CLIENT_WAITS);
        waits.load(Relaxed) == ARMED && waits.compare_exchange(ARMED, TOKEN_SENT, SeqCst, Relaxed).is_ok()
    }

    /// As the server: true once if the ring has slots for the program, and it waits to be told of them.
    #[inline(always)]
    pub fn must_notify_client(&self) -> bool {
        self.published() != self.released() && self.must_wake_client()
    }

    /// Returns whether the program wants a token.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        full_fence();
        self.state(CLIENT_WAITS).load(Relaxed) == ARMED
    }

    /// Which shadow the pipe has.
    #[inline(always)]
    pub fn shadow(&self) -> u32 {
        self.state(SERVER_SHADOW).load(Acquire)
    }

    pub fn set_shadow(&self, shadow: u32) {
        self.state(SERVER_SHADOW).store(shadow, Release);
    }

    /// How many packets found no room, modulo 2^32.
    pub fn lost(&self) -> u32 {
        self.state(CLIENT_LOST).load(Relaxed)
    }

    pub fn lose(&self) {
        self.state(CLIENT_LOST).fetch_add(1, Relaxed);
    }

    /// Returns the ring of this ring's zero-copy monitor.
    #[inline(always)]
    pub fn monitor(&self) -> Option<Ring> {
        match self.state(SERVER_MONITOR).load(Acquire) {
            0 => None,
            at => self.monitor_at(at),
        }
    }

    #[cold]
    fn monitor_at(&self, at: u32) -> Option<Ring> {
        let at = at as usize * 64;
        let place = RingAt { at, slots: 2, zone: 0 };
        let slots = Ring::new(&self.memory, place).ok()?.word(NUM_SLOTS).load(Relaxed) as usize;
        Ring::new(&self.memory, RingAt { slots, ..place }).ok()
    }

    /// From now on this ring has a zero-copy monitor, or none.
    pub fn set_monitor(&self, monitor: Option<&Ring>) {
        self.state(SERVER_MONITOR).store(monitor.map_or(0, |ring| (ring.place.at / 64) as u32), Release);
    }

    /// Returns up to where the program of a receive ring has released slots.
    #[inline(always)]
    pub fn released(&self) -> usize {
        self.index(CLIENT_HEAD).unwrap_or(0)
    }

    /// Returns up to where slots are the program's.
    #[inline(always)]
    pub fn published(&self) -> usize {
        self.index(SERVER_TAIL).unwrap_or(0)
    }

    /// Publishes the whole packets of a receive ring in front of `head`; what comes behind them has no end yet. A packet that
    /// fills the ring alone is published in parts, or it would never pass.
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

    /// Slots of a transmit ring are the program's again, up to this one.
    #[inline(always)]
    fn free_up_to(&self, slot: usize) {
        self.state(SERVER_TAIL).store(self.previous(slot) as u32, Release);
    }

    /// An index that the other side has written, if it is one.
    #[inline(always)]
    fn index(&self, field: usize) -> Option<usize> {
        let index = self.state(field).load(Acquire) as usize;
        (index < self.place.slots).then_some(index)
    }
}
