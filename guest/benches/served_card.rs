//! Measures the packets that a guest's Linux moves over two served models connected by a cable. This build and another
//! one alternate in one guest. The comparison shows whether a change made the model slower as a card of virtual
//! machines. The guest's processors are emulated, so only the ratios are meaningful.
//!
//! `LINERATE_OTHER=/path/to/linerate cargo bench -p linerate-guest --bench served_card`. Without the variable, this
//! build is compared with itself, which shows the noise of the measurement.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use linerate_guest::{Guest, Machine};

const BOOTS: usize = 3;
const ROUNDS: usize = 6;
/// Seconds of each flow.
const SECONDS: usize = 2;
const PINGS: usize = 300;
const COLUMNS: [&str; 4] = ["UDP 64", "UDP 1494", "TCP Mbit/s", "ping µs"];

/// Packets received per second for two lengths, Mbit/s of TCP, and the round trip in microseconds.
type Row = [f64; 4];

/// A process of one build that serves two cards.
struct Served {
    process: Child,
    sockets: [PathBuf; 2],
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

fn main() {
    let ours = linerate_guest::linerate();
    let ours = ours.get_args().last().expect("the program's path").to_os_string();
    let other = std::env::var_os("LINERATE_OTHER");
    let names = ["this build", if other.is_some() { "the other" } else { "itself" }];
    let builds = [ours.clone(), other.unwrap_or(ours)];
    let mut rows = [Vec::new(), Vec::new()];
    for _ in 0..BOOTS {
        measure(&builds, &mut rows);
    }
    println!("a guest's two served cards; packets/s received; medians of {BOOTS} boots with {ROUNDS} rounds in turns");
    println!("{:<12}{}", "", COLUMNS.map(|column| format!("{column:>12}")).concat());
    let medians = rows.map(|rows| [0, 1, 2, 3].map(|column| median(&rows, column)));
    for (name, row) in names.iter().zip(&medians) {
        println!("{name:<12}{}", row.map(|value| format!("{value:>12.0}")).concat());
    }
    let [ours, other] = &medians;
    println!("{:<12}{}", "ratio", [0, 1, 2, 3].map(|n| format!("{:>12.2}", ours[n] / other[n])).concat());
}

fn median(rows: &[Row], column: usize) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(|row| row[column]).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Boots a guest with two cards of each build, and measures the builds alternately.
fn measure(builds: &[impl AsRef<OsStr>; 2], rows: &mut [Vec<Row>; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut machine = Machine::new();
    machine.program("iperf3");
    let served = [0, 1].map(|n| {
        let sockets = ["a", "b"].map(|end| folder.path().join(format!("{end}{n}")));
        let mut command = Command::new(&builds[n]);
        command.arg("sim").stdout(Stdio::null());
        sockets.iter().for_each(|socket| _ = command.arg("--socket").arg(socket));
        Served { process: command.spawn().expect("it starts"), sockets }
    });
    for socket in served.iter().flat_map(|served| &served.sockets) {
        while !socket.exists() {
            std::thread::yield_now();
        }
        machine.served(socket);
    }
    let mut guest = machine.boot();
    guest.run("modprobe ixgbe");
    for n in [0, 1] {
        let [near, far] = [2 * n, 2 * n + 1].map(|card| format!("eth{card}"));
        let prefix = guest.move_to_own_network(&far, &format!("10.8{n}.0.2/24"));
        guest.run(&format!("ip addr add 10.8{n}.0.1/24 dev {near} && ip link set {near} up"));
        guest.wait_for_link("", &near);
        guest.wait_for_link(&prefix, &far);
        guest.run(&format!("{prefix} iperf3 --server --daemon"));
    }
    for _ in 0..ROUNDS {
        for (n, rows) in rows.iter_mut().enumerate() {
            rows.push(row(&mut guest, &format!("10.8{n}.0.2")));
        }
    }
}

/// Measures the path to this address.
fn row(guest: &mut Guest, address: &str) -> Row {
    let [small, large] = [18, 1448].map(|payload| guest.received_per_second(address, payload, SECONDS));
    let tcp = guest.iperf("", &format!("--client {address} --time {SECONDS}"));
    let tcp = tcp["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or_else(|| panic!("{tcp}")) / 1e6;
    [small, large, tcp, guest.round_trip(address, PINGS)]
}
