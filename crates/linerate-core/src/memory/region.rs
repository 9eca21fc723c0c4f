//! A mapping divided into buffers of one size.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Mapping, PageSize};
use crate::error::{Error, ErrorKind, Result};
use crate::slot::{HEADROOM, Slot};

/// The page size of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB hugepages if enough are free, ordinary pages otherwise.
    #[default]
    Auto,
    /// Only this size; an error if too few pages are free.
    Only(PageSize),
}

/// The options of a [`Region`].
///
/// ```
/// # fn main() -> linerate::Result<()> {
/// use linerate::memory::{Pages, PageSize, Region, RegionOptions};
/// let region = Region::new(&RegionOptions {
///     buffers: 1024,
///     buffer_size: 4096,
///     pages: Pages::Only(PageSize::Ordinary),
///     ..RegionOptions::default()
/// })?;
/// assert_eq!((region.buffers(), region.buffer_size()), (1024, 4096));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// The count of buffers.
    pub buffers: usize,
    /// The size of a buffer in bytes, including the headroom: a power of two from 512 to 65,536.
    pub buffer_size: usize,
    /// The page size.
    pub pages: Pages,
    /// The NUMA node; preferably that of the card.
    pub numa_node: Option<u32>,
}

impl Default for RegionOptions {
    /// Returns 16,384 buffers of 2 KiB (32 MiB), on hugepages if enough are free.
    fn default() -> Self {
        RegionOptions { buffers: 16_384, buffer_size: 2048, pages: Pages::Auto, numa_node: None }
    }
}

/// Buffers of one size in one [`Mapping`]: `buffer n` begins at byte `n * buffer_size`.
pub struct Region {
    mapping: Arc<Mapping>,
    buffers: u32,
    shift: u32,
}

impl Region {
    /// Maps a region.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`] for invalid sizes, and any error of [`Mapping::new`].
    pub fn new(options: &RegionOptions) -> Result<Region> {
        Region::make(options, false)
    }

    /// As [`new`](Region::new), with ordinary pages that are allocated on first use: for ports that rarely fill their
    /// buffers. The first use of a page costs a page fault, and a card may not be able to use the pages.
    ///
    /// # Errors
    /// As [`new`](Region::new).
    pub fn lazy(options: &RegionOptions) -> Result<Region> {
        Region::make(options, true)
    }

    fn make(options: &RegionOptions, is_lazy: bool) -> Result<Region> {
        let size = options.buffer_size;
        if !size.is_power_of_two() || !(512..=65_536).contains(&size) {
            return Err(not_possible("buffer_size", size, "a power of two from 512 to 65536"));
        }
        if options.buffers == 0 || options.buffers > (1 << 24) {
            return Err(not_possible("buffers", options.buffers, "1 to 16777216"));
        }
        let bytes = options.buffers * size;
        let mapping = if is_lazy { Mapping::lazy(bytes)? } else { Region::map(options, bytes)? };
        Ok(Region { mapping: Arc::new(mapping), buffers: options.buffers as u32, shift: size.trailing_zeros() })
    }

    fn map(options: &RegionOptions, bytes: usize) -> Result<Mapping> {
        Ok(match options.pages {
            Pages::Only(pages) => Mapping::new(bytes, pages, options.numa_node)?,
            Pages::Auto => match Mapping::new(bytes, PageSize::Huge2M, options.numa_node) {
                Err(error) if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::System) => {
                    Mapping::new(bytes, PageSize::Ordinary, options.numa_node)?
                }
                other => other?,
            },
        })
    }

    /// Returns the count of buffers.
    pub fn buffers(&self) -> usize {
        self.buffers as usize
    }

    /// Returns the length of one buffer in bytes, including the headroom.
    #[inline(always)]
    pub fn buffer_size(&self) -> usize {
        1 << self.shift
    }

    /// Returns the number of bytes after the headroom in one buffer.
    pub fn room(&self) -> usize {
        self.buffer_size() - HEADROOM
    }

    /// Returns log2 of the buffer size: a device address is `base + (buf << shift) + offset`.
    #[inline(always)]
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the size of the memory's pages.
    pub fn pages(&self) -> PageSize {
        self.mapping.pages()
    }

    /// Returns the underlying memory.
    ///
    /// # Safety
    /// The caller does not use it to read or write bytes of packets that have another owner.
    #[inline(always)]
    pub unsafe fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns a view of the buffers' bytes.
    ///
    /// # Safety
    /// The view is only used with slots of this region.
    #[inline(always)]
    pub unsafe fn view(&self) -> View<'_> {
        View { base: self.mapping.base(), shift: self.shift, _region: PhantomData }
    }
}

/// Access to a region's bytes through its slots. Small enough to stay in registers in a loop.
#[derive(Clone, Copy)]
pub struct View<'a> {
    base: NonNull<u8>,
    shift: u32,
    _region: PhantomData<&'a Region>,
}

impl<'a> View<'a> {
    /// Bytes reserved for metadata (notes) at the start of a buffer. The smallest buffer has 512 bytes.
    pub const NOTES: usize = 40;

    /// An empty view, for which there are no slots.
    pub(crate) const EMPTY: View<'static> = View { base: NonNull::dangling(), shift: 0, _region: PhantomData };

    /// Returns the length of one buffer in bytes.
    #[inline(always)]
    pub fn buffer_size(self) -> usize {
        1 << self.shift
    }

