//! The log of a live migration: a bit for each page of the guest's memory, set after this side has written to the page.
//! The front end clears bits, and copies these pages again.
//!
//! ```text
//!   page n of the guest:   bit n % 64 of word n / 64
//! ```
//!
//! Addresses beyond the end of the log are not logged: the front end chose the size of the log, and only its own guest
//! is affected.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;

use linerate_core::memory::{DmaArray, MOST_PEER_BYTES, Mapping};

/// Bytes per bit of the log, whatever the guest's page size.
const PAGE: u64 = 4096;
/// The longest log: for all memory that a front end can share.
const MOST_BYTES: u64 = MOST_PEER_BYTES / PAGE / 8;

/// A log, in memory that the front end shares.
pub struct Log {
    words: DmaArray<AtomicU64>,
    mapping: Arc<Mapping>,
}

impl Log {
    /// Maps the log of `size` bytes at `offset` of a file; `None` if the log is outside the file, unaligned, or cannot
    /// be mapped.
    pub fn new(file: OwnedFd, size: u64, offset: u64) -> Option<Log> {
        const WORD: u64 = size_of::<u64>() as u64;
        if !offset.is_multiple_of(WORD) || !(WORD..=MOST_BYTES).contains(&size) {
            return None;
        }
        let (mapping, at) = Mapping::of_unsealed_peer(file, offset, size)
            .inspect_err(|error| tracing::warn!("the front end's log cannot be used: {error}"))
            .ok()?;
        let mapping = Arc::new(mapping);
        // SAFETY: the mapping is never lent as a slice.
        let words = unsafe { DmaArray::new(&mapping, at, (size / WORD) as usize) };
        Some(Log { words, mapping })
    }

    /// Marks `len` bytes at a guest address as written.
    pub fn mark(&self, address: u64, len: usize) {
        let Some(last) = (len as u64).checked_sub(1).map(|rest| address.saturating_add(rest)) else { return };
        for page in address / PAGE..=last / PAGE {
            let Some(word) = self.words.get((page / 64) as usize) else { return };
            // Release: after the write to the page. The bit is written even if it is already set, because the front end
            // may be clearing it.
            word.fetch_or(1 << (page % 64), Release);
        }
    }

    /// Returns whether the front end has truncated the log.
    pub fn is_broken(&self) -> bool {
        self.mapping.is_broken()
    }
}
