//! Every capture of `kit/cases.rs` through each command that reads captures, with the right result.

mod kit;

use kit::cases::{FRAMES, LEN, all};
use kit::{Folder, expect, frames, linerate, summary, text, write_cases};
use serde_json::Value;

/// The right result of a capture.
struct Right {
    file: &'static str,
    /// The captured bytes of the frames that are sent, and the frames' lengths.
    sent: &'static [usize],
    lens: &'static [usize],
    /// Microseconds from the first frame to each frame.
    times: &'static [u64],
    /// The name of the link type, if it is not Ethernet: packets get headers only on request.
    link: &'static str,
    /// The packets of the file, and those among them that `udp` selects.
    packets: [usize; 2],
    /// A part of the error.
    error: &'static str,
    /// A part of the note of `replay`.
    note: &'static str,
}

const ALL: [usize; FRAMES] = [LEN; FRAMES];
const TENTHS: [u64; FRAMES] = {
    let mut times = [0; FRAMES];
    let mut n = 0;
    while n < FRAMES {
        times[n] = n as u64 * 100_000;
        n += 1;
    }
    times
};
const MILLIS: [u64; FRAMES] = {
    let mut times = TENTHS;
    let mut n = 0;
    while n < FRAMES {
        times[n] /= 100;
        n += 1;
    }
    times
};

/// 20 frames of 88 bytes, 0.1 s apart.
const STD: Right = Right {
    file: "std.pcap",
    sent: &ALL,
    lens: &ALL,
    times: &TENTHS,
    link: "",
    packets: [FRAMES, FRAMES],
    error: "",
    note: "",
};

/// The longest unit of time in ng_res.pcapng, in nanoseconds; times are rounded down to it. Others have at most 1 µs.
const LONGEST_UNIT: u64 = 1_000_000_000 / 1024;

/// The same with another name.
const fn std(file: &'static str) -> Right {
    Right { file, ..STD }
}

const fn of_link(file: &'static str, link: &'static str) -> Right {
    Right { file, link, ..STD }
}

/// Frames of 88 bytes at these times.
const fn at(file: &'static str, times: &'static [u64], error: &'static str) -> Right {
    let lens: &'static [usize] = match times.len() {
        0 => &[],
        1 => &[LEN],
        2 => &[LEN; 2],
        3 => &[LEN; 3],
        _ => &[LEN; 4],
    };
    Right { file, sent: lens, lens, times, packets: [times.len(); 2], error, ..STD }
}

/// A file without a packet before its error.
const fn none(file: &'static str, error: &'static str) -> Right {
    at(file, &[], error)
}

const SNAPPED: [usize; FRAMES] = [68; FRAMES];
const TOO_SHORT: &str = "it is too short for a capture file";

