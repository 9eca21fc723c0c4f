//! vfio-user: a PCI device that a process serves over a Unix socket.
//!
//! - `message`: the protocol
//! - `server`: serves a [`Function`]
//! - `client`: [`VfioUser`], a served device, used like any other [PCI device](crate::pci)
//!
//! The crate `vfio_user` (0.1.7) also has both sides, but trusts its peer: lengths become allocations. It also sends
//! error replies to messages that must not be answered, and its client ignores the server's errors.

mod client;
mod message;
mod server;

pub use client::{MessageBar, VfioUser};
#[cfg(fuzzing)]
pub use message::{
    Connection, DmaMap, DmaUnmap, MAP_READ, MAP_WRITE, RegionAccess, SetInterrupts, UNMAP_ALL, Version, command,
};
#[cfg(fuzzing)]
pub use server::InLine;
pub use server::{Function, InterruptKind, Server};
