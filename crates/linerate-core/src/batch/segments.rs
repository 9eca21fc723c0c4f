//! Software checksums and segmentation in a batch, for packets whose offloads the device cannot do.
#![allow(unsafe_code)]

use std::ops::ControlFlow;

use super::Batch;
use crate::memory::View;
use crate::offload::{Headers, Offload, Segmentation};
use crate::slot::{HEADROOM, Slot};

/// The most segments to cut off per call. The device can return their buffers before the next call.
const MAX_PER_CALL: usize = 16;

/// The result of finishing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The first packet at the slot can be sent: the packet, or its first segment.
    Done,
    /// The batch has no room, or there is no free buffer, for a segment. After packets before it have left the batch,
    /// it may be possible.
    NoRoom,
    /// The pending offloads cannot be done, for example because offsets are outside the first slot.
    Impossible,
}

/// The packet that was segmented last, for the port's monitors.
#[derive(Clone, Copy)]
pub struct Segmented {
    /// The first buffer of the rest of the packet, or of its last segment.
    pub rest: u32,
    /// The count of segments that were cut off.
    pub segments: usize,
}

impl Batch {
    /// Finishes the packet at slot `at`, so that every queue can send it: computes its checksum, or cuts off segments
    /// and inserts them before the rest.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # use linerate_core::offload::Offload;
    /// # // Ethernet, IPv4 and TCP, with 1,000 bytes of payload.
    /// # let mut tcp = Vec::new();
    /// # let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    /// # headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &[7; 1000]).unwrap();
    /// let segments_of_400 = Offload([1, 1, 54, 0, 144, 1, 34, 0, 16, 0]);
    /// batch.push_parts(pool, tcp.len(), [&tcp[..]].into_iter(), Some(segments_of_400));
    /// assert_eq!(batch.finish_packet(0), linerate_core::batch::Finished::Done);
    /// let lens: Vec<usize> = batch.packets().map(|packet| packet.len()).collect();
    /// assert_eq!(lens, [54 + 400, 54 + 400, 54 + 200]);
    /// # Ok(()) }
    /// ```
    #[cold]
    pub fn finish_packet(&mut self, at: usize) -> Finished {
        let Some(pool) = self.pool().cloned() else { return Finished::Done };
        // SAFETY: the view is only used with slots of this batch, and of buffers from its cache.
        let view = unsafe { pool.region().view() };
        let packet = first_packet(&mut self.parts().0[at..]);
        let Some(left) = packet.first().and_then(|first| Offload::of(first, view)) else { return Finished::Done };
        if left.segmentation() == Segmentation::None {
            return if left.finish(packet, view) { Finished::Done } else { Finished::Impossible };
        }
        let len = packet.iter().map(Slot::len).sum();
        let Some(headers) = Headers::of(view.bytes(&packet[0]), len, left).filter(|headers| len > headers.len) else {
            return Finished::Impossible;
        };
        let mut place = at;
        for _ in 0..MAX_PER_CALL {
            match self.cut_off(place, &headers, view) {
                ControlFlow::Continue(slots) => place += slots,
                ControlFlow::Break(true) => return Finished::Done,
                // The segments cut off so far can be sent.
                ControlFlow::Break(false) if place > at => break,
                ControlFlow::Break(false) => return Finished::NoRoom,
            }
        }
        self.settle_rest(place, &headers, view);
        Finished::Done
    }

    /// Prepares the headers of the rest of a packet, after segments were cut off: a queue may leave it to its other end.
    /// The rest is finished if it is a single segment.
    fn settle_rest(&mut self, at: usize, headers: &Headers, view: View<'_>) {
        let [first, others @ ..] = first_packet(&mut self.parts().0[at..]) else { return };
        let len = first.len() + others.iter().map(Slot::len).sum::<usize>();
        if len <= headers.len + headers.size {
            let rest: Vec<&[u8]> = others.iter().map(|slot| view.bytes(slot)).collect();
            headers.finish(view.bytes_mut(first), &rest);
            first.set_unfinished(false);
        } else {
            headers.leave(view.bytes_mut(first), len);
        }
    }

