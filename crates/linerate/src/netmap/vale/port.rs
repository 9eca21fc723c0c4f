//! A port's queues: what happens to a packet between two ports of a switch, top-down.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::frames::{CHUNK, Frames};
use super::{Destination, MAX_PORTS, Now, Switch};
use crate::batch::{Batch, Copied};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::netmap::channel::{Receiver, Sender, channel};
use crate::netmap::pipe::{counted, receive_from, send_to};
use crate::netmap::wake::Wake;
use crate::port::{Config, Drops, QueueCounters, RxQueue, TxQueue};
use crate::slot::Slot;

/// The side of a port that the switch sends to.
pub struct Outlet {
    pub name: String,
    pub number: u8,
    pool: Arc<Pool>,
    longest: usize,
    offloads: bool,
    /// By queue: who sends has it for a batch.
    ways: Box<[Way]>,
    /// Packets that found no room, or were too long.
    full: AtomicU64,
    too_long: AtomicU64,
}

struct Way {
    entry: Mutex<Entry>,
    receiver: Mutex<Option<Receiver<u64>>>,
    wake: Wake,
}

/// Where packets for a queue are copied into: buffers of its own region, then slots in a channel.
struct Entry {
    sender: Sender<u64>,
    copies: Batch,
    /// Somebody receives.
    open: bool,
}

impl Outlet {
    pub fn new(name: &str, number: u8, config: &Config) -> Result<Outlet> {
        let way = || {
            let (sender, receiver) = channel(config.ring);
            let entry = Entry { sender, copies: Batch::with_capacity(CHUNK), open: false };
            Ok(Way { entry: Mutex::new(entry), receiver: Mutex::new(Some(receiver)), wake: Wake::new()? })
        };
        Ok(Outlet {
            name: name.to_string(),
            number,
            pool: config.pool.clone(),
            longest: config.max_frame,
            offloads: config.offloads,
            ways: (0..config.rx_queues).map(|_| way()).collect::<Result<_>>()?,
            full: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
        })
    }

    pub fn drops(&self) -> Drops {
        let (no_descriptor, oversize) = (self.full.load(Ordering::Relaxed), self.too_long.load(Ordering::Relaxed));
        Drops { no_descriptor, oversize, ..Drops::default() }
    }

    /// Copies those of the packets whose bits are set to a queue of this port, as many as there is room for.
    fn deliver(&self, frames: &Frames<'_>, mut wanted: u64, queue: usize) {
        let way = &self.ways[queue % self.ways.len()];
        let entry = &mut *way.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if !entry.open {
            return;
        }
        let (mut full, mut too_long) = (0, 0);
        entry.copies.is_of(&self.pool);
        loop {
            wanted = match frames.plain() {
                Some(slots) => {
                    let one = |n: usize| std::slice::from_ref(&slots[n]);
                    entry.copies.copy_short(&self.pool, frames.view, self.longest, wanted, one)
                }
                None => entry.copies.copy_short(&self.pool, frames.view, self.longest, wanted, |n| frames.slots(n)),
            };
            full += entry.flush();
            if wanted == 0 {
                break;
            }
            // The next is a chain, unfinished, too long, or there is no buffer for it.
            let slots = frames.slots(wanted.trailing_zeros() as usize);
            wanted &= wanted - 1;
            match entry.copies.copy_careful(&self.pool, slots, frames.pool, self.longest, self.offloads) {
                Copied::Whole => {}
                Copied::NoBuffer => full += 1,
                Copied::TooLong => too_long += 1,
            }
            full += entry.flush();
        }
        way.wake.notify();
        if full + too_long > 0 {
            self.full.fetch_add(full, Ordering::Relaxed);
            self.too_long.fetch_add(too_long, Ordering::Relaxed);
        }
    }
}

impl Entry {
    /// Hands over what was copied. What finds no room is dropped, and its buffers are the next packets'; tells how many.
    #[inline(always)]
    fn flush(&mut self) -> u64 {
        send_to(&mut self.sender, &mut self.copies);
        if self.copies.is_empty() {
            return 0;
        }
        let left = self.copies.packets().count() as u64;
        self.copies.clear();
        left
    }
}

/// What the program sends into the switch.
pub struct ValeTx {
    switch: Arc<Switch>,
    now: Now,
    source: u8,
    queue: usize,
    counters: Arc<QueueCounters>,
    /// By port: which packets go there. All zeros between two batches.
    wanted: Box<[u64; MAX_PORTS]>,
}

impl ValeTx {
    pub fn new(
        switch: &Arc<Switch>,
        outlet: &Arc<Outlet>,
        _: &Config,
        queue: u16,
        counters: Arc<QueueCounters>,
    ) -> ValeTx {
        let wanted = Box::new([0; MAX_PORTS]);
        let (switch, source) = (switch.clone(), outlet.number);
        ValeTx { now: switch.now(), switch, source, queue: queue.into(), counters, wanted }
    }

