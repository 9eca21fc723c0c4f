//! Tests with QEMU's 82576, an independent implementation, over vfio and over uio.

use linerate_guest::{
    A, Abilities, B, Machine, check_control, check_forwarded_chains, check_forwarded_flows, check_traffic,
};

#[test]
fn over_vfio() {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    guest.run("modprobe igb");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("0000:01:00.0   Intel 82576, 8086:10c9, driven by igb (tried on QEMU's device); bound to igb (eth0), IOMMU group"), "{ports}");
    assert!(ports.contains("to use it: sudo linerate bind 0000:02:00.0"), "{ports}");
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("0000:01:00.0: igb -> vfio-pci") && bound.contains("chown $USER /dev/vfio/"), "{bound}");
    let ports = guest.run("linerate ports");
    assert!(ports.contains("taken from igb; to give it back: sudo linerate unbind 0000:01:00.0"), "{ports}");
    a.drain();
    b.drain();
    check_traffic(&mut guest, &a, &b);

    check_forwarded_flows(&mut guest, &a, &b, 2);
    check_forwarded_flows(&mut guest, &a, &b, 4);
    check_forwarded_chains(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities { strips: true, has_clock: true, filters_unicast: true });

    let unbound = guest.run(&format!("linerate unbind {A} {B}"));
    assert!(unbound.contains("0000:02:00.0: vfio-pci -> igb"), "{unbound}");
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/net/eth*");
}

#[test]
fn over_uio() {
    let mut machine = Machine::new();
    let (a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    // No kernel driver is bound to the cards, and polling needs none.
    let refused = guest.refused(&format!("linerate fwd {A} {B}"));
    assert!(refused.contains("memory that the kernel does not move") && refused.contains("nr_hugepages"), "{refused}");
    guest.run("echo 64 > /proc/sys/vm/nr_hugepages");
    check_traffic(&mut guest, &a, &b);
    // The cards were not taken from a driver, so none is given back.
    let ports = guest.run("linerate ports");
    assert!(ports.contains("; bound to no driver"), "{ports}");
}
