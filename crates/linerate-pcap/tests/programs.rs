//! libpcap's programs on ports: tcpdump, and one of our own with all calls, beside the system's libpcap.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use linerate::capture::Writer;
use linerate::port::{Port, TxQueue};
use linerate::share::Server;
use linerate::traffic::Generator;
use linerate::{Batch, Options};
use rustix::process::{Pid, Signal, kill_process};

/// Returns a folder with the shared object, built like this test, under libpcap's name.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_path_buf();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "linerate-pcap", "--profile", "test", "--target-dir"]).arg(&target);
        assert!(build.status().unwrap().success());
        let folder = target.join("debug/libpcap");
        std::fs::create_dir_all(&folder).unwrap();
        let link = folder.join("libpcap.so.0.8");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target.join("debug/liblinerate_pcap.so"), link).unwrap();
        folder
    })
}

/// Returns the program of libpcap's calls, linked with the system's libpcap.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
        let output = std::env::current_exe().unwrap().with_extension("program");
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-o").arg(&output);
        let status = compile.arg("-l:libpcap.so.0.8").status();
        assert!(status.expect("a C compiler is there: apt install gcc").success());
        output
    })
}

/// A running program, which is killed with this value.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn new(command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Running { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    /// Waits for a line with this text on stderr.
    fn wait_for(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        let mut byte = [0];
        while !(read.ends_with(b"\n") && String::from_utf8_lossy(&read).contains(text)) {
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&read));
            read.extend(byte);
        }
        String::from_utf8(read).unwrap()
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for the end; returns the status, and what is left of stdout and stderr.
    fn end(mut self) -> (ExitStatus, String, String) {
        let (mut said, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut said).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap(), said, errors)
    }

    /// Waits for the end, which must be a success; returns stdout.
    #[track_caller]
    fn said(self) -> String {
        let (status, said, errors) = self.end();
        assert!(status.success(), "{status}: {said}{errors}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network namespace with a veth pair, `v0` and `v1`, that carries nothing of its own; it is deleted with the test.
struct Namespace(String);

impl Namespace {
    fn new(test: &str) -> Namespace {
        let namespace = Namespace(format!("linerate-pcap-{test}-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &namespace.0]).status();
        assert!(made.expect("iproute2 is there: apt install iproute2").success());
        for words in [
            "sh -c echo_1_>/proc/sys/net/ipv6/conf/default/disable_ipv6",
            "ip link add v0 type veth peer name v1",
            "ip link set v0 up",
            "ip link set v1 up",
        ] {
            let words: Vec<String> = words.split(' ').map(|word| word.replace('_', " ")).collect();
            let words = words.iter().map(|word| word.replace("disable ipv6", "disable_ipv6"));
            assert!(
                Running::new(Command::new("ip").args(["netns", "exec", &namespace.0]).args(words)).end().0.success()
            );
        }
        namespace
    }

    /// Returns a command inside: with this object's libpcap, or with the system's.
    fn command(&self, program: &str, is_ours: bool) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        if is_ours {
            command.env("LD_LIBRARY_PATH", folder());
        }
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

/// Writes a capture file of `count` frames of several flows.
fn capture(path: &Path, count: usize) {
    let mut generator = Generator::new(128, 4);
    let mut writer = Writer::create(path).unwrap();
    for n in 0..count {
        let mut frame = [0; 124];
        generator.fill(&mut frame);
        writer.write(1_700_000_000_000_000_000 + n as u64 * 1000, &frame).unwrap();
    }
}

/// tcpdump with this object on a port prints and writes what tcpdump prints and writes on its interface, where both see the
/// same frames.
#[test]
fn tcpdump_shows_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("tcpdump");
    let scratch = tempfile::tempdir().unwrap();
    let frames = scratch.path().join("frames.pcap");
    capture(&frames, 40);
    let written = [scratch.path().join("0.pcap"), scratch.path().join("1.pcap")];
    for arguments in [
        &["-e", "-xx"][..],
        &["-s", "50", "-xx", "-vv"],
        &["--immediate-mode", "udp src port 1025"],
        &["-Q", "in", "-c", "3", "len <= 124 and ip[8] > 1"],
        &["--time-stamp-precision=nano", "-w", "FILE"],
    ] {
        let mut both = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
            let mut command = namespace.command("tcpdump", is_ours);
            // As root tcpdump gives its privileges up, and could not write to this folder.
            command.args(["-Z", "root", "-i", device, "-nn", "-t"]);
            if !arguments.contains(&"-c") {
                command.args(["-c", if arguments.iter().any(|word| word.contains("1025")) { "10" } else { "40" }]);
            }
            let file = written[usize::from(is_ours)].display().to_string();
            command.args(arguments.iter().map(|&word| if word == "FILE" { &*file } else { word }));
            Running::new(&mut command)
        });
        for running in &mut both {
            running.wait_for("listening on");
        }
        let mut send = namespace.command("tcpreplay", false);
        let sent = send.args(["-q", "-i", "v0", "--pps", "2000"]).arg(&frames).output();
        assert!(sent.expect("tcpreplay is there").status.success());
        let [theirs, ours] = both.map(Running::said);
        assert_eq!(ours, theirs, "{arguments:?}");
        assert!(arguments.contains(&"-w") || theirs.lines().count() >= 3, "{theirs}");
    }
    let print = |file: &PathBuf| {
        let output = Command::new("tcpdump").args(["-nn", "-t", "-e", "-xx", "-r"]).arg(file).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let [theirs, ours] = [print(&written[0]), print(&written[1])];
    assert_eq!(ours, theirs);
    assert_eq!(ours.matches("198.18.0").count(), 40, "{ours}");
}

/// All calls, in all states of a handle, return the same on a port and on its interface.
#[test]
fn calls_return_the_same_on_a_port_and_on_its_interface() {
    let namespace = Namespace::new("calls");
    let program = program().display().to_string();
    let [theirs, ours] = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
        let mut command = namespace.command(&program, is_ours);
        Running::new(command.args(["api", device])).said().replace(device, "v1")
    });
    assert_eq!(ours, theirs);
    assert!(theirs.lines().count() > 50, "{theirs}");
}

/// Ports that this process serves.
struct World {
    folder: tempfile::TempDir,
    _server: Server,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let mut server = linerate::server();
        server.listen(&folder.path().join("any"), None, 0o600, None).unwrap();
        World { folder, _server: server }
    }

    /// Starts the program with this object's libpcap.
    fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(program());
        command.args(arguments).env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", self.folder.path());
        Running::new(&mut command)
    }
}

