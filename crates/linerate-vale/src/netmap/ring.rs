//! netmap's view of a port: permanent rings of slots, with head, cur and tail (netmap(4)).
//!
//! ```text
//!     tx   [ ..... | to be filled ...... | sent, not free yet ]
//!                  ^ head                ^ tail
//!     rx   [ ..... | received .......... | empty ]
//!                  ^ head                ^ tail
//! ```
//!
//! The slots from head to tail are the program's: it fills or reads them in order, moves head (and cur) past them, and
//! calls `sync`. Forwarding without a copy [swaps](swap) the buffers of two slots. Every port can have such rings, as a
//! second view of its queues.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use linerate_core::batch::{Batch, MAX_CHAIN};
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{Port, RxQueue, TxQueue};
use linerate_core::slot::{HEADROOM, Slot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most slots of a ring, whatever a port of the program's own reports.
const MOST_SLOTS: usize = 65_536;

/// Slots and indices of a ring, in either direction.
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

/// A buffer outside all rings. To keep a packet for later, [exchange](Ring::exchange) its slot's buffer for this one.
pub struct ExtraBuffer {
    slot: Slot,
    pool: Arc<Pool>,
}

impl Drop for ExtraBuffer {
    fn drop(&mut self) {
        // SAFETY: its slot ends here.
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
    /// Makes a ring of `len` slots, at least two, without buffers.
    fn new(pool: &Arc<Pool>, len: usize) -> Ring {
        let slots = (0..len.max(2)).map(|_| Slot::EMPTY).collect();
        Ring { slots, pool: pool.clone(), head: 0, cur: 0, tail: 0, synced: 0, time: SystemTime::UNIX_EPOCH }
    }

    /// Returns the number of slots, of which one is always empty. It need not be a power of two.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the first slot that is the program's.
    pub fn head(&self) -> usize {
        self.head
    }

    /// Returns the first slot that is not the program's.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// Returns cur: the program waits until tail is past it, because it needs more than the slots in front.
    pub fn cur(&self) -> usize {
        self.cur
    }

    /// Returns the slot behind this one.
    pub fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// Returns the count of slots from head to tail, which are the program's (`nm_ring_space` counts from cur).
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

    /// Returns whether a slot is the program's.
    fn is_ours(&self, slot: usize) -> bool {
        slot < self.slots.len() && self.distance(self.head, slot) < self.space()
    }

    #[track_caller]
    fn check(&self, slot: usize) {
        assert!(self.is_ours(slot), "slot {slot} is not from head ({}) to tail ({})", self.head, self.tail);
    }

    /// Moves head and cur past the next `count` slots. From the next sync on they are sent, or receive packets.
    ///
    /// # Panics
    /// If that is past tail.
    #[track_caller]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.head = (self.head + count) % self.slots.len();
        self.cur = self.head;
    }

    /// Moves cur `count` slots ahead of head: the slots from head to cur are kept, and the program waits for more.
    ///
    /// # Panics
    /// If that is past tail.
    #[track_caller]
    pub fn look_ahead(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.cur = (self.head + count) % self.slots.len();
    }

    /// Returns whether tail is past cur, so that poll(2) would return.
    fn is_ready(&self) -> bool {
        self.cur != self.tail
    }

    /// Returns the bytes of a slot: a packet, or a part of it.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn bytes(&self, slot: usize) -> &[u8] {
        self.check(slot);
        // SAFETY: the ring's slots are of its pool.
        unsafe { self.pool.region().view() }.bytes(&self.slots[slot])
    }

    /// As [`bytes`](Ring::bytes), mutable.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        self.check(slot);
        // SAFETY: as in `bytes`.
        unsafe { self.pool.region().view() }.bytes_mut(&mut self.slots[slot])
    }

    /// Sets the length of a slot's data, and whether the packet continues in the next slot (`NS_MOREFRAG`).
    ///
    /// # Panics
    /// If the slot is not the program's, or the data would not fit its buffer.
    #[track_caller]
    pub fn set_len(&mut self, slot: usize, len: usize, more: bool) {
        self.check(slot);
        let there = &mut self.slots[slot];
        let (offset, size) = (there.offset(), self.pool.region().buffer_size());
        assert!(len <= size - offset, "{len} bytes do not fit a buffer of {size}, {offset} in front");
        // SAFETY: it replaces the slot of the same buffer, and it was just checked that the bytes fit.
        *there = unsafe { Slot::new(there.buf(), offset, len as u16, more) };
    }

    /// Returns whether the packet continues in the next slot.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn has_more(&self, slot: usize) -> bool {
        self.check(slot);
        self.slots[slot].has_more()
    }

    /// Exchanges a slot's buffer, with the packet in it, for another.
    ///
    /// # Errors
    /// [`ErrorKind::OtherRegion`]; nothing is changed then.
    ///
    /// # Panics
    /// If the slot is not the program's.
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

