//! netmap's ports in memory, without a card (netmap(4), vale(4)).
//!
//! - [`Pipe`]: two ports; packets sent into one are received from the other, without a copy
//! - [`ValePort`], [`Switch`]: a switch that learns, or forwards as a program decides; it copies
//! - [`Monitor`]: copies of packets that another port receives or sends
//! - [`Null`]: a port that drops all packets
//! - [`Cluster`]: a port whose packets are handed out to several consumers by their flows, `PORT?cluster=N&by=flow`
//! - [`NetmapPort`]: netmap's view of any port: slots with head, cur and tail, whose buffers are swapped
//! - `delivery`: copies on their way to a receiver; `frames`: packets whose destinations are decided together
//! - `slot_channel`: packets into and out of a channel
//! - `channel`: slots on their way between two threads
//!
//! This room knows memory and ports, and neither cards nor the kernel's interfaces. As ports, those can be attached to
//! a switch.

mod channel;
mod cluster;
mod delivery;
mod frames;
mod monitor;
mod null;
mod pipe;
mod ring;
mod slot_channel;
mod vale;

#[cfg(loom)]
pub use channel::{Receiver, Sender, channel};
pub use cluster::{By, Cluster, Consumers, open_cluster};
pub(crate) use cluster::{MOST as MOST_CONSUMERS, cluster_of};
pub(crate) use delivery::{Recipient, RecipientCounts};
pub use frames::Frames;
pub use monitor::Monitor;
pub(crate) use monitor::{RemotePipe, RxMirror};
pub use null::{NULL, Null};
pub use pipe::{Pipe, Side};
pub use ring::{ExtraBuffer, NetmapPort, Ring, RxRing, TxRing, swap};
pub(crate) use vale::delivery_of;
pub use vale::{Destination, Forward, LONGEST_NAME, Learning, MAX_PORTS, Switch, ValePort};
