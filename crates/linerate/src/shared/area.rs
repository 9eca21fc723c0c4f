//! Memory that a program has made for its ports, in netmap's form: a pool each of descriptions of ports
//! (`struct netmap_if`), of rings and of buffers, with objects of one size each.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::lock;
use super::memory::{Buffers, FIRST_BUFFER, Memory};
use super::message::Connection;
use super::ring::{
    self, BUF_OFS, CUR, HEAD, NR_BUF_SIZE, NUM_SLOTS, OFFSET_MASK, Place, RINGID_AND_DIR, SLOT, SLOTS, TAIL,
};
use crate::error::{Error, Result};
use crate::memory::Mapping;

// `struct netmap_if`.
const NI_VERSION: usize = 16;
const NI_TX_RINGS: usize = 24;
const NI_RX_RINGS: usize = 28;
const NI_BUFS_HEAD: usize = 32;
const NI_HOST_TX_RINGS: usize = 36;
const NI_HOST_RX_RINGS: usize = 40;
const RING_OFS: usize = 56;

/// netmap's version of all this (`NETMAP_API`).
pub const API: u32 = 14;

/// Objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objects {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub size: usize,
}

/// What memory is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Descriptions of ports.
    pub ports: Objects,
    /// Rings with their slots.
    pub rings: Objects,
    /// Packets' buffers.
    pub buffers: Objects,
}

/// 128 ports, 256 rings of up to 4,096 slots, 32,768 buffers of 2 KiB. Memory that nobody uses is not there, so that it
/// costs nothing.
impl Default for Plan {
    fn default() -> Plan {
        Plan {
            ports: Objects { count: 128, size: 1024 },
            rings: Objects { count: 256, size: (SLOTS + 4096 * SLOT).next_multiple_of(4096) },
            buffers: Objects { count: 32_768, size: 2048 },
        }
    }
}

impl Plan {
    /// Room for both ends of a pipe with such rings, and nothing else.
    pub fn of_pipe(rings: &Rings) -> Plan {
        let count = |asked: u16| usize::from(asked.max(1));
        let slots = |asked: u32| if asked == 0 { 1024 } else { asked as usize };
        // Rings have the longest size that there is, since those of a pipe that is there are its maker's choice.
        let rings_of_end = count(rings.tx) + count(rings.rx);
        let buffers_of_end = count(rings.tx) * slots(rings.tx_slots) + count(rings.rx) * slots(rings.rx_slots);
        let usual = Plan::default();
        Plan {
            ports: Objects { count: 2, ..usual.ports },
            rings: Objects { count: 2 * rings_of_end, ..usual.rings },
            buffers: Objects { count: FIRST_BUFFER as usize + 2 * buffers_of_end, ..usual.buffers },
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

    /// Bytes of all.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        (self.buffers_at() + self.buffers.count * self.buffers.size).next_multiple_of(4096)
    }

    /// As many buffers as so many bytes have room for.
    pub fn within(mut self, len: usize) -> Option<Plan> {
        let room = len.checked_sub(self.buffers_at())?;
        self.buffers.count = self.buffers.count.min(room / self.buffers.size);
        (self.buffers.count > 2).then_some(self)
    }
}

/// A program's memory, and what of it is free.
pub struct Area {
    /// The memory itself.
    pub memory: Arc<Memory>,
    /// What is where in it.
    pub plan: Plan,
    free: Mutex<Free>,
    /// What pipes still use whose other end is another process's.
    lent: Mutex<Vec<Lent>>,
}

/// Ports that are closed here and used elsewhere, until who serves them says that they are not.
pub struct Lent {
    pub connection: Connection,
    pub placed: Vec<Placed>,
}

struct Free {
    ports: Vec<usize>,
    rings: Vec<usize>,
    buffers: Vec<u32>,
}

impl Free {
    fn all(plan: &Plan) -> Free {
        Free {
            ports: (0..plan.ports.count).rev().map(|n| n * plan.ports.size).collect(),
            rings: (0..plan.rings.count).rev().map(|n| plan.rings_at() + n * plan.rings.size).collect(),
            buffers: (FIRST_BUFFER..plan.buffers.count as u32).rev().collect(),
        }
    }
}

/// A port's description, and its rings: those of the card first, those of the host after them. `None`: not asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The description, in bytes from the memory's beginning.
    pub at: usize,
    /// Rings that send.
    pub tx: Vec<Option<Place>>,
    /// Rings that receive.
    pub rx: Vec<Option<Place>>,
    /// Of each slot's last word, what tells where in its buffer a packet begins; 0: nothing does.
    pub offset_mask: u64,
}

