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

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::memory::{Mapping, full_fence};
use crate::share::protocol::mapping::Memory;

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
const PROGRAM_HEAD: usize = 0;
const PROGRAM_WAITS: usize = 8;
/// Packets of a shadow that found no room.
const PROGRAM_LOST: usize = 12;
const PROGRAM_TAIL: usize = 16;
const PROGRAM_LOCK: usize = 20;
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
const RUNG: u32 = 2;

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
pub struct Place {
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
    pub memory: Arc<Memory>,
    pub place: Place,
    /// Of a slot's last word, what tells where in the buffer a packet begins; 0 if it begins where that does.
    pub offset_mask: u64,
}

impl Ring {
    /// # Errors
    /// [`Error::BadPeer`] if it is outside the memory.
    pub fn new(memory: &Arc<Memory>, place: Place) -> Result<Ring> {
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
    pub fn wait_for_program(&self) {
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
    pub fn must_wake_program(&self) -> bool {
        full_fence();
        let waits = self.state(PROGRAM_WAITS);
        waits.load(Relaxed) == ARMED && waits.compare_exchange(ARMED, RUNG, SeqCst, Relaxed).is_ok()
    }

    /// As the server: true once if the ring has slots for the program, and it waits to be told of them.
    #[inline(always)]
    pub fn must_tell_program(&self) -> bool {
        self.published() != self.released() && self.must_wake_program()
    }

    /// Returns whether the program wants a token.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        full_fence();
        self.state(PROGRAM_WAITS).load(Relaxed) == ARMED
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
        self.state(PROGRAM_LOST).load(Relaxed)
    }

    pub fn lose(&self) {
        self.state(PROGRAM_LOST).fetch_add(1, Relaxed);
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
        let place = Place { at, slots: 2, zone: 0 };
        let slots = Ring::new(&self.memory, place).ok()?.word(NUM_SLOTS).load(Relaxed) as usize;
        Ring::new(&self.memory, Place { slots, ..place }).ok()
    }

    /// From now on this ring has a zero-copy monitor, or none.
    pub fn set_monitor(&self, monitor: Option<&Ring>) {
        self.state(SERVER_MONITOR).store(monitor.map_or(0, |ring| (ring.place.at / 64) as u32), Release);
    }

    /// Returns up to where the program of a receive ring has released slots.
    #[inline(always)]
    pub fn released(&self) -> usize {
        self.index(PROGRAM_HEAD).unwrap_or(0)
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

/// A thread's turn to sync a ring. Dropping it ends the turn.
pub struct Turn<'a> {
    lock: &'a AtomicU32,
    /// The lock's value meanwhile: an odd number.
    held: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Another thread may have taken it over.
        let _ = self.lock.compare_exchange(self.held, self.held.wrapping_add(1), Release, Relaxed);
    }
}

/// The program's side. It has no state but the ring's: threads and processes that share the port take turns.
#[derive(Clone)]
pub struct Program {
    pub ring: Ring,
}

impl Program {
    /// The side of a program that opens the port: its head and cur are where the last one's were.
    pub fn begin(ring: Ring) -> Program {
        let program = Program { ring };
        program.set(program.head() as u32, program.head() as u32);
        program.learn();
        program
    }

    /// Sets head and cur, regardless of the last program's values.
    pub fn restart(&self, head: usize) {
        self.ring.state(PROGRAM_HEAD).store(head as u32, Release);
        self.set(head as u32, head as u32);
    }

    /// Waits for the ring's turn, and takes it. `None` if another thread has it for longer than any sync takes and goes on
    /// with others: then this sync is left out, as netmap does where a ring is busy.
    ///
    /// A thread that was stopped or killed in its turn loses it.
    #[inline(always)]
    pub fn turn(&self) -> Option<Turn<'_>> {
        let lock = self.ring.state(PROGRAM_LOCK);
        let free = lock.load(Relaxed);
        let held = free.wrapping_add(1);
        if free & 1 == 0 && lock.compare_exchange(free, held, Acquire, Relaxed).is_ok() {
            return Some(Turn { lock, held });
        }
        self.wait_for_turn()
    }

