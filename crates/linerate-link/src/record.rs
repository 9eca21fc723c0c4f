//! Recordings of what a link does: one line of comma-separated values for each packet.
//!
//! A thread writes the file. The threads that move packets hand rows to it without waiting; a row that finds no room is
//! counted instead of written.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::error::Error;
use rustix::fs::{FlockOperation, flock};

use crate::counts::Event;
use crate::decision::{COLUMNS, Damage, Decision, Row, WAYS};
use crate::parameters::Parameters;

/// The most rows that wait for the thread, some 6 MiB.
const WAITING: usize = 1 << 16;

/// How long the thread sleeps when no row waits. It polls, so that no sender ever wakes it with a system call.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How many bytes a write to the file has, about.
const BUFFER: usize = 8192;

/// Writes a recording. Dropping it completes the file.
pub struct Recorder {
    way: usize,
    shared: Arc<Shared>,
    sender: SyncSender<Message>,
    thread: Arc<Thread>,
}

/// Records one direction, from another thread.
impl Clone for Recorder {
    fn clone(&self) -> Recorder {
        let Recorder { way, shared, sender, thread } = self;
        Recorder { way: *way, shared: shared.clone(), sender: sender.clone(), thread: thread.clone() }
    }
}

/// The thread that writes the file, until it is awaited.
struct Thread {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Thread {
    /// Ends the thread, which completes the file.
    fn finish(&self) -> std::thread::Result<()> {
        self.shared.is_over.store(true, Ordering::Release);
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        handle.map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

struct Shared {
    path: String,
    start: Instant,
    is_over: AtomicBool,
    /// Written and missing rows, by direction.
    written: [AtomicU64; 2],
    missing: [AtomicU64; 2],
    failure: Mutex<Option<String>>,
}

impl Shared {
    /// Returns why the file could not be written.
    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

enum Message {
    Row(usize, Row),
    Change { way: usize, packet: u64, time: u64, text: Box<str> },
}

impl Recorder {
    /// Creates the file, and the thread that writes it. `on_failure` is called once, by the thread, if the file cannot
    /// be written any more; all later rows are missing.
    ///
    /// # Errors
    /// The file cannot be created, another recording is being written to it, or the thread cannot start.
    pub fn create(path: &Path, on_failure: impl FnOnce(&str) + Send + 'static) -> std::io::Result<Recorder> {
        // Not truncated yet: another recording may be written to it, also by another process.
        let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.is_file() {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(std::io::Error::other("another recording is being written to it"));
            }
            file.set_len(0)?;
        }
        writeln!(file, "{COLUMNS}")?; // so that a full disk is an error now
        let shared = Arc::new(Shared {
            path: path.display().to_string(),
            start: Instant::now(),
            is_over: AtomicBool::new(false),
            written: Default::default(),
            missing: Default::default(),
            failure: Mutex::default(),
        });
        let (sender, messages) = sync_channel(WAITING);
        let writer = Writer { file, buffer: Vec::new(), messages, shared: shared.clone(), rows: [0, 0] };
        let handle = std::thread::Builder::new().name("recorder".to_string()).spawn(|| writer.run(on_failure))?;
        let thread = Arc::new(Thread { shared: shared.clone(), handle: Mutex::new(Some(handle)) });
        Ok(Recorder { way: 0, shared, sender, thread })
    }

    /// Returns a recorder of the same file for direction 0 or 1 of [`WAYS`].
    pub fn of_way(&self, way: usize) -> Recorder {
        Recorder { way: way.min(1), ..self.clone() }
    }

    /// Returns the nanoseconds from the start of the recording to `time`.
    pub(crate) fn offset(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.shared.start).as_nanos() as u64
    }

    /// Completes the file. Rows that are recorded later are missing.
    ///
    /// # Errors
    /// Why the file is not complete.
    pub fn finish(&self) -> Result<(), String> {
        if self.thread.finish().is_err() {
            return Err("its thread has panicked".to_string());
        }
        self.shared.failure().map_or(Ok(()), Err)
    }

    /// Fails if the file could not be written any more.
    pub(crate) fn check(&self) -> linerate_core::error::Result<()> {
        let Some(why) = self.shared.failure() else { return Ok(()) };
        Err(Error::file(self.shared.path.clone(), format!("the recording ends here: {why}")))
    }

    /// Returns the counts of rows of a direction that were written, and that are missing.
    pub fn rows(&self, way: usize) -> [u64; 2] {
        [&self.shared.written, &self.shared.missing].map(|counts| counts[way.min(1)].load(Ordering::Relaxed))
    }

    fn send(&self, message: Message) {
        if self.sender.try_send(message).is_err() {
            self.shared.missing[self.way].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that writes the file.
struct Writer {
    file: File,
    /// Lines that are not in the file yet.
    buffer: Vec<u8>,
    messages: Receiver<Message>,
    shared: Arc<Shared>,
    /// The lines of the buffer, by direction.
    rows: [u64; 2],
}

impl Writer {
    fn run(mut self, on_failure: impl FnOnce(&str)) {
        let mut on_failure = Some(on_failure);
        loop {
            let is_over = self.shared.is_over.load(Ordering::Acquire);
            let result = match self.messages.try_recv() {
                Ok(message) => self.write(&message),
                Err(TryRecvError::Empty) if !is_over => {
                    let result = self.flush();
                    std::thread::sleep(POLL_INTERVAL);
                    result
                }
                Err(_) => break,
            };
            if let Err(error) = result {
                self.fail(&error, &mut on_failure);
            }
        }
        if let Err(error) = self.flush() {
            self.fail(&error, &mut on_failure);
        }
    }

    fn write(&mut self, message: &Message) -> std::io::Result<()> {
        let way = match message {
            Message::Row(way, _) | Message::Change { way, .. } => *way,
        };
        if self.has_failed() {
            self.shared.missing[way].fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.rows[way] += 1;
        match message {
            Message::Row(_, row) => writeln!(self.buffer, "{},{row}", WAYS[way])?,
            Message::Change { packet, time, text, .. } => {
                writeln!(self.buffer, "{},{packet},{time},0,change,0,0,{text}", WAYS[way])?;
            }
        }
        if self.buffer.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    /// Writes the lines of the buffer to the file.
    fn flush(&mut self) -> std::io::Result<()> {
        if self.has_failed() {
            return Ok(());
        }
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        for (count, written) in self.rows.iter_mut().zip(&self.shared.written) {
            written.fetch_add(std::mem::take(count), Ordering::Relaxed);
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.shared.failure().is_some()
    }

    /// Records the failure. The lines of the buffer count as missing, though some of them may be in the file.
    fn fail(&mut self, error: &dyn Display, on_failure: &mut Option<impl FnOnce(&str)>) {
        for (count, missing) in self.rows.iter_mut().zip(&self.shared.missing) {
            missing.fetch_add(std::mem::take(count), Ordering::Relaxed);
        }
        let why = error.to_string();
        if let Some(on_failure) = on_failure.take() {
            on_failure(&why);
        }
        *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// The rows of a line, until what happens to their packets is known.
pub(crate) struct Log {
    recorder: Recorder,
    /// The start of the line, in nanoseconds since the start of the recording.
    start: u64,
    packets: u64,
    /// The packet that enters.
    entering: Row,
    /// The packets in the queue of the line.
    queue: VecDeque<Row>,
}

impl Log {
    /// Starts the rows of a line that was started at `start`, and has these parameters.
    pub fn new(recorder: Recorder, start: Instant, parameters: &Parameters) -> Log {
        let (start, entering) = (recorder.offset(start), Row::default());
        let queue = VecDeque::with_capacity(if parameters.pace.is_some() { parameters.capacity() } else { 0 });
        let log = Log { recorder, start, packets: 0, entering, queue };
        log.changed(0, parameters);
        log
    }

    /// A packet of `len` bytes is about to enter.
    pub fn begin(&mut self, now: u64, len: usize) {
        let (packet, time) = (self.packets + 1, self.start.saturating_add(now));
        self.entering = Row { packet, time, bytes: len as u32, ..Row::default() };
    }

    /// The packet has entered the line, or is dropped: it will not begin again.
    pub fn accept(&mut self) {
        self.packets += 1;
    }

    /// The packet gets this damage.
    pub fn damage(&mut self, damage: Damage) {
        self.entering.decision.damage = damage;
    }

    /// The packet that enters is dropped.
    pub fn drop_entering(&mut self, cause: Event, queued: u64) {
        (self.entering.decision.dropped, self.entering.decision.queued) = (Some(cause), queued);
        self.write(self.entering);
        self.begin_copy();
    }

    /// The packet enters the queue with this decision, of which the time in the queue is missing.
    pub fn enter_queue(&mut self, decision: Decision) {
        let row = self.decided(decision);
        self.queue.push_back(row);
        self.begin_copy();
    }

    /// The packet does not need a queue.
    pub fn pass(&mut self, decision: Decision) {
        let row = self.decided(decision);
        self.write(row);
        self.begin_copy();
    }

    /// The first packet leaves the queue after `queued`.
    pub fn leave_queue(&mut self, queued: u64, dropped: Option<Event>) {
        if let Some(mut row) = self.queue.pop_front() {
            if dropped.is_some() {
                // It does not travel.
                row.decision = Decision { dropped, damage: row.decision.damage, ..Decision::default() };
            }
            row.decision.queued = queued;
            self.write(row);
        }
    }

    /// The first packet of the queue is marked.
    pub fn mark_first(&mut self) {
        self.queue.iter_mut().take(1).for_each(|row| row.decision.is_marked = true);
    }

    /// The parameters have changed.
    pub fn changed(&self, now: u64, parameters: &Parameters) {
        let time = self.start.saturating_add(now);
        let mut text = format!("delay={}ns", parameters.delay.mean);
        if let Some(pace) = &parameters.pace {
            text += &format!(" rate={}bit", pace.mean_rate());
        }
        if let crate::loss::Loss::Independent(loss) = parameters.loss {
            text += &format!(" loss={loss}");
        }
        self.recorder.send(Message::Change { way: self.recorder.way, packet: self.packets, time, text: text.into() });
    }

    /// Returns the row of the entering packet with its decision. The damage is known already.
    fn decided(&self, decision: Decision) -> Row {
        Row { decision: Decision { damage: self.entering.decision.damage, ..decision }, ..self.entering }
    }

    /// The next packet that enters without [`begin`](Log::begin) is a duplicate.
    fn begin_copy(&mut self) {
        self.entering.is_copy = true;
        self.entering.decision = Decision { damage: self.entering.decision.damage, ..Decision::default() };
    }

    fn write(&self, row: Row) {
        self.recorder.send(Message::Row(self.recorder.way, row));
    }
}
