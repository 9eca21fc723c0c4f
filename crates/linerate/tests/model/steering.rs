//! Selecting the queue for a frame.

use linerate::pci::Bar;
use linerate::sim82599::CardKind;
use linerate::spec::descriptor::receive;
use linerate::spec::x82599::*;

use crate::bench::{Bench, pattern};
use crate::packets::{ACK, DESTINATION, ETHERNET, FROM_PORT, Ip, SOURCE, SYN, TO_PORT, Transport, frame, tagged};

/// A card with queues 0 to 4.
struct Queues(Bench);

impl Queues {
    fn new() -> Queues {
        Queues::on(CardKind::default())
    }

    fn on(kind: CardKind) -> Queues {
        let bench = Bench::of(kind).set_up(2 | SRRCTL::DESCTYPE_ADVANCED);
        (1..5).for_each(|queue| bench.add_receive_queue(queue));
        Queues(bench)
    }

    /// Returns the frame's queue, or `None` if it was dropped.
    fn of(&self, bytes: Vec<u8>) -> Option<u16> {
        let heads = || (0..5).map(|queue| self.0.bar.read(RDH::at(queue))).collect::<Vec<_>>();
        let before = heads();
        self.0.inject(bytes);
        let after = heads();
        let queue = (0..5).find(|&queue| before[usize::from(queue)] != after[usize::from(queue)])?;
        // Give the same descriptor to the card again.
        let len = self.0.bar.read(RDLEN::at(queue)) / 16;
        let used = before[usize::from(queue)];
        let ring = if queue == 0 { crate::bench::RX_RING } else { 8192 + usize::from(queue) * 128 };
        let buffer = if queue == 0 { used as usize } else { 200 + usize::from(queue) * 8 + used as usize };
        self.0.set(ring, used as usize, [self.0.buffer(buffer), 0]);
        self.0.bar.write(RDT::at(queue), (self.0.bar.read(RDT::at(queue)) + 1) % len);
        Some(queue)
    }
}

fn tcp(flags: u8) -> Vec<u8> {
    frame(Ip::V4, 0, Transport::Tcp { sequence: 0, flags }, &pattern(50))
}

fn udp() -> Vec<u8> {
    frame(Ip::V4, 0, Transport::Udp, &pattern(50))
}

/// The model caches its decision about a flow, but only until a register changes.
#[test]
fn frames_of_a_known_flow_follow_the_registers() {
    let queues = Queues::new();
    let Bench { bar, card, .. } = &queues.0;
    // In this mode, doorbells do not count as register changes.
    card.disable_strict();
    let mut known = udp();
    known[ETHERNET + 26..ETHERNET + 28].fill(0);
    let again = || [queues.of(known.clone()), queues.of(known.clone())];
    let all = bar.read(FCTRL::OFFSET);
    assert_eq!(again(), [Some(0); 2]);
    let report = |bytes: &[u8]| {
        queues.0.inject(bytes.to_vec());
        queues.0.last()
    };
    assert_eq!(report(&known), report(&known));
    let mut damaged = known.clone();
    damaged[ETHERNET + 10] ^= 1;
    assert_eq!([&known, &damaged].map(|bytes| report(bytes)[1] & receive::IPE_82599 != 0), [false, true]);
    bar.write(FCTRL::OFFSET, 0);
    assert_eq!(again(), [None; 2]);
    bar.write(FCTRL::OFFSET, all);
    assert_eq!(again(), [Some(0); 2]);
    (0..32).for_each(|n| bar.write(RETA::at(n), 0x0101_0101));
    bar.write(MRQC::OFFSET, MRQC::MRQE_RSS | MRQC::UDP_IPV4);
    assert_eq!(again(), [Some(1); 2]);
    bar.write(L34TIMIR::at(0), 2 << L34TIMIR::RX_QUEUE_SHIFT);
    let all_but_protocol = FTQF::SOURCE | FTQF::DESTINATION | FTQF::SOURCE_PORT | FTQF::DESTINATION_PORT;
    bar.write(FTQF::at(0), FTQF::ENABLE | FTQF::POOL | all_but_protocol | 1);
    assert_eq!(again(), [Some(2); 2]);
    bar.write(FTQF::at(0), 0);
    assert_eq!(again(), [Some(1); 2]);
    // The same headers in a frame that is too long.
    known.resize(1600, 0);
    assert_eq!([queues.of(known.clone()), queues.of(known)], [None; 2]);
}

