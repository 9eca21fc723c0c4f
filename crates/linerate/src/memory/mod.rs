//! Packet memory: memory that a device can access, divided into buffers, and the ownership of buffers.
//!
//! - [`Mapping`]: one contiguous stretch of shared memory, of hugepages or ordinary pages
//! - [`DmaSpace`]: mapping memory for a device, and its device addresses
//! - [`DmaArray`]: a part of a mapping shared with a device, such as a ring of [`Descriptors`]
//! - [`Region`]: a mapping divided into buffers of one size
//! - [`Pool`]: the free buffers of a region; `Cache` is one thread's private share of them, and `Depot` exchanges
//!   whole magazines of them between threads without a lock
//!
//! This module knows no ports or cards. It is one of the three places in the library where `unsafe` is allowed (the
//! others are BAR access and rings shared with untrusted processes). Read [`Pool`] next.

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
