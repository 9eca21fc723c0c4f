//! A virtqueue, shared by the control thread, which sets it up, and the queue that polls it.
//!
//! After a change of the setup, the control thread waits until no poll with the old one is in progress. Once the front
//! end is told that the change is done, it may reuse its memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use linerate_core::event::{Handover, Interrupt, PEER_TIMEOUT, Seen, YieldWait};
use linerate_core::port::span_of;
use linerate_core::ring::Breach;
use linerate_spec::virtio::feature;

use super::log::Log;
use super::memory::GuestMemory;
use super::packed::Packed;
use super::positions::Record;
use super::ring::{Addresses, DeviceRing};
use super::split::Split;

/// The position is unknown: a split ring begins at its used index, a packed ring at its recorded position or its base.
const UNKNOWN: u32 = u32::MAX;

/// A virtqueue's state, shared by both threads.
pub struct Vring {
    /// The port's name.
    port: String,
    setup: Handover<Setup>,
    /// How long a change waits for the queue to finish its poll.
    pub(super) timeout: Duration,
    /// The queue did not finish its poll in time; further changes wait only briefly.
    is_stalled: AtomicBool,
    /// The position of the next chain, in the format's own encoding; or [`UNKNOWN`].
    position: AtomicU32,
    /// The ring is invalid, or its memory was truncated; the queue ignores it until the driver restarts it.
    is_broken: AtomicBool,
    /// How often the ring was invalid.
    breaches: AtomicU64,
    /// Raised at each change, to wake a sleeping queue.
    changed: Interrupt,
    /// Records the position of a packed ring; `None` if packed rings are not offered.
    record: Option<Record>,
}

/// A queue's thread is stopped during a poll.
#[derive(Debug)]
pub struct Stalled;

/// An RARP frame.
pub type Announcement = [u8; 60];

/// A virtqueue's setup, as described by the front end.
#[derive(Clone, Default)]
pub struct Setup {
    pub memory: Arc<GuestMemory>,
    pub addresses: Addresses,
    pub size: u16,
    /// The position that the front end has set.
    pub base: u16,
    /// The negotiated features.
    pub features: u64,
    /// The front end has sent the notification descriptor, which starts the ring.
    pub is_started: bool,
    pub is_enabled: bool,
    /// The log, while writes must be logged.
    pub log: Option<Arc<Log>>,
    /// The guest address of the used ring, if it is logged.
    pub logged_used: Option<u64>,
    /// A frame to receive as if the guest had sent it; it announces the guest after a migration.
    pub announcement: Option<Announcement>,
    pub kick: Option<Arc<Interrupt>>,
    pub call: Option<Arc<Interrupt>>,
}

/// A ring of either format.
pub enum AnyRing {
    Split(Split),
    Packed(Packed),
}

/// A started virtqueue.
pub struct Running {
    pub ring: AnyRing,
    /// Only this copy of the setup delivers the announcement, and only once.
    pub setup: Setup,
}

impl AnyRing {
    #[inline(always)]
    fn next(&self) -> u16 {
        match self {
            AnyRing::Split(ring) => ring.next(),
            AnyRing::Packed(ring) => ring.next(),
        }
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.has_work(),
            AnyRing::Packed(ring) => ring.has_work(),
        }
    }

    /// Returns the ring as a trait object, for rare calls.
    pub fn as_dyn(&self) -> &dyn DeviceRing {
        match self {
            AnyRing::Split(ring) => ring,
            AnyRing::Packed(ring) => ring,
        }
    }
}

impl Setup {
    /// Returns whether the ring is packed.
    pub fn is_packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    /// Logs all parts of the ring that this side writes, which are only a few pages. Returns false if the front end has
    /// truncated the log.
    fn log_ring(&self) -> bool {
        let Some(log) = &self.log else { return true };
        let count = usize::from(self.size);
        match self.logged_used {
            Some(used) if self.is_packed() => {
                log.mark(used, size_of::<u32>());
                // Used descriptors are written to the descriptor ring, for which the front end sends no log address.
                let descriptors = self.memory.to_guest(self.addresses.descriptors);
                descriptors.into_iter().for_each(|at| log.mark(at, 16 * count));
            }
            // Flags, index, elements, and the index that requests a notification.
            Some(used) => log.mark(used, 6 + 8 * count),
            None => {}
        }
        !log.is_broken()
    }
}

