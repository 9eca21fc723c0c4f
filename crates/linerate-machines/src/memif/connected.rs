//! A connection's rings, shared by the control thread, which sets them up, and the queues that use them.
//!
//! After a connection's end, a queue keeps its memory until its next poll, and until it has received the packets left
//! in its ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use linerate_core::error::Result;
use linerate_core::event::{Handover, Interrupt, Seen};
use linerate_core::ring::Breach;

use super::lent::Lent;
use super::regions::Regions;
use super::ring::{Buffers, Direction, MemifRing, RingLocation};

/// The rings of one connection.
pub struct ConnectionRings {
    pub regions: Arc<Regions>,
    /// The rings by queue; `None` for queues that the peer does not have.
    pub receives: Vec<Option<RingSlot>>,
    pub sends: Vec<Option<RingSlot>>,
    /// The name that the peer has sent.
    pub peer: String,
    /// The first breach of a ring.
    breach: OnceLock<Breach>,
    /// The peer may use this side's buffers forever.
    is_leaked: AtomicBool,
}

/// A ring, its event, and the descriptor where its last user stopped.
pub struct RingSlot {
    location: RingLocation,
    next: AtomicU16,
    event: Interrupt,
    /// This side's buffers lent to the ring, while no queue uses it.
    lent: Mutex<Option<Lent>>,
}

impl RingSlot {
    pub fn new(location: RingLocation, direction: Direction, event: Interrupt, lent: Option<Lent>) -> RingSlot {
        RingSlot {
            location,
            next: AtomicU16::new(MemifRing::first(location, direction)),
            event,
            lent: Mutex::new(lent),
        }
    }

    fn lent(&self) -> MutexGuard<'_, Option<Lent>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionRings {
    pub fn new(
        regions: Arc<Regions>,
        receives: Vec<Option<RingSlot>>,
        sends: Vec<Option<RingSlot>>,
        peer: String,
    ) -> Self {
        let (breach, is_leaked) = (OnceLock::new(), AtomicBool::new(false));
        ConnectionRings { regions, receives, sends, peer, breach, is_leaked }
    }

    /// Returns whether this side's buffers are lent.
    pub fn lends(&self) -> bool {
        self.receives.iter().chain(&self.sends).flatten().any(|slot| slot.location.buffers == Buffers::Lent)
    }

    /// Returns the number of descriptors with packets that the peer has not taken.
    pub fn pending(&self) -> usize {
        let rings = self.sends.iter().flatten().filter_map(|slot| MemifRing::new(&self.regions, slot.location, 0));
        rings.map(|ring| usize::from(ring.pending())).sum()
    }

    /// Prevents lent buffers from returning to their pool, because the peer may still use them.
    pub fn leak_lent_buffers(&self) {
        self.is_leaked.store(true, Relaxed);
    }
}

impl Drop for ConnectionRings {
    fn drop(&mut self) {
        if self.is_leaked.load(Relaxed) {
            self.receives.iter().chain(&self.sends).flatten().for_each(|slot| std::mem::forget(slot.lent().take()));
        }
    }
}

/// The state shared by the control thread, the port and its queues.
pub struct Shared {
    connected: Handover<Option<Arc<ConnectionRings>>>,
    /// Raised by a queue whose ring is invalid.
    broken: Interrupt,
    /// The number of invalid rings.
    breaches: AtomicU64,
    /// Why the server has permanently refused the last connection, in its words.
    refusal: Mutex<Option<String>>,
    /// Raised at each new connection, for receive queues that sleep without a connection.
    changed: Vec<Interrupt>,
}

impl Shared {
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no descriptors left.
    pub fn new(rx_queues: u16) -> Result<Shared> {
        Ok(Shared {
            connected: Handover::default(),
            broken: Interrupt::new()?,
            breaches: AtomicU64::new(0),
            refusal: Mutex::default(),
            changed: (0..rx_queues).map(|_| Interrupt::new()).collect::<Result<Vec<_>>>()?,
        })
    }

    /// Replaces the connection, and returns the previous one. Queues notice at their next poll; sleeping queues are
    /// woken.
    pub fn change(&self, connected: Option<ConnectionRings>) -> Option<Arc<ConnectionRings>> {
        let old = self.connected.change(|current| std::mem::replace(current, connected.map(Arc::new)));
        self.broken.clear();
        let events = old.iter().flat_map(|old| &old.receives).flatten().map(|slot| &slot.event);
        events.chain(&self.changed).for_each(Interrupt::raise);
        old
    }

    /// Returns the connection, if there is one with valid rings.
    pub fn connected(&self) -> Option<Arc<ConnectionRings>> {
        self.connected.lock().clone().filter(|connected| connected.breach.get().is_none())
    }

    #[cold]
    fn give_up(&self, connected: &ConnectionRings, breach: Breach) {
        let _ = connected.breach.set(breach);
        self.breaches.fetch_add(1, Relaxed);
        self.broken.raise();
    }

