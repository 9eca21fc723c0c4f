//! The front end's memory: what addresses of the guest and of the front end are here.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::fstat;

use crate::memory::Mapping;

/// The most regions of a table; QEMU and DPDK have 8 in one message, and more by single ones.
pub const MOST_REGIONS: usize = 64;

/// All memory that the front end shares, as its current table has it. A queue keeps the table that it works with, so it can
/// be replaced at any time.
#[derive(Clone, Default)]
pub struct GuestMemory {
    regions: Vec<Region>,
}

/// A stretch of the guest's memory.
#[derive(Clone)]
struct Region {
    /// Its address in the guest.
    guest: u64,
    /// Its address in the front end, which names rings by it.
    user: u64,
    len: u64,
    /// Its first byte in the mapping.
    offset: u64,
    mapping: Arc<Mapping>,
    /// The device and the number of its file.
    file: (u64, u64),
    /// How often it was added: QEMU before 8.0 adds each once for each pair of queues, and so it removes them.
    times: u32,
}

/// A stretch of memory that is there.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub mapping: &'a Arc<Mapping>,
    /// The first byte in the mapping.
    pub at: usize,
    /// The bytes up to the end of its region.
    pub len: usize,
}

/// A region, as the front end describes it: addresses, length, and where it begins in its file.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    pub guest: u64,
    pub len: u64,
    pub user: u64,
    pub offset: u64,
}

impl GuestMemory {
    /// Adds a region, which may be there already; `None` if it is not inside its file, wraps around, or overlaps another.
    pub fn add(&mut self, described: Described, file: OwnedFd) -> Option<()> {
        let Described { guest, len, user, offset } = described;
        let identity = fstat(&file).ok().map(|stat| (stat.st_dev, stat.st_ino))?;
        let is_it = |there: &&mut Region| there.is(described) && (there.offset, there.file) == (offset, identity);
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
        let mapping = Mapping::of_unsealed_peer(file)
            .inspect_err(|error| tracing::warn!("the front end's memory cannot be used: {error}"))
            .ok()?;
        if offset.checked_add(len)? > mapping.len() as u64 {
            return None;
        }
        self.regions.push(Region { guest, user, len, offset, mapping: Arc::new(mapping), file: identity, times: 1 });
        Some(())
    }

    /// Removes the region of these addresses, if it was added no more often; `None` if there is none.
    pub fn remove(&mut self, described: Described) -> Option<()> {
        let at = self.regions.iter().position(|region| region.is(described))?;
        self.regions[at].times -= 1;
        if self.regions[at].times == 0 {
            self.regions.remove(at);
        }
        Some(())
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns where the guest's address is.
    #[inline(always)]
    pub fn guest(&self, address: u64) -> Option<Place<'_>> {
        self.regions.iter().find_map(|region| region.place(address.wrapping_sub(region.guest)))
    }

    /// Returns where the front end's address is.
    fn user(&self, address: u64) -> Option<Place<'_>> {
        self.regions.iter().find_map(|region| region.place(address.wrapping_sub(region.user)))
    }

    /// Returns the guest's address of a front end's address.
    pub fn to_guest(&self, address: u64) -> Option<u64> {
        let within = |region: &Region| Some(address.wrapping_sub(region.user)).filter(|&within| within < region.len);
        self.regions.iter().find_map(|region| Some(region.guest + within(region)?))
    }

    /// Returns where `len` bytes at the front end's address are, if they are one stretch, and aligned.
    pub fn array(&self, address: u64, len: usize, align: usize) -> Option<Place<'_>> {
        self.user(address).filter(|there| there.len >= len && there.at.is_multiple_of(align))
    }

    /// Returns whether the front end has taken some of its memory away.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }
}

impl Region {
    /// Returns whether these are its addresses.
    fn is(&self, described: Described) -> bool {
        (self.guest, self.user, self.len) == (described.guest, described.user, described.len)
    }

    #[inline(always)]
    fn place(&self, within: u64) -> Option<Place<'_>> {
        (within < self.len).then(|| Place {
            mapping: &self.mapping,
            at: (self.offset + within) as usize,
            len: (self.len - within) as usize,
        })
    }
}
