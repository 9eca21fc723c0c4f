//! The receive path: from the wire to memory (sections 1.8.2 and 7.1).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use linerate_spec::descriptor::{legacy_receive, receive};
use linerate_spec::x82599::*;
use linerate_spec::x82599_vf::QUEUES as QUEUES_EACH;

use super::Direction;
use super::board::Board;
use super::breach::{Breach, Oracle};
use super::checksum;
use super::clock::Clock;
use super::coalesce::{self, Packet, Reported};
use super::director::{Director, Verdict};
use super::dma::Maps;
use super::filter;
use super::flows::{Decision, Flows};
use super::functions::Functions;
use super::headers::{Headers, word};
use super::interrupt::Interrupts;
use super::mac::{MAC_CONTROL, Mac};
use super::queues::Stopped;
use super::registers::Registers;
use super::ring::{CardRing, Rings};
use super::rss::Rss;
use super::switch::{Endpoint, Switch};
use super::wire::Frame;

/// State kept between steps.
#[derive(Default)]
pub(super) struct Receive {
    frame: Frame,
    /// The packet buffer: packets for queues without a free descriptor, and the sum of their bytes.
    waiting: VecDeque<Arrived>,
    waiting_bytes: usize,
    /// Packets that are being coalesced, and the number of segments that they have had so far.
    coalescing: Vec<Packet>,
    coalesced: u64,
    /// The number of frames of the last step, as an estimate for the next step.
    expected: usize,
    pub flows: Flows,
}

/// The blocks on the receive path.
pub(super) struct Incoming<'a> {
    pub mac: &'a mut Mac,
    pub switch: &'a mut Switch,
    pub functions: &'a mut Functions,
    pub interrupts: &'a mut Interrupts,
    pub clock: &'a Clock,
    pub rss: &'a mut Rss,
    pub director: &'a Director,
}

/// A packet in the packet buffer, whose queue had no free descriptor.
struct Arrived {
    queue: u16,
    frame: Frame,
    reported: Reported,
    /// For a coalesced packet: where each segment begins.
    starts: Vec<usize>,
}

/// The result of delivering a frame to its queue.
enum Delivery {
    Done,
    NoDescriptor,
}

/// The destination of frames: the card, its memory, and its rings.
struct Targets<'a> {
    board: &'a Board,
    maps: &'a Maps,
    rings: &'a mut Rings,
}

impl Receive {
    /// Drops packets waiting for queues that were reset.
    pub fn forget(&mut self, queues: Range<u16>) {
        self.coalescing.retain(|packet| !queues.contains(&packet.queue));
        self.waiting.retain(|arrived| !queues.contains(&arrived.queue));
        self.waiting_bytes = self.waiting.iter().map(|arrived| arrived.frame.bytes.len()).sum();
    }

    /// Drops packets waiting for a queue that was disabled.
    pub fn stopped(&mut self, stopped: &Stopped) {
        if stopped.direction == Direction::Receive {
            self.forget(stopped.queue..stopped.queue + 1);
        }
    }

