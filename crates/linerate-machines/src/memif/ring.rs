//! A ring of descriptors, used from either side.
//!
//! ```text
//!   0    cookie (32 bits) | flags | head      the client writes head
//!   64   tail                                 the server writes tail
//!   128  descriptors of 16 bytes: flags | region | length, offset | metadata
//! ```
//!
//! The client hands descriptors over at the head: packets in its send ring, empty buffers in its receive ring. The
//! server returns them at the tail. So in both directions, one index is this side's and the other the peer's. A side
//! may use the descriptors from its index up to the peer's. The client's own index is a full ring ahead.
//!
//! The peer can write anything at any time, so indexes and descriptors are read once, then validated.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU64};

use linerate_core::memory::{Descriptors, DmaArray, Mapping, full_fence};
use linerate_core::ring::{Breach, Cursor};

use super::regions::Regions;

/// The magic number at the beginning of each ring.
const COOKIE: u32 = 0x3E3_1F20;
/// A descriptor's flag: the packet continues in the next one.
pub const NEXT: u16 = 1;
/// A ring's flag: its receiver wants no interrupt.
const MASKED: u16 = 1;
/// The length of a client's buffers; the default of DPDK and VPP.
pub const BUFFER: usize = 2048;
/// The distance between a client's buffers. The extra cache line spreads the buffers' first lines over the full cache.
pub const STRIDE: usize = BUFFER + 64;
/// The largest ring, as a power of two; DPDK's limit.
pub const MOST_LOG2: u8 = 14;

/// Offsets of the header's words, in units of 16 bits.
const FLAGS: usize = 2;
const HEAD: usize = 3;
const TAIL: usize = 32;
/// The number of header words, and the offset of the descriptors in bytes.
const WORDS: usize = 33;
const TABLE: usize = 128;

/// Returns the length of a ring in bytes.
pub const fn bytes_of(size: usize) -> usize {
    TABLE + 16 * size
}

/// The direction of a ring's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Receive,
    Send,
}

/// A ring's location in its connection's memory.
#[derive(Clone, Copy, Debug)]
pub struct RingLocation {
    pub region: u16,
    pub offset: u32,
    pub log2_size: u8,
    pub buffers: Buffers,
}

/// The location of the buffers of a ring's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// As given by the descriptors: this side is the server.
    Named,
    /// In region 0, starting at this offset: a client that copies.
    Own(u32),
    /// In the region [`LENT`]: a client that lends its buffers.
    Lent,
}

/// The region of a client's pool.
pub const LENT: u16 = 1;

/// A part of a packet, or a buffer for a part of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub region: u16,
    pub offset: u32,
    pub len: u32,
    pub has_more: bool,
}

/// One ring.
pub struct MemifRing {
    words: DmaArray<AtomicU16>,
    table: Descriptors,
    regions: Arc<Regions>,
    buffers: Buffers,
    /// The word offsets of the peer's index and of this side's index.
    theirs: usize,
    ours: usize,
    /// How many positions this side's index is ahead of the next descriptor.
    ahead: u16,
    /// The next descriptor to hand over, and the peer's index.
    cursor: Cursor<u16>,
    /// If the connection has ended: the descriptor after the last packet that was sent before, modulo 2^16.
    end: Option<u16>,
}

impl MemifRing {
    /// Locates a ring in the connection's memory, at the descriptor where its last user stopped. Returns `None` if the
    /// ring is not completely inside the memory, or there is no ring at the location.
    pub fn new(regions: &Arc<Regions>, location: RingLocation, next: u16) -> Option<MemifRing> {
        let RingLocation { region, offset, log2_size, buffers } = location;
        let size = 1usize.checked_shl(log2_size.into()).filter(|_| log2_size <= MOST_LOG2)?;
        let mapping = regions.mapping_of(region, offset, bytes_of(size) as u32)?;
        let start = offset as usize;
        if !start.is_multiple_of(8) || mapping.word(start).load(Relaxed) != COOKIE {
            return None;
        }
        let (theirs, ours, ahead) = match buffers {
            Buffers::Named => (HEAD, TAIL, 0),
            Buffers::Own(_) | Buffers::Lent => (TAIL, HEAD, size as u16),
        };
        // SAFETY: a ring's memory is never lent as a slice.
        let (words, table) =
            unsafe { (DmaArray::new(mapping, start, WORDS), DmaArray::new(mapping, start + TABLE, size)) };
        Some(MemifRing {
            words,
            table,
            regions: regions.clone(),
            buffers,
            theirs,
            ours,
            ahead,
            cursor: Cursor::new(next, next),
            end: None,
        })
    }

