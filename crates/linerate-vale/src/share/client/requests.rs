//! Requests to a server: information about ports, and management of switches.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use linerate_core::error::{Error, Result};

use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::{Plan, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::Buffers;
use crate::share::protocol::message::{PortState, Reply, Request};
use crate::share::protocol::name::socket_of;
use crate::share::protocol::ring::RingAt;
use crate::share::protocol::socket::{ANY, connect_to, own_socket_in, server_of};

/// Returns the sockets to try for a port of this name: that of its switch or interface, that of all names, and that of
/// the server that netmap programs start.
pub(super) fn sockets(folder: &Path, name: &str) -> Result<[PathBuf; 3]> {
    Ok([socket_of(folder, name)?, folder.join(ANY), own_socket_in(folder)?])
}

/// A client of the port server: opens ports, manages switches.
pub struct Client {
    pub(super) connection: Connection,
    /// Held by a thread while it waits for a reply.
    asking: Mutex<()>,
}

pub(super) fn unanswered(error: std::io::Error) -> Error {
    Error::system("asking the server of the port", error)
}

pub(super) fn accepted(answer: (Reply, Vec<OwnedFd>)) -> Result<(Reply, Vec<OwnedFd>)> {
    match answer {
        (Reply::Refused(error), _) => Err(error),
        answer => Ok(answer),
    }
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        Client { connection: Connection::new(socket), asking: Mutex::default() }
    }

    /// Connects to the server for ports of this name; `None` if there is no server.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the server does not admit this user, does not
    /// answer, or belongs to a user other than root and this one.
    pub fn find(folder: &Path, name: &str) -> Result<Option<Client>> {
        for socket in sockets(folder, name)? {
            if let Some(socket) = connect_to(&socket)? {
                return Ok(Some(Client::new(socket)));
            }
        }
        Ok(None)
    }

    /// Connects to all servers in a folder. A folder that does not exist has no servers.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the folder or one of its servers does not admit
    /// this user.
    pub fn all(folder: &Path) -> Result<Vec<Client>> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                let mend = "name the folder of your own server, LINERATE_PORTS=PATH, or run this as the server's user";
                return Err(Error::socket(folder, format!("it cannot be read: {error}"), mend));
            }
        };
        let mut clients = Vec::new();
        for entry in entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            clients.extend(connect_to(&entry.path())?.map(Client::new));
        }
        Ok(clients)
    }

    /// Lists the ports of these clients' servers. Each port is listed once, although a server may have several sockets.
    ///
    /// # Errors
    /// As [`list`](Client::list).
    pub fn list_all(clients: &[Client]) -> Result<Vec<PortState>> {
        let (mut ports, mut names) = (Vec::new(), HashSet::new());
        for client in clients {
            ports.extend(client.list()?.into_iter().filter(|port| names.insert(port.name.clone())));
        }
        Ok(ports)
    }

    /// Returns the names of all ports that are served in a folder. Servers that do not answer are skipped.
    pub fn names(folder: &Path) -> BTreeSet<String> {
        let clients = Client::all(folder).unwrap_or_default();
        clients.iter().flat_map(|client| client.list().unwrap_or_default()).map(|port| port.name).collect()
    }

    pub(super) fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>)> {
        let _asking = lock(&self.asking);
        let answer = self.connection.ask(request, descriptors).map_err(|error| {
            // A late reply would be mistaken for the reply to the next request.
            self.connection.end();
            unanswered(error)
        })?;
        accepted(answer)
    }

    fn done(&self, request: &Request) -> Result<u32> {
        match self.ask(request, &[])?.0 {
            Reply::Done { number } => Ok(number),
            _ => Err(Error::bad_peer("its reply does not match the request")),
        }
    }

    /// Returns the number of a port's rings.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn info(&self, name: &str) -> Result<RingCounts> {
        match self.ask(&Request::Info { name: name.to_string() }, &[])?.0 {
            Reply::Info { rings } => Ok(rings),
            _ => Err(Error::bad_peer("its reply does not match the request")),
        }
    }

    /// Returns the length of the virtio-net header in front of a port's packets; with `set`, sets it first.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        self.done(&Request::Header { name: name.to_string(), set })
    }

    /// Attaches a port of this machine to a switch; with `host`, also its host stack. Returns the new port's number.
    /// `switch` names a switch, or the new port on it (`vale0:vm1`).
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn attach(&self, switch: &str, port: &str, host: bool, rings: RingCounts) -> Result<u32> {
        self.done(&Request::Attach { switch: switch.to_string(), port: port.to_string(), host, rings })
    }

    /// Detaches a port from a switch; returns its number.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn detach(&self, switch: &str, port: &str) -> Result<u32> {
        self.done(&Request::Detach { switch: switch.to_string(), port: port.to_string() })
    }

    /// Creates a persistent port, which exists without a client.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn create(&self, name: &str, rings: RingCounts) -> Result<()> {
        self.done(&Request::Create { name: name.to_string(), rings }).map(drop)
    }

    /// Removes a persistent port.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.done(&Request::Destroy { name: name.to_string() }).map(drop)
    }

    /// Lists all ports of the server.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    pub fn list(&self) -> Result<Vec<PortState>> {
        match self.ask(&Request::List, &[])?.0 {
            Reply::List(list) => Ok(list),
            _ => Err(Error::bad_peer("its reply does not match the request")),
        }
    }

    /// Describes the memory with this number; 0 is the memory of the process that `process` identifies
    /// (`MemoryChoice::process`). Returns the memory's number and plan.
    ///
    /// # Errors
    /// The server's reason for refusing the request.
    #[doc(hidden)]
    pub fn pools(&self, number: u16, process: u64) -> Result<(u16, Plan)> {
        match self.ask(&Request::Pools { number, process }, &[])?.0 {
            Reply::Pools { number, plan } => Ok((number, plan)),
            _ => Err(Error::bad_peer("its reply does not match the request")),
        }
    }
}

/// Returns the memory of a descriptor's port.
///
/// # Errors
/// As [`adopt`](super::open::adopt).
pub fn memory_of(fd: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let Some(client) = of(fd)? else { return Ok(None) };
    Ok(client.ask(&Request::Adopt, &[fd])?.1.pop())
}

/// Returns where to put copies, for a pipe's monitors, of packets that a descriptor's port sends into the pipe.
pub(super) fn shadow_of(fd: BorrowedFd<'_>) -> Result<(Buffers, Vec<RingAt>, Vec<OwnedFd>)> {
    let client = of(fd)?.ok_or(Error::bad_peer("the server of the port is gone"))?;
    match client.ask(&Request::Shadow, &[fd])? {
        (Reply::Shadow { buffers, places }, descriptors) => Ok((buffers, places, descriptors)),
        _ => Err(Error::bad_peer("its reply does not match the request")),
    }
}

/// Connects to the server that a descriptor is connected to.
pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Option<Client>> {
    let Some(path) = server_of(fd) else { return Ok(None) };
    Ok(connect_to(&path)?.map(Client::new))
}
