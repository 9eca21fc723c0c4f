//! A ring of words between two threads of a process: one sends, one receives, and neither waits for the other.
//!
//! ```text
//!                 head: receiver's        tail: sender's
//!                    v                       v
//!     slots  [ ..... | packet | packet | ... | free ... ]
//! ```
//!
//! Each side keeps its own index, and the other side's index as it was read last. It is read again only where the old
//! value does not suffice, so that normally a cache line moves once a batch. Checked with loom in `tests/loom.rs`.
//! [`Cursor`](linerate_core::ring::Cursor) does the same, in three instructions more for a packet alone.
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

/// The words on their way. It lives as long as one of the ends.
struct Channel<T> {
    places: Box<[UnsafeCell<T>]>,
    head: Line,
    tail: Line,
}

/// An index in a cache line pair of its own.
#[repr(align(128))]
struct Line(AtomicU32);

// SAFETY: a place is the sender's from `tail` to `head + len`, and the receiver's from `head` to `tail`. Each index is
// moved by one of them only, with release, and read by the other with acquire. So no place is used by both at once.
unsafe impl<T: Send> Sync for Channel<T> {}

/// Fewer words are copied one by one: two calls of memcpy cost more.
#[cfg(not(loom))]
const FEW: usize = 8;

/// The sending end.
pub struct Sender<T> {
    ring: Arc<Channel<T>>,
    tail: u32,
    /// The receiver's index, as it was read last.
    head: u32,
}

/// The receiving end.
pub struct Receiver<T> {
    ring: Arc<Channel<T>>,
    head: u32,
    /// The sender's index, as it was read last.
    tail: u32,
}

/// Makes a channel with `len` places, a power of two.
pub fn channel<T: Copy + Default + Send>(len: usize) -> (Sender<T>, Receiver<T>) {
    assert!(len.is_power_of_two(), "a ring's length is checked when a port is opened");
    let line = || Line(AtomicU32::new(0));
    let places = (0..len).map(|_| UnsafeCell::new(T::default())).collect();
    let ring = Arc::new(Channel { places, head: line(), tail: line() });
    (Sender { ring: ring.clone(), tail: 0, head: 0 }, Receiver { ring, head: 0, tail: 0 })
}

impl<T: Copy> Channel<T> {
    fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// Returns the place of an index.
    #[inline(always)]
    fn place(&self, index: u32) -> usize {
        (index & (self.len() - 1)) as usize
    }

    /// Copies words into the places from `tail` on, which are the sender's.
    #[inline(always)]
    #[cfg(not(loom))]
    fn put(&self, tail: u32, from: &[T]) {
        let at = self.place(tail);
        if from.len() < FEW {
            for (n, word) in from.iter().enumerate() {
                // SAFETY: these places are the sender's (see above), and `place` is below the ring's length.
                unsafe { *self.places.get_unchecked(self.place(tail.wrapping_add(n as u32))).get() = *word };
            }
            return;
        }
        let (first, rest) = from.split_at(from.len().min(self.places.len() - at));
        // SAFETY: these places are the sender's (see above); the first piece ends at the ring's end at most, and the
        // second begins at the ring's beginning.
        unsafe {
            let places = UnsafeCell::raw_get(self.places.as_ptr());
            std::ptr::copy_nonoverlapping(first.as_ptr(), places.add(at), first.len());
            if !rest.is_empty() {
                std::ptr::copy_nonoverlapping(rest.as_ptr(), places, rest.len());
            }
        }
    }

    /// Copies words out of the places from `head` on, which are the receiver's.
    #[inline(always)]
    #[cfg(not(loom))]
    fn get(&self, head: u32, to: &mut [T]) {
        let at = self.place(head);
        if to.len() < FEW {
            for (n, word) in to.iter_mut().enumerate() {
                // SAFETY: these places are the receiver's (see above), and `place` is below the ring's length.
                *word = unsafe { *self.places.get_unchecked(self.place(head.wrapping_add(n as u32))).get() };
            }
            return;
        }
        let fits = to.len().min(self.places.len() - at);
        let (first, rest) = to.split_at_mut(fits);
        // SAFETY: as in `put`, for the receiver's places.
        unsafe {
            let places = UnsafeCell::raw_get(self.places.as_ptr());
            std::ptr::copy_nonoverlapping(places.add(at), first.as_mut_ptr(), first.len());
            if !rest.is_empty() {
                std::ptr::copy_nonoverlapping(places, rest.as_mut_ptr(), rest.len());
            }
        }
    }

    /// As above, for loom, which watches each place.
    #[cfg(loom)]
    fn put(&self, tail: u32, from: &[T]) {
        for (n, word) in from.iter().enumerate() {
            let at = self.place(tail.wrapping_add(n as u32));
            // SAFETY: as above.
            self.places[at].with_mut(|place| unsafe { *place = *word });
        }
    }

    #[cfg(loom)]
    fn get(&self, head: u32, to: &mut [T]) {
        for (n, word) in to.iter_mut().enumerate() {
            let at = self.place(head.wrapping_add(n as u32));
            // SAFETY: as above.
            *word = self.places[at].with(|place| unsafe { *place });
        }
    }
}

impl<T: Copy> Sender<T> {
    /// Returns the number of free places, or an earlier one that is at least `wanted`.
    #[inline(always)]
    pub fn free(&mut self, wanted: usize) -> usize {
        let free = |sender: &Sender<T>| (sender.ring.len() - sender.tail.wrapping_sub(sender.head)) as usize;
        if free(self) < wanted {
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        free(self)
    }

    /// Returns whether all words were received.
    pub fn is_empty(&self) -> bool {
        self.ring.head.0.load(Ordering::Acquire) == self.tail
    }

    /// Sends the first words of `from` that fit; returns their number.
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
    /// Returns the number of words to receive.
    #[inline(always)]
    pub fn available(&mut self) -> usize {
        if self.tail == self.head {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Receives words into `to`, up to its length; returns their number.
    #[inline(always)]
    pub fn receive(&mut self, to: &mut [T]) -> usize {
        let count = to.len().min(self.available());
        if count == 0 {
            return 0; // the sender's copy of this line stays valid
        }
        self.get(&mut to[..count]);
        count
    }

    /// As [`receive`](Receiver::receive), for one of the words that [`available`](Receiver::available) has found last, if it is wanted.
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

    /// Returns the number of words now, including those that [`available`](Receiver::available) has not looked for.
    pub fn waiting(&self) -> usize {
        self.ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head) as usize
    }
}
