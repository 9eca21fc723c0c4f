//! The card's clock and timestamps, and pause frames.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate::memory::DmaMap;
use linerate::pci::Bar;
use linerate::sim82599::{Card, CardKind, Frame, Traffic};
use linerate::spec::descriptor::{receive, transmit};
use linerate::spec::x82599::*;
use linerate::traffic::Generator;
use linerate_testkit::Deadline;

use crate::bench::{Bench, PACKET, pattern, registers};

const ADVANCED: u32 = 2 | SRRCTL::DESCTYPE_ADVANCED;

fn time(bar: &impl Bar) -> u64 {
    let low = u64::from(bar.read(SYSTIML::OFFSET));
    low | u64::from(bar.read(SYSTIMH::OFFSET)) << 32
}

#[test]
fn the_clock_runs_at_the_rate_set_by_the_driver() {
    let bench = Bench::bare();
    let bar = &bench.bar;
    assert_eq!(time(bar), time(bar), "the clock stops while TIMINCA is 0");
    bar.write(SYSTIML::OFFSET, 5);
    bar.write(SYSTIMH::OFFSET, 7);
    assert_eq!(time(bar), 7 << 32 | 5);
    bar.write(TIMINCA::OFFSET, 1 << TIMINCA::PERIOD_SHIFT | 1);
    let deadline = Deadline::begin();
    while time(bar) <= 7 << 32 | 5 {
        deadline.check(|| "the clock goes on");
    }
    // Adjust in both directions, by more than the time that passes.
    let before = time(bar);
    bar.write(TIMADJL::OFFSET, 0);
    bar.write(TIMADJH::OFFSET, 1 << 16);
    assert!(time(bar) - before >= 1 << 48);
    bar.write(TIMADJL::OFFSET, 0);
    bar.write(TIMADJH::OFFSET, 1 << 31 | 1 << 16);
    assert!(time(bar) - before < 1 << 48);
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn an_x550_counts_nanoseconds() {
    let card = Card::of_kind(CardKind::X550, 0, "nanoseconds", Box::new(linerate::sim82599::Cable::unplugged()));
    let bar = registers(&card);
    let now = || {
        bar.read(SYSTIMR::OFFSET);
        let (low, high) = (bar.read(SYSTIML::OFFSET), bar.read(SYSTIMH::OFFSET));
        assert!(low < 1_000_000_000);
        (high, low)
    };
    bar.write(TSAUXC::OFFSET, TSAUXC::DISABLE_SYSTIME);
    bar.write(SYSTIML::OFFSET, 999_999_999);
    bar.write(SYSTIMH::OFFSET, 41);
    assert_eq!((now(), now()), ((41, 999_999_999), (41, 999_999_999)));
    bar.write(TSAUXC::OFFSET, 0);
    let deadline = Deadline::begin();
    while now().0 == 41 {
        deadline.check(|| "a second of the clock");
    }
    assert_eq!(card.breaches(), []);
}

/// Calls `read` twice; returns its results, and the minimum and maximum time between them.
fn between<T>(read: impl Fn() -> T) -> (T, T, Duration, Duration) {
    let outer = Instant::now();
    let first = read();
    let inner = Instant::now();
    while inner.elapsed() < Duration::from_millis(2) {}
    let least = inner.elapsed();
    (first, read(), least, outer.elapsed())
}

/// An X540's `TIMINCA` holds only the increment, which drivers set to 6.4 ns in units of 2^-28 ns.
#[test]
fn an_x540_has_no_period() {
    let card = Card::of_kind(CardKind::X540, 0, "increment", Box::new(Traffic::sink()));
    let bar = registers(&card);
    bar.write(TIMINCA::OFFSET, 0x6666_6666);
    let (first, last, least, most) = between(|| time(&bar));
    let passed = Duration::from_nanos((last - first) >> 28);
    // A tick is 6.4 ns.
    let slack = Duration::from_nanos(20);
    assert!(passed + slack >= least && passed <= most + slack, "{least:?} to {most:?} passed, measured {passed:?}");
    assert_eq!(card.breaches(), []);
}

/// An X550's `TIMINCA` adjusts the clock rate, in units of 2^-32 ns per tick of 12.5 ns.
#[test]
fn the_clock_of_an_x550_is_adjusted() {
    let card = Card::of_kind(CardKind::X550, 0, "adjusted", Box::new(Traffic::sink()));
    let bar = registers(&card);
    let now = || {
        bar.read(SYSTIMR::OFFSET);
        let (low, high) = (bar.read(SYSTIML::OFFSET), bar.read(SYSTIMH::OFFSET));
        Duration::new(high.into(), low)
    };
    // 0.4 ns per 12.5 ns: 32 per 1,000.
    let part = (0.4 * f64::from(1 << 16)) as u32 * (1 << 16);
    for (attributes, rate) in [(0, 1.0), (part, 1.032), (TIMINCA::NEGATIVE | part, 0.968)] {
        bar.write(TIMINCA::OFFSET, attributes);
        let (first, last, least, most) = between(now);
        let passed = (last - first).as_secs_f64();
        let (least, most) = (least.as_secs_f64() * rate, most.as_secs_f64() * rate);
        assert!(passed > least * 0.9999 && passed < most * 1.0001, "{rate}: {least} to {most}, measured {passed}");
    }
    assert_eq!(card.breaches(), []);
}

/// Returns a frame of the precision time protocol over Ethernet.
fn ptp(message: u8) -> Vec<u8> {
    let mut bytes = pattern(60);
    bytes[12..15].copy_from_slice(&[0x88, 0xF7, message]);
    bytes
}

#[test]
fn the_first_stamp_stays_until_it_was_read() {
    let bench = Bench::with_queues(ADVANCED);
    let bar = &bench.bar;
    bar.write(TIMINCA::OFFSET, 1 << TIMINCA::PERIOD_SHIFT | 1 << 16);
    let stamped = |bytes: Vec<u8>| {
        bench.inject(bytes);
        bench.last()[1] & receive::TS != 0
    };
    assert!(!stamped(ptp(0)), "stamping is off");
    // Stamp events of version 2, over Ethernet or UDP.
    bar.write(TSYNCRXCTL::OFFSET, TSYNCRXCTL::ENABLE | 5 << TSYNCRXCTL::TYPE_SHIFT);
    assert!(!stamped(pattern(60)) && !stamped(ptp(0xB)), "not an event");
    let before = time(bar);
    assert!(stamped(ptp(0)));
    let after = time(bar);
    assert!(!stamped(ptp(0)), "the last stamp was not read");
    assert_ne!(bar.read(TSYNCRXCTL::OFFSET) & TSYNCRXCTL::VALID, 0);
    let low = u64::from(bar.read(RXSTMPL::OFFSET));
    let stamp = low | u64::from(bar.read(RXSTMPH::OFFSET)) << 32;
    assert!((before..=after).contains(&stamp));
    assert_eq!(bar.read(TSYNCRXCTL::OFFSET) & TSYNCRXCTL::VALID, 0);
    assert!(stamped(ptp(3)));

    let frame = ptp(0);
    let send = |options: u64| {
        let word = PACKET | 60 | 60 << transmit::PAYLEN_SHIFT | options;
        bench.send(&frame, &[[bench.buffer(100), word]]);
        bar.read(TSYNCTXCTL::OFFSET) & TSYNCTXCTL::VALID != 0
    };
    bar.write(TSYNCTXCTL::OFFSET, TSYNCTXCTL::ENABLE);
    let before = time(bar);
    assert!(!send(0) && send(transmit::TSTAMP));
    let after = time(bar);
    send(transmit::TSTAMP);
    let low = u64::from(bar.read(TXSTMPL::OFFSET));
    let stamp = low | u64::from(bar.read(TXSTMPH::OFFSET)) << 32;
    assert!((before..=after).contains(&stamp));
    assert_eq!(bar.read(TSYNCTXCTL::OFFSET) & TSYNCTXCTL::VALID, 0);
    assert_eq!(bench.card.breaches(), []);
}

/// Returns a pause frame for `quanta` times the duration of 512 bits.
fn pause(quanta: u16) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    bytes[..6].copy_from_slice(&[0x01, 0x80, 0xC2, 0x00, 0x00, 0x01]);
    bytes[12..16].copy_from_slice(&[0x88, 0x08, 0x00, 0x01]);
    bytes[16..18].copy_from_slice(&quanta.to_be_bytes());
    bytes
}