    /// Decides on up to [`CHUNK`] packets from the front, and delivers them; tells how many slots and packets.
    fn switch_some(&mut self, slots: &[Slot], pool: &Arc<Pool>) -> (usize, usize) {
        let frames = Frames::new(slots, pool);
        let mut to = [Destination::Drop; CHUNK];
        let to = &mut to[..frames.len()];
        self.now.forward.forward(self.source, &frames, to);
        let (mut everywhere, mut used, mut ports) = (0u64, [0u8; CHUNK], 0);
        for (packet, to) in to.iter().enumerate() {
            let bit = 1 << packet;
            match to {
                Destination::Port(port) if usize::from(*port) < self.now.ports.len() && *port != self.source => {
                    let wanted = &mut self.wanted[usize::from(*port)];
                    if *wanted == 0 {
                        used[ports] = *port;
                        ports += 1;
                    }
                    *wanted |= bit;
                }
                Destination::Broadcast => everywhere |= bit,
                _ => {}
            }
        }
        if everywhere == 0 {
            for &port in &used[..ports] {
                let wanted = std::mem::take(&mut self.wanted[usize::from(port)]);
                if let Some(outlet) = &self.now.ports[usize::from(port)] {
                    outlet.deliver(&frames, wanted, self.queue);
                }
            }
        } else {
            for (port, outlet) in self.now.ports.iter().enumerate() {
                let wanted = std::mem::take(&mut self.wanted[port]) | everywhere;
                if let Some(outlet) = outlet.as_ref().filter(|_| port != usize::from(self.source)) {
                    outlet.deliver(&frames, wanted, self.queue);
                }
            }
        }
        (frames.slot_count(), frames.len())
    }
}

impl TxQueue for ValeTx {
    /// All are taken: what finds no room at its destination is dropped there.
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        if self.switch.changes.load(Ordering::Acquire) != self.now.changes {
            self.now = self.switch.now();
        }
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        if let Some((slots, pool)) = batch.contents() {
            bytes = slots.iter().map(Slot::len).sum();
            while taken < slots.len() {
                let some = self.switch_some(&slots[taken..], pool);
                (taken, packets) = (taken + some.0, packets + some.1);
            }
        }
        batch.drop_front(taken);
        self.counters.moved_packets(packets, taken, bytes);
        taken
    }

    fn buffers(&self) -> usize {
        0
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// What the switch sends to the program.
pub struct ValeRx {
    outlet: Arc<Outlet>,
    queue: usize,
    /// Goes back when this is dropped.
    receiver: Option<Receiver<u64>>,
    counters: Arc<QueueCounters>,
    /// For batches of another region.
    copies: Batch,
}

impl ValeRx {
    /// # Errors
    /// [`Error::QueueTaken`] while an older one is still there.
    pub fn new(outlet: &Arc<Outlet>, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<ValeRx> {
        let way = &outlet.ways[usize::from(queue)];
        let receiver = way.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = receiver else {
            return Err(Error::QueueTaken { port: config.name.clone(), direction: "receive", queue });
        };
        way.wake.want(config.interrupts.is_some());
        way.entry.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        let (outlet, queue, receiver) = (outlet.clone(), queue.into(), Some(receiver));
        Ok(ValeRx { outlet, queue, receiver, counters, copies: Batch::new() })
    }

    #[cold]
    fn recv_copied(&mut self, batch: &mut Batch) -> usize {
        let mut copies = std::mem::take(&mut self.copies);
        let pool = self.outlet.pool.clone();
        let received = copies.receive_for(&pool, batch, |own| self.recv(own));
        self.copies = copies;
        received
    }

    fn way(&self) -> &Way {
        &self.outlet.ways[self.queue]
    }
}

impl RxQueue for ValeRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if !batch.belongs_to(&self.outlet.pool) {
            return self.recv_copied(batch);
        }
        let Some(receiver) = &mut self.receiver else { return 0 };
        let count = receive_from(receiver, batch);
        if count > 0 {
            let slots = batch.slots();
            let (packets, bytes) = counted(&slots[slots.len() - count..]);
            self.counters.moved_packets(packets, count, bytes);
        }
        count
    }

    fn buffers(&self) -> usize {
        // Those of the entry are the queue's, too: it is where its packets are copied to.
        let entry = self.way().entry.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = self.receiver.as_ref().map_or(0, Receiver::waiting);
        waiting + entry.copies.cached() + self.copies.len() + self.copies.cached()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.way().wake.arm()
    }

    fn disarm(&mut self) {
        self.way().wake.disarm();
    }

    fn stop(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for ValeRx {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        let entry = &mut *self.way().entry.lock().unwrap_or_else(PoisonError::into_inner);
        entry.open = false;
        // Nobody will receive these, and nobody needs the buffers meanwhile.
        entry.copies = Batch::with_capacity(CHUNK);
        let mut batch = Batch::with_capacity(CHUNK);
        batch.is_of(&self.outlet.pool);
        while receive_from(&mut receiver, &mut batch) > 0 {
            batch.clear();
        }
        *self.way().receiver.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
    }
}
