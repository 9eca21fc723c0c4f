//! Frames that are in memory before they are due: all of them, or those that a thread reads ahead.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate::Error;
use linerate::capture::Frames;
use linerate::traffic::EditCounts;

use super::merge::{Chunk, Found, Merge, Preparation, Step};
use super::schedule::Position;
use crate::notes::unread;
use crate::signals::interrupts;

/// Bytes of a chunk, and the number of chunks that are read ahead: 16 MiB.
const CHUNK: usize = 256 << 10;
const AHEAD: usize = 64;
/// How long the end of a run waits for the thread that reads ahead to find the captures' end.
const END_WAIT: Duration = Duration::from_millis(100);
/// How long the reader sleeps when a pipe has no data.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The files read so far: their counts, and the errors that ended them.
#[derive(Default)]
pub struct Reading {
    /// The time of the first frame of all captures.
    pub begin: Option<u64>,
    pub files: Vec<Found>,
    pub failures: Vec<Error>,
    /// The counts of edited frames of the last pass, and of its shortened gaps.
    pub edited: Option<EditCounts>,
    pub shortened: u64,
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
    /// The frames of all ports before this pass, and in a pass.
    pass_position: Position,
    frames_of_pass: Position,
    /// Passes left after this one; `None`: endless.
    passes: Option<u64>,
    /// The passes have no end.
    is_endless: bool,
    ahead: Option<Ahead>,
    /// The files, kept open so that nothing can record into them.
    _open: Arc<Mutex<Merge>>,
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
    /// Its position among the frames of all ports, if there are several.
    pub position: Option<Position>,
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

/// Opens the files for a number of ports, whose sources it returns. They are read into memory now if they have at most
/// `memory` bytes, otherwise a thread reads them ahead.
pub fn open(
    paths: &[PathBuf],
    preparation: &Preparation,
    ports: usize,
    passes: u64,
    memory: u64,
) -> Result<Vec<Source>, Error> {
    let has_pipe = paths.iter().any(|path| Frames::may_wait(path));
    let len = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    let bytes: u64 = paths.iter().map(len).sum();
    // Passes with other addresses are read again.
    let is_same = passes == 1 || !preparation.rules.unique_addresses;
    let passes = passes.checked_sub(1);
    if !has_pipe && bytes <= memory && is_same {
        let merge = Merge::open(paths, preparation, 0)?;
        if let Some(sources) = read_all(merge, ports, passes, memory)? {
            return Ok(sources);
        }
    }
    read_ahead(paths, preparation, ports, passes)
}

/// Reads all frames. Returns `None` if they have more than `memory` bytes, which a compressed file does not show.
fn read_all(
    mut merge: Merge,
    ports: usize,
    mut passes: Option<u64>,
    memory: u64,
) -> Result<Option<Vec<Source>>, Error> {
    let (mut of_ports, mut total) = (vec![Vec::new(); ports], 0);
    let mut step = Step::Frame;
    while step == Step::Frame && !interrupts().should_end() {
        let mut chunks = vec![Chunk::default(); ports];
        while len_of(&chunks) < CHUNK && step == Step::Frame {
            step = merge.read(&mut chunks);
        }
        total += len_of(&chunks);
        if total as u64 > memory {
            return Ok(None);
        }
        of_ports.iter_mut().zip(chunks).for_each(|(all, chunk)| all.push(chunk));
    }
    let reading = Arc::<Mutex<Reading>>::default();
    record_pass(&reading, &mut merge);
    let (period, frames_of_pass) = (merge.period(), merge.position());
    let has_failed = {
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        if merge.count() == 0 {
            return Err(reading.failures.pop().unwrap_or_else(|| without_frames(&reading)));
        }
        !reading.failures.is_empty()
    };
    // A damaged file is not repeated: the rest of it is unknown.
    if has_failed {
        passes = Some(0);
    }
    let open = Arc::new(Mutex::new(merge));
    let source = |chunks: Vec<Chunk>| {
        let lens = || chunks.iter().flat_map(Chunk::lens);
        let (longest, count) = (lens().max().unwrap_or(0), lens().count());
        Source {
            lens: Some((longest, lens().sum::<usize>() / count.max(1))),
            // Without frames, further passes have none either.
            passes: if count == 0 { Some(0) } else { passes },
            chunks,
            at: (0, 0, 0),
            pass_start: 0,
            period,
            pass_position: Position::default(),
            frames_of_pass,
            is_endless: passes.is_none(),
            ahead: None,
            _open: open.clone(),
            reading: reading.clone(),
        }
    };
    Ok(Some(of_ports.into_iter().map(source).collect()))
}

/// Returns the number of bytes of all chunks.
fn len_of(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.bytes.len()).sum()
}

