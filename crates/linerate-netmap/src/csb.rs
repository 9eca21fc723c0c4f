//! CSB mode: programs keep head, cur and tail in their own memory, and a loop syncs for them. netmap's loop is a kernel
//! thread; here the loop runs in the thread that starts it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use linerate::Result;
use linerate::share::netmap_object::SharedPort;
use linerate_preload::{call, memory};

use crate::descriptor::Bound;
use crate::entries::{Atok, Entries};
use crate::header::{Header, NmOption, OptCsb, OptMode, SyncKloopStart, option};
use crate::real::{borrow, kernel_poll};
use crate::request::{At, fault, options, refused, set_status};
use crate::table::DescriptorRef;

/// Returns whether `len` bytes at an address can be read and written.
fn is_accessible(address: u64, len: usize) -> bool {
    let bytes = memory::read_all(address as *const u8, len);
    // SAFETY: the program's memory is overwritten with its own contents.
    bytes.is_ok_and(|bytes| unsafe { memory::write_bytes(address as *mut c_void, &bytes) }.is_ok())
}

/// A bound ring.
#[derive(Clone, Copy)]
struct BoundRing {
    receives: bool,
    number: usize,
}

/// Returns the bound rings of a port: transmit rings first.
fn rings(bound: &Bound) -> Vec<BoundRing> {
    let layout = bound.port().layout();
    let there = |rings: &[Option<linerate::share::netmap_object::RingAt>], receives: bool| {
        let there = rings.iter().enumerate().filter(|(_, place)| place.is_some());
        there.map(move |(number, _)| BoundRing { receives, number }).collect::<Vec<_>>()
    };
    [there(&layout.tx, false), there(&layout.rx, true)].concat()
}

/// Enables CSB mode, with head, cur and tail in the program's entries (`NETMAP_REQ_CSB_ENABLE`, `NETMAP_REQ_OPT_CSB`).
pub fn enable(descriptor: &DescriptorRef, first: u64) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is not bound to a port", libc::ENXIO) };
    let found = options(first)?.into_iter().find(|(_, option)| option.reqtype == option::CSB);
    match found {
        Some(option) => enable_by(bound, option),
        None => refused("the option NETMAP_REQ_OPT_CSB is missing", libc::EINVAL),
    }
}

/// As [`enable`], during a registration.
pub fn enable_by(bound: &Bound, (at, _): At) -> Result<()> {
    let result = match memory::read(at as *const OptCsb) {
        Ok(entries) => enable_at(bound, entries.atok, entries.ktoa),
        Err(_) => fault(),
    };
    set_status(at, result)
}

fn enable_at(bound: &Bound, atok: u64, ktoa: u64) -> Result<()> {
    if !bound.exclusive {
        return refused("CSB entries need a port that is not shared (NR_EXCLUSIVE)", libc::EINVAL);
    }
    let rings = rings(bound);
    let len = rings.len() * size_of::<Atok>();
    if !(atok | ktoa).is_multiple_of(size_of::<Atok>() as u64) {
        return refused("the entries must begin at a cache line", libc::EINVAL);
    }
    let is_good = |address: u64| address != 0 && is_accessible(address, len);
    if !is_good(atok) || !is_good(ktoa) {
        return refused("the entries are not in the program's memory", libc::EFAULT);
    }
    let has_entries = || refused("the port has CSB entries already", libc::EBUSY);
    if bound.has_entries() {
        return has_entries();
    }
    let entries = Entries { atok, ktoa, count: rings.len() };
    for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
        let (head, tail) = bound.port().indices(receives, number);
        entries.atok(n).head.store(head, Ordering::Relaxed);
        entries.atok(n).cur.store(head, Ordering::Relaxed);
        entries.atok(n).need_kick.store(1, Ordering::Relaxed);
        entries.ktoa(n).hwcur.store(head, Ordering::Relaxed);
        entries.ktoa(n).hwtail.store(tail, Ordering::Relaxed);
        entries.ktoa(n).need_kick.store(1, Ordering::Relaxed);
    }
    bound.entries.set(entries).or_else(|_| has_entries())
}

const RUNNING: u32 = 1;
const STOPPING: u32 = 2;

/// Stops the loop and waits until it has ended. A loop that has not started yet ends right after its start.
pub fn stop(descriptor: &DescriptorRef) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is not bound to a port", libc::ENXIO) };
    if !bound.has_entries() {
        return refused("the port has no CSB entries", libc::EINVAL);
    }
    bound.kloop.fetch_or(STOPPING, Ordering::SeqCst);
    while bound.kloop.load(Ordering::SeqCst) & RUNNING != 0 {
        std::thread::yield_now();
    }
    Ok(())
}

/// The state of a running loop.
struct Loop<'a> {
    fd: i32,
    bound: &'a Bound,
    port: &'a SharedPort,
    rings: Vec<BoundRing>,
    entries: Entries,
    /// For each ring: the eventfd with which the program wakes the loop, and the eventfd with which the loop wakes the
    /// program. Empty if the program has passed no eventfds.
    events: Vec<[i32; 2]>,
}

