//! Receive-side coalescing: merges consecutive TCP segments of a flow into one packet (section 7.11).

use super::checksum;
use super::headers::{Headers, TCP, word};
use super::wire::Frame;

/// The fields of receive descriptors that describe a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    /// Word 0: packet type and hash.
    pub word0: u64,
    /// Bits of word 1, for the last descriptor.
    pub status: u64,
}

/// A packet that is being coalesced, for a queue.
pub(super) struct Packet {
    pub queue: u16,
    pub frame: Frame,
    headers: Headers,
    /// Where each segment's bytes begin in the frame.
    pub starts: Vec<usize>,
    /// When each buffer's first byte arrived, in segments that have been coalesced.
    pub begun: Vec<u64>,
    /// The first segment's report; all segments had correct checksums.
    pub reported: Reported,
    /// The next sequence number expected.
    next: u32,
    /// No segment may follow.
    closed: bool,
}

/// The longest packet (section 7.11.4.2: the IP limit), and the most segments in one buffer that `RSCCNT` can report.
const LONGEST: usize = 65_535;
const MOST: usize = 14;

/// TCP flags.
const ACK: u8 = 0x10;
const PUSH: u8 = 0x08;

/// Returns where a segment's data begins, its sequence number and its flags. Returns `None` if it cannot be coalesced.
pub(super) fn segment(frame: &[u8], headers: &Headers) -> Option<(usize, u32, u8)> {
    if headers.protocol != TCP || headers.fragment || headers.vlan.is_some() {
        return None;
    }
    let at = headers.transport?;
    let data = at + usize::from(frame[at + 12] >> 4) * 4;
    let sequence = u32::from(word(frame, at + 4)?) << 16 | u32::from(word(frame, at + 6)?);
    let flags = frame[at + 13];
    // Only plain data (section 7.11.2).
    let plain = flags & !PUSH == ACK && data < headers.end && data >= at + 20 && headers.end <= frame.len();
    plain.then_some((data, sequence, flags))
}

impl Packet {
    /// Begins a packet with a segment, whose padding is removed.
    pub fn begin(queue: u16, frame: &Frame, headers: &Headers, reported: Reported) -> Option<Packet> {
        let (data, sequence, flags) = segment(&frame.bytes, headers)?;
        let mut frame = frame.clone();
        frame.bytes.truncate(headers.end);
        let next = sequence.wrapping_add((headers.end - data) as u32);
        let (headers, closed) = (*headers, flags & PUSH != 0);
        Some(Packet { queue, frame, headers, starts: vec![0], begun: Vec::new(), reported, next, closed })
    }

    /// Notes that the last segment was number `arrival`, and has begun buffers of `room` bytes.
    pub fn note_arrival(&mut self, arrival: u64, room: usize) {
        self.begun.resize(self.frame.bytes.len().div_ceil(room.max(1)), arrival);
    }

    /// Returns whether the frame is of the same flow: same addresses and ports, and headers of the same length.
    pub fn is_of(&self, frame: &[u8], headers: &Headers) -> bool {
        let (Some(ours), Some(theirs)) = (self.headers.transport, headers.transport) else { return false };
        self.headers.protocol == headers.protocol
            && self.headers.packet_type == headers.packet_type
            && ours == theirs
            && self.headers.addresses(&self.frame.bytes) == headers.addresses(frame)
            && self.frame.bytes[ours..ours + 4] == frame[theirs..theirs + 4]
    }

    /// Appends the next segment, if the packet still fits into `most` buffers of `room` bytes.
    pub fn append(&mut self, frame: &[u8], headers: &Headers, most: usize, room: usize) -> bool {
        let Some((data, sequence, flags)) = segment(frame, headers) else { return false };
        let at = headers.transport.unwrap_or_default();
        let payload = &frame[data..headers.end];
        let len = self.frame.bytes.len();
        let beside = self.starts.iter().filter(|&&start| start / room.max(1) == len / room.max(1)).count();
        let fits = len + payload.len() <= (most * room).min(LONGEST) && beside < MOST;
        // The length of the TCP header and the type of service must not change.
        let same = frame[at + 12] == self.frame.bytes[at + 12]
            && frame[headers.network + 1] == self.frame.bytes[headers.network + 1];
        if self.closed || !fits || !same || sequence != self.next {
            return false;
        }
        self.next = self.next.wrapping_add(payload.len() as u32);
        self.starts.push(len);
        // Take acknowledgement, flags, window and options from the last segment (section 7.11.5.1).
        self.frame.bytes[at + 8..at + 16].copy_from_slice(&frame[at + 8..at + 16]);
        self.frame.bytes[at + 20..data].copy_from_slice(&frame[at + 20..data]);
        self.frame.bytes.extend_from_slice(payload);
        self.closed = flags & PUSH != 0;
        true
    }

    /// Corrects the IP length and checksum; a single segment stays unchanged.
    pub fn finish(&mut self) {
        if self.starts.len() == 1 {
            return self.starts.clear();
        }
        let at = self.headers.network;
        let bytes = &mut self.frame.bytes;
        if self.headers.is_ipv4() {
            let length = ((bytes.len() - at) as u16).to_be_bytes();
            bytes[at + 2..at + 4].copy_from_slice(&length);
            bytes[at + 10..at + 12].fill(0);
            let header = at + usize::from(bytes[at] & 0xF) * 4;
            let sum = checksum::finish(checksum::sum(&bytes[at..header], 0));
            bytes[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let length = ((bytes.len() - at - 40) as u16).to_be_bytes();
            bytes[at + 4..at + 6].copy_from_slice(&length);
        }
    }
}
