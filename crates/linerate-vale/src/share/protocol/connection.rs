//! The connection between a client and the server of its ports: a socket (`SOCK_SEQPACKET`, unix(7)). It carries
//! requests and replies, each a JSON message with optional file descriptors. It also carries **tokens**: messages of
//! one byte, whose only purpose is to wake the other side. A side that is about to sleep sets a flag in the shared ring
//! (`ring`), and the other side sends a token when it sees the flag.
//!
//! The client's end of the connection is its descriptor of a port. The kernel tracks its state: it is readable while a
//! token is pending or after the server is gone. The server is notified when the last process closes it.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use linerate_core::event::PEER_TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message from a client.
pub enum Message {
    /// A token: the client wakes the server, so that the server checks the client's rings.
    Token,
    /// A message that the server sent itself through a descriptor, to identify the descriptor's session.
    Proof([u8; 16]),
    /// Any other message, and the descriptors it carries.
    Request(Vec<u8>, Vec<OwnedFd>),
}

/// The longest message in bytes.
const LONGEST: usize = 128 << 10;
/// The most descriptors per message.
const DESCRIPTORS: usize = 4;

/// One end of a connection: an owned socket, or a borrowed client's descriptor.
pub struct Connection<S = OwnedFd> {
    socket: S,
}

/// The content of a token, the message that only wakes the other side.
const TOKEN: &[u8] = &[1];
/// The prefix of a proof.
const PROOF: &[u8] = b"linerate-proof:";

thread_local! {
    /// The buffer in which this thread receives messages.
    static BYTES: RefCell<Vec<u8>> = RefCell::new(vec![0; LONGEST]);
}

