//! Tests with all kinds of QEMU's VirtIO devices, over uio and over vfio.

use linerate_guest::{A, Abilities, B, Guest, Machine, check_control, check_forwarded_chains, check_traffic};

/// Forwards between two cards of QEMU's `device` over uio.
fn over_uio(device: &str, kind: &str) {
    let mut machine = Machine::new();
    let (a, b) = (machine.card(device), machine.card(device));
    let mut guest = machine.boot();
    guest.run("modprobe -a virtio_pci virtio_net; echo 64 > /proc/sys/vm/nr_hugepages");
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("virtio-pci -> no driver"), "{bound}");
    is(&mut guest, kind);
    check_traffic(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities { filters_unicast: true, ..Abilities::default() });
    if device.contains("mrg_rxbuf=off") {
        let refused = guest.refused(&format!("linerate sink {A}?mtu=9000"));
        assert!(refused.contains("this device has no mergeable buffers"), "{refused}");
    } else {
        check_forwarded_chains(&mut guest, &a, &b);
    }
    guest.run(&format!("linerate unbind {A} {B}"));
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/virtio*/net");
}

/// Forwards between two cards of QEMU's `device` over vfio, behind the IOMMU.
fn over_vfio(device: &str, kind: &str) {
    let mut machine = Machine::new().iommu();
    let device = format!("virtio-net-pci,iommu_platform=on,{device}");
    let (a, b) = (machine.card(&device), machine.card(&device));
    let mut guest = machine.boot();
    guest.run("modprobe -a virtio_pci virtio_net vfio-pci vfio_iommu_type1");
    let bound = guest.run(&format!("linerate bind {A} {B}"));
    assert!(bound.contains("virtio-pci -> vfio-pci"), "{bound}");
    is(&mut guest, kind);
    check_traffic(&mut guest, &a, &b);
    check_control(&mut guest, &a, Abilities { filters_unicast: true, ..Abilities::default() });
    check_forwarded_chains(&mut guest, &a, &b);
    guest.run(&format!("linerate unbind {A} {B}"));
    guest.run("ls /sys/bus/pci/devices/0000:01:00.0/virtio*/net");
}

/// Checks that linerate recognizes the card as this kind.
fn is(guest: &mut Guest, kind: &str) {
    let output = guest.run(&format!("linerate sink {A} --seconds 0.01 --json"));
    assert!(output.contains(kind), "{output}");
}

#[test]
fn legacy_over_uio() {
    over_uio("virtio-net-pci,disable-modern=on,disable-legacy=off", "(uio), legacy with split queues");
}

/// Like VirtualBox's device: the header needs a separate descriptor (ixy's issue 35).
#[test]
fn legacy_without_any_layout_over_uio() {
    let device = "virtio-net-pci,disable-modern=on,disable-legacy=off,any_layout=off,mrg_rxbuf=off,event_idx=off";
    over_uio(device, "(uio), legacy with split queues");
}

#[test]
fn modern_split_over_vfio() {
    over_vfio("disable-legacy=on", "(vfio), modern with split queues");
}

#[test]
fn modern_packed_over_vfio() {
    over_vfio("disable-legacy=on,packed=on", "(vfio), modern with packed queues");
}
