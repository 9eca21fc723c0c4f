//! The shadow of a pipe between two processes, for its monitors: who serves the pipe makes rings in memory of its own, and
//! while there are monitors, whoever sends into the pipe puts a copy of each packet there. From these rings packets come to
//! monitors as from any program's. What finds no room is dropped and counted at the monitors; the pipe goes on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{Error, Result};
use crate::memory::Pool;
use crate::netmap::Elsewhere;
use crate::offload::LONGEST;
use crate::share::protocol::area::{Area, Objects, Offsets, Placed, Plan, Rings};
use crate::share::protocol::mapping::{Buffers, Memory};
use crate::share::protocol::message::Reply;
use crate::share::protocol::ring::{Consumer, NS_MOREFRAG, Place, Program, Ring, Slot};
use crate::share::server::pump::{Heard, Programs, Sending, Work};
use crate::share::server::recipient::Bell;

/// Slots of each ring.
const SLOTS: u32 = 1024;

/// Makes shadows distinguishable, for those who may have an older one.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The serving side: rings for both ends, and the thread that empties them. It goes with the last monitor.
pub struct Shadow {
    area: Area,
    /// By end of the pipe: the rings that it sends copies into.
    placed: [Placed; 2],
    /// Wakes the thread.
    waker: Arc<Waker>,
    /// The pipe's transmit rings, which say that there is this shadow.
    told: Vec<Ring>,
    version: u32,
    thread: Option<JoinHandle<()>>,
}

impl Shadow {
    /// Begins, for a pipe of these ends, in this memory. Packets are copied into buffers of `pool` on their way.
    ///
    /// # Errors
    /// [`Error::System`], and [`Error::BadPeer`] if the pipe's rings are outside its memory.
    pub fn start(elsewhere: &Elsewhere, memory: &Arc<Memory>, ends: &[Placed], pool: &Arc<Pool>) -> Result<Shadow> {
        let system = |call| move |error| Error::System { call, source: error };
        let [first, second] = ends else { return Err(Error::BadPeer { why: "its pipe has no other end" }) };
        let rings = first.tx.len().max(second.tx.len());
        let objects = |count: usize, size: usize| Objects { count, size };
        let usual = Plan::default();
        let area = Area::new(Plan {
            ports: objects(2, usual.ports.size),
            rings: objects(2 * rings, usual.rings.size),
            buffers: objects(2 + 2 * rings * SLOTS as usize, memory.buffers.size),
            zones: 0,
        })?;
        let side = |end: &Placed| {
            let tx = end.tx.len() as u16;
            let rings = Rings { tx, tx_slots: SLOTS, ..Rings::default() };
            area.place("shadow", &rings, |_| true, |_| false, Offsets::default())
        };
        let placed = [side(first)?, side(second)?];
        let mut work = Work::default();
        for (end, placed) in placed.iter().enumerate() {
            for (number, place) in placed.tx.iter().enumerate().filter_map(|(n, place)| Some((n, place.as_ref()?))) {
                let ring = Ring::new(&area.memory, *place)?;
                let (lost, mut known) = (ring.clone(), 0);
                let missing = move || u64::from(lost.lost().wrapping_sub(std::mem::replace(&mut known, lost.lost())));
                let queue = elsewhere.sent(end, number as u16, Box::new(missing));
                work.sending.push(Sending::new(Consumer::new(ring), queue, pool, LONGEST, &Arc::default()));
            }
        }
        let places = ends.iter().flat_map(|end| &end.tx).flatten();
        let told = places.map(|place| Ring::new(memory, *place)).collect::<Result<Vec<_>>>()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| Error::system("eventfd", error))?;
        let waker = Arc::new(Waker { event, is_over: AtomicBool::new(false) });
        let its = waker.clone();
        let thread = std::thread::Builder::new().name("linerate-shadow".to_string());
        let thread = thread.spawn(move || work.run(&*its)).map_err(system("starting a thread"))?;
        let version = NEXT.fetch_add(1, Ordering::Relaxed).max(1);
        Ok(Shadow { area, placed, waker, told, version, thread: Some(thread) })
    }

    /// Wakes the thread: a program has put copies into a ring.
    pub fn ring(&self) {
        self.waker.wake();
    }

    /// Tells both ends of the pipe, which then ask for it.
    pub fn announce(&self) {
        self.told.iter().for_each(|ring| ring.set_shadow(self.version));
    }

    /// What an end of the pipe is told when it asks: its memory comes with it.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn answer(&self, end: usize) -> Result<(Reply, Vec<OwnedFd>)> {
        let duplicate = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| Error::system("dup of a descriptor", error))
        };
        let descriptors = vec![duplicate(self.area.memory.as_fd())?];
        let places = self.placed[end].tx.iter().flatten().copied().collect();
        Ok((Reply::Shadow { buffers: self.area.memory.buffers, places }, descriptors))
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.told.iter().filter(|ring| ring.shadow() == self.version).for_each(|ring| ring.set_shadow(0));
        self.waker.is_over.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Wakes the thread of a shadow, and says when it is over.
