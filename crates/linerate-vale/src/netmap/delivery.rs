//! Copies packets to a receiver: into buffers of the receiver's own region and through a channel of slots, or wherever
//! a [`Recipient`] puts them. A slow receiver does not delay senders: packets that do not fit are dropped and counted.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_core::batch::{Batch, Copied};
use linerate_core::error::{Error, Result};
use linerate_core::event::ArmedEvent;
use linerate_core::memory::{Pool, View};
use linerate_core::packet::{Times, timestamp};
use linerate_core::port::{Config, Drops, MonitorSink, QueueCounters, RegionRx, Rx, RxQueue};
use linerate_core::slot::Slot;

use super::frames::{CHUNK, Frames};
use super::slot_channel::{SlotReceiver, SlotSender, slot_channel};

/// Smaller batches are delivered one packet at a time; the batch loop's setup would cost more than it saves.
const MIN_BATCH: u32 = 4;

/// Copies packets to a receiver, which gets them through [`DeliveryRx`].
pub struct Delivery {
    pool: Arc<Pool>,
    longest: usize,
    offloads: bool,
    /// Packets get the time of their delivery as a timestamp.
    timestamps: bool,
    /// Indexed by queue. A sender locks its lane for one batch at a time.
    lanes: Box<[Lane]>,
    /// Packets that did not fit, and packets that were too long.
    full: AtomicU64,
    too_long: AtomicU64,
    /// Packets that this port sent but that were too short for the switch to decide on.
    too_short: AtomicU64,
}

struct Lane {
    sender_side: Mutex<SenderSide>,
    receiver: Mutex<Option<SlotReceiver>>,
    wake: ArmedEvent,
}

/// A receiver that copies packets itself, on the sender's thread.
pub trait Recipient: Send {
    /// Copies the packets whose bits are set in `wanted`, in order. Stops at the first packet that has several slots,
    /// is unfinished, or is longer than `longest`. Returns the remaining bits, and the counts of the packets copied.
    fn take(&mut self, frames: &Frames<'_>, wanted: u64, longest: usize) -> (u64, RecipientCounts);

    /// Copies all packets of a batch, and clears it.
    fn take_all(&mut self, batch: &mut Batch) -> RecipientCounts;

    /// Reports dropped packets to the receiver: those that did not fit, and those that were too long.
    fn dropped(&mut self, full: u64, too_long: u64);

    /// Publishes the copied packets to the receiver. Returns whether the receiver sleeps and the caller must still
    /// [`wake`](Recipient::wake) it.
    fn publish(&mut self) -> bool;

    /// Wakes the receiver if it sleeps.
    fn wake(&mut self);
}

/// Counts of one call to a recipient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecipientCounts {
    pub packets: usize,
    pub slots: usize,
    pub bytes: usize,
    /// Packets that did not fit.
    pub missed: u64,
}

impl RecipientCounts {
    /// Counts one packet.
    #[inline(always)]
    pub fn add(&mut self, slots: usize, bytes: usize) {
        (self.packets, self.slots, self.bytes) = (self.packets + 1, self.slots + slots, self.bytes + bytes);
    }
}

/// The sender's side of a lane. It copies into buffers of the receiver's region and passes the slots through a channel,
/// or calls a recipient.
struct SenderSide {
    sender: SlotSender,
    recipient: Option<Box<dyn Recipient>>,
    copies: Batch,
    times: Times,
    /// Whether a receiver has opened the queue.
    open: bool,
    /// The receiver's counters, for packets delivered to a recipient.
    counters: Arc<QueueCounters>,
}

impl Delivery {
    pub fn new(config: &Config) -> Result<Delivery> {
        let lane = || {
            let (sender, receiver) = slot_channel(&config.pool, config.ring());
            let side = SenderSide {
                sender,
                recipient: None,
                copies: Batch::with_capacity(CHUNK),
                times: Times::default(),
                open: false,
                counters: Arc::default(),
            };
            Ok(Lane { sender_side: Mutex::new(side), receiver: Mutex::new(Some(receiver)), wake: ArmedEvent::new()? })
        };
        Ok(Delivery {
            pool: config.pool.clone(),
            longest: config.options.max_frame,
            offloads: config.options.offloads,
            timestamps: config.options.timestamps,
            lanes: (0..config.options.rx_queues).map(|_| lane()).collect::<Result<_>>()?,
            full: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
            too_short: AtomicU64::new(0),
        })
    }

