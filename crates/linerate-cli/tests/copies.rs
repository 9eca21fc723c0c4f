//! Filtering a capture file into another file: times, lengths, interfaces, comments, options, unknown blocks and order are
//! kept. tshark, editcap and mergecap are the peers.

mod kit;

use std::process::Command;

use kit::{Folder, expect, frames, linerate, summary, text, write_cases};
use serde_json::{Value, json};

/// Runs `fwd` or `filter` from file to file. Returns the summary and the errors.
#[track_caller]
fn copied(code: i32, command: &str, from: &str, to: &str, options: &[&str]) -> (Value, String) {
    let words = [command, &format!("pcap:{from}"), &format!("pcap:{to}?write"), "--json"];
    let output = expect(code, &mut linerate(&[&words, options].concat()));
    (summary(&output.stdout), text(&output.stderr))
}

/// Returns what tshark reads of a capture: numbers left out, as packets can be missing.
#[track_caller]
fn tshark(file: &str, filter: &str) -> String {
    const FIELDS: [&str; 8] = [
        "frame.time_epoch",
        "frame.len",
        "frame.cap_len",
        "frame.interface_id",
        "frame.interface_name",
        "frame.packet_flags",
        "frame.comment",
        "frame.encap_type",
    ];
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", file, "-Y", filter, "-T", "fields"]).args(FIELDS.iter().flat_map(|field| ["-e", field]));
    text(&expect(0, &mut command).stdout)
}

/// Returns the file's properties without its packets, as capinfos reads them: interfaces with all their options.
fn interfaces(file: &str) -> String {
    let all = text(&expect(0, Command::new("capinfos").args(["-I", "-E", file])).stdout);
    let of_packets = ["File name", "Packet size limit"];
    let is_kept =
        |line: &str| !line.contains("Number of packets") && !of_packets.iter().any(|part| line.starts_with(part));
    let lines = all.lines().filter(|line| is_kept(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Without rules, the copy has the same bytes, whatever the link types, times, lengths and blocks are.
#[test]
fn a_copy_has_the_same_bytes() {
    let folder = Folder::new("copies-bytes");
    write_cases(&folder);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder.0).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let is_bad = ["ver25", "ver3", "text", "nothing", "hdr10", "cat", "fcs_class"].iter();
        let is_bad = is_bad.chain(&["ng_noidb", "ng_badif", "ng_trunc", "ng_epb_badlen"]);
        if is_bad.clone().any(|bad| file.starts_with(&format!("{bad}."))) {
            continue;
        }
        let from = folder.path(&file);
        let to = folder.path(&format!("copy.{}", file.rsplit_once('.').unwrap().1));
        let (found, said) = copied(0, "fwd", &from, &to, &[]);
        let [mut before, after] = [&from, &to].map(|file| std::fs::read(file).unwrap());
        if file == "ng_seclen.pcapng" {
            // The length of a section is not kept.
            before[16..24].fill(0xFF);
        }
        assert!(before == after, "{file}: {said}");
        assert!(!said.contains("note: "), "{file}: {said}");
        assert_eq!(found["ports"][0]["rx_packets"], found["packets"], "{file}: {found}");
        assert_eq!(found["ports"][1]["tx_packets"], found["packets"], "{file}: {found}");
        count += 1;
    }
    assert!(count >= 40, "{count} captures");
}

/// Writes the cases, with frame N sent to UDP port 9 + N, so that filters can select it.
fn write_cases_with_ports(folder: &Folder) {
    write_cases(folder);
    for entry in std::fs::read_dir(&folder.0).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len().saturating_sub(3) {
            // The source port is 4000 + N.
            if let [0x0F, from @ 0xA0..0xB4, 0, 9] = bytes[at..at + 4] {
                bytes[at + 3] = 9 + from - 0xA0;
            }
        }
        std::fs::write(path, bytes).unwrap();
    }
}

/// Makes a capture with three interfaces, comments, names, statistics and frames that were cut.
fn rich(folder: &Folder) -> String {
    let [std, snap, ns, merged, rich] =
        ["std.pcap", "snap68.pcap", "be_ns.pcap", "merged.pcapng", "rich.pcapng"].map(|file| folder.path(file));
    let mut merge = Command::new("mergecap");
    expect(0, merge.args(["-F", "pcapng", "-I", "none", "-w", &merged, &std, &snap, &ns]));
    let mut edit = Command::new("editcap");
    edit.args([
        "-F",
        "pcapng",
        "-a",
        "3:of the third packet",
        "-a",
        "17:of another",
        "--capture-comment",
        "of the file",
    ]);
    expect(0, edit.args([&merged, &rich]));
    rich
}

