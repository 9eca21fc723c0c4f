//! The thread that runs cards.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_core::error::{Error, Result};

use super::Card;

/// Frames each way that a card moves before the next card's turn.
const BUDGET: usize = 64;
/// Idle turns before the thread yields the processor.
const IDLE_TURNS: usize = 200;
/// How long the idle thread sleeps if all cards are served. Their doorbells are handled when they are rung, so only
/// wires can bring work.
const NAP: Duration = Duration::from_micros(50);

/// A thread that steps cards in turn until it is dropped.
pub struct Runner {
    stop: Arc<AtomicBool>,
    cards: Arc<Mutex<Vec<Weak<Card>>>>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread. A child of fork(2) has no such thread, and its copies of the locks stay as
    /// they were at the fork.
    process: u32,
}

impl Runner {
    /// Starts the thread, without cards.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> Result<Runner> {
        let (stop, cards) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Weak<Card>>>>::default());
        let (stopped, shared) = (stop.clone(), cards.clone());
        let thread = std::thread::Builder::new()
            .name("82599 model".to_string())
            .spawn(move || run(&stopped, &shared))
            .map_err(Error::thread)?;
        Ok(Runner { stop, cards, thread: Some(thread), process: std::process::id() })
    }

    /// Runs `card`, too, as long as it exists. Its doorbells become single stores.
    pub fn run(&self, card: &Arc<Card>) {
        card.disable_strict();
        self.cards.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(card));
    }

    /// Stops running `card`. When this returns, the thread no longer holds the card.
    pub(super) fn forget(&self, card: &Card) {
        // The runner's own thread already holds the lock. It removes a dropped card in its next turn.
        if !self.is_current() && self.is_of_this_process() {
            let cards = &mut self.cards.lock().unwrap_or_else(PoisonError::into_inner);
            cards.retain(|other| !std::ptr::eq(other.as_ptr(), card));
        }
    }

    /// Returns whether the thread belongs to this process, and not to the parent that forked it.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns whether the caller is the runner's own thread.
    fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread itself may drop the runner, together with a card that holds the runner; a thread cannot join
        // itself. A child of fork(2) has no thread to join.
        match self.thread.take() {
            Some(thread) if !self.is_of_this_process() => std::mem::forget(thread),
            Some(thread) if thread.thread().id() != std::thread::current().id() => drop(thread.join()),
            _ => {}
        }
    }
}

fn run(stop: &AtomicBool, cards: &Mutex<Vec<Weak<Card>>>) {
    let mut idle = 0;
    while !stop.load(Ordering::Relaxed) {
        let (mut moved, mut all_served) = (0, true);
        cards.lock().unwrap_or_else(PoisonError::into_inner).retain(|card| {
            let card = card.upgrade();
            // A panic in one card's wire takes down only that card's link.
            let step = |card: &Arc<Card>| catch_unwind(AssertUnwindSafe(|| card.step(BUDGET))).unwrap_or_default();
            moved += card.as_ref().map_or(0, step);
            all_served &= card.as_ref().is_none_or(|card| card.is_served());
            card.is_some()
        });
        idle = if moved > 0 { 0 } else { idle + 1 };
        if idle > IDLE_TURNS && all_served {
            std::thread::sleep(NAP);
        } else if idle > IDLE_TURNS {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
