//! netmap's ports in user space: rings, pipes, the VALE switch, monitors, and a server that shares ports with other
//! processes.
//!
//! - [`netmap`]: rings of slots, pipes, monitors, the switch; the switch's queues are `netmap/vale/port.rs`
//! - [`share`]: ports for other processes; a packet's way between processes is `share/server/pump.rs`
//! - [`VALE`], [`PIPE`], [`MONITOR`], [`NETMAP`]: the kinds of ports

#![warn(rustdoc::broken_intra_doc_links)]

pub mod netmap;
mod port_kinds;
pub mod share;

pub use port_kinds::{MONITOR, NETMAP, PIPE, VALE};
