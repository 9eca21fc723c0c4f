//! Frames of `gen --packet` beside scapy's, and before Linux.

mod kit;

use std::fmt::Write as _;
use std::process::Command;

use kit::{Folder, expect, frames, linerate, text};

/// Layers of frames that scapy builds, too; N stands for another number in each of them.
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

/// Builds the same frames from the same words by scapy, and prints those that differ.
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

/// Frames of each kind of template, with fields that change, are scapy's byte for byte. They are sent by the command.
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
    // Debian's, which has Debian's scapy.
    let said = text(&expect(0, Command::new("/usr/bin/python3").args([&script, &list])).stdout);
    assert_eq!(said, format!("{} frames\n", STACKS.len() * 12));
}
