//! The receive path: from the wire to memory (sections 1.8.2 and 7.1).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::breach::{Breach, Oracle};
use super::checksum;
use super::coalesce::{self, Packet};
use super::director::Verdict;
use super::dma::Maps;
use super::filter;
use super::headers::{Headers, word};
use super::ring::Ring;
use super::rss::Rss;
use super::switch::Place;
use super::wire::Frame;
use super::{Card, Core, Direction, virtual_function};
use crate::spec::descriptor::{legacy_receive, receive};
use crate::spec::x82599::*;

/// State that lasts between two steps.
#[derive(Default)]
pub(super) struct State {
    frame: Frame,
    /// Frames to functions of this card: source, destination, frame.
    pub arriving: VecDeque<(Place, Place, Frame)>,
    /// The packet buffer: packets for queues without a descriptor, and the sum of their bytes.
    waiting: VecDeque<Arrived>,
    waiting_bytes: usize,
    /// Packets that are being coalesced.
    coalescing: Vec<Packet>,
    /// When the partner was last told to pause.
    paused: Option<Instant>,
    counted: Counted,
}

/// The report on a packet in its descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    /// Word 0: packet type and hash.
    pub word0: u64,
    /// Bits of word 1, for the last descriptor.
    pub status: u64,
}

/// A packet that found no descriptor.
struct Arrived {
    queue: u16,
    frame: Frame,
    reported: Reported,
    /// Of a coalesced packet: where each segment begins.
    starts: Vec<usize>,
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

/// Returns which of the six size counters counts a frame of `len` bytes, CRC included.
pub(super) fn size_class(len: usize) -> usize {
    [64, 127, 255, 511, 1023].iter().position(|&most| len <= most).unwrap_or(5)
}

impl State {
    /// Drops what waits for a queue that was disabled.
    pub fn forget(&mut self, direction: Direction, queue: u16) {
        if direction == Direction::Receive {
            self.coalescing.retain(|packet| packet.queue != queue);
            self.waiting.retain(|arrived| arrived.queue != queue);
            self.waiting_bytes = self.waiting.iter().map(|arrived| arrived.frame.bytes.len()).sum();
        }
    }
}

/// The result of delivering a frame to its queue.
enum Delivery {
    Done,
    NoDescriptor,
}

/// A flow control frame between two MACs (IEEE 802.3, annex 31B): destination, ethertype and opcode.
const PAUSE_ADDRESS: [u8; 6] = [0x01, 0x80, 0xC2, 0x00, 0x00, 0x01];
const MAC_CONTROL: u16 = 0x8808;
const PAUSE: u16 = 1;
/// Pause times are in units of 512 bit times.
const PAUSE_UNIT: Duration = Duration::from_nanos(51);

impl Card {
    pub(super) fn receive(&self, core: &mut Core, budget: usize) -> usize {
        let registers = &self.board.registers;
        let has_link = self.board.has_link();
        if !has_link && core.virtual_functions.is_empty() {
            return 0;
        }
        // The physical function receives when RXCTRL enables it; virtual functions receive with each queue.
        let receives = self.board.receives() && self.may_work(core, 0);
        if !receives && core.virtual_functions.is_empty() {
            return self.lose(core, budget);
        }
        for ring in core.rx.iter_mut().filter(|ring| ring.enabled) {
            let tail = registers.get(RDT::at(ring.queue));
            if tail != ring.tail {
                ring.move_tail(tail, &self.board.oracle);
            }
        }
        // While no function receives, a wire that waits for room brings no frames.
        let listens = receives || core.virtual_functions.iter().any(|function| function.listens());
        let takes_from_wire = listens && has_link && !self.board.loops_back();
        let maps = self.board.dma.maps();
        let mut frame = std::mem::take(&mut core.receive.frame);
        let mut moved = self.deliver_waiting(core, &maps);
        let mut room = 0;
        while moved < budget {
            let (mut from, mut to) = (Place::Wire, Place::Physical);
            if let Some(arriving) = core.receive.arriving.pop_front() {
                (from, to, frame) = arriving;
            } else {
                if core.wire.holds_back() {
                    if room == 0 {
                        room = self.room(core);
                    }
                    if room == 0 {
                        break;
                    }
                    room -= 1;
                }
                if !takes_from_wire || !core.wire.receive(&mut frame) {
                    break;
                }
                core.frames.0 += 1;
                self.replicate(core, &frame);
            }
            moved += 1;
            match to {
                Place::Virtual(number) => self.accept_virtual(core, number, from, &mut frame),
                _ if receives => self.accept(core, &maps, from, &mut frame),
                _ => {}
            }
        }
        core.receive.frame = frame;
        for packet in std::mem::take(&mut core.receive.coalescing) {
            self.finish_packet(core, &maps, packet);
        }
        self.control_flow(core);
        if moved > 0 {
            self.count_received(&mut core.receive.counted);
            for queue in 0..core.rx.len() {
                if core.rx[queue].packets > 0 {
                    self.count_delivered(core, queue as u16);
                }
            }
        }
        moved
    }

