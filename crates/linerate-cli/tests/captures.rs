//! Captures as other programs write them: link types, malformed and ambiguous lengths, and the blocks of pcapng. The
//! files are those of `kit/cases.rs`, tcpdump and scapy.

mod kit;

use std::process::Command;

use kit::{Folder, Namespace, expect, frames, linerate, summary, text, write_cases};
use serde_json::Value;

/// The number of frames of most cases, and their length.
const FRAMES: usize = 20;
const LEN: usize = 88;

/// Replays a file into a file. Returns the frames, the file's part of the summary, and the errors.
#[track_caller]
fn replayed(code: i32, folder: &Folder, file: &str, options: &[&str]) -> (Vec<Vec<u8>>, Value, String) {
    let (file, out) = (folder.path(file), folder.path("out.pcap"));
    let _ = std::fs::remove_file(&out);
    let port = format!("pcap:{out}?write");
    let output = expect(code, &mut linerate(&[&["replay", &file, &port, "--top", "--json"], options].concat()));
    let said = text(&output.stderr);
    let sent = if std::fs::exists(&out).unwrap() { frames(&out) } else { Vec::new() };
    let part = if output.stdout.is_empty() { Value::Null } else { summary(&output.stdout)["replay"].clone() };
    (sent, part, said)
}

/// Returns fields of a capture's packets, as tshark reads them.
fn tshark(file: &str, fields: &[&str]) -> String {
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    text(&expect(0, Command::new("tshark").args(["-n", "-r", file, "-T", "fields"]).args(fields)).stdout)
}

/// Returns a capture's packets without link headers and times, as tcpdump prints them.
fn tcpdump(file: &str) -> String {
    text(&expect(0, Command::new("tcpdump").args(["-n", "-t", "-q", "-v", "-r", file])).stdout)
}

/// IP, BSD loopback and Linux cooked packets get Ethernet headers on request. Without it, the error has the name of the
/// link type and the remedy, from every command, port and wire.
#[test]
fn packets_of_other_link_types_get_an_ethernet_header_on_request() {
    let folder = Folder::new("captures-link");
    write_cases(&folder);
    let expected = frames(folder.path("std.pcap"));
    for (case, name, source) in [
        ("raw101.pcap", "RAW (link type 101)", "02:00:c6:12:00:01"),
        ("raw12.pcap", "RAW (link type 12)", "02:00:c6:12:00:01"),
        ("raw14.pcap", "RAW (link type 14)", "02:00:c6:12:00:01"),
        ("ipv4_228.pcap", "IPV4 (link type 228)", "02:00:c6:12:00:01"),
        ("null0.pcap", "NULL (link type 0)", "02:00:c6:12:00:01"),
        ("sll113.pcap", "LINUX_SLL (link type 113)", "02:00:00:00:00:01"),
        ("sll276.pcap", "LINUX_SLL2 (link type 276)", "02:00:00:00:00:01"),
    ] {
        let file = folder.path(case);
        for words in [
            &["replay", &file, "null:"][..],
            &["replay", &file, "null:", "--memory", "0"],
            &["sink", &format!("pcap:{file}")],
            &["fwd", &format!("sim:0?wire=pcap:{file}"), "null:"],
            &["gen", "null:", "--template", &file],
        ] {
            let code = if words[0] == "gen" { 2 } else { 1 };
            let said = text(&expect(code, &mut linerate(words)).stderr);
            assert!(said.contains(&format!("its packets are not Ethernet: {name}")), "{words:?}: {said}");
        }
        let said = replayed(1, &folder, case, &[]).2;
        assert!(said.contains("try: replay --ethernet, or pcap:FILE?ethernet=on"), "{said}");

        let (sent, part, said) = replayed(0, &folder, case, &["--ethernet"]);
        assert_eq!(sent.len(), FRAMES, "{case}: {said}");
        assert!(sent.iter().zip(&expected).all(|(sent, frame)| sent[12..] == frame[12..]), "{case}: {said}");
        assert_eq!(part["files"][0]["not_ethernet"], 0, "{case}: {part}");
        let addresses = tshark(&folder.path("out.pcap"), &["eth.src", "eth.dst"]);
        let line = format!("{source}\t02:00:c6:13:00:01");
        assert!(addresses.lines().count() == FRAMES && addresses.lines().all(|found| found == line), "{addresses}");

        // The other ways to read it deliver the same frames.
        let out = folder.path("out.pcap");
        let into = format!("recorded:null:?to={out}");
        for port in [format!("pcap:{file}?ethernet=on"), format!("sim:0?wire=pcap:{file}?ethernet=on")] {
            expect(0, &mut linerate(&["fwd", &port, &into, "--count", "20", "--seconds", "20"]));
            assert!(frames(&out) == sent, "{port}");
        }
    }
}

