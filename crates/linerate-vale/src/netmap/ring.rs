//! netmap's view of a port: permanent rings of slots, with head, cur and tail (netmap(4)).
//!
//! ```text
//!     tx   [ ..... | to be filled ...... | sent, not free yet ]
//!                  ^ head                ^ tail
//!     rx   [ ..... | received .......... | empty ]
//!                  ^ head                ^ tail
//! ```
//!
//! The program owns the slots from head to tail: it fills or reads them in order, moves head (and cur) past them, and
//! calls `sync`. To forward without a copy, it [swaps](swap) the buffers of two slots. Every port can have such rings,
//! as a second view of its queues.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linerate_core::batch::{Batch, MAX_CHAIN};
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{Port, RxQueue, TxQueue};
use linerate_core::slot::{HEADROOM, Slot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most slots of a ring, even if a program-defined port reports more.
const MOST_SLOTS: usize = 65_536;

/// The slots and indices of a ring, for either direction.
pub struct Ring {
    slots: Box<[Slot]>,
    pool: Arc<Pool>,
    head: usize,
    cur: usize,
    tail: usize,
    /// Head at the last sync.
    synced: usize,
    /// Time of the last sync.
    time: SystemTime,
}

/// A buffer outside all rings. To keep a packet for later, [exchange](Ring::exchange) the buffer of its slot with this
/// buffer.
pub struct ExtraBuffer {
    slot: Slot,
    pool: Arc<Pool>,
}

impl Drop for ExtraBuffer {
    fn drop(&mut self) {
        // SAFETY: the slot that owns this buffer is dropped here.
        unsafe { self.pool.give(&[self.slot.buf()]) };
    }
}

impl ExtraBuffer {
    /// Returns the packet in the buffer.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is of this pool.
        unsafe { self.pool.region().view() }.bytes(&self.slot)
    }
}

impl Ring {
    /// Creates a ring of `len` slots, at least two, without buffers.
    fn new(pool: &Arc<Pool>, len: usize) -> Ring {
        let slots = (0..len.max(2)).map(|_| Slot::EMPTY).collect();
        Ring { slots, pool: pool.clone(), head: 0, cur: 0, tail: 0, synced: 0, time: SystemTime::UNIX_EPOCH }
    }

    /// Returns the number of slots, one of which is always empty. It need not be a power of two.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the first slot that the program owns.
    pub fn head(&self) -> usize {
        self.head
    }

    /// Returns the first slot that the program does not own.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// Returns cur, the wakeup point: [`poll`](NetmapPort::poll) waits until tail has moved past it.
    pub fn cur(&self) -> usize {
        self.cur
    }

    /// Returns the slot after this one.
    pub fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// Returns the number of slots from head to tail, which the program owns (`nm_ring_space` counts from cur).
    pub fn space(&self) -> usize {
        self.distance(self.head, self.tail)
    }

    /// Returns the time of the last sync.
    pub fn time(&self) -> SystemTime {
        self.time
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        (to + self.slots.len() - from) % self.slots.len()
    }

    /// Returns whether the program owns a slot.
    fn is_owned(&self, slot: usize) -> bool {
        slot < self.slots.len() && self.distance(self.head, slot) < self.space()
    }

    #[track_caller]
    fn check(&self, slot: usize) {
        assert!(self.is_owned(slot), "slot {slot} is not from head ({}) to tail ({})", self.head, self.tail);
    }

