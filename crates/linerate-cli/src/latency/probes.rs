//! Frames whose times the cards note with their clocks (`--stamps card`), one at a time, beside the frames of the load:
//! Sync messages of IEEE 1588, since cards note the times of no other received frames.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linerate::memory::Pool;
use linerate::packet::Origin;
use linerate::port::{Clock, TxQueue};
use linerate::traffic::FrameTime;
use linerate::{Batch, Error, Packet};

/// The time from one probe to the next: then the load hardly changes.
const INTERVAL: Duration = Duration::from_micros(500);
/// After this time a probe is lost, or a card has not noted its time.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the clocks are compared for one probe; the shortest comparison counts. A thread can lose its processor
/// during a comparison, so more follow until one is good enough.
const COMPARISONS: usize = 5;
const MOST_COMPARISONS: usize = 100;
const GOOD_ENOUGH: u64 = 5_000;

/// The UDP port of events, the ethertype, and the length of a Sync message.
pub const EVENTS: u16 = 319;
pub const PTP: u16 = 0x88F7;
pub const SYNC: usize = 44;
/// Offsets in a message: the version, the identity of the clock, and the sequence number (IEEE 1588-2008, 13.3.1).
const VERSION: usize = 1;
const IDENTITY: usize = 20;
const NUMBER: usize = 30;
/// The identity of the clock in all probes.
const OWN: [u8; 8] = *b"linerate";

/// The probes of one direction, which its sender and receiver share.
pub struct Probes {
    /// The probe without its number, and the offset of the message.
    frame: Vec<u8>,
    message: usize,
    /// The sender's and the receiver's clock.
    clocks: [Clock; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: u16,
    /// The probe on its way: its beginning, and its arrival by the receiver's clock.
    on_its_way: Option<(Instant, Option<u64>)>,
    last: Option<Instant>,
    times: Vec<FrameTime>,
    counts: ProbeCounts,
}

/// The counts of probes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeCounts {
    /// The probes that were sent.
    pub sent: u64,
    /// Those that did not arrive with a time within [`PATIENCE`].
    pub lost: u64,
    /// Those whose departure the sender's card has not noted.
    pub unnoted: u64,
    /// How far the comparison of the clocks may be wrong, at most, in nanoseconds.
    pub error: u64,
}

impl ProbeCounts {
    /// Adds the counts of another direction.
    pub fn add(&mut self, other: ProbeCounts) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.unnoted += other.unnoted;
        self.error = self.error.max(other.error);
    }
}

impl Probes {
    /// Creates the probes from a frame with room for a message at its end.
    pub fn new(mut frame: Vec<u8>, clocks: [Clock; 2]) -> Arc<Probes> {
        let message = frame.len() - SYNC;
        frame[message + VERSION] = 2;
        frame[message + IDENTITY..][..OWN.len()].copy_from_slice(&OWN);
        Arc::new(Probes { frame, message, clocks, state: Mutex::default() })
    }

    /// Sends a probe if it is time for one, and completes the last.
    pub fn turn(&self, pool: &Arc<Pool>, batch: &mut Batch, tx: &mut TxQueue) -> Result<(), Error> {
        let mut state = self.state();
        let now = Instant::now();
        match state.on_its_way {
            None if state.last.is_none_or(|last| now - last >= INTERVAL) => {
                self.clocks[0].sent()?; // of a probe that was given up
                state.number = state.number.wrapping_add(1);
                (state.last, state.on_its_way) = (Some(now), Some((now, None)));
                batch.push(pool, &self.frame);
                for mut packet in batch.packets() {
                    packet[self.message + NUMBER..][..2].copy_from_slice(&state.number.to_be_bytes());
                    // The message of Ethernet frames has none.
                    let _ = packet.leave_checksum();
                    packet.request_timestamp();
                }
                drop(state); // the receiver may get it before `send` returns
                let sent = tx.send(batch);
                batch.clear();
                let mut state = self.state();
                match sent {
                    0 => state.on_its_way = None, // the queue is full
                    _ => state.counts.sent += 1,
                }
            }
            Some((began, None)) if now - began >= PATIENCE => {
                state.counts.lost += 1;
                state.on_its_way = None;
            }
            Some((_, Some(arrived))) => {
                match self.clocks[0].sent()? {
                    Some(left) => {
                        let (ahead, error) = self.compare()?;
                        let time = (i128::from(arrived) - i128::from(left) - ahead).max(0) as u64;
                        let sequence = u64::from(state.number);
                        state.times.push(FrameTime { flow: 0, sequence, nanoseconds: time });
                        state.counts.error = state.counts.error.max(error);
                    }
                    None => state.counts.unnoted += 1,
                }
                state.on_its_way = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns whether a received packet is a probe of any direction. Keeps the time of the one on its way.
    pub fn takes(&self, packet: &Packet<'_>) -> bool {
        let message = packet.get(self.message..).unwrap_or_default();
        if message.get(IDENTITY..IDENTITY + OWN.len()) != Some(&OWN) {
            return false;
        }
        let mut state = self.state();
        let number = state.number.to_be_bytes();
        if let Some((_, arrival @ None)) = &mut state.on_its_way
            && message.get(NUMBER..NUMBER + 2) == Some(&number)
            && packet.origin() == Origin::Card
        {
            *arrival = packet.timestamp();
        }
        true
    }

    /// Returns how far the receiver's clock is ahead of the sender's, and how far that may be wrong, in nanoseconds.
    fn compare(&self) -> Result<(i128, u64), Error> {
        let [sender, receiver] = &self.clocks;
        let mut best = (0, u64::MAX);
        for n in 0..MOST_COMPARISONS {
            if n >= COMPARISONS && best.1 <= GOOD_ENOUGH {
                break;
            }
            let (before, between, after) = (sender.now()?, receiver.now()?, sender.now()?);
            let error = (after.saturating_sub(before)).div_ceil(2);
            if error < best.1 {
                best = (i128::from(between) - (i128::from(before) + i128::from(error)), error);
            }
        }
        Ok(best)
    }

    /// Takes the times since the last call.
    pub fn take(&self) -> Vec<FrameTime> {
        std::mem::take(&mut self.state().times)
    }

    /// Returns the counts until now.
    pub fn counts(&self) -> ProbeCounts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
