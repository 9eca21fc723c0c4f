//! Who owns ports that other processes use: it opens them, and moves packets between them and the rings of programs. Each
//! connection is a thread, and a port of a program: none waits for another, and with the connection all of it ends.
//!
//! - `pipes`: pipes between processes
//! - `switches`: what is managed: attached ports, ports that last, a list of all

mod pipes;
mod switches;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, shutdown,
    socket_with,
};

use pipes::{Pipe, pipe_of};
use switches::{Attached, Lasting};

use super::area::{Placed, Rings};
use super::lock;
use super::memory::{Buffers, Memory};
use super::message::{Bell, Connection, PortState, Reply, Request, Wanted, Which};
use super::ring::{Consumer, Place, Producer, Ring};
use super::shadow::Shadow;
use super::work::{Receiving, Sending, Work};
use crate::error::{Error, Result};
use crate::port::Device;

/// Opens a port by name, with so many rings.
pub type Open = dyn Fn(&str, &Rings) -> Result<Box<dyn Device>> + Send + Sync;

/// The most rings, and slots, that a program may ask for.
const MOST_RINGS: u16 = 32;
const MOST_SLOTS: u32 = 4096;
const SLOTS: u32 = 1024;

/// Serves ports at sockets, until it is dropped.
pub struct Server {
    state: Arc<State>,
    listeners: Vec<(Arc<OwnedFd>, PathBuf, Option<JoinHandle<()>>)>,
}

struct State {
    open: Box<Open>,
    /// Ports that programs have, by full name.
    ports: Mutex<HashMap<String, Weak<Served>>>,
    pipes: Mutex<HashMap<String, Pipe>>,
    /// A pipe was made, or will not be.
    pipe_made: Condvar,
    attached: Mutex<Vec<Attached>>,
    lasting: Mutex<HashMap<String, Lasting>>,
    /// Connections, to be ended with the server.
    connections: Mutex<HashMap<u64, Connected>>,
    next: AtomicU64,
    stopping: AtomicBool,
}

/// A connection, and its thread.
type Connected = (Arc<Connection>, JoinHandle<()>);

/// A port that one or more programs have.
struct Served {
    name: String,
    device: Mutex<Box<dyn Device>>,
    /// Of the host's stack, if it has been asked for.
    host: Mutex<Option<Box<dyn Device>>>,
    rings: Rings,
    /// Somebody wants to be alone with it.
    exclusive: AtomicBool,
    /// Bytes of a header of virtio-net's in front of each packet.
    header: Arc<AtomicUsize>,
}

impl Served {
    fn new(name: &str, device: Box<dyn Device>, rings: Rings) -> Arc<Served> {
        Arc::new(Served {
            name: name.to_string(),
            device: Mutex::new(device),
            host: Mutex::default(),
            rings,
            exclusive: AtomicBool::new(false),
            header: Arc::default(),
        })
    }
}