/// Of several link types in a pcapng file, Ethernet's packets are delivered, and the others counted. If there is none of
/// Ethernet, it is an error, as in pcap.
#[test]
fn pcapng_with_several_link_types_delivers_what_ethernet_carries() {
    let folder = Folder::new("captures-mixed");
    write_cases(&folder);
    let file = folder.path("ng_mixlink.pcapng");
    let (sent, part, said) = replayed(0, &folder, "ng_mixlink.pcapng", &[]);
    assert_eq!((sent.len(), &part["files"][0]["not_ethernet"]), (2, &2.into()), "{part}");
    assert!(said.contains(&format!("note: {file}: 2 packets were skipped: not Ethernet")), "{said}");
    let (sent, part, said) = replayed(0, &folder, "ng_mixlink.pcapng", &["--ethernet"]);
    assert_eq!((sent.len(), &part["files"][0]["not_ethernet"]), (4, &0.into()), "{part}");
    assert!(!said.contains("skipped"), "{said}");
    let ports = tshark(&folder.path("out.pcap"), &["udp.srcport", "frame.len"]);
    assert_eq!(ports, "4000\t88\n4001\t88\n4002\t88\n4003\t88\n");

    for memory in ["1G", "0"] {
        let (sent, _, said) = replayed(1, &folder, "ng_rawonly.pcapng", &["--memory", memory]);
        assert!(sent.is_empty() && said.contains("not Ethernet: RAW (link type 101)"), "{said}");
        assert!(said.contains("try: replay --ethernet"), "{said}");
        assert_eq!(replayed(0, &folder, "ng_rawonly.pcapng", &["--ethernet", "--memory", memory]).0.len(), 2);
    }
    let file = format!("pcap:{}", folder.path("ng_rawonly.pcapng"));
    for port in [&*file, &format!("sim:0?wire={file}")] {
        let said = text(&expect(1, &mut linerate(&["sink", port, "--seconds", "2"])).stderr);
        assert!(said.contains("not Ethernet: RAW (link type 101)") && said.contains("ethernet=on"), "{said}");
    }
    // Through a pipe.
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat \"$1\" | exec \"$0\" sink pcap:/dev/stdin", env!("CARGO_BIN_EXE_linerate")]);
    let said = text(&expect(1, shell.arg(folder.path("ng_rawonly.pcapng"))).stderr);
    assert!(said.contains("not Ethernet: RAW (link type 101)"), "{said}");
}

/// Packets that tcpdump captured on all interfaces are sent, and it prints the same packets of the recording.
#[test]
fn a_capture_of_tcpdump_on_all_interfaces_is_sent() {
    let (folder, host) = (Folder::new("captures-any"), Namespace::new("ca"));
    host.run("ip link set lo up");
    for version in ["LINUX_SLL", "LINUX_SLL2"] {
        let file = folder.path(&format!("{version}.pcap"));
        let mut tcpdump_any = host.start(&format!("tcpdump -n -U -i any -y {version} -c 8 -w {file} icmp or icmp6"));
        tcpdump_any.await_error("listening on any");
        host.ping(2, "127.0.0.1");
        host.ping(2, "::1");
        tcpdump_any.await_error("8 packets captured");
        let (sent, ..) = replayed(0, &folder, &format!("{version}.pcap"), &["--ethernet"]);
        assert_eq!(sent.len(), 8);
        // Without interface and direction.
        let packets = |text: String| -> Vec<String> {
            let begin = |line: &str| line.find("IP (").or(line.find("IP6 (")).unwrap_or(0);
            text.lines().map(|line| line[begin(line)..].to_string()).collect()
        };
        let [before, after] = [&file, &folder.path("out.pcap")].map(|file| packets(tcpdump(file)));
        assert!(before.len() >= 8 && before == after, "{before:#?}\n{after:#?}");
    }
}

