//! Compares ports on the kernel's interfaces with DPDK's drivers for them and with plain sockets: receive, send,
//! forward and drop frames of 64 bytes, over veth pairs. All are measured in one run, each program on one processor.
//! The kernel is the source, on the other processor, and faster than any of them.
//!
//! `cargo bench -p linerate-cli --bench sharing`; as root, with dpdk-testpmd, nft and iptables.

#[path = "../../tests/kit/mod.rs"]
mod kit;

mod blast;
mod sockets;

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kit::{Namespace, Process, expect, summary};
use linerate::kernel::Interface;
use linerate::traffic::Generator;
use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};
use sockets::Loop;

/// The duration of each measurement.
const TIME: Duration = Duration::from_secs(1);
/// The number of measurements of each program.
const ROUNDS: usize = 5;
/// The processors of the source, and of the program under test.
const SOURCE: usize = 0;
const MEASURED: usize = 1;

fn frame() -> Vec<u8> {
    let mut generator = Generator::new(64, 1);
    let mut frame = vec![0; generator.frame_len()];
    generator.fill(&mut frame);
    frame
}

/// A program under test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// `linerate` with ports of this kind and these options.
    Ours(&'static str, &'static str),
    /// DPDK's testpmd with this driver.
    Dpdk(&'static str),
    /// recvmmsg(2) and sendmmsg(2).
    Sockets,
}

impl Who {
    fn name(self) -> String {
        match self {
            Who::Ours(kind, options) => format!("linerate {kind}:{options}"),
            Who::Dpdk(driver) => format!("DPDK net_{driver}"),
            Who::Sockets => "recvmmsg, sendmmsg".to_string(),
        }
    }

    /// Returns the command that runs it in a namespace on these interfaces.
    fn command(self, what: Loop, namespace: &Namespace, interfaces: &[&str]) -> Command {
        let program = match self {
            Who::Ours(kind, options) => {
                let ports: Vec<String> = interfaces.iter().map(|name| format!("{kind}:{name}{options}")).collect();
                let word = ["sink", "gen", "fwd"][what as usize];
                let options = format!("--cores {MEASURED} --pages ordinary --ring 2048 --seconds 60 --json");
                format!("{} {word} {} {options}", env!("CARGO_BIN_EXE_linerate"), ports.join(" "))
            }
            Who::Dpdk(driver) => {
                let bypass = if driver == "af_packet" { ",qdisc_bypass=1" } else { "" };
                let devices: Vec<String> = interfaces
                    .iter()
                    .enumerate()
                    .map(|(n, name)| format!("--vdev net_{driver}{n},iface={name}{bypass}"))
                    .collect();
                let mode = ["rxonly", "txonly --txpkts=60", "io"][what as usize];
                format!(
                    "dpdk-testpmd -l {SOURCE},{MEASURED} --no-pci --no-huge -m 512 --no-telemetry --file-prefix=linerate{} {} -- \
                     --forward-mode={mode} --auto-start --stats-period=1 --total-num-mbufs=16384 --rxd=2048 --txd=2048",
                    std::process::id(),
                    devices.join(" ")
                )
            }
            Who::Sockets => {
                let this = std::env::current_exe().unwrap();
                format!("{} --sockets {} {}", this.display(), what as usize, interfaces.join(" "))
            }
        };
        namespace.command(&program)
    }

    /// Returns the packets that it reports as received.
    fn received(self, output: &str) -> u64 {
        match self {
            Who::Ours(..) => summary(output.as_bytes())["ports"][0]["rx_packets"].as_u64().unwrap(),
            Who::Dpdk(_) => {
                let all = output.rsplit("Accumulated forward statistics").next().unwrap();
                all.split("RX-packets:").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
            }
            Who::Sockets => output.trim().lines().last().unwrap().parse().unwrap(),
        }
    }
}

/// The measurements of one program.
struct Measured {
    mpps: f64,
    /// Nanoseconds of the program's processor time per packet: in its own code, and in the kernel for it.
    own: f64,
    kernel: f64,
}

/// The namespace under test, and one on each side of it.
struct Place {
    source: Namespace,
    middle: Namespace,
    far: Namespace,
}

