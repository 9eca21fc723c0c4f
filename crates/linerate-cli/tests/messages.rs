//! The command's messages on mistakes and runs without traffic, and its exit codes.

mod kit;

use std::process::Stdio;

use kit::{
    Folder, Namespace, OutputTimeout, Process, alone, ended_with, expect, inside, linerate, pair, summary, text, until,
    write_frames,
};

/// Runs a command that ends with `code`, and checks that its errors have `parts`.
#[track_caller]
fn says(code: i32, arguments: &[&str], parts: &[&str]) {
    let said = text(&expect(code, &mut linerate(arguments)).stderr);
    for part in parts {
        assert!(said.contains(part), "{arguments:?} does not say '{part}': {said}");
    }
}

#[test]
fn values_of_options_are_explained() {
    says(2, &["gen", "null:", "--template", "/nowhere/x.pcap"], &["/nowhere/x.pcap", "No such file"]);
    for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "ff02::1"] {
        let words = ["sink", "null:", "--reply", "arp", "--address", address];
        says(2, &words, &[address, "a host on a network cannot have this address"]);
    }
    let words = ["gen", "null:", "--rate", "0.5", "--seconds", "0.1"];
    says(0, &words, &["no packet is due within --seconds: at this rate one is due every 2.000 s"]);
}

/// The error in a file of streams names its position.
#[test]
fn files_of_streams_say_where_they_are_wrong() {
    let folder = Folder::new("streams");
    let file = folder.path("streams.toml");
    says(2, &["gen", "null:", "--streams", &file], &[&file, "No such file"]);
    for (text, parts) in [
        ("", &["it has no stream: add a table [[stream]]"][..]),
        ("stream = []", &["it has no stream"]),
        ("[stream]", &["line 1", "expected a sequence", "each stream is a table [[stream]]"]),
        ("[[stream]]\nrate = true", &["line 2", "expected a number, or a text such as '1M'"]),
        ("[[stream]]\nname = \"\\u001b[31m\"\nburst = 2", &["\\u{1b}[31m: bursts need a rate"]),
        ("[[stream]]\nname = ''", &["stream 1: a name has at least one character"]),
        ("[[stream]]\ncount = 99999999999999999999999", &["line 2", "it must be"]),
        ("[[stream]]\ntemplate = '/nowhere.pcap'", &["stream 1: ", "/nowhere.pcap", "No such file"]),
        ("[[stream]]\n[[stream]]\npacket = 'eth/payload(9)'\nsize = 64", &["stream 2: size: ", "write payload"]),
        ("[[stream]]\nrate = '1M'\nspeed = 2", &["line 3", "unknown field `speed`", "`packet`"]),
        ("[[stream]]\nrate = 'fast'", &["line 2", "'fast' is not a rate"]),
        ("[[stream]]\n\n[[stream]]\npacket = 'eth/udp'", &["line 4", "eth has no number for udp"]),
        ("[[stream]]\nname = 'a'\nburst = 8", &["a: bursts need a rate"]),
        ("[[stream]]\npacket = 'eth'\nflows = 2", &["stream 1: packet makes flows by the range of a field"]),
        ("[[stream]]\ncount = 0", &["line 2", "it must be at least 1"]),
    ] {
        std::fs::write(&file, text).unwrap();
        says(2, &["gen", "null:", "--streams", &file, "--count", "1"][..4], &[&[file.as_str()][..], parts].concat());
    }
    says(2, &["gen", "null:", "--streams", &file, "--count", "1"], &["cannot be used with"]);
    // Pipes, devices and folders are refused, as they may have no end.
    let pipe = folder.path("pipe");
    expect(0, std::process::Command::new("mkfifo").arg(&pipe));
    for file in [&pipe, "/dev/zero", "/"] {
        says(2, &["gen", "null:", "--streams", file], &[file, "it is not a regular file"]);
    }
    std::fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    says(2, &["gen", "null:", "--streams", &file], &["it has 1073741824 bytes; the limit is 1048576"]);
}

