//! The driver's cost per packet: receive, touch one byte, send. A bare loop completes the descriptors (64-byte packets,
//! rings of 512). Results are TSC cycles per packet, the best and the median of many rounds, between fenced time
//! stamps.
//!
//! - `polls=1`: packets arrive one by one, and each poll has room for a batch. The cost of the card's loop alone is
//!   subtracted.
//! - `card=`: where the card's writes are: in this processor's caches (`near`), in another thread's (`far`), or in
//!   memory (`memory`). Buffers are used in address order, or in the order after long use (`aged`). `round_trip` is the
//!   time to the other thread's processor and back: a machine may move that thread between near and far processors.
//! - `buffers=`: several threads, each with a card, share a pool, compared with one thread that has the pool alone.
//!   `mean` includes the time in which threads wait for a processor.
//! - `left=`: cycles per byte to send packets of 60,000 bytes as segments of 1,448, left to the card or cut in software;
//!   and cycles per packet of 60 bytes whose checksum is whole, left to the card, or computed in software.
//! - `metadata=`: receiving with and without metadata, including the stamps' cost.
//! - `batch=`: the cost with hot caches, in the same thread, split into parts, and a lower bound: the cheapest loop
//!   that reads and writes the same descriptors with the path's vectors, and touches the packets. With small batches,
//!   parts include time that the stamps' fences wait.
//!
//! `cargo bench --bench driver_cost`
#![allow(unsafe_code)]

mod fake;

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Barrier};
use std::thread;

use fake::{Card, Fake, RING, Writes, stamp, touch, words};
use linerate::memory::{Mapping, Pool, Region, RegionOptions};
use linerate::port::Vectors;
use linerate::spec::descriptor::{receive, transmit};
use linerate::{Batch, Options};
use linerate_core::batch::Finished;
use linerate_core::offload::Offload;

/// Packets per round: half a ring, so that no ring is ever full.
const ROUND: usize = 256;
const ROUNDS: usize = 3000;

