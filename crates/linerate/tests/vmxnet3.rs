//! The driver for vmxnet3 with a device of memory: what it tells the device, and what it does if the device violates
//! its specification.
#![allow(unsafe_code)]

#[path = "../benches/fake_vmxnet3/mod.rs"]
mod fake_vmxnet3;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fake_vmxnet3::{Device, Queue, open, words};
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::metadata::{Checksum, HashFields};
use linerate::port::{Device as _, Link, Rss};
use linerate::spec::vmxnet3::descriptor::{completion, transmit};
use linerate::spec::vmxnet3::{command, pt, queue, rss, shared};
use linerate::{Batch, ErrorKind, Options};
use proptest::prelude::*;

const BUFFERS: usize = 2048;
const RING: usize = 64;

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn options() -> Options {
    Options { ring: Some(RING), ..Options::default() }
}

#[test]
fn the_shared_area_describes_queues_filters_and_hashes() {
    let device = Arc::new(Device::default());
    let (mut port, [pt, _]) = open(&device, options().with_queues(4), pool()).unwrap();
    assert!(device.commands().starts_with(&[command::QUIESCE_DEV, command::RESET_DEV, command::ACTIVATE_DEV]));
    let word = |at: usize| u32::from_le_bytes(device.bytes(at));
    assert_eq!((word(shared::MAGIC), word(shared::MTU)), (shared::REV1_MAGIC, 1500));
    assert_eq!(device.bytes(shared::MAX_RX_BUFFERS), [1, 0, 4, 4]);
    assert_eq!(u64::from_le_bytes(device.bytes(shared::FEATURES)), shared::F_RSS);
    assert!(linerate::pci::Bar::read(&pt, pt::IMR::at(0)) == pt::IMR::MASKED);
    let at = device.offset(shared::QUEUE_DESC);
    assert_eq!([0, 4].map(|queue| word(at + queue * queue::LEN + queue::COMPLETIONS_LEN)), [64, 128]);

    // The device receives once all queues of the table have started.
    let table = || device.bytes::<{ rss::MAX_TABLE }>(device.offset(shared::RSS) + rss::TABLE);
    let mut rx: Vec<_> = (0..3).map(|queue| port.rx(queue).unwrap()).collect();
    assert_eq!(word(shared::RX_MODE), 0);
    rx.push(port.rx(3).unwrap());
    assert_eq!(word(shared::RX_MODE), 0x1F);
    assert_eq!(table()[..5], [0, 1, 2, 3, 0]);
    assert!(device.commands().ends_with(&[command::UPDATE_RX_MODE]));
    port.set_promiscuous(false).unwrap();
    port.set_all_multicast(true).unwrap();
    assert_eq!(word(shared::RX_MODE), 0x0F);
    let group = "01:00:5e:00:00:05".parse().unwrap();
    port.set_addresses(&[group]).unwrap();
    assert_eq!(
        (device.bytes::<2>(shared::MULTICAST_LEN), device.bytes(device.offset(shared::MULTICAST))),
        ([6, 0], group.0)
    );
    assert_eq!(port.set_addresses(&["02:00:00:00:00:05".parse().unwrap()]).unwrap_err().kind(), ErrorKind::Exhausted);
    port.set_vlans(Some(&[33])).unwrap();
    assert_eq!([0, 1, 2].map(|n| word(shared::VLANS + 4 * n)), [1, 2, 0]);

    // A stopped queue receives nothing more, and cannot start again until the device is reset.
    drop(rx.pop());
    assert_eq!(table()[..5], [0, 1, 2, 0, 0]);
    assert_eq!(port.rx(3).map(drop).unwrap_err().kind(), ErrorKind::QueueTaken);
    assert_eq!(port.reset().unwrap_err().kind(), ErrorKind::InUse);
    let other_key = Rss { key: [7; 40], ..Rss::evenly(4) };
    assert_eq!(port.set_rss(&other_key).unwrap_err().kind(), ErrorKind::InUse);
    device.commands();
    drop(rx);
    assert!(device.commands().contains(&command::RESET_DEV), "all queues are dropped");
    port.set_rss(&other_key).unwrap();
    assert_eq!(device.bytes(device.offset(shared::RSS) + rss::KEY), [7; 40]);
    let rx: Vec<_> = (0..4).map(|queue| port.rx(queue).unwrap()).collect();
    assert_eq!(word(shared::RX_MODE), 0x0F, "filters survive a reset");
    drop(rx);
    device.answer(|answers| answers.link = 10_000 << 16 | 1);
    assert_eq!(port.link().unwrap(), Link::Up { mbits: 10_000 });
}

