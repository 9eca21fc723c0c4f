//! A hostile card, which writes random descriptors. The driver must not panic, return bytes beyond a buffer, or lose or
//! duplicate a buffer.

#[path = "../benches/fake/mod.rs"]
mod fake;

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use fake::{Fake, RING};
use linerate::Batch;
use linerate::memory::{PageSize, Pages, RegionOptions};
use linerate::spec::descriptor::{receive, transmit};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// The card writes word 1 of `count` descriptors, beginning with `at`; true selects the receive ring.
    Write(bool, usize, usize, u64),
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

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (any::<bool>(), 0..RING, 1usize..200, words()).prop_map(|(rx, at, count, word)| Op::Write(rx, at, count, word)),
        3 => Just(Op::Receive),
        3 => Just(Op::Send),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_break_nothing(ops in prop::collection::vec(ops(), 1..80), capacity in 1usize..100) {
        const BUFFERS: usize = 2048;
        let pages = Pages::Only(PageSize::Ordinary);
        let mut fake = Fake::of(&RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None });
        let pool = fake.pool();
        let mut batch = Batch::with_capacity(capacity);
        for op in ops {
            match op {
                Op::Write(rx, at, count, word) => {
                    let ring = fake::words(fake.card.memory().0, if rx { 0 } else { RING * 16 }, RING * 2);
                    for n in 0..count {
                        ring[(at + n) % RING * 2 + 1].store(word, Relaxed);
                    }
                }
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
