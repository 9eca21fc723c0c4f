//! The card's view of its host: memory mapped at device addresses, and the receivers of its interrupts.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use linerate_cards::pci::{self, Bus, Interrupt};
use linerate_core::error::{Error, Result};
use linerate_core::memory::{Addresses, Contiguous, DeviceAddress, DmaSpace, Mapping};

use super::receivers::Receivers;

/// The card's address space, and the receivers of its interrupts.
///
/// For a driver in this process, device addresses deliberately differ from pointers, and mappings have gaps between
/// them. So confusing the two, or an access beyond a mapping, is detected.
#[derive(Default)]
pub(super) struct Dma {
    maps: RwLock<Maps>,
    receivers: Mutex<Receivers>,
}

/// The number of MSI-X vectors (section 7.3.1).
pub(super) const VECTORS: u16 = 64;

/// The mappings, sorted by address.
#[derive(Default)]
pub(super) struct Maps {
    ranges: Vec<Range>,
    /// The ranges of the last buffer and the last descriptor: the next buffer or descriptor is mostly in the same
    /// range.
    recent: [AtomicUsize; 2],
    /// Hosts choose the addresses; drivers in this process get none.
    is_for_hosts: bool,
}

struct Range {
    start: DeviceAddress,
    len: u64,
    memory: Arc<Mapping>,
    /// The range's offset in `memory`.
    offset: usize,
    /// The card may also write to the range.
    writable: bool,
}

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// The first device address: 64 GiB, so that both halves of an address are used.
const FIRST: DeviceAddress = 0x10_0000_0000;
/// Unmapped bytes after each mapping.
const GAP: DeviceAddress = 1 << 30;

impl Dma {
    /// Reserves the address space for the hosts that the card is served to. Returns false if a driver in this process
    /// has memory in it: a host could name its addresses.
    pub fn reserve_for_hosts(&self) -> bool {
        let mut maps = self.change();
        maps.is_for_hosts |= maps.ranges.is_empty();
        maps.is_for_hosts
    }

