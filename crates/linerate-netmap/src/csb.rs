//! Programs that keep head, cur and tail in memory of their own (CSB mode), and the loop that syncs for them: in netmap a
//! thread of the kernel's, here the thread that asks for it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use linerate::Result;
use linerate::share::netmap_object::SharedPort;

use crate::control::{At, fault, options, refused, set_status};
use crate::descriptor::Bound;
use crate::header::{Header, NmOption, OptCsb, OptMode, SyncKloopStart, option};
use crate::real::{bell, call, fetch, fetch_all, kernel_poll, read, write};
use crate::table::Held;

/// An entry for what the program tells: `struct nm_csb_atok`.
#[repr(C)]
struct Told {
    head: AtomicU32,
    cur: AtomicU32,
    need_kick: AtomicU32,
    _sync_flags: AtomicU32,
    _pad: [AtomicU32; 12],
}

/// An entry for what it is told: `struct nm_csb_ktoa`.
#[repr(C)]
struct Tell {
    hwcur: AtomicU32,
    hwtail: AtomicU32,
    need_kick: AtomicU32,
    _pad: [AtomicU32; 13],
}

/// The program's entries, one for each ring that it has: those that send first.
#[derive(Clone, Copy)]
pub struct Entries {
    told: u64,
    tell: u64,
    count: usize,
}

impl Entries {
    fn told(&self, n: usize) -> &Told {
        assert!(n < self.count);
        // SAFETY: the program's memory, which is there as long as the port is bound (`enable` has looked), and atomic.
        unsafe { &*(self.told as *const Told).add(n) }
    }

    fn tell(&self, n: usize) -> &Tell {
        assert!(n < self.count);
        // SAFETY: as above.
        unsafe { &*(self.tell as *const Tell).add(n) }
    }
}

/// True if so many bytes can be read there, and written.
fn is_there(address: u64, len: usize) -> bool {
    read(address, len).is_some_and(|bytes| write(address, &bytes))
}

/// A ring that is bound.
#[derive(Clone, Copy)]
struct BoundRing {
    receives: bool,
    number: usize,
}

/// The rings of a port that are bound: those that send first.
fn rings(bound: &Bound) -> Vec<BoundRing> {
    let placed = bound.port().placed();
    let there = |rings: &[Option<linerate::share::netmap_object::RingAt>], receives: bool| {
        let there = rings.iter().enumerate().filter(|(_, place)| place.is_some());
        there.map(move |(number, _)| BoundRing { receives, number }).collect::<Vec<_>>()
    };
    [there(&placed.tx, false), there(&placed.rx, true)].concat()
}

/// From now on head, cur and tail are where the program says (`NETMAP_REQ_CSB_ENABLE`, `NETMAP_REQ_OPT_CSB`).
pub fn enable(descriptor: &Held, first: u64) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is bound to no port", libc::ENXIO) };
    let found = options(first)?.into_iter().find(|(_, option)| option.reqtype == option::CSB);
    match found {
        Some(option) => enable_by(bound, option),
        None => refused("the option NETMAP_REQ_OPT_CSB is missing", libc::EINVAL),
    }
}

/// The same for a port that is being bound.
pub fn enable_by(bound: &Bound, (at, _): At) -> Result<()> {
    let result = match fetch::<OptCsb>(at) {
        Some(entries) => enable_at(bound, entries.atok, entries.ktoa),
        None => fault(),
    };
    set_status(at, result)
}

fn enable_at(bound: &Bound, told: u64, tell: u64) -> Result<()> {
    if !bound.exclusive {
        return refused("entries of its own are for a port that nobody shares (NR_EXCLUSIVE)", libc::EINVAL);
    }
    let rings = rings(bound);
    let len = rings.len() * size_of::<Told>();
    if !(told | tell).is_multiple_of(size_of::<Told>() as u64) {
        return refused("the entries do not begin with a cache line", libc::EINVAL);
    }
    let is_good = |address: u64| address != 0 && is_there(address, len);
    if !is_good(told) || !is_good(tell) {
        return refused("the entries are not in the program's memory", libc::EFAULT);
    }
    let has_entries = || refused("the port has entries already", libc::EBUSY);
    if bound.has_entries() {
        return has_entries();
    }
    let entries = Entries { told, tell, count: rings.len() };
    for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
        let (head, tail) = bound.port().indices(receives, number);
        entries.told(n).head.store(head, Ordering::Relaxed);
        entries.told(n).cur.store(head, Ordering::Relaxed);
        entries.told(n).need_kick.store(1, Ordering::Relaxed);
        entries.tell(n).hwcur.store(head, Ordering::Relaxed);
        entries.tell(n).hwtail.store(tail, Ordering::Relaxed);
        entries.tell(n).need_kick.store(1, Ordering::Relaxed);
    }
    bound.entries.set(entries).or_else(|_| has_entries())
}

const RUNNING: u32 = 1;
const STOPPING: u32 = 2;

/// Asks the loop to end, and waits for that; one that has not begun ends when it begins.
pub fn stop(descriptor: &Held) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is bound to no port", libc::ENXIO) };
    if !bound.has_entries() {
        return refused("the port has no entries", libc::EINVAL);
    }
    bound.kloop.fetch_or(STOPPING, Ordering::SeqCst);
    while bound.kloop.load(Ordering::SeqCst) & RUNNING != 0 {
        std::thread::yield_now();
    }
    Ok(())
}

