//! A port whose flows are distributed among several consumers: `PORT?cluster=N&by=flow`.
//!
//! ```text
//!     the port's receive queues            a ring for each consumer
//!       [ .......... ]  \               /  [ .... ]  receive queue 0
//!       [ .......... ]  -- distributor --  [ .... ]  receive queue 1
//!                                       \  [ .... ]  receive queue 2
//! ```
//!
//! Distribution needs no thread of its own. A consumer whose ring is empty tries to become the distributor. The
//! distributor receives from the port, and moves each packet's slots into its consumer's ring. So packets are
//! distributed as long as any consumer receives. A consumer never waits for another: it only tries the lock, which is
//! held for a few batches at most. Only the distributor writes to the rings, so the order within each flow is kept.
//!
//! Packets for a full ring, or for a consumer that is not open, are dropped. All rings together hold at most half of
//! the buffers, and the consumers' batches cache at most a quarter of them. So the port can still receive while every
//! ring is full.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use linerate_core::batch::Batch;
use linerate_core::error::{Error, Remedy, Result};
use linerate_core::event::ArmedEvent;
use linerate_core::filter::FlowKey;
use linerate_core::memory::Pool;
use linerate_core::port::{
    BY, CLUSTER, Config, Device, Info, Opening, PortName, QueueCounters, QueueStatistics, Receive, RegionRx, Rx,
    Statistics, Wrapped, Wrapper,
};
use linerate_core::slot::Slot;
use rustix::event::epoll;
use rustix::io::Errno;

use super::slot_channel::{SlotReceiver, SlotSender, slot_channel};

/// Selects how packets are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// By a hash of the flow.
    Key(FlowKey),
    /// Round-robin, regardless of flows.
    RoundRobin,
}

/// The name of each variant in a port's options.
const NAMES: [(&str, Distribution); 4] = [
    ("flow", Distribution::Key(FlowKey::Flow)),
    ("inner", Distribution::Key(FlowKey::Inner)),
    ("addresses", Distribution::Key(FlowKey::Addresses)),
    ("turn", Distribution::RoundRobin),
];

impl Distribution {
    /// Returns the variant with this name: `flow`, `inner`, `addresses` or `turn`.
    pub fn named(name: &str) -> Option<Distribution> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, by)| *by)
    }

    /// Returns the variant's name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, by)| *by == self).map_or("", |(name, _)| name)
    }
}

/// The most consumers of a port.
pub(crate) const MAX_CONSUMERS: usize = 64;
/// Slots received from the port per batch.
const BATCH: usize = 64;
/// The most batches per queue before the distributor returns to its own packets.
const BATCHES_PER_TURN: usize = 4;
/// The shortest and the longest ring of a consumer. A long ring bridges times when the consumer does not run on a CPU.
const SHORTEST: usize = 64;
const LONGEST: usize = 4096;
/// Bytes searched for a flow's headers if a packet's first slot is shorter.
const HEADERS: usize = 256;

/// A port whose packets are distributed. Each receive queue belongs to one consumer.
pub type Cluster = Wrapped<Consumers>;

/// The consumers of a port's packets.
pub struct Consumers {
    /// The port's name.
    name: String,
    ring: usize,
    /// Receivers may sleep.
    sleeps: bool,
    shared: Arc<Shared>,
}

/// The state that all consumers share.
struct Shared {
    by: Distribution,
    pool: Arc<Pool>,
    /// The most free buffers that a consumer's batch keeps.
    most_cached: usize,
    consumers: Vec<ConsumerState>,
    distributor: Mutex<Distributor>,
}

/// The state of one consumer.
struct ConsumerState {
    /// The receiving end of the ring, while no queue uses it.
    receiver: Mutex<Option<SlotReceiver>>,
    wake: ArmedEvent,
    /// The consumer counts received packets, the distributor dropped packets.
    counters: QueueCounters,
}

