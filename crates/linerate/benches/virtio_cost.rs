//! What VirtIO's queues cost per packet: receive, touch one byte, send, where a bare loop in the same thread is the device
//! (64-byte packets, queues of 512). TSC cycles per packet, the best of many rounds, and beside them the bound: the cheapest
//! loop that reads and writes the same rings and headers. `cargo bench --bench virtio_cost`

mod fake_virtio;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fake_virtio::{AVAILABLE, HEADER, Memory, NUM_BUFFERS, PACKED, Queue, SPLIT, USED};
use linerate::memory::{Mapping, Pool, Region, RegionOptions};
use linerate::nic::Config;
use linerate::nic::virtio::Virtio;
use linerate::port::{Device, RxQueue, TxQueue};
use linerate::{Batch, HEADROOM};

const RING: usize = 512;
/// Packets in one round: half a ring, so that both rings are never full.
const ROUND: usize = 256;
const ROUNDS: usize = 3000;
const WRITTEN: u32 = HEADER as u32 + 60;
/// In the second half of the features.
const MERGEABLE: u32 = 1 << 15;

fn main() {
    let clock = quanta::Clock::new();
    let stamp = || clock.raw();
    let overhead = (0..10_000).map(|_| (stamp(), stamp())).map(|(a, b)| b - a).min().unwrap_or(0) as f64;
    for (name, features) in [("split", SPLIT), ("packed", PACKED)] {
        for mergeable in [false, true] {
            for batch_size in [1, 8, 32, 64, 256] {
                let features = features | if mergeable { MERGEABLE } else { 0 };
                let calls = ROUND / batch_size;
                let mut card = Card::new(features);
                let mut batch = Batch::with_capacity(batch_size);
                let mut total = f64::MAX;
                for _ in 0..ROUNDS {
                    card.complete_receive();
                    let start = stamp();
                    for _ in 0..calls {
                        card.forward(&mut batch);
                    }
                    let cycles = (stamp() - start) as f64 - overhead;
                    assert_eq!(card.tx_end.finish(RING, 0, |_| ()), ROUND);
                    total = total.min(cycles / ROUND as f64);
                }
                let mut bound = f64::MAX;
                let mut cheapest = Cheapest { card: Card::new(features), next: 0, mergeable };
                for round in 0..ROUNDS {
                    if round > 0 {
                        cheapest.card.tx_end.finish(RING, 0, |_| ());
                    }
                    cheapest.card.complete_receive();
                    let start = stamp();
                    for _ in 0..calls {
                        cheapest.forward(batch_size);
                    }
                    bound = bound.min(((stamp() - start) as f64 - overhead) / ROUND as f64);
                }
                let ratio = total / bound;
                println!(
                    "ring={name} mergeable={mergeable} batch={batch_size} total={total:.1} bound={bound:.1} ratio={ratio:.2}"
                );
            }
        }
    }
}

/// The driver on a device of memory, and the device's ends of its queues.
struct Card {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    rx_end: Queue,
    tx_end: Queue,
    packets: Arc<Mapping>,
    _port: Virtio,
}