    /// Returns the breach of a ring of this connection, and clears the event.
    pub fn breach(&self) -> Option<Breach> {
        self.broken.clear();
        self.connected.lock().as_ref()?.breach.get().copied()
    }

    /// Sets or clears the reason why the server refuses this client.
    pub fn set_refusal(&self, why: Option<String>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns why the server refuses this client, unless a server has accepted it since.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of invalid rings so far.
    pub fn breaches(&self) -> u64 {
        self.breaches.load(Relaxed)
    }

    /// Returns the event raised when a ring is invalid.
    pub fn broken(&self) -> &Interrupt {
        &self.broken
    }
}

/// A queue's view of its ring.
pub struct QueueRing {
    shared: Arc<Shared>,
    direction: Direction,
    queue: u16,
    /// The version of the connection in `running`.
    seen: Seen,
    running: Option<Running>,
}

/// A ring in use.
struct Running {
    ring: MemifRing,
    lent: Option<Lent>,
    connected: Arc<ConnectionRings>,
}

impl QueueRing {
    pub fn new(shared: &Arc<Shared>, direction: Direction, queue: u16) -> QueueRing {
        QueueRing { shared: shared.clone(), direction, queue, seen: Seen::NONE, running: None }
    }

    /// Returns the ring of the current connection; `None` without a connection.
    #[inline(always)]
    pub fn ring(&mut self) -> Option<&mut MemifRing> {
        if self.shared.connected.is_changed(self.seen) {
            self.adopt();
        }
        self.current()
    }

    /// Returns the ring last returned by [`ring`](QueueRing::ring), even if the connection has changed since.
    #[inline(always)]
    pub fn current(&mut self) -> Option<&mut MemifRing> {
        self.running.as_mut().map(|running| &mut running.ring)
    }

    /// Like [`current`](QueueRing::current), with the buffers lent to the ring.
    #[inline(always)]
    pub fn lending(&mut self) -> Option<(&mut MemifRing, &mut Lent)> {
        let Running { ring, lent, .. } = self.running.as_mut()?;
        Some((ring, lent.as_mut()?))
    }

    /// Returns whether there was a connection with this ring at the last poll.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the number of buffers lent to the ring.
    pub fn lent(&self) -> usize {
        self.running.as_ref().and_then(|running| running.lent.as_ref()).map_or(0, Lent::count)
    }

    /// Requests interrupts. The ring's event is also raised when its connection ends.
    pub fn arm(&mut self) -> BorrowedFd<'_> {
        if let Some(ring) = self.ring() {
            ring.unmask();
        }
        self.event().unwrap_or(self.changed()).as_fd()
    }

    /// Requests no interrupts.
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

    fn slot<'a>(&self, connected: &'a ConnectionRings) -> Option<&'a RingSlot> {
        let places = match self.direction {
            Direction::Receive => &connected.receives,
            Direction::Send => &connected.sends,
        };
        places.get(usize::from(self.queue))?.as_ref()
    }

    /// Returns the ring's event, which its sender raises.
    fn event(&self) -> Option<&Interrupt> {
        self.running.as_ref().and_then(|running| self.slot(&running.connected)).map(|slot| &slot.event)
    }

    /// Returns the event raised at a new connection.
    fn changed(&self) -> &Interrupt {
        &self.shared.changed[usize::from(self.queue)]
    }

    /// Stops work on an invalid ring, and on its connection.
    #[cold]
    pub fn give_up(&mut self, breach: Breach) {
        if let Some(connected) = self.leave() {
            // Truncated memory reads as zeros, which look like another breach.
            let breach = if connected.regions.is_broken() { Breach::TRUNCATED } else { breach };
            self.shared.give_up(&connected, breach);
        }
    }

    /// Stores the position and buffers for the next user. Returns the connection.
    fn leave(&mut self) -> Option<Arc<ConnectionRings>> {
        let Running { ring, lent, connected } = self.running.take()?;
        if let Some(slot) = self.slot(&connected) {
            slot.next.store(ring.next(), Relaxed);
            *slot.lent() = lent;
        }
        Some(connected)
    }

    #[cold]
    fn adopt(&mut self) {
        if self.direction == Direction::Receive && self.current().is_some_and(MemifRing::has_remaining) {
            return;
        }
        self.leave();
        let connected = self.shared.connected.take(&mut self.seen, |connected| connected.clone());
        let Some(connected) = connected else { return };
        let Some(slot) = self.slot(&connected) else { return };
        match MemifRing::new(&connected.regions, slot.location, slot.next.load(Relaxed)) {
            Some(mut ring) => {
                if self.direction == Direction::Receive {
                    ring.mask();
                }
                // A receiving client has not handed over its descriptors yet.
                ring.advance(0);
                let lent = slot.lent().take();
                self.running = Some(Running { ring, lent, connected });
            }
            None => self.shared.give_up(&connected, Breach::Other("a ring is not in its region, or has no cookie")),
        }
    }
}

impl Drop for QueueRing {
    fn drop(&mut self) {
        self.leave();
    }
}
