//! Connections to the peers of a protocol, one after the other.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrUnix, SocketType};

use super::{FirstMessage, Lobby, RETRY_INTERVAL, SocketFile, connect_as, listen_as};
use crate::error::{Error, Result};

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The source of connections to peers.
pub enum Peers {
    /// This process listens, and peers connect.
    Listener {
        /// Connections that have not sent a complete message yet.
        lobby: RefCell<Lobby>,
        /// Removes the socket when dropped.
        _file: SocketFile,
    },
    /// A peer listens, and this process connects.
    Server {
        /// The socket's type.
        kind: SocketType,
        /// The socket's path.
        path: PathBuf,
        /// The user of the first server.
        user: OnceLock<u32>,
    },
}

impl Peers {
    /// Listens at `path` for peers whose connections start with `first`.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](crate::ErrorKind::Unusable) if the path cannot be used.
    pub fn listen(path: &Path, first: FirstMessage) -> Result<Peers> {
        Peers::listen_as(SocketType::STREAM, path, first)
    }

    /// As [`listen`](Peers::listen), with a socket of this type.
    ///
    /// # Errors
    /// As [`listen`](Peers::listen).
    pub fn listen_as(kind: SocketType, path: &Path, first: FirstMessage) -> Result<Peers> {
        let lobby = RefCell::new(Lobby::new(listen_as(kind, path)?, first));
        Ok(Peers::Listener { lobby, _file: SocketFile::at(path) })
    }

    /// Connects `port` to `path` whenever a peer is needed. Waits for a server that does not listen yet, but not for
    /// missing permissions.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](crate::ErrorKind::Unusable) if this user may not access the socket or its folder, or if
    /// no socket can be at the path.
    pub fn connect_to(port: &str, path: &Path) -> Result<Peers> {
        Peers::connect_to_as(SocketType::STREAM, port, path)
    }

    /// As [`connect_to`](Peers::connect_to), with sockets of this type.
    ///
    /// # Errors
    /// As [`connect_to`](Peers::connect_to).
    pub fn connect_to_as(kind: SocketType, port: &str, path: &Path) -> Result<Peers> {
        let refused = |why: String, mend: &'static str| {
            let why = format!("{}: {why}", path.display());
            Err(Error::card(port, why, mend))
        };
        if let Err(error) = SocketAddrUnix::new(path) {
            return refused(error.to_string(), "choose a path of at most 107 bytes for both sides");
        }
        if let Err(error @ Errno::ACCESS) = accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            return refused(error.to_string(), "ask the server's owner for access to the socket and its folder");
        }
        if std::fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
            return refused("it is not a socket".to_string(), "name the socket at which the other side listens");
        }
        Ok(Peers::Server { kind, path: path.to_path_buf(), user: OnceLock::new() })
    }

    /// Pauses before the next connection to a server, unless `stop` is readable. So a server that accepts and closes
    /// connections does not occupy the thread.
    pub fn pause(&self, stop: &impl AsFd) {
        if let Peers::Server { .. } = self {
            let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&RETRY_INTERVAL));
        }
    }

    /// Returns whether a server belongs to the same user as the first server, to root, or to this process's user.
    /// Another user could have replaced a socket that was removed, and would receive the packets.
    pub fn is_trusted(&self, server: &UnixStream) -> bool {
        let Peers::Server { user, .. } = self else { return true };
        let Ok(peer) = socket_peercred(server) else { return false };
        let (peer, own) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
        let first = *user.get_or_init(|| peer);
        [first, own, 0].contains(&peer)
    }

    /// Waits for the next peer. Returns `None` once `stop` is readable. The socket is non-blocking.
    pub fn next(&self, stop: &impl AsFd) -> Option<UnixStream> {
        match self {
            Peers::Listener { lobby, .. } => lobby.borrow_mut().next(stop),
            Peers::Server { kind, path, .. } => self.connect(*kind, path, stop),
        }
    }

    /// Connects as soon as a server listens.
    fn connect(&self, kind: SocketType, path: &Path, stop: &impl AsFd) -> Option<UnixStream> {
        let mut reported = None;
        loop {
            let mut events = [PollFd::new(stop, PollFlags::IN)];
            // Check first, to avoid a last connection that is closed immediately: it kills DPDK 22.11 as a server
            // (SIGPIPE).
            if poll(&mut events, Some(&NO_TIME)) == Ok(1) {
                return None;
            }
            let connected = connect_as(kind, path).and_then(|socket| match self.is_trusted(&socket) {
                true => socket.set_nonblocking(true).map(|()| socket),
                false => Err(std::io::Error::new(
                    ErrorKind::PermissionDenied,
                    "the server there now belongs to another user",
                )),
            });
            // It is normal that the server does not listen yet. Warn about other errors, which last until they are
            // fixed.
            let failed = connected.as_ref().err().filter(|error| {
                let waits = [ErrorKind::NotFound, ErrorKind::ConnectionRefused, ErrorKind::WouldBlock];
                !waits.contains(&error.kind())
            });
            if let Some(error) = failed
                && reported.replace(error.kind()) != Some(error.kind())
            {
                tracing::warn!("{}: {error}; retrying", path.display());
            }
            // Check `stop` also if the server always accepts.
            let pause = if connected.is_ok() { &NO_TIME } else { &RETRY_INTERVAL };
            if poll(&mut events, Some(pause)) == Ok(1) {
                return None;
            }
            if let Ok(socket) = connected {
                return Some(socket);
            }
        }
    }
}
