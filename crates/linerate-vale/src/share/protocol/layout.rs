//! The layout of the memory for ports, as in netmap: pools of port descriptions (`struct netmap_if`), rings and
//! buffers. All objects of a pool have the same size.

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
/// Bytes of a port's description without its table of rings.
pub const DESCRIPTION: usize = RING_OFS;

/// The version of netmap's API (`NETMAP_API`).
pub const API: u32 = 14;

/// The number and size of one pool's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// The number of objects.
    pub count: usize,
    /// Bytes per object.
    pub size: usize,
}

/// The pools of a port's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Descriptions of ports.
    pub ports: Objects,
    /// Rings with their slots, and [`STATE`] bytes before each.
    pub rings: Objects,
    /// Buffers of packets.
    pub buffers: Objects,
    /// Slots that have a zone for packets outside all buffers (`NS_INDIRECT`). Zones are after the memory that programs
    /// map.
    pub zones: usize,
}

/// 128 ports, 512 rings of up to 8,192 slots, and 163,840 buffers of 2 KiB, the number in netmap's default. Unused
/// memory costs nothing.
impl Default for Plan {
    fn default() -> Plan {
        Plan {
            ports: Objects { count: 128, size: 1024 },
            rings: Objects { count: 512, size: (STATE + SLOTS + 8192 * SLOT).next_multiple_of(4096) },
            buffers: Objects { count: 163_840, size: 2048 },
            zones: 0,
        }
    }
}

impl Plan {
    /// Plans memory for exactly `ports` ports with these rings, and `extra` buffers.
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

    /// Adds the object counts of `other`, and keeps this plan's sizes.
    pub fn and(self, other: Plan) -> Plan {
        let both = |a: Objects, b: Objects| Objects { count: a.count + b.count, ..a };
        Plan {
            ports: both(self.ports, other.ports),
            rings: both(self.rings, other.rings),
            buffers: both(self.buffers, other.buffers),
            zones: self.zones + other.zones,
        }
    }

    /// Returns where the rings begin, after the port descriptions.
    pub fn rings_at(&self) -> usize {
        (self.ports.count * self.ports.size).next_multiple_of(4096)
    }

    /// Returns where the buffers begin.
    pub fn buffers_at(&self) -> usize {
        (self.rings_at() + self.rings.count * self.rings.size).next_multiple_of(4096)
    }

    /// Returns the length in bytes of the memory that programs map.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        (self.buffers_at() + self.buffers.count * self.buffers.size).next_multiple_of(4096)
    }

    /// Returns whether the sizes and counts are within the supported limits.
    pub fn is_possible(&self) -> bool {
        // The count is limited too: each object has an entry in a free list.
        let fits = |objects: &Objects, count: usize, size: usize, align: usize| {
            objects.count <= count && (64..=size).contains(&objects.size) && objects.size.is_multiple_of(align)
        };
        fits(&self.ports, 10_000, 1 << 16, 8)
            && fits(&self.rings, 4096, 1 << 20, 64)
            && fits(&self.buffers, 1 << 21, 1 << 16, 8)
            && self.zones <= 1 << 17
            && self.len() <= 1 << 37
    }

    /// Limits the number of buffers to what fits into `len` bytes; `None` if no usable buffer fits.
    pub fn within(mut self, len: usize) -> Option<Plan> {
        let room = len.checked_sub(self.buffers_at())?;
        self.buffers.count = self.buffers.count.min(room / self.buffers.size);
        (self.buffers.count > 2).then_some(self)
    }
}

/// The locations of a port's description and rings: first the card's rings, then the host stack's. `None`: a ring that
/// was not requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLayout {
    /// Offset of the description in the memory, in bytes.
    pub at: usize,
    /// Transmit rings.
    pub tx: Vec<Option<RingAt>>,
    /// Receive rings.
    pub rx: Vec<Option<RingAt>>,
    /// The bits of a slot's last word that hold the packet's offset in its buffer; 0: packets start at their buffer's
    /// first byte.
    pub offset_mask: u64,
}

/// Where packets start in their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    /// The bits of a slot's last word that hold the offset; 0: packets have no offset.
    pub mask: u64,
    /// The initial offset.
    pub first: u64,
}

/// The number of a port's rings, and of slots per ring.
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
    /// Slots per transmit ring.
    pub tx_slots: u32,
    /// Slots per receive ring.
    pub rx_slots: u32,
}

impl RingCounts {
    /// Returns the number of transmit rings, including those of the host's stack.
    pub fn all_tx(&self) -> u16 {
        self.tx.saturating_add(self.host_tx)
    }

    /// Returns the number of receive rings, including those of the host's stack.
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
