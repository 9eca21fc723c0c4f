//! vfio-user: a PCI device served by a process over a unix socket.
//!
//! - `message`: the protocol
//! - `server`: serving a [`Function`]
//! - `client`: [`VfioUser`], a served device that is used like any other of [`pci`](super)
//!
//! The crate `vfio_user` (0.1.7) also has both sides, but trusts its peer: lengths become allocations, messages that
//! must not be answered get error replies, and the client ignores the server's errors.

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
pub use server::{Function, Kind, Server};