/// Where in their buffers packets begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Of each slot's last word; 0: nothing.
    pub mask: u64,
    /// What stands there at first.
    pub first: u64,
}

/// How many rings a port has, and how long they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
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

impl Rings {
    /// Transmit rings, those of the host's stack included.
    pub fn all_tx(&self) -> u16 {
        self.tx.saturating_add(self.host_tx)
    }

    /// Receive rings, those of the host's stack included.
    pub fn all_rx(&self) -> u16 {
        self.rx.saturating_add(self.host_rx)
    }
}

impl Area {
    /// # Errors
    /// [`Error::System`] without memory.
    pub fn new(plan: Plan) -> Result<Area> {
        let mapping = Mapping::lazy(plan.len())?;
        let buffers = Buffers { at: plan.buffers_at(), size: plan.buffers.size, count: plan.buffers.count };
        let memory = Arc::new(Memory { mapping, buffers });
        Ok(Area { memory, plan, free: Mutex::new(Free::all(&plan)), lent: Mutex::default() })
    }

    /// Frees everything, for the next execution of a fuzz target.
    #[cfg(fuzzing)]
    pub fn reset(&self) {
        *lock(&self.free) = Free::all(&self.plan);
    }

    /// Makes a port: its description, and those rings that are wanted, full of buffers.
    ///
    /// # Errors
    /// [`Error::AreaFull`]; then nothing has changed.
    pub fn place(
        &self,
        name: &str,
        rings: &Rings,
        tx_wanted: impl Fn(u16) -> bool,
        rx_wanted: impl Fn(u16) -> bool,
        offsets: Offsets,
    ) -> Result<Placed> {
        self.take_back();
        let full = |what: &'static str| Error::AreaFull { what };
        let mut free = lock(&self.free);
        let count = usize::from(rings.all_tx()) + usize::from(rings.all_rx());
        if RING_OFS + count * 8 > self.plan.ports.size {
            return Err(full("room for so many rings in a port's description"));
        }
        let longest = rings.tx_slots.max(rings.rx_slots) as usize;
        if SLOTS + longest * SLOT > self.plan.rings.size {
            return Err(full("room for so many slots in a ring"));
        }
        let tx = (0..rings.all_tx()).filter(|n| tx_wanted(*n)).count();
        let rx = (0..rings.all_rx()).filter(|n| rx_wanted(*n)).count();
        let buffers = tx * rings.tx_slots as usize + rx * rings.rx_slots as usize;
        if free.ports.is_empty() || free.rings.len() < tx + rx || free.buffers.len() < buffers {
            return Err(full("rings and buffers left"));
        }
        let at = free.ports.pop().unwrap_or_default();
        let mut one = |number: u16, slots: u32, receives: bool| {
            let place = Place { at: free.rings.pop().unwrap_or_default(), slots: slots as usize };
            let kept = free.buffers.len() - slots as usize;
            self.write_ring(place, number, receives, offsets, free.buffers.drain(kept..));
            Some(place)
        };
        let tx: Vec<_> =
            (0..rings.all_tx()).map(|n| if tx_wanted(n) { one(n, rings.tx_slots, false) } else { None }).collect();
        let rx: Vec<_> =
            (0..rings.all_rx()).map(|n| if rx_wanted(n) { one(n, rings.rx_slots, true) } else { None }).collect();
        let placed = Placed { at, tx, rx, offset_mask: offsets.mask };
        self.write_port(name, rings, &placed);
        Ok(placed)
    }

