//! Starting and stopping a queue: its owner, and where its buffers come from and go to.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use linerate_core::batch::MAX_CHAIN;
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Descriptors, Locate};
use linerate_core::port::QueueCounters;
use linerate_spec::descriptor::{context, transmit};

use super::Controller;
use super::format::TransmitFormat;
use super::hardware::Hardware;
use super::queue::{CONTEXT, IntelRx, IntelTx, REPORT_EVERY};
use super::ring::DescriptorRing;
use super::vector::Groups;
use crate::pci::Bar;

impl<B: Bar, C: Controller, L: Locate> IntelRx<B, C, L> {
    /// Fills the ring and starts the queue.
    pub fn start(hardware: &Arc<Hardware<B, C>>, queue: u16, addresses: L) -> Result<IntelRx<B, C, L>> {
        hardware.claim("receive", queue, |descriptors, counters| {
            IntelRx::fill(hardware, queue, addresses, descriptors, counters)
        })
    }

    fn fill(
        hardware: &Arc<Hardware<B, C>>,
        queue: u16,
        addresses: L,
        descriptors: Descriptors,
        counters: Arc<QueueCounters>,
    ) -> Result<IntelRx<B, C, L>> {
        let pool = &hardware.config.pool;
        // The buffers of the ring and of partially received packets.
        let reservation = pool.reserve(descriptors.len() + hardware.most_partial())?;
        let Some(bufs) = pool.take(descriptors.len()) else {
            let (buffers, needed) = (pool.available(), descriptors.len());
            return Err(Error::pool_exhausted(buffers, needed));
        };
        let placement = hardware.placement();
        let placement = if hardware.config.options.metadata { placement.described() } else { placement };
        let resets = hardware.resets();
        for (descriptor, &buf) in descriptors.iter().zip(&bufs) {
            descriptor[0].store(addresses.locate(placement.data(buf)), Relaxed);
            descriptor[1].store(0, Relaxed);
        }
        if let Err(error) = C::start_receive_queue(hardware, queue).and_then(|()| hardware.queue_started(queue)) {
            hardware.quarantine(&bufs);
            return Err(error);
        }
        let (vectors, longest) = (hardware.config.options.vectors, hardware.longest_slot());
        let groups = Groups::choose(vectors, &addresses, placement, longest);
        Ok(IntelRx {
            groups,
            ring: DescriptorRing::new(descriptors, bufs),
            tail: 0,
            doorbell: hardware.bar.doorbell(C::receive_tail(queue).offset),
            addresses,
            placement,
            longest,
            pool: pool.clone(),
            counters,
            partial: Vec::with_capacity(MAX_CHAIN),
            dropping: false,
            is_inside: false,
            interrupt: hardware.interrupts.get(queue as usize).cloned(),
            queue,
            hardware: hardware.clone(),
            resets,
            is_stopped: false,
            _reservation: reservation,
        })
    }

    /// Starts the queue of a virtual function again after a reset, with the buffers that it has.
    #[cold]
    pub(super) fn restart(&mut self) {
        self.resets = self.hardware.resets();
        self.give_partial();
        (self.dropping, self.is_inside, self.tail) = (false, false, 0);
        self.ring.rewind();
        for _ in 0..self.ring.len() {
            self.refill();
        }
        let started = C::start_receive_queue(&self.hardware, self.queue);
        report(&self.hardware, "receive", self.queue, started.and_then(|()| self.hardware.queue_started(self.queue)));
    }

    fn give_partial(&mut self) {
        let partial: Vec<u32> = self.partial.drain(..).map(|slot| slot.buf()).collect();
        // SAFETY: the buffers are of the queue's pool, and their slots were just removed.
        unsafe { self.pool.give(&partial) };
    }

    /// Stops the queue; further calls do nothing.
    pub fn halt(&mut self) -> Result<()> {
        if self.is_stopped {
            return Ok(());
        }
        self.is_stopped = true;
        if self.interrupt.is_some() {
            C::forbid_interrupt(&self.hardware, self.queue);
        }
        self.hardware.queue_stops(self.queue);
        let stopped = C::stop_receive_queue(&self.hardware, self.queue);
        self.give_partial();
        self.hardware.release(stopped, self.ring.bufs(0..self.ring.len()))
    }
}

impl<B: Bar, C: Controller, L: Locate> Drop for IntelRx<B, C, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl<B: Bar, C: Controller, L: Locate> IntelTx<B, C, L> {
    /// Starts the queue.
    pub fn start(hardware: &Arc<Hardware<B, C>>, queue: u16, addresses: L) -> Result<IntelTx<B, C, L>> {
        hardware.claim("transmit", queue, |descriptors, counters| {
            IntelTx::prepare(hardware, queue, addresses, descriptors, counters)
        })
    }

