//! The cost of VirtIO's queues per packet: receive, touch one byte, send. A bare loop in the same thread acts as the
//! device (64-byte packets, queues of 512). Results are TSC cycles per packet, the best of many rounds, and a lower
//! bound: the cheapest loop that reads and writes the same rings and headers. `cargo bench --bench virtio_cost`

mod fake_virtio;

use std::hint::black_box;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use fake_virtio::{AVAILABLE, Card, MERGEABLE, PACKED, Packed, Queue, RING, SPLIT, USED, WRITTEN};
use linerate::port::Vectors;
use linerate::{Batch, HEADROOM};

/// Packets per round: half a ring, so that no ring is ever full.
const ROUND: usize = 256;
const ROUNDS: usize = 3000;
/// A word used only for a locked swap.
static ORDER: AtomicU32 = AtomicU32::new(0);
/// The minimum number of buffers for any driver: a full receive ring, and a round in flight.
const BUFFERS: usize = RING + ROUND;

fn main() {
    let paths = [("scalar", Vectors::Scalar), ("avx2", Vectors::Avx2), ("avx512", Vectors::Avx512)];
    for (path, vectors) in paths.into_iter().filter(|(_, path)| path.is_supported()) {
        for (ring, features) in [("split", SPLIT | MERGEABLE), ("packed", PACKED | MERGEABLE)] {
            for batch_size in [1, 8, 16, 32, 64, 256] {
                let total = cost(&mut Card::new(vectors, features), ROUND / batch_size, {
                    let mut batch = Batch::with_capacity(batch_size);
                    move |card| card.forward(&mut batch)
                });
                let bound = cost(&mut Card::new(vectors, features), ROUND / batch_size, {
                    let mut cheapest = Cheapest { next: 0 };
                    move |card| cheapest.forward(card, batch_size)
                });
                let ratio = total / bound;
                println!(
                    "path={path} ring={ring} batch={batch_size} total={total:.1} bound={bound:.1} ratio={ratio:.2}"
                );
            }
        }
    }
}

/// Returns the cycles per packet of the best of many rounds, each of `calls` calls.
fn cost(card: &mut Card, calls: usize, mut forward: impl FnMut(&mut Card)) -> f64 {
    let clock = quanta::Clock::new();
    let overhead = (0..10_000).map(|_| (clock.raw(), clock.raw())).map(|(a, b)| b - a).min().unwrap_or(0);
    let mut best = u64::MAX;
    for _ in 0..ROUNDS {
        card.complete_receive(ROUND);
        let start = clock.raw();
        (0..calls).for_each(|_| forward(card));
        best = best.min(clock.raw() - start - overhead);
        card.complete_transmit();
    }
    best as f64 / ROUND as f64
}

/// Does the minimum that every driver must do. It reads the used entries, and reads and clears each packet's header. It
/// writes a new buffer's address for each received buffer, and address and length for each sent packet. It reads which
/// packets were sent, publishes the available index, and checks whether to notify the device. Addresses are computed,
/// not looked up, and buffers are used in order.
struct Cheapest {
    next: usize,
}

impl Cheapest {
    #[inline(never)]
    fn forward(&mut self, card: &Card, count: usize) {
        let (first, buffer) = (self.next % RING, self.next % BUFFERS);
        self.next += count;
        let words = fake_virtio::words(&card.packets, 0, BUFFERS * 2048 / 8);
        let packets = words[buffer * 256..].chunks_exact(256).take(count);
        const HEADER_AT: usize = HEADROOM / 8;
        let packets = packets.inspect(|packet| {
            black_box(packet[HEADER_AT + 1].load(Relaxed));
            packet[HEADER_AT + 7].store(packet[HEADER_AT + 7].load(Relaxed) + 1, Relaxed);
            packet[HEADER_AT].store(0, Relaxed);
            packet[HEADER_AT + 1].store(0, Relaxed);
        });
        let address = |index: usize| (1 << 32) + (index * 2048) as u64;
        match (&card.rx_end, &card.tx_end) {
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
                // Only the transmit queue needs a reliable check whether to notify the device; the receive queue checks
                // again.
                for (queue, order) in [(rx, Release), (tx, SeqCst)] {
                    let index = queue.available[1].load(Relaxed).wrapping_add(count as u16);
                    queue.available[1].store(index, order);
                    black_box(queue.used[0].load(Relaxed));
                }
            }
            (Queue::Packed(Packed { ring: rx, .. }), Queue::Packed(Packed { ring: tx, .. })) => {
                let odd = ((self.next - count) / RING).is_multiple_of(2);
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
                // As above: a locked instruction orders stores before loads, and is cheaper than a fence.
                ORDER.swap(1, SeqCst);
            }
            _ => unreachable!("both are of one format"),
        }
    }
}
