//! Tests of the model with independent drivers: Linux's ixgbe and ixgbevf, and DPDK, use it as a PCI device.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use linerate::Batch;
use linerate::port::{Drops, RxQueue, TxQueue};
use linerate::sim82599::{Cable, Card, CardKind, Frame, Report, Traffic, Wire};
use linerate::traffic::Generator;
use linerate_guest::{A, B, Counted, Guest, Kernel, Machine, Served, check_exchange};
use linerate_testkit::{Deadline, Namespace, Process, exchange};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// Words in driver messages about faults that a real card would not cause.
const COMPLAINTS: [&str; 9] =
    ["error", "warn", "fail", "invalid", "unsupported", "not valid", "timed out", " hang", "unable to"];

/// Fails if the driver reported a fault.
#[track_caller]
fn assert_content(guest: &mut Guest) {
    let said = guest.run("dmesg | grep -E 'ixgbe|eth[0-9]' || true");
    let complaint = said.lines().find(|line| COMPLAINTS.iter().any(|word| line.to_lowercase().contains(word)));
    assert!(complaint.is_none(), "the driver complains: {complaint:?} in\n{said}");
}

/// Boots with two connected cards, and brings both up. The second is in a separate network namespace, whose command
/// prefix is returned.
#[track_caller]
fn connected(served: &Served, mut machine: Machine) -> (Guest, String) {
    machine.program("ethtool");
    machine.program("iperf3");
    served.plug(&mut machine, &["a", "b"]);
    let mut guest = machine.boot();
    guest.run("modprobe ixgbe");
    let far = guest.move_to_own_network("eth1", "10.84.0.2/24");
    guest.run("ip addr add 10.84.0.1/24 dev eth0 && ip link set eth0 up");
    guest.wait_for_link("", "eth0");
    guest.wait_for_link(&far, "eth1");
    (guest, far)
}

/// Pings until all of three are answered: a driver may restart its card late, and the driver at the other end may
/// notice that even later.
#[track_caller]
fn ping(guest: &mut Guest, prefix: &str, address: &str, size: usize) {
    guest.run(&format!(
        "until {prefix} ping -c 3 -i 0.2 -W 5 -s {size} {address} | grep -q '3 packets received'; do :; done"
    ));
}

/// Runs TCP in both directions, and UDP, which must lose no packet at this rate.
#[track_caller]
fn transfers(guest: &mut Guest, address: &str) {
    for direction in ["", "--reverse"] {
        let result = guest.iperf("", &format!("--client {address} --bytes 4M {direction}"));
        assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(4_000_000), "{result}");
    }
    // The sockets have room for all packets, so that a late receiver loses none.
    guest.run("echo 4000000 > /proc/sys/net/core/rmem_max; echo 4000000 > /proc/sys/net/core/wmem_max");
    let result = guest.iperf("", &format!("--client {address} --udp --bitrate 20M --bytes 1M --window 2M"));
    let seen = ["cat /proc/net/snmp", "ethtool -S eth0"].map(|look| guest.attempt(look).output);
    assert_eq!(result["end"]["sum"]["lost_packets"], 0, "{result} {seen:?}");
}

/// Runs TCP in tunnels. Each segment has an outer IPv4 header: Linux leaves its checksum to the card, and the far end
/// checks it.
#[track_caller]
fn tunnels(guest: &mut Guest, far: &str) {
    guest.run("modprobe -a sit ip_gre");
    for (mode, network) in [("sit", "fd00:85::"), ("gre", "10.85.0.")] {
        let (length, tunnel) = (if mode == "sit" { 64 } else { 24 }, format!("{mode}7"));
        for (prefix, own, other) in [("", 1, 2), (far, 2, 1)] {
            let ends = format!("local 10.84.0.{own} remote 10.84.0.{other} ttl 64");
            guest.run(&format!("{prefix} ip tunnel add {tunnel} mode {mode} {ends}"));
            guest.run(&format!("{prefix} ip addr add {network}{own}/{length} dev {tunnel}"));
            guest.run(&format!("{prefix} ip link set {tunnel} up"));
            guest.run(&format!("while {prefix} ip addr show {tunnel} | grep -q tentative; do usleep 10000; done"));
        }
        for direction in ["", "--reverse"] {
            let result = guest.iperf("", &format!("--client {network}2 --bytes 4M {direction}"));
            assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(4_000_000), "{result}");
        }
        for prefix in ["", far] {
            let said = guest.run(&format!("{prefix} grep ^IpExt /proc/net/netstat"));
            let [names, counts] = [0, 1].map(|n| said.lines().nth(n).expect("two lines").split(' '));
            let wrong = names.zip(counts).find(|(name, _)| *name == "InCsumErrors").expect("Linux counts them");
            assert_eq!(wrong.1, "0", "{mode}, outer headers with a wrong checksum at {prefix:?}");
        }
    }
}

