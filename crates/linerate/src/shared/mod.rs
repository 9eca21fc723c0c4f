//! Ports for other processes: the server that has them, and the programs that use them.
//!
//! The server makes memory for each port of a program, in netmap's form; packets pass through rings in that memory. No
//! process can reach another one's packets, except through a pipe, whose two ends share memory, which is what makes it free
//! of copies. A program's descriptor of a port is its end of a connection to the server, and means the same in whichever
//! process it is: all state of a port is in its memory.
//!
//! - `server`: [`Server`]: sockets, connections, what they ask for
//! - `work`: a packet's way between a program's rings and a port, top-down; `delivery`: its last part, into a receive ring
//! - `client`: [`Client`]: asks the server
//! - `shared_port`: [`SharedPort`]: a port of the server's, as netmap has it; `sides`: what a sync does to its rings
//! - `served_port`: [`ServedPort`]: the same as a port of ours
//! - `ring`: a ring in shared memory, from both sides; `area`: a port's memory and what of it is free
//! - `forward`: packets that pass between a card and the host by a mark; `indirect`: packets that are in no buffer
//! - `shadow`: what passes a pipe between processes, for its monitors
//! - `socket`: where the sockets are, and how both sides make sure of each other
//! - `memory`: memory that two processes have; `message`: what goes over the socket
//!
//! It knows ports, and opens them by a function that it is given; a process that dies takes nothing with it but its own.

mod area;
mod client;
mod delivery;
mod forward;
mod indirect;
mod memory;
mod message;
mod ring;
mod served_port;
mod server;
mod shadow;
mod shared_port;
mod sides;
mod socket;
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use area::{API, Objects, Offsets, Placed, Plan, Rings};
pub use client::{ANY, Client, adopt, memory_of, open_by, server_of};
pub use memory::{Buffers, Memory};
pub use message::{Choice, Opened, PortState, Wanted, Which};
pub use ring::{Place, STATE};
pub use served_port::ServedPort;
#[cfg(fuzzing)]
pub(crate) use server::fuzz;
pub use server::{Open, Server, base, errno, socket_of};
pub use shared_port::{SharedPort, is_served};
pub use socket::{folder, own_socket};

/// What a thread that has panicked has left is as good as what any other has: each change is made at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
