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

/// Writes the stamp over the payload of a frame of at least 60 bytes.
#[inline]
pub(super) fn write(frame: &mut [u8], flow: u16, sequence: u64) {
    frame[STAMP..FLOW].copy_from_slice(&MAGIC.to_be_bytes());
    frame[FLOW..TOUCHED].copy_from_slice(&flow.to_be_bytes());
    frame[TOUCHED..SEQUENCE].fill(0);
    frame[SEQUENCE..SHORTEST].copy_from_slice(&sequence.to_be_bytes()[2..]);
    let check = hash(frame);
    frame[CHECK..SEQUENCE].copy_from_slice(&check.to_be_bytes());
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

/// Hashes all bytes except the changed one and the check itself: two lanes of multiply and add over words of 8 bytes.
/// It detects accidents, not attacks.
#[inline]
fn hash(frame: &[u8]) -> u32 {
    // Bytes 48 to 55 are one word: keep 49, 54 and 55.
    const KEEP: u64 = u64::from_le_bytes([0, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF]);
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [frame.len() as u64, ODD];
    let (words, rest) = frame.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let mut word = u64::from_le_bytes(*word);
        if index == TOUCHED / 8 {
            word &= KEEP;
        }
        let lane = &mut lanes[index % 2];
        *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
    }
    for &byte in rest {
        lanes[0] = (lanes[0] ^ byte as u64).wrapping_mul(ODD).rotate_left(29);
    }
    let mixed = (lanes[0] ^ lanes[1].rotate_left(32)).wrapping_mul(ODD);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found_but_the_touched_one() {
        for len in [60, 61, 67, 128] {
            let mut frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
            write(&mut frame, 7, 0x0000_1234_5678_9ABC);
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
