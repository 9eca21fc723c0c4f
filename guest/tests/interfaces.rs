//! Tests of ports on Linux's interfaces that need a newer kernel than the host's, or one with its types (BTF).

use linerate_guest::{Kernel, Machine};

/// Linux's veth tells an XDP program each packet's hash, and the VLAN tag that it carries beside the packet's bytes.
#[test]
fn metadata_of_an_interface() {
    let mut machine = Machine::new().kernel(Kernel::Newer);
    // busybox prefers its own `ip`, which does not have these options.
    machine.program("/usr/bin/ip");
    machine.program("ethtool");
    let mut guest = machine.boot();
    guest.run("modprobe -a veth 8021q tun");
    guest.run("/usr/bin/ip link add v0 type veth peer name v1 && echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6");
    guest.run("/usr/bin/ip link set v0 up && /usr/bin/ip link set v1 up");
    guest.run("/usr/bin/ip link add link v1 name customer type vlan id 77 egress-qos-map 0:5");
    guest.run("/usr/bin/ip link add link v1 name service type vlan proto 802.1ad id 78");
    for (n, interface) in ["v1", "customer", "service"].iter().enumerate() {
        guest.run(&format!(
            "/usr/bin/ip link set {interface} up && /usr/bin/ip address add 10.7.{n}.1/24 dev {interface}"
        ));
        guest.run(&format!("/usr/bin/ip neighbour add 10.7.{n}.2 lladdr 02:00:00:00:00:02 dev {interface}"));
    }

    let program = guest.start("described xdp:v0?metadata=on icmp");
    guest.wait_for(&program, "ready");
    // Each packet has another length. The bytes are those after the addresses. Tag 77 has priority 5.
    let found = [
        (0, 100, "142 bytes, 080045000080: hash Unknown, tag None, mark Some(7), time None"),
        (1, 101, "143 bytes, 080045000081: hash Unknown, tag Some(41037), mark Some(7), time None"),
        (2, 102, "148 bytes, 88a8004e0800: hash Unknown, tag None, mark Some(7), time None"),
    ];
    for (n, len, expected) in found {
        // There is no reply.
        guest.attempt(&format!("ping -c 1 -W 1 -s {len} 10.7.{n}.2"));
        guest.wait_for(&program, expected);
    }
    // Linux inserts the tag into the packet itself if the sender cannot carry it.
    guest.run("ethtool -K v1 tx-vlan-hw-insert off");
    guest.attempt("ping -c 1 -W 1 -s 103 10.7.1.2");
    guest.wait_for(&program, "149 bytes, 8100a04d0800: hash Unknown, tag None, mark Some(7), time None");
    // ARP matches no rule.
    guest.run("/usr/bin/ip neighbour delete 10.7.0.2 dev v1");
    guest.attempt("ping -c 1 -W 1 10.7.0.2");
    guest.wait_for(&program, "42 bytes, 080600010800: hash Unknown, tag None, mark None, time None");
    guest.signal(&program, "KILL");
    guest.wait(program);

    let features = guest.run("linerate ports --capabilities xdp:v0?metadata=on");
    assert!(features.lines().any(|line| line.starts_with("receive hash") && line.ends_with("offloaded")), "{features}");
    // A frame of several buffers has its metadata before the first.
    for interface in ["v0", "v1"] {
        guest.run(&format!("/usr/bin/ip link set {interface} mtu 9000"));
    }
    let program = guest.start("described xdp:v0?metadata=on icmp");
    guest.wait_for(&program, "ready");
    guest.run("/usr/bin/ip neighbour replace 10.7.0.2 lladdr 02:00:00:00:00:02 dev v1");
    guest.attempt("ping -c 1 -W 1 -s 5000 10.7.0.2");
    guest.wait_for(&program, "5042 bytes, 0800450013a4: hash Unknown, tag None, mark Some(7), time None");
    guest.signal(&program, "KILL");
    guest.wait(program);
    // A driver without metadata is an error, even though it runs XDP programs.
    guest.run("/usr/bin/ip tuntap add t0 mode tap && /usr/bin/ip link set t0 up");
    let refused = guest.refused("described xdp:t0?metadata=on");
    assert!(refused.contains("its driver, tun, does not tell programs about packets"), "{refused}");
    assert!(refused.contains("without metadata=on"), "{refused}");
}