    #[cold]
    fn wait_for_turn(&self) -> Option<Turn<'_>> {
        let (lock, begin) = (self.ring.state(PROGRAM_LOCK), Instant::now());
        let first = lock.load(Relaxed);
        loop {
            let now = lock.load(Relaxed);
            let is_late = begin.elapsed() > SYNC_TIME;
            let held = if now & 1 == 0 { now.wrapping_add(1) } else { now.wrapping_add(2) };
            // It is free; or the thread that has it has had it all the time.
            if (now & 1 == 0 || is_late && now == first) && lock.compare_exchange(now, held, Acquire, Relaxed).is_ok() {
                return Some(Turn { lock, held });
            }
            if is_late {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Publishes the program's head; true if it has moved.
    ///
    /// # Errors
    /// [`Error::BadRing`] if head or cur are not where they can be; both are set back then.
    #[inline(always)]
    pub fn tell(&self) -> Result<bool> {
        let (head, cur) = (self.ring.word(HEAD).load(Relaxed) as usize, self.ring.word(CUR).load(Relaxed) as usize);
        let before = self.head();
        if head != before || cur != before {
            let (slots, tail) = (self.ring.place.slots, self.tail());
            let most = self.ring.distance(before, tail);
            if head >= slots || cur >= slots || self.ring.distance(before, head) > most {
                return Err(self.set_back());
            }
            if self.ring.distance(head, cur) > self.ring.distance(head, tail) {
                return Err(self.set_back());
            }
        }
        self.ring.state(PROGRAM_HEAD).store(head as u32, Release);
        Ok(head != before)
    }

    #[cold]
    fn set_back(&self) -> Error {
        self.set(self.head() as u32, self.head() as u32);
        self.ring.word(TAIL).store(self.tail() as u32, Relaxed);
        Error::BadRing
    }

    /// Returns where the program has its head, if that is in the ring; otherwise where it was.
    pub fn wanted_head(&self) -> usize {
        let head = self.ring.word(HEAD).load(Relaxed) as usize;
        if head < self.ring.place.slots { head } else { self.head() }
    }

    /// Returns how many slots the program has released since the last sync; 0 if that cannot be.
    pub fn released(&self) -> usize {
        let released = self.ring.distance(self.head(), self.wanted_head());
        if released <= self.ring.distance(self.head(), self.tail()) { released } else { 0 }
    }

    /// Returns head at the last sync.
    #[inline(always)]
    pub fn head(&self) -> usize {
        self.ring.index(PROGRAM_HEAD).unwrap_or(0)
    }

    /// Returns the tail that the last sync has shown.
    #[inline(always)]
    pub fn tail(&self) -> usize {
        self.ring.index(PROGRAM_TAIL).unwrap_or_else(|| self.head())
    }

    /// Sets the program's head and cur for it.
    pub fn set(&self, head: u32, cur: u32) {
        self.ring.word(HEAD).store(head, Relaxed);
        self.ring.word(CUR).store(cur, Relaxed);
    }

    /// Frees the slots of a transmit ring in front of this one, as its server does.
    #[inline(always)]
    pub fn done(&self, slot: usize) {
        self.ring.free_up_to(slot);
    }

    /// Learns up to where slots are the program's.
    #[inline(always)]
    pub fn learn(&self) {
        if let Some(tail) = self.ring.index(SERVER_TAIL) {
            self.ring.state(PROGRAM_TAIL).store(tail as u32, Relaxed);
            self.ring.word(TAIL).store(tail as u32, Relaxed);
        }
    }

    /// Returns whether tail is past cur: poll(2) returns then.
    pub fn is_ready(&self) -> bool {
        self.ring.word(CUR).load(Relaxed) as usize != self.tail()
    }

    /// True once if the server wants a token, now that head has moved.
    #[inline(always)]
    pub fn must_ring(&self) -> bool {
        self.ring.must_wake_server()
    }

    /// Asks the server for a token when tail moves, unless one is there already. Look once more after this.
    pub fn arm(&self) {
        if !self.has_token() {
            self.ring.state(PROGRAM_WAITS).store(ARMED, SeqCst);
            full_fence();
        }
    }

    /// Returns whether a token is there, or was, that nobody has forgotten.
    pub fn has_token(&self) -> bool {
        self.ring.state(PROGRAM_WAITS).load(Acquire) == RUNG
    }

    /// Returns whether tail is past the program's head.
    pub fn has_news(&self) -> bool {
        self.ring.index(SERVER_TAIL).is_some_and(|tail| tail != self.ring.word(CUR).load(Relaxed) as usize)
    }

    /// Forgets the token of the last time, which was read; true if there was one.
    pub fn forget_token(&self) -> bool {
        self.ring.state(PROGRAM_WAITS).compare_exchange(RUNG, 0, SeqCst, Relaxed).is_ok()
    }
}

/// The serving side of a program's transmit ring: takes packets out.
pub struct Consumer {
    pub ring: Ring,
    cur: usize,
    /// The program's head, as it was read last.
    head: usize,
    /// Of the packet at the front: where its parts are, and how long.
    pub parts: Vec<(usize, usize)>,
}

/// The serving side of a program's receive ring: puts packets in.
pub struct Producer {
    pub ring: Ring,
    tail: usize,
    /// The program's head, as it was read last.
    head: usize,
}

/// What stands at the front of a transmit ring.
pub enum Front {
    /// Nothing, or a packet whose end is missing.
    None,
    /// A packet of so many bytes, in `parts`, with the flags of its first slot.
    Packet { len: usize, flags: u16 },
    /// So many slots that are no packet.
    Nonsense { slots: usize },
}

impl Consumer {
    /// A new program's ring, all of it free.
    pub fn new(ring: Ring) -> Consumer {
        let cur = ring.index(PROGRAM_HEAD).unwrap_or(0);
        let consumer = Consumer { ring, cur, head: cur, parts: Vec::with_capacity(MAX_FRAGS) };
        consumer.tell();
        consumer
    }

    /// Returns the program's head, or an earlier value of it; `None` if the ring is empty. The head is in a cache line that the
    /// program writes, and is read only if no slot is left in front of its last value.
    #[inline(always)]
    fn head(&mut self) -> Option<usize> {
        if self.cur == self.head {
            self.head = self.ring.index(PROGRAM_HEAD)?;
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

    /// Copies the packet at the front to the beginning of `target` and passes it, if it is in one buffer and not empty, and
    /// `target` has room for it. Returns its length and its slot's flags.
    #[inline(always)]
    pub fn take_short(&mut self, target: &mut [u8]) -> Option<(usize, u16)> {
        self.head()?;
        let slot = self.ring.slot(self.cur);
        if slot.flags & (NS_MOREFRAG | NS_INDIRECT) != 0 || slot.len == 0 {
            return None;
        }
        let (at, len) = self.ring.bytes(self.cur, slot)?;
        self.ring.memory.mapping.read(at, target.get_mut(..len)?);
        self.pass(1);
        Some((len, slot.flags))
    }

    /// The packet at the front.
    #[inline(always)]
    pub fn front(&mut self) -> Front {
        let Some(head) = self.ring.index(PROGRAM_HEAD) else { return Front::None };
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
                // A ring that is full of one packet will never have its end.
                return if count + 1 < self.ring.place.slots { Front::None } else { Front::Nonsense { slots: count } };
            }
        }
        match good {
            true => Front::Packet { len, flags },
            false => Front::Nonsense { slots: count },
        }
    }

    /// So many slots are done.
    #[inline(always)]
    pub fn pass(&mut self, slots: usize) {
        self.cur = self.ring.ahead(self.cur, slots);
    }

    /// Tells what is done.
    #[inline(always)]
    pub fn tell(&self) {
        self.ring.free_up_to(self.cur);
    }
}

impl Producer {
    /// Goes on where the ring is.
    pub fn new(ring: Ring) -> Producer {
        let tail = ring.index(SERVER_TAIL).unwrap_or(0);
        let head = ring.index(PROGRAM_HEAD).unwrap_or(ring.next(tail));
        Producer { ring, tail, head }
    }

    /// Returns the number of free slots.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.ring.index(PROGRAM_HEAD).map_or(0, |head| self.free_behind(head))
    }

    /// Returns the number of free slots if the program has released those in front of `head`.
    #[inline(always)]
    fn free_behind(&self, head: usize) -> usize {
        self.ring.place.slots - 1 - self.ring.distance(head, self.tail)
    }

    /// Returns whether `count` slots are free. The program's head, in a cache line that the program writes, is read only
    /// where the last value does not suffice.
    #[inline(always)]
    pub fn has_room(&mut self, count: usize) -> bool {
        self.free_behind(self.head) >= count || {
            self.head = self.ring.index(PROGRAM_HEAD).unwrap_or(self.head);
            self.free_behind(self.head) >= count
        }
    }

    /// Copies a packet into the next slot, if its buffer begins at its first byte and has room for the packet. False if
    /// [`put`](crate::share::server::recipient::put) has to look at it.
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
        self.pass(1);
        true
    }