    /// Drops the frames of a sender that sends without waiting, while no function receives.
    fn lose(&self, core: &mut Core, budget: usize) -> usize {
        let mut frame = std::mem::take(&mut core.receive.frame);
        let mut lost = 0;
        while lost < budget && core.wire.comes_unasked() && core.wire.receive(&mut frame) {
            core.frames.0 += 1;
            lost += 1;
        }
        core.receive.frame = frame;
        lost
    }

    /// Returns how many frames may come before any queue runs out of descriptors, for a sender that honours pause
    /// frames.
    fn room(&self, core: &Core) -> u32 {
        if !core.receive.waiting.is_empty() {
            return 0;
        }
        let longest = self.board.longest_frame() + 4;
        let receives = self.board.receives();
        let in_use = |ring: &&Ring| ring.enabled && (receives || self.board.owner(ring.queue).is_some());
        let rooms = core.rx.iter().filter(in_use).map(|ring| {
            let each = longest.div_ceil(self.board.buffer_bytes(ring.queue).max(1));
            ring.owned() / each as u32
        });
        rooms.min().unwrap_or(0)
    }

    /// Passes a frame through the MAC and the filters.
    fn accept(&self, core: &mut Core, maps: &Maps, from: Place, frame: &mut Frame) {
        let registers = &self.board.registers;
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
        let headers = Headers::parse(&frame.bytes);
        if len > self.board.longest_frame() + if headers.vlan.is_some() { 4 } else { 0 } {
            return registers.count(ROC::OFFSET, 1);
        }
        let Some(destination) = frame.destination() else { return };
        if headers.ethertype == MAC_CONTROL && self.take_control(core, frame, destination) {
            return;
        }
        if !filter::accepts(registers, destination) || !filter::accepts_vlan(registers, headers.vlan) {
            return;
        }
        let counted = &mut core.receive.counted;
        counted.good += 1;
        counted.good_octets += len as u64;
        counted.sizes[size_class(len)] += 1;
        counted.broadcast += u64::from(destination == [0xFF; 6]);
        counted.multicast += u64::from(destination[0] & 1 != 0 && destination != [0xFF; 6]);

        let Some((queue, mut reported)) = self.classify(core, &frame.bytes, &headers) else { return };
        reported.status |= self.check_sums(&frame.bytes, &headers);
        if matches!(from, Place::Virtual(_)) {
            reported.status |= receive::LB;
        }
        if core.clock.stamp_received(&self.board, &frame.bytes, &headers) {
            reported.status |= receive::TS;
        }
        let strip = registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP != 0;
        if self.coalesces(queue) && strip && !frame.bad_crc && !self.joins(core, maps, frame, &headers, queue, reported)
        {
            return;
        }
        reported.status |= self.strip_tag(queue, frame, &headers);
        if !strip {
            let crc = crc32fast::hash(&frame.bytes) ^ u32::from(frame.bad_crc);
            frame.bytes.extend_from_slice(&crc.to_le_bytes());
        }
        if frame.bad_crc {
            reported.status |= receive::RXE_82599;
        }
        self.arrive(core, maps, queue, frame, reported, &[]);
    }

