//! Network namespaces, so that the machine's own network is not touched.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::{Process, expect, text};
use crate::wait::InTime;

/// A network namespace, which is deleted with this value.
pub struct Namespace {
    /// Its name, for `ip netns`.
    pub name: String,
}

impl Namespace {
    /// Makes a namespace whose name no other process has.
    #[track_caller]
    pub fn new(name: &str) -> Namespace {
        let namespace = Namespace { name: format!("linerate-{name}-{}", std::process::id()) };
        namespace.add();
        namespace
    }

    /// Makes it again, after [`delete`](Namespace::delete).
    #[track_caller]
    pub fn add(&self) {
        expect(0, Command::new("ip").args(["netns", "add", &self.name]));
    }

    /// Deletes it before its end.
    pub fn delete(&self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output_in_time();
    }

    /// Returns a command that runs inside. `ip netns exec` becomes the program, so that signals reach it.
    pub fn of<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words);
        command
    }

    /// As [`of`](Namespace::of), with the words of a line.
    pub fn command(&self, words: &str) -> Command {
        self.of(words.split_whitespace())
    }

    /// Runs a program inside, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(&self, words: &str) -> String {
        text(&expect(0, &mut self.command(words)).stdout)
    }

    /// Runs a shell's script inside, which must succeed, and returns its output.
    #[track_caller]
    pub fn script(&self, script: &str) -> String {
        text(&expect(0, &mut self.of(["sh", "-c", script])).stdout)
    }

    /// Starts a program inside.
    pub fn start(&self, words: &str) -> Process {
        Process::start(&mut self.command(words))
    }

    /// Disables IPv6 for an interface, or for `default` or `all`. A fresh machine has no sysctl(8).
    #[track_caller]
    pub fn disable_ipv6(&self, interface: &str) {
        self.script(&format!("echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"));
    }

    /// Moves an interface in, and gives it addresses.
    #[track_caller]
    pub fn take(&self, interface: &str, addresses: &[&str]) {
        expect(0, Command::new("ip").args(["link", "set", interface, "netns", &self.name]));
        self.run("ip link set lo up");
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.run(&format!("ip address add {address} dev {interface} {nodad}"));
        }
        self.run(&format!("ip link set {interface} up"));
    }

    /// Pings `count` times; fails if a request is not answered. It sends one request at a time: of several, ping
    /// waits for the last answer no longer than the others took, which a busy machine may exceed (ping(8), `-W`).
    #[track_caller]
    pub fn ping(&self, count: usize, words: &str) {
        for n in 0..count {
            let said = self.run(&format!("ping -q -c 1 -W 20 {words}"));
            assert!(said.contains(" 0% packet loss"), "{n} of {count}: {said}");
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.delete();
    }
}
