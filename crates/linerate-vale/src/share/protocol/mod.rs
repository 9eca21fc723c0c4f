//! The protocol between client and server: messages, and the layout of the shared memory.
//!
//! - `name`: names of ports and their sockets; `socket`: the folder of the sockets, and how server and client verify
//!   each other
//! - `connection`: messages, descriptors and tokens over a socket; `message`: requests and replies
//! - `mapping`: memory shared with another process; `layout`: where ports, rings and buffers are in it
//! - `ring`: a ring in shared memory, from both ends; `pipe`: how slots of a pipe return to their sender

pub mod connection;
pub mod layout;
pub mod mapping;
pub mod message;
pub mod name;
pub mod pipe;
pub mod ring;
pub mod socket;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, ignoring poison: no critical section leaves inconsistent data.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