    /// Strips a VLAN tag if the queue is set to, and returns the bits that report it (section 7.4.2).
    fn strip_tag(&self, queue: u16, frame: &mut Frame, headers: &Headers) -> u64 {
        match headers.vlan {
            None => 0,
            Some(tag) if self.board.registers.get(RXDCTL::at(queue)) & RXDCTL::VME != 0 => {
                frame.bytes.drain(12..16);
                receive::VP | u64::from(tag) << receive::VLAN_SHIFT
            }
            Some(_) => receive::VP,
        }
    }

    /// Receives a frame for a virtual function that accepts it.
    fn accept_virtual(&self, core: &mut Core, number: usize, from: Place, frame: &mut Frame) {
        if !core.virtual_functions[number].bus_master || frame.bad_crc || frame.bytes.len() < 60 {
            return;
        }
        let headers = Headers::parse(&frame.bytes);
        let mut status = self.check_sums(&frame.bytes, &headers);
        if from != Place::Wire {
            status |= receive::LB;
        }
        // The physical function's hash selects among the function's queues (section 7.10.2.2).
        let first = Self::first_queue(number);
        let (spread, word0) = match core.rss.hash(&self.board, &frame.bytes, &headers) {
            Some((kind, hash)) => {
                (hash as u16 % virtual_function::QUEUES_EACH, kind | u64::from(hash) << receive::RSS_HASH_SHIFT)
            }
            None => (0, 0),
        };
        let queue = if core.rx[(first + spread) as usize].enabled { first + spread } else { first };
        let multicast = frame.bytes[0] & 1 != 0;
        core.virtual_functions[number].count_received(frame.bytes.len(), multicast);
        status |= self.strip_tag(queue, frame, &headers);
        let space = core.virtual_functions[number].dma.clone();
        let reported = Reported { word0: headers.packet_type | word0, status };
        self.arrive(core, &space.maps(), queue, frame, reported, &[]);
    }

    /// Delivers a frame to its queue, or holds it in the packet buffer until the queue has a descriptor.
    fn arrive(&self, core: &mut Core, maps: &Maps, queue: u16, frame: &Frame, reported: Reported, starts: &[usize]) {
        let registers = &self.board.registers;
        let ring = &mut core.rx[queue as usize];
        if !ring.enabled {
            if let Some(breach) = ring.bad.take() {
                self.board.oracle.note(breach);
            }
            return self.drop_at_queue(queue);
        }
        if !core.receive.waiting.iter().any(|arrived| arrived.queue == queue)
            && let Delivery::Done = self.deliver(maps, ring, frame, reported, starts)
        {
            return;
        }
        // Without DROP_EN the frame waits in the packet buffer, if there is room (8.2.3.8.7).
        if registers.get(SRRCTL::at(queue)) & SRRCTL::DROP_EN != 0 {
            return self.drop_at_queue(queue);
        }
        let capacity = (registers.get(RXPBSIZE::at(0)) >> RXPBSIZE::KIB_SHIFT & 0x3FF) as usize * 1024;
        if core.receive.waiting_bytes + frame.bytes.len() > capacity {
            return registers.count(RXMPC::at(0), 1);
        }
        core.receive.waiting_bytes += frame.bytes.len();
        core.receive.waiting.push_back(Arrived { queue, frame: frame.clone(), reported, starts: starts.to_vec() });
    }

    fn drop_at_queue(&self, queue: u16) {
        self.board.registers.count(QPRDC::at(self.statistics_place(queue)), 1);
    }

    fn statistics_place(&self, queue: u16) -> u16 {
        (self.board.registers.get(RQSMR::at(queue / 4)) >> (queue % 4 * 8) & 0xF) as u16
    }

