//! The layout of a stamped frame, and its hash.

/// The byte that a forwarder changes.
pub const TOUCHED: usize = 48;
/// The offset of the stamp: the payload of UDP over IPv4 without options or VLAN tag.
pub(super) const STAMP: usize = 42;
/// The shortest frame with room for a stamp, without CRC.
pub(super) const SHORTEST: usize = 60;

const MAGIC: u32 = 0x6C72_6174;
const FLOW: usize = 46;
const CHECK: usize = 50;
const SEQUENCE: usize = 54;

/// Writes a frame like `template`, of at least 60 bytes, with another source port and a stamp over the payload.
///
/// The hash is computed from the template and the changed words: loads of bytes that were just stored would wait.
#[inline]
pub(super) fn write(frame: &mut [u8], template: &[u8], source_port: u16, flow: u16, sequence: u64) {
    let [.., high, low, _, _, _, _] = sequence.to_be_bytes();
    let sequence_end = (sequence as u32).swap_bytes();
    let (words, rest) = template.as_chunks::<8>();
    let port = word(words[4]) & !0xFFFF_0000 | u64::from(source_port.swap_bytes()) << 16;
    let name = word(words[5]) & 0xFFFF | u64::from(MAGIC.swap_bytes()) << 16 | u64::from(flow.swap_bytes()) << 48;
    let sequence_start = u64::from_le_bytes([0, 0, 0, 0, 0, 0, high, low]);
    let end = |bytes: u64| bytes & !0xFFFF_FFFF | u64::from(sequence_end);

    let check = hash_of(template.len(), |index| match index {
        4 => port,
        5 => name,
        6 => sequence_start,
        7 => end(words.get(7).map_or_else(|| partial_word(rest), |bytes| word(*bytes))),
        _ => words.get(index).map_or_else(|| partial_word(rest), |bytes| word(*bytes)),
    });
    let check = u64::from(check.swap_bytes());
    frame.copy_from_slice(template);
    frame[32..40].copy_from_slice(&port.to_le_bytes());
    frame[40..48].copy_from_slice(&name.to_le_bytes());
    frame[48..56].copy_from_slice(&(sequence_start | check << 16).to_le_bytes());
    frame[56..SHORTEST].copy_from_slice(&sequence_end.to_le_bytes());
}

/// Touches a byte of a packet, as ixy's forwarder does: in a stamped frame, byte 48 counts how often it was forwarded.
/// Any other frame is only read, so that real traffic keeps valid checksums.
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
    if frame.len() < SHORTEST || frame[STAMP..FLOW] != MAGIC.to_be_bytes() {
        return None;
    }
    let mut sequence = [0; 8];
    sequence[2..].copy_from_slice(&frame[SEQUENCE..SHORTEST]);
    Some((u16::from_be_bytes([frame[FLOW], frame[FLOW + 1]]), u64::from_be_bytes(sequence)))
}

/// The result of reading a stamp.
pub(super) enum Read {
    /// No stamp.
    Foreign,
    /// A stamp that does not match the frame's bytes.
    Corrupted,
    /// Intact.
    Stamped { flow: u16, sequence: u64, touched: u8 },
}

/// Reads and checks a frame's stamp.
#[inline]
pub(super) fn read(frame: &[u8]) -> Read {
    let Some((flow, sequence)) = name(frame) else { return Read::Foreign };
    match frame[CHECK..SEQUENCE] == hash(frame).to_be_bytes() {
        true => Read::Stamped { flow, sequence, touched: frame[TOUCHED] },
        false => Read::Corrupted,
    }
}

/// Hashes all bytes except the changed one and the check itself.
#[inline]
fn hash(frame: &[u8]) -> u32 {
    // Bytes 48 to 55 are one word: keep 49, 54 and 55.
    const KEEP: u64 = u64::from_le_bytes([0, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF]);
    let (words, rest) = frame.as_chunks::<8>();
    hash_of(frame.len(), |index| match words.get(index) {
        Some(bytes) if index == TOUCHED / 8 => word(*bytes) & KEEP,
        Some(bytes) => word(*bytes),
        None => partial_word(rest),
    })
}

/// Hashes `len` bytes as words of 8, with a partial one at their end: two lanes of multiply and rotate. It detects accidents,
/// not attacks.
#[inline(always)]
fn hash_of(len: usize, word: impl Fn(usize) -> u64) -> u32 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |lane: u64, word: u64| (lane ^ word).wrapping_mul(ODD).rotate_left(29);
    let (mut even, mut odd) = (len as u64, ODD);
    let count = len / 8 + 1;
    for pair in 0..count / 2 {
        (even, odd) = (mix(even, word(2 * pair)), mix(odd, word(2 * pair + 1)));
    }
    if count % 2 == 1 {
        even = mix(even, word(count - 1));
    }
    ((even ^ odd.rotate_left(32)).wrapping_mul(ODD) >> 32) as u32
}

#[inline(always)]
fn word(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
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
            write(&mut frame, &template, 1031, 7, 0x0000_1234_5678_9ABC);
            for at in 0..frame.len() {
                frame[at] = frame[at].wrapping_add(1);
                match read(&frame) {
                    Read::Stamped { flow: 7, sequence: 0x0000_1234_5678_9ABC, touched: 1 } => assert_eq!(at, TOUCHED),
                    Read::Foreign => assert!((STAMP..FLOW).contains(&at)),
                    Read::Corrupted => assert!(at != TOUCHED),
                    Read::Stamped { .. } => panic!("a change of byte {at} of {len} was not found"),
                }
                frame[at] = frame[at].wrapping_sub(1);
            }
        }
    }
}
