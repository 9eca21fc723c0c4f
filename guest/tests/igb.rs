//! QEMU's 82576, which we did not write, over vfio and over uio.

use linerate_guest::{Guest, Machine, Wire, cross, cross_flows, expect_generated, offer};
use serde_json::json;

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";
const COUNT: usize = 10_000;

/// `ports`, `gen`, `sink` and `fwd`, with every frame checked, and what the cards have counted.
fn does_all(guest: &mut Guest, a: &Wire, b: &Wire) {
    let generator = guest.start_linerate(&format!("gen {A} --count {COUNT} --size 128"), 1);
    expect_generated(a, COUNT, 128);
    let summary = guest.wait(generator).summary();
    let sent = (&summary["ports"][0]["tx_packets"], &summary["ports"][0]["tx_bytes"]);
    assert_eq!(sent, (&json!(COUNT), &json!(COUNT * 124)));

    let sink = guest.start_linerate(&format!("sink {B} --count {COUNT}"), 1);
    offer(b, COUNT, 256);
    let summary = guest.wait(sink).summary();
    let received = (&summary["ports"][0]["rx_packets"], &summary["ports"][0]["rx_bytes"]);
    assert_eq!(received, (&json!(COUNT), &json!(COUNT * 252)));
    assert_eq!((&summary["lost"], &summary["reordered"]), (&json!(0), &json!(0)));

    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    cross(a, b, COUNT, 1514);
    cross(b, a, COUNT, 1514);
    let summary = guest.interrupt(forwarder).summary();
    for port in summary["ports"].as_array().unwrap() {
        assert_eq!((&port["rx_packets"], &port["tx_packets"]), (&json!(COUNT), &json!(COUNT)), "{summary}");
        assert_eq!(port["drops"], json!({}));
    }
}

#[test]
fn over_vfio() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    guest.run("modprobe igb");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("0000:01:00.0   Intel 82576, 8086:10c9; igb (eth0), IOMMU group"), "{ports}");
    assert!(ports.contains("to use it: sudo linerate bind 0000:02:00.0"), "{ports}");
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("0000:01:00.0: igb -> vfio-pci") && bound.contains("chown $USER /dev/vfio/"), "{bound}");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("taken from igb; to give it back: sudo linerate unbind 0000:01:00.0"), "{ports}");
    a.drain();
    b.drain();
    does_all(&mut guest, &a, &b);

    for queues in [2, 4] {
        let forwarder = guest.start_linerate(&format!("fwd {A} {B} --queues {queues}"), 2);
        cross_flows(&a, &b, COUNT, 1514);
        cross_flows(&b, &a, COUNT, 1514);
        let summary = guest.interrupt(forwarder).summary();
        assert_eq!(summary["ports"][0]["rx_packets"], json!(COUNT));
    }

    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains("0000:02:00.0: vfio-pci -> igb"), "{unbound}");
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net/eth*");
}

#[test]
fn over_uio() {
    let mut machine = Machine::new();
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    // No driver of the kernel has the cards, and polling needs none.
    let refused = guest.refused(&format!("linerate fwd {A} {B}"));
    assert!(refused.contains("memory that the kernel does not move") && refused.contains("nr_hugepages"), "{refused}");
    guest.run("echo 64 > /proc/sys/vm/nr_hugepages");
    does_all(&mut guest, &a, &b);
    // Nothing was taken, so nothing is given back.
    let ports = guest.run("linerate ports");
    assert!(ports.contains("Intel 82576, 8086:10c9; no driver"), "{ports}");
}