    /// Receives at most `budget` frames, and returns their number.
    pub fn step(&mut self, board: &Board, budget: usize, rings: &mut Rings, path: &mut Incoming) -> usize {
        let has_link = board.has_link();
        if !has_link && path.functions.is_empty() {
            return 0;
        }
        // RXCTRL enables receive for the physical function; each queue of a virtual function is enabled separately.
        let receives = board.receives() && board.may_dma();
        if !receives && path.functions.is_empty() {
            return self.drop_unreceived(path.mac, budget);
        }
        if board.changed.load(Ordering::Relaxed) && board.changed.swap(false, Ordering::Acquire) {
            self.flows.forget();
        }
        for place in 0..rings.enabled() {
            let ring = rings.enabled_at(place);
            let tail = board.registers.get(RDT::at(ring.queue));
            ring.control = board.registers.get(SRRCTL::at(ring.queue));
            if tail != ring.tail {
                ring.move_tail(tail, &board.oracle);
            }
        }
        // While no function receives, no frames are taken from the wire.
        let any_receives = receives || path.functions.iter().any(|function| function.is_running());
        let takes_from_wire = any_receives && has_link && !board.loops_back();
        let maps = board.dma.maps();
        if receives {
            let each = self.expected / rings.enabled().max(1);
            // Only the physical function's rings: the rings of virtual functions are in other address spaces.
            let own = rings.iter_enabled().filter(|ring| board.owner(ring.queue).is_none());
            own.for_each(|ring| ring.prefetch(&maps, each as u32));
        }
        let mut frame = std::mem::take(&mut self.frame);
        let targets = &mut Targets { board, maps: &maps, rings };
        let mut moved = self.deliver_waiting(targets, path.functions);
        let mut room = 0;
        let has_backpressure = path.mac.wire.has_backpressure();
        while moved < budget {
            let (mut from, mut to) = (Endpoint::Wire, Endpoint::Physical);
            if let Some(arriving) = path.switch.next() {
                (from, to, frame) = arriving;
            } else {
                if has_backpressure {
                    if room == 0 {
                        room = self.room(board, targets.rings);
                    }
                    if room == 0 {
                        break;
                    }
                    room -= 1;
                }
                if !takes_from_wire || !path.mac.receive(&mut frame) {
                    break;
                }
                path.switch.replicate(path.functions, &frame);
            }
            moved += 1;
            match to {
                Endpoint::Virtual(number) => self.accept_virtual(targets, path, number, from, &mut frame),
                _ if receives => self.accept(targets, path, from, &mut frame),
                _ => {}
            }
        }
        self.frame = frame;
        self.expected = moved;
        self.finish_packets(targets);
        path.mac.control_flow(board, self.waiting_bytes as u32);
        if moved > 0 {
            path.mac.count_received(board);
            for place in 0..targets.rings.enabled() {
                let ring = targets.rings.enabled_at(place);
                if ring.packets == 0 {
                    continue;
                }
                count_delivered(board, ring);
                path.functions.cause(board, path.interrupts, Direction::Receive, ring.queue);
            }
        }
        moved
    }

    /// Drops frames from a wire whose sender does not wait, while no function receives.
    fn drop_unreceived(&mut self, mac: &mut Mac, budget: usize) -> usize {
        let mut lost = 0;
        while lost < budget && mac.wire.is_lossy_when_idle() && mac.receive(&mut self.frame) {
            lost += 1;
        }
        lost
    }

    /// Returns how many frames can be received before any queue runs out of descriptors, for a sender that honours
    /// pause frames.
    fn room(&self, board: &Board, rings: &Rings) -> u32 {
        if !self.waiting.is_empty() {
            return 0;
        }
        let longest = board.longest_frame() + 4;
        let receives = board.receives();
        let in_use = |ring: &&CardRing| receives || board.owner(ring.queue).is_some();
        let rooms = rings.iter_enabled().filter(in_use).map(|ring| {
            let each = longest.div_ceil(board.buffer_bytes(ring.queue).max(1));
            ring.owned() / each as u32
        });
        rooms.min().unwrap_or(0)
    }

    /// Passes a frame through the MAC and the filters.
    fn accept(&mut self, targets: &mut Targets, path: &mut Incoming, from: Endpoint, frame: &mut Frame) {
        let board = targets.board;
        let registers = &board.registers;
        let len = frame.bytes.len() + 4;
        path.mac.received.add(len);
        if frame.bad_crc {
            registers.count(CRCERRS::OFFSET, 1);
            if registers.get(FCTRL::OFFSET) & FCTRL::SBP == 0 {
                return;
            }
        }
        if len < 64 {
            return registers.count(RUC::OFFSET, 1);
        }
        let decision = match self.flows.find(&frame.bytes) {
            Some(mut known) => {
                path.mac.received.add_good(len, &frame.bytes);
                known.reported.status |= loopback(from);
                Some(known)
            }
            None => self.decide(targets, path, from, frame),
        };
        let Some(Decision { queue, mut reported }) = decision else { return };
        if registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP == 0 {
            let crc = crc32fast::hash(&frame.bytes) ^ u32::from(frame.bad_crc);
            frame.bytes.extend_from_slice(&crc.to_le_bytes());
        }
        if frame.bad_crc {
            reported.status |= receive::RXE_82599;
        }
        self.deliver_or_queue(targets, queue, frame, reported, &[]);
    }

