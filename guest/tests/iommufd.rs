//! Tests of vfio's newer interface: a device file for each card, and address spaces of an iommufd.

use linerate_guest::{A, B, Kernel, Machine, check_forwarding, check_traffic};
use serde_json::json;

#[test]
fn cards_are_used_over_their_device_files() {
    let mut machine = Machine::new().iommu().kernel(Kernel::Iommufd);
    let virtio = "virtio-net-pci,disable-legacy=on,iommu_platform=on";
    let (a, b) = (machine.card("igb"), machine.card(virtio));
    let mut guest = machine.boot();
    guest.run("modprobe vfio-pci");
    guest.run(&format!("linerate bind {A} {B}"));
    let files = guest.run("ls /dev/vfio/devices");
    assert_eq!(files.split_whitespace().count(), 2, "{files}");
    // Both cards share one region in one address space, so packets pass between them without a copy.
    check_traffic(&mut guest, &a, &b);
    let output = guest.run(&format!("linerate fwd {A} {B} --seconds 0.1 --json 2>&1"));
    assert!(output.contains("Intel 82576 (vfio, iommufd)") && output.contains("VirtIO (vfio, iommufd)"), "{output}");

    // A second process is refused, and interrupts arrive.
    let forwarder = guest.start_linerate(&format!("fwd {A} {B} --wait interrupt"), 2);
    let refused = guest.refused(&format!("linerate sink {A}"));
    assert!(refused.contains("another process has it open"), "{refused}");
    check_forwarding(&a, &b, 1000, 1514);
    let summary = guest.interrupt(forwarder).summary();
    assert_eq!(summary["ports"][1]["tx_packets"], json!(1000));

    // An ordinary user needs access to the card's file and to /dev/iommu.
    guest.run("chown user /dev/vfio/devices/* /dev/iommu");
    let forwarder = guest.start(&format!("(ulimit -l 262144; exec su user -c \"exec linerate fwd {A} {B} --json\")"));
    guest.wait_for(&forwarder, &format!("{B}.*link up"));
    check_forwarding(&b, &a, 1000, 1514);
    guest.interrupt(forwarder).summary();
}
