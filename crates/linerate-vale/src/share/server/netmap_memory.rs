//! Memory for ports, in netmap's layout (`protocol/layout.rs`). The server creates it and allocates its parts; programs
//! map it.

use std::sync::{Arc, Mutex};

use linerate_core::error::{Error, Result};
use linerate_core::memory::Mapping;

use crate::share::protocol::layout::{
    API, NI_BUFS_HEAD, NI_HOST_RX_RINGS, NI_HOST_TX_RINGS, NI_RX_RINGS, NI_TX_RINGS, NI_VERSION, Offsets, Plan,
    PortLayout, RING_OFS, RingCounts,
};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::{Buffers, FIRST_BUFFER, SharedMapping};
use crate::share::protocol::message::{OpenRequest, Opened};
use crate::share::protocol::ring::{
    self, BUF_OFS, CUR, HEAD, NR_BUF_SIZE, NUM_SLOTS, OFFSET_MASK, RINGID_AND_DIR, RingAt, SLOT, SLOTS, STATE, TAIL,
    ZONE,
};
use crate::share::server::quota::{ExtraGrant, MAX_EXTRA_PER_PORT};

/// Memory for ports, with lists of its free objects.
pub struct NetmapMemory {
    /// The mapping.
    pub shared: Arc<SharedMapping>,
    /// Its layout.
    pub plan: Plan,
    free: Mutex<Free>,
}

struct Free {
    ports: Vec<usize>,
    rings: Vec<usize>,
    buffers: Vec<u32>,
    /// For each buffer before the first that was never used: whether it is in `buffers`. A program may name a buffer
    /// twice.
    is_free: Vec<bool>,
    /// The number of all buffers. A list of all buffers would be most of the server's memory, so a buffer enters
    /// `buffers` only when it is freed.
    count: usize,
    /// Where the next ring's zone starts.
    zone: usize,
}

impl Free {
    fn all(plan: &Plan) -> Free {
        Free {
            ports: (0..plan.ports.count).rev().map(|n| n * plan.ports.size).collect(),
            rings: (0..plan.rings.count).rev().map(|n| plan.rings_at() + n * plan.rings.size + STATE).collect(),
            buffers: Vec::new(),
            is_free: vec![false; FIRST_BUFFER as usize],
            count: plan.buffers.count,
            zone: plan.len(),
        }
    }

    fn take(&mut self) -> Option<u32> {
        let Some(buffer) = self.buffers.pop() else {
            let next = self.is_free.len();
            return (next < self.count).then(|| {
                self.is_free.push(false);
                next as u32
            });
        };
        self.is_free[buffer as usize] = false;
        Some(buffer)
    }

    /// Returns the number of free buffers.
    fn available(&self) -> usize {
        self.buffers.len() + self.count.saturating_sub(self.is_free.len())
    }

    /// Frees a buffer; returns false if there is no such buffer, or it is already free.
    fn give(&mut self, buffer: u32) -> bool {
        match self.is_free.get_mut(buffer as usize) {
            Some(is_free) if !*is_free && buffer >= FIRST_BUFFER => {
                *is_free = true;
                self.buffers.push(buffer);
                true
            }
            _ => false,
        }
    }
}

/// Parts of memory that are freed when this is dropped.
pub struct Lease {
    /// The memory.
    pub memory: Arc<NetmapMemory>,
    /// Rings; for a pipe, those of both ends.
    pub rings: Vec<PortLayout>,
    /// Offset of a port's description.
    pub description: Option<usize>,
    /// Buffers outside all rings that are not linked into a list yet.
    pub extra: Vec<u32>,
    /// The user's grant for these buffers.
    pub grant: Option<ExtraGrant>,
}

impl Lease {
    /// Holds a description of a port, and buffers outside all rings to be linked into it.
    pub fn of_description(memory: &Arc<NetmapMemory>, at: usize, extra: Vec<u32>) -> Lease {
        Lease { memory: memory.clone(), rings: Vec::new(), description: Some(at), extra, grant: None }
    }

