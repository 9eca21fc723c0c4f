//! The places of packed virtqueues, in a file beside the socket: `PATH.rings`. They outlive a process that is killed, since no
//! memory of the front end has them.
//!
//! ```text
//!   word 0          what the file is
//!   word 8 + n      virtqueue n: base, last index, and the places between which chains are being exposed; 0: none
//!   word 256 + n    where the front end has its ring
//! ```
//!
//! The file is mapped: a place is kept with one store. It is removed when the port is closed, unless a front end still has rings:
//! the port that is opened there next goes on with them.
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
const WHAT: u64 = u64::from_le_bytes(*b"lr-vq-02");
/// The words of virtqueue 0: its place, and its ring's address.
const FIRST: usize = 8;
const RINGS: usize = 256;

/// The file, open.
pub struct Places {
    words: DmaArray<AtomicU64>,
    path: PathBuf,
}

/// The place of one virtqueue in the file.
#[derive(Clone)]
pub struct Record {
    places: Arc<Places>,
    number: usize,
}

/// The record of a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The place that the front end had named.
    pub base: u16,
    /// The last descriptor's index.
    pub last: u16,
    /// The chains between these places are used, and perhaps not yet exposed.
    pub from: u16,
    pub to: u16,
}

impl Places {
    /// Opens the file of a socket, or creates it.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if it cannot be created, or is not this user's own.
    pub fn open(socket: &Path) -> Result<Places> {
        let mut name = socket.as_os_str().to_os_string();
        name.push(".rings");
        let path = PathBuf::from(name);
        let fail = |why: String, mend: &'static str| Error::socket(&path, why, mend);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| fail(format!("cannot open it: {e}"), "choose a path in a folder that you may write to"))?;
        let found = fstat(&file).map_err(|e| Error::system("fstat", e))?;
        // Another name of it would be another file of this user's, which a stranger has linked.
        let is_own = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_uid == rustix::process::geteuid().as_raw()
            && found.st_mode & 0o077 == 0
            && found.st_nlink == 1;
        if !is_own || ![0, LEN as i64].contains(&found.st_size) {
            return Err(fail("it is no file of places of this user's alone".to_string(), "remove it"));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| fail("another process uses it".to_string(), "choose another path, or stop that process"))?;
        // The process before this one may just have removed it.
        let there = stat(&path).ok().map(|there| (there.st_dev, there.st_ino));
        if there != Some((found.st_dev, found.st_ino)) {
            return Err(fail("another process has removed it just now".to_string(), "open the port again"));
        }
        if found.st_size == 0 {
            let mut page = [0; LEN];
            page[..8].copy_from_slice(&WHAT.to_le_bytes());
            // Written, not only made longer: a full disk is noticed here.
            let written = pwrite(&file, &page, 0).map_err(|e| Error::system("pwrite", e))?;
            if written != LEN {
                return Err(fail("it cannot be written".to_string(), "make room on its file system"));
            }
        }
        let mapping = Arc::new(Mapping::of_device(file, 0, LEN)?);
        // SAFETY: nothing of it is lent as a slice.
        let words = unsafe { DmaArray::<AtomicU64>::new(&mapping, 0, WORDS) };
        if words[0].load(Relaxed) != WHAT {
            return Err(fail("it is no file of places".to_string(), "remove it"));
        }
        Ok(Places { words, path })
    }
}

/// Removes the file if no ring is in use.
impl Drop for Places {
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
    /// If the file has no room for as many.
    pub fn new(places: Arc<Places>, number: usize) -> Record {
        assert!(FIRST + number < RINGS);
        Record { places, number }
    }

    #[inline(always)]
    fn place(&self) -> &AtomicU64 {
        &self.places.words[FIRST + self.number]
    }

    /// Keeps a place.
    #[inline(always)]
    pub fn keep(&self, kept: Kept) {
        let Kept { base, last, from, to } = kept;
        // A place has no bit to spare, but a last index has: it is below 2^15.
        let words = [to, from, last | IS_THERE, base].map(u64::from);
        let word = words[0] | words[1] << 16 | words[2] << 32 | words[3] << 48;
        self.place().store(word, Relaxed);
    }

    /// Returns what is kept of the ring that the front end has at this address. From here on the record is that ring's.
    pub fn kept_of(&self, address: u64) -> Option<Kept> {
        let (place, ring) = (self.place(), &self.places.words[RINGS + self.number]);
        if ring.load(Relaxed) != address {
            // In this order: the place is never taken for another ring's.
            place.store(0, Relaxed);
            ring.store(address, Release);
            return None;
        }
        let word = place.load(Relaxed);
        let [to, from, last, base] = [0, 16, 32, 48].map(|shift| (word >> shift) as u16);
        (last & IS_THERE != 0).then_some(Kept { base, last: last & !IS_THERE, from, to })
    }

    /// Forgets the place: the front end knows it.
    pub fn forget(&self) {
        self.place().store(0, Relaxed);
    }
}

/// In the last index: there is a place.
const IS_THERE: u16 = 1 << 15;
