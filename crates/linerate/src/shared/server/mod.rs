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
use std::time::{Duration, Instant};

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
use super::socket::{is_trusted, listen_at};
use super::work::{Receiving, Sending, Work};
use crate::error::{Error, Result};
use crate::port::Device;

/// Opens a port by name, with so many rings.
pub type Open = dyn Fn(&str, &Rings) -> Result<Box<dyn Device>> + Send + Sync;

/// The most rings, and slots, that a program may ask for.
const MOST_RINGS: u16 = 32;
const MOST_SLOTS: u32 = 4096;
const SLOTS: u32 = 1024;
/// Descriptors that a connection can make the server hold: the connection itself, its memory, bells, and a few queues'.
/// A port of more queues counts as several connections.
const DESCRIPTORS_EACH: usize = 16;
const RINGS_INCLUDED: usize = 8;
/// What is said where there is no room.
const FULL: &str = "the server has as many connections as it may have (ulimit -n, half for a user, some for who manages; a port of many rings counts as several)";
/// The most connections, each of which is a thread.
const MOST_CONNECTIONS: usize = 4096;

/// How long the next program waits for one that has ended to leave its port.
const LEAVING: Duration = Duration::from_secs(1);

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
    /// One of them has gone.
    gone: Condvar,
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
    /// As how many connections it counts.
    places: usize,
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
            gone: Condvar::new(),
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
        let [count, of_user] = places(&connections, user);
        if !has_room(most_connections(), 1, count, of_user, is_trusted(user)) {
            drop(connections);
            return refuse(&connection, FULL);
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
            its_state.gone.notify_all();
            drop(its);
        };
        match std::thread::Builder::new().name(format!("linerate-{number}")).spawn(serve) {
            Ok(thread) => drop(connections.insert(number, Connected { connection, thread, user, places: 1 })),
            Err(error) => refuse(&connection, &format!("the server cannot start a thread: {error}")),
        }
    }

    /// Counts what a port with such rings takes as more connections, where it does: each ring that receives has a descriptor.
    fn make_room(&self, connection: &Arc<Connection>, rings: &Rings) -> Result<()> {
        let mut connections = lock(&self.connections);
        let Some(own) = connections.iter().find(|(_, there)| Arc::ptr_eq(&there.connection, connection)) else {
            return Ok(()); // a test's
        };
        let (number, user, has) = (*own.0, own.1.user, own.1.places);
        let wants = 1 + usize::from(rings.rx + rings.host_rx).saturating_sub(RINGS_INCLUDED).div_ceil(DESCRIPTORS_EACH);
        let [count, of_user] = places(&connections, user);
        if !has_room(most_connections(), wants, count - has, of_user - has, is_trusted(user)) {
            return Err(Error::Refused { why: FULL.to_string(), errno: libc::EAGAIN });
        }
        if let Some(own) = connections.get_mut(&number) {
            own.places = wants;
        }
        Ok(())
    }

    /// Takes a port or a queue that a program which has just ended may still have: while there is such a program, this tries
    /// again when one has left.
    fn take_after_others<T>(&self, mut take: impl FnMut() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            let taken = match take() {
                Err(error @ (Error::QueueTaken { .. } | Error::PortTaken { .. })) => error,
                result => return result,
            };
            let connections = lock(&self.connections);
            let Some(left) = LEAVING.checked_sub(begin.elapsed()) else { return Err(taken) };
            if !connections.values().any(|connected| connected.connection.has_ended()) {
                // The last one may have left meanwhile.
                drop(connections);
                return take();
            }
            drop(self.gone.wait_timeout(connections, left));
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

/// Whether there is room for so many `more` connections of a user's beside `count`, of which `of_user` are that user's. A user's
/// programs leave room for others', and all strangers' programs together leave room for managers.
fn has_room(most: usize, more: usize, count: usize, of_user: usize, is_manager: bool) -> bool {
    let kept = if is_manager { 0 } else { (most / 8).max(1) };
    count + more <= most - kept && of_user + more <= (most / 2).max(1)
}

/// What all connections count as, and those of a user.
fn places(connections: &HashMap<u64, Connected>, user: u32) -> [usize; 2] {
    let sum = |of: &dyn Fn(&Connected) -> bool| connections.values().filter(|it| of(it)).map(|it| it.places).sum();
    [sum(&|_| true), sum(&|connected| connected.user == user)]
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
        // They would be those of the server's own port, beyond what a program may ask for.
        if name.contains('?') {
            let why = "a name has no options here: rings and slots are asked for beside it";
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
        match is_trusted(self.user) {
            true => Ok(()),
            false => {
                let why = format!("only root and the server's own user may manage '{name}'\n  try: sudo");
                Err(Error::Refused { why, errno: libc::EPERM })
            }
        }
    }

    /// An interface is the machine's: a program that has it takes its packets away from Linux. A socket for it says that
    /// those whom the socket lets in may have it; at the socket of all names it takes a manager.
    fn check_interface(&self, name: &str) -> Result<()> {
        let is_memory = name.starts_with("vale") || is_pipe(name);
        if is_memory || self.only.is_some() || is_trusted(self.user) || lock(&self.state.lasting).contains_key(name) {
            return Ok(());
        }
        let why = format!(
            "interface '{name}' is for root and the server's own user\n  to let others have it: sudo linerate serve {}",
            base(name)
        );
        Err(Error::Refused { why, errno: libc::EPERM })
    }

    /// Who monitors a port sees its packets: for its user, and who manages.
    fn check_monitor(&self, name: &str) -> Result<()> {
        let owner = match is_pipe(name) {
            true => match lock(&self.state.pipes).get(&pipe_of(name).0) {
                Some(Pipe::There(pipe)) => Some(pipe.user),
                _ => None,
            },
            false => self.state.served(name).map(|served| served.user),
        };
        let joins = self.state.joins_users.load(Ordering::Relaxed) && owner.is_some();
        if joins || owner == Some(self.user) || is_trusted(self.user) {
            return Ok(());
        }
        let why = format!(
            "a monitor sees all packets, and '{name}' is no port of user {}'s\n  to let users see each other's: linerate serve --join-users",
            self.user
        );
        Err(Error::Refused { why, errno: libc::EPERM })
    }

    /// The rings of a port, or those that it would have: nothing is opened for a question.
    fn info(&self, name: &str) -> Result<Rings> {
        let usual = usual(&Rings::default());
        if is_pipe(name) {
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
        if is_pipe(&wanted.name) && !wanted.monitor_rx && !wanted.monitor_tx {
            let state = self.state;
            return state.take_after_others(|| self.open_pipe(&wanted));
        }
        self.check_interface(&wanted.name)?;
        let is_monitor = wanted.monitor_rx || wanted.monitor_tx;
        if is_monitor {
            self.check_monitor(&wanted.name)?;
        }
        self.state.make_room(self.connection, &usual(&wanted.rings))?;
        let name = wanted.full_name();
        let served = match is_monitor {
            // Each monitor is a port of its own.
            true => {
                let rings = usual(&wanted.rings);
                let device = (self.state.open)(&name, &rings)?;
                if is_pipe(&wanted.name) {
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
        self.state.take_after_others(|| served.join(wanted.exclusive))?;
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
            let take = || served.queue(device, wanted, n, served.rings.tx, |device, n| device.tx(n));
            let queue = self.state.take_after_others(take)?;
            work.sending.push(Sending::new(Consumer::new(ring(place)?), queue, &pool, longest, &served.header));
        }
        for (n, place) in placed.rx.iter().enumerate().filter_map(|(n, place)| Some((n as u16, place.as_ref()?))) {
            let take = || served.queue(device, wanted, n, served.rings.rx, |device, n| device.rx(n));
            let queue = self.state.take_after_others(take)?;
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
            if served.user != self.user && !is_trusted(self.user) {
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

/// Tells whether a name is of a pipe's end.
fn is_pipe(name: &str) -> bool {
    name.contains(['{', '}'])
}

/// The name that a port's socket has: its switch, or its interface.
pub fn base(name: &str) -> &str {
    let end = |c: char| if name.starts_with("vale") { c == ':' } else { "{}^/*+".contains(c) };
    name.split(end).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::area::{Area, Offsets, Plan};

    /// A user who is neither root nor the one who serves.
    const STRANGER: u32 = 12_345;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn connection() -> Arc<Connection> {
        let [ours, _] = Connection::pair().unwrap();
        Arc::new(ours)
    }

    fn session<'a>(server: &'a Server, connection: &'a Arc<Connection>, user: u32, only: Option<&str>) -> Session<'a> {
        let only = only.map(str::to_string);
        let (work, served, pipe, shadow) = (None, None, None, None);
        Session { state: &server.state, connection, user, only, work, served, pipe, shadow }
    }

    fn ask(session: &mut Session<'_>, request: Request) -> std::result::Result<Reply, i32> {
        session.answer(request, Vec::new()).map(|(reply, _)| reply).map_err(|error| errno(&error))
    }

    fn wanted(name: &str) -> Wanted {
        Wanted { name: name.to_string(), ..Wanted::default() }
    }

    fn open(session: &mut Session<'_>, name: &str) -> std::result::Result<Reply, i32> {
        ask(session, Request::Open(wanted(name)))
    }

    fn info(session: &mut Session<'_>, name: &str) -> std::result::Result<Rings, i32> {
        match ask(session, Request::Info { name: name.to_string() })? {
            Reply::Info { rings } => Ok(rings),
            reply => panic!("{reply:?}"),
        }
    }

    fn header(session: &mut Session<'_>, name: &str, set: Option<usize>) -> std::result::Result<u32, i32> {
        match ask(session, Request::Header { name: name.to_string(), set })? {
            Reply::Done { number } => Ok(number),
            reply => panic!("{reply:?}"),
        }
    }

    fn create(name: &str) -> Request {
        Request::Create { name: name.to_string(), rings: Rings::default() }
    }

    fn attach(switch: &str, port: &str) -> Request {
        Request::Attach { switch: switch.to_string(), port: port.to_string(), host: false, rings: Rings::default() }
    }

    fn detach(switch: &str, port: &str) -> Request {
        Request::Detach { switch: switch.to_string(), port: port.to_string() }
    }

    fn listed(session: &mut Session<'_>) -> Vec<(String, u8)> {
        match ask(session, Request::List).unwrap() {
            Reply::List(list) => list.into_iter().map(|port| (port.name, port.number)).collect(),
            reply => panic!("{reply:?}"),
        }
    }

    #[test]
    fn only_root_and_the_server_s_user_manage() {
        let (server, connection) = (crate::server(), connection());
        let mut stranger = session(&server, &connection, STRANGER, None);
        for request in [
            attach("vale80", "last80"),
            detach("vale80", "last80"),
            create("last80"),
            Request::Destroy { name: "last80".to_string() },
        ] {
            assert_eq!(ask(&mut stranger, request).unwrap_err(), libc::EPERM);
        }
        assert!(lock(&server.state.lasting).is_empty());
        for user in [0, own()] {
            let mut manager = session(&server, &connection, user, None);
            assert!(ask(&mut manager, create("last80")).is_ok());
            assert!(ask(&mut manager, Request::Destroy { name: "last80".to_string() }).is_ok());
        }
    }

    /// None of this machine's interfaces is opened here: there is none of that name.
    #[test]
    fn an_interface_is_for_managers_and_at_a_socket_of_its_own() {
        const NONE: &str = "linerate_none";
        let (server, connection) = (crate::server(), connection());
        let opened = |user: u32, only: Option<&str>, name: &str| {
            open(&mut session(&server, &connection, user, only), name).unwrap_err()
        };
        assert_eq!(opened(STRANGER, None, NONE), libc::EPERM);
        for (user, only) in [(0, None), (own(), None), (STRANGER, Some(NONE))] {
            assert_ne!(opened(user, only, NONE), libc::EPERM);
        }
        // A port that lasts is nobody's interface.
        ask(&mut session(&server, &connection, 0, None), create("last81")).unwrap();
        assert_eq!(opened(STRANGER, None, "last81"), libc::ENXIO);
        assert!(open(&mut session(&server, &connection, STRANGER, None), "vale81:a").is_ok());
        assert!(open(&mut session(&server, &connection, STRANGER, None), "pipe81{1").is_ok());
    }

    #[test]
    fn a_socket_for_one_name_is_for_no_other() {
        let (server, connection) = (crate::server(), connection());
        let mut manager = session(&server, &connection, own(), Some("vale82"));
        assert!(info(&mut manager, "vale82:a").is_ok());
        for name in ["vale83:a", "vale8:a", "last82", "a{1", "0000:03:00.0"] {
            assert_eq!(info(&mut manager, name).unwrap_err(), libc::ENXIO, "{name}");
            assert_eq!(header(&mut manager, name, None).unwrap_err(), libc::ENXIO, "{name}");
            assert_eq!(open(&mut manager, name).unwrap_err(), libc::ENXIO, "{name}");
        }
        assert_eq!(ask(&mut manager, create("last82")).unwrap_err(), libc::ENXIO);
        // At that of all names cards are refused, too.
        assert_eq!(open(&mut session(&server, &connection, 0, None), "0000:03:00.0").unwrap_err(), libc::ENXIO);
        let names = ["vale1:a", "vale1:a{2", "eth0", "eth0^", "eth0/r", "eth0*", "eth0+", "eth0{1", "eth0}1", "", ":"];
        let bases = ["vale1", "vale1", "eth0", "eth0", "eth0", "eth0", "eth0", "eth0", "eth0", "", ":"];
        assert_eq!(names.map(base), bases);
    }

    #[test]
    fn a_header_is_set_by_who_has_the_port() {
        let (server, connection) = (crate::server(), connection());
        let mut user = session(&server, &connection, STRANGER, None);
        assert_eq!(header(&mut user, "vale84:a", None).unwrap_err(), libc::ENXIO, "nobody has it");
        open(&mut user, "vale84:a").unwrap();
        assert_eq!(header(&mut user, "vale84:a", None), Ok(0));
        for len in [1, 9, 11, 13, 4096, usize::MAX] {
            assert_eq!(header(&mut user, "vale84:a", Some(len)).unwrap_err(), libc::EINVAL, "{len}");
        }
        let mut other = session(&server, &connection, STRANGER + 1, None);
        assert_eq!(header(&mut other, "vale84:a", Some(10)).unwrap_err(), libc::EPERM);
        assert_eq!(header(&mut other, "vale84:a", None), Ok(0));
        for (user, len) in [(STRANGER, 12), (0, 10), (own(), 12)] {
            let mut user = session(&server, &connection, user, None);
            assert_eq!(header(&mut user, "vale84:a", Some(len)), Ok(len as u32));
            assert_eq!(header(&mut user, "vale84:a", None), Ok(len as u32));
        }
        // Who knows of no header is not let in, and who does is.
        assert_eq!(open(&mut other, "vale84:a").unwrap_err(), libc::EIO);
        assert!(ask(&mut other, Request::Open(Wanted { takes_header: true, ..wanted("vale84:a") })).is_ok());
        // A pipe has none, and cannot have one.
        let mut end = session(&server, &connection, STRANGER, None);
        open(&mut end, "pipe84{1").unwrap();
        for name in ["pipe84{1", "pipe84}1"] {
            assert_eq!(header(&mut end, name, None), Ok(0));
            assert!(header(&mut end, name, Some(10)).is_err());
        }
        ask(&mut session(&server, &connection, 0, None), create("last84")).unwrap();
        ask(&mut session(&server, &connection, 0, None), attach("vale85", "last84")).unwrap();
        let mut lasting = session(&server, &connection, 0, None);
        open(&mut lasting, "last84").unwrap();
        assert_eq!(header(&mut lasting, "last84", Some(10)).unwrap_err(), libc::ENXIO);
    }

    #[test]
    fn a_connection_opens_one_port_and_an_exclusive_one_is_alone() {
        let (server, connection) = (crate::server(), connection());
        let mut first = session(&server, &connection, own(), None);
        open(&mut first, "vale86:a").unwrap();
        assert_eq!(open(&mut first, "vale86:b").unwrap_err(), libc::EINVAL);
        assert_eq!(open(&mut first, "pipe86{1").unwrap_err(), libc::EINVAL);
        let alone = || Request::Open(Wanted { exclusive: true, ..wanted("vale86:a") });
        let mut second = session(&server, &connection, own(), None);
        assert_eq!(ask(&mut second, alone()).unwrap_err(), libc::EBUSY);
        open(&mut second, "vale86:a").unwrap();
        first.close();
        let mut third = session(&server, &connection, own(), None);
        assert_eq!(ask(&mut third, alone()).unwrap_err(), libc::EBUSY, "the second one still has it");
        second.close();
        ask(&mut third, alone()).unwrap();
        assert_eq!(open(&mut second, "vale86:a").unwrap_err(), libc::EBUSY);
        third.close();
        open(&mut second, "vale86:a").unwrap();
    }

    #[test]
    fn a_program_starts_the_rings_that_it_asked_for() {
        let (server, connection) = (crate::server(), connection());
        let rings = Rings { tx: 2, rx: 2, tx_slots: 64, rx_slots: 64, ..Rings::default() };
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let placed = area.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        let buffers = area.memory.buffers;
        let memory = || area.memory.as_fd().try_clone_to_owned().unwrap();
        let start = |which: Which, tx: &[usize], rx: &[usize]| {
            let mut user = session(&server, &connection, own(), None);
            ask(&mut user, Request::Open(Wanted { which, rings, ..wanted("vale87:a") })).unwrap();
            let mut asked = placed.clone();
            asked.tx.iter_mut().enumerate().filter(|(n, _)| !tx.contains(n)).for_each(|(_, place)| *place = None);
            asked.rx.iter_mut().enumerate().filter(|(n, _)| !rx.contains(n)).for_each(|(_, place)| *place = None);
            let started = user.start(Some(memory()), buffers, &asked).map(drop);
            if started.is_ok() {
                let again = user.start(Some(memory()), buffers, &asked).map(drop);
                assert!(matches!(again, Err(Error::BadPeer { .. })), "it has started already");
            }
            user.close();
            started.map_err(|error| errno(&error))
        };
        assert!(start(Which::All, &[0, 1], &[0, 1]).is_ok());
        assert!(start(Which::One(1), &[1], &[1]).is_ok());
        for (which, tx, rx) in [
            (Which::One(1), &[0][..], &[][..]),
            (Which::One(1), &[][..], &[0][..]),
            (Which::One(0), &[0, 1], &[0]),
            (Which::None, &[0], &[]),
            (Which::None, &[], &[1]),
        ] {
            assert_eq!(start(which, tx, rx).unwrap_err(), libc::EINVAL, "{which:?} {tx:?} {rx:?}");
        }
        let mut closed = session(&server, &connection, own(), None);
        assert!(closed.start(Some(memory()), buffers, &placed).is_err(), "nothing is open");
        open(&mut closed, "vale87:a").unwrap();
        assert!(closed.start(None, buffers, &placed).is_err(), "no memory");
    }

    #[test]
    fn rings_that_a_port_has_not_are_refused() {
        let rings = Rings { tx: 2, rx: 3, host_tx: 1, host_rx: 2, ..Rings::default() };
        let check = |which: Which, rings: &Rings| Wanted { which, ..Wanted::default() }.check(rings).is_ok();
        assert_eq!([0, 2, 3].map(|n| check(Which::One(n), &rings)), [true, true, false]);
        assert_eq!([0, 1, 2].map(|n| check(Which::OneOfHost(n), &rings)), [true, true, false]);
        for which in [Which::Host, Which::AllAndHost] {
            assert!(check(which, &rings) && !check(which, &rings.of_card()));
        }
        for which in [Which::All, Which::None] {
            assert!(check(which, &rings) && check(which, &rings.of_card()));
        }
        assert_eq!(rings.of_card(), Rings { tx: 2, rx: 3, ..Rings::default() });
        assert_eq!(rings.of_host(), Rings { tx: 1, rx: 2, ..Rings::default() });
    }

    #[test]
    fn what_is_asked_for_is_kept_within_limits() {
        let one = Rings { tx: 1, rx: 1, host_tx: 1, host_rx: 1, tx_slots: SLOTS, rx_slots: SLOTS };
        assert_eq!(usual(&Rings::default()), one);
        let many = u16::MAX;
        let asked = Rings { tx: many, rx: many, host_tx: many, host_rx: many, tx_slots: u32::MAX, rx_slots: 1 };
        let (most, slots) = (MOST_RINGS, MOST_SLOTS);
        let given = Rings { tx: most, rx: most, host_tx: most, host_rx: most, tx_slots: slots, rx_slots: 2 };
        assert_eq!(usual(&asked), given);
    }

    /// Whose maker says nothing more keeps the other end waiting, for a while, and nobody else.
    #[test]
    fn a_pipe_that_is_never_made_holds_up_only_who_wants_it() {
        let (server, connections) = (crate::server(), [connection(), connection(), connection()]);
        let [maker, other, third] = &connections;
        let mut maker = session(&server, maker, own(), None);
        assert!(matches!(open(&mut maker, "pipe97{1"), Ok(Reply::Opened { first_of_pipe: true, .. })));
        std::thread::scope(|scope| {
            let waits = |name: &'static str| {
                let (server, other) = (&server, other);
                scope.spawn(move || open(&mut session(server, other, own(), None), name))
            };
            let late = waits("pipe97}1");
            let mut third = session(&server, third, own(), None);
            assert!(open(&mut third, "pipe97{2").is_ok() && listed(&mut third).is_empty());
            assert_eq!(late.join().unwrap().unwrap_err(), libc::EBUSY, "after a while");
            // Once the maker has gone who waits is the first.
            let next = waits("pipe97}1");
            maker.leave_pipe();
            assert!(matches!(next.join().unwrap(), Ok(Reply::Opened { first_of_pipe: true, .. })));
        });
    }

    #[test]
    fn a_port_is_monitored_by_its_user_and_who_manages() {
        let (server, connection) = (crate::server(), connection());
        let monitor = |user: u32, name: &str| {
            let wanted = Wanted { monitor_rx: true, monitor_tx: true, ..wanted(name) };
            ask(&mut session(&server, &connection, user, None), Request::Open(wanted)).map(drop)
        };
        let mut user = session(&server, &connection, STRANGER, None);
        open(&mut user, "vale96:a").unwrap();
        ask(&mut session(&server, &connection, own(), None), attach("vale96", "pipe96{1")).unwrap();
        for name in ["vale96:a", "vale96:pipe96_1", "vale96:none", "pipe96{2"] {
            assert_eq!(monitor(STRANGER + 1, name), Err(libc::EPERM), "{name}");
        }
        assert_eq!((monitor(STRANGER, "vale96:a"), monitor(own(), "vale96:a")), (Ok(()), Ok(())));
        assert_eq!(monitor(STRANGER, "vale96:pipe96_1"), Err(libc::EPERM), "who manages has attached it");
        // Of a pipe that is being made nobody knows the user yet.
        let mut maker = session(&server, &connection, STRANGER, None);
        open(&mut maker, "pipe96{3").unwrap();
        assert_eq!(monitor(STRANGER, "pipe96{3"), Err(libc::EPERM));
        server.state.joins_users.store(true, Ordering::Relaxed);
        assert_eq!(monitor(STRANGER + 1, "vale96:a"), Ok(()));
        assert_eq!(monitor(STRANGER + 1, "vale96:pipe96_1"), Err(libc::EPERM));
    }

    /// Each ring that receives takes a descriptor of the server's.
    #[test]
    fn a_user_s_ports_of_many_rings_leave_others_theirs() {
        let server = crate::server();
        let (ours, others) = (connection(), connection());
        let half = most_connections() / 2;
        let has = |connection: &Arc<Connection>, number: u64, places: usize| {
            let thread = std::thread::spawn(|| ());
            let connected = Connected { connection: connection.clone(), thread, user: STRANGER, places };
            lock(&server.state.connections).insert(number, connected);
        };
        has(&ours, 1, 1);
        has(&others, 2, half - 2);
        let mut user = session(&server, &ours, STRANGER, None);
        let mut asked = |rx: u16| {
            let wanted = Wanted { rings: Rings { rx, ..Rings::default() }, ..wanted("vale94:a") };
            let result = ask(&mut user, Request::Open(wanted)).map(drop);
            user.close();
            (result, lock(&server.state.connections)[&1].places)
        };
        assert_eq!(asked(7), (Ok(()), 1));
        assert_eq!(asked(8), (Ok(()), 2), "the host's is one, too");
        assert_eq!(asked(23), (Ok(()), 2));
        assert_eq!(asked(24), (Err(libc::EAGAIN), 2));
        lock(&server.state.connections).remove(&2);
        assert_eq!(asked(u16::MAX), (Ok(()), 3));
    }

    #[test]
    fn options_are_not_a_part_of_a_name() {
        let (server, connection) = (crate::server(), connection());
        let mut user = session(&server, &connection, own(), None);
        for name in ["vale95:a?queues=64&ring=4096", "pipe95{1?queues=64", "lo?flow=all"] {
            assert_eq!(open(&mut user, name).unwrap_err(), libc::ENXIO, "{name}");
            assert_eq!(info(&mut user, name).unwrap_err(), libc::ENXIO, "{name}");
            assert_eq!(header(&mut user, name, None).unwrap_err(), libc::ENXIO, "{name}");
        }
    }

    #[test]
    fn a_question_opens_nothing() {
        let (server, connection) = (crate::server(), connection());
        let mut user = session(&server, &connection, own(), None);
        let usual = usual(&Rings::default());
        assert_eq!(info(&mut user, "vale88:a"), Ok(usual.of_card()));
        assert_eq!(info(&mut user, "pipe88{1"), Ok(usual.of_card()));
        assert!(info(&mut user, "vale88:a?wire=none").is_err() && info(&mut user, "linerate_none").is_err());
        assert_eq!(info(&mut user, "lo"), Ok(usual), "an interface of this machine has a host's stack");
        assert!(listed(&mut user).is_empty() && lock(&server.state.pipes).is_empty());
        // What is there has the rings that it was made with.
        let rings = Rings { tx: 2, rx: 3, tx_slots: 64, rx_slots: 128, ..Rings::default() };
        ask(&mut user, Request::Open(Wanted { rings, ..wanted("vale88:a") })).unwrap();
        assert_eq!(info(&mut user, "vale88:a"), Ok(rings));
        ask(&mut user, Request::Create { name: "last88".to_string(), rings }).unwrap();
        assert_eq!(info(&mut user, "last88"), Ok(rings));
    }

    #[test]
    fn ports_that_last_have_names_of_interfaces() {
        let (server, connection) = (crate::server(), connection());
        let mut manager = session(&server, &connection, own(), None);
        for name in ["", "lasting-89", "lasting 89", "a234567890123456", "vale89", "vale", "lasting.89", "äöü"] {
            assert_eq!(ask(&mut manager, create(name)).unwrap_err(), libc::EINVAL, "{name}");
        }
        assert_eq!(ask(&mut manager, create("lo")).unwrap_err(), libc::EBUSY, "it is an interface");
        for name in ["a", "lasting_89", "a23456789012345"] {
            assert!(ask(&mut manager, create(name)).is_ok(), "{name}");
            assert_eq!(ask(&mut manager, create(name)).unwrap_err(), libc::EBUSY, "it is there");
        }
    }

    #[test]
    fn a_port_is_detached_from_its_own_switch_when_nobody_has_it() {
        let (server, connection) = (crate::server(), connection());
        let mut manager = session(&server, &connection, own(), None);
        let mut user = session(&server, &connection, STRANGER, None);
        ask(&mut manager, create("last90")).unwrap();
        let destroy = || Request::Destroy { name: "last90".to_string() };
        assert_eq!(listed(&mut manager), [("last90".to_string(), 0)]);
        assert_eq!(ask(&mut manager, detach("vale90", "last90")).unwrap_err(), libc::ENXIO);
        let mut other = session(&server, &connection, STRANGER, None);
        open(&mut other, "vale90:first").unwrap();
        assert!(matches!(ask(&mut manager, attach("vale90", "last90")), Ok(Reply::Done { number: 1 })));
        assert_eq!(ask(&mut manager, attach("vale91", "last90")).unwrap_err(), libc::EBUSY);
        assert_eq!(ask(&mut manager, destroy()).unwrap_err(), libc::EBUSY);
        let both = [("vale90:first".to_string(), 0), ("vale90:last90".to_string(), 1)];
        assert_eq!(listed(&mut manager), both);
        let mut only = session(&server, &connection, own(), Some("vale91"));
        assert!(listed(&mut only).is_empty(), "a socket lists its own name's");
        open(&mut user, "last90").unwrap();
        assert_eq!(ask(&mut manager, detach("vale90", "last90")).unwrap_err(), libc::EBUSY, "a program has it");
        user.close();
        assert_eq!(ask(&mut manager, detach("vale91", "last90")).unwrap_err(), libc::ENXIO, "it is elsewhere");
        assert!(matches!(ask(&mut manager, detach("vale90", "last90")), Ok(Reply::Done { number: 1 })));
        assert!(ask(&mut manager, destroy()).is_ok());
        assert_eq!(ask(&mut manager, destroy()).unwrap_err(), libc::ENXIO);
    }

    #[test]
    fn connections_are_shared_between_users_and_some_are_kept_for_who_manages() {
        assert!(has_room(16, 1, 7, 7, false) && !has_room(16, 1, 8, 8, false), "half for a user");
        assert!(has_room(16, 1, 13, 0, false) && !has_room(16, 1, 14, 0, false), "an eighth is nobody's");
        assert!(has_room(16, 1, 15, 7, true) && !has_room(16, 1, 16, 0, true));
        assert!(has_room(2, 1, 0, 0, false) && !has_room(2, 1, 1, 0, false) && has_room(2, 1, 1, 0, true));
        assert!(has_room(16, 4, 4, 4, false) && !has_room(16, 5, 4, 4, false), "many rings count as several");
    }

    #[test]
    fn ends_of_a_pipe_are_one_user_s_unless_the_server_joins_users() {
        let connection = connection();
        let rings = Rings { tx: 1, rx: 1, tx_slots: 64, rx_slots: 64, ..Rings::default() };
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let place = || area.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        let (buffers, ends) = (area.memory.buffers, [place(), place()]);
        let memory = || Some(area.memory.as_fd().try_clone_to_owned().unwrap());
        for joins in [false, true] {
            let server = crate::server();
            if joins {
                server.join_users();
            }
            let mut maker = session(&server, &connection, STRANGER, None);
            assert!(maker.start_pipe(memory(), buffers, ends.clone()).is_err(), "nothing is open");
            open(&mut maker, "pipe92{1").unwrap();
            let mut many = ends.clone();
            many[1].rx = vec![None; usize::from(MOST_RINGS) + 1];
            assert!(maker.start_pipe(memory(), buffers, many.clone()).is_err(), "too many rings");
            many.swap(0, 1);
            (many[0].tx, many[0].rx) = (many[0].rx.clone(), Vec::new());
            assert!(maker.start_pipe(memory(), buffers, many).is_err(), "too many rings");
            assert!(maker.start_pipe(None, buffers, ends.clone()).is_err(), "no memory");
            maker.start_pipe(memory(), buffers, ends.clone()).unwrap();
            assert!(maker.start_pipe(memory(), buffers, ends.clone()).is_err(), "it is there");
            assert_eq!(info(&mut maker, "pipe92}1"), Ok(rings));
            let mut second = session(&server, &connection, STRANGER, None);
            assert_eq!(open(&mut second, "pipe92{1").unwrap_err(), libc::EBUSY, "this end is taken");
            let mut other = session(&server, &connection, STRANGER + 1, None);
            match open(&mut other, "pipe92}1") {
                Err(error) => assert!(!joins && error == libc::EPERM),
                Ok(Reply::Joined { mine, other, .. }) => assert!(joins && mine == ends[1] && other == ends[0]),
                Ok(reply) => panic!("{reply:?}"),
            }
            other.close();
            open(&mut second, "pipe92}1").unwrap();
            assert!(maker.close(), "the other end is open");
            assert!(!second.close(), "it was the last one");
            assert!(lock(&server.state.pipes).is_empty());
        }
    }

    #[test]
    fn errors_are_told_as_numbers() {
        let name = String::new;
        let system = |number: i32| std::io::Error::from_raw_os_error(number);
        let source = || std::io::Error::other("none of the kernel's");
        for (error, number) in [
            (Error::PortTaken { port: name() }, libc::EBUSY),
            (Error::NotOpen { port: name() }, libc::ENXIO),
            (Error::NotServed { name: name(), why: "" }, libc::ENXIO),
            (Error::NoServer { name: name(), folder: PathBuf::new() }, libc::ENXIO),
            (Error::AreaFull { what: "" }, libc::ENOMEM),
            (Error::Unsupported { port: name(), what: "", why: "" }, libc::EOPNOTSUPP),
            (Error::Refused { why: name(), errno: libc::EXDEV }, libc::EXDEV),
            (Error::BadRing, libc::EINVAL),
            (Error::BadPeer { why: "" }, libc::EINVAL),
            (Error::System { call: "", source: system(libc::ENFILE) }, libc::ENFILE),
            (Error::System { call: "", source: source() }, libc::EIO),
        ] {
            assert_eq!(errno(&error), number, "{error:?}");
        }
    }

    #[test]
    fn drops_of_both_kinds_are_listed() {
        let mut statistics = crate::port::Statistics { rx_packets: 1, tx_packets: 2, ..Default::default() };
        (statistics.drops.no_descriptor, statistics.drops.oversize) = (30, 400);
        let state = state_of("a", 5, &statistics);
        assert_eq!((state.number, state.rx_packets, state.tx_packets, state.drops), (5, 1, 2, 430));
    }

    #[test]
    fn packets_begin_where_a_program_has_said() {
        let (server, connection) = (crate::server(), connection());
        let rings = Rings { tx: 1, rx: 1, tx_slots: 64, rx_slots: 64, ..Rings::default() };
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let offsets = Offsets { mask: 0xFF0, first: 0 };
        let placed = area.place("a", &rings, |_| true, |_| true, offsets).unwrap();
        let memory = area.memory.as_fd().try_clone_to_owned().unwrap();
        let mut user = session(&server, &connection, own(), None);
        ask(&mut user, Request::Open(Wanted { rings, ..wanted("vale93:a") })).unwrap();
        user.start(Some(memory), area.memory.buffers, &placed).map(drop).unwrap();
        let work = user.work.as_ref().unwrap();
        let masks = (work.sending[0].ring.ring.offset_mask, work.receiving[0].ring.ring.offset_mask);
        assert_eq!(masks, (0xFF0, 0xFF0));
    }

    #[test]
    fn ports_that_nobody_has_are_forgotten() {
        let (server, connection) = (crate::server(), connection());
        let mut user = session(&server, &connection, own(), None);
        for name in ["vale94:a", "vale94:b", "vale94:c"] {
            open(&mut user, name).unwrap();
            assert_eq!(lock(&server.state.ports).len(), 1, "{name} is the only one");
            user.close();
        }
    }
}
