//! The file or pipe that a capture is written to.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use linerate_core::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;

/// How long to wait for the reader of a full pipe.
const LONGEST_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A file and its length, to detect changes by other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    device: u64,
    inode: u64,
    len: u64,
}

impl Extent {
    /// Returns the extent of the file at a path.
    ///
    /// # Errors
    /// Errors of stat(2).
    pub fn at(path: &Path) -> std::io::Result<Extent> {
        Ok(Extent::of(&path.metadata()?))
    }

    fn of(file: &Metadata) -> Extent {
        Extent { device: file.dev(), inode: file.ino(), len: file.len() }
    }
}

/// A file that no other recording writes, or a pipe whose reader may stall.
pub struct Output {
    file: File,
    name: String,
    /// The file has been emptied.
    has_begun: bool,
    /// The number of bytes that this output has in the file.
    written: u64,
    /// Returns whether a pipe's reader has little time left.
    is_ending: Box<dyn Fn() -> bool + Send>,
}

impl Output {
    /// Creates the file, or opens an existing one, which is emptied when the output [begins](Output::begin). So a run
    /// that fails earlier preserves an older file.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it cannot be written, or is being written or read.
    pub fn create(path: &Path) -> Result<Output> {
        let name = path.display().to_string();
        let failed = |why: String| Error::file(&name, why);
        // Without O_NONBLOCK, a pipe without a reader would block the program here.
        let mut options = OpenOptions::new();
        // If another program truncates the file, appended bytes follow the rest, and the length reveals it.
        options.append(true).create(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => failed("no program reads this pipe; start its reader first".to_string()),
            _ => failed(format!("cannot write it: {error}")),
        })?;
        // Several programs can write to a device such as /dev/null.
        let is_device = file.metadata().is_ok_and(|file| file.file_type().is_char_device());
        if !is_device && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(
                "another recording is writing it, or it is being read; choose another file".to_string(),
            ));
        }
        Ok(Output { file, name, has_begun: false, written: 0, is_ending: Box::new(|| true) })
    }

    /// Returns this process's standard output, which is not emptied. If it is a pipe, its reader may stall for any time
    /// while `is_ending` returns false, and for a second after that.
    ///
    /// # Errors
    /// [`ErrorKind::File`](linerate_core::ErrorKind::File) if it is closed.
    pub fn standard(is_ending: impl Fn() -> bool + Send + 'static) -> Result<Output> {
        let name = "standard output".to_string();
        let file = match std::io::stdout().as_fd().try_clone_to_owned() {
            Ok(file) => File::from(file),
            Err(error) => return Err(Error::file(name, format!("cannot write it: {error}"))),
        };
        // Reopened, because other processes may share the descriptor's flags.
        let is_pipe = file.metadata().is_ok_and(|file| file.file_type().is_fifo());
        let own = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open("/proc/self/fd/1").ok();
        let file = is_pipe.then(own).flatten().unwrap_or(file);
        Ok(Output { file, name, has_begun: true, written: 0, is_ending: Box::new(is_ending) })
    }

    /// Returns whether it is an empty regular file.
    pub(super) fn is_empty_file(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.is_file() && file.len() == 0)
    }

    /// Empties the file, once.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn begin(&mut self) -> std::io::Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) && self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        Ok(())
    }

    /// Writes all bytes, after emptying the file.
    ///
    /// # Errors
    /// The error that stopped it, and the number of bytes written.
    pub fn write_all_counted(&mut self, bytes: &[u8]) -> std::result::Result<(), (std::io::Error, usize)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write(&bytes[written..]) {
                Ok(0) => return Err((ErrorKind::WriteZero.into(), written)),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err((error, written)),
            }
        }
        Ok(())
    }

    /// Removes an incomplete frame: the last bytes of a file. A pipe keeps them.
    pub fn truncate_by(&mut self, bytes: usize) {
        let end = self.file.metadata().ok().filter(|file| file.is_file()).map(|file| file.len());
        if let Some(end) = end.and_then(|end| end.checked_sub(bytes as u64)) {
            // The caller's error matters more than this one.
            let _ = self.file.set_len(end);
        }
        self.written = self.written.saturating_sub(bytes as u64);
    }

    /// Returns the extent of the file as this output has written it; `None` for a device or a pipe.
    pub fn extent(&self) -> Option<Extent> {
        let file = self.file.metadata().ok().filter(|file| file.is_file())?;
        Some(Extent { len: self.written, ..Extent::of(&file) })
    }

    /// Returns the error for a failed write; `frames` is the number of complete frames in the file, or words for it.
    pub fn error(&self, error: &std::io::Error, frames: impl std::fmt::Display) -> Error {
        let why = format!("cannot write it: {error}; it has {frames} complete frames");
        Error::file(&self.name, why)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.begin()?;
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.written += count as u64;
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
            let is_ending = (self.is_ending)();
            let there = poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&LONGEST_WAIT))?;
            if there == 0 && is_ending {
                return Err(std::io::Error::new(ErrorKind::TimedOut, "the pipe's reader has read nothing for 1 s"));
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
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
        assert!(why(Output::create(&path).err().unwrap()).contains("start its reader first"));
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut output = Output::create(&path).unwrap();
        let error = (0..1000).find_map(|_| output.write_all_counted(&[0; 1000]).err());
        assert!(error.unwrap().0.to_string().contains("has read nothing for 1 s"));
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_device_is_written_by_several_recordings() {
        let two = [(); 2].map(|()| Output::create("/dev/null".as_ref()).unwrap());
        two.into_iter().for_each(|mut output| output.write_all_counted(&[0; 1000]).unwrap());
    }
}
