//! The records of one queue, in chunks, which are handed to the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

use linerate::capture::Format;

use crate::terminal::note;

/// The bytes of a chunk, which the caches hold until it is written, unless one frame is longer.
pub const CHUNK: usize = 256 << 10;
/// The longest time for which records are kept while packets come. In a pause they are handed over once the writer has nothing else.
const KEPT: Duration = Duration::from_millis(100);
/// The bytes around a frame in a record, at most, with the padding.
const AROUND: usize = 36;

/// Records of one queue, in the order of their times.
pub struct Chunk {
    /// The queue's number among the streams.
    pub stream: usize,
    pub bytes: Vec<u8>,
}

/// The counters of a stream, and its empty chunks.
pub struct Shared {
    /// Packets that were received.
    pub received: AtomicU64,
    /// Packets that the filters accepted.
    pub accepted: AtomicU64,
    /// Packets that were dropped because no chunk was empty, or the writer had ended.
    pub dropped: AtomicU64,
    /// Packets behind a later one.
    pub unsorted: AtomicU64,
    /// The queue has nothing at present: what comes next is from now on.
    pub is_idle: AtomicBool,
    /// The one that was emptied last is the next: the caches still have it.
    empties: Mutex<Vec<Vec<u8>>>,
    /// Chunks that may still be made.
    unmade: AtomicU64,
    /// Chunks that the writer has, or will take.
    pub handed_over: AtomicU64,
}

impl Shared {
    /// Gives a chunk back that is written.
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

/// One queue's side.
pub struct Stream {
    number: usize,
    format: Format,
    interface: u32,
    snaplen: usize,
    chunk: Option<Vec<u8>>,
    frames: u64,
    /// When the chunk's first batch came.
    begun: u64,
    /// The last time that was given to a packet without one of its own.
    last: u64,
    /// The latest time of a packet.
    latest: u64,
    full: Sender<Chunk>,
    pub shared: Arc<Shared>,
}

impl Stream {
    /// Makes the stream of queue `number` at an interface, which has at most this number of chunks.
    pub fn new(
        number: usize,
        interface: u32,
        format: Format,
        snaplen: usize,
        chunks: u64,
        full: Sender<Chunk>,
    ) -> Stream {
        let shared = Arc::new(Shared {
            received: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
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
            interface,
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

    /// Begins a batch of packets, and returns the time of the first that has none of its own, in nanoseconds since 1970. The
    /// others follow, one nanosecond apart, so that programs can tell them apart.
    pub fn begin(&mut self, packets: usize) -> u64 {
        // Before the time is taken: the writer may not assume a later one any more.
        self.shared.is_idle.store(false, Ordering::SeqCst);
        let first = now().max(self.last + 1);
        self.last = first + packets as u64;
        if self.frames > 0 && first - self.begun > KEPT.as_nanos() as u64 {
            self.hand_over();
        }
        if self.frames == 0 {
            self.begun = first;
        }
        first
    }

    /// Appends a frame that came at `time`; without room it is dropped, and counted.
    pub fn push(&mut self, time: u64, frame: &[u8]) {
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
                note("note: a pcap file has no times behind the year 2106: later ones are that; write pcapng")
            });
        }
        self.format.append(chunk, self.interface, time, frame, self.snaplen);
        self.frames += 1;
        if time < self.latest {
            self.shared.unsorted.fetch_add(1, Ordering::Relaxed);
        }
        self.latest = self.latest.max(time);
    }

    /// Hands everything over, as nothing comes at present; true if that is done. While the writer still has chunks, this one is
    /// not urgent, and a chunk with a few packets takes as much of the memory as a full one.
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
