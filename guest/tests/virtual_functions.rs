//! Virtual functions of QEMU's 82576, whose physical functions Linux's igb drives.

use linerate_guest::{Guest, Machine, Wire, check_forwarding, expect_generated, send_frames};
use serde_json::json;

/// The first virtual function of the first card, and of the second.
const A: &str = "0000:01:10.0";
const B: &str = "0000:02:10.0";
/// The second virtual function of the first card.
const NEIGHBOUR: &str = "0000:01:10.2";
/// The address that generated frames are sent to.
const ADDRESS: &str = "02:6c:72:00:00:02";
const COUNT: usize = 10_000;
const LONGEST: usize = 1514;

const OTHER: &str = "02:6c:72:00:00:03";

/// Boots a machine with two cards, with two virtual functions each that are bound to vfio.
fn boot() -> (Guest, Wire, Wire) {
    let mut machine = Machine::new().iommu();
    machine.program("ip");
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    // Linux's own packets would be among the test's.
    guest.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
    guest.run("modprobe igb && modprobe -a vfio-pci vfio_iommu_type1");
    for (interface, card) in [("eth0", "0000:01:00.0"), ("eth1", "0000:02:00.0")] {
        guest.run(&format!("echo 2 > /sys/bus/pci/devices/{card}/sriov_numvfs"));
        guest.run(&format!("ip link set {interface} up"));
        guest.wait_for_link("", interface);
    }
    let ports = guest.run("linerate ports");
    assert!(ports.contains("Intel 82576 VF, 8086:10ca, driven by igbvf (tried on QEMU's device)"), "{ports}");
    guest.run(&format!("linerate bind {A} {B} {NEIGHBOUR}"));
    a.drain();
    b.drain();
    (guest, a, b)
}

/// Lets the first function of `receiving` receive the frames that a test generates, and that of `sending` send them. The
/// card would not send frames to the address of one of its functions to the wire.
fn assign(guest: &mut Guest, receiving: &str, sending: &str) {
    for (interface, address) in [(receiving, ADDRESS), (sending, OTHER)] {
        // Frames from any address may leave.
        guest.run(&format!("/bin/ip link set {interface} vf 0 mac {address} spoofchk off"));
    }
}

/// Forwards frames in both directions between the functions.
#[track_caller]
fn check_forwarded(guest: &mut Guest, a: &Wire, b: &Wire, options: &str) {
    for (number, (from, to), interfaces) in [(0, (a, b), ["eth0", "eth1"]), (1, (b, a), ["eth1", "eth0"])] {
        assign(guest, interfaces[0], interfaces[1]);
        let forwarder = guest.start_linerate(&format!("fwd {A} {B} {options}"), 2);
        check_forwarding(from, to, COUNT, LONGEST);
        let summary = guest.interrupt(forwarder).summary();
        let (receiver, sender) = (&summary["ports"][number], &summary["ports"][1 - number]);
        assert_eq!((&receiver["rx_packets"], &sender["tx_packets"]), (&json!(COUNT), &json!(COUNT)), "{summary}");
        assert_eq!((&receiver["drops"], &sender["drops"]), (&json!({}), &json!({})));
    }
}

#[test]
fn functions_of_linux_s_card() {
    let (mut guest, a, b) = boot();
    assign(&mut guest, "eth1", "eth0");
    let generator = guest.start_linerate(&format!("gen {A} --count {COUNT} --size 128"), 1);
    expect_generated(&a, COUNT, 128);
    let summary = guest.wait(generator).summary();
    assert_eq!(summary["ports"][0]["tx_packets"], json!(COUNT));
    // A function drops frames for which it has no descriptor: those of the other functions do not wait for them.
    let sink = guest.start_linerate(&format!("sink '{B}?ring=4096' --count 4000"), 1);
    send_frames(&b, 4000, 256);
    let summary = guest.wait(sink).summary();
    assert_eq!((&summary["lost"], &summary["reordered"]), (&json!(0), &json!(0)));
    check_forwarded(&mut guest, &a, &b, "");
    check_forwarded(&mut guest, &a, &b, "--queues 2");
    check_forwarded(&mut guest, &a, &b, "--wait interrupt");

    // The physical function of the receiving side, and then that of the sending side, go down and up.
    assign(&mut guest, "eth0", "eth1");
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    check_forwarding(&a, &b, 1000, LONGEST);
    for (interface, function) in [("eth0", A), ("eth1", B)] {
        guest.run(&format!("ip link set {interface} down"));
        guest.wait_for(&forwarder, &format!("was reset, or is down port=.*{function}"));
        guest.run(&format!("ip link set {interface} up"));
        guest.wait_for(&forwarder, &format!("is up again port=.*{function}"));
        check_forwarding(&a, &b, 1000, LONGEST);
    }
    guest.interrupt(forwarder).summary();

    // From one function to another of the card, and from the physical function's interface.
    assign(&mut guest, "eth0", "eth1");
    for source in [NEIGHBOUR, "packet:eth0"] {
        let sink = guest.start_linerate(&format!("sink {A} --count 1000"), 1);
        guest.run(&format!("linerate gen {source} --count 1000 --size 200 --rate 5000"));
        let summary = guest.wait(sink).summary();
        assert_eq!((&summary["lost"], &summary["reordered"]), (&json!(0), &json!(0)), "{source}");
    }

    // After a program was killed, another can use the functions.
    let forwarder = guest.start_linerate(&format!("fwd {A} {B}"), 2);
    check_forwarding(&a, &b, 1000, LONGEST);
    send_frames(&a, 200, 1500);
    guest.signal(&forwarder, "KILL");
    assert_eq!(guest.wait(forwarder).status, 137);
    a.drain();
    b.drain();
    check_forwarded(&mut guest, &a, &b, "");

    // Linux removes the functions while one is in use.
    let sink = guest.start_linerate(&format!("sink {B}"), 1);
    let removal = guest.start("echo 0 > /sys/bus/pci/devices/0000:02:00.0/sriov_numvfs");
    let outcome = guest.wait(sink);
    assert!(outcome.status == 1 && outcome.output.contains("is being unplugged"), "{}", outcome.output);
    assert_eq!(guest.wait(removal).status, 0);
}
