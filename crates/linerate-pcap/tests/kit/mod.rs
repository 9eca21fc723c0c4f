//! Test tools: programs that load this library instead of the system's libpcap, networks, ports.
#![allow(dead_code)] // each test uses only a part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use linerate::capture::Writer;
use linerate::port::{Port, TxQueue};
use linerate::share::Server;
use linerate::traffic::Generator;
use linerate::{Batch, Options};
#[allow(unused_imports)] // each test uses only a part
pub use linerate_testkit::{Deadline, Debian, OutputTimeout, Process, Timely, end_of, is_in_state};
use linerate_testkit::{built, until};

/// Returns a folder with the shared object, as built with this test, under libpcap's names.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let object = built("liblinerate_pcap.so");
        let folder = object.with_file_name("libpcap");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&object, link).unwrap();
        }
        folder
    })
}

/// Compiles a C program of the tests, linked with the system's libpcap; returns its path.
pub fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    linerate_testkit::compiled(source, &["-l:libpcap.so.0.8"])
}

/// Returns the path of the program that calls libpcap's functions.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("program"))
}

/// Returns the path of the shared object, for `LD_PRELOAD`.
pub fn object() -> PathBuf {
    folder().join("libpcap.so.0.8").canonicalize().unwrap()
}

/// A network namespace with a veth pair, `v0` and `v1`, without traffic of the kernel's.
pub struct Namespace(linerate_testkit::Namespace);

impl Namespace {
    pub fn new(test: &str) -> Namespace {
        let namespace = linerate_testkit::Namespace::new(&format!("pcap-{test}"));
        namespace.disable_ipv6("default");
        namespace.run("ip link add v0 type veth peer name v1");
        namespace.run("ip link set v0 up");
        namespace.run("ip link set v1 up");
        // Programs print the link state (`IFF_RUNNING`), which the kernel updates a moment after the other end is up.
        for end in ["v0", "v1"] {
            let state = format!("cat /sys/class/net/{end}/operstate");
            until(format_args!("the link of {end}"), || namespace.run(&state).trim_end() == "up");
        }
        Namespace(namespace)
    }

    pub fn set_mtu(&self, interface: &str, mtu: u16) {
        self.0.run(&format!("ip link set {interface} mtu {mtu}"));
    }

    /// Returns a command in the namespace, with this library's libpcap or the system's.
    pub fn command(&self, program: &str, is_ours: bool) -> Command {
        self.command_of(Debian::Own, program, is_ours)
    }

    /// As [`command`](Self::command), for a program of a Debian release.
    pub fn command_of(&self, debian: Debian, program: &str, is_ours: bool) -> Command {
        let mut command = self.0.of(debian.command_prefix());
        command.arg(program);
        if is_ours {
            command.env("LD_LIBRARY_PATH", folder());
        }
        command
    }
}

/// Writes a capture file of `count` frames of several flows.
pub fn capture(path: &Path, count: usize) {
    let mut generator = Generator::new(128, 4);
    let mut writer = Writer::create(path).unwrap();
    for n in 0..count {
        let mut frame = [0; 124];
        generator.fill(&mut frame);
        writer.write(1_700_000_000_000_000_000 + n as u64 * 1000, &frame).unwrap();
    }
}

/// Ports that this process serves.
pub struct World {
    pub folder: tempfile::TempDir,
    _server: Server,
}

impl World {
    pub fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let mut server = linerate::server();
        server.listen(&folder.path().join("any"), None, 0o600, None).unwrap();
        World { folder, _server: server }
    }

    /// Returns a command with this library preloaded.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_of(Debian::Own, program)
    }

    /// As [`command`](Self::command), for a program of a Debian release.
    pub fn command_of(&self, debian: Debian, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = debian.command(program);
        command.env("LD_PRELOAD", object()).env("LINERATE_PORTS", self.folder.path());
        command
    }

    /// Starts the program with this library's libpcap.
    pub fn start(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(program());
        command.args(arguments).env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", self.folder.path());
        Process::start(&mut command)
    }
}

/// Opens a port of a switch in this process.
pub fn port(name: &str) -> Port {
    let [port] = Options { local: true, ..Options::default() }.open([name]).unwrap();
    port
}

/// Sends `count` frames.
pub fn send(port: &Port, tx: &mut TxQueue, count: usize) {
    let (mut generator, mut batch) = (Generator::new(64, 4), Batch::new());
    for at in (0..count).step_by(32) {
        batch.alloc(port.pool(), 32.min(count - at), 60);
        batch.packets().for_each(|mut packet| generator.fill(&mut packet));
        let deadline = Deadline::begin();
        while !batch.is_empty() {
            deadline.check(|| format!("{at} of {count} frames were sent, {:?}", port.statistics()));
            tx.send(&mut batch);
        }
    }
    // Continue until everything is handed over, which wakes sleeping receivers.
    let deadline = Deadline::begin();
    while tx.unsent() > 0 {
        deadline.check(|| format!("{} of {count} frames are unsent, {:?}", tx.unsent(), port.statistics()));
        tx.send(&mut batch);
    }
}
