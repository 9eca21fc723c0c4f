//! The transmit path: from memory to the wire (sections 1.8.1 and 7.2).

use std::collections::VecDeque;
use std::time::Instant;

use super::breach::Breach;
use super::dma::Maps;
use super::offload::{self, Context, Wanted};
use super::ring::Ring;
use super::switch::Place;
use super::wire::Frame;
use super::{Card, Core, Direction};
use crate::spec::descriptor::{context, legacy_transmit, transmit};
use crate::spec::x82599::*;

/// State that lasts between two steps.
#[derive(Default)]
pub(super) struct State {
    packet: Frame,
    segment: Frame,
    /// The queue that comes first in the next step; queues take turns.
    turn: usize,
    /// Descriptors fetched from queues that have been disabled since, oldest first.
    fetched: VecDeque<Fetched>,
    /// Until when the partner asked for a pause.
    pub paused_until: Option<Instant>,
    pub counted: Counted,
}

/// A data descriptor in the card's cache; the card reads its buffer when it sends it.
struct Fetched {
    queue: u16,
    index: u32,
    words: [u64; 2],
    /// Hash of the buffer's bytes at the time of the fetch.
    hash: Option<u32>,
}

impl State {
    /// Drops what was fetched from a queue that was reset.
    pub fn forget(&mut self, queue: u16) {
        self.fetched.retain(|fetched| fetched.queue != queue);
    }
}

/// A packet gathered from its descriptors.
#[derive(Default)]
struct Gathered {
    /// Number of descriptors, those of its context included.
    descriptors: u32,
    wanted: Wanted,
    vlan: Option<u16>,
    insert_crc: bool,
    stamp: bool,
    /// It breaks the rules in a way that leaves nothing to send.
    broken: bool,
}

/// Frames sent since the counters were written.
#[derive(Default)]
pub(super) struct Counted {
    packets: u64,
    octets: u64,
    multicast: u64,
    broadcast: u64,
    sizes: [u64; 6],
    /// Packets of the queue that is being served.
    of_queue: u64,
}

/// The longest packet that the card sends (section 7.2.1.1: 15.5 KiB).
const LONGEST: usize = 15_872;
/// Descriptors of a queue that the card fetches ahead (section 7.2.3.4).
const FETCHED_AHEAD: u32 = 40;
/// More than a packet to be segmented can have (section 7.2.4.1: 256 KiB).
const MOST_GATHERED: usize = 256 << 10;

impl Card {
    pub(super) fn transmit(&self, core: &mut Core, budget: usize) -> usize {
        let registers = &self.board.registers;
        // Without a link the physical function's frames wait; a reset by its driver ends that. Drivers of virtual
        // functions cannot reset the link, so their frames go on: to each other, or nowhere.
        let has_link = self.board.has_link();
        if !has_link && core.virtual_functions.is_empty() {
            return 0;
        }
        let sends = registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE != 0;
        if core.transmit.paused_until.is_some_and(|until| Instant::now() < until) {
            return 0;
        }
        core.transmit.paused_until = None;
        let mut sent = if has_link { self.send_fetched(core, budget) } else { 0 };
        let queues = core.tx.len();
        for turn in 0..queues {
            let queue = (core.transmit.turn + turn) % queues;
            if !core.tx[queue].enabled {
                continue;
            }
            let is_virtual = self.board.owner(queue as u16).is_some();
            if !(sends && has_link || is_virtual) || !self.may_work(core, queue as u16) {
                continue;
            }
            let space = self.space(core, queue as u16);
            let maps = &*space.maps();
            let tail = registers.get(TDT::at(queue as u16));
            if tail != core.tx[queue].tail {
                core.tx[queue].move_tail(tail, &self.board.oracle);
            }
            let before = sent;
            let octets = core.transmit.counted.octets;
            while sent < budget && core.tx[queue].owned() > 0 && (core.wire.ready() || !has_link) {
                let mut packet = std::mem::take(&mut core.transmit.packet);
                let gathered = self.gather(maps, &mut core.tx[queue], &mut packet.bytes);
                let Some(gathered) = gathered else {
                    core.transmit.packet = packet;
                    break;
                };
                if !gathered.broken && !packet.bytes.is_empty() {
                    self.send(core, &mut packet, &gathered, queue as u16);
                }
                core.transmit.packet = packet;
                self.report(maps, &mut core.tx[queue], gathered.descriptors);
                sent += 1;
            }
            if sent > before {
                let place = (registers.get(TQSM::at(queue as u16 / 4)) >> (queue % 4 * 8) & 0xF) as u16;
                let counted = &mut core.transmit.counted;
                registers.count(QPTC::at(place), std::mem::take(&mut counted.of_queue));
                registers.count_wide(QBTC_L::at(place), QBTC_H::at(place), counted.octets - octets);
                registers.set(TDH::at(queue as u16), core.tx[queue].head);
                self.cause(core, Direction::Transmit, queue as u16);
            }
        }
        core.transmit.turn = (core.transmit.turn + 1) % queues;
        sent
    }

