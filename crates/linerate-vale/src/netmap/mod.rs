//! netmap's in-memory ports, which need no card (netmap(4), vale(4)).
//!
//! - [`Pipe`]: two ports; packets sent into either are received from the other, without a copy
//! - [`ValePort`], [`Switch`]: a switch that copies packets; it learns addresses, or the program decides where packets
//!   go
//! - [`Monitor`]: copies of packets that another port receives or sends
//! - [`Null`]: a port that drops all packets; [`Echo`]: a port that returns them
//! - [`Cluster`]: a port whose flows are distributed among several consumers, `PORT?cluster=N&by=flow`
//! - [`NetmapPort`]: netmap's view of any port: slots with head, cur and tail, whose buffers are swapped
//! - `delivery`: copies packets to a receiver; `frames`: packets whose destinations are decided together
//! - `slot_channel`: moves packets into and out of a channel
//! - `channel`: a ring of words between two threads
//!
//! This module uses memory and ports, but no cards and no kernel interfaces. Cards and interfaces can be attached to a
//! switch as ports.

mod channel;
mod cluster;
mod delivery;
mod echo;
mod frames;
mod monitor;
mod null;
mod pipe;
mod ring;
mod slot_channel;
mod vale;

#[cfg(loom)]
pub use channel::{Receiver, Sender, channel};
pub use cluster::{Cluster, Consumers, Distribution, open_cluster};
pub(crate) use cluster::{MAX_CONSUMERS, cluster_of};
pub(crate) use delivery::{Recipient, RecipientCounts};
pub use echo::{ECHO, Echo};
pub use frames::Frames;
pub use monitor::Monitor;
pub(crate) use monitor::{RemotePipe, RxMirror};
pub use null::{NULL, Null};
pub use pipe::{Pipe, Side};
pub use ring::{ExtraBuffer, NetmapPort, Ring, RxRing, TxRing, swap};
pub(crate) use vale::delivery_of;
pub use vale::{Destination, Forward, LONGEST_NAME, Learning, MAX_PORTS, Switch, ValePort};