    /// As [`finish_packet`](Batch::finish_packet) for the first packet, but drops it if that is impossible. Returns the
    /// count of slots dropped.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # use linerate_core::offload::Offload;
    /// let impossible = Offload([1, 0, 0, 0, 0, 0, 34, 0, 200, 0]); // a checksum after the packet's end
    /// batch.push_parts(pool, 60, [&[0; 60][..]].into_iter(), Some(impossible));
    /// batch.push(pool, &[1; 60]);
    /// assert_eq!((batch.finish_first(), batch.len()), (1, 1)); // drops the packet
    /// assert_eq!((batch.finish_first(), batch.len()), (0, 1)); // nothing to be done
    /// # Ok(()) }
    /// ```
    #[cold]
    pub fn finish_first(&mut self) -> usize {
        if self.finish_packet(0) == Finished::Done {
            return 0;
        }
        let count = Slot::first_packet(self.slots());
        self.drop_front(count);
        count
    }

    /// Cuts a segment off the packet at slot `at`, and returns the segment's count of slots. Returns `Break(true)` if
    /// the rest is the last segment, and finishes it. Returns `Break(false)` and changes nothing if there is no room or no
    /// buffer for the segment.
    fn cut_off(&mut self, at: usize, headers: &Headers, view: View<'_>) -> ControlFlow<bool, usize> {
        let room = self.room();
        let packet = first_packet(&mut self.parts().0[at..]);
        let [first, others @ ..] = packet else { return ControlFlow::Break(false) };
        let (buffer, own) = (first.buf(), first.len() - headers.len);
        let payload = own + others.iter().map(Slot::len).sum::<usize>();
        if payload <= headers.size {
            self.settle_rest(at, headers, view);
            return ControlFlow::Break(true);
        }

        let mut bytes = Vec::with_capacity(headers.len + headers.size);
        for slot in packet.iter() {
            let missing = headers.len + headers.size - bytes.len();
            bytes.extend_from_slice(&view.bytes(slot)[..missing.min(slot.len())]);
        }
        headers.continues(&mut bytes);
        headers.finish(&mut bytes, &[]);

        // Count the slots that the segment empties. The first slot is never empty: it has the headers.
        let (count, mut emptied, mut after) = (packet.len(), 0, headers.size.saturating_sub(own));
        while after > 0 && others_len(packet, emptied) <= after {
            after -= others_len(packet, emptied);
            emptied += 1;
        }
        let is_unlearned = packet[0].is_unlearned();
        let needed = bytes.len().div_ceil(room);
        if self.len() + needed - emptied > self.slots.len() {
            return ControlFlow::Break(false);
        }
        let mut slots = Vec::with_capacity(needed + count);
        for part in bytes.chunks(room) {
            let Some(buf) = self.take_buffer() else {
                // SAFETY: the buffers were taken from the cache, and their slots are dropped.
                slots.iter().for_each(|slot: &Slot| unsafe { self.recycle(&[slot.buf()]) });
                return ControlFlow::Break(false);
            };
            // SAFETY: the buffer was taken for this slot, and has `room` bytes after the headroom.
            let mut slot = unsafe { Slot::new(buf, HEADROOM, part.len() as u16, slots.len() + 1 < needed) };
            view.bytes_mut(&mut slot).copy_from_slice(part);
            slots.push(slot);
        }
        if is_unlearned {
            slots[0].set_unlearned();
        }

        let packet = first_packet(&mut self.parts().0[at..]);
        let first = &mut packet[0];
        headers.advance(view.bytes_mut(first));
        shorten(first, headers.len, headers.size.min(own), view);
        let mut freed = Vec::with_capacity(emptied);
        for (n, slot) in packet.iter_mut().enumerate() {
            if (1..=emptied).contains(&n) {
                freed.push(slot.take().buf());
            } else {
                if n == emptied + 1 {
                    shorten(slot, 0, after, view);
                }
                slots.push(slot.take());
            }
        }
        // SAFETY: the slots of these buffers were the batch's, and were removed.
        unsafe { self.recycle(&freed) };
        self.replace(at, count, slots);
        match &mut self.segmented {
            Some(last) if last.rest == buffer => last.segments += 1,
            other => *other = Some(Box::new(Segmented { rest: buffer, segments: 1 })),
        }
        ControlFlow::Continue(needed)
    }

