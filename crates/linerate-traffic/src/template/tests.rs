use etherparse::{PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;

/// Returns the first frames of a template.
fn made(template: &Template, count: usize) -> Vec<Vec<u8>> {
    let mut frames = template.frames().unwrap();
    let mut next = |_| {
        let mut frame = vec![0xEE; frames.next_len()];
        frames.fill(&mut frame);
        frame
    };
    (0..count).map(&mut next).collect()
}

fn frames(text: &str, count: usize) -> Vec<Vec<u8>> {
    made(&text.parse().unwrap_or_else(|why| panic!("{text}: {why}")), count)
}

#[test]
fn a_template_without_fields_is_a_benchmark_s_frame() {
    let frame = &frames("eth/ip/udp", 1)[0];
    let mut expected = vec![2, 0x6C, 0x72, 0, 0, 2, 2, 0x6C, 0x72, 0, 0, 1, 8, 0];
    expected.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0xEE, 0xA9, 198, 18, 0, 1, 198, 19, 0, 1]);
    expected.extend([4, 0, 0, 9, 0, 8, 0x6F, 0xAD]);
    expected.resize(60, 0);
    assert_eq!(*frame, expected);
}

/// Fields that share bytes with others.
#[test]
fn neighbours_keep_their_bits() {
    let all = frames("eth/vlan(pcp=1-2,dei,id=random(7-7))/ip(dscp=1-2,ecn=3)/udp", 2);
    for (frame, n) in all.iter().zip(1..) {
        assert_eq!(frame[14..16], (n << 13 | 1 << 12 | 7u16).to_be_bytes());
        assert_eq!(frame[19], (n as u8) << 2 | 3);
    }
    let all = frames("eth/mpls(label=0xABCDE-0xABCDF,tc=5,ttl=3|4)/mpls(label=9)/ip", 2);
    assert_eq!((&all[0][14..18], &all[1][14..18]), (&[0xAB, 0xCD, 0xEA, 3][..], &[0xAB, 0xCD, 0xFA, 4][..]));
    assert_eq!(all[0][18..22], [0, 0, 0x91, 64], "the bottom of the stack");
    let all = frames("eth/ip6(tc=0x12,flow=0x34567-0x34568)/udp", 2);
    assert_eq!((&all[0][14..18], &all[1][14..18]), (&[0x61, 0x23, 0x45, 0x67][..], &[0x61, 0x23, 0x45, 0x68][..]));
}

#[test]
fn addresses_of_ipv6_change_in_both_halves() {
    let all = frames("eth/ip6(src=1::1|2::2|3::3,dst=random(4000::/3))/icmp6", 4);
    for (frame, n) in all.iter().zip([1, 2, 3, 1]) {
        assert_eq!((frame[23], frame[37], frame[38] >> 5), (n, n, 2));
    }
    assert_ne!(all[0][38..54], all[1][38..54]);
    let all = frames("eth/ip6(src=2001:db8::/64,dst=2001:db8::fffe-2001:db8::1:1)/udp", 3);
    assert_eq!(
        (&all[2][22..30], &all[2][30..38]),
        (&[0x20, 1, 0xD, 0xB8, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 2][..])
    );
    assert_eq!(all[2][38..54], [0x20, 1, 0xD, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn what_is_given_is_taken_also_if_it_is_wrong() {
    let frame = &frames("eth(type=0x1234)/ip(len=7,proto=99,checksum=0xBAD)/udp(len=3,checksum=0)", 1)[0];
    assert_eq!((&frame[12..14], &frame[16..18], frame[23]), (&[0x12, 0x34][..], &[0, 7][..], 99));
    assert_eq!((&frame[24..26], &frame[38..42]), (&[0xB, 0xAD][..], &[0, 3, 0, 0][..]));
}

#[test]
fn gre_has_the_words_that_are_given() {
    let frame = &frames("eth/ip/gre(key=7,seq=9)/eth/ip/udp", 1)[0];
    assert_eq!(frame[34..46], [0x30, 0, 0x65, 0x58, 0, 0, 0, 7, 0, 0, 0, 9]);
    let all = frames("eth/ip/gre(checksum,seq=1-2)/ip(src=10.0.0.0/8)/udp", 2);
    for (frame, n) in all.iter().zip(1..) {
        assert_eq!((&frame[34..36], &frame[42..46]), (&[0x90, 0][..], &[0, 0, 0, n][..]));
        assert_eq!(complement(words(&frame[34..46 + 28]) as u32, false), 0);
    }
}

/// Returns the sum of a packet's words.
fn words(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low))).sum()
}