    fn deliver_waiting(&self, core: &mut Core, maps: &Maps) -> usize {
        let mut moved = 0;
        while let Some(arrived) = core.receive.waiting.front() {
            let Arrived { queue, frame, reported, starts } = arrived;
            let space = self.board.owner(*queue).map(|number| core.virtual_functions[number].dma.clone());
            let of_function = space.as_ref().map(|space| space.maps());
            let maps = of_function.as_deref().unwrap_or(maps);
            let ring = &mut core.rx[*queue as usize];
            let Delivery::Done = self.deliver(maps, ring, frame, *reported, starts) else { break };
            core.receive.waiting_bytes -= frame.bytes.len();
            core.receive.waiting.pop_front();
            moved += 1;
        }
        moved
    }

    /// Returns the frame's queue, and what is reported of how it was chosen; `None` if a filter drops the frame.
    fn classify(&self, core: &mut Core, frame: &[u8], headers: &Headers) -> Option<(u16, Reported)> {
        let registers = &self.board.registers;
        let (mut word0, mut chosen, mut status) = (headers.packet_type, None, 0);
        if core.director.active {
            match core.director.direct(registers, frame, headers) {
                Verdict::Drop => return None,
                Verdict::Queue(queue, bits, filter) => {
                    chosen = Some(queue);
                    word0 |= bits;
                    if let Some(name) = filter {
                        status |= receive::FLM;
                        if registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::REPORT_STATUS != 0 {
                            word0 |= receive::RSS_TYPE_MASK | u64::from(name) << receive::RSS_HASH_SHIFT;
                            return Some((queue, Reported { word0, status }));
                        }
                    }
                }
                Verdict::Undecided(bits) => word0 |= bits,
            }
        }
        let mrqc = registers.get(MRQC::OFFSET);
        // Either the hash or the fragment fields are reported, not both (section 8.2.3.7.5).
        let reports_hash = registers.get(RXCSUM::OFFSET) & RXCSUM::PCSD != 0;
        if !reports_hash && headers.is_ipv4() {
            word0 |= u64::from(word(frame, headers.network + 4).unwrap_or(0)) << receive::RSS_HASH_SHIFT;
        }
        if mrqc & MRQC::MRQE_MASK != MRQC::MRQE_RSS {
            return Some((chosen.unwrap_or(0), Reported { word0, status }));
        }
        let Some((kind, hash)) = core.rss.hash(&self.board, frame, headers) else {
            return Some((chosen.unwrap_or(0), Reported { word0, status }));
        };
        let queue = Rss::redirection(&self.board, hash);
        if reports_hash {
            word0 |= kind | (hash as u64) << receive::RSS_HASH_SHIFT;
        }
        Some((chosen.unwrap_or(queue), Reported { word0, status }))
    }

    /// Returns the results of the checksum checks as bits of word 1 (section 7.1.11).
    fn check_sums(&self, frame: &[u8], headers: &Headers) -> u64 {
        let checksum::Checked { ip, transport } = checksum::check(frame, headers);
        let bits = |checked: Option<bool>, done: u64, wrong: u64| match checked {
            None => 0,
            Some(true) => done,
            Some(false) => done | wrong,
        };
        bits(ip, receive::IPCS, receive::IPE) | bits(transport, receive::L4CS, receive::L4E)
    }

    fn coalesces(&self, queue: u16) -> bool {
        self.board.registers.get(RSCCTL::at(queue)) & RSCCTL::RSCEN != 0
            && self.board.registers.get(RFCTL::OFFSET) & RFCTL::RSC_DIS == 0
    }

