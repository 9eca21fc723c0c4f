//! The registry of ports that can be monitored, and the copies for their monitors.
//!
//! A port without monitors pays one check per batch.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::batch::{Batch, Segmented};
use crate::memory::Pool;
use crate::slot::Slot;

/// Receives copies for a monitor.
pub trait MonitorSink: Send + Sync {
    /// Appends a copy of `packet`, whose buffers belong to `theirs`, to `copies`. Returns false if no buffer is free.
    ///
    /// # Safety
    /// The packet's slots belong to `theirs`.
    unsafe fn copy(&self, copies: &mut Batch, packet: &[Slot], theirs: &Arc<Pool>) -> bool;

    /// Takes the copies of packets of a queue. `missing` counts packets that could not be copied.
    fn hand_over(&self, copies: &mut Batch, queue: usize, missing: u64);
}

/// A port that can be monitored, and its monitors.
pub struct Monitored {
    /// The port's name.
    pub name: String,
    monitors: Mutex<Arc<Vec<MonitorEntry>>>,
    /// Number of changes of `monitors`.
    changes: AtomicU64,
}

/// A monitor of a port.
#[derive(Clone)]
pub struct MonitorEntry {
    /// Copies received packets.
    pub receive: bool,
    /// Copies sent packets.
    pub transmit: bool,
    /// The destination of the copies.
    pub sink: Arc<dyn MonitorSink>,
}

/// The ports of this process that can be monitored.
static PORTS: Mutex<Vec<Weak<Monitored>>> = Mutex::new(Vec::new());

