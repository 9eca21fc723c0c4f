//! Frames that are in memory before they are due: all of them, or those that a thread reads ahead.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate::Error;
use linerate::capture::Frames;

use super::merge::{Chunk, Found, Merge, Step};
use crate::notes::unread;
use crate::signals::interrupts;

/// Bytes of a chunk, and the number of chunks that are read ahead: 16 MiB.
const CHUNK: usize = 256 << 10;
const AHEAD: usize = 64;
/// How long the reader sleeps when a pipe has no data.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The files read so far: their counts, and the errors that ended them.
#[derive(Default)]
pub struct Reading {
    /// The time of the first frame of all captures.
    pub begin: Option<u64>,
    pub files: Vec<Found>,
    pub failures: Vec<Error>,
}

/// The frames, in the order in which they are due.
pub struct Source {
    /// All chunks, or the current one of those read ahead.
    chunks: Vec<Chunk>,
    /// The next frame: its chunk, its index there, and the offset of its bytes.
    at: (usize, usize, usize),
    /// The time at which this pass begins, and how long it takes.
    pass_start: u64,
    period: u64,
    /// Passes left after this one; `None`: endless.
    passes: Option<u64>,
    ahead: Option<Ahead>,
    /// The files, kept open so that nothing can record into them.
    _open: Option<Merge>,
    reading: Arc<Mutex<Reading>>,
    /// The longest frame, and the average length, if all frames are known.
    lens: Option<(usize, usize)>,
}

/// The next frame.
#[derive(Clone, Copy)]
pub struct NextFrame {
    /// Nanoseconds since the first frame of the first pass.
    pub time: u64,
    pub len: usize,
    pub is_snapped: bool,
}

/// The result of [`Source::peek`].
pub enum Peek {
    Frame(NextFrame),
    /// The next frame is not read yet.
    NotRead,
    End,
}