impl Place {
    fn new() -> Place {
        let [source, middle, far] = ["bs", "bm", "bf"].map(Namespace::new);
        for (here, other, there) in [("m0", &source, "s0"), ("m1", &far, "f0")] {
            let names = ["-n", &middle.name, "link", "add", here, "type", "veth", "peer", "name", there, "netns"];
            expect(0, Command::new("ip").args(names).arg(&other.name));
            for (namespace, interface) in [(&middle, here), (other, there)] {
                namespace.disable_ipv6(interface);
                namespace.run(&format!("ip link set {interface} up"));
                // Without a program, a veth accepts redirected frames only with GRO.
                namespace.run(&format!("ethtool -K {interface} gro on"));
            }
        }
        Place { source, middle, far }
    }

    /// Sends to m0 at full speed, and returns the number of frames. They are addressed to m0, or to another address, so
    /// that Linux's stack drops them early.
    fn blast(&self, is_for_linux: bool) -> u64 {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.source.name)).unwrap();
        let mut frame = frame();
        let mac = if is_for_linux { self.middle.run("cat /sys/class/net/m0/address") } else { String::new() };
        for (byte, digits) in frame.iter_mut().zip(mac.trim().split(':')) {
            *byte = u8::from_str_radix(digits, 16).unwrap_or(*byte);
        }
        let thread = std::thread::spawn(move || {
            on_processor(SOURCE);
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let index = Interface::open("s0").unwrap().index();
            blast::blast(index, &frame, TIME).unwrap()
        });
        thread.join().unwrap()
    }

    fn measure(&self, who: Who, what: Loop, is_for_linux: bool) -> Measured {
        let interfaces = match what {
            Loop::Receive => &["m0"][..],
            Loop::Send => &["m1"],
            Loop::Forward => &["m0", "m1"],
        };
        let mut process = Process::start(&mut who.command(what, &self.middle, interfaces));
        match who {
            Who::Ours(..) => process.await_output("ports"),
            Who::Dpdk(_) => process.await_output("Port statistics"),
            Who::Sockets => process.await_output("ready"),
        };
        let far = || self.far.run("cat /sys/class/net/f0/statistics/rx_packets").trim().parse::<u64>().unwrap();
        let (before, times, start) = (far(), process.times(), Instant::now());
        match what {
            Loop::Send => std::thread::sleep(TIME),
            Loop::Receive | Loop::Forward => drop(self.blast(is_for_linux)),
        }
        let (seconds, after, arrived) = (start.elapsed().as_secs_f64(), process.times(), far() - before);
        let (_, output) = process.interrupt();
        let packets = if what == Loop::Receive { who.received(&output) } else { arrived } as f64;
        let nanoseconds = |ticks: u64| ticks as f64 * 1e7 / packets;
        Measured {
            mpps: packets / seconds / 1e6,
            own: nanoseconds(after.0 - times.0),
            kernel: nanoseconds(after.1 - times.1),
        }
    }
}

fn on_processor(number: usize) {
    let mut set = CpuSet::new();
    set.set(number);
    sched_setaffinity(None, &set).unwrap();
}

/// Runs one of the programs under test: a loop over sockets.
fn be_sockets(arguments: &[String]) {
    on_processor(MEASURED);
    let what = [Loop::Receive, Loop::Send, Loop::Forward][arguments[0].parse::<usize>().unwrap()];
    let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let stopped = stop.clone();
    ctrlc::set_handler(move || stopped.store(true, Relaxed)).unwrap();
    sockets::run(what, &arguments[1..], &frame(), &stop, &count).unwrap();
    println!("{}", count.load(Relaxed));
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--sockets") {
        return be_sockets(&arguments[at + 1..]);
    }
    // Arguments choose the parts: `-- receive` or `-- drop`.
    let chosen = |name: &str| {
        let mut words = arguments[1..].iter().filter(|word| !word.starts_with("--")).peekable();
        words.peek().is_none() || words.any(|word| word == name)
    };
    let place = Place::new();
    let contenders = [
        Who::Dpdk("af_xdp"),
        Who::Ours("xdp", ""),
        Who::Ours("xdp", "?busy=on"),
        Who::Dpdk("af_packet"),
        Who::Ours("packet", ""),
        Who::Sockets,
    ];
    println!("veth pairs, frames of 64 bytes; medians of {ROUNDS}; ns of the program's processor for each packet");
    for (name, what) in [("receive", Loop::Receive), ("send", Loop::Send), ("forward", Loop::Forward)] {
        if !chosen(name) {
            continue;
        }
        println!(
            "{name:<28} {:>7} {:>10} {:>13} {:>9} {:>9}",
            "Mpps", "to af_xdp", "to af_packet", "own ns", "kernel ns"
        );
        // In turn, so that other load on the machine affects all of them.
        let mut all: Vec<Vec<Measured>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            all.iter_mut().zip(contenders).for_each(|(all, who)| all.push(place.measure(who, what, false)));
        }
        let all: Vec<Measured> = all.into_iter().map(median).collect();
        for (who, Measured { mpps, own, kernel }) in contenders.iter().zip(&all) {
            let (to_xdp, to_packet) = (mpps / all[0].mpps, mpps / all[3].mpps);
            println!("  {:<26} {mpps:>7.3} {to_xdp:>10.2} {to_packet:>13.2} {own:>9.0} {kernel:>9.0}", who.name());
        }
    }
    if chosen("drop") {
        println!(
            "drop UDP: Mpps, and the ratio to the plain socket; rules work on the source's processor, programs on another"
        );
        let mut all: Vec<Vec<f64>> = DROPPERS.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            all.iter_mut().zip(DROPPERS).for_each(|(all, dropper)| all.push(place.measure_drop(dropper)));
        }
        all.iter_mut().for_each(|all| all.sort_by(f64::total_cmp));
        for (dropper, rates) in DROPPERS.iter().zip(&all) {
            let (mpps, socket) = (rates[ROUNDS / 2], all[2][ROUNDS / 2]);
            println!("  {:<38} {mpps:>7.3} {:>6.2}", dropper.name(), mpps / socket);
        }
    }
}

