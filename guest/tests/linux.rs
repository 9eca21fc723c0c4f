//! Tests with Linux at the other end of the cables.

use std::net::{SocketAddr, UdpSocket};

use linerate_guest::{A, B, FLOWS, Guest, Machine, Namespace, OTHER, TCP, UDP, check_flow_forwarding, frame_of};
use serde_json::{Value, json};

/// QEMU's TAP interfaces have the same number of queues as the card. Linux spreads flows over them, or QEMU by their
/// hash.
fn several_queues(device: &str, queues: u16) -> (Guest, Namespace) {
    let namespace = Namespace::new(&format!("{queues}-queues"));
    let mut machine = Machine::new().iommu();
    machine.in_namespace(&namespace);
    // One vector for each of the 2 × `queues` virtqueues, and two more.
    let device = format!("{device},iommu_platform=on,disable-legacy=on,mq=on,vectors={}", 2 * queues + 2);
    for tap in ["t0", "t1"] {
        namespace.tap(tap, queues);
        machine.card_at_tap(&device, tap, queues);
    }
    let mut guest = machine.boot();
    let (a, b) = (namespace.wire("t0"), namespace.wire("t1"));
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    guest.run(&format!("linerate bind {A} {B}"));
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --queues {queues}"), 2);
    check_flow_forwarding(&a, &b, 10_000, 1514);
    check_flow_forwarding(&b, &a, 10_000, 1514);
    let summary = guest.interrupt(forwarder).summary();
    for port in summary["ports"].as_array().unwrap() {
        assert_eq!((&port["rx_packets"], &port["tx_packets"]), (&json!(10_000), &json!(10_000)), "{summary}");
        let by_queue = port["rx_slots"].as_array().unwrap();
        assert_eq!(by_queue.len(), usize::from(queues));
        assert!(by_queue.iter().all(|slots| slots.as_u64() > Some(0)), "a queue got nothing: {summary}");
    }
    (guest, namespace)
}

/// QEMU selects queues by their hash, and reports the hash.
#[test]
fn two_queue_pairs_split() {
    let (mut guest, namespace) = several_queues("virtio-net-pci,rss=on,hash=on", 2);
    check_hashes_and_checksums(&mut guest, &namespace);
    // A port with one queue also gets the hashes, but does not select queues.
    let one = guest.attempt(&format!("received {A}?metadata=on 0"));
    assert!(one.output.contains("ready: evenly") && one.output.contains("contains queue 1"), "{}", one.output);
}

#[test]
fn four_queue_pairs_packed() {
    several_queues("virtio-net-pci,packed=on", 4);
}