/// Distributes the port's packets, on one thread at a time.
struct Distributor {
    /// The port's receive queues, while any consumer is open.
    queues: Vec<Box<dyn Receive>>,
    /// The batch for the port's queues. A program-defined queue may put packets of another pool into it, or replace it.
    port_batch: Batch,
    /// Copies of packets of another pool.
    copies: Batch,
    lanes: Vec<Lane>,
    /// The previous consumer in round-robin order.
    last_consumer: usize,
    /// The number of consumers that have armed the port's queues.
    sleepers: usize,
}

/// The distributor's end of a consumer's ring.
struct Lane {
    sender: SlotSender,
    /// A batch's packets for this consumer; never passed to a queue of the port.
    packets: Batch,
    is_open: bool,
}

/// Parses the options `cluster` and `by`: the number of consumers, and how packets are distributed. Returns `None` if
/// the name has neither.
///
/// # Errors
/// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption).
pub(crate) fn cluster_of(name: &PortName) -> Result<Option<(u16, Distribution)>> {
    let by = name.option("by").unwrap_or("flow");
    let by = Distribution::named(by);
    let names = NAMES.map(|(name, _)| name).join(", ");
    match (name.option("cluster"), by) {
        (None, _) if name.option("by").is_some() => {
            Err(name.bad_option("by", "it selects how packets are distributed; add cluster=N, the number of consumers"))
        }
        (None, _) => Ok(None),
        (Some(_), None) => Err(name.bad_option("by", &format!("it must be one of {names}"))),
        (Some(_), Some(by)) => Ok(Some((name.number("cluster", 1, 1..=MAX_CONSUMERS)? as u16, by))),
    }
}