    fn write_port(&self, name: &str, rings: &Rings, placed: &Placed) {
        let mapping = &self.memory.mapping;
        mapping.write(placed.at, &vec![0; self.plan.ports.size]);
        let name = &name.as_bytes()[..name.len().min(15)];
        mapping.write(placed.at, name);
        let word = |field: usize, value: u32| mapping.write(placed.at + field, &value.to_ne_bytes());
        word(NI_VERSION, API);
        word(NI_TX_RINGS, rings.tx.into());
        word(NI_RX_RINGS, rings.rx.into());
        word(NI_HOST_TX_RINGS, rings.host_tx.into());
        word(NI_HOST_RX_RINGS, rings.host_rx.into());
        for (n, place) in placed.tx.iter().chain(&placed.rx).enumerate() {
            let offset = place.map_or(0, |place| place.at as i64 - placed.at as i64);
            mapping.write(placed.at + RING_OFS + n * 8, &offset.to_ne_bytes());
        }
    }

    fn write_ring(
        &self,
        place: Place,
        number: u16,
        receives: bool,
        offsets: Offsets,
        buffers: impl Iterator<Item = u32>,
    ) {
        let mapping = &self.memory.mapping;
        mapping.write(place.at, &[0; SLOTS]);
        mapping.write(place.at + OFFSET_MASK, &offsets.mask.to_ne_bytes());
        mapping.write(place.at + BUF_OFS, &(self.plan.buffers_at() as i64 - place.at as i64).to_ne_bytes());
        let word = |field: usize, value: usize| mapping.write(place.at + field, &(value as u32).to_ne_bytes());
        word(NUM_SLOTS, place.slots);
        word(NR_BUF_SIZE, self.plan.buffers.size);
        word(RINGID_AND_DIR, usize::from(number) | usize::from(receives) << 16);
        for field in [HEAD, CUR, TAIL] {
            word(field, 0);
        }
        for (n, buffer) in buffers.enumerate() {
            let slot = place.at + SLOTS + n * SLOT;
            // A slot to be sent has a buffer's length, as netmap has it.
            let len = if receives { 0 } else { self.plan.buffers.size.min(65_535) as u64 };
            mapping.write(slot, &(u64::from(buffer) | len << 32).to_ne_bytes());
            mapping.write(slot + 8, &(offsets.first & offsets.mask).to_ne_bytes());
        }
    }

    /// A port is gone, and whatever buffers are in its rings are free: the program may have exchanged them.
    pub fn remove(&self, placed: &Placed) {
        let mut free = lock(&self.free);
        for place in placed.tx.iter().chain(&placed.rx).flatten() {
            if let Ok(ring) = ring::Ring::new(&self.memory, *place) {
                free.buffers.extend((0..place.slots).map(|n| ring.slot(n).buffer).filter(|n| self.is_buffer(*n)));
            }
            free.rings.push(place.at);
        }
        free.ports.push(placed.at);
        self.take_extra_back(placed, &mut free);
    }

    /// Takes note of what a pipe still uses.
    pub(super) fn lend(&self, lent: Lent) {
        lock(&self.lent).push(lent);
    }

    /// What is not used any more is free again.
    fn take_back(&self) {
        let mut lent = lock(&self.lent);
        let (ended, going_on) = lent.drain(..).partition(|lent| lent.connection.has_ended());
        *lent = going_on;
        let ended: Vec<Lent> = ended;
        ended.iter().flat_map(|lent| &lent.placed).for_each(|placed| self.remove(placed));
    }

    /// How many buffers are in no ring.
    pub fn free_buffers(&self) -> usize {
        self.take_back();
        lock(&self.free).buffers.len()
    }

    /// So many buffers side by side, by the first of them.
    pub(super) fn take_run(&self, count: usize) -> Option<u32> {
        let free = &mut lock(&self.free).buffers;
        // The last are taken first.
        free.sort_unstable_by(|a, b| b.cmp(a));
        let at = free.windows(count).position(|run| run[0] as usize == run[count - 1] as usize + count - 1)?;
        free.drain(at..at + count).next_back()
    }