/// Opens a port of a switch in this process.
fn port(name: &str) -> Port {
    let [port] = Options { local: true, ..Options::default() }.open([name]).unwrap();
    port
}

/// Sends `count` frames.
fn send(port: &Port, tx: &mut TxQueue, count: usize) {
    let (mut generator, mut batch) = (Generator::new(64, 4), Batch::new());
    for at in (0..count).step_by(32) {
        batch.alloc(port.pool(), 32.min(count - at), 60);
        batch.packets().for_each(|mut packet| generator.fill(&mut packet));
        while !batch.is_empty() {
            tx.send(&mut batch);
        }
    }
    // Receivers that sleep are woken.
    while tx.unsent() > 0 {
        tx.send(&mut batch);
    }
}

/// A program that is slower than the frames come: those that it got and those that it is told were dropped are all.
#[test]
fn received_and_dropped_are_all_that_was_sent() {
    const SENT: usize = 60_000;
    let world = World::new();
    let mut slow = world.start(&["loop", "vale91:slow", "1"]);
    assert_eq!(slow.line(), "ready");
    let mut other = port("vale91:sender");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, SENT);
    slow.interrupt();
    let said = slow.said();
    let numbers: Vec<u64> = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [frames, received, dropped, disorder] = numbers[..] else { panic!("{said}") };
    assert_eq!((frames, disorder), (received, 0), "{said}");
    assert_eq!(received + dropped, SENT as u64, "{said}");
    assert!(dropped > 0 && received > 8000, "{said}");
}

