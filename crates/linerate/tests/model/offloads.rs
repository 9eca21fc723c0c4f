//! Offloads of the card: checksums, tags, segmentation and coalescing.

use linerate::pci::Bar;
use linerate::sim82599::Breach;
use linerate::spec::descriptor::{context, legacy_transmit, receive, transmit};
use linerate::spec::x82599::*;

use crate::bench::{Bench, PACKET, RX_RING, pattern, words};
use crate::packets::{
    ACK, CWR, ETHERNET, FIN, Ip, PUSH, Transport, frame, pseudo, sctp, tagged, udp_that_sums_to_zero,
};

const ADVANCED: u32 = 2 | SRRCTL::DESCTYPE_ADVANCED;
const PLAIN_TCP: Transport = Transport::Tcp { sequence: 1000, flags: ACK };
const IPS: [Ip; 2] = [Ip::V4, Ip::V6];

/// Returns a context descriptor for context 1 of the two.
fn context_of(ip: Ip, l4t: u64, l4len: usize, mss: usize, vlan: u16) -> [u64; 2] {
    let first =
        (ETHERNET as u64) << context::MACLEN_SHIFT | ip.header() as u64 | u64::from(vlan) << context::VLAN_SHIFT;
    let version = if ip == Ip::V4 { context::IPV4 } else { 0 };
    let second =
        transmit::DEXT | transmit::DTYP_CONTEXT | version | l4t << context::L4T_SHIFT | 1 << transmit::IDX_SHIFT;
    [first, second | (l4len as u64) << context::L4LEN_SHIFT | (mss as u64) << context::MSS_SHIFT]
}

/// Returns a descriptor for the packet in buffer 100 that requests `options` with context 1.
fn data(bench: &Bench, len: usize, payload: usize, options: u64) -> [u64; 2] {
    let word = PACKET | len as u64 | options | 1 << transmit::IDX_SHIFT | transmit::CC;
    [bench.buffer(100), word | (payload as u64) << transmit::PAYLEN_SHIFT]
}

fn l4t(transport: Transport) -> u64 {
    if transport == Transport::Udp { 0 } else { 1 }
}

/// Returns the packet without checksums; the transport's field holds the pseudo-header sum.
fn unfinished(ip: Ip, transport: Transport, mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    if ip == Ip::V4 {
        bytes[ETHERNET + 10..ETHERNET + 12].fill(0);
    }
    let at = ETHERNET + ip.header() + transport.checksum();
    bytes[at..at + 2].copy_from_slice(&pseudo(ip, transport, length));
    bytes
}