/// The thread that reads ahead.
struct Ahead {
    chunks: Receiver<(u64, Chunk)>,
    /// Returns used chunks to it, so that no memory is freed between two frames.
    back: Sender<Chunk>,
    /// As much was read ahead as is possible for now.
    is_ready: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Source {
    /// Opens the files. They are read into memory now if they have at most `memory` bytes, otherwise a thread reads
    /// them ahead.
    pub fn open(paths: &[PathBuf], adds_headers: bool, passes: u64, memory: u64) -> Result<Source, Error> {
        let has_pipe = paths.iter().any(|path| Frames::may_wait(path));
        let len = |path: &PathBuf| path.metadata().map_or(u64::MAX, |file| file.len());
        let bytes = paths.iter().map(len).fold(0, u64::saturating_add);
        let mut source = Source {
            chunks: Vec::new(),
            at: (0, 0, 0),
            pass_start: 0,
            period: 0,
            passes: passes.checked_sub(1),
            ahead: None,
            _open: None,
            reading: Arc::default(),
            lens: None,
        };
        let fits = !has_pipe && bytes <= memory;
        if !fits || !source.read_all(Merge::open(paths, adds_headers)?, memory)? {
            source.read_ahead(Merge::open(paths, adds_headers)?, paths.to_vec(), adds_headers)?;
        }
        Ok(source)
    }

    /// Reads all frames. Returns false if they have more than `memory` bytes, which a compressed file does not show.
    fn read_all(&mut self, mut merge: Merge, memory: u64) -> Result<bool, Error> {
        let (mut longest, mut total) = (0, 0);
        let mut step = Step::Frame;
        while step == Step::Frame && !interrupts().should_end() {
            let mut chunk = Chunk::default();
            while chunk.bytes.len() < CHUNK && step == Step::Frame {
                let before = chunk.bytes.len();
                step = merge.read(&mut chunk);
                longest = longest.max(chunk.bytes.len() - before);
            }
            total += chunk.bytes.len();
            if total as u64 > memory {
                self.chunks.clear();
                return Ok(false);
            }
            self.chunks.push(chunk);
        }
        self.period = merge.period();
        record_pass(&self.reading, &mut merge);
        let mut reading = self.reading();
        if merge.count() == 0 {
            return Err(reading.failures.pop().unwrap_or_else(|| without_frames(&reading)));
        }
        // A damaged file is not repeated: the rest of it is unknown.
        let is_damaged = !reading.failures.is_empty();
        drop(reading);
        if is_damaged {
            self.passes = Some(0);
        }
        self.lens = Some((longest, total / merge.count() as usize));
        self._open = Some(merge);
        Ok(true)
    }

    fn read_ahead(&mut self, merge: Merge, paths: Vec<PathBuf>, adds_headers: bool) -> Result<(), Error> {
        let files: Vec<PathBuf> = paths.iter().filter(|path| !Frames::may_wait(path)).cloned().collect();
        self._open = Some(Merge::open(&files, adds_headers)?);
        let (sender, chunks) = sync_channel(AHEAD);
        let (back, used) = channel();
        let (is_ready, stop) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let reader = Reader {
            paths,
            adds_headers,
            passes: self.passes,
            chunks: sender,
            used,
            is_ready: is_ready.clone(),
            stop: stop.clone(),
            reading: self.reading.clone(),
        };
        let thread = std::thread::Builder::new().name("reader".to_string()).spawn(move || reader.run(merge));
        thread.map_err(Error::thread)?;
        (self.ahead, self.passes) = (Some(Ahead { chunks, back, is_ready, stop }), Some(0));
        Ok(())
    }

    /// Returns whether as much was read ahead as is possible before the first frame is sent.
    pub fn is_ready(&self) -> bool {
        self.ahead.as_ref().is_none_or(|ahead| ahead.is_ready.load(Ordering::Relaxed))
    }

    /// Returns whether all frames were read into memory before the start.
    pub fn is_in_memory(&self) -> bool {
        self.ahead.is_none()
    }

    /// Returns the longest frame and the average length, if all frames are known.
    pub fn lens(&self) -> Option<(usize, usize)> {
        self.lens
    }

    /// Returns the results of reading, which the reader updates.
    pub fn shared(&self) -> Arc<Mutex<Reading>> {
        self.reading.clone()
    }

    fn reading(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next frame without consuming it.
    pub fn peek(&mut self) -> Peek {
        loop {
            let (chunk, frame, begin) = self.at;
            match self.chunks.get(chunk) {
                Some(of) => {
                    if let Some(entry) = of.frames.get(frame) {
                        let (time, len) = (self.pass_start.saturating_add(entry.time), entry.end - begin);
                        return Peek::Frame(NextFrame { time, len, is_snapped: entry.is_snapped });
                    }
                    self.at = (chunk + 1, 0, 0);
                }
                None => match self.next_chunk() {
                    Peek::Frame(_) => {}
                    end => return end,
                },
            }
        }
    }

    /// Continues after the last chunk: with the next pass, or with a chunk that was read ahead.
    fn next_chunk(&mut self) -> Peek {
        const MORE: Peek = Peek::Frame(NextFrame { time: 0, len: 0, is_snapped: false });
        if let Some(ahead) = &self.ahead {
            let next = match ahead.chunks.try_recv() {
                Ok(next) => next,
                Err(TryRecvError::Empty) => return Peek::NotRead,
                Err(TryRecvError::Disconnected) => return Peek::End,
            };
            self.chunks.drain(..).for_each(|used| _ = ahead.back.send(used));
            self.pass_start = next.0;
            self.chunks.push(next.1);
        } else {
            match &mut self.passes {
                Some(0) => return Peek::End,
                Some(passes) => *passes -= 1,
                None => {}
            }
            self.pass_start = self.pass_start.saturating_add(self.period);
        }
        self.at = (0, 0, 0);
        MORE
    }

    /// Returns the bytes of the frame that [`peek`](Source::peek) returned.
    pub fn bytes(&self) -> &[u8] {
        let (chunk, frame, begin) = self.at;
        let of = &self.chunks[chunk];
        &of.bytes[begin..of.frames[frame].end]
    }

    /// Consumes the frame that [`peek`](Source::peek) returned.
    pub fn advance(&mut self) {
        let (chunk, frame, _) = self.at;
        self.at = (chunk, frame + 1, self.chunks[chunk].frames[frame].end);
    }
}

fn without_frames(reading: &Reading) -> Error {
    let others: String =
        reading.files.iter().flat_map(|file| unread(&file.defects)).map(|line| format!("; {line}")).collect();
    let names: Vec<&str> = reading.files.iter().map(|file| file.name.as_str()).collect();
    Error::file(names.join(", "), format!("no frame to send{others}"))
}

/// Records the results of one pass. Other passes read the same files.
fn record_pass(reading: &Mutex<Reading>, merge: &mut Merge) {
    let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
    (reading.begin, reading.files) = merge.found();
    reading.failures.extend(merge.take_failures());
}

/// Reads ahead, in its own thread.
struct Reader {
    paths: Vec<PathBuf>,
    adds_headers: bool,
    passes: Option<u64>,
    chunks: SyncSender<(u64, Chunk)>,
    used: Receiver<Chunk>,
    is_ready: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    reading: Arc<Mutex<Reading>>,
}

impl Reader {
    fn run(mut self, mut merge: Merge) {
        let mut pass_start = 0u64;
        loop {
            if self.pass(&mut merge, pass_start).is_none() {
                break;
            }
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if merge.count() == 0 && reading.failures.is_empty() {
                let error = without_frames(&reading);
                reading.failures.push(error);
            }
            let is_last = match &mut self.passes {
                Some(0) => true,
                Some(passes) => {
                    *passes -= 1;
                    false
                }
                None => false,
            };
            if is_last || !reading.failures.is_empty() {
                break;
            }
            pass_start = pass_start.saturating_add(merge.period());
            match Merge::open(&self.paths, self.adds_headers) {
                Ok(again) => merge = again,
                Err(error) => {
                    reading.failures.push(error);
                    break;
                }
            }
        }
        self.is_ready.store(true, Ordering::Relaxed);
    }

    /// Reads the files once; `None` if the replay has ended.
    fn pass(&self, merge: &mut Merge, pass_start: u64) -> Option<()> {
        loop {
            let mut chunk = self.used.try_recv().unwrap_or_default();
            chunk.bytes.clear();
            chunk.frames.clear();
            let mut step = Step::Frame;
            while chunk.bytes.len() < CHUNK && step == Step::Frame {
                step = merge.read(&mut chunk);
            }
            record_pass(&self.reading, merge);
            if !chunk.frames.is_empty() {
                self.send((pass_start, chunk))?;
            }
            match step {
                Step::Frame => {}
                Step::End => return Some(()),
                Step::NoData => {
                    // A pipe has no data yet: the frames read so far can be sent.
                    self.is_ready.store(merge.count() > 0, Ordering::Relaxed);
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
        }
    }

    fn send(&self, chunk: (u64, Chunk)) -> Option<()> {
        match self.chunks.try_send(chunk) {
            Ok(()) => Some(()),
            Err(TrySendError::Full(chunk)) => {
                self.is_ready.store(true, Ordering::Relaxed);
                self.chunks.send(chunk).ok()
            }
            Err(TrySendError::Disconnected(_)) => None,
        }
    }
}
