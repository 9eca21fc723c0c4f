//! The split virtqueue (2.7): a descriptor table, the driver's available ring and the device's used ring.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};

use linerate_core::memory::{Descriptors, DmaArray, Mapping, full_fence};
use linerate_spec::virtio::legacy;
use linerate_spec::virtio::ring::{NEXT, QUIET, WRITE, passes};

use super::ring::{AvailableRun, DriverRing, Layout, Notification, Part, UsedRun};

/// Both rings begin with flags and index.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const RING: usize = 2;

/// One split virtqueue.
pub(super) struct Split {
    /// Word 0: address. Word 1: length, flags and next, from low to high.
    table: Descriptors,
    /// Flags, index, ids, and the used index at which the driver wants an interrupt.
    available: DmaArray<AtomicU16>,
    /// Flags and index.
    used: DmaArray<AtomicU16>,
    /// Id and length of each used element.
    used_ring: DmaArray<[AtomicU32; 2]>,
    /// The available index at which the device wants a notification.
    notify_at: DmaArray<AtomicU16>,
    size: usize,
    event_idx: bool,
    // Counts of chains added, settled for notification, seen used, and popped. They do not wrap at the ring's size; the
    // ring's indexes are their lower 16 bits. (The compiler would load adjacent 16-bit fields as one word, right after
    // a store to one of them.)
    added: usize,
    notification: Notification,
    seen: usize,
    popped: usize,
}

impl DriverRing for Split {
    #[inline(always)]
    fn is_packed() -> bool {
        false
    }

    /// The layout for legacy devices (2.7.2): one block, the used ring on its own page.
    fn layout(size: u16) -> Layout {
        let (size, page) = (size as usize, legacy::PAGE as usize);
        let driver = 16 * size;
        let device = (driver + 6 + 2 * size).next_multiple_of(page);
        Layout { driver, device, len: device + 6 + 8 * size }
    }

    fn new(memory: &Arc<Mapping>, offset: usize, size: u16, event_idx: bool) -> Split {
        let Layout { driver, device, .. } = Split::layout(size);
        let count = size as usize;
        // SAFETY: no slices of the rings' memory are lent out.
        let (table, available, used, used_ring, notify_at) = unsafe {
            (
                DmaArray::new(memory, offset, count),
                DmaArray::new(memory, offset + driver, count + 3),
                DmaArray::new(memory, offset + device, 2),
                DmaArray::new(memory, offset + device + 4, count),
                DmaArray::new(memory, offset + device + 4 + 8 * count, 1),
            )
        };
        let mut split = Split {
            table,
            available,
            used,
            used_ring,
            notify_at,
            size: count,
            event_idx,
            added: 0,
            notification: Notification::default(),
            seen: 0,
            popped: 0,
        };
        split.forbid_interrupts();
        split
    }

    #[inline(always)]
    fn add(&mut self, parts: &[Part]) {
        for (index, part) in parts.iter().enumerate() {
            let next = parts.get(index + 1).map(|part| part.descriptor);
            let flags = if part.writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
            let descriptor = &self.table[usize::from(part.descriptor) & (self.size - 1)];
            descriptor[0].store(part.address, Relaxed);
            let word = u64::from(part.len) | u64::from(flags) << 32 | u64::from(next.unwrap_or(0)) << 48;
            descriptor[1].store(word, Relaxed);
        }
        let place = RING + (self.added & (self.size - 1));
        self.available[place].store(parts[0].descriptor, Relaxed);
        self.added = self.added.wrapping_add(1);
    }

    #[inline(always)]
    fn publish(&mut self, again: bool) -> bool {
        let index = self.added as u16;
        let expose = || self.available[INDEX].store(index, Release);
        self.notification.publish(self.added, self.size, again, expose, |settled| match self.event_idx {
            true => passes(self.notify_at[0].load(Relaxed), settled as u16, index),
            false => self.used[FLAGS].load(Relaxed) & QUIET == 0,
        })
    }

    #[inline(always)]
    fn peek_used(&mut self) -> Option<(u16, u32)> {
        self.poll_used();
        if self.seen == self.popped {
            return None;
        }
        let entry = self.popped & (self.size - 1);
        let [id, len] = &self.used_ring[entry];
        Some((id.load(Relaxed).try_into().unwrap_or(u16::MAX), len.load(Relaxed)))
    }

    #[inline(always)]
    fn most_used(&self) -> usize {
        self.seen.wrapping_sub(self.popped)
    }

    #[inline(always)]
    fn pop_used(&mut self, _: u16) {
        self.popped = self.popped.wrapping_add(1);
    }

