//! Counts are exact, and rates are as requested, or the difference is reported.

mod kit;

use kit::{Folder, OutputTimeout, alone, expect, frames, linerate, summary, text, write_frames};
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn run(code: i32, arguments: &[&str]) -> (Value, String) {
    let output = expect(code, linerate(arguments).arg("--json"));
    (summary(&output.stdout), text(&output.stderr))
}

#[test]
fn a_count_is_exact() {
    for count in [1, 31, 33, 1000] {
        let text = count.to_string();
        let (forwarded, _) = run(0, &["fwd", "sim:0", "sim:1", "--count", &text, "--seconds", "60"]);
        let sent: u64 = [0, 1].map(|port| number(&forwarded["ports"][port]["tx_packets"])).iter().sum();
        assert_eq!((number(&forwarded["packets"]), sent), (count, count), "{forwarded}");
        assert_eq!(number(&forwarded["lost"]), 0, "frames that stay in the card are not lost: {forwarded}");
        let (received, _) = run(0, &["sink", "sim:0", "--count", &text, "--seconds", "60"]);
        assert_eq!(number(&received["packets"]), count, "{received}");
        let (received, _) = run(0, &["filter", "sim:0", "--drop", "tcp", "--count", &text, "--seconds", "60"]);
        assert_eq!(number(&received["packets"]), count, "{received}");
        let (sent, _) = run(0, &["gen", "null:", "--count", &text, "--seconds", "60"]);
        assert_eq!((number(&sent["packets"]), number(&sent["ports"][0]["tx_packets"])), (count, count), "{sent}");
    }
}

/// Frames that arrive while the run is prepared count in the first second's rate.
#[test]
fn the_seconds_have_all_packets() {
    for _ in 0..3 {
        let fwd = ["fwd", "sim:0?count=1001", "sim:1?wire=sink", "--seconds", "1.5", "--json"];
        let output = text(&expect(0, &mut linerate(&fwd)).stdout);
        let ticks = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let (mut last, mut packets) = (0.0, 0.0);
        for tick in ticks.filter(|tick| tick.get("summary").is_none()) {
            let now = tick["seconds"].as_f64().unwrap();
            packets += tick["ports"][0]["rx"]["mpps"].as_f64().unwrap() * 1e6 * (now - last);
            last = now;
        }
        // The printed times have one decimal.
        assert!((900.0..1100.0).contains(&packets), "{output}");
    }
}

/// Several threads share the count, chains count once, and packets that the rules drop do not count.
#[test]
fn a_count_is_exact_with_queues_chains_and_rules() {
    let flows = ["fwd", "sim:a?flows=64", "sim:b?flows=64", "--queues", "4", "--count", "1003", "--seconds", "60"];
    let (forwarded, _) = run(0, &flows);
    assert_eq!((number(&forwarded["packets"]), number(&forwarded["lost"])), (1003, 0), "{forwarded}");
    let jumbo = ["fwd", "sim:a?size=9000&wire=traffic", "sim:b?wire=sink", "--mtu", "9000", "--count", "35"];
    let (forwarded, _) = run(0, &[&jumbo[..], &["--seconds", "60"]].concat());
    assert_eq!((number(&forwarded["packets"]), number(&forwarded["ports"][1]["tx_packets"])), (35, 35), "{forwarded}");
    // Slots of packets that the port drops count as given to it, too.
    let long = ["fwd", "sim:0?size=3000&count=100&mtu=9000", "sim:1?wire=sink", "--seconds", "1"];
    let (dropped, _) = run(1, &long);
    assert_eq!(dropped["ports"][0]["rx_slots"], dropped["ports"][1]["tx_slots"], "{dropped}");
    let folder = Folder::new("chains");
    let (big, out) = (folder.path("big.pcap"), folder.path("out.pcap"));
    write_frames(&big, &vec![vec![0x55; 9000]; 3]);
    let (from, to) = (format!("pcap:{big}?loop=0"), format!("pcap:{out}?write"));
    let (forwarded, _) = run(0, &["fwd", &from, &to, "--count", "7", "--seconds", "60"]);
    assert_eq!((number(&forwarded["packets"]), frames(&out).len()), (7, 7), "{forwarded}");
    let some = ["fwd", "sim:a?flows=4", "sim:b?wire=sink", "--only", "from-port:1025", "--count", "100"];
    let (forwarded, _) = run(0, &[&some[..], &["--seconds", "60"]].concat());
    assert_eq!(number(&forwarded["ports"][1]["tx_packets"]), 100, "{forwarded}");
    assert!(number(&forwarded["filtered"]) >= 297, "{forwarded}");
}

