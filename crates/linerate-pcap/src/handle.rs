//! A handle: what the program's `pcap_t` points at.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linerate::{Error, ErrorKind, Remedy};
use linerate_preload::owner;

use crate::abi::*;
use crate::active::{Active, Frame, Ready, Settings, Waiting, event};
use crate::detector::{DETECTOR, WORDS};
use crate::latch::Latch;
use crate::real::real;
use crate::side::{InChild, Side};
use crate::socket::frame::ALL;
use crate::socket::link::{self, Begin, Handles, Opened};
use crate::socket::member;
use crate::socket::names::{About, is_interface};
use crate::socket::shared;
use crate::socket::table;

/// A handle of this object.
///
/// The program's threads receive, choose directions and close one at a time, as with libpcap. All else may be called while
/// another thread receives, and by signal handlers: it needs only atomics, `side` and `filter`.
///
/// Nothing is locked or borrowed while the program's function is called, and while a thread sleeps: the function may call anything with
/// the handle, leave by longjmp(3), and end the thread; a thread that sleeps may be cancelled.
#[repr(C)]
pub struct Handle {
    /// A handle of the system's libpcap begins with another function.
    detector: [unsafe extern "C" fn() -> !; WORDS],
    /// The port's name.
    pub name: String,
    pub settings: Settings,
    /// The text of the last error. Several threads may write it.
    error: [AtomicU8; PCAP_ERRBUF_SIZE],
    // Dropped in this order: the receiving side before its port.
    /// The receiving side of the port, once the handle is activated. The thread that receives has it, but for its sleep and while the
    /// program's function runs.
    pub active: Latch<Option<Active>>,
    /// Received frames. Their bytes are the receiving side's.
    pub waiting: Waiting,
    pub side: Latch<Option<Side>>,
    pub is_activated: AtomicBool,
    is_nonblocking: AtomicBool,
    /// The descriptor has been asked for: it is kept up to date from then on.
    is_selected: AtomicBool,
    /// The descriptor is up to date because nothing was read since the activation.
    is_unread: AtomicBool,
    /// The descriptor that programs wait for; -1 before activation.
    descriptor: AtomicI32,
    pub ready: Ready,
    pub link_type: AtomicI32,
    pub last: LastFrame,
    /// `BREAK` and `FILTER`.
    requests: AtomicU8,
    /// The filter that was set last, until the receiving thread takes it.
    filter: Latch<Option<Box<[Instruction]>>>,
    /// Frames that the filter let pass.
    pub passed: AtomicU64,
    /// The port's drops when they were asked for last.
    drops: [AtomicU32; 2],
    /// The event (eventfd(2)) that wakes the thread that waits for frames.
    waker: OwnedFd,
    /// A handle of the system's for compiling filters and writing files.
    dead: AtomicPtr<c_void>,
    /// The process that has opened it.
    process: u32,
}

/// The loop that runs, or the next one, is to end.
const BREAK: u8 = 1;
/// There is another filter.
const FILTER: u8 = 2;

