//! The transmit path: from memory to the wire (sections 1.8.1 and 7.2).

use std::collections::VecDeque;
use std::ops::Range;

use linerate_spec::descriptor::{context, legacy_transmit, transmit};
use linerate_spec::x82599::*;

use super::Direction;
use super::board::Board;
use super::breach::{Breach, Oracle};
use super::clock::Clock;
use super::dma::Maps;
use super::functions::Functions;
use super::interrupt::Interrupts;
use super::mac::Mac;
use super::offload::{self, Context, Wanted};
use super::ring::{CardRing, Descriptor, Rings};
use super::switch::{Endpoint, Switch};
use super::wire::Frame;

/// State kept between steps.
#[derive(Default)]
pub(super) struct Transmit {
    packet: Frame,
    segment: Frame,
    /// The queue that is served first in the next step; queues take turns.
    turn: usize,
    /// Descriptors fetched from queues that have been disabled since, oldest first.
    fetched: VecDeque<Fetched>,
}

/// The blocks on the transmit path.
pub(super) struct Outgoing<'a> {
    pub mac: &'a mut Mac,
    pub switch: &'a mut Switch,
    pub functions: &'a mut Functions,
    pub interrupts: &'a mut Interrupts,
    pub clock: &'a Clock,
}

/// A data descriptor in the card's cache; the card reads the buffer only when it sends the packet.
pub(super) struct Fetched {
    queue: u16,
    index: u32,
    words: [u64; 2],
    /// Hash of the buffer's bytes at the time of the fetch.
    hash: Option<u32>,
}

/// A packet gathered from its descriptors.
#[derive(Default)]
struct Gathered {
    /// The number of descriptors, including context descriptors, and the second word of the last descriptor.
    descriptors: u32,
    last: u64,
    /// Checksums and segmentation, if the descriptors request any.
    wanted: Option<Wanted>,
    vlan: Option<u16>,
    insert_crc: bool,
    stamp: bool,
    /// The packet is invalid and is not sent.
    broken: bool,
}

/// The longest packet that the card sends (section 7.2.1.1: 15.5 KiB).
const LONGEST: usize = 15_872;
/// Descriptors of a queue that the card fetches ahead (section 7.2.3.4).
const FETCHED_AHEAD: u32 = 40;
/// The most bytes that are gathered: the limit of a packet to be segmented (section 7.2.4.1: 256 KiB).
const MOST_GATHERED: usize = 256 << 10;

impl Transmit {
    /// Drops the descriptors fetched from queues that were reset.
    pub fn forget(&mut self, queues: Range<u16>) {
        self.fetched.retain(|fetched| !queues.contains(&fetched.queue));
    }

    /// Keeps the descriptors fetched from a queue that was disabled: the card still sends their packets later. This is
    /// why a driver waits until the queue is empty (section 4.6.8.2).
    pub fn stopped(&mut self, fetched: Vec<Fetched>) {
        self.fetched.extend(fetched);
    }

    /// Sends at most `budget` packets, and returns their number.
    pub fn step(&mut self, board: &Board, budget: usize, rings: &mut Rings, path: &mut Outgoing) -> usize {
        let registers = &board.registers;
        // Without a link, the physical function's frames wait; its driver can end the waiting by a reset of the link.
        // Drivers of virtual functions cannot reset the link, so their frames still go to each other, or are dropped.
        let has_link = board.has_link();
        if !has_link && path.functions.is_empty() || path.mac.is_paused() {
            return 0;
        }
        let sends = registers.get(DMATXCTL::OFFSET) & DMATXCTL::TE != 0;
        // Filled in place: moving the structure would cost more than the rest of the work for most packets.
        let mut gathered = Gathered::default();
        let mut sent = if has_link { self.send_fetched(board, budget, path) } else { 0 };
        for turn in 0..rings.enabled() {
            let ring = rings.enabled_at(self.turn + turn);
            let queue = ring.queue;
            let is_virtual = board.owner(queue).is_some();
            if !(sends && has_link || is_virtual) || !path.functions.may_dma(board, queue) {
                continue;
            }
            let space = path.functions.space(board, queue);
            let maps = &*space.maps();
            let tail = registers.get(TDT::at(queue));
            ring.control = registers.get(TXDCTL::at(queue));
            if tail != ring.tail {
                ring.move_tail(tail, &board.oracle);
            }
            ring.prefetch(maps, (budget - sent) as u32);
            let (before, mut frames, octets) = (sent, 0, path.mac.sent.octets);
            while sent < budget && ring.owned() > 0 && (path.mac.wire.ready() || !has_link) {
                if !gather(board, maps, ring, &mut self.packet.bytes, &mut gathered) {
                    break;
                }
                if !gathered.broken && !self.packet.bytes.is_empty() {
                    frames += self.send(board, path, &gathered, queue, ring.head);
                }
                report(board, maps, ring, &gathered);
                sent += 1;
            }
            if sent > before {
                count(board, queue, frames, path.mac.sent.octets - octets);
                registers.set(TDH::at(queue), ring.head);
                path.functions.cause(board, path.interrupts, Direction::Transmit, queue);
            }
        }
        self.turn = self.turn.wrapping_add(1) % QUEUES as usize;
        sent
    }

