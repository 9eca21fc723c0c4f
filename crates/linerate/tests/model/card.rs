//! Rings, registers, statistics, filters, and the breaches that the model reports.

use linerate::memory::DmaMap;
use linerate::pci::Bar;
use linerate::sim82599::{Breach, Card, Direction, Frame};
use linerate::spec::descriptor::{legacy_receive, receive, transmit};
use linerate::spec::x82599::*;
use linerate_testkit::Deadline;

use crate::bench::{Bench, LEN, PACKET, RX_RING, TX_RING, pattern, registers};

#[test]
fn legacy_descriptors_carry_frames_both_ways() {
    let bench = Bench::with_queues(2); // 2 KiB, legacy
    bench.inject(pattern(100));
    assert_eq!(bench.get(RX_RING, 0), [bench.buffer(0), legacy_receive::DD | legacy_receive::EOP | 100]);
    assert_eq!(bench.bytes(0, 100), pattern(100));
    bench.prepare_packet(0, 77, transmit::EOP | transmit::IFCS | transmit::RS);
    bench.bar.write(TDT::at(0), 1);
    bench.card.step(1);
    assert_eq!(bench.take_sent(), [Frame { bytes: pattern(77), bad_crc: false }]);
    assert_eq!(bench.get(TX_RING, 0)[1], transmit::DD);
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn a_driver_may_supply_the_crc() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    let frame = pattern(64);
    // The CRC-32 of the 64 bytes, by another implementation (zlib's, least significant byte first).
    let crc = crc32(&frame);
    for (n, (crc, bad)) in [(crc, false), (crc ^ 1, true)].into_iter().enumerate() {
        bench.prepare_packet(n, 68, PACKET & !transmit::IFCS);
        bench.fill(100 + n, &[frame.clone(), crc.to_le_bytes().to_vec()].concat());
        bench.bar.write(TDT::at(0), n as u32 + 1);
        bench.card.step(1);
        assert_eq!(bench.take_sent(), [Frame { bytes: frame.clone(), bad_crc: bad }]);
    }
    // A driver may also receive the CRC.
    bench.bar.write(HLREG0::OFFSET, bench.bar.read(HLREG0::OFFSET) & !HLREG0::RXCRCSTRP);
    bench.inject(frame.clone());
    assert_eq!(bench.bytes(0, 68), [frame, crc.to_le_bytes().to_vec()].concat());
}

/// Returns IEEE 802.3's CRC, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn descriptors_are_written_back_on_request_and_at_the_threshold() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    bench.bar.write(TXDCTL::at(0), TXDCTL::ENABLE | 4 << TXDCTL::WTHRESH_SHIFT);
    (0..6).for_each(|n| bench.prepare_packet(n, 60, if n == 1 { PACKET & !transmit::RS } else { PACKET }));
    bench.bar.write(TDT::at(0), 6);
    let done = || (0..6).map(|n| bench.get(TX_RING, n)[1] == transmit::DD).collect::<Vec<_>>();
    bench.card.step(3);
    assert_eq!(done(), [false; 6]);
    bench.card.step(1);
    assert_eq!(done(), [true, false, true, true, false, false]);
    // When the queue is empty, pending write-backs are done.
    bench.card.step(2);
    assert_eq!(done(), [true, false, true, true, true, true]);
    assert_eq!((bench.bar.read(TDH::at(0)), bench.card.breaches()), (6, vec![]));
}

#[test]
fn the_eeprom_has_an_address_and_a_valid_checksum() {
    let bench = Bench::bare();
    let word = |address: u32| {
        bench.bar.write(EERD::OFFSET, EERD::START | address << EERD::ADDR_SHIFT);
        let value = bench.bar.read(EERD::OFFSET);
        assert!(value & EERD::DONE != 0);
        (value >> EERD::DATA_SHIFT) as u16
    };
    // The checksum includes the sections that words 3 to 14 point to, without the length at the beginning of each.
    let section = |pointer: u32| match word(pointer) {
        0 | 0xFFFF => 0,
        at => (1..=u32::from(word(at.into()))).fold(0u16, |sum, n| sum.wrapping_add(word(u32::from(at) + n))),
    };
    let sections = (3..0xF).map(section).fold(0, u16::wrapping_add);
    assert_eq!((0..0x40).map(word).fold(sections, u16::wrapping_add), 0xBABA);
    let core = u32::from(word(9));
    let address = [1, 2, 3].map(|n| word(core + n));
    assert_eq!(bench.bar.read(RAL::at(0)), u32::from(address[0]) | u32::from(address[1]) << 16);
    assert_eq!(bench.bar.read(RAH::at(0)), u32::from(address[2]) | RAH::AV);
    assert_eq!(word(0x3FFF), 0xFFFF);
}

