//! Lets a thread sleep until a queue has packets, or until a time.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// An event that occurs with another one, or at a time.
pub struct Timer {
    any: OwnedFd,
    timer: OwnedFd,
    /// The other event in `any`.
    event: Option<RawFd>,
}

impl Timer {
    /// Creates a timer; `None` without free descriptors. The thread then has to poll.
    pub fn new() -> Option<Timer> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).ok()?;
        let any = Timer::waiting_for(&timer)?;
        Some(Timer { any, timer, event: None })
    }

    fn waiting_for(timer: &OwnedFd) -> Option<OwnedFd> {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        epoll::add(&any, timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN).ok()?;
        Some(any)
    }

    /// Returns a descriptor that becomes readable with `event`, or in `nanoseconds`.
    pub fn arm(&mut self, event: BorrowedFd<'_>, nanoseconds: Option<u64>) -> Option<BorrowedFd<'_>> {
        let number = event.as_raw_fd();
        let add = |any: &OwnedFd| epoll::add(any, event, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
        match (add(&self.any), self.event) {
            (Ok(()), None) => {}
            (Err(Errno::EXIST), Some(known)) if known == number => {}
            // Another event: the old one must not end sleeps.
            _ => {
                self.any = Timer::waiting_for(&self.timer)?;
                add(&self.any).ok()?;
            }
        }
        self.event = Some(number);
        // A time of 0 would stop the timer.
        let after = nanoseconds.map_or(Duration::ZERO, |after| Duration::from_nanos(after.max(1)));
        let it_value = Timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).ok()?;
        Some(self.any.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    use super::*;

    fn is_ready(event: BorrowedFd<'_>, within: &Timespec) -> bool {
        poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], Some(within)).unwrap() > 0
    }

    #[test]
    fn a_thread_wakes_at_the_time_or_with_the_event() {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        const LONG: Timespec = Timespec { tv_sec: 100, tv_nsec: 0 };
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (first, second) = (event(), event());
        let mut timer = Timer::new().unwrap();
        assert!(!is_ready(timer.arm(first.as_fd(), None).unwrap(), &NOW));
        assert!(!is_ready(timer.arm(first.as_fd(), Some(u64::MAX / 2)).unwrap(), &NOW));
        assert!(is_ready(timer.arm(first.as_fd(), Some(0)).unwrap(), &LONG));
        // It is not ready any more once it is armed again.
        assert!(!is_ready(timer.arm(first.as_fd(), None).unwrap(), &NOW));
        rustix::io::write(&first, &1u64.to_ne_bytes()).unwrap();
        assert!(is_ready(timer.arm(first.as_fd(), None).unwrap(), &NOW));
        // The event of another queue replaces it.
        assert!(!is_ready(timer.arm(second.as_fd(), None).unwrap(), &NOW));
    }
}
