//! A packet's way between a program's rings and a port, top-down. Each packet is copied once: what a program can change at
//! any moment is looked at by nobody.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{Bell, Connection};
use super::ring::{Consumer, Front, MAX_FRAGS, NS_MOREFRAG, Producer, Slot};
use crate::batch::Batch;
use crate::memory::Pool;
use crate::port::{RxQueue, TxQueue};

/// Packets that are moved before the other direction has its turn.
const TURN: usize = 64;
/// How long is polled before it sleeps.
const PATIENCE: Duration = Duration::from_micros(20);
/// Turns with packets, after which the connection is looked at.
const TURNS: u32 = 1024;

/// Turns for what a program that is gone has sent before: enough for the longest ring.
const LAST_TURNS: u32 = 1024;

/// From a program's transmit ring to a queue.
pub struct Sending {
    pub ring: Consumer,
    pub queue: Box<dyn TxQueue>,
    pub pool: Arc<Pool>,
    pub longest: usize,
    pub batch: Batch,
}

/// From a queue to a program's receive ring.
pub struct Receiving {
    pub ring: Producer,
    pub queue: Box<dyn RxQueue>,
    pub batch: Batch,
}

impl Sending {
    pub fn new(ring: Consumer, queue: Box<dyn TxQueue>, pool: &Arc<Pool>, longest: usize) -> Sending {
        let mut batch = Batch::with_capacity(TURN);
        batch.is_of(pool);
        Sending { ring, queue, pool: pool.clone(), longest, batch }
    }

    /// Tells how many slots were done.
    fn turn(&mut self, bell: &Bell) -> usize {
        let mut slots = 0;
        while self.batch.len() < TURN {
            match self.ring.front() {
                Front::None => break,
                Front::Packet { len } if (1..=self.longest).contains(&len) => {
                    let mut from = Cursor { parts: &self.ring.parts, at: 0 };
                    let memory = &self.ring.ring.memory.mapping;
                    let copy = |_, mut target: &mut [u8]| {
                        while !target.is_empty() {
                            let (at, len) = from.next(target.len());
                            let (now, later) = target.split_at_mut(len);
                            memory.read(at, now);
                            target = later;
                        }
                    };
                    if !self.batch.push_filled(&self.pool, len, None, copy) {
                        break;
                    }
                    slots += self.ring.parts.len();
                    self.ring.pass(self.ring.parts.len());
                }
                // Too long, or empty.
                Front::Packet { .. } => {
                    slots += self.ring.parts.len();
                    self.ring.pass(self.ring.parts.len());
                }
                Front::Nonsense { slots: count } => {
                    slots += count;
                    self.ring.pass(count);
                }
            }
        }
        let waiting = self.batch.len();
        if waiting > 0 || self.queue.unsent() > 0 {
            self.queue.send(&mut self.batch);
        }
        if slots > 0 {
            self.ring.tell();
            if self.ring.must_ring() {
                bell.ring();
            }
        }
        slots + (waiting - self.batch.len())
    }

    /// Something is still to be handed over.
    fn is_pending(&self) -> bool {
        !self.batch.is_empty() || self.queue.unsent() > 0
    }
}

/// Bytes of several parts, one after the other.
struct Cursor<'a> {
    parts: &'a [(usize, usize)],
    at: usize,
}

impl Cursor<'_> {
    /// Where the next are, and how many of at most `most`. The caller does not ask for more than there are.
    #[inline(always)]
    fn next(&mut self, most: usize) -> (usize, usize) {
        while self.at == self.parts[0].1 {
            (self.parts, self.at) = (&self.parts[1..], 0);
        }
        let (begin, len) = self.parts[0];
        let count = most.min(len - self.at);
        self.at += count;
        (begin + self.at - count, count)
    }
}

impl Receiving {
    pub fn new(ring: Producer, queue: Box<dyn RxQueue>) -> Receiving {
        Receiving { ring, queue, batch: Batch::with_capacity(TURN) }
    }

    /// Tells how many slots were done.
    fn turn(&mut self, bell: &Bell) -> usize {
        let mut free = self.ring.free();
        if self.batch.is_empty() && free > 0 {
            self.queue.recv(&mut self.batch);
        }
        if self.batch.is_empty() {
            return 0;
        }
        let size = self.ring.ring.memory.buffers.size;
        let most = (self.ring.ring.place.slots - 1).min(MAX_FRAGS);
        let (mut taken, mut filled) = (0, 0);
        for packet in self.batch.packets() {
            let count = packet.len().div_ceil(size).max(1);
            if count > free && count <= most {
                break;
            }
            taken += packet.slots();
            if count <= most && put(&mut self.ring, &packet, count) {
                free -= count;
                filled += count;
            }
        }
        self.batch.drop_front(taken);
        if filled > 0 {
            self.ring.tell();
            if self.ring.must_ring() {
                bell.ring();
            }
        }
        taken
    }
}

