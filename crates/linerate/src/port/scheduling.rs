//! A thread and its processor: how it gives it to others while it waits, and how soon it has it again when it is woken.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// Waiting for what another thread does, without sleeping: the processor is given to whoever wants it, again and again, for a
/// while. It fits where both may be on one processor.
///
/// Where somebody takes the processor for long, such as a program that computes, a thread that gives it up loses more than one
/// that sleeps: who is woken comes first. So this is over at once then, and for some time afterwards. The first time that it is
/// over, the thread gets a short slice of the processor, where the kernel knows that (Linux 6.12): such a thread runs at once
/// when it is woken, and has no more of the processor for it.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// static DONE: AtomicBool = AtomicBool::new(false);
/// let thread = std::thread::spawn(|| DONE.store(true, Ordering::Release));
/// let mut patience = linerate::port::Patience::new(Duration::from_micros(100));
/// while !DONE.load(Ordering::Acquire) {
///     if !patience.wait() {
///         std::thread::sleep(Duration::from_micros(50));
///     }
/// }
/// patience.reset(); // there was something: the next wait begins anew
/// # thread.join().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Patience {
    longest: Duration,
    /// When it was waited for the first time since there was something.
    since: Option<Instant>,
    /// Somebody has had the processor for long: until then nothing is given up.
    busy_until: Option<Instant>,
    /// The thread runs soon when it is woken.
    runs_soon: bool,
}

impl Patience {
    /// Who has the processor for longer is taken to compute.
    const LONG: Duration = Duration::from_micros(500);
    /// How long that is remembered.
    const REMEMBERED: Duration = Duration::from_millis(100);

    /// Waits for at most so long.
    pub const fn new(longest: Duration) -> Patience {
        Patience { longest, since: None, busy_until: None, runs_soon: false }
    }

    /// Gives the processor to others once; false if that is over: then it is time to sleep.
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
        if after.duration_since(now) > Patience::LONG {
            self.busy_until = Some(after + Patience::REMEMBERED);
        }
        true
    }

    /// There was something: the next wait is the first one.
    pub fn reset(&mut self) {
        self.since = None;
    }
}

/// A thread's slice. Linux lets a thread that is woken run at once where its slice is shorter than that of the thread that
/// runs. Otherwise it waits for the end of that one's slice, and then for the next tick: up to 4 ms each time, in which a
/// ring of 1,024 slots overflows at a million packets per second.
const SLICE_NANOSECONDS: u64 = 100_000;

/// Lets this thread run soon when it is woken (sched_setattr(2); Linux 6.12). It gets no more of a processor for that, and
/// needs no privilege. Earlier kernels pass over it.
pub(super) fn run_soon_when_woken() {
    // SAFETY: plain data, of which zeros are a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most so many bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, attributes.size, 0) };
    // A thread of another policy was given that on purpose.
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
    fn patience_ends_and_begins_anew() {
        let mut patience = Patience::new(Duration::from_millis(1));
        assert!(patience.wait());
        while patience.wait() {}
        assert!(!patience.wait());
        patience.reset();
        patience.busy_until = None;
        assert!(patience.wait());
        // Somebody computes.
        patience.reset();
        patience.busy_until = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!patience.wait());
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
            // 0: a kernel without slices of threads' own.
            assert!([0, SLICE_NANOSECONDS].contains(&attributes.sched_runtime), "{}", attributes.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