    /// Prefetches the next `count` free slots.
    #[inline(always)]
    pub fn prefetch(&mut self, count: usize) {
        if self.has_room(count) {
            self.ring.prefetch(self.tail, self.ring.ahead(self.tail, count), count, Mapping::prefetch_write);
        }
    }

    /// The free slots, from the first on.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// So many slots have something.
    #[inline(always)]
    pub fn pass(&mut self, slots: usize) {
        self.tail = self.ring.ahead(self.tail, slots);
    }

    /// Tells of them.
    #[inline(always)]
    pub fn tell(&self) {
        self.tell_but(0);
    }

    /// Tells of all but the last so many, which are the beginning of a packet.
    #[inline(always)]
    pub fn tell_but(&self, beginning: usize) {
        let tail = self.ring.ahead(self.tail, self.ring.place.slots - beginning);
        self.ring.state(SERVER_TAIL).store(tail as u32, Release);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::share::protocol::area::{Area, Objects, Offsets, Plan, Rings};

    /// An area with a port that has rings of so many slots, one of each direction, and as many buffers left.
    pub fn rings(slots: u32, left: usize, offsets: Offsets) -> (Arc<Area>, [Ring; 2]) {
        let mut plan = Plan::default();
        plan.ports.count = 1;
        plan.rings = Objects { count: 2, size: 4096 };
        plan.buffers.count = 2 + 2 * slots as usize + left;
        let area = Arc::new(Area::new(plan).unwrap());
        let rings = Rings { tx: 1, rx: 1, tx_slots: slots, rx_slots: slots, ..Rings::default() };
        let placed = area.place("a", &rings, |_| true, |_| true, offsets).unwrap();
        let rings = [placed.tx[0], placed.rx[0]]
            .map(|place| Ring { offset_mask: offsets.mask, ..Ring::new(&area.memory, place.unwrap()).unwrap() });
        (area, rings)
    }

    #[test]
    fn a_ring_outside_its_memory_is_refused() {
        let area = Area::new(Plan::default()).unwrap();
        let len = area.memory.mapping.len();
        let last = len - SLOTS - 2 * SLOT;
        assert!(Ring::new(&area.memory, Place { at: last & !63, slots: 2, zone: 0 }).is_ok());
        let beyond = (last + 64) & !63;
        for at in [beyond, len, len + 64, usize::MAX & !63, usize::MAX - SLOTS, STATE - 64, 0, 32, 1] {
            assert!(Ring::new(&area.memory, Place { at, slots: 2, zone: 0 }).is_err(), "at {at}");
        }
        // A zone that is not all in the memory.
        assert!(Ring::new(&area.memory, Place { at: STATE, slots: 2, zone: len - 2 * ZONE }).is_ok());
        for zone in [len - 2 * ZONE + 64, len, usize::MAX & !63, 1] {
            assert!(Ring::new(&area.memory, Place { at: STATE, slots: 2, zone }).is_err(), "zone {zone}");
        }
        for slots in [0, 1, 65_537, usize::MAX / SLOT, usize::MAX] {
            assert!(Ring::new(&area.memory, Place { at: STATE, slots, zone: 0 }).is_err(), "{slots} slots");
        }
    }

    const OFFSETS: Offsets = Offsets { mask: 0xFFFF_0000, first: 0x1234_5678 };

    #[test]
    fn an_offset_is_the_masked_part_of_a_pointer() {
        let (_area, [mut ring, _]) = rings(8, 0, Offsets { mask: 0xFFF0, first: 0x1_2345 });
        assert_eq!((ring.pointer(1), ring.offset(1)), (0x2340, 0x2340), "at first");
        ring.words(1)[1].store(0xABCD_EF01_2345_6789, Relaxed);
        assert_eq!(ring.offset(1), 0x6780);
        ring.set_offset(1, 0x1_2345);
        assert_eq!(ring.pointer(1), 0xABCD_EF01_2345_2349, "the rest is the program's");
        ring.offset_mask = 0;
        assert_eq!(ring.offset(1), 0);
    }

    #[test]
    fn a_slot_that_reaches_beyond_its_buffer_is_refused() {
        let (area, [mut ring, _]) = rings(8, 0, Offsets { mask: u64::MAX, first: 0 });
        let size = area.memory.buffers.size;
        let bytes = |ring: &Ring, buffer: u32, len: usize, offset: usize| {
            ring.set_offset(0, offset);
            ring.bytes(0, Slot { buffer, len: len as u16, flags: 0 })
        };
        let at = area.memory.buffer(3).unwrap();
        assert_eq!(bytes(&ring, 3, size, 0), Some((at, size)));
        assert_eq!(bytes(&ring, 3, size - 100, 100), Some((at + 100, size - 100)));
        assert_eq!(bytes(&ring, 3, 0, size), Some((at + size, 0)));
        for (buffer, len, offset) in
            [(3, size + 1, 0), (3, size, 1), (3, 0, size + 1), (3, 1, usize::MAX), (1, 1, 0), (18, 1, 0)]
        {
            assert_eq!(bytes(&ring, buffer, len, offset), None, "{len} at {offset} of buffer {buffer}");
        }
        ring.offset_mask = 0;
        assert_eq!(bytes(&ring, 3, size, 1), Some((at, size)), "without a mask a pointer is no offset");
    }

    #[test]
    fn a_packet_in_no_buffer_is_in_the_zone_of_its_slot() {
        let (_area, [mut ring, _]) = rings(8, 0, Offsets::default());
        let bytes = |ring: &Ring, flags: u16| ring.bytes_or_zone(3, Slot { buffer: 3, len: 65_535, flags });
        assert_eq!(bytes(&ring, NS_INDIRECT), None, "it has none");
        ring.place.zone = 64;
        assert_eq!(bytes(&ring, NS_INDIRECT), Some((64 + 3 * ZONE, 65_535)));
        assert_eq!(bytes(&ring, 0), None, "without the mark it is one buffer");
    }

    #[test]
    fn indices_go_round() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        assert_eq!([0, 6, 7].map(|slot| ring.next(slot)), [1, 7, 0]);
        assert_eq!([(0, 0), (2, 5), (5, 2), (7, 0), (0, 7)].map(|(from, to)| ring.distance(from, to)), [0, 3, 5, 1, 7]);
    }

