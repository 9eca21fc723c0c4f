//! `linerate replay`: the frames of captures, byte for byte, in order and at their times; and its messages if that
//! fails.

mod kit;

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use kit::{Folder, Process, captures, expect, frames, linerate, summary, text, write_frames};
use serde_json::{Value, json};

/// Runs a replay that must exit with `code`; returns its part of the summary, the summary, and the errors.
#[track_caller]
fn replay(code: i32, arguments: &[&str]) -> (Value, Value, String) {
    let output =
        expect(code, linerate(&[&["replay"][..], arguments, &["--json"]].concat()).stdin(std::process::Stdio::null()));
    let summary = summary(&output.stdout);
    (summary["replay"].clone(), summary, text(&output.stderr))
}

/// Runs a replay that must fail without a summary, and checks its errors.
#[track_caller]
fn refuses(code: i32, arguments: &[&str], parts: &[&str]) {
    let said = text(&expect(code, &mut linerate(&[&["replay"], arguments].concat())).stderr);
    for part in parts {
        assert!(said.contains(part), "{arguments:?} does not say '{part}': {said}");
    }
}

/// Returns a unique frame, whose content and length depend on its number.
fn frame(number: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; 60 + number * 37 % 1400];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
    frame[14..22].copy_from_slice(&(number as u64).to_be_bytes());
    frame
}