    /// Adds a segment to its packet, or begins one. True if the frame cannot be coalesced and is to be delivered as
    /// it is; earlier segments of its flow have then been delivered.
    fn joins(
        &self,
        core: &mut Core,
        maps: &Maps,
        frame: &Frame,
        headers: &Headers,
        queue: u16,
        reported: Reported,
    ) -> bool {
        let right = receive::L4CS | if headers.is_ipv4() { receive::IPCS } else { 0 };
        let is_segment = reported.status == right && coalesce::segment(&frame.bytes, headers).is_some();
        let list = &mut core.receive.coalescing;
        let at = list.iter().position(|packet| packet.queue == queue && packet.is_of(&frame.bytes, headers));
        if let Some(at) = at {
            let descriptors =
                [1, 4, 8, 16][(self.board.registers.get(RSCCTL::at(queue)) >> RSCCTL::MAXDESC_SHIFT & 0x3) as usize];
            let room = self.board.buffer_bytes(queue);
            if is_segment && list[at].append(&frame.bytes, headers, descriptors, room) {
                return false;
            }
            let packet = list.remove(at);
            self.finish_packet(core, maps, packet);
        }
        if !is_segment {
            return true;
        }
        match Packet::begin(queue, frame, headers, reported) {
            Some(packet) => {
                core.receive.coalescing.push(packet);
                false
            }
            None => true,
        }
    }

    fn finish_packet(&self, core: &mut Core, maps: &Maps, mut packet: Packet) {
        packet.finish();
        self.arrive(core, maps, packet.queue, &packet.frame, packet.reported, &packet.starts);
    }

    /// Writes a packet to its queue's buffers, and writes its descriptors back.
    fn deliver(
        &self,
        maps: &Maps,
        ring: &mut Ring,
        frame: &Frame,
        Reported { word0, status }: Reported,
        starts: &[usize],
    ) -> Delivery {
        let bytes = &frame.bytes;
        let room = self.board.buffer_bytes(ring.queue);
        let control = self.board.registers.get(SRRCTL::at(ring.queue));
        let legacy = match control >> SRRCTL::DESCTYPE_SHIFT & 0x7 {
            0 => true,
            1 => false,
            _ => {
                self.board.oracle.note(Breach::NotModelled { what: "header split" });
                return Delivery::Done;
            }
        };
        if room == 0 {
            return Delivery::Done;
        }
        let count = bytes.len().div_ceil(room) as u32;
        if count > ring.owned() {
            return Delivery::NoDescriptor;
        }
        let most_written = self.board.most_written(ring.queue);
        for (n, part) in bytes.chunks(room).enumerate() {
            let n = n as u32;
            let Some(words) = ring.read(maps, n, &self.board.oracle) else { return Delivery::Done };
            ring.compare(maps, n, words, most_written, &self.board.oracle);
            Self::write_buffer(maps, ring, words[0], part, &self.board.oracle);
            let last = n + 1 == count;
            // Of a coalesced packet each descriptor reports how many segments begin in it, plus one, and the next
            // descriptor (section 7.11.5.2).
            let here = n as usize * room..n as usize * room + part.len();
            let (count_here, next) = match starts.is_empty() {
                true => (0, 0),
                false => (1 + starts.iter().filter(|start| here.contains(start)).count(), ring.index(n + 1)),
            };
            let written = match legacy {
                false => [
                    word0 | (count_here as u64) << receive::RSCCNT_SHIFT,
                    receive::DD
                        | if last { receive::EOP | status } else { u64::from(next) << receive::NEXTP_SHIFT }
                        | (part.len() as u64) << receive::LENGTH_SHIFT,
                ],
                true => {
                    let bit = |from: u64, to: u64| if last && status & from != 0 { to } else { 0 };
                    [
                        words[0],
                        legacy_receive::DD
                            | if last { legacy_receive::EOP } else { 0 }
                            | bit(receive::VP, legacy_receive::VP)
                            | bit(receive::IPCS, legacy_receive::IPCS)
                            | bit(receive::L4CS, legacy_receive::L4CS)
                            | bit(receive::L4E, legacy_receive::L4E)
                            | bit(receive::RXE_82599 | receive::IPE, legacy_receive::RXE)
                            | status >> receive::VLAN_SHIFT << receive::VLAN_SHIFT
                            | part.len() as u64,
                    ]
                }
            };
            ring.write_back(maps, n, written);
        }
        ring.advance(count);
        self.board.registers.set(RDH::at(ring.queue), ring.head);
        ring.packets += 1;
        ring.octets += bytes.len() as u64;
        Delivery::Done
    }

