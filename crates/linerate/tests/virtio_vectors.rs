//! Compares VirtIO's vector paths with the scalar path: whatever the device returns, in whatever order, all paths must
//! produce the same packets, buffers, rings and counters.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fake_virtio::{COMMON, HEADER, MERGEABLE, Memory, PACKED, Queue, SPLIT, set_buffers, words};
use linerate::Batch;
use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Device, Vectors};
use proptest::prelude::*;

#[path = "../benches/fake_virtio/mod.rs"]
mod fake_virtio;
mod paths;

/// Number of descriptors per ring.
const RING: usize = 64;

/// A step of a device or its driver.
#[derive(Clone, Debug)]
enum Step {
    /// The device receives packets: the bytes written, and the number of buffers in the packet's header.
    Receive(Vec<(u32, u16)>),
    /// The device fetches this many buffers and moves the first one to the end.
    Skip(usize),
    /// The device completes this many available packets, beginning with the one at this position.
    Sent(usize, usize),
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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A header of 12 bytes, and packets of up to 1,518.
    const LONGEST: u32 = 12 + 1518;
    let written = prop_oneof![
        30 => 72..=LONGEST,
        1 => LONGEST..=LONGEST + 1,
        1 => Just(12u32),
        1 => 0u32..12,
        1 => LONGEST + 1..=70_000,
    ];
    let buffers = prop_oneof![60 => Just(1u16), 1 => Just(0u16), 1 => Just(2u16), 1 => any::<u16>()];
    let step = prop_oneof![
        6 => prop::collection::vec((written, buffers), 1..60).prop_map(Step::Receive),
        1 => (1usize..6).prop_map(Step::Skip),
        5 => (1usize..64, prop_oneof![9 => Just(0usize), 1 => 0usize..5]).prop_map(|(count, first)| Step::Sent(count, first)),
        6 => Just(Step::Recv),
        4 => Just(Step::Send),
        1 => Just(Step::Clear),
        2 => (1usize..50, prop_oneof![0usize..20, 60usize..=1920]).prop_map(|(count, len)| Step::Alloc(count, len)),
        1 => (1usize..9000).prop_map(Step::Push),
        1 => prop_oneof![1usize..=12, 30usize..=70].prop_map(Step::Batch),
    ];
    prop::collection::vec(step, 1..100)
}

/// Returns all observable state after each step.
fn trace(vectors: Vectors, features: u32, page: Option<usize>, steps: &[Step]) -> Vec<u64> {
    let pages = Pages::Only(PageSize::Ordinary);
    let region = Region::new(&RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None }).unwrap();
    let (mut device, pool) = (Memory::new(features), Pool::new(region));
    Arc::get_mut(&mut device).unwrap().page = page;
    device.set_32(COMMON + 24, RING as u32);
    let config = Options { ring: Some(RING), vectors, ..Options::default() }.of_port("fake", pool.clone()).unwrap();
    let mut port = fake_virtio::open(&device, config).unwrap();
    let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
    let [mut rx_end, mut tx_end] = Queue::pair(&device, RING, features & PACKED == PACKED);
    let [packets, rings] = [0, 1].map(|index| device.mapped.lock().unwrap()[index].clone());
    let (mut batch, mut waiting, mut given) = (Batch::with_capacity(32), VecDeque::new(), VecDeque::new());
    let mut seen = Vec::new();
    for step in steps {
        match step {
            Step::Receive(frames) => {
                for &(written, buffers) in frames {
                    let Some(chain) = waiting.pop_front().or_else(|| rx_end.accept()) else { break };
                    set_buffers(&packets, chain.address as u32 as usize, buffers);
                    rx_end.finish(chain, written);
                }
            }
            Step::Skip(place) => {
                waiting.extend(std::iter::from_fn(|| rx_end.accept()).take(*place));
                if !waiting.is_empty() {
                    waiting.rotate_left(1);
                }
            }
            Step::Sent(count, first) => {
                given.extend(std::iter::from_fn(|| tx_end.accept()));
                for at in (0..*count).map(|number| if number == 0 { *first } else { 0 }) {
                    let Some(chain) = given.remove(at) else { break };
                    tx_end.finish(chain, 0);
                }
            }
            Step::Recv => {
                let (before, received) = (batch.len(), rx.recv(&mut batch));
                assert_eq!(batch.len(), before + received);
            }
            Step::Send => {
                let (before, sent) = (batch.len(), tx.send(&mut batch));
                assert_eq!(batch.len(), before - sent);
            }
            Step::Clear => batch.clear(),
            Step::Alloc(count, len) => drop(batch.alloc(&pool, *count, *len)),
            Step::Push(len) => drop(batch.push(&pool, &vec![*len as u8; *len])),
            Step::Batch(capacity) => batch = Batch::with_capacity(*capacity),
        }
        let mut hash = DefaultHasher::new();
        words(&rings, 0, rings.len() / 8).iter().for_each(|word| word.load(Relaxed).hash(&mut hash));
        let first = words(&packets, 0, 1).as_ptr().addr();
        for packet in batch.packets() {
            (packet.len(), packet.slots(), packet.as_ptr().addr() - first).hash(&mut hash);
        }
        (batch.len(), batch.cached(), pool.available(), rx.buffers(), tx.buffers()).hash(&mut hash);
        format!("{:?} {:?}", port.statistics().unwrap(), port.queue_statistics()).hash(&mut hash);
        seen.push(hash.finish());
        let held = pool.available() + batch.len() + batch.cached() + rx.buffers() + tx.buffers();
        assert_eq!(held, 512, "a buffer is lost or duplicated");
    }
    // Buffers returned out of order are freed once all are returned.
    given.extend(std::iter::from_fn(|| tx_end.accept()));
    given.iter().for_each(|chain| tx_end.finish(*chain, 0));
    batch.clear();
    tx.send(&mut batch);
    assert_eq!(tx.buffers(), 0);
    for chain in &given {
        let header = chain.address as u32 as usize;
        assert!(
            (0..HEADER).all(|at| words(&packets, (header + at) & !7, 1)[0].load(Relaxed) >> ((header + at) % 8 * 8)
                & 0xFF
                == 0)
        );
    }
    seen
}

#[test]
fn all_paths_do_the_same() {
    let features = prop::sample::select(vec![SPLIT, PACKED, SPLIT | MERGEABLE, PACKED | MERGEABLE]);
    let page = prop::sample::select(vec![None, Some(4 << 10), Some(64 << 10)]);
    paths::all_do_the_same(&(features, page, steps()), |vectors, (features, page, steps)| {
        trace(vectors, *features, *page, steps)
    });
}
