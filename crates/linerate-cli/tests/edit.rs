//! `linerate edit`: beside tcprewrite, tshark and scapy, on captures that scapy makes.

mod kit;

use std::process::Command;

use kit::{Folder, captures, expect, linerate, summary, text};
use serde_json::json;

/// A record of a pcap file: seconds, fraction, original length, and the captured bytes.
type Record = (u32, u32, u32, Vec<u8>);

/// Runs `linerate edit` with words separated by spaces.
fn edit(input: &str, output: &str, options: &str) -> Command {
    let mut words = vec!["edit", input, output];
    words.extend(options.split(' ').filter(|word| !word.is_empty()));
    linerate(&words)
}

/// Returns the records of a pcap file in either byte order.
fn records(path: &str) -> Vec<Record> {
    let file = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let word = |at: usize| {
        let bytes = file[at..at + 4].try_into().unwrap();
        if file[0] == 0xD4 { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    };
    let (mut all, mut at) = (Vec::new(), 24);
    while at < file.len() {
        let end = at + 16 + word(at + 8) as usize;
        all.push((word(at), word(at + 4), word(at + 12), file[at + 16..end].to_vec()));
        at = end;
    }
    all
}

/// Writes records as pcap.
fn write(path: &str, records: &[Record]) {
    let mut file = Vec::new();
    [0xA1B2_C3D4, 4 << 16 | 2, 0, 0, 262_144, 1].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
    for (seconds, fraction, original, bytes) in records {
        [*seconds, *fraction, bytes.len() as u32, *original].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(bytes);
    }
    std::fs::write(path, file).unwrap();
}

const CAPTURES: [&str; 25] = [
    "arp",
    "bigendian",
    "errors",
    "errors6",
    "extensions",
    "fragments",
    "fragments6",
    "icmp",
    "icmp6",
    "multicast",
    "neighbours",
    "nochecksum",
    "options",
    "other",
    "padded",
    "qinq",
    "sctp",
    "snapped",
    "tcp",
    "tcp6",
    "tunnels",
    "udp",
    "udp6",
    "vlan",
    "wrong",
];

/// The same edits for both programs. docs/replay.md has the options as a table.
const EDITS: [(&str, &str, &str); 14] = [
    ("copy", "", ""),
    ("map", "--pnat=10.0.0.0/8:198.18.0.0/15", "--map 10.0.0.0/8=198.18.0.0/15"),
    ("map6", "--pnat=[2001:db8::/32]:[2001:2::/48]", "--map 2001:db8::/32=2001:2::/48"),
    ("port", "--portmap=80:8080,5353-5400:53", "--port 80=8080 --port 5353-5400=53"),
    ("ttl", "--ttl=-1", "--set ip(ttl=-1)/ip6(hop=-1)"),
    ("ttl77", "--ttl=77", "--set ip(ttl=77)/ip6(hop=77)"),
    ("tos", "--tos=184", "--set ip(tos=184)"),
    ("class", "--tclass=184 --flowlabel=5", "--set ip6(tc=184,flow=5)"),
    ("push", "--enet-vlan=add --enet-vlan-tag=7 --enet-vlan-cfi=0 --enet-vlan-pri=3", "--push vlan(id=7,pcp=3)"),
    ("pop", "--enet-vlan=del", "--pop"),
    (
        "mac",
        "--enet-dmac=06:00:00:00:00:01 --enet-smac=06:00:00:00:00:02",
        "--set eth(dst=06:00:00:00:00:01,src=06:00:00:00:00:02)",
    ),
    ("subsmac", "--enet-subsmac=02:00:00:00:00:01,06:00:00:00:00:09", "--map 02:00:00:00:00:01=06:00:00:00:00:09"),
    ("fix", "--fixcsum", "--fix-checksums"),
    ("truncate", "--mtu-trunc --mtu=100", "--fit truncate --mtu 100"),
];

/// Returns why the frames of tcprewrite 4.4.3 differ; docs/replay.md lists the reasons.
fn reason(capture: &str, edit: &str) -> Option<&'static str> {
    match (capture, edit) {
        ("other", _) => Some("it takes the LLC header of IEEE 802.3 as IP"),
        ("padded", _) => Some("it adds padding to the IPv4 packet"),
        ("wrong", edit) if edit != "fix" => Some("it corrects checksums in any case"),
        ("arp" | "neighbours", "subsmac") => Some("it leaves MAC addresses in ARP and neighbour discovery"),
        ("neighbours", "map6") => Some("it leaves addresses in neighbour discovery"),
        ("errors" | "errors6", "map" | "map6" | "port") => Some("it leaves the packet in an ICMP error"),
        ("icmp6", "map6") => Some("it leaves the checksum of ICMPv6"),
        ("extensions" | "fragments6", "port") => Some("it finds no ports after extension headers"),
        ("fragments6", _) => Some("it leaves IPv6 fragments"),
        ("snapped", "port") => Some("it needs a complete TCP header"),
        ("sctp", "port") => Some("it leaves the ports of SCTP"),
        ("multicast", "mac") => Some("it sets the MAC address of a multicast group"),
        (_, "truncate") => Some("it leaves the length of UDP, and fills cut frames with old bytes"),
        _ => None,
    }
}

