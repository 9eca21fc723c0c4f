//! The limits of a run: the packets that it may move, and the end of its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate::Batch;
use linerate::port::RxQueue;

use crate::profile::cycles;

/// The packets that a run may still move; its threads share it.
#[derive(Clone, Default)]
pub struct Quota(Option<Arc<AtomicU64>>);

impl Quota {
    pub fn new(count: Option<u64>) -> Quota {
        Quota(count.map(|count| Arc::new(AtomicU64::new(count))))
    }

    /// Receives packets, no more than the run may still move.
    #[inline]
    pub fn recv(&self, rx: &mut RxQueue, batch: &mut Batch) {
        match &self.0 {
            None => {
                rx.recv(batch);
            }
            Some(left) => recv_at_most(left, rx, batch),
        }
    }

    /// Allows other packets instead of `packets` that were received and did not count.
    pub fn give_back(&self, packets: usize) {
        if let Some(left) = &self.0 {
            left.fetch_add(packets as u64, Ordering::Relaxed);
        }
    }
}

/// Claims a batch's packets before it receives, so that two threads cannot move the last one both.
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

/// The end of the run's time, which a thread that sends sees also while the main thread has no processor.
#[derive(Clone)]
pub struct End(Arc<AtomicU64>);

impl End {
    pub fn new() -> End {
        End(Arc::new(u64::MAX.into()))
    }

    /// Sets its time, in cycles; 0: it has come.
    pub fn set(&self, time: u64) {
        self.0.store(time, Ordering::SeqCst);
    }

    /// Returns whether the end has come; once it has, the answer stays.
    pub fn has_come(&self) -> bool {
        cycles() >= self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::{cycles_in, seconds_between};

    /// A thread that sends sees the end without the main thread.
    #[test]
    fn the_end_comes_at_its_time_or_when_it_is_told() {
        let (timed, told) = (End::new(), End::new());
        assert!(!timed.has_come() && !told.has_come());
        timed.set(cycles() + cycles_in(Duration::from_millis(1)));
        let begin = std::time::Instant::now();
        while !timed.has_come() {
            assert!(begin.elapsed().as_secs() < 180, "the time does not come");
        }
        told.set(0);
        assert!(told.has_come());
        let second = seconds_between(0, cycles_in(Duration::from_secs(1)));
        assert!((second - 1.0).abs() < 1e-6, "{second}");
    }
}
