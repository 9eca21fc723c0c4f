//! Programs that load both this library and the system's libpcap, which they open under another name or by path.
//!
//! - dlopen(3) of `libpcap.so` and `libpcap.so.1` returns this library, as for `libpcap.so.0.8`. Otherwise the system's
//!   library, if its development files are installed, would call this library's `pcap_create` and use the handle as its
//!   own.
//! - The system's library, opened by path, gets its own handles from `pcap_create`.
//! - A handle of the system's library is passed to it. A handle of this library that is passed to the system's library
//!   ends the program with a report.
//!
//! The first two need the caller's address, which Rust can only get in assembly; they are implemented for x86-64.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use linerate_preload::{deferred, guarded, report};

use crate::handle::Handle;
use crate::real::{object_of, real};
use crate::socket::system;

/// The arguments with which `dlopen` continues: the library's name and the C library's function.
#[repr(C)]
struct Next {
    name: *const c_char,
    function: *const c_void,
}

/// Returns the name to open instead of `name`, and the C library's dlopen(3).
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
extern "C" fn next(name: *const c_char) -> Next {
    extern "C" fn absent() -> *mut c_void {
        null_mut()
    }
    // SAFETY: the program's text, which ends with a zero.
    let is_ours = !name.is_null() && [c"libpcap.so", c"libpcap.so.1"].contains(&unsafe { CStr::from_ptr(name) });
    let function = system::dlopen().map_or(absent as *const c_void, |function| function as *const c_void);
    Next { name: if is_ours { c"libpcap.so.0.8".as_ptr() } else { name }, function }
}

/// Jumps to the C library's function, which finds the caller by its return address: it searches that object's library
/// path.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rsi",
        "call {next}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        next = sym next,
    )
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn pcap_create(_name: *const c_char, _error: *mut c_char) -> *mut c_void {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {create}", create = sym create)
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_create(name: *const c_char, error: *mut c_char) -> *mut c_void {
    create(name, error, std::ptr::null())
}

extern "C-unwind" fn create(name: *const c_char, error: *mut c_char, caller: *const c_void) -> *mut c_void {
    let ours = deferred(|| {
        guarded(None, || match is_in_system_library(caller) {
            true => {
                report_port(name);
                None
            }
            false => crate::calls::create(name, error),
        })
    });
    match ours {
        Some(handle) => handle.cast(),
        None => real!(pcap_create(name => *const c_char, error => *mut c_char) -> *mut c_void | null_mut()),
    }
}

/// Reports that the system's libpcap was asked to open a port.
fn report_port(name: *const c_char) {
    // SAFETY: the program's text, which ends with a zero.
    let text = if name.is_null() { None } else { unsafe { CStr::from_ptr(name) }.to_str().ok() };
    if let Some(text) = text
        && Handle::is_port(text)
    {
        report(&format!(
            "{text}: the program has opened the system's libpcap by its path, which does not support ports; open libpcap.so.0.8"
        ));
    }
}

/// Returns whether an address is in the system's libpcap.
fn is_in_system_library(address: *const c_void) -> bool {
    // Most callers are programs, not a libpcap; for those the system's library need not be opened.
    let Some(object) = object_of(address).filter(|object| object.is_named("libpcap")) else { return false };
    object_of(crate::real::any_library_function()).is_some_and(|system| system.base == object.base)
}
