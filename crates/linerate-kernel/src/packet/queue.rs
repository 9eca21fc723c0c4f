//! Receive and send, top-down: packets are copied once, from the kernel's blocks to buffers, and from buffers to its
//! frames.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::batch::Batch;
use linerate_core::filter::Filter;
use linerate_core::memory::Pool;
use linerate_core::offload::{Headers, LONGEST, Offload, Segmentation, cut};
use linerate_core::packet::Origin;
use linerate_core::port::{QueueCounters, Receive, SendFinished, Transmit};

use super::socket::{BLOCK, HEADER, Receiving, Socket, Transmitting};
use crate::interface::LongestFrame;

// Offsets in a block (`struct tpacket_block_desc`): status, count of packets, offset of the first.
const BLOCK_STATUS: usize = 8;
const BLOCK_PACKETS: usize = 12;
const BLOCK_FIRST: usize = 16;
// Offsets in a packet's header (`struct tpacket3_hdr`): next packet, time, captured length, length, status, offset of
// the data, and VLAN tag.
const NEXT: usize = 0;
const SECONDS: usize = 4;
const NANOSECONDS: usize = 8;
const CAPTURED: usize = 12;
const LENGTH: usize = 16;
const STATUS: usize = 20;
const BEGIN: usize = 24;
const TAG: usize = 32;
const TAG_TYPE: usize = 36;
// Offsets in the address after the header (`struct sockaddr_ll`): the interface's index, and its link type in the lower
// half of a word.
const INTERFACE: usize = 48 + 4;
const LINK_TYPE: usize = 48 + 8;

/// Frames up to this length are declared to be all headers. The kernel copies headers, and maps the rest as pages,
/// which costs more than a copy.
const COPIED: usize = 1518;
/// The length of an Ethernet header; the kernel refuses shorter frames.
const SHORTEST: usize = 14;

/// A receive queue.
pub(super) struct PacketRx {
    pub(super) socket: Arc<Socket>,
    pub(super) position: Receiving,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// The packets to deliver; all if `None`.
    pub(super) flow: Option<Filter>,
    /// Large packets, and packets without a checksum, may be delivered unchanged.
    pub(super) offloads: bool,
    /// Timestamps are recorded.
    pub(super) timestamps: bool,
    pub(super) longest: usize,
    /// Packets arrive from all interfaces, which is recorded. Those without Ethernet headers are dropped.
    pub(super) is_any: bool,
    /// Segments of a large packet that the last batch had no room for.
    pub(super) segments: VecDeque<(Vec<u8>, u64, Origin)>,
}

/// The maximum number of packets to examine in one call, even if the filter rejects nearly all.
const MAX_EXAMINED: usize = 1024;
/// The bytes that decide most filters: Ethernet header and a tag, IPv4 header with options, ports.
const FILTER_BYTES: usize = 14 + 4 + 60 + 4;

/// A packet in a block.
struct Found {
    begin: usize,
    len: usize,
    offload: Offload,
    tag: Option<[u8; 4]>,
    /// Receive time in nanoseconds.
    time: u64,
    origin: Origin,
}