struct Waker {
    event: OwnedFd,
    is_over: AtomicBool,
}

impl Waker {
    fn wake(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// Whoever has the pipe does not wait for the shadow.
impl Bell for Waker {
    fn ring(&self) {}
}

impl Programs for Waker {
    fn listen(&self) -> Heard {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        Heard { is_over: self.is_over.load(Ordering::Relaxed), token: false }
    }

    fn sleep(&self, others: &[BorrowedFd<'_>], longest: Timespec) {
        let mut events = vec![PollFd::new(&self.event, PollFlags::IN)];
        events.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let _ = poll(&mut events, Some(&longest));
    }
}

/// The side of who sends into the pipe: puts copies into one ring of the shadow.
pub struct Copier {
    program: Program,
    /// Where the next slot goes, and where the packet has begun that it is of.
    next: usize,
    begin: usize,
    /// The packet found no room: the rest of it is passed over.
    skips: bool,
    bytes: Vec<u8>,
}

impl Copier {
    /// A ring of the shadow.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it is outside its memory.
    pub fn new(memory: OwnedFd, buffers: Buffers, place: Place) -> Result<Copier> {
        let program = Program::begin(Ring::new(&Memory::of_peer(memory, buffers)?, place)?);
        let head = program.head();
        Ok(Copier { program, next: head, begin: head, skips: false, bytes: Vec::new() })
    }

    /// What comes next is in the middle of a packet, which is passed over.
    pub fn skip(&mut self) {
        self.skips = true;
    }

    /// Copies what a slot of this ring names.
    pub fn copy(&mut self, from: &Ring, number: usize, slot: Slot) {
        let has_more = slot.has_more();
        let ring = &self.program.ring;
        if !self.skips && self.next == self.program.tail() {
            self.skips = true;
            self.next = self.begin;
            ring.lose();
        }
        let place = if self.skips { None } else { ring.memory.buffer(ring.slot(self.next).buffer) };
        if let (Some(at), Some((source, len))) = (place, from.bytes(number, slot)) {
            self.bytes.resize(len.min(ring.memory.buffers.size), 0);
            from.memory.mapping.read(source, &mut self.bytes);
            ring.memory.mapping.write(at, &self.bytes);
            let copy = Slot { len: self.bytes.len() as u16, flags: slot.flags & NS_MOREFRAG, ..ring.slot(self.next) };
            ring.set_slot(self.next, copy);
            self.next = ring.next(self.next);
        }
        if !has_more {
            (self.skips, self.begin) = (false, self.next);
        }
    }

    /// Hands over what was copied, and learns what is free. True if the server wants a token.
    pub fn hand_over(&mut self) -> bool {
        self.program.set(self.begin as u32, self.begin as u32);
        // It is where it can be, between head and tail.
        let must_ring = self.program.tell().unwrap_or(false) && self.program.must_ring();
        self.program.learn();
        must_ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::protocol::ring::Front;
    use crate::share::protocol::ring::tests::rings;

    /// A ring with packets, and one of a shadow that copies of them go to.
    fn copier(slots: u32) -> (Ring, Copier, Consumer) {
        let (_area, [source, _]) = rings(16, 0, Offsets::default());
        let (area, [ring, _]) = rings(slots, 0, Offsets::default());
        let consumer = Consumer::new(ring.clone());
        let memory = area.memory.as_fd().try_clone_to_owned().unwrap();
        let copier = Copier::new(memory, area.memory.buffers, ring.place).unwrap();
        for n in 0..16 {
            let at = source.memory.buffer(source.slot(n).buffer).unwrap();
            source.memory.mapping.write(at, &[n as u8 + 1; 100]);
        }
        (source, copier, consumer)
    }

    /// Copies slots of these flags, from `first` on.
    fn copy(copier: &mut Copier, source: &Ring, first: usize, flags: &[u16]) -> bool {
        for (n, flags) in flags.iter().enumerate() {
            let slot = Slot { len: 100, flags: *flags, ..source.slot(first + n) };
            copier.copy(source, first + n, slot);
        }
        copier.hand_over()
    }

    /// The packets that came, each as its slots' first bytes.
    fn seen(consumer: &mut Consumer) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Front::Packet { len, .. } = consumer.front() {
            let parts = consumer.parts.clone();
            assert_eq!(len, 100 * parts.len());
            let byte = |at: usize| {
                let mut byte = [0];
                consumer.ring.memory.mapping.read(at, &mut byte);
                byte[0]
            };
            packets.push(parts.iter().map(|(at, _)| byte(*at)).collect());
            consumer.pass(parts.len());
        }
        consumer.tell();
        packets
    }

    const MORE: u16 = NS_MOREFRAG;

    #[test]
    fn a_shadow_gets_whole_packets_in_order() {
        let (source, mut copier, mut consumer) = copier(16);
        copy(&mut copier, &source, 0, &[0, MORE, 0, MORE]);
        assert_eq!(seen(&mut consumer), [vec![1], vec![2, 3]]);
        copy(&mut copier, &source, 4, &[0, 0x18]);
        assert_eq!(seen(&mut consumer), [vec![4, 5], vec![6]]);
        assert!(matches!(consumer.front(), Front::None));
    }

    #[test]
    fn what_finds_no_room_in_a_shadow_is_dropped_as_a_whole_and_counted() {
        let (source, mut copier, mut consumer) = copier(4);
        copy(&mut copier, &source, 0, &[0, 0, MORE, MORE, 0, 0]);
        // A packet of three slots after two of one: three slots are free in all, and the last packet fits again.
        assert_eq!(seen(&mut consumer), [vec![1], vec![2], vec![6]]);
        assert_eq!(consumer.ring.lost(), 1);
        copier.hand_over();
        copy(&mut copier, &source, 7, &[MORE, MORE, MORE, 0, 0]);
        assert_eq!(consumer.ring.lost(), 2, "a packet is counted once");
        copier.hand_over();
        copy(&mut copier, &source, 12, &[0]);
        assert_eq!(seen(&mut consumer).last().unwrap(), &[13]);
    }

    #[test]
    fn a_packet_that_had_begun_is_passed_over() {
        let (source, mut copier, mut consumer) = copier(16);
        copier.skip();
        copy(&mut copier, &source, 0, &[MORE, 0, 0]);
        assert_eq!(seen(&mut consumer), [[3]]);
        assert_eq!(consumer.ring.lost(), 0);
    }

    #[test]
    fn the_thread_of_a_shadow_is_woken_if_it_sleeps() {
        let (source, mut copier, consumer) = copier(16);
        assert!(!copy(&mut copier, &source, 0, &[0]));
        consumer.ring.wait_for_program();
        assert!(!copier.hand_over(), "nothing has come");
        assert!(copy(&mut copier, &source, 1, &[0]));
    }
}
