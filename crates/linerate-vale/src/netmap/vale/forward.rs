//! Decides where packets go: by learned addresses, as in VALE, or by the program.

use linerate_core::slot::Slot;

use super::table::{Address, Table};
use crate::netmap::frames::Frames;

/// The length of an Ethernet header in bytes.
pub const HEADER: usize = 14;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this port, unless the packet came from it.
    Port(u8),
    /// To every port of a [group](super::Switch::set_group) except the source; to none if the group does not exist.
    Group(u16),
    /// To all ports except the source.
    Broadcast,
    /// To no port.
    Drop,
}

/// Decides where packets go (vale(4), "VALE switches can be extended").
///
/// Closures with the signature of `forward` implement this trait. `forward` is called on the sender's thread, possibly
/// by several threads concurrently.
///
/// ```
/// use linerate::netmap::{Destination, Frames, Switch};
///
/// // Forwards between port 0 and port 1; other ports get no packets.
/// let wire = |source: u8, _: &Frames<'_>, to: &mut [Destination]| {
///     to.fill(if source < 2 { Destination::Port(1 - source) } else { Destination::Drop });
/// };
/// let switch = Switch::named("vale0");
/// switch.set_forward(std::sync::Arc::new(wire));
/// ```
pub trait Forward: Send + Sync {
    /// Decides where packets that arrived at port `source` go. `to` has one entry per packet, in order, initially
    /// [`Destination::Drop`].
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]);

    /// Forgets a port that was removed; another port may get its number.
    fn forget(&self, port: u8) {
        let _ = port;
    }
}

impl<F: Fn(u8, &Frames<'_>, &mut [Destination]) + Send + Sync> Forward for F {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        self(source, packets, to);
    }
}

/// A learning bridge: sends packets to the port where their destination was last seen. Broadcast, multicast and unknown
/// destinations go to all ports.
pub struct Learning {
    table: Table,
}

impl Learning {
    /// Creates a bridge that knows no addresses.
    pub fn new() -> Learning {
        Learning { table: Table::new() }
    }

    /// Returns the number of known addresses.
    pub fn known(&self) -> usize {
        self.table.len()
    }
}

impl Default for Learning {
    fn default() -> Self {
        Learning::new()
    }
}

impl Learning {
    /// Decides for packets, given the first slot of each.
    #[inline(always)]
    fn decide<'a>(
        &self,
        source: u8,
        packets: &Frames<'_>,
        firsts: impl Iterator<Item = &'a Slot>,
        to: &mut [Destination],
    ) {
        let now = self.table.now();
        // Most ports have one host, which mostly sends to one other host, so the last result is tried first.
        let (mut learned, mut found) = (None, (None, Destination::Drop));
        for (first, to) in firsts.zip(to) {
            let packet = packets.view.bytes(first);
            // Packets shorter than an Ethernet header are dropped.
            let Some(header) = packet.first_chunk().filter(|_| packet.len() >= HEADER) else { continue };
            let (destination, origin) = Address::of(header);
            if learned != Some(origin) && !origin.is_multicast() && !first.is_unlearned() {
                self.table.learn(origin, source, now);
                // The address just learned may be the destination cached in `found`.
                (learned, found.0) = (Some(origin), None);
            }
            if found.0 != Some(destination) {
                let port = if destination.is_multicast() { None } else { self.table.find(destination) };
                found = (Some(destination), port.map_or(Destination::Broadcast, Destination::Port));
            }
            *to = found.1;
        }
    }
}

impl Forward for Learning {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        match packets.single_slots() {
            Some(slots) => self.decide(source, packets, slots.iter(), to),
            None => {
                let firsts = (0..packets.len()).map(|n| &packets.slots(n)[0]);
                self.decide(source, packets, firsts, to);
            }
        }
    }

    fn forget(&self, port: u8) {
        self.table.forget(port);
    }
}