#[test]
fn registers_take_clear_and_set_as_the_datasheet_says() {
    let bench = Bench::bare();
    let bar = &bench.bar;
    // A read takes the semaphore, and writing 0 releases it.
    assert_eq!((bar.read(SWSM::OFFSET) & 1, bar.read(SWSM::OFFSET) & 1), (0, 1));
    bar.write(SWSM::OFFSET, 0);
    assert_eq!(bar.read(SWSM::OFFSET) & 1, 0);
    bar.write(SW_FW_SYNC::OFFSET, SW_FW_SYNC::SW_MAC_CSR_SM);
    assert_eq!(bar.read(SW_FW_SYNC::OFFSET), SW_FW_SYNC::SW_MAC_CSR_SM);
    // Interrupt causes and masks.
    bar.read(EICR::OFFSET);
    bar.write(EICS::OFFSET, 0b1011);
    // Reading EICS does not clear the causes; Linux's driver relies on that.
    assert_eq!(bar.read(EICS::OFFSET), 0b1011);
    bar.write(EICR::OFFSET, 0b0010);
    assert_eq!((bar.read(EICR::OFFSET), bar.read(EICR::OFFSET)), (0b1001, 0));
    bar.write(EIMS::OFFSET, 0b111);
    bar.write(EIMC::OFFSET, 0b010);
    assert_eq!(bar.read(EIMS::OFFSET), 0b101);
    for (offset, value) in [(EIAC::OFFSET, 3), (EIAM::OFFSET, 4), (EITR::at(5), 0x200), (GPIE::OFFSET, 0x10)] {
        bar.write(offset, value);
        assert_eq!(bar.read(offset), value);
    }
    // Negotiation ends immediately, the link is up, and unplugging the cable is an interrupt cause.
    bar.write(AUTOC::OFFSET, AUTOC::LMS_10G_SERIAL | AUTOC::RESTART_AN);
    assert_eq!(bar.read(AUTOC::OFFSET), AUTOC::LMS_10G_SERIAL);
    assert_eq!(bar.read(LINKS::OFFSET), LINKS::UP | LINKS::SPEED_10G);
    bar.read(EICR::OFFSET);
    bench.card.set_cable(false);
    assert_eq!((bar.read(LINKS::OFFSET), bar.read(EICR::OFFSET)), (0, EICR::LSC));
    // A reset restores all values.
    bar.write(VLNCTRL::OFFSET, 0x1234);
    bar.write(CTRL::OFFSET, CTRL::RST);
    assert_eq!((bar.read(CTRL::OFFSET), bar.read(VLNCTRL::OFFSET), bar.read(SRRCTL::at(9))), (0, 0x8100, 0x402));
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn queues_set_the_cause_assigned_by_ivar() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    bench.bar.write(IVAR::at(0), (IVAR::VALID | 3) | (IVAR::VALID | 5) << 8);
    bench.card.step(1);
    bench.bar.read(EICR::OFFSET);
    bench.inject(pattern(60));
    assert_eq!(bench.bar.read(EICR::OFFSET), 1 << 3);
    bench.prepare_packet(0, 60, PACKET);
    bench.bar.write(TDT::at(0), 1);
    bench.card.step(1);
    assert_eq!(bench.bar.read(EICR::OFFSET), 1 << 5);
}

