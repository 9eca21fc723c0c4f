//! A hostile card, which writes random descriptors. The driver must not panic, return bytes beyond a buffer, or lose or
//! duplicate a buffer.

#[path = "../benches/fake/mod.rs"]
mod fake;

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use fake::{Fake, RING};
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::metadata::{Checksum, PacketKind};
use linerate::port::Vectors;
use linerate::spec::descriptor::{receive, transmit};
use linerate::{Batch, Options};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// The card writes word 1 of `count` descriptors, beginning with `at`; true selects the receive ring.
    Write(bool, usize, usize, u64),
    /// The card writes a coalesced packet: to each buffer the headers of a TCP packet of this length, and to the
    /// descriptors these counts of segments, lengths, next descriptors and status bits.
    Coalesce(u16, Vec<(u64, u64, u64, u64)>),
    Receive,
    Send,
    Clear,
}

/// Returns plausible descriptor words, and arbitrary ones.
fn words() -> impl Strategy<Value = u64> {
    let length = prop_oneof![0u64..=70, 1900u64..=2100, 0u64..=65_535];
    let receive = (length, 0u64..4, prop::bool::weighted(0.2))
        .prop_map(|(length, flags, error)| length << 32 | flags | if error { receive::RXE_82599 } else { 0 });
    prop_oneof![6 => receive, 2 => Just(transmit::DD), 1 => any::<u64>()]
}

/// Returns the fields of a descriptor of a coalesced packet, most of them plausible.
fn coalesced() -> impl Strategy<Value = (u64, u64, u64, u64)> {
    let length = prop_oneof![4 => Just(1024u64), 2 => 0u64..=1100, 1 => 0u64..=65_535];
    let next = prop_oneof![4 => 1u64..=3, 1 => 0u64..600, 1 => 0u64..65_536];
    let status =
        prop_oneof![3 => Just(receive::DD), 1 => Just(receive::DD | receive::EOP | receive::L4CS | receive::IPCS)];
    (0u64..16, length, next, status)
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (any::<bool>(), 0..RING, 1usize..200, words()).prop_map(|(rx, at, count, word)| Op::Write(rx, at, count, word)),
        2 => (any::<u16>(), prop::collection::vec(coalesced(), 1..40)).prop_map(|(len, parts)| Op::Coalesce(len, parts)),
        3 => Just(Op::Receive),
        3 => Just(Op::Send),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_break_nothing(
        ops in prop::collection::vec(ops(), 1..80),
        capacity in 1usize..100,
        offloads in any::<bool>(),
        metadata in any::<bool>(),
    ) {
        const BUFFERS: usize = 2048;
        let pages = Pages::Only(PageSize::Ordinary);
        let region = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&region).unwrap());
        let mut fake = Fake::opened(Options { offloads, metadata, ..Options::default() }, pool.clone(), None);
        let mut batch = Batch::with_capacity(capacity);
        for op in ops {
            match op {
                Op::Write(rx, at, count, word) => {
                    let ring = fake::words(fake.card.memory().0, if rx { 0 } else { RING * 16 }, RING * 2);
                    for n in 0..count {
                        ring[(at + n) % RING * 2 + 1].store(word, Relaxed);
                    }
                }
                Op::Coalesce(len, parts) => fake.card.coalesce(len, &parts),
                Op::Receive => {
                    fake.rx.recv(&mut batch);
                    let mut places = HashSet::new();
                    for packet in batch.packets() {
                        for bytes in packet.segments() {
                            prop_assert!(bytes.len() <= pool.region().room());
                            prop_assert!(bytes.is_empty() || places.insert(bytes.as_ptr()), "a buffer came twice");
                        }
                    }
                    // All returned bytes must be writable.
                    for bytes in batch.slots_mut() {
                        bytes.fill(0xFF);
                    }
                }
                Op::Send => {
                    fake.tx.send(&mut batch);
                }
                Op::Clear => batch.clear(),
            }
            let held = fake.rx.buffers() + fake.tx.buffers() + batch.len() + batch.cached();
            prop_assert_eq!(held + pool.available(), BUFFERS);
        }
        drop(batch);
        drop(fake);
        prop_assert_eq!(pool.available(), BUFFERS);
    }
}

