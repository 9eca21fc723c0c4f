//! Checksums and segmentation left to the card: its frames are those of the software, byte for byte, for random
//! packets, tags, headers and sizes, and the datasheet is never violated.

use std::sync::{Arc, Mutex};

use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Port, Vectors};
use linerate::sim82599::{Card, Frame, Wire};
use linerate_core::batch::Batch;
use linerate_core::offload::{Offload, cut};
use proptest::prelude::*;

const BUFFERS: usize = 1024;

/// Keeps the frames that the card sends.
struct Sent(Arc<Mutex<Vec<Vec<u8>>>>);

impl Wire for Sent {
    fn transmit(&mut self, frame: &Frame) {
        self.0.lock().unwrap().push(frame.bytes.clone());
    }

    fn receive(&mut self, _frame: &mut Frame) -> bool {
        false
    }
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
    if left.0[1] == 0 {
        let mut bytes = packet.to_vec();
        assert!(left.finish_bytes(&mut bytes));
        frames.push(bytes);
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
    let sent = Arc::new(Mutex::new(Vec::new()));
    let card = Card::new("offloads", Box::new(Sent(sent.clone())));
    let pages = Pages::Only(PageSize::Ordinary);
    let pool =
        Pool::new(Region::new(&RegionOptions { buffers: BUFFERS, buffer_size: 2048, pages, numa_node: None }).unwrap());
    let options = Options { ring: Some(ring), vectors, max_frame: longest - 4, ..Options::default() };
    let config = options.of_port("offloads", pool.clone()).unwrap();
    let mut port = Port::new(linerate::drive_model(&card, None, config).unwrap());
    let (mut tx, mut batch) = (port.tx(0).unwrap(), Batch::new());
    let mut waiting = packets.iter();
    let mut next = waiting.next();
    for _ in 0..100_000 {
        while let Some((bytes, left)) = next
            && batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(*left))
        {
            next = waiting.next();
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
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
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
