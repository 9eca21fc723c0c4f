//! The functions that take a handle. They handle this library's handles here and pass others to the system's libpcap.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::Relaxed;

use linerate_preload::{cancellation_point, deferred, guarded};

use crate::abi::*;
use crate::filter::copied;
use crate::handle::{Handle, described};
use crate::real::{put_text, real};

/// Defines functions that take a handle: `ours` handles this library's handles, the system's function all others.
macro_rules! of_handle {
    ($(fn $name:ident($handle:ident $(, $argument:ident: $type:ty)*) -> $result:ty | $absent:expr => $ours:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C-unwind" fn $name(pcap: *mut c_void $(, $argument: $type)*) -> $result {
                match Handle::of(pcap) {
                    Some(handle) => deferred(|| guarded($absent, || {
                        let $handle = handle;
                        $ours
                    })),
                    None => real!($name(pcap => *mut c_void $(, $argument => $type)*) -> $result | $absent),
                }
            }
        )*
    };
}

/// Sets a value, unless the handle is already activated.
fn set<T>(handle: &Handle, cell: &std::cell::Cell<T>, value: T) -> c_int {
    if handle.is_activated() {
        handle.fail("can't perform  operation on activated capture");
        return PCAP_ERROR_ACTIVATED;
    }
    cell.set(value);
    0
}

/// Returns `value`, or an error before activation. As in the system's library, the error has no text.
fn activated(handle: &Handle, value: c_int) -> c_int {
    if handle.is_activated() { value } else { PCAP_ERROR_NOT_ACTIVATED }
}

