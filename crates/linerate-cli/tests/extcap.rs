//! `linerate extcap`: called as Wireshark calls it, and by tshark.

mod kit;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kit::{Deadline, Folder, OutputTimeout, Process, expect, linerate, output_of, text, until, write_frames};
use linerate::capture::Reader;
use linerate::traffic::Checker;
use rustix::process::{Pid, Signal, kill_process};

/// A folder for files and for the sockets of a server.
struct Place {
    folder: Folder,
    server: Option<Process>,
}

impl Place {
    fn new(name: &str) -> Place {
        Place { folder: Folder::new(&format!("extcap-{name}")), server: None }
    }

    fn serving(name: &str) -> Place {
        let mut place = Place::new(name);
        let mut server = Process::start(&mut place.command(&["serve"]));
        server.await_output("any");
        place.server = Some(server);
        place
    }

    fn ports(&self) -> String {
        self.folder.path("ports")
    }

    /// Returns a command with this folder as HOME.
    fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LINERATE_PORTS", self.ports()).env("HOME", &self.folder.0).env_remove("XDG_CONFIG_HOME");
        command.env("PATH", format!("{}:{}", parent(env!("CARGO_BIN_EXE_linerate")), std::env::var("PATH").unwrap()));
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(linerate(&[]).get_program());
        command.args(arguments);
        command
    }

    /// Calls the program, which must succeed and print nothing to standard error.
    fn says(&self, arguments: &[&str]) -> String {
        let output = expect(0, self.command(&["extcap"]).args(arguments));
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        text(&output.stdout)
    }

    /// Calls the program, which must fail with one line.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = expect(1, self.command(&["extcap"]).args(arguments));
        let why = text(&output.stderr);
        assert!(why.starts_with("linerate: ") && why.lines().count() == 1, "{arguments:?}: {why}");
        why
    }

    /// Starts a capture into a new pipe, and opens the pipe.
    fn capture(&self, arguments: &[&str]) -> (Capture, Reader) {
        let pipe = self.pipe();
        let mut command = self.command(&["extcap", "--capture", "--fifo", &pipe]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let capture = Capture(command.spawn().unwrap());
        // The header is written once the port is open.
        let reader = Reader::new(File::open(pipe).unwrap(), "the pipe");
        match reader {
            Ok(reader) => (capture, reader),
            Err(error) => panic!("{error}: {:?}", capture.ended()),
        }
    }

    fn pipe(&self) -> String {
        let path = self.folder.path("pipe");
        let _ = std::fs::remove_file(&path);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }
}

fn parent(path: &str) -> String {
    Path::new(path).parent().unwrap().display().to_string()
}

/// A running capture.
struct Capture(Child);

impl Capture {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    /// Returns whether it has a handler for a signal (proc(5)).
    fn handles(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    }

    /// Waits for its end; returns the exit code and standard error.
    fn ended(self) -> (Option<i32>, String) {
        let output = output_of(self.0);
        assert_eq!(text(&output.stdout), "");
        (output.status.code(), text(&output.stderr))
    }
}

fn well() -> (Option<i32>, String) {
    (Some(0), String::new())
}

/// Reads all frames of a capture, with their original lengths.
fn frames(mut reader: Reader) -> Vec<(Vec<u8>, usize)> {
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    while let Some(record) = reader.next(&mut bytes).unwrap() {
        all.push((bytes.clone(), record.original_len));
    }
    assert!(!reader.is_cut());
    all
}

/// Returns a UDP packet to a port, whose length depends on the port.
fn packet(port: u8) -> Vec<u8> {
    let mut frame = vec![0; 60 + usize::from(port)];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[37] = port;
    frame
}

const GENERAL: &str = "interface {value=linerate}{display=linerate: any port}\n";

