//! What both formats of a virtqueue have in common (2.6): buffers go to the device and come back, each
//! a chain of descriptors with an id.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::memory::{DeviceAddress, Mapping, full_fence};

/// A virtqueue of either format, seen from the driver.
///
/// The device can write whatever it likes into its parts of the ring, so ids and lengths that come
/// out are only numbers: the caller compares them with what it has given.
pub(super) trait Ring: Send + 'static {
    /// Which format it is.
    fn is_packed() -> bool
    where
        Self: Sized;

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
    ///
    /// The device may stop looking at this very moment, so that it is asked when it can see everything for certain, which
    /// takes a full fence. Who asks `again` as soon as there is nothing else to do goes without: the fence comes then, or when
    /// a ring's worth was offered.
    fn publish(&mut self, again: bool) -> bool;

    /// The oldest chain that the device has finished with and that was not [taken](Ring::take): its
    /// id, and how many bytes the device has written.
    fn finished(&mut self) -> Option<(u16, u32)>;

    /// Goes on behind the oldest finished chain, which has this many descriptors.
    fn take(&mut self, descriptors: u16);

    /// Looks for what the device has finished with since it was looked at last.
    fn look(&mut self);

    /// The place in the ring of what is taken next.
    fn turn(&self) -> usize;

    /// What the device has finished with, as far as it was looked at, up to the ring's end, if it is chains of one
    /// descriptor whose ids go up from `first`. Say [`taken`](Ring::taken) how many are.
    fn to_take(&self, first: usize) -> Finished<'_>;

    /// So many chains of one descriptor were taken.
    fn taken(&mut self, count: usize);

    /// Places for chains of one descriptor whose ids go up from `first`, as far as they follow each other; the device
    /// writes `writable` bytes, or reads. Say [`offered`](Ring::offered) how many there are.
    fn to_offer(&self, first: usize, writable: u32) -> Offered<'_>;

    /// So many were offered.
    fn offered(&mut self, count: usize);

    /// The device may interrupt when the next chain is finished.
    fn allow_interrupts(&mut self);

    /// It should not.
    fn forbid_interrupts(&mut self);
}

/// Of how many chains the device was asked for certain whether it wants to be notified; what [`Ring::publish`] does in both
/// formats.
#[derive(Default)]
pub(super) struct Asked(usize);

impl Asked {
    /// `offered` counts all chains, of which the ring holds `size`; `show` lets the device see them, and `look` reads whether
    /// it wants to be notified of those from a count on.
    #[inline(always)]
    pub fn ask(
        &mut self,
        offered: usize,
        size: usize,
        again: bool,
        show: impl FnOnce(),
        look: impl FnOnce(usize) -> bool,
    ) -> bool {
        let unasked = offered.wrapping_sub(self.0);
        if unasked == 0 {
            return false;
        }
        show();
        // It may have stopped looking just before (2.7.13.4.1): what it wants is read after it can see them.
        let for_certain = !again || unasked >= size;
        if for_certain {
            full_fence();
        }
        let wanted = look(self.0);
        if wanted || for_certain {
            self.0 = offered;
        }
        wanted
    }
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

/// Of a packed queue's descriptor's flags (2.8.1): one of them is the round's, both are when the device is done.
pub(super) const AVAILABLE: u16 = 1 << 7;
pub(super) const USED: u16 = 1 << 15;
/// Of its second word: both flags, which are the same when the device is done.
pub(super) const DONE: u64 = ((AVAILABLE | USED) as u64) << 48;
/// And its id: what tells whether, and with what, the device is done.
pub(super) const KEY: u64 = DONE | 0xFFFF << ID;
/// Where the id stands there.
pub(super) const ID: u32 = 32;

/// What a device may have finished with.
#[derive(Clone, Copy)]
pub(super) struct Finished<'a> {
    /// The descriptors, of a packed queue.
    pub descriptors: &'a [[AtomicU64; 2]],
    /// Ids and lengths of those that are finished, of a split queue.
    pub entries: &'a [[AtomicU32; 2]],
    /// The first one's key if it is finished; for each of the others [`key_step`] more.
    // In one word, since the loops over groups read it as one: two fields that were stored just before would have to reach the
    // cache first.
    pub key: u64,
}

