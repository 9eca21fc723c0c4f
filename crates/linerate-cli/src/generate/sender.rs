//! One queue's sender: generates the frames that are due, of one or several streams, and sends them.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate::Batch;
use linerate::memory::Pool;
use linerate::port::{RxQueue, TxQueue};
use linerate::traffic::Pacer;

use super::pace::Pace;
use super::source::Source;
use crate::host::Responder;
use crate::limits::End;
use crate::live::Follower;
use crate::run::send;

/// A queue's share of a stream.
pub struct Lane {
    source: Source,
    pace: Pace,
    /// The payload of each segment, if the port cuts the packets.
    segment: Option<NonZeroU16>,
    /// `None` for frames at full speed.
    pacer: Option<Pacer>,
    /// The minimum number of paced frames to make at a time.
    min_batch: usize,
    /// Frames left to make.
    left: u64,
    /// Counts the sent frames of the stream, over all queues.
    sent: Arc<AtomicU64>,
    /// A frame of several buffers that was generated and did not fit yet.
    made: Vec<u8>,
}

/// A receive queue on which requests are answered.
pub struct Answering {
    pub responder: Responder,
    pub rx: RxQueue,
    pub batch: Batch,
}

/// One queue's sender.
pub struct Sender {
    pub tx: TxQueue,
    pub pool: Arc<Pool>,
    pub batch: Batch,
    pub lanes: Vec<Lane>,
    /// The paced lane that is served first. It rotates, so that a port without room for all delays each lane equally.
    pub first: usize,
    /// Which lanes the batch's packets belong to, from its front: lane and number of packets.
    pub runs: Vec<(usize, usize)>,
    /// `None` if the rate cannot change.
    pub speed: Option<Follower>,
    pub responder: Option<Answering>,
    /// How long the thread sleeps when no frame is due, as a receiving process may need the processor.
    pub idle_sleep: Option<Duration>,
    /// The time after which it sends nothing more.
    pub end: End,
    /// Since when the port has had no room for all packets, and the total nanoseconds of earlier times without room.
    pub blocked: Option<Instant>,
    pub held_back: Arc<AtomicU64>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.note_room(true);
    }
}

impl Sender {
    /// Generates frames if none are left, sends, and returns the number of packets sent.
    pub fn turn(&mut self) -> usize {
        if let Some(Answering { responder, rx, batch }) = &mut self.responder {
            responder.receive(rx, batch);
            responder.send(&mut self.tx);
        }
        if self.speed.as_mut().is_some_and(Follower::pause_ended) {
            self.lanes.iter_mut().filter_map(|lane| lane.pacer.as_mut()).for_each(Pacer::resume);
        }
        if let Some(rate) = self.speed.as_mut().and_then(Follower::changed) {
            self.lanes.iter_mut().for_each(|lane| lane.set_rate(rate));
        }
        if self.end.is_reached() {
            self.batch.clear();
            self.runs.clear();
        } else if self.batch.is_empty() {
            self.fill();
            if let (true, Some(idle_sleep)) = (self.batch.is_empty(), self.idle_sleep) {
                std::thread::sleep(idle_sleep);
            }
        }
        let room = self.pool.region().room();
        let mut sent = send(&mut self.tx, &mut self.batch, self.lanes.iter().any(|lane| lane.source.longest() > room));
        if self.lanes.iter().any(|lane| lane.segment.is_some()) {
            // A port that cuts packets in software leaves segments in the batch: packets count once all are sent.
            sent = if self.batch.is_empty() { self.runs.iter().map(|(_, packets)| packets).sum() } else { 0 };
        }
        self.attribute(sent);
        let has_room = self.batch.is_empty();
        if has_room == self.blocked.is_some() {
            self.note_room(has_room);
        }
        sent
    }