/// Writes frames of PPP, 802.11 and others with scapy: for each link type a file of the packets that Ethernet carries,
/// then a file of the others.
const SCAPY: &str = r#"
from scapy.all import *
conf.verb = 0
ip = [IP(src="192.0.2.1", dst="198.51.100.7")/UDP(sport=1000 + n, dport=53)/Raw(bytes(40)) for n in range(3)]
ip6 = [IPv6(src="2001:db8::1", dst="ff02::fb")/UDP(sport=2000 + n, dport=53)/Raw(bytes(40)) for n in range(3)]
both = ip + ip6
snap = lambda p: LLC(dsap=0xaa, ssap=0xaa, ctrl=3)/SNAP(code=0x0800 if IP in p else 0x86dd)/p
mac = dict(addr1="02:11:00:00:00:01", addr2="02:11:00:00:00:02", addr3="02:11:00:00:00:03")
data = lambda p, **more: Dot11(type=2, subtype=0, **{**mac, **more})/snap(p)
qos = lambda p: Dot11(type=2, subtype=8, FCfield="from-DS", **mac)/Dot11QoS()/snap(p)
wds = lambda p: Dot11(type=2, subtype=0, FCfield="to-DS+from-DS", addr4="02:11:00:00:00:04", **mac)/snap(p)
beacon = Dot11(type=0, subtype=8, **mac)/Dot11Beacon()
cipher = Dot11(type=2, subtype=0, FCfield="protected", **mac)/Raw(bytes(60))
ppp = lambda p: b"\x00\x21" + bytes(p) if IP in p else b"\x00\x57" + bytes(p)
lcp = b"\xc0\x21" + bytes(20)
loop = lambda p: (2 if IP in p else 24).to_bytes(4, "big") + bytes(p)
radio = lambda p: bytes(RadioTap(present="TSFT+Flags", mac_timestamp=7, Flags="FCS")) + bytes(p) + b"\xde\xad\xbe\xef"
hdlc = lambda p: b"\x0f\x00" + (b"\x08\x00" if IP in p else b"\x86\xdd") + bytes(p)
prism = lambda p: struct.pack("<II", 0x44, 144) + bytes(136) + bytes(p)
avs = lambda p: struct.pack(">II", 0x80211001, 64) + bytes(56) + bytes(p)
# With a frame check sequence.
ppi = lambda p: struct.pack("<BBHIHHQHHHHBBbb", 0, 0, 32, 105, 2, 20, 7, 1, 0, 0, 0, 0, 0, 0, 0) + bytes(p) + bytes(4)
several = Dot11(type=2, subtype=8, FCfield="from-DS", **mac)/Dot11QoS(A_MSDU_Present=1)/Raw(bytes(60))
bridge = Dot11(type=2, subtype=0, FCfield="to-DS", **mac)/LLC(dsap=0x42, ssap=0x42, ctrl=3)/STP()
wrpcap("llc.pcap", [Raw(bytes(bridge))], linktype=105)
for link, good, bad in [
    (9, [b"\xff\x03" + ppp(p) for p in ip] + [ppp(p)[1:] for p in ip6], [lcp, b""]),
    (50, [b"\xff\x03" + ppp(p) for p in both], [b"\xff\x03" + lcp]),
    (51, [bytes(PPPoE(sessionid=7)/PPP()/p) for p in ip], [b"\x11"]),
    (105, [data(p, FCfield="to-DS") for p in ip] + [qos(ip6[0]), wds(ip6[1]), data(ip6[2])],
     [beacon, cipher, b"\x08", several]),
    (104, [hdlc(p) for p in both], [b"\x8f\x00\x80\x35" + bytes(18), b"\x0f"]),
    (119, [prism(data(p)) for p in ip] + [avs(data(p)) for p in ip6], [prism(beacon), b"\x44"]),
    (163, [avs(data(p)) for p in both], [avs(beacon), b"\x80\x21\x10\x01"]),
    (192, [ppi(data(p)) for p in both], [ppi(beacon), b"\x00\x00"]),
    (108, [loop(p) for p in both], [b"\x00\x00\x00\x07" + bytes(30), b"\x00"]),
    (127, [radio(data(p)) for p in both], [radio(beacon), b"\x00\x00\x00"]),
    (229, ip6, ip),
]:
    wrpcap(f"good{link}.pcap", [Raw(bytes(p)) for p in good], linktype=link)
    wrpcap(f"bad{link}.pcap", [Raw(bytes(p)) for p in bad], linktype=link)
