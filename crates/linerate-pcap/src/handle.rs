//! A handle: what the program's `pcap_t` points at.
#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use linerate::Error;
use linerate::port::PortName;

use crate::abi::*;
use crate::active::{Active, Settings, event};
use crate::real::{put_text, real};
use crate::socket::names::is_interface;

/// A handle of this object. The program's threads use it one at a time, except for `pcap_breakloop`.
///
/// No borrow of its cells lasts while the program's function is called: it may call anything with the handle, and it may
/// leave by longjmp(3).
#[repr(C)]
pub struct Handle {
    /// The address of [`TAG`]. A handle of the system's libpcap begins with another word.
    tag: *const u8,
    /// The port's name.
    pub name: String,
    pub settings: Settings,
    /// The text of the last error.
    error: UnsafeCell<[c_char; PCAP_ERRBUF_SIZE]>,
    /// The port, once the handle is activated.
    pub active: RefCell<Option<Active>>,
    pub is_activated: Cell<bool>,
    is_nonblocking: Cell<bool>,
    /// The descriptor has been asked for: it is kept up to date from then on.
    pub is_selected: Cell<bool>,
    pub link_type: Cell<c_int>,
    pub last: LastFrame,
    breaks: AtomicBool,
    /// The event (eventfd(2)) that wakes the thread that waits for frames; -1 if the handle does not block.
    waker: AtomicI32,
    /// A handle of the system's for compiling filters and writing files.
    dead: OnceCell<*mut c_void>,
}

static TAG: u8 = 0;

impl Handle {
    /// Returns the handle behind a program's pointer; `None` if it is null, or the system's.
    pub fn of<'a>(pointer: *mut c_void) -> Option<&'a Handle> {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the program's handle: this object's, or the system's, whose first word is the address of a function.
        let tag = unsafe { pointer.cast::<*const u8>().read() };
        // SAFETY: only handles of this object begin with this address, and the program has not closed it.
        (tag == &raw const TAG).then(|| unsafe { &*pointer.cast::<Handle>() })
    }

    /// Creates a handle, if the name is a port's and no interface of the kernel has it.
    pub fn for_port(name: &str) -> Option<Result<Handle, Error>> {
        let text = CString::new(name).ok()?;
        let is_ours = || matches!(PortName::parse(name), Ok(_) | Err(Error::BadOption { .. }));
        (!is_interface(&text) && is_ours()).then(|| Handle::new(name))
    }

    fn new(name: &str) -> Result<Handle, Error> {
        Ok(Handle {
            tag: &raw const TAG,
            name: name.to_string(),
            settings: Settings {
                snaplen: Cell::new(MAXIMUM_SNAPLEN),
                promiscuous: Cell::new(false),
                monitor_mode: Cell::new(false),
                buffer_size: Cell::new(0),
                precision: Cell::new(PCAP_TSTAMP_PRECISION_MICRO),
            },
            error: UnsafeCell::new([0; PCAP_ERRBUF_SIZE]),
            active: RefCell::default(),
            is_activated: Cell::new(false),
            is_nonblocking: Cell::new(false),
            is_selected: Cell::new(false),
            link_type: Cell::new(DLT_EN10MB),
            last: LastFrame::new(),
            breaks: AtomicBool::new(false),
            waker: AtomicI32::new(event()?.into_raw_fd()),
            dead: OnceCell::new(),
        })
    }

