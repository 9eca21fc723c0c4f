//! The command, run as a user runs it.

mod kit;

use kit::{Folder, OutputTimeout, Process, expect, frames, linerate, summary, text, write_frames};
use serde_json::Value;

/// Runs a command, which must succeed, and returns its summary.
fn run(arguments: &[&str]) -> Value {
    summary(&expect(0, linerate(arguments).arg("--json")).stdout)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Runs a command, which must fail, and returns its errors.
fn fails(code: i32, arguments: &[&str]) -> String {
    text(&expect(code, &mut linerate(arguments)).stderr)
}

#[test]
fn fwd_forwards_verifies_and_sums_up() {
    let output = expect(0, &mut linerate(&["fwd", "sim:0", "sim:1", "--seconds", "2.5", "--json"]));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 3, "two seconds and a summary");
    assert!(lines[0]["ports"][0]["rx"]["mpps"].as_f64().unwrap() > 0.0);
    let summary = &lines.last().unwrap()["summary"];
    assert_eq!(summary["command"], "fwd");
    assert!((2.4..5.0).contains(&summary["seconds"].as_f64().unwrap()));
    for (key, most) in [("lost", 0), ("corrupted", 0), ("breaches", 0)] {
        assert_eq!(number(&summary[key]), most, "{summary}");
    }
    assert!(summary["mpps"].as_f64().unwrap() > 0.0 && summary["cycles_per_packet"].as_f64().unwrap() > 0.0);
    let ports = summary["ports"].as_array().unwrap();
    for (port, other, name) in [(&ports[0], &ports[1], "sim:0"), (&ports[1], &ports[0], "sim:1")] {
        assert_eq!(port["name"], name);
        assert!(number(&port["rx_packets"]) > 1000);
        assert_eq!(port["rx_packets"], other["tx_packets"]);
        assert_eq!(number(&port["rx_bytes"]), 60 * number(&port["rx_packets"]));
        assert_eq!(number(&port["tx_bytes"]), 60 * number(&port["tx_packets"]));
        assert_eq!(port["drops"], serde_json::json!({}));
    }
}

#[test]
fn fwd_with_other_sizes_queues_and_batches() {
    let cases: [&[&str]; 4] = [
        &[
            "fwd",
            "sim:a?size=1518&flows=50",
            "sim:b?size=128&flows=50",
            "--queues",
            "2",
            "--cores",
            "0,0",
            "--batch",
            "1",
        ],
        &["fwd", "sim:a?size=9000", "sim:b?size=9000", "--mtu", "9000", "--batch", "256", "--ring", "4096"],
        &["fwd", "sim:a?queues=4&flows=64&ring=64", "sim:b?queues=4&flows=64", "--ring", "128"],
        &["fwd", "sim:a?wire=sim:b", "sim:b?wire=sim:a"],
    ];
    for (case, arguments) in cases.into_iter().enumerate() {
        let summary =
            run(&[arguments, &["--count", "20000", "--seconds", if case == 3 { "1" } else { "60" }]].concat());
        assert_eq!((number(&summary["lost"]), number(&summary["corrupted"]), number(&summary["breaches"])), (0, 0, 0));
        assert!(case == 3 || number(&summary["ports"][0]["tx_packets"]) > 0, "{summary}");
    }
}

#[test]
fn a_paced_wire_keeps_its_rate() {
    let summary = run(&["fwd", "sim:a?rate=10k&count=5000", "sim:b?wire=sink", "--count", "5000", "--seconds", "60"]);
    assert_eq!(number(&summary["ports"][1]["tx_packets"]), 5000);
    // 5,000 packets at 10,000 a second take at least half a second.
    assert!(summary["seconds"].as_f64().unwrap() >= 0.45, "{summary}");
}

/// A failed recording is reported, and the frames still reach the wire behind it.
#[test]
fn a_recording_on_a_full_disk_is_an_error_and_loses_no_frame() {
    // First so few frames that the file's buffer holds all until the end, then more.
    for count in ["10", "5000"] {
        let forwards = ["fwd", &format!("sim:0?count={count}"), "sim:1?wire=sink&record=/dev/full", "--count", count];
        let output = expect(1, linerate(&forwards).args(["--seconds", "60", "--json"]));
        let (said, summary) = (text(&output.stderr), summary(&output.stdout));
        assert!(said.contains("error: sim:1: /dev/full: cannot write it: No space left"), "{said}");
        assert_eq!((number(&summary["lost"]), number(&summary["corrupted"])), (0, 0), "{summary}");
    }
}

