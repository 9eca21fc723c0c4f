//! The layout of a stamped frame, and its hash.

/// The byte that a forwarder changes.
pub const TOUCHED: usize = 48;
/// The offset of the stamp: the payload of UDP over IPv4 without options or VLAN tag.
pub(super) const STAMP: usize = 42;
/// The shortest frame with room for a stamp, without CRC.
pub(super) const SHORTEST: usize = 60;

const MAGIC: u32 = 0x6C72_6174;
const CHECK: usize = 50;
const SEQUENCE: usize = 54;

/// The words that stamps change in frames of one template, without the changes, and the hash of the words before them.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    before: Hash,
    port: u64,
    name: u64,
    end: u64,
}

impl Stamp {
    /// Prepares stamps for frames like `template`, of at least 60 bytes.
    pub fn new(template: &[u8]) -> Stamp {
        let at = |n: usize| word(&template[n * 8..]);
        let mut before = Hash::new(template.len());
        before.add(at(0), at(1));
        before.add(at(2), at(3));
        let name = at(5) & 0xFFFF | u64::from(MAGIC.swap_bytes()) << 16;
        Stamp { before, port: at(4) & !0xFFFF_0000, name, end: at(7) & !0xFFFF_FFFF }
    }

    /// Writes a frame like `template`, with another source port, and a stamp over its payload.
    ///
    /// The hash is computed from the changed words: loads of bytes just stored would stall.
    #[inline]
    pub fn write(&self, frame: &mut [u8], template: &[u8], source_port: u16, flow: u16, sequence: u64) {
        let [.., high, low, _, _, _, _] = sequence.to_be_bytes();
        let port = self.port | u64::from(source_port.swap_bytes()) << 16;
        let name = self.name | u64::from(flow.swap_bytes()) << 48;
        let sequence_start = u64::from_le_bytes([0, 0, 0, 0, 0, 0, high, low]);
        let sequence_end = (sequence as u32).swap_bytes();

        let mut hash = self.before;
        hash.add(port, name);
        hash.add(sequence_start, self.end | u64::from(sequence_end));
        let check = u64::from(hash.finish(template).swap_bytes());
        // No byte is stored twice: later loads of the frame would stall.
        let (Some((start, rest)), Some((template, end))) =
            (frame.split_first_chunk_mut::<32>(), template.split_first_chunk::<32>())
        else {
            return;
        };
        *start = *template;
        let (changed, rest) = rest.split_at_mut(SHORTEST - 32);
        changed[..8].copy_from_slice(&port.to_le_bytes());
        changed[8..16].copy_from_slice(&name.to_le_bytes());
        changed[16..24].copy_from_slice(&(sequence_start | check << 16).to_le_bytes());
        changed[24..].copy_from_slice(&sequence_end.to_le_bytes());
        rest.copy_from_slice(&end[SHORTEST - 32..]);
    }
}

/// Writes a stamp over the payload of a frame of at least 60 bytes; leaves shorter frames unchanged.
#[inline]
pub(super) fn write_over(frame: &mut [u8], flow: u16, sequence: u64) {
    let Some(stamp) = frame.get_mut(STAMP..SHORTEST) else { return };
    stamp[..4].copy_from_slice(&MAGIC.to_be_bytes());
    stamp[4..6].copy_from_slice(&flow.to_be_bytes());
    stamp[6..8].fill(0);
    stamp[12..].copy_from_slice(&sequence.to_be_bytes()[2..]);
    let check = hash(frame, |word| word);
    frame[CHECK..SEQUENCE].copy_from_slice(&check.to_be_bytes());
}

/// Modifies a byte of a packet, as ixy's forwarder does: byte 48 of a stamped frame counts its forwarders. Other frames
/// are only read, so that real traffic keeps valid checksums.
#[inline(always)]
pub fn touch(frame: &mut [u8]) {
    if let Some(bytes) = frame.get_mut(STAMP..=TOUCHED)
        && bytes[..4] == MAGIC.to_be_bytes()
    {
        bytes[TOUCHED - STAMP] = bytes[TOUCHED - STAMP].wrapping_add(1);
    }
}

/// Returns a frame's flow and sequence number, unchecked.
#[inline]
pub(super) fn name(frame: &[u8]) -> Option<(u16, u64)> {
    let frame = frame.first_chunk::<SHORTEST>()?;
    // Words of four bytes each, starting two bytes before the stamp.
    let words: [u32; 5] =
        std::array::from_fn(|n| u32::from_be_bytes(std::array::from_fn(|byte| frame[40 + n * 4 + byte])));
    let flow = words[1] as u16;
    let magic = words[0] << 16 | words[1] >> 16;
    let sequence = u64::from(words[3] as u16) << 32 | u64::from(words[4]);
    (magic == MAGIC).then_some((flow, sequence))
}

/// The result of reading a stamp.
pub(super) enum Read {
    /// No stamp.
    Foreign,
    /// A stamp that does not match the frame's bytes; the flow number may be damaged, too.
    Corrupted { flow: u16 },
    /// Intact.
    Stamped { flow: u16, sequence: u64, touched: u8 },
}

