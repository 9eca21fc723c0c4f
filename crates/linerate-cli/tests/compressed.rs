//! Captures that gzip, zstd, lz4 and linerate have compressed. They are recognised by content, not by name.

mod kit;

use std::process::Command;

use kit::{Folder, expect, frames, linerate, summary, text, write_frames};
use serde_json::Value;

/// The commands that compress standard input: formats, levels, several members, skippable frames and long windows.
const PACKERS: [&str; 10] = [
    "gzip -1",
    "gzip -9 --name",
    "sh -c 'head -c 5000 | gzip; gzip'",
    "zstd -1",
    "zstd -19 --long=27 --check",
    "sh -c 'head -c 5000 | zstd; zstd'",
    r"sh -c 'printf \\120\\052\\115\\030\\003\\000\\000\\000abc; zstd'",
    "lz4 -1",
    "lz4 -9 -B4 -BD --content-size",
    "lz4 -l",
];

/// Returns frames of different lengths and contents, which fill several blocks of each format.
fn sent() -> Vec<Vec<u8>> {
    (0..3000usize)
        .map(|n| {
            let mut frame: Vec<u8> = (0..60 + n * 37 % 1400).map(|at| (n * at % 251) as u8).collect();
            frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
            frame
        })
        .collect()
}

/// Compresses a file with one of the packers.
fn pack(packer: &str, from: &str, to: &str) {
    expect(0, Command::new("sh").args(["-c", &format!("{packer} <'{from}' >'{to}'")]));
}

/// Runs a replay into a file. Returns the frames, the replay's part of the summary, and the errors.
#[track_caller]
fn replayed(code: i32, file: &str, out: &str, options: &[&str]) -> (Vec<Vec<u8>>, Value, String) {
    let port = format!("pcap:{out}?write");
    let words = [&["replay", file, &port, "--top", "--json"], options].concat();
    let output = expect(code, &mut linerate(&words));
    (frames(out), summary(&output.stdout)["replay"].clone(), text(&output.stderr))
}

#[test]
fn compressed_captures_are_read_whatever_their_names_are() {
    let folder = Folder::new("compressed-read");
    let [plain, packed, out] = ["in.pcap", "packed.pcap", "out.pcap"].map(|file| folder.path(file));
    let sent = sent();
    write_frames(&plain, &sent);
    for packer in PACKERS {
        pack(packer, &plain, &packed);
        for memory in ["1G", "0"] {
            let (found, _, said) = replayed(0, &packed, &out, &["--memory", memory, "--strict"]);
            assert!(found == sent, "{packer}: {} frames: {said}", found.len());
        }
        let (found, _, said) = replayed(0, &packed, &out, &["--loop", "2"]);
        assert!(found == [&sent[..], &sent].concat(), "{packer}: {said}");
        // A wire, a copy of a file, and a pipe.
        let recorded = format!("recorded:null:?to={out}");
        let wire = format!("sim:0?wire=pcap:{packed}");
        expect(0, &mut linerate(&["fwd", &wire, &recorded, "--count", "3000", "--seconds", "60"]));
        assert!(frames(&out) == sent, "{packer}");
        expect(0, &mut linerate(&["fwd", &format!("pcap:{packed}"), &format!("pcap:{out}?write")]));
        assert!(std::fs::read(&out).unwrap() == std::fs::read(&plain).unwrap(), "{packer}");
        let mut shell = Command::new("sh");
        shell.args(["-c", "cat \"$1\" | exec \"$0\" fwd pcap:/dev/stdin \"$2\"", env!("CARGO_BIN_EXE_linerate")]);
        expect(0, shell.args([&packed, &recorded]));
        assert!(frames(&out) == sent, "{packer}");
    }
}

/// The command reads what it has compressed itself.
#[test]
fn the_own_compressed_captures_are_read() {
    let folder = Folder::new("compressed-own");
    let [plain, packed, out] = ["in.pcap", "packed.pcapng.zst", "out.pcap"].map(|file| folder.path(file));
    let sent = sent();
    write_frames(&plain, &sent);
    expect(0, &mut linerate(&["capture", &format!("pcap:{plain}"), "--write", &packed]));
    assert!(replayed(0, &packed, &out, &[]).0 == sent);
    // Compressed output is for captures of ports.
    for ending in ["zst", "gz", "lz4"] {
        for from in [format!("pcap:{plain}"), "sim:0".to_string()] {
            let words = ["fwd", &from, &format!("pcap:{out}.{ending}?write"), "--seconds", "1"];
            let said = text(&expect(1, &mut linerate(&words)).stderr);
            assert!(said.contains(&format!("leave out .{ending}, or use linerate capture")), "{said}");
        }
    }
}

