//! The device's side of a split virtqueue (VIRTIO 1.2, 2.7): it takes available chains, and returns them as used, in order.
//!
//! The front end may write anything, at any time, to what it has: indices and ids are read once, and checked.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};

use super::memory::GuestMemory;
use crate::memory::{Descriptors, DmaArray, full_fence};
use crate::spec::virtio::ring::{QUIET, passes};

/// Both rings begin with flags and index.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

/// Where the front end has the three parts of a ring: its own addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

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
    /// The count of chains taken and used; the ring has its lower 16 bits.
    next: u16,
    /// The used index that was last published.
    published: u16,
}

impl Split {
    /// Finds a ring of `size` descriptors in the front end's memory. It begins at `next`; if `None`, where the front end has
    /// seen it used. Returns `None` if it is not wholly there.
    pub fn new(memory: &GuestMemory, at: Addresses, size: u16, event_idx: bool, next: Option<u16>) -> Option<Split> {
        let count = usize::from(size);
        let (ids, elements) = (2 * RING + 2 * count + 2, 2 * RING + 8 * count + 2);
        let parts = [(at.descriptors, 16 * count, 16), (at.available, ids, 2), (at.used, elements, 4)];
        let mut places = [None; 3];
        for (place, (address, len, align)) in places.iter_mut().zip(parts) {
            *place = memory.user(address).filter(|there| there.len >= len && there.at.is_multiple_of(align));
        }
        let [Some(table), Some(available), Some(used)] = places else { return None };
        if !size.is_power_of_two() {
            return None;
        }
        // SAFETY: nothing of the front end's memory is lent as a slice.
        let mut split = unsafe {
            Split {
                table: DmaArray::new(table.mapping, table.at, count),
                available: DmaArray::new(available.mapping, available.at, RING + count + 1),
                used: DmaArray::new(used.mapping, used.at, RING),
                used_ring: DmaArray::new(used.mapping, used.at + 4, count),
                notify_at: DmaArray::new(used.mapping, used.at + 4 + 8 * count, 1),
                mask: size - 1,
                event_idx,
                next: 0,
                published: 0,
            }
        };
        split.next = next.unwrap_or_else(|| split.used[INDEX].load(Relaxed));
        split.published = split.next;
        Some(split)
    }

    /// Returns the count of chains taken and used so far, modulo 2^16.
    #[inline(always)]
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Returns the count of descriptors.
    pub fn size(&self) -> usize {
        usize::from(self.mask) + 1
    }

    /// Returns the count of chains available; `None` if the front end claims more than the ring has.
    #[inline(always)]
    pub fn waiting(&self) -> Option<u16> {
        // Acquire: ids, descriptors and packets are read after the index.
        let waiting = self.available[INDEX].load(Acquire).wrapping_sub(self.next);
        (waiting <= self.mask + 1).then_some(waiting)
    }

    /// Returns the first descriptor's number of the chain `ahead` of the next one.
    #[inline(always)]
    pub fn head(&self, ahead: u16) -> u16 {
        let place = usize::from(self.next.wrapping_add(ahead) & self.mask);
        self.available[RING + place].load(Relaxed)
    }

    /// Returns a descriptor; `None` if there is none of this number.
    #[inline(always)]
    pub fn descriptor(&self, number: u16) -> Option<Descriptor> {
        let [address, rest] = self.table.get(usize::from(number))?;
        Some(Descriptor::of(address.load(Relaxed), rest.load(Relaxed)))
    }

    /// Writes that the chain `ahead` of the next one is used; [`publish`](Split::publish) exposes it.
    #[inline(always)]
    pub fn put_used(&self, ahead: u16, head: u16, len: u32) {
        let [id, written] = &self.used_ring[usize::from(self.next.wrapping_add(ahead) & self.mask)];
        id.store(head.into(), Relaxed);
        written.store(len, Relaxed);
    }

    /// Exposes `count` chains as used. Returns whether the driver wants an interrupt.
    #[inline(always)]
    pub fn publish(&mut self, count: u16) -> bool {
        self.next = self.next.wrapping_add(count);
        self.used[INDEX].store(self.next, Release);
        // The driver may want one since just now (2.7.7.2).
        full_fence();
        let before = std::mem::replace(&mut self.published, self.next);
        match self.event_idx {
            true => passes(self.available[RING + self.size()].load(Relaxed), before, self.next),
            false => self.available[FLAGS].load(Relaxed) & QUIET == 0,
        }
    }

    /// Asks the driver for a notification when it makes the next chain available.
    pub fn allow_notifications(&self) {
        self.used[FLAGS].store(0, Relaxed);
        self.notify_at[0].store(self.next, Relaxed);
        full_fence();
    }

    /// Asks the driver for no notifications.
    pub fn forbid_notifications(&self) {
        // With event indexes the flags are ignored; an index just passed is passed again only after 2^16 chains.
        self.used[FLAGS].store(QUIET, Relaxed);
        self.notify_at[0].store(self.next.wrapping_sub(1), Relaxed);
    }
}

impl Descriptor {
    /// Reads the two words of a descriptor.
    #[inline(always)]
    pub fn of(address: u64, rest: u64) -> Descriptor {
        Descriptor { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}