of_handle! {
    fn pcap_activate(handle) -> c_int | PCAP_ERROR => handle.activate();
    fn pcap_set_snaplen(handle, len: c_int) -> c_int | PCAP_ERROR => set(handle, &handle.settings.snaplen, len);
    fn pcap_set_promisc(handle, on: c_int) -> c_int | PCAP_ERROR => set(handle, &handle.settings.promiscuous, on != 0);
    fn pcap_set_rfmon(handle, on: c_int) -> c_int | PCAP_ERROR => set(handle, &handle.settings.monitor_mode, on != 0);
    fn pcap_set_timeout(handle, milliseconds: c_int) -> c_int | PCAP_ERROR =>
        set(handle, &handle.settings.timeout, milliseconds);
    fn pcap_set_immediate_mode(handle, on: c_int) -> c_int | PCAP_ERROR =>
        set(handle, &handle.settings.immediate, on != 0);
    fn pcap_set_protocol_linux(handle, _protocol: c_int) -> c_int | PCAP_ERROR => set(handle, &Default::default(), ());
    // As on Linux, a size of zero or less means the default.
    fn pcap_set_buffer_size(handle, bytes: c_int) -> c_int | PCAP_ERROR =>
        set(handle, &handle.settings.buffer_size, bytes.max(0));
    fn pcap_can_set_rfmon(_handle) -> c_int | PCAP_ERROR => 0;
    fn pcap_set_tstamp_type(handle, kind: c_int) -> c_int | PCAP_ERROR => set_time_type(handle, kind);
    fn pcap_set_tstamp_precision(handle, precision: c_int) -> c_int | PCAP_ERROR => set_precision(handle, precision);
    fn pcap_get_tstamp_precision(handle) -> c_int | PCAP_ERROR => handle.settings.precision.get();

    fn pcap_snapshot(handle) -> c_int | PCAP_ERROR => activated(handle, handle.settings.snaplen.get());
    fn pcap_datalink(handle) -> c_int | PCAP_ERROR => activated(handle, handle.link_type.load(Relaxed));
    // Link types are Ethernet's, which have no extension.
    fn pcap_datalink_ext(handle) -> c_int | PCAP_ERROR => activated(handle, 0);
    fn pcap_is_swapped(handle) -> c_int | PCAP_ERROR => activated(handle, 0);
    fn pcap_major_version(handle) -> c_int | PCAP_ERROR => activated(handle, 0);
    fn pcap_minor_version(handle) -> c_int | PCAP_ERROR => activated(handle, 0);
    fn pcap_bufsize(handle) -> c_int | PCAP_ERROR => activated(handle, handle.settings.buffer_size.get());
    fn pcap_file(_handle) -> *mut c_void | null_mut() => null_mut();
    fn pcap_fileno(handle) -> c_int | PCAP_ERROR => handle.selectable();
    fn pcap_get_selectable_fd(handle) -> c_int | PCAP_ERROR => handle.selectable();
    fn pcap_get_required_select_timeout(_handle) -> *const libc::timeval | null() => null();
    fn pcap_list_datalinks(handle, list: *mut *mut c_int) -> c_int | PCAP_ERROR => list_link_types(handle, list);
    fn pcap_set_datalink(handle, kind: c_int) -> c_int | PCAP_ERROR => set_link_type(handle, kind);
    fn pcap_list_tstamp_types(handle, list: *mut *mut c_int) -> c_int | PCAP_ERROR => {
        put_list(handle, list, &[PCAP_TSTAMP_HOST])
    };

    fn pcap_setnonblock(handle, on: c_int, _error: *mut c_char) -> c_int | PCAP_ERROR => {
        handle.set_nonblocking(on != 0);
        0
    };
    fn pcap_getnonblock(handle, error: *mut c_char) -> c_int | PCAP_ERROR => match handle.is_activated() {
        true => handle.is_nonblocking().into(),
        false => {
            handle.not_activated();
            // SAFETY: the program's buffer of this size.
            unsafe { put_text(error, PCAP_ERRBUF_SIZE, "This handle hasn't been activated yet") };
            PCAP_ERROR_NOT_ACTIVATED
        }
    };
    fn pcap_setdirection(handle, direction: c_int) -> c_int | PCAP_ERROR => set_direction(handle, direction);
    fn pcap_setfilter(handle, program: *const Program) -> c_int | PCAP_ERROR => set_filter(handle, program);
    fn pcap_stats(handle, stat: *mut Stat) -> c_int | PCAP_ERROR => statistics(handle, stat);

    fn pcap_compile(handle, program: *mut c_void, text: *const c_char, optimize: c_int, netmask: c_uint)
        -> c_int | PCAP_ERROR => match handle.is_activated() {
        true => on_dead(handle, PCAP_ERROR, |dead| real!(pcap_compile(
            dead => *mut c_void, program => *mut c_void, text => *const c_char, optimize => c_int, netmask => c_uint
        ) -> c_int | PCAP_ERROR)),
        false => {
            handle.fail("not-yet-activated pcap_t passed to pcap_compile");
            PCAP_ERROR
        }
    };
    fn pcap_dump_open(handle, path: *const c_char) -> *mut c_void | null_mut() => match handle.is_activated() {
        true => on_dead(handle, null_mut(), |dead| {
            real!(pcap_dump_open(dead => *mut c_void, path => *const c_char) -> *mut c_void | null_mut())
        }),
        false => {
            // SAFETY: the program's text, which ends with a zero.
            let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_string_lossy());
            let path = path.as_deref().unwrap_or("(null)");
            handle.fail(&format!("{path}: not-yet-activated pcap_t passed to pcap_dump_open"));
            null_mut()
        }
    };
    fn pcap_dump_open_append(handle, path: *const c_char) -> *mut c_void | null_mut() => {
        on_dead(handle, null_mut(), |dead| {
            real!(pcap_dump_open_append(dead => *mut c_void, path => *const c_char) -> *mut c_void | null_mut())
        })
    };
    fn pcap_dump_fopen(handle, file: *mut c_void) -> *mut c_void | null_mut() => on_dead(handle, null_mut(), |dead| {
        real!(pcap_dump_fopen(dead => *mut c_void, file => *mut c_void) -> *mut c_void | null_mut())
    });

    fn pcap_geterr(handle) -> *mut c_char | null_mut() => handle.error();
    fn pcap_perror(handle, prefix: *const c_char) -> () | () => {
        // SAFETY: texts that end with a zero, the program's and this library's.
        let (prefix, text) = unsafe { (CStr::from_ptr(prefix), CStr::from_ptr(handle.error())) };
        eprintln!("{}: {}", prefix.to_string_lossy(), text.to_string_lossy());
    };
}