/// The host sends the published flows, frames of which Linux has verified the checksum, and a datagram whose checksum it
/// leaves undone. QEMU computes the hashes in software.
fn check_hashes_and_checksums(guest: &mut Guest, namespace: &Namespace) {
    namespace.run("ip addr add 10.83.0.1/24 dev t0 && ip neigh add 10.83.0.2 lladdr 02:00:00:00:00:08 dev t0");
    // Frames that v1 receives are forwarded to t0. Its GRO verifies them, since v0 does not segment by itself.
    namespace.run("ip link add v0 type veth peer name v1 && ip link set v1 address 02:00:00:00:00:08");
    namespace.run("ip link set v0 up && ip addr add 10.84.0.1/24 dev v1 && ip link set v1 up");
    namespace.run("ethtool -K v0 tso off && ethtool -K v1 gro on && echo 1 >/proc/sys/net/ipv4/ip_forward");
    let (direct, forwarded) = (namespace.wire("t0"), namespace.wire("v0"));
    let datagrams = namespace.inside(|| UdpSocket::bind("10.83.0.1:2000").expect("an address of t0"));
    let addresses = |text: &str| text.parse::<SocketAddr>().expect("an address");

    let [from, to] = ["10.84.0.2:1000", "10.83.0.2:2000"].map(addresses);
    let count = 3 * FLOWS.len() + 4;
    let program = guest.start(&format!("received '{A}?metadata=on&queues=2' {count}"));
    for phase in ["evenly", "table", "symmetric", "restarted"] {
        guest.wait_for(&program, &format!("ready: {phase}"));
        let mut numbers = 0..;
        for (source, destination, ..) in FLOWS {
            let (mut source, mut destination) = (addresses(source), addresses(destination));
            for protocol in [TCP, UDP, OTHER] {
                direct.send(&frame_of(source, destination, protocol, numbers.next().unwrap()));
                // The other direction of the same flow.
                if phase == "symmetric" {
                    std::mem::swap(&mut source, &mut destination);
                }
            }
        }
        forwarded.send(&frame_of(from, to, TCP, numbers.next().unwrap()));
        let mut damaged = frame_of(from, to, TCP, numbers.next().unwrap());
        damaged[60] = 1;
        forwarded.send(&damaged);
        let datagram = [[0; 31].as_slice(), &[numbers.next().unwrap()]].concat();
        assert_eq!(datagrams.send_to(&datagram, to).ok(), Some(datagram.len()));
        let arp = [&[0xFF; 12][..], &[8, 6], &[0; 45], &[numbers.next().unwrap()]].concat();
        direct.send(&arp);
    }
    let output = guest.wait(program).output;
    println!("{output}");
    let line = |phase: &str, number: usize| {
        let mut lines = output.lines().filter_map(|line| line.strip_prefix(&format!("{phase} {number}: ")));
        let line = lines.next().unwrap_or_else(|| panic!("{phase} {number} is missing:\n{output}"));
        assert_eq!(lines.next(), None, "{phase} {number} came twice");
        line
    };
    for (phase, table) in [("evenly", &[0, 1][..]), ("table", &[1, 1, 0]), ("restarted", &[0, 1])] {
        let queue = |hash: u32| table[hash as usize % 128 % table.len()];
        for (flow, (source, _, addresses, ports)) in FLOWS.into_iter().enumerate() {
            let version = if source.contains('[') { 6 } else { 4 };
            for (at, (hash, fields)) in [(ports, "Tcp"), (ports, "Udp"), (addresses, "")].into_iter().enumerate() {
                let expected = format!("queue {}, Unknown, {hash:08x} {fields}Ipv{version}", queue(hash));
                assert_eq!(line(phase, 3 * flow + at), expected, "{phase}, {source}");
            }
        }
        let others = [" Good,", " Unknown,", " Left,"];
        for (number, verdict) in (3 * FLOWS.len()..).zip(others) {
            assert!(line(phase, number).contains(verdict), "{} instead of{verdict}", line(phase, number));
        }
        assert_eq!(line(phase, count - 1), format!("queue {}, Unknown, none", table[0]));
    }
    // QEMU resets a single queue, which then holds no buffers. Its receive rings have 256 descriptors.
    assert!(output.contains("returned 256 of 256 buffers"), "{output}");
    for flow in 0..FLOWS.len() {
        let hash = |at: usize| line("symmetric", 3 * flow + at).split(' ').nth(3).unwrap();
        assert_eq!(hash(0), hash(1), "both directions of flow {flow}");
        assert_ne!(hash(0), line("evenly", 3 * flow).split(' ').nth(3).unwrap());
    }
}

/// Waits until iperf3's server listens: the command that starts it returns earlier.
const LISTENS: &str = "sh -c 'until grep -q \":1451 \" /proc/net/tcp /proc/net/tcp6; do :; done'";

/// Two namespaces of the host communicate through the guest, and leave checksums and segmentation to each other.
#[test]
fn checksums_and_segments_are_carried() {
    let (left, right) = (Namespace::new("left"), Namespace::new("right"));
    let mut machine = Machine::new().iommu();
    machine.in_namespace(&left);
    for tap in ["t0", "t1"] {
        left.tap(tap, 1);
        machine.card_at_tap("virtio-net-pci,iommu_platform=on,disable-legacy=on", tap, 1);
    }
    let mut guest = machine.boot();
    left.run(&format!("ip link set t1 netns {}", right.name()));
    left.run("ip addr add 10.83.0.1/24 dev t0 && ip link set t0 up");
    right.run("ip addr add 10.83.0.2/24 dev t1 && ip link set t1 up && ip link set lo up");
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    guest.run(&format!("linerate bind {A} {B}"));
    let mut longest = Vec::new();
    for offloads in ["on", "off"] {
        let ports = format!("{A}?offloads={offloads} {B}?offloads={offloads}");
        let forwarder = guest.start_linerate(&format!("fwd {ports}"), 2);
        left.run("ping -c 3 -i 0.2 -W 5 10.83.0.2");
        let server = format!("iperf3 --server --one-off --daemon --pidfile /run/{}.pid", right.name());
        right.run(&server);
        right.run(LISTENS);
        let result = left.run("iperf3 --client 10.83.0.2 --bytes 20M --json");
        let result: Value = serde_json::from_str(&result).unwrap();
        assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(20 << 20), "{result}");
        let summary = guest.interrupt(forwarder).summary();
        let port = &summary["ports"][0];
        longest.push(port["rx_bytes"].as_u64().unwrap() / port["rx_packets"].as_u64().unwrap());
        assert_eq!(port["drops"], json!({}), "{summary}");
    }
    assert!(longest[0] > 1514, "with offloads packets arrive unsegmented: {longest:?} bytes on average");
    assert!(longest[1] <= 1514, "without they do not: {longest:?} bytes on average");
}

