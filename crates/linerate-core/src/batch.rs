//! A batch: packets between two queues of a thread, and a cache of free buffers.
#![allow(unsafe_code)]

mod copies;
mod fifo;
mod segments;
mod sort;
mod store;
mod taken;

use std::ops::Range;
use std::sync::Arc;

pub use copies::Copied;
pub use fifo::Fifo;
pub use segments::{Finished, Segmented};
pub use store::{Store, Stored};
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
    ///
    /// ```
    /// let batch = linerate::Batch::new();
    /// assert_eq!((batch.capacity(), batch.len()), (32, 0));
    /// ```
    pub fn new() -> Batch {
        Batch::with_capacity(32)
    }

    /// Creates a batch for `capacity` slots, at least one.
    ///
    /// ```
    /// let batch = linerate::Batch::with_capacity(256); // larger batches: more packets per call, but more cache misses
    /// assert_eq!((batch.capacity(), batch.len()), (256, 0));
    /// ```
    ///
    /// # Panics
    /// If memory cannot hold that many slots, as [`Vec::with_capacity`].
    pub fn with_capacity(capacity: usize) -> Batch {
        let capacity = capacity.max(1);
        let slots = (0..capacity.saturating_add(MAX_CHAIN)).map(|_| Slot::EMPTY).collect();
        Batch { slots, capacity, start: 0, end: 0, has_chains: false, cache: Cache::default(), segmented: None }
    }

    /// Returns the number of slots that the batch can hold.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.push(pool, &[1; 60]);
    /// let free = batch.capacity() - batch.len();
    /// assert_eq!((batch.capacity(), free), (32, 31));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the count of slots. It is the number of packets, unless a frame is longer than a buffer.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.push(pool, &[1; 60]);
    /// batch.push(pool, &[2; 3000]); // two buffers of 2 KiB
    /// assert_eq!((batch.len(), batch.packets().count()), (3, 2));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether the batch has no packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// assert!(batch.is_empty());
    /// batch.push(pool, &[1; 60]);
    /// assert!(!batch.is_empty());
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Frees the buffers of all packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(&pool, &[1; 60]);
    /// batch.clear();
    /// assert!(batch.is_empty());
    /// assert_eq!(batch.cached() + pool.available(), 64); // all buffers of the region are free
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::Batch;
    /// # let [port] = linerate::open(["null:"])?;
    /// let mut batch = Batch::with_capacity(1);
    /// assert!(batch.push(port.pool(), &[1; 60]));
    /// assert!(!batch.push(port.pool(), &[2; 60])); // the batch is full
    /// assert_eq!(batch.packets().next().unwrap()[..], [1; 60]);
    /// # Ok(()) }
    /// ```
    pub fn push(&mut self, pool: &Arc<Pool>, bytes: &[u8]) -> bool {
        self.push_parts(pool, bytes.len(), std::iter::once(bytes), None)
    }

    /// Appends up to `count` packets of `len` bytes each, with unspecified contents, and returns their number. Appends
    /// none if `len` exceeds the region's [`room`](crate::memory::Region::room).
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let count = batch.alloc(pool, 8, 60);
    /// for mut packet in &mut batch {
    ///     packet.fill(0);
    /// }
    /// assert_eq!((count, batch.len()), (8, 8));
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # (batch.push(pool, &[1; 60]), batch.push(pool, &[2; 3000]));
    /// batch.packets().for_each(|mut packet| packet[0] = 9);
    /// let lens: Vec<usize> = batch.packets().map(|packet| packet.len()).collect();
    /// assert_eq!(lens, [60, 3000]);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn packets(&mut self) -> Packets<'_> {
        let has_chains = self.has_chains;
        let (slots, view) = self.parts();
        debug_assert!(has_chains || !slots.iter().any(Slot::has_more), "a chain is not noted");
        Packets::new(slots, view, has_chains)
    }

    /// Iterates over the bytes of each slot. A packet longer than a buffer has several slots.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # (batch.push(pool, &[1; 60]), batch.push(pool, &[2; 3000]));
    /// let mut lens = Vec::new();
    /// for bytes in batch.slots_mut() {
    ///     bytes[0] ^= 1;
    ///     lens.push(bytes.len());
    /// }
    /// assert_eq!(lens, [60, 1920, 1080]); // the second packet has two slots
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.alloc(pool, 8, 60);
    /// batch.clear();
    /// assert!(batch.cached() >= 8); // the next packets reuse these buffers, which are still in the processor's cache
    /// # Ok(()) }
    /// ```
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Returns cached free buffers to their pool if there are more than `most`.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # batch.alloc(pool, 8, 60);
    /// batch.clear();
    /// batch.keep_cached(4); // before the thread sleeps: others can use the buffers
    /// assert_eq!(batch.cached(), 4);
    /// batch.keep_cached(8); // changes nothing
    /// assert_eq!(batch.cached(), 4);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn keep_cached(&mut self, most: usize) {
        if self.cache.len() > most {
            self.cache.keep(most);
        }
    }

    /// Returns false if a packet of `len` bytes can never be appended, even to an empty batch with a full pool: it
    /// needs more buffers than a chain may have, or than exist. The caller must drop and count such a packet; other
    /// packets can wait for room.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// assert!(batch.can_hold(pool, 9000));
    /// assert!(!batch.can_hold(pool, 200_000)); // more than 64 buffers of 2 KiB
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// assert!(!batch.is_already_of(pool)); // a new batch has no pool
    /// batch.push(pool, &[1; 60]);
    /// assert!(batch.is_already_of(pool));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn is_already_of(&self, pool: &Arc<Pool>) -> bool {
        self.is_at(pool.address())
    }

    /// Returns whether the batch's packets and buffers belong to the pool at this [address](Pool::address).
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let address = pool.address(); // a queue keeps this, so that one comparison is enough
    /// batch.push(pool, &[1; 60]);
    /// assert!(batch.is_at(address));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn is_at(&self, address: usize) -> bool {
        self.cache.is_at(address)
    }

    /// As [`is_already_of`](Batch::is_already_of), but first binds an empty batch to `pool`.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// # let other = linerate::memory::Pool::new(linerate::memory::Region::new(&Default::default())?);
    /// assert!(batch.bind_if_empty(&other)); // an empty batch is bound to any pool
    /// assert!(batch.bind_if_empty(port.pool()));
    /// batch.push(port.pool(), &[1; 60]);
    /// assert!(!batch.bind_if_empty(&other)); // a batch with packets keeps its pool
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn bind_if_empty(&mut self, pool: &Arc<Pool>) -> bool {
        self.is_already_of(pool) || self.adopt(pool)
    }

    /// As [`is_already_of`](Batch::is_already_of), but first binds a batch without a pool to `pool`.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let ([port], mut batch) = (linerate::open(["null:"])?, linerate::Batch::new());
    /// # let other = linerate::memory::Pool::new(linerate::memory::Region::new(&Default::default())?);
    /// assert!(batch.bind_if_unbound(port.pool())); // a new batch is bound to the pool
    /// assert!(!batch.bind_if_unbound(&other)); // also an empty batch keeps its pool
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(4).unwrap(), Batch::new());
    /// # batch.alloc(&pool, 1, 60);
    /// let receive = |entries: &mut [Slot], free: &[u32]| {
    ///     let exchanged = entries.iter_mut().zip(free).zip(&mut ring);
    ///     // SAFETY: the ring owned this buffer, and the card has written 60 bytes to it.
    ///     let slot = |buf| unsafe { Slot::new(buf, HEADROOM, 60, false) };
    ///     exchanged.map(|((entry, free), buf)| *entry = slot(std::mem::replace(buf, *free))).count()
    /// };
    /// // SAFETY: `receive` writes an entry for each buffer that it takes.
    /// assert_eq!(unsafe { batch.exchange(4, receive) }, (4, 4));
    /// # // SAFETY: only the ring owns these buffers.
    /// # unsafe { pool.give(&ring) };
    /// # assert_eq!(batch.len(), 5);
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(1).unwrap(), Batch::new());
    /// # batch.alloc(&pool, 1, 60);
    /// // SAFETY: the ring owns this buffer, and the card has written 60 bytes to it.
    /// let slot = unsafe { Slot::new(ring[0], HEADROOM, 60, false) };
    /// // SAFETY: the slot is of the batch's pool. If it is not exchanged, the ring keeps its buffer.
    /// if let Some(free) = unsafe { batch.exchange_one(slot) } {
    ///     ring[0] = free;
    /// }
    /// assert_eq!(batch.len(), 2);
    /// # // SAFETY: only the ring owns this buffer.
    /// # unsafe { pool.give(&ring) };
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(1).unwrap(), Batch::new());
    /// # batch.push(&pool, &[1; 60]);
    /// // SAFETY: the old entry is only overwritten.
    /// if let Some(entry) = unsafe { batch.place() } {
    ///     // SAFETY: the ring has given up this buffer, and the device has written 60 bytes to it.
    ///     *entry = unsafe { Slot::new(ring.pop().unwrap(), HEADROOM, 60, false) };
    ///     // SAFETY: the entry has a slot of the batch's pool.
    ///     unsafe { batch.commit(1, false) };
    /// }
    /// assert_eq!(batch.len(), 2);
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// As [`space`](Batch::space).
    #[inline(always)]
    pub unsafe fn place(&mut self) -> Option<&mut Slot> {
        entry(&mut self.slots, self.capacity, self.end)
    }

    /// Returns whether the batch has at least as many slots as its capacity.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// let mut batch = linerate::Batch::with_capacity(2);
    /// batch.alloc(port.pool(), 1, 60);
    /// assert!(!batch.is_full() && batch.has_room_for_one());
    /// batch.alloc(port.pool(), 1, 60);
    /// assert!(batch.is_full() && !batch.has_room_for_one());
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity()
    }

    /// Returns whether the batch has room for exactly one slot.
    ///
    /// The example of [`is_full`](Batch::is_full) shows this, too.
    #[inline(always)]
    pub fn has_room_for_one(&self) -> bool {
        self.len() + 1 == self.capacity()
    }

    /// Returns free entries for slots that bring their own buffers: up to the capacity, or one more to complete a
    /// packet. Report the count written to [`commit`](Batch::commit).
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(2).unwrap(), Batch::new());
    /// # batch.push(&pool, &[1; 60]);
    /// // SAFETY: the old entries are only overwritten.
    /// for (entry, buf) in unsafe { batch.space() }.iter_mut().zip(ring.drain(..)) {
    ///     // SAFETY: the ring has given up this buffer, and the device has written 60 bytes to it.
    ///     *entry = unsafe { Slot::new(buf, HEADROOM, 60, false) };
    /// }
    /// // SAFETY: the loop wrote two slots of the batch's pool; the batch has room for 32.
    /// unsafe { batch.commit(2, false) };
    /// assert_eq!(batch.len(), 3);
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
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
    /// The example of [`space`](Batch::space) commits the slots that it has written.
    ///
    /// # Safety
    /// The first `count` entries of `space` contain slots of the batch's pool.
    #[inline(always)]
    pub unsafe fn commit(&mut self, count: usize, has_chains: bool) {
        self.has_chains |= has_chains;
        self.end += count;
    }

    /// Records whether the [exchanged](Batch::exchange) slots include packets of several slots.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let mut batch = Batch::new();
    /// # batch.alloc(&pool, 1, 60);
    /// let receive = |entries: &mut [Slot], free: &[u32]| {
    ///     // SAFETY: the buffer is exchanged for this slot, and has room for 1,000 bytes.
    ///     (0..free.len()).map(|n| entries[n] = unsafe { Slot::new(free[n], HEADROOM, 1000, n == 0) }).count()
    /// };
    /// // SAFETY: `receive` writes an entry for each buffer.
    /// unsafe { batch.exchange(2, receive) };
    /// batch.note_chains(true); // the first slot continues in the second
    /// assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 2000]);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn note_chains(&mut self, has_chains: bool) {
        self.has_chains |= has_chains;
    }

    /// Takes one free buffer for a slot beyond the capacity; `None` if the pool is exhausted.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let mut batch = Batch::with_capacity(1);
    /// batch.push(&pool, &[1; 60]); // the batch is full
    /// let buf = batch.take_buffer().expect("the pool has free buffers");
    /// // SAFETY: the buffer was taken for this slot, which is of the batch's pool.
    /// assert!(unsafe { batch.push_slot(&pool, &mut Slot::new(buf, HEADROOM, 100, false)) });
    /// assert_eq!((batch.len(), batch.capacity()), (2, 1));
    /// # Ok(()) }
    /// ```
    pub fn take_buffer(&mut self) -> Option<u32> {
        self.cache.take_one()
    }

    /// Appends a slot of `pool`, the batch's pool. The rest of a chain may exceed the capacity. Returns false if the
    /// batch is full beyond its capacity, too.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(1).unwrap(), Batch::new());
    /// # batch.push(&pool, &[1; 60]);
    /// let buf = ring.pop().unwrap();
    /// // SAFETY: the ring has given up this buffer, and the device has written 60 bytes to it.
    /// let mut slot = unsafe { Slot::new(buf, HEADROOM, 60, false) };
    /// // SAFETY: the batch and the slot are of this pool.
    /// assert!(unsafe { batch.push_slot(&pool, &mut slot) });
    /// assert!(batch.len() == 2 && slot.is_empty_entry()); // the batch owns the buffer
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # use linerate_core::Slot;
    /// # let mut ring = Vec::<Slot>::new();
    /// # (batch.push(pool, &[1; 60]), batch.push(pool, &[2; 61]));
    /// ring.extend(batch.pop_slot()); // the ring owns the slot and its buffer
    /// assert_eq!((batch.len(), ring[0].len()), (1, 61));
    /// # // SAFETY: only the ring owns this buffer.
    /// # unsafe { pool.give(&[ring[0].buf()]) };
    /// # Ok(()) }
    /// ```
    pub fn pop_slot(&mut self) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        self.end -= 1;
        Some(self.slots[self.end].take())
    }

    /// Returns whether the last packet is incomplete.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # let mut ring = Vec::<linerate_core::Slot>::new();
    /// batch.push(pool, &[1; 3000]); // two slots
    /// assert!(!batch.ends_in_chain());
    /// ring.extend(batch.pop_slot());
    /// assert!(batch.ends_in_chain()); // the end of the packet is missing
    /// # // SAFETY: the slot was popped from this batch.
    /// # unsafe { batch.push_slot(pool, &mut ring[0]) };
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn ends_in_chain(&self) -> bool {
        self.end > self.start && self.slots[self.end - 1].has_more()
    }

    /// Moves the beginning of an incomplete packet into `partial`, which must be empty. A batch only delivers complete
    /// packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch, mut partial) = (pool.take(2).unwrap(), Batch::new(), Vec::new());
    /// # batch.push(&pool, &[1; 60]);
    /// # // SAFETY: the ring gives up its buffers, whose bytes are not read.
    /// # let [mut first, mut second] = [(500, true), (100, false)]
    /// #     .map(|(len, more)| unsafe { Slot::new(ring.pop().unwrap(), HEADROOM, len, more) });
    /// # // SAFETY: the slot is of the batch's pool.
    /// # unsafe { batch.push_slot(&pool, &mut first) };
    /// batch.take_partial(&mut partial); // the card has not written the rest of the last packet
    /// assert_eq!((batch.len(), partial.len()), (1, 1));
    /// // SAFETY: all slots are of the batch's pool.
    /// unsafe {
    ///     batch.restore_partial(&pool, &mut partial); // in the next call
    ///     batch.push_slot(&pool, &mut second);
    /// }
    /// assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 600]);
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
    pub fn take_partial(&mut self, partial: &mut Vec<Slot>) {
        while self.ends_in_chain() {
            partial.extend(self.pop_slot());
        }
        partial.reverse();
    }

    /// Restores the slots that [`take_partial`](Batch::take_partial) moved out.
    ///
    /// The example of [`take_partial`](Batch::take_partial) restores its slots with this.
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
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # use linerate_core::{Batch, HEADROOM, Slot};
    /// # let (mut ring, mut batch) = (pool.take(1).unwrap(), Batch::new());
    /// # batch.push(&pool, &[1; 60]);
    /// # // SAFETY: the ring gives up its buffer, whose bytes are not read.
    /// # let mut first = unsafe { Slot::new(ring.pop().unwrap(), HEADROOM, 500, true) };
    /// // SAFETY: the slot is of the batch's pool.
    /// unsafe { batch.push_slot(&pool, &mut first) }; // the card has reported an error after this slot
    /// batch.drop_partial();
    /// assert!(batch.len() == 1 && !batch.ends_in_chain());
    /// # drop(batch);
    /// # assert_eq!(pool.available(), 64);
    /// # Ok(()) }
    /// ```
    pub fn drop_partial(&mut self) {
        while self.ends_in_chain() {
            let slot = self.pop_slot().map(|slot| slot.buf());
            // SAFETY: the slot was the batch's, and was removed.
            unsafe { self.recycle(slot.as_slice()) };
        }
    }

    /// Returns the pool of the batch's packets and buffers.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// use std::sync::Arc;
    ///
    /// assert!(batch.pool().is_none()); // a new batch has no pool
    /// batch.push(pool, &[1; 60]);
    /// assert!(Arc::ptr_eq(batch.pool().unwrap(), pool));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.cache.pool()
    }

    /// Returns the slots and their pool; `None` for a batch without a pool.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # batch.push(pool, b"a packet");
    /// let (slots, pool) = batch.contents().expect("a batch with packets has a pool");
    /// // SAFETY: the view is only used with slots of this pool.
    /// let view = unsafe { pool.region().view() };
    /// assert_eq!(view.bytes(&slots[0]), b"a packet");
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn contents(&self) -> Option<(&[Slot], &Arc<Pool>)> {
        self.pool().map(|pool| (&self.slots[self.start..self.end], pool))
    }

    /// Returns the slots, in order.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.push(pool, &[1; 60]);
    /// batch.push(pool, &[2; 3000]); // two buffers of 2 KiB
    /// let slots: Vec<_> = batch.slots().iter().map(|slot| (slot.len(), slot.has_more())).collect();
    /// assert_eq!(slots, [(60, false), (1920, true), (1080, false)]);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn slots(&self) -> &[Slot] {
        &self.slots[self.start..self.end]
    }

    /// Returns the slots for writing.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.push(pool, &[1; 60]);
    /// // SAFETY: the entry keeps its slot; only its flag changes.
    /// let slots = unsafe { batch.raw_slots() };
    /// slots[0].set_unlearned();
    /// assert!(batch.slots()[0].is_unlearned());
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// Each entry holds a slot of the batch's pool until it is [sent](Batch::sent).
    #[inline(always)]
    pub unsafe fn raw_slots(&mut self) -> &mut [Slot] {
        &mut self.slots[self.start..self.end]
    }

    /// Sets the pending offloads of the packet that begins at slot `at`.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// use linerate_core::offload::Offload;
    ///
    /// let checksum = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]); // of the bytes from 34 on, at byte 34 + 16
    /// batch.push(pool, &[0; 60]);
    /// batch.set_offload(0, checksum);
    /// assert_eq!(batch.packets().next().unwrap().offload(), Some(checksum));
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_offload(&mut self, at: usize, offload: crate::offload::Offload) {
        let (slots, view) = self.parts();
        offload.note(&mut slots[at], view);
    }

    /// Returns the first slot.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// assert!(batch.first().is_none());
    /// batch.push(pool, &[1; 60]);
    /// batch.push(pool, &[2; 61]);
    /// assert_eq!(batch.first().map(|slot| slot.len()), Some(60));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn first(&self) -> Option<&Slot> {
        if self.is_empty() { None } else { self.slots.get(self.start) }
    }

    /// Removes the first `count` slots, which now belong to a queue.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # batch.alloc(pool, 3, 60);
    /// let ring: Vec<u32> = batch.slots()[..2].iter().map(|slot| slot.buf()).collect();
    /// batch.sent(2); // the ring owns these buffers until the card has sent them
    /// assert_eq!((ring.len(), batch.len()), (2, 1));
    /// # // SAFETY: only the ring owns these buffers.
    /// # unsafe { pool.give(&ring) };
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn sent(&mut self, count: usize) {
        if count >= self.len() {
            return self.sent_all();
        }
        self.start += count;
    }

    /// Removes all slots, which now belong to a queue.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # batch.alloc(pool, 3, 60);
    /// let ring: Vec<u32> = batch.slots().iter().map(|slot| slot.buf()).collect();
    /// batch.sent_all(); // the ring owns these buffers until the card has sent them
    /// assert_eq!((ring.len(), batch.len()), (3, 0));
    /// # // SAFETY: only the ring owns these buffers.
    /// # unsafe { pool.give(&ring) };
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn sent_all(&mut self) {
        (self.start, self.end, self.has_chains) = (0, 0, false);
    }

    /// Puts buffers that a queue no longer needs into the cache.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # let mut batch = linerate::Batch::new();
    /// batch.alloc(&pool, 3, 60);
    /// let sending: Vec<u32> = batch.slots().iter().map(|slot| slot.buf()).collect();
    /// batch.sent_all(); // the card sends them
    /// let cached = batch.cached();
    /// // SAFETY: the card has sent these buffers, and the queue forgets them.
    /// unsafe { batch.recycle(&sending) };
    /// assert_eq!(batch.cached(), cached + 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// The buffers belong to the batch's pool, only the caller owns them, and each is put back once.
    #[inline(always)]
    pub unsafe fn recycle(&mut self, bufs: &[u32]) {
        // SAFETY: as the caller promises.
        unsafe { self.cache.put(bufs) };
    }

    /// Returns whether the cache would pass buffers on to the pool if it got `more`, and the pool does not need them.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let pool = Pool::new(Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() })?);
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(&pool, &[1; 60]);
    /// assert!(!batch.is_stocked(1)); // the queue should put the buffers that the card has sent
    /// assert!(batch.is_stocked(64)); // the queue can keep them until it needs them
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn is_stocked(&self, more: usize) -> bool {
        self.cache.is_stocked(more)
    }

    /// Drops the first `count` slots, or all if there are fewer, for ports that send by copying. The slots must be
    /// complete packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # use std::io::Write;
    /// # let mut stream = Vec::new();
    /// # (batch.push(pool, b"first"), batch.push(pool, b"second"));
    /// let packet = batch.packets().next().unwrap();
    /// stream.write_all(&packet).unwrap(); // the port copies the packet
    /// let slots = packet.slots();
    /// batch.drop_front(slots);
    /// assert_eq!((&stream[..], &batch.packets().next().unwrap()[..]), (&b"first"[..], &b"second"[..]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len());
        self.free(self.start..self.start + count);
        self.sent(count);
    }

    /// Drops the last `count` slots, which must be complete packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// (1..=3).for_each(|n| assert!(batch.push(pool, &[n; 60])));
    /// batch.drop_back(2);
    /// assert_eq!(batch.packets().map(|packet| packet[0]).collect::<Vec<_>>(), [1]);
    /// # Ok(()) }
    /// ```
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