#[test]
fn gen_sends_the_requested_packets_and_sink_checks_them() {
    let folder = Folder::new("gen");
    let file = folder.path("sent.pcap");
    let port = format!("sim:g?wire=sink&record={file}");
    let summary_of_gen = run(&["gen", &port, "--size", "100", "--count", "1000", "--flows", "10", "--seconds", "60"]);
    assert_eq!(number(&summary_of_gen["ports"][0]["tx_packets"]), 1000);
    let sent = frames(&file);
    assert!(sent.len() == 1000 && sent.iter().all(|frame| frame.len() == 96));
    let mut ports: Vec<_> = sent.iter().map(|frame| u16::from_be_bytes([frame[34], frame[35]])).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports, (1024..1034).collect::<Vec<_>>());

    // The recorded frames are received again, complete and in order.
    let port = format!("sim:s?wire=pcap:{file}");
    let summary_of_sink = run(&["sink", &port, "--count", "1000", "--seconds", "60"]);
    assert_eq!((number(&summary_of_sink["lost"]), number(&summary_of_sink["ports"][0]["rx_packets"])), (0, 1000));
    assert_eq!(number(&summary_of_sink["reordered"]), 0);

    // Loss and reordering are detected.
    let mut broken = sent.clone();
    broken.remove(500);
    broken.swap(700, 790);
    broken[3][80] ^= 1;
    write_frames(&file, &broken);
    let output = expect(1, &mut linerate(&["sink", &port, "--count", "999", "--seconds", "60", "--json"]));
    let summary_of_broken = summary(&output.stdout);
    assert_eq!(number(&summary_of_broken["corrupted"]), 1, "{summary_of_broken}");
    assert!(number(&summary_of_broken["lost"]) >= 1);
    assert!(number(&summary_of_broken["reordered"]) >= 1);
}

#[test]
fn messages_tell_of_ports_and_queues() {
    let trace = |level: &str| {
        let mut command = linerate(&["fwd", "faulty:sim:m?wire=sink", "null:", "--seconds", "0.1", "--json"]);
        text(&expect(0, command.env("LINERATE_LOG", level)).stderr)
    };
    let said = trace("debug");
    for part in [
        "opened: Intel 82599",
        "link Up { mbits: 0 } port=\"null:\"",
        "receive queue 0 started port=\"faulty:sim:m\"",
        "transmit queue 0 stopped port=\"null:\"",
        "closed; dropped: []",
    ] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    assert!(!trace("warn").contains("queue 0"));
}

