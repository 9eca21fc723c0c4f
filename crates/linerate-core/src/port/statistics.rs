//! The counters of ports and queues.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port's counters since it was opened.
///
/// Packets and bytes count only good frames that crossed the wire. Bytes exclude the CRC.
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

/// Packets of a capture file that a port could not deliver unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Packets that were skipped, because they have another link type than Ethernet, and no Ethernet header was added.
    pub not_ethernet: u64,
    /// Packets that were skipped, because they are shorter than an Ethernet header.
    pub too_short: u64,
    /// Frames that the file has with more bytes than their own length; the bytes beyond it were left out.
    pub surplus: u64,
    /// Frames that are incomplete, because the capture was limited to a snap length.
    pub snapped: u64,
}

impl AddAssign for CaptureCounts {
    fn add_assign(&mut self, other: CaptureCounts) {
        let CaptureCounts { not_ethernet, too_short, surplus, snapped } = other;
        self.not_ethernet += not_ethernet;
        self.too_short += too_short;
        self.surplus += surplus;
        self.snapped += snapped;
    }
}

/// Frames that were not delivered, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The queue had no descriptor for the frame: the program was too slow.
    pub no_descriptor: u64,
    /// How often a queue had received a packet but the pool had no buffer to replace it. The packet waits, so this is
    /// not a loss by itself.
    pub no_buffer: u64,
    /// The CRC was wrong.
    pub bad_crc: u64,
    /// Shorter than 64 bytes with CRC. On a port of a switch: packets from the port that are shorter than an Ethernet
    /// header.
    pub undersize: u64,
    /// Longer than the port's longest frame.
    pub oversize: u64,
    /// Other errors of the frame: symbol errors, inconsistent lengths.
    pub bad_frame: u64,
    /// The descriptor reported an error, or the descriptor chain was too long.
    pub malformed: u64,
    /// Packets that the port cannot send. They are longer than its longest frame (on a card, plus 4 bytes for a VLAN
    /// tag), or they have pending offloads (`?offloads=on`) that cannot be done.
    pub tx_too_long: u64,
    /// Dropped deliberately, by `faulty:` or `link:`.
    pub injected: u64,
    /// Received packets that were still in an emulated link when the queue stopped. Packets in a transmit queue of a
    /// virtual function when its physical function was reset.
    pub in_flight: u64,
}

impl Drops {
    /// Returns each cause's name and count.
    pub fn by_cause(&self) -> [(&'static str, u64); 10] {
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
            ("in_flight", self.in_flight),
        ]
    }
}

/// Adds each cause. The exhaustive pattern ensures that a new cause is not forgotten.
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
            in_flight,
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
        self.in_flight += in_flight;
    }
}

/// The counters of one queue, in a separate cache line.
///
/// Only the queue's owner writes them, once per batch and with plain stores. Any thread may read them.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct QueueCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Slots minus packets: the slots of chains after the first; if the card counts the packets, all slots.
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

    /// Counts slots, for a card that counts packets itself.
    #[inline(always)]
    pub fn moved(&self, slots: usize) {
        Self::add(&self.more_slots, slots as u64);
    }

    /// Counts packets, slots and bytes, for a device without counters.
    #[inline(always)]
    pub fn moved_packets(&self, packets: usize, slots: usize, bytes: usize) {
        Self::add(&self.packets, packets as u64);
        Self::add(&self.bytes, bytes as u64);
        // Saves a store in the common case.
        if slots != packets {
            Self::add(&self.more_slots, (slots as u64).wrapping_sub(packets as u64));
        }
    }

    /// Counts that a packet has to wait for a buffer.
    #[cold]
    pub fn found_no_buffer(&self) {
        Self::add(&self.no_buffer, 1);
    }

    /// Counts a packet that the queue dropped, because it cannot receive or send it.
    #[cold]
    pub fn dropped(&self) {
        Self::add(&self.dropped, 1);
    }

    /// Counts packets that did not reach the queue: it had no descriptor for them, or they were too long.
    #[cold]
    pub fn missed(&self, no_descriptor: u32, oversize: u32) {
        Self::add(&self.no_descriptor, no_descriptor.into());
        Self::add(&self.oversize, oversize.into());
    }

    /// Undoes [`moved_packets`](Self::moved_packets) for packets and their bytes, and counts the packets as dropped.
    #[cold]
    pub fn recount_as_dropped(&self, (packets, bytes): (usize, usize)) {
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

    /// Returns the count of packets received or sent; 0 if the card counts them.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns the count of bytes received or sent; 0 if the card counts them.
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

    /// Returns the count of packets for which the queue had no descriptor; 0 if the port counts them.
    pub fn no_descriptor(&self) -> u64 {
        self.no_descriptor.load(Ordering::Relaxed)
    }

    /// Returns the count of packets that were too long for the queue; 0 if the port counts them.
    pub fn oversize(&self) -> u64 {
        self.oversize.load(Ordering::Relaxed)
    }
}

/// Counters by queue since the port was opened: slots moved, and packets without a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Slots received, by receive queue.
    pub rx_slots: Vec<u64>,
    /// Slots sent, by transmit queue.
    pub tx_slots: Vec<u64>,
    /// Packets for which each receive queue had no descriptor, included in [`Drops::no_descriptor`]; empty if the port
    /// does not count them by queue.
    pub rx_no_descriptor: Vec<u64>,
}
