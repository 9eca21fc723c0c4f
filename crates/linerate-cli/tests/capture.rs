//! `linerate capture`: its files, as read by other programs, and its lines.

mod kit;

use std::io::Read;
use std::process::{Command, Stdio};

use etherparse::{EtherType, PacketBuilder, TcpHeader};
use kit::{
    Folder, Namespace, OutputTimeout, Process, Timely, end_of, expect, inside, linerate, summary, text, until,
    with_mounts, write_frames,
};
use linerate::capture::{Reader, Writer};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns the frames of a file and their times.
fn read(path: &str) -> (Vec<Vec<u8>>, Vec<u64>) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let bytes = if path.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
    parse(bytes)
}

fn parse(bytes: Vec<u8>) -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut reader = Reader::new(std::io::Cursor::new(bytes), "the capture").unwrap();
    let (mut frames, mut times, mut frame) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(record) = reader.next(&mut frame).unwrap() {
        frames.push(frame.clone());
        times.push(record.nanoseconds.unwrap());
    }
    (frames, times)
}

/// Returns UDP and TCP frames of different lengths, each with a number in it.
fn frames(count: u32) -> Vec<Vec<u8>> {
    let frame = |n: u32| {
        let mut payload = vec![0; (n as usize * 37) % 1400 + 20];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        let mut frame = Vec::new();
        let builder =
            PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        match n % 3 {
            0 => builder.tcp(1000, 80, n, 100).write(&mut frame, &payload).unwrap(),
            part => builder.udp(1000, 50 + part as u16).write(&mut frame, &payload).unwrap(),
        }
        frame
    };
    (0..count).map(frame).collect()
}

/// Runs a capture with a summary in JSON.
fn capture(code: i32, arguments: &[&str]) -> Value {
    summary(&expect(code, linerate(&["capture", "--json"]).args(arguments)).stdout)
}

#[test]
fn files_have_what_came() {
    let folder = Folder::new("capture-files");
    let sent = frames(1000);
    let input = folder.path("in.pcap");
    let mut writer = Writer::create(input.as_ref()).unwrap();
    for (frame, n) in sent.iter().zip(0..) {
        writer.write(1_700_000_000_000_000_000 + n * 12_345, frame).unwrap();
    }
    drop(writer);
    for name in ["out.pcapng", "out.pcap", "out.pcapng.zst", "out"] {
        let path = folder.path(name);
        let said = capture(0, &[&format!("pcap:{input}"), "--write", &path]);
        assert_eq!(
            (&said["capture"]["written"], &said["lost"], &said["packets"]),
            (&1000.into(), &0.into(), &1000.into())
        );
        assert_eq!(said["capture"]["files"], serde_json::json!([path]));
        assert!(read(&path) == (sent.clone(), read(&input).1), "{name}");
    }
    // The model does not stamp packets here: they have the time of their reception. Times differ, so that programs can
    // tell packets apart.
    let path = folder.path("sim.pcapng");
    capture(0, &["sim:0?count=1000", "--count", "1000", "--write", &path]);
    let (_, times) = read(&path);
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]) && times.len() == 1000);
    // Wireshark's programs read the same frames, with nanoseconds and the port's name.
    let path = folder.path("out.pcapng");
    let about = text(&expect(0, Command::new("capinfos").arg(&path)).stdout);
    for part in
        ["nanoseconds (9)", "Number of stat entries = 1", "Number of packets = 1000", "Strict time order:   True"]
    {
        assert!(about.contains(part), "{part}: {about}");
    }
    let fields = ["-T", "fields", "-e", "frame.len", "-e", "frame.interface_name", "-e", "frame.time_epoch"];
    let lines = text(&expect(0, Command::new("tshark").args(["-r", &path]).args(fields)).stdout);
    let (_, times) = read(&path);
    for ((line, frame), time) in lines.lines().zip(&sent).zip(times) {
        let expected = format!("{}\tpcap:{input}\t{}.{:09}", frame.len(), time / 1_000_000_000, time % 1_000_000_000);
        assert_eq!(line, expected);
    }
    assert_eq!(lines.lines().count(), 1000);
}

