//! A batch: packets between two queues of a thread, and a cache of free buffers.
#![allow(unsafe_code)]

mod copies;
mod segments;
mod sort;
mod taken;

use std::ops::Range;
use std::sync::Arc;

pub use copies::Copied;
pub use segments::Segmented;
pub use taken::Taken;

use crate::memory::{Cache, Pool, View};
use crate::packet::{Packet, Packets, SlotsMut};
use crate::slot::{HEADROOM, Slot};

/// Slots of a batch beyond its capacity, so that a chain that starts in the last slot still fits.
pub const MAX_CHAIN: usize = 64;

/// Packets that move from one queue to another. The batch owns their slots.
///
/// ```text
///     slots   [ sent | sent | packet | packet | packet | free entries ... | room for a chain ]
///                           ^ start                    ^ end              ^ capacity
///     cache   [ free buffers of the same pool, the most recently used last ]
/// ```
///
/// [`RxQueue::recv`](crate::port::RxQueue::recv) appends packets, and gives the card buffers from the cache in
/// exchange. [`TxQueue::send`](crate::port::TxQueue::send) removes packets from the front, and puts buffers that the
/// card has finished with into the cache. Other buffers return to the pool when the batch is [cleared](Batch::clear) or
/// dropped. So no buffer leaks or is freed twice, and packets need no pool pointer.
///
/// A batch belongs to the pool of the first queue that it is used with. A queue of another region copies its packets.
pub struct Batch {
    slots: Box<[Slot]>,
    capacity: usize,
    start: usize,
    end: usize,
    /// False if every packet is in one slot, which shortens loops over the packets.
    has_chains: bool,
    cache: Cache,
    /// Boxed, because it is rarely set, and to keep the layout of the fields above.
    segmented: Option<Box<Segmented>>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

impl Batch {
    /// Creates a batch for 32 slots.
    pub fn new() -> Batch {
        Batch::with_capacity(32)
    }

    /// Creates a batch for `capacity` slots, at least one.
    ///
    /// # Panics
    /// If memory cannot hold that many slots, as [`Vec::with_capacity`].
    pub fn with_capacity(capacity: usize) -> Batch {
        let capacity = capacity.max(1);
        let slots = (0..capacity.saturating_add(MAX_CHAIN)).map(|_| Slot::EMPTY).collect();
        Batch { slots, capacity, start: 0, end: 0, has_chains: false, cache: Cache::default(), segmented: None }
    }

    /// Returns the number of slots that the batch can hold.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the count of slots. It is the number of packets, unless a frame is longer than a buffer.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether the batch has no packets.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Frees the buffers of all packets.
    #[inline]
    pub fn clear(&mut self) {
        if self.end > 0 {
            self.free(self.start..self.end);
            self.sent_all();
        }
    }

    /// Appends a packet with these bytes, as a chain if they do not fit one buffer.
    ///
    /// The buffers come from the pool of the batch's packets; from `pool` if the batch is empty. Returns false and
    /// changes nothing if the batch is full or the pool is exhausted.
    pub fn push(&mut self, pool: &Arc<Pool>, bytes: &[u8]) -> bool {
        self.push_parts(pool, bytes.len(), std::iter::once(bytes), None)
    }

    /// Appends up to `count` packets of `len` bytes each, with unspecified contents, and returns their number. Appends
    /// none if `len` exceeds the region's [`room`](crate::memory::Region::room).
    pub fn alloc(&mut self, pool: &Arc<Pool>, count: usize, len: usize) -> usize {
        self.bind_if_empty(pool);
        if len > self.room() {
            return 0;
        }
        let all = |slots: &mut [Slot], bufs: &[u32]| {
            for (slot, &buf) in slots.iter_mut().zip(bufs) {
                // SAFETY: the buffer is exchanged for this slot, and has room for `len` bytes after the headroom.
                *slot = unsafe { Slot::new(buf, HEADROOM, len as u16, false) };
            }
            bufs.len()
        };
        // SAFETY: all entries are written, with slots of the buffers offered.
        unsafe { self.exchange(count, all).1 }
    }

    /// Iterates over the packets. Each contains all its slots.
    #[inline(always)]
    pub fn packets(&mut self) -> Packets<'_> {
        let has_chains = self.has_chains;
        let (slots, view) = self.parts();
        debug_assert!(has_chains || !slots.iter().any(Slot::has_more), "a chain is not noted");
        Packets::new(slots, view, has_chains)
    }