    pub fn maps(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mappings for a change, once no other thread uses them.
    pub fn change(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn receivers(&self) -> MutexGuard<'_, Receivers> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most ranges: the default limit of Linux's vfio (`dma_entry_limit` of vfio_iommu_type1).
const MOST_RANGES: usize = 65_535;

impl Maps {
    /// Returns the range that contains `address`, if any. Tries the range `recent` first.
    #[inline(always)]
    fn range(&self, address: DeviceAddress, recent: &AtomicUsize) -> Option<&Range> {
        let contains = |range: &&Range| address.wrapping_sub(range.start) < range.len;
        let range = self.ranges.get(recent.load(Ordering::Relaxed)).filter(contains);
        range.or_else(|| self.search(address, recent))
    }

    #[cold]
    fn search(&self, address: DeviceAddress, recent: &AtomicUsize) -> Option<&Range> {
        let at = self.ranges.partition_point(|range| range.start <= address).checked_sub(1)?;
        recent.store(at, Ordering::Relaxed);
        let range = &self.ranges[at];
        (address - range.start < range.len).then_some(range)
    }

    #[inline(always)]
    fn recent(&self, len: usize) -> &AtomicUsize {
        &self.recent[usize::from(len == DESCRIPTOR)]
    }

    /// Returns the memory that contains `len` bytes from `address` on, and their offset in it. Returns `None` unless
    /// one range maps all of them.
    #[inline(always)]
    pub fn find(&self, address: DeviceAddress, len: usize) -> Option<(&Mapping, usize)> {
        let range = self.range(address, self.recent(len))?;
        let offset = address - range.start;
        (len as u64 <= range.len - offset).then_some((&*range.memory, range.offset + offset as usize))
    }

    /// As [`find`](Maps::find), if the card may write there.
    #[inline(always)]
    pub fn find_writable(&self, address: DeviceAddress, len: usize) -> Option<(&Mapping, usize)> {
        let range = self.range(address, self.recent(len)).filter(|range| range.writable)?;
        let offset = address - range.start;
        (len as u64 <= range.len - offset).then_some((&*range.memory, range.offset + offset as usize))
    }

    /// Splits `len` bytes from `address` on at range boundaries, and calls `piece` with the memory, offset and position
    /// of each part. Returns false, without a call, unless all bytes are mapped.
    fn pieces(
        &self,
        address: DeviceAddress,
        len: usize,
        write: bool,
        mut piece: impl FnMut(&Mapping, usize, std::ops::Range<usize>),
    ) -> bool {
        let parts = || {
            let mut done = 0;
            std::iter::from_fn(move || {
                if done == len {
                    return None;
                }
                let at = address.checked_add(done as u64);
                let range = at.and_then(|at| self.search(at, &self.recent[0])).filter(|range| range.writable || !write);
                let Some(range) = range else {
                    done = len;
                    return Some(None);
                };
                let inside = address + done as u64 - range.start;
                let part = done..len.min(done.saturating_add((range.len - inside) as usize));
                done = part.end;
                Some(Some((&*range.memory, range.offset + inside as usize, part)))
            })
        };
        let all = parts().all(|part| part.is_some());
        if all {
            parts().flatten().for_each(|(memory, offset, part)| piece(memory, offset, part));
        }
        all
    }

    /// Returns whether all of these bytes are mapped, by one or several ranges.
    pub fn covers(&self, address: DeviceAddress, len: usize) -> bool {
        self.pieces(address, len, false, |_, _, _| {})
    }

    /// Reads for the card. Returns false if any byte is not mapped.
    #[inline(always)]
    pub fn read(&self, address: DeviceAddress, bytes: &mut [u8]) -> bool {
        match self.find(address, bytes.len()) {
            Some((memory, offset)) => memory.read(offset, bytes),
            None => return self.read_pieces(address, bytes),
        }
        true
    }

    /// Writes for the card. Returns false, and writes no byte, if any byte is not mapped as writable.
    #[inline(always)]
    pub fn write(&self, address: DeviceAddress, bytes: &[u8]) -> bool {
        match self.find_writable(address, bytes.len()) {
            Some((memory, offset)) => memory.write(offset, bytes),
            None => return self.write_pieces(address, bytes),
        }
        true
    }

    #[cold]
    fn read_pieces(&self, address: DeviceAddress, bytes: &mut [u8]) -> bool {
        self.pieces(address, bytes.len(), false, |memory, offset, part| memory.read(offset, &mut bytes[part]))
    }

    #[cold]
    fn write_pieces(&self, address: DeviceAddress, bytes: &[u8]) -> bool {
        self.pieces(address, bytes.len(), true, |memory, offset, part| memory.write(offset, &bytes[part]))
    }

    /// Maps `len` bytes of memory, from `offset` on, at `start`. Returns false if the addresses are in use, the memory
    /// is too short, a value is not page-aligned, or there are too many ranges.
    pub fn insert(
        &mut self,
        start: DeviceAddress,
        len: u64,
        memory: Arc<Mapping>,
        offset: u64,
        writable: bool,
    ) -> bool {
        const PAGE: u64 = 4096;
        let in_memory = offset.checked_add(len).is_some_and(|end| end <= memory.len() as u64);
        let aligned = [start, len, offset].iter().all(|value| value.is_multiple_of(PAGE));
        let Some(end) = start.checked_add(len).filter(|_| len > 0 && in_memory && aligned) else { return false };
        let at = self.ranges.partition_point(|range| range.start < start);
        let free_before = at.checked_sub(1).is_none_or(|n| self.ranges[n].start + self.ranges[n].len <= start);
        let free_after = self.ranges.get(at).is_none_or(|next| end <= next.start);
        let fits = free_before && free_after && self.ranges.len() < MOST_RANGES;
        if fits {
            self.ranges.insert(at, Range { start, len, memory, offset: offset as usize, writable });
        }
        fits
    }

    /// Removes all mappings within `len` bytes from `start` on, and returns their total length. Returns `None`, and
    /// removes no mapping, if that would split one.
    pub fn remove(&mut self, start: DeviceAddress, len: u64) -> Option<u64> {
        let end = start.checked_add(len)?;
        let first = self.ranges.partition_point(|range| range.start + range.len <= start);
        let last = self.ranges.partition_point(|range| range.start < end);
        let inside = self.ranges.get(first..last)?;
        if inside.iter().any(|range| range.start < start || range.start + range.len > end) {
            return None;
        }
        Some(self.ranges.drain(first..last).map(|range| range.len).sum())
    }

    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

// SAFETY: the model acts as a device: it accesses only memory that the driver gives it.
unsafe impl DmaSpace for Dma {
    fn map(&self, memory: &Arc<Mapping>) -> Result<Addresses> {
        let mut maps = self.change();
        if maps.is_for_hosts {
            return Err(Error::port_in_use("the model"));
        }
        let after = maps.ranges.last().map_or(0, |last| (last.start + last.len).next_multiple_of(GAP) + GAP);
        let address = after.max(FIRST);
        maps.insert(address, memory.len() as u64, memory.clone(), 0, true);
        Ok(Addresses::Contiguous(Contiguous(address)))
    }

    unsafe fn unmap(&self, address: DeviceAddress) {
        self.change().ranges.retain(|range| range.start != address);
    }
}

impl Bus for Dma {
    /// Does nothing: the model needs no permission to access mapped memory.
    unsafe fn allow_dma(&self) -> Result<()> {
        Ok(())
    }

    fn interrupts(&self, count: u16) -> Result<Vec<Interrupt>> {
        let ours = pci::interrupts("the model", count, VECTORS.into())?;
        let theirs = ours.iter().map(Interrupt::try_clone).collect::<Result<Vec<_>>>()?;
        let mut receivers = self.receivers();
        for (vector, interrupt) in ours.into_iter().enumerate() {
            receivers.set_vector(vector, Some(interrupt));
        }
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::memory::PageSize;

    use super::*;

    fn memory(pages: usize) -> Arc<Mapping> {
        Arc::new(Mapping::new(pages * 4096, PageSize::Ordinary, None).unwrap())
    }

    #[test]
    fn a_buffer_may_cross_ranges() {
        let (mut maps, first, second) = (Maps::default(), memory(2), memory(2));
        assert!(maps.insert(0x10000, 4096, first.clone(), 4096, true));
        assert!(maps.insert(0x11000, 4096, second.clone(), 0, true));
        let bytes: Vec<u8> = (0..200u8).collect();
        assert!(maps.write(0x10FA0, &bytes));
        let mut back = [0; 200];
        assert!(maps.read(0x10FA0, &mut back));
        assert_eq!(back[..], bytes);
        let (mut end, mut start) = ([0; 96], [0; 104]);
        first.read(8192 - 96, &mut end);
        second.read(0, &mut start);
        assert_eq!((&end[..], &start[..]), (&bytes[..96], &bytes[96..]));
        assert!(maps.find(0x10FA0, 200).is_none() && maps.covers(0x10FA0, 200) && !maps.covers(0x11FF0, 17));
        // No byte is written unless all bytes are mapped.
        assert!(!maps.write(0x11FF0, &[1; 17]));
        assert_eq!(
            maps.find(0x11FF0, 8).map(|(memory, at)| {
                let mut bytes = [0; 8];
                memory.read(at, &mut bytes);
                u64::from_le_bytes(bytes)
            }),
            Some(0)
        );
    }

    #[test]
    fn the_number_of_mappings_is_bounded() {
        let (mut maps, memory) = (Maps::default(), memory(1));
        let mut insert = |n: u64| maps.insert(n << 12, 4096, memory.clone(), 0, true);
        let first_refused = (0..).find(|&n| !insert(n)).unwrap();
        assert_eq!(first_refused, MOST_RANGES as u64);
        assert_eq!(maps.remove(0, 4096), Some(4096));
        assert!(maps.insert(first_refused << 12, 4096, memory.clone(), 0, true));
    }

    /// A host chooses the addresses that a served card accesses.
    #[test]
    fn a_host_s_card_has_no_memory_of_drivers_in_this_process() {
        let (served, driven) = (Dma::default(), Dma::default());
        let address = driven.map(&memory(1)).unwrap().at(0);
        assert!(served.reserve_for_hosts() && served.reserve_for_hosts() && !driven.reserve_for_hosts());
        assert_eq!(served.map(&memory(1)).map(drop).unwrap_err().kind(), linerate_core::ErrorKind::InUse);
        // SAFETY: no device has the address.
        unsafe { driven.unmap(address) };
        assert!(driven.reserve_for_hosts());
    }

    #[test]
    fn invalid_mappings_are_refused() {
        let (mut maps, memory) = (Maps::default(), memory(4));
        assert!(maps.insert(0x10000, 0x2000, memory.clone(), 0, true));
        for (start, len, offset) in [
            (0x11000, 0x1000, 0),
            (0xF000, 0x2000, 0),
            (0x20000, 0x5000, 0),
            (0x20000, 0x1000, 0x4000),
            (0x20000, 0, 0),
            (0x20010, 0x1000, 0),
            (0x20000, 0x1000, 8),
            (0x20000, 0x1000, u64::MAX - 4095),
            (u64::MAX - 0xFFF, 0x1000, 0),
        ] {
            assert!(!maps.insert(start, len, memory.clone(), offset, true), "{start:#x} {len:#x} {offset:#x}");
        }
        assert!(maps.insert(0x12000, 0x1000, memory.clone(), 0, false));
        assert!(maps.read(0x12000, &mut [0; 8]) && !maps.write(0x12000, &[0; 8]) && !maps.write(0x11FFC, &[0; 8]));
        assert_eq!(maps.remove(0x10000, 0x1000), None);
        assert_eq!(maps.remove(0x10000, 0x3000), Some(0x3000));
        assert_eq!(maps.remove(0x10000, 0x3000), Some(0));
        assert_eq!(maps.remove(u64::MAX, 2), None);
    }
}