    /// Records that the port has no room, or has room again.
    fn note_room(&mut self, has_room: bool) {
        if let Some(since) = self.blocked.take() {
            self.held_back.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        self.blocked = (!has_room).then(Instant::now);
    }

    /// Fills the batch with the frames that are due, and then with frames of streams at full speed.
    fn fill(&mut self) {
        // The last packet may have exceeded the capacity, if it has several slots.
        let capacity = self.batch.capacity();
        let (first, lanes) = (self.first, self.lanes.len());
        self.first = if first + 1 < lanes { first + 1 } else { 0 };
        for number in (first..lanes).chain(0..first) {
            let lane = &mut self.lanes[number];
            let most = (capacity.saturating_sub(self.batch.len()) as u64).min(lane.left) as usize;
            if let Some(pacer) = lane.pacer.as_mut().filter(|_| most > 0) {
                let due = pacer.take_up_to(lane.min_batch.min(most), most);
                self.make(number, due);
            }
        }
        let mut unpaced = self.lanes.iter().filter(|lane| lane.pacer.is_none()).count();
        for number in 0..self.lanes.len() {
            if self.lanes[number].pacer.is_none() {
                // Each lane gets an equal part of the room.
                let part = capacity.saturating_sub(self.batch.len()).div_ceil(unpaced);
                unpaced -= 1;
                self.make(number, part.min(usize::try_from(self.lanes[number].left).unwrap_or(usize::MAX)));
            }
        }
    }

    /// Generates up to `wanted` frames of a lane.
    fn make(&mut self, number: usize, wanted: usize) {
        let lane = &mut self.lanes[number];
        let longest = lane.source.longest();
        let earlier = self.runs.iter().map(|(_, packets)| packets).sum();
        let made = if wanted == 0 {
            0
        } else if longest <= self.pool.region().room() {
            let made = self.batch.alloc(&self.pool, wanted, longest);
            let packets = self.batch.packets().skip(earlier);
            match &mut lane.source {
                Source::Flows(generator) => packets.for_each(|mut packet| generator.fill(&mut packet)),
                Source::Template(frames) => packets.for_each(|mut packet| {
                    // Cannot fail: no frame is longer than this packet, empty, or a chain.
                    let _ = packet.truncate(frames.next_len());
                    frames.fill(&mut packet);
                }),
            }
            made
        } else {
            lane.make_chains(&mut self.batch, &self.pool, wanted)
        };
        if let Some(size) = lane.segment {
            self.batch.packets().skip(earlier).for_each(|mut packet| {
                // Was possible for the first packet. Another that is too long for the port is counted there.
                let _ = packet.leave_segments(size);
            });
        }
        lane.left -= made as u64;
        if made > 0 {
            self.runs.push((number, made));
        }
    }

    /// Attributes sent packets to their streams.
    fn attribute(&mut self, mut sent: usize) {
        let mut done = 0;
        for (lane, packets) in &mut self.runs {
            let some = sent.min(*packets);
            self.lanes[*lane].sent.fetch_add(some as u64, Ordering::Relaxed);
            (sent, *packets) = (sent - some, *packets - some);
            if *packets > 0 {
                break;
            }
            done += 1;
        }
        self.runs.drain(..done);
    }
}

impl Lane {
    /// Creates a lane for `left` frames of a source. `rate` is the requested total of all streams in packets per
    /// second; `None`: full speed.
    pub fn new(
        source: Source,
        pace: Pace,
        segment: Option<NonZeroU16>,
        rate: Option<f64>,
        left: u64,
        sent: Arc<AtomicU64>,
    ) -> Lane {
        let mut lane = Lane { source, pace, segment, pacer: None, min_batch: 1, left, sent, made: Vec::new() };
        lane.set_rate(rate);
        lane
    }

    /// Changes the rate from now on; `None`: full speed.
    fn set_rate(&mut self, rate: Option<f64>) {
        match (rate, &mut self.pacer) {
            (Some(rate), Some(pacer)) => pacer.set_rate(self.pace.rate(rate), 0.0),
            (rate, pacer) => *pacer = rate.map(|rate| self.pace.pacer(rate)),
        }
        self.min_batch = rate.map_or(1, |rate| self.pace.min_batch(rate));
    }

    /// Generates up to `wanted` frames of several buffers each, and returns their number.
    fn make_chains(&mut self, batch: &mut Batch, pool: &Arc<Pool>, wanted: usize) -> usize {
        for made in 0..wanted {
            if self.made.is_empty() {
                self.made.resize(self.source.next_len(), 0);
                self.source.fill(&mut self.made);
            }
            // A frame that does not fit is kept: it has a sequence number, and must be sent.
            if batch.len() >= batch.capacity() || !batch.push(pool, &self.made) {
                return made;
            }
            self.made.clear();
        }
        wanted
    }
}
