//! A port that another process serves, in this one: its rings, in memory that both have.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::area::{Area, Lent, Offsets, Placed, Rings};
use super::client::Client;
use super::forward::forward;
use super::lock;
use super::memory::Memory;
use super::message::{Bell, Reply, Request, Wanted, Which};
use super::ring::{MAX_FRAGS, NS_MOREFRAG, Program, Slot};
use super::shadow::Copier;
use super::sides::{Sides, Transmit, give_back, stamp};
use crate::error::{Error, Result};
use crate::port::MacAddress;

/// What a port has of an area; it is free when this is dropped.
pub(super) struct Lease {
    pub area: Arc<Area>,
    pub placed: Vec<Placed>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.placed.iter().for_each(|placed| self.area.remove(placed));
    }
}

/// A port that another process serves.
pub struct SharedPort {
    /// Who serves it; nobody a port to ask about.
    pub(super) client: Option<Client>,
    pub(super) wanted: Wanted,
    pub(super) rings: Rings,
    pub(super) mac: MacAddress,
    pub(super) memory: Arc<Memory>,
    pub(super) placed: Placed,
    pub(super) lease: Option<Lease>,
    pub(super) sides: Sides,
    pub(super) bell: Bell,
    /// Receive rings that are waited for one by one, a bit each.
    pub(super) armed: AtomicU64,
}

impl SharedPort {
    /// A port that nobody serves, and that has no rings: what it has is memory (`NR_REG_NULL`).
    ///
    /// # Errors
    /// [`Error::AreaFull`].
    pub fn null(wanted: Wanted, area: &Arc<Area>) -> Result<SharedPort> {
        let rings = Rings { host_tx: 0, host_rx: 0, ..wanted.rings };
        let placed = area.place(&wanted.name, &rings, |_| false, |_| false, Offsets::default())?;
        let lease = Some(Lease { area: area.clone(), placed: vec![placed.clone()] });
        let [bell, _] = Bell::pair().map_err(|error| Error::system("socketpair", error))?;
        let (memory, mac) = (area.memory.clone(), MacAddress::default());
        let sides = Sides::new(&memory, &placed, None)?;
        let armed = AtomicU64::new(0);
        Ok(SharedPort { client: None, wanted, rings, mac, memory, placed, lease, sides, bell, armed })
    }

    /// What it was opened as.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// How many rings the port has; not all of them are here, perhaps.
    pub fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Its address.
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Where the rings and packets are.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where its description is.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Chains buffers that are in no ring; tells how many there were.
    pub fn extra_buffers(&self, count: u32) -> u32 {
        self.lease.as_ref().map_or(0, |lease| lease.area.extra(&self.placed, count))
    }

    /// Hands over what the program has released of its transmit rings, and learns what is free (`NIOCTXSYNC`).
    ///
    /// # Errors
    /// [`Error::BadRing`] if the program has set head or cur where they cannot be.
    pub fn sync_tx(&self) -> Result<()> {
        let mut result = Ok(());
        for (number, transmit) in self.sides.tx.iter().enumerate() {
            let Some(transmit) = transmit else { continue };
            let transmit = &mut *lock(transmit);
            self.look_for_monitors(number, transmit);
            result = transmit.hand_over(&self.bell).and(result);
            let program = &mut transmit.program;
            program.learn();
            transmit.fetched.put_back(program);
            stamp(&program.ring);
        }
        result
    }

    /// A pipe that has monitors, or none any more, is another one from now on.
    #[inline(always)]
    fn look_for_monitors(&self, number: usize, transmit: &mut Transmit) {
        let Some(pipe) = &mut transmit.pipe else { return };
        let shadow = transmit.program.ring.shadow();
        if shadow != pipe.shadow {
            pipe.shadow = shadow;
            pipe.copier = self.shadow(number).ok().flatten();
            pipe.copier.iter_mut().filter(|_| pipe.beginning > 0).for_each(Copier::skip);
        }
    }

    #[cold]
    fn shadow(&self, number: usize) -> Result<Option<Copier>> {
        let Some(client) = &self.client else { return Ok(None) };
        let (Reply::Shadow { buffers, places }, descriptors) = client.ask(&Request::Shadow, &[])? else {
            return Err(Error::BadPeer { why: "its answer is another's" });
        };
        match (<[OwnedFd; 2]>::try_from(descriptors), places.get(number)) {
            (Ok([memory, bell]), Some(place)) => Copier::new(memory, bell, buffers, *place).map(Some),
            _ => Ok(None),
        }
    }

