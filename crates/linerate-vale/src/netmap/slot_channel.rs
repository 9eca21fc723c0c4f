//! A channel of slots of one pool, which passes whole packets from one thread to another.
//!
//! Slots enter and leave only through a batch of the channel's pool. Both ends compare the pools; with a batch of
//! another pool they move no slots. The `_counted` calls are for queues inside [`Rx`](linerate_core::port::Rx) and
//! [`Tx`](linerate_core::port::Tx), which have already compared them. A single packet then passes without a second
//! comparison, except in debug builds.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use linerate_core::batch::Batch;
use linerate_core::memory::Pool;
use linerate_core::port::{QueueCounters, SendFinished};
use linerate_core::slot::Slot;

use super::channel::{Receiver, Sender, channel};

/// The sending end.
pub struct SlotSender {
    words: Sender<u64>,
    pool: Arc<Pool>,
    /// Whether the receiver accepts packets with pending offloads, for [`send_counted`](SlotSender::send_counted).
    accepts_offloads: Arc<AtomicBool>,
}

/// The receiving end.
pub struct SlotReceiver {
    words: Receiver<u64>,
    pool: Arc<Pool>,
}

/// Counts of moved slots, and of the packets and bytes in them.
#[derive(Default)]
pub struct Moved {
    pub slots: usize,
    pub packets: usize,
    pub bytes: usize,
    /// A packet has pending offloads, or the next one that was not moved for this reason.
    pub is_unfinished: bool,
}

/// Creates a channel for `len` slots of `pool`; `len` is a power of two.
pub fn slot_channel(pool: &Arc<Pool>, len: usize) -> (SlotSender, SlotReceiver) {
    let (sender, receiver) = channel(len);
    let (pool, accepts_offloads) = (pool.clone(), Arc::default());
    (SlotSender { words: sender, pool: pool.clone(), accepts_offloads }, SlotReceiver { words: receiver, pool })
}

impl SlotReceiver {
    /// Returns whether slots of the channel may enter this batch.
    #[inline(always)]
    fn may_fill(&self, batch: &Batch) -> bool {
        batch.is_already_of(&self.pool)
    }

    /// Returns the number of slots waiting in the channel.
    pub fn waiting(&self) -> usize {
        self.words.waiting()
    }

    /// Moves slots out of the channel until the batch is full, and then to the end of the last packet.
    #[inline(always)]
    pub fn receive(&mut self, batch: &mut Batch) -> Moved {
        let mut sums = Moved::default();
        if !self.may_fill(batch) {
            return sums;
        }
        loop {
            // SAFETY: the channel stores slots of the batch's pool, which the sender has given up. `space` is only
            // written.
            let (space, count) = unsafe {
                let space = batch.space();
                let count = self.words.receive(Slot::words_mut(space));
                (space, count)
            };
            if count == 0 {
                return sums;
            }
            let moved = counted(&space[..count]);
            let has_chains = moved.packets < count;
            // SAFETY: these slots were just written to `space`.
            unsafe { batch.commit(count, has_chains) };
            sums = Moved {
                slots: sums.slots + count,
                packets: sums.packets + moved.packets,
                bytes: sums.bytes + moved.bytes,
                is_unfinished: sums.is_unfinished | moved.is_unfinished,
            };
            if !has_chains || !batch.ends_in_chain() {
                return sums;
            }
        }
    }

    /// Receives into a batch whose pool the caller (`Rx`) has compared, and counts the packets. Returns the number of
    /// slots.
    #[inline(always)]
    pub fn receive_counted(&mut self, counters: &QueueCounters, batch: &mut Batch) -> usize {
        // A channel has only whole packets, so a single slot is a packet. The batch loop's setup would cost more than
        // the packet.
        if self.words.available() == 1 && self.receive_one(counters, batch, |_| true) {
            return 1;
        }
        self.receive_many(counters, batch)
    }

    #[inline(never)]
    fn receive_many(&mut self, counters: &QueueCounters, batch: &mut Batch) -> usize {
        if batch.has_room_for_one() && self.receive_one(counters, batch, |word| !Slot::continues(word)) {
            return 1;
        }
        let moved = self.receive(batch);
        if moved.slots > 0 {
            counters.moved_packets(moved.packets, moved.slots, moved.bytes);
        }
        moved.slots
    }

    /// Receives one packet of one slot, if one is waiting, the batch has room, and `is_packet` accepts its word.
    #[inline(always)]
    fn receive_one(
        &mut self,
        counters: &QueueCounters,
        batch: &mut Batch,
        is_packet: impl FnOnce(u64) -> bool,
    ) -> bool {
        debug_assert!(self.may_fill(batch), "a slot of another pool enters a batch");
        // SAFETY: the entry is only written.
        let Some(place) = (unsafe { batch.place() }) else { return false };
        let Some(word) = self.words.receive_one_if(is_packet) else { return false };
        // SAFETY: as in `receive`; the caller (`Rx`) has compared the pools.
        *place = unsafe { Slot::of_word(word) };
        counters.moved_packets(1, 1, place.len());
        // SAFETY: the slot was just written.
        unsafe { batch.commit(1, false) };
        true
    }

    /// Frees all slots waiting in the channel. Returns the number of packets.
    pub fn drain(&mut self) -> usize {
        let (mut batch, mut packets) = (Batch::new(), 0);
        batch.bind_if_unbound(&self.pool);
        loop {
            let moved = self.receive(&mut batch);
            if moved.slots == 0 {
                return packets;
            }
            packets += moved.packets;
            batch.clear();
        }
    }
}

impl SlotSender {
    /// Returns whether slots of this batch may enter the channel.
    #[inline(always)]
    fn may_take(&self, batch: &Batch) -> bool {
        batch.is_already_of(&self.pool)
    }

