//! Starting and stopping a queue: who owns it, and where its buffers come from and go.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::hardware::{Hardware, QueuePlace};
use super::queue::{IxgbeRx, IxgbeTx, REPORT_EVERY};
use super::registers::{RDT, TDT};
use crate::batch::{Batch, MAX_CHAIN};
use crate::error::{Error, Result};
use crate::memory::Descriptors;
use crate::pci::Bar;
use crate::slot::HEADROOM;

impl<B: Bar> IxgbeRx<B> {
    /// Fills the ring and starts the queue.
    pub fn start(hardware: &Arc<Hardware<B>>, queue: u16) -> Result<IxgbeRx<B>> {
        hardware.claim("receive", queue, |descriptors| IxgbeRx::fill(hardware, queue, descriptors))
    }

    fn fill(hardware: &Arc<Hardware<B>>, queue: u16, descriptors: Descriptors) -> Result<IxgbeRx<B>> {
        let pool = &hardware.config.pool;
        // Beside the ring's, those of a packet that has not arrived whole.
        let reservation =
            pool.reserve(descriptors.len() + hardware.longest_written().div_ceil(hardware.longest_slot()))?;
        let Some(bufs) = pool.take(descriptors.len()) else {
            let (buffers, needed) = (pool.available(), descriptors.len());
            return Err(Error::PoolExhausted { buffers, needed });
        };
        let base = hardware.packets() + HEADROOM as u64;
        let shift = pool.region().shift();
        for (descriptor, &buf) in descriptors.iter().zip(&bufs) {
            descriptor[0].store(base + ((buf as u64) << shift), Relaxed);
            descriptor[1].store(0, Relaxed);
        }
        if let Err(error) = hardware.start_receive_queue(queue).and_then(|()| hardware.queue_started(queue)) {
            hardware.set_aside(&bufs);
            return Err(error);
        }
        Ok(IxgbeRx {
            descriptors,
            bufs: bufs.into(),
            next: 0,
            doorbell: hardware.bar.doorbell(RDT::at(queue)),
            base,
            shift,
            longest: hardware.longest_slot(),
            pool: pool.clone(),
            counters: hardware.rx[queue as usize].counters.clone(),
            partial: Vec::with_capacity(MAX_CHAIN),
            dropping: false,
            copies: Batch::new(),
            queue,
            hardware: hardware.clone(),
            _reservation: reservation,
        })
    }

    /// Stops the queue, once.
    pub fn halt(&mut self) -> Result<()> {
        if self.bufs.is_empty() {
            return Ok(());
        }
        let stopped = self.hardware.stop_receive_queue(self.queue);
        let partial: Vec<u32> = self.partial.drain(..).map(|slot| slot.buf()).collect();
        self.pool.give(&partial);
        let held = std::mem::take(&mut self.bufs);
        self.hardware.release(&self.hardware.rx[self.queue as usize], stopped, &held)
    }
}

impl<B: Bar> Drop for IxgbeRx<B> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl<B: Bar> IxgbeTx<B> {
    /// Starts the queue.
    pub fn start(hardware: &Arc<Hardware<B>>, queue: u16) -> Result<IxgbeTx<B>> {
        hardware.claim("transmit", queue, |descriptors| IxgbeTx::prepare(hardware, queue, descriptors))
    }

    fn prepare(hardware: &Arc<Hardware<B>>, queue: u16, descriptors: Descriptors) -> Result<IxgbeTx<B>> {
        let pool = &hardware.config.pool;
        // What is sent without being reported yet must not be all that the pool has.
        let reservation = pool.reserve(REPORT_EVERY)?;
        descriptors.iter().flatten().for_each(|word| word.store(0, Relaxed));
        hardware.start_transmit_queue(queue)?;
        Ok(IxgbeTx {
            bufs: vec![0; descriptors.len()].into(),
            descriptors,
            clean: 0,
            next: 0,
            reports: [0; 128],
            oldest_report: 0,
            next_report: 0,
            unreported: 0,
            doorbell: hardware.bar.doorbell(TDT::at(queue)),
            base: hardware.packets(),
            shift: pool.region().shift(),
            longest: hardware.longest_written(),
            pool: pool.clone(),
            counters: hardware.tx[queue as usize].counters.clone(),
            copies: Batch::new(),
            queue,
            hardware: hardware.clone(),
            _reservation: reservation,
        })
    }

    /// Stops the queue, once.
    pub fn halt(&mut self) -> Result<()> {
        if self.bufs.is_empty() {
            return Ok(());
        }
        let stopped = self.hardware.stop_transmit_queue(self.queue);
        let in_flight = 0..self.in_flight();
        let held: Vec<u32> = in_flight.map(|n| self.bufs[(self.clean + n) & (self.bufs.len() - 1)]).collect();
        self.bufs = Box::default();
        self.hardware.release(&self.hardware.tx[self.queue as usize], stopped, &held)
    }
}

impl<B: Bar> Drop for IxgbeTx<B> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

impl<B: Bar> Hardware<B> {
    /// Claims a queue's place and starts it with its descriptors; if that fails the place is free again.
    fn claim<Q>(&self, direction: &'static str, queue: u16, start: impl FnOnce(Descriptors) -> Result<Q>) -> Result<Q> {
        let (places, first) = match direction {
            "receive" => (&self.rx, 0),
            _ => (&self.tx, self.config.rx_queues),
        };
        let port = || self.config.name.clone();
        let Some(place) = places.get(queue as usize) else {
            return Err(Error::NoSuchQueue { port: port(), direction, queue, queues: places.len() as u16 });
        };
        self.check_alive()?;
        if place.taken.swap(true, AcqRel) {
            return Err(Error::QueueTaken { port: port(), direction, queue });
        }
        let (memory, offset, _) = self.ring(first + queue);
        let started = start(Descriptors::new(memory, offset, self.config.ring));
        if started.is_err() {
            place.taken.store(false, Release);
        }
        started
    }

    /// Ends a queue's claim. Its buffers are free, or set aside if the card did not stop.
    fn release(&self, place: &QueuePlace, stopped: Result<()>, held: &[u32]) -> Result<()> {
        match stopped {
            Ok(()) => self.config.pool.give(held),
            Err(_) => self.set_aside(held),
        }
        place.taken.store(false, Release);
        stopped
    }
}
