//! A lock-free ring of words between one sending and one receiving thread of a process.
//!
//! ```text
//!                 head: receiver's        tail: sender's
//!                    v                       v
//!     slots  [ ..... | packet | packet | ... | free ... ]
//! ```
//!
//! Each side keeps its own index and a copy of the other side's. It rereads the other index only if the copy does not
//! suffice, so a cache line normally moves once per batch. `crates/linerate/tests/loom.rs` checks the ring with loom.
//! [`Cursor`](linerate_core::ring::Cursor) does the same, but needs three instructions more for a single packet.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use std::cell::UnsafeCell;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

/// The state that both ends share.
struct Channel<T> {
    entries: Box<[UnsafeCell<T>]>,
    head: PaddedIndex,
    tail: PaddedIndex,
}

/// An index on its own pair of cache lines.
#[repr(align(128))]
struct PaddedIndex(AtomicU32);

// SAFETY: the sender accesses only entries from `tail` to `head + len`, and the receiver only those from `head` to
// `tail`. Each side moves only its own index, with release, and reads the other with acquire. So no entry is accessed
// by both at the same time.
unsafe impl<T: Send> Sync for Channel<T> {}

/// Smaller batches are copied word by word, because two calls of memcpy would cost more.
#[cfg(not(loom))]
const MEMCPY_MIN: usize = 8;

/// The sending end.
pub struct Sender<T> {
    ring: Arc<Channel<T>>,
    tail: u32,
    /// The receiver's index when it was last read.
    head: u32,
}

/// The receiving end.
pub struct Receiver<T> {
    ring: Arc<Channel<T>>,
    head: u32,
    /// The sender's index when it was last read.
    tail: u32,
}

/// Creates a channel of `len` entries, a power of two.
pub fn channel<T: Copy + Default + Send>(len: usize) -> (Sender<T>, Receiver<T>) {
    assert!(len.is_power_of_two(), "a ring's length is checked when a port is opened");
    let index = || PaddedIndex(AtomicU32::new(0));
    let entries = (0..len).map(|_| UnsafeCell::new(T::default())).collect();
    let ring = Arc::new(Channel { entries, head: index(), tail: index() });
    (Sender { ring: ring.clone(), tail: 0, head: 0 }, Receiver { ring, head: 0, tail: 0 })
}

impl<T: Copy> Channel<T> {
    fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the position of an index in `entries`.
    #[inline(always)]
    fn entry_index(&self, index: u32) -> usize {
        (index & (self.len() - 1)) as usize
    }

    /// Copies words into the entries from `tail` on, which belong to the sender.
    #[inline(always)]
    #[cfg(not(loom))]
    fn put(&self, tail: u32, from: &[T]) {
        let at = self.entry_index(tail);
        if from.len() < MEMCPY_MIN {
            for (n, word) in from.iter().enumerate() {
                // SAFETY: these entries belong to the sender (see `Sync`), and `entry_index` returns less than the
                // ring's length.
                unsafe { *self.entries.get_unchecked(self.entry_index(tail.wrapping_add(n as u32))).get() = *word };
            }
            return;
        }
        let (first, rest) = from.split_at(from.len().min(self.entries.len() - at));
        // SAFETY: these entries belong to the sender (see `Sync`). The first part ends at the ring's end at the latest,
        // and the second starts at the ring's start.
        unsafe {
            let entries = UnsafeCell::raw_get(self.entries.as_ptr());
            std::ptr::copy_nonoverlapping(first.as_ptr(), entries.add(at), first.len());
            if !rest.is_empty() {
                std::ptr::copy_nonoverlapping(rest.as_ptr(), entries, rest.len());
            }
        }
    }