#[test]
fn frames_are_cut_to_the_snap_length() {
    let folder = Folder::new("capture-snaplen");
    let sent = frames(100);
    write_frames(&folder.path("in.pcap"), &sent);
    for name in ["out.pcapng", "out.pcap"] {
        let path = folder.path(name);
        capture(0, &[&format!("pcap:{}", folder.path("in.pcap")), "--snaplen", "66", "--write", &path]);
        let (frames, _) = read(&path);
        assert!(frames.iter().zip(&sent).all(|(frame, sent)| *frame == sent[..sent.len().min(66)]), "{name}");
        let lens =
            Command::new("tshark").args(["-r", &path, "-T", "fields", "-e", "frame.len"]).output_in_time().unwrap();
        let expected: String = sent.iter().map(|frame| format!("{}\n", frame.len())).collect();
        assert_eq!(text(&lens.stdout), expected, "{name}");
    }
}

/// Packets of one queue keep their arrival times, and packets that follow a later one are counted.
#[test]
fn packets_behind_a_later_one_are_counted() {
    let folder = Folder::new("capture-unsorted");
    let (from, to) = (folder.path("in.pcap"), folder.path("out.pcap"));
    let mut writer = Writer::create(from.as_ref()).unwrap();
    let times = [100, 300, 200, 300, 299, 400];
    times.iter().for_each(|time| writer.write(*time, &[0; 60]).unwrap());
    drop(writer);
    let said = capture(0, &[&format!("pcap:{from}"), "--write", &to]);
    assert_eq!(said["capture"]["unsorted"], 2, "{said}");
    assert_eq!(read(&to).1, times);
}

/// The statistics at the end of a file account for all packets that arrived.
#[test]
fn ports_and_queues_are_merged_by_time_and_counted() {
    let folder = Folder::new("capture-merged");
    let path = folder.path("out.pcapng");
    let ports = [
        "sim:0?count=20k&rate=200k&flows=8",
        "sim:1?count=20k&rate=100k&flows=8",
        "sim:2?count=20k&rate=100k&flows=8&queues=1",
        "sim:3?count=20k&rate=100k&flows=8&queues=3",
    ];
    let output = linerate(&["capture", "--json", "--queues", "2", "--seconds", "1", "--write", &path])
        .args(ports)
        .output_in_time();
    let said = summary(&output.unwrap().stdout);
    let (frames, times) = read(&path);
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "unsorted");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{said}"));
    let written = number(&said["capture"]["written"]);
    assert_eq!(written, frames.len() as u64, "{said}");
    let names =
        Command::new("tshark").args(["-r", &path, "-T", "fields", "-e", "frame.interface_name"]).output_in_time();
    let names = text(&names.unwrap().stdout);
    let statistics = statistics(&std::fs::read(&path).unwrap());
    for (n, port) in said["ports"].as_array().unwrap().iter().enumerate() {
        let of_port = names.lines().filter(|name| *name == port["name"]).count() as u64;
        let [received, dropped_by_port, accepted, dropped, delivered] = statistics[n];
        // The statistics include all packets that the model received or dropped.
        assert_eq!(accepted, number(&port["rx_packets"]), "{said}");
        assert_eq!(dropped_by_port, number(&port["undelivered"]), "{said}");
        assert_eq!((received, delivered), (accepted + dropped_by_port, of_port), "{said}");
        assert_eq!(accepted, delivered + dropped, "{said}");
        assert!(of_port > 0 && port["rx_slots"].as_array().unwrap().iter().all(|slots| slots != 0), "{said}");
    }
    let dropped = number(&said["capture"]["dropped"]) + number(&said["capture"]["dropped_by_ports"]);
    assert_eq!(number(&said["lost"]), dropped, "{said}");
}

/// Returns the counts of the file's statistics blocks, by interface: options 4 to 8 (draft-ietf-opsawg-pcapng, section
/// 4.6).
fn statistics(bytes: &[u8]) -> Vec<[u64; 5]> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let end = at + word(at + 4) as usize;
        if word(at) == 5 {
            let (mut counts, mut option) = ([u64::MAX; 5], at + 20);
            while word(option) != 0 {
                let (code, len) = (word(option) as u16, word(option) >> 16);
                if (4..=8).contains(&code) {
                    counts[usize::from(code) - 4] =
                        u64::from_le_bytes(bytes[option + 4..option + 12].try_into().unwrap());
                }
                option += 4 + (len as usize).next_multiple_of(4);
            }
            assert_eq!(word(at + 8) as usize, found.len(), "the interface");
            found.push(counts);
        }
        at = end;
    }
    found
}

