//! The device's side of a packed virtqueue (VIRTIO 1.2, 2.8): a ring of descriptors that driver and device both write.
//!
//! A position is an index in the ring, with the wrap counter in bit 15: 1 in the first round, then alternating. A
//! descriptor's two flags tell which side owns it:
//!
//! ```text
//!              available   used
//!   wrap 1     A - -       A U     A = AVAILABLE, U = USED
//!   wrap 0     - U -       - -
//! ```
//!
//! Chains are used in order, at the position of their first descriptor. Used descriptors are held back, then exposed
//! from the last to the first. The driver waits for the first of these descriptors, so it sees all of them or none.
//!
//! The front end's memory does not contain the position, so it is [recorded](super::positions) before each exposure. If
//! the process is killed, the next one reads the position from the record, and completes an interrupted exposure.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use linerate_core::memory::{Descriptors, DmaArray, full_fence};
use linerate_core::ring::Breach;
use linerate_spec::virtio::packed::{AVAILABLE, DESC, DISABLE, ENABLE, MODE, USED};
use linerate_spec::virtio::ring::{INDIRECT, NEXT, WRITE};

use super::memory::GuestMemory;
use super::positions::{Record, RecordedPosition};
use super::ring::{Addresses, Descriptor, DeviceRing, Found, Head};

/// The wrap counter in a position.
const WRAP: u16 = 1 << 15;
/// The shifts of id and flags in a descriptor's second word, above the length.
const ID: u32 = 32;
const FLAGS: u32 = 48;
/// The flags that tell which side owns a descriptor.
const OWNER: u16 = AVAILABLE | USED;

/// One packed virtqueue.
pub struct Packed {
    /// Address; then length, id and flags, from low to high bits.
    ring: Descriptors,
    /// When the driver wants interrupts.
    driver: DmaArray<AtomicU32>,
    /// When this side wants notifications.
    device: DmaArray<AtomicU32>,
    event_idx: bool,
    last: u16,
    next: u16,
    /// Used chains not yet exposed: position and second word.
    used: Box<[(u16, u64)]>,
    /// The number of used chains.
    count: usize,
    record: Record,
    base: u16,
}

/// Returns the index in the ring of a position.
#[inline(always)]
fn index(position: u16) -> usize {
    usize::from(position & !WRAP)
}

/// Returns the flags of an available descriptor at a position.
#[inline(always)]
fn available(position: u16) -> u16 {
    if position & WRAP != 0 { AVAILABLE } else { USED }
}

/// Returns the flags of a used descriptor at a position.
#[inline(always)]
fn used(position: u16) -> u16 {
    if position & WRAP != 0 { AVAILABLE | USED } else { 0 }
}

impl Packed {
    /// Locates a ring of `size` descriptors in the front end's memory. The ring begins at `next`; if `None`, at the
    /// recorded position, or at the front end's `base` if the ring is new. Returns `None` if the ring is not completely
    /// in the memory, or the position is outside the ring.
    pub fn new(
        memory: &GuestMemory,
        at: Addresses,
        size: u16,
        event_idx: bool,
        (next, base): (Option<u16>, u16),
        record: Record,
    ) -> Option<Packed> {
        let count = usize::from(size);
        let ring = memory.translate_array(at.descriptors, 16 * count, 16)?;
        let [driver, device] = [memory.translate_array(at.available, 4, 4)?, memory.translate_array(at.used, 4, 4)?];
        let last = size.checked_sub(1).filter(|&last| last < WRAP)?;
        // SAFETY: the front end's memory is never lent as a slice.
        let mut packed = unsafe {
            Packed {
                ring: DmaArray::new(ring.mapping, ring.at, count),
                driver: DmaArray::new(driver.mapping, driver.at, 1),
                device: DmaArray::new(device.mapping, device.at, 1),
                event_idx,
                last,
                next: 0,
                used: vec![(0, 0); count].into(),
                count: 0,
                record,
                base,
            }
        };
        packed.next = next.unwrap_or_else(|| packed.resume(at.descriptors));
        if packed.next & !WRAP > last {
            return None;
        }
        packed.record_exposure(packed.next, packed.next);
        Some(packed)
    }

    /// Returns the position after a descriptor.
    #[inline(always)]
    fn after(&self, position: u16) -> u16 {
        if position & !WRAP == self.last { !position & WRAP } else { position + 1 }
    }

    /// Returns the position as an index from 0 to 2 × size − 1: over two rounds, by the wrap bit.
    fn number(&self, position: u16) -> u32 {
        let second = if position & WRAP == 0 { u32::from(self.last) + 1 } else { 0 };
        u32::from(position & !WRAP) + second
    }

    /// Returns the number of descriptors from one position to another.
    fn distance(&self, from: u16, to: u16) -> u32 {
        let both = 2 * (u32::from(self.last) + 1);
        (self.number(to) + both - self.number(from) % both) % both
    }