    /// Decides about a frame by its headers. Returns `None` if a filter drops the frame, or it is being coalesced.
    fn decide(
        &mut self,
        targets: &mut Targets,
        path: &mut Incoming,
        from: Endpoint,
        frame: &mut Frame,
    ) -> Option<Decision> {
        let board = targets.board;
        let registers = &board.registers;
        let len = frame.bytes.len() + 4;
        let headers = Headers::parse(&frame.bytes);
        if len > board.longest_frame() + if headers.vlan.is_some() { 4 } else { 0 } {
            registers.count(ROC::OFFSET, 1);
            return None;
        }
        let destination = frame.destination()?;
        if headers.ethertype == MAC_CONTROL && path.mac.take_control(board, frame, destination) {
            return None;
        }
        if !filter::accepts(registers, destination) || !filter::accepts_vlan(registers, headers.vlan) {
            return None;
        }
        path.mac.received.add_good(len, &frame.bytes);

        let (queue, mut reported) = path.classify(board, &frame.bytes, &headers)?;
        reported.status |= check_sums(&frame.bytes, &headers);
        // Cache the decision only if it depends on the headers alone, which excludes filters and time stamps.
        if !path.director.active && !path.clock.stamps_received(board) {
            self.flows.keep(&frame.bytes, Decision { queue, reported });
        }
        reported.status |= loopback(from);
        if path.clock.stamp_received(board, &frame.bytes, &headers) {
            reported.status |= receive::TS;
        }
        let strips_crc = registers.get(HLREG0::OFFSET) & HLREG0::RXCRCSTRP != 0;
        let coalesces = coalesces(registers, queue) && strips_crc && !frame.bad_crc;
        if coalesces && !self.coalesce_or_pass(targets, frame, &headers, queue, reported) {
            return None;
        }
        reported.status |= strip_tag(registers, queue, frame, &headers);
        Some(Decision { queue, reported })
    }

    /// Receives a frame for a virtual function, which accepts it.
    fn accept_virtual(
        &mut self,
        &mut Targets { board, ref mut rings, .. }: &mut Targets,
        path: &mut Incoming,
        number: usize,
        from: Endpoint,
        frame: &mut Frame,
    ) {
        let function = &mut path.functions[number];
        if !function.bus_master || frame.bad_crc || frame.bytes.len() < 60 {
            return;
        }
        let headers = Headers::parse(&frame.bytes);
        let mut status = check_sums(&frame.bytes, &headers);
        if from != Endpoint::Wire {
            status |= receive::LB;
        }
        // The physical function's hash selects one of the virtual function's queues (section 7.10.2.2).
        let first = Functions::first_queue(number);
        let (spread, word0) = match path.rss.hash(board, &frame.bytes, &headers) {
            Some((kind, hash)) => (hash as u16 % QUEUES_EACH, kind | u64::from(hash) << receive::RSS_HASH_SHIFT),
            None => (0, 0),
        };
        let queue = if rings[(first + spread) as usize].enabled { first + spread } else { first };
        let multicast = frame.bytes[0] & 1 != 0;
        function.count_received(frame.bytes.len() + 4, multicast);
        status |= strip_tag(&board.registers, queue, frame, &headers);
        let space = function.dma.clone();
        let reported = Reported { word0: headers.packet_type | word0, status };
        self.deliver_or_queue(&mut Targets { board, maps: &space.maps(), rings }, queue, frame, reported, &[]);
    }

