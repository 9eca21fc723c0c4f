//! The server's end: opens ports for other processes, creates the memory for their rings, and moves packets between
//! rings and ports.
//!
//! - this file: [`Server`], with its sockets; [`State`], which all its threads share
//! - `connections`: limits the number of connections, and tracks when they end; `quota`: limits per user
//! - `request_handler`: answers the requests of a connection without a port
//! - `session`: a port's rings at a client, and the connections that are its descriptors
//! - `served`: ports that clients have open; `pipes`: pipes between processes; `shadow`: copies a pipe's packets for
//!   monitors
//! - `switches`: management: attached ports, persistent ports, and a list of all ports
//! - `pump`: moves packets between a client's rings and a port, top-down; `recipient`: copies them into a receive ring
//! - `netmap_memory`: the memory of ports and its free parts; `memory_numbers`: finds memory by its number
//!
//! Each connection has a thread until it opens a port. From then on, each session has a thread, which ends when the
//! session's last connection ends.

mod connections;
#[cfg(fuzzing)]
mod fuzzing;
mod memory_numbers;
pub mod netmap_memory;
mod pipes;
pub mod pump;
mod quota;
pub mod recipient;
mod request_handler;
mod served;
mod session;
mod shadow;
mod switches;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use connections::{Connected, Spare};
#[cfg(fuzzing)]
pub use fuzzing::fuzz;
use linerate_core::error::{Error, Result};
use linerate_core::port::Port;
use memory_numbers::MemoryNumbers;
use pipes::Pipe;
use quota::ExtraQuota;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use served::Served;
use session::Session;
use switches::{Attached, PersistentPort};

use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::socket::listen_at;

/// Opens a port by name, with these rings.
pub type Open = dyn Fn(&str, &RingCounts) -> Result<Port> + Send + Sync;

/// Serves ports at sockets until it is dropped.
pub struct Server {
    state: Arc<State>,
    listeners: Vec<(Arc<OwnedFd>, PathBuf, Option<JoinHandle<()>>)>,
}

pub(super) struct State {
    open: Box<Open>,
    /// Open ports, by full name.
    ports: Mutex<HashMap<String, Weak<Served>>>,
    pipes: Mutex<HashMap<String, Pipe>>,
    memory_numbers: Mutex<MemoryNumbers>,
    extra: ExtraQuota,
    sessions: Mutex<Vec<Weak<Session>>>,
    /// Proofs that were sent, and where they arrived.
    proofs: Mutex<HashMap<[u8; 16], Proved>>,
    proved: Condvar,
    attached: Mutex<Vec<Attached>>,
    persistent: Mutex<HashMap<String, PersistentPort>>,
    /// All connections; they end with the server.
    connections: Mutex<HashMap<u64, Connected>>,
    /// Notified when a connection ends.
    gone: Condvar,
    next: AtomicU64,
    stopping: AtomicBool,
    /// Held while a client is accepted.
    accepting: Mutex<()>,
    /// Whether the ends of one pipe may belong to different users.
    joins_users: AtomicBool,
}

/// Where a proof arrived: not yet anywhere, at a connection without a port, or at a session.
type Proved = Option<Option<Arc<Session>>>;

impl Server {
    /// Creates a server without sockets; `open` opens its ports.
    pub fn new(open: Box<Open>) -> Server {
        let state = State {
            open,
            ports: Mutex::default(),
            pipes: Mutex::default(),
            memory_numbers: Mutex::default(),
            extra: ExtraQuota::default(),
            sessions: Mutex::default(),
            proofs: Mutex::default(),
            proved: Condvar::new(),
            attached: Mutex::default(),
            persistent: Mutex::default(),
            connections: Mutex::default(),
            gone: Condvar::new(),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            accepting: Mutex::default(),
            joins_users: AtomicBool::new(false),
        };
        Server { state: Arc::new(state), listeners: Vec::new() }
    }

    /// Allows clients of different users at the two ends of a pipe. The ends share memory, so each user can read and
    /// change all packets of the pipe. Without this call the second user is refused.
    pub fn join_users(&self) {
        self.state.joins_users.store(true, Ordering::Relaxed);
    }

    /// Serves ports at a socket, for users that `mode` and `group` admit. `only` limits it to the ports of one name,
    /// such as `vale0` or `eth0`.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the path is already served, or the socket cannot
    /// be created.
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
                    Ok(socket) => State::accept(&state, Arc::new(Connection::new(socket)), only.clone()),
                    Err(Errno::MFILE | Errno::NFILE) => spare.refuse(&listener),
                    Err(Errno::AGAIN) => {}
                    // The client is gone, or memory is temporarily short.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("linerate-accept".to_string()).spawn(accept);
        let thread = thread.map_err(Error::thread)?;
        self.listeners.push((socket, path.to_path_buf(), Some(thread)));
        Ok(())
    }
}

impl Server {
    /// Waits until no client has used the server for `first`, or for `again` once there has been a client.
    pub fn wait_until_idle(&self, first: Duration, again: Duration) {
        let mut since = Instant::now();
        loop {
            let connections = lock(&self.state.connections);
            if !connections.is_empty() {
                drop(self.state.gone.wait_timeout(connections, first));
                since = Instant::now();
                continue;
            }
            drop(connections);
            let is_idle = self.state.is_idle(self.is_unreachable());
            if !is_idle {
                since = Instant::now();
            }
            let is_new = self.state.next.load(Ordering::Relaxed) == 0;
            let patience = if is_new || !is_idle { first } else { again };
            let Some(left) = patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else { return };
            // If attached ports keep the server alive, or a connection has just ended, checks again when the next one
            // ends.
            drop(self.state.gone.wait_timeout(lock(&self.state.connections), left));
        }
    }
}

impl Server {
    /// Returns whether all sockets were removed, so that clients cannot find the server.
    fn is_unreachable(&self) -> bool {
        !self.listeners.iter().any(|(_, path, _)| path.exists())
    }

    /// Ends the server if no client uses it; otherwise returns it. Every client that has found the socket is admitted.
    pub fn end_if_idle(mut self) -> Option<Server> {
        let folder = self.listeners.first().and_then(|(_, path, _)| path.parent());
        let locked = folder.map(crate::share::protocol::socket::lock);
        // If the folder was removed, clients cannot find the server any more.
        let is_unreachable = self.is_unreachable();
        if !matches!(locked, Some(Ok(_))) && !is_unreachable {
            return Some(self);
        }
        let aside =
            |path: &Path| path.with_file_name(format!(".ending-{}", path.file_name().unwrap_or_default().display()));
        for (_, path, _) in &self.listeners {
            // From here on, no client finds the socket, and no other server can take the path.
            let _ = fs::rename(path, aside(path));
        }
        let accepting = lock(&self.state.accepting);
        let waits = |socket: &OwnedFd| {
            let mut event = [PollFd::new(socket, PollFlags::IN)];
            poll(&mut event, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
        };
        let is_idle = self.state.is_idle(is_unreachable) && !self.listeners.iter().any(|(socket, _, _)| waits(socket));
        drop(accepting);
        if !is_idle {
            for (_, path, _) in &self.listeners {
                let _ = fs::rename(aside(path), path);
            }
            return Some(self);
        }
        // From here on, another server may take the path.
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
        // Taken out first: the threads that `end` joins take this lock.
        let attached = std::mem::take(&mut *lock(&self.state.attached));
        attached.into_iter().for_each(Attached::end);
    }
}