/// Checks that `ethtool -S` equals the traffic on the cable, to the byte. Linux's counts leave out pause frames, and frames
/// for which a busy guest had no descriptor.
#[track_caller]
fn counts_what_the_wire_counts(guest: &mut Guest, prefix: &str, interface: &str, counted: impl Fn() -> [Counted; 2]) {
    for _ in 0..100 {
        let before = counted();
        let mut counter = |name: &str| guest.counter(prefix, interface, name);
        let [received, sent] = ["rx", "tx"].map(|way| {
            let of = ["xon", "xoff"].map(|kind| counter(&format!("{way}_flow_control_{kind}")));
            of.iter().sum::<u64>()
        });
        let told = [("rx", received, counter("rx_missed_errors")), ("tx", sent, 0)].map(|(way, pauses, missed)| {
            let (frames, bytes) = (counter(&format!("{way}_pkts_nic")), counter(&format!("{way}_bytes_nic")));
            (frames + pauses + missed, bytes + 64 * pauses)
        });
        let (multicast, broadcast) = (counter("multicast") + received, counter("broadcast"));
        // The counts are comparable if no frame passed meanwhile.
        if counted() == before {
            assert_eq!(told, before.map(|counted| (counted.frames, counted.octets)), "{interface}");
            assert_eq!((multicast, broadcast), (before[0].multicast, before[0].broadcast), "{interface}");
            return;
        }
    }
    panic!("{interface} is never quiet");
}

/// Checks that the driver binds, comes up at 10 Gbit/s, passes its self-tests, pings, and answers tools.
fn is_accepted(kind: CardKind, port: &str) {
    let served = Served::pair(kind, 0);
    // Without IPv6, Linux sends no frames that the other end's filters drop.
    let mut machine = Machine::new().kernel_argument("ipv6.disable=1");
    machine.program("phc_ctl");
    let (mut guest, far) = connected(&served, machine);
    ping(&mut guest, "", "10.84.0.2", 56);

    let settings = guest.run("ethtool eth0");
    assert!(settings.contains("Speed: 10000Mb/s") && settings.contains(port), "{settings}");
    guest.run(&format!("{far} iperf3 --server --daemon"));
    transfers(&mut guest, "10.84.0.2");
    counts_what_the_wire_counts(&mut guest, "", "eth0", || served.counted(0));
    counts_what_the_wire_counts(&mut guest, &far, "eth1", || served.counted(1));

    let tests = guest.run("ethtool -t eth0 offline");
    assert!(tests.contains("PASS") && tests.contains("Loopback test"), "{tests}");
    guest.wait_for_link("", "eth0");
    ping(&mut guest, &far, "10.84.0.1", 1400);
    answers_tools(&mut guest, kind);
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

#[test]
fn linux_accepts_the_82599_on_a_backplane() {
    is_accepted(CardKind::X82599Kx4, "10000baseKX4/Full");
}

#[test]
fn linux_accepts_the_82599_with_a_module() {
    is_accepted(CardKind::X82599Sfp, "Port: FIBRE");
}

#[test]
fn linux_accepts_the_x540() {
    is_accepted(CardKind::X540, "Port: Twisted Pair");
}

#[test]
fn linux_accepts_the_x550() {
    is_accepted(CardKind::X550, "Port: Twisted Pair");
}

/// Runs traffic with all offloads of the card at both ends, and with none.
#[test]
fn offloads_equal_those_of_linux() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new());
    for (prefix, interface, address) in [("", "eth0", "fd00:84::1"), (&*far, "eth1", "fd00:84::2")] {
        guest.run(&format!("{prefix} ip addr add {address}/64 dev {interface}"));
        guest.run(&format!("while {prefix} ip addr show {interface} | grep -q tentative; do usleep 10000; done"));
    }
    guest.run(&format!("{far} iperf3 --server --daemon"));
    let mut before = 0;
    for (offloads, lro) in [("on", "on"), ("off", "off")] {
        for (prefix, interface) in [("", "eth0"), (&*far, "eth1")] {
            let set =
                format!("{prefix} ethtool -K {interface} rx {offloads} tx {offloads} sg {offloads} tso {offloads}");
            guest.run(&format!("{set} gso {offloads} gro {offloads} rxvlan {offloads} txvlan {offloads}"));
            // The card coalesces segments only if interrupts are not too frequent.
            guest.run(&format!("{prefix} ethtool -C {interface} rx-usecs 100"));
            guest.run(&format!("{prefix} ethtool -K {interface} lro {lro}"));
        }
        for mtu in [1500, 9000] {
            guest.run(&format!("ip link set eth0 mtu {mtu}"));
            guest.run(&format!("{far} ip link set eth1 mtu {mtu}"));
            guest.wait_for_link("", "eth0");
            guest.wait_for_link(&far, "eth1");
            ping(&mut guest, "", "10.84.0.2", mtu - 100);
            transfers(&mut guest, "10.84.0.2");
            guest.iperf("", "--client fd00:84::2 --bytes 2M");
            guest.iperf("", "--client fd00:84::2 --bytes 2M --reverse");
        }
        if offloads == "on" {
            tunnels(&mut guest, &far);
        }
        let aggregated = guest.counter(&far, "eth1", "hw_rsc_aggregated");
        assert!((aggregated > before) == (lro == "on"), "lro {lro}: {before}, then {aggregated} segments in others");
        before = aggregated;
    }
    // This also detects hangs. The driver's tx_timeout_count includes other resets: if frames wait while the far end's
    // change of MTU interrupts the link, the driver clears its queue by a reset.
    assert_content(&mut guest);
    for (prefix, interface) in [("", "eth0"), (&*far, "eth1")] {
        for name in ["rx_csum_offload_errors", "rx_errors", "rx_dropped", "rx_crc_errors"] {
            assert_eq!(guest.counter(prefix, interface, name), 0, "{interface} {name}");
        }
    }
    served.assert_no_breaches("Linux");
}

