//! Waiting for descriptors of `/dev/netmap` and other descriptors. As the kernel module does in poll(2), this syncs
//! their rings; the thread sleeps only if no descriptor is ready.
//!
//! A call alternately checks all descriptors and sleeps. A thread that is cancelled while it sleeps (pthreads(7))
//! unwinds through frames that must have nothing to drop. So a call's state is stored with its thread ([`CALLS`]), and
//! the sleep itself is in [`answer`], which has no state.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{epoll_event, pollfd, sigset_t};
use linerate::port::YieldWait;
use linerate_preload::{call, cancellation_point, errno, fail, guarded, keeping_errno, memory, report};

use crate::descriptor::{Bound, gone};
use crate::real::{borrow, kernel_poll, next, timespec};
use crate::table::{DescriptorRef, TABLE};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// Maximum number of descriptors or events of a call that is answered here.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// A call's timeout; `None`: infinite.
type Timeout = Option<Duration>;
/// A result, or an errno(3) value.
type CallResult<T = c_int> = Result<T, c_int>;

pub fn milliseconds(timeout: c_int) -> Timeout {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Reads select(2)'s timeout, whose microseconds may exceed a second.
///
/// # Errors
/// `EFAULT` and `EINVAL`.
pub fn time_of_day(time: *const libc::timeval) -> CallResult<Timeout> {
    let Some(time) = memory::read_optional(time)? else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
        (Ok(seconds), Ok(micros)) => {
            Ok(Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))))
        }
        _ => Err(libc::EINVAL),
    }
}

fn wait(fd: c_int) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Syncs the rings for these events, and returns the ready events. `must` forces a check of the server.
fn ready(held: &DescriptorRef, bound: &Bound, events: i16, must: bool) -> i16 {
    let (port, mut there, mut good) = (bound.port(), 0, !bound.has_entries());
    if events & OUT != 0 || !bound.no_tx_poll {
        good &= bound.sync_tx(held.fd).is_ok();
    }
    if events & IN != 0 || bound.do_rx_poll {
        good &= bound.sync_rx(held.fd).is_ok();
    }
    if events & OUT != 0 && port.can_send() {
        there |= events & OUT;
    }
    if events & IN != 0 && port.can_receive() {
        there |= events & IN;
    }
    keep_armed(held, bound);
    if bound.check(held.fd, must).is_err() {
        if !bound.is_gone.swap(true, Ordering::Relaxed) {
            report(&gone().to_string());
        }
        good = false;
    }
    if good { there } else { libc::POLLERR }
}

/// Keeps the kernel informed of the descriptor's state if an epoll(7) watches it: a token, the server's message that
/// wakes the client, is pending, or the server will send a token.
pub fn keep_armed(held: &DescriptorRef, bound: &Bound) {
    let watched = held.watched.load(Ordering::Relaxed) as i16;
    if watched != 0 {
        bound.port().keep_armed(borrow(held.fd), watched & OUT != 0, watched & IN != 0);
    }
}

/// A descriptor of `/dev/netmap`, and the events that a call waits for.
struct Ours {
    descriptor: DescriptorRef,
    events: i16,
}

impl Ours {
    fn ready(&self, must: bool) -> i16 {
        self.descriptor.bound().map_or(libc::POLLERR, |bound| ready(&self.descriptor, bound, self.events, must))
    }

    /// Asks the server to wake this thread: it sends a token, and the kernel wakes the thread because the socket is
    /// readable. Check the rings once more after this call. `is_in_vain`: the last token was a false alarm.
    fn arm(&self, is_in_vain: bool) {
        if let Some(bound) = self.descriptor.bound() {
            bound.port().arm(borrow(self.descriptor.fd), self.events & OUT != 0, self.events & IN != 0, is_in_vain);
        }
    }
}

/// The descriptors and events of a call.
trait WaitCall {
    /// Checks all descriptors; `None` if none is ready, unless the timeout has expired (`is_over`). `has_slept` also
    /// checks the servers.
    fn poll_all(&mut self, is_over: bool, has_slept: bool) -> Option<CallResult>;

    /// Returns the descriptors of `/dev/netmap`.
    fn ours(&self) -> &[Ours];