    pub fn drops(&self) -> Drops {
        let [no_descriptor, oversize, undersize] =
            [&self.full, &self.too_long, &self.too_short].map(|counter| counter.load(Ordering::Relaxed));
        Drops { no_descriptor, oversize, undersize, ..Drops::default() }
    }

    /// Counts packets from this port that were shorter than an Ethernet header.
    #[cold]
    pub fn count_too_short(&self, packets: u64) {
        self.too_short.fetch_add(packets, Ordering::Relaxed);
    }

    fn lane(&self, queue: usize) -> Option<&Lane> {
        self.lanes.get(queue.checked_rem(self.lanes.len())?)
    }

    /// Copies the packets whose bits are set in `wanted` to a queue, as many as fit. Returns whether the caller must
    /// still wake the receiver with [`wake`](Delivery::wake).
    #[inline]
    pub fn deliver(&self, frames: &Frames<'_>, mut wanted: u64, queue: usize) -> bool {
        // A port without receive queues accepts no packets.
        let Some(lane) = self.lane(queue) else { return false };
        let side = &mut *lane.sender_side.lock().unwrap_or_else(PoisonError::into_inner);
        if !side.open {
            return false;
        }
        let (mut full, mut too_long) = (0, 0);
        side.copies.bind_if_unbound(&self.pool);
        let mut time = side.time(self, wanted.count_ones() as usize);
        if wanted.count_ones() < MIN_BATCH
            && side.recipient.is_none()
            && time.is_none()
            && let Some(slots) = frames.single_slots()
        {
            (wanted, full) = side.deliver_singly(&self.pool, frames.view, self.longest, wanted, slots);
        }
        while wanted != 0 {
            wanted = match (&mut side.recipient, frames.single_slots()) {
                (Some(recipient), _) => {
                    let (left, taken) = recipient.take(frames, wanted, self.longest);
                    full += count(&side.counters, taken);
                    left
                }
                (None, Some(slots)) => {
                    let one = |n: usize| std::slice::from_ref(&slots[n]);
                    // SAFETY: the copies are of this pool (above), and the packets are of the frames' region.
                    unsafe { side.copies.copy_short(&self.pool, frames.view, self.longest, wanted, one) }
                }
                (None, None) => {
                    let packet = |n| frames.slots(n);
                    // SAFETY: as above.
                    unsafe { side.copies.copy_short(&self.pool, frames.view, self.longest, wanted, packet) }
                }
            };
            full += side.flush(&mut time);
            if wanted == 0 {
                break;
            }
            // The next packet is a chain, unfinished, or too long, or no buffer is free for it.
            let slots = frames.slots(wanted.trailing_zeros() as usize);
            wanted &= wanted - 1;
            // SAFETY: the frames' slots are of the frames' pool.
            let copied = unsafe { side.copies.copy_any(&self.pool, slots, frames.pool, self.longest, self.offloads) };
            match copied {
                Copied::Done => {}
                Copied::NoBuffer => full += 1,
                Copied::TooLong => too_long += 1,
            }
            full += side.flush(&mut time);
        }
        if full + too_long > 0 {
            self.dropped(side, full, too_long);
        }
        match &mut side.recipient {
            Some(recipient) => recipient.publish(),
            None => {
                lane.wake.notify();
                false
            }
        }
    }

    /// Counts packets that did not fit, and packets that were too long.
    #[cold]
    fn dropped(&self, side: &mut SenderSide, full: u64, too_long: u64) {
        self.full.fetch_add(full, Ordering::Relaxed);
        self.too_long.fetch_add(too_long, Ordering::Relaxed);
        if let Some(recipient) = &mut side.recipient {
            recipient.dropped(full, too_long);
        }
    }