#[test]
fn wrong_names_and_options_are_usage() {
    says(2, &["fwd", "eth0", "sim:1"], &["it does not begin with a kind", "did you mean xdp:eth0 or packet:eth0?"]);
    says(
        2,
        &["fwd", "foo:0", "sim:1"],
        &["there is no kind of port 'foo:'; there are sim:NAME, PCI addresses, vfio-user:"],
    );
    says(2, &["gen", "null:", "--size", "60"], &["64 to 9732, CRC included (60 + 4 = 64)"]);
    says(2, &["gen", "null:", "--size", "9733"], &["64 to 9732, CRC included"]);
    says(2, &["gen", "null:", "--size", "64-63"], &["'64-63' ends before it begins"]);
    says(
        2,
        &["sink", "sim:0", "--rate", "5"],
        &["unexpected", "gen has this option, and so has a model's wire: sim:0?rate=1M"],
    );
    for (packet, why) in [
        ("ip/udp", "a frame begins with eth"),
        ("eth/udp", "eth has no number for udp; give one, as eth(type=…), if it is meant"),
        ("eth/ip(scr=1.2.3.4)/udp", "ip: 'scr' is not a field; there are tos, dscp, ecn"),
        ("eth/ip(ttl=1-256)", "ip: ttl: '256' is too large: at most 255"),
    ] {
        says(2, &["gen", "null:", "--packet", packet], &[why]);
    }
    says(
        2,
        &["gen", "null:", "--packet", "eth/ip/udp/vxlan/eth/ip/tcp", "--size", "64"],
        &["--size: a frame of 64 bytes, CRC included, has no room for these headers; the smallest has 108"],
    );
    says(2, &["gen", "null:", "--packet", "eth", "--flows", "2"], &["cannot be used with"]);
    says(2, &["gen", "null:", "--size", "64,128", "--flows", "65000"], &["at most 64512 flows"]);
    says(2, &["gen", "null:", "--burst", "8"], &["required arguments", "--rate <RATE>"]);
    says(
        2,
        &["gen", "null:", "--burst", "1000", "--rate", "100", "--seconds", "2"],
        &["at this rate a burst of 1000 frames is due every 10.000 s: --seconds is shorter"],
    );
    says(2, &["gen", "null:", "--rate", "-1"], &["a rate is positive"]);
    says(2, &["gen", "null:", "--rate", "1e400", "--count", "1"], &["'1e400' is too large a number for a rate"]);
    says(
        2,
        &["sink", "sim:0?rate=1e400", "--count", "1"],
        &["option rate=1e400: '1e400' is too large a number for a rate"],
    );
    for command in [&["sink"][..], &["gen"], &["fwd", "null:"]] {
        says(2, &[command, &["pcap:f?write=maybe"]].concat(), &["option write=maybe: it must be on or off"]);
    }
    says(2, &["gen", "null:", "--cores", "4000"], &["there is no processor 4000; there "]);
    says(2, &["gen", "null:", "--cores", "1-0"], &["not a processor, and not a range such as 0-3"]);
    says(2, &["sink", "sim:0?size=64&size=128"], &["option size=64: it is also given as size=128"]);
    says(2, &["gen", "null:", "--template", "x.pcap", "--size", "64"], &["cannot be used with"]);
    says(2, &["fwd", "sim:0", "sim:1", "--rest", "null:"], &["required arguments", "--only <ONLY>", "--drop <DROP>"]);
    for count in ["1e3", "1K", "1k", "1000"] {
        expect(0, &mut linerate(&["sink", &format!("sim:0?count={count}"), "--count", "1000", "--seconds", "30"]));
    }
    says(2, &["sink", "sim:0?count=1x"], &["it must be a number, such as 1000, 1k, 1M or 1e6"]);
    says(2, &["serve", "../../evil"], &["'../../evil' is not a valid name"]);
    says(2, &["serve", "bad name"], &["'bad name' is not a valid name"]);
    says(
        2,
        &["serve", "sim:0"],
        &["'sim:0' is not a valid name", "to attach a port to a switch: linerate switch attach vale0:sim:0"],
    );
    let folder = Folder::new("served-names");
    let serve = |name| {
        linerate(&["serve", name, "--seconds", "0.1"]).env("LINERATE_PORTS", &folder.0).output_in_time().unwrap()
    };
    for (name, why) in [
        ("nonexist0", "is not a switch, as vale0, and there is no such interface; there are lo"),
        ("vale0123456789ab", "is not a switch: its name has at most 15 letters, digits and '_'"),
        ("vale-0", "is not a switch"),
    ] {
        let output = serve(name);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{name}: {said}");
    }
    for name in ["vale0123456789a", "lo", "any"] {
        assert_eq!(serve(name).status.code(), Some(0), "{name}");
    }
    for (only, drop) in [("udp", "udp"), ("udp:1-100", "udp"), ("icmp,udp:53", "ip+proto:1,udp:1-100")] {
        let said = format!("--drop {drop} covers all packets of --only {only}: nothing would be left");
        says(
            2,
            &["fwd", "sim:0", "sim:1", "--only", only, "--drop", drop],
            &[&said, "Usage: linerate fwd [OPTIONS] <A> <B>"],
        );
    }
    says(
        2,
        &["sink", "faulty:sim:0?drpo=1%"],
        &["faulty:sim:0: option drpo=1%", "faulty has drop, corrupt, truncate, duplicate, reorder, seed"],
    );
    says(
        2,
        &["sink", "faulty:recorded:sim:0?to=/dev/null&drpo=1%"],
        &["faulty:recorded:sim:0: ", "recorded has to", "faulty has drop"],
    );
    for (option, why) in [("reorder=60%", "it is at most 50 %"), ("drop=200%", "it must be a probability")] {
        says(2, &["sink", &format!("faulty:sim:0?{option}")], &[&format!("option {option}: {why}")]);
    }
    // `linerate switch` expects a port of a switch.
    for (name, port) in [("foo", "vale0:foo"), ("0000:99:00.0", "vale0:a")] {
        says(2, &["switch", "attach", name], &["a port of a switch is named valeS:P", &format!("try: {port}")]);
    }
    says(2, &["gen", "vale-:a"], &["a port of a switch is named valeS:P", "try: vale0:a"]);
    says(2, &["gen", "tap:a_name_of_18_bytes"], &["tap:a_name_of_18_bytes: no port has this name", "up to 15 bytes"]);
    // The remedy holds for a name with other options, too.
    says(2, &["gen", "sim:0?cluster=2"], &["no transmit queue 1", "with queues=2 in its name"]);
    says(2, &["gen", "pcap:x.pcap"], &["pcap:x.pcap is opened for reading; to write to it: gen 'pcap:x.pcap?write'"]);
    for card in ["echo:", "eth0", "0000:3:00.0"] {
        let why = format!("{card}: it is not a PCI card; name one by its address, such as 0000:03:00.0");
        says(2, &["bind", card], &[&why, "linerate ports, which lists the cards"]);
        says(2, &["unbind", card], &[&why]);
    }
    says(2, &["latency", "sim:0?rate=1k", "sim:1"], &["leave out the option rate"]);
    says(2, &["sim", "--socket", "/tmp/a", "--wire", "none", "--wire", "none"], &["2 wires are given for 1 sockets"]);
}

