//! The links of packet sockets: an open port, its members, and the thread that moves frames between them.
//!
//! All packet sockets of a process on one port share a link. A member ends when the last descriptor of its socket, in
//! any process, is closed: the link's end of the pair then reads as closed. When the last member ends, the port is
//! closed.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate::memory::{Pool, Region, RegionOptions};
use linerate::port::{Port, RxQueue, TxQueue};
use linerate::{Error, Options};
use linerate_preload::{call, guarded, option, set_option};
use rustix::event::{EventfdFlags, eventfd};

use super::member::{Member, Settings};
use super::names::{self, Name, PortProperties};
use super::system::opening;
use crate::longest::LongestOfInterface;

/// How long to wait for sent frames to reach the wire.
pub const ROOM: Duration = Duration::from_secs(1);
/// Slots of the receive ring of a port in this process.
const RING: usize = 4096;
/// Send buffer of both ends of a pair in bytes, as far as the kernel allows it.
const BUFFER: c_int = 4 << 20;

/// An open port with its members.
pub struct Link {
    pub name: Arc<Name>,
    pub properties: PortProperties,
    /// Another owner has the port's receiving side, so the members can only send.
    is_only_sending: bool,
    /// The process that opened the link. Its children do not have the thread.
    process: u32,
    /// Wakes the thread (eventfd(2)).
    pub wake: OwnedFd,
    state: Mutex<State>,
    /// Signals a change of `State::flushes_done` or `State::is_closed`.
    changed: Condvar,
}

#[derive(Default)]
pub struct State {
    pub members: Vec<Arc<Member>>,
    /// Number of flush requests, and how many of them are done.
    pub flushes_requested: u64,
    pub flushes_done: u64,
    /// The process is exiting.
    pub is_ending: bool,
    /// The last member has ended; no member can be added any more.
    pub is_closed: bool,
    /// The port's drop counter when the last flush was done.
    pub dropped: u64,
}

/// The port and its queues, owned by the thread. Dropped in this order: queues before their port.
pub struct Queues {
    pub rx: Option<RxQueue>,
    pub tx: Option<TxQueue>,
    pub port: Port,
    /// Frames that an earlier owner of the port has sent.
    pub sent: u64,
}

/// A port that was opened for a link.
pub struct Opened {
    pub queues: Queues,
    pub properties: PortProperties,
    /// Another owner has the port's receiving side.
    pub is_only_sending: bool,
}

/// Starts the link of an open port, with a handle that has these settings as the first member.
pub type Begin<'a> = dyn FnMut(Opened, &Arc<Settings>) -> Result<(Arc<Link>, OwnedFd), Error> + 'a;

/// Lets links find the ports that libpcap handles have exclusively. Handles use links, so they register these functions
/// here.
pub struct Handles {
    /// Returns whether a handle of this process has the port of this name exclusively.
    pub is_exclusive: fn(&str) -> bool,
    /// Makes that handle a member of a link of its port; `None` if there is no such handle.
    pub share: fn(&str, &mut Begin<'_>) -> Shared,
}

/// The link of a port that a handle had exclusively.
pub type Shared = Result<Option<Arc<Link>>, Error>;

static HANDLES: OnceLock<Handles> = OnceLock::new();

/// Registers the functions of libpcap handles, before the first handle is listed as exclusive owner.
pub fn register(handles: Handles) {
    let _ = HANDLES.set(handles);
}

/// Returns whether a handle of this process has the port of this name exclusively.
pub fn is_exclusive(name: &str) -> bool {
    HANDLES.get().is_some_and(|handles| (handles.is_exclusive)(name))
}

struct Running {
    link: Arc<Link>,
    thread: JoinHandle<()>,
}

/// The link of a port, if there is one. Locked while the port is opened and closed.
type LinkSlot = Arc<Mutex<Option<Running>>>;

pub struct Links {
    slots: BTreeMap<u32, LinkSlot>,
    /// The links' ends of all socket pairs. A child closes its copies; otherwise the program's ends would never read as
    /// closed.
    ends: Vec<RawFd>,
}

static LINKS: Mutex<Links> = Mutex::new(Links { slots: BTreeMap::new(), ends: Vec::new() });

/// Locks, ignoring poison: no critical section leaves inconsistent data.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the map of links.
pub fn lock() -> MutexGuard<'static, Links> {
    locked(&LINKS)
}

impl Links {
    /// Forgets all links in a child process; their threads are in the parent.
    pub fn begin_child(&mut self) {
        // Do not drop the handles of threads that do not exist in this process.
        std::mem::forget(std::mem::take(&mut self.slots));
        for end in self.ends.drain(..) {
            // SAFETY: the child's copy of the descriptor, whose owner was forgotten above.
            unsafe { call!(libc::SYS_close, end) };
        }
    }
}