/// A cancellation point, as on Linux.
#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_inject(pcap: *mut c_void, bytes: *const c_void, len: usize) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => {
            // SAFETY: the program's call, which has nothing to drop.
            unsafe { cancellation_point() };
            deferred(|| {
                guarded(PCAP_ERROR, || send(handle, bytes, len, "The number of bytes to be injected must not be zero"))
            })
        }
        None => real!(pcap_inject(pcap => *mut c_void, bytes => *const c_void, len => usize) -> c_int | PCAP_ERROR),
    }
}

/// As [`pcap_inject`].
#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_sendpacket(pcap: *mut c_void, bytes: *const c_void, len: c_int) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => {
            // SAFETY: the program's call, which has nothing to drop.
            unsafe { cancellation_point() };
            deferred(|| {
                guarded(PCAP_ERROR, || {
                    let len = len.max(0) as usize;
                    send(handle, bytes, len, "The number of bytes to be sent must be positive").min(0)
                })
            })
        }
        None => real!(pcap_sendpacket(
            pcap => *mut c_void, bytes => *const c_void, len => c_int
        ) -> c_int | PCAP_ERROR),
    }
}

/// Signal handlers may call it: it only stores a flag and writes to a descriptor.
#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_breakloop(pcap: *mut c_void) {
    match Handle::of(pcap) {
        Some(handle) => handle.break_loop(),
        None => real!(pcap_breakloop(pcap => *mut c_void) -> () | ()),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_close(pcap: *mut c_void) {
    match Handle::of(pcap) {
        Some(_) => deferred(|| {
            guarded((), || {
                // SAFETY: the handle is from `pcap_create`'s box, and the program gives it up.
                let handle = unsafe { Box::from_raw(pcap.cast::<Handle>()) };
                if handle.is_without_its_threads() {
                    std::mem::forget(handle);
                }
            })
        }),
        None => real!(pcap_close(pcap => *mut c_void) -> () | ()),
    }
}

/// Creates a handle of this library if `name` is a port; `None` for all other names.
pub fn create(name: *const c_char, error: *mut c_char) -> Option<*mut Handle> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the program's text, which ends with a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    let handle = Handle::for_port(name)?;
    // Open the system's library now: a program may lose the right to open files (seccomp(2)) before it activates the
    // handle.
    crate::real::any_library_function();
    Some(match handle {
        Ok(handle) => Box::into_raw(Box::new(handle)),
        Err(why) => {
            // SAFETY: the program's buffer of this size.
            unsafe { put_text(error, PCAP_ERRBUF_SIZE, &described(&why)) };
            null_mut()
        }
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_open_live(
    name: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout: c_int,
    error: *mut c_char,
) -> *mut c_void {
    match deferred(|| guarded(None, || open(name, snaplen, promiscuous, timeout, error))) {
        Some(handle) => handle.cast(),
        None => real!(pcap_open_live(
            name => *const c_char, snaplen => c_int, promiscuous => c_int, timeout => c_int, error => *mut c_char
        ) -> *mut c_void | null_mut()),
    }
}

/// Creates a handle as [`create`], and activates it; null if that fails.
fn open(
    name: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout: c_int,
    error: *mut c_char,
) -> Option<*mut Handle> {
    let pointer = create(name, error)?;
    let Some(handle) = Handle::of(pointer.cast()) else { return Some(null_mut()) };
    handle.settings.snaplen.set(snaplen);
    handle.settings.promiscuous.set(promiscuous != 0);
    handle.settings.timeout.set(timeout);
    if handle.activate() < 0 {
        // SAFETY: this library's text, which ends with a zero; and the program's buffer of this size.
        unsafe { put_text(error, PCAP_ERRBUF_SIZE, &CStr::from_ptr(handle.error()).to_string_lossy()) };
        pcap_close(pointer.cast());
        return Some(null_mut());
    }
    Some(pointer)
}

fn set_time_type(handle: &Handle, kind: c_int) -> c_int {
    match kind {
        _ if handle.is_activated() => set(handle, &Default::default(), ()),
        PCAP_TSTAMP_HOST => 0,
        kind if kind < 0 => PCAP_ERROR_CANTSET_TSTAMP_TYPE,
        _ => PCAP_WARNING_TSTAMP_TYPE_NOTSUP,
    }
}

fn set_precision(handle: &Handle, precision: c_int) -> c_int {
    match precision {
        PCAP_TSTAMP_PRECISION_MICRO | PCAP_TSTAMP_PRECISION_NANO => set(handle, &handle.settings.precision, precision),
        _ => PCAP_ERROR_TSTAMP_PRECISION_NOTSUP,
    }
}

/// Writes the statistics to the program's memory.
fn statistics(handle: &Handle, stat: *mut Stat) -> c_int {
    if !handle.is_activated() {
        return handle.not_activated();
    }
    match handle.statistics() {
        Ok(statistics) => {
            // SAFETY: the program's memory for it.
            unsafe { stat.write(statistics) };
            0
        }
        Err(error) => {
            handle.fail(&described(&error));
            PCAP_ERROR
        }
    }
}

/// Returns a list to the program, which frees it by free(3).
fn put_list(handle: &Handle, list: *mut *mut c_int, values: &[c_int]) -> c_int {
    // SAFETY: it has no requirements.
    let copy = unsafe { libc::malloc(size_of_val(values)) }.cast::<c_int>();
    if copy.is_null() {
        handle.fail("malloc: Cannot allocate memory");
        return PCAP_ERROR;
    }
    // SAFETY: the list has room for the values, and the program's memory for the address.
    unsafe {
        std::ptr::copy_nonoverlapping(values.as_ptr(), copy, values.len());
        list.write(copy);
    }
    values.len() as c_int
}

const LINK_TYPES: [c_int; 2] = [DLT_EN10MB, DLT_DOCSIS];

fn list_link_types(handle: &Handle, list: *mut *mut c_int) -> c_int {
    if !handle.is_activated() {
        return PCAP_ERROR_NOT_ACTIVATED;
    }
    put_list(handle, list, &LINK_TYPES)
}

fn set_link_type(handle: &Handle, kind: c_int) -> c_int {
    // A handle has no link type before activation.
    if !handle.is_activated() || !LINK_TYPES.contains(&kind) {
        let name = real!(pcap_datalink_val_to_name(kind => c_int) -> *const c_char | null());
        let name = match name.is_null() {
            true => format!("DLT {kind}"),
            // SAFETY: a text of libpcap's that ends with a zero, and stays.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        handle.fail(&format!("{name} is not one of the DLTs supported by this device"));
        return PCAP_ERROR;
    }
    handle.link_type.store(kind, Relaxed);
    0
}

fn set_direction(handle: &Handle, direction: c_int) -> c_int {
    match direction {
        PCAP_D_INOUT | PCAP_D_IN | PCAP_D_OUT => handle.set_direction(direction),
        _ => {
            handle.fail("Invalid direction");
            PCAP_ERROR
        }
    }
}

fn set_filter(handle: &Handle, program: *const Program) -> c_int {
    if program.is_null() {
        handle.fail("setfilter: No filter specified");
        return PCAP_ERROR;
    }
    if !handle.is_activated() {
        return handle.not_activated();
    }
    // SAFETY: the program's filter, of the length that it has.
    match unsafe { copied(&*program) } {
        Some(filter) => handle.set_filter(filter),
        None => {
            handle.fail("BPF program is not valid");
            PCAP_ERROR
        }
    }
}

/// Sends a frame; returns its length. Errors begin as the system's do; `none` is the error for an empty frame. Like a
/// packet socket, rejects frames shorter than an Ethernet header.
fn send(handle: &Handle, bytes: *const c_void, len: usize, none: &str) -> c_int {
    let why = match len {
        0 => Some(none),
        _ if bytes.is_null() => Some("send: Bad address"),
        1..14 => Some("send: Invalid argument"),
        _ => None,
    };
    if let Some(why) = why {
        handle.fail(why);
        return PCAP_ERROR;
    }
    if handle.fails_without_threads("send: ") {
        return PCAP_ERROR;
    }
    // SAFETY: the program's bytes, of the length that it says.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), len) };
    handle.send(bytes)
}

/// Calls a function of the system's libpcap with a dead handle in place of ours; stores its error in ours.
fn on_dead<T: PartialEq + Copy>(handle: &Handle, failed: T, work: impl FnOnce(*mut c_void) -> T) -> T {
    let dead = handle.dead();
    let answer = if dead.is_null() { failed } else { work(dead) };
    if answer == failed {
        handle.adopt_error();
    }
    answer
}
