//! Runs Debian's programs on a port and, at the same time and with the system's libpcap, on the port's interface. Both
//! must list, print, write and report the same.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use linerate::capture::{Reader, Writer};
use linerate::traffic::{Generator, Template};
use rustix::process::{Pid, Signal, kill_process};

mod kit;
use kit::{Deadline, Debian, Namespace, OutputTimeout, World, end_of, is_in_state, object};

/// Numbers of UDP and TCP frames that the programs see.
const UDP: usize = 20;
const TCP: usize = 4;

/// When to interrupt a program.
enum End {
    /// Never: it ends by itself.
    Itself,
    /// After this number of lines on standard output.
    Lines(usize),
    /// After this text on standard output.
    Text(&'static str),
    /// After this number of frames in its file.
    Frames(usize),
}

/// For each program: its command, the text that it prints on standard output or standard error when it captures, and
/// how it ends. In the command, DEV, FILE and OBJECT are replaced; OBJECT preloads the shared object, for packet
/// sockets.
const PROGRAMS: [(&str, &str, End); 11] = [
    // As root, tcpdump would drop its privileges and could not write its file.
    ("tcpdump -Z root -l -nn -t -e -i DEV udp", "listening on", End::Lines(UDP)),
    ("tcpdump -Z root -nn -i DEV -c 24 -w FILE", "listening on", End::Itself),
    (
        "tshark --log-level info -l -n -i DEV -f udp -P -w FILE -T fields -e frame.len -e ip.src -e udp.srcport",
        "Capture started",
        End::Lines(UDP),
    ),
    ("dumpcap -q -i DEV -f udp -w FILE", "File:", End::Frames(UDP)),
    ("stdbuf -oL ngrep -q -d DEV -n 10 -x -O FILE . udp", "filter:", End::Itself),
    // Wait for all lines: an interrupt stops it even in the middle of a packet's lines.
    ("stdbuf -oL ngrep -d DEV -x . udp", "filter:", End::Lines(3 + UDP * 8)),
    ("stdbuf -oL p0f -i DEV tcp", "Entered main event loop", End::Text("10.0.0.4/")),
    ("/usr/bin/python3 -u counts.py DEV", "ready", End::Itself),
    ("/usr/bin/python3 -u sniffs.py DEV FILE", "ready", End::Itself),
    ("/usr/bin/python3 -u until.py DEV FILE pcap", "ready", End::Lines(UDP + 1)),
    ("OBJECT /usr/bin/python3 -u until.py DEV FILE sockets", "ready", End::Lines(UDP + 1)),
];

/// Counts frames through libpcap's functions, as programs with a foreign-function interface do.
const CTYPES: &str = r#"
import ctypes, sys
pcap = ctypes.CDLL("libpcap.so.0.8")
text = ctypes.create_string_buffer(256)
pcap.pcap_open_live.restype = ctypes.c_void_p
handle = ctypes.c_void_p(pcap.pcap_open_live(sys.argv[1].encode(), 65535, 1, 100, text))
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint), ("code", ctypes.c_void_p)]
program = Program()
assert pcap.pcap_compile(handle, ctypes.byref(program), b"tcp", 1, 0) == 0
assert pcap.pcap_setfilter(handle, ctypes.byref(program)) == 0
class Header(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("fraction", ctypes.c_long), ("captured", ctypes.c_uint), ("len", ctypes.c_uint)]
@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Header), ctypes.POINTER(ctypes.c_ubyte))
def each(user, header, bytes):
    print(header[0].captured, header[0].len, bytearray(bytes[:header[0].captured]).hex())
print("ready")
assert pcap.pcap_loop(handle, 4, each, None) == 0
statistics = (ctypes.c_uint * 3)()
assert pcap.pcap_stats(handle, statistics) == 0
print(list(statistics))
"#;

/// Captures with scapy, configured to use libpcap.
const SCAPY: &str = r#"
import logging, sys
logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import conf, sniff, wrpcap
conf.use_pcap = True
packets = sniff(iface=sys.argv[1], filter="udp", count=20, started_callback=lambda: print("ready"))
print(conf.L2listen.__name__, *(packet.summary() for packet in packets), sep="\n")
wrpcap(sys.argv[2], packets)
"#;

