//! Packet memory: memory that a device can access, its buffers, and who owns each buffer.
//!
//! - [`Mapping`]: one contiguous block of shared memory, of hugepages or ordinary pages; `page_size`: their sizes;
//!   `racing`: copies that tolerate other users of the memory; `fault`: memory that another process removes
//! - [`DmaSpace`]: mapping memory for a device, and its device addresses; `addresses`: of many buffers at a time
//! - [`DmaArray`]: a part of a mapping shared with a device, such as a ring of [`Descriptors`]
//! - [`Region`]: a mapping divided into buffers of one size; `placement`: where in a buffer received data begins
//! - [`Pool`]: the free buffers of a region; a `Cache` holds some of them for one thread, and the `Depot` exchanges
//!   magazines of buffers between threads without a lock
//! - `fence`: the order of a store and a later load
//!
//! This module does not depend on ports or cards. Read [`Pool`] next.
//!
//! Every crate denies `unsafe`, except in files that begin with `#![allow(unsafe_code)]`. The crates `linerate`,
//! `-capture`, `-spec` and `-traffic` forbid it.

mod addresses;
mod depot;
mod dma;
mod fault;
mod fence;
mod mapping;
mod page_size;
mod placement;
mod pool;
mod racing;
mod region;

pub use addresses::Locate;
pub use addresses::{Addresses, Contiguous, DeviceAddress, Paged};
#[cfg(loom)]
pub use depot::Depot;
pub use dma::{Descriptors, DmaArray, DmaMap, DmaSpace, Word};
pub use fence::full_fence;
pub use mapping::Mapping;
pub use mapping::{HUGETLBFS_MAGIC, MOST_PEER_BYTES};
pub use page_size::PageSize;
pub use placement::Placement;
pub(crate) use pool::Cache;
pub use pool::Pool;
pub use pool::Reservation;
pub use region::View;
pub use region::{Pages, Region, RegionOptions};