impl Handle {
    /// Returns the handle behind a program's pointer; `None` if it is null, or the system's.
    pub fn of<'a>(pointer: *mut c_void) -> Option<&'a Handle> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the program's handle: this object's, or the system's, whose first word is the address of a function.
        let function = unsafe { pointer.cast::<*const c_void>().read() };
        // SAFETY: only handles of this object begin with this address, and the program has not closed it.
        (function == DETECTOR as *const c_void).then(|| unsafe { &*pointer.cast::<Handle>() })
    }

    /// Creates a handle, if the name is a port's and no interface of the kernel has it.
    pub fn for_port(name: &str) -> Option<Result<Handle, Error>> {
        Handle::is_port(name).then(|| Handle::new(name))
    }

    /// Returns whether a name is a port's, and no interface of the kernel has it.
    pub fn is_port(name: &str) -> bool {
        let is_port = || linerate::parse(name).map_or_else(|error| error.kind() == ErrorKind::BadOption, |_| true);
        CString::new(name).is_ok_and(|text| !is_interface(&text)) && is_port()
    }

    fn new(name: &str) -> Result<Handle, Error> {
        Ok(Handle {
            detector: [DETECTOR; WORDS],
            name: name.to_string(),
            settings: Settings {
                snaplen: Cell::new(MAXIMUM_SNAPLEN),
                promiscuous: Cell::new(false),
                monitor_mode: Cell::new(false),
                timeout: Cell::new(0),
                immediate: Cell::new(false),
                buffer_size: Cell::new(0),
                precision: Cell::new(PCAP_TSTAMP_PRECISION_MICRO),
            },
            error: [const { AtomicU8::new(0) }; PCAP_ERRBUF_SIZE],
            active: Latch::new(None),
            waiting: Waiting::new(),
            side: Latch::new(None),
            is_activated: AtomicBool::new(false),
            is_nonblocking: AtomicBool::new(false),
            is_selected: AtomicBool::new(false),
            is_unread: AtomicBool::new(true),
            descriptor: AtomicI32::new(-1),
            ready: Ready::new()?,
            link_type: AtomicI32::new(DLT_EN10MB),
            last: LastFrame::new(),
            requests: AtomicU8::new(0),
            filter: Latch::new(None),
            passed: AtomicU64::new(0),
            drops: Default::default(),
            waker: event()?,
            dead: AtomicPtr::default(),
            process: std::process::id(),
        })
    }

    /// Opens the port. Returns libpcap's status.
    pub fn activate(&self) -> c_int {
        if self.is_activated() {
            self.fail("can't perform  operation on activated capture");
            return PCAP_ERROR_ACTIVATED;
        }
        if self.settings.monitor_mode.get() {
            self.fail("a port has no monitor mode of a radio");
            return PCAP_ERROR_RFMON_NOTSUP;
        }
        if !(1..=MAXIMUM_SNAPLEN).contains(&self.settings.snaplen.get()) {
            self.settings.snaplen.set(MAXIMUM_SNAPLEN);
        }
        let (Some(mut receiving), Some(mut side)) = (self.active.lock(), self.side.lock()) else {
            return self.in_use();
        };
        match Active::open(&self.name, &self.settings, &self.ready) {
            Ok((mut active, of_port)) => {
                active.keep_watch(&self.waiting, &self.ready);
                self.descriptor.store(active.descriptor(), Ordering::Relaxed);
                table::add_handle(active.descriptor());
                // The kernel's interfaces and files are opened as often as the program likes.
                let can_be_opened_again = InChild::of(&of_port.port) == InChild::Again
                    || linerate::parse(&self.name).is_ok_and(|name| name.is_capture_to_read());
                (*receiving, *side) = (Some(active), Some(of_port));
                self.is_activated.store(true, Ordering::Release);
                drop((receiving, side));
                if !can_be_opened_again {
                    link::register(Handles { is_alone, share });
                    alone().push(Alone(self));
                }
                0
            }
            Err(error) => {
                self.fail(&described(&error));
                status_of(&error)
            }
        }
    }

    pub fn is_activated(&self) -> bool {
        self.is_activated.load(Ordering::Acquire)
    }

    /// Returns whether the port's threads, whose end closing it awaits, are not in this process: a child has none of its parent's
    /// threads (fork(2)). Ports of the kernel and of a server have no threads here.
    pub fn is_without_its_threads(&self) -> bool {
        let has_threads = |side: &Side| InChild::of(&side.port) == InChild::Nothing;
        // A thread that the child does not have may have it.
        self.process != owner() && self.side.try_lock().is_none_or(|side| side.as_ref().is_some_and(has_threads))
    }

    /// Notes the error of a call, and returns true, if the port's threads are not in this process.
    pub fn fails_without_threads(&self, call: &str) -> bool {
        let fails = self.is_without_its_threads();
        if fails {
            self.fail(&format!(
                "{call}the port's threads are in the parent of this process; open the port in this process"
            ));
        }
        fails
    }

    /// Captures one direction only. A monitor is opened again for it; what another port receives is one direction.
    pub fn set_direction(&self, direction: c_int) -> c_int {
        if !self.is_activated() {
            return self.not_activated();
        }
        let name = match (monitor(&self.name), direction) {
            (None, PCAP_D_OUT) => {
                let mut why = "this port captures what it receives".to_string();
                if let Ok(name) = linerate::parse(&self.name) {
                    if name.may_be_served() {
                        why += &format!("; what it sends has the name {}+t", name.short());
                    } else if let Some(interface) = name.interface() {
                        why += &format!("; what the interface sends: capture from {interface}");
                    }
                }
                self.fail(&why);
                return PCAP_ERROR;
            }
            (None, _) | (Some(_), PCAP_D_INOUT) => self.name.clone(),
            (Some((port, options)), direction) => {
                format!("{port}+{}{options}", if direction == PCAP_D_IN { "r" } else { "t" })
            }
        };
        let (Some(mut receiving), Some(mut side)) = (self.active.lock(), self.side.lock()) else {
            return self.in_use();
        };
        let Some(active) = &mut *receiving else { return self.not_activated() };
        match active.open_again(&name, &self.settings, &self.waiting, &self.ready) {
            Ok(None) => {}
            Ok(Some((before, new))) => {
                drop(before);
                if let Some(mut before) = side.replace(new) {
                    before.finish();
                }
                // It has another port than its name says.
                alone().retain(|other| !std::ptr::eq(other.0, self));
                self.passed.store(0, Ordering::Relaxed);
                active.keep_watch(&self.waiting, &self.ready);
            }
            Err(error) => {
                self.fail(&described(&error));
                return PCAP_ERROR;
            }
        }
        0
    }

    /// Runs `work` on the port's other side, beside a thread that receives. Returns `None` if a signal handler calls whose
    /// thread is at work with the port: its locks may be taken.
    fn beside<T>(&self, work: impl FnOnce(&mut Option<Side>) -> T) -> Option<T> {
        if self.active.is_this_thread_s() {
            return None;
        }
        self.side.lock().map(|mut side| work(&mut side))
    }

    /// Returns the program's statistics since the port was opened.
    ///
    /// # Errors
    /// Those of the port.
    pub fn statistics(&self) -> Result<Stat, Error> {
        // A signal handler gets the drops of the last call if its thread is at work with the port.
        if let Some(Some(drops)) = self.beside(|side| side.as_ref().map(Side::drops)) {
            let (slow, refused) = drops?;
            self.drops[0].store(slow as u32, Ordering::Relaxed);
            self.drops[1].store(refused as u32, Ordering::Relaxed);
        }
        let [dropped, interface_dropped] = [&self.drops[0], &self.drops[1]].map(|drops| drops.load(Ordering::Relaxed));
        Ok(Stat { received: self.passed.load(Ordering::Relaxed) as u32, dropped, interface_dropped })
    }

    /// Sends a frame. Returns libpcap's answer; errors begin as the system's do.
    pub fn send(&self, bytes: &[u8]) -> c_int {
        if !self.is_activated() {
            return self.not_activated();
        }
        let sent = self.beside(|side| side.as_mut().map(|side| side.send(bytes)));
        let why = match sent {
            Some(Some(Ok(true))) => return bytes.len() as c_int,
            Some(Some(Ok(false))) => "No buffer space available: the port has taken nothing for a second".to_string(),
            Some(Some(Err(error))) => reason(&error),
            Some(None) | None => {
                "a signal handler has interrupted a call with this handle in the same thread; send outside of it"
                    .to_string()
            }
        };
        self.fail(&format!("send: {why}"));
        PCAP_ERROR
    }

    /// Filters from now on. Returns libpcap's answer.
    pub fn set_filter(&self, filter: Box<[Instruction]>) -> c_int {
        let Some(mut place) = self.filter.lock() else { return self.in_use() };
        let before = place.replace(filter);
        drop(place);
        drop(before);
        self.requests.fetch_or(FILTER, Ordering::Release);
        0
    }

    /// Gives the receiving side the filter that was set last.
    #[cold]
    pub fn adopt_filter(&self, active: &mut Active) {
        if self.requests.load(Ordering::Relaxed) & FILTER == 0 {
            return;
        }
        self.requests.fetch_and(!FILTER, Ordering::Acquire);
        // A thread that has the place sets a filter, and makes the request then.
        if let Some(mut filter) = self.filter.try_lock() {
            filter.take().into_iter().for_each(|filter| active.set_filter(filter, &self.waiting));
        }
    }

    /// Returns the descriptor that is readable while frames wait; -1 before activation.
    pub fn selectable(&self) -> RawFd {
        if self.is_activated()
            && !self.is_selected.swap(true, Ordering::SeqCst)
            && !self.is_unread.load(Ordering::SeqCst)
        {
            // There may be frames. The next call that receives sets it right.
            self.ready.raise();
        }
        self.descriptor.load(Ordering::Relaxed)
    }

    /// Notes that frames are read: from now on the descriptor is kept up to date only if the program has it.
    #[inline]
    pub fn begin_reading(&self) {
        if self.is_unread.load(Ordering::Relaxed) {
            // Either this thread sees that the descriptor was asked for, or the thread that asks sees this.
            self.is_unread.store(false, Ordering::SeqCst);
        }
    }

    pub fn is_selected(&self) -> bool {
        self.is_selected.load(Ordering::SeqCst)
    }

    /// Notes that a signal handler has interrupted a call that excludes this one.
    pub fn in_use(&self) -> c_int {
        self.fail("a call with this handle has not returned yet");
        PCAP_ERROR
    }

    /// Notes that a call needs an activated handle.
    pub fn not_activated(&self) -> c_int {
        self.fail("This handle hasn't been activated yet");
        PCAP_ERROR_NOT_ACTIVATED
    }

    /// Notes an error's text.
    pub fn fail(&self, text: &str) {
        let len = text.floor_char_boundary(PCAP_ERRBUF_SIZE - 1);
        for (place, byte) in self.error.iter().zip(text.bytes().take(len).chain([0])) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    /// Returns the buffer of the last error's text.
    pub fn error(&self) -> *mut c_char {
        self.error.as_ptr().cast_mut().cast()
    }

    /// Ends the loop that runs, or the next one. Signal handlers may call it (signal-safety(7)).
    pub fn break_loop(&self) {
        self.requests.fetch_or(BREAK, Ordering::Relaxed);
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Returns the event that wakes the thread that waits.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Returns whether calls return at once where there are no frames.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Chooses whether calls wait for frames.
    pub fn set_nonblocking(&self, on: bool) {
        self.is_nonblocking.store(on, Ordering::Relaxed);
    }

    /// Returns whether there is something to look at before the next frame: [`takes_break`](Handle::takes_break),
    /// [`adopt_filter`](Handle::adopt_filter).
    #[inline]
    pub fn has_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a loop is to end, and forgets it.
    #[cold]
    pub fn takes_break(&self) -> bool {
        self.requests.fetch_and(!BREAK, Ordering::Relaxed) & BREAK != 0
    }

    /// Returns a handle of the system's with this one's link type and snapshot length; null if there is none.
    pub fn dead(&self) -> *mut c_void {
        let known = self.dead.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let precision = self.settings.precision.get().cast_unsigned();
        let new = real!(pcap_open_dead_with_tstamp_precision(
            self.link_type.load(Ordering::Relaxed) => c_int, self.settings.snaplen.get() => c_int, precision => u32
        ) -> *mut c_void | null_mut());
        match self.dead.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(first) => {
                // Another thread was faster.
                if !new.is_null() {
                    real!(pcap_close(new => *mut c_void) -> () | ());
                }
                first
            }
        }
    }

    /// Notes the text of the dead handle's last error.
    pub fn adopt_error(&self) {
        let text = match self.dead() {
            dead if dead.is_null() => null_mut(),
            dead => real!(pcap_geterr(dead => *mut c_void) -> *mut c_char | null_mut()),
        };
        if text.is_null() {
            return self.fail("the system's libpcap is not there; try: apt install libpcap0.8");
        }
        // SAFETY: libpcap's text ends with a zero.
        let text = unsafe { std::ffi::CStr::from_ptr(text) };
        self.fail(&text.to_string_lossy());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        alone().retain(|other| !std::ptr::eq(other.0, self));
        table::remove_handle(self.descriptor.load(Ordering::Relaxed));
        if let Some(side) = self.side.get_mut() {
            side.finish();
        }
        let dead = *self.dead.get_mut();
        if !dead.is_null() {
            real!(pcap_close(dead => *mut c_void) -> () | ());
        }
    }
}

