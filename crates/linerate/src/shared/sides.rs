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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::super::area::{Area, Offsets, Plan, Rings};
    use super::super::ring::{NS_FORWARD, NS_MOREFRAG};
    use super::*;

    const SLOTS: u32 = 8;

    /// A pipe's transmit ring, and the receive ring at the other end.
    fn pipe(offsets: Offsets) -> (Area, Transmit, Program) {
        let rings = Rings { tx: 1, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..Rings::default() };
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let [a, b] = ["a", "b"].map(|name| area.place(name, &rings, |_| true, |_| true, offsets).unwrap());
        let [mut near, mut far] = [(&a, &b), (&b, &a)].map(|(a, b)| Sides::new(&area.memory, a, Some(b)).unwrap());
        let transmit = near.tx.remove(0).unwrap().into_inner().unwrap();
        let receive = far.rx.remove(0).unwrap().into_inner().unwrap();
        (area, transmit, receive)
    }

    fn send(transmit: &mut Transmit, bell: &Bell, slots: &[(u16, u16)]) {
        let ring = transmit.program.ring.clone();
        let mut head = transmit.program.head();
        for &(len, flags) in slots {
            ring.set_slot(head, Slot { len, flags, ..ring.slot(head) });
            head = ring.next(head);
        }
        transmit.program.set(head as u32, head as u32);
        transmit.hand_over(bell).unwrap();
        transmit.program.learn();
    }

    fn tail(receive: &mut Program) -> usize {
        receive.learn();
        receive.tail()
    }

    #[test]
    fn packets_pass_a_pipe_in_their_buffers() {
        let offsets = Offsets { mask: 0xFFF, first: 64 };
        let (_area, mut transmit, mut receive) = pipe(offsets);
        let [bell, _other] = Bell::pair().unwrap();
        let (near, far) = (transmit.program.ring.clone(), receive.ring.clone());
        let buffers = |ring: &Ring| [0, 1, 2, 3].map(|n| ring.slot(n).buffer);
        let (ours, theirs) = (buffers(&near), buffers(&far));
        (0..4).for_each(|n| near.set_offset(n, 100 + n));
        send(&mut transmit, &bell, &[(60, NS_FORWARD), (70, NS_MOREFRAG | NS_BUF_CHANGED), (80, 0)]);
        assert_eq!(tail(&mut receive), 3);
        let there = [0, 1, 2].map(|n| (far.slot(n).len, far.slot(n).flags, far.offset(n)));
        let changed = NS_BUF_CHANGED;
        assert_eq!(there, [(60, changed | NS_FORWARD, 100), (70, changed | NS_MOREFRAG, 101), (80, changed, 102)]);
        assert_eq!([0, 1, 2].map(|n| near.slot(n).flags), [changed; 3]);
        assert_eq!(buffers(&far), [ours[0], ours[1], ours[2], theirs[3]]);
        assert_eq!(buffers(&near), [theirs[0], theirs[1], theirs[2], ours[3]]);
        assert_eq!((transmit.program.tail(), transmit.pipe.as_ref().unwrap().done), (2, 3), "all is free again");
    }

    #[test]
    fn slots_of_no_buffer_pass_no_pipe() {
        let (_area, mut transmit, mut receive) = pipe(Offsets::default());
        let [bell, _other] = Bell::pair().unwrap();
        let (near, far) = (transmit.program.ring.clone(), receive.ring.clone());
        near.set_slot(0, Slot { buffer: 1, ..near.slot(0) });
        send(&mut transmit, &bell, &[(60, 0), (2049, 0), (70, 0)]);
        assert_eq!((tail(&mut receive), far.slot(0).len), (1, 70));
        // Where the other end has put nonsense, what was sent is lost, and no more than that.
        let own = near.slot(3).buffer;
        far.set_slot(1, Slot { buffer: u32::MAX, ..far.slot(1) });
        send(&mut transmit, &bell, &[(80, 0)]);
        assert_eq!((tail(&mut receive), near.slot(3).buffer, far.slot(1).buffer), (1, own, u32::MAX));
    }

    #[test]
    fn whole_packets_are_told_of_but_for_one_that_fills_the_ring() {
        let (_area, mut transmit, mut receive) = pipe(Offsets::default());
        let [bell, _other] = Bell::pair().unwrap();
        send(&mut transmit, &bell, &[(60, 0), (61, NS_MOREFRAG), (62, NS_MOREFRAG)]);
        assert_eq!(tail(&mut receive), 1, "the second packet has no end yet");
        send(&mut transmit, &bell, &[(63, 0)]);
        assert_eq!(tail(&mut receive), 4);
        receive.set(4, 4);
        receive.tell().unwrap();
        send(&mut transmit, &bell, &[(64, NS_MOREFRAG); 6]);
        assert_eq!(tail(&mut receive), 4);
        send(&mut transmit, &bell, &[(64, NS_MOREFRAG)]);
        assert_eq!(tail(&mut receive), 3, "all of the ring, or it would never pass");
        // Without room it waits.
        send(&mut transmit, &bell, &[(65, 0), (66, 0)]);
        let pipe = transmit.pipe.as_ref().unwrap();
        assert_eq!((tail(&mut receive), pipe.done, transmit.program.head()), (3, 3, 5));
        receive.set(5, 5);
        receive.tell().unwrap();
        send(&mut transmit, &bell, &[]);
        assert_eq!((tail(&mut receive), receive.ring.slot(3).len), (4, 65), "for one slot there is room");
    }

    #[test]
    fn the_bell_is_rung_for_who_sleeps_and_has_something() {
        let (_area, mut transmit, mut receive) = pipe(Offsets::default());
        let [bell, other] = Bell::pair().unwrap();
        send(&mut transmit, &bell, &[(60, 0)]);
        assert!(!other.was_rung(), "the other end is awake");
        receive.wait();
        send(&mut transmit, &bell, &[]);
        send(&mut transmit, &bell, &[(60, NS_MOREFRAG)]);
        send(&mut transmit, &bell, &[]);
        assert!(other.was_rung() && !other.was_rung());
        // In the other direction there is room.
        let producer = Producer::new(receive.ring.clone());
        tail(&mut receive);
        receive.set(1, 1);
        give_back(&mut receive, &other).unwrap();
        assert!(!bell.was_rung());
        producer.ring.wait_for_program();
        give_back(&mut receive, &other).unwrap();
        assert!(!bell.was_rung(), "it has not moved");
        receive.learn();
        receive.set(receive.tail() as u32, receive.tail() as u32);
        let moved = receive.tail() != receive.head();
        give_back(&mut receive, &other).unwrap();
        assert_eq!(bell.was_rung(), moved);
        // A ring whose server moves packets.
        transmit.pipe = None;
        let ring = transmit.program.ring.clone();
        send(&mut transmit, &bell, &[(60, 0)]);
        assert!(!other.was_rung());
        ring.wait_for_program();
        send(&mut transmit, &bell, &[]);
        assert!(!other.was_rung());
        send(&mut transmit, &bell, &[(60, 0)]);
        assert!(other.was_rung());
    }

    #[test]
    fn the_time_is_noted_where_it_was_asked_for() {
        let (_area, transmit, _receive) = pipe(Offsets::default());
        let ring = &transmit.program.ring;
        let time = || {
            let mut bytes = [0; 16];
            ring.memory.mapping.read(ring.place.at + ring::TS, &mut bytes);
            bytes
        };
        ring.word(ring::FLAGS).store(!NR_TIMESTAMP, Relaxed);
        stamp(ring);
        assert_eq!(time(), [0; 16]);
        ring.word(ring::FLAGS).store(NR_TIMESTAMP, Relaxed);
        stamp(ring);
        assert_ne!(time(), [0; 16]);
    }

    #[test]
    fn a_pipe_without_its_other_end_is_refused() {
        let rings = Rings { tx: 2, rx: 1, tx_slots: SLOTS, rx_slots: SLOTS, ..Rings::default() };
        let area = Area::new(Plan::of_pipe(&rings)).unwrap();
        let placed = area.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        assert!(Sides::new(&area.memory, &placed, None).is_ok());
        let refused = Sides::new(&area.memory, &placed, Some(&placed)).map(drop);
        assert!(matches!(refused, Err(Error::BadPeer { .. })));
    }
}
