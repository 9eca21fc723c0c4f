//! Where packets live: memory that a device can reach, cut into buffers, and who holds which.
//!
//! - [`Mapping`]: one contiguous stretch of shared memory, of hugepages or ordinary pages
//! - [`DmaSpace`]: how a device comes to see a mapping, and under which addresses
//! - [`DmaArray`]: a mapping's part that a device reads and writes, too, as a ring of [`Descriptors`]
//! - [`Region`]: a mapping cut into buffers of one size
//! - [`Pool`]: the free buffers of a region; `Cache` is one thread's private share of them,
//!   and `Depot` where whole magazines of them change hands without a lock
//!
//! This room knows nothing of ports or cards. It is one of the three places in the library where
//! `unsafe` is allowed (the others are BAR access and rings shared with strangers).
//! Read [`Pool`] next.

mod addresses;
mod depot;
mod dma;
mod fence;
mod mapping;
mod placement;
mod pool;
mod region;

pub(crate) use addresses::Locate;
pub use addresses::{Addresses, Contiguous, Paged};
#[cfg(loom)]
pub use depot::Depot;
pub use dma::{Descriptors, DeviceAddress, DmaArray, DmaMap, DmaSpace, Word};
pub(crate) use fence::full_fence;
pub use mapping::{Mapping, PageSize};
pub(crate) use placement::Placement;
pub use pool::Pool;
pub(crate) use pool::{Cache, Reservation};
pub(crate) use region::View;
pub use region::{Pages, Region, RegionOptions};