/// Captures until Ctrl-C, with libpcap or packet sockets.
const SCAPY_UNTIL: &str = r#"
import logging, signal, sys
logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import conf, sniff, wrpcap
# Python ignores Ctrl-C if its parent does, as a shell's background jobs do.
signal.signal(signal.SIGINT, signal.default_int_handler)
conf.use_pcap = sys.argv[3] == "pcap"
show = lambda packet: packet.summary()
packets = sniff(iface=sys.argv[1], filter="udp", prn=show, started_callback=lambda: print("ready"))
print(conf.L2listen.__name__, len(packets), "packets")
wrpcap(sys.argv[2], packets)
"#;

/// Lists interfaces through libpcap's functions.
const CTYPES_LIST: &str = r#"
import ctypes
pcap = ctypes.CDLL("libpcap.so.0.8")
class Interface(ctypes.Structure):
    pass
Interface._fields_ = [("next", ctypes.POINTER(Interface)), ("name", ctypes.c_char_p)]
first, text = ctypes.POINTER(Interface)(), ctypes.create_string_buffer(256)
assert pcap.pcap_findalldevs(ctypes.byref(first), text) == 0
while first:
    print(first.contents.name.decode())
    first = first.contents.next
"#;

/// Lists scapy's interfaces.
const SCAPY_LIST: &str = r#"
import logging
logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import conf, get_if_list
conf.use_pcap = True
conf.ifaces.reload()
print(*get_if_list(), sep="\n")
"#;

/// Sends frames through libpcap's functions.
const CTYPES_SEND: &str = r#"
import ctypes, sys
pcap = ctypes.CDLL("libpcap.so.0.8")
text = ctypes.create_string_buffer(256)
pcap.pcap_open_live.restype = ctypes.c_void_p
handle = ctypes.c_void_p(pcap.pcap_open_live(sys.argv[1].encode(), 65535, 1, 100, text))
for n in range(20):
    frame = bytes([255] * 6 + [2, 0, 0, 0, 0, 1, 0x88, 0xb5] + [n] * (46 + n))
    assert pcap.pcap_sendpacket(handle, frame, len(frame)) == 0
    print(pcap.pcap_inject(handle, frame, ctypes.c_size_t(len(frame))))
pcap.pcap_close(handle)
"#;

/// Opens a port with one library, and uses the handle with another.
const CTYPES_MIXED: &str = r#"
import ctypes, os, sys
from ctypes import byref, c_int, c_void_p
def library(name):
    library = ctypes.CDLL(os.path.realpath("/usr/lib/%s-linux-gnu/libpcap.so.0.8" % os.uname().machine) if name == "system" else name)
    library.pcap_open_live.restype = library.pcap_create.restype = library.pcap_open_dead.restype = c_void_p
    return library
one, other, text = library(sys.argv[1]), library(sys.argv[2]), ctypes.create_string_buffer(256)
dead = c_void_p(one.pcap_open_dead(105, 1000))
print(other.pcap_snapshot(dead))
handle = c_void_p(one.pcap_open_live(b"sim:0?rate=1k", 65535, 1, 100, text))
if not handle:
    sys.exit(text.value.decode())
at, bytes = c_void_p(), c_void_p()
print(other.pcap_next_ex(handle, byref(at), byref(bytes)), flush=True)
other.pcap_close(handle)
"#;

/// The name of a program's file in its folder.
const WRITTEN: &str = "written";

/// A running program, whose outputs are files. Dropping this value kills it.
struct Running {
    command: String,
    child: Child,
    outputs: [PathBuf; 2],
    written: PathBuf,
}

impl Running {
    fn start(
        (namespace, debian): (&Namespace, Debian),
        words: &str,
        folder: &Path,
        device: &str,
        is_ours: bool,
    ) -> Running {
        let object = if is_ours { format!("env LD_PRELOAD={} ", object().display()) } else { String::new() };
        let words = words.replace("OBJECT ", &object).replace("DEV", device);
        let words = words.replace("FILE", &folder.join(WRITTEN).display().to_string());
        let mut words = words.split(' ');
        let mut command = namespace.command_of(debian, words.next().unwrap(), is_ours);
        Running::spawn(command.args(words).current_dir(folder.parent().unwrap()), folder)
    }

    fn spawn(command: &mut Command, folder: &Path) -> Running {
        std::fs::create_dir_all(folder).unwrap();
        let outputs = ["output", "errors"].map(|name| folder.join(name));
        let [output, errors] = outputs.each_ref().map(|path| File::create(path).unwrap());
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap();
        Running { command: format!("{command:?}"), child, outputs, written: folder.join(WRITTEN) }
    }

    /// Returns the output and the errors so far.
    fn said(&self) -> [String; 2] {
        self.outputs.each_ref().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
    }