impl Consumers {
    /// Distributes a port's packets among 1 to 64 `consumers`. Each consumer's ring has the configured length, or 4,096
    /// slots by default. Rings are shortened until all rings together hold at most half of the port's buffers.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted) if the pool is too small even for rings of 64
    /// slots; [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption);
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no file descriptors left.
    pub fn of(inner: &dyn Device, consumers: u16, by: Distribution, config: &Config) -> Result<Consumers> {
        config.check_ring()?;
        let (pool, consumers) = (inner.pool().clone(), usize::from(consumers).clamp(1, MAX_CONSUMERS));
        let buffers = pool.region().buffers();
        let mut ring = config.options.ring.unwrap_or(LONGEST);
        while ring > SHORTEST && consumers * ring > buffers / 2 {
            ring /= 2;
        }
        if consumers * ring > buffers / 2 {
            return Err(Error::pool_too_small(buffers, 2 * consumers * ring));
        }
        let batch = || {
            let mut batch = Batch::with_capacity(BATCH);
            batch.bind_if_unbound(&pool);
            batch
        };
        let (mut states, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..consumers {
            let (sender, receiver) = slot_channel(&pool, ring);
            let counters = QueueCounters::default();
            states.push(ConsumerState { receiver: Mutex::new(Some(receiver)), wake: ArmedEvent::new()?, counters });
            lanes.push(Lane { sender, packets: batch(), is_open: false });
        }
        let distributor = Distributor {
            queues: Vec::new(),
            port_batch: batch(),
            copies: batch(),
            lanes,
            last_consumer: 0,
            sleepers: 0,
        };
        let most_cached = pool.most_cached(BATCH).min(buffers / 4 / consumers);
        let shared =
            Shared { by, pool: pool.clone(), most_cached, consumers: states, distributor: Mutex::new(distributor) };
        let (name, sleeps) = (config.name.clone(), config.options.interrupts.is_some());
        Ok(Consumers { name, ring, sleeps, shared: Arc::new(shared) })
    }
}

impl Shared {
    /// Locks, ignoring poison: packets left by a distributor that panicked are distributed by the next distributor.
    fn distributor(&self) -> MutexGuard<'_, Distributor> {
        self.distributor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Distributes the port's packets, unless another consumer is doing so.
    fn distribute(&self) {
        match self.distributor.try_lock() {
            Ok(mut distributor) => distributor.turn(self),
            Err(TryLockError::Poisoned(distributor)) => distributor.into_inner().turn(self),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Returns whether no packet is waiting for a consumer.
    fn is_empty(&self) -> bool {
        let distributor = &mut *self.distributor();
        distributor.port_batch.is_empty() && distributor.lanes.iter().all(|lane| lane.sender.is_empty())
    }
}

impl Distributor {
    fn turn(&mut self, shared: &Shared) {
        let mut may_have_more = false;
        for queue in 0..self.queues.len() {
            may_have_more = false;
            for turn in 0..BATCHES_PER_TURN {
                if self.queues[queue].recv(&mut self.port_batch) == 0 && self.port_batch.is_empty() {
                    break;
                }
                self.distribute_all(shared);
                may_have_more = turn + 1 == BATCHES_PER_TURN;
            }
        }
        if may_have_more {
            // The port does not interrupt for packets that have already arrived, so other consumers must continue with
            // them.
            shared.consumers.iter().for_each(|consumer| consumer.wake.notify());
        }
    }

    /// Moves all received packets into their consumers' rings. Packets of another pool are copied; they wait for the
    /// next call if this pool has no free buffers.
    fn distribute_all(&mut self, shared: &Shared) {
        let Distributor { port_batch, copies, lanes, last_consumer, .. } = self;
        if port_batch.bind_if_unbound(&shared.pool) {
            return distribute_batch(shared, port_batch, lanes, last_consumer);
        }
        loop {
            let (copied, too_long) = copies.copy_from(&shared.pool, port_batch, usize::MAX);
            shared.consumers[0].counters.missed(too_long as u32, 0);
            if copied == 0 {
                break;
            }
            distribute_batch(shared, copies, lanes, last_consumer);
        }
        // The empty batch returns to the port's pool.
        port_batch.bind_if_empty(&shared.pool);
    }

    /// Disarms the port's queues for a consumer that has woken up; other sleeping consumers stay armed.
    fn disarm(&mut self) {
        self.sleepers -= 1;
        for queue in &mut self.queues {
            queue.disarm();
            if self.sleepers > 0 {
                queue.arm();
            }
        }
    }
}

/// Moves all packets of a batch into their consumers' rings, and drops those that do not fit. The batch is of the
/// port's pool.
fn distribute_batch(shared: &Shared, batch: &mut Batch, lanes: &mut [Lane], last_consumer: &mut usize) {
    while !batch.is_empty() {
        let mut taken = 0;
        // A lane has room for these slots and the rest of a chain. A port's queue may have replaced the batch with a
        // longer batch.
        while taken < BATCH && !batch.is_empty() {
            let slots = batch.slots();
            let len = Slot::first_packet(slots);
            let number = match shared.by {
                Distribution::Key(key) => consumer_of(hash(&shared.pool, key, &slots[..len]), lanes.len()),
                Distribution::RoundRobin => {
                    *last_consumer = (*last_consumer + 1) % lanes.len();
                    *last_consumer
                }
            };
            // A packet longer than any chain is dropped.
            let _ = batch.take().map(|packet| lanes[number].packets.push_packet(packet));
            taken += len;
        }
        for (Lane { sender, packets, is_open }, consumer) in lanes.iter_mut().zip(&shared.consumers) {
            if packets.is_empty() {
                continue;
            }
            if *is_open && sender.send(packets).slots > 0 {
                consumer.wake.notify();
            }
            let dropped = packets.slots().iter().filter(|slot| !slot.has_more()).count();
            if dropped > 0 {
                consumer.counters.missed(dropped as u32, 0);
                while let Some(slot) = packets.pop_slot() {
                    // SAFETY: the slot is consumed here, and both batches are of the port's pool.
                    unsafe { batch.recycle(&[slot.buf()]) };
                }
            }
        }
    }
}

/// Returns the consumer for a hash.
fn consumer_of(hash: u32, consumers: usize) -> usize {
    ((u64::from(hash) * consumers as u64) >> 32) as usize
}

/// Returns the hash of a packet's flow. The headers may span several slots.
#[inline(always)]
fn hash(pool: &Pool, key: FlowKey, packet: &[Slot]) -> u32 {
    // SAFETY: the view is used only with the packet's slots, which are of this pool.
    let view = unsafe { pool.region().view() };
    let first = packet.first().map_or(&[][..], |slot| view.bytes(slot));
    if packet.len() > 1 && first.len() < HEADERS { hash_of_parts(pool, key, packet) } else { key.hash(first) }
}

#[cold]
fn hash_of_parts(pool: &Pool, key: FlowKey, packet: &[Slot]) -> u32 {
    let (mut headers, mut len) = ([0; HEADERS], 0);
    for slot in packet {
        // SAFETY: as in `hash`.
        let bytes = unsafe { pool.region().view() }.bytes(slot);
        let count = bytes.len().min(HEADERS - len);
        headers[len..len + count].copy_from_slice(&bytes[..count]);
        len += count;
    }
    key.hash(&headers[..len])
}

impl Wrapper for Consumers {
    fn rx(&mut self, inner: &mut dyn Device, queue: u16) -> Result<Box<dyn Receive>> {
        let (port, direction, number) = (|| self.name.clone(), "receive", usize::from(queue));
        let consumers = &self.shared.consumers;
        let absent = || {
            let remedy = format!("open it with more, for example with cluster={} in its name", number + 1);
            Error::no_such_queue(port(), direction, queue, consumers.len() as u16)
                .with_remedy(Remedy::Step(remedy.into()))
        };
        let consumer = consumers.get(number).ok_or_else(absent)?;
        let events = match self.sleeps {
            true => Some(events(consumer)?),
            false => None,
        };
        let mut distributor = self.shared.distributor();
        let mut end = consumer.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            return Err(Error::queue_taken(port(), direction, queue));
        }
        if distributor.queues.is_empty() {
            let queues = (0..inner.info().rx_queues).map(|queue| inner.rx(queue));
            distributor.queues = queues.collect::<Result<_>>()?;
        }
        distributor.lanes[number].is_open = true;
        consumer.wake.want(self.sleeps);
        let (shared, receiver) = (self.shared.clone(), end.take());
        Ok(Box::new(Rx::new(ClusterRx { shared, number, receiver, events, is_armed: false })))
    }

    fn info(&self, inner: Info) -> Info {
        let consumers = self.shared.consumers.len();
        let description = format!("{}, distributed to {consumers} by {}", inner.description, self.shared.by.name());
        Info { description, rx_queues: consumers as u16, ring: self.ring, ..inner }
    }

    /// Returns the port's statistics. Packets that reached a consumer count as received, all other packets as dropped.
    fn statistics(&self, mut all: Statistics) -> Statistics {
        let sum = |of: fn(&QueueCounters) -> u64| {
            self.shared.consumers.iter().map(|consumer| of(&consumer.counters)).sum::<u64>()
        };
        (all.rx_packets, all.rx_bytes) = (sum(QueueCounters::packets), sum(QueueCounters::bytes));
        all.drops.no_descriptor += sum(QueueCounters::no_descriptor);
        all
    }

    fn queue_statistics(&self, inner: QueueStatistics) -> QueueStatistics {
        let each = |of: fn(&QueueCounters) -> u64| {
            self.shared.consumers.iter().map(|consumer| of(&consumer.counters)).collect()
        };
        let rx_no_descriptor = each(QueueCounters::no_descriptor);
        QueueStatistics { rx_slots: each(QueueCounters::slots), rx_no_descriptor, ..inner }
    }

    /// Returns whether the port is exhausted and the consumers have received all packets. `is_empty` takes the
    /// distributor's lock, so the port's last packets are in the rings by then.
    fn is_exhausted(&self, inner: bool) -> bool {
        inner && self.shared.is_empty()
    }

    fn reset(&mut self, inner: &mut dyn Device) -> Result<()> {
        let queues = self.shared.distributor().lanes.iter().filter(|lane| lane.is_open).count();
        match queues {
            0 => inner.reset(),
            _ => Err(Error::queues_in_use(&self.name, queues)),
        }
    }
}

/// Creates the descriptor that a consumer sleeps on: first with the consumer's own event, later also with the port's
/// events.
fn events(consumer: &ConsumerState) -> Result<OwnedFd> {
    let failed = |error| Error::system("epoll(7)", error);
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    add(&events, consumer.wake.event()).map_err(failed)?;
    Ok(events)
}

/// Adds an event, unless it has already been added.
fn add(events: &OwnedFd, event: impl AsFd) -> std::result::Result<(), Errno> {
    match epoll::add(events, event, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
        Err(Errno::EXIST) => Ok(()),
        result => result,
    }
}

/// A consumer's receive queue.
struct ClusterRx {
    shared: Arc<Shared>,
    number: usize,
    /// Returned to the consumer's [`ConsumerState`] on drop.
    receiver: Option<SlotReceiver>,
    events: Option<OwnedFd>,
    /// Whether this consumer counts as a sleeper.
    is_armed: bool,
}

impl ClusterRx {
    fn state(&self) -> &ConsumerState {
        &self.shared.consumers[self.number]
    }

