//! The latency of stamped frames, from departure to arrival.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::stamp;

/// Measures the latency of stamped frames, by flow and sequence number: the smallest frame has no room for a timestamp.
///
/// ```
/// use linerate::traffic::{Generator, Latency};
/// let (latency, mut generator) = (Latency::new(1), Generator::new(64, 1));
/// let mut frame = vec![0; generator.frame_len()];
/// generator.fill(&mut frame);
/// latency.record_departure(&frame);
/// latency.record_arrival(&frame);
/// let [time] = latency.take()[..] else { panic!("one frame") };
/// assert_eq!((time.flow, time.sequence), (0, 0));
/// ```
pub struct Latency {
    /// Departure times in nanoseconds, with a part of the frame's identity in the low bits; 0 if none.
    left: Box<[AtomicU64]>,
    origin: Instant,
    every: u64,
    times: Mutex<Vec<FrameTime>>,
}

/// The latency of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTime {
    /// The frame's flow.
    pub flow: u16,
    /// Its sequence number in the flow; the lower 40 bits.
    pub sequence: u64,
    /// The time from departure to arrival, in nanoseconds.
    pub nanoseconds: u64,
}

/// The maximum number of frames in flight, one per slot.
const SLOTS: usize = 1 << 16;
/// Bits of a slot's word that identify one of the frames that share the slot.
const NAME_BITS: u32 = 20;

impl Latency {
    /// Measures one of `every` frames of each flow.
    pub fn new(every: u64) -> Arc<Latency> {
        Arc::new(Latency {
            left: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            origin: Instant::now(),
            every: every.max(1),
            times: Mutex::default(),
        })
    }

    /// Records the departure of a frame; frames without a stamp are ignored.
    #[inline]
    pub fn record_departure(&self, frame: &[u8]) {
        if let Some(found) = self.find(frame) {
            found.slot.store(self.now() << NAME_BITS | found.name, Ordering::Relaxed);
        }
    }

    /// Records the arrival of a frame; its latency is recorded once, if it is intact.
    #[inline]
    pub fn record_arrival(&self, frame: &[u8]) {
        let Some(Found { slot, name, at, flow, sequence }) = self.find(frame) else { return };
        let word = slot.swap(0, Ordering::Relaxed);
        if word != 0 && word & ((1 << NAME_BITS) - 1) == name {
            let nanoseconds = since(word, self.now());
            // A damaged sequence number may be that of another frame.
            if !matches!(stamp::read(frame, at), stamp::Read::Stamped { .. }) {
                return;
            }
            let time = FrameTime { flow, sequence, nanoseconds };
            self.times.lock().unwrap_or_else(PoisonError::into_inner).push(time);
        }
    }

    /// Returns the latencies recorded since the last call, in the order of arrival.
    pub fn take(&self) -> Vec<FrameTime> {
        std::mem::take(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the current time; never 0, which marks an unused slot.
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64 + 1
    }

    /// Finds the slot of a frame's departure time. Returns `None` for a frame without a stamp, or that is not timed.
    #[inline]
    fn find(&self, frame: &[u8]) -> Option<Found<'_>> {
        let at = stamp::offset(frame)?;
        let (flow, sequence) = stamp::name(frame, at)?;
        if !sequence.is_multiple_of(self.every) {
            return None;
        }
        let mixed = (sequence / self.every) ^ u64::from(flow).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_right(20);
        let name = (mixed / SLOTS as u64) & ((1 << NAME_BITS) - 1);
        Some(Found { slot: &self.left[mixed as usize % SLOTS], name, at, flow, sequence })
    }
}

/// A timed frame's slot, the bits that distinguish the frame from others there, and its stamp.
struct Found<'a> {
    slot: &'a AtomicU64,
    name: u64,
    /// The stamp's offset.
    at: usize,
    flow: u16,
    sequence: u64,
}

/// Returns the nanoseconds since the time in a slot's word; it lacks upper bits, so at most 4 hours and 53 minutes.
fn since(word: u64, now: u64) -> u64 {
    now.wrapping_sub(word >> NAME_BITS) & (u64::MAX >> NAME_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generator;

    #[test]
    fn each_frame_that_arrives_counts_once_and_no_other() {
        let latency = Latency::new(2);
        let mut generator = Generator::new(64, 3);
        let mut frames: Vec<Vec<u8>> = vec![vec![0; 60]; 60];
        frames.iter_mut().for_each(|frame| generator.fill(frame));
        frames[..30].iter().for_each(|frame| latency.record_departure(frame));
        // The second half was never sent. On the way, a forwarder and a router change the frames.
        frames.iter_mut().for_each(|frame| {
            crate::touch(frame);
            frame.splice(12..12, [0x81, 0, 0, 7]);
        });
        frames.iter().chain(&frames[..30]).for_each(|frame| latency.record_arrival(frame));
        latency.record_arrival(&[0; 60]);
        latency.record_arrival(&[]);
        let times = latency.take();
        let found: Vec<_> = times.iter().map(|time| (time.sequence, time.flow)).collect();
        let expected: Vec<_> =
            (0..10).step_by(2).flat_map(|sequence| (0..3).map(move |flow| (sequence, flow))).collect();
        assert_eq!(found, expected);
        assert!(latency.take().is_empty());
    }

    #[test]
    fn times_are_right_when_their_upper_bits_change() {
        for left in [1, (1 << 44) - 1, 1 << 44, u64::MAX >> 1] {
            assert_eq!(since(left << NAME_BITS | 7, left + 1_000_000), 1_000_000, "{left}");
        }
    }

    #[test]
    fn a_frame_at_a_lost_frame_s_place_is_not_counted() {
        let latency = Latency::new(1);
        let mut generator = Generator::new(64, 1);
        let mut frame = vec![0; 60];
        generator.fill(&mut frame);
        let lost = frame.clone();
        latency.record_departure(&lost);
        (0..SLOTS - 1).for_each(|_| generator.fill(&mut frame));
        generator.fill(&mut frame);
        latency.record_arrival(&frame);
        assert!(latency.take().is_empty(), "a frame that was not sent, in the slot of one that was");
    }
}
