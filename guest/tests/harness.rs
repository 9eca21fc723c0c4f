//! The harness itself notices what goes wrong in a guest.

use linerate_guest::{A, Machine};

#[test]
#[should_panic(expected = "Kernel panic")]
fn a_kernel_that_panics_fails_the_test() {
    Machine::new().boot().run("echo c >/proc/sysrq-trigger");
}

#[test]
#[should_panic(expected = "the guest's kernel is in trouble (DMAR: [DMA")]
fn a_fault_of_the_iommu_fails_the_test() {
    let mut machine = Machine::new().iommu();
    machine.card("igb");
    let mut guest = machine.boot();
    guest.run(&format!("modprobe -a vfio-pci vfio_iommu_type1; linerate bind {A}"));
    guest.attempt(&format!("stray {A}"));
}

#[test]
#[should_panic(expected = "`false` ended with 1")]
fn a_command_that_fails_fails_the_test() {
    Machine::new().boot().run("false");
}
