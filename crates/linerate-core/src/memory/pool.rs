//! The free buffers of a region: in the pool, and in private caches.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Region;
use super::depot::Depot;
use crate::error::{Error, Result};

/// A region and the numbers of its free buffers.
///
/// Threads allocate and free buffers through a private cache, which is part of each [`Batch`](crate::Batch). So a loop
/// that receives and sends reuses the buffers that it has just sent, most recently used first, without accessing shared
/// memory. An empty or full cache exchanges a magazine of buffers with the pool, without a lock.
///
/// At any time each buffer is in exactly one place: free in the pool, free in a cache, in a slot of a batch, or in a
/// queue's ring.
pub struct Pool {
    region: Region,
    depot: Depot,
    /// Buffers returned by dropped queues and batches that do not fill a magazine. Not on the fast path.
    loose: Mutex<Vec<u32>>,
    loose_count: AtomicUsize,
    reserved: AtomicUsize,
    /// The most buffers that all queues with a reservation can hold together.
    max_held: AtomicUsize,
}

impl Pool {
    /// Creates a pool that owns `region`, with all buffers free.
    pub fn new(region: Region) -> Arc<Pool> {
        let buffers = region.buffers();
        let magazine = (buffers / 64).next_power_of_two().clamp(8, 256);
        let pool = Pool {
            depot: Depot::new(buffers / magazine, magazine),
            loose: Mutex::new(Vec::new()),
            loose_count: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            max_held: AtomicUsize::new(0),
            region,
        };
        // SAFETY: the pool is new, so no other owner exists for any buffer.
        unsafe { pool.give(&(0..buffers as u32).rev().collect::<Vec<_>>()) };
        Arc::new(pool)
    }

    /// Returns the pool's address, which is unique as long as the pool exists.
    #[inline(always)]
    pub fn address(self: &Arc<Pool>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Returns the region.
    #[inline(always)]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the count of free buffers in the pool itself, excluding those in caches, batches and rings.
    pub fn available(&self) -> usize {
        self.depot.stored() + self.loose_count.load(Ordering::Relaxed)
    }

    /// Reserves `count` buffers for a queue that will hold them for a long time, so that queues cannot starve each
    /// other permanently. Only counts them; the buffers stay in the pool.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted).
    pub fn reserve(self: &Arc<Pool>, count: usize) -> Result<Reservation> {
        self.reserve_of(count, count)
    }

    /// As [`reserve`](Pool::reserve), for a queue that needs `count` buffers and can hold up to `most`.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted).
    pub fn reserve_of(self: &Arc<Pool>, count: usize, most: usize) -> Result<Reservation> {
        let buffers = self.region.buffers();
        let fits = |reserved: usize| (reserved + count < buffers).then_some(reserved + count);
        match self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => {
                self.max_held.fetch_add(most, Ordering::Relaxed);
                Ok(Reservation { pool: self.clone(), count, most })
            }
            Err(reserved) => Err(Error::pool_too_small(buffers, reserved + count + 1)),
        }
    }

    /// Returns whether queues may keep buffers that they no longer need. This is the case if the region has enough
    /// buffers for all queues at their maximum, and the pool has a free magazine.
    #[inline(always)]
    fn has_surplus(&self) -> bool {
        self.max_held.load(Ordering::Relaxed) <= self.region.buffers() && self.depot.stored() > 0
    }

    /// Returns the most buffers that the cache of a batch keeps: enough for one receive, plus a magazine for buffers
    /// that a send returns. In a small pool, the first part is limited to an eighth of the buffers, so that others get
    /// some.
    pub fn most_cached(&self, capacity: usize) -> usize {
        let magazine = self.depot.magazine();
        capacity.min(self.region.buffers() / 8).max(magazine) + magazine
    }

    /// Takes `count` free buffers, for a ring; returns `None` if there are fewer.
    pub fn take(self: &Arc<Pool>, count: usize) -> Option<Vec<u32>> {
        let mut free = Vec::with_capacity(count + self.depot.magazine());
        while free.len() < count && self.fetch(&mut free) {}
        // SAFETY: these buffers were taken above, and are removed from `free` below.
        unsafe { self.give(free.get(count..).unwrap_or(&free)) };
        if free.len() < count {
            return None;
        }
        free.truncate(count);
        Some(free)
    }

    /// Returns free buffers of a cache or a queue to the pool.
    ///
    /// # Safety
    /// The buffers belong to this pool, only the caller owns them, and each is returned once.
    pub unsafe fn give(&self, bufs: &[u32]) {
        let (magazines, rest) = bufs.split_at(bufs.len() - bufs.len() % self.depot.magazine());
        for magazine in magazines.chunks_exact(self.depot.magazine()) {
            if !self.depot.put(magazine) {
                self.give_loose(magazine);
            }
        }
        if !rest.is_empty() {
            self.give_loose(rest);
        }
    }