    /// Fetches packets that are not in their buffers (`NS_INDIRECT`), of what the program has released of its transmit rings
    /// since the last sync: `read` copies from an address of the program's.
    pub fn fetch(&self, mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>) {
        let Some(lease) = &self.lease else { return };
        for transmit in self.sides.tx.iter().flatten() {
            let Transmit { program, fetched, .. } = &mut *lock(transmit);
            fetched.fetch(program, &lease.area, &mut read);
        }
    }

    /// What is marked of the packets that the program has released passes between the card and the host's stack, if both
    /// are open here.
    fn forward(&self) {
        if self.wanted.which != Which::AllAndHost {
            return;
        }
        // Whatever the server says, it has one.
        let (cards, hosts) = (usize::from(self.rings.rx).max(1), self.rings.tx.into());
        for (number, program) in self.sides.rx.iter().enumerate() {
            // Ring by ring, to the rings of the other that there are.
            let targets = if number < cards { hosts..self.sides.tx.len() } else { 0..hosts };
            let target = targets.start + (number % cards) % targets.len().max(1);
            let (Some(program), Some(Some(transmit))) = (program, self.sides.tx.get(target)) else { continue };
            let transmit = &mut *lock(transmit);
            transmit.program.learn();
            if forward(&lock(program), &transmit.program) {
                // It is where it can be, between head and tail.
                let _ = transmit.hand_over(&self.bell);
            }
        }
    }

    /// Gives back what the program has released of its receive rings, and learns what has come (`NIOCRXSYNC`).
    ///
    /// # Errors
    /// As [`sync_tx`](SharedPort::sync_tx).
    pub fn sync_rx(&self) -> Result<()> {
        let mut result = Ok(());
        self.forward();
        for program in self.sides.rx.iter().flatten() {
            let program = &mut *lock(program);
            result = give_back(program, &self.bell).and(result);
            program.learn();
            stamp(&program.ring);
        }
        result
    }

    /// Hands over what has come on a receive ring, packet by packet, each as where its parts are, until `each` has no room
    /// for one; tells how many it took.
    pub(super) fn take(&self, number: usize, mut each: impl FnMut(&Memory, &[(usize, usize)]) -> bool) -> usize {
        let Some(program) = self.sides.rx.get(number).and_then(Option::as_ref) else { return 0 };
        let program = &mut *lock(program);
        program.learn();
        let (mut taken, mut parts) = (0, Vec::new());
        let (mut at, mut head) = (program.head(), program.head());
        while at != program.tail() {
            let slot = program.ring.slot(at);
            parts.extend(program.ring.bytes(at, slot));
            at = program.ring.next(at);
            if slot.has_more() {
                continue;
            }
            if !each(&self.memory, &parts) {
                break;
            }
            parts.clear();
            (head, taken) = (at, taken + 1);
        }
        if taken > 0 {
            program.set(head as u32, head as u32);
            // It is where it can be, between head and tail.
            let _ = give_back(program, &self.bell);
        }
        taken
    }

    /// Puts packets on a transmit ring, one after the other: `next` is called with how many bytes there is room for, and
    /// fills in the next packet, or has none that fits. Tells how many there were.
    pub(super) fn put(
        &self,
        number: usize,
        bytes: &mut Vec<u8>,
        mut next: impl FnMut(usize, &mut Vec<u8>) -> bool,
    ) -> usize {
        let Some(transmit) = self.sides.tx.get(number).and_then(Option::as_ref) else { return 0 };
        let transmit = &mut *lock(transmit);
        self.look_for_monitors(number, transmit);
        let program = &mut transmit.program;
        program.learn();
        let size = self.memory.buffers.size;
        let (mut head, mut put) = (program.head(), 0);
        loop {
            let free = program.ring.distance(head, program.tail());
            bytes.clear();
            if !next(free.min(MAX_FRAGS) * size, bytes) {
                break;
            }
            let count = bytes.len().div_ceil(size);
            for (n, part) in bytes.chunks(size).enumerate() {
                let buffer = program.ring.slot(head).buffer;
                if let Some(at) = self.memory.buffer(buffer) {
                    self.memory.mapping.write(at, part);
                }
                let flags = if n + 1 < count { NS_MOREFRAG } else { 0 };
                program.ring.set_slot(head, Slot { buffer, len: part.len() as u16, flags });
                head = program.ring.next(head);
            }
            put += 1;
        }
        program.set(head as u32, head as u32);
        // It is where it can be, between head and tail.
        let _ = transmit.hand_over(&self.bell);
        put
    }

