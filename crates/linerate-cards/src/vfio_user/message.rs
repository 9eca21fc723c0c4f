//! The protocol's messages.
//!
//! See "vfio-user Protocol Specification" 0.9.2 (QEMU, docs/interop/vfio-user.rst). All fields are little-endian.
#![cfg_attr(fuzzing, allow(missing_docs, reason = "public for the fuzz target only"))]

use linerate_core::unix_socket::{self, MessageHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

/// The bits of a header's flags.
pub mod flag {
    /// Set in a reply, which repeats the command's number.
    pub const REPLY: u32 = 1;
    pub const TYPE: u32 = 0xF;
    /// The sender wants no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The header's `error` field is valid.
    pub const ERROR: u32 = 1 << 5;
}

/// A flag of `DMA_MAP`.
pub const MAP_READ: u32 = 1 << 0;
/// A flag of `DMA_MAP`.
pub const MAP_WRITE: u32 = 1 << 1;
/// A flag of `DMA_UNMAP`: unmap everything.
pub const UNMAP_ALL: u32 = 1 << 2;

/// The header of each message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Length of the message in bytes, including this header.
    pub size: u32,
    pub flags: u32,
    pub error: u32,
}

/// `VERSION`, followed by JSON and a zero byte.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

/// `DMA_MAP`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    pub argsz: u32,
    pub flags: u32,
    pub offset: u64,
    pub address: u64,
    pub size: u64,
}

/// `DMA_UNMAP`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    pub argsz: u32,
    pub flags: u32,
    pub address: u64,
    pub size: u64,
}

/// `DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    pub argsz: u32,
    pub flags: u32,
    pub regions: u32,
    pub interrupts: u32,
}

/// `DEVICE_GET_REGION_INFO`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub capabilities: u32,
    pub size: u64,
    pub offset: u64,
}

/// `DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub count: u32,
}

/// `DEVICE_SET_IRQS`, followed by data.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetInterrupts {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
}

/// `REGION_READ` and `REGION_WRITE`, followed by data in the request or the reply.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

/// The most bytes of a region access, which nearly bounds the message too.
pub const MOST_DATA: usize = 4096;
/// The longest accepted message: a region access, or a version's JSON.
const MOST_BYTES: usize = size_of::<Header>() + size_of::<RegionAccess>() + MOST_DATA;

/// A received message.
pub type Message = unix_socket::Message<Header>;
/// One end of a connection.
pub type Connection = unix_socket::Connection<Header>;

impl MessageHeader for Header {
    const LONGEST: usize = MOST_BYTES;

    fn message_len(&self) -> usize {
        self.size as usize
    }

    fn set_message_len(&mut self, len: usize) {
        self.size = len as u32;
    }
}