    /// Returns the kernel's descriptors.
    fn others(&self) -> Vec<pollfd>;

    /// Ends the call, and reports the remaining time.
    fn end(&self, _left: Timeout) {}
}

/// A thread's waiting call.
struct Call {
    wait_call: Box<dyn WaitCall>,
    end: Option<Instant>,
    mask: *const sigset_t,
    /// The arguments of ppoll(2) while the thread sleeps.
    events: Vec<pollfd>,
    has_slept: bool,
}

thread_local! {
    /// This thread's waiting calls; there are several if a signal handler waits too. They are dropped if the thread is
    /// cancelled.
    static CALLS: Calls = const { Calls(RefCell::new(Vec::new())) };
}

struct Calls(RefCell<Vec<Call>>);

impl Drop for Calls {
    fn drop(&mut self) {
        guarded((), || drop(self.0.take()));
    }
}

/// The next step of a call.
#[derive(Clone, Copy)]
enum Step {
    Done(c_int),
    /// Call ppoll(2) with these arguments, which are valid until [`after_sleep`].
    Sleep {
        events: *mut pollfd,
        count: usize,
        time: Option<libc::timespec>,
        mask: *const sigset_t,
    },
}

fn last<T>(work: impl FnOnce(&mut Vec<Call>) -> T) -> Option<T> {
    CALLS.try_with(|calls| calls.0.try_borrow_mut().ok().map(|mut calls| work(&mut calls))).ok().flatten()
}

/// Begins a call; returns false if the thread is ending and cannot have a call.
fn begin(wait_call: Box<dyn WaitCall>, timeout: Timeout, mask: *const sigset_t) -> bool {
    // A timeout that overflows the clock is infinite.
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let call = Call { wait_call, end, mask, events: Vec::new(), has_slept: false };
    last(|calls| calls.push(call)).is_some()
}

/// Ends the thread's last call, and drops its state while the thread's calls are not borrowed.
fn end(answer: CallResult) -> Step {
    if let Some(call) = last(Vec::pop).flatten() {
        call.wait_call.end(call.left());
    }
    Step::Done(answer.unwrap_or_else(fail))
}

/// A sleep shorter than this costs more than yielding the processor.
const SHORT: Duration = Duration::from_micros(100);

/// A thread's state of polling before it sleeps.
struct PollState {
    patience: YieldWait,
    /// Polling is worthwhile: the last sleep was short, or the last polling succeeded.
    is_worth_it: bool,
    slept_at: Option<Instant>,
}

thread_local! {
    static POLL_STATE: RefCell<PollState> =
        const { RefCell::new(PollState { patience: YieldWait::new(SHORT), is_worth_it: false, slept_at: None }) };
}

/// Accesses this thread's polling state. Returns `None` in a signal handler that has interrupted another access, and
/// when the thread is ending.
fn with_poll_state<T>(work: impl FnOnce(&mut PollState) -> T) -> Option<T> {
    POLL_STATE.try_with(|state| state.try_borrow_mut().ok().map(|mut state| work(&mut state))).ok().flatten()
}