    /// Reads the descriptor at a position, and its id; `None` if the driver has not made it available.
    #[inline(always)]
    fn descriptor(&self, position: u16) -> Option<(Descriptor, u16)> {
        let [address, second] = &self.ring[index(position)];
        // Acquire: the address and the packet are read after the flags.
        let word = second.load(Acquire);
        let flags = (word >> FLAGS) as u16;
        if flags & OWNER != available(position) {
            return None;
        }
        let flags = flags & (NEXT | WRITE | INDIRECT);
        let descriptor = Descriptor { address: address.load(Relaxed), len: word as u32, flags, next: 0 };
        Some((descriptor, (word >> ID) as u16))
    }

    /// Returns the second word of a used chain's first descriptor.
    #[inline(always)]
    fn word(chain: Head, len: u32) -> u64 {
        let written = if len > 0 { WRITE } else { 0 };
        u64::from(len) | u64::from(chain.id) << ID | u64::from(used(chain.position) | written) << FLAGS
    }

    /// Exposes one used chain.
    #[inline(always)]
    fn expose(&self, position: u16, word: u64) {
        // Release: after the packet, the record, and the later chains.
        self.ring[index(position)][1].store(word, Release);
    }

    /// Records that the chains between two positions are about to be exposed.
    #[inline(always)]
    fn record_exposure(&self, from: u16, to: u16) {
        self.record.store(RecordedPosition { base: self.base, last: self.last, from, to });
    }

    /// Returns the position at which a ring at this address starts.
    ///
    /// If the previous process was killed, the front end sends the same base again, and the recorded position is right.
    /// But if the driver has reset the ring meanwhile, the base may still be the same, although the ring is new.
    fn resume(&self, address: u64) -> u16 {
        let is_inside = |position: u16| position & !WRAP <= self.last;
        let is_it = |&RecordedPosition { base, last, from, to }: &RecordedPosition| {
            last == self.last && [base, from, to, self.base].into_iter().all(is_inside)
        };
        match self.record.load_for(address).filter(is_it) {
            Some(RecordedPosition { base, from, to, .. }) if !self.is_new() => {
                self.complete(from, to);
                self.resume_after_qemu_drops(base, to)
            }
            _ => self.base,
        }
    }

    /// Returns whether no descriptor from the base on was ever used. Each descriptor is then available in the first
    /// round, or zero except for its id, which some drivers (DPDK) write in advance.
    fn is_new(&self) -> bool {
        let is_unused = |[address, second]: &[AtomicU64; 2]| {
            let word = second.load(Relaxed);
            let is_zero = word & !(0xFFFF << ID) == 0 && address.load(Relaxed) == 0;
            (word >> FLAGS) as u16 & OWNER == AVAILABLE || is_zero
        };
        self.base & WRAP != 0 && self.ring.iter().skip(index(self.base)).all(is_unused)
    }

    /// Completes an interrupted exposure: the driver has seen none of it, and gets all of its chains back empty.
    fn complete(&self, from: u16, to: u16) {
        let (mut at, mut chains) = (from, Vec::new());
        while at != to && chains.len() < self.size() {
            let Some((first, id)) = self.descriptor(at) else { break };
            let chain = Head { first, position: at, end: self.after(at), id };
            let whole = self.follow_to_end(chain).ok();
            chains.push(whole.unwrap_or(chain));
            match whole {
                Some(chain) => at = chain.end,
                // The front end has used the rest of the chain as a separate chain.
                None => break,
            }
        }
        if chains.is_empty() {
            return; // the exposure was not interrupted
        }
        for _ in 0..self.size() {
            if at == to {
                break;
            }
            let word = self.ring[index(at)][1].load(Relaxed);
            if (word >> FLAGS) as u16 & OWNER == used(at) {
                self.expose(at, word & 0xFFFF << ID | u64::from(used(at)) << FLAGS);
            }
            at = self.after(at);
        }
        chains.iter().rev().for_each(|&chain| self.expose(chain.position, Packed::word(chain, 0)));
    }

    /// Returns the position at which a ring at `position` resumes, if the front end's base was `before`.
    ///
    /// While its back end is gone, QEMU empties a transmit queue. QEMU knows the position of a packed ring only from
    /// the base, and returns the chains that it finds at the base as used. If `before` is ahead of `position`, QEMU has
    /// used chains out of order: the driver waits for the chains in between, which are returned empty, too. Otherwise
    /// the driver waits for no earlier chain.
    fn resume_after_qemu_drops(&self, before: u16, position: u16) -> u16 {
        if self.base == before {
            return position;
        }
        let mut at = position;
        while at != before {
            if self.descriptor(at).is_none() {
                return position;
            }
            at = self.after(at);
        }
        self.record_exposure(position, self.base);
        self.complete(position, self.base);
        self.base
    }
}

impl DeviceRing for Packed {
    fn allows_table_at_end() -> bool {
        false
    }

