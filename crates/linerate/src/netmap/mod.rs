//! netmap's world in memory: ports that no card is behind (netmap(4), vale(4)).
//!
//! - [`Pipe`]: two ports, what is sent into one is received from the other, without a copy
//! - [`ValePort`], [`Switch`]: a switch that learns, or forwards as a program says; it copies
//! - [`Monitor`]: copies of what another port receives or sends
//! - [`Null`]: a port that swallows
//! - [`NetmapPort`]: netmap's view of any port: slots with head, cur and tail, whose buffers are swapped
//! - `outlet`: copies on their way to who receives them; `frames`: packets that are decided on together
//! - `reader`: packets in and out of a channel
//! - `channel`: slots on their way between two threads; `wake`: waking who sleeps until they come
//! - [`VirtualPort`]: the control side of all of them
//!
//! It knows memory and ports, and neither cards nor the kernel's interfaces: those become ports of a switch by being ports.

mod channel;
mod delivery;
mod frames;
mod monitor;
mod null;
mod pipe;
mod port;
mod reader;
mod ring;
mod vale;
mod wake;

#[cfg(loom)]
pub use channel::{Receiver, Sender, channel};
pub(crate) use delivery::{Recipient, RecipientCounts};
pub use frames::Frames;
pub use monitor::Monitor;
pub(crate) use monitor::{RemotePipe, RxMirror};
pub use null::Null;
pub use pipe::{Pipe, Side};
pub(crate) use port::Virtual;
pub use port::VirtualPort;
pub use ring::{ExtraBuffer, NetmapPort, Ring, RxRing, TxRing, swap};
pub(crate) use vale::delivery_of;
pub use vale::{Destination, Forward, LONGEST_NAME, Learning, MAX_PORTS, Switch, ValePort};
