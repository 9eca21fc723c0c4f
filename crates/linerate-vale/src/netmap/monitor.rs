//! Monitors: copies of packets that another port of this process receives or sends (netmap(4): `X/r`, `X/t`).
//!
//! Monitors do not delay the port: copies that do not fit are dropped, and counted at the monitor. A port without
//! monitors pays one check per batch.
#![allow(unsafe_code)]

use std::sync::Arc;

use linerate_core::batch::Batch;
use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;
use linerate_core::port::{
    Config, Drops, Link, Mirror, MonitorEntry, Monitored, PortClass, QueueCounters, Receive, SoftwareDevice,
    SoftwarePort, Transmit, TxQueue,
};
use linerate_core::slot::Slot;

use super::delivery::{Delivery, DeliveryRx};

/// A monitor of another port; monitoring ends when this is dropped.
pub struct Monitor {
    port: Arc<Monitored>,
    one: MonitorEntry,
    delivery: Arc<Delivery>,
}

impl Monitor {
    /// Monitors packets that the named port receives or sends. The port must be open in this process as a
    /// [`Port`](linerate_core::port::Port).
    ///
    /// # Errors
    /// [`ErrorKind::NotServed`], [`ErrorKind::BadOption`].
    pub fn open(name: &str, receive: bool, transmit: bool, config: Config) -> Result<SoftwarePort<Monitor>> {
        config.check_ring()?;
        let port = Monitored::find(name).ok_or_else(|| Error::not_open(name))?;
        let delivery = Arc::new(Delivery::new(&config)?);
        let one = MonitorEntry { receive, transmit, sink: delivery.clone() };
        port.add(one.clone());
        Ok(SoftwarePort::new(config, Monitor { port, one, delivery }))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.port.remove(&self.one);
    }
}

impl SoftwareDevice for Monitor {
    const DRIVER: &'static str = "monitor";
    const CLASS: PortClass = PortClass::Memory;
    const TIMESTAMPS: bool = true;

    fn description(&self) -> String {
        let what = match (self.one.receive, self.one.transmit) {
            (true, true) => "receives and sends",
            (true, false) => "receives",
            _ => "sends",
        };
        format!("copies of packets that {} {what}", self.port.name)
    }

    fn rx(&mut self, config: &Config, queue: u16, counters: Arc<QueueCounters>) -> Result<Box<dyn Receive>> {
        Ok(Box::new(DeliveryRx::new(&self.delivery, config, queue, counters)?))
    }

    fn tx(&mut self, config: &Config, _: u16, _: Arc<QueueCounters>) -> Result<Box<dyn Transmit>> {
        let why = "a monitor only receives; send on the port itself";
        Err(Error::unsupported(&config.name, "sending", why))
    }

    /// Returns that the link is up while the monitored port is open. Reopening the port under the same name does not
    /// revive the monitor.
    fn link(&self) -> Result<Link> {
        match self.port.is_open() {
            true => Ok(Link::Up { mbits: 0 }),
            false => {
                let remedy = Remedy::Step("open the monitor again once the port is there".into());
                Err(Error::new(ErrorKind::Gone, &self.port.name, "the port of the monitor is closed")
                    .with_remedy(remedy))
            }
        }
    }

    fn drops(&self) -> Drops {
        self.delivery.drops()
    }
}

/// Copies received packets that bypass the port's [`RxQueue`](linerate_core::port::RxQueue) to the port's monitors.
pub(crate) struct RxMirror(Mirror);

impl RxMirror {
    /// Mirrors the port with this name to its monitors; `None` if there is no such port.
    pub fn new(name: &str, queue: u16) -> Option<RxMirror> {
        Monitored::find(name).map(|seen| RxMirror(Mirror::new(&seen, queue)))
    }

    /// Returns whether the port has a monitor.
    #[inline(always)]
    pub fn is_wanted(&mut self) -> bool {
        self.0.is_wanted()
    }

    /// Copies packets to the monitors.
    ///
    /// # Safety
    /// The slots belong to `pool`.
    #[cold]
    pub unsafe fn copy(&mut self, slots: &[Slot], pool: &Arc<Pool>) {
        // SAFETY: as the caller promises.
        unsafe { self.0.copy(slots, pool, true) };
        self.0.hand_over();
    }
}

/// A pipe between two other processes, whose senders copy their packets here for monitors.
pub(crate) struct RemotePipe {
    ends: [Arc<Monitored>; 2],
}

impl RemotePipe {
    /// Registers both ends of the pipe under these names, so that monitors can find them.
    pub fn new(names: [String; 2]) -> RemotePipe {
        RemotePipe { ends: names.map(Monitored::new) }
    }

    /// Returns a queue for the monitors' copies. Its packets count as sent by `end`, and as received by the other end.
    /// `missing` returns how many packets were lost before the queue since its last call.
    pub fn sent(&self, end: usize, queue: u16, missing: Box<dyn FnMut() -> u64 + Send>) -> TxQueue {
        let [sends, receives] = [end, 1 - end].map(|end| Mirror::new(&self.ends[end], queue));
        TxQueue::from(RemotePipeTx { sends, receives, missing })
    }
}

struct RemotePipeTx {
    sends: Mirror,
    receives: Mirror,
    missing: Box<dyn FnMut() -> u64 + Send>,
}

impl Transmit for RemotePipeTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let (lost, count) = ((self.missing)(), batch.len());
        for (mirror, receive) in [(&mut self.sends, false), (&mut self.receives, true)] {
            if mirror.is_wanted()
                && let Some((slots, pool)) = batch.contents()
            {
                // SAFETY: the slots are a batch's, of its pool.
                unsafe { mirror.copy(slots, pool, receive) };
                mirror.count_missing(lost, receive);
                mirror.hand_over();
            }
        }
        batch.clear();
        count
    }
}