#[test]
fn counts_have_prefixes() {
    for (text, count) in [("2k", 2000), ("1M", 1_000_000), ("0.001M", 1000), ("1e3", 1000), ("1K", 1000)] {
        let (sent, _) = run(0, &["gen", "null:", "--count", text, "--seconds", "60"]);
        assert_eq!(number(&sent["packets"]), count, "{sent}");
    }
    for (text, why) in [
        ("0", "at least 1"),
        ("-1", "whole number"),
        ("1.5", "whole number"),
        ("1e-1", "whole number"),
        ("1e99", "whole number"),
        ("1T", "whole number"),
    ] {
        for command in [&["gen", "null:"][..], &["sink", "null:"], &["fwd", "null:", "null:"], &["filter", "null:"]] {
            let output = expect(2, linerate(command).args(["--count", text]));
            assert!(kit::text(&output.stderr).contains(why), "{command:?} {text}");
        }
    }
}

/// Returns a frame of UDP over IPv4 with right checksums.
fn checked_frame(payload: usize) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        !(((sum & 0xFFFF) + (sum >> 16)) as u16)
    };
    let (whole, udp) = ((28 + payload) as u16, (8 + payload) as u16);
    let mut frame = [vec![2; 12], vec![8, 0, 0x45, 0], whole.to_be_bytes().to_vec(), vec![0; 4]].concat();
    frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53]);
    frame.extend(udp.to_be_bytes());
    frame.extend([0; 2]);
    frame.extend(vec![7; payload]);
    let header = sum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&header);
    let pseudo = [&frame[26..34], &[0, 17], &frame[38..40], &frame[34..]].concat();
    let transport = sum(&pseudo).to_be_bytes();
    frame[40..42].copy_from_slice(&transport);
    frame
}

/// A card and the software give the same verdicts on checksums. A wrong checksum is a failure.
#[test]
fn a_sink_verifies_checksums() {
    let folder = Folder::new("checksums");
    let [good, bad] = ["good.pcap", "bad.pcap"].map(|name| folder.path(name));
    let right: Vec<Vec<u8>> = (0..100).map(|n| checked_frame(20 + 13 * n)).collect();
    let (mut wrong, mut header, mut silent, mut fragment) =
        (checked_frame(100), checked_frame(100), checked_frame(100), checked_frame(100));
    wrong[90] ^= 1;
    header[22] ^= 1;
    silent[40..42].fill(0);
    (fragment[20], fragment[24]) = (0x20, fragment[24].wrapping_sub(0x20));
    let others = [wrong, header, silent, fragment, [vec![0xFF; 12], vec![8, 6], vec![0; 46]].concat()];
    write_frames(&good, &right);
    write_frames(&bad, &[&right[..], &others].concat());
    for port in ["pcap:FILE", "sim:0?wire=pcap:FILE"] {
        let count = |file: &str, code, verdicts: [u64; 4]| {
            let port = port.replace("FILE", file);
            let (sunk, _) = run(code, &["sink", &port, "--checksums", "--seconds", "1"]);
            let counts = &sunk["sink"]["checksums"];
            let counts = ["good", "bad", "left", "unknown"].map(|verdict| number(&counts[verdict]));
            assert_eq!(counts, verdicts, "{sunk}");
        };
        count(&good, 0, [100, 0, 0, 0]);
        count(&bad, 1, [100, 2, 0, 3]);
    }
}

/// Exactly the frames that the port drops are lost, even after the last one that arrives.
#[test]
fn what_a_port_dropped_is_lost_for_a_sink() {
    for (port, cause, least) in [
        ("faulty:sim:0?drop=100%&count=1k&size=64", "injected", 1000),
        ("sim:0?size=9000&count=1k", "oversize", 1000),
        ("faulty:sim:0?drop=10%&count=1k", "injected", 60),
    ] {
        let (sunk, _) = run(1, &["sink", port, "--seconds", "0.5"]);
        assert_eq!(sunk["ports"][0]["drops"][cause], sunk["lost"], "{sunk}");
        assert!(number(&sunk["lost"]) >= least, "{sunk}");
    }
    // More than a single processor can receive.
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", "0", env!("CARGO_BIN_EXE_linerate"), "sink", "sim:0?rate=14M", "--seconds", "0.5", "--json"]);
    let sunk = summary(&expect(1, &mut command).stdout);
    let port = &sunk["ports"][0];
    assert_eq!((&sunk["lost"], &sunk["packets"]), (&port["drops"]["no_descriptor"], &port["rx_packets"]), "{sunk}");
    assert!(number(&sunk["lost"]) > 0, "{sunk}");
}