    /// Moves head and cur past the next `count` slots. The next sync sends these slots, or receives into them.
    ///
    /// # Panics
    /// If that would move them past tail.
    #[track_caller]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.head = (self.head + count) % self.slots.len();
        self.cur = self.head;
    }

    /// Sets cur to `count` slots after head: the program keeps the slots from head to cur, and waits for more.
    ///
    /// # Panics
    /// If that would move it past tail.
    #[track_caller]
    pub fn set_wakeup(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.cur = (self.head + count) % self.slots.len();
    }

    /// Returns whether tail has moved past cur, so that poll(2) would return.
    fn is_ready(&self) -> bool {
        self.cur != self.tail
    }

    /// Returns the bytes of a slot: a packet or part of one.
    ///
    /// # Panics
    /// If the program does not own the slot.
    #[track_caller]
    pub fn bytes(&self, slot: usize) -> &[u8] {
        self.check(slot);
        // SAFETY: the ring's slots are of its pool.
        unsafe { self.pool.region().view() }.bytes(&self.slots[slot])
    }

    /// As [`bytes`](Ring::bytes), mutable.
    ///
    /// # Panics
    /// If the program does not own the slot.
    #[track_caller]
    pub fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        self.check(slot);
        // SAFETY: as in `bytes`.
        unsafe { self.pool.region().view() }.bytes_mut(&mut self.slots[slot])
    }

    /// Sets the length of a slot's data, and whether the packet continues in the next slot (`NS_MOREFRAG`).
    ///
    /// # Panics
    /// If the program does not own the slot, or the data does not fit its buffer.
    #[track_caller]
    pub fn set_len(&mut self, slot: usize, len: usize, more: bool) {
        self.check(slot);
        let there = &mut self.slots[slot];
        let (offset, size) = (there.offset(), self.pool.region().buffer_size());
        assert!(len <= size - offset, "{len} bytes do not fit a buffer of {size}, {offset} in front");
        // SAFETY: the new slot replaces the one of the same buffer, and the bytes fit, as just checked.
        *there = unsafe { Slot::new(there.buf(), offset, len as u16, more) };
    }

    /// Returns whether the packet continues in the next slot.
    ///
    /// # Panics
    /// If the program does not own the slot.
    #[track_caller]
    pub fn has_more(&self, slot: usize) -> bool {
        self.check(slot);
        self.slots[slot].has_more()
    }

    /// Exchanges a slot's buffer, including the packet in it, with `extra`.
    ///
    /// # Errors
    /// [`ErrorKind::OtherRegion`] if the buffers are of different pools; nothing is changed.
    ///
    /// # Panics
    /// If the program does not own the slot.
    #[track_caller]
    pub fn exchange(&mut self, slot: usize, extra: &mut ExtraBuffer) -> Result<()> {
        self.check(slot);
        if !Arc::ptr_eq(&self.pool, &extra.pool) {
            return Err(other_region());
        }
        std::mem::swap(&mut self.slots[slot], &mut extra.slot);
        Ok(())
    }
}

/// Exchanges the buffers of two slots, including the packets in them, to forward without a copy. Once both rings are
/// advanced and synced, the received packet is sent, and the free buffer receives.
///
/// # Errors
/// [`ErrorKind::OtherRegion`] if the rings' buffers are of different pools, which requires a copy. Nothing is changed.
///
/// # Panics
/// If the program does not own one of the slots.
#[track_caller]
pub fn swap(from: &mut Ring, slot: usize, to: &mut Ring, other: usize) -> Result<()> {
    from.check(slot);
    to.check(other);
    if !Arc::ptr_eq(&from.pool, &to.pool) {
        return Err(other_region());
    }
    std::mem::swap(&mut from.slots[slot], &mut to.slots[other]);
    Ok(())
}

/// Frees the buffers of slots that the program owns or has advanced past since the last sync.
impl Drop for Ring {
    fn drop(&mut self) {
        let count = self.distance(self.synced, self.tail);
        let bufs: Vec<u32> = (0..count).map(|n| self.slots[(self.synced + n) % self.slots.len()].buf()).collect();
        // SAFETY: the slots that own these buffers are dropped here.
        unsafe { self.pool.give(&bufs) };
    }
}

