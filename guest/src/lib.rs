//! Tests in guests: Linux under QEMU, with third-party devices and a third-party IOMMU.
//!
//! A test configures a machine, boots it, runs commands in it, and acts as the other end of its
//! cards' cables:
//!
//! ```no_run
//! use linerate_guest::Machine;
//!
//! let mut machine = Machine::new().iommu();
//! let wire = machine.card("igb");
//! let mut guest = machine.boot();
//! guest.run("modprobe vfio-pci");
//! guest.run("linerate bind 0000:01:00.0");
//! let sink = guest.start("linerate sink 0000:01:00.0 --count 1000 --json");
//! wire.send(&[0; 60]);
//! guest.wait(sink);
//! ```
//!
//! - `machine`: the configuration and boot of a virtual machine
//! - `initramfs`: the guest's root folder; `../init` is its first process
//! - `guest`: a running guest: commands, background programs, kernel messages
//! - `measured`: measurements with iperf3 and ping in a guest
//! - `wire`: the other end of a card's cable, where the test sends and receives every byte
//! - `namespace`: Linux on the host side of the cards
//! - `back_end`: third-party vhost-user back ends: passt, Open vSwitch
//! - `traffic`: the frames that a test sends and checks; `flows`: frames with published hashes
//! - `scenario`: the checks that every card must pass
//! - `served`: models as cards in the guest, served by the test
//!
//! Each failure ends the test with the last messages of the guest's kernel: an oops, an unexpected
//! IOMMU fault, a failed command, or a guest that does not answer. `../prepare` provides QEMU and
//! the kernels. The harness never sleeps: each wait is for an event, with a time limit.

mod back_end;
mod flows;
mod guest;
mod initramfs;
mod machine;
mod measured;
mod namespace;
mod scenario;
mod served;
mod traffic;
mod wire;

pub use back_end::{OpenVswitch, Passt};
pub use flows::{FLOWS, Flow, OTHER, TCP, UDP, frame_of};
pub use guest::{Guest, Outcome, Program};
pub use machine::{Kernel, Machine, Memory, Qemu, linerate};
pub use namespace::Namespace;
pub use scenario::{
    A, Abilities, B, check_control, check_exchange, check_forwarded_chains, check_forwarded_flows, check_traffic,
};
pub use served::{Counted, Served, has_reason, record_registers};
pub use traffic::{check_flow_forwarding, check_forwarding, expect_generated, hash_of, send_frames};
pub use wire::Wire;
