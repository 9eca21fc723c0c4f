//! The packets in a transmit queue, in the order in which they were added.

use std::ops::Range;

use linerate_core::batch::Batch;
use linerate_core::memory::Locate;

use super::ring::DriverRing;
use super::sent_word::{BYTES, COUNT, EARLY, SINGLE};
use super::vector::Groups;

/// Marks a descriptor that has only a header, and no buffer.
pub(super) const NO_BUFFER: u32 = u32::MAX;

/// Packets get descriptors in ring order; a packet's id is its first descriptor:
///
/// ```text
///            clean                         next
///   [ free | sent | sent | early | sent | free | free ]
/// ```
///
/// A device may return packets out of order. A packet that returns early waits until all packets before it have
/// returned.
pub(super) struct Sent {
    /// The buffer of each descriptor, or [`NO_BUFFER`].
    bufs: Box<[u32]>,
    /// The word of each packet, at its first descriptor; 0 elsewhere.
    packets: Box<[u32]>,
    /// The oldest descriptor in use, and the next free one; they never wrap.
    clean: usize,
    next: usize,
    /// Whether any header had a separate descriptor.
    has_headers: bool,
    /// The device uses packets in order, and may report several by the last one (2.7.9, 2.8.9).
    is_in_order: bool,
}

/// The result of [`Sent::reclaim`].
#[derive(Default)]
pub(super) struct Returned {
    pub packets: usize,
    pub slots: usize,
    pub bytes: usize,
    /// The device also returned an invalid id.
    pub invalid_id: bool,
}

impl Sent {
    pub fn new(size: u16, is_in_order: bool) -> Sent {
        let (bufs, packets) = (vec![0; size.into()].into(), vec![0; size.into()].into());
        Sent { bufs, packets, clean: 0, next: 0, has_headers: false, is_in_order }
    }

