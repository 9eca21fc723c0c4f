//! Ports on the kernel's interfaces, shared with Linux.
//!
//! - [`Xdp`]: AF_XDP sockets, which receive the selected flows and leave the rest to Linux; read `xdp/queue.rs` next
//! - [`PacketPort`]: AF_PACKET, a copy of everything that an interface receives
//! - [`Tap`]: an interface whose other end is the program
//! - [`open_stack`]: the kernel's network stack, detached from an interface
//! - [`KernelPort`]: the control side of all these ports
//! - [`Interface`]: an interface and its current state
//! - `bpf`, `instructions`, `btf`: loading a BPF program, assembling it, and the kernel's functions that it calls
//! - `flow`: the option `flow=`, which selects a port's packets
//! - `interface_drops`: packets that an interface drops on transmit; `netlink`: requests to the kernel
//! - `packet_socket`: the addresses of packet sockets; `option`: socket options that no crate covers
//! - `steering`: a card's flow rules, and their removal
//!
//! This crate uses memory, ports and filters, but no cards.

mod bpf;
mod btf;
mod capabilities;
mod flow;
mod host;
mod instructions;
mod interface;
mod interface_drops;
mod netlink;
mod option;
mod packet;
mod packet_socket;
mod port;
mod steering;
mod tap;
mod xdp;

pub use host::{STACK, open_stack};
pub use interface::Interface;
pub use packet::{PACKET, PacketPort};
pub use port::KernelPort;
pub use steering::{LeftBehind, left_behind};
pub use tap::{HOST, TAP, Tap};
pub use xdp::{Copying, Steer, XDP, Xdp, XdpOptions};

/// Compiles a filter as an XDP program does, for the fuzz target of filters.
#[cfg(fuzzing)]
pub fn fuzz_program(filter: &linerate_core::filter::Filter) -> Option<usize> {
    xdp::fuzz_program(filter)
}
