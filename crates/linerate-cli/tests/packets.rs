//! Frames of `gen --packet`, compared with scapy's and received by Linux; and answers to Linux's requests.

mod kit;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use kit::{Folder, Namespace, Process, alone, expect, frames, inside, linerate, pair, summary, text, write_frames};
use linerate::traffic::Template;
use linerate_testkit::OutputTimeout;

/// Layers of frames that scapy can build, too. Each N is replaced by another number.
const STACKS: [&str; 22] = [
    "eth",
    "eth(type=0x88B6)/payload(46)",
    "eth/arp(op=2,sha=02:00:00:00:00:09,spa=10.0.0.N,tha=02:00:00:00:00:08,tpa=10.0.0.1|10.0.0.2)",
    "eth(src=02:00:00:00:00:00-02:00:00:00:00:05)/ip(src=10.0.0.N-10.0.1.9,ttl=1-9+2*2)/udp(sport=N-999,dport=53|80)/payload(N)",
    "eth/ip(dscp=N,ecn=2,id=7-9,df)/tcp(seq=N-99999+1000,ack=N,flags=S|SA|FPU,window=N)/payload(9)",
    "eth/ip(tos=N,options=01010101)/tcp(sport=N,urgent=5,options=0101010101010101)/text(hello)",
    "eth/ip(mf,offset=3)/hex(00ff10)",
    "eth/ip/icmp(type=8,id=N,seq=0-9)/payload(56)",
    "eth/ip/icmp(type=3,code=1,id=0,seq=N)/payload(28)",
    "eth/vlan(id=N-4095,pcp=5)/ip/udp/payload(18)",
    "eth/qinq(id=N)/vlan(id=7-9)/ip6/udp/payload(N)",
    "eth/ip6(tc=N,flow=N-99999,hop=3,src=2001:db8::N-2001:db8::ffff,dst=::1|ff02::1)/tcp/payload(7)",
    "eth/ip6(src=2001:db8:N::/48)/icmp6(id=N-99,seq=1)/payload(8)",
    "eth/ip6/icmp6(type=1,code=4,id=0,seq=0)/payload(40)",
    "eth/mpls(label=N-99,tc=3)/mpls(label=9,ttl=N)/ip(src=10.0.0.0/24)/udp/payload(4)",
    "eth/ip/ip(src=10.0.0.0/30*2)/udp(sport=N-9999)/payload(5)",
    "eth/ip/ip6/ip(ttl=1-5)/icmp(seq=1-7)",
    "eth/ip/gre/ip(src=10.0.0.0/30)/tcp/payload(5)",
    "eth/ip6/gre(key=N-99,seq=7)/eth/ip6/udp(dport=N-999)/payload(3)",
    "eth/ip/gre(checksum)/ip(id=N-999)/udp/payload(5)",
    "eth/ip/udp(sport=N-9999)/vxlan(vni=N-99)/eth(dst=02:00:00:00:00:01-02:00:00:00:00:ff)/ip(src=10.0.0.0/8)/tcp(seq=1-9)/payload(11)",
    "eth/ip6/udp/vxlan/eth/vlan(id=N-99)/ip6(dst=2001:db8::/64)/udp(sport=1-7)/text(odd)",
];

/// Builds the same frames from the same layers with scapy, and prints those that differ.
const SCAPY: &str = r#"
import ipaddress, sys
from scapy.all import *
from scapy.contrib.mpls import MPLS

def split(text, separator):
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return parts + [text[start:]]

def number(text):
    if text.count(":") == 5 and "::" not in text:
        return int(text.replace(":", ""), 16)
    if ":" in text or text.count(".") == 3:
        return int(ipaddress.ip_address(text))
    return int(text, 0) if text[0].isdigit() else sum(1 << "FSRPAUEC".index(flag) for flag in text)

