//! Ports that can be monitored, by name, and the copies for their monitors.
//!
//! A port without monitors pays one look a batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::batch::Batch;
use crate::memory::Pool;
use crate::slot::Slot;

/// Where a monitor's copies go.
pub(crate) trait MonitorSink: Send + Sync {
    /// Appends a copy of a packet to `copies`; false if there is no buffer for it.
    fn copy(&self, copies: &mut Batch, packet: &[Slot], theirs: &Arc<Pool>) -> bool;

    /// Takes copies of a queue's packets; `missing` more could not be made.
    fn hand_over(&self, copies: &mut Batch, queue: usize, missing: u64);
}

/// A port, and its monitors.
pub(crate) struct Monitored {
    pub name: String,
    monitors: Mutex<Arc<Vec<MonitorEntry>>>,
    /// Grows with each change of them.
    changes: AtomicU64,
}

/// One monitor.
#[derive(Clone)]
pub(crate) struct MonitorEntry {
    pub receive: bool,
    pub transmit: bool,
    pub listener: Arc<dyn MonitorSink>,
}

/// The ports of this process that can be monitored.
static PORTS: Mutex<Vec<Weak<Monitored>>> = Mutex::new(Vec::new());

impl Monitored {
    /// A port of this name can be monitored, as long as this lives. The last one of a name counts.
    pub fn new(name: String) -> Arc<Monitored> {
        let seen = Arc::new(Monitored { name, monitors: Mutex::default(), changes: AtomicU64::new(0) });
        let mut all = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|port| port.strong_count() > 0);
        all.push(Arc::downgrade(&seen));
        seen
    }

    /// A queue without a port: it never has monitors.
    pub fn unnamed() -> Arc<Monitored> {
        Arc::new(Monitored { name: String::new(), monitors: Mutex::default(), changes: AtomicU64::new(0) })
    }

    /// The port of this name.
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
        self.change(|all| all.retain(|there| !Arc::ptr_eq(&there.listener, &one.listener)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<MonitorEntry>)) {
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::clone(&monitors);
        change(&mut all);
        *monitors = Arc::new(all);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Copies of a queue's packets for the port's monitors.
pub(crate) struct Mirror {
    seen: Arc<Monitored>,
    changes: u64,
    monitors: Arc<Vec<MonitorEntry>>,
    queue: usize,
    /// For each monitor: copies that are not handed over yet, and how many packets could not be copied.
    copies: Vec<(Batch, u64)>,
}

/// Copies that a monitor gets at a time; of larger batches it misses the rest.
const COPIES: usize = 4096;

impl Mirror {
    pub fn new(seen: &Arc<Monitored>, queue: u16) -> Mirror {
        let (seen, queue) = (seen.clone(), queue.into());
        Mirror { seen, changes: 0, monitors: Arc::default(), queue, copies: Vec::new() }
    }

    /// Returns whether the port has a monitor.
    #[inline(always)]
    pub fn is_wanted(&mut self) -> bool {
        if self.seen.changes.load(Ordering::Acquire) != self.changes {
            self.look_again();
        }
        !self.monitors.is_empty()
    }

    #[cold]
    fn look_again(&mut self) {
        self.changes = self.seen.changes.load(Ordering::Acquire);
        self.monitors = self.seen.monitors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.copies = self.monitors.iter().map(|_| (Batch::with_capacity(COPIES), 0)).collect();
    }

    /// Shows the last `count` slots of a batch as received.
    #[cold]
    pub fn received(&mut self, batch: &Batch, count: usize) {
        if let Some((slots, pool)) = batch.contents() {
            self.copy(&slots[slots.len().saturating_sub(count)..], pool, true);
            self.hand_over();
        }
    }

    /// Copies all packets of a batch that is to be sent, and returns their number: the packets that are sent are known
    /// afterwards only, and then they are the port's.
    #[cold]
    pub fn sending(&mut self, batch: &mut Batch) -> usize {
        if let Some((slots, pool)) = batch.contents() {
            self.copy(slots, pool, false);
        }
        batch.packets().count()
    }

    /// Shows as sent those of the `before` packets that are no more in the batch; copies of the others are thrown away.
    #[cold]
    pub fn sent(&mut self, batch: &mut Batch, before: usize) {
        let taken = before.saturating_sub(batch.packets().count());
        for (copies, missing) in &mut self.copies {
            let mut place = 0;
            *missing = missing.saturating_sub((before - taken) as u64);
            copies.retain(|_| {
                place += 1;
                place <= taken
            });
        }
        self.hand_over();
    }

    /// Copies the packets of these slots for the monitors of this direction.
    pub fn copy(&mut self, slots: &[Slot], pool: &Arc<Pool>, receive: bool) {
        for (one, (copies, missing)) in self.monitors.iter().zip(&mut self.copies) {
            if if receive { one.receive } else { one.transmit } {
                for packet in slots.split_inclusive(|slot| !slot.has_more()) {
                    let fits = copies.len() < COPIES && one.listener.copy(copies, packet, pool);
                    *missing += u64::from(!fits);
                }
            }
        }
    }

    /// Counts packets that were lost on their way here.
    pub fn miss(&mut self, lost: u64, receive: bool) {
        for (one, (_, missing)) in self.monitors.iter().zip(&mut self.copies) {
            *missing += if if receive { one.receive } else { one.transmit } { lost } else { 0 };
        }
    }

    /// Hands the copies over.
    pub fn hand_over(&mut self) {
        for (one, (copies, missing)) in self.monitors.iter().zip(&mut self.copies) {
            one.listener.hand_over(copies, self.queue, std::mem::take(missing));
        }
    }
}
