//! The harness itself.
use linerate_guest::{Machine, cross};

#[test]
fn igb() {
    let t = std::time::Instant::now();
    let mut machine = Machine::new().iommu();
    let a = machine.card("igb");
    let b = machine.card("igb");
    let mut guest = machine.boot();
    println!("{:?}", t.elapsed());
    println!("{}", guest.run("modprobe -a igb vfio-pci vfio_iommu_type1; linerate ports"));
    println!("{}", guest.run("linerate bind 0000:01:00.0 0000:02:00.0"));
    println!("{}", guest.run("linerate ports"));
    println!("{:?}", t.elapsed());
    let fwd = guest.start("linerate fwd 0000:01:00.0 0000:02:00.0 --json");
    guest.wait_for(&fwd, "seconds");
    println!("{:?}", t.elapsed());
    cross(&a, &b, 1000, 1514);
    println!("{:?}", t.elapsed());
    cross(&b, &a, 1000, 1514);
    println!("{:?}", t.elapsed());
    guest.signal(&fwd, "INT");
    println!("{:?}", guest.wait(fwd));
    println!("{}", guest.run("linerate unbind 0000:01:00.0 0000:02:00.0; linerate ports"));
    println!("{:?}", t.elapsed());
}
