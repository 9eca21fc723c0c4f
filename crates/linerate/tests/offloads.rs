//! Checksums and segmentation left to the card: its frames are those of the software, byte for byte, for random
//! packets, tags, headers and sizes. Metadata of received packets: it describes the packets. The datasheet is never
//! violated.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::metadata::{Checksum, Hash, HashFields, Metadata, PacketKind};
use linerate::port::{Port, Vectors};
use linerate::sim82599::{Card, Frame, Wire};
use linerate::{ErrorKind, Options, Packet};
use linerate_core::batch::Batch;
use linerate_core::offload::{Offload, Segmentation, cut};
use linerate_testkit::Deadline;
use proptest::prelude::*;

const BUFFERS: usize = 1024;

/// The frames that a card has sent.
type Frames = Arc<Mutex<Vec<Vec<u8>>>>;

/// Keeps the frames that the card sends, and gives it the others.
struct Ends {
    sent: Frames,
    arriving: VecDeque<Vec<u8>>,
}

impl Wire for Ends {
    fn transmit(&mut self, frame: &Frame) {
        self.sent.lock().unwrap().push(frame.bytes.clone());
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let next = self.arriving.pop_front();
        next.map(|bytes| *frame = Frame { bytes, bad_crc: false }).is_some()
    }
}

/// Opens a card at a wire on which these frames arrive. Returns its port, its pool, and the frames that it sends.
fn open(arriving: &[Vec<u8>], options: Options) -> (Arc<Card>, Port, Arc<Pool>, Frames) {
    let sent = Frames::default();
    let card = Card::new("offloads", Box::new(Ends { sent: sent.clone(), arriving: arriving.to_vec().into() }));
    let pages = Pages::Only(PageSize::Ordinary);
    let region = RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None };
    let pool = Pool::new(Region::new(&region).unwrap());
    let config = options.of_port("offloads", pool.clone()).unwrap();
    let port = Port::new(linerate::drive_model(&card, None, config).unwrap());
    (card, port, pool, sent)
}

/// A packet's headers, and what its sender leaves to the card.
#[derive(Clone, Debug)]
struct Spec {
    tags: Vec<bool>,
    is_v4: bool,
    /// Words of IPv4 options, or IPv6 extension headers.
    more: u8,
    is_tcp: bool,
    /// Words of TCP options.
    options: u8,
    flags: u8,
    payload: usize,
    /// The payload of each segment; 0 for a checksum only.
    size: u16,
    /// The packet is inside VXLAN, and only its inner checksum is left.
    is_inside: bool,
}

fn specs() -> impl Strategy<Value = Spec> {
    let size = prop_oneof![2 => Just(0), 3 => 40u16..=1448, 1 => 1449u16..=9000];
    let payload = prop_oneof![2 => 0usize..=1400, 2 => 1400usize..=20_000, 1 => 20_000usize..=62_000];
    (
        (prop::collection::vec(any::<bool>(), 0..=2), any::<bool>(), 0u8..=3, any::<bool>(), 0u8..=10),
        (any::<u8>(), payload, size, prop::bool::weighted(0.1)),
    )
        .prop_map(|((tags, is_v4, more, is_tcp, options), (flags, payload, size, is_inside))| {
            let payload = if size == 0 || is_inside { payload % 1300 } else { payload };
            Spec { tags, is_v4, more, is_tcp, options, flags, payload, size, is_inside }
        })
}

