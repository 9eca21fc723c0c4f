//! Raises and clears events (eventfd(2)) whose descriptors are shared with other processes.
//!
//! Such a process can clear `O_NONBLOCK`, which belongs to the file and not to the descriptor. If it then fills the
//! counter, write(2) sleeps; if it empties the counter, read(2) sleeps. The kernel never sleeps when it raises an event
//! itself, at the end of an asynchronous request (`IOCB_FLAG_RESFD`, io_submit(2)). Here the request is a poll(2) that
//! completes immediately. A read with `RWF_NOWAIT` (preadv2(2)) does not sleep.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// The state of a shared event. All descriptors of the event in this process use it.
#[derive(Default)]
pub struct Shared {
    /// The event could not be raised yet.
    is_late: AtomicBool,
}

/// Prepares this process to raise events, before a peer depends on it. If the kernel refuses, warns that events will be
/// late.
pub fn prepare() {
    if CONTEXT.load(Relaxed) == NOT_MADE && make_context() == NOT_MADE {
        warn();
    }
}

/// Raises an event. If another thread raises or reads it at the same time, a kernel thread raises it slightly later
/// (aio_poll_wake in `fs/aio.c`). If the kernel grants no context for requests, the event is late: a thread raises it
/// as soon as a context is available. It is never raised by write(2), which might sleep.
pub fn raise(event: BorrowedFd<'_>, shared: &Arc<Shared>) {
    if try_raise(event) || shared.is_late.swap(true, AcqRel) {
        return;
    }
    warn();
    match event.try_clone_to_owned() {
        Ok(event) => late::add(event, shared.clone()),
        Err(error) => {
            shared.is_late.store(false, Release);
            tracing::warn!("an event for another process is lost: dup of its descriptor: {error}");
        }
    }
}

/// Raises an event; returns false if the kernel grants no context for it.
fn try_raise(event: BorrowedFd<'_>) -> bool {
    for _ in 0..ATTEMPTS {
        let context = match CONTEXT.load(Relaxed) {
            NOT_MADE => make_context(),
            context => context,
        };
        if context == NOT_MADE {
            return false;
        }
        match submit(context, event) {
            Ok(()) => return true,
            Err(Errno::AGAIN) => reap(context),
            // A child of fork(2) does not inherit its parent's contexts.
            Err(_) => forget(context),
        }
    }
    false
}

/// Clears an event, if it is raised. Reading an eventfd without sleeping in all cases needs Linux 5.8. Earlier kernels
/// leave it raised, so waiting threads poll.
pub fn clear(event: BorrowedFd<'_>) {
    let mut count = [0; 8];
    // The offset -1 is for files without a position.
    let _ = preadv2(event, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
}

/// Warns at most once a minute that the kernel grants no context.
#[cold]
fn warn() {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
        *last = Some(Instant::now());
        tracing::warn!(
            "events for other processes are late: the kernel gives no context for asynchronous requests (io_setup(2)); \
             allow more: sudo sysctl fs.aio-max-nr=1048576, or let the sandbox pass io_setup and io_submit"
        );
    }
}

/// Events that could not be raised yet.
mod late {
    use super::*;

    static EVENTS: Mutex<Vec<(OwnedFd, Arc<Shared>)>> = Mutex::new(Vec::new());
    /// The pause between two attempts.
    const PAUSE: Duration = Duration::from_millis(10);

    fn lock() -> MutexGuard<'static, Vec<(OwnedFd, Arc<Shared>)>> {
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event for a thread that raises it, and ends when no events are left. Each event is queued once.
    pub fn add(event: OwnedFd, shared: Arc<Shared>) {
        let mut events = lock();
        if events.iter().any(|(_, there)| Arc::ptr_eq(there, &shared)) {
            return;
        }
        events.push((event, shared));
        if events.len() == 1 {
            let attempts = || {
                while !raise_all() {
                    std::thread::sleep(PAUSE);
                }
            };
            // If no thread can be started, the next late event tries again.
            if let Err(error) = std::thread::Builder::new().name("late events".to_string()).spawn(attempts) {
                tracing::warn!("events for other processes are lost: starting a thread: {error}");
                events.drain(..).for_each(|(_, shared)| shared.is_late.store(false, Release));
            }
        }
    }

    /// Raises all queued events; returns whether the queue is now empty. Drops events whose ports were closed.
    pub fn raise_all() -> bool {
        let mut events = lock();
        events.retain(|(event, shared)| {
            // Cleared before the attempt, so that a later raise is not mistaken for this one.
            shared.is_late.store(false, Release);
            let is_done = Arc::strong_count(shared) == 1 || try_raise(event.as_fd());
            if !is_done {
                shared.is_late.store(true, Release);
            }
            !is_done
        });
        events.is_empty()
    }
}

/// The process's context of asynchronous requests (`aio_context_t`).
static CONTEXT: AtomicU64 = AtomicU64::new(NOT_MADE);
const NOT_MADE: u64 = 0;

/// How often a raise retries, with a new context or after reaping completed requests.
const ATTEMPTS: usize = 8;
/// The number of completed requests that the context can hold before they are reaped.
const EVENTS: usize = 128;

/// `struct iocb` of `linux/aio_abi.h`, on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    raised: u32,
}

const IOCB_CMD_POLL: u16 = 5;
const IOCB_FLAG_RESFD: u32 = 1;

