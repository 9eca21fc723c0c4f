//! The protocol's messages: "Vhost-user Protocol" (QEMU, docs/interop/vhost-user.rst). Everything is little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::unix_socket::{self, MessageHeader};

/// Requests of the front end.
pub mod request {
    #![allow(missing_docs)]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Bits of a header's flags.
pub mod flag {
    /// The version, in the lowest two bits.
    pub const VERSION_BITS: u32 = 3;
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = 1 << 2;
    /// The sender wants to hear whether it succeeded.
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// The protocol's own feature bits.
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const NET_MTU: u64 = 1 << 4;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// A feature bit that is not VirtIO's: pages that are written are logged.
pub const LOG_ALL: u64 = 1 << 26;
/// The feature bit of VirtIO that has another meaning here: there are protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// In the number of a virtqueue: no descriptor comes with it.
pub const NO_DESCRIPTOR: u64 = 1 << 8;

/// In the flags of a virtqueue's addresses: its used ring is logged, too.
pub const RING_LOGGED: u32 = 1 << 0;

/// The header of each message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub request: u32,
    pub flags: u32,
    /// Bytes behind the header.
    pub size: u32,
}

impl MessageHeader for Header {
    const LONGEST: usize = 4096;

    fn message_len(&self) -> usize {
        size_of::<Header>().saturating_add(self.size as usize)
    }

    fn set_message_len(&mut self, len: usize) {
        self.size = (len - size_of::<Header>()) as u32;
    }
}

/// A message that has arrived.
pub type Message = unix_socket::Message<Header>;
/// One end of a connection.
pub type Connection = unix_socket::Connection<Header>;

/// A number of a virtqueue, and a value.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VringState {
    pub index: u32,
    pub value: u32,
}

/// `SET_VRING_ADDR`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VringAddr {
    pub index: u32,
    pub flags: u32,
    pub descriptors: u64,
    pub used: u64,
    pub available: u64,
    /// The guest's address of the used ring.
    pub log: u64,
}

/// `SET_LOG_BASE`: where the log is in its file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogBase {
    pub size: u64,
    pub offset: u64,
}

/// `SET_MEM_TABLE`, followed by [`MemoryRegion`]s.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryTable {
    pub regions: u32,
    pub padding: u32,
}

/// A region of the guest's memory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryRegion {
    pub guest: u64,
    pub len: u64,
    pub user: u64,
    pub offset: u64,
}

/// `ADD_MEM_REG` and `REM_MEM_REG`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SingleRegion {
    pub padding: u64,
    pub region: MemoryRegion,
}
