//! The server of ports that other processes use: it opens them, makes the memory for their rings, and moves packets between
//! those and the ports.
//!
//! - here: [`Server`]: sockets and connections; [`State`]: ports that are open, and how many connections there may be
//! - `talk`: a connection that has no port yet: what it asks for
//! - `session`: a port's rings at a program, and the connections that are its descriptors
//! - `areas`: memory, by its number
//! - `pipes`: pipes between processes
//! - `switches`: what is managed: attached ports, ports that last, a list of all
//!
//! Each connection is a thread until it has a port; then each session is one, and ends with the last of its connections.

mod connections;
#[cfg(fuzzing)]
mod fuzzing;
mod memory_numbers;
pub mod netmap_memory;
mod pipes;
pub mod pump;
pub mod recipient;
mod request_handler;
mod served;
mod session;
mod shadow;
mod switches;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub(crate) use fuzzing::fuzz;

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use connections::{Connected, Spare};
use memory_numbers::MemoryNumbers;
use pipes::Pipe;
use served::Served;
use session::Session;
use switches::{Attached, Lasting};

use crate::error::{Error, Result};
use crate::port::Port;
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::socket::listen_at;

/// Opens a port by name, with so many rings.
pub type Open = dyn Fn(&str, &RingCounts) -> Result<Port> + Send + Sync;

/// Serves ports at sockets, until it is dropped.
pub struct Server {
    state: Arc<State>,
    listeners: Vec<(Arc<OwnedFd>, PathBuf, Option<JoinHandle<()>>)>,
}

pub(super) struct State {
    open: Box<Open>,
    /// Ports that programs have, by full name.
    ports: Mutex<HashMap<String, Weak<Served>>>,
    pipes: Mutex<HashMap<String, Pipe>>,
    memory_numbers: Mutex<MemoryNumbers>,
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Proofs that were sent, and what was found by them.
    proofs: Mutex<HashMap<[u8; 16], Proved>>,
    proved: Condvar,
    attached: Mutex<Vec<Attached>>,
    lasting: Mutex<HashMap<String, Lasting>>,
    /// Connections, to be ended with the server.
    connections: Mutex<HashMap<u64, Connected>>,
    /// One of them has gone.
    gone: Condvar,
    next: AtomicU64,
    stopping: AtomicBool,
    /// Held while a client is let in.
    accepting: Mutex<()>,
    /// Ends of one pipe may be different users'.
    joins_users: AtomicBool,
}

/// Where a proof has come: not yet, at a connection without a port, or at a session.
type Proved = Option<Option<Arc<Session>>>;

impl Server {
    /// Serves nothing yet.
    pub fn new(open: Box<Open>) -> Server {
        let state = State {
            open,
            ports: Mutex::default(),
            pipes: Mutex::default(),
            memory_numbers: Mutex::default(),
            sessions: Mutex::default(),
            proofs: Mutex::default(),
            proved: Condvar::new(),
            attached: Mutex::default(),
            lasting: Mutex::default(),
            connections: Mutex::default(),
            gone: Condvar::new(),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            accepting: Mutex::default(),
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
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| Error::system("fcntl", error))?;
        let accept = move || {
            let mut spare = Spare::new();
            while !state.stopping.load(Ordering::SeqCst) {
                let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
                let _accepting = lock(&state.accepting);
                match accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(socket) => State::begin(&state, Arc::new(Connection::new(socket)), only.clone()),
                    Err(Errno::MFILE | Errno::NFILE) => spare.refuse(&listener),
                    Err(Errno::AGAIN) => {}
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

impl Server {
    /// Waits until nobody has used the server for some time.
    pub fn wait_until_idle(&self, time: Duration) {
        let mut since = Instant::now();
        loop {
            let connections = lock(&self.state.connections);
            drop(self.state.gone.wait_timeout(connections, time));
            if !self.state.is_idle(self.is_lost()) {
                since = Instant::now();
            } else if since.elapsed() >= time {
                return;
            }
        }
    }
}

impl Server {
    /// Returns whether no client can find the server: its sockets are gone.
    fn is_lost(&self) -> bool {
        !self.listeners.iter().any(|(_, path, _)| path.exists())
    }

    /// Ends the server if nobody uses it, or returns it. No client is turned away: one that finds the socket is let in.
    pub fn end_if_idle(mut self) -> Option<Server> {
        let folder = self.listeners.first().and_then(|(_, path, _)| path.parent());
        let locked = folder.map(crate::share::protocol::socket::lock);
        // Where the folder has been taken away nobody finds the server any more.
        let is_lost = self.is_lost();
        if !matches!(locked, Some(Ok(_))) && !is_lost {
            return Some(self);
        }
        let aside =
            |path: &Path| path.with_file_name(format!(".ending-{}", path.file_name().unwrap_or_default().display()));
        for (_, path, _) in &self.listeners {
            // From here on nobody finds it, and nobody else can have its place.
            let _ = fs::rename(path, aside(path));
        }
        let accepting = lock(&self.state.accepting);
        let waits = |socket: &OwnedFd| {
            let mut event = [PollFd::new(socket, PollFlags::IN)];
            poll(&mut event, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
        };
        let is_idle = self.state.is_idle(is_lost) && !self.listeners.iter().any(|(socket, _, _)| waits(socket));
        drop(accepting);
        if !is_idle {
            for (_, path, _) in &self.listeners {
                let _ = fs::rename(aside(path), path);
            }
            return Some(self);
        }
        // Another server may have the place from now on.
        self.listeners.iter_mut().for_each(|(_, path, _)| *path = aside(path));
        None
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
        for (_, Connected { connection, thread, .. }) in connections {
            connection.end();
            let _ = thread.join();
        }
        lock(&self.state.attached).drain(..).for_each(Attached::end);
    }
}
