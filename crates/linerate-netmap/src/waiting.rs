//! Waiting for descriptors of `/dev/netmap` among others. Their rings are synced here, as the kernel module does it in
//! poll(2); a program sleeps only if none of its descriptors has anything.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{epoll_event, pollfd};

use crate::descriptor::{self, Bound};
use crate::real::{call, fail, timespec};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// Bytes of a kernel's signal set.
const MASK: usize = 8;

pub fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

pub fn time(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

pub fn time_of_day(time: &libc::timeval) -> Duration {
    Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.clamp(0, 999_999) as u32 * 1000)
}

/// Syncs what `events` are about, and tells which of them are there.
fn ready(bound: &Bound, events: i16) -> i16 {
    let (port, mut there, mut good) = (bound.port(), 0, !bound.has_entries());
    if events & OUT != 0 || !bound.no_tx_poll {
        good &= crate::indirect::sync_tx(bound).is_ok();
    }
    if events & IN != 0 || bound.do_rx_poll {
        good &= port.sync_rx().is_ok();
    }
    if events & OUT != 0 && port.can_send() {
        there |= events & OUT;
    }
    if events & IN != 0 && port.can_receive() {
        there |= events & IN;
    }
    if good && bound.check(false).is_ok() { there } else { libc::POLLERR }
}

/// The kernel's own ppoll(2).
pub fn kernel_poll(events: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    call!(libc::SYS_ppoll, events.as_mut_ptr(), events.len(), time, mask, MASK) as c_int
}

/// What a descriptor that is ours waits for.
struct Waiting {
    bound: Arc<Bound>,
    events: i16,
}

/// Waits until one of ours is ready, as `look` finds, or one of the kernel's is; the caller asks for both afterwards.
/// -1 as ppoll(2).
fn sleep(
    ours: &[Waiting],
    others: &[pollfd],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
    look: impl FnOnce() -> bool,
) -> c_int {
    for Waiting { bound, events } in ours {
        bound.port().arm(events & OUT != 0, events & IN != 0);
    }
    // What came before they were armed is found now.
    let mut result = 0;
    if !look() {
        let wait = |fd: c_int| pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut events = others.to_vec();
        for Waiting { bound, .. } in ours {
            events.push(wait(bound.port().event().as_raw_fd()));
            events.push(wait(bound.port().server().as_raw_fd()));
        }
        result = kernel_poll(&mut events, timeout, mask);
    }
    ours.iter().for_each(|Waiting { bound, .. }| bound.port().disarm());
    result
}

