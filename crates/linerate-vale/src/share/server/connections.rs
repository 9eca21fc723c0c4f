//! Limits the number of connections, and waits until they end.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::error::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::State;
use super::quota::has_room;
use super::request_handler::RequestHandler;
use super::served::reword_for_clients;
use crate::share::protocol::connection::Connection;
use crate::share::protocol::layout::RingCounts;
use crate::share::protocol::lock;
use crate::share::protocol::message::Reply;
use crate::share::protocol::socket::is_trusted;

/// Descriptors that a connection can make the server hold: the connection itself, its memory, eventfds, and those of a
/// few queues. A port with more queues counts as several connections.
const DESCRIPTORS_EACH: usize = 16;
const RINGS_INCLUDED: usize = 8;
/// The reason given when the server is full.
const FULL: &str = "the server has no room for more connections (ulimit -n; half for one user, some only for managers; a port of many rings counts as several)";
/// The most connections, each of which has a thread.
const MOST_CONNECTIONS: usize = 4096;

/// How long the next client waits until a client that has ended leaves its port.
const LEAVING: Duration = Duration::from_secs(1);
/// How long a request waits for a client whose end is not visible yet. The kernel reports that a process has exited
/// before it closes the descriptors, and netmap's own tests continue immediately.
const ENDING: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 100 });

/// A connection, its thread, and its client's user.
pub(super) struct Connected {
    pub(super) connection: Arc<Connection>,
    pub(super) thread: JoinHandle<()>,
    pub(super) user: u32,
    /// How many connections it counts as.
    pub(super) weight: usize,
}

/// A reserve descriptor. When no descriptors are left, it is closed so that a client can be accepted and refused,
/// instead of waiting.
pub(super) struct Spare(Option<fs::File>);

impl Spare {
    pub(super) fn new() -> Spare {
        Spare(fs::File::open("/dev/null").ok())
    }

    pub(super) fn refuse(&mut self, listener: &OwnedFd) {
        if self.0.take().is_some()
            && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
        {
            refuse(&Connection::new(socket), "the server has no descriptor left (ulimit -n)");
        } else {
            // Another thread took the freed descriptor.
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0 = fs::File::open("/dev/null").ok();
    }
}

/// Returns the error of a full server. It maps to `EAGAIN`, because there may be room later.
fn full(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Exhausted, "", why).with_source(Errno::AGAIN)
}

/// Refuses a client before it has sent a request.
pub(super) fn refuse(connection: &Connection, why: &str) {
    let _ = connection.send(&Reply::Refused(full(why.to_string())), &[]);
}

impl State {
    pub(super) fn accept(state: &Arc<State>, connection: Arc<Connection>, only: Option<String>) {
        let number = state.next.fetch_add(1, Ordering::Relaxed);
        let Ok((user, process)) = connection.peer() else { return };
        let (its_state, its_connection) = (state.clone(), connection.clone());
        // The new thread waits for this lock until its connection is in the list.
        let mut connections = lock(&state.connections);
        let [count, of_user] = weights(&connections, user);
        if !has_room(most_connections(), 1, count, of_user, is_trusted(user)) {
            drop(connections);
            return refuse(&connection, FULL);
        }
        let serve = move || {
            RequestHandler { state: its_state, connection: its_connection, number, user, process, only }.serve()
        };
        match std::thread::Builder::new().name(format!("linerate-{number}")).spawn(serve) {
            Ok(thread) => drop(connections.insert(number, Connected { connection, thread, user, weight: 1 })),
            Err(error) => refuse(&connection, &format!("the server cannot start a thread: {error}")),
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn forget(&self, number: u64) {
        let its = lock(&self.connections).remove(&number);
        self.gone.notify_all();
        drop(its);
    }

    /// Counts a port with many rings as several connections, because each receive ring uses a descriptor.
    pub(super) fn make_room(&self, number: u64, rings: &RingCounts) -> Result<()> {
        let mut connections = lock(&self.connections);
        let Some(own) = connections.get(&number) else {
            return Ok(()); // in tests
        };
        let (user, has) = (own.user, own.weight);
        let wants = 1 + usize::from(rings.rx + rings.host_rx).saturating_sub(RINGS_INCLUDED).div_ceil(DESCRIPTORS_EACH);
        let [count, of_user] = weights(&connections, user);
        if !has_room(most_connections(), wants, count - has, of_user - has, is_trusted(user)) {
            return Err(full(FULL));
        }
        if let Some(own) = connections.get_mut(&number) {
            own.weight = wants;
        }
        Ok(())
    }

    /// Returns whether the server has no connections, and no persistent or attached ports. If the server
    /// `is_unreachable`, such ports do not count.
    pub(super) fn is_idle(&self, is_unreachable: bool) -> bool {
        let is_kept = || !lock(&self.attached).is_empty() || !lock(&self.persistent).is_empty();
        lock(&self.connections).is_empty() && (is_unreachable || !is_kept())
    }

    /// Waits until the user's clients that closed ports or exited have left their ports, so that the next request finds
    /// them free. Waits at most [`LEAVING`].
    pub(super) fn wait_for_leaving(&self, user: u32) {
        let begin = Instant::now();
        loop {
            let connections = lock(&self.connections);
            let is_leaving = |connected: &Connected| connected.user == user && connected.connection.has_ended();
            let Some(left) = LEAVING.checked_sub(begin.elapsed()) else { return };
            if !connections.values().any(is_leaving) {
                return;
            }
            drop(self.gone.wait_timeout(connections, left));
        }
    }

    /// Retries `take` while a port or a queue is in use: up to [`LEAVING`] while an ended connection still exists,
    /// otherwise up to [`ENDING`].
    pub(super) fn take_after_others<T>(&self, take: impl FnMut() -> Result<T>) -> Result<T> {
        self.retry_after_others(take).map_err(reword_for_clients)
    }

    /// As [`take_after_others`](Self::take_after_others), but returns the original error.
    pub(super) fn retry_after_others<T>(&self, mut take: impl FnMut() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            let taken = match take() {
                Err(error) if matches!(error.kind(), ErrorKind::QueueTaken | ErrorKind::InUse) => error,
                result => return result,
            };
            let connections = lock(&self.connections);
            let is_leaving = connections.values().any(|connected| connected.connection.has_ended());
            let patience = if is_leaving { LEAVING } else { ENDING };
            let Some(left) = patience.checked_sub(begin.elapsed()) else { return Err(taken) };
            // `gone` may have been notified before this wait, so the wait is short.
            drop(self.gone.wait_timeout(connections, left.min(ENDING / 10)));
        }
    }
}

/// Returns what all connections count as, and what the user's count as.
fn weights(connections: &HashMap<u64, Connected>, user: u32) -> [usize; 2] {
    let sum = |of: &dyn Fn(&Connected) -> bool| connections.values().filter(|it| of(it)).map(|it| it.weight).sum();
    [sum(&|_| true), sum(&|connected| connected.user == user)]
}

/// Returns the most connections that this process's limit on descriptors allows.
pub(super) fn most_connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (descriptors / DESCRIPTORS_EACH).clamp(2, MOST_CONNECTIONS)
}
