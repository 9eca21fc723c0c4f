//! A connection's rings between the control thread, which sets them up, and the queues that work on them.
//!
//! A queue keeps the memory of a connection that has ended until it looks, and until it has received the packets
//! that were in its ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use linerate_core::error::Result;
use linerate_core::event::{Handover, Interrupt, Seen};
use linerate_core::ring::Breach;

use super::lent::Lent;
use super::regions::Regions;
use super::ring::{At, Buffers, Direction, MemifRing};

/// The rings of one connection.
pub struct Connected {
    pub regions: Arc<Regions>,
    /// Rings by queue; `None` for queues that the peer does not have.
    pub receives: Vec<Option<Place>>,
    pub sends: Vec<Option<Place>>,
    /// The peer's name of itself.
    pub peer: String,
    /// The first rule that the peer has broken.
    breach: OnceLock<Breach>,
    /// The peer may use this side's buffers for ever.
    is_kept: AtomicBool,
}

/// A ring, its event, and the descriptor where its last user has stopped.
pub struct Place {
    at: At,
    next: AtomicU16,
    event: Interrupt,
    /// The buffers of this side's that the ring has, while no queue uses it.
    lent: Mutex<Option<Lent>>,
}

impl Place {
    pub fn new(at: At, direction: Direction, event: Interrupt, lent: Option<Lent>) -> Place {
        Place { at, next: AtomicU16::new(MemifRing::first(at, direction)), event, lent: Mutex::new(lent) }
    }

    fn lent(&self) -> MutexGuard<'_, Option<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connected {
    pub fn new(regions: Arc<Regions>, receives: Vec<Option<Place>>, sends: Vec<Option<Place>>, peer: String) -> Self {
        let (breach, is_kept) = (OnceLock::new(), AtomicBool::new(false));
        Connected { regions, receives, sends, peer, breach, is_kept }
    }

    /// Returns whether this side's buffers are lent.
    pub fn lends(&self) -> bool {
        self.receives.iter().chain(&self.sends).flatten().any(|place| place.at.buffers == Buffers::Lent)
    }

    /// Returns the count of descriptors with packets that the peer has not taken.
    pub fn untaken(&self) -> usize {
        let rings = self.sends.iter().flatten().filter_map(|place| MemifRing::new(&self.regions, place.at, 0));
        rings.map(|ring| usize::from(ring.untaken())).sum()
    }

    /// Never returns lent buffers to their pool: the peer may go on using them.
    pub fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if self.is_kept.load(Relaxed) {
            self.receives.iter().chain(&self.sends).flatten().for_each(|place| std::mem::forget(place.lent().take()));
        }
    }
}

/// The state that the control thread, the port and its queues share.
pub struct Shared {
    connected: Handover<Option<Arc<Connected>>>,
    /// Raised by a queue whose ring is broken.
    broken: Interrupt,
    /// How often a ring was.
    breaches: AtomicU64,
    /// Why the server has refused the last connection for good, in its words.
    refusal: Mutex<Option<String>>,
    /// Raised at each new connection, for receive queues that sleep without one.
    changed: Vec<Interrupt>,
}

impl Shared {
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) without descriptors.
    pub fn new(rx_queues: u16) -> Result<Shared> {
        Ok(Shared {
            connected: Handover::default(),
            broken: Interrupt::new()?,
            breaches: AtomicU64::new(0),
            refusal: Mutex::default(),
            changed: (0..rx_queues).map(|_| Interrupt::new()).collect::<Result<Vec<_>>>()?,
        })
    }

    /// Replaces the connection, and returns the last one. Queues find out at their next poll; those that sleep are woken.
    pub fn change(&self, connected: Option<Connected>) -> Option<Arc<Connected>> {
        let old = self.connected.change(|current| std::mem::replace(current, connected.map(Arc::new)));
        self.broken.clear();
        let events = old.iter().flat_map(|old| &old.receives).flatten().map(|place| &place.event);
        events.chain(&self.changed).for_each(Interrupt::raise);
        old
    }

    /// Returns the connection, if there is one whose rings work.
    pub fn connected(&self) -> Option<Arc<Connected>> {
        self.connected.lock().clone().filter(|connected| connected.breach.get().is_none())
    }

    #[cold]
    fn give_up(&self, connected: &Connected, breach: Breach) {
        let _ = connected.breach.set(breach);
        self.breaches.fetch_add(1, Relaxed);
        self.broken.raise();
    }

    /// Returns the rule that the peer has broken in a ring of this connection, and clears the event.
    pub fn breach(&self) -> Option<Breach> {
        self.broken.clear();
        self.connected.lock().as_ref()?.breach.get().copied()
    }

    /// Sets or clears the reason why the server refuses this client.
    pub fn set_refusal(&self, why: Option<String>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns why the server refuses this client, unless another has accepted it since.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    shared: Arc<Shared>,
    direction: Direction,
    queue: u16,
    /// The connection of `running`.
    seen: Seen,
    running: Option<Running>,
}