/// Queues that an interface does not have.
#[test]
fn queues_that_are_not_there_are_usage() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ldq"), Namespace::new("ldr"));
    pair((&host, "h0"), (&far, "f0"), 6);
    for (words, part) in [
        ("gen xdp:h0-7 --count 1", "h0 has no queue 7: its queues are 0 to 0"),
        ("gen xdp:h0 --queues 8 --count 1", "open it with fewer, or: sudo ethtool -L h0 combined 8"),
    ] {
        let said = text(&expect(2, &mut inside(&host, words)).stderr);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn threads_that_share_processors_are_reported() {
    let said = "2 threads poll on one processor of --cores, and have to share";
    says(0, &["gen", "null:", "--cores", "0", "--queues", "2", "--count", "10"], &[said]);
}

#[test]
fn ranges_of_processors_work() {
    let output = expect(0, &mut linerate(&["gen", "null:", "--cores", "0-0,0", "--count", "10", "--json"]));
    assert_eq!(summary(&output.stdout)["processors"]["used"], serde_json::json!([0]));
}

/// Threads are not pinned unless requested, as two commands would use the same processor.
#[test]
fn no_thread_is_pinned_without_cores() {
    let allowed = |path: &std::path::Path| {
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_string()
    };
    for (cores, is_pinned) in [(&[][..], false), (&["--cores", "0"], true)] {
        let mut process = Process::start(linerate(&["fwd", "sim:0", "sim:1", "--json"]).args(cores));
        process.await_output("ports");
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap().flatten();
        let all: Vec<String> = tasks.map(|task| allowed(&task.path())).collect();
        assert!(all.len() >= 3, "the run's thread and the models' are there");
        let ours = allowed(std::path::Path::new("/proc/self"));
        assert_eq!(all.iter().any(|list| *list == "0") && ours != "0", is_pinned && ours != "0", "{all:?}");
        assert!(is_pinned || all.iter().all(|list| *list == ours), "{all:?}");
    }
}

#[test]
fn cables_that_lead_nowhere_are_errors() {
    let one_sided = ["the cable's other end does not name this one; open it as sim:b?wire=sim:a"];
    says(2, &["fwd", "sim:a?wire=sim:b", "sim:b", "--seconds", "1"], &one_sided);
    says(2, &["sink", "faulty:sim:a?wire=sim:b", "--seconds", "1"], &one_sided);
    says(2, &["sink", "sim:a?wire=sim:a", "--seconds", "1"], &["a cable leads to another model, not to this one"]);
    let folder = Folder::new("cables");
    let (a, b) = (folder.path("a"), folder.path("b"));
    let sockets = ["sim", "--socket", &a, "--socket", &b, "--seconds", "1"];
    says(2, &[&sockets[..], &["--wire", "sim:b", "--wire", "sink"]].concat(), &one_sided);
    expect(0, linerate(&sockets).args(["--wire", "sim:b", "--wire", "sim:a"]));
    says(0, &["sink", "sim:a?wire=none", "--seconds", "0.2"], &["sim:a: no link, because of wire=none"]);
}

/// A frame with a damaged stamp is corrupted, but counts as arrived.
#[test]
fn damaged_frames_of_a_tester_are_corrupted() {
    for words in [
        "sink faulty:sim:c?truncate=100%&rate=10k&count=500",
        "gen faulty:sim:c?truncate=100%&wire=sink --count 500",
        "fwd faulty:sim:c?truncate=100%&rate=10k&count=500 sim:d?wire=sink",
    ] {
        let words: Vec<&str> = words.split(' ').chain(["--seconds", "1", "--json"]).collect();
        let summary = summary(&expect(1, &mut linerate(&words)).stdout);
        let counts = ["corrupted", "lost"].map(|key| summary[key].as_u64());
        assert_eq!(counts, [Some(500), Some(0)], "{words:?}: {summary}");
    }
}

/// Packets of several slots do not count as unsent.
#[test]
fn chains_are_not_unsent() {
    let folder = Folder::new("chains");
    let file = folder.path("long.pcap");
    write_frames(&file, &vec![vec![0x55; 3000]; 10]);
    let output = expect(0, &mut linerate(&["fwd", &format!("pcap:{file}"), "null:", "--seconds", "1", "--json"]));
    assert!(!text(&output.stderr).contains("not sent"), "{}", text(&output.stderr));
    assert_eq!(summary(&output.stdout)["ports"][1]["unsent"], serde_json::Value::Null);
}

/// Frames that arrive while the run waits for another port's link do not belong to the run.
#[test]
fn frames_come_from_the_runs_start_on() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ldw"), Namespace::new("ldx"));
    pair((&host, "h0"), (&far, "f0"), 7);
    host.run("ip link set h0 down");
    let fwd = "fwd sim:w?rate=10k packet:h0 --seconds 0.2 --json";
    let mut fwd = Process::start(&mut inside(&host, fwd));
    let begin = std::time::Instant::now();
    fwd.await_error("waiting for the link");
    while begin.elapsed().as_millis() < 500 {
        std::thread::yield_now();
    }
    host.run("ip link set h0 up");
    let (_, said) = fwd.ended();
    let summary = summary(said.as_bytes());
    let came = summary["ports"][0]["rx_packets"].as_u64().unwrap();
    let seconds = summary["seconds"].as_f64().unwrap();
    // A thread that lost its processor catches up at most one burst.
    assert!((came as f64) < 10e3 * (seconds + 0.2), "{summary}");
}