    /// Replaces `count` empty entries, starting at `at`, with `slots`. The caller has checked that there is room.
    fn replace(&mut self, at: usize, count: usize, slots: Vec<Slot>) {
        self.compact();
        let behind: Vec<Slot> = self.slots[at + count..self.end].iter_mut().map(Slot::take).collect();
        self.has_chains |= slots.iter().any(Slot::has_more);
        self.end = at;
        for slot in slots.into_iter().chain(behind) {
            self.slots[self.end] = slot;
            self.end += 1;
        }
    }

    /// Returns and clears the record of the packet that was segmented last.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let (pool, mut batch) = (port.pool(), linerate::Batch::new());
    /// # use linerate_core::offload::Offload;
    /// # let mut tcp = Vec::new();
    /// # let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    /// # headers.tcp(80, 4321, 0, 1000).write(&mut tcp, &[7; 1000]).unwrap();
    /// # let segments_of_400 = Offload([1, 1, 54, 0, 144, 1, 34, 0, 16, 0]);
    /// batch.push_parts(pool, tcp.len(), [&tcp[..]].into_iter(), Some(segments_of_400)); // 1,000 bytes of payload
    /// batch.finish_packet(0);
    /// assert_eq!(batch.take_segmented().map(|last| last.segments), Some(2)); // before the rest of 200 bytes
    /// assert!(batch.take_segmented().is_none());
    /// # Ok(()) }
    /// ```
    pub fn take_segmented(&mut self) -> Option<Segmented> {
        self.segmented.take().map(|last| *last)
    }
}

/// Returns the slots of the first packet.
fn first_packet(slots: &mut [Slot]) -> &mut [Slot] {
    let count = Slot::first_packet(slots);
    &mut slots[..count]
}

/// Returns the length of slot `n` + 1 of a packet; `usize::MAX` if there is no such slot.
fn others_len(packet: &[Slot], n: usize) -> usize {
    packet.get(n + 1).map_or(usize::MAX, Slot::len)
}