impl Card {
    fn new(features: u32) -> Card {
        let device = Memory::new(features);
        device.set_32(fake_virtio::COMMON + 24, RING as u32);
        let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
        let mut port = Virtio::open(&device.device(), Config { ring: RING, ..Config::new("fake", pool) }).unwrap();
        let (rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let [rx_end, tx_end] = Queue::pair(&device, RING, features & PACKED == PACKED);
        let packets = device.mapped.lock().unwrap()[0].clone();
        Card { rx, tx, rx_end, tx_end, packets, _port: port }
    }

    /// A round of packets of 60 bytes, each in one buffer, as the header says.
    fn complete_receive(&mut self) {
        let packets = &self.packets;
        let received = self.rx_end.finish(ROUND, WRITTEN, |address| {
            let at = address as u32 as usize + NUM_BUFFERS;
            let word = &packets.words(at & !7, 1)[0];
            word.store(word.load(Relaxed) & !(0xFFFF << (at % 8 * 8)) | 1 << (at % 8 * 8), Relaxed);
        });
        assert_eq!(received, ROUND);
    }

    #[inline(never)]
    fn forward(&mut self, batch: &mut Batch) {
        self.rx.recv(batch);
        for bytes in &mut *batch {
            bytes[48] = bytes[48].wrapping_add(1);
        }
        self.tx.send(batch);
        batch.clear();
    }
}

/// What no driver can leave out: read what the device has finished with; read and clear each packet's header; write a new
/// buffer's address for each buffer received, and address and length for each packet sent; read which packets were sent;
/// and say what there is for the device, and ask whether it wants to be told. Addresses are computed, not looked up, and all
/// comes in the order in which it went.
struct Cheapest {
    card: Card,
    next: usize,
    mergeable: bool,
}

impl Cheapest {
    #[inline(never)]
    fn forward(&mut self, count: usize) {
        let first = self.next % RING;
        self.next += count;
        let words = self.card.packets.words(0, RING * 2048 / 8);
        let packets = words[first * 256..].chunks_exact(256).take(count);
        const HEADER_AT: usize = HEADROOM / 8;
        let packets = packets.inspect(|packet| {
            if self.mergeable {
                black_box(packet[HEADER_AT + 1].load(Relaxed));
            }
            packet[HEADER_AT + 7].store(packet[HEADER_AT + 7].load(Relaxed) + 1, Relaxed);
            packet[HEADER_AT].store(0, Relaxed);
            packet[HEADER_AT + 1].store(0, Relaxed);
        });
        let address = |index: usize| (1 << 32) + (index * 2048) as u64;
        match (&self.card.rx_end, &self.card.tx_end) {
            (Queue::Split(rx), Queue::Split(tx)) => {
                black_box((rx.used[1].load(Acquire), tx.used[1].load(Acquire)));
                for (index, _) in packets.enumerate() {
                    let place = first + index;
                    let id = rx.used_ring[2 * place].load(Relaxed) as u16;
                    black_box(rx.used_ring[2 * place + 1].load(Relaxed));
                    rx.table[usize::from(id) % RING][0].store(address(place), Relaxed);
                    rx.available[2 + place].store(id, Relaxed);
                    let sent = tx.used_ring[2 * place].load(Relaxed) as u16;
                    let descriptor = &tx.table[usize::from(sent) % RING];
                    descriptor[0].store(address(place), Relaxed);
                    descriptor[1].store(u64::from(WRITTEN), Relaxed);
                    tx.available[2 + place].store(place as u16, Relaxed);
                }
                for queue in [rx, tx] {
                    let index = queue.available[1].load(Relaxed).wrapping_add(count as u16);
                    queue.available[1].store(index, SeqCst);
                    black_box(queue.used[0].load(SeqCst));
                }
            }
            (Queue::Packed { ring: rx, .. }, Queue::Packed { ring: tx, .. }) => {
                let odd = (self.next - count) / RING % 2 == 0;
                let (received_flags, flags) = if odd { (USED, AVAILABLE) } else { (AVAILABLE, USED) };
                for (index, _) in packets.enumerate() {
                    let place = first + index;
                    let received = rx[place][1].load(Acquire);
                    rx[place][0].store(address(place), Relaxed);
                    let word = received & 0xFFFF << 32 | 2 << 48 | 1932;
                    rx[place][1].store(word | received_flags, Release);
                    black_box(tx[place][1].load(Acquire));
                    tx[place][0].store(address(place), Relaxed);
                    tx[place][1].store(u64::from(WRITTEN) | (place as u64) << 32 | flags, Release);
                }
                for _ in 0..2 {
                    fence(SeqCst);
                }
            }
            _ => unreachable!("both are of one format"),
        }
    }
}
