//! A cache of receive decisions by flow, so that headers are parsed, filtered and checked once for each flow.

use super::coalesce::Reported;
use super::headers::UDP;

/// A frame's queue, and its report.
#[derive(Clone, Copy)]
pub(super) struct Decision {
    pub queue: u16,
    pub reported: Reported,
}

/// Recent flows, by their headers. Contains only flows whose frames all get the same decision until a register changes:
/// UDP over IPv4 without options, fragments or checksum, as generators send it.
#[derive(Default)]
pub(super) struct Flows {
    recent: Vec<Option<Flow>>,
}

struct Flow {
    headers: [u64; 6],
    len: usize,
    decision: Decision,
}

/// The number of cached flows; a power of two.
const KEPT: usize = 256;
/// Bytes of the headers: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;

impl Flows {
    /// Returns the decision for the frame's flow, if cached.
    #[inline]
    pub fn find(&self, frame: &[u8]) -> Option<Decision> {
        let headers = headers(frame)?;
        let flow = self.recent.get(place(&headers))?.as_ref()?;
        // Comparing arrays directly would call memcmp.
        let differ = headers.iter().zip(&flow.headers).fold(0, |differ, (ours, theirs)| differ | (ours ^ theirs));
        (differ == 0 && flow.len == frame.len()).then_some(flow.decision)
    }

    /// Caches the decision about a frame, if it depends on the headers alone.
    pub fn keep(&mut self, frame: &[u8], decision: Decision) {
        let Some(headers) = headers(frame) else { return };
        // Ethertype IPv4, a header of 20 bytes, no fragment, UDP, no checksum.
        let by_headers = frame[12..15] == [0x08, 0x00, 0x45]
            && frame[20] & 0x3F == 0
            && frame[21] == 0
            && frame[23] == UDP
            && frame[HEADERS - 2..HEADERS] == [0, 0];
        if by_headers {
            self.recent.resize_with(KEPT, || None);
            self.recent[place(&headers)] = Some(Flow { headers, len: frame.len(), decision });
        }
    }

    /// Drops all decisions, after a register has changed.
    pub fn forget(&mut self) {
        self.recent.clear();
    }
}

/// Returns the first 42 bytes as words.
#[inline]
fn headers(frame: &[u8]) -> Option<[u64; 6]> {
    let (words, _) = frame.first_chunk::<48>()?.as_chunks::<8>();
    let mut headers: [u64; 6] = std::array::from_fn(|n| u64::from_le_bytes(words[n]));
    headers[5] &= 0xFFFF;
    Some(headers)
}

/// Returns the index of a flow, from the low bytes of its source address and source port (bytes 29 and 35).
#[inline]
fn place(headers: &[u64; 6]) -> usize {
    ((headers[3] >> 40 ^ headers[4] >> 24) as usize) % KEPT
}
