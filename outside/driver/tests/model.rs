//! The driver on the model of the 82599, which reports each action that the datasheet forbids.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::{Config, Device, Link, Port, TxQueue};
use linerate_core::{Batch, ErrorKind};
use linerate_sim82599::{Card, CardBar, Frame, from_fn};
use outside_driver::Driver;

/// Frames of both directions of a wire.
#[derive(Default)]
struct Wire {
    /// Frames for the card.
    coming: VecDeque<Vec<u8>>,
    /// Frames that the card sent.
    sent: VecDeque<Vec<u8>>,
}

/// Creates a card, and the frames on its wire.
fn card(name: &str) -> (Arc<Card>, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire::default()));
    let (to, from) = (wire.clone(), wire.clone());
    let ends = from_fn(
        move |frame| to.lock().unwrap().sent.push_back(frame.bytes.clone()),
        move |frame| {
            let next = from.lock().unwrap().coming.pop_front();
            next.map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some()
        },
    );
    (Card::new(name, ends), wire)
}

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn open(card: &Arc<Card>, config: Config) -> linerate_core::Result<Driver<CardBar>> {
    // SAFETY: only the driver uses these registers. Its rings are in memory that belongs to no region.
    let bar = unsafe { card.claim_bar(None) }.expect("the card is free");
    Driver::open(bar, card.bus(), config)
}

/// Sends all packets of a batch.
#[track_caller]
fn send_all(card: &Card, tx: &mut TxQueue, batch: &mut Batch) {
    for _ in 0..1000 {
        tx.send(batch);
        card.step(64);
        if batch.is_empty() {
            return;
        }
    }
    panic!("{} packets are not sent", batch.len());
}