/// A handle that has its port alone.
pub struct Alone(*const Handle);

// SAFETY: it is in the list only while the handle exists, and the list's lock is held while it is used.
unsafe impl Send for Alone {}

/// How long a call with a handle may keep another opener of its port waiting: sending waits for room for a second.
const LONGEST_CALL: Duration = Duration::from_secs(3);

static ALONE: Mutex<Vec<Alone>> = Mutex::new(Vec::new());

/// Locks the list of the handles that have their port alone.
pub fn alone() -> MutexGuard<'static, Vec<Alone>> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the place of the handle that has this port alone, if this process has one.
fn at(alone: &[Alone], name: &str) -> Option<usize> {
    alone.iter().position(|Alone(handle)| {
        // SAFETY: handles of the list exist. Name and process do not change.
        let (of_handle, process) = unsafe { (&(**handle).name, (**handle).process) };
        of_handle == name && process == std::process::id()
    })
}

/// Returns whether a handle of this process has the port of this name alone.
fn is_alone(name: &str) -> bool {
    at(&alone(), name).is_some()
}

/// Makes the handle that has the port of this name alone a member of a link, which `begin` starts with the port. The handle's frames,
/// descriptor, filter and statistics go on. `None` if this process has no such handle.
///
/// # Errors
/// Those of `begin`; then the handle has no port any more. A call with the handle that has not returned, and whose thread this is.
fn share(name: &str, begin: &mut Begin<'_>) -> link::Shared {
    let since = Instant::now();
    let (mut list, handle, mut receiving, mut side) = loop {
        let list = alone();
        let Some(at) = at(&list, name) else { return Ok(None) };
        // SAFETY: handles of the list exist; what other threads use of it is in latches and atomics.
        let handle = unsafe { &*list[at].0 };
        if let (Some(receiving), Some(side)) = (handle.active.try_lock(), handle.side.try_lock()) {
            break (list, handle, receiving, side);
        }
        // A thread with these locks may wait for the list's. A call with the handle of this thread does not return.
        drop(list);
        if handle.active.is_this_thread_s() || since.elapsed() > LONGEST_CALL {
            return Err(Error::queue_taken(name, "receive", 0));
        }
        std::thread::yield_now();
    };
    list.retain(|other| !std::ptr::eq(other.0, handle));
    let (Some(active), Some(of_port)) = (receiving.take(), side.take()) else { return Ok(None) };
    let settings = Arc::new(member::Settings::new(false, ALL));
    settings.is_promiscuous.store(handle.settings.promiscuous.get(), Ordering::Relaxed);
    let max_frame = of_port.longest();
    let (rx, of_queue) = active.give_up();
    let (mut queues, of_port) = of_port.give_up();
    queues.rx = Some(rx);
    let about = About::of(&queues.port, max_frame, queues.tx.is_some());
    let pool = queues.port.pool().clone();
    let (link, end) = begin(Opened { queues, about, is_only_sending: false }, &settings)?;
    let mut port = shared::at(&link, end, settings, pool);
    *receiving = Some(of_queue(port.rx(0)?)?);
    *side = Some(of_port(port));
    drop((receiving, side));
    // A thread that waits for the frames of the port itself waits for those of the link. The handle's descriptor is readable while its end
    // of the link is.
    let _ = rustix::io::write(&handle.waker, &1u64.to_ne_bytes());
    Ok(Some(link))
}

