//! The frames of a capture, from a file or a pipe.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_core::error::Result;

use super::Reader;
use super::stream::{Stream, StreamPoll};

/// The shortest frame without CRC.
const SHORTEST: usize = 60;

/// The frames of a capture, once. Frames shorter than 60 bytes are padded, as a card pads them.
///
/// A file is read on demand. A pipe is read by a thread, since its writer may pause: [`next`](Frames::next) never
/// blocks.
///
/// ```no_run
/// # fn main() -> linerate::Result<()> {
/// use linerate::capture::{Frames, FramePoll};
/// let mut frames = Frames::open("in.pcap".as_ref())?;
/// let mut bytes = Vec::new();
/// while let FramePoll::Frame { nanoseconds, is_snapped } = frames.next(&mut bytes)? {
///     println!("{nanoseconds:?} ns: {} bytes{}", bytes.len(), if is_snapped { " of a longer frame" } else { "" });
/// }
/// # Ok(()) }
/// ```
pub struct Frames {
    source: Source,
    count: u64,
    not_ethernet: Arc<AtomicU64>,
}

/// The result of [`Frames::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePoll {
    /// A frame.
    Frame {
        /// The time of capture, in nanoseconds since 1970; `None` if the file has no time for it.
        nanoseconds: Option<u64>,
        /// The frame was longer than the capture's snap length, so its end is missing.
        is_snapped: bool,
    },
    /// No frame yet: a pipe's writer has paused.
    Pending,
    /// No more frames.
    End,
}

enum Source {
    File(Reader),
    Pipe(Stream),
}

impl Frames {
    /// Opens a capture.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be read, or is not a capture of Ethernet
    /// frames.
    pub fn open(path: &Path) -> Result<Frames> {
        Frames::counting(path, Arc::default())
    }

    /// Like [`open`](Frames::open); packets that are not Ethernet are counted in `not_ethernet`.
    pub(super) fn counting(path: &Path, not_ethernet: Arc<AtomicU64>) -> Result<Frames> {
        let source = match Frames::may_wait(path) {
            true => Source::Pipe(Stream::open(path, not_ethernet.clone())?),
            false => Source::File(Reader::open(path)?),
        };
        Ok(Frames { source, count: 0, not_ethernet })
    }

    /// Returns whether a path is a pipe, or another file that can be read only once, and whose reader may have to wait.
    pub fn may_wait(path: &Path) -> bool {
        Stream::may_block(path)
    }

    /// Reads the next frame into `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the position where the capture is truncated or
    /// malformed.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<FramePoll> {
        let record = match &mut self.source {
            Source::File(reader) => {
                let skipped = reader.skipped();
                let record = reader.next(bytes);
                if reader.skipped() != skipped {
                    self.not_ethernet.fetch_add(reader.skipped() - skipped, Ordering::Relaxed);
                }
                record?
            }
            Source::Pipe(pipe) => match pipe.next()? {
                StreamPoll::Frame(frame, record) => {
                    *bytes = frame;
                    Some(record)
                }
                StreamPoll::Pending => return Ok(FramePoll::Pending),
                StreamPoll::End => None,
            },
        };
        let Some(record) = record else {
            if let Source::File(reader) = &self.source {
                reader.check_end()?;
            }
            return Ok(FramePoll::End);
        };
        let is_snapped = bytes.len() < record.original_len;
        bytes.resize(bytes.len().max(SHORTEST), 0);
        self.count += 1;
        Ok(FramePoll::Frame { nanoseconds: record.nanoseconds, is_snapped })
    }

    /// Returns the number of frames so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of skipped packets, those of interfaces that are not Ethernet.
    pub fn skipped(&self) -> u64 {
        self.not_ethernet.load(Ordering::Relaxed)
    }
}