    /// Copies words out of the entries from `head` on, which belong to the receiver.
    #[inline(always)]
    #[cfg(not(loom))]
    fn get(&self, head: u32, to: &mut [T]) {
        let at = self.entry_index(head);
        if to.len() < MEMCPY_MIN {
            for (n, word) in to.iter_mut().enumerate() {
                // SAFETY: these entries belong to the receiver (see `Sync`), and `entry_index` returns less than the
                // ring's length.
                *word = unsafe { *self.entries.get_unchecked(self.entry_index(head.wrapping_add(n as u32))).get() };
            }
            return;
        }
        let fits = to.len().min(self.entries.len() - at);
        let (first, rest) = to.split_at_mut(fits);
        // SAFETY: as in `put`, for the receiver's entries.
        unsafe {
            let entries = UnsafeCell::raw_get(self.entries.as_ptr());
            std::ptr::copy_nonoverlapping(entries.add(at), first.as_mut_ptr(), first.len());
            if !rest.is_empty() {
                std::ptr::copy_nonoverlapping(entries, rest.as_mut_ptr(), rest.len());
            }
        }
    }

    /// As above, for loom, which tracks each entry.
    #[cfg(loom)]
    fn put(&self, tail: u32, from: &[T]) {
        for (n, word) in from.iter().enumerate() {
            let at = self.entry_index(tail.wrapping_add(n as u32));
            // SAFETY: as above.
            self.entries[at].with_mut(|entry| unsafe { *entry = *word });
        }
    }

    #[cfg(loom)]
    fn get(&self, head: u32, to: &mut [T]) {
        for (n, word) in to.iter_mut().enumerate() {
            let at = self.entry_index(head.wrapping_add(n as u32));
            // SAFETY: as above.
            *word = self.entries[at].with(|entry| unsafe { *entry });
        }
    }
}

impl<T: Copy> Sender<T> {
    /// Returns the number of free entries. The receiver's index is reread only if fewer than `wanted` seem free, so the
    /// number may be too low.
    #[inline(always)]
    pub fn free(&mut self, wanted: usize) -> usize {
        let free = |sender: &Sender<T>| (sender.ring.len() - sender.tail.wrapping_sub(sender.head)) as usize;
        if free(self) < wanted {
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        free(self)
    }

    /// Returns whether the receiver has received all words.
    pub fn is_empty(&self) -> bool {
        self.ring.head.0.load(Ordering::Acquire) == self.tail
    }

    /// Sends the first words of `from`, as many as fit; returns their number.
    #[inline(always)]
    pub fn send(&mut self, from: &[T]) -> usize {
        let count = from.len().min(self.free(from.len()));
        if count == 0 {
            return 0;
        }
        self.put(&from[..count]);
        count
    }

    /// As [`send`](Sender::send), for one word; returns whether it fits.
    #[inline(always)]
    pub fn send_one(&mut self, word: T) -> bool {
        let fits = self.free(1) > 0;
        if fits {
            self.put(&[word]);
        }
        fits
    }

    #[inline(always)]
    fn put(&mut self, words: &[T]) {
        self.ring.put(self.tail, words);
        self.tail = self.tail.wrapping_add(words.len() as u32);
        self.ring.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T: Copy + Default> Receiver<T> {
    /// Returns the number of words that can be received. The sender's index is reread only if none are left.
    #[inline(always)]
    pub fn available(&mut self) -> usize {
        if self.tail == self.head {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Receives words into `to`, at most its length; returns their number.
    #[inline(always)]
    pub fn receive(&mut self, to: &mut [T]) -> usize {
        let count = to.len().min(self.available());
        if count == 0 {
            return 0; // the cache line of `head` stays valid for the sender
        }
        self.get(&mut to[..count]);
        count
    }

    /// Receives one word if `is_wanted` accepts it. Considers only words that [`available`](Receiver::available) has
    /// already found.
    #[inline(always)]
    pub fn receive_one_if(&mut self, is_wanted: impl FnOnce(T) -> bool) -> Option<T> {
        if self.tail == self.head {
            return None;
        }
        let mut word = [T::default()];
        self.ring.get(self.head, &mut word);
        is_wanted(word[0]).then(|| {
            self.advance(1);
            word[0]
        })
    }

    #[inline(always)]
    fn get(&mut self, words: &mut [T]) {
        self.ring.get(self.head, words);
        self.advance(words.len() as u32);
    }

    #[inline(always)]
    fn advance(&mut self, count: u32) {
        self.head = self.head.wrapping_add(count);
        self.ring.head.0.store(self.head, Ordering::Release);
    }

    /// Returns the number of words in the ring, including those that [`available`](Receiver::available) has not yet
    /// found.
    pub fn waiting(&self) -> usize {
        self.ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head) as usize
    }
}