#[test]
fn capture_files_are_ports() {
    let folder = Folder::new("ports");
    let file = folder.path("sent.pcap");
    let written = format!("pcap:{file}?write");
    run(&["gen", &written, "--size", "100", "--count", "1000", "--flows", "10", "--seconds", "60"]);
    let sent = frames(&file);
    assert!(sent.len() == 1000 && sent.iter().all(|frame| frame.len() == 96));
    // The file is read by a port, and by the port behind a model's wire.
    let nested = format!("sim:s?wire=pcap:{file}?loop=1;write=off");
    for port in [format!("pcap:{file}"), nested] {
        let summary = run(&["sink", &port, "--count", "1000", "--seconds", "60"]);
        let received = (number(&summary["lost"]), number(&summary["ports"][0]["rx_packets"]));
        assert_eq!((received, number(&summary["corrupted"])), ((0, 1000), 0), "{port}");
    }
    let summary = run(&["fwd", &format!("pcap:{file}?loop=2"), "null:", "--count", "2000", "--seconds", "60"]);
    assert_eq!(number(&summary["ports"][0]["rx_packets"]), 2000);
    // With the file's timing.
    write_frames(&file, &sent[..3]);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[24 + 2 * (16 + 96)] = 1;
    std::fs::write(&file, &bytes).unwrap();
    let summary = run(&["fwd", &format!("pcap:{file}?speed=4x"), "null:", "--count", "3", "--seconds", "60"]);
    assert!(summary["seconds"].as_f64().unwrap() >= 0.25, "{summary}");
    // A truncated file, a full disk, and a file that is written twice.
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let place = format!(
        "it is cut after frame 2, in the record at byte 248; to keep the complete frames: head -c 248 '{file}' >NEW"
    );
    for port in [format!("pcap:{file}"), format!("sim:0?wire=pcap:{file}")] {
        let cut = expect(1, &mut linerate(&["fwd", &port, "null:", "--seconds", "1", "--json"]));
        let (said, summary) = (text(&cut.stderr), kit::summary(&cut.stdout));
        assert!(said.contains(&place) && number(&summary["lost"]) == 0, "{said}");
        assert_eq!(number(&summary["packets"]), 2);
    }
    let full = ["gen", "pcap:/dev/full?write", "--count", "1000", "--seconds", "60", "--json"];
    let full = expect(1, &mut linerate(&full));
    assert!(text(&full.stderr).contains("cannot write it: No space left"), "{}", text(&full.stderr));
    // A file that is read is not truncated, and a run that fails to start keeps an older recording.
    let kept = std::fs::read(&file).unwrap();
    let said = fails(1, &["fwd", &format!("pcap:{file}"), &written, "--seconds", "1"]);
    assert!(said.contains("it is being read"), "{said}");
    fails(2, &["sink", &format!("recorded:sim:0?to={file}&rrate=1"), "--seconds", "1"]);
    let at_wires = [format!("sim:0?record={file}"), format!("sim:0?wire=pcap:{file}?write")];
    let around_wires = [format!("sim:0?wire=recorded:pcap:{}?to={file}", folder.path("part.pcap"))];
    for port in [&[written.clone()][..], &at_wires, &around_wires].concat() {
        fails(1, &["fwd", &port, "pcap:nothing", "--seconds", "1"]);
        fails(1, &["fwd", &port, &format!("pcap:{file}"), "--seconds", "1"]);
        assert!(std::fs::read(&file).unwrap() == kept, "{port}");
    }
    // A run without frames makes an empty recording.
    for port in at_wires {
        std::fs::write(&file, &kept).unwrap();
        run(&["gen", &port, "--rate", "0.001", "--seconds", "0.1"]);
        assert_eq!(std::fs::read(&file).unwrap().len(), 24, "{port}");
    }
    std::fs::write(&file, &kept).unwrap();
    // A file without frames is read once.
    std::fs::write(&file, &kept[..24]).unwrap();
    run(&["fwd", &format!("pcap:{file}?loop=1000000000"), "null:", "--seconds", "0.1"]);
    let said = fails(1, &["fwd", &written, &written, "--seconds", "1"]);
    assert!(said.contains("another recording is writing it"), "{said}");
}

#[test]
fn gen_with_queues_a_template_jumbo_frames_and_a_rate() {
    let summary =
        run(&["gen", "sim:g?wire=sink", "--queues", "4", "--count", "4001", "--flows", "7", "--seconds", "60"]);
    assert_eq!((number(&summary["ports"][0]["tx_packets"]), number(&summary["lost"])), (4001, 0));
    let summary = run(&["gen", "sim:g?wire=sink", "--size", "9018", "--count", "500", "--seconds", "60"]);
    assert_eq!(number(&summary["ports"][0]["tx_bytes"]), 500 * 9014);
    let summary = run(&["gen", "sim:g?wire=sink", "--rate", "20k", "--count", "5000", "--seconds", "60"]);
    assert!(summary["seconds"].as_f64().unwrap() >= 0.22, "{summary}");

    let folder = Folder::new("template");
    let (template, sent) = (folder.path("template.pcap"), folder.path("sent.pcap"));
    let arp: Vec<u8> = [vec![0xFF; 6], vec![2; 6], vec![8, 6], vec![0xA5; 46]].concat();
    write_frames(&template, std::slice::from_ref(&arp));
    let port = format!("sim:g?wire=sink&record={sent}");
    let output =
        expect(0, &mut linerate(&["gen", &port, "--template", &template, "--count", "3", "--seconds", "60", "--json"]));
    assert!(text(&output.stderr).contains("sent unchanged"));
    assert_eq!(frames(&sent), [arp.clone(), arp.clone(), arp]);
    // Frames as long as this one need linerate's own writer.
    linerate::capture::Writer::create(template.as_ref()).unwrap().write(0, &vec![0xA5; 200_000]).unwrap();
    let said = fails(2, &["gen", "null:", "--template", &template, "--count", "3"]);
    assert!(said.contains("first frame has 200000 bytes") && said.contains("a larger --mtu"), "{said}");
    run(&["gen", "null:", "--template", &template, "--count", "3", "--mtu", "9000"]);
}