"#;

/// PPP, 802.11, radiotap and BSD's LOOP, as scapy writes them: data packets are sent, others counted.
#[test]
fn data_packets_of_ppp_and_wireless_are_sent() {
    let folder = Folder::new("captures-scapy");
    expect(0, Command::new("/usr/bin/python3").args(["-c", SCAPY]).current_dir(&folder.0));
    let fields = ["eth.dst", "eth.src", "ip.dst", "ipv6.dst", "udp.srcport", "udp.length"];
    let packets = |macs: [&str; 6]| -> String {
        let lines = (0..6).map(|n| match n {
            0..3 => format!("{}\t198.51.100.7\t\t{}\t48\n", macs[n], 1000 + n),
            _ => format!("{}\t\tff02::fb\t{}\t48\n", macs[n], 2000 + n - 3),
        });
        lines.collect()
    };
    let [made, made6] = ["02:00:c6:33:64:07\t02:00:c0:00:02:01", "33:33:00:00:00:fb\t02:00:00:00:00:01"];
    let [one, two, three] = ["02:11:00:00:00:01", "02:11:00:00:00:02", "02:11:00:00:00:03"];
    let [to, from, wds, direct] = [(three, two), (one, three), (three, "02:11:00:00:00:04"), (one, two)]
        .map(|(dst, src)| format!("{dst}\t{src}"));
    let all_made = packets([made, made, made, made6, made6, made6]);
    for (link, name, skipped, expected) in [
        (9, "PPP", 2, all_made.clone()),
        (50, "PPP_HDLC", 1, all_made.clone()),
        (
            51,
            "PPP_ETHER",
            1,
            all_made.replace(made, "02:00:00:00:00:02\t02:00:00:00:00:01")[..]
                .lines()
                .take(3)
                .map(|line| line.to_string() + "\n")
                .collect(),
        ),
        (104, "C_HDLC", 2, all_made.clone()),
        // One of them has several packets in a frame (A-MSDU).
        (105, "IEEE802_11", 4, packets([&to, &to, &to, &from, &wds, &direct])),
        (108, "LOOP", 2, all_made.clone()),
        (119, "IEEE802_11_PRISM", 2, packets([&direct; 6])),
        (127, "IEEE802_11_RADIOTAP", 2, packets([&direct; 6])),
        (163, "IEEE802_11_AVS", 2, packets([&direct; 6])),
        (192, "PPI", 2, packets([&direct; 6])),
        (229, "IPV6", 3, all_made.lines().skip(3).map(|line| line.to_string() + "\n").collect()),
    ] {
        let count = expected.lines().count();
        let (sent, _, said) = replayed(0, &folder, &format!("good{link}.pcap"), &["--ethernet", "--strict"]);
        let found = tshark(&folder.path("out.pcap"), &fields);
        assert_eq!((sent.len(), &found), (count, &expected), "{name}: {said}");
        let (sent, _, said) = replayed(1, &folder, &format!("bad{link}.pcap"), &["--ethernet"]);
        assert!(sent.is_empty(), "{name}: {said}");
        assert!(said.contains(&format!("its packets cannot be sent as Ethernet: {name} (link type {link})")), "{said}");
        // Both together, in one pcapng file.
        let files = ["good", "bad", "both"].map(|file| folder.path(&format!("{file}{link}.pcap")));
        expect(0, Command::new("mergecap").args(["-a", "-F", "pcapng", "-w", &files[2], &files[0], &files[1]]));
        let (sent, part, said) = replayed(0, &folder, &format!("both{link}.pcap"), &["--ethernet"]);
        assert_eq!((sent.len(), &part["files"][0]["not_ethernet"]), (count, &skipped.into()), "{name}: {said}");
    }
    // A header of IEEE 802.2 without an EtherType follows a length.
    let (sent, _, said) = replayed(0, &folder, "llc.pcap", &["--ethernet"]);
    assert_eq!(sent.len(), 1, "{said}");
    let bridge = tshark(&folder.path("out.pcap"), &["eth.dst", "eth.len", "llc.dsap", "stp.protocol"]);
    assert_eq!(bridge, format!("{three}\t38\t0x42\t0x0000\n"));
    // 802.11 without data frames.
    let folder = Folder::new("captures-wireless");
    write_cases(&folder);
    for (case, name) in [("wifi105.pcap", "IEEE802_11"), ("wifi127.pcap", "IEEE802_11_RADIOTAP")] {
        assert!(
            replayed(1, &folder, case, &[]).2.contains(&format!("its packets are not Ethernet: {name} (link type "))
        );
        let said = replayed(1, &folder, case, &["--ethernet"]).2;
        assert!(said.contains(&format!("its packets cannot be sent as Ethernet: {name} (link type ")), "{said}");
    }
}