/// A word of these two halves, as they stand in a finished chain's: in a packed queue's the length comes first, in a split
/// queue's what is the key.
#[inline(always)]
pub(super) fn halves<R: Ring>(length: u64, key: u64) -> u64 {
    if R::is_packed() { length | key << ID } else { key | length << 32 }
}

/// All of a length.
pub(super) const LENGTH: u64 = u32::MAX as u64;

/// All of a key, in the half that has it.
#[inline(always)]
pub(super) fn key<R: Ring>() -> u64 {
    if R::is_packed() { KEY >> ID } else { u32::MAX.into() }
}

/// From one key to the next: the id counts.
#[inline(always)]
pub(super) fn key_step<R: Ring>() -> u64 {
    if R::is_packed() { 1 << ID } else { 1 }
}

impl<'a> Finished<'a> {
    /// At how many places.
    #[inline(always)]
    pub fn len<R: Ring>(&self) -> usize {
        if R::is_packed() { self.descriptors.len() } else { self.entries.len() }
    }

    /// The first `count` of them.
    #[inline(always)]
    pub fn first<R: Ring>(self, count: usize) -> Finished<'a> {
        match R::is_packed() {
            true => Finished { descriptors: &self.descriptors[..count], ..self },
            false => Finished { entries: &self.entries[..count], ..self },
        }
    }

    /// Whether there may be so many. That is a look at the last one only, since they come in turn.
    #[inline(always)]
    pub fn has_at_least<R: Ring>(&self, count: usize) -> bool {
        self.len::<R>() >= count && self.written::<R>(count - 1).is_some()
    }

    /// How many bytes the device has written at this place, if it has finished with what has its turn there.
    #[inline(always)]
    pub fn written<R: Ring>(&self, at: usize) -> Option<u32> {
        let (key, written) = if R::is_packed() {
            // Acquire: the packet is read after the flags that tell of it.
            let word = self.descriptors[at][1].load(Acquire);
            (word & KEY, word as u32)
        } else {
            let [found, written] = &self.entries[at];
            (found.load(Relaxed).into(), written.load(Relaxed))
        };
        (key == self.key + at as u64 * key_step::<R>()).then_some(written)
    }
}

/// Places for what a device is to be given.
#[derive(Clone, Copy)]
pub(super) struct Offered<'a> {
    pub descriptors: &'a [[AtomicU64; 2]],
    /// For ids, of a split queue.
    pub available: &'a [AtomicU16],
    /// The id that comes first.
    pub first: usize,
    /// The first descriptor's second word, but for the length of what is to be read; for each of the others [`second_step`]
    /// more.
    pub second: u64,
}

/// From one second word to the next: a packed queue's has the id.
#[inline(always)]
pub(super) fn second_step<R: Ring>() -> u64 {
    if R::is_packed() { 1 << ID } else { 0 }
}

impl<'a> Offered<'a> {
    /// How many.
    #[inline(always)]
    pub fn len<R: Ring>(&self) -> usize {
        if R::is_packed() { self.descriptors.len() } else { self.descriptors.len().min(self.available.len()) }
    }

    /// The first `count` of them.
    #[inline(always)]
    pub fn first<R: Ring>(self, count: usize) -> Offered<'a> {
        let available = if R::is_packed() { self.available } else { &self.available[..count] };
        Offered { descriptors: &self.descriptors[..count], available, ..self }
    }

    /// Fills a place; `len` is that of what is to be read.
    #[inline(always)]
    pub fn put<R: Ring>(&self, at: usize, address: DeviceAddress, len: u32) {
        let second = self.second + at as u64 * second_step::<R>() + u64::from(len);
        self.descriptors[at][0].store(address, Relaxed);
        if R::is_packed() {
            // With this the device has it.
            self.descriptors[at][1].store(second, Release);
        } else {
            self.descriptors[at][1].store(second, Relaxed);
            self.available[at].store((self.first + at) as u16, Relaxed);
        }
    }
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
