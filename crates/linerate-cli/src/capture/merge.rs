//! Merges the records of several queues in the order of their times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate::capture::Format;

use super::stream::{CHUNK, Chunk, Shared};

/// How long, in nanoseconds, a record waits for an earlier one from a queue that has none: a port may stamp packets on
/// arrival, before they are received.
const SLACK: u64 = 20_000_000;

/// Chunks whose records are not merged yet.
pub struct Merge {
    format: Format,
    streams: Vec<Pending>,
    /// Merged records.
    merged: Vec<u8>,
    /// The latest merged time, and the number of records that came too late to be in order.
    last: u64,
    pub late: u64,
}

struct Pending {
    shared: Arc<Shared>,
    chunks: VecDeque<Vec<u8>>,
    /// The offset of the next record in the first chunk.
    at: usize,
    /// The time and length of the next record.
    next: Option<(u64, usize)>,
}

impl Pending {
    /// Finds the next record, and gives merged chunks back.
    fn find(&mut self, format: Format) {
        loop {
            let Some(chunk) = self.chunks.front() else {
                self.next = None;
                return;
            };
            if let Some(found) = format.first(&chunk[self.at..]) {
                self.next = Some((found.nanoseconds, found.len));
                return;
            }
            self.at = 0;
            if let Some(chunk) = self.chunks.pop_front() {
                self.shared.give_back(chunk);
            }
        }
    }
}

impl Merge {
    pub fn new(format: Format, streams: Vec<Arc<Shared>>) -> Merge {
        let pending = |shared| Pending { shared, chunks: VecDeque::new(), at: 0, next: None };
        let streams = streams.into_iter().map(pending).collect();
        Merge { format, streams, merged: Vec::with_capacity(CHUNK), last: 0, late: 0 }
    }

    /// Adds a chunk, and writes the records that are due by `now`, in nanoseconds since 1970; `u64::MAX`: all records.
    /// A single queue's chunks are written immediately.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn push<E>(
        &mut self,
        chunk: Option<Chunk>,
        now: u64,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if let [only] = &self.streams[..] {
            // The records of one queue are in order.
            let Some(chunk) = chunk else { return Ok(()) };
            let written = write(&chunk.bytes);
            only.shared.give_back(chunk.bytes);
            return written;
        }
        if let Some(chunk) = chunk {
            let pending = &mut self.streams[chunk.stream];
            pending.chunks.push_back(chunk.bytes);
            if pending.next.is_none() {
                pending.find(self.format);
            }
        }
        loop {
            let due = self.streams.iter().enumerate().filter_map(|(n, pending)| Some((pending.next?, n))).min();
            let Some(((time, len), n)) = due else { break };
            if time > self.earliest(now) {
                break;
            }
            let pending = &mut self.streams[n];
            let record = &pending.chunks[0][pending.at..pending.at + len];
            if self.merged.len() + len > CHUNK && !self.merged.is_empty() {
                write(&self.merged)?;
                self.merged.clear();
            }
            self.merged.extend_from_slice(record);
            self.late += u64::from(time < self.last);
            self.last = self.last.max(time);
            pending.at += len;
            pending.find(self.format);
        }
        if !self.merged.is_empty() {
            write(&self.merged)?;
            self.merged.clear();
        }
        Ok(())
    }

    /// Returns the time before which no queue that is empty now will have a record.
    fn earliest(&self, now: u64) -> u64 {
        if now == u64::MAX {
            return now;
        }
        let empty = |pending: &&Pending| pending.next.is_none();
        // In this order: chunks that a queue handed over before it became idle are in flight, and counted.
        let is_idle = |pending: &Pending| {
            pending.shared.is_idle.load(Ordering::SeqCst) && pending.shared.handed_over.load(Ordering::Relaxed) == 0
        };
        let without =
            self.streams.iter().filter(empty).map(|pending| if is_idle(pending) { now - SLACK.min(now) } else { 0 });
        without.min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use linerate::packet::Origin;

    use super::super::interfaces::{Interfaces, Numbers};
    use super::super::stream::Stream;
    use super::*;

    fn numbers(port: usize) -> Numbers {
        Numbers::new(port as u32, Interfaces::new(vec![String::new(); 3]))
    }

    /// Records of three queues, each in order with random times, are merged in order, each exactly once.
    #[test]
    fn records_are_merged_by_time() {
        for format in [Format::Pcap, Format::Pcapng] {
            let (full, chunks) = channel();
            let mut streams: Vec<_> =
                (0..3).map(|n| Stream::new(n, numbers(n), format, 64, 2000, full.clone())).collect();
            drop(full);
            let shared: Vec<_> = streams.iter().map(|stream| stream.shared.clone()).collect();
            let mut merge = Merge::new(format, shared.clone());
            let mut times: Vec<u64> = Vec::new();
            let (mut state, mut clock) = (7u64, [0u64; 3]);
            for _ in 0..5000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let n = (state >> 33) as usize % 3;
                clock[n] += 1 + (state >> 40) % 1000;
                streams[n].push(clock[n] * 8 + n as u64, &[n as u8; 60], Origin::Port);
                times.push(clock[n] * 8 + n as u64);
                if state >> 62 == 0 {
                    streams[n].hand_over();
                }
            }
            drop(streams);
            let mut merged = Vec::new();
            let mut write = |bytes: &[u8]| {
                merged.extend_from_slice(bytes);
                Ok::<(), ()>(())
            };
            // No queue is idle: only records that precede all outstanding ones may be written.
            for chunk in chunks.iter() {
                shared.iter().for_each(|shared| shared.is_idle.store(false, Ordering::SeqCst));
                merge.push(Some(chunk), 1, &mut write).unwrap();
            }
            merge.push(None, u64::MAX, &mut write).unwrap();
            assert_eq!(merge.late, 0);
            times.sort_unstable();
            let found: Vec<u64> = format.records(&merged).map(|record| record.nanoseconds).collect();
            assert_eq!(found, times, "{format:?}");
        }
    }

    /// A queue that is idle now may have handed over an earlier record that the writer has not received yet.
    #[test]
    fn records_wait_for_those_on_their_way() {
        let (full, chunks) = channel();
        let mut streams: Vec<_> =
            (0..2).map(|n| Stream::new(n, numbers(n), Format::Pcapng, 64, 10, full.clone())).collect();
        let mut merge = Merge::new(Format::Pcapng, streams.iter().map(|stream| stream.shared.clone()).collect());
        // The earlier record is handed over second: the writer receives the later one first.
        for (stream, time) in [(1, 2000), (0, 1000)] {
            streams[stream].push(time, &[0; 60], Origin::Port);
            streams[stream].hand_over();
            assert!(streams[stream].rest());
        }
        let mut merged = Vec::new();
        for chunk in chunks.try_iter() {
            let write = |bytes: &[u8]| {
                merged.extend_from_slice(bytes);
                Ok::<(), ()>(())
            };
            merge.push(Some(chunk), 10 * SLACK, write).unwrap();
        }
        let times: Vec<u64> = Format::Pcapng.records(&merged).map(|record| record.nanoseconds).collect();
        assert_eq!((times, merge.late), (vec![1000, 2000], 0));
    }
}