    #[test]
    fn a_slot_keeps_what_it_is_told() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        let pointer = ring.pointer(3);
        ring.set_slot(3, Slot { buffer: 0xFFFF_FFFE, len: 0xFFFD, flags: 0xFFFC });
        let slot = ring.slot(3);
        assert_eq!((slot.buffer, slot.len, slot.flags, ring.pointer(3)), (0xFFFF_FFFE, 0xFFFD, 0xFFFC, pointer));
        ring.set_time(Duration::new(5, 7_000_999));
        let times = [0, 8].map(|at| {
            let mut bytes = [0; 8];
            ring.memory.mapping.read(ring.place.at + TS + at, &mut bytes);
            u64::from_ne_bytes(bytes)
        });
        assert_eq!(times, [5, 7000]);
    }

    /// A program whose transmit ring is free, at slot 5 of 8.
    fn program(ring: &Ring) -> Program {
        ring.state(PROGRAM_HEAD).store(5, Relaxed);
        ring.free_up_to(5);
        let program = Program::begin(ring.clone());
        assert_eq!((program.head(), program.tail()), (5, 4));
        program
    }

    #[test]
    fn a_program_whose_head_or_cur_cannot_be_is_set_back() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        let program = program(&ring);
        // Slot 4 is the tail: it may be reached. Slots 3 and 2 are then not the program's.
        for (head, cur) in [(5, 5), (5, 4), (7, 1), (1, 1), (1, 4), (4, 4)] {
            program.set(head, cur);
            assert_eq!(program.wanted_head(), head as usize);
            assert_eq!(program.released(), ring.distance(5, head as usize));
            assert_eq!(program.tell().unwrap(), head != 5, "{head} and {cur}");
            assert_eq!(ring.state(PROGRAM_HEAD).load(Relaxed), head);
            ring.state(PROGRAM_HEAD).store(5, Relaxed);
        }
        program.done(1);
        program.learn();
        assert_eq!(program.tail(), 0);
        for (head, cur) in
            [(1, 1), (4, 4), (5, 1), (5, 4), (7, 6), (7, 5), (0, 7), (8, 5), (5, 8), (8, 8), (u32::MAX, u32::MAX)]
        {
            program.set(head, cur);
            ring.word(TAIL).store(77, Relaxed);
            assert_eq!(program.released(), if [5, 7, 0].contains(&head) { ring.distance(5, head as usize) } else { 0 });
            assert!(program.tell().is_err(), "{head} and {cur}");
            assert_eq!([HEAD, CUR, TAIL].map(|field| ring.word(field).load(Relaxed)), [5, 5, 0]);
        }
        assert!(!program.tell().unwrap(), "it has not moved");
    }

    #[test]
    fn what_a_server_says_counts_only_if_it_is_an_index() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        let program = program(&ring);
        for said in [8, 9, u32::MAX] {
            ring.state(SERVER_TAIL).store(said, Relaxed);
            program.learn();
            assert_eq!(program.tail(), 4);
        }
        ring.state(SERVER_TAIL).store(7, Relaxed);
        program.learn();
        assert_eq!((program.tail(), ring.word(TAIL).load(Relaxed)), (7, 7));
        program.set(7, 7);
        assert!(!program.is_ready());
        program.set(7, 6);
        assert!(program.is_ready());
        // Where it began is an index, too.
        ring.state(PROGRAM_HEAD).store(8, Relaxed);
        assert_eq!(Program::begin(ring.clone()).head(), 0);
        ring.state(PROGRAM_TAIL).store(9, Relaxed);
        assert_eq!(program.tail(), program.head(), "and so is where it was");
        assert_eq!(Consumer::new(ring.clone()).cur, 0);
    }

    fn front(consumer: &mut Consumer) -> (char, usize) {
        match consumer.front() {
            Front::None => ('-', 0),
            Front::Packet { len, .. } => ('p', len),
            Front::Nonsense { slots } => ('n', slots),
        }
    }

    #[test]
    fn packets_of_a_transmit_ring_are_whole() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        let mut consumer = Consumer::new(ring.clone());
        let set = |slot: usize, len: u16, flags: u16| ring.set_slot(slot, Slot { len, flags, ..ring.slot(slot) });
        assert_eq!(ring.state(SERVER_TAIL).load(Relaxed), 7, "all is free");
        set(0, 100, NS_MOREFRAG | NS_NO_LEARN);
        set(1, 50, NS_MOREFRAG | NS_FORWARD);
        set(2, 25, 0);
        for head in [0, 1, 2, 8] {
            ring.state(PROGRAM_HEAD).store(head, Relaxed);
            assert_eq!(front(&mut consumer), ('-', 0), "up to {head}");
        }
        ring.state(PROGRAM_HEAD).store(3, Relaxed);
        assert!(matches!(consumer.front(), Front::Packet { len: 175, flags } if flags == NS_MOREFRAG | NS_NO_LEARN));
        assert_eq!(consumer.parts.len(), 3);
        // A part that is in no buffer spoils all of it.
        set(1, 2049, NS_MOREFRAG);
        assert_eq!(front(&mut consumer), ('n', 3));
        consumer.pass(3);
        consumer.tell();
        assert_eq!(ring.state(SERVER_TAIL).load(Relaxed), 2);
        // Only a ring that is full of the beginning of one packet is given up.
        (0..8).for_each(|slot| set(slot, 10, NS_MOREFRAG));
        for (head, expected) in [(1, ('-', 0)), (2, ('n', 7))] {
            ring.state(PROGRAM_HEAD).store(head, Relaxed);
            assert_eq!(front(&mut consumer), expected, "up to {head}");
        }
        consumer.pass(7);
        assert_eq!((consumer.cur, front(&mut consumer)), (2, ('-', 0)));
    }

    #[test]
    fn a_packet_of_more_than_64_slots_is_none() {
        let (_area, [ring, _]) = rings(128, 0, Offsets::default());
        let mut consumer = Consumer::new(ring.clone());
        for (count, expected) in [(MAX_FRAGS, ('p', 64)), (MAX_FRAGS + 1, ('n', 65))] {
            for slot in 0..count {
                let flags = if slot + 1 < count { NS_MOREFRAG } else { 0 };
                ring.set_slot(slot, Slot { len: 1, flags, ..ring.slot(slot) });
            }
            ring.state(PROGRAM_HEAD).store(count as u32, Relaxed);
            assert_eq!(front(&mut consumer), expected);
            assert!(consumer.parts.len() <= MAX_FRAGS);
        }
    }

    #[test]
    fn a_receive_ring_is_filled_up_to_the_program_s_head() {
        let (_area, [_, ring]) = rings(8, 0, OFFSETS);
        let mut producer = Producer::new(ring.clone());
        assert_eq!(producer.free(), 7);
        producer.pass(6);
        producer.tell();
        assert_eq!((producer.free(), ring.state(SERVER_TAIL).load(Relaxed)), (1, 6));
        ring.state(PROGRAM_HEAD).store(3, Relaxed);
        assert_eq!(producer.free(), 4);
        producer.pass(3);
        producer.tell_but(2);
        assert_eq!((producer.tail(), ring.state(SERVER_TAIL).load(Relaxed)), (1, 7));
        assert_eq!(Producer::new(ring.clone()).tail(), 7, "it goes on where the ring is");
        // No index: nothing is free, and a ring begins at 0.
        ring.state(PROGRAM_HEAD).store(8, Relaxed);
        ring.state(SERVER_TAIL).store(8, Relaxed);
        assert_eq!((producer.free(), Producer::new(ring.clone()).tail()), (0, 0));
    }

    #[test]
    fn short_packets_are_taken_up_to_the_first_other_one() {
        let (_area, [ring, _]) = rings(16, 0, Offsets::default());
        let mut consumer = Consumer::new(ring.clone());
        let write = |n: usize, len: usize, flags: u16| {
            let slot = Slot { len: len as u16, flags, ..ring.slot(n) };
            ring.memory.mapping.write(ring.memory.buffer(slot.buffer).unwrap(), &vec![n as u8; len.min(2048)]);
            ring.set_slot(n, slot);
        };
        let take = |consumer: &mut Consumer| {
            let mut target = [0xEE; 100];
            consumer.take_short(&mut target).map(|(len, flags)| {
                assert!(target[..len].iter().all(|byte| usize::from(*byte) == consumer.cur - 1), "{target:?}");
                assert!(target[len..].iter().all(|byte| *byte == 0xEE), "behind the packet");
                (len, flags)
            })
        };
        write(0, 60, 0);
        write(1, 100, NS_NO_LEARN);
        write(2, 101, 0);
        assert_eq!(take(&mut consumer), None, "the ring is empty");
        ring.state(PROGRAM_HEAD).store(2, Relaxed);
        assert_eq!([0; 3].map(|_| take(&mut consumer)), [Some((60, 0)), Some((100, NS_NO_LEARN)), None]);
        ring.state(PROGRAM_HEAD).store(3, Relaxed);
        assert_eq!(take(&mut consumer), None, "longer than the target");
        // A chain, a packet in no buffer, an empty packet, a buffer that does not exist: `front` looks at them.
        for (len, flags) in [(60, NS_MOREFRAG), (60, NS_INDIRECT), (0, 0), (2049, 0)] {
            write(2, len, flags);
            assert_eq!(take(&mut consumer), None, "{len} bytes, flags {flags:#x}");
        }
        ring.set_slot(2, Slot { buffer: u32::MAX, len: 60, flags: 0 });
        assert_eq!((take(&mut consumer), consumer.cur), (None, 2));
        // The rest of a chain comes later.
        let buffer = ring.slot(3).buffer;
        ring.set_slot(2, Slot { buffer, len: 60, flags: NS_MOREFRAG });
        assert!(take(&mut consumer).is_none() && matches!(consumer.front(), Front::None));
        write(3, 40, 0);
        ring.state(PROGRAM_HEAD).store(4, Relaxed);
        assert!(take(&mut consumer).is_none() && matches!(consumer.front(), Front::Packet { len: 100, .. }));
    }

    #[test]
    fn short_packets_are_put_where_there_is_room() {
        let (_area, [_, ring]) = rings(8, 0, Offsets::default());
        let mut producer = Producer::new(ring.clone());
        let before = ring.slot(0);
        assert!(producer.put_short(&[7; 60]) && producer.put_short(&[8; 2048]));
        assert!(!producer.put_short(&[9; 2049]), "longer than a buffer");
        let [first, second] = [0, 1].map(|n| ring.slot(n));
        assert_eq!((first.buffer, first.len, first.flags), (before.buffer, 60, 1 << 8));
        let mut bytes = [0; 60];
        ring.memory.mapping.read(ring.memory.buffer(second.buffer).unwrap(), &mut bytes);
        assert_eq!((second.len, bytes), (2048, [8; 60]));
        assert_eq!([0; 6].map(|_| producer.put_short(&[1])), [true, true, true, true, true, false]);
        // The program's head is read again, and one that is none is not used.
        ring.state(PROGRAM_HEAD).store(1, Relaxed);
        assert_eq!([0; 2].map(|_| producer.put_short(&[2])), [true, false]);
        ring.state(PROGRAM_HEAD).store(8, Relaxed);
        assert!(!producer.put_short(&[3]));
        ring.state(PROGRAM_HEAD).store(2, Relaxed);
        ring.set_slot(0, Slot { buffer: u32::MAX, ..before });
        assert!(!producer.put_short(&[3]), "the slot has no buffer");
        let (_area, [_, ring]) = rings(8, 0, OFFSETS);
        assert!(!Producer::new(ring).put_short(&[1]), "`put` looks at offsets");
    }

    #[test]
    fn a_side_that_sleeps_is_woken_once() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        let program = program(&ring);
        assert!(!ring.must_wake_program() && !program.must_ring());
        program.arm();
        assert!(!program.must_ring(), "it is the program that sleeps");
        assert!(ring.is_armed() && !program.has_token());
        assert!(ring.must_wake_program() && !ring.must_wake_program());
        assert!(program.has_token() && !ring.is_armed());
        program.arm();
        assert!(!ring.is_armed(), "the token of the last time is not read yet");
        assert!(program.forget_token() && !program.forget_token());
        program.arm();
        assert!(ring.must_wake_program());
        ring.wait_for_program();
        assert!(!ring.must_wake_program());
        assert!(program.must_ring() && !program.must_ring());
        // Nonsense is no request.
        ring.state(PROGRAM_WAITS).store(77, Relaxed);
        assert!(!ring.must_wake_program() && !program.has_token());
    }

    #[test]
    fn threads_take_turns_and_one_that_has_died_loses_its_turn() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 1000 };
        let (program, count) = (program(&ring), std::cell::UnsafeCell::new(0));
        struct Count(std::cell::UnsafeCell<u32>);
        // SAFETY: it is changed in a turn only.
        unsafe impl Sync for Count {}
        let count = Count(count);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (program, count) = (&program, &count);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let _turn = program.turn().unwrap();
                        // SAFETY: as above.
                        unsafe { *count.0.get() += 1 };
                    }
                });
            }
        });
        assert_eq!(count.0.into_inner(), 4 * ROUNDS);
        if cfg!(miri) {
            return; // nothing dies there
        }
        // A process that was killed in its turn.
        std::mem::forget(program.turn());
        assert!(program.turn().is_some());
        // One that was stopped, and goes on after another one has taken its turn, ends only its own.
        let stopped = program.turn().unwrap();
        let after = program.turn().unwrap();
        drop(stopped);
        let begin = Instant::now();
        let next = program.turn();
        assert!(next.is_some() && begin.elapsed() >= SYNC_TIME, "the turn is still the second one's");
        drop((after, next));
        assert!(program.turn().is_some());
    }

    #[test]
    fn packets_are_published_whole_but_for_one_that_fills_the_ring() {
        let (_area, [_, ring]) = rings(8, 0, Offsets::default());
        let set = |slot: usize, flags: u16| ring.set_slot(slot, Slot { flags, ..ring.slot(slot) });
        for (slot, flags) in [0, NS_MOREFRAG, NS_MOREFRAG, 0, NS_MOREFRAG, 0, NS_MOREFRAG, 0].into_iter().enumerate() {
            set(slot, flags);
        }
        for (head, published) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 6), (7, 6)] {
            ring.publish_packets(head);
            assert_eq!(ring.published(), published, "up to {head}");
        }
        (0..8).for_each(|slot| set(slot, NS_MOREFRAG));
        ring.publish_packets(4);
        assert_eq!(ring.published(), 6);
        ring.publish_packets(5);
        assert_eq!(ring.published(), 5, "all of the ring");
    }

    #[test]
    fn a_monitor_s_ring_is_in_the_memory() {
        let (_area, [ring, other]) = rings(8, 0, Offsets::default());
        assert!(ring.monitor().is_none());
        ring.set_monitor(Some(&other));
        assert_eq!(ring.monitor().unwrap().place, other.place);
        for nonsense in [1, u32::MAX] {
            ring.state(SERVER_MONITOR).store(nonsense, Relaxed);
            assert!(ring.monitor().is_none_or(|there| there.place.slots >= 2));
        }
        ring.set_monitor(None);
        assert!(ring.monitor().is_none());
    }

    #[test]
    fn shadows_and_losses_are_the_other_side_s_to_see() {
        let (_area, [ring, _]) = rings(8, 0, Offsets::default());
        assert_eq!((ring.shadow(), ring.lost()), (0, 0));
        ring.set_shadow(7);
        ring.lose();
        ring.lose();
        assert_eq!((ring.shadow(), ring.lost()), (7, 2));
    }
}