def value(text, n):
    text, _, times = text.partition("*")
    n //= int(times or 1)
    if "|" in text:
        values = text.split("|")
        return number(values[n % len(values)])
    if "/" in text:
        network = ipaddress.ip_network(text)
        return int(network.network_address) + n % network.num_addresses
    first, dash, last = text.partition("-")
    if not dash:
        return number(text)
    last, _, step = last.partition("+")
    step = int(step or 1)
    return number(first) + n % ((number(last) - number(first)) // step + 1) * step

mac = lambda value: ":".join("%02x" % byte for byte in value.to_bytes(6, "big"))
ip4 = lambda value: str(ipaddress.IPv4Address(value))
ip6 = lambda value: str(ipaddress.IPv6Address(value))
OURS, THEIRS = "02:6c:72:00:00:01", "02:6c:72:00:00:02"

def layer(text, following, n):
    name, _, inner = text.partition("(")
    inner = inner[:-1]
    if name == "hex":
        return Raw(bytes.fromhex(inner))
    if name == "text":
        return Raw(inner.encode())
    if name == "payload":
        return Raw(bytes(index & 255 for index in range(int(inner))))
    given = {}
    for argument in split(inner, ",") if inner else []:
        field, _, values = argument.partition("=")
        given[field] = 1 if not values else values if field == "options" else value(values, n)
    # A dictionary from our names to scapy's, and those of ours that have to be written otherwise.
    def made(kind, names, **defaults):
        for ours, (theirs, write) in names.items():
            if ours in given:
                defaults[theirs] = write(given[ours])
        return kind(**defaults)
    same = lambda *names: {ours: (theirs, int) for ours, theirs in zip(names[::2], names[1::2])}
    is_last = following in (None, "payload", "hex", "text")
    unknown = {"type": 0x88B5} if is_last else {}
    if name == "eth":
        broadcast = "ff:ff:ff:ff:ff:ff" if following == "arp" else THEIRS
        return made(Ether, {"dst": ("dst", mac), "src": ("src", mac), **same("type", "type")}, dst=broadcast, src=OURS, **unknown)
    if name in ("vlan", "qinq"):
        kind = Dot1Q if name == "vlan" else Dot1AD
        return made(kind, same("id", "vlan", "pcp", "prio", "type", "type"), vlan=1, **unknown)
    if name == "mpls":
        return made(MPLS, same("label", "label", "tc", "cos", "bottom", "s", "ttl", "ttl"), label=0, ttl=64, s=int(following != "mpls"))
    if name == "arp":
        names = {"sha": ("hwsrc", mac), "spa": ("psrc", ip4), "tha": ("hwdst", mac), "tpa": ("pdst", ip4), **same("op", "op")}
        return made(ARP, names, hwsrc=OURS, psrc="198.18.0.1", hwdst="00:00:00:00:00:00", pdst="198.19.0.1")
    if name == "ip":
        names = {"src": ("src", ip4), "dst": ("dst", ip4), "options": ("options", lambda text: [IPOption(bytes.fromhex(text)[:1])] * (len(text) // 2))}
        given["tos"] = given.get("tos", given.get("dscp", 0) << 2 | given.get("ecn", 0))
        given["flags"] = given.get("df", 0) << 1 | given.get("mf", 0)
        names |= same("tos", "tos", "flags", "flags", "id", "id", "offset", "frag", "ttl", "ttl", "proto", "proto", "len", "len", "checksum", "chksum")
        return made(IP, names, src="198.18.0.1", dst="198.19.0.1", id=0, **({"proto": 253} if is_last else {}))
    if name == "ip6":
        names = {"src": ("src", ip6), "dst": ("dst", ip6), **same("tc", "tc", "flow", "fl", "hop", "hlim", "next", "nh")}
        return made(IPv6, names, src="2001:2::1", dst="2001:2::2", **({"nh": 253} if is_last else {}))
    if name == "udp":
        port = 4789 if following == "vxlan" else 9
        return made(UDP, same("sport", "sport", "dport", "dport", "len", "len", "checksum", "chksum"), sport=1024, dport=port)
    if name == "tcp":
        names = {"options": ("options", lambda text: [("NOP", None)] * (len(text) // 2))}
        names |= same("sport", "sport", "dport", "dport", "seq", "seq", "ack", "ack", "flags", "flags", "window", "window", "urgent", "urgptr")
        return made(TCP, names, sport=1024, dport=9, flags=2, window=8192)
    if name == "icmp":
        if given.get("type", 8) == 8:
            return made(ICMP, same("id", "id", "seq", "seq"))
        # Of a destination that is unreachable: no field is called so.
        return ICMP(type=given["type"], code=given["code"], reserved=0, length=0, nexthopmtu=given["seq"])
    if name == "icmp6":
        if "type" in given:
            return ICMPv6DestUnreach(type=given["type"], code=given["code"])
        return made(ICMPv6EchoRequest, same("id", "id", "seq", "seq"))
    if name == "gre":
        flags = dict(chksum_present=int("checksum" in given), key_present=int("key" in given), seqnum_present=int("seq" in given))
        return made(GRE, same("key", "key", "seq", "seqence_number" if any(f.name == "seqence_number" for f in GRE.fields_desc) else "sequence_number"), **flags)
    if name == "vxlan":
        return made(VXLAN, same("vni", "vni"), flags=8, vni=given.get("vni", 1))
    raise ValueError(name)

count = 0
for line in open(sys.argv[1]):
    words, made = line.rstrip("\n").split("\t")
    names = [text.partition("(")[0] for text in split(words, "/")]
    for n, frame in enumerate(made.split(",")):
        layers = [layer(text, following, n) for text, following in zip(split(words, "/"), names[1:] + [None])]
        packet = layers[0]
        for inner in layers[1:]:
            packet = packet / inner
        expected = bytes(packet).ljust(60, b"\0")
        count += 1
        if expected.hex() != frame:
            print(f"{words}, frame {n}:\n  ours   {frame}\n  scapy  {expected.hex()}")
print(f"{count} frames")
"#;

/// Frames of each kind of template, with variable fields, sent by the command, equal scapy's byte for byte.
#[test]
fn frames_are_those_of_scapy() {
    let folder = Folder::new("scapy");
    let (mut lines, mut number) = (String::new(), 0);
    for stack in STACKS {
        let mut words = String::new();
        for part in stack.split_inclusive('N') {
            number += 1;
            words += &part.replace('N', &(number % 64 + 1).to_string());
        }
        let file = folder.path("frames.pcap");
        let port = format!("pcap:{file}?write");
        expect(0, &mut linerate(&["gen", &port, "--packet", &words, "--count", "12", "--seconds", "60"]));
        let made: Vec<String> =
            frames(&file).iter().map(|frame| frame.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        assert_eq!(made.len(), 12);
        writeln!(lines, "{words}\t{}", made.join(",")).unwrap();
    }
    let (script, list) = (folder.path("build.py"), folder.path("frames.txt"));
    std::fs::write(&script, SCAPY).unwrap();
    std::fs::write(&list, lines).unwrap();
    // Debian's Python, for which Debian's scapy is installed.
    let said = text(&expect(0, Command::new("/usr/bin/python3").args([&script, &list])).stdout);
    assert_eq!(said, format!("{} frames\n", STACKS.len() * 12));
}

/// Numbers of frames by Linux's counters.
type Counts = BTreeMap<String, u64>;

/// Reads the counters of a namespace, from `/proc/net/snmp`, by protocol and name, and from `/proc/net/snmp6`.
fn counters(namespace: &Namespace) -> Counts {
    let mut counts = Counts::new();
    let text = namespace.run("cat /proc/net/snmp");
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks(2) {
        let (names, values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let protocol = pair[0].split(':').next().unwrap();
        let named = names.zip(values).skip(1);
        counts.extend(named.filter_map(|(name, value)| Some((format!("{protocol}{name}"), value.parse().ok()?))));
    }
    for line in namespace.run("cat /proc/net/snmp6").lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            counts.insert(name.to_string(), value);
        }
    }
    counts
}

/// Linux accepts all frames of 1,000 random templates without an error: each is counted by the counter of its protocol
/// that follows the verification of the checksum.
#[test]
fn linux_accepts_frames_of_random_templates() {
    let _alone = alone();
    let (near, far) = (Namespace::new("tn"), Namespace::new("tf"));
    pair((&near, "n0"), (&far, "f0"), 9);
    // The sender needs no address for replies, as only arriving frames are counted.
    far.run("ip -6 address add fd87::2/64 dev f0 nodad");
    far.run("ip link add vx0 type vxlan id 42 local 10.87.9.2 dstport 4789 dev f0");
    far.run("ip address add 10.89.0.2/24 dev vx0");
    far.run("ip link set vx0 up");
    let mac = |interface: &str| far.run(&format!("cat /sys/class/net/{interface}/address")).trim().to_string();
    let (of_f0, of_vx0) = (mac("f0"), mac("vx0"));

    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut sent, mut expected) = (Vec::new(), Counts::new());
    for n in 0..1000u64 {
        // A number, a range, a list, or a random number of a range.
        let mut number = |least: u64, most: u64| {
            let (a, b) = (least + random(most - least + 1), least + random(most - least + 1));
            match random(4) {
                0 => a.to_string(),
                1 => format!("{}-{}", a.min(b), a.max(b)),
                2 => format!("{a}|{b}"),
                _ => format!("random({}-{})", a.min(b), a.max(b)),
            }
        };
        let (outer, net) = match n % 4 {
            0 | 1 => (format!("eth(dst={of_f0})"), Some("10.87.9")),
            2 => {
                let outer =
                    format!("ip(src=10.87.9.{},dst=10.87.9.2)/udp(sport={})", number_of(n), number(1024, 65_535));
                (format!("eth(dst={of_f0})/{outer}/vxlan(vni=42)/eth(dst={of_vx0})"), Some("10.89.0"))
            }
            _ => (format!("eth(dst={of_f0})"), None),
        };
        let ip = match net {
            Some(net) => {
                format!("ip(src={net}.3-{net}.250,dst={net}.2,tos={},id={})", number(0, 255), number(0, 65_535))
            }
            None => {
                format!("ip6(src=random(fd87::/64),dst=fd87::2,tc={},flow={})", number(0, 255), number(0, 0xF_FFFF))
            }
        };
        let six = if net.is_none() { "6" } else { "" };
        let (over, counter) = match n / 4 % 3 {
            0 => (
                format!("udp(sport={},dport={})", number(1, 65_535), number(20_000, 30_000)),
                format!("Udp{six}NoPorts"),
            ),
            1 => {
                let ports = format!("sport={},dport={}", number(1, 65_535), number(20_000, 30_000));
                (
                    format!("tcp({ports},seq={},flags=S,window={})", number(0, 0xFFFF_FFFF), number(0, 65_535)),
                    "TcpOutRsts".into(),
                )
            }
            _ => (
                format!("icmp{six}(id={},seq={})", number(0, 65_535), number(0, 65_535)),
                if six.is_empty() { "IcmpInEchos".into() } else { "Icmp6InEchos".into() },
            ),
        };
        let payload = number_of(n * 7) * 5;
        let words = format!("{outer}/{ip}/{over}/payload({payload},random)");
        let template: Template = words.parse().unwrap_or_else(|why| panic!("{words}: {why}"));
        let mut made = template.with_seed(n).frames().unwrap();
        for _ in 0..5 {
            let mut frame = vec![0; made.next_len()];
            made.fill(&mut frame);
            sent.push(frame);
        }
        *expected.entry(counter).or_default() += 5;
    }
    let folder = Folder::new("linux");
    let file = folder.path("frames.pcap");
    write_frames(&file, &sent);

    let before = counters(&far);
    expect(0, &mut inside(&near, &format!("replay {file} packet:n0 --rate 10k --seconds 60")));
    // The last packets may be in flight.
    let gained = || {
        let after = counters(&far);
        expected.keys().map(|name| (name.clone(), after[name] - before[name])).collect::<Counts>()
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while gained() != expected && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(gained(), expected);
    let after = counters(&far);
    let errors = after.iter().filter(|(name, value)| {
        (name.contains("CsumErrors") || name.contains("HdrErrors")) && **value != before[*name]
    });
    assert_eq!(errors.collect::<Vec<_>>(), []);
}

/// Linux finds no wrong checksum in the segments that a card has cut. (The interface verifies nothing itself.)
#[test]
fn linux_accepts_the_segments_of_a_card() {
    let _alone = alone();
    let namespace = Namespace::new("cut");
    namespace.run("ip tuntap add t0 mode tap");
    namespace.run("ip link set t0 address 02:00:00:00:00:99 up");
    namespace.run("ip address add 10.87.9.2/24 dev t0");
    namespace.run("ip -6 address add fd87::2/64 dev t0 nodad");
    for (network, counter) in [
        ("ip(src=10.87.9.3,dst=10.87.9.2)/udp", "UdpNoPorts"),
        ("ip6(src=fd87::3,dst=fd87::2)/udp", "Udp6NoPorts"),
        ("ip(src=10.87.9.3,dst=10.87.9.2)/tcp", "TcpInSegs"),
        ("ip6(src=fd87::3,dst=fd87::2)/tcp", "TcpInSegs"),
    ] {
        let before = counters(&namespace);
        let packet = format!("eth(dst=02:00:00:00:00:99)/{network}(sport=random,dport=9)/payload(4001,random)");
        let traffic = ["--packet", &packet, "--segment", "1001", "--rate", "20k", "--count", "1000", "--seconds", "60"];
        expect(0, inside(&namespace, "gen sim:0?wire=tap:t0").args(traffic));
        let gained = |name: &str| counters(&namespace)[name] - before[name];
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while gained(counter) < 4000 && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(gained(counter), 4000, "{counter} of {packet}");
        let wrong: Vec<_> = before.keys().filter(|name| name.contains("CsumErrors") && gained(name) > 0).collect();
        assert!(wrong.is_empty(), "{packet}: {wrong:?}");
    }
}

/// Returns a host's number from 3 to 250.
fn number_of(n: u64) -> u64 {
    3 + n % 248
}

/// Linux resolves and pings a port that answers, over IPv4 and IPv6, while `sink` receives and while `gen` sends.
/// arping finds it, too.
/// tcpdump reads the same packets as from a sender with this segment size.
#[test]
fn the_port_cuts_large_packets() {
    let folder = Folder::new("cut");
    for (network, protocol, header) in [("ip", "tcp", 54), ("ip6", "tcp", 74), ("ip", "udp", 42), ("ip6", "udp", 62)] {
        let file = folder.path(&format!("{network}-{protocol}.pcap"));
        let packet = format!("eth/{network}/{protocol}/payload(60000)");
        let (port, segment) = (format!("pcap:{file}?write"), ["--segment", "1400", "--count", "3"]);
        expect(0, linerate(&["gen", &port, "--packet", &packet]).args(segment));
        let read = frames(&file);
        let lengths: Vec<_> = read.iter().map(Vec::len).collect();
        let expected = [vec![header + 1400; 42], vec![header + 1200]].concat().repeat(3);
        assert_eq!(lengths, expected, "{packet}");
        let said = text(&expect(0, Command::new("tcpdump").args(["-nvv", "-r", &file])).stdout);
        let right = if protocol == "tcp" { "(correct)" } else { "[udp sum ok]" };
        assert_eq!(said.matches(right).count(), 3 * 43, "{packet}: {said}");
    }
    // Rings that hold few of the packets, several streams, and a software port: all frames leave.
    let streams = folder.path("streams.toml");
    let stream = |name: &str, packet: &str, segment: u16| {
        format!("[[stream]]\nname = '{name}'\npacket = '{packet}'\nsegment = {segment}\ncount = 100\n")
    };
    let both = stream("a", "eth/ip/tcp/payload(65400)", 1448) + &stream("b", "eth/ip6/udp/payload(3000)", 1000);
    std::fs::write(&streams, both).unwrap();
    for port in ["sim:0?wire=sink&ring=64", &format!("pcap:{}?write", folder.path("streams.pcap"))] {
        let output = expect(0, &mut linerate(&["gen", port, "--streams", &streams, "--seconds", "60", "--json"]));
        let summary = summary(&output.stdout);
        let port = &summary["ports"][0];
        assert_eq!((&summary["packets"], &port["tx_packets"]), (&200.into(), &(4600 + 300).into()), "{summary}");
        assert!(!text(&output.stderr).contains("not sent"));
    }
    for (packet, why) in [("eth/arp", "not TCP or UDP"), ("eth/ip/udp/stamp", "leave out the layer stamp")] {
        let refused =
            expect(2, &mut linerate(&["gen", "null:", "--packet", packet, "--segment", "100", "--count", "1"]));
        assert!(text(&refused.stderr).contains(why));
    }
}

#[test]
fn linux_pings_a_port() {
    let _alone = alone();
    let (linux, ours) = (Namespace::new("rl"), Namespace::new("ro"));
    pair((&linux, "l0"), (&ours, "o0"), 8);
    linux.run("ip -6 address add fd88::1/64 dev l0 nodad");
    let addresses = "--reply arp,ping --address 10.87.8.9,fd88::9 --seconds 120 --json";
    for command in ["sink packet:o0", "gen packet:o0 --packet eth(dst=02:00:00:00:00:77)/ip/udp --rate 100"] {
        let mut process = Process::start(&mut inside(&ours, &format!("{command} {addresses}")));
        process.await_output("ports");
        for size in [0, 56, 1400] {
            linux.ping(3, &format!("-s {size} 10.87.8.9"));
            linux.ping(3, &format!("-s {size} fd88::9"));
        }
        linux.run("ip neigh flush dev l0");
        let said = linux.run("arping -c 2 -w 20 -I l0 10.87.8.9");
        assert!(said.contains("2 packets received") || said.contains("Received 2 response"), "{said}");
        let (code, output) = process.interrupt();
        assert_eq!(code, Some(0), "{output}");
        let summary = summary(output.as_bytes());
        let command = &command[..4].trim_end();
        // 18 pings, and at least one request for each address, before and after the flush.
        let answered = summary[command]["answered"].as_u64().unwrap();
        assert!(answered >= 18 + 2 + 2, "{summary}");
        let (packets, sent) =
            (summary["packets"].as_u64().unwrap(), summary["ports"][0]["tx_packets"].as_u64().unwrap());
        match *command {
            "sink" => assert!(packets > answered && sent == answered, "{summary}"),
            _ => assert!(packets > 0 && sent == answered + packets, "{summary}"),
        }
    }
}

/// Ports with addresses find the next hop, and test through Linux as a router: over IPv4 and IPv6, and in both
/// directions at the same time. Changed headers are not corruption.
#[test]
fn addresses_lead_through_a_router() {
    let _alone = alone();
    let (tester, router) = (Namespace::new("ht"), Namespace::new("hr"));
    for n in [0, 1] {
        pair((&router, &format!("r{n}")), (&tester, &format!("t{n}")), 10 + n);
        tester.run(&format!("ip address flush dev t{n}"));
        router.run(&format!("ip -6 address add fd87:{n}::1/64 dev r{n} nodad"));
    }
    router.script("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
    for ([near, far], [gateway, far_gateway]) in [
        (["10.87.10.2/24", "10.87.11.2/24"], ["10.87.10.1", "10.87.11.1"]),
        (["fd87:0::2/64", "fd87:1::2/64"], ["fd87:0::1", "fd87:1::1"]),
    ] {
        let sink = format!("sink packet:t1 --address {far} --gateway {far_gateway} --count 1000 --seconds 120 --json");
        let mut sink = Process::start(&mut inside(&tester, &sink));
        sink.await_output("ports");
        let to = far.split('/').next().unwrap();
        let gen_ =
            format!("gen packet:t0 --address {near} --gateway {gateway} --to {to} --size 200 --rate 1k --count 1000");
        expect(0, &mut inside(&tester, &gen_));
        let (code, output) = sink.ended();
        let summary = summary(output.as_bytes());
        assert_eq!((code, &summary["lost"], &summary["corrupted"]), (Some(0), &0.into(), &0.into()), "{summary}");
        let fields = &summary["changed"]["fields"];
        assert!(fields["ttl"].as_u64().unwrap() > 900 && fields["source_mac"] == fields["ttl"], "{summary}");
        assert_eq!(fields.get("source_address"), None);

        let ports = format!("packet:t0 packet:t1 --address {near},{far} --gateway {gateway},{far_gateway}");
        let latency = format!("latency {ports} --both --rate 500 --size 128 --seconds 1 --json");
        let output = expect(0, &mut inside(&tester, &latency));
        let load: serde_json::Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
        // Between busy processors, the kernel drops some of these packets, unlike those of `gen` above.
        assert!(load["arrived"].as_u64() > Some(100) && load["corrupted"] == 0, "{load}");
    }
    for (arguments, said) in [
        (
            "gen packet:t0 --address 10.87.10.2/24 --gateway 10.87.10.9 --count 1",
            "10.87.10.9 did not answer 3 ARP requests",
        ),
        ("gen packet:t0 --address 10.87.10.2/24 --count 1", "198.19.0.1 is in none of the networks of --address"),
        (
            "gen packet:t0 --address 10.87.10.2/24 --gateway 10.87.11.1",
            "--gateway 10.87.11.1 is in none of the networks",
        ),
        ("gen packet:t0 --address 10.87.10.2", "no prefix length: append /24, for example"),
        ("latency packet:t0 packet:t1 --address 10.87.10.2/24", "two ports have two addresses"),
        ("latency packet:t0 packet:t1 --packet eth/ip/udp", "append /stamp"),
    ] {
        let output = inside(&tester, arguments).output_in_time().unwrap();
        assert!(
            !output.status.success() && text(&output.stderr).contains(said),
            "{arguments}: {}",
            text(&output.stderr)
        );
    }
    let output = expect(0, &mut inside(&tester, "gen packet:t0 --packet eth/ip(dst=10.87.11.2)/udp --count 1"));
    assert!(text(&output.stderr).contains("default destination MAC address"), "{}", text(&output.stderr));
}
