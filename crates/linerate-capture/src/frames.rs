//! The Ethernet frames of a capture, from a file or a pipe.

use std::path::Path;
use std::sync::Arc;

use linerate_core::error::Result;
use linerate_core::port::CaptureCounts;

use super::Reader;
use super::ethernet::{Defects, EthernetReader};
use super::stream::{Stream, StreamPoll};

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
/// while let FramePoll::Frame { nanoseconds, captured_len, original_len } = frames.next(&mut bytes)? {
///     println!("{nanoseconds:?} ns: {captured_len} of {original_len} bytes");
/// }
/// # Ok(()) }
/// ```
pub struct Frames {
    source: Source,
    count: u64,
    defects: Arc<Defects>,
}

/// The result of [`Frames::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePoll {
    /// A frame.
    Frame {
        /// The time of capture, in nanoseconds since 1970; `None` if the file has no time for it.
        nanoseconds: Option<u64>,
        /// The length without padding.
        captured_len: usize,
        /// The length before the frame was cut to the capture's snap length. If it is longer, the end is missing.
        original_len: usize,
    },
    /// No frame yet: a pipe's writer has paused.
    Pending,
    /// No more frames.
    End,
}

enum Source {
    File(EthernetReader),
    Pipe(Stream),
}

impl Frames {
    /// Opens a capture of Ethernet frames. Packets of other link types are skipped.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be read, or is a pcap file of another link type.
    pub fn open(path: &Path) -> Result<Frames> {
        Frames::counting(path, false, Arc::default())
    }

    /// Like [`open`](Frames::open), but packets of other link types get an Ethernet header, if Ethernet can carry them:
    /// IP, BSD loopback, PPP, Linux cooked captures, and data frames of 802.11.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be read.
    pub fn with_headers(path: &Path) -> Result<Frames> {
        Frames::counting(path, true, Arc::default())
    }

    /// Opens a capture, whose skipped packets are added to `defects`.
    pub(super) fn counting(path: &Path, adds_headers: bool, defects: Arc<Defects>) -> Result<Frames> {
        let source = match Frames::may_wait(path) {
            true => Source::Pipe(Stream::open(path, adds_headers, defects.clone())?),
            false => Source::File(EthernetReader::new(Reader::open(path)?, adds_headers, defects.clone())?),
        };
        Ok(Frames { source, count: 0, defects })
    }

    /// Returns whether a path is a pipe, or another file that can be read only once, and whose reader may have to wait.
    pub fn may_wait(path: &Path) -> bool {
        Stream::may_block(path)
    }

    /// Reads the next frame into `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) with the position where the capture is truncated or
    /// malformed. At its end, with the link type, if it has packets but none that is an Ethernet frame.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<FramePoll> {
        let frame = match &mut self.source {
            Source::File(reader) => reader.next(bytes)?,
            Source::Pipe(pipe) => match pipe.next()? {
                StreamPoll::Frame(frame, nanoseconds, lens) => {
                    *bytes = frame;
                    Some((nanoseconds, lens))
                }
                StreamPoll::Pending => return Ok(FramePoll::Pending),
                StreamPoll::End => None,
            },
        };
        let Some((nanoseconds, [captured_len, original_len])) = frame else { return Ok(FramePoll::End) };
        self.count += 1;
        Ok(FramePoll::Frame { nanoseconds, captured_len, original_len })
    }

    /// Returns the number of frames so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the counts of packets that were skipped or shortened; `snapped` is 0, as [`next`](Frames::next) reports
    /// these frames.
    pub fn defects(&self) -> CaptureCounts {
        self.defects.counts(0)
    }
}
