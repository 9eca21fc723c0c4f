//! Receive and send, top-down: from the kernel's blocks into buffers, and from buffers into its frames. Each packet is
//! copied once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use super::socket::{BLOCK, HEADER, Socket};
use crate::batch::Batch;
use crate::filter::Filter;
use crate::memory::Pool;
use crate::offload::{LONGEST, Offload, Segmentation, cut};
use crate::port::{QueueCounters, RxQueue, TxQueue};

// In a block (`struct tpacket_block_desc`): whose it is, how many packets it has, and where the first is.
const BLOCK_STATUS: usize = 8;
const BLOCK_PACKETS: usize = 12;
const BLOCK_FIRST: usize = 16;
// In front of a packet (`struct tpacket3_hdr`): how far on the next is, when it came, its bytes here, what it is, where it
// begins, and its VLAN tag.
const NEXT: usize = 0;
const SECONDS: usize = 4;
const NANOSECONDS: usize = 8;
const HERE: usize = 12;
const LENGTH: usize = 16;
const STATUS: usize = 20;
const BEGIN: usize = 24;
const TAG: usize = 32;
const TAG_TYPE: usize = 36;

/// Frames up to this length are the kernel's headers altogether: it copies those, and for the rest hands pages around,
/// which costs more than a copy.
const COPIED: usize = 1518;

/// How far a socket's blocks were read.
#[derive(Clone, Copy, Default)]
pub(super) struct Receiving {
    block: usize,
    /// Packets of the block that were not looked at yet, and where the next is.
    left: u32,
    next: usize,
}

/// A receive queue.
pub(super) struct PacketRx {
    pub(super) socket: Arc<Socket>,
    pub(super) place: Receiving,
    pub(super) pool: Arc<Pool>,
    pub(super) counters: Arc<QueueCounters>,
    /// Only these are handed on.
    pub(super) flow: Option<Filter>,
    /// Packets may be handed on uncut, and without a checksum.
    pub(super) offloads: bool,
    /// When they came is noted.
    pub(super) timestamps: bool,
    pub(super) longest: usize,
    /// Parts of a packet that had to be cut, for which the last batch had no room.
    pub(super) segments: VecDeque<(Vec<u8>, u64)>,
}

/// Packets that are looked at before what was found is handed over, also where few of them are meant.
const LOOKS: usize = 1024;
/// Bytes that a filter looks at, at most: Ethernet's header and a tag, IPv4's with options, ports.
const LOOKED_AT: usize = 14 + 4 + 60 + 4;

/// A packet in a block.
struct Found {
    begin: usize,
    len: usize,
    offload: Offload,
    tag: Option<[u8; 4]>,
    /// When it came, in nanoseconds.
    time: u64,
}