    /// Delivers a frame to its queue, or holds it in the packet buffer until the queue has a descriptor.
    #[inline]
    fn deliver_or_queue(
        &mut self,
        &mut Targets { board, maps, ref mut rings }: &mut Targets,
        queue: u16,
        frame: &Frame,
        reported: Reported,
        starts: &[usize],
    ) {
        let registers = &board.registers;
        let ring = &mut rings[queue as usize];
        if !ring.enabled {
            if let Some(breach) = ring.invalid.take() {
                board.oracle.note(breach);
            }
            return drop_at_queue(registers, queue);
        }
        if !self.waiting.iter().any(|arrived| arrived.queue == queue)
            && let Delivery::Done = deliver(board, maps, ring, frame, reported, starts)
        {
            return;
        }
        // Without DROP_EN the frame waits in the packet buffer if there is room (8.2.3.8.7).
        if ring.control & SRRCTL::DROP_EN != 0 {
            return drop_at_queue(registers, queue);
        }
        let capacity = (registers.get(RXPBSIZE::at(0)) >> RXPBSIZE::KIB_SHIFT & 0x3FF) as usize * 1024;
        if self.waiting_bytes + frame.bytes.len() > capacity {
            return registers.count(RXMPC::at(0), 1);
        }
        self.waiting_bytes += frame.bytes.len();
        self.waiting.push_back(Arrived { queue, frame: frame.clone(), reported, starts: starts.to_vec() });
    }

    fn deliver_waiting(&mut self, targets: &mut Targets, functions: &Functions) -> usize {
        let &mut Targets { board, maps, ref mut rings } = targets;
        let mut moved = 0;
        while let Some(arrived) = self.waiting.front() {
            let Arrived { queue, frame, reported, starts } = arrived;
            let space = board.owner(*queue).map(|number| functions[number].dma.clone());
            let of_function = space.as_ref().map(|space| space.maps());
            let maps = of_function.as_deref().unwrap_or(maps);
            let ring = &mut rings[*queue as usize];
            let Delivery::Done = deliver(board, maps, ring, frame, *reported, starts) else { break };
            self.waiting_bytes -= frame.bytes.len();
            self.waiting.pop_front();
            moved += 1;
        }
        moved
    }

    /// Adds a segment to its coalesced packet, or begins a coalesced packet. Returns true if the frame cannot be
    /// coalesced and must be delivered as it is; earlier segments of its flow have then been delivered.
    fn coalesce_or_pass(
        &mut self,
        targets: &mut Targets,
        frame: &Frame,
        headers: &Headers,
        queue: u16,
        reported: Reported,
    ) -> bool {
        let right = receive::L4CS | if headers.is_ipv4() { receive::IPCS } else { 0 };
        let is_segment = reported.status == right && coalesce::segment(&frame.bytes, headers).is_some();
        let list = &mut self.coalescing;
        let at = list.iter().position(|packet| packet.queue == queue && packet.is_of(&frame.bytes, headers));
        if let Some(at) = at {
            let descriptors = most_descriptors(&targets.board.registers, queue);
            let room = targets.board.buffer_bytes(queue);
            if is_segment && list[at].append(&frame.bytes, headers, descriptors, room) {
                self.coalesced += 1;
                list[at].note_arrival(self.coalesced, room);
                return false;
            }
            let packet = list.remove(at);
            self.finish_packet(targets, packet);
        }
        if !is_segment {
            return true;
        }
        match Packet::begin(queue, frame, headers, reported) {
            Some(mut packet) => {
                check_coalescing(targets.board, queue);
                self.coalesced += 1;
                packet.note_arrival(self.coalesced, targets.board.buffer_bytes(queue));
                self.coalescing.push(packet);
                false
            }
            None => true,
        }
    }

