//! `linerate capture` on Linux's interfaces: they may appear later; another user; programs for finished files.

mod kit;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use kit::{Folder, Namespace, Process, expect, inside, linerate, summary, text, until, write_frames};
use linerate::capture::{Format, Reader};
use serde_json::Value;

/// Debian's user for programs without rights of root, and its group.
const DAEMON: u32 = 1;

/// Frames of an experimental ethertype (IEEE 802), each with a number.
fn frames(count: u8) -> Vec<Vec<u8>> {
    let frame = |n| [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB5, n][..], &[0; 45]].concat();
    (0..count).map(frame).collect()
}

/// Creates a veth pair in a namespace, sends frames into its end `there`, and waits until Linux has sent them.
fn replay_into_new_pair(namespace: &Namespace, [here, there]: [&str; 2], file: &str, mut opened: impl FnMut()) {
    namespace.run(&format!("ip link add {here} type veth peer name {there}"));
    [here, there].iter().for_each(|name| drop(namespace.run(&format!("ip link set {name} up"))));
    opened();
    namespace.run(&format!("tcpreplay --topspeed -i {there} {file}"));
}

/// Waits until as many packet sockets receive all packets.
fn await_sockets(namespace: &Namespace, count: usize) {
    let receiving = || namespace.run("cat /proc/net/packet").matches(" 0003 ").count();
    until("packets are received", || receiving() == count);
}

fn written(path: &str) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path.as_ref()).unwrap();
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    while reader.next(&mut frame).unwrap().is_some() {
        frames.push(frame.clone());
    }
    frames
}

#[test]
fn any_is_all_interfaces_and_those_that_appear_later() {
    let (folder, namespace) = (Folder::new("live-any"), Namespace::new("la"));
    namespace.disable_ipv6("default");
    namespace.run("ip link set lo up");
    let [sent, path] = ["sent.pcap", "out.pcapng"].map(|name| folder.path(name));
    write_frames(&sent, &frames(20));
    let capture = format!("capture any --write {path} --only type:0x88b5,icmp --count 44 --seconds 60 --json");
    let mut capture = Process::start(&mut inside(&namespace, &capture));
    capture.await_error("packet:any: all interfaces, AF_PACKET rings, link up");
    await_sockets(&namespace, 1);
    replay_into_new_pair(&namespace, ["a0", "a1"], &sent, || ());
    replay_into_new_pair(&namespace, ["b0", "b1"], &sent, || ());
    // Two requests and two replies on the loopback interface.
    namespace.run("ping -q -c 2 -i 0.01 127.0.0.1");
    let (code, said) = capture.ended();
    let all = written(&path);
    let ours: Vec<Vec<u8>> = all.iter().filter(|frame| frame[12..14] == [0x88, 0xB5]).cloned().collect();
    assert_eq!((code, all.len(), ours), (Some(0), 44, [frames(20), frames(20)].concat()), "{said}");
    // Each packet has the interface that received it.
    let mut tshark = Command::new("tshark");
    let names = text(&expect(0, tshark.args(["-n", "-r", &path, "-T", "fields", "-e", "frame.interface_name"])).stdout);
    let count = |begin: &str| names.lines().filter(|name| name.starts_with(begin)).count();
    assert_eq!(["a", "b", "lo"].map(count), [20, 20, 4], "{names}");
    assert!(!names.contains("any"), "{names}");
    let lines = text(&expect(0, Command::new("tcpdump").args(["-n", "-r", &path])).stdout);
    // Hexadecimal lines follow unknown packets.
    let packets = lines.lines().filter(|line| !line.starts_with('\t')).count();
    assert_eq!(packets, 44, "{lines}");
    let said = text(&expect(1, &mut inside(&namespace, "gen packet:any --count 1 --seconds 9")).stderr);
    assert!(said.contains("it receives from all interfaces; to send, name one"), "{said}");
}

