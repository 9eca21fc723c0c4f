//! Hands a value over from a control thread, which hears of changes in messages, to a queue, which works with it.
//!
//! A queue takes no lock while it moves packets: it looks whether there was a change, which is one load of a word that rarely
//! changes. Checked with loom in `tests/loom.rs`.

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

/// A value that a control thread changes, and of which queues keep what they have [taken](Handover::take).
///
/// A queue whose peer must know that it works with the old value no more [enters](Handover::enter) it before each poll, and
/// [leaves](Handover::leave) it after that. There may be one such queue.
#[derive(Debug, Default)]
pub struct Handover<T> {
    value: Mutex<T>,
    /// Counts the changes.
    changes: AtomicU32,
    /// The queue is in a poll.
    is_entered: AtomicBool,
}

/// The changes that a queue has seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen(u32);

impl Seen {
    /// The first look finds a change.
    pub const NOTHING: Seen = Seen(u32::MAX);
}

impl<T> Handover<T> {
    /// Creates one whose value no queue has taken yet.
    #[cfg(any(loom, test))]
    pub fn new(value: T) -> Handover<T> {
        Handover { value: Mutex::new(value), changes: AtomicU32::new(0), is_entered: AtomicBool::new(false) }
    }

    /// Returns the value, to look at it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the value. Queues find out at their next look.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        let result = change(&mut value);
        // Whoever sees it finds the lock taken, or the new value.
        self.changes.fetch_add(1, Release);
        result
    }

    /// Waits until the queue works with none of the values before the last change. Returns false if `pause`, which is called as
    /// long as it does, gives up.
    pub fn wait_until_left(&self, mut pause: impl FnMut() -> bool) -> bool {
        // The queue stores that it is in a poll, and looks for changes then: either it finds the last one, or this finds it.
        full_fence();
        while self.is_entered.load(Acquire) {
            if !pause() {
                return false;
            }
        }
        true
    }

    /// Returns whether the value was changed since it was taken.
    #[inline(always)]
    pub fn is_changed(&self, seen: Seen) -> bool {
        self.changes.load(Acquire) != seen.0
    }

    /// Takes over what a queue needs of the value.
    pub fn take<R>(&self, seen: &mut Seen, take: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        *seen = Seen(self.changes.load(Acquire));
        take(&mut value)
    }

    /// Begins a poll. Returns whether the value was changed since it was taken.
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
        let mut seen = Seen::NOTHING;
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
        assert!(!handover.wait_until_left(pause));
        assert_eq!(pauses, 3);
        handover.leave();
        assert!(handover.wait_until_left(|| unreachable!("nothing to wait for")));
        assert!(handover.enter(seen));
        assert_eq!(handover.take(&mut seen, |value| *value), 2);
    }
}