    /// Writes the header of a client's ring in zeroed memory; also the descriptors, if the client copies.
    pub fn create(mapping: &Arc<Mapping>, location: RingLocation) {
        let size = 1 << location.log2_size;
        let start = location.offset as usize;
        mapping.word(start).store(COOKIE, Relaxed);
        let Buffers::Own(buffers) = location.buffers else { return };
        // SAFETY: a ring's memory is never lent as a slice.
        let table: Descriptors = unsafe { DmaArray::new(mapping, start + TABLE, size) };
        for (number, [first, second]) in table.iter().enumerate() {
            first.store((BUFFER as u64) << 32, Relaxed);
            second.store(u64::from(buffers) + (number * STRIDE) as u64, Relaxed);
        }
    }

    /// Returns the number of descriptors in a send ring that the peer has not taken; 0 if the peer's index is invalid.
    pub fn pending(&self) -> u16 {
        let [head, tail] = [HEAD, TAIL].map(|word| self.words[word].load(Relaxed));
        let (handed_over, size) = (head.wrapping_sub(tail), self.size());
        // On the client's send ring, the client hands over packets. On the server's send ring, the client hands over
        // empty buffers, at first not all of them.
        let pending = if self.ours == HEAD { handed_over } else { size.wrapping_sub(handed_over).min(tail) };
        if pending <= size { pending } else { 0 }
    }

    /// Returns the first descriptor of a new ring: a sending client owns all descriptors, a receiving one owns none.
    pub fn first(location: RingLocation, direction: Direction) -> u16 {
        match (location.buffers, direction) {
            (Buffers::Named, _) | (_, Direction::Receive) => 0,
            (_, Direction::Send) => 0u16.wrapping_sub(1 << location.log2_size),
        }
    }

    /// Returns the next descriptor to use, modulo 2^16.
    pub fn next(&self) -> u16 {
        self.cursor.own()
    }

    /// Returns the number of descriptors.
    pub fn size(&self) -> u16 {
        self.table.len() as u16
    }

    /// Returns the connection's memory.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns the number of descriptors that this side may use.
    ///
    /// # Errors
    /// The peer claims more than the ring has.
    #[inline(always)]
    pub fn ready(&mut self) -> Result<u16, Breach> {
        // Acquire: descriptors and packets are read after the index.
        let (ready, most) = (self.cursor.refresh_available(|| self.words[self.theirs].load(Acquire)), self.size());
        match ready <= most {
            true => Ok(ready),
            false => Err(Breach::Beyond { what: "the count of descriptors", is: ready.into(), most: most.into() }),
        }
    }

    /// Records that the connection has ended. Returns whether packets sent before the end are left; later ones are
    /// ignored.
    pub fn has_remaining(&mut self) -> bool {
        let end = match self.end {
            Some(end) => end,
            None => self.ready().unwrap_or(0).wrapping_add(self.next()),
        };
        self.end = Some(end);
        // A ring is shorter than half of the index range.
        end.wrapping_sub(self.next()) as i16 > 0 && !self.regions.is_broken()
    }

    /// Returns whether the connection has ended.
    pub fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the packet's part in the descriptor `ahead` positions after the next descriptor; `None` if it is not in
    /// the memory. A client that copies uses its own buffer offsets, not those in the descriptors.
    #[inline(always)]
    pub fn packet_part(&self, ahead: u16) -> Option<(Part, &Mapping)> {
        let (number, [first, second]) = self.descriptor(ahead);
        let first = first.load(Relaxed);
        let (len, has_more) = ((first >> 32) as u32, first as u16 & NEXT != 0);
        let part = match self.buffers {
            Buffers::Named => Part { region: (first >> 16) as u16, offset: second.load(Relaxed) as u32, len, has_more },
            Buffers::Own(buffers) if len as usize <= BUFFER => {
                Part { region: 0, offset: buffers + (number * STRIDE) as u32, len, has_more }
            }
            Buffers::Own(_) | Buffers::Lent => return None,
        };
        self.regions.mapping_of(part.region, part.offset, len).map(|mapping| (part, &**mapping))
    }

    /// Returns the buffer of the descriptor `ahead` positions after the next descriptor; `None` if it is not in the
    /// memory, or empty.
    #[inline(always)]
    pub fn empty_buffer(&self, ahead: u16) -> Option<(Part, &Mapping)> {
        match self.buffers {
            Buffers::Named => self.packet_part(ahead).filter(|(part, _)| part.len > 0),
            Buffers::Own(buffers) => {
                let offset = buffers + (self.number(ahead) * STRIDE) as u32;
                let part = Part { region: 0, offset, len: BUFFER as u32, has_more: false };
                self.regions.mapping_of(part.region, offset, part.len).map(|mapping| (part, &**mapping))
            }
            Buffers::Lent => None,
        }
    }