    /// Finishes all packets. A packet gets a buffer when the buffer's first byte arrives, so the buffers of a queue's
    /// packets alternate (section 7.11.5.2).
    fn finish_packets(&mut self, targets: &mut Targets) {
        while let Some(first) = self.coalescing.first() {
            let queue = first.queue;
            let (mut packets, others) =
                std::mem::take(&mut self.coalescing).into_iter().partition::<Vec<_>, _>(|one| one.queue == queue);
            self.coalescing = others;
            let count: usize = packets.iter().map(|packet| packet.begun.len()).sum();
            let ring = &mut targets.rings[queue as usize];
            let is_advanced = ring.control >> SRRCTL::DESCTYPE_SHIFT & 0x7 == 1;
            let is_waiting = self.waiting.iter().any(|arrived| arrived.queue == queue);
            if packets.len() == 1 || !ring.enabled || !is_advanced || is_waiting || count as u32 > ring.owned() {
                packets.into_iter().for_each(|packet| self.finish_packet(targets, packet));
                continue;
            }
            let mut order = Vec::with_capacity(count);
            for (n, packet) in packets.iter_mut().enumerate() {
                packet.finish();
                order.extend(packet.begun.iter().enumerate().map(|(buffer, &arrival)| (arrival, n, buffer)));
            }
            order.sort_unstable();
            for (n, Packet { frame, reported, starts, begun, .. }) in packets.iter().enumerate() {
                let places: Vec<u32> = (0..order.len()).filter(|&at| order[at].1 == n).map(|at| at as u32).collect();
                let place = |buffer: u32| places.get(buffer as usize).copied().unwrap_or_default();
                let count = begun.len() as u32;
                write_packet(targets.board, targets.maps, ring, frame, *reported, starts, count, place);
                ring.packets += 1;
                ring.octets += frame.bytes.len() as u64;
            }
            ring.advance(count as u32);
        }
    }

    fn finish_packet(&mut self, targets: &mut Targets, mut packet: Packet) {
        packet.finish();
        self.deliver_or_queue(targets, packet.queue, &packet.frame, packet.reported, &packet.starts);
    }
}

impl Incoming<'_> {
    /// Returns the frame's queue, and the report on how it was chosen. Returns `None` if a filter drops the frame.
    fn classify(&mut self, board: &Board, frame: &[u8], headers: &Headers) -> Option<(u16, Reported)> {
        let registers = &board.registers;
        let (mut word0, mut chosen, mut filter, mut status) = (headers.packet_type, None, None, 0);
        if self.director.active {
            match self.director.direct(registers, frame, headers) {
                Verdict::Drop => return None,
                Verdict::Pass(queue, bits, name) => {
                    chosen = queue;
                    word0 |= bits;
                    status |= if name.is_some() { receive::FLM } else { 0 };
                    filter = name.filter(|_| registers.get(FDIRCTRL::OFFSET) & FDIRCTRL::REPORT_STATUS != 0);
                }
            }
        }
        let is_spread = registers.get(MRQC::OFFSET) & MRQC::MRQE_MASK == MRQC::MRQE_RSS;
        let hash = if is_spread { self.rss.hash(board, frame, headers) } else { None };
        let queue = chosen.or_else(|| Some(Rss::redirection(board, hash?.1))).unwrap_or(0);
        // The field has the hash or the fragment fields (section 8.2.3.7.5), or the filter: the software index in its
        // low half, the bucket in the high one (section 7.1.6.2).
        let reports_hash = registers.get(RXCSUM::OFFSET) & RXCSUM::PCSD != 0;
        let (kind, field) = match (filter, hash) {
            (Some(filter), _) => (receive::RSS_TYPE_FILTER, filter.rotate_left(16)),
            (None, Some((kind, hash))) if reports_hash => (kind, hash),
            (None, _) if !reports_hash && headers.is_ipv4() => {
                (0, word(frame, headers.network + 4).unwrap_or(0).into())
            }
            (None, _) => (0, 0),
        };
        word0 |= kind | u64::from(field) << receive::RSS_HASH_SHIFT;
        Some((queue, Reported { word0, status }))
    }
}

/// Returns the status bit of frames sent by another function of this card.
fn loopback(from: Endpoint) -> u64 {
    if matches!(from, Endpoint::Virtual(_)) { receive::LB } else { 0 }
}

