//! Packets in and out of a channel of slots: they are whole in it.

use super::channel::{Receiver, Sender};
use crate::batch::Batch;
use crate::port::QueueCounters;
use crate::slot::Slot;

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

/// Receives from a channel as a queue does, and counts.
#[inline(always)]
pub fn recv_counted(receiver: &mut Receiver<u64>, counters: &QueueCounters, batch: &mut Batch) -> usize {
    let count = receive_from(receiver, batch);
    if count > 0 {
        let slots = batch.slots();
        let (packets, bytes) = counted(&slots[slots.len() - count..]);
        counters.moved_packets(packets, count, bytes);
    }
    count
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
