//! Received TCP segments that the card coalesces: each byte arrives once and in the order of its flow, and the frames
//! that are cut from the packets are as the frames that arrived. The datasheet is never violated.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::metadata::Checksum;
use linerate::port::{Drops, Feature, Port, Support};
use linerate::sim82599::{Card, Frame, Wire};
use linerate_core::batch::{Batch, Finished};
use linerate_core::offload::{Segmentation, cut};
use proptest::prelude::*;

const BUFFERS: usize = 4096;

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// Gives the card these frames, and keeps the frames that it sends.
struct Ends {
    arriving: Frames,
    sent: Frames,
}

impl Wire for Ends {
    fn transmit(&mut self, frame: &Frame) {
        self.sent.lock().unwrap().push_back(frame.bytes.clone());
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let next = self.arriving.lock().unwrap().pop_front();
        next.map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some()
    }
}

/// A card that coalesces, and the frames on its wire.
struct Test {
    card: Arc<Card>,
    port: Port,
    pool: Arc<Pool>,
    arriving: Frames,
    sent: Frames,
}

impl Test {
    fn new(buffer_size: usize, options: Options) -> Test {
        let (arriving, sent) = (Frames::default(), Frames::default());
        let ends = Ends { arriving: arriving.clone(), sent: sent.clone() };
        let card = Card::new("coalesced", Box::new(ends));
        let pages = Pages::Only(PageSize::Ordinary);
        let region = RegionOptions { buffers: BUFFERS, buffer_size, pages, numa_node: None };
        let pool = Pool::new(Region::new(&region).unwrap());
        let config = Options { offloads: true, ..options }.of_port("coalesced", pool.clone()).unwrap();
        let port = Port::new(linerate::drive_model(&card, None, config).unwrap());
        Test { card, port, pool, arriving, sent }
    }

    /// Lets the frames arrive, `each` at a time, and passes the packets of each call to `packets`.
    fn receive(&mut self, frames: &[Vec<u8>], each: usize, capacity: usize, mut packets: impl FnMut(&mut Batch)) {
        let (mut rx, mut batch) = (self.port.rx(0).unwrap(), Batch::with_capacity(capacity));
        let mut waiting = frames.chunks(each.max(1));
        for _ in 0..100_000 {
            let chunk = waiting.next();
            let is_last = chunk.is_none();
            self.arriving.lock().unwrap().extend(chunk.into_iter().flatten().cloned());
            let moved = self.card.step(1 << 20);
            let received = rx.recv(&mut batch);
            packets(&mut batch);
            batch.clear();
            if is_last && moved == 0 && received == 0 && self.arriving.lock().unwrap().is_empty() {
                break;
            }
        }
        assert_eq!(self.card.breaches(), []);
        rx.stop().unwrap();
    }

    /// Checks that nothing was dropped, and that all buffers are free.
    fn finish(self) {
        assert_eq!(self.port.statistics().unwrap().drops, Drops::default());
        drop(self.port);
        assert_eq!(self.pool.available(), BUFFERS);
    }
}

/// A frame of a flow.
#[derive(Clone, Debug)]
enum Event {
    /// TCP: the flow, the bytes of payload, PSH, the sequence number's distance to the expected one.
    Segment(u8, usize, bool, i32),
    /// A frame of UDP of the flow's addresses, with this payload.
    Datagram(u8, usize),
    /// An acknowledgement without payload.
    Acknowledgement(u8),
}

/// The sequence numbers wrap after 2,000 bytes.
const FIRST: u32 = u32::MAX - 2000;