/// Returns whether packets of an interface with this link type (linux/if_arp.h) begin with an Ethernet header.
fn is_ethernet(link_type: u16) -> bool {
    matches!(link_type, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
}

impl PacketRx {
    /// Returns the next packet of a block; `None` if none is available.
    fn find(&mut self) -> Option<Found> {
        loop {
            let base = self.position.block * BLOCK;
            let memory = &self.socket.memory;
            if self.position.left == 0 {
                let status = memory.word(base + BLOCK_STATUS).load(Acquire);
                if status & libc::TP_STATUS_USER == 0 {
                    return None;
                }
                self.position.left = memory.word(base + BLOCK_PACKETS).load(Relaxed);
                self.position.next = base.saturating_add(memory.word(base + BLOCK_FIRST).load(Relaxed) as usize);
                if self.position.left == 0 {
                    self.give_back();
                    continue;
                }
            }
            // Offsets from the kernel are checked against the block's bounds.
            let end = base + BLOCK;
            let header = self.position.next;
            if !header.is_multiple_of(8) || header.saturating_add(TAG_TYPE + 4) > end {
                self.counters.dropped();
                self.give_back();
                continue;
            }
            let word = |at: usize| memory.word(header + at).load(Relaxed);
            let (len, status) = (word(CAPTURED) as usize, word(STATUS));
            let begin = header + (word(BEGIN) & 0xFFFF) as usize;
            if begin < header + Offload::LEN
                || begin.saturating_add(len) > end
                || len < 14
                || word(LENGTH) as usize != len
                || self.is_any && (begin < header + LINK_TYPE + 4 || !is_ethernet(word(LINK_TYPE) as u16))
            {
                self.counters.dropped();
                self.advance();
                continue;
            }
            let mut offload = Offload([0; Offload::LEN]);
            memory.read(begin - Offload::LEN, &mut offload.0);
            let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
                let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { word(TAG_TYPE) as u16 } else { 0x8100 };
                let ([a, b], [c, d]) = (kind.to_be_bytes(), (word(TAG) as u16).to_be_bytes());
                [a, b, c, d]
            });
            let time = u64::from(word(SECONDS)) * 1_000_000_000 + u64::from(word(NANOSECONDS));
            let origin = if self.is_any { Origin::Interface(word(INTERFACE)) } else { Origin::Kernel };
            return Some(Found { begin, len, offload, tag, time, origin });
        }
    }

    /// Advances to the next packet.
    fn advance(&mut self) {
        self.position.left -= 1;
        if self.position.left == 0 {
            return self.give_back();
        }
        self.position.next = self
            .position
            .next
            .saturating_add(self.socket.memory.word(self.position.next + NEXT).load(Relaxed) as usize);
    }

    /// Returns the block to the kernel.
    fn give_back(&mut self) {
        self.position.left = 0;
        self.socket.memory.word(self.position.block * BLOCK + BLOCK_STATUS).store(libc::TP_STATUS_KERNEL, Release);
        self.position.block = (self.position.block + 1) % self.socket.blocks;
    }

    /// Returns whether the filter matches the packet, with a stripped tag restored.
    fn matches(&self, found: &Found) -> bool {
        let Some(flow) = &self.flow else { return true };
        let mut bytes = [0; FILTER_BYTES + 4];
        let decided = flow.decide(self.beginning(found, &mut bytes));
        decided.unwrap_or_else(|| {
            // The fields may follow, after extension headers or inside a tunnel.
            found.len > FILTER_BYTES && flow.matches(self.beginning(found, &mut vec![0; found.len + 4]))
        })
    }

    /// Copies a packet as far as it fits into `bytes` with a tag, and restores a stripped tag.
    fn beginning<'a>(&self, found: &Found, bytes: &'a mut [u8]) -> &'a [u8] {
        let mut len = found.len.min(bytes.len() - 4);
        self.socket.memory.read(found.begin, &mut bytes[..len]);
        if let Some(tag) = found.tag {
            bytes.copy_within(12..len, 16);
            bytes[12..16].copy_from_slice(&tag);
            len += tag.len();
        }
        &bytes[..len]
    }

    /// Appends a packet; returns false if there is no room.
    fn take(&mut self, batch: &mut Batch, found: &Found) -> bool {
        let Found { begin, len, offload, tag, time, origin } = *found;
        let memory = &self.socket.memory;
        let is_cut = match offload.segmentation() {
            Segmentation::None => false,
            _ => !self.offloads,
        };
        if len > if self.offloads || is_cut { LONGEST } else { self.longest } {
            self.counters.missed(0, 1);
            return true;
        }
        if is_cut || tag.is_some() {
            return self.take_changed(found);
        }
        let left = Some(offload).filter(|offload| offload.is_needed());
        if !batch.push_filled(&self.pool, len, left, |at, target| memory.read(begin + at, target)) {
            if !batch.can_hold(&self.pool, len) {
                self.counters.dropped();
                return true;
            }
            self.counters.found_no_buffer();
            return false;
        }
        self.counters.moved_packets(1, 0, len);
        if self.timestamps {
            batch.stamp_last_of(time, origin);
        }
        if !self.offloads && !batch.finish_last() {
            self.counters.dropped();
        }
        true
    }

    /// Queues the segments of a large packet, or a packet whose VLAN tag the kernel has stripped.
    #[cold]
    fn take_changed(&mut self, found: &Found) -> bool {
        let mut bytes = vec![0; found.len];
        self.socket.memory.read(found.begin, &mut bytes);
        let mut offload = found.offload;
        if let Some(tag) = found.tag {
            bytes.splice(12..12, tag);
            offload.moved(tag.len() as i16);
        }
        let (segments, longest) = (&mut self.segments, if self.offloads { LONGEST } else { self.longest });
        let mut fits = true;
        let mut keep = |bytes: Vec<u8>| match bytes.len() <= longest {
            true => segments.push_back((bytes, found.time, found.origin)),
            false => fits = false,
        };
        let is_made = match offload.segmentation() {
            Segmentation::None => {
                offload.finish_bytes(&mut bytes);
                keep(bytes);
                true
            }
            _ => cut(&bytes, offload, |segment| keep(segment.to_vec())),
        };
        if !is_made {
            self.counters.dropped();
        } else if !fits {
            self.counters.missed(0, 1);
        }
        true
    }
}

impl Receive for PacketRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        for _ in 0..MAX_EXAMINED {
            while let Some((segment, time, origin)) = self.segments.front() {
                if !batch.push_parts(&self.pool, segment.len(), std::iter::once(&segment[..]), None) {
                    if !batch.can_hold(&self.pool, segment.len()) {
                        self.counters.dropped();
                        self.segments.pop_front();
                        continue;
                    }
                    break;
                }
                if self.timestamps {
                    batch.stamp_last_of(*time, *origin);
                }
                self.counters.moved_packets(1, 0, segment.len());
                self.segments.pop_front();
            }
            if batch.len() >= batch.capacity() || !self.segments.is_empty() {
                break;
            }
            let Some(found) = self.find() else { break };
            if self.matches(&found) && !self.take(batch, &found) {
                break;
            }
            self.advance();
        }
        self.counters.moved(batch.len() - before);
        batch.len() - before
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        // An interface that went down leaves an error, which makes every poll(2) return until it is read.
        let _ = rustix::net::sockopt::socket_error(self.socket.as_fd());
        Some(self.socket.as_fd())
    }
}

impl Drop for PacketRx {
    fn drop(&mut self) {
        *self.socket.receiving.lock().unwrap_or_else(PoisonError::into_inner) = self.position;
    }
}

/// A transmit queue.
pub(super) struct PacketTx {
    pub(super) socket: Arc<Socket>,
    pub(super) position: Transmitting,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) longest: LongestFrame,
    pub(super) retry: Retry,
}

/// The backoff for a frame that the interface does not accept: it is down, has no carrier, or no room. The kernel
/// counts each attempt without a carrier as a dropped packet.
#[derive(Default)]
pub(super) struct Retry {
    /// The time of the next attempt; `None` while frames are accepted.
    at: Option<Instant>,
    pause: Duration,
}

/// The first pause: the time in which a card sends a few packets and has room again.
const SHORTEST_PAUSE: Duration = Duration::from_micros(10);
/// The longest pause: the delay with which an interface that is up again is noticed.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