/// Files that another program removes are reported as missing, and a file that could not be created is not counted.
#[test]
fn files_that_are_not_there_any_more_are_said() {
    let folder = Folder::new("capture-gone");
    let ring = folder.path("ring");
    std::fs::create_dir(&ring).unwrap();
    let mut words =
        vec!["capture", "sim:gone?rate=100k", "--seconds", "60", "--file-size", "200k", "--files", "2", "--write"];
    let path = format!("{ring}/a.pcapng");
    words.push(&path);
    let mut capture = Process::start(&mut linerate(&words));
    until("there are two files", || std::fs::read_dir(&ring).unwrap().count() == 2);
    // In one step: a folder cannot be removed while files are added.
    std::fs::rename(&ring, folder.path("gone")).unwrap();
    capture.await_error("2 files do not exist any more");
    let (code, said) = capture.ended();
    let line = said.lines().find(|line| line.starts_with("wrote ")).unwrap_or_else(|| panic!("{said}"));
    let number = |before: &str| -> u64 {
        let text = line.split(before).nth(1).unwrap_or_else(|| panic!("{line}"));
        text.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty()).unwrap().parse().unwrap()
    };
    assert_eq!((code, number("into ")), (Some(1), number("a_")), "{line}");

    let one = folder.path("one.pcap");
    let mut capture =
        Process::start(&mut linerate(&["capture", "sim:gone2?rate=1k", "--seconds", "60", "--write", &one]));
    until("the file is there", || std::fs::metadata(&one).is_ok_and(|file| file.len() > 0));
    std::fs::remove_file(&one).unwrap();
    capture.stop();
    capture.await_error(&format!("{one} does not exist any more: another program has removed or moved it"));
    let (code, said) = capture.ended();
    assert!(code == Some(0) && said.contains(&format!("into {one}\n")), "{said}");
}

/// Captures into a ring of two files in `ring`, where `other` replaces one of the files. Returns the path of that file.
fn exchanged_in_ring(port: &str, ring: &str, other: &str) -> std::path::PathBuf {
    std::fs::create_dir(ring).unwrap();
    let path = format!("{ring}/a.pcapng");
    let words = ["capture", port, "--json", "--seconds", "60", "--file-size", "200k", "--files", "2", "--write", &path];
    let mut capture = Process::start(&mut linerate(&words));
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(ring).unwrap().map(|file| file.unwrap().path()).collect();
        names.sort();
        names
    };
    let mut place = std::path::PathBuf::new();
    // In one step, as the ring may remove the file at any time.
    until("a file's place is taken", || {
        place = names().into_iter().next().unwrap_or_default();
        renameat_with(CWD, other, CWD, &place, RenameFlags::EXCHANGE).is_ok()
    });
    until("the ring has gone on", || names().iter().any(|name| name.display().to_string().contains("a_00006_")));
    capture.stop();
    capture.await_error("another program has changed or replaced it");
    let (code, said) = capture.ended();
    let said = summary(said.as_bytes());
    let capture = &said["capture"];
    let counts = ["missing_files", "changed_files"].map(|key| capture[key].as_u64());
    assert_eq!((code, counts, names().len()), (Some(1), [Some(0), Some(1)], 3), "{said}");
    assert!(capture["removed_files"].as_u64() > Some(0), "{said}");
    assert!(!capture["files"].as_array().unwrap().iter().any(|name| *name == place.to_str().unwrap()), "{said}");
    place
}

