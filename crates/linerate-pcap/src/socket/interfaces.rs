//! The C library's functions for interface names, with ports added: they have indexes and appear in lists.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::ptr::null_mut;

use libc::{ifaddrs, sockaddr_ll};
use linerate_preload::{deferred, errno, guarded, set_errno};

use super::control::{FLAGS, put_name};
use super::system::{answered, next};
use super::{frame, names};

#[unsafe(no_mangle)]
extern "C-unwind" fn if_nametoindex(name: *const c_char) -> c_uint {
    let before = errno();
    let index = next!(if_nametoindex(name) | 0);
    if index != 0 {
        return index;
    }
    let refused = errno();
    // SAFETY: the program's name, which ends with a zero (if_nametoindex(3)).
    let index = deferred(|| guarded(None, || unsafe { names::of_pointer(name) }.map(|name| name.index)));
    set_errno(if index.is_some() { before } else { refused });
    index.unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn if_indextoname(index: c_uint, to: *mut c_char) -> *mut c_char {
    let is_ours = deferred(|| {
        guarded(false, || match names::of_index(index) {
            Some(name) if !to.is_null() => {
                // SAFETY: the program's buffer of `IFNAMSIZ` bytes (if_indextoname(3)).
                put_name(unsafe { &mut *to.cast() }, &name);
                true
            }
            _ => false,
        })
    });
    if is_ours { to } else { next!(if_indextoname(index, to) | null_mut()) }
}

/// A port's entry in the list of interfaces, in one allocation with its name, address and counters.
#[repr(C)]
struct Listed {
    entry: ifaddrs,
    address: sockaddr_ll,
    /// `struct rtnl_link_stats` (linux/if_link.h): zeros, since a port that no program has opened has no counters.
    counters: [u32; 24],
    name: [c_char; libc::IFNAMSIZ],
}

#[unsafe(no_mangle)]
extern "C-unwind" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    let before = errno();
    let answer = next!(getifaddrs(list));
    if answer == 0 {
        deferred(|| guarded((), || append(list)));
    }
    answered(before, answer)
}

/// Appends ports to a list of interfaces.
fn append(list: *mut *mut ifaddrs) {
    let mut all: Vec<Listed> = names::listed()
        .iter()
        .map(|name| {
            // SAFETY: all fields are integers or pointers.
            let mut listed = unsafe { std::mem::zeroed::<Listed>() };
            put_name(&mut listed.name, name);
            let address = name.properties().map(|properties| properties.address).unwrap_or_default();
            listed.address = frame::address(name.index, 0, address);
            listed.entry.ifa_flags = FLAGS as c_uint;
            listed
        })
        .collect();
    let mut end = list;
    // SAFETY: the C library's valid list.
    while !unsafe { *end }.is_null() {
        // SAFETY: as above.
        end = unsafe { &raw mut (**end).ifa_next };
    }
    for listed in all.drain(..) {
        let listed = Box::leak(Box::new(listed));
        listed.entry.ifa_name = listed.name.as_mut_ptr();
        listed.entry.ifa_addr = (&raw mut listed.address).cast();
        listed.entry.ifa_data = (&raw mut listed.counters).cast();
        // SAFETY: `end` is the null pointer at the list's end.
        unsafe { end.write(&raw mut listed.entry) };
        end = &raw mut listed.entry.ifa_next;
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn freeifaddrs(list: *mut ifaddrs) {
    let theirs = deferred(|| guarded(list, || without_ours(list)));
    next!(freeifaddrs(theirs) | ());
}

/// Frees this library's entries of a list; returns the rest.
fn without_ours(mut list: *mut ifaddrs) -> *mut ifaddrs {
    let mut at = &raw mut list;
    // SAFETY: the program's valid list from `getifaddrs`.
    while let Some(entry) = unsafe { (*at).as_mut() } {
        let is_ours = std::ptr::from_mut(entry).wrapping_byte_add(std::mem::offset_of!(Listed, name)).cast::<c_char>()
            == entry.ifa_name;
        if !is_ours {
            at = &raw mut entry.ifa_next;
            continue;
        }
        let ours = std::ptr::from_mut(entry).cast::<Listed>();
        // SAFETY: `at` is the pointer to this entry, and `append` made the entry from a box.
        unsafe {
            at.write((*ours).entry.ifa_next);
            drop(Box::from_raw(ours));
        }
    }
    list
}
