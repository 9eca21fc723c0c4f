//! Packets in and out of a channel of slots: they are whole in it.

use std::sync::Arc;

use super::channel::{Receiver, Sender};
use crate::batch::Batch;
use crate::memory::Pool;
use crate::port::QueueCounters;
use crate::slot::Slot;

/// The receiving end of a channel, for batches of any region.
pub struct Reader {
    pub receiver: Receiver<u64>,
    pool: Arc<Pool>,
    counters: Arc<QueueCounters>,
    /// For batches of another region.
    copies: Batch,
}

impl Reader {
    /// Slots of this pool come through the channel.
    pub fn new(receiver: Receiver<u64>, pool: &Arc<Pool>, counters: Arc<QueueCounters>) -> Reader {
        Reader { receiver, pool: pool.clone(), counters, copies: Batch::new() }
    }

    /// As a queue does.
    #[inline(always)]
    pub fn recv(&mut self, batch: &mut Batch) -> usize {
        if !batch.belongs_to(&self.pool) || !self.copies.is_empty() {
            return self.recv_copied(batch);
        }
        let count = receive_from(&mut self.receiver, batch);
        if count > 0 {
            let slots = batch.slots();
            let (packets, bytes) = counted(&slots[slots.len() - count..]);
            self.counters.moved_packets(packets, count, bytes);
        }
        count
    }

    #[cold]
    fn recv_copied(&mut self, batch: &mut Batch) -> usize {
        let mut copies = std::mem::take(&mut self.copies);
        let received = copies.receive_for(&self.pool.clone(), batch, |own| self.recv(own));
        self.copies = copies;
        received
    }

    /// On their way, and for copies.
    pub fn buffers(&self) -> usize {
        self.receiver.waiting() + self.copies.len() + self.copies.cached()
    }
}

/// Moves slots out of a channel until the batch is full; packets are whole in it, and so they are here.
#[inline(always)]
pub fn receive_from(receiver: &mut Receiver<u64>, batch: &mut Batch) -> usize {
    let mut received = 0;
    loop {
        let count = receiver.receive(Slot::words_mut(batch.space()));
        batch.appended(count);
        received += count;
        if count == 0 || !batch.ends_in_chain() {
            return received;
        }
    }
}

/// Moves whole packets into a channel, and tells how many slots.
#[inline(always)]
pub fn send_to(sender: &mut Sender<u64>, batch: &mut Batch) -> usize {
    let slots = batch.slots();
    let mut count = slots.len().min(sender.free(slots.len()));
    while count > 0 && slots[count - 1].has_more() {
        count -= 1;
    }
    sender.send(Slot::words(&slots[..count]));
    batch.sent(count);
    count
}

/// Packets and bytes of slots.
#[inline(always)]
pub fn counted(slots: &[Slot]) -> (usize, usize) {
    slots.iter().fold((0, 0), |(packets, bytes), slot| (packets + usize::from(!slot.has_more()), bytes + slot.len()))
}
