//! The Internet's checksum (RFC 1071).

/// Returns the checksum of `bytes`, with `start` as the sum of words before them: 0 if they contain a valid checksum.
pub(super) fn checksum(start: u64, bytes: &[u8]) -> u16 {
    complement(folded(start + sum_of(bytes)), false)
}

/// Returns the one's complement sum of bytes as big-endian words, not folded.
pub(super) fn sum_of(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low))).sum()
}

/// Folds a sum of fewer than 2^32 16-bit words into 32 bits.
pub(super) fn folded(sum: u64) -> u32 {
    ((sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32)) as u32
}

/// Folds a sum into 16 bits, and returns its complement: the checksum.
#[inline(always)]
pub(super) fn complement(sum: u32, is_never_zero: bool) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    match !(sum as u16) {
        0 if is_never_zero => 0xFFFF,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_fold_and_complement() {
        assert_eq!(complement(0, false), 0xFFFF);
        assert_eq!((complement(0xFFFF, false), complement(0xFFFF, true)), (0, 0xFFFF));
        assert_eq!(complement(u32::MAX, false), 0);
        // RFC 1071, section 3: the sum of these bytes is 0xDDF2.
        assert_eq!(checksum(0, &[0, 1, 0xF2, 3, 0xF4, 0xF5, 0xF6, 0xF7]), !0xDDF2);
        assert_eq!(sum_of(&[1, 2, 3]), 0x0102 + 0x0300);
    }
}