#[test]
fn sizes_are_filled_by_the_payload() {
    let template: Template = "eth/ip(src=10.0.0.0/24)/udp".parse().unwrap();
    let template = template.with_sizes("imix".parse().unwrap()).unwrap();
    let all = made(&template, 24);
    assert_eq!(template.frames().unwrap().mean_len(), 4342.0 / 12.0 - 4.0);
    assert_eq!(all.iter().filter(|frame| frame.len() == 590).count(), 8);
    for (n, frame) in all.iter().enumerate() {
        assert_eq!(frame[16..18], (frame.len() as u16 - 14).to_be_bytes());
        assert_eq!(usize::from(frame[29]), n, "the field changes in every frame, of whatever size");
        assert!(is_valid(frame));
    }
    let frame = &frames("eth/ip/udp/payload(100,fill=7)", 1)[0];
    assert_eq!((frame.len(), frame[142 - 1]), (142, 7));
    let frame = &frames("eth/payload(2)/hex(ff)/payload(1,fill=9)/text(a)/payload(20)", 1)[0];
    assert_eq!(frame[14..22], [0, 1, 0xFF, 9, b'a', 0, 1, 2]);
    let frame = &frames("eth/ip/tcp/payload(3)", 1)[0];
    assert_eq!((frame.len(), &frame[54..]), (60, &[0, 1, 2, 0, 0, 0][..]));
}

/// A [`Checker`](crate::Checker) follows the sequence numbers, even those of several queues.
#[test]
fn stamps_are_checked() {
    let template: Template = "eth/ip(src=10.0.0.0/8)/udp(sport=random)/stamp".parse().unwrap();
    let template = template.with_sizes("64-70".parse().unwrap()).unwrap();
    let mut checker = crate::Checker::default();
    for queue in 0..3 {
        made(&template.clone().with_share(queue, 3), 100).iter().for_each(|frame| checker.check(frame));
    }
    let report = checker.report();
    assert_eq!((report.received, report.touched[0], report.lost, report.corrupted), (300, 300, 0, 0));
}

/// Stamps after other headers: valid checksums (of the innermost packet), also of each outer packet.
#[test]
fn stamps_stand_after_any_headers() {
    for text in [
        "eth/vlan(id=7)/ip/udp/stamp",
        "eth/ip6(src=fd00::1-fd00::9)/udp(sport=random)/stamp",
        "eth/ip/udp/vxlan/eth/ip6/udp/stamp",
        "eth/ip/gre(checksum)/ip/udp/stamp",
    ] {
        let template: Template = text.parse().unwrap();
        let template = template.with_sizes("140-147".parse().unwrap()).unwrap();
        let mut checker = crate::Checker::default();
        for frame in made(&template, 100) {
            checker.check(&frame);
            // The innermost packet, and GRE's checksum of it.
            let inner = frame.windows(4).position(|bytes| bytes == b"lrat").unwrap();
            match text {
                text if text.contains("vxlan") => assert!(is_valid(&frame[inner - 62..])),
                text if text.contains("gre") => assert_eq!(crate::checksum::checksum(0, &frame[34..]), 0),
                text if text.contains("ip6") => assert!(is_valid(&frame)),
                _ => {}
            }
        }
        let report = checker.report();
        assert_eq!(
            (report.received, report.touched[0], report.lost, report.changed.frames),
            (100, 100, 0, 0),
            "{text}"
        );
    }
}

