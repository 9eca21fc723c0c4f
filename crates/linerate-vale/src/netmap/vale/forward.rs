//! The decision where packets go: learned, as in VALE, or by a program.

use linerate_core::slot::Slot;

use super::table::{Address, Table};
use crate::netmap::frames::Frames;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this port, unless it came from there.
    Port(u8),
    /// To each port of a [group](super::Switch::set_group) but its source; to none if there is no such group.
    Group(u16),
    /// To all ports but its source.
    Broadcast,
    /// To no port.
    Drop,
}

/// Decides where packets go (vale(4), "VALE switches can be extended").
///
/// A closure of the same form implements it. It is called on the sender's thread, and may be called by several threads
/// at once.
///
/// ```
/// use linerate::netmap::{Destination, Frames, Switch};
///
/// // Packets from port 0 go to port 1, and the other way round; other ports get none.
/// let wire = |source: u8, _: &Frames<'_>, to: &mut [Destination]| {
///     to.fill(if source < 2 { Destination::Port(1 - source) } else { Destination::Drop });
/// };
/// let switch = Switch::named("vale0");
/// switch.set_forward(std::sync::Arc::new(wire));
/// ```
pub trait Forward: Send + Sync {
    /// Decides for packets that came in at port `source`. `to` has an entry for each of them, in order, which is
    /// [`Destination::Drop`] at first.
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]);

    /// Forgets a port that was removed: another port may get its number.
    fn forget(&self, port: u8) {
        let _ = port;
    }
}

impl<F: Fn(u8, &Frames<'_>, &mut [Destination]) + Send + Sync> Forward for F {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        self(source, packets, to);
    }
}

/// A learning bridge: an address is at the port where it was last seen. Broadcast, multicast and unknown destinations
/// go to all ports.
pub struct Learning {
    table: Table,
}

impl Learning {
    /// Makes a bridge that knows no address.
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
    /// Decides for packets, of each of which this is the first slot.
    #[inline(always)]
    fn decide<'a>(
        &self,
        source: u8,
        packets: &Frames<'_>,
        firsts: impl Iterator<Item = &'a Slot>,
        to: &mut [Destination],
    ) {
        let now = self.table.now();
        // Most ports have one host behind them, which mostly sends to one other host: the last result is tried first.
        let (mut learned, mut found) = (None, (None, Destination::Drop));
        for (first, to) in firsts.zip(to) {
            let packet = packets.view.bytes(first);
            // A packet shorter than an Ethernet header is dropped.
            let Some(header) = packet.first_chunk().filter(|_| packet.len() >= HEADER) else { continue };
            let (destination, origin) = Address::of(header);
            if learned != Some(origin) && !origin.is_multicast() && !first.is_unlearned() {
                self.table.learn(origin, source, now);
                // The new address may be the last destination.
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
        match packets.plain() {
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