impl Call {
    fn left(&self) -> Timeout {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Polls, yielding in between, while packets arrive in quick succession.
    fn wait(&mut self) -> Option<CallResult> {
        with_poll_state(|state| state.patience.reset());
        while with_poll_state(|state| state.is_worth_it && state.patience.wait()) == Some(true) {
            let is_over = self.left() == Some(Duration::ZERO);
            if let Some(answer) = self.wait_call.poll_all(is_over, self.has_slept) {
                return Some(answer);
            }
        }
        with_poll_state(|state| state.is_worth_it = false);
        None
    }

    fn poll_or_arm(&mut self) -> Option<CallResult> {
        let is_over = self.left() == Some(Duration::ZERO);
        if let Some(answer) = self.wait_call.poll_all(is_over, self.has_slept) {
            return Some(answer);
        }
        if let Some(answer) = self.wait() {
            return Some(answer);
        }
        self.wait_call.ours().iter().for_each(|one| one.arm(self.has_slept));
        // Find packets that arrived before the request.
        if let Some(answer) = self.wait_call.poll_all(false, self.has_slept) {
            return Some(answer);
        }
        self.events = self.wait_call.others();
        self.events.extend(self.wait_call.ours().iter().map(|one| wait(one.descriptor.fd)));
        None
    }

    fn sleep(&mut self) -> Step {
        with_poll_state(|state| state.slept_at = Some(Instant::now()));
        let time = self.left().map(timespec);
        Step::Sleep { events: self.events.as_mut_ptr(), count: self.events.len(), time, mask: self.mask }
    }

    fn after_sleep(&mut self) {
        self.has_slept = true;
        with_poll_state(|state| state.is_worth_it = state.slept_at.is_some_and(|at| at.elapsed() < SHORT));
    }
}

fn next_step() -> Step {
    // Do not borrow the calls during the check, so that a signal handler may begin another call.
    let Some(Some(mut call)) = last(Vec::pop) else { return Step::Done(fail(libc::ENOMEM)) };
    let answer = call.poll_or_arm();
    // The arguments of a sleep are in the call's heap memory, which does not move with the call.
    let sleep = call.sleep();
    let is_kept = last(|calls| calls.push(call)).is_some();
    match answer {
        Some(answer) => end(answer),
        None if is_kept => sleep,
        None => Step::Done(fail(libc::ENOMEM)),
    }
}

/// Continues with the result of ppoll(2). An error, usually because of a signal, ends the call.
fn after_sleep(result: c_int) -> Step {
    if result < 0 {
        return end(Err(errno()));
    }
    if result > 0 {
        last(|calls| calls.last_mut().map(Call::after_sleep));
    }
    next_step()
}

/// Answers the call that `wait_call` returns, if it includes a descriptor of `/dev/netmap`. Nothing here needs dropping
/// during the sleep, in which the thread may be cancelled.
fn answer(wait_call: impl FnOnce() -> CallResult<Option<Begun>>) -> Option<c_int> {
    let begun = guarded(Some(-1), || match wait_call() {
        Err(errno) => Some(fail(errno)),
        Ok(None) => Some(NOT_OURS),
        Ok(Some(Begun { wait_call, timeout, mask })) => {
            if begin(wait_call, timeout, mask) {
                None
            } else {
                Some(fail(libc::ENOMEM))
            }
        }
    });
    match begun {
        Some(NOT_OURS) => return None,
        Some(answer) => return Some(answer),
        None => {}
    }
    // SAFETY: neither this function nor the exported functions that call it have anything to drop at this point.
    unsafe { cancellation_point() };
    let mut step = guarded(Step::Done(-1), next_step);
    while let Step::Sleep { events, count, time, mask } = step {
        let time = time.as_ref().map_or(null(), std::ptr::from_ref);
        let result = next!(ppoll(events, count as libc::nfds_t, time, mask));
        step = guarded(Step::Done(-1), || after_sleep(result));
    }
    match step {
        Step::Done(answer) => Some(answer),
        Step::Sleep { .. } => None,
    }
}

/// A value that no call returns.
const NOT_OURS: c_int = c_int::MIN;

/// A call that is answered here.
struct Begun {
    wait_call: Box<dyn WaitCall>,
    timeout: Timeout,
    mask: *const sigset_t,
}

/// A call of poll(2) or select(2) that includes descriptors of `/dev/netmap`.
struct Poll {
    events: Vec<pollfd>,
    /// The indices of `/dev/netmap` descriptors in `events`.
    indices: Vec<usize>,
    ours: Vec<Ours>,
    report: Report,
    /// The kernel has just read and written the program's events.
    is_fresh: bool,
}

/// Where to write the result in the program's memory.
enum Report {
    /// poll(2): the address of the events.
    Events(u64),
    /// select(2): the addresses of the sets and of the timeout.
    Sets { sets: [u64; 3], words: usize, time: *mut libc::timeval },
}

impl Poll {
    /// Creates a call; `None` if no descriptor is one of `/dev/netmap`.
    fn new(events: Vec<pollfd>, report: Report) -> Option<Poll> {
        let found = |(index, event): (usize, &pollfd)| {
            let descriptor = TABLE.get(event.fd)?;
            Some((index, Ours { descriptor, events: event.events }))
        };
        let (indices, ours): (Vec<usize>, Vec<Ours>) = events.iter().enumerate().filter_map(found).unzip();
        (!indices.is_empty()).then_some(Poll { events, indices, ours, report, is_fresh: false })
    }

