//! The interface of both formats of a virtqueue (2.6): the driver makes buffers available, and the device returns
//! them as used. A buffer is a chain of descriptors with an id.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use linerate_core::memory::{DeviceAddress, Mapping, full_fence};
use linerate_spec::virtio::packed::{AVAILABLE, USED};
use linerate_spec::virtio::{feature, header};

/// The driver's side of a virtqueue, of either format.
///
/// The device can write any value into its parts of the ring. Ids and lengths are not validated here: the caller
/// compares them with the chains that it has added.
pub(super) trait DriverRing: Send + 'static {
    /// Returns whether the format is packed.
    fn is_packed() -> bool
    where
        Self: Sized;

    /// Returns the layout of a ring.
    fn layout(size: u16) -> Layout
    where
        Self: Sized;

    /// Creates a ring of `size` descriptors at byte `offset` of `memory`, which must be zeroed.
    fn new(memory: &Arc<Mapping>, offset: usize, size: u16, event_idx: bool) -> Self
    where
        Self: Sized;

    /// Adds a chain; [`publish`](DriverRing::publish) exposes it to the device. The chain's id is the first part's
    /// descriptor. At least `parts.len()` descriptors must be free.
    fn add(&mut self, parts: &[Part]);

    /// Exposes the added chains to the device. Returns whether to notify the device.
    ///
    /// The device may suppress notifications concurrently, so its flag is read after a full fence (2.7.13.4.1). With
    /// `again` the caller promises to call again before it idles. The fence is then deferred to a later call, at most
    /// until a full ring of chains was added.
    fn publish(&mut self, again: bool) -> bool;

    /// Returns the id of the oldest used chain that was not [popped](DriverRing::pop_used), and the bytes that the
    /// device has written.
    fn peek_used(&mut self) -> Option<(u16, u32)>;

    /// Returns an upper bound of the count of used chains, after [`peek_used`](DriverRing::peek_used) found a used
    /// chain.
    fn most_used(&self) -> usize;

    /// Advances past the oldest used chain, which has `descriptors` descriptors.
    fn pop_used(&mut self, descriptors: u16);

    /// Reads how far the device has used chains, if all chains of the last read are popped.
    fn poll_used(&mut self);

    /// Returns whether at least `count` chains of one descriptor are reported as used. A device that reports several
    /// chains by the last one may have used more.
    fn has_used(&mut self, count: usize) -> bool;

    /// Returns the index of the next used entry in the ring.
    fn used_index(&self) -> usize;

    /// Returns the used entries found by [`poll_used`](DriverRing::poll_used), up to the ring's end. They are compared
    /// with chains of one descriptor whose ids count up from `first`. Report the count taken to
    /// [`advance_used`](DriverRing::advance_used).
    fn used_run(&self, first: usize) -> UsedRun<'_>;

    /// Advances past `count` used chains of one descriptor.
    fn advance_used(&mut self, count: usize);

    /// Returns contiguous free entries for chains of one descriptor whose ids count up from `first`. The device writes
    /// `writable` bytes to each buffer, or reads the buffers if `writable` is 0. Report the count filled to
    /// [`advance_available`](DriverRing::advance_available).
    fn available_run(&self, first: usize, writable: u32) -> AvailableRun<'_>;

    /// Adds `count` chains of one descriptor, filled into [`available_run`](DriverRing::available_run).
    fn advance_available(&mut self, count: usize);

    /// Asks the device for an interrupt when it uses the next chain.
    fn allow_interrupts(&mut self);

    /// Asks the device for no interrupts.
    fn forbid_interrupts(&mut self);
}

/// The count of added chains for which notification is settled: the device is notified, or its flag was read after a
/// full fence. Implements [`DriverRing::publish`] for both formats.
#[derive(Default)]
pub(super) struct Notification(usize);

