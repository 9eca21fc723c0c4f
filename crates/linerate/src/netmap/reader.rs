//! Packets into and out of a channel of slots. The packets in a channel are whole.
#![allow(unsafe_code)]

use super::channel::{Receiver, Sender};
use crate::batch::Batch;
use crate::port::QueueCounters;
use crate::slot::Slot;

/// Slots that were moved, and the packets and bytes in them.
#[derive(Default)]
pub struct Moved {
    pub slots: usize,
    pub packets: usize,
    pub bytes: usize,
}

/// Moves slots out of a channel until the batch is full, and further to the end of a packet. The batch is of the channel's
/// pool: it comes from the shell of a queue, or from the channel's owner.
#[inline(always)]
pub fn receive_from(receiver: &mut Receiver<u64>, batch: &mut Batch) -> Moved {
    let mut sums = Moved::default();
    loop {
        let space = batch.space();
        // SAFETY: the channel stores slots of the batch's pool, which their sender has given up.
        let count = receiver.receive(unsafe { Slot::words_mut(space) });
        if count == 0 {
            return sums;
        }
        let moved = counted(&space[..count]);
        let has_chains = moved.packets < count;
        batch.appended(count, has_chains);
        sums =
            Moved { slots: sums.slots + count, packets: sums.packets + moved.packets, bytes: sums.bytes + moved.bytes };
        if !has_chains || !batch.ends_in_chain() {
            return sums;
        }
    }
}

/// Receives from a channel, and counts the packets. Returns the number of slots.
#[inline(always)]
pub fn recv_counted(receiver: &mut Receiver<u64>, counters: &QueueCounters, batch: &mut Batch) -> usize {
    // A packet alone, since the packets in a channel are whole. What a loop over many prepares costs more than it does.
    if receiver.available() == 1 && recv_one(receiver, counters, batch, |_| true) {
        return 1;
    }
    recv_many(receiver, counters, batch)
}

#[inline(never)]
fn recv_many(receiver: &mut Receiver<u64>, counters: &QueueCounters, batch: &mut Batch) -> usize {
    if batch.has_room_for_one() && recv_one(receiver, counters, batch, |word| !Slot::continues(word)) {
        return 1;
    }
    let moved = receive_from(receiver, batch);
    if moved.slots > 0 {
        counters.moved_packets(moved.packets, moved.slots, moved.bytes);
    }
    moved.slots
}

/// Receives a packet of one slot, if there is one, and room, and the slot's word is such a packet's.
#[inline(always)]
fn recv_one(
    receiver: &mut Receiver<u64>,
    counters: &QueueCounters,
    batch: &mut Batch,
    is_packet: impl FnOnce(u64) -> bool,
) -> bool {
    let Some(place) = batch.place() else { return false };
    let Some(word) = receiver.receive_one_if(is_packet) else { return false };
    // SAFETY: as in `receive_from`.
    *place = unsafe { Slot::of_word(word) };
    counters.moved_packets(1, 1, place.len());
    batch.appended(1, false);
    true
}

/// Moves whole packets into a channel, the first ones that fit.
#[inline(always)]
pub fn send_to(sender: &mut Sender<u64>, batch: &mut Batch) -> Moved {
    let slots = batch.slots();
    let mut count = slots.len().min(sender.free(slots.len()));
    while count > 0 && slots[count - 1].has_more() {
        count -= 1;
    }
    let moved = counted(&slots[..count]);
    sender.send(Slot::words(&slots[..count]));
    batch.sent(count);
    moved
}

/// Sends to a channel, and counts the packets. Returns the number of slots.
#[inline(always)]
pub fn send_counted(sender: &mut Sender<u64>, counters: &QueueCounters, batch: &mut Batch) -> usize {
    // As in `recv_counted`.
    if batch.len() == 1
        && let Some(slot) = batch.first().filter(|slot| !slot.has_more())
    {
        if !sender.send_one(slot.word()) {
            return 0;
        }
        counters.moved_packets(1, 1, slot.len());
        batch.sent_all();
        return 1;
    }
    send_many(sender, counters, batch)
}

#[inline(never)]
fn send_many(sender: &mut Sender<u64>, counters: &QueueCounters, batch: &mut Batch) -> usize {
    let moved = send_to(sender, batch);
    counters.moved_packets(moved.packets, moved.slots, moved.bytes);
    moved.slots
}

/// Counts slots, and the packets and bytes in them.
#[inline(always)]
pub fn counted(slots: &[Slot]) -> Moved {
    // A loop over many prepares more than one packet costs.
    if let [slot] = slots {
        return Moved { slots: 1, packets: usize::from(!slot.has_more()), bytes: slot.len() };
    }
    slots.iter().fold(Moved { slots: slots.len(), ..Moved::default() }, |sums, slot| Moved {
        packets: sums.packets + usize::from(!slot.has_more()),
        bytes: sums.bytes + slot.len(),
        ..sums
    })
}
