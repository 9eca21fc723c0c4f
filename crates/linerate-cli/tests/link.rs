//! `linerate link`, and ports over links.

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kit::{
    Folder, Namespace, OutputTimeout, Process, Timely, expect, frames, linerate, summary, text, until, write_frames,
};
use serde_json::Value;

/// Returns frames of 1,000 bytes, each with its number.
fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| [&[2; 12][..], &[0x88, 0xB5], &n.to_be_bytes(), &[0; 982]].concat()).collect()
}

/// Forwards a capture of 1,000 frames over a link to another. Returns the numbers that arrive, and the summary.
fn through(name: &str, options: &[&str]) -> (Vec<u32>, Value) {
    let folder = Folder::new(&format!("link-{name}"));
    let (from, to) = (folder.path("in.pcap"), folder.path("out.pcap"));
    write_frames(&from, &numbered(1000));
    let names = [format!("pcap:{from}"), format!("pcap:{to}?write")];
    let words = [&["link", &names[0], &names[1], "--json", "--count", "100M", "--seconds", "60"], options].concat();
    let output = expect(0, &mut linerate(&words));
    let number = |frame: &Vec<u8>| u32::from_be_bytes(frame[14..18].try_into().unwrap());
    (frames(&to).iter().map(number).collect(), summary(&output.stdout))
}

