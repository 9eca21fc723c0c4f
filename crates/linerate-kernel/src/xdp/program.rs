//! The XDP program of a port: packets that match the filter go to the port's socket, all others to the kernel. Rules
//! decide before the filter.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use linerate_core::filter::{
    EXTENSIONS, Filter, IPV4, IPV6, MOST_EXTENSIONS, MOST_TAGS, Match, Prefix, TAGS, WITH_PORTS,
};

use super::metadata::{HAS_MARK, Hints};
use crate::instructions::{Assembler, If, Instruction, Label, R, Width};

/// The program's results (`enum xdp_action`).
pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
/// The result if the map has a socket.
#[cfg(test)]
pub const REDIRECT: u32 = 4;

/// `bpf_redirect_map`: redirects to the entry of a map, or returns its flags if there is none.
const REDIRECT_MAP: i32 = 51;

// `struct xdp_md`: the frame's start and end, and its queue.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

// Registers: the context, the frame (advanced past tags, and then to the current header), and its end.
const CONTEXT: R = R(6);
const FRAME: R = R(7);
const END: R = R(8);
/// The presence word of the packet's metadata.
const HAS: R = R(9);
const STACK: R = R(10);
// Words on the stack; an absent field is all ones, which matches no value.
const ETHERTYPE: i16 = -4;
const ADDRESSED: i16 = -8;
const PROTOCOL: i16 = -12;
const FROM_PORT: i16 = -16;
const TO_PORT: i16 = -20;
/// 16 bytes each, as in the frame; IPv4 uses the first four.
const FROM: i16 = -40;
const TO: i16 = -56;
/// A word for each tag.
const VLANS: [i16; MOST_TAGS] = [-60, -64];
/// A word for each extension header, which contains its protocol if it is present.
const PRESENT: [i16; EXTENSIONS.len()] = [-68, -72, -76, -80, -84];
/// The mark of the rule that matched.
const MARK: i16 = -88;
/// The extension headers with other lengths than units of 8 bytes.
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ABSENT: i32 = -1;

/// The action for matching packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Redirect to the queue's socket in the map with this descriptor; to the kernel if there is none. With hints, the
    /// packet has metadata.
    ToSocket(i32, Option<Hints>),
    /// Only return [`REDIRECT`]: for tests without sockets.
    #[cfg(test)]
    Answer,
}

/// The program's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is the port's: see [`Action`].
    Take,
    /// As `Take`, with a mark in its metadata.
    Mark(u32),
    /// It goes to the kernel.
    Pass,
    Drop,
}

impl Verdict {
    /// Returns the number of the program's end for this verdict.
    fn end(self) -> usize {
        match self {
            Verdict::Take | Verdict::Mark(_) => 0,
            Verdict::Pass => 1,
            Verdict::Drop => 2,
        }
    }
}