impl Vring {
    /// Creates a virtqueue; with a record, its ring may be packed.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no descriptors left.
    pub fn new(port: &str, record: Option<Record>) -> linerate_core::error::Result<Vring> {
        Ok(Vring {
            port: port.to_string(),
            setup: Handover::default(),
            timeout: PEER_TIMEOUT,
            is_stalled: AtomicBool::new(false),
            position: AtomicU32::new(UNKNOWN),
            is_broken: AtomicBool::new(false),
            breaches: AtomicU64::new(0),
            changed: Interrupt::new()?,
            record,
        })
    }

    /// Changes the setup. When this returns, no queue uses the old one.
    ///
    /// # Errors
    /// The setup was changed, but a queue whose thread is stopped is still in a poll with the old one.
    pub fn change<T>(&self, change: impl FnOnce(&mut Setup) -> T) -> Result<T, Stalled> {
        let result = self.setup.change(change);
        let has_ended_poll = self.wait_until_left();
        self.changed.raise();
        if has_ended_poll {
            return Ok(result);
        }
        if !self.is_stalled.swap(true, Relaxed) {
            tracing::warn!(
                "the thread of a queue has been in one poll for {:?}: is it stopped, by a signal or a debugger? It still uses the \
                 front end's memory; its connection is ended, and others have no packets before the thread goes on",
                self.timeout
            );
        }
        Err(Stalled)
    }

    fn wait_until_left(&self) -> bool {
        /// A poll takes less time than this if its thread has a processor.
        const POLL: Duration = Duration::from_millis(1);
        let timeout = if self.is_stalled.load(Relaxed) { POLL } else { self.timeout };
        let (begin, mut patience) = (Instant::now(), YieldWait::new(POLL));
        self.setup.wait_until_idle(|| {
            if !patience.wait() {
                std::thread::sleep(POLL);
            }
            begin.elapsed() < timeout
        })
    }

    /// Resets the ring's position and validity before it is started.
    pub fn reset(&self) {
        self.position.store(UNKNOWN, Relaxed);
        self.is_broken.store(false, Relaxed);
    }

    /// Returns the position of a ring that the front end has just stopped. [Forget](Vring::forget_position) it after
    /// the reply.
    pub fn stop_position(&self, setup: &Setup) -> u16 {
        // A packed ring that no queue has polled may not be at the front end's base.
        let found = || self.ring(setup).filter(|_| setup.is_packed()).map(|ring| ring.next());
        let position = self.position().or_else(found).unwrap_or(setup.base);
        setup.log_ring();
        position
    }

    /// Forgets the ring's position; the front end now has it.
    pub fn forget_position(&self) {
        self.record.iter().for_each(Record::forget);
        self.reset();
    }

    /// Returns the ring's position; `None` if no queue has polled it.
    fn position(&self) -> Option<u16> {
        u16::try_from(self.position.load(Acquire)).ok()
    }

    /// Locates the ring in the front end's memory; `None` if the ring is not inside that memory.
    fn ring(&self, setup: &Setup) -> Option<AnyRing> {
        let &Setup { addresses, size, base, .. } = setup;
        let event_idx = setup.features & feature::EVENT_IDX != 0;
        match setup.is_packed() {
            false => Split::new(&setup.memory, addresses, size, event_idx, self.position()).map(AnyRing::Split),
            true => {
                let begin = (self.position(), base);
                Packed::new(&setup.memory, addresses, size, event_idx, begin, self.record.clone()?).map(AnyRing::Packed)
            }
        }
    }

    /// Returns whether the ring is started, enabled and valid.
    pub fn is_ready(&self) -> bool {
        let setup = self.setup.lock();
        setup.is_started && setup.is_enabled && !self.is_broken.load(Relaxed)
    }

    /// Stops work on the ring until the front end restarts it.
    #[cold]
    pub fn give_up(&self) {
        self.is_broken.store(true, Relaxed);
        self.breaches.fetch_add(1, Relaxed);
    }