#[test]
fn checksums_equal_those_of_another_library() {
    let bench = Bench::with_queues(ADVANCED);
    for ip in IPS {
        for transport in [PLAIN_TCP, Transport::Udp] {
            for len in [0, 1, 2, 501, 1400] {
                let expected = frame(ip, 9, transport, &pattern(len));
                let whole = transport.header() + len;
                let packet = unfinished(ip, transport, expected.clone(), whole);
                let context = context_of(ip, l4t(transport), transport.header(), 0, 0);
                let sums = transmit::TXSM | if ip == Ip::V4 { transmit::IXSM } else { 0 };
                let sent = bench.send(&packet, &[context, data(&bench, packet.len(), packet.len(), sums)]);
                assert_eq!(sent.len(), 1);
                assert_eq!(sent[0].bytes[..expected.len()], expected, "{ip:?} {transport:?} {len}");
                // Without a request, the card does not change the packet.
                let sent = bench.send(&packet, &[data(&bench, packet.len(), packet.len(), 0)]);
                assert_eq!(sent[0].bytes[..packet.len()], packet);
            }
        }
        let expected = udp_that_sums_to_zero(ip);
        let packet = unfinished(ip, Transport::Udp, expected.clone(), 12);
        let sums = transmit::TXSM | if ip == Ip::V4 { transmit::IXSM } else { 0 };
        let sent = bench.send(&packet, &[context_of(ip, 0, 8, 0, 0), data(&bench, packet.len(), packet.len(), sums)]);
        assert_eq!(sent[0].bytes[..expected.len()], expected);
    }
    let expected = sctp(&pattern(333));
    let mut packet = expected.clone();
    packet[ETHERNET + 20 + 8..][..4].fill(0);
    let sent = bench
        .send(&packet, &[context_of(Ip::V4, 2, 12, 0, 0), data(&bench, packet.len(), packet.len(), transmit::TXSM)]);
    assert_eq!(sent[0].bytes, expected);
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn segments_equal_those_of_another_library() {
    let bench = Bench::with_queues(ADVANCED);
    let bar = &bench.bar;
    // All segments but the last lose FIN and PSH, and the last loses CWR.
    assert_eq!((bar.read(DTXTCPFLGL::OFFSET), bar.read(DTXTCPFLGH::OFFSET)), (0x0FF6_0FF6, 0x0000_0F7F));
    let payload = pattern(20_000);
    for ip in IPS {
        for (transport, tag) in [(PLAIN_TCP, None), (PLAIN_TCP, Some(0x6123)), (Transport::Udp, None)] {
            for mss in [1448, 10_000, 20_000, 536] {
                let large = match transport {
                    Transport::Tcp { sequence, .. } => Transport::Tcp { sequence, flags: ACK | PUSH | FIN | CWR },
                    Transport::Udp => Transport::Udp,
                };
                let packet = unfinished(ip, transport, frame(ip, 0xFFFE, large, &payload), 0);
                let context = context_of(ip, l4t(transport), transport.header(), mss, tag.unwrap_or(0));
                let sums = transmit::TSE | transmit::TXSM | if ip == Ip::V4 { transmit::IXSM } else { 0 };
                let options = sums | if tag.is_some() { transmit::VLE } else { 0 };
                bar.write(HLREG0::OFFSET, bar.read(HLREG0::OFFSET) | HLREG0::JUMBOEN);
                let sent = bench.send(&packet, &[context, data(&bench, packet.len(), payload.len(), options)]);
                let count = payload.len().div_ceil(mss);
                assert_eq!(sent.len(), count);
                for (n, (sent, part)) in sent.iter().zip(payload.chunks(mss)).enumerate() {
                    let (is_alone, is_last) = (count == 1, n + 1 == count);
                    let transport = match transport {
                        Transport::Tcp { sequence, .. } => Transport::Tcp {
                            sequence: sequence + (n * mss) as u32,
                            flags: ACK | if is_last { PUSH | FIN } else { CWR } | if is_alone { CWR } else { 0 },
                        },
                        Transport::Udp => Transport::Udp,
                    };
                    let expected = frame(ip, 0xFFFEu16.wrapping_add(n as u16), transport, part);
                    let expected = tag.map_or(expected.clone(), |tag| tagged(expected, tag));
                    assert!(sent.bytes[..expected.len()] == expected, "{ip:?} {transport:?} {mss}: segment {n}");
                }
            }
        }
    }
    assert_eq!(bench.card.breaches(), []);
}

/// Segmentation in tunnels, as Linux does it: IPLEN includes the outer, the tunnel's and the inner header. The driver
/// sets the outer checksum field to a value that compensates for everything except the outer header, since the card
/// includes the field in the sum (7.2.5.1).
#[test]
fn the_outer_checksum_of_tunnelled_segments_covers_the_outer_header() {
    let bench = Bench::with_queues(ADVANCED);
    const MSS: usize = 1000;
    for inner in IPS {
        let packet = frame(inner, 1, PLAIN_TCP, &pattern(3 * MSS));
        let outer = frame(Ip::V4, 7, Transport::Udp, &[])[..ETHERNET + 20].to_vec();
        let mut packet = [outer, packet[ETHERNET..].to_vec()].concat();
        let (start, end) = (ETHERNET + 20, ETHERNET + 20 + inner.header());
        // The inner headers are the same in all segments: the stack sets them for one segment.
        let sum = |bytes: &[u8]| {
            let sum = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
            let folded = (sum & 0xFFFF) + (sum >> 16);
            ((folded & 0xFFFF) + (folded >> 16)) as u16
        };
        let makes_up = !sum(&packet[start..end]);
        packet[ETHERNET + 2..ETHERNET + 4].fill(0);
        packet[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&makes_up.to_be_bytes());
        let context = [
            (ETHERNET as u64) << context::MACLEN_SHIFT | (end - ETHERNET) as u64,
            context_of(Ip::V4, 1, PLAIN_TCP.header(), MSS, 0)[1],
        ];
        let options = transmit::TSE | transmit::TXSM | transmit::IXSM;
        let sent = bench.send(&packet, &[context, data(&bench, packet.len(), 3 * MSS, options)]);
        assert_eq!(sent.len(), 3);
        for frame in sent {
            let outer = &frame.bytes[ETHERNET..start];
            assert_eq!(outer[2..4], ((frame.bytes.len() - ETHERNET) as u16).to_be_bytes());
            assert_eq!(sum(outer), 0xFFFF, "{inner:?} inside");
        }
    }
    assert_eq!(bench.card.breaches(), []);
}

#[test]
fn tags_are_inserted_and_taken_out() {
    let bench = Bench::with_queues(ADVANCED);
    let bar = &bench.bar;
    let plain = frame(Ip::V4, 1, Transport::Udp, &pattern(100));
    let with_tag = tagged(plain.clone(), 0xA077);
    bar.write(VLNCTRL::OFFSET, 0x8100);
    // Insert a tag by a context, and by a legacy descriptor.
    let advanced = [context_of(Ip::V4, 0, 0, 0, 0xA077), data(&bench, plain.len(), plain.len(), transmit::VLE)];
    assert_eq!(bench.send(&plain, &advanced)[0].bytes, with_tag);
    let legacy = transmit::EOP | transmit::IFCS | transmit::RS | transmit::VLE | 0xA077 << legacy_transmit::VLAN_SHIFT;
    assert_eq!(bench.send(&plain, &[[bench.buffer(100), legacy | plain.len() as u64]])[0].bytes, with_tag);

    let length = |[_, word]: [u64; 2]| (word >> receive::LENGTH_SHIFT & 0xFFFF) as usize;
    let tag = |[_, word]: [u64; 2]| (word & receive::VP != 0, word >> receive::VLAN_SHIFT);
    bench.inject(with_tag.clone());
    assert_eq!((length(bench.last()), tag(bench.last())), (with_tag.len(), (true, 0)));
    bar.write(RXDCTL::at(0), RXDCTL::ENABLE | RXDCTL::VME);
    bench.inject(with_tag);
    assert_eq!((length(bench.last()), tag(bench.last())), (plain.len(), (true, 0xA077)));
    assert_eq!(bench.bytes(1, plain.len()), plain);
    bench.inject(plain);
    assert_eq!(tag(bench.last()), (false, 0));
    assert_eq!(bench.card.breaches(), []);
}

/// A legacy descriptor can request a checksum of any bytes, at any position.
#[test]
fn a_legacy_descriptor_selects_the_summed_bytes() {
    let bench = Bench::with_queues(ADVANCED);
    let expected = frame(Ip::V4, 1, Transport::Udp, &pattern(99));
    let packet = unfinished(Ip::V4, Transport::Udp, expected.clone(), 107);
    let (start, at) = (ETHERNET as u64 + 20, ETHERNET as u64 + 26);
    let word = transmit::EOP | transmit::IFCS | transmit::RS | legacy_transmit::IC;
    let word = word | start << legacy_transmit::CSS_SHIFT | at << legacy_transmit::CSO_SHIFT;
    let sent = bench.send(&packet, &[[bench.buffer(100), word | packet.len() as u64]]);
    assert_eq!(sent[0].bytes[ETHERNET + 20..], expected[ETHERNET + 20..]);
}

#[test]
fn descriptors_that_do_not_fit_their_packet_are_noted() {
    let tcp = frame(Ip::V4, 1, PLAIN_TCP, &pattern(100));
    let of = |l4t, l4len, mss| context_of(Ip::V4, l4t, l4len, mss, 0);
    let too_far = [(127 << context::MACLEN_SHIFT) | 511, of(1, 32, 100)[1]];
    let (sum, cut) = (transmit::TXSM, transmit::TSE | transmit::TXSM | transmit::IXSM);
    for (context, options) in [
        (None, sum),
        (Some(of(3, 32, 0)), sum),
        (Some(too_far), sum),
        (Some(too_far), transmit::IXSM),
        (Some(too_far), cut),
        (Some(of(1, 32, 0)), cut),
        (Some(of(1, 19, 100)), cut),
        (Some(of(2, 12, 100)), cut),
        // PAYLEN excludes headers if the packet is segmented, and includes them if not.
        (Some(of(1, 20, 100)), cut),
    ] {
        let bench = Bench::with_queues(ADVANCED);
        let payload = if options & transmit::TSE != 0 { 100 } else { tcp.len() };
        let descriptors: Vec<_> = context.into_iter().chain([data(&bench, tcp.len(), payload, options)]).collect();
        bench.send(&tcp, &descriptors);
        let breaches = bench.card.breaches();
        assert!(matches!(breaches[..], [Breach::BadDescriptor { .. }, ..]), "{context:x?} {options:x}: {breaches:?}");
        // The ring must still work.
        assert!(!bench.send(&tcp, &[data(&bench, tcp.len(), tcp.len(), 0)]).is_empty());
    }
}

#[test]
fn received_packets_are_checked_and_classified() {
    use receive::{
        IPCS, IPE_82599 as IPE, L4CS, L4E_82599 as L4E, TYPE_IPV4, TYPE_IPV6, TYPE_SCTP, TYPE_TCP, TYPE_UDP,
    };
    let bench = Bench::with_queues(ADVANCED);
    let seen = |bytes: Vec<u8>| {
        bench.inject(bytes);
        let [first, second] = bench.last();
        (first & 0xFFF0, second & (IPCS | IPE | L4CS | L4E))
    };
    let crooked = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        seen(bytes)
    };
    for (transport, kind) in [(PLAIN_TCP, TYPE_TCP), (Transport::Udp, TYPE_UDP)] {
        let (four, six) = (frame(Ip::V4, 3, transport, &pattern(99)), frame(Ip::V6, 3, transport, &pattern(99)));
        assert_eq!(seen(four.clone()), (TYPE_IPV4 | kind, IPCS | L4CS));
        assert_eq!(seen(six.clone()), (TYPE_IPV6 | kind, L4CS));
        assert_eq!(seen(tagged(four.clone(), 5)), (TYPE_IPV4 | kind, IPCS | L4CS));
        // Corrupt the time to live, and the last byte of payload.
        assert_eq!(crooked(&four, ETHERNET + 8).1 & (IPCS | IPE), IPCS | IPE);
        assert_eq!(crooked(&four, four.len() - 1), (TYPE_IPV4 | kind, IPCS | L4CS | L4E));
        assert_eq!(crooked(&six, six.len() - 1), (TYPE_IPV6 | kind, L4CS | L4E));
    }
    assert_eq!(seen(sctp(&pattern(64))), (TYPE_IPV4 | TYPE_SCTP, IPCS | L4CS));
    assert_eq!(crooked(&sctp(&pattern(64)), 70), (TYPE_IPV4 | TYPE_SCTP, IPCS | L4CS | L4E));
    // UDP without a checksum; padding, which is not part of a packet; a fragment, whose transport is unknown.
    let mut silent = frame(Ip::V4, 3, Transport::Udp, &pattern(99));
    silent[ETHERNET + 26..ETHERNET + 28].fill(0);
    assert_eq!(seen(silent), (TYPE_IPV4 | TYPE_UDP, IPCS));
    let mut padded = frame(Ip::V4, 3, Transport::Udp, &pattern(3));
    padded.resize(60, 0xEE);
    assert_eq!(seen(padded), (TYPE_IPV4 | TYPE_UDP, IPCS | L4CS));
    let mut fragment = frame(Ip::V4, 3, Transport::Udp, &pattern(99));
    fragment[ETHERNET + 6] = 0x20;
    assert_eq!(seen(fragment).0, TYPE_IPV4);
    assert_eq!(seen(pattern(60)), (0, 0));
    assert_eq!(bench.card.breaches(), []);
}

