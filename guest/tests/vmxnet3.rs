//! Tests with QEMU's vmxnet3, an independent implementation, over vfio and over uio. It receives all packets in queue 0,
//! and drops packets without a descriptor instead of leaving them to its back end. So fewer packets than descriptors are
//! on their way at a time.

use linerate::metadata::Checksum;
use linerate_guest::{
    A, Abilities, B, Guest, Machine, Namespace, Wire, check_control, check_forwarded_chains, check_forwarding,
    expect_generated, send_frames,
};
use serde_json::json;

const VMXNET3: &str = "vmxnet3,romfile=";
const VFIO: &str = "modprobe -a vfio-pci vfio_iommu_type1";

#[test]
fn over_vfio() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card(VMXNET3), machine.card(VMXNET3));
    let mut guest = machine.boot();
    guest.run("modprobe vmxnet3");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("0000:01:00.0   VMware vmxnet3, 15ad:07b0, driven by vmxnet3 (tried on QEMU's device); bound to vmxnet3 (eth0), IOMMU group"), "{ports}");
    guest.run(VFIO);
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("0000:01:00.0: vmxnet3 -> vfio-pci"), "{bound}");
    a.drain();
    b.drain();
    check_packets(&mut guest, &a, &b);
    check_forwarded_chains(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities::default());
    check_queues(&mut guest, &a, &b);
    check_segments(&mut guest, &a);
    check_interrupts(&mut guest, &a, &b);

    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains("0000:02:00.0: vfio-pci -> vmxnet3"), "{unbound}");
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net/eth*");
}

#[test]
fn over_uio() {
    let mut machine = Machine::new();
    let (a, b) = (machine.card(VMXNET3), machine.card(VMXNET3));
    let mut guest = machine.boot();
    guest.run("echo 64 > /proc/sys/vm/nr_hugepages; modprobe uio_pci_generic");
    guest.run(&format!("linerate bind --uio {A} {B}"));
    check_packets(&mut guest, &a, &b);
    check_forwarded_chains(&mut guest, &a, &b);
    check_interrupts(&mut guest, &a, &b);
}

/// Runs `gen`, `sink` and `fwd` on both cards, with every frame and the cards' counters checked.
fn check_packets(guest: &mut Guest, a: &Wire, b: &Wire) {
    const COUNT: usize = 10_000;
    let generator = guest.start_linerate(&format!("gen {A} --count {COUNT} --size 128"), 1);
    expect_generated(a, COUNT, 128);
    let port = &guest.wait(generator).summary()["ports"][0];
    assert_eq!((&port["tx_packets"], &port["tx_bytes"]), (&json!(COUNT), &json!(COUNT * 124)));

    let sink = guest.start_linerate(&format!("sink {B} --count 500"), 1);
    send_frames(b, 500, 256);
    let summary = guest.wait(sink).summary();
    let port = &summary["ports"][0];
    assert_eq!((&port["rx_packets"], &port["rx_bytes"]), (&json!(500), &json!(500 * 252)));
    assert_eq!((&summary["lost"], &summary["reordered"]), (&json!(0), &json!(0)));

    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    check_forwarding(a, b, COUNT, 1514);
    check_forwarding(b, a, COUNT, 1514);
    let summary = guest.interrupt(forwarder).summary();
    for port in summary["ports"].as_array().unwrap() {
        assert_eq!((&port["rx_packets"], &port["tx_packets"]), (&json!(COUNT), &json!(COUNT)), "{summary}");
        assert_eq!(port["drops"], json!({}));
    }
}

/// Sends from each of several queues, and receives with several queues open.
fn check_queues(guest: &mut Guest, a: &Wire, b: &Wire) {
    let refused = guest.refused(&format!("linerate fwd {A} {B} --queues 3"));
    assert!(refused.contains("1, 2, 4 or 8"), "{refused}");
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --queues 4"), 2);
    check_forwarding(a, b, 1000, 1514);
    check_forwarding(b, a, 1000, 1514);
    guest.interrupt(forwarder).summary();
    for count in [4, 8] {
        let generator = guest.start_linerate(&format!("gen {A} --count {} --queues {count}", 100 * count), 1);
        let mut received = 0;
        while received < 100 * count {
            a.receive();
            received += 1;
        }
        let summary = guest.wait(generator).summary();
        assert_eq!(summary["ports"][0]["tx_packets"], json!(100 * count), "{summary}");
        let by_queue = summary["ports"][0]["tx_slots"].as_array().unwrap();
        assert!(by_queue.iter().all(|slots| slots.as_u64() > Some(0)), "a queue sent nothing: {summary}");
    }
}

