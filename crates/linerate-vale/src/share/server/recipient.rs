//! Copies packets into a client's receive ring, on the sender's thread. This is the last step of a packet's path.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use linerate_core::batch::Batch;
use linerate_core::memory::Pool;
use linerate_core::packet::{Times, timestamp};
use linerate_core::port::{RxQueue, YieldWait};
use linerate_core::slot;

use crate::netmap::{Frames, Recipient, RecipientCounts, RxMirror};
use crate::share::protocol::mapping::Segments;
use crate::share::protocol::ring::{MAX_FRAGS, NS_MOREFRAG, ServerRxRing, SharedRing, Slot};

/// The longest virtio-net header in bytes: 10, or 12 with a number of buffers (VIRTIO 1.2, 5.1.6).
pub const HEADERS: usize = 12;

/// Wakes the clients that use a ring.
pub trait Notifier {
    /// Wakes each client with a token.
    fn notify(&self);
}

/// The outcome of copying one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The packet is in the ring.
    Whole,
    /// The ring does not have enough free slots yet.
    NoRoom,
    /// The packet is longer than the ring, or a slot has no valid buffer.
    Never,
}

/// Copies a packet of `len` bytes into the next slots, after `header` zero bytes.
#[inline(always)]
pub fn put<'a>(
    producer: &mut ServerRxRing,
    header: usize,
    len: usize,
    segments: impl Iterator<Item = &'a [u8]>,
) -> Put {
    let size = producer.ring.memory.buffers.size;
    let count = match producer.ring.offset_mask {
        0 if header + len <= size => 1,
        0 => (header + len).div_ceil(size),
        _ => slots_behind_offsets(producer, header + len),
    };
    if count > MAX_FRAGS {
        return Put::Never;
    }
    if !producer.has_room(count) {
        return if count >= producer.ring.place.slots { Put::Never } else { Put::NoRoom };
    }
    let memory = &producer.ring.memory;
    let mut slot = producer.tail();
    let mut from = Segments { begun: &[0; HEADERS][..header], segments };
    let mut left = header + len;
    for n in 0..count {
        let buffer = producer.ring.slot(slot).buffer;
        let offset = producer.ring.offset(slot);
        let Some(at) = memory.buffer(buffer).filter(|_| offset < size).map(|at| at + offset) else { return Put::Never };
        let len = left.min(size - offset);
        // The client may have changed an offset in the meantime.
        if n + 1 == count && len < left {
            return Put::Never;
        }
        from.write(&memory.mapping, at, len);
        left -= len;
        let more = if n + 1 < count { NS_MOREFRAG } else { 0 };
        let flags = more | ((count - n) as u16) << 8;
        producer.ring.set_slot(slot, Slot { buffer, len: len as u16, flags });
        slot = producer.ring.next(slot);
    }
    producer.advance(count);
    Put::Whole
}

/// Returns how many slots, starting at the tail, `len` bytes need after the offsets that the program wrote there.
/// Returns more than [`MAX_FRAGS`] if that many slots do not suffice.
#[cold]
fn slots_behind_offsets(producer: &ServerRxRing, len: usize) -> usize {
    let (ring, size) = (&producer.ring, producer.ring.memory.buffers.size);
    let (mut slot, mut count, mut room) = (producer.tail(), 0, 0);
    while count <= MAX_FRAGS && (room < len || count == 0) {
        room += size.saturating_sub(ring.offset(slot));
        (slot, count) = (ring.next(slot), count + 1);
    }
    count
}

/// A client's receive ring at a port of a switch, into which senders copy packets.
pub struct RingRecipient<B> {
    pub ring: ServerRxRing,
    pub header: Arc<AtomicUsize>,
    /// Set if the client wants to know when packets arrived.
    pub times: Option<Times>,
    /// Copies received packets to the port's monitors.
    pub received: Option<RxMirror>,
    pub notifier: B,
    /// The receiver's thread may need the sender's CPU.
    pub yields: Yields,
}

