//! The cards' clocks, and the times of packets, on models of each kind: the model's clock is the true time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Clock, Port};
use linerate::sim82599::{Card, CardKind, Frame, Wire};
use linerate_core::batch::Batch;
use linerate_core::packet::Origin;
use linerate_testkit::Deadline;

/// A tick of the clock, rounded up to nanoseconds; an X550 has ticks of 12.5 ns.
const TICK: u64 = 13;
const KINDS: [CardKind; 3] = [CardKind::X82599Sfp, CardKind::X540, CardKind::X550];

/// Frames that arrive at the card.
#[derive(Clone, Default)]
struct Arriving(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Wire for Arriving {
    fn transmit(&mut self, _: &Frame) {}

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let next = self.0.lock().unwrap().pop_front();
        next.map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some()
    }
}

/// Opens a card whose frames the test sends, and which the test steps.
fn open(kind: CardKind) -> (Arc<Card>, Arriving, Port, Arc<Pool>) {
    let arriving = Arriving::default();
    let card = Card::of_kind(kind, 0, "clock", Box::new(arriving.clone()));
    let pages = Pages::Only(PageSize::Ordinary);
    let pool =
        Pool::new(Region::new(&RegionOptions { buffers: 1024, buffer_size: 2048, pages, numa_node: None }).unwrap());
    let options = Options { metadata: true, ..Options::default() };
    let port = Port::new(linerate::drive_model(&card, None, options.of_port("clock", pool.clone()).unwrap()).unwrap());
    (card, arriving, port, pool)
}

/// Returns a frame of IEEE 1588, version 2: over Ethernet, or over UDP.
fn event(message: u8, is_udp: bool) -> Vec<u8> {
    let mut payload = vec![0; 46];
    payload[..2].copy_from_slice(&[message, 2]);
    if !is_udp {
        return [&[2; 12][..], &[0x88, 0xF7], &payload].concat();
    }
    let mut frame = Vec::new();
    let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [224, 0, 1, 129], 1);
    headers.udp(319, 319).write(&mut frame, &payload).unwrap();
    frame
}

/// Returns the result of `read`, and the clock's times before and after it.
fn between<T>(clock: &Clock, read: impl FnOnce() -> T) -> (T, std::ops::RangeInclusive<u64>) {
    let before = clock.now().unwrap();
    let result = read();
    (result, before - TICK..=clock.now().unwrap() + TICK)
}

#[test]
fn the_clock_is_exact_to_a_tick() {
    for kind in KINDS {
        let (card, _, port, _) = open(kind);
        let clock = port.clock().unwrap();
        let system = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        assert!(clock.now().unwrap().abs_diff(system) < 60_000_000_000, "{kind:?}: it begins with the system's time");
        for parts in [0, 50_000_000, -50_000_000] {
            clock.set_rate(parts).unwrap();
            clock.set(1_000_000_000).unwrap();
            let outer = Instant::now();
            let first = clock.now().unwrap();
            let inner = Instant::now();
            while inner.elapsed() < Duration::from_millis(5) {}
            let least = inner.elapsed();
            let last = clock.now().unwrap();
            let most = outer.elapsed();
            let scaled = |time: Duration| time.as_nanos() as i128 * (1_000_000_000 + i128::from(parts)) / 1_000_000_000;
            let passed = i128::from(last - first);
            let slack = 2 * i128::from(TICK);
            assert!(
                (scaled(least) - slack..=scaled(most) + slack).contains(&passed),
                "{kind:?} at {parts}: {passed} between {least:?} and {most:?}"
            );
        }
        clock.set(5_000_000_000).unwrap();
        clock.adjust(-4_000_000_000).unwrap();
        let now = clock.now().unwrap();
        assert!((1_000_000_000..1_000_000_000 + 60_000_000_000).contains(&now), "{now}");
        assert_eq!(card.breaches(), []);
    }
}