/// What errno(3) says of an error, for programs that know only that.
pub fn errno(error: &Error) -> i32 {
    match error {
        Error::PortTaken { .. } | Error::PortInUse { .. } | Error::QueueTaken { .. } => libc::EBUSY,
        Error::NoInterface { .. } | Error::InterfaceGone { .. } | Error::NoServer { .. } => libc::ENXIO,
        Error::NotOpen { .. } | Error::NoXdp { .. } | Error::NotServed { .. } => libc::ENXIO,
        Error::SwitchFull { .. } | Error::AreaFull { .. } => libc::ENOMEM,
        Error::PoolTooSmall { .. } | Error::PoolExhausted { .. } => libc::ENOMEM,
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::Refused { errno, .. } => *errno,
        Error::BadRing => libc::EINVAL,
        Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// A listening socket at a path, in a folder that only one process at a time changes.
fn listen_at(path: &Path, mode: u32, group: Option<u32>) -> Result<OwnedFd> {
    let system = |call: &'static str| move |error: rustix::io::Errno| Error::system(call, error);
    let refused = |why: String, mend: &str| Error::Serve { path: path.to_path_buf(), why, mend: mend.to_string() };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mend = "name another folder: LINERATE_PORTS=PATH";
    fs::create_dir_all(folder).map_err(|error| refused(error.to_string(), mend))?;
    let lock = fs::File::create(folder.join(".lock")).map_err(|error| refused(error.to_string(), mend))?;
    lock.lock().map_err(|error| refused(error.to_string(), mend))?;
    if connect_to(path)?.is_some() {
        return Err(refused("another process serves it".to_string(), "end that one first"));
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("socket"))?;
    let _ = fs::remove_file(path);
    let address = SocketAddrUnix::new(path).map_err(system("the path of a socket"))?;
    bind(&socket, &address).map_err(|error| refused(io::Error::from(error).to_string(), mend))?;
    // Nobody is let in before it listens.
    let allow = || {
        if group.is_some() {
            std::os::unix::fs::chown(path, None, group)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    allow().map_err(|error| refused(error.to_string(), "choose a group that you are in"))?;
    listen(&socket, 16).map_err(system("listen"))?;
    Ok(socket)
}

/// Connects to who serves there; `None` if nobody does.
pub fn connect_to(path: &Path) -> Result<Option<OwnedFd>> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::system("socket", error))?;
    let address = SocketAddrUnix::new(path).map_err(|error| Error::system("the path of a socket", error))?;
    match connect(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(Error::Serve {
            path: path.to_path_buf(),
            why: io::Error::from(error).to_string(),
            mend: "who serves it lets others in: linerate serve --mode 0666, or --group GROUP".to_string(),
        }),
    }
}

impl Server {
    /// Serves nothing yet.
    pub fn new(open: Box<Open>) -> Server {
        let state = State {
            open,
            ports: Mutex::default(),
            pipes: Mutex::default(),
            pipe_made: Condvar::new(),
            attached: Mutex::default(),
            lasting: Mutex::default(),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        };
        Server { state: Arc::new(state), listeners: Vec::new() }
    }

    /// Serves at a socket, for those whom its mode and group let in: the ports of one name, as `vale0` or `eth0`, or of
    /// all names.
    ///
    /// # Errors
    /// [`Error::Serve`] if it is served already, or may not be made.
    pub fn listen(&mut self, path: &Path, only: Option<&str>, mode: u32, group: Option<u32>) -> Result<()> {
        let socket = Arc::new(listen_at(path, mode, group)?);
        let (state, listener, only) = (self.state.clone(), socket.clone(), only.map(str::to_string));
        let accept = move || {
            while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
                State::begin(&state, Arc::new(Connection::new(socket)), only.clone());
            }
        };
        let thread = std::thread::Builder::new().name("linerate-accept".to_string()).spawn(accept);
        let thread = thread.map_err(|error| Error::system("starting a thread", error))?;
        self.listeners.push((socket, path.to_path_buf(), Some(thread)));
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        for (socket, path, thread) in &mut self.listeners {
            let _ = fs::remove_file(path);
            let _ = shutdown(&**socket, Shutdown::Both);
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
        let connections: Vec<_> = lock(&self.state.connections).drain().collect();
        for (_, (connection, thread)) in connections {
            let _ = shutdown(&*connection, Shutdown::Both);
            self.state.pipe_made.notify_all();
            let _ = thread.join();
        }
        lock(&self.state.attached).drain(..).for_each(Attached::end);
    }
}

impl State {
    fn begin(state: &Arc<State>, connection: Arc<Connection>, only: Option<String>) {
        let number = state.next.fetch_add(1, Ordering::Relaxed);
        let (its_state, its_connection) = (state.clone(), connection.clone());
        // The thread waits here until it is in the list.
        let mut connections = lock(&state.connections);
        let serve = move || {
            Session {
                state: &its_state,
                connection: &its_connection,
                only,
                work: None,
                served: None,
                pipe: None,
                shadow: None,
            }
            .serve();
            let its = lock(&its_state.connections).remove(&number);
            drop(its);
        };
        if let Ok(thread) = std::thread::Builder::new().name(format!("linerate-{number}")).spawn(serve) {
            connections.insert(number, (connection, thread));
        }
    }

    fn served(&self, name: &str) -> Option<Arc<Served>> {
        lock(&self.ports).get(name).and_then(Weak::upgrade)
    }

    /// A port, opened if nobody has it.
    fn port(&self, name: &str, rings: &Rings) -> Result<Arc<Served>> {
        let lasting = lock(&self.lasting).get(name).map(|lasting| lasting.attached.clone());
        if let Some(attached) = lasting {
            let unattached = || Error::NotServed { name: name.to_string(), why: "it is attached to no switch" };
            return Ok(attached.ok_or_else(unattached)?.1);
        }
        let mut ports = lock(&self.ports);
        ports.retain(|_, port| port.strong_count() > 0);
        if let Some(port) = ports.get(name).and_then(Weak::upgrade) {
            return Ok(port);
        }
        let mut rings = usual(rings);
        let device = (self.open)(name, &rings)?;
        let info = device.info();
        // An interface has a host's stack behind it, which is opened when it is asked for.
        rings = Rings { tx: info.tx_queues, rx: info.rx_queues, ..rings };
        if name.starts_with("vale") {
            rings = rings.of_card();
        }
        let port = Served::new(name, device, rings);
        ports.insert(name.to_string(), Arc::downgrade(&port));
        Ok(port)
    }
}

/// What a program has asked for, within what there can be, and one ring or 1,024 slots where it has not asked.
fn usual(rings: &Rings) -> Rings {
    let count = |asked: u16| asked.clamp(1, MOST_RINGS);
    let slots = |asked: u32| if asked == 0 { SLOTS } else { asked.clamp(2, MOST_SLOTS) };
    Rings {
        tx: count(rings.tx),
        rx: count(rings.rx),
        host_tx: count(rings.host_tx),
        host_rx: count(rings.host_rx),
        tx_slots: slots(rings.tx_slots),
        rx_slots: slots(rings.rx_slots),
    }
}

impl Wanted {
    /// Whether a port with such rings has those that are wanted.
    fn check(&self, rings: &Rings) -> Result<()> {
        let is_there = match self.which {
            Which::One(one) => one < rings.tx.max(rings.rx),
            Which::OneOfHost(one) => one < rings.host_tx.max(rings.host_rx),
            _ => !self.which.has_host() || rings.host_tx > 0,
        };
        match is_there {
            true => Ok(()),
            false => Err(Error::NotServed { name: self.name.clone(), why: "it has no such rings" }),
        }
    }
}

impl Rings {
    /// Without those of the host's stack.
    fn of_card(self) -> Rings {
        Rings { host_tx: 0, host_rx: 0, ..self }
    }

    /// Those of the host's stack alone, as a port's.
    fn of_host(self) -> Rings {
        Rings { tx: self.host_tx, rx: self.host_rx, ..self.of_card() }
    }
}

/// A connection. Its queues go before the port that they are of.
struct Session<'a> {
    state: &'a State,
    connection: &'a Arc<Connection>,
    /// The name that its socket is for.
    only: Option<String>,
    work: Option<Work>,
    served: Option<(Wanted, Arc<Served>)>,
    /// The pipe, and which end of it.
    pipe: Option<(String, usize)>,
    /// What a monitor of a pipe gets.
    shadow: Option<Arc<Shadow>>,
}

impl Session<'_> {
    fn serve(mut self) {
        while !self.state.stopping.load(Ordering::Relaxed) {
            if let Some(work) = &mut self.work {
                work.run(self.connection);
            }
            let (reply, descriptors) = match self.connection.receive::<Request>() {
                Ok((request, descriptors)) => match self.answer(request, descriptors) {
                    Ok(answer) => answer,
                    Err(error) => (Reply::Refused { why: error.to_string(), errno: errno(&error) }, Vec::new()),
                },
                // It is gone, or says nonsense: then what follows cannot be understood either.
                Err(_) => break,
            };
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            if self.connection.send(&reply, &descriptors).is_err() {
                break;
            }
        }
        self.close();
    }

    /// Gives the port back. True if it is a pipe whose other end is open.
    fn close(&mut self) -> bool {
        if let Some(mut work) = self.work.take() {
            work.finish();
        }
        if let Some((wanted, served)) = self.served.take()
            && wanted.exclusive
        {
            served.exclusive.store(false, Ordering::SeqCst);
        }
        self.shadow = None;
        self.leave_pipe()
    }

    fn answer(&mut self, request: Request, mut descriptors: Vec<OwnedFd>) -> Result<(Reply, Vec<OwnedFd>)> {
        let plain = |reply| Ok((reply, Vec::new()));
        match request {
            Request::Open(wanted) => self.open(wanted),
            Request::Start { buffers, placed } => self.start(descriptors.pop(), buffers, &placed),
            Request::StartPipe { buffers, master, slave } => {
                self.start_pipe(descriptors.pop(), buffers, [master, slave])
            }
            Request::Shadow => self.shadow(),
            Request::Close => plain(Reply::Closed { still_used: self.close() }),
            Request::Info { name } => {
                self.check(&name)?;
                plain(Reply::Info { rings: self.info(&name)? })
            }
            Request::Header { name, set } => {
                self.check(&name)?;
                plain(Reply::Done { number: self.state.header(&name, set)? })
            }
            Request::Attach { switch, port, host, rings } => {
                self.check_manager(&switch)?;
                plain(Reply::Done { number: self.state.attach(&switch, &port, host, &rings)? })
            }
            Request::Detach { switch, port } => {
                self.check_manager(&switch)?;
                plain(Reply::Done { number: self.state.detach(&switch, &port)? })
            }
            Request::Create { name, rings } => {
                self.check_manager(&name)?;
                self.state.create(&name, &rings)?;
                plain(Reply::Done { number: 0 })
            }
            Request::Destroy { name } => {
                self.check_manager(&name)?;
                self.state.destroy(&name)?;
                plain(Reply::Done { number: 0 })
            }
            Request::List => plain(Reply::List(self.state.list(self.only.as_deref()))),
        }
    }

    /// A socket for one name is for no other; and ports that are neither netmap's nor made for a program are for who manages.
    fn check(&self, name: &str) -> Result<()> {
        if name.contains(':') && !name.starts_with("vale") {
            let why = "only ports of switches have a ':' in their names";
            return Err(Error::NotServed { name: name.to_string(), why });
        }
        match &self.only {
            Some(only) if only != base(name) => {
                Err(Error::NotServed { name: name.to_string(), why: "this socket is for another name" })
            }
            _ => Ok(()),
        }
    }

    /// What is there for others is for root and the user who serves to decide: who may use a switch may not have
    /// interfaces attached to it by the one who serves it.
    fn check_manager(&self, name: &str) -> Result<()> {
        self.check(name)?;
        let user = self.connection.user().map_err(|error| Error::system("getsockopt(SO_PEERCRED)", error))?;
        match user == 0 || user == rustix::process::geteuid().as_raw() {
            true => Ok(()),
            false => {
                let why = format!("only root and the user who serves it may manage '{name}'\n  try: sudo");
                Err(Error::Refused { why, errno: libc::EPERM })
            }
        }
    }

    fn info(&self, name: &str) -> Result<Rings> {
        if name.contains(['{', '}']) {
            // One that nobody has is as it would be.
            return Ok(match lock(&self.state.pipes).get(&pipe_of(name).0) {
                Some(Pipe::There(pipe)) => pipe.rings,
                _ => usual(&Rings::default()).of_card(),
            });
        }
        Ok(self.state.port(name, &Rings::default())?.rings)
    }

    fn open(&mut self, wanted: Wanted) -> Result<(Reply, Vec<OwnedFd>)> {
        self.check(&wanted.name)?;
        if self.served.is_some() || self.pipe.is_some() {
            return Err(Error::BadPeer { why: "it has opened a port already" });
        }
        if wanted.name.contains(['{', '}']) && !wanted.monitor_rx && !wanted.monitor_tx {
            return self.open_pipe(&wanted);
        }
        let name = wanted.full_name();
        let served = match wanted.monitor_rx || wanted.monitor_tx {
            // Each monitor is a port of its own.
            true => {
                let rings = usual(&wanted.rings);
                let device = (self.state.open)(&name, &rings)?;
                if wanted.name.contains(['{', '}']) {
                    self.shadow = Some(self.state.shadow(&wanted.name, device.pool())?);
                }
                Served::new(&name, device, rings.of_card())
            }
            false => self.state.port(&name, &wanted.rings)?,
        };
        let alone = Arc::strong_count(&served) == 1;
        if served.exclusive.load(Ordering::SeqCst) || wanted.exclusive && !alone {
            return Err(Error::PortTaken { port: served.name.clone() });
        }
        if served.header.load(Ordering::Relaxed) > 0 && !wanted.takes_header {
            let why = format!(
                "packets of '{name}' have a header in front, which the program does not expect",
                name = served.name
            );
            return Err(Error::Refused { why, errno: libc::EIO });
        }
        wanted.check(&served.rings)?;
        served.exclusive.store(wanted.exclusive, Ordering::SeqCst);
        if wanted.which.has_host() {
            let mut host = lock(&served.host);
            if host.is_none() {
                let rings = served.rings.of_host();
                *host = Some((self.state.open)(&format!("{}^", served.name), &rings)?);
            }
        }
        let mac = lock(&served.device).mac().0;
        let rings = served.rings;
        self.served = Some((wanted, served));
        Ok((Reply::Opened { rings, first_of_pipe: false, mac }, Vec::new()))
    }

    fn start(&mut self, memory: Option<OwnedFd>, buffers: Buffers, placed: &Placed) -> Result<(Reply, Vec<OwnedFd>)> {
        let (Some((wanted, served)), Some(memory), None) = (&self.served, memory, &self.work) else {
            return Err(Error::BadPeer { why: "it starts what it has not opened" });
        };
        let memory = Memory::of_peer(memory, buffers)?;
        let [ours, theirs] = Bell::pair().map_err(|error| Error::system("socketpair", error))?;
        let mut work = Work { sending: Vec::new(), receiving: Vec::new(), bell: ours };
        let device = &mut **lock(&served.device);
        let (longest, pool) = (device.info().max_frame, device.pool().clone());
        let offset_mask = placed.offset_mask;
        let ring = |place: &Place| Ring::new(&memory, *place).map(|ring| Ring { offset_mask, ..ring });
        for (n, place) in placed.tx.iter().enumerate().filter_map(|(n, place)| Some((n as u16, place.as_ref()?))) {
            let queue = served.queue(device, wanted, n, served.rings.tx, |device, n| device.tx(n))?;
            work.sending.push(Sending::new(Consumer::new(ring(place)?), queue, &pool, longest, &served.header));
        }
        for (n, place) in placed.rx.iter().enumerate().filter_map(|(n, place)| Some((n as u16, place.as_ref()?))) {
            let queue = served.queue(device, wanted, n, served.rings.rx, |device, n| device.rx(n))?;
            work.receiving.push(Receiving::new(Producer::new(ring(place)?), queue, &served.header));
        }
        self.work = Some(work);
        Ok((Reply::Started, vec![theirs.into_fd()]))
    }
}