/// Consecutive segments are coalesced into one packet; a segment that does not follow ends it.
#[test]
fn segments_are_coalesced() {
    let bench = Bench::with_queues(ADVANCED | SRRCTL::BSIZEHEADER_128);
    let bar = &bench.bar;
    bar.write(RSCCTL::at(0), RSCCTL::RSCEN | 3 << RSCCTL::MAXDESC_SHIFT);
    bar.write(PSRTYPE::at(0), PSRTYPE::TCPHDR);
    bar.write(IVAR::at(0), IVAR::VALID);
    bar.write(EITR::at(0), 25 << EITR::INTERVAL_SHIFT | EITR::CNT_WDIS);
    bar.write(RDRXCTL::OFFSET, bar.read(RDRXCTL::OFFSET) | RDRXCTL::CRC_STRIP);
    let payload = pattern(4000);
    let segment = |from: usize, to: usize, flags| {
        frame(Ip::V4, from as u16, Transport::Tcp { sequence: from as u32, flags }, &payload[from..to])
    };
    // All frames that arrive in one step can be coalesced.
    let arrive = |frames: Vec<Vec<u8>>| {
        let before = bar.read(RDH::at(0));
        let mut incoming = bench.incoming.lock().unwrap();
        incoming.extend(frames.into_iter().map(|bytes| linerate::sim82599::Frame { bytes, bad_crc: false }));
        drop(incoming);
        bench.card.step(64);
        (before..bar.read(RDH::at(0))).map(|n| (n as usize, bench.get(RX_RING, n as usize))).collect::<Vec<_>>()
    };
    let length = |word: u64| (word >> receive::LENGTH_SHIFT & 0xFFFF) as usize;
    let joined = |word: u64| word >> receive::RSCCNT_SHIFT & 0xF;

    let came = arrive(vec![segment(0, 1000, ACK), segment(1000, 2000, ACK), segment(2000, 4000 - 1000, ACK | PUSH)]);
    let [(n, first), (m, last)] = came[..] else { panic!("two buffers of 2 KiB: {came:x?}") };
    assert_eq!(
        (length(first[1]), first[1] & receive::EOP, first[1] >> receive::NEXTP_SHIFT & 0xFFFF),
        (2048, 0, m as u64)
    );
    assert_eq!(last[1] & receive::EOP, receive::EOP);
    // Each buffer reports how many segments begin in it, plus one.
    assert_eq!((joined(first[0]), joined(last[0])), (3, 2));
    let mut bytes = bench.bytes(n, 2048);
    bytes.extend(bench.bytes(m, length(last[1])));
    let whole = frame(Ip::V4, 0, Transport::Tcp { sequence: 0, flags: ACK | PUSH }, &payload[..3000]);
    let checksum = ETHERNET + 20 + 16;
    // The transport checksum is that of the last segment; no later code uses it.
    assert!(bytes[..checksum] == whole[..checksum] && bytes[checksum + 2..] == whole[checksum + 2..]);

    // A gap, other flags, or PSH ends a packet; a frame of another flow does not.
    for (frames, packets) in [
        (vec![segment(0, 500, ACK), segment(600, 700, ACK)], 2),
        (vec![segment(0, 500, ACK), segment(500, 700, ACK | FIN)], 2),
        (vec![segment(0, 500, ACK | PUSH), segment(500, 700, ACK)], 2),
        (vec![segment(0, 500, ACK), segment(500, 700, ACK | PUSH), segment(700, 900, ACK)], 2),
        (vec![segment(0, 500, ACK), segment(500, 700, ACK), segment(700, 900, ACK)], 1),
        (vec![segment(0, 500, ACK), frame(Ip::V4, 1, Transport::Udp, &payload[..100]), segment(500, 700, ACK)], 2),
    ] {
        assert_eq!(arrive(frames.clone()).len(), packets, "{frames:x?}");
    }
    // Flows share the ring: a packet gets a buffer when the buffer's first byte arrives.
    let of = |flow: u16, from: usize, to: usize| {
        let transport = Transport::Tcp { sequence: from as u32, flags: ACK };
        let mut bytes = frame(Ip::V4, from as u16, transport, &payload[from..to]);
        let port = ETHERNET + 20;
        // Both ports change by the same amount, so the checksum stays right.
        let [from, to] = [port, port + 2].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        bytes[port..port + 2].copy_from_slice(&(from + flow).to_be_bytes());
        bytes[port + 2..port + 4].copy_from_slice(&(to - flow).to_be_bytes());
        bytes
    };
    let came = arrive([0, 1400, 2800].iter().flat_map(|&at| [of(0, at, at + 1200), of(1, at, at + 1200)]).collect());
    assert_eq!(came.len(), 6, "a gap after each segment");
    let came = arrive([0, 1200, 2400].iter().flat_map(|&at| [of(0, at, at + 1200), of(1, at, at + 1200)]).collect());
    let next = |n: usize| (came[n].1[1] >> receive::NEXTP_SHIFT & 0xFFFF) as usize;
    assert_eq!(came.len(), 4, "two packets of two buffers");
    assert_eq!([next(0), next(1)], [came[2].0, came[3].0]);
    assert_eq!([0, 1, 2, 3].map(|n| came[n].1[1] & receive::EOP != 0), [false, false, true, true]);
    assert_eq!(bench.card.breaches(), []);

    bar.write(EITR::at(0), 0);
    arrive(vec![segment(0, 500, ACK)]);
    let breaches = bench.card.breaches();
    assert!(breaches.len() == 1 && breaches[0].to_string().contains("throttle"), "{breaches:?}");
    bar.write(RFCTL::OFFSET, bar.read(RFCTL::OFFSET) | RFCTL::RSC_DIS);
    assert_eq!(arrive(vec![segment(0, 500, ACK), segment(500, 700, ACK)]).len(), 2);
}

#[test]
fn the_head_is_written_back_to_the_drivers_address() {
    let bench = Bench::with_queues(ADVANCED);
    let bar = &bench.bar;
    bar.write(TDWBAL::at(0), bench.address(16_384) as u32 | 1);
    bar.write(TDWBAH::at(0), (bench.address(16_384) >> 32) as u32);
    let packet = frame(Ip::V4, 1, Transport::Udp, &pattern(99));
    let head = || words(&bench.dma, 16_384, 1)[0].load(std::sync::atomic::Ordering::Relaxed);
    for n in 1..=3 {
        bench.send(&packet, &[data(&bench, packet.len(), packet.len(), 0)]);
        assert_eq!(head(), n);
        assert_eq!(bench.get(crate::bench::TX_RING, n as usize - 1)[1] & transmit::DD, 0, "instead of DD");
    }
}
