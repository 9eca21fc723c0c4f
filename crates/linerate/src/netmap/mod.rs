//! netmap's world in memory: ports that no card is behind (netmap(4), vale(4)).
//!
//! - [`Pipe`]: two ports, what is sent into one is received from the other, without a copy
//! - [`ValePort`], [`Switch`]: a switch that learns, or forwards as a program says; it copies
//! - [`Monitor`]: copies of what another port receives or sends
//! - [`Null`]: a port that swallows
//! - [`Rings`]: netmap's view of any port: slots with head, cur and tail, whose buffers are swapped
//! - `outlet`: copies on their way to who receives them; `frames`: packets that are decided on together
//! - `reader`: packets in and out of a channel
//! - `channel`: slots on their way between two threads; `wake`: waking who sleeps until they come
//!
//! It knows memory and ports, and neither cards nor the kernel's interfaces: those become ports of a switch by being ports.

mod channel;
mod frames;
mod monitor;
mod null;
mod outlet;
mod pipe;
mod reader;
mod ring;
mod vale;
mod wake;

#[cfg(loom)]
pub use channel::{Receiver, Sender, channel};
pub use frames::Frames;
pub use monitor::Monitor;
pub(crate) use monitor::{Elsewhere, Received};
pub use null::Null;
pub(crate) use outlet::{Recipient, Taken};
pub use pipe::{Pipe, Side};
pub use ring::{ExtraBuffer, Ring, Rings, RxRing, TxRing, swap};
pub(crate) use vale::outlet;
pub use vale::{Destination, Forward, LONGEST_NAME, Learning, MAX_PORTS, Switch, ValePort};
