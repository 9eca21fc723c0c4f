//! The structures and constants of `net/netmap.h` (API 14) and `net/netmap_legacy.h`, written from netmap(4) and the
//! headers.

#![allow(unsafe_code)]

use std::ffi::c_char;

use linerate_preload::memory::Plain;

pub const API: u16 = 14;
pub const MOST_API: u16 = 15;

// ioctl(2)'s _IOWR and _IO with type 'i'.
const fn iowr(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | (b'i' as u64) << 8 | number
}
const fn io(number: u64) -> u64 {
    (b'i' as u64) << 8 | number
}

pub const NIOCGINFO: u64 = iowr(145, size_of::<Nmreq>());
pub const NIOCREGIF: u64 = iowr(146, size_of::<Nmreq>());
pub const NIOCTXSYNC: u64 = io(148);
pub const NIOCRXSYNC: u64 = io(149);
pub const NIOCCTRL: u64 = iowr(151, size_of::<Header>());

/// `struct nmreq_header`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    pub version: u16,
    pub reqtype: u16,
    pub reserved: u32,
    pub name: [c_char; 64],
    pub options: u64,
    pub body: u64,
}

/// `NETMAP_REQ_*`.
pub mod request {
    pub const REGISTER: u16 = 1;
    pub const PORT_INFO_GET: u16 = 2;
    pub const VALE_ATTACH: u16 = 3;
    pub const VALE_DETACH: u16 = 4;
    pub const VALE_LIST: u16 = 5;
    pub const PORT_HDR_SET: u16 = 6;
    pub const PORT_HDR_GET: u16 = 7;
    pub const VALE_NEWIF: u16 = 8;
    pub const VALE_DELIF: u16 = 9;
    pub const VALE_POLLING_ENABLE: u16 = 10;
    pub const VALE_POLLING_DISABLE: u16 = 11;
    pub const POOLS_INFO_GET: u16 = 12;
    pub const SYNC_KLOOP_START: u16 = 13;
    pub const SYNC_KLOOP_STOP: u16 = 14;
    pub const CSB_ENABLE: u16 = 15;
}

/// `NETMAP_REQ_OPT_*`.
pub mod option {
    pub const EXTMEM: u32 = 1;
    pub const SYNC_KLOOP_EVENTFDS: u32 = 2;
    pub const CSB: u32 = 3;
    pub const SYNC_KLOOP_MODE: u32 = 4;
    pub const OFFSETS: u32 = 5;
}

/// `struct nmreq_option`, with which every option begins.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NmOption {
    pub next: u64,
    pub reqtype: u32,
    pub status: u32,
    pub size: u64,
}

/// `struct nmreq_register`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Register {
    pub offset: u64,
    pub memsize: u64,
    pub tx_slots: u32,
    pub rx_slots: u32,
    pub tx_rings: u16,
    pub rx_rings: u16,
    pub host_tx_rings: u16,
    pub host_rx_rings: u16,
    pub mem_id: u16,
    pub ringid: u16,
    pub mode: u32,
    pub extra_bufs: u32,
    pub _pad: u32,
    pub flags: u64,
}

/// `NR_REG_*`.
pub mod mode {
    pub const DEFAULT: u32 = 0;
    pub const ALL_NIC: u32 = 1;
    pub const SW: u32 = 2;
    pub const NIC_SW: u32 = 3;
    pub const ONE_NIC: u32 = 4;
    pub const PIPE_MASTER: u32 = 5;
    pub const PIPE_SLAVE: u32 = 6;
    pub const NULL: u32 = 7;
    pub const ONE_SW: u32 = 8;
}

/// `NR_*` flags of a registration.
pub mod flag {
    pub const MONITOR_TX: u64 = 0x100;
    pub const MONITOR_RX: u64 = 0x200;
    pub const ZCOPY_MON: u64 = 0x400;
    pub const EXCLUSIVE: u64 = 0x800;
    pub const RX_RINGS_ONLY: u64 = 0x2000;
    pub const TX_RINGS_ONLY: u64 = 0x4000;
    pub const ACCEPT_VNET_HDR: u64 = 0x8000;
    pub const DO_RX_POLL: u64 = 0x10000;
    pub const NO_TX_POLL: u64 = 0x20000;
}

/// `struct nmreq_port_info_get`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortInfo {
    pub memsize: u64,
    pub tx_slots: u32,
    pub rx_slots: u32,
    pub tx_rings: u16,
    pub rx_rings: u16,
    pub host_tx_rings: u16,
    pub host_rx_rings: u16,
    pub mem_id: u16,
    pub _pad: [u16; 3],
}