/// Runs the sync loop until it is stopped.
pub fn run(descriptor: &DescriptorRef, header: &Header) -> Result<()> {
    let Some(bound) = descriptor.bound() else { return refused("the descriptor is not bound to a port", libc::ENXIO) };
    let Some(entries) = bound.entries.get().copied() else {
        return refused("the port has no CSB entries", libc::EINVAL);
    };
    if header.body == 0 {
        return refused("the request has no body", libc::EINVAL);
    }
    let Ok(start) = memory::read(header.body as *const SyncKloopStart) else { return fault() };
    let mut events = Vec::new();
    for (at, option) in options(header.options)? {
        let result = loop_option(at, &option, entries.count);
        events = set_status(at, result)?.unwrap_or(events);
    }
    if bound.kloop.fetch_or(RUNNING, Ordering::SeqCst) & RUNNING != 0 {
        return refused("the loop is already running", libc::EBUSY);
    }
    let (fd, port) = (descriptor.fd, bound.port());
    let syncs = Loop { fd, bound, port, rings: rings(bound), entries, events };
    let sleep = Duration::from_micros(start.sleep_us.into());
    while bound.kloop.load(Ordering::SeqCst) & STOPPING == 0 {
        if !syncs.sync_all() {
            syncs.sleep(sleep);
        }
    }
    bound.kloop.store(0, Ordering::SeqCst);
    Ok(())
}

/// Validates an option of the loop; returns the eventfds of each ring if the option contains them.
fn loop_option(at: u64, option: &NmOption, count: usize) -> Result<Option<Vec<[i32; 2]>>> {
    match option.reqtype {
        option::SYNC_KLOOP_EVENTFDS => {
            let expected = size_of::<NmOption>() + count * size_of::<[i32; 2]>();
            if option.size != expected as u64 {
                return refused("each bound ring needs an entry", libc::EINVAL);
            }
            // The eventfds follow the option (struct nmreq_opt_sync_kloop_eventfds).
            match memory::read_all(at.wrapping_add(size_of::<NmOption>() as u64) as *const [i32; 2], count) {
                Ok(events) => Ok(Some(events)),
                Err(_) => fault(),
            }
        }
        option::SYNC_KLOOP_MODE => match memory::read(at as *const OptMode).map(|option| option.mode) {
            Ok(0..=3) => Ok(None),
            Ok(_) => refused("there is no such mode of the loop", libc::EINVAL),
            Err(_) => fault(),
        },
        _ => refused("the loop does not have this option", libc::EOPNOTSUPP),
    }
}

impl Loop<'_> {
    /// Syncs with the program's head and cur, and writes the new values to its entries. Returns whether any has
    /// changed.
    fn sync_all(&self) -> bool {
        let Loop { fd, bound, port, rings, entries, events } = self;
        let mut before = Vec::with_capacity(rings.len());
        for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
            let atok = entries.atok(n);
            // The program writes cur before head, so head is read first.
            let head = atok.head.load(Ordering::Acquire);
            let cur = atok.cur.load(Ordering::Acquire);
            before.push(port.indices(receives, number));
            port.set_head(receives, number, head, cur);
        }
        let _ = bound.sync_tx(*fd);
        let _ = bound.sync_rx(*fd);
        let mut changed = false;
        for (n, &BoundRing { receives, number }) in rings.iter().enumerate() {
            let (atok, ktoa) = (entries.atok(n), entries.ktoa(n));
            let (head, tail) = port.indices(receives, number);
            ktoa.hwcur.store(head, Ordering::Release);
            ktoa.hwtail.store(tail, Ordering::Release);
            changed |= before[n] != (head, tail);
            fence(Ordering::SeqCst);
            if before[n].1 != tail
                && atok.need_kick.load(Ordering::Relaxed) != 0
                && let Some([_, irqfd]) = events.get(n)
                && *irqfd >= 0
            {
                let one = 1u64;
                // SAFETY: `one` has 8 bytes.
                unsafe { call!(libc::SYS_write, *irqfd, &raw const one, 8) };
            }
        }
        changed
    }

    /// Waits for the program or the port if all rings have an eventfd; otherwise sleeps for the time that the program
    /// has requested.
    fn sleep(&self, sleep: Duration) {
        let Loop { fd, port, entries, events, .. } = self;
        // Bounded, so that the loop notices a request to stop.
        const LONGEST: Duration = Duration::from_millis(10);
        let wakes = !events.is_empty() && events.iter().all(|[ioeventfd, _]| *ioeventfd >= 0);
        if !wakes {
            let _ = kernel_poll(&mut [], Some(sleep.min(LONGEST)));
            return;
        }
        port.arm(borrow(*fd), true, true, true);
        (0..entries.count).for_each(|n| entries.ktoa(n).need_kick.store(1, Ordering::SeqCst));
        fence(Ordering::SeqCst);
        if !self.sync_all() {
            let wait = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut all: Vec<_> = events.iter().map(|[ioeventfd, _]| wait(*ioeventfd)).collect();
            all.push(wait(*fd));
            let _ = kernel_poll(&mut all, Some(LONGEST));
            for event in all[..entries.count].iter().filter(|event| event.revents & libc::POLLIN != 0) {
                let mut count = 0u64;
                // SAFETY: `count` has 8 bytes.
                unsafe { call!(libc::SYS_read, event.fd, &raw mut count, 8) };
            }
        }
    }
}