/// Queues together send the frames of one queue.
#[test]
fn shares_make_the_whole() {
    let template: Template = "eth/ip(src=10.0.0.1-10.0.0.7*2)/udp(dport=1|2|3)".parse().unwrap();
    let template = template.with_sizes("64:2,128".parse().unwrap()).unwrap();
    let whole = made(&template, 60);
    for queue in 0..4u16 {
        let expected: Vec<_> = whole.iter().skip(queue.into()).step_by(4).cloned().collect();
        assert_eq!(made(&template.clone().with_share(queue, 4), 15), expected);
    }
}

#[test]
fn bad_templates_say_why() {
    for (text, why) in [
        ("", "'' is not a layer; there are eth, vlan"),
        ("ip/udp", "a frame begins with eth"),
        ("eth/ipx", "'ipx' is not a layer"),
        ("eth/udp", "eth has no number for udp; give one, as eth(type=…)"),
        ("eth/ip/icmp6", "ip has no number for icmp6"),
        ("eth/ip/tcp/udp", "udp cannot follow tcp"),
        ("eth/payload(9,random)/ip", "ip cannot follow payload"),
        ("eth/payload/ip", "ip cannot follow payload"),
        ("eth/ip(src)", "ip: src has no value; write src=10.0.0.1"),
        ("eth/ip(source=1.2.3.4)", "ip: 'source' is not a field; there are tos, dscp"),
        ("eth/ip(src=1.2.3.4,src=1.2.3.5)", "ip: src is given twice"),
        ("eth/ip(tos=1,ecn=1)", "ip: ecn and tos overlap"),
        ("eth/ip(ttl=256)", "ip: ttl: '256' is too large: at most 255"),
        ("eth/ip(ttl=1", "does not close a parenthesis"),
        ("eth/ip)ttl=1(", "closes a parenthesis that is not open"),
        ("eth/ip(ttl=1)x", "has text after its parenthesis"),
        ("eth/ip(options=00)", "a multiple of 4 bytes"),
        ("eth/payload(x)", "'x' is neither a length"),
        ("eth/payload(65536)", "'65536' is neither a length"),
        ("eth/ip/udp/payload(65535)", "ip carries at most 65535 bytes, not 65563"),
        ("eth/text()", "text: it has no text"),
        ("eth/hex(0)", "hex: '0' is not hexadecimal"),
        ("eth/ip/tcp/stamp", "a stamp is the payload of udp"),
        (&format!("eth{}/ip/udp/stamp", "/vlan".repeat(60)), "a stamp is in the first 256 bytes"),
        ("eth/hex(00)/udp", "the checksum of udp covers addresses, and no ip or ip6 is in front"),
    ] {
        let said = text.parse::<Template>().err().unwrap_or_else(|| panic!("{text} is a template"));
        assert!(said.why().contains(why), "{text}: {said}");
    }
    for (text, sizes, why) in [
        ("eth/ip/udp/vxlan/eth/ip/tcp", "64", "has no room for these headers; the smallest has 108"),
        ("eth/payload(9)", "64", "write payload"),
        ("eth/hex(00)", "64", "append /payload"),
    ] {
        let template: Template = text.parse().unwrap();
        let said = template.with_sizes(sizes.parse().unwrap()).err().unwrap();
        assert!(said.why().contains(why), "{text}: {said}");
    }
}