    /// Sends the packets fetched from queues that are now disabled, with the current contents of their buffers.
    fn send_fetched(&mut self, board: &Board, budget: usize, path: &mut Outgoing) -> usize {
        let mut sent = 0;
        while sent < budget && path.mac.wire.ready() {
            let is_last = |fetched: &Fetched| fetched.words[1] & transmit::EOP != 0;
            let Some(last) = self.fetched.iter().position(is_last) else { break };
            let packet: Vec<Fetched> = self.fetched.drain(..=last).collect();
            let queue = packet[0].queue;
            let space = path.functions.space(board, queue);
            let bytes = &mut self.packet.bytes;
            bytes.clear();
            for Fetched { index, words: [address, word], hash, .. } in packet {
                let (start, len) = (bytes.len(), (word & transmit::DTALEN_MASK) as usize);
                bytes.resize(start + len, 0);
                space.maps().read(address, &mut bytes[start..]);
                if hash != CardRing::hash(&space.maps(), address, len) {
                    board.oracle.note(Breach::BufferChanged { direction: Direction::Transmit, queue, index });
                }
            }
            let octets = path.mac.sent.octets;
            let frames = self.send(board, path, &Gathered { insert_crc: true, ..Gathered::default() }, queue, 0);
            count(board, queue, frames, path.mac.sent.octets - octets);
            sent += 1;
        }
        sent
    }

    /// Applies the offloads of the gathered packet, and sends each of the resulting frames. Returns their number.
    #[inline]
    fn send(&mut self, board: &Board, path: &mut Outgoing, gathered: &Gathered, queue: u16, index: u32) -> u64 {
        let Transmit { packet, segment, .. } = self;
        let mut frames = 0;
        let sent = match &gathered.wanted {
            Some(wanted) if wanted.segments => offload::cut(&packet.bytes, wanted, segment, |segment| {
                path.send(board, segment, gathered, queue);
                frames += 1;
            }),
            wanted => {
                let insert = |wanted| offload::insert_checksums(&mut packet.bytes, wanted);
                let inserted = wanted.as_ref().map_or(Ok(()), insert);
                path.send(board, packet, gathered, queue);
                frames += 1;
                inserted
            }
        };
        if let Err(why) = sent {
            let direction = Direction::Transmit;
            board.oracle.note(Breach::BadDescriptor { direction, queue, index, word: 0, why });
        }
        frames
    }
}

impl Outgoing<'_> {
    /// Adds the tag, padding and CRC, and sends the frame.
    #[inline]
    fn send(&mut self, board: &Board, frame: &mut Frame, gathered: &Gathered, queue: u16) {
        let registers = &board.registers;
        frame.bad_crc = false;
        if let Some(tag) = gathered.vlan {
            let ethertype = registers.get(VLNCTRL::OFFSET) & VLNCTRL::VET_MASK;
            offload::insert_tag(&mut frame.bytes, ethertype as u16, tag);
        }
        if !gathered.insert_crc && frame.bytes.len() > 4 {
            // The last four bytes are the CRC, supplied by the driver.
            let crc = frame.bytes.split_off(frame.bytes.len() - 4);
            frame.bad_crc = crc != crc32fast::hash(&frame.bytes).to_le_bytes();
        } else if registers.get(HLREG0::OFFSET) & HLREG0::TXPADEN != 0 && frame.bytes.len() < 60 {
            frame.bytes.resize(60, 0);
        }
        if gathered.stamp {
            self.clock.stamp_sent(board);
        }
        self.mac.sent.add(&frame.bytes);
        let from = match board.owner(queue) {
            Some(number) => {
                self.functions[number].count_sent(frame.bytes.len() + 4);
                Endpoint::Virtual(number)
            }
            None => Endpoint::Physical,
        };
        self.switch.forward(board, self.functions, self.mac, from, frame);
    }
}

/// Adds frames to the counters of the queue that sent them.
fn count(Board { registers, .. }: &Board, queue: u16, frames: u64, octets: u64) {
    let place = (registers.get(TQSM::at(queue / 4)) >> (queue % 4 * 8) & 0xF) as u16;
    registers.count(QPTC::at(place), frames);
    registers.count_wide(QBTC_L::at(place), QBTC_H::at(place), octets);
}

