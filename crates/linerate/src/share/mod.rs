//! Ports for other processes: the server that has them, and the programs that use them.
//!
//! The server makes memory for each port of a program, in netmap's form; packets pass through rings in that memory. No
//! process can reach another one's packets, except through a pipe, whose two ends share memory, which is what makes it free
//! of copies. A program's descriptor of a port is its end of a connection to the server, and means the same in whichever
//! process it is: all state of a port is in its memory.
//!
//! - `protocol`: what both ends know: messages, sockets, rings in shared memory
//! - `client`: the program's end: [`Client`], [`SharedPort`], [`ServedPort`]
//! - `server`: the server's end: [`Server`]; a packet's way between a program's rings and a port is `server/pump.rs`
//!
//! It knows ports, and opens them by a function that it is given; a process that dies takes nothing with it but its own.

mod client;
mod protocol;
mod server;

pub use client::open::{adopt, open_by};
pub use client::requests::{Client, memory_of};
pub use client::served_port::ServedPort;
pub use client::shared_port::{SharedPort, is_served};
pub use protocol::errno::errno;
pub use protocol::layout::{Objects, Offsets, Placed, Plan, Rings};
pub use protocol::mapping::{Buffers, Memory};
pub use protocol::message::{Choice, PortState, Wanted, Which};
pub use protocol::name::{base, socket_of};
pub use protocol::ring::{Place, STATE};
pub use protocol::socket::{ANY, folder, own_socket, server_of};
#[cfg(fuzzing)]
pub(crate) use server::fuzz;
pub use server::{Open, Server};
