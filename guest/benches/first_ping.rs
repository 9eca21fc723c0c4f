//! Measures the time from the start of a guest to its first ping over a model. It includes QEMU, the kernel, Linux's
//! driver, the link, and the reply of the host's Linux at a TAP interface in a namespace. The guest's processor is
//! emulated.
//!
//! `cargo bench -p linerate-guest --bench first_ping`

use std::time::Instant;

use linerate::Options;
use linerate::sim82599::{Card, CardKind, PortWire};
use linerate_guest::{Machine, Namespace, Served};

fn main() {
    println!("{:<10} {:>8} {:>8} {:>8} {:>8}", "seconds to", "shell", "driver", "link", "ping");
    for kind in [CardKind::X82599Kx4, CardKind::X82599Sfp, CardKind::X540, CardKind::X550] {
        let namespace = Namespace::new("ping");
        let far = namespace.inside(|| Options::default().open_wire_port("tap:far")).expect("a TAP interface");
        let tap = PortWire::new(far);
        namespace.run("ip addr add 10.84.0.2/24 dev far");
        let served = Served::new(vec![Card::of_kind(kind, 0, "a", Box::new(tap))]);
        let mut machine = Machine::new();
        served.plug(&mut machine, &["a"]);
        // Build before the clock starts.
        machine.prepare();
        let start = Instant::now();
        let seconds = || format!("{:>8.1}", start.elapsed().as_secs_f32());
        let mut guest = machine.boot();
        let shell = seconds();
        guest.run("modprobe ixgbe");
        let driver = seconds();
        guest.run("ip addr add 10.84.0.1/24 dev eth0 && ip link set eth0 up");
        guest.wait_for_link("", "eth0");
        let link = seconds();
        guest.run("ping -c 1 -W 5 10.84.0.2");
        println!("{:<10} {shell} {driver} {link} {}", kind.to_string(), seconds());
        served.assert_no_breaches("Linux");
    }
}
