//! The rings shared with the kernel: one side produces, the other consumes, each with a counter that only increases
//! (kernel documentation, networking/af_xdp.rst).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linerate_core::error::{Error, Result};
use linerate_core::memory::Mapping;
use linerate_core::ring::Cursor;
use rustix::net::xdp::XdpRingOffset;

/// A ring's memory.
struct Shared {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    descriptors: usize,
    /// 64-bit words of a descriptor.
    words: usize,
    len: u32,
}

/// `XDP_RING_NEED_WAKEUP`
const NEED_WAKEUP: u32 = 1;

impl Shared {
    /// Maps a socket's ring of `len` descriptors; `offset` selects the ring.
    fn map(socket: &OwnedFd, offset: u64, offsets: XdpRingOffset, words: usize, len: u32) -> Result<Shared> {
        let descriptors = offsets.desc as usize;
        let bytes = descriptors + len as usize * words * 8;
        let file = socket.as_fd().try_clone_to_owned().map_err(|error| Error::system("dup of a socket", error))?;
        // SAFETY: the kernel keeps a socket's ring as long as it is mapped.
        let mapping = unsafe { Mapping::of_device(file, offset, bytes) }?;
        let flags = offsets.flags.map_or(0, |flags| flags as usize);
        let (producer, consumer) = (offsets.producer as usize, offsets.consumer as usize);
        Ok(Shared { mapping, producer, consumer, flags, descriptors, words, len })
    }

    /// Returns the descriptor of a counter's value.
    #[inline(always)]
    fn at(&self, counter: u32) -> &[AtomicU64] {
        let index = (counter & (self.len - 1)) as usize;
        // SAFETY: no slices of the memory of the socket's rings are lent.
        unsafe { self.mapping.words(self.descriptors + index * self.words * 8, self.words) }
    }
}

/// A ring filled by this side.
pub struct Producer {
    shared: Shared,
    /// The next descriptor to write, and the kernel's consumer counter as last read.
    cursor: Cursor<u32>,
    /// The producer counter that was last published to the kernel.
    published: u32,
}

impl Producer {
    /// See [`Consumer::map`].
    pub fn map(socket: &OwnedFd, offset: u64, offsets: XdpRingOffset, words: usize, len: u32) -> Result<Producer> {
        let shared = Shared::map(socket, offset, offsets, words, len)?;
        let next = shared.mapping.word(shared.producer).load(Relaxed);
        let consumed = shared.mapping.word(shared.consumer).load(Acquire);
        Ok(Producer { shared, cursor: Cursor::new(next, consumed), published: next })
    }

    /// Returns the count of free descriptors, exact if fewer than `wanted`.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let shared = &self.shared;
        self.cursor.free(shared.len, wanted, || shared.mapping.word(shared.consumer).load(Acquire)).min(shared.len)
    }

    /// Writes the next descriptor's words; there must be room.
    #[inline(always)]
    pub fn push<const WORDS: usize>(&mut self, words: [u64; WORDS]) {
        for (target, word) in self.shared.at(self.cursor.own()).iter().zip(words) {
            target.store(word, Relaxed);
        }
        self.cursor.advance(1);
    }

    /// Publishes the descriptors written. Returns whether there were any.
    #[inline(always)]
    pub fn submit(&mut self) -> bool {
        let next = self.cursor.own();
        let is_new = next != self.published;
        if is_new {
            self.shared.mapping.word(self.shared.producer).store(next, Release);
            self.published = next;
        }
        is_new
    }

    /// Returns the count of descriptors written, modulo 2³².
    pub fn written(&self) -> u32 {
        self.cursor.own()
    }

    /// Returns the count of descriptors that the kernel has not taken yet.
    pub fn waiting(&self) -> u32 {
        self.cursor.own().wrapping_sub(self.shared.mapping.word(self.shared.consumer).load(Relaxed))
    }

    /// Returns whether the kernel must be woken by a system call.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.mapping.word(self.shared.flags).load(Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring filled by the kernel.
pub struct Consumer {
    shared: Shared,
    cursor: Cursor<u32>,
}

impl Consumer {
    /// Maps a ring of a socket: `offset` is its offset in the socket's file (such as `XDP_PGOFF_RX_RING`), `words` the
    /// size of a descriptor.
    pub fn map(socket: &OwnedFd, offset: u64, offsets: XdpRingOffset, words: usize, len: u32) -> Result<Consumer> {
        let shared = Shared::map(socket, offset, offsets, words, len)?;
        let next = shared.mapping.word(shared.consumer).load(Relaxed);
        Ok(Consumer { shared, cursor: Cursor::new(next, next) })
    }

    /// Returns the count of descriptors available, at most the ring's length.
    #[inline(always)]
    pub fn available(&mut self) -> u32 {
        let shared = &self.shared;
        self.cursor.available(|| shared.mapping.word(shared.producer).load(Acquire)).min(shared.len)
    }

    /// Pops the next descriptor's words; it must be available.
    #[inline(always)]
    pub fn pop<const WORDS: usize>(&mut self) -> [u64; WORDS] {
        let descriptor = self.shared.at(self.cursor.own());
        self.cursor.advance(1);
        std::array::from_fn(|n| descriptor[n].load(Relaxed))
    }

    /// Returns the popped descriptors to the kernel.
    #[inline(always)]
    pub fn release(&mut self) {
        self.shared.mapping.word(self.shared.consumer).store(self.cursor.own(), Release);
    }
}
