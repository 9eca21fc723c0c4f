//! vfio-user: a PCI device that a process serves over a unix socket.
//!
//! - `message`: the protocol
//! - `server`: serving a [`Function`]
//! - `client`: [`VfioUser`], a device that somebody serves, as any other of [`pci`](super)
//!
//! The crate `vfio_user` (0.1.7) has both sides, too. It believes what the other side says: lengths become
//! allocations, errors are answered to what must not be answered, and a client takes no notice of a server's.

mod client;
mod message;
mod server;

pub use client::{MessageBar, VfioUser};
pub use server::{Function, Kind, Server};

#[cfg(fuzzing)]
pub(crate) use message::{
    Connection, DmaMap, DmaUnmap, MAP_READ, MAP_WRITE, RegionAccess, SetInterrupts, UNMAP_ALL, Version, command,
};
#[cfg(fuzzing)]
pub(crate) use server::InLine;
