//! Measures throughput and latency between two virtual machines, for each path between their cards, in one run. Snabb's
//! and netmap's papers on network functions in virtual machines make the same comparison. The guests' processors are
//! emulated, so only the ratios to Linux's bridge are meaningful.
//!
//! `cargo bench -p linerate-guest --bench virtual_machines`

use std::process::{Child, Command, Stdio};

use linerate::sim82599::CardKind;
use linerate_guest::{Guest, Machine, Namespace, Served};

const ROUNDS: usize = 3;
/// Seconds of each flow.
const SECONDS: usize = 2;
const PINGS: usize = 500;
/// UDP payloads of frames of 64 and 1,494 bytes; iperf3 warns about larger payloads.
const PAYLOADS: [usize; 2] = [18, 1448];

/// A path, and each guest's interface to it.
struct Path {
    name: &'static str,
    interfaces: [&'static str; 2],
}

const PATHS: [Path; 5] = [
    Path { name: "Linux's bridge, TAPs", interfaces: ["eth0", "eth0"] },
    Path { name: "fwd vhost: vhost:", interfaces: ["eth1", "eth1"] },
    Path { name: "VALE switch, vhost:", interfaces: ["eth2", "eth2"] },
    Path { name: "pipe between two fwd", interfaces: ["eth3", "eth3"] },
    Path { name: "functions of a served 82599", interfaces: ["eth6", "eth4"] },
];

/// A linerate process, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// The results of one path: packets per second for each payload, and the round trip in microseconds.
type Row = [f64; 3];

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let namespace = Namespace::new("machines");
    namespace.run("ip link add bridge type bridge && ip link set bridge up");
    let command = |words: &str| {
        let mut command = linerate_guest::linerate();
        command.args(words.split(' ')).env("LINERATE_PORTS", folder.path().join("ports"));
        command
    };
    let start = |mut command: Command| Process(command.stdout(Stdio::null()).spawn().expect("it starts"));
    let served = Served::pair(CardKind::X82599Sfp, 2);
    let mut machines = [Machine::new(), Machine::new()];
    for (n, machine) in machines.iter_mut().enumerate() {
        machine.program("iperf3");
        machine.program("ethtool");
        machine.in_namespace(&namespace);
        let tap = format!("tap{n}");
        namespace.tap(&tap, 1);
        namespace.run(&format!("ip link set {tap} master bridge"));
        machine.card_at_tap("virtio-net-pci", &tap, 1);
        for kind in ["forwarder", "switch", "pipe"] {
            machine.card_at_back_end("packed=off", &path(&format!("{kind}{n}")), 1);
        }
        served.plug(machine, [&["a", "b", "a.vf0"][..], &["a.vf1"]][n]);
    }
    std::fs::create_dir(folder.path().join("ports")).expect("a folder");
    let _server = start(command("serve"));
    let wait = |is_there: &dyn Fn() -> bool| {
        while !is_there() {
            std::thread::yield_now();
        }
    };
    wait(&|| command("switch list").output().expect("it runs").status.success());
    for n in 0..2 {
        let attached = command(&format!("switch attach vale0:vhost:{}", path(&format!("switch{n}")))).output();
        assert!(attached.as_ref().is_ok_and(|output| output.status.success()), "{attached:?}");
    }
    let _forwarders = [
        format!("fwd vhost:{} vhost:{} --wait interrupt", path("forwarder0"), path("forwarder1")),
        format!("fwd vhost:{} p{{1 --wait interrupt", path("pipe0")),
        format!("fwd p}}1 vhost:{} --wait interrupt", path("pipe1")),
    ]
    .map(|words| start(command(&words)));
    wait(&|| ["forwarder0", "forwarder1", "pipe0", "pipe1"].iter().all(|name| folder.path().join(name).exists()));
    let mut guests = machines.map(Machine::boot);
    for (end, guest) in guests.iter_mut().enumerate() {
        guest.run("modprobe virtio_pci && modprobe virtio_net && modprobe ixgbe && modprobe ixgbevf");
        if end == 0 {
            // The physical function and the card at the other end of its cable.
            guest.run("ip link set eth4 up && ip link set eth5 up");
        }
        for (n, Path { interfaces, .. }) in PATHS.iter().enumerate() {
            let interface = interfaces[end];
            // Both machines' cards have the same MAC addresses.
            if end == 1 && n < 4 {
                guest.run(&format!("ip link set {interface} address 02:00:00:00:01:0{n}"));
            }
            // Every path must carry the same packets.
            guest.run(&format!("ethtool -K {interface} tso off gso off gro off"));
            guest.run(&format!("ip addr add 10.7{n}.0.{}/24 dev {interface} && ip link set {interface} up", end + 1));
        }
        guest.run("iperf3 --server --daemon");
    }
    for Path { interfaces, .. } in &PATHS {
        guests.iter_mut().zip(interfaces).for_each(|(guest, interface)| guest.wait_for_link("", interface));
    }
    let mut rows = PATHS.each_ref().map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (n, rows) in rows.iter_mut().enumerate() {
            rows.push(measure(&mut guests[0], &format!("10.7{n}.0.2")));
        }
    }
    println!(
        "between two machines, packets/s received of 64 and 1,494 bytes, and round trip; medians of {ROUNDS} in turns"
    );
    println!("{:<30} {:>9} {:>6} {:>9} {:>6} {:>9} {:>6}", "path", "64", "ratio", "1494", "ratio", "µs", "ratio");
    let medians = rows.map(|rows| {
        [0, 1, 2].map(|column| {
            let mut values: Vec<f64> = rows.iter().map(|row: &Row| row[column]).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        })
    });
    for (Path { name, .. }, row) in PATHS.iter().zip(&medians) {
        let [small, large, time] = [0, 1, 2].map(|n| row[n] / medians[0][n]);
        let [a, b, c] = row;
        println!("{name:<30} {a:>9.0} {small:>6.2} {b:>9.0} {large:>6.2} {c:>9.0} {time:>6.2}");
    }
}

/// Measures the path to this address.
fn measure(guest: &mut Guest, address: &str) -> Row {
    let [small, large] = PAYLOADS.map(|payload| guest.received_per_second(address, payload, SECONDS));
    [small, large, guest.round_trip(address, PINGS)]
}