    /// Returns how often the ring was given up.
    pub fn breaches(&self) -> u64 {
        self.breaches.load(Relaxed)
    }

    /// Returns the event raised at each change.
    pub fn changed(&self) -> &Interrupt {
        &self.changed
    }
}

/// A queue's view of its virtqueue.
pub struct QueueRing {
    vring: Arc<Vring>,
    /// The version of the setup in `running`.
    seen: Seen,
    running: Option<Running>,
}

impl QueueRing {
    pub fn new(vring: Arc<Vring>) -> QueueRing {
        QueueRing { vring, seen: Seen::NONE, running: None }
    }

    pub fn vring(&self) -> &Vring {
        &self.vring
    }

    /// Returns whether the ring was started and enabled at the last poll.
    pub fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.setup.is_enabled)
    }

    /// Begins a poll; `None` if the ring is not running. End it with [`leave`](QueueRing::leave).
    #[inline(always)]
    pub fn enter(&mut self) -> Option<&mut Running> {
        if self.vring.setup.enter(self.seen) {
            self.adopt();
        }
        if self.running.is_none() {
            self.vring.setup.leave();
        }
        self.running.as_mut()
    }

    /// Ends a poll.
    #[inline(always)]
    pub fn leave(&mut self) {
        if let Some(running) = &self.running {
            self.vring.position.store(running.ring.next().into(), Relaxed);
            if running.setup.log.is_some() {
                self.log_ring();
            }
        }
        self.vring.setup.leave();
    }

    #[cold]
    fn log_ring(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.setup.log_ring()) {
            self.give_up(Breach::TRUNCATED);
        }
    }

    /// Stops work on an invalid ring.
    #[cold]
    pub fn give_up(&mut self, breach: Breach) {
        self.vring.give_up();
        // Truncated memory reads as zeros, which look like another breach.
        let is_taken = self.running.as_ref().is_some_and(|running| running.setup.memory.is_broken());
        let breach = if is_taken { Breach::TRUNCATED } else { breach };
        let _of_port = span_of(&self.vring.port).entered();
        tracing::warn!(
            "the front end's ring is invalid: {breach}; the queue stays stopped until the driver restarts it"
        );
        // Chains before the breach may have been used.
        self.running.take().iter().for_each(|running| _ = running.setup.log_ring());
    }

    /// Adopts a changed setup, if there is one, so that the memory of a disconnected front end is released.
    #[inline(always)]
    pub fn adopt_if_changed(&mut self) {
        if self.vring.setup.is_changed(self.seen) && self.enter().is_some() {
            self.leave();
        }
    }

    /// Returns whether a poll would find something new. Cheaper than [`enter`](QueueRing::enter), because it needs no
    /// fence.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.vring.setup.is_changed(self.seen) || self.running.as_ref().is_some_and(|running| running.ring.has_work())
    }

    /// Adopts a changed setup.
    #[cold]
    fn adopt(&mut self) {
        let vring = &*self.vring;
        vring.is_stalled.store(false, Relaxed);
        let mut setup = vring.setup.take(&mut self.seen, |shared| {
            let setup = shared.clone();
            shared.announcement = None;
            setup
        });
        let before = self.running.take().and_then(|running| running.setup.announcement);
        setup.announcement = setup.announcement.or(before);
        if !setup.is_started || vring.is_broken.load(Relaxed) {
            return;
        }
        match vring.ring(&setup) {
            Some(ring) => {
                ring.as_dyn().forbid_notifications();
                // A killed back end may have returned chains without an interrupt, and the driver may be waiting for
                // them.
                setup.call.iter().for_each(|call| call.raise());
                vring.position.store(ring.next().into(), Relaxed);
                self.running = Some(Running { ring, setup });
            }
            None => {
                let _of_port = span_of(&vring.port).entered();
                tracing::warn!("a ring is not in the front end's memory: {:?}", setup.addresses);
                vring.give_up();
            }
        }
    }
}

impl Drop for QueueRing {
    fn drop(&mut self) {
        self.vring.setup.leave();
    }
}
