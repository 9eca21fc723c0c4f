//! The device's side of a virtqueue in either format (VIRTIO 1.2, 2.7 and 2.8). It reads chains of descriptors that the
//! driver has made available, and returns them as used, in order.
//!
//! A position is where a chain begins. Each format encodes it in its own way, in 16 bits; queues only compare
//! positions.

use linerate_core::ring::Breach;
use linerate_spec::virtio::ring::{INDIRECT, NEXT};

/// The maximum number of descriptors of a chain, in the ring or in a table.
pub const MOST_PARTS: usize = 1024;

/// The addresses of a ring's three parts in the front end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    pub descriptors: u64,
    /// The available ring; the driver's event suppression of a packed queue.
    pub available: u64,
    /// The used ring; the device's event suppression of a packed queue.
    pub used: u64,
}

/// A copy of a descriptor, which is read only once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    /// In a split queue and its tables, the number of the chain's next descriptor.
    pub next: u16,
}

/// A chain. `id` and `end` are those of a single descriptor until the chain is [followed](DeviceRing::follow) to its
/// end.
#[derive(Clone, Copy)]
pub struct Head {
    pub first: Descriptor,
    /// The position of the chain's first descriptor.
    pub position: u16,
    /// The position after the chain.
    pub end: u16,
    /// The driver's id of the chain; it is not used except to return it, since it can be any number.
    pub id: u16,
}

/// The result of [`DeviceRing::read_chain`].
pub enum Found {
    Chain(Head),
    /// The driver has made no chain available at this position yet.
    Unavailable,
    /// The chain is invalid.
    Invalid(Breach),
}

/// The device's side of a virtqueue, of either format.
pub trait DeviceRing {
    /// Returns whether the last descriptor of a chain may refer to an indirect table: in split queues (2.7.5.3.2), not
    /// in packed queues (2.8.19).
    fn allows_table_at_end() -> bool
    where
        Self: Sized;

    /// Returns the number of descriptors.
    fn size(&self) -> usize;

    /// Returns the position of the first chain that is not [published](DeviceRing::publish) as used.
    fn next(&self) -> u16;

    /// Returns whether a chain may be available.
    fn has_work(&self) -> bool;

    /// Reads how many chains are available.
    ///
    /// # Errors
    /// The driver claims more chains than the ring can hold.
    fn poll_available(&mut self) -> Result<(), Breach>;

    /// Returns the maximum number of chains available from a position on.
    fn available_at_most(&self, position: u16) -> usize;

    /// Reads the chain at a position.
    fn read_chain(&self, position: u16) -> Found;

    /// Returns the descriptor that follows `from` in a chain. In a packed queue, also sets the chain's `id` to this
    /// descriptor's, and its `end` to the position after this descriptor.
    ///
    /// # Errors
    /// There is no such descriptor.
    fn follow(&self, chain: &mut Head, from: Descriptor) -> Result<Descriptor, Breach>;

    /// Follows a chain to its end.
    ///
    /// # Errors
    /// The chain is invalid.
    fn follow_to_end(&self, mut chain: Head) -> Result<Head, Breach> {
        let mut descriptor = chain.first;
        for _ in 0..self.size().min(MOST_PARTS) {
            if descriptor.flags & NEXT == 0 || descriptor.flags & INDIRECT != 0 {
                return Ok(chain);
            }
            descriptor = self.follow(&mut chain, descriptor)?;
        }
        Err(self.too_long())
    }

    /// Returns the breach for a chain that does not end.
    fn too_long(&self) -> Breach {
        let most = self.size().min(MOST_PARTS) as u64;
        Breach::Beyond { what: "the count of a chain's descriptors", is: most + 1, most }
    }

    /// Decodes descriptor `number` of an indirect table of `count` descriptors from its two words.
    fn of_table(address: u64, rest: u64, number: usize, count: usize) -> Descriptor
    where
        Self: Sized;

    /// Returns whether the chains between two positions fill the ring.
    fn fills_ring(&self, from: u16, to: u16) -> bool;

    /// Marks a chain as used, with `len` bytes written; [`publish`](DeviceRing::publish) exposes it. Chains are used in
    /// order.
    fn put_used(&mut self, chain: Head, len: u32);

    /// Exposes all used chains, up to position `to`. Returns whether the driver wants an interrupt.
    fn publish(&mut self, to: u16) -> bool;

    /// Requests a notification when the driver makes the next chain available.
    fn allow_notifications(&self);

    /// Requests no notifications.
    fn forbid_notifications(&self);
}