impl Notification {
    /// Publishes chains with `expose`, then reads the device's flag with `read_flag`, which gets the count settled
    /// before. `added` counts all chains added so far; the ring holds `size`. Returns whether to notify the device.
    #[inline(always)]
    pub fn publish(
        &mut self,
        added: usize,
        size: usize,
        again: bool,
        expose: impl FnOnce(),
        read_flag: impl FnOnce(usize) -> bool,
    ) -> bool {
        let unsettled = added.wrapping_sub(self.0);
        if unsettled == 0 {
            return false;
        }
        expose();
        // The flag must be read after the index is visible, since the device may just be enabling notifications
        // (2.7.13.4.1).
        let for_certain = !again || unsettled >= size;
        if for_certain {
            full_fence();
        }
        let wanted = read_flag(self.0);
        if wanted || for_certain {
            self.0 = added;
        }
        wanted
    }
}

/// The layout of header and data in descriptors.
#[derive(Clone, Copy)]
pub(super) struct HeaderLayout {
    /// Length of the header in bytes.
    pub len: u32,
    /// The header has a separate descriptor (legacy devices without `ANY_LAYOUT`, 5.1.6.6).
    pub separate: bool,
    /// The header contains the packet's count of buffers.
    pub mergeable: bool,
    /// The header has up to 12 bytes, and no separate descriptor.
    pub common: bool,
}

impl HeaderLayout {
    /// Returns the layout that a device with these features uses.
    pub fn new(features: u64) -> HeaderLayout {
        let has = |any: u64| features & any != 0;
        let len = match has(feature::VERSION_1 | feature::MRG_RXBUF) {
            _ if has(feature::HASH_REPORT) => header::HASH_LEN,
            true => header::LEN,
            false => header::SHORT_LEN,
        };
        let separate = !has(feature::VERSION_1 | feature::ANY_LAYOUT);
        let common = len <= header::LEN && !separate;
        HeaderLayout { len: len as u32, separate, mergeable: has(feature::MRG_RXBUF), common }
    }

    /// Returns the number of descriptors of a packet in one buffer.
    pub fn descriptors(self) -> u16 {
        if self.separate { 2 } else { 1 }
    }
}

/// One descriptor of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The index of its descriptor.
    pub descriptor: u16,
    pub address: DeviceAddress,
    pub len: u32,
    /// Whether the device writes the buffer; it reads it otherwise.
    pub writable: bool,
}

/// Both flags in a packed descriptor's second word; they are equal once the descriptor is used.
pub(super) const DONE: u64 = ((AVAILABLE | USED) as u64) << 48;
/// The bits of a used entry's key in the second word: the flags and the id.
pub(super) const KEY: u64 = DONE | 0xFFFF << ID;
/// The shift of the id in the second word.
pub(super) const ID: u32 = 32;

/// A run of entries that the device may have used.
#[derive(Clone, Copy)]
pub(super) struct UsedRun<'a> {
    /// The descriptors of a packed queue.
    pub descriptors: &'a [[AtomicU64; 2]],
    /// The used elements of a split queue: id and length.
    pub entries: &'a [[AtomicU32; 2]],
    /// The key of the first entry: the value by which a used entry is recognised as the expected chain. It is the id in
    /// a split queue, and the id with both flags in a packed queue. Each next key is larger by [`key_step`].
    // One word, since the vector loops load it as one. Two fields that were just stored would stall that load until
    // they reach the cache.
    pub key: u64,
}

/// Joins a length and a key into a word of the ring: the low half is the length in a packed queue, the id in a split
/// queue.
#[inline(always)]
pub(super) fn ring_word<R: DriverRing>(length: u64, key: u64) -> u64 {
    if R::is_packed() { length | key << ID } else { key | length << 32 }
}

/// The mask of a length.
pub(super) const LENGTH: u64 = u32::MAX as u64;

/// The mask of a key, in its half of the word.
#[inline(always)]
pub(super) fn key<R: DriverRing>() -> u64 {
    if R::is_packed() { KEY >> ID } else { u32::MAX.into() }
}

/// Returns the step from one key to the next: ids count up.
#[inline(always)]
pub(super) fn key_step<R: DriverRing>() -> u64 {
    if R::is_packed() { 1 << ID } else { 1 }
}

impl<'a> UsedRun<'a> {
    /// Returns the number of entries.
    #[inline(always)]
    pub fn len<R: DriverRing>(&self) -> usize {
        if R::is_packed() { self.descriptors.len() } else { self.entries.len() }
    }