    /// Returns the number of descriptors, a power of two.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bufs.len()
    }

    /// Returns the count of free descriptors.
    #[inline(always)]
    pub fn free(&self) -> usize {
        self.len() - self.next.wrapping_sub(self.clean)
    }

    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        at & self.len().wrapping_sub(1)
    }

    /// Returns free entries for packets in one buffer each: the first descriptor, and slices for buffers and words.
    /// Report the count filled to [`commit`](Sent::commit).
    #[inline(always)]
    pub fn space(&mut self, most: usize) -> (usize, &mut [u32], &mut [u32]) {
        let first = self.place(self.next);
        let count = most.min(self.free()).min(self.len() - first);
        (first, &mut self.bufs[first..][..count], &mut self.packets[first..][..count])
    }

    /// Commits `count` entries written to [`space`](Sent::space).
    #[inline(always)]
    pub fn commit(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count);
    }

    /// Adds a packet of `bytes` bytes in this buffer; a descriptor must be free. Returns the descriptor.
    #[inline(always)]
    pub fn push(&mut self, buf: u32, bytes: u32) -> usize {
        let place = self.place(self.next);
        (self.bufs[place], self.packets[place]) = (buf, SINGLE | bytes);
        self.next = self.next.wrapping_add(1);
        place
    }

    /// Allocates the next descriptor for this buffer; a descriptor must be free. Finish the packet with
    /// [`end_packet`](Sent::end_packet).
    #[inline(always)]
    pub fn add(&mut self, buf: u32) -> u16 {
        let place = self.place(self.next);
        self.bufs[place] = buf;
        self.has_headers |= buf == NO_BUFFER;
        self.next = self.next.wrapping_add(1);
        place as u16
    }

    /// Records that a packet of `bytes` bytes is in the last `count` descriptors.
    #[inline(always)]
    pub fn end_packet(&mut self, count: usize, bytes: usize) {
        let first = self.place(self.next.wrapping_sub(count));
        self.packets[first] = (count as u32) << COUNT | bytes as u32;
    }

    /// Pops all used packets, and gives their buffers to the batch.
    #[inline(always)]
    pub fn reclaim<R: DriverRing>(
        &mut self,
        ring: &mut R,
        batch: &mut Batch,
        groups: Option<&Groups<impl Locate>>,
    ) -> Returned {
        let first = self.clean;
        let mut returned = Returned::default();
        for _ in 0..self.len() {
            let oldest = self.place(self.clean);
            ring.poll_used();
            let (used, packets) = (ring.used_run(oldest), &mut self.packets[oldest..]);
            let (mut count, mut bytes) = groups.map_or((0, 0), |groups| groups.reclaim::<R>(used, packets));
            while let Some(packet) = packets.get_mut(count)
                && count < used.len::<R>()
                && *packet >> COUNT == 1
                && used.written::<R>(count).is_some()
            {
                bytes += (std::mem::take(packet) & BYTES) as usize;
                count += 1;
            }
            ring.advance_used(count);
            self.clean = self.clean.wrapping_add(count);
            returned.packets += count;
            returned.bytes += bytes;
            let Some((id, _)) = ring.peek_used() else { break };
            let is_valid = count > 0
                || if self.is_in_order {
                    self.mark_early_through(id.into(), ring)
                } else {
                    self.mark_early(id.into(), ring)
                };
            if !is_valid {
                returned.invalid_id = true;
                break;
            }
            self.take_early(&mut returned);
        }
        self.take_early(&mut returned);
        returned.slots = self.clean.wrapping_sub(first);
        if returned.slots > 0 {
            let start = self.place(first);
            let wrapped = (start + returned.slots).saturating_sub(self.len());
            let headers = self.give(start..start + returned.slots - wrapped, batch) + self.give(0..wrapped, batch);
            returned.slots -= headers;
        }
        returned
    }

    /// Takes early packets, once all packets before them have returned.
    #[inline(always)]
    fn take_early(&mut self, returned: &mut Returned) {
        while self.packets[self.place(self.clean)] & EARLY != 0 {
            let place = self.place(self.clean);
            let packet = std::mem::take(&mut self.packets[place]) & !EARLY;
            returned.packets += 1;
            returned.bytes += (packet & BYTES) as usize;
            self.clean = self.clean.wrapping_add((packet >> COUNT) as usize);
        }
    }

    /// Marks a returned packet as early, so that it is reclaimed in its turn: it has several descriptors, or is not the
    /// oldest. Returns false if no packet has the id `place`.
    #[cold]
    fn mark_early(&mut self, place: usize, ring: &mut impl DriverRing) -> bool {
        let Some(packet) = self.packets.get_mut(place).filter(|packet| **packet != 0 && **packet & EARLY == 0) else {
            return false;
        };
        ring.pop_used((*packet >> COUNT) as u16);
        *packet |= EARLY;
        true
    }

    /// Flags all packets up to the packet with id `last` as early. Returns false, without a change, if the id is
    /// invalid.
    #[cold]
    fn mark_early_through(&mut self, last: usize, ring: &mut impl DriverRing) -> bool {
        let after = |sent: &Sent, at: usize| at.wrapping_add((sent.packets[sent.place(at)] >> COUNT) as usize);
        let (mut end, mut count) = (self.clean, 0);
        loop {
            if end == self.next || self.packets[self.place(end)] & EARLY != 0 || count == ring.most_used() {
                return false;
            }
            if self.place(end) == last {
                break;
            }
            (end, count) = (after(self, end), count + 1);
        }
        let mut at = self.clean;
        for _ in 0..=count {
            let next = after(self, at);
            self.mark_early(self.place(at), ring);
            at = next;
        }
        true
    }

    /// Gives the buffers of these descriptors to the batch. Returns the count of headers among them.
    #[inline(always)]
    fn give(&self, places: Range<usize>, batch: &mut Batch) -> usize {
        let bufs = &self.bufs[places];
        // SAFETY: the device has used these descriptors, and `clean` is past them; the buffers are of the batch's pool.
        let put = |batch: &mut Batch, bufs: &[u32]| unsafe { batch.recycle(bufs) };
        if !self.has_headers {
            put(batch, bufs);
            return 0;
        }
        bufs.iter().filter(|&&buf| buf != NO_BUFFER).for_each(|&buf| put(batch, &[buf]));
        bufs.iter().filter(|&&buf| buf == NO_BUFFER).count()
    }

    /// Returns the buffers that the device holds.
    pub fn held(&self) -> Vec<u32> {
        let taken =
            (0..self.next.wrapping_sub(self.clean)).map(|at| self.bufs[self.place(self.clean.wrapping_add(at))]);
        taken.filter(|&buf| buf != NO_BUFFER).collect()
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::{Contiguous, Mapping, PageSize, Pages, Pool, Region, RegionOptions};
    use linerate_core::slot::Slot;
    use linerate_spec::virtio::packed::{AVAILABLE, USED};

    use super::super::packed::Packed;
    use super::super::ring::Part;
    use super::super::ring::tests::{self, part, ring};
    use super::super::split::Split;
    use super::*;

    /// A device reports several packets by the last one: packets of one or more descriptors, and invalid ids.
    #[test]
    fn packets_reported_by_the_last_one_all_return() {
        split_or_packed::<Split>(|memory, first, id, end| {
            let used = Split::layout(8).device;
            memory.write(used + 4 + first.0 % 8 * 8, &u32::from(id).to_le_bytes());
            memory.write(used + 2, &(end.0 as u16).to_le_bytes());
        });
        split_or_packed::<Packed>(|memory, first, id, _| {
            let flags = if (first.1 / 8).is_multiple_of(2) { u64::from(AVAILABLE | USED) } else { 0 };
            memory.write(first.1 % 8 * 16 + 8, &(u64::from(id) << 32 | flags << 48).to_le_bytes());
        });
    }

    /// A position, counted in packets and in descriptors.
    type Place = (usize, usize);

    fn split_or_packed<R: DriverRing>(report: impl Fn(&Mapping, Place, u16, Place)) {
        let pages = Pages::Only(PageSize::Ordinary);
        let region = RegionOptions { buffers: 64, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&region).unwrap());
        let (mut ring, memory) = ring::<R>(8, false);
        let (mut sent, mut batch) = (Sent::new(8, true), Batch::new());
        let none = None::<&Groups<Contiguous>>;
        let mut at = (0, 0);
        for round in 0..20 {
            // Three packets of 1, 2 and 1 descriptors, with buffers from the pool.
            batch.alloc(&pool, 4, 60);
            let bufs: Vec<u32> = batch.slots().iter().map(Slot::buf).collect();
            batch.sent(4);
            let mut ids = Vec::new();
            for (n, bufs) in [&bufs[..1], &bufs[1..3], &bufs[3..]].into_iter().enumerate() {
                let parts: Vec<Part> = bufs.iter().map(|&buf| part(sent.add(buf))).collect();
                sent.end_packet(parts.len(), 10 << n);
                ids.push(parts[0].descriptor);
                ring.add(&parts);
            }
            let (middle, end) = ((at.0 + 2, at.1 + 3), (at.0 + 3, at.1 + 4));
            match round % 2 {
                0 => report(&memory, at, ids[2], end),
                _ => {
                    report(&memory, at, ids[1], middle);
                    report(&memory, middle, ids[2], end);
                }
            }
            let Returned { packets, slots, bytes, invalid_id } = sent.reclaim(&mut ring, &mut batch, none);
            assert_eq!((packets, slots, bytes, invalid_id), (3, 4, 70, false));
            assert!(sent.held().is_empty() && sent.free() == 8);
            at = end;
        }
        // The second descriptors of the first and the last packet, and an id beyond the ring.
        for id in [1, 5, u16::MAX] {
            let (mut ring, memory) = tests::ring::<R>(8, false);
            let mut sent = Sent::new(8, true);
            for buf in 0..3 {
                let parts = [part(sent.add(2 * buf)), part(sent.add(2 * buf + 1))];
                sent.end_packet(2, 1);
                ring.add(&parts);
            }
            report(&memory, (0, 0), id, (3, 6));
            let Returned { packets, invalid_id, .. } = sent.reclaim(&mut ring, &mut batch, none);
            assert_eq!((packets, invalid_id, sent.held().len()), (0, true, 6), "{id}");
        }
        batch.clear();
    }

    /// The longest packet in the most descriptors that its word can hold.
    #[test]
    fn the_most_descriptors_do_not_set_the_early_flag() {
        for count in [1, 64, crate::nic::virtio::sent_word::MOST] {
            let mut sent = Sent::new(1 << 15, false);
            for buf in 0..count {
                sent.add(buf as u32);
            }
            sent.end_packet(count, linerate_core::offload::LONGEST);
            let word = sent.packets[0];
            assert_eq!(word & EARLY, 0, "{count} descriptors");
            assert_eq!(((word >> COUNT) as usize, (word & BYTES) as usize), (count, linerate_core::offload::LONGEST));
        }
    }
}
