//! Asking who serves ports: for a port, and for what is managed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::area::{Area, Offsets, Placed, Rings};
use super::lock;
use super::memory::Memory;
use super::message::{Bell, Connection, PortState, Reply, Request, Wanted};
use super::server::socket_of;
use super::shared_port::{Lease, SharedPort};
use super::sides::Sides;
use super::socket::connect_to;
use crate::error::{Error, Result};
use crate::port::MacAddress;

/// The socket of all names that have none of their own.
pub const ANY: &str = "any";

/// Where to ask for a port of this name: who serves its switch or interface, or all of them.
fn sockets(folder: &Path, name: &str) -> Result<[PathBuf; 2]> {
    Ok([socket_of(folder, name)?, folder.join(ANY)])
}

/// A connection to who serves ports.
pub struct Client {
    pub(super) connection: Connection,
    /// One asks at a time.
    asking: Mutex<()>,
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
            Error::System { call: "asking the server of the port", source: error }
        })?;
        match answer {
            (Reply::Refused { why, errno }, _) => Err(Error::Refused { why, errno }),
            answer => Ok(answer),
        }
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

    /// Opens a port, in memory of this process, or of the other end's if it is a pipe that is there.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::AreaFull`].
    pub fn open(self, wanted: Wanted, area: &Arc<Area>, offsets: Offsets) -> Result<SharedPort> {
        let missing = || Error::BadPeer { why: "a descriptor is missing" };
        let (reply, mut descriptors) = self.ask(&Request::Open(wanted.clone()), &[])?;
        let (name, which) = (wanted.full_name(), wanted.which);
        let lease = |placed: Vec<Placed>| Some(Lease { area: area.clone(), placed });
        let buffers = area.memory.buffers;
        let mut start = |request: &Request| {
            descriptors = self.ask(request, &[area.memory.as_fd()])?.1;
            Ok::<_, Error>(area.memory.clone())
        };
        let (rings, mac, memory, placed, other, lease) = match reply {
            Reply::Opened { rings, first_of_pipe: false, mac } => {
                let monitors = wanted.monitor_rx || wanted.monitor_tx;
                let placed = area.place(
                    &name,
                    &rings,
                    |n| which.has(n, rings.tx) && !wanted.receive_only && !monitors,
                    |n| which.has(n, rings.rx) && !wanted.transmit_only,
                    offsets,
                )?;
                let lease = lease(vec![placed.clone()]);
                let memory = start(&Request::Start { buffers, placed: placed.clone() })?;
                (rings, mac, memory, placed, None, lease)
            }
            Reply::Opened { rings, mac, .. } => {
                let card = |n: u16| n < rings.tx;
                let mine = area.place(&name, &rings, card, card, offsets)?;
                let mut lease = lease(vec![mine.clone()]);
                let other = area.place(&other_end(&name), &rings, card, card, offsets)?;
                lease.iter_mut().for_each(|lease| lease.placed.push(other.clone()));
                let (master, slave) = if name.contains('{') { (&mine, &other) } else { (&other, &mine) };
                let (master, slave) = (master.clone(), slave.clone());
                let memory = start(&Request::StartPipe { buffers, master, slave })?;
                (rings, mac, memory, mine, Some(other), lease)
            }
            Reply::Joined { mine, .. } if offsets.mask != 0 && offsets.mask != mine.offset_mask => {
                let why = "the pipe's other end has packets begin elsewhere".to_string();
                return Err(Error::Refused { why, errno: libc::EINVAL });
            }
            Reply::Joined { rings, buffers, mine, other } => {
                let memory = if descriptors.is_empty() { None } else { Some(descriptors.remove(0)) };
                let memory = Memory::of_peer(memory.ok_or_else(missing)?, buffers)?;
                (rings, [0; 6], memory, mine, Some(other), None)
            }
            _ => return Err(Error::BadPeer { why: "its answer is another's" }),
        };
        let bell = Bell::new(descriptors.pop().ok_or_else(missing)?);
        let sides = Sides::new(&memory, &placed, other.as_ref())?;
        let mac = MacAddress(mac);
        Ok(SharedPort {
            client: Some(self),
            wanted,
            rings,
            mac,
            memory,
            placed,
            lease,
            sides,
            bell,
            armed: AtomicU64::new(0),
        })
    }
}

/// The name of a pipe's other end.
fn other_end(name: &str) -> String {
    match name.contains('}') {
        true => name.replace('}', "{"),
        false => name.replace('{', "}"),
    }
}
