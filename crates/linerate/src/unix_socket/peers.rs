//! The peers of a protocol, one after the other.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrUnix, SocketType};

use super::{SocketFile, connect_as, listen_as};
use crate::error::{Error, Result};

/// How often a client looks for its server, and how soon descriptors are looked for again when there are none.
pub const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where peers come from.
pub enum Peers {
    /// They connect here. The socket is removed at the end.
    Listener { listener: UnixListener, _file: SocketFile },
    /// One listens there, at a socket of this type.
    Server {
        kind: SocketType,
        path: PathBuf,
        /// The user of the first one.
        user: OnceLock<u32>,
    },
}

impl Peers {
    /// Listens at `path`.
    ///
    /// # Errors
    /// [`Error::Serve`](crate::Error::Serve) if the path cannot be used.
    pub fn listen(path: &Path) -> Result<Peers> {
        Peers::listen_as(SocketType::STREAM, path)
    }

    /// As [`listen`](Peers::listen), with a socket of this type.
    ///
    /// # Errors
    /// As [`listen`](Peers::listen).
    pub fn listen_as(kind: SocketType, path: &Path) -> Result<Peers> {
        Ok(Peers::Listener { listener: listen_as(kind, path)?, _file: SocketFile::at(path) })
    }

    /// Connects `port` to `path` whenever a peer is needed. A server that is not there yet is waited for; permissions are not.
    ///
    /// # Errors
    /// [`Error::Card`] if the socket, or its folder, is not for this user, or if no socket can be there.
    pub fn at(port: &str, path: &Path) -> Result<Peers> {
        Peers::at_as(SocketType::STREAM, port, path)
    }

    /// As [`at`](Peers::at), with sockets of this type.
    ///
    /// # Errors
    /// As [`at`](Peers::at).
    pub fn at_as(kind: SocketType, port: &str, path: &Path) -> Result<Peers> {
        let refused = |why: String, mend: &str| {
            let why = format!("{}: {why}", path.display());
            Err(Error::Card { card: port.to_string(), why, mend: mend.into() })
        };
        if let Err(error) = SocketAddrUnix::new(path) {
            return refused(error.to_string(), "choose a path of at most 107 bytes for both sides");
        }
        if let Err(error @ Errno::ACCESS) = accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
            return refused(error.to_string(), "ask the server's owner for access to the socket and its folder");
        }
        if std::fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
            return refused("it is no socket".to_string(), "name the socket at which the other side listens");
        }
        Ok(Peers::Server { kind, path: path.to_path_buf(), user: OnceLock::new() })
    }

    /// Waits a moment before the next connection to a server, unless `stop` is readable: one that accepts and closes does not
    /// keep the thread.
    pub fn pause(&self, stop: &impl AsFd) {
        if let Peers::Server { .. } = self {
            let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&AGAIN));
        }
    }

    /// Returns whether a server may be one after the first: it is of the same user, of root, or of this process's user. Another
    /// user could have taken the place of a socket that was removed, and would get the packets.
    pub fn admits(&self, server: &UnixStream) -> bool {
        let Peers::Server { user, .. } = self else { return true };
        let Ok(peer) = socket_peercred(server) else { return false };
        let (peer, own) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
        let first = *user.get_or_init(|| peer);
        [first, own, 0].contains(&peer)
    }

    /// Waits for the next peer; returns `None` once `stop` is readable. Its socket does not block.
    pub fn next(&self, stop: &impl AsFd) -> Option<UnixStream> {
        let (mut accepts, mut reported) = (true, None);
        loop {
            let mut events = vec![PollFd::new(stop, PollFlags::IN)];
            // Not a last connection that is closed at once: DPDK 22.11, as a server, dies of it (SIGPIPE).
            if poll(&mut events, Some(&NO_TIME)) == Ok(1) {
                return None;
            }
            let found = match self {
                Peers::Listener { .. } => None,
                Peers::Server { kind, path, .. } => {
                    let connected = connect_as(*kind, path);
                    // A server that is not there yet is waited for. Other reasons last until they are mended.
                    let admitted = connected.and_then(|socket| match self.admits(&socket) {
                        true => Ok(socket),
                        false => Err(std::io::Error::new(
                            ErrorKind::PermissionDenied,
                            "another user than before listens there",
                        )),
                    });
                    let failed = admitted.as_ref().err().filter(|error| {
                        let waits = [ErrorKind::NotFound, ErrorKind::ConnectionRefused, ErrorKind::WouldBlock];
                        !waits.contains(&error.kind())
                    });
                    if let Some(error) = failed
                        && reported.replace(error.kind()) != Some(error.kind())
                    {
                        tracing::warn!("{}: {error}; tries again", path.display());
                    }
                    admitted.ok()
                }
            };
            let pause = match self {
                Peers::Listener { listener, .. } if accepts => {
                    events.push(PollFd::new(listener, PollFlags::IN));
                    None
                }
                // A server that always accepts does not keep the thread.
                Peers::Server { .. } if found.is_some() => Some(&NO_TIME),
                _ => Some(&AGAIN),
            };
            if poll(&mut events, pause).is_err() {
                continue; // a signal
            }
            if !events[0].revents().is_empty() {
                return None;
            }
            let socket = match self {
                Peers::Server { .. } => found,
                Peers::Listener { listener, .. } => listener.accept().map(|(socket, _)| socket).ok(),
            };
            // Without a free descriptor, a peer waits.
            accepts = socket.is_some();
            if let Some(socket) = socket.filter(|socket| socket.set_nonblocking(true).is_ok()) {
                return Some(socket);
            }
        }
    }
}
