//! Tests with QEMU's 82574, an independent implementation, over vfio and over uio.

use std::net::SocketAddr;

use linerate_guest::{
    A, Abilities, B, FLOWS, Guest, Machine, OTHER, TCP, UDP, Wire, check_control, check_forwarded_chains,
    check_forwarded_flows, check_traffic, frame_of,
};

#[test]
fn over_vfio() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card("e1000e"), machine.card("e1000e"));
    let mut guest = machine.boot();
    guest.run("modprobe e1000e");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("0000:01:00.0   Intel 82574L, 8086:10d3, driven by e1000e (tried on QEMU's device); bound to e1000e (eth0), IOMMU group"), "{ports}");
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("0000:01:00.0: e1000e -> vfio-pci"), "{bound}");
    a.drain();
    b.drain();
    check_traffic(&mut guest, &a, &b);

    check_forwarded_flows(&mut guest, &a, &b, 2);
    let refused = guest.refused(&format!("linerate fwd {A} {B} --queues 4"));
    assert!(refused.contains("4") && refused.contains("2"), "{refused}");
    check_forwarded_chains(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities { strips: true, filters_unicast: true, ..Abilities::default() });
    check_hashes_and_checksums(&mut guest, &a);

    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains("0000:02:00.0: vfio-pci -> e1000e"), "{unbound}");
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net/eth*");
}

#[test]
fn over_uio() {
    let mut machine = Machine::new();
    let (a, b) = (machine.card("e1000e"), machine.card("e1000e"));
    let mut guest = machine.boot();
    guest.run("echo 64 > /proc/sys/vm/nr_hugepages");
    check_traffic(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities { strips: true, filters_unicast: true, ..Abilities::default() });
}

/// Sends the published flows, and two TCP packets with right and wrong checksum. An 82574 hashes no UDP ports. Packets
/// without a hash are for queue 0. Queue 1 stops and starts again while queue 0 receives.
fn check_hashes_and_checksums(guest: &mut Guest, a: &Wire) {
    let addresses = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let [from, to] = ["10.84.0.2:1000", "10.83.0.2:2000"].map(addresses);
    let count = 3 * FLOWS.len() + 3;
    let program = guest.start(&format!("received '{A}?metadata=on&queues=2' {count}"));
    for phase in ["evenly", "table", "symmetric", "restarted"] {
        guest.wait_for(&program, &format!("ready: {phase}"));
        let mut numbers = 0..;
        for (source, destination, ..) in FLOWS {
            for protocol in [TCP, UDP, OTHER] {
                a.send(&frame_of(addresses(source), addresses(destination), protocol, numbers.next().unwrap()));
            }
        }
        a.send(&frame_of(from, to, TCP, numbers.next().unwrap()));
        let mut damaged = frame_of(from, to, TCP, numbers.next().unwrap());
        damaged[60] = 1;
        a.send(&damaged);
        a.send(&[&[0xFF; 12][..], &[8, 6], &[0; 45], &[numbers.next().unwrap()]].concat());
    }
    let output = guest.wait(program).output;
    let line = |phase: &str, number: usize| {
        let mut lines = output.lines().filter_map(|line| line.strip_prefix(&format!("{phase} {number}: ")));
        lines.next().unwrap_or_else(|| panic!("{phase} {number} is missing:\n{output}"))
    };
    for (phase, table) in [("evenly", &[0, 1][..]), ("table", &[1, 1, 0]), ("restarted", &[0, 1])] {
        for (flow, (source, _, addresses, ports)) in FLOWS.into_iter().enumerate() {
            let version = if source.contains('[') { 6 } else { 4 };
            let kinds = [(ports, "Tcp", "Good"), (addresses, "", "Good"), (addresses, "", "Unknown")];
            for (at, (hash, fields, verdict)) in kinds.into_iter().enumerate() {
                let queue = table[hash as usize % 128 % table.len()];
                let expected = format!("queue {queue}, {verdict}, {hash:08x} {fields}Ipv{version}");
                assert_eq!(line(phase, 3 * flow + at), expected, "{phase}, {source}");
            }
        }
        for (number, verdict) in (3 * FLOWS.len()..).zip([" Good,", " Bad,"]) {
            assert!(line(phase, number).contains(verdict), "{} instead of{verdict}", line(phase, number));
        }
        assert_eq!(line(phase, count - 1), "queue 0, Unknown, none");
    }
    assert!(output.contains("returned 512 of 512 buffers"), "{output}");
}
