//! The bytes of a capture file, and its records.

use std::io::{BufReader, Cursor, ErrorKind, Read};

use linerate_core::error::{Error, ErrorKind as Kind, Remedy};

use super::LinkType;
use super::compression::Compression;

/// A packet's record in a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the packet was captured, in nanoseconds since 1970; `None` if the file has no time for it.
    pub nanoseconds: Option<u64>,
    /// The packet's length before it was cut to the capture's snap length.
    pub original_len: usize,
    /// The type of the packet's link header.
    pub link: LinkType,
    /// Bytes that the file has beyond the packet's length, which were left out: its lengths contradict each other.
    pub surplus: usize,
}

impl Record {
    /// Creates the record of a packet of which the file has `bytes`, and removes from them what exceeds its `original`
    /// length, and a frame check sequence of `fcs` bytes.
    pub(super) fn new(
        nanoseconds: Option<u64>,
        link: LinkType,
        original: usize,
        fcs: usize,
        bytes: &mut Vec<u8>,
    ) -> Record {
        let (surplus, original_len) = (bytes.len().saturating_sub(original), original.saturating_sub(fcs));
        bytes.truncate(original_len);
        Record { nanoseconds, original_len, link, surplus }
    }
}

/// The longest packet: libpcap's `MAXIMUM_SNAPLEN`.
const LONGEST: usize = 256 << 10;

/// Returns a frame check sequence's length if it is one that links have: none, 2 bytes (PPP) or 4.
pub(super) fn fcs_len(len: u32) -> Option<usize> {
    matches!(len, 0 | 2 | 4).then_some(len as usize)
}

/// Why reading ended before the file did.
pub(super) enum End {
    /// The file ends within a record.
    Cut,
    /// The record at this offset is malformed.
    Malformed(u64, String),
    Failed(std::io::Error),
    /// This build cannot unpack the file.
    NotBuilt(Error),
}

/// The file's bytes, in order.
pub(super) struct Source {
    pub reader: Box<dyn Read + Send>,
    pub name: String,
    /// Bytes read so far.
    pub offset: u64,
    /// The offset of the current record.
    pub begin: u64,
    /// The file's length when it was opened; 0 if unknown.
    pub len: u64,
    /// The bytes that were read since they were last taken, if they are copied, and their offset.
    pub copied: Option<Vec<u8>>,
    pub copied_from: u64,
    /// The bytes are unpacked from a compressed file; offsets and lengths refer to the unpacked bytes.
    pub compression: Option<Compression>,
}

/// The longest block that is copied, other than packets.
const LONGEST_COPIED: u64 = 16 << 20;

impl Source {
    /// If the file is compressed, as its first bytes `magic` show, continues with its contents, and reads their first
    /// bytes.
    pub fn unpack(&mut self, magic: &mut [u8; 4]) -> std::result::Result<(), End> {
        let Some(compression) = Compression::of(*magic) else { return Ok(()) };
        let packed = std::mem::replace(&mut self.reader, Box::new(std::io::empty()));
        let Some(unpacked) = compression.unpacked(Cursor::new(*magic).chain(packed)).map_err(End::Failed)? else {
            let (program, name) = (compression.program(), &self.name);
            let why = format!(
                "it is compressed with {program}, and this build of linerate lacks the cargo feature 'compression'; \
                 unpack it first: {program} -dc <'{name}' >NEW.pcap"
            );
            return Err(End::NotBuilt(
                Error::new(Kind::NotBuilt, name.as_str(), why)
                    .with_remedy(Remedy::Build { feature: "compression".into() }),
            ));
        };
        self.reader = Box::new(BufReader::new(unpacked));
        (self.compression, self.offset) = (Some(compression), 0);
        self.copied.iter_mut().for_each(Vec::clear);
        self.need(magic)
    }

    /// Begins a record, and returns its offset.
    pub fn begin_record(&mut self) -> u64 {
        self.begin = self.offset;
        self.begin
    }

    /// Reads `bytes.len()` bytes; false at the file's end.
    pub fn fill(&mut self, bytes: &mut [u8]) -> std::result::Result<bool, End> {
        let mut read = 0;
        while read < bytes.len() {
            match self.reader.read(&mut bytes[read..]) {
                Ok(0) if read == 0 => return Ok(false),
                Ok(0) => return Err(End::Cut),
                Ok(count) => (read, self.offset) = (read + count, self.offset + count as u64),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Of a compressed file.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(End::Cut),
                Err(error) => return Err(End::Failed(error)),
            }
        }
        if let Some(copied) = &mut self.copied {
            copied.extend_from_slice(bytes);
        }
        Ok(true)
    }

    /// Replaces the last bytes in the copy.
    pub fn replace_in_copy(&mut self, bytes: &[u8]) {
        if let Some(copied) = &mut self.copied {
            let at = copied.len() - bytes.len();
            copied[at..].copy_from_slice(bytes);
        }
    }

    /// Reads `bytes.len()` bytes, which must exist.
    pub fn need(&mut self, bytes: &mut [u8]) -> std::result::Result<(), End> {
        if bytes.is_empty() || self.fill(bytes)? { Ok(()) } else { Err(End::Cut) }
    }

    /// Skips `count` bytes.
    pub fn skip(&mut self, mut count: u64) -> std::result::Result<(), End> {
        if self.copied.is_some() && count > LONGEST_COPIED {
            return Err(End::Malformed(
                self.begin,
                format!("a block of {count} bytes, which is too long to be copied"),
            ));
        }
        // Short, as a packet's block has only padding to skip: zeroing 4 KiB took most of the time for a packet.
        let mut bytes = [0; 64];
        while count > 0 {
            let now = count.min(bytes.len() as u64);
            self.need(&mut bytes[..now as usize])?;
            count -= now;
        }
        Ok(())
    }

    /// Reads a packet of `len` bytes into `bytes`.
    pub fn packet(&mut self, len: usize, begin: u64, bytes: &mut Vec<u8>) -> std::result::Result<(), End> {
        if len > LONGEST {
            return Err(End::Malformed(begin, format!("a frame of {len} bytes; the maximum is {LONGEST}")));
        }
        bytes.resize(len, 0);
        self.need(bytes)
    }

    /// Returns the offset as text.
    pub fn position(&self, offset: u64) -> String {
        let of = if self.compression.is_some() { " of the unpacked file" } else { "" };
        format!("byte {offset}{of}")
    }

    /// Returns the command that prints the first `count` bytes of the capture.
    pub fn head(&self, count: u64) -> String {
        let name = &self.name;
        match self.compression {
            Some(compression) => format!("{} -dc <'{name}' | head -c {count}", compression.program()),
            None => format!("head -c {count} '{name}'"),
        }
    }

    pub fn error(&self, why: String) -> Error {
        Error::file(&self.name, why)
    }
}

/// Reads 32 bits in the file's byte order.
#[inline]
pub(super) fn word(is_swapped: bool, bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
    if is_swapped { word.swap_bytes() } else { word }
}
