//! A running guest.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use linerate_testkit::{Deadline, TIME_LIMIT};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The longest time for a command.
const TIMEOUT: Duration = TIME_LIMIT;

/// The separator between a command's output and its status: see `../init`.
const END: u8 = 0x1E;

/// Messages of a guest's kernel that no test expects.
const TROUBLE: [&str; 6] = ["Oops", "BUG:", "Kernel panic", "Call Trace", "general protection", "WARNING: CPU"];

/// The message of an IOMMU fault, which some tests expect.
const DMA_FAULT: &str = "DMAR: [DMA";

/// A booted guest. Drop kills it, and fails the test if its kernel reported trouble.
pub struct Guest {
    qemu: Child,
    shell: BufReader<UnixStream>,
    monitor: BufReader<UnixStream>,
    folder: TempDir,
    dma_faults_expected: bool,
}

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The output of the command.
    pub output: String,
    /// The exit status.
    pub status: i32,
}

/// A program in the background.
#[derive(Debug)]
pub struct Program {
    pid: u32,
    log: String,
}

impl Outcome {
    /// Returns the summary of a `linerate ... --json` that succeeded.
    #[track_caller]
    pub fn summary(&self) -> Value {
        assert_eq!(self.status, 0, "{}", self.output);
        self.summary_of_any()
    }

    /// Returns the summary of a `linerate ... --json`, with any exit status.
    #[track_caller]
    pub fn summary_of_any(&self) -> Value {
        // Notes in the same output may follow the summary.
        let line = self.output.lines().rfind(|line| line.starts_with("{\"summary\"")).unwrap_or_default();
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", self.output));
        value["summary"].clone()
    }
}

impl Program {
    /// Returns the id of the program's process, a child of the shell that started it.
    #[track_caller]
    pub fn child(&self, guest: &mut Guest) -> u32 {
        // `grep` fails if one of the listed processes has ended before it reads its file.
        let status = format!("grep -ls '^PPid:[[:space:]]*{}$' /proc/[0-9]*/status", self.pid);
        let found = guest.attempt(&status).output;
        let number = found.split('/').nth(2).and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("no process below {}: '{found}'", self.pid))
    }
}

