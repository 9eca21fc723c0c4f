//! The driver's cost per packet: receive, touch one byte, send, on descriptors completed by a bare loop in the same
//! thread (64-byte packets, rings of 512, hot caches). TSC cycles per packet, the best and the median of many rounds,
//! next to the cheapest loop without vectors that reads and writes the same descriptors. Lines with `polls=1`: packets
//! come one by one, and each poll has room for a batch; what the card's loop takes alone is subtracted. Parts of small
//! batches contain what the fences of the stamps wait for.
//! `cargo bench --bench driver_cost`

mod fake;

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use fake::{Fake, RING, stamp, touch, words};
use linerate::Batch;
use linerate::memory::{Mapping, RegionOptions};
use linerate::port::Vectors;
use linerate::spec::descriptor::{receive, transmit};

/// Packets in one round: half a ring, so that both rings are never full.
const ROUND: usize = 256;
const ROUNDS: usize = 3000;

fn main() {
    let overhead = (0..10_000).map(|_| (stamp(), stamp())).map(|(a, b)| b - a).min().unwrap_or(0) as f64;
    let paths = [("scalar", Vectors::Scalar), ("avx2", Vectors::Avx2), ("avx512", Vectors::Avx512)];
    let there = paths.into_iter().filter(|(_, path)| path.is_there());
    there.clone().for_each(|path| [1, 32].into_iter().for_each(|room| singly(path, room)));
    let sizes = [1, 4, 8, 16, 32, 64, 128, 256];
    // Behind an IOMMU packets are contiguous for the card; over uio they are in hugepages.
    let cases = there.flat_map(|path| [None, Some(2 << 20)].map(|page| (path, page)));
    for (((path, vectors), page), batch_size) in cases.flat_map(|case| sizes.map(|size| (case, size))) {
        let memory = page.map_or("one piece", |_| "hugepages");
        let mut fake = Fake::seeing(vectors, &RegionOptions::default(), page);
        let mut batch = Batch::with_capacity(batch_size);
        let calls = ROUND / batch_size;

        // The total, with two stamps a round.
        let mut totals: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                fake.complete_receive(ROUND);
                let start = stamp();
                (0..calls).for_each(|_| fake.forward(&mut batch));
                let cycles = (stamp() - start) as f64 - overhead;
                assert_eq!(fake.complete_transmit(), ROUND);
                cycles / ROUND as f64
            })
            .collect();
        let (total, median) = best_and_median(&mut totals);

        // The parts, with four stamps a batch; the cost of the stamps is subtracted.
        let mut parts = [f64::MAX; 3];
        for _ in 0..ROUNDS {
            fake.complete_receive(ROUND);
            let mut sums = [0; 3];
            for _ in 0..calls {
                let stamps = [
                    stamp(),
                    {
                        fake.rx.recv(&mut batch);
                        stamp()
                    },
                    {
                        touch(&mut batch);
                        stamp()
                    },
                    {
                        fake.tx.send(&mut batch);
                        stamp()
                    },
                ];
                (0..3).for_each(|part| sums[part] += stamps[part + 1] - stamps[part]);
            }
            fake.complete_transmit();
            for (best, sum) in parts.iter_mut().zip(sums) {
                *best = best.min((sum as f64 - overhead * calls as f64).max(0.0) / ROUND as f64);
            }
        }

        // The bounds, with and without the touch.
        let (rings, packets) = fake.memory();
        let mut bounds = [f64::MAX; 2];
        for round in 0..ROUNDS * 2 {
            let position = round / 2 * ROUND % RING;
            complete(rings, position);
            let touched = if round % 2 == 0 { Some(packets) } else { None };
            let start = stamp();
            for call in 0..calls {
                cheapest(rings, touched, position + call * batch_size, batch_size);
            }
            let cycles = (stamp() - start) as f64 - overhead;
            bounds[round % 2] = bounds[round % 2].min(cycles / ROUND as f64);
        }

        let [receive, touch, send] = parts;
        println!(
            "path={path} memory={memory:?} batch={batch_size} receive={receive:.1} touch={touch:.1} send={send:.1} total={total:.1} \
             median={median:.1} bound={:.1} ratio={:.2} descriptors={:.1}",
            bounds[0],
            total / bounds[0],
            bounds[1],
        );
    }
}

/// Measures packets that come one by one, while each poll has room for `room`.
fn singly((name, vectors): (&str, Vectors), room: usize) {
    let mut fake = Fake::seeing(vectors, &RegionOptions::default(), None);
    let mut batch = Batch::with_capacity(room);
    let mut round = |is_forwarding: bool| {
        let start = stamp();
        for _ in 0..ROUND {
            fake.complete_receive(1);
            if is_forwarding {
                fake.forward(&mut batch);
            }
        }
        let cycles = (stamp() - start) as f64;
        (0..ROUND).for_each(|_| fake.forward(&mut batch));
        assert_eq!(fake.complete_transmit(), ROUND);
        cycles / ROUND as f64
    };
    let (mut with, mut without): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(|_| (round(true), round(false))).unzip();
    let ((best, median), alone) = (best_and_median(&mut with), best_and_median(&mut without));
    println!("path={name} room={room} polls=1 total={:.1} median={:.1}", best - alone.0, median - alone.1);
}

/// Returns the best and the median.
fn best_and_median(cycles: &mut [f64]) -> (f64, f64) {
    cycles.sort_by(f64::total_cmp);
    (cycles[0], cycles[cycles.len() / 2])
}

fn complete(rings: &Mapping, position: usize) {
    for index in 0..ROUND {
        let descriptor = words(rings, (position + index) % RING * 16, 2);
        descriptor[0].store(0, Relaxed);
        descriptor[1].store(receive::DD | receive::EOP | 60 << receive::LENGTH_SHIFT, Relaxed);
        words(rings, RING * 16 + (position + index) % RING * 16 + 8, 1)[0].store(transmit::DD, Relaxed);
    }
}

/// Does what no driver can omit. It reads each receive descriptor's status, writes a new buffer's address, and
/// clears the status. It writes each transmit descriptor, and reads the status of one per batch. It stores the
/// lengths, and as all forwarders here, touches a byte of each packet. Addresses are computed, not looked up.
#[inline(never)]
fn cheapest(rings: &Mapping, packets: Option<&Mapping>, position: usize, count: usize) {
    let first = position % RING;
    let receive_ring = words(rings, first * 16, count * 2);
    let transmit_ring = words(rings, RING * 16 + first * 16, count * 2);
    if transmit_ring[count * 2 - 1].load(Acquire) & transmit::DD == 0 {
        return;
    }
    let command = transmit::DTYP_DATA | transmit::DEXT | transmit::IFCS | transmit::EOP;
    let mut address = 0;
    if let Some(packets) = packets {
        let words = fake::words(packets, 0, RING * 2048 / 8);
        for packet in words[first * 256..].chunks_exact(256).take(count) {
            packet[22].store(packet[22].load(Relaxed) + 1, Relaxed);
        }
    }
    for (from, to) in receive_ring.chunks_exact(2).zip(transmit_ring.chunks_exact(2)) {
        let word = from[1].load(Acquire);
        if word & receive::DD == 0 {
            break;
        }
        let length = word >> receive::LENGTH_SHIFT & 0xFFFF;
        from[0].store(address, Relaxed);
        from[1].store(0, Relaxed);
        to[0].store(address, Relaxed);
        to[1].store(command | length | length << transmit::PAYLEN_SHIFT, Relaxed);
        address += 2048;
    }
}