/// Exchanges the buffers of two slots, with the packets in them: forwards without a copy. Once both rings are advanced
/// and synced, the received packet is sent, and the free buffer receives.
///
/// # Errors
/// [`ErrorKind::OtherRegion`] if the rings' buffers are of different pools, so that a copy is needed. Nothing is changed.
///
/// # Panics
/// If one of the slots is not the program's.
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

/// Frees the buffers of slots that are the program's, or that it has advanced past since the last sync.
impl Drop for Ring {
    fn drop(&mut self) {
        let count = self.distance(self.synced, self.tail);
        let bufs: Vec<u32> = (0..count).map(|n| self.slots[(self.synced + n) % self.slots.len()].buf()).collect();
        // SAFETY: their slots end here.
        unsafe { self.pool.give(&bufs) };
    }
}

/// A transmit ring.
pub struct TxRing {
    /// Its slots. Two ports' rings may be exchanged: each continues with the slots that it has then.
    pub ring: Ring,
    queue: TxQueue,
    /// Packets that the queue has not taken yet.
    batch: Batch,
    /// The beginning of a packet was too long and was dropped; its other slots are dropped as well.
    skips: bool,
    /// Number of packets that were too long.
    too_long: u64,
}

/// A receive ring.
pub struct RxRing {
    /// Its slots, as [`TxRing::ring`].
    pub ring: Ring,
    queue: RxQueue,
    /// Packets that found no slot yet, of the queue's region.
    batch: Batch,
    /// Buffers of the ring's own region, and packets that were copied into them.
    own: Batch,
}

impl Ring {
    /// Makes `batch` fit this ring: both must have one pool, so that slots pass between them, and all slots must have
    /// room.
    ///
    /// Between two calls a program may have exchanged the ring, and a queue that is the program's own may have
    /// exchanged the batch. A batch that does not fit is dropped; its buffers return to their pool.
    fn fit(&self, batch: &mut Batch) {
        if batch.capacity() < self.slots.len() || !batch.is_of(&self.pool) {
            *batch = Batch::with_capacity(self.slots.len());
            batch.is_of(&self.pool);
        }
    }

    /// Takes the next slot in front of head out of the ring.
    fn take_synced(&mut self) -> Option<Slot> {
        let at = self.synced;
        (at != self.head).then(|| {
            self.synced = self.next(at);
            self.slots[at].take()
        })
    }

    /// Puts a slot of this ring's pool at tail. There must be room.
    fn put_at_tail(&mut self, slot: Slot) {
        let at = self.tail;
        self.slots[at] = slot;
        self.tail = self.next(at);
    }
}

impl TxRing {
    /// Makes a ring for a queue. Packets are in buffers of `pool`; a queue of another region copies them.
    pub fn new(queue: TxQueue, pool: &Arc<Pool>, slots: usize) -> TxRing {
        let mut ring = TxRing { ring: Ring::new(pool, slots), queue, batch: Batch::new(), skips: false, too_long: 0 };
        ring.sync();
        ring
    }

    /// Sends the slots in front of head, and frees sent ones (`NIOCTXSYNC`). A packet of more than 64 slots (netmap(4))
    /// is dropped and [counted](TxRing::too_long).
    pub fn sync(&mut self) {
        let TxRing { ring, queue, batch, skips, too_long } = self;
        ring.fit(batch);
        let mut chain = batch.slots().iter().rev().take_while(|slot| slot.has_more()).count();
        while let Some(mut slot) = ring.take_synced() {
            let has_more = slot.has_more();
            if !*skips && chain == MAX_CHAIN {
                (*skips, *too_long) = (true, *too_long + 1);
                batch.drop_beginning();
            }
            // The batch has room for a ring and a chain. Without room the packet would be dropped.
            // SAFETY: `fit` has given the batch the ring's pool, of which its slots are.
            if *skips || !unsafe { batch.push_slot(&ring.pool, &mut slot) } {
                // SAFETY: the slot ends here.
                unsafe { batch.put(&[slot.buf()]) };
            }
            *skips &= has_more;
            chain = if has_more && !*skips { chain + 1 } else { 0 };
        }
        // A packet whose end is missing waits for it.
        let mut beginning = Beginning { slots: Vec::new(), ring };
        batch.keep_beginning(&mut beginning.slots);
        queue.send(batch);
        ring.fit(batch);
        // SAFETY: they are slots of the ring's pool, and so is the batch again.
        unsafe { batch.resume(&ring.pool, &mut beginning.slots) };
        drop(beginning);
        // Slots that were not taken stay in front of head.
        let free = (ring.slots.len() - 1).saturating_sub(batch.len());
        while ring.space() < free {
            let Some(buf) = batch.take_buffer() else { break };
            // SAFETY: the buffer was taken for this slot, from the ring's pool.
            ring.put_at_tail(unsafe { Slot::new(buf, HEADROOM, 0, false) });
        }
        ring.time = SystemTime::now();
    }

