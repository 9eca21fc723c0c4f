//! From memory to the wire (sections 1.8.1 and 7.2).

use super::breach::Breach;
use super::dma::Maps;
use super::ring::Ring;
use super::wire::Frame;
use super::{Card, Core, Direction};
use crate::nic::ixgbe::descriptor::{legacy_transmit, transmit};
use crate::nic::ixgbe::registers::*;

/// What lives between two steps.
#[derive(Default)]
pub(super) struct State {
    frame: Frame,
    /// The queue that comes first in the next step: they take turns.
    turn: usize,
    counted: Counted,
}

#[derive(Default)]
struct Counted {
    packets: u64,
    octets: u64,
    multicast: u64,
    broadcast: u64,
    sizes: [u64; 6],
}

/// The longest packet that the card sends (section 7.2.1.1: 15.5 KiB).
const LONGEST: usize = 15_872;

impl Card {
    pub(super) fn transmit(&self, core: &mut Core, maps: &Maps, budget: usize) -> usize {
        let registers = &self.registers;
        if registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE == 0 || registers.get(LINKS::OFFSET) & LINKS::UP == 0 {
            return 0;
        }
        let mut sent = 0;
        let queues = core.tx.len();
        for turn in 0..queues {
            let queue = (core.transmit.turn + turn) % queues;
            if !core.tx[queue].enabled {
                continue;
            }
            let tail = registers.get(TDT::at(queue as u16));
            if tail != core.tx[queue].tail {
                core.tx[queue].move_tail(tail, &self.oracle);
            }
            let before = sent;
            let (mut packets, mut octets) = (0, 0);
            while sent < budget && core.tx[queue].owned() > 0 && core.wire.ready() {
                let Some(count) = self.fetch(maps, &core.tx[queue], &mut core.transmit.frame) else { break };
                let len = core.transmit.frame.bytes.len();
                core.wire.transmit(&core.transmit.frame);
                core.transmit.counted.add(&core.transmit.frame.bytes);
                self.report(maps, &mut core.tx[queue], count);
                (packets, octets) = (packets + 1, octets + len as u64 + 4);
                sent += 1;
            }
            if sent > before {
                let place = registers.get(TQSM::at(queue as u16 / 4)) >> (queue % 4 * 8) & 0xF;
                registers.count(QPTC::at(place as u16), packets);
                registers.count_wide(QBTC_L::at(place as u16), QBTC_H::at(place as u16), octets);
                registers.set(TDH::at(queue as u16), core.tx[queue].head);
                self.cause(Direction::Transmit, queue as u16);
            }
        }
        core.transmit.turn = (core.transmit.turn + 1) % queues;
        self.count_transmitted(&mut core.transmit.counted);
        sent
    }

