//! The Ethernet frames of a capture, from a file or a pipe.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_core::error::{Error, Remedy, Result};
use linerate_core::port::CaptureCounts;

use super::ethernet::to_ethernet;
use super::stream::{Stream, StreamPoll};
use super::{LinkType, Reader};

/// The shortest frame without CRC.
const SHORTEST: usize = 60;
/// The length of an Ethernet header.
const HEADER: usize = 14;

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
    defects: Arc<Defects>,
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
    File(EthernetReader),
    Pipe(Stream),
}

/// Counts of packets that are not delivered, or not as they are in the file.
#[derive(Debug, Default)]
pub(super) struct Defects {
    not_ethernet: AtomicU64,
    too_short: AtomicU64,
    surplus: AtomicU64,
}

impl Defects {
    /// Returns the counts, with `snapped`, which only the receiver of the frames knows.
    pub fn counts(&self, snapped: u64) -> CaptureCounts {
        let [not_ethernet, too_short, surplus] =
            [&self.not_ethernet, &self.too_short, &self.surplus].map(|count| count.load(Ordering::Relaxed));
        CaptureCounts { not_ethernet, too_short, surplus, snapped }
    }
}

/// Reads the packets of a capture as Ethernet frames.
pub(super) struct EthernetReader {
    reader: Reader,
    /// Packets of other link types get an Ethernet header; otherwise they are skipped.
    adds_headers: bool,
    /// The number of frames so far, and the link type of the first skipped packet.
    count: u64,
    skipped: Option<LinkType>,
    defects: Arc<Defects>,
}

impl EthernetReader {
    /// Fails if all packets would be skipped.
    pub fn new(reader: Reader, adds_headers: bool, defects: Arc<Defects>) -> Result<EthernetReader> {
        match reader.link_type() {
            Some(link) if link != LinkType::ETHERNET && !adds_headers => Err(not_ethernet(&reader, link, false)),
            _ => Ok(EthernetReader { reader, adds_headers, count: 0, skipped: None, defects }),
        }
    }

    /// Reads the next frame into `bytes`. Returns its time, and whether the capture has cut it.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<(Option<u64>, bool)>> {
        while let Some(mut record) = self.reader.next(bytes)? {
            let is_ethernet = match self.adds_headers {
                true => to_ethernet(record.link, bytes, &mut record.original_len).is_some(),
                false => record.link == LinkType::ETHERNET,
            };
            if !is_ethernet {
                self.skipped.get_or_insert(record.link);
                self.defects.not_ethernet.fetch_add(1, Ordering::Relaxed);
            } else if bytes.len() < HEADER {
                self.defects.too_short.fetch_add(1, Ordering::Relaxed);
            } else {
                if record.surplus > 0 {
                    self.defects.surplus.fetch_add(1, Ordering::Relaxed);
                }
                self.count += 1;
                let is_snapped = bytes.len() < record.original_len;
                bytes.resize(bytes.len().max(SHORTEST), 0);
                return Ok(Some((record.nanoseconds, is_snapped)));
            }
        }
        self.reader.check_end()?;
        match self.skipped.filter(|_| self.count == 0) {
            Some(link) => Err(not_ethernet(&self.reader, link, self.adds_headers)),
            None => Ok(None),
        }
    }
}

/// Returns the error for a capture without Ethernet frames, whose first packet has this link type.
fn not_ethernet(reader: &Reader, link: LinkType, adds_headers: bool) -> Error {
    match adds_headers {
        true => reader.error(format!("its packets cannot be sent as Ethernet: {link}")),
        false => reader.error(format!("its packets are not Ethernet: {link}")).with_remedy(Remedy::AddHeaders),
    }
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
                StreamPoll::Frame(frame, nanoseconds, is_snapped) => {
                    *bytes = frame;
                    Some((nanoseconds, is_snapped))
                }
                StreamPoll::Pending => return Ok(FramePoll::Pending),
                StreamPoll::End => None,
            },
        };
        let Some((nanoseconds, is_snapped)) = frame else { return Ok(FramePoll::End) };
        self.count += 1;
        Ok(FramePoll::Frame { nanoseconds, is_snapped })
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