/// Files that another program truncates or replaces are reported as changed, and their replacements are not removed.
#[test]
fn files_that_are_not_as_they_were_written_are_said() {
    let folder = Folder::new("capture-changed");
    let changes: [fn(&str); 2] = [
        |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(30).unwrap(),
        |path| {
            std::fs::write(format!("{path}.new"), "of another program").unwrap();
            std::fs::rename(format!("{path}.new"), path).unwrap();
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        for name in ["one.pcap", "two.pcapng.zst"] {
            let (port, path) = (format!("sim:changed{n}{}?rate=1k", name.len()), folder.path(&format!("{n}{name}")));
            let mut capture = Process::start(&mut linerate(&["capture", &port, "--seconds", "60", "--write", &path]));
            // A compressor is flushed after a second.
            until("the file has frames", || std::fs::metadata(&path).is_ok_and(|file| file.len() > 100));
            change(&path);
            capture.stop();
            let line = capture.await_error("another program has changed or replaced it since it was written");
            assert!(line.contains(&path), "{line}");
            assert_eq!(capture.ended().0, Some(1));
        }
    }
    assert_eq!(std::fs::read_to_string(folder.path("1one.pcap")).unwrap(), "of another program");

    // Another program's folder or link at the path of a ring's file is not removed.
    let [other, target, link] = ["other", "target", "link"].map(|name| folder.path(name));
    std::fs::create_dir(&other).unwrap();
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let place = exchanged_in_ring("sim:changed?rate=50k", &folder.path("ring"), &other);
    assert!(place.is_dir());
    let place = exchanged_in_ring("sim:linked?rate=50k", &folder.path("links"), &link);
    assert!(place.is_symlink());
}

/// Nothing but the capture is written to standard output under any of its names. A closed standard output is an error.
#[test]
fn each_name_of_standard_output_has_the_capture_alone() {
    let folder = Folder::new("capture-stdout");
    let program = linerate(&[]).get_program().to_owned();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&program).arg(folder.path("out"));
        command
    };
    let capture = "exec \"$0\" capture 'sim:stdout?rate=10k' --count 10 --write";
    let refused = text(&expect(1, &mut shell(&format!("{capture} - >&-"))).stderr);
    assert!(refused.contains("standard output") && refused.contains("it is closed"), "{refused}");
    let same = text(&expect(0, &mut shell(&format!("{capture} \"$1\" >\"$1\""))).stderr);
    assert!(same.contains("wrote 10 packets into standard output"), "{same}");
    let (mut reader, mut frame) = (Reader::open(folder.path("out").as_ref()).unwrap(), Vec::new());
    assert_eq!(std::iter::from_fn(|| reader.next(&mut frame).unwrap()).count(), 10);
    reader.check_end().unwrap();
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let output = expect(0, &mut linerate(&["capture", "sim:stdout?rate=10k", "--count", "10", "--write", name]));
        let mut reader = Reader::new(std::io::Cursor::new(output.stdout), name).unwrap();
        let mut frame = Vec::new();
        assert_eq!(std::iter::from_fn(|| reader.next(&mut frame).unwrap()).count(), 10);
        reader.check_end().unwrap();
        assert!(text(&output.stderr).contains("wrote 10 packets into standard output"), "{name}");
    }
}

#[test]
fn a_ring_of_files_keeps_the_newest() {
    let folder = Folder::new("capture-ring");
    let sent = frames(1000);
    write_frames(&folder.path("in.pcap"), &sent);
    let port = format!("pcap:{}", folder.path("in.pcap"));
    for (name, most) in [("all.pcapng", None), ("last.pcapng.zst", Some("3")), ("old.pcap", Some("1"))] {
        let path = folder.path(name);
        let files = most.map_or(vec![], |most| vec!["--files", most]);
        let said = capture(0, &[&[&port, "--write", &path, "--file-size", "100k"][..], &files].concat());
        let names: Vec<String> = said["capture"]["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_string())
            .collect();
        let prefix = name.split('.').next().unwrap();
        let there = std::fs::read_dir(&folder.0).unwrap().flatten().filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&format!("{prefix}_"))
        });
        assert_eq!(there.count(), names.len(), "{said}");
        assert!(names.is_sorted(), "{said}");
        let kept: Vec<Vec<u8>> = names.iter().flat_map(|name| read(name).0).collect();
        assert!(sent.ends_with(&kept) && !kept.is_empty(), "{said}");
        assert_eq!(said["capture"]["written"], 1000, "{said}");
        for name in &names {
            let len = std::fs::metadata(name).unwrap().len();
            // The statistics at the end may exceed the limit.
            assert!(len <= 100_200, "{name}: {len}");
        }
        match most {
            None => {
                assert!(kept == sent && names.len() > 5, "{said}");
                // A file's statistics do not include packets that are in flight to the next file.
                let mut until = 0;
                for name in &names {
                    until += read(name).0.len() as u64;
                    let [received, _, accepted, dropped, delivered] = statistics(&std::fs::read(name).unwrap())[0];
                    assert_eq!([received, accepted, dropped, delivered], [until, until, 0, until], "{name}");
                }
            }
            Some(most) => assert_eq!(names.len().to_string(), most, "{said}"),
        }
    }
}