    /// Returns the address of the first buffer, for code that may access buffers by number.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn base(self) -> NonNull<u8> {
        self.base
    }

    /// Returns the data of a slot of this region.
    #[inline(always)]
    pub fn bytes(self, slot: &'a Slot) -> &'a [u8] {
        // SAFETY: as in `bytes_mut`, with shared access to the slot.
        unsafe { std::slice::from_raw_parts(self.data(slot), slot.len()) }
    }

    /// Returns the data of a slot of this region.
    #[inline(always)]
    pub fn bytes_mut(self, slot: &'a mut Slot) -> &'a mut [u8] {
        // SAFETY: a slot refers to a buffer of its region, and keeps offset + len within it (its invariants), so the
        // range is inside the mapping, which lives for 'a. A slot has one owner, cannot be copied, and is borrowed
        // uniquely here, so there is no other slice of these bytes. A device has the buffer only while no slot refers
        // to it.
        unsafe { std::slice::from_raw_parts_mut(self.data(slot), slot.len()) }
    }

    /// Copies a slot's data to a free buffer of `there`, and returns the new slot.
    ///
    /// # Safety
    /// The buffer belongs to the region of `there`, and only the caller owns it.
    ///
    /// # Panics
    /// If the data does not fit.
    #[inline(always)]
    pub unsafe fn copy(self, slot: &Slot, there: View<'_>, buf: u32) -> Slot {
        const LINE: usize = 64;
        /// Up to this length, copying cache lines is faster than a call of memcpy. It fits the smallest buffer, after
        /// the headroom.
        const SHORT: usize = 4 * LINE;
        let len = slot.len();
        assert!(HEADROOM + len <= 1 << there.shift, "it does not fit");
        // SAFETY: by the caller's promise; `len` bytes fit, as checked above.
        let copy = unsafe { Slot::new(buf, HEADROOM, len as u16, false) };
        let (from, to) = (self.data(slot), there.data(&copy));
        if len > SHORT || slot.offset() + SHORT > 1 << self.shift {
            // SAFETY: both ranges are inside their buffers (the slots' invariants, and the check above), and no two
            // slots have the same buffer.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            return copy;
        }
        let mut at = 0;
        while at < len {
            // SAFETY: as above: lines up to `SHORT` are inside both buffers. Bytes after the data belong to no packet.
            unsafe {
                to.add(at).cast::<[u8; LINE]>().write_unaligned(from.add(at).cast::<[u8; LINE]>().read_unaligned())
            };
            at += LINE;
        }
        copy
    }

    /// Returns the first bytes of a slot's buffer, which contain the packet's metadata.
    pub fn notes(self, slot: &Slot) -> [u8; View::NOTES] {
        // SAFETY: the bytes are inside the slot's buffer, which is larger; otherwise as in `bytes`.
        unsafe { self.base.as_ptr().add((slot.buf() as usize) << self.shift).cast::<[u8; View::NOTES]>().read() }
    }

    /// Writes metadata at offset `at` of a slot's buffer.
    #[inline(always)]
    pub fn note(self, slot: &mut Slot, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= View::NOTES, "notes beyond their place");
        // SAFETY: the bytes are inside the slot's buffer, which is larger, and the slot is borrowed mutably.
        unsafe {
            let place = self.base.as_ptr().add(((slot.buf() as usize) << self.shift) + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
        }
    }

    #[inline(always)]
    fn data(self, slot: &Slot) -> *mut u8 {
        // SAFETY: inside the mapping, by the slot's invariants. The compiler assumes that each of the two steps stays
        // inside the mapping. So it knows that the pointer is not null, which an iterator would check otherwise.
        unsafe { self.base.add((slot.buf() as usize) << self.shift).add(slot.offset()).as_ptr() }
    }
}

fn not_possible(what: &str, value: usize, allowed: &str) -> Error {
    let why = format!("a region with {what}={value} is not possible: it must be {allowed}");
    Error::new(ErrorKind::BadOption, "", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(buffers: usize, buffer_size: usize) -> Result<Region> {
        let pages = Pages::Only(PageSize::Ordinary);
        Region::new(&RegionOptions { buffers, buffer_size, pages, numa_node: None })
    }

    #[test]
    fn sizes_are_powers_of_two_from_512_to_65536() {
        for size in [512, 1024, 2048, 65_536] {
            assert_eq!(region(4, size).unwrap().buffer_size(), size);
        }
        for size in [0, 256, 3000, 131_072] {
            assert!(region(4, size).map(drop).unwrap_err().with_hint().contains("buffer_size"));
        }
        assert!(region(0, 2048).is_err());
    }

    #[test]
    fn a_slot_reaches_its_own_bytes_only() {
        let region = region(3, 512).unwrap();
        // SAFETY: the region's buffers 1 and 2 have no other slots, and 512 bytes.
        let [mut a, mut b] = [1, 2].map(|buf| unsafe { Slot::new(buf, HEADROOM, 384, false) });
        // SAFETY: the view is only used with these slots.
        let view = unsafe { region.view() };
        view.bytes_mut(&mut a).fill(0xAA);
        view.bytes_mut(&mut b).fill(0xBB);
        assert!(view.bytes(&a).iter().all(|&byte| byte == 0xAA));
        assert!(view.bytes(&b).iter().all(|&byte| byte == 0xBB));
    }
}