    /// Returns the number of packets with more than 64 slots, which were dropped.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Returns whether packets were sent that the port has not taken yet (`nm_tx_pending`).
    pub fn is_pending(&self) -> bool {
        self.ring.synced != self.ring.head || !self.batch.is_empty() || self.queue.unsent() > 0
    }
}

/// The beginning of a packet while a queue, which may panic, has the batch.
struct Beginning<'a> {
    slots: Vec<Slot>,
    ring: &'a Ring,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        // SAFETY: the slots, of the ring's pool, end here.
        unsafe { self.ring.pool.give(&self.slots.drain(..).map(|slot| slot.buf()).collect::<Vec<_>>()) };
    }
}

impl RxRing {
    /// Makes a ring for a queue. Packets come in buffers of `pool`; from a queue of another region they are copied.
    pub fn new(queue: RxQueue, pool: &Arc<Pool>, slots: usize) -> RxRing {
        let ring = Ring::new(pool, slots);
        let mut batch = Batch::with_capacity(ring.slots.len());
        batch.is_of(pool);
        RxRing { ring, queue, batch, own: Batch::new() }
    }

    /// Takes back the slots in front of head, and receives into them (`NIOCRXSYNC`).
    pub fn sync(&mut self) {
        let RxRing { ring, queue, batch, own } = self;
        let is_own = batch.is_of(&ring.pool);
        if !is_own || !own.is_empty() {
            ring.fit(own);
        }
        let back = if is_own { &mut *batch } else { &mut *own };
        while let Some(slot) = ring.take_synced() {
            // SAFETY: the slot ends here, and the batch is of the ring's pool.
            unsafe { back.put(&[slot.buf()]) };
        }
        if batch.is_empty() {
            queue.recv(batch);
        }
        // Packets of another region are copied, after those that came before them.
        let from = if own.is_empty() && batch.is_of(&ring.pool) {
            batch
        } else {
            ring.fit(own);
            own.copy_from(&ring.pool, batch, usize::MAX);
            own
        };
        let room = ring.slots.len() - 1 - ring.space();
        let count = from.len().min(room);
        // SAFETY: the batch is of the ring's pool, and forgets the slots that the ring has.
        for slot in unsafe { &mut from.raw_slots()[..count] } {
            ring.put_at_tail(slot.take());
        }
        from.sent(count);
        ring.time = SystemTime::now();
    }
}

/// A port in netmap's form.
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
    /// Transmit rings, dropped before the port.
    pub tx: Vec<TxRing>,
    /// Receive rings.
    pub rx: Vec<RxRing>,
    device: Port,
}

impl NetmapPort {
    /// Takes all rings of a port.
    ///
    /// # Errors
    /// As [`of`](NetmapPort::of).
    pub fn new(device: Port) -> Result<NetmapPort> {
        let queues = device.info().rx_queues;
        NetmapPort::of(device, 0..queues)
    }

    /// Takes some rings of a port. They have as many slots as the port's, at most 65,536.
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

    /// Takes buffers beside those of the rings: `count`, or as many as are free.
    pub fn extra_buffers(&self, count: usize) -> Vec<ExtraBuffer> {
        let pool = self.device.pool();
        let mut batch = Batch::with_capacity(1);
        batch.is_of(pool);
        let one = || {
            // SAFETY: the buffer is taken for this slot.
            let slot = unsafe { Slot::new(batch.take_buffer()?, HEADROOM, 0, false) };
            Some(ExtraBuffer { slot, pool: pool.clone() })
        };
        std::iter::from_fn(one).take(count).collect()
    }

    /// Syncs all rings, and waits until a receive ring has a packet, or with `send` until a transmit ring has room, at
    /// most for `timeout`. Returns whether one has, as poll(2) on netmap's descriptor.
    ///
    /// It sleeps if the port was opened with [interrupts](linerate::Options::interrupts), and polls otherwise.
    pub fn poll(&mut self, send: bool, timeout: Duration) -> bool {
        let begin = std::time::Instant::now();
        loop {
            // Armed before the sync, so that no packet is missed in between.
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
            // Nothing signals room to send: a thread that waits for it looks again soon.
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
        .with_remedy(Remedy::Do("open both ports in one region, or copy".into()))
}
