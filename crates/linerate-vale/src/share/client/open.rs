//! Opens ports of a server.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use linerate_core::error::{Error, Result};

use super::requests::{Client, accepted, of, sockets, unanswered};
use super::shared_port::SharedPort;
use crate::share::protocol::connection::Connection;
use crate::share::protocol::mapping::SharedMapping;
use crate::share::protocol::message::{MemoryChoice, OpenRequest, Reply, Request};
use crate::share::protocol::socket::{connect_socket, server_of};

impl Client {
    /// Opens a port. The connection becomes its descriptor; closing it closes the port.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    #[doc(hidden)]
    pub fn open(self, wanted: OpenRequest, memory: MemoryChoice) -> Result<(OwnedFd, SharedPort)> {
        let port = self.request(wanted, memory)?;
        Ok((self.into_fd(), port))
    }

    /// Opens a port; [`into_fd`](Client::into_fd) returns its descriptor. The client may try again after an error.
    ///
    /// # Errors
    /// As [`open`](Client::open).
    pub(super) fn request(&self, wanted: OpenRequest, memory: MemoryChoice) -> Result<SharedPort> {
        opened(self.ask(&Request::Open { wanted, memory }, &[])?, true)
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.connection.into_fd()
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.connection.has_ended()
    }
}

/// Opens a port on the program's own descriptor, an `AF_UNIX` socket of type `SOCK_SEQPACKET`, which gets connected to
/// the port's server. Returns `None` if there is no server.
///
/// # Errors
/// As [`Client::find`] and [`Client::open`].
pub fn open_by(
    fd: BorrowedFd<'_>,
    folder: &Path,
    wanted: OpenRequest,
    memory: MemoryChoice,
) -> Result<Option<SharedPort>> {
    if server_of(fd).is_none() {
        let mut is_connected = false;
        for socket in sockets(folder, &wanted.name)? {
            is_connected = is_connected || connect_socket(fd, &socket)?;
        }
        if !is_connected {
            return Ok(None);
        }
    }
    let answer = Connection::new(fd).ask(&Request::Open { wanted, memory }, &[]).map_err(unanswered)?;
    opened(accepted(answer)?, true).map(Some)
}

/// Describes the port of a descriptor that another process opened; `None` if the descriptor is not a port.
///
/// # Errors
/// An error of the server, and those of [`Client::find`].
pub fn adopt(fd: BorrowedFd<'_>) -> Result<Option<SharedPort>> {
    let Some(client) = of(fd)? else { return Ok(None) };
    opened(client.ask(&Request::Adopt, &[fd])?, false).map(Some)
}

fn opened((reply, mut descriptors): (Reply, Vec<OwnedFd>), is_opener: bool) -> Result<SharedPort> {
    let Reply::Opened(opened) = reply else { return Err(Error::bad_peer("its reply does not match the request")) };
    let memory = descriptors.pop().ok_or(Error::bad_peer("a descriptor is missing"))?;
    let memory = SharedMapping::of_peer(memory, opened.buffers)?;
    SharedPort::new(*opened, memory, is_opener)
}