/// Returns a system error's text as strerror(3) has it.
pub fn reason(error: &Error) -> String {
    let text = match error.io_error().filter(|_| error.kind() == ErrorKind::System) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// Returns an error's text with its remedy, if both fit.
pub fn described(error: &Error) -> String {
    let text = error.to_string();
    match error.remedy().map(Remedy::command) {
        Some(hint) if text.len() + hint.len() + 2 < PCAP_ERRBUF_SIZE => format!("{text}; {hint}"),
        _ => text,
    }
}

/// Returns the monitored port and the options of a monitor's name.
fn monitor(name: &str) -> Option<(&str, &str)> {
    let (address, options) = name.split_at(name.find('?').unwrap_or(name.len()));
    let (port, how) = address.rsplit_once(['+', '/'])?;
    let is_monitor = !how.is_empty() && how.bytes().all(|c| b"rtz".contains(&c));
    is_monitor.then_some((port, options))
}

/// Returns libpcap's number of an error of opening.
fn status_of(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotServed => PCAP_ERROR_NO_SUCH_DEVICE,
        ErrorKind::System if matches!(error.errno(), libc::EPERM | libc::EACCES) => PCAP_ERROR_PERM_DENIED,
        _ => PCAP_ERROR,
    }
}

/// The copy of the frame that `pcap_next` or `pcap_next_ex` returned last. It stays until the next call.
pub struct LastFrame {
    header: UnsafeCell<PacketHeader>,
    bytes: UnsafeCell<Vec<u8>>,
}

impl LastFrame {
    pub const fn new() -> LastFrame {
        LastFrame { header: UnsafeCell::new(PacketHeader::EMPTY), bytes: UnsafeCell::new(Vec::new()) }
    }

    /// Returns where a frame's header and bytes are, or those of a copy if it `copies`.
    pub fn keep(&self, frame: &Frame, copies: bool) -> (*const PacketHeader, *const c_uchar) {
        let Frame { header, bytes } = frame;
        if !copies {
            return (header, *bytes);
        }
        // SAFETY: only the thread that uses the handle comes here, no reference to either exists, and the frame has as many
        // bytes.
        unsafe {
            self.header.get().write(*header);
            let copy = &mut *self.bytes.get();
            copy.clear();
            copy.extend_from_slice(std::slice::from_raw_parts(*bytes, header.captured as usize));
            (self.header.get(), copy.as_ptr())
        }
    }
}