    fn give_loose(&self, bufs: &[u32]) {
        let mut loose = self.loose.lock().unwrap_or_else(PoisonError::into_inner);
        loose.extend_from_slice(bufs);
        while let Some(start) = loose.len().checked_sub(self.depot.magazine()) {
            if !self.depot.put(&loose[start..]) {
                break;
            }
            loose.truncate(start);
        }
        self.loose_count.store(loose.len(), Ordering::Relaxed);
    }

    /// Appends a magazine, or the loose buffers, to `free`; returns false if the pool has none.
    #[cold]
    fn fetch(&self, free: &mut Vec<u32>) -> bool {
        if self.depot.fetch(free) {
            return true;
        }
        if self.loose_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut loose = self.loose.lock().unwrap_or_else(PoisonError::into_inner);
        free.append(&mut loose);
        self.loose_count.store(0, Ordering::Relaxed);
        true
    }
}

/// Buffers reserved for a queue until it is dropped.
pub struct Reservation {
    pool: Arc<Pool>,
    count: usize,
    most: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.max_held.fetch_sub(self.most, Ordering::Relaxed);
        self.pool.reserved.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A thread's private stack of free buffers of a pool. The default has no pool and no buffers.
#[derive(Default)]
pub(crate) struct Cache {
    pool: Option<Arc<Pool>>,
    /// The pool's address, or 0. So one comparison checks the pool.
    address: usize,
    free: Vec<u32>,
    /// The most buffers to keep; more return to the pool.
    most: usize,
}

impl Cache {
    /// Creates an empty cache, for a batch of this capacity.
    pub(crate) fn new(pool: &Arc<Pool>, capacity: usize) -> Cache {
        let most = pool.most_cached(capacity);
        Cache { pool: Some(pool.clone()), address: pool.address(), free: Vec::with_capacity(2 * most), most }
    }

    #[inline(always)]
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// Returns whether the cache belongs to the pool at this [address](Pool::address).
    #[inline(always)]
    pub(crate) fn is_at(&self, address: usize) -> bool {
        self.address == address
    }

    /// Returns the count of buffers in the cache.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.free.len()
    }

    /// Returns the `count` most recently used buffers, or fewer if the pool is exhausted. They stay in the cache until
    /// [`used`](Cache::used) removes the buffers that were used, from the front.
    #[inline(always)]
    pub(crate) fn offer(&mut self, count: usize) -> &[u32] {
        while self.free.len() < count && self.refill() {}
        &self.free[self.free.len().saturating_sub(count)..]
    }

    /// Removes the first `used` of the `offered` buffers.
    #[inline(always)]
    pub(crate) fn used(&mut self, offered: usize, used: usize) {
        let (start, end) = (self.free.len() - offered, self.free.len() - used);
        if used > 0 && used < offered {
            // The last of the unused buffers fill the gap; if they are fewer than the gap, all of them move.
            self.free.copy_within(end.max(start + used).., start);
        }
        self.free.truncate(end);
    }

    /// Takes the most recently used buffer; `None` if the cache is empty.
    #[inline(always)]
    pub(crate) fn take_warmest(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Takes the most recently used buffer, after a refill if needed; `None` if the pool is exhausted.
    #[inline(always)]
    pub(crate) fn take_one(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.refill();
        }
        self.take_warmest()
    }