/// A way to drop packets to a port, after Cloudflare's "How to drop 10 million packets per second".
#[derive(Clone, Copy)]
enum Dropper {
    /// A Linux rule: the commands that create it, print its packet counter, and delete it.
    Rule(&'static str, [&'static str; 3]),
    /// A program that receives the packets.
    Program(Who),
    /// `linerate filter` with this port.
    Filter(&'static str),
}

const DROPPERS: [Dropper; 6] = [
    Dropper::Rule(
        "iptables, raw",
        [
            "iptables -t raw -A PREROUTING -p udp -j DROP",
            "iptables -t raw -L PREROUTING -n -v -x",
            "iptables -t raw -F",
        ],
    ),
    Dropper::Rule(
        "nftables, ingress",
        [
            "nft add table netdev t ; add chain netdev t c { type filter hook ingress device m0 priority 0 ; } ; \
             add rule netdev t c udp dport 0-65535 counter drop",
            "nft list ruleset",
            "nft flush ruleset",
        ],
    ),
    Dropper::Program(Who::Sockets),
    Dropper::Filter("packet:m0"),
    Dropper::Filter("xdp:m0?flow=all"),
    Dropper::Filter("xdp:m0?flow=all&busy=on"),
];

impl Dropper {
    fn name(self) -> String {
        match self {
            Dropper::Rule(name, _) => name.to_string(),
            Dropper::Program(_) => "AF_PACKET, recvmmsg".to_string(),
            Dropper::Filter(port) => format!("linerate filter {port}"),
        }
    }
}

impl Place {
    /// Returns the millions of packets dropped per second.
    fn measure_drop(&self, dropper: Dropper) -> f64 {
        let start = Instant::now();
        let dropped = match dropper {
            Dropper::Rule(_, [make, print, remove]) => {
                self.middle.run(make);
                self.blast(true);
                let said = self.middle.run(print);
                self.middle.run(remove);
                // The smallest number above 10,000 is the packet counter.
                let numbers = said.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
                numbers.filter(|number| *number > 10_000).min().unwrap_or(0)
            }
            Dropper::Program(who) => return self.measure(who, Loop::Receive, true).mpps,
            Dropper::Filter(port) => {
                let options = format!("--cores {MEASURED} --pages ordinary --ring 2048 --seconds 60 --json");
                let command = format!("{} filter {port} --drop udp {options}", env!("CARGO_BIN_EXE_linerate"));
                let mut process = self.middle.start(&command);
                process.await_output("ports");
                let start = Instant::now();
                self.blast(true);
                let seconds = start.elapsed().as_secs_f64();
                let dropped = summary(process.interrupt().1.as_bytes())["filtered"].as_u64().unwrap();
                return dropped as f64 / seconds / 1e6;
            }
        };
        dropped as f64 / start.elapsed().as_secs_f64() / 1e6
    }
}

/// Returns the median by packets per second.
fn median(mut all: Vec<Measured>) -> Measured {
    all.sort_by(|a, b| a.mpps.total_cmp(&b.mpps));
    all.swap_remove(all.len() / 2)
}