    /// Wakes a queue's receiver after calls of [`deliver`](Delivery::deliver) that returned true.
    #[cold]
    pub fn wake(&self, queue: usize) {
        let Some(lane) = self.lane(queue) else { return };
        if let Some(recipient) = &mut lane.sender_side.lock().unwrap_or_else(PoisonError::into_inner).recipient {
            recipient.wake();
        }
    }
}

impl Delivery {
    /// Passes a queue's packets to `recipient` until the queue is dropped, starting with packets already waiting in the
    /// queue.
    pub fn redirect_queue(&self, number: u16, queue: &mut RxQueue, mut recipient: Box<dyn Recipient>) {
        let Some(lane) = self.lane(number.into()) else { return };
        let side = &mut *lane.sender_side.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut batch, mut missed) = (Batch::with_capacity(CHUNK), 0);
        while queue.recv(&mut batch) > 0 {
            // The queue has already counted these packets as received.
            missed += recipient.take_all(&mut batch).missed;
        }
        recipient.publish();
        recipient.wake();
        side.recipient = Some(recipient);
        self.dropped(side, missed, 0);
    }
}

/// Accepts copies for a monitor.
impl MonitorSink for Delivery {
    unsafe fn copy(&self, copies: &mut Batch, packet: &[Slot], theirs: &Arc<Pool>) -> bool {
        if !copies.bind_if_unbound(&self.pool) {
            return false;
        }
        // SAFETY: the view is used only with the packet's slots, which are of that pool.
        let view = unsafe { theirs.region().view() };
        // SAFETY: as above, and the copies are of this pool.
        let is_short =
            |copies: &mut Batch| unsafe { copies.copy_short(&self.pool, view, self.longest, 1, |_| packet) == 0 };
        let careful = |copies: &mut Batch| {
            // SAFETY: as above.
            unsafe { copies.copy_any(&self.pool, packet, theirs, self.longest, self.offloads) }
        };
        let is_copied = is_short(copies) || careful(copies) == Copied::Done;
        if is_copied && let Some(time) = timestamp(&packet[0], view) {
            copies.stamp_last(time);
        }
        is_copied
    }

    /// Passes the copies to the receiver. Copies that do not fit, and `missing` more packets, count as dropped.
    fn hand_over(&self, copies: &mut Batch, queue: usize, missing: u64) {
        if let Some(lane) = self.lane(queue) {
            let side = &mut *lane.sender_side.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut side.recipient {
                // No receiver has opened this queue, so no packet counts as dropped.
                _ if !side.open => return copies.clear(),
                Some(recipient) => {
                    self.full.fetch_add(count(&side.counters, recipient.take_all(copies)), Ordering::Relaxed);
                    recipient.publish();
                    recipient.wake();
                }
                None => {
                    if let Some(time) = side.time(self, copies.len()) {
                        copies.stamp_from(time);
                    }
                    side.sender.send(copies);
                    lane.wake.notify();
                }
            }
        }
        let full = copies.packets().count() as u64 + missing;
        copies.clear();
        if full > 0 {
            self.full.fetch_add(full, Ordering::Relaxed);
        }
    }
}

/// Adds a recipient's counts to the queue's counters; returns the number of packets that did not fit.
#[inline(always)]
fn count(counters: &QueueCounters, taken: RecipientCounts) -> u64 {
    counters.moved_packets(taken.packets, taken.slots, taken.bytes);
    taken.missed
}

impl SenderSide {
    /// Returns the timestamp for the next `count` copies; `None` if the port has no timestamps, or a recipient sets
    /// them itself.
    #[inline(always)]
    fn time(&mut self, delivery: &Delivery, count: usize) -> Option<u64> {
        (delivery.timestamps && self.recipient.is_none()).then(|| self.times.take(count))
    }