    fn report(&self) -> CallResult {
        let count = self.events.iter().filter(|event| event.revents != 0).count() as c_int;
        match &self.report {
            Report::Events(at) if self.is_fresh => {
                for (n, event) in self.events.iter().enumerate() {
                    let revents = (at + (n * size_of::<pollfd>()) as u64) as *mut pollfd;
                    // SAFETY: ppoll(2) has just written all events at this address; the write is unaligned.
                    unsafe { (&raw mut (*revents).revents).write_unaligned(event.revents) };
                }
                Ok(count)
            }
            Report::Events(at) => {
                let at = |n: usize| at + (n * size_of::<pollfd>() + std::mem::offset_of!(pollfd, revents)) as u64;
                let at = |n: usize| at(n) as *mut i16;
                let revents: Vec<_> = self.events.iter().enumerate().map(|(n, event)| (at(n), event.revents)).collect();
                // SAFETY: the program passed the addresses for the result.
                unsafe { memory::write_each(&revents)? };
                Ok(count)
            }
            Report::Sets { sets, words, .. } => {
                if self.events.iter().any(|event| event.revents & libc::POLLNVAL != 0) {
                    return Err(libc::EBADF);
                }
                let (ended, mut count) = (libc::POLLERR | libc::POLLHUP, 0);
                for (kind, set) in sets.iter().enumerate().filter(|(_, set)| **set != 0) {
                    let mut bits = vec![0u64; *words];
                    let good = KINDS[kind] | if kind < 2 { ended } else { 0 };
                    for event in self.events.iter().filter(|event| event.events & KINDS[kind] != 0) {
                        if event.revents & good != 0 {
                            bits[event.fd as usize / 64] |= 1 << (event.fd % 64);
                            count += 1;
                        }
                    }
                    let bytes: Vec<u8> = bits.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    // SAFETY: as above.
                    unsafe { memory::write_bytes(*set as *mut c_void, &bytes)? };
                }
                Ok(count)
            }
        }
    }
}

impl WaitCall for Poll {
    fn poll_all(&mut self, is_over: bool, has_slept: bool) -> Option<CallResult> {
        self.is_fresh &= !has_slept;
        let mut others = self.others();
        let has_others = others.iter().any(|other| other.fd >= 0);
        if has_others && kernel_poll(&mut others, Some(Duration::ZERO)) < 0 {
            return Some(Err(errno()));
        }
        for (event, other) in self.events.iter_mut().zip(&others) {
            event.revents = other.revents;
        }
        for (index, one) in self.indices.iter().zip(&self.ours) {
            self.events[*index].revents = one.ready(has_slept);
        }
        (is_over || self.events.iter().any(|event| event.revents != 0)).then(|| self.report())
    }

    fn ours(&self) -> &[Ours] {
        &self.ours
    }

    /// Returns all events. Descriptors of `/dev/netmap` are -1, which the kernel skips.
    fn others(&self) -> Vec<pollfd> {
        let mut others: Vec<pollfd> = self.events.iter().map(|event| pollfd { revents: 0, ..*event }).collect();
        self.indices.iter().for_each(|index| others[*index].fd = -1);
        others
    }

