//! A port's rings at a client, and the connections that are its descriptors. Each descriptor is the other end of one
//! connection, even if it was passed to another process. The port is closed when the last connection ends.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::port::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Served, State};
use crate::share::protocol::connection::{Connection, Message};
use crate::share::protocol::lock;
use crate::share::protocol::message::{OpenRequest, Opened, Reply};
use crate::share::protocol::ring::{ClientRing, RingAt, SharedRing};
use crate::share::server::netmap_memory::{Lease, NetmapMemory};
use crate::share::server::pump::{Clients, Pump, Signals};
use crate::share::server::recipient::Notifier;
use crate::share::server::shadow::Shadow;

/// The most messages read from a connection before the next connection's turn.
const MESSAGES: usize = 64;

/// A session. All threads share it.
pub struct Session {
    pub opened: Opened,
    pub user: u32,
    pub memory: Arc<NetmapMemory>,
    members: Mutex<Members>,
    /// The zero-copy monitors of this session's port.
    monitors: Mutex<Vec<Weak<Session>>>,
    /// Wakes the session's thread.
    waker: Waker,
}

#[derive(Default)]
struct Members {
    all: Vec<Member>,
    /// The last member has left, so no other can join. `gone` has the numbers of the members that left.
    is_over: bool,
    gone: Vec<u64>,
    /// The clients were told that the port has ended, so no other can join.
    is_ended: bool,
}

/// A descriptor of the port.
struct Member {
    number: u64,
    connection: Arc<Connection>,
    /// The description of the port for this descriptor.
    _description: Lease,
}

impl Session {
    pub fn new(opened: Opened, user: u32, memory: Arc<NetmapMemory>) -> Result<Arc<Session>> {
        let waker = Waker::new()?;
        Ok(Arc::new(Session { opened, user, memory, members: Mutex::default(), monitors: Mutex::default(), waker }))
    }

    /// Adds a descriptor; returns false if the session is over.
    pub fn join(&self, number: u64, connection: &Arc<Connection>, description: Lease) -> bool {
        let members = &mut *lock(&self.members);
        if !members.is_over {
            members.all.push(Member { number, connection: connection.clone(), _description: description });
            self.waker.wake();
        }
        !members.is_over
    }

    /// Wakes each client: sends a [token](crate::share::protocol::connection) on its connection.
    pub fn notify(&self) {
        lock(&self.members).all.iter().for_each(|member| member.connection.notify());
    }

    /// Tells each client that the port has ended. A client keeps its rings until it closes the port, because they may
    /// still contain packets.
    pub fn notify_closed(&self) {
        let members = &mut *lock(&self.members);
        members.is_ended = true;
        members.all.iter().for_each(|member| member.connection.end_sending());
    }

    /// Describes the session to a process that received one of its descriptors.
    pub fn describe(&self) -> Result<(Reply, Vec<OwnedFd>)> {
        Ok((Reply::Opened(Box::new(self.opened.clone())), vec![self.memory.shared.duplicate()?]))
    }

    /// Reads the messages of all connections, and removes connections that have ended.
    pub fn listen(self: &Arc<Session>, state: &State) -> Signals {
        let mut signals = Signals::default();
        self.waker.clear();
        let mut gone = Vec::new();
        let members = &mut *lock(&self.members);
        members.all.retain(|member| {
            for _ in 0..MESSAGES {
                match member.connection.next() {
                    Ok(Message::Token) => signals.token = true,
                    Ok(Message::Proof(proof)) => state.record_proof(proof, Some(self.clone())),
                    Ok(Message::Request(..)) => {
                        let bound = Error::new(ErrorKind::InUse, "", "the descriptor is bound to a port already");
                        let _ = member.connection.send(&Reply::Refused(bound), &[]);
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        gone.push(member.number);
                        return false;
                    }
                }
            }
            true
        });
        members.is_over = members.all.is_empty() || state.is_stopping();
        signals.is_over = members.is_over;
        // While an ended connection is still listed, the next client waits for its port. The last connections are
        // therefore forgotten only after the session has left the port.
        match signals.is_over {
            true => members.gone.extend(gone),
            false => gone.into_iter().for_each(|number| state.forget(number)),
        }
        if signals.token {
            self.wake_monitors();
        }
        signals
    }

    /// Forgets all connections once the session has ended.
    fn forget_all(&self, state: &State) {
        let members = std::mem::take(&mut *lock(&self.members));
        lock(&self.members).is_over = true;
        let all = members.all.iter().map(|member| member.number).chain(members.gone);
        all.for_each(|number| state.forget(number));
    }

