//! Yielding the processor to other threads, and getting it back soon after a wake-up.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// Waits for another thread without sleeping: yields the processor repeatedly, for a limited time. Intended for two
/// threads that may share a processor.
///
/// If another thread is computing, yielding costs more than sleeping, because the kernel prefers threads that wake up.
/// After a yield that takes long, this wait and the waits of the next 100 ms end immediately. When the first wait ends,
/// the thread gets a short scheduling slice (Linux 6.12). It then runs immediately when woken, without a larger share
/// of the processor.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// static DONE: AtomicBool = AtomicBool::new(false);
/// let thread = std::thread::spawn(|| DONE.store(true, Ordering::Release));
/// let mut yield_wait = linerate::port::YieldWait::new(Duration::from_micros(100));
/// while !DONE.load(Ordering::Acquire) {
///     if !yield_wait.wait() {
///         std::thread::sleep(Duration::from_micros(50));
///     }
/// }
/// yield_wait.reset(); // there was work, so the next wait starts from zero
/// # thread.join().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct YieldWait {
    longest: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
    /// End of the period without yields that follows a long yield.
    busy_until: Option<Instant>,
    /// The thread has a short slice.
    runs_soon: bool,
}

impl YieldWait {
    /// A yield longer than this means that another thread is computing.
    const LONG: Duration = Duration::from_micros(500);
    /// The period without yields after a long yield.
    const REMEMBERED: Duration = Duration::from_millis(100);

    /// Creates a `YieldWait` whose waits take at most `longest`.
    pub const fn new(longest: Duration) -> YieldWait {
        YieldWait { longest, since: None, busy_until: None, runs_soon: false }
    }

    /// Yields the processor once. Returns false when the wait is over and the thread should sleep.
    pub fn wait(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= self.longest || self.busy_until.is_some_and(|until| now < until) {
            if !self.runs_soon {
                self.runs_soon = true;
                run_soon_when_woken();
            }
            return false;
        }
        std::thread::yield_now();
        let after = Instant::now();
        if after.duration_since(now) > YieldWait::LONG {
            self.busy_until = Some(after + YieldWait::REMEMBERED);
        }
        true
    }

    /// Ends the current wait, because there was work.
    pub fn reset(&mut self) {
        self.since = None;
    }
}

/// A short slice. Linux runs a woken thread immediately if its slice is shorter than the running thread's. Otherwise
/// the woken thread waits for the end of that slice and for the next tick: up to 4 ms. At a million packets per second,
/// a ring of 1,024 slots overflows in that time.
const SLICE_NANOSECONDS: u64 = 100_000;

/// Sets a short slice for this thread (sched_setattr(2); Linux 6.12), so that it runs soon after a wake-up. This needs
/// no privileges. Earlier kernels ignore the slice.
pub fn run_soon_when_woken() {
    // SAFETY: plain data, for which zeros are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most the size passed to it.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, attributes.size, 0) };
    // Keep another policy, which was set deliberately.
    if got != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NANOSECONDS;
    // SAFETY: the kernel reads the attributes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yield_wait_ends_and_begins_anew() {
        let mut yield_wait = YieldWait::new(Duration::from_millis(1));
        assert!(yield_wait.wait());
        while yield_wait.wait() {}
        assert!(!yield_wait.wait());
        yield_wait.reset();
        yield_wait.busy_until = None;
        assert!(yield_wait.wait());
        // As after a long yield.
        yield_wait.reset();
        yield_wait.busy_until = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!yield_wait.wait());
    }

    #[test]
    fn a_thread_s_slice_is_short_where_the_kernel_knows_that() {
        std::thread::spawn(|| {
            run_soon_when_woken();
            // SAFETY: as above.
            let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::sched_attr>() as u32;
            // SAFETY: as above.
            let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
            assert_eq!((got, attributes.sched_policy), (0, libc::SCHED_OTHER as u32));
            // 0: the kernel does not support slices per thread.
            assert!([0, SLICE_NANOSECONDS].contains(&attributes.sched_runtime), "{}", attributes.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