/// Submits a poll for whether the event is readable or writable. One of them is always true, so the poll completes
/// immediately and the kernel raises the event.
fn submit(context: u64, event: BorrowedFd<'_>) -> Result<(), Errno> {
    let descriptor = event.as_raw_fd() as u32;
    let mut request = Request {
        opcode: IOCB_CMD_POLL,
        descriptor,
        buffer: (libc::POLLIN | libc::POLLOUT) as u64,
        flags: IOCB_FLAG_RESFD,
        raised: descriptor,
        ..Request::default()
    };
    let mut requests = [&raw mut request];
    // SAFETY: the kernel reads one pointer and one request, and writes the request's key; both outlive the call. A poll
    // uses no buffer.
    let result = unsafe { libc::syscall(libc::SYS_io_submit, context, 1 as libc::c_long, requests.as_mut_ptr()) };
    answer(result).map(drop)
}

/// Reaps completed requests, to make room for others.
fn reap(context: u64) {
    let (mut answers, now) = ([[0u64; 4]; EVENTS], libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the kernel writes at most `EVENTS` completions of 32 bytes (`struct io_event`), and reads a time.
    let _ = unsafe {
        let (most, answers) = (EVENTS as libc::c_long, answers.as_mut_ptr());
        libc::syscall(libc::SYS_io_getevents, context, 0 as libc::c_long, most, answers, &raw const now)
    };
}

/// Creates the context, unless another thread has created one meanwhile. Returns `NOT_MADE` if the kernel refuses.
#[cold]
fn make_context() -> u64 {
    let mut context = NOT_MADE;
    // SAFETY: the kernel writes one context.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, EVENTS as libc::c_long, &raw mut context) };
    if answer(result).is_err() {
        return CONTEXT.load(Relaxed);
    }
    match CONTEXT.compare_exchange(NOT_MADE, context, Relaxed, Relaxed) {
        Ok(_) => context,
        // Another thread has created a context meanwhile.
        Err(first) => {
            destroy(context);
            first
        }
    }
}

/// Destroys a context that does not work.
#[cold]
fn forget(context: u64) {
    if CONTEXT.compare_exchange(context, NOT_MADE, Relaxed, Relaxed).is_ok() {
        destroy(context);
    }
}

fn destroy(context: u64) {
    // SAFETY: the kernel checks the context, and writes to no memory of this process.
    let _ = unsafe { libc::syscall(libc::SYS_io_destroy, context) };
}

fn answer(result: libc::c_long) -> Result<libc::c_long, Errno> {
    match result {
        0.. => Ok(result),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// Returns an event without `O_NONBLOCK`, as another process could leave it: reads and writes can sleep.
    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    fn raised(event: BorrowedFd<'_>) {
        raise(event, &Arc::default());
    }

    /// Runs `does` in a thread, which must not sleep.
    fn awake(event: &OwnedFd, does: fn(BorrowedFd<'_>)) {
        let (sender, done) = channel();
        let event = event.try_clone().unwrap();
        std::thread::spawn(move || {
            does(event.as_fd());
            sender.send(())
        });
        done.recv_timeout(Duration::from_secs(30)).expect("the thread sleeps");
    }

    #[test]
    fn a_full_counter_and_an_empty_one_keep_no_thread() {
        let event = event();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        awake(&event, raised);
        awake(&event, raised);
        assert_eq!(count(&event), u64::MAX);
        awake(&event, clear);
        raised(event.as_fd());
        awake(&event, clear);
        awake(&event, clear);
        raised(event.as_fd());
        assert_eq!(count(&event), 1);
    }

    #[test]
    fn each_raise_counts_whoever_reaps() {
        let event = event();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| raised(event.as_fd())));
            }
        });
        // The kernel raises some of them later.
        let mut raised = 0;
        while raised < 2000 {
            let mut events = [PollFd::new(&event, PollFlags::IN)];
            let within = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert_eq!(poll(&mut events, Some(&within)), Ok(1), "{raised} of 2000 raises came");
            raised += count(&event);
        }
        assert_eq!(raised, 2000);
    }

    #[test]
    fn a_child_of_fork_raises_events_too() {
        let event = event();
        raised(event.as_fd());
        // SAFETY: the child only calls functions that do not allocate and take no lock, and then exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            raised(event.as_fd());
            let is_made = CONTEXT.load(Relaxed) != NOT_MADE;
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_made)) };
        }
        let mut status = -1;
        // SAFETY: the kernel writes one status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, count(&event)), (0, 2));
    }

    /// The child process: seccomp(2) does not allow its raising thread to create a context.
    #[test]
    fn in_a_process_without_contexts() {
        if std::env::var_os("LINERATE_LATE").is_none() {
            return;
        }
        let (full, event) = (event(), event());
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let shared: Arc<Shared> = Arc::default();
        let (of_full, of_event) = (full.as_fd(), event.as_fd());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                refuse_contexts();
                for _ in 0..1000 {
                    raise(of_full, &shared);
                }
                raise(of_event, &Arc::default());
            });
        });
        // The second event has no other user now, so it is dropped. The first is raised once there is a context.
        assert!(late::raise_all(), "this thread may make one");
        assert_eq!(count(&full), u64::MAX);
        raise(of_full, &shared);
        assert_eq!(count(&full), 1);
    }

    /// Makes io_setup(2) fail in this thread and in threads that it starts.
    fn refuse_contexts() {
        let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = [
            // Loads the number of the system call, the first word of `struct seccomp_data`.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_setup as u32, 0, 1),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32, 0, 0),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the kernel reads a program of four statements.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    /// Any user can exhaust the system's contexts (`fs.aio-max-nr`).
    #[test]
    fn without_contexts_an_event_is_late_and_keeps_no_thread() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["event::shared::tests::in_a_process_without_contexts", "--exact"]).env("LINERATE_LATE", "1");
        let mut child = child.spawn().unwrap();
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let within = Timespec { tv_sec: 60, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&within)) != Ok(1) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a thread that raises an event sleeps");
        }
        assert!(child.wait().unwrap().success());
    }
}