/// Streams of a file are sent concurrently, each with its own frames, count and sequence numbers.
#[test]
fn gen_sends_streams_beside_each_other() {
    let folder = Folder::new("several");
    let (file, sent) = (folder.path("streams.toml"), folder.path("sent.pcap"));
    let streams = "
        [[stream]]
        name = 'dns'
        packet = 'eth/ip(src=10.0.0.1-10.0.0.250)/udp(dport=53)/stamp'
        size = '64-70'
        count = 1000

        [[stream]]
        size = 'imix'
        rate = '50k'
        burst = 10
        gaps = 'poisson'
        count = '2k'

        [[stream]]
        flows = 5
        rate = 20_000
        count = 500
    ";
    std::fs::write(&file, streams).unwrap();
    for queues in ["1", "3"] {
        let port = format!("sim:several?wire=sink&record={sent}");
        let summary = run(&["gen", &port, "--streams", &file, "--queues", queues, "--seconds", "60"]);
        let counts = ["lost", "corrupted", "reordered", "duplicated"].map(|count| number(&summary[count]));
        assert_eq!((number(&summary["packets"]), counts), (3500, [0; 4]), "{summary}");
        let of_streams = summary["gen"]["streams"].as_array().unwrap();
        let of_streams: Vec<_> =
            of_streams.iter().map(|stream| (stream["name"].as_str().unwrap(), number(&stream["packets"]))).collect();
        assert_eq!(of_streams, [("dns", 1000), ("stream 2", 2000), ("stream 3", 500)]);
        let frames = frames(&sent);
        let of_len = |len: usize| frames.iter().filter(|frame| frame.len() == len).count();
        // A seventh of the first stream, and the mix of the second, where each of three queues may add part of a round.
        assert!((142..=144).contains(&of_len(66)) && of_len(590).abs_diff(2000 / 3) <= 3, "{}", of_len(590));
        let of_dns = frames.iter().filter(|frame| frame[36..38] == 53u16.to_be_bytes());
        let mut senders = std::collections::HashMap::new();
        // All queues together send the first 1,000 frames.
        of_dns.for_each(|frame| *senders.entry(frame[26..30].to_vec()).or_insert(0) += 1);
        assert!(senders.len() == 250 && senders.values().all(|count| *count == 4), "{senders:?}");
    }
    // Frames of several buffers, mixed with short ones.
    let streams = "[[stream]]\nsize = '64,9000'\ncount = 300\n[[stream]]\nsize = '5000-5009'\ncount = 200";
    std::fs::write(&file, streams).unwrap();
    let summary = run(&["gen", "sim:several?wire=sink", "--streams", &file, "--seconds", "60"]);
    assert_eq!((number(&summary["packets"]), number(&summary["lost"]), number(&summary["corrupted"])), (500, 0, 0));
    // Streams have different random numbers, unless they have the same seed.
    for (seeds, are_same) in [(["", ""], false), (["seed = 7", "seed = 7"], true)] {
        let stream =
            |seed: &str| format!("[[stream]]\npacket = 'eth/ip(id=random)/udp'\nrate = '1k'\ncount = 20\n{seed}\n");
        std::fs::write(&file, stream(seeds[0]) + &stream(seeds[1])).unwrap();
        run(&["gen", &format!("pcap:{sent}?write"), "--streams", &file, "--seconds", "60"]);
        let mut ids: Vec<[u8; 2]> = frames(&sent).iter().map(|frame| [frame[18], frame[19]]).collect();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len() <= 20, ids.len() >= 38), (are_same, !are_same), "{ids:?}");
    }
    // No port can send at these rates: each stream is delayed equally, whatever its gaps.
    for gaps in ["", "burst = 32", "gaps = 'poisson'"] {
        std::fs::write(&file, format!("[[stream]]\nrate = '100G'\n[[stream]]\nrate = '100G'\n{gaps}")).unwrap();
        let summary = run(&["gen", "null:", "--streams", &file, "--seconds", "0.3"]);
        let [a, b] = [0, 1].map(|stream| number(&summary["gen"]["streams"][stream]["packets"]));
        assert!(a.abs_diff(b) < a / 10, "{gaps}: {summary}");
    }
    // Without counts they stop together.
    std::fs::write(&file, "[[stream]]\nrate = '1k'\n[[stream]]\npacket = 'eth/arp'\nrate = '3k'").unwrap();
    let summary = run(&["gen", "null:", "--streams", &file, "--seconds", "0.3"]);
    assert!(number(&summary["packets"]) > 0 && summary["gen"]["streams"][1]["asked_mpps"] == 0.003, "{summary}");
}