/// What a loop syncs.
struct Loop<'a> {
    fd: i32,
    bound: &'a Bound,
    port: &'a SharedPort,
    rings: Vec<BoundRing>,
    entries: Entries,
    /// How the program and the loop wake each other, for each ring; none if they do not.
    events: Vec<[i32; 2]>,
}

/// Syncs until it is stopped.
pub fn run(descriptor: &Held, header: &Header) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is bound to no port", libc::ENXIO) };
    let Some(entries) = bound.entries.get().copied() else { return refused("the port has no entries", libc::EINVAL) };
    if header.body == 0 {
        return refused("the request has no body", libc::EINVAL);
    }
    let Some(start) = fetch::<SyncKloopStart>(header.body) else { return fault() };
    let mut events = Vec::new();
    for (at, option) in options(header.options)? {
        let result = loop_option(at, &option, entries.count);
        events = set_status(at, result)?.unwrap_or(events);
    }
    if bound.kloop.fetch_or(RUNNING, Ordering::SeqCst) & RUNNING != 0 {
        return refused("the loop runs already", libc::EBUSY);
    }
    let (fd, port) = (descriptor.fd, bound.port());
    let syncs = Loop { fd, bound, port, rings: rings(bound), entries, events };
    let sleep = Duration::from_micros(start.sleep_us.into());
    while bound.kloop.load(Ordering::SeqCst) & STOPPING == 0 {
        if !syncs.turn() {
            syncs.rest(sleep);
        }
    }
    bound.kloop.store(0, Ordering::SeqCst);
    Ok(())
}

/// Takes an option of the loop; one of them brings descriptors for each ring.
fn loop_option(at: u64, option: &NmOption, count: usize) -> Result<Option<Vec<[i32; 2]>>> {
    match option.reqtype {
        option::SYNC_KLOOP_EVENTFDS => {
            let expected = size_of::<NmOption>() + count * size_of::<[i32; 2]>();
            if option.size != expected as u64 {
                return refused("an entry for each ring that is bound is needed", libc::EINVAL);
            }
            // They stand behind the option (struct nmreq_opt_sync_kloop_eventfds).
            match fetch_all(at.wrapping_add(size_of::<NmOption>() as u64), count) {
                Some(events) => Ok(Some(events)),
                None => fault(),
            }
        }
        option::SYNC_KLOOP_MODE => match fetch::<OptMode>(at).map(|option| option.mode) {
            Some(0..=3) => Ok(None),
            Some(_) => refused("there is no such mode of the loop", libc::EINVAL),
            None => fault(),
        },
        _ => refused("this option is not there", libc::EOPNOTSUPP),
    }
}

impl Loop<'_> {
    /// Hands on what the program has told, and tells it what has come; true if anything has changed.
    fn turn(&self) -> bool {
        let Loop { fd, bound, port, rings, entries, events } = self;
        let mut before = Vec::with_capacity(rings.len());
        for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
            let told = entries.told(n);
            // cur is written before head: so it is read after it.
            let head = told.head.load(Ordering::Acquire);
            let cur = told.cur.load(Ordering::Acquire);
            before.push(port.indices(receives, number));
            port.set_head(receives, number, head, cur);
        }
        let _ = bound.sync_tx(*fd);
        let _ = bound.sync_rx(*fd);
        let mut changed = false;
        for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
            let (told, tell) = (entries.told(n), entries.tell(n));
            let (head, tail) = port.indices(receives, number);
            tell.hwcur.store(head, Ordering::Release);
            tell.hwtail.store(tail, Ordering::Release);
            changed |= before[n] != (head, tail);
            fence(Ordering::SeqCst);
            if before[n].1 != tail
                && told.need_kick.load(Ordering::Relaxed) != 0
                && let Some([_, irqfd]) = events.get(n)
                && *irqfd >= 0
            {
                let one = 1u64;
                let _ = call!(libc::SYS_write, *irqfd, &raw const one, 8);
            }
        }
        changed
    }

    /// Waits for the program or the port, not longer than it asks for.
    fn rest(&self, sleep: Duration) {
        let Loop { fd, port, entries, events, .. } = self;
        // So that it notices when it shall end.
        const LONGEST: Duration = Duration::from_millis(10);
        let wakes = !events.is_empty() && events.iter().all(|[ioeventfd, _]| *ioeventfd >= 0);
        if !wakes {
            let _ = kernel_poll(&mut [], Some(sleep.min(LONGEST)));
            return;
        }
        port.arm(bell(*fd), true, true, true);
        (0..entries.count).for_each(|n| entries.tell(n).need_kick.store(1, Ordering::SeqCst));
        fence(Ordering::SeqCst);
        if !self.turn() {
            let wait = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut all: Vec<_> = events.iter().map(|[ioeventfd, _]| wait(*ioeventfd)).collect();
            all.push(wait(*fd));
            let _ = kernel_poll(&mut all, Some(LONGEST));
            for event in all[..entries.count].iter().filter(|event| event.revents & libc::POLLIN != 0) {
                let mut count = 0u64;
                let _ = call!(libc::SYS_read, event.fd, &raw mut count, 8);
            }
        }
    }
}
