//! What both ends of a connection know: messages, and the layout of the memory that they share.
//!
//! - `socket`: the folder of the sockets, and the checks by which server and client identify each other
//! - `message`: requests and replies, and the connection that carries them
//! - `area`: the memory for ports, with its layout
//! - `ring`: a ring in shared memory, from both ends
//! - `mapping`: memory that is shared with another process

pub mod connection;
pub mod errno;
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
