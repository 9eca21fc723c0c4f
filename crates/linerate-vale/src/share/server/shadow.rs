//! The shadow of a pipe between two processes, for the pipe's monitors. The server creates rings in separate memory.
//! While there are monitors, each sender into the pipe copies each packet into these rings (`client/copier.rs`). From
//! there packets reach the monitors like those of any client. Copies that do not fit are dropped, and counted at the
//! monitors; the pipe is not delayed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use linerate_core::error::{Error, Result};
use linerate_core::memory::Pool;
use linerate_core::offload::LONGEST;
use linerate_core::port::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::netmap::RemotePipe;
use crate::share::protocol::layout::{Objects, Offsets, Plan, PortLayout, RingCounts};
use crate::share::protocol::mapping::SharedMapping;
use crate::share::protocol::message::Reply;
use crate::share::protocol::ring::{ServerTxRing, SharedRing};
use crate::share::server::netmap_memory::NetmapMemory;
use crate::share::server::pump::{Clients, Pump, Signals, TxPump};
use crate::share::server::recipient::Notifier;

/// Slots per ring.
const SLOTS: u32 = 1024;

/// The next shadow's version. Clients use it to detect an outdated shadow.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The server's end of a shadow: rings for both ends of the pipe, and the thread that empties them. The shadow ends
/// with the last monitor.
pub struct Shadow {
    memory: NetmapMemory,
    /// For each end of the pipe, the rings for its copies.
    layout: [PortLayout; 2],
    /// Wakes the thread.
    waker: Arc<PumpWaker>,
    /// The pipe's transmit rings, into which the shadow's version is written.
    tx_rings: Vec<SharedRing>,
    version: u32,
    thread: Option<JoinHandle<()>>,
}

impl Shadow {
    /// Starts a shadow for a pipe with these ends in this memory. Packets are copied through buffers of `pool`.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System), and
    /// [`ErrorKind::BadPeer`](linerate_core::ErrorKind::BadPeer) if the pipe's rings are outside its memory.
    pub fn start(
        remote: &RemotePipe,
        pipe_memory: &Arc<SharedMapping>,
        ends: &[PortLayout],
        pool: &Arc<Pool>,
    ) -> Result<Shadow> {
        let [first, second] = ends else { return Err(Error::bad_peer("its pipe has no other end")) };
        let rings = first.tx.len().max(second.tx.len());
        let objects = |count: usize, size: usize| Objects { count, size };
        let usual = Plan::default();
        let memory = NetmapMemory::new(Plan {
            ports: objects(2, usual.ports.size),
            rings: objects(2 * rings, usual.rings.size),
            buffers: objects(2 + 2 * rings * SLOTS as usize, pipe_memory.buffers.size),
            zones: 0,
        })?;
        let side = |end: &PortLayout| {
            let tx = end.tx.len() as u16;
            let rings = RingCounts { tx, tx_slots: SLOTS, ..RingCounts::default() };
            memory.place("shadow", &rings, |_| true, |_| false, Offsets::default())
        };
        let layout = [side(first)?, side(second)?];
        let mut pump = Pump::default();
        for (end, layout) in layout.iter().enumerate() {
            for (number, place) in layout.tx.iter().enumerate().filter_map(|(n, place)| Some((n, place.as_ref()?))) {
                let ring = SharedRing::new(&memory.shared, *place)?;
                let (lost, mut known) = (ring.clone(), 0);
                // Read only once: packets lost between two reads would not be counted.
                let missing = move || {
                    let now = lost.shadow_drops();
                    u64::from(now.wrapping_sub(std::mem::replace(&mut known, now)))
                };
                let queue = remote.sent(end, number as u16, Box::new(missing));
                pump.sending.push(TxPump::new(ServerTxRing::new(ring), queue, pool, LONGEST, &Arc::default()));
            }
        }
        let places = ends.iter().flat_map(|end| &end.tx).flatten();
        let tx_rings = places.map(|place| SharedRing::new(pipe_memory, *place)).collect::<Result<Vec<_>>>()?;
        let waker = Arc::new(PumpWaker { event: Waker::new()?, is_over: AtomicBool::new(false) });
        let its = waker.clone();
        let thread = std::thread::Builder::new().name("linerate-shadow".to_string());
        let thread = thread.spawn(move || pump.run(&*its)).map_err(Error::thread)?;
        let version = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        Ok(Shadow { memory, layout, waker, tx_rings, version, thread: Some(thread) })
    }

    /// Wakes the thread after a client has put copies into a ring.
    pub fn wake(&self) {
        self.waker.event.wake();
    }

    /// Writes the version into the pipe's rings, so that the clients at both ends request the shadow.
    pub fn announce(&self) {
        self.tx_rings.iter().for_each(|ring| ring.set_shadow(self.version));
    }

    /// Describes the rings for one end of the pipe.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System).
    pub fn answer(&self, end: usize) -> Result<(Reply, Vec<OwnedFd>)> {
        let places = self.layout[end].tx.iter().flatten().copied().collect();
        Ok((Reply::Shadow { buffers: self.memory.shared.buffers, places }, vec![self.memory.shared.duplicate()?]))
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.tx_rings.iter().filter(|ring| ring.shadow() == self.version).for_each(|ring| ring.set_shadow(0));
        self.waker.is_over.store(true, Ordering::Relaxed);
        self.waker.event.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Wakes and ends the thread of a shadow.
struct PumpWaker {
    event: Waker,
    is_over: AtomicBool,
}

/// Clients do not wait for the shadow, so nothing is sent.
impl Notifier for PumpWaker {
    fn notify(&self) {}
}

impl Clients for PumpWaker {
    fn listen(&self) -> Signals {
        self.event.clear();
        Signals { is_over: self.is_over.load(Ordering::Relaxed), token: false }
    }

    fn sleep(&self, others: &[BorrowedFd<'_>], longest: Timespec) {
        let mut events = vec![PollFd::new(&self.event, PollFlags::IN)];
        events.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let _ = poll(&mut events, Some(&longest));
    }
}