#[test]
fn filters_take_what_tcpdump_takes() {
    let folder = Folder::new("capture-filters");
    let sent = frames(300);
    let input = folder.path("in.pcap");
    write_frames(&input, &sent);
    let path = folder.path("out.pcapng");
    let port = format!("pcap:{input}");
    for (expression, ours) in [("udp port 51", "port:51+udp"), ("tcp", "tcp"), ("not tcp and less 500", "")] {
        let wanted = folder.path("wanted.pcap");
        expect(0, Command::new("tcpdump").args(["-r", &input, "-w", &wanted, expression]));
        let (wanted, _) = read(&wanted);
        let said = capture(0, &[&port, "--write", &path, "--pcap-filter", expression]);
        assert!(read(&path).0 == wanted && !wanted.is_empty(), "{expression}");
        assert_eq!(said["filtered"], 300 - wanted.len(), "{said}");
        if !ours.is_empty() {
            let ours = if ours.contains("51") { "udp:51" } else { ours };
            capture(0, &[&port, "--write", &path, "--only", ours]);
            assert!(read(&path).0 == wanted, "{ours}");
        }
        // Exactly this many of the accepted packets.
        capture(0, &[&port, "--write", &path, "--pcap-filter", expression, "--count", "7", "--seconds", "60"]);
        assert!(read(&path).0 == wanted[..7], "{expression}");
    }
    // Lengths are those of the frames, not of the captured parts, as for tcpdump.
    let snapped = folder.path("snapped.pcap");
    let words = [0xA1B2_C3D4u32, 4 << 16 | 2, 0, 0, 60, 1, 0, 0, 60, 1514, 0, 0, 60, 96];
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    let records = [bytes(&words[..10]), vec![0; 60], bytes(&words[10..]), vec![0; 60]].concat();
    std::fs::write(&snapped, records).unwrap();
    for (expression, count) in [("greater 1000", 1), ("less 97", 1), ("len = 60", 0), ("greater 60", 2)] {
        let port = format!("pcap:{snapped}");
        capture(0, &[&port, "--write", &path, "--pcap-filter", expression]);
        let dumped = Command::new("tcpdump").args(["-r", &snapped, "-w", "-", expression]).output_in_time().unwrap();
        let dumped = (dumped.stdout.len() - 24) / 76;
        assert_eq!((read(&path).0.len(), dumped), (count, count), "{expression}");
    }
    let said = expect(2, &mut linerate(&["capture", "null:", "--pcap-filter", "tcp port many"]));
    assert!(text(&said.stderr).contains("libpcap cannot compile it: "), "{}", text(&said.stderr));
}

