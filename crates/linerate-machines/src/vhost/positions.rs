//! The positions of packed virtqueues, in a file next to the socket: `PATH.rings`. They must outlive a killed process,
//! since the front end's memory does not contain them.
//!
//! ```text
//!   word 0          kind and version of the file
//!   word 8 + n      virtqueue n: base, last index, and the positions between which chains are being exposed; 0: none
//!   word 256 + n    the front end's address of its ring
//! ```
//!
//! The file is mapped, so a position is recorded with one store. The file is removed when the port is closed, unless a
//! front end still has rings; then the next port opened there resumes them.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use linerate_core::error::{Error, Result};
use linerate_core::memory::{DmaArray, Mapping};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::pwrite;

/// The length of the file: one page.
const LEN: usize = 4096;
const WORDS: usize = LEN / size_of::<u64>();
/// The first word: the kind of file, and the format's version.
const MAGIC: u64 = u64::from_le_bytes(*b"lr-vq-02");
/// The first words of the positions and of the rings' addresses.
const FIRST: usize = 8;
const RINGS: usize = 256;

/// The open file.
pub struct PositionFile {
    words: DmaArray<AtomicU64>,
    path: PathBuf,
}

/// The record of one virtqueue in the file.
#[derive(Clone)]
pub struct Record {
    file: Arc<PositionFile>,
    number: usize,
}

/// A recorded position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedPosition {
    /// The base that the front end had set.
    pub base: u16,
    /// The last descriptor's index.
    pub last: u16,
    /// The chains between these positions are used, but may not be exposed.
    pub from: u16,
    pub to: u16,
}

impl PositionFile {
    /// Opens or creates the file that belongs to a socket.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if the file cannot be created, or others can access
    /// it.
    pub fn open(socket: &Path) -> Result<PositionFile> {
        let mut name = socket.as_os_str().to_os_string();
        name.push(".rings");
        let path = PathBuf::from(name);
        let fail = |why: String, mend: &'static str| Error::socket(&path, why, mend);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| fail(format!("cannot open it: {e}"), "choose a path in a folder that you may write to"))?;
        let found = fstat(&file).map_err(|e| Error::system("fstat", e))?;
        // A file with a second link could be another file of this user, linked here by someone else.
        let is_own = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_uid == rustix::process::geteuid().as_raw()
            && found.st_mode & 0o077 == 0
            && found.st_nlink == 1;
        if !is_own || ![0, LEN as i64].contains(&found.st_size) {
            return Err(fail("it is not a ring-position file that only this user can access".to_string(), "remove it"));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| fail("another process uses it".to_string(), "choose another path, or stop that process"))?;
        // The previous process may just have removed the file.
        let there = stat(&path).ok().map(|there| (there.st_dev, there.st_ino));
        if there != Some((found.st_dev, found.st_ino)) {
            return Err(fail("another process has just removed it".to_string(), "open the port again"));
        }
        if found.st_size == 0 {
            let mut page = [0; LEN];
            page[..8].copy_from_slice(&MAGIC.to_le_bytes());
            // Written, not only extended, so that a full disk is noticed here.
            let written = pwrite(&file, &page, 0).map_err(|e| Error::system("pwrite", e))?;
            if written != LEN {
                return Err(fail("it cannot be written".to_string(), "make room on its file system"));
            }
        }
        // SAFETY: the file has `LEN` bytes, and only this user can change it.
        let mapping = Arc::new(unsafe { Mapping::of_device(file, 0, LEN) }?);
        // SAFETY: the mapping is never lent as a slice.
        let words = unsafe { DmaArray::<AtomicU64>::new(&mapping, 0, WORDS) };
        if words[0].load(Relaxed) != MAGIC {
            return Err(fail("it is not a ring-position file".to_string(), "remove it"));
        }
        Ok(PositionFile { words, path })
    }
}

/// Removes the file if no ring is in use.
impl Drop for PositionFile {
    fn drop(&mut self) {
        if self.words[FIRST..RINGS].iter().all(|word| word.load(Relaxed) == 0) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Record {
    /// Returns the record of a virtqueue.
    ///
    /// # Panics
    /// If `number` exceeds the file's capacity.
    pub fn new(file: Arc<PositionFile>, number: usize) -> Record {
        assert!(FIRST + number < RINGS);
        Record { file, number }
    }

    #[inline(always)]
    fn position(&self) -> &AtomicU64 {
        &self.file.words[FIRST + self.number]
    }

    /// Records a position.
    #[inline(always)]
    pub fn store(&self, position: RecordedPosition) {
        let RecordedPosition { base, last, from, to } = position;
        // A position uses all 16 bits, but a last index does not: it is below 2^15.
        let words = [to, from, last | HAS_POSITION, base].map(u64::from);
        let word = words[0] | words[1] << 16 | words[2] << 32 | words[3] << 48;
        self.position().store(word, Relaxed);
    }

    /// Returns the recorded position of the ring at this front-end address, and assigns the record to that ring.
    pub fn load_for(&self, address: u64) -> Option<RecordedPosition> {
        let (position, ring) = (self.position(), &self.file.words[RINGS + self.number]);
        if ring.load(Relaxed) != address {
            // The old position is cleared before the address is stored, so that it is never mistaken for the new
            // ring's.
            position.store(0, Relaxed);
            ring.store(address, Release);
            return None;
        }
        let word = position.load(Relaxed);
        let [to, from, last, base] = [0, 16, 32, 48].map(|shift| (word >> shift) as u16);
        (last & HAS_POSITION != 0).then_some(RecordedPosition { base, last: last & !HAS_POSITION, from, to })
    }

    /// Clears the record: the front end knows the position.
    pub fn forget(&self) {
        self.position().store(0, Relaxed);
    }
}

/// A flag in the last index: the record has a position.
const HAS_POSITION: u16 = 1 << 15;