/// Reads and checks a frame's stamp.
#[inline]
pub(super) fn read(frame: &[u8]) -> Read {
    let Some((flow, sequence)) = name(frame) else { return read_unmarked(frame) };
    match check_of(frame) == Some(hash(frame, |word| word)) {
        true => Read::Stamped { flow, sequence, touched: frame[TOUCHED] },
        false => Read::Corrupted { flow },
    }
}

/// Reads a frame without the magic number: if only that is damaged, the frame was stamped.
#[cold]
fn read_unmarked(frame: &[u8]) -> Read {
    let marked = |word: u64| word & !(0xFFFF_FFFF << 16) | u64::from(MAGIC.swap_bytes()) << 16;
    match check_of(frame).is_some_and(|check| check == hash(frame, marked)) {
        true => Read::Corrupted { flow: u16::from_be_bytes([frame[STAMP + 4], frame[STAMP + 5]]) },
        false => Read::Foreign,
    }
}

fn check_of(frame: &[u8]) -> Option<u32> {
    frame.first_chunk::<SHORTEST>()?[CHECK..SEQUENCE].first_chunk().copied().map(u32::from_be_bytes)
}

/// Hashes all bytes except the changed one and the check itself; `name` maps the word of bytes 40 to 47.
#[inline(always)]
fn hash(frame: &[u8], name: impl Fn(u64) -> u64) -> u32 {
    // Bytes 48 to 55 are one word: keep 49, 54 and 55.
    const KEEP: u64 = u64::from_le_bytes([0, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF]);
    let Some((start, end)) = frame.split_first_chunk::<56>() else { return 0 };
    let words: [u64; 7] = std::array::from_fn(|n| word(&start[n * 8..]));
    let mut hash = Hash::new(frame.len());
    hash.add(words[0], words[1]);
    hash.add(words[2], words[3]);
    hash.add(words[4], name(words[5]));
    hash.add(words[6] & KEEP, word(end));
    hash.finish(frame)
}

/// A hash of bytes as words of 8: two lanes of multiply and rotate. It detects accidental damage, not attacks.
#[derive(Clone, Copy, Debug)]
struct Hash {
    even: u64,
    odd: u64,
}

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hash {
    #[inline(always)]
    fn new(len: usize) -> Hash {
        Hash { even: len as u64, odd: ODD }
    }

    #[inline(always)]
    fn add(&mut self, even: u64, odd: u64) {
        let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(ODD).rotate_left(29);
        (self.even, self.odd) = (mix(self.even, even), mix(self.odd, odd));
    }

    /// Adds the bytes of `frame` from byte 64 on, and returns the hash.
    #[inline(always)]
    fn finish(mut self, frame: &[u8]) -> u32 {
        for pair in frame.get(64..).unwrap_or_default().chunks(16) {
            self.add(word(pair), pair.get(8..).map_or(0, word));
        }
        ((self.even ^ self.odd.rotate_left(32)).wrapping_mul(ODD) >> 32) as u32
    }
}

/// Returns the first 8 bytes as a word; missing bytes are 0.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => partial_word(bytes),
    }
}

/// Returns fewer than 8 bytes as a word.
#[inline(always)]
fn partial_word(bytes: &[u8]) -> u64 {
    let (start, rest) =
        bytes.split_first_chunk::<4>().map_or((0, bytes), |(start, rest)| (u32::from_le_bytes(*start), rest));
    let shift = (bytes.len() - rest.len()) * 8;
    rest.iter().enumerate().fold(start.into(), |word, (n, byte)| word | u64::from(*byte) << (shift + n * 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found_but_the_touched_one() {
        for len in [60, 61, 67, 128] {
            let (template, mut frame) = ((0..len).map(|i| i as u8).collect::<Vec<_>>(), vec![0; len]);
            Stamp::new(&template).write(&mut frame, &template, 1031, 7, 0x0000_1234_5678_9ABC);
            for at in 0..frame.len() {
                frame[at] = frame[at].wrapping_add(1);
                match read(&frame) {
                    Read::Stamped { flow: 7, sequence: 0x0000_1234_5678_9ABC, touched: 1 } => assert_eq!(at, TOUCHED),
                    // Even if the magic number is damaged.
                    Read::Corrupted { flow } => assert!(at != TOUCHED && (flow == 7 || (46..48).contains(&at))),
                    Read::Foreign | Read::Stamped { .. } => panic!("a change of byte {at} of {len} was not found"),
                }
                frame[at] = frame[at].wrapping_sub(1);
            }
        }
    }

    /// A stamp written over a frame equals that of a prepared frame with the same bytes.
    #[test]
    fn a_stamp_over_a_frame_is_read() {
        for len in [60, 61, 67, 128, 1514] {
            let template = (0..len).map(|i| i as u8).collect::<Vec<_>>();
            let (mut prepared, mut over) = (vec![0; len], template.clone());
            over[34..36].copy_from_slice(&1031u16.to_be_bytes());
            Stamp::new(&template).write(&mut prepared, &template, 1031, 7, 0x0000_1234_5678_9ABC);
            write_over(&mut over, 7, 0x0000_1234_5678_9ABC);
            assert_eq!(over, prepared);
            assert!(matches!(read(&over), Read::Stamped { flow: 7, sequence: 0x0000_1234_5678_9ABC, touched: 0 }));
        }
        write_over(&mut [0; 59], 7, 1);
    }
}