fn main() {
    let overhead = (0..10_000).map(|_| (stamp(), stamp())).map(|(a, b)| b - a).min().unwrap_or(0) as f64;
    let paths = [("scalar", Vectors::Scalar), ("avx2", Vectors::Avx2), ("avx512", Vectors::Avx512)];
    let there = paths.into_iter().filter(|(_, path)| path.is_supported());
    there.clone().for_each(|path| [1, 32].into_iter().for_each(|room| singly(path, room)));
    for path in there.clone() {
        for (card, writes) in [("near", Writes::Packets), ("far", Writes::Packets), ("memory", Writes::Memory)] {
            [false, true].into_iter().for_each(|aged| from_elsewhere(path, card, writes, aged));
        }
    }
    for path in there.clone() {
        [(2, 2048), (4, 4096)].into_iter().for_each(|(threads, buffers)| sharing(path, threads, buffers));
    }
    left();
    there.clone().for_each(metadata);
    let sizes = [1, 4, 8, 16, 32, 64, 128, 256];
    // With an IOMMU, packet memory is contiguous for the card; with uio it consists of hugepages.
    let cases = there.flat_map(|path| [None, Some(2 << 20)].map(|page| (path, page)));
    for (((path, vectors), page), batch_size) in cases.flat_map(|case| sizes.map(|size| (case, size))) {
        let memory = page.map_or("one piece", |_| "hugepages");
        let mut fake = Fake::seeing(vectors, &RegionOptions::default(), page);
        let mut batch = Batch::with_capacity(batch_size);
        let calls = ROUND / batch_size;

        // The total, with two stamps per round.
        let mut totals: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                fake.card.complete_receive(ROUND);
                let start = stamp();
                (0..calls).for_each(|_| fake.forward(&mut batch));
                let cycles = (stamp() - start) as f64 - overhead;
                assert_eq!(fake.card.complete_transmit(), ROUND);
                cycles / ROUND as f64
            })
            .collect();
        let (total, median) = best_and_median(&mut totals);

        // The parts, with four stamps per batch; the cost of the stamps is subtracted.
        let mut parts = [f64::MAX; 3];
        for _ in 0..ROUNDS {
            fake.card.complete_receive(ROUND);
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
            fake.card.complete_transmit();
            for (best, sum) in parts.iter_mut().zip(sums) {
                *best = best.min((sum as f64 - overhead * calls as f64).max(0.0) / ROUND as f64);
            }
        }

        // The bounds, with and without the touch.
        let (rings, packets) = fake.card.memory();
        let mut bounds = [f64::MAX; 2];
        for round in 0..ROUNDS * 2 {
            let position = round / 2 * ROUND % RING;
            complete(rings, position);
            let touched = if round % 2 == 0 { Some(packets) } else { None };
            let start = stamp();
            for call in 0..calls {
                cheapest(vectors, rings, touched, position + call * batch_size, batch_size);
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

/// Measures packets that arrive one by one, while each poll has room for `room` packets.
fn singly((name, vectors): (&str, Vectors), room: usize) {
    let mut fake = Fake::seeing(vectors, &RegionOptions::default(), None);
    let mut batch = Batch::with_capacity(room);
    let mut round = |is_forwarding: bool| {
        let start = stamp();
        for _ in 0..ROUND {
            fake.card.complete_receive(1);
            if is_forwarding {
                fake.forward(&mut batch);
            }
        }
        let cycles = (stamp() - start) as f64;
        (0..ROUND).for_each(|_| fake.forward(&mut batch));
        assert_eq!(fake.card.complete_transmit(), ROUND);
        cycles / ROUND as f64
    };
    let (mut with, mut without): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(|_| (round(true), round(false))).unzip();
    let ((best, median), alone) = (best_and_median(&mut with), best_and_median(&mut without));
    println!("path={name} room={room} polls=1 total={:.1} median={:.1}", best - alone.0, median - alone.1);
}

/// Measures receiving with and without metadata, in batches of 32.
fn metadata((name, vectors): (&str, Vectors)) {
    for is_noted in [false, true] {
        let options = Options { vectors, metadata: is_noted, ..Options::default() };
        let mut fake = Fake::opened(options, Pool::new(Region::new(&RegionOptions::default()).unwrap()), None);
        let mut batch = Batch::with_capacity(32);
        let rounds = (0..ROUNDS).map(|_| {
            fake.card.complete_receive(ROUND);
            let mut cycles = 0;
            for _ in 0..ROUND / 32 {
                let start = stamp();
                fake.rx.recv(&mut batch);
                cycles += stamp() - start;
                assert_eq!(batch.len(), 32);
                fake.tx.send(&mut batch);
            }
            fake.card.complete_transmit();
            cycles as f64 / ROUND as f64
        });
        let (best, median) = best_and_median(&mut rounds.collect::<Vec<_>>());
        println!("path={name} metadata={is_noted} receive={best:.1} median={median:.1}");
    }
}

/// Measures what a packet costs whose checksum or segmentation is left to the card.
fn left() {
    const CHECKSUM: Offload = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
    const SEGMENTS: Offload = Offload([1, 1, 54, 0, 0xA8, 5, 34, 0, 16, 0]);
    let mut headers = [0; 54];
    headers[12..15].copy_from_slice(&[8, 0, 0x45]);
    (headers[23], headers[46]) = (6, 5 << 4);
    let cost = |len: usize, count: usize, left: Option<Offload>, is_software: bool, is_tagged: bool| {
        let mut fake = Fake::new();
        let (pool, payload) = (fake.pool(), vec![1; len - headers.len()]);
        let mut batch = Batch::with_capacity(64);
        let rounds = (0..ROUNDS).map(|_| {
            for _ in 0..count {
                let parts = [&headers[..], &payload].into_iter();
                assert!(batch.push_parts(&pool, len, parts, left));
            }
            let start = stamp();
            let mut at = 0;
            if is_tagged {
                batch.packets().enumerate().for_each(|(tag, mut packet)| packet.insert_vlan(tag as u16).unwrap());
            }
            while is_software && at < batch.len() {
                match batch.slots()[at].is_unfinished() {
                    true => assert_eq!(batch.finish_packet(at), Finished::Done),
                    false => at += 1,
                }
            }
            fake.tx.send(&mut batch);
            let cycles = (stamp() - start) as f64;
            assert!(batch.is_empty());
            fake.card.complete_transmit();
            fake.tx.send(&mut batch);
            batch.clear();
            cycles / count as f64
        });
        best_and_median(&mut rounds.collect::<Vec<_>>())
    };
    for (what, is_software) in [("card", false), ("software", true)] {
        let (best, median) = cost(60_000, 1, Some(SEGMENTS), is_software, false);
        println!("left=segments to={what} per_byte={:.3} median={:.3}", best / 6e4, median / 6e4);
    }
    for (what, left, is_software) in
        [("whole", None, false), ("card", Some(CHECKSUM), false), ("software", Some(CHECKSUM), true)]
    {
        let (best, median) = cost(60, 32, left, is_software, false);
        println!("left=checksum to={what} per_packet={best:.1} median={median:.1}");
    }
    // The card would need a context descriptor for each of these, as for a checksum after other headers.
    let (best, median) = cost(60, 32, None, false, true);
    println!("left=tag to=software per_packet={best:.1} median={median:.1}");
}

/// Measures a card whose cache lines come from this processor's caches, another processor's, or memory.
fn from_elsewhere((name, vectors): (&str, Vectors), place: &str, writes: Writes, aged: bool) {
    const IDLE: u8 = 0;
    const WORK: u8 = 1;
    const ANSWER: u8 = 2;
    const END: u8 = 3;
    let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
    if aged {
        age(&pool);
    }
    let mut fake = Fake::sharing(vectors, pool, None);
    fake.card.writes = writes;
    let Fake { rx, tx, card, .. } = &mut fake;
    let mut batch = Batch::with_capacity(32);
    let complete = |card: &mut Card| {
        card.complete_transmit();
        card.complete_receive(ROUND);
    };
    let mut measure = |complete: &mut dyn FnMut()| {
        let rounds = (0..ROUNDS / 10).map(|_| {
            complete();
            let start = stamp();
            for _ in 0..ROUND / 32 {
                rx.recv(&mut batch);
                touch(&mut batch);
                tx.send(&mut batch);
            }
            (stamp() - start) as f64 / ROUND as f64
        });
        best_and_median(&mut rounds.collect::<Vec<_>>())
    };
    let (mut trips, turn) = (vec![f64::NAN], AtomicU8::new(IDLE));
    let (best, median) = if place == "far" {
        thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match turn.load(Acquire) {
                        IDLE => continue,
                        END => return,
                        WORK => complete(card),
                        _ => {}
                    }
                    turn.store(IDLE, Release);
                }
            });
            let ask = |what| {
                turn.store(what, Release);
                while turn.load(Acquire) != IDLE {}
            };
            let trip = |_| {
                let start = stamp();
                ask(ANSWER);
                (stamp() - start) as f64
            };
            trips = (0..ROUNDS).map(trip).collect();
            let measured = measure(&mut || ask(WORK));
            turn.store(END, Release);
            measured
        })
    } else {
        measure(&mut || complete(card))
    };
    let trip = match best_and_median(&mut trips) {
        (_, median) if median.is_finite() => format!(" round_trip={median:.0}"),
        _ => String::new(),
    };
    let order = if aged { "aged" } else { "in sequence" };
    println!("path={name} card={place} order={order:?} batch=32 total={best:.1} median={median:.1}{trip}");
}