impl Retry {
    fn is_due(&self) -> bool {
        self.at.is_none_or(|at| Instant::now() >= at)
    }

    /// Doubles the pause after an attempt that failed.
    #[cold]
    fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.at = Some(Instant::now() + self.pause);
    }
}

impl PacketTx {
    fn offset(&self, frame: usize) -> usize {
        self.socket.sending + frame * self.socket.frame
    }

    fn status(&self, frame: usize) -> u32 {
        self.socket.memory.word(self.offset(frame) + STATUS).load(Acquire)
    }

    /// Returns the frame `count` frames before the next frame.
    fn before_next(&self, count: usize) -> usize {
        (self.position.next + self.socket.frames - count) % self.socket.frames
    }

    /// Drops the oldest frame, which the kernel refuses because its offloads are malformed. The kernel stays at this
    /// position, so later frames move up.
    #[cold]
    fn remove_refused(&mut self) {
        let memory = &self.socket.memory;
        let mut bytes = vec![0; self.socket.frame];
        for count in (1..self.position.pending).rev() {
            memory.read(self.offset(self.before_next(count)), &mut bytes);
            memory.write(self.offset(self.before_next(count + 1)), &bytes);
        }
        self.position.next = self.before_next(1);
        self.position.pending -= 1;
        memory.word(self.offset(self.position.next) + STATUS).store(libc::TP_STATUS_AVAILABLE, Release);
        self.counters.dropped();
    }

    /// Counts the frames that the kernel has taken since the last call, up to the first frame that it has not taken.
    /// That frame is not sent yet: the interface is down, has no carrier, or no room.
    fn count_taken(&mut self, slots: usize) {
        let (mut packets, mut bytes) = (0, 0);
        while self.position.pending > 0 {
            let frame = self.before_next(self.position.pending);
            let status = self.status(frame);
            if status & libc::TP_STATUS_SEND_REQUEST != 0 {
                break;
            }
            if status & libc::TP_STATUS_WRONG_FORMAT != 0 {
                self.remove_refused();
                continue;
            }
            let len = self.socket.memory.word(self.offset(frame) + LENGTH).load(Relaxed) as usize;
            (packets, bytes) = (packets + 1, bytes + len.saturating_sub(Offload::LEN));
            self.position.pending -= 1;
        }
        self.counters.moved_packets(packets, slots, bytes);
    }
}

impl Transmit for PacketTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        self.finish_and_send(batch)
    }

    fn unsent(&self) -> usize {
        self.position.pending
    }
}

/// Returns whether the kernel can do the offloads of a packet of `len` bytes that begins with these bytes. The kernel
/// would drop another packet after it has taken it from the ring, and stay at its frame for ever.
fn is_possible(left: Offload, first: &[u8], len: usize) -> bool {
    match left.segmentation() {
        Segmentation::None => left.checksum_offsets(first.len()).is_some(),
        // Linux before 6.2 refuses UDP segmentation.
        Segmentation::Udp => false,
        _ => Headers::of(first, len, left).is_some_and(|headers| len > headers.len + headers.size),
    }
}

impl SendFinished for PacketTx {
    fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    fn send_finished(&mut self, batch: &mut Batch) -> (usize, bool) {
        let (mut slots, mut is_to_be_finished) = (0, false);
        for packet in batch.packets() {
            let busy = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING;
            if self.status(self.position.next) & busy != 0 {
                break;
            }
            let (len, offload) = (packet.len(), packet.offload());
            // Without offloads, the ring's frames only have room for packets of ordinary length.
            let is_for_kernel =
                |left| is_possible(left, &packet, len) && HEADER + Offload::LEN + len <= self.socket.frame;
            if offload.is_some_and(|left| !is_for_kernel(left)) {
                is_to_be_finished = true;
                break;
            }
            slots += packet.slots();
            let fits = if offload.is_some() { len <= LONGEST } else { self.longest.fits(len, &packet) };
            let mut at = self.offset(self.position.next) + HEADER;
            if !fits || len < SHORTEST || HEADER + Offload::LEN + len > self.socket.frame {
                self.counters.dropped();
                continue;
            }
            let memory = &self.socket.memory;
            let mut left = offload.unwrap_or(Offload([0; Offload::LEN]));
            if len <= COPIED {
                left.set_headers(len as u16);
            }
            memory.write(at, &left.0);
            at += Offload::LEN;
            for segment in packet.segments() {
                memory.write(at, segment);
                at += segment.len();
            }
            let header = self.offset(self.position.next);
            memory.word(header + NEXT).store(0, Relaxed);
            memory.word(header + CAPTURED).store((Offload::LEN + len) as u32, Relaxed);
            memory.word(header + LENGTH).store((Offload::LEN + len) as u32, Relaxed);
            memory.word(header + STATUS).store(libc::TP_STATUS_SEND_REQUEST, Release);
            self.position.next = (self.position.next + 1) % self.socket.frames;
            self.position.pending += 1;
        }
        batch.drop_front(slots);
        let pending = self.position.pending;
        let is_refused = pending > 0 && self.retry.is_due() && !self.socket.push();
        self.count_taken(slots);
        if is_refused && self.position.pending == pending {
            self.retry.failed();
        } else if self.position.pending < pending {
            self.retry = Retry::default();
        }
        (slots, is_to_be_finished)
    }
}