#[test]
fn a_sent_packet_has_its_time() {
    for kind in KINDS {
        let (card, _, mut port, pool) = open(kind);
        let (clock, mut tx, mut batch) = (port.clock().unwrap(), port.tx(0).unwrap(), Batch::new());
        let mut send = |len: usize, requests: bool, leaves: bool| {
            let mut udp = Vec::new();
            let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
            headers.udp(7, 9).write(&mut udp, &vec![7; len - 42]).unwrap();
            batch.push(&pool, &udp);
            for mut packet in batch.packets() {
                if requests {
                    packet.request_timestamp();
                }
                if leaves {
                    packet.leave_checksum().unwrap();
                }
            }
            let slots = batch.len();
            let ((), range) = between(&clock, || {
                assert_eq!(tx.send(&mut batch), slots);
                card.step(64);
            });
            let sent = clock.sent().unwrap();
            assert_eq!(sent.is_some(), requests, "{kind:?}: {len} bytes, {leaves}");
            assert!(sent.is_none_or(|sent| range.contains(&sent)), "{kind:?}: {sent:?}, {range:?}");
        };
        for len in [60, 1514] {
            for leaves in [false, true] {
                send(len, false, leaves);
                send(len, true, leaves);
            }
        }
        assert_eq!(card.breaches(), []);
    }
}

/// The card notes one sent packet until its time is read; a port without a clock sends the packet, too.
#[test]
fn one_packet_at_a_time_is_noted() {
    let (card, _, mut port, pool) = open(CardKind::X82599Sfp);
    let (clock, mut tx, mut batch) = (port.clock().unwrap(), port.tx(0).unwrap(), Batch::new());
    let ((), range) = between(&clock, || {
        batch.push(&pool, &[7; 60]);
        batch.packets().for_each(|mut packet| packet.request_timestamp());
        tx.send(&mut batch);
        card.step(64);
    });
    let between_both = clock.now().unwrap();
    batch.push(&pool, &[7; 60]);
    batch.packets().for_each(|mut packet| packet.request_timestamp());
    tx.send(&mut batch);
    card.step(64);
    let first = clock.sent().unwrap().unwrap();
    assert!(range.contains(&first) && first <= between_both + TICK);
    assert_eq!(clock.sent().unwrap(), None);
    assert_eq!(card.breaches(), []);
    let [mut a, mut b] = linerate::open(["valeCL:a", "valeCL:b"]).unwrap();
    let (mut tx, mut rx) = (a.tx(0).unwrap(), b.rx(0).unwrap());
    batch.push(a.pool(), &[0xFF; 60]);
    batch.packets().for_each(|mut packet| packet.request_timestamp());
    assert_eq!((tx.send(&mut batch), rx.recv(&mut batch)), (1, 1));
    assert_eq!(batch.packets().next().unwrap()[..], [0xFF; 60]);
}

#[test]
fn a_received_event_has_its_time() {
    for kind in KINDS {
        let (card, arriving, mut port, _) = open(kind);
        let (clock, mut rx, mut batch) = (port.clock().unwrap(), port.rx(0).unwrap(), Batch::new());
        let mut receive = |frame: Vec<u8>| {
            arriving.0.lock().unwrap().push_back(frame);
            let (received, range) = between(&clock, || {
                card.step(64);
                rx.recv(&mut batch)
            });
            assert_eq!(received, 1);
            let packet = batch.packets().next().unwrap();
            let (time, origin) = (packet.timestamp(), packet.origin());
            batch.clear();
            assert!(time.is_none_or(|time| range.contains(&time) && origin == Origin::Card), "{kind:?}: {time:?}");
            time.is_some()
        };
        for is_udp in [false, true] {
            assert!((0..4).all(|message| receive(event(message, is_udp))), "{kind:?}: events, UDP: {is_udp}");
            assert!(!receive(event(0xB, is_udp)), "{kind:?}: an announcement");
        }
        assert!(!receive(vec![7; 60]));
        assert_eq!(card.breaches(), []);
    }
}

/// An event that is dropped after the card has noted its time does not keep the card from noting others.
#[test]
fn the_time_of_a_dropped_event_is_given_up() {
    let (card, arriving, mut port, _) = open(CardKind::X82599Sfp);
    let mut batch = Batch::new();
    let arrive = |frames: usize| {
        arriving.0.lock().unwrap().extend((0..frames).map(|_| event(0, false)));
        card.step(64);
    };
    let rx = port.rx(0).unwrap();
    arrive(1);
    drop(rx); // with the event
    let mut rx = port.rx(0).unwrap();
    arrive(1);
    assert_eq!(rx.recv(&mut batch), 1);
    assert_eq!(batch.packets().next().unwrap().timestamp(), None);
    let deadline = Deadline::begin();
    loop {
        deadline.check(|| "an event with a time, after the statistics were read");
        port.statistics().unwrap();
        batch.clear();
        arrive(1);
        rx.recv(&mut batch);
        if batch.packets().next().is_some_and(|packet| packet.timestamp().is_some()) {
            break;
        }
    }
    assert_eq!(card.breaches(), []);
}
