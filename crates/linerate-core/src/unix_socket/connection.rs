//! Messages with a header, a payload and file descriptors, as in vfio-user and vhost-user.

use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most descriptors per message; QEMU has the same limit.
pub const MOST_DESCRIPTORS: usize = 16;

/// The header of a protocol's messages.
pub trait MessageHeader: FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The maximum length of an accepted message in bytes, including its header.
    const LONGEST: usize;

    /// Returns the length of the message in bytes, including its header.
    fn message_len(&self) -> usize;

    /// Sets the length of the message.
    fn set_message_len(&mut self, len: usize);
}

/// A received message.
#[derive(Debug, Default)]
pub struct Message<H> {
    /// The header.
    pub header: H,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// The descriptors that were passed with the message.
    pub descriptors: Vec<OwnedFd>,
}

impl<H> Message<H> {
    /// Returns the beginning of the payload as `T`, and the rest; `None` if the payload is too short.
    pub fn parse<T: FromBytes + KnownLayout + Immutable>(&self) -> Option<(T, &[u8])> {
        T::read_from_prefix(&self.payload).ok()
    }
}

/// One end of a connection.
pub struct Connection<H> {
    socket: UnixStream,
    /// The received part of the next message, and the length that is needed to continue.
    bytes: Vec<u8>,
    needed: usize,
    descriptors: Vec<OwnedFd>,
    header: PhantomData<H>,
}

impl<H: MessageHeader> Connection<H> {
    /// Creates a connection over this socket.
    pub fn new(socket: UnixStream) -> Connection<H> {
        Connection { socket, bytes: Vec::new(), needed: size_of::<H>(), descriptors: Vec::new(), header: PhantomData }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Receives the bytes that have arrived. Returns `None` if the message is not complete; on a blocking socket, call
    /// again.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer has disconnected; `InvalidData` if the message is malformed, after which the
    /// connection cannot be parsed any further; `WouldBlock` and other errors of recvmsg(2).
    pub fn receive(&mut self) -> io::Result<Option<Message<H>>> {
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
        let (header, payload) = H::read_from_prefix(&self.bytes).expect("at least a header was needed");
        let size = header.message_len();
        if !(size_of::<H>()..=H::LONGEST).contains(&size) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {size} bytes")));
        }
        if self.bytes.len() < size {
            self.needed = size;
            return Ok(None);
        }
        let message = Message { header, payload: payload.to_vec(), descriptors: std::mem::take(&mut self.descriptors) };
        self.bytes.clear();
        self.needed = size_of::<H>();
        Ok(Some(message))
    }

    /// Sends a message with descriptors: `header`, in which the length is set, then `parts`.
    ///
    /// # Errors
    /// Errors of sendmsg(2); after a partial send the connection is unusable.
    pub fn send(&self, mut header: H, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let size = size_of::<H>() + parts.iter().map(|part| part.len()).sum::<usize>();
        header.set_message_len(size);
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

    /// A header like vfio-user's.
    #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Header {
        id: u16,
        command: u16,
        size: u32,
        flags: u64,
    }

    const MOST_BYTES: usize = 4128;

    impl MessageHeader for Header {
        const LONGEST: usize = MOST_BYTES;

        fn message_len(&self) -> usize {
            self.size as usize
        }

        fn set_message_len(&mut self, len: usize) {
            self.size = len as u32;
        }
    }

    fn pair() -> (UnixStream, Connection<Header>) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (theirs, Connection::new(ours))
    }

    fn bytes(size: u32, len: usize) -> Vec<u8> {
        let header = Header { id: 5, command: 9, size, ..Header::default() };
        [header.as_bytes(), &vec![3; len.saturating_sub(size_of::<Header>())]].concat()
    }

    #[test]
    fn messages_arrive_in_any_parts() {
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
    fn a_message_of_invalid_length_is_refused() {
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
    fn too_many_descriptors_are_refused() {
        let (theirs, mut ours) = pair();
        let sender = Connection::<Header>::new(theirs);
        let send = |count: usize| {
            let fds = vec![sender.socket().as_fd(); count];
            sender.send(Header::default(), &[&[1, 2]], &fds)
        };
        send(MOST_DESCRIPTORS).unwrap();
        ours.needed = 18;
        let message = ours.receive().unwrap().unwrap();
        assert_eq!((message.descriptors.len(), message.header.size, &message.payload[..]), (16, 18, &[1, 2][..]));
        assert_eq!(send(2 * MOST_DESCRIPTORS).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // Descriptors in several parts of one message count together.
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