    /// Keeps the descriptors fetched from a queue that is about to be disabled: the card still sends them later
    /// (section 4.6.8.2: for this reason a driver waits until the queue is empty).
    pub(super) fn keep_fetched(&self, maps: &Maps, ring: &Ring, state: &mut State) {
        let before = state.fetched.len();
        for n in 0..ring.owned().min(FETCHED_AHEAD) {
            let Some(words) = ring.read(maps, n, &self.board.oracle) else { break };
            let is_context =
                words[1] & (transmit::DEXT | transmit::DTYP_MASK) == transmit::DEXT | transmit::DTYP_CONTEXT;
            if !is_context {
                let hash = Ring::hash(maps, words[0], (words[1] & transmit::DTALEN_MASK) as usize);
                state.fetched.push_back(Fetched { queue: ring.queue, index: ring.index(n), words, hash });
            }
        }
        // The beginning of a packet whose end was not fetched is dropped.
        while state.fetched.len() > before
            && state.fetched.back().is_some_and(|last| last.words[1] & transmit::EOP == 0)
        {
            state.fetched.pop_back();
        }
    }

    /// Sends the packets fetched from disabled queues, with the current contents of their buffers.
    fn send_fetched(&self, core: &mut Core, budget: usize) -> usize {
        let mut sent = 0;
        while sent < budget && core.wire.ready() {
            let Some(last) = core.transmit.fetched.iter().position(|fetched| fetched.words[1] & transmit::EOP != 0)
            else {
                break;
            };
            let packet: Vec<Fetched> = core.transmit.fetched.drain(..=last).collect();
            let queue = packet[0].queue;
            let mut frame = Frame::default();
            for Fetched { index, words: [address, word], hash, .. } in packet {
                let (start, len) = (frame.bytes.len(), (word & transmit::DTALEN_MASK) as usize);
                frame.bytes.resize(start + len, 0);
                let space = self.space(core, queue);
                space.maps().read(address, &mut frame.bytes[start..]);
                if hash != Ring::hash(&space.maps(), address, len) {
                    self.board.oracle.note(Breach::BufferChanged { direction: Direction::Transmit, queue, index });
                }
            }
            self.send(core, &mut frame, &Gathered { insert_crc: true, ..Gathered::default() }, queue);
            sent += 1;
        }
        sent
    }

