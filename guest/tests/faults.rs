//! Failures with emulated cards: killed programs, wrong addresses, unplugged cards.

use linerate_guest::{A, B, Guest, Machine, Namespace, check_forwarding, send_frames};
use serde_json::json;

const VFIO: &str = "modprobe -a vfio-pci vfio_iommu_type1";
const VIRTIO: &str = "virtio-net-pci,disable-legacy=on,iommu_platform=on";

#[test]
fn unbind_recovers_the_82576s_of_a_killed_forwarder() {
    unbind_recovers("igb", "Intel 82576, 8086:10c9");
}

#[test]
fn unbind_recovers_the_82574s_of_a_killed_forwarder() {
    unbind_recovers("e1000e", "Intel 82574L, 8086:10d3");
}

/// Kills a forwarder between two cards of this kind. `device` is also the name of Linux's driver.
fn unbind_recovers(device: &str, name: &str) {
    let namespace = Namespace::new(&format!("killed-{device}"));
    let mut machine = Machine::new().iommu();
    machine.in_namespace(&namespace);
    for tap in ["t0", "t1"] {
        namespace.tap(tap, 1);
        machine.card_at_tap(device, tap, 1);
    }
    let mut guest = machine.boot();
    guest.run(&format!("modprobe {device}; {VFIO}"));
    let (a, b) = (namespace.wire("t0"), namespace.wire("t1"));

    // A run that a signal ends gives the cards back.
    for signal in ["INT", "TERM"] {
        let forwarder = guest.start_linerate(&format!("fwd {A} {B} --bind"), 2);
        let ports = guest.run("linerate ports");
        assert!(ports.contains(&format!("is using it, and will give it back to {device}")), "{ports}");
        guest.signal(&forwarder, signal);
        guest.wait(forwarder).summary();
        let ports = guest.run("linerate ports");
        let bound = format!("{A}   {name}, driven by {device} (tried on QEMU's device); bound to {device} (eth");
        assert!(ports.contains(&bound), "{ports}");
    }

    // A run killed under traffic cannot.
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --bind"), 2);
    check_forwarding(&a, &b, 1000, 1514);
    send_frames(&a, 200, 1500);
    guest.signal(&forwarder, "KILL");
    assert_eq!(guest.wait(forwarder).status, 137);
    let ports = guest.run("linerate ports");
    assert!(ports.contains("left behind by process"), "{ports}");
    assert!(ports.contains(&format!("give it back to {device}")), "{ports}");

    // The cards still work for a new run.
    a.drain();
    b.drain();
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    b.drain(); // frames that waited in the TAP interface
    check_forwarding(&a, &b, 1000, 1514);
    check_forwarding(&b, &a, 1000, 1514);
    guest.interrupt(forwarder).summary();

    // They also work for Linux.
    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains(&format!("{A}: vfio-pci -> {device}")), "{unbound}");
    assert!(!guest.run("linerate ports").contains("left behind"));
    namespace.run("ip addr add 10.85.0.1/24 dev t0");
    let interface = guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net").trim().to_string();
    guest.run(&format!("ip addr add 10.85.0.2/24 dev {interface} && ip link set {interface} up"));
    guest.run(&format!("until ip link show {interface} | grep -q LOWER_UP; do usleep 10000; done"));
    let ping = guest.run("ping -c 3 -W 5 10.85.0.1");
    assert!(ping.contains("3 packets received"), "{ping}");

    // Linux is now using it.
    let refused = guest.refused(&format!("linerate bind {A}"));
    assert!(refused.contains("is up") && refused.contains("has the address 10.85.0.2"), "{refused}");
    assert!(refused.contains("has routes") && refused.contains("sudo linerate bind --force 0000:01:00.0"), "{refused}");
    let refused = guest.refused(&format!("linerate sink {A} --bind"));
    assert!(refused.contains("Linux is using it"), "{refused}");
    guest.run(&format!("linerate bind --force {A}"));
}

