//! Open vSwitch with DPDK, measured by its own counters: a switch with two ports (DPDK's net_null) that copy 60-byte
//! packets in and out, on one processor, in a separate network namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Debian's package openvswitch-switch-dpdk.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const EAL: &str = "--no-pci --no-huge --legacy-mem -m 1024";
/// Minimum number of packets to count, and maximum time for any step.
const PACKETS: f64 = 2e7;
const LONGEST: Duration = Duration::from_secs(30);

/// A process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(folder: &Path, program: &str, arguments: &str) -> Command {
    let arguments = arguments.replace('@', folder.to_str().unwrap_or_default());
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).stderr(Stdio::null());
    command.envs(["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"].map(|name| (name, folder)));
    command
}

fn run(folder: &Path, program: &str, arguments: &str) -> Option<String> {
    let output = command(folder, program, arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn start(folder: &Path, program: &str, arguments: &str) -> Option<Running> {
    command(folder, program, arguments).stdout(Stdio::null()).spawn().ok().map(Running)
}

fn wait_for(what: impl Fn() -> bool) -> Option<()> {
    let end = Instant::now() + LONGEST;
    while !what() {
        (Instant::now() < end).then(std::thread::yield_now)?;
    }
    Some(())
}

/// Returns the cycles per packet; `None` if Open vSwitch is not installed, or cannot have a network namespace.
pub fn cycles() -> Option<f64> {
    let folder = Folder(std::env::temp_dir().join(format!("linerate-ovs-{}", std::process::id())));
    std::fs::create_dir(&folder.0).ok()?;
    let at = folder.0.as_path();
    run(at, "ovsdb-tool", "create @/conf.db /usr/share/openvswitch/vswitch.ovsschema")?;
    let _database = start(at, "ovsdb-server", "@/conf.db --remote=punix:@/db.sock --unixctl=@/db.ctl")?;
    wait_for(|| at.join("db.sock").exists())?;
    let set = |settings: &str| run(at, "ovs-vsctl", &format!("--timeout=30 --db=unix:@/db.sock {settings}"));
    set("--no-wait init")?;
    set("--no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:pmd-cpu-mask=2")?;
    let eal = format!("other_config:dpdk-extra={EAL}");
    let mut extra = command(at, "ovs-vsctl", "--timeout=30 --db=unix:@/db.sock --no-wait set Open_vSwitch .");
    extra.arg(eal).stdout(Stdio::null()).status().ok().filter(|status| status.success())?;
    let arguments = format!("--net {SWITCH} unix:@/db.sock --unixctl=@/switch.ctl");
    let _switch = start(at, "unshare", &arguments)?;
    set("add-br br0 -- set bridge br0 datapath_type=netdev")?;
    for n in [0, 1] {
        let device = format!("type=dpdk options:dpdk-devargs=net_null{n},size=60,copy=1");
        set(&format!("add-port br0 p{n} -- set Interface p{n} {device}"))?;
    }
    let ask = |what: &str| run(at, "ovs-appctl", &format!("-t @/switch.ctl dpif-netdev/pmd-stats-{what}"));
    let number = |said: &str, name: &str| {
        let value = said.lines().find_map(|line| line.trim().strip_prefix(name))?;
        value.split_whitespace().next()?.parse::<f64>().ok()
    };
    // Wait until the switch has learned addresses and allocated its tables.
    let have_passed = || number(&ask("show")?, "packets received:").filter(|packets| *packets >= PACKETS);
    wait_for(|| have_passed().is_some())?;
    ask("clear")?;
    wait_for(|| have_passed().is_some())?;
    number(&ask("show")?, "avg processing cycles per packet:")
}
