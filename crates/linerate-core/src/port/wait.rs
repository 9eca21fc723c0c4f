//! Waiting for packets: polling, sleeping until an interrupt, or a combination of both.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{RxQueue, Waker};
use crate::event::run_soon_when_woken;

/// The behaviour of a thread while no packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Polls: the lowest latency, but occupies a processor.
    #[default]
    Poll,
    /// Sleeps until an interrupt whenever there is no packet.
    Interrupt,
    /// Polls while packets arrive, and sleeps after up to [`Waiter::PATIENCE`] without one.
    ///
    /// A wake-up takes about 10 µs. It is paid only after gaps of more than 100 µs. While all gaps are longer, polling
    /// would be in vain, so the thread sleeps immediately. (KVM adapts its polling in the same way: `halt_poll_ns`.)
    Adaptive,
}

/// Lets a thread wait for packets on all its receive queues.
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::port::{Wait, Waiter};
/// use linerate::Batch;
///
/// let [mut port] = linerate::open(["sim:waiting?count=100&wire=traffic"])?;
/// let mut rx = port.rx(0)?;
/// let (mut batch, mut waiter) = (Batch::new(), Waiter::new(Wait::Adaptive));
/// for _ in 0..1000 {
///     let received = rx.recv(&mut batch);
///     batch.clear();
///     waiter.turn(received, &mut [&mut rx]); // returns immediately, or sleeps until a packet arrives
/// }
/// # Ok(()) }
/// ```
pub struct Waiter {
    wait: Wait,
    /// The time of the last packet, or of the first turn without one.
    quiet_since: Option<Instant>,
    armed: bool,
    waker: Option<Waker>,
    /// True after the first sleep.
    has_slept: bool,
    /// How long to poll without a packet before the next sleep.
    patience: Duration,
}

impl Waiter {
    /// How long [`Wait::Adaptive`] polls, at most, without a packet before it sleeps.
    pub const PATIENCE: Duration = Duration::from_micros(100);

    /// The longest sleep, so that a thread can check whether to end. A waker ([`Waiter::woken_by`]) ends a sleep
    /// earlier.
    pub const LONGEST_SLEEP: Duration = Duration::from_millis(250);

    /// Creates a waiter with the given behaviour.
    pub fn new(wait: Wait) -> Waiter {
        let patience = if wait == Wait::Adaptive { Waiter::PATIENCE } else { Duration::ZERO };
        Waiter { wait, quiet_since: None, armed: false, waker: None, has_slept: false, patience }
    }

    /// Lets `waker` end each sleep too, for example when another thread stops this one.
    pub fn woken_by(self, waker: Waker) -> Waiter {
        Waiter { waker: Some(waker), ..self }
    }

    /// Call this after each turn of a thread's loop, with the number of packets that it moved. Returns immediately
    /// while there is work; otherwise sleeps as configured, if the queues can wake the thread.
    ///
    /// Between arming the queues and sleeping, the loop makes one more turn, so no packet is missed.
    pub fn turn(&mut self, packets: usize, queues: &mut [&mut RxQueue]) {
        if self.wait == Wait::Poll {
            return;
        }
        if packets > 0 {
            self.quiet_since = None;
            if self.armed {
                self.disarm(queues);
            }
            return;
        }
        if self.armed {
            self.sleep(queues);
            return;
        }
        let patience = self.patience;
        if patience == Duration::ZERO || self.quiet_since.get_or_insert_with(Instant::now).elapsed() >= patience {
            // The thread sleeps only if all queues could be armed; a port without interrupts must be polled.
            self.armed = queues.iter_mut().filter_map(|queue| queue.arm()).count() == queues.len();
        }
    }

    fn disarm(&mut self, queues: &mut [&mut RxQueue]) {
        queues.iter_mut().for_each(|queue| queue.disarm());
        self.armed = false;
    }

    #[cold]
    fn sleep(&mut self, queues: &mut [&mut RxQueue]) {
        if !std::mem::replace(&mut self.has_slept, true) {
            run_soon_when_woken();
        }
        let events: Vec<_> = queues.iter_mut().filter_map(|queue| queue.arm()).collect();
        let mut events: Vec<_> = events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
        events.extend(self.waker.as_ref().map(|waker| PollFd::new(waker, PollFlags::IN)));
        let longest = Timespec { tv_sec: 0, tv_nsec: Waiter::LONGEST_SLEEP.as_nanos() as _ };
        let asleep = Instant::now();
        let woken = poll(&mut events, Some(&longest)).is_ok_and(|count| count > 0);
        drop(events);
        self.disarm(queues);
        if self.wait == Wait::Adaptive {
            self.patience = patience_after(asleep.elapsed(), self.patience);
        }
        // After a wake-up, poll for a while; after a timeout, sleep again after one turn.
        self.quiet_since = if woken { None } else { self.quiet_since };
    }
}

/// Returns how long to poll before the next sleep, after one that took this time.
fn patience_after(slept: Duration, patience: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_micros(5);
    match slept {
        // Polling would have seen the packet.
        _ if slept < Waiter::PATIENCE => Waiter::PATIENCE,
        _ if patience / 2 < SHORTEST => Duration::ZERO,
        _ => patience / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_in_vain_ends() {
        let gaps = |count, gap, patience| (0..count).fold(patience, |patience, _| patience_after(gap, patience));
        let (short, long) = (Waiter::PATIENCE - Duration::from_nanos(1), Waiter::PATIENCE);
        assert_eq!(gaps(1, long, Waiter::PATIENCE), Waiter::PATIENCE / 2);
        assert_eq!(gaps(5, long, Waiter::PATIENCE), Duration::ZERO);
        assert_eq!(gaps(1, short, Duration::ZERO), Waiter::PATIENCE);
    }
}
