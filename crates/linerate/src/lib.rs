//! User-space packet I/O for Linux: drivers that bypass the kernel, and ports that need no network card.
//!
//! How a packet travels: a card writes it into a buffer of a [`memory::Region`]. A receive queue puts an 8-byte slot
//! for it into a [`Batch`], through which the program reads and changes the packet. A transmit queue takes the slot,
//! and frees the buffer once the card has sent it.
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
//!         packet[22] ^= 1;                    // plain bytes
//!     }
//!     tx.send(&mut batch);                    // sends as many as fit, in order
//!     batch.clear();                          // the rest goes back to the pool
//! }
//! # Ok(()) }
//! ```
//!
//! # Use it
//!
//! - [`open`], [`Options`]: open ports by name; [`port::PortName`] lists the names, [`KINDS`] the kinds of ports and
//!   their options
//! - [`Port`](port::Port): the control side; [`RxQueue`](port::RxQueue), [`TxQueue`](port::TxQueue): queues, which move
//!   to the threads that poll them; [`Waiter`](port::Waiter): sleeps until packets arrive
//! - [`Batch`], [`Packet`]: packets to read, change, extend and shorten; [`memory`]: regions and pools
//! - [`netmap`]: rings of slots, pipes, the switch; [`share`]: a server of ports for other processes
//! - [`link`]: links with delay, rate, queue and loss
//! - [`capture`]: capture files; [`filter`]: matches packets by their contents; [`traffic`]: test frames that the
//!   receiver can identify
//!
//! Each kind of port has a cargo feature: `capture`, `kernel`, `memif`, `model`, `netmap`, `vfio-user`, `vhost`. All are
//! enabled by default. `compression`, for compressed captures, is not: it needs a C compiler.
//!
//! # Read it
//!
//! This crate only opens ports and passes on what programs need. The code is in other crates; each uses only crates on
//! lines below its own:
//!
//! ```text
//! linerate-cli (the command)  linerate-netmap, linerate-pcap (objects for LD_PRELOAD, over linerate-preload)
//! linerate
//! linerate-machines  linerate-vale  linerate-sim82599  linerate-link
//! linerate-cards  linerate-kernel  linerate-capture  linerate-traffic
//! linerate-core   linerate-spec
//! ```
//!
//! - `linerate-core`: the building blocks of ports: slots, regions, batches, queues, errors, events;
//!   `port/finishing.rs` finishes checksums and segmentation for ports that cannot leave them to others
//! - `linerate-spec`, here [`spec`]: registers and descriptors of cards, named as in their datasheets, without code
//! - `linerate-cards`: [`nic`], drivers; `nic/intel/queue.rs` receives and sends on Intel's cards,
//!   `nic/virtio/queue.rs` on VirtIO; [`pci`], access to a card over vfio or uio; `vfio_user`, cards that another
//!   process serves
//! - `linerate-kernel`, here [`kernel`]: ports on the kernel's interfaces; `xdp/queue.rs` receives and sends over
//!   AF_XDP
//! - `linerate-capture` and `linerate-traffic`, here [`capture`] and [`traffic`]
//! - `linerate-machines`: [`vhost`], network cards of virtual machines, `vhost/queue.rs` receives and sends;
//!   [`virtio_user`], the front end, which uses the driver of `nic/virtio`; [`memif`], FD.io's shared memory interface
//! - `linerate-vale`: [`netmap`], `netmap/vale/port.rs` has the switch's queues; [`share`], `share/server/pump.rs`
//!   moves packets between processes
//! - `linerate-sim82599`, here [`sim82599`]: a model of the 82599
//! - `linerate-link`, here [`link`]: emulated links; `line.rs` follows a packet from one end to the other
//!
//! `docs/path.md` explains the code of one packet's path in order; `docs/datapaths.md` lists the calls for each kind of
//! port.
//!
//! # Extend it
//!
//! - A kind of port: [`Device`](port::Device), [`Receive`](port::Receive), [`Transmit`](port::Transmit), opened by name
//!   as a [`PortKind`](port::PortKind) through [`Options::with_port_kind`]. [`SoftwareDevice`](port::SoftwareDevice)
//!   does most of the work of a `Device`. `tests/own_port.rs` is a complete example, and `outside/kind` a larger
//!   example in a separate workspace
//! - A kind of port in this library: declared in its module, as in `netmap/echo.rs` of `linerate-vale`, and listed in
//!   `open/kinds.rs`; a test prints its row for `docs/wires.md`
//! - An option of a kind: a [`PortOption`](port::PortOption) in its [`Description`](port::Description), read by
//!   [`PortName::option`](port::PortName::option) when the port opens. Checks, suggestions and help follow from it
//! - A wrapper around another port: [`Wrapper`](port::Wrapper); `port.rs` of `linerate-link` is an example
//! - A driver: `docs/driver.md`; `outside/driver` is an example in a separate workspace
//! - The other end of a model's cable: [`Wire`](sim82599::Wire)
//! - Forwarding of a switch: [`Forward`](netmap::Forward)

#![forbid(unsafe_code)]
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
pub use linerate_core::{filter, memory, metadata, offload, packet};
#[cfg(feature = "kernel")]
pub use linerate_kernel as kernel;
pub use linerate_link as link;
#[cfg(feature = "memif")]
pub use linerate_machines::memif;
#[cfg(feature = "vhost")]
pub use linerate_machines::{stream, vhost, virtio_user};
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

/// The examples of a page in `docs`.
#[cfg(all(doctest, feature = "model", feature = "netmap"))]
#[doc = include_str!("../../../docs/offloads.md")]
mod offloads {}
