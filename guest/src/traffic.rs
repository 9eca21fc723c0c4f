//! The test's traffic at the far ends of the cables, with every byte of every frame checked.

use std::collections::{BTreeMap, VecDeque};

use linerate::traffic::Generator;

use crate::wire::Wire;

/// Frames in flight at a time; enough that only the guest limits the rate.
const WINDOW: usize = 64;

/// Returns frames of all sizes from 60 to `longest` bytes; each size is its own flow. Flows differ in source address and
/// port, since an 82574 does not hash UDP's ports.
fn assorted(longest: usize) -> Vec<Generator> {
    let flow = |size: usize| {
        let mut template = frame(&mut Generator::new(size + 4, 1));
        // Incremental update of the header's checksum (RFC 1624), which the address 198.18.0.1 had before.
        let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | u32::from(bytes[1]);
        let sum = u32::from(!(word(&template[24..]) as u16)) + u32::from(!1u16) + size as u32;
        let folded = (sum & 0xFFFF) + (sum >> 16);
        template[24..26].copy_from_slice(&(!(((folded & 0xFFFF) + (folded >> 16)) as u16)).to_be_bytes());
        template[28..30].copy_from_slice(&(size as u16).to_be_bytes());
        Generator::from_template(&template, 1).with_flows(size as u16..size as u16 + 1)
    };
    (60..=longest).map(flow).collect()
}

fn frame(generator: &mut Generator) -> Vec<u8> {
    let mut frame = vec![0; generator.frame_len()];
    generator.fill(&mut frame);
    frame
}

/// Counts a forwarder in a frame's stamp, as a forwarder does.
fn as_forwarded(mut frame: Vec<u8>) -> Vec<u8> {
    linerate::traffic::touch(&mut frame);
    frame
}

#[track_caller]
fn same(number: usize, came: &[u8], expected: &[u8]) {
    let (len, sent) = (came.len(), expected.len());
    assert!(
        came == expected,
        "frame {number}: {len} bytes arrived instead of the {sent} sent, or their contents were changed on the way"
    );
}

/// Sends `count` frames of 60 to `longest` bytes into `from`, and checks that the same frames leave `to` in order. The
/// forwarder must have changed each once.
#[track_caller]
pub fn check_forwarding(from: &Wire, to: &Wire, count: usize, longest: usize) {
    let mut generators = assorted(longest);
    let kinds = generators.len();
    let mut on_their_way = VecDeque::new();
    for number in 0..count + WINDOW {
        if number < count {
            let frame = frame(&mut generators[number % kinds]);
            from.send(&frame);
            on_their_way.push_back(as_forwarded(frame));
        }
        if number >= WINDOW
            && let Some(expected) = on_their_way.pop_front()
        {
            same(number - WINDOW, &to.receive(), &expected);
        }
    }
}

/// Does the same as [`check_forwarding`] through a port with several queues: every frame must arrive, in order within
/// its flow.
#[track_caller]
pub fn check_flow_forwarding(from: &Wire, to: &Wire, count: usize, longest: usize) {
    let mut generators = assorted(longest);
    let kinds = generators.len();
    let mut on_their_way: BTreeMap<u16, VecDeque<Vec<u8>>> = BTreeMap::new();
    for number in 0..count + WINDOW {
        if number < count {
            let frame = frame(&mut generators[number % kinds]);
            from.send(&frame);
            on_their_way.entry(flow(&frame)).or_default().push_back(as_forwarded(frame));
        }
        if number >= WINDOW {
            let came = to.receive();
            let expected = on_their_way.get_mut(&flow(&came)).and_then(VecDeque::pop_front);
            same(number - WINDOW, &came, &expected.expect("a frame of a flow that was sent"));
        }
    }
}

/// Returns the UDP source port.
fn flow(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// Checks that the next `count` frames are those of `linerate gen --size`, CRC included, with one flow.
#[track_caller]
pub fn expect_generated(wire: &Wire, count: usize, size: usize) {
    let mut generator = Generator::new(size, 1);
    for number in 0..count {
        same(number, &wire.receive(), &frame(&mut generator));
    }
}

/// Sends `count` frames for `linerate sink`.
pub fn send_frames(wire: &Wire, count: usize, size: usize) {
    let mut generator = Generator::new(size, 1);
    (0..count).for_each(|_| wire.send(&frame(&mut generator)));
}

/// Returns the hash of a datagram: FNV-1a over its bytes, except the hash itself. A datagram begins with its number and
/// this hash, of eight bytes each.
pub fn hash_of(datagram: &[u8]) -> u64 {
    let bytes = datagram[..8].iter().chain(&datagram[16..]);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}