#[test]
fn runs_that_move_nothing_say_why() {
    let all = ["fwd", "sim:a", "sim:b?wire=sink", "--only", "tcp", "--seconds", "0.3"];
    says(0, &all, &["note: the rules dropped all "]);
    let stuck = ["fwd", "sim:e?rate=1M&count=3000", "sim:f?wire=none", "--seconds", "0.3"];
    says(
        0,
        &stuck,
        &["frames from its wire are still in the card", "511 packets were queued but not sent: the link is down"],
    );
    // Each received packet is accounted for.
    let stuck = ["fwd", "sim:g?rate=1M&count=3000&flows=9", "sim:h?wire=none", "--drop", "from-port:1025"];
    let output = ended_with(
        0,
        linerate(&[&stuck[..], &["--seconds", "0.3", "--json"]].concat()).stdout(Stdio::piped()).stderr(Stdio::null()),
    );
    let summary = summary(&output.stdout);
    let slots = |port: usize, way: &str| summary["ports"][port][way][0].as_u64().unwrap();
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!(slots(0, "rx_slots"), slots(1, "tx_slots") + count("held") + count("filtered"), "{summary}");
    assert!(count("held") > 0 && count("filtered") > 0, "{summary}");
    assert_eq!(slots(1, "tx_slots"), summary["ports"][1]["unsent"].as_u64().unwrap(), "{summary}");
    let shown = text(&expect(0, &mut linerate(&[&stuck[..], &["--seconds", "0.3"]].concat())).stdout);
    assert!(shown.contains(", not forwarded "), "{shown}");
}