/// Linux's drivers are at both ends: virtio_net, and igb in another namespace. Between them are a hub, the library's
/// igb and VirtIO drivers, and a hub.
#[test]
fn linux_drivers_talk_through_the_forwarder() {
    let mut machine = Machine::new().iommu();
    machine.program("iperf3");
    machine.card_at_hub("igb", 0);
    machine.card_at_hub("virtio-net-pci,disable-legacy=on,iommu_platform=on", 1);
    machine.card_at_hub("virtio-net-pci,disable-legacy=on", 0);
    machine.card_at_hub("igb", 1);
    let mut guest = machine.boot();
    guest.run("modprobe -a vfio-pci vfio_iommu_type1 virtio_pci virtio_net igb tun");
    guest.run(&format!("linerate bind {A} {B}"));
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);

    let near = guest.run("ls /sys/bus/pci/devices/0000:03:00.0/virtio*/net").trim().to_string();
    let far = guest.run("ls /sys/bus/pci/devices/0000:04:00.0/net").trim().to_string();
    let prefix = guest.move_to_own_network(&far, "10.84.0.2/24");
    guest.run(&format!("ip addr add 10.84.0.1/24 dev {near} && ip link set {near} up"));
    // With Linux's igb, auto-negotiation takes some seconds.
    guest.wait_for_link(&prefix, &far);
    let ping = guest.run("ping -c 5 -i 0.2 -W 5 10.84.0.2");
    assert!(ping.contains("5 packets received"), "{ping}");
    guest.run(&format!("{prefix} iperf3 --server --one-off --daemon"));
    guest.run(&format!("{prefix} {LISTENS}"));
    let result = guest.run("iperf3 --client 10.84.0.2 --bytes 4M --json --connect-timeout 5000");
    let result: Value = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
    assert!(result["end"]["sum_sent"]["bytes"].as_u64() >= Some(4 << 20), "{result}");
    let summary = guest.interrupt(forwarder).summary();
    // QEMU's card loses some counts, so the library's igb driver reports slightly less than was sent.
    let received = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    let counted = summary["ports"][0]["rx_bytes"].as_u64().unwrap();
    assert!(received > 1 << 20 && counted > received / 10 * 9, "{received} of {summary}");

    // A TAP interface leaves checksums and segmentation to QEMU's igb, and Linux checks the frames.
    let forwarder = guest.start_linerate(&format!("fwd 'tap:t0?offloads=on' {A}"), 2);
    let prefix = guest.move_to_own_network("t0", "10.85.0.2/24");
    guest.run(&format!("ip addr add 10.85.0.1/24 dev {near}"));
    guest.run("iperf3 --server --one-off --daemon");
    guest.run(LISTENS);
    let result = guest.run(&format!("{prefix} iperf3 --client 10.85.0.1 --bytes 4M --json --connect-timeout 5000"));
    let result: Value = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
    assert!(result["end"]["sum_received"]["bytes"].as_u64() > Some(1 << 20), "{result}");
    let summary = guest.interrupt(forwarder).summary();
    let [packets, bytes] = ["rx_packets", "rx_bytes"].map(|key| summary["ports"][0][key].as_u64().unwrap());
    assert!(bytes / packets > 1514, "packets arrive unsegmented: {summary}");
    // The card gets the slots of the large packets.
    let slots = summary["ports"][1]["tx_slots"][0].as_u64().unwrap();
    assert!(slots < bytes / 1448, "{slots} slots, {summary}");
    let errors = guest.run("awk '/^Tcp:/ { errors = $NF } END { print errors }' /proc/net/snmp");
    assert_eq!(errors.trim(), "0", "no segment has a wrong checksum");
}
