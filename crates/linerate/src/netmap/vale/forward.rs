//! Where packets go: learning, as VALE does, or what a program says.

use super::table::{Address, Table};
use crate::netmap::frames::Frames;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this port, unless it came from there.
    Port(u8),
    /// To all ports but the one that it came from.
    Broadcast,
    /// To none.
    Drop,
}

/// Decides where packets go (vale(4), "VALE switches can be extended").
///
/// A closure of the same form is one. It is called on the thread that sends, and may be called by several at once.
///
/// ```
/// use linerate::netmap::{Destination, Frames, Switch};
///
/// // What comes in at port 0 goes out at port 1, and the other way round; others hear nothing.
/// let wire = |source: u8, _: &Frames<'_>, to: &mut [Destination]| {
///     to.fill(if source < 2 { Destination::Port(1 - source) } else { Destination::Drop });
/// };
/// let switch = Switch::named("vale0");
/// switch.set_forward(std::sync::Arc::new(wire));
/// ```
pub trait Forward: Send + Sync {
    /// Packets came in at port `source`; for each of them, in order, there is a place in `to`, where
    /// [`Destination::Drop`] stands at first.
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]);

    /// A port is gone: its number may be another's soon.
    fn forget(&self, port: u8) {
        let _ = port;
    }
}

impl<F: Fn(u8, &Frames<'_>, &mut [Destination]) + Send + Sync> Forward for F {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        self(source, packets, to);
    }
}

/// A learning bridge: an address is where it was last seen, and what is not known, broadcast and multicast go everywhere.
pub struct Learning {
    table: Table,
}

impl Learning {
    /// That knows nothing yet.
    pub fn new() -> Learning {
        Learning { table: Table::new() }
    }

    /// How many addresses it knows.
    pub fn known(&self) -> usize {
        self.table.len()
    }
}

impl Default for Learning {
    fn default() -> Self {
        Learning::new()
    }
}

impl Forward for Learning {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        let now = self.table.now();
        // Most ports have one host behind them, which mostly talks with one other: what was found last is tried first.
        let (mut learned, mut found) = (None, (None, Destination::Drop));
        for (n, (packet, to)) in packets.iter().zip(to).enumerate() {
            // What has no Ethernet header is no frame.
            let Some(header) = packet.first_chunk().filter(|_| packet.len() >= 14) else { continue };
            let (destination, origin) = Address::of(header);
            if learned != Some(origin) && !origin.is_multicast() && packets.is_learned_from(n) {
                self.table.learn(origin, source, now);
                // It may be where the last one goes to.
                (learned, found.0) = (Some(origin), None);
            }
            if found.0 != Some(destination) {
                let port = if destination.is_multicast() { None } else { self.table.find(destination) };
                found = (Some(destination), port.map_or(Destination::Broadcast, Destination::Port));
            }
            *to = found.1;
        }
    }

    fn forget(&self, port: u8) {
        self.table.forget(port);
    }
}
