//! The device's side of a split virtqueue (VIRTIO 1.2, 2.7). A position is the number of chains before it, modulo 2^16.
//!
//! The front end can write anything to its memory at any time, so indices and ids are read once, and validated.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};

use linerate_core::memory::{Descriptors, DmaArray, full_fence};
use linerate_core::ring::{Breach, Cursor};
use linerate_spec::virtio::ring::{QUIET, passes};

use super::memory::GuestMemory;
use super::ring::{Addresses, Descriptor, DeviceRing, Found, Head};

/// Both rings begin with flags and index.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

/// One split virtqueue.
pub struct Split {
    table: Descriptors,
    /// Flags, index, ids, and the used index at which the driver wants an interrupt.
    available: DmaArray<AtomicU16>,
    /// Flags and index.
    used: DmaArray<AtomicU16>,
    /// Id and length of each used element.
    used_ring: DmaArray<[AtomicU32; 2]>,
    /// The available index at which this side wants a notification.
    notify_at: DmaArray<AtomicU16>,
    mask: u16,
    event_idx: bool,
    /// Counts chains published as used, and available chains.
    cursor: Cursor<u16>,
}

impl Split {
    /// Locates a ring of `size` descriptors in the front end's memory. The ring begins at `next`; if `None`, at its
    /// used index. Returns `None` if the ring is not completely in the memory.
    pub fn new(memory: &GuestMemory, at: Addresses, size: u16, event_idx: bool, next: Option<u16>) -> Option<Split> {
        let count = usize::from(size);
        let (ids, elements) = (2 * RING + 2 * count + 2, 2 * RING + 8 * count + 2);
        let table = memory.translate_array(at.descriptors, 16 * count, 16)?;
        let available = memory.translate_array(at.available, ids, 2)?;
        let used = memory.translate_array(at.used, elements, 4)?;
        if !size.is_power_of_two() {
            return None;
        }
        // SAFETY: the front end's memory is never lent as a slice.
        let mut split = unsafe {
            Split {
                table: DmaArray::new(table.mapping, table.at, count),
                available: DmaArray::new(available.mapping, available.at, RING + count + 1),
                used: DmaArray::new(used.mapping, used.at, RING),
                used_ring: DmaArray::new(used.mapping, used.at + 4, count),
                notify_at: DmaArray::new(used.mapping, used.at + 4 + 8 * count, 1),
                mask: size - 1,
                event_idx,
                cursor: Cursor::new(0, 0),
            }
        };
        let next = next.unwrap_or_else(|| split.used[INDEX].load(Relaxed));
        split.cursor = Cursor::new(next, next);
        Some(split)
    }

    /// Returns a descriptor.
    ///
    /// # Errors
    /// The number is outside the table.
    #[inline(always)]
    fn descriptor(&self, number: u16) -> Result<Descriptor, Breach> {
        match self.table.get(usize::from(number)) {
            Some([address, rest]) => Ok(Split::read(address.load(Relaxed), rest.load(Relaxed))),
            None => Err(Breach::Beyond { what: "a descriptor's number", is: number.into(), most: self.mask.into() }),
        }
    }

    /// Reads the two words of a descriptor.
    #[inline(always)]
    fn read(address: u64, rest: u64) -> Descriptor {
        Descriptor { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// Returns the index in both rings of a position.
    #[inline(always)]
    fn index(&self, position: u16) -> usize {
        usize::from(position & self.mask)
    }
}

impl DeviceRing for Split {
    fn allows_table_at_end() -> bool {
        true
    }

    #[inline(always)]
    fn size(&self) -> usize {
        usize::from(self.mask) + 1
    }

    #[inline(always)]
    fn next(&self) -> u16 {
        self.cursor.own()
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        self.available[INDEX].load(Relaxed) != self.next()
    }

    #[inline(always)]
    fn poll_available(&mut self) -> Result<(), Breach> {
        // Acquire: ids, descriptors and packets are read after the index.
        let count = self.cursor.refresh_available(|| self.available[INDEX].load(Acquire));
        let most = self.mask + 1;
        match count <= most {
            true => Ok(()),
            false => Err(Breach::Beyond { what: "the count of available chains", is: count.into(), most: most.into() }),
        }
    }

    #[inline(always)]
    fn available_at_most(&self, position: u16) -> usize {
        self.cursor.other().wrapping_sub(position).into()
    }

    #[inline(always)]
    fn read_chain(&self, position: u16) -> Found {
        if position == self.cursor.other() {
            return Found::Unavailable;
        }
        let id = self.available[RING + self.index(position)].load(Relaxed);
        match self.descriptor(id) {
            Ok(first) => Found::Chain(Head { first, position, end: position.wrapping_add(1), id }),
            Err(breach) => Found::Invalid(breach),
        }
    }

    #[inline(always)]
    fn follow(&self, _: &mut Head, from: Descriptor) -> Result<Descriptor, Breach> {
        self.descriptor(from.next)
    }

    fn of_table(address: u64, rest: u64, _: usize, _: usize) -> Descriptor {
        Split::read(address, rest)
    }

    fn fills_ring(&self, from: u16, to: u16) -> bool {
        to.wrapping_sub(from) == self.mask + 1
    }

    #[inline(always)]
    fn put_used(&mut self, chain: Head, len: u32) {
        let [id, written] = &self.used_ring[self.index(chain.position)];
        id.store(chain.id.into(), Relaxed);
        written.store(len, Relaxed);
    }

    #[inline(always)]
    fn publish(&mut self, to: u16) -> bool {
        self.used[INDEX].store(to, Release);
        // The driver may have enabled interrupts just now (2.7.7.2).
        full_fence();
        let before = self.next();
        self.cursor.advance(to.wrapping_sub(before));
        match self.event_idx {
            true => passes(self.available[RING + self.size()].load(Relaxed), before, to),
            false => self.available[FLAGS].load(Relaxed) & QUIET == 0,
        }
    }

    fn allow_notifications(&self) {
        self.used[FLAGS].store(0, Relaxed);
        self.notify_at[0].store(self.next(), Relaxed);
        full_fence();
    }

    fn forbid_notifications(&self) {
        // With event indexes, the flags are ignored. An index just passed is passed again only after 2^16 chains.
        self.used[FLAGS].store(QUIET, Relaxed);
        self.notify_at[0].store(self.next().wrapping_sub(1), Relaxed);
    }
}
