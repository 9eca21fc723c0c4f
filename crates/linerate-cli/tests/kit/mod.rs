//! Tools for tests of the command: the command itself, pairs of namespaces, folders and capture files.
#![allow(dead_code)] // each test uses a part

pub mod cases;

use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[allow(unused_imports)] // each test uses a part
pub use linerate_testkit::{
    Deadline, Debian, Namespace, OutputTimeout, POLL, Process, Timely, end_of, ended_with, exchange, expect, output_of,
    text, until,
};
use serde_json::Value;

/// The command under test.
pub fn linerate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(arguments);
    command
}

/// Returns a command that runs a shell script in its own mount namespace, with the arguments that are added.
pub fn with_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command
}

/// Returns the summary: the last line of a `--json` run.
pub fn summary(output: &[u8]) -> Value {
    let text = text(output);
    let last = text.lines().last().unwrap_or_else(|| panic!("no output"));
    serde_json::from_str::<Value>(last).unwrap_or_else(|e| panic!("{e}: {last}"))["summary"].clone()
}

/// Lets one test run at a time: a veth pair drops frames when the other end has no processor time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a veth pair: `here` in one namespace, `there` in the other, with addresses 10.87.N.1 and 10.87.N.2.
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

/// Writes the captures of [`cases`] into a folder: link types, versions, lengths and blocks as other programs write
/// them.
pub fn write_cases(folder: &Folder) {
    for (file, bytes) in cases::all() {
        std::fs::write(folder.0.join(file), bytes).unwrap();
    }
}

/// Writes captures of many protocols, which scapy makes once, into a new folder.
pub fn captures(name: &str) -> Folder {
    static CAPTURES: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();
    let captures = CAPTURES.get_or_init(|| {
        let folder = Folder::new(&format!("{name}-scapy"));
        let script = include_str!("captures.py");
        expect(0, Command::new("/usr/bin/python3").args(["-c", script]).current_dir(&folder.0));
        let files = std::fs::read_dir(&folder.0).unwrap().flatten();
        files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())).collect()
    });
    let folder = Folder::new(name);
    captures.iter().for_each(|(file, bytes)| std::fs::write(folder.0.join(file), bytes).unwrap());
    folder
}