impl Link {
    pub fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Returns whether the link's thread is in this process.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Wakes the thread to check members and requests.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits until all frames sent so far are on the wire and closed members have ended, for at most twice [`ROOM`].
    pub fn settle(&self) {
        if !self.is_here() {
            return;
        }
        let mut state = self.state();
        state.flushes_requested += 1;
        let requested = state.flushes_requested;
        self.wake();
        let is_open = |state: &mut State| state.flushes_done < requested && !state.is_closed;
        let waited = self.changed.wait_timeout_while(state, 2 * ROOM, is_open);
        let is_closed = waited.unwrap_or_else(PoisonError::into_inner).0.is_closed;
        if is_closed {
            join_closed(&mut locked(&slot(self.name.index)));
        }
    }

    /// Marks flush requests up to number `requested` as done.
    pub fn finish(&self, requested: u64, dropped: u64) {
        let mut state = self.state();
        state.flushes_done = requested;
        state.dropped = dropped;
        self.changed.notify_all();
    }

    /// Removes members that have ended, and closes the link if there are no others. Returns whether it is closed.
    pub fn remove(&self, ended: &[Arc<Member>]) -> bool {
        let mut links = lock();
        let mut state = self.state();
        state.members.retain(|member| !ended.iter().any(|ended| Arc::ptr_eq(member, ended)));
        links.ends.retain(|end| !ended.iter().any(|ended| ended.end().as_raw_fd() == *end));
        state.is_closed = state.members.is_empty();
        if state.is_closed {
            self.changed.notify_all();
        }
        state.is_closed
    }

    /// Removes all members: the port is gone.
    pub fn fail(&self) {
        let members = self.state().members.clone();
        self.remove(&members);
    }

    /// Adds a member; returns false if the link is closed.
    fn add(&self, member: &Arc<Member>) -> bool {
        let mut links = lock();
        let mut state = self.state();
        if state.is_closed {
            return false;
        }
        member.settings.dropped_before.store(state.dropped, Relaxed);
        links.ends.push(member.end().as_raw_fd());
        state.members.push(member.clone());
        drop((state, links));
        self.wake();
        true
    }

    /// Returns the member with these settings.
    fn member(&self, settings: &Arc<Settings>) -> Option<Arc<Member>> {
        self.state().members.iter().find(|member| Arc::ptr_eq(&member.settings, settings)).cloned()
    }

    /// Sets how many bytes of received frames a socket can hold.
    pub fn resize(&self, settings: &Arc<Settings>, is_forced: bool, bytes: c_int) {
        if let Some(member) = self.member(settings).filter(|_| self.is_here()) {
            let option = if is_forced { libc::SO_SNDBUFFORCE } else { libc::SO_SNDBUF };
            set_option(member.end().as_raw_fd(), libc::SOL_SOCKET, option, bytes);
        }
    }

    /// Returns how many bytes of received frames a socket can hold.
    pub fn size(&self, settings: &Arc<Settings>) -> Option<c_int> {
        let member = self.member(settings).filter(|_| self.is_here())?;
        option(member.end().as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF)
    }

    /// Returns the socket's frames since the last call, and how many of them were dropped (`PACKET_STATISTICS`).
    pub fn statistics(&self, settings: &Settings) -> (u64, u64) {
        self.settle();
        let dropped = self.state().dropped;
        let by_port = dropped.saturating_sub(settings.dropped_before.swap(dropped, Relaxed));
        let dropped = settings.dropped.swap(0, Relaxed) + by_port;
        (settings.received.swap(0, Relaxed) + dropped, dropped)
    }
}

/// Returns the slot of the link of the port with this index.
fn slot(index: u32) -> LinkSlot {
    lock().slots.entry(index).or_default().clone()
}

/// Joins the thread of a closed link.
fn join_closed(slot: &mut Option<Running>) {
    if let Some(running) = slot.take_if(|running| running.link.state().is_closed) {
        let _ = running.thread.join();
    }
}

/// Makes a packet socket with these settings on a port; opens the port if this process has no link on it. Returns the
/// link and the program's end of the pair. With `receives`, the link must have the port's receiving side.
///
/// # Errors
/// Errors of the port and of system calls.
pub fn join(
    name: &Arc<Name>,
    settings: &Arc<Settings>,
    receives: bool,
    run: Run,
) -> Result<(Arc<Link>, OwnedFd), Error> {
    let slot = slot(name.index);
    let mut slot = locked(&slot);
    if let Some(running) = &*slot {
        let link = running.link.clone();
        if receives && link.is_only_sending && !link.state().is_closed {
            return Err(Error::queue_taken(&name.text, "receive", 0));
        }
        let (end, member) = pair(settings)?;
        if link.add(&member) {
            return Ok((link, end));
        }
    }
    join_closed(&mut slot);
    // If a libpcap handle of this process has the port, make it a member.
    let mut begin_with = |opened, of_handle: &_| begin(&mut slot, name, opened, of_handle, run);
    let shared = HANDLES.get().map(|handles| (handles.share)(&name.text, &mut begin_with)).transpose()?.flatten();
    if let Some(link) = shared {
        let (end, member) = pair(settings)?;
        if link.add(&member) {
            return Ok((link, end));
        }
        join_closed(&mut slot);
    }
    begin(&mut slot, name, open(name, receives)?, settings, run)
}