/// Our driver is at one end of a cable, and Linux's at the other. Both leave segmentation to their cards, both cards
/// coalesce, and the SHA-256 sums of both directions are right. Then in a VLAN, whose tags our card strips.
#[test]
fn our_driver_exchanges_segments_with_linux_s() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let mut machine = Machine::new();
    machine.program("ethtool");
    served.plug(&mut machine, &["a"]);
    let mut guest = machine.boot();
    guest.run("modprobe -a ixgbe 8021q");
    guest.run("ip addr add 10.8.0.2/24 dev eth0 && ip link set eth0 up");
    // The card coalesces segments only if interrupts are not too frequent.
    guest.run("ethtool -C eth0 rx-usecs 100");
    guest.run("ethtool -K eth0 lro on");
    guest.wait_for_link("", "eth0");
    let namespace = Namespace::new("segments");
    for (tag, address) in [(None, "10.8.0.1"), (Some(77), "10.9.0.1")] {
        if let Some(tag) = tag {
            // Linux then turns coalescing off.
            guest.run(&format!("ip link add link eth0 name eth0.{tag} type vlan id {tag}"));
            guest.run(&format!("ip addr add 10.9.0.2/24 dev eth0.{tag} && ip link set eth0.{tag} up"));
        }
        let card = format!("vfio-user:{}?offloads=on&metadata=on", served.socket("b").display());
        let open = || {
            let file = File::open(format!("/run/netns/{}", namespace.name)).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            linerate::open([&card, "tap:t0?offloads=on"]).unwrap()
        };
        let [mut card, mut tap] = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
        card.strip_vlan_tags(tag.is_some()).unwrap();
        namespace.run(&format!("ip address add {address}/24 dev t0"));
        namespace.run("ip link set t0 up");
        let mut ends = [&mut card, &mut tap].map(|port| (port.rx(0).unwrap(), port.tx(0).unwrap()));
        let before = guest.counter("", "eth0", "hw_rsc_aggregated");
        let seen = std::thread::scope(|scope| {
            // Dropped in any case, so that the bridge also ends if a check fails.
            let (running, is_over) = channel();
            let ends = &mut ends;
            let bridge = scope.spawn(move || bridge(ends, tag, &is_over));
            guest.wait_for_link("", "eth0");
            let mut server = Process::start(&mut namespace.of(exchange("server", address)));
            server.await_output("listening");
            check_exchange(&mut guest, address, server);
            drop(running);
            bridge.join().unwrap()
        });
        // Neither card coalesces segments with tags.
        let aggregated = guest.counter("", "eth0", "hw_rsc_aggregated") > before;
        assert_eq!((aggregated, seen.coalesced > 0), (tag.is_none(), tag.is_none()), "{tag:?}: {seen:?}");
        assert_eq!(seen.tagged > 0, tag.is_some(), "{seen:?}");
        assert_eq!(card.statistics().unwrap().drops, Drops::default());
    }
    assert_content(&mut guest);
    for card in &served.cards {
        assert_eq!(card.breaches(), []);
    }
}

/// The packets that a card has received.
#[derive(Debug, Default)]
struct Seen {
    coalesced: u64,
    tagged: u64,
}

/// Passes packets between a card and an interface until the sender is dropped. With a tag, packets are in a VLAN at the
/// card's side.
fn bridge(ends: &mut [(RxQueue, TxQueue); 2], tag: Option<u16>, is_over: &Receiver<()>) -> Seen {
    let [card, tap] = ends;
    let (mut received, mut sending, mut seen) = (Batch::new(), Batch::new(), Seen::default());
    while is_over.try_recv() == Err(TryRecvError::Empty) {
        if received.is_empty() {
            card.0.recv(&mut received);
            for packet in received.packets() {
                let metadata = packet.metadata();
                seen.coalesced += u64::from(metadata.segments > 1);
                seen.tagged += u64::from(metadata.vlan.is_some());
            }
        }
        if sending.is_empty() {
            tap.0.recv(&mut sending);
            let tagged = sending.packets().filter_map(|packet| Some((packet, tag?)));
            tagged.for_each(|(mut packet, tag)| packet.insert_vlan(tag).unwrap());
        }
        tap.1.send(&mut received);
        card.1.send(&mut sending);
    }
    seen
}