/// Writes frames with their times in nanoseconds as pcap.
fn write_timed(path: &str, frames: &[(u64, Vec<u8>)]) {
    let mut file = Vec::new();
    [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 65_535, 1].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
    for (time, frame) in frames {
        let len = frame.len() as u32;
        let words = [(time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32, len, len];
        words.iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}

/// Writes the same as pcapng, with times in nanoseconds.
fn write_pcapng(path: &str, frames: &[(u64, Vec<u8>)]) {
    write_blocks(path, &frames.iter().map(|(time, frame)| (Some(*time), frame.clone())).collect::<Vec<_>>());
}

/// Writes frames as pcapng. Frames without a time become simple packets.
fn write_blocks(path: &str, frames: &[(Option<u64>, Vec<u8>)]) {
    let mut file = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let total = (padded + 12) as u32;
        file.extend(kind.to_le_bytes());
        file.extend(total.to_le_bytes());
        file.extend(body);
        file.resize(file.len() + padded - body.len(), 0);
        file.extend(total.to_le_bytes());
    };
    block(0x0A0D_0D0A, &[&0x1A2B_3C4Du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xFF; 8]].concat());
    // Ethernet, any length, if_tsresol 9.
    block(1, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    for (time, frame) in frames {
        let len = frame.len() as u32;
        match time {
            Some(time) => {
                let words = [0, (time >> 32) as u32, *time as u32, len, len];
                block(6, &[&words.map(u32::to_le_bytes).concat(), frame.as_slice()].concat());
            }
            None => block(3, &[&len.to_le_bytes()[..], frame].concat()),
        }
    }
    std::fs::write(path, file).unwrap();
}

/// Returns frames at intervals of 10 to 14 µs.
fn some(count: usize) -> Vec<(u64, Vec<u8>)> {
    (0..count).map(|n| (1_700_000_000_000_000_000 + n as u64 * 10_000 + n as u64 % 5 * 1000, frame(n))).collect()
}

fn bytes(frames: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
    frames.iter().map(|(_, frame)| frame.clone()).collect()
}

/// For all ways of reading and waiting, the recording has the capture's frames, and the histograms count all of them.
#[test]
fn frames_arrive_byte_for_byte_and_in_order() {
    let folder = Folder::new("replay-bytes");
    let all = some(3000);
    let [pcap, pcapng, out] = ["in.pcap", "in.pcapng", "out.pcap"].map(|file| folder.path(file));
    write_timed(&pcap, &all);
    write_pcapng(&pcapng, &all);
    for file in [&pcap, &pcapng] {
        for options in
            [&[][..], &["--exact"], &["--top"], &["--speed", "2x"], &["--rate", "1Gbit"], &["--rate", "100k"]]
        {
            for memory in [&[][..], &["--memory", "0"]] {
                let port = format!("pcap:{out}?write");
                let (part, summary, said) = replay(0, &[&[file.as_str(), &port], options, memory].concat());
                assert!(frames(&out) == bytes(&all), "{file} {options:?} {memory:?}: {said}");
                assert_eq!((&part["given"], &summary["packets"]), (&json!(3000), &json!(3000)), "{summary}");
                assert_eq!(part["read"], if memory.is_empty() { "memory" } else { "ahead" }, "{summary}");
                assert_eq!(
                    (&part["files"][0]["frames"], &part["files"][0]["seconds"]),
                    (&json!(3000), &json!(0.029994))
                );
                if options == ["--top"] {
                    assert!(part.get("errors").is_none() && part["pace"] == "top", "{part}");
                } else {
                    let errors = &part["errors"];
                    assert_eq!(errors["times"]["count"], 3000, "{part}");
                    assert_eq!(errors["gaps"]["count"], 2999, "{part}");
                    assert!(errors["drift_microseconds"].is_number(), "{part}");
                    for quantile in ["median", "p99", "p99_9", "max"] {
                        assert!(errors["gaps"]["microseconds"][quantile].is_number(), "{part}");
                    }
                }
            }
        }
    }
}

/// At each speed and rate, no frame is sent before it is due.
#[test]
fn no_frame_is_early() {
    let folder = Folder::new("replay-times");
    let file = folder.path("in.pcap");
    // 0.2 s of frames of 1,250 bytes on the wire: 10 kbit.
    let all: Vec<_> = (0..201).map(|n| (n * 1_000_000, vec![n as u8; 1226])).collect();
    write_timed(&file, &all);
    for (options, least) in [
        (&[][..], 0.2),
        (&["--exact"], 0.2),
        (&["--speed", "4"], 0.05),
        (&["--speed", "0.5x", "--exact"], 0.4),
        (&["--rate", "2k"], 0.1),
        (&["--rate", "10Mbit"], 0.2),
        // The next pass starts after an average gap.
        (&["--loop", "2"], 0.401),
    ] {
        let begin = Instant::now();
        let (part, ..) = replay(0, &[&[file.as_str(), "null:"], options].concat());
        let seconds = part["last_sent_seconds"].as_f64().unwrap();
        assert!(seconds >= least, "{options:?}: {part}");
        assert!(begin.elapsed().as_secs_f64() >= least, "{options:?}: by another clock: {part}");
    }
}

/// Frames of several captures are sent in the order of their times, and frames with equal times in the order of the
/// files.
#[test]
fn captures_are_merged_by_time() {
    let folder = Folder::new("replay-merge");
    let [a, b, c, out] = ["a.pcap", "b.pcapng", "c.pcap", "out.pcap"].map(|file| folder.path(file));
    let at = |times: &[u64], from: usize| -> Vec<(u64, Vec<u8>)> {
        times.iter().enumerate().map(|(n, time)| (1_000_000_000 + time * 1000, frame(from + n))).collect()
    };
    let [first, second, third] = [at(&[50, 60, 90, 300], 0), at(&[10, 60, 200], 10), at(&[55, 20, 210], 20)];
    write_timed(&a, &first);
    write_pcapng(&b, &second);
    write_timed(&c, &third);
    let port = format!("pcap:{out}?write");
    // Frame 20, which is due at 55, is followed by 21, which has an earlier time.
    let order = [10, 0, 20, 21, 1, 11, 2, 12, 22, 3].map(frame).to_vec();
    for memory in ["1G", "0"] {
        let (part, _, said) = replay(0, &[&a, &port, "--with", &b, "--with", &c, "--memory", memory]);
        assert!(frames(&out) == order, "{said}");
        let begins: Vec<f64> = (0..3).map(|n| part["files"][n]["begins"].as_f64().unwrap()).collect();
        assert_eq!(begins, [0.00004, 0.0, 0.000045], "{part}");
        assert_eq!([0, 1, 2].map(|n| part["files"][n]["earlier"].as_u64().unwrap()), [0, 0, 1], "{part}");
        assert!(said.contains("1 frames have an earlier time than the frame before"), "{said}");
        let (part, ..) = replay(0, &[&a, &port, "--with", &b, "--with", &c, "--memory", memory, "--loop", "3"]);
        assert!(frames(&out) == [&order[..], &order, &order].concat(), "{part}");
    }
}

/// Frames without a time (simple packets of pcapng) are due right after the frame before. All others are due at their
/// times, relative to the first of them.
#[test]
fn frames_without_a_time_are_due_at_once() {
    let folder = Folder::new("replay-timeless");
    let [simple, mixed, timed, out] =
        ["simple.pcapng", "mixed.pcapng", "timed.pcap", "out.pcap"].map(|file| folder.path(file));
    let begin = 1_700_000_000_000_000_000;
    let at = |time: Option<u64>, number: usize| (time.map(|time| begin + time), frame(number));
    write_blocks(&simple, &[at(None, 0), at(None, 1)]);
    write_blocks(&mixed, &[at(None, 20), at(Some(2000), 21), at(None, 22), at(Some(4000), 23)]);
    write_timed(&timed, &[(begin + 1000, frame(10)), (begin + 3000, frame(11)), (begin + 50_000_000, frame(12))]);
    let port = format!("pcap:{out}?write");
    for (arguments, order, seconds) in [
        (&[&*simple, &port, "--with", &timed][..], &[0, 1, 10, 11, 12][..], 0.049),
        (&[&timed, &port, "--with", &simple], &[0, 1, 10, 11, 12], 0.049),
        (&[&mixed, &port, "--with", &timed], &[20, 10, 21, 22, 11, 23, 12], 0.049),
        (&[&mixed, &port], &[20, 21, 22, 23], 0.0),
    ] {
        for memory in ["1G", "0"] {
            let (part, _, said) = replay(0, &[arguments, &["--memory", memory, "--seconds", "20"]].concat());
            let order: Vec<Vec<u8>> = order.iter().map(|&number| frame(number)).collect();
            assert!(frames(&out) == order, "{arguments:?}: {said}");
            let sent = part["last_sent_seconds"].as_f64().unwrap();
            assert!(sent >= seconds, "{arguments:?}: {part}");
            assert!(part["files"].as_array().unwrap().iter().all(|file| file["earlier"] == 0), "{part}");
        }
    }
}

#[test]
fn loops_and_counts_are_exact() {
    let folder = Folder::new("replay-loops");
    let [file, out] = ["in.pcap", "out.pcap"].map(|file| folder.path(file));
    let all = some(100);
    write_timed(&file, &all);
    let port = format!("pcap:{out}?write");
    for memory in ["1G", "0"] {
        for (options, count) in [
            (&["--loop", "3"][..], 300),
            (&["--count", "42"], 42),
            (&["--loop", "0", "--count", "1k"], 1000),
            (&["--loop", "0", "--top", "--count", "12345"], 12345),
            (&["--loop", "2", "--count", "100"], 100),
        ] {
            let (part, summary, _) = replay(0, &[&[&file, &port, "--memory", memory], options].concat());
            assert_eq!((&part["given"], &summary["packets"]), (&json!(count), &json!(count)), "{options:?}: {summary}");
            let sent = frames(&out);
            assert!(
                sent.len() == count && sent.iter().enumerate().all(|(n, sent)| *sent == frame(n % 100)),
                "{options:?}"
            );
        }
        let (_, summary, said) = replay(0, &[&file, "null:", "--count", "101", "--memory", memory]);
        assert_eq!(summary["unreached"][0]["moved"], 100, "{summary}");
        assert!(said.contains("101 packets requested, 100 moved: bounded by the captures' end (see --loop)"), "{said}");
        replay(1, &[&file, "null:", "--count", "101", "--strict", "--memory", memory]);
    }
}

/// An endless replay continues until Ctrl-C or until the time is over, and its summary is complete.
#[test]
fn a_replay_without_end_is_ended() {
    let folder = Folder::new("replay-ends");
    let file = folder.path("in.pcap");
    write_timed(&file, &some(100));
    for memory in ["1G", "0"] {
        for exact in [&[][..], &["--exact"]] {
            let words = [&["replay", &file, "null:", "--loop", "0", "--json", "--memory", memory], exact].concat();
            let mut process = Process::start(&mut linerate(&words));
            process.await_output("seconds");
            process.stop();
            process.await_error("interrupted: ");
            let (code, rest) = process.ended();
            let found = summary(rest.as_bytes());
            assert_eq!((code, &found["interrupted"]), (Some(0), &json!(true)), "{rest}");
            let given = &found["replay"]["given"];
            assert!(given.as_u64().unwrap() > 100 && found["replay"]["errors"]["times"]["count"] == *given, "{found}");
        }
        let (part, summary, _) = replay(0, &[&file, "null:", "--loop", "0", "--seconds", "0.3", "--memory", memory]);
        assert_eq!((&part["given"], &part["overdue_microseconds"]), (&summary["packets"], &Value::Null), "{summary}");
    }
}

/// Frames are late because the processor did other work: here the thread was stopped.
#[test]
fn pauses_of_the_processor_are_told_apart() {
    const STOPS: usize = 3;
    let folder = Folder::new("replay-pauses");
    let file = folder.path("in.pcap");
    write_timed(&file, &some(100));
    let mut process = Process::start(&mut linerate(&[
        "replay",
        &file,
        "null:",
        "--loop",
        "0",
        "--exact",
        "--json",
        "--seconds",
        "60",
    ]));
    process.await_output("seconds");
    for _ in 0..STOPS {
        process.pause(true);
        let stopped = Instant::now();
        while stopped.elapsed().as_millis() < 20 {
            std::thread::yield_now();
        }
        process.pause(false);
        process.await_output("seconds");
    }
    process.stop();
    let said = process.await_error("the processor did other work");
    let (code, rest) = process.ended();
    let part = &summary(rest.as_bytes())["replay"];
    let pauses = &part["pauses"];
    // In rare cases the thread is stopped outside its loop.
    assert!(pauses["longest_microseconds"].as_f64().unwrap() >= 20_000.0, "{part}");
    assert!(pauses["count"].as_u64().unwrap() > 0 && pauses["late"].as_u64().unwrap() > 1000, "{part}");
    let counts = ["gaps", "undisturbed_gaps"].map(|what| part["errors"][what]["count"].as_u64().unwrap());
    let late = pauses["late"].as_u64().unwrap();
    // Frames that are late together have one gap before them, and one after them.
    assert!(counts[1] <= counts[0] - late && counts[1] >= counts[0].saturating_sub(2 * late), "{part}");
    assert_eq!(code, Some(0), "{said}");
}

/// A pipe is read while its writer is still writing.
#[test]
fn a_pipe_is_replayed_as_it_comes() {
    let folder = Folder::new("replay-pipe");
    let [file, pipe, out] = ["in.pcap", "pipe", "out.pcap"].map(|file| folder.path(file));
    let all = some(100);
    write_timed(&file, &all);
    expect(0, Command::new("mkfifo").arg(&pipe));
    refuses(2, &[&pipe, "null:", "--loop", "2"], &["is a pipe, which cannot be read again"]);
    let mut process = Process::start(&mut linerate(&["replay", &pipe, &format!("pcap:{out}?write"), "--json"]));
    process.await_error("read ahead");
    let content = std::fs::read(&file).unwrap();
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    let (first, rest) = content.split_at(content.len() / 2);
    writer.write_all(first).unwrap();
    // The rest is written once the run has begun.
    process.await_output("seconds");
    writer.write_all(rest).unwrap();
    drop(writer);
    let (code, output) = process.ended();
    let part = &summary(output.as_bytes())["replay"];
    assert_eq!((code, &part["given"]), (Some(0), &json!(100)), "{output}");
    assert!(part["late_not_read"].as_u64().unwrap() > 0, "{part}");
    assert!(frames(&out) == bytes(&all));
}

/// Frames that are not sent, or truncated, are counted, reported, and with --strict a failure.
#[test]
fn frames_that_are_not_sent_as_they_were_are_counted() {
    let folder = Folder::new("replay-frames");
    let [long, short] = ["long.pcap", "short.pcap"].map(|file| folder.path(file));
    write_frames(&long, &[vec![1; 60], vec![2; 3000], vec![3; 1514], vec![4; 1519]]);
    for memory in ["1G", "0"] {
        let (part, summary, said) = replay(0, &[&long, "sim:0?wire=sink", "--memory", memory]);
        assert_eq!(
            (&part["too_long"], &part["given"], &summary["packets"]),
            (&json!(2), &json!(2), &json!(2)),
            "{summary}"
        );
        assert!(said.contains("2 frames were not sent: too long for sim:0?wire=sink; use a larger --mtu"), "{said}");
        assert_eq!(part["errors"]["times"]["count"], 2, "{part}");
        let (.., said) = replay(1, &[&long, "sim:0?wire=sink", "--memory", memory, "--strict"]);
        assert!(said.contains("error: the frames: 4 due, 2 sent"), "{said}");
        let (part, ..) = replay(0, &[&long, "sim:0?wire=sink", "--memory", memory, "--mtu", "3000", "--strict"]);
        assert_eq!((&part["too_long"], &part["given"]), (&json!(0), &json!(4)), "{part}");
        // A file accepts any length.
        let out = folder.path("out.pcap");
        replay(0, &[&long, &format!("pcap:{out}?write"), "--memory", memory, "--strict"]);
        assert_eq!(frames(&out).iter().map(Vec::len).collect::<Vec<_>>(), [60, 3000, 1514, 1519]);
    }
    // Records of 70 of 100 bytes, of 80 of 80, and of 20 of 20.
    let mut file = std::fs::read(&long).unwrap()[..24].to_vec();
    for (there, whole) in [(70u32, 100u32), (80, 80), (20, 20)] {
        [0, 0, there, whole].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
        file.extend(vec![0x55; there as usize]);
    }
    std::fs::write(&short, file).unwrap();
    let out = folder.path("out.pcap");
    let (part, _, said) = replay(0, &[&short, &format!("pcap:{out}?write")]);
    assert_eq!((&part["snapped"], &part["given"]), (&json!(1), &json!(3)), "{part}");
    assert!(said.contains("1 frames were cut by the capture's snap length, and sent incomplete"), "{said}");
    assert_eq!(frames(&out).iter().map(Vec::len).collect::<Vec<_>>(), [70, 80, 60], "padded, as by a card");
}

/// Frames are late if the port has no room. If it never has room, no frame is sent, and the timing is reported as
/// missed.
#[test]
fn a_port_without_room_is_the_reason() {
    let folder = Folder::new("replay-room");
    let file = folder.path("in.pcap");
    write_timed(&file, &some(5000));
    let down = [file.as_str(), "sim:0?wire=none", "--seconds", "1"];
    let (part, summary, said) = replay(0, &down);
    assert_eq!((&summary["packets"], &part["given"]), (&json!(0), &json!(511)), "a ring: {summary}");
    assert!(
        part["late_no_room"].as_u64().unwrap() > 0 && part["overdue_microseconds"].as_f64().unwrap() > 1e4,
        "{part}"
    );
    for part in
        ["no link, because of wire=none", "had no room when they were due", "bounded by the link, which is down"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (.., said) = replay(1, &[&down[..], &["--strict"]].concat());
    assert!(said.contains("error: the captures' times: "), "{said}");
    let (.., said) = replay(1, &[&down[..], &["--strict", "--rate", "1M"]].concat());
    assert!(said.contains("error: the rate: "), "{said}");
}

/// A damaged capture is sent up to the damage, whose position is reported. It is not sent again.
#[test]
fn damaged_captures_have_their_place() {
    let folder = Folder::new("replay-damaged");
    let [good, cut, bad, out] = ["good.pcap", "cut.pcap", "bad.pcap", "out.pcap"].map(|file| folder.path(file));
    let all: Vec<_> = (0..20).map(|n| (n * 1000, frame(0))).collect();
    write_timed(&good, &all);
    let content = std::fs::read(&good).unwrap();
    std::fs::write(&cut, &content[..24 + 76 * 12 + 30]).unwrap();
    let mut malformed = content.clone();
    malformed[24 + 76 * 10 + 8..][..4].copy_from_slice(&10_000_000u32.to_le_bytes());
    std::fs::write(&bad, malformed).unwrap();
    let port = format!("pcap:{out}?write");
    for memory in ["1G", "0"] {
        for (file, count, place) in
            [(&cut, 12, "it is cut after frame 12"), (&bad, 10, "malformed at byte 784: a frame of 10000000 bytes")]
        {
            let (part, _, said) = replay(1, &[file, &port, "--memory", memory, "--loop", "3"]);
            assert!(said.contains(&format!("error: {file}: {place}")), "{said}");
            assert_eq!((&part["given"], frames(&out).len()), (&json!(count), count), "{part}");
            // Frames of other captures are still sent.
            let (part, ..) = replay(1, &[file, &port, "--with", &good, "--memory", memory]);
            assert_eq!(part["given"], count + 20, "{part}");
        }
    }
}

/// A replay ends even if times are extreme, or if no frame of a capture can be sent.
#[test]
fn strange_captures_come_to_their_end() {
    let folder = Folder::new("replay-strange");
    let [file, long] = ["in.pcapng", "long.pcap"].map(|file| folder.path(file));
    write_frames(&long, &[vec![1; 2000]]);
    for times in [[0, u64::MAX, 5], [u64::MAX, 0, 5], [1, u64::MAX / 2, u64::MAX]] {
        write_pcapng(&file, &times.map(|time| (time, frame(0))));
        for memory in ["1G", "0"] {
            for options in [&[][..], &["--exact"], &["--speed", "1e-300"], &["--rate", "1e-300"], &["--speed", "1e300"]]
            {
                for looped in ["1", "0"] {
                    let most = ["--seconds", "0.3", "--loop", looped, "--memory", memory];
                    let (part, summary, _) = replay(0, &[&[&file, "null:"], options, &most].concat());
                    assert!(
                        part["given"] == summary["packets"] && part["given"] != 0,
                        "{times:?} {options:?}: {summary}"
                    );
                }
            }
        }
    }
    for memory in ["1G", "0"] {
        for options in [&["--top"][..], &["--exact"], &[]] {
            let most = ["--seconds", "0.3", "--loop", "0", "--memory", memory];
            let (part, ..) = replay(0, &[&[&long, "sim:0?wire=sink"], options, &most].concat());
            assert!(part["given"] == 0 && part["too_long"].as_u64().unwrap() > 0, "{part}");
        }
    }
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let folder = Folder::new("replay-refused");
    let [good, empty, none, other, missing] =
        ["good", "empty", "none", "other", "missing"].map(|file| folder.path(file));
    write_timed(&good, &some(3));
    write_timed(&none, &[]);
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&other, "this is a text, and no capture").unwrap();
    for (file, why) in [
        (&missing, "cannot read it: No such file or directory"),
        (&empty, "it is too short for a capture file"),
        (&other, "it is neither pcap nor pcapng"),
        (&none, "no frame to send"),
    ] {
        refuses(1, &[file, "null:"], &[why, file]);
        refuses(1, &[file, "null:", "--memory", "0"], &[why, file]);
    }
    refuses(1, &[&good, "null:", "--with", &missing], &["cannot read it", &missing]);
    let itself = format!("pcap:{good}?write");
    for memory in ["1G", "0"] {
        refuses(1, &[&good, &itself, "--memory", memory], &["it is being read; choose another file"]);
    }
    assert_eq!(frames(&good).len(), 3, "it is whole");
    for (options, why) in [
        (&["--speed", "0"][..], "it must be a factor such as 1x or 0.5x"),
        (&["--speed", "-1"], "it must be a factor"),
        (&["--speed", "infx"], "it must be a factor"),
        (&["--rate", "0"], "a rate is positive"),
        (&["--loop", "-1"], "it must be a whole number, such as 10, or 0: for ever"),
        (&["--memory", "much"], "it must be a whole number of bytes"),
        (&["--count", "0"], "at least 1"),
        (&["--speed", "2", "--rate", "1M"], "cannot be used with"),
        (&["--speed", "2", "--top"], "cannot be used with"),
        (&["--rate", "1M", "--top"], "cannot be used with"),
        (&["--exact", "--top"], "cannot be used with"),
        (&["--queues", "2"], "replay uses one queue"),
        (&["--rate", "50%"], "null: has no line rate"),
    ] {
        refuses(2, &[&[good.as_str(), "null:"], options].concat(), &[why]);
    }
    refuses(2, &[&good], &["required arguments", "<PORT>"]);
    refuses(2, &[&good, &format!("pcap:{good}")], &["is opened for reading; to write to it: replay"]);
    refuses(2, &[&format!("pcap:{good}"), "null:"], &["is the name of a port; give the file instead: replay "]);
    refuses(2, &[&good, "eth0"], &["it does not begin with a kind"]);
    refuses(1, &[&good, "pcap:/dev/full?write", "--loop", "1000", "--top"], &["No space left on device"]);
}

/// The summary in text form has the errors, too.
#[test]
fn the_summary_has_a_table_of_errors() {
    let folder = Folder::new("replay-table");
    let file = folder.path("in.pcap");
    write_timed(&file, &some(100));
    let output = expect(0, &mut linerate(&["replay", &file, "null:", "--exact"]));
    let shown = text(&output.stdout);
    for part in ["median", "p99.9", "of times", "of gaps", "drift ", "replay: 100 packets"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("bounded by"), "a thread that waits is not at its limit: {shown}");
    assert!(text(&output.stderr).contains("100 frames in 994 µs, read into memory"), "{}", text(&output.stderr));
    let shown = text(&expect(0, &mut linerate(&["replay", &file, "null:", "--top"])).stdout);
    assert!(!shown.contains("of times"), "{shown}");
}

/// A replay edits frames as `linerate edit` does, and pads them.
#[test]
fn frames_are_edited_on_their_way() {
    let folder = captures("replay-edit");
    let [out, edited] = ["out.pcap", "edited.pcap"].map(|file| folder.path(file));
    let port = format!("pcap:{out}?write");
    for capture in ["udp", "tcp6", "snapped", "arp", "qinq"] {
        let file = folder.path(&format!("{capture}.pcap"));
        for options in [
            &["--map", "10.0.0.0/8=198.18.0.0/15", "--map", "2001:db8::/32=2001:2::/48"][..],
            &["--port", "80=8080", "--set", "ip(ttl=-1)/ip6(hop=-1)", "--push", "vlan(id=7)"],
            &["--pop", "--pop"],
            &["--mtu", "600", "--fit", "fragment"],
            &["--mtu", "600", "--fit", "truncate"],
        ] {
            expect(0, &mut linerate(&[&["edit", &file, &edited], options].concat()));
            for memory in ["1G", "0"] {
                let (part, ..) = replay(0, &[&[&file, &port, "--top", "--memory", memory], options].concat());
                let mut expected = frames(&edited);
                expected.iter_mut().for_each(|frame| frame.resize(frame.len().max(60), 0));
                assert!(frames(&out) == expected, "{capture}: {options:?}");
                assert_eq!(part["edited"]["frames"], part["files"][0]["frames"], "{part}");
                assert_eq!(part["given"], expected.len(), "{part}");
            }
        }
    }
}

/// Gaps of 53 years and of 0.4 s are shortened, so that the replay ends.
#[test]
fn gaps_are_shortened() {
    let folder = Folder::new("replay-gaps");
    let file = folder.path("in.pcap");
    let second = 1_000_000_000;
    let times = [0, 1_700_000_000 * second, 1_700_000_000 * second + 400_000_000, 1_700_000_000 * second + 400_001_000];
    write_timed(&file, &times.iter().enumerate().map(|(n, time)| (*time, frame(n))).collect::<Vec<_>>());
    for memory in ["1G", "0"] {
        for (options, least) in [
            (&["--max-gap", "50ms"][..], 0.100001),
            (&["--max-gap", "50ms", "--speed", "0.5"], 0.1),
            (&["--max-gap", "10ms", "--loop", "3", "--loop-pause", "40ms"], 0.14),
        ] {
            let (part, _, said) = replay(0, &[&[&file, "null:", "--memory", memory, "--strict"], options].concat());
            assert!(part["last_sent_seconds"].as_f64().unwrap() >= least, "{options:?}: {part}");
            assert_eq!((&part["shortened_gaps"], &part["unsent"]), (&json!(2), &json!(0)), "{part}");
            assert!(said.contains("2 gaps between frames were shortened (--max-gap)"), "{said}");
        }
    }
    refuses(2, &[&file, "null:", "--max-gap", "1"], &["it must be a time with its unit"]);
    refuses(2, &[&file, "null:", "--max-gap", "1s", "--top"], &["cannot be used with"]);
}

/// Each pass has other addresses, as with `tcpreplay --unique-ip`: the sum of both stays.
#[test]
fn passes_have_other_addresses() {
    let folder = captures("replay-unique");
    let [file, out] = ["tcp.pcap", "out.pcap"].map(|file| folder.path(file));
    for memory in ["1G", "0"] {
        let port = format!("pcap:{out}?write");
        replay(0, &[&file, &port, "--loop", "3", "--unique-ip", "--top", "--memory", memory]);
        let addresses: Vec<[u8; 8]> = frames(&out).iter().map(|frame| frame[26..34].try_into().unwrap()).collect();
        for (pass, addresses) in addresses.chunks(6).enumerate() {
            let (client, server) = ([10, 1, 2, 3 - pass as u8], [10, 200, 0, 7 + pass as u8]);
            assert_eq!(addresses[0], [client, server].concat()[..], "pass {pass}");
            assert_eq!(addresses[1], [server, client].concat()[..], "pass {pass}");
        }
        assert_eq!(addresses.len(), 18);
    }
}

/// A replay that ends before its captures reports it.
#[test]
fn frames_that_were_not_sent_are_reported() {
    let folder = Folder::new("replay-unsent");
    let [file, out] = ["in.pcap", "out.pcap"].map(|file| folder.path(file));
    write_timed(&file, &(0..3).map(|n| (n * 100_000_000_000, frame(n as usize))).collect::<Vec<_>>());
    for (memory, unsent, all) in [("1G", json!(2), "1 of 3 frames"), ("0", Value::Null, "1 frames")] {
        for (option, limit) in [("--seconds", "0.3"), ("--count", "1")] {
            let port = format!("pcap:{out}?write");
            let (part, _, said) = replay(0, &[&file, &port, option, limit, "--memory", memory]);
            assert_eq!((&part["given"], &part["unsent"]), (&json!(1), &unsent), "{part}");
            let note = format!("note: {option} ended the replay before the captures' end: {all} were sent");
            assert!(said.contains(&note), "{note}: {said}");
        }
        let (part, _, said) = replay(0, &[&file, "null:", "--count", "3", "--speed", "1e6", "--memory", memory]);
        assert!(part["unsent"] == 0 && !said.contains("ended the replay"), "{said}");
        // Without an end there is none to miss.
        let (.., said) = replay(0, &[&file, "null:", "--loop", "0", "--count", "5", "--top", "--memory", memory]);
        assert!(!said.contains("ended the replay"), "{said}");
    }
}

#[test]
fn standard_input_is_replayed() {
    let folder = Folder::new("replay-stdin");
    let [file, out] = ["in.pcap", "out.pcap"].map(|file| folder.path(file));
    let all = some(100);
    write_timed(&file, &all);
    for line in ["\"$1\" replay - \"pcap:$3?write\" <\"$2\"", "cat \"$2\" | \"$1\" replay - \"pcap:$3?write\""] {
        expect(0, Command::new("sh").args(["-c", line, "sh", env!("CARGO_BIN_EXE_linerate"), &file, &out]));
        assert!(frames(&out) == bytes(&all), "{line}");
    }
}

/// Frames leave through the ports that tcpprep chooses, in their order.
#[test]
fn frames_are_split_as_by_tcpprep() {
    let folder = captures("replay-split");
    let [a, b, cache] = ["a.pcap", "b.pcap", "cache"].map(|file| folder.path(file));
    let ports = [&a, &b].map(|file| format!("pcap:{file}?write"));
    for (their, rule, all) in [
        ("--mac=02:00:00:00:00:01", "mac=02:00:00:00:00:01", &["tcp", "arp", "udp6", "qinq"][..]),
        (
            "--cidr=10.1.0.0/16,[2001:db8:1::/48]",
            "prefix=10.1.0.0/16,2001:db8:1::/48",
            &["tcp", "udp6", "vlan", "icmp"],
        ),
        ("--port", "port", &["tcp", "udp", "vlan", "tcp6"]),
        // tcpprep 4.4.3 takes all hosts as clients if the packets are IPv6.
        ("--auto=first", "first-packet", &["tcp", "udp", "icmp"]),
        // A capture of one connection has the same client by its first SYN.
        ("--auto=first", "first-syn", &["tcp", "vlan"]),
    ] {
        for capture in all {
            let file = folder.path(&format!("{capture}.pcap"));
            expect(0, Command::new("tcpprep").args([their, "-i", &file, "-o", &cache]));
            let info = text(&expect(0, Command::new("tcpprep").arg(format!("--print-info={cache}"))).stdout);
            let sides: Vec<bool> =
                info.lines().filter_map(|line| Some(line.split_once("-> ")?.1 == "Primary")).collect();
            let mut whole = frames(&file);
            whole.iter_mut().for_each(|frame| frame.resize(frame.len().max(60), 0));
            assert_eq!(sides.len(), whole.len(), "{info}");
            let of = |side: bool| -> Vec<_> {
                whole.iter().zip(&sides).filter(|(_, is)| **is == side).map(|(frame, _)| frame.clone()).collect()
            };
            for memory in ["1G", "0"] {
                let arguments = [&file, &ports[0], &ports[1], "--split", rule, "--speed", "1000", "--memory", memory];
                let (part, _, said) = replay(0, &arguments);
                assert!(frames(&a) == of(true) && frames(&b) == of(false), "{capture}, {rule}: {sides:?} {said}");
                assert_eq!((&part["given"], &part["unsent"]), (&json!(whole.len()), &json!(0)), "{part}");
            }
        }
    }
    let file = folder.path("tcp.pcap");
    refuses(2, &[&file, "null:", "null:"], &["which port sends which frames?"]);
    refuses(2, &[&file, "null:", "--split", "port"], &["give a second one"]);
    refuses(2, &[&file, &ports[0], &ports[1], "--split", "side"], &["it must be mac="]);
}

/// The frames of both ports have one clock: each is sent at its time, and none before one of the other port that is due
/// earlier.
#[test]
fn both_ports_keep_the_times() {
    let folder = Folder::new("replay-two");
    let [file, a, b] = ["in.pcap", "a.pcapng", "b.pcapng"].map(|file| folder.path(file));
    let all: Vec<_> = (0..40u64)
        .map(|n| {
            let mut frame = frame(n as usize);
            frame[11] = 2 + (n % 2) as u8;
            (n * 10_000_000, frame)
        })
        .collect();
    write_timed(&file, &all);
    let ports = [&a, &b].map(|file| format!("pcap:{file}?write"));
    for exact in [&[][..], &["--exact"]] {
        for memory in ["1G", "0"] {
            let arguments = [&file, &ports[0], &ports[1], "--split", "mac=02:00:00:00:00:02", "--memory", memory];
            let (part, summary, _) = replay(0, &[&arguments[..], exact].concat());
            let sent: Vec<u64> = (0..2).map(|n| summary["ports"][n]["tx_packets"].as_u64().unwrap()).collect();
            assert_eq!(sent, [20, 20], "{summary}");
            assert_eq!(part["errors"]["times"]["count"], 40, "{part}");
            assert!(part["last_sent_seconds"].as_f64().unwrap() >= 0.39, "{part}");
        }
    }
}

/// `--count` and `--rate` apply to both ports together: the first frames of the captures, in their order.
#[test]
fn both_ports_have_one_count_and_one_rate() {
    let folder = Folder::new("replay-two-counted");
    let [file, a, b] = ["in.pcap", "a.pcap", "b.pcap"].map(|file| folder.path(file));
    let of = |n: usize| usize::from(n % 3 == 1 || n > 30);
    let all: Vec<(u64, Vec<u8>)> = (0..40)
        .map(|n| {
            let mut frame = frame(n);
            frame[11] = 2 + of(n) as u8;
            (n as u64 * 1_000_000, frame)
        })
        .collect();
    write_timed(&file, &all);
    let ports = [&a, &b].map(|file| format!("pcap:{file}?write"));
    for memory in ["1G", "0"] {
        for (options, count, unsent) in [
            (&["--count", "1"][..], 1, true),
            (&["--count", "17"], 17, true),
            (&["--count", "40", "--speed", "100"], 40, false),
            (&["--count", "77", "--loop", "2"], 77, true),
            (&["--count", "100", "--loop", "0", "--rate", "10k"], 100, false),
            (&["--rate", "1k", "--loop", "2"], 80, false),
            (&["--rate", "100Mbit"], 40, false),
        ] {
            let split = [&file, &ports[0], &ports[1], "--split", "mac=02:00:00:00:00:02", "--memory", memory];
            let (part, summary, said) = replay(0, &[&split[..], options, &["--strict"]].concat());
            for (port, sent) in [&a, &b].iter().enumerate() {
                let numbers = (0..count).map(|n| n % 40).filter(|n| of(*n) == port);
                let expected: Vec<Vec<u8>> = numbers.map(|n| all[n].1.clone()).collect();
                assert!(frames(sent) == expected, "{options:?}, port {port}: {summary}");
            }
            assert_eq!(part["given"], count, "{options:?}: {part}");
            assert_eq!(said.contains("note: --count ended the replay before the captures' end"), unsent, "{said}");
        }
        let rate = [&file, &ports[0], &ports[1], "--split", "mac=02:00:00:00:00:02", "--rate", "200"];
        let (part, ..) = replay(0, &[&rate[..], &["--memory", memory]].concat());
        assert!(part["last_sent_seconds"].as_f64().unwrap() >= 0.195, "{part}");
        assert_eq!((&part["pace"], &part["errors"]["times"]["count"]), (&json!("rate"), &json!(40)), "{part}");
    }
    // Long frames are chains of slots, whose number is not that of packets, also if the last port gets none of them.
    let mut long = frame(0);
    long.resize(8942, 7);
    write_timed(&file, &[(0, long.clone()), (1_000_000, long)]);
    let split = [&file, &ports[0], &ports[1], "--split", "mac=02:00:00:00:00:77", "--top"];
    let (_, summary, said) = replay(0, &split);
    assert!(!said.contains("not sent"), "{said}");
    assert!(summary["ports"].as_array().unwrap().iter().all(|port| port["unsent"].is_null()), "{summary}");
    let half = [&file, &ports[0], &ports[1], "--split", "port", "--rate", "50%"];
    refuses(2, &half, &["two ports have no common line rate"]);
}

/// The second port starts with the first, also if its first frame is later.
#[test]
fn both_ports_have_one_start() {
    let folder = Folder::new("replay-two-start");
    let [file, a, b] = ["in.pcap", "a.pcap", "b.pcap"].map(|file| folder.path(file));
    // 20 frames of the first port, 10 ms apart; those of the second follow.
    let all: Vec<(u64, Vec<u8>)> = (0..40)
        .map(|n| {
            let mut frame = frame(n);
            frame[11] = 2 + (n / 20) as u8;
            (n as u64 * 10_000_000, frame)
        })
        .collect();
    write_timed(&file, &all);
    let ports = [&a, &b].map(|file| format!("pcap:{file}?write"));
    for memory in ["1G", "0"] {
        replay(0, &[&file, &ports[0], &ports[1], "--split", "mac=02:00:00:00:00:02", "--memory", memory]);
        let mut bytes = Vec::new();
        // When the replay started at the latest, according to each port: at least one frame is nearly in time.
        let starts: Vec<u64> = [&a, &b]
            .iter()
            .map(|sent| {
                let mut reader = linerate::capture::Reader::open(sent.as_ref()).unwrap();
                let times = std::iter::from_fn(|| {
                    let record = reader.next(&mut bytes).unwrap()?;
                    let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
                    Some(record.nanoseconds.unwrap() - number * 10_000_000)
                });
                times.min().unwrap()
            })
            .collect();
        // Two starts would be 200 ms apart.
        assert!(starts[0].abs_diff(starts[1]) < 100_000_000, "{starts:?}");
    }
}