/// Returns frame number `n`. Lengths are from 60 to 1,500 bytes; each frame has other bytes than its neighbours.
fn frame(n: u32) -> Vec<u8> {
    let len = 60 + (n as usize * 331) % 1441;
    let mut state = n.wrapping_mul(0x9E37_79B9) | 1;
    let mut bytes = Vec::with_capacity(len + 4);
    while bytes.len() < len {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}

#[test]
fn frames_are_forwarded_unchanged_and_in_order() {
    const FRAMES: u32 = 100_000;
    const BUFFERS: usize = 4096;
    let ((card, wire), pool) = (card("forward"), pool(BUFFERS));
    let mut port = Port::new(open(&card, Config::new("forward", pool.clone())).unwrap());
    assert_eq!(port.link().unwrap(), Link::Up { mbits: 10_000 });
    let (mut rx, mut tx, mut batch) = (port.rx(0).unwrap(), port.tx(0).unwrap(), Batch::new());
    let (mut put, mut checked, mut bytes, mut rounds) = (0, 0, 0, 0);
    while checked < FRAMES {
        rounds += 1;
        assert!(rounds < FRAMES, "only {checked} frames were forwarded: {:?}", port.statistics());
        {
            let mut wire = wire.lock().unwrap();
            while put < FRAMES && wire.coming.len() < 64 {
                wire.coming.push_back(frame(put));
                put += 1;
            }
            for sent in wire.sent.drain(..) {
                assert!(sent == frame(checked), "frame {checked} differs");
                bytes += sent.len() as u64;
                checked += 1;
            }
        }
        card.step(64);
        rx.recv(&mut batch);
        tx.send(&mut batch);
    }
    let statistics = port.statistics().unwrap();
    assert_eq!((statistics.rx_packets, statistics.tx_packets), (FRAMES.into(), FRAMES.into()));
    assert_eq!((statistics.rx_bytes, statistics.tx_bytes), (bytes, bytes));
    assert!(statistics.drops.by_cause().iter().all(|(_, count)| *count == 0), "{:?}", statistics.drops);
    rx.stop().unwrap();
    tx.stop().unwrap();
    drop((batch, port));
    assert_eq!(card.breaches(), []);
    assert_eq!(pool.available(), BUFFERS);
}

#[test]
fn short_packets_are_padded_and_long_packets_are_dropped() {
    let ((card, wire), own, other) = (card("lengths"), pool(2048), pool(256));
    let mut port = Port::new(open(&card, Config::new("lengths", own.clone())).unwrap());
    let mut tx = port.tx(0).unwrap();
    // Old contents of buffers must not be sent.
    let mut all = Batch::with_capacity(2048);
    while all.push(&own, &[0xFF; 1522]) {}
    drop(all);
    // Packets of another region are copied, and long packets of it are chains.
    for pool in [&own, &other] {
        let mut batch = Batch::new();
        for len in [1, 14, 16, 17, 60, 1522, 1523, 4000] {
            assert!(batch.push(pool, &vec![len as u8; len]));
        }
        send_all(&card, &mut tx, &mut batch);
        let sent: Vec<Vec<u8>> = wire.lock().unwrap().sent.drain(..).collect();
        // The card pads all frames to 60 bytes.
        assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [60, 60, 60, 60, 60, 1522]);
        for (frame, len) in sent.iter().zip([1, 14, 16, 17, 60, 1522]) {
            assert!(frame[..len].iter().all(|byte| *byte == len as u8) && frame[len..].iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(port.statistics().unwrap().drops.tx_too_long, 4);
    drop((tx, port));
    assert_eq!(card.breaches(), []);
    assert_eq!((own.available(), other.available()), (2048, 256));
}

#[test]
fn an_exhausted_pool_or_a_full_ring_loses_no_frame() {
    let ((card, wire), pool) = (card("small"), pool(128));
    let mut config = Config::new("small", pool.clone());
    config.options.ring = Some(64);
    let mut port = Port::new(open(&card, config).unwrap());
    let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
    (0..300).for_each(|n| wire.lock().unwrap().coming.push_back(frame(n)));
    // The program keeps all packets until the pool is empty.
    let mut kept: Vec<Batch> = Vec::new();
    for _ in 0..20 {
        card.step(64);
        let mut batch = Batch::with_capacity(16);
        if rx.recv(&mut batch) > 0 {
            kept.push(batch);
        }
    }
    assert!(port.statistics().unwrap().drops.no_buffer > 0, "{:?}", port.statistics());
    let mut next = 0;
    kept.iter_mut().for_each(|batch| send_all(&card, &mut tx, batch));
    drop(kept);
    let (mut batch, mut rounds) = (Batch::new(), 0);
    while next < 300 {
        rounds += 1;
        assert!(rounds < 10_000, "frame {next} does not arrive");
        rx.recv(&mut batch);
        tx.send(&mut batch);
        card.step(64);
        for sent in wire.lock().unwrap().sent.drain(..) {
            assert!(sent == frame(next), "frame {next} differs");
            next += 1;
        }
    }
    drop((rx, tx, batch, port));
    assert_eq!(card.breaches(), []);
    assert_eq!(pool.available(), 128);
}

#[test]
fn a_full_ring_keeps_its_packets_until_the_card_has_sent_them() {
    let ((card, wire), pool) = (card("full"), pool(128));
    let mut config = Config::new("full", pool.clone());
    config.options.ring = Some(64);
    let mut port = Port::new(open(&card, config).unwrap());
    let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::with_capacity(16));
    let (mut pushed, mut accepted) = (0, 0);
    for _ in 0..20 {
        while batch.push(&pool, &frame(pushed)) {
            pushed += 1;
        }
        accepted += tx.send(&mut batch);
    }
    // The card has not moved a frame. One descriptor is never used.
    assert_eq!((accepted, tx.buffers(), batch.len()), (63, 63, 16));
    drop(batch);
    // The queue stops once the card has sent all frames.
    tx.stop().unwrap();
    assert!(wire.lock().unwrap().sent.iter().eq((0..63).map(frame).collect::<Vec<_>>().iter()));
    drop(port);
    assert_eq!(card.breaches(), []);
    assert_eq!(pool.available(), 128);
}

#[test]
fn queues_start_again_and_have_one_owner() {
    let ((card, wire), pool) = (card("again"), pool(2048));
    let mut device = open(&card, Config::new("again", pool.clone())).unwrap();
    for round in 0..3 {
        let (mut rx, mut tx) = (device.rx(0).unwrap(), device.tx(0).unwrap());
        assert_eq!(device.rx(0).map(drop).unwrap_err().kind(), ErrorKind::QueueTaken);
        assert_eq!(device.tx(1).map(drop).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(device.reset().unwrap_err().kind(), ErrorKind::InUse);
        wire.lock().unwrap().coming.push_back(frame(round));
        card.step(64);
        let mut batch = Batch::new();
        assert_eq!((rx.recv(&mut batch), tx.send(&mut batch)), (1, 1));
        card.step(64);
        assert_eq!(wire.lock().unwrap().sent.pop_front(), Some(frame(round)));
        drop((rx, tx, batch));
        assert_eq!(pool.available(), 2048);
        device.reset().unwrap();
    }
    drop(device);
    assert_eq!(card.breaches(), []);
}

#[test]
fn a_queue_that_does_not_stop_keeps_its_buffers_until_a_reset() {
    let ((card, _wire), pool) = (card("stuck"), pool(2048));
    let mut device = open(&card, Config::new("stuck", pool.clone())).unwrap();
    let rx = device.rx(0).unwrap();
    card.set_stuck(Some(linerate_spec::x82599::RXDCTL::OFFSET));
    let error = rx.stop().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.to_string().contains("RXDCTL[0]"), "{error}");
    assert_eq!(pool.available(), 2048 - 512);
    card.set_stuck(None);
    device.reset().unwrap();
    assert_eq!(pool.available(), 2048);
    drop(device);
    assert_eq!(card.breaches(), []);
}

#[test]
fn a_card_that_is_gone_is_an_error() {
    let ((card, _wire), pool) = (card("gone"), pool(2048));
    let mut device = open(&card, Config::new("gone", pool.clone())).unwrap();
    let mut rx = device.rx(0).unwrap();
    card.unplug();
    assert_eq!(rx.recv(&mut Batch::new()), 0);
    assert_eq!(device.link().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(device.statistics().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(rx.stop().unwrap_err().kind(), ErrorKind::Gone);
}

#[test]
fn settings_that_are_not_possible_are_errors() {
    let error = |change: fn(&mut Config)| {
        let (card, _wire) = card("settings");
        let mut config = Config::new("settings", pool(256));
        change(&mut config);
        let error = open(&card, config).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption);
        error.with_hint()
    };
    assert!(error(|config| config.options.rx_queues = 2).contains("2 receive queues are not possible"));
    assert!(error(|config| config.options.ring = Some(100)).contains("a power of two"));
    assert!(error(|config| config.options.max_frame = 1920).contains("larger buffers"));
    assert!(error(|config| config.options.max_frame = 20_000).contains("at most 9728"));
}

#[test]
fn a_card_has_one_driver() {
    let (card, _wire) = card("single");
    let device = open(&card, Config::new("single", pool(256))).unwrap();
    let second = Config::new("second", pool(256));
    assert_eq!(linerate_sim82599::drive_model(&card, None, second).map(drop).unwrap_err().kind(), ErrorKind::InUse);
    drop(device);
    assert!(linerate_sim82599::drive_model(&card, None, Config::new("third", pool(256))).is_ok());
}