/// Each packet of the loopback interface is sent and received once.
#[test]
fn several_queues_receive_each_packet_once() {
    let (folder, namespace) = (Folder::new("live-queues"), Namespace::new("lq"));
    namespace.run("ip link set lo up");
    for port in ["packet:lo", "any"] {
        let path = folder.path("out.pcapng");
        let capture = format!("capture {port} --queues 2 --only icmp --write {path} --count 4 --seconds 60");
        let capture = Process::start(&mut inside(&namespace, &capture));
        await_sockets(&namespace, 2);
        namespace.run("ping -q -c 2 -i 0.01 127.0.0.1");
        assert_eq!(capture.ended().0, Some(0), "{port}");
        let mut frames = written(&path);
        frames.sort();
        frames.dedup();
        assert_eq!(frames.len(), 4, "{port}: two requests and two replies");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_interface_that_does_not_exist_yet_is_waited_for() {
    let (folder, namespace) = (Folder::new("live-wait"), Namespace::new("lw"));
    namespace.disable_ipv6("default");
    let [sent, path] = ["sent.pcap", "out.pcapng"].map(|name| folder.path(name));
    write_frames(&sent, &frames(5));
    let capture = format!("capture packet:w0 --wait-interface 60 --write {path} --count 5 --seconds 60");
    let mut capture = Process::start(&mut inside(&namespace, &capture));
    capture.await_error("note: waiting up to 60 s for interface w0");
    replay_into_new_pair(&namespace, ["w0", "w1"], &sent, || await_sockets(&namespace, 1));
    assert_eq!((capture.ended().0, written(&path)), (Some(0), frames(5)));
    let never = inside(&namespace, "capture packet:n0 --wait-interface 0.1").output().unwrap();
    let said = text(&never.stderr);
    assert!(said.contains("n0 has not appeared within 0.1 s") && said.contains("there is no such interface"), "{said}");
    assert!(!never.status.success());
}

/// Files have the seconds of the clock, as tshark reads their times.
#[test]
fn files_begin_at_multiples_of_their_time() {
    let folder = Folder::new("live-clock");
    let (input, path) = (folder.path("in.pcap"), folder.path("ring.pcapng"));
    let mut bytes = Vec::new();
    Format::Pcap.begin(&mut bytes, 65_535, &[]);
    // A packet each 0.7 s, from 0.65 s before a multiple of ten seconds.
    let times = (0..40).map(|n| 1_699_999_999_350_000_000 + n * 700_000_000);
    times.clone().for_each(|time| Format::Pcap.append(&mut bytes, 0, time, &[0; 60], 60));
    std::fs::write(&input, bytes).unwrap();
    for seconds in [1, 10] {
        let length = seconds.to_string();
        let port = format!("pcap:{input}");
        let words = ["capture", &port, "--write", &path, "--file-seconds", &length, "--json"];
        let said = summary(&expect(0, &mut linerate(&words)).stdout);
        let files = said["capture"]["files"].as_array().unwrap();
        let intervals: Vec<u64> = files.iter().map(|file| interval(file, seconds)).collect();
        let mut wanted: Vec<u64> = times.clone().map(|time| time / 1_000_000_000 / seconds).collect();
        wanted.dedup();
        assert_eq!(intervals, wanted, "{said}");
    }
}

/// Returns the interval that contains all times of a file.
fn interval(file: &Value, seconds: u64) -> u64 {
    let fields = ["-T", "fields", "-e", "frame.time_epoch"];
    let times = text(&expect(0, Command::new("tshark").args(["-r", file.as_str().unwrap()]).args(fields)).stdout);
    let interval = |line: &str| line.split('.').next().unwrap().parse::<u64>().unwrap() / seconds;
    let mut intervals: Vec<u64> = times.lines().map(interval).collect();
    intervals.dedup();
    assert_eq!(intervals.len(), 1, "{file}: {times}");
    intervals[0]
}

#[test]
fn a_program_runs_for_each_finished_file() {
    let folder = Folder::new("live-command");
    let path = folder.path("ring.pcapng");
    let capture = |program: &str| {
        let words =
            ["capture", "sim:0?count=1000", "--count", "1000", "--write", &path, "--file-size", "10k", "--json"];
        let output = expect(0, linerate(&words).args(["--file-command", program]));
        (summary(&output.stdout)["capture"].clone(), text(&output.stderr))
    };
    let (said, errors) = capture("gzip");
    let files: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 5 && files.iter().all(|file| file.extension().unwrap() == "gz"), "{files:?}");
    let counts = ["succeeded_commands", "failed_commands", "missing_files"].map(|count| said[count].as_u64().unwrap());
    assert_eq!((counts, errors.contains("--file-command")), ([files.len() as u64, 0, 0], false), "{said} {errors}");
    let frames = files.iter().map(|file| {
        expect(0, Command::new("gunzip").arg(file));
        written(file.with_extension("").to_str().unwrap()).len()
    });
    assert_eq!(frames.sum::<usize>(), 1000);

    let (said, errors) = capture("false");
    assert_eq!((&said["failed_commands"], &said["written"]), (&files.len().into(), &1000.into()), "{said}");
    assert!(
        errors.contains(&format!("note: --file-command failed for {} files, the first one", files.len())),
        "{errors}"
    );
    let (said, errors) = capture("/nowhere/program");
    assert!(said["failed_commands"] == files.len() && errors.contains("No such file or directory"), "{said} {errors}");
}

/// All threads and the file belong to the user.
#[test]
fn a_capture_continues_as_another_user() {
    let (folder, namespace) = (Folder::new("live-user"), Namespace::new("lu"));
    namespace.run("ip link set lo up");
    chown(&folder.0, Some(DAEMON), None).unwrap();
    let path = folder.path("out.pcapng");
    let capture = format!("capture packet:lo --only icmp --user daemon --write {path} --count 4 --seconds 60 --json");
    let capture = Process::start(&mut inside(&namespace, &capture));
    await_sockets(&namespace, 1);
    let threads: Vec<_> = std::fs::read_dir(format!("/proc/{}/task", capture.id())).unwrap().collect();
    for thread in threads {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{status}"));
            line.split_whitespace().map(str::to_string).collect::<Vec<_>>()
        };
        for ids in ["Uid:", "Gid:"] {
            assert_eq!(field(ids), vec![DAEMON.to_string(); 4], "{status}");
        }
        assert_eq!(field("Groups:"), [DAEMON.to_string()], "{status}");
        for capabilities in ["CapEff:", "CapPrm:"] {
            assert_eq!(field(capabilities), ["0000000000000000"], "{status}");
        }
    }
    namespace.run("ping -q -c 2 -i 0.01 127.0.0.1");
    let (code, said) = capture.ended();
    let owner = std::fs::metadata(&path).unwrap().uid();
    assert_eq!((code, written(&path).len(), owner), (Some(0), 4, DAEMON), "{said}");

    let refused = |code, words: &str, why: &str| {
        let said = text(&expect(code, &mut inside(&namespace, words)).stderr);
        assert!(said.contains(why), "{words}: {said}");
    };
    refused(2, "capture packet:lo --user no-such-user", "there is no such user");
    refused(2, "capture xdp:lo?flow=udp --user daemon", "needs root: leave out --user");
    // The command's own folder may be closed to other users.
    let program = folder.path("linerate");
    expect(0, Command::new("cp").arg(env!("CARGO_BIN_EXE_linerate")).arg(&program));
    let mut other = Command::new(&program);
    other.args(["capture", "null:", "--user", "root"]);
    let said = text(&expect(1, other.uid(DAEMON).gid(DAEMON)).stderr);
    assert!(said.contains("only root can; otherwise leave it out"), "{said}");
}

