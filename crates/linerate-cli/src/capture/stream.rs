//! The records of one queue, collected in chunks for the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

use linerate::capture::Format;
use linerate::packet::Origin;

use super::interfaces::Numbers;
use crate::terminal::note;

/// The bytes of a chunk, unless one frame is longer: the caches can hold it until it is written.
pub const CHUNK: usize = 256 << 10;
/// The longest time for which records are kept while packets arrive. In a pause they are handed over once the writer is
/// idle.
const HAND_OVER_AFTER: Duration = Duration::from_millis(100);
/// The most bytes around a frame in a record, with padding.
const AROUND: usize = 36;

/// Records of one queue, in the order of their times.
pub struct Chunk {
    /// The queue's number among the streams.
    pub stream: usize,
    pub bytes: Vec<u8>,
}

/// The counters of a stream, and its empty chunks, shared with the writer.
pub struct Shared {
    /// Packets that were received.
    pub received: AtomicU64,
    /// Packets that the filters accepted.
    pub accepted: AtomicU64,
    /// Packets without a field that decides the rules.
    pub undecided: AtomicU64,
    /// Packets that were dropped because no chunk was empty, or because the writer had ended.
    pub dropped: AtomicU64,
    /// Packets that follow a later one.
    pub unsorted: AtomicU64,
    /// The queue holds no records: its next ones will have later times than now.
    pub is_idle: AtomicBool,
    /// Empty chunks. The last emptied is used first, as it is still in the caches.
    empties: Mutex<Vec<Vec<u8>>>,
    /// The number of chunks that may still be allocated.
    unmade: AtomicU64,
    /// The number of chunks that the writer has or will receive.
    pub handed_over: AtomicU64,
}

impl Shared {
    /// Gives a written chunk back.
    pub fn give_back(&self, mut chunk: Vec<u8>) {
        chunk.clear();
        self.handed_over.fetch_sub(1, Ordering::Relaxed);
        self.empties.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }

    /// Returns an empty chunk, if there is one.
    fn empty(&self) -> Option<Vec<u8>> {
        if let Some(chunk) = self.empties.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Some(chunk);
        }
        let left = self.unmade.load(Ordering::Relaxed).checked_sub(1)?;
        self.unmade.store(left, Ordering::Relaxed);
        Some(Vec::with_capacity(CHUNK))
    }
}

/// One queue's side of a stream.
pub struct Stream {
    number: usize,
    format: Format,
    interfaces: Numbers,
    snaplen: usize,
    chunk: Option<Vec<u8>>,
    frames: u64,
    /// When the chunk's first batch arrived.
    begun: u64,
    /// The last time that was assigned to a packet without its own time.
    last: u64,
    /// The latest time of a packet.
    latest: u64,
    full: Sender<Chunk>,
    pub shared: Arc<Shared>,
}

impl Stream {
    /// Creates the stream of queue `number` of a port with these interfaces, with at most `chunks` chunks.
    pub fn new(
        number: usize,
        interfaces: Numbers,
        format: Format,
        snaplen: usize,
        chunks: u64,
        full: Sender<Chunk>,
    ) -> Stream {
        let shared = Arc::new(Shared {
            received: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            undecided: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unsorted: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
            empties: Mutex::default(),
            unmade: AtomicU64::new(chunks),
            handed_over: AtomicU64::new(0),
        });
        Stream {
            number,
            format,
            interfaces,
            snaplen,
            chunk: None,
            frames: 0,
            begun: 0,
            last: 0,
            latest: 0,
            full,
            shared,
        }
    }

    /// Begins a batch of packets, and returns the time for the first packet if it has none of its own, in nanoseconds
    /// since 1970. The others follow at intervals of one nanosecond, so that programs can tell them apart.
    pub fn begin(&mut self, packets: usize) -> u64 {
        // Before the clock is read, so that the writer no longer assumes that the next record has a later time.
        self.shared.is_idle.store(false, Ordering::SeqCst);
        let first = now().max(self.last + 1);
        self.last = first + packets as u64;
        if self.frames > 0 && first - self.begun > HAND_OVER_AFTER.as_nanos() as u64 {
            self.hand_over();
        }
        if self.frames == 0 {
            self.begun = first;
        }
        first
    }

    /// Appends a frame that arrived at `time`. Without room it is dropped and counted.
    pub fn push(&mut self, time: u64, frame: &[u8], origin: Origin) {
        let (frame, len) = origin.captured(frame);
        let interface = match origin {
            Origin::Interface(index) => self.interfaces.of(index),
            _ => self.interfaces.port,
        };
        let needed = AROUND + frame.len().min(self.snaplen);
        if self.chunk.as_ref().is_some_and(|chunk| !chunk.is_empty() && chunk.len() + needed > CHUNK) {
            self.hand_over();
        }
        if self.chunk.is_none() {
            self.chunk = self.shared.empty();
        }
        let Some(chunk) = &mut self.chunk else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if time > self.format.latest() {
            static NOTED: Once = Once::new();
            NOTED.call_once(|| {
                note("note: a pcap file has no times after the year 2106 and stores the latest instead; write pcapng")
            });
        }
        self.format.append_cut(chunk, interface, time, &frame[..frame.len().min(self.snaplen)], len);
        self.frames += 1;
        if time < self.latest {
            self.shared.unsorted.fetch_add(1, Ordering::Relaxed);
        }
        self.latest = self.latest.max(time);
    }

    /// Hands everything over, as no packets arrive at present; returns whether that is done. While the writer still has
    /// other chunks it waits, as a chunk with a few packets uses as much memory as a full one.
    pub fn rest(&mut self) -> bool {
        if self.frames > 0 {
            if self.shared.handed_over.load(Ordering::Relaxed) > 0 {
                return false;
            }
            self.hand_over();
        }
        if !self.shared.is_idle.load(Ordering::Relaxed) {
            self.shared.is_idle.store(true, Ordering::SeqCst);
        }
        true
    }

    /// Hands the chunk to the writer.
    pub fn hand_over(&mut self) {
        let Some(bytes) = self.chunk.take() else { return };
        let frames = std::mem::take(&mut self.frames);
        self.shared.handed_over.fetch_add(1, Ordering::Relaxed);
        if self.full.send(Chunk { stream: self.number, bytes }).is_err() {
            // The writer has failed.
            self.shared.dropped.fetch_add(frames, Ordering::Relaxed);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.hand_over();
        self.shared.is_idle.store(true, Ordering::SeqCst);
    }
}

/// Returns the time in nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64
}
