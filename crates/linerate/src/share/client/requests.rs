//! Asking who serves ports: for a port, and for what is managed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::{Plan, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::Buffers;
use crate::share::protocol::message::{PortState, Reply, Request};
use crate::share::protocol::name::socket_of;
use crate::share::protocol::ring::RingAt;
use crate::share::protocol::socket::{ANY, connect_to, own_socket_in, server_of};

/// Where to ask for a port of this name: the server of its switch or interface, or of all names, or the one that programs of
/// netmap's have started.
pub fn sockets(folder: &Path, name: &str) -> Result<[PathBuf; 3]> {
    Ok([socket_of(folder, name)?, folder.join(ANY), own_socket_in(folder)?])
}

/// A connection to who serves ports.
pub struct Client {
    pub(super) connection: Connection,
    /// One asks at a time.
    asking: Mutex<()>,
}

pub fn unanswered(error: std::io::Error) -> Error {
    Error::System { call: "asking the server of the port", source: error }
}

pub fn accepted(answer: (Reply, Vec<OwnedFd>)) -> Result<(Reply, Vec<OwnedFd>)> {
    match answer {
        (Reply::Refused { why, errno }, _) => Err(Error::Refused { why, errno }),
        answer => Ok(answer),
    }
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        Client { connection: Connection::new(socket), asking: Mutex::default() }
    }

    /// Connects to the server of ports of this name; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Serve`] if it does not let us in, does not answer, or is neither root's nor this user's.
    pub fn find(folder: &Path, name: &str) -> Result<Option<Client>> {
        for socket in sockets(folder, name)? {
            if let Some(socket) = connect_to(&socket)? {
                return Ok(Some(Client::new(socket)));
            }
        }
        Ok(None)
    }

    /// All who serve ports there.
    ///
    /// # Errors
    /// [`Error::Serve`] if one does not let us in.
    pub fn all(folder: &Path) -> Result<Vec<Client>> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
        let mut clients = Vec::new();
        for entry in entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            clients.extend(connect_to(&entry.path())?.map(Client::new));
        }
        Ok(clients)
    }

    pub(super) fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>)> {
        let _asking = lock(&self.asking);
        let answer = self.connection.ask(request, descriptors).map_err(|error| {
            // An answer that comes later would be taken for the next one's.
            self.connection.end();
            unanswered(error)
        })?;
        accepted(answer)
    }

    fn done(&self, request: &Request) -> Result<u32> {
        match self.ask(request, &[])?.0 {
            Reply::Done { number } => Ok(number),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// How many rings a port has.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn info(&self, name: &str) -> Result<RingCounts> {
        match self.ask(&Request::Info { name: name.to_string() }, &[])?.0 {
            Reply::Info { rings } => Ok(rings),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// How long the header of virtio-net's is in front of a port's packets; sets it first, if wanted.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        self.done(&Request::Header { name: name.to_string(), set })
    }

    /// Attaches a port of the machine to a switch, with its host's stack if wanted; tells its number.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn attach(&self, switch: &str, port: &str, host: bool, rings: RingCounts) -> Result<u32> {
        self.done(&Request::Attach { switch: switch.to_string(), port: port.to_string(), host, rings })
    }

    /// Takes it off again.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn detach(&self, switch: &str, port: &str) -> Result<u32> {
        self.done(&Request::Detach { switch: switch.to_string(), port: port.to_string() })
    }

    /// Makes a port that stays when nobody has it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn create(&self, name: &str, rings: RingCounts) -> Result<()> {
        self.done(&Request::Create { name: name.to_string(), rings }).map(drop)
    }

    /// Takes it away.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.done(&Request::Destroy { name: name.to_string() }).map(drop)
    }

    /// All ports that it serves.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn list(&self) -> Result<Vec<PortState>> {
        match self.ask(&Request::List, &[])?.0 {
            Reply::List(list) => Ok(list),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }

    /// Describes memory by its number, or for 0 that of this process, which is known by `process` ([`MemoryChoice::process`]): returns
    /// its number, and what is in it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn pools(&self, number: u16, process: u64) -> Result<(u16, Plan)> {
        match self.ask(&Request::Pools { number, process }, &[])?.0 {
            Reply::Pools { number, plan } => Ok((number, plan)),
            _ => Err(Error::BadPeer { why: "its answer is another's" }),
        }
    }
}

/// Returns the memory of the port that a descriptor stands for.
///
/// # Errors
/// As [`adopt`].
pub fn memory_of(fd: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let Some(client) = of(fd)? else { return Ok(None) };
    Ok(client.ask(&Request::Adopt, &[fd])?.1.pop())
}

/// Where copies of what a descriptor's port sends into a pipe go.
pub(super) fn shadow_of(fd: BorrowedFd<'_>) -> Result<(Buffers, Vec<RingAt>, Vec<OwnedFd>)> {
    let client = of(fd)?.ok_or(Error::BadPeer { why: "the server of the port is gone" })?;
    match client.ask(&Request::Shadow, &[fd])? {
        (Reply::Shadow { buffers, places }, descriptors) => Ok((buffers, places, descriptors)),
        _ => Err(Error::BadPeer { why: "its answer is another's" }),
    }
}

/// Connects to the server that a descriptor is connected to.
pub fn of(fd: BorrowedFd<'_>) -> Result<Option<Client>> {
    let Some(path) = server_of(fd) else { return Ok(None) };
    Ok(connect_to(&path)?.map(Client::new))
}
