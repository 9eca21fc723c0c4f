//! The counters of ports and queues.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port's counters since it was opened.
///
/// Frames and bytes are those of good frames that crossed the wire; bytes are counted without CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Good frames received that passed the filters.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames sent to the wire.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames received and not delivered, by cause.
    pub drops: Drops,
}

/// Packets of a capture file that a port could not give as they were on their network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Packets of interfaces that are not Ethernet, which were skipped.
    pub not_ethernet: u64,
    /// Received frames that the capture had cut to its snap length: their ends are missing.
    pub snapped: u64,
}

/// Frames that were not delivered, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The queue had no descriptor for it: the program was too slow.
    pub no_descriptor: u64,
    /// Times that a queue found a packet but the pool had no buffer to exchange for it. The packet
    /// waits; this is not a loss by itself.
    pub no_buffer: u64,
    /// The checksum at its end was wrong.
    pub bad_crc: u64,
    /// Shorter than 64 bytes with CRC; at a port of a switch, packets from it that are shorter than an Ethernet header.
    pub undersize: u64,
    /// Longer than the port's longest frame.
    pub oversize: u64,
    /// Other faults of the frame: symbol errors, lengths that do not agree.
    pub bad_frame: u64,
    /// The descriptor reported an error, or a chain longer than a card may make.
    pub malformed: u64,
    /// Packets that the port cannot send: longer than its longest frame, and on a card than that with a VLAN tag (4 bytes); or
    /// unfinished (`?offloads=on`), and impossible to finish or to segment.
    pub tx_too_long: u64,
    /// Dropped deliberately, by `faulty:`.
    pub injected: u64,
}

impl Drops {
    /// Returns each cause's name and count.
    pub fn by_cause(&self) -> [(&'static str, u64); 9] {
        [
            ("no_descriptor", self.no_descriptor),
            ("no_buffer", self.no_buffer),
            ("bad_crc", self.bad_crc),
            ("undersize", self.undersize),
            ("oversize", self.oversize),
            ("bad_frame", self.bad_frame),
            ("malformed", self.malformed),
            ("tx_too_long", self.tx_too_long),
            ("injected", self.injected),
        ]
    }
}

/// Adds each cause. A new one does not compile until it is here.
impl AddAssign for Drops {
    fn add_assign(&mut self, other: Drops) {
        let Drops {
            no_descriptor,
            no_buffer,
            bad_crc,
            undersize,
            oversize,
            bad_frame,
            malformed,
            tx_too_long,
            injected,
        } = other;
        self.no_descriptor += no_descriptor;
        self.no_buffer += no_buffer;
        self.bad_crc += bad_crc;
        self.undersize += undersize;
        self.oversize += oversize;
        self.bad_frame += bad_frame;
        self.malformed += malformed;
        self.tx_too_long += tx_too_long;
        self.injected += injected;
    }
}

/// The counters of one queue, in a cache line of their own.
///
/// Only the queue's owner writes, once per batch with plain stores; any thread may read.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct QueueCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Slots less packets: those of chains behind the first, and all where the card counts the packets.
    more_slots: AtomicU64,
    no_buffer: AtomicU64,
    dropped: AtomicU64,
    no_descriptor: AtomicU64,
    oversize: AtomicU64,
}

impl QueueCounters {
    #[inline(always)]
    fn add(counter: &AtomicU64, count: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts slots of a card that counts packets itself.
    #[inline(always)]
    pub fn moved(&self, slots: usize) {
        Self::add(&self.more_slots, slots as u64);
    }

    /// Counts packets of a device that has no counters.
    #[inline(always)]
    pub fn moved_packets(&self, packets: usize, slots: usize, bytes: usize) {
        Self::add(&self.packets, packets as u64);
        Self::add(&self.bytes, bytes as u64);
        // A store less for most packets.
        if slots != packets {
            Self::add(&self.more_slots, (slots as u64).wrapping_sub(packets as u64));
        }
    }

    /// Counts that a packet waits for a buffer.
    #[cold]
    pub fn found_no_buffer(&self) {
        Self::add(&self.no_buffer, 1);
    }

    /// Counts a packet that the queue cannot take or send.
    #[cold]
    pub fn dropped(&self) {
        Self::add(&self.dropped, 1);
    }

    /// Counts packets that did not come into the queue: it had no descriptor for them, or they were too long.
    #[cold]
    pub fn missed(&self, no_descriptor: u32, oversize: u32) {
        Self::add(&self.no_descriptor, no_descriptor.into());
        Self::add(&self.oversize, oversize.into());
    }

    /// Counts packets that [`moved_packets`](Self::moved_packets) has counted, and their bytes, as dropped.
    #[cold]
    pub fn take_back(&self, (packets, bytes): (usize, usize)) {
        let take = |counter: &AtomicU64, count: usize| {
            counter.store(counter.load(Ordering::Relaxed).saturating_sub(count as u64), Ordering::Relaxed);
        };
        let before = self.packets();
        take(&self.packets, packets);
        take(&self.bytes, bytes);
        Self::add(&self.more_slots, before - self.packets());
        Self::add(&self.dropped, packets as u64);
    }

    /// Returns the count of slots received or sent.
    pub fn slots(&self) -> u64 {
        self.packets().wrapping_add(self.more_slots.load(Ordering::Relaxed))
    }

    /// Returns the count of packets received or sent; 0 where the card counts them.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns the count of their bytes; 0 where the card counts them.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how often the pool was exhausted.
    pub fn no_buffer(&self) -> u64 {
        self.no_buffer.load(Ordering::Relaxed)
    }

    /// Returns the count of packets that the queue dropped.
    pub fn drops(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the count of packets for which the queue had no descriptor; 0 where the port counts them.
    pub fn no_descriptor(&self) -> u64 {
        self.no_descriptor.load(Ordering::Relaxed)
    }

    /// Returns the count of packets that were too long for the queue; 0 where the port counts them.
    pub fn oversize(&self) -> u64 {
        self.oversize.load(Ordering::Relaxed)
    }
}

/// The slots that each queue has moved, and the packets that it had no room for, since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Received, by receive queue.
    pub rx_slots: Vec<u64>,
    /// Sent, by transmit queue.
    pub tx_slots: Vec<u64>,
    /// Packets that each receive queue had no room for, part of [`Drops::no_descriptor`]; empty where the port does not count
    /// them by queue.
    pub rx_no_descriptor: Vec<u64>,
}
