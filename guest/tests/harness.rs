//! Tests that the harness detects faults in a guest.

use linerate_guest::{A, Machine, has_reason};

#[test]
#[should_panic(expected = "Kernel panic")]
fn a_kernel_that_panics_fails_the_test() {
    Machine::new().boot().run("echo c >/proc/sysrq-trigger");
}

#[test]
#[should_panic(expected = "QEMU did not start (exit status: 1)")]
fn a_machine_that_does_not_start_fails_the_test() {
    let mut machine = Machine::new();
    machine.arguments(&["-none-such"]);
    machine.boot();
}

#[test]
#[should_panic(expected = "QEMU's monitor")]
fn a_machine_that_ends_fails_the_test() {
    let mut guest = Machine::new().boot();
    guest.monitor("quit", serde_json::json!({}));
    guest.monitor("query-status", serde_json::json!({}));
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

/// The library writes every register that Linux or DPDK writes, or `guest/reasons` has a reason why not.
#[test]
fn each_register_that_others_write_is_written_or_has_a_reason() {
    let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/registers.md")).unwrap();
    let mut unexplained = Vec::new();
    for row in table.lines().take_while(|line| !line.starts_with("## ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, _, _, _, linux, dpdk, ours, _] = cells[..] else { continue };
        let written = |letters: &str| letters.contains('w') && letters.len() <= 2;
        if (written(linux) || written(dpdk)) && !written(ours) && !has_reason(name) {
            unexplained.push(name);
        }
    }
    assert!(unexplained.is_empty(), "written by others, not by this library, without a reason: {unexplained:?}");
}
