//! The front end's memory: where addresses of the guest and of the front end are mapped here.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_core::memory::{MOST_PEER_BYTES, Mapping};
use rustix::fs::fstat;

/// The maximum number of regions of a table; QEMU and DPDK send 8 in one message, and more individually.
pub const MOST_REGIONS: usize = 64;

/// All memory that the front end shares, according to its current table. A queue holds the table that it uses, so the
/// table can be replaced at any time.
#[derive(Clone, Default)]
pub struct GuestMemory {
    regions: Vec<Region>,
}

/// A region of the guest's memory.
#[derive(Clone)]
struct Region {
    /// Its address in the guest.
    guest: u64,
    /// Its address in the front end, as used for rings.
    user: u64,
    len: u64,
    /// Its offset in the file.
    offset: u64,
    /// Its offset in the mapping.
    at: usize,
    mapping: Arc<Mapping>,
    /// The file's device and inode number.
    file: (u64, u64),
    /// How often it was added: QEMU before 8.0 adds and removes each region once per queue pair.
    times: u32,
}

/// A mapped address.
#[derive(Clone, Copy)]
pub struct Mapped<'a> {
    pub mapping: &'a Arc<Mapping>,
    /// The offset in the mapping.
    pub at: usize,
    /// The number of bytes up to the end of the region.
    pub len: usize,
}

/// A region as described by the front end: addresses, length, and offset in its file.
#[derive(Clone, Copy, Debug)]
pub struct RegionDescription {
    pub guest: u64,
    pub len: u64,
    pub user: u64,
    pub offset: u64,
}

impl GuestMemory {
    /// Adds a region, again if it exists; `None` if it is not inside its file, wraps around, overlaps another or is too
    /// large.
    pub fn add(&mut self, description: RegionDescription, file: OwnedFd) -> Option<()> {
        let RegionDescription { guest, len, user, offset } = description;
        let identity = fstat(&file).ok().map(|stat| (stat.st_dev, stat.st_ino))?;
        let is_it = |there: &&mut Region| there.is(description) && (there.offset, there.file) == (offset, identity);
        if let Some(there) = self.regions.iter_mut().find(is_it) {
            there.times = there.times.checked_add(1)?;
            return Some(());
        }
        let end = guest.checked_add(len)?;
        let is_apart = |there: &Region| end <= there.guest || there.guest + there.len <= guest;
        user.checked_add(len)?;
        if len == 0 || self.regions.len() >= MOST_REGIONS || !self.regions.iter().all(is_apart) {
            return None;
        }
        let all: u64 = self.regions.iter().map(|region| region.len).sum();
        if len > MOST_PEER_BYTES - all {
            tracing::warn!("the front end's memory cannot be used: it has more than {MOST_PEER_BYTES} bytes");
            return None;
        }
        let (mapping, at) = Mapping::of_unsealed_peer(file, offset, len)
            .inspect_err(|error| tracing::warn!("the front end's memory cannot be used: {error}"))
            .ok()?;
        let mapping = Arc::new(mapping);
        self.regions.push(Region { guest, user, len, offset, at, mapping, file: identity, times: 1 });
        Some(())
    }

    /// Removes a region as often as it was added; `None` if there is none with these addresses.
    pub fn remove(&mut self, description: RegionDescription) -> Option<()> {
        let at = self.regions.iter().position(|region| region.is(description))?;
        self.regions[at].times -= 1;
        if self.regions[at].times == 0 {
            self.regions.remove(at);
        }
        Some(())
    }

    /// Returns whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Translates a guest address.
    #[inline(always)]
    pub fn translate_guest(&self, address: u64) -> Option<Mapped<'_>> {
        self.regions.iter().find_map(|region| region.mapped(address.wrapping_sub(region.guest)))
    }

    /// Translates a front end's address.
    fn translate_user(&self, address: u64) -> Option<Mapped<'_>> {
        self.regions.iter().find_map(|region| region.mapped(address.wrapping_sub(region.user)))
    }

    /// Converts a front end's address to a guest address.
    pub fn to_guest(&self, address: u64) -> Option<u64> {
        let within = |region: &Region| Some(address.wrapping_sub(region.user)).filter(|&within| within < region.len);
        self.regions.iter().find_map(|region| Some(region.guest + within(region)?))
    }

    /// Translates the front end's address of `len` bytes, if they are contiguous and aligned.
    pub fn translate_array(&self, address: u64, len: usize, align: usize) -> Option<Mapped<'_>> {
        self.translate_user(address).filter(|there| there.len >= len && there.at.is_multiple_of(align))
    }

    /// Returns whether the front end has truncated some of its memory.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }
}

