//! Records the frames that leave the card.

use std::path::Path;
use std::time::SystemTime;

use super::{Frame, Report, Wire};
use crate::capture::Writer;
use crate::error::Result;

/// Records the frames that leave the card, in front of another wire. The file is complete when the wire is
/// finished, or this value is dropped. Recording ends at the first frame that cannot be written, as the [`Report`]
/// shows; the frames go on.
pub struct Record {
    /// `None` after a failure.
    file: Option<Writer>,
    inner: Box<dyn Wire>,
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
        Ok(Record { file: Some(file), inner, sent: 0, is_finished: false })
    }

    /// Writes to the file, until that fails.
    fn keep(&mut self, write: impl FnOnce(&mut Writer) -> Result<()>) {
        if self.file.as_mut().is_some_and(|file| write(file).is_err()) {
            self.file = None;
        }
    }
}

impl Wire for Record {
    fn link(&self) -> bool {
        self.inner.link()
    }

    fn signal(&mut self, mbits: u32) {
        self.inner.signal(mbits);
    }

    fn speed(&self) -> u32 {
        self.inner.speed()
    }

    fn ready(&mut self) -> bool {
        self.inner.ready()
    }

    fn transmit(&mut self, frame: &Frame) {
        self.sent += 1;
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos() as u64;
        let is_finished = self.is_finished;
        self.keep(|file| {
            file.write(now, &frame.bytes)?;
            if is_finished { file.flush() } else { Ok(()) }
        });
        self.inner.transmit(frame);
    }

    fn receive(&mut self, frame: &mut Frame) -> bool {
        self.inner.receive(frame)
    }

    fn holds_back(&self) -> bool {
        self.inner.holds_back()
    }

    fn comes_unasked(&self) -> bool {
        self.inner.comes_unasked()
    }

    fn finish(&mut self) {
        self.keep(Writer::flush);
        self.is_finished = true;
        self.inner.finish();
    }

    fn report(&self) -> Option<Report> {
        let unrecorded = self.file.is_none().into();
        Some(Report { received: self.sent, unrecorded, ..self.inner.report().unwrap_or_default() })
    }
}
