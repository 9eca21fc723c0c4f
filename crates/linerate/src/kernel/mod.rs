//! Sharing with Linux: ports on the kernel's own interfaces.
//!
//! - [`Xdp`]: AF_XDP sockets, which take the flows that are wanted and leave the rest; read `xdp/queue.rs` next
//! - [`PacketPort`]: AF_PACKET, a copy of all that an interface receives
//! - [`Tap`]: an interface whose other end is the program
//! - [`open_stack`]: Linux itself behind an interface, cut off from it
//! - [`KernelPort`]: the control side of all of them
//! - [`Interface`]: an interface, and how it is now
//! - `bpf`, `instructions`: loading a program into the kernel, and writing it
//! - `option`: socket options that no crate has
//! - `steering`: a card's own filters, and taking them back
//!
//! It knows memory, ports and filters, and no card.

mod bpf;
mod host;
mod instructions;
mod interface;
mod option;
mod packet;
mod port;
mod steering;
mod tap;
mod xdp;

pub use host::open_stack;
pub use interface::Interface;
pub use packet::PacketPort;
pub use port::KernelPort;
pub use steering::{LeftBehind, left_behind};
pub use tap::Tap;
pub use xdp::{Copying, Steer, Xdp, XdpOptions};

/// Compiles a filter as an XDP program does, for the fuzz target of filters.
#[cfg(fuzzing)]
pub(crate) fn fuzz_program(filter: &crate::filter::Filter) -> Option<usize> {
    xdp::fuzz_program(filter)
}