/// A file that is cut or damaged is read up to there, and the position of the record is reported.
#[test]
fn cut_and_damaged_compressed_captures_have_their_place() {
    let folder = Folder::new("compressed-cut");
    let [plain, packed, out] = ["in.pcap", "packed", "out.pcap"].map(|file| folder.path(file));
    let sent = sent();
    write_frames(&plain, &sent);
    // The offset of each record, and of the end.
    let offsets: Vec<usize> =
        std::iter::once(24).chain(sent.iter().scan(24, |at, frame| Some((*at += 16 + frame.len(), *at).1))).collect();
    for packer in PACKERS {
        pack(packer, &plain, &packed);
        let whole = std::fs::read(&packed).unwrap();
        for part in [0.1, 0.5, 0.99] {
            std::fs::write(&packed, &whole[..(whole.len() as f64 * part) as usize]).unwrap();
            let output = linerate(&["replay", &packed, &format!("pcap:{out}?write"), "--top", "--json"]);
            let output = expect(1, &mut { output });
            let said = text(&output.stderr);
            if output.stdout.is_empty() {
                // No block is complete.
                assert!(said.contains("it is cut after frame 0") || said.contains("too short"), "{packer}: {said}");
                continue;
            }
            let found = frames(&out);
            assert!(found[..] == sent[..found.len()] && found.len() < sent.len(), "{packer}: {said}");
            let (count, at) = (found.len(), offsets[found.len()]);
            let place = format!(
                "error: {packed}: it is cut after frame {count}, in the record at byte {at} of the unpacked file"
            );
            assert!(said.contains(&place), "{packer} {part}: {said}");
            assert!(said.contains(&format!(" -dc <'{packed}' | head -c {at} >NEW.pcap")), "{said}");
        }
        // Inverted bytes in the middle. The legacy format of lz4 has no checksum.
        if packer == "lz4 -l" {
            continue;
        }
        let mut damaged = whole.clone();
        let at = whole.len() / 2;
        damaged[at..at + 64].iter_mut().for_each(|byte| *byte = !*byte);
        std::fs::write(&packed, damaged).unwrap();
        let output = expect(1, &mut linerate(&["replay", &packed, &format!("pcap:{out}?write"), "--top"]));
        let said = text(&output.stderr);
        assert!(said.contains(" of the unpacked file") || said.contains("cannot read it"), "{packer}: {said}");
    }
    for (packer, bytes) in
        [("gzip", &b"no capture at all, but a text"[..]), ("zstd", b""), ("lz4", b"no capture at all")]
    {
        std::fs::write(&plain, bytes).unwrap();
        pack(packer, &plain, &packed);
        let said = text(&expect(1, &mut linerate(&["replay", &packed, "null:"])).stderr);
        let why = if bytes.is_empty() { "it is too short for a capture file" } else { "it is neither pcap nor pcapng" };
        assert!(said.contains(why), "{packer}: {said}");
    }
}

/// A small file with much content needs little memory.
#[test]
fn memory_is_bounded_by_the_unpacked_length() {
    const FRAMES: usize = 200_000;
    let folder = Folder::new("compressed-long");
    let [packed, part, zeros] = ["packed.gz", "part", "zeros"].map(|file| folder.path(file));
    write_frames(&part, &[]);
    let (mut plain, frame) = (std::fs::read(&part).unwrap(), [0; 1514]);
    for _ in 0..FRAMES {
        [0, 0, 1514, 1514].iter().for_each(|word: &u32| plain.extend(word.to_le_bytes()));
        plain.extend(frame);
    }
    std::fs::write(&zeros, &plain).unwrap();
    pack("gzip", &zeros, &packed);
    assert!(std::fs::metadata(&packed).unwrap().len() < 4 << 20);
    for (memory, read) in [("8M", "ahead"), ("1G", "memory")] {
        let words = ["replay", &packed, "null:", "--top", "--json", "--memory", memory];
        let part = &summary(&expect(0, &mut linerate(&words)).stdout)["replay"];
        assert_eq!((&part["read"], &part["given"]), (&read.into(), &FRAMES.into()), "{part}");
    }
    // Less address space than the frames need.
    let mut limited = Command::new("sh");
    let limit = "ulimit -v 262144; exec \"$0\" replay \"$1\" null: --top --json --memory 8M --pages ordinary";
    limited.args(["-c", limit, env!("CARGO_BIN_EXE_linerate"), &packed]);
    assert_eq!(summary(&expect(0, &mut limited).stdout)["replay"]["given"], FRAMES);
}
