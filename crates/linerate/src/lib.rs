//! User-space packet I/O for Linux: network cards without the kernel, and without a network card.
//!
//! One packet's way, top-down: a card writes it into a buffer of a [`memory::Region`]; a receive
//! queue hands it over as a slot of 8 bytes in a [`Batch`]; the program looks at its bytes; a
//! transmit queue takes the slot and gives the buffer back when the card has sent it.
//!
//! ```
//! use linerate::Batch;
//!
//! # fn main() -> linerate::Result<()> {
//! let [mut a, mut b] = linerate::open(["sim:0?count=1000", "sim:1?wire=sink"])?;
//! let (mut rx, mut tx) = (a.rx(0)?, b.tx(0)?);
//! let mut batch = Batch::new();
//! let mut received = 0;
//! while received < 1000 {
//!     received += rx.recv(&mut batch);        // up to 32 slots, never blocks
//!     for mut packet in &mut batch {
//!         packet[48] ^= 1;                    // plain bytes
//!     }
//!     tx.send(&mut batch);                    // takes from the front what fits
//!     batch.clear();                          // the rest goes back to the pool
//! }
//! # Ok(()) }
//! ```
//!
//! The rooms, and which may know which (arrows run one way):
//!
//! ```text
//! slot, batch, memory  <-  port  <-  pci  <-  nic       <-----------  open
//!                            ^         ^      '-> spec                |
//!                            |         |      .-> spec                |
//!                            |         '-  sim82599  -> traffic  <----|
//!                            |-  filter  <-  kernel  <----------------|
//!                            '-  netmap  <-  share  <-----------------'
//! ```
//!
//! - [`Batch`], [`Packet`], [`memory`]: packets and where they live
//! - [`port`]: [`Port`](port::Port), [`RxQueue`](port::RxQueue), [`TxQueue`](port::TxQueue); names; what a kind of port
//!   implements: [`Device`](port::Device)
//! - [`pci`]: reaching a card: taking it, registers, memory, interrupts; uio and vfio
//! - [`spec`]: registers and descriptors of Intel's cards, by their datasheets' names
//! - [`nic`]: drivers; receive and send of Intel's cards are `nic/intel/queue.rs`, of VirtIO
//!   `nic/virtio/queue.rs`
//! - [`sim82599`]: the 82599 itself, as its datasheet tells it
//! - [`kernel`]: ports on the kernel's own interfaces: AF_XDP; receive and send are `kernel/xdp/queue.rs`
//! - [`netmap`]: ports in memory: pipes, and a switch, whose queues are `netmap/vale/port.rs`
//! - [`share`]: ports for other processes; how a packet comes from one to the other is `share/server/pump.rs`
//! - [`filter`]: which packets are meant, as people write it
//! - [`traffic`]: frames that can be recognised again
//!
//! `docs/path.md` leads through the code of the path in order.

#![warn(rustdoc::broken_intra_doc_links)]

mod batch;
pub mod capture;
mod error;
pub mod filter;
pub mod kernel;
pub mod memory;
pub mod netmap;
pub mod nic;
mod offload;
mod open;
mod packet;
pub mod pci;
pub mod port;
pub mod share;
pub mod sim82599;
mod slot;
pub mod spec;
pub mod traffic;

pub use batch::{Batch, Taken};
pub use error::{Error, Result};
pub use open::{drive_model, open, server};
pub use packet::{Packet, Packets, SlotsMut};
pub use port::Options;
pub use slot::HEADROOM;

#[cfg(fuzzing)]
pub mod fuzzing;