    fn write_buffer(maps: &Maps, ring: &Ring, address: u64, bytes: &[u8], oracle: &Oracle) {
        if !maps.write(address, bytes) {
            let Ring { direction, queue, .. } = *ring;
            oracle.note(Breach::Unmapped { direction, queue, address, len: bytes.len() });
        }
    }

    /// Handles a frame for the MAC itself: a pause (section 3.7.7.3). True if the frame is not to be delivered.
    fn take_control(&self, core: &mut Core, frame: &Frame, destination: [u8; 6]) -> bool {
        let registers = &self.board.registers;
        let control = registers.get(MFLCN::OFFSET);
        let ours = destination == PAUSE_ADDRESS || filter::accepts(registers, destination);
        if ours && word(&frame.bytes, 14) == Some(PAUSE) && control & MFLCN::RFCE != 0 {
            let quanta = word(&frame.bytes, 16).unwrap_or(0);
            registers.count(if quanta == 0 { LXONRXCNT::OFFSET } else { LXOFFRXCNT::OFFSET }, 1);
            core.transmit.paused_until = (quanta > 0).then(|| Instant::now() + PAUSE_UNIT * u32::from(quanta));
        }
        control & MFLCN::PMCF == 0
    }

    /// Tells the partner to pause while the packet buffer is too full, and then to go on (section 3.7.7.4).
    fn control_flow(&self, core: &mut Core) {
        let registers = &self.board.registers;
        let high = registers.get(FCRTH::at(0));
        if registers.get(FCCFG::OFFSET) & FCCFG::TFCE_MASK != FCCFG::TFCE_LINK || high & FCRTH::FCEN == 0 {
            return;
        }
        let waiting = core.receive.waiting_bytes as u32;
        let time = registers.get(FCTTV::at(0)) as u16;
        let low = registers.get(FCRTL::at(0));
        let again = core.receive.paused.is_none_or(|since| since.elapsed() > PAUSE_UNIT * u32::from(time) / 2);
        if waiting > high & FCRTH::MASK && again {
            core.receive.paused = Some(Instant::now());
            registers.count(LXOFFTXC::OFFSET, 1);
            self.send_pause(core, time);
        } else if core.receive.paused.is_some() && waiting <= low & FCRTL::MASK {
            core.receive.paused = None;
            if low & FCRTL::XONE != 0 {
                registers.count(LXONTXC::OFFSET, 1);
                self.send_pause(core, 0);
            }
        }
    }

    fn send_pause(&self, core: &mut Core, time: u16) {
        let mut bytes = vec![0; 60];
        bytes[..6].copy_from_slice(&PAUSE_ADDRESS);
        let (low, high) = (self.board.registers.get(RAL::at(0)), self.board.registers.get(RAH::at(0)));
        bytes[6..10].copy_from_slice(&low.to_le_bytes());
        bytes[10..12].copy_from_slice(&high.to_le_bytes()[..2]);
        bytes[12..14].copy_from_slice(&MAC_CONTROL.to_be_bytes());
        bytes[14..16].copy_from_slice(&PAUSE.to_be_bytes());
        bytes[16..18].copy_from_slice(&time.to_be_bytes());
        core.transmit.counted.add(&bytes);
        core.frames.1 += 1;
        core.wire.transmit(&Frame { bytes, bad_crc: false });
    }

    /// Updates a queue's counters and sets the interrupt cause, once for all frames of a step.
    fn count_delivered(&self, core: &mut Core, queue: u16) {
        let place = self.statistics_place(queue);
        let ring = &mut core.rx[queue as usize];
        let (packets, octets) = (std::mem::take(&mut ring.packets), std::mem::take(&mut ring.octets));
        self.board.registers.count(QPRC::at(place), packets);
        self.board.registers.count_wide(QBRC_L::at(place), QBRC_H::at(place), octets);
        self.board.registers.count(RXDGPC::OFFSET, packets);
        self.board.registers.count_wide(RXDGBCL::OFFSET, RXDGBCH::OFFSET, octets);
        self.cause(core, Direction::Receive, queue);
    }

    fn count_received(&self, counted: &mut Counted) {
        let registers = &self.board.registers;
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
