//! Monitors: copies of what another port of the process receives, sends, or both (netmap(4): `X/r`, `X/t`).
//!
//! The port goes on as if there were none: a copy that finds no room at the monitor is dropped and counted there. A port
//! without monitors pays one look a batch.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::outlet::{Outlet, OutletRx};
use super::port::{Virtual, VirtualPort};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::port::{
    Config, Device, Drops, Info, Link, MacAddress, QueueCounters, QueueStatistics, Rss, RxQueue, Statistics, TxQueue,
};
use crate::slot::Slot;

/// A port, and who monitors it.
struct Seen {
    name: String,
    monitors: Mutex<Arc<Vec<One>>>,
    /// Grows with each change of them.
    changes: AtomicU64,
}

/// One monitor.
#[derive(Clone)]
struct One {
    receive: bool,
    transmit: bool,
    outlet: Arc<Outlet>,
}

/// The ports of this process that can be monitored.
static PORTS: Mutex<Vec<Weak<Seen>>> = Mutex::new(Vec::new());

impl Seen {
    /// A port of this name can be monitored, as long as this lives. The last one of a name counts.
    fn new(name: String) -> Arc<Seen> {
        let seen = Arc::new(Seen { name, monitors: Mutex::default(), changes: AtomicU64::new(0) });
        let mut all = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|port| port.strong_count() > 0);
        all.push(Arc::downgrade(&seen));
        seen
    }

    /// The port of this name.
    fn find(name: &str) -> Option<Arc<Seen>> {
        let all = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().filter_map(Weak::upgrade).find(|port| port.name == name)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<One>)) {
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::clone(&monitors);
        change(&mut all);
        *monitors = Arc::new(all);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A monitor of another port.
pub type Monitor = VirtualPort<Monitoring>;

/// Monitors, as long as it lives.
pub struct Monitoring {
    port: Arc<Seen>,
    one: One,
}

impl Monitor {
    /// Monitors what the port of this name receives or sends, which must be open in this process, as [`Watched`].
    ///
    /// # Errors
    /// [`Error::NotOpen`], [`Error::RingSize`].
    pub fn open(name: &str, receive: bool, transmit: bool, config: Config) -> Result<Monitor> {
        config.check_ring()?;
        let port = Seen::find(name).ok_or_else(|| Error::NotOpen { port: name.to_string() })?;
        let one = One { receive, transmit, outlet: Arc::new(Outlet::new(&config)?) };
        port.change(|all| all.push(one.clone()));
        Ok(Monitor::new(config, Monitoring { port, one }))
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        self.port.change(|all| all.retain(|one| !Arc::ptr_eq(&one.outlet, &self.one.outlet)));
    }
}

impl Virtual for Monitoring {
    const DRIVER: &'static str = "monitor";

    fn description(&self) -> String {
        let what = match (self.one.receive, self.one.transmit) {
            (true, true) => "receives and sends",
            (true, false) => "receives",
            _ => "sends",
        };
        format!("copies of what {} {what}", self.port.name)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn RxQueue>> {
        Ok(Box::new(OutletRx::new(&self.one.outlet, config, queue, counters)?))
    }

    fn tx(&mut self, config: &Config, _: u16, _: Arc<QueueCounters>) -> Result<Box<dyn TxQueue>> {
        let why = "a monitor listens; send on the port itself";
        Err(Error::Unsupported { port: config.name.clone(), what: "sending", why })
    }

    fn drops(&self) -> Drops {
        self.one.outlet.drops()
    }
}

/// A port that can be monitored, by its name.
pub struct Watched {
    device: Box<dyn Device>,
    seen: Arc<Seen>,
}

impl Watched {
    /// This port, from now on.
    pub fn new(device: Box<dyn Device>) -> Watched {
        let seen = Seen::new(device.name().to_string());
        Watched { device, seen }
    }
}

/// Queues show what passes; all else is the port's.
impl Device for Watched {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn info(&self) -> Info {
        self.device.info()
    }

    fn pool(&self) -> &Arc<Pool> {
        self.device.pool()
    }

    fn rx(&mut self, queue: u16) -> Result<Box<dyn RxQueue>> {
        let inner = self.device.rx(queue)?;
        Ok(Box::new(WatchedRx { inner, show: Show::new(&self.seen, queue) }))
    }

    fn tx(&mut self, queue: u16) -> Result<Box<dyn TxQueue>> {
        let inner = self.device.tx(queue)?;
        Ok(Box::new(WatchedTx { inner, show: Show::new(&self.seen, queue) }))
    }

    fn statistics(&self) -> Result<Statistics> {
        self.device.statistics()
    }

    fn queue_statistics(&self) -> QueueStatistics {
        self.device.queue_statistics()
    }

    fn link(&self) -> Result<Link> {
        self.device.link()
    }

    fn mac(&self) -> MacAddress {
        self.device.mac()
    }

    fn set_mac(&mut self, mac: MacAddress) -> Result<()> {
        self.device.set_mac(mac)
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<()> {
        self.device.set_promiscuous(on)
    }

    fn set_rss(&mut self, rss: &Rss) -> Result<()> {
        self.device.set_rss(rss)
    }

    fn reset(&mut self) -> Result<()> {
        self.device.reset()
    }
}

/// What shows a queue's packets to monitors.
struct Show {
    seen: Arc<Seen>,
    changes: u64,
    monitors: Arc<Vec<One>>,
    queue: usize,
    /// For each monitor: copies that are not handed over yet, and how many packets could not be copied.
    copies: Vec<(Batch, u64)>,
}

impl Show {
    fn new(seen: &Arc<Seen>, queue: u16) -> Show {
        let (seen, queue) = (seen.clone(), queue.into());
        Show { seen, changes: 0, monitors: Arc::default(), queue, copies: Vec::new() }
    }

    /// Whether anybody listens.
    #[inline(always)]
    fn is_wanted(&mut self) -> bool {
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

    /// Copies the packets of these slots, for who wants this direction.
    fn copy(&mut self, slots: &[Slot], pool: &Arc<Pool>, receive: bool) {
        for (one, (copies, missing)) in self.monitors.iter().zip(&mut self.copies) {
            if if receive { one.receive } else { one.transmit } {
                for packet in slots.split_inclusive(|slot| !slot.has_more()) {
                    let fits = copies.len() < COPIES && one.outlet.copy(copies, packet, pool);
                    *missing += u64::from(!fits);
                }
            }
        }
    }

    /// So many packets could not even come here.
    fn miss(&mut self, lost: u64, receive: bool) {
        for (one, (_, missing)) in self.monitors.iter().zip(&mut self.copies) {
            *missing += if if receive { one.receive } else { one.transmit } { lost } else { 0 };
        }
    }

    /// Hands over what was copied.
    fn hand_over(&mut self) {
        for (one, (copies, missing)) in self.monitors.iter().zip(&mut self.copies) {
            one.outlet.hand_over(copies, self.queue, std::mem::take(missing));
        }
    }
}

/// Copies that a monitor gets at a time; of larger batches it misses the rest.
const COPIES: usize = 4096;

struct WatchedRx {
    inner: Box<dyn RxQueue>,
    show: Show,
}

impl RxQueue for WatchedRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let count = self.inner.recv(batch);
        if count > 0
            && self.show.is_wanted()
            && let Some((slots, pool)) = batch.contents()
        {
            self.show.copy(&slots[slots.len() - count..], pool, true);
            self.show.hand_over();
        }
        count
    }

    fn buffers(&self) -> usize {
        self.inner.buffers()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}

struct WatchedTx {
    inner: Box<dyn TxQueue>,
    show: Show,
}

impl TxQueue for WatchedTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() || !self.show.is_wanted() {
            return self.inner.send(batch);
        }
        // What is taken is known afterwards only, and then it is the port's: copies are made of all, and the last ones, of
        // what stays here, are thrown away.
        let before = batch.packets().count();
        if let Some((slots, pool)) = batch.contents() {
            self.show.copy(slots, pool, false);
        }
        let count = self.inner.send(batch);
        let taken = before - batch.packets().count();
        for (copies, missing) in &mut self.show.copies {
            let mut place = 0;
            *missing = missing.saturating_sub((before - taken) as u64);
            copies.retain(|_| {
                place += 1;
                place <= taken
            });
        }
        self.show.hand_over();
        count
    }

    fn buffers(&self) -> usize {
        self.inner.buffers()
    }

    fn unsent(&self) -> usize {
        self.inner.unsent()
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.inner.stop()
    }
}

/// Shows monitors the received packets of a queue that bypass its [`RxQueue`].
pub(crate) struct Received(Show);

impl Received {
    /// Returns `None` if no port of this name can be monitored.
    pub fn new(name: &str, queue: u16) -> Option<Received> {
        Seen::find(name).map(|seen| Received(Show::new(&seen, queue)))
    }

    /// Returns whether the port has a monitor.
    #[inline(always)]
    pub fn is_wanted(&mut self) -> bool {
        self.0.is_wanted()
    }

    /// Copies packets to the monitors.
    #[cold]
    pub fn show(&mut self, slots: &[Slot], pool: &Arc<Pool>) {
        self.0.copy(slots, pool, true);
        self.0.hand_over();
    }
}

/// A pipe between other processes: of what they send, copies come here.
pub(crate) struct Elsewhere {
    ends: [Arc<Seen>; 2],
}

impl Elsewhere {
    /// Ends of these names can be monitored from now on.
    pub fn new(names: [String; 2]) -> Elsewhere {
        Elsewhere { ends: names.map(Seen::new) }
    }

    /// Shows what is put here as sent by this end, and so received by the other one; `missing` tells how many packets were
    /// lost on their way here since it was asked last.
    pub fn sent(&self, end: usize, queue: u16, missing: Box<dyn FnMut() -> u64 + Send>) -> Box<dyn TxQueue> {
        let [sends, receives] = [end, 1 - end].map(|end| Show::new(&self.ends[end], queue));
        Box::new(ElsewhereTx { sends, receives, missing })
    }
}

struct ElsewhereTx {
    sends: Show,
    receives: Show,
    missing: Box<dyn FnMut() -> u64 + Send>,
}

impl TxQueue for ElsewhereTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let (lost, count) = ((self.missing)(), batch.len());
        for (show, receive) in [(&mut self.sends, false), (&mut self.receives, true)] {
            if show.is_wanted()
                && let Some((slots, pool)) = batch.contents()
            {
                show.copy(slots, pool, receive);
                show.miss(lost, receive);
                show.hand_over();
            }
        }
        batch.clear();
        count
    }

    fn buffers(&self) -> usize {
        0
    }
}
