//! The building blocks of linerate's ports: slots, regions, batches, queues and events.
//!
//! Programs use the crate `linerate`, which contains the ports and re-exports the parts of this crate that programs
//! need. Implementing a new kind of port requires this crate:
//!
//! - [`port`]: the traits [`Device`](port::Device), [`Receive`](port::Receive) and [`Transmit`](port::Transmit), and
//!   [`PortKind`](port::PortKind), which declares a kind of port
//! - [`slot`], [`batch`], [`packet`]: 8-byte handles of packet buffers, and batches of packets between queues
//! - [`memory`]: regions, pools, and memory shared with a device or another process
//! - [`offload`]: pending checksums and segmentation; [`metadata`]: checksums, hashes and tags that a port reports
//! - [`event`], [`ring`]: events, timeouts and handover between threads; ring indices shared by two sides
//! - [`unix_socket`]: Unix sockets for protocols that pass file descriptors
//! - [`filter`]: packet filters; [`error`]: errors with remedies
//!
//! Functions that can corrupt memory when misused are `unsafe`; their `# Safety` states the caller's obligations.

#![warn(rustdoc::broken_intra_doc_links)]

pub mod batch;
pub mod descriptor;
pub mod error;
pub mod event;
pub mod filter;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod memory;
pub mod metadata;
pub mod offload;
pub mod packet;
pub mod port;
pub mod ring;
pub mod slot;
pub mod unix_socket;

pub use batch::{Batch, Fifo, Store, Stored, Taken};
pub use error::{Error, ErrorKind, Remedy, Result};
pub use packet::{Packet, Packets, SlotsMut};
pub use slot::{HEADROOM, Slot};