#[test]
fn sockets_that_cannot_be_served_are_explained() {
    let folder = Folder::new("sockets");
    let there = folder.path("there");
    std::fs::write(&there, "").unwrap();
    says(2, &["sim", "--socket", &there], &["a file that is not a socket exists there", "choose another path"]);
    let long = folder.path(&"x".repeat(120));
    says(2, &["sim", "--socket", &long], &["a socket's path has at most 107", "choose a shorter path"]);
    let nowhere = folder.path("nowhere/card");
    says(1, &["sim", "--socket", &nowhere], &["a folder that you may write to"]);
}

#[test]
fn a_list_without_a_server_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    for json in [&[][..], &["--json"]] {
        let mut command = linerate(&["switch", "list"]);
        let output = expect(1, command.args(json).env("LINERATE_PORTS", folder.path()));
        assert!(text(&output.stderr).contains("no server in "), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
}

/// Only cards get the note on hugepages, which the guests' tests check; models and errors do not.
#[test]
fn models_have_no_note_of_hugepages() {
    for arguments in
        [&["fwd", "sim:0", "sim:1", "--seconds", "0.2"][..], &["bench", "--only", "iommu", "--out", "/proc/x"]]
    {
        let said = text(&linerate(arguments).output_in_time().unwrap().stderr);
        assert!(!said.contains("hugepages"), "{said}");
    }
}

#[test]
fn drops_are_words_in_a_table_and_names_in_json() {
    let folder = Folder::new("drops");
    let file = folder.path("long.pcap");
    write_frames(&file, &vec![vec![0x55; 3000]; 70]);
    let port = format!("sim:d?wire=pcap:{file}");
    let arguments = ["sink", &port, "--seconds", "1"];
    let output = expect(1, &mut linerate(&arguments));
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(shown.contains("dropped  70 too long") && !shown.contains('{'), "{shown}");
    assert!(said.contains("all 70 received frames were too long for the port; allow longer ones with --mtu"), "{said}");
    let output = expect(1, linerate(&arguments).arg("--json"));
    assert_eq!(summary(&output.stdout)["ports"][0]["drops"]["oversize"], 70);
    let wires = include_str!("../../../docs/wires.md");
    for (cause, _) in linerate::port::Drops::default().by_cause() {
        assert!(wires.contains(&format!("`{cause}`")), "docs/wires.md explains {cause}");
    }
}

#[test]
fn help_lists_the_wires() {
    for arguments in [&["ports"][..], &["sim", "--help"]] {
        let shown = text(&expect(0, &mut linerate(arguments)).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        for wire in [
            "none",
            "sink",
            "traffic",
            "sim:NAME",
            "tap:",
            "packet:IF",
            "xdp:IF",
            "pcap:FILE",
            "vale0:a",
            "faulty:PORT",
        ] {
            assert!(shown.contains(wire), "{arguments:?} does not list {wire}: {shown}");
        }
    }
}

/// The command reports packets that an interface without carrier does not send, and pauses between attempts. AF_XDP
/// does not report that the kernel drops packets.
#[test]
fn packets_that_a_link_that_is_down_does_not_take_are_reported() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ldg"), Namespace::new("lde"));
    pair((&host, "h0"), (&far, "f0"), 4);
    for (port, note) in [("packet:h0", "queued but not sent: the link is down"), ("xdp:h0", "dropped count as sent")] {
        let mut generator = Process::start(&mut inside(&host, &format!("gen {port} --rate 1k --seconds 60 --json")));
        generator.await_output("ports");
        far.run("ip link set f0 down");
        let begin = std::time::Instant::now();
        generator.await_error(&format!("note: {port}: the link is down; no traffic on this port"));
        generator.stop();
        generator.await_error(note);
        generator.ended();
        let dropped: u64 = host.run("cat /sys/class/net/h0/statistics/tx_dropped").trim().parse().unwrap();
        // One attempt every 20 ms, and the first ones.
        let most = 100 + begin.elapsed().as_millis() as u64 / 20;
        assert!(port != "packet:h0" || dropped <= most, "{dropped} of {most}");
        far.run("ip link set f0 up");
    }
}

/// A port that is down, or whose link goes down, is reported immediately, not after ten seconds of silence.
#[test]
fn a_link_that_is_down_is_reported() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ldh"), Namespace::new("ldf"));
    pair((&host, "h0"), (&far, "f0"), 3);
    host.run("ip link set h0 down");
    let mut sink = Process::start(&mut inside(&host, "sink packet:h0 --seconds 60"));
    sink.await_error("packet:h0: waiting for the link, at most 10 s; is the interface up? sudo ip link set dev h0 up");
    host.run("ip link set h0 up");
    sink.await_error("link up");
    host.run("ip link set h0 down");
    sink.await_error("packet:h0: the link is down");
    host.run("ip link set h0 up");
    sink.await_error("packet:h0: the link is up again");
    assert_eq!(sink.interrupt().0, Some(0));
    // The kernel reports the loss of the carrier some time after the other end goes down.
    far.run("ip link set f0 down");
    until("h0 has no carrier", || host.run("ip link show h0").contains("NO-CARRIER"));
    let mut sink = Process::start(&mut inside(&host, "sink packet:h0 --seconds 60"));
    sink.await_error(
        "packet:h0: waiting for the link, at most 10 s; h0 is up and has no carrier: is its other end up?",
    );
}