    /// Leaves the cluster and drops the packets in the ring. The last consumer to leave stops the port's queues.
    fn leave(&mut self) -> Result<()> {
        let Some(mut receiver) = self.receiver.take() else { return Ok(()) };
        self.disarm();
        let distributor = &mut *self.shared.distributor();
        distributor.lanes[self.number].is_open = false;
        let state = self.state();
        // Only the distributor counts drops; this call holds its lock.
        state.counters.missed(receiver.drain() as u32, 0);
        *state.receiver.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        if distributor.lanes.iter().any(|lane| lane.is_open) {
            return Ok(());
        }
        let queues = std::mem::take(&mut distributor.queues);
        queues.into_iter().map(|queue| queue.stop()).fold(Ok(()), Result::and)
    }
}

impl RegionRx for ClusterRx {
    fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        batch.keep_cached(self.shared.most_cached);
        let counters = &self.shared.consumers[self.number].counters;
        let Some(receiver) = &mut self.receiver else { return 0 };
        match receiver.receive_counted(counters, batch) {
            0 => {
                self.shared.distribute();
                receiver.receive_counted(counters, batch)
            }
            count => count,
        }
    }

    fn buffers(&self) -> usize {
        self.receiver.as_ref().map_or(0, SlotReceiver::waiting)
    }