    pub(super) fn give_run(&self, first: u32, count: usize) {
        lock(&self.free).buffers.extend(first..first + count as u32);
    }

    fn is_buffer(&self, number: u32) -> bool {
        self.memory.buffer(number).is_some()
    }

    /// Chains up to so many buffers, which are in no ring, through their first words, the first in the port's
    /// description; tells how many.
    pub fn extra(&self, placed: &Placed, count: u32) -> u32 {
        let mut free = lock(&self.free);
        let kept = free.buffers.len().saturating_sub(count as usize);
        let (mut head, mut chained) = (0u32, 0);
        for buffer in free.buffers.drain(kept..) {
            let Some(at) = self.memory.buffer(buffer) else { continue };
            self.memory.mapping.write(at, &head.to_ne_bytes());
            (head, chained) = (buffer, chained + 1);
        }
        self.memory.mapping.write(placed.at + NI_BUFS_HEAD, &head.to_ne_bytes());
        chained
    }

    fn take_extra_back(&self, placed: &Placed, free: &mut Free) {
        let mut next = [0; 4];
        self.memory.mapping.read(placed.at + NI_BUFS_HEAD, &mut next);
        // A program that chains them in a circle has its own buffers free often, no more than there are.
        for _ in 0..self.plan.buffers.count {
            let buffer = u32::from_ne_bytes(next);
            let Some(at) = self.memory.buffer(buffer) else { break };
            free.buffers.push(buffer);
            self.memory.mapping.read(at, &mut next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(ports: Objects, rings: Objects, buffers: usize) -> Area {
        Area::new(Plan { ports, rings, buffers: Objects { count: buffers, size: 2048 } }).unwrap()
    }

    fn place(area: &Area, rings: &Rings) -> Result<Placed> {
        area.place("a", rings, |_| true, |_| true, Offsets::default())
    }

    #[test]
    fn pools_follow_each_other_on_pages_of_their_own() {
        let objects = |count: usize, size: usize| Objects { count, size };
        let plan = Plan { ports: objects(5, 1024), rings: objects(3, 4352), buffers: objects(7, 2048) };
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

    #[test]
    fn a_pipe_s_memory_has_room_for_both_ends_and_nothing_else() {
        let rings = Rings { tx: 3, rx: 2, tx_slots: 64, rx_slots: 16, ..Rings::default() };
        for (rings, buffers) in [(rings, 2 * (3 * 64 + 2 * 16)), (Rings::default(), 2 * 2 * 1024)] {
            let plan = Plan::of_pipe(&rings);
            assert_eq!((plan.ports.count, plan.buffers.count), (2, buffers + FIRST_BUFFER as usize));
            assert_eq!(plan.rings.count, 2 * usize::from(rings.tx.max(1) + rings.rx.max(1)));
        }
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let ends = [place(&area, &rings).unwrap(), place(&area, &rings).unwrap()];
        assert_eq!(area.free_buffers(), 0);
        assert!(place(&area, &Rings { tx: 1, ..Rings::default() }).is_err());
        ends.iter().for_each(|end| area.remove(end));
        assert_eq!(area.free_buffers(), 2 * (3 * 64 + 2 * 16));
    }

    #[test]
    fn a_port_that_does_not_fit_is_refused_and_takes_nothing() {
        let rings = Rings { tx: 2, rx: 3, host_tx: 1, host_rx: 1, tx_slots: 16, rx_slots: 32 };
        let buffers = 3 * 16 + 4 * 32;
        let port = Objects { count: 1, size: RING_OFS + 7 * 8 };
        let ring = Objects { count: 7, size: (SLOTS + 32 * SLOT).next_multiple_of(64) };
        let fits = |port: Objects, ring: Objects, buffers: usize| {
            let area = area(port, ring, FIRST_BUFFER as usize + buffers);
            let placed = place(&area, &rings).is_ok();
            assert_eq!(area.free_buffers(), if placed { 0 } else { buffers });
            placed
        };
        assert!(fits(port, ring, buffers));
        assert!(!fits(Objects { size: port.size - 1, ..port }, ring, buffers), "the description is too short");
        assert!(!fits(port, Objects { size: ring.size - 64, ..ring }, buffers), "rings are too short");
        assert!(!fits(Objects { count: 0, ..port }, ring, buffers), "no description is free");
        assert!(!fits(port, Objects { count: 6, ..ring }, buffers), "a ring is missing");
        assert!(!fits(port, ring, buffers - 1), "a buffer is missing");
        // Far beyond, too.
        let area = area(port, ring, 1000);
        assert!(place(&area, &Rings { tx_slots: 4096, ..rings }).is_err());
        assert!(place(&area, &Rings { rx_slots: u32::MAX, ..rings }).is_err());
        assert!(place(&area, &Rings { tx: u16::MAX, rx: u16::MAX, ..rings }).is_err());
    }

    fn word(area: &Area, at: usize) -> u64 {
        let mut bytes = [0; 8];
        area.memory.mapping.read(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn half(area: &Area, at: usize) -> usize {
        word(area, at) as u32 as usize
    }

    /// What a program finds in its memory, as netmap(4) has it.
    #[test]
    fn descriptions_and_rings_are_netmap_s() {
        let area = Area::new(Plan::default()).unwrap();
        let mapping = &area.memory.mapping;
        mapping.write(0, &vec![0xAA; area.plan.buffers_at()]);
        let rings = Rings { tx: 3, rx: 1, host_tx: 1, host_rx: 2, tx_slots: 16, rx_slots: 8 };
        let offsets = Offsets { mask: 0xFF00, first: 0x1234 };
        // The port in front of it is another.
        place(&area, &Rings { tx: 1, rx: 1, tx_slots: 4, rx_slots: 4, ..Rings::default() }).unwrap();
        // The second transmit ring was not asked for.
        let placed = area.place("a_name_that_is_too_long", &rings, |n| n != 1, |_| true, offsets).unwrap();
        assert_ne!(placed.at, 0);
        let mut name = [0; 16];
        mapping.read(placed.at, &mut name);
        assert_eq!(&name, b"a_name_that_is_\0");
        let fields = [NI_VERSION, NI_TX_RINGS, NI_RX_RINGS, NI_HOST_TX_RINGS, NI_HOST_RX_RINGS, NI_BUFS_HEAD];
        assert_eq!(fields.map(|field| half(&area, placed.at + field)), [14, 3, 1, 1, 2, 0]);
        let all: Vec<_> = placed.tx.iter().chain(&placed.rx).collect();
        assert_eq!((all.len(), placed.tx[1]), (7, None));
        let mut seen = std::collections::HashSet::new();
        for (n, place) in all.into_iter().enumerate() {
            let offset = word(&area, placed.at + RING_OFS + n * 8) as i64;
            let Some(place) = place else {
                assert_eq!(offset, 0);
                continue;
            };
            assert_eq!(placed.at as i64 + offset, place.at as i64);
            let receives = n >= 4;
            let number = if receives { n - 4 } else { n };
            let slots = if receives { 8 } else { 16 };
            assert_eq!(word(&area, place.at + BUF_OFS) as i64, area.plan.buffers_at() as i64 - place.at as i64);
            assert_eq!([NUM_SLOTS, NR_BUF_SIZE].map(|field| half(&area, place.at + field)), [slots, 2048]);
            assert_eq!(half(&area, place.at + RINGID_AND_DIR), number | usize::from(receives) << 16);
            assert_eq!([HEAD, CUR, TAIL].map(|field| half(&area, place.at + field)), [0; 3]);
            assert_eq!((word(&area, place.at + OFFSET_MASK), word(&area, place.at + ring::TS)), (0xFF00, 0));
            for slot in (0..slots).map(|slot| place.at + SLOTS + slot * SLOT) {
                let (what, pointer) = (word(&area, slot), word(&area, slot + 8));
                assert_eq!((what >> 32, pointer), (if receives { 0 } else { 2048 }, 0x1200));
                assert!(seen.insert(what as u32) && area.is_buffer(what as u32), "a buffer is in one slot");
            }
        }
    }

    #[test]
    fn buffers_of_a_port_that_is_gone_are_free_whatever_it_has_written() {
        let rings = Rings { tx: 1, rx: 1, tx_slots: 4, rx_slots: 4, ..Rings::default() };
        let port = Objects { count: 2, size: 1024 };
        let area = area(port, Objects { count: 4, size: 4096 }, FIRST_BUFFER as usize + 20);
        let placed = place(&area, &rings).unwrap();
        assert_eq!(area.extra(&placed, 5), 5);
        assert_eq!(area.free_buffers(), 20 - 8 - 5);
        // The chain of extra buffers leads through their first words, and ends with 0.
        let mut next = half(&area, placed.at + NI_BUFS_HEAD) as u32;
        let mut chain = Vec::new();
        while let Some(at) = area.memory.buffer(next) {
            chain.push(next);
            next = half(&area, at) as u32;
        }
        assert_eq!((chain.len(), next), (5, 0));
        area.remove(&placed);
        assert_eq!(area.free_buffers(), 20);
        let distinct: std::collections::HashSet<_> = lock(&area.free).buffers.iter().copied().collect();
        assert_eq!(distinct.len(), 20);

        // More than there are is what there is.
        let placed = place(&area, &rings).unwrap();
        assert_eq!((area.extra(&placed, 100), area.free_buffers()), (12, 0));
        area.remove(&placed);
        assert_eq!(area.free_buffers(), 20);

        // No buffer in a slot, and a chain that leads to none.
        let placed = place(&area, &rings).unwrap();
        let slot = placed.tx[0].unwrap().at + SLOTS;
        for (n, nonsense) in [0, 1, 22, u32::MAX].into_iter().enumerate() {
            area.memory.mapping.write(slot + n * SLOT, &nonsense.to_ne_bytes());
        }
        area.memory.mapping.write(placed.at + NI_BUFS_HEAD, &22u32.to_ne_bytes());
        area.remove(&placed);
        assert_eq!(area.free_buffers(), 16, "what is named by nothing is lost to this program");
        assert!(lock(&area.free).buffers.iter().all(|buffer| area.is_buffer(*buffer)));

        // A chain in a circle comes to an end.
        let placed = place(&area, &rings).unwrap();
        area.memory.mapping.write(placed.at + NI_BUFS_HEAD, &5u32.to_ne_bytes());
        area.memory.mapping.write(area.memory.buffer(5).unwrap(), &5u32.to_ne_bytes());
        area.remove(&placed);
        assert_eq!(area.free_buffers(), 16 + area.plan.buffers.count);
    }

    #[test]
    fn what_a_pipe_still_uses_is_free_when_its_connection_ends() {
        let rings = Rings { tx: 1, rx: 1, tx_slots: 4, rx_slots: 4, ..Rings::default() };
        let port = Objects { count: 2, size: 1024 };
        let area = area(port, Objects { count: 4, size: 4096 }, FIRST_BUFFER as usize + 16);
        let (first, second) = (place(&area, &rings).unwrap(), place(&area, &rings).unwrap());
        let lend = |placed: Placed| {
            let [ours, theirs] = Connection::pair().unwrap();
            area.lend(Lent { connection: ours, placed: vec![placed] });
            theirs
        };
        let ends = [lend(first), lend(second)];
        assert_eq!(area.free_buffers(), 0);
        assert!(place(&area, &rings).is_err());
        let [first, _second] = ends;
        drop(first);
        assert_eq!(area.free_buffers(), 8);
        assert!(place(&area, &rings).is_ok(), "it has been taken back once");
        assert_eq!(area.free_buffers(), 0);
    }
}
