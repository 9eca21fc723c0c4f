//! Pipes between processes: the rings of each end, the sessions that use them, and the memory that both ends share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use linerate_core::error::{Error, ErrorKind, Remedy, Result};
use linerate_core::memory::Pool;

use super::State;
use super::quota::MAX_EXTRA_PER_PORT;
use super::request_handler::{Begun, RequestHandler};
use super::served::clamp_rings;
use super::session::{Running, Session};
use crate::netmap::RemotePipe;
use crate::share::protocol::layout::{Objects, Plan, PortLayout, RingCounts};
use crate::share::protocol::lock;
use crate::share::protocol::message::{MemoryChoice, OpenRequest, Opened};
use crate::share::protocol::name::pipe_of;
use crate::share::protocol::pipe::end_pipe;
use crate::share::protocol::ring::{ClientRing, RingAt, SharedRing};
use crate::share::server::netmap_memory::Lease;
use crate::share::server::shadow::Shadow;

/// A pipe with at least one open end.
pub struct Pipe {
    /// The rings of each end. The second end mirrors the first: its transmit rings are the first end's receive rings.
    rings: [RingCounts; 2],
    /// The user of the client that created the pipe.
    pub user: u32,
    lease: Lease,
    number: u16,
    sessions: [Vec<Weak<Session>>; 2],
    /// Lets monitors find the pipe's ends.
    remote: RemotePipe,
    shadow: Weak<Shadow>,
}

/// Returns the rings of a pipe's other end.
fn mirrored(rings: &RingCounts) -> RingCounts {
    RingCounts { tx: rings.rx, rx: rings.tx, tx_slots: rings.rx_slots, rx_slots: rings.tx_slots, ..*rings }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Lease { memory, rings, .. } = &self.lease;
        let ring =
            |place: &Option<RingAt>| place.as_ref().and_then(|place| SharedRing::new(&memory.shared, *place).ok());
        for (sender, receiver) in rings.iter().zip(rings.iter().rev()) {
            let pairs = sender.tx.iter().zip(&receiver.rx);
            pairs.filter_map(|(tx, rx)| Some((ring(tx)?, ring(rx)?))).for_each(|(tx, rx)| end_pipe(&tx, &rx));
        }
    }
}

impl Pipe {
    /// Returns the number of an end's rings.
    pub fn rings(&self, side: usize) -> RingCounts {
        self.rings[side]
    }

    /// Returns whether a client has this end open.
    pub fn is_open(&self, side: usize) -> bool {
        self.live(side).next().is_some()
    }

    /// Tells the clients of both ends whether the other end is open.
    fn publish_open_ends(&self) {
        let Lease { memory, rings, .. } = &self.lease;
        for (side, end) in rings.iter().enumerate() {
            let places = end.tx.iter().chain(&end.rx).flatten();
            for ring in places.filter_map(|place| SharedRing::new(&memory.shared, *place).ok()) {
                ring.set_other_end_open(self.is_open(1 - side));
            }
        }
    }

    fn live(&self, side: usize) -> impl Iterator<Item = Arc<Session>> {
        self.sessions[side].iter().filter_map(Weak::upgrade)
    }
}

/// Returns the selected rings of an end.
fn selected(layout: &PortLayout, wanted: &OpenRequest, rings: &RingCounts) -> PortLayout {
    let choose = |places: &[Option<RingAt>], count: u16, without: bool| {
        let is_wanted = |n: usize| !without && wanted.selection.has(n as u16, count);
        places.iter().enumerate().map(|(n, place)| place.filter(|_| is_wanted(n))).collect()
    };
    let tx = choose(&layout.tx, rings.tx, wanted.receive_only);
    let rx = choose(&layout.rx, rings.rx, wanted.transmit_only);
    PortLayout { tx, rx, ..layout.clone() }
}

/// Returns whether two descriptors have a ring in common.
fn overlap(a: &PortLayout, b: &PortLayout) -> bool {
    let common = |a: &[Option<_>], b: &[Option<_>]| a.iter().zip(b).any(|(a, b)| a.is_some() && b.is_some());
    common(&a.tx, &b.tx) || common(&a.rx, &b.rx)
}