impl Monitored {
    /// Registers a port for monitors, until the returned value is dropped. If several ports have the same name,
    /// monitors find the last.
    pub fn new(name: String) -> Arc<Monitored> {
        let monitored = Arc::new(Monitored { name, monitors: Mutex::default(), changes: AtomicU64::new(0) });
        let mut all = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|port| port.strong_count() > 0);
        all.push(Arc::downgrade(&monitored));
        monitored
    }

    /// Creates an unregistered entry, for a queue without a port. It never has monitors.
    pub fn unnamed() -> Arc<Monitored> {
        Arc::new(Monitored { name: String::new(), monitors: Mutex::default(), changes: AtomicU64::new(0) })
    }

    /// Finds the port of this name.
    pub fn find(name: &str) -> Option<Arc<Monitored>> {
        let all = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().filter_map(Weak::upgrade).find(|port| port.name == name)
    }

    /// Adds a monitor.
    pub fn add(&self, one: MonitorEntry) {
        self.change(|all| all.push(one));
    }

    /// Removes a monitor.
    pub fn remove(&self, one: &MonitorEntry) {
        self.change(|all| all.retain(|there| !Arc::ptr_eq(&there.sink, &one.sink)));
    }

    /// Returns whether the port or one of its queues is still open. Each monitor holds one reference to the entry; any
    /// further reference belongs to the port or a queue.
    pub fn is_open(self: &Arc<Monitored>) -> bool {
        Arc::strong_count(self) > self.monitors.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<MonitorEntry>)) {
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::clone(&monitors);
        change(&mut all);
        *monitors = Arc::new(all);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Copies a queue's packets to the port's monitors.
pub struct Mirror {
    monitored: Arc<Monitored>,
    changes: u64,
    /// The value of `Monitored::changes` at which there was no monitor, or [`NEVER`]. So a batch costs one comparison.
    idle_changes: u64,
    monitors: Arc<Vec<MonitorEntry>>,
    queue: usize,
    /// One entry per monitor.
    copies: Vec<Copies>,
}

/// A monitor's copies that have not been handed over yet.
struct Copies {
    packets: Batch,
    /// The number of packets that could not be copied.
    missing: u64,
    /// For each packet to be sent: the length of `packets` and the value of `missing` after it. A packet can have
    /// several copies: its segments.
    ends: Vec<(usize, u64)>,
}

impl Copies {
    fn new() -> Copies {
        Copies { packets: Batch::with_capacity(COPIES), missing: 0, ends: Vec::new() }
    }
}

/// A count of changes that no port reaches.
const NEVER: u64 = u64::MAX;

/// The most copies per batch; a monitor misses the rest of a larger batch.
const COPIES: usize = 4096;

impl Mirror {
    /// Creates the mirror of a queue.
    pub fn new(monitored: &Arc<Monitored>, queue: u16) -> Mirror {
        let (monitored, queue) = (monitored.clone(), queue.into());
        Mirror { monitored, changes: 0, idle_changes: 0, monitors: Arc::default(), queue, copies: Vec::new() }
    }

    /// Returns whether the port has a monitor.
    #[inline(always)]
    pub fn is_wanted(&mut self) -> bool {
        self.monitored.changes.load(Ordering::Acquire) != self.idle_changes && self.refresh()
    }

    #[cold]
    fn refresh(&mut self) -> bool {
        let changes = self.monitored.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.changes = changes;
            self.monitors = self.monitored.monitors.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.copies = self.monitors.iter().map(|_| Copies::new()).collect();
            self.idle_changes = if self.monitors.is_empty() { changes } else { NEVER };
        }
        !self.monitors.is_empty()
    }

    /// Copies the last `count` slots of a batch, as received packets.
    #[cold]
    pub fn received(&mut self, batch: &Batch, count: usize) {
        if let Some((slots, pool)) = batch.contents() {
            // SAFETY: the slots are a batch's, of its pool.
            unsafe { self.copy(&slots[slots.len().saturating_sub(count)..], pool, true) };
            self.hand_over();
        }
    }

    /// Copies all packets of a batch before it is sent, and returns their number. After `send`, the queue owns the
    /// packets that it has accepted, so they must be copied before it is known which they are.
    #[cold]
    pub fn sending(&mut self, batch: &mut Batch) -> usize {
        batch.take_segmented();
        self.copies.iter_mut().for_each(|copies| copies.ends.clear());
        if let Some((slots, pool)) = batch.contents() {
            for packet in slots.split_inclusive(|slot| !slot.has_more()) {
                // SAFETY: as in `received`.
                unsafe { self.copy(packet, pool, false) };
                for Copies { packets, missing, ends } in &mut self.copies {
                    ends.push((packets.len(), *missing));
                }
            }
        }
        batch.packets().count()
    }

    /// Hands over the copies of packets that were sent: those of the `before` packets that are no longer in the batch.
    /// Drops the other copies. If a packet was segmented and not all segments fit the queue, the sent segments count as
    /// missing; the rest is copied by the next call.
    #[cold]
    pub fn sent(&mut self, batch: &mut Batch, before: usize) {
        let segmented = batch.take_segmented();
        // In the batch, segments precede the rest of their packet.
        let rest = segmented.and_then(|Segmented { rest, .. }| {
            let mut packets = batch.slots().split_inclusive(|slot| !slot.has_more());
            packets.position(|packet| packet[0].buf() == rest)
        });
        let unsent = rest.unwrap_or(0);
        let lost = segmented.filter(|_| rest.is_some()).map_or(0, |all| all.segments.saturating_sub(unsent)) as u64;
        let taken = before.saturating_sub(batch.packets().count() - unsent);
        for (one, Copies { packets, missing, ends }) in self.monitors.iter().zip(&mut self.copies) {
            let last = taken.checked_sub(1).and_then(|last| ends.get(last));
            let (kept, not_copied) = last.copied().unwrap_or_default();
            packets.drop_back(packets.len().saturating_sub(kept));
            *missing = not_copied + if one.transmit { lost } else { 0 };
        }
        self.hand_over();
    }

    /// Copies the packets in `slots` for the monitors of this direction.
    ///
    /// # Safety
    /// The slots belong to `pool`.
    pub unsafe fn copy(&mut self, slots: &[Slot], pool: &Arc<Pool>, receive: bool) {
        for (one, Copies { packets, missing, .. }) in self.monitors.iter().zip(&mut self.copies) {
            if if receive { one.receive } else { one.transmit } {
                for packet in slots.split_inclusive(|slot| !slot.has_more()) {
                    // SAFETY: as the caller promises.
                    let fits = packets.len() < COPIES && unsafe { one.sink.copy(packets, packet, pool) };
                    *missing += u64::from(!fits);
                }
            }
        }
    }

    /// Counts packets that could not be copied.
    pub fn count_missing(&mut self, lost: u64, receive: bool) {
        for (one, Copies { missing, .. }) in self.monitors.iter().zip(&mut self.copies) {
            *missing += if if receive { one.receive } else { one.transmit } { lost } else { 0 };
        }
    }

    /// Hands over all copies.
    pub fn hand_over(&mut self) {
        for (one, Copies { packets, missing, .. }) in self.monitors.iter().zip(&mut self.copies) {
            one.sink.hand_over(packets, self.queue, std::mem::take(missing));
        }
    }
}
