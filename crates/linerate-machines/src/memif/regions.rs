//! The memory of a connection: the client has made all of it. At the server it may go away at any time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_core::error::Result;
use linerate_core::memory::{Mapping, PageSize};

/// The most regions of a connection.
pub const MOST_REGIONS: usize = 64;
/// The most bytes of a region: descriptors name places by 32 bits.
const MOST_BYTES: u64 = 1 << 32;

/// The regions of a connection, by index.
#[derive(Default)]
pub struct Regions(Vec<Region>);

struct Region {
    mapping: Arc<Mapping>,
    /// The bytes that may be used.
    len: u64,
}

impl Regions {
    /// Adds a region of the client's; `None` if the index is not the next one, or the region is not inside its file.
    pub fn add(&mut self, index: u16, len: u64, file: OwnedFd) -> Option<()> {
        if usize::from(index) != self.0.len() || self.0.len() >= MOST_REGIONS {
            return None;
        }
        // More cannot be named.
        let len = len.min(MOST_BYTES);
        let (mapping, _) = Mapping::of_unsealed_peer(file, 0, len)
            .inspect_err(|error| tracing::warn!("the client's memory cannot be used: {error}"))
            .ok()?;
        self.0.push(Region { mapping: Arc::new(mapping), len });
        Some(())
    }

    /// Creates the memory of a client: one region of `len` bytes, all zeros, and behind it that of the packets that it lends. A
    /// server cannot truncate either.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) without memory.
    pub fn own(len: usize, lent: Option<&Arc<Mapping>>) -> Result<Regions> {
        let mapping = Arc::new(Mapping::new(len, PageSize::Ordinary, None)?);
        let lent = lent.map(|mapping| Region { mapping: mapping.clone(), len: mapping.len() as u64 });
        Ok(Regions([Region { mapping, len: len as u64 }].into_iter().chain(lent).collect()))
    }

    /// Returns whether all packets of a client's memory can be lent.
    pub fn can_lend(mapping: &Mapping) -> bool {
        mapping.len() as u64 <= MOST_BYTES
    }

    /// Returns the regions of this side's own, and their lengths.
    pub fn shared(&self) -> impl Iterator<Item = (&Arc<Mapping>, u64)> {
        self.0.iter().map(|region| (&region.mapping, region.len))
    }

    /// Returns the region that has `len` bytes at `offset`; `None` if there is none.
    #[inline(always)]
    pub fn place(&self, region: u16, offset: u32, len: u32) -> Option<&Arc<Mapping>> {
        let region = self.0.get(usize::from(region))?;
        (u64::from(offset) + u64::from(len) <= region.len).then_some(&region.mapping)
    }

    /// Returns whether the client has taken some of its memory away.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        self.0.iter().any(|region| region.mapping.is_broken())
    }
}