    #[inline(always)]
    fn size(&self) -> usize {
        self.used.len()
    }

    #[inline(always)]
    fn next(&self) -> u16 {
        self.next
    }

    #[inline(always)]
    fn has_work(&self) -> bool {
        let word = self.ring[index(self.next)][1].load(Relaxed);
        (word >> FLAGS) as u16 & OWNER == available(self.next)
    }

    #[inline(always)]
    fn poll_available(&mut self) -> Result<(), Breach> {
        Ok(())
    }

    #[inline(always)]
    fn available_at_most(&self, _: u16) -> usize {
        self.size() - self.count
    }

    #[inline(always)]
    fn read_chain(&self, position: u16) -> Found {
        // More chains than the ring's size, which the driver adds while this side reads it, must wait.
        if self.count == self.size() {
            return Found::Unavailable;
        }
        match self.descriptor(position) {
            Some((first, id)) => Found::Chain(Head { first, position, end: self.after(position), id }),
            None => Found::Unavailable,
        }
    }

    #[inline(always)]
    fn follow(&self, chain: &mut Head, _: Descriptor) -> Result<Descriptor, Breach> {
        // The driver makes a chain's first descriptor available last; the id is in the last descriptor (2.8.6).
        let next = self.descriptor(chain.end);
        let (descriptor, id) = next.ok_or(Breach::Other("a chain's next descriptor is not available"))?;
        (chain.id, chain.end) = (id, self.after(chain.end));
        Ok(descriptor)
    }

    fn of_table(address: u64, rest: u64, number: usize, count: usize) -> Descriptor {
        // A table is one chain, in order (2.8.8).
        let next = if number + 1 < count { NEXT } else { 0 };
        let flags = (rest >> FLAGS) as u16 & (WRITE | INDIRECT) | next;
        Descriptor { address, len: rest as u32, flags, next: (number + 1) as u16 }
    }

    fn fills_ring(&self, from: u16, to: u16) -> bool {
        to == from ^ WRAP
    }

    #[inline(always)]
    fn put_used(&mut self, chain: Head, len: u32) {
        // There can be more used chains than the ring has descriptors only if the driver revokes some chains.
        if let Some(used) = self.used.get_mut(self.count) {
            *used = (chain.position, Packed::word(chain, len));
            self.count += 1;
        }
    }

    #[inline(always)]
    fn publish(&mut self, to: u16) -> bool {
        self.record_exposure(self.next, to);
        self.used[..self.count].iter().rev().for_each(|&(position, word)| self.expose(position, word));
        self.count = 0;
        // The driver may have enabled interrupts just now (2.8.21.3.1).
        full_fence();
        let before = std::mem::replace(&mut self.next, to);
        let event = self.driver[0].load(Relaxed);
        match event & MODE {
            DISABLE => false,
            DESC if self.event_idx => self.distance(before, event as u16) < self.distance(before, to),
            _ => true,
        }
    }

    fn allow_notifications(&self) {
        let event = if self.event_idx { DESC | u32::from(self.next) } else { ENABLE };
        self.device[0].store(event, Relaxed);
        full_fence();
    }

    fn forbid_notifications(&self) {
        self.device[0].store(DISABLE, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::vhost::memory::RegionDescription;
    use crate::vhost::positions::PositionFile;

    /// Chains that the driver adds beyond the ring's size, while this side reads it, wait until the used chains are
    /// exposed.
    #[test]
    fn no_more_chains_are_taken_than_the_ring_has() {
        const SIZE: u16 = 4;
        let folder = tempfile::tempdir().unwrap();
        let positions = Arc::new(PositionFile::open(&folder.path().join("socket")).unwrap());
        let file = memfd_create("front end", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 * 4096).unwrap();
        let mut memory = GuestMemory::default();
        memory.add(RegionDescription { guest: 0, len: 3 * 4096, user: 0, offset: 0 }, file).unwrap();
        let at = Addresses { descriptors: 0, available: 4096, used: 8192 };
        let begins = (Some(WRAP), WRAP);
        let mut ring = Packed::new(&memory, at, SIZE, false, begins, Record::new(positions, 0)).unwrap();
        let make_available = |ring: &Packed, position: u16| {
            ring.ring[index(position)][1].store(u64::from(available(position)) << FLAGS | 60, Release);
        };
        let mut position = WRAP;
        for _ in 0..SIZE {
            make_available(&ring, position);
            let Found::Chain(head) = ring.read_chain(position) else { panic!("it is available") };
            ring.put_used(head, 0);
            position = head.end;
        }
        make_available(&ring, position);
        assert!(matches!(ring.read_chain(position), Found::Unavailable));
        ring.publish(position);
        assert!(matches!(ring.read_chain(position), Found::Unavailable), "its position has a used chain");
        make_available(&ring, position);
        assert!(matches!(ring.read_chain(position), Found::Chain(_)));
    }
}
