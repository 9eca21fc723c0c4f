//! Sharing with Linux: ports on the kernel's own interfaces.
//!
//! - [`Xdp`]: AF_XDP sockets, which take the flows that are wanted and leave the rest; read `xdp/queue.rs` next
//! - [`Interface`]: an interface, and how it is now
//! - `bpf`, `instructions`: loading a program into the kernel, and writing it
//!
//! It knows memory, ports and filters, and no card.

mod bpf;
mod instructions;
mod interface;
mod xdp;

pub use interface::Interface;
pub use xdp::{Copying, Xdp, XdpOptions};
