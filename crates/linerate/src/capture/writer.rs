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
}

impl Writer {
    /// Creates the file, or replaces an existing one.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written, or another recording is writing it.
    pub fn create(path: &Path) -> Result<Writer> {
        let name = path.display().to_string();
        let failed = |why: String| Error::Recording { file: name.clone(), why };
        let cannot = |error: std::io::Error| failed(format!("cannot write it: {error}"));
        // It is emptied after it was locked: another recording's file stays whole.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed("another recording is writing it; choose another file".to_string()));
        }
        if file.metadata().is_ok_and(|there| there.is_file()) {
            file.set_len(0).map_err(cannot)?;
        }
        let mut file = BufWriter::with_capacity(64 << 10, file);
        for word in [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 256 << 10, ETHERNET] {
            file.write_all(&word.to_le_bytes()).map_err(cannot)?;
        }
        Ok(Writer { file, name })
    }

    /// Appends a frame that passed at `nanoseconds` since 1970.
    ///
    /// # Errors
    /// [`Error::Recording`] if it cannot be written; the file then ends with an earlier frame, perhaps a part of this one.
    pub fn write(&mut self, nanoseconds: u64, frame: &[u8]) -> Result<()> {
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
