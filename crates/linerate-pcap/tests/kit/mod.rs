//! Tools of the tests: programs with the object in front of the system's libpcap, networks, ports.
#![allow(dead_code)] // each test uses a part of it

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

pub use debians::Debian;
use linerate::capture::Writer;
use linerate::port::{Port, TxQueue};
use linerate::share::Server;
use linerate::traffic::Generator;
use linerate::{Batch, Options};
use rustix::process::{Pid, Signal, kill_process};
pub use wait::{Deadline, InTime, Timely, end_of, until};

#[path = "../../../linerate/tests/debians/mod.rs"]
mod debians;
#[path = "../../../linerate/tests/wait/mod.rs"]
mod wait;

/// Returns a folder with the shared object, which was built with this test, under libpcap's names.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let object = std::env::current_exe().unwrap().with_file_name("liblinerate_pcap.so");
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

/// Compiles a program of this folder, linked with the system's libpcap; returns its path.
pub fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let output = std::env::current_exe().unwrap().with_extension(name);
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-o").arg(&output);
    let status = compile.arg("-l:libpcap.so.0.8").status();
    assert!(status.expect("a C compiler is there: apt install gcc").success());
    output
}

/// Returns the program of libpcap's calls.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("program"))
}

/// Returns the shared object, to be preloaded.
pub fn object() -> PathBuf {
    folder().join("libpcap.so.0.8").canonicalize().unwrap()
}

/// A running program, which is killed with this value.
pub struct Running {
    pub child: Child,
    output: BufReader<Timely<std::process::ChildStdout>>,
}

impl Running {
    pub fn new(command: &mut Command) -> Running {
        Running::with_input(command, Stdio::null())
    }

    /// Starts a program with a standard input; one that is piped stays open.
    pub fn with_input(command: &mut Command, input: Stdio) -> Running {
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(Timely(child.stdout.take().unwrap()));
        Running { child, output }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap_or_else(|error| panic!("a line of the program: {error}"));
        line.trim_end().to_string()
    }

    /// Waits until all threads of the program sleep at the same time: it polls nothing.
    pub fn wait_for_sleep(&self) {
        self.wait_for_state('S');
    }

    /// Stops it until it is to go on; returns when none of its threads runs.
    pub fn pause(&self, stops: bool) {
        kill_process(Pid::from_child(&self.child), if stops { Signal::STOP } else { Signal::CONT }).unwrap();
        if stops {
            self.wait_for_state('T');
        }
    }

    /// Waits until all threads of the program have this state (proc_pid_stat(5)) at the same time.
    fn wait_for_state(&self, state: char) {
        let folder = format!("/proc/{}/task", self.child.id());
        until(format_args!("all threads of the program to be in state {state}"), || {
            std::fs::read_dir(&folder).unwrap().all(|thread| is_in_state(&thread.unwrap().path(), state))
        });
    }

    /// Waits for a line with this text on stderr.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        let mut stderr = Timely(self.child.stderr.as_mut().unwrap());
        let mut byte = [0];
        while !(read.ends_with(b"\n") && String::from_utf8_lossy(&read).contains(text)) {
            let count = stderr.read(&mut byte);
            assert!(
                count.as_ref().is_ok_and(|count| *count == 1),
                "'{text}': {count:?} after {}",
                String::from_utf8_lossy(&read)
            );
            read.extend(byte);
        }
        String::from_utf8(read).unwrap()
    }

    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for a line with this text on stdout.
    pub fn wait_for_line(&mut self, text: &str) {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no line with {text:?} came");
            if line.contains(text) {
                return;
            }
        }
    }

    /// Waits until the program's first thread sleeps.
    pub fn wait_for_main_sleep(&self) {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        until("the program's first thread to sleep", || is_in_state(&folder, 'S'));
    }

    /// Waits until the program has this many threads.
    pub fn wait_for_threads(&self, count: usize) {
        let folder = format!("/proc/{}/task", self.child.id());
        until(format_args!("{count} threads of the program"), || std::fs::read_dir(&folder).unwrap().count() >= count);
    }

    /// Waits until the program has ended, which must be a success.
    #[track_caller]
    pub fn must_end(mut self, why: &str) {
        let mut status = None;
        until(format_args!("the end of the program after {why}"), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        let (_, said, errors) = self.end();
        assert!(status.success(), "{status} after {why}: {said}{errors}");
    }

    /// Waits for the end; returns the status, and what is left of stdout and stderr.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let (mut said, mut errors) = (String::new(), String::new());
        let read = self.output.read_to_string(&mut said);
        let read = read.and_then(|_| Timely(self.child.stderr.take().unwrap()).read_to_string(&mut errors));
        assert!(read.is_ok(), "its end: {read:?}, it printed {said}{errors}");
        (end_of(&mut self.child), said, errors)
    }

    /// Waits for the end, which must be a success; returns stdout.
    #[track_caller]
    pub fn said(self) -> String {
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
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(test: &str) -> Namespace {
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

    pub fn set_mtu(&self, interface: &str, mtu: u16) {
        let mut command = self.command("ip", false);
        assert!(command.args(["link", "set", interface, "mtu", &mtu.to_string()]).status().unwrap().success());
    }

    /// Returns a command inside: with this object's libpcap, or with the system's.
    pub fn command(&self, program: &str, is_ours: bool) -> Command {
        self.command_of(Debian::Own, program, is_ours)
    }

    /// The same, of a Debian's program.
    pub fn command_of(&self, debian: Debian, program: &str, is_ours: bool) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(debian.words()).arg(program);
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

    /// Returns a command with this object preloaded.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_of(Debian::Own, program)
    }

    /// The same, of a Debian's program.
    pub fn command_of(&self, debian: Debian, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = debian.command(program);
        command.env("LD_PRELOAD", object()).env("LINERATE_PORTS", self.folder.path());
        command
    }

    /// Starts the program with this object's libpcap.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(program());
        command.args(arguments).env("LD_LIBRARY_PATH", folder()).env("LINERATE_PORTS", self.folder.path());
        Running::new(&mut command)
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
    // Receivers that sleep are woken.
    let deadline = Deadline::begin();
    while tx.unsent() > 0 {
        deadline.check(|| format!("{} of {count} frames are unsent, {:?}", tx.unsent(), port.statistics()));
        tx.send(&mut batch);
    }
}

/// Returns whether the process or thread of this folder in `/proc` has a state (proc_pid_stat(5)).
pub fn is_in_state(folder: &Path, state: char) -> bool {
    let status = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|there| there.starts_with(state))
}