#[test]
fn statistics_count_by_kind_and_size_and_clear_on_read() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    let kinds: [(u8, usize); 4] = [(0xFF, 60), (0x01, 61), (0x02, 300), (0x02, 1514)];
    for (n, (first, len)) in kinds.into_iter().enumerate() {
        let mut bytes = pattern(len);
        bytes[..6].fill(first);
        bench.inject(bytes.clone());
        bench.prepare_packet(n, len, PACKET);
        bench.fill(100 + n, &bytes);
    }
    bench.bar.write(TDT::at(0), 4);
    bench.card.step(10);
    let octets = 60 + 61 + 300 + 1514 + 4 * 4;
    let sizes = |first: fn(u16) -> u32| (0..6).map(|n| bench.bar.read(first(n))).collect::<Vec<_>>();
    assert_eq!((sizes(PRC::at), sizes(PTC::at)), (vec![1, 1, 0, 1, 0, 1], vec![1, 1, 0, 1, 0, 1]));
    for (offset, count) in [
        (GPRC::OFFSET, 4),
        (BPRC::OFFSET, 1),
        (MPRC::OFFSET, 1),
        (GORCL::OFFSET, octets),
        (TORL::OFFSET, octets),
        (TPR::OFFSET, 4),
        (QPRC::at(0), 4),
        (QBRC_L::at(0), octets - 16),
        (GPTC::OFFSET, 4),
        (BPTC::OFFSET, 1),
        (MPTC::OFFSET, 1),
        (GOTCL::OFFSET, octets),
        (TPT::OFFSET, 4),
        (QPTC::at(0), 4),
        (QBTC_L::at(0), octets),
    ] {
        assert_eq!((bench.bar.read(offset), bench.bar.read(offset)), (count, 0), "{offset:#x}");
    }
}

#[test]
fn only_frames_for_this_card_pass_the_filters() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    bench.bar.write(FCTRL::OFFSET, 0);
    let low = bench.bar.read(RAL::at(0)).to_le_bytes();
    let high = bench.bar.read(RAH::at(0)).to_le_bytes();
    let own = [low[0], low[1], low[2], low[3], high[0], high[1]];
    let group = [0x01, 0x00, 0x5E, 0x00, 0x00, 0xFB];
    let arrive = |destination: [u8; 6]| {
        let before = bench.bar.read(RDH::at(0));
        let mut bytes = pattern(60);
        bytes[..6].copy_from_slice(&destination);
        bench.inject(bytes);
        bench.bar.read(RDH::at(0)) != before
    };
    assert_eq!([own, [2; 6], [0xFF; 6], group].map(arrive), [true, false, false, false]);
    bench.bar.write(FCTRL::OFFSET, FCTRL::BAM);
    // Bits 47:36 of the address select a bit of the table (MO = 0): here 0xFB0.
    bench.bar.write(MCSTCTRL::OFFSET, MCSTCTRL::MFE);
    bench.bar.write(MTA::at(0xFB0 >> 5), 1 << (0xFB0 & 31));
    assert_eq!([own, [2; 6], [0xFF; 6], group, [1; 6]].map(arrive), [true, false, true, true, false]);
    bench.bar.write(FCTRL::OFFSET, FCTRL::UPE | FCTRL::MPE);
    assert_eq!([[2; 6], [1; 6]].map(arrive), [true, true]);
}

#[test]
fn frames_wait_in_the_packet_buffer_unless_the_queue_says_drop() {
    // This needs a wire that does not hold frames back, such as the paced generator.
    for (drop_en, waiting) in [(0, 100), (SRRCTL::DROP_EN, 0)] {
        let generator = linerate::traffic::Generator::new(1518, 1);
        let traffic = linerate::sim82599::Traffic::new(generator, "1G".parse().ok(), Some(163));
        let card = Card::new("waiting", Box::new(traffic));
        let bench = Bench { bar: registers(&card), card, ..Bench::bare() };
        let memory = bench.dma.memory().clone();
        let bench = Bench { dma: DmaMap::new(&(bench.card.bus() as _), &memory).unwrap(), ..bench };
        let bar = &bench.bar;
        bar.write(FCTRL::OFFSET, FCTRL::UPE);
        bar.write(DCA_RXCTRL::at(0), 0);
        bar.write(RDBAL::at(0), bench.address(0) as u32);
        bar.write(RDBAH::at(0), (bench.address(0) >> 32) as u32);
        bar.write(RDLEN::at(0), LEN * 16);
        bar.write(SRRCTL::at(0), 2 | SRRCTL::DESCTYPE_ADVANCED | drop_en);
        bar.write(RXDCTL::at(0), RXDCTL::ENABLE);
        (0..LEN as usize).for_each(|n| bench.set(RX_RING, n, [bench.buffer(n), 0]));
        bar.write(RDT::at(0), LEN - 1);
        bar.write(RXCTRL::OFFSET, RXCTRL::RXEN);
        let deadline = Deadline::begin();
        while bench.card.wire_report().unwrap().sent < 163 {
            deadline.check(|| format!("163 frames of the wire: {:?}", bench.card.wire_report()));
            bench.card.step(1000);
        }
        assert_eq!(bar.read(QPRDC::at(0)), 100 - waiting);
        assert_eq!((bar.read(RXMPC::at(0)), bar.read(QPRC::at(0))), (0, 63));
        // When there are descriptors again, the waiting frames arrive.
        for n in 0..10 {
            bench.set(RX_RING, n, [bench.buffer(n), 0]);
        }
        bar.write(RDT::at(0), 9);
        bench.card.step(100);
        assert_eq!(bar.read(QPRC::at(0)), waiting.min(10));
        assert_eq!(bench.card.breaches(), []);
    }
}

