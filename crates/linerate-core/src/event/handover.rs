//! Hands a value over from a control thread, which receives changes in messages, to a queue, which uses it.
//!
//! A queue takes no lock while it moves packets. It checks for a change with one load of a word that rarely changes.
//! `crates/linerate/tests/loom.rs` checks this with loom.

use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};

use crate::memory::full_fence;

/// A value that a control thread changes. Queues keep copies of the parts that they [take](Handover::take).
///
/// If a peer must know when a queue has stopped using the old value, the queue calls [`enter`](Handover::enter) before
/// each poll, and [`leave`](Handover::leave) after it. Only one queue may do this.
#[derive(Debug, Default)]
pub struct Handover<T> {
    value: Mutex<T>,
    /// The number of changes.
    changes: AtomicU32,
    /// The queue is in a poll.
    is_entered: AtomicBool,
}

/// The number of changes that a queue has seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen(u32);

impl Seen {
    /// The initial value: the first check reports a change.
    pub const NONE: Seen = Seen(u32::MAX);
}

impl<T> Handover<T> {
    /// Creates a handover of a value that no queue has taken yet.
    #[cfg(any(loom, test))]
    pub fn new(value: T) -> Handover<T> {
        Handover { value: Mutex::new(value), changes: AtomicU32::new(0), is_entered: AtomicBool::new(false) }
    }

    /// Locks the value, for reading.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value. Queues detect it at their next check.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        let result = change(&mut value);
        // A queue that sees the new count waits for the lock, and then finds the new value.
        self.changes.fetch_add(1, Release);
        result
    }

    /// Waits until the queue has stopped using values before the last change. Calls `pause` while it waits; returns
    /// false if `pause` returns false.
    pub fn wait_until_idle(&self, mut pause: impl FnMut() -> bool) -> bool {
        // The queue sets `is_entered`, then checks `changes`; this thread incremented `changes`, and now checks
        // `is_entered`. The two full fences ensure that at least one sees the other's store.
        full_fence();
        while self.is_entered.load(Acquire) {
            if !pause() {
                return false;
            }
        }
        true
    }

    /// Returns whether the value has changed since it was taken.
    #[inline(always)]
    pub fn is_changed(&self, seen: Seen) -> bool {
        self.changes.load(Acquire) != seen.0
    }

    /// Passes the value to `take`, which copies the parts that the queue needs, and marks it as seen.
    pub fn take<R>(&self, seen: &mut Seen, take: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        *seen = Seen(self.changes.load(Acquire));
        take(&mut value)
    }

    /// Begins a poll. Returns whether the value has changed since it was taken.
    #[inline(always)]
    pub fn enter(&self, seen: Seen) -> bool {
        self.is_entered.store(true, Relaxed);
        full_fence();
        self.is_changed(seen)
    }

    /// Ends a poll.
    #[inline(always)]
    pub fn leave(&self) {
        self.is_entered.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_once_and_a_wait_ends_without_the_queue() {
        let handover = Handover::new(1);
        let mut seen = Seen::NONE;
        assert!(handover.enter(seen));
        assert_eq!(handover.take(&mut seen, |value| *value), 1);
        assert!(!handover.is_changed(seen));
        handover.change(|value| *value = 2);
        assert!(handover.is_changed(seen));
        let mut pauses = 0;
        let pause = || {
            pauses += 1;
            pauses < 3
        };
        assert!(!handover.wait_until_idle(pause));
        assert_eq!(pauses, 3);
        handover.leave();
        assert!(handover.wait_until_idle(|| unreachable!("nothing to wait for")));
        assert!(handover.enter(seen));
        assert_eq!(handover.take(&mut seen, |value| *value), 2);
    }
}