/// Strips a VLAN tag if the queue is set to do so. Returns the status bits that report the tag (section 7.4.2).
fn strip_tag(registers: &Registers, queue: u16, frame: &mut Frame, headers: &Headers) -> u64 {
    match headers.vlan {
        None => 0,
        Some(tag) if registers.get(RXDCTL::at(queue)) & RXDCTL::VME != 0 => {
            frame.bytes.drain(12..16);
            receive::VP | u64::from(tag) << receive::VLAN_SHIFT
        }
        Some(_) => receive::VP,
    }
}

/// Counts a frame that was dropped because its queue had no free descriptor.
fn drop_at_queue(registers: &Registers, queue: u16) {
    registers.count(QPRDC::at(statistics_place(registers, queue)), 1);
}

/// Returns the index of a queue's counters.
fn statistics_place(registers: &Registers, queue: u16) -> u16 {
    (registers.get(RQSMR::at(queue / 4)) >> (queue % 4 * 8) & 0xF) as u16
}

/// Returns the results of the checksum checks as bits of word 1 (section 7.1.11).
fn check_sums(frame: &[u8], headers: &Headers) -> u64 {
    let checksum::Checked { ip, transport } = checksum::check(frame, headers);
    let bits = |checked: Option<bool>, done: u64, wrong: u64| match checked {
        None => 0,
        Some(true) => done,
        Some(false) => done | wrong,
    };
    bits(ip, receive::IPCS, receive::IPE_82599) | bits(transport, receive::L4CS, receive::L4E_82599)
}

/// Returns whether the packets of a queue are coalesced.
fn coalesces(registers: &Registers, queue: u16) -> bool {
    registers.get(RSCCTL::at(queue)) & RSCCTL::RSCEN != 0 && registers.get(RFCTL::OFFSET) & RFCTL::RSC_DIS == 0
}

/// Checks what coalescing needs (sections 4.6.7.2 and 7.3.2.1.1).
fn check_coalescing(Board { registers, oracle, .. }: &Board, queue: u16) {
    let control = registers.get(SRRCTL::at(queue));
    let entry = registers.get(IVAR::at(queue / 2)) >> (queue % 2 * 16);
    let interval = registers.get(EITR::at(entry as u16 & 0x3F)) >> EITR::INTERVAL_SHIFT & EITR::INTERVAL_MASK;
    let finds_tcp = [0, queue % 64].iter().any(|&pool| registers.get(PSRTYPE::at(pool)) & PSRTYPE::TCPHDR != 0);
    let kib = (control & SRRCTL::BSIZEPACKET_MASK) * most_descriptors(registers, queue) as u32;
    let is_bounded = entry & IVAR::VALID != 0 && interval > 0;
    for (is_right, register, why) in [
        (
            is_bounded,
            EITR::NAME,
            "the throttle of the queue's interrupt bounds the time of coalescing (section 7.3.2.1.1)",
        ),
        (
            control & SRRCTL::BSIZEHEADER_MASK >= SRRCTL::BSIZEHEADER_128,
            SRRCTL::NAME,
            "coalescing needs BSIZEHEADER (section 4.6.7.2.1)",
        ),
        (finds_tcp, PSRTYPE::NAME, "coalescing needs TCP headers to be found (section 4.6.7.2.2)"),
        (kib < 64, RSCCTL::NAME, "a coalesced packet has at most 64 KiB minus one (section 4.6.7.2.2)"),
    ] {
        if !is_right {
            oracle.note(Breach::WrongTime { register, queue, why });
        }
    }
}

/// Returns the most buffers of a coalesced packet (section 8.2.3.8.13).
fn most_descriptors(registers: &Registers, queue: u16) -> usize {
    [1, 4, 8, 16][((registers.get(RSCCTL::at(queue)) & RSCCTL::MAXDESC_MASK) >> RSCCTL::MAXDESC_SHIFT) as usize]
}

