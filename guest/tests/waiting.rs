//! Tests of sleeping until an interrupt: MSI-X over vfio, and the interrupt line over uio.

use linerate_guest::{A, B, Guest, Machine, Program, Wire, check_forwarding, send_frames};
use serde_json::json;

/// Returns the processor time that all threads of the program have used, in clock ticks (1/100 s).
fn ticks(guest: &mut Guest, program: &Program) -> u64 {
    let child = program.child(guest);
    let stat = guest.run(&format!("cat /proc/{child}/stat"));
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Returns the interrupts that the guest's kernel has counted for vfio or uio.
fn interrupts(guest: &mut Guest) -> u64 {
    let lines = guest.run("grep -E 'vfio-msix|uio_pci_generic' /proc/interrupts");
    lines.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// One program waits for interrupts, the other adaptively. Each receives one frame, nothing for 4 seconds, and one
/// more frame. Then a forwarder receives bursts with pauses between them.
fn sleeps_and_wakes(guest: &mut Guest, a: &Wire, b: &Wire) {
    let interrupt = guest.start_linerate(&format!("sink {A} --wait interrupt --count 2"), 1);
    let adaptive = guest.start_linerate(&format!("sink {B} --wait adaptive --count 2"), 1);
    // An interrupt cause that is not cleared would keep the programs awake from here on.
    [a, b].into_iter().for_each(|wire| send_frames(wire, 1, 64));
    let before = [ticks(guest, &interrupt), ticks(guest, &adaptive)];
    guest.run("sleep 4");
    for (mode, (program, before)) in ["interrupt", "adaptive"].iter().zip([&interrupt, &adaptive].iter().zip(before)) {
        let used = (ticks(guest, program) - before) * 10 / 4;
        println!("--wait {mode}: {used} ms of each idle second");
        // A program that does not sleep uses 1000 ms. On a busy host, the guest also counts time that other processes
        // used.
        assert!(used < 200, "--wait {mode} used {used} ms of each idle second");
    }
    for (wire, program) in [(a, interrupt), (b, adaptive)] {
        send_frames(wire, 1, 64);
        let summary = guest.wait(program).summary();
        assert_eq!(summary["ports"][0]["rx_packets"], json!(2), "{summary}");
    }
    bursts_and_pauses(guest, a, b, "");
}

fn bursts_and_pauses(guest: &mut Guest, a: &Wire, b: &Wire, options: &str) {
    for mode in ["adaptive", "interrupt"] {
        let forwarder = guest.start_linerate(&format!("fwd {A} {B} --wait {mode} {options}"), 2);
        // Each burst waits for all its frames, so that there is a pause before the next.
        for burst in (0..8).map(|n| 1 << n).cycle().take(80) {
            check_forwarding(a, b, burst, 1514);
            check_forwarding(b, a, burst, 60);
        }
        // A sleeping thread also wakes up periodically; the count shows that interrupts woke it here.
        if mode == "interrupt" {
            let count = interrupts(guest);
            assert!(count >= 80, "{count} interrupts for 80 bursts");
        }
        let summary = guest.interrupt(forwarder).summary();
        assert_eq!((&summary["ports"][0]["drops"], &summary["ports"][1]["drops"]), (&json!({}), &json!({})));
    }
}

fn over_vfio(device: &str) {
    let mut machine = Machine::new().iommu();
    let (a, b) = (machine.card(device), machine.card(device));
    let mut guest = machine.boot();
    guest.run("modprobe -a vfio-pci vfio_iommu_type1");
    guest.run(&format!("linerate bind {A} {B}"));
    sleeps_and_wakes(&mut guest, &a, &b);
}

fn over_uio(device: &str) {
    let mut machine = Machine::new();
    let (a, b) = (machine.card(device), machine.card(device));
    let mut guest = machine.boot();
    guest.run("modprobe uio_pci_generic; echo 64 > /proc/sys/vm/nr_hugepages");
    guest.run(&format!("linerate bind --uio {A} {B}"));
    let refused = guest.refused(&format!("linerate fwd {A} {B} --wait interrupt --queues 2"));
    assert!(refused.contains("one interrupt, for one queue"), "{refused}");
    sleeps_and_wakes(&mut guest, &a, &b);
}

#[test]
fn igb_over_vfio() {
    over_vfio("igb");
}

#[test]
fn e1000e_over_vfio() {
    over_vfio("e1000e");
}

#[test]
fn virtio_over_vfio() {
    over_vfio("virtio-net-pci,disable-legacy=on,iommu_platform=on");
}

#[test]
fn igb_over_uio() {
    over_uio("igb");
}

#[test]
fn e1000e_over_uio() {
    over_uio("e1000e");
}

/// Without MSI-X, the device uses the interrupt line. Its doorbells are I/O ports, and it has no control queue.
#[test]
fn modern_virtio_without_vectors_over_uio() {
    over_uio("virtio-net-pci,disable-legacy=on,vectors=0,modern-pio-notify=on,ctrl_vq=off");
}

#[test]
fn legacy_virtio_over_uio() {
    over_uio("virtio-net-pci,disable-modern=on,disable-legacy=off");
}
