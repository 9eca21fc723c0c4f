//! Copying packets into a batch: from a program's bytes, from the kernel's rings, and from other regions.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::{Batch, MAX_CHAIN};
use crate::memory::{Pool, View};
use crate::metadata::Metadata;
use crate::offload::{LONGEST, Offload, Segmentation, cut};
use crate::packet::{Origin, Packet, stamp, timestamp};
use crate::slot::{HEADROOM, Slot};

/// The result of copying a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The packet was copied.
    Done,
    /// No buffer is free.
    NoBuffer,
    /// The packet is too long, or its pending offloads cannot be done.
    TooLong,
}

impl Batch {
    /// Appends copies of the packets of another pool whose bits in `wanted` are set, in order. Stops when the batch is
    /// full or no buffer is free, or at a packet that is unfinished, in several slots, or longer than `longest`.
    /// Returns the bits of the remaining packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let new_pool = || Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() }).map(Pool::new);
    /// # use linerate::Batch;
    /// # let (pool, theirs, mut from, mut batch) = (new_pool()?, new_pool()?, Batch::new(), Batch::new());
    /// # (batch.push(&pool, &[0; 60]), batch.clear());
    /// (1..=3).for_each(|n| assert!(from.push(&theirs, &[n; 60])));
    /// let slots = from.slots();
    /// // SAFETY: the batch is of `pool`, and these slots are of `theirs`.
    /// let rest = unsafe { batch.copy_short(&pool, theirs.region().view(), 1518, 0b101, |n| &slots[n..=n]) };
    /// assert_eq!(rest, 0); // the first packet and the third were copied
    /// assert_eq!(batch.packets().map(|packet| packet[0]).collect::<Vec<_>>(), [1, 3]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// The batch [is bound](Batch::bind_if_unbound) to `pool`, and the packets belong to the region of `theirs`.
    #[inline(always)]
    pub unsafe fn copy_short<'a>(
        &mut self,
        pool: &Arc<Pool>,
        theirs: View<'_>,
        longest: usize,
        mut wanted: u64,
        packet: impl Fn(usize) -> &'a [Slot],
    ) -> u64 {
        let longest = longest.min(pool.region().room());
        // SAFETY: the view is only used with slots created for buffers of this pool.
        let ours = unsafe { pool.region().view() };
        let count = wanted.count_ones() as usize;
        let copy = |places: &mut [Slot], bufs: &[u32]| {
            let mut copied = 0;
            for (place, &buf) in places.iter_mut().zip(bufs) {
                let [slot] = packet(wanted.trailing_zeros() as usize) else { break };
                if slot.whole_len() > longest {
                    break;
                }
                // SAFETY: the buffer is exchanged for this slot.
                *place = unsafe { theirs.copy(slot, ours, buf) };
                wanted &= wanted - 1;
                copied += 1;
            }
            copied
        };
        // SAFETY: the counted entries are written, with slots of the buffers offered.
        unsafe { self.exchange(count, copy) };
        wanted
    }

    /// Appends a copy of a packet of another pool. With `offloads`, pending offloads stay pending. Otherwise they are
    /// done here, which may append several segments of at most `longest` bytes.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate_core::batch::Copied;
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let new_pool = || Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() }).map(Pool::new);
    /// # use linerate::Batch;
    /// # let (pool, theirs, mut from, mut batch) = (new_pool()?, new_pool()?, Batch::new(), Batch::new());
    /// from.push(&theirs, &[7; 3000]);
    /// // SAFETY: the slots are of the pool `theirs`.
    /// let copied = unsafe { batch.copy_any(&pool, from.slots(), &theirs, 9018, false) };
    /// assert_eq!((copied, batch.len()), (Copied::Done, 2));
    /// // SAFETY: as above.
    /// let copied = unsafe { batch.copy_any(&pool, from.slots(), &theirs, 1518, false) };
    /// assert_eq!((copied, batch.len()), (Copied::TooLong, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// The packet's slots belong to the pool `theirs`.
    #[cold]
    pub unsafe fn copy_any(
        &mut self,
        pool: &Arc<Pool>,
        packet: &[Slot],
        theirs: &Pool,
        longest: usize,
        offloads: bool,
    ) -> Copied {
        let len: usize = packet.iter().map(Slot::len).sum();
        // SAFETY: the view is only used with the packet's slots, which belong to that pool.
        let view = unsafe { theirs.region().view() };
        let left = packet.first().and_then(|first| Offload::of(first, view));
        let parts = packet.iter().map(|slot| view.bytes(slot));
        let appended = |done: bool| if done { Copied::Done } else { Copied::NoBuffer };
        match left {
            Some(left) if offloads && len <= LONGEST => appended(self.push_parts(pool, len, parts, Some(left))),
            Some(left) if left.segmentation() != Segmentation::None => {
                let bytes = parts.collect::<Vec<_>>().concat();
                let (mut fits, mut done) = (true, true);
                let is_cut = cut(&bytes, left, |segment| {
                    fits &= segment.len() <= longest;
                    done &= fits && self.push(pool, segment);
                });
                if is_cut && fits { appended(done) } else { Copied::TooLong }
            }
            left if len <= longest => match self.push_parts(pool, len, parts, left) {
                true if self.finish_last() => Copied::Done,
                // The checksum's offset is outside the packet, so the copy stays as it is.
                pushed => appended(pushed),
            },
            _ => Copied::TooLong,
        }
    }

    /// Moves packets from the front of `other`, a batch of another region, by copying them while there is room. Drops
    /// finished packets longer than `longest`, and packets that `pool` can never hold. Returns the count of slots
    /// removed from `other`, and the count of packets dropped.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let new_pool = || Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() }).map(Pool::new);
    /// # use linerate::Batch;
    /// # let (pool, theirs, mut from, mut batch) = (new_pool()?, new_pool()?, Batch::new(), Batch::new());
    /// [60, 3000, 61].iter().for_each(|len| assert!(from.push(&theirs, &vec![1; *len])));
    /// let (slots, too_long) = batch.copy_from(&pool, &mut from, 1518);
    /// assert_eq!((slots, too_long, from.len()), (4, 1, 0));
    /// assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [60, 61]);
    /// # Ok(()) }
    /// ```
    pub fn copy_from(&mut self, pool: &Arc<Pool>, other: &mut Batch, longest: usize) -> (usize, usize) {
        let (mut slots, mut too_long) = (0, 0);
        for packet in other.packets() {
            let is_too_long = packet.len() > longest && packet.offload().is_none();
            if is_too_long || !self.can_hold(pool, packet.len()) {
                too_long += 1;
            } else if !self.push_copy(pool, &packet) {
                break;
            }
            slots += packet.slots();
        }
        other.drop_front(slots);
        (slots, too_long)
    }

    /// Appends a copy of a packet of any batch, with its pending offloads and its metadata.
    ///
    /// Buffers come from the same pool as for [`push`](Batch::push). Returns false and changes nothing if the batch is
    /// full, or the pool is exhausted.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["sim:copies?wire=none"])?;
    /// use linerate::Batch;
    ///
    /// let (mut batch, mut copies) = (Batch::new(), Batch::new());
    /// batch.push(port.pool(), &[1; 60]);
    /// for mut packet in &mut batch {
    ///     assert!(copies.push_copy(port.pool(), &packet));
    ///     packet[0] = 9; // the copy stays as it is
    /// }
    /// assert_eq!(copies.packets().next().unwrap()[0], 1);
    /// # Ok(()) }
    /// ```
    pub fn push_copy(&mut self, pool: &Arc<Pool>, packet: &Packet<'_>) -> bool {
        let is_pushed = self.push_parts(pool, packet.len(), packet.segments(), packet.offload());
        if is_pushed && packet.is_described() {
            self.describe_last(&packet.metadata());
            packet.timestamp().into_iter().for_each(|time| self.stamp_last_of(time, packet.origin()));
        }
        is_pushed
    }

    /// Records what the port found out about the last packet.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// use linerate::metadata::{Checksum, Metadata};
    ///
    /// batch.push(pool, &[1; 60]);
    /// batch.describe_last(&Metadata { checksum: Checksum::Good, ..Metadata::default() });
    /// assert_eq!(batch.packets().next().unwrap().metadata().checksum, Checksum::Good);
    /// # Ok(()) }
    /// ```
    pub fn describe_last(&mut self, metadata: &Metadata) {
        let (slots, view) = self.last();
        if let Some(first) = slots.first_mut() {
            metadata.describe(first, view);
        }
    }

    /// As [`push`](Batch::push), for several parts with a total of `len` bytes, and with pending offloads.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let (header, payload) = ([2; 14], [7; 46]);
    /// let parts = [&header[..], &payload[..]];
    /// assert!(batch.push_parts(pool, 60, parts.into_iter(), None));
    /// assert_eq!(batch.packets().next().unwrap()[12..16], [2, 2, 7, 7]);
    /// # Ok(()) }
    /// ```
    pub fn push_parts<'a>(
        &mut self,
        pool: &Arc<Pool>,
        len: usize,
        parts: impl Iterator<Item = &'a [u8]>,
        offload: Option<Offload>,
    ) -> bool {
        let (mut parts, mut part): (_, &[u8]) = (parts, &[]);
        self.push_filled(pool, len, offload, |_, mut target| {
            while !target.is_empty() {
                if part.is_empty() {
                    part = parts.next().expect("the parts are `len` bytes");
                    continue;
                }
                let fits = part.len().min(target.len());
                target[..fits].copy_from_slice(&part[..fits]);
                (target, part) = (&mut target[fits..], &part[fits..]);
            }
        })
    }

    /// As [`push`](Batch::push), for `len` bytes that `fill` writes. Each call of `fill` gets the count of bytes
    /// written before, and the slice to fill next.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let message = vec![7; 3000]; // two buffers of 2 KiB
    /// let fill = |begin, bytes: &mut [u8]| bytes.copy_from_slice(&message[begin..begin + bytes.len()]);
    /// assert!(batch.push_filled(pool, message.len(), None, fill));
    /// assert_eq!((batch.len(), batch.packets().next().unwrap().len()), (2, 3000));
    /// # Ok(()) }
    /// ```
    pub fn push_filled(
        &mut self,
        pool: &Arc<Pool>,
        len: usize,
        offload: Option<Offload>,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> bool {
        if self.len() >= self.capacity() {
            return false;
        }
        self.bind_if_empty(pool);
        let room = self.room();
        let count = if len <= room { 1 } else { len.div_ceil(room) };
        if count > MAX_CHAIN {
            return false;
        }
        self.compact();
        let Batch { slots, end, cache, .. } = self;
        let bufs = cache.offer(count);
        if bufs.len() < count {
            return false;
        }
        let slots = &mut slots[*end..*end + count];
        for (index, (slot, &buf)) in slots.iter_mut().zip(bufs).enumerate() {
            let part = room.min(len - index * room);
            // SAFETY: the buffer is of the batch's pool, offered to this slot, and has `room` bytes after the headroom.
            *slot = unsafe { Slot::new(buf, HEADROOM, part as u16, index + 1 < count) };
        }
        let Some(region) = cache.pool().map(|pool| pool.region()) else { return false };
        // SAFETY: the view is only used with these slots, of buffers of the same pool.
        let view = unsafe { region.view() };
        if let Some(offload) = offload {
            offload.note(&mut slots[0], view);
        }
        for (index, slot) in slots.iter_mut().enumerate() {
            fill(index * room, view.bytes_mut(slot));
        }
        cache.used(count, count);
        *end += count;
        self.has_chains |= count > 1;
        true
    }

    /// Appends packets of one slot each. `fill` writes a packet to a slice of at most `longest` bytes, and returns its
    /// length and whether a switch must not learn from it; `None` ends the loop. Returns the count of packets.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// let mut ring = [[1; 60], [2; 60], [3; 60]].into_iter();
    /// let count = batch.push_short(pool, 1518, |bytes| {
    ///     let frame = ring.next()?;
    ///     bytes[..60].copy_from_slice(&frame);
    ///     Some((60, false)) // a switch may learn from it
    /// });
    /// assert_eq!((count, batch.len()), (3, 3));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn push_short(
        &mut self,
        pool: &Arc<Pool>,
        longest: usize,
        mut fill: impl FnMut(&mut [u8]) -> Option<(usize, bool)>,
    ) -> usize {
        if !self.bind_if_unbound(pool) {
            return 0;
        }
        let longest = longest.min(pool.region().room());
        // SAFETY: the view is only used with slots created for buffers of this pool.
        let view = unsafe { pool.region().view() };
        let fill_all = |places: &mut [Slot], bufs: &[u32]| {
            let mut done = 0;
            for (place, &buf) in places.iter_mut().zip(bufs) {
                // SAFETY: the buffer is offered to this slot, and has room for `longest` bytes. The first slot is
                // dropped before the second is created.
                let slot = |len: usize| unsafe { Slot::new(buf, HEADROOM, len as u16, false) };
                let Some((len, is_unlearned)) = fill(view.bytes_mut(&mut slot(longest))) else { break };
                *place = slot(len.min(longest));
                if is_unlearned {
                    place.set_unlearned();
                }
                done += 1;
            }
            done
        };
        // SAFETY: the counted entries are written, with slots of the buffers offered.
        unsafe { self.exchange(usize::MAX, fill_all).1 }
    }

    /// Receives for `batch`, whose region is not that of `pool`. `receive` fills this batch, whose packets are then
    /// copied to `batch`. Returns the count of slots appended. Packets that do not fit stay here for the next call,
    /// which may use a batch of any region.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let new_pool = || Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() }).map(Pool::new);
    /// # use linerate::Batch;
    /// # let (pool, theirs, mut batch) = (new_pool()?, new_pool()?, Batch::new());
    /// # (batch.push(&theirs, &[0; 60]), batch.clear());
    /// let mut copies = Batch::new(); // of the queue's pool
    /// let count = copies.receive_for(&theirs, &mut batch, |own| own.alloc(&pool, 3, 60));
    /// assert_eq!((count, batch.len(), copies.len()), (3, 3, 0));
    /// # Ok(()) }
    /// ```
    pub fn receive_for(
        &mut self,
        pool: &Arc<Pool>,
        batch: &mut Batch,
        receive: impl FnOnce(&mut Batch) -> usize,
    ) -> usize {
        if self.is_empty() {
            receive(self);
        }
        let before = batch.len();
        batch.copy_from(pool, self, usize::MAX);
        batch.len() - before
    }

    /// Sends for `batch`, whose region is not that of `pool`. Copies packets into this batch while there is room, and
    /// passes the copies to `send`. Returns the count of slots accepted, and the count of packets dropped because they
    /// are too long.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # use linerate::memory::{Pool, Region, RegionOptions};
    /// # let new_pool = || Region::new(&RegionOptions { buffers: 64, ..RegionOptions::default() }).map(Pool::new);
    /// # use linerate::Batch;
    /// # let (pool, theirs, mut batch) = (new_pool()?, new_pool()?, Batch::new());
    /// [60, 3000, 61].iter().for_each(|len| assert!(batch.push(&theirs, &vec![1; *len])));
    /// let (mut copies, mut sent) = (Batch::new(), 0); // copies of the queue's pool
    /// let counts = copies.send_for(&pool, &mut batch, 1518, |own| {
    ///     sent += own.len();
    ///     own.clear();
    ///     own.len()
    /// });
    /// assert_eq!((counts, sent), ((4, 1), 2)); // one packet of two slots was too long
    /// # Ok(()) }
    /// ```
    pub fn send_for(
        &mut self,
        pool: &Arc<Pool>,
        batch: &mut Batch,
        longest: usize,
        mut send: impl FnMut(&mut Batch) -> usize,
    ) -> (usize, usize) {
        let (mut taken, mut dropped) = (0, 0);
        loop {
            self.bind_if_unbound(pool);
            send(self);
            if !self.is_empty() {
                break;
            }
            let (copied, too_long) = self.copy_from(pool, batch, longest);
            dropped += too_long;
            if copied == 0 {
                break;
            }
            taken += copied;
        }
        (taken, dropped)
    }

    /// Computes the checksum of the last packet, if it is pending. Returns false if that is impossible.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// use linerate_core::offload::Offload;
    ///
    /// let checksum = Offload([1, 0, 0, 0, 0, 0, 34, 0, 16, 0]); // of the bytes from 34 on, at byte 34 + 16
    /// batch.push_parts(pool, 60, [&[0; 60][..]].into_iter(), Some(checksum));
    /// assert!(batch.finish_last());
    /// let packet = batch.packets().next().unwrap();
    /// assert_eq!((packet.offload(), &packet[50..52]), (None, &[0xFF, 0xFF][..]));
    /// # Ok(()) }
    /// ```
    pub fn finish_last(&mut self) -> bool {
        let (slots, view) = self.last();
        let Some(first) = slots.first() else { return true };
        Offload::of(first, view).is_none_or(|offload| offload.finish(slots, view))
    }

    /// Records when the last packet arrived.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// batch.push(pool, &[1; 60]);
    /// batch.push(pool, &[2; 60]);
    /// batch.stamp_last(1_000_000_000);
    /// let times: Vec<_> = batch.packets().map(|packet| packet.timestamp()).collect();
    /// assert_eq!(times, [None, Some(1_000_000_000)]);
    /// # Ok(()) }
    /// ```
    pub fn stamp_last(&mut self, nanoseconds: u64) {
        self.stamp_last_of(nanoseconds, Origin::Port);
    }

    /// Records when and where the last packet was captured.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// use linerate_core::packet::Origin;
    ///
    /// batch.push(pool, &[1; 60]);
    /// batch.stamp_last_of(1_000_000_000, Origin::Interface(2));
    /// let packet = batch.packets().next().unwrap();
    /// assert_eq!((packet.timestamp(), packet.origin()), (Some(1_000_000_000), Origin::Interface(2)));
    /// # Ok(()) }
    /// ```
    pub fn stamp_last_of(&mut self, nanoseconds: u64, origin: Origin) {
        let (slots, view) = self.last();
        if let Some(first) = slots.first_mut() {
            stamp(first, view, nanoseconds, origin);
        }
    }

    /// Records the arrival time of all packets without one: `time` for the first packet, and a nanosecond more for each
    /// following packet. Returns the time for the next packet.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// (1..=2).for_each(|n| assert!(batch.push(pool, &[n; 60])));
    /// assert_eq!(batch.stamp_from(1_000_000_000), 1_000_000_002);
    /// let times: Vec<_> = batch.packets().map(|packet| packet.timestamp()).collect();
    /// assert_eq!(times, [Some(1_000_000_000), Some(1_000_000_001)]);
    /// # Ok(()) }
    /// ```
    pub fn stamp_from(&mut self, mut time: u64) -> u64 {
        let (slots, view) = self.parts();
        for packet in slots.chunk_by_mut(|slot, _| slot.has_more()) {
            if timestamp(&packet[0], view).is_none() {
                stamp(&mut packet[0], view, time, Origin::Port);
            }
            time += 1;
        }
        time
    }

    /// Marks the last packet so that a switch does not learn from it.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// (1..=2).for_each(|n| assert!(batch.push(pool, &[n; 60])));
    /// batch.unlearn_last();
    /// assert_eq!(batch.slots().iter().map(|slot| slot.is_unlearned()).collect::<Vec<_>>(), [false, true]);
    /// # Ok(()) }
    /// ```
    pub fn unlearn_last(&mut self) {
        if let Some(first) = self.last().0.first_mut() {
            first.set_unlearned();
        }
    }

    /// Returns the slots of the last packet, and a view of their bytes.
    fn last(&mut self) -> (&mut [Slot], View<'_>) {
        let (slots, view) = self.parts();
        let before = slots.len().saturating_sub(1);
        let first = slots[..before].iter().rposition(|slot| !slot.has_more()).map_or(0, |last| last + 1);
        (&mut slots[first..], view)
    }
}
