//! Ports for other processes: the server that opens them, and the clients that use them.
//!
//! The server makes memory for each port of a client, in netmap's form. Packets pass through rings in that memory. A
//! client cannot reach another client's packets, except through a pipe: its two ends share memory, so that packets pass
//! without a copy. A client's descriptor of a port is its end of a connection to the server. It means the same in every
//! process, since all state of a port is in its memory.
//!
//! - `protocol`: what both ends know: messages, sockets, rings in shared memory
//! - `client`: the client's end: [`Client`], [`ServedPort`]
//! - `server`: the server's end: [`Server`]; a packet's way between a client's rings and a port is `server/pump.rs`
//!
//! Client and server know the protocol, and not each other. The server opens ports by a function that it is given. A
//! process that ends closes only its own ports.

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

/// Items that the shared object for netmap's programs needs beside the above (`crates/linerate-netmap`). They are no
/// public API and may change in any version.
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