/// tcprewrite 4.4.3 overwrites both MAC addresses of IPv6 packets: its test for multicast is inverted.
fn without_addresses(mut record: Record) -> Record {
    let is_v6 = record.3.get(12..14) == Some(&[0x86, 0xDD]) || record.3.get(16..18) == Some(&[0x86, 0xDD]);
    if is_v6 {
        record.3[..12].fill(0);
    }
    record
}

/// Each edit of each capture has the records of tcprewrite, or there is a reason. Checksums are right for tshark.
#[test]
fn edited_frames_are_those_of_tcprewrite() {
    let folder = captures("edit-tcprewrite");
    let [theirs, ours, all] = ["theirs.pcap", "ours.pcap", "all.pcap"].map(|file| folder.path(file));
    let (mut equal, mut checked) = (0, Vec::new());
    for capture in CAPTURES {
        let input = folder.path(&format!("{capture}.pcap"));
        for (name, their_options, options) in EDITS {
            let mut tcprewrite = Command::new("tcprewrite");
            tcprewrite
                .args(["-i", &input, "-o", &theirs])
                .args(their_options.split(' ').filter(|word| !word.is_empty()));
            expect(0, &mut tcprewrite);
            let said = text(&expect(0, &mut edit(&input, &ours, options)).stderr);
            let (theirs, ours) = (records(&theirs), records(&ours));
            if capture != "wrong" {
                checked.extend(ours.iter().filter(|record| record.2 as usize == record.3.len()).cloned());
            }
            let comparable =
                |records: &[Record]| -> Vec<Record> { records.iter().cloned().map(without_addresses).collect() };
            let is_equal = comparable(&theirs) == comparable(&ours);
            equal += usize::from(is_equal);
            let first = theirs.iter().zip(&ours).find(|(theirs, ours)| theirs != ours);
            assert!(is_equal || reason(capture, name).is_some(), "{capture}, {name}: {said}\n{first:x?}");
        }
    }
    assert!(equal >= 250, "{equal} of {} are equal", CAPTURES.len() * EDITS.len());
    // tshark's status 0 is a bad checksum.
    write(&all, &checked);
    let bad =
        ["ip", "tcp", "udp", "icmp", "icmpv6"].map(|protocol| format!("{protocol}.checksum.status==0")).join("||");
    let mut tshark = Command::new("tshark");
    tshark.args(["-r", &all, "-Y", &bad, "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    tshark.args(["ip", "tcp", "udp"].map(|protocol| format!("-o{protocol}.check_checksum:TRUE")));
    let shown = text(&expect(0, &mut tshark).stdout);
    assert_eq!(shown, "", "of {} frames", checked.len());
}

/// Returns what tshark shows of a capture's frames.
fn shown(path: &str, fields: &[&str]) -> String {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r", path, "-T", "fields"]).args(fields.iter().flat_map(|field| ["-e", field]));
    text(&expect(0, &mut tshark).stdout)
}

/// An edit of pcapng keeps all blocks, options, times and interfaces, in both byte orders. Without a change, each byte
/// is the same.
#[test]
fn everything_else_in_the_file_is_kept() {
    let folder = captures("edit-kept");
    let out = folder.path("out.pcapng");
    for name in ["little", "big"] {
        let input = folder.path(&format!("{name}.pcapng"));
        let said = text(&expect(0, &mut edit(&input, &out, "")).stderr);
        assert!(said.contains("1 packets are not Ethernet, and were not edited"), "{said}");
        // The hash of an unchanged packet is kept, too.
        assert!(std::fs::read(&input).unwrap() == std::fs::read(&out).unwrap(), "{name}");
        expect(0, &mut edit(&input, &out, "--map 10.1.2.3=198.18.0.9 --push vlan(id=7)"));
        let kept = ["frame.comment", "frame.interface_name", "frame.time_epoch", "frame.packet_flags"];
        assert_eq!(shown(&input, &kept), shown(&out, &kept), "{name}");
        // Frames have another tag, and addresses; only the blocks of frames differ.
        let lens = |path: &str, growth: u32| -> Vec<String> {
            let grown = |line: &str| {
                let (len, source) = line.split_once('\t').unwrap();
                if source.is_empty() { len.to_string() } else { (len.parse::<u32>().unwrap() + growth).to_string() }
            };
            shown(path, &["frame.len", "eth.src"]).lines().map(grown).collect()
        };
        assert_eq!(lens(&out, 0), lens(&input, 4), "{name}");
        let sources = shown(&input, &["ip.src"]).replace("10.1.2.3", "198.18.0.9");
        assert_eq!(shown(&out, &["ip.src"]), sources, "{name}");
        assert_eq!(other_blocks(&out, name == "big"), other_blocks(&input, name == "big"), "{name}");
    }
}

/// Returns the blocks of a pcapng file that are not packets.
fn other_blocks(path: &str, is_big: bool) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| {
        let bytes = file[at..at + 4].try_into().unwrap();
        if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    let (mut all, mut at) = (Vec::new(), 0);
    while at < file.len() {
        let end = at + word(at + 4) as usize;
        if ![2, 3, 6].contains(&word(at)) {
            all.push(file[at..end].to_vec());
        }
        at = end;
    }
    all
}

/// Reassembles fragments with scapy, and compares them with the packets of the original.
const REASSEMBLE: &str = r#"
import sys
from scapy.all import *

def check(before, after, mtu):
    assert len(after) > len(before), "no fragments"
    assert all(len(packet) <= 14 + 4 + mtu for packet in after), "too long"
    if IPv6 in before[0]:
        groups, whole = {}, []
        for packet in after:
            if IPv6ExtHdrFragment in packet:
                groups.setdefault(packet[IPv6ExtHdrFragment].id, []).append(packet[IPv6])
            else:
                whole.append(bytes(packet[IPv6]))
        whole += [bytes(defragment6(PacketList(group))) for group in groups.values()]
        expected = [bytes(packet[IPv6]) for packet in before]
    else:
        whole = [bytes(packet[IP].payload) for packet in defragment(after)]
        expected = [bytes(packet[IP].payload) for packet in before]
    assert sorted(whole) == sorted(expected), (sorted(whole), sorted(expected))

for words in zip(*[iter(sys.argv[1:])] * 3):
    print(words)
    check(rdpcap(words[0]), rdpcap(words[1]), int(words[2]))
"#;

/// scapy puts the fragments together to the original packets.
#[test]
fn fragments_are_put_together_by_scapy() {
    let folder = captures("edit-fragments");
    let mut checks = Vec::new();
    for capture in ["tcp", "udp", "options", "vlan", "tcp6", "udp6"] {
        for mtu in ["100", "601", "1280"] {
            let [input, out] = [capture, &format!("{capture}-{mtu}")].map(|name| folder.path(&format!("{name}.pcap")));
            let said = text(&expect(0, &mut edit(&input, &out, &format!("--fit fragment --mtu {mtu}"))).stderr);
            assert!(said.contains("frames were fragmented, into "), "{capture}: {said}");
            checks.extend([input, out, mtu.to_string()]);
        }
    }
    let said = text(&expect(0, Command::new("/usr/bin/python3").args(["-c", REASSEMBLE]).args(&checks)).stdout);
    assert_eq!(said.lines().count(), 18, "{said}");
}

#[test]
fn pipes_are_edited() {
    let folder = captures("edit-pipes");
    let [input, out] = ["tcp.pcap", "out.pcap"].map(|file| folder.path(file));
    expect(0, &mut edit(&input, &out, "--port 80=8080"));
    for line in ["\"$1\" edit - - --port 80=8080 <\"$2\"", "cat \"$2\" | \"$1\" edit - - --port 80=8080 | cat"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", line, "sh", env!("CARGO_BIN_EXE_linerate"), &input]);
        assert!(expect(0, &mut shell).stdout == std::fs::read(&out).unwrap(), "{line}");
    }
}

/// A frame check sequence is removed, and no longer announced.
#[test]
fn frame_check_sequences_are_removed() {
    let folder = captures("edit-fcs");
    let [input, fcs, plain, out] = ["tcp.pcap", "fcs.pcap", "plain.pcap", "out.pcap"].map(|file| folder.path(file));
    let mut all = records(&input);
    for record in &mut all {
        record.3.extend([1, 2, 3, 4]);
        record.2 += 4;
    }
    write(&fcs, &all);
    let mut file = std::fs::read(&fcs).unwrap();
    // Four bytes, in units of 16 bits (draft-ietf-opsawg-pcap, section 4).
    file[20..24].copy_from_slice(&(1u32 | 1 << 26 | 2 << 28).to_le_bytes());
    std::fs::write(&fcs, file).unwrap();
    expect(0, &mut edit(&fcs, &out, "--port 80=8080"));
    expect(0, &mut edit(&input, &plain, "--port 80=8080"));
    assert_eq!(records(&out), records(&plain));
    assert_eq!(std::fs::read(&out).unwrap()[20..24], [1, 0, 0, 0]);
}

/// Frames that could not be edited are counted: in the notes, and in JSON.
#[test]
fn what_is_not_edited_is_counted() {
    let folder = captures("edit-counts");
    let [snapped, out] = ["snapped.pcap", "out.pcap"].map(|file| folder.path(file));
    let output = expect(0, &mut edit(&snapped, &out, "--set tcp(urgent=1) --fit truncate --mtu 60 --json"));
    let counts = summary(&output.stdout);
    let edited = &counts["edited"];
    assert_eq!((&edited["frames"], &counts["written"]), (&json!(20), &json!(20)), "{counts}");
    assert!(edited["truncated"].as_u64() > Some(0) && edited["incomplete_headers"] == 6, "{counts}");
    let said = text(&output.stderr);
    assert!(said.contains("6 frames end within their headers, and were edited up to there"), "{said}");
    // A record with 4 bytes more than its frame has.
    let longer = folder.path("longer.pcap");
    let tcp = records(&folder.path("tcp.pcap"));
    write(&longer, &[(1, 2, tcp[0].2, [&tcp[0].3[..], &[0xEE; 4]].concat())]);
    let said = text(&expect(0, &mut edit(&longer, &out, "")).stderr);
    assert!(said.contains("1 frames had more bytes than their length, which were removed"), "{said}");
    assert_eq!(records(&out)[0].3, tcp[0].3);
    // Up to the damage, whose position is reported.
    let damaged = folder.path("damaged.pcap");
    let whole = std::fs::read(&snapped).unwrap();
    std::fs::write(&damaged, &whole[..24 + 84 * 2 + 30]).unwrap();
    let said = text(&expect(1, &mut edit(&damaged, &out, "--port 80=8080")).stderr);
    assert!(said.contains("it is cut after frame 2, in the record at byte 1"), "{said}");
    assert_eq!(records(&out).len(), 2);
}

/// Writes captures of tunnels and of SCTP with scapy: before an edit, and as they have to be after it.
const TUNNELS: &str = r#"
from scapy.all import *
def tunnels(src, dst, port, ttl, mac):
    i = IP(src=src, dst=dst, ttl=ttl, id=7)/TCP(sport=port, dport=9)/b"abcde"
    u = IP(src=src, dst=dst, ttl=ttl, id=8)/SCTP(sport=port, dport=9, tag=7)/SCTPChunkData(data=b"x" * 33)
    i6 = IPv6(src="2001:db8::1", dst="2001:db8::2")/UDP(sport=port, dport=53)/b"six"
    e = Ether(src="02:00:00:00:00:01", dst=mac)
    o = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")/IP(src="10.9.9.9", dst="10.8.8.8", id=1)
    gtp = b"\x30\xff" + len(i).to_bytes(2, "big") + b"\0\0\0\x09" + bytes(i)
    return [
        o/GRE(chksum_present=1)/i, o/GRE(key_present=1, key=5)/u, o/GRE(chksum_present=1, proto=0x6558)/e/i, o/i, o/i6,
        o/UDP(sport=80, dport=4789)/VXLAN(vni=7)/e/i, o/UDP(sport=80, dport=4789, chksum=0)/VXLAN(vni=7)/e/Dot1Q(vlan=9)/u,
        o/UDP(sport=80, dport=2152)/gtp, o/IP(src="10.7.7.7", dst="10.6.6.6", id=2)/GRE(chksum_present=1)/i,
        o/TCP(sport=80, dport=9)/b"no tunnel", o/UDP(sport=80, dport=9)/b"none either",
    ]
def sctp(port):
    e = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    s = SCTP(sport=9, dport=port, tag=7)/SCTPChunkData(data=bytes(range(200)))
    return [e/IP(src="10.0.0.1", dst="10.0.0.2", id=1)/s, e/Dot1Q(vlan=7)/IPv6(src="2001:db8::1", dst="2001:db8::2")/s,
            e/IP(src="10.0.0.1", dst="10.0.0.2", id=1)/SCTP(sport=port, dport=9, tag=7)/SCTPChunkInit(init_tag=1)]
for name, packets in [
    ("tunnels", tunnels("10.0.0.1", "10.0.0.2", 80, 64, "02:00:00:00:00:02")),
    ("tunnels_after", tunnels("198.18.0.1", "198.18.0.2", 8080, 9, "06:00:00:00:00:09")),
    ("sctp", sctp(80)), ("sctp_after", sctp(8080)),
]:
    for n, packet in enumerate(packets):
        packet.time = n
    wrpcap(f"{name}.pcap", packets, linktype=1)
"#;

/// With `--inner`, only the packets inside tunnels are edited, and all checksums around them are right.
#[test]
fn packets_inside_tunnels_are_edited_on_request() {
    let folder = Folder::new("edit-tunnels");
    expect(0, Command::new("/usr/bin/python3").args(["-c", TUNNELS]).current_dir(&folder.0));
    let [input, after, out] = ["tunnels.pcap", "tunnels_after.pcap", "out.pcap"].map(|file| folder.path(file));
    let options = "--map 10.0.0.0/8=198.18.0.0/16 --port 80=8080 --set ip(ttl=9)/eth(dst=06:00:00:00:00:09) --inner";
    let output = expect(0, &mut edit(&input, &out, &format!("{options} --json")));
    assert_eq!(summary(&output.stdout)["edited"]["changed"], 9);
    for (n, (found, right)) in records(&out).iter().zip(records(&after)).enumerate() {
        assert_eq!(*found, right, "packet {n}");
    }
    assert_eq!(records(&out).len(), records(&after).len());
    // Without it, the inner packets stay.
    expect(0, &mut edit(&input, &out, "--map 10.0.0.0/24=198.18.0.0/24 --port 9=53"));
    let changed = records(&out).iter().zip(records(&input)).filter(|(found, before)| **found != *before).count();
    assert_eq!(changed, 2, "the packets without a tunnel");
}

/// The ports of SCTP are mapped, and its CRC is right, also if the capture has cut the packet.
#[test]
fn ports_of_sctp_are_mapped() {
    let folder = Folder::new("edit-sctp");
    expect(0, Command::new("/usr/bin/python3").args(["-c", TUNNELS]).current_dir(&folder.0));
    let [input, after, cut, out] =
        ["sctp.pcap", "sctp_after.pcap", "cut.pcap", "out.pcap"].map(|file| folder.path(file));
    let (before, after) = (records(&input), records(&after));
    for captured in [usize::MAX, 250, 100, 70] {
        let shortened = |records: &[Record]| -> Vec<Record> {
            let of = |(seconds, fraction, len, bytes): &Record| {
                (*seconds, *fraction, *len, bytes[..bytes.len().min(captured)].to_vec())
            };
            records.iter().map(of).collect()
        };
        write(&cut, &shortened(&before));
        let said = text(&expect(0, &mut edit(&cut, &out, "--port 80=8080")).stderr);
        assert!(records(&out) == shortened(&after), "{captured}: {said}");
    }
    // A wrong CRC stays wrong, unless it is to be fixed.
    let mut wrong = before.clone();
    wrong[0].3[34 + 8] ^= 0x55;
    write(&cut, &wrong);
    expect(0, &mut edit(&cut, &out, "--port 80=8080"));
    assert_eq!(records(&out)[0].3[34 + 8] ^ 0x55, after[0].3[34 + 8]);
    expect(0, &mut edit(&cut, &out, "--port 80=8080 --fix-checksums"));
    assert!(records(&out) == after);
}

/// The copy can have the other format, and Ethernet headers: tshark reads the same packets with the same times.
#[test]
fn the_copy_has_another_format_or_ethernet_headers() {
    let folder = captures("edit-formats");
    let fields = ["frame.time_epoch", "frame.len", "frame.cap_len", "ip.src", "tcp.srcport"];
    let [input, out, back] = ["snapped.pcap", "out.pcapng", "back.pcap"].map(|file| folder.path(file));
    expect(0, &mut edit(&input, &out, "--port 80=8080"));
    let said = text(&expect(0, &mut edit(&out, &back, "--port 8080=80")).stderr);
    assert!(said.contains("note: interfaces, comments and options are not written"), "{said}");
    assert_ne!(shown(&out, &fields), shown(&input, &fields));
    assert_eq!(shown(&back, &fields), shown(&input, &fields));
    assert_eq!(shown(&out, &fields[..3]), shown(&input, &fields[..3]));
    // Raw IP.
    let raw = folder.path("raw.pcap");
    let mut file = std::fs::read(folder.path("udp.pcap")).unwrap();
    file[20..24].copy_from_slice(&101u32.to_le_bytes());
    let records = records(&folder.path("udp.pcap"));
    file.truncate(24);
    for (seconds, fraction, len, bytes) in &records {
        let words = [*seconds, *fraction, bytes.len() as u32 - 14, len - 14];
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(&bytes[14..]);
    }
    std::fs::write(&raw, file).unwrap();
    let said = text(&expect(0, &mut edit(&raw, &back, "--set ip(ttl=9)")).stderr);
    assert!(said.contains("packets are not Ethernet, and were not edited"), "{said}");
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&raw).unwrap());
    let counts = summary(&expect(0, &mut edit(&raw, &back, "--set ip(ttl=9) --ethernet --json")).stdout);
    assert_eq!((&counts["written"], &counts["not_ethernet"]), (&json!(records.len()), &json!(0)), "{counts}");
    let lines = shown(&back, &["ip.ttl", "udp.length", "eth.type"]);
    assert!(lines.lines().count() == records.len() && lines.lines().all(|line| line.starts_with("9\t")), "{lines}");
}

