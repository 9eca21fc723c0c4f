//! The harness itself.
use linerate_guest::Machine;

#[test]
fn boots() {
    let t = std::time::Instant::now();
    let mut machine = Machine::new().iommu();
    let _wire = machine.card("igb");
    let mut guest = machine.boot();
    println!("{:?}", t.elapsed());
    println!("{}", guest.run("uname -a; ls /sys/kernel/iommu_groups; free; modprobe vfio-pci; linerate ports"));
    println!("{:?}", t.elapsed());
}
