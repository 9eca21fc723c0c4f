//! A virtqueue between the control thread, which hears of it in messages, and the queue that works on it.
//!
//! The queue takes no lock while it moves packets. It says that it is in a poll, and looks whether the setup has changed; the
//! control thread changes the setup, then waits until no poll is in progress. Whoever comes second sees the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::GuestMemory;
use super::split::{Addresses, Split};
use crate::error::Result;
use crate::memory::full_fence;
use crate::pci::Interrupt;
use crate::spec::virtio::feature;

/// No place is known: a ring begins where the front end has seen it used.
const UNKNOWN: u32 = u32::MAX;

/// A virtqueue, as both threads share it.
pub struct Vring {
    setup: Mutex<Setup>,
    /// Counts the changes of the setup.
    generation: AtomicU32,
    /// The queue is in a poll.
    is_polling: AtomicBool,
    /// The count of chains taken and used, modulo 2^16; or [`UNKNOWN`].
    place: AtomicU32,
    /// The front end has broken the ring's rules, or taken its memory away: nothing more is taken from it.
    is_broken: AtomicBool,
    /// Raised at each change, for a queue that sleeps.
    changed: Interrupt,
}

/// What the front end has said of a virtqueue.
#[derive(Clone, Default)]
pub struct Setup {
    pub memory: Arc<GuestMemory>,
    pub addresses: Addresses,
    pub size: u16,
    /// The place that the front end has named.
    pub base: u16,
    /// The features of the connection.
    pub features: u64,
    /// It has sent a descriptor for notifications, which starts the ring.
    pub is_started: bool,
    pub is_enabled: bool,
    pub kick: Option<Arc<Interrupt>>,
    pub call: Option<Arc<Interrupt>>,
}

/// A virtqueue that can be worked on.
pub struct Running {
    pub ring: Split,
    pub setup: Setup,
}

impl Vring {
    pub fn new() -> Result<Vring> {
        Ok(Vring {
            setup: Mutex::default(),
            generation: AtomicU32::new(1),
            is_polling: AtomicBool::new(false),
            place: AtomicU32::new(UNKNOWN),
            is_broken: AtomicBool::new(false),
            changed: Interrupt::new()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Setup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the setup. When this returns, no queue works with the old one.
    pub fn change<T>(&self, change: impl FnOnce(&mut Setup) -> T) -> T {
        let result = change(&mut self.lock());
        self.generation.fetch_add(1, Release);
        full_fence();
        while self.is_polling.load(Acquire) {
            std::thread::yield_now();
        }
        self.changed.raise();
        result
    }

    /// Forgets the ring's place, before it is started.
    pub fn begin_anew(&self) {
        self.place.store(UNKNOWN, Relaxed);
        self.is_broken.store(false, Relaxed);
    }

    /// Returns the count of chains taken and used, modulo 2^16; `None` if none was looked at.
    pub fn place(&self) -> Option<u16> {
        u16::try_from(self.place.load(Acquire)).ok()
    }

    /// Returns whether packets can pass.
    pub fn is_ready(&self) -> bool {
        let setup = self.lock();
        setup.is_started && setup.is_enabled && !self.is_broken.load(Relaxed)
    }

    /// Stops work on the ring until the front end sets it up again.
    #[cold]
    pub fn give_up(&self) {
        self.is_broken.store(true, Relaxed);
    }

    /// Returns the event that is raised at each change.
    pub fn changed(&self) -> &Interrupt {
        &self.changed
    }
}

/// A queue's own view of its virtqueue.
pub struct Attached {
    vring: Arc<Vring>,
    /// The generation of `running`.
    generation: u32,
    running: Option<Running>,
}

impl Attached {
    pub fn new(vring: Arc<Vring>) -> Attached {
        Attached { vring, generation: 0, running: None }
    }

    pub fn vring(&self) -> &Vring {
        &self.vring
    }

    /// Begins a poll; `None` if there is nothing to work on. End it with [`leave`](Attached::leave).
    #[inline(always)]
    pub fn enter(&mut self) -> Option<&mut Running> {
        self.vring.is_polling.store(true, Relaxed);
        full_fence();
        if self.vring.generation.load(Acquire) != self.generation {
            self.adopt();
        }
        if self.running.is_none() {
            self.vring.is_polling.store(false, Release);
        }
        self.running.as_mut()
    }

    /// Ends a poll.
    #[inline(always)]
    pub fn leave(&mut self) {
        if let Some(running) = &self.running {
            self.vring.place.store(running.ring.next().into(), Relaxed);
        }
        self.vring.is_polling.store(false, Release);
    }

    /// Stops work on the ring, which the front end has broken.
    #[cold]
    pub fn give_up(&mut self) {
        self.vring.give_up();
        self.running = None;
    }

    /// Returns whether a poll would find something new: cheaper than [`enter`](Attached::enter), and without a fence.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        let is_changed = self.vring.generation.load(Relaxed) != self.generation;
        is_changed || self.running.as_ref().is_some_and(|running| running.ring.waiting() != Some(0))
    }

    /// Takes over a changed setup. The poll is not in progress while this waits for the control thread.
    #[cold]
    fn adopt(&mut self) {
        let vring = &*self.vring;
        vring.is_polling.store(false, Release);
        let setup = {
            let setup = vring.lock();
            vring.is_polling.store(true, Relaxed);
            self.generation = vring.generation.load(Acquire);
            setup.clone()
        };
        self.running = None;
        if !setup.is_started || vring.is_broken.load(Relaxed) {
            return;
        }
        let event_idx = setup.features & feature::EVENT_IDX != 0;
        match Split::new(&setup.memory, setup.addresses, setup.size, event_idx, vring.place()) {
            Some(ring) => {
                ring.forbid_notifications();
                vring.place.store(ring.next().into(), Relaxed);
                self.running = Some(Running { ring, setup });
            }
            None => {
                tracing::warn!("a ring is not in the front end's memory: {:?}", setup.addresses);
                vring.give_up();
            }
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.vring.is_polling.store(false, Release);
    }
}