    #[track_caller]
    fn wait(&self, what: &str, mut is_so: impl FnMut(&Running) -> bool) {
        let deadline = Deadline::begin();
        while !is_so(self) {
            deadline.check(|| format!("{}: {what}: {:?}", self.command, self.said()));
            std::thread::yield_now();
        }
    }

    /// Interrupts the program while it sleeps: Python misses a signal that arrives just before, and continues to sleep.
    fn interrupt(&self) {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        self.wait("its sleep", |_| is_in_state(&folder, 'S'));
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Returns the frames in its file.
    fn frames(&self) -> Vec<Vec<u8>> {
        let (mut frames, mut frame) = (Vec::new(), Vec::new());
        let Ok(mut reader) = Reader::open(&self.written) else { return frames };
        while reader.next(&mut frame).is_ok_and(|record| record.is_some()) {
            frames.push(frame.clone());
        }
        frames
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes text that differs between two runs of one program.
fn comparable(text: &str, folder: &str) -> String {
    let text = text.replace("packet:v1", "v1").replace(folder, "");
    // Drop messages that contain the time and the process ID, and the packet counter, which is printed at intervals.
    let lines = text.split(['\n', '\r']).filter(|line| !line.contains("** (") && !line.starts_with("Packets: "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn programs_show_the_same_on_a_port_and_on_its_interface() {
    Debian::all().into_iter().for_each(show_the_same);
}

fn show_the_same(debian: Debian) {
    let namespace = Namespace::new("debian");
    let scratch = tempfile::tempdir().unwrap();
    for (name, script) in [("counts.py", CTYPES), ("sniffs.py", SCAPY), ("until.py", SCAPY_UNTIL)] {
        std::fs::write(scratch.path().join(name), script).unwrap();
    }
    let frames = scratch.path().join("frames.pcap");
    let (mut generator, mut writer) = (Generator::new(128, 4), Writer::create(&frames).unwrap());
    let syn: Template =
        "eth/ip(src=10.0.0.1-10.0.0.4,dst=10.0.0.9)/tcp(sport=1024-1027,dport=80,flags=S)".parse().unwrap();
    let mut syn = syn.frames().unwrap();
    for n in 0..UDP + TCP {
        let (mut long, mut short) = ([0; 124], [0; 60]);
        generator.fill(&mut long);
        syn.fill(&mut short);
        writer.write(n as u64 * 1000, if n < UDP { &long } else { &short }).unwrap();
    }
    drop(writer);
    for (words, ready, end) in PROGRAMS {
        let folders = ["theirs", "ours"].map(|name| scratch.path().join(name));
        let mut both = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
            Running::start((&namespace, debian), words, &folders[usize::from(is_ours)], device, is_ours)
        });
        for running in &both {
            running.wait(ready, |running| running.said().iter().any(|text| text.contains(ready)));
        }
        let sent = namespace
            .command("tcpreplay", false)
            .args(["-q", "-i", "v0", "--pps", "2000"])
            .arg(&frames)
            .output_in_time();
        assert!(sent.expect("tcpreplay is there").status.success());
        for running in &both {
            match end {
                End::Itself => continue,
                End::Lines(count) => running.wait("lines", |running| running.said()[0].lines().count() >= count),
                End::Text(text) => running.wait(text, |running| running.said()[0].contains(text)),
                End::Frames(count) => running.wait("frames", |running| running.frames().len() >= count),
            }
            running.interrupt();
        }
        let [theirs, ours] = both.each_mut().map(|running| {
            let ended = format!("/proc/{}/exe", running.child.id());
            running.wait("the end", |_| std::fs::read_link(&ended).is_err());
            let status = running.child.wait().unwrap();
            let folder = running.written.parent().unwrap().display().to_string();
            (status, running.said().map(|text| comparable(&text, &folder)), running.frames())
        });
        assert_eq!(ours, theirs, "{debian:?}: {words}");
        let is_empty = theirs.1.iter().all(|text| text.lines().count() < 2) && theirs.2.is_empty();
        assert!(theirs.0.success() && !is_empty, "{debian:?}: {words}: {theirs:?}");
    }
}

/// Programs list served ports in addition to the system's interfaces.
#[test]
fn programs_list_ports() {
    Debian::all().into_iter().for_each(list_ports);
}

fn list_ports(debian: Debian) {
    let world = World::new();
    let mut command = world.command("tcpdump");
    let client =
        Running::spawn(command.args(["-Z", "root", "-i", "vale88:listed"]), &world.folder.path().join("client"));
    client.wait("listening on", |client| client.said()[1].contains("listening on"));
    let scripts = [("ctypes.list", CTYPES_LIST), ("scapy.list", SCAPY_LIST)].map(|(name, script)| {
        let path = world.folder.path().join(name);
        std::fs::write(&path, script).unwrap();
        path.display().to_string()
    });
    let of_python = scripts.each_ref().map(|script| ("/usr/bin/python3", script.as_str()));
    for (program, option) in [("tcpdump", "-D"), ("tshark", "-D"), ("dumpcap", "-D"), ("p0f", "-L"), ("ip", "link")]
        .into_iter()
        .chain(of_python)
    {
        let list = |is_ours: bool| {
            let mut command = if is_ours { world.command_of(debian, program) } else { debian.command(program) };
            let output = command.arg(option).output_in_time().expect("it is there");
            assert!(output.status.success(), "{output:?}");
            let list = String::from_utf8(output.stdout).unwrap();
            // Compare without numbers: extcap interfaces follow the ports, which changes their numbers.
            let name = |line: &str| line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).to_string();
            list.lines().map(name).collect::<Vec<_>>()
        };
        let (theirs, ours) = (list(false), list(true));
        let mine = ours.iter().filter(|line| line.contains("vale88:listed")).count();
        assert_eq!(mine, 1, "{debian:?}: {program}: {ours:?}");
        assert!(
            !theirs.is_empty() && theirs.iter().all(|line| ours.contains(line)),
            "{debian:?}: {program}: {ours:?}, {theirs:?}"
        );
    }
}

/// Frames that a program sends through libpcap's functions arrive as from the interface.
#[test]
fn frames_that_a_program_sends_by_libpcap_arrive() {
    Debian::all().into_iter().for_each(sent_frames_arrive);
}

fn sent_frames_arrive(debian: Debian) {
    let namespace = Namespace::new("sends");
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("sends.py"), CTYPES_SEND).unwrap();
    let [theirs, ours] = [("v1", false), ("packet:v1", true)].map(|(device, is_ours)| {
        let folder = |what: &str| scratch.path().join(format!("{what}-{is_ours}"));
        let capture = format!("tcpdump -Z root -U -i v0 -c {} -w FILE", 2 * 20);
        let mut receiver = Running::start((&namespace, debian), &capture, &folder("receives"), device, false);
        receiver.wait("listening on", |running| running.said()[1].contains("listening on"));
        let mut sender =
            Running::start((&namespace, debian), "/usr/bin/python3 sends.py DEV", &folder("sends"), device, is_ours);
        assert!(end_of(&mut sender.child).success(), "{:?}", sender.said());
        assert!(end_of(&mut receiver.child).success(), "{:?}", receiver.said());
        (sender.said(), receiver.frames())
    });
    assert_eq!(theirs.1.len(), 40);
    assert!(ours == theirs, "{ours:?}, {theirs:?}");
}

/// Every name of libpcap opens this library, preloaded or in a folder. The system's library, opened by path, has its
/// own handles. A handle given to the wrong library is passed on, or reported.
#[test]
fn both_libraries_are_told_apart() {
    let scratch = tempfile::tempdir().unwrap();
    let run = |variable: &str, one: &str, other: &str| {
        let mut command = Command::new("/usr/bin/python3");
        let value = if variable == "LD_PRELOAD" { object() } else { kit::folder().to_path_buf() };
        command.args(["-c", CTYPES_MIXED, one, other]).env(variable, value).env("LINERATE_PORTS", scratch.path());
        let output = command.output_in_time().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let works = (Some(0), "1000\n1\n".to_string(), String::new());
    for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH"] {
        for name in ["libpcap.so", "libpcap.so.1", "libpcap.so.0.8"] {
            assert_eq!(run(variable, name, name), works, "{variable}: {name}");
        }
    }
    assert_eq!(run("LD_PRELOAD", "libpcap.so", "libpcap.so.0.8"), works);
    for other in ["system", "libpcap.so"] {
        let (status, said, errors) = run("LD_PRELOAD", "system", other);
        assert_eq!((status, &*said), (Some(1), "1000\n"), "{errors}");
        assert!(errors.contains("has opened the system's libpcap by its path"), "{errors}");
    }
    let (status, said, errors) = run("LD_PRELOAD", "libpcap.so", "system");
    // The first call need not use a function pointer of the handle, so output is possible.
    assert!(status.is_none() && said.starts_with("1000\n"), "{said}{errors}");
    assert!(
        errors.starts_with("linerate: the program has passed a handle of linerate's libpcap to the system's"),
        "{errors}"
    );
}
