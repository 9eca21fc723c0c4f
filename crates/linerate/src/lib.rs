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
//! # Use it
//!
//! - [`open`], [`Options`]: ports by name; [`port::PortName`] has the names, [`KINDS`] the kinds of ports and their options
//! - [`Port`](port::Port): the control side; [`RxQueue`](port::RxQueue), [`TxQueue`](port::TxQueue): queues, which move to the
//!   threads that poll them; [`Waiter`](port::Waiter): sleeping until packets arrive
//! - [`Batch`], [`Packet`]: packets that programs read, change, extend and shorten; [`memory`]: regions and pools
//! - [`netmap`]: rings of slots, pipes, the switch; [`share`]: a server of ports for other processes
//! - [`capture`]: capture files; [`filter`]: packets by what is in them; [`traffic`]: frames that can be recognised again
//!
//! Each kind of port has a cargo feature: `capture`, `kernel`, `memif`, `model`, `netmap`, `vfio-user`, `vhost`; all are on
//! by default.
//!
//! # Read it
//!
//! `linerate-core` has what ports are made of: slots, regions, batches, queues, errors, events. `linerate-spec` has the registers
//! of cards. The modules here use both; each uses only modules of lines above its own, which `tests/rooms.rs` checks:
//!
//! ```text
//! options
//! port
//! traffic  capture
//! pci
//! vfio_user  vhost  memif  kernel  netmap
//! nic  share
//! sim82599  virtio_user
//! open
//! ```
//!
//! - [`nic`]: drivers; receive and send of Intel's cards are `nic/intel/queue.rs`, of VirtIO `nic/virtio/queue.rs`
//! - [`spec`]: registers and descriptors of cards, by their datasheets' names, a crate without code; [`pci`]: reaching a card over vfio or uio
//! - [`sim82599`]: a model of the 82599; [`vfio_user`]: serving it to virtual machines, and using a card that is served
//! - [`vhost`]: virtual machines' cards; receive and send are `vhost/queue.rs`; [`virtio_user`]: the other side, over the
//!   driver of `nic/virtio`
//! - [`memif`]: FD.io's shared memory interface; receive and send are `memif/queue.rs`
//! - [`kernel`]: ports on the kernel's interfaces; receive and send over AF_XDP are `kernel/xdp/queue.rs`
//! - [`netmap`]: the switch's queues are `netmap/vale/port.rs`; [`share`]: a packet's way between processes is
//!   `share/server/pump.rs`
//!
//! `docs/path.md` leads through the code of one path in order; `docs/datapaths.md` has the calls of each kind of port.
//!
//! # Extend it
//!
//! - A kind of port of your own: [`Device`](port::Device), [`Receive`](port::Receive), [`Transmit`](port::Transmit), opened by name
//!   as a [`PortKind`](port::PortKind) through [`Options::with_port_kind`]; `tests/own_port.rs` is a whole one. A kind of the
//!   library's is declared in its room, as `netmap/null.rs` does, and has a line in `open/kinds.rs`
//! - A port around any other: [`Wrapper`](port::Wrapper); `port/faulty.rs` is one
//! - A driver: `docs/driver.md`; the outside of a model: [`Wire`](sim82599::Wire)
//! - A switch that forwards as you say: [`Forward`](netmap::Forward)

#![warn(rustdoc::broken_intra_doc_links)]
mod open;
mod options;
pub mod port;
#[cfg(feature = "netmap")]
mod server;

#[cfg(feature = "capture")]
pub use linerate_capture as capture;
#[cfg(feature = "vfio-user")]
pub use linerate_cards::vfio_user;
pub use linerate_cards::{nic, pci};
pub use linerate_core::{Batch, Error, ErrorKind, HEADROOM, Packet, Packets, Remedy, Result, SlotsMut, Taken};
pub use linerate_core::{filter, memory};
#[cfg(feature = "kernel")]
pub use linerate_kernel as kernel;
#[cfg(feature = "memif")]
pub use linerate_machines::memif;
#[cfg(feature = "vhost")]
pub use linerate_machines::{vhost, virtio_user};
#[cfg(feature = "model")]
pub use linerate_sim82599 as sim82599;
#[cfg(feature = "model")]
pub use linerate_sim82599::drive_model;
pub use linerate_spec as spec;
pub use linerate_traffic as traffic;
#[cfg(feature = "netmap")]
pub use linerate_vale::{netmap, share};
pub use open::{KINDS, open, parse};
pub use options::Options;
#[cfg(feature = "netmap")]
pub use server::server;

#[cfg(all(fuzzing, feature = "model", feature = "netmap"))]
pub mod fuzzing;