    fn prepare(
        hardware: &Arc<Hardware<B, C>>,
        queue: u16,
        addresses: L,
        descriptors: Descriptors,
        counters: Arc<QueueCounters>,
    ) -> Result<IntelTx<B, C, L>> {
        let pool = &hardware.config.pool;
        // Descriptors without RS, which are not reported yet, must not hold all buffers of the pool.
        let reservation = pool.reserve_of(REPORT_EVERY, descriptors.len() - 1)?;
        let resets = hardware.resets();
        descriptors.iter().flatten().for_each(|word| word.store(0, Relaxed));
        C::start_transmit_queue(hardware, queue)?;
        let (vectors, longest) = (hardware.config.options.vectors, hardware.longest_frame());
        // The loops write PAYLEN.
        let groups =
            Groups::choose(vectors, &addresses, hardware.placement(), longest).filter(|_| C::Format::HAS_PAYLEN);
        let bufs = vec![0; descriptors.len()];
        let mut tx = IntelTx {
            groups,
            ring: DescriptorRing::new(descriptors, bufs),
            clean: 0,
            reports: [0; 128],
            oldest_report: 0,
            next_report: 0,
            unreported: 0,
            context: None,
            alike: None,
            contexts: 0,
            doorbell: hardware.bar.doorbell(C::transmit_tail(queue).offset),
            addresses,
            shift: pool.region().shift(),
            longest,
            pool: pool.clone(),
            counters,
            queue,
            hardware: hardware.clone(),
            resets,
            is_stopped: false,
            _reservation: reservation,
        };
        tx.write_first_context();
        Ok(tx)
    }

    /// Starts the queue of a virtual function again after a reset, without the packets that were in it.
    #[cold]
    pub(super) fn restart(&mut self) {
        self.resets = self.hardware.resets();
        let held = self.held();
        self.hardware.count_lost(held.len());
        // SAFETY: the function was reset, so the card no longer uses these buffers, and the ring starts empty.
        unsafe { self.pool.give(&held) };
        self.ring.rewind();
        (self.clean, self.oldest_report, self.next_report, self.unreported) = (0, 0, 0, 0);
        (self.context, self.alike, self.contexts) = (None, None, 0);
        (0..self.ring.len()).flat_map(|at| self.ring.at(at)).for_each(|word| word.store(0, Relaxed));
        report(&self.hardware, "transmit", self.queue, C::start_transmit_queue(&self.hardware, self.queue));
        self.write_first_context();
    }

    /// Writes a context of packets without offloads, for a card that checks one for each packet: their MAC headers have
    /// 14 bytes.
    fn write_first_context(&mut self) {
        if C::CHECKS_CONTEXT {
            const MAC_HEADER: u64 = 14;
            self.write([MAC_HEADER << context::MACLEN_SHIFT, transmit::DEXT | transmit::DTYP_CONTEXT], CONTEXT);
            self.contexts += 1;
        }
    }

    /// Returns the buffers of packets in the ring.
    fn held(&self) -> Vec<u32> {
        let (all, end) = (self.ring.bufs(0..self.ring.len()), self.ring.next());
        let mut held =
            if self.clean <= end { all[self.clean..end].to_vec() } else { [&all[self.clean..], &all[..end]].concat() };
        held.retain(|&buf| buf != CONTEXT);
        held
    }

    /// Stops the queue; further calls do nothing.
    pub fn halt(&mut self) -> Result<()> {
        if self.is_stopped {
            return Ok(());
        }
        self.is_stopped = true;
        let stopped = C::stop_transmit_queue(&self.hardware, self.queue);
        self.hardware.release(stopped, &self.held())
    }
}

/// Reports that a queue has started again.
fn report<B: Bar, C: Controller>(hardware: &Hardware<B, C>, direction: &str, queue: u16, started: Result<()>) {
    let port = &hardware.config.name;
    match started {
        Ok(()) => tracing::info!(port, direction, queue, "a queue started again after a reset"),
        Err(error) => tracing::warn!(port, direction, queue, %error, "a queue did not start again after a reset"),
    }
}

impl<B: Bar, C: Controller, L: Locate> Drop for IntelTx<B, C, L> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl<B: Bar, C: Controller> Hardware<B, C> {
    /// Claims a queue and starts it with its descriptors. The queue is owned as long as its counters are held.
    fn claim<Q>(
        &self,
        direction: &'static str,
        queue: u16,
        start: impl FnOnce(Descriptors, Arc<QueueCounters>) -> Result<Q>,
    ) -> Result<Q> {
        let (counters, first) = match direction {
            "receive" => (self.counters.claim_rx(&self.config, queue)?, 0),
            _ => (self.counters.claim_tx(&self.config, queue)?, self.config.options.rx_queues),
        };
        self.check_alive()?;
        let (memory, offset, _) = self.ring(first + queue);
        // SAFETY: no slices of the rings' memory are lent out.
        start(unsafe { Descriptors::new(memory, offset, self.config.ring()) }, counters)
    }

    /// Frees a stopped queue's buffers, or quarantines them if it did not stop.
    fn release(&self, stopped: Result<()>, held: &[u32]) -> Result<()> {
        match stopped {
            // SAFETY: the queue that held them has stopped.
            Ok(()) => unsafe { self.config.pool.give(held) },
            Err(_) => {
                let (port, buffers) = (&self.config.name, held.len());
                tracing::info!(port, buffers, "a queue did not stop: its buffers are kept until the port is reset");
                self.quarantine(held);
            }
        }
        stopped
    }
}
