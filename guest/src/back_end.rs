//! Third-party vhost-user back ends. They run from the folders that `guest/prepare` unpacked, in a network namespace of
//! the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use linerate_testkit::{Debian, OutputTimeout};

use crate::machine::{unpacked, with_debian13_libraries};
use crate::namespace::Namespace;

/// A process that is killed on drop, and when the test ends.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program in a namespace; its messages go to the file `log`.
    fn start(namespace: &Namespace, log: PathBuf, words: &[String], environment: &[(String, String)]) -> Process {
        let file = File::create(&log).expect("a file in the test's folder");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace.name(), "setpriv", "--pdeathsig", "KILL", "--"]).args(words);
        command.envs(environment.iter().cloned()).stdin(Stdio::null());
        let child = command.stdout(file.try_clone().expect("a descriptor")).stderr(file).spawn();
        Process { child: child.expect("ip is installed"), log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// passt: an unprivileged back end that connects the front end to the network of its namespace through sockets. It
/// drops root privileges after its start.
pub struct Passt(Process);

impl Passt {
    /// Starts passt at the socket `path` with these arguments.
    pub fn start(namespace: &Namespace, path: &Path, arguments: &[&str]) -> Passt {
        let mut words = with_debian13_libraries(&unpacked("passt").join("usr/bin/passt"));
        words.extend(["--vhost-user", "--foreground", "--socket"].map(String::from));
        words.push(path.display().to_string());
        words.extend(arguments.iter().map(|word| word.to_string()));
        Passt(Process::start(namespace, path.with_extension("log"), &words, &[]))
    }

    /// Returns passt's messages so far.
    pub fn said(&self) -> String {
        self.0.said()
    }
}

/// Open vSwitch with DPDK: its database server and the switch, with all files in a folder of the test.
pub struct OpenVswitch<'a> {
    debian: Debian,
    namespace: &'a Namespace,
    folder: &'a Path,
    switch: Option<Process>,
    _database: Process,
}

impl OpenVswitch<'_> {
    /// Starts the database server and the switch. DPDK uses ordinary memory, and one thread of the switch polls on the
    /// first processor.
    pub fn start<'a>(debian: Debian, namespace: &'a Namespace, folder: &'a Path) -> OpenVswitch<'a> {
        let path = |name: &str| folder.join(name).display().to_string();
        let mut make = debian.command(vswitch(debian, "usr/bin/ovsdb-tool"));
        make.arg("create").arg(path("conf.db")).arg(vswitch(debian, "usr/share/openvswitch/vswitch.ovsschema"));
        let made = make.output_in_time().expect("guest/prepare unpacks Open vSwitch");
        assert!(made.status.success(), "no database: {made:?}");
        let mut words = debian.command_prefix();
        words.extend([vswitch(debian, "usr/sbin/ovsdb-server"), path("conf.db")]);
        words.extend([format!("--remote=punix:{}", path("db")), unixctl(folder, "database")]);
        let database = Process::start(namespace, folder.join("database.log"), &words, &environment(folder));
        let mut switch = OpenVswitch { debian, namespace, folder, switch: None, _database: database };
        switch.configure("--retry --no-wait init");
        switch.configure(
            "--no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:pmd-cpu-mask=1 \
             other_config:vhost-sock-dir=. other_config:per-port-memory=true \
             other_config:dpdk-extra='--no-pci --no-huge --legacy-mem -m 640 --no-shconf --no-telemetry'",
        );
        switch.restart();
        switch
    }

    /// Kills the switch if it is running, and starts it.
    pub fn restart(&mut self) {
        drop(self.switch.take());
        let program = vswitch(self.debian, "usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk");
        let database = format!("unix:{}", self.folder.join("db").display());
        let control = unixctl(self.folder, "switch");
        let mut words = self.debian.command_prefix();
        words.extend([program, database, control, "--disable-system".to_string()]);
        let log = self.folder.join("switch.log");
        self.switch = Some(Process::start(self.namespace, log, &words, &environment(self.folder)));
    }

    /// Runs `ovs-vsctl` with these arguments.
    pub fn configure(&self, arguments: &str) {
        let command = format!("\"$@\" -t 180 --db=unix:{} {arguments}", self.folder.join("db").display());
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &command, "sh"])
            .args(self.debian.command_prefix())
            .arg(vswitch(self.debian, "usr/bin/ovs-vsctl"));
        let output = shell.output_in_time().expect("a shell");
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stderr), self.said());
    }

    /// Returns the switch's messages so far.
    pub fn said(&self) -> String {
        self.switch.as_ref().map(Process::said).unwrap_or_default()
    }
}

/// Returns the path of a file of Open vSwitch in that Debian.
fn vswitch(debian: Debian, file: &str) -> String {
    match debian {
        Debian::Own => unpacked("openvswitch").join(file).display().to_string(),
        Debian::Trixie => format!("/{file}"),
    }
}

/// Returns the option for a daemon's control socket.
fn unixctl(folder: &Path, daemon: &str) -> String {
    format!("--unixctl={}", folder.join(format!("{daemon}.ctl")).display())
}

/// Returns the environment variables that put all files of Open vSwitch into one folder.
fn environment(folder: &Path) -> Vec<(String, String)> {
    let names = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];
    names.map(|name| (name.to_string(), folder.display().to_string())).to_vec()
}