#[test]
fn what_cannot_be_edited_is_refused() {
    let folder = captures("edit-refused");
    let [input, pcapng] = ["tcp.pcap", "little.pcapng"].map(|file| folder.path(file));
    let out = folder.path("out.pcap");
    for (code, input, output, options, why) in [
        (1, &*input, &*input, "", "it is being read; choose another file"),
        (1, &pcapng, &out, "", "several link types, ETHERNET (link type 1) and"),
        (1, &input, &folder.path("out.pcap.zst"), "", "an edited capture is not compressed"),
        (1, "missing.pcap", &out, "", "cannot read it: No such file"),
        (1, &input, "/dev/full", "", "cannot write it: No space left"),
        (2, &input, &out, "--map 10.0.0.0/8", "it must be OLD=NEW"),
        (2, &input, &out, "--port 80", "it must be OLD=NEW"),
        (2, &input, &out, "--set quic(x=1)", "'quic' is not a layer"),
        (2, &input, &out, "--push mpls", "mpls cannot be inserted"),
        (2, &input, &out, "--fit pad", "[possible values: truncate, fragment]"),
        (2, &input, "-", "--json", "standard output is the capture"),
    ] {
        let refused = expect(code, &mut edit(input, output, options));
        let said = text(&refused.stderr);
        assert!(said.contains(why), "{options}: {said}");
        assert!(output != "/dev/full" || refused.stdout.is_empty(), "an unwritten file has no counts");
    }
    assert_eq!(records(&input).len(), 6, "it is whole");
}