/// Rules steer and drop packets, the RSS table distributes them, and VLAN tags are inserted, stripped and filtered.
#[test]
fn flows_are_steered() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new().processors(2));
    guest.run(&format!("{far} iperf3 --server --daemon"));
    let queue = |guest: &mut Guest, number: u8| guest.counter("", "eth0", &format!("rx_queue_{number}_packets"));
    for chosen in [1, 0] {
        let (weights, other) = if chosen == 1 { ("0 1", 0) } else { ("1 0", 1) };
        guest.run(&format!("ethtool -X eth0 weight {weights}"));
        let before = (queue(&mut guest, chosen), queue(&mut guest, other));
        ping(&mut guest, &far, "10.84.0.1", 56);
        guest.iperf("", "--client 10.84.0.2 --bytes 500K");
        assert!(queue(&mut guest, chosen) >= before.0 + 10, "the table says queue {chosen}");
        // Non-IP packets have no hash, and go to queue 0.
        assert!(queue(&mut guest, other) <= before.1 + 5, "nothing goes to queue {other}");
    }

    guest.run("ethtool -X eth0 weight 1 0");
    guest.run("ethtool -K eth0 ntuple on");
    guest.wait_for_link("", "eth0");
    guest.run("ethtool -N eth0 flow-type udp4 dst-port 7777 action 1");
    guest.run("ethtool -N eth0 flow-type tcp4 dst-port 7778 action -1");
    guest.run("iperf3 --server --daemon --port 7777");
    let before = queue(&mut guest, 1);
    guest.iperf(&far, "--client 10.84.0.1 --port 7777 --udp --bitrate 5M --bytes 100K");
    assert!(queue(&mut guest, 1) >= before + 60, "the rule says queue 1");
    // The TCP ports are closed: Linux refuses connections without the rule, and does not see them with it.
    let knock =
        |guest: &mut Guest, port: u16| guest.attempt(&format!("{far} nc -w 2 10.84.0.1 {port} </dev/null")).output;
    assert!(knock(&mut guest, 7779).contains("refused"), "packets without a rule arrive");
    let matched = guest.counter("", "eth0", "fdir_match");
    assert!(!knock(&mut guest, 7778).contains("refused"), "the rule drops");
    assert!(guest.counter("", "eth0", "fdir_match") > matched, "the rule matched");

    for (prefix, interface, address) in [("", "eth0", "10.85.0.1"), (&*far, "eth1", "10.85.0.2")] {
        let vlan = format!("{interface}.77");
        guest.run("modprobe 8021q");
        guest.run(&format!("{prefix} ip link add link {interface} name {vlan} type vlan id 77"));
        guest.run(&format!("{prefix} ip addr add {address}/24 dev {vlan}"));
        guest.run(&format!("{prefix} ip link set {vlan} up"));
    }
    ping(&mut guest, "", "10.85.0.2", 56);
    for offloads in ["rxvlan off txvlan off", "rxvlan on txvlan on", "rx-vlan-filter off", "rx-vlan-filter on"] {
        guest.run(&format!("ethtool -K eth0 {offloads}"));
        guest.wait_for_link("", "eth0");
        ping(&mut guest, "", "10.85.0.2", 1400);
    }
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// Many rounds of interface down and up, driver unload and load, and cable changes leak no memory.
#[test]
fn many_rounds_leave_nothing_behind() {
    let served = Served::pair(CardKind::X82599Kx4, 0);
    let mut machine = Machine::new();
    served.plug(&mut machine, &["a"]);
    let mut guest = machine.boot();
    let free = |guest: &mut Guest| -> u64 {
        let line = guest.run("sync; echo 3 >/proc/sys/vm/drop_caches; grep MemFree /proc/meminfo");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    let left = |guest: &mut Guest, before: u64| {
        let now = free(guest);
        assert!(now + 3 * 1024 > before, "{before} KiB were free, and {now} are");
    };
    let mut before = 0;
    for round in 0..10 {
        guest.run("modprobe ixgbe && ip link set eth0 up");
        guest.wait_for_link("", "eth0");
        guest.run("rmmod ixgbe");
        if round == 1 {
            before = free(&mut guest);
        }
    }
    left(&mut guest, before);
    guest.run("modprobe ixgbe");
    for round in 0..10 {
        guest.run("ip link set eth0 up");
        guest.wait_for_link("", "eth0");
        served.cards[0].set_cable(false);
        guest.run("while ip link show eth0 | grep -q LOWER_UP; do usleep 1000; done");
        served.cards[0].set_cable(true);
        guest.wait_for_link("", "eth0");
        guest.run("ip link set eth0 down");
        if round == 1 {
            before = free(&mut guest);
        }
    }
    left(&mut guest, before);
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// Behind a guest's IOMMU, the driver maps and unmaps a buffer for each packet.
#[test]
fn an_iommu_of_the_guests_is_crossed() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new().iommu_for_served());
    ping(&mut guest, "", "10.84.0.2", 1400);
    guest.run("ip link set eth0 mtu 9000");
    guest.run(&format!("{far} ip link set eth1 mtu 9000"));
    guest.wait_for_link("", "eth0");
    guest.wait_for_link(&far, "eth1");
    guest.run(&format!("{far} iperf3 --server --daemon"));
    transfers(&mut guest, "10.84.0.2");
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// The driver's interrupt self-test passes with the interrupt line only. The tests above have message-signalled
/// interrupts.
#[test]
fn the_interrupt_self_test_passes() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new().kernel_argument("pci=nomsi"));
    let tests = guest.run("ethtool -t eth0 offline");
    assert!(tests.contains("PASS"), "{tests}");
    guest.wait_for_link("", "eth0");
    ping(&mut guest, &far, "10.84.0.1", 56);
    served.assert_no_breaches("Linux");
}