/// Assembles the program for a filter; `filter` is `None` for all packets. The first rule that matches a packet decides,
/// and the filter if none does. Returns `None` if the program is too long. It does not parse tunnels, so no match may
/// have [`Match::inner`].
pub fn program(filter: Option<&Filter>, rules: &[(&Filter, Verdict)], action: Action) -> Option<Vec<Instruction>> {
    let mut code = Assembler::default();
    let by_rules = rules.iter().flat_map(|(filter, verdict)| filter.any().iter().map(move |one| (one, *verdict)));
    let by_filter = filter.into_iter().flat_map(Filter::any).map(|one| (one, Verdict::Take));
    let mut steps: Vec<(&Match, Verdict)> = by_rules.chain(by_filter).collect();
    // The kernel rejects unreachable instructions, such as those after a match of all packets.
    let last = match steps.iter().position(|(one, _)| **one == Match::default()) {
        Some(at) => steps.drain(at..).next().map_or(Verdict::Pass, |(_, verdict)| verdict),
        None if filter.is_some() => Verdict::Pass,
        None => Verdict::Take,
    };
    code.copy(CONTEXT, R(1));
    if matches!(action, Action::ToSocket(_, Some(_))) {
        note_mark(&mut code, 0, 0);
    }
    let labels = [Verdict::Take, Verdict::Pass, Verdict::Drop].map(|verdict| (verdict, code.label()));
    let label = |verdict: Verdict| labels[verdict.end()].1;
    if !steps.is_empty() {
        let passed = code.label();
        parse(&mut code, passed);
        for (one, verdict) in &steps {
            let next = code.label();
            compare(&mut code, one, next);
            if let Verdict::Mark(number) = verdict {
                note_mark(&mut code, *number, HAS_MARK);
            }
            code.jump(label(*verdict));
            code.place(next);
        }
        code.place(passed);
    }
    if let Verdict::Mark(number) = last {
        note_mark(&mut code, number, HAS_MARK);
    }
    // The last verdict follows the comparisons.
    let is_wanted = |one: Verdict| one.end() != last.end() && steps.iter().any(|(_, of)| of.end() == one.end());
    let others = labels.iter().filter(|(verdict, _)| is_wanted(*verdict));
    for (verdict, label) in [(last, label(last))].iter().chain(others) {
        code.place(*label);
        match (verdict, action) {
            (Verdict::Pass, _) => code.set(R(0), PASS as i32),
            (Verdict::Drop, _) => code.set(R(0), DROP as i32),
            (Verdict::Take | Verdict::Mark(_), Action::ToSocket(map, hints)) => {
                if let Some(hints) = hints {
                    hints.store(&mut code, MARK);
                }
                code.load_map(R(1), map);
                code.load(Width::Word, R(2), CONTEXT, QUEUE);
                code.set(R(3), PASS as i32);
                code.call(REDIRECT_MAP);
            }
            #[cfg(test)]
            (Verdict::Take | Verdict::Mark(_), Action::Answer) => code.set(R(0), REDIRECT as i32),
        }
        code.exit();
    }
    code.finish()
}

/// Notes a mark for [`Hints::store`].
fn note_mark(code: &mut Assembler, number: u32, has: u32) {
    code.set(R(1), number as i32);
    code.store(Width::Word, STACK, MARK, R(1));
    code.set(HAS, has as i32);
}

/// Stores the frame's fields on the stack, parsed as [`Filter::matches`] does.
fn parse(code: &mut Assembler, passed: Label) {
    let done = code.label();
    code.load(Width::Word, FRAME, CONTEXT, DATA);
    code.load(Width::Word, END, CONTEXT, DATA_END);
    code.set(R(1), ABSENT);
    for place in [ETHERTYPE, ADDRESSED, PROTOCOL, FROM_PORT, TO_PORT].into_iter().chain(VLANS).chain(PRESENT) {
        code.store(Width::Word, STACK, place, R(1));
    }
    for n in 0..4 {
        code.store(Width::Word, STACK, FROM + 4 * n, R(1));
        code.store(Width::Word, STACK, TO + 4 * n, R(1));
    }
    parse_ethertype(code, passed, done);
    let (transport, without_transport) = (code.label(), code.label());
    parse_ip(code, transport, without_transport, done);

    // R4 holds the protocol, and FRAME + 14 is its header.
    code.place(transport);
    parse_extensions(code, without_transport, done);
    code.store(Width::Word, STACK, PROTOCOL, R(4));
    let ports = code.label();
    WITH_PORTS.iter().for_each(|&protocol| code.jump_if(If::Equal, R(4), protocol.into(), ports));
    code.jump(done);
    code.place(ports);
    // Both ports must be present.
    reach(code, 14 + 4, done);
    load_16(code, R(1), 14);
    code.store(Width::Word, STACK, FROM_PORT, R(1));
    load_16(code, R(1), 16);
    code.store(Width::Word, STACK, TO_PORT, R(1));
    code.jump(done);

    // The protocol after an extension header is in another fragment.
    code.place(without_transport);
    EXTENSIONS.iter().for_each(|&extension| code.jump_if(If::Equal, R(4), extension.into(), done));
    code.store(Width::Word, STACK, PROTOCOL, R(4));
    code.place(done);
}

