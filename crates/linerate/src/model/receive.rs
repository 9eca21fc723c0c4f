//! From the wire to memory (sections 1.8.2 and 7.1).

use std::collections::VecDeque;

use super::breach::{Breach, Oracle};
use super::dma::Maps;
use super::filter::{self, Headers};
use super::registers::Registers;
use super::ring::Ring;
use super::rss::Toeplitz;
use super::wire::Frame;
use super::{Card, Core, Direction};
use crate::nic::ixgbe::descriptor::{legacy_receive, receive};
use crate::nic::ixgbe::registers::*;

/// What lives between two steps.
#[derive(Default)]
pub(super) struct State {
    frame: Frame,
    /// The packet buffer: frames for queues without a descriptor, and their bytes together.
    waiting: VecDeque<(u16, Frame)>,
    waiting_bytes: usize,
    counted: Counted,
}

#[derive(Default)]
struct Counted {
    packets: u64,
    octets: u64,
    good: u64,
    good_octets: u64,
    multicast: u64,
    broadcast: u64,
    sizes: [u64; 6],
}

/// Which of the six size counters a frame of `len` bytes with CRC belongs to.
pub(super) fn size_class(len: usize) -> usize {
    [64, 127, 255, 511, 1023].iter().position(|&most| len <= most).unwrap_or(5)
}

impl State {
    /// A queue was disabled: what waits for it is lost.
    pub fn forget(&mut self, direction: Direction, queue: u16) {
        if direction == Direction::Receive {
            self.waiting.retain(|(waiting, _)| *waiting != queue);
            self.waiting_bytes = self.waiting.iter().map(|(_, frame)| frame.bytes.len()).sum();
        }
    }
}

/// What a frame found at its queue.
enum Delivery {
    Done,
    NoDescriptor,
}

