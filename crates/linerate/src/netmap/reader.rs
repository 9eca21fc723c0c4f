//! Packets into and out of a channel of slots. The packets in a channel are whole.
#![allow(unsafe_code)]

use super::channel::{Receiver, Sender};
use crate::batch::Batch;
use crate::port::QueueCounters;
use crate::slot::Slot;

/// Moves slots out of a channel until the batch is full, and further to the end of a packet; returns their number. The batch is
/// of the channel's pool: it comes from the shell of a queue, or from the channel's owner.
#[inline(always)]
pub fn receive_from(receiver: &mut Receiver<u64>, batch: &mut Batch) -> usize {
    let mut received = 0;
    loop {
        // SAFETY: the channel stores slots of the batch's pool, which their sender has given up.
        let count = receiver.receive(unsafe { Slot::words_mut(batch.space()) });
        batch.appended(count);
        received += count;
        if count == 0 || !batch.ends_in_chain() {
            return received;
        }
    }
}

/// Receives from a channel, and counts the packets.
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

/// Moves whole packets into a channel, the first ones that fit; returns the number of slots.
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

/// Returns the number of packets and bytes of slots.
#[inline(always)]
pub fn counted(slots: &[Slot]) -> (usize, usize) {
    slots.iter().fold((0, 0), |(packets, bytes), slot| (packets + usize::from(!slot.has_more()), bytes + slot.len()))
}