    /// Slots of a pipe's transmit ring that found no room at the other end yet; they are lost if the port is closed now.
    pub(super) fn unsent(&self, number: usize) -> usize {
        let Some(transmit) = self.sides.tx.get(number).and_then(Option::as_ref) else { return 0 };
        let Transmit { program, pipe, .. } = &*lock(transmit);
        pipe.as_ref().map_or(0, |pipe| program.ring.distance(pipe.done, program.head()))
    }

    /// Head and tail of a ring that is there, as they were at the last sync.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn indices(&self, receives: bool, number: usize) -> (u32, u32) {
        self.with(receives, number, |program| (program.head() as u32, program.tail() as u32))
    }

    /// Sets head and cur of a ring that is there, as its program would.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn set_head(&self, receives: bool, number: usize, head: u32, cur: u32) {
        self.with(receives, number, |program| program.set(head, cur));
    }

    #[track_caller]
    fn with<T>(&self, receives: bool, number: usize, work: impl FnOnce(&mut Program) -> T) -> T {
        let absent = "the ring is there";
        match receives {
            true => work(&mut lock(self.sides.rx[number].as_ref().expect(absent))),
            false => work(&mut lock(self.sides.tx[number].as_ref().expect(absent)).program),
        }
    }

    /// True if a transmit ring has room behind cur.
    pub fn can_send(&self) -> bool {
        self.sides.tx.iter().flatten().any(|transmit| lock(transmit).program.is_ready())
    }

    /// True if a receive ring has something behind cur.
    pub fn can_receive(&self) -> bool {
        self.sides.rx.iter().flatten().any(|program| lock(program).is_ready())
    }

    /// From now on [`event`](SharedPort::event) becomes readable when there is room to send, or something to receive; sync
    /// and look once more before you sleep.
    pub fn arm(&self, send: bool, receive: bool) {
        for transmit in self.sides.tx.iter().flatten() {
            let transmit = lock(transmit);
            match &transmit.pipe {
                // What does not fit is moved on when there is room, even if nobody waits for that.
                Some(pipe) if send || pipe.done != transmit.program.head() => pipe.other.ring.wait_for_program(),
                None if send => transmit.program.wait(),
                _ => {}
            }
        }
        if receive {
            self.sides.rx.iter().flatten().for_each(|program| lock(program).wait());
        }
    }

    /// Takes it back.
    pub fn disarm(&self) {
        self.sides.tx.iter().flatten().for_each(|transmit| lock(transmit).program.wait_no_more());
        self.sides.rx.iter().flatten().for_each(|program| lock(program).wait_no_more());
        self.bell.silence();
    }

    /// As [`arm`](SharedPort::arm), for one receive ring of several that threads of their own wait for.
    pub(super) fn arm_ring(&self, number: usize) {
        self.armed.fetch_or(bit(number), SeqCst);
        if let Some(Some(program)) = self.sides.rx.get(number) {
            lock(program).wait();
        }
    }

    /// Takes it back for this ring. The bell is all rings': while others wait for it, what it has said is for them, too.
    pub(super) fn disarm_ring(&self, number: usize) {
        if let Some(Some(program)) = self.sides.rx.get(number) {
            lock(program).wait_no_more();
        }
        if self.armed.fetch_and(!bit(number), SeqCst) & !bit(number) == 0 {
            self.bell.silence();
        }
    }

    /// Becomes readable when something has happened.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// False once who serves the port is gone.
    pub fn is_served(&self) -> bool {
        self.client.as_ref().is_none_or(|client| !client.connection.has_ended())
    }

    /// Becomes readable when who serves the port is gone.
    pub fn server(&self) -> BorrowedFd<'_> {
        self.client.as_ref().map_or(self.bell.as_fd(), |client| client.connection.as_fd())
    }
}

/// A port has fewer rings than a word has bits.
fn bit(ring: usize) -> u64 {
    1 << (ring % 64)
}

