//! Queues that send by copying, and cannot pass on each packet as it is.

use super::QueueCounters;
use crate::batch::Batch;

/// A transmit queue that stops at a packet whose checksum or segmentation its other end cannot do.
pub(crate) trait SendFinished {
    /// Sends what fits. Returns the count of slots taken, and whether the next packet must be finished first.
    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool);

    /// Returns the counters of dropped packets.
    fn counters(&self) -> &QueueCounters;

    /// Sends as [`Transmit::send`](super::Transmit::send) does. Such packets are finished here, or segmented; those of which
    /// that is impossible are dropped.
    #[inline(always)]
    fn finish_and_send(&mut self, batch: &mut Batch) -> usize {
        let mut taken = 0;
        loop {
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
    }
}