    /// Opens the port. Returns libpcap's status.
    pub fn activate(&self) -> c_int {
        if self.is_activated.get() {
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
        match Active::open(&self.name, &self.settings) {
            Ok(active) => {
                self.active.replace(Some(active));
                self.is_activated.set(true);
                0
            }
            Err(error) => {
                self.fail(&described(&error));
                status_of(&error)
            }
        }
    }

    /// Captures one direction only. A monitor is opened again for it; what another port receives is one direction.
    pub fn set_direction(&self, direction: c_int) -> c_int {
        if !self.is_activated.get() {
            return self.not_activated();
        }
        let name = match (monitor(&self.name), direction) {
            (None, PCAP_D_OUT) => {
                let name = self.name.split('?').next().unwrap_or_default();
                self.fail(&format!("this port captures what it receives; what it sends has the name {name}+t"));
                return PCAP_ERROR;
            }
            (None, _) | (Some(_), PCAP_D_INOUT) => self.name.clone(),
            (Some((port, options)), direction) => {
                format!("{port}+{}{options}", if direction == PCAP_D_IN { "r" } else { "t" })
            }
        };
        self.with(|active| active.open_again(&name, &self.settings).map(|()| 0))
    }

    /// Runs `work` on the port, and returns what it returns; on an error, or before activation, notes the text and returns
    /// libpcap's number.
    pub fn with(&self, work: impl FnOnce(&mut Active) -> Result<c_int, Error>) -> c_int {
        match self.active.borrow_mut().as_mut().map(work) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                self.fail(&described(&error));
                PCAP_ERROR
            }
            None => self.not_activated(),
        }
    }

    /// Notes that a call needs an activated handle.
    pub fn not_activated(&self) -> c_int {
        self.fail("This handle hasn't been activated yet");
        PCAP_ERROR_NOT_ACTIVATED
    }

    /// Notes an error's text.
    pub fn fail(&self, text: &str) {
        // SAFETY: the buffer has this size, and only the thread that uses the handle writes there.
        unsafe { put_text(self.error().cast(), PCAP_ERRBUF_SIZE, text) };
    }

    /// Returns the buffer of the last error's text.
    pub fn error(&self) -> *mut c_char {
        self.error.get().cast()
    }

    /// Ends the loop that runs, or the next one. Signal handlers may call it (signal-safety(7)).
    pub fn break_loop(&self) {
        self.breaks.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker() {
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Returns the event that wakes the thread that waits; `None` if the handle does not block.
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.waker.load(Ordering::Relaxed);
        // SAFETY: the handle's own descriptor, which only its own thread closes.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns whether calls return at once where there are no frames.
    pub fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.get()
    }

    /// Chooses whether calls wait for frames. Only a handle that waits has an event to be woken by, as in libpcap.
    ///
    /// # Errors
    /// Without descriptors, as text.
    pub fn set_nonblocking(&self, on: bool) -> Result<(), String> {
        match (on, self.waker.load(Ordering::Relaxed)) {
            (true, fd) if fd >= 0 => {
                self.waker.store(-1, Ordering::Relaxed);
                // SAFETY: the handle's own descriptor, which nothing else has now.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            (false, fd) if fd < 0 => {
                let event = event().map_err(|error| format!("Could not open eventfd: {}", reason(&error)))?;
                self.waker.store(event.into_raw_fd(), Ordering::Relaxed);
            }
            _ => {}
        }
        self.is_nonblocking.set(on);
        Ok(())
    }

    /// Returns whether a loop is to end, and forgets it.
    #[inline]
    pub fn takes_break(&self) -> bool {
        self.breaks.load(Ordering::Relaxed) && self.breaks.swap(false, Ordering::Relaxed)
    }

    /// Returns a handle of the system's with this one's link type and snapshot length; null if there is none.
    pub fn dead(&self) -> *mut c_void {
        *self.dead.get_or_init(|| {
            let precision = self.settings.precision.get().cast_unsigned();
            real!(pcap_open_dead_with_tstamp_precision(
                self.link_type.get() => c_int, self.settings.snaplen.get() => c_int, precision => u32
            ) -> *mut c_void | null_mut())
        })
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
        // It closes the event.
        let _ = self.set_nonblocking(true);
        if let Some(&dead) = self.dead.get()
            && !dead.is_null()
        {
            real!(pcap_close(dead => *mut c_void) -> () | ());
        }
    }
}

/// Returns a system error's text as strerror(3) has it.
pub fn reason(error: &Error) -> String {
    let text = match error {
        Error::System { source, .. } => source.to_string(),
        error => error.to_string(),
    };
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// Returns an error's text with its remedy, if both fit.
pub fn described(error: &Error) -> String {
    let text = error.to_string();
    match error.hint() {
        Some(hint) if text.len() + hint.to_string().len() + 2 < PCAP_ERRBUF_SIZE => format!("{text}; {hint}"),
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
    match error {
        Error::NoInterface { .. } | Error::NoServer { .. } => PCAP_ERROR_NO_SUCH_DEVICE,
        Error::System { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => PCAP_ERROR_PERM_DENIED,
        _ => PCAP_ERROR,
    }
}

/// Runs this object's code in a thread of the program. A panic ends here, as `failed`.
pub fn guarded<T>(failed: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(failed)
}

/// The frame that `pcap_next` or `pcap_next_ex` returned last. It stays until the next call.
pub struct LastFrame {
    header: UnsafeCell<PacketHeader>,
    bytes: UnsafeCell<Vec<u8>>,
}

impl LastFrame {
    pub const fn new() -> LastFrame {
        LastFrame { header: UnsafeCell::new(PacketHeader::EMPTY), bytes: UnsafeCell::new(Vec::new()) }
    }

    /// Keeps a frame, and the copy of its bytes if `copies`. Returns where they are.
    pub fn keep(
        &self,
        header: PacketHeader,
        bytes: *const c_uchar,
        copies: bool,
    ) -> (*const PacketHeader, *const c_uchar) {
        // SAFETY: only the thread that uses the handle comes here, no reference to either exists, and the frame has as many
        // bytes.
        unsafe {
            self.header.get().write(header);
            if !copies {
                return (self.header.get(), bytes);
            }
            let (header, copy) = (&*self.header.get(), &mut *self.bytes.get());
            copy.clear();
            copy.extend_from_slice(std::slice::from_raw_parts(bytes, header.captured as usize));
            (self.header.get(), copy.as_ptr())
        }
    }
}
