//! Functions passed to the system's libpcap unchanged: filters, names, capture files, tables.
//!
//! They have at most six arguments, integers and pointers, all in registers (System V ABI; AAPCS64), which are passed
//! on as they are.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use crate::real::real;

macro_rules! forward {
    ($($name:ident -> $absent:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C-unwind" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
                real!($name(a => usize, b => usize, c => usize, d => usize, e => usize, f => usize) -> usize | $absent)
            }
        )*
    };
}

/// The text returned for errors without the system's library; programs print it without a check for null.
const NO_TEXT: &CStr = c"an error, whose text the system's libpcap has (apt install libpcap0.8)";

/// The result without the system's library, of functions that return an int: -1.
const FAILS: usize = usize::MAX;
/// The result of other functions: null, zero, or none.
const NOTHING: usize = 0;

forward! {
    bpf_dump -> NOTHING;
    bpf_filter -> NOTHING;
    bpf_image -> NOTHING;
    bpf_validate -> NOTHING;
    pcap_compile_nopcap -> FAILS;
    pcap_datalink_name_to_val -> FAILS;
    pcap_datalink_val_to_description -> NOTHING;
    pcap_datalink_val_to_description_or_dlt -> NOTHING;
    pcap_datalink_val_to_name -> NOTHING;
    pcap_dump -> NOTHING;
    pcap_dump_close -> NOTHING;
    pcap_dump_file -> NOTHING;
    pcap_dump_flush -> FAILS;
    pcap_dump_ftell -> FAILS;
    pcap_dump_ftell64 -> FAILS;
    pcap_ether_aton -> NOTHING;
    pcap_ether_hostton -> NOTHING;
    pcap_fopen_offline -> NOTHING;
    pcap_fopen_offline_with_tstamp_precision -> NOTHING;
    pcap_free_datalinks -> NOTHING;
    pcap_free_tstamp_types -> NOTHING;
    pcap_freealldevs -> NOTHING;
    pcap_freecode -> NOTHING;
    pcap_init -> FAILS;
    pcap_lib_version -> c"linerate's libpcap 1.10.3, without the system's".as_ptr().addr();
    pcap_lookupdev -> NOTHING;
    pcap_nametoaddr -> NOTHING;
    pcap_nametoaddrinfo -> NOTHING;
    pcap_nametoeproto -> FAILS;
    pcap_nametollc -> FAILS;
    pcap_nametonetaddr -> NOTHING;
    pcap_nametoport -> NOTHING;
    pcap_nametoportrange -> NOTHING;
    pcap_nametoproto -> FAILS;
    pcap_next_etherent -> NOTHING;
    pcap_offline_filter -> NOTHING;
    pcap_open_dead -> NOTHING;
    pcap_open_dead_with_tstamp_precision -> NOTHING;
    pcap_open_offline -> NOTHING;
    pcap_open_offline_with_tstamp_precision -> NOTHING;
    pcap_statustostr -> NO_TEXT.as_ptr().addr();
    pcap_strerror -> NO_TEXT.as_ptr().addr();
    pcap_tstamp_type_name_to_val -> FAILS;
    pcap_tstamp_type_val_to_description -> NOTHING;
    pcap_tstamp_type_val_to_name -> NOTHING;
}

/// The version, for old programs. The linker has fixed its size in them (copy relocation).
#[unsafe(no_mangle)]
static pcap_version: [u8; 7] = *b"1.10.3\0";

/// `struct eproto`: a protocol's name and number.
#[repr(C)]
pub struct EtherType {
    name: *const c_char,
    number: u16,
}

// SAFETY: the names are constant.
unsafe impl Sync for EtherType {}

const fn ether_type(name: &'static std::ffi::CStr, number: u16) -> EtherType {
    EtherType { name: name.as_ptr(), number }
}

/// The names of EtherTypes (IEEE 802 numbers); a null name ends the list.
#[unsafe(no_mangle)]
static eproto_db: [EtherType; 6] = [
    ether_type(c"arp", 0x0806),
    ether_type(c"ip", 0x0800),
    ether_type(c"ip6", 0x86DD),
    ether_type(c"loopback", 0x9000),
    ether_type(c"rarp", 0x8035),
    EtherType { name: std::ptr::null(), number: 0 },
];