#[test]
fn every_breach_of_the_contract_is_noted() {
    let advanced = || Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    let send = |bench: &Bench| {
        bench.bar.write(TDT::at(0), 1);
        bench.card.step(4);
    };
    let expect = |name: &str, bench: Bench, matches: &dyn Fn(&Breach) -> bool| {
        let breaches = bench.card.breaches();
        assert!(breaches.iter().any(matches), "{name}: {breaches:?}");
        assert_eq!(bench.card.breach_count() as usize, breaches.len());
    };
    let bad_command = |name: &str, command: u64, len: usize, part: &str| {
        let bench = advanced();
        bench.prepare_packet(0, len, command);
        send(&bench);
        expect(name, bench, &|breach| matches!(breach, Breach::BadDescriptor { why, .. } if why.contains(part)));
    };

    let bench = Bench::bare();
    bench.bar.write(0x0001_FFF0, 1);
    expect("no such register", bench, &|b| matches!(b, Breach::NoRegister { write: true, .. }));
    let bench = Bench::bare();
    bench.bar.read(3);
    expect("unaligned", bench, &|b| matches!(b, Breach::NoRegister { write: false, .. }));
    let bench = Bench::bare();
    bench.bar.write(LINKS::OFFSET, 1);
    expect("read only", bench, &|b| matches!(b, Breach::ReadOnly { register: "LINKS", .. }));
    let bench = Bench::bare();
    bench.bar.write(RXDCTL::at(3), 1 << 20);
    expect("reserved bits", bench, &|b| matches!(b, Breach::ReservedBits { register: "RXDCTL", .. }));
    let bench = Bench::bare();
    bench.bar.write(MTQC::OFFSET, 1);
    expect("arbiter", bench, &|b| matches!(b, Breach::WrongTime { register: "MTQC", .. }));
    let bench = Bench::bare();
    bench.bar.write(RXDCTL::at(0), RXDCTL::ENABLE);
    assert_eq!(bench.card.breaches(), [], "no ring is used before receiving begins");
    bench.bar.write(RXCTRL::OFFSET, RXCTRL::RXEN);
    expect("no ring", bench, &|b| matches!(b, Breach::NoRing { direction: Direction::Receive, .. }));
    let bench = Bench::bare();
    bench.bar.write(TDBAL::at(0), 0x1000);
    bench.bar.write(TDLEN::at(0), 1024);
    bench.bar.write(TXDCTL::at(0), TXDCTL::ENABLE);
    expect("ring unmapped", bench, &|b| matches!(b, Breach::Unmapped { address: 0x1000, len: 1024, .. }));
    let bench = Bench::bare();
    bench.bar.write(TDT::at(0), 1);
    expect("tail of a disabled queue", bench, &|b| matches!(b, Breach::WrongTime { register: TDT::NAME, .. }));
    let bench = advanced();
    bench.bar.write(RDBAL::at(0), 0);
    expect("base of an enabled queue", bench, &|b| matches!(b, Breach::WrongTime { register: "RDBAL", .. }));
    let bench = advanced();
    bench.bar.write(TDT::at(0), LEN);
    expect("tail beyond the ring", bench, &|b| matches!(b, Breach::TailOutOfRange { tail: LEN, .. }));
    let bench = advanced();
    bench.bar.write(RDT::at(0), 5);
    expect("tail moved back", bench, &|b| matches!(b, Breach::TailMovedBack { from: 63, to: 5, .. }));
    let bench = Bench::with_queues(SRRCTL::DESCTYPE_ADVANCED);
    bench.inject(pattern(60));
    expect("buffers of no bytes", bench, &|b| matches!(b, Breach::WrongTime { register: "SRRCTL", .. }));
    let bench = advanced();
    bench.set(RX_RING, 0, [bench.buffer(9), 0]);
    bench.inject(pattern(60));
    expect("descriptor changed", bench, &|b| {
        matches!(b, Breach::DescriptorChanged { direction: Direction::Receive, index: 0, .. })
    });
    let bench = advanced();
    bench.fill(0, &[1]);
    bench.inject(pattern(60));
    expect("receive buffer changed", bench, &|b| matches!(b, Breach::BufferChanged { index: 0, .. }));
    let bench = advanced();
    bench.prepare_packet(0, 60, PACKET);
    bench.bar.write(TDT::at(0), 1);
    bench.fill(100, &[1]);
    bench.card.step(1);
    expect("packet changed", bench, &|b| {
        matches!(b, Breach::BufferChanged { direction: Direction::Transmit, index: 0, .. })
    });
    let bench = advanced();
    bench.inject(pattern(60));
    bench.set(RX_RING, 63, [bench.buffer(5) + 64, 0]);
    bench.bar.write(RDT::at(0), 0);
    expect("buffer given twice", bench, &|b| matches!(b, Breach::BufferGivenTwice { index: 63, .. }));
    let bench = advanced();
    bench.inject(pattern(60));
    bench.set(RX_RING, 63, [bench.buffer(80), receive::DD]);
    bench.bar.write(RDT::at(0), 0);
    expect("given with DD", bench, &|b| matches!(b, Breach::BadDescriptor { index: 63, .. }));
    let bench = advanced();
    bench.set(TX_RING, 0, [4096, PACKET | 60 | 60 << transmit::PAYLEN_SHIFT]);
    send(&bench);
    expect("DMA elsewhere", bench, &|b| matches!(b, Breach::Unmapped { address: 4096, len: 60, .. }));
    let bench = advanced();
    // SAFETY: no references to the memory exist, and no other memory is mapped afterwards.
    #[allow(unsafe_code)]
    unsafe {
        bench.card.bus().unmap(bench.dma.addresses().at(0));
    }
    bench.inject(pattern(60));
    expect("ring unmapped in use", bench, &|b| matches!(b, Breach::UnmappedInUse { .. }));
    bad_command("reserved bits of a descriptor", PACKET | 1 << 16, 60, "reserved");
    bad_command("RS without EOP", PACKET & !transmit::EOP, 60, "RS without EOP");
    bad_command("too short", PACKET, 16, "shorter than 17");
    bad_command("empty", PACKET, 0, "length 0");
    let bench = advanced();
    bench.prepare_packet(0, 60, PACKET);
    bench.set(TX_RING, 0, [bench.buffer(100), PACKET | 60 | 61 << transmit::PAYLEN_SHIFT]);
    send(&bench);
    expect("PAYLEN", bench, &|b| matches!(b, Breach::BadDescriptor { why, .. } if why.contains("PAYLEN")));
    let bench = advanced();
    for n in 0..41 {
        let end = if n == 40 { transmit::EOP } else { 0 };
        bench.set(TX_RING, n, [bench.buffer(100), transmit::DTYP_DATA | transmit::DEXT | transmit::IFCS | end | 20]);
    }
    bench.bar.write(TDT::at(0), 41);
    bench.card.step(1);
    expect(
        "41 descriptors",
        bench,
        &|b| matches!(b, Breach::BadDescriptor { why, .. } if why.contains("more than 40")),
    );
    bad_command("no context", PACKET | transmit::VLE, 60, "without a context");
    let bench = advanced();
    bench.set(TX_RING, 0, [0, transmit::DEXT | transmit::DTYP_CONTEXT | 1 << 13]);
    send(&bench);
    expect("IPsec", bench, &|b| matches!(b, Breach::NotModelled { .. }));
}

/// 4.6.8.2, 8.2.3.23: frames fetched from a queue before it was disabled count for this queue.
#[test]
fn frames_fetched_from_a_disabled_queue_count_for_it() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    bench.card.set_cable(false);
    bench.prepare_packet(0, 100, PACKET);
    bench.bar.write(TDT::at(0), 1);
    bench.bar.write(TXDCTL::at(0), 0);
    bench.card.set_cable(true);
    bench.card.step(8);
    assert_eq!(bench.take_sent().len(), 1);
    assert_eq!((bench.bar.read(QPTC::at(0)), bench.bar.read(QBTC_L::at(0))), (1, 104));
}
