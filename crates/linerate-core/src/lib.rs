//! What linerate's ports are made of, for those who write one: slots, regions, batches, queues, events.
//!
//! Programs use the crate `linerate`, which has the ports themselves and passes on from here what they need. A kind of port needs
//! this crate:
//!
//! - [`port`]: the traits [`Device`](port::Device), [`Receive`](port::Receive) and [`Transmit`](port::Transmit), and how a kind is
//!   declared, [`PortKind`](port::PortKind)
//! - [`slot`], [`batch`], [`packet`]: the 8 bytes that carry a packet, and packets on their way between queues
//! - [`memory`]: regions, pools, and memory that a device or another process writes
//! - [`offload`]: checksums and segmentation that are left to do
//! - [`event`], [`ring`]: events, time limits, hand-overs between threads; indices of a ring between two sides
//! - [`unix_socket`]: sockets of protocols whose messages carry descriptors
//! - [`filter`]: packets by what is in them; [`error`]: errors, with their remedies
//!
//! Functions that can corrupt memory when misused are `unsafe`; their `# Safety` states the caller's obligations.

#![warn(rustdoc::broken_intra_doc_links)]

pub mod batch;
pub mod error;
pub mod event;
pub mod filter;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod memory;
pub mod offload;
pub mod packet;
pub mod port;
pub mod ring;
pub mod slot;
pub mod unix_socket;

pub use batch::{Batch, Taken};
pub use error::{Error, ErrorKind, Remedy, Result};
pub use packet::{Packet, Packets, SlotsMut};
pub use slot::{HEADROOM, Slot};
