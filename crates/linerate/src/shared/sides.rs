//! A program's rings at work: what a sync does to each of them, and how packets pass a pipe.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::area::Placed;
use super::indirect::Fetched;
use super::memory::Memory;
use super::message::Bell;
use super::ring::{self, NR_TIMESTAMP, NS_BUF_CHANGED, Place, Producer, Program, Ring, Slot};
use super::shadow::Copier;
use crate::error::{Error, Result};

/// Its rings, of the card and then of the host.
pub struct Sides {
    pub tx: Vec<Option<Mutex<Transmit>>>,
    pub rx: Vec<Option<Mutex<Program>>>,
}

/// A transmit ring; that of a pipe ends in the other end's receive ring.
pub struct Transmit {
    pub program: Program,
    pub pipe: Option<Through>,
    pub fetched: Fetched,
}

/// How far a pipe's transmit ring is moved into the other end's receive ring.
pub struct Through {
    pub other: Producer,
    pub done: usize,
    /// Slots that were moved of a packet whose end was not.
    pub beginning: usize,
    /// Which shadow the pipe has, as was last seen, and where copies go then.
    pub shadow: u32,
    pub copier: Option<Copier>,
}

impl Sides {
    pub fn new(memory: &Arc<Memory>, mine: &Placed, other: Option<&Placed>) -> Result<Sides> {
        let ring = |place: &Place| {
            let offset_mask = mine.offset_mask;
            Ring::new(memory, *place).map(|ring| Ring { offset_mask, ..ring })
        };
        let transmit = |(n, place): (usize, &Option<Place>)| {
            let Some(place) = place else { return Ok(None) };
            let pipe = match other {
                None => None,
                Some(other) => {
                    let place = other.rx.get(n).and_then(Option::as_ref);
                    let place = place.ok_or(Error::BadPeer { why: "its pipe has no other end" })?;
                    Some(Through { other: Producer::new(ring(place)?), done: 0, beginning: 0, shadow: 0, copier: None })
                }
            };
            let mut transmit = Transmit { program: Program::new(ring(place)?), pipe, fetched: Fetched::default() };
            if let Some(pipe) = &mut transmit.pipe {
                // All of the ring is free: nobody else knows how far it was.
                pipe.done = transmit.program.head();
                transmit.program.all_free();
            }
            Ok(Some(Mutex::new(transmit)))
        };
        let receive =
            |place: &Option<Place>| place.as_ref().map(|place| Ok(Mutex::new(Program::new(ring(place)?)))).transpose();
        Ok(Sides {
            tx: mine.tx.iter().enumerate().map(transmit).collect::<Result<_>>()?,
            rx: mine.rx.iter().map(receive).collect::<Result<_>>()?,
        })
    }
}

impl Transmit {
    /// Hands over what the program has released, and wakes who takes it.
    ///
    /// # Errors
    /// [`Error::BadRing`].
    #[inline(always)]
    pub fn hand_over(&mut self, bell: &Bell) -> Result<()> {
        let moved = self.program.tell()?;
        let must_wake = match &mut self.pipe {
            Some(pipe) => pipe.swap(&mut self.program) && pipe.other.ring.must_wake_program(),
            None => moved && self.program.must_ring(),
        };
        if must_wake {
            bell.ring();
        }
        Ok(())
    }
}

/// Gives back what the program has released of a receive ring, and wakes who waits for it.
///
/// # Errors
/// [`Error::BadRing`].
#[inline(always)]
pub fn give_back(program: &mut Program, bell: &Bell) -> Result<()> {
    if program.tell()? && program.must_ring() {
        bell.ring();
    }
    Ok(())
}

impl Through {
    /// Exchanges the buffers of what the program has released for free ones of the other end, which is told of whole packets;
    /// tells whether there were any.
    #[inline(always)]
    fn swap(&mut self, program: &mut Program) -> bool {
        let (mut free, ring) = (self.other.free(), &program.ring);
        let (mut at, mut moved) = (self.other.tail(), 0);
        while self.done != program.head() && free > 0 {
            let (mut ours, mut theirs) = (ring.slot(self.done), self.other.ring.slot(at));
            // What the other process has put there is no buffer, perhaps; nor what the program has.
            if ring.memory.buffer(theirs.buffer).is_some() && ring.bytes(self.done, ours).is_some() {
                if let Some(copier) = &mut self.copier {
                    copier.copy(ring, self.done, ours);
                }
                std::mem::swap(&mut ours.buffer, &mut theirs.buffer);
                let there = Slot { buffer: theirs.buffer, len: ours.len, flags: ours.flags | NS_BUF_CHANGED };
                self.other.ring.set_slot(at, there);
                if ring.offset_mask != 0 {
                    self.other.ring.set_offset(at, ring.offset(self.done));
                }
                ring.set_slot(self.done, Slot { flags: NS_BUF_CHANGED, ..ours });
                at = self.other.ring.next(at);
                (free, moved) = (free - 1, moved + 1);
                self.beginning = if there.has_more() { self.beginning + 1 } else { 0 };
            }
            self.done = ring.next(self.done);
        }
        self.other.pass(moved);
        // A packet that fills the other end's ring alone is told of in parts, or it would never pass.
        let is_all = self.beginning + 1 >= self.other.ring.place.slots;
        self.beginning = if is_all { 0 } else { self.beginning };
        if moved > 0 {
            self.other.tell_but(self.beginning);
        }
        if let Some(copier) = &mut self.copier {
            copier.hand_over();
        }
        program.done(self.done);
        moved > 0
    }
}

/// When the last sync was, for who wants to know.
#[inline(always)]
pub fn stamp(ring: &Ring) {
    if ring.word(ring::FLAGS).load(std::sync::atomic::Ordering::Relaxed) & NR_TIMESTAMP != 0 {
        ring.set_time(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default());
    }
}