impl Guest {
    pub(crate) fn new(
        qemu: Child,
        shell: UnixStream,
        monitor: UnixStream,
        folder: TempDir,
        is_incoming: bool,
    ) -> Guest {
        shell.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        monitor.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let (shell, monitor) = (BufReader::new(shell), BufReader::new(monitor));
        let mut guest = Guest { qemu, shell, monitor, folder, dma_faults_expected: false };
        if !is_incoming {
            guest.answer("boot");
        }
        guest.monitor_line(); // its greeting
        guest.monitor("qmp_capabilities", json!({}));
        guest
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub fn run(&mut self, command: &str) -> String {
        let Outcome { output, status } = self.attempt(command);
        if status != 0 {
            self.fail(&format!("`{command}` ended with {status}:\n{output}"));
        }
        output
    }

    /// Runs a command that may fail.
    #[track_caller]
    pub fn attempt(&mut self, command: &str) -> Outcome {
        // Callers put a network prefix in front, which may be empty.
        let command = command.trim();
        assert!(!command.contains('\n'), "one line at a time: {command}");
        for _ in 0..100 {
            writeln!(self.shell.get_mut(), "{} {command}", command.len()).expect("the guest's shell is there");
            if let Some(outcome) = self.answer(command) {
                return outcome;
            }
        }
        self.fail(&format!("`{command}` never arrives intact"))
    }

    /// Runs a command that must fail, and returns its output.
    #[track_caller]
    pub fn refused(&mut self, command: &str) -> String {
        let Outcome { output, status } = self.attempt(command);
        if status == 0 {
            self.fail(&format!("`{command}` succeeded:\n{output}"));
        }
        output
    }

    /// Moves an interface into a new network namespace, gives it an address and sets it up. Returns the prefix for
    /// commands in that namespace.
    #[track_caller]
    pub fn move_to_own_network(&mut self, interface: &str, address: &str) -> String {
        let holder = format!("/tmp/network-{interface}");
        self.run(&format!("unshare -n sleep 100000 >/dev/null 2>&1 & echo $! >{holder}"));
        // The shell's child is in the old namespace until `unshare` has moved it.
        let network = |pid: &str| format!("$(readlink /proc/{pid}/ns/net)");
        let (new, old) = (network(&format!("$(cat {holder})")), network("1"));
        self.run(&format!("while [ \"{new}\" = {old} ]; do usleep 1000; done"));
        self.run(&format!("ip link set {interface} netns $(cat {holder})"));
        let prefix = format!("nsenter -t $(cat {holder}) -n");
        self.run(&format!("{prefix} ip addr add {address} dev {interface} && {prefix} ip link set {interface} up"));
        self.run(&format!("{prefix} ip link set lo up"));
        prefix
    }

    /// Binds Intel cards with the device id `device` (four hexadecimal digits) to vfio, and reserves memory for DPDK.
    #[track_caller]
    pub fn prepare_dpdk(&mut self, device: &str) {
        self.run("modprobe -a vfio-pci vfio_iommu_type1");
        self.run(&format!("echo 8086 {device} >/sys/bus/pci/drivers/vfio-pci/new_id"));
        self.run("mkdir -p /dev/hugepages && mount -t hugetlbfs hugetlbfs /dev/hugepages");
        self.run("echo 64 >/proc/sys/vm/nr_hugepages");
    }

    /// Waits until an interface has a carrier; `prefix` is from [`move_to_own_network`](Guest::move_to_own_network), or
    /// empty.
    #[track_caller]
    pub fn wait_for_link(&mut self, prefix: &str, interface: &str) {
        self.run(&format!("until {prefix} ip link show {interface} | grep -q LOWER_UP; do usleep 10000; done"));
    }

    /// Returns a counter of `ethtool -S`.
    #[track_caller]
    pub fn counter(&mut self, prefix: &str, interface: &str, name: &str) -> u64 {
        let text = self.run(&format!("{prefix} ethtool -S {interface}"));
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| self.fail(&format!("no {name} in:\n{text}")))
    }

    /// Starts a program in the background, with a separate log.
    #[track_caller]
    pub fn start(&mut self, command: &str) -> Program {
        let log = format!("/tmp/{}.log", self.run("ls /tmp | wc -l").trim());
        // The status is appended to the output, so that no parent process must wait for it.
        let pid = self.run(&format!("({command}; echo \"status $?\") >{log} 2>&1 & echo $!"));
        Program { pid: pid.trim().parse().expect("a process id"), log }
    }

    /// Starts a `linerate` command, and waits until the links of `cards` cards are up.
    #[track_caller]
    pub fn start_linerate(&mut self, arguments: &str, cards: usize) -> Program {
        let program = self.start(&format!("linerate {arguments} --json"));
        let Program { pid, log } = &program;
        let up = format!("[ $(grep -c 'link up' {log}) -ge {cards} ]");
        let Outcome { output, status } = self
            .attempt(&format!("while [ -e /proc/{pid} ] && ! {up}; do usleep 10000; done; {up} || (cat {log}; false)"));
        if status != 0 {
            self.fail(&format!("`linerate {arguments}` did not come up:\n{output}"));
        }
        program
    }

    /// Waits until a line of the program's log contains `text`.
    #[track_caller]
    pub fn wait_for(&mut self, program: &Program, text: &str) {
        let Program { pid, log } = program;
        let found = format!("grep -q -- '{text}' {log}");
        let Outcome { output, status } = self.attempt(&format!(
            "while [ -e /proc/{pid} ] && ! {found}; do usleep 10000; done; {found} || (cat {log}; false)"
        ));
        if status != 0 {
            self.fail(&format!("'{text}' never came:\n{output}"));
        }
    }

    /// Waits until `happened` returns true, for a limited time. Returns whether it did.
    pub fn wait_until(&mut self, happened: impl Fn() -> bool) -> bool {
        (0..2000).any(|_| {
            happened() || {
                self.run("usleep 10000");
                false
            }
        })
    }