#[test]
fn a_full_disk_ends_the_capture_with_whole_frames() {
    let folder = Folder::new("capture-full");
    write_frames(&folder.path("in.pcap"), &frames(1000));
    let disk = folder.path("disk");
    std::fs::create_dir(&disk).unwrap();
    // A separate disk for the process, from which the file is copied before it is unmounted.
    let script = "mount -t tmpfs -o size=100k tmpfs $1; file=$1/out.pcapng; copy=$2; shift 2; \"$@\" --write $file; \
                  code=$?; cp $file $copy; exit $code";
    let copy = folder.path("out.pcapng");
    let port = format!("pcap:{}", folder.path("in.pcap"));
    let words = [&disk, &copy, env!("CARGO_BIN_EXE_linerate"), "capture", &port, "--json"];
    let output = expect(1, with_mounts(script).args(words));
    let (why, said) = (text(&output.stderr), summary(&output.stdout));
    let written = said["capture"]["written"].as_u64().unwrap();
    assert!(
        why.contains(&format!("cannot write it: No space left on device (os error 28); it has {written} complete")),
        "{why}"
    );
    // The run ends at the error, so not all frames were received.
    assert_eq!(said["lost"], said["packets"].as_u64().unwrap() - written, "{said}");
    let mut reader = Reader::open(folder.path("out.pcapng").as_ref()).unwrap();
    let (mut frame, mut whole) = (Vec::new(), 0);
    // The part of the frame that did not fit is removed: the file ends with a complete frame.
    while reader.next(&mut frame).unwrap().is_some() {
        whole += 1;
    }
    assert_eq!((whole, written > 10), (written, true));

    // A compressor has accepted more frames than are in the file, whose blocks have up to 128 KiB.
    let random = |count: u32| -> Vec<Vec<u8>> {
        let mut state = 7u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..count).map(|_| (0..500).map(|_| byte()).collect()).collect()
    };
    write_frames(&folder.path("in.pcap"), &random(3000));
    let words = [&disk, &copy, env!("CARGO_BIN_EXE_linerate"), "capture", &port, "--json"];
    let output = expect(1, with_mounts(&script.replace(".pcapng", ".pcapng.zst").replace("100k", "400k")).args(words));
    let (why, said) = (text(&output.stderr), summary(&output.stdout));
    let unpacked = zstd::stream::read::Decoder::new(std::fs::File::open(&copy).unwrap()).unwrap();
    let mut reader = Reader::new(unpacked, "the copy").unwrap();
    let whole = std::iter::from_fn(|| reader.next(&mut frame).ok().flatten()).count();
    assert!(whole > 10 && why.contains(&format!("; it has {whole} complete frames")), "{whole}: {why}");
    assert_eq!((&said["capture"]["written"], whole < 3000), (&whole.into(), true), "{said}");
}

/// The capture waits for a stuck reader of standard output until Ctrl-C, and then for one more second.
#[test]
fn a_reader_that_reads_nothing_does_not_keep_the_capture_from_its_end() {
    let folder = Folder::new("capture-stuck");
    write_frames(&folder.path("in.pcap"), &frames(1000));
    let port = format!("pcap:{}", folder.path("in.pcap"));
    for (write, said) in [
        (&["--write", "-"][..], "the reader of standard output has not read all packets yet; Ctrl-C discards"),
        (&[], "all ports have reached their end"),
    ] {
        let mut command = linerate(&["capture", &port]);
        let mut child = command.args(write).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = std::io::BufReader::new(Timely(child.stderr.take().unwrap()));
        let mut line = String::new();
        while !line.contains(said) {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut errors, &mut line).unwrap() > 0, "{said}");
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let mut rest = String::new();
        errors.read_to_string(&mut rest).unwrap();
        assert!(!end_of(&mut child).success());
        assert!(rest.contains("reader has read nothing for 1 s"), "{rest}");
    }
}

/// While a reader reads nothing, packets without room are dropped and counted.
#[test]
fn a_slow_reader_loses_what_is_counted() {
    let folder = Folder::new("capture-slow");
    let sent = frames(5000);
    write_frames(&folder.path("in.pcap"), &sent);
    let port = format!("pcap:{}", folder.path("in.pcap"));
    let mut command = linerate(&["capture", &port, "--json", "--write", "-", "--memory", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = std::io::BufReader::new(Timely(child.stderr.take().unwrap()));
    let mut line = String::new();
    while !line.contains("all ports have reached their end") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut errors, &mut line).unwrap() > 0);
    }
    let (mut bytes, mut rest) = (Vec::new(), String::new());
    Timely(child.stdout.take().unwrap()).read_to_end(&mut bytes).unwrap();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(1), "{rest}");
    let said = rest.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{rest}"));
    let said = summary(said.as_bytes());
    let (frames, _) = parse(bytes);
    let dropped = said["capture"]["dropped"].as_u64().unwrap();
    assert!(dropped > 0, "{said}");
    assert_eq!((frames.len() as u64 + dropped, &said["lost"]), (5000, &dropped.into()), "{said}");
    // The received frames are some of those sent, in order.
    let mut all = sent.iter();
    assert!(frames.iter().all(|frame| all.any(|sent| sent == frame)));
}