#[test]
fn ctrl_c_prints_the_summary_too() {
    let mut process = Process::start(&mut linerate(&["fwd", "sim:0", "sim:1"]));
    process.await_output("sim:1");
    let (code, rest) = process.interrupt();
    assert_eq!(code, Some(0));
    assert!(rest.contains("lost 0, corrupted 0, reordered 0, breaches 0"), "{rest}");
}

#[test]
fn a_table_for_people_has_rates_with_and_without_framing() {
    let output = expect(0, &mut linerate(&["fwd", "sim:0", "sim:1", "--seconds", "1.5"]));
    let text = text(&output.stdout);
    for part in ["rx pps", "Gbit/s", "wire", "dropped", "cycles/packet", "sim:0", "received"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

#[test]
fn ports_lists_models_and_cards_without_touching_them() {
    let shown = text(&expect(0, &mut linerate(&["ports"])).stdout);
    for kind in linerate::KINDS {
        assert!(shown.contains(&format!("\n{} ", kind.notation())), "{}: {shown}", kind.notation());
    }
    let output = expect(0, &mut linerate(&["ports", "--json"]));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["ports"][0]["name"], "sim:NAME");
    assert!(list["cards"].is_array());
}

#[test]
fn ports_tell_their_features() {
    let shown = text(&expect(0, &mut linerate(&["ports", "--capabilities", "sim:0", "vale0:a"])).stdout);
    let row = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let words = |name: &str| row(name).unwrap_or_else(|| panic!("no {name}: {shown}")).collect::<Vec<_>>();
    assert_eq!(words("feature"), ["sim:0", "vale0:a"]);
    assert_eq!(words("send tcp segments"), ["offloaded", "software"]);
    assert_eq!(words("clock"), ["offloaded", "no"]);
    assert_eq!(words("rule to kernel"), ["no", "no"]);
    let output = expect(0, &mut linerate(&["ports", "--json", "--capabilities", "sim:0"]));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["ports"][0]["features"]["send_checksum"], "offloaded", "{list}");
}