impl PacketRx {
    /// The next packet of a block; `None` if there is none now.
    fn find(&mut self) -> Option<Found> {
        loop {
            let base = self.place.block * BLOCK;
            let memory = &self.socket.memory;
            if self.place.left == 0 {
                let status = memory.word(base + BLOCK_STATUS).load(Acquire);
                if status & libc::TP_STATUS_USER == 0 {
                    return None;
                }
                self.place.left = memory.word(base + BLOCK_PACKETS).load(Relaxed);
                self.place.next = base.saturating_add(memory.word(base + BLOCK_FIRST).load(Relaxed) as usize);
                if self.place.left == 0 {
                    self.give_back();
                    continue;
                }
            }
            // What the kernel says is not believed beyond the block.
            let end = base + BLOCK;
            let header = self.place.next;
            if !header.is_multiple_of(8) || header < base || header.saturating_add(TAG_TYPE + 4) > end {
                self.counters.dropped();
                self.give_back();
                continue;
            }
            let word = |at: usize| memory.word(header + at).load(Relaxed);
            let (len, status) = (word(HERE) as usize, word(STATUS));
            let begin = header + (word(BEGIN) & 0xFFFF) as usize;
            if begin < header + Offload::LEN
                || begin.saturating_add(len) > end
                || len < 14
                || word(LENGTH) as usize != len
            {
                self.counters.dropped();
                self.pass();
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
            return Some(Found { begin, len, offload, tag, time });
        }
    }

    /// The packet was taken: to the next.
    fn pass(&mut self) {
        self.place.left -= 1;
        if self.place.left == 0 {
            return self.give_back();
        }
        self.place.next =
            self.place.next.saturating_add(self.socket.memory.word(self.place.next + NEXT).load(Relaxed) as usize);
    }

    /// The block is the kernel's again.
    fn give_back(&mut self) {
        self.place.left = 0;
        self.socket.memory.word(self.place.block * BLOCK + BLOCK_STATUS).store(libc::TP_STATUS_KERNEL, Release);
        self.place.block = (self.place.block + 1) % self.socket.blocks;
    }

    /// Whether the filter means it, with the tag where it was on the wire.
    fn is_meant(&self, found: &Found) -> bool {
        let Some(flow) = &self.flow else { return true };
        let mut bytes = [0; LOOKED_AT + 4];
        let mut len = found.len.min(LOOKED_AT);
        self.socket.memory.read(found.begin, &mut bytes[..len]);
        if let Some(tag) = found.tag {
            bytes.copy_within(12..len, 16);
            bytes[12..16].copy_from_slice(&tag);
            len += tag.len();
        }
        flow.matches(&bytes[..len])
    }

    /// Appends a packet; false if there is no room.
    fn take(&mut self, batch: &mut Batch, found: &Found) -> bool {
        let Found { begin, len, offload, tag, time } = *found;
        let memory = &self.socket.memory;
        let is_cut = offload.segmentation() != Segmentation::None && !self.offloads;
        if len > if self.offloads || is_cut { LONGEST } else { self.longest } {
            self.counters.dropped();
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
            batch.stamp_last(time);
        }
        if !self.offloads && !batch.finish_last() {
            self.counters.dropped();
        }
        true
    }

    /// A packet whose tag the kernel has taken out, or that is to be cut: it waits as what it becomes.
    #[cold]
    fn take_changed(&mut self, found: &Found) -> bool {
        let mut bytes = vec![0; found.len];
        self.socket.memory.read(found.begin, &mut bytes);
        let mut offload = found.offload;
        if let Some(tag) = found.tag {
            bytes.splice(12..12, tag);
            offload.moved(tag.len() as u16);
        }
        let (segments, longest) = (&mut self.segments, if self.offloads { LONGEST } else { self.longest });
        let mut fits = true;
        let mut keep = |bytes: Vec<u8>| match bytes.len() <= longest {
            true => segments.push_back((bytes, found.time)),
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
        if !is_made || !fits {
            self.counters.dropped();
        }
        true
    }
}

impl RxQueue for PacketRx {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        for _ in 0..LOOKS {
            while let Some((segment, time)) = self.segments.front() {
                if !batch.push_parts(&self.pool, segment.len(), std::iter::once(&segment[..]), None) {
                    if !batch.can_hold(&self.pool, segment.len()) {
                        self.counters.dropped();
                        self.segments.pop_front();
                        continue;
                    }
                    break;
                }
                if self.timestamps {
                    batch.stamp_last(*time);
                }
                self.counters.moved_packets(1, 0, segment.len());
                self.segments.pop_front();
            }
            if batch.len() >= batch.capacity() || !self.segments.is_empty() {
                break;
            }
            let Some(found) = self.find() else { break };
            if self.is_meant(&found) && !self.take(batch, &found) {
                break;
            }
            self.pass();
        }
        self.counters.moved(batch.len() - before);
        batch.len() - before
    }

    fn buffers(&self) -> usize {
        0
    }

    fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

impl Drop for PacketRx {
    fn drop(&mut self) {
        *self.socket.receiving.lock().unwrap_or_else(PoisonError::into_inner) = self.place;
    }
}

/// A transmit queue.
pub(super) struct PacketTx {
    pub(super) socket: Arc<Socket>,
    pub(super) next: usize,
    /// The oldest frame that the kernel may not have taken yet.
    pub(super) oldest: usize,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) longest: usize,
}

impl PacketTx {
    fn place(&self, frame: usize) -> usize {
        self.socket.sending + frame * self.socket.frame
    }

