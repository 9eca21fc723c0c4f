//! The packed virtqueue (2.8): one ring of descriptors, written by driver and device in turn. A flag whose meaning
//! inverts with each wrap shows which side owns a descriptor.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use linerate_core::memory::{Descriptors, DmaArray, Mapping, full_fence};
use linerate_spec::virtio::packed::{AVAILABLE, DISABLE, ENABLE, MODE, USED};
use linerate_spec::virtio::ring::{NEXT, WRITE};

use super::ring::{AvailableRun, DONE, DriverRing, ID, Layout, Notification, Part, UsedRun};

/// One packed virtqueue.
///
/// Event indexes are not negotiated: QEMU (10.0) leaves a stale index if its backend was busy for a while, and then
/// waits forever.
pub(super) struct Packed {
    /// Word 0: address. Word 1: length, id and flags, from low to high.
    ring: Descriptors,
    /// When the driver wants interrupts.
    driver: DmaArray<AtomicU32>,
    /// When the device wants notifications.
    device: DmaArray<AtomicU32>,
    // Counts of descriptors made available, settled for notification, and popped. They do not wrap at the ring's size:
    // `place` and `wrap_counter` derive the ring index and the wrap counter.
    added: usize,
    notification: Notification,
    popped: usize,
}

impl Packed {
    #[inline(always)]
    fn place(&self, at: usize) -> usize {
        at & (self.ring.len() - 1)
    }

    /// Returns the wrap counter: true in the first round, then alternating.
    #[inline(always)]
    fn wrap_counter(&self, at: usize) -> bool {
        at & self.ring.len() == 0
    }

    /// Returns the flags that the descriptor has once it is used.
    #[inline(always)]
    fn used_flags(&self, at: usize) -> u64 {
        if self.wrap_counter(at) { DONE } else { 0 }
    }
}

impl DriverRing for Packed {
    #[inline(always)]
    fn is_packed() -> bool {
        true
    }

    fn layout(size: u16) -> Layout {
        let driver = 16 * size as usize;
        Layout { driver, device: driver + 4, len: driver + 8 }
    }

    fn new(memory: &Arc<Mapping>, offset: usize, size: u16, _: bool) -> Packed {
        let Layout { driver, device, .. } = Packed::layout(size);
        // SAFETY: no slices of the rings' memory are lent out.
        let (ring, driver, device) = unsafe {
            (
                DmaArray::new(memory, offset, size.into()),
                DmaArray::new(memory, offset + driver, 1),
                DmaArray::new(memory, offset + device, 1),
            )
        };
        let mut packed = Packed { ring, driver, device, added: 0, notification: Notification::default(), popped: 0 };
        packed.forbid_interrupts();
        packed
    }

    #[inline(always)]
    fn add(&mut self, parts: &[Part]) {
        let (id, first) = (parts[0].descriptor, self.place(self.added));
        let mut first_word = 0;
        for (index, part) in parts.iter().enumerate() {
            let mut flags = if self.wrap_counter(self.added) { AVAILABLE } else { USED };
            flags |= if part.writable { WRITE } else { 0 };
            flags |= if index + 1 < parts.len() { NEXT } else { 0 };
            let word = u64::from(part.len) | u64::from(id) << 32 | u64::from(flags) << 48;
            let descriptor = &self.ring[self.place(self.added)];
            descriptor[0].store(part.address, Relaxed);
            if index == 0 {
                first_word = word;
            } else {
                descriptor[1].store(word, Relaxed);
            }
            self.added = self.added.wrapping_add(1);
        }
        // Write the first descriptor last: its flags make the chain available (2.8.21.1).
        self.ring[first][1].store(first_word, Release);
    }

    #[inline(always)]
    fn publish(&mut self, again: bool) -> bool {
        // The descriptors' flags have already exposed them.
        self.notification.publish(
            self.added,
            self.ring.len(),
            again,
            || (),
            |_| self.device[0].load(Relaxed) & MODE != DISABLE,
        )
    }

    #[inline(always)]
    fn peek_used(&mut self) -> Option<(u16, u32)> {
        // Acquire: the packet is read after the flags.
        let word = self.ring[self.place(self.popped)][1].load(Acquire);
        (word & DONE == self.used_flags(self.popped)).then_some(((word >> 32) as u16, word as u32))
    }

    /// The ring has no used index. If the device reports several chains by the last one, only the last has flags.
    fn most_used(&self) -> usize {
        self.ring.len()
    }

    #[inline(always)]
    fn pop_used(&mut self, descriptors: u16) {
        self.popped = self.popped.wrapping_add(descriptors.into());
    }

    #[inline(always)]
    fn poll_used(&mut self) {}

