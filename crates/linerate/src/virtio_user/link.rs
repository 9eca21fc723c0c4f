//! The connection to a back end: requests, one at a time, and their replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::vhost::message::{Connection, Header, Message, flag};

/// The time limit of a reply.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The back end answers.
const ALIVE: u8 = 0;
/// It does not answer in time, or violates the protocol: the connection is ended from this side, but the back end may
/// still use the memory.
const SILENT: u8 = 1;
/// It has closed the connection, as the end of its process does: it uses the memory no more.
const GONE: u8 = 2;

/// A connection to a back end.
pub struct Link {
    connection: Mutex<Connection>,
    patience: Duration,
    state: AtomicU8,
    /// The first failure, for messages.
    failure: OnceLock<String>,
}

impl Link {
    /// Takes over a connection, with a time limit of replies.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn new(socket: UnixStream, patience: Duration) -> io::Result<Link> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        let connection = Mutex::new(Connection::new(socket));
        Ok(Link { connection, patience, state: AtomicU8::new(ALIVE), failure: OnceLock::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the back end answers.
    pub fn is_alive(&self) -> bool {
        self.state.load(Relaxed) == ALIVE
    }

    /// Returns whether the back end has closed the connection.
    pub fn is_gone(&self) -> bool {
        self.state.load(Relaxed) == GONE
    }

    /// Returns the first failure.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Notes a failure, unless there was one before.
    pub fn fail(&self, why: String) {
        let _ = self.failure.set(why);
    }

    /// Sends a request, and returns its reply's payload; `None` if it fails.
    pub fn ask(&self, request: u32, payload: &[u8]) -> Option<Vec<u8>> {
        self.exchange(request, payload, &[], flag::VERSION, true)
    }

    /// Sends a request without a reply of its own. `acknowledged`: the back end replies whether it succeeded. Returns
    /// false if the back end refuses it; `None` if it fails.
    pub fn tell(
        &self,
        request: u32,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        acknowledged: bool,
    ) -> Option<bool> {
        let flags = flag::VERSION | if acknowledged { flag::NEED_REPLY } else { 0 };
        let reply = self.exchange(request, payload, descriptors, flags, acknowledged)?;
        Some(!acknowledged || reply == [0; 8])
    }

    fn exchange(
        &self,
        request: u32,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: u32,
        replies: bool,
    ) -> Option<Vec<u8>> {
        let mut connection = self.lock();
        if !self.is_alive() {
            return None;
        }
        let header = Header { request, flags, size: 0 };
        let sent = connection.send(header, &[payload], descriptors);
        let reply = sent.and_then(|()| if replies { self.reply(&mut connection, request) } else { Ok(Vec::new()) });
        reply.inspect_err(|error| self.end(&connection, request, error)).ok()
    }

    /// Receives the reply to a request.
    fn reply(&self, connection: &mut Connection, request: u32) -> io::Result<Vec<u8>> {
        let begin = Instant::now();
        let message = loop {
            match connection.receive() {
                Ok(Some(message)) => break message,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            // Each part of a message in time is not enough.
            if begin.elapsed() >= self.patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
        };
        let Message { header, payload, descriptors } = message;
        let is_reply = header.flags & (flag::VERSION | flag::REPLY) == flag::VERSION | flag::REPLY;
        if header.request != request || !is_reply || !descriptors.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply does not match the request"));
        }
        Ok(payload)
    }

    /// Ends the connection after an error.
    fn end(&self, connection: &Connection, request: u32, error: &io::Error) {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        let (state, why) = match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => (GONE, "the back end closed the connection".to_string()),
            WouldBlock | TimedOut => {
                (SILENT, format!("the back end does not answer within {} s", self.patience.as_secs()))
            }
            _ => (SILENT, format!("the back end violates the protocol: {error}")),
        };
        self.fail(format!("{why} (request {request} of vhost-user)"));
        self.state.store(state, Relaxed);
        // Not the other direction: it shows when the back end has closed the connection, too.
        let _ = shutdown(connection.socket(), Shutdown::Write);
    }

    /// Looks at a socket that has something to read: back ends send nothing unasked. Call it when poll(2) says so.
    pub fn look(&self) {
        let connection = self.lock();
        match recv(connection.socket(), &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.state.store(GONE, Relaxed),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.state.store(GONE, Relaxed),
            Ok(_) if self.is_alive() => {
                let error = io::Error::new(io::ErrorKind::InvalidData, "a message that is no reply");
                self.end(&connection, 0, &error);
            }
            Ok(_) => {}
        }
    }

    /// Returns the socket, to wait for its end.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.lock().socket().try_clone()
    }

    /// Notes that the peer has hung up.
    pub fn hung_up(&self) {
        self.state.store(GONE, Relaxed);
    }
}

/// Shuts the socket down. A child that another thread has just forked holds the socket, too, until it calls exec; the
/// back end sees the end at once all the same.
impl Drop for Link {
    fn drop(&mut self) {
        let _ = shutdown(self.lock().socket().as_fd(), Shutdown::Both);
    }
}
