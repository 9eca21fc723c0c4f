//! Transmit queues that copy packets and must finish pending offloads before sending.

use super::QueueCounters;
use crate::batch::Batch;

/// The most packets to finish or segment in one call of `send`; the next call continues. So a peer that leaves offloads
/// pending on every packet cannot keep the thread from serving other ports.
const MOST_FINISHED: usize = 1024;

/// A transmit queue that stops at a packet with pending offloads that the other end does not support.
pub trait SendFinished {
    /// Sends the packets that fit. Returns the count of slots accepted, and whether the next packet must be finished
    /// first.
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool);

    /// Returns the counters of dropped packets.
    fn counters(&self) -> &QueueCounters;

    /// Sends as [`Transmit::send`](super::Transmit::send) does. Finishes or segments packets where needed, and drops
    /// those for which that is impossible. Accepts fewer packets than fit if there are many to finish.
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

    /// Accepts all packets without pending offloads.
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
