//! Linux interfaces under netmap's names, in separate network namespaces: the card's rings, the host stack's rings, and
//! both as ports of a switch.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kit::{OutputTimeout, World, until};
use linerate::share::{Client, RingCounts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[allow(dead_code)] // each test uses only a part
mod kit;

/// A network namespace, which is deleted at the end of the test.
struct Namespace(kit::Namespace);

impl Namespace {
    fn new(test: &str) -> Namespace {
        Namespace(kit::Namespace::new(test))
    }

    /// Runs a program in the namespace; returns whether it succeeds.
    fn runs(&self, words: &str) -> bool {
        self.0.command(words).output_in_time().unwrap().status.success()
    }

    #[track_caller]
    fn run(&self, words: &str) {
        assert!(self.runs(words), "{words}");
    }

    /// Starts a server in the namespace.
    fn world(&self) -> World {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0.name)).unwrap();
        let serve = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            World::served(0o600)
        };
        std::thread::spawn(serve).join().unwrap()
    }
}

/// Makes two namespaces connected by a veth pair: `n0` with 10.88.0.1 in the first, `n1` with 10.88.0.2 in the second.
fn pair(test: &str) -> [Namespace; 2] {
    let ends = [Namespace::new(&format!("{test}0")), Namespace::new(&format!("{test}1"))];
    ends[0].run(&format!("ip link add n0 type veth peer name n1 netns {}", ends[1].0.name));
    for (n, end) in ends.iter().enumerate() {
        end.run(&format!("ip link set n{n} addrgenmode none"));
        end.run(&format!("ip address add 10.88.0.{}/24 dev n{n}", n + 1));
        end.run(&format!("ip link set n{n} up"));
        // netmap's programs do not support offloads, which a veth would leave undone.
        end.run(&format!("ethtool -K n{n} tx off tso off gso off gro off"));
    }
    ends
}

const PING: &str = "ping -q -c 5 -i 0.05 -W 10 10.88.0.2";
const ONE_PING: &str = "ping -q -c 1 -W 1 10.88.0.2";

#[test]
fn programs_send_and_receive_on_interfaces() {
    let [a, b] = pair("nm").map(|end| (end.world(), end));
    // As netmap's script 024, in both directions.
    let (near, far) = ((&a.0, "n0"), (&b.0, "n1"));
    for (from, to) in [(near, far), (far, near)] {
        let receiver = to.0.start_soon(&format!("receive {} 20000 poll", to.1));
        let _sender = from.0.start_soon(&format!("send {} 100000000 1000 poll", from.1));
        let (code, said) = receiver.ended();
        assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{said}");
    }
}

/// As in netmap, the number of requested rings does not matter. Rings of the default length fit in the server's memory.
#[test]
fn an_interface_has_a_ring_for_each_of_its_queues() {
    let ends = ["nq0", "nq1"].map(Namespace::new);
    let queues = "numtxqueues 4 numrxqueues 4";
    ends[0].run(&format!("ip link add n0 {queues} type veth peer name n1 netns {} {queues}", ends[1].0.name));
    let [a, b] = ends.map(|end| (end.world(), end));
    let client = |world: &World| Client::find(world.folder.path(), "n0").unwrap().unwrap();
    let rings = client(&a.0).info("n0").unwrap();
    assert_eq!((rings.tx, rings.rx), (4, 4));
    let last = a.0.start("open n0-3");
    drop(last);
    let receiver = b.0.start("receive n1 20000 poll");
    let _sender = a.0.start_soon("send n0 100000000 1000 poll");
    let (code, said) = receiver.ended();
    assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{said}");
    let rings = client(&a.0).info("n0").unwrap();
    assert_eq!((rings.tx, rings.rx), (4, 4), "it is open now");
}

#[test]
fn the_hosts_stack_is_cut_off_and_bridged_back() {
    let [outside, host] = pair("nh");
    assert!(outside.runs(PING));
    let world = host.world();
    let inward = world.start("bridge n1/R n1^/T 100000000 poll");
    // No program forwards the packets that Linux sends.
    let stack = world.start("open n1^/R");
    assert!(!outside.runs(ONE_PING));
    drop(stack);
    let outward = world.start_soon("bridge n1^/R n1/T 100000000 poll");
    assert!(outside.runs(PING));
    drop(inward);
    assert!(!outside.runs(ONE_PING));
    drop(outward);
    drop(world);
    // The interface is restored.
    assert!(outside.runs(PING));
}

