use etherparse::{LaxPacketHeaders, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::Template;

/// Returns the frame of a template; `A << B` is A with the packet of B as its payload.
fn frame(text: &str) -> Vec<u8> {
    if let Some((outer, inner)) = text.split_once(" << ") {
        let bytes: String = frame(inner)[14..].iter().map(|byte| format!("{byte:02x}")).collect();
        return frame(&format!("{outer}/hex({bytes})"));
    }
    let template: Template = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
    let mut frames = template.frames().unwrap();
    let mut frame = vec![0; frames.next_len()];
    frames.fill(&mut frame);
    frame
}

/// Returns the frames into which an edit turns one that has `original_len` bytes, and the counts.
fn edited(rules: &EditRules, frame: &[u8], original_len: usize) -> (Vec<(Vec<u8>, usize)>, EditCounts) {
    let mut editor = Editor::new(rules.clone());
    let (mut frame, mut all) = (frame.to_vec(), Vec::new());
    editor.edit(&mut frame, original_len, |bytes, len| all.push((bytes.to_vec(), len)));
    (all, editor.counts())
}

/// Rules that change everything.
fn rules() -> EditRules {
    EditRules {
        addresses: ["198.18.0.0/15=10.0.0.0/8", "2001:2::/32=2001:db8::/40", "02:6c:72:00:00:01=06:01:02:03:04:05"]
            .map(|map| map.parse().unwrap())
            .to_vec(),
        ports: ["9=53", "1024-1100=2024-2100"].map(|map| map.parse().unwrap()).to_vec(),
        fields: vec!["ip(ttl=-1,dscp=46)/ip6(hop=-1,dscp=46)/tcp(window=77)".parse().unwrap()],
        ..EditRules::default()
    }
}

const FRAMES: [&str; 17] = [
    "eth/ip/udp/payload(100)",
    "eth/ip/udp/payload(101,fill=255)",
    "eth/ip/udp(checksum=0)/payload(100)",
    "eth/ip(options=94040000)/tcp(options=01010101)/payload(33)",
    "eth/vlan(id=7)/ip6/tcp/payload(333)",
    "eth/qinq(id=7)/vlan(id=9)/ip6/udp/payload(0)",
    "eth/mpls/mpls/ip/udp/payload(64)",
    "eth/ip/icmp/payload(56)",
    "eth/ip6/icmp6/payload(56)",
    "eth/ip/icmp(type=3,code=4) << eth/ip(src=198.19.0.1,dst=198.18.0.9)/udp/payload(40)",
    "eth/ip/icmp(type=11) << eth/ip/tcp/payload(30)",
    "eth/ip6/icmp6(type=1,id=0,seq=0) << eth/ip6/udp/payload(40)",
    "eth/ip(mf)/udp/payload(64)",
    "eth/ip(offset=100)/hex(0400 0009 0000 0000)",
    "eth/ip/hex(00)",
    "eth/ip/udp/vxlan/eth/ip6/udp/payload(30)",
    "eth/ip6/gre(checksum=7)/ip/tcp/payload(30)",
];

/// Returns the checksum errors that etherparse finds in a complete frame.
fn check(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(net) = &packet.net else { return };
    if let Some(ip) = net.ipv4_ref() {
        assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
    }
    let v4 = net.ipv4_ref().map(|ip| ip.header().to_header());
    let v6 = net.ipv6_ref().map(|ip| ip.header().to_header());
    match (&packet.transport, v4, v6) {
        (Some(TransportSlice::Udp(udp)), Some(ip), _) if udp.checksum() != 0 => {
            assert_eq!(udp.to_header().calc_checksum_ipv4(&ip, udp.payload()).unwrap(), udp.checksum());
        }
        (Some(TransportSlice::Udp(udp)), _, Some(ip)) => {
            assert_eq!(udp.to_header().calc_checksum_ipv6(&ip, udp.payload()).unwrap(), udp.checksum());
        }
        (Some(TransportSlice::Tcp(tcp)), Some(ip), _) => {
            assert_eq!(tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload()).unwrap(), tcp.checksum());
        }
        (Some(TransportSlice::Tcp(tcp)), _, Some(ip)) => {
            assert_eq!(tcp.to_header().calc_checksum_ipv6(&ip, tcp.payload()).unwrap(), tcp.checksum());
        }
        (Some(TransportSlice::Icmpv4(icmp)), ..) => {
            assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum());
        }
        (Some(TransportSlice::Icmpv6(icmp)), _, Some(ip)) => {
            assert!(icmp.is_checksum_valid(ip.source, ip.destination));
        }
        _ => {}
    }
}