pub fn poll(events: *mut pollfd, count: libc::nfds_t, timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let events = match count {
        0 => &mut [],
        // SAFETY: as many as the program says, and its own, as poll(2) wants it.
        _ => unsafe { std::slice::from_raw_parts_mut(events, count as usize) },
    };
    if !descriptor::any() {
        return kernel_poll(events, timeout, mask);
    }
    // By place: the port, or that the descriptor is ours and has none.
    let bounds: Vec<Option<Option<Arc<Bound>>>> =
        events.iter().map(|event| descriptor::get(event.fd).map(|descriptor| descriptor.bound())).collect();
    if bounds.iter().all(Option::is_none) {
        return kernel_poll(events, timeout, mask);
    }
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let ours: Vec<Waiting> = events
        .iter()
        .zip(&bounds)
        .filter_map(|(event, bound)| Some(Waiting { bound: bound.as_ref()?.clone()?, events: event.events }))
        .collect();
    // The kernel looks over a descriptor of -1.
    let others: Vec<pollfd> = events
        .iter()
        .zip(&bounds)
        .map(|(event, bound)| pollfd { fd: if bound.is_some() { -1 } else { event.fd }, revents: 0, ..*event })
        .collect();
    loop {
        for (event, bound) in events.iter_mut().zip(&bounds) {
            event.revents = match bound {
                Some(Some(bound)) => ready(bound, event.events),
                Some(None) => libc::POLLERR,
                None => 0,
            };
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_over = left == Some(Duration::ZERO) || events.iter().any(|event| event.revents != 0);
        let mut now = others.clone();
        if others.iter().any(|other| other.fd >= 0) {
            let result = kernel_poll(&mut now, Some(Duration::ZERO), std::ptr::null());
            if result < 0 {
                return result;
            }
            if result > 0 || is_over {
                for (event, (other, bound)) in events.iter_mut().zip(now.iter().zip(&bounds)) {
                    event.revents = if bound.is_some() { event.revents } else { other.revents };
                }
                return events.iter().filter(|event| event.revents != 0).count() as c_int;
            }
        }
        if is_over {
            return events.iter().filter(|event| event.revents != 0).count() as c_int;
        }
        let look = || ours.iter().any(|one| ready(&one.bound, one.events) != 0);
        if sleep(&ours, &others, left, mask, look) < 0 {
            return -1;
        }
        if ours.iter().any(|one| one.bound.check(true).is_err()) {
            for (event, bound) in events.iter_mut().zip(&bounds) {
                let is_gone = bound.as_ref().and_then(Option::as_ref).is_some_and(|bound| bound.check(true).is_err());
                event.revents = if is_gone { libc::POLLERR } else { 0 };
            }
            return events.iter().filter(|event| event.revents != 0).count() as c_int;
        }
    }
}

pub fn select(
    count: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    const KINDS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    // SAFETY: sets of the program's, or none, as select(2) wants them.
    let has = |kind: usize, fd: c_int| unsafe { !sets[kind].is_null() && libc::FD_ISSET(fd, sets[kind]) };
    let mut events: Vec<pollfd> = (0..count.clamp(0, libc::FD_SETSIZE as c_int))
        .filter_map(|fd| {
            let wanted = (0..3).filter(|kind| has(*kind, fd)).fold(0, |wanted, kind| wanted | KINDS[kind]);
            (wanted != 0).then_some(pollfd { fd, events: wanted, revents: 0 })
        })
        .collect();
    if !events.iter().any(|event| descriptor::get(event.fd).is_some()) {
        let time = timeout.map(timespec);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let masked = (mask, MASK);
        return call!(libc::SYS_pselect6, count, sets[0], sets[1], sets[2], time, &raw const masked) as c_int;
    }
    let result = poll(events.as_mut_ptr(), events.len() as libc::nfds_t, timeout, mask);
    if result < 0 {
        return result;
    }
    if events.iter().any(|event| event.revents & libc::POLLNVAL != 0) {
        return fail(libc::EBADF);
    }
    let ended = libc::POLLERR | libc::POLLHUP;
    let mut there = 0;
    for event in &events {
        for (kind, bits) in KINDS.into_iter().enumerate().filter(|(kind, _)| has(*kind, event.fd)) {
            let is_there = event.revents & (bits | if kind < 2 { ended } else { 0 }) != 0;
            there += c_int::from(is_there);
            if !is_there {
                // SAFETY: a set of the program's, which has the descriptor.
                unsafe { libc::FD_CLR(event.fd, sets[kind]) };
            }
        }
    }
    there
}

/// A descriptor of ours that an epoll(7) of the program's watches.
struct Watched {
    epoll: c_int,
    fd: c_int,
    events: u32,
    data: u64,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// epoll_ctl(2) for a descriptor of ours.
pub fn change(epoll: c_int, change: c_int, fd: c_int, event: Option<&epoll_event>) -> c_int {
    let mut all = watched();
    let place = all.iter().position(|one| (one.epoll, one.fd) == (epoll, fd));
    match (change, place, event) {
        (libc::EPOLL_CTL_ADD, Some(_), _) => return fail(libc::EEXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => return fail(libc::ENOENT),
        (libc::EPOLL_CTL_ADD, None, Some(event)) => {
            all.push(Watched { epoll, fd, events: event.events, data: event.u64 });
        }
        (libc::EPOLL_CTL_MOD, Some(place), Some(event)) => {
            (all[place].events, all[place].data) = (event.events, event.u64);
        }
        (libc::EPOLL_CTL_DEL, Some(place), _) => drop(all.swap_remove(place)),
        _ => return fail(libc::EFAULT),
    }
    0
}

/// A descriptor is closed: nobody watches it, and it watches nothing.
pub fn forget(fd: c_int) {
    watched().retain(|one| one.fd != fd && one.epoll != fd);
}

pub fn epoll(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let kernel = |events: *mut epoll_event, most: c_int, timeout: Option<Duration>, mask: *const libc::sigset_t| {
        let rounded = timeout.map(|time| time.as_nanos().div_ceil(1_000_000).min(c_int::MAX as u128) as c_int);
        call!(libc::SYS_epoll_pwait, epoll, events, most, rounded.unwrap_or(-1), mask, MASK) as c_int
    };
    if !descriptor::any() || !watched().iter().any(|one| one.epoll == epoll) {
        return kernel(events, most, timeout, mask);
    }
    if most <= 0 {
        return fail(libc::EINVAL);
    }
    let end = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let mut found = Vec::new();
        let mut ours = Vec::new();
        for one in watched().iter_mut().filter(|one| one.epoll == epoll) {
            // The events of epoll(7) have the numbers of poll(2)'s.
            let wanted = one.events as i16 & (IN | OUT);
            let bound = descriptor::get(one.fd).and_then(|descriptor| descriptor.bound());
            let there = bound.as_ref().map_or(libc::POLLERR, |bound| ready(bound, wanted));
            if there != 0 && found.len() < most as usize {
                found.push(epoll_event { events: there as u16 as u32, u64: one.data });
                if one.events & libc::EPOLLONESHOT as u32 != 0 {
                    one.events = 0;
                }
            }
            ours.extend(bound.map(|bound| Waiting { bound, events: wanted }));
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let room = most - found.len() as c_int;
        if !found.is_empty() || left == Some(Duration::ZERO) {
            // SAFETY: there is place for `most`, as the program says, and no more are written.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), events, found.len()) };
            // SAFETY: behind those.
            let behind = unsafe { events.add(found.len()) };
            let more = if room > 0 { kernel(behind, room, Some(Duration::ZERO), std::ptr::null()) } else { 0 };
            return found.len() as c_int + more.max(0);
        }
        let others = [pollfd { fd: epoll, events: libc::POLLIN, revents: 0 }];
        let look = || ours.iter().any(|one| ready(&one.bound, one.events) != 0);
        if sleep(&ours, &others, left, mask, look) < 0 {
            return -1;
        }
        let more = kernel(events, most, Some(Duration::ZERO), std::ptr::null());
        if more != 0 {
            return more;
        }
    }
}
