//! Waiting for packets: polling, sleeping until an interrupt, or one after the other.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{RxQueue, Waker};
use crate::event::run_soon_when_woken;

/// The behaviour of a thread while no packets arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Polls: the shortest latency, for a whole processor.
    #[default]
    Poll,
    /// Sleeps whenever there is no packet, until an interrupt.
    Interrupt,
    /// Polls while packets arrive, and sleeps after [`Waiter::PATIENCE`] without one.
    ///
    /// A wake-up takes about 10 µs. A program that sleeps after 100 µs without a packet pays for it only in pauses that are
    /// longer than that.
    Adaptive,
}

/// The waiting of one thread, on all its receive queues.
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
///     waiter.turn(received, &mut [&mut rx]); // returns at once, or sleeps until a packet comes
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
}

impl Waiter {
    /// The time that [`Wait::Adaptive`] polls without a packet.
    pub const PATIENCE: Duration = Duration::from_micros(100);

    /// The longest sleep, after which a thread checks whether to end; [`Waiter::woken_by`] wakes it at once.
    pub const LONGEST_SLEEP: Duration = Duration::from_millis(250);

    /// Creates a waiter of this kind.
    pub fn new(wait: Wait) -> Waiter {
        Waiter { wait, quiet_since: None, armed: false, waker: None, has_slept: false }
    }

    /// Also ends each sleep at a wake, for example by another thread that ends this one.
    pub fn woken_by(self, waker: Waker) -> Waiter {
        Waiter { waker: Some(waker), ..self }
    }

    /// Waits after one turn of a thread's loop, which moved `packets`. Returns at once while there is work; otherwise
    /// sleeps as configured, if the queues can wake the thread.
    ///
    /// Between arming the queues and the sleep there is one more turn, so that no packet is missed.
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
        let patience = if self.wait == Wait::Adaptive { Waiter::PATIENCE } else { Duration::ZERO };
        if patience == Duration::ZERO || self.quiet_since.get_or_insert_with(Instant::now).elapsed() >= patience {
            // All queues are armed; a port without interrupts is polled.
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
        let woken = poll(&mut events, Some(&longest)).is_ok_and(|count| count > 0);
        drop(events);
        self.disarm(queues);
        // Polls for a while if there was a packet; otherwise sleeps again after one turn.
        self.quiet_since = if woken { None } else { self.quiet_since };
    }
}
