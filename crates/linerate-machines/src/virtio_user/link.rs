//! The connection to a back end: requests, one at a time, and their replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::vhost::message::{Connection, Header, Message, Request, flag};

/// The waiting time for a reply after which a warning is logged.
const NOTICED: Duration = Duration::from_secs(1);

/// The remedy for a failure of unknown cause.
const USUAL_REMEDY: &str =
    "a socket at which a vhost-user back end for a network card listens, and no other front end is connected";

/// The back end is responsive.
const ALIVE: u8 = 0;
/// The back end did not answer in time, or violated the protocol. This side has ended the connection, but the back end
/// may still use the memory.
const SILENT: u8 = 1;
/// The back end has closed the connection, or its process has ended. The back end no longer uses the memory.
const GONE: u8 = 2;

/// A connection to a back end.
pub struct Link {
    channel: Mutex<Channel>,
    patience: Duration,
    state: AtomicU8,
    /// The first failure, for messages, and its remedy.
    failure: OnceLock<(String, &'static str)>,
}

struct Channel {
    connection: Connection,
    /// The time left for replies; it grows again while no request is pending.
    left: Duration,
    since: Instant,
}

impl Link {
    /// Wraps a connection, with a time limit for replies.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn new(socket: UnixStream, patience: Duration) -> io::Result<Link> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(patience))?;
        let channel = Channel { connection: Connection::new(socket), left: patience, since: Instant::now() };
        Ok(Link { channel: Mutex::new(channel), patience, state: AtomicU8::new(ALIVE), failure: OnceLock::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.failure.get().map(|(why, _)| &**why)
    }

    /// Returns the remedy for the failure.
    pub fn remedy(&self) -> &'static str {
        self.failure.get().map_or(USUAL_REMEDY, |(_, mend)| mend)
    }

    /// Records a failure, unless there was one before.
    pub fn fail(&self, why: String) {
        self.fail_with(why, USUAL_REMEDY);
    }

    /// Like [`fail`](Link::fail), with a remedy.
    pub fn fail_with(&self, why: String, mend: &'static str) {
        let _ = self.failure.set((why, mend));
    }

    /// Sends a request, and returns its reply's payload; `None` if the connection fails.
    pub fn query(&self, request: Request, payload: &[u8]) -> Option<Vec<u8>> {
        self.exchange(request, payload, &[], flag::VERSION, true)
    }

    /// Sends a request that has no specific reply. With `acknowledged`, the back end confirms success. Returns false if
    /// the back end refuses the request; `None` if the connection fails.
    pub fn send_request(
        &self,
        request: Request,
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
        request: Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: u32,
        replies: bool,
    ) -> Option<Vec<u8>> {
        let mut channel = self.lock();
        if !self.is_alive() {
            return None;
        }
        let header = Header { request: request.into(), flags, size: 0 };
        let begin = Instant::now();
        channel.left = (channel.left + (begin - channel.since)).min(self.patience);
        let sent = channel.connection.send(header, &[payload], descriptors);
        let patience = channel.left;
        let connection = &mut channel.connection;
        let reply = sent.and_then(|()| if replies { reply(connection, request, patience) } else { Ok(Vec::new()) });
        if let Err(error) = &reply {
            self.end(connection, Some(request), error);
        }
        (channel.left, channel.since) = (patience.saturating_sub(begin.elapsed()), Instant::now());
        reply.ok()
    }

    /// Ends the connection after an error.
    fn end(&self, connection: &Connection, request: Option<Request>, error: &io::Error) {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        let (state, why) = match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => (GONE, "the back end closed the connection".to_string()),
            WouldBlock | TimedOut => {
                (SILENT, format!("the back end does not answer within {} s", self.patience.as_secs()))
            }
            _ => (SILENT, format!("the back end violates the protocol: {error}")),
        };
        self.fail(match request {
            Some(request) => format!("{why} (request {request:?} of vhost-user)"),
            None => why,
        });
        self.state.store(state, Relaxed);
        // Shut down only this direction: the other direction shows when the back end has closed the connection, too.
        let _ = shutdown(connection.socket(), Shutdown::Write);
    }

    /// Reads the state of a socket that poll(2) reports as readable; back ends send no unrequested messages.
    pub fn check_socket(&self) {
        let channel = self.lock();
        match recv(channel.connection.socket(), &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.state.store(GONE, Relaxed),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.state.store(GONE, Relaxed),
            Ok(_) if self.is_alive() => {
                let error = io::Error::new(io::ErrorKind::InvalidData, "a message that is not a reply");
                self.end(&channel.connection, None, &error);
            }
            Ok(_) => {}
        }
    }

    /// Returns the socket, to wait for its end.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.lock().connection.socket().try_clone()
    }

    /// Records that the peer has hung up.
    pub fn hung_up(&self) {
        self.state.store(GONE, Relaxed);
    }
}

/// Receives the reply to a request.
fn reply(connection: &mut Connection, request: Request, patience: Duration) -> io::Result<Vec<u8>> {
    let begin = Instant::now();
    let mut is_noticed = patience <= NOTICED;
    let message = loop {
        let left = if is_noticed { patience.saturating_sub(begin.elapsed()) } else { NOTICED };
        // A timeout of 0 would mean no limit.
        connection.socket().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match connection.receive() {
            Ok(Some(message)) => break message,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_noticed => {
                let (seconds, most) = (NOTICED.as_secs(), patience.as_secs());
                tracing::warn!(
                    "the back end has not answered request {request:?} of vhost-user for {seconds} s; it has {most} s"
                );
                is_noticed = true;
            }
            Err(error) => return Err(error),
        }
        // The limit is for the complete message, not for each part.
        if begin.elapsed() >= patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
    };
    let Message { header, payload, descriptors } = message;
    let is_reply = header.flags & (flag::VERSION_BITS | flag::REPLY) == flag::VERSION | flag::REPLY;
    if header.request != u32::from(request) || !is_reply || !descriptors.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply does not match the request"));
    }
    Ok(payload)
}

/// Shuts the socket down. A process just forked by another thread also holds the socket until it calls exec; with the
/// shutdown, the back end sees the end immediately.
impl Drop for Link {
    fn drop(&mut self) {
        let _ = shutdown(self.lock().connection.socket().as_fd(), Shutdown::Both);
    }
}