    #[inline(always)]
    fn has_used(&mut self, count: usize) -> bool {
        let last = self.popped.wrapping_add(count - 1);
        self.ring[self.place(last)][1].load(Relaxed) & DONE == self.used_flags(last)
    }

    #[inline(always)]
    fn used_index(&self) -> usize {
        self.place(self.popped)
    }

    #[inline(always)]
    fn used_run(&self, first: usize) -> UsedRun<'_> {
        let key = self.used_flags(self.popped) | (first as u64) << ID;
        UsedRun { descriptors: &self.ring[self.place(self.popped)..], entries: &[], key }
    }

    #[inline(always)]
    fn advance_used(&mut self, count: usize) {
        self.popped = self.popped.wrapping_add(count);
    }

    #[inline(always)]
    fn available_run(&self, first: usize, writable: u32) -> AvailableRun<'_> {
        let flags = if self.wrap_counter(self.added) { AVAILABLE } else { USED } | if writable > 0 { WRITE } else { 0 };
        let second = u64::from(writable) | (first as u64) << ID | u64::from(flags) << 48;
        AvailableRun { descriptors: &self.ring[self.place(self.added)..], available: &[], first, second }
    }

    #[inline(always)]
    fn advance_available(&mut self, count: usize) {
        self.added = self.added.wrapping_add(count);
    }

    fn allow_interrupts(&mut self) {
        self.driver[0].store(ENABLE, Relaxed);
        full_fence();
    }

    fn forbid_interrupts(&mut self) {
        self.driver[0].store(DISABLE, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::virtio::ring::tests::{part, ring};

    /// Marks the chain at `index` as used, as a device does.
    fn finish(ring: &Packed, index: usize, id: u16, wrap_counter: bool) {
        let flags = if wrap_counter { AVAILABLE | USED } else { 0 };
        ring.ring[index][1].store(7 | u64::from(id) << 32 | u64::from(flags) << 48, Relaxed);
    }

    #[test]
    fn the_flags_invert_with_each_wrap() {
        let (mut ring, _memory): (Packed, _) = ring(4, false);
        ring.add(&[part(3), part(0), part(1)]);
        assert!(ring.publish(false) && !ring.publish(false));
        let word = |ring: &Packed, index: usize| ring.ring[index][1].load(Relaxed);
        assert_eq!(word(&ring, 0), 60 | 3 << 32 | u64::from(AVAILABLE | NEXT) << 48);
        assert_eq!(word(&ring, 2), 60 | 3 << 32 | u64::from(AVAILABLE) << 48);
        assert_eq!(ring.peek_used(), None);
        finish(&ring, 0, 3, true);
        assert_eq!(ring.peek_used(), Some((3, 7)));
        ring.pop_used(3);
        assert_eq!(ring.peek_used(), None);
        // One entry of the first round is left, then the ring wraps.
        ring.add(&[part(2), part(1)]);
        assert_eq!(word(&ring, 3), 60 | 2 << 32 | u64::from(AVAILABLE | NEXT) << 48);
        assert_eq!(word(&ring, 0), 60 | 2 << 32 | u64::from(USED) << 48);
        assert!(ring.publish(false));
        finish(&ring, 3, 2, true);
        assert_eq!(ring.peek_used(), Some((2, 7)));
        ring.pop_used(2);
        assert_eq!((ring.place(ring.popped), ring.wrap_counter(ring.popped)), (1, false));
        assert_eq!(ring.peek_used(), None);
    }

    #[test]
    fn the_device_says_whether_it_wants_notifications() {
        let (mut ring, _memory): (Packed, _) = ring(4, false);
        ring.device[0].store(DISABLE, Relaxed);
        ring.add(&[part(0)]);
        assert!(!ring.publish(false));
        ring.device[0].store(ENABLE, Relaxed);
        ring.add(&[part(1)]);
        assert!(ring.publish(false));
        assert_eq!(ring.driver[0].load(Relaxed), DISABLE);
        // A check without a fence does not settle the notification: later calls check again.
        ring.device[0].store(DISABLE, Relaxed);
        ring.add(&[part(2)]);
        assert!(!ring.publish(true) && !ring.publish(true));
        ring.device[0].store(ENABLE, Relaxed);
        assert!(ring.publish(false) && !ring.publish(false));
        ring.device[0].store(DISABLE, Relaxed);
        for _ in 0..4 {
            ring.add(&[part(3)]);
            assert!(!ring.publish(true));
        }
        ring.device[0].store(ENABLE, Relaxed);
        assert!(!ring.publish(false), "that was a ring's worth");
        ring.allow_interrupts();
        assert_eq!(ring.driver[0].load(Relaxed), ENABLE);
    }
}
