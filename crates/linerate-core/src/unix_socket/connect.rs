//! Connecting to a socket that another process listens at.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Connects to the server that listens at `path`. Does not wait if the server's queue of clients is full. The socket is
/// non-blocking.
///
/// # Errors
/// Errors of connect(2).
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    connect_as(SocketType::STREAM, path)
}

/// As [`connect`], for a socket of this type.
///
/// # Errors
/// Errors of connect(2); `EPROTOTYPE` if the server's socket is of another type.
pub fn connect_as(kind: SocketType, path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