#[test]
fn interfaces_are_listed() {
    let version = concat!("extcap {version=", env!("CARGO_PKG_VERSION"), "}{display=linerate}\n");
    let alone = Place::new("alone").says(&["--extcap-interfaces", "--extcap-version=4.0"]);
    assert_eq!(alone, format!("{version}{GENERAL}"));
    let place = Place::serving("served");
    expect(0, &mut place.command(&["switch", "create", "v1"]));
    let mut sink = Process::start(&mut place.command(&["sink", "vale0:a", "--seconds", "60", "--json"]));
    sink.await_output("ports");
    let served = ["v1", "vale0:a"].map(|port| {
        format!(
            "interface {{value=linerate-{port}+rt}}{{display=linerate {port}: copies of its packets}}\n\
             interface {{value=linerate-{port}}}{{display=linerate {port}: the port itself}}\n"
        )
    });
    assert_eq!(place.says(&["--extcap-interfaces"]), format!("{version}{GENERAL}{}", served.concat()));
}

#[test]
fn link_types_and_options_are_listed() {
    let place = Place::new("options");
    let snaplen = "arg {number=1}{call=--snaplen}{display=Snap length}{type=unsigned}{default=262144}{range=1,262144}";
    for interface in ["linerate", "linerate-vale0:a+rt", "linerate-p}1", "linerate-odd%7D"] {
        let call = |what| place.says(&["--extcap-interface", interface, what]);
        assert_eq!(call("--extcap-dlts"), "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
        let (config, is_general) = (call("--extcap-config"), interface == "linerate");
        assert_eq!(config.lines().count(), if is_general { 2 } else { 1 }, "{config}");
        assert!(config.lines().last().unwrap().starts_with(snaplen), "{config}");
        let port = "arg {number=0}{call=--port}{display=Port}{type=string}{default=sim:0}";
        assert_eq!(config.starts_with(port), is_general, "{config}");
    }
    for interface in ["eth0", "linerate-", "linerate-%"] {
        for what in ["--extcap-dlts", "--extcap-config"] {
            let why = place.fails(&["--extcap-interface", interface, what]);
            assert!(why.contains(&format!("there is no interface '{interface}'; try: ")), "{why}");
        }
    }
    for usage in [&[][..], &["--extcap-dlts"], &["--capture", "--extcap-interface", "linerate"], &["--snaplen", "0"]] {
        expect(2, place.command(&["extcap"]).args(usage));
    }
}

/// A model's frames arrive complete and in order, and the capture ends with its reader.
#[test]
fn a_models_packets_are_captured() {
    let place = Place::new("model");
    let general = ["--extcap-interface=linerate", "--port", "sim:0?size=128&flows=3"];
    let (capture, mut reader) = place.capture(&general);
    let (mut checker, mut bytes, mut last) = (Checker::default(), Vec::new(), 0);
    for _ in 0..20_000 {
        let record = reader.next(&mut bytes).unwrap().unwrap();
        assert_eq!((bytes.len(), record.original_len), (124, 124));
        let time = record.nanoseconds.unwrap();
        assert!(time >= last && time > 1_500_000_000_000_000_000);
        last = time;
        checker.check(&bytes);
    }
    drop(reader);
    assert_eq!(capture.ended(), well());
    let report = checker.report();
    let counts = (report.received, report.lost, report.reordered, report.corrupted, report.foreign);
    assert_eq!(counts, (20_000, 0, 0, 0, 0));
}

/// Captures a file's frames with a filter and a snap length; the capture ends with the file.
#[test]
fn filters_and_snap_lengths_hold() {
    let place = Place::new("filters");
    let file = place.folder.path("in.pcap");
    let all: Vec<Vec<u8>> = (0..200).map(|n| packet(n % 4)).chain([vec![0x55; 5000]]).collect();
    write_frames(&file, &all);
    let port = format!("pcap:{file}");
    for (filter, snaplen) in [("", 262_144), ("udp:2", 262_144), ("udp:1,udp:3", 64), ("arp", 64), ("all", 4000)] {
        let snaplen_text = snaplen.to_string();
        let (capture, reader) = place.capture(&[
            "--extcap-interface",
            "linerate",
            "--extcap-capture-filter",
            filter,
            "--port",
            &port,
            "--snaplen",
            &snaplen_text,
        ]);
        let is_kept = |frame: &&Vec<u8>| match filter {
            "udp:2" => frame.len() == 62,
            "udp:1,udp:3" => [61, 63].contains(&frame.len()),
            "arp" => false,
            _ => true,
        };
        let cut = |frame: &Vec<u8>| (frame[..frame.len().min(snaplen)].to_vec(), frame.len());
        let expected: Vec<_> = all.iter().filter(is_kept).map(cut).collect();
        assert_eq!(frames(reader), expected, "{filter}");
        assert_eq!(capture.ended(), well(), "{filter}");
    }
}

/// Without packets a capture sleeps, and ends by a signal or with its reader.
#[test]
fn a_capture_without_packets_ends() {
    let place = Place::serving("quiet");
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let (capture, reader) = place.capture(&["--extcap-interface", "linerate-vale0:a"]);
        if let Some(signal) = signal {
            capture.signal(signal);
            assert_eq!(frames(reader), []);
        } else {
            drop(reader);
        }
        assert_eq!(capture.ended(), well(), "{signal:?}");
    }
    // Before the pipe has a reader. It ends by the first signal for which it has a handler.
    let pipe = place.pipe();
    let mut command =
        place.command(&["extcap", "--capture", "--extcap-interface", "linerate-vale0:b", "--fifo", &pipe]);
    let capture = Capture(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    until("it has a handler for SIGTERM", || capture.handles(Signal::TERM));
    capture.signal(Signal::TERM);
    assert_eq!(capture.ended(), well());
}

/// A port that another program uses is captured by copies, even if it is an end of a pipe.
#[test]
fn copies_of_served_ports_are_captured() {
    let place = Place::serving("copies");
    for (port, interface) in [("vale0:b", "linerate-vale0:b+rt"), ("p}1", "linerate-p}1+r")] {
        let mut sink =
            Process::start(&mut place.command(&["sink", port, "--seconds", "60", "--json", "--count", "1k"]));
        match port {
            "p}1" => drop(sink.await_error("waiting for the link")),
            _ => drop(sink.await_output("ports")),
        }
        let (capture, mut reader) = place.capture(&["--extcap-interface", interface]);
        if port == "vale0:b" {
            let pipe = place.pipe();
            let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
            let why = place.fails(&["--capture", "--extcap-interface=linerate-vale0:b", "--fifo", &pipe]);
            let copies = "another program uses port 'vale0:b'; to capture copies of its packets: linerate-vale0:b+rt";
            assert!(why.contains(copies), "{why}");
        }
        let from = if port == "p}1" { "p{1" } else { "vale0:a" };
        expect(0, &mut place.command(&["gen", from, "--count", "1k", "--rate", "10k", "--seconds", "60"]));
        let (mut checker, mut bytes) = (Checker::default(), Vec::new());
        for _ in 0..1000 {
            reader.next(&mut bytes).unwrap().unwrap();
            checker.check(&bytes);
        }
        capture.signal(Signal::TERM);
        assert_eq!(frames(reader), []);
        assert_eq!(capture.ended(), well());
        let report = checker.report();
        assert_eq!((report.received, report.lost, report.foreign), (1000, 0, 0), "{port}");
        assert_eq!(sink.ended().0, Some(0));
    }
}

/// Drops of the port while the reader does not read are reported at the end.
#[test]
fn dropped_packets_are_reported() {
    const COUNT: u64 = 20_000;
    let place = Place::serving("dropped");
    let (capture, mut reader) = place.capture(&["--extcap-interface=linerate-vale0:a"]);
    expect(0, &mut place.command(&["gen", "vale0:b", "--count", &COUNT.to_string(), "--seconds", "60"]));
    // Once all are counted, they have passed the switch.
    let deadline = Deadline::begin();
    let dropped = loop {
        let list = text(&expect(0, &mut place.command(&["switch", "list", "--json"])).stdout);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let port = list["ports"].as_array().unwrap().iter().find(|port| port["name"] == "vale0:a").unwrap();
        let (to_it, drops) = (port["rx_packets"].as_u64().unwrap(), port["drops"].as_u64().unwrap());
        deadline.check(|| format!("of {COUNT} packets {to_it} came to the port, {drops} were dropped: {list}"));
        if to_it + drops >= COUNT {
            break drops;
        }
    };
    assert!(dropped > 0);
    let mut bytes = Vec::new();
    for _ in 0..COUNT - dropped {
        reader.next(&mut bytes).unwrap().unwrap();
    }
    capture.signal(Signal::TERM);
    let (code, why) = capture.ended();
    assert_eq!((code, why.lines().count()), (Some(0), 1), "{why}");
    assert!(why.starts_with(&format!("linerate: vale0:a dropped {dropped} packets, which arrived faster")), "{why}");
}

#[test]
fn what_cannot_be_captured_is_explained() {
    let place = Place::new("refused");
    // A filter alone is checked, and the result is printed to standard output.
    for filter in ["udp:53", "tcp:80+from:10.0.0.0/8,icmp", "", " arp "] {
        assert_eq!(place.says(&["--extcap-capture-filter", filter, "--extcap-interface=linerate"]), "");
    }
    let refused = "udp port 53: not a valid filter: there is no 'udp port 53'";
    let said = place.says(&["--extcap-capture-filter", "udp port 53", "--extcap-interface=linerate"]);
    assert!(said.starts_with(refused) && said.contains("; try: udp:4321") && said.lines().count() == 1, "{said}");
    assert!(place.says(&["--extcap-capture-filter=--x"]).contains("'--x'"));
    let pipe = place.pipe();
    let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let capture = |interface, fifo, more: &[&str]| {
        place.fails(&[&["--capture", "--extcap-interface", interface, "--fifo", fifo], more].concat())
    };
    let why = capture("linerate", &pipe, &["--extcap-capture-filter", "udp port 53"]);
    assert!(why.starts_with(&format!("linerate: {refused}")) && why.contains("; try: udp:4321"), "{why}");
    for (port, part) in [
        ("nonsense", "nonsense: no port has this name"),
        ("sim:0?speed=9", "option speed=9"),
        ("pcap:/nonexistent", "/nonexistent"),
        ("vale0:a+rt", "vale0:a"),
    ] {
        assert!(capture("linerate", &pipe, &["--port", port]).contains(part), "{port}");
    }
    assert!(capture("eth0", &pipe, &[]).contains("there is no interface 'eth0'"));
    assert!(capture("linerate", "/nonexistent/pipe", &[]).contains("/nonexistent/pipe: cannot write to it: "));
}

#[test]
fn installs_and_uninstalls() {
    let place = Place::new("install");
    let folders = [".local/lib/wireshark/extcap", ".config/wireshark/extcap"];
    let links: Vec<PathBuf> =
        folders.iter().map(|folder| place.folder.0.join(folder).join("linerate-extcap")).collect();
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_linerate")).unwrap();
    // Installing twice has the same result.
    for _ in 0..2 {
        let said = place.says(&["--install"]);
        assert!(links.iter().all(|link| said.contains(&format!("{} -> ", link.display()))), "{said}");
        assert!(said.ends_with("to check: tshark -D\n"), "{said}");
        assert!(links.iter().all(|link| std::fs::read_link(link).unwrap() == program));
    }
    // A folder that another user may not access.
    let closed = place.folder.path("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut other = place.program("setpriv");
    other.args(["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_linerate"), "extcap", "--install"]);
    let said = text(&expect(1, other.env("HOME", closed)).stderr);
    assert!(said.contains("Permission denied") && said.contains("try another folder"), "{said}");
    let called = expect(0, place.program(&links[0]).arg("--extcap-interfaces"));
    assert!(text(&called.stdout).ends_with(GENERAL), "{}", text(&called.stdout));
    // Another program's file is kept, and nothing changes.
    let other = &links[1];
    std::fs::remove_file(other).unwrap();
    for make in [
        (|path| std::fs::write(path, "another's").unwrap()) as fn(&Path),
        |path| std::os::unix::fs::symlink("/bin/true", path).unwrap(),
        |path| std::fs::create_dir(path).unwrap(),
    ] {
        make(other);
        std::fs::remove_file(&links[0]).unwrap();
        assert!(place.fails(&["--install"]).contains("exists and is not a link to linerate; move it away"));
        assert!(links[0].symlink_metadata().is_err(), "all or none");
        std::os::unix::fs::symlink(&program, &links[0]).unwrap();
        assert!(
            place
                .fails(&["--uninstall", &parent(other.to_str().unwrap())])
                .contains("is not a link to linerate, and was not removed")
        );
        assert!(other.symlink_metadata().is_ok());
        let _ = std::fs::remove_file(other).or_else(|_| std::fs::remove_dir(other));
    }
    let said = place.says(&["--uninstall"]);
    assert_eq!(said, format!("removed {}\n", links[0].display()));
    assert!(links[0].symlink_metadata().is_err());
    let folder = place.folder.path("some/where");
    place.says(&["--install", &folder]);
    assert_eq!(std::fs::read_link(format!("{folder}/linerate-extcap")).unwrap(), program);
    place.says(&["--uninstall", &folder]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    // Without HOME, the folder must be given.
    let output = expect(1, place.command(&["extcap", "--install"]).env_remove("HOME"));
    assert!(text(&output.stderr).contains("HOME is not set; name the folder"), "{}", text(&output.stderr));
}

/// The commands of docs/extcap.md, in their order.
#[test]
fn documented_commands_run() {
    let place = Place::new("documented");
    let page = include_str!("../../../docs/extcap.md");
    let commands = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (mut background, mut captures) = (Vec::new(), 0);
    for line in commands.lines().map(|line| line.split("  #").next().unwrap().trim()) {
        if let Some(line) = line.strip_suffix(" &") {
            // The shell is replaced by the program, so that it ends with the test.
            let mut process = Process::start(place.program("sh").args(["-c", &format!("exec {line}")]));
            process.await_output(if line.contains("serve") { "any" } else { "pps" });
            background.push(process);
            continue;
        }
        let said = text(&expect(0, place.program("sh").args(["-c", line])).stdout);
        match line {
            "tshark -D" => assert!(said.contains(" linerate (linerate: any port)\n"), "{said}"),
            _ if line.starts_with("tshark") => {
                captures += 1;
                let packets = said.lines().filter(|line| line.contains(" 198.18.0.1 → 198.19.0.1 ")).count();
                assert_eq!((said.lines().count(), packets), (10, 10), "{line}: {said}");
            }
            _ => {}
        }
    }
    assert_eq!((captures, background.len()), (3, 2));
}

/// tshark lists the interfaces under names that it accepts, captures with the options and filters that it passes on,
/// and shows errors.
#[test]
fn tshark_captures() {
    let place = Place::serving("tshark");
    place.says(&["--install"]);
    let mut sink = Process::start(&mut place.command(&["sink", "vale0:a", "--seconds", "60", "--json"]));
    sink.await_output("ports");
    let listed = text(&expect(0, place.program("tshark").arg("-D")).stdout);
    for line in ["linerate (linerate: any port)", "linerate-vale0:a+rt (linerate vale0:a: copies of its packets)"] {
        assert!(listed.lines().any(|listed| listed.ends_with(&format!(". {line}"))), "{line}: {listed}");
    }
    let fields = ["-T", "fields", "-e", "ip.src", "-e", "udp.dstport", "-e", "frame.len", "-e", "frame.cap_len"];
    let capture = |arguments: &[&str]| {
        let output = place.program("tshark").args(["-c", "10"]).args(fields).args(arguments).output_in_time().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let port = "extcap.linerate.port:sim:0?size=300&rate=1k";
    let options = ["-i", "linerate", "-o", port, "-o", "extcap.linerate.snaplen:80", "-f", "udp:9"];
    let (code, said, why) = capture(&options);
    assert_eq!((code, said), (Some(0), "198.18.0.1\t9\t296\t80\n".repeat(10)), "{why}");
    assert!(why.lines().any(|line| line.ends_with("10 packets captured")), "{why}");
    assert!(!why.contains("Error by extcap"), "{why}");
    let (code, said, why) = capture(&["-i", "linerate", "-f", "udp port 53"]);
    assert!(code != Some(0) && said.is_empty() && why.contains("udp port 53: not a valid filter"), "{why}");
    let (code, said, why) = capture(&["-i", "linerate-vale0:a"]);
    assert!(
        code != Some(0) && said.is_empty() && why.contains("to capture copies of its packets: linerate-vale0:a+rt"),
        "{why}"
    );
}
