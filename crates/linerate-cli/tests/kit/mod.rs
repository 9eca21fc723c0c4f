//! Helpers for the tests of the command: processes that end with the test, and separate network namespaces, so that
//! the machine's own network is not touched.
#![allow(dead_code)] // each test uses its part

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
pub use wait::{Deadline, InTime, Timely, end_of, output_of, until};

#[path = "../../../linerate/tests/wait/mod.rs"]
mod wait;

/// The command under test.
pub fn linerate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(arguments);
    command
}

/// Returns the command of a shell's script, which mounts what it likes for itself alone, and takes the arguments that are added.
pub fn with_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command
}

/// Runs the command to its end; panics with all output if the exit code is not `code`.
#[track_caller]
pub fn expect(code: i32, command: &mut Command) -> Output {
    ended_with(code, command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// The same, with the command's own standard input, output and error.
#[track_caller]
pub fn ended_with(code: i32, command: &mut Command) -> Output {
    let output = output_of(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")));
    let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{command:?}:\n{text}");
    output
}

/// Returns the output as text, for messages.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the summary: the last line of a `--json` run.
pub fn summary(output: &[u8]) -> Value {
    let text = text(output);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output"));
    serde_json::from_str::<Value>(last).unwrap_or_else(|e| panic!("{e}: {last}"))["summary"].clone()
}

/// A process that is killed when the test ends.
pub struct Process {
    child: Child,
    out: BufReader<Timely<ChildStdout>>,
    err: BufReader<Timely<ChildStderr>>,
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let out = BufReader::new(Timely(child.stdout.take().unwrap()));
        let err = BufReader::new(Timely(child.stderr.take().unwrap()));
        Process { child, out, err }
    }

    /// Waits for a line on standard output with `part` in it.
    pub fn await_output(&mut self, part: &str) -> String {
        await_line(&mut self.out, part)
    }

    /// Waits for a line on standard error with `part` in it.
    pub fn await_error(&mut self, part: &str) -> String {
        await_line(&mut self.err, part)
    }

    /// Returns its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of entries in one of its folders in `/proc`, or the lines of one of its files.
    pub fn counted(&self, what: &str) -> usize {
        let path = Path::new("/proc").join(self.child.id().to_string()).join(what);
        match path.is_dir() {
            true => std::fs::read_dir(path).unwrap().count(),
            false => std::fs::read_to_string(path).unwrap().lines().count(),
        }
    }

    /// True if one of its threads is in poll(2) now.
    pub fn is_in_poll(&self) -> bool {
        self.threads().into_iter().any(|(_, call)| is_one_of(&call, &POLL))
    }

    /// Returns whether all threads that move packets are in one of these system calls.
    pub fn are_in(&self, calls: &[libc::c_long]) -> bool {
        let threads = self.threads();
        let mut moving = threads.iter().filter(|(name, _)| name.starts_with("linerate ")).peekable();
        moving.peek().is_some() && moving.all(|(_, call)| is_one_of(call, calls))
    }

    /// Returns the names of its threads, and the system calls that they are in (proc_pid_syscall(5)).
    fn threads(&self) -> Vec<(String, String)> {
        let tasks = Path::new("/proc").join(self.child.id().to_string()).join("task");
        let threads = std::fs::read_dir(tasks).unwrap().flatten();
        let read = |thread: &std::fs::DirEntry, file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
        threads.filter_map(|thread| Some((read(&thread, "comm")?, read(&thread, "syscall")?))).collect()
    }

    /// Returns the processor time of all its threads, in their own code and in the kernel, in 1/100 s.
    pub fn times(&self) -> (u64, u64) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse().unwrap(), fields[12].parse().unwrap())
    }

    /// Sends Ctrl-C, and returns the exit code and the remaining output.
    pub fn interrupt(mut self) -> (Option<i32>, String) {
        self.stop();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap_or_else(|e| panic!("its end: {e}; it printed {rest}"));
        (end_of(&mut self.child).code(), rest)
    }

    /// Waits for its end, and returns the exit code and the remaining output.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap_or_else(|e| panic!("its end: {e}; it printed {rest}"));
        (end_of(&mut self.child).code(), rest)
    }

    /// Stops it until it is to go on; returns when none of its threads runs.
    pub fn pause(&self, stops: bool) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, if stops { Signal::STOP } else { Signal::CONT }).unwrap();
        let is_stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
        let tasks = || std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let are_stopped =
            || tasks().all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(is_stopped));
        until("all threads are stopped", || !stops || are_stopped());
    }

    /// Sends Ctrl-C.
    pub fn stop(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[track_caller]
fn await_line(stream: &mut impl BufRead, part: &str) -> String {
    let (deadline, mut line) = (Deadline::begin(), String::new());
    loop {
        deadline.check(|| format!("a line with '{part}'; the last one is {line}"));
        line.clear();
        let count = stream.read_line(&mut line).unwrap_or_else(|e| panic!("a line with '{part}': {e}"));
        assert!(count > 0, "it ended before it printed '{part}'");
        if line.contains(part) {
            return line;
        }
    }
}

/// A network namespace that is deleted when the test ends.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(name: &str) -> Namespace {
        let name = format!("linerate-{name}-{}", std::process::id());
        expect(0, Command::new("ip").args(["netns", "add", &name]));
        Namespace { name }
    }

    /// Returns a command that runs inside.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words.split_whitespace());
        command
    }

    /// Runs a program inside, which must succeed, and returns its output.
    pub fn run(&self, words: &str) -> String {
        text(&expect(0, &mut self.command(words)).stdout)
    }

    /// Pings `count` times; fails if a request is not answered. It sends one request at a time: of several, ping
    /// waits for the last answer no longer than the others took, which a busy machine may exceed (ping(8), `-W`).
    pub fn ping(&self, count: usize, words: &str) {
        for n in 0..count {
            let said = self.run(&format!("ping -q -c 1 -W 20 {words}"));
            assert!(said.contains(" 0% packet loss"), "{n} of {count}: {said}");
        }
    }

    /// Disables IPv6 for an interface, or for `default` or `all`. A fresh machine has no sysctl(8).
    pub fn disable_ipv6(&self, interface: &str) {
        let line = format!("echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        expect(0, Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", &line]));
    }

    /// Starts a program inside. `ip netns exec` becomes that program, so that signals reach it.
    pub fn start(&self, words: &str) -> Process {
        Process::start(&mut self.command(words))
    }

    /// Moves an interface in, and gives it addresses.
    pub fn take(&self, interface: &str, addresses: &[&str]) {
        expect(0, Command::new("ip").args(["link", "set", interface, "netns", &self.name]));
        self.run("ip link set lo up");
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.run(&format!("ip address add {address} dev {interface} {nodad}"));
        }
        self.run(&format!("ip link set {interface} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output_in_time();
    }
}