/// A filter leaves out packets, and nothing else: tshark reads the same of the others.
#[test]
fn a_filter_keeps_times_lengths_interfaces_and_comments() {
    let folder = Folder::new("copies-filter");
    write_cases_with_ports(&folder);
    let (rich, out) = (rich(&folder), folder.path("out.pcapng"));
    for (rules, filter) in [
        (&["--only", "udp:11"][..], "udp.dstport == 11"),
        (&["--drop", "udp:11,udp:16"], "udp.dstport != 11 and udp.dstport != 16"),
        (&["--only", "tcp"], "tcp"),
    ] {
        let expected = tshark(&rich, filter);
        for command in ["fwd", "filter"] {
            let (found, said) = copied(0, command, &rich, &out, rules);
            assert_eq!(tshark(&out, ""), expected, "{rules:?}: {said}");
            let kept = expected.lines().count();
            assert_eq!((&found["packets"], &found["filtered"]), (&json!(kept), &json!(60 - kept)), "{found}");
            assert_eq!(interfaces(&out), interfaces(&rich));
        }
    }
    assert!(tshark(&out, "").is_empty(), "the last filter matches nothing");
    for case in ["ng_comment.pcapng", "ng_mixlink.pcapng", "ng_res.pcapng", "ng_off.pcapng", "ng_spb.pcapng"] {
        copied(0, "filter", &folder.path(case), &out, &["--only", "udp"]);
        assert_eq!(tshark(&out, ""), tshark(&folder.path(case), "udp"), "{case}");
    }
    // Blocks that are not packets stay where they are.
    copied(0, "filter", &folder.path("ng_unknown.pcapng"), &out, &["--drop", "udp"]);
    let [before, after] = [folder.path("ng_unknown.pcapng"), out].map(|file| std::fs::read(file).unwrap());
    // Header, interface, and three unknown blocks; the packet's block of 120 bytes; two more blocks.
    let packet = before.len() - 120 - 16 - 24;
    assert!(after == [&before[..packet], &before[packet + 120..]].concat());
}

/// pcap keeps the resolution and order of times, and link types; filters see packets of other link types.
#[test]
fn a_filter_of_pcap_keeps_records() {
    let folder = Folder::new("copies-pcap");
    write_cases_with_ports(&folder);
    let out = folder.path("out.pcap");
    for case in [
        "kuz", "kuz_be", "be_ns", "ver23", "snap68", "gap418", "ooo", "y2106", "epoch0", "sll113", "sll276", "raw101",
        "null0",
    ] {
        let from = folder.path(&format!("{case}.pcap"));
        copied(0, "filter", &from, &out, &["--drop", "udp:10"]);
        let filter = "udp.dstport != 10";
        let kept = tshark(&out, "");
        assert_eq!(kept, tshark(&from, filter), "{case}");
        assert!(!kept.is_empty(), "{case}");
        let [before, after] = [&from, &out].map(|file| std::fs::read(file).unwrap()[..24].to_vec());
        assert!(before == after, "{case}: the header");
    }
}

/// If the formats differ, or an Ethernet header is added, times and lengths are kept, and a note has what is not.
#[test]
fn times_and_lengths_cross_formats() {
    let folder = Folder::new("copies-formats");
    write_cases_with_ports(&folder);
    let rich = rich(&folder);
    let fields = |file: &str, filter: &str| -> String {
        let mut command = Command::new("tshark");
        command.args(["-n", "-r", file, "-Y", filter, "-T", "fields"]);
        command.args(["-e", "frame.time_epoch", "-e", "frame.len", "-e", "frame.cap_len", "-e", "udp.srcport"]);
        text(&expect(0, &mut command).stdout)
    };
    let [pcap, pcapng] = ["out.pcap", "out.pcapng"].map(|file| folder.path(file));
    let said = copied(0, "fwd", &rich, &pcap, &["--drop", "udp:10"]).1;
    assert!(said.contains("note: interfaces, comments and options are not written"), "{said}");
    assert_eq!(fields(&pcap, ""), fields(&rich, "udp.dstport != 10"));
    for case in ["snap68", "be_ns", "sll113", "ooo", "y2106"] {
        let from = folder.path(&format!("{case}.pcap"));
        let said = copied(0, "fwd", &from, &pcapng, &[]).1;
        assert!(!said.contains("note: "), "{said}");
        assert_eq!(fields(&pcapng, ""), fields(&from, ""), "{case}");
    }
    let (found, said) = copied(1, "fwd", &folder.path("ng_mixlink.pcapng"), &pcap, &[]);
    assert!(said.contains("several link types, ETHERNET (link type 1) and LINUX_SLL (link type 113)"), "{said}");
    assert_eq!((&found["packets"], &found["filtered"], frames(&pcap).len()), (&json!(1), &json!(0), 1));
    let from = format!("{}?ethernet=on", folder.path("ng_mixlink.pcapng"));
    copied(0, "fwd", &from, &pcap, &["--count", "3"]);
    assert_eq!(fields(&pcap, "").replace("88\t88", "").lines().count(), 3);
    assert!(!fields(&pcap, "").contains("102"), "{}", fields(&pcap, ""));
    let from = format!("{}?ethernet=on", folder.path("wifi105.pcap"));
    let (found, said) = copied(0, "fwd", &from, &pcap, &[]);
    assert_eq!(found["ports"][0]["capture"]["not_ethernet"], 20, "{found}");
    assert!(said.contains("20 packets were skipped: not Ethernet"), "{said}");
}