impl Region {
    /// Returns whether the region has these addresses.
    fn is(&self, description: RegionDescription) -> bool {
        (self.guest, self.user, self.len) == (description.guest, description.user, description.len)
    }

    #[inline(always)]
    fn mapped(&self, within: u64) -> Option<Mapped<'_>> {
        (within < self.len).then(|| Mapped {
            mapping: &self.mapping,
            at: self.at + within as usize,
            len: (self.len - within) as usize,
        })
    }
}

#[cfg(all(test, not(miri)))] // the tests ask the kernel for memory files
mod tests {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    use super::*;

    const TIB: u64 = 1 << 40;
    const HUGE: u64 = 2 << 20;

    fn file(len: u64, kind: MemfdFlags) -> OwnedFd {
        let file = memfd_create("front end", MemfdFlags::CLOEXEC | kind).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    /// Describes a region at the same address in the guest and in the front end.
    fn region(at: u64, len: u64, offset: u64) -> RegionDescription {
        RegionDescription { guest: at, len, user: at, offset }
    }

    #[test]
    fn only_described_memory_is_mapped_and_its_sum_is_bounded() {
        let sparse = file(8 * TIB, MemfdFlags::empty());
        let mut memory = GuestMemory::default();
        for n in 0..MOST_REGIONS as u64 {
            assert!(memory.add(region(n * 8192, 4096, n * TIB / 16 + 4096), sparse.try_clone().unwrap()).is_some());
        }
        assert!(memory.regions.iter().all(|region| region.mapping.len() == 4096));
        memory.translate_guest(8192).unwrap().mapping.write(0, &[7; 8]);
        let mut bytes = [0; 8];
        rustix::io::pread(&sparse, &mut bytes[..], TIB / 16 + 4096).unwrap();
        assert_eq!(bytes, [7; 8]);

        let mut memory = GuestMemory::default();
        let mut add = |at, len| memory.add(region(at, len, at), sparse.try_clone().unwrap()).is_some();
        assert_eq!([0, TIB, 2 * TIB].map(|at| add(at, TIB)), [true; 3]);
        assert!(!add(3 * TIB, TIB + 4096) && add(3 * TIB, TIB) && !add(5 * TIB, 4096) && !add(u64::MAX, u64::MAX));
    }

    #[test]
    fn regions_do_not_overlap_by_a_byte() {
        let all = file(1 << 20, MemfdFlags::empty());
        let mut memory = GuestMemory::default();
        let mut add = |at, len| memory.add(region(at, len, 0), all.try_clone().unwrap()).is_some();
        assert!(add(0x10000, 0x1000));
        for (at, len, is_apart) in [
            (0x10FFF, 0x1000, false),
            (0xF001, 0x1000, false),
            (0x10001, 1, false),
            (0x11000, 1, true),
            (0xF000, 0x1000, true),
        ] {
            assert_eq!(add(at, len), is_apart, "{at:#x} {len:#x}");
        }
    }

    /// fallocate(2) creates such a file; mmap(2) and munmap(2) accept only full hugepages.
    #[test]
    fn hugepages_are_mapped_and_replaced_as_a_whole() {
        let odd = file(0, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        fallocate(&odd, FallocateFlags::empty(), 0, HUGE + 4096).unwrap();
        assert!(GuestMemory::default().add(region(0, HUGE + 4096, 0), odd).is_none());

        let file = file(2 * HUGE, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
        let mut memory = GuestMemory::default();
        memory.add(region(0, HUGE + 4096, 8192), file.try_clone().unwrap()).unwrap();
        let mapped = memory.translate_guest(HUGE).unwrap();
        mapped.mapping.write(mapped.at, &[7; 8]);
        assert_eq!((mapped.mapping.len() as u64, mapped.at as u64, mapped.len), (2 * HUGE, HUGE + 8192, 4096));
        ftruncate(&file, 0).unwrap();
        let mut bytes = [1; 8];
        mapped.mapping.read(mapped.at, &mut bytes);
        assert!(bytes == [0; 8] && memory.is_broken());
    }
}