/// A ring that can be worked on.
struct Running {
    ring: MemifRing,
    lent: Option<Lent>,
    connected: Arc<Connected>,
}

impl Attached {
    pub fn new(shared: &Arc<Shared>, direction: Direction, queue: u16) -> Attached {
        Attached { shared: shared.clone(), direction, queue, seen: Seen::NOTHING, running: None }
    }

    /// Returns the ring of the connection that there is; `None` without one.
    #[inline(always)]
    pub fn ring(&mut self) -> Option<&mut MemifRing> {
        if self.shared.connected.is_changed(self.seen) {
            self.adopt();
        }
        self.current()
    }

    /// Returns the ring that [`ring`](Attached::ring) returned last: a connection may change at any time.
    #[inline(always)]
    pub fn current(&mut self) -> Option<&mut MemifRing> {
        self.running.as_mut().map(|running| &mut running.ring)
    }

    /// As [`current`](Attached::current), with the buffers that it has.
    #[inline(always)]
    pub fn lending(&mut self) -> Option<(&mut MemifRing, &mut Lent)> {
        let Running { ring, lent, .. } = self.running.as_mut()?;
        Some((ring, lent.as_mut()?))
    }

    /// Returns whether there was a connection with this ring at the last look.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the count of buffers that the ring has.
    pub fn lent(&self) -> usize {
        self.running.as_ref().and_then(|running| running.lent.as_ref()).map_or(0, Lent::count)
    }

    /// Asks for interrupts. The event of the ring is raised when its connection ends, too.
    pub fn arm(&mut self) -> BorrowedFd<'_> {
        if let Some(ring) = self.ring() {
            ring.unmask();
        }
        self.event().unwrap_or(self.changed()).as_fd()
    }

    /// Asks for no interrupts.
    pub fn disarm(&mut self) {
        self.changed().clear();
        if let Some(event) = self.event() {
            event.clear();
        }
        if let Some(ring) = self.ring() {
            ring.mask();
        }
    }

    /// Wakes the receiver.
    pub fn raise(&self) {
        if let Some(event) = self.event() {
            event.raise();
        }
    }

    fn place<'a>(&self, connected: &'a Connected) -> Option<&'a Place> {
        let places = match self.direction {
            Direction::Receive => &connected.receives,
            Direction::Send => &connected.sends,
        };
        places.get(usize::from(self.queue))?.as_ref()
    }

    /// Returns the event of the ring, to be raised by its sender.
    fn event(&self) -> Option<&Interrupt> {
        self.running.as_ref().and_then(|running| self.place(&running.connected)).map(|place| &place.event)
    }

    /// Returns the event that is raised when there is a connection.
    fn changed(&self) -> &Interrupt {
        &self.shared.changed[usize::from(self.queue)]
    }

    /// Stops work on the ring, which the peer has broken, and on its connection.
    #[cold]
    pub fn give_up(&mut self, breach: Breach) {
        if let Some(connected) = self.leave() {
            // Memory that was taken away reads as zeros, which break other rules.
            let breach = if connected.regions.is_broken() { Breach::TAKEN_AWAY } else { breach };
            self.shared.give_up(&connected, breach);
        }
    }

    /// Notes where this user stops, for the next one. Returns the connection.
    fn leave(&mut self) -> Option<Arc<Connected>> {
        let Running { ring, lent, connected } = self.running.take()?;
        if let Some(place) = self.place(&connected) {
            place.next.store(ring.next(), Relaxed);
            *place.lent() = lent;
        }
        Some(connected)
    }

    #[cold]
    fn adopt(&mut self) {
        if self.direction == Direction::Receive && self.current().is_some_and(MemifRing::has_rest) {
            return;
        }
        self.leave();
        let connected = self.shared.connected.take(&mut self.seen, |connected| connected.clone());
        let Some(connected) = connected else { return };
        let Some(place) = self.place(&connected) else { return };
        match MemifRing::new(&connected.regions, place.at, place.next.load(Relaxed)) {
            Some(mut ring) => {
                if self.direction == Direction::Receive {
                    ring.mask();
                }
                // A client that receives has handed nothing over yet.
                ring.advance(0);
                let lent = place.lent().take();
                self.running = Some(Running { ring, lent, connected });
            }
            None => self.shared.give_up(&connected, Breach::Other("a ring is not in its region, or has no cookie")),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.leave();
    }
}