#[test]
fn the_iommu_stops_a_wrong_address_and_the_error_names_its_queue() {
    let mut machine = Machine::new().iommu();
    machine.card("igb");
    let mut guest = machine.boot();
    guest.run(VFIO);
    guest.run(&format!("linerate bind {A}"));
    guest.expect_dma_faults();
    let said = guest.refused(&format!("stray {A}"));
    assert!(said.contains("the IOMMU stopped the card from reading from address 0x1"), "{said}");
    assert!(said.contains("a descriptor of transmit queue 1 points to it"), "{said}");
    assert!(guest.console().contains("DMAR: [DMA Read"), "{}", guest.console());
}

#[test]
fn a_card_that_is_pulled_out_ends_the_run_with_an_error() {
    for device in ["igb", "e1000e", VIRTIO] {
        let mut machine = Machine::new().iommu();
        let (a, b) = (machine.card(device), machine.card(device));
        let mut guest = machine.boot();
        guest.run(VFIO);
        guest.run(&format!("linerate bind {A} {B}"));
        let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
        check_forwarding(&a, &b, 1000, 1514);
        guest.unplug("card0");
        let outcome = guest.wait(forwarder);
        assert_eq!(outcome.status, 1, "{}", outcome.output);
        assert!(outcome.output.contains("is being unplugged"), "{}", outcome.output);
        let refused = guest.refused(&format!("linerate sink {A}"));
        assert!(refused.contains("there is no PCI device at this address"), "{refused}");
        // The other card still works.
        let sink = guest.start_linerate(&format!("sink {B} --count 100"), 1);
        send_frames(&b, 100, 64);
        assert_eq!(guest.wait(sink).summary()["ports"][0]["rx_packets"], json!(100));
    }
}

/// With uio, the kernel removes a card without asking the program.
#[test]
fn a_card_that_is_pulled_out_under_uio_ends_the_run_with_an_error() {
    let mut machine = Machine::new();
    let legacy = "virtio-net-pci,disable-modern=on,disable-legacy=off";
    let wires = ["igb", legacy, "e1000e"].map(|device| machine.card(device));
    let mut guest = machine.boot();
    guest.run(&format!("echo 64 > /proc/sys/vm/nr_hugepages; linerate bind --uio {A} {B} 0000:03:00.0"));
    for ((card, address), wire) in [("card0", A), ("card1", B), ("card2", "0000:03:00.0")].into_iter().zip(&wires) {
        let sink = guest.start_linerate(&format!("sink {address}"), 1);
        send_frames(wire, 100, 64);
        guest.unplug(card);
        let outcome = guest.wait(sink);
        assert_eq!(outcome.status, 1, "{}", outcome.output);
        assert!(outcome.output.contains("is being unplugged"), "{}", outcome.output);
    }
}

#[test]
fn an_ordinary_user_needs_the_group_and_a_limit() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card("igb"), machine.card(VIRTIO));
    let mut guest = machine.boot();
    guest.run(VFIO);
    guest.run(&format!("linerate bind {A} {B}"));
    let as_user = |limit: u32, command: &str| format!("(ulimit -l {limit}; exec su user -c \"exec {command}\")");
    let refused = guest.refused(&as_user(262_144, &format!("linerate sink {A}")));
    assert!(refused.contains("/dev/vfio/") && refused.contains("belongs to another user"), "{refused}");
    assert!(refused.contains("sudo chown $USER /dev/vfio/"), "{refused}");

    guest.run("chown user /dev/vfio/[0-9]*");
    let refused = guest.refused(&as_user(8192, &format!("linerate sink {A}")));
    assert!(refused.contains("the limit of user 1000 is 8192 KiB (ulimit -l)"), "{refused}");
    assert!(
        refused.contains("KiB must be locked in memory") && refused.contains("/etc/security/limits.conf"),
        "{refused}"
    );

    let forwarder = guest.start(&as_user(262_144, &format!("linerate fwd {A} {B} --json")));
    guest.wait_for(&forwarder, &format!("{B}.*link up"));
    check_forwarding(&a, &b, 1000, 1514);
    check_forwarding(&b, &a, 1000, 1514);
    let child = forwarder.child(&mut guest);
    assert!(guest.run(&format!("grep Uid /proc/{child}/status")).contains("1000"), "it runs as another user");
    guest.interrupt(forwarder).summary();
}