/// An X550's table has 512 entries; the first 128 are at the same registers as in other cards.
#[test]
fn an_x550_spreads_over_a_longer_table() {
    for (kind, expected) in [(CardKind::X82599Sfp, [true, false]), (CardKind::X550, [true, true])] {
        let queues = Queues::on(kind);
        let bar = &queues.0.bar;
        (0..32).for_each(|n| bar.write(RETA::at(n), 0x0101_0101));
        if kind == CardKind::X550 {
            (0..96).for_each(|n| bar.write(ERETA::at(n), 0x0202_0202));
        }
        (0..10).for_each(|n| bar.write(RSSRK::at(n), 0x6d5a_56da));
        bar.write(MRQC::OFFSET, MRQC::MRQE_RSS | MRQC::UDP_IPV4);
        let mut hit = [false; 3];
        for port in 0..64 {
            let mut frame = udp();
            frame[ETHERNET + 21] = port;
            hit[usize::from(queues.of(frame).unwrap())] = true;
        }
        assert_eq!(hit, [false, expected[0], expected[1]], "{kind}");
        assert_eq!(queues.0.card.breaches(), []);
        // Accessing a register of the X550 is a breach on other cards.
        bar.read(ERETA::at(0));
        assert_eq!(queues.0.card.breach_count(), u64::from(kind != CardKind::X550));
    }
}

#[test]
fn an_ethertype_or_a_syn_has_its_queue() {
    let queues = Queues::new();
    let bar = &queues.0.bar;
    let mut ptp = pattern(60);
    ptp[12..14].copy_from_slice(&[0x88, 0xF7]);
    assert_eq!(queues.of(ptp.clone()), Some(0));
    bar.write(ETQF::at(3), ETQF::ENABLE | 0x88F7);
    assert_eq!(queues.of(ptp.clone()), Some(0), "without a queue the match is only reported");
    bar.write(ETQS::at(3), ETQS::ENABLE | 2 << ETQS::QUEUE_SHIFT);
    assert_eq!(queues.of(ptp), Some(2));
    bar.write(SYNQF::OFFSET, SYNQF::ENABLE | 3 << SYNQF::QUEUE_SHIFT);
    assert_eq!([tcp(SYN), tcp(SYN | ACK), tcp(ACK), udp()].map(|frame| queues.of(frame)), [3, 0, 0, 0].map(Some));
    assert_eq!(queues.0.card.breaches(), []);
}

