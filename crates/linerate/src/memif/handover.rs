//! A connection's rings between the control thread, which sets them up, and the queues that work on them.
//!
//! A queue takes no lock while it moves packets: it looks whether the connection has changed, which is one load of a word
//! that rarely does. It keeps the memory of a connection that has ended until it looks.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::regions::Regions;
use super::ring::{At, Direction, Ring};
use crate::error::Result;
use crate::pci::Interrupt;

/// The rings of one connection.
pub struct Connected {
    pub regions: Arc<Regions>,
    /// Rings by queue; `None` for queues that the peer does not have.
    pub receives: Vec<Option<Place>>,
    pub sends: Vec<Option<Place>>,
    /// The peer's name of itself.
    pub peer: String,
    /// The peer has broken the rules of a ring, or taken its memory away.
    is_broken: AtomicBool,
}

/// A ring, its event, and the descriptor where its last user has stopped.
pub struct Place {
    at: At,
    next: AtomicU16,
    event: Interrupt,
}

impl Place {
    pub fn new(at: At, direction: Direction, event: Interrupt) -> Place {
        Place { at, next: AtomicU16::new(Ring::first(at, direction)), event }
    }
}

impl Connected {
    pub fn new(regions: Arc<Regions>, receives: Vec<Option<Place>>, sends: Vec<Option<Place>>, peer: String) -> Self {
        Connected { regions, receives, sends, peer, is_broken: AtomicBool::new(false) }
    }
}

/// The state that the control thread, the port and its queues share.
pub struct Handover {
    /// Counts the changes of the connection.
    generation: AtomicU32,
    connected: Mutex<Option<Arc<Connected>>>,
    /// Raised by a queue whose ring is broken.
    broken: Interrupt,
    /// How often a ring was.
    breaches: AtomicU64,
    /// Raised at each new connection, for receive queues that sleep without one.
    changed: Vec<Interrupt>,
}

impl Handover {
    /// # Errors
    /// [`Error::System`](crate::Error::System) without descriptors.
    pub fn new(rx_queues: u16) -> Result<Handover> {
        Ok(Handover {
            generation: AtomicU32::new(1),
            connected: Mutex::default(),
            broken: Interrupt::new()?,
            breaches: AtomicU64::new(0),
            changed: (0..rx_queues).map(|_| Interrupt::new()).collect::<Result<Vec<_>>>()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Connected>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the connection. Queues find out at their next poll; those that sleep are woken.
    pub fn change(&self, connected: Option<Connected>) {
        let old = {
            let mut current = self.lock();
            self.generation.fetch_add(1, Release);
            std::mem::replace(&mut *current, connected.map(Arc::new))
        };
        self.broken.clear();
        let events = old.iter().flat_map(|old| &old.receives).flatten().map(|place| &place.event);
        events.chain(&self.changed).for_each(Interrupt::raise);
    }

    /// Returns the connection, if there is one whose rings work.
    pub fn connected(&self) -> Option<Arc<Connected>> {
        self.lock().clone().filter(|connected| !connected.is_broken.load(Relaxed))
    }

    #[cold]
    fn give_up(&self, connected: &Connected) {
        connected.is_broken.store(true, Relaxed);
        self.breaches.fetch_add(1, Relaxed);
        self.broken.raise();
    }

    /// Returns whether a ring of this connection is broken, and clears the event.
    pub fn is_broken(&self) -> bool {
        self.broken.clear();
        self.connected().is_none()
    }

    /// Returns how often peers have broken the rules of a ring.
    pub fn breaches(&self) -> u64 {
        self.breaches.load(Relaxed)
    }

    /// Returns the event that is raised when a ring is broken.
    pub fn broken(&self) -> &Interrupt {
        &self.broken
    }
}

/// A queue's own view of its ring.
pub struct Attached {
    handover: Arc<Handover>,
    direction: Direction,
    queue: u16,
    /// The generation of `running`.
    generation: u32,
    running: Option<Running>,
}

/// A ring that can be worked on.
struct Running {
    ring: Ring,
    connected: Arc<Connected>,
}

impl Attached {
    pub fn new(handover: &Arc<Handover>, direction: Direction, queue: u16) -> Attached {
        Attached { handover: handover.clone(), direction, queue, generation: 0, running: None }
    }

    /// Returns the ring of the connection that there is; `None` without one.
    #[inline(always)]
    pub fn ring(&mut self) -> Option<&mut Ring> {
        if self.handover.generation.load(Acquire) != self.generation {
            self.adopt();
        }
        self.running.as_mut().map(|running| &mut running.ring)
    }

    fn place<'a>(&self, connected: &'a Connected) -> Option<&'a Place> {
        let places = match self.direction {
            Direction::Receive => &connected.receives,
            Direction::Send => &connected.sends,
        };
        places.get(usize::from(self.queue))?.as_ref()
    }

    /// Returns the event of the ring, to be raised by its sender.
    #[inline(always)]
    pub fn event(&self) -> Option<&Interrupt> {
        self.running.as_ref().and_then(|running| self.place(&running.connected)).map(|place| &place.event)
    }

    /// Returns the event that is raised when there is a connection.
    pub fn changed(&self) -> &Interrupt {
        &self.handover.changed[usize::from(self.queue)]
    }

    /// Stops work on the ring, which the peer has broken, and on its connection.
    #[cold]
    pub fn give_up(&mut self) {
        if let Some(running) = self.running.take() {
            self.handover.give_up(&running.connected);
        }
    }

    /// Notes where this user stops, for the next one.
    fn leave(&mut self) {
        if let Some(running) = self.running.take()
            && let Some(place) = self.place(&running.connected)
        {
            place.next.store(running.ring.next(), Relaxed);
        }
    }

    #[cold]
    fn adopt(&mut self) {
        self.leave();
        let connected = {
            let connected = self.handover.lock();
            self.generation = self.handover.generation.load(Acquire);
            connected.clone()
        };
        let Some(connected) = connected else { return };
        let Some(place) = self.place(&connected) else { return };
        match Ring::new(&connected.regions, place.at, place.next.load(Relaxed)) {
            Some(mut ring) => {
                if self.direction == Direction::Receive {
                    ring.mask();
                }
                // A client that receives has handed nothing over yet.
                ring.advance(0);
                self.running = Some(Running { ring, connected });
            }
            None => self.handover.give_up(&connected),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.leave();
    }
}
