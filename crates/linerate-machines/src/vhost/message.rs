//! The protocol's messages: "Vhost-user Protocol" (QEMU, docs/interop/vhost-user.rst). Everything is little-endian.
//!
//! Requests, features and payloads are from the crate `vhost`. Its connections are not used: a peer that stops within a
//! message would block the receiving thread forever.

use linerate_core::unix_socket::{self, MessageHeader};
pub use vhost::vhost_user::message::{
    FrontendReq as Request, VhostUserLog as LogBase, VhostUserMemory as MemoryTable,
    VhostUserMemoryRegion as MemoryRegion, VhostUserProtocolFeatures as Protocol,
    VhostUserSingleMemoryRegion as SingleRegion, VhostUserVringAddr as VringAddr, VhostUserVringState as VringState,
};
use vhost::vhost_user::message::{VhostUserVirtioFeatures, VhostUserVringAddrFlags};
pub use vm_memory::ByteValued;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of a header's flags.
pub mod flag {
    use vhost::vhost_user::message::VhostUserHeaderFlag as Flag;

    /// The version, in the lowest two bits.
    pub const VERSION_BITS: u32 = Flag::VERSION.bits();
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = Flag::REPLY.bits();
    /// The sender requests an acknowledgement.
    pub const NEED_REPLY: u32 = Flag::NEED_REPLY.bits();
}

/// A feature bit that is not from virtio: written pages are logged.
pub const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
/// A virtio feature bit with another meaning here: the back end has protocol features, which can be negotiated.
pub const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// A flag in a virtqueue's number: the message has no descriptor.
pub const NO_DESCRIPTOR: u64 = 1 << 8;

/// A flag of a virtqueue's addresses: its used ring is logged, too.
pub const RING_LOGGED: u32 = VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits();

/// The header of each message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub request: u32,
    pub flags: u32,
    /// The number of bytes after the header.
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

/// A received message.
pub type Message = unix_socket::Message<Header>;
/// One end of a connection.
pub type Connection = unix_socket::Connection<Header>;

/// Parses the beginning of a payload as `T`, and returns the rest, too; `None` if it is too short.
pub fn parse<T: ByteValued>(payload: &[u8]) -> Option<(T, &[u8])> {
    let (bytes, rest) = payload.split_at_checked(size_of::<T>())?;
    let mut value = T::zeroed();
    value.as_mut_slice().copy_from_slice(bytes);
    Some((value, rest))
}

/// Returns the name of a request, or its number if it has none.
pub fn name(request: u32) -> String {
    Request::try_from(request).map_or_else(|()| request.to_string(), |request| format!("{request:?}"))
}
