//! The limits of a run: the packets that it may move, and the end of its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate::Batch;
use linerate::port::RxQueue;

use crate::profile::cycles;

/// The number of packets that a run may still move, shared by its threads.
#[derive(Clone, Default)]
pub struct Quota(Option<Arc<AtomicU64>>);

impl Quota {
    pub fn new(count: Option<u64>) -> Quota {
        Quota(count.map(|count| Arc::new(AtomicU64::new(count))))
    }

    /// Receives packets, at most as many as the run may still move.
    #[inline]
    pub fn recv(&self, rx: &mut RxQueue, batch: &mut Batch) {
        match &self.0 {
            None => {
                rx.recv(batch);
            }
            Some(left) => recv_at_most(left, rx, batch),
        }
    }

    /// Returns `packets` to the quota: they were received but do not count.
    pub fn give_back(&self, packets: usize) {
        if let Some(left) = &self.0 {
            left.fetch_add(packets as u64, Ordering::Relaxed);
        }
    }
}

/// Claims a batch's packets before receiving, so that two threads cannot both move the last one.
#[cold]
fn recv_at_most(left: &AtomicU64, rx: &mut RxQueue, batch: &mut Batch) {
    let most = batch.capacity() as u64;
    let claim = |left: u64| (left > 0).then(|| left - left.min(most));
    let Ok(before) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) else { return };
    let claimed = before.min(most);
    if claimed < most {
        *batch = Batch::with_capacity(claimed as usize);
    }
    rx.recv(batch);
    // A chain is one packet of several slots, so there are at most as many packets as slots.
    left.fetch_add(claimed - batch.packets().count() as u64, Ordering::Relaxed);
}

/// The end of the run's time. Sending threads see it even while the main thread has no processor.
#[derive(Clone)]
pub struct End(Arc<AtomicU64>);

impl End {
    pub fn new() -> End {
        End(Arc::new(u64::MAX.into()))
    }

    /// Sets the time of the end, in cycles; 0 means now.
    pub fn set(&self, time: u64) {
        self.0.store(time, Ordering::SeqCst);
    }

    /// Returns whether the end has come.
    pub fn is_reached(&self) -> bool {
        cycles() >= self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::{cycles_in, seconds_between};

    /// A sending thread sees the end without the main thread.
    #[test]
    fn the_end_comes_at_its_time_or_when_it_is_told() {
        let (timed, told) = (End::new(), End::new());
        assert!(!timed.is_reached() && !told.is_reached());
        timed.set(cycles() + cycles_in(Duration::from_millis(1)));
        let begin = std::time::Instant::now();
        while !timed.is_reached() {
            assert!(begin.elapsed().as_secs() < 180, "the end does not come");
        }
        told.set(0);
        assert!(told.is_reached());
        let second = seconds_between(0, cycles_in(Duration::from_secs(1)));
        assert!((second - 1.0).abs() < 1e-6, "{second}");
    }
}
