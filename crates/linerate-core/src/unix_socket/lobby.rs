//! Connections that have not said anything yet: none of them keeps another one waiting.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::MessageHeader;
use crate::event::PEER_TIMEOUT;

/// The most connections that wait here, and that are accepted at once; the oldest makes room for the next.
const MOST: usize = 64;
/// How often a client looks for its server, and how soon descriptors are looked for again when there are none.
pub const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How often a connection with a part of a message is looked at: its socket stays readable.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Accepts connections, and passes on the first one whose first message has arrived whole.
pub struct Lobby {
    listener: UnixListener,
    waiting: Vec<Waiting>,
    first: FirstMessage,
}

type Greet = dyn Fn(&UnixStream) -> io::Result<()> + Send;

/// How a connection of a protocol begins.
pub struct FirstMessage {
    /// Sends what the server says first, if it does.
    pub greet: Box<Greet>,
    /// Returns whether the client's first message is there.
    pub has_message: fn(&UnixStream) -> io::Result<bool>,
}

impl FirstMessage {
    /// A protocol of messages with this header, in which the client speaks first.
    pub fn of_client<H: MessageHeader>() -> FirstMessage {
        FirstMessage { greet: Box::new(|_| Ok(())), has_message: has_message::<H> }
    }

    /// A protocol of packets, in which the server speaks first.
    pub fn packet_after(greet: impl Fn(&UnixStream) -> io::Result<()> + Send + 'static) -> FirstMessage {
        FirstMessage { greet: Box::new(greet), has_message: |socket| arrived(peek(socket, &mut [0])) }
    }

    /// A protocol in which the server speaks first, and decides by the answer.
    pub fn of_server() -> FirstMessage {
        FirstMessage { greet: Box::new(|_| Ok(())), has_message: |_| Ok(true) }
    }
}

/// A connection, since when it is there, and whether a part of its message is.
struct Waiting {
    socket: UnixStream,
    since: Instant,
    has_part: bool,
}

impl Lobby {
    /// `listener` does not block.
    pub fn new(listener: UnixListener, first: FirstMessage) -> Lobby {
        Lobby { listener, waiting: Vec::new(), first }
    }

    /// Returns the listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Closes the connections that wait.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Waits for the next connection with a message; returns `None` once `stop` is readable. The socket does not block.
    pub fn next(&mut self, stop: &impl AsFd) -> Option<UnixStream> {
        loop {
            // Without a free descriptor, clients wait in the kernel's queue.
            let accepts = self.accept();
            if let Some(at) = self.look() {
                return Some(self.waiting.remove(at).socket);
            }
            let mut events = vec![PollFd::new(stop, PollFlags::IN)];
            if accepts {
                events.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let silent = self.waiting.iter().filter(|waiting| !waiting.has_part);
            events.extend(silent.map(|waiting| PollFd::new(&waiting.socket, PollFlags::IN)));
            let pause = match self.waiting.iter().map(|waiting| waiting.since).min() {
                _ if self.waiting.iter().any(|waiting| waiting.has_part) => Some(REST),
                _ if !accepts => Some(AGAIN),
                Some(since) => Timespec::try_from(PEER_TIMEOUT.saturating_sub(since.elapsed())).ok(),
                None => None,
            };
            // A signal is an early look.
            if poll(&mut events, pause.as_ref()).is_ok() && !events[0].revents().is_empty() {
                return None;
            }
        }
    }

    /// Accepts those who wait; returns false without a free descriptor.
    fn accept(&mut self) -> bool {
        for _ in 0..MOST {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            if socket.set_nonblocking(true).is_err() || (self.first.greet)(&socket).is_err() {
                continue; // it is gone
            }
            let has_message = (self.first.has_message)(&socket);
            self.waiting.push(Waiting { socket, since: Instant::now(), has_part: false });
            if matches!(has_message, Ok(true)) {
                return true;
            }
            if self.waiting.len() > MOST {
                tracing::debug!("the oldest of {MOST} silent connections is closed");
                self.waiting.remove(0);
            }
        }
        true
    }

    /// Returns the first connection with a message. Closes those that are gone, or late.
    fn look(&mut self) -> Option<usize> {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get_mut(at) {
            match (self.first.has_message)(&waiting.socket) {
                Ok(true) => return Some(at),
                Ok(false) if waiting.since.elapsed() < PEER_TIMEOUT => {
                    waiting.has_part = peek(&waiting.socket, &mut [0]).is_ok();
                    at += 1;
                }
                late => {
                    if late.is_ok() {
                        tracing::warn!("a connection is closed: no whole message came within {PEER_TIMEOUT:?}");
                    }
                    self.waiting.remove(at);
                }
            }
        }
        None
    }
}

/// Returns whether a stream's first message is there, which the kernel holds whole.
///
/// # Errors
/// The connection has ended.
fn has_message<H: MessageHeader>(socket: &UnixStream) -> io::Result<bool> {
    let mut header = vec![0; size_of::<H>()];
    let peeked = peek(socket, &mut header);
    let is_header = peeked == Ok(header.len());
    if !arrived(peeked)? || !is_header {
        return Ok(false);
    }
    let message = H::read_from_bytes(&header).expect("it has the size").message_len();
    // A length that cannot be is an error of the connection.
    let is_possible = (size_of::<H>()..=H::LONGEST).contains(&message);
    Ok(!is_possible || rustix::io::ioctl_fionread(socket)? >= message as u64)
}

/// Reads the first bytes, which stay there. Returns their number.
fn peek(socket: &UnixStream, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    recv(socket, bytes, RecvFlags::PEEK).map(|(count, _)| count)
}

/// Returns whether bytes were peeked at.
///
/// # Errors
/// The connection has ended.
fn arrived(peeked: rustix::io::Result<usize>) -> io::Result<bool> {
    match peeked {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
