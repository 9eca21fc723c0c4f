//! Compares vector paths with the scalar path: whatever the card writes, all paths must produce the same packets,
//! buffers, descriptors and counters.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;

use fake::{Fake, RING, words};
use linerate::Batch;
use linerate::memory::{PageSize, Pages, RegionOptions};
use linerate::port::Vectors;
use linerate::spec::descriptor::receive;
use proptest::prelude::*;

#[path = "../benches/fake/mod.rs"]
mod fake;
mod paths;

/// A step of a card or its driver.
#[derive(Clone, Debug)]
enum Step {
    /// The card writes back these words to its next receive descriptors.
    Receive(Vec<u64>),
    /// The card completes all transmit descriptors.
    Sent,
    /// The program receives, sends, and clears its batch.
    Recv,
    Send,
    Clear,
    /// The program makes packets: their count and length.
    Alloc(usize, usize),
    /// The program makes a packet of this length, which may need several buffers.
    Push(usize),
    /// The program starts a new batch of this capacity.
    Batch(usize),
}

/// Returns words, mostly of complete packets, but also other valid words and invalid ones.
fn word() -> impl Strategy<Value = u64> {
    let whole = receive::DD | receive::EOP;
    let len = prop_oneof![20 => 60u64..=1518, 1 => Just(0u64), 1 => 1u64..=60, 1 => 1519u64..=65_535];
    let status = prop_oneof![
        40 => Just(whole),
        2 => Just(receive::DD),
        1 => Just(whole | receive::RXE_82599),
        1 => Just(0),
        1 => any::<u64>().prop_map(|noise| noise & !receive::LENGTH_MASK),
        4 => any::<u64>().prop_map(move |noise| noise & 0xFFFF_0000_DFFF_FFFC | whole),
    ];
    (len, status).prop_map(|(len, status)| status | len << receive::LENGTH_SHIFT)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => proptest::collection::vec(word(), 1..80).prop_map(Step::Receive),
        3 => Just(Step::Sent),
        6 => Just(Step::Recv),
        4 => Just(Step::Send),
        1 => Just(Step::Clear),
        2 => (1usize..50, prop_oneof![0usize..20, 60usize..=1920]).prop_map(|(count, len)| Step::Alloc(count, len)),
        1 => (1usize..9000).prop_map(Step::Push),
        1 => prop_oneof![1usize..=12, 30usize..=70, 200usize..=300].prop_map(Step::Batch),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Returns all observable state after each step.
fn trace(vectors: Vectors, buffers: usize, page: Option<usize>, steps: &[Step]) -> Vec<u64> {
    let pages = Pages::Only(PageSize::Ordinary);
    let region = RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None };
    let mut fake = Fake::seeing(vectors, &region, page);
    let mut batch = Batch::with_capacity(32);
    let look = |fake: &Fake, batch: &mut Batch| {
        let mut hash = DefaultHasher::new();
        let (rings, packets) = fake.card.memory();
        let mix = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        words(rings, 0, RING * 4).iter().fold(0, |sum, word| mix(sum, word.load(Relaxed))).hash(&mut hash);
        let first = words(packets, 0, 1).as_ptr().addr();
        for packet in batch.packets() {
            packet.len().hash(&mut hash);
            packet.slots().hash(&mut hash);
            (packet.as_ptr().addr() - first).hash(&mut hash);
        }
        (batch.len(), batch.cached(), fake.pool().available()).hash(&mut hash);
        format!("{:?}", fake.statistics()).hash(&mut hash);
        hash.finish()
    };
    let mut seen = Vec::new();
    for step in steps {
        match step {
            Step::Receive(words) => fake.card.receive_words(words),
            Step::Sent => drop(fake.card.complete_transmit()),
            Step::Recv => {
                let (before, received) = (batch.len(), fake.rx.recv(&mut batch));
                assert_eq!(batch.len(), before + received);
            }
            Step::Send => {
                let (before, sent) = (batch.len(), fake.tx.send(&mut batch));
                assert_eq!(batch.len(), before - sent);
            }
            Step::Clear => batch.clear(),
            Step::Alloc(count, len) => drop(batch.alloc(&fake.pool(), *count, *len)),
            Step::Push(len) => drop(batch.push(&fake.pool(), &vec![*len as u8; *len])),
            Step::Batch(capacity) => batch = Batch::with_capacity(*capacity),
        }
        seen.push(look(&fake, &mut batch));
    }
    seen
}

#[test]
fn all_paths_do_the_same() {
    let buffers = prop_oneof![Just(RING + 34), Just(RING + 100), Just(1024)];
    let page = prop::sample::select(vec![None, Some(4 << 10), Some(64 << 10)]);
    paths::all_do_the_same(&(buffers, page, steps()), |vectors, (buffers, page, steps)| {
        trace(vectors, *buffers, *page, steps)
    });
}

#[test]
fn small_batches_share_a_doorbell_and_none_is_left_out() {
    for vectors in [Vectors::Scalar, Vectors::Best] {
        for size in [1, 5, 16, 32] {
            let mut fake = Fake::with(vectors, &RegionOptions::default());
            let mut batch = Batch::with_capacity(size);
            fake.card.complete_receive(100);
            let (mut rung, mut tail, mut received) = (0, fake.card.receive_tail(), 0);
            assert_eq!(tail as usize, RING - 1);
            while fake.rx.recv(&mut batch) > 0 {
                received += batch.len();
                batch.clear();
                rung += usize::from(fake.card.receive_tail() != tail);
                tail = fake.card.receive_tail();
                let given = (tail as usize + 1) % RING;
                assert!(given <= received && received - given < 16 + size, "{given} of {received}");
            }
            assert_eq!(
                (received, fake.card.receive_tail() as usize),
                (100, 99),
                "the rest is given once no packet comes"
            );
            assert_eq!(rung, 100 / size / 16usize.div_ceil(size), "batches of {size}");
        }
    }
}