/// Parses the ethertype into R3, after tags.
fn parse_ethertype(code: &mut Assembler, passed: Label, done: Label) {
    let untagged = code.label();
    reach(code, 14, passed);
    load_16(code, R(3), 12);
    for vlan in VLANS {
        let tag = code.label();
        TAGS.iter().for_each(|&ethertype| code.jump_if(If::Equal, R(3), ethertype.into(), tag));
        code.jump(untagged);
        code.place(tag);
        reach(code, 18, done);
        load_16(code, R(3), 16);
        load_16(code, R(1), 14);
        code.and(R(1), 0xFFF);
        code.store(Width::Word, STACK, vlan, R(1));
        code.add(FRAME, 4);
    }
    TAGS.iter().for_each(|&ethertype| code.jump_if(If::Equal, R(3), ethertype.into(), done));
    code.place(untagged);
    code.store(Width::Word, STACK, ETHERTYPE, R(3));
}

/// Parses the IP header. Leaves the protocol in R4, and advances to its header.
fn parse_ip(code: &mut Assembler, transport: Label, without_transport: Label, done: Label) {
    let (version_4, version_6) = (code.label(), code.label());
    code.jump_if(If::Equal, R(3), IPV4.into(), version_4);
    code.jump_if(If::Equal, R(3), IPV6.into(), version_6);
    code.jump(done);

    code.place(version_4);
    reach(code, 14 + 20, done);
    code.store(Width::Word, STACK, ADDRESSED, R(3));
    address(code, FROM, 14 + 12, 1);
    address(code, TO, 14 + 16, 1);
    code.load(Width::Byte, R(4), FRAME, 14 + 9);
    // Later fragments, and packets whose header length is invalid, have no ports.
    load_16(code, R(1), 14 + 6);
    code.and(R(1), 0x1FFF);
    code.jump_if(If::NotEqual, R(1), 0, without_transport);
    code.load(Width::Byte, R(5), FRAME, 14);
    code.and(R(5), 0xF);
    code.jump_if(If::Less, R(5), 5, without_transport);
    code.shift_left(R(5), 2);
    code.add_register(FRAME, R(5));
    code.jump(transport);

    code.place(version_6);
    reach(code, 14 + 40, done);
    code.store(Width::Word, STACK, ADDRESSED, R(3));
    address(code, FROM, 14 + 8, 4);
    address(code, TO, 14 + 24, 4);
    code.load(Width::Byte, R(4), FRAME, 14 + 6);
    code.add(FRAME, 40);
}

/// Skips extension headers. The verifier follows each path, so the loop is unrolled.
fn parse_extensions(code: &mut Assembler, without_transport: Label, done: Label) {
    let transport = code.label();
    for _ in 0..MOST_EXTENSIONS {
        let next = code.label();
        for (&extension, present) in EXTENSIONS.iter().zip(PRESENT) {
            let other = code.label();
            code.jump_if(If::NotEqual, R(4), extension.into(), other);
            code.store(Width::Word, STACK, present, R(4));
            reach(code, if extension == FRAGMENT { 14 + 4 } else { 14 + 2 }, done);
            code.load(Width::Byte, R(4), FRAME, 14);
            if extension == FRAGMENT {
                load_16(code, R(1), 14 + 2);
                code.and(R(1), 0xFFF8);
                code.jump_if(If::NotEqual, R(1), 0, without_transport);
            } else {
                code.load(Width::Byte, R(5), FRAME, 14 + 1);
                code.shift_left(R(5), if extension == AUTHENTICATION { 2 } else { 3 });
                code.add_register(FRAME, R(5));
            }
            code.add(FRAME, 8);
            code.jump(next);
            code.place(other);
        }
        code.jump(transport);
        code.place(next);
    }
    EXTENSIONS.iter().for_each(|&extension| code.jump_if(If::Equal, R(4), extension.into(), done));
    code.place(transport);
}

/// Jumps if the frame is shorter than `bytes`.
fn reach(code: &mut Assembler, bytes: i32, otherwise: Label) {
    code.copy(R(2), FRAME);
    code.add(R(2), bytes);
    code.jump_if_register(If::Greater, R(2), END, otherwise);
}