/// Runs one test at a time: a veth pair drops frames when the other end has no processor time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a veth pair: `here` in one namespace, `there` in the other, with addresses 10.87.N.1 and 10.87.N.2.
pub fn pair(here: (&Namespace, &str), there: (&Namespace, &str), net: u8) {
    expect(
        0,
        Command::new("ip")
            .args(["-n", &here.0.name, "link", "add", here.1, "type", "veth", "peer", "name", there.1])
            .args(["netns", &there.0.name]),
    );
    for ((namespace, interface), host) in [(here, 1), (there, 2)] {
        namespace.run("ip link set lo up");
        namespace.run(&format!("ip address add 10.87.{net}.{host}/24 dev {interface}"));
        namespace.run(&format!("ip link set {interface} up"));
    }
}

/// Returns a `linerate` command in a namespace.
pub fn inside(namespace: &Namespace, arguments: &str) -> Command {
    namespace.command(&format!("{} {arguments}", env!("CARGO_BIN_EXE_linerate")))
}

/// A folder that is removed when the test ends.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the frames of a capture file.
pub fn frames(path: impl AsRef<Path>) -> Vec<Vec<u8>> {
    let path = path.as_ref();
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = pcap_file::pcap::PcapReader::new(BufReader::new(file)).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Writes a capture file.
pub fn write_frames(path: &str, frames: &[Vec<u8>]) {
    let mut writer = pcap_file::pcap::PcapWriter::new(std::fs::File::create(path).unwrap()).unwrap();
    for frame in frames {
        let packet = pcap_file::pcap::PcapPacket::new(Default::default(), frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
}

/// The system calls that wait for events.
pub const POLL: [libc::c_long; 2] = [libc::SYS_poll, libc::SYS_ppoll];

/// Returns whether a system call, as proc_pid_syscall(5) shows it, is one of these.
fn is_one_of(call: &str, calls: &[libc::c_long]) -> bool {
    call.split(' ').next().and_then(|number| number.parse().ok()).is_some_and(|number| calls.contains(&number))
}
