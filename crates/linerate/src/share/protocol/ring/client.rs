//! The client's side of a ring.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Instant;

use super::{
    ARMED, CLIENT_HEAD, CLIENT_LOCK, CLIENT_TAIL, CLIENT_WAITS, CUR, HEAD, Ring, SERVER_TAIL, SYNC_TIME, TAIL,
    TOKEN_SENT,
};
use crate::error::{Error, Result};
use crate::memory::full_fence;

/// A thread's turn to sync a ring. Dropping it ends the turn.
pub struct Turn<'a> {
    lock: &'a AtomicU32,
    /// The lock's value meanwhile: an odd number.
    held: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Another thread may have taken it over.
        let _ = self.lock.compare_exchange(self.held, self.held.wrapping_add(1), Release, Relaxed);
    }
}

/// The program's side. It has no state but the ring's: threads and processes that share the port take turns.
#[derive(Clone)]
pub struct ClientRing {
    pub ring: Ring,
}

impl ClientRing {
    /// The side of a program that opens the port: its head and cur are where the last one's were.
    pub fn begin(ring: Ring) -> ClientRing {
        let client = ClientRing { ring };
        client.set(client.head() as u32, client.head() as u32);
        client.update_tail();
        client
    }

    /// Sets head and cur, regardless of the last program's values.
    pub fn restart(&self, head: usize) {
        self.ring.state(CLIENT_HEAD).store(head as u32, Release);
        self.set(head as u32, head as u32);
    }

    /// Waits for the ring's turn, and takes it. `None` if another thread has it for longer than any sync takes and goes on
    /// with others: then this sync is left out, as netmap does where a ring is busy.
    ///
    /// A thread that was stopped or killed in its turn loses it.
    #[inline(always)]
    pub fn turn(&self) -> Option<Turn<'_>> {
        let lock = self.ring.state(CLIENT_LOCK);
        let free = lock.load(Relaxed);
        let held = free.wrapping_add(1);
        if free & 1 == 0 && lock.compare_exchange(free, held, Acquire, Relaxed).is_ok() {
            return Some(Turn { lock, held });
        }
        self.wait_for_turn()
    }

    #[cold]
    fn wait_for_turn(&self) -> Option<Turn<'_>> {
        let (lock, begin) = (self.ring.state(CLIENT_LOCK), Instant::now());
        let first = lock.load(Relaxed);
        loop {
            let now = lock.load(Relaxed);
            let is_late = begin.elapsed() > SYNC_TIME;
            let held = if now & 1 == 0 { now.wrapping_add(1) } else { now.wrapping_add(2) };
            // It is free; or the thread that has it has had it all the time.
            if (now & 1 == 0 || is_late && now == first) && lock.compare_exchange(now, held, Acquire, Relaxed).is_ok() {
                return Some(Turn { lock, held });
            }
            if is_late {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Publishes the program's head; true if it has moved.
    ///
    /// # Errors
    /// [`Error::BadRing`] if head or cur are not where they can be; both are set back then.
    #[inline(always)]
    pub fn publish_head(&self) -> Result<bool> {
        let (head, cur) = (self.ring.word(HEAD).load(Relaxed) as usize, self.ring.word(CUR).load(Relaxed) as usize);
        let before = self.head();
        if head != before || cur != before {
            let (slots, tail) = (self.ring.place.slots, self.tail());
            let most = self.ring.distance(before, tail);
            if head >= slots || cur >= slots || self.ring.distance(before, head) > most {
                return Err(self.set_back());
            }
            if self.ring.distance(head, cur) > self.ring.distance(head, tail) {
                return Err(self.set_back());
            }
        }
        self.ring.state(CLIENT_HEAD).store(head as u32, Release);
        Ok(head != before)
    }

    #[cold]
    fn set_back(&self) -> Error {
        self.set(self.head() as u32, self.head() as u32);
        self.ring.word(TAIL).store(self.tail() as u32, Relaxed);
        Error::BadRing
    }

    /// Returns where the program has its head, if that is in the ring; otherwise where it was.
    pub fn wanted_head(&self) -> usize {
        let head = self.ring.word(HEAD).load(Relaxed) as usize;
        if head < self.ring.place.slots { head } else { self.head() }
    }

    /// Returns how many slots the program has released since the last sync; 0 if that cannot be.
    pub fn released(&self) -> usize {
        let released = self.ring.distance(self.head(), self.wanted_head());
        if released <= self.ring.distance(self.head(), self.tail()) { released } else { 0 }
    }

    /// Returns head at the last sync.
    #[inline(always)]
    pub fn head(&self) -> usize {
        self.ring.index(CLIENT_HEAD).unwrap_or(0)
    }

    /// Returns the tail that the last sync has shown.
    #[inline(always)]
    pub fn tail(&self) -> usize {
        self.ring.index(CLIENT_TAIL).unwrap_or_else(|| self.head())
    }

    /// Sets the program's head and cur for it.
    pub fn set(&self, head: u32, cur: u32) {
        self.ring.word(HEAD).store(head, Relaxed);
        self.ring.word(CUR).store(cur, Relaxed);
    }

    /// Frees the slots of a transmit ring in front of this one, as its server does.
    #[inline(always)]
    pub fn done(&self, slot: usize) {
        self.ring.free_up_to(slot);
    }

    /// Learns up to where slots are the program's.
    #[inline(always)]
    pub fn update_tail(&self) {
        if let Some(tail) = self.ring.index(SERVER_TAIL) {
            self.ring.state(CLIENT_TAIL).store(tail as u32, Relaxed);
            self.ring.word(TAIL).store(tail as u32, Relaxed);
        }
    }

    /// Returns whether tail is past cur: poll(2) returns then.
    pub fn is_ready(&self) -> bool {
        self.ring.word(CUR).load(Relaxed) as usize != self.tail()
    }

    /// True once if the server wants a token, now that head has moved.
    #[inline(always)]
    pub fn must_notify(&self) -> bool {
        self.ring.must_wake_server()
    }

    /// Asks the server for a token when tail moves, unless one is there already. Look once more after this.
    pub fn arm(&self) {
        if !self.has_token() {
            self.ring.state(CLIENT_WAITS).store(ARMED, SeqCst);
            full_fence();
        }
    }

    /// Returns whether a token is there, or was, that nobody has forgotten.
    pub fn has_token(&self) -> bool {
        self.ring.state(CLIENT_WAITS).load(Acquire) == TOKEN_SENT
    }

    /// Returns whether tail is past the program's head.
    pub fn has_news(&self) -> bool {
        self.ring.index(SERVER_TAIL).is_some_and(|tail| tail != self.ring.word(CUR).load(Relaxed) as usize)
    }

    /// Forgets the token of the last time, which was read; true if there was one.
    pub fn forget_token(&self) -> bool {
        self.ring.state(CLIENT_WAITS).compare_exchange(TOKEN_SENT, 0, SeqCst, Relaxed).is_ok()
    }
}
