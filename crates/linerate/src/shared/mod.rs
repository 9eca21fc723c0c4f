//! Ports for other processes: who serves them, and who uses them.
//!
//! A program makes memory for its ports, in netmap's form, and hands it to who serves them, over a socket; packets then
//! pass through rings in that memory. No process can reach another one's packets, except through a pipe: its two ends share
//! memory, which is what makes it free of copies.
//!
//! - `server`: [`Server`]: sockets, connections, what they ask for
//! - `work`: a packet's way between a program's rings and a port, top-down
//! - `client`: [`Client`]: asking who serves ports
//! - `shared_port`: [`SharedPort`]: a port of theirs, as netmap has it; `sides`: what a sync does to its rings
//! - `served_port`: [`ServedPort`]: the same as a port of ours
//! - `ring`: a ring in shared memory, from both sides; `area`: a program's memory and what of it is free
//! - `forward`: packets that pass between a card and the host by a mark; `indirect`: packets that are in no buffer
//! - `shadow`: what passes a pipe between processes, for its monitors
//! - `socket`: where the sockets are, and how both sides make sure of each other
//! - `memory`: memory that two processes have; `message`: what goes over the socket
//!
//! It knows ports and how they are opened by whom starts it; a process that dies takes nothing with it but its own.

mod area;
mod client;
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

pub use area::{API, Area, Objects, Offsets, Placed, Plan, Rings};
pub use client::{ANY, Client};
pub use memory::{Buffers, Memory};
pub use message::{PortState, Wanted, Which};
pub use ring::Place;
pub use served_port::ServedPort;
#[cfg(fuzzing)]
pub(crate) use server::fuzz;
pub use server::{Open, Server, base, errno, socket_of};
pub use shared_port::SharedPort;
pub use socket::folder;

/// What a thread that has panicked has left is as good as what any other has: each change is made at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
