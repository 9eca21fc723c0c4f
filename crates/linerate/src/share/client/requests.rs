//! Asking who serves ports: for a port, and for what is managed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::share::client::shared_port::SharedPort;
use crate::share::protocol::area::{Plan, Rings};
use crate::share::protocol::lock;
use crate::share::protocol::mapping::{Buffers, Memory};
use crate::share::protocol::message::{Choice, Connection, PortState, Reply, Request, Wanted, ask_by};
use crate::share::protocol::ring::Place;
pub use crate::share::protocol::socket::server_of;
use crate::share::protocol::socket::{connect_socket, connect_to, own_socket_in};
use crate::share::server::socket_of;

/// The socket of all names that have none of their own.
pub const ANY: &str = "any";

/// Where to ask for a port of this name: the server of its switch or interface, or of all names, or the one that programs of
/// netmap's have started.
fn sockets(folder: &Path, name: &str) -> Result<[PathBuf; 3]> {
    Ok([socket_of(folder, name)?, folder.join(ANY), own_socket_in(folder)?])
}

/// A connection to who serves ports.
pub struct Client {
    connection: Connection,
    /// One asks at a time.
    asking: Mutex<()>,
}

fn unanswered(error: std::io::Error) -> Error {
    Error::System { call: "asking the server of the port", source: error }
}

fn accepted(answer: (Reply, Vec<OwnedFd>)) -> Result<(Reply, Vec<OwnedFd>)> {
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

    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>)> {
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
    pub fn info(&self, name: &str) -> Result<Rings> {
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
    pub fn attach(&self, switch: &str, port: &str, host: bool, rings: Rings) -> Result<u32> {
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
    pub fn create(&self, name: &str, rings: Rings) -> Result<()> {
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

    /// Describes memory by its number, or for 0 that of this process, which is known by `process` ([`Choice::process`]): returns
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

    /// Opens a port. The connection is its descriptor: the port is closed with it.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn open(self, wanted: Wanted, memory: Choice) -> Result<(OwnedFd, SharedPort)> {
        let port = opened(self.ask(&Request::Open { wanted, memory }, &[])?, true)?;
        Ok((self.connection.into_fd(), port))
    }
}

/// Opens a port by a program's own descriptor: an `AF_UNIX` socket of type `SOCK_SEQPACKET`, which is connected to the port's
/// server. `None` if there is no server.
///
/// # Errors
/// As [`Client::find`] and [`Client::open`].
pub fn open_by(fd: BorrowedFd<'_>, folder: &Path, wanted: Wanted, memory: Choice) -> Result<Option<SharedPort>> {
    if server_of(fd).is_none() {
        let mut is_connected = false;
        for socket in sockets(folder, &wanted.name)? {
            is_connected = is_connected || connect_socket(fd, &socket)?;
        }
        if !is_connected {
            return Ok(None);
        }
    }
    let answer = ask_by(fd, &Request::Open { wanted, memory }, &[]).map_err(unanswered)?;
    opened(accepted(answer)?, true).map(Some)
}

/// Describes the port that a descriptor stands for, which another process has opened. `None` if it stands for none.
///
/// # Errors
/// [`Error::Refused`] and those of [`Client::find`].
pub fn adopt(fd: BorrowedFd<'_>) -> Result<Option<SharedPort>> {
    let Some(client) = of(fd)? else { return Ok(None) };
    opened(client.ask(&Request::Adopt, &[fd])?, false).map(Some)
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
pub(super) fn shadow_of(fd: BorrowedFd<'_>) -> Result<(Buffers, Vec<Place>, Vec<OwnedFd>)> {
    let client = of(fd)?.ok_or(Error::BadPeer { why: "the server of the port is gone" })?;
    match client.ask(&Request::Shadow, &[fd])? {
        (Reply::Shadow { buffers, places }, descriptors) => Ok((buffers, places, descriptors)),
        _ => Err(Error::BadPeer { why: "its answer is another's" }),
    }
}

/// Connects to the server that a descriptor is connected to.
fn of(fd: BorrowedFd<'_>) -> Result<Option<Client>> {
    let Some(path) = server_of(fd) else { return Ok(None) };
    Ok(connect_to(&path)?.map(Client::new))
}

fn opened((reply, mut descriptors): (Reply, Vec<OwnedFd>), begins: bool) -> Result<SharedPort> {
    let Reply::Opened(opened) = reply else { return Err(Error::BadPeer { why: "its answer is another's" }) };
    let memory = descriptors.pop().ok_or(Error::BadPeer { why: "a descriptor is missing" })?;
    let memory = Memory::of_peer(memory, opened.buffers)?;
    SharedPort::new(*opened, memory, begins)
}