/// Frames that a card sends but the port behind its wire does not are reported.
#[test]
fn what_a_wire_does_not_send_is_reported() {
    let (sent, said) = run(0, &["gen", "sim:0?wire=faulty:null:?drop=100%", "--count", "1000", "--seconds", "60"]);
    assert_eq!(sent["ports"][0]["tx_packets"], 1000, "{sent}");
    assert!(said.contains("note: sim:0: the card sent 1000 frames, but the port behind its wire did not"), "{said}");
    assert!(said.contains("behind its wire did not: 1000 injected faults"), "{said}");
    assert_eq!(sent["ports"][0]["unsent_by_wire"], serde_json::json!({"injected": 1000}), "{sent}");
    let full = ["gen", "sim:0?wire=pcap:/dev/full?write", "--size", "2000", "--count", "1000", "--seconds", "60"];
    let (sent, said) = run(1, &full);
    assert!(said.contains("its wire did not: 1000 refused by this port\n"), "a file has no longest frame: {said}");
    assert_eq!(sent["ports"][0]["unsent_by_wire"], serde_json::json!({"refused": 1000}), "{sent}");
    let (_, said) = run(0, &["gen", "sim:0?wire=null:", "--count", "1000", "--seconds", "60"]);
    assert!(!said.contains("behind its wire"), "{said}");
}

/// A full disk is given as the reason why a count is not reached.
#[test]
fn a_count_that_is_not_reached_has_its_reason() {
    let (sent, said) = run(1, &["gen", "pcap:/dev/full?write", "--count", "100k", "--seconds", "60"]);
    let bound = sent["unreached"][0]["bounded_by"].as_str().unwrap_or_default();
    assert!(bound.contains("No space left on device") && !said.contains("too long"), "{sent} {said}");
}

/// A run whose source has ended has no bottleneck.
#[test]
fn what_is_at_its_end_has_no_bound() {
    let (forwarded, _) = run(0, &["fwd", "sim:0?count=1000", "sim:1?wire=sink", "--seconds", "1"]);
    assert_eq!(
        (number(&forwarded["packets"]), &forwarded["bounded_by"]),
        (1000, &serde_json::Value::Null),
        "{forwarded}"
    );
    let output = expect(0, &mut linerate(&["latency", "l{0", "l}0", "--rate", "1k", "--seconds", "0.5"]));
    assert!(!text(&output.stderr).contains("the link"), "{}", text(&output.stderr));
    let output =
        expect(1, &mut linerate(&["latency", "sim:0?wire=none", "sim:1?wire=none", "--rate", "10k", "--seconds", "1"]));
    assert!(text(&output.stderr).contains("bounded by the link, which is down"), "{}", text(&output.stderr));
}

/// A corrupted frame counts as arrived.
#[test]
fn corrupted_frames_are_not_lost() {
    let (sunk, _) = run(1, &["sink", "faulty:sim:0?corrupt=10%&count=10k", "--count", "9999", "--seconds", "60"]);
    assert!(damaged(&sunk) > 800, "{sunk}");
    // Frames with a destroyed stamp have no sequence number.
    assert!(number(&sunk["lost"]) < 100, "{sunk}");
    let (sunk, _) = run(1, &["sink", "faulty:sim:0?corrupt=10%&count=10k", "--seconds", "1"]);
    assert_eq!((number(&sunk["packets"]), number(&sunk["lost"])), (10_000, 0), "{sunk}");
}

/// Returns the number of frames whose payload or headers differ from those sent.
fn damaged(summary: &Value) -> u64 {
    number(&summary["corrupted"]) + number(&summary["changed"]["frames"])
}

/// A card without a link accepts packets into its ring, but sends none.
#[test]
fn what_a_card_has_not_sent_is_not_moved() {
    let (sent, said) = run(0, &["gen", "sim:0?wire=none", "--count", "100", "--seconds", "1"]);
    assert_eq!((number(&sent["packets"]), number(&sent["ports"][0]["tx_packets"])), (0, 0), "{sent}");
    let line = "the count: 100 packets requested, 0 moved: bounded by the link, which is down";
    assert!(said.contains(line), "{said}");
    assert_eq!(sent["unreached"][0]["bounded_by"], "the link, which is down", "{sent}");
}

/// Frames that arrive after the end of a run neither prolong it nor lower its rate.
#[test]
fn rates_are_those_of_the_time_of_the_run() {
    // Two threads on one processor, so that frames queue up in the models.
    let mut command = std::process::Command::new("taskset");
    let ports = ["fwd", "sim:0?rate=10M", "sim:1?rate=10M", "--ring", "64", "--seconds", "0.5", "--json"];
    let output = command.args(["-c", "0", env!("CARGO_BIN_EXE_linerate")]).args(ports).output_in_time().unwrap();
    let forwarded = summary(&output.stdout);
    let number = |key: &str| forwarded[key].as_f64().unwrap();
    assert!(number("active_seconds") <= number("seconds"), "{forwarded}");
    assert!(number("after_end") > 0.0, "{forwarded}");
    let rate = (number("packets") - number("after_end") - number("first_batch")) / number("active_seconds") / 1e6;
    assert!((number("mpps") / rate - 1.0).abs() < 1e-9, "{forwarded}");
}

