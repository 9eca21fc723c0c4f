//! Packets that wait outside a batch, and leave in any order.

use std::sync::Arc;

use super::{Batch, Taken};
use crate::memory::{Cache, Pool};
use crate::slot::Slot;

/// Packets of one pool that wait, for example for their time to be sent. Each leaves by its [`Stored`] number.
///
/// All memory is allocated when the store is created. Buffers are not copied. Dropping the store frees them.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate_core::{Batch, Store};
///
/// # let [port] = linerate::open(["null:"])?;
/// # let (mut batch, mut later) = (Batch::new(), Batch::new());
/// # (1..=2).for_each(|n| assert!(batch.push(port.pool(), &[n; 60])));
/// let mut store = Store::new(port.pool(), 1000);
/// let first = store.put(batch.take().unwrap()).ok().unwrap();
/// let second = store.put(batch.take().unwrap()).ok().unwrap();
/// assert!(store.move_to(second, &mut later).is_ok()); // the second leaves first
/// assert!(store.move_to(first, &mut later).is_ok());
/// assert_eq!(later.packets().map(|packet| packet[0]).collect::<Vec<_>>(), [2, 1]);
/// # Ok(()) }
/// ```
pub struct Store {
    entries: Box<[Entry]>,
    /// The first free entry, or [`NONE`].
    free: u32,
    used: usize,
    cache: Cache,
}

/// The number of a packet in a [`Store`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stored(u32);

/// A slot, and the next entry of its packet; for a free entry, the next free one.
struct Entry {
    slot: Slot,
    next: u32,
    /// The packet's count of slots, in its first entry; 0 in all others, so that no number takes a packet twice.
    slots: u32,
}

const NONE: u32 = u32::MAX;

impl Store {
    /// Creates an empty store for `capacity` slots of a pool, at least one and less than 2^32.
    ///
    /// # Panics
    /// If memory cannot hold that many, as [`Vec::with_capacity`].
    pub fn new(pool: &Arc<Pool>, capacity: usize) -> Store {
        let capacity = capacity.clamp(1, NONE as usize - 1) as u32;
        let next = |n: u32| if n + 1 < capacity { n + 1 } else { NONE };
        let entries = (0..capacity).map(|n| Entry { slot: Slot::EMPTY, next: next(n), slots: 0 }).collect();
        Store { entries, free: 0, used: 0, cache: Cache::new(pool, 32) }
    }

    /// Returns the number of slots that the store can hold.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the count of stored slots.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the count of buffers in the store, including free ones that have not been returned to the pool.
    pub fn buffers(&self) -> usize {
        self.used + self.cache.len()
    }

