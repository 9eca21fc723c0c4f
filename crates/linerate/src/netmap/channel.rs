//! A ring of words between two threads of a process: one sends, one receives, and neither waits for the other.
//!
//! ```text
//!                 head: receiver's        tail: sender's
//!                    v                       v
//!     slots  [ ..... | packet | packet | ... | free ... ]
//! ```
//!
//! Each side keeps its own index, and how far it saw the other's when it last had to look: in the steady state a cache
//! line crosses once a batch. Checked with loom in `tests/loom.rs`.
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

/// What is on its way, as long as one of the ends is there.
struct Ring<T> {
    places: Box<[UnsafeCell<T>]>,
    head: Line,
    tail: Line,
}

/// An index in a cache line pair of its own.
#[repr(align(128))]
struct Line(AtomicU32);

// SAFETY: a place is the sender's from `tail` to `head + len`, and the receiver's from `head` to `tail`; each index is
// moved by one of them only, with release, and read by the other with acquire. So no place is used by both at once.
unsafe impl<T: Send> Sync for Ring<T> {}

/// The end that sends.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
    tail: u32,
    /// How far the receiver was when we looked last.
    head: u32,
}

/// The end that receives.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    head: u32,
    /// How far the sender was when we looked last.
    tail: u32,
}

/// A channel with `len` places, a power of two.
pub fn channel<T: Copy + Default + Send>(len: usize) -> (Sender<T>, Receiver<T>) {
    assert!(len.is_power_of_two(), "a ring's length is checked when a port is opened");
    let line = || Line(AtomicU32::new(0));
    let places = (0..len).map(|_| UnsafeCell::new(T::default())).collect();
    let ring = Arc::new(Ring { places, head: line(), tail: line() });
    (Sender { ring: ring.clone(), tail: 0, head: 0 }, Receiver { ring, head: 0, tail: 0 })
}

impl<T: Copy> Ring<T> {
    fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// Copies words into the places from `tail` on, which are the sender's.
    #[inline(always)]
    #[cfg(not(loom))]
    fn put(&self, tail: u32, from: &[T]) {
        let at = (tail & (self.len() - 1)) as usize;
        let (first, rest) = from.split_at(from.len().min(self.places.len() - at));
        // SAFETY: these places are the sender's (see above); the first piece ends with the ring at most, and the second
        // begins where it does.
        unsafe {
            let places = UnsafeCell::raw_get(self.places.as_ptr());
            std::ptr::copy_nonoverlapping(first.as_ptr(), places.add(at), first.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), places, rest.len());
        }
    }

    /// Copies words out of the places from `head` on, which are the receiver's.
    #[inline(always)]
    #[cfg(not(loom))]
    fn get(&self, head: u32, to: &mut [T]) {
        let at = (head & (self.len() - 1)) as usize;
        let fits = to.len().min(self.places.len() - at);
        let (first, rest) = to.split_at_mut(fits);
        // SAFETY: as in `put`, of the receiver's.
        unsafe {
            let places = UnsafeCell::raw_get(self.places.as_ptr());
            std::ptr::copy_nonoverlapping(places.add(at), first.as_mut_ptr(), first.len());
            std::ptr::copy_nonoverlapping(places, rest.as_mut_ptr(), rest.len());
        }
    }

    /// The same for loom, which watches each place.
    #[cfg(loom)]
    fn put(&self, tail: u32, from: &[T]) {
        for (n, word) in from.iter().enumerate() {
            let at = (tail.wrapping_add(n as u32) & (self.len() - 1)) as usize;
            // SAFETY: as above.
            self.places[at].with_mut(|place| unsafe { *place = *word });
        }
    }

    #[cfg(loom)]
    fn get(&self, head: u32, to: &mut [T]) {
        for (n, word) in to.iter_mut().enumerate() {
            let at = (head.wrapping_add(n as u32) & (self.len() - 1)) as usize;
            // SAFETY: as above.
            *word = self.places[at].with(|place| unsafe { *place });
        }
    }
}

impl<T: Copy> Sender<T> {
    /// How many can be sent now, or more than `wanted`.
    #[inline(always)]
    pub fn free(&mut self, wanted: usize) -> usize {
        let free = |sender: &Sender<T>| (sender.ring.len() - sender.tail.wrapping_sub(sender.head)) as usize;
        if free(self) < wanted {
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        free(self)
    }

    /// Sends the first of these, as many as there is room for, and tells how many.
    #[inline(always)]
    pub fn send(&mut self, from: &[T]) -> usize {
        let count = from.len().min(self.free(from.len()));
        self.ring.put(self.tail, &from[..count]);
        self.tail = self.tail.wrapping_add(count as u32);
        self.ring.tail.0.store(self.tail, Ordering::Release);
        count
    }
}

impl<T: Copy> Receiver<T> {
    /// How many there are.
    #[inline(always)]
    pub fn available(&mut self) -> usize {
        if self.tail == self.head {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Takes as many as there are, at most what `to` has room for, and tells how many.
    #[inline(always)]
    pub fn receive(&mut self, to: &mut [T]) -> usize {
        let count = to.len().min(self.available());
        self.ring.get(self.head, &mut to[..count]);
        self.head = self.head.wrapping_add(count as u32);
        self.ring.head.0.store(self.head, Ordering::Release);
        count
    }

    /// How many there are now, also those that [`available`](Receiver::available) did not look for.
    pub fn waiting(&self) -> usize {
        self.ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head) as usize
    }
}
