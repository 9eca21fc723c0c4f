//! Queues that send by copying, and cannot pass on each packet as it is.

use super::QueueCounters;
use crate::batch::Batch;

/// The most packets to finish, or to cut segments off, in one call of `send`. A peer that leaves work for every packet does not
/// keep the thread from the other ports; what is left is taken by the next call.
const MOST_FINISHED: usize = 1024;

/// A transmit queue that stops at a packet whose checksum or segmentation its other end cannot do.
pub trait SendFinished {
    /// Sends what fits. Returns the count of slots taken, and whether the next packet must be finished first.
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool);

    /// Returns the counters of dropped packets.
    fn counters(&self) -> &QueueCounters;

    /// Sends as [`Transmit::send`](super::Transmit::send) does. Such packets are finished here, or segmented; those of which
    /// that is impossible are dropped. Takes fewer packets than fit if the work on them takes long.
    #[inline(always)]
    fn finish_and_send(&mut self, batch: &mut Batch) -> usize {
        let mut taken = 0;
        for _ in 0..MOST_FINISHED {
            let (slots, is_to_be_finished) = self.send_finished(batch);
            taken += slots;
            if !is_to_be_finished {
                return taken;
            }
            let dropped = batch.finish_first();
            if dropped > 0 {
                self.counters().dropped();
                taken += dropped;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
    use crate::offload::Offload;

    /// Takes all packets that are finished.
    #[derive(Default)]
    struct Everything {
        taken: usize,
        counters: QueueCounters,
    }

    impl SendFinished for Everything {
        fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
            let finished = batch.packets().take_while(|packet| packet.offload().is_none()).map(|packet| packet.slots());
            let slots = finished.sum();
            batch.drop_front(slots);
            self.taken += slots;
            (slots, !batch.is_empty())
        }

        fn counters(&self) -> &QueueCounters {
            &self.counters
        }
    }

    #[test]
    fn a_peer_s_segments_keep_no_thread() {
        let pages = Pages::Only(PageSize::Ordinary);
        let pool: Arc<Pool> = Pool::new(
            Region::new(&RegionOptions { buffers: 256, buffer_size: 65_536, pages, numa_node: None }).unwrap(),
        );
        let mut bytes = Vec::new();
        let headers = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
        headers.tcp(80, 4321, 0, 1000).write(&mut bytes, &[7; 60_000]).unwrap();
        let (mut batch, mut tx) = (Batch::new(), Everything::default());
        for _ in 0..batch.capacity() {
            let left = Offload([1, 1, 0, 0, 30, 0, 34, 0, 16, 0]);
            assert!(batch.push_parts(&pool, bytes.len(), [&bytes[..]].into_iter(), Some(left)));
        }
        let mut calls = 0;
        while !batch.is_empty() {
            let before = tx.taken;
            tx.finish_and_send(&mut batch);
            assert!((1..20_000).contains(&(tx.taken - before)), "{} slots at once", tx.taken - before);
            calls += 1;
        }
        assert_eq!((tx.taken, calls), (32 * 2000, 4));
    }
}
