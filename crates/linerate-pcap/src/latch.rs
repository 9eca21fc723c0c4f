//! A lock for data shared by threads and signal handlers.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The thread that holds a lock; 0: none.
///
/// It lets a signal handler detect that its own thread holds the lock, and that waiting would be a deadlock.
pub struct Owner(AtomicUsize);

impl Owner {
    pub const fn none() -> Owner {
        Owner(AtomicUsize::new(0))
    }

    /// Returns whether the calling thread is the owner.
    pub fn is_this_thread(&self) -> bool {
        self.0.load(Ordering::Relaxed) == this_thread()
    }
}

/// Returns a number that no other running thread has. Signal handlers may call it.
fn this_thread() -> usize {
    // SAFETY: it has no requirements.
    unsafe { libc::pthread_self() as usize }
}

/// How long a child process waits for a lock. The holder may be a thread of the parent that does not exist in the child
/// (fork(2)).
const LONGEST_IN_CHILD: Duration = Duration::from_secs(1);

/// A mutex whose owner is known.
pub struct Latch<T> {
    owner: Owner,
    value: UnsafeCell<T>,
    process: u32,
}

// SAFETY: only the owner has a reference to the value.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    pub fn new(value: T) -> Latch<T> {
        Latch { owner: Owner::none(), value: UnsafeCell::new(value), process: std::process::id() }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns whether the calling thread holds the lock.
    pub fn is_held_by_this_thread(&self) -> bool {
        self.owner.is_this_thread()
    }

    /// Locks without waiting; `None` if the lock is held.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let taken = self.owner.0.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard(self))
    }

    /// Locks, and waits for other threads. Returns `None` if the calling thread, interrupted by a signal handler, holds
    /// the lock, or if a child process waits too long for it.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let mut begin = None;
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            if self.owner.is_this_thread() {
                return None;
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited > LONGEST_IN_CHILD && self.process != std::process::id() {
                return None;
            }
            std::thread::yield_now();
        }
    }
}

/// Access to a latch's value; dropping it unlocks the latch.
pub struct Guard<'a, T>(&'a Latch<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard's thread owns the latch, so this is the only guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.owner.0.store(0, Ordering::Release);
    }
}