/// Returns whether the checksums of a frame with one IP header are right, according to etherparse.
fn is_valid(frame: &[u8]) -> bool {
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = packet.payload.slice();
    match (packet.net.unwrap(), packet.transport) {
        (etherparse::NetHeaders::Ipv4(ip, _), transport) => {
            ip.calc_header_checksum() == ip.header_checksum
                && match transport {
                    Some(TransportHeader::Udp(udp)) => udp.calc_checksum_ipv4(&ip, payload) == Ok(udp.checksum),
                    Some(TransportHeader::Tcp(tcp)) => tcp.calc_checksum_ipv4(&ip, payload) == Ok(tcp.checksum),
                    Some(TransportHeader::Icmpv4(icmp)) => icmp.icmp_type.calc_checksum(payload) == icmp.checksum,
                    _ => false,
                }
        }
        (etherparse::NetHeaders::Ipv6(ip, _), transport) => match transport {
            Some(TransportHeader::Udp(udp)) => udp.calc_checksum_ipv6(&ip, payload) == Ok(udp.checksum),
            Some(TransportHeader::Tcp(tcp)) => tcp.calc_checksum_ipv6(&ip, payload) == Ok(tcp.checksum),
            Some(TransportHeader::Icmpv6(icmp)) => {
                icmp.icmp_type.calc_checksum(ip.source, ip.destination, payload) == Ok(icmp.checksum)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Generates the values of a field, constant or changing.
fn number(bits: u32) -> BoxedStrategy<String> {
    let most = (1u64 << bits) - 1;
    prop_oneof![
        (0..=most).prop_map(|value| value.to_string()),
        (0..=most, 0..=most, 1..9u8, 1..4u8).prop_map(|(a, b, step, times)| format!(
            "{}-{}+{step}*{times}",
            a.min(b),
            a.max(b)
        )),
        (0..=most, 0..=most).prop_map(|(a, b)| format!("{a}|{b}")),
        (0..=most, 0..=most).prop_map(|(a, b)| format!("random({}-{})", a.min(b), a.max(b))),
        Just("random".to_string()),
    ]
    .boxed()
}

/// Generates templates with one IP header and a transport, and any fields.
fn template() -> impl Strategy<Value = String> {
    let ip = (
        number(8),
        number(16),
        prop_oneof![Just("10.0.0.0/8".to_string()), Just("random".into()), Just("1.2.3.4|9.9.9.9".into())],
    )
        .prop_map(|(tos, id, src)| format!("ip(tos={tos},id={id},src={src})"));
    let ip6 = (
        number(8),
        number(20),
        prop_oneof![Just("2001::/32".to_string()), Just("random".into()), Just("::1|1::".into())],
    )
        .prop_map(|(tc, flow, dst)| format!("ip6(tc={tc},flow={flow},dst={dst})"));
    let ports = || (number(16), number(16));
    let udp = ports().prop_map(|(sport, dport)| format!("udp(sport={sport},dport={dport})"));
    let tcp = (ports(), number(32), number(8)).prop_map(|((sport, dport), seq, flags)| {
        format!("tcp(sport={sport},dport={dport},seq={seq},flags={flags},options=0x01010101)")
    });
    let both = prop_oneof![udp, tcp].boxed();
    // Types whose checksum etherparse can compute.
    let echo =
        |kind: &'static str| (number(16), number(16)).prop_map(move |(id, seq)| format!("{kind}(id={id},seq={seq})"));
    let over_ip = (ip, prop_oneof![both.clone(), echo("icmp")]).prop_map(|(ip, over)| format!("{ip}/{over}"));
    let over_ip6 = (ip6, prop_oneof![both, echo("icmp6")]).prop_map(|(ip, over)| format!("{ip}/{over}"));
    let vlan = prop_oneof![Just(String::new()), number(12).prop_map(|id| format!("vlan(id={id})/"))];
    let payload = prop_oneof![Just(String::new()), (0..300u16).prop_map(|len| format!("/payload({len},random)"))];
    (vlan, prop_oneof![over_ip, over_ip6], payload)
        .prop_map(|(vlan, inner, payload)| format!("eth/{vlan}{inner}{payload}"))
}

proptest! {
    /// Every frame of every template has valid checksums.
    #[test]
    fn frames_are_valid(text in template(), seed: u64) {
        let template = text.parse::<Template>().unwrap().with_seed(seed);
        for frame in made(&template, 20) {
            prop_assert!(is_valid(&frame), "{text}: {frame:02x?}");
        }
    }

    /// No text panics.
    #[test]
    fn texts_are_templates_or_refused(
        text in prop_oneof![
            "(eth|ip|ip6|udp|tcp|gre|vxlan|mpls|payload|stamp|hex|text|arp|icmp|[/(),=|*+\\-:]|src|dst|len|random|[0-9]{1,20}|::|é){0,12}",
            ".{0,20}",
        ],
        sizes in ".{0,12}",
    ) {
        if let Ok(template) = text.parse::<Template>() {
            made(&template, 3);
            if let Ok(sizes) = sizes.parse()
                && let Ok(template) = template.with_sizes(sizes)
            {
                made(&template, 3);
            }
        }
    }
}
