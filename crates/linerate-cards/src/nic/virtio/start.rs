//! Starting and stopping queues.

use std::sync::Arc;

use linerate_core::batch::MAX_CHAIN;
use linerate_core::error::{Error, Result};
use linerate_core::memory::Locate;
use linerate_core::port::QueueCounters;
use linerate_spec::virtio::feature;

use super::hardware::{Hardware, QueueMemory, ZEROS};
use super::queue::{Reported, VirtioRx, VirtioTx};
use super::ring::{DriverRing, HeaderLayout};
use super::sent::Sent;
use super::transport::Notify;
use super::vector::{Groups, PacketParams};

impl Hardware {
    /// Returns the vector loops over groups of packets, if wanted and possible.
    fn groups<L: Locate>(&self, addresses: &L, longest: usize) -> Option<Groups<L>> {
        let HeaderLayout { len, mergeable, separate, .. } = self.layout;
        let (addresses, header) = (addresses.clone(), len as usize);
        let params = PacketParams { addresses, placement: self.placement(), header, mergeable, longest };
        Groups::choose(self.config.options.vectors, params).filter(|_| !separate)
    }

    /// Starts a receive queue and makes all its buffers available to the device.
    pub fn start_rx<R: DriverRing, L: Locate>(
        self: &Arc<Self>,
        queue: u16,
        counters: Arc<QueueCounters>,
        addresses: L,
    ) -> Result<VirtioRx<R, L>> {
        let (memory, doorbell) = self.claim(&self.rx, "receive", queue)?;
        match self.fill(queue, memory, doorbell, counters, addresses) {
            Ok(rx) => self.queue_started(queue).map(|()| rx),
            Err(error) => {
                self.unclaim(memory.number);
                Err(error)
            }
        }
    }

    fn fill<R: DriverRing, L: Locate>(
        self: &Arc<Self>,
        queue: u16,
        memory: QueueMemory,
        doorbell: Notify,
        counters: Arc<QueueCounters>,
        addresses: L,
    ) -> Result<VirtioRx<R, L>> {
        let pool = &self.config.pool;
        let count = usize::from(memory.size / self.layout.descriptors());
        let reservation = pool.reserve(count + MAX_CHAIN)?;
        let Some(bufs) = pool.take(count) else {
            return Err(Error::pool_exhausted(pool.available(), count));
        };
        let placement = self.placement();
        let header = self.layout.len as usize;
        let room = (header + placement.room()).min(usize::from(u16::MAX));
        let longest_single = self.config.options.max_frame.min(room - header);
        let mut rx = VirtioRx::<R, L> {
            number: memory.number,
            ring: self.ring(memory),
            bufs: bufs.into(),
            layout: self.layout,
            doorbell,
            groups: self.groups(&addresses, longest_single),
            addresses,
            placement,
            room: room as u32,
            longest: self.config.options.max_frame,
            longest_single,
            pool: pool.clone(),
            counters,
            missing: 0,
            slots: 0,
            so_far: 0,
            partial: Vec::with_capacity(MAX_CHAIN),
            dropping: false,
            too_long: false,
            broken: false,
            reported: Reported::default(),
            interrupt: self.interrupts.get(usize::from(queue)).cloned(),
            hardware: self.clone(),
            _reservation: reservation,
        };
        (0..count).for_each(|index| rx.refill(index));
        if rx.ring.publish(false) {
            rx.doorbell.ring();
        }
        Ok(rx)
    }

    /// Starts a transmit queue.
    pub fn start_tx<R: DriverRing, L: Locate>(
        self: &Arc<Self>,
        queue: u16,
        counters: Arc<QueueCounters>,
        addresses: L,
    ) -> Result<VirtioTx<R, L>> {
        let (memory, doorbell) = self.claim(&self.tx, "transmit", queue)?;
        let pool = &self.config.pool;
        Ok(VirtioTx {
            number: memory.number,
            ring: self.ring(memory),
            sent: Sent::new(memory.size, self.features & feature::IN_ORDER != 0),
            layout: self.layout,
            doorbell,
            // The loops write headers of up to 12 bytes.
            groups: self.groups(&addresses, self.config.options.max_frame).filter(|_| self.layout.common),
            addresses,
            zeros: self.rings.addresses().at(ZEROS),
            longest: self.config.options.max_frame,
            features: self.features,
            pool: pool.clone(),
            counters,
            broken: false,
            stopped: false,
            hardware: self.clone(),
        })
    }

    /// Claims a queue; `all` has the queues of its direction. Its owner holds the queue's counters; a device without
    /// `RING_RESET` keeps the queue until all queues are released.
    fn claim(&self, all: &[QueueMemory], direction: &'static str, queue: u16) -> Result<(QueueMemory, Notify)> {
        self.check_alive()?;
        let absent = || Error::no_such_queue(&self.config.name, direction, queue, all.len() as u16);
        let memory = *all.get(usize::from(queue)).ok_or_else(absent)?;
        let mut state = self.state();
        if state.claimed.contains(&memory.number) {
            return Err(Error::queue_taken(&self.config.name, direction, queue));
        }
        let doorbell = self.transport.notify(memory.number)?;
        if state.disabled.contains(&memory.number) {
            self.restart_queue(memory)?;
            state.disabled.retain(|disabled| *disabled != memory.number);
        }
        state.claimed.push(memory.number);
        state.in_use += 1;
        Ok((memory, doorbell))
    }

    /// Undoes a claim whose queue did not start.
    fn unclaim(&self, number: u16) {
        let mut state = self.state();
        state.claimed.retain(|claimed| *claimed != number);
        state.in_use -= 1;
    }
}

impl<R: DriverRing, L: Locate> VirtioRx<R, L> {
    /// Stops the queue; further calls do nothing.
    pub fn halt(&mut self) -> Result<()> {
        if self.bufs.is_empty() {
            return Ok(());
        }
        self.ring.forbid_interrupts();
        self.hardware.queue_stops(self.number / 2);
        let partial: Vec<u32> = self.partial.drain(..).map(|slot| slot.buf()).collect();
        // SAFETY: the buffers are of the queue's pool, and their slots were just removed.
        unsafe { self.pool.give(&partial) };
        let held = std::mem::take(&mut self.bufs);
        self.hardware.release(self.number, &held)
    }
}

impl<R: DriverRing, L: Locate> Drop for VirtioRx<R, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl<R: DriverRing, L: Locate> VirtioTx<R, L> {
    /// Stops the queue; further calls do nothing.
    pub fn halt(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.stopped = true;
        let held = self.sent.held();
        // Count the slots that this queue accepted and did not send.
        self.counters.moved_packets(0, held.len(), 0);
        self.hardware.release(self.number, &held)
    }
}

impl<R: DriverRing, L: Locate> Drop for VirtioTx<R, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}