/// With zero-copy AF_XDP on Linux's driver on a model, one flow goes to the program, and the rest to Linux.
#[test]
fn linux_shares_the_card_with_a_program() {
    share_the_card(Kernel::Default);
}

/// The same on Linux 6.12, which supports packets in several buffers, and copies if the driver does not.
#[test]
fn a_newer_linux_shares_the_card_with_a_program() {
    share_the_card(Kernel::Newer);
}

fn share_the_card(kernel: Kernel) {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new().processors(2).kernel(kernel));
    let sink = guest.start_linerate("sink xdp:eth0?flow=udp:9 --count 3000 --seconds 60", 1);
    guest.wait_for_link("", "eth0");
    ping(&mut guest, &far, "10.84.0.1", 56);
    // The destination address of the generator's frames is not the card's.
    guest.run("ip link set eth0 promisc on");
    guest.run(&format!("{far} linerate gen packet:eth1 --count 3000 --rate 2k --seconds 60 --json >/dev/null"));
    let outcome = guest.wait(sink);
    assert!(outcome.output.contains("AF_XDP without copies, in the driver"), "{}", outcome.output);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["ports"][0]["rx_packets"], &summary["lost"]),
        (&Value::from(3000), &Value::from(0)),
        "{summary}"
    );

    if kernel == Kernel::Default {
        counts_what_the_card_drops(&mut guest, &far);
    }
    ping(&mut guest, &far, "10.84.0.1", 1400);
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// While a program is stopped, its buffers run out, and the card drops frames. Only the card's driver counts them.
fn counts_what_the_card_drops(guest: &mut Guest, far: &str) {
    let sink = guest.start_linerate("sink xdp:eth0?flow=udp:9 --count 1 --seconds 600", 1);
    guest.wait_for_link("", "eth0");
    let before = guest.counter("", "eth0", "rx_missed_errors");
    let child = sink.child(guest);
    guest.run(&format!("kill -STOP {child}"));
    let deadline = Deadline::begin();
    while guest.counter("", "eth0", "rx_missed_errors") == before {
        deadline.check(|| format!("another count of missed frames than {before}"));
        guest.run(&format!("{far} linerate gen packet:eth1 --count 1000 --rate 20k --seconds 60 --json >/dev/null"));
    }
    let missed = guest.counter("", "eth0", "rx_missed_errors") - before;
    guest.run(&format!("kill -CONT {child}"));
    let summary = guest.wait(sink).summary();
    // The last frames may have arrived after the counter was read.
    let counted = summary["ports"][0]["drops"]["no_descriptor"].as_u64().unwrap_or(0);
    assert!((missed..missed + 1000).contains(&counted), "{missed}: {summary}");
}