impl Drop for PacketTx {
    fn drop(&mut self) {
        *self.socket.transmitting.lock().unwrap_or_else(PoisonError::into_inner) = self.position;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use linerate_core::memory::{Mapping, PageSize, Pages, Region, RegionOptions};
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: usize = 4;

    /// Feeds malformed blocks: every received packet is inside its block, and receiving ends.
    #[test]
    fn malformed_blocks_give_only_valid_packets() {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        // Nearly valid or invalid: offset of the next packet, length, status, offset of the data, and tag.
        let next = prop_oneof![4 => Just(64u32), 1 => any::<u32>(), 1 => Just(BLOCK as u32 - 200)];
        let len = prop_oneof![4 => 14..9000u32, 1 => 0..20u32, 1 => 0..BLOCK as u32 + 10, 1 => any::<u32>()];
        let begin = prop_oneof![4 => 48..200u32, 1 => 0..20u32, 1 => any::<u32>()];
        let header = (next, len, any::<u32>(), begin, any::<u32>(), prop::bool::weighted(0.9));
        let first = prop_oneof![4 => Just(48u32), 1 => Just(0u32), 1 => any::<u32>()];
        let blocks = prop::collection::vec((first, 0..20u32, prop::collection::vec(header, 1..20)), BLOCKS);
        let cases = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(cases, |(blocks in blocks, offloads in any::<bool>())| {
            let memory = Mapping::new(BLOCKS * BLOCK, PageSize::Ordinary, None).unwrap();
            for (block, (first, packets, headers)) in blocks.iter().enumerate() {
                let base = block * BLOCK;
                let at = |offset: usize, value: u32| memory.word(base + offset).store(value, Relaxed);
                for (n, (next, len, status, begin, tag, whole)) in headers.iter().enumerate() {
                    // The last header is at the block's end.
                    let header = if n + 1 == headers.len() { BLOCK - 152 } else { 48 + n * 64 };
                    at(header + NEXT, *next);
                    at(header + CAPTURED, *len);
                    at(header + LENGTH, if *whole { *len } else { len.wrapping_add(1) });
                    at(header + STATUS, *status);
                    at(header + BEGIN, *begin);
                    at(header + TAG, *tag);
                }
                at(BLOCK_PACKETS, *packets);
                at(BLOCK_FIRST, *first);
                at(BLOCK_STATUS, libc::TP_STATUS_USER);
            }
            let fd: OwnedFd = rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let socket = Arc::new(Socket::for_test(fd, memory, BLOCKS));
            let mut rx = PacketRx {
                socket,
                position: Receiving::default(),
                pool: pool.clone(),
                counters: Arc::default(),
                flow: Some("udp,vlan:7,all".parse().unwrap()),
                offloads,
                timestamps: true,
                longest: 1518,
                is_any: false,
                segments: VecDeque::new(),
            };
            let mut batch = Batch::new();
            for _ in 0..100 {
                rx.recv(&mut batch);
                for packet in batch.packets() {
                    let longest = if offloads { LONGEST } else { 1518 };
                    prop_assert!((14..=longest).contains(&packet.len()));
                }
                batch.clear();
            }
            prop_assert!(rx.find().is_none(), "the kernel owns all blocks again");
            drop((rx, batch));
            prop_assert_eq!(pool.available(), 512);
        });
    }

    /// Creates a queue over blocks that no kernel fills.
    fn receiver(blocks: usize) -> PacketRx {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None };
        let memory = Mapping::new(blocks * BLOCK, PageSize::Ordinary, None).unwrap();
        let fd: OwnedFd = rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        PacketRx {
            socket: Arc::new(Socket::for_test(fd, memory, blocks)),
            position: Receiving::default(),
            pool: Pool::new(Region::new(&options).unwrap()),
            counters: Arc::default(),
            flow: None,
            offloads: false,
            timestamps: false,
            longest: 1518,
            is_any: false,
            segments: VecDeque::new(),
        }
    }

    /// Writes a packet's header at an offset of the memory, and `bytes` as its data, `begin` bytes after the header's
    /// start.
    fn put(rx: &PacketRx, offset: usize, next: u32, begin: u32, len: u32, bytes: &[u8]) {
        let memory = &rx.socket.memory;
        let words = [(NEXT, next), (CAPTURED, len), (LENGTH, len), (STATUS, 0), (BEGIN, begin)];
        words.iter().for_each(|(at, value)| memory.word(offset + at).store(*value, Relaxed));
        memory.write(offset + begin as usize, bytes);
    }

    /// Hands over block `block` with `packets` packets, the first at offset `first`.
    fn hand_over(rx: &PacketRx, block: usize, packets: u32, first: u32) {
        let at = |offset: usize| rx.socket.memory.word(block * BLOCK + offset);
        at(BLOCK_PACKETS).store(packets, Relaxed);
        at(BLOCK_FIRST).store(first, Relaxed);
        at(BLOCK_STATUS).store(libc::TP_STATUS_USER | 1 << 5, Relaxed);
    }

