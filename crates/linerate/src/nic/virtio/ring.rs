//! What both formats of a virtqueue have in common (2.6): buffers go to the device and come back, each
//! a chain of descriptors with an id.

use crate::memory::{DeviceAddress, Mapping};
use std::sync::Arc;

/// A virtqueue of either format, seen from the driver.
///
/// The device can write whatever it likes into its parts of the ring, so ids and lengths that come
/// out are only numbers: the caller compares them with what it has given.
pub(super) trait Ring: Send + 'static {
    /// How a ring is laid out.
    fn layout(size: u16) -> Layout
    where
        Self: Sized;

    /// A ring of `size` descriptors at byte `offset` of `memory`, which holds zeros.
    fn new(memory: &Arc<Mapping>, offset: usize, size: u16, event_idx: bool) -> Self
    where
        Self: Sized;

    /// Gives the device a chain; [`publish`](Ring::publish) lets it see it. The id is the first
    /// part's descriptor; there are as many free descriptors as parts.
    fn offer(&mut self, parts: &[Part]);

    /// Lets the device see what was offered. True if it wants to be notified.
    fn publish(&mut self) -> bool;

    /// The oldest chain that the device has finished with and that was not [taken](Ring::take): its
    /// id, and how many bytes the device has written.
    fn finished(&mut self) -> Option<(u16, u32)>;

    /// Goes on behind the oldest finished chain, which has this many descriptors.
    fn take(&mut self, descriptors: u16);

    /// The device may interrupt when the next chain is finished.
    fn allow_interrupts(&mut self);

    /// It should not.
    fn forbid_interrupts(&mut self);
}

/// One descriptor of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Which descriptor it uses.
    pub descriptor: u16,
    pub address: DeviceAddress,
    pub len: u32,
    /// The device writes it, otherwise it reads it.
    pub writable: bool,
}

/// Offsets of a ring's three parts, and bytes in all.
pub(super) struct Layout {
    pub driver: usize,
    pub device: usize,
    pub len: usize,
}

/// In a descriptor's flags: the chain goes on (2.7.5, 2.8.7).
pub(super) const NEXT: u16 = 1;
/// In a descriptor's flags: the device writes.
pub(super) const WRITE: u16 = 2;

/// True if an event is wanted when the index passes `event` on its way from `old` to `new` (2.7.10).
pub(super) fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::memory::PageSize;

    #[test]
    fn an_event_is_passed_when_the_index_goes_beyond_it() {
        assert!(passes(5, 5, 6) && passes(5, 0, 6) && passes(u16::MAX, u16::MAX, 0));
        assert!(!passes(5, 6, 9) && !passes(5, 0, 5) && !passes(5, 3, 3));
    }

    /// A ring in memory of its own.
    pub fn ring<R: Ring>(size: u16, event_idx: bool) -> (R, Arc<Mapping>) {
        let memory = Arc::new(Mapping::new(R::layout(size).len, PageSize::Ordinary, None).unwrap());
        (R::new(&memory, 0, size, event_idx), memory)
    }

    /// A chain of one descriptor.
    pub fn part(descriptor: u16) -> Part {
        Part { descriptor, address: 0x1000 * u64::from(descriptor), len: 60, writable: false }
    }
}
