//! Who owns ports that other processes use: it opens them, and moves packets between them and the rings of programs. Each
//! connection is a thread, and a port of a program: none waits for another, and with the connection all of it ends.
//!
//! - `pipes`: pipes between processes
//! - `switches`: what is managed: attached ports, ports that last, a list of all

#[cfg(fuzzing)]
mod fuzzing;
mod pipes;
mod switches;

#[cfg(fuzzing)]
pub(crate) use fuzzing::fuzz;

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use pipes::{End, Pipe, pipe_of};
use switches::{Attached, Lasting};

use super::area::{Placed, Rings};
use super::lock;
use super::memory::{Buffers, Memory};
use super::message::{Bell, Connection, PortState, Reply, Request, Wanted, Which};
use super::ring::{Consumer, Place, Producer, Ring};
use super::shadow::Shadow;
use super::socket::listen_at;
use super::work::{Receiving, Sending, Work};
use crate::error::{Error, Result};
use crate::port::Device;

/// Opens a port by name, with so many rings.
pub type Open = dyn Fn(&str, &Rings) -> Result<Box<dyn Device>> + Send + Sync;

/// The most rings, and slots, that a program may ask for.
const MOST_RINGS: u16 = 32;
const MOST_SLOTS: u32 = 4096;
const SLOTS: u32 = 1024;
/// Descriptors that a connection can make the server hold: the connection itself, its memory, bells, and its queues'.
const DESCRIPTORS_EACH: usize = 16;
/// The most connections, each of which is a thread.
const MOST_CONNECTIONS: usize = 4096;

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
    /// Ends of one pipe may be different users'.
    joins_users: AtomicBool,
}

/// A connection, its thread, and its program's user.
struct Connected {
    connection: Arc<Connection>,
    thread: JoinHandle<()>,
    user: u32,
}

/// A port that one or more programs have.
struct Served {
    name: String,
    device: Mutex<Box<dyn Device>>,
    /// Of the host's stack, if it has been asked for.
    host: Mutex<Option<Box<dyn Device>>>,
    rings: Rings,
    /// The user of the program that it was opened for.
    user: u32,
    users: Mutex<Users>,
    /// Bytes of a header of virtio-net's in front of each packet.
    header: Arc<AtomicUsize>,
}

/// Connections that have a port.
#[derive(Default)]
struct Users {
    count: usize,
    /// It is one, which wants no other beside it.
    exclusive: bool,
}

impl Served {
    fn new(name: &str, device: Box<dyn Device>, rings: Rings, user: u32) -> Arc<Served> {
        Arc::new(Served {
            name: name.to_string(),
            device: Mutex::new(device),
            host: Mutex::default(),
            rings,
            user,
            users: Mutex::default(),
            header: Arc::default(),
        })
    }

    /// Adds a connection, perhaps one that wants to be alone.
    fn join(&self, exclusive: bool) -> Result<()> {
        let mut users = lock(&self.users);
        if users.exclusive || exclusive && users.count > 0 {
            return Err(Error::PortTaken { port: self.name.clone() });
        }
        *users = Users { count: users.count + 1, exclusive };
        Ok(())
    }

    fn leave(&self) {
        let mut users = lock(&self.users);
        *users = Users { count: users.count - 1, exclusive: false };
    }

    /// Whether a connection has it.
    fn is_used(&self) -> bool {
        lock(&self.users).count > 0
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
            joins_users: AtomicBool::new(false),
        };
        Server { state: Arc::new(state), listeners: Vec::new() }
    }

    /// Lets the two ends of a pipe be programs of different users. They share memory, so each can read and change all
    /// packets of the pipe; without this the second one is refused.
    pub fn join_users(&self) {
        self.state.joins_users.store(true, Ordering::Relaxed);
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
            let mut spare = Spare::new();
            while !state.stopping.load(Ordering::SeqCst) {
                match accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(socket) => State::begin(&state, Arc::new(Connection::new(socket)), only.clone()),
                    Err(Errno::MFILE | Errno::NFILE) => spare.refuse(&listener),
                    // The client has gone, or memory is short for a moment.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("linerate-accept".to_string()).spawn(accept);
        let thread = thread.map_err(|error| Error::system("starting a thread", error))?;
        self.listeners.push((socket, path.to_path_buf(), Some(thread)));
        Ok(())
    }
}