/// The time of a thousand packets is very short, and does not last until the main thread's next check.
#[test]
fn rates_are_those_from_the_first_packet_to_the_last() {
    // The thread may lose its processor meanwhile, but not every time.
    let quick = (0..50).map(|_| run(0, &["gen", "null:", "--count", "1000", "--seconds", "60"]).0);
    let mut quick = quick.filter(|sent| sent["active_seconds"].as_f64().unwrap() < 0.05);
    let sent = quick.next().expect("one of them is not interrupted");
    assert!(sent["mpps"].as_f64().unwrap() > 0.015, "1,000 packets in the 0.1 s of a look are 0.01 Mpps: {sent}");
    let (paced, _) = run(0, &["gen", "null:", "--rate", "1k", "--count", "500", "--seconds", "60"]);
    let seconds = paced["active_seconds"].as_f64().unwrap();
    assert!(seconds >= 0.4, "{paced}");
    assert!(paced["mpps"].as_f64().unwrap() <= 0.00125, "{paced}");
    for sent in [sent, paced] {
        let number = |key: &str| sent[key].as_f64().unwrap();
        let rate = (number("packets") - number("first_batch")) / number("active_seconds") / 1e6;
        assert!((number("mpps") / rate - 1.0).abs() < 1e-9, "one measurement: {sent}");
    }
    // A single packet or a single batch has no duration.
    for count in ["1", "32"] {
        let one = ["gen", "null:", "--count", count, "--seconds", "60"];
        let (sent, _) = run(0, &one);
        assert_eq!((&sent["mpps"], &sent["active_seconds"]), (&Value::Null, &0.0.into()), "{sent}");
        let shown = text(&expect(0, &mut linerate(&one)).stdout);
        assert!(shown.contains(" cycles/packet") && !shown.contains("packets/s"), "{shown}");
    }
    // A small rate has a unit for it.
    let shown = text(&expect(0, &mut linerate(&["gen", "null:", "--rate", "20", "--count", "5"])).stdout);
    assert!(shown.contains(" packets/s, ") && shown.contains("rx pps") && !shown.contains("e-"), "{shown}");
}