/// Returns the data descriptors that the card has fetched from a queue that is about to be disabled.
pub(super) fn fetch(maps: &Maps, ring: &CardRing, oracle: &Oracle) -> Vec<Fetched> {
    let mut fetched = Vec::new();
    for n in 0..ring.owned().min(FETCHED_AHEAD) {
        let Some(words) = ring.descriptor(maps, n, oracle).map(Descriptor::read) else { break };
        let is_context = words[1] & (transmit::DEXT | transmit::DTYP_MASK) == transmit::DEXT | transmit::DTYP_CONTEXT;
        if !is_context {
            let hash = CardRing::hash(maps, words[0], (words[1] & transmit::DTALEN_MASK) as usize);
            fetched.push(Fetched { queue: ring.queue, index: ring.index(n), words, hash });
        }
    }
    // Drop the beginning of a packet whose end was not fetched.
    let whole = fetched.iter().rposition(|last| last.words[1] & transmit::EOP != 0).map_or(0, |last| last + 1);
    fetched.truncate(whole);
    fetched
}

/// Gathers the packet at the ring's head into `packet`. Returns false if it is not complete yet. Gathers as much as
/// possible of an invalid packet.
fn gather(board: &Board, maps: &Maps, ring: &mut CardRing, packet: &mut Vec<u8>, gathered: &mut Gathered) -> bool {
    let CardRing { direction, queue, .. } = *ring;
    // The first data descriptor's second word, the number of data descriptors, and their bytes.
    let (mut first, mut data, mut total) = (0, 0, 0);
    for n in 0..ring.owned() {
        let Some(words) = ring.descriptor(maps, n, &board.oracle).map(Descriptor::read) else { return false };
        let [address, word] = words;
        let bad = |ring: &CardRing, why| {
            board.oracle.note(Breach::BadDescriptor { direction, queue, index: ring.index(n), word, why })
        };
        let is_advanced = word & transmit::DEXT != 0;
        if is_advanced && word & transmit::DTYP_MASK == transmit::DTYP_CONTEXT {
            if ring.is_watched() {
                ring.compare(maps, n, words, 0, &board.oracle);
            }
            if data > 0 {
                bad(ring, "a context descriptor inside a packet (section 7.2.3.3)");
            }
            if word & context::OTHERS != 0 {
                board.oracle.note(Breach::NotModelled { what: "IPsec and Fibre Channel" });
            }
            ring.contexts[(word >> transmit::IDX_SHIFT & 1) as usize] = Some(Context::parse(words));
            continue;
        }
        let len = (word & transmit::DTALEN_MASK) as usize;
        if ring.is_watched() {
            ring.compare(maps, n, words, len, &board.oracle);
        }
        data += 1;
        if data == 1 {
            first = word;
        }
        if is_advanced {
            if word & transmit::DTYP_MASK != transmit::DTYP_DATA {
                bad(ring, "DTYP is neither that of data nor of a context (section 7.2.3.2.4)");
            }
            if word & transmit::RESERVED != 0 || word & transmit::DD != 0 {
                bad(ring, "reserved bits are set (section 7.2.3.2.4)");
            }
        }
        if len == 0 {
            bad(ring, "a data buffer of length 0 (section 7.2.3.2.4)");
        }
        // `packet` still has the length of the previous packet, which is mostly the same.
        if packet.len() < total + len {
            packet.resize(total + len, 0);
        }
        if maps.read(address, &mut packet[total..total + len]) {
            total += len;
        } else {
            board.oracle.note(Breach::Unmapped { direction, queue, address, len });
        }
        if word & transmit::EOP == 0 {
            if word & transmit::RS != 0 {
                bad(ring, "RS without EOP (section 7.2.3.2.4)");
            }
            if data >= transmit::MOST_DESCRIPTORS && first & transmit::TSE == 0 {
                bad(ring, "a packet of more than 40 descriptors (section 7.2.1.1)");
            }
            if total > MOST_GATHERED {
                *gathered = Gathered { descriptors: n + 1, last: word, broken: true, ..Gathered::default() };
                return true;
            }
            continue;
        }
        packet.truncate(total);
        fill(gathered, board, ring, n + 1, [first, word], total, &bad);
        return true;
    }
    // A context descriptor without a packet is finished once it is read.
    if data == 0 && ring.owned() > 0 {
        packet.clear();
        *gathered = Gathered { descriptors: ring.owned(), broken: true, ..Gathered::default() };
        return true;
    }
    false
}