/// Returns the frame of an event, and advances the flow's sequence number.
fn frame(event: &Event, n: usize, sequence: &mut [u32; 8]) -> Vec<u8> {
    let (Event::Segment(flow, ..) | Event::Datagram(flow, _) | Event::Acknowledgement(flow)) = *event;
    let ip = || {
        let ethernet = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
        match flow % 2 {
            0 => ethernet.ipv4([10, 0, 0, flow], [10, 0, 0, 100], 9),
            _ => ethernet.ipv6([flow; 16], [100; 16], 9),
        }
    };
    let expected = &mut sequence[usize::from(flow)];
    let fill = |count: usize| (0..count).map(|at| (at / 3 + n) as u8).collect::<Vec<_>>();
    let tcp = |sequence: u32| {
        let tcp = ip().tcp(80, 4000 + u16::from(flow), sequence, n as u16).ack(n as u32);
        // Two of four flows have timestamps.
        let options = [1, 1, 8, 10, 0, 0, n as u8, flow, 0, 0, 0, 9];
        if flow % 4 < 2 { tcp.options_raw(&options).unwrap() } else { tcp }
    };
    let mut bytes = Vec::new();
    match *event {
        Event::Segment(_, count, has_push, distance) => {
            let at = expected.wrapping_add_signed(distance);
            let tcp = if has_push { tcp(at).psh() } else { tcp(at) };
            tcp.write(&mut bytes, &fill(count)).unwrap();
            *expected = at.wrapping_add(count as u32);
        }
        Event::Datagram(_, count) => ip().udp(80, 4000).write(&mut bytes, &fill(count)).unwrap(),
        Event::Acknowledgement(_) => tcp(*expected).write(&mut bytes, &[]).unwrap(),
    }
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn frames(events: &[Event]) -> Vec<Vec<u8>> {
    let mut sequence = [FIRST; 8];
    events.iter().enumerate().map(|(n, event)| frame(event, n, &mut sequence)).collect()
}

/// Received frames, as a host sees them: the bytes of each TCP flow with their sequence numbers, the sequence numbers after
/// PSH, and the frames of other protocols.
#[derive(Default)]
struct Streams {
    bytes: std::collections::BTreeMap<u16, Vec<(u32, u8)>>,
    pushed: std::collections::BTreeMap<u16, Vec<u32>>,
    empty: usize,
    others: Vec<Vec<u8>>,
    longest: std::collections::BTreeMap<u16, usize>,
}

impl Streams {
    fn of(frames: &[Vec<u8>]) -> Streams {
        let mut streams = Streams::default();
        for frame in frames {
            assert_eq!(Checksum::of_frame(frame), Checksum::Good, "{} bytes: {:?}", frame.len(), &frame[..60]);
            let parsed = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
            let Some(etherparse::TransportSlice::Tcp(tcp)) = parsed.transport else {
                streams.others.push(frame.clone());
                continue;
            };
            let (port, first) = (tcp.destination_port(), tcp.sequence_number());
            let payload = tcp.payload();
            streams.empty += usize::from(payload.is_empty());
            let numbers = (0..).map(|at| first.wrapping_add(at));
            streams.bytes.entry(port).or_default().extend(numbers.zip(payload.iter().copied()));
            if tcp.psh() {
                streams.pushed.entry(port).or_default().push(first.wrapping_add(payload.len() as u32));
            }
            let longest = streams.longest.entry(port).or_default();
            *longest = payload.len().max(*longest);
        }
        streams
    }

    /// Checks that these are the streams that were sent, in frames that are not longer.
    fn check(mut self, mut sent: Streams) {
        let (longest, most) = (std::mem::take(&mut self.longest), std::mem::take(&mut sent.longest));
        assert!(longest.iter().all(|(port, longest)| longest <= &most[port]), "{longest:?} of {most:?}");
        let differ = |port: &&u16| self.bytes.get(port) != sent.bytes.get(port);
        assert!(self.bytes == sent.bytes, "flows to ports {:?}", sent.bytes.keys().filter(differ).collect::<Vec<_>>());
        assert_eq!((self.pushed, self.empty), (sent.pushed, sent.empty));
        assert!(self.others == sent.others, "{} and {} other frames", self.others.len(), sent.others.len());
    }
}

/// Returns the frames of all packets of a batch, cut by the software, and counts the packets that were coalesced.
fn cut_all(batch: &mut Batch, frames: &mut Vec<Vec<u8>>) -> usize {
    let mut coalesced = 0;
    for packet in batch.packets() {
        let mut bytes = Vec::new();
        packet.append_to(&mut bytes);
        match packet.offload() {
            Some(left) => {
                assert!(matches!(left.segmentation(), Segmentation::TcpIpv4 | Segmentation::TcpIpv6));
                // The header of the packet itself is right, too, for Linux and other receivers.
                assert!(
                    bytes[12] != 8
                        || etherparse::Ipv4HeaderSlice::from_slice(&bytes[14..]).is_ok_and(|header| {
                            header.to_header().calc_header_checksum() == header.header_checksum()
                        })
                );
                assert!(cut(&bytes, left, |segment| frames.push(segment.to_vec())));
                coalesced += 1;
            }
            None => frames.push(bytes),
        }
    }
    coalesced
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let size = prop_oneof![4 => Just(1428usize), 2 => 1usize..=1428, 1 => Just(536), 1 => 1usize..=80];
    let distance = prop_oneof![20 => Just(0), 1 => -3000i32..3000];
    let event = prop_oneof![
        12 => (0u8..8, size, prop::bool::weighted(0.05), distance)
            .prop_map(|(flow, size, push, distance)| Event::Segment(flow, size, push, distance)),
        1 => (0u8..8, 18usize..=1400).prop_map(|(flow, size)| Event::Datagram(flow, size)),
        1 => (0u8..8).prop_map(Event::Acknowledgement),
    ];
    prop::collection::vec(event, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_byte_arrives_once_and_in_order(
        events in events(),
        each in prop_oneof![1usize..400, Just(1000)],
        capacity in 1usize..80,
        buffer_size in prop::sample::select(vec![2048usize, 4096, 16_384]),
        ring in prop::sample::select(vec![128usize, 512]),
        metadata in any::<bool>(),
    ) {
        let sent = frames(&events);
        let mut test = Test::new(buffer_size, Options { metadata, ring: Some(ring), ..Options::default() });
        let (mut received, mut segments) = (Vec::new(), 0);
        test.receive(&sent, each, capacity, |batch| {
            for packet in batch.packets() {
                let found = packet.metadata();
                let is_left = packet.offload().is_some();
                assert_eq!(found.segments > 1, is_left && metadata);
                assert_eq!(found.checksum == Checksum::Left, is_left);
                segments += usize::from(found.segments.max(1));
            }
            cut_all(batch, &mut received);
        });
        if metadata {
            prop_assert_eq!(segments, sent.len());
        }
        Streams::of(&received).check(Streams::of(&sent));
        test.finish();
    }
}

/// As many frames come out as went in. Where a short last segment hides their length, the buffers in which they began
/// tell most of it.
#[test]
fn segments_are_cut_as_they_arrived() {
    for (buffer_size, size, count, percent) in
        [(2048, 1448, 10, 98), (2048, 100, 12, 95), (4096, 1448, 30, 97), (16_384, 8948, 6, 85)]
    {
        for last in [1, size / 2, size] {
            let segment = |n: usize| Event::Segment(2, if n + 1 < count { size } else { last }, n + 1 == count, 0);
            let sent = frames(&(0..count).map(segment).collect::<Vec<_>>());
            let mut test = Test::new(buffer_size, Options { max_frame: 9018, ..Options::default() });
            let (mut received, mut coalesced) = (Vec::new(), 0);
            test.receive(&sent, 1000, 32, |batch| coalesced += cut_all(batch, &mut received));
            let lens = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
            let (all, what) = (lens(&received), format!("{:?} of {:?}", lens(&received), lens(&sent)));
            assert_eq!((coalesced, all.len()), (1, count), "{what}");
            assert!((all[0] - 54) * 100 >= size * percent && (last < size || all == lens(&sent)), "{what}");
            Streams::of(&received).check(Streams::of(&sent));
            test.finish();
        }
    }
}

/// The card, or the software, of the port to which packets are forwarded cuts them.
#[test]
fn forwarded_packets_are_cut() {
    let events: Vec<_> = (0..300).map(|n| Event::Segment((n % 5) as u8, 1428 - n % 3, n % 40 > 38, 0)).collect();
    let sent = frames(&events);
    for by_card in [true, false] {
        let mut test = Test::new(4096, Options { metadata: true, ..Options::default() });
        let (mut tx, mut forwarded) = (test.port.tx(0).unwrap(), Vec::new());
        let (card, mut coalesced) = (test.card.clone(), 0);
        test.receive(&sent, 100, 64, |batch| {
            coalesced += batch.packets().filter(|packet| packet.offload().is_some()).count();
            for _ in 0..1000 {
                if by_card {
                    tx.send(batch);
                    card.step(1000);
                } else if !batch.is_empty() {
                    assert_eq!(batch.finish_packet(0), Finished::Done);
                    let packet = batch.packets().next().unwrap();
                    let (slots, mut bytes) = (packet.slots(), Vec::new());
                    packet.append_to(&mut bytes);
                    forwarded.push(bytes);
                    batch.drop_front(slots);
                }
            }
            assert!(batch.is_empty(), "the packets are sent");
        });
        assert!(coalesced > 20, "{coalesced} packets were coalesced");
        forwarded.extend(test.sent.lock().unwrap().drain(..));
        drop(tx);
        Streams::of(&forwarded).check(Streams::of(&sent));
        test.finish();
    }
}

/// A queue that is stopped amid packets keeps no buffer, and starts again.
#[test]
fn a_queue_restarts() {
    let mut test = Test::new(2048, Options::default());
    for _ in 0..3 {
        let sent = frames(&(0..100).map(|n| Event::Segment((n % 7) as u8, 1428, false, 0)).collect::<Vec<_>>());
        let mut received = Vec::new();
        test.receive(&sent, 50, 32, |batch| _ = cut_all(batch, &mut received));
        Streams::of(&received).check(Streams::of(&sent));
    }
    test.finish();
}

/// Without the option, the card coalesces nothing.
#[test]
fn the_option_turns_it_on() {
    let [on, off] = linerate::open(["sim:on?offloads=on&wire=none", "sim:off?wire=none"]).unwrap();
    let of = |port: &Port| port.capabilities().of(Feature::ReceiveSegments);
    assert_eq!([of(&on), of(&off)], [Support::Offloaded, Support::None]);
}
