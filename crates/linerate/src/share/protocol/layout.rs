//! The layout of the memory for ports, in netmap's form: a pool each of descriptions of ports (`struct netmap_if`), of rings and
//! of buffers, with objects of one size each.

use serde::{Deserialize, Serialize};

use super::mapping::FIRST_BUFFER;
use super::ring::{RingAt, SLOT, SLOTS, STATE};

// `struct netmap_if`.
pub const NI_VERSION: usize = 16;
pub const NI_TX_RINGS: usize = 24;
pub const NI_RX_RINGS: usize = 28;
pub const NI_BUFS_HEAD: usize = 32;
pub const NI_HOST_TX_RINGS: usize = 36;
pub const NI_HOST_RX_RINGS: usize = 40;
pub const RING_OFS: usize = 56;
/// Bytes of a description without its rings.
pub const DESCRIPTION: usize = RING_OFS;

/// netmap's version of all this (`NETMAP_API`).
pub const API: u32 = 14;

/// Objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub size: usize,
}

/// What memory is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Descriptions of ports.
    pub ports: Objects,
    /// Rings with their slots, and [`STATE`] bytes in front.
    pub rings: Objects,
    /// Packets' buffers.
    pub buffers: Objects,
    /// Slots that have a zone for packets in no buffer (`NS_INDIRECT`), behind what programs see.
    pub zones: usize,
}

/// 128 ports, 512 rings of up to 4,096 slots, 163,840 buffers of 2 KiB, as many as netmap has by default. Memory that is not
/// used costs nothing.
impl Default for Plan {
    fn default() -> Plan {
        Plan {
            ports: Objects { count: 128, size: 1024 },
            rings: Objects { count: 512, size: (STATE + SLOTS + 4096 * SLOT).next_multiple_of(4096) },
            buffers: Objects { count: 163_840, size: 2048 },
            zones: 0,
        }
    }
}

impl Plan {
    /// Room for so many ports with these rings, `extra` buffers, and nothing else.
    pub fn of_ports(ports: usize, rings: &RingCounts, extra: u32) -> Plan {
        let (tx, rx) = (usize::from(rings.all_tx()), usize::from(rings.all_rx()));
        let buffers = ports * (tx * rings.tx_slots as usize + rx * rings.rx_slots as usize) + extra as usize;
        let longest = rings.tx_slots.max(rings.rx_slots) as usize;
        let usual = Plan::default();
        Plan {
            ports: Objects { count: ports, size: (RING_OFS + (tx + rx) * 8).next_multiple_of(1024) },
            rings: Objects { count: ports * (tx + rx), size: (STATE + SLOTS + longest * SLOT).next_multiple_of(4096) },
            buffers: Objects { count: FIRST_BUFFER as usize + buffers, ..usual.buffers },
            zones: 0,
        }
    }

    /// Room for these objects and `other`'s; sizes are this plan's.
    pub fn and(self, other: Plan) -> Plan {
        let both = |a: Objects, b: Objects| Objects { count: a.count + b.count, ..a };
        Plan {
            ports: both(self.ports, other.ports),
            rings: both(self.rings, other.rings),
            buffers: both(self.buffers, other.buffers),
            zones: self.zones + other.zones,
        }
    }

    /// Where rings begin; ports are in front.
    pub fn rings_at(&self) -> usize {
        (self.ports.count * self.ports.size).next_multiple_of(4096)
    }

    /// Where buffers begin.
    pub fn buffers_at(&self) -> usize {
        (self.rings_at() + self.rings.count * self.rings.size).next_multiple_of(4096)
    }

    /// Bytes of all that programs see.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        (self.buffers_at() + self.buffers.count * self.buffers.size).next_multiple_of(4096)
    }

    /// Returns whether there can be such memory.
    pub fn is_possible(&self) -> bool {
        // What is free is noted for each of them.
        let fits = |objects: &Objects, count: usize, size: usize, align: usize| {
            objects.count <= count && (64..=size).contains(&objects.size) && objects.size.is_multiple_of(align)
        };
        fits(&self.ports, 10_000, 1 << 16, 8)
            && fits(&self.rings, 4096, 1 << 20, 64)
            && fits(&self.buffers, 1 << 21, 1 << 16, 8)
            && self.zones <= 1 << 17
            && self.len() <= 1 << 37
    }

    /// As many buffers as so many bytes have room for.
    pub fn within(mut self, len: usize) -> Option<Plan> {
        let room = len.checked_sub(self.buffers_at())?;
        self.buffers.count = self.buffers.count.min(room / self.buffers.size);
        (self.buffers.count > 2).then_some(self)
    }
}

/// A port's description, and its rings: those of the card first, those of the host after them. `None`: not asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLayout {
    /// The description, in bytes from the memory's beginning.
    pub at: usize,
    /// Rings that send.
    pub tx: Vec<Option<RingAt>>,
    /// Rings that receive.
    pub rx: Vec<Option<RingAt>>,
    /// Of each slot's last word, what tells where in its buffer a packet begins; 0: nothing does.
    pub offset_mask: u64,
}

/// Where in their buffers packets begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    /// Of each slot's last word; 0: nothing.
    pub mask: u64,
    /// What stands there at first.
    pub first: u64,
}

/// How many rings a port has, and how long they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingCounts {
    /// Transmit rings of the card.
    pub tx: u16,
    /// Receive rings of the card.
    pub rx: u16,
    /// Transmit rings of the host's stack.
    pub host_tx: u16,
    /// Receive rings of the host's stack.
    pub host_rx: u16,
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
}

impl RingCounts {
    /// Transmit rings, those of the host's stack included.
    pub fn all_tx(&self) -> u16 {
        self.tx.saturating_add(self.host_tx)
    }

    /// Receive rings, those of the host's stack included.
    pub fn all_rx(&self) -> u16 {
        self.rx.saturating_add(self.host_rx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_follow_each_other_on_pages_of_their_own() {
        let objects = |count: usize, size: usize| Objects { count, size };
        let plan = Plan { ports: objects(5, 1024), rings: objects(3, 4352), buffers: objects(7, 2048), zones: 0 };
        assert_eq!((plan.rings_at(), plan.buffers_at(), plan.len()), (8192, 24_576, 40_960));
    }

    #[test]
    fn a_plan_has_the_buffers_that_memory_has_room_for() {
        let plan = Plan::default();
        let within = |count: usize| plan.within(plan.buffers_at() + count * 2048).map(|plan| plan.buffers.count);
        assert_eq!([within(0), within(2), within(3), within(100)], [None, None, Some(3), Some(100)]);
        assert_eq!(within(plan.buffers.count + 1), Some(plan.buffers.count), "no more than were asked for");
        assert_eq!(plan.within(plan.buffers_at() - 1), None);
    }
}