    /// Holds rings without a description.
    pub fn of_rings(memory: &Arc<NetmapMemory>, rings: Vec<PortLayout>) -> Lease {
        Lease { memory: memory.clone(), rings, description: None, extra: Vec::new(), grant: None }
    }

    /// Links the buffers outside all rings into a list through their first words; its head is in the description. From
    /// then on the program may remove buffers from the list and add others.
    pub fn chain_extra(&mut self) {
        let (mapping, extra) = (&self.memory.shared.mapping, std::mem::take(&mut self.extra));
        let Some(description) = self.description else { return };
        let mut head = 0u32;
        for (buffer, at) in extra.into_iter().rev().filter_map(|n| Some((n, self.memory.shared.buffer(n)?))) {
            mapping.write(at, &head.to_ne_bytes());
            head = buffer;
        }
        mapping.write(description + NI_BUFS_HEAD, &head.to_ne_bytes());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.give(&self.extra);
        self.rings.iter().for_each(|layout| self.memory.remove_rings(layout));
        self.description.iter().for_each(|at| self.memory.remove_description(*at));
    }
}

impl NetmapMemory {
    /// Creates memory by a plan.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if memory cannot be mapped,
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted) if the plan exceeds the limits.
    pub fn new(plan: Plan) -> Result<NetmapMemory> {
        if !plan.is_possible() {
            return Err(Error::port_memory_full("room for objects of this number and size"));
        }
        let mapping = Mapping::lazy(plan.len() + plan.zones * ZONE)?;
        let buffers = Buffers { at: plan.buffers_at(), size: plan.buffers.size, count: plan.buffers.count };
        let shared = Arc::new(SharedMapping { mapping, buffers });
        Ok(NetmapMemory { shared, plan, free: Mutex::new(Free::all(&plan)) })
    }

    /// Creates a port: its description, and the wanted rings, filled with buffers.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted); then nothing has changed.
    pub fn place(
        &self,
        name: &str,
        rings: &RingCounts,
        tx_wanted: impl Fn(u16) -> bool,
        rx_wanted: impl Fn(u16) -> bool,
        offsets: Offsets,
    ) -> Result<PortLayout> {
        let layout = self.place_rings(rings, tx_wanted, rx_wanted, offsets)?;
        self.describe(name, rings, &layout).inspect_err(|_| self.remove_rings(&layout))
    }

    /// Creates the wanted rings of a port, filled with buffers, without a description.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted); then nothing has changed.
    pub fn place_rings(
        &self,
        rings: &RingCounts,
        tx_wanted: impl Fn(u16) -> bool,
        rx_wanted: impl Fn(u16) -> bool,
        offsets: Offsets,
    ) -> Result<PortLayout> {
        let full = |what: &'static str| Error::port_memory_full(what);
        let mut free = lock(&self.free);
        let longest = rings.tx_slots.max(rings.rx_slots) as usize;
        if STATE + SLOTS + longest * SLOT > self.plan.rings.size {
            return Err(full("room for rings of this length"));
        }
        let tx = (0..rings.all_tx()).filter(|n| tx_wanted(*n)).count();
        let rx = (0..rings.all_rx()).filter(|n| rx_wanted(*n)).count();
        let buffers = tx * rings.tx_slots as usize + rx * rings.rx_slots as usize;
        if free.rings.len() < tx + rx || free.available() < buffers {
            return Err(full("rings and buffers left"));
        }
        let mut one = |number: u16, slots: u32, receives: bool| {
            let end = free.zone + slots as usize * ZONE;
            let has_zone = !receives && end <= self.shared.mapping.len();
            let zone = if has_zone { std::mem::replace(&mut free.zone, end) } else { 0 };
            let place = RingAt { at: free.rings.pop().unwrap_or_default(), slots: slots as usize, zone };
            self.write_ring(place, number, receives, offsets, std::iter::from_fn(|| free.take()).take(slots as usize));
            Some(place)
        };
        let tx: Vec<_> =
            (0..rings.all_tx()).map(|n| if tx_wanted(n) { one(n, rings.tx_slots, false) } else { None }).collect();
        let rx: Vec<_> =
            (0..rings.all_rx()).map(|n| if rx_wanted(n) { one(n, rings.rx_slots, true) } else { None }).collect();
        Ok(PortLayout { at: 0, tx, rx, offset_mask: offsets.mask })
    }

    /// Creates the rings of both ends of a pipe. Each receive ring has the buffers of the other end's transmit ring.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted); then nothing has changed.
    pub fn place_pipe(&self, rings: &[RingCounts; 2], offsets: Offsets) -> Result<[PortLayout; 2]> {
        let sending = |rings: &RingCounts| self.place_rings(rings, |_| true, |_| false, offsets);
        let first = sending(&rings[0])?;
        let second = sending(&rings[1]).inspect_err(|_| self.remove_rings(&first))?;
        let mut ends = [first, second];
        for side in [0, 1] {
            let senders = ends[1 - side].tx.clone();
            for (number, sender) in senders.into_iter().enumerate().filter_map(|(n, place)| Some((n, place?))) {
                let Some(place) = self.mirror(sender, number as u16, offsets) else {
                    ends.iter().for_each(|end| self.remove_rings(end));
                    return Err(Error::port_memory_full("rings and buffers left"));
                };
                ends[side].rx[number] = Some(place);
            }
        }
        Ok(ends)
    }

    /// Creates a receive ring with the buffers of a transmit ring.
    fn mirror(&self, sender: RingAt, number: u16, offsets: Offsets) -> Option<RingAt> {
        let sending = ring::SharedRing::new(&self.shared, sender).ok()?;
        let place = RingAt { at: lock(&self.free).rings.pop()?, zone: 0, ..sender };
        let buffers = (0..place.slots).map(|slot| sending.slot(slot).buffer);
        self.write_ring(place, number, true, offsets, buffers);
        Some(place)
    }

    /// Creates a description of a port with these rings; returns the rings with the description's offset.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](linerate_core::ErrorKind::Exhausted).
    pub fn describe(&self, name: &str, rings: &RingCounts, layout: &PortLayout) -> Result<PortLayout> {
        let count = usize::from(rings.all_tx()) + usize::from(rings.all_rx());
        if RING_OFS + count * 8 > self.plan.ports.size {
            return Err(Error::port_memory_full("room for this number of rings in a port's description"));
        }
        let at = lock(&self.free).ports.pop().ok_or(Error::port_memory_full("descriptions of ports left"))?;
        let layout = PortLayout { at, ..layout.clone() };
        self.write_port(name, rings, &layout);
        Ok(layout)
    }

    fn write_port(&self, name: &str, rings: &RingCounts, layout: &PortLayout) {
        let mapping = &self.shared.mapping;
        mapping.write(layout.at, &vec![0; self.plan.ports.size]);
        let name = &name.as_bytes()[..name.len().min(15)];
        mapping.write(layout.at, name);
        let word = |field: usize, value: u32| mapping.write(layout.at + field, &value.to_ne_bytes());
        word(NI_VERSION, API);
        word(NI_TX_RINGS, rings.tx.into());
        word(NI_RX_RINGS, rings.rx.into());
        word(NI_HOST_TX_RINGS, rings.host_tx.into());
        word(NI_HOST_RX_RINGS, rings.host_rx.into());
        for (n, place) in layout.tx.iter().chain(&layout.rx).enumerate() {
            let offset = place.map_or(0, |place| place.at as i64 - layout.at as i64);
            mapping.write(layout.at + RING_OFS + n * 8, &offset.to_ne_bytes());
        }
    }

    fn write_ring(
        &self,
        place: RingAt,
        number: u16,
        receives: bool,
        offsets: Offsets,
        buffers: impl Iterator<Item = u32>,
    ) {
        let mapping = &self.shared.mapping;
        mapping.write(place.at - STATE, &[0; STATE + SLOTS]);
        mapping.write(place.at + OFFSET_MASK, &offsets.mask.to_ne_bytes());
        mapping.write(place.at + BUF_OFS, &(self.plan.buffers_at() as i64 - place.at as i64).to_ne_bytes());
        let word = |field: usize, value: usize| mapping.write(place.at + field, &(value as u32).to_ne_bytes());
        word(NUM_SLOTS, place.slots);
        word(NR_BUF_SIZE, self.plan.buffers.size);
        // netmap writes 1 for a transmit ring (netmap_mem2.c), contrary to its header.
        word(RINGID_AND_DIR, usize::from(number) | usize::from(!receives) << 16);
        for field in [HEAD, CUR, TAIL] {
            word(field, 0);
        }
        for (n, buffer) in buffers.enumerate() {
            let slot = place.at + SLOTS + n * SLOT;
            // A slot of a transmit ring starts with the length of a buffer, as in netmap.
            let len = if receives { 0 } else { self.plan.buffers.size.min(65_535) as u64 };
            mapping.write(slot, &(u64::from(buffer) | len << 32).to_ne_bytes());
            mapping.write(slot + 8, &(offsets.first & offsets.mask).to_ne_bytes());
        }
    }

    /// Frees a port's rings and its description.
    #[cfg(test)]
    pub fn remove(&self, layout: &PortLayout) {
        self.remove_rings(layout);
        self.remove_description(layout.at);
    }

    /// Frees rings and the buffers that are in them now; the program may have swapped some.
    fn remove_rings(&self, layout: &PortLayout) {
        let mut free = lock(&self.free);
        for place in layout.tx.iter().chain(&layout.rx).flatten() {
            if let Ok(ring) = ring::SharedRing::new(&self.shared, *place) {
                for slot in 0..place.slots {
                    free.give(ring.slot(slot).buffer);
                }
            }
            free.rings.push(place.at);
        }
    }

    /// Frees a port's description and the list of buffers in it.
    fn remove_description(&self, at: usize) {
        let mut free = lock(&self.free);
        free.ports.push(at);
        // A circular list ends where it starts, because that buffer is already free.
        let mut next = [0; 4];
        self.shared.mapping.read(at + NI_BUFS_HEAD, &mut next);
        while free.give(u32::from_ne_bytes(next)) {
            let Some(at) = self.shared.buffer(u32::from_ne_bytes(next)) else { break };
            self.shared.mapping.read(at, &mut next);
        }
    }

    /// Returns the number of free buffers.
    #[cfg(test)]
    pub fn free_buffers(&self) -> usize {
        lock(&self.free).available()
    }

    /// Describes a port with these rings and `extra` additional buffers for its client.
    pub fn opened(
        &self,
        wanted: &OpenRequest,
        rings: RingCounts,
        number: u16,
        layout: PortLayout,
        extra: usize,
    ) -> Opened {
        let (wanted, len, buffers) = (wanted.clone(), self.plan.len(), self.shared.buffers);
        let extra = u32::try_from(extra).unwrap_or(u32::MAX);
        Opened { request: wanted, rings, mac: [0; 6], number, len, buffers, layout, other: None, extra }
    }

    /// Allocates up to `count` buffers for use outside all rings.
    pub fn take_extra(&self, count: u32) -> Vec<u32> {
        let mut free = lock(&self.free);
        std::iter::from_fn(|| free.take()).take(count.min(MAX_EXTRA_PER_PORT) as usize).collect()
    }

    fn give(&self, buffers: &[u32]) {
        if !buffers.is_empty() {
            let free = &mut *lock(&self.free);
            for buffer in buffers {
                free.give(*buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::protocol::layout::Objects;
    use crate::share::protocol::ring::TS;

    fn memory(ports: Objects, rings: Objects, buffers: usize) -> Arc<NetmapMemory> {
        let buffers = Objects { count: buffers, size: 2048 };
        Arc::new(NetmapMemory::new(Plan { ports, rings, buffers, zones: 0 }).unwrap())
    }

    fn place(memory: &NetmapMemory, rings: &RingCounts) -> Result<PortLayout> {
        memory.place("a", rings, |_| true, |_| true, Offsets::default())
    }

    /// Links extra buffers for a port, as for a program that has it open until the test removes it.
    fn extra(memory: &Arc<NetmapMemory>, layout: &PortLayout, count: u32) -> usize {
        let mut lease = Lease::of_description(memory, layout.at, memory.take_extra(count));
        let taken = lease.extra.len();
        lease.chain_extra();
        lease.description = None;
        taken
    }

    #[test]
    fn a_port_s_memory_has_exactly_the_planned_room() {
        let rings = RingCounts { tx: 3, rx: 2, tx_slots: 64, rx_slots: 16, ..RingCounts::default() };
        let plan = Plan::of_ports(2, &rings, 5);
        let buffers = 2 * (3 * 64 + 2 * 16) + 5;
        assert_eq!((plan.ports.count, plan.rings.count), (2, 2 * 5));
        assert_eq!(plan.buffers.count, buffers + FIRST_BUFFER as usize);
        let memory = Arc::new(NetmapMemory::new(plan).unwrap());
        let ends = [place(&memory, &rings).unwrap(), place(&memory, &rings).unwrap()];
        assert_eq!((extra(&memory, &ends[0], 100), memory.free_buffers()), (5, 0));
        assert!(place(&memory, &RingCounts { tx: 1, ..RingCounts::default() }).is_err());
        ends.iter().for_each(|end| memory.remove(end));
        assert_eq!(memory.free_buffers(), buffers);
    }

    #[test]
    fn an_impossible_plan_is_refused() {
        let good =
            Plan::of_ports(1, &RingCounts { tx: 1, rx: 1, tx_slots: 64, rx_slots: 64, ..RingCounts::default() }, 0);
        assert!(NetmapMemory::new(good).is_ok());
        let objects = |count: usize, size: usize| Objects { count, size };
        for plan in [
            Plan { ports: objects(usize::MAX, 1024), ..good },
            Plan { ports: objects(1, 0), ..good },
            Plan { rings: objects(1, 100), ..good },
            Plan { rings: objects(1, usize::MAX & !63), ..good },
            Plan { buffers: objects(1 << 20, 1 << 17), ..good },
            Plan { buffers: objects(usize::MAX, 2048), ..good },
            Plan { zones: usize::MAX, ..good },
            Plan { ports: objects(10_001, 1024), ..good },
            Plan { rings: objects(4097, 1024), ..good },
            Plan { buffers: objects((1 << 21) + 1, 2048), ..good },
        ] {
            assert!(
                NetmapMemory::new(plan)
                    .map(drop)
                    .is_err_and(|error| error.kind() == linerate_core::ErrorKind::Exhausted),
                "{plan:?}"
            );
        }
    }

    #[test]
    fn transmit_rings_have_zones_while_there_is_room() {
        let rings = RingCounts { tx: 2, rx: 1, tx_slots: 4, rx_slots: 4, ..RingCounts::default() };
        let plan = Plan { zones: 4, ..Plan::of_ports(1, &rings, 0) };
        let memory = NetmapMemory::new(plan).unwrap();
        assert_eq!(memory.shared.mapping.len(), plan.len() + 4 * ZONE);
        let layout = place(&memory, &rings).unwrap();
        let zone = |place: &Option<RingAt>| place.unwrap().zone;
        assert_eq!((zone(&layout.tx[0]), zone(&layout.tx[1]), zone(&layout.rx[0])), (plan.len(), 0, 0));
    }

    #[test]
    fn a_port_that_does_not_fit_is_refused_and_takes_nothing() {
        let rings = RingCounts { tx: 2, rx: 3, host_tx: 1, host_rx: 1, tx_slots: 16, rx_slots: 32 };
        let buffers = 3 * 16 + 4 * 32;
        let port = Objects { count: 1, size: RING_OFS + 7 * 8 };
        let ring = Objects { count: 7, size: (STATE + SLOTS + 32 * SLOT).next_multiple_of(64) };
        let fits = |port: Objects, ring: Objects, buffers: usize| {
            let memory = memory(port, ring, FIRST_BUFFER as usize + buffers);
            let layout = place(&memory, &rings).is_ok();
            assert_eq!(memory.free_buffers(), if layout { 0 } else { buffers });
            layout
        };
        assert!(fits(port, ring, buffers));
        assert!(!fits(Objects { size: port.size - 8, ..port }, ring, buffers), "the description is too short");
        assert!(!fits(port, Objects { size: ring.size - 64, ..ring }, buffers), "rings are too short");
        assert!(!fits(Objects { count: 0, ..port }, ring, buffers), "no description is free");
        assert!(!fits(port, Objects { count: 6, ..ring }, buffers), "a ring is missing");
        assert!(!fits(port, ring, buffers - 1), "a buffer is missing");
        // Lengths and numbers that far exceed the memory.
        let memory = memory(port, ring, 1000);
        assert!(place(&memory, &RingCounts { tx_slots: 4096, ..rings }).is_err());
        assert!(place(&memory, &RingCounts { rx_slots: u32::MAX, ..rings }).is_err());
        assert!(place(&memory, &RingCounts { tx: u16::MAX, rx: u16::MAX, ..rings }).is_err());
    }

    fn word(memory: &NetmapMemory, at: usize) -> u64 {
        let mut bytes = [0; 8];
        memory.shared.mapping.read(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn half(memory: &NetmapMemory, at: usize) -> usize {
        word(memory, at) as u32 as usize
    }

    /// A program finds the structures of netmap(4) in its memory.
    #[test]
    fn descriptions_and_rings_have_netmap_s_form() {
        let memory = NetmapMemory::new(Plan::default()).unwrap();
        let mapping = &memory.shared.mapping;
        mapping.write(0, &vec![0xAA; memory.plan.buffers_at()]);
        let rings = RingCounts { tx: 3, rx: 1, host_tx: 1, host_rx: 2, tx_slots: 16, rx_slots: 8 };
        let offsets = Offsets { mask: 0xFF00, first: 0x1234 };
        // Another port comes first.
        place(&memory, &RingCounts { tx: 1, rx: 1, tx_slots: 4, rx_slots: 4, ..RingCounts::default() }).unwrap();
        // The second transmit ring is not requested.
        let layout = memory.place("a_name_that_is_too_long", &rings, |n| n != 1, |_| true, offsets).unwrap();
        assert_ne!(layout.at, 0);
        let mut name = [0; 16];
        mapping.read(layout.at, &mut name);
        assert_eq!(&name, b"a_name_that_is_\0");
        let fields = [NI_VERSION, NI_TX_RINGS, NI_RX_RINGS, NI_HOST_TX_RINGS, NI_HOST_RX_RINGS, NI_BUFS_HEAD];
        assert_eq!(fields.map(|field| half(&memory, layout.at + field)), [14, 3, 1, 1, 2, 0]);
        let all: Vec<_> = layout.tx.iter().chain(&layout.rx).collect();
        assert_eq!((all.len(), layout.tx[1]), (7, None));
        let mut seen = std::collections::HashSet::new();
        for (n, place) in all.into_iter().enumerate() {
            let offset = word(&memory, layout.at + RING_OFS + n * 8) as i64;
            let Some(place) = place else {
                assert_eq!(offset, 0);
                continue;
            };
            assert_eq!(layout.at as i64 + offset, place.at as i64);
            let receives = n >= 4;
            let number = if receives { n - 4 } else { n };
            let slots = if receives { 8 } else { 16 };
            assert_eq!(word(&memory, place.at + BUF_OFS) as i64, memory.plan.buffers_at() as i64 - place.at as i64);
            assert_eq!([NUM_SLOTS, NR_BUF_SIZE].map(|field| half(&memory, place.at + field)), [slots, 2048]);
            assert_eq!(half(&memory, place.at + RINGID_AND_DIR), number | usize::from(!receives) << 16);
            assert_eq!([HEAD, CUR, TAIL].map(|field| half(&memory, place.at + field)), [0; 3]);
            assert_eq!((word(&memory, place.at + OFFSET_MASK), word(&memory, place.at + TS)), (0xFF00, 0));
            for slot in (0..slots).map(|slot| place.at + SLOTS + slot * SLOT) {
                let (what, pointer) = (word(&memory, slot), word(&memory, slot + 8));
                assert_eq!((what >> 32, pointer), (if receives { 0 } else { 2048 }, 0x1200));
                assert!(
                    seen.insert(what as u32) && memory.shared.buffer(what as u32).is_some(),
                    "a buffer is in one slot"
                );
            }
        }
    }

    #[test]
    fn buffers_of_a_closed_port_are_free_whatever_it_has_written() {
        let rings = RingCounts { tx: 1, rx: 1, tx_slots: 4, rx_slots: 4, ..RingCounts::default() };
        let port = Objects { count: 2, size: 1024 };
        let memory = memory(port, Objects { count: 4, size: 4096 }, FIRST_BUFFER as usize + 20);
        let layout = place(&memory, &rings).unwrap();
        assert_eq!(extra(&memory, &layout, 5), 5);
        assert_eq!(memory.free_buffers(), 20 - 8 - 5);
        // The list of extra buffers is linked through their first words, and ends with 0.
        let mut next = half(&memory, layout.at + NI_BUFS_HEAD) as u32;
        let mut chain = Vec::new();
        while let Some(at) = memory.shared.buffer(next) {
            chain.push(next);
            next = half(&memory, at) as u32;
        }
        assert_eq!((chain.len(), next), (5, 0));
        memory.remove(&layout);
        assert_eq!(memory.free_buffers(), 20);
        let distinct: std::collections::HashSet<_> = lock(&memory.free).buffers.iter().copied().collect();
        assert_eq!(distinct.len(), 8 + 5, "those that were taken");

        // At most all free buffers are taken.
        let layout = place(&memory, &rings).unwrap();
        assert_eq!((extra(&memory, &layout, 100), memory.free_buffers()), (12, 0));
        memory.remove(&layout);
        assert_eq!(memory.free_buffers(), 20);

        // Invalid buffer numbers in slots and in the list.
        let layout = place(&memory, &rings).unwrap();
        let slot = layout.tx[0].unwrap().at + SLOTS;
        for (n, nonsense) in [0, 1, 22, u32::MAX].into_iter().enumerate() {
            memory.shared.mapping.write(slot + n * SLOT, &nonsense.to_ne_bytes());
        }
        memory.shared.mapping.write(layout.at + NI_BUFS_HEAD, &22u32.to_ne_bytes());
        memory.remove(&layout);
        assert_eq!(memory.free_buffers(), 16, "buffers that no slot names stay lost");
        assert!(lock(&memory.free).buffers.iter().all(|buffer| memory.shared.buffer(*buffer).is_some()));

        // A circular list.
        let layout = place(&memory, &rings).unwrap();
        let [own] = memory.take_extra(1)[..] else { panic!("one is free") };
        memory.shared.mapping.write(layout.at + NI_BUFS_HEAD, &own.to_ne_bytes());
        memory.shared.mapping.write(memory.shared.buffer(own).unwrap(), &own.to_ne_bytes());
        memory.remove(&layout);
        assert_eq!(memory.free_buffers(), 16);

        // A buffer that is named twice is freed once.
        let layout = place(&memory, &rings).unwrap();
        let slot = layout.tx[0].unwrap().at + SLOTS;
        let own = half(&memory, slot) as u32;
        (0..4).for_each(|n| memory.shared.mapping.write(slot + n * SLOT, &own.to_ne_bytes()));
        memory.shared.mapping.write(layout.at + NI_BUFS_HEAD, &own.to_ne_bytes());
        memory.remove(&layout);
        assert_eq!(memory.free_buffers(), 16 - 3);
    }
}