/// Writes a packet to its queue's buffers, and writes back its descriptors.
#[inline]
fn deliver(
    board: &Board,
    maps: &Maps,
    ring: &mut CardRing,
    frame: &Frame,
    reported: Reported,
    starts: &[usize],
) -> Delivery {
    let bytes = &frame.bytes;
    let room = (ring.control & SRRCTL::BSIZEPACKET_MASK) as usize * 1024;
    if ring.control >> SRRCTL::DESCTYPE_SHIFT & 0x7 > 1 {
        board.oracle.note(Breach::NotModelled { what: "header split" });
        return Delivery::Done;
    }
    if room == 0 {
        return Delivery::Done;
    }
    // Avoid the division, which takes as long as the rest of the work for a short frame.
    let count = if bytes.len() <= room { 1 } else { bytes.len().div_ceil(room) as u32 };
    if count > ring.owned() {
        return Delivery::NoDescriptor;
    }
    if write_packet(board, maps, ring, frame, reported, starts, count, |n| n) {
        ring.advance(count);
        ring.packets += 1;
        ring.octets += bytes.len() as u64;
    }
    Delivery::Done
}

/// Writes a packet to `count` buffers, and writes back their descriptors; `place` tells how far each is after the head.
/// Returns false if the ring is no longer mapped.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn write_packet(
    board: &Board,
    maps: &Maps,
    ring: &CardRing,
    frame: &Frame,
    Reported { word0, status }: Reported,
    starts: &[usize],
    count: u32,
    place: impl Fn(u32) -> u32,
) -> bool {
    let (oracle, bytes) = (&board.oracle, &frame.bytes);
    let room = (ring.control & SRRCTL::BSIZEPACKET_MASK) as usize * 1024;
    let legacy = ring.control >> SRRCTL::DESCTYPE_SHIFT & 0x7 == 0;
    for n in 0..count {
        let start = n as usize * room;
        let part = &bytes[start..bytes.len().min(start + room)];
        let Some(descriptor) = ring.descriptor(maps, place(n), oracle) else { return false };
        let words = descriptor.read();
        if ring.is_watched() {
            ring.compare(maps, place(n), words, board.most_written(ring.queue), oracle);
        }
        write_buffer(maps, ring, words[0], part, oracle);
        let last = n + 1 == count;
        // For a coalesced packet, each descriptor reports the count of segments that begin in it, plus one, and the
        // next descriptor (section 7.11.5.2).
        let here = start..start + part.len();
        let (count_here, next) = match starts.is_empty() {
            true => (0, 0),
            false => (1 + starts.iter().filter(|start| here.contains(start)).count(), ring.index(place(n + 1))),
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
                        | bit(receive::L4E_82599, legacy_receive::L4E)
                        | bit(receive::RXE_82599 | receive::IPE_82599, legacy_receive::RXE)
                        | status >> receive::VLAN_SHIFT << receive::VLAN_SHIFT
                        | part.len() as u64,
                ]
            }
        };
        descriptor.write_back(written);
    }
    true
}

fn write_buffer(maps: &Maps, ring: &CardRing, address: u64, bytes: &[u8], oracle: &Oracle) {
    if !maps.write(address, bytes) {
        let CardRing { direction, queue, .. } = *ring;
        oracle.note(Breach::Unmapped { direction, queue, address, len: bytes.len() });
    }
}

/// Updates a queue's head and counters, once for all frames of a step.
fn count_delivered(Board { registers, .. }: &Board, ring: &mut CardRing) {
    registers.set(RDH::at(ring.queue), ring.head);
    let place = statistics_place(registers, ring.queue);
    let (packets, octets) = (std::mem::take(&mut ring.packets), std::mem::take(&mut ring.octets));
    registers.count(QPRC::at(place), packets);
    registers.count_wide(QBRC_L::at(place), QBRC_H::at(place), octets);
    registers.count(RXDGPC::OFFSET, packets);
    registers.count_wide(RXDGBCL::OFFSET, RXDGBCH::OFFSET, octets);
}
