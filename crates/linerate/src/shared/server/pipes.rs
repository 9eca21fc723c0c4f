//! Pipes between processes: who has which end, and the memory that both share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use super::{MOST_RINGS, Session, State, usual};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::netmap::Elsewhere;
use crate::shared::area::{Placed, Rings};
use crate::shared::lock;
use crate::shared::memory::{Buffers, Memory};
use crate::shared::message::{Bell, Connection, PATIENCE, Reply, Wanted};
use crate::shared::ring::Place;
use crate::shared::shadow::Shadow;

/// A pipe, while an end of it is open.
pub(super) enum Pipe {
    /// Its first end is being made.
    Coming,
    There(Box<PipeState>),
}

pub(super) struct PipeState {
    memory: OwnedFd,
    buffers: Buffers,
    pub(super) rings: Rings,
    /// Of the program that has made it.
    pub(super) user: u32,
    ends: [Placed; 2],
    bells: [Bell; 2],
    open: [bool; 2],
    /// By which its ends are monitored, and what monitors get, while there are any.
    elsewhere: Elsewhere,
    shadow: Weak<Shadow>,
    /// The connection of the maker, once that has closed its end: its memory is used on until the pipe is gone.
    waiting: Vec<Arc<Connection>>,
}

/// What a connection has of a pipe.
pub(super) struct End {
    pipe: String,
    side: usize,
    /// The memory is this program's.
    is_maker: bool,
}

/// A pipe's own name, and which end a name is of.
pub(super) fn pipe_of(name: &str) -> (String, usize) {
    (name.replace('}', "{"), usize::from(name.contains('}')))
}

