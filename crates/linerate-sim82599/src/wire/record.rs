//! Records the frames that leave the card.

use std::path::Path;

use linerate_capture::{TryWriter, Writer};
use linerate_core::error::Result;
use linerate_core::packet::now;

use super::{Frame, Report, Watch, Watched, Wire};

/// Records the frames that leave the card, and passes them to another wire.
///
/// The file is complete when the wire is finished, or this value is dropped. Recording ends at the first frame that
/// cannot be written, which [`Wire::check`] reports; frames are still passed on.
pub type Record = Watched<Recording>;

/// The file of a [`Record`].
pub struct Recording {
    file: TryWriter,
    sent: u64,
    is_finished: bool,
}

impl Record {
    /// Creates the file, or opens an existing one. An existing file is truncated at the first frame, or when the wire
    /// is finished, so that a run that fails before leaves it unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if the file cannot be written.
    pub fn create(path: &Path, inner: Box<dyn Wire>) -> Result<Record> {
        Ok(Record { inner, watch: Recording { file: TryWriter::create(path)?, sent: 0, is_finished: false } })
    }
}

impl Watch for Recording {
    fn leaves(&mut self, frame: &Frame) {
        self.sent += 1;
        let is_finished = self.is_finished;
        self.file.try_write(|file| {
            file.write(now(), &frame.bytes)?;
            if is_finished { file.flush() } else { Ok(()) }
        });
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }

    fn finish(&mut self) {
        self.file.try_write(Writer::begin);
        self.file.try_write(Writer::flush);
        self.is_finished = true;
    }

    fn report(&self, inner: Option<Report>) -> Option<Report> {
        Some(Report { received: self.sent, ..inner.unwrap_or_default() })
    }
}
