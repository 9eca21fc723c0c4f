//! A capture that arrives through a pipe. A thread reads it, since its writer may pause within a record, and receiving
//! must not block.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use linerate_core::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Reader;
use super::ethernet::{Defects, EthernetReader};

/// The number of frames read ahead.
const AHEAD: usize = 1024;
/// The interval at which a waiting thread checks whether it should end.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A frame, its time, and its captured and its original length.
type Frame = (Vec<u8>, Option<u64>, [usize; 2]);

/// The frames of a pipe, as they arrive.
pub(super) struct Stream {
    frames: Receiver<Result<Frame>>,
    stop: Arc<AtomicBool>,
}

/// The result of [`Stream::next`].
pub(super) enum StreamPoll {
    Frame(Vec<u8>, Option<u64>, [usize; 2]),
    /// The writer has paused.
    Pending,
    /// The writer has closed the pipe.
    End,
}

impl Stream {
    /// Returns whether a path is a pipe, or another file whose reader may have to wait.
    pub fn may_block(path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo() || file.file_type().is_char_device())
    }

    /// Opens a pipe, which need not have a writer yet. Skipped packets are added to `defects`.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be opened.
    pub fn open(path: &Path, adds_headers: bool, defects: Arc<Defects>) -> Result<Stream> {
        let name = path.display().to_string();
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| {
            let why = format!("cannot read it: {error}");
            Error::file(&name, why)
        })?;
        let (sender, frames) = sync_channel(AHEAD);
        let stop = Arc::<AtomicBool>::default();
        let reader = PollingReader { file, stop: stop.clone() };
        let thread = std::thread::Builder::new().name("capture".to_string());
        let open = move || {
            let reader = Reader::new(std::io::BufReader::new(reader), &name)?;
            EthernetReader::new(reader, adds_headers, defects)
        };
        thread.spawn(move || read(open, &sender)).map_err(Error::thread)?;
        Ok(Stream { frames, stop })
    }

    /// Returns the next frame, if it has arrived.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if the pipe is not a capture, or was closed within a record.
    pub fn next(&mut self) -> Result<StreamPoll> {
        match self.frames.try_recv() {
            Ok(frame) => frame.map(|(bytes, time, lens)| StreamPoll::Frame(bytes, time, lens)),
            Err(TryRecvError::Empty) => Ok(StreamPoll::Pending),
            Err(TryRecvError::Disconnected) => Ok(StreamPoll::End),
        }
    }
}

/// The thread ends at the next frame or the next check.
impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Reads frames until the pipe's end.
fn read(open: impl FnOnce() -> Result<EthernetReader>, frames: &SyncSender<Result<Frame>>) {
    let mut reader = match open() {
        Ok(reader) => reader,
        Err(error) => return drop(frames.send(Err(error))),
    };
    loop {
        let mut bytes = Vec::new();
        let frame = match reader.next(&mut bytes) {
            Ok(Some((time, lens))) => Ok((bytes, time, lens)),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        // The end, or the receiver is gone.
        let is_over = frame.is_err();
        if frames.send(frame).is_err() || is_over {
            return;
        }
    }
}

/// A pipe that is read as data arrives.
struct PollingReader {
    file: File,
    stop: Arc<AtomicBool>,
}

impl Read for PollingReader {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(std::io::Error::other("its reader has ended"));
            }
            // Waits even before the first writer, when read(2) would report the end.
            if poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&CHECK_INTERVAL))? == 0 {
                continue;
            }
            match self.file.read(bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}
