//! Moving single packets from one batch to another.

use super::Batch;
use crate::packet::Packet;
use crate::slot::Slot;

/// The first packet of a batch, taken with [`Batch::take`].
///
/// [`Batch::push_packet`] moves it to another batch; [`put_back`](Taken::put_back) returns it to its batch. Dropping it
/// frees its buffers.
pub struct Taken<'a> {
    pub(super) batch: &'a mut Batch,
    /// The packet's count of slots. They stay at the batch's front until the packet is moved or dropped, so a forgotten
    /// packet remains in the batch.
    pub(super) slots: usize,
}

impl Taken<'_> {
    /// Returns the packet for reading and writing.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 60]);
    /// let mut taken = batch.take().unwrap();
    /// taken.packet()[0] = 9;
    /// assert_eq!((taken.packet().len(), taken.packet()[0]), (60, 9));
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn packet(&mut self) -> Packet<'_> {
        let (slots, view) = self.batch.parts();
        Packet::new(&mut slots[..self.slots], view)
    }

    /// Returns the packet to the front of its batch.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// batch.push(port.pool(), &[1; 60]);
    /// let taken = batch.take().unwrap();
    /// taken.put_back();
    /// assert_eq!(batch.len(), 1); // `drop(taken)` would have freed the packet
    /// # Ok(()) }
    /// ```
    pub fn put_back(self) {
        std::mem::forget(self);
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.batch.drop_front(self.slots);
    }
}

