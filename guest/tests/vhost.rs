//! Tests with third-party peers. `vhost:` ports have the front ends of QEMU (with Linux's driver in the guest) and
//! DPDK. `virtio-user:` ports have the back ends of DPDK, Open vSwitch and passt. `memif:` ports have DPDK's net_memif,
//! in both roles.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Link, Port, RxQueue, TxQueue, Wait, Waiter};
use linerate::traffic::{Checker, Generator, Report};
use linerate::{Batch, Options};
use linerate_guest::{Guest, Machine, Memory, Namespace, OpenVswitch, Passt, Qemu, check_exchange, hash_of};
use linerate_testkit::{Deadline, Debian, OutputTimeout, TIME_LIMIT, end_of, exchange, output_of, until};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

/// A thread that forwards between two ports, in both directions.
struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<[Port; 2]>>,
}

impl Forwarder {
    fn start(mut ports: [Port; 2]) -> Forwarder {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let queues = ports[0].info().rx_queues;
            let mut ways = Vec::new();
            for (from, to) in [(0, 1), (1, 0)] {
                for queue in 0..queues {
                    let (rx, tx) = (ports[from].rx(queue).unwrap(), ports[to].tx(queue).unwrap());
                    ways.push((rx, tx, Batch::new()));
                }
            }
            let mut waiter = Waiter::new(Wait::Interrupt);
            while !stopped.load(Relaxed) {
                let mut moved = 0;
                for (rx, tx, batch) in &mut ways {
                    moved += rx.recv(batch) + tx.send(batch);
                }
                let mut queues: Vec<_> = ways.iter_mut().map(|(rx, ..)| rx).collect();
                waiter.turn(moved, &mut queues);
            }
            drop(ways);
            ports
        };
        Forwarder { stop, thread: Some(std::thread::spawn(run)) }
    }

    /// Ends the thread, and returns the ports.
    fn ports(mut self) -> [Port; 2] {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Two cards with the same options, connected by a forwarder.
struct Pair {
    options: &'static str,
    port: &'static str,
    queues: u16,
}

/// Cards with Linux's defaults, with features off, with several queues, with large packets, and with packed queues. The
/// last two can send packets for segmentation, but not receive them. Of these, one can receive packets without a
/// finished checksum, and one cannot.
const PAIRS: [Pair; 9] = [
    Pair { options: "mrg_rxbuf=on", port: "", queues: 1 },
    Pair { options: "mrg_rxbuf=off,event_idx=off", port: "", queues: 1 },
    Pair { options: "indirect_desc=off,disable-modern=on,disable-legacy=off", port: "", queues: 1 },
    Pair { options: "rx_queue_size=1024", port: "?offloads=on", queues: 1 },
    Pair { options: "host_mtu=9000", port: "?mtu=9000", queues: 4 },
    Pair { options: "packed=on", port: "?packed=on&offloads=on", queues: 2 },
    Pair { options: "packed=on,mrg_rxbuf=off,event_idx=off,indirect_desc=off", port: "?packed=on", queues: 1 },
    Pair { options: "guest_tso4=off,guest_tso6=off,guest_ecn=off", port: "?offloads=on", queues: 1 },
    Pair { options: "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off", port: "?offloads=on", queues: 1 },
];

impl Pair {
    /// Returns whether the receiving card may get packets without a finished checksum.
    fn takes_unfinished(&self) -> bool {
        self.port.contains("offloads") && !self.options.contains("guest_csum=off")
    }
}

#[test]
fn guests_reach_each_other_through_a_forwarder() {
    reach_each_other(Machine::new().processors(2), &PAIRS, 4 << 20);
}

/// The same in the distributions' QEMUs, with one processor: with two, the emulation of QEMU 7.2 sometimes crashes.
#[test]
fn the_distributions_qemus_have_their_cards_at_these_ports_too() {
    let pairs = [
        Pair { options: "mrg_rxbuf=on", port: "", queues: 1 },
        Pair { options: "packed=on", port: "?packed=on&offloads=on", queues: 1 },
    ];
    for qemu in Qemu::of_distributions() {
        reach_each_other(Machine::new().qemu(qemu).memory(Memory::File), &pairs, 1 << 20);
    }
}

/// `linerate vm` starts machines with cards at the ports of a served switch, to which a third program is also attached,
/// and with a card at the port of a command.
#[test]
fn a_machine_s_line_puts_it_on_a_switch() {
    for qemu in [vec![Qemu::Newest], Qemu::of_distributions()].concat() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let linerate = |words: &[&str]| {
            let mut command = linerate_guest::linerate();
            command.args(words).env("LINERATE_PORTS", path("ports"));
            command
        };
        let server = Process(linerate(&["serve"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let ports = [
            format!("vhost:{}?packed=on&queues=2", path("near")),
            format!("vhost:{}?client=on&offloads=on", path("far")),
        ];
        let deadline = Deadline::begin();
        for port in &ports {
            let attach = || linerate(&["switch", "attach", &format!("vale0:{port}")]).output_in_time().unwrap();
            while let output = attach()
                && !output.status.success()
            {
                deadline.check(|| format!("{port} to be attached: {output:?}"));
            }
        }
        let third = linerate(&["sink", "vale0:third", "--count", "1", "--seconds", "120", "--json"]);
        let third = { third }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let of_command = format!("vhost:{}?offloads=on", path("command"));
        let exchanging = exchange("server", "10.8.0.1");
        let words = ["exec", "--port", &of_command, "--address", "10.8.0.1/24", "--"];
        let words: Vec<&str> = words.into_iter().chain(exchanging.iter().map(String::as_str)).collect();
        let mut command = linerate_testkit::Process::start(&mut linerate(&words));
        command.await_output("listening");
        let machine = Machine::new().qemu(qemu).at_ports(&[&ports[0], &ports[1], &of_command]);
        let mut guest = machine.boot();
        guest.run("modprobe -a virtio_pci virtio_net; head -c 1048576 /dev/urandom >/tmp/file");
        let sum = guest.run("sha256sum </tmp/file");
        let prefix = guest.move_to_own_network("eth1", "10.9.0.2/24");
        guest.run("ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up");
        guest.wait_for_link("", "eth0");
        guest.wait_for_link(&prefix, "eth1");
        let answer = guest.run("ping -c 3 -i 0.2 -W 5 -s 1400 10.9.0.2");
        assert!(answer.contains("3 packets received"), "{answer}");
        for (from, to, address) in [("", &*prefix, "10.9.0.2"), (&*prefix, "", "10.9.0.1")] {
            begin_transfer(&mut guest, from, to, address);
            assert_eq!(end_transfer(&mut guest), sum, "{qemu:?}");
        }
        guest.run("ip addr add 10.8.0.2/24 dev eth2 && ip link set eth2 up");
        guest.wait_for_link("", "eth2");
        check_exchange(&mut guest, "10.8.0.1", command);
        // Broadcasts also arrive at the third port.
        let seen = output_of(third);
        assert!(seen.status.success(), "{seen:?}");
        complaints(&mut guest);
        drop(server);
    }
}

/// Sends pings of several lengths and, in both directions, a file of this size over TCP between the cards of each pair.
fn reach_each_other(mut machine: Machine, pairs: &[Pair], size: u64) {
    let folder = TempDir::new().unwrap();
    machine.program("ethtool");
    machine.program("tcpdump");
    let mut forwarders = Vec::new();
    for (n, Pair { options, port, queues }) in pairs.iter().enumerate() {
        let sockets = ["a", "b"].map(|end| folder.path().join(format!("{end}{n}")).display().to_string());
        let names = sockets.each_ref().map(|socket| {
            let mark = if port.is_empty() { '?' } else { '&' };
            format!("vhost:{socket}{port}{mark}queues={queues}")
        });
        let ports = open(&names);
        sockets.iter().for_each(|socket| machine.card_at_back_end(options, socket, *queues));
        forwarders.push(Forwarder::start(ports));
    }
    let mut guest = machine.boot();
    guest.run(&format!("modprobe -a virtio_pci virtio_net af_packet; head -c {size} /dev/urandom >/tmp/file"));
    let sum = guest.run("sha256sum </tmp/file");
    for (n, pair @ Pair { options, port, queues }) in pairs.iter().enumerate() {
        let (near, far) = (format!("eth{}", 2 * n), format!("eth{}", 2 * n + 1));
        let prefix = guest.move_to_own_network(&far, &format!("10.9{n}.0.2/24"));
        guest.run(&format!("ip addr add 10.9{n}.0.1/24 dev {near} && ip link set {near} up"));
        if port.contains("mtu") {
            guest.run(&format!("ip link set {near} mtu 9000; {prefix} ip link set {far} mtu 9000"));
        }
        guest.wait_for_link("", &near);
        guest.wait_for_link(&prefix, &far);
        if *queues > 1 {
            // By default, Linux uses one queue for each processor.
            guest.run(&format!("ethtool -L {near} combined {queues}; {prefix} ethtool -L {far} combined {queues}"));
        }
        let longest = if port.contains("mtu") { 8972 } else { 1472 };
        for size in [8, 1400, longest] {
            let answer = guest.run(&format!("ping -c 3 -i 0.01 -W 5 -s {size} 10.9{n}.0.2"));
            assert!(answer.contains("3 packets received"), "{options}: {answer}");
        }
        for (from, to, address) in [("", &*prefix, "0.2"), (&*prefix, "", "0.1")] {
            begin_transfer(&mut guest, from, to, &format!("10.9{n}.{address}"));
            if (n, to) == (pairs.len() - 1, "") {
                guest.plug_memory();
            }
            assert_eq!(end_transfer(&mut guest), sum, "{options}");
        }
        sees_checksums(&mut guest, &prefix, n, pair);
        let features = guest.run(&format!("ethtool -k {near}"));
        let is_left = |feature: &str| features.contains(&format!("{feature}: on"));
        let offloads = ["tx-checksumming", "tcp-segmentation-offload"].map(is_left);
        assert_eq!(offloads, [port.contains("offloads"); 2], "{options}: {features}");
    }
    for (forwarder, Pair { options, queues, .. }) in forwarders.into_iter().zip(pairs) {
        let ports = forwarder.ports();
        let used = [ports[0].queue_statistics().rx_slots, ports[1].queue_statistics().tx_slots];
        let is_used = |slots: &Vec<u64>| slots.len() == usize::from(*queues) && !slots.contains(&0);
        assert!(used.iter().all(is_used), "{options}: {used:?}");
        for port in &ports {
            // The port shows a card's features only while the machine runs.
            let is_packed = port.info().description.contains("packed");
            assert_eq!(is_packed, options.contains("packed=on"), "{options}");
            let drops = port.statistics().unwrap().drops;
            assert!(drops.malformed == 0 && drops.tx_too_long == 0, "{options}: {drops:?}");
        }
    }
    complaints(&mut guest);
}

/// Sends datagrams from Linux's sockets to the far card of a pair, through all queues, and checks their checksums there
/// with tcpdump. Only a card that accepts unfinished packets may see the sender's unfinished checksums.
fn sees_checksums(guest: &mut Guest, prefix: &str, n: usize, pair: &Pair) {
    const COUNT: usize = 40;
    let (near, far) = (format!("eth{}", 2 * n), format!("eth{}", 2 * n + 1));
    guest.run(&format!(
        "echo 0 >/proc/sys/net/ipv6/conf/{near}/accept_dad && ip addr add fd0{n}::1/64 dev {near} && \
         {prefix} sh -c 'echo 0 >/proc/sys/net/ipv6/conf/{far}/accept_dad' && \
         {prefix} ip addr add fd0{n}::2/64 dev {far} && \
         {prefix} sh -c 'echo 0 >/proc/sys/net/ipv4/icmp_ratelimit; echo 0 >/proc/sys/net/ipv6/icmp/ratelimit'"
    ));
    for (program, address) in [("traceroute", format!("10.9{n}.0.2")), ("traceroute6", format!("fd0{n}::2"))] {
        let seen = guest.start(&format!("{prefix} tcpdump -Z root -i {far} -n -vv -c {COUNT} dst {address} and udp"));
        guest.wait_for(&seen, "listening on");
        for queue in 0..pair.queues {
            // Make all processors send through this queue: Linux chooses one queue for a complete traceroute, possibly
            // the same each time.
            if pair.queues > 1 {
                let all = format!("/sys/class/net/{near}/queues/tx-");
                guest.run(&format!(
                    "for other in {all}*; do echo 0 >$other/xps_cpus; done && echo 3 >{all}{queue}/xps_cpus"
                ));
            }
            let count = COUNT / usize::from(pair.queues);
            guest.run(&format!("{program} -n -m 1 -q {count} -w 1 {address} 500"));
        }
        let said = guest.wait(seen).output;
        let valid = said.matches("udp sum ok").count();
        assert!(valid == COUNT || pair.takes_unfinished(), "{}, {address}: {valid}: {said}", pair.options);
    }
}

/// Opens two ports with interrupts and with a separate pool.
fn open(names: &[String; 2]) -> [Port; 2] {
    let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
    let sleeping = Options { interrupts: Some(Duration::ZERO), pool: Some(pool), ..Options::default() };
    sleeping.open(names.each_ref().map(String::as_str)).unwrap()
}

/// Opens a port with a separate pool, whose buffers can be counted while other tests run.
fn open_one(name: &str) -> Result<Port, linerate::Error> {
    let buffer_size = linerate::parse(name)?.buffer_size();
    let pool = Pool::new(Region::new(&RegionOptions { buffer_size, ..RegionOptions::default() })?);
    let [port] = Options { pool: Some(pool), ..Options::default() }.open([name])?;
    Ok(port)
}

/// Starts to send `/tmp/file` over TCP to the file `/tmp/there`.
fn begin_transfer(guest: &mut Guest, from: &str, to: &str, address: &str) {
    // BusyBox's nc exits when the other end stops sending. So the listener's input stays open, or the sender would exit
    // early.
    guest.run(&format!("sleep 1000 | {to} nc -l -p 5000 >/tmp/there & echo $! >/tmp/nc"));
    guest.run(&format!("(until {from} nc {address} 5000 </tmp/file; do usleep 10000; done) &"));
}

/// Waits until the file has arrived, and returns its checksum.
fn end_transfer(guest: &mut Guest) -> String {
    guest.run("while [ -e /proc/$(cat /tmp/nc) ]; do usleep 10000; done");
    guest.run("sha256sum </tmp/there")
}

/// How often each forwarder is killed.
const KILLS: usize = 3;

/// Returns the count from an environment variable, for manual runs, or the default `usual`.
fn by_hand(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |count| count.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A process that forwards between two ports until it is killed.
struct Process(Child);

impl Process {
    fn start(names: &[String; 2]) -> Process {
        let mut command = linerate_guest::linerate();
        command.arg("fwd").args(names).args(["--wait", "interrupt", "--pages", "ordinary", "--json"]);
        Process(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        end_of(&mut self.0);
    }

    /// Stops the process with SIGSTOP, and waits until it has stopped.
    fn stop(&self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a virtqueue's position from the port's file of ring positions: the index, with the wrap counter in bit 15.
fn place(socket: &str, virtqueue: usize) -> u16 {
    let file = std::fs::read(format!("{socket}.rings")).unwrap();
    u16::from_le_bytes(file[8 * (8 + virtqueue)..][..2].try_into().unwrap())
}

/// Kills the port's process where QEMU drops only part of the machine's transmit queue. The machine sends until the
/// queue is close to a wrap after which QEMU takes the position for the ring's initial state. It sends more while the
/// process is stopped; then the process is killed. QEMU empties the queue after the wrap, and the next process must
/// return the chains before it.
fn kill_where_qemu_drops(guest: &mut Guest, socket: &str, process: &mut Process, address: &str) {
    const SIZE: u16 = 256;
    const WAITING: u16 = 12;
    let ping = |count: u16| format!("ping -c {count} -i 0.001 -W 1 {address} || true");
    let deadline = Deadline::begin();
    // Only rounds with a wrap counter of 0 count.
    while !(SIZE - WAITING / 2..SIZE).contains(&place(socket, 1)) {
        deadline.check(|| format!("the end of a round of the ring; it is at {:#x}", place(socket, 1)));
        let both = u32::from(2 * SIZE - WAITING / 2);
        let at = place(socket, 1);
        let number = if at >> 15 == 1 { u32::from(at & 0x7FFF) } else { u32::from(at) + u32::from(SIZE) };
        guest.run(&ping(both.saturating_sub(number).clamp(1, 100) as u16));
    }
    process.stop();
    guest.run(&ping(WAITING));
    process.kill();
}

/// The forwarder between a machine's cards is killed during a TCP transfer, and another process continues. Then the
/// machine is killed: the ports get all their buffers back, and serve the next front end.
#[test]
fn a_machine_and_its_back_ends_may_be_killed() {
    let kills = by_hand("LINERATE_KILLS", KILLS);
    let folder = TempDir::new().unwrap();
    let mut machine = Machine::new().processors(2).memory(Memory::Shm);
    let pairs = [("split", "packed=off"), ("packed", "packed=on")].map(|(kind, options)| {
        // QEMU connects to the near port, and listens for the far one.
        let [near, far] = ["near", "far"].map(|end| folder.path().join(format!("{kind}-{end}")).display().to_string());
        let options = format!("{options},{}", std::env::var("LINERATE_CARD").unwrap_or("status=on".to_string()));
        machine.card_at_back_end(&options, &format!("{near},reconnect-ms=20"), 1);
        machine.card_at_back_end(&options, &format!("{far},server=on"), 1);
        [format!("vhost:{near}?packed=on&offloads=on"), format!("vhost:{far}?packed=on&offloads=on&client=on")]
    });
    let mut processes = pairs.each_ref().map(Process::start);
    let mut guest = machine.boot();
    guest.run("modprobe -a virtio_pci virtio_net; head -c 16777216 /dev/urandom >/tmp/file");
    let sum = guest.run("sha256sum </tmp/file");
    let prefixes = [0, 1].map(|n| {
        let (near, far) = (format!("eth{}", 2 * n), format!("eth{}", 2 * n + 1));
        let prefix = guest.move_to_own_network(&far, &format!("10.9{n}.0.2/24"));
        guest.run(&format!("ip addr add 10.9{n}.0.1/24 dev {near} && ip link set {near} up"));
        guest.wait_for_link("", &near);
        guest.wait_for_link(&prefix, &far);
        prefix
    });
    let mut pauses = Vec::new();
    for kill in 0..kills {
        for (n, prefix) in prefixes.iter().enumerate() {
            let (from, to, address) = [("", &**prefix, "0.2"), (prefix, "", "0.1")][kill % 2];
            begin_transfer(&mut guest, from, to, &format!("10.9{n}.{address}"));
            let size = "stat -c %s /tmp/there";
            let so_far = guest.run(&format!("until [ $({size}) -gt 1000000 ]; do usleep 1000; done; {size}"));
            assert!(so_far.trim() != "16777216", "the kill is too late");
            let begin = Instant::now();
            processes[n].kill();
            processes[n] = Process::start(&pairs[n]);
            // Bytes that are there now may have arrived before the kill, so wait for more.
            let is_more = format!("[ $({size}) -gt $so_far -o $so_far = 16777216 ]");
            guest.run(&format!("so_far=$({size}); until {is_more}; do usleep 1000; done"));
            pauses.push(begin.elapsed());
            assert_eq!(end_transfer(&mut guest), sum, "{:?}, kill {kill}", pairs[n]);
        }
    }
    pauses.sort();
    println!("traffic goes on after {:?} (median), {:?} at most", pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    println!("the longest: {:?}", &pauses[pauses.len().saturating_sub(10)..]);
    // Frames that were not yet returned as used at the kill are sent again: at most one ring of them.
    for (n, prefix) in prefixes.iter().enumerate() {
        let (near, far) = (format!("eth{}", 2 * n), format!("eth{}", 2 * n + 1));
        let sink = guest.start(&format!("{prefix} linerate sink packet:{far} --json"));
        guest.wait_for(&sink, "link up");
        let load = guest.start_linerate(&format!("gen packet:{near} --rate 5k"), 1);
        for is_killed in [true, false] {
            // The received bytes and packets follow the interface's name (proc_pid_net(5)).
            let packets = format!("set -- $({prefix} grep {far}: /proc/net/dev); packets=$3");
            let more = format!(
                "{packets}; end=$((packets+2000)); while [ $packets -lt $end ]; do usleep 1000; {packets}; done"
            );
            guest.run(&more);
            if is_killed {
                processes[n].kill();
                processes[n] = Process::start(&pairs[n]);
            }
        }
        guest.interrupt(load);
        // Frames in the killed process are lost, so the sink may exit with an error.
        let summary = guest.interrupt(sink).summary_of_any();
        let count = |what: &str| summary[what].as_u64().unwrap();
        assert!(count("packets") > 4000 && count("duplicated") <= 256 && count("corrupted") == 0, "{summary}");
    }
    for _ in 0..3 {
        let packed = pairs[1][0].trim_start_matches("vhost:").split('?').next().unwrap();
        kill_where_qemu_drops(&mut guest, packed, &mut processes[1], "10.91.0.2");
        processes[1] = Process::start(&pairs[1]);
        guest.run("until ping -c 1 -W 1 10.91.0.2; do :; done");
    }

    // From here on, this process has the ports, and can count their buffers.
    drop(processes);
    let forwarders = pairs.each_ref().map(|names| Forwarder::start(open(names)));
    for n in 0..pairs.len() {
        // The guest's kernel drops packets while its link comes up.
        let ping = format!("ping -c 100 -i 0.01 -W 1 10.9{n}.0.2");
        guest.run(&format!("until {ping} | grep -q '100 packets received'; do :; done"));
    }
    guest.run("for n in 0 1; do ping -i 0.001 10.9$n.0.2 >/dev/null & done");
    complaints(&mut guest);
    drop(guest);
    for (forwarder, names) in forwarders.into_iter().zip(&pairs) {
        for (mut port, name) in forwarder.ports().into_iter().zip(names) {
            until(format_args!("{name} to see the end"), || port.link().unwrap() == Link::Down);
            assert!(port.info().description.contains("no front end"), "{}", port.info().description);
            let pool = port.pool().clone();
            assert_eq!(pool.available(), pool.region().buffers(), "{name}");
            // The next front end is DPDK's.
            let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
            let (socket, options) = name.trim_start_matches("vhost:").split_once('?').unwrap();
            let is_packed = u8::from(socket.contains("packed-"));
            let is_server = u8::from(options.contains("client=on"));
            if is_server == 1 {
                std::fs::remove_file(socket).unwrap(); // QEMU's
            }
            let device =
                format!("net_virtio_user0,path={socket},queue_size=256,packed_vq={is_packed},server={is_server}");
            Returning::start(&device, 1, &folder).returns_every_packet(&pool, &mut rx, &mut tx, name);
        }
    }
}

/// The options of the cards of a machine that migrates.
const MOVED: [&str; 2] = ["packed=off", "packed=on"];
/// The UDP port of datagrams for the program `stored`, plus the card's number.
const STORED: u16 = 7000;
/// Datagrams for the program `stored` that each card receives before the machine may stop, after all memory was copied.
const LATE: u64 = 500;

/// A machine with split and packed queues migrates to another QEMU while its cards receive frames: at the old ports
/// until it has moved, then at the new ports. It gets no frame twice, and no frame with changed contents.
#[test]
fn a_machine_moves_while_it_receives() {
    for (options, [seen, stored]) in MOVED.iter().zip(moves(by_hand("LINERATE_MIGRATIONS", 1), true)) {
        assert!(seen["packets"].as_u64() > Some(2000), "{options}: {seen}");
        assert!(stored["stored"].as_u64() > Some(LATE / 2), "{options}: {stored}");
        // A page that was not copied would have an earlier frame's bytes, or no frame.
        for what in ["corrupted", "reordered", "duplicated"] {
            assert_eq!(seen[what].as_u64(), Some(0), "{options}: {what}: {seen}");
        }
        for what in ["corrupted", "repeated"] {
            assert_eq!(stored[what].as_u64(), Some(0), "{options}: {what}: {stored}");
        }
    }
}

/// The same with an unused log of written pages: most datagrams are lost that arrive after all memory was copied. This
/// shows that the previous test can fail.
#[test]
fn a_machine_that_moves_without_the_log_has_other_frames() {
    for (options, [_, stored]) in MOVED.iter().zip(moves(1, false)) {
        let damaged: u64 = ["corrupted", "repeated"].iter().filter_map(|what| stored[what].as_u64()).sum();
        assert!(damaged > LATE / 4, "{options}: {stored}");
    }
}

/// Migrates a machine `moves` times. Returns two reports for each card: one of a program that checks frames on arrival,
/// and one of a program that checks them after the migrations.
fn moves(moves: usize, is_logged: bool) -> Vec<[serde_json::Value; 2]> {
    let folder = TempDir::new().unwrap();
    let sockets = MOVED.map(|options| {
        ["here", "there"].map(|end| folder.path().join(format!("{end}-{options}")).display().to_string())
    });
    let load = Load::start(
        sockets.each_ref().map(|ends| open(&ends.each_ref().map(|socket| format!("vhost:{socket}?packed=on")))),
    );
    let relayed = |socket: &String| {
        let relayed = format!("{socket}-relayed");
        relay_without_log(&relayed, socket);
        relayed
    };
    let sockets = if is_logged { sockets } else { sockets.map(|[here, there]| [relayed(&here), there]) };
    // Each of the machine's cards is at one of two ports: the old or the new one.
    let machine = |place: usize| {
        let mut machine = Machine::new();
        for (options, sockets) in MOVED.iter().zip(&sockets) {
            machine.card_at_back_end(options, &sockets[place], 1);
        }
        machine
    };
    let mut guest = machine(0).boot();
    // Holds more than `LATE` datagrams, which Linux 6.12 counts with up to 3 KiB each. They pin even more memory: up to a
    // page fragment of 32 KiB, shared by few.
    guest.run("modprobe -a virtio_pci virtio_net af_packet; echo 16777216 >/proc/sys/net/core/rmem_default");
    let programs = [0, 1].map(|n| {
        guest.run(&format!("ip addr add 10.8.{n}.2/24 dev eth{n} && ip link set eth{n} up"));
        let port = STORED + n as u16;
        let storing = guest.start(&format!("stored {port} /tmp/moved-{n}"));
        guest.wait_for(&storing, "stores");
        [guest.start_linerate(&format!("sink packet:eth{n}"), 1), storing]
    });
    let receives = |guest: &mut Guest, place: usize| {
        let before = load.sent();
        let is_more = |(now, before): (&[u64; 2], &[u64; 2])| now[place] > before[place] + 2000;
        assert!(guest.wait_until(|| load.sent().iter().zip(&before).all(is_more)), "{before:?}, {:?}", load.sent());
    };
    receives(&mut guest, 0);
    for number in 1..=moves {
        let socket = folder.path().join(format!("migration-{number}"));
        let arriving = machine(number % 2).incoming(&socket).boot();
        // Only now, so that the programs' sockets are not full before the machine stops.
        let before = load.stored();
        guest = guest.migrate(arriving, &socket, || {
            load.is_storing.store(true, Relaxed);
            load.stored().iter().zip(before).all(|(now, before)| now - before >= LATE)
        });
        if is_logged {
            receives(&mut guest, number % 2);
        }
        // Unread frames occupy the machine's memory, so they are read here. The load pauses meanwhile, because it
        // leaves the machine little time for other work.
        load.is_paused.store(true, Relaxed);
        for (n, [_, storing]) in programs.iter().enumerate().filter(|_| number < moves) {
            guest.run(&format!("touch /tmp/moved-{n}"));
            guest.wait_for(storing, &format!("turn {number} is checked"));
        }
        load.is_storing.store(false, Relaxed);
        load.is_paused.store(number == moves, Relaxed);
    }
    guest.run("for n in 0 1; do echo end >/tmp/end-$n; mv /tmp/end-$n /tmp/moved-$n; done");
    let reports = programs.map(|[seeing, storing]| {
        let stored = guest.wait(storing).summary();
        [guest.interrupt(seeing).summary_of_any(), stored]
    });
    if is_logged {
        complaints(&mut guest);
    }
    reports.to_vec()
}

/// Listens at `path`, and relays one front end's connection to the back end at `to`. It replaces the log by one that
/// the front end never sees.
fn relay_without_log(path: &str, to: &str) {
    const SET_LOG_BASE: u32 = 6;
    let listener = UnixListener::bind(path).unwrap();
    let to = to.to_string();
    let relay = |from: UnixStream, to: UnixStream| {
        // Forward complete messages, with their descriptors.
        while let Some((message, descriptors)) = receive_message(&from) {
            let request = u32::from_le_bytes(message[..4].try_into().unwrap());
            let descriptors: Vec<OwnedFd> = match request {
                SET_LOG_BASE => descriptors
                    .into_iter()
                    .map(|log| {
                        let other = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
                        ftruncate(&other, fstat(&log).unwrap().st_size as u64).unwrap();
                        other
                    })
                    .collect(),
                _ => descriptors,
            };
            let files: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(&files)));
            if sendmsg(&to, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    };
    std::thread::spawn(move || {
        let front = listener.accept().unwrap().0;
        let back = UnixStream::connect(to).unwrap();
        let (also_front, also_back) = (front.try_clone().unwrap(), back.try_clone().unwrap());
        std::thread::spawn(move || relay(also_back, also_front));
        relay(front, back);
    });
}

/// Receives a vhost-user message. Returns `None` at the end.
fn receive_message(mut from: &UnixStream) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut header, mut descriptors) = ([0; 12], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::WAITALL).ok()?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            descriptors.extend(files);
        }
    }
    let mut message = header.to_vec();
    message.resize(12 + u32::from_le_bytes(header[8..].try_into().unwrap()) as usize, 0);
    (received.bytes == header.len()).then_some(())?;
    from.read_exact(&mut message[12..]).ok()?;
    Some((message, descriptors))
}

/// Writes a datagram for the program `stored`: to the IP address of this card, with a number and a hash.
fn fill_stored(packet: &mut [u8], card: u8, number: u64) {
    let (headers, datagram) = packet.split_at_mut(42);
    let length = datagram.len() as u16;
    headers[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 0]);
    headers[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 9, 17, 0, 0, 10, 8, card, 1, 10, 8, card, 2]);
    headers[16..18].copy_from_slice(&(length + 28).to_be_bytes());
    let sum = headers[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    headers[24..26].copy_from_slice(&sum.to_be_bytes());
    // The source port is arbitrary, and the checksum is absent.
    headers[34..42].copy_from_slice(&[0, 9, 0, 0, 0, 0, 0, 0]);
    headers[36..38].copy_from_slice(&(STORED + u16::from(card)).to_be_bytes());
    headers[38..40].copy_from_slice(&(length + 8).to_be_bytes());
    let mut state = number;
    datagram.iter_mut().for_each(|byte| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        *byte = (state >> 56) as u8;
    });
    datagram[..8].copy_from_slice(&number.to_le_bytes());
    let hash = hash_of(datagram);
    datagram[8..16].copy_from_slice(&hash.to_le_bytes());
}

/// A thread that sends frames to each card of a machine, through the port (of two) that is connected.
struct Load {
    stop: Arc<AtomicBool>,
    is_paused: Arc<AtomicBool>,
    /// Whether some frames are for the program `stored`.
    is_storing: Arc<AtomicBool>,
    sent: Arc<[[AtomicU64; 2]; 2]>,
    stored: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(ports: [[Port; 2]; 2]) -> Load {
        let [stop, is_paused, is_storing] = <[Arc<AtomicBool>; 3]>::default();
        let (sent, stored) = <(Arc<[[AtomicU64; 2]; 2]>, Arc<[AtomicU64; 2]>)>::default();
        let (stopped, paused, storing) = (stop.clone(), is_paused.clone(), is_storing.clone());
        let (counts, stored_counts) = (sent.clone(), stored.clone());
        let run = move || {
            let mut cards = ports.map(|mut ports| {
                let queues = ports.each_mut().map(|port| (port.tx(0).unwrap(), port.rx(0).unwrap()));
                (ports, queues, Generator::new(1518, 1), Batch::new())
            });
            let (mut received, mut number, mut batches) = (Batch::new(), 0, [0; 2]);
            while !stopped.load(Relaxed) {
                for (card, ((ports, queues, generator, batch), counts)) in cards.iter_mut().zip(&*counts).enumerate() {
                    let Some(at) = ports.iter().position(|port| port.link().unwrap() != Link::Down) else { continue };
                    let (tx, rx) = &mut queues[at];
                    // Receive the guest's packets too, or its transmit queue times out.
                    rx.recv(&mut received);
                    received.clear();
                    if paused.load(Relaxed) {
                        continue;
                    }
                    if batch.is_empty() {
                        batch.alloc(ports[0].pool(), 32, 1514);
                        // One batch in 32 is for the program `stored`. Its frames are adjacent because each waiting
                        // frame keeps its 32 KiB of the machine's memory, of which the socket counts only 2 KiB.
                        batches[card] += 1;
                        let is_stored = storing.load(Relaxed) && batches[card] % 32 == 0;
                        stored_counts[card].fetch_add(if is_stored { batch.len() as u64 } else { 0 }, Relaxed);
                        for mut packet in batch.packets() {
                            if is_stored {
                                number += 1;
                                fill_stored(&mut packet, card as u8, number);
                            } else {
                                generator.fill(&mut packet);
                            }
                        }
                    }
                    counts[at].fetch_add(tx.send(batch) as u64, Relaxed);
                }
                // Still more than the guest can receive, so that its rings contain frames when it is stopped.
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        Load { stop, is_paused, is_storing, sent, stored, thread: Some(std::thread::spawn(run)) }
    }

    /// Returns the number of frames sent at both ports of each card.
    fn sent(&self) -> [[u64; 2]; 2] {
        self.sent.each_ref().map(|card| card.each_ref().map(|count| count.load(Relaxed)))
    }

    /// Returns the number of frames for the program `stored`, of each card.
    fn stored(&self) -> [u64; 2] {
        self.stored.each_ref().map(|count| count.load(Relaxed))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn complaints(guest: &mut Guest) {
    let said = guest.run("dmesg | grep -iE 'virtio|eth[0-9]' | grep -iE 'error|fail|timed out|[^c]hang' || true");
    assert_eq!(said, "");
}

/// DPDK's virtio-user returns all packets, with each of its receive and transmit functions.
#[test]
fn dpdk_returns_every_packet_intact() {
    Debian::all().into_iter().for_each(returns_every_packet_intact);
}

fn returns_every_packet_intact(debian: Debian) {
    for options in [
        "mrg_rxbuf=1",
        "mrg_rxbuf=0",
        "mrg_rxbuf=1,in_order=1",
        "mrg_rxbuf=0,in_order=1",
        "mrg_rxbuf=0,vectorized=1",
        "packed_vq=1,mrg_rxbuf=1",
        "packed_vq=1,mrg_rxbuf=0",
        "packed_vq=1,mrg_rxbuf=1,in_order=1",
        "packed_vq=1,mrg_rxbuf=0,in_order=1",
        "packed_vq=1,mrg_rxbuf=0,in_order=1,vectorized=1",
    ] {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("socket");
        let mut port = open_one(&format!("vhost:{}?packed=on", socket.display())).unwrap();
        let (pool, mut rx, mut tx) = (port.pool().clone(), port.rx(0).unwrap(), port.tx(0).unwrap());
        let device = format!("net_virtio_user0,path={},queue_size=256,{options}", socket.display());
        let mut dpdk = Returning::start_of(debian, &device, 1, &folder);
        dpdk.returns_every_packet(&pool, &mut rx, &mut tx, options);
        assert_eq!(port.info().description.contains("packed"), options.contains("packed"), "{options}");
        dpdk.restart_port();
        every_packet_arrives(1000, &pool, &mut rx, &mut tx, options, || dpdk.said());
    }
}

/// DPDK, as the server, keeps its device with two queues while the port is closed and opened again.
#[test]
fn dpdk_waits_for_its_next_port() {
    for options in ["packed_vq=0", "packed_vq=1"] {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("socket");
        let device = format!("net_virtio_user0,path={},queue_size=256,queues=2,server=1,{options}", socket.display());
        let name = format!("vhost:{}?packed=on&queues=2&client=on", socket.display());
        let mut dpdk = None;
        for _ in 0..3 {
            let mut port = open_one(&name).unwrap();
            let pool = port.pool().clone();
            let mut queues = [0, 1].map(|queue| (port.rx(queue).unwrap(), port.tx(queue).unwrap()));
            let dpdk = dpdk.get_or_insert_with(|| Returning::start(&device, 2, &folder));
            for (rx, tx) in &mut queues {
                every_packet_arrives(1000, &pool, rx, tx, options, || dpdk.said());
            }
            assert_eq!(port.info().description.contains("packed"), options.contains("vq=1"), "{options}");
            drop((queues, port));
            assert_eq!(pool.available(), pool.region().buffers(), "{options}");
        }
    }
}

/// DPDK at one port is killed under load, and started again. Meanwhile, DPDK at another port of the same pool returns
/// every packet, and no buffer is lost.
#[test]
fn a_killed_dpdk_takes_nothing_from_other_ports() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let sockets = folders.each_ref().map(|folder| folder.path().join("socket").display().to_string());
    let devices = sockets.each_ref().map(|socket| format!("net_virtio_user0,path={socket},queue_size=256,packed_vq=1"));
    let names = sockets.each_ref().map(|socket| format!("vhost:{socket}?packed=on"));
    let pool = Pool::new(Region::new(&RegionOptions::default()).unwrap());
    let ports = Options { pool: Some(pool.clone()), ..Options::default() };
    let [mut killed, mut other] = ports.open(names.each_ref().map(String::as_str)).unwrap();
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let (mut rx, mut tx) = (killed.rx(0).unwrap(), killed.tx(0).unwrap());
            let (mut batch, mut back) = (Batch::new(), Batch::new());
            for _ in 0..KILLS {
                let dpdk = Returning::start(&devices[0], 1, &folders[0]);
                wait_until_packets_arrive(&pool, &mut rx, &mut tx, "killed", &|| dpdk.said());
                // Keep its queues full until it is killed.
                let (mut returned, mut dpdk) = (0, Some(dpdk));
                let deadline = Deadline::begin();
                while dpdk.is_some() || killed.link().unwrap() != Link::Down {
                    deadline.check(|| {
                        format!("10,000 packets and the end; {returned} were returned, {:?}", killed.statistics())
                    });
                    if batch.is_empty() {
                        batch.alloc(&pool, 32, 1000);
                    }
                    tx.send(&mut batch);
                    returned += rx.recv(&mut back);
                    back.clear();
                    dpdk = dpdk.filter(|_| returned < 10_000);
                }
            }
        });
        let dpdk = Returning::start(&devices[1], 1, &folders[1]);
        let (mut rx, mut tx) = (other.rx(0).unwrap(), other.tx(0).unwrap());
        while !killer.is_finished() {
            every_packet_arrives(1000, &pool, &mut rx, &mut tx, "the other", || dpdk.said());
        }
    });
    drop((killed, other));
    assert_eq!(pool.available(), pool.region().buffers());
}

/// DPDK's back end, as server and as client, returns all packets. It maps linerate's memory and uses linerate's rings.
#[test]
fn dpdk_s_back_end_returns_every_packet_intact() {
    Debian::all().into_iter().for_each(back_end_returns_every_packet_intact);
}

fn back_end_returns_every_packet_intact(debian: Debian) {
    for options in [
        "",
        "packed=on",
        "vectors=scalar",
        "packed=on&vectors=scalar",
        "mergeable=off",
        "mergeable=off&packed=on&in_order=on",
        "mergeable=off&in_order=on&vectors=scalar",
        "server=on&in_order=on",
        "server=on&packed=on&in_order=on",
    ] {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("socket");
        let name = format!("virtio-user:{}?ring=256&{options}", socket.display());
        let device = format!("net_vhost0,iface={},queues=1", socket.display());
        let (mut port, dpdk) = if options.contains("server") {
            let port = open_one(&name).unwrap();
            (port, Returning::start_of(debian, &format!("{device},client=1"), 1, &folder))
        } else {
            let dpdk = Returning::start_of(debian, &device, 1, &folder);
            let deadline = Deadline::begin();
            let port = loop {
                match open_one(&name) {
                    Ok(port) => break port,
                    Err(error) => deadline.check(|| format!("{name}: {error}: {}", dpdk.said())),
                }
                std::thread::yield_now();
            };
            (port, dpdk)
        };
        let (pool, mut rx, mut tx) = (port.pool().clone(), port.rx(0).unwrap(), port.tx(0).unwrap());
        dpdk.returns_every_packet(&pool, &mut rx, &mut tx, options);
        let kind = if options.contains("packed") { "packed" } else { "split" };
        assert!(port.info().description.contains(kind), "{options}: {}", port.info().description);
        // After its back end has ended, the port gets all its buffers back.
        drop(dpdk);
        let deadline = Deadline::begin();
        while rx.buffers() + tx.buffers() > 0 {
            deadline.check(|| format!("{options}: the port to see the end"));
            let mut batch = Batch::new();
            rx.recv(&mut batch);
            tx.send(&mut Batch::new());
        }
        drop((rx, tx));
        assert_eq!(pool.available(), pool.region().buffers(), "{options}");
    }
}

/// A bridge of Open vSwitch with DPDK forwards between two ports. The switch's ports are clients in one bridge, and
/// servers in another. Traffic through its clients continues after the switch is killed and started again.
#[test]
fn open_vswitch_forwards_every_packet_once() {
    Debian::all().into_iter().for_each(forwards_every_packet_once);
}

fn forwards_every_packet_once(debian: Debian) {
    const KINDS: [(&str, &str, &str); 3] = [
        ("split", "dpdkvhostuserclient", "server=on"),
        ("packed", "dpdkvhostuserclient", "server=on&packed=on&offloads=on"),
        ("old", "dpdkvhostuser", "ring=256"),
    ];
    let folder = TempDir::new().unwrap();
    let namespace = Namespace::new("vswitch");
    let mut switch = OpenVswitch::start(debian, &namespace, folder.path());
    let mut pairs = Vec::new();
    for (bridge, kind, options) in KINDS {
        switch.configure(&format!("add-br {bridge} -- set bridge {bridge} datapath_type=netdev"));
        let ports = ["a", "b"].map(|end| {
            // The switch's server ports create a socket with the interface's name in the same folder.
            let socket = folder.path().join(format!("{bridge}-{end}")).display().to_string();
            let path =
                if kind.contains("client") { format!("options:vhost-server-path={socket}") } else { String::new() };
            switch.configure(&format!(
                "add-port {bridge} {bridge}-{end} -- set Interface {bridge}-{end} type={kind} {path}"
            ));
            open_one(&format!("virtio-user:{socket}?{options}")).unwrap()
        });
        pairs.push((bridge, ports));
    }
    let mut queues: Vec<_> = pairs
        .iter_mut()
        .map(|(bridge, ports)| {
            let pools = ports.each_ref().map(|port| port.pool().clone());
            (*bridge, pools, ports.each_mut().map(|port| (port.rx(0).unwrap(), port.tx(0).unwrap())))
        })
        .collect();
    for is_killed in [false, true] {
        if is_killed {
            switch.restart();
            queues.truncate(2); // the socket of a killed server is in its way
        }
        for (bridge, pools, [(rx_a, tx_a), (rx_b, tx_b)]) in &mut queues {
            every_packet_arrives(2000, &pools[0], rx_b, tx_a, bridge, || switch.said());
            every_packet_arrives(2000, &pools[1], rx_a, tx_b, bridge, || switch.said());
        }
    }
    let pools: Vec<_> = queues.iter().flat_map(|(_, pools, _)| pools.clone()).collect();
    drop(queues);
    for (bridge, ports) in &pairs {
        let description = ports[0].info().description;
        assert_eq!(description.contains("packed"), *bridge == "packed", "{bridge}: {description}");
        let drops = ports[0].statistics().unwrap().drops;
        assert!(drops.malformed == 0 && drops.tx_too_long == 0, "{bridge}: {drops:?}");
    }
    // After its back end has ended, a port gets all its buffers back.
    drop(switch);
    drop(pairs);
    for pool in pools {
        assert_eq!(pool.available(), pool.region().buffers());
    }
}

/// A namespace whose only interface is a TAP reaches another one through passt: DHCP, ARP, ping, and TCP in both
/// directions.
#[test]
fn a_namespace_reaches_another_through_passt() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    let (outside, inside) = (Namespace::new("outside"), Namespace::new("inside"));
    // passt gives its client the address of the interface with the default route.
    outside.run(
        "ip link set lo up; ip link add up0 type veth peer name up1; ip link set up1 up; ip link set up0 up; \
         ip addr add 192.0.2.2/24 dev up0; ip route add default via 192.0.2.1; \
         echo '0 2147483647' >/proc/sys/net/ipv4/ping_group_range",
    );
    // Without a capture file, passt leaves checksums unfinished, and marks them as valid.
    let passt = Passt::start(&outside, &socket, &["-4", "--pcap", "/dev/null", "--tcp-ports", "5001"]);
    let deadline = Deadline::begin();
    let port = loop {
        match open_one(&format!("virtio-user:{}", socket.display())) {
            Ok(port) => break port,
            Err(error) => deadline.check(|| format!("passt's socket: {error}: {}", passt.said())),
        }
        std::thread::yield_now();
    };
    let tap = inside.inside(|| open_one("tap:t0").unwrap());
    let forwarder = Forwarder::start([port, tap]);
    let script = folder.path().join("script");
    std::fs::write(
        &script,
        "#!/bin/sh\n[ $1 != bound ] || { ip addr add $ip/$mask dev $interface; ip route add default via $router; }\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    inside.run(&format!("timeout 20 busybox udhcpc -i t0 -n -q -f -s {} 2>&1", script.display()));
    assert!(inside.run("ip -4 addr show t0").contains("192.0.2.2/24"));
    // passt maps the gateway's address to the other namespace.
    let answer = inside.run("ping -c 3 -i 0.2 -W 5 192.0.2.1");
    assert!(answer.contains("3 received"), "{answer}");
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    for (from, to, listen, connect) in [
        (&inside, &outside, "127.0.0.1:6000", "192.0.2.1:6000"),
        (&outside, &inside, "192.0.2.2:5001", "127.0.0.1:5001"),
    ] {
        let listener = to.inside(|| TcpListener::bind(listen).unwrap());
        let sent = bytes.clone();
        let client = from.inside(|| TcpStream::connect(connect).unwrap());
        client.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        let sender = std::thread::spawn(move || (&client).write_all(&sent).map(|()| client.shutdown(Shutdown::Write)));
        listener.set_nonblocking(true).unwrap();
        let (mut server, mut received) = (None, Vec::new());
        until(format_args!("a connection to {listen}"), || {
            server = listener.accept().ok();
            server.is_some()
        });
        let mut server = server.unwrap().0;
        server.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        server.read_to_end(&mut received).unwrap();
        let _ = sender.join().unwrap().unwrap();
        assert!(received == bytes, "{listen}: {} bytes", received.len());
    }
    for port in forwarder.ports() {
        let drops = port.statistics().unwrap().drops;
        assert!(drops.malformed == 0 && drops.tx_too_long == 0, "{drops:?}");
    }
}

/// DPDK's net_memif, in both roles, returns all packets. The client copies packets, or lends its buffers.
#[test]
fn dpdk_s_memif_returns_every_packet_intact() {
    Debian::all().into_iter().for_each(memif_returns_every_packet_intact);
}

fn memif_returns_every_packet_intact(debian: Debian) {
    for (ours, theirs) in [
        ("role=server", "role=client"),
        ("role=server&mtu=9000", "role=client,bsize=512"),
        ("role=server", "role=client,zero-copy=yes"),
        ("role=client&ring=512", "role=server"),
        ("role=client&ring=512&zero-copy=on", "role=server"),
    ] {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("socket");
        let mut port = open_one(&format!("memif:{}?{ours}", socket.display())).unwrap();
        let (pool, mut rx, mut tx) = (port.pool().clone(), port.rx(0).unwrap(), port.tx(0).unwrap());
        let device = format!("net_memif0,{theirs},socket={},socket-abstract=no,rsize=9,id=0", socket.display());
        let dpdk = Returning::start_of(debian, &device, 1, &folder);
        dpdk.returns_every_packet(&pool, &mut rx, &mut tx, theirs);
        let description = port.info().description;
        assert!(description.contains("connected to DPDK"), "{description}");
        let drops = port.statistics().unwrap().drops;
        assert!(drops.malformed == 0 && drops.tx_too_long == 0, "{theirs}: {drops:?}");
        drop(dpdk);
        until(format_args!("{theirs}: the port to see the end"), || port.link().unwrap() == Link::Down);
        // Buffers that a client lent also return.
        drop((rx, tx, port));
        assert_eq!(pool.available(), pool.region().buffers(), "{ours}");
    }
}

/// DPDK's testpmd, which sends all packets back. Drop ends it.
struct Returning {
    child: Child,
    log: PathBuf,
}

impl Returning {
    fn start(device: &str, queues: u16, folder: &TempDir) -> Returning {
        Returning::start_of(Debian::Own, device, queues, folder)
    }

    /// Starts testpmd of this Debian.
    fn start_of(debian: Debian, device: &str, queues: u16, folder: &TempDir) -> Returning {
        let path = folder.path().join("log");
        let log = File::create(&path).unwrap();
        let mut command = debian.command("setpriv");
        command.args(["--pdeathsig", "KILL", "dpdk-testpmd", "--no-pci", "--no-huge", "-m", "64"]);
        command.args(["--single-file-segments", "--no-telemetry", "--no-shconf", "--lcores", "(0-1)@(0-1)"]);
        command.args([
            "--vdev",
            device,
            "--",
            "--total-num-mbufs=2048",
            "--txd=256",
            "--rxd=256",
            "--forward-mode=io",
            "--no-flush-rx",
            "--interactive",
            "--auto-start",
            &format!("--rxq={queues}"),
            &format!("--txq={queues}"),
        ]);
        // testpmd runs until its input ends.
        let child = command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        Returning { child: child.expect("guest/prepare installs DPDK"), log: path }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops and starts testpmd's port.
    fn restart_port(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is a pipe");
        input.write_all(b"stop\nport stop 0\nport start 0\nstart\n").unwrap();
        let deadline = Deadline::begin();
        while self.said().matches("Checking link statuses").count() < 3 {
            deadline.check(|| format!("testpmd to start its port again: {}", self.said()));
            std::thread::yield_now();
        }
    }

    /// Checks that all packets return.
    fn returns_every_packet(&self, pool: &Arc<Pool>, rx: &mut RxQueue, tx: &mut TxQueue, options: &str) {
        every_packet_arrives(2000, pool, rx, tx, options, || self.said());
    }
}

/// Sends `count` packets of each size, and checks that all arrive once, in order and intact. `said` returns the peer's
/// messages.
fn every_packet_arrives(
    count: u64,
    pool: &Arc<Pool>,
    rx: &mut RxQueue,
    tx: &mut TxQueue,
    options: &str,
    said: impl Fn() -> String,
) {
    wait_until_packets_arrive(pool, rx, tx, options, &said);
    // In the last round, each packet is sent when the previous one is back.
    for (size, count, most) in
        [64, 128, 256, 512, 1024, 1518].map(|size| (size, count, 128)).into_iter().chain([(64, 100, 1)])
    {
        let (mut generator, mut checker) = (Generator::new(size, 8), Checker::default());
        let (mut sent, mut batch, mut back) = (0, Batch::new(), Batch::new());
        let deadline = Deadline::begin();
        while checker.report().received < count {
            deadline.check(|| {
                let report = checker.report();
                format!("{options}, {size}: {count} packets, {sent} were sent: {report:?}\n{}", said())
            });
            // Never have more packets in flight than the peer's queues hold.
            if batch.is_empty() && sent < count && sent - checker.report().received < most {
                batch.alloc(pool, 32.min(most).min(count - sent) as usize, size - 4);
                batch.packets().for_each(|mut packet| generator.fill(&mut packet));
                sent += batch.len() as u64;
            }
            tx.send(&mut batch);
            rx.recv(&mut back);
            back.packets().for_each(|packet| checker.check(&packet));
            back.clear();
        }
        let Report { received, lost, corrupted, reordered, .. } = checker.report();
        assert_eq!((received, lost, corrupted, reordered), (count, 0, 0, 0), "{options}, {size}");
    }
}

/// Sends batches of 32 packets until all of one batch arrive. Packets in the rings while the peer starts may be lost,
/// since DPDK resets its device during the start.
fn wait_until_packets_arrive(
    pool: &Arc<Pool>,
    rx: &mut RxQueue,
    tx: &mut TxQueue,
    options: &str,
    said: &impl Fn() -> String,
) {
    /// Empty polls after which packets count as lost.
    const PATIENCE: u32 = 20_000;
    let (mut batch, mut back) = (Batch::new(), Batch::new());
    let (mut round, mut arrived, mut polls) = (0u16, 0, PATIENCE);
    let deadline = Deadline::begin();
    while arrived < 32 {
        deadline.check(|| format!("{options}: a first packet: {}", said()));
        polls += 1;
        if polls > PATIENCE && batch.is_empty() {
            (round, arrived, polls) = (round + 1, 0, 0);
            batch.alloc(pool, 32, 60);
            batch.packets().for_each(|mut packet| {
                packet.fill(2);
                packet[..6].fill(0xFF); // to every port of a switch
                packet[14..16].copy_from_slice(&round.to_le_bytes());
            });
        }
        tx.send(&mut batch);
        if rx.recv(&mut back) > 0 {
            polls = 0;
        }
        arrived += back.packets().filter(|packet| packet[14..16] == round.to_le_bytes()).count();
        back.clear();
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
