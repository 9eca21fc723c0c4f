//! Memory that is shared with another process. Its contents are untrusted; `layout` defines where objects are.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use linerate_core::error::{Error, Result};
use linerate_core::memory::{HUGETLBFS_MAGIC, Mapping};
use serde::{Deserialize, Serialize};

/// The location of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Offset of the first buffer in the memory, in bytes.
    pub at: usize,
    /// Bytes per buffer.
    pub size: usize,
    /// The number of buffers. The first two are not used, as in netmap.
    pub count: usize,
}

/// The first buffer that a slot may name.
pub const FIRST_BUFFER: u32 = 2;

/// A mapping of memory that this or another process created.
pub struct SharedMapping {
    /// All of it.
    pub mapping: Mapping,
    /// The buffers in it.
    pub buffers: Buffers,
}

impl SharedMapping {
    /// Maps memory that another process created.
    ///
    /// # Errors
    /// [`ErrorKind::BadPeer`](linerate_core::ErrorKind::BadPeer) if the buffers are outside the memory,
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if it is not sealed against shrinking.
    pub fn of_peer(file: OwnedFd, buffers: Buffers) -> Result<Arc<SharedMapping>> {
        // The owner can punch a hole into the file. The next access then needs a free hugepage, and without one the
        // kernel sends SIGBUS. An ordinary page is simply allocated again.
        let kind = rustix::fs::fstatfs(&file).map_err(|error| Error::system("fstatfs", error))?.f_type;
        if kind as u64 == HUGETLBFS_MAGIC {
            return Err(Error::bad_peer("its memory is of hugepages, which it can remove"));
        }
        let mapping = Mapping::of_peer(file)?;
        let end = buffers.count.checked_mul(buffers.size).and_then(|len| len.checked_add(buffers.at));
        if end.is_none_or(|end| end > mapping.len()) || !(64..=65536).contains(&buffers.size) {
            return Err(Error::bad_peer("its buffers are outside its memory"));
        }
        Ok(Arc::new(SharedMapping { mapping, buffers }))
    }

    /// Returns the location of a buffer; `None` if there is no such buffer.
    #[inline(always)]
    pub fn buffer(&self, number: u32) -> Option<usize> {
        let is_there = number >= FIRST_BUFFER && (number as usize) < self.buffers.count;
        is_there.then(|| self.buffers.at + number as usize * self.buffers.size)
    }

    /// Duplicates the memory's descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no descriptors left.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        self.as_fd().try_clone_to_owned().map_err(|error| Error::system("dup of a descriptor", error))
    }
}

/// Reads the bytes of several parts in order.
pub struct Cursor<'a> {
    parts: &'a [(usize, usize)],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(parts: &'a [(usize, usize)]) -> Cursor<'a> {
        Cursor { parts, at: 0 }
    }

    /// Copies the next bytes. The parts must contain at least as many.
    #[inline(always)]
    pub fn read(&mut self, memory: &Mapping, mut target: &mut [u8]) {
        while !target.is_empty() {
            let (begin, len) = self.parts[0];
            let (now, later) = target.split_at_mut(target.len().min(len - self.at));
            memory.read(begin + self.at, now);
            self.at += now.len();
            target = later;
            if self.at == len {
                (self.parts, self.at) = (&self.parts[1..], 0);
            }
        }
    }
}

/// Writes the bytes of a packet's segments in order.
pub struct Segments<'a, S> {
    /// The rest of the current segment.
    pub begun: &'a [u8],
    pub segments: S,
}

impl<'a, S: Iterator<Item = &'a [u8]>> Segments<'a, S> {
    /// Copies the next `len` bytes to `at`. The segments must contain at least as many.
    #[inline(always)]
    pub fn write(&mut self, memory: &Mapping, at: usize, len: usize) {
        let mut done = 0;
        while done < len {
            if self.begun.is_empty() {
                self.begun = self.segments.next().unwrap_or_default();
            }
            let fits = self.begun.len().min(len - done);
            memory.write(at + done, &self.begun[..fits]);
            (done, self.begun) = (done + fits, &self.begun[fits..]);
        }
    }
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.file()
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::PageSize;

    use super::*;

    #[test]
    fn memory_that_its_owner_can_remove_is_refused() {
        let message = |file: OwnedFd| {
            let buffers = Buffers { at: 0, size: 2048, count: 16 };
            SharedMapping::of_peer(file, buffers).map(drop).unwrap_err().with_hint()
        };
        let plain = rustix::fs::memfd_create("peer", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 1 << 20).unwrap();
        assert!(message(plain).contains("not sealed against shrinking"));
        let huge = Mapping::new(2 << 20, PageSize::Huge2M, None).unwrap();
        assert!(message(huge.file().try_clone_to_owned().unwrap()).contains("of hugepages"));
    }

    #[test]
    fn buffers_are_inside_their_memory() {
        let mapping = Mapping::lazy(1 << 20).unwrap();
        let of = |at: usize, size: usize, count: usize| {
            let file = mapping.file().try_clone_to_owned().unwrap();
            SharedMapping::of_peer(file, Buffers { at, size, count })
        };
        for (at, size, count) in [(0, 2048, 512), (4096, 2048, 510), (0, 64, 16_384), (0, 65_536, 16), (1 << 20, 64, 0)]
        {
            assert!(of(at, size, count).is_ok(), "{count} of {size} at {at}");
        }
        let beyond = [(1, 2048, 512), (0, 2048, 513), (usize::MAX, 2048, 1), (0, 2048, usize::MAX), (1 << 20, 64, 1)];
        let sizes = [(0, 0, 512), (0, 63, 512), (0, 65_537, 1)];
        for (at, size, count) in beyond.into_iter().chain(sizes) {
            let error = of(at, size, count).map(drop).unwrap_err();
            assert!(error.kind() == linerate_core::ErrorKind::BadPeer, "{count} of {size} at {at}: {error}");
        }
        let memory = of(4096, 2048, 16).unwrap();
        let places = [0, 1, 2, 15, 16, u32::MAX].map(|number| memory.buffer(number));
        assert_eq!(places, [None, None, Some(8192), Some(4096 + 15 * 2048), None, None]);
    }
}