#[test]
fn a_rate_that_is_not_reached_is_reported() {
    // No processor can generate this many packets per second.
    let much = ["gen", "null:", "--rate", "999M", "--seconds", "0.5"];
    let (sent, said) = run(0, &much);
    assert_eq!(sent["unreached"][0]["asked_mpps"], 999.0, "{sent}");
    assert!(said.contains("999M packets/s requested, ") && said.contains("bounded by the sending threads"), "{said}");
    let (_, said) = run(1, &[&much[..], &["--strict"]].concat());
    assert!(said.contains("error: the rate: "), "{said}");
    for (code, strict, said) in [(0, "--batch=32", "note: the rate: "), (1, "--strict", "error: the rate: ")] {
        let latency = ["latency", "rate{1", "rate}1", "--rate", "999M", "--seconds", "0.3", strict];
        let output = expect(code, &mut linerate(&latency));
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
    // One packet every two seconds.
    let (sent, _) = run(0, &["gen", "null:", "--rate", "0.5", "--count", "1", "--seconds", "60", "--strict"]);
    assert!(sent["packets"] == 1 && sent["seconds"].as_f64() > Some(1.9), "{sent}");
    // Two packets are due, and one of them may be in flight.
    let (sent, said) = run(0, &["gen", "null:", "--rate", "4", "--seconds", "0.5", "--strict"]);
    assert_eq!((&sent["unreached"], said.contains(" requested, ")), (&serde_json::json!([]), false), "{said}");
    // A port that stalls, even if its first packets were sent quickly.
    let stalls = |port: &str| {
        let (sent, said) = run(1, &["gen", port, "--rate", "10M", "--seconds", "0.5", "--strict"]);
        assert_eq!(sent["unreached"][0]["what"], "the rate", "{sent}");
        assert!(sent["unreached"][0]["sent_mpps"].as_f64().unwrap() < 0.1, "{sent}");
        assert!(said.contains("bounded by the link, which is down"), "{said}");
    };
    let stalls_before_its_count = |port: &str| {
        let (sent, said) = run(0, &["gen", port, "--count", "1M", "--seconds", "0.5"]);
        assert_eq!(sent["unreached"][0]["asked"], 1_000_000, "{sent}");
        assert!(said.contains("note: the count: 1000000 packets requested, "), "{said}");
    };
    let stalls_strictly = |port: &str| drop(run(1, &["gen", port, "--count", "1M", "--seconds", "0.5", "--strict"]));
    // At the same time: each waits 10 s for its link.
    std::thread::scope(|scope| {
        for port in ["x{1", "sim:0?wire=none"] {
            scope.spawn(move || stalls(port));
            scope.spawn(move || stalls_before_its_count(port));
            scope.spawn(move || stalls_strictly(port));
        }
    });
    // A count that is moved very quickly is judged only if it is large enough.
    let (sent, _) = run(0, &["gen", "null:", "--rate", "999M", "--count", "10k", "--seconds", "60"]);
    assert_eq!(sent["unreached"][0]["asked_mpps"], 999.0, "{sent}");
    let (sent, _) = run(0, &["gen", "null:", "--rate", "999M", "--count", "9999", "--seconds", "60"]);
    assert_eq!(sent["unreached"], serde_json::json!([]), "{sent}");
    // The wires of three models, whose thread shares one processor with that of the run.
    let mut three = std::process::Command::new("taskset");
    three.args(["-c", "0", env!("CARGO_BIN_EXE_linerate"), "fwd", "sim:0?rate=14.8M", "sim:1?rate=14.8M"]);
    three.args(["--rest", "sim:2?rate=14.8M", "--drop", "icmp", "--seconds", "0.5", "--strict", "--json"]);
    let output = expect(1, &mut three);
    let (sunk, said) = (summary(&output.stdout), text(&output.stderr));
    assert_eq!(sunk["unreached"][0]["what"], "sim:0's wire", "{sunk}");
    assert!(
        said.contains("sim:0's wire: 14.8M packets/s requested, ") && said.contains("the model's thread: "),
        "{said}"
    );
}

/// The rates of wires are interpreted like those of senders.
#[test]
fn rates_of_wires_are_understood_and_shown() {
    for (rate, shown) in [
        ("50%", "sim:0: 5 Gbit/s = 7.44M packets/s of 64 bytes"),
        ("20G", "note: 20 Gbit/s is above the line rate (10 Gbit/s = 14.88M packets/s of 64 bytes)"),
    ] {
        let (sunk, said) = run(0, &["sink", &format!("sim:0?rate={rate}&count=100"), "--seconds", "0.3", "--strict"]);
        assert_eq!((said.contains(shown), said.contains(" requested, ")), (true, false), "{rate}: {said}");
        assert_eq!(sunk["unreached"], serde_json::json!([]), "{sunk}");
    }
}

/// Exactly the frames that enter a pipe leave it.
#[test]
fn latency_over_a_pipe_loses_nothing() {
    let output = expect(0, linerate(&["latency", "X{0", "X}0", "--rate", "100k,1M", "--seconds", "0.3"]).arg("--json"));
    let loads = summary(&output.stdout)["loads"].clone();
    for load in loads.as_array().unwrap() {
        assert_eq!(load["lost"], 0, "{load}");
        assert!(load["arrived_mpps"].as_f64() <= load["offered_mpps"].as_f64(), "{load}");
        let seconds = load["seconds"].as_f64().unwrap();
        for (count, rate) in [("sent", "offered_mpps"), ("arrived", "arrived_mpps")] {
            let of_count = number(&load[count]) as f64 / seconds / 1e6;
            assert!((load[rate].as_f64().unwrap() / of_count - 1.0).abs() < 1e-9 && seconds >= 0.3, "{load}");
        }
    }
    let output = expect(2, &mut linerate(&["latency", "sim:0?wire=sink", "sim:1"]));
    assert!(text(&output.stderr).contains("sim:1: its wire generates frames"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "", "no table begins before an error");
    let output =
        expect(1, linerate(&["latency", "sim:0", "sim:1", "--rate", "0.01", "--seconds", "0.3"]).arg("--json"));
    assert!(
        !text(&output.stderr).contains(" requested, ") && summary(&output.stdout)["loads"][0]["unreached"].is_null()
    );
}

#[test]
fn latency_shows_the_rate_that_was_sent() {
    // Above the line rate, and thus at full speed.
    let arguments = ["latency", "sim:l0", "sim:l1", "--rate", "1G,2k", "--size", "1518", "--seconds", "0.5"];
    let output = expect(0, linerate(&arguments).arg("--json"));
    let loads = summary(&output.stdout)["loads"].clone();
    let said = text(&output.stderr);
    assert!(said.contains("sim:l0: 1 Gbit/s = 81.27k packets/s of 1518 bytes"), "{said}");
    for load in loads.as_array().unwrap() {
        let (asked, sent) = (load["asked_mpps"].as_f64().unwrap(), load["offered_mpps"].as_f64().unwrap());
        assert!(sent > 0.0 && sent <= asked * 1.1 + 0.001, "{load}");
        let reached = sent >= asked * 0.98 - 0.001;
        assert!(reached || !load["unreached"].is_null(), "{load}");
        for key in ["waited_percent", "stolen_percent"] {
            assert!(load["processors"][key].is_number(), "{load}");
        }
    }
    let output = expect(0, &mut linerate(&arguments));
    for line in text(&output.stdout).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text(&output.stdout).contains(" µs") || text(&output.stdout).contains(" ms"));
}

/// Two threads that poll on one processor delay each other, so a warning says that the times are not those of a
/// forwarder.
#[test]
fn processors_that_are_taken_away_are_reported() {
    let on_one = |arguments: &[&str]| {
        let mut command = std::process::Command::new("taskset");
        command.args(["-c", "0", env!("CARGO_BIN_EXE_linerate")]).args(arguments).arg("--json");
        let output = expect(0, &mut command);
        (summary(&output.stdout), text(&output.stderr))
    };
    let (forwarded, said) = on_one(&["fwd", "sim:0", "sim:1", "--seconds", "1"]);
    assert_eq!(forwarded["processors"]["taken_away"], true, "{forwarded}");
    assert_eq!(forwarded["processors"]["used"], serde_json::json!([0]), "{forwarded}");
    assert!(said.contains("2 threads poll on one processor, and have to share"), "{said}");
    assert!(said.contains("processors were taken away: a thread waited for one for "), "{said}");
    let (measured, _) = on_one(&["latency", "sim:0", "sim:1", "--rate", "1k", "--seconds", "1"]);
    assert_eq!(measured["loads"][0]["processors"]["taken_away"], true, "{measured}");
    let folder = Folder::new("taken");
    let (report, _) = on_one(&["bench", "--quick", "--only", "parts", "--out", &folder.path("report")]);
    let warning = report["experiments"][0]["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("processors were taken away"), "{report}");
    let page = std::fs::read_to_string(folder.path("report/index.html")).unwrap();
    assert!(page.contains("Note: processors were taken away"), "{page}");
}

#[test]
fn rates_are_understood_and_shown() {
    for (rate, shown) in [
        ("10G", "sim:0: 10 Gbit/s = 14.88M packets/s of 64 bytes"),
        ("10Gbit", "sim:0: 10 Gbit/s = 14.88M packets/s of 64 bytes"),
        ("10gbit", "sim:0: 10 Gbit/s = 14.88M packets/s of 64 bytes"),
        ("50%", "sim:0: 5 Gbit/s = 7.44M packets/s of 64 bytes"),
        ("20G", "20 Gbit/s is above the line rate (10 Gbit/s = 14.88M packets/s of 64 bytes): using full speed"),
        ("1e8", "100M packets/s is above the line rate"),
    ] {
        let (_, said) = run(0, &["gen", "sim:0?wire=sink", "--rate", rate, "--count", "10", "--seconds", "60"]);
        assert!(said.contains(shown), "{rate}: {said}");
    }
    let (_, said) = run(0, &["gen", "null:", "--rate", "1e6", "--count", "10", "--seconds", "60"]);
    assert!(!said.contains('='), "packets are understood as they are: {said}");
    for (rate, why) in [
        ("-1", "a rate is positive"),
        ("0", "a rate is positive"),
        ("150%", "at most 100%"),
        ("50%", "null: has no line rate"),
        ("10Gbyte", "is not a rate"),
    ] {
        let output = expect(2, &mut linerate(&["gen", "null:", "--rate", rate, "--count", "10"]));
        let said = text(&output.stderr);
        assert!(said.contains(why) && !said.contains("tip"), "{rate}: {said}");
    }
}

/// A run ends when its file is read to the end. A pipe without data neither ends the run nor prevents its end.
#[test]
fn a_run_ends_with_its_captures() {
    let folder = Folder::new("ends");
    let (first, second, out) = (folder.path("a.pcap"), folder.path("b.pcap"), folder.path("out.pcap"));
    write_frames(&first, &vec![vec![0x55; 60]; 100]);
    write_frames(&second, &vec![vec![0xAA; 60]; 7]);
    let begin = std::time::Instant::now();
    let (sunk, said) = run(0, &["sink", &format!("pcap:{first}")]);
    assert!(said.contains("all ports have reached their end: no more packets will be received"), "{said}");
    assert_eq!(number(&sunk["packets"]), 100);
    let written = format!("recorded:pcap:{second}?to={out}");
    let (forwarded, _) = run(0, &["fwd", &format!("faulty:pcap:{first}"), &written]);
    assert_eq!(number(&forwarded["packets"]), 107, "{forwarded}");
    assert_eq!(frames(&out).len(), 107);
    assert!(begin.elapsed().as_secs() < 60, "no time was given");

    let fifo = folder.path("fifo");
    expect(0, std::process::Command::new("mkfifo").arg(&fifo));
    let (sunk, _) = run(0, &["sink", &format!("pcap:{fifo}"), "--seconds", "0.3"]);
    assert_eq!(number(&sunk["packets"]), 0, "no writer has come");
    let writer = std::thread::spawn({
        let (fifo, bytes) = (fifo.clone(), std::fs::read(&first).unwrap());
        move || {
            use std::io::Write;
            let mut file = std::fs::File::options().write(true).open(fifo).unwrap();
            // The data ends within the last record.
            file.write_all(&bytes[..bytes.len() - 1]).unwrap();
        }
    });
    let output = expect(1, &mut linerate(&["sink", &format!("pcap:{fifo}"), "--json"]));
    assert_eq!(number(&summary(&output.stdout)["packets"]), 99);
    let said = text(&output.stderr);
    // 99 records of 76 bytes, after the file's header.
    assert!(
        said.contains("it is cut after frame 99, in the record at byte 7548") && !said.contains("head -c"),
        "{said}"
    );
    writer.join().unwrap();
}

/// A pcapng file with `whole` Ethernet frames, `others` of another interface, and `cut` truncated ones.
fn pcapng(whole: usize, others: usize, cut: usize) -> Vec<u8> {
    let block = |kind: u32, words: &[u32], data: &[u8]| {
        let len = 12 + 4 * words.len() as u32 + data.len() as u32;
        let words = [&[kind, len], words].concat().into_iter().flat_map(u32::to_le_bytes);
        words.chain(data.iter().copied()).chain(len.to_le_bytes()).collect::<Vec<u8>>()
    };
    let frame = |interface: u32, original: u32| block(6, &[interface, 0, 0, 60, original], &[0x55; 60]);
    let mut file = block(0x0A0D_0D0A, &[0x1A2B_3C4D, 1, u32::MAX, u32::MAX], &[]);
    file.extend([block(1, &[1, 0], &[]), block(1, &[113, 0], &[])].concat());
    (0..others).for_each(|_| file.extend(frame(1, 60)));
    (0..whole).for_each(|_| file.extend(frame(0, 60)));
    (0..cut).for_each(|_| file.extend(frame(0, 1514)));
    file
}

/// Packets of a capture that are not received, and truncated frames, are counted.
#[test]
fn a_capture_says_what_it_has_not() {
    let folder = Folder::new("defects");
    let path = folder.path("x.pcapng");
    std::fs::write(&path, pcapng(5, 12, 3)).unwrap();
    let second = serde_json::json!({"not_ethernet": 24, "too_short": 0, "surplus": 0, "snapped": 6});
    let first = serde_json::json!({"not_ethernet": 12, "too_short": 0, "surplus": 0, "snapped": 3});
    for (words, counts) in [
        (format!("sink pcap:{path}"), &first),
        (format!("sink faulty:pcap:{path}?loop=2"), &second),
        (format!("fwd pcap:{path} null:"), &first),
        (format!("sink sim:0?wire=pcap:{path} --count 8 --seconds 60"), &first),
        (format!("fwd sim:0?wire=pcap:{path}?loop=2 null: --count 16 --seconds 60"), &second),
    ] {
        let (summary, said) = run(0, &words.split(' ').collect::<Vec<_>>());
        assert_eq!(&summary["ports"][0]["capture"], counts, "{words}: {summary}");
        let name = words.split([' ', '?']).nth(1).unwrap();
        for note in [
            format!("note: {name}: {} packets were skipped: not Ethernet; ", counts["not_ethernet"]),
            format!("note: {name}: {} frames were cut by the capture's snap length; ", counts["snapped"]),
        ] {
            assert!(said.contains(&note), "{words}: {said}");
        }
    }
    // A pipe, and a template.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "cat \"$1\" | exec \"$0\" sink pcap:/dev/stdin --json"]);
    let output = expect(0, shell.arg(env!("CARGO_BIN_EXE_linerate")).arg(&path));
    assert_eq!(summary(&output.stdout)["ports"][0]["capture"], first);
    std::fs::write(&path, pcapng(0, 2, 0)).unwrap();
    let output = expect(2, &mut linerate(&["gen", "null:", "--template", &path]));
    assert!(
        text(&output.stderr).contains("its packets are not Ethernet: LINUX_SLL (link type 113)"),
        "{}",
        text(&output.stderr)
    );
    std::fs::write(&path, pcapng(0, 0, 1)).unwrap();
    let output = expect(0, &mut linerate(&["gen", "null:", "--template", &path, "--count", "1"]));
    assert!(text(&output.stderr).contains("the template is incomplete"), "{}", text(&output.stderr));
}

/// `sink` distinguishes gaps in a file from duplicates, whether it reads the file itself or a model's wire sends it.
#[test]
fn duplicates_and_gaps_are_told_apart() {
    let folder = Folder::new("gaps");
    let [whole, path] = ["whole.pcap", "gaps.pcap"].map(|name| folder.path(name));
    expect(0, &mut linerate(&["gen", &format!("pcap:{whole}?write"), "--count", "1000"]));
    let bytes = std::fs::read(&whole).unwrap();
    // The file's header, and records of 76 bytes each; 100 to 199 are missing, and 200 to 299 are repeated.
    let (header, records) = bytes.split_at(24);
    let records = |from: usize, to: usize| &records[from * 76..to * 76];
    let parts = [header, records(0, 100), records(200, 300), records(200, 300), records(300, 1000)];
    std::fs::write(&path, parts.concat()).unwrap();
    for words in [
        format!("sink pcap:{path}"),
        format!("sink sim:0?wire=pcap:{path} --seconds 1"),
        format!("fwd sim:0?wire=pcap:{path} sim:1?wire=sink --seconds 1"),
        format!("fwd pcap:{path} sim:1?wire=sink --seconds 1"),
    ] {
        let (summary, _) = run(1, &words.split(' ').collect::<Vec<_>>());
        let counts = ["lost", "reordered", "duplicated", "corrupted"].map(|name| number(&summary[name]));
        assert_eq!(counts, [100, 0, 100, 0], "{words}: {summary}");
    }
    // A file that is sent several times counts as without loss.
    for words in ["sink sim:0?wire=", "fwd sim:1?wire=sink sim:0?wire="] {
        let words = format!("{words}pcap:{whole}?loop=3 --seconds 1");
        let (summary, _) = run(0, &words.split(' ').collect::<Vec<_>>());
        let counts = ["lost", "duplicated", "packets"].map(|name| number(&summary[name]));
        assert_eq!(counts, [0, 2000, 3000], "{words}: {summary}");
    }
    // Faults of a port: exactly the injected drops are lost, whatever other faults there are.
    let many = ["duplicate=20%&drop=20%&seed=1 --count 2000", "corrupt=20%&seed=1 --count 2000"].map(String::from);
    // With few frames, the last ones are dropped, too.
    for faults in many.into_iter().chain((1..9).map(|seed| format!("drop=50%&seed={seed} --count 10"))) {
        let words = format!("gen faulty:sim:0?wire=sink&{faults}");
        let (summary, _) = run(1, &words.split(' ').collect::<Vec<_>>());
        let injected = summary["ports"][0]["drops"]["injected"].as_u64().unwrap_or(0);
        assert_eq!(injected, number(&summary["lost"]), "{words}: {summary}");
    }
    // Damaged payloads and headers are detected, except UDP's checksum, and not lost.
    for words in [
        "sink faulty:sim:0?corrupt=100%&count=2000 --seconds 1",
        "gen faulty:sim:0?corrupt=100%&wire=sink --count 2000",
    ] {
        let (summary, _) = run(1, &words.split(' ').collect::<Vec<_>>());
        assert!((1800..=2000).contains(&damaged(&summary)) && number(&summary["lost"]) == 0, "{words}: {summary}");
    }
    expect(0, &mut linerate(&["gen", &format!("faulty:pcap:{path}?write&corrupt=100%"), "--count", "2000"]));
    let (sunk, _) = run(1, &["sink", &format!("pcap:{path}")]);
    assert!(number(&sunk["lost"]) == 0 && damaged(&sunk) > 1800, "{sunk}");
}

/// `latency` counts each of its frames exactly once, whatever happens to it on the way.
#[test]
fn latency_counts_each_frame_once() {
    let _alone = alone();
    for (number_of, [a, b], code) in [
        (0, ["sim:0", "faulty:sim:1?drop=50%"], 0),
        (1, ["faulty:sim:0?drop=100%", "sim:1"], 1),
        (2, ["faulty:x{1?corrupt=50%", "x}1"], 1),
        (3, ["faulty:x{1?truncate=100%", "x}1"], 1),
        (4, ["faulty:x{1?duplicate=50%&drop=20%", "x}1"], 0),
    ] {
        let output = expect(code, &mut linerate(&["latency", a, b, "--rate", "1k", "--seconds", "1", "--json"]));
        let load = &summary(&output.stdout)["loads"][0];
        let [sent, arrived, lost, corrupted] = ["sent", "arrived", "lost", "corrupted"].map(|name| number(&load[name]));
        let after = |name: &str| number(&load["after_end"][name]);
        assert_eq!(sent + after("sent"), arrived + after("arrived") + lost, "{a} {b}: {load}");
        let is_right = match number_of {
            0 => lost > 300 && arrived > 300,
            1 => arrived == 0 && lost >= sent,
            2 => lost == 0 && corrupted > 50,
            3 => arrived == 0 && number(&load["unstamped"]) == lost,
            _ => arrived < sent && number(&load["duplicated"]) > 300,
        };
        assert!(is_right, "{a} {b}: {load}");
    }
    let output =
        expect(1, &mut linerate(&["latency", "faulty:x{1?corrupt=50%", "x}1", "--rate", "1k", "--seconds", "0.5"]));
    assert!(text(&output.stderr).contains("error: corrupted on the way: "), "{}", text(&output.stderr));
}

/// A pipe without a reader accepts one ring of packets.
#[test]
fn a_run_without_room_names_the_port() {
    let (sent, _) = run(0, &["gen", "full{1", "--seconds", "0.5"]);
    assert_eq!((number(&sent["packets"]), &sent["bounded_by"]), (512, &"the port, which has no room".into()), "{sent}");
}