/// Copies a packet into the next `count` slots, which are free; false if one of them has no buffer.
#[inline(always)]
fn put(producer: &mut Producer, packet: &crate::packet::Packet<'_>, count: usize) -> bool {
    let (memory, size) = (&producer.ring.memory, producer.ring.memory.buffers.size);
    let mut slot = producer.tail();
    let mut segments = packet.segments();
    let mut segment: &[u8] = segments.next().unwrap_or_default();
    let mut left = packet.len();
    for n in 0..count {
        let buffer = producer.ring.slot(slot).buffer;
        let Some(at) = memory.buffer(buffer) else { return false };
        let len = left.min(size);
        let mut done = 0;
        while done < len {
            if segment.is_empty() {
                segment = segments.next().unwrap_or_default();
            }
            let fits = segment.len().min(len - done);
            memory.mapping.write(at + done, &segment[..fits]);
            (done, segment) = (done + fits, &segment[fits..]);
        }
        left -= len;
        let more = if n + 1 < count { NS_MOREFRAG } else { 0 };
        let flags = more | (count as u16) << 8;
        producer.ring.set_slot(slot, Slot { buffer, len: len as u16, flags });
        slot = producer.ring.next(slot);
    }
    producer.pass(count);
    true
}

/// A port's rings at work for a program.
pub struct Work {
    pub sending: Vec<Sending>,
    pub receiving: Vec<Receiving>,
    pub bell: Bell,
}

impl Work {
    fn turn(&mut self) -> usize {
        let sent: usize = self.sending.iter_mut().map(|sending| sending.turn(&self.bell)).sum();
        let received: usize = self.receiving.iter_mut().map(|receiving| receiving.turn(&self.bell)).sum();
        sent + received
    }

    /// Moves packets until the program says something, or is gone.
    pub fn run(&mut self, connection: &Connection) {
        let (mut quiet, mut turns) = (None, 0);
        loop {
            if self.turn() > 0 {
                (quiet, turns) = (None, turns + 1);
                if turns < TURNS {
                    continue;
                }
                turns = 0;
                if is_readable(connection) {
                    return;
                }
                continue;
            }
            if quiet.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                std::thread::yield_now();
                continue;
            }
            // Who looks once more after this misses nothing.
            self.sending.iter().for_each(|sending| sending.ring.wait());
            self.receiving.iter().for_each(|receiving| receiving.ring.wait());
            for receiving in &mut self.receiving {
                receiving.queue.arm();
            }
            if self.turn() == 0 && self.sleep(connection) {
                return;
            }
            self.receiving.iter_mut().for_each(|receiving| receiving.queue.disarm());
            self.bell.silence();
            quiet = None;
        }
    }

    /// True if the program has said something.
    fn sleep(&mut self, connection: &Connection) -> bool {
        // What a queue has not sent yet, and a port without interrupts, is looked after again soon.
        let mut soon = self.sending.iter().any(Sending::is_pending);
        let mut events = vec![PollFd::new(connection, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        for receiving in &mut self.receiving {
            // With a full ring it is the program that is waited for.
            if !receiving.batch.is_empty() || receiving.ring.free() == 0 {
                continue;
            }
            match receiving.queue.arm() {
                Some(event) => events.push(PollFd::from_borrowed_fd(event, PollFlags::IN)),
                None => soon = true,
            }
        }
        let longest = Timespec { tv_sec: 0, tv_nsec: if soon { 50_000 } else { 250_000_000 } };
        let _ = poll(&mut events, Some(&longest));
        !events[0].revents().is_empty()
    }

    /// The program is gone: what it has sent before is still sent, as far as the port takes it.
    pub fn finish(&mut self) {
        // It may only say that it is gone, and go on writing.
        for _ in 0..LAST_TURNS {
            if self.sending.iter_mut().map(|sending| sending.turn(&self.bell)).sum::<usize>() == 0 {
                break;
            }
        }
    }
}

fn is_readable(connection: &Connection) -> bool {
    let mut event = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
    poll(&mut event, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}
