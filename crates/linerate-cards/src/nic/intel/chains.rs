//! The beginnings of packets whose descriptors need not follow each other in the ring (82599 datasheet, 7.11.5.2).
//!
//! Descriptors are processed in the order of the ring. A descriptor that does not end its packet names the next one,
//! which is marked with the packet's number until it is processed. The card is untrusted: a name outside the ring, or of
//! a descriptor that another packet continues in, ends the packet.

use linerate_core::offload::LONGEST;
use linerate_core::slot::Slot;

/// The most incomplete packets of a queue: the card coalesces 32 flows at a time (7.11).
pub const MOST_PACKETS: usize = 32;

/// The mark of a descriptor that begins a packet, and of one that continues a dropped packet.
const NONE: u8 = u8::MAX;
const DROPPED: u8 = NONE - 1;

/// The incomplete packets of a ring.
pub struct Chains {
    /// For each descriptor, the number of the packet that it continues, or a mark.
    continues: Box<[u8]>,
    packets: Box<[Chain]>,
    /// The numbers of unused packets.
    unused: Vec<u8>,
    most_slots: usize,
    /// The slots of all packets.
    held: usize,
}

/// The slots of a packet so far.
#[derive(Default)]
pub struct Chain {
    pub slots: Vec<Slot>,
    /// RSCCNT of each slot's descriptor: one more than the number of segments that begin in it; 0 for other packets.
    pub counts: Vec<u8>,
    pub len: usize,
}

/// A descriptor that the card is done with.
pub struct Part {
    pub slot: Slot,
    pub count: u8,
    /// The position where the packet continues; `None` if it ends.
    pub next: Option<usize>,
    /// The card has reported an error, or an invalid length.
    pub is_faulty: bool,
}

/// The state of a packet after one of its descriptors.
pub enum Added {
    /// The packet continues.
    Incomplete,
    /// The packet with this number is complete.
    Complete(usize),
    /// The packet is malformed. The buffers of its earlier slots are free; the descriptor keeps its buffer.
    Malformed(Vec<u32>),
    /// The descriptor continues a malformed packet, and keeps its buffer.
    Skipped,
}

impl Chain {
    /// Returns the number of segments that the card has coalesced; 0 if it has coalesced none.
    pub fn segments(&self) -> usize {
        self.counts.iter().map(|count| usize::from(count.saturating_sub(1))).sum()
    }
}

impl Chains {
    /// Creates the state for a ring of `len` descriptors and packets of up to `most_slots` slots.
    pub fn new(len: usize, most_slots: usize) -> Chains {
        let packet = || Chain { slots: Vec::with_capacity(most_slots), counts: Vec::with_capacity(most_slots), len: 0 };
        Chains {
            continues: vec![NONE; len].into(),
            packets: (0..MOST_PACKETS).map(|_| packet()).collect(),
            unused: (0..MOST_PACKETS as u8).collect(),
            most_slots,
            held: 0,
        }
    }

    /// Returns whether the descriptor at a position begins a packet.
    pub fn begins(&self, at: usize) -> bool {
        self.continues[at] == NONE
    }

    /// Adds the descriptor at a position to its packet.
    pub fn add(&mut self, at: usize, part: Part) -> Added {
        let Part { slot, count, next, is_faulty } = part;
        let next = next.map(|next| Some(next).filter(|&next| next != at && self.continues.get(next) == Some(&NONE)));
        let mark = std::mem::replace(&mut self.continues[at], NONE);
        let number = match mark {
            NONE => self.unused.pop(),
            DROPPED => None,
            number => Some(number),
        };
        let has_room = number.is_some_and(|number| {
            let packet = &self.packets[usize::from(number)];
            packet.slots.len() < self.most_slots && packet.len + slot.len() <= LONGEST
        });
        match (number, next) {
            (Some(number), None | Some(Some(_))) if has_room && !is_faulty => {
                let packet = &mut self.packets[usize::from(number)];
                packet.len += slot.len();
                packet.slots.push(slot);
                packet.counts.push(count);
                self.held += 1;
                let Some(next) = next.flatten() else { return Added::Complete(number.into()) };
                self.continues[next] = number;
                Added::Incomplete
            }
            _ => {
                if let Some(next) = next.flatten() {
                    self.continues[next] = DROPPED;
                }
                let begun = number.map(|number| self.remove(number.into()).iter().map(Slot::buf).collect());
                if mark == DROPPED { Added::Skipped } else { Added::Malformed(begun.unwrap_or_default()) }
            }
        }
    }

    /// Returns a complete packet.
    pub fn packet(&mut self, number: usize) -> &mut Chain {
        &mut self.packets[number]
    }

    /// Removes a packet, and returns its slots.
    pub fn remove(&mut self, number: usize) -> Vec<Slot> {
        let packet = &mut self.packets[number];
        let slots = packet.slots.drain(..).collect::<Vec<_>>();
        packet.counts.clear();
        packet.len = 0;
        self.held -= slots.len();
        self.unused.push(number as u8);
        slots
    }

    /// Returns the count of slots of all packets.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Removes all packets, and returns their buffers.
    pub fn clear(&mut self) -> Vec<u32> {
        self.held = 0;
        self.continues.fill(NONE);
        self.unused = (0..MOST_PACKETS as u8).collect();
        let of_packet = |packet: &mut Chain| {
            packet.counts.clear();
            packet.len = 0;
            packet.slots.drain(..).map(|slot| slot.buf()).collect::<Vec<_>>()
        };
        self.packets.iter_mut().flat_map(of_packet).collect()
    }
}
