//! A packet's way between a program's rings and a port, top-down. Each packet is copied once: what a program can change at
//! any moment is looked at by nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{Bell, Connection};
use super::ring::{Consumer, Front, MAX_FRAGS, NS_MOREFRAG, NS_NO_LEARN, Producer, Slot};
use crate::batch::Batch;
use crate::memory::{Mapping, Pool};
use crate::offload::{LONGEST, Offload};
use crate::port::{RxQueue, TxQueue};

/// Packets that are moved before the other direction has its turn.
const TURN: usize = 64;
/// How long is polled before it sleeps.
const PATIENCE: Duration = Duration::from_micros(20);
/// Turns with packets, after which the connection is looked at.
const TURNS: u32 = 1024;

/// The longest header of virtio-net's: 10 bytes, or 12 with a number of buffers (VIRTIO 1.2, 5.1.6).
const HEADERS: usize = 12;
/// Turns for what a program that is gone has sent before: enough for the longest ring.
const LAST_TURNS: u32 = 1024;

/// From a program's transmit ring to a queue.
pub struct Sending {
    pub ring: Consumer,
    pub queue: Box<dyn TxQueue>,
    pub pool: Arc<Pool>,
    pub longest: usize,
    pub header: Arc<AtomicUsize>,
    pub batch: Batch,
}

/// From a queue to a program's receive ring.
pub struct Receiving {
    pub ring: Producer,
    pub queue: Box<dyn RxQueue>,
    pub header: Arc<AtomicUsize>,
    pub batch: Batch,
}

impl Sending {
    /// `header`: bytes of a header of virtio-net's in front of each packet.
    pub fn new(
        ring: Consumer,
        queue: Box<dyn TxQueue>,
        pool: &Arc<Pool>,
        longest: usize,
        header: &Arc<AtomicUsize>,
    ) -> Sending {
        let mut batch = Batch::with_capacity(TURN);
        batch.is_of(pool);
        Sending { ring, queue, pool: pool.clone(), longest, header: header.clone(), batch }
    }

    /// Tells how many slots were done.
    fn turn(&mut self, bell: &Bell) -> usize {
        let mut slots = 0;
        while self.batch.len() < TURN {
            let done = match self.ring.front() {
                Front::None => break,
                Front::Packet { len, flags } if self.take(len, flags) => self.ring.parts.len(),
                // No buffer is free.
                Front::Packet { .. } => break,
                Front::Nonsense { slots } => slots,
            };
            self.ring.pass(done);
            slots += done;
        }
        let waiting = self.batch.len();
        if waiting > 0 || self.queue.unsent() > 0 {
            self.queue.send(&mut self.batch);
        }
        if slots > 0 {
            self.ring.tell();
            if self.ring.ring.must_wake_program() {
                bell.ring();
            }
        }
        slots + (waiting - self.batch.len())
    }

    /// Copies the packet at the front, unless it is empty or too long: then nothing becomes of it. False if there is no
    /// buffer for it now.
    #[inline(always)]
    fn take(&mut self, len: usize, flags: u16) -> bool {
        let header = self.header.load(Ordering::Relaxed);
        if !(header + 1..=header + LONGEST).contains(&len) {
            return true;
        }
        let mut from = Cursor { parts: &self.ring.parts, at: 0 };
        let memory = &self.ring.ring.memory.mapping;
        let (offload, len) = (offload(&mut from, memory, header), len - header);
        if len > if offload.is_some() { LONGEST } else { self.longest } {
            return true;
        }
        if !self.batch.can_hold(&self.pool, len) {
            return true;
        }
        let is_taken = self.batch.push_filled(&self.pool, len, offload, |_, target| from.read(memory, target));
        if is_taken && flags & NS_NO_LEARN != 0 {
            self.batch.unlearn_last();
        }
        is_taken
    }

    /// Something is still to be handed over.
    fn is_pending(&self) -> bool {
        !self.batch.is_empty() || self.queue.unsent() > 0
    }
}

/// What a header of so many bytes in front of a packet leaves to do.
#[inline(always)]
fn offload(from: &mut Cursor<'_>, memory: &Mapping, header: usize) -> Option<Offload> {
    if header == 0 {
        return None;
    }
    let mut bytes = [0; HEADERS];
    from.read(memory, &mut bytes[..header]);
    bytes.first_chunk().copied().map(Offload).filter(|offload| offload.is_needed())
}

/// Bytes of several parts, one after the other.
struct Cursor<'a> {
    parts: &'a [(usize, usize)],
    at: usize,
}

impl Cursor<'_> {
    /// Copies the next bytes. The caller does not ask for more than there are.
    #[inline(always)]
    fn read(&mut self, memory: &Mapping, mut target: &mut [u8]) {
        while !target.is_empty() {
            let (begin, len) = self.parts[0];
            let (now, later) = target.split_at_mut(target.len().min(len - self.at));
            memory.read(begin + self.at, now);
            self.at += now.len();
            target = later;
            if self.at == len {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }
}

impl Receiving {
    /// `header`: bytes of a header of virtio-net's in front of each packet.
    pub fn new(ring: Producer, queue: Box<dyn RxQueue>, header: &Arc<AtomicUsize>) -> Receiving {
        Receiving { ring, queue, header: header.clone(), batch: Batch::with_capacity(TURN) }
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
        let header = self.header.load(Ordering::Relaxed);
        for packet in self.batch.packets() {
            let count = (header + packet.len()).div_ceil(size).max(1);
            if count > free && count <= most {
                break;
            }
            taken += packet.slots();
            if count <= most && put(&mut self.ring, header, &packet, count) {
                free -= count;
                filled += count;
            }
        }
        self.batch.drop_front(taken);
        if filled > 0 {
            self.ring.tell();
            if self.ring.ring.must_wake_program() {
                bell.ring();
            }
        }
        taken
    }
}

/// Copies a packet, behind a header of zeros, into the next `count` slots, which are free; false if one of them has no
/// buffer.
#[inline(always)]
fn put(producer: &mut Producer, header: usize, packet: &crate::packet::Packet<'_>, count: usize) -> bool {
    let (memory, size) = (&producer.ring.memory, producer.ring.memory.buffers.size);
    let mut slot = producer.tail();
    let mut segments = packet.segments();
    let mut segment = &[0; HEADERS][..header];
    let mut left = header + packet.len();
    for n in 0..count {
        let buffer = producer.ring.slot(slot).buffer;
        let offset = producer.ring.offset(slot);
        let Some(at) = memory.buffer(buffer).filter(|_| offset < size).map(|at| at + offset) else { return false };
        let len = left.min(size - offset);
        // With offsets the last slot may be too short.
        if n + 1 == count && len < left {
            return false;
        }
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
        let flags = more | ((count - n) as u16) << 8;
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
    /// Moves packets both ways once. Returns how many slots were done.
    pub(super) fn turn(&mut self) -> usize {
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
                if connection.has_news() {
                    return;
                }
                continue;
            }
            if quiet.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                std::thread::yield_now();
                continue;
            }
            // Who looks once more after this misses nothing.
            self.sending.iter().for_each(|sending| sending.ring.ring.wait_for_program());
            self.receiving.iter().for_each(|receiving| receiving.ring.ring.wait_for_program());
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
