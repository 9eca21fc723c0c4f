//! The peers of a protocol, one after the other.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::listen;
use crate::error::Result;

/// How often a client looks for its server, and how soon descriptors are looked for again when there are none.
pub const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where peers come from.
pub enum Peers {
    /// They connect here.
    Listener(UnixListener),
    /// They listen there.
    Server(PathBuf),
}

impl Peers {
    /// Listens at `path`.
    ///
    /// # Errors
    /// [`Error::Serve`](crate::Error::Serve) if the path cannot be used.
    pub fn listen(path: &Path) -> Result<Peers> {
        listen(path).map(Peers::Listener)
    }

    /// Connects to `path` whenever a peer is needed.
    pub fn at(path: &Path) -> Peers {
        Peers::Server(path.to_path_buf())
    }

    /// Waits for the next peer; returns `None` once `stop` is readable. Its socket does not block.
    pub fn next(&self, stop: &impl AsFd) -> Option<UnixStream> {
        let mut accepts = true;
        loop {
            let mut events = vec![PollFd::new(stop, PollFlags::IN)];
            let found = match self {
                Peers::Listener(_) => None,
                Peers::Server(path) => connect(path).ok(),
            };
            let pause = match self {
                Peers::Listener(listener) if accepts => {
                    events.push(PollFd::new(listener, PollFlags::IN));
                    None
                }
                // A server that always accepts does not keep the thread.
                Peers::Server(_) if found.is_some() => Some(&NO_TIME),
                _ => Some(&AGAIN),
            };
            if poll(&mut events, pause).is_err() {
                continue; // a signal
            }
            if !events[0].revents().is_empty() {
                return None;
            }
            let socket = match self {
                Peers::Server(_) => found,
                Peers::Listener(listener) => listener.accept().map(|(socket, _)| socket).ok(),
            };
            // Without a free descriptor, a peer waits.
            accepts = socket.is_some();
            if let Some(socket) = socket.filter(|socket| socket.set_nonblocking(true).is_ok()) {
                return Some(socket);
            }
        }
    }
}

/// Connects to the server that listens at `path`, without waiting for one that has too many clients already. The socket
/// does not block.
///
/// # Errors
/// Errors of connect(2).
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