/// A copy monitor of the host rings gets the packets that Linux sends. A monitor of all rings also gets the packets
/// that the card receives.
#[test]
fn the_hosts_rings_have_copy_monitors() {
    let [outside, host] = pair("nx");
    // Use a unique name: a monitor finds its port by name, and this process has the servers of all tests.
    for change in ["n1 down", "n1 name nx1", "nx1 up"] {
        host.run(&format!("ip link set {change}"));
    }
    let world = host.world();
    let said = world.refused("open nx1^/r");
    assert!(said.contains("not open"), "{said}");
    let _both = world.start_soon("pass nx1*");
    assert!(outside.runs(PING));
    let [mut sent, mut received] = ["nx1^/r", "nx1*/rt"].map(|name| world.start(&format!("hear {name}")));
    // ARP requests for addresses that no host has are broadcast.
    assert!(!host.runs("ping -q -c 1 -W 1 10.88.0.77"));
    assert_eq!(sent.line(), "0806");
    assert!(!outside.runs("ping -q -c 1 -W 1 10.88.0.78"));
    assert_eq!(received.line(), "0806");
}

/// `NS_FORWARD`: only marked packets pass.
#[test]
fn marked_packets_pass_between_card_and_host() {
    let [outside, host] = pair("nf");
    assert!(outside.runs(PING));
    let world = host.world();
    let takes_all = world.start("open n1*");
    assert!(!outside.runs(ONE_PING));
    drop(takes_all);
    let passes_all = world.start_soon("pass n1*");
    assert!(outside.runs(PING));
    assert!(outside.runs("ping -q -c 300 -i 0.002 -s 1400 -W 10 10.88.0.2"));
    drop(passes_all);
}

#[test]
fn an_interface_and_its_stack_are_ports_of_a_switch() {
    let [outside, host] = pair("na");
    let world = host.world();
    let client = || Client::find(world.folder.path(), "valeI").unwrap().unwrap();
    client().attach("valeI", "n1", true, RingCounts::default()).unwrap();
    assert!(outside.runs(PING));
    // A third port gets all broadcasts, such as ARP requests for an address that no host has.
    let mut listener = world.start("hear valeI:p");
    outside.run("ip neighbour flush dev n0");
    assert!(!outside.runs("ping -q -c 1 -W 1 10.88.0.77"));
    assert_eq!(listener.line(), "0806");
    let names: Vec<_> = client().list().unwrap().into_iter().map(|port| port.name).collect();
    for name in ["valeI:n1", "valeI:n1^", "valeI:p"] {
        assert!(names.iter().any(|there| there == name), "{names:?}");
    }
    assert!(client().attach("valeI", "n1", false, RingCounts::default()).is_err());
    client().detach("valeI", "n1").unwrap();
    assert!(client().detach("valeI", "n1").is_err());
    assert!(outside.runs(PING));
}

/// A deleted interface's ports are removed. The next interface of that name can join the switch immediately, even
/// before the deletion was noticed.
#[test]
fn a_deleted_interface_leaves_its_switch() {
    let namespace = Namespace::new("nl0");
    let make = || {
        namespace.run("ip link add n0 type veth peer name n1");
        namespace.run("ip link set n0 up");
        namespace.run("ip link set n1 up");
    };
    make();
    let world = namespace.world();
    let client = || Client::find(world.folder.path(), "valeL").unwrap().unwrap();
    let attach = |host: bool| client().attach("valeL", "n0", host, RingCounts::default());
    let names = || client().list().unwrap().into_iter().map(|port| port.name).collect::<Vec<_>>();
    let _other = world.start("open valeL:p");
    attach(true).unwrap();
    assert_eq!(names(), ["netmap:n0", "netmap:n0^", "valeL:p", "valeL:n0", "valeL:n0^"]);
    namespace.run("ip link delete n0");
    until("the deleted interface to leave the switch", || names() == ["valeL:p"]);
    for host in [false, true] {
        make();
        attach(host).unwrap();
        namespace.run("ip link delete n0");
    }
    make();
    attach(false).unwrap();
    // A renamed interface leaves the switch too.
    namespace.run("ip link set n0 down");
    namespace.run("ip link set n0 name n9");
    until("the renamed interface to leave the switch", || names() == ["valeL:p"]);
    namespace.run("ip link set n9 name n0");
    attach(false).unwrap();
    client().detach("valeL", "n0").unwrap();
    assert_eq!(names(), ["valeL:p"]);
}

