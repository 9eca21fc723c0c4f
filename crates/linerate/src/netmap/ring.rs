//! netmap's view of a port: rings of slots that are always there, with head, cur and tail (netmap(4)).
//!
//! ```text
//!     tx   [ ..... | to be filled ...... | sent, not free yet ]
//!                  ^ head                ^ tail
//!     rx   [ ..... | received .......... | empty ]
//!                  ^ head                ^ tail
//! ```
//!
//! What is from head to tail is the program's: it fills or reads the slots in order, moves head (and cur) past them, and
//! calls `sync`. Forwarding without a copy [swaps](swap) the buffers of two slots. Every port of ours has such rings: they
//! are a second view of its queues.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::batch::{Batch, MAX_CHAIN};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::port::{Port, RxQueue, TxQueue};
use crate::slot::{HEADROOM, Slot};

/// A ring's slots and indices, which both directions have.
pub struct Ring {
    slots: Box<[Slot]>,
    pool: Arc<Pool>,
    head: usize,
    cur: usize,
    tail: usize,
    /// Where head was at the last sync.
    synced: usize,
    /// When that was.
    time: SystemTime,
}

/// A buffer that is in no ring: to keep a packet for later, [exchange](Ring::exchange) its slot's buffer for this one.
pub struct ExtraBuffer {
    slot: Slot,
    pool: Arc<Pool>,
}

impl Drop for ExtraBuffer {
    fn drop(&mut self) {
        self.pool.give(&[self.slot.buf()]);
    }
}

impl ExtraBuffer {
    /// The packet that is in it.
    pub fn bytes(&self) -> &[u8] {
        self.pool.region().view().bytes(&self.slot)
    }
}

impl Ring {
    /// A ring of `len` slots, at least two, without buffers.
    fn new(pool: &Arc<Pool>, len: usize) -> Ring {
        let slots = (0..len.max(2)).map(|_| Slot::EMPTY).collect();
        Ring { slots, pool: pool.clone(), head: 0, cur: 0, tail: 0, synced: 0, time: SystemTime::UNIX_EPOCH }
    }

    /// How many slots it has, of which one is always empty. Not a power of two, perhaps.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The first slot that is the program's.
    pub fn head(&self) -> usize {
        self.head
    }

    /// The first slot that is not the program's.
    pub fn tail(&self) -> usize {
        self.tail
    }

    /// The program waits until tail is past this: more than it has looked at is wanted then.
    pub fn cur(&self) -> usize {
        self.cur
    }

    /// The slot behind this one.
    pub fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// How many slots are the program's (`nm_ring_space`).
    pub fn space(&self) -> usize {
        self.distance(self.head, self.tail)
    }

    /// When the last sync was.
    pub fn time(&self) -> SystemTime {
        self.time
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        (to + self.slots.len() - from) % self.slots.len()
    }

    /// True for a slot that is the program's.
    fn is_ours(&self, slot: usize) -> bool {
        slot < self.slots.len() && self.distance(self.head, slot) < self.space()
    }

    #[track_caller]
    fn check(&self, slot: usize) {
        assert!(self.is_ours(slot), "slot {slot} is not from head ({}) to tail ({})", self.head, self.tail);
    }

    /// Moves head and cur past the next `count` slots: they are sent, or can be received into, from the next sync on.
    ///
    /// # Panics
    /// If that is past tail.
    #[track_caller]
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.head = (self.head + count) % self.slots.len();
        self.cur = self.head;
    }

    /// Moves cur ahead of head: what is from head to cur is kept, and more is waited for.
    ///
    /// # Panics
    /// If that is past tail.
    #[track_caller]
    pub fn look_ahead(&mut self, count: usize) {
        assert!(count <= self.space(), "{count} slots are past tail: {} are the program's", self.space());
        self.cur = (self.head + count) % self.slots.len();
    }

    /// True if tail is past cur: poll(2) would return.
    fn is_ready(&self) -> bool {
        self.cur != self.tail
    }

    /// A packet's bytes, or a part of it if there are more.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn bytes(&self, slot: usize) -> &[u8] {
        self.check(slot);
        self.pool.region().view().bytes(&self.slots[slot])
    }

    /// As [`bytes`](Ring::bytes), to be changed.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        self.check(slot);
        self.pool.region().view().bytes_mut(&mut self.slots[slot])
    }

    /// Sets the length of a slot's data, and whether the packet goes on in the next slot (`NS_MOREFRAG`).
    ///
    /// # Panics
    /// If the slot is not the program's, or the data would not fit its buffer.
    #[track_caller]
    pub fn set_len(&mut self, slot: usize, len: usize, more: bool) {
        self.check(slot);
        let there = &mut self.slots[slot];
        let (offset, size) = (there.offset(), self.pool.region().buffer_size());
        assert!(len <= size - offset, "{len} bytes do not fit a buffer of {size}, {offset} in front");
        *there = Slot::new(there.buf(), offset, len as u16, more);
    }

    /// True where the packet goes on in the next slot.
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
    /// [`Error::OtherRegion`]; nothing is changed then.
    ///
    /// # Panics
    /// If the slot is not the program's.
    #[track_caller]
    pub fn exchange(&mut self, slot: usize, extra: &mut ExtraBuffer) -> Result<()> {
        self.check(slot);
        if !Arc::ptr_eq(&self.pool, &extra.pool) {
            return Err(Error::OtherRegion);
        }
        std::mem::swap(&mut self.slots[slot], &mut extra.slot);
        Ok(())
    }
}

