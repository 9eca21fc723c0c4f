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
use crate::active::{Frame, Ready, ReceivingSide, Settings, UnreadFrames, event};
use crate::detector::{DETECTOR, WORDS};
use crate::latch::Latch;
use crate::real::real;
use crate::side::{ChildUse, SendingSide};
use crate::socket::frame::ALL;
use crate::socket::link::{self, Begin, Handles, Opened};
use crate::socket::member;
use crate::socket::names::{PortProperties, is_interface};
use crate::socket::shared;
use crate::socket::table;

/// A handle of this library.
///
/// As with libpcap, only one thread at a time may receive, set the direction or close. All other functions may be
/// called by signal handlers and while another thread receives: they only use atomics, `side` and `filter`.
///
/// No lock or borrow is held while the program's callback runs or a thread sleeps. The callback may call any function
/// with the handle, leave by longjmp(3), or end the thread. A sleeping thread may be cancelled.
#[repr(C)]
pub struct Handle {
    /// Identifies the handle: a handle of the system's libpcap begins with another function.
    detector: [unsafe extern "C" fn() -> !; WORDS],
    /// The port's name.
    pub name: String,
    pub settings: Settings,
    /// The text of the last error. Several threads may write it.
    error: [AtomicU8; PCAP_ERRBUF_SIZE],
    // Dropped in this order: the receiving side before its port.
    /// The port's receiving side, once the handle is activated. The receiving thread locks it, except while it sleeps
    /// and while the program's callback runs.
    pub active: Latch<Option<ReceivingSide>>,
    /// Received frames. The receiving side owns their bytes.
    pub unread: UnreadFrames,
    pub side: Latch<Option<SendingSide>>,
    pub is_activated: AtomicBool,
    is_nonblocking: AtomicBool,
    /// The program has asked for the descriptor, which is kept up to date from then on.
    is_selected: AtomicBool,
    /// The descriptor is up to date because no frame has been read since activation.
    is_unread: AtomicBool,
    /// The descriptor that programs wait for; -1 before activation.
    descriptor: AtomicI32,
    pub ready: Ready,
    pub link_type: AtomicI32,
    pub last: LastFrame,
    /// Flags: `BREAK` and `FILTER`.
    requests: AtomicU8,
    /// A new filter, until the receiving thread takes it.
    filter: Latch<Option<Box<[Instruction]>>>,
    /// Frames that the filter accepted and the program has read.
    pub passed: AtomicU64,
    /// The port's drops at the last query.
    drops: [AtomicU32; 2],
    /// The event (eventfd(2)) that wakes the thread that waits for frames.
    waker: OwnedFd,
    /// A handle of the system's libpcap, for compiling filters and writing files.
    dead: AtomicPtr<c_void>,
    /// The process that created the handle.
    process: u32,
}

/// Bit of the requests: pcap_breakloop(3PCAP) was called; end the current loop, or the next one.
const BREAK: u8 = 1;
/// Bit of the requests: adopt the new filter.
const FILTER: u8 = 2;

