//! The client's end of a ring.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Instant;

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::memory::full_fence;

use super::{
    ARMED, CLIENT_HEAD, CLIENT_LOCK, CLIENT_TAIL, CLIENT_TOKEN, CUR, HEAD, SERVER_TAIL, SYNC_TIME, SharedRing, TAIL,
    TOKEN_SENT,
};

/// A thread's turn to sync a ring; it ends when this is dropped.
pub struct Turn<'a> {
    lock: &'a AtomicU32,
    /// The lock's value during the turn, which is odd.
    held: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Another thread may have taken over the turn.
        let _ = self.lock.compare_exchange(self.held, self.held.wrapping_add(1), Release, Relaxed);
    }
}

/// The client's end of a ring. All state is in the ring: threads and processes that share the port take turns.
#[derive(Clone)]
pub struct ClientRing {
    pub ring: SharedRing,
}

impl ClientRing {
    /// Opens the client's end of a port that was closed before. Head and cur are reset to the head of the last sync.
    pub fn begin(ring: SharedRing) -> ClientRing {
        let client = ClientRing { ring };
        client.set(client.head() as u32, client.head() as u32);
        client.update_tail();
        client
    }

    /// Sets head and cur, regardless of what the port's last user left there.
    pub fn reset_head(&self, head: usize) {
        self.ring.state(CLIENT_HEAD).store(head as u32, Release);
        self.set(head as u32, head as u32);
    }

    /// Waits for this thread's turn to sync. Returns `None` if other threads sync so often that the turn does not come
    /// within `SYNC_TIME`. The caller then skips this sync, as netmap does when a ring is busy.
    ///
    /// A thread that is stopped or killed during its turn loses it.
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
            // The lock is free, or one thread has held it all the time.
            if (now & 1 == 0 || is_late && now == first) && lock.compare_exchange(now, held, Acquire, Relaxed).is_ok() {
                return Some(Turn { lock, held });
            }
            if is_late {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Publishes the program's head; returns whether it moved.
    ///
    /// # Errors
    /// As [`checked_head`](ClientRing::checked_head).
    #[inline(always)]
    pub fn publish_head(&self) -> Result<bool> {
        let head = self.checked_head()?;
        Ok(self.publish(head))
    }

    /// Returns the program's head. The program may change it at any time, so callers must read it only once.
    ///
    /// # Errors
    /// [`ErrorKind::BadRing`] if head or cur is outside the program's slots; both are then reset.
    #[inline(always)]
    pub fn checked_head(&self) -> Result<usize> {
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
        Ok(head)
    }

    /// Publishes a validated head; returns whether it moved.
    #[inline(always)]
    pub fn publish(&self, head: usize) -> bool {
        let before = self.head();
        self.ring.state(CLIENT_HEAD).store(head as u32, Release);
        head != before
    }

    #[cold]
    fn set_back(&self) -> Error {
        self.set(self.head() as u32, self.head() as u32);
        self.ring.word(TAIL).store(self.tail() as u32, Relaxed);
        let why = "head or cur of a ring is not between the last head and tail: both were reset (netmap(4))";
        Error::new(ErrorKind::BadRing, "", why)
    }

    /// Returns the program's head, or the head at the last sync if the program's is outside the ring.
    pub fn program_head(&self) -> usize {
        let head = self.ring.word(HEAD).load(Relaxed) as usize;
        if head < self.ring.place.slots { head } else { self.head() }
    }

    /// Returns the number of slots that the program has released since the last sync; 0 if its head is invalid.
    pub fn released(&self) -> usize {
        let released = self.ring.distance(self.head(), self.program_head());
        if released <= self.ring.distance(self.head(), self.tail()) { released } else { 0 }
    }

    /// Returns the head at the last sync.
    #[inline(always)]
    pub fn head(&self) -> usize {
        self.ring.index(CLIENT_HEAD).unwrap_or(0)
    }

    /// Returns the tail that the program saw at the last sync.
    #[inline(always)]
    pub fn tail(&self) -> usize {
        self.ring.index(CLIENT_TAIL).unwrap_or_else(|| self.head())
    }

    /// Sets head and cur as the program would.
    pub fn set(&self, head: u32, cur: u32) {
        self.ring.word(HEAD).store(head, Relaxed);
        self.ring.word(CUR).store(cur, Relaxed);
    }

    /// Returns the slots of a transmit ring before `slot` to the program, in place of the server.
    #[inline(always)]
    pub fn free_up_to(&self, slot: usize) {
        self.ring.free_up_to(slot);
    }

    /// Sets the program's tail to the server's tail.
    #[inline(always)]
    pub fn update_tail(&self) {
        if let Some(tail) = self.ring.index(SERVER_TAIL) {
            self.show_tail(tail);
        }
    }

    /// Sets the program's tail.
    #[inline(always)]
    pub fn show_tail(&self, tail: usize) {
        self.ring.state(CLIENT_TAIL).store(tail as u32, Relaxed);
        self.ring.word(TAIL).store(tail as u32, Relaxed);
    }

    /// Returns whether the tail has moved past cur, so that poll(2) returns.
    pub fn is_ready(&self) -> bool {
        self.ring.word(CUR).load(Relaxed) as usize != self.tail()
    }

    /// Returns whether the server has asked to be woken with a token when the head moves, and clears the request.
    #[inline(always)]
    pub fn must_notify(&self) -> bool {
        self.ring.must_wake_server()
    }

    /// Asks the server to send a token when the tail moves, unless the last token is still unread. The caller must then
    /// check the tail once more.
    pub fn arm(&self) {
        if !self.has_token() {
            self.ring.state(CLIENT_TOKEN).store(ARMED, SeqCst);
            full_fence();
        }
    }

    /// Returns whether the server has sent a token that is not yet recorded as [read](ClientRing::forget_token).
    pub fn has_token(&self) -> bool {
        self.ring.state(CLIENT_TOKEN).load(Acquire) == TOKEN_SENT
    }

    /// Returns whether the server's tail has moved past the program's cur.
    pub fn tail_past_cur(&self) -> bool {
        self.ring.index(SERVER_TAIL).is_some_and(|tail| tail != self.ring.word(CUR).load(Relaxed) as usize)
    }

    /// Records that the last token was read; returns whether a token was recorded as sent.
    pub fn forget_token(&self) -> bool {
        self.ring.state(CLIENT_TOKEN).compare_exchange(TOKEN_SENT, 0, SeqCst, Relaxed).is_ok()
    }
}