/// Statistics count what the filter lets pass, and frames of one batch have times of their own, in order.
#[test]
fn a_filter_decides_what_is_counted() {
    let world = World::new();
    let mut loops = world.start(&["loop", "vale92:a", "0", "udp src port 1025"]);
    assert_eq!(loops.line(), "ready");
    let mut other = port("vale92:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 4000);
    loops.interrupt();
    assert_eq!(loops.said(), "1000 frames, 1000 received, 0 dropped, 0 times not in order\n");
}

/// The descriptor is readable while there are frames, by select(2) and poll(2), with each way to read them.
#[test]
fn programs_wait_for_the_descriptor() {
    let world = World::new();
    for how in ["select", "poll", "next"] {
        let mut waits = world.start(&[how, "vale93:a", "500"]);
        assert_eq!(waits.line(), "ready");
        let mut other = port("vale93:b");
        let mut tx = other.tx(0).unwrap();
        // One after the other, and many at once.
        for count in [1, 1, 98, 400] {
            send(&other, &mut tx, count);
        }
        assert_eq!(waits.said(), "500 frames, 500 received, 0 dropped, 0 times not in order\n", "{how}");
    }
}

/// A port that another program has is captured by its monitor, and ports that are served are listed.
#[test]
fn a_monitor_shows_what_another_program_sends() {
    let world = World::new();
    let mut receiver = world.start(&["loop", "vale94:a", "0"]);
    assert_eq!(receiver.line(), "ready");
    let mut copies = ["vale94:a+rt", "vale94:a/r"].map(|name| world.start(&["loop", name, "0"]));
    copies.iter_mut().for_each(|copy| assert_eq!(copy.line(), "ready"));
    let list = world.start(&["list"]).said();
    assert!(list.lines().any(|name| name == "vale94:a"), "{list}");
    let mut other = port("vale94:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 300);
    for running in [receiver].into_iter().chain(copies) {
        running.interrupt();
        assert_eq!(running.said(), "300 frames, 300 received, 0 dropped, 0 times not in order\n");
    }
}

/// Frames that a program injects arrive; one that is too long is refused as by the kernel.
#[test]
fn programs_send() {
    let world = World::new();
    let mut other = port("vale95:b");
    let mut rx = other.rx(0).unwrap();
    let said = world.start(&["send", "vale95:a", "500"]).said();
    assert_eq!(said, "too long: -1 send: Message too long\nsent\n");
    let (mut batch, mut numbers) = (Batch::new(), Vec::new());
    while numbers.len() < 500 {
        rx.recv(&mut batch);
        numbers.extend(batch.packets().map(|packet| u16::from_be_bytes([packet[20], packet[21]])));
        batch.clear();
    }
    assert_eq!(numbers, (0..500).collect::<Vec<u16>>());
}

/// Loops end by another thread, by a signal, from inside, and by longjmp(3).
#[test]
fn loops_end_in_every_way() {
    let world = World::new();
    let mut breaks = world.start(&["break", "vale96:a"]);
    let said: Vec<String> = (0..3).map(|_| breaks.line()).collect();
    assert_eq!(said[0], "pcap_loop(pcap, -1, each, NULL): -2");
    assert_eq!(said[1], "pcap_dispatch(pcap, -1, each, NULL): -2");
    assert_eq!(said[2], "ready");
    let mut other = port("vale96:b");
    let mut tx = other.tx(0).unwrap();
    send(&other, &mut tx, 12);
    let ends =
        ["pcap_loop(pcap, -1, leave_early, NULL): -2", "count: 5", "count: 3", "pcap_loop(pcap, 4, each, NULL): 0"];
    assert_eq!(breaks.said(), format!("{}\ncount: 7\n", ends.join("\n")));
}

/// Random calls leave no descriptor behind, and end; `LINERATE_CALLS` is their number.
#[test]
fn random_calls_leave_nothing_behind() {
    let world = World::new();
    let _sender = port("vale97:b");
    let calls = std::env::var("LINERATE_CALLS").unwrap_or("1000".to_string());
    for (device, seed) in [("vale97:a", "1"), ("vale97:b+rt", "2")] {
        assert_eq!(world.start(&["churn", device, &calls, seed]).said(), "0 descriptors more\n");
    }
}

/// Names that are nobody's are errors of the system's libpcap; a port that cannot be opened says why.
#[test]
fn names_that_cannot_be_opened_are_explained() {
    let world = World::new();
    let refused = |device: &str| world.start(&["api", device]).said();
    let said = world.start(&["loop", "sim:x?sise=64", "0"]).end().1;
    assert!(said.contains("sise=64: there is no such option; there are"), "{said}");
    let said = world.start(&["loop", "nosuch0", "0"]).end().1;
    assert!(said.starts_with("pcap_activate: "), "{said}");
    let said = refused("sim:x?wire=none");
    assert!(said.contains("pcap_activate(a): 0") && said.contains("pcap_setdirection(a, 0): 0"), "{said}");
}