impl Card {
    pub(super) fn receive(&self, core: &mut Core, maps: &Maps, budget: usize) -> usize {
        let registers = &self.registers;
        if registers.get(RXCTRL::OFFSET) & RXCTRL::RXEN == 0 || registers.get(LINKS::OFFSET) & LINKS::UP == 0 {
            return 0;
        }
        for ring in core.rx.iter_mut().filter(|ring| ring.enabled) {
            let tail = registers.get(RDT::at(ring.queue));
            if tail != ring.tail {
                ring.move_tail(tail, &self.oracle);
            }
        }
        let mut frame = std::mem::take(&mut core.receive.frame);
        let mut moved = self.deliver_waiting(core, maps);
        let mut room = 0;
        while moved < budget {
            if core.wire.holds_back() {
                if room == 0 {
                    room = self.room(core);
                }
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            if !core.wire.receive(&mut frame) {
                break;
            }
            moved += 1;
            self.accept(core, maps, &mut frame);
        }
        core.receive.frame = frame;
        if moved > 0 {
            self.count_received(&mut core.receive.counted);
            core.rx.iter_mut().filter(|ring| ring.packets > 0).for_each(|ring| self.count_delivered(ring));
        }
        moved
    }

    /// How many frames may come without any queue running out of descriptors: what a sender that
    /// honours pause frames would be told.
    fn room(&self, core: &Core) -> u32 {
        if !core.receive.waiting.is_empty() {
            return 0;
        }
        let longest = self.longest_frame() + 4;
        let rooms = core.rx.iter().filter(|ring| ring.enabled).map(|ring| {
            let each = longest.div_ceil(self.buffer_bytes(ring.queue).max(1));
            ring.owned() / each as u32
        });
        rooms.min().unwrap_or(0)
    }

    /// The longest frame that is let in, with CRC and without VLAN tag (sections 8.2.3.22).
    pub(super) fn longest_frame(&self) -> usize {
        let jumbo = self.registers.get(HLREG0::OFFSET) & HLREG0::JUMBOEN != 0;
        if jumbo { (self.registers.get(MAXFRS::OFFSET) >> MAXFRS::MFS_SHIFT) as usize } else { 1518 }
    }

    /// The MAC and the filters.
    fn accept(&self, core: &mut Core, maps: &Maps, frame: &mut Frame) {
        let registers = &self.registers;
        let len = frame.bytes.len() + 4;
        let counted = &mut core.receive.counted;
        counted.packets += 1;
        counted.octets += len as u64;
        if frame.bad_crc {
            registers.count(CRCERRS::OFFSET, 1);
            if registers.get(FCTRL::OFFSET) & FCTRL::SBP == 0 {
                return;
            }
        }
        if len < 64 {
            return registers.count(RUC::OFFSET, 1);
        }
        let tag = if frame.bytes[12..14] == [0x81, 0x00] { 4 } else { 0 };
        if len > self.longest_frame() + tag {
            return registers.count(ROC::OFFSET, 1);
        }
        let destination: [u8; 6] = std::array::from_fn(|n| frame.bytes[n]);
        if !filter::accepts(registers, destination) {
            return;
        }
        counted.good += 1;
        counted.good_octets += len as u64;
        counted.sizes[size_class(len)] += 1;
        counted.broadcast += u64::from(destination == [0xFF; 6]);
        counted.multicast += u64::from(destination[0] & 1 != 0 && destination != [0xFF; 6]);

        let (queue, word0) = self.classify(core, &frame.bytes);
        let strip = registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP != 0;
        if !strip {
            let crc = crc32fast::hash(&frame.bytes) ^ u32::from(frame.bad_crc);
            frame.bytes.extend_from_slice(&crc.to_le_bytes());
        }
        let ring = &mut core.rx[queue as usize];
        if !ring.enabled {
            return self.drop_at_queue(queue);
        }
        if !core.receive.waiting.iter().any(|(waiting, _)| *waiting == queue)
            && let Delivery::Done = self.deliver(maps, ring, frame, word0)
        {
            return;
        }
        // Without DROP_EN the frame waits in the packet buffer, if that has room (8.2.3.8.7).
        if registers.get(SRRCTL::at(queue)) & SRRCTL::DROP_EN != 0 {
            return self.drop_at_queue(queue);
        }
        let capacity = (registers.get(RXPBSIZE::at(0)) >> RXPBSIZE::KIB_SHIFT & 0x3FF) as usize * 1024;
        if core.receive.waiting_bytes + frame.bytes.len() > capacity {
            return registers.count(RXMPC::at(0), 1);
        }
        core.receive.waiting_bytes += frame.bytes.len();
        core.receive.waiting.push_back((queue, frame.clone()));
    }

    fn drop_at_queue(&self, queue: u16) {
        self.registers.count(QPRDC::at(self.statistics_place(queue)), 1);
    }

    fn statistics_place(&self, queue: u16) -> u16 {
        (self.registers.get(RQSMR::at(queue / 4)) >> (queue % 4 * 8) & 0xF) as u16
    }

    fn deliver_waiting(&self, core: &mut Core, maps: &Maps) -> usize {
        let mut moved = 0;
        while let Some((queue, frame)) = core.receive.waiting.front() {
            let (_, word0) = Self::classify_with(&self.registers, &mut core.toeplitz, &frame.bytes);
            let Delivery::Done = self.deliver(maps, &mut core.rx[*queue as usize], frame, word0) else { break };
            core.receive.waiting_bytes -= frame.bytes.len();
            core.receive.waiting.pop_front();
            moved += 1;
        }
        moved
    }

    /// The frame's queue, and word 0 of its descriptor: packet type and hash.
    fn classify(&self, core: &mut Core, frame: &[u8]) -> (u16, u64) {
        Self::classify_with(&self.registers, &mut core.toeplitz, frame)
    }

    fn classify_with(registers: &Registers, toeplitz: &mut Option<Toeplitz>, frame: &[u8]) -> (u16, u64) {
        let headers = Headers::parse(frame);
        let mrqc = registers.get(MRQC::OFFSET);
        if mrqc & MRQC::MRQE_MASK != MRQC::MRQE_RSS {
            return (0, headers.packet_type);
        }
        let Some((kind, input, len)) = headers.hash_input(frame, mrqc) else { return (0, headers.packet_type) };
        let toeplitz = toeplitz.get_or_insert_with(|| {
            let mut key = [0; 40];
            for (n, bytes) in key.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&registers.get(RSSRK::at(n as u16)).to_le_bytes());
            }
            Toeplitz::new(&key)
        });
        let hash = toeplitz.hash(&input[..len]);
        let entry = hash as u16 & 0x7F;
        let queue = registers.get(RETA::at(entry / 4)) >> (entry % 4 * 8) & 0xF;
        (queue as u16, headers.packet_type | kind | (hash as u64) << receive::RSS_HASH_SHIFT)
    }

    /// Writes a frame to its queue's buffers, and its descriptors back.
    fn deliver(&self, maps: &Maps, ring: &mut Ring, frame: &Frame, word0: u64) -> Delivery {
        let bytes = &frame.bytes;
        let room = self.buffer_bytes(ring.queue);
        let control = self.registers.get(SRRCTL::at(ring.queue));
        let legacy = match control >> SRRCTL::DESCTYPE_SHIFT & 0x7 {
            0 => true,
            1 => false,
            _ => {
                self.oracle.note(Breach::NotModelled { what: "header split" });
                return Delivery::Done;
            }
        };
        let count = bytes.len().div_ceil(room.max(1)) as u32;
        if count > ring.owned() {
            return Delivery::NoDescriptor;
        }
        for (n, part) in bytes.chunks(room).enumerate() {
            let n = n as u32;
            let Some(words) = ring.read(maps, n, &self.oracle) else { return Delivery::Done };
            ring.compare(maps, n, words, self.most_written(ring.queue), &self.oracle);
            Self::write_buffer(maps, ring, words[0], part, &self.oracle);
            let last = n + 1 == count;
            let written = match legacy {
                false => [
                    word0,
                    receive::DD
                        | if last { receive::EOP } else { 0 }
                        | if last && frame.bad_crc { receive::RXE_82599 } else { 0 }
                        | (part.len() as u64) << receive::LENGTH_SHIFT,
                ],
                true => [
                    words[0],
                    legacy_receive::DD
                        | if last { legacy_receive::EOP } else { 0 }
                        | if last && frame.bad_crc { legacy_receive::RXE } else { 0 }
                        | part.len() as u64,
                ],
            };
            ring.write_back(maps, n, written);
        }
        ring.advance(count);
        self.registers.set(RDH::at(ring.queue), ring.head);
        ring.packets += 1;
        ring.octets += bytes.len() as u64;
        Delivery::Done
    }

    fn write_buffer(maps: &Maps, ring: &Ring, address: u64, bytes: &[u8], oracle: &Oracle) {
        match maps.find(address, bytes.len()) {
            Some((memory, offset)) => memory.write(offset, bytes),
            None => {
                let Ring { direction, queue, .. } = *ring;
                oracle.note(Breach::Unmapped { direction, queue, address, len: bytes.len() });
            }
        }
    }

    /// A queue's counters, and the interrupt cause, once for all frames of a step.
    fn count_delivered(&self, ring: &mut Ring) {
        let place = self.statistics_place(ring.queue);
        self.registers.count(QPRC::at(place), std::mem::take(&mut ring.packets));
        self.registers.count_wide(QBRC_L::at(place), QBRC_H::at(place), std::mem::take(&mut ring.octets));
        self.cause(Direction::Receive, ring.queue);
    }

    fn count_received(&self, counted: &mut Counted) {
        let registers = &self.registers;
        let Counted { packets, octets, good, good_octets, multicast, broadcast, sizes } = std::mem::take(counted);
        registers.count(TPR::OFFSET, packets);
        registers.count_wide(TORL::OFFSET, TORH::OFFSET, octets);
        registers.count(GPRC::OFFSET, good);
        registers.count_wide(GORCL::OFFSET, GORCH::OFFSET, good_octets);
        registers.count(MPRC::OFFSET, multicast);
        registers.count(BPRC::OFFSET, broadcast);
        (0..6).for_each(|n| registers.count(PRC::at(n), sizes[n as usize]));
    }
}