fn load_16(code: &mut Assembler, to: R, at: i16) {
    code.load(Width::Half, to, FRAME, at);
    code.swap_network_16(to);
}

/// Copies an address of `words` words to the stack.
fn address(code: &mut Assembler, to: i16, at: i16, words: i16) {
    for n in 0..words {
        code.load(Width::Word, R(1), FRAME, at + 4 * n);
        code.store(Width::Word, STACK, to + 4 * n, R(1));
    }
}

/// Jumps to `next` if the frame does not match.
fn compare(code: &mut Assembler, one: &Match, next: Label) {
    let mut is = |place: i16, value: Option<u32>| {
        if let Some(value) = value {
            code.load(Width::Word, R(1), STACK, place);
            code.jump_if(If::NotEqual, R(1), value, next);
        }
    };
    // Also compare the version: an address of the other version may have the same bytes.
    let version = one.from.or(one.to).map(|prefix| if prefix.address.is_ipv4() { IPV4 } else { IPV6 });
    is(ETHERTYPE, one.ethertype.or(version).map(u32::from));
    if let Some(protocol) = one.protocol {
        let extension = EXTENSIONS.iter().position(|&extension| extension == protocol);
        is(extension.map_or(PROTOCOL, |n| PRESENT[n]), Some(protocol.into()));
    }
    if let Some(vlan) = one.vlan {
        let tagged = code.label();
        for place in VLANS {
            code.load(Width::Word, R(1), STACK, place);
            code.jump_if(If::Equal, R(1), vlan.into(), tagged);
        }
        code.jump(next);
        code.place(tagged);
    }
    prefix(code, FROM, one.from, next);
    prefix(code, TO, one.to, next);
    within(code, FROM_PORT, one.from_port.as_ref(), next);
    within(code, TO_PORT, one.to_port.as_ref(), next);
}

fn prefix(code: &mut Assembler, place: i16, prefix: Option<Prefix>, next: Label) {
    let Some(Prefix { address, bits }) = prefix else { return };
    let (bytes, mask) = match address {
        IpAddr::V4(v4) => {
            (v4.octets().to_vec(), (u128::from(u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0))) << 96)
        }
        IpAddr::V6(v6) => (v6.octets().to_vec(), u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)),
    };
    // Words as loaded from the frame.
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (n, (bytes, mask)) in bytes.chunks(4).zip(mask.to_be_bytes().chunks(4)).enumerate() {
        if word(mask) != 0 {
            code.load(Width::Word, R(1), STACK, place + 4 * n as i16);
            code.and(R(1), word(mask));
            code.jump_if(If::NotEqual, R(1), word(bytes), next);
        }
    }
    // A prefix of 0 bits still needs an address. `compare` has checked the ethertype, but the frame may end before its
    // addresses.
    code.load(Width::Word, R(1), STACK, ADDRESSED);
    code.jump_if(If::Equal, R(1), ABSENT as u32, next);
}

