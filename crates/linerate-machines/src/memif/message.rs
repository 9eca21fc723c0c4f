//! The protocol's messages: version 2.0 of FD.io's memif (memif.h of libmemif; DPDK's guide "Memif Poll Mode Driver").
//! Each is one packet of 128 bytes on a SEQPACKET socket, little-endian and without padding.

use linerate_core::unix_socket::{self, MessageHeader};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The types of messages.
pub mod kind {
    #![allow(missing_docs)]
    pub const ACK: u16 = 1;
    pub const HELLO: u16 = 2;
    pub const INIT: u16 = 3;
    pub const ADD_REGION: u16 = 4;
    pub const ADD_RING: u16 = 5;
    pub const CONNECT: u16 = 6;
    pub const CONNECTED: u16 = 7;
    pub const DISCONNECT: u16 = 8;
}

/// Version 2.0: the major number in the upper byte.
pub const VERSION: u16 = 2 << 8;
/// `INIT`: packets are Ethernet frames.
pub const ETHERNET: u8 = 0;
/// `ADD_RING`: the client sends on this ring.
pub const CLIENT_TO_SERVER: u16 = 1;

/// A complete message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub kind: U16,
    body: [u8; 126],
}

impl Header {
    pub fn new(kind: u16, body: &(impl IntoBytes + Immutable)) -> Header {
        let mut header = Header { kind: kind.into(), body: [0; 126] };
        body.write_to_prefix(&mut header.body).expect("each body is shorter than a message");
        header
    }

    /// Returns the message's body.
    pub fn body<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.body).expect("each body is shorter than a message").0
    }
}

impl MessageHeader for Header {
    const LONGEST: usize = size_of::<Header>();

    fn message_len(&self) -> usize {
        size_of::<Header>()
    }

    fn set_message_len(&mut self, _: usize) {}
}

/// One end of a connection.
pub type Connection = unix_socket::Connection<Header>;

/// A text that ends at its first zero byte, or at the end of the field.
pub type Name = [u8; 32];
/// A secret, which may fill the field.
pub type Secret = [u8; 24];

/// `HELLO`, from the server: its limits. The limits of rings are last indexes, not counts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    pub name: Name,
    pub min_version: U16,
    pub max_version: U16,
    pub max_region: U16,
    pub max_s2c_ring: U16,
    pub max_c2s_ring: U16,
    pub max_log2_size: u8,
}

/// `INIT`, from the client: the interface that it requests.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Init {
    pub version: U16,
    pub id: U32,
    pub mode: u8,
    pub secret: Secret,
    pub name: Name,
}

/// `ADD_REGION`, from the client, with the memory's descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AddRegion {
    pub index: U16,
    pub size: U64,
}

/// `ADD_RING`, from the client, with the event of the ring's receiver.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AddRing {
    pub flags: U16,
    pub index: U16,
    pub region: U16,
    pub offset: U32,
    pub log2_size: u8,
    pub private_header: U16,
}

/// `DISCONNECT`, from either side.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Disconnect {
    pub code: U32,
    pub reason: [u8; 96],
}

/// Returns a text field that ends with a zero byte; a longer text is truncated.
pub fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// Returns a field's bytes before its first zero byte.
pub fn text_of(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns a field's text with unprintable bytes replaced, since the peer may have written any.
pub fn text(field: &[u8]) -> String {
    let printable = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' };
    text_of(field).iter().map(printable).collect()
}