/// Shuffles a pool's buffers, as long use does.
fn age(pool: &Arc<Pool>) {
    let buffers = pool.available();
    let mut batch = Batch::with_capacity(buffers);
    batch.alloc(pool, buffers, 60);
    let mut state = 1u64;
    while !batch.is_empty() {
        batch.retain(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 58 != 0
        });
    }
}

/// Measures threads that share a pool, each with a card.
fn sharing((name, vectors): (&str, Vectors), threads: usize, buffers: usize) {
    let processors = thread::available_parallelism().map_or(1, |count| count.get()).min(threads);
    let alone = shared_by(vectors, 1, 1, buffers);
    let all = shared_by(vectors, threads, processors, buffers);
    println!(
        "path={name} buffers={buffers} threads={threads} processors={processors} batch=32 total={:.1} median={:.1} mean={:.1} \
         alone={:.1} median={:.1} mean={:.1} ratio={:.2} median={:.2} mean={:.2}",
        all[0],
        all[1],
        all[2],
        alone[0],
        alone[1],
        alone[2],
        all[0] / alone[0],
        all[1] / alone[1],
        all[2] / alone[2],
    );
}

/// Returns the best and median cycles per packet of threads that share a pool, and the mean over the total time of the
/// processors.
fn shared_by(vectors: Vectors, threads: usize, processors: usize, buffers: usize) -> [f64; 3] {
    const ROUNDS: usize = 60_000;
    let pool = Pool::new(Region::new(&RegionOptions { buffers, ..RegionOptions::default() }).unwrap());
    let barrier = Barrier::new(threads);
    let thread = || {
        let mut fake = Fake::sharing(vectors, pool.clone(), None);
        let mut batch = Batch::with_capacity(32);
        barrier.wait();
        let begin = stamp();
        let round = |_| {
            fake.card.complete_receive(ROUND);
            let start = stamp();
            (0..ROUND / 32).for_each(|_| fake.forward(&mut batch));
            let cycles = stamp() - start;
            assert_eq!(fake.card.complete_transmit(), ROUND);
            cycles as f64 / ROUND as f64
        };
        ((0..ROUNDS).map(round).collect::<Vec<_>>(), begin, stamp())
    };
    let measured: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let begin = measured.iter().map(|(_, begin, _)| *begin).min().unwrap_or(0);
    let end = measured.iter().map(|(_, _, end)| *end).max().unwrap_or(0);
    let (best, median) = best_and_median(&mut measured.into_iter().flat_map(|(rounds, ..)| rounds).collect::<Vec<_>>());
    [best, median, (end - begin) as f64 * processors as f64 / (threads * ROUNDS * ROUND) as f64]
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

/// Does the minimum that every driver must do. It reads each receive descriptor's status, writes a new buffer's
/// address, and clears the status. It writes each transmit descriptor, and reads the status of one per batch. Like all
/// forwarders here, it touches a byte of each packet. Addresses are computed, not looked up, and no length is stored
/// for the program.
#[inline(never)]
fn cheapest(vectors: Vectors, rings: &Mapping, packets: Option<&Mapping>, position: usize, count: usize) {
    let first = position % RING;
    let transmit_ring = words(rings, RING * 16 + first * 16, count * 2);
    if transmit_ring[count * 2 - 1].load(Acquire) & transmit::DD == 0 {
        return;
    }
    if let Some(packets) = packets {
        let words = fake::words(packets, 0, RING * 2048 / 8);
        for packet in words[first * 256..].chunks_exact(256).take(count) {
            packet[22].store(packet[22].load(Relaxed) + 1, Relaxed);
        }
    }
    let [from, to] =
        [words(rings, first * 16, count * 2), transmit_ring].map(|ring| ring.as_ptr().cast::<[u64; 2]>().cast_mut());
    // SAFETY: the rings do not overlap, and only this thread uses them, without other references meanwhile.
    let [from, to] = unsafe { [from, to].map(|ring| std::slice::from_raw_parts_mut(ring, count)) };
    match vectors {
        // SAFETY: only paths that the processor supports are measured.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => unsafe { exchange_avx512(from, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => unsafe { exchange_avx2(from, to) },
        _ => exchange(from, to),
    };
}

/// As [`exchange`], compiled with 512-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn exchange_avx512(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) -> bool {
    exchange(from, to)
}

/// As [`exchange`], compiled with 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exchange_avx2(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) -> bool {
    exchange(from, to)
}

/// Receives packets, sends them, and gives other buffers to the card; returns whether all descriptors were done.
#[inline(always)]
fn exchange(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) -> bool {
    let command = transmit::DTYP_DATA | transmit::DEXT | transmit::IFCS | transmit::EOP;
    let mut done = receive::DD;
    for (n, (from, to)) in from.iter_mut().zip(to).enumerate() {
        let (word, address) = (from[1], n as u64 * 2048);
        let length = word >> receive::LENGTH_SHIFT & 0xFFFF;
        done &= word;
        *from = [address, 0];
        *to = [address, command | length | length << transmit::PAYLEN_SHIFT];
    }
    done != 0
}