    /// Waits until the program ends.
    #[track_caller]
    pub fn wait(&mut self, program: Program) -> Outcome {
        let Program { pid, log } = program;
        let Outcome { output, status } = self.attempt(&format!(
            "n=0; while [ -e /proc/{pid} ] && [ $n -lt 1500 ]; do usleep 20000; n=$((n+1)); done; \
             [ ! -e /proc/{pid} ] || (cat {log}; false)"
        ));
        if status != 0 {
            self.fail(&format!("it did not end:\n{output}"));
        }
        let text = self.run(&format!("cat {log}"));
        let (output, status) = text.trim_end().rsplit_once("status ").unwrap_or((&text, "-1"));
        Outcome { output: output.to_string(), status: status.parse().unwrap_or(-1) }
    }

    /// Sends SIGINT to the program, and waits until it ends.
    #[track_caller]
    pub fn interrupt(&mut self, program: Program) -> Outcome {
        self.signal(&program, "INT");
        self.wait(program)
    }

    /// Sends a signal to the program, not to the shell that started it.
    pub fn signal(&mut self, program: &Program, signal: &str) {
        let child = program.child(self);
        self.run(&format!("kill -{signal} {child}"));
    }

    /// Sends a QMP command to QEMU.
    #[track_caller]
    pub fn monitor(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        if let Err(error) = writeln!(self.monitor.get_mut(), "{request}") {
            self.fail(&format!("QEMU's monitor: {command}: {error}"));
        }
        loop {
            let answer = self.monitor_line();
            if let Some(error) = answer.get("error") {
                self.fail(&format!("QEMU: {command}: {error}"));
            }
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
        }
    }

    /// Migrates the guest to a machine that waits at a socket ([`Machine::incoming`](crate::Machine::incoming)), with
    /// its background programs. After one copy of all memory, the guest runs on until `may_end` returns true. Returns
    /// the guest on that machine; this machine ends.
    #[track_caller]
    pub fn migrate(mut self, mut target: Guest, socket: &Path, may_end: impl Fn() -> bool) -> Guest {
        // QEMU completes a migration as soon as it finds no changed page, and a guest changes none while the host runs
        // something else. So after one copy of all memory, it copies at most 6 pages in 100 ms, until it may end.
        const ONE_COPY: u64 = 2;
        let limit = |guest: &mut Guest, bandwidth: u64, downtime: u64| {
            let limits = json!({"max-bandwidth": bandwidth, "downtime-limit": downtime});
            guest.monitor("migrate-set-parameters", limits);
        };
        limit(&mut self, 64 << 20, 1);
        self.monitor("migrate", json!({"uri": format!("unix:{}", socket.display())}));
        let start = Instant::now();
        let wait = |guest: &mut Guest, command: &str, is_so: &dyn Fn(&Value) -> bool| {
            let mut state = Value::Null;
            while !is_so(&state) {
                if state["status"] == "failed" || start.elapsed() > TIMEOUT {
                    guest.fail(&format!("QEMU: {command}: {state}"));
                }
                state = guest.monitor(command, json!({}));
            }
        };
        let is_done = |state: &Value| state["status"] == "completed";
        let is_copied = |state: &Value| state["ram"]["dirty-sync-count"].as_u64() >= Some(ONE_COPY) || is_done(state);
        wait(&mut self, "query-migrate", &is_copied);
        limit(&mut self, 256 << 10, 1);
        wait(&mut self, "query-migrate", &|state| is_done(state) || may_end());
        limit(&mut self, 10 << 30, 60_000);
        wait(&mut self, "query-migrate", &is_done);
        wait(&mut target, "query-status", &|state| state["status"] == "running");
        target
    }

    /// Plugs in 128 MiB of memory, shared like the rest, and waits until the guest uses it.
    #[track_caller]
    pub fn plug_memory(&mut self) {
        let memory = json!({"qom-type": "memory-backend-memfd", "id": "more", "size": 128 << 20, "share": true});
        self.monitor("object-add", memory);
        let total = "awk '/MemTotal/ { print $2 }' /proc/meminfo";
        let before = self.run(total);
        self.monitor("device_add", json!({"driver": "pc-dimm", "id": "dimm", "memdev": "more"}));
        // Brings the memory online if the kernel does not do so automatically.
        let take = "for block in /sys/devices/system/memory/memory*/state; do \
                    grep -q offline $block && echo online >$block; done";
        self.run(&format!("until [ $({total}) -gt {} ]; do {take}; usleep 10000; done", before.trim()));
    }