    /// Returns the breach for the descriptor `ahead` positions after the next descriptor, whose buffer is not in the
    /// memory.
    #[cold]
    pub fn outside(&self, ahead: u16) -> Breach {
        let (_, [first, second]) = self.descriptor(ahead);
        let (first, second) = (first.load(Relaxed), second.load(Relaxed));
        Breach::Outside { what: "a buffer", at: second as u32 as u64, len: first >> 32 }
    }

    /// Returns the likely offset of the buffer of the descriptor `ahead` positions after the next descriptor. Only a
    /// prefetch hint: the peer may change it.
    #[inline(always)]
    pub fn hint(&self, ahead: u16) -> usize {
        let (number, [_, second]) = self.descriptor(ahead);
        match self.buffers {
            Buffers::Own(buffers) => buffers as usize + number * STRIDE,
            Buffers::Named | Buffers::Lent => second.load(Relaxed) as u32 as usize,
        }
    }

    /// Returns how many bytes the peer claims to have written to the buffer of the descriptor `ahead` positions after
    /// the next descriptor. Also returns whether the packet continues.
    #[inline(always)]
    pub fn written_len(&self, ahead: u16) -> (u32, bool) {
        let first = self.descriptor(ahead).1[0].load(Relaxed);
        ((first >> 32) as u32, first as u16 & NEXT != 0)
    }

    /// Writes `len` bytes at an offset of the region [`LENT`] to the descriptor `ahead` positions after the next
    /// descriptor: a part of a packet, or room for one. [`advance`](MemifRing::advance) exposes it.
    #[inline(always)]
    pub fn lend(&self, ahead: u16, offset: usize, len: usize, has_more: bool) {
        let (_, [first, second]) = self.descriptor(ahead);
        first.store((len as u64) << 32 | u64::from(LENT) << 16 | u64::from(has_more), Relaxed);
        second.store(offset as u64, Relaxed);
    }

    /// Writes a packet's part of `len` bytes in the descriptor's buffer to the descriptor;
    /// [`advance`](MemifRing::advance) exposes it.
    #[inline(always)]
    pub fn fill(&self, ahead: u16, part: Part, len: u32, has_more: bool) {
        let (_, [first, _]) = self.descriptor(ahead);
        first.store(u64::from(len) << 32 | u64::from(part.region) << 16 | u64::from(has_more), Relaxed);
    }

    /// Resets the next `count` descriptors to empty buffers, for a client to receive again.
    #[inline(always)]
    pub fn empty(&self, count: u16) {
        if let Buffers::Own(_) = self.buffers {
            for ahead in 0..count {
                self.descriptor(ahead).1[0].store((BUFFER as u64) << 32, Relaxed);
            }
        }
    }

    /// Clears the NEXT flags of received descriptors. DPDK's copying client (22.11, and the source of 2025) sets them
    /// but never clears the first one, so the next packet there would seem to continue.
    pub fn unchain(&self, descriptors: Range<u16>) {
        for ahead in descriptors {
            let first = &self.descriptor(ahead).1[0];
            first.store(first.load(Relaxed) & !u64::from(NEXT), Relaxed);
        }
    }

    /// Returns the number of the descriptor `ahead` positions after the next descriptor.
    #[inline(always)]
    pub fn number(&self, ahead: u16) -> usize {
        usize::from(self.next().wrapping_add(ahead)) & (self.table.len() - 1)
    }

    #[inline(always)]
    fn descriptor(&self, ahead: u16) -> (usize, &[AtomicU64; 2]) {
        let number = self.number(ahead);
        (number, &self.table[number])
    }

    /// Hands over `count` descriptors to the peer.
    #[inline(always)]
    pub fn advance(&mut self, count: u16) {
        let next = self.cursor.advance(count);
        self.words[self.ours].store(next.wrapping_add(self.ahead), Release);
    }

    /// Returns whether the receiver wants an interrupt for the descriptors handed over.
    #[inline(always)]
    pub fn wants_interrupt(&self) -> bool {
        // The receiver may have enabled interrupts just now.
        full_fence();
        self.words[FLAGS].load(Relaxed) & MASKED == 0
    }

    /// Requests interrupts from the sender.
    pub fn unmask(&self) {
        self.words[FLAGS].store(0, Relaxed);
        full_fence();
    }

    /// Requests no interrupts from the sender.
    pub fn mask(&self) {
        self.words[FLAGS].store(MASKED, Relaxed);
    }
}
