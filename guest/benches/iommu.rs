//! Measures the cost of an IOMMU for a sender, by page size: a small version of the ixy paper's figure 9. Card and
//! IOMMU are QEMU's, so absolute times are not meaningful. But translation has a cost there too, and larger pages
//! reduce it.
//!
//! `cargo bench -p linerate-guest --bench iommu`

use linerate_guest::{A, Guest, Machine};

fn main() {
    println!("gen on an emulated 82576, 64-byte packets");
    println!("{:<34} {:>10} {:>10}", "", "kpps", "ratio");
    let mut plain = Machine::new();
    plain.card_at_hub("igb", 0);
    let mut guest = plain.boot();
    guest.run("modprobe igb; echo 64 > /proc/sys/vm/nr_hugepages");
    guest.run(&format!("linerate bind --uio {A}"));
    let without = best(&mut guest, "2M");
    println!("{:<34} {:>10.1} {:>10.2}", "uio, no IOMMU, pages of 2 MiB", without, 1.0);
    drop(guest);
    let mut behind = Machine::new().iommu();
    behind.card_at_hub("igb", 0);
    let mut guest = behind.boot();
    guest.run("modprobe -a igb vfio-pci vfio_iommu_type1; echo 64 > /proc/sys/vm/nr_hugepages");
    guest.run(&format!("linerate bind {A}"));
    for (name, pages) in [("2 MiB", "2M"), ("4 KiB", "ordinary")] {
        let rate = best(&mut guest, pages);
        println!("{:<34} {rate:>10.1} {:>10.2}", format!("vfio, IOMMU, pages of {name}"), rate / without);
    }
}

/// Returns thousands of packets per second, the best of three runs.
fn best(guest: &mut Guest, pages: &str) -> f64 {
    let run = |guest: &mut Guest| {
        let command = format!("linerate gen {A} --pages {pages} --seconds 3 --json");
        guest.attempt(&command).summary()["mpps"].as_f64().unwrap_or(0.0) * 1000.0
    };
    (0..3).map(|_| run(guest)).fold(0.0, f64::max)
}