    /// Gathers the packet at the ring's head into `packet`; `None` if it is not complete yet. A packet that breaks
    /// the rules is taken as far as possible.
    fn gather(&self, maps: &Maps, ring: &mut Ring, packet: &mut Vec<u8>) -> Option<Gathered> {
        let Ring { direction, queue, .. } = *ring;
        packet.clear();
        let (mut announced, mut first, mut data) = (None, None, 0);
        for n in 0..ring.owned() {
            let words = ring.read(maps, n, &self.board.oracle)?;
            let [address, word] = words;
            let bad = |ring: &Ring, why| {
                self.board.oracle.note(Breach::BadDescriptor { direction, queue, index: ring.index(n), word, why })
            };
            let is_advanced = word & transmit::DEXT != 0;
            if is_advanced && word & transmit::DTYP_MASK == transmit::DTYP_CONTEXT {
                ring.compare(maps, n, words, 0, &self.board.oracle);
                if first.is_some() {
                    bad(ring, "a context descriptor inside a packet (section 7.2.3.3)");
                }
                if word & context::OTHERS != 0 {
                    self.board.oracle.note(Breach::NotModelled { what: "IPsec and Fibre Channel" });
                }
                ring.contexts[(word >> transmit::IDX_SHIFT & 1) as usize] = Some(Context::parse(words));
                continue;
            }
            let len = (word & transmit::DTALEN_MASK) as usize;
            ring.compare(maps, n, words, len, &self.board.oracle);
            data += 1;
            if is_advanced {
                if word & transmit::DTYP_MASK != transmit::DTYP_DATA {
                    bad(ring, "DTYP is neither that of data nor of a context (section 7.2.3.2.4)");
                }
                if word & transmit::RESERVED != 0 || word & transmit::DD != 0 {
                    bad(ring, "reserved bits are set (section 7.2.3.2.4)");
                }
                announced.get_or_insert((word >> transmit::PAYLEN_SHIFT) as usize);
            }
            first.get_or_insert(word);
            if len == 0 {
                bad(ring, "a data buffer of length 0 (section 7.2.3.2.4)");
            }
            let start = packet.len();
            packet.resize(start + len, 0);
            if !maps.read(address, &mut packet[start..]) {
                packet.truncate(start);
                self.board.oracle.note(Breach::Unmapped { direction, queue, address, len });
            }
            if word & transmit::EOP == 0 {
                if word & transmit::RS != 0 {
                    bad(ring, "RS without EOP (section 7.2.3.2.4)");
                }
                if data >= transmit::MOST_DESCRIPTORS && first.is_some_and(|word| word & transmit::TSE == 0) {
                    bad(ring, "a packet of more than 40 descriptors (section 7.2.1.1)");
                }
                if packet.len() > MOST_GATHERED {
                    let broken = true;
                    return Some(Gathered { broken, ..self.wanted(ring, n + 1, word, word, packet.len(), None, &bad) });
                }
                continue;
            }
            return Some(self.wanted(ring, n + 1, first.unwrap_or(word), word, packet.len(), announced, &bad));
        }
        // A context descriptor without a packet is finished once it is read.
        if first.is_none() && ring.owned() > 0 {
            packet.clear();
            return Some(Gathered { descriptors: ring.owned(), broken: true, ..Gathered::default() });
        }
        None
    }