#[test]
fn five_tuples_have_queues_by_priority() {
    let queues = Queues::new();
    let bar = &queues.0.bar;
    let all = FTQF::SOURCE | FTQF::DESTINATION | FTQF::SOURCE_PORT | FTQF::DESTINATION_PORT | FTQF::PROTOCOL;
    let set = |n: u16, compared: u32, protocol: u32, priority: u32, queue: u32| {
        bar.write(SAQF::at(n), u32::from_le_bytes(SOURCE));
        bar.write(DAQF::at(n), u32::from_le_bytes(DESTINATION));
        let ports = u32::from(TO_PORT.swap_bytes()) << 16 | u32::from(FROM_PORT.swap_bytes());
        bar.write(SDPQF::at(n), ports);
        bar.write(L34TIMIR::at(n), queue << L34TIMIR::RX_QUEUE_SHIFT);
        bar.write(
            FTQF::at(n),
            FTQF::ENABLE | FTQF::POOL | all & !compared | priority << FTQF::PRIORITY_SHIFT | protocol,
        );
    };
    assert_eq!(queues.of(udp()), Some(0));
    set(5, all, 1, 1, 1);
    assert_eq!([udp(), tcp(ACK)].map(|frame| queues.of(frame)), [1, 0].map(Some));
    // Each field alone makes a difference.
    for at in [ETHERNET + 15, ETHERNET + 19, ETHERNET + 21, ETHERNET + 23] {
        let mut other = udp();
        other[at] ^= 1;
        assert_eq!(queues.of(other), Some(0), "byte {at}");
    }
    // A filter of a lower priority that ignores ports and protocol.
    set(1, FTQF::SOURCE | FTQF::DESTINATION, 0, 0, 2);
    let mut other = udp();
    other[ETHERNET + 21] ^= 1;
    assert_eq!([udp(), tcp(ACK), other.clone()].map(|frame| queues.of(frame)), [1, 2, 2].map(Some));
    set(1, FTQF::SOURCE | FTQF::DESTINATION, 0, 7, 4);
    assert_eq!([udp(), tcp(ACK), other].map(|frame| queues.of(frame)), [4, 4, 4].map(Some));
    bar.write(FTQF::at(1), 0);
    bar.write(FTQF::at(5), 0);
    assert_eq!(queues.of(udp()), Some(0));
    assert_eq!(queues.0.card.breaches(), []);
}

/// The flow director's perfect filters, written as Linux's driver writes them.
#[test]
fn the_flow_director_steers_and_drops() {
    let queues = Queues::new();
    let bar = &queues.0.bar;
    let begin = || {
        let control = 1 | FDIRCTRL::PERFECT_MATCH | FDIRCTRL::REPORT_STATUS;
        bar.write(FDIRCTRL::OFFSET, control);
        assert_ne!(bar.read(FDIRCTRL::OFFSET) & FDIRCTRL::INIT_DONE, 0);
    };
    let command = |index: u32, command: u32| {
        bar.write(FDIRHASH::OFFSET, index << FDIRHASH::INDEX_SHIFT);
        bar.write(FDIRCMD::OFFSET, command);
        assert_eq!(bar.read(FDIRCMD::OFFSET) & FDIRCMD::CMD_MASK, 0, "done");
    };
    const UDP: u32 = 1 << FDIRCMD::L4TYPE_SHIFT;
    const TCP: u32 = 2 << FDIRCMD::L4TYPE_SHIFT;
    let set = |index: u32, kind: u32, queue: u32, drop: bool| {
        bar.write(FDIRIPSA::OFFSET, u32::from_be_bytes(SOURCE));
        bar.write(FDIRIPDA::OFFSET, u32::from_be_bytes(DESTINATION));
        bar.write(FDIRPORT::OFFSET, u32::from(TO_PORT) << FDIRPORT::DESTINATION_SHIFT | u32::from(FROM_PORT));
        bar.write(FDIRVLAN::OFFSET, 0);
        let drops = if drop { FDIRCMD::DROP } else { 0 };
        let how = FDIRCMD::CMD_ADD | FDIRCMD::FILTER_UPDATE | FDIRCMD::QUEUE_EN;
        command(index, how | kind | drops | queue << FDIRCMD::RX_QUEUE_SHIFT);
    };
    begin();
    bar.write(FDIRM::OFFSET, FDIRM::VLANID | FDIRM::VLANP | FDIRM::POOL | FDIRM::FLEX | FDIRM::DIPV6);
    let free = bar.read(FDIRFREE::OFFSET);
    set(7, UDP, 3, false);
    set(8, TCP, 0, true);
    assert_eq!(bar.read(FDIRFREE::OFFSET), free - 2);
    assert_eq!([udp(), tcp(ACK)].map(|frame| queues.of(frame)), [Some(3), None]);
    // The queue's descriptor was given back to the card.
    let [first, second] = queues.0.get(8192 + 3 * 128, 0);
    assert_eq!((first, second), (queues.0.buffer(200 + 24), 0), "given back");
    for at in [ETHERNET + 15, ETHERNET + 19, ETHERNET + 21, ETHERNET + 23] {
        let mut other = udp();
        other[at] ^= 1;
        assert_eq!(queues.of(other), Some(0), "byte {at}");
    }
    assert_eq!((bar.read(FDIRMATCH::OFFSET), bar.read(FDIRMISS::OFFSET)), (2, 4));
    // A mask of ports is written bit-reversed; a mask of addresses is not.
    bar.write(FDIRUDPM::OFFSET, u32::from(1u16.reverse_bits()) << 16);
    let mut port = udp();
    port[ETHERNET + 23] ^= 1;
    assert_eq!(queues.of(port), Some(3));
    bar.write(FDIRSIP4M::OFFSET, 0x0000_00FF);
    let mut address = udp();
    address[ETHERNET + 15] ^= 0xF0;
    assert_eq!(queues.of(address.clone()), Some(3));
    address[ETHERNET + 14] ^= 1;
    assert_eq!(queues.of(address), Some(0));
    // The tag is compared once the mask includes it.
    assert_eq!(queues.of(tagged(udp(), 5)), Some(3));
    bar.write(FDIRM::OFFSET, FDIRM::VLANP | FDIRM::POOL | FDIRM::FLEX | FDIRM::DIPV6);
    assert_eq!([tagged(udp(), 5), udp()].map(|frame| queues.of(frame)), [0, 3].map(Some));
    // A filter is found, removed, and not found.
    command(7, FDIRCMD::CMD_QUERY);
    assert_ne!(bar.read(FDIRCMD::OFFSET) & FDIRCMD::VALID, 0);
    command(7, FDIRCMD::CMD_REMOVE);
    command(7, FDIRCMD::CMD_QUERY);
    assert_eq!(bar.read(FDIRCMD::OFFSET) & FDIRCMD::VALID, 0);
    assert_eq!((queues.of(udp()), bar.read(FDIRFREE::OFFSET)), (Some(0), free - 1));
    command(7, FDIRCMD::CMD_REMOVE);
    assert_eq!(bar.read(FDIRFSTAT::OFFSET), 1 << FDIRFSTAT::REMOVE_SHIFT);
    begin();
    assert_eq!(queues.of(tcp(ACK)), Some(0), "all filters are removed");
    assert_eq!(queues.0.card.breaches(), []);
}