    /// Adds buffers from the pool; returns false if the pool has none.
    #[inline(always)]
    fn refill(&mut self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.fetch(&mut self.free))
    }

    /// Returns whether adding `more` buffers would pass buffers on to the pool, and the pool does not need them.
    #[inline(always)]
    pub(crate) fn is_stocked(&self, more: usize) -> bool {
        self.free.len() + more > self.most && self.pool.as_ref().is_some_and(|pool| pool.has_surplus())
    }

    /// Adds free buffers. If there are too many, passes complete magazines on to the pool.
    ///
    /// # Safety
    /// The buffers belong to this cache's pool, only the caller owns them, and each is put back once.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, bufs: &[u32]) {
        self.free.extend_from_slice(bufs);
        if self.free.len() > self.most {
            self.trim();
        }
    }

    /// As [`put`](Cache::put), for an iterator.
    ///
    /// # Safety
    /// As [`put`](Cache::put).
    #[inline(always)]
    pub(crate) unsafe fn put_all(&mut self, bufs: impl ExactSizeIterator<Item = u32>) {
        self.free.extend(bufs);
        if self.free.len() > self.most {
            self.trim();
        }
    }

    /// Keeps at most the `most` most recently used buffers, and returns the others to the pool.
    #[cold]
    pub(crate) fn keep(&mut self, most: usize) {
        self.give_coldest(self.free.len().saturating_sub(most));
    }

    /// Returns complete magazines to the pool, and keeps at least half of the maximum: the most recently used buffers.
    #[cold]
    fn trim(&mut self) {
        let magazine = self.pool.as_ref().map_or(1, |pool| pool.depot.magazine());
        self.give_coldest((self.free.len() - self.most / 2) / magazine * magazine);
    }

    /// Returns the `count` least recently used buffers to the pool.
    fn give_coldest(&mut self, count: usize) {
        if let Some(pool) = &self.pool {
            // SAFETY: the cache owns these buffers, and they are removed below.
            unsafe { pool.give(&self.free[..count]) };
        }
        self.free.drain(..count);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.give_coldest(self.free.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{PageSize, Pages, RegionOptions};

    fn pool(buffers: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 512, pages, numa_node: None }).unwrap())
    }

    /// Puts buffers back into the cache that they were taken from.
    fn put(cache: &mut Cache, bufs: &[u32]) {
        // SAFETY: the tests put each buffer back once after taking it, and access no bytes.
        unsafe { cache.put(bufs) };
    }

    /// Takes `count` buffers out of a cache.
    fn take(cache: &mut Cache, count: usize) -> Vec<u32> {
        let bufs = cache.offer(count).to_vec();
        cache.used(bufs.len(), bufs.len());
        bufs
    }

    #[test]
    fn gives_each_buffer_once_and_takes_all_back() {
        for buffers in [1, 7, 8, 9, 100, 1000] {
            let pool = pool(buffers);
            assert_eq!(pool.available(), buffers);
            let mut cache = Cache::new(&pool, 32);
            let mut bufs = take(&mut cache, buffers + 5);
            assert_eq!((bufs.len(), pool.available()), (buffers, 0));
            assert!(take(&mut cache, 1).is_empty());
            put(&mut cache, &bufs);
            drop(cache);
            bufs.sort_unstable();
            assert_eq!(bufs, (0..buffers as u32).collect::<Vec<_>>());
            assert_eq!(pool.available(), buffers);
        }
    }

    #[test]
    fn the_last_buffer_put_is_the_first_taken() {
        let pool = pool(100);
        let mut cache = Cache::new(&pool, 32);
        let bufs = take(&mut cache, 3);
        put(&mut cache, &bufs);
        assert_eq!(take(&mut cache, 1), bufs[2..]);
        put(&mut cache, &bufs[2..]);
        assert_eq!(cache.offer(3), bufs);
        cache.used(3, 1);
        assert_eq!(take(&mut cache, 2), [bufs[2], bufs[1]], "the last one fills the gap of the first");
        drop(cache);
        // SAFETY: the buffers were taken above.
        unsafe { pool.give(&bufs) };
        assert_eq!(pool.available(), 100);
    }

    #[test]
    fn an_offer_used_in_part_leaves_the_other_buffers() {
        let pool = pool(100);
        for (offered, used) in (0..=9).flat_map(|offered| (0..=offered).map(move |used| (offered, used))) {
            let mut cache = Cache::new(&pool, 32);
            let taken = cache.offer(offered)[..used].to_vec();
            cache.used(offered, used);
            let mut all = [cache.free.as_slice(), &taken].concat();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!((all.len(), count + pool.available()), (count, 100), "{used} of {offered}");
            put(&mut cache, &taken);
        }
    }

    #[test]
    fn a_cache_keeps_what_a_receive_takes_and_little_more() {
        // A magazine has 16 buffers.
        for (capacity, most) in [(1, 32), (32, 48), (256, 144)] {
            let pool = pool(1024);
            let mut cache = Cache::new(&pool, capacity);
            let bufs = take(&mut cache, 1024);
            for buf in bufs {
                assert!(!cache.is_stocked(1) || cache.len() == most);
                put(&mut cache, &[buf]);
                assert!(cache.len() <= most);
            }
            assert_eq!(cache.len() + pool.available(), 1024);
            assert!(cache.len() >= most / 2);
        }
    }

    #[test]
    fn reservations_cannot_exceed_the_pool() {
        let pool = pool(64);
        let first = pool.reserve(40).unwrap();
        assert!(pool.reserve(40).map(drop).unwrap_err().with_hint().contains("81"));
        drop(first);
        pool.reserve(40).unwrap();
    }

    #[test]
    fn a_reservation_leaves_a_buffer_to_others() {
        let pool = pool(16);
        let buffers = pool.region().buffers();
        assert!(pool.reserve(buffers).is_err());
        let most = pool.reserve(buffers - 1).unwrap();
        assert!(pool.reserve(1).is_err());
        drop(most);
        let _first = pool.reserve(buffers - 2).unwrap();
        assert!(pool.reserve(2).is_err() && pool.reserve(1).is_ok());
    }
}