    /// Sleeps until a connection has a message, one of `others` is readable, or the time is up.
    pub fn sleep(&self, others: &[BorrowedFd<'_>], longest: Timespec) {
        let connections: Vec<_> = lock(&self.members).all.iter().map(|member| member.connection.clone()).collect();
        let mut events: Vec<_> = connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
        events.push(PollFd::new(&self.waker, PollFlags::IN));
        events.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let _ = poll(&mut events, Some(&longest));
    }

    /// Returns whether another descriptor of this user may share the session.
    pub fn can_share(&self, wanted: &OpenRequest, user: u32) -> bool {
        let there = &self.opened.request;
        user == self.user
            && !lock(&self.members).is_ended
            && there.cluster == wanted.cluster
            && (&there.name, there.selection, there.exclusive) == (&wanted.name, wanted.selection, wanted.exclusive)
            && (there.receive_only, there.transmit_only) == (wanted.receive_only, wanted.transmit_only)
    }

    fn rings<'a>(&'a self, places: &'a [Option<RingAt>]) -> impl Iterator<Item = (usize, SharedRing)> + 'a {
        let places = places.iter().enumerate().filter_map(|(n, place)| Some((n, place.as_ref()?)));
        places.filter_map(|(n, place)| Some((n, SharedRing::new(&self.memory.shared, *place).ok()?)))
    }

    /// Returns the session's receive rings with their numbers.
    pub fn receiving(&self) -> impl Iterator<Item = (usize, SharedRing)> {
        self.rings(&self.opened.layout.rx)
    }

    /// From now on, the port's buffers go to this monitor's receive rings once the port is done with them.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the port already has a zero-copy monitor.
    pub fn add_monitor(&self, monitor: &Arc<Session>) -> Result<()> {
        let monitors = &mut *lock(&self.monitors);
        monitors.retain(|monitor| monitor.strong_count() > 0);
        if !monitors.is_empty() {
            return Err(Error::port_in_use(monitor.opened.request.full_name()));
        }
        monitors.push(Arc::downgrade(monitor));
        let theirs: Vec<_> = monitor.receiving().collect();
        let ours = self.rings(&self.opened.layout.tx).chain(self.receiving());
        for (number, ring) in ours {
            let target = theirs.iter().find(|(n, _)| *n == number).map(|(_, ring)| ring);
            ring.set_monitor(target);
        }
        Ok(())
    }

    /// Stops passing the port's buffers to this monitor.
    fn remove_monitor(&self, monitor: &Session) {
        lock(&self.monitors).clear();
        // A sync that is currently passing buffers to the monitor must finish first.
        let theirs: Vec<ClientRing> = monitor.receiving().map(|(_, ring)| ClientRing { ring }).collect();
        let _turns: Vec<_> = theirs.iter().filter_map(ClientRing::turn).collect();
        self.rings(&self.opened.layout.tx).chain(self.receiving()).for_each(|(_, ring)| ring.set_monitor(None));
    }

    /// Wakes clients that wait for slots in their receive rings, with tokens.
    fn wake(&self) {
        if self.receiving().filter(|(_, ring)| ring.must_notify_client()).count() > 0 {
            self.notify();
        }
    }

    /// Wakes the monitors after a client has synced the port.
    fn wake_monitors(&self) {
        let monitors: Vec<_> = lock(&self.monitors).iter().filter_map(Weak::upgrade).collect();
        monitors.iter().for_each(|monitor| monitor.wake());
    }
}

impl Notifier for Arc<Session> {
    fn notify(&self) {
        Session::notify(self);
    }
}

impl Notifier for (&Arc<Session>, &State) {
    fn notify(&self) {
        self.0.notify();
    }
}

impl Clients for (&Arc<Session>, &State) {
    fn listen(&self) -> Signals {
        self.0.listen(self.1)
    }

    fn sleep(&self, others: &[BorrowedFd<'_>], longest: Timespec) {
        self.0.sleep(others, longest);
    }

    fn notify_closed(&self) {
        self.0.notify_closed();
    }
}

/// A session's thread and its resources. The queues are dropped first, then the port.
pub struct Running {
    pub state: Arc<State>,
    pub session: Arc<Session>,
    /// Moves packets; `None` if no thread has to, as for a pipe, whose clients move packets themselves.
    pub pump: Option<Pump>,
    pub served: Option<Arc<Served>>,
    /// The shadow, if this monitors a pipe.
    pub shadow: Option<Arc<Shadow>>,
    /// The pipe and end that this session has open.
    pub pipe: Option<(String, usize)>,
    pub lease: Option<Lease>,
    /// The session that this one monitors; both use the same memory.
    pub monitors: Option<Arc<Session>>,
}

impl Running {
    /// Creates a session without other resources.
    pub fn new(state: &Arc<State>, session: Arc<Session>) -> Running {
        let (pump, served, shadow, pipe, lease, monitors) = (None, None, None, None, None, None);
        Running { state: state.clone(), session, pump, served, shadow, pipe, lease, monitors }
    }

    pub fn run(mut self) {
        let name = self.session.opened.request.full_name();
        tracing::debug!(port = name, user = self.session.user, "a session begins");
        match &mut self.pump {
            Some(pump) => pump.run(&(&self.session, &*self.state)),
            None => self.run_without_pump(),
        }
        self.end();
        tracing::debug!(port = name, "the session is over: its last descriptor is closed");
    }

    /// Waits for the end of a port whose packets need no thread, and wakes the other end of a pipe.
    fn run_without_pump(&self) {
        let mut monitored = self.monitors.as_ref();
        loop {
            let signals = self.session.listen(&self.state);
            if signals.is_over {
                return;
            }
            if monitored.take_if(|port| lock(&port.members).is_over).is_some() {
                self.session.notify_closed();
            }
            if signals.token
                && let Some((name, side)) = &self.pipe
            {
                self.state.wake_pipe(name, *side);
            }
            if signals.token && self.monitors.is_some() {
                self.session.wake();
            }
            self.session.sleep(&[], Timespec { tv_sec: 1, tv_nsec: 0 });
        }
    }

    /// Leaves the port and frees its resources.
    pub fn end(&mut self) {
        if let Some(mut pump) = self.pump.take() {
            pump.finish(&(&self.session, &*self.state));
        }
        self.served.iter().for_each(|served| served.leave());
        self.served = None;
        self.shadow = None;
        if let Some(port) = self.monitors.take() {
            port.remove_monitor(&self.session);
        }
        self.lease = None;
        if let Some((name, side)) = self.pipe.take() {
            self.state.leave_pipe(&name, side, &self.session);
        }
        lock(&self.state.sessions)
            .retain(|session| session.strong_count() > 0 && !std::ptr::eq(session.as_ptr(), &*self.session));
        self.session.forget_all(&self.state);
    }
}
