//! Raises and clears events (eventfd(2)) whose descriptors other processes have, too.
//!
//! Such a process can clear `O_NONBLOCK`, which belongs to the file and not to the descriptor, and fill the counter, so
//! that write(2) sleeps until it is read; or empty it, so that read(2) sleeps. What the kernel itself raises never sleeps:
//! the end of an asynchronous request (`IOCB_FLAG_RESFD`, io_submit(2)), here of a poll(2) that is at its end at once.
//! A read can refuse to sleep (`RWF_NOWAIT`, preadv2(2)).
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Raises an event. If another thread raises or reads it at the same moment, one of the kernel's own threads raises it a
/// moment later (aio_poll_wake of `fs/aio.c`). Where the kernel has no asynchronous requests, or no more of them
/// (`/proc/sys/fs/aio-max-nr`), it is written, which sleeps if another process has made it so.
pub fn raise(event: BorrowedFd<'_>) {
    for _ in 0..ATTEMPTS {
        let context = match CONTEXT.load(Relaxed) {
            NOT_MADE => make_context(),
            context => context,
        };
        if context == NONE {
            break;
        }
        match submit(context, event) {
            Ok(()) => return,
            Err(Errno::AGAIN) => reap(context),
            // A child of fork(2) has none of its parent's contexts.
            Err(Errno::INVAL) => forget(context, NOT_MADE),
            Err(_) => forget(context, NONE),
        }
    }
    // This fails only if the counter is full, and then the event is raised already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Clears an event; nothing to read means that it was not raised.
pub fn clear(event: BorrowedFd<'_>) {
    let mut count = [0; 8];
    // The offset of a file that has none.
    let result = preadv2(event, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
    // Linux 5.8 is the first that reads an eventfd in this way.
    if result == Err(Errno::OPNOTSUPP) {
        let _ = rustix::io::read(event, &mut count);
    }
}

/// The process's context of asynchronous requests (`aio_context_t`).
static CONTEXT: AtomicU64 = AtomicU64::new(NOT_MADE);
const NOT_MADE: u64 = 0;
/// The kernel gives none.
const NONE: u64 = u64::MAX;

/// How often a raise tries other contexts and makes room before it writes.
const ATTEMPTS: usize = 8;
/// Requests that can have ended before they are reaped.
const EVENTS: usize = 128;

/// `struct iocb` of `linux/aio_abi.h`, on a machine with its lowest byte first.
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

/// Asks whether the event can be read or written, one of which is true, and for the event to be raised with the answer.
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
    // SAFETY: the kernel reads one pointer and one request, and writes the request's key; both outlive the call. A poll has
    // no buffer.
    let result = unsafe { libc::syscall(libc::SYS_io_submit, context, 1 as libc::c_long, requests.as_mut_ptr()) };
    answer(result).map(drop)
}

/// Takes the answers of requests that have ended, whose room others need.
fn reap(context: u64) {
    let (mut answers, now) = ([[0u64; 4]; EVENTS], libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the kernel writes at most `EVENTS` answers of 32 bytes (`struct io_event`), and reads a time.
    let _ = unsafe {
        let (most, answers) = (EVENTS as libc::c_long, answers.as_mut_ptr());
        libc::syscall(libc::SYS_io_getevents, context, 0 as libc::c_long, most, answers, &raw const now)
    };
}

#[cold]
fn make_context() -> u64 {
    let mut context = 0u64;
    // SAFETY: the kernel writes one context.
    let result = unsafe { libc::syscall(libc::SYS_io_setup, EVENTS as libc::c_long, &raw mut context) };
    let made = if answer(result).is_ok() { context } else { NONE };
    match CONTEXT.compare_exchange(NOT_MADE, made, Relaxed, Relaxed) {
        Ok(_) => made,
        // Another thread was first.
        Err(first) => {
            destroy(made);
            first
        }
    }
}

/// Gives up a context that does not work.
#[cold]
fn forget(context: u64, next: u64) {
    if CONTEXT.compare_exchange(context, next, Relaxed, Relaxed).is_ok() {
        destroy(context);
    }
}

fn destroy(context: u64) {
    // SAFETY: the kernel checks the context, and writes nothing of this process's.
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
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;

    /// As another process leaves it that has its descriptor: reading and writing sleep.
    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    /// Does this in a thread, which must not sleep.
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
        awake(&event, raise);
        awake(&event, raise);
        assert_eq!(count(&event), u64::MAX);
        awake(&event, clear);
        raise(event.as_fd());
        awake(&event, clear);
        awake(&event, clear);
        raise(event.as_fd());
        assert_eq!(count(&event), 1);
    }

    #[test]
    fn each_raise_counts_whoever_reaps() {
        let event = event();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| raise(event.as_fd())));
            }
        });
        // Some are raised later, by the kernel.
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
        raise(event.as_fd());
        // SAFETY: the child calls functions that allocate nothing and take no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            raise(event.as_fd());
            let is_made = CONTEXT.load(Relaxed) != NONE;
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_made)) };
        }
        let mut status = -1;
        // SAFETY: the kernel writes one status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, count(&event)), (0, 2));
    }
}
