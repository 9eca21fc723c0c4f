//! Waiting for packets: polling, sleeping until an interrupt, or one after the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RxQueue;
use super::scheduling::run_soon_when_woken;

/// What a thread does while no packets come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Asks again at once: the shortest latency, for a whole processor.
    #[default]
    Poll,
    /// Sleeps until an interrupt tells of a packet, as soon as there is none.
    Interrupt,
    /// Polls while packets come, and sleeps once none has come for [`Waiter::PATIENCE`].
    ///
    /// Waking up costs some 10 µs, so a program that sleeps after 100 µs without a packet at most
    /// doubles what a pause costs, and never pays while the traffic is dense.
    Adaptive,
}

/// One thread's waiting, over all its receive queues.
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
    /// When the last packet came, or the first turn without one.
    quiet_since: Option<Instant>,
    armed: bool,
    waker: Option<Arc<OwnedFd>>,
    /// It has slept before.
    has_slept: bool,
}

impl Waiter {
    /// How long [`Wait::Adaptive`] polls without a packet.
    pub const PATIENCE: Duration = Duration::from_micros(100);

    /// How long a sleep lasts at most, so that a thread notices when it shall end; [`Waiter::woken_by`] lets it notice at once.
    pub const LONGEST_SLEEP: Duration = Duration::from_millis(250);

    /// Waits in this way.
    pub fn new(wait: Wait) -> Waiter {
        Waiter { wait, quiet_since: None, armed: false, waker: None, has_slept: false }
    }

    /// Ends each sleep also when this descriptor becomes readable: an eventfd, by which another thread tells this one to end.
    pub fn woken_by(self, waker: Arc<OwnedFd>) -> Waiter {
        Waiter { waker: Some(waker), ..self }
    }

    /// To be called after each turn of a thread's loop, with how many packets it moved. Returns at
    /// once while there is work, and otherwise sleeps as it was told, where a queue can wake it.
    ///
    /// Before each sleep there is one more turn between arming the queues and going to sleep, so
    /// that no packet is missed.
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
            // All, so that none sleeps through its packets; a port that cannot interrupt is polled.
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
        events.extend(self.waker.as_deref().map(|waker| PollFd::new(waker, PollFlags::IN)));
        let longest = Timespec { tv_sec: 0, tv_nsec: Waiter::LONGEST_SLEEP.as_nanos() as _ };
        let woken = poll(&mut events, Some(&longest)).is_ok_and(|count| count > 0);
        drop(events);
        self.disarm(queues);
        // Polls on for a while if there was something; otherwise goes to sleep again after one look.
        self.quiet_since = if woken { None } else { self.quiet_since };
    }
}