#[test]
fn packets_of_all_lengths_pass_in_both_directions() {
    let (device, pool) = (Arc::new(Device::default()), pool());
    let options = Options { max_frame: 9018, metadata: true, ..options() };
    let (mut port, _) = open(&device, options, pool.clone()).unwrap();
    let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
    let (mut sends, mut receives) = (device.queue(0), device.queue(1));
    let mut batch = Batch::new();
    // One descriptor of each ring is the driver's.
    let given = |mut end: Queue| [0, 1].map(|which| std::iter::from_fn(|| end.pop(which)).count());
    assert_eq!(given(device.queue(1)), [RING - 1; 2]);
    for round in 0..1000 {
        let packet: Vec<u8> = (0..1 + round * 37 % 9018).map(|n| (n + round) as u8).collect();
        assert!(receives.receive(0, 1, &packet), "round {round}");
        rx.recv(&mut batch);
        let mut bytes = Vec::new();
        batch.packets().for_each(|packet| packet.append_to(&mut bytes));
        assert!(bytes == packet, "round {round}");
        tx.send(&mut batch);
        assert_eq!(sends.send().map(|(bytes, _)| bytes == packet), Some(true), "round {round}");
        assert_eq!(batch.len(), 0);
    }
    assert_eq!(given(receives), [RING - 1; 2]);
    drop((rx, tx, batch));
    assert_eq!(pool.available(), BUFFERS);
}

#[test]
fn verdicts_hashes_and_offloads_are_passed_on() {
    let (device, pool) = (Arc::new(Device::default()), pool());
    let (mut port, _) = open(&device, Options { metadata: true, ..options() }, pool.clone()).unwrap();
    let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
    let (mut sends, mut receives) = (device.queue(0), device.queue(1));
    let mut batch = Batch::new();
    const OK: u64 = completion::V4 | completion::IPC | completion::TCP | completion::TUC;
    for (first, second, checksum) in [
        (0, OK, Checksum::Good),
        (0, OK & !completion::TUC, Checksum::Bad),
        (0, OK & !completion::IPC, Checksum::Bad),
        (0, OK | completion::FRG, Checksum::Unknown),
        (completion::CNC, OK, Checksum::Unknown),
        (0, completion::V4 | completion::IPC, Checksum::Unknown),
    ] {
        let (index, ..) = receives.pop(0).unwrap();
        let hash = 2 << completion::RSS_TYPE_SHIFT | 0xABCD << completion::RSS_HASH_SHIFT;
        receives.complete(index | completion::SOP | completion::EOP | first | hash, second | 60);
        assert_eq!(rx.recv(&mut batch), 1);
        let metadata = batch.packets().next().unwrap().metadata();
        let hash = metadata.hash.map(|hash| (hash.value, hash.fields));
        assert_eq!((metadata.checksum, hash), (checksum, Some((0xABCD, HashFields::TcpIpv4))));
        batch.clear();
    }
    let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    let mut tcp = Vec::new();
    headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &[7; 1000]).unwrap();
    for segment in [None, std::num::NonZeroU16::new(400)] {
        assert!(batch.push(&pool, &tcp));
        let mut packet = batch.packets().next().unwrap();
        match segment {
            None => packet.leave_checksum().unwrap(),
            Some(size) => packet.leave_segments(size).unwrap(),
        }
        tx.send(&mut batch);
        let (bytes, word) = sends.send().unwrap();
        let (offset, place) = (word >> transmit::HEADERS_SHIFT & 0x3FF, word >> transmit::MSS_SHIFT & 0x3FFF);
        let mode = word & transmit::OM_TSO;
        match segment {
            None => assert_eq!((mode, offset, place), (transmit::OM_CSUM, 34, 50)),
            Some(size) => assert_eq!((mode, offset, place), (transmit::OM_TSO, 54, size.get().into())),
        }
        assert_eq!((bytes.len(), &bytes[16..18]), (tcp.len(), &tcp[16..18]), "the length of IPv4");
    }
}