    /// Iterates over the bytes of each slot. A packet longer than a buffer has several slots.
    #[inline(always)]
    pub fn slots_mut(&mut self) -> SlotsMut<'_> {
        let (slots, view) = self.parts();
        SlotsMut::new(slots, view)
    }

    /// Returns the slots, and a view of their bytes. A batch without a cache has no slots.
    #[inline(always)]
    fn parts(&mut self) -> (&mut [Slot], View<'_>) {
        // SAFETY: it is used with the batch's slots, which are of the cache's pool.
        let view = self.cache.pool().map_or(View::EMPTY, |pool| unsafe { pool.region().view() });
        (&mut self.slots[self.start..self.end], view)
    }

    /// Returns the count of free buffers in the cache.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Returns cached free buffers to their pool if there are more than `most`.
    #[inline(always)]
    pub fn keep_cached(&mut self, most: usize) {
        if self.cache.len() > most {
            self.cache.keep(most);
        }
    }

    /// Returns false if a packet of `len` bytes can never be appended, even to an empty batch with a full pool: it
    /// needs more buffers than a chain may have, or than exist. The caller must drop and count such a packet; other
    /// packets can wait for room.
    pub fn can_hold(&self, pool: &Arc<Pool>, len: usize) -> bool {
        let pool = if self.is_empty() { pool } else { self.pool().unwrap_or(pool) };
        let region = pool.region();
        len.div_ceil(region.room()) <= MAX_CHAIN.min(region.buffers())
    }

    /// Returns the number of bytes after the headroom in a buffer of the batch's pool.
    fn room(&self) -> usize {
        self.pool().map_or(0, |pool| pool.region().room())
    }

    // The methods below are for implementations of queues.

    /// Returns whether the batch's packets and buffers belong to `pool`.
    #[inline(always)]
    pub fn is_already_of(&self, pool: &Arc<Pool>) -> bool {
        self.is_at(pool.address())
    }

    /// Returns whether the batch's packets and buffers belong to the pool at this [address](Pool::address).
    #[inline(always)]
    pub fn is_at(&self, address: usize) -> bool {
        self.cache.is_at(address)
    }

    /// As [`is_already_of`](Batch::is_already_of), but first binds an empty batch to `pool`.
    #[inline(always)]
    pub fn bind_if_empty(&mut self, pool: &Arc<Pool>) -> bool {
        self.is_already_of(pool) || self.adopt(pool)
    }

    /// As [`is_already_of`](Batch::is_already_of), but first binds a batch without a pool to `pool`.
    #[inline(always)]
    pub fn bind_if_unbound(&mut self, pool: &Arc<Pool>) -> bool {
        match self.pool() {
            Some(own) => Arc::ptr_eq(own, pool),
            None => self.adopt(pool),
        }
    }

    #[cold]
    fn adopt(&mut self, pool: &Arc<Pool>) -> bool {
        let own = self.is_already_of(pool);
        if !own && self.is_empty() {
            self.cache = Cache::new(pool, self.capacity());
            return true;
        }
        own
    }

    /// Offers up to `count` free entries, and as many free buffers, to `take`. The closure writes a slot for each
    /// buffer that it takes, from the front, and returns their count. Returns the counts offered and exchanged; both
    /// are 0 for a batch without a pool. A caller that writes packets of several slots calls
    /// [`note_chains`](Batch::note_chains).
    ///
    /// # Safety
    /// `take` writes a slot of the batch's pool that it owns to each entry that it counts, and reads no old entry. It
    /// keeps only the buffers that it counts.
    #[inline(always)]
    pub unsafe fn exchange(&mut self, count: usize, take: impl FnOnce(&mut [Slot], &[u32]) -> usize) -> (usize, usize) {
        let room = count.min(self.capacity().saturating_sub(self.len()));
        if self.end + room > self.capacity() {
            self.compact();
        }
        let bufs = self.cache.offer(room);
        let offered = bufs.len();
        let taken = take(&mut self.slots[self.end..self.end + offered], bufs);
        self.cache.used(offered, taken);
        self.end += taken;
        (offered, taken)
    }

    /// As [`exchange`](Batch::exchange), for one packet in one slot. Returns the free buffer. Returns `None` and
    /// changes nothing if there is no [free entry](Batch::place), or the cache is empty.
    ///
    /// # Safety
    /// The slot belongs to the batch's pool.
    #[inline(always)]
    pub unsafe fn exchange_one(&mut self, slot: Slot) -> Option<u32> {
        let place = entry(&mut self.slots, self.capacity, self.end)?;
        let buf = self.cache.take_warmest()?;
        *place = slot;
        self.end += 1;
        Some(buf)
    }

    /// As [`space`](Batch::space), for one slot; `None` if the batch is full, or its slots must be moved to the front
    /// first.
    ///
    /// # Safety
    /// As [`space`](Batch::space).
    #[inline(always)]
    pub unsafe fn place(&mut self) -> Option<&mut Slot> {
        entry(&mut self.slots, self.capacity, self.end)
    }

    /// Returns whether the batch has at least as many slots as its capacity.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity()
    }

    /// Returns whether the batch has room for exactly one slot.
    #[inline(always)]
    pub fn has_room_for_one(&self) -> bool {
        self.len() + 1 == self.capacity()
    }

    /// Returns free entries for slots that bring their own buffers: up to the capacity, or one more to complete a
    /// packet. Report the count written to [`commit`](Batch::commit).
    ///
    /// # Safety
    /// The caller does not read the old entries: their slots have other owners.
    #[inline(always)]
    pub unsafe fn space(&mut self) -> &mut [Slot] {
        let room = self.capacity().saturating_sub(self.len());
        let room = if room == 0 && self.ends_in_chain() { 1 } else { room };
        if self.end + room > self.slots.len() {
            self.compact();
        }
        let room = room.min(self.slots.len() - self.end);
        &mut self.slots[self.end..self.end + room]
    }

    /// Commits `count` slots written into [`space`](Batch::space). `has_chains` tells whether they include packets of
    /// several slots.
    ///
    /// # Safety
    /// The first `count` entries of `space` contain slots of the batch's pool.
    #[inline(always)]
    pub unsafe fn commit(&mut self, count: usize, has_chains: bool) {
        self.has_chains |= has_chains;
        self.end += count;
    }

    /// Records whether the [exchanged](Batch::exchange) slots include packets of several slots.
    #[inline(always)]
    pub fn note_chains(&mut self, has_chains: bool) {
        self.has_chains |= has_chains;
    }

    /// Takes one free buffer for a slot beyond the capacity; `None` if the pool is exhausted.
    pub fn take_buffer(&mut self) -> Option<u32> {
        self.cache.take_one()
    }

    /// Appends a slot of `pool`, the batch's pool. The rest of a chain may exceed the capacity. Returns false if the
    /// batch is full beyond its capacity, too.
    ///
    /// # Safety
    /// The slot and the batch belong to `pool`.
    pub unsafe fn push_slot(&mut self, pool: &Arc<Pool>, slot: &mut Slot) -> bool {
        debug_assert!(self.is_already_of(pool), "a slot of another pool enters a batch");
        if self.end == self.slots.len() {
            self.compact();
        }
        if self.end == self.slots.len() {
            return false;
        }
        self.has_chains |= slot.has_more();
        self.slots[self.end] = slot.take();
        self.end += 1;
        true
    }

    /// Removes the last slot.
    pub fn pop_slot(&mut self) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        self.end -= 1;
        Some(self.slots[self.end].take())
    }

    /// Returns whether the last packet is incomplete.
    #[inline(always)]
    pub fn ends_in_chain(&self) -> bool {
        self.end > self.start && self.slots[self.end - 1].has_more()
    }

    /// Moves the beginning of an incomplete packet into `partial`, which must be empty. A batch only delivers complete
    /// packets.
    pub fn take_partial(&mut self, partial: &mut Vec<Slot>) {
        while self.ends_in_chain() {
            partial.extend(self.pop_slot());
        }
        partial.reverse();
    }

    /// Restores the slots that [`take_partial`](Batch::take_partial) moved out.
    ///
    /// # Safety
    /// The slots and the batch belong to `pool`.
    #[inline(always)]
    pub unsafe fn restore_partial(&mut self, pool: &Arc<Pool>, partial: &mut Vec<Slot>) {
        for mut slot in partial.drain(..) {
            // SAFETY: as the caller promises. A slot that was not pushed is not used again.
            unsafe {
                if !self.push_slot(pool, &mut slot) {
                    self.recycle(&[slot.buf()]); // unreachable: there is always room for a partial packet
                }
            }
        }
    }

    /// Drops the beginning of an incomplete packet.
    pub fn drop_partial(&mut self) {
        while self.ends_in_chain() {
            let slot = self.pop_slot().map(|slot| slot.buf());
            // SAFETY: the slot was the batch's, and was removed.
            unsafe { self.recycle(slot.as_slice()) };
        }
    }

    /// Returns the pool of the batch's packets and buffers.
    #[inline(always)]
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.cache.pool()
    }

    /// Returns the slots and their pool; `None` for a batch without a pool.
    #[inline(always)]
    pub fn contents(&self) -> Option<(&[Slot], &Arc<Pool>)> {
        self.pool().map(|pool| (&self.slots[self.start..self.end], pool))
    }

    /// Returns the slots, in order.
    #[inline(always)]
    pub fn slots(&self) -> &[Slot] {
        &self.slots[self.start..self.end]
    }

    /// Returns the slots for writing.
    ///
    /// # Safety
    /// Each entry holds a slot of the batch's pool until it is [sent](Batch::sent).
    #[inline(always)]
    pub unsafe fn raw_slots(&mut self) -> &mut [Slot] {
        &mut self.slots[self.start..self.end]
    }

    /// Sets the pending offloads of the packet that begins at slot `at`.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_offload(&mut self, at: usize, offload: crate::offload::Offload) {
        let (slots, view) = self.parts();
        offload.note(&mut slots[at], view);
    }

    /// Returns the first slot.
    #[inline(always)]
    pub fn first(&self) -> Option<&Slot> {
        if self.is_empty() { None } else { self.slots.get(self.start) }
    }

    /// Removes the first `count` slots, which now belong to a queue.
    #[inline(always)]
    pub fn sent(&mut self, count: usize) {
        if count >= self.len() {
            return self.sent_all();
        }
        self.start += count;
    }

    /// Removes all slots, which now belong to a queue.
    #[inline(always)]
    pub fn sent_all(&mut self) {
        (self.start, self.end, self.has_chains) = (0, 0, false);
    }

    /// Puts buffers that a queue no longer needs into the cache.
    ///
    /// # Safety
    /// The buffers belong to the batch's pool, only the caller owns them, and each is put back once.
    #[inline(always)]
    pub unsafe fn recycle(&mut self, bufs: &[u32]) {
        // SAFETY: as the caller promises.
        unsafe { self.cache.put(bufs) };
    }

    /// Returns whether the cache would pass buffers on to the pool if it got `more`, and the pool does not need them.
    #[inline(always)]
    pub fn is_stocked(&self, more: usize) -> bool {
        self.cache.is_stocked(more)
    }

    /// Drops the first `count` slots, or all if there are fewer, for ports that send by copying. The slots must be
    /// complete packets.
    #[inline]
    pub fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len());
        self.free(self.start..self.start + count);
        self.sent(count);
    }

    /// Drops the last `count` slots, which must be complete packets.
    pub fn drop_back(&mut self, count: usize) {
        let count = count.min(self.len());
        self.free(self.end - count..self.end);
        self.end -= count;
    }

    /// Puts the buffers of these slots into the cache. If any entry is empty, which must not happen, no buffer is
    /// freed, because a buffer of another slot could become free.
    fn free(&mut self, places: Range<usize>) {
        let slots = &self.slots[places];
        // For one packet, the setup of the loop below would cost more than it saves.
        if let [slot] = slots
            && !slot.is_empty_entry()
        {
            // SAFETY: the slot was the batch's, and the caller removes it.
            return unsafe { self.cache.put(&[slot.buf()]) };
        }
        let empty = slots.iter().filter(|slot| slot.is_empty_entry()).count();
        debug_assert_eq!(empty, 0, "a place without a buffer is freed");
        if empty == 0 {
            // SAFETY: as above.
            unsafe { self.cache.put_all(slots.iter().map(Slot::buf)) };
        }
    }

    /// Moves the slots to the front, so that all free entries are at the end.
    #[cold]
    fn compact(&mut self) {
        if self.start > 0 {
            for index in self.start..self.end {
                self.slots[index - self.start] = self.slots[index].take();
            }
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

/// Returns the entry at `end`; `None` if it is beyond the capacity.
#[inline(always)]
fn entry(slots: &mut [Slot], capacity: usize, end: usize) -> Option<&mut Slot> {
    if end < capacity { slots.get_mut(end) } else { None }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Iterates over the packets, as [`Batch::packets`].
impl<'a> IntoIterator for &'a mut Batch {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;

    #[inline(always)]
    fn into_iter(self) -> Packets<'a> {
        self.packets()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PageSize, Pages, Region, RegionOptions};

    fn pool(buffers: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 512, pages, numa_node: None }).unwrap())
    }

    fn frames(batch: &mut Batch) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            frames.push(bytes);
        }
        frames
    }

    #[test]
    fn long_packets_become_chains_and_come_back_whole() {
        let pool = pool(64);
        let mut batch = Batch::new();
        let sent: Vec<Vec<u8>> = [1, 384, 385, 9_000].map(|len| (0..len).map(|i| i as u8).collect()).into();
        for frame in &sent {
            assert!(batch.push(&pool, frame));
        }
        assert_eq!(batch.len(), 1 + 1 + 2 + 24);
        assert_eq!(frames(&mut batch), sent);
        // Uses internal iteration from the second packet on; then again without chains.
        let lens = |batch: &mut Batch| {
            let (mut lens, mut packets) = (Vec::new(), batch.packets());
            lens.extend(packets.next().map(|packet| packet.len()));
            packets.for_each(|packet| lens.push(packet.len()));
            lens
        };
        assert_eq!(lens(&mut batch), [1, 384, 385, 9_000]);
        batch.clear();
        sent[..2].iter().for_each(|frame| assert!(batch.push(&pool, frame)));
        assert_eq!(lens(&mut batch), [1, 384]);
        batch.clear();
        assert_eq!(batch.cached() + pool.available(), 64);
        drop(batch);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_full_batch_or_an_exhausted_pool_takes_nothing_more() {
        let pool = pool(8);
        let mut batch = Batch::with_capacity(4);
        for _ in 0..4 {
            assert!(batch.push(&pool, &[1]));
        }
        assert!(!batch.push(&pool, &[1]));
        let mut other = Batch::with_capacity(32);
        assert_eq!(other.alloc(&pool, 32, 60) + batch.len() + batch.cached() + pool.available(), 8);
        assert_eq!(other.alloc(&pool, 1, 10_000), 0);
    }

    #[test]
    fn packets_that_are_not_kept_are_free() {
        let pool = pool(32);
        let mut batch = Batch::new();
        for len in [1, 2_000, 3, 900, 5] {
            assert!(batch.push(&pool, &vec![len as u8; len]));
        }
        batch.retain(|bytes| bytes[0] % 2 == 1);
        assert_eq!(frames(&mut batch), [vec![1], vec![3; 3], vec![5; 5]]);
        assert_eq!(batch.len() + batch.cached() + pool.available(), 32);
        batch.retain(|_| false);
        assert!(batch.is_empty() && batch.cached() + pool.available() == 32);
    }

    #[test]
    fn the_rest_goes_elsewhere_or_is_free() {
        let pool = pool(32);
        let (mut batch, mut rest) = (Batch::new(), Batch::with_capacity(4));
        for len in [1, 2_000, 3, 900, 6, 5, 8] {
            assert!(batch.push(&pool, &vec![len as u8; len]));
        }
        assert_eq!(batch.split(&mut rest, |bytes| bytes[0] % 2 == 1), 3, "2,000 bytes are as much as it takes");
        assert_eq!(frames(&mut batch), [vec![1], vec![3; 3], vec![5; 5]]);
        assert_eq!(frames(&mut rest), [vec![2_000u16 as u8; 2_000]]);
        let mut elsewhere = Batch::new();
        elsewhere.push(&self::pool(8), &[1]);
        assert_eq!(batch.split(&mut elsewhere, |_| false), 3);
        assert_eq!((batch.len(), elsewhere.len()), (0, 1));
        assert_eq!(batch.cached() + rest.len() + rest.cached() + pool.available(), 32);
    }

    #[test]
    fn bytes_are_those_of_the_slots_in_order() {
        let pool = pool(8);
        let mut batch = Batch::new();
        batch.push(&pool, &[1, 2]);
        batch.push(&pool, &[3]);
        for mut packet in &mut batch {
            packet[0] += 10;
        }
        assert_eq!(frames(&mut batch), [vec![11, 2], vec![13]]);
        batch.drop_front(1);
        assert_eq!(frames(&mut batch), [[13]]);
    }
}
