//! Writes capture files.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;

use rustix::fs::FlockOperation;

use super::{ETHERNET, SECOND};
use crate::error::{Error, Result};

/// Writes a pcap file with times in nanoseconds. The file is complete after [`flush`](Writer::flush), or when this value is
/// dropped.
pub struct Writer {
    file: BufWriter<File>,
    name: String,
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
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(
                "another recording is writing it, or it is being read; choose another file".to_string(),
            ));
        }
        Ok(Writer { file: BufWriter::with_capacity(64 << 10, file), name, has_begun: false })
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
        if self.file.get_ref().metadata()?.is_file() {
            self.file.get_ref().set_len(0)?;
        }
        for word in [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 256 << 10, ETHERNET] {
            self.file.write_all(&word.to_le_bytes())?;
        }
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
        let header: [[u8; 4]; 4] = words.map(u32::to_le_bytes);
        let written = self.file.write_all(header.as_flattened()).and_then(|()| self.file.write_all(frame));
        written.map_err(|error| self.error(&error))
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|error| self.error(&error))
    }

    fn error(&self, error: &std::io::Error) -> Error {
        Error::Recording { file: self.name.clone(), why: format!("cannot write it: {error}") }
    }
}