/// Starts a thread that reads the frames ahead.
fn read_ahead(
    paths: &[PathBuf],
    preparation: &Preparation,
    ports: usize,
    passes: Option<u64>,
) -> Result<Vec<Source>, Error> {
    let merge = Merge::open(paths, preparation, 0)?;
    let files: Vec<PathBuf> = paths.iter().filter(|path| !Frames::may_wait(path)).cloned().collect();
    let open = Arc::new(Mutex::new(Merge::open(&files, preparation, 0)?));
    let (is_ready, stop) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let reading = Arc::<Mutex<Reading>>::default();
    let (mut outputs, mut sources) = (Vec::new(), Vec::new());
    for _ in 0..ports {
        let (sender, chunks) = sync_channel(AHEAD);
        let (back, used) = channel();
        outputs.push(Output { chunks: sender, used });
        sources.push(Source {
            chunks: Vec::new(),
            at: (0, 0, 0),
            pass_start: 0,
            period: 0,
            pass_position: Position::default(),
            frames_of_pass: Position::default(),
            passes: Some(0),
            is_endless: passes.is_none(),
            ahead: Some(Ahead { chunks, back, is_ready: is_ready.clone(), stop: stop.clone() }),
            _open: open.clone(),
            reading: reading.clone(),
            lens: None,
        });
    }
    let (paths, preparation) = (paths.to_vec(), preparation.clone());
    let reader = Reader { paths, preparation, passes, outputs, is_ready, stop, reading };
    let thread = std::thread::Builder::new().name("reader".to_string()).spawn(move || reader.run(merge));
    thread.map_err(Error::thread)?;
    Ok(sources)
}

impl Source {
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

    /// Returns whether the passes have no end.
    pub fn is_endless(&self) -> bool {
        self.is_endless
    }