    fn end(&self, left: Timeout) {
        if let (Report::Sets { time, .. }, Some(left)) = (&self.report, left)
            && !time.is_null()
        {
            let left = libc::timeval { tv_sec: left.as_secs() as _, tv_usec: left.subsec_micros().into() };
            // As in Linux, an error of writing it is not reported.
            // SAFETY: as above.
            let _ = unsafe { memory::write(*time, left) };
        }
    }
}

/// Answers poll(2) and ppoll(2); `None` if no descriptor is one of `/dev/netmap`.
pub fn poll(
    events: *mut pollfd,
    count: libc::nfds_t,
    timeout: impl FnOnce() -> CallResult<Timeout>,
    mask: *const sigset_t,
) -> Option<c_int> {
    // Leave larger counts to the kernel.
    if !TABLE.any() || count == 0 || count as usize > MAX_DESCRIPTORS {
        return None;
    }
    answer(|| {
        let timeout = timeout()?;
        let count = count as usize;
        // Let the kernel read and write the events first, which proves that they are accessible.
        let now = timespec(Duration::ZERO);
        // SAFETY: the program's own arguments.
        if unsafe { call!(libc::SYS_ppoll, events, count, &raw const now, 0, 8) } < 0 {
            return Err(errno());
        }
        let mut all: Vec<pollfd> = Vec::with_capacity(count);
        // SAFETY: ppoll(2) has just read `count` events at this address. They are copied as bytes, so alignment does
        // not matter, and any bytes are valid events.
        unsafe {
            std::ptr::copy(events.cast::<u8>(), all.as_mut_ptr().cast(), count * size_of::<pollfd>());
            all.set_len(count);
        }
        let Some(mut poll) = Poll::new(all, Report::Events(events as u64)) else { return Ok(None) };
        poll.is_fresh = true;
        Ok(Some(Begun { wait_call: Box::new(poll), timeout, mask }))
    })
}

/// The events of each set of select(2).
const KINDS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// Returns the length of a set in descriptors. Programs may pass a larger count, but the kernel does not read more.
fn most_descriptors(count: c_int) -> usize {
    let count = usize::try_from(count).unwrap_or(0);
    if count <= libc::FD_SETSIZE {
        return count;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    count.min(size.unwrap_or(libc::FD_SETSIZE))
}

/// Answers select(2) and pselect(2); `None` if no descriptor is one of `/dev/netmap`. Writes the remaining time to
/// `time`.
pub fn select(
    count: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout: impl FnOnce() -> CallResult<Timeout>,
    time: *mut libc::timeval,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !TABLE.any() || count <= 0 {
        return None;
    }
    answer(|| {
        let timeout = timeout()?;
        let count = most_descriptors(count);
        let words = count.div_ceil(64);
        let sets = sets.map(|set| set as u64);
        let mut wanted = vec![0i16; count];
        for (kind, set) in sets.iter().enumerate().filter(|(_, set)| **set != 0) {
            let bits = memory::read_all(*set as *const u64, words)?;
            let is_in = |fd: usize| bits[fd / 64] & 1 << (fd % 64) != 0;
            (0..count).filter(|fd| is_in(*fd)).for_each(|fd| wanted[fd] |= KINDS[kind]);
        }
        let wanted = wanted.iter().enumerate().filter(|(_, events)| **events != 0);
        let events = wanted.map(|(fd, events)| pollfd { fd: fd as c_int, events: *events, revents: 0 }).collect();
        let Some(poll) = Poll::new(events, Report::Sets { sets, words, time }) else { return Ok(None) };
        Ok(Some(Begun { wait_call: Box::new(poll), timeout, mask }))
    })
}

/// A descriptor of `/dev/netmap` that an epoll(7) watches. The kernel's epoll watches the descriptor's socket, which a
/// token makes readable. So the kernel keeps the association, even if descriptors are closed or duplicated, and wakes
/// waiting threads.
#[derive(Clone, Copy)]
pub struct Watched {
    epoll: c_int,
    fd: c_int,
    cookie: u64,
    events: u32,
    data: u64,
    /// The value that the kernel's epoll has instead of `data`.
    tag: u64,
    /// Disabled after one report (`EPOLLONESHOT`), until the program modifies it.
    is_off: bool,
}

/// The upper half of every tag, unlikely to occur in a program's data.
const TAG: u64 = 0x6E6D_7C21_0000_0000;
const TAGS: u64 = 0xFFFF_FFFF_0000_0000;
static LAST_TAG: AtomicU32 = AtomicU32::new(0);

/// All watched descriptors. They contain only numbers, so nothing is dropped while the list is locked.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// The locked list of watched descriptors.
pub type Locked = MutexGuard<'static, Vec<Watched>>;

/// Locks the list of watched descriptors.
pub fn lock() -> Locked {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kernel_change(epoll: c_int, change: c_int, fd: c_int, one: &Watched) -> c_int {
    let mut event = epoll_event { events: if one.is_off { 0 } else { libc::EPOLLIN as u32 }, u64: one.tag };
    // SAFETY: the kernel only reads the event.
    unsafe { call!(libc::SYS_epoll_ctl, epoll, change, fd, &raw mut event) as c_int }
}

/// Answers epoll_ctl(2) for a descriptor of `/dev/netmap`.
pub fn change(epoll: c_int, change: c_int, fd: c_int, event: *const epoll_event) -> Option<c_int> {
    let descriptor = TABLE.get(fd)?;
    let event = match change {
        libc::EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
        _ => match memory::read(event) {
            Ok(event) => event,
            Err(fault) => return Some(fail(fault)),
        },
    };
    let tag = TAG | u64::from(LAST_TAG.fetch_add(1, Ordering::Relaxed));
    let one =
        Watched { epoll, fd, cookie: descriptor.cookie(), events: event.events, data: event.u64, tag, is_off: false };
    let answer = kernel_change(epoll, change, fd, &one);
    if answer == 0 {
        let mut all = lock();
        all.retain(|other| (other.epoll, other.fd) != (epoll, fd));
        if change != libc::EPOLL_CTL_DEL {
            all.push(one);
        }
        let mine = all.iter().filter(|other| other.cookie == one.cookie);
        let waits_for = mine.fold(0, |events, other| events | other.events);
        drop(all);
        descriptor.watched.store(waits_for & (IN | OUT) as u32, Ordering::Relaxed);
        if let Some(bound) = descriptor.bound() {
            // Inform the kernel of the present state.
            keeping_errno(|| ready(&descriptor, bound, waits_for as i16 & (IN | OUT), false));
        }
    }
    Some(answer)
}

struct Epoll {
    epoll: c_int,
    events: u64,
    most: usize,
    ours: Vec<Ours>,
}

/// Counts calls in which events of ports alone fill the program's array.
static FULL_CALLS: AtomicU32 = AtomicU32::new(0);

/// Maximum number of events taken from the kernel per call.
const MAX_EVENTS: usize = 1024;

impl Epoll {
    /// Takes up to `most` events from the kernel. Returns the events of other descriptors, and whether there were any
    /// of ports.
    ///
    /// # Errors
    /// The kernel's errno(3).
    fn kernel(&self, most: usize) -> CallResult<(Vec<epoll_event>, bool)> {
        let (mut events, mut is_ours) = (Vec::new(), false);
        // Events of readable ports may fill the array; then the kernel reports other descriptors at the next call.
        for _ in 0..=self.ours.len() {
            events.resize(most.min(MAX_EVENTS), epoll_event { events: 0, u64: 0 });
            let (at, len) = (events.as_mut_ptr(), events.len());
            // SAFETY: there is room for `len` events; a null signal mask leaves the mask unchanged.
            let count = unsafe { call!(libc::SYS_epoll_pwait, self.epoll, at, len, 0, 0, 8) };
            if count < 0 {
                return Err(errno());
            }
            events.truncate(count as usize);
            events.retain(|event| event.u64 & TAGS != TAG);
            is_ours |= events.len() < count as usize;
            if count == 0 || !events.is_empty() {
                break;
            }
        }
        Ok((events, is_ours))
    }

    /// Returns the ports that this epoll(7) watches; removes ports whose descriptor was closed or replaced.
    fn watched(&self) -> Vec<(Watched, DescriptorRef)> {
        let all: Vec<Watched> = lock().iter().filter(|one| one.epoll == self.epoll).copied().collect();
        let still = |one: Watched| {
            let descriptor = TABLE.get(one.fd).filter(|descriptor| descriptor.cookie() == one.cookie);
            let is_watched = kernel_change(self.epoll, libc::EPOLL_CTL_MOD, one.fd, &one) == 0;
            if let (Some(descriptor), true) = (descriptor, is_watched) {
                return Some((one, descriptor));
            }
            lock().retain(|other| (other.epoll, other.fd, other.cookie) != (one.epoll, one.fd, one.cookie));
            None
        };
        all.into_iter().filter_map(still).collect()
    }

    /// Returns the ports' ready events.
    fn ready_ports(&mut self, must: bool) -> Vec<(Watched, epoll_event)> {
        let watched_now = self.watched();
        self.ours.clear();
        let mut found = Vec::new();
        for (one, descriptor) in watched_now.into_iter().filter(|(one, _)| !one.is_off) {
            // epoll(7) and poll(2) use the same bits for these events.
            let ours = Ours { descriptor, events: one.events as i16 & (IN | OUT) };
            let there = ours.ready(must);
            if there != 0 && found.len() < self.most {
                found.push((one, epoll_event { events: there as u16 as u32, u64: one.data }));
            }
            self.ours.push(ours);
        }
        found
    }

    fn report(&self, found: &[(Watched, epoll_event)], others: Vec<epoll_event>) -> CallResult {
        if found.len() + others.len() >= self.most {
            // As in Linux, put reported ports last for the next call.
            let is_found = |one: &Watched| found.iter().any(|(told, _)| told.tag == one.tag);
            lock().sort_by_key(is_found);
        }
        let all = found.iter().map(|(_, event)| *event).chain(others);
        let at = |n: usize| self.events.wrapping_add((n * size_of::<epoll_event>()) as u64) as *mut epoll_event;
        let events: Vec<_> = all.enumerate().map(|(n, event)| (at(n), event)).collect();
        // SAFETY: the program passed the addresses for the result.
        unsafe { memory::write_each(&events)? };
        for (told, _) in found.iter().filter(|(one, _)| one.events & libc::EPOLLONESHOT as u32 != 0) {
            let same = |one: &&mut Watched| (one.epoll, one.fd, one.cookie) == (told.epoll, told.fd, told.cookie);
            if let Some(one) = lock().iter_mut().find(same) {
                one.is_off = true;
                kernel_change(self.epoll, libc::EPOLL_CTL_MOD, one.fd, one);
            }
        }
        Ok(events.len() as c_int)
    }
}

impl WaitCall for Epoll {
    fn poll_all(&mut self, is_over: bool, has_slept: bool) -> Option<CallResult> {
        let mut found = self.ready_ports(has_slept);
        let (mut others, mut is_ours) = (Vec::new(), false);
        // If events of ports fill the program's array, every second call leaves one entry for other descriptors.
        let is_full = found.len() >= self.most && FULL_CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let last = if is_full { found.pop() } else { None };
        if found.len() < self.most {
            match self.kernel(self.most - found.len()) {
                Ok(there) => (others, is_ours) = there,
                Err(errno) if found.is_empty() && last.is_none() => return Some(Err(errno)),
                Err(_) => {}
            }
        }
        if found.len() + others.len() < self.most {
            found.extend(last);
        }
        if found.is_empty() && others.is_empty() && is_ours {
            // A token was a false alarm: read it, so that the kernel stops reporting it.
            self.ours.iter().for_each(|one| one.arm(true));
            found = self.ready_ports(true);
        }
        if found.is_empty() && others.is_empty() && !is_over {
            return None;
        }
        Some(self.report(&found, others))
    }

    fn ours(&self) -> &[Ours] {
        &self.ours
    }

    fn others(&self) -> Vec<pollfd> {
        vec![wait(self.epoll)]
    }
}

/// Answers epoll_wait(2) and its variants; `None` if the epoll watches no port.
pub fn epoll(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: impl FnOnce() -> CallResult<Timeout>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !TABLE.any() {
        return None;
    }
    answer(|| {
        if !lock().iter().any(|one| one.epoll == epoll) {
            return Ok(None);
        }
        let most =
            usize::try_from(most).ok().filter(|most| (1..=MAX_DESCRIPTORS).contains(most)).ok_or(libc::EINVAL)?;
        let timeout = timeout()?;
        let wait_call = Box::new(Epoll { epoll, events: events as u64, most, ours: Vec::new() });
        Ok(Some(Begun { wait_call, timeout, mask }))
    })
}