    /// Unplugs a device while the guest runs, and waits until the guest has released it.
    #[track_caller]
    pub fn unplug(&mut self, id: &str) {
        self.monitor("device_del", json!({"id": id}));
        let deadline = Deadline::begin();
        while {
            let event = self.monitor_line();
            event["event"] != "DEVICE_DELETED" || event["data"]["device"] != id
        } {
            deadline.check(|| format!("the guest to release {id}"));
        }
    }

    #[track_caller]
    fn monitor_line(&mut self) -> Value {
        let mut line = String::new();
        match self.monitor.read_line(&mut line) {
            Ok(0) => self.fail("QEMU's monitor closed the connection"),
            Ok(_) => serde_json::from_str(&line).expect("QEMU speaks JSON"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.fail(&format!("QEMU's monitor sent no line within {TIMEOUT:?}"))
            }
            Err(error) => self.fail(&format!("QEMU's monitor: {error}")),
        }
    }

    /// Declares that the test expects the IOMMU to report faults.
    pub fn expect_dma_faults(&mut self) {
        self.dma_faults_expected = true;
    }

    /// Returns the messages of the guest's kernel.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.console_file()).unwrap_or_default()).into_owned()
    }

    fn console_file(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    /// Reads up to the end of an answer; `None` if the command did not arrive intact.
    #[track_caller]
    fn answer(&mut self, command: &str) -> Option<Outcome> {
        let start = Instant::now();
        let (mut output, mut line) = (Vec::new(), Vec::new());
        while !line.starts_with(&[END]) {
            output.append(&mut line);
            let read = self.shell.read_until(b'\n', &mut line);
            // The time limit also covers a command that never stops printing.
            if !matches!(read, Ok(len) if len > 0) || start.elapsed() > TIMEOUT {
                // If the guest ended, the cause may be far above the console's last lines.
                self.check();
                output.append(&mut line);
                let output = String::from_utf8_lossy(&output[..output.len().min(10_000)]).into_owned();
                let why = match read {
                    Ok(0) => "the guest ended".to_string(),
                    _ => format!("no end within {TIMEOUT:?} ({read:?})"),
                };
                self.fail(&format!("`{command}`: {why}; it printed:\n{output}"));
            }
            // The output's last line may lack a line feed, so the separator may be in the middle of a line.
            if let Some(end) = line.iter().position(|&byte| byte == END) {
                output.extend(line.drain(..end));
            }
        }
        let status = String::from_utf8_lossy(&line[1..]).trim().to_string();
        self.check();
        if status == "again" {
            return None;
        }
        let status = status.parse().unwrap_or_else(|_| self.fail("the guest's shell sent an invalid status"));
        Some(Outcome { output: String::from_utf8_lossy(&output).into_owned(), status })
    }

    /// Fails if the kernel reported trouble.
    #[track_caller]
    fn check(&self) {
        let console = self.console();
        if let Some(word) = self.trouble(&console) {
            self.fail(&format!("the guest's kernel is in trouble ({word})"));
        }
    }

    fn trouble(&self, console: &str) -> Option<&'static str> {
        let fault = (!self.dma_faults_expected).then_some(DMA_FAULT);
        TROUBLE.into_iter().chain(fault).find(|word| console.contains(word))
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        let lines = lines[lines.len().saturating_sub(40)..].join("\n");
        let state = fs::read_to_string(format!("/proc/{}/status", self.qemu.id())).unwrap_or_default();
        let state = state.lines().find(|line| line.starts_with("State:")).unwrap_or("State: ended").to_string();
        panic!("{what}\n--- QEMU: {state}\n--- the guest's kernel said last:\n{lines}");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let trouble = self.trouble(&self.console());
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if let Some(word) = trouble.filter(|_| !std::thread::panicking()) {
            panic!("the guest's kernel was in trouble ({word}):\n{}", self.console());
        }
    }
}