impl<B: Notifier + Send> Recipient for RingRecipient<B> {
    fn take(&mut self, frames: &Frames<'_>, mut wanted: u64, longest: usize) -> (u64, RecipientCounts) {
        let header = self.header.load(Ordering::Relaxed);
        let is_mirrored = self.received.as_mut().is_some_and(RxMirror::is_wanted);
        let mut taken = RecipientCounts::default();
        let count = wanted.count_ones() as usize;
        if !self.ring.has_room(count) && self.yields.is_due(self.ring.head()) {
            self.publish();
            self.wake();
            self.yields.yield_wait.wait();
        }
        self.ring.prefetch(count);
        let mut time = self.times.as_mut().map(|times| times.take(count));
        while wanted != 0 {
            let n = wanted.trailing_zeros() as usize;
            let Some(bytes) = frames.single_finished(n).filter(|bytes| bytes.len() <= longest) else { break };
            wanted &= wanted - 1;
            let first = self.ring.tail();
            let is_put = header == 0 && self.ring.put_short(bytes);
            match if is_put { Put::Whole } else { put(&mut self.ring, header, bytes.len(), std::iter::once(bytes)) } {
                Put::Whole => {
                    taken.add(1, bytes.len());
                    if let Some(time) = &mut time {
                        self.ring.ring.set_time_of(first, *time);
                        *time += 1;
                    }
                    if is_mirrored {
                        let (slots, pool) = frames.packet(n);
                        self.mirror(slots, pool);
                    }
                }
                _ => taken.missed += 1,
            }
        }
        (wanted, taken)
    }

    fn take_all(&mut self, batch: &mut Batch) -> RecipientCounts {
        let header = self.header.load(Ordering::Relaxed);
        let is_mirrored = self.received.as_mut().is_some_and(RxMirror::is_wanted);
        let mut taken = RecipientCounts::default();
        if let Some(times) = &mut self.times {
            batch.stamp_from(times.take(batch.len()));
        }
        if let Some((slots, pool)) = batch.contents() {
            // SAFETY: the view is used only with the batch's slots, which are of this pool.
            let view = unsafe { pool.region().view() };
            for packet in slots.split_inclusive(|slot| !slot.has_more()) {
                let len = packet.iter().map(slot::Slot::len).sum();
                let first = self.ring.tail();
                match put(&mut self.ring, header, len, packet.iter().map(|slot| view.bytes(slot))) {
                    Put::Whole => {
                        taken.add(packet.len(), len);
                        if self.times.is_some() {
                            let time = timestamp(&packet[0], view);
                            time.into_iter().for_each(|time| self.ring.ring.set_time_of(first, time));
                        }
                        if is_mirrored {
                            self.mirror(packet, pool);
                        }
                    }
                    _ => taken.missed += 1,
                }
            }
        }
        batch.clear();
        taken
    }

    fn dropped(&mut self, full: u64, too_long: u64) {
        self.ring.ring.add_dropped(full, too_long);
    }

    fn publish(&mut self) -> bool {
        self.ring.publish_tail();
        self.ring.ring.is_armed()
    }

    fn wake(&mut self) {
        if self.ring.ring.must_wake_client() {
            self.notifier.notify();
        }
    }
}

/// Limits how often a sender yields its CPU to a receiver whose ring is full: once each time the receiver has released
/// slots. So a stopped receiver delays no sender.
pub struct Yields {
    yield_wait: YieldWait,
    /// The ring's head at the last yield.
    head: usize,
}

impl Default for Yields {
    fn default() -> Yields {
        Yields { yield_wait: YieldWait::new(Duration::from_micros(1)), head: usize::MAX }
    }
}

impl Yields {
    /// Returns whether `head` has moved since the last call.
    #[cold]
    fn is_due(&mut self, head: usize) -> bool {
        self.yield_wait.reset();
        std::mem::replace(&mut self.head, head) != head
    }
}

impl<B> RingRecipient<B> {
    #[cold]
    fn mirror(&mut self, packet: &[slot::Slot], pool: &Arc<Pool>) {
        // SAFETY: the packet is one of a batch of this pool.
        self.received.iter_mut().for_each(|received| unsafe { received.copy(packet, pool) });
    }
}

/// A receive ring that a [`RingRecipient`] fills, and the port's queue that it bypasses.
pub struct DeliveredRing {
    pub ring: SharedRing,
    pub _queue: RxQueue,
}

#[cfg(test)]
mod tests {
    use linerate::Options;
    use linerate_core::memory::{PageSize, Pages, Region, RegionOptions};
    use linerate_core::offload::Offload;
    use linerate_core::port::{Config, Device, Port, TxQueue};