/// An edited frame has valid checksums, and so has an embedded packet. The edit of a cut frame is the cut edited
/// frame.
#[test]
fn checksums_stay_right_whatever_the_capture_has_cut() {
    for text in FRAMES {
        let whole = frame(text);
        let (all, counts) = edited(&rules(), &whole, whole.len());
        let [(new, len)] = &all[..] else { panic!("{text}: {all:?}") };
        assert_eq!((*len, new.len(), counts.changed, counts.unknown_checksums), (whole.len(), whole.len(), 1, 0));
        check(new);
        if let Some(embedded) = Headers::of(new, new.len()).embedded {
            // As a separate frame.
            let ethertype: &[u8] = if embedded.is_v6 { &[0x86, 0xDD] } else { &[0x08, 0] };
            check(&[&new[..12], ethertype, &new[embedded.at..embedded.at + embedded.len]].concat());
        }
        for cut in 0..whole.len() {
            let (all, counts) = edited(&rules(), &whole[..cut], whole.len());
            let [(bytes, len)] = &all[..] else { panic!("{all:?}") };
            assert_eq!((bytes.len(), *len, counts.unknown_checksums), (cut, whole.len(), 0), "{text}, cut at {cut}");
            if counts.incomplete_headers == 0 {
                assert_eq!(bytes[..], new[..cut], "{text}, cut at {cut}");
            }
        }
    }
}

/// Without a rule that matches, no byte changes: neither wrong checksums, nor those left to a card.
#[test]
fn a_frame_without_a_match_stays_as_it_is() {
    let rules = EditRules { addresses: vec!["192.0.2.0/24=10.0.0.0/8".parse().unwrap()], ..EditRules::default() };
    for text in FRAMES.into_iter().chain(["eth/ip(checksum=1)/udp(checksum=2)", "eth/arp"]) {
        let frame = frame(text);
        let (all, counts) = edited(&rules, &frame, frame.len());
        assert_eq!((all, counts.changed), (vec![(frame.clone(), frame.len())], 0), "{text}");
    }
}

#[test]
fn checksums_that_were_wrong_are_fixed_on_request() {
    let wrong = frame("eth/ip(checksum=1)/udp(checksum=2)/payload(100)");
    let fixes = EditRules { fix_checksums: true, ..EditRules::default() };
    let (all, counts) = edited(&fixes, &wrong, wrong.len());
    assert_eq!((&all[0].0, counts.unknown_checksums), (&frame("eth/ip/udp/payload(100)"), 0));
    // The payload is not known, or is in other fragments.
    assert_eq!(edited(&fixes, &wrong[..80], wrong.len()).1.unknown_checksums, 1);
    let fragment = frame("eth/ip(mf)/udp/payload(64)");
    assert_eq!(edited(&fixes, &fragment, fragment.len()).1.unknown_checksums, 1);
    // Without the request, it remains as wrong as it was.
    let (all, _) = edited(&rules(), &wrong, wrong.len());
    let (right, _) = edited(&rules(), &frame("eth/ip/udp/payload(100)"), wrong.len());
    assert!(all[0].0 != right[0].0);
}