/// Sets the fields of `gathered` that depend on the first and the last descriptor of a packet.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn fill(
    gathered: &mut Gathered,
    board: &Board,
    ring: &CardRing,
    descriptors: u32,
    [first, last]: [u64; 2],
    total: usize,
    bad: &dyn Fn(&CardRing, &'static str),
) {
    (gathered.descriptors, gathered.last, gathered.insert_crc) = (descriptors, last, last & transmit::IFCS != 0);
    (gathered.wanted, gathered.vlan, gathered.stamp, gathered.broken) = (None, None, false, false);
    let mut expected = total;
    if first & transmit::DEXT == 0 {
        if first & transmit::VLE != 0 {
            gathered.vlan = Some((first >> legacy_transmit::VLAN_SHIFT) as u16);
        }
        if first & legacy_transmit::IC != 0 {
            let anywhere = Some((
                (first >> legacy_transmit::CSS_SHIFT & 0xFF) as usize,
                (first >> legacy_transmit::CSO_SHIFT & 0xFF) as usize,
            ));
            gathered.wanted = Some(Wanted { anywhere, ..Wanted::default() });
        }
    } else {
        gathered.stamp = first & transmit::TSTAMP != 0;
        if first & (transmit::TSE | transmit::VLE | transmit::IXSM | transmit::TXSM) != 0 {
            let found = ring.contexts[(first >> transmit::IDX_SHIFT & 1) as usize];
            if found.is_none() {
                bad(ring, "offloads without a context descriptor before (section 7.2.3.3)");
                gathered.broken = true;
            }
            let context = found.unwrap_or_default();
            let flags = (board.registers.get(DTXTCPFLGL::OFFSET), board.registers.get(DTXTCPFLGH::OFFSET));
            let segments = first & transmit::TSE != 0;
            expected = if segments { total.saturating_sub(context.headers()) } else { total };
            gathered.vlan = (first & transmit::VLE != 0).then_some(context.vlan);
            gathered.wanted = Some(Wanted {
                context,
                ip_checksum: first & transmit::IXSM != 0,
                transport_checksum: first & transmit::TXSM != 0,
                segments,
                flags: [flags.0 as u8, (flags.0 >> 16) as u8, flags.1 as u8],
                anywhere: None,
            });
        }
        if (first >> transmit::PAYLEN_SHIFT) as usize != expected {
            bad(ring, "PAYLEN is not the packet's length (section 7.2.3.2.4)");
        }
    }
    let segments = gathered.wanted.as_ref().is_some_and(|wanted| wanted.segments);
    if !segments && !(transmit::SHORTEST..=LONGEST).contains(&total) {
        bad(ring, "a packet shorter than 17 bytes, or longer than 15.5 KiB (section 7.2.1.1)");
        gathered.broken |= total > LONGEST;
    }
}

/// Writes back those descriptors of a packet that have RS (section 7.2.3.5).
fn report(board: &Board, maps: &Maps, ring: &mut CardRing, gathered: &Gathered) {
    let count = gathered.descriptors;
    let requests = |word: u64| word & transmit::RS != 0;
    if count == 1 && !gathered.broken {
        if requests(gathered.last) {
            ring.reports.push_back(ring.head);
        }
    } else {
        for n in 0..count {
            if ring.descriptor(maps, n, &board.oracle).is_some_and(|descriptor| requests(descriptor.read()[1])) {
                ring.reports.push_back(ring.index(n));
            }
        }
    }
    ring.advance(count);
    ring.done_since_write_back += count;
    // With a threshold (WTHRESH), write-backs are delayed until that many descriptors are done.
    let threshold = ring.control >> TXDCTL::WTHRESH_SHIFT & 0x7F;
    if ring.done_since_write_back >= threshold || ring.owned() == 0 {
        ring.done_since_write_back = 0;
        if !ring.reports.is_empty() {
            write_back(board, maps, ring);
        }
    }
}

/// Writes back the descriptors whose write-back was delayed.
fn write_back(Board { registers, oracle, .. }: &Board, maps: &Maps, ring: &mut CardRing) {
    let head_address =
        u64::from(registers.get(TDWBAL::at(ring.queue))) | u64::from(registers.get(TDWBAH::at(ring.queue))) << 32;
    if head_address & 1 != 0 {
        // The card writes its head instead of each descriptor's status (section 7.2.3.5.2).
        ring.reports.clear();
        maps.write(head_address & !3, &ring.head.to_le_bytes());
    }
    while let Some(index) = ring.reports.pop_front() {
        if let Some(descriptor) = ring.descriptor_at(maps, index, oracle) {
            descriptor.write_back([0, transmit::DD]);
        }
    }
}