/// Coalesced packets that the card cannot have received are dropped and counted, and the others are delivered.
#[test]
fn malformed_coalesced_packets_are_dropped() {
    const DONE: u64 = receive::DD;
    const END: u64 = receive::DD | receive::EOP | receive::L4CS | receive::IPCS;
    let begin = (3, 1024, 1, DONE);
    let end = (2, 100, 0, END);
    let chain = |count: usize| [vec![(2, 100, 1, DONE); count], vec![(2, 100, 0, END)]].concat();
    for (what, len, parts, coalesced, others, malformed) in [
        ("three segments", 1110, vec![begin, end], 1, 0, 0),
        ("a wrong length", 1109, vec![begin, end], 0, 0, 1),
        ("no verdict on the checksum", 1110, vec![begin, (2, 100, 0, END & !receive::L4CS)], 0, 0, 1),
        ("a wrong checksum", 1110, vec![begin, (2, 100, 0, END | receive::L4E_82599)], 0, 0, 1),
        ("a MAC error at the end", 1110, vec![begin, (2, 100, 0, END | receive::RXE_82599)], 0, 0, 1),
        ("a buffer that is too long", 1110, vec![begin, (2, 1025, 0, END)], 0, 0, 1),
        ("no payload", 40, vec![(3, 54, 0, END)], 0, 0, 1),
        ("a descriptor that continues in itself", 1110, vec![(3, 1024, 0, DONE), end], 0, 1, 1),
        ("one that continues outside the ring", 1110, vec![(3, 1024, RING as u64, DONE), end], 0, 1, 1),
        ("two that continue in the same one", 1110, vec![(3, 1024, 2, DONE), begin, end], 1, 0, 1),
        ("16 buffers", 1600 - 14, chain(15), 1, 0, 0),
        ("17 buffers", 1700 - 14, chain(16), 0, 0, 1),
        ("18 buffers", 1800 - 14, chain(17), 0, 0, 1),
        ("32 packets", 100, vec![(3, 10, 40, DONE); 32], 0, 0, 0),
        ("33 packets", 100, vec![(3, 10, 40, DONE); 33], 0, 0, 1),
    ] {
        let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
        let mut fake = Fake::opened(Options { offloads: true, ..Options::default() }, pool.clone(), None);
        // A single segment in front, so that the packet's descriptors are not the ring's first.
        fake.card.coalesce(60, &[end]);
        fake.card.coalesce(len, &parts);
        let mut batch = Batch::new();
        fake.rx.recv(&mut batch);
        let is_left = batch.packets().map(|packet| packet.offload().is_some()).collect::<Vec<_>>();
        let left = is_left.iter().filter(|&&left| left).count();
        assert_eq!((left, is_left.len() - 1 - left, fake.malformed()), (coalesced, others, malformed), "{what}");
        batch.clear();
        let held = fake.rx.buffers() + fake.tx.buffers() + batch.cached();
        assert_eq!(held + pool.available(), pool.region().buffers(), "{what}");
    }
}

/// A packet of two buffers whose end arrives later has the metadata of its end, also if the end could be a packet.
#[test]
fn a_packet_whose_end_is_late_has_metadata() {
    for vectors in [Vectors::Best, Vectors::Scalar] {
        let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
        let mut fake = Fake::opened(Options { metadata: true, vectors, ..Options::default() }, pool, None);
        let mut batch = Batch::new();
        for round in 0..RING {
            let at = 2 * round % RING;
            let write = |fake: &Fake, at: usize, words: [u64; 2]| {
                let ring = fake::words(fake.card.memory().0, 0, RING * 2);
                ring[2 * at].store(words[0], Relaxed);
                ring[2 * at + 1].store(words[1], Relaxed);
            };
            write(&fake, at, [0, receive::DD | 1000 << receive::LENGTH_SHIFT]);
            assert_eq!(fake.rx.recv(&mut batch), 0);
            let end = receive::DD | receive::EOP | receive::L4CS | 100 << receive::LENGTH_SHIFT;
            write(&fake, at + 1, [receive::TYPE_IPV4 | receive::TYPE_TCP, end]);
            assert_eq!(fake.rx.recv(&mut batch), 2);
            let packet = batch.packets().next().unwrap();
            let (metadata, kind) = (packet.metadata(), PacketKind(PacketKind::IPV4 | PacketKind::TCP));
            assert_eq!((metadata.checksum, metadata.kind, packet.len()), (Checksum::Good, Some(kind), 1100), "{round}");
            batch.clear();
        }
    }
}