    /// Limits the run to the first `count` entries.
    #[inline(always)]
    pub fn first<R: DriverRing>(self, count: usize) -> UsedRun<'a> {
        match R::is_packed() {
            true => UsedRun { descriptors: &self.descriptors[..count], ..self },
            false => UsedRun { entries: &self.entries[..count], ..self },
        }
    }

    /// Returns whether `count` entries seem to be used, in order. Checks only the last one.
    #[inline(always)]
    pub fn has_at_least<R: DriverRing>(&self, count: usize) -> bool {
        self.len::<R>() >= count && self.written::<R>(count - 1).is_some()
    }

    /// Returns the bytes that the device has written, if entry `at` is the chain expected there.
    #[inline(always)]
    pub fn written<R: DriverRing>(&self, at: usize) -> Option<u32> {
        let (key, written) = if R::is_packed() {
            // Acquire: the packet is read after the flags.
            let word = self.descriptors[at][1].load(Acquire);
            (word & KEY, word as u32)
        } else {
            let [found, written] = &self.entries[at];
            (found.load(Relaxed).into(), written.load(Relaxed))
        };
        (key == self.key + at as u64 * key_step::<R>()).then_some(written)
    }
}

/// A run of free entries for chains to make available.
#[derive(Clone, Copy)]
pub(super) struct AvailableRun<'a> {
    pub descriptors: &'a [[AtomicU64; 2]],
    /// The available ring of a split queue.
    pub available: &'a [AtomicU16],
    /// The id of the first entry.
    pub first: usize,
    /// The first descriptor's second word, without the length of a device-readable buffer. Each next word is larger by
    /// [`second_step`].
    pub second: u64,
}

/// Returns the step from one second word to the next: in a packed queue, the word contains the id.
#[inline(always)]
pub(super) fn second_step<R: DriverRing>() -> u64 {
    if R::is_packed() { 1 << ID } else { 0 }
}

impl<'a> AvailableRun<'a> {
    /// Returns the number of entries.
    #[inline(always)]
    pub fn len<R: DriverRing>(&self) -> usize {
        if R::is_packed() { self.descriptors.len() } else { self.descriptors.len().min(self.available.len()) }
    }

    /// Limits the run to the first `count` entries.
    #[inline(always)]
    pub fn first<R: DriverRing>(self, count: usize) -> AvailableRun<'a> {
        let available = if R::is_packed() { self.available } else { &self.available[..count] };
        AvailableRun { descriptors: &self.descriptors[..count], available, ..self }
    }

    /// Fills entry `at`; `len` is the length of a device-readable buffer, 0 for a device-writable one.
    #[inline(always)]
    pub fn put<R: DriverRing>(&self, at: usize, address: DeviceAddress, len: u32) {
        let second = self.second + at as u64 * second_step::<R>() + u64::from(len);
        self.descriptors[at][0].store(address, Relaxed);
        if R::is_packed() {
            // Release: this store makes the descriptor available.
            self.descriptors[at][1].store(second, Release);
        } else {
            self.descriptors[at][1].store(second, Relaxed);
            self.available[at].store((self.first + at) as u16, Relaxed);
        }
    }
}

/// Offsets of a ring's driver and device areas, and its total length in bytes.
pub(super) struct Layout {
    pub driver: usize,
    pub device: usize,
    pub len: usize,
}

#[cfg(test)]
pub(super) mod tests {
    use linerate_core::memory::PageSize;

    use super::*;

    /// Creates a ring and its memory.
    pub fn ring<R: DriverRing>(size: u16, event_idx: bool) -> (R, Arc<Mapping>) {
        let memory = Arc::new(Mapping::new(R::layout(size).len, PageSize::Ordinary, None).unwrap());
        (R::new(&memory, 0, size, event_idx), memory)
    }

    /// Returns a chain of one descriptor.
    pub fn part(descriptor: u16) -> Part {
        Part { descriptor, address: 0x1000 * u64::from(descriptor), len: 60, writable: false }
    }
}