/// A transmit ring.
pub struct TxRing {
    /// The slots. A program may swap the rings of two ports; each queue then continues with the other's slots.
    pub ring: Ring,
    queue: TxQueue,
    /// Packets that the queue has not accepted yet.
    batch: Batch,
    /// A packet was too long and its beginning was dropped; its remaining slots are dropped too.
    drops_rest: bool,
    /// Number of packets that were too long.
    too_long: u64,
}

/// A receive ring.
pub struct RxRing {
    /// The slots, as for [`TxRing::ring`].
    pub ring: Ring,
    queue: RxQueue,
    /// Packets of the queue's region that did not fit into the ring yet.
    batch: Batch,
    /// Buffers of the ring's own region, and packets that were copied into them.
    own: Batch,
}

impl Ring {
    /// Makes `batch` fit this ring: both must use one pool, so that slots can move between them, and the batch must
    /// have room for all slots.
    ///
    /// Between two calls, the program may have swapped the ring, and a program-defined queue may have swapped the
    /// batch. A batch that does not fit is dropped; its buffers return to their pool.
    fn fit(&self, batch: &mut Batch) {
        if batch.capacity() < self.slots.len() || !batch.bind_if_unbound(&self.pool) {
            *batch = Batch::with_capacity(self.slots.len());
            batch.bind_if_unbound(&self.pool);
        }
    }

    /// Takes the next slot that the program has advanced past since the last sync.
    fn take_synced(&mut self) -> Option<Slot> {
        let at = self.synced;
        (at != self.head).then(|| {
            self.synced = self.next(at);
            self.slots[at].take()
        })
    }

    /// Stores a slot of this ring's pool at tail. The ring must have room.
    fn put_at_tail(&mut self, slot: Slot) {
        let at = self.tail;
        self.slots[at] = slot;
        self.tail = self.next(at);
    }
}

impl TxRing {
    /// Creates a ring for a queue. Packets are in buffers of `pool`; a queue of another region copies them.
    pub fn new(queue: TxQueue, pool: &Arc<Pool>, slots: usize) -> TxRing {
        let mut ring =
            TxRing { ring: Ring::new(pool, slots), queue, batch: Batch::new(), drops_rest: false, too_long: 0 };
        ring.sync();
        ring
    }

    /// Sends the slots before head, and reclaims slots that were sent (`NIOCTXSYNC`). A packet of more than 64 slots
    /// (netmap(4)) is dropped and [counted](TxRing::too_long).
    pub fn sync(&mut self) {
        let TxRing { ring, queue, batch, drops_rest, too_long } = self;
        ring.fit(batch);
        let mut chain = batch.slots().iter().rev().take_while(|slot| slot.has_more()).count();
        while let Some(mut slot) = ring.take_synced() {
            let has_more = slot.has_more();
            if !*drops_rest && chain == MAX_CHAIN {
                (*drops_rest, *too_long) = (true, *too_long + 1);
                batch.drop_partial();
            }
            // The batch has room for a ring and a chain, so this succeeds; otherwise the slot would be dropped.
            // SAFETY: `fit` made the batch use the ring's pool, which its slots are of.
            if *drops_rest || !unsafe { batch.push_slot(&ring.pool, &mut slot) } {
                // SAFETY: the slot is consumed here.
                unsafe { batch.recycle(&[slot.buf()]) };
            }
            *drops_rest &= has_more;
            chain = if has_more && !*drops_rest { chain + 1 } else { 0 };
        }
        // An incomplete packet waits until its end is synced.
        let mut beginning = Beginning { slots: Vec::new(), ring };
        batch.take_partial(&mut beginning.slots);
        queue.send(batch);
        ring.fit(batch);
        // SAFETY: the slots are of the ring's pool, and `fit` made the batch use it again.
        unsafe { batch.restore_partial(&ring.pool, &mut beginning.slots) };
        drop(beginning);
        // Slots that the queue has not accepted keep their place before head.
        let free = (ring.slots.len() - 1).saturating_sub(batch.len());
        while ring.space() < free {
            let Some(buf) = batch.take_buffer() else { break };
            // SAFETY: the buffer was taken for this slot, from the ring's pool.
            ring.put_at_tail(unsafe { Slot::new(buf, HEADROOM, 0, false) });
        }
        ring.time = SystemTime::now();
    }