const RIGHT: [Right; 54] = [
    std("std.pcap"),
    std("kuz.pcap"),
    std("kuz_be.pcap"),
    std("be_ns.pcap"),
    std("ver23.pcap"),
    none("ver25.pcap", "pcap version 2.5 is unknown; 2.4 is the latest"),
    none("ver3.pcap", "pcap version 3.0 is unknown"),
    none("text.pcap", "it is neither pcap nor pcapng"),
    none("nothing.pcap", TOO_SHORT),
    none("hdr10.pcap", TOO_SHORT),
    none("empty.pcap", ""),
    std("fcs4.pcap"),
    Right { times: &MILLIS, ..std("ng_epbflagsfcs.pcapng") },
    none("fcs_class.pcap", "reserved bits 0x02240000 of the link type are set: 0x02240001"),
    Right {
        sent: &[142, 785, 142],
        lens: &[142, 785, 142],
        note: "1 frames have more bytes in the file than their length says; these bytes were left out",
        ..at("calongerthanlen.pcap", &[0, 1000, 2000], "")
    },
    Right { sent: &[88, 92_442, 88], lens: &[88, 92_442, 88], ..at("big92442.pcap", &[0, 1000, 2000], "") },
    at("gap418.pcap", &[0, 700_000, 800_000, 1_000_000], ""),
    Right {
        note: "1 frames have an earlier time than the frame before, and are sent right after it",
        ..at("ooo.pcap", &[0, 300_000, 100_000, 400_000], "")
    },
    at("usec2M.pcap", &[0, 1_500_000, 2_000_000], ""),
    at("y2106.pcap", &[0, 500_000], ""),
    at("epoch0.pcap", &[0, 1_700_000_000_000_000, 1_700_000_000_100_000], ""),
    of_link("raw101.pcap", "RAW (link type 101)"),
    of_link("raw12.pcap", "RAW (link type 12)"),
    of_link("raw14.pcap", "RAW (link type 14)"),
    of_link("ipv4_228.pcap", "IPV4 (link type 228)"),
    of_link("null0.pcap", "NULL (link type 0)"),
    of_link("sll113.pcap", "LINUX_SLL (link type 113)"),
    of_link("sll276.pcap", "LINUX_SLL2 (link type 276)"),
    Right { packets: [FRAMES, 0], ..WIRELESS },
    Right { file: "wifi127.pcap", link: "IEEE802_11_RADIOTAP (link type 127)", ..WIRELESS },
    std("snap0.pcap"),
    std("snapmax.pcap"),
    Right {
        sent: &SNAPPED,
        note: "20 frames were cut by the capture's snap length, and sent incomplete",
        ..std("snap68.pcap")
    },
    std("snaplie.pcap"),
    Right {
        sent: &[88, 14],
        lens: &[88, 14],
        packets: [5, 1],
        note: "3 packets were skipped: shorter than an Ethernet header",
        ..at("zero.pcap", &[0, 3000], "")
    },
    std_cut("cat.pcap", "malformed at byte 2104: the header of another capture follows: two files were joined"),
    Right {
        sent: &[92, 96, 96, 92, 96, 92],
        lens: &[92, 96, 96, 92, 96, 92],
        times: &[0, 20_000, 40_000, 60_000, 80_000, 100_000],
        packets: [6, 6],
        ..std("vlans.pcap")
    },
    Right {
        sent: &[88, 1042, 1514, 1514, 1342, 88],
        lens: &[88, 1042, 1514, 1514, 1342, 88],
        times: &[0, 1000, 2000, 3000, 4000, 5000],
        packets: [6, 6],
        ..std("mtu.pcap")
    },
    // A later fragment has its packet's protocol.
    Right {
        sent: &[82, 90, 106, 90, 86, 90, 106, 154, 54],
        lens: &[82, 90, 106, 90, 86, 90, 106, 154, 54],
        times: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        packets: [9, 8],
        ..std("ip6ext.pcap")
    },
    at("ng_res.pcapng", &[0, 200_000, 400_000, 600_000], ""),
    at("ng_off.pcapng", &[0, 200_000], ""),
    Right {
        sent: &[64, 64],
        lens: &[88, 88],
        note: "2 frames were cut by the capture's snap length, and sent incomplete",
        ..at("ng_spb.pcapng", &[0, 0], "")
    },
    at("ng_opb.pcapng", &[0, 100_000], ""),
    at("ng_unknown.pcapng", &[0], ""),
    at("ng_ver12.pcapng", &[0], ""),
    at("ng_seclen.pcapng", &[0], ""),
    at("ng_noend.pcapng", &[0], ""),
    none("ng_noidb.pcapng", "malformed at byte 28: a packet of interface 0, which is not described"),
    at("ng_badif.pcapng", &[0], "malformed at byte 168: a packet of interface 5, which is not described"),
    at("ng_trunc.pcapng", &[0], "it is cut after frame 1, in the record at byte 168"),
    none("ng_epb_badlen.pcapng", "malformed at byte 48: a packet of 5000 bytes, longer than its block"),
    Right { link: "mixed", packets: [4, 4], ..at("ng_mixlink.pcapng", &[0, 1000, 2000, 3000], "") },
    Right { link: "RAW (link type 101)", ..at("ng_rawonly.pcapng", &[0, 1], "") },
    Right {
        sent: &[60, 42],
        lens: &[88, 42],
        packets: [2, 1],
        note: "1 frames were cut by the capture's snap length, and sent incomplete",
        ..at("ng_comment.pcapng", &[0, 5], "")
    },
];