impl Batch {
    /// Takes the first packet out of the batch; `None` if the batch is empty.
    ///
    /// [`push_packet`](Batch::push_packet) then moves it to another batch, for example of one of several outputs:
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [mut port] = linerate::open(["sim:take?count=32"])?;
    /// # let (mut rx, mut batch) = (port.rx(0)?, linerate::Batch::new());
    /// let mut outputs = [linerate::Batch::new(), linerate::Batch::new()];
    /// rx.recv(&mut batch);
    /// while let Some(mut packet) = batch.take() {
    ///     let output = usize::from(packet.packet()[5] & 1); // by the last bit of the destination
    ///     let is_full = outputs[output].push_packet(packet).is_err(); // then the packet is dropped
    ///     # assert!(!is_full);
    /// }
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn take(&mut self) -> Option<Taken<'_>> {
        let waiting = &self.slots[self.start..self.end];
        let slots = match self.has_chains {
            false => waiting.len().min(1),
            true => Slot::first_packet(waiting),
        };
        (slots > 0).then_some(Taken { batch: self, slots })
    }

    /// Appends a packet of another batch. Moves its buffers, or copies the packet if the batches are of different
    /// regions.
    ///
    /// ```
    /// # fn main() -> linerate::Result<()> {
    /// # let [port] = linerate::open(["null:"])?;
    /// # let mut batch = linerate::Batch::new();
    /// # let (pool, mut output) = (port.pool(), linerate::Batch::with_capacity(1));
    /// # (batch.push(pool, &[1; 60]), batch.push(pool, &[2; 60]));
    /// while let Some(packet) = batch.take() {
    ///     if let Err(packet) = output.push_packet(packet) {
    ///         packet.put_back(); // the output is full: the packet waits
    ///         break;
    ///     }
    /// }
    /// assert_eq!((output.len(), batch.len()), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the packet if this batch is full, or no buffer is free for a copy.
    #[inline]
    pub fn push_packet<'a>(&mut self, packet: Taken<'a>) -> std::result::Result<(), Taken<'a>> {
        let count = packet.slots;
        let is_of_pool = packet.batch.pool().is_some_and(|pool| self.bind_if_empty(pool));
        if self.len() >= self.capacity() || !is_of_pool {
            return if is_of_pool { Err(packet) } else { self.push_from_other_region(packet) };
        }
        if self.end + count > self.slots.len() {
            self.compact();
        }
        if self.end + count > self.slots.len() {
            return Err(packet);
        }
        let from = &mut packet.batch.slots[packet.batch.start..][..count];
        let is_chain = count > 1 || from[0].has_more();
        for (place, slot) in self.slots[self.end..].iter_mut().zip(from) {
            *place = slot.take();
        }
        self.end += count;
        self.has_chains |= is_chain;
        packet.batch.sent(count);
        std::mem::forget(packet);
        Ok(())
    }

    /// As [`push_packet`](Batch::push_packet), for a packet of another region.
    #[cold]
    fn push_from_other_region<'a>(&mut self, mut packet: Taken<'a>) -> std::result::Result<(), Taken<'a>> {
        let Some(pool) = self.pool().cloned() else { return Err(packet) };
        if !self.push_copy(&pool, &packet.packet()) {
            return Err(packet);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{PageSize, Pages, Pool, Region, RegionOptions};

    fn pool(buffers: usize) -> Arc<Pool> {
        let pages = Pages::Only(PageSize::Ordinary);
        Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 512, pages, numa_node: None }).unwrap())
    }

    /// Creates a batch with one packet per length. All bytes of a packet are its index.
    fn batch(pool: &Arc<Pool>, lens: &[usize]) -> Batch {
        let mut batch = Batch::new();
        lens.iter().enumerate().for_each(|(n, len)| assert!(batch.push(pool, &vec![n as u8; *len])));
        batch
    }

    /// The first slots of a chain whose rest was dropped stay together.
    #[test]
    fn a_part_of_a_chain_moves() {
        let (pool, mut to) = (pool(64), Batch::new());
        let mut from = batch(&pool, &[1000]);
        let slots = from.len();
        from.drop_back(slots - 1);
        assert!(to.push_packet(from.take().unwrap()).is_ok());
        assert_eq!((to.packets().count(), to.packets().next().unwrap().slots()), (1, 1));
    }

    /// Returns each packet's first byte and length.
    fn seen(batch: &mut Batch) -> Vec<(u8, usize)> {
        batch.packets().map(|packet| (packet[0], packet.len())).collect()
    }

    #[test]
    fn packets_move_whole_and_in_order() {
        let pool = pool(64);
        let mut from = batch(&pool, &[60, 1000, 61, 384, 700]);
        let (mut odd, mut even) = (Batch::new(), Batch::new());
        while let Some(mut packet) = from.take() {
            let to = if packet.packet()[0].is_multiple_of(2) { &mut even } else { &mut odd };
            assert!(to.push_packet(packet).is_ok());
        }
        assert!(from.is_empty());
        assert_eq!((seen(&mut even), seen(&mut odd)), (vec![(0, 60), (2, 61), (4, 700)], vec![(1, 1000), (3, 384)]));
        drop((from, odd, even));
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_dropped_packet_is_free_and_a_forgotten_one_stays() {
        let pool = pool(64);
        let mut from = batch(&pool, &[60, 1000, 61]);
        drop(from.take());
        std::mem::forget(from.take());
        from.take().unwrap().put_back();
        assert_eq!(seen(&mut from), [(1, 1000), (2, 61)]);
        from.clear();
        assert!(from.take().is_none());
        drop(from);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_full_batch_gives_the_packet_back() {
        let pool = pool(512);
        let mut from = batch(&pool, &[60, 9000, 61, 62]);
        let mut to = Batch::with_capacity(26);
        for expected in [true, true, true, false] {
            assert_eq!(from.take().is_some_and(|packet| to.push_packet(packet).is_ok()), expected);
        }
        assert_eq!(seen(&mut to), [(0, 60), (1, 9000), (2, 61)]);
        // The loop above dropped the packet that did not fit.
        assert!(from.is_empty());
        // Entries at the front are reused.
        let mut line = Batch::with_capacity(2);
        for n in 0..200 {
            let mut from = batch(&pool, &[60 + n]);
            assert!(line.push_packet(from.take().unwrap()).is_ok());
            if n > 0 {
                assert_eq!(line.take().unwrap().packet().len(), 59 + n);
            }
        }
    }

    #[test]
    fn packets_of_another_region_are_copied() {
        let (ours, theirs) = (pool(64), pool(4));
        let mut from = batch(&ours, &[60, 1500, 61, 62]);
        let mut to = batch(&theirs, &[30]);
        from.stamp_last(77);
        assert!(to.push_packet(from.take().unwrap()).is_ok());
        assert!(to.push_packet(from.take().unwrap()).is_err(), "four buffers of the two that are free");
        assert!(to.push_packet(from.take().unwrap()).is_ok());
        assert!(to.push_packet(from.take().unwrap()).is_ok());
        assert_eq!(seen(&mut to), [(0, 30), (0, 60), (2, 61), (3, 62)]);
        assert_eq!(to.packets().map(|packet| packet.timestamp()).collect::<Vec<_>>(), [None, None, None, Some(77)]);
        drop((from, to));
        assert_eq!((ours.available(), theirs.available()), (64, 4));
    }
}
