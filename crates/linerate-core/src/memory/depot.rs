//! Exchanges magazines of free buffers between threads without a lock.
//!
//! A magazine is an array of buffer numbers. All magazines are created at the start, and each is on one of two stacks,
//! `full` or `empty`. To store buffers, a thread pops an empty magazine, fills it and pushes it onto `full`; to fetch
//! buffers, it does the reverse. Between pop and push the thread owns the magazine. The pop acquires what the last push
//! released, so accesses to the content can be relaxed.
//!
//! ```text
//!              fetch: pop full, copy out, push empty
//!     full  -------------------------------------------->  empty
//!     stack <--------------------------------------------  stack
//!              put: pop empty, copy in, push full
//! ```
//!
//! The design follows Bonwick ("Magazines and Vmem", USENIX ATC 2001). The stacks are Treiber stacks, with a tag next
//! to the index against ABA. `crates/linerate/tests/loom.rs` checks it with loom.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The magazines of one pool.
pub struct Depot {
    size: usize,
    bufs: Box<[AtomicU32]>,
    next: Box<[AtomicU32]>,
    full: Stack,
    empty: Stack,
    stored: AtomicUsize,
}

/// The low half is the index + 1 of the top magazine (0: none); the high half is a tag that every change increments.
struct Stack(AtomicU64);

impl Depot {
    /// Creates `magazines` empty magazines for `size` buffers each.
    pub fn new(magazines: usize, size: usize) -> Depot {
        let zeroes = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>();
        let depot = Depot {
            size,
            bufs: zeroes(magazines * size),
            next: zeroes(magazines),
            full: Stack(AtomicU64::new(0)),
            empty: Stack(AtomicU64::new(0)),
            stored: AtomicUsize::new(0),
        };
        for magazine in (0..magazines).rev() {
            depot.push(&depot.empty, magazine as u32);
        }
        depot
    }

    /// Returns the count of buffers in one magazine.
    pub fn magazine(&self) -> usize {
        self.size
    }

    /// Returns the count of stored buffers. It may be too high by one magazine for each other thread in `put` or
    /// `fetch`.
    #[inline]
    pub fn stored(&self) -> usize {
        self.stored.load(Ordering::Relaxed)
    }

    /// Stores exactly one magazine of buffers; returns false if no magazine is empty.
    pub fn put(&self, bufs: &[u32]) -> bool {
        assert_eq!(bufs.len(), self.size);
        let Some(magazine) = self.pop(&self.empty) else { return false };
        for (place, &buf) in self.content(magazine).iter().zip(bufs) {
            place.store(buf, Ordering::Relaxed);
        }
        // Counted before another thread can fetch the magazine, so that the count is never too low or negative.
        self.stored.fetch_add(self.size, Ordering::Relaxed);
        self.push(&self.full, magazine);
        true
    }

    /// Appends one magazine of buffers to `bufs`; returns false if no magazine is full.
    pub fn fetch(&self, bufs: &mut Vec<u32>) -> bool {
        let Some(magazine) = self.pop(&self.full) else { return false };
        bufs.extend(self.content(magazine).iter().map(|place| place.load(Ordering::Relaxed)));
        self.push(&self.empty, magazine);
        self.stored.fetch_sub(self.size, Ordering::Relaxed);
        true
    }

    fn content(&self, magazine: u32) -> &[AtomicU32] {
        &self.bufs[magazine as usize * self.size..][..self.size]
    }

    fn push(&self, stack: &Stack, magazine: u32) {
        let mut top = stack.0.load(Ordering::Relaxed);
        loop {
            self.next[magazine as usize].store(top as u32, Ordering::Relaxed);
            let new = tagged(top, magazine + 1);
            match stack.0.compare_exchange_weak(top, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn pop(&self, stack: &Stack) -> Option<u32> {
        let mut top = stack.0.load(Ordering::Acquire);
        loop {
            let magazine = (top as u32).checked_sub(1)?;
            let below = self.next[magazine as usize].load(Ordering::Relaxed);
            match stack.0.compare_exchange_weak(top, tagged(top, below), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(magazine),
                Err(now) => top = now,
            }
        }
    }
}

/// Returns a stack's word with a new top and the next tag.
fn tagged(old: u64, top: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | top as u64
}