#[test]
fn mistakes_are_explained_and_end_with_their_code() {
    assert!(fails(2, &["fwd", "sim:0"]).contains("<B>"));
    assert!(fails(2, &["frobnicate"]).contains("frobnicate"));
    assert!(fails(2, &["gen", "sim:0", "--rate", "fast"]).contains("14.88M"));
    assert!(fails(2, &["fwd", "sim:0", "sim:1", "--batch", "0"]).contains("1 to 4096"));
    assert!(fails(2, &["fwd", "sim:0", "sim:1", "--seconds=-1"]).contains("--seconds"));
    assert!(fails(2, &["fwd", "sim:0", "sim:1", "--cores", "5000"]).contains("no processor 5000"));
    assert!(fails(2, &["fwd", "sim:0", "sim:1", "--mtu", "10000"]).contains("9710"));
    for (arguments, part) in [
        (vec!["fwd", "sim:0", "eth0"], "eth0: no port has this name"),
        (vec!["fwd", "sim:0", "sim:1", "--ring", "100"], "power of two from 64 to 4096"),
        (vec!["sink", "sim:0?size=63"], "64 to"),
        (vec!["fwd", "sim:0", "ffff:1f:1f.7"], "no PCI device at this address"),
        (vec!["fwd", "sim:0", "netmap:nothing"], "nothing: there is no such interface"),
        (vec!["sink", "packet:nothing"], "nothing: there is no such interface"),
        (vec!["sink", "xdp:nothing"], "nothing: there is no such interface"),
        (vec!["sink", "sim:0", "--numa", "99"], "no NUMA node 99"),
        (vec!["sink", "sim"], "did you mean sim:0?"),
    ] {
        let text = fails(2, &arguments);
        assert!(text.starts_with("linerate: ") && text.contains(part), "{arguments:?}: {text}");
    }
    assert!(fails(2, &["serve", "../eth0", "--seconds", "1"]).contains("is not a valid name"));
    assert!(fails(2, &["serve", "--group", "no such", "--seconds", "1"]).contains("there is no group 'no such'"));
    assert!(fails(2, &["fwd", "sim:0", "sim:0"]).contains("'sim:0' is given twice"));
    assert!(fails(2, &["fwd", "x{1", "x{1?ring=64"]).contains("'x{1' is given twice"));
    for time in ["-1", "nan", "1e400", "x", "0", "0.0"] {
        assert!(fails(2, &["sink", "null:", "--seconds", time]).contains("it must be a number of seconds"), "{time}");
    }
    let long = fails(2, &["sink", "sim:0?wire=tap:a-name-that-is-too-long"]);
    assert!(long.contains("tap:a-name-that-is-too-long: no port") && long.contains("up to 15 bytes"), "{long}");
    for (arguments, part) in [
        (vec!["fwd", "sim:0", "pcap:nothing"], "nothing: cannot read it"),
        (vec!["sink", "sim:0?wire=pcap:/nowhere/x.pcap"], "/nowhere/x.pcap"),
        (vec!["sink", "sim:0?wire=sink&record=/nowhere/x.pcap"], "cannot write it"),
        (vec!["sink", "sim:0", "--ring", "4096", "--queues", "64", "--pages", "1G"], "nr_hugepages"),
    ] {
        let text = fails(1, &arguments);
        assert!(text.starts_with("linerate: ") || text.contains("\nlinerate: "), "{text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}

/// When clients disconnect, their memory, descriptors and interrupts are released.
#[test]
fn a_served_card_keeps_nothing_of_its_clients() {
    let folder = Folder::new("served");
    let (socket, function) = (folder.path("card"), folder.path("card.vf0"));
    let serve = ["sim", "--socket", &socket, "--wire", "sink", "--device", "x540", "--vfs", "1", "--json"];
    let mut process = Process::start(&mut linerate(&serve));
    process.await_error("-device");
    assert!(std::path::Path::new(&function).exists());
    let port = format!("vfio-user:{socket}");
    let mut before = (0, 0);
    for round in 0..20 {
        let wait = if round % 2 == 0 { "poll" } else { "interrupt" };
        let generator = ["gen", &port, "--count", "1000", "--seconds", "60", "--json", "--wait", wait];
        let output = expect(0, &mut linerate(&generator));
        assert_eq!(summary(&output.stdout)["ports"][0]["tx_packets"], 1000);
        // The next client is admitted once the previous one has been released.
        expect(0, &mut linerate(&["sink", &port, "--seconds", "0.1", "--json"]));
        if round == 1 {
            before = (process.proc_count("fd"), process.proc_count("maps"));
        }
    }
    let after = (process.proc_count("fd"), process.proc_count("maps"));
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 4, "descriptors and maps: {before:?}, then {after:?}");
    let (code, rest) = process.interrupt();
    let summary = summary(rest.as_bytes());
    assert_eq!((code, &summary["breaches"], &summary["cards"][0]["to_wire"]), (Some(0), &0.into(), &20_000.into()));
    assert!(!std::path::Path::new(&socket).exists(), "its socket is removed");
}

#[test]
fn sim_explains_invalid_options() {
    let folder = Folder::new("unserved");
    let socket = folder.path("card");
    for (arguments, part) in [
        (&["--device", "82598"][..], "it must be one of 82599-kx4, 82599-sfp, x540, x550"),
        (&["--wire", "nonsense"], "nonsense"),
        (&["--wire", "vfio-user:/nowhere"], "/nowhere"),
        (&["--vfs", "33"], "33"),
    ] {
        let output = linerate(&[&["sim", "--socket", &socket][..], arguments].concat()).output_in_time().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(part), "{arguments:?}: {said}");
        assert!(!std::path::Path::new(&socket).exists(), "no socket is left");
    }
}

#[test]
fn filters_take_packets_out() {
    // The generator's flows are UDP, from port 1024 upwards to port 9.
    let sims = ["sim:fa?flows=4&count=4000&wire=traffic", "sim:fb?wire=sink"];
    let of = |rules: &[&str]| {
        let arguments = [&["fwd"][..], &sims, rules, &["--seconds", "3"]].concat();
        let summary = run(&arguments);
        (number(&summary["filtered"]), number(&summary["ports"][1]["tx_packets"]), number(&summary["lost"]))
    };
    assert_eq!(of(&[]), (0, 4000, 0));
    assert_eq!(of(&["--only", "udp:9"]), (0, 4000, 0));
    assert_eq!(of(&["--only", "from-port:1024-1026"]), (1000, 3000, 0));
    assert_eq!(of(&["--drop", "from-port:1025,tcp"]), (1000, 3000, 0));
    assert_eq!(of(&["--only", "udp", "--drop", "from:198.18.0.0/16"]), (4000, 0, 0));
    let summary = run(&["filter", "sim:fc?flows=4&count=4000", "--drop", "from-port:1024", "--count", "4000"]);
    assert_eq!((number(&summary["filtered"]), number(&summary["ports"][0]["rx_packets"])), (1000, 4000));
    assert!(fails(2, &["fwd", "sim:a", "sim:b", "--only", "quic"]).contains("there is no 'quic'"));
}
