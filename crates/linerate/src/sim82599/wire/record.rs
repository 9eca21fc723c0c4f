//! Records the frames that leave the card.

use std::path::Path;
use std::time::SystemTime;

use super::{Frame, Report, Watch, Watched, Wire};
use crate::capture::Writer;
use crate::error::{Error, Result};

/// Records the frames that leave the card, in front of another wire. The file is complete when the wire is
/// finished, or this value is dropped. Recording ends at the first frame that cannot be written, as the [`Report`]
/// shows; the frames go on.
pub type Record = Watched<Recording>;

/// The file of a [`Record`].
pub struct Recording {
    /// The file, or why it cannot be written.
    file: std::result::Result<Writer, Error>,
    sent: u64,
    is_finished: bool,
}

impl Record {
    /// Creates the file, or replaces an existing one.
    ///
    /// # Errors
    /// [`Error::Recording`](crate::Error::Recording) if it cannot be written.
    pub fn create(path: &Path, inner: Box<dyn Wire>) -> Result<Record> {
        let mut file = Writer::create(path)?;
        file.begin()?;
        Ok(Record { inner, watch: Recording { file: Ok(file), sent: 0, is_finished: false } })
    }
}

impl Recording {
    /// Writes to the file, until that fails.
    fn keep(&mut self, write: impl FnOnce(&mut Writer) -> Result<()>) {
        if let Ok(file) = &mut self.file
            && let Err(error) = write(file)
        {
            self.file = Err(error);
        }
    }
}

impl Watch for Recording {
    fn leaves(&mut self, frame: &Frame) {
        self.sent += 1;
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let is_finished = self.is_finished;
        self.keep(|file| {
            file.write(now, &frame.bytes)?;
            if is_finished { file.flush() } else { Ok(()) }
        });
    }

    fn check(&self) -> Result<()> {
        match &self.file {
            Err(Error::Recording { file, why }) => Err(Error::Recording { file: file.clone(), why: why.clone() }),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) {
        self.keep(Writer::flush);
        self.is_finished = true;
    }

    fn report(&self, inner: Option<Report>) -> Option<Report> {
        let unrecorded = self.file.is_err().into();
        Some(Report { received: self.sent, unrecorded, ..inner.unwrap_or_default() })
    }
}
