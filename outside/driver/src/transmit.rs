//! The transmit queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use linerate_cards::pci::{Bar, Doorbell};
use linerate_core::memory::{Descriptors, Pool, Reservation};
use linerate_core::port::{QueueCounters, RegionTx, SendFinished};
use linerate_core::{Batch, Result, Slot};
use linerate_spec::descriptor::transmit::{
    DD, DEXT, DTYP_DATA, EOP, IFCS, MOST_DESCRIPTORS, PAYLEN_SHIFT, RS, SHORTEST,
};
use linerate_spec::x82599::*;

use crate::card::Card;

/// Descriptors from one report of the card to the next.
const REPORT_EVERY: usize = 16;

/// A transmit ring. It owns the buffers from `clean` to `next`, in a circle.
pub struct Ring<B: Bar> {
    card: Arc<Card<B>>,
    descriptors: Descriptors,
    /// The buffer of each descriptor.
    bufs: Vec<u32>,
    /// The descriptor for the next packet.
    next: usize,
    /// The oldest descriptor that the card has not reported.
    clean: usize,
    /// The descriptors that the card reports, the oldest first.
    reports: VecDeque<usize>,
    /// Descriptors since the last of these.
    unreported: usize,
    doorbell: B::Doorbell,
    counters: Arc<QueueCounters>,
    is_stopped: bool,
    _reservation: Reservation,
}

impl<B: Bar> Ring<B> {
    /// Starts the queue with an empty ring (4.6.8.1).
    pub fn start(card: &Arc<Card<B>>, counters: Arc<QueueCounters>) -> Result<Ring<B>> {
        card.read_live(STATUS)?;
        let (descriptors, base) = card.ring(1);
        let (count, doorbell) = (descriptors.len(), card.bar.doorbell(TDT::at(0)));
        let reservation = card.config.pool.reserve_of(REPORT_EVERY, count - 1)?;
        descriptors.iter().flatten().for_each(|word| word.store(0, Relaxed));
        let ring = Ring {
            card: card.clone(),
            descriptors,
            bufs: vec![0; count],
            next: 0,
            clean: 0,
            reports: VecDeque::with_capacity(count / REPORT_EVERY + 1),
            unreported: 0,
            doorbell,
            counters,
            is_stopped: false,
            _reservation: reservation,
        };
        card.write(TDBAL(0), base as u32);
        card.write(TDBAH(0), (base >> 32) as u32);
        card.write(TDLEN(0), size_of_val(&*ring.descriptors) as u32);
        // Fetch full cache lines, and write each report back immediately (7.2.3.4.1).
        card.write(TXDCTL(0), 36 << TXDCTL::PTHRESH_SHIFT | 8 << TXDCTL::HTHRESH_SHIFT | TXDCTL::ENABLE);
        card.wait(TXDCTL(0), TXDCTL::ENABLE, TXDCTL::ENABLE)?;
        Ok(ring)
    }

    fn wrap(&self, position: usize) -> usize {
        position & (self.bufs.len() - 1)
    }

    /// Returns the count of descriptors that are in use.
    fn used(&self) -> usize {
        self.wrap(self.next.wrapping_sub(self.clean))
    }

    /// Puts the buffers that the card has sent into the batch's cache.
    fn reclaim(&mut self, batch: &mut Batch) {
        while let Some(&last) = self.reports.front()
            // Acquire: the buffers are reused after the DD bit.
            && self.descriptors[last][1].load(Acquire) & DD != 0
        {
            self.reports.pop_front();
            let end = self.wrap(last + 1);
            while self.clean != end {
                let buf = self.bufs[self.clean];
                self.clean = self.wrap(self.clean + 1);
                // SAFETY: the card has sent the buffer, `clean` has passed it, and the batch is of the ring's pool.
                unsafe { batch.recycle(&[buf]) };
            }
        }
    }

    /// Sends the first packet, or drops it if the card cannot send it. Returns the count of slots removed from the
    /// batch, 0 if the ring is full.
    fn send_first(&mut self, batch: &mut Batch) -> usize {
        let count = Slot::first_packet(batch.slots());
        let length: usize = batch.slots()[..count].iter().map(Slot::len).sum();
        if length > self.card.longest() || count > MOST_DESCRIPTORS || !pad(batch, length) {
            batch.drop_front(count);
            self.counters.dropped();
            return count;
        }
        // TDT = TDH would mean an empty ring (7.2.3.3).
        if count >= self.bufs.len() - self.used() {
            return 0;
        }
        let (shift, total) = (self.card.config.pool.region().shift(), length.max(SHORTEST) as u64);
        self.unreported += count;
        for (n, slot) in batch.slots()[..count].iter().enumerate() {
            let mut command = DTYP_DATA | DEXT | IFCS;
            if n + 1 == count {
                command |= EOP;
                // RS is valid only with EOP (7.2.3.2.4).
                if self.unreported >= REPORT_EVERY {
                    command |= RS;
                    self.reports.push_back(self.next);
                    self.unreported = 0;
                }
            }
            let address = self.card.addresses().at(((slot.buf() as usize) << shift) + slot.offset());
            self.descriptors[self.next][0].store(address, Relaxed);
            self.descriptors[self.next][1].store(command | slot.len() as u64 | total << PAYLEN_SHIFT, Relaxed);
            self.bufs[self.next] = slot.buf();
            self.next = self.wrap(self.next + 1);
        }
        // The ring owns their buffers now.
        batch.sent(count);
        self.counters.moved_packets(1, count, total as usize);
        count
    }

    /// Stops the queue once it is empty (4.6.8.2); further calls do nothing.
    fn halt(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        let empty = self.card.wait(TDH(0), u32::MAX, self.next as u32);
        self.card.clear(TXDCTL(0), TXDCTL::ENABLE);
        let stopped = self.card.wait(TXDCTL(0), TXDCTL::ENABLE, 0).and(empty);
        let held: Vec<u32> = (0..self.used()).map(|n| self.bufs[self.wrap(self.clean + n)]).collect();
        // SAFETY: the ring owned these buffers. The card does not access them once the queue is empty and disabled.
        unsafe { self.card.release(stopped, &held) }
    }
}

/// Extends the first packet with zeros if it is too short for the card to pad (7.2.1.1). Returns false if there is no
/// room.
fn pad(batch: &mut Batch, length: usize) -> bool {
    let Some(missing) = SHORTEST.checked_sub(length).filter(|missing| *missing > 0) else { return true };
    let Some(mut packet) = batch.packets().next() else { return false };
    packet.extend(missing).map(|bytes| bytes.fill(0)).is_ok()
}

impl<B: Bar> SendFinished for Ring<B> {
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut taken, before) = (0, self.next);
        while batch.first().is_some_and(|first| !first.is_unfinished()) {
            match self.send_first(batch) {
                0 => break,
                slots => taken += slots,
            }
        }
        if self.next != before {
            self.doorbell.ring(self.next as u32);
        }
        (taken, batch.first().is_some_and(Slot::is_unfinished))
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }
}

/// `Tx` passes only batches of the ring's pool.
impl<B: Bar> RegionTx for Ring<B> {
    fn pool(&self) -> &Arc<Pool> {
        &self.card.config.pool
    }

    fn send(&mut self, batch: &mut Batch) -> usize {
        self.reclaim(batch);
        self.finish_and_send(batch)
    }

    fn longest(&self) -> usize {
        self.card.longest()
    }

    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn buffers(&self) -> usize {
        self.used()
    }

    fn stop(&mut self) -> Result<()> {
        self.halt()
    }
}

impl<B: Bar> Drop for Ring<B> {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}