/// A device that does not confirm a reset keeps the buffers, until one succeeds.
#[test]
fn buffers_are_quarantined_until_the_device_confirms_its_reset() {
    let (device, pool) = (Arc::new(Device::default()), pool());
    let (mut port, _) = open(&device, options(), pool.clone()).unwrap();
    let rx = port.rx(0).unwrap();
    let taken = BUFFERS - pool.available();
    device.answer(|answers| answers.refused = Some(command::RESET_DEV));
    assert_eq!(rx.stop().unwrap_err().kind(), ErrorKind::BadDevice);
    assert_eq!(pool.available(), BUFFERS - taken);
    assert!(port.rx(0).is_err());
    device.answer(|answers| answers.is_gone = true);
    assert_eq!(port.reset().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(port.statistics().unwrap_err().kind(), ErrorKind::Gone);
    device.answer(|answers| (answers.is_gone, answers.refused) = (false, None));
    port.reset().unwrap();
    assert_eq!(pool.available(), BUFFERS);
    let rx = port.rx(0).unwrap();
    device.answer(|answers| answers.is_gone = true);
    drop((rx, port));
    assert_eq!(pool.available(), BUFFERS - taken, "the device is gone, and may still write");
}

#[test]
fn a_device_that_lacks_a_version_or_refuses_to_start_is_an_error() {
    let device = Arc::new(Device::default());
    device.answer(|answers| answers.missing_versions = 1);
    let error = open(&device, options(), pool()).map(drop).unwrap_err();
    assert!(error.why().contains("VRRS does not offer version 1"), "{error}");
    device.answer(|answers| (answers.missing_versions, answers.refused) = (0, Some(command::ACTIVATE_DEV)));
    let error = open(&device, options(), pool()).map(drop).unwrap_err();
    assert!(error.why().contains("ACTIVATE_DEV"), "{error}");
    device.answer(|answers| answers.is_gone = true);
    assert_eq!(open(&device, options(), pool()).map(drop).unwrap_err().kind(), ErrorKind::Gone);
}

/// Counters are summed over resets, whether the device clears them or not.
#[test]
fn counters_and_errors_of_queues_are_read_from_the_queue_descriptors() {
    let device = Arc::new(Device::default());
    let (mut port, _) = open(&device, options(), pool()).unwrap();
    let write = |queue: usize, counters: [u64; 10]| {
        let at = device.offset(shared::QUEUE_DESC) + queue * queue::LEN + queue::STATS;
        words(&device.memory(), at, 10).iter().zip(counters).for_each(|(word, value)| word.store(value, Relaxed));
    };
    let (tx, rx) = ([0, 0, 1, 10, 2, 20, 3, 30, 4, 5], [0, 0, 7, 70, 8, 80, 9, 90, 6, 11]);
    for resets in 1..=2 {
        write(0, tx);
        write(1, rx);
        let counted = port.statistics().unwrap();
        assert_eq!((counted.tx_packets, counted.tx_bytes), (6 * resets, 60 * resets));
        assert_eq!((counted.rx_packets, counted.rx_bytes), (24 * resets, 240 * resets));
        assert_eq!((counted.drops.no_descriptor, counted.drops.bad_frame), (6 * resets, 11 * resets));
        assert!(port.register_counters().unwrap().contains(&("pktsTxDiscard[0]".to_string(), 5 * resets)));
        port.reset().unwrap();
    }
    device.memory().word(shared::EVENTS).store(shared::ECR_TQERR, Relaxed);
    assert_eq!(port.link().unwrap_err().kind(), ErrorKind::NeedsReset);
    port.reset().unwrap();
    assert!(port.link().is_ok());
}

/// Each malformed completion is counted once, and packets before and after it are delivered.
#[test]
fn malformed_completions_are_counted_and_harmless() {
    use completion::{EOP, ERR, SOP};
    let body = |index: u64| index | 1 << completion::QUEUE_SHIFT;
    // Completions: word 0, and word 1 without its generation. How many packets are delivered, malformed, and too long;
    // whether the queue still works afterwards.
    for (what, completions, delivered, malformed, too_long, works) in [
        ("a packet", vec![(SOP | EOP, 60)], 1, 0, 0, true),
        ("a chain", vec![(SOP, 1000), (body(0) | EOP, 60)], 1, 0, 0, true),
        ("no bytes", vec![(SOP | EOP, 0)], 0, 1, 0, true),
        ("more bytes than the buffer has", vec![(SOP | EOP, 16_383)], 0, 1, 0, true),
        ("an error", vec![(SOP | EOP, 60 | ERR)], 0, 1, 0, true),
        ("an error at the end", vec![(SOP, 60), (body(0) | EOP, 60 | ERR)], 0, 1, 0, true),
        ("no beginning", vec![(body(0) | EOP, 60)], 0, 1, 0, true),
        ("no beginning, and no end", vec![(body(0), 60), (SOP | EOP, 60)], 1, 1, 0, true),
        ("no end", vec![(SOP, 60), (1 | SOP | EOP, 60)], 1, 1, 0, true),
        ("a beginning in ring 1", vec![(body(0) | SOP | EOP, 60)], 0, 1, 0, true),
        ("a body in ring 0", vec![(SOP, 60), (1 | EOP, 60)], 0, 1, 0, true),
        (
            "a packet that is too long",
            [vec![(SOP, 1700)], (0..6).map(|n| (body(n), 1700)).collect()].concat(),
            0,
            0,
            1,
            true,
        ),
        ("descriptors that are passed over", vec![(5 | SOP | EOP, 60)], 1, 0, 0, true),
        ("a descriptor outside the ring", vec![(64 | SOP | EOP, 60)], 0, 1, 0, false),
        ("the last index", vec![(4095 | SOP | EOP, 60)], 0, 1, 0, false),
        ("a descriptor of the driver", vec![(63 | SOP | EOP, 60)], 0, 1, 0, false),
        ("another queue", vec![(7 << completion::QUEUE_SHIFT | SOP | EOP, 60)], 0, 1, 0, false),
    ] {
        let (device, pool) = (Arc::new(Device::default()), pool());
        let (mut port, _) = open(&device, Options { max_frame: 9018, ..options() }, pool.clone()).unwrap();
        let (mut rx, mut end, mut batch) = (port.rx(0).unwrap(), device.queue(1), Batch::new());
        let last = completions.last().map_or(0, |(first, _)| first & completion::INDEX_MASK);
        for &(first, second) in &completions {
            end.complete(first, second);
            rx.recv(&mut batch);
        }
        let drops = port.statistics().unwrap().drops;
        assert_eq!((drops.malformed, drops.oversize), (malformed, too_long), "{what}");
        assert_eq!(batch.packets().count(), delivered, "{what}");
        if last < 64 {
            let mut next = completions.iter().filter(|(first, _)| first >> completion::QUEUE_SHIFT & 0x3FF == 0);
            let next = next.next_back().map_or(0, |(first, _)| (first & 0xFFF) + 1);
            end.complete((next % 64) | SOP | EOP, 60);
            rx.recv(&mut batch);
            assert_eq!(batch.packets().count(), delivered + usize::from(works), "{what}, then a packet");
        }
        batch.clear();
        drop((rx, batch));
        assert_eq!(pool.available(), BUFFERS, "{what}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// The device writes a word anywhere in the shared memory.
    Scribble(usize, u64),
    /// The device completes in the receive queue (true) or the transmit queue.
    Complete(bool, u64, u64),
    /// The device receives a packet of this length properly.
    Packet(usize),
    Receive,
    Send,
    Clear,
    Wait,
}

fn ops() -> impl Strategy<Value = Op> {
    let index = prop_oneof![4 => 0u64..8, 2 => 0u64..64, 1 => 0u64..4096];
    let first = (index, 0u64..4, 0u64..3)
        .prop_map(|(index, flags, queue)| index | flags << 14 | queue << completion::QUEUE_SHIFT);
    let second = prop_oneof![4 => 1u64..2000, 1 => any::<u64>()];
    prop_oneof![
        1 => (any::<usize>(), any::<u64>()).prop_map(|(at, word)| Op::Scribble(at, word)),
        4 => (prop::bool::weighted(0.8), first, second).prop_map(|(rx, first, second)| Op::Complete(rx, first, second)),
        4 => (1usize..9018).prop_map(Op::Packet),
        4 => Just(Op::Receive),
        3 => Just(Op::Send),
        1 => Just(Op::Clear),
        1 => Just(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_completions_break_nothing(
        ops in prop::collection::vec(ops(), 1..80),
        capacity in 1usize..100,
        metadata in any::<bool>(),
        mtu in prop_oneof![Just(1500usize), Just(9000)],
    ) {
        let (device, pool) = (Arc::new(Device::default()), pool());
        let options = Options { max_frame: mtu + 18, metadata, interrupts: Some(Default::default()), ..options() };
        let (mut port, _) = open(&device, options, pool.clone()).unwrap();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let (mut sends, mut receives) = (device.queue(0), device.queue(1));
        let memory = device.memory();
        let mut batch = Batch::with_capacity(capacity);
        for op in ops {
            match op {
                Op::Scribble(at, word) => {
                    let words = words(&memory, 0, memory.len() / 8);
                    words[at % words.len()].store(word, Relaxed);
                }
                Op::Complete(true, first, second) => receives.complete(first, second),
                Op::Complete(false, first, second) => sends.complete(first, second),
                // After a scribble, an address may be outside the packets.
                Op::Packet(len) => {
                    if let Some((index, ..)) = receives.pop(0) {
                        receives.complete(index | completion::SOP | completion::EOP, len as u64);
                    }
                }
                Op::Receive => {
                    rx.recv(&mut batch);
                    let mut places = HashSet::new();
                    for packet in batch.packets() {
                        let _ = packet.metadata();
                        prop_assert!(packet.len() <= mtu + 18);
                        for bytes in packet.segments() {
                            prop_assert!(bytes.len() <= pool.region().room());
                            prop_assert!(places.insert(bytes.as_ptr()), "a buffer came twice");
                        }
                    }
                    // All returned bytes must be writable.
                    for bytes in batch.slots_mut() {
                        bytes.fill(0xFF);
                    }
                }
                Op::Send => {
                    tx.send(&mut batch);
                }
                Op::Clear => batch.clear(),
                Op::Wait => {
                    let _ = (rx.arm().is_some(), port.link(), port.statistics());
                    rx.disarm();
                }
            }
            let held = rx.buffers() + tx.buffers() + batch.len() + batch.cached();
            prop_assert_eq!(held + pool.available(), BUFFERS);
        }
        drop((rx, tx, batch));
        prop_assert_eq!(pool.available(), BUFFERS);
    }
}