/// The frames of an interface with several queues and another MTU are captured.
#[test]
fn an_interface_s_queues_and_its_longest_frames_are_captured() {
    let (namespace, folder) = (Namespace::new("capture"), Folder::new("capture-interface"));
    namespace.disable_ipv6("default");
    let queues = "mtu 9000 numrxqueues 2 numtxqueues 2";
    namespace.run(&format!("ip link add v0 {queues} type veth peer name v1 {queues}"));
    namespace.run("ip link set v0 up");
    namespace.run("ip link set v1 up");
    for (port, mode) in [("packet:v1", ""), ("packet:v1", "-p"), ("xdp:v1", "")] {
        let path = folder.path(&format!("{}.pcapng", port.replace(':', "-")));
        let mut capture = Process::start(&mut inside(
            &namespace,
            &format!("capture {port} {mode} --write {path} --count 10 --seconds 60 --json"),
        ));
        // Its queues exist by now.
        capture.await_output("seconds");
        let is_promiscuous = !namespace.run("ip -d link show v1").contains("promiscuity 0");
        assert_eq!(is_promiscuous, mode.is_empty(), "{port} {mode}");
        let send = "gen packet:v0 --size 9018 --mtu 9000 --count 10 --rate 1k --json";
        expect(0, &mut inside(&namespace, send));
        let (code, output) = capture.ended();
        assert_eq!(code, Some(0), "{output}");
        let said = summary(output.as_bytes());
        let (frames, _) = read(&path);
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [9014; 10], "{said}");
    }
}

/// The packets of a port that another program uses.
#[test]
fn a_monitor_is_captured() {
    let folder = Folder::new("capture-monitor");
    let start = |arguments: &[&str]| Process::start(linerate(arguments).env("LINERATE_PORTS", folder.path("ports")));
    let mut server = start(&["serve"]);
    server.await_output("ports/");
    let mut user = start(&["sink", "vale0:a", "--count", "100", "--json"]);
    user.await_output("seconds");
    let path = folder.path("out.pcapng");
    let mut capture = start(&["capture", "vale0:a+rt", "--write", &path, "--count", "100", "--json"]);
    // Its queue exists by now.
    capture.await_output("seconds");
    let sent = start(&["gen", "vale0:b", "--count", "100", "--rate", "10k", "--json"]).ended();
    assert_eq!((sent.0, user.ended().0), (Some(0), Some(0)));
    let (code, said) = capture.ended();
    assert_eq!((code, &summary(said.as_bytes())["capture"]["written"]), (Some(0), &100.into()), "{said}");
    let mut checker = linerate::traffic::Checker::default();
    read(&path).0.iter().for_each(|frame| checker.check(frame));
    let report = checker.report();
    assert_eq!((report.received, report.lost, report.corrupted, report.foreign), (100, 0, 0, 0));
}

