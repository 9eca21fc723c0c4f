//! Ports for other processes: the server that has them, and the programs that use them.
//!
//! The server makes memory for each port of a program, in netmap's form; packets pass through rings in that memory. No
//! process can reach another one's packets, except through a pipe, whose two ends share memory, which is what makes it free
//! of copies. A program's descriptor of a port is its end of a connection to the server, and means the same in whichever
//! process it is: all state of a port is in its memory.
//!
//! - `protocol`: what both ends know: messages, sockets, rings in shared memory
//! - `client`: the program's end: [`Client`], [`ServedPort`]
//! - `server`: the server's end: [`Server`]; a packet's way between a program's rings and a port is `server/pump.rs`
//!
//! It knows ports, and opens them by a function that it is given; a process that dies takes nothing with it but its own.

mod client;
mod protocol;
mod server;

pub use client::requests::Client;
pub use client::served_port::ServedPort;
pub use protocol::layout::RingCounts;
pub use protocol::message::{OpenRequest, PortState, RingSelection};
pub use protocol::name::{base, socket_of};
pub use protocol::socket::{ANY, folder};
#[cfg(fuzzing)]
pub(crate) use server::fuzz;
pub use server::{Open, Server};

/// What the shared object for netmap's programs needs beside the above (`crates/linerate-netmap`). It is no public API: it may
/// change in any version.
#[doc(hidden)]
pub mod netmap_object {
    pub use super::client::open::{adopt, open_by};
    pub use super::client::requests::memory_of;
    pub use super::client::shared_port::{SharedPort, is_served};
    pub use super::protocol::errno::errno;
    pub use super::protocol::layout::{Offsets, Plan};
    pub use super::protocol::message::MemoryChoice;
    pub use super::protocol::ring::{RingAt, STATE};
    pub use super::protocol::socket::{own_socket, server_of};
}
