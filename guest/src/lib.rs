//! Tests in guests: Linux under QEMU, with devices and an IOMMU that others wrote.
//!
//! A test says what machine it wants, boots it, types commands, and plays the other end of its
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
//! - `machine`: what QEMU is asked for; finds kernel and program, boots
//! - `initramfs`: what the guest finds in its root folder; `../init` is its first process
//! - `guest`: a running guest: commands, background programs, what its kernel said
//! - `measured`: what iperf3 and ping of a guest measure
//! - `wire`: the other end of a card's cable, where the test sends and receives every byte
//! - `namespace`: Linux itself on this side of the cards
//! - `back_end`: back ends of vhost-user that others wrote: passt, Open vSwitch
//! - `traffic`: what it sends and receives there
//! - `scenario`: what every card must be able to do
//! - `served`: cards of ours in the guest, served by the test itself
//!
//! Whatever goes wrong ends the test with what the guest's kernel said last: an oops, a fault of the
//! IOMMU that the test did not expect, a command that failed, or silence. `../prepare` brings QEMU
//! and the kernels. Nothing here sleeps: every wait is for an event, with a bound.

mod back_end;
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
pub use guest::{Guest, Outcome, Program};
pub use machine::{Kernel, Machine, Memory, Qemu, linerate};
pub use namespace::Namespace;
pub use scenario::{A, B, does_all, forwards_chains, forwards_flows, obeys};
pub use served::{Counted, Served, has_reason, write_down};
pub use traffic::{cross, cross_flows, expect_generated, hash_of, offer};
pub use wire::Wire;