/// Forwards without a copy: exchanges the buffers of two slots, and the packets in them. What was received is sent, once the
/// rings are advanced and synced, and what was free is received into.
///
/// # Errors
/// [`Error::OtherRegion`] if the rings' buffers are elsewhere: then a copy is needed. Nothing is changed.
///
/// # Panics
/// If one of the slots is not the program's.
#[track_caller]
pub fn swap(from: &mut Ring, slot: usize, to: &mut Ring, other: usize) -> Result<()> {
    from.check(slot);
    to.check(other);
    if !Arc::ptr_eq(&from.pool, &to.pool) {
        return Err(Error::OtherRegion);
    }
    std::mem::swap(&mut from.slots[slot], &mut to.slots[other]);
    Ok(())
}

/// Gives the buffers back: of slots that are the program's, and of those that it has advanced past since the last sync.
impl Drop for Ring {
    fn drop(&mut self) {
        let count = self.distance(self.synced, self.tail);
        let bufs: Vec<u32> = (0..count).map(|n| self.slots[(self.synced + n) % self.slots.len()].buf()).collect();
        self.pool.give(&bufs);
    }
}

/// A transmit ring.
pub struct TxRing {
    /// Its slots. Two ports' rings may be exchanged: each goes on with the slots that it has then.
    pub ring: Ring,
    queue: TxQueue,
    /// Packets that the queue has not taken yet.
    batch: Batch,
    /// The beginning of a packet was too long, and was dropped: so are its other slots.
    skips: bool,
    /// How many packets were.
    too_long: u64,
}

/// A receive ring.
pub struct RxRing {
    /// Its slots, as [`TxRing::ring`].
    pub ring: Ring,
    queue: RxQueue,
    /// Packets that found no slot yet, of whichever region the queue has.
    batch: Batch,
    /// Buffers of the ring's own region, and packets that had to be copied into them.
    own: Batch,
}

impl Ring {
    /// Makes `batch` fit this ring: slots pass between the two only if both are of one pool, and all find a place.
    ///
    /// Between two calls a program may have exchanged the ring, and a queue that is the program's own may have exchanged
    /// the batch. A batch that does not fit is dropped; its packets' buffers go back to the pool that they are of.
    fn fit(&self, batch: &mut Batch) {
        if batch.capacity() < self.slots.len() || !batch.is_of(&self.pool) {
            *batch = Batch::with_capacity(self.slots.len());
            batch.is_of(&self.pool);
        }
    }

    /// Moves a slot from in front of head out of the ring.
    fn take_synced(&mut self) -> Option<Slot> {
        let at = self.synced;
        (at != self.head).then(|| {
            self.synced = self.next(at);
            self.slots[at].take()
        })
    }

    /// Puts a slot of this ring's pool at tail. There is room.
    fn put_at_tail(&mut self, slot: Slot) {
        let at = self.tail;
        self.slots[at] = slot;
        self.tail = self.next(at);
    }
}

impl TxRing {
    /// A queue in this form. Packets are in buffers of `pool`; where the queue's region is another, it copies them.
    pub fn new(queue: TxQueue, pool: &Arc<Pool>, slots: usize) -> TxRing {
        let mut ring = TxRing { ring: Ring::new(pool, slots), queue, batch: Batch::new(), skips: false, too_long: 0 };
        ring.sync();
        ring
    }