    #[inline(always)]
    fn poll_used(&mut self) {
        if self.seen == self.popped {
            // Acquire: the entries and packets are read after the index.
            let more = self.used[INDEX].load(Acquire).wrapping_sub(self.popped as u16);
            self.seen = self.popped.wrapping_add(more.into());
        }
    }

    #[inline(always)]
    fn has_used(&mut self, count: usize) -> bool {
        self.poll_used();
        self.most_used() >= count
    }

    #[inline(always)]
    fn used_index(&self) -> usize {
        self.popped & (self.size - 1)
    }

    #[inline(always)]
    fn used_run(&self, first: usize) -> UsedRun<'_> {
        let oldest = self.used_index();
        let count = self.seen.wrapping_sub(self.popped).min(self.size - oldest);
        UsedRun { descriptors: &[], entries: &self.used_ring[oldest..][..count], key: first as u64 }
    }

    #[inline(always)]
    fn advance_used(&mut self, count: usize) {
        self.popped = self.popped.wrapping_add(count);
    }

    #[inline(always)]
    fn available_run(&self, first: usize, writable: u32) -> AvailableRun<'_> {
        let next = RING + (self.added & (self.size - 1));
        let flags = if writable > 0 { WRITE } else { 0 };
        let second = u64::from(writable) | u64::from(flags) << 32;
        let (descriptors, available) = (&self.table[first..], &self.available[next..RING + self.size]);
        AvailableRun { descriptors, available, first, second }
    }

    #[inline(always)]
    fn advance_available(&mut self, count: usize) {
        self.added = self.added.wrapping_add(count);
    }

    fn allow_interrupts(&mut self) {
        self.available[FLAGS].store(0, Relaxed);
        self.available[RING + self.size].store(self.popped as u16, Relaxed);
        full_fence();
    }

    fn forbid_interrupts(&mut self) {
        // With event indexes the flags are ignored; an index just passed is reached again only after 2^16 entries.
        self.available[FLAGS].store(QUIET, Relaxed);
        self.available[RING + self.size].store(self.popped.wrapping_sub(1) as u16, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::virtio::ring::tests::{part, ring};

    #[test]
    fn is_laid_out_as_legacy_devices_want_it() {
        let layout = Split::layout(256);
        assert_eq!((layout.driver, layout.device, layout.len), (4096, 8192, 8192 + 6 + 2048));
    }

    #[test]
    fn chains_go_out_and_come_back_by_id() {
        let (mut ring, _memory): (Split, _) = ring(4, false);
        ring.add(&[part(2), part(3)]);
        assert_eq!(ring.available[INDEX].load(Relaxed), 0, "not published yet");
        assert!(ring.publish(false) && !ring.publish(false));
        assert_eq!((ring.available[INDEX].load(Relaxed), ring.available[RING].load(Relaxed)), (1, 2));
        assert_eq!(ring.table[2][1].load(Relaxed), 60 | u64::from(NEXT) << 32 | 3 << 48);
        assert_eq!(ring.peek_used(), None);
        ring.used_ring[0][0].store(2, Relaxed);
        ring.used_ring[0][1].store(7, Relaxed);
        ring.used[INDEX].store(1, Relaxed);
        assert_eq!(ring.peek_used(), Some((2, 7)));
        ring.pop_used(2);
        assert_eq!(ring.peek_used(), None);
        ring.used[FLAGS].store(QUIET, Relaxed);
        ring.add(&[part(0)]);
        assert!(!ring.publish(false), "the device wants no notification");
    }

    #[test]
    fn event_indexes_say_when_to_notify_and_to_interrupt() {
        let (mut ring, _memory): (Split, _) = ring(4, true);
        ring.notify_at[0].store(1, Relaxed);
        ring.add(&[part(0)]);
        assert!(!ring.publish(false));
        ring.add(&[part(1)]);
        assert!(ring.publish(false));
        // A check without a fence does not settle the notification.
        for _ in 0..3 {
            ring.add(&[part(2)]);
            assert!(!ring.publish(true));
        }
        ring.notify_at[0].store(3, Relaxed);
        assert!(ring.publish(false) && !ring.publish(false));
        for _ in 0..4 {
            ring.add(&[part(2)]);
            assert!(!ring.publish(true));
        }
        ring.notify_at[0].store(6, Relaxed);
        assert!(!ring.publish(false), "that was a ring's worth");
        ring.allow_interrupts();
        assert_eq!(ring.available[RING + 4].load(Relaxed), 0);
        ring.forbid_interrupts();
        assert_eq!(ring.available[RING + 4].load(Relaxed), u16::MAX);
    }
}
