//! Network namespaces, so that tests do not change the machine's network.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::{Process, expect, text};
use crate::wait::OutputTimeout;

/// A network namespace. Dropping this value deletes it.
pub struct Namespace {
    /// The namespace's name, for `ip netns`.
    pub name: String,
}

impl Namespace {
    /// Creates a namespace. Its name contains the process ID, so it is unique.
    #[track_caller]
    pub fn new(name: &str) -> Namespace {
        let namespace = Namespace { name: format!("linerate-{name}-{}", std::process::id()) };
        namespace.add();
        namespace
    }

    /// Creates the namespace again, after [`delete`](Namespace::delete).
    #[track_caller]
    pub fn add(&self) {
        expect(0, Command::new("ip").args(["netns", "add", &self.name]));
    }

    /// Deletes the namespace before this value is dropped.
    pub fn delete(&self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output_in_time();
    }

    /// Returns a command that runs in the namespace. `ip netns exec` is replaced by the program, so signals reach it.
    pub fn of<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words);
        command
    }

    /// As [`of`](Namespace::of), for the words of a line.
    pub fn command(&self, words: &str) -> Command {
        self.of(words.split_whitespace())
    }

    /// Runs a program in the namespace, which must succeed, and returns its output.
    #[track_caller]
    pub fn run(&self, words: &str) -> String {
        text(&expect(0, &mut self.command(words)).stdout)
    }

    /// Runs a shell script in the namespace, which must succeed, and returns its output.
    #[track_caller]
    pub fn script(&self, script: &str) -> String {
        text(&expect(0, &mut self.of(["sh", "-c", script])).stdout)
    }

    /// Starts a program in the namespace.
    pub fn start(&self, words: &str) -> Process {
        Process::start(&mut self.command(words))
    }

    /// Disables IPv6 for an interface, or for `default` or `all`. Does not use sysctl(8), which a minimal system does
    /// not have.
    #[track_caller]
    pub fn disable_ipv6(&self, interface: &str) {
        self.script(&format!("echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"));
    }

    /// Moves an interface into the namespace, and assigns addresses to it.
    #[track_caller]
    pub fn move_interface(&self, interface: &str, addresses: &[&str]) {
        expect(0, Command::new("ip").args(["link", "set", interface, "netns", &self.name]));
        self.run("ip link set lo up");
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            self.run(&format!("ip address add {address} dev {interface} {nodad}"));
        }
        self.run(&format!("ip link set {interface} up"));
    }

    /// Pings `count` times; fails if a request is not answered. Starts ping(8) for each request: with several requests,
    /// ping waits for the last answer no longer than the others took, which is too short on a busy machine (`-W`).
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