/// A sender that leaves checksums to its card writes the sum of the pseudo header.
#[test]
fn a_checksum_left_to_the_card_is_computed() {
    let right = frame("eth/ip/tcp/payload(100)");
    let mut partial = right.clone();
    let sum = 0xC612 + 1 + 0xC613 + 1 + 6 + 120u32;
    partial[50..52].copy_from_slice(&((sum & 0xFFFF) + (sum >> 16)).to_be_bytes()[2..]);
    let (all, _) = edited(&rules(), &partial, partial.len());
    assert_eq!(all, edited(&rules(), &right, right.len()).0);
    // Cut: it remains left to a card.
    let (all, _) = edited(&rules(), &partial[..60], partial.len());
    let addresses = &all[0].0[26..34];
    let sum = addresses.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>() + 6 + 120;
    assert_eq!(all[0].0[50..52], ((sum & 0xFFFF) + (sum >> 16)).to_be_bytes()[2..]);
}

/// Fields and checksums that are given have these values.
#[test]
fn given_values_are_set() {
    let plain = frame("eth/vlan(id=7)/ip/udp/payload(64)");
    let set = "eth(src=02:00:00:00:00:09)/vlan(id=9,pcp=2)/ip(id=5,ttl=9,src=10.0.0.1)/udp(sport=7,checksum=0xBAD)";
    let rules = EditRules { fields: vec![set.parse().unwrap()], ..EditRules::default() };
    assert_eq!(
        edited(&rules, &plain, plain.len()).0[0].0,
        frame(
            "eth(src=02:00:00:00:00:09)/vlan(id=9,pcp=2)/ip(id=5,ttl=9,src=10.0.0.1)/udp(sport=7,checksum=0xBAD)/payload(64)"
        )
    );
}

#[test]
fn tags_are_removed_and_inserted() {
    let tags = |pop, push: &[&str]| EditRules {
        pop,
        push: push.iter().map(|tag| tag.parse().unwrap()).collect(),
        ..EditRules::default()
    };
    for (before, rules, after) in [
        ("eth/ip/udp/payload(64)", tags(0, &["vlan(id=7,pcp=3)"]), "eth/vlan(id=7,pcp=3)/ip/udp/payload(64)"),
        (
            "eth/ip/udp/payload(64)",
            tags(0, &["vlan(id=7)", "qinq(id=8)"]),
            "eth/qinq(id=8)/vlan(id=7)/ip/udp/payload(64)",
        ),
        ("eth/qinq(id=8)/vlan(id=7)/ip/udp/payload(64)", tags(1, &[]), "eth/vlan(id=7)/ip/udp/payload(64)"),
        ("eth/qinq(id=8)/vlan(id=7)/ip/udp/payload(64)", tags(9, &["vlan(id=1)"]), "eth/vlan/ip/udp/payload(64)"),
    ] {
        let (before, after) = (frame(before), frame(after));
        let (all, _) = edited(&rules, &before[..60], before.len());
        let cut = 60 + after.len() - before.len();
        assert_eq!(all, [(after[..cut].to_vec(), after.len())]);
    }
}

/// Addresses inside ARP and neighbour discovery are mapped.
#[test]
fn neighbours_are_mapped() {
    let arp = frame("eth/arp(sha=02:6c:72:00:00:01,spa=198.18.0.1,tpa=198.19.0.1)");
    let (all, _) = edited(&rules(), &arp, arp.len());
    assert_eq!(all[0].0[22..42], frame("eth/arp(sha=06:01:02:03:04:05,spa=10.18.0.1,tpa=10.19.0.1)")[22..42]);
    let solicitation = |target: &str, mac: &str, ends: &str| {
        frame(&format!("eth(src={mac})/ip6(hop=255,{ends})/icmp6(type=135,id=0,seq=0)/hex({target} 0101 {mac})"))
    };
    let before =
        solicitation("20010002000000000000000000000009", "02:6c:72:00:00:01", "src=2001:2::1,dst=ff02::1:ff00:9");
    let after =
        solicitation("20010db8000000000000000000000009", "06:01:02:03:04:05", "src=2001:db8::1,dst=ff02::1:ff00:9");
    let rules = EditRules { fields: Vec::new(), ..rules() };
    assert_eq!(edited(&rules, &before, before.len()).0[0].0, after);
}