#[test]
fn a_line_says_what_a_packet_is() {
    let folder = Folder::new("capture-lines");
    let ethernet = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let v4 = || ethernet().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let v6 = |last| {
        let address = |last| {
            let mut address = [0; 16];
            (address[0], address[15]) = (0xFD, last);
            address
        };
        ethernet().ipv6(address(1), address(last), 64)
    };
    let mut all: Vec<(Vec<u8>, &str)> = Vec::new();
    macro_rules! add {
        ($builder:expr, $payload:expr, $said:expr) => {{
            let mut frame = Vec::new();
            $builder.write(&mut frame, $payload).unwrap();
            all.push((frame, $said));
        }};
    }
    let mut syn = TcpHeader::new(1000, 80, 7, 100);
    syn.syn = true;
    add!(v4().udp(1000, 53), &[0; 40], "10.0.0.1:1000 > 10.0.0.2:53 UDP, 40 of payload, 82 bytes");
    add!(v4().tcp_header(syn), &[0; 6], "10.0.0.1:1000 > 10.0.0.2:80 TCP SYN seq 7 ack 0 win 100, 60 bytes");
    add!(v4().icmpv4_echo_request(5, 6), &[0; 40], "10.0.0.1 > 10.0.0.2 ICMP echo request, id 5, seq 6, 82 bytes");
    add!(v6(2).udp(9, 10), &[1; 8], "[fd00::1]:9 > [fd00::2]:10 UDP, 8 of payload, 70 bytes");
    add!(v6(3).icmpv6_echo_reply(1, 2), &[1; 8], "fd00::1 > fd00::3 ICMPv6 echo reply, id 1, seq 2, 70 bytes");
    add!(
        ethernet().single_vlan(77u16.try_into().unwrap()).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1, 2),
        &[0; 30],
        "vlan 77, 10.0.0.1:1 > 10.0.0.2:2 UDP, 30 of payload, 76 bytes"
    );
    let raw = |kind: u16, rest: &[u8]| {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        frame.extend(kind.to_be_bytes());
        frame.extend(rest);
        frame.resize(60, 0);
        frame
    };
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1][..], &[0; 6], &[10, 0, 0, 2]].concat();
    all.push((raw(EtherType::ARP.0, &arp), "ARP who has 10.0.0.2? tell 10.0.0.1, 60 bytes"));
    all.push((raw(0x88F7, &[]), "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype 0x88f7, 60 bytes"));
    all.push((raw(38, &[0x42; 3]), "02:00:00:00:00:01 > 02:00:00:00:00:02, 802.3 of 38 bytes, 60 bytes"));
    let frames: Vec<Vec<u8>> = all.iter().map(|(frame, _)| frame.clone()).collect();
    write_frames(&folder.path("in.pcap"), &frames);
    let port = format!("pcap:{}", folder.path("in.pcap"));
    let output = expect(0, &mut linerate(&["capture", &port]));
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), all.len(), "{lines}");
    for (line, (_, said)) in lines.lines().zip(&all) {
        // The line begins with the time of day, to the nanosecond.
        let (time, rest) = line.split_at(19);
        assert!(
            time.bytes().zip(b"00:00:00.000000000 ").all(|(is, like)| is == *like || is.is_ascii_digit()),
            "{line}"
        );
        assert_eq!(rest, *said);
    }
    assert!(text(&output.stderr).contains("capture: 9 packets"), "the summary is aside");
    let cut = text(&expect(0, &mut linerate(&["capture", &port, "--snaplen", "42"])).stdout);
    assert!(cut.lines().next().unwrap().ends_with("UDP, 40 of payload, 82 bytes (42 captured)"), "{cut}");
    let json = text(&expect(0, &mut linerate(&["capture", &port, "--json"])).stdout);
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((json.len(), &json[0]["packet"]["bytes"]), (all.len() + 1, &82.into()));
    assert_eq!(json[9]["summary"]["packets"], 9);
}

/// Frames of any content are described without a panic.
#[test]
fn lines_of_damaged_frames() {
    let folder = Folder::new("capture-damaged");
    let (mut state, mut all) = (1u64, Vec::new());
    for mut frame in frames(3000) {
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % frame.len().min(60);
            frame[at] = (state >> 20) as u8;
        }
        frame.truncate(14 + (state >> 40) as usize % (frame.len() - 13));
        all.push(frame);
    }
    write_frames(&folder.path("in.pcap"), &all);
    let output = expect(0, &mut linerate(&["capture", &format!("pcap:{}", folder.path("in.pcap"))]));
    assert_eq!(text(&output.stdout).lines().count(), 3000);
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = Folder::new("capture-refused");
    let refused = |code: i32, arguments: &[&str], why: &str| {
        let said = text(&expect(code, linerate(&["capture"]).args(arguments)).stderr);
        assert!(said.contains(why), "{arguments:?}: {said}");
    };
    let file = folder.path("out.pcap");
    refused(2, &["null:", "sim:0", "--write", &file], "pcap cannot record which port");
    refused(2, &["null:", "--write", &file, "--files", "3"], "--files needs --file-size or --file-seconds");
    refused(2, &["null:", "--write", "-", "--file-size", "1M"], "standard output cannot be split into files");
    refused(2, &["null:", "--write", &file, "--file-seconds", "0"], "a number of seconds");
    refused(2, &["null:", "--write", &file, "--snaplen", "0"], "a whole number from 1 to 262144");
    for ending in ["gz", "lz4", "xz", "bz2"] {
        let path = folder.path(&format!("out.pcapng.{ending}"));
        refused(2, &["null:", "--write", &path], "compressed with zstd: --write");
    }
    refused(2, &["null:", "--file-size", "1M"], "--write");
    refused(1, &["null:", "--write", &folder.path("none/out.pcap")], "cannot write it: No such file or directory");
    refused(2, &[&format!("pcap:{file}?write"), "--write", &file], "receives no packets");
    refused(2, &["null:", "--only", "udp", "--drop", "udp"], "nothing would be left");
    assert!(std::fs::read_dir(&folder.0).unwrap().next().is_none(), "nothing is created");
}
