//! Writes capture files.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;

use super::{ETHERNET, SECOND};
use crate::error::{Error, Result};

/// The most bytes that are kept before they are written, unless one frame is longer.
const BUFFER: usize = 64 << 10;
/// The bytes in front of each frame: its time and its length, twice.
const RECORD: usize = 16;

/// Writes a pcap file with times in nanoseconds. The file is complete after [`flush`](Writer::flush), or when this value is
/// dropped.
pub struct Writer {
    file: Target,
    name: String,
    /// The file's header and whole records that are not in the file yet, and where each record ends.
    buffer: Vec<u8>,
    ends: Vec<usize>,
    /// Frames that are in the file.
    frames: u64,
    /// Frames that were accepted and could not be written, and their bytes.
    unwritten: (usize, usize),
    /// Bytes of the file's header in front of the first record in `buffer`.
    header: usize,
    /// The file has been emptied, and has its header.
    has_begun: bool,
}

impl Writer {
    /// Creates the file, or opens an existing one, which is emptied when the recording [begins](Writer::begin).
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written, or is being written or read.
    pub fn create(path: &Path) -> Result<Writer> {
        let name = path.display().to_string();
        let failed = |why: String| Error::Recording { file: name.clone(), why };
        let cannot = |error: std::io::Error| failed(format!("cannot write it: {error}"));
        // A pipe without a reader would otherwise keep the program waiting here.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => failed("no program reads this pipe; start its reader first".to_string()),
            _ => cannot(error),
        })?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(
                "another recording is writing it, or it is being read; choose another file".to_string(),
            ));
        }
        let buffer = Vec::with_capacity(BUFFER);
        Ok(Writer {
            file: Target(file),
            name,
            buffer,
            ends: Vec::new(),
            frames: 0,
            unwritten: (0, 0),
            header: 0,
            has_begun: false,
        })
    }

    /// Empties the file and writes its header, unless that is done. A run that fails before it begins keeps an older file.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written.
    pub fn begin(&mut self) -> Result<()> {
        if !self.has_begun {
            self.has_begun = true;
            self.write_header().map_err(|error| self.error(&error))?;
        }
        Ok(())
    }

    fn write_header(&mut self) -> std::io::Result<()> {
        if self.file.0.metadata()?.is_file() {
            self.file.0.set_len(0)?;
        }
        for word in [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 256 << 10, ETHERNET] {
            self.buffer.extend(word.to_le_bytes());
        }
        self.header = self.buffer.len();
        Ok(())
    }

    /// Appends a frame that passed at `nanoseconds` since 1970.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written; the file then ends with an earlier frame, perhaps a part of this one.
    pub fn write(&mut self, nanoseconds: u64, frame: &[u8]) -> Result<()> {
        self.begin()?;
        let len = frame.len() as u32;
        let words = [(nanoseconds / SECOND) as u32, (nanoseconds % SECOND) as u32, len, len];
        let header: [[u8; 4]; RECORD / 4] = words.map(u32::to_le_bytes);
        if self.buffer.len() + RECORD + frame.len() > BUFFER {
            self.flush()?;
        }
        self.buffer.extend_from_slice(header.as_flattened());
        self.buffer.extend_from_slice(frame);
        self.ends.push(self.buffer.len());
        Ok(())
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let mut written = 0;
        let outcome = loop {
            if written == self.buffer.len() {
                break Ok(());
            }
            match self.file.write(&self.buffer[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let whole = self.ends.partition_point(|&end| end <= written);
        self.frames += whole as u64;
        if let [.., last] = self.ends[whole..] {
            let frames = self.ends.len() - whole;
            let first = self.ends[..whole].last().copied().unwrap_or(self.header);
            self.unwritten = (frames, last - first - frames * RECORD);
        }
        self.header = 0;
        // After an error, what is left would follow a part of a record.
        self.buffer.clear();
        self.ends.clear();
        outcome.map_err(|error| self.error(&error))
    }

    /// Returns the frames that were accepted and that an error has kept from the file, and their bytes.
    pub(super) fn unwritten(&self) -> (usize, usize) {
        self.unwritten
    }

    fn error(&self, error: &std::io::Error) -> Error {
        Error::Recording {
            file: self.name.clone(),
            why: format!("cannot write it: {error}; it has {} whole frames", self.frames),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A writer until its first error, which it keeps: packets go on without their recording.
pub(crate) struct TryWriter(std::result::Result<Writer, Error>);

impl TryWriter {
    /// As [`Writer::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(path: &Path) -> Result<TryWriter> {
        Writer::create(path).map(|writer| TryWriter(Ok(writer)))
    }

    /// Writes, until that fails.
    pub fn keep(&mut self, write: impl FnOnce(&mut Writer) -> Result<()>) {
        if let Ok(writer) = &mut self.0
            && let Err(error) = write(writer)
        {
            self.0 = Err(error);
        }
    }

    /// Checks that nothing has failed.
    ///
    /// # Errors
    /// [`Error::Recording`].
    pub fn check(&self) -> Result<()> {
        self.0.as_ref().err().and_then(Error::again).map_or(Ok(()), Err)
    }
}

/// The longest wait for the reader of a full pipe.
const LONGEST_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The file, or a pipe whose reader may stop.
struct Target(File);

impl Target {
    /// Writes a part of `bytes`, and returns its length.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return written,
            }
            let there = poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&LONGEST_WAIT))?;
            if there == 0 {
                return Err(std::io::Error::new(ErrorKind::TimedOut, "the pipe's reader has read nothing for 1 s"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_needs_a_reader_that_reads() {
        let path = std::env::temp_dir().join(format!("linerate-pipe-{}", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let why = |error: Error| error.to_string();
        assert!(why(Writer::create(&path).err().unwrap()).contains("start its reader first"));
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut writer = Writer::create(&path).unwrap();
        let error = (0..1000).find_map(|_| writer.write(0, &[0; 1000]).err());
        assert!(why(error.unwrap()).contains("has read nothing for 1 s"));
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }
}
