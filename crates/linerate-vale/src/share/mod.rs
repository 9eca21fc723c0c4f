//! Ports for other processes: the server that opens the ports, and the clients that use them.
//!
//! The server creates memory for each port of a client, in netmap's layout. Packets pass through rings in that memory.
//! A client cannot access another client's packets, except through a pipe, whose two ends share memory to avoid a copy.
//! A client's file descriptor of a port is its end of a connection to the server. It works in every process, because
//! all state of a port is in the shared memory.
//!
//! - `protocol`: used by both ends: messages, sockets, rings in shared memory
//! - `client`: the client's end: [`Client`], [`ServedPort`]
//! - `server`: the server's end: [`Server`]; `server/pump.rs` moves packets between a client's rings and a port
//!
//! Client and server use the protocol, but not each other. The server opens ports through a function that its creator
//! passes in. A process that exits closes only its own ports.

mod client;
mod protocol;
mod server;

pub use client::requests::Client;
pub use client::served_port::ServedPort;
pub use protocol::layout::RingCounts;
pub use protocol::message::{ClusterRequest, OpenRequest, PortState, RingSelection};
pub use protocol::name::{base, socket_of};
pub use protocol::socket::{ANY, folder};
#[cfg(fuzzing)]
pub use server::fuzz;
pub use server::{Open, Server};

/// Additional items for `crates/linerate-netmap`, the shared object for netmap's programs. They are not public API and
/// may change in any version.
#[doc(hidden)]
pub mod netmap_object {
    pub use super::client::open::{adopt, open_by};
    pub use super::client::requests::memory_of;
    pub use super::client::shared_port::{SharedPort, is_served};
    pub use super::protocol::layout::{Offsets, Plan};
    pub use super::protocol::message::MemoryChoice;
    pub use super::protocol::ring::{RingAt, STATE};
    pub use super::protocol::socket::{own_socket, server_of};
}