    /// Arms the consumer's own event and the port's events. The consumer that a port's event wakes distributes the
    /// packets.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        let events = self.events.as_ref()?;
        self.state().wake.arm()?;
        let shared = self.shared.clone();
        let distributor = &mut *shared.distributor();
        let mut queues = distributor.queues.iter_mut();
        let can_sleep = queues.all(|queue| queue.arm().is_some_and(|event| add(events, event).is_ok()));
        distributor.sleepers += usize::from(!self.is_armed);
        self.is_armed = true;
        if !can_sleep {
            self.disarm_by(distributor);
            return None;
        }
        self.events.as_ref().map(AsFd::as_fd)
    }

    fn disarm(&mut self) {
        if self.is_armed {
            let shared = self.shared.clone();
            self.disarm_by(&mut shared.distributor());
        }
    }

    fn stop(&mut self) -> Result<()> {
        self.leave()
    }
}

impl ClusterRx {
    fn disarm_by(&mut self, distributor: &mut Distributor) {
        self.state().wake.disarm();
        self.is_armed = false;
        distributor.disarm();
    }
}

impl Drop for ClusterRx {
    fn drop(&mut self) {
        // An error is dropped here: the port's queues report it again at their next use.
        let _ = self.leave();
    }
}

/// Opens a port whose packets this process distributes among consumers, if its name has the options for it.
///
/// # Errors
/// As opening the port itself, and an [`Error`](linerate_core::Error) of its options.
pub fn open_cluster(opening: &Opening<'_>) -> Result<Option<Box<dyn Device>>> {
    let Some((consumers, by)) = cluster_of(opening.name)? else { return Ok(None) };
    let inner = opening.open(&opening.name.without(&[&CLUSTER, &BY]))?;
    let consumers = Consumers::of(&*inner, consumers, by, &opening.config)?;
    Ok(Some(Box::new(Cluster::new(&opening.config.name, inner, consumers))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_has_the_name_by_which_it_is_found() {
        for name in ["flow", "inner", "addresses", "turn"] {
            assert_eq!(Distribution::named(name).map(Distribution::name), Some(name));
        }
        assert!(Distribution::named("no").is_none());
    }
}