    /// Returns the number of packets dropped because they had more than 64 slots.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Returns whether the port has not yet accepted all sent packets (`nm_tx_pending`).
    pub fn is_pending(&self) -> bool {
        self.ring.synced != self.ring.head || !self.batch.is_empty() || self.queue.unsent() > 0
    }
}

/// The beginning of an incomplete packet while the queue, which may panic, has the batch.
struct Beginning<'a> {
    slots: Vec<Slot>,
    ring: &'a Ring,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        // SAFETY: the slots are of the ring's pool and are dropped here.
        unsafe { self.ring.pool.give(&self.slots.drain(..).map(|slot| slot.buf()).collect::<Vec<_>>()) };
    }
}

impl RxRing {
    /// Creates a ring for a queue. Received packets are in buffers of `pool`; packets from a queue of another region
    /// are copied.
    pub fn new(queue: RxQueue, pool: &Arc<Pool>, slots: usize) -> RxRing {
        let ring = Ring::new(pool, slots);
        let mut batch = Batch::with_capacity(ring.slots.len());
        batch.bind_if_unbound(pool);
        RxRing { ring, queue, batch, own: Batch::new() }
    }

    /// Reclaims the slots before head, and receives packets (`NIOCRXSYNC`).
    pub fn sync(&mut self) {
        let RxRing { ring, queue, batch, own } = self;
        let is_own = batch.bind_if_unbound(&ring.pool);
        if !is_own || !own.is_empty() {
            ring.fit(own);
        }
        let back = if is_own { &mut *batch } else { &mut *own };
        while let Some(slot) = ring.take_synced() {
            // SAFETY: the slot is consumed here, and the batch is of the ring's pool.
            unsafe { back.recycle(&[slot.buf()]) };
        }
        if batch.is_empty() {
            queue.recv(batch);
        }
        // Packets of another region are copied, and queue behind the packets copied earlier.
        let from = if own.is_empty() && batch.bind_if_unbound(&ring.pool) {
            batch
        } else {
            ring.fit(own);
            own.copy_from(&ring.pool, batch, usize::MAX);
            own
        };
        let room = ring.slots.len() - 1 - ring.space();
        let count = from.len().min(room);
        // SAFETY: the batch is of the ring's pool, and `sent` removes the slots that moved to the ring.
        for slot in unsafe { &mut from.raw_slots()[..count] } {
            ring.put_at_tail(slot.take());
        }
        from.sent(count);
        ring.time = SystemTime::now();
    }
}

/// netmap's view of a port.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::netmap::{NetmapPort, swap};
///
/// let [a, b] = linerate::open(["doc{1", "doc}1"])?;
/// let (mut a, mut b) = (NetmapPort::new(a)?, NetmapPort::new(b)?);
/// let ring = &mut a.tx[0].ring;
/// let slot = ring.head();
/// ring.set_len(slot, 60, false);
/// ring.bytes_mut(slot).fill(7);
/// ring.advance(1);
/// a.tx[0].sync();
/// b.rx[0].sync();
/// // Back again, without a copy.
/// let (rx, tx) = (&mut b.rx[0].ring, &mut b.tx[0].ring);
/// let (from, to) = (rx.head(), tx.head());
/// swap(rx, from, tx, to)?;
/// rx.advance(1);
/// tx.advance(1);
/// b.tx[0].sync();
/// a.rx[0].sync();
/// assert_eq!((a.rx[0].ring.space(), a.rx[0].ring.bytes(0)), (1, &[7; 60][..]));
/// # Ok(()) }
/// ```
pub struct NetmapPort {
    /// Transmit rings. They are dropped before the port.
    pub tx: Vec<TxRing>,
    /// Receive rings.
    pub rx: Vec<RxRing>,
    device: Port,
}