/// A descriptor for the time when there is no other: with it a client is accepted, and told so, instead of waiting.
struct Spare(Option<fs::File>);

impl Spare {
    fn new() -> Spare {
        Spare(fs::File::open("/dev/null").ok())
    }

    fn refuse(&mut self, listener: &OwnedFd) {
        if self.0.take().is_some()
            && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
        {
            refuse(&Connection::new(socket), "the server has no descriptor left (ulimit -n)");
        } else {
            // Another thread has taken it.
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0 = fs::File::open("/dev/null").ok();
    }
}

/// Tells a client, which has asked nothing yet, that it will get nothing.
fn refuse(connection: &Connection, why: &str) {
    let _ = connection.send(&Reply::Refused { why: why.to_string(), errno: libc::EAGAIN }, &[]);
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
        for (_, Connected { connection, thread, .. }) in connections {
            connection.end();
            self.state.pipe_made.notify_all();
            let _ = thread.join();
        }
        lock(&self.state.attached).drain(..).for_each(Attached::end);
    }
}

impl State {
    fn begin(state: &Arc<State>, connection: Arc<Connection>, only: Option<String>) {
        let number = state.next.fetch_add(1, Ordering::Relaxed);
        let Ok(user) = connection.user() else { return };
        let (its_state, its_connection) = (state.clone(), connection.clone());
        // The thread waits here until it is in the list.
        let mut connections = lock(&state.connections);
        let most = most_connections();
        let of_user = connections.values().filter(|connected| connected.user == user).count();
        // A user's programs leave room for others'.
        if connections.len() >= most || of_user >= (most / 2).max(1) {
            drop(connections);
            return refuse(
                &connection,
                "the server has as many connections as it may have (ulimit -n, half for a user)",
            );
        }
        let serve = move || {
            Session {
                state: &its_state,
                connection: &its_connection,
                user,
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
        match std::thread::Builder::new().name(format!("linerate-{number}")).spawn(serve) {
            Ok(thread) => drop(connections.insert(number, Connected { connection, thread, user })),
            Err(error) => refuse(&connection, &format!("the server cannot start a thread: {error}")),
        }
    }

    fn served(&self, name: &str) -> Option<Arc<Served>> {
        lock(&self.ports).get(name).and_then(Weak::upgrade)
    }

    /// A port, opened if nobody has it.
    fn port(&self, name: &str, rings: &Rings, user: u32) -> Result<Arc<Served>> {
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
        let port = Served::new(name, device, rings, user);
        ports.insert(name.to_string(), Arc::downgrade(&port));
        Ok(port)
    }
}

/// How many connections there is room for, with the descriptors that this process may have.
fn most_connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (descriptors / DESCRIPTORS_EACH).clamp(2, MOST_CONNECTIONS)
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
    /// The program's user.
    user: u32,
    /// The name that its socket is for.
    only: Option<String>,
    work: Option<Work>,
    served: Option<(Wanted, Arc<Served>)>,
    pipe: Option<End>,
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
        if let Some((_, served)) = self.served.take() {
            served.leave();
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
                plain(Reply::Done { number: self.header(&name, set)? })
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
        match self.is_manager() {
            true => Ok(()),
            false => {
                let why = format!("only root and the server's own user may manage '{name}'\n  try: sudo");
                Err(Error::Refused { why, errno: libc::EPERM })
            }
        }
    }

    fn is_manager(&self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }

    /// An interface is the machine's: a program that has it takes its packets away from Linux. A socket for it says that
    /// those whom the socket lets in may have it; at the socket of all names it takes a manager.
    fn check_interface(&self, name: &str) -> Result<()> {
        let is_memory = name.starts_with("vale") || name.contains(['{', '}']);
        if is_memory || self.only.is_some() || self.is_manager() || lock(&self.state.lasting).contains_key(name) {
            return Ok(());
        }
        let why = format!(
            "interface '{name}' is for root and the server's own user\n  to let others have it: sudo linerate serve {}",
            base(name)
        );
        Err(Error::Refused { why, errno: libc::EPERM })
    }

    /// The rings of a port, or those that it would have: nothing is opened for a question.
    fn info(&self, name: &str) -> Result<Rings> {
        let usual = usual(&Rings::default());
        if name.contains(['{', '}']) {
            return Ok(match lock(&self.state.pipes).get(&pipe_of(name).0) {
                Some(Pipe::There(pipe)) => pipe.rings,
                _ => usual.of_card(),
            });
        }
        if let Some(lasting) = lock(&self.state.lasting).get(name) {
            return Ok(self::usual(&lasting.rings).of_card());
        }
        match self.state.served(name) {
            Some(served) => Ok(served.rings),
            None if name.starts_with("vale") => {
                crate::port::PortName::parse(name)?;
                Ok(usual.of_card())
            }
            None => crate::kernel::Interface::open(base(name)).map(|_| usual),
        }
    }

    fn open(&mut self, wanted: Wanted) -> Result<(Reply, Vec<OwnedFd>)> {
        self.check(&wanted.name)?;
        if self.served.is_some() || self.pipe.is_some() {
            return Err(Error::BadPeer { why: "it has opened a port already" });
        }
        if wanted.name.contains(['{', '}']) && !wanted.monitor_rx && !wanted.monitor_tx {
            return self.open_pipe(&wanted);
        }
        self.check_interface(&wanted.name)?;
        let name = wanted.full_name();
        let served = match wanted.monitor_rx || wanted.monitor_tx {
            // Each monitor is a port of its own.
            true => {
                let rings = usual(&wanted.rings);
                let device = (self.state.open)(&name, &rings)?;
                if wanted.name.contains(['{', '}']) {
                    self.shadow = Some(self.state.shadow(&wanted.name, device.pool())?);
                }
                Served::new(&name, device, rings.of_card(), self.user)
            }
            false => self.state.port(&name, &wanted.rings, self.user)?,
        };
        if served.header.load(Ordering::Relaxed) > 0 && !wanted.takes_header {
            let why = format!(
                "packets of '{name}' have a header in front, which the program does not expect",
                name = served.name
            );
            return Err(Error::Refused { why, errno: libc::EIO });
        }
        wanted.check(&served.rings)?;
        if wanted.which.has_host() {
            let mut host = lock(&served.host);
            if host.is_none() {
                let rings = served.rings.of_host();
                *host = Some((self.state.open)(&format!("{}^", served.name), &rings)?);
            }
        }
        let mac = lock(&served.device).mac().0;
        let rings = served.rings;
        served.join(wanted.exclusive)?;
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

impl Session<'_> {
    /// Tells how long the header in front of a port's packets is. To set it is for the user whose program has the port.
    fn header(&self, name: &str, set: Option<usize>) -> Result<u32> {
        if set.is_none() && lock(&self.state.pipes).contains_key(&pipe_of(name).0) {
            return Ok(0);
        }
        let served =
            self.state.served(name).ok_or(Error::NotServed { name: name.to_string(), why: "nobody has it open" })?;
        if let Some(len) = set {
            if !name.starts_with("vale") {
                let why = "only ports of switches have a header in front of packets";
                return Err(Error::Unsupported { port: name.to_string(), what: "header", why });
            }
            if ![0, 10, 12].contains(&len) {
                let why = format!("a header of virtio-net's has 10 or 12 bytes, not {len} (VIRTIO 1.2, 5.1.6)");
                return Err(Error::Refused { why, errno: libc::EINVAL });
            }
            if served.user != self.user && !self.is_manager() {
                let why = format!("'{name}' is another user's");
                return Err(Error::Refused { why, errno: libc::EPERM });
            }
            served.header.store(len, Ordering::Relaxed);
        }
        Ok(served.header.load(Ordering::Relaxed) as u32)
    }
}

/// Returns where the port's name is served: at a socket in `folder` which has the name of its switch or interface.
///
/// # Errors
/// [`Error::BadName`] where that would be no file of the folder's own.
pub fn socket_of(folder: &Path, name: &str) -> Result<PathBuf> {
    let base = base(name);
    if base.is_empty() || base.starts_with('.') || !base.chars().all(|c| c.is_ascii_graphic() && c != '/') {
        let why =
            "a switch or an interface has a name of letters, digits and signs, without '/' and without '.' in front";
        return Err(Error::BadName { name: name.escape_default().to_string(), why: why.to_string() });
    }
    Ok(folder.join(base))
}

/// The name that a port's socket has: its switch, or its interface.
pub fn base(name: &str) -> &str {
    let end = |c: char| if name.starts_with("vale") { c == ':' } else { "{}^/*+".contains(c) };
    name.split(end).next().unwrap_or(name)
}