/// The checksum of a packet on its way covers its last destination.
#[test]
fn the_checksum_covers_the_final_destination() {
    // A routing header of type 0 with one address, and one segment left.
    let routed = |next: &str, last: &str| {
        let direct = frame(&format!("eth/ip6(src=2001:db8::1,dst={last})/udp/payload(40)"));
        let address = last.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let mut frame = frame(&format!("eth/ip6(src=2001:db8::1,dst={next},next=43,len=72)/payload(72)"));
        frame[54..62].copy_from_slice(&[17, 2, 0, 1, 0, 0, 0, 0]);
        frame[62..78].copy_from_slice(&address);
        frame[78..].copy_from_slice(&direct[54..]);
        frame
    };
    let map = |map: &str| EditRules { addresses: vec![map.parse().unwrap()], ..EditRules::default() };
    let before = routed("2001:db8:a::1", "2001:db8:b::2");
    for (rules, after) in [
        (map("2001:db8:a::/48=2001:db8:c::/48"), routed("2001:db8:c::1", "2001:db8:b::2")),
        (map("2001:db8:b::/48=2001:db8:c::/48"), routed("2001:db8:a::1", "2001:db8:c::2")),
    ] {
        assert_eq!(edited(&rules, &before, before.len()).0[0].0, after);
    }
}

#[test]
fn truncated_frames_have_right_lengths_and_checksums() {
    let fit = |mtu| EditRules { fit: Some(Fit::Truncate(mtu)), ..EditRules::default() };
    for (before, after) in [
        ("eth/vlan/ip/udp/payload(200)", "eth/vlan/ip/udp/payload(72)"),
        ("eth/vlan/ip/tcp/payload(200)", "eth/vlan/ip/tcp/payload(60)"),
        ("eth/vlan/ip/icmp/payload(200)", "eth/vlan/ip/icmp/payload(72)"),
        ("eth/vlan/ip6/udp/payload(200)", "eth/vlan/ip6/udp/payload(52)"),
        ("eth/vlan/ip6/tcp/payload(200)", "eth/vlan/ip6/tcp/payload(40)"),
        ("eth/vlan/payload(200)", "eth/vlan/payload(100)"),
        ("eth/vlan/ip/udp/payload(72)", "eth/vlan/ip/udp/payload(72)"),
    ] {
        let (before, after) = (frame(before), frame(after));
        let (all, counts) = edited(&fit(100), &before, before.len());
        assert_eq!(all, [(after.clone(), after.len())]);
        assert_eq!((counts.truncated, counts.unknown_checksums), (u64::from(before.len() > 118), 0));
    }
    // Removed bytes that the capture does not have.
    let long = frame("eth/ip/tcp/payload(200)");
    assert_eq!(edited(&fit(100), &long[..113], long.len()).1.unknown_checksums, 1);
    let (all, counts) = edited(&fit(100), &long[..114], long.len());
    assert_eq!((&all[0].0, counts.unknown_checksums), (&frame("eth/ip/tcp/payload(60)"), 0));
}

/// Fragments of IPv4 have the options that are copied, and a checksum.
#[test]
fn fragments_have_their_headers() {
    let fit = EditRules { fit: Some(Fit::Fragment(100)), ..EditRules::default() };
    let long = frame("eth/ip(df,options=9404000044040000)/udp/payload(200)");
    let (all, counts) = edited(&fit, &long, long.len());
    let lens: Vec<_> = all.iter().map(|(bytes, len)| (bytes.len(), *len)).collect();
    assert_eq!(lens, [(114, 114), (110, 110), (102, 102)]);
    for ((bytes, _), (offset, more)) in all.iter().zip([(0, true), (72, true), (144, false)]) {
        let ip = LaxPacketHeaders::from_ethernet(bytes).unwrap().net.unwrap();
        let (ip, _) = ip.ipv4_ref().unwrap();
        assert_eq!(
            (usize::from(ip.fragment_offset.value()) * 8, ip.more_fragments, ip.dont_fragment),
            (offset, more, false)
        );
        assert_eq!((ip.header_checksum, ip.identification), (ip.calc_header_checksum(), 1));
        assert_eq!(ip.options.as_slice(), &[0x94, 4, 0, 0, 0x44, 4, 0, 0][..if offset == 0 { 8 } else { 4 }]);
    }
    assert_eq!((counts.fragmented, counts.fragments, counts.changed), (1, 3, 1));
    // Bytes that the capture has cut are missing in the fragments, too.
    let (all, _) = edited(&fit, &long[..130], long.len());
    let lens: Vec<_> = all.iter().map(|(bytes, len)| (bytes.len(), *len)).collect();
    assert_eq!(lens, [(114, 114), (54, 110), (38, 102)]);
    let other = frame("eth/payload(200)");
    let (all, counts) = edited(&fit, &other, other.len());
    assert_eq!((all.len(), counts.too_long), (1, 1));
}

