//! Connections that have not sent a complete message yet. A silent connection does not delay others.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::MessageHeader;
use crate::event::PEER_TIMEOUT;

/// The most connections that wait here, and that are accepted in one turn. If there are more, the oldest is closed.
const MOST: usize = 64;
/// The interval at which a client retries to connect to its server, and a server without free descriptors retries to
/// accept.
pub const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The interval at which connections with an incomplete message are checked. Their sockets stay readable, so poll(2)
/// cannot wait for the rest.
const PARTIAL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Accepts connections, and passes on the first whose first message is complete.
pub struct Lobby {
    listener: UnixListener,
    waiting: Vec<Waiting>,
    first: FirstMessage,
}

type Greet = dyn Fn(&UnixStream) -> io::Result<()> + Send;

/// The start of a protocol's connections.
pub struct FirstMessage {
    /// Sends the server's first message, if the server sends first.
    pub greet: Box<Greet>,
    /// Returns whether the client's first message has arrived.
    pub has_message: fn(&UnixStream) -> io::Result<bool>,
}

impl FirstMessage {
    /// For a protocol of messages with header `H`, in which the client sends first.
    pub fn of_client<H: MessageHeader>() -> FirstMessage {
        FirstMessage { greet: Box::new(|_| Ok(())), has_message: has_message::<H> }
    }

    /// For a protocol of packets, in which the server sends first.
    pub fn packet_after(greet: impl Fn(&UnixStream) -> io::Result<()> + Send + 'static) -> FirstMessage {
        FirstMessage { greet: Box::new(greet), has_message: |socket| arrived(peek(socket, &mut [0])) }
    }

    /// For a protocol in which the server sends first, after the connection has left the lobby.
    pub fn of_server() -> FirstMessage {
        FirstMessage { greet: Box::new(|_| Ok(())), has_message: |_| Ok(true) }
    }
}

/// A connection, when it was accepted, and whether a part of its first message has arrived.
struct Waiting {
    socket: UnixStream,
    since: Instant,
    has_part: bool,
}

impl Lobby {
    /// Creates a lobby. `listener` must be non-blocking.
    pub fn new(listener: UnixListener, first: FirstMessage) -> Lobby {
        Lobby { listener, waiting: Vec::new(), first }
    }

    /// Returns the listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Closes the waiting connections.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Waits for the next connection with a message. Returns `None` once `stop` is readable. The socket is
    /// non-blocking.
    pub fn next(&mut self, stop: &impl AsFd) -> Option<UnixStream> {
        loop {
            // If no descriptor is free, clients wait in the kernel's queue.
            let accepts = self.accept();
            if let Some(at) = self.find_ready() {
                return Some(self.waiting.remove(at).socket);
            }
            let mut events = vec![PollFd::new(stop, PollFlags::IN)];
            if accepts {
                events.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let silent = self.waiting.iter().filter(|waiting| !waiting.has_part);
            events.extend(silent.map(|waiting| PollFd::new(&waiting.socket, PollFlags::IN)));
            let pause = match self.waiting.iter().map(|waiting| waiting.since).min() {
                _ if self.waiting.iter().any(|waiting| waiting.has_part) => Some(PARTIAL_INTERVAL),
                _ if !accepts => Some(RETRY_INTERVAL),
                Some(since) => Timespec::try_from(PEER_TIMEOUT.saturating_sub(since.elapsed())).ok(),
                None => None,
            };
            // If a signal interrupts the poll, the connections are just checked earlier.
            if poll(&mut events, pause.as_ref()).is_ok() && !events[0].revents().is_empty() {
                return None;
            }
        }
    }

    /// Accepts clients; returns false if no descriptor is free.
    fn accept(&mut self) -> bool {
        for _ in 0..MOST {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            if socket.set_nonblocking(true).is_err() || (self.first.greet)(&socket).is_err() {
                continue; // the client has disconnected
            }
            let has_message = (self.first.has_message)(&socket);
            self.waiting.push(Waiting { socket, since: Instant::now(), has_part: false });
            if matches!(has_message, Ok(true)) {
                return true;
            }
            if self.waiting.len() > MOST {
                tracing::debug!("closing the oldest of {MOST} silent connections");
                self.waiting.remove(0);
            }
        }
        true
    }

    /// Returns the first connection with a message. Closes connections that have ended or timed out.
    fn find_ready(&mut self) -> Option<usize> {
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
                        tracing::warn!("closing a connection: no complete message arrived within {PEER_TIMEOUT:?}");
                    }
                    self.waiting.remove(at);
                }
            }
        }
        None
    }
}

/// Returns whether a stream's first message has arrived completely in the kernel's buffer.
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
    // An invalid length counts as a message, which the connection then rejects.
    let is_possible = (size_of::<H>()..=H::LONGEST).contains(&message);
    Ok(!is_possible || rustix::io::ioctl_fionread(socket)? >= message as u64)
}

/// Reads the first bytes without consuming them, and returns their number.
fn peek(socket: &UnixStream, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    recv(socket, bytes, RecvFlags::PEEK).map(|(count, _)| count)
}

/// Returns whether [`peek`] has found bytes.
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