    fn status(&self, frame: usize) -> u32 {
        self.socket.memory.word(self.place(frame) + STATUS).load(Acquire)
    }
}

impl TxQueue for PacketTx {
    fn send(&mut self, batch: &mut Batch) -> usize {
        let (mut slots, mut packets, mut total) = (0, 0, 0);
        if let Some(pool) = batch.pool().cloned() {
            for packet in batch.packets() {
                let busy = libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING;
                if self.status(self.next) & busy != 0 {
                    break;
                }
                let (len, offload) = (packet.len(), packet.offload(pool.region()));
                slots += packet.slots();
                let longest = if offload.is_some() { LONGEST } else { self.longest };
                let mut at = self.place(self.next) + HEADER;
                if len > longest || HEADER + Offload::LEN + len > self.socket.frame {
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
                let place = self.place(self.next);
                memory.word(place + NEXT).store(0, Relaxed);
                memory.word(place + HERE).store((Offload::LEN + len) as u32, Relaxed);
                memory.word(place + LENGTH).store((Offload::LEN + len) as u32, Relaxed);
                memory.word(place + STATUS).store(libc::TP_STATUS_SEND_REQUEST, Release);
                self.next = (self.next + 1) % self.socket.frames;
                packets += 1;
                total += len;
            }
            batch.drop_front(slots);
        }
        self.counters.moved_packets(packets, slots, total);
        if self.unsent() > 0 {
            self.socket.push();
        }
        // What was taken is not looked at again.
        while self.oldest != self.next && self.status(self.oldest) & libc::TP_STATUS_SEND_REQUEST == 0 {
            self.oldest = (self.oldest + 1) % self.socket.frames;
        }
        slots
    }

    fn buffers(&self) -> usize {
        0
    }

    fn unsent(&self) -> usize {
        (self.next + self.socket.frames - self.oldest) % self.socket.frames
    }
}

impl Drop for PacketTx {
    fn drop(&mut self) {
        *self.socket.next.lock().unwrap_or_else(PoisonError::into_inner) = self.next;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Mapping, PageSize, Pages, Region, RegionOptions};

    const BLOCKS: usize = 4;

    /// Blocks of anything: packets are inside them, or are not there; and it comes to an end.
    #[test]
    fn blocks_of_nonsense_give_no_nonsense() {
        let pages = Pages::Only(PageSize::Ordinary);
        let options = RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None };
        let pool = Pool::new(Region::new(&options).unwrap());
        // Nearly right, or not at all: how far the next is, the length, what it is, where it begins, and a tag.
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
                let at = |place: usize, value: u32| memory.word(base + place).store(value, Relaxed);
                for (n, (next, len, status, begin, tag, whole)) in headers.iter().enumerate() {
                    // The last one is at the block's end.
                    let header = if n + 1 == headers.len() { BLOCK - 152 } else { 48 + n * 64 };
                    at(header + NEXT, *next);
                    at(header + HERE, *len);
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
            let socket = Arc::new(Socket::over(fd, memory, BLOCKS));
            let mut rx = PacketRx {
                socket,
                place: Receiving::default(),
                pool: pool.clone(),
                counters: Arc::default(),
                flow: Some("udp,vlan:7,all".parse().unwrap()),
                offloads,
                timestamps: true,
                longest: 1518,
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
            prop_assert!(rx.find().is_none(), "all blocks are the kernel's again");
            drop((rx, batch));
            prop_assert_eq!(pool.available(), 512);
        });
    }
}