/// The server ends with its last program; an idle server would keep the namespace and its interfaces alive after
/// `ip netns delete`. A busy machine may delay its end, so the test tries several times. If the server waited for other
/// programs, its end would take 3 s each time.
#[test]
fn a_namespace_goes_with_its_last_program() {
    let ends = ["nn0", "nn1"].map(Namespace::new);
    let make = format!("ip link add n0 type veth peer name n1 netns {}", ends[1].0.name);
    let [near, far] = ends;
    let has_gone = |far: &Namespace| {
        near.run(&make);
        let world = World::new();
        let file = std::fs::File::open(format!("/run/netns/{}", far.0.name)).unwrap();
        let started = std::thread::scope(|scope| {
            let start = || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                world.start("open n1")
            };
            scope.spawn(start).join().unwrap()
        });
        let server = Pid::from_raw(world.server_process().cast_signed()).unwrap();
        let server = pidfd_open(server, PidfdFlags::empty()).unwrap();
        drop(started);
        poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&Timespec { tv_sec: 2, tv_nsec: 0 })).unwrap() == 1
    };
    let is_gone = (0..10).any(|_| {
        let is_gone = has_gone(&far);
        // The kernel deletes a namespace's interfaces a moment after the namespace.
        far.0.delete();
        far.0.add();
        let begin = Instant::now();
        while !near.runs(&make) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the deleted namespace's veth is still there");
        }
        near.run("ip link delete n0");
        is_gone
    });
    assert!(is_gone, "ten servers have outlived their last program by two seconds");
}

/// Programs get POLLERR when their interface is deleted. A program that stays does not keep other programs from the
/// next interface of that name.
#[test]
fn programs_hear_that_their_interface_is_deleted() {
    let namespace = Namespace::new("ng0");
    let make = "ip link add n0 type veth peer name n1";
    namespace.run(make);
    let world = namespace.world();
    let receivers = ["n0", "n0^"].map(|name| world.start(&format!("receive {name} 1 poll")));
    let holder = world.start("open n1");
    namespace.run("ip link delete n0");
    for receiver in receivers {
        let (status, _, errors) = receiver.end();
        let text = "poll: Input/output error, 0 frames were received";
        assert!(status.code() == Some(1) && errors.contains(text), "{errors}");
    }
    namespace.run(make);
    let receiver = world.start("receive n1 2000 poll");
    let _sender = world.start_soon("send n0 100000000 100 poll");
    let (code, said) = receiver.ended();
    assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{said}");
    drop(holder);
}

/// As in netmap, a program has an interface exclusively, even one that is not up.
#[test]
fn an_interface_is_exclusive_while_a_program_has_it() {
    let [a, b] = ["nd0", "nd1"].map(Namespace::new);
    // The interfaces are not up: Linux would send neighbour, router and multicast packets.
    a.run(&format!("ip link add n0 type veth peer name n1 netns {}", b.0.name));
    let told = |end: &Namespace, file: &str| {
        let path = format!("/sys/class/net/{file}");
        let output = end.0.of(["cat", &path]).output_in_time().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let is_up = |end: &Namespace, name: &str| {
        let flags = told(end, &format!("{name}/flags"));
        u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & 1 == 1
    };
    let (near, far) = (a.world(), b.world());
    let holder = near.start("open n0");
    let receiver = far.start("receive n1 2000 poll");
    assert!(is_up(&a, "n0") && is_up(&b, "n1"));
    let sender = near.start_soon("send n0 100000000 100 poll");
    let (code, said) = receiver.ended();
    assert!(code == Some(0) && said.contains(" bad 0 disordered 0 "), "{said}");
    drop(sender);
    let receiver = far.start("open n1");
    // Packets that Linux sends are dropped.
    a.run("ip address add 10.88.0.1/24 dev n0");
    let received = || told(&b, "n1/statistics/rx_packets");
    let before = received();
    assert!(!a.runs(ONE_PING));
    assert_eq!(received(), before);
    drop((holder, receiver));
    // The interfaces are restored when the server has noticed the programs' end.
    until("both interfaces to be down", || !is_up(&a, "n0") && !is_up(&b, "n1"));
}