    /// Gathers the packet at the ring's head into `frame`, and returns how many descriptors it has;
    /// `None` if it is not complete yet. A packet that breaks the rules is taken as far as it goes.
    fn fetch(&self, maps: &Maps, ring: &Ring, frame: &mut Frame) -> Option<u32> {
        let Ring { direction, queue, .. } = *ring;
        frame.bytes.clear();
        frame.bad_crc = false;
        let mut announced = None;
        for n in 0..ring.owned() {
            let words = ring.read(maps, n, &self.oracle)?;
            let [address, word] = words;
            let len = (word & transmit::DTALEN_MASK) as usize;
            ring.compare(maps, n, words, len, &self.oracle);
            let bad =
                |why| self.oracle.note(Breach::BadDescriptor { direction, queue, index: ring.index(n), word, why });
            if word & transmit::DEXT != 0 {
                if word & transmit::DTYP_MASK != transmit::DTYP_DATA {
                    self.oracle.note(Breach::NotModelled { what: "context descriptors" });
                }
                if word & transmit::RESERVED != 0 || word & transmit::DD != 0 {
                    bad("reserved bits are set (section 7.2.3.2.4)");
                }
                if word & (transmit::TSE | transmit::VLE) != 0 {
                    self.oracle.note(Breach::NotModelled { what: "transmit offloads" });
                }
                announced.get_or_insert((word >> transmit::PAYLEN_SHIFT) as usize);
            } else if word & (legacy_transmit::IC | transmit::VLE) != 0 {
                self.oracle.note(Breach::NotModelled { what: "legacy transmit offloads" });
            }
            if len == 0 {
                bad("a data buffer of length 0 (section 7.2.3.2.4)");
            }
            match maps.find(address, len) {
                Some((memory, offset)) => {
                    let start = frame.bytes.len();
                    frame.bytes.resize(start + len, 0);
                    memory.read(offset, &mut frame.bytes[start..]);
                }
                None => self.oracle.note(Breach::Unmapped { direction, queue, address, len }),
            }
            if word & transmit::EOP == 0 {
                if word & transmit::RS != 0 {
                    bad("RS without EOP (section 7.2.3.2.4)");
                }
                if n as usize + 1 >= transmit::MOST_DESCRIPTORS {
                    bad("a packet of more than 40 descriptors (section 7.2.1.1)");
                }
                continue;
            }
            let total = frame.bytes.len();
            if announced.is_some_and(|announced| announced != total) {
                bad("PAYLEN is not the packet's length (section 7.2.3.2.4)");
            }
            if !(transmit::SHORTEST..=LONGEST).contains(&total) {
                bad("a packet shorter than 17 bytes, or longer than 15.5 KiB (section 7.2.1.1)");
            }
            self.finish_frame(frame, word);
            return Some(n + 1);
        }
        None
    }

    /// Padding and CRC.
    fn finish_frame(&self, frame: &mut Frame, word: u64) {
        if word & transmit::IFCS == 0 && frame.bytes.len() > 4 {
            // The driver brings the CRC itself, in the last four bytes.
            let crc = frame.bytes.split_off(frame.bytes.len() - 4);
            frame.bad_crc = crc != crc32fast::hash(&frame.bytes).to_le_bytes();
        } else if self.registers.get(HLREG0::OFFSET) & HLREG0::TXPADEN != 0 && frame.bytes.len() < 60 {
            frame.bytes.resize(60, 0);
        }
    }

    /// Writes back the descriptors of a packet that asked for it (section 7.2.3.5).
    fn report(&self, maps: &Maps, ring: &mut Ring, count: u32) {
        // With a threshold, reports are held until as many descriptors are through (WTHRESH).
        let threshold = self.registers.get(TXDCTL::at(ring.queue)) >> TXDCTL::WTHRESH_SHIFT & 0x7F;
        for n in 0..count {
            if let Some([_, word]) = ring.read(maps, n, &self.oracle)
                && word & transmit::RS != 0
            {
                ring.reports.push_back(ring.index(n));
            }
        }
        ring.advance(count);
        ring.through += count;
        if ring.through >= threshold || ring.owned() == 0 {
            ring.through = 0;
            while let Some(index) = ring.reports.pop_front() {
                ring.write_back_at(maps, index, [0, transmit::DD]);
            }
        }
    }

    fn count_transmitted(&self, counted: &mut Counted) {
        let registers = &self.registers;
        let Counted { packets, octets, multicast, broadcast, sizes } = std::mem::take(counted);
        if packets == 0 {
            return;
        }
        registers.count(GPTC::OFFSET, packets);
        registers.count(TPT::OFFSET, packets);
        registers.count_wide(GOTCL::OFFSET, GOTCH::OFFSET, octets);
        registers.count(MPTC::OFFSET, multicast);
        registers.count(BPTC::OFFSET, broadcast);
        (0..6).for_each(|n| registers.count(PTC::at(n), sizes[n as usize]));
    }
}

impl Counted {
    fn add(&mut self, frame: &[u8]) {
        self.packets += 1;
        self.octets += frame.len() as u64 + 4;
        self.sizes[super::receive::size_class(frame.len() + 4)] += 1;
        match frame.first() {
            Some(0xFF) if frame.starts_with(&[0xFF; 6]) => self.broadcast += 1,
            Some(first) if first & 1 != 0 => self.multicast += 1,
            _ => {}
        }
    }
}