/// Versions, byte orders, announced frame check sequences, and snap lengths that others write.
#[test]
fn variants_of_the_formats_are_read() {
    let folder = Folder::new("captures-variants");
    write_cases(&folder);
    let expected = frames(folder.path("std.pcap"));
    for case in
        ["std", "kuz", "kuz_be", "be_ns", "ver23", "fcs4", "snap0", "snapmax", "snaplie", "ng_epbflagsfcs.pcapng"]
    {
        let file = if case.contains('.') { case.to_string() } else { format!("{case}.pcap") };
        let (sent, part, said) = replayed(0, &folder, &file, &["--strict"]);
        assert!(sent == expected, "{case}: {said}");
        assert!(!said.contains(&format!("note: {}", folder.path(&file))), "{case}: {said}");
        let length = if file.ends_with("ng") { 0.019 } else { 1.9 };
        assert_eq!(part["files"][0]["seconds"], length, "{case}: {part}");
    }
    let (sent, part, said) = replayed(0, &folder, "snap68.pcap", &[]);
    assert!(sent.iter().zip(&expected).all(|(sent, frame)| sent[..] == frame[..68]), "{said}");
    assert_eq!((sent.len(), &part["snapped"]), (FRAMES, &FRAMES.into()), "{part}");
    for (case, seconds, earlier) in [("gap418", 1.0, 0), ("ooo", 0.4, 1), ("usec2M", 2.0, 0), ("y2106", 0.5, 0)] {
        let (_, part, said) = replayed(0, &folder, &format!("{case}.pcap"), &[]);
        assert_eq!((&part["files"][0]["seconds"], &part["files"][0]["earlier"]), (&seconds.into(), &earlier.into()));
        assert_eq!(said.contains("an earlier time than the frame before"), earlier > 0, "{case}: {said}");
    }
    for (case, count, seconds) in [
        ("ng_res", 4, 0.6),
        ("ng_off", 2, 0.2),
        ("ng_opb", 2, 0.1),
        ("ng_unknown", 1, 0.0),
        ("ng_ver12", 1, 0.0),
        ("ng_seclen", 1, 0.0),
        ("ng_noend", 1, 0.0),
    ] {
        let (sent, part, said) = replayed(0, &folder, &format!("{case}.pcapng"), &[]);
        assert_eq!((sent.len(), &part["files"][0]["seconds"]), (count, &seconds.into()), "{case}: {said}");
        assert!(sent.iter().zip(&expected).all(|(sent, frame)| sent == frame), "{case}: {said}");
    }
    let (sent, part, _) = replayed(0, &folder, "ng_spb.pcapng", &[]);
    assert_eq!((sent.len(), &part["snapped"]), (2, &2.into()), "{part}");
    assert!(sent.iter().zip(&expected).all(|(sent, frame)| sent[..] == frame[..64]));
    assert_eq!(replayed(0, &folder, "vlans.pcap", &[]).0, frames(folder.path("vlans.pcap")));
}

