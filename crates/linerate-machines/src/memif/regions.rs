//! The memory of a connection, all created by the client. The server must expect it to be truncated at any time.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_core::error::Result;
use linerate_core::memory::{Mapping, PageSize};

/// The maximum number of regions of a connection.
pub const MOST_REGIONS: usize = 64;
/// The maximum length of a region: descriptors have 32-bit offsets.
const MOST_BYTES: u64 = 1 << 32;

/// The regions of a connection, by index.
#[derive(Default)]
pub struct Regions(Vec<Region>);

struct Region {
    mapping: Arc<Mapping>,
    /// The number of bytes that may be used.
    len: u64,
}

impl Regions {
    /// Adds a client's region; `None` if the index is not the next one, or the region is not inside its file.
    pub fn add(&mut self, index: u16, len: u64, file: OwnedFd) -> Option<()> {
        if usize::from(index) != self.0.len() || self.0.len() >= MOST_REGIONS {
            return None;
        }
        // Descriptors cannot address more.
        let len = len.min(MOST_BYTES);
        let (mapping, _) = Mapping::of_unsealed_peer(file, 0, len)
            .inspect_err(|error| tracing::warn!("the client's memory cannot be used: {error}"))
            .ok()?;
        self.0.push(Region { mapping: Arc::new(mapping), len });
        Some(())
    }

    /// Creates a client's memory: a region of `len` zero bytes, followed by the region of the packets that it lends. A
    /// server cannot truncate either.
    ///
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if there is no memory.
    pub fn own(len: usize, lent: Option<&Arc<Mapping>>) -> Result<Regions> {
        let mapping = Arc::new(Mapping::new(len, PageSize::Ordinary, None)?);
        let lent = lent.map(|mapping| Region { mapping: mapping.clone(), len: mapping.len() as u64 });
        Ok(Regions([Region { mapping, len: len as u64 }].into_iter().chain(lent).collect()))
    }

    /// Returns whether descriptors can address all packets of a client's memory.
    pub fn can_lend(mapping: &Mapping) -> bool {
        mapping.len() as u64 <= MOST_BYTES
    }

    /// Returns the regions and their lengths, to be sent to the server.
    pub fn shared(&self) -> impl Iterator<Item = (&Arc<Mapping>, u64)> {
        self.0.iter().map(|region| (&region.mapping, region.len))
    }

    /// Returns the region that has `len` bytes at `offset`; `None` if there is none.
    #[inline(always)]
    pub fn mapping_of(&self, region: u16, offset: u32, len: u32) -> Option<&Arc<Mapping>> {
        let region = self.0.get(usize::from(region))?;
        (u64::from(offset) + u64::from(len) <= region.len).then_some(&region.mapping)
    }

    /// Returns whether the client has truncated some of its memory.
    #[inline(always)]
    pub fn is_broken(&self) -> bool {
        self.0.iter().any(|region| region.mapping.is_broken())
    }
}