impl NetmapPort {
    /// Opens all rings of a port.
    ///
    /// # Errors
    /// As [`of`](NetmapPort::of).
    pub fn new(device: Port) -> Result<NetmapPort> {
        let queues = device.info().rx_queues;
        NetmapPort::of(device, 0..queues)
    }

    /// Opens some rings of a port. They have as many slots as the port's own rings, at most 65,536.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::QueueTaken`], and others of [`Port::rx`] and [`Port::tx`].
    pub fn of(mut device: Port, queues: std::ops::Range<u16>) -> Result<NetmapPort> {
        let (pool, slots) = (device.pool().clone(), device.info().ring.min(MOST_SLOTS));
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for queue in queues {
            tx.push(TxRing::new(device.tx(queue)?, &pool, slots));
            rx.push(RxRing::new(device.rx(queue)?, &pool, slots));
        }
        Ok(NetmapPort { tx, rx, device })
    }

    /// Returns the port.
    pub fn device(&mut self) -> &mut Port {
        &mut self.device
    }

    /// Allocates buffers in addition to those of the rings: `count`, or as many as are free.
    pub fn extra_buffers(&self, count: usize) -> Vec<ExtraBuffer> {
        let pool = self.device.pool();
        let mut batch = Batch::with_capacity(1);
        batch.bind_if_unbound(pool);
        let one = || {
            // SAFETY: the buffer was taken for this slot.
            let slot = unsafe { Slot::new(batch.take_buffer()?, HEADROOM, 0, false) };
            Some(ExtraBuffer { slot, pool: pool.clone() })
        };
        std::iter::from_fn(one).take(count).collect()
    }

    /// Syncs all rings, and waits until a receive ring has a packet or, with `send`, a transmit ring has room. Waits
    /// for at most `timeout`. Returns whether a ring is ready, like poll(2) on netmap's descriptor.
    ///
    /// Sleeps if the port was opened with `interrupts`, otherwise polls.
    pub fn poll(&mut self, send: bool, timeout: Duration) -> bool {
        let begin = std::time::Instant::now();
        loop {
            // Armed before the sync, so that a packet that arrives in between is not missed.
            self.rx.iter_mut().for_each(|rx| {
                let _ = rx.queue.arm();
            });
            self.tx.iter_mut().for_each(TxRing::sync);
            self.rx.iter_mut().for_each(RxRing::sync);
            let ready =
                self.rx.iter().any(|rx| rx.ring.is_ready()) || send && self.tx.iter().any(|tx| tx.ring.is_ready());
            let left = timeout.saturating_sub(begin.elapsed());
            if ready || left.is_zero() {
                self.rx.iter_mut().for_each(|rx| rx.queue.disarm());
                return ready;
            }
            // No event signals room to send, so a thread that waits for it polls again soon.
            let is_pending = send || self.tx.iter().any(TxRing::is_pending);
            self.sleep(if is_pending { left.min(Duration::from_micros(50)) } else { left });
        }
    }

    fn sleep(&mut self, longest: Duration) {
        let rings = self.rx.len();
        let events: Vec<_> = self.rx.iter_mut().filter_map(|rx| rx.queue.arm()).collect();
        if events.len() < rings {
            return std::thread::yield_now();
        }
        let mut events: Vec<_> = events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
        let longest = longest.min(linerate_core::port::Waiter::LONGEST_SLEEP);
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as _ };
        let _ = poll(&mut events, Some(&longest));
    }
}

fn other_region() -> Error {
    Error::new(ErrorKind::OtherRegion, "", "the buffers are of different regions: their contents must be copied")
        .with_remedy(Remedy::Step("open both ports in one region, or copy".into()))
}