    /// Returns the offloads that the first and the last descriptor of a packet request.
    #[allow(clippy::too_many_arguments)]
    fn wanted(
        &self,
        ring: &Ring,
        descriptors: u32,
        first: u64,
        last: u64,
        total: usize,
        announced: Option<usize>,
        bad: &dyn Fn(&Ring, &'static str),
    ) -> Gathered {
        let insert_crc = last & transmit::IFCS != 0;
        let mut gathered = Gathered { descriptors, insert_crc, ..Gathered::default() };
        if first & transmit::DEXT == 0 {
            if first & transmit::VLE != 0 {
                gathered.vlan = Some((first >> legacy_transmit::VLAN_SHIFT) as u16);
            }
            if first & legacy_transmit::IC != 0 {
                gathered.wanted.anywhere = Some((
                    (first >> legacy_transmit::CSS_SHIFT & 0xFF) as usize,
                    (first >> legacy_transmit::CSO_SHIFT & 0xFF) as usize,
                ));
            }
        } else {
            let offloads = transmit::TSE | transmit::VLE | transmit::IXSM | transmit::TXSM;
            let found = ring.contexts[(first >> transmit::IDX_SHIFT & 1) as usize];
            if first & offloads != 0 && found.is_none() {
                bad(ring, "offloads without a context descriptor before (section 7.2.3.3)");
                gathered.broken = true;
            }
            let context = found.unwrap_or_default();
            let flags = (self.board.registers.get(DTXTCPFLGL::OFFSET), self.board.registers.get(DTXTCPFLGH::OFFSET));
            gathered.stamp = first & transmit::TSTAMP != 0;
            gathered.vlan = (first & transmit::VLE != 0).then_some(context.vlan);
            gathered.wanted = Wanted {
                context,
                ip_checksum: first & transmit::IXSM != 0,
                transport_checksum: first & transmit::TXSM != 0,
                segments: first & transmit::TSE != 0,
                flags: [flags.0 as u8, (flags.0 >> 16) as u8, flags.1 as u8],
                anywhere: None,
            };
            let expected = if gathered.wanted.segments { total.saturating_sub(context.headers()) } else { total };
            if announced.is_some_and(|announced| announced != expected) {
                bad(ring, "PAYLEN is not the packet's length (section 7.2.3.2.4)");
            }
        }
        if !gathered.wanted.segments && !(transmit::SHORTEST..=LONGEST).contains(&total) {
            bad(ring, "a packet shorter than 17 bytes, or longer than 15.5 KiB (section 7.2.1.1)");
            gathered.broken |= total > LONGEST;
        }
        gathered
    }

    /// Applies a packet's offloads, and sends each of the resulting frames to the wire.
    fn send(&self, core: &mut Core, packet: &mut Frame, gathered: &Gathered, queue: u16) {
        let index = core.tx[queue as usize].head;
        let bad = |why| {
            self.board.oracle.note(Breach::BadDescriptor {
                direction: Direction::Transmit,
                queue,
                index,
                word: 0,
                why,
            });
        };
        if gathered.wanted.segments {
            let mut segment = std::mem::take(&mut core.transmit.segment);
            let send = |segment: &mut Frame| self.send_frame(core, segment, gathered, queue);
            let cut = offload::cut(&packet.bytes, &gathered.wanted, &mut segment, send);
            core.transmit.segment = segment;
            if let Err(why) = cut {
                bad(why);
            }
            return;
        }
        if let Err(why) = offload::insert_checksums(&mut packet.bytes, &gathered.wanted) {
            bad(why);
        }
        self.send_frame(core, packet, gathered, queue);
    }

    /// Adds the tag, padding and CRC, and sends the frame.
    fn send_frame(&self, core: &mut Core, frame: &mut Frame, gathered: &Gathered, queue: u16) {
        frame.bad_crc = false;
        if let Some(tag) = gathered.vlan {
            let ethertype = self.board.registers.get(VLNCTRL::OFFSET) & VLNCTRL::VET_MASK;
            offload::insert_tag(&mut frame.bytes, ethertype as u16, tag);
        }
        if !gathered.insert_crc && frame.bytes.len() > 4 {
            // The driver supplies the CRC itself, in the last four bytes.
            let crc = frame.bytes.split_off(frame.bytes.len() - 4);
            frame.bad_crc = crc != crc32fast::hash(&frame.bytes).to_le_bytes();
        } else if self.board.registers.get(HLREG0::OFFSET) & HLREG0::TXPADEN != 0 && frame.bytes.len() < 60 {
            frame.bytes.resize(60, 0);
        }
        if gathered.stamp {
            core.clock.stamp_sent(&self.board);
        }
        core.transmit.counted.add(&frame.bytes);
        core.transmit.counted.of_queue += 1;
        let from = match self.board.owner(queue) {
            Some(number) => {
                core.virtual_functions[number].count_sent(frame.bytes.len());
                Place::Virtual(number)
            }
            None => Place::Physical,
        };
        self.leave(core, from, frame);
    }

    /// Writes back the descriptors of a packet that requested it (section 7.2.3.5).
    fn report(&self, maps: &Maps, ring: &mut Ring, count: u32) {
        // With a threshold (WTHRESH), write-backs are held until as many descriptors are finished.
        let threshold = self.board.registers.get(TXDCTL::at(ring.queue)) >> TXDCTL::WTHRESH_SHIFT & 0x7F;
        for n in 0..count {
            if let Some([_, word]) = ring.read(maps, n, &self.board.oracle)
                && word & transmit::RS != 0
            {
                ring.reports.push_back(ring.index(n));
            }
        }
        ring.advance(count);
        ring.through += count;
        if ring.through >= threshold || ring.owned() == 0 {
            ring.through = 0;
            let head_address = u64::from(self.board.registers.get(TDWBAL::at(ring.queue)))
                | u64::from(self.board.registers.get(TDWBAH::at(ring.queue))) << 32;
            if head_address & 1 != 0 && !ring.reports.is_empty() {
                // The head is written in place of each descriptor's status (section 7.2.3.5.2).
                ring.reports.clear();
                maps.write(head_address & !3, &ring.head.to_le_bytes());
            }
            while let Some(index) = ring.reports.pop_front() {
                ring.write_back_at(maps, index, [0, transmit::DD]);
            }
        }
    }

    /// Adds the frames sent since the last call to the counters, pauses included.
    pub(super) fn count_transmitted(&self, core: &mut Core) {
        let registers = &self.board.registers;
        let Counted { packets, octets, multicast, broadcast, sizes, .. } = std::mem::take(&mut core.transmit.counted);
        if packets == 0 {
            return;
        }
        registers.count(GPTC::OFFSET, packets);
        registers.count(TPT::OFFSET, packets);
        registers.count(TXDGPC::OFFSET, packets);
        registers.count_wide(TXDGBCL::OFFSET, TXDGBCH::OFFSET, octets);
        registers.count_wide(GOTCL::OFFSET, GOTCH::OFFSET, octets);
        registers.count(MPTC::OFFSET, multicast);
        registers.count(BPTC::OFFSET, broadcast);
        (0..6).for_each(|n| registers.count(PTC::at(n), sizes[n as usize]));
    }
}

impl Counted {
    pub fn add(&mut self, frame: &[u8]) {
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