    use super::*;
    use crate::netmap::{Monitor, ValePort, delivery_of};
    use crate::share::protocol::connection::Connection;
    use crate::share::protocol::connection::tests::was_notified;
    use crate::share::protocol::layout::Offsets;
    use crate::share::protocol::ring::ClientRing;
    use crate::share::protocol::ring::tests::rings;
    use crate::share::server::netmap_memory::NetmapMemory;
    use crate::share::server::pump::tests::{come, counting};

    /// Chunks after which a sender wakes a receiver (`netmap/vale/port.rs`).
    const WAKE_CHUNKS: usize = 4;

    /// A port of a switch that delivers to a ring, and another port that sends to it.
    struct Bench {
        _memory: Arc<NetmapMemory>,
        ring: SharedRing,
        /// The client's end of its connection.
        client: Connection,
        port: Port,
        queue: Option<RxQueue>,
        tx: TxQueue,
        pool: Arc<Pool>,
        _sender: Port,
    }

    fn config(name: &str) -> Config {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None };
        Options { max_frame: 9000, ..Options::default() }
            .of_port(name, Pool::new(Region::new(&options).unwrap()))
            .unwrap()
    }

    impl Bench {
        fn new(switch: &str, header: usize) -> Bench {
            let (memory, [_, ring]) = rings(16, 0, Offsets::default());
            let port = |name: &str| ValePort::open(switch, name, config(&format!("{switch}:{name}"))).unwrap();
            let (mut sender, mut port) = (Port::new(port("a")), Port::new(port("b")));
            let (mut queue, tx) = (port.rx(0).unwrap(), sender.tx(0).unwrap());
            let [client, socket] = Connection::pair().unwrap();
            let name = port.name().to_string();
            let (pool, received) = (sender.pool().clone(), RxMirror::new(&name, 0));
            let mut bench =
                Bench { _memory: memory, ring: ring.clone(), client, port, queue: None, tx, pool, _sender: sender };
            // A packet that arrives before the port has the ring.
            bench.send(&[61]);
            let (producer, header) = (ServerRxRing::new(ring), Arc::new(AtomicUsize::new(header)));
            let recipient = RingRecipient {
                ring: producer,
                header,
                times: None,
                received,
                notifier: socket,
                yields: Yields::default(),
            };
            delivery_of(&name).unwrap().redirect_queue(0, &mut queue, Box::new(recipient));
            bench.queue = Some(queue);
            bench
        }

        fn send(&mut self, lens: &[usize]) {
            let mut batch = Batch::new();
            lens.iter().for_each(|len| assert!(batch.push(&self.pool, &counting(*len, *len))));
            self.tx.send(&mut batch);
        }

        fn lens(&self) -> Vec<u16> {
            come(&self.ring).0.iter().map(|(len, _)| *len).collect()
        }

        fn release_all(&self) {
            let client = ClientRing::begin(self.ring.clone());
            client.update_tail();
            client.set(client.tail() as u32, client.tail() as u32);
            client.publish_head().unwrap();
        }
    }

    #[test]
    fn the_sender_copies_into_the_receiver_s_ring() {
        let mut bench = Bench::new("vale_delivery0", 0);
        bench.send(&[60, 5000, 2048]);
        let bytes = [61, 60, 5000, 2048].map(|len| counting(len, len)).concat();
        assert_eq!((bench.lens(), come(&bench.ring).1), (vec![61, 60, 2048, 2048, 904, 2048], bytes));
        let statistics = bench.port.statistics().unwrap();
        assert_eq!((statistics.rx_packets, statistics.rx_bytes), (4, 61 + 60 + 5000 + 2048));
    }

    #[test]
    fn packets_without_room_are_counted_at_the_port() {
        let mut bench = Bench::new("vale_delivery1", 0);
        bench.send(&[60; 20]);
        let drops = |bench: &Bench| bench.port.statistics().unwrap().drops;
        assert_eq!((bench.lens().len(), drops(&bench).no_descriptor), (15, 6));
        bench.release_all();
        bench.send(&[5000, 60, 9001]);
        assert_eq!(bench.lens(), [2048, 2048, 904, 60]);
        assert_eq!((drops(&bench).no_descriptor, drops(&bench).oversize), (6, 1));
        assert_eq!(bench.ring.dropped(), [6, 1], "the client counts them as well");
        // A chain that does not fit, and a slot without a buffer.
        bench.send(&[60; 10]);
        bench.send(&[5000, 62]);
        assert_eq!((bench.lens().len(), drops(&bench).no_descriptor), (15, 7));
        bench.release_all();
        let next = (bench.ring.published(), bench.ring.slot(bench.ring.published()));
        bench.ring.set_slot(next.0, super::Slot { buffer: u32::MAX, ..next.1 });
        bench.send(&[60]);
        assert_eq!((bench.lens().len(), drops(&bench).no_descriptor), (0, 8));
    }

    #[test]
    fn a_packet_has_as_many_slots_as_offsets_leave_room_for() {
        let (_memory, [_, ring]) = rings(80, 0, Offsets { mask: 0xFFF, first: 512 });
        let mut producer = ServerRxRing::new(ring.clone());
        let put = |producer: &mut ServerRxRing, len: usize| {
            let begin = producer.tail();
            let put = put(producer, 0, len, std::iter::once(&*counting(len, len)));
            (put, ring.distance(begin, producer.tail()))
        };
        for (len, slots) in [(60, 1), (1536, 1), (1537, 2), (1800, 2), (7000, 5)] {
            assert_eq!(put(&mut producer, len), (Put::Whole, slots), "{len} bytes");
        }
        producer.publish_tail();
        let bytes = [60, 1536, 1537, 1800, 7000].map(|len| counting(len, len)).concat();
        assert_eq!(come(&ring).1, bytes);
        // One packet starts near the end of its buffer, another would start after the end.
        ring.set_offset(11, 2047);
        assert_eq!(put(&mut producer, 1540), (Put::Whole, 3));
        ring.set_offset(15, 2048);
        assert_eq!(put(&mut producer, 1600), (Put::Never, 0));
        assert_eq!(put(&mut producer, 64 * 1536 + 1), (Put::Never, 0));
    }

    #[test]
    fn offloads_are_executed_before_delivery() {
        let mut bench = Bench::new("vale_delivery2", 12);
        bench.release_all();
        let mut batch = Batch::new();
        assert!(batch.push(&bench.pool, &[&[0xFF; 6][..], &[0; 54]].concat()));
        // A checksum from byte 34 on, stored 16 bytes after that (virtio_net_hdr).
        batch.set_offload(0, Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]));
        bench.tx.send(&mut batch);
        let (slots, bytes) = come(&bench.ring);
        assert_eq!((slots[0].0, &bytes[..12], &bytes[62..64]), (72, &[0; 12][..], &[0xFF; 2][..]));
    }

    #[test]
    fn monitors_get_delivered_packets() {
        let mut bench = Bench::new("vale_delivery3", 0);
        bench.send(&[60; 14]);
        let mut monitor = Monitor::open("vale_delivery3:b", true, false, config("monitor")).unwrap();
        let (mut rx, mut batch) = (monitor.rx(0).unwrap(), Batch::new());
        bench.send(&[60]);
        rx.recv(&mut batch);
        assert_eq!(batch.len(), 0, "there was no room: the port has not received it");
        bench.release_all();
        bench.send(&[62, 5000]);
        rx.recv(&mut batch);
        assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [62, 5000]);
    }

    #[test]
    fn the_client_is_woken_and_delivery_ends_with_its_queue() {
        let mut bench = Bench::new("vale_delivery4", 0);
        bench.send(&[60]);
        assert!(!was_notified(&bench.client));
        ClientRing::begin(bench.ring.clone()).arm();
        bench.send(&[60]);
        assert!(!was_notified(&bench.client), "more packets may come");
        assert_eq!(bench.tx.unsent(), 1);
        bench.send(&[]);
        assert!(was_notified(&bench.client));
        assert_eq!(bench.tx.unsent(), 0);
        // A sender that continues to send also wakes the receiver.
        ClientRing::begin(bench.ring.clone()).forget_token();
        ClientRing::begin(bench.ring.clone()).arm();
        for chunk in 1..=WAKE_CHUNKS {
            bench.send(&[60]);
            assert_eq!(was_notified(&bench.client), chunk == WAKE_CHUNKS);
        }
        bench.queue = None;
        bench.send(&[60]);
        assert_eq!(bench.lens().len(), 3 + WAKE_CHUNKS);
        assert_eq!(bench.port.statistics().unwrap().rx_packets, 3 + WAKE_CHUNKS as u64);
        // A new queue gets packets through a channel again.
        let (mut rx, mut batch) = (bench.port.rx(0).unwrap(), Batch::new());
        bench.send(&[60]);
        assert_eq!((rx.recv(&mut batch), bench.lens().len()), (1, 3 + WAKE_CHUNKS));
    }
}