/// Ports are found after as many extension headers as filters skip, and not after more.
#[test]
fn extension_headers_are_skipped_as_by_filters() {
    let map = EditRules { ports: vec!["53=54".parse().unwrap()], ..EditRules::default() };
    let filter: linerate_core::filter::Filter = "udp:53".parse().unwrap();
    for (count, is_found) in [(0, true), (1, true), (12, true), (13, true), (16, true), (17, false)] {
        let mut packet = frame("eth/ip6/udp(dport=53)/payload(20)");
        let options: Vec<u8> =
            (1..=count).flat_map(|n| [if n < count { 60 } else { 17 }, 0, 1, 4, 0, 0, 0, 0]).collect();
        packet[20] = if count > 0 { 60 } else { 17 };
        packet[19] += options.len() as u8;
        packet.splice(54..54, options);
        assert_eq!(filter.decide(&packet), is_found.then_some(true), "{count} headers");
        let (all, counts) = edited(&map, &packet, packet.len());
        assert_eq!(counts.changed, u64::from(is_found), "{count} headers");
        assert!(!filter.matches(&all[0].0), "{count} headers");
    }
}

/// Each pass has other addresses, and both directions of a flow the same pair.
#[test]
fn passes_have_their_addresses() {
    let rules = EditRules { unique_addresses: true, ..EditRules::default() };
    let mut editor = Editor::new(rules);
    for (pass, low, high) in
        [(0, "198.18.0.1", "198.19.0.1"), (1, "198.18.0.0", "198.19.0.2"), (3, "198.17.255.254", "198.19.0.4")]
    {
        editor.begin_pass(pass);
        for (before, after) in [
            ("eth/ip(src=198.18.0.1,dst=198.19.0.1)/tcp".to_string(), format!("eth/ip(src={low},dst={high})/tcp")),
            ("eth/ip(src=198.19.0.1,dst=198.18.0.1)/tcp".to_string(), format!("eth/ip(src={high},dst={low})/tcp")),
        ] {
            let len = frame(&before).len();
            editor.edit(&mut frame(&before), len, |bytes, _| assert_eq!(bytes, frame(&after)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes are edited, and keep their length unless they are shortened.
    #[test]
    fn any_bytes_are_edited(
        template in 0..FRAMES.len(), changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..8), cut in 0..200usize,
        original in 0..3000usize, fit in 0..4usize, fix_checksums: bool, inner: bool, pop in 0..2usize,
    ) {
        let mut bytes = frame(FRAMES[template]);
        changes.iter().for_each(|(at, byte)| if let Some(place) = bytes.get_mut(*at) { *place = *byte });
        bytes.truncate(cut);
        let fit = [None, Some(Fit::Truncate(46)), Some(Fit::Fragment(46)), Some(Fit::Fragment(100))][fit];
        let rules = EditRules { fit, fix_checksums, inner, pop, unique_addresses: true, ..rules() };
        let mut editor = Editor::new(rules);
        editor.begin_pass(7);
        editor.edit(&mut bytes.clone(), original, |new, len| assert!(new.len() <= len && len <= original.max(bytes.len())));
    }
}
