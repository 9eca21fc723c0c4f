//! Frames with flows and sequence numbers.

use std::ops::Range;

use super::stamp::{self, SHORTEST, Stamp, USUAL};

/// Generates UDP frames, round-robin over the flows, with separate sequence numbers for each flow.
#[derive(Clone, Debug)]
pub struct Generator {
    frame: Vec<u8>,
    flows: Range<u16>,
    next_flow: u16,
    sequence: u64,
    sent: u64,
    /// `None` if the frames are sent unchanged.
    stamp: Option<Stamp>,
}

impl Default for Generator {
    /// Frames of 64 bytes, CRC included, of one flow.
    fn default() -> Self {
        Generator::new(64, 1)
    }
}

/// The UDP source port of flow 0; flow `f` has this port plus `f`.
pub(super) const FIRST_PORT: u16 = 1024;

impl Generator {
    /// Generates frames of `size` bytes, including 4 bytes of CRC; the minimum is 64. They belong to `flows` flows,
    /// which differ in their UDP source port.
    ///
    /// MAC addresses are locally administered; IP addresses are from 198.18.0.0/15, reserved for benchmarks (RFC 2544).
    pub fn new(size: usize, flows: u16) -> Generator {
        let len = size.clamp(SHORTEST + 4, 65_535) - 4;
        let mut frame = vec![0; len];
        frame[..12].copy_from_slice(&[0x02, 0x6C, 0x72, 0, 0, 0x02, 0x02, 0x6C, 0x72, 0, 0, 0x01]);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..16].copy_from_slice(&[0x45, 0]);
        frame[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        frame[22..24].copy_from_slice(&[64, 17]);
        frame[26..30].copy_from_slice(&[198, 18, 0, 1]);
        frame[30..34].copy_from_slice(&[198, 19, 0, 1]);
        let sum: u32 = frame[14..34].chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]) as u32).sum();
        frame[24..26].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
        // Port 9 is "discard"; a UDP checksum of 0 means none.
        frame[36..38].copy_from_slice(&9u16.to_be_bytes());
        frame[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
        for (index, byte) in frame[SHORTEST..].iter_mut().enumerate() {
            *byte = index as u8;
        }
        let (headers, payload) = frame.split_at_mut(SHORTEST);
        stamp::write_copy(&headers[..USUAL], payload);
        let stamp = Some(Stamp::new(&frame));
        Generator { frame, flows: 0..flows.max(1), next_flow: 0, sequence: 0, sent: 0, stamp }
    }

    /// Returns the headers of short frames of [`new`](Generator::new), which have no copy of them.
    pub(super) fn headers() -> Vec<u8> {
        Generator::default().frame[..USUAL].to_vec()
    }

    /// Generates frames like `template`. UDP over IPv4 without options or VLAN tag, with at least 18 bytes of payload,
    /// gets stamps and flows as in [`new`](Generator::new), and no UDP checksum. Other frames are sent unchanged.
    pub fn from_template(template: &[u8], flows: u16) -> Generator {
        let mut frame = template.to_vec();
        let stamped = frame.len() >= SHORTEST && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17;
        if stamped {
            frame[USUAL - 2..USUAL].fill(0);
        }
        let stamp = stamped.then(|| Stamp::new(&frame));
        Generator { frame, flows: 0..flows.max(1), next_flow: 0, sequence: 0, sent: 0, stamp }
    }

    /// Uses other flow numbers, so that several generators can share a checker.
    pub fn with_flows(mut self, flows: Range<u16>) -> Generator {
        (self.next_flow, self.flows) = (flows.start, flows.start..flows.end.max(flows.start.saturating_add(1)));
        self
    }

    /// Returns whether the frames have sequence numbers.
    pub fn is_stamped(&self) -> bool {
        self.stamp.is_some()
    }

    /// Returns the length of a frame in bytes, without CRC.
    pub fn frame_len(&self) -> usize {
        self.frame.len()
    }

    /// Returns the number of frames generated.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Writes the next frame to `bytes`, which has [`frame_len`](Generator::frame_len) bytes.
    #[inline]
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.sent += 1;
        if let Some(stamp) = &self.stamp {
            let port = FIRST_PORT.wrapping_add(self.next_flow);
            stamp.write(bytes, &self.frame, port, self.next_flow, self.sequence);
            self.next_flow += 1;
            if self.next_flow == self.flows.end {
                (self.next_flow, self.sequence) = (self.flows.start, self.sequence + 1);
            }
        } else {
            bytes.copy_from_slice(&self.frame);
        }
    }
}