    /// Stores a packet of the store's pool.
    ///
    /// # Errors
    /// Returns the packet if the store is full, or the packet is of another pool.
    #[inline]
    pub fn put<'a>(&mut self, packet: Taken<'a>) -> Result<Stored, Taken<'a>> {
        let count = packet.slots;
        let is_of_pool = self.cache.pool().is_some_and(|pool| packet.batch.is_already_of(pool));
        if !is_of_pool || self.capacity() - self.used < count {
            return Err(packet);
        }
        let (first, start) = (self.free, packet.batch.start);
        for slot in &mut packet.batch.slots[start..start + count] {
            let entry = &mut self.entries[self.free as usize];
            entry.slot = slot.take();
            self.free = entry.next;
        }
        self.entries[first as usize].slots = count as u32;
        self.used += count;
        packet.batch.sent(count);
        std::mem::forget(packet);
        Ok(Stored(first))
    }

    /// Moves a packet to the end of `batch`, which becomes the pool's if it is empty.
    ///
    /// # Errors
    /// Returns the number if the batch is full or of another pool. A number of another store moves a packet of this
    /// one, or none.
    #[inline]
    pub fn move_to(&mut self, stored: Stored, batch: &mut Batch) -> Result<(), Stored> {
        let is_of_pool = self.cache.pool().is_some_and(|pool| batch.bind_if_empty(pool));
        if !is_of_pool || batch.len() >= batch.capacity() {
            return Err(stored);
        }
        let count = self.slots_of(&stored);
        if batch.end + count > batch.slots.len() {
            batch.compact();
        }
        let Some(places) = batch.slots.get_mut(batch.end..batch.end + count) else { return Err(stored) };
        let mut has_chains = count > 1;
        let mut at = stored.0;
        for place in places {
            let entry = &mut self.entries[at as usize];
            *place = entry.slot.take();
            has_chains |= place.has_more();
            at = entry.next;
        }
        batch.end += count;
        batch.has_chains |= has_chains;
        self.release(stored, count);
        Ok(())
    }

    /// Returns the bytes of a packet's first slot; `None` if there is no packet of this number.
    pub fn first_bytes(&mut self, stored: &Stored) -> Option<&mut [u8]> {
        let (entry, pool) = (self.entries.get_mut(stored.0 as usize)?, self.cache.pool()?);
        // SAFETY: it is used with a slot of this pool.
        let view = unsafe { pool.region().view() };
        (entry.slots > 0).then(|| view.bytes_mut(&mut entry.slot))
    }

    /// Frees a packet.
    pub fn drop_packet(&mut self, stored: Stored) {
        let (count, mut at) = (self.slots_of(&stored), stored.0);
        for _ in 0..count {
            let entry = &mut self.entries[at as usize];
            // SAFETY: the slot was the store's, and is removed.
            unsafe { self.cache.put(&[entry.slot.take().buf()]) };
            at = entry.next;
        }
        self.release(stored, count);
    }

    /// Returns a packet's count of slots; 0 if there is no packet of this number.
    #[inline(always)]
    fn slots_of(&self, stored: &Stored) -> usize {
        self.entries.get(stored.0 as usize).map_or(0, |entry| entry.slots as usize)
    }

    /// Frees the entries of a packet of `count` slots, which are linked with each other.
    #[inline(always)]
    fn release(&mut self, Stored(first): Stored, count: usize) {
        if count == 0 {
            return;
        }
        let mut last = first as usize;
        for _ in 1..count {
            last = self.entries[last].next as usize;
        }
        self.entries[first as usize].slots = 0;
        self.entries[last].next = self.free;
        self.free = first;
        self.used -= count;
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| !entry.slot.is_empty_entry()) {
            // SAFETY: the slot was the store's, and is removed.
            unsafe { self.cache.put(&[entry.slot.take().buf()]) };
        }
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

    fn batch(pool: &Arc<Pool>, lens: &[usize]) -> Batch {
        let mut batch = Batch::new();
        lens.iter().enumerate().for_each(|(n, len)| assert!(batch.push(pool, &vec![n as u8; *len])));
        batch
    }

    fn seen(batch: &mut Batch) -> Vec<(u8, usize)> {
        batch.packets().map(|packet| (packet[0], packet.len())).collect()
    }

    #[test]
    fn packets_leave_whole_and_in_any_order() {
        let (pool, mut to) = (pool(64), Batch::new());
        let mut from = batch(&pool, &[60, 1000, 61, 384, 700]);
        let mut store = Store::new(&pool, 16);
        let mut stored = Vec::new();
        while let Some(packet) = from.take() {
            stored.push(store.put(packet).ok().unwrap());
        }
        assert_eq!((store.len(), from.len()), (8, 0));
        for at in [1, 0, 2, 0, 0] {
            assert!(store.move_to(stored.remove(at), &mut to).is_ok());
        }
        assert_eq!(seen(&mut to), [(1, 1000), (0, 60), (4, 700), (2, 61), (3, 384)]);
        // The entries are used again.
        for _ in 0..100 {
            let packets = to.packets().count();
            for _ in 0..packets {
                stored.push(store.put(to.take().unwrap()).ok().unwrap());
            }
            stored.drain(..).for_each(|stored| assert!(store.move_to(stored, &mut to).is_ok()));
        }
        assert_eq!((to.packets().count(), store.len()), (5, 0));
        drop((store, to, from));
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_full_store_and_a_full_batch_return_the_packet() {
        let (ours, theirs) = (pool(64), pool(64));
        let mut from = batch(&ours, &[60, 1000, 60]);
        let mut store = Store::new(&ours, 3);
        let first = store.put(from.take().unwrap()).ok().unwrap();
        store.put(from.take().unwrap()).unwrap_err().put_back(); // three slots, and two free entries
        let mut full = batch(&ours, &[60; 32]);
        let first = store.move_to(first, &mut full).unwrap_err();
        // Packets and batches of other pools.
        let mut other = batch(&theirs, &[60]);
        store.put(other.take().unwrap()).unwrap_err().put_back();
        let first = store.move_to(first, &mut other).unwrap_err();
        store.drop_packet(first);
        assert!(store.put(from.take().unwrap()).is_ok());
        drop((store, from, full, other));
        assert_eq!((ours.available(), theirs.available()), (64, 64));
    }

    /// Safe code can mix the numbers of two stores. No slot gets two owners.
    #[test]
    fn numbers_of_another_store_are_harmless() {
        let pool = pool(64);
        let (mut a, mut b) = (Store::new(&pool, 4), Store::new(&pool, 4));
        let mut from = batch(&pool, &[60, 700, 61]);
        let [one, two, three] = std::array::from_fn(|n| {
            let store = if n == 2 { &mut b } else { &mut a };
            store.put(from.take().unwrap()).ok().unwrap()
        });
        let mut to = Batch::new();
        assert!(b.move_to(two, &mut to).is_ok()); // it has no such packet
        assert!(to.is_empty());
        assert!(b.move_to(one, &mut to).is_ok());
        assert!(b.move_to(three, &mut to).is_ok()); // which has left already
        assert_eq!(seen(&mut to), [(2, 61)]);
        b.drop_packet(Stored(77));
        drop((a, b, to, from));
        assert_eq!(pool.available(), 64);
    }
}