impl<S: AsFd> Connection<S> {
    pub fn new(socket: S) -> Connection<S> {
        Connection { socket }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As sendmsg(2).
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends a token. Sends nothing if the socket is full, because unread tokens also wake the other side.
    pub fn notify(&self) {
        let _ = rustix::net::send(&self.socket, TOKEN, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sends a proof.
    ///
    /// # Errors
    /// `WouldBlock` if the proof does not fit, and other errors of send(2).
    pub fn send_proof(&self, proof: [u8; 16]) -> io::Result<()> {
        rustix::net::send(&self.socket, &[PROOF, &proof].concat(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the next message, without a time limit.
    ///
    /// # Errors
    /// As [`next`](Connection::next).
    pub fn wait(&self) -> io::Result<Message> {
        self.receive(RecvFlags::empty())
    }

    /// Reads the next message, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no message, `UnexpectedEof` if the other end is closed, and errors of recvmsg(2).
    pub fn next(&self) -> io::Result<Message> {
        self.receive(RecvFlags::DONTWAIT)
    }

    fn receive(&self, flags: RecvFlags) -> io::Result<Message> {
        BYTES.with_borrow_mut(|bytes| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let part = &mut [IoSliceMut::new(bytes)];
            let received = recvmsg(&self.socket, part, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    descriptors.extend(more);
                }
            }
            let bytes = &bytes[..received.bytes];
            match (bytes, bytes.strip_prefix(PROOF).and_then(|proof| proof.try_into().ok())) {
                ([], _) => Err(io::ErrorKind::UnexpectedEof.into()),
                (TOKEN, _) => Ok(Message::Token),
                (_, Some(proof)) => Ok(Message::Proof(proof)),
                _ => Ok(Message::Request(bytes.to_vec(), descriptors)),
            }
        })
    }

    /// Reads all pending tokens, at most 64, because a server could send tokens forever.
    pub fn read_tokens(&self) {
        for _ in 0..64 {
            match rustix::net::recv(&self.socket, &mut [0; 8][..], RecvFlags::DONTWAIT) {
                Ok((_, count)) if count > 0 => {}
                _ => break,
            }
        }
    }

    /// Sends a request and waits for the reply; each takes at most [`PEER_TIMEOUT`].
    ///
    /// # Errors
    /// `TimedOut`, `InvalidData` if the reply is malformed, and the errors of [`send`](Connection::send) and
    /// [`next`](Connection::next).
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        self.wait_for(PollFlags::OUT)?;
        let sent = self.send(request, descriptors);
        // A server that refuses a connection may have sent its reply before it got the request.
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
            sent?;
        }
        match self.reply() {
            // The server closed the connection without reading the request. A reply that it sent earlier can still be
            // read.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.reply(),
            answer => answer,
        }
    }

    /// Waits for a reply, skipping tokens.
    pub fn reply<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        loop {
            self.wait_for(PollFlags::IN)?;
            if let Message::Request(bytes, descriptors) = self.next()? {
                return Ok((serde_json::from_slice(&bytes)?, descriptors));
            }
        }
    }

    fn wait_for(&self, events: PollFlags) -> io::Result<()> {
        let until = Instant::now() + PEER_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(&self.socket, events)], Some(&timeout)) {
                Ok(0) => {
                    let why = format!("it has not answered for {} s: is it stopped?", PEER_TIMEOUT.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns whether the other end is closed, or has shut down sending.
    pub fn has_ended(&self) -> bool {
        self.is_there(PollFlags::RDHUP)
    }

    /// Returns whether one of the events is pending, without waiting.
    fn is_there(&self, events: PollFlags) -> bool {
        poll(&mut [PollFd::new(&self.socket, events)], Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl Connection {
    /// Creates two connected ends in this process.
    ///
    /// # Errors
    /// As socketpair(2).
    #[cfg(any(test, fuzzing))]
    pub fn pair() -> io::Result<[Connection; 2]> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok([Connection { socket: a }, Connection { socket: b }])
    }

    /// Returns the socket.
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Shuts down the connection in both directions.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Shuts down sending; messages from the other side can still be received.
    pub fn end_sending(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Returns the user ID and process ID of the other end.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn peer(&self) -> io::Result<(u32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket)?;
        Ok((peer.uid.as_raw(), peer.pid.as_raw_nonzero().get().cast_unsigned()))
    }

    /// Returns whether the other end is closed or has sent a message.
    #[cfg(test)]
    pub fn has_news(&self) -> bool {
        self.is_there(PollFlags::IN)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns whether a token arrived since the last call.
    pub fn was_notified(connection: &Connection) -> bool {
        let is_notified = connection.has_news();
        connection.read_tokens();
        is_notified
    }

    #[test]
    fn messages_and_the_end_of_a_connection_are_reported() {
        let [ours, theirs] = Connection::pair().unwrap();
        assert!(!ours.has_news() && !ours.has_ended());
        theirs.send(&1, &[]).unwrap();
        assert!(ours.has_news() && !ours.has_ended());
        let (one, _) = ours.reply::<u32>().unwrap();
        assert_eq!(one, 1);
        assert!(!ours.has_news());
        theirs.end();
        assert!(ours.has_news() && ours.has_ended());
        assert_eq!(ours.reply::<u32>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn more_descriptors_than_a_message_takes_are_not_sent() {
        let [ours, theirs] = Connection::pair().unwrap();
        ours.send(&1, &[theirs.as_fd(); DESCRIPTORS]).unwrap();
        assert_eq!(theirs.reply::<u32>().unwrap().1.len(), DESCRIPTORS);
        let error = ours.send(&1, &[theirs.as_fd(); 2 * DESCRIPTORS]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// A reply that a server sent before it closed the connection is read, and no further reply is awaited.
    #[test]
    fn a_reply_sent_before_the_end_is_read() {
        let [ours, theirs] = Connection::pair().unwrap();
        theirs.send(&"no", &[]).unwrap();
        drop(theirs);
        assert_eq!(ours.ask::<String>(&1, &[]).unwrap().0, "no");
        assert!(ours.ask::<String>(&1, &[]).is_err());
        // An unread request makes the kernel reset the connection, before or after the client reads the reply.
        for _ in 0..100 {
            let [ours, theirs] = Connection::pair().unwrap();
            let server = std::thread::spawn(move || {
                theirs.wait_for(PollFlags::IN).unwrap();
                theirs.send(&"no", &[]).unwrap();
            });
            assert_eq!(ours.ask::<String>(&1, &[]).unwrap().0, "no");
            server.join().unwrap();
        }
    }

    #[test]
    fn many_tokens_are_read_and_are_no_replies() {
        let [ours, theirs] = Connection::pair().unwrap();
        assert!(!was_notified(&ours));
        // Sending does not wait until the other side reads.
        (0..10_000).for_each(|_| theirs.notify());
        while ours.has_news() {
            ours.read_tokens();
        }
        theirs.notify();
        theirs.send(&7, &[]).unwrap();
        theirs.notify();
        assert_eq!(ours.reply::<u32>().unwrap().0, 7);
        assert!(was_notified(&ours) && !was_notified(&ours));
        theirs.notify();
        assert!(matches!(ours.next(), Ok(Message::Token)));
        assert_eq!(ours.next().map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        theirs.notify();
    }

    #[test]
    fn a_proof_arrives_at_the_descriptor_s_other_end() {
        let [ours, theirs] = Connection::pair().unwrap();
        theirs.send_proof([7; 16]).unwrap();
        assert!(matches!(ours.next(), Ok(Message::Proof(proof)) if proof == [7; 16]));
        // A message of another length is not a proof.
        theirs.send(&"linerate-proof:", &[]).unwrap();
        assert!(matches!(ours.next(), Ok(Message::Request(..))));
    }
}