/// The descriptor reports the matching filter in place of the hash.
#[test]
fn a_match_is_reported_in_the_descriptor() {
    let bench = Bench::with_queues(2 | SRRCTL::DESCTYPE_ADVANCED);
    let bar = &bench.bar;
    bar.write(FDIRCTRL::OFFSET, 1 | FDIRCTRL::PERFECT_MATCH | FDIRCTRL::REPORT_STATUS);
    bar.write(FDIRM::OFFSET, FDIRM::VLANID | FDIRM::VLANP | FDIRM::POOL | FDIRM::FLEX | FDIRM::L4P);
    bar.write(FDIRSIP4M::OFFSET, u32::MAX);
    bar.write(FDIRDIP4M::OFFSET, u32::MAX);
    bar.write(FDIRUDPM::OFFSET, u32::MAX);
    bar.write(FDIRHASH::OFFSET, 0x1234 << FDIRHASH::INDEX_SHIFT | 0x0ABC);
    bar.write(FDIRCMD::OFFSET, FDIRCMD::CMD_ADD | FDIRCMD::FILTER_UPDATE);
    bench.inject(udp());
    let [first, second] = bench.last();
    assert_eq!((first >> receive::RSS_HASH_SHIFT, first & receive::RSS_TYPE_MASK), (0x0ABC_1234, 0xF));
    assert_ne!(second & receive::FLM, 0);
    bench.inject(pattern(60));
    assert_eq!(bench.last()[1] & receive::FLM, 0);
}