    /// Copies packets of one slot each, and sends each copy. Stops at a packet that is unfinished or longer than
    /// `longest`, or if no buffer is free. Returns the remaining bits, and the number of packets that did not fit.
    #[inline(always)]
    fn deliver_singly(
        &mut self,
        pool: &Pool,
        theirs: View<'_>,
        longest: usize,
        mut wanted: u64,
        slots: &[Slot],
    ) -> (u64, u64) {
        let (longest, mut full) = (longest.min(pool.region().room()), 0);
        // SAFETY: the view is used only with slots created for buffers of this pool.
        let ours = unsafe { pool.region().view() };
        while wanted != 0 {
            let slot = &slots[wanted.trailing_zeros() as usize];
            if slot.whole_len() > longest {
                break;
            }
            let Some(buf) = self.copies.take_buffer() else { break };
            // SAFETY: the buffer was taken for this copy.
            let copy = unsafe { theirs.copy(slot, ours, buf) };
            if !self.sender.send_slot(pool, &copy) {
                // SAFETY: the copy is discarded, so the buffer has no other owner.
                unsafe { self.copies.recycle(&[buf]) };
                full += 1;
            }
            wanted &= wanted - 1;
        }
        (wanted, full)
    }

    /// Passes the copies to the receiver. Copies that do not fit are dropped, so that the next packets can use their
    /// buffers. Returns the number of dropped packets.
    #[inline(always)]
    fn flush(&mut self, time: &mut Option<u64>) -> u64 {
        if self.copies.is_empty() {
            return 0;
        }
        if let Some(time) = time {
            *time = self.copies.stamp_from(*time);
        }
        if let Some(recipient) = &mut self.recipient {
            return count(&self.counters, recipient.take_all(&mut self.copies));
        }
        self.sender.send(&mut self.copies);
        if self.copies.is_empty() {
            return 0;
        }
        let left = self.copies.packets().count() as u64;
        self.copies.clear();
        left
    }
}

/// Receives the copies of a lane.
pub struct DeliveryRx {
    delivery: Arc<Delivery>,
    queue: usize,
    /// Returned to the lane on drop.
    receiver: Option<SlotReceiver>,
    counters: Arc<QueueCounters>,
}

impl DeliveryRx {
    /// Takes the receiving end of a lane.
    ///
    /// # Errors
    /// [`ErrorKind::QueueTaken`](linerate_core::ErrorKind::QueueTaken) while another queue has it.
    pub fn new(
        delivery: &Arc<Delivery>,
        config: &Config,
        queue: u16,
        counters: Arc<QueueCounters>,
    ) -> Result<Rx<DeliveryRx>> {
        let lane = &delivery.lanes[usize::from(queue)];
        let receiver = lane.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = receiver else {
            return Err(Error::queue_taken(&config.name, "receive", queue));
        };
        lane.wake.want(config.options.interrupts.is_some());
        let side = &mut *lane.sender_side.lock().unwrap_or_else(PoisonError::into_inner);
        (side.open, side.counters) = (true, counters.clone());
        Ok(Rx::new(DeliveryRx { delivery: delivery.clone(), queue: queue.into(), receiver: Some(receiver), counters }))
    }

    fn lane(&self) -> &Lane {
        &self.delivery.lanes[self.queue]
    }
}

impl RegionRx for DeliveryRx {
    #[inline(always)]
    fn pool(&self) -> &Arc<Pool> {
        &self.delivery.pool
    }

    #[inline(always)]
    fn recv(&mut self, batch: &mut Batch) -> usize {
        self.receiver.as_mut().map_or(0, |receiver| receiver.receive_counted(&self.counters, batch))
    }

    fn buffers(&self) -> usize {
        // The sender's cached buffers count as this queue's, because packets for this queue are copied into them.
        let side = self.lane().sender_side.lock().unwrap_or_else(PoisonError::into_inner);
        side.copies.cached() + self.receiver.as_ref().map_or(0, SlotReceiver::waiting)
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.lane().wake.arm()
    }

    fn disarm(&mut self) {
        self.lane().wake.disarm();
    }
}

impl Drop for DeliveryRx {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        let side = &mut *self.lane().sender_side.lock().unwrap_or_else(PoisonError::into_inner);
        side.open = false;
        (side.recipient, side.counters) = (None, Arc::default());
        // Without a receiver no packet is copied, so the sender needs no cached buffers.
        side.copies = Batch::with_capacity(CHUNK);
        receiver.drain();
        *self.lane().receiver.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
    }
}
