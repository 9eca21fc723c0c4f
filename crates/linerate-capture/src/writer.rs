//! Writes capture files.

use std::path::Path;

use linerate_core::error::{Error, Result};

use super::{Format, Output, SNAPLEN};

/// The maximum number of buffered bytes, unless one frame is longer.
const BUFFER: usize = 64 << 10;

/// Writes a capture with nanosecond timestamps: pcapng if the file's name ends with `.pcapng`, otherwise pcap. The file
/// is complete after [`flush`](Writer::flush), or when this value is dropped.
pub struct Writer {
    output: Output,
    format: Format,
    /// The file header and complete records not yet in the file, and the offset of the first record.
    buffer: Vec<u8>,
    first: usize,
    /// The numbers of frames in the file, and in the buffer.
    frames: u64,
    kept: usize,
    /// The accepted frames that could not be written, and their bytes.
    unwritten: (usize, usize),
    has_begun: bool,
}

impl Writer {
    /// Creates the file, or opens an existing one, which is emptied when the recording [begins](Writer::begin).
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written, or is being written or read.
    pub fn create(path: &Path) -> Result<Writer> {
        refuse_compressed(path)?;
        Ok(Writer {
            output: Output::create(path)?,
            format: Format::of(path),
            buffer: Vec::with_capacity(BUFFER),
            first: 0,
            frames: 0,
            kept: 0,
            unwritten: (0, 0),
            has_begun: false,
        })
    }

    /// Empties the file and writes its header, once. A run that fails before it begins preserves an older file.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written.
    pub fn begin(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.format.begin(&mut self.buffer, SNAPLEN, &[""]);
            self.first = self.buffer.len();
        }
        self.output.begin().map_err(|error| self.output.error(&error, 0))
    }

    /// Appends a frame that passed at `nanoseconds` since 1970.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written. The file then ends with an earlier
    /// frame, or a part of this one.
    pub fn write(&mut self, nanoseconds: u64, frame: &[u8]) -> Result<()> {
        self.write_cut(nanoseconds, &frame[..frame.len().min(SNAPLEN as usize)], frame.len())
    }

    /// Appends `frame`, the first bytes of a frame of `original_len` bytes.
    pub(super) fn write_cut(&mut self, nanoseconds: u64, frame: &[u8], original_len: usize) -> Result<()> {
        self.begin()?;
        // The header and trailer of a record take at most 64 bytes.
        if self.buffer.len() + 64 + frame.len() > BUFFER {
            self.flush()?;
        }
        self.format.append_cut(&mut self.buffer, 0, nanoseconds, frame, original_len);
        self.kept += 1;
        Ok(())
    }

    /// Writes all buffered frames to the file. If there were none, a new file becomes a valid empty capture.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        if !self.has_begun && self.output.is_empty_file() {
            self.begin()?;
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        let outcome = self.output.write_all_counted(&self.buffer);
        match &outcome {
            Ok(()) => self.frames += self.kept as u64,
            Err((_, written)) => {
                let mut at = self.first;
                for found in self.format.records(&self.buffer[self.first..]) {
                    at += found.len;
                    if at <= *written {
                        self.frames += 1;
                    } else {
                        self.unwritten = (self.unwritten.0 + 1, self.unwritten.1 + found.frame.len());
                    }
                }
            }
        }
        // After an error, the rest would follow a partial record.
        (self.first, self.kept) = (0, 0);
        self.buffer.clear();
        outcome.map_err(|(error, _)| self.output.error(&error, self.frames))
    }

    /// Returns the number of accepted frames that were not written because of an error, and their bytes.
    pub(super) fn unwritten(&self) -> (usize, usize) {
        self.unwritten
    }
}

/// Refuses a name for a compressed file.
pub(super) fn refuse_compressed(path: &Path) -> Result<()> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some(ending @ ("zst" | "gz" | "lz4")) => {
            let why = format!("a port's recording is not compressed: leave out .{ending}, or use linerate capture");
            Err(Error::file(path.display().to_string(), why))
        }
        _ => Ok(()),
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A writer that stops at its first error, and keeps it; packets then pass unrecorded.
pub struct TryWriter(std::result::Result<Writer, Error>);

impl TryWriter {
    /// Creates the file, as [`Writer::create`] does.
    ///
    /// # Errors
    /// See there.
    pub fn create(path: &Path) -> Result<TryWriter> {
        Writer::create(path).map(|writer| TryWriter(Ok(writer)))
    }

    /// Calls `write`, unless an earlier call has failed.
    pub fn try_write(&mut self, write: impl FnOnce(&mut Writer) -> Result<()>) {
        if let Ok(writer) = &mut self.0
            && let Err(error) = write(writer)
        {
            self.0 = Err(error);
        }
    }

    /// Fails if a call has failed.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File).
    pub fn check(&self) -> Result<()> {
        self.0.as_ref().map(drop).map_err(Error::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;

    #[test]
    fn a_capture_without_frames_is_one() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.pcap", "a.pcapng"] {
            let path = folder.path().join(name);
            drop(Writer::create(&path).unwrap());
            let new = std::fs::read(&path).unwrap();
            assert!(Reader::open(&path).unwrap().next(&mut Vec::new()).unwrap().is_none(), "{name}");
            // An older file is preserved, even one that is not a capture.
            for older in [new, b"no capture".to_vec()] {
                std::fs::write(&path, &older).unwrap();
                drop(Writer::create(&path).unwrap());
                assert_eq!(std::fs::read(&path).unwrap(), older);
            }
        }
    }
}
