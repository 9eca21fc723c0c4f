//! The structures and constants of `pcap/pcap.h` and `pcap/bpf.h` (libpcap 1.10).

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

/// Size of an error buffer in bytes, with the terminating zero.
pub const PCAP_ERRBUF_SIZE: usize = 256;
/// Maximum snapshot length.
pub const MAXIMUM_SNAPLEN: c_int = 262_144;

pub const PCAP_ERROR: c_int = -1;
pub const PCAP_ERROR_BREAK: c_int = -2;
pub const PCAP_ERROR_NOT_ACTIVATED: c_int = -3;
pub const PCAP_ERROR_ACTIVATED: c_int = -4;
pub const PCAP_ERROR_NO_SUCH_DEVICE: c_int = -5;
pub const PCAP_ERROR_RFMON_NOTSUP: c_int = -6;
pub const PCAP_ERROR_PERM_DENIED: c_int = -8;
pub const PCAP_ERROR_CANTSET_TSTAMP_TYPE: c_int = -10;
pub const PCAP_ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
pub const PCAP_WARNING_TSTAMP_TYPE_NOTSUP: c_int = 3;

pub const PCAP_D_INOUT: c_int = 0;
pub const PCAP_D_IN: c_int = 1;
pub const PCAP_D_OUT: c_int = 2;

pub const PCAP_TSTAMP_HOST: c_int = 0;
pub const PCAP_TSTAMP_PRECISION_MICRO: c_int = 0;
pub const PCAP_TSTAMP_PRECISION_NANO: c_int = 1;

pub const DLT_EN10MB: c_int = 1;
/// Linux offers it for Ethernet interfaces too, because they may capture a cable modem's traffic.
pub const DLT_DOCSIS: c_int = 143;

/// Up, running, connected.
pub const PCAP_IF_USABLE: c_uint = 0x2 | 0x4 | 0x10;

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PacketHeader {
    pub time: libc::timeval,
    /// Captured bytes.
    pub captured: u32,
    /// Length of the frame in bytes.
    pub len: u32,
}

impl PacketHeader {
    pub const EMPTY: PacketHeader = PacketHeader { time: libc::timeval { tv_sec: 0, tv_usec: 0 }, captured: 0, len: 0 };
}

/// `struct pcap_stat`.
#[repr(C)]
pub struct Stat {
    /// `ps_recv`
    pub received: c_uint,
    /// `ps_drop`
    pub dropped: c_uint,
    /// `ps_ifdrop`
    pub interface_dropped: c_uint,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

impl Instruction {
    /// Returns whether the instruction loads the kernel's metadata of a frame (`SKF_AD_OFF`, `SKF_NET_OFF`,
    /// `SKF_LL_OFF`) instead of its bytes.
    pub fn loads_from_kernel(&self) -> bool {
        const LOAD: u16 = 0;
        const ABSOLUTE: u16 = 0x20;
        self.code & 0x7 == LOAD && self.code & 0xE0 == ABSOLUTE && self.operand >= 0xFFE0_0000
    }
}

/// `struct bpf_program`.
#[repr(C)]
pub struct Program {
    pub len: c_uint,
    pub instructions: *const Instruction,
}

/// `pcap_if_t`.
#[repr(C)]
pub struct Interface {
    pub next: *mut Interface,
    pub name: *mut c_char,
    pub description: *mut c_char,
    pub addresses: *mut c_void,
    pub flags: c_uint,
}

/// `pcap_handler`.
pub type Callback = unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar);
