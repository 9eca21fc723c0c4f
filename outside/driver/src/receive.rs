//! The receive queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use linerate_cards::pci::{Bar, Doorbell};
use linerate_core::memory::{Descriptors, Placement, Pool, Reservation};
use linerate_core::port::{QueueCounters, RegionRx};
use linerate_core::{Batch, Error, Result, Slot};
use linerate_spec::descriptor::receive::{DD, EOP, LENGTH_SHIFT, RXE_82599};
use linerate_spec::x82599::*;

use crate::card::Card;

/// Descriptors that are returned to the card with one write of the doorbell.
const RETURN_AT_ONCE: usize = 16;

/// A receive ring. The card owns all descriptors from `tail` to `next`, in a circle; all of them have a buffer.
pub struct Ring<B: Bar> {
    card: Arc<Card<B>>,
    descriptors: Descriptors,
    /// The buffer of each descriptor.
    bufs: Vec<u32>,
    /// The descriptor that the card fills next, as far as the driver knows.
    next: usize,
    /// The first descriptor that was not returned to the card.
    tail: usize,
    /// The next descriptor continues a frame that is dropped.
    is_dropping: bool,
    doorbell: B::Doorbell,
    placement: Placement,
    counters: Arc<QueueCounters>,
    is_stopped: bool,
    _reservation: Reservation,
}

impl<B: Bar> Ring<B> {
    /// Fills the ring with buffers, starts the queue (4.6.7.1) and enables receive.
    pub fn start(card: &Arc<Card<B>>, counters: Arc<QueueCounters>) -> Result<Ring<B>> {
        card.read_live(STATUS)?;
        let ((descriptors, base), placement, pool) = (card.ring(0), card.placement(), &card.config.pool);
        let (count, doorbell) = (descriptors.len(), card.bar.doorbell(RDT::at(0)));
        let reservation = pool.reserve(count)?;
        let bufs = pool.take(count).ok_or_else(|| Error::pool_exhausted(pool.available(), count))?;
        for (descriptor, &buf) in descriptors.iter().zip(&bufs) {
            descriptor[0].store(card.addresses().at(placement.data(buf)), Relaxed);
            descriptor[1].store(0, Relaxed);
        }
        let ring = Ring {
            card: card.clone(),
            descriptors,
            bufs,
            next: 0,
            tail: 0,
            is_dropping: false,
            doorbell,
            placement,
            counters,
            is_stopped: false,
            _reservation: reservation,
        };
        card.write(RDBAL(0), base as u32);
        card.write(RDBAH(0), (base >> 32) as u32);
        card.write(RDLEN(0), size_of_val(&*ring.descriptors) as u32);
        card.write(SRRCTL(0), card.buffer_kib() | SRRCTL::DESCTYPE_ADVANCED);
        card.set(RXDCTL(0), RXDCTL::ENABLE);
        // If this fails, dropping the ring stops the queue, or quarantines its buffers.
        card.wait(RXDCTL(0), RXDCTL::ENABLE, RXDCTL::ENABLE)?;
        ring.ring_doorbell();
        card.set(SECRXCTRL, SECRXCTRL::RX_DIS);
        card.wait(SECRXSTAT, SECRXSTAT::SECRX_RDY, SECRXSTAT::SECRX_RDY)?;
        card.set(RXCTRL, RXCTRL::RXEN);
        card.clear(SECRXCTRL, SECRXCTRL::RX_DIS);
        Ok(ring)
    }

    /// Gives the card all descriptors but the last before `tail`: RDT = RDH would mean an empty ring (7.1.9).
    fn ring_doorbell(&self) {
        self.doorbell.ring(self.wrap(self.tail.wrapping_sub(1)) as u32);
    }

    fn wrap(&self, position: usize) -> usize {
        position & (self.bufs.len() - 1)
    }

    /// Returns the descriptor at `next`, as the card has written it back; `None` if the card is not done with it.
    fn written_back(&self) -> Option<u64> {
        // Acquire: the packet's bytes are read after the DD bit.
        let word = self.descriptors[self.next][1].load(Acquire);
        (word & DD != 0).then_some(word)
    }

    /// Moves received packets to `slots`, and gives the card the buffers in `fresh` for them. Returns the count. Never
    /// panics: all positions are inside the ring, and all buffers have device addresses.
    fn take(&mut self, slots: &mut [Slot], fresh: &[u32]) -> usize {
        let (mut taken, longest) = (0, self.card.longest());
        // Bounded by the ring's length, so that no card can keep the thread here.
        for _ in 0..self.bufs.len() {
            let (Some(slot), Some(&new)) = (slots.get_mut(taken), fresh.get(taken)) else { break };
            let Some(word) = self.written_back() else { break };
            let length = (word >> LENGTH_SHIFT) as u16;
            let is_good = word & (EOP | RXE_82599) == EOP && !self.is_dropping && usize::from(length) <= longest;
            if is_good {
                // SAFETY: the card is done with the ring's buffer, which `new` replaces, so only this slot refers to
                // it. It is a buffer of the placement's region, and `longest` is at most the placement's room.
                *slot = unsafe { self.placement.slot(self.bufs[self.next], length, false) };
                self.bufs[self.next] = new;
                self.counters.moved_packets(1, 1, length.into());
                taken += 1;
            } else {
                if word & EOP != 0 {
                    self.counters.dropped();
                }
                self.is_dropping = word & EOP == 0;
            }
            let address = self.card.addresses().at(self.placement.data(self.bufs[self.next]));
            self.descriptors[self.next][0].store(address, Relaxed);
            self.descriptors[self.next][1].store(0, Relaxed);
            self.next = self.wrap(self.next + 1);
        }
        taken
    }

    /// Stops the queue (4.6.7.1.2); further calls do nothing.
    fn halt(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        self.card.clear(RXCTRL, RXCTRL::RXEN);
        self.card.clear(RXDCTL(0), RXDCTL::ENABLE);
        let stopped = self.card.wait(RXDCTL(0), RXDCTL::ENABLE, 0);
        self.card.bar.wait(Duration::from_micros(100));
        // SAFETY: the ring owned these buffers. Once the queue is disabled, the card does not access them.
        unsafe { self.card.release(stopped, &self.bufs) }
    }
}

impl<B: Bar> RegionRx for Ring<B> {
    fn pool(&self) -> &Arc<Pool> {
        &self.card.config.pool
    }

    fn recv(&mut self, batch: &mut Batch) -> usize {
        // SAFETY: `Rx` passes only batches of the ring's pool. `take` writes a slot to each entry that it counts, with
        // a buffer that the ring gives up, and keeps exactly as many of the buffers offered.
        let (offered, taken) = unsafe { batch.exchange(usize::MAX, |slots, fresh| self.take(slots, fresh)) };
        if offered == 0 && !batch.is_full() && self.written_back().is_some() {
            self.counters.found_no_buffer();
        }
        let owed = self.wrap(self.next.wrapping_sub(self.tail));
        if owed >= RETURN_AT_ONCE || owed > 0 && taken == 0 {
            self.tail = self.next;
            self.ring_doorbell();
        }
        taken
    }

    fn buffers(&self) -> usize {
        self.bufs.len()
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        None // it polls
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
