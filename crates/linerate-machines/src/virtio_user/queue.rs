//! Receive and send: the driver's queues, on the current device.
//!
//! Between batches, a queue checks whether the back end has changed. If so, it stops its queue of the old device, which
//! returns all buffers, and starts one of the new device. Packets that the old device had written are received first.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use linerate_cards::nic::virtio::Virtio;
use linerate_core::batch::Batch;
use linerate_core::error::Result;
use linerate_core::event::Seen;
use linerate_core::port::{QueueCounters, Receive, Transmit, span_of};

use super::control::Shared;

/// A queue of the current device.
struct DeviceQueue<Q: ?Sized> {
    shared: Arc<Shared>,
    /// The version of the device that `queue` belongs to.
    seen: Seen,
    queue: Option<Box<Q>>,
    number: u16,
    counters: Arc<QueueCounters>,
    start: StartQueue<Q>,
    /// The last start has failed.
    has_failed: bool,
}

/// Starts a queue of a device.
type StartQueue<Q> = fn(&Virtio, u16, Arc<QueueCounters>) -> Result<Box<Q>>;

impl<Q: ?Sized> DeviceQueue<Q> {
    /// # Errors
    /// Errors of the driver.
    fn new(shared: &Arc<Shared>, number: u16, counters: Arc<QueueCounters>, start: StartQueue<Q>) -> Result<Self> {
        let (shared, seen) = (shared.clone(), Seen::NONE);
        let mut device_queue = DeviceQueue { shared, seen, queue: None, number, counters, start, has_failed: false };
        device_queue.adopt()?;
        Ok(device_queue)
    }

    /// Returns whether the back end has changed.
    #[inline(always)]
    fn is_outdated(&self) -> bool {
        self.shared.device.is_changed(self.seen)
    }

    /// Returns the queue of the current device, and whether the device is new.
    #[inline(always)]
    fn current(&mut self) -> (Option<&mut Q>, bool) {
        let is_new = self.is_outdated() && self.change();
        (self.queue.as_deref_mut(), is_new)
    }

    #[cold]
    fn change(&mut self) -> bool {
        let outcome = self.adopt();
        // The pool may have buffers at the next poll.
        if let Err(error) = &outcome
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let _of_port = span_of(self.shared.name()).entered();
            tracing::warn!("queue {} does not start: {error}", self.number);
        }
        outcome.is_ok()
    }

    /// Drops the old device's queue, and starts the new device's.
    fn adopt(&mut self) -> Result<()> {
        self.queue = None;
        let mut seen = self.seen;
        let device = self.shared.device.take(&mut seen, |device| device.clone());
        self.queue = device.map(|device| (self.start)(&device, self.number, self.counters.clone())).transpose()?;
        // If the queue did not start, the next poll tries again.
        (self.seen, self.has_failed) = (seen, false);
        Ok(())
    }
}

/// A receive queue.
pub struct UserRx {
    device_queue: DeviceQueue<dyn Receive>,
    is_armed: bool,
    /// The number of slots received after the back end's end.
    drained: usize,
}

impl UserRx {
    /// # Errors
    /// Errors of the driver.
    pub fn start(shared: &Arc<Shared>, queue: u16, counters: Arc<QueueCounters>) -> Result<UserRx> {
        let device_queue = DeviceQueue::new(shared, queue, counters, Virtio::start_rx)?;
        Ok(UserRx { device_queue, is_armed: false, drained: 0 })
    }

    /// Receives packets that a back end had written before its end. At most one ring of them, so that a back end that
    /// keeps writing does not block the next back end. Returns `None` if there are no more.
    #[cold]
    fn drain(&mut self, batch: &mut Batch) -> Option<usize> {
        let ring = self.device_queue.shared.ring();
        let queue = self.device_queue.queue.as_mut().filter(|_| self.drained < ring)?;
        if batch.is_full() {
            return Some(0);
        }
        let received = queue.recv(batch);
        self.drained += received;
        Some(received).filter(|&received| received > 0)
    }
}

impl Receive for UserRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        if self.device_queue.is_outdated() {
            if let Some(received) = self.drain(batch) {
                return received;
            }
            self.drained = 0;
        }
        let (queue, is_new) = self.device_queue.current();
        let Some(queue) = queue else { return 0 };
        if is_new && self.is_armed {
            queue.arm();
        }
        queue.recv(batch)
    }

    fn buffers(&self) -> usize {
        self.device_queue.queue.as_ref().map_or(0, |queue| queue.buffers())
    }

    /// Changes of the back end raise the interrupt, too.
    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.is_armed = true;
        if let Some(queue) = &mut self.device_queue.queue {
            queue.arm();
        }
        self.device_queue.shared.interrupt(self.device_queue.number).map(|interrupt| interrupt.as_fd())
    }

    fn disarm(&mut self) {
        self.is_armed = false;
        if let Some(queue) = &mut self.device_queue.queue {
            queue.disarm();
        }
        if let Some(interrupt) = self.device_queue.shared.interrupt(self.device_queue.number) {
            interrupt.clear();
        }
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.device_queue.queue.map_or(Ok(()), |queue| queue.stop())
    }
}

/// A transmit queue.
pub struct UserTx(DeviceQueue<dyn Transmit>);

impl UserTx {
    /// # Errors
    /// Errors of the driver.
    pub fn start(shared: &Arc<Shared>, queue: u16, counters: Arc<QueueCounters>) -> Result<UserTx> {
        DeviceQueue::new(shared, queue, counters, Virtio::start_tx).map(UserTx)
    }
}

impl Transmit for UserTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.0.current().0.map_or(0, |queue| queue.send(batch))
    }

    fn buffers(&self) -> usize {
        self.0.queue.as_ref().map_or(0, |queue| queue.buffers())
    }

    fn unsent(&self) -> usize {
        self.0.queue.as_ref().map_or(0, |queue| queue.unsent())
    }

    fn has_peer(&self) -> bool {
        self.0.queue.is_some()
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.0.queue.map_or(Ok(()), |queue| queue.stop())
    }
}
