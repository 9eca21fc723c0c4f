//! The protocol's messages, and the socket that they go through.
//!
//! "vfio-user Protocol Specification" 0.9.2 (QEMU, docs/interop/vfio-user.rst). Everything is little-endian.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What is asked for.
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
    /// Set in a reply, with the command's number.
    pub const REPLY: u32 = 1;
    pub const TYPE: u32 = 0xF;
    /// The sender wants no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The header's error says why it failed.
    pub const ERROR: u32 = 1 << 5;
}

/// Of `DMA_MAP`.
pub const MAP_READ: u32 = 1 << 0;
/// Of `DMA_MAP`.
pub const MAP_WRITE: u32 = 1 << 1;
/// Of `DMA_UNMAP`: everything.
pub const UNMAP_ALL: u32 = 1 << 2;

/// In front of each message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub id: u16,
    pub command: u16,
    /// Bytes of the message, this header included.
    pub size: u32,
    pub flags: u32,
    pub error: u32,
}

/// `VERSION`, followed by JSON and a zero.
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

/// `REGION_READ` and `REGION_WRITE`, followed by data in the direction that it goes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

/// Bytes that one access of a region may have, and so, nearly, a message.
pub const MOST_DATA: usize = 4096;
/// Bytes of the longest message that is taken: an access, or a version's JSON.
const MOST_BYTES: usize = size_of::<Header>() + size_of::<RegionAccess>() + MOST_DATA;
/// Descriptors that may come with a message; QEMU allows no more.
pub const MOST_DESCRIPTORS: usize = 16;

/// A message that has arrived.
#[derive(Debug, Default)]
pub struct Message {
    pub header: Header,
    /// What follows the header.
    pub payload: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// The payload's beginning as `T`, and what follows it; `None` if it is too short.
    pub fn parse<T: FromBytes + KnownLayout + Immutable>(&self) -> Option<(T, &[u8])> {
        T::read_from_prefix(&self.payload).ok()
    }
}

/// One end of a connection.
pub struct Connection {
    socket: UnixStream,
    /// What has arrived of the next message, and how much is missing before it can be looked at.
    bytes: Vec<u8>,
    needed: usize,
    descriptors: Vec<OwnedFd>,
}

impl Connection {
    pub fn new(socket: UnixStream) -> Connection {
        Connection { socket, bytes: Vec::new(), needed: size_of::<Header>(), descriptors: Vec::new() }
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Takes what has arrived. `None`: the message is not complete; with a socket that blocks, call again.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is gone, `InvalidData` if what it says is no message: then nothing that
    /// follows can be understood either. `WouldBlock` and what else recvmsg(2) answers.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
        let have = self.bytes.len();
        self.bytes.resize(self.needed, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let part = &mut self.bytes[have..];
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(part)], &mut control, RecvFlags::CMSG_CLOEXEC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        let count = received.as_ref().map_or(0, |received| received.bytes);
        self.bytes.truncate(have + count);
        received?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.descriptors.len() > MOST_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
        }
        if self.bytes.len() < self.needed {
            return Ok(None);
        }
        let (header, payload) = Header::read_from_prefix(&self.bytes).expect("at least a header was needed");
        let size = header.size as usize;
        if !(size_of::<Header>()..=MOST_BYTES).contains(&size) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {size} bytes")));
        }
        if self.bytes.len() < size {
            self.needed = size;
            return Ok(None);
        }
        let message = Message { header, payload: payload.to_vec(), descriptors: std::mem::take(&mut self.descriptors) };
        self.bytes.clear();
        self.needed = size_of::<Header>();
        Ok(Some(message))
    }

    /// Sends a message: `header` (its size is filled in), then `parts`, with descriptors.
    ///
    /// # Errors
    /// What sendmsg(2) answers; a message that did not go through whole leaves the connection of no use.
    pub fn send(&self, header: Header, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let size = size_of::<Header>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = Header { size: size as u32, ..header };
        let mut slices = vec![IoSlice::new(header.as_bytes())];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        let sent = sendmsg(self.socket.as_fd(), &slices, &mut control, SendFlags::NOSIGNAL)?;
        if sent == size { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pair() -> (UnixStream, Connection) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (theirs, Connection::new(ours))
    }

    fn bytes(size: u32, len: usize) -> Vec<u8> {
        let header = Header { id: 5, command: 9, size, ..Header::default() };
        [header.as_bytes(), &vec![3; len.saturating_sub(size_of::<Header>())]].concat()
    }

    #[test]
    fn a_message_comes_in_any_parts_and_is_followed_by_the_next() {
        let (mut theirs, mut ours) = pair();
        let both = [bytes(20, 20), bytes(16, 16)].concat();
        let mut messages = Vec::new();
        for byte in both {
            theirs.write_all(&[byte]).unwrap();
            messages.extend(ours.receive().unwrap());
        }
        let seen: Vec<_> = messages.iter().map(|message| (message.header.id, message.payload.clone())).collect();
        assert_eq!(seen, [(5, vec![3; 4]), (5, vec![])]);
        drop(theirs);
        assert_eq!(ours.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_of_an_impossible_length_is_refused() {
        let longest = MOST_BYTES as u32;
        for (size, is_fit) in
            [(0, false), (15, false), (16, true), (longest, true), (longest + 1, false), (u32::MAX, false)]
        {
            let (mut theirs, mut ours) = pair();
            theirs.write_all(&bytes(size, 16)).unwrap();
            match ours.receive() {
                Ok(message) => assert!(is_fit && message.is_some() == (size == 16), "{size}"),
                Err(error) => assert!(!is_fit && error.kind() == io::ErrorKind::InvalidData, "{size}"),
            }
        }
    }

    #[test]
    fn more_descriptors_than_a_message_may_have_are_refused() {
        let (theirs, mut ours) = pair();
        let sender = Connection::new(theirs);
        let send = |count: usize| {
            let fds = vec![sender.socket().as_fd(); count];
            sender.send(Header::default(), &[&[1, 2]], &fds)
        };
        send(MOST_DESCRIPTORS).unwrap();
        ours.needed = 18;
        let message = ours.receive().unwrap().unwrap();
        assert_eq!((message.descriptors.len(), message.header.size, &message.payload[..]), (16, 18, &[1, 2][..]));
        assert_eq!(send(2 * MOST_DESCRIPTORS).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // They count together where parts of one message bring them.
        let (mut theirs, mut ours) = pair();
        for n in 0..2 {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let copy = theirs.try_clone().unwrap();
            let fds = vec![copy.as_fd(); MOST_DESCRIPTORS / 2 + n];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let byte = [IoSlice::new(&[0])];
            sendmsg(&theirs, &byte, &mut control, SendFlags::NOSIGNAL).unwrap();
            match ours.receive() {
                Ok(message) => assert!(n == 0 && message.is_none()),
                Err(error) => assert!(n == 1 && error.kind() == io::ErrorKind::InvalidData),
            }
        }
        theirs.flush().unwrap();
    }
}
