//! The interface of both formats of a virtqueue at the device (VIRTIO 1.2, 2.7 and 2.8): it takes chains of descriptors that
//! the driver has made available, and returns them as used, in order.
//!
//! A place is where a chain begins. Each format counts places in its own way, in 16 bits; queues compare them at most.

use linerate_core::ring::Breach;
use linerate_spec::virtio::ring::{INDIRECT, NEXT};

/// The most descriptors of a chain, however it is made.
pub const MOST_PARTS: usize = 1024;

/// Where the front end has the three parts of a ring: its own addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    pub descriptors: u64,
    /// The available ring; the driver's event suppression of a packed queue.
    pub available: u64,
    /// The used ring; the device's event suppression of a packed queue.
    pub used: u64,
}

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    /// In a split queue and its tables, the number of the chain's next descriptor.
    pub next: u16,
}

/// A chain. `id` and `end` are those of a single descriptor until all of it was [followed](DeviceRing::follow).
#[derive(Clone, Copy)]
pub struct Head {
    pub first: Descriptor,
    /// Where it begins.
    pub place: u16,
    /// The place behind it.
    pub end: u16,
    /// The driver's name of it: only ever returned, since the driver may have written any number.
    pub id: u16,
}

/// The outcome of a look at a place.
pub enum Found {
    Chain(Head),
    /// The driver has made no chain available there yet.
    Nothing,
    /// A breach of the rules.
    Broken(Breach),
}

/// The device's side of a virtqueue, of either format.
pub trait DeviceRing {
    /// Returns the count of descriptors.
    fn size(&self) -> usize;

    /// Returns the place of the first chain that is not [published](DeviceRing::publish) as used.
    fn next(&self) -> u16;

    /// Returns whether a chain may be available.
    fn has_work(&self) -> bool;

    /// Looks how many chains are available.
    ///
    /// # Errors
    /// The driver claims more than the ring has.
    fn look(&mut self) -> Result<(), Breach>;

    /// Returns the most chains that may be available from a place on.
    fn most(&self, place: u16) -> usize;

    /// Returns what is at a place.
    fn head(&self, place: u16) -> Found;

    /// Returns the descriptor that follows `from` in a chain, and moves the chain's end.
    ///
    /// # Errors
    /// There is none.
    fn follow(&self, chain: &mut Head, from: Descriptor) -> Result<Descriptor, Breach>;

    /// Follows a chain to its end.
    ///
    /// # Errors
    /// It breaks the rules.
    fn whole(&self, mut chain: Head) -> Result<Head, Breach> {
        let mut descriptor = chain.first;
        for _ in 0..self.size().min(MOST_PARTS) {
            if descriptor.flags & NEXT == 0 || descriptor.flags & INDIRECT != 0 {
                return Ok(chain);
            }
            descriptor = self.follow(&mut chain, descriptor)?;
        }
        Err(self.too_long())
    }

    /// Returns the breach of a chain that does not end.
    fn too_long(&self) -> Breach {
        let most = self.size().min(MOST_PARTS) as u64;
        Breach::Beyond { what: "the count of a chain's descriptors", is: most + 1, most }
    }

    /// Reads descriptor `number` of an indirect table of `count`, from its two words.
    fn of_table(address: u64, rest: u64, number: usize, count: usize) -> Descriptor
    where
        Self: Sized;

    /// Returns whether the chains between two places are all that the ring can hold.
    fn is_whole(&self, from: u16, to: u16) -> bool;

    /// Writes that a chain is used, with `len` bytes written; [`publish`](DeviceRing::publish) exposes it. Chains are used in order.
    fn put_used(&mut self, chain: Head, len: u32);

    /// Exposes all used chains at once, which end at `to`. Returns whether the driver wants an interrupt.
    fn publish(&mut self, to: u16) -> bool;

    /// Asks the driver for a notification when it makes the next chain available.
    fn allow_notifications(&self);

    /// Asks the driver for no notifications.
    fn forbid_notifications(&self);
}