    /// Sets where the receiver tells whether it accepts packets with pending offloads.
    pub fn set_accepts_offloads(&mut self, accepts_offloads: &Arc<AtomicBool>) {
        self.accepts_offloads = accepts_offloads.clone();
    }

    /// Returns whether the receiver has received all slots.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Moves the first packets that fit into the channel.
    #[inline(always)]
    pub fn send(&mut self, batch: &mut Batch) -> Moved {
        self.send_until(batch, true)
    }

    /// As [`send`](SlotSender::send). Without `passes_offloads`, it stops at a packet with pending offloads.
    #[inline(always)]
    fn send_until(&mut self, batch: &mut Batch, passes_offloads: bool) -> Moved {
        if !self.may_take(batch) {
            return Moved::default();
        }
        let slots = batch.slots();
        let mut count = slots.len().min(self.words.free(slots.len()));
        while count > 0 && slots[count - 1].has_more() {
            count -= 1;
        }
        let mut moved = counted(&slots[..count]);
        if moved.is_unfinished && !passes_offloads {
            count = slots.iter().position(Slot::is_unfinished).unwrap_or(count);
            moved = Moved { is_unfinished: true, ..counted(&slots[..count]) };
        }
        self.words.send(Slot::words(&slots[..count]));
        batch.sent(count);
        moved
    }

    /// Moves a packet of one slot into the channel; returns whether it fits. `pool` must be the channel's pool.
    #[inline(always)]
    pub fn send_slot(&mut self, pool: &Pool, slot: &Slot) -> bool {
        debug_assert!(std::ptr::eq(pool, &*self.pool), "a slot of another pool enters a channel");
        self.words.send_one(slot.word())
    }

    /// Sends from a batch whose pool the caller (`Tx`) has compared, and counts the packets. Returns the number of
    /// slots. Finishes packets with pending offloads if the receiver does not accept them.
    #[inline(always)]
    pub fn send_counted(&mut self, counters: &QueueCounters, batch: &mut Batch) -> usize {
        // As in `receive_counted`.
        if batch.len() == 1
            && let Some(slot) = batch.first().filter(|slot| slot.is_whole())
        {
            debug_assert!(self.may_take(batch), "a slot of another pool enters a channel");
            if !self.words.send_one(slot.word()) {
                return 0;
            }
            counters.moved_packets(1, 1, slot.len());
            batch.sent_all();
            return 1;
        }
        self.send_many(counters, batch)
    }

    #[inline(never)]
    fn send_many(&mut self, counters: &QueueCounters, batch: &mut Batch) -> usize {
        let moved = self.send_until(batch, false);
        counters.moved_packets(moved.packets, moved.slots, moved.bytes);
        if moved.is_unfinished {
            return moved.slots + self.send_unfinished(counters, batch);
        }
        moved.slots
    }

    /// Sends from a batch whose first packet has pending offloads.
    #[cold]
    fn send_unfinished(&mut self, counters: &QueueCounters, batch: &mut Batch) -> usize {
        let passes_offloads = self.accepts_offloads.load(Relaxed);
        Finishing { sender: self, counters, passes_offloads }.finish_and_send(batch)
    }
}

/// Sends packets with pending offloads.
struct Finishing<'a> {
    sender: &'a mut SlotSender,
    counters: &'a QueueCounters,
    passes_offloads: bool,
}

impl SendFinished for Finishing<'_> {
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let moved = self.sender.send_until(batch, self.passes_offloads);
        self.counters.moved_packets(moved.packets, moved.slots, moved.bytes);
        (moved.slots, !self.passes_offloads && batch.first().is_some_and(Slot::is_unfinished))
    }

    fn counters(&self) -> &QueueCounters {
        self.counters
    }
}

/// Returns the number of slots, and of the packets and bytes in them.
#[inline(always)]
pub fn counted(slots: &[Slot]) -> Moved {
    // For a single packet, the loop's setup would cost more than the packet.
    if let [slot] = slots {
        let (packets, is_unfinished) = (usize::from(!slot.has_more()), slot.is_unfinished());
        return Moved { slots: 1, packets, bytes: slot.len(), is_unfinished };
    }
    let (flags, bytes) = slots.iter().fold((0, 0), |(flags, bytes), slot| (flags | slot.word(), bytes + slot.len()));
    let mut moved = Moved { slots: slots.len(), packets: slots.len(), bytes, is_unfinished: false };
    if !Slot::is_whole_word(flags) {
        moved.packets = slots.iter().filter(|slot| !slot.has_more()).count();
        moved.is_unfinished = slots.iter().any(Slot::is_unfinished);
    }
    moved
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};

    use super::*;

    #[test]
    fn a_batch_of_another_pool_passes_nothing() {
        let pool = || {
            let pages = Pages::Only(PageSize::Ordinary);
            Pool::new(Region::new(&RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None }).unwrap())
        };
        let (ours, theirs) = (pool(), pool());
        let (mut sender, mut receiver) = slot_channel(&ours, 64);
        let counters = QueueCounters::default();
        let (mut own, mut other) = (Batch::new(), Batch::new());
        for count in [1, 5] {
            assert_eq!((own.alloc(&ours, count, 60), other.alloc(&theirs, count, 60)), (count, count));
            assert_eq!((sender.send(&mut other).slots, other.len()), (0, count));
            assert_eq!(sender.send_counted(&counters, &mut own), count);
            other.clear();
            assert_eq!((receiver.receive(&mut other).slots, receiver.waiting()), (0, count));
            assert_eq!(receiver.receive_counted(&counters, &mut own), count);
            own.clear();
        }
        drop((own, other));
        assert_eq!((ours.available(), theirs.available()), (64, 64));
    }
}