fn within(code: &mut Assembler, place: i16, ports: Option<&RangeInclusive<u16>>, next: Label) {
    let Some(ports) = ports else { return };
    code.load(Width::Word, R(1), STACK, place);
    code.jump_if(If::Less, R(1), (*ports.start()).into(), next);
    // An absent port is larger than any port.
    code.jump_if(If::Greater, R(1), (*ports.end()).into(), next);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::{AsFd, AsRawFd};

    use proptest::prelude::*;

    use super::*;
    use crate::bpf::{Kind, Program, SocketMap};

    fn load(text: &str) -> (Filter, Program) {
        let filter: Filter = text.parse().unwrap();
        let instructions = program(Some(&filter), &[], Action::Answer).unwrap();
        let loaded = Program::load(&instructions, Kind::Xdp { fragments: false, interface: None })
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        (filter, loaded)
    }

    /// Generates up to 17 extension headers, with the number of each and the protocol after them.
    fn chain() -> impl Strategy<Value = (u8, Vec<u8>)> {
        let extension = prop_oneof![4 => prop::sample::select(&EXTENSIONS[..]), 1 => Just(FRAGMENT), 1 => any::<u8>()];
        let count = prop_oneof![4 => Just(0..1usize), 2 => Just(0..4), 1 => Just(14..18)].prop_flat_map(|range| range);
        let protocol = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), Just(58), any::<u8>()];
        let length = prop_oneof![4 => Just(0u8), 2 => 0..4u8, 1 => any::<u8>()];
        let fragment = prop_oneof![4 => Just(0u16), 2 => Just(1), 1 => any::<u16>()];
        let extensions = count.prop_flat_map(move |count| {
            prop::collection::vec((extension.clone(), length.clone(), fragment.clone()), count)
        });
        (extensions, protocol).prop_map(|(extensions, protocol)| {
            let kinds: Vec<u8> = extensions.iter().map(|&(kind, ..)| kind).chain([protocol]).collect();
            let mut bytes = Vec::new();
            for ((kind, length, fragment), next) in extensions.into_iter().zip(&kinds[1..]) {
                let unit = [(FRAGMENT, 0), (AUTHENTICATION, 4)].iter().find(|(other, _)| *other == kind);
                let begin = bytes.len();
                bytes.extend([&[*next, length][..], &fragment.to_be_bytes()].concat());
                bytes.resize(begin + 8 + usize::from(length) * unit.map_or(8, |(_, unit)| *unit), 0);
            }
            (kinds[0], bytes)
        })
    }

    /// Generates frames that nearly match the filters.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let ethertype = prop_oneof![
            4 => Just(IPV4), 8 => Just(IPV6), 1 => Just(0x0806), 1 => prop::sample::select(&TAGS[..]), 1 => any::<u16>()
        ];
        let tag = (prop::sample::select(&TAGS[..]), prop_oneof![Just(77u16), Just(0xA04D), any::<u16>()]);
        let first = prop_oneof![4 => Just(0x45u8), 1 => Just(0x46), 1 => Just(0x60), 1 => Just(0x44), 1 => any::<u8>()];
        let address = prop_oneof![Just([10u8, 1, 2, 3]), Just([10, 200, 0, 9]), any::<[u8; 4]>()];
        let port = prop_oneof![Just(4321u16), Just(80), 5000u16..5010, any::<u16>()];
        let fragment = prop_oneof![4 => Just(0u16), 1 => Just(0x1000), 1 => Just(0x2000), 1 => any::<u16>()];
        let rest = (address.clone(), address, port.clone(), port, fragment);
        let len = prop_oneof![0..90usize, 0..4096usize];
        (ethertype, prop::collection::vec(tag, 0..4), chain(), first, rest, len, any::<bool>()).prop_map(
            |(ethertype, tags, (protocol, chain), first, (from, to, from_port, to_port, fragment), len, whole)| {
                let mut frame = vec![0u8; 12];
                for (kind, tag) in tags {
                    frame.extend([kind.to_be_bytes(), tag.to_be_bytes()].concat());
                }
                frame.extend(ethertype.to_be_bytes());
                if ethertype == IPV6 {
                    frame.extend([first, 0, 0, 0, 0, 0, protocol, 64]);
                    frame.extend([from, [0; 4], [0; 4], to, to, [0; 4], [0; 4], from].concat());
                } else {
                    frame.extend([first, 0, 0, 0, 0, 0]);
                    frame.extend(fragment.to_be_bytes());
                    frame.extend([64, protocol, 0, 0]);
                    frame.extend([from, to].concat());
                    if first == 0x46 {
                        frame.extend([1; 4]);
                    }
                }
                frame.extend(chain);
                frame.extend([from_port.to_be_bytes(), to_port.to_be_bytes()].concat());
                frame.resize(frame.len().max(60), 0);
                if !whole {
                    // The kernel tests frames with at least an Ethernet header.
                    frame.truncate(len.max(14));
                }
                // The kernel tests frames of at most a page, less its own headroom.
                frame.truncate(3000);
                frame
            },
        )
    }

    /// Compares the kernel's result with the filter's, for many filters and generated frames. Needs root.
    #[test]
    fn the_kernel_agrees_with_the_filter() {
        let programs: Vec<_> = [
            "all",
            "arp",
            "ip",
            "ip6",
            "tcp",
            "udp:4321",
            "udp:5000-5005,tcp:80",
            "vlan:77",
            "vlan:77+udp",
            "icmp,icmp6",
            "from:10.0.0.0/8",
            "to:10.1.2.3",
            "from:10.200.0.0/15+tcp",
            "host:10.1.2.3+port:80",
            "from:0a01:203::/32",
            "to:0a00::/7+udp",
            "from:0.0.0.0/0",
            "to:::/0",
            "sctp,proto:47",
            "type:0x88a8",
            "from-port:80+to-port:4321",
            "to-port:0-65535",
            "proto:0,proto:60+ip6",
            "proto:44",
            "proto:51+ip",
            "vlan:77+ip6+port:80",
        ]
        .iter()
        .map(|text| load(text))
        .collect();
        proptest!(ProptestConfig::with_cases(3000), |(frame in frames())| {
            for (filter, program) in &programs {
                // More bytes decide more, and change no decision.
                for len in 0..frame.len().min(128) {
                    let part = filter.decide(&frame[..len]);
                    prop_assert!(part.is_none() || part == filter.decide(&frame), "{} {}", filter, len);
                }
                let expected = if filter.matches(&frame) { REDIRECT } else { PASS };
                prop_assert_eq!(program.test(&frame).unwrap(), expected, "{}", filter);
            }
        });
    }

    /// Filters of rules for the frames above.
    const RULES: [&str; 16] = [
        "arp",
        "ip6",
        "icmp,icmp6",
        "udp:4321",
        "udp:5000-5005,tcp:80",
        "vlan:77+udp",
        "host:10.1.2.3+port:80",
        "from:10.0.0.0/8",
        "to:10.1.2.3+sctp",
        "from:0a01:203::/32",
        "from-port:80+to-port:4321",
        "proto:44",
        "type:0x88a8",
        "tcp",
        "port:5000-5009",
        "all",
    ];

    /// Compares the kernel's result with the first rule's that matches, for 1,000 random rules and 10,000 frames and
    /// more. Needs root.
    #[test]
    fn the_kernel_agrees_with_the_first_rule() {
        let verdicts = [Verdict::Take, Verdict::Mark(7), Verdict::Pass, Verdict::Drop];
        // The last filter matches everything, so it is rare.
        let rule = (prop_oneof![30 => 0..RULES.len() - 1, 1 => Just(RULES.len() - 1)], 0..verdicts.len());
        let filters = RULES.map(|text| text.parse::<Filter>().unwrap());
        let flow = prop::option::of(0..RULES.len());
        let batch = (flow, prop::collection::vec(rule, 0..42), prop::collection::vec(frames(), 200));
        let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) };
        let mut runner = proptest::test_runner::TestRunner::new(cases);
        let (rules_loaded, frames_tested) = (Cell::new(0), Cell::new(0));
        let checked = runner.run(&batch, |(flow, rules, frames)| {
            let flow = flow.map(|flow| &filters[flow]);
            let rules: Vec<_> = rules.iter().map(|(filter, verdict)| (&filters[*filter], verdicts[*verdict])).collect();
            let code = program(flow, &rules, Action::Answer).unwrap();
            let program = Program::load(&code, Kind::Xdp { fragments: false, interface: None });
            let program = program.map_err(|error| TestCaseError::fail(format!("{flow:?} {rules:?}: {error}")))?;
            for frame in &frames {
                let by_rule = rules.iter().find(|(filter, _)| filter.matches(frame)).map(|(_, verdict)| *verdict);
                let by_flow =
                    || if flow.is_none_or(|flow| flow.matches(frame)) { Verdict::Take } else { Verdict::Pass };
                let expected = match by_rule.unwrap_or_else(by_flow) {
                    Verdict::Take | Verdict::Mark(_) => REDIRECT,
                    Verdict::Pass => PASS,
                    Verdict::Drop => DROP,
                };
                prop_assert_eq!(program.test(frame).unwrap(), expected, "{:?} {:?}", flow, rules);
            }
            rules_loaded.set(rules_loaded.get() + rules.len());
            frames_tested.set(frames_tested.get() + frames.len());
            Ok(())
        });
        checked.unwrap();
        let (rules_loaded, frames_tested) = (rules_loaded.get(), frames_tested.get());
        assert!(rules_loaded >= 1000 && frames_tested >= 10_000, "only {rules_loaded} rules, {frames_tested} frames");
    }

    /// The metadata of a packet has the mark of the first rule that matches, for random rules and frames. Only the
    /// port's packets have metadata. Needs root.
    #[test]
    fn metadata_has_the_mark_of_the_first_rule() {
        let verdicts = prop_oneof![
            4 => any::<u32>().prop_map(Verdict::Mark), 1 => Just(Verdict::Take), 1 => Just(Verdict::Pass), 1 => Just(Verdict::Drop)
        ];
        let filters = RULES.map(|text| text.parse::<Filter>().unwrap());
        let batch = (prop::collection::vec((0..RULES.len(), verdicts), 0..12), prop::collection::vec(frames(), 50));
        let map = SocketMap::new(1).unwrap();
        let marked = Cell::new(0);
        proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) }, |((rules, frames) in batch)| {
            let rules: Vec<_> = rules.iter().map(|(filter, verdict)| (&filters[*filter], *verdict)).collect();
            let action = Action::ToSocket(map.as_fd().as_raw_fd(), Some(Hints::none(0x5EA1)));
            let code = program(None, &rules, action).unwrap();
            let program = Program::load(&code, Kind::Xdp { fragments: false, interface: None });
            let program = program.map_err(|error| TestCaseError::fail(format!("{rules:?}: {error}")))?;
            for frame in &frames {
                let first = rules.iter().find(|(filter, _)| filter.matches(frame));
                let verdict = first.map_or(Verdict::Take, |(_, verdict)| *verdict);
                // The map has no socket, so that the kernel would get all packets that are not dropped.
                let (answer, output) = program.test_with_output(frame).unwrap();
                prop_assert_eq!(answer, if verdict == Verdict::Drop { DROP } else { PASS });
                let (metadata, data) = output.split_at(output.len() - frame.len());
                prop_assert_eq!(data, &frame[..]);
                let word = |at: usize| u32::from_ne_bytes(metadata[at..at + 4].try_into().unwrap());
                match verdict {
                    Verdict::Mark(number) => {
                        prop_assert_eq!((metadata.len(), word(20), word(24), word(28)), (32, number, HAS_MARK, 0x5EA1));
                        marked.set(marked.get() + 1);
                    }
                    Verdict::Take => prop_assert_eq!((metadata.len(), word(24), word(28)), (32, 0, 0x5EA1)),
                    Verdict::Pass | Verdict::Drop => prop_assert_eq!(metadata.len(), 0),
                }
            }
        });
        assert!(marked.get() > 500, "only {} frames had marks", marked.get());
    }

    /// The verifier accepts many rules. Needs root.
    #[test]
    fn a_thousand_rules_fit_one_program() {
        let filters: Vec<Filter> =
            (0..1000).map(|n| format!("udp:{n}+from:10.0.{}.{}", n / 256, n % 256).parse().unwrap()).collect();
        let rules: Vec<_> = filters.iter().map(|filter| (filter, Verdict::Drop)).collect();
        let code = program(None, &rules, Action::Answer).unwrap();
        Program::load(&code, Kind::Xdp { fragments: false, interface: None }).unwrap();
    }

    #[test]
    fn many_alternatives_fit_one_program() {
        let text = (0..200).map(|n| format!("udp:{n}+from:fd00::{n:x}")).collect::<Vec<_>>().join(",");
        let filter: Filter = text.parse().unwrap();
        assert!(program(Some(&filter), &[], Action::Answer).is_some());
        let text = vec!["udp:1"; 20_000].join(",");
        assert!(program(Some(&text.parse().unwrap()), &[], Action::Answer).is_none(), "jumps are of 16 bits");
    }
}