/// Leaves TCP packets to the device to be segmented, and checks every segment and its checksums.
fn check_segments(guest: &mut Guest, a: &Wire) {
    for (headers, len) in [("eth/ip/tcp", 54), ("eth/ip6/tcp", 74)] {
        let packet = format!("{headers}/payload(5000)");
        let generator = guest.start_linerate(&format!("gen {A} --packet '{packet}' --segment 1000 --count 100"), 1);
        for number in 0..500 {
            let segment = a.receive();
            assert_eq!((segment.len(), Checksum::of_frame(&segment)), (len + 1000, Checksum::Good), "{number}");
        }
        guest.wait(generator).summary();
    }
}

/// Forwards packets that arrive one at a time, so that each one wakes the thread.
fn check_interrupts(guest: &mut Guest, a: &Wire, b: &Wire) {
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --wait interrupt"), 2);
    for _ in 0..50 {
        check_forwarding(a, b, 1, 60);
        check_forwarding(b, a, 1, 60);
    }
    check_forwarding(a, b, 2000, 1514);
    let summary = guest.interrupt(forwarder).summary();
    assert_eq!(summary["ports"][1]["tx_packets"], json!(2050), "{summary}");
}

/// A killed run leaves the device active. A new run works, and so does Linux. Then both cards are pulled out.
#[test]
fn a_card_survives_a_killed_run_and_its_removal_is_an_error() {
    let namespace = Namespace::new("vmxnet3");
    let mut machine = Machine::new().iommu();
    machine.in_namespace(&namespace);
    for tap in ["t0", "t1"] {
        namespace.tap(tap, 1);
        machine.card_at_tap(VMXNET3, tap, 1);
    }
    let mut guest = machine.boot();
    guest.run(&format!("modprobe vmxnet3; {VFIO}"));
    let (a, b) = (namespace.wire("t0"), namespace.wire("t1"));
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --bind"), 2);
    check_forwarding(&a, &b, 1000, 1514);
    send_frames(&a, 200, 1500);
    guest.signal(&forwarder, "KILL");
    assert_eq!(guest.wait(forwarder).status, 137);
    a.drain();
    b.drain();
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    b.drain(); // frames that waited in the TAP interface
    check_forwarding(&a, &b, 1000, 1514);
    check_forwarding(&b, &a, 1000, 1514);
    guest.interrupt(forwarder).summary();
    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains("0000:01:00.0: vfio-pci -> vmxnet3"), "{unbound}");
    namespace.run("ip addr add 10.85.1.1/24 dev t0");
    let interface = guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net").trim().to_string();
    guest.run(&format!("ip addr add 10.85.1.2/24 dev {interface} && ip link set {interface} up"));
    guest.wait_for_link("", &interface);
    let ping = guest.run("ping -c 3 -W 5 10.85.1.1");
    assert!(ping.contains("3 packets received"), "{ping}");

    guest.run(&format!("ip link set {interface} down; linerate bind --force {A} {B}"));
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    a.drain();
    b.drain();
    check_forwarding(&a, &b, 100, 1514);
    guest.unplug("card0");
    let outcome = guest.wait(forwarder);
    assert_eq!(outcome.status, 1, "{}", outcome.output);
    assert!(outcome.output.contains("is being unplugged"), "{}", outcome.output);
    // The other card still works.
    let generator = guest.start_linerate(&format!("gen {B} --count 100 --size 128"), 1);
    b.drain();
    let summary = guest.wait(generator).summary();
    assert_eq!(summary["ports"][0]["tx_packets"], json!(100));
}