    fn received(rx: &mut PacketRx) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        rx.recv(&mut batch);
        batch.packets().map(|packet| packet.segments().flatten().copied().collect()).collect()
    }

    #[test]
    fn packets_of_blocks_come_in_order_and_blocks_go_back() {
        let mut rx = receiver(2);
        for round in 0..3u8 {
            for block in 0..2 {
                let base = block * BLOCK;
                let byte = 10 * round + block as u8;
                put(&rx, base + 48, 160, 96, 14, &[byte; 14]);
                put(&rx, base + 208, 4096, 80, 60, &[byte + 5; 60]);
                put(&rx, base + 4304, 0, 64, 20, &[byte + 7; 20]);
                hand_over(&rx, block, 3, 48);
                let expected = [vec![byte; 14], vec![byte + 5; 60], vec![byte + 7; 20]];
                assert_eq!(received(&mut rx), expected);
                assert_eq!(rx.socket.memory.word(base + BLOCK_STATUS).load(Relaxed), libc::TP_STATUS_KERNEL);
                assert!(received(&mut rx).is_empty());
            }
        }
        // A block without packets is skipped.
        hand_over(&rx, 0, 0, 48);
        put(&rx, BLOCK + 48, 0, 96, 14, &[99; 14]);
        hand_over(&rx, 1, 1, 48);
        assert_eq!(received(&mut rx), [[99; 14]]);
    }

    #[test]
    fn a_packet_is_taken_up_to_the_end_of_its_block_and_no_further() {
        let last = BLOCK - (TAG_TYPE + 4);
        let end = BLOCK as u32;
        // The header's offset, the data's offset from the header, the data's length, and whether the packet is valid.
        for (header, begin, len, is_one) in [
            (48, 10, 14, true),
            (48, 9, 14, false),
            (48, 0, 14, false),
            (48, 96, 13, false),
            (48, 96, 0, false),
            (48, 96, 1518, true),
            (BLOCK - 200, 100, 100, true),
            (BLOCK - 200, 100, 101, false),
            (BLOCK - 200, 100, u32::MAX, false),
            (BLOCK - 200, 186, 14, true),
            (last, 10, 30, true),
            (last, 10, 31, false),
            (last + 8, 10, 14, false),
            (BLOCK, 10, 14, false),
            (52, 96, 60, false),
            (49, 96, 60, false),
        ] {
            let mut rx = receiver(2);
            if header.is_multiple_of(4) && header < BLOCK {
                put(&rx, header, 0, begin, len, &[]);
            }
            hand_over(&rx, 0, 1, header as u32);
            put(&rx, BLOCK + 48, 0, 96, 14, &[99; 14]);
            hand_over(&rx, 1, 1, 48);
            let lens: Vec<_> = received(&mut rx).iter().map(Vec::len).collect();
            let expected = if is_one { vec![len as usize, 14] } else { vec![14] };
            assert_eq!(lens, expected, "header {header}, {len} bytes at {begin}");
        }
        // Offsets outside the second block, also by overflow.
        for first in [u32::MAX, u32::MAX - 7, end, end - 8, 0u32.wrapping_sub(end)] {
            let mut rx = receiver(2);
            rx.position.block = 1;
            put(&rx, 48, 0, 96, 14, &[7; 14]);
            hand_over(&rx, 1, 1, first);
            assert!(received(&mut rx).is_empty(), "first at {first}");
        }
        // A packet truncated by the kernel is dropped.
        let mut rx = receiver(2);
        put(&rx, 48, 0, 96, 60, &[]);
        rx.socket.memory.word(48 + LENGTH).store(61, Relaxed);
        hand_over(&rx, 0, 1, 48);
        assert!(received(&mut rx).is_empty());
    }

    /// `tp_mac` is the lower half of its word; the upper half, the offset of the network header, is unused.
    #[test]
    fn the_lower_half_of_its_word_is_where_a_packet_begins() {
        let mut rx = receiver(2);
        put(&rx, 48, 0, 96, 14, &[5; 14]);
        rx.socket.memory.word(48 + BEGIN).store(110 << 16 | 96, Relaxed);
        hand_over(&rx, 0, 1, 48);
        assert_eq!(received(&mut rx), [[5; 14]]);
    }

    #[test]
    fn a_vlan_tag_that_the_kernel_has_stripped_is_restored() {
        let bytes: Vec<u8> = (0..60).collect();
        let (valid, with_kind) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        let tagged = |tag: [u8; 4]| [&bytes[..12], &tag, &bytes[12..]].concat();
        for (status, expected) in [
            (0, bytes.clone()),
            (!(valid | with_kind), bytes.clone()),
            (with_kind, bytes.clone()),
            (valid, tagged([0x81, 0, 0x20, 7])),
            (valid | with_kind, tagged([0x88, 0xA8, 0x20, 7])),
        ] {
            for flow in [None, Some("all")] {
                let mut rx = receiver(2);
                rx.flow = flow.map(|flow| flow.parse().unwrap());
                put(&rx, 48, 0, 96, 60, &bytes);
                let word = |at: usize, value: u32| rx.socket.memory.word(48 + at).store(value, Relaxed);
                word(STATUS, status);
                word(TAG, 0xFFFF_2007);
                word(TAG_TYPE, 0xFFFF_88A8);
                hand_over(&rx, 0, 1, 48);
                assert_eq!(received(&mut rx), std::slice::from_ref(&expected), "{status:x} {flow:?}");
            }
        }
    }

    /// The filter sees the tag where it was on the wire, and as much of the packet as without a tag.
    #[test]
    fn a_filter_sees_packets_as_on_the_wire() {
        use etherparse::PacketBuilder;
        let frame = |payload: usize| {
            let mut bytes = Vec::new();
            let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
            ip.udp(80, 4321).write(&mut bytes, &vec![0; payload]).unwrap();
            bytes
        };
        for (flow, is_tagged, is_match) in [
            ("udp:4321", false, true),
            ("udp:4321", true, true),
            ("udp:4322", false, false),
            ("udp:4322", true, false),
            ("vlan:7", false, false),
            ("vlan:7", true, true),
            ("vlan:8", true, false),
        ] {
            // The shortest packet ends with the last byte that the filter reads; of the longest, it reads only the
            // beginning.
            for bytes in [0, 30, 300].map(frame) {
                let mut rx = receiver(2);
                rx.flow = Some(flow.parse().unwrap());
                put(&rx, 48, 0, 96, bytes.len() as u32, &bytes);
                let word = |at: usize, value: u32| rx.socket.memory.word(48 + at).store(value, Relaxed);
                word(STATUS, if is_tagged { libc::TP_STATUS_VLAN_VALID } else { 0 });
                word(TAG, 7);
                hand_over(&rx, 0, 1, 48);
                assert_eq!(received(&mut rx).len(), usize::from(is_match), "{flow} {is_tagged} {}", bytes.len());
            }
        }
    }

    /// IPv4 with the longest options, after a tag that is in the packet or was stripped by the kernel.
    #[test]
    fn a_filter_sees_ports_behind_the_longest_headers() {
        for (is_taken_out, len) in [(false, 200), (false, 82), (true, 200), (true, 78)] {
            let mut bytes = vec![0; len];
            let network = if is_taken_out { 14 } else { 18 };
            bytes[12..14].copy_from_slice(&[0x81, 0]);
            bytes[network - 2..network + 1].copy_from_slice(&[8, 0, 0x4F]);
            bytes[network + 9] = 17;
            bytes[network + 62..network + 64].copy_from_slice(&4321u16.to_be_bytes());
            let mut rx = receiver(2);
            rx.flow = Some("udp:4321".parse().unwrap());
            put(&rx, 48, 0, 96, len as u32, &bytes);
            let status = if is_taken_out { libc::TP_STATUS_VLAN_VALID } else { 0 };
            rx.socket.memory.word(48 + STATUS).store(status, Relaxed);
            hand_over(&rx, 0, 1, 48);
            assert_eq!(received(&mut rx).len(), 1, "{len} bytes, taken out: {is_taken_out}");
        }
    }

    /// Eight destination options of 40 bytes each are longer than the beginning that most filters need.
    #[test]
    fn a_filter_sees_ports_behind_extension_headers() {
        let mut bytes = vec![0; 14 + 40 + 8 * 40 + 8];
        bytes[12..14].copy_from_slice(&[0x86, 0xDD]);
        bytes[20] = 60;
        for n in 0..8 {
            bytes[54 + 40 * n..][..2].copy_from_slice(&[if n < 7 { 60 } else { 17 }, 4]);
        }
        bytes[54 + 8 * 40 + 2..][..2].copy_from_slice(&4321u16.to_be_bytes());
        for (flow, is_taken_out, is_match) in [
            ("udp:4321", false, true),
            ("udp:4322", false, false),
            ("udp:4321+vlan:7", true, true),
            ("tcp", true, false),
        ] {
            let mut rx = receiver(2);
            rx.flow = Some(flow.parse().unwrap());
            put(&rx, 48, 0, 96, bytes.len() as u32, &bytes);
            let word = |at: usize, value: u32| rx.socket.memory.word(48 + at).store(value, Relaxed);
            word(STATUS, if is_taken_out { libc::TP_STATUS_VLAN_VALID } else { 0 });
            word(TAG, 7);
            hand_over(&rx, 0, 1, 48);
            assert_eq!(received(&mut rx).len(), usize::from(is_match), "{flow}");
        }
    }

    /// A port on all interfaces also gets the packets of tunnels.
    #[test]
    fn packets_without_an_ethernet_header_are_dropped() {
        for (link_type, is_match) in [(libc::ARPHRD_ETHER, true), (libc::ARPHRD_LOOPBACK, true), (0xFFFE, false)] {
            let mut rx = receiver(2);
            rx.is_any = true;
            put(&rx, 48, 0, 96, 60, &[0; 60]);
            rx.socket.memory.word(48 + LINK_TYPE).store(link_type.into(), Relaxed);
            hand_over(&rx, 0, 1, 48);
            assert_eq!(received(&mut rx).len(), usize::from(is_match), "{link_type}");
            assert_eq!(rx.counters.drops(), u64::from(!is_match));
        }
    }

    #[test]
    fn packets_longer_than_the_port_takes_are_dropped() {
        for (len, is_taken) in [(1518, true), (1519, false)] {
            let mut rx = receiver(2);
            put(&rx, 48, 0, 96, len, &[]);
            hand_over(&rx, 0, 1, 48);
            assert_eq!(received(&mut rx).len(), usize::from(is_taken), "{len}");
        }
    }

    /// Writes a TCP packet over IPv4 with 4,000 bytes of payload, preceded by its offloads. Returns its bytes.
    fn uncut(rx: &PacketRx, kind: u8) -> Vec<u8> {
        use etherparse::PacketBuilder;
        let ip = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
        let mut bytes = Vec::new();
        ip.tcp(80, 4321, 1, 1000).write(&mut bytes, &[7; 4000]).unwrap();
        put(rx, 48, 0, 96, bytes.len() as u32, &bytes);
        let [a, b] = 1000u16.to_le_bytes();
        rx.socket.memory.write(48 + 96 - Offload::LEN, &[1, kind, 54, 0, a, b, 34, 0, 16, 0]);
        hand_over(rx, 0, 1, 48);
        bytes
    }

    #[test]
    fn a_large_packet_is_segmented_unless_offloads_are_on() {
        let mut rx = receiver(2);
        uncut(&rx, 1);
        assert_eq!(received(&mut rx).iter().map(Vec::len).collect::<Vec<_>>(), [1054; 4]);
        assert_eq!((rx.counters.drops(), rx.buffers()), (0, 0));
        // One kind that cannot be segmented here, and one packet that is too long unsegmented.
        for kind in [0, 3] {
            uncut(&rx, kind);
            rx.position = Receiving::default();
            assert!(received(&mut rx).is_empty(), "kind {kind}");
        }
        assert_eq!((rx.counters.drops(), rx.counters.oversize()), (1, 1));
        // Segments longer than the port's frames are dropped, too.
        let mut rx = receiver(2);
        rx.longest = 1053;
        uncut(&rx, 1);
        assert!(received(&mut rx).is_empty());
        assert_eq!((rx.counters.drops(), rx.counters.oversize()), (0, 1));
        let mut rx = receiver(2);
        rx.offloads = true;
        let bytes = uncut(&rx, 1);
        let mut batch = Batch::new();
        rx.recv(&mut batch);
        let packet = batch.packets().next().unwrap();
        let left = packet.offload().unwrap();
        assert_eq!((packet.len(), left.segmentation()), (bytes.len(), Segmentation::TcpIpv4));
    }

    #[test]
    fn a_checksum_is_computed_unless_offloads_are_on() {
        for offloads in [false, true] {
            let mut rx = receiver(2);
            rx.offloads = offloads;
            put(&rx, 48, 0, 96, 60, &[1; 60]);
            rx.socket.memory.write(48 + 96 - Offload::LEN, &[1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
            hand_over(&rx, 0, 1, 48);
            let mut batch = Batch::new();
            rx.recv(&mut batch);
            let is_left = batch.packets().next().unwrap().offload().is_some();
            let first = (&mut batch).into_iter().next().unwrap();
            let stored = if offloads { [1, 1] } else { (!(13 * 0x0101u16)).to_be_bytes() };
            assert_eq!((is_left, &first[50..52]), (offloads, &stored[..]));
        }
    }

    #[test]
    fn packets_wait_in_their_block_while_a_batch_is_full() {
        let mut rx = receiver(2);
        (0..3).for_each(|n| put(&rx, 48 + 160 * n, 160, 96, 60, &[n as u8 + 1; 60]));
        hand_over(&rx, 0, 3, 48);
        let mut batch = Batch::with_capacity(2);
        assert_eq!((rx.recv(&mut batch), rx.recv(&mut batch)), (2, 0));
        batch.clear();
        assert_eq!(rx.recv(&mut batch), 1);
        // A dropped queue passes its position to the next queue.
        put(&rx, BLOCK + 48, 0, 96, 60, &[9; 60]);
        hand_over(&rx, 1, 1, 48);
        assert_eq!(rx.recv(&mut batch), 1);
        let socket = rx.socket.clone();
        drop(rx);
        let position = *socket.receiving.lock().unwrap();
        assert_eq!((position.block, position.left), (0, 0));
    }

    /// Creates a queue over frames that no kernel takes.
    fn sender(frames: usize) -> (PacketTx, Arc<Pool>) {
        let (tx, pool, _) = sender_of(frames, 2048);
        (tx, pool)
    }

    /// Like [`sender`], over frames of `frame` bytes, with the kernel's end of the socket.
    fn sender_of(frames: usize, frame: usize) -> (PacketTx, Arc<Pool>, OwnedFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let rx = receiver(1);
        let memory = Mapping::new(BLOCK + frames * frame, PageSize::Ordinary, None).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, kernel) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        let mut socket = Socket::for_test(fd, memory, 1);
        (socket.frames, socket.frame) = (frames, frame);
        let tx = PacketTx {
            socket: Arc::new(socket),
            position: Transmitting::default(),
            counters: Arc::default(),
            longest: LongestFrame::any(1900),
            retry: Retry::default(),
        };
        (tx, rx.pool.clone(), kernel)
    }

    #[test]
    fn a_packet_of_several_slots_is_in_one_frame() {
        let (mut tx, pool, _kernel) = sender_of(2, 4096);
        tx.longest = LongestFrame::any(9000);
        let bytes: Vec<u8> = (0..3000).map(|n| n as u8).collect();
        let mut batch = Batch::new();
        assert!(batch.push(&pool, &bytes) && batch.len() == 2);
        tx.socket.memory.word(BLOCK + NEXT).store(7, Relaxed);
        assert_eq!(tx.send(&mut batch), 2);
        let mut there = vec![0; 3000];
        tx.socket.memory.read(BLOCK + HEADER + Offload::LEN, &mut there);
        assert_eq!(there, bytes);
        assert_eq!(tx.socket.memory.word(BLOCK + NEXT).load(Relaxed), 0, "no packet follows it");
        let counted = |tx: &PacketTx| (tx.counters.packets(), tx.counters.slots(), tx.counters.bytes());
        assert_eq!(counted(&tx), (0, 2, 0), "the kernel has not taken it");
        tx.socket.memory.word(BLOCK + STATUS).store(libc::TP_STATUS_AVAILABLE, Relaxed);
        tx.send(&mut batch);
        assert_eq!(counted(&tx), (1, 2, 3000));
    }

    #[test]
    fn the_kernel_is_notified_until_it_has_taken_all_frames() {
        let (mut tx, pool, kernel) = sender_of(4, 2048);
        let told = || rustix::net::recv(&kernel, &mut [0u8; 1][..], rustix::net::RecvFlags::empty()).is_ok();
        let mut batch = Batch::new();
        tx.send(&mut batch);
        assert!(!told(), "there is nothing");
        assert!(batch.push(&pool, &[0; 60]));
        for _ in 0..2 {
            tx.send(&mut batch);
            assert!(told() && !told(), "once");
        }
        tx.socket.memory.word(BLOCK + STATUS).store(libc::TP_STATUS_AVAILABLE, Relaxed);
        // The kernel is notified for the last time: the frame's status is read only after the notification.
        tx.send(&mut batch);
        assert!(told());
        tx.send(&mut batch);
        assert!(!told());
    }

    #[test]
    fn frames_are_filled_as_the_kernel_reads_them() {
        let (mut tx, pool) = sender(4);
        let frame = |tx: &PacketTx, n: usize, at: usize| tx.socket.memory.word(BLOCK + n * 2048 + at).load(Relaxed);
        let bytes = |tx: &PacketTx, n: usize, at: usize, len: usize| {
            let mut bytes = vec![0; len];
            tx.socket.memory.read(BLOCK + n * 2048 + HEADER + at, &mut bytes);
            bytes
        };
        let mut batch = Batch::new();
        for n in 0..6u8 {
            batch.push(&pool, &[n + 1; 100]);
        }
        // Four frames are free.
        assert_eq!((tx.send(&mut batch), tx.unsent(), batch.len()), (4, 4, 2));
        for n in 0..4 {
            let words = [STATUS, NEXT, CAPTURED, LENGTH].map(|at| frame(&tx, n, at));
            assert_eq!(words, [libc::TP_STATUS_SEND_REQUEST, 0, 110, 110]);
            assert_eq!(bytes(&tx, n, 0, 10), [0, 0, 100, 0, 0, 0, 0, 0, 0, 0], "declared as headers entirely");
            assert_eq!(bytes(&tx, n, 10, 100), vec![n as u8 + 1; 100]);
        }
        // Frames that the kernel has, or is sending, are not overwritten.
        let status = |tx: &PacketTx, n: usize, value: u32| {
            tx.socket.memory.word(BLOCK + n * 2048 + STATUS).store(value, Relaxed)
        };
        status(&tx, 0, libc::TP_STATUS_SENDING);
        assert_eq!((tx.send(&mut batch), batch.len()), (0, 2));
        status(&tx, 0, 0);
        assert_eq!((tx.send(&mut batch), batch.len()), (1, 1));
        assert_eq!(bytes(&tx, 0, 10, 100), [5; 100]);
        (0..4).for_each(|n| status(&tx, n, 0));
        assert_eq!((tx.send(&mut batch), batch.len()), (1, 0));
        assert_eq!(bytes(&tx, 1, 10, 100), [6; 100]);
    }

    #[test]
    fn frames_taken_by_the_kernel_are_not_unsent() {
        let (mut tx, pool) = sender(8);
        let mut batch = Batch::new();
        (0..3u8).for_each(|n| assert!(batch.push(&pool, &[n; 60])));
        assert_eq!((tx.send(&mut batch), tx.unsent()), (3, 3));
        let status = |tx: &PacketTx, n: usize, value: u32| {
            tx.socket.memory.word(BLOCK + n * 2048 + STATUS).store(value, Relaxed)
        };
        status(&tx, 0, libc::TP_STATUS_AVAILABLE);
        status(&tx, 1, libc::TP_STATUS_SENDING);
        tx.send(&mut batch);
        assert_eq!((tx.position.next, tx.unsent()), (3, 1), "the last one is not taken yet");
        assert_eq!(tx.buffers(), 0);
        status(&tx, 2, libc::TP_STATUS_AVAILABLE);
        tx.send(&mut batch);
        assert_eq!(tx.unsent(), 0);
        // The next queue continues at the same position.
        let socket = tx.socket.clone();
        drop(tx);
        assert_eq!(socket.transmitting.lock().unwrap().next, 3);
    }

    /// The kernel stays at a frame that it refuses: later frames move up, in order.
    #[test]
    fn a_frame_that_the_kernel_refuses_is_dropped_and_delays_no_other() {
        let (mut tx, pool) = sender(4);
        let mut batch = Batch::new();
        (1..=4u8).for_each(|n| assert!(batch.push(&pool, &[n; 60])));
        tx.send(&mut batch);
        let status = |tx: &PacketTx, n: usize, value: u32| {
            tx.socket.memory.word(BLOCK + n * 2048 + STATUS).store(value, Relaxed)
        };
        status(&tx, 0, libc::TP_STATUS_AVAILABLE);
        status(&tx, 1, libc::TP_STATUS_WRONG_FORMAT);
        tx.send(&mut batch);
        let counted = |tx: &PacketTx| (tx.counters.packets(), tx.counters.drops(), tx.unsent(), tx.position.next);
        assert_eq!(counted(&tx), (1, 1, 2, 3));
        let frame = |n: usize| {
            let (offset, mut bytes) = (BLOCK + n * 2048, [0; 60]);
            tx.socket.memory.read(offset + HEADER + Offload::LEN, &mut bytes);
            (tx.socket.memory.word(offset + STATUS).load(Relaxed), bytes)
        };
        let is_to_send = libc::TP_STATUS_SEND_REQUEST;
        assert_eq!([1, 2].map(frame), [(is_to_send, [3; 60]), (is_to_send, [4; 60])]);
        assert_eq!(frame(3).0, libc::TP_STATUS_AVAILABLE);
        // The kernel would refuse a packet without an Ethernet header.
        assert!(batch.push(&pool, &[5; 13]));
        tx.send(&mut batch);
        assert_eq!((counted(&tx), batch.len()), ((1, 2, 2, 3), 0));
    }

    #[test]
    fn packets_longer_than_a_frame_are_dropped() {
        let room = 2048 - HEADER - Offload::LEN;
        for (longest, len, is_sent) in
            [(1900, 1900, true), (1900, 1901, false), (9000, room, true), (9000, room + 1, false), (9000, 9000, false)]
        {
            let (mut tx, pool) = sender(4);
            tx.longest = LongestFrame::any(longest);
            let mut batch = Batch::new();
            batch.push(&pool, &vec![3; len]);
            batch.push(&pool, &[4; 60]);
            tx.send(&mut batch);
            assert!(batch.is_empty());
            assert_eq!(tx.unsent(), 1 + usize::from(is_sent), "{len}");
            let mut headers = [0; 4];
            tx.socket.memory.read(BLOCK + HEADER, &mut headers);
            let copied = if len <= COPIED { len as u16 } else { 0 };
            assert_eq!(headers[2..], if is_sent { copied } else { 60 }.to_le_bytes(), "{len}");
        }
        for (len, copied) in [(COPIED, COPIED as u16), (COPIED + 1, 0)] {
            let (mut tx, pool) = sender(4);
            let mut batch = Batch::new();
            batch.push(&pool, &vec![3; len]);
            tx.send(&mut batch);
            let mut headers = [0; 4];
            tx.socket.memory.read(BLOCK + HEADER, &mut headers);
            assert_eq!(headers[2..], copied.to_le_bytes());
        }
    }
}