/// `struct nmreq_vale_attach`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValeAttach {
    pub register: Register,
    pub port_index: u32,
    pub _pad: u32,
}

/// `struct nmreq_vale_detach`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValeDetach {
    pub port_index: u32,
    pub _pad: u32,
}

/// `struct nmreq_vale_list`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValeList {
    pub bridge_idx: u16,
    pub _pad: u16,
    pub port_idx: u32,
}

/// `struct nmreq_port_hdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortHdr {
    pub hdr_len: u32,
    pub _pad: u32,
}

/// `struct nmreq_vale_newif`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValeNewif {
    pub tx_slots: u32,
    pub rx_slots: u32,
    pub tx_rings: u16,
    pub rx_rings: u16,
    pub mem_id: u16,
    pub _pad: u16,
}

/// `struct nmreq_vale_polling`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValePolling {
    pub mode: u32,
    pub first_cpu_id: u32,
    pub num_polling_cpus: u32,
    pub _pad: u32,
}

/// `struct nmreq_pools_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PoolsInfo {
    pub memsize: u64,
    pub mem_id: u16,
    pub _pad: [u16; 3],
    pub if_offset: u64,
    pub if_total: u32,
    pub if_size: u32,
    pub ring_offset: u64,
    pub ring_total: u32,
    pub ring_size: u32,
    pub buf_offset: u64,
    pub buf_total: u32,
    pub buf_size: u32,
}

/// `struct nmreq_opt_extmem`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptExtmem {
    pub option: NmOption,
    pub usrptr: u64,
    pub info: PoolsInfo,
}

/// `struct nmreq_opt_offsets`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptOffsets {
    pub option: NmOption,
    pub max_offset: u64,
    pub initial_offset: u64,
    pub bits: u32,
    pub tx_align: u32,
    pub min_gap: u64,
}

/// `struct nmreq_opt_csb`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptCsb {
    pub option: NmOption,
    pub atok: u64,
    pub ktoa: u64,
}

/// `struct nmreq_opt_sync_kloop_mode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptMode {
    pub option: NmOption,
    pub mode: u32,
}

/// `struct nmreq_sync_kloop_start`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SyncKloopStart {
    pub sleep_us: u32,
    pub _pad: u32,
}

/// `struct nmreq` of the older API.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Nmreq {
    pub name: [c_char; 16],
    pub version: u32,
    pub offset: u32,
    pub memsize: u32,
    pub tx_slots: u32,
    pub rx_slots: u32,
    pub tx_rings: u16,
    pub rx_rings: u16,
    pub ringid: u16,
    pub cmd: u16,
    pub arg1: u16,
    pub arg2: u16,
    pub arg3: u32,
    pub flags: u32,
    pub _spare: u32,
}

/// Bits of `Nmreq::ringid`.
pub mod ringid {
    pub const MASK: u16 = 0x0FFF;
    pub const NO_TX_POLL: u16 = 0x1000;
    pub const SW_RING: u16 = 0x2000;
    pub const HW_RING: u16 = 0x4000;
    pub const DO_RX_POLL: u16 = 0x8000;
}

/// Values of `Nmreq::cmd`.
pub mod command {
    pub const BDG_ATTACH: u16 = 1;
    pub const BDG_DETACH: u16 = 2;
    pub const BDG_LIST: u16 = 4;
    pub const BDG_VNET_HDR: u16 = 5;
    pub const BDG_NEWIF: u16 = 6;
    pub const BDG_DELIF: u16 = 7;
    pub const BDG_POLLING_ON: u16 = 10;
    pub const BDG_POLLING_OFF: u16 = 11;
    pub const VNET_HDR_GET: u16 = 12;
}

/// Marks structures as copyable from and to the program's memory.
macro_rules! plain {
    ($($structure:ty),*) => {
        $(
            // SAFETY: the structures consist of integers, arrays of integers, and structures of these.
            unsafe impl Plain for $structure {}
        )*
    };
}

plain!(
    Header,
    NmOption,
    Register,
    PortInfo,
    ValeAttach,
    ValeDetach,
    ValeList,
    PortHdr,
    ValeNewif,
    ValePolling,
    PoolsInfo,
    OptExtmem,
    OptOffsets,
    OptCsb,
    OptMode,
    SyncKloopStart,
    Nmreq
);

/// Reads a name that ends with a zero or at the end of its field.
pub fn text(name: &[c_char]) -> String {
    let bytes = name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect::<Vec<_>>();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a name, truncated to its field.
pub fn set_text(name: &mut [c_char], text: &str) {
    let most = name.len() - 1;
    name.fill(0);
    for (place, byte) in name[..most].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
}