const WIRELESS: Right = Right {
    file: "wifi105.pcap",
    sent: &[],
    lens: &[],
    times: &[],
    link: "IEEE802_11 (link type 105)",
    packets: [FRAMES, 0],
    error: "its packets cannot be sent as Ethernet",
    note: "",
};

const fn std_cut(file: &'static str, error: &'static str) -> Right {
    Right { file, error, ..STD }
}

/// Runs a command that must exit with `code`; returns its summary and its errors.
#[track_caller]
fn run(code: i32, words: &[&str]) -> (Value, String) {
    let output = expect(code, &mut linerate(&[words, &["--json"]].concat()));
    let found = if output.stdout.is_empty() { Value::Null } else { summary(&output.stdout) };
    (found, text(&output.stderr))
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}

impl Right {
    fn code(&self) -> i32 {
        i32::from(!self.error.is_empty())
    }

    /// The option that adds headers, if there is something to add.
    fn option(&self) -> &'static str {
        if self.link.is_empty() { "" } else { "?ethernet=on" }
    }

    /// Returns a file's format, as the end of a name.
    fn ending(&self) -> &'static str {
        self.file.rsplit_once('.').unwrap().1
    }

    /// `replay` sends the frames, or reports why not. Returns the frames.
    fn replayed(&self, folder: &Folder, file: &str, options: &[&str]) -> Vec<Vec<u8>> {
        let out = folder.path("replayed.pcap");
        let port = format!("pcap:{out}?write");
        let words = ["replay", file, &port, "--top"];
        if !self.link.is_empty() && self.link != "mixed" {
            let said = run(1, &words).1;
            assert!(said.contains(&format!("its packets are not Ethernet: {}", self.link)), "{}: {said}", self.file);
            assert!(said.contains("try: replay --ethernet, or pcap:FILE?ethernet=on"), "{}: {said}", self.file);
        }
        let header: &[&str] = if self.link.is_empty() { &[] } else { &["--ethernet"] };
        let is_empty = self.file == "empty.pcap";
        let code = if is_empty { 1 } else { self.code() };
        let (_, said) = run(code, &[&words, header, options].concat());
        let error = if is_empty { "no frame to send" } else { self.error };
        assert!(said.contains(error) && said.contains(self.note), "{}: {said}", self.file);
        assert!(!self.note.is_empty() || !said.contains(&format!("note: {file}")), "{}: {said}", self.file);
        if self.sent.is_empty() { Vec::new() } else { frames(&out) }
    }

    /// All commands have the right result.
    fn check(&self, folder: &Folder) {
        let file = folder.path(self.file);
        let sent = self.replayed(folder, &file, &[]);
        let lens: Vec<usize> = sent.iter().map(Vec::len).collect();
        let expected: Vec<usize> = self.sent.iter().map(|len| *len.max(&60)).collect();
        assert_eq!(lens, expected, "{}", self.file);
        self.captured(folder, &file, &sent);
        self.copied(folder, &file);
        self.edited(folder, &file);
    }

    /// `capture` keeps the frames' bytes, times and lengths.
    fn captured(&self, folder: &Folder, file: &str, sent: &[Vec<u8>]) {
        let out = folder.path("captured.pcapng");
        let _ = std::fs::remove_file(&out);
        let (_, said) = run(self.code(), &["capture", &format!("pcap:{file}{}", self.option()), "--write", &out]);
        assert!(said.contains(self.error), "{}: {said}", self.file);
        let Ok(mut reader) = linerate::capture::Reader::open(out.as_ref()) else {
            return assert!(self.sent.is_empty(), "{}: {said}", self.file);
        };
        let (mut times, mut lens, mut captured, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        while let Some(record) = reader.next(&mut bytes).unwrap() {
            times.push(record.nanoseconds.unwrap());
            lens.push(record.original_len);
            captured.push(padded(bytes.clone()));
        }
        assert!(captured == sent, "{}", self.file);
        assert_eq!(lens, self.lens, "{}", self.file);
        // A simple packet has no time: it gets that at which it was received.
        if self.file != "ng_spb.pcapng" {
            let first = times.first().copied().unwrap_or(0);
            let unit = if self.file == "ng_res.pcapng" { LONGEST_UNIT } else { 1000 };
            let is_near = |(time, micros): (&u64, &u64)| (time - first).abs_diff(micros * 1000) < unit;
            assert!(times.iter().zip(self.times).all(is_near), "{}: {times:?}", self.file);
        }
    }

    /// `fwd` copies each byte up to the error; `--only` and `--drop` divide the packets.
    fn copied(&self, folder: &Folder, file: &str) {
        let out = folder.path(&format!("copy.{}", self.ending()));
        let _ = std::fs::remove_file(&out);
        // Packets of other link types are copied as they are.
        let code = if self.file.starts_with("wifi") { 0 } else { self.code() };
        let copy = |rules: &[&str]| {
            run(code, &[&["fwd", &format!("pcap:{file}"), &format!("pcap:{out}?write")], rules].concat())
        };
        let (found, said) = copy(&[]);
        assert!(code == 0 || said.contains(self.error), "{}: {said}", self.file);
        let mut before = std::fs::read(file).unwrap();
        if self.file == "ng_seclen.pcapng" {
            before[16..24].fill(0xFF);
        }
        if found.is_null() {
            return assert!(self.packets[0] == 0 && !std::fs::exists(&out).unwrap(), "{}: {said}", self.file);
        }
        let after = std::fs::read(&out).unwrap();
        assert!(before.starts_with(&after) && (code == 1 || before.len() == after.len()), "{}: {said}", self.file);
        let [packets, udp] = self.packets;
        assert_eq!(found["packets"], packets, "{}: {found}", self.file);
        for (rules, kept) in [(["--only", "udp"], udp), (["--drop", "udp"], packets - udp)] {
            let (found, said) = copy(&rules);
            assert_eq!(
                (&found["packets"], &found["filtered"]),
                (&kept.into(), &(packets - kept).into()),
                "{}: {said}",
                self.file
            );
        }
    }

    /// An edited file is replayed as the file is with the same edit.
    fn edited(&self, folder: &Folder, file: &str) {
        let out = folder.path(&format!("edited.{}", self.ending()));
        let _ = std::fs::remove_file(&out);
        let edit = ["--map", "198.18.0.0/16=10.9.0.0/16", "--set", "ip6(hop=9)"];
        let code = if self.file.starts_with("wifi") { 0 } else { self.code() };
        let header: &[&str] = if self.link.is_empty() || code != self.code() { &[] } else { &["--ethernet"] };
        let (found, said) = run(code, &[&["edit", file, &out], &edit[..], header].concat());
        assert!(code == 0 || said.contains(self.error), "{}: {said}", self.file);
        if found.is_null() {
            return assert!(self.packets[0] == 0, "{}: {said}", self.file);
        }
        assert_eq!(found["written"], self.packets[0], "{}: {found}", self.file);
        if !self.sent.is_empty() {
            let changed = self.replayed(folder, file, &edit);
            let again = folder.path("again.pcap");
            run(0, &["replay", &out, &format!("pcap:{again}?write"), "--top"]);
            assert!(changed == frames(&again), "{}", self.file);
        }
    }
}

/// The table has each capture once.
#[test]
fn each_capture_has_its_right_result() {
    let mut names: Vec<&str> = RIGHT.iter().map(|right| right.file).collect();
    let mut files: Vec<&str> = all().iter().map(|(file, _)| *file).collect();
    names.sort_unstable();
    files.sort_unstable();
    assert_eq!(names, files);
}

/// Runs the checks of a part of the table.
fn check(name: &str, part: &[Right]) {
    let folder = Folder::new(name);
    write_cases(&folder);
    part.iter().for_each(|right| right.check(&folder));
}

#[test]
fn variants_and_damaged_files_have_the_right_result() {
    check("cases-variants", &RIGHT[..21]);
}

#[test]
fn link_types_and_lengths_have_the_right_result() {
    check("cases-links", &RIGHT[21..39]);
}

#[test]
fn blocks_of_pcapng_have_the_right_result() {
    check("cases-blocks", &RIGHT[39..]);
}