#[test]
fn a_pause_holds_frames_back_for_its_time() {
    let bench = Bench::with_queues(ADVANCED);
    let bar = &bench.bar;
    let word = PACKET | 60 | 60 << transmit::PAYLEN_SHIFT;
    bar.write(MFLCN::OFFSET, MFLCN::RFCE | MFLCN::DPF);
    // The longest pause is 3 ms. It may end before the frame is checked, but not every time.
    let held = (0..1000).any(|_| {
        bench.inject(pause(0xFFFF));
        let held = bench.send(&pattern(60), &[[bench.buffer(100), word]]).is_empty();
        // A pause of zero quanta ends it.
        bench.inject(pause(0));
        bench.card.step(64);
        assert_eq!(bench.take_sent().len(), usize::from(held));
        held
    });
    assert!(held);
    assert!(bar.read(LXOFFRXCNT::OFFSET) > 0 && bar.read(LXONRXCNT::OFFSET) > 0);
    assert_eq!(bar.read(RDH::at(0)), 0, "the MAC keeps them");
    // A pause also ends by itself.
    bench.inject(pause(0xFFFF));
    let mut sent = bench.send(&pattern(60), &[[bench.buffer(100), word]]).len();
    let deadline = Deadline::begin();
    while sent == 0 {
        deadline.check(|| "the end of the pause");
        bench.card.step(64);
        sent = bench.take_sent().len();
    }
    // Without DPF, the driver receives pause frames, too (8.2.3.22.34).
    bar.write(MFLCN::OFFSET, MFLCN::RFCE);
    bench.inject(pause(0));
    assert_eq!(bar.read(RDH::at(0)), 1);
    bar.write(MFLCN::OFFSET, 0);
    bench.inject(pause(0xFFFF));
    assert_eq!(bench.send(&pattern(60), &[[bench.buffer(100), word]]).len(), 1, "no flow control, no pause");
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn a_full_packet_buffer_asks_the_partner_to_pause() {
    let traffic = Traffic::new(Generator::new(1518, 1), "1G".parse().ok(), Some(100));
    let card = Card::new("full", Box::new(traffic));
    let bench = Bench { bar: registers(&card), card, ..Bench::bare() };
    let dma = DmaMap::new(&(bench.card.bus() as _), &Arc::clone(bench.dma.memory())).unwrap();
    let bench = Bench { dma, ..bench };
    let bar = &bench.bar;
    bar.write(FCTRL::OFFSET, FCTRL::UPE);
    bench.add_receive_queue(0);
    bar.write(FCTTV::at(0), 0xFFFF);
    bar.write(FCRTH::at(0), FCRTH::FCEN | 16 << 10);
    bar.write(FCRTL::at(0), FCRTL::XONE | 4 << 10);
    bar.write(FCCFG::OFFSET, FCCFG::TFCE_LINK);
    bar.write(RXCTRL::OFFSET, RXCTRL::RXEN);
    // Seven frames have descriptors, and 12 more exceed 16 KiB.
    let deadline = Deadline::begin();
    while bench.card.wire_report().unwrap().sent < 30 {
        deadline.check(|| format!("30 frames of the wire: {:?}", bench.card.wire_report()));
        bench.card.step(1);
    }
    assert!(bar.read(LXOFFTXC::OFFSET) > 0);
    assert_eq!(bar.read(LXONTXC::OFFSET), 0);
    let has_room = (0..10_000).any(|_| {
        // Give used descriptors to the card again.
        let (head, ring) = (bar.read(RDH::at(0)), 8192);
        while bar.read(RDT::at(0)) != (head + 7) % 8 {
            let at = bar.read(RDT::at(0));
            bench.set(ring, at as usize, [bench.buffer(200 + at as usize), 0]);
            bar.write(RDT::at(0), (at + 1) % 8);
        }
        bench.card.step(64);
        bar.read(LXONTXC::OFFSET) > 0
    });
    assert!(has_room);
    assert!(bar.read(GPTC::OFFSET) >= 2, "pauses are frames");
    assert_eq!(bench.card.breaches(), []);
}

/// Control frames with another opcode do not pause the card.
#[test]
fn other_control_frames_do_not_pause() {
    let bench = Bench::with_queues(ADVANCED);
    bench.bar.write(MFLCN::OFFSET, MFLCN::RFCE);
    let mut other = pause(0xFFFF);
    other[15] = 2;
    bench.incoming.lock().unwrap().push_back(Frame { bytes: other, bad_crc: false });
    bench.card.step(1);
    let word = PACKET | 60 | 60 << transmit::PAYLEN_SHIFT;
    assert_eq!(bench.send(&pattern(60), &[[bench.buffer(100), word]]).len(), 1);
}