    /// Returns the number of frames that were not consumed; `None` if there are some, but their number is unknown.
    /// A thread that reads ahead may need a moment to find the end.
    pub fn left(&mut self) -> Option<u64> {
        let Some(ahead) = &self.ahead else {
            let of = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.frames.len() as u64).sum::<u64>();
            let rest = of(self.chunks.get(self.at.0..).unwrap_or_default()).saturating_sub(self.at.1 as u64);
            return Some(rest.saturating_add(self.passes?.saturating_mul(of(&self.chunks))));
        };
        let has_next = self.chunks.get(self.at.0).is_some_and(|chunk| self.at.1 < chunk.frames.len());
        let is_over = || matches!(ahead.chunks.recv_timeout(END_WAIT), Err(RecvTimeoutError::Disconnected));
        (!has_next && is_over()).then_some(0)
    }

    /// Returns the next frame without consuming it.
    pub fn peek(&mut self) -> Peek {
        loop {
            let (chunk, frame, begin) = self.at;
            match self.chunks.get(chunk) {
                Some(of) => {
                    if let Some(entry) = of.frames.get(frame) {
                        let (time, len) = (self.pass_start.saturating_add(entry.time), entry.end - begin);
                        let position = of.positions.get(frame).map(|position| self.pass_position.after(*position));
                        return Peek::Frame(NextFrame { time, len, is_snapped: entry.is_snapped, position });
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
        const MORE: Peek = Peek::Frame(NextFrame { time: 0, len: 0, is_snapped: false, position: None });
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
            self.pass_position = self.pass_position.after(self.frames_of_pass);
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
    (reading.edited, reading.shortened) = merge.changed();
    reading.failures.extend(merge.take_failures());
}

/// Where a port's chunks go, with the start of their pass, and where used chunks return.
struct Output {
    chunks: SyncSender<(u64, Chunk)>,
    used: Receiver<Chunk>,
}

/// Reads ahead, in its own thread.
struct Reader {
    paths: Vec<PathBuf>,
    preparation: Preparation,
    passes: Option<u64>,
    /// One for each port.
    outputs: Vec<Output>,
    is_ready: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    reading: Arc<Mutex<Reading>>,
}

impl Reader {
    fn run(mut self, mut merge: Merge) {
        let mut pass_start = 0u64;
        for pass in 1u32.. {
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
            match Merge::open(&self.paths, &self.preparation, pass) {
                Ok(mut again) => {
                    again.continue_at(merge.position());
                    merge = again;
                }
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
            let used = |output: &Output| output.used.try_recv().unwrap_or_default();
            let mut chunks: Vec<Chunk> = self.outputs.iter().map(used).collect();
            chunks.iter_mut().for_each(Chunk::clear);
            let mut step = Step::Frame;
            while len_of(&chunks) < CHUNK && step == Step::Frame {
                step = merge.read(&mut chunks);
            }
            record_pass(&self.reading, merge);
            // Each port gets all frames up to here before one of them blocks, so that no port waits for another's.
            for (output, chunk) in self.outputs.iter().zip(chunks).filter(|(_, chunk)| !chunk.frames.is_empty()) {
                self.send(output, (pass_start, chunk))?;
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

    fn send(&self, output: &Output, chunk: (u64, Chunk)) -> Option<()> {
        match output.chunks.try_send(chunk) {
            Ok(()) => Some(()),
            Err(TrySendError::Full(chunk)) => {
                self.is_ready.store(true, Ordering::Relaxed);
                output.chunks.send(chunk).ok()
            }
            Err(TrySendError::Disconnected(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use linerate::capture::Writer;
    use linerate::traffic::Rate;

    use super::super::schedule::{Pace, Schedule};
    use super::*;

    /// Returns when each frame of each port is due, and its position.
    fn due(sources: Vec<Source>, pace: Pace) -> Vec<Vec<(u64, u64)>> {
        let begin = Instant::now();
        let of = |mut source: Source| {
            let (mut schedule, mut all) = (Schedule::new(pace), Vec::new());
            loop {
                match source.peek() {
                    Peek::Frame(frame) => {
                        let position = frame.position.expect("there are two ports");
                        all.push((schedule.next(frame.time, frame.len, frame.position), position.frames));
                        source.advance();
                    }
                    Peek::NotRead => assert!(begin.elapsed() < Duration::from_secs(60), "{} frames", all.len()),
                    Peek::End => return all,
                }
            }
        };
        sources.into_iter().map(of).collect()
    }

    /// The frames of two ports have one schedule: each is due at its own time in the capture, or in turn at a rate.
    #[test]
    fn frames_of_two_ports_have_one_schedule() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.pcap");
        let mut writer = Writer::create(&path).unwrap();
        let (mut time, mut all) = (1_700_000_000_000_000_007u64, Vec::new());
        for frame in 0..100u64 {
            // The first frames of the second port are late.
            let port = usize::from(frame > 9 && frame * 7919 % 5 < 2);
            let mut bytes = vec![0; 60 + (frame * 37 % 1400) as usize];
            bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2 + port as u8]);
            writer.write(time, &bytes).unwrap();
            all.push((port, time - 1_700_000_000_000_000_007, bytes.len()));
            time += 1 + frame * 104_729 % 10_007;
        }
        drop(writer);
        let last = all[99].1;
        let period = last + last / 99;
        let preparation =
            Preparation { split: Some("mac=02:00:00:00:00:02".parse().unwrap()), ..Preparation::default() };
        let wire = |count: usize| -> u64 { (0..count).map(|frame| all[frame % 100].2 as u64 + 24).sum() };
        for memory in [u64::MAX, 0] {
            let open = || open(std::slice::from_ref(&path), &preparation, 2, 3, memory).unwrap();
            let paces: [(Pace, &dyn Fn(usize) -> u64); 3] = [
                (Pace::Times("1x".parse().unwrap()), &|n| (n / 100) as u64 * period + all[n % 100].1),
                (Pace::Rate(Rate::Packets(1e6)), &|n| n as u64 * 1000),
                (Pace::Rate(Rate::Bits(8e9)), &wire),
            ];
            for (pace, expected) in paces {
                let found = due(open(), pace);
                for (port, found) in found.iter().enumerate() {
                    let of_port = (0..300).filter(|n| all[n % 100].0 == port);
                    let right: Vec<(u64, u64)> = of_port.map(|n| (expected(n), n as u64)).collect();
                    assert_eq!(*found, right, "{pace:?}, port {port}, {memory} bytes of memory");
                }
            }
        }
    }
}