#[test]
fn uio_is_for_root_and_hugepages() {
    let mut machine = Machine::new();
    machine.card("igb");
    let mut guest = machine.boot();
    let refused = guest.refused(&format!("su user -c \"linerate sink {A}\""));
    assert!(
        refused.contains("uio requires root") && refused.contains("can access all memory of the machine"),
        "{refused}"
    );
    let refused = guest.refused(&format!("linerate sink {A} --pages 2M"));
    assert!(
        refused.contains("2 MiB hugepages are needed, 0 are free") && refused.contains("nr_hugepages"),
        "{refused}"
    );
    let refused = guest.refused(&format!("linerate sink {A}"));
    assert!(refused.contains("needs memory that the kernel does not move"), "{refused}");
    let refused = guest.refused(&format!("modprobe vfio-pci; linerate bind --vfio {A}"));
    assert!(refused.contains("it has no IOMMU group") && refused.contains("intel_iommu=on"), "{refused}");
}

#[test]
fn every_obstacle_is_named_with_its_remedy() {
    let mut machine = Machine::new().iommu();
    machine.card("igb");
    machine.card("rtl8139");
    // Two cards that the IOMMU cannot isolate, behind a conventional PCI bridge.
    machine.arguments(&["-device", "pcie-root-port,id=old,chassis=40,addr=10.0"]);
    machine.arguments(&["-device", "pcie-pci-bridge,id=bridge,bus=old"]);
    for place in ["1", "2"] {
        let netdev = format!("hubport,id=old{place},hubid=9");
        let card =
            format!("virtio-net-pci,iommu_platform=on,disable-legacy=on,bus=bridge,addr={place},netdev=old{place}");
        machine.arguments(&["-netdev", &netdev, "-device", &card]);
    }
    let mut guest = machine.boot();
    let refused = |guest: &mut Guest, command: &str, parts: &[&str]| {
        let said = guest.refused(command);
        assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
    };
    refused(&mut guest, "linerate sink 0000:09:00.0", &["no PCI device at this address", "linerate ports"]);
    refused(&mut guest, "linerate bind 0000:09:00.0", &["no PCI device at this address"]);
    refused(&mut guest, "linerate sink 0000:00:00.0", &["it is not a network card"]);
    refused(&mut guest, &format!("linerate sink {B}"), &["there is no driver for 10ec:8139", "linerate ports"]);
    // `bind` refuses a card for which the library has no driver.
    refused(&mut guest, &format!("linerate bind {B}"), &["there is no driver for 10ec:8139", "linerate ports"]);
    // The vfio module is not loaded, and uio cannot be used with an IOMMU.
    refused(&mut guest, &format!("linerate bind {A}"), &["module vfio-pci is not loaded", "sudo modprobe vfio-pci"]);
    refused(
        &mut guest,
        &format!("linerate sink {A}"),
        &["IOMMU translates the card's addresses", "linerate bind 0000:01:00.0"],
    );
    guest.run(&format!("modprobe -a igb virtio_pci virtio_net; {VFIO}"));
    refused(
        &mut guest,
        &format!("linerate sink {A}"),
        &["the kernel is using it: driver igb", "sudo linerate bind 0000:01:00.0"],
    );
    refused(
        &mut guest,
        &format!("su user -c \"linerate bind {A}\""),
        &["needs root", "sudo linerate bind 0000:01:00.0"],
    );

    guest.run(&format!("linerate bind {A}"));
    let sink = guest.start_linerate(&format!("sink {A}"), 1);
    refused(&mut guest, &format!("linerate sink {A}"), &["another process has it open"]);
    guest.interrupt(sink).summary();

    let bound = guest.run("linerate bind 0000:04:01.0");
    assert!(
        bound.contains("cannot isolate 0000:04:01.0 from") && bound.contains("0000:04:02.0 (virtio-pci)"),
        "{bound}"
    );
    let parts = ["is not viable", "0000:04:02.0 (virtio-pci)", "sudo linerate bind 0000:04:02.0"];
    refused(&mut guest, "linerate sink 0000:04:01.0", &parts);
    // The group is now viable. Whether the cards work depends on QEMU's bridge and the kernel (with 6.12 they do not).
    guest.run("linerate bind 0000:04:02.0");
    guest.expect_dma_faults();
    let outcome = guest.attempt("linerate fwd 0000:04:01.0 0000:04:02.0 --seconds 0.1");
    assert!(!outcome.output.contains("viable"), "{}", outcome.output);
}