#[test]
fn packets_are_lost_where_the_pattern_is() {
    let (numbers, summary) = through("pattern", &["--pattern", "..x."]);
    assert_eq!(numbers, (0..1000).filter(|n| n % 4 != 2).collect::<Vec<_>>());
    assert_eq!((&summary["link"][0]["lost"], &summary["lost"]), (&250.into(), &0.into()));
    // The other direction has its own values.
    let (numbers, _) = through("back", &["--pattern", "./x"]);
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn a_rate_takes_its_time_and_a_delay_too() {
    let begin = Instant::now();
    // 1,000 bytes at 16 Mbit/s are 0.5 ms; a busy machine only makes it longer.
    let (numbers, summary) = through("rate", &["--rate", "16Mbit", "--queue", "1000p", "--delay", "100ms"]);
    assert!(begin.elapsed() >= Duration::from_millis(600), "{:?}", begin.elapsed());
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    assert_eq!(summary["link"][0]["queue_full"], 0);
}

/// Returns the lines of a recording about packets, without their times: a file is read faster or slower.
fn decisions(path: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let row =
        |line: &str| line.split(',').enumerate().filter(|(n, _)| *n != 2).map(|(_, cell)| cell.to_string()).collect();
    let mut rows: Vec<Vec<String>> = text.lines().filter(|line| !line.contains(",change,")).map(row).collect();
    rows.sort();
    rows
}

/// A recording of random decisions is repeated packet by packet.
#[test]
fn a_recorded_run_is_repeated() {
    let folder = Folder::new("link-recording");
    let (first, second) = (folder.path("first.csv"), folder.path("second.csv"));
    let random = ["--delay", "5ms", "--jitter", "4ms", "--order", "off", "--loss", "10%", "--burst", "2"];
    let (arrived, summary) = through("record", &[&random[..], &["--duplicate", "5%", "--record", &first]].concat());
    let lines = summary["link"][0]["recorded"].as_u64().unwrap();
    // A line for each packet and each duplicate, and one about the parameters.
    assert_eq!(lines, 1001 + summary["link"][0]["duplicated"].as_u64().unwrap(), "{summary}");
    assert_eq!(summary["link"][0]["not_recorded"], 0);
    let (repeated, summary) = through("play", &["--play", &first, "--record", &second]);
    assert_eq!(summary["link"][0]["beyond_recording"], 0);
    let count = |numbers: &[u32]| (0..1000).map(|n| numbers.iter().filter(|m| **m == n).count()).collect::<Vec<_>>();
    assert_eq!(count(&repeated), count(&arrived));
    let (one, other) = (decisions(&first), decisions(&second));
    assert!(one == other && one.len() as u64 == lines, "{first} {second}");
    let (_, summary) = through(
        "play-half",
        &["--play", &{
            let half = folder.path("half.csv");
            let text = std::fs::read_to_string(&first).unwrap();
            let is_kept =
                |line: &&str| line.split(',').nth(1).and_then(|n| n.parse().ok()).is_none_or(|n: u32| n <= 600);
            std::fs::write(&half, text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect::<String>())
                .unwrap();
            half
        }],
    );
    assert_eq!(summary["link"][0]["beyond_recording"], 400);
}

/// The directions of a link lose different packets with the same seed, and runs without a seed do so, too.
#[test]
fn directions_and_runs_differ() {
    let folder = Folder::new("link-seeds");
    let file = folder.path("record.csv");
    let ports = ["sim:0?count=1000&rate=1M", "sim:1?count=1000&rate=1M"];
    let lost = |seed: &[&str]| {
        let options = ["--loss", "10%", "--record", &file, "--seconds", "2", "--json"];
        let output = linerate(&[&["link"], &ports[..], &options, seed].concat()).output_in_time().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        // Of the first 500: a busy machine may not have sent all when the run ends.
        let of_way = |way: &str| {
            let lines = text.lines().filter(|line| line.starts_with(way));
            let number = |line: &str| line.split(',').nth(1).unwrap().parse::<u32>().unwrap();
            assert!(lines.clone().map(number).max() >= Some(500), "{text}");
            let lost = lines.filter(|line| line.contains(",lost,")).map(number);
            lost.filter(|number| *number <= 500).collect::<Vec<_>>()
        };
        ([of_way("forward"), of_way("back")], kit::text(&output.stderr))
    };
    let ([forward, back], said) = lost(&["--seed", "7"]);
    assert!(said.contains("seed 7"), "{said}");
    let both = forward.iter().filter(|number| back.contains(number)).count();
    // About a tenth of 50.
    assert!(forward.len() > 20 && back.len() > 20 && both < 18, "{both} of {} and {}", forward.len(), back.len());
    let (first, said) = lost(&[]);
    assert!(first != lost(&[]).0, "{first:?}");
    // The seeds of both directions are shown, and repeat the run.
    let seeds: Vec<&str> = said.split("seed ").skip(1).map(|rest| rest.split([',', '\n']).next().unwrap()).collect();
    assert_eq!(seeds.len(), 2, "{said}");
    assert_eq!(lost(&["--seed", &seeds.join("/")]).0, first);
}

/// A link in the name of a port records and repeats its decisions, too.
#[test]
fn a_port_s_name_records_and_repeats() {
    let folder = Folder::new("link-name");
    let [capture, first, second] = ["in.pcap", "first.csv", "second.csv"].map(|file| folder.path(file));
    write_frames(&capture, &numbered(1000));
    let run = |options: &str| {
        let port = format!("link:pcap:{capture}?loop=1;{options}").replace(';', "&");
        // It fails because of lost packets.
        let output = linerate(&["sink", &port, "--json"]).output_in_time().unwrap();
        summary(&output.stdout)["packets"].as_u64().unwrap()
    };
    // There are no packets to this port.
    let arrived = run(&format!("delay=1ms/2ms;loss=10%/20%;burst=3/1;record={first}"));
    let text = std::fs::read_to_string(&first).unwrap();
    let lines = |what: &str| text.lines().filter(|line| line.contains(what)).count() as u64;
    assert_eq!((lines("forward,"), lines(",arrived,"), lines("back,")), (1001, arrived, 0));
    assert!(lines(",lost,") > 50, "{text}");
    assert_eq!(run(&format!("play={first};record={second}")), arrived);
    assert!(decisions(&first) == decisions(&second), "{first} {second}");
}

/// A disk that becomes full while the link runs is reported then, and lines that are missing are counted.
#[test]
fn a_full_disk_does_not_stop_the_link() {
    let (near, folder) = (Namespace::new("lkd"), Folder::new("link-disk"));
    let capture = folder.path("in.pcap");
    write_frames(&capture, &numbered(2000));
    // `ip netns exec` creates a mount namespace, too.
    let script = format!(
        "mount -t tmpfs -o size=16k none /mnt && exec '{}' link 'pcap:{capture}' null: --delay 1ms --json --count 100M \
         --seconds 60 --record /mnt/full.csv",
        env!("CARGO_BIN_EXE_linerate")
    );
    let output = near.of(["sh", "-c", &script]).output_in_time().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the recording /mnt/full.csv ends here: No space left on device"), "{said}");
    assert!(said.contains("linerate: /mnt/full.csv: cannot write it: No space left on device"), "{said}");
    let summary = summary(&output.stdout);
    let [written, missing] = ["recorded", "not_recorded"].map(|key| summary["link"][0][key].as_u64().unwrap());
    assert_eq!((written + missing, &summary["packets"]), (2001, &2000.into()), "{summary}");
    assert!(written > 0 && missing > 0, "{summary}");
}

/// Two namespaces, and a link between a TAP in each.
struct Net {
    near: Namespace,
    far: Namespace,
    link: Process,
}

impl Net {
    fn new(name: &str, options: &[&str]) -> Net {
        let (near, far) = (Namespace::new(&format!("{name}n")), Namespace::new(&format!("{name}f")));
        let words = [&["link", "tap:t0", "tap:t1", "--seconds", "100", "--json"], options].concat();
        let mut command = near.of([env!("CARGO_BIN_EXE_linerate")].iter().chain(&words));
        let mut link = Process::start(&mut command);
        link.await_error("tap:t1 to tap:t0: ");
        near.run(&format!("ip link set t1 netns {}", far.name));
        near.script("ip address add 10.66.0.1/24 dev t0 && ip link set t0 up");
        far.script("ip address add 10.66.0.2/24 dev t1 && ip link set t1 up");
        Net { near, far, link }
    }

    /// Returns the shortest round trip of three replies, in milliseconds.
    fn shortest_ping(&self) -> f64 {
        let output = self.near.run("ping -n -c 3 -i 0.2 -w 30 10.66.0.2");
        let times = output.lines().find(|line| line.contains("min/avg")).unwrap_or_else(|| panic!("{output}"));
        times.split(" = ").nth(1).and_then(|times| times.split('/').next()).unwrap().parse().unwrap()
    }
}

#[test]
fn programs_of_the_kernel_see_the_delay_and_its_changes() {
    let folder = Folder::new("link-control");
    let socket = folder.path("control");
    let net = Net::new("lk", &["--delay", "20ms/30ms", "--control", &socket]);
    let first = net.shortest_ping();
    assert!(first >= 50.0, "{first}");
    // A request changes the link, all of it or none.
    let mut control = BufReader::new(Timely(UnixStream::connect(&socket).unwrap()));
    let mut ask = |request: &str| {
        control.get_mut().0.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        control.read_line(&mut answer).unwrap();
        answer
    };
    for (request, why) in [
        (r#"{"link":{"delay":"1ms","rate":"10Mbit"}}"#, "needs the length of its queue"),
        (r#"{"link":{"delai":"1ms"}}"#, "no option delai"),
        (r#"{"link":{"seed":"3"}}"#, "cannot change"),
        (r#"{"link":{"delay":"100s"}}"#, "--packets"),
    ] {
        let answer = ask(request);
        assert!(answer.contains(why), "{request}: {answer}");
    }
    let state: Value = serde_json::from_str(&ask(r#"{"link":{"delay":"10ms","loss":""}}"#)).unwrap();
    assert_eq!(
        (&state["link"][1]["from"], &state["link"][1]["rate_bits"]),
        (&"tap:t1".into(), &Value::Null),
        "{state}"
    );
    assert_eq!(state["link"][0]["delay_ns"], 10_000_000, "the answer has the new value: {state}");
    let second = net.shortest_ping();
    assert!(second >= 20.0, "{second}");
    assert!(ask(r#"{"link":{"loss":"100%/0"}}"#).contains("seconds"));
    let lost = net.near.of("ping -n -c 3 -i 0.2 -W 1 10.66.0.2".split(' ')).output_in_time().unwrap();
    assert!(text(&lost.stdout).contains("100% packet loss"), "{}", text(&lost.stdout));
    let Net { link, far, .. } = net;
    let (code, output) = link.interrupt();
    assert_eq!(code, Some(0), "{output}");
    let summary: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert!(summary["summary"]["link"][0]["lost"].as_u64() >= Some(1), "{output}");
    drop(far);
}

/// Uploads over a link of 10 Mbit/s with a queue of 1 MB, and pings beside that. Returns the sorted round trips, and
/// the sorted times that packets would have waited in the link at these moments, in milliseconds. `settles` tells when
/// the sender has filled the queue, or has adapted to CoDel.
fn upload(name: &str, options: &[&str], settles: impl Fn(f64) -> bool) -> [Vec<f64>; 2] {
    let folder = Folder::new(&format!("link-{name}"));
    let socket = folder.path("control");
    let options = [&["--rate", "10Mbit", "--queue", "1MB", "--control", &socket], options].concat();
    let net = Net::new(name, &options);
    let mut control = BufReader::new(Timely(UnixStream::connect(&socket).unwrap()));
    let mut waiting = || {
        control.get_mut().0.write_all(b"{}\n").unwrap();
        let mut answer = String::new();
        control.read_line(&mut answer).unwrap();
        let state: Value = serde_json::from_str(&answer).unwrap();
        state["link"][0]["queue_ns"].as_u64().unwrap_or_else(|| panic!("{state}")) as f64 / 1e6
    };
    let mut server = net.far.start("iperf3 --server --one-off --forceflush");
    server.await_output("Server listening");
    // Reno doubles its window until the first loss. Cubic may stop before, as soon as it sees longer round trips.
    let client = net.near.start("iperf3 --client 10.66.0.2 --time 80 --congestion reno");
    until("the sender settles", || settles(waiting()));
    let mut ping = net.near.start("ping -n -c 25 -i 0.2 -w 60 10.66.0.2");
    let (mut times, mut waits) = (Vec::new(), Vec::new());
    loop {
        let line = ping.line();
        if line.is_empty() || line.contains("ping statistics") {
            break;
        }
        let time = line.split_once("time=").and_then(|(_, time)| time.split(' ').next()?.parse::<f64>().ok());
        if let Some(time) = time {
            times.push(time);
            waits.push(waiting());
        }
    }
    drop((client, server));
    times.sort_by(f64::total_cmp);
    waits.sort_by(f64::total_cmp);
    // A full queue drops some of them.
    assert!(times.len() >= 5, "{times:?}");
    [times, waits]
}

/// A long queue without and with CoDel. The bounds hold on a busy machine: the times in the queue are computed, and
/// processes that wait for a processor only make round trips longer. With CoDel, round trips are compared by their
/// median, with room for such waits; without it, hardly one is shorter than 400 ms.
#[test]
fn an_upload_fills_a_long_queue_unless_codel_empties_it() {
    // 1 MB at 10 Mbit/s are 0.8 s. After losses, the sender halves its window.
    let [times, waits] = upload("bb", &[], |wait| wait > 700.0);
    let (longest, most) = (times[times.len() - 1], waits[waits.len() - 1]);
    assert!(longest > 600.0 && (300.0..=801.3).contains(&most), "{times:?} {waits:?}");
    assert!(times[times.len() / 2] > 300.0, "{times:?}");
    let [times, waits] = upload("bc", &["--aqm", "codel"], |wait| (1.0..30.0).contains(&wait));
    assert!(waits[waits.len() / 2] < 30.0, "{waits:?}");
    assert!(times[times.len() / 2] < 150.0, "{times:?}");
    println!("with CoDel: round trips {times:?} ms, in the queue {waits:?} ms");
}

#[test]
fn wrong_links_are_explained() {
    for (words, why) in [
        (&["link", "sim:0", "sim:1", "--rate", "10Mbit"][..], "--rate: a rate needs the length of its queue"),
        (&["link", "sim:0", "sim:1", "--delay", "20"], "--delay: it must be a time with a unit"),
        (&["link", "sim:0", "sim:1", "--delay", "2h"], "at most one hour"),
        (&["link", "sim:0", "sim:1", "--jitter", "1ms"], "--jitter: it needs delay, too"),
        (&["sink", "link:sim:0?rate=10Mbit"], "a rate needs the length of its queue"),
        (&["link", "sim:0", "sim:1", "--rate", "100", "--queue", "1p"], "--rate: it must be a rate in bits per second"),
        (
            &["link", "sim:0", "sim:1", "--delay", "1ms", "--jitter", "1ms", "--order", "maybe"],
            "possible values: on, off",
        ),
        (&["latency", "sim:0", "sim:1", "--queues", "2"], "frames are sent and received on one queue"),
        (&["rfc2544", "sim:0?queues=2", "sim:1"], "frames are sent and received on one queue"),
        (&["sink", "link:sim:0?delay=5"], "a time with a unit"),
        (&["link", "sim:0", "sim:1", "--play", "/dev/null"], "--play: /dev/null: it is not a regular file"),
        (
            &["link", "sim:0", "sim:1", "--play", "x", "--loss", "1%"],
            "--loss: the recording that is played has all decisions: omit this option",
        ),
        (&["link", "sim:0", "sim:1", "--record", "/dev/full"], "/dev/full: cannot write it: No space left"),
        (&["sink", "link:sim:0?rate=10Mbit&queue=5ms&queues=2"], "a link with a rate has one queue"),
        (&["sink", "link:sim:0?queues=2&record=/dev/null"], "a link with a recording has one queue"),
        (&["sink", "link:sim:0?play=x&loss=1%"], "loss=1%: the recording that is played has all decisions"),
        (&["sink", "link:sim:0?play=/dev/null"], "play=/dev/null: /dev/null: it is not a regular file"),
        (&["sink", "link:sim:0?record=/dev/full"], "record=/dev/full: /dev/full: cannot write it: No space"),
    ] {
        let output = linerate(words).output_in_time().unwrap();
        assert!(!output.status.success(), "{words:?}");
        assert!(text(&output.stderr).contains(why), "{words:?}: {}", text(&output.stderr));
    }
}

/// Packets that are in the link at the end are counted, also by commands that know no links.
#[test]
fn packets_in_flight_at_the_end_are_counted() {
    let of = |words: &[&str]| summary(&expect(0, &mut linerate(&[words, &["--json"]].concat())).stdout);
    let sum = of(&["link", "sim:0?rate=1k", "sim:1?rate=1k", "--delay", "60s", "--packets", "100k", "--seconds", "1"]);
    for port in 0..2 {
        let (link, port) = (&sum["link"][port], &sum["ports"][port]);
        assert!(link["in_flight"].as_u64() > Some(0), "{sum}");
        assert_eq!(
            (&link["in_flight"], &port["drops"]["in_flight"]),
            (&port["rx_slots"][0], &link["in_flight"]),
            "{sum}"
        );
    }
    assert_eq!((&sum["lost"], &sum["packets"]), (&0.into(), &0.into()), "{sum}");
    // For a sink, they are lost.
    let sink = ["sink", "link:sim:0?delay=60s&packets=100k", "--seconds", "1", "--json"];
    let sum = summary(&expect(1, &mut linerate(&sink)).stdout);
    assert_eq!(sum["ports"][0]["drops"]["in_flight"], sum["ports"][0]["rx_slots"][0], "{sum}");
    let sum = of(&["gen", "link:null:?delay=60s", "--rate", "1k", "--seconds", "1"]);
    assert!(sum["ports"][0]["unsent"].as_u64() > Some(0), "{sum}");
}

/// A port of the command may have a link, too.
#[test]
fn links_can_be_nested() {
    let words =
        ["link", "link:echo:a?delay=30ms&packets=1000", "link:echo:b?delay=40ms&packets=1000", "--delay", "50ms"];
    let output = expect(0, linerate(&words).args(["--seconds", "0.1", "--json"]));
    assert_eq!(summary(&output.stdout)["link"][1]["from"], "link:echo:b?delay=40ms&packets=1000");
}

/// Options in the names of ports belong to the ports, also if the link has options of the same name.
#[test]
fn ports_keep_their_options() {
    let words = ["link", "sim:0?count=100&wire=traffic&rate=1M", "null:", "--delay", "1ms", "--json", "--count", "100"];
    let output = expect(0, linerate(&words).args(["--seconds", "60"]));
    assert_eq!(summary(&output.stdout)["packets"], 100);
}
