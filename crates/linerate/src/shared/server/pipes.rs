//! Pipes between processes: who has which end, and the memory that both share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use rustix::net::{Shutdown, shutdown};

use super::{Session, State, usual};
use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::netmap::Elsewhere;
use crate::shared::area::{Placed, Rings};
use crate::shared::lock;
use crate::shared::memory::{Buffers, Memory};
use crate::shared::message::{Bell, Connection, Reply, Wanted};
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
    ends: [Placed; 2],
    bells: [Bell; 2],
    open: [bool; 2],
    /// By which its ends are monitored, and what monitors get, while there are any.
    elsewhere: Elsewhere,
    shadow: Weak<Shadow>,
    /// Who wants to know when it is gone: its memory is theirs.
    waiting: Vec<Arc<Connection>>,
}

/// A pipe's own name, and which end a name is of.
pub(super) fn pipe_of(name: &str) -> (String, usize) {
    (name.replace('}', "{"), usize::from(name.contains('}')))
}

impl Session<'_> {
    pub(super) fn open_pipe(&mut self, wanted: &Wanted) -> Result<(Reply, Vec<OwnedFd>)> {
        let (name, side) = pipe_of(&wanted.name);
        wanted.check(&usual(&wanted.rings).of_card())?;
        let mut pipes = lock(&self.state.pipes);
        loop {
            match pipes.get_mut(&name) {
                None => {
                    pipes.insert(name.clone(), Pipe::Coming);
                    self.pipe = Some((name, side));
                    let rings = usual(&wanted.rings).of_card();
                    return Ok((Reply::Opened { rings, first_of_pipe: true, mac: [0; 6] }, Vec::new()));
                }
                Some(Pipe::There(pipe)) if pipe.open[side] => {
                    return Err(Error::PortTaken { port: wanted.name.clone() });
                }
                Some(Pipe::There(pipe)) => {
                    let duplicate = |fd: BorrowedFd<'_>| {
                        fd.try_clone_to_owned().map_err(|error| Error::system("dup of a descriptor", error))
                    };
                    let descriptors = vec![duplicate(pipe.memory.as_fd())?, duplicate(pipe.bells[side].as_fd())?];
                    pipe.open[side] = true;
                    let (mine, other) = (pipe.ends[side].clone(), pipe.ends[1 - side].clone());
                    let reply = Reply::Joined { rings: pipe.rings, buffers: pipe.buffers, mine, other };
                    self.pipe = Some((name, side));
                    return Ok((reply, descriptors));
                }
                // Its first end is being made, or its maker goes.
                Some(Pipe::Coming) => {
                    if self.state.stopping.load(Ordering::SeqCst) {
                        return Err(Error::PortTaken { port: wanted.name.clone() });
                    }
                    pipes = self.state.pipe_made.wait(pipes).unwrap_or_else(PoisonError::into_inner);
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
        let (Some((name, side)), Some(memory)) = (&self.pipe, memory) else {
            return Err(Error::BadPeer { why: "it starts what it has not opened" });
        };
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
        let state = Box::new(PipeState { memory, buffers, rings, ends, bells, open, elsewhere, shadow, waiting });
        pipes.insert(name.clone(), Pipe::There(state));
        self.state.pipe_made.notify_all();
        Ok((Reply::Started, vec![theirs]))
    }

    /// Where copies of what it sends go.
    pub(super) fn shadow(&self) -> Result<(Reply, Vec<OwnedFd>)> {
        let Some((name, side)) = &self.pipe else {
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
        let Some((name, side)) = self.pipe.take() else { return false };
        let mut pipes = lock(&self.state.pipes);
        let is_last = match pipes.get_mut(&name) {
            Some(Pipe::There(pipe)) => {
                pipe.open[side] = false;
                pipe.waiting.push(self.connection.clone());
                pipe.open == [false; 2]
            }
            _ => true,
        };
        if is_last && let Some(Pipe::There(pipe)) = pipes.remove(&name) {
            // All but the one that closes it, which has an answer of its own.
            let others = pipe.waiting.iter().filter(|connection| !Arc::ptr_eq(connection, self.connection));
            for connection in others {
                let _ = shutdown(&**connection, Shutdown::Both);
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