/// A contradiction is an error with its position, or is counted: no byte is added or left out without a note.
#[test]
fn malformed_captures_are_errors_or_counted() {
    let folder = Folder::new("captures-malformed");
    write_cases(&folder);
    for (case, sent, why) in [
        ("ver25.pcap", 0, "pcap version 2.5 is unknown; 2.4 is the latest"),
        ("ver3.pcap", 0, "pcap version 3.0 is unknown"),
        ("fcs_class.pcap", 0, "reserved bits 0x02240000 of the link type are set: 0x02240001"),
        ("text.pcap", 0, "it is neither pcap nor pcapng"),
        ("nothing.pcap", 0, "it is too short for a capture file"),
        ("hdr10.pcap", 0, "it is too short for a capture file"),
        ("empty.pcap", 0, "no frame to send"),
        ("cat.pcap", FRAMES, "malformed at byte 2104: the header of another capture follows"),
        ("ng_noidb.pcapng", 0, "malformed at byte 28: a packet of interface 0, which is not described"),
        ("ng_badif.pcapng", 1, "malformed at byte 168: a packet of interface 5, which is not described"),
        ("ng_trunc.pcapng", 1, "it is cut after frame 1, in the record at byte 168"),
        ("ng_epb_badlen.pcapng", 0, "malformed at byte 48: a packet of 5000 bytes, longer than its block"),
    ] {
        for memory in ["1G", "0"] {
            let (frames, _, said) = replayed(1, &folder, case, &["--memory", memory]);
            assert!(frames.len() == sent && said.contains(why), "{case}: {} sent: {said}", frames.len());
        }
    }
    let file = folder.path("calongerthanlen.pcap");
    let (sent, part, said) = replayed(0, &folder, "calongerthanlen.pcap", &[]);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [142, 785, 142]);
    assert!(!sent[1].ends_with(&[0xEE]), "bytes beyond the frame");
    assert_eq!(part["files"][0]["surplus"], 1, "{part}");
    assert!(said.contains(&format!("note: {file}: 1 frames have more bytes in the file than their length")), "{said}");
    let output = expect(0, &mut linerate(&["sink", &format!("pcap:{file}"), "--json"]));
    assert_eq!(summary(&output.stdout)["ports"][0]["capture"]["surplus"], 1);

    let (sent, part, said) = replayed(0, &folder, "zero.pcap", &[]);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [LEN, 60], "a frame of 14 bytes is padded");
    assert_eq!(part["files"][0]["too_short"], 3, "{part}");
    assert!(said.contains("3 packets were skipped: shorter than an Ethernet header"), "{said}");

    let output = linerate(&["replay", &folder.path("big92442.pcap"), "sim:0?wire=sink", "--top", "--json"]);
    let output = expect(0, &mut { output });
    let part = &summary(&output.stdout)["replay"];
    assert_eq!((&part["given"], &part["too_long"]), (&2.into(), &1.into()), "{part}");
}