/// Packets before damage are copied, and its position is reported. Counts are exact; files that are in use are refused.
#[test]
fn damage_counts_and_files_in_use_are_reported() {
    let folder = Folder::new("copies-ends");
    write_cases_with_ports(&folder);
    let [pcap, pcapng] = ["out.pcap", "out.pcapng"].map(|file| folder.path(file));
    for (case, out, packets, why) in [
        ("cat.pcap", &pcap, 20, "malformed at byte 2104: the header of another capture"),
        ("ng_badif.pcapng", &pcapng, 1, "malformed at byte 168: a packet of interface 5"),
        ("ng_trunc.pcapng", &pcapng, 1, "it is cut after frame 1, in the record at byte 168"),
    ] {
        let from = folder.path(case);
        let (found, said) = copied(1, "fwd", &from, out, &[]);
        assert!(said.contains(&format!("error: {from}: {why}")), "{said}");
        assert_eq!(found["packets"], packets, "{case}: {found}");
        assert_eq!(tshark(out, "").lines().count(), packets, "{case}");
    }
    let std = folder.path("std.pcap");
    let (found, _) = copied(0, "filter", &std, &pcap, &["--drop", "udp:9", "--count", "5"]);
    assert_eq!((&found["packets"], &found["filtered"], frames(&pcap).len()), (&json!(5), &json!(1), 5), "{found}");
    let (found, said) = copied(1, "fwd", &std, &pcap, &["--count", "21", "--strict"]);
    assert_eq!(found["unreached"][0]["moved"], 20, "{found}");
    assert!(said.contains("21 packets requested, 20 moved: bounded by the capture's end"), "{said}");

    let before = std::fs::read(&std).unwrap();
    let refused = |to: &str| {
        let output = expect(1, &mut linerate(&["fwd", &format!("pcap:{std}"), &format!("pcap:{to}?write")]));
        text(&output.stderr)
    };
    assert!(refused(&std).contains("it is being read; choose another file"));
    assert!(refused("/dev/full").contains("No space left on device"));
    assert!(std::fs::read(&std).unwrap() == before);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" fwd \"$1\" \"$2\" >\"$3\"", env!("CARGO_BIN_EXE_linerate")]);
    shell.args([&format!("pcap:{std}"), &format!("pcap:{pcapng}?write"), &pcapng]);
    assert!(text(&expect(2, &mut shell).stderr).contains("the statistics are printed there"));
    let output =
        expect(2, &mut linerate(&["fwd", &format!("pcap:{std}"), &format!("pcap:{pcap}?write"), "--queues", "2"]));
    assert!(text(&output.stderr).contains("queues"), "{}", text(&output.stderr));
    // A file that is no capture leaves the output as it is.
    let output = expect(
        1,
        &mut linerate(&["fwd", &format!("pcap:{}", folder.path("text.pcap")), &format!("pcap:{pcap}?write")]),
    );
    assert!(text(&output.stderr).contains("it is neither pcap nor pcapng"));
    assert_eq!(frames(&pcap).len(), 20);
}

/// With options that need packets in memory, and from other ports, at least times and lengths are kept.
#[test]
fn packets_keep_their_times_in_a_recording() {
    let folder = Folder::new("copies-times");
    write_cases_with_ports(&folder);
    let (std, out) = (folder.path("std.pcap"), folder.path("out.pcap"));
    let times = |file: &str| -> Vec<String> {
        tshark(file, "").lines().map(|line| line.split('\t').next().unwrap().to_string()).collect()
    };
    copied(0, "fwd", &format!("{std}?loop=2"), &out, &["--only", "udp"]);
    assert_eq!(times(&out), [times(&std), times(&std)].concat());
    // Frames that were cut, and one that is padded in memory.
    let lens = |file: &str| -> Vec<String> {
        tshark(file, "").lines().map(|line| line.split('\t').skip(1).take(2).collect()).collect()
    };
    for case in ["snap68.pcap", "ng_comment.pcapng"] {
        let from = folder.path(case);
        copied(0, "fwd", &format!("{from}?loop=2"), &out, &[]);
        assert_eq!(lens(&out), [lens(&from), lens(&from)].concat(), "{case}");
    }
    let words = ["fwd", &format!("faulty:pcap:{std}?corrupt=100%"), &format!("pcap:{out}?write")];
    expect(0, &mut linerate(&words));
    assert_eq!(times(&out), times(&std));
}