impl Handle {
    /// Returns the handle at a program's pointer; `None` if the pointer is null or a handle of the system's.
    pub fn of<'a>(pointer: *mut c_void) -> Option<&'a Handle> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the program's handle: this library's, or the system's, whose first word is the address of a function.
        let function = unsafe { pointer.cast::<*const c_void>().read() };
        // SAFETY: only handles of this library begin with this address, and the program has not closed it.
        (function == DETECTOR as *const c_void).then(|| unsafe { &*pointer.cast::<Handle>() })
    }

    /// Creates a handle, if [`is_port`](Handle::is_port).
    pub fn for_port(name: &str) -> Option<Result<Handle, Error>> {
        Handle::is_port(name).then(|| Handle::new(name))
    }

    /// Returns whether `name` is a port's, and not also a kernel interface's.
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
            unread: UnreadFrames::new(),
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
            self.fail("a port has no radio monitor mode");
            return PCAP_ERROR_RFMON_NOTSUP;
        }
        if !(1..=MAXIMUM_SNAPLEN).contains(&self.settings.snaplen.get()) {
            self.settings.snaplen.set(MAXIMUM_SNAPLEN);
        }
        let (Some(mut receiving), Some(mut side)) = (self.active.lock(), self.side.lock()) else {
            return self.in_use();
        };
        match ReceivingSide::open(&self.name, &self.settings, &self.ready) {
            Ok((mut active, of_port)) => {
                active.keep_watch(&self.unread, &self.ready);
                self.descriptor.store(active.descriptor(), Ordering::Relaxed);
                table::add_handle(active.descriptor());
                // Kernel interfaces and capture files can be opened any number of times.
                let can_be_opened_again = ChildUse::of(&of_port.port) == ChildUse::Reopen
                    || linerate::parse(&self.name).is_ok_and(|name| name.is_capture_to_read());
                (*receiving, *side) = (Some(active), Some(of_port));
                self.is_activated.store(true, Ordering::Release);
                drop((receiving, side));
                if !can_be_opened_again {
                    link::register(Handles { is_exclusive, share });
                    exclusive_handles().push(ExclusiveHandle(self));
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

    /// Returns whether the port has threads, and they are not in this process: a child has none of its parent's threads
    /// (fork(2)), and closing the port would wait for them. Ports of the kernel or a server have no threads here.
    pub fn is_without_its_threads(&self) -> bool {
        let has_threads = |side: &SendingSide| ChildUse::of(&side.port) == ChildUse::Unusable;
        // The lock may be held by a thread that does not exist in the child; then the answer is yes.
        self.process != owner() && self.side.try_lock().is_none_or(|side| side.as_ref().is_some_and(has_threads))
    }

    /// Returns [`is_without_its_threads`](Handle::is_without_its_threads); if true, stores the error of `call`.
    pub fn fails_without_threads(&self, call: &str) -> bool {
        let fails = self.is_without_its_threads();
        if fails {
            self.fail(&format!(
                "{call}the port's threads are in the parent of this process; open the port in this process"
            ));
        }
        fails
    }

    /// Restricts the capture to one direction. A monitor is opened again for it; other ports only capture what they
    /// receive.
    pub fn set_direction(&self, direction: c_int) -> c_int {
        if !self.is_activated() {
            return self.not_activated();
        }
        let name = match (monitor(&self.name), direction) {
            (None, PCAP_D_OUT) => {
                let mut why = "this port captures what it receives".to_string();
                if let Ok(name) = linerate::parse(&self.name) {
                    if name.may_be_served() {
                        why += &format!("; to capture what it sends: {}+t", name.short());
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
        match active.open_again(&name, &self.settings, &self.unread, &self.ready) {
            Ok(None) => {}
            Ok(Some((before, new))) => {
                drop(before);
                if let Some(mut before) = side.replace(new) {
                    before.finish();
                }
                // The handle now has another port than its name denotes, so it is not listed as exclusive.
                exclusive_handles().retain(|other| !std::ptr::eq(other.0, self));
                self.passed.store(0, Ordering::Relaxed);
                active.keep_watch(&self.unread, &self.ready);
            }
            Err(error) => {
                self.fail(&described(&error));
                return PCAP_ERROR;
            }
        }
        0
    }

    /// Runs `work` on the port's [`SendingSide`]; another thread may be receiving. Returns `None` if called by a signal
    /// handler that has interrupted its thread's use of the port, which may hold locks.
    fn with_side<T>(&self, work: impl FnOnce(&mut Option<SendingSide>) -> T) -> Option<T> {
        if self.active.is_held_by_this_thread() {
            return None;
        }
        self.side.lock().map(|mut side| work(&mut side))
    }

    /// Returns the statistics since the port was opened.
    ///
    /// # Errors
    /// The port's errors.
    pub fn statistics(&self) -> Result<Stat, Error> {
        // A signal handler that has interrupted its thread's use of the port gets the drops of the last call.
        if let Some(Some(drops)) = self.with_side(|side| side.as_ref().map(SendingSide::drops)) {
            let (slow, refused) = drops?;
            self.drops[0].store(slow as u32, Ordering::Relaxed);
            self.drops[1].store(refused as u32, Ordering::Relaxed);
        }
        let [dropped, interface_dropped] = [&self.drops[0], &self.drops[1]].map(|drops| drops.load(Ordering::Relaxed));
        Ok(Stat { received: self.passed.load(Ordering::Relaxed) as u32, dropped, interface_dropped })
    }

    /// Sends a frame. Returns libpcap's result; error texts begin as the system's do.
    pub fn send(&self, bytes: &[u8]) -> c_int {
        if !self.is_activated() {
            return self.not_activated();
        }
        let sent = self.with_side(|side| side.as_mut().map(|side| side.send(bytes)));
        let why = match sent {
            Some(Some(Ok(true))) => return bytes.len() as c_int,
            Some(Some(Ok(false))) => {
                "No buffer space available: the port has not accepted a packet for a second".to_string()
            }
            Some(Some(Err(error))) => reason(&error),
            Some(None) | None => {
                "a signal handler has interrupted a call with this handle in the same thread; send outside of it"
                    .to_string()
            }
        };
        self.fail(&format!("send: {why}"));
        PCAP_ERROR
    }

    /// Sets the filter. Returns libpcap's result.
    pub fn set_filter(&self, filter: Box<[Instruction]>) -> c_int {
        let Some(mut slot) = self.filter.lock() else { return self.in_use() };
        let before = slot.replace(filter);
        drop(slot);
        drop(before);
        self.requests.fetch_or(FILTER, Ordering::Release);
        0
    }

    /// Gives the receiving side the new filter, if there is one.
    #[cold]
    pub fn adopt_filter(&self, active: &mut ReceivingSide) {
        if self.requests.load(Ordering::Relaxed) & FILTER == 0 {
            return;
        }
        self.requests.fetch_and(!FILTER, Ordering::Acquire);
        // A thread that holds the lock is setting a filter, and will request its adoption afterwards.
        if let Some(mut filter) = self.filter.try_lock() {
            filter.take().into_iter().for_each(|filter| active.set_filter(filter, &self.unread));
        }
    }

    /// Returns the descriptor that is readable while there are unread frames; -1 before activation.
    pub fn selectable(&self) -> RawFd {
        if self.is_activated()
            && !self.is_selected.swap(true, Ordering::SeqCst)
            && !self.is_unread.load(Ordering::SeqCst)
        {
            // There may be unread frames. The next receiving call corrects the event.
            self.ready.raise();
        }
        self.descriptor.load(Ordering::Relaxed)
    }

    /// Records that frames are read. From now on the descriptor is kept up to date only if the program has it.
    #[inline]
    pub fn begin_reading(&self) {
        if self.is_unread.load(Ordering::Relaxed) {
            // Either this thread sees `is_selected`, or the thread that sets it sees this store.
            self.is_unread.store(false, Ordering::SeqCst);
        }
    }

    pub fn is_selected(&self) -> bool {
        self.is_selected.load(Ordering::SeqCst)
    }

    /// Stores and returns the error of a signal handler that has interrupted a call which excludes this one.
    pub fn in_use(&self) -> c_int {
        self.fail("a call with this handle has not returned yet");
        PCAP_ERROR
    }

    /// Stores and returns the error of a call that needs an activated handle.
    pub fn not_activated(&self) -> c_int {
        self.fail("This handle hasn't been activated yet");
        PCAP_ERROR_NOT_ACTIVATED
    }

    /// Stores an error's text.
    pub fn fail(&self, text: &str) {
        let len = text.floor_char_boundary(PCAP_ERRBUF_SIZE - 1);
        for (slot, byte) in self.error.iter().zip(text.bytes().take(len).chain([0])) {
            slot.store(byte, Ordering::Relaxed);
        }
    }

    /// Returns the buffer of the last error's text.
    pub fn error(&self) -> *mut c_char {
        self.error.as_ptr().cast_mut().cast()
    }

    /// Ends the current loop, or the next one. Signal handlers may call it (signal-safety(7)).
    pub fn break_loop(&self) {
        self.requests.fetch_or(BREAK, Ordering::Relaxed);
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Returns the event that wakes the waiting thread.
    pub fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Returns whether calls return immediately when there are no frames.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Sets whether calls return immediately when there are no frames.
    pub fn set_nonblocking(&self, on: bool) {
        self.is_nonblocking.store(on, Ordering::Relaxed);
    }

    /// Returns whether there are requests to handle before the next frame:
    /// [`take_break_request`](Handle::take_break_request), [`adopt_filter`](Handle::adopt_filter).
    #[inline]
    pub fn has_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a loop must end, and clears the request.
    #[cold]
    pub fn take_break_request(&self) -> bool {
        self.requests.fetch_and(!BREAK, Ordering::Relaxed) & BREAK != 0
    }

    /// Returns a dead handle of the system's libpcap with this handle's link type and snapshot length; null without
    /// that library.
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
                // Another thread has created one meanwhile.
                if !new.is_null() {
                    real!(pcap_close(new => *mut c_void) -> () | ());
                }
                first
            }
        }
    }

    /// Copies the text of the dead handle's last error.
    pub fn adopt_error(&self) {
        let text = match self.dead() {
            dead if dead.is_null() => null_mut(),
            dead => real!(pcap_geterr(dead => *mut c_void) -> *mut c_char | null_mut()),
        };
        if text.is_null() {
            return self.fail("the system's libpcap is not installed; try: apt install libpcap0.8");
        }
        // SAFETY: libpcap's text ends with a zero.
        let text = unsafe { std::ffi::CStr::from_ptr(text) };
        self.fail(&text.to_string_lossy());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        exclusive_handles().retain(|other| !std::ptr::eq(other.0, self));
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

/// A handle that has its port exclusively.
pub struct ExclusiveHandle(*const Handle);

// SAFETY: the list contains it only while the handle exists, and users hold the list's lock.
unsafe impl Send for ExclusiveHandle {}

/// How long opening a port waits for a call on the handle that has it. Sending waits up to a second for room.
const LONGEST_CALL: Duration = Duration::from_secs(3);

static EXCLUSIVE_HANDLES: Mutex<Vec<ExclusiveHandle>> = Mutex::new(Vec::new());

/// Locks the list of handles that have their port exclusively.
pub fn exclusive_handles() -> MutexGuard<'static, Vec<ExclusiveHandle>> {
    EXCLUSIVE_HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the list index of this process's handle that has the port `name` exclusively.
fn position_of(handles: &[ExclusiveHandle], name: &str) -> Option<usize> {
    handles.iter().position(|ExclusiveHandle(handle)| {
        // SAFETY: handles in the list exist. Their name and process do not change.
        let (of_handle, process) = unsafe { (&(**handle).name, (**handle).process) };
        of_handle == name && process == std::process::id()
    })
}

/// Returns whether a handle of this process has the port `name` exclusively.
fn is_exclusive(name: &str) -> bool {
    position_of(&exclusive_handles(), name).is_some()
}

/// Turns the exclusive port `name` of a handle into a link, started by `begin`, with the handle as its first member.
/// The handle keeps its frames, descriptor, filter and statistics. `None` if this process has no such handle.
///
/// # Errors
/// Errors of `begin`; the handle then has no port any more. A call with the handle that does not return in time, or
/// that this thread has interrupted.
fn share(name: &str, begin: &mut Begin<'_>) -> link::Shared {
    let since = Instant::now();
    let (mut list, handle, mut receiving, mut side) = loop {
        let list = exclusive_handles();
        let Some(position) = position_of(&list, name) else { return Ok(None) };
        // SAFETY: handles in the list exist; other threads access only its latches and atomics.
        let handle = unsafe { &*list[position].0 };
        if let (Some(receiving), Some(side)) = (handle.active.try_lock(), handle.side.try_lock()) {
            break (list, handle, receiving, side);
        }
        // Release the list: the thread that holds these locks may wait for it. If that is this thread, waiting is
        // pointless.
        drop(list);
        if handle.active.is_held_by_this_thread() || since.elapsed() > LONGEST_CALL {
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
    let properties = PortProperties::of(&queues.port, max_frame, queues.tx.is_some());
    let pool = queues.port.pool().clone();
    let (link, end) = begin(Opened { queues, properties, is_only_sending: false }, &settings)?;
    let mut port = shared::port_on(&link, end, settings, pool);
    *receiving = Some(of_queue(port.rx(0)?)?);
    *side = Some(of_port(port));
    drop((receiving, side));
    // Wake a thread that waits on the port's own event, so that it waits on the link's. The handle's descriptor now
    // follows its end of the link.
    let _ = rustix::io::write(&handle.waker, &1u64.to_ne_bytes());
    Ok(Some(link))
}

/// Returns an error's text; for a system error, that of strerror(3).
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

/// Returns libpcap's status code for an error of opening a port.
fn status_of(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotServed => PCAP_ERROR_NO_SUCH_DEVICE,
        ErrorKind::System if matches!(error.errno(), libc::EPERM | libc::EACCES) => PCAP_ERROR_PERM_DENIED,
        _ => PCAP_ERROR,
    }
}

/// The copy of the frame that `pcap_next` or `pcap_next_ex` returned last. It is valid until the next call.
pub struct LastFrame {
    header: UnsafeCell<PacketHeader>,
    bytes: UnsafeCell<Vec<u8>>,
}

impl LastFrame {
    pub const fn new() -> LastFrame {
        LastFrame { header: UnsafeCell::new(PacketHeader::EMPTY), bytes: UnsafeCell::new(Vec::new()) }
    }

    /// Returns the addresses of a frame's header and bytes, or of a copy's if `copies`.
    pub fn keep(&self, frame: &Frame, copies: bool) -> (*const PacketHeader, *const c_uchar) {
        let Frame { header, bytes } = frame;
        if !copies {
            return (header, *bytes);
        }
        // SAFETY: only the thread that receives from the handle calls this, no reference to either cell exists, and the
        // frame has `captured` bytes.
        unsafe {
            self.header.get().write(*header);
            let copy = &mut *self.bytes.get();
            copy.clear();
            copy.extend_from_slice(std::slice::from_raw_parts(*bytes, header.captured as usize));
            (self.header.get(), copy.as_ptr())
        }
    }
}