impl Spec {
    /// Returns the packet, and what is left to do.
    fn packet(&self, n: u8) -> (Vec<u8>, Offload) {
        let Spec { ref tags, is_v4, more, is_tcp, options, flags, payload, size, is_inside } = *self;
        let mut bytes = vec![2; 12];
        for &is_provider in tags {
            bytes.extend(if is_provider { [0x88, 0xA8] } else { [0x81, 0] });
            bytes.extend([0x60, 7]);
        }
        if is_inside {
            bytes.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            bytes.extend([0x12, 0xB5, 0x12, 0xB5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 9, 0]);
            bytes.extend([4; 12]);
        }
        let header = if is_tcp { 20 + 4 * usize::from(options) } else { 8 };
        let protocol = if is_tcp { 6 } else { 17 };
        let addresses = if is_v4 {
            let length = (20 + 4 * usize::from(more) + header + payload).min(65_535) as u16;
            bytes.extend([8, 0, 0x45 + more, 0]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([0xFF, n, 0, 0, 64, protocol, 0, 0, 10, 0, 0, n, 10, 0, 1, 2]);
            bytes.extend(vec![1; 4 * usize::from(more)]);
            vec![10, 0, 0, n, 10, 0, 1, 2]
        } else {
            let addresses = [[0xFD; 15], [0xFE; 15]].map(|high| [&high[..], &[n]].concat()).concat();
            let length = (8 * usize::from(more) + header + payload) as u16;
            bytes.extend([0x86, 0xDD, 0x60, 0, 0, 0]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([if more > 0 { 60 } else { protocol }, 64]);
            bytes.extend(&addresses);
            for extension in 1..=more {
                bytes.extend([if extension < more { 60 } else { protocol }, 0, 1, 4, 0, 0, 0, 0]);
            }
            addresses
        };
        let transport = bytes.len();
        let length = (header + payload) as u16;
        if is_tcp {
            bytes.extend([0, 80, 16, 225, 0xFF, 0xFF, n, 0, 0, 0, 0, 9, (5 + options) << 4, flags, 16, 0]);
            bytes.extend([0; 4]);
            bytes.extend(vec![1; 4 * usize::from(options)]);
        } else {
            bytes.extend([0, 80, 16, 225]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend((0..payload).map(|at| (at / 5) as u8 ^ n));
        // The sum of the pseudo header, as Linux leaves it.
        let place = transport + if is_tcp { 16 } else { 6 };
        let [high, low] = length.to_be_bytes();
        let pseudo = [&addresses[..], &[0, protocol, high, low]].concat();
        let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let folded = (sum & 0xFFFF) + (sum >> 16);
        bytes[place..place + 2].copy_from_slice(&((folded & 0xFFFF) as u16 + (folded >> 16) as u16).to_be_bytes());
        let kind = match (size, is_tcp, is_v4) {
            _ if is_inside => 0,
            (0, ..) => 0,
            (_, false, _) => 5,
            (_, true, true) => 1,
            (_, true, false) => 4,
        };
        let ([a, b], [c, d]) = (size.to_le_bytes(), (transport as u16).to_le_bytes());
        (bytes, Offload([1, kind, 0, 0, a, b, c, d, (place - transport) as u8, 0]))
    }
}

/// Returns the frames that the software makes of a packet; those longer than `longest` are not sent.
fn in_software(packet: &[u8], left: Offload, longest: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    if left.segmentation() == Segmentation::None {
        // The software computes checksums in the packet's first buffer only.
        let mut bytes = packet.to_vec();
        let is_inside = left.checksum_offsets(bytes.len().min(1920)).is_some();
        if (is_inside || !left.needs_checksum()) && left.finish_bytes(&mut bytes) {
            frames.push(bytes);
        }
    } else {
        cut(packet, left, |segment| frames.push(segment.to_vec()));
    }
    for frame in &mut frames {
        frame.resize(frame.len().max(60), 0);
    }
    frames.retain(|frame| frame.len() <= longest);
    frames
}

/// Sends the packets through a card, and returns its frames, and the slots that it got.
fn by_card(packets: &[(Vec<u8>, Offload)], vectors: Vectors, ring: usize, longest: usize) -> (Vec<Vec<u8>>, u64) {
    changed_by_card(packets, vectors, ring, longest, |_| ())
}

/// As [`by_card`], for packets that are changed before.
fn changed_by_card(
    packets: &[(Vec<u8>, Offload)],
    vectors: Vectors,
    ring: usize,
    longest: usize,
    change: impl Fn(&mut Packet<'_>),
) -> (Vec<Vec<u8>>, u64) {
    let options = Options { ring: Some(ring), vectors, max_frame: longest - 4, ..Options::default() };
    let (card, mut port, pool, sent) = open(&[], options);
    let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
    let mut waiting = packets.iter();
    let mut next = waiting.next();
    for _ in 0..100_000 {
        while let Some((bytes, left)) = next
            && batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(*left))
        {
            next = waiting.next();
            batch.packets().last().iter_mut().for_each(&change);
        }
        tx.send(&mut batch);
        let busy = card.step(16) > 0;
        if next.is_none() && batch.is_empty() && !busy {
            break;
        }
    }
    assert!(batch.is_empty() && next.is_none(), "all packets are sent");
    assert_eq!(card.breaches(), []);
    let slots = port.queue_statistics().tx_slots[0];
    tx.stop().unwrap();
    drop((batch, port));
    assert_eq!(pool.available(), BUFFERS);
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    (sent, slots)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_card_s_frames_are_those_of_the_software(
        specs in prop::collection::vec(specs(), 1..40),
        ring in prop::sample::select(vec![64usize, 128, 512]),
        longest in prop::sample::select(vec![1522usize, 9022]),
    ) {
        let packets: Vec<_> = specs.iter().enumerate().map(|(n, spec)| spec.packet(n as u8)).collect();
        let expected: Vec<_> = packets.iter().flat_map(|(bytes, left)| in_software(bytes, *left, longest)).collect();
        for vectors in [Vectors::Best, Vectors::Scalar] {
            let (frames, _) = by_card(&packets, vectors, ring, longest);
            for (n, (frame, expected)) in frames.iter().zip(&expected).enumerate() {
                let at = frame.iter().zip(expected).position(|(one, other)| one != other);
                prop_assert!(frame == expected, "frame {n}, {} and {} bytes, at {at:?}", frame.len(), expected.len());
            }
            prop_assert_eq!(frames.len(), expected.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Leaving the checksum or the segmentation of a packet prepares it as Linux does.
    #[test]
    fn what_is_left_is_prepared(spec in specs(), n: u8, garbage: [u8; 2]) {
        let (expected, left) = spec.packet(n);
        let mut bytes = expected.clone();
        let at = left.checksum_offsets(bytes.len()).unwrap().1;
        bytes[at..at + 2].copy_from_slice(&garbage);
        let done = Offload::leave(&mut bytes, expected.len(), NonZeroU16::new(spec.size));
        match spec.is_inside {
            // The outer IP header has another length.
            true => prop_assert_eq!(done, None),
            false => {
                prop_assert_eq!(done, Some(left));
                prop_assert!(bytes == expected);
            }
        }
        let before = bytes.clone();
        prop_assert_eq!(Offload::leave(&mut bytes[..at], expected.len(), None), None);
        prop_assert!(bytes == before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// Headers and offloads of a hostile peer: the card gets only what is possible, and its frames are still those of
    /// the software.
    #[test]
    fn hostile_offloads_reach_no_card(
        packets in prop::collection::vec((specs(), prop::collection::vec((0usize..80, any::<u8>()), 0..3),
            prop::collection::vec((0usize..10, prop_oneof![0u8..=60, any::<u8>()]), 0..3)), 1..40),
    ) {
        let hostile = |n: usize, spec: &Spec, bytes: &[(usize, u8)], offloads: &[(usize, u8)]| {
            let (mut packet, mut left) = spec.packet(n as u8);
            packet.truncate(20_000);
            let len = packet.len();
            bytes.iter().for_each(|&(at, byte)| packet[at % len] = byte);
            offloads.iter().for_each(|&(at, byte)| left.0[at] = byte);
            (packet, left)
        };
        let packets: Vec<_> =
            packets.iter().enumerate().map(|(n, (spec, bytes, offloads))| hostile(n, spec, bytes, offloads)).collect();
        let expected: Vec<_> = packets.iter().flat_map(|(bytes, left)| in_software(bytes, *left, 1522)).collect();
        let (frames, _) = by_card(&packets, Vectors::Best, 512, 1522);
        let same = |(frame, expected): (&Vec<u8>, &Vec<u8>)| {
            // Software writes the checksum 0xFFFF instead of 0, which is equivalent for TCP.
            let differ = frame.iter().zip(expected).filter(|(one, other)| one != other);
            frame.len() == expected.len() && differ.into_iter().all(|(one, other)| (*one, *other) == (0, 0xFF))
        };
        prop_assert!(frames.len() == expected.len() && frames.iter().zip(&expected).all(same));
    }
}

/// Returns a packet with whole checksums, and the bytes of its transport checksum.
fn finished(spec: &Spec, n: u8) -> (Vec<u8>, usize) {
    let (mut bytes, left) = Spec { size: 0, is_inside: false, ..spec.clone() }.packet(n);
    assert!(left.finish_bytes(&mut bytes));
    let network = 14 + 4 * spec.tags.len();
    let at = left.checksum_offsets(bytes.len()).unwrap().1;
    if spec.is_v4 {
        let header = &bytes[network..network + 20 + 4 * usize::from(spec.more)];
        let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let folded = (sum & 0xFFFF) + (sum >> 16);
        bytes[network + 10..network + 12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
    bytes.resize(bytes.len().max(60), 0);
    (bytes, at)
}

/// Receives the frames, and returns the metadata of each.
fn metadata(frames: &[Vec<u8>], vectors: Vectors, capacity: usize) -> Vec<Metadata> {
    let options = Options { vectors, metadata: true, max_frame: 9000, ring: Some(64), ..Options::default() };
    let (card, mut port, pool, _) = open(frames, options);
    let (mut rx, mut batch, mut all) = (port.rx(0).unwrap(), Batch::with_capacity(capacity), Vec::new());
    for _ in 0..10_000 {
        card.step(7);
        rx.recv(&mut batch);
        for packet in batch.packets() {
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            assert!(bytes == frames[all.len()], "frame {}", all.len());
            assert_eq!(packet.timestamp(), None);
            all.push(packet.metadata());
        }
        batch.clear();
        if all.len() == frames.len() {
            break;
        }
    }
    assert_eq!(card.breaches(), []);
    drop((rx, port, batch));
    assert_eq!(pool.available(), BUFFERS);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn metadata_describes_its_packet(
        specs in prop::collection::vec((specs(), 0u8..3), 1..100),
        capacity in 1usize..=40,
        is_jumbo in any::<bool>(),
    ) {
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for (n, (spec, damage)) in specs.iter().enumerate() {
            let payload = if is_jumbo { spec.payload % 8800 } else { spec.payload % 1300 };
            // The card finds headers after one tag only (7.1.6.2).
            let tags = spec.tags.iter().take(1).map(|_| false).collect();
            let spec = Spec { tags, payload, ..spec.clone() };
            let (mut bytes, at) = finished(&spec, n as u8);
            let network = 14 + 4 * spec.tags.len();
            let checksum = match damage {
                1 => {
                    bytes[at] ^= 0x10;
                    // 0 means that UDP has no checksum.
                    bytes[at + 1] |= 1;
                    Checksum::Bad
                }
                2 if spec.is_v4 => {
                    bytes[network + 8] ^= 1; // the time to live
                    Checksum::Bad
                }
                _ => Checksum::Good,
            };
            let has_options = spec.more > 0;
            let network = match (spec.is_v4, has_options) {
                (true, false) => PacketKind::IPV4,
                (true, true) => PacketKind::IPV4 | PacketKind::IPV4_OPTIONS,
                (false, false) => PacketKind::IPV6,
                (false, true) => PacketKind::IPV6 | PacketKind::IPV6_EXTENSIONS,
            };
            let transport = if spec.is_tcp { PacketKind::TCP } else { PacketKind::UDP };
            frames.push(bytes);
            expected.push((checksum, network | transport));
        }
        for vectors in [Vectors::Best, Vectors::Scalar] {
            let all = metadata(&frames, vectors, capacity);
            prop_assert_eq!(all.len(), frames.len());
            for (n, (metadata, (checksum, kind))) in all.iter().zip(&expected).enumerate() {
                prop_assert_eq!(metadata.checksum, *checksum, "frame {}", n);
                prop_assert_eq!(Checksum::of_frame(&frames[n]), *checksum, "frame {}, in software", n);
                prop_assert_eq!(metadata.kind, Some(PacketKind(*kind)), "frame {}", n);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// The tag is in the metadata instead of the packet, also after a reset, and the program puts it back.
    #[test]
    fn a_stripped_tag_is_in_the_metadata(
        specs in prop::collection::vec(specs(), 1..100),
        capacity in 1usize..=40,
        strips in any::<bool>(),
        is_reset in any::<bool>(),
    ) {
        let frame = |(n, spec): (usize, &Spec)| {
            let spec = Spec { payload: spec.payload % 8800, ..spec.clone() };
            let mut bytes = finished(&spec, n as u8).0;
            if !spec.tags.is_empty() {
                (bytes[14], bytes[15]) = (n as u8 ^ 0xA5, n as u8);
            }
            bytes
        };
        let frames: Vec<_> = specs.iter().enumerate().map(frame).collect();
        let options = Options { metadata: true, max_frame: 9000, ring: Some(64), ..Options::default() };
        let (card, mut port, pool, _) = open(&frames, options);
        port.strip_vlan_tags(strips).unwrap();
        if is_reset {
            port.reset().unwrap();
        }
        let (mut rx, mut batch, mut arrived) = (port.rx(0).unwrap(), Batch::with_capacity(capacity), 0);
        assert_eq!(port.strip_vlan_tags(false).unwrap_err().kind(), ErrorKind::InUse);
        for _ in 0..10_000 {
            card.step(7);
            rx.recv(&mut batch);
            for mut packet in batch.packets() {
                let (frame, tags) = (&frames[arrived], &specs[arrived].tags);
                let tag = (strips && tags.first() == Some(&false)).then(|| u16::from_be_bytes([frame[14], frame[15]]));
                assert_eq!((packet.metadata().vlan, packet.len()), (tag, frame.len() - tag.map_or(0, |_| 4)));
                if let Some(tag) = tag {
                    packet.insert_vlan(tag).unwrap();
                }
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes);
                assert!(bytes == *frame, "frame {arrived}");
                arrived += 1;
            }
            batch.clear();
            if arrived == frames.len() {
                break;
            }
        }
        prop_assert_eq!(arrived, frames.len());
        prop_assert_eq!(card.breaches(), vec![]);
        drop((rx, port, batch));
        prop_assert_eq!(pool.available(), BUFFERS);
    }

    /// A tag may be inserted or removed before what is left has been done: all segments have it, or none.
    #[test]
    fn segments_have_the_packet_s_tag(specs in prop::collection::vec(specs(), 1..40)) {
        let with = |tags: &[bool]| -> Vec<_> {
            let spec = |spec: &Spec| Spec { tags: tags.to_vec(), is_inside: false, ..spec.clone() };
            specs.iter().enumerate().map(|(n, one)| spec(one).packet(n as u8)).collect()
        };
        let (plain, tagged) = (with(&[]), with(&[false]));
        let (expected, _) = by_card(&tagged, Vectors::Best, 512, 1522);
        let (inserted, _) = changed_by_card(&plain, Vectors::Best, 512, 1522, |packet| packet.insert_vlan(0x6007).unwrap());
        prop_assert!(inserted == expected);
        let (expected, _) = by_card(&plain, Vectors::Best, 512, 1522);
        let (removed, _) =
            changed_by_card(&tagged, Vectors::Best, 512, 1522, |packet| assert_eq!(packet.remove_vlan().unwrap(), Some(0x6007)));
        prop_assert!(removed == expected);
    }
}

#[test]
fn tags_are_stripped_into_metadata_only() {
    let (_card, mut port, _, _) = open(&[], Options::default());
    let refused = port.strip_vlan_tags(true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    assert!(refused.remedy().is_some_and(|remedy| remedy.to_string().contains("metadata=on")));
    port.strip_vlan_tags(false).unwrap();
    let [mut switch] = linerate::open(["vale54:strip"]).unwrap();
    assert_eq!(switch.strip_vlan_tags(true).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The hash is that of the standard's example (Microsoft's "Verifying the RSS hash calculation"), with its key.
#[test]
fn the_hash_is_the_standard_s() {
    // 66.9.149.187:2794 to 161.142.100.80:1766.
    let mut tcp = Vec::new();
    let ip = || etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([66, 9, 149, 187], [161, 142, 100, 80], 9);
    ip().tcp(2794, 1766, 0, 1000).write(&mut tcp, &[0; 20]).unwrap();
    let mut icmp = Vec::new();
    ip().icmpv4_echo_request(1, 2).write(&mut icmp, &[0; 40]).unwrap();
    let arp = [vec![0xFF; 6], vec![2; 6], vec![8, 6], vec![0; 46]].concat();
    let all = metadata(&[tcp, icmp, arp], Vectors::Best, 32);
    let hashes: Vec<_> = all.iter().map(|metadata| metadata.hash).collect();
    let expected = |value, fields| Some(Hash { value, fields });
    assert_eq!(hashes, [expected(0x51CC_C178, HashFields::TcpIpv4), expected(0x323E_8FC2, HashFields::Ipv4), None]);
    assert_eq!(
        all.iter().map(|metadata| metadata.checksum).collect::<Vec<_>>(),
        [Checksum::Good, Checksum::Unknown, Checksum::Unknown]
    );
}

/// The card gets the slots of the large packets, not those of their segments.
#[test]
fn large_packets_are_left_to_the_card() {
    let tcp = Spec {
        tags: vec![],
        is_v4: true,
        more: 0,
        is_tcp: true,
        options: 3,
        flags: 0x10,
        payload: 60_000,
        size: 1000,
        is_inside: false,
    };
    let udp = Spec { is_v4: false, is_tcp: false, options: 0, ..tcp.clone() };
    let packets = [tcp.packet(1), udp.packet(2)];
    let (frames, slots) = by_card(&packets, Vectors::Best, 512, 1522);
    assert_eq!((frames.len(), slots), (120, 2 * 60_000u64.div_ceil(1920)));
    // Frames that are longer than the card sends: the software drops them.
    let (frames, _) = by_card(&[Spec { size: 1500, ..tcp }.packet(1)], Vectors::Best, 512, 1522);
    assert!(frames.is_empty());
}

/// A packet whose segments fill the batch is sent by several calls: of the ring's many descriptors, none is left over.
#[test]
fn segments_that_fill_the_batch_are_sent() {
    let tcp = Spec {
        tags: vec![],
        is_v4: true,
        more: 0,
        is_tcp: true,
        options: 0,
        flags: 0x10,
        payload: 60_000,
        size: 100,
        is_inside: false,
    };
    // Software cuts it, since it has more slots than the card's shortest ring takes.
    let packets = [Spec { size: 0, payload: 100, ..tcp.clone() }.packet(1), tcp.packet(2)];
    let expected: Vec<_> = packets.iter().flat_map(|(bytes, left)| in_software(bytes, *left, 1522)).collect();
    let (frames, _) = by_card(&packets, Vectors::Best, 64, 1522);
    assert_eq!((frames.len(), expected.len()), (601, 601));
    assert!(frames == expected);
}

/// Sends a packet of 50,000 bytes, left to be segmented, from the first of these ports to the last. Returns the frames
/// that arrive, and the frames into which the software cuts it.
fn cut_between(names: &[&str]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut tcp = Vec::new();
    let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &(0..50_000).map(|n| n as u8).collect::<Vec<_>>()).unwrap();
    let size = NonZeroU16::new(1448);
    let len = tcp.len();
    let left = Offload::leave(&mut tcp, len, size).unwrap();
    let expected = in_software(&tcp, left, 1522);
    let mut ports = Options::default().open_all(names).unwrap();
    let mut rx = ports.last_mut().unwrap().rx(0).unwrap();
    let (mut tx, mut batch) = (ports[0].tx(0).unwrap(), Batch::new());
    batch.push(ports[0].pool(), &tcp);
    batch.packets().for_each(|mut packet| packet.leave_segments(size.unwrap()).unwrap());
    let (mut received, mut frames) = (Batch::new(), Vec::new());
    let deadline = Deadline::begin();
    while frames.len() < expected.len() {
        deadline.check(|| format!("{names:?}: {} of {} frames arrived", frames.len(), expected.len()));
        tx.send(&mut batch);
        rx.recv(&mut received);
        received.packets().for_each(|packet| {
            assert!(packet.offload().is_none(), "{names:?}");
            let mut bytes = Vec::new();
            packet.append_to(&mut bytes);
            frames.push(bytes);
        });
        received.clear();
    }
    (frames, expected)
}

/// A port whose other end has not asked for offloads sends whole frames.
#[test]
fn other_kinds_do_what_is_left_in_software() {
    let pairs =
        [["54{1", "54}1"], ["vale54o:a", "vale54o:b"], ["link:54{2?delay=1ms", "54}2"], ["faulty:54{3", "54}3"]];
    for names in pairs.iter().map(|pair| &pair[..]).chain([&["echo:54"][..]]) {
        let (frames, expected) = cut_between(names);
        assert!(frames == expected, "{names:?}");
    }
}

/// A damaged frame has the checksum of the frame that was sent.
#[test]
fn damage_is_not_hidden_by_a_later_checksum() {
    let (frames, expected) = cut_between(&["faulty:54{4?corrupt=100%", "54}4"]);
    for (frame, expected) in frames.iter().zip(&expected) {
        let different: u32 = frame.iter().zip(expected).map(|(one, other)| (one ^ other).count_ones()).sum();
        assert_eq!((frame.len(), different), (expected.len(), 1));
    }
}

#[test]
fn packets_that_cannot_be_cut_are_refused() {
    let [port] = linerate::open(["null:"]).unwrap();
    let (mut tcp, mut batch) = (Vec::new(), Batch::new());
    let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &[7; 2_048 * 2 + 1]).unwrap();
    batch.push(port.pool(), &tcp);
    let mut packet = batch.packets().next().unwrap();
    assert!(packet.leave_segments(1.try_into().unwrap()).unwrap_err().why().contains("2,048 segments"));
    packet.leave_segments(2.try_into().unwrap()).unwrap();
    packet.insert_vlan(1).unwrap();
    packet.insert_vlan(2).unwrap();
    assert_eq!(packet.insert_vlan(3).unwrap_err().kind(), ErrorKind::Unfinished);
    assert_eq!((packet.remove_vlan().unwrap(), packet.len()), (Some(2), tcp.len() + 4));
}