    /// Sends what is behind head, and makes slots free (`NIOCTXSYNC`). A packet of more than 64 slots (netmap(4)) is dropped
    /// and [counted](TxRing::too_long).
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
            // The batch has room for a ring and a chain more; and if it had not, the packet would be dropped.
            if *skips || !batch.push_slot(&mut slot) {
                batch.put(&[slot.buf()]);
            }
            *skips &= has_more;
            chain = if has_more && !*skips { chain + 1 } else { 0 };
        }
        // A packet whose end is missing waits for it.
        let mut beginning = Beginning { slots: Vec::new(), ring };
        batch.keep_beginning(&mut beginning.slots);
        queue.send(batch);
        ring.fit(batch);
        batch.resume(&mut beginning.slots);
        drop(beginning);
        // What is not taken stays in front of head.
        let free = (ring.slots.len() - 1).saturating_sub(batch.len());
        while ring.space() < free {
            let Some(buf) = batch.take_buffer() else { break };
            ring.put_at_tail(Slot::new(buf, HEADROOM, 0, false));
        }
        ring.time = SystemTime::now();
    }

    /// How many packets had more than 64 slots, and were dropped.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// True if something was sent that the port has not taken yet (`nm_tx_pending`).
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
        self.ring.pool.give(&self.slots.drain(..).map(|slot| slot.buf()).collect::<Vec<_>>());
    }
}

impl RxRing {
    /// A queue in this form. Packets come in buffers of `pool`; where the queue's region is another, they are copied.
    pub fn new(queue: RxQueue, pool: &Arc<Pool>, slots: usize) -> RxRing {
        let ring = Ring::new(pool, slots);
        let mut batch = Batch::with_capacity(ring.slots.len());
        batch.is_of(pool);
        RxRing { ring, queue, batch, own: Batch::new() }
    }

    /// Takes the slots in front of head back, and receives into them (`NIOCRXSYNC`).
    pub fn sync(&mut self) {
        let RxRing { ring, queue, batch, own } = self;
        let is_own = batch.is_of(&ring.pool);
        if !is_own || !own.is_empty() {
            ring.fit(own);
        }
        let back = if is_own { &mut *batch } else { &mut *own };
        while let Some(slot) = ring.take_synced() {
            back.put(&[slot.buf()]);
        }
        if batch.is_empty() {
            queue.recv(batch);
        }
        // Packets of another region are copied; those that came before them go first.
        let from = if own.is_empty() && batch.is_of(&ring.pool) {
            batch
        } else {
            ring.fit(own);
            own.copy_from(&ring.pool, batch, usize::MAX);
            own
        };
        let room = ring.slots.len() - 1 - ring.space();
        let count = from.len().min(room);
        for slot in &mut from.slots()[..count] {
            ring.put_at_tail(slot.take());
        }
        // They are the ring's now.
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
    /// Transmit rings; dropped first, as the port wants it.
    pub tx: Vec<TxRing>,
    /// Receive rings.
    pub rx: Vec<RxRing>,
    device: Port,
}

impl NetmapPort {
    /// All rings of a port.
    ///
    /// # Errors
    /// As [`of`](Rings::of).
    pub fn new(device: Port) -> Result<NetmapPort> {
        let queues = device.info().rx_queues;
        NetmapPort::of(device, 0..queues)
    }

    /// Some rings of a port.
    ///
    /// # Errors
    /// [`Error::NoSuchQueue`], [`Error::QueueTaken`] and what else starting a queue can have wrong.
    pub fn of(mut device: Port, queues: std::ops::Range<u16>) -> Result<NetmapPort> {
        let (pool, slots) = (device.pool().clone(), device.info().ring);
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for queue in queues {
            tx.push(TxRing::new(device.tx(queue)?, &pool, slots));
            rx.push(RxRing::new(device.rx(queue)?, &pool, slots));
        }
        Ok(NetmapPort { tx, rx, device })
    }

    /// The port itself.
    pub fn device(&mut self) -> &mut Port {
        &mut self.device
    }

    /// Buffers beside those of the rings, as many as there are, up to `count`.
    pub fn extra_buffers(&self, count: usize) -> Vec<ExtraBuffer> {
        let pool = self.device.pool();
        let mut batch = Batch::with_capacity(1);
        batch.is_of(pool);
        let one =
            || Some(ExtraBuffer { slot: Slot::new(batch.take_buffer()?, HEADROOM, 0, false), pool: pool.clone() });
        std::iter::from_fn(one).take(count).collect()
    }

    /// Syncs all rings, and waits until a receive ring has something, or, for `send`, a transmit ring has room; at most so
    /// long. True if one has (`poll(2)` on netmap's descriptor).
    ///
    /// It sleeps where the port was opened with [interrupts](crate::Options::interrupts), and asks again and again where not.
    pub fn poll(&mut self, send: bool, timeout: Duration) -> bool {
        let begin = std::time::Instant::now();
        loop {
            // Armed before it looks, so that nothing comes in between.
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
            // Who waits to send is not told of room: it looks again soon.
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
        let longest = longest.min(crate::port::Waiter::LONGEST_SLEEP);
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.as_nanos() as _ };
        let _ = poll(&mut events, Some(&longest));
    }
}