impl Session<'_> {
    pub(super) fn open_pipe(&mut self, wanted: &Wanted) -> Result<(Reply, Vec<OwnedFd>)> {
        let (name, side) = pipe_of(&wanted.name);
        wanted.check(&usual(&wanted.rings).of_card())?;
        let until = Instant::now() + PATIENCE;
        let mut pipes = lock(&self.state.pipes);
        loop {
            match pipes.get_mut(&name) {
                None => {
                    pipes.insert(name.clone(), Pipe::Coming);
                    self.pipe = Some(End { pipe: name, side, is_maker: true });
                    let rings = usual(&wanted.rings).of_card();
                    return Ok((Reply::Opened { rings, first_of_pipe: true, mac: [0; 6] }, Vec::new()));
                }
                Some(Pipe::There(pipe)) if pipe.open[side] => {
                    return Err(Error::PortTaken { port: wanted.name.clone() });
                }
                Some(Pipe::There(pipe))
                    if pipe.user != self.user && !self.state.joins_users.load(Ordering::Relaxed) =>
                {
                    let why = format!(
                        "the other end of '{}' is user {}'s, and both ends share memory\n  to allow it: linerate serve --join-users",
                        wanted.name, pipe.user
                    );
                    return Err(Error::Refused { why, errno: libc::EPERM });
                }
                Some(Pipe::There(pipe)) => {
                    let duplicate = |fd: BorrowedFd<'_>| {
                        fd.try_clone_to_owned().map_err(|error| Error::system("dup of a descriptor", error))
                    };
                    let descriptors = vec![duplicate(pipe.memory.as_fd())?, duplicate(pipe.bells[side].as_fd())?];
                    pipe.open[side] = true;
                    let (mine, other) = (pipe.ends[side].clone(), pipe.ends[1 - side].clone());
                    let reply = Reply::Joined { rings: pipe.rings, buffers: pipe.buffers, mine, other };
                    self.pipe = Some(End { pipe: name, side, is_maker: false });
                    return Ok((reply, descriptors));
                }
                // Its first end is being made, or its maker goes.
                Some(Pipe::Coming) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || self.state.stopping.load(Ordering::SeqCst) {
                        return Err(Error::PortTaken { port: wanted.name.clone() });
                    }
                    let made = self.state.pipe_made.wait_timeout(pipes, left);
                    pipes = made.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    pub(super) fn start_pipe(
        &mut self,
        memory: Option<OwnedFd>,
        buffers: Buffers,
        ends: [Placed; 2],
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        let (Some(End { pipe: name, side, .. }), Some(memory)) = (&self.pipe, memory) else {
            return Err(Error::BadPeer { why: "it starts what it has not opened" });
        };
        let most = usize::from(MOST_RINGS);
        if ends.iter().any(|end| end.tx.len() > most || end.rx.len() > most) {
            return Err(Error::BadPeer { why: "its pipe has more rings than there can be" });
        }
        let mut pipes = lock(&self.state.pipes);
        if !matches!(pipes.get(name), Some(Pipe::Coming)) {
            return Err(Error::BadPeer { why: "it makes a pipe that is there" });
        }
        let count = |places: &[Option<Place>]| places.iter().flatten().count() as u16;
        let slots = |places: &[Option<Place>]| places.iter().flatten().map(|place| place.slots as u32).min();
        let rings = Rings {
            tx: count(&ends[0].tx),
            rx: count(&ends[0].rx),
            host_tx: 0,
            host_rx: 0,
            tx_slots: slots(&ends[0].tx).unwrap_or_default(),
            rx_slots: slots(&ends[0].rx).unwrap_or_default(),
        };
        let bells = Bell::pair().map_err(|error| Error::system("socketpair", error))?;
        let theirs =
            bells[*side].as_fd().try_clone_to_owned().map_err(|error| Error::system("dup of a bell", error))?;
        let mut open = [false; 2];
        open[*side] = true;
        let elsewhere = Elsewhere::new([name.clone(), name.replace('{', "}")]);
        let (shadow, waiting) = (Weak::new(), Vec::new());
        let user = self.user;
        let state = PipeState { memory, buffers, rings, user, ends, bells, open, elsewhere, shadow, waiting };
        let state = Box::new(state);
        pipes.insert(name.clone(), Pipe::There(state));
        self.state.pipe_made.notify_all();
        Ok((Reply::Started, vec![theirs]))
    }

    /// Where copies of what it sends go.
    pub(super) fn shadow(&self) -> Result<(Reply, Vec<OwnedFd>)> {
        let Some(End { pipe: name, side, .. }) = &self.pipe else {
            return Err(Error::BadPeer { why: "it has no pipe" });
        };
        let shadow = match lock(&self.state.pipes).get(name) {
            Some(Pipe::There(pipe)) => pipe.shadow.upgrade(),
            _ => None,
        };
        match shadow {
            Some(shadow) => shadow.answer(*side),
            None => {
                Ok((Reply::Shadow { buffers: Buffers { at: 0, size: 0, count: 0 }, places: Vec::new() }, Vec::new()))
            }
        }
    }

    pub(super) fn leave_pipe(&mut self) -> bool {
        let Some(End { pipe: name, side, is_maker }) = self.pipe.take() else { return false };
        let mut pipes = lock(&self.state.pipes);
        let is_last = match pipes.get_mut(&name) {
            Some(Pipe::There(pipe)) => {
                pipe.open[side] = false;
                if is_maker {
                    pipe.waiting.push(self.connection.clone());
                }
                pipe.open == [false; 2]
            }
            _ => true,
        };
        if is_last && let Some(Pipe::There(pipe)) = pipes.remove(&name) {
            // All but the one that closes it, which has an answer of its own.
            let others = pipe.waiting.iter().filter(|connection| !Arc::ptr_eq(connection, self.connection));
            for connection in others {
                connection.end();
            }
        }
        self.state.pipe_made.notify_all();
        !is_last
    }
}

impl State {
    /// What monitors of a pipe get; it begins with the first of them, and goes with the last.
    pub(super) fn shadow(&self, name: &str, pool: &Arc<Pool>) -> Result<Arc<Shadow>> {
        let mut pipes = lock(&self.pipes);
        let Some(Pipe::There(pipe)) = pipes.get_mut(&pipe_of(name).0) else {
            return Err(Error::NotOpen { port: name.to_string() });
        };
        if let Some(shadow) = pipe.shadow.upgrade() {
            return Ok(shadow);
        }
        let memory = pipe.memory.try_clone().map_err(|error| Error::system("dup of a descriptor", error))?;
        let memory = Memory::of_peer(memory, pipe.buffers)?;
        let shadow = Arc::new(Shadow::start(&pipe.elsewhere, &memory, &pipe.ends, pool)?);
        pipe.shadow = Arc::downgrade(&shadow);
        shadow.announce();
        Ok(shadow)
    }
}