impl Drop for SharedPort {
    fn drop(&mut self) {
        // Nobody writes into its buffers once the answer is here.
        let Some(client) = self.client.take() else { return };
        let answer = client.ask(&Request::Close, &[]);
        for transmit in self.sides.tx.iter().flatten() {
            let Transmit { program, fetched, .. } = &mut *lock(transmit);
            self.lease.iter().for_each(|lease| fetched.end(program, &lease.area));
        }
        let is_pipe = self.sides.tx.iter().flatten().any(|transmit| lock(transmit).pipe.is_some());
        let is_used = match answer {
            Ok((Reply::Closed { still_used }, _)) => still_used,
            _ => is_pipe,
        };
        if is_used && let Some(mut lease) = self.lease.take() {
            // The other end of a pipe goes on with it.
            let placed = std::mem::take(&mut lease.placed);
            lease.area.lend(Lent { connection: client.connection, placed });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::area::Plan;
    use super::super::ring::{FLAGS, NS_FORWARD, Producer, Ring};
    use super::*;

    /// A port that nobody serves, with all its rings, and the other end of its bell.
    fn port(rings: Rings, which: Which) -> (SharedPort, Bell) {
        let rings = Rings { tx_slots: 16, rx_slots: 16, ..rings };
        let mut plan = Plan::default();
        plan.buffers.count = 2000;
        let area = Arc::new(Area::new(plan).unwrap());
        let wanted = Wanted { name: "a".to_string(), which, rings, ..Wanted::default() };
        let mut port = SharedPort::null(wanted, &area).unwrap();
        let placed = area.place("a", &rings, |_| true, |_| true, Offsets::default()).unwrap();
        port.sides = Sides::new(&area.memory, &placed, None).unwrap();
        let [ours, theirs] = Bell::pair().unwrap();
        (port.rings, port.bell, port.placed) = (rings, ours, placed);
        port.sides.tx.iter().flatten().for_each(|transmit| lock(transmit).program.all_free());
        (port, theirs)
    }

    fn ring(port: &SharedPort, receives: bool, number: usize) -> Ring {
        port.with(receives, number, |program| program.ring.clone())
    }

    fn rung(bell: BorrowedFd<'_>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn a_port_to_ask_about_has_no_host() {
        let area = Arc::new(Area::new(Plan::default()).unwrap());
        let rings = Rings { tx: 1, rx: 2, host_tx: 3, host_rx: 4, ..Rings::default() };
        let port = SharedPort::null(Wanted { rings, ..Wanted::default() }, &area).unwrap();
        assert_eq!(*port.rings(), Rings { tx: 1, rx: 2, ..Rings::default() });
        assert_eq!((port.placed().tx.len(), port.placed().rx.len()), (1, 2));
        let free = area.free_buffers();
        assert_eq!((port.extra_buffers(7), area.free_buffers()), (7, free - 7));
        drop(port);
        assert_eq!(area.free_buffers(), free, "what it had is free again");
    }

    #[test]
    fn marked_packets_pass_ring_by_ring_to_the_rings_that_there_are() {
        let rings = Rings { tx: 2, rx: 3, host_tx: 2, host_rx: 3, ..Rings::default() };
        // Of the card to 2 and 3, the host's; of the host to 0 and 1, the card's.
        let expected = [2, 3, 2, 0, 1, 0];
        for (which, passes) in [(Which::AllAndHost, true), (Which::All, false)] {
            for (from, to) in expected.into_iter().enumerate() {
                let (port, _bell) = port(rings, which);
                let ring = ring(&port, true, from);
                ring.word(FLAGS).store(4, Relaxed); // NR_FORWARD
                ring.set_slot(0, Slot { len: 60, flags: NS_FORWARD, ..ring.slot(0) });
                let mut producer = Producer::new(ring);
                producer.pass(1);
                producer.tell();
                port.sync_rx().unwrap();
                port.set_head(true, from, 1, 1);
                port.sync_rx().unwrap();
                let heads = [0, 1, 2, 3].map(|n| port.indices(false, n).0);
                let moved = [0, 1, 2, 3].map(|n| u32::from(passes && n == to));
                assert_eq!(heads, moved, "from ring {from}");
            }
        }
    }

    #[test]
    fn the_bell_is_silenced_by_the_last_ring_that_is_waited_for() {
        let (port, bell) = port(Rings { tx: 1, rx: 66, ..Rings::default() }, Which::All);
        assert_eq!([0, 1, 63, 64, 65].map(bit), [1, 2, 1 << 63, 1, 2]);
        for number in [1, 2] {
            port.arm_ring(number);
        }
        assert_eq!([0, 1, 2].map(|n| ring(&port, true, n).must_wake_program()), [false, true, true]);
        bell.ring();
        port.arm_ring(1);
        port.disarm_ring(1);
        assert!(!ring(&port, true, 1).must_wake_program(), "this ring is not waited for any more");
        assert!(rung(port.event()), "the other one still is");
        port.disarm_ring(2);
        assert!(!rung(port.event()));
    }

    #[test]
    fn who_waits_is_woken_for_what_it_waits_for() {
        let (port, bell) = port(Rings { tx: 1, rx: 1, ..Rings::default() }, Which::All);
        let (tx, rx) = (ring(&port, false, 0), ring(&port, true, 0));
        let wakes = || (tx.must_wake_program(), rx.must_wake_program());
        port.arm(false, false);
        assert_eq!(wakes(), (false, false));
        port.arm(true, false);
        assert_eq!(wakes(), (true, false));
        port.arm(false, true);
        assert_eq!(wakes(), (false, true));
        port.arm(true, true);
        bell.ring();
        port.disarm();
        assert_eq!((wakes(), rung(port.event())), ((false, false), false));
        assert!(port.can_send() && !port.can_receive());
        port.set_head(false, 0, 0, port.indices(false, 0).1);
        assert!(!port.can_send());
        let mut producer = Producer::new(rx);
        producer.pass(1);
        producer.tell();
        port.sync_rx().unwrap();
        assert!(port.can_receive() && port.is_served());
    }

    #[test]
    fn packets_are_taken_and_put_as_far_as_there_is_room() {
        let (port, bell) = port(Rings { tx: 1, rx: 1, ..Rings::default() }, Which::All);
        let (tx, rx) = (ring(&port, false, 0), ring(&port, true, 0));
        let size = port.memory().buffers.size;
        // 15 slots are free: a packet of two, one of three, and no more than ten after that.
        let (mut packets, mut rooms, mut bytes) = (vec![10 * size, 2 * size + 1, size + 1], Vec::new(), Vec::new());
        tx.wait_for_program();
        let put = port.put(0, &mut bytes, |room, bytes| {
            rooms.push(room / size);
            let Some(len) = packets.pop() else { return false };
            bytes.resize(len, 7);
            true
        });
        assert_eq!((put, rooms), (3, vec![15, 13, 10, 0]));
        assert!(!rung(port.event()) && rung(bell.as_fd()), "the other side is told");
        let slots =
            |range: std::ops::Range<usize>| range.map(|n| (tx.slot(n).len, tx.slot(n).has_more())).collect::<Vec<_>>();
        let full = size as u16;
        assert_eq!(slots(0..5), [(full, true), (1, false), (full, true), (full, true), (1, false)]);
        assert_eq!(slots(13..15), [(full, true), (full, false)]);
        assert_eq!((port.indices(false, 0).0, port.unsent(0)), (15, 0), "it is no pipe");

        let lens = [(100, NS_MOREFRAG), (50, 0), (60, 0), (70, NS_MOREFRAG)];
        lens.iter()
            .enumerate()
            .for_each(|(n, (len, flags))| rx.set_slot(n, Slot { len: *len, flags: *flags, ..rx.slot(n) }));
        let mut producer = Producer::new(rx.clone());
        producer.pass(4);
        producer.tell();
        let take = |most: usize| {
            let mut seen = Vec::new();
            let taken = port.take(0, |_, parts| {
                let has_room = seen.len() < most;
                if has_room {
                    seen.push(parts.iter().map(|(_, len)| *len).collect::<Vec<_>>());
                }
                has_room
            });
            (taken, seen)
        };
        assert_eq!(take(0), (0, vec![]));
        assert_eq!(port.indices(true, 0).0, 0);
        assert_eq!(take(1), (1, vec![vec![100, 50]]));
        assert_eq!(port.indices(true, 0).0, 2);
        assert_eq!(take(9), (1, vec![vec![60]]), "the last packet has no end yet");
        assert_eq!(port.indices(true, 0).0, 3);
        assert_eq!((port.take(1, |_, _| true), port.put(1, &mut bytes, |_, _| true)), (0, 0), "there is no such ring");
    }
}