/// Starts the link of an open port with its first member; returns the link and the member's other end.
fn begin(
    slot: &mut Option<Running>,
    name: &Arc<Name>,
    opened: Opened,
    settings: &Arc<Settings>,
    run: Run,
) -> Result<(Arc<Link>, OwnedFd), Error> {
    let Opened { queues, properties, is_only_sending } = opened;
    let (end, member) = pair(settings)?;
    // Do not charge the port's earlier drops to a member.
    let dropped = queues.port.statistics().map_or(0, |statistics| statistics.drops.no_descriptor);
    let wake =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| Error::system("eventfd", error))?;
    let process = std::process::id();
    let link = Arc::new(Link {
        name: name.clone(),
        properties,
        is_only_sending,
        process,
        wake,
        state: Mutex::new(State { dropped, ..State::default() }),
        changed: Condvar::new(),
    });
    link.add(&member);
    match start(&link, queues, run) {
        Ok(thread) => *slot = Some(Running { link: link.clone(), thread }),
        Err(error) => {
            link.fail();
            return Err(error);
        }
    }
    Ok((link, end))
}

/// Returns the open link of a port, if this process has one.
pub fn open_link(name: &Name) -> Option<Arc<Link>> {
    let slot = slot(name.index);
    let slot = locked(&slot);
    slot.as_ref().filter(|running| !running.link.state().is_closed).map(|running| running.link.clone())
}

/// Returns the properties of a port. Opens and closes the port if it was never opened.
///
/// # Errors
/// As [`join`].
pub fn properties(name: &Arc<Name>) -> Result<PortProperties, Error> {
    match name.properties() {
        Some(properties) => Ok(properties),
        None => {
            let slot = slot(name.index);
            let _guard = locked(&slot);
            name.properties().map_or_else(|| open(name, false).map(|opened| opened.properties), Ok)
        }
    }
}

/// Flushes all sent frames and closes the ports, when the program exits. This completes capture files.
pub fn end_all() {
    let slots: Vec<LinkSlot> = lock().slots.values().cloned().collect();
    for slot in slots {
        let Some(running) = locked(&slot).take().filter(|running| running.link.is_here()) else { continue };
        running.link.settle();
        running.link.state().is_ending = true;
        running.link.wake();
        let _ = running.thread.join();
    }
}

/// Opens a port. With `receives`, it is an error if another owner has the receiving side.
fn open(name: &Arc<Name>, receives: bool) -> Result<Opened, Error> {
    let parsed = linerate::parse(&name.text)?;
    let is_served = parsed.may_be_served();
    let memory = RegionOptions::default();
    let region = if is_served { Region::lazy(&memory) } else { Region::new(&memory) }?;
    let ring = (!is_served).then_some(RING);
    let longest = LongestOfInterface::of(&parsed);
    let max_frame = longest.to_receive();
    let (pool, interrupts) = (Some(Pool::new(region)), Some(Duration::ZERO));
    let options = Options { ring, pool, interrupts, max_frame, ..Options::default() };
    let [mut port] = opening(|| options.open([&name.text]))?;
    // A port may have only one direction, and another program may have taken one: the error names it.
    let is_taken = |error: &Error| error.errno() == libc::EBUSY;
    let is_only_sending;
    let (rx, tx) = match (port.rx(0), port.tx(0)) {
        (Err(error), Err(_)) => return Err(error),
        (Err(error), _) if receives && is_taken(&error) => return Err(error),
        (_, Err(error)) if is_taken(&error) => return Err(error),
        (rx, tx) => {
            is_only_sending = rx.as_ref().is_err_and(is_taken);
            (rx.ok(), tx.ok())
        }
    };
    let max_frame = longest.to_send(&port);
    let properties = PortProperties::of(&port, max_frame, tx.is_some());
    name.set_properties(properties);
    names::report_private_port(&port);
    Ok(Opened { queues: Queues { rx, tx, port, sent: 0 }, properties, is_only_sending })
}

/// Makes a socket pair that preserves frame boundaries. Each end reads as closed when the other is closed.
fn pair(settings: &Arc<Settings>) -> Result<(OwnedFd, Arc<Member>), Error> {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) } < 0 {
        return Err(Error::system("socketpair", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptors are new and have no other owner.
    let [theirs, ours] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    for end in [&theirs, &ours] {
        if !set_option(end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER) {
            set_option(end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER);
        }
    }
    Ok((theirs, Arc::new(Member::new(ours, settings.clone()))))
}

/// The main function of a link's thread.
pub type Run = fn(&Link, Queues);

/// Starts the link's thread.
fn start(link: &Arc<Link>, queues: Queues, run: Run) -> Result<JoinHandle<()>, Error> {
    let of_thread = link.clone();
    let work = move || {
        guarded((), || run(&of_thread, queues));
        // Close the link even after a panic, so that no caller waits for this thread.
        of_thread.fail();
    };
    let started = opening(|| std::thread::Builder::new().name("linerate link".to_string()).spawn(work));
    started.map_err(|source| Error::system("pthread_create", source))
}