/// The card's filters steer a flow to a queue. The program removes them when it ends; after `kill -9`, the next program
/// does.
#[test]
fn the_card_steers_a_shared_flow() {
    let served = Served::pair(CardKind::X82599Sfp, 0);
    let (mut guest, far) = connected(&served, Machine::new().processors(2));
    let sink = "sink 'xdp:eth0?flow=ip+udp:9&steer=on' --seconds 60";
    let refused = guest.refused(&format!("linerate {sink}"));
    assert!(refused.contains("sudo ethtool -K eth0 ntuple on"), "{refused}");
    guest.run("ethtool -K eth0 ntuple on");
    guest.wait_for_link("", "eth0");
    let refused = guest.refused("linerate sink 'xdp:eth0?flow=udp:1-9&steer=on' --seconds 1");
    assert!(refused.contains("exact ports"), "{refused}");
    guest.run("ip link set eth0 promisc on");
    let rules = |guest: &mut Guest| guest.run("ethtool -n eth0 | grep -c Filter: || true").trim().to_string();
    let queue = |guest: &mut Guest, queue: u32| {
        let text = guest.run(&format!("ethtool -S eth0 | grep rx_queue_{queue}_packets"));
        text.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let offer = |guest: &mut Guest| {
        guest.run(&format!("{far} linerate gen packet:eth1 --flows 8 --count 3000 --rate 2k --seconds 60 >/dev/null"));
    };
    for chosen in [None, Some(0)] {
        let sink = match chosen {
            None => sink.to_string(),
            Some(queue) => sink.replace("eth0", &format!("eth0-{queue}")),
        };
        let sink = guest.start_linerate(&sink, 1);
        guest.wait_for_link("", "eth0");
        assert_eq!(rules(&mut guest), "1");
        ping(&mut guest, &far, "10.84.0.1", 56);
        offer(&mut guest);
        // The driver resets its counters when the program ends, so read them now.
        let (steered, other) = (chosen.unwrap_or(1), 1 - chosen.unwrap_or(1));
        let mut counts = || (queue(&mut guest, steered), queue(&mut guest, other));
        // The generator is done, but its last frames may still be in flight.
        let counts = (0..200).map(|_| counts()).find(|counts| counts.0 >= 3000).unwrap_or_else(&mut counts);
        assert!(counts.0 >= 3000 && counts.1 < 100, "{chosen:?}: {counts:?}");
        let outcome = guest.interrupt(sink);
        assert!(outcome.output.contains("steered by 1 of 1 rules"), "{}", outcome.output);
        let summary = outcome.summary();
        assert_eq!((&summary["ports"][0]["rx_packets"], &summary["lost"]), (&3000.into(), &0.into()), "{summary}");
        assert_eq!(rules(&mut guest), "0");
    }

    let killed = guest.start_linerate(sink, 1);
    guest.wait_for_link("", "eth0");
    guest.signal(&killed, "KILL");
    guest.wait(killed);
    // ixgbe deletes all rules when an XDP program is detached. Most drivers keep them, so add the rule again.
    assert_eq!(rules(&mut guest), "0");
    let noted = guest.run("grep -o 'rule=[0-9]*' /run/linerate/steering/*");
    let location = noted.trim().rsplit('=').next().unwrap();
    guest.run(&format!("ethtool -N eth0 flow-type udp4 dst-port 9 action 1 loc {location}"));
    guest.run("ethtool -N eth0 flow-type udp4 dst-port 7 action 0 loc 5");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("1 rules of process") && ports.contains("which has ended"), "{ports}");
    // The next start removes the stale rule, even if that start fails, and keeps other rules.
    guest.refused("linerate sink xdp:eth0-7?flow=icmp --seconds 1");
    let left = guest.run("ethtool -n eth0");
    assert!(left.contains("Filter: 5") && left.matches("Filter:").count() == 1, "{left}");
    assert!(!guest.run("linerate ports").contains("which has ended"));
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// The library's driver works over vfio and the guest's IOMMU, on the same model as Linux's and DPDK's drivers.
#[test]
fn the_librarys_driver_forwards_in_the_guest() {
    let traffic = || -> Box<dyn Wire> { Box::new(Traffic::new(Generator::new(128, 4), None, Some(FRAMES))) };
    let served = Served::new(vec![Card::new("a", traffic()), Card::new("b", traffic())]);
    let mut machine = Machine::new().iommu_for_served();
    served.plug(&mut machine, &["a", "b"]);
    let mut guest = machine.boot();
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    guest.run(&format!("linerate bind {A} {B}"));
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --wait interrupt"), 2);
    let report = |n: usize| served.cards[n].wire_report().expect("a wire that counts");
    guest.wait_until(|| (0..2).all(|n| report(n).received == FRAMES));
    let summary = guest.interrupt(forwarder).summary();
    for n in 0..2 {
        assert_eq!(summary["ports"][n]["rx_packets"], FRAMES, "{summary}");
        let Report { received, lost, corrupted, reordered, .. } = report(n);
        assert_eq!((received, lost, corrupted, reordered), (FRAMES, 0, 0, 0), "card {n}");
    }
    served.assert_no_breaches("ours");
}

/// A generator and a checking sink with few frames in flight: testpmd drops frames that do not fit a ring.
struct Window {
    traffic: Traffic,
    given: u64,
    /// The number of this wire's frames that have left the other card.
    back: Arc<AtomicU64>,
    /// The number of the other wire's frames that have left this card.
    others_back: Arc<AtomicU64>,
}

impl Wire for Window {
    fn transmit(&mut self, frame: &Frame) {
        self.others_back.fetch_add(1, Relaxed);
        self.traffic.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        let few = self.given < self.back.load(Relaxed) + 128;
        let came = few && self.traffic.receive(frame);
        self.given += u64::from(came);
        came
    }

    fn report(&self) -> Option<Report> {
        self.traffic.report()
    }
}

const FRAMES: u64 = 20_000;

/// Boots with one card for DPDK for each wire. Also returns testpmd's command line.
#[track_caller]
fn for_dpdk(wires: Vec<Box<dyn Wire>>) -> (Served, Guest, String) {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let names = &NAMES[..wires.len()];
    let served = Served::new(names.iter().zip(wires).map(|(name, wire)| Card::new(name, wire)).collect());
    let mut machine = Machine::new().iommu_for_served().processors(2);
    let testpmd = machine.testpmd();
    served.plug(&mut machine, names);
    let mut guest = machine.boot();
    guest.prepare_dpdk("10fb");
    (served, guest, testpmd)
}

/// Runs testpmd in a mode until `done`, and returns its output. The cables are unplugged until testpmd has started,
/// because it drops earlier frames.
#[track_caller]
fn testpmd(served: &Served, guest: &mut Guest, command: &str, mode: &str, done: impl Fn() -> bool) -> String {
    served.cards.iter().for_each(|card| card.set_cable(false));
    let arguments = format!("--forward-mode={mode} --auto-start --disable-link-check --total-num-mbufs=4096");
    // testpmd prints statistics every second, which shows that it has started.
    let program = guest.start(&format!("{command} -- {arguments} --stats-period=1"));
    guest.wait_for(&program, "Port statistics");
    served.cards.iter().for_each(|card| card.set_cable(true));
    let is_done = guest.wait_until(done);
    guest.signal(&program, "INT");
    let outcome = guest.wait(program);
    let cards: Vec<_> = served.cards.iter().map(|card| (card.frames(), card.wire_report(), card.breaches())).collect();
    assert!(is_done && outcome.status == 0, "{mode}: {cards:?}\n{}", outcome.output);
    outcome.output
}

/// Runs DPDK's testpmd with its vector path (`simd` 256) or its scalar path (64): forwards, receives, and with `sends`
/// also generates frames.
fn dpdk_moves_packets(simd: u32, sends: bool) {
    let traffic = || Traffic::new(Generator::new(128, 4), None, Some(FRAMES));
    let (back, others_back) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let a = Window { traffic: traffic(), given: 0, back: back.clone(), others_back: others_back.clone() };
    let b = Window { traffic: traffic(), given: 0, back: others_back, others_back: back };
    let mut wires: Vec<Box<dyn Wire>> = vec![Box::new(a), Box::new(b), Box::new(traffic()), Box::new(traffic())];
    if sends {
        let (c, d) = Cable::pair();
        wires.extend([Box::new(c) as Box<dyn Wire>, Box::new(d)]);
    }
    let (served, mut guest, command) = for_dpdk(wires);
    // Returns the command for a pair of cards, by the slot of the first card.
    let of = |slot: u32| {
        format!(
            "{command} -l 0,1 --in-memory --force-max-simd-bitwidth={simd} -a 0000:0{slot}:00.0 -a 0000:0{}:00.0",
            slot + 1
        )
    };
    let report = |n: usize| served.cards[n].wire_report().expect("a wire that counts");

    // Each frame returns on the other card, in order and intact.
    let debug = format!("{} --log-level=pmd.net.ixgbe.init:debug", of(1));
    let said = testpmd(&served, &mut guest, &debug, "io", || (0..2).all(|n| report(n).received >= FRAMES));
    assert_eq!(said.contains("Vector rx enabled"), simd == 256, "{said}");
    for n in 0..2 {
        let Report { sent, received, lost, corrupted, reordered, .. } = report(n);
        assert_eq!((sent, received, lost, corrupted, reordered), (FRAMES, FRAMES, 0, 0, 0), "card {n}");
    }
    // testpmd's counters show that it received all frames on the wire.
    let has_all = || served.cards[2..4].iter().all(|card| card.frames().0 == FRAMES);
    let said = testpmd(&served, &mut guest, &of(3), "rxonly", has_all);
    assert_eq!(said.matches(&format!("RX-total: {FRAMES}")).count(), 2, "{said}");
    if sends {
        // testpmd generates frames.
        let sent = |n: usize| served.cards[n].frames().1;
        let before = sent(0);
        testpmd(&served, &mut guest, &of(1), "txonly", || sent(0) > before + FRAMES);
        // Both ends of a cable send, and neither receives: without flow control, neither end stops the other.
        let before = [sent(4), sent(5)];
        testpmd(&served, &mut guest, &of(5), "txonly", || (4..6).all(|n| sent(n) > before[n - 4] + FRAMES));
    }
    served.assert_no_breaches("DPDK");
}

#[test]
fn dpdk_moves_packets_in_vectors() {
    dpdk_moves_packets(256, true);
}

#[test]
fn dpdk_moves_packets_one_by_one() {
    // Forwarding covers the scalar transmit path.
    dpdk_moves_packets(64, false);
}

/// Virtual functions keep working when the physical function's driver resets the card.
#[test]
fn virtual_functions_survive_a_reset_of_the_physical_one() {
    let served = Served::pair(CardKind::X82599Sfp, 2);
    let mut machine = Machine::new();
    machine.program("iperf3");
    served.plug(&mut machine, &["a", "b", "a.vf0", "a.vf1"]);
    let mut guest = machine.boot();
    guest.run("modprobe ixgbe && modprobe ixgbevf");
    guest.run("ip addr add 10.84.0.1/24 dev eth0 && ip link set eth0 up");
    let first = guest.move_to_own_network("eth2", "10.84.0.3/24");
    let second = guest.move_to_own_network("eth3", "10.84.0.4/24");
    guest.run("ip link set eth1 up");
    guest.wait_for_link("", "eth0");
    guest.wait_for_link(&first, "eth2");
    guest.wait_for_link(&second, "eth3");
    ping(&mut guest, &first, "10.84.0.4", 56);
    // Frames in flight during a reset must not block a queue afterwards: the driver reports a stopped queue as a hang.
    guest.run(&format!("{second} iperf3 --server --daemon"));
    for _ in 0..3 {
        guest.run(&format!(
            "{first} iperf3 --client 10.84.0.4 --udp --bitrate 1M --time 60 >/dev/null 2>&1 & echo $! >/tmp/client"
        ));
        guest.run("ip link set eth0 down");
        guest.run("while ip link show eth0 | grep -q LOWER_UP; do usleep 10000; done");
        guest.run("ip link set eth0 up");
        guest.wait_for_link("", "eth0");
        guest.wait_for_link(&first, "eth2");
        guest.wait_for_link(&second, "eth3");
        // A virtual function's driver checks every second or two whether it must restart, and reports the link as up
        // until then.
        ping(&mut guest, &first, "10.84.0.4", 56);
        ping(&mut guest, &second, "10.84.0.1", 56);
        guest.run("kill $(cat /tmp/client)");
    }
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}

/// Checks the rate of the card's clock with linuxptp: equal to Linux's clock, and 2 % faster or slower if set so.
#[track_caller]
fn the_clock_goes_at_the_rate_that_is_set(guest: &mut Guest) {
    for (parts_per_billion, percent) in [(0, 0.0), (20_000_000, 2.0), (-20_000_000, -2.0)] {
        let said = guest.run(&format!("phc_ctl -q eth0 -- freq {parts_per_billion} set cmp wait 2 cmp"));
        let behind = said.lines().filter_map(|line| line.split_once("CLOCK_REALTIME is ")?.1.strip_suffix("ns"));
        let behind: Vec<f64> = behind.map(|ns| ns.parse().expect("a number")).collect();
        let [first, second] = behind[..] else { panic!("{said}") };
        // The wait is longer on busy processors, hence the tolerance. A clock that ignores the adjustment is off by 2
        // %.
        let gained = (first - second) / 2e9 * 100.0;
        assert!((gained - percent).abs() < 1.5, "{gained} % for {percent} %: {said}");
    }
}

/// Checks register dumps and other accesses that only tools make, and the speeds that a PHY is told to advertise.
#[track_caller]
fn answers_tools(guest: &mut Guest, kind: CardKind) {
    guest.run("ethtool -d eth0 >/dev/null");
    the_clock_goes_at_the_rate_that_is_set(guest);
    // Only a card with an SFP cage has a module to report.
    assert_eq!(guest.attempt("ethtool -m eth0 >/dev/null").status == 0, kind == CardKind::X82599Sfp, "{kind}");
    if matches!(kind, CardKind::X540 | CardKind::X550) {
        for (advertise, mbits) in [("0x020", 1000), ("0x008", 100), ("0x1000", 10_000)] {
            guest.run(&format!("ethtool -s eth0 advertise {advertise}"));
            guest.wait_for_link("", "eth0");
            let said = guest.run(&format!(
                "while ! ethtool eth0 | grep -q 'Speed: {mbits}Mb'; do usleep 10000; done; ethtool eth0"
            ));
            assert!(said.contains("Link detected: yes"), "{said}");
        }
    }
}

/// Linux's ixgbevf on two virtual functions carries traffic between them, to the wire, and to the physical function.
#[test]
fn virtual_functions_communicate() {
    let served = Served::pair(CardKind::X82599Sfp, 2);
    let mut machine = Machine::new();
    machine.program("ethtool");
    machine.program("iperf3");
    served.plug(&mut machine, &["a", "b", "a.vf0", "a.vf1"]);
    let mut guest = machine.boot();
    guest.run("modprobe ixgbe && modprobe ixgbevf");
    guest.run("ip addr add 10.84.0.1/24 dev eth0 && ip link set eth0 up");
    let addresses = ["10.84.0.2", "10.84.0.3", "10.84.0.4"];
    let prefixes: Vec<String> =
        (1..=3).map(|n| guest.move_to_own_network(&format!("eth{n}"), &format!("{}/24", addresses[n - 1]))).collect();
    // The links of two SFP modules come up only when both lasers are on.
    guest.wait_for_link("", "eth0");
    for (n, prefix) in prefixes.iter().enumerate() {
        guest.wait_for_link(prefix, &format!("eth{}", n + 1));
    }
    let [wire, first, second] = &prefixes[..] else { unreachable!("three") };
    for prefix in &prefixes {
        guest.run(&format!("{prefix} iperf3 --server --daemon"));
    }
    // Traffic in all directions, over the same links.
    for (from, to) in [("", 1), ("", 2), (&**first, 0), (first, 2), (wire, 1), (wire, 2), (second, 1), (second, 0)] {
        ping(&mut guest, from, addresses[to], 1400);
        let result = guest.iperf(from, &format!("--client {} --bytes 1M", addresses[to]));
        assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(1_000_000), "{result}");
    }
    // Traffic between functions does not reach the wire.
    let before = served.cards[0].frames().1;
    guest.iperf(first, &format!("--client {} --bytes 1M", addresses[2]));
    assert!(served.cards[0].frames().1 < before + 100, "frames of neighbours went to the wire");
    // The physical function grants VLANs and a change of address.
    guest.run("modprobe 8021q");
    for (prefix, interface, address) in [(first, "eth2", "10.86.0.1"), (second, "eth3", "10.86.0.2")] {
        guest.run(&format!("{prefix} ip link add link {interface} name {interface}.9 type vlan id 9"));
        guest.run(&format!("{prefix} ip addr add {address}/24 dev {interface}.9"));
        guest.run(&format!("{prefix} ip link set {interface}.9 up"));
    }
    ping(&mut guest, first, "10.86.0.2", 56);
    guest.run(&format!("{first} ip link set eth2 address 02:00:00:00:00:77"));
    guest.run(&format!("{wire} ip neigh flush dev eth1"));
    ping(&mut guest, wire, addresses[1], 56);
    let tests = guest.run(&format!("{second} ethtool -t eth3 offline"));
    assert!(tests.contains("PASS"), "{tests}");
    assert_content(&mut guest);
    served.assert_no_breaches("Linux");
}
