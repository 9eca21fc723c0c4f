//! Network cards: drivers in user space, and how they reach a card.
//!
//! - [`nic`]: drivers; receive and send of Intel's cards are `nic/intel/queue.rs`, of VirtIO `nic/virtio/queue.rs`
//! - [`pci`]: a card's registers, memory and interrupts, over vfio or uio
//! - [`vfio_user`]: a card that another process serves, and serving one
//! - [`CARD`], [`VFIO_USER`]: the kinds of ports, `0000:03:00.0` and `vfio-user:PATH`

#![warn(rustdoc::broken_intra_doc_links)]

pub mod nic;
pub mod pci;
mod port_kinds;
pub mod vfio_user;

pub use port_kinds::{CARD, VFIO_USER};