impl Served {
    /// Takes a queue: the program's number `n`, of the card, which has `cards`, or of the host's stack behind them.
    fn queue<Q>(
        &self,
        device: &mut dyn Device,
        wanted: &Wanted,
        n: u16,
        cards: u16,
        take: impl Fn(&mut dyn Device, u16) -> Result<Q>,
    ) -> Result<Q> {
        if !wanted.which.has(n, cards) {
            return Err(Error::BadPeer { why: "it starts a ring that it has not asked for" });
        }
        if n < cards {
            return take(device, n);
        }
        match &mut *lock(&self.host) {
            Some(host) => take(&mut **host, n - cards),
            None => Err(Error::BadPeer { why: "it starts a ring that it has not asked for" }),
        }
    }

    fn state(&self, number: u8) -> PortState {
        let statistics = lock(&self.device).statistics().unwrap_or_default();
        state_of(&self.name, number, &statistics)
    }
}

fn state_of(name: &str, number: u8, statistics: &crate::port::Statistics) -> PortState {
    PortState {
        name: name.to_string(),
        number,
        rx_packets: statistics.rx_packets,
        tx_packets: statistics.tx_packets,
        drops: statistics.drops.no_descriptor + statistics.drops.oversize,
    }
}

impl State {
    fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        if set.is_none() && lock(&self.pipes).contains_key(&pipe_of(name).0) {
            return Ok(0);
        }
        let served = self.served(name).ok_or(Error::NotServed { name: name.to_string(), why: "nobody has it open" })?;
        if let Some(len) = set {
            if !name.starts_with("vale") {
                let why = "only ports of switches have a header in front of packets";
                return Err(Error::Unsupported { port: name.to_string(), what: "header", why });
            }
            if ![0, 10, 12].contains(&len) {
                let why = format!("a header of virtio-net's has 10 or 12 bytes, not {len} (VIRTIO 1.2, 5.1.6)");
                return Err(Error::Refused { why, errno: libc::EINVAL });
            }
            served.header.store(len, Ordering::Relaxed);
        }
        Ok(served.header.load(Ordering::Relaxed) as u32)
    }
}

/// The name that a port's socket has: its switch, or its interface.
pub fn base(name: &str) -> &str {
    let end = |c: char| if name.starts_with("vale") { c == ':' } else { "{}^/*+".contains(c) };
    name.split(end).next().unwrap_or(name)
}