/// `sink` refuses a file opened for writing, which would be emptied.
#[test]
fn a_capture_is_not_emptied_by_a_sink() {
    let folder = Folder::new("emptied");
    let path = folder.path("some.pcap");
    write_frames(&path, &[vec![1; 60]]);
    let before = std::fs::read(&path).unwrap();
    let name = format!("pcap:{path}?write");
    says(2, &["sink", &name], &["is opened for writing, which would empty it", &format!("sink pcap:{path}")]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_port_in_memory_without_another_end_is_reported() {
    for name in ["vale0:alone", "alone{1"] {
        let said = text(&expect(0, &mut linerate(&["gen", name, "--count", "10", "--seconds", "1"])).stderr);
        let why = format!(
            "{name} exists only in this process, where no other port is connected to it; to share ports: linerate serve"
        );
        assert!(said.contains(&why), "{said}");
    }
    // No server has these.
    for name in ["echo:", "faulty:echo:", "null:"] {
        let said = text(&expect(0, &mut linerate(&["gen", name, "--count", "10", "--seconds", "1"])).stderr);
        assert!(!said.contains("linerate serve"), "{said}");
    }
    says(1, &["sink", "echo:+r"], &["open it in this process first"]);
}

#[test]
fn a_latency_that_timed_nothing_says_why() {
    let load = ["--rate", "1k", "--every", "1000000", "--seconds", "0.2"];
    let said = text(&expect(1, &mut linerate(&[&["latency", "few{0", "few}0"][..], &load].concat())).stderr);
    assert!(said.contains("no frame was timed in 0.2 s: use more --seconds, or a smaller --every"), "{said}");
}

/// The kernel accepts frames for a link that is down, and drops them. This is reported even if the link is up again at
/// the end.
#[test]
fn packets_that_an_interface_drops_on_the_way_out_are_reported() {
    let _alone = alone();
    let (host, far) = (Namespace::new("ldo"), Namespace::new("ldn"));
    pair((&host, "h0"), (&far, "f0"), 5);
    let mut generator = Process::start(&mut inside(&host, "gen xdp:h0?flow=all --rate 1k --seconds 60 --json"));
    generator.await_output("ports");
    far.run("ip link set f0 down");
    generator.await_error("the link is down");
    far.run("ip link set f0 up");
    generator.await_error("the link is up again");
    generator.stop();
    let said = generator.await_error("the interface dropped");
    let dropped = host.run("cat /sys/class/net/h0/statistics/tx_dropped");
    assert!(said.contains(&format!("dropped {} packets on transmit", dropped.trim())), "{said}");
    generator.ended();
    // Behind a model's wire: the card has sent them.
    let dropped = |wire: &str| {
        let words = format!("gen sim:0?wire={wire} --size 2000 --count 100 --seconds 60");
        let output = expect(0, &mut inside(&host, &words));
        text(&output.stderr)
    };
    for (wire, remedy) in [("tap:t9", "wire=tap:t9?mtu=1986)"), ("packet:h0", "wire=packet:h0?mtu=1986, and raise")] {
        let said = dropped(wire);
        assert!(said.contains("its wire did not: 100 too long for this port (open it with a larger mtu: "), "{said}");
        assert!(said.contains(remedy), "{said}");
    }
    let said = dropped("tap:t9?mtu=1986");
    assert!(!said.contains("behind its wire"), "{said}");
}

/// Options that would do nothing are errors.
#[test]
fn options_without_the_option_they_need_are_refused() {
    for (words, missing) in [
        (&["replay", "in.pcap", "null:", "--loop-pause", "1s"][..], "--loop <N>"),
        (&["replay", "in.pcap", "null:", "--unique-ip"], "--loop <N>"),
        (&["edit", "in.pcap", "out.pcap", "--mtu", "600"], "--fit <FIT>"),
    ] {
        let output = expect(2, &mut linerate(words));
        assert!(text(&output.stderr).contains(missing), "{words:?}: {}", text(&output.stderr));
    }
}