impl RequestHandler {
    /// Opens an end of a pipe. Creates the pipe if it does not exist.
    pub fn open_pipe(&self, wanted: &OpenRequest, choice: &MemoryChoice) -> Result<Begun> {
        let (name, side) = pipe_of(&wanted.name);
        let mut pipes = lock(&self.state.pipes);
        if !pipes.contains_key(&name) {
            self.check_parent(&name)?;
            let mut rings = [clamp_rings(&wanted.rings).of_card(); 2];
            rings[1 - side] = mirrored(&rings[side]);
            wanted.check(&rings[side])?;
            let (number, memory) = match choice {
                // The client at the other end can access all of this memory, so it contains nothing else.
                MemoryChoice { number: 0, plan: None, .. } => {
                    // Each ring of an end may be opened by its own descriptor, with a description. There is also room
                    // for a zero-copy monitor of each end.
                    let most = rings[0].tx.max(rings[0].rx);
                    let room = RingCounts { tx: most, rx: most, ..rings[0] };
                    let plan = Plan::of_ports(4, &room, choice.extra.min(MAX_EXTRA_PER_PORT));
                    let ports = 4 * usize::from(rings[0].tx + rings[0].rx).max(4);
                    self.state.make_memory(self.user, Plan { ports: Objects { count: ports, ..plan.ports }, ..plan })?
                }
                _ => self.choose(choice)?,
            };
            let ends = memory.place_pipe(&rings, choice.offsets)?;
            let lease = Lease::of_rings(&memory, ends.into());
            let remote = RemotePipe::new([name.clone(), name.replace('{', "}")]);
            let sessions = [Vec::new(), Vec::new()];
            let pipe = Pipe { rings, user: self.user, lease, number, sessions, remote, shadow: Weak::new() };
            pipes.insert(name.clone(), pipe);
        }
        let result = self.join_pipe(&mut pipes, &name, side, wanted, choice);
        if result.is_err() && pipes.get(&name).is_some_and(|pipe| pipe.live(0).chain(pipe.live(1)).next().is_none()) {
            pipes.remove(&name);
        }
        result
    }

    /// Refuses a new pipe on another user's port, except to managers; otherwise the port's user would be refused at
    /// both ends.
    fn check_parent(&self, pipe: &str) -> Result<()> {
        let parent = pipe.split('{').next().unwrap_or(pipe);
        let own = rustix::process::geteuid().as_raw();
        let owner = match self.state.served(parent) {
            Some(served) => Some(served.user),
            // A manager attached the port.
            None => self.state.attached_rings(parent).map(|_| own),
        };
        if owner.is_none_or(|owner| self.state.may_use(owner, self.user)) {
            return Ok(());
        }
        let why = format!("{parent} is open, and not a port of user {}", self.user);
        Err(Error::new(ErrorKind::Denied, pipe, why).with_remedy(Remedy::JoinUsers))
    }

    fn join_pipe(
        &self,
        pipes: &mut std::collections::HashMap<String, Pipe>,
        name: &str,
        side: usize,
        wanted: &OpenRequest,
        choice: &MemoryChoice,
    ) -> Result<Begun> {
        let pipe = pipes.get_mut(name).ok_or_else(|| Error::not_open(name))?;
        if pipe.user != self.user && !self.state.joins_users.load(Ordering::Relaxed) {
            let why = format!("the other end belongs to user {}, and both ends share memory", pipe.user);
            return Err(Error::new(ErrorKind::Denied, &wanted.name, why).with_remedy(Remedy::JoinUsers));
        }
        let ends = &pipe.lease.rings;
        if choice.offsets.mask != 0 && choice.offsets.mask != ends[side].offset_mask {
            let why = "the pipe's other end uses other packet offsets";
            return Err(Error::new(ErrorKind::BadOption, &wanted.name, why));
        }
        self.check_memory(&wanted.name, choice, pipe.number)?;
        let rings = pipe.rings[side];
        wanted.check(&rings)?;
        let memory = &pipe.lease.memory;
        let describe = |layout: &PortLayout| memory.describe(&wanted.name, &rings, layout);
        let mine = selected(&ends[side], wanted, &rings);
        pipe.sessions[side].retain(|session| session.strong_count() > 0);
        for session in pipe.sessions[side].iter().filter_map(Weak::upgrade) {
            if wanted.shares && !wanted.exclusive && session.can_share(wanted, self.user) {
                let layout = describe(&session.opened.layout)?;
                let description = Lease::of_description(memory, layout.at, Vec::new());
                return Ok(Begun::Joined { session, layout, description });
            }
            if overlap(&session.opened.layout, &mine) {
                return Err(Error::port_in_use(&wanted.name));
            }
        }
        let layout = describe(&mine)?;
        let description = Lease::of_description(memory, layout.at, memory.take_extra(choice.extra));
        let opened = memory.opened(wanted, rings, pipe.number, layout.clone(), description.extra.len());
        let opened = Opened { other: Some(ends[1 - side].clone()), ..opened };
        let session = Session::new(opened, self.user, memory.clone())?;
        pipe.sessions[side].push(Arc::downgrade(&session));
        pipe.publish_open_ends();
        let running = Running { pipe: Some((name.to_string(), side)), ..Running::new(&self.state, session) };
        Ok(Begun::New { running: Box::new(running), layout, description })
    }
}

