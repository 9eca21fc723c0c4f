//! Virtual machines' cards and other programs' ports, over shared memory.
//!
//! - [`vhost`]: the device of a virtual machine's card; receive and send are `vhost/queue.rs`
//! - [`virtio_user`]: the driver's side of such a card, which uses the driver in `linerate_cards::nic::virtio`
//! - [`stream`]: QEMU's socket protocol, over a stream
//! - [`memif`]: FD.io's shared memory interface; receive and send are `memif/queue.rs`

#![warn(rustdoc::broken_intra_doc_links)]

#[cfg(feature = "memif")]
pub mod memif;
#[cfg(all(test, any(feature = "memif", feature = "vhost")))]
mod peer;
#[cfg(feature = "vhost")]
pub mod stream;
#[cfg(feature = "vhost")]
pub mod vhost;
#[cfg(feature = "vhost")]
pub mod virtio_user;