/// An interface whose name is not UTF-8 is given by its index; errors explain this.
#[test]
fn an_interface_without_a_name_in_utf8_has_its_index() {
    let (folder, namespace) = (Folder::new("live-bytes"), Namespace::new("lb"));
    namespace.disable_ipv6("default");
    let [sent, path] = ["sent.pcap", "out.pcapng"].map(|name| folder.path(name));
    write_frames(&sent, &frames(5));
    namespace.script(
        r"name=$(printf 'e\377x'); ip link add v0 type veth peer name $name; ip link set v0 up; ip link set $name up",
    );
    let index = namespace.script("cat /sys/class/net/e*/ifindex").trim().to_string();
    let capture = format!("capture packet:{index} --write {path} --count 5 --seconds 60");
    let capture = Process::start(&mut inside(&namespace, &capture));
    await_sockets(&namespace, 1);
    namespace.run(&format!("tcpreplay --topspeed -i v0 {sent}"));
    assert_eq!((capture.ended().0, written(&path)), (Some(0), frames(5)));

    let said = text(&expect(2, &mut inside(&namespace, "capture packet:nope --count 1")).stderr);
    assert!(said.contains(&format!("{index} (its name is not UTF-8)")), "{said}");
    let said = text(&expect(2, &mut inside(&namespace, "capture packet:e%FFx --count 1")).stderr);
    assert!(said.contains("and such an interface as its index"), "{said}");
    let mut bytes = linerate(&["capture"]);
    let said = text(&expect(2, bytes.arg(std::ffi::OsStr::from_bytes(b"packet:e\xFFx"))).stderr);
    assert!(said.contains("give an interface with such a name by its index, as packet:7"), "{said}");
}
