//! The device list: the system's devices, served ports, and ports named in the program's arguments.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

use linerate_preload::{deferred, guarded};

use crate::abi::{Interface, PCAP_ERRBUF_SIZE, PCAP_ERROR, PCAP_IF_USABLE};
use crate::real::{put_text, real};
use crate::socket::names::{self, is_interface};

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_findalldevs(devices: *mut *mut Interface, error: *mut c_char) -> c_int {
    let answer = real!(pcap_findalldevs(
        devices => *mut *mut Interface, error => *mut c_char
    ) -> c_int | PCAP_ERROR);
    if answer == 0 {
        deferred(|| guarded((), || append_ports(devices)));
    }
    answer
}

/// Appends the served ports and those named in the program's arguments. Entries are allocated by malloc(3), as
/// `pcap_freealldevs` expects.
fn append_ports(devices: *mut *mut Interface) {
    let mut end = devices;
    // SAFETY: libpcap's list.
    while !unsafe { *end }.is_null() {
        // SAFETY: as above.
        end = unsafe { &raw mut (**end).next };
    }
    let served = names::served().into_iter().map(|name| (name, c"a port that linerate serves"));
    for (name, text) in served.chain(names::in_arguments().into_iter().map(|name| (name, c"a port"))) {
        let Ok(name) = CString::new(name) else { continue };
        // SAFETY: it has no requirements; the texts end with a zero.
        let (one, name, description) = unsafe {
            let one = libc::calloc(1, size_of::<Interface>()).cast::<Interface>();
            (one, libc::strdup(name.as_ptr()), libc::strdup(text.as_ptr()))
        };
        if one.is_null() || name.is_null() || description.is_null() {
            return;
        }
        // SAFETY: memory of this size, and the end of the list.
        unsafe {
            one.write(Interface { next: null_mut(), name, description, addresses: null_mut(), flags: PCAP_IF_USABLE });
            *end = one;
            end = &raw mut (*one).next;
        }
    }
}

/// Fails for ports: they have no IPv4 address, which libpcap reports as an error.
#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_lookupnet(name: *const c_char, net: *mut u32, mask: *mut u32, error: *mut c_char) -> c_int {
    match deferred(|| guarded(None, || lookup(name, net, mask, error))) {
        Some(answer) => answer,
        None => real!(pcap_lookupnet(
            name => *const c_char, net => *mut u32, mask => *mut u32, error => *mut c_char
        ) -> c_int | PCAP_ERROR),
    }
}

/// Answers for a port; `None` if the name is not a port's.
fn lookup(name: *const c_char, net: *mut u32, mask: *mut u32, error: *mut c_char) -> Option<c_int> {
    // SAFETY: the program's text, which ends with a zero.
    let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let text = text.filter(|text| !is_interface(text))?.to_string_lossy();
    linerate::parse(&text).ok()?;
    // SAFETY: the program's memory for the two numbers, its buffer of libpcap's size, and this thread's errno.
    unsafe {
        net.write(0);
        mask.write(0);
        put_text(error, PCAP_ERRBUF_SIZE, &format!("{text}: no IPv4 address assigned"));
        *libc::__errno_location() = libc::EADDRNOTAVAIL;
    }
    Some(PCAP_ERROR)
}