/// Removes `count` bytes after the first `headers` bytes of a slot. Moves the headers up to the rest. If that would
/// exceed a slot's largest offset, moves all data back to the front of the buffer.
fn shorten(slot: &mut Slot, headers: usize, count: usize, view: View<'_>) {
    let (offset, len) = (slot.offset(), slot.len());
    if offset + count <= Slot::MAX_OFFSET {
        view.bytes_mut(slot).copy_within(..headers, count);
        // SAFETY: the end stays where it is.
        return unsafe { slot.set_data(offset + count, len - count) };
    }
    let front = offset.min(HEADROOM);
    // SAFETY: as above, the end stays where it is.
    unsafe { slot.set_data(front, offset + len - front) };
    let (bytes, begin) = (view.bytes_mut(slot), offset - front);
    bytes.copy_within(begin..begin + headers, 0);
    bytes.copy_within(begin + headers + count.., headers);
    // SAFETY: the slot becomes shorter.
    unsafe { slot.set_data(front, len - count) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
    use crate::offload::cut;

    fn pool(buffers: usize, buffer_size: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size, pages, numa_node: None }).unwrap())
    }

    /// Returns a packet of `payload` bytes, to be cut into segments of `size` bytes each.
    fn large(is_tcp: bool, payload: usize, size: u16) -> (Vec<u8>, Offload) {
        let payload: Vec<u8> = (0..payload).map(|n| (n * 7 + n / 250) as u8).collect();
        let mut bytes = Vec::new();
        let ethernet = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
        if is_tcp {
            let tcp = ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).tcp(80, 4321, u32::MAX - 9, 1000).fin().psh();
            tcp.write(&mut bytes, &payload).unwrap();
        } else {
            ethernet.ipv6([1; 16], [2; 16], 9).udp(443, 4321).write(&mut bytes, &payload).unwrap();
        }
        let ([a, b], (kind, start, place)) = (size.to_le_bytes(), if is_tcp { (1, 34, 16) } else { (5, 54, 6) });
        (bytes, Offload([1, kind, 0, 0, a, b, start, 0, place, 0]))
    }

    fn segments(packet: &[u8], left: Offload) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        assert!(cut(packet, left, |segment| all.push(segment.to_vec())));
        all
    }

    /// Removes all packets from a batch, at most `most` finished packets at a time.
    fn take_all(batch: &mut Batch, most: usize) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        while !batch.is_empty() {
            let mut slots = 0;
            for packet in batch.packets().take(most).take_while(|packet| packet.offload().is_none()) {
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes);
                taken.push(bytes);
                slots += packet.slots();
            }
            batch.drop_front(slots);
            if slots == 0 {
                assert_eq!(batch.finish_first(), 0);
            }
        }
        taken
    }

    /// Segments a large packet between two others, with buffers of several sizes and several numbers of packets taken
    /// at a time. No buffer is lost.
    #[test]
    fn a_large_packet_becomes_segments_in_its_place() {
        for buffer_size in [512, 2048, 16_384] {
            let pool = pool(512, buffer_size);
            for (is_tcp, payload, size) in [
                (true, 20_000, 1448),
                (true, 2897, 1448),
                (true, 9000, 8960),
                (false, 20_000, 1000),
                (false, 3000, 1000),
                (false, 999, 1000),
                (false, 300, 1),
            ] {
                // Miri needs microseconds per byte.
                if cfg!(miri) && (buffer_size, payload) != (512, 2897) {
                    continue;
                }
                let (bytes, left) = large(is_tcp, payload, size);
                for most in [1, 3, 64] {
                    let mut batch = Batch::with_capacity(64);
                    assert!(batch.push(&pool, &[1; 60]));
                    assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
                    assert!(batch.push(&pool, &[2; 60]));
                    let taken = take_all(&mut batch, most);
                    let expected = [vec![vec![1; 60]], segments(&bytes, left), vec![vec![2; 60]]].concat();
                    assert!(taken == expected, "{buffer_size}, {is_tcp}, {payload}, {size}, {most}");
                    drop(batch);
                    assert_eq!(pool.available(), 512);
                }
            }
        }
    }

    /// In one large buffer, the rest of the packet reaches a slot's largest offset repeatedly.
    #[test]
    fn a_packet_in_one_large_buffer_is_cut_by_its_offset() {
        // Miri needs microseconds per byte, and a shorter packet does not reach the largest offset.
        if cfg!(miri) {
            return;
        }
        let (pool, payload) = (pool(64, 65_536), 60_000);
        for (is_tcp, size) in [(true, 1448), (true, 4000), (true, 9000), (false, 600), (false, 60)] {
            let (bytes, left) = large(is_tcp, payload, size);
            let mut batch = Batch::new();
            assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
            assert_eq!(batch.len(), 1);
            assert!(take_all(&mut batch, 64) == segments(&bytes, left), "{is_tcp}, {size}");
            drop(batch);
            assert_eq!(pool.available(), 64);
        }
    }

    /// A peer cannot have a packet cut into tens of thousands of segments.
    #[test]
    fn a_packet_of_too_many_segments_is_dropped() {
        // Miri needs microseconds per byte, and this test needs many bytes.
        if cfg!(miri) {
            return;
        }
        let pool = pool(64, 2048);
        for (payload, size, is_cut) in [(60_000, 1, false), (60_000, 29, false), (60_000, 30, true), (2000, 1, true)] {
            for is_tcp in [true, false] {
                let (bytes, left) = large(is_tcp, payload, size);
                let mut batch = Batch::new();
                assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
                let slots = batch.len();
                assert_eq!(batch.finish_first(), if is_cut { 0 } else { slots }, "{payload}, {size}");
                assert_eq!(cut(&bytes, left, |_| {}), is_cut);
            }
        }
    }

    /// Segmenting does not move the packets before, which a queue may already have accepted. The rest is found by its
    /// buffer.
    #[test]
    fn a_packet_behind_others_is_segmented_where_it_is() {
        let pool = pool(128, 2048);
        let (bytes, left) = large(true, 3000, 100);
        let mut batch = Batch::with_capacity(40);
        batch.push(&pool, &[0; 60]);
        batch.push(&pool, &[1; 60]);
        batch.drop_front(1);
        assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
        let buffers: Vec<u32> = batch.slots().iter().map(Slot::buf).collect();
        assert_eq!(batch.finish_packet(0), Finished::Done, "nothing is to be done");
        assert!(batch.take_segmented().is_none());
        assert_eq!(batch.finish_packet(1), Finished::Done);
        assert_eq!(batch.slots()[0].buf(), buffers[0]);
        let Segmented { rest, segments: count } = batch.take_segmented().unwrap();
        assert_eq!((rest, count), (buffers[1], MAX_PER_CALL));
        assert_eq!(batch.slots()[1 + MAX_PER_CALL].buf(), rest);
        let expected = [vec![vec![1; 60]], segments(&bytes, left)].concat();
        assert_eq!(take_all(&mut batch, 5), expected);
    }

    /// Cuts off only as many segments as there are buffers and entries for. A packet that cannot be segmented is
    /// dropped.
    #[test]
    fn a_packet_waits_for_no_buffer() {
        let (bytes, left) = large(false, 1000, 200);
        let pool = pool(8, 512);
        let mut batch = Batch::with_capacity(1);
        assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
        let used = batch.len();
        let mut others = Batch::with_capacity(8);
        while others.push(&pool, &[0; 60]) {}
        assert_eq!(others.len() + used + batch.cached(), 8);
        if batch.cached() > 0 {
            assert_eq!(batch.finish_packet(0), Finished::Done);
        }
        batch.clear();
        others.clear();
        drop(others);

        // All buffers are in the packet itself.
        let (bytes, left) = large(false, 2900, 200);
        assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
        assert_eq!((batch.len(), batch.cached(), pool.available()), (8, 0, 0));
        assert_eq!(batch.finish_packet(0), Finished::NoRoom);
        assert_eq!((batch.finish_first(), batch.len()), (8, 0));
        drop(batch);
        assert_eq!(pool.available(), 8);
    }

    /// After each call, the rest of a packet is a packet as Linux leaves it, or the last segment, which is finished.
    #[test]
    fn the_rest_of_a_packet_is_consistent() {
        let pool = pool(256, 512);
        for is_tcp in [true, false] {
            for payload in [1600, 1601, 1700, 1701, 3200, 3300, 4000] {
                let (bytes, left) = large(is_tcp, payload, 100);
                let mut batch = Batch::with_capacity(64);
                assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
                let mut all = Vec::new();
                while !batch.is_empty() {
                    assert_eq!(batch.finish_packet(0), Finished::Done);
                    let last = batch.packets().last().unwrap();
                    let mut rest = Vec::new();
                    last.append_to(&mut rest);
                    if let Some(left) = last.offload() {
                        let before = rest.clone();
                        let len = rest.len();
                        assert_eq!(Offload::leave(&mut rest, len, std::num::NonZeroU16::new(100)), Some(left));
                        assert!(rest == before, "{payload}");
                    }
                    let mut slots = 0;
                    for packet in batch.packets().take_while(|packet| packet.offload().is_none()) {
                        let mut bytes = Vec::new();
                        packet.append_to(&mut bytes);
                        all.push(bytes);
                        slots += packet.slots();
                    }
                    assert!(slots > 0, "{payload}: each call finishes a segment");
                    batch.drop_front(slots);
                }
                assert_eq!(all, segments(&bytes, left), "{payload}");
            }
        }
        assert_eq!(pool.available(), 256);
    }

    /// Refuses offloads that do not match the packet, and changes nothing.
    #[test]
    fn a_packet_that_lies_is_not_cut() {
        let pool = pool(64, 512);
        let (bytes, left) = large(true, 3000, 1000);
        let with = |at: usize, value: u16| {
            let mut left = left;
            left.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
            left
        };
        let mut unknown = left;
        unknown.0[1] = 3;
        // No payload per segment; a header outside the first slot or the packet, or in the middle of another header.
        for left in [with(4, 0), with(6, 400), with(6, 9000), with(6, 20), unknown] {
            let mut batch = Batch::new();
            assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
            assert_eq!(batch.finish_packet(0), Finished::Impossible, "{left:?}");
            let mut same = Vec::new();
            batch.packets().for_each(|packet| packet.append_to(&mut same));
            assert_eq!(same, bytes);
            assert!(batch.finish_first() > 1);
        }
        // Headers without payload.
        let mut batch = Batch::new();
        assert!(batch.push_parts(&pool, 54, [&bytes[..54]].into_iter(), Some(left)));
        assert_eq!(batch.finish_first(), 1);
    }
}
