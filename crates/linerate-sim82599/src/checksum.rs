//! Checksums that the card inserts and checks (sections 7.1.11 and 7.2.5).

use super::headers::{Headers, SCTP, TCP, UDP, word};

/// Adds the 16-bit words to `sum`, as for the Internet checksum (RFC 1071), without complementing the result.
pub(super) fn sum(bytes: &[u8], sum: u32) -> u32 {
    let mut total = u64::from(sum);
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut last = [0; 4];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(last));
    while total >> 16 != 0 {
        total = (total & 0xFFFF) + (total >> 16);
    }
    total as u32
}

/// Returns the checksum: the complement of a sum.
pub(super) fn finish(sum: u32) -> u16 {
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded & 0xFFFF) + (folded >> 16)) as u16
}

/// Returns the SCTP checksum: a CRC-32C over the packet with the checksum field zeroed (RFC 9260, appendix A).
pub(super) fn sctp(packet: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&packet[..8]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &packet[12..])
}

/// The results of checking a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Whether the IPv4 header's checksum is correct; `None` if there is none.
    pub ip: Option<bool>,
    /// Whether the transport checksum is correct; `None` if there is none.
    pub transport: Option<bool>,
}

/// Checks the checksums of a received frame.
pub(super) fn check(frame: &[u8], headers: &Headers) -> Checked {
    let mut checked = Checked::default();
    if headers.is_ipv4() {
        let length = usize::from(frame[headers.network] & 0xF) * 4;
        checked.ip = frame.get(headers.network..headers.network + length).map(|header| finish(sum(header, 0)) == 0);
    }
    let Some(packet) = headers.transport.and_then(|at| frame.get(at..headers.end)) else { return checked };
    checked.transport = match headers.protocol {
        // Over IPv4 a sender may omit the UDP checksum, which is then not checked.
        UDP if word(packet, 6) == Some(0) => None,
        UDP | TCP if packet.len() >= 8 => {
            let pseudo = sum(headers.addresses(frame), packet.len() as u32 + u32::from(headers.protocol));
            Some(finish(sum(packet, pseudo)) == 0)
        }
        SCTP if packet.len() >= 12 => Some(packet[8..12] == sctp(packet).to_le_bytes()),
        _ => None,
    };
    checked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071, section 3: the example's sum is ddf2.
    #[test]
    fn agrees_with_the_rfc() {
        assert_eq!(finish(sum(&[0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7], 0)), !0xDDF2);
        // An odd byte counts as if a zero followed.
        assert_eq!(finish(sum(&[0x00, 0x01, 0xF2, 0x03, 0xF4], 0)), !0xE605);
    }
}