impl State {
    /// Wakes both ends with tokens after a client at one end passed packets or released slots.
    pub(super) fn wake_pipe(&self, name: &str, side: usize) {
        let pipes = lock(&self.pipes);
        let Some(pipe) = pipes.get(name) else { return };
        let shared = &pipe.lease.memory.shared;
        let ring = |place: &Option<RingAt>| place.as_ref().and_then(|place| SharedRing::new(shared, *place).ok());
        for side in [1 - side, side] {
            let (mine, other) = (&pipe.lease.rings[side], &pipe.lease.rings[1 - side]);
            let mut is_woken = false;
            for rx in mine.rx.iter().filter_map(ring) {
                is_woken |= rx.must_notify_client();
            }
            for (tx, theirs) in mine.tx.iter().zip(&other.rx).filter_map(|(tx, rx)| Some((ring(tx)?, ring(rx)?))) {
                is_woken |= tx.previous(theirs.released()) != tx.released() && tx.must_wake_client();
            }
            if is_woken {
                pipe.live(side).for_each(|session| session.notify());
            }
        }
        if let Some(shadow) = pipe.shadow.upgrade() {
            shadow.wake();
        }
    }

    /// Leaves a pipe after a client has closed its descriptor. Slots that the client received and released by then are
    /// freed for the sender.
    pub(super) fn leave_pipe(&self, name: &str, side: usize, session: &Arc<Session>) {
        for (_, ring) in session.receiving() {
            let client = ClientRing { ring };
            if let Some(_turn) = client.turn() {
                let _ = client.publish_head();
            }
        }
        self.wake_pipe(name, side);
        let mut pipes = lock(&self.pipes);
        let Some(pipe) = pipes.get_mut(name) else { return };
        pipe.sessions[side].retain(|there| !std::ptr::eq(there.as_ptr(), &**session));
        pipe.publish_open_ends();
        if pipe.live(0).chain(pipe.live(1)).next().is_none() {
            pipes.remove(name);
        }
    }

    /// Returns the pipe's shadow, which exists from the first monitor to the last.
    pub(super) fn shadow(&self, name: &str, pool: &Arc<Pool>) -> Result<Arc<Shadow>> {
        let mut pipes = lock(&self.pipes);
        let Some(pipe) = pipes.get_mut(&pipe_of(name).0) else {
            return Err(Error::not_open(name));
        };
        if let Some(shadow) = pipe.shadow.upgrade() {
            return Ok(shadow);
        }
        let Lease { memory, rings, .. } = &pipe.lease;
        let shadow = Arc::new(Shadow::start(&pipe.remote, &memory.shared, rings, pool)?);
        pipe.shadow = Arc::downgrade(&shadow);
        shadow.announce();
        Ok(shadow)
    }

    /// Returns the shadow of the pipe that a session sends into.
    pub(super) fn shadow_of(&self, session: &Session) -> Option<Arc<Shadow>> {
        lock(&self.pipes).get(&pipe_of(&session.opened.request.name).0)?.shadow.upgrade()
    }
}
